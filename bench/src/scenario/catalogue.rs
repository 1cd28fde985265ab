//! The catalogue: cold, warm, checked, after a change, after a deletion.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use skillfs::S3Backend;

use crate::args::Args;
use crate::lab::{Lab, Measured};
use crate::ours;
use crate::report::{OURS, Section};
use crate::rivals::{Found, Kind, Rival};
use crate::seed::{self, Seeder};

const NO_INDEX: &str = "skillfs, no index";

/// The size that goals speak of.
const OF_GOALS: usize = 200;

/// From this size on, the plain loop reads a sample.
const SAMPLED_FROM: usize = 1_000;
const SAMPLE: usize = 100;

const OUR_PHASES: [&str; 6] = ["cold", "warm", "checked", "past the bound", "one changed", "one deleted"];
const RIVAL_PHASES: [&str; 4] = ["cold", "warm", "one changed", "one deleted"];

const FIRST: &str = "as it was first";
const CHANGED: &str = "as somebody changed it";

pub(crate) async fn run(args: &Args, lab: &mut Lab) -> Result<Section> {
    let mut section = Section::default();
    let sizes: &[usize] = args.size(&[50, 200, 1_000, 5_000], &[50, 200]);
    for &size in sizes {
        let user = format!("bench-{size}");
        let seeder = Seeder::new(&lab.direct);
        eprintln!("  writing {size} skills");
        seeder.skills(&user, size).await?;
        // A run before this one may have left it.
        seeder.delete(&format!("{user}/.skillfs/index.json")).await?;
        lab.latency(args.latency()).await?;
        let mut bench = Bench { args, lab, seeder, section: &mut section, user, size };
        // Without an index first: it is written after that.
        bench.ours(NO_INDEX).await?;
        for kind in Kind::ALL {
            bench.rival(kind).await?;
        }
        bench.ours(OURS).await?;
    }
    section.notes.push(
        "Cold is a new client, warm the same client again. Time begins when the client is made. \
         Up to 1,000 skills all is done three times, the plain loop once: the time in the middle, the most \
         requests. `~` is measured on a sample and scaled."
            .to_owned(),
    );
    Ok(section)
}

struct Bench<'b> {
    args: &'b Args,
    lab: &'b mut Lab,
    seeder: Seeder,
    section: &'b mut Section,
    user: String,
    size: usize,
}

impl Bench<'_> {
    fn row(&mut self, phase: &str, contestant: &str, measured: &Measured) {
        let work = format!("{} skills, {phase}", self.size);
        self.section.row(self.args, &work, contestant, measured);
    }

    /// The skill that is changed, and the one that is deleted.
    fn victims(&self) -> (usize, usize) {
        (self.size / 3, self.size / 2)
    }

    async fn change(&self, mark: &str) -> Result<()> {
        let [file, ..] = seed::skill(&self.user, self.victims().0, mark);
        self.seeder.put(file.0, file.1).await
    }

    async fn delete(&self) -> Result<()> {
        for (key, _) in seed::skill(&self.user, self.victims().1, FIRST) {
            self.seeder.delete(&key).await?;
        }
        Ok(())
    }

    async fn restore(&self) -> Result<()> {
        self.change(FIRST).await?;
        self.seeder.put_all(seed::skill(&self.user, self.victims().1, FIRST)).await
    }

    /// How often everything is done; the time in the middle counts.
    fn passes(&self) -> usize {
        if self.size > SAMPLED_FROM { 1 } else { self.args.size(3, 1) }
    }

    async fn ours(&mut self, name: &str) -> Result<()> {
        let mut taken: [Vec<Measured>; OUR_PHASES.len()] = Default::default();
        for pass in 0..self.passes() {
            if name == OURS {
                // What is restored after a pass is as it was, but not for the index.
                let direct = ours::connect(&self.lab.direct).await?;
                ours::write_index(&direct, &self.user).await?;
            }
            let one = self.ours_pass(name).await.with_context(|| format!("{name}, pass {pass}"))?;
            for (all, one) in taken.iter_mut().zip(one) {
                all.push(one);
            }
        }
        let mut typical = Vec::new();
        for (phase, all) in OUR_PHASES.into_iter().zip(taken) {
            let measured = Measured::typical(all).context("nothing was measured")?;
            self.row(phase, name, &measured);
            typical.push(measured);
        }
        if let ([cold, warm, checked, past, changed, deleted], OF_GOALS) = (&typical[..], self.size) {
            self.goals(name, &[*cold, *warm, *checked, *past, *changed, *deleted]);
        }
        Ok(())
    }

    /// All phases once, in their order.
    async fn ours_pass(&mut self, name: &str) -> Result<[Measured; OUR_PHASES.len()]> {
        let fs = ours::connect(&self.lab.proxied).await?;
        let session = ours::session(&fs, &self.user, "bench")?;
        let checking = ours::checking(&session);
        let cold = self.ours_once(&session, self.size).await?;
        let warm = self.ours_once(&session, self.size).await?;
        let checked = self.ours_once(&checking, self.size).await?;

        let short = ours::connect_bound(&self.lab.proxied, Duration::from_millis(1)).await?;
        let late = ours::session(&short, &self.user, "bench")?;
        ours::catalogue(&late).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let past = self.ours_once(&late, self.size).await?;

        self.change(CHANGED).await?;
        let changed = self.ours_once(&checking, self.size).await?;
        let text = ours::catalogue(&session).await?;
        ensure!(text.contains(CHANGED), "{name}: the change is not seen");
        self.delete().await?;
        let deleted = self.ours_once(&checking, self.size - 1).await?;
        self.restore().await?;
        Ok([cold, warm, checked, past, changed, deleted])
    }

    fn goals(
        &mut self,
        name: &str,
        [cold, warm, checked, past, changed, deleted]: &[Measured; OUR_PHASES.len()],
    ) {
        let trips = |measured: &Measured| measured.time.as_secs_f64() / self.args.latency().as_secs_f64();
        if name == OURS {
            let requests = cold.counts.total();
            let section = &mut *self.section;
            section.goal(
                "catalogue of 200, cold, with index",
                "2 requests",
                cold.counts.kinds(),
                requests == 2,
            );
            section.at_most("catalogue of 200, cold, with index", 1.5, trips(cold), "round trips");
        } else {
            let counts = cold.counts;
            let ok = counts.list == 1
                && counts.of_index == 1
                && counts.of_skills == 200
                && counts.ranged >= 200
                && counts.total() == 202;
            self.section.goal(
                "catalogue of 200, cold, no index",
                "1 list, 1 look for the index, 200 ranged reads",
                format!(
                    "{} list, {} look, {} reads, {} of them ranged",
                    counts.list, counts.of_index, counts.of_skills, counts.ranged
                ),
                ok,
            );
            let trips = trips(cold);
            self.section.at_most("catalogue of 200, cold, no index", 6.0, trips, "round trips");
        }
        let index = if name == OURS { "with index" } else { "no index" };
        let what = |phase: &str| format!("catalogue of 200, {phase}, {index}");
        let section = &mut *self.section;
        section.goal(what("warm"), "0 requests", warm.counts.total().to_string(), warm.counts.total() == 0);
        for (phase, measured) in [("checked", checked), ("past the bound", past)] {
            let counts = measured.counts;
            // Without an index there is nothing to make a condition of: it is looked for again.
            let looked = if name == OURS { counts.conditional == 1 } else { counts.of_index <= 1 };
            let goal = if name == OURS { "1 list, 1 conditional get" } else { "1 list, at most 1 look" };
            let said = format!("{}; {} conditional", counts.kinds(), counts.conditional);
            let ok = counts.list == 1 && looked && counts.total() <= 2 && counts.of_skills == 0;
            section.goal(what(phase), goal, said, ok);
        }
        let counts = changed.counts;
        section.goal(
            what("one changed"),
            "at most 2 list, 2 look, 1 read",
            format!("{} list, {} look, {} read", counts.list, counts.of_index, counts.of_skills),
            counts.list <= 2 && counts.of_index <= 2 && counts.of_skills <= 1 && counts.total() <= 5,
        );
        section.goal(
            what("one deleted"),
            "no get of a skill",
            format!("{} of skills", deleted.counts.of_skills),
            deleted.counts.of_skills == 0,
        );
    }

    async fn ours_once(&mut self, session: &S3Backend, expected: usize) -> Result<Measured> {
        let (text, measured) = self.lab.measure(ours::catalogue(session)).await?;
        let found = ours::skills_in(&text);
        ensure!(found == expected, "{found} skills instead of {expected}");
        Ok(measured)
    }

    async fn rival(&mut self, kind: Kind) -> Result<()> {
        let mut taken: [Vec<Measured>; RIVAL_PHASES.len()] = Default::default();
        // One by one, there is little that could disturb it, and it takes long.
        let passes = if kind == Kind::Plain { 1 } else { self.passes() };
        for pass in 0..passes {
            let one = self.rival_pass(kind).await.with_context(|| format!("{}, pass {pass}", kind.name()))?;
            for (all, one) in taken.iter_mut().zip(one) {
                all.push(one);
            }
        }
        let estimated = self.most(kind) < self.size;
        for (phase, all) in RIVAL_PHASES.into_iter().zip(taken) {
            self.row(phase, kind.name(), &Measured::typical(all).context("nothing was measured")?);
            if let Some(row) = self.section.rows.last_mut() {
                row.estimated = estimated;
            }
        }
        Ok(())
    }

    async fn rival_pass(&mut self, kind: Kind) -> Result<[Measured; RIVAL_PHASES.len()]> {
        let rival = Rival::new(kind, &self.lab.proxied)?;
        let (_, cold) = self.rival_once(kind, &rival, self.size).await?;
        let (_, warm) = self.rival_once(kind, &rival, self.size).await?;
        self.change(CHANGED).await?;
        let (found, changed) = self.rival_once(kind, &rival, self.size).await?;
        let path = seed::skill_path(self.victims().0);
        let victim = found.skills.iter().find(|skill| skill.key.contains(&path));
        // A sample need not hold it.
        ensure!(victim.is_none_or(|skill| skill.description.contains(CHANGED)), "the change is not seen");
        self.delete().await?;
        let (_, deleted) = self.rival_once(kind, &rival, self.size - 1).await?;
        self.restore().await?;
        Ok([cold, warm, changed, deleted])
    }

    /// How many skills are read.
    fn most(&self, kind: Kind) -> usize {
        match kind {
            Kind::Plain if self.size >= SAMPLED_FROM => SAMPLE,
            Kind::Plain => self.args.size(usize::MAX, 20),
            _ => usize::MAX,
        }
    }

    async fn rival_once(&mut self, kind: Kind, rival: &Rival, expected: usize) -> Result<(Found, Measured)> {
        let prefix = format!("{}/skills/", self.user);
        let (found, mut measured) = self.lab.measure(rival.catalogue(&prefix, self.most(kind))).await?;
        ensure!(found.of == expected, "{} skills instead of {expected}", found.of);
        if found.skills.len() < found.of {
            // Each skill costs the same, one after another.
            let share = found.of as f64 / found.skills.len() as f64;
            measured.time = found.listing + measured.time.saturating_sub(found.listing).mul_f64(share);
            measured.counts.get = (measured.counts.get as f64 * share).round() as u64;
        }
        Ok((found, measured))
    }
}
