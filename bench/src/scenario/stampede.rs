//! Many who want the same at once.

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;

use crate::args::Args;
use crate::lab::Lab;
use crate::ours;
use crate::report::{OURS, Section};
use crate::rivals::{Kind, Rival};
use crate::seed::{self, Seeder};

const USER: &str = "bench-stampede";
const MANY: usize = 1_000;
const SKILLS: usize = 50;

pub(crate) async fn run(args: &Args, lab: &mut Lab) -> Result<Section> {
    let mut section = Section::default();
    let seeder = Seeder::new(&lab.direct);
    seeder.skills(USER, SKILLS).await?;
    seeder.files(USER, 1, 4096).await?;
    ours::write_index(&ours::connect(&lab.direct).await?, USER).await?;
    lab.latency(args.latency()).await?;

    let work = format!("{MANY} cold readers of one file");
    let fs = ours::connect(&lab.proxied).await?;
    let path = format!("/workspace/{}", seed::file_name(0));
    let readers = async {
        let tasks = (0..MANY).map(|_| {
            let (session, path) = (ours::session(&fs, USER, USER), path.clone());
            tokio::spawn(async move { anyhow::Ok(session?.read(path.as_str()).await?.size) })
        });
        for size in try_join_all(tasks).await? {
            ensure!(size? == 4096, "a file is too short");
        }
        Ok(())
    };
    let ((), measured) = lab.measure(readers).await?;
    section.row(args, &work, OURS, &measured);
    section.at_most(work.as_str(), 1.0, measured.counts.total() as f64, "requests");

    let rival = Rival::new(Kind::Tuned, &lab.proxied)?;
    let keys = vec![format!("threads/{USER}/{}", seed::file_name(0)); MANY];
    let (_, measured) = lab.measure(rival.read_all(&keys)).await?;
    section.row(args, &work, Kind::Tuned.name(), &measured);

    let work = format!("{MANY} sessions of one user want its catalogue");
    let fs = ours::connect(&lab.proxied).await?;
    let openers = async {
        let tasks = (0..MANY).map(|i| {
            let session = ours::session(&fs, USER, &format!("thread-{i}"));
            tokio::spawn(async move { anyhow::Ok(ours::skills_in(&ours::catalogue(&session?).await?)) })
        });
        for skills in try_join_all(tasks).await? {
            ensure!(skills? == SKILLS, "skills are missing");
        }
        Ok(())
    };
    let ((), measured) = lab.measure(openers).await?;
    section.row(args, &work, OURS, &measured);
    section.at_most(work, 2.0, measured.counts.total() as f64, "requests");
    Ok(section)
}
