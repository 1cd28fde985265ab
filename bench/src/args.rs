//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use lexopt::ValueExt;
use lexopt::prelude::{Long, Short, Value};
use serde::Serialize;

use crate::scenario;

pub(crate) const HELP: &str = "\
Compares skillfs with other S3 clients on the same work, over loopback.

    cargo run --release -p skillfs-bench -- [OPTIONS]

    --endpoint URL    use this S3 server (http only) instead of starting one; credentials come from
                      AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Use a dedicated bucket:
                      objects are written and not deleted
    --bucket NAME     the bucket to use [bench]
    --latency-ms MS   minimum latency of each response [50]
    --only NAME,…     catalogue, reads, ls, sessions, warm, stampede, roles, cpu, memory, fairness
    --quick           smaller sizes and fewer rounds; not for publishing figures
    --markdown        print tables as Markdown
    --json FILE       write all figures as JSON
";

pub(crate) enum Command {
    Help,
    /// Runs the server process. Hidden.
    Serve {
        upstream: Option<String>,
        bucket: String,
    },
    /// Runs a measurement in a separate process. Hidden.
    Worker {
        name: String,
        rest: Vec<String>,
    },
    Bench(Args),
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Args {
    pub(crate) endpoint: Option<String>,
    pub(crate) bucket: String,
    pub(crate) latency_ms: u64,
    pub(crate) only: Vec<String>,
    pub(crate) quick: bool,
    #[serde(skip)]
    pub(crate) markdown: bool,
    #[serde(skip)]
    pub(crate) json: Option<PathBuf>,
}

impl Args {
    pub(crate) fn includes(&self, scenario: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == scenario)
    }

    pub(crate) fn latency(&self) -> Duration {
        Duration::from_millis(self.latency_ms)
    }

    /// Chooses between the full size and the size for `--quick`.
    pub(crate) fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

pub(crate) fn parse() -> Result<Command> {
    let mut args = Args {
        endpoint: None,
        bucket: "bench".to_owned(),
        latency_ms: 50,
        only: Vec::new(),
        quick: false,
        markdown: false,
        json: None,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Value(name) if name == "serve" || name == "worker" => {
                let mut rest = Vec::new();
                while let Some(value) = parser.next()?.and_then(plain) {
                    rest.push(value);
                }
                let mut rest = rest.into_iter();
                let Some(first) = rest.next() else { bail!("this command is internal") };
                return Ok(if name == "serve" {
                    Command::Serve { bucket: first, upstream: rest.next() }
                } else {
                    Command::Worker { name: first, rest: rest.collect() }
                });
            }
            Long("endpoint") => {
                args.endpoint = Some(parser.value()?.string()?.trim_end_matches('/').to_owned());
            }
            Long("bucket") => args.bucket = parser.value()?.string()?,
            Long("latency-ms") => args.latency_ms = parser.value()?.parse()?,
            Long("only") => {
                args.only.extend(parser.value()?.string()?.split(',').map(|name| name.trim().to_owned()));
            }
            Long("quick") => args.quick = true,
            Long("markdown") => args.markdown = true,
            Long("json") => args.json = Some(parser.value()?.into()),
            Long("help") | Short('h') => return Ok(Command::Help),
            other => return Err(other.unexpected().into()),
        }
    }
    if let Some(unknown) = args.only.iter().find(|name| scenario::ALL.iter().all(|(known, _)| known != name))
    {
        bail!("there is no scenario `{unknown}`; see --help");
    }
    if args.latency_ms == 0 {
        bail!("round trips are counted in latencies: --latency-ms must be at least 1");
    }
    if args.endpoint.as_ref().is_some_and(|url| !url.starts_with("http://")) {
        bail!("the proxy only supports plain HTTP: use an endpoint with `http://`");
    }
    Ok(Command::Bench(args))
}

fn plain(arg: lexopt::Arg<'_>) -> Option<String> {
    match arg {
        Value(value) => value.string().ok(),
        Long(_) | Short(_) => None,
    }
}
