//! `skillfs admin list`, and what else only looks at libraries or takes copies of them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use serde_json::json;

use super::args::Global;
use super::blocking;
use super::connect::{connect, library};
use super::output::Output;
use super::report::Whose;
use super::terminal::{ACCENT, BAD, GOOD, plural, size, visible};
use crate::admin::{LibraryKind, LibraryStats, ListedSkill, Release, RepairOptions};
use crate::entry::format_time;
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::Severity;
use crate::mount::Library;
use crate::source::{Existing, Format, SkillFiles, export as write_archive, new_skill, write_folder};

pub(super) async fn init(name: String, description: String, into: PathBuf, output: &Output) -> Result<()> {
    let made = blocking(move || new_skill(&name, &description, &into)).await?;
    let shown = made.display().to_string();
    let note = format!("made `{shown}`; edit its SKILL.md, then `skillfs admin validate {shown}`");
    output.done(&json!({ "path": shown }), &note)
}

pub(super) async fn releases(global: &Global, output: &Output) -> Result<()> {
    let library = library(global)?;
    let releases = connect(global, false, output).await?.releases(&library).await?;
    let width = releases.iter().map(|release| release.by.chars().count()).max().unwrap_or(0).min(32);
    let line = |release: &Release| {
        let Release { release, at, by, source, created, updated, deleted, current, pinned, .. } = release;
        let current = if *current { "*" } else { " " };
        let pins = if pinned.is_empty() { String::new() } else { format!("  pinned: {}", pinned.join(", ")) };
        format!(
            "{current}{ACCENT}{release:>5}{ACCENT:#}  {}  {:<width$}  +{created} ~{updated} -{deleted}  {}{}\n",
            at.map(format_time).unwrap_or_default(),
            visible(by, false),
            visible(source, false),
            visible(&pins, false)
        )
    };
    output.emit_all(&releases, || releases.iter().map(line).collect())?;
    if releases.is_empty() {
        output.note(&format!("{library} has no releases; `admin push --publish` makes the first"));
    }
    Ok(())
}

pub(super) async fn verify(
    global: &Global,
    repair: bool,
    options: &RepairOptions,
    output: &Output,
) -> Result<ExitCode> {
    let library = library(global)?;
    let fs = connect(global, false, output).await?;
    let progress = output.transfer();
    let watch = |at| progress.tell(at);
    let found = match repair {
        true => fs.repair(&library, options, &watch).await,
        false => fs.verify(&library, options.read, &watch).await,
    };
    progress.finish();
    let found = found?;
    let clean = found.is_clean();
    output.emit(&found, || {
        let mut text = String::new();
        for problem in &found.problems {
            let (word, style) = match problem.severity {
                _ if problem.repaired => ("repaired", GOOD),
                Severity::Error => ("error", BAD),
                Severity::Warning => ("warning", ACCENT),
                Severity::Info => ("info", ACCENT),
            };
            text += &format!(
                "{style}{word:<8}{style:#} {:<16} {}: {}\n",
                problem.code,
                visible(&problem.path, false),
                visible(&problem.message, false)
            );
        }
        let word = if clean { format!("{GOOD}fine{GOOD:#}") } else { format!("{BAD}not fine{BAD:#}") };
        let skills = plural(found.skills, "skill", "skills");
        let files = plural(found.files, "file", "files");
        text + &format!("{library}: {word}; {skills}, {files}, {} read\n", found.read)
    })?;
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

pub(super) async fn prune(global: &Global, output: &Output) -> Result<()> {
    let library = library(global)?;
    let pruned = connect(global, false, output).await?.prune(&library).await?;
    let releases = plural(pruned.releases, "old release", "old releases");
    let blobs = plural(pruned.blobs, "blob", "blobs");
    output.done(&pruned, &format!("deleted {releases} and {blobs}, {}", size(pruned.bytes)))
}

pub(super) async fn list(global: &Global, output: &Output) -> Result<()> {
    let fs = connect(global, false, output).await?;
    if global.session.has_library() {
        let skills = fs.library_skills(&library(global)?).await?;
        let width = skills.iter().map(|skill| skill.path.as_str().chars().count()).max().unwrap_or(0).min(60);
        let line = |ListedSkill { path, files, bytes, release, pinned, .. }: &ListedSkill| {
            let from = match (release, pinned) {
                (_, Some(pinned)) => format!("pinned to release {pinned}"),
                (Some(release), None) => format!("release {release}"),
                (None, None) => "plain".to_owned(),
            };
            let (path, files) = (visible(path.as_str(), false), plural(*files, "file", "files"));
            format!("{path:<width$}  {files:>10}  {:>10}  {from}\n", size(*bytes))
        };
        output.emit_all(&skills, || skills.iter().map(line).collect())?;
        output.note(&plural(skills.len() as u64, "skill", "skills"));
        return Ok(());
    }
    let found = fs.libraries().await?;
    #[derive(Serialize)]
    struct Line<'a> {
        kind: &'static str,
        id: &'a str,
    }
    let users = found.users.iter().map(|id| Line { kind: "user", id: id.as_str() });
    let all: Vec<_> =
        users.chain(found.shared.iter().map(|id| Line { kind: "library", id: id.as_str() })).collect();
    let line = |Line { kind, id }: &Line<'_>| format!("{kind:<8} {}\n", visible(id, false));
    output.emit_all(&all, || all.iter().map(line).collect())?;
    let users = plural(found.users.len() as u64, "user", "users");
    let shared = plural(found.shared.len() as u64, "shared library", "shared libraries");
    output.note(&format!("{users}, {shared}; name one with `--user` or `--library` to see its skills"));
    Ok(())
}

pub(super) async fn stats(global: &Global, output: &Output) -> Result<()> {
    let fs = connect(global, false, output).await?;
    let libraries = if global.session.has_library() {
        vec![library(global)?]
    } else {
        let found = fs.libraries().await?;
        let users = found.users.into_iter().map(Library::User);
        users.chain(found.shared.into_iter().map(Library::Shared)).collect()
    };
    #[derive(Serialize)]
    struct Line<'a> {
        #[serde(flatten)]
        whose: Whose<'a>,
        #[serde(flatten)]
        stats: LibraryStats,
    }
    let progress = output.progress("libraries");
    progress.set_length(libraries.len() as u64);
    let mut all = Vec::new();
    for library in &libraries {
        all.push(Line { whose: library.into(), stats: fs.library_stats(library).await? });
        progress.inc(1);
    }
    progress.finish_and_clear();
    let row = |[name, kind, skills, files, bytes, release, listed, stored]: [&str; 8]| {
        format!(
            "{name:<32} {kind:<9} {skills:>7} {files:>7} {bytes:>10} {release:>7} {listed:>8} {stored:>10}\n"
        )
    };
    let line = |Line { whose, stats }: &Line<'_>| {
        let name = match whose {
            Whose::User(user) => format!("user {user}"),
            Whose::Library(library) => format!("library {library}"),
        };
        let kind = match stats.kind {
            LibraryKind::Empty => "empty",
            LibraryKind::Plain => "plain",
            LibraryKind::Published => "published",
        };
        row([
            &visible(&name, false),
            kind,
            &stats.skills.to_string(),
            &stats.files.to_string(),
            &size(stats.bytes),
            &stats.release.to_string(),
            &stats.releases.to_string(),
            &size(stats.blob_bytes),
        ])
    };
    output.emit_all(&all, || {
        let head = row(["library", "kind", "skills", "files", "size", "release", "listed", "stored"]);
        head + &all.iter().map(line).collect::<String>()
    })
}

pub(super) async fn pull(
    global: &Global,
    target: PathBuf,
    category: Option<String>,
    overwrite: bool,
    output: &Output,
) -> Result<()> {
    let library = library(global)?;
    let existing = if overwrite { Existing::Replace } else { Existing::Refuse };
    let skills = read_all(global, &library, category.as_deref(), output).await?;
    let count = skills.iter().filter(|skill| skill.skill_file().is_some()).count() as u64;
    let folder = target.clone();
    let written = blocking(move || write_folder(&skills, &folder, existing)).await?;
    let note = format!(
        "wrote {} to `{}`: {}, {} there already",
        plural(count, "skill", "skills"),
        target.display(),
        plural(written.written, "file", "files"),
        written.unchanged
    );
    output.done(&written, &note)
}

pub(super) async fn export(
    global: &Global,
    target: PathBuf,
    category: Option<String>,
    overwrite: bool,
    output: &Output,
) -> Result<()> {
    let library = library(global)?;
    let format = format_of(&target)?;
    let mut skills = read_all(global, &library, category.as_deref(), output).await?;
    skills.retain(|skill| skill.skill_file().is_some());
    let file = target.clone();
    let exported = blocking(move || {
        let shown = file.display().to_string();
        let failed = |e: std::io::Error| {
            Error::new(ErrorKind::Unavailable, format!("cannot write `{shown}`: {e}"))
                .with_hint("choose another place")
        };
        // Whole or not at all.
        let folder = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut temporary = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        let exported = write_archive(&skills, format, &mut temporary)?;
        let kept = match overwrite {
            true => temporary.persist(&file),
            false => temporary.persist_noclobber(&file),
        };
        match kept {
            Ok(_) => Ok(exported),
            Err(e) if e.error.kind() == std::io::ErrorKind::AlreadyExists => {
                Err(Error::new(ErrorKind::AlreadyExists, format!("`{shown}` is there already"))
                    .with_hint("choose another name, or say `--overwrite`"))
            }
            Err(e) => Err(failed(e.error)),
        }
    })
    .await?;
    let count = plural(exported.skills.len() as u64, "skill", "skills");
    output.done(&exported, &format!("exported {count} to `{}`", target.display()))
}

fn format_of(target: &Path) -> Result<Format> {
    let name = target.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let ends = |end: &str| name.ends_with(end);
    match () {
        () if ends(".zip") => Ok(Format::Zip),
        () if ends(".tar.gz") || ends(".tgz") => Ok(Format::TarGz),
        () => Err(Error::new(
            ErrorKind::InvalidInput,
            format!("`{}` does not say what kind of archive it is to be", target.display()),
        )
        .with_hint("end it with `.zip`, `.tar.gz` or `.tgz`")),
    }
}

async fn read_all(
    global: &Global,
    library: &Library,
    category: Option<&str>,
    output: &Output,
) -> Result<Vec<SkillFiles>> {
    let fs = connect(global, false, output).await?;
    let progress = output.transfer();
    let mut skills = Vec::new();
    let take = |skill: SkillFiles| {
        skills.push(skill);
        Ok(())
    };
    let read = fs.pull(library, category, take, &|at| progress.tell(at)).await;
    progress.finish();
    read?;
    Ok(skills)
}
