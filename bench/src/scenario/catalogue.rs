//! The catalog of a library, published and plain, shared and per user: cold, warm, past the freshness bound,
//! after a change, after a deletion. Also loading one skill and pushing one skill.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use skillfs::{Library, S3Backend, SkillFs};

use crate::args::Args;
use crate::lab::{Lab, Measured};
use crate::ours;
use crate::report::{OURS, Section};
use crate::rivals::{Found, Kind, Rival};
use crate::seed::{self, FIRST, Seeder};

/// The library size that all goals refer to. The goals of a shared published library also apply to larger
/// ones.
const OF_GOALS: usize = 200;

/// From this size on, the plain loop reads only a sample, and the other rivals read larger libraries only
/// once.
const SAMPLED_FROM: usize = 1_000;
const SAMPLE: usize = 100;

/// A user with a few skills that have the same paths as those of the shared library.
const LAYERED_USER: &str = "bench-beside";
const OWN_SKILLS: usize = 20;

const OUR_PHASES: [&str; 7] =
    ["cold", "warm", "one loaded", "past the bound", "one changed", "one deleted", "one loaded, cold"];
const RIVAL_PHASES: [&str; 6] =
    ["cold", "warm", "one loaded", "one changed", "one deleted", "one loaded, cold"];
/// The phases that read a catalog.
const RIVAL_CATALOGUES: [&str; 4] = ["cold", "warm", "one changed", "one deleted"];

const CHANGED: &str = "as somebody changed it";

pub(crate) async fn run(args: &Args, lab: &mut Lab) -> Result<Section> {
    let mut section = Section::default();
    let seeder = Seeder::new(&lab.direct);
    let publisher = ours::connect(&lab.direct).await?;
    let own = ours::user_library(LAYERED_USER)?;
    seeder.skills(&ours::root(&own), OWN_SKILLS).await?;
    ours::publish(&publisher, &own).await?;
    let sizes: &[usize] = args.size(&[50, 200, 5_000], &[50, 200]);
    for &size in sizes {
        let name = format!("bench-{size}");
        for library in [ours::shared_library(&name)?, ours::user_library(&name)?] {
            eprintln!("  writing {size} skills");
            seeder.skills(&ours::root(&library), size).await?;
            lab.latency(args.latency()).await?;
            let is_shared = matches!(library, Library::Shared(_));
            let mut bench = Bench {
                args,
                lab,
                seeder: &seeder,
                publisher: &publisher,
                section: &mut section,
                library: &library,
                is_published: false,
                size,
            };
            bench.ours().await?;
            if is_shared {
                // The mirror of the published library would have the same keys.
                for kind in Kind::ALL {
                    bench.rival(kind).await?;
                }
            }
            ours::publish(&publisher, &library).await?;
            bench.is_published = true;
            bench.ours().await?;
            if is_shared {
                bench.layered(&name).await?;
                bench.push().await?;
                bench.fastest();
            }
        }
    }
    section.notes.push(format!(
        "`{OURS}` is a shared published library. Nothing tells that a user's own library is published until its \
         index is read, so it is listed at the same time. Others read the keys of the plain library. A change is a \
         release to a published library, and a PUT by another program to a plain one."
    ));
    section.notes.push(
        "Cold is a new client, warm the same client again. Time begins when the client is made. All is done three \
         times: the time in the middle, the most requests. The plain loop, and the others at 5,000 skills, do it once. \
         `~` is measured on a sample and scaled. One skill is loaded by its path; rivals know its key."
            .to_owned(),
    );
    Ok(section)
}

struct Bench<'b> {
    args: &'b Args,
    lab: &'b mut Lab,
    seeder: &'b Seeder,
    publisher: &'b SkillFs,
    section: &'b mut Section,
    library: &'b Library,
    is_published: bool,
    size: usize,
}

impl Bench<'_> {
    fn work(&self, phase: &str) -> String {
        format!("{} skills, {phase}", self.size)
    }

    fn row(&mut self, phase: &str, contestant: &str, measured: &Measured) {
        let work = self.work(phase);
        self.section.row(self.args, &work, contestant, measured);
    }

    fn name(&self) -> &'static str {
        match (self.library, self.is_published) {
            (Library::Shared(_), true) => OURS,
            (Library::Shared(_), false) => "skillfs, plain",
            (_, true) => "skillfs, a user's own",
            (_, false) => "skillfs, a user's own, plain",
        }
    }

    /// The skill to change, and the skill to delete.
    fn changed_and_deleted(&self) -> (usize, usize) {
        (self.size / 3, self.size / 2)
    }

    async fn change(&self, mark: &str) -> Result<()> {
        let i = self.changed_and_deleted().0;
        if self.is_published {
            return ours::push(self.publisher, self.library, vec![pushed(i, mark)]).await;
        }
        let [file, ..] = seed::skill(&ours::root(self.library), i, mark);
        self.seeder.put(file.0, file.1).await
    }

    async fn delete(&self) -> Result<()> {
        let i = self.changed_and_deleted().1;
        if self.is_published {
            return ours::remove(self.publisher, self.library, seed::skill_path(i)).await;
        }
        for (key, _) in seed::skill(&ours::root(self.library), i, FIRST) {
            self.seeder.delete(&key).await?;
        }
        Ok(())
    }

    async fn restore(&self) -> Result<()> {
        let (changed, deleted) = self.changed_and_deleted();
        if self.is_published {
            let skills = vec![pushed(changed, FIRST), pushed(deleted, FIRST)];
            return ours::push(self.publisher, self.library, skills).await;
        }
        self.change(FIRST).await?;
        self.seeder.put_all(seed::skill(&ours::root(self.library), deleted, FIRST)).await
    }

    async fn ours(&mut self) -> Result<()> {
        let name = self.name();
        let mut taken: [Vec<Measured>; OUR_PHASES.len()] = Default::default();
        for pass in 0..self.args.size(3, 1) {
            let one = self.ours_pass().await.with_context(|| format!("{name}, pass {pass}"))?;
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
        if let Ok(typical) = typical.try_into() {
            if self.is_published {
                self.goals_published(&typical);
            } else {
                self.goals_plain(&typical);
            }
        }
        Ok(())
    }

    /// Runs all phases once, in order.
    async fn ours_pass(&mut self) -> Result<[Measured; OUR_PHASES.len()]> {
        let fs = ours::connect(&self.lab.proxied).await?;
        let session = ours::session_with_library(&fs, self.library);
        let checking = ours::checking(&session);
        let cold = self.ours_once(&session, self.size).await?;
        let warm = self.ours_once(&session, self.size).await?;
        let loaded = self.load_once(&session).await?;

        let short = ours::connect_with_bound(&self.lab.proxied, Duration::from_millis(1)).await?;
        let late = ours::session_with_library(&short, self.library);
        ours::catalogue(&late).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let past = self.ours_once(&late, self.size).await?;

        self.change(CHANGED).await?;
        let changed = self.ours_once(&checking, self.size).await?;
        let text = ours::catalogue(&session).await?;
        ensure!(text.contains(CHANGED), "the change is not seen");
        self.delete().await?;
        let deleted = self.ours_once(&checking, self.size - 1).await?;
        self.restore().await?;

        let fs = ours::connect(&self.lab.proxied).await?;
        let loaded_cold = self.load_once(&ours::session_with_library(&fs, self.library)).await?;
        Ok([cold, warm, loaded, past, changed, deleted, loaded_cold])
    }

    async fn ours_once(&mut self, session: &S3Backend, expected: usize) -> Result<Measured> {
        let (text, measured) = self.lab.measure(ours::catalogue(session)).await?;
        let found = ours::skills_in(&text);
        ensure!(found == expected, "{found} skills instead of {expected}");
        Ok(measured)
    }

    async fn load_once(&mut self, session: &S3Backend) -> Result<Measured> {
        let i = self.changed_and_deleted().0;
        let (text, measured) = self.lab.measure(ours::load(session, &seed::skill_path(i))).await?;
        let [(_, expected), ..] = seed::skill_files(i, FIRST);
        ensure!(text.as_bytes() == &expected[..], "another skill was loaded");
        Ok(measured)
    }

    fn trips(&self, measured: &Measured) -> f64 {
        measured.time.as_secs_f64() / self.args.latency().as_secs_f64()
    }

    fn goals_published(
        &mut self,
        [cold, warm, loaded, past, changed, deleted, loaded_cold]: &[Measured; OUR_PHASES.len()],
    ) {
        let (size, is_shared) = (self.size, matches!(self.library, Library::Shared(_)));
        if size < OF_GOALS || (size > OF_GOALS && !is_shared) {
            return;
        }
        let (trips, trips_loaded) = (self.trips(cold), self.trips(loaded));
        let section = &mut *self.section;
        let whose = if is_shared { "shared" } else { "a user's own" };
        let what = |phase: &str| format!("{size} published skills, {whose}, {phase}");
        let of_index = |measured: &Measured| {
            let counts = measured.counts;
            counts.of_index == 1 && counts.total() == 1
        };
        if is_shared {
            section.goal(what("cold"), "1 get of the index", cold.counts.kinds(), of_index(cold));
        } else {
            let ok = cold.counts.of_index == 1 && cold.counts.list == 1 && cold.counts.total() == 2;
            section.goal(what("cold"), "1 list, 1 get of the index", cold.counts.kinds(), ok);
        }
        if size == OF_GOALS {
            section.at_most(what("cold"), 1.5, trips, "round trips");
        }
        section.goal(what("warm"), "0 requests", warm.counts.total().to_string(), warm.counts.total() == 0);
        // A catalog that was evicted sends no requests either: it is computed again from the cached index.
        section.at_most(what("warm"), 0.005, warm.time.as_secs_f64(), "s");
        for (phase, measured) in
            [("past the bound", past), ("one changed", changed), ("one deleted", deleted)]
        {
            let ok = of_index(measured) && measured.counts.conditional == 1;
            let said = format!("{}; {} conditional", measured.counts.kinds(), measured.counts.conditional);
            section.goal(what(phase), "1 conditional get of the index", said, ok);
        }
        if is_shared {
            section.at_most(what("one loaded"), 1.5, trips_loaded, "round trips");
            let counts = loaded_cold.counts;
            let ok = counts.of_index == 1 && counts.of_blobs == 1 && counts.total() == 2;
            section.goal(what("one loaded, cold"), "2 get: the index and the skill", counts.kinds(), ok);
        }
    }

    fn goals_plain(&mut self, [cold, warm, _, past, changed, deleted, _]: &[Measured; OUR_PHASES.len()]) {
        if self.size != OF_GOALS {
            return;
        }
        let trips = self.trips(cold);
        let is_shared = matches!(self.library, Library::Shared(_));
        let section = &mut *self.section;
        let whose = if is_shared { "shared" } else { "a user's own" };
        let what = |phase: &str| format!("{OF_GOALS} plain skills, {whose}, {phase}");
        let counts = cold.counts;
        section.goal(
            what("cold"),
            "1 list, 1 look for the index, 200 ranged reads",
            format!(
                "{} list, {} look, {} reads, {} of them ranged",
                counts.list, counts.of_index, counts.of_skills, counts.ranged
            ),
            counts.list == 1
                && counts.of_index == 1
                && counts.of_skills == 200
                && counts.ranged >= 200
                && counts.total() == 202,
        );
        // The listing of a shared library waits for its index.
        section.at_most(what("cold"), if is_shared { 7.0 } else { 6.0 }, trips, "round trips");
        section.goal(what("warm"), "0 requests", warm.counts.total().to_string(), warm.counts.total() == 0);
        for (phase, measured, reads) in
            [("past the bound", past, 0), ("one changed", changed, 1), ("one deleted", deleted, 0)]
        {
            let counts = measured.counts;
            section.goal(
                what(phase),
                format!("1 list, 1 look, {reads} read"),
                format!("{} list, {} look, {} read", counts.list, counts.of_index, counts.of_skills),
                counts.list == 1
                    && counts.of_index == 1
                    && counts.of_skills == reads
                    && counts.total() == 2 + reads,
            );
        }
    }

    /// Measures a user with their own skills on top of the shared library.
    async fn layered(&mut self, name: &str) -> Result<()> {
        let mut taken = Vec::new();
        for _ in 0..self.args.size(3, 1) {
            let fs = ours::connect(&self.lab.proxied).await?;
            let session = ours::session_with_shared(&fs, LAYERED_USER, name)?;
            taken.push(self.ours_once(&session, self.size).await?);
        }
        let cold = Measured::typical(taken).context("nothing was measured")?;
        self.row("cold, beside a user's own", OURS, &cold);
        if self.size >= OF_GOALS {
            let counts = cold.counts;
            self.section.goal(
                format!("{} published skills, shared, cold, beside a user's own", self.size),
                "3 requests, all at once",
                format!("{}; {} at once", counts.kinds(), counts.most),
                counts.total() == 3 && counts.most == 3,
            );
        }
        Ok(())
    }

    /// Measures a push of one changed file with a new client, and the size of the index.
    async fn push(&mut self) -> Result<()> {
        let fs = ours::connect(&self.lab.proxied).await?;
        let skills = vec![pushed(self.changed_and_deleted().0, CHANGED)];
        let ((), measured) = self.lab.measure(Box::pin(ours::push(&fs, self.library, skills))).await?;
        self.row("one changed file pushed", OURS, &measured);
        let bytes = self.seeder.size(&ours::index_key(self.library)).await? as f64 / 1e3;
        self.section.figure(format!("index of {} skills, on the wire", self.size), bytes, "KB");
        let most = match self.size {
            200 => 70.0,
            5_000 => 1_600.0,
            _ => return Ok(()),
        };
        let what = format!("index of {} skills, on the wire", self.size);
        self.section.at_most(what, most, bytes, "KB");
        let what = format!("one changed file pushed into {} skills, with its mirror", self.size);
        self.section.at_most(what, 12.0, measured.counts.total() as f64, "requests");
        Ok(())
    }

    /// Checks that no other client reads a catalog faster than skillfs does from a shared published library.
    fn fastest(&mut self) {
        let seconds = |work: &str, is_ours: bool| {
            let rows = self.section.rows.iter();
            let rows = rows.filter(move |row| row.work == work && (row.contestant == OURS) == is_ours);
            rows.filter(|row| is_ours || !row.contestant.starts_with(OURS))
                .map(|row| row.seconds)
                .fold(f64::INFINITY, f64::min)
        };
        let ratios = RIVAL_CATALOGUES.map(|phase| {
            let work = self.work(phase);
            seconds(&work, false) / seconds(&work, true)
        });
        let least = ratios.into_iter().fold(f64::INFINITY, f64::min);
        self.section.goal(
            format!("{} published skills, shared: the fastest rival, at any catalogue", self.size),
            ">= 1.00×",
            format!("{least:.2}×"),
            least >= 1.0,
        );
    }

    async fn rival(&mut self, kind: Kind) -> Result<()> {
        let mut taken: [Vec<Measured>; RIVAL_PHASES.len()] = Default::default();
        // Sequential requests vary little and take long, so one pass is enough.
        let once = kind == Kind::Plain || self.size > SAMPLED_FROM;
        for pass in 0..if once { 1 } else { self.args.size(3, 1) } {
            let one = self.rival_pass(kind).await.with_context(|| format!("{}, pass {pass}", kind.name()))?;
            for (all, one) in taken.iter_mut().zip(one) {
                all.push(one);
            }
        }
        let is_sample = self.most(kind) < self.size;
        for (phase, all) in RIVAL_PHASES.into_iter().zip(taken) {
            self.row(phase, kind.name(), &Measured::typical(all).context("nothing was measured")?);
            if let Some(row) = self.section.rows.last_mut() {
                row.estimated = is_sample && RIVAL_CATALOGUES.contains(&phase);
            }
        }
        Ok(())
    }

    async fn rival_pass(&mut self, kind: Kind) -> Result<[Measured; RIVAL_PHASES.len()]> {
        let rival = Rival::new(kind, &self.lab.proxied)?;
        let (_, cold) = self.rival_once(kind, &rival, self.size).await?;
        let (_, warm) = self.rival_once(kind, &rival, self.size).await?;
        let loaded = self.rival_load(&rival).await?;
        self.change(CHANGED).await?;
        let (found, changed) = self.rival_once(kind, &rival, self.size).await?;
        let path = seed::skill_path(self.changed_and_deleted().0);
        let victim = found.skills.iter().find(|skill| skill.key.contains(&path));
        // A sample may not contain the changed skill.
        ensure!(victim.is_none_or(|skill| skill.description.contains(CHANGED)), "the change is not seen");
        self.delete().await?;
        let (_, deleted) = self.rival_once(kind, &rival, self.size - 1).await?;
        self.restore().await?;
        let loaded_cold = self.rival_load(&Rival::new(kind, &self.lab.proxied)?).await?;
        Ok([cold, warm, loaded, changed, deleted, loaded_cold])
    }

    /// The number of skills to read.
    fn most(&self, kind: Kind) -> usize {
        match kind {
            Kind::Plain if self.size >= SAMPLED_FROM => SAMPLE,
            Kind::Plain => self.args.size(usize::MAX, 20),
            _ => usize::MAX,
        }
    }

    async fn rival_once(&mut self, kind: Kind, rival: &Rival, expected: usize) -> Result<(Found, Measured)> {
        let prefix = format!("{}/skills/", ours::root(self.library));
        let (found, mut measured) = self.lab.measure(rival.catalogue(&prefix, self.most(kind))).await?;
        ensure!(found.of == expected, "{} skills instead of {expected}", found.of);
        if found.skills.len() < found.of {
            // Skills are read sequentially and cost the same, so scale linearly.
            let share = found.of as f64 / found.skills.len() as f64;
            measured.time = found.listing + measured.time.saturating_sub(found.listing).mul_f64(share);
            measured.counts.get = (measured.counts.get as f64 * share).round() as u64;
        }
        Ok((found, measured))
    }

    async fn rival_load(&mut self, rival: &Rival) -> Result<Measured> {
        let [(key, expected), ..] =
            seed::skill(&ours::root(self.library), self.changed_and_deleted().0, FIRST);
        let (content, measured) = self.lab.measure(Box::pin(rival.read(&key))).await?;
        ensure!(content == expected, "another skill was loaded");
        Ok(measured)
    }
}

/// A skill in the form in which it is pushed.
fn pushed(i: usize, mark: &str) -> ours::NewFiles {
    (seed::skill_path(i), seed::skill_files(i, mark).to_vec())
}
