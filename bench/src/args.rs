//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use lexopt::ValueExt;
use lexopt::prelude::{Long, Short, Value};
use serde::Serialize;

use crate::scenario;

pub(crate) const HELP: &str = "\
skillfs and its rivals at the same work, on loopback.

    cargo run --release -p skillfs-bench -- [OPTIONS]

    --endpoint URL    an S3 server, http only, instead of the one that is started; credentials come from
                      AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Give a bucket for nothing else:
                      objects are written and left there
    --bucket NAME     its bucket [bench]
    --latency-ms MS   what each answer takes at least [50]
    --only NAME,…     catalogue, reads, ls, sessions, warm, stampede, roles, cpu, memory, fairness
    --quick           smaller sizes and fewer rounds; for a look, not for figures
    --markdown        tables as Markdown
    --json FILE       all figures as JSON
";

pub(crate) enum Command {
    Help,
    /// The other process. Hidden.
    Serve {
        upstream: Option<String>,
        bucket: String,
    },
    /// A measurement in a process of its own. Hidden.
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
    pub(crate) fn wants(&self, scenario: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == scenario)
    }

    pub(crate) fn latency(&self) -> Duration {
        Duration::from_millis(self.latency_ms)
    }

    /// The full size, or the one for a quick look.
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
                let Some(first) = rest.next() else { bail!("it is for this program only") };
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
        bail!("round trips are counted in latencies: give --latency-ms at least 1");
    }
    if args.endpoint.as_ref().is_some_and(|url| !url.starts_with("http://")) {
        bail!("the proxy speaks plain HTTP: give an endpoint with `http://`");
    }
    Ok(Command::Bench(args))
}

fn plain(arg: lexopt::Arg<'_>) -> Option<String> {
    match arg {
        Value(value) => value.string().ok(),
        Long(_) | Short(_) => None,
    }
}
