//! `skillfs admin list`, and what else only looks at libraries or takes copies of them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;

use super::args::Global;
use super::blocking;
use super::connect::{connect, library};
use super::output::Output;
use super::terminal::{ACCENT, BAD, GOOD, plural, print, print_json, size, visible};
use crate::admin::{LibraryKind, LibraryStats, ListedSkill, Release, RepairOptions, Severity};
use crate::entry::format_time;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::Library;
use crate::source::{
    Existing, FolderWritten, Format, SkillFiles, export as write_archive, new_skill, write_folder,
};

pub(super) async fn init(
    name: String,
    description: String,
    into: PathBuf,
    output: &Output,
) -> Result<ExitCode> {
    let made = blocking(move || new_skill(&name, &description, &into)).await?;
    #[derive(Serialize)]
    struct Made<'a> {
        path: std::borrow::Cow<'a, str>,
    }
    let shown = made.display().to_string();
    let note = format!("made `{shown}`; edit its SKILL.md, then `skillfs admin validate {shown}`");
    output.done(&Made { path: made.to_string_lossy() }, &note)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn releases(global: &Global, output: &Output) -> Result<ExitCode> {
    let library = library(global)?;
    let releases = connect(global, false, output).await?.releases(&library).await?;
    if output.is_json() {
        return lines(&releases);
    }
    let mut text = String::new();
    let by = releases.iter().map(|release| release.by.chars().count()).max().unwrap_or(0).min(32);
    for Release { release, at, by: who, source, created, updated, deleted, current, pinned, .. } in &releases
    {
        let current = if *current { "*" } else { " " };
        let pins = if pinned.is_empty() { String::new() } else { format!("  pinned: {}", pinned.join(", ")) };
        text += &format!(
            "{current}{ACCENT}{release:>5}{ACCENT:#}  {}  {:<by$}  +{created} ~{updated} -{deleted}  {}{}\n",
            at.map(format_time).unwrap_or_default(),
            visible(who, false),
            visible(source, false),
            visible(&pins, false)
        );
    }
    print(&text)?;
    if releases.is_empty() {
        output.note(&format!("{library} has no releases; `admin push --publish` makes the first"));
    }
    Ok(ExitCode::SUCCESS)
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
    if output.is_json() {
        print_json(&found)?;
    } else {
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
        text += &format!(
            "{library}: {word}; {}, {}, {} read\n",
            plural(found.skills, "skill", "skills"),
            plural(found.files, "file", "files"),
            found.read
        );
        print(&text)?;
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

pub(super) async fn prune(global: &Global, output: &Output) -> Result<ExitCode> {
    let library = library(global)?;
    let pruned = connect(global, false, output).await?.prune(&library).await?;
    let note = format!(
        "deleted {} and {}, {}",
        plural(pruned.releases, "old release", "old releases"),
        plural(pruned.blobs, "blob", "blobs"),
        size(pruned.bytes)
    );
    output.done(&pruned, &note)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn list(global: &Global, output: &Output) -> Result<ExitCode> {
    let fs = connect(global, false, output).await?;
    if global.session.has_library() {
        let skills = fs.library_skills(&library(global)?).await?;
        if output.is_json() {
            return lines(&skills);
        }
        let width = skills.iter().map(|skill| skill.path.as_str().chars().count()).max().unwrap_or(0).min(60);
        let mut text = String::new();
        for ListedSkill { path, files, bytes, release, pinned, .. } in &skills {
            let from = match (release, pinned) {
                (_, Some(pinned)) => format!("pinned to release {pinned}"),
                (Some(release), None) => format!("release {release}"),
                (None, None) => "plain".to_owned(),
            };
            let path = visible(path.as_str(), false);
            text += &format!(
                "{path:<width$}  {:>10}  {:>10}  {from}\n",
                plural(*files, "file", "files"),
                size(*bytes)
            );
        }
        print(&text)?;
        output.note(&plural(skills.len() as u64, "skill", "skills"));
        return Ok(ExitCode::SUCCESS);
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
    if output.is_json() {
        return lines(&all);
    }
    let mut text = String::new();
    for Line { kind, id } in &all {
        text += &format!("{kind:<8} {}\n", visible(id, false));
    }
    print(&text)?;
    let users = plural(found.users.len() as u64, "user", "users");
    let shared = plural(found.shared.len() as u64, "shared library", "shared libraries");
    output.note(&format!("{users}, {shared}; name one with `--user` or `--library` to see its skills"));
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn stats(global: &Global, output: &Output) -> Result<ExitCode> {
    let fs = connect(global, false, output).await?;
    let libraries = if global.session.has_library() {
        vec![library(global)?]
    } else {
        let found = fs.libraries().await?;
        let users = found.users.into_iter().map(Library::User);
        users.chain(found.shared.into_iter().map(Library::Shared)).collect()
    };
    #[derive(Serialize)]
    struct Line {
        #[serde(skip_serializing_if = "Option::is_none")]
        user: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        library: Option<String>,
        #[serde(flatten)]
        stats: LibraryStats,
    }
    let progress = output.progress("libraries");
    let mut all = Vec::new();
    for (at, library) in libraries.iter().enumerate() {
        progress.set(at as u64, libraries.len() as u64);
        let stats = fs.library_stats(library).await?;
        let (user, library) = match library {
            Library::User(user) => (Some(user.to_string()), None),
            Library::Shared(library) => (None, Some(library.to_string())),
        };
        all.push(Line { user, library, stats });
    }
    progress.finish();
    if output.is_json() {
        return lines(&all);
    }
    let mut text = format!(
        "{:<32} {:<9} {:>7} {:>7} {:>10} {:>7} {:>8} {:>10}\n",
        "library", "kind", "skills", "files", "size", "release", "listed", "stored"
    );
    for Line { user, library, stats } in &all {
        let name = match (user, library) {
            (Some(user), _) => format!("user {user}"),
            (None, library) => format!("library {}", library.as_deref().unwrap_or_default()),
        };
        let kind = match stats.kind {
            LibraryKind::Empty => "empty",
            LibraryKind::Plain => "plain",
            LibraryKind::Published => "published",
        };
        text += &format!(
            "{:<32} {:<9} {:>7} {:>7} {:>10} {:>7} {:>8} {:>10}\n",
            visible(&name, false),
            kind,
            stats.skills,
            stats.files,
            size(stats.bytes),
            stats.release,
            stats.releases,
            size(stats.blob_bytes)
        );
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn pull(
    global: &Global,
    target: PathBuf,
    category: Option<String>,
    overwrite: bool,
    output: &Output,
) -> Result<ExitCode> {
    let library = library(global)?;
    let fs = connect(global, false, output).await?;
    let existing = if overwrite { Existing::Replace } else { Existing::Refuse };
    let skills = read_all(&fs, &library, category.as_deref(), output).await?;
    let count = skills.iter().filter(|skill| skill.skill_file().is_some()).count() as u64;
    let folder = target.clone();
    let written: FolderWritten = blocking(move || write_folder(&skills, &folder, existing)).await?;
    let note = format!(
        "wrote {} to `{}`: {}, {} there already",
        plural(count, "skill", "skills"),
        target.display(),
        plural(written.written, "file", "files"),
        written.unchanged
    );
    output.done(&written, &note)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn export(
    global: &Global,
    target: PathBuf,
    category: Option<String>,
    overwrite: bool,
    output: &Output,
) -> Result<ExitCode> {
    let library = library(global)?;
    let format = format_of(&target)?;
    let fs = connect(global, false, output).await?;
    let mut skills = read_all(&fs, &library, category.as_deref(), output).await?;
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
    output.done(&exported, &format!("exported {count} to `{}`", target.display()))?;
    Ok(ExitCode::SUCCESS)
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
    fs: &crate::backend::SkillFs,
    library: &Library,
    category: Option<&str>,
    output: &Output,
) -> Result<Vec<SkillFiles>> {
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

fn lines(all: &[impl Serialize]) -> Result<ExitCode> {
    for one in all {
        print_json(one)?;
    }
    Ok(ExitCode::SUCCESS)
}
