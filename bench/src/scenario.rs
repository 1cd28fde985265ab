//! The measurements. Each scenario seeds its data and sets the latency; it need not restore either.

mod catalogue;
mod cpu;
mod fairness;
mod files;
mod memory;
mod roles;
mod stampede;
mod warm;

use anyhow::{Result, bail};

use crate::args::Args;
use crate::lab::Lab;
use crate::report::Section;

/// The names and titles of the scenarios, in the order in which they run.
pub(crate) const ALL: &[(&str, &str)] = &[
    ("catalogue", "the skills of a library, with their descriptions"),
    ("reads", "distinct files of 4 KiB"),
    ("ls", "one directory"),
    ("sessions", "opening sessions"),
    ("warm", "cached data"),
    ("stampede", "many concurrent requests for the same data"),
    ("roles", "new threads, with and without their own credentials"),
    ("cpu", "CPU time of uncached reads of 4 KiB, 16 concurrently, no latency"),
    ("memory", "reading much more than fits into the cache"),
    ("fairness", "a quiet tenant alongside a busy one"),
];

pub(crate) async fn run(name: &str, args: &Args, lab: &mut Lab) -> Result<Section> {
    match name {
        "catalogue" => catalogue::run(args, lab).await,
        "reads" => files::reads(args, lab).await,
        "ls" => files::ls(args, lab).await,
        "sessions" => memory::sessions(args, lab).await,
        "warm" => warm::run(args, lab).await,
        "stampede" => stampede::run(args, lab).await,
        "roles" => roles::run(args, lab).await,
        "cpu" => cpu::run(args, lab).await,
        "memory" => memory::run(args, lab).await,
        "fairness" => fairness::run(args, lab).await,
        _ => bail!("there is no scenario `{name}`"),
    }
}
