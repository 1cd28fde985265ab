//! The latency of a quiet tenant while another one has thousands of reads in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use skillfs::S3Backend;

use crate::args::Args;
use crate::lab::Lab;
use crate::report::Section;
use crate::seed::{self, Seeder};
use crate::{ours, usage};

const LATENCY: Duration = Duration::from_millis(20);
const BUSY: &str = "bench-busy";
const QUIET: &str = "bench-quiet";

/// Cold reads of the quiet tenant, both alone and alongside the busy tenant.
const COLD: usize = 40;
/// Warm reads after each cold one.
const WARM: usize = 25;
/// The minimum number of reads for a meaningful median.
const ENOUGH: usize = 10;

const GOAL: f64 = 1.5;

pub(crate) async fn run(args: &Args, lab: &mut Lab) -> Result<Section> {
    let mut section = Section::default();
    let queued = args.size(5_000, 2_000);
    eprintln!("  writing {queued} files");
    let seeder = Seeder::new(&lab.direct);
    seeder.files(BUSY, queued, 4096).await?;
    seeder.files(QUIET, 2 * COLD, 4096).await?;
    lab.latency(LATENCY).await?;
    let fs = ours::connect(&lab.proxied).await?;
    let (busy, quiet) = (ours::session(&fs, BUSY, BUSY)?, ours::session(&fs, QUIET, QUIET)?);

    let over = Arc::new(AtomicBool::new(false));
    let alone = tokio::spawn(reads(quiet.clone(), 0, over.clone())).await??;

    let start = Instant::now();
    let tasks: Vec<_> = (0..queued)
        .map(|i| {
            let busy = busy.clone();
            tokio::spawn(
                async move { busy.read(format!("/workspace/{}", seed::file_name(i)).as_str()).await },
            )
        })
        .collect();
    let contended = tokio::spawn(reads(quiet, COLD, over.clone()));
    for read in try_join_all(tasks).await? {
        ensure!(read?.size == 4096, "a file is too short");
    }
    over.store(true, Ordering::Relaxed);
    let took = start.elapsed();
    let contended = contended.await??;
    ensure!(contended.cold.len() >= ENOUGH, "the busy tenant was done after {} reads", contended.cold.len());

    let kinds = [("cold", &alone.cold, &contended.cold), ("warm", &alone.warm, &contended.warm)];
    for (kind, alone, contended) in kinds {
        let (alone, contended) = (usage::median(alone), usage::median(contended));
        section.figure(format!("{kind} read, alone"), alone, "s");
        section.figure(format!("{kind} read, beside {queued} of another tenant"), contended, "s");
        section.figure(format!("{kind} read, ratio"), contended / alone, "×");
        section.at_most(format!("{kind} read beside a busy tenant, to alone"), GOAL, contended / alone, "×");
    }
    section.figure(format!("the {queued} reads"), took.as_secs_f64(), "s");
    section.notes.push(format!(
        "At 20 ms a request. Medians of {} cold and {} warm reads while the other tenant was busy.",
        contended.cold.len(),
        contended.warm.len()
    ));
    Ok(section)
}

#[derive(Default)]
struct Taken {
    cold: Vec<f64>,
    warm: Vec<f64>,
}

/// Reads files sequentially, cold, with warm reads in between, until all are read or the busy tenant is done.
async fn reads(session: S3Backend, first: usize, over: Arc<AtomicBool>) -> Result<Taken> {
    let mut taken = Taken::default();
    for i in first..first + COLD {
        let path = format!("/workspace/{}", seed::file_name(i));
        for warm in 0..=WARM {
            let start = Instant::now();
            session.read(path.as_str()).await?;
            let time = start.elapsed().as_secs_f64();
            if over.load(Ordering::Relaxed) {
                return Ok(taken);
            }
            if warm == 0 { taken.cold.push(time) } else { taken.warm.push(time) }
        }
    }
    Ok(taken)
}
