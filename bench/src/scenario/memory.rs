//! Memory use of many sessions, and of a cache that is much smaller than the data. Each runs in a separate
//! process.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use tokio::process::Command;

use crate::args::Args;
use crate::lab::{ChildProcess, Lab};
use crate::place::Place;
use crate::report::Section;
use crate::seed::Seeder;
use crate::worker::{MemoryTaken, SessionsTaken};

const MIB: u64 = 1024 * 1024;

pub(crate) async fn sessions(args: &Args, lab: &mut Lab) -> Result<Section> {
    let mut section = Section::default();
    let count = args.size(10_000, 1_000);
    let taken: SessionsTaken = worker(&lab.direct, "sessions", &[count]).await?;
    let grown = taken.after_kib.saturating_sub(taken.before_kib);
    section.figure(format!("{count} sessions"), taken.seconds, "s");
    section.figure("each", taken.seconds / f64::from(count), "s");
    section.figure("resident before", taken.before_kib as f64 / 1024.0, "MiB");
    section.figure("resident after", taken.after_kib as f64 / 1024.0, "MiB");
    section.figure("difference", grown as f64 / 1024.0, "MiB");
    section.figure("a session", grown as f64 * 1024.0 / f64::from(count), "bytes");
    section.goal("opening sessions", "0 requests", taken.requests.to_string(), taken.requests == 0);
    Ok(section)
}

pub(crate) async fn run(args: &Args, _: &mut Lab) -> Result<Section> {
    const CACHE: u64 = 64 * MIB;
    /// The memory that everything except the cache may use.
    const OVERHEAD: u64 = 40 * MIB;
    const SIZE: usize = 256 * 1024;
    let mut section = Section::default();
    // A separate storage, so that its memory is freed afterwards.
    let mut lab = Lab::start(args).await?;
    lab.latency(Duration::ZERO).await?;
    let count = args.size(4_096_u32, 1_024);
    eprintln!("  writing {count} files of 256 KiB");
    Seeder::new(&lab.direct).files("bench-memory", count as usize, SIZE).await?;
    let taken: MemoryTaken = worker(&lab.direct, "memory", &[count, CACHE as u32]).await?;
    ensure!(taken.bytes == u64::from(count) * SIZE as u64, "{} bytes were read", taken.bytes);
    ensure!(taken.requests >= u64::from(count), "only {} requests: not all was fetched", taken.requests);
    section.figure("read", taken.bytes as f64 / MIB as f64, "MiB");
    section.figure("in", taken.seconds, "s");
    section.figure("requests", taken.requests as f64, "");
    section.figure("cache may hold", CACHE as f64 / MIB as f64, "MiB");
    section.figure("resident before", taken.before_kib as f64 / 1024.0, "MiB");
    let peak = taken.peak_kib as f64 / 1024.0;
    section.figure("resident at most", peak, "MiB");
    section.at_most("memory with a cache of 64 MiB", ((CACHE + OVERHEAD) / MIB) as f64, peak, "MiB");
    section.notes.push(format!(
        "{} reads at once; each takes about 1 MiB on its way. The cache in the end: `{}`.",
        crate::worker::MEMORY_AT_ONCE,
        taken.cache
    ));
    Ok(section)
}

/// Runs this program as a worker and returns its result.
async fn worker<T: DeserializeOwned>(place: &Place, name: &str, numbers: &[u32]) -> Result<T> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("worker").arg(name);
    place.configure(&mut command);
    command.args(numbers.iter().map(ToString::to_string));
    ChildProcess::start(command)?.receive().await.with_context(|| format!("the worker `{name}` failed"))
}
