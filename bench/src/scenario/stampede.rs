//! Many concurrent requests for the same data.

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;

use crate::args::Args;
use crate::lab::Lab;
use crate::ours;
use crate::report::{OURS, Section};
use crate::rivals::{Kind, Rival};
use crate::seed::{self, Seeder};

const USER: &str = "bench-stampede";
const SHARED: &str = "bench-stampede";
const MANY: usize = 1_000;
const SKILLS: usize = 50;

pub(crate) async fn run(args: &Args, lab: &mut Lab) -> Result<Section> {
    let mut section = Section::default();
    let seeder = Seeder::new(&lab.direct);
    seeder.skills(USER, SKILLS).await?;
    seeder.files(USER, 1, 4096).await?;
    seeder.skills(&ours::root(&ours::shared_library(SHARED)?), SKILLS).await?;
    let publisher = ours::connect(&lab.direct).await?;
    for library in [ours::user_library(USER)?, ours::shared_library(SHARED)?] {
        ours::publish(&publisher, &library).await?;
    }
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

    for (who, library, most) in [
        ("one user want its catalogue", ours::user_library(USER)?, 2.0),
        ("a shared library want its catalogue", ours::shared_library(SHARED)?, 1.0),
    ] {
        let work = format!("{MANY} sessions of {who}");
        let fs = ours::connect(&lab.proxied).await?;
        let openers = async {
            let tasks = (0..MANY).map(|_| {
                let session = ours::session_with_library(&fs, &library);
                tokio::spawn(async move { anyhow::Ok(ours::skills_in(&ours::catalogue(&session).await?)) })
            });
            for skills in try_join_all(tasks).await? {
                ensure!(skills? == SKILLS, "skills are missing");
            }
            Ok(())
        };
        let ((), measured) = lab.measure(openers).await?;
        section.row(args, &work, OURS, &measured);
        section.at_most(work, most, measured.counts.total() as f64, "requests");
    }
    Ok(section)
}
