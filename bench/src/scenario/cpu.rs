//! The CPU time of a request that no cache can avoid.
//!
//! skillfs and the SDK with the same settings run in one process, with mimalloc. The SDK with its default
//! settings runs in a program without mimalloc. Their rounds alternate, so that a slow phase of the machine
//! affects all of them.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use crate::args::Args;
use crate::lab::{ChildProcess, Lab};
use crate::report::Section;
use crate::seed::Seeder;
use crate::usage;
use crate::worker::{CPU_FILES, RoundTaken};

const GOAL_TUNED: f64 = 1.15;

pub(crate) async fn run(args: &Args, lab: &mut Lab) -> Result<Section> {
    let mut section = Section::default();
    Seeder::new(&lab.direct).files("bench-cpu", CPU_FILES, 4096).await?;
    let mut ours = Command::new(std::env::current_exe()?);
    ours.args(["worker", "rounds"]);
    lab.direct.configure(&mut ours);
    let mut ours = ChildProcess::start(ours)?;
    let mut defaults = match defaults_program().await {
        Ok(program) => {
            let mut command = Command::new(program);
            lab.direct.configure(&mut command);
            Some(ChildProcess::start(command)?)
        }
        Err(error) => {
            section.notes.push(format!("The defaults ran on mimalloc too: {error:#}."));
            None
        }
    };

    let (rounds, reads) = (args.size(7, 3), args.size(4_000, 1_000));
    let mut taken: [Vec<RoundTaken>; 3] = Default::default();
    // The first round is a warm-up and is not counted.
    for round in 0..=rounds {
        for (at, name) in ["skillfs", "tuned", "defaults"].into_iter().enumerate() {
            let child = if at == 2 { defaults.as_mut().unwrap_or(&mut ours) } else { &mut ours };
            let one: RoundTaken = child.request(&format!("{name} {reads}")).await?;
            if round > 0 {
                eprintln!("  round {round}: {name}: {:.1} µs a read", each(&one));
                taken[at].push(one);
            }
        }
    }

    let median = |at: usize| usage::median(&taken[at].iter().map(each).collect::<Vec<_>>());
    let rate =
        |at: usize| usage::median(&taken[at].iter().map(|r| r.reads as f64 / r.seconds).collect::<Vec<_>>());
    // Compute a ratio per round, because conditions were the same for both.
    let ratio = |at: usize| {
        let ratios = taken[0].iter().zip(&taken[at]).map(|(ours, other)| each(ours) / each(other));
        usage::median(&ratios.collect::<Vec<_>>())
    };
    for (at, name) in
        ["skillfs, uncached", "aws-sdk-s3, tuned alike", "aws-sdk-s3, defaults, system allocator"]
            .into_iter()
            .enumerate()
    {
        section.figure(format!("{name}: processor time a read"), median(at), "µs");
        section.figure(format!("{name}: reads a second"), rate(at), "");
    }
    let (tuned, defaults) = (ratio(1), ratio(2));
    section.figure("skillfs to tuned", tuned, "×");
    section.figure("skillfs to defaults", defaults, "×");
    section.at_most("processor time, skillfs to the SDK tuned alike", GOAL_TUNED, tuned, "×");
    section.notes.push(format!(
        "Medians of {rounds} rounds of {reads} reads, in turns; ratios are those of each round."
    ));
    Ok(section)
}

/// The CPU time of one read, in µs.
fn each(round: &RoundTaken) -> f64 {
    round.cpu_seconds * 1e6 / round.reads as f64
}

/// Returns the path of the program without mimalloc. `cargo run` builds only the program that it runs, so
/// this builds the other one.
async fn defaults_program() -> Result<PathBuf> {
    let me = std::env::current_exe()?;
    let directory = me.parent().context("this program has no directory")?;
    let program = directory.join(format!("sdk-defaults{}", std::env::consts::EXE_SUFFIX));
    if let (Ok(cargo), Ok(manifest)) = (std::env::var("CARGO"), std::env::var("CARGO_MANIFEST_DIR")) {
        build(&cargo, &manifest, directory).await?;
    }
    ensure!(
        program.is_file(),
        "`sdk-defaults` is not built; `cargo build --release -p skillfs-bench` does it"
    );
    Ok(program)
}

async fn build(cargo: &str, manifest: &str, directory: &Path) -> Result<()> {
    let profile = match directory.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let target = directory.parent().context("this program is not in a target directory")?;
    eprintln!("  building sdk-defaults");
    let mut command = Command::new(cargo);
    // `cargo run` sets environment variables of this package. Remove them: build scripts that depend on them
    // would run again, and much of the dependency tree would be rebuilt.
    let set_by_cargo = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(set_by_cargo) {
            command.env_remove(name);
        }
    }
    let status = command
        .args(["build", "--quiet", "--bin", "sdk-defaults", "--profile", profile])
        .arg("--manifest-path")
        .arg(Path::new(manifest).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .stdout(Stdio::null())
        .status()
        .await?;
    ensure!(status.success(), "cargo cannot build `sdk-defaults`");
    Ok(())
}
