//! The test setup: starts the server process and communicates with it.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::args::Args;
use crate::place::Place;
use crate::proxy::Counts;
use crate::serve::Started;

/// A child process that answers each line of input with a line of JSON. It is killed on drop.
pub(crate) struct ChildProcess {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl ChildProcess {
    /// Starts a process. Its standard input and output must be piped.
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let mut child = command.spawn().context("cannot start a process")?;
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?).lines();
        Ok(Self { _child: child, input, output })
    }

    pub(crate) async fn request<T: DeserializeOwned>(&mut self, order: &str) -> Result<T> {
        self.input.write_all(format!("{order}\n").as_bytes()).await?;
        self.receive().await
    }

    pub(crate) async fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line = self.output.next_line().await?.context("the other process has ended")?;
        serde_json::from_str(&line).with_context(|| format!("the other process said `{line}`"))
    }
}

pub(crate) struct Lab {
    server: ChildProcess,
    /// The storage without the proxy, for setup that is not measured.
    pub(crate) direct: Place,
    /// The storage through the proxy.
    pub(crate) proxied: Place,
}

/// The cost of a piece of work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) counts: Counts,
    pub(crate) time: Duration,
}

impl Measured {
    /// Summarizes several runs of the same work: the median time, and the highest number of requests.
    pub(crate) fn typical(mut several: Vec<Self>) -> Option<Self> {
        several.sort_by_key(|one| one.time);
        let time = several.get(several.len() / 2)?.time;
        let counts = several.iter().map(|one| one.counts).max_by_key(Counts::total)?;
        Some(Self { counts, time })
    }
}

impl Lab {
    pub(crate) async fn start(args: &Args) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg(&args.bucket);
        if let Some(endpoint) = &args.endpoint {
            command.arg(endpoint);
        }
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).kill_on_drop(true);
        let mut server = ChildProcess::start(command)?;
        let started: Started = server.receive().await?;
        let direct = match &args.endpoint {
            Some(endpoint) => Place::from_env(endpoint, &args.bucket)?,
            None => Place::embedded(&started.storage, &args.bucket),
        };
        let proxied = direct.at(&started.proxy);
        Ok(Self { server, direct, proxied })
    }

    /// Sets the latency of responses.
    pub(crate) async fn latency(&mut self, latency: Duration) -> Result<()> {
        let _: Counts = self.server.request(&format!("latency {}", latency.as_micros())).await?;
        Ok(())
    }

    /// Runs the work, and returns its result, requests and time.
    pub(crate) async fn measure<T>(
        &mut self,
        work: impl Future<Output = Result<T>>,
    ) -> Result<(T, Measured)> {
        self.wait_until_idle().await?;
        let _: Counts = self.server.request("reset").await?;
        let start = Instant::now();
        let done = work.await?;
        let time = start.elapsed();
        // Requests that continue in the background are counted too.
        let counts = self.wait_until_idle().await?;
        Ok((done, Measured { counts, time }))
    }

    async fn wait_until_idle(&mut self) -> Result<Counts> {
        for _ in 0..5_000 {
            let counts: Counts = self.server.request("counts").await?;
            if counts.now == 0 {
                return Ok(counts);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        bail!("requests do not stop")
    }
}
