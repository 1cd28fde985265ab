//! An end-to-end benchmark that compares skillfs with other S3 clients.
//!
//! Everything runs over loopback. The storage and a proxy in front of it run in a separate process, so that
//! the memory and CPU time of the measuring process are those of the client alone. The proxy counts requests
//! and delays each response to simulate the latency of S3.
//!
//! | module | purpose |
//! |---|---|
//! | `serve`, `proxy` | the server process: an embedded store and the proxy |
//! | `lab` | starts the server process, communicates with it, measures |
//! | `ours` | all code that uses skillfs |
//! | `rivals` | the same work with `aws-sdk-s3`, `object_store` and `opendal` |
//! | `seed` | the content of the bucket |
//! | `scenario` | the measurements |
//! | `worker` | measurements that need a fresh process |
//! | `report` | rows, goals, tables, JSON |

#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

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

/// Runs the benchmark; called by `main`.
pub async fn run() -> Result<ExitCode> {
    // The other clients' HTTP library uses the process-wide TLS provider, because none is compiled in.
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

/// Runs the program `sdk-defaults`: rounds of reads with the SDK's default settings.
pub async fn sdk_defaults() -> Result<()> {
    worker::rounds(worker::Rounds::DefaultsOnly, &std::env::args().skip(1).collect::<Vec<_>>()).await
}

async fn bench(args: &Args) -> Result<ExitCode> {
    let mut lab = Lab::start(args).await.context("cannot start the storage")?;
    let mut report = Report::new(args);
    for (name, title) in scenario::ALL {
        if !args.includes(name) {
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
