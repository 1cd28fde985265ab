//! Microbenchmarks of the code that runs on every call: `cargo bench`.
//!
//! Everything is cached before measuring. `bench/` measures the cost of the network.

#![allow(clippy::expect_used, reason = "a failure here must abort the benchmark")]

use std::hint::black_box;
use std::time::Duration;

use divan::Bencher;
use skillfs::admin::{IntoKind, LibraryChange, PushOptions};
use skillfs::embedded::Embedded;
use skillfs::{
    Document, Freshness, Library, S3Backend, Session, Settings, SkillFs, ThreadId, UserId, VirtualPath,
};
use tokio::runtime::Runtime;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    divan::main();
}

/// A session with 200 skills and its files in the cache.
struct Warm {
    runtime: Runtime,
    session: S3Backend,
}

fn skill(i: usize) -> String {
    format!(
        "---\nname: skill-{i:03}\ndescription: Prepares document number {i} from the facts of the case, with \
         the clauses that the law asks for. Use when the user asks for it.\nlicense: MIT\nmetadata:\n  \
         author: acme\n  version: \"1.{i}\"\n---\n# Skill {i}\n\nRead the facts, then write.\n"
    )
}

impl Warm {
    fn new() -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let session = runtime.block_on(Self::session()).expect("a session on the embedded store");
        Self { runtime, session }
    }

    async fn session() -> skillfs::Result<S3Backend> {
        let embedded = Embedded::in_memory()?;
        embedded.create_bucket("bench").await?;
        for i in 0..200 {
            let key = format!("ana/skills/c{}/skill-{i:03}/SKILL.md", i % 8);
            embedded.put("bench", &key, skill(i)).await?;
        }
        embedded
            .put("bench", "threads/t-1/notes.md", "A line of text as notes have it.\n".repeat(124))
            .await?;
        let freshness = Freshness::all(Duration::from_secs(3600));
        let fs = SkillFs::embedded(&embedded, &Settings::new("bench").freshness(freshness)).await?;
        let ana = UserId::parse("ana")?;
        let mut options = PushOptions::default();
        options.into = IntoKind::Published;
        let plan = fs.library(&Library::User(ana.clone())).plan(LibraryChange::Index, &options).await?;
        fs.library(&plan.library).publish(&plan).await?;
        let thread = Some(ThreadId::parse("t-1")?);
        let session = fs.session(&{
            let mut made = Session::default().user(ana);
            made.thread = thread;
            made
        });
        session.load_all_skills_formatted(None).await?;
        for path in ["notes.md", "/skills/c1/skill-001/SKILL.md"] {
            session.read(path).await?;
        }
        Ok(session)
    }
}

#[divan::bench]
fn parse_a_path(bencher: Bencher<'_, '_>) {
    bencher.bench(|| VirtualPath::parse(black_box("/skills/escrituras/compraventa/SKILL.md")));
}

#[divan::bench]
fn parse_a_skill(bencher: Bencher<'_, '_>) {
    let text = skill(7);
    bencher.bench(|| Document::load(black_box(text.as_bytes()), "skill-007", "SKILL.md"));
}

/// Resolving a mount point needs no request, so this measures only parsing and resolving.
#[divan::bench]
fn resolve_a_mount(bencher: Bencher<'_, '_>) {
    let Warm { runtime, session } = Warm::new();
    bencher.bench_local(|| runtime.block_on(session.stat(black_box("/workspace"))));
}

#[divan::bench]
fn exists_warm(bencher: Bencher<'_, '_>) {
    let Warm { runtime, session } = Warm::new();
    bencher.bench_local(|| runtime.block_on(session.exists(black_box("/workspace/notes.md"))));
}

#[divan::bench]
fn exists_warm_in_skills(bencher: Bencher<'_, '_>) {
    let Warm { runtime, session } = Warm::new();
    bencher.bench_local(|| runtime.block_on(session.exists(black_box("/skills/c1/skill-001/SKILL.md"))));
}

#[divan::bench]
fn read_4_kib_warm(bencher: Bencher<'_, '_>) {
    let Warm { runtime, session } = Warm::new();
    bencher.bench_local(|| runtime.block_on(session.read(black_box("/workspace/notes.md"))));
}

#[divan::bench]
fn read_a_skill_warm(bencher: Bencher<'_, '_>) {
    let Warm { runtime, session } = Warm::new();
    bencher.bench_local(|| runtime.block_on(session.read(black_box("/skills/c1/skill-001/SKILL.md"))));
}

#[divan::bench]
fn catalogue_of_200_warm(bencher: Bencher<'_, '_>) {
    let Warm { runtime, session } = Warm::new();
    bencher.bench_local(|| runtime.block_on(session.load_all_skills_formatted(black_box(None))));
}

#[divan::bench]
fn version_warm(bencher: Bencher<'_, '_>) {
    let Warm { runtime, session } = Warm::new();
    bencher.bench_local(|| runtime.block_on(session.catalog_version()));
}
