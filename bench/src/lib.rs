//! skillfs and its rivals at the same work, end to end.
//!
//! Everything is on loopback. The storage and a proxy in front of it run in a process of their own, so that
//! memory and processor time of the measuring process are those of the client alone. The proxy counts
//! requests and makes each answer as late as S3's are.
//!
//! | module | what |
//! |---|---|
//! | `serve`, `proxy` | the other process: an embedded store, and the proxy |
//! | `lab` | starts that process, talks to it, measures |
//! | `ours` | all that is known here of skillfs |
//! | `rivals` | the same work with `aws-sdk-s3`, `object_store` and `opendal` |
//! | `seed` | what lies in the bucket |
//! | `scenario` | what is measured |
//! | `worker` | measurements that want a fresh process |
//! | `report` | rows, goals, tables, JSON |

#![allow(clippy::disallowed_methods, reason = "it measures")]

mod args;
mod lab;
mod ours;
mod place;
mod proxy;
mod report;
mod rivals;
mod scenario;
mod seed;
mod serve;
mod usage;
mod worker;

use std::process::ExitCode;

use anyhow::{Context, Result};

use self::args::{Args, Command};
use self::lab::Lab;
use self::report::Report;

/// The whole program, for `main`.
pub async fn run() -> Result<ExitCode> {
    // The rivals' HTTP client takes the process's provider, and has none compiled in.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match args::parse()? {
        Command::Help => {
            print!("{}", args::HELP);
            Ok(ExitCode::SUCCESS)
        }
        Command::Serve { upstream, bucket } => {
            serve::run(upstream, &bucket).await?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Worker { name, rest } => {
            worker::run(&name, &rest).await?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Bench(args) => bench(&args).await,
    }
}

/// The program `sdk-defaults`: rounds of reads by the SDK as people get it.
pub async fn sdk_defaults() -> Result<()> {
    worker::rounds(worker::Rounds::DefaultsOnly, &std::env::args().skip(1).collect::<Vec<_>>()).await
}

async fn bench(args: &Args) -> Result<ExitCode> {
    let mut lab = Lab::start(args).await.context("cannot start the storage")?;
    let mut report = Report::new(args);
    for (name, title) in scenario::ALL {
        if !args.wants(name) {
            continue;
        }
        eprintln!("{name}: {title}");
        match scenario::run(name, args, &mut lab).await {
            Ok(section) => {
                let section = section.titled(name, title);
                print!("{}", section.show(args.markdown));
                report.sections.push(section);
            }
            Err(error) => {
                eprintln!("{name}: failed: {error:#}");
                report.failed.push(format!("{name}: {error:#}"));
            }
        }
    }
    print!("{}", report.goals(args.markdown));
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_vec_pretty(&report)?).context("cannot write the JSON file")?;
    }
    Ok(if report.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
