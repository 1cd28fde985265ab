//! The server process: the storage and the proxy in front of it. It reads commands from its standard input,
//! answers each with the counts, and exits at the end of the input, so that it never outlives its parent.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use skillfs::embedded::Embedded;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use crate::proxy::Proxy;

/// The first line of output.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Started {
    pub(crate) storage: String,
    pub(crate) proxy: String,
}

pub(crate) async fn run(upstream: Option<String>, bucket: &str) -> Result<()> {
    let storage = match upstream {
        Some(url) => url,
        None => start_storage(bucket).await?,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let started = Started { proxy: format!("http://{}", listener.local_addr()?), storage };
    let proxy = Proxy::new(&started.storage);
    tokio::spawn(proxy.clone().serve(listener));
    say(&started).await?;

    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("latency", micros) => {
                proxy.set_latency(Duration::from_micros(micros.parse().context("a latency is a number")?));
            }
            ("reset", _) => proxy.reset(),
            ("counts", _) => {}
            _ => bail!("unknown order `{line}`"),
        }
        say(&proxy.counts()).await?;
    }
    Ok(())
}

async fn start_storage(bucket: &str) -> Result<String> {
    let store = Embedded::in_memory()?;
    store.create_bucket(bucket).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { store.serve(listener, std::future::pending()).await });
    Ok(url)
}

async fn say(what: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    let mut out = tokio::io::stdout();
    out.write_all(&line).await?;
    out.flush().await?;
    Ok(())
}
