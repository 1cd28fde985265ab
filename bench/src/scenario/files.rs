//! Files and directories: reads and listings.

use anyhow::{Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use skillfs::S3Backend;

use crate::args::Args;
use crate::lab::Lab;
use crate::ours;
use crate::report::{OURS, Section};
use crate::rivals::{AT_ONCE, Kind, Rival};
use crate::seed::{self, Seeder};

const SIZE: usize = 4096;

/// The number of files that the plain loop reads.
const SAMPLE: usize = 100;

pub(crate) async fn reads(args: &Args, lab: &mut Lab) -> Result<Section> {
    let mut section = Section::default();
    let count = args.size(1_000, 200);
    Seeder::new(&lab.direct).files("bench-reads", count, SIZE).await?;
    lab.latency(args.latency()).await?;
    let work = |phase: &str| format!("{count} reads, {phase}");

    let fs = ours::connect(&lab.proxied).await?;
    let session = ours::session(&fs, "bench", "bench-reads")?;
    for phase in ["cold", "warm"] {
        let (bytes, measured) = lab.measure(read_all(&session, count)).await?;
        ensure!(bytes == (count * SIZE) as u64, "skillfs: {bytes} bytes");
        section.row(args, &work(phase), OURS, &measured);
    }
    for kind in Kind::ALL {
        let rival = Rival::new(kind, &lab.proxied)?;
        let read = if kind == Kind::Plain { SAMPLE.min(count) } else { count };
        let keys: Vec<_> = (0..read).map(|i| format!("threads/bench-reads/{}", seed::file_name(i))).collect();
        for phase in ["cold", "warm"] {
            let (bytes, mut measured) = lab.measure(rival.read_all(&keys)).await?;
            ensure!(bytes == read * SIZE, "{}: {bytes} bytes", kind.name());
            // Files are read sequentially and cost the same, so scale linearly.
            measured.time = measured.time * count as u32 / read as u32;
            measured.counts.get = measured.counts.get * count as u64 / read as u64;
            section.row(args, &work(phase), kind.name(), &measured);
            if let Some(row) = section.rows.last_mut() {
                row.estimated = read < count;
            }
        }
    }
    section
        .notes
        .push(format!("skillfs reads {AT_ONCE} at once too. `~` is measured on {SAMPLE} files and scaled."));
    Ok(section)
}

async fn read_all(session: &S3Backend, count: usize) -> Result<u64> {
    stream::iter(0..count)
        .map(async |i| {
            anyhow::Ok(session.read(format!("/workspace/{}", seed::file_name(i)).as_str()).await?.size)
        })
        .buffer_unordered(AT_ONCE)
        .try_fold(0, async |sum, size| Ok(sum + size))
        .await
}

pub(crate) async fn ls(args: &Args, lab: &mut Lab) -> Result<Section> {
    let mut section = Section::default();
    for count in [10, args.size(10_000, 1_000)] {
        let thread = format!("bench-ls-{count}");
        eprintln!("  writing {count} files");
        Seeder::new(&lab.direct).files(&thread, count, 64).await?;
        lab.latency(args.latency()).await?;
        let work = |phase: &str| format!("{count} entries, {phase}");

        let fs = ours::connect(&lab.proxied).await?;
        let session = ours::session(&fs, "bench", &thread)?;
        for phase in ["cold", "warm"] {
            let work_done = async { anyhow::Ok(session.ls("/workspace").await?.entries.len()) };
            let (entries, measured) = lab.measure(work_done).await?;
            ensure!(entries == count, "skillfs: {entries} entries");
            section.row(args, &work(phase), OURS, &measured);
        }
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Plain) {
            let rival = Rival::new(kind, &lab.proxied)?;
            // A listing has no concurrency.
            let name = kind.name().trim_end_matches(", 64 at once");
            for phase in ["cold", "warm"] {
                let (entries, measured) = lab.measure(rival.ls(&format!("threads/{thread}/"))).await?;
                ensure!(entries == count, "{name}: {entries} entries");
                section.row(args, &work(phase), name, &measured);
            }
        }
    }
    Ok(section)
}
