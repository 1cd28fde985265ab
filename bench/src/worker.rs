//! Measurements that run in a fresh process, so that nothing else affects its memory and CPU time.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::place::Place;
use crate::{ours, rivals, seed, usage};

/// The number of files that rounds of reads cycle through.
pub(crate) const CPU_FILES: usize = 64;
/// The concurrency of these reads.
const CPU_AT_ONCE: usize = 16;
/// The concurrency of reads in the memory measurement.
pub(crate) const MEMORY_AT_ONCE: usize = 8;

/// The cost of opening sessions.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SessionsTaken {
    pub(crate) seconds: f64,
    pub(crate) before_kib: u64,
    pub(crate) after_kib: u64,
    pub(crate) requests: u64,
}

/// The cost of reading much more than fits into the cache.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MemoryTaken {
    pub(crate) seconds: f64,
    pub(crate) before_kib: u64,
    pub(crate) peak_kib: u64,
    pub(crate) bytes: u64,
    pub(crate) requests: u64,
    pub(crate) cache: String,
}

/// The cost of a round of reads.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RoundTaken {
    pub(crate) reads: usize,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
}

pub(crate) async fn run(name: &str, rest: &[String]) -> Result<()> {
    match name {
        "sessions" => say(&sessions(rest).await?),
        "memory" => say(&memory(rest).await?),
        "rounds" => rounds(Rounds::Ours, rest).await,
        _ => bail!("there is no worker `{name}`"),
    }
}

fn place(rest: &[String]) -> Result<Place> {
    let [endpoint, bucket, ..] = rest else { bail!("this program is internal to the benchmark") };
    Place::from_env(endpoint, bucket)
}

fn number(rest: &[String], at: usize) -> Result<usize> {
    rest.get(at).and_then(|text| text.parse().ok()).context("a number is missing")
}

fn say(what: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(what)?);
    Ok(())
}

async fn sessions(rest: &[String]) -> Result<SessionsTaken> {
    let (place, count) = (place(rest)?, number(rest, 2)?);
    let fs = ours::connect(&place).await?;
    // Formatting the names is not part of the measurement.
    let names: Vec<_> = (0..count).map(|i| (format!("user-{i}"), format!("thread-{i}"))).collect();
    let mut sessions = Vec::with_capacity(count);
    let before_kib = usage::resident()?;
    let start = Instant::now();
    for (user, thread) in &names {
        sessions.push(ours::session(&fs, user, thread)?);
    }
    let seconds = start.elapsed().as_secs_f64();
    let after_kib = usage::resident()?;
    ensure!(sessions.len() == count, "sessions are missing");
    Ok(SessionsTaken { seconds, before_kib, after_kib, requests: fs.requests().total() })
}

async fn memory(rest: &[String]) -> Result<MemoryTaken> {
    let (place, count, cache_bytes) = (place(rest)?, number(rest, 2)?, number(rest, 3)?);
    let fs = ours::connect_with_cache(&place, cache_bytes as u64).await?;
    let session = ours::session(&fs, "bench", "bench-memory")?;
    let before_kib = usage::resident()?;
    let start = Instant::now();
    let bytes = stream::iter(0..count)
        .map(|i| {
            let session = session.clone();
            let read =
                async move { session.read(format!("/workspace/{}", seed::file_name(i)).as_str()).await };
            async move { anyhow::Ok(tokio::spawn(read).await??.size) }
        })
        .buffer_unordered(MEMORY_AT_ONCE)
        .try_fold(0, async |sum, size| Ok(sum + size))
        .await?;
    Ok(MemoryTaken {
        seconds: start.elapsed().as_secs_f64(),
        before_kib,
        peak_kib: usage::peak_resident()?,
        bytes,
        requests: fs.requests().total(),
        cache: ours::cache(&fs),
    })
}

/// The clients that are measured in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounds {
    /// skillfs, and the SDK with the same settings.
    Ours,
    /// The SDK with its default settings.
    DefaultsOnly,
}

/// Runs rounds of reads on command: `skillfs 4000`, `tuned 4000`, `defaults 4000`.
pub(crate) async fn rounds(who: Rounds, rest: &[String]) -> Result<()> {
    let place = place(rest)?;
    let keys: Arc<Vec<_>> =
        Arc::new((0..CPU_FILES).map(|i| format!("threads/bench-cpu/{}", seed::file_name(i))).collect());
    let paths: Arc<Vec<_>> =
        Arc::new((0..CPU_FILES).map(|i| format!("/workspace/{}", seed::file_name(i))).collect());
    // Only create the clients that are measured in this process.
    let session = match who {
        Rounds::Ours => Some(ours::session(&ours::connect_uncached(&place).await?, "bench", "bench-cpu")?),
        Rounds::DefaultsOnly => None,
    };
    let tuned = (who == Rounds::Ours).then(|| rivals::tuned(&place));
    let defaults = rivals::defaults(&place);
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let (name, reads) = line.split_once(' ').context("a command is a name and a number")?;
        let reads: usize = reads.parse()?;
        let taken = if name == "skillfs" {
            let (session, paths) = (session.clone().context("not in this process")?, paths.clone());
            round(reads, move |i| {
                let (session, paths) = (session.clone(), paths.clone());
                async move { Ok(session.read_bytes(paths[i % CPU_FILES].as_str(), ..).await?.bytes.len()) }
            })
            .await?
        } else {
            let client = if name == "tuned" { tuned.clone() } else { Some(defaults.clone()) };
            let (client, keys) = (client.context("not in this process")?, keys.clone());
            let bucket: Arc<str> = place.bucket.as_str().into();
            round(reads, move |i| {
                let (client, bucket, keys) = (client.clone(), bucket.clone(), keys.clone());
                async move { Ok(rivals::get(&client, &bucket, &keys[i % CPU_FILES]).await?.len()) }
            })
            .await?
        };
        say(&taken)?;
    }
    Ok(())
}

/// Runs `reads` reads in several tasks, each reading one file after another.
async fn round<F, R>(reads: usize, read: F) -> Result<RoundTaken>
where
    F: Fn(usize) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<usize>> + Send,
{
    let (start, cpu) = (Instant::now(), usage::cpu());
    let each = reads / CPU_AT_ONCE;
    let tasks = (0..CPU_AT_ONCE).map(|task| {
        let read = read.clone();
        tokio::spawn(async move {
            for i in 0..each {
                ensure!(read(task * each + i).await? == 4096, "a file is too short");
            }
            Ok(())
        })
    });
    for done in try_join_all(tasks).await? {
        done?;
    }
    let cpu = usage::cpu().saturating_sub(cpu);
    let seconds = start.elapsed().as_secs_f64();
    Ok(RoundTaken { reads: each * CPU_AT_ONCE, seconds, cpu_seconds: cpu.as_secs_f64() })
}
