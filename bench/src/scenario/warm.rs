//! The time to return data that is already cached.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::args::Args;
use crate::lab::Lab;
use crate::report::Section;
use crate::seed::{self, Seeder};
use crate::{ours, usage};

const USER: &str = "bench-warm";

pub(crate) async fn run(args: &Args, lab: &mut Lab) -> Result<Section> {
    let mut section = Section::default();
    let seeder = Seeder::new(&lab.direct);
    seeder.skills(USER, 200).await?;
    seeder.files(USER, 1, 4096).await?;
    lab.latency(Duration::ZERO).await?;
    let fs = ours::connect(&lab.proxied).await?;
    let session = ours::session(&fs, USER, USER)?;
    let path = format!("/workspace/{}", seed::file_name(0));
    ensure!(ours::skills_in(&ours::catalogue(&session).await?) == 200, "skills are missing");
    session.read(path.as_str()).await?;
    session.exists(path.as_str()).await?;

    let batches = args.size(200, 40);
    let before = fs.requests().total();
    let catalogue = batch(batches, 10, async || Ok(ours::catalogue(&session).await?.len())).await?;
    let read = batch(batches, 200, async || Ok(session.read(path.as_str()).await?.content.len())).await?;
    let exists = batch(batches, 200, async || Ok(usize::from(session.exists(path.as_str()).await?))).await?;
    let requests = fs.requests().total() - before;

    section.figure("catalogue of 200 skills as a prompt", catalogue, "s");
    section.figure("read of 4 KiB", read, "s");
    section.figure("exists", exists, "s");
    section.goal("warm catalogue, read, exists", "0 requests", requests.to_string(), requests == 0);
    section.notes.push(format!("Medians of {batches} batches."));
    Ok(section)
}

/// Returns the median over batches of the time per call, in seconds.
async fn batch(batches: usize, calls: u32, mut call: impl AsyncFnMut() -> Result<usize>) -> Result<f64> {
    let mut each = Vec::with_capacity(batches);
    for _ in 0..batches {
        let start = Instant::now();
        for _ in 0..calls {
            black_box(call().await?);
        }
        each.push(start.elapsed().as_secs_f64() / f64::from(calls));
    }
    Ok(usage::median(&each))
}
