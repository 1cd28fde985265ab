//! An administrator's program: publishes a shared library, changes a skill, and rolls back.
//!
//! ```text
//! cargo run --features embedded --example publish
//! ```

#![allow(clippy::print_stdout, reason = "it is a command-line program")]

use std::path::Path;

use skillfs::admin::{LibraryAdmin, NewLibrary, PushOptions};
use skillfs::embedded::Embedded;
use skillfs::source::{Source, SourceOptions, new_skill};
use skillfs::{Library, LibraryId, Session, Settings, SkillFs};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Embedded::in_memory()?;
    store.create_bucket("sample").await?;
    // On S3: `SkillFs::connect(&Settings::new("my-bucket")).await?`.
    let fs = SkillFs::embedded(&store, &Settings::new("sample")).await?;
    let notaries = LibraryId::parse("notaries")?;
    let library = fs.library(&Library::Shared(notaries.clone()));

    // A source is a folder, an archive or a git repository. This one is a folder with two new skills.
    let folder = tempfile::tempdir()?;
    let contracts = folder.path().join("contracts");
    new_skill("lease-agreement", "Drafts lease agreements.", &contracts)?;
    new_skill("power-of-attorney", "Drafts powers of attorney.", &contracts)?;
    push(&library, folder.path()).await?;

    // Only the changed file is uploaded again.
    let skill = contracts.join("lease-agreement/SKILL.md");
    let text = std::fs::read_to_string(&skill)?;
    std::fs::write(&skill, text + "4. Check the deposit.\n")?;
    push(&library, folder.path()).await?;

    // A rollback is a new release with the content of an old one.
    let options = PushOptions::default().by("ana").source("rollback to release 1");
    let done = library.rollback(1, &options).await?;
    println!("rolled back, changed skills: {}, uploaded files: {}\n", done.updated, done.uploaded);

    for release in library.releases().await? {
        println!(
            "{} {:>3}  +{} ~{} -{}  {}",
            if release.current { "*" } else { " " },
            release.release,
            release.created,
            release.updated,
            release.deleted,
            release.source
        );
    }

    // What an agent sees.
    let backend = fs.session(&Session::new().libraries([notaries]));
    let loaded = backend.load_skill("contracts/lease-agreement").await?;
    println!("\nwhat agents see now:\n{}", loaded.body);
    Ok(())
}

/// Plans a push of a folder, prints the plan, and publishes it.
async fn push(library: &LibraryAdmin, folder: &Path) -> skillfs::Result<()> {
    // Reading a source blocks.
    let source = tokio::task::block_in_place(|| Source::folder(folder, &SourceOptions::default()))?;
    let options = PushOptions::default().by("ana").source("skills");
    let plan = library.plan(NewLibrary::from(source), &options).await?;
    for skill in &plan.skills {
        println!("{:?} {}, changed files: {}", skill.action, skill.path, skill.files.len());
    }
    // Fails if another administrator has changed the same files since the plan.
    let done = library.publish(&plan).await?;
    match done.release {
        Some(release) => println!("release {release}, uploaded files: {}\n", done.uploaded),
        None => println!("nothing to publish\n"),
    }
    Ok(())
}
