//! The `admin` commands that create no release: `init`, `list`, `stats`, `releases`, `verify`, `prune`, `pull` and
//! `export`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::json;
use skillfs::admin::{
    LibraryStats, ListedSkill, Problem, PullOptions, Release, RepairOptions, VerifyOptions,
};
use skillfs::source::{Existing, new_skill};
use skillfs::{Library, Result, Severity, format_time};

use super::args::Global;
use super::blocking;
use super::connect::{connect, library};
use super::hints::{Invocation, in_flags};
use super::output::Output;
use super::report::explained;
use super::terminal::{ACCENT, BAD, DIM, GOOD, plural, size, visible};

pub(super) async fn init(name: String, description: String, into: PathBuf, output: &Output) -> Result<()> {
    let made = blocking(move || new_skill(&name, &description, &into)).await?;
    let shown = made.display().to_string();
    let note = format!("created `{shown}`; edit its SKILL.md, then run `skillfs admin validate {shown}`");
    output.done(&json!({ "path": shown }), &note)
}

pub(super) async fn releases(global: &Global, output: &Output) -> Result<()> {
    let library = library(global)?;
    let releases = connect(global, false, output).await?.library(&library).releases().await?;
    output.emit_all(&releases, || release_table(&releases))?;
    if releases.is_empty() {
        output.note(&format!("{library} has no releases; `admin push --publish` creates the first one"));
    }
    Ok(())
}

fn release_table(releases: &[Release]) -> String {
    if releases.is_empty() {
        return String::new();
    }
    let changes = |release: &Release| {
        let Release { created, updated, deleted, .. } = release;
        format!("+{created} ~{updated} -{deleted}")
    };
    let by_width = releases.iter().map(|release| release.by.chars().count()).max().unwrap_or(0).clamp(2, 32);
    let changes_width = releases.iter().map(|release| changes(release).len()).max().unwrap_or(0).max(7);
    let mut table = format!(
        "  {DIM}RELEASE  {:<20}  {:<by_width$}  {:<changes_width$}  SOURCE{DIM:#}\n",
        "TIME", "BY", "CHANGES"
    );
    for release in releases {
        let Release { release: number, at, by, source, current, pinned, .. } = release;
        let mark = if *current { "*" } else { " " };
        let pins = if pinned.is_empty() { String::new() } else { format!("  pinned: {}", pinned.join(", ")) };
        table += &format!(
            "{mark} {ACCENT}{number:>7}{ACCENT:#}  {:<20}  {:<by_width$}  {:<changes_width$}  {}{}\n",
            at.map(format_time).unwrap_or_default(),
            visible(by, false),
            changes(release),
            visible(source, false),
            visible(&pins, false)
        );
    }
    table
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
    let admin = progress.watch(&fs.library(&library));
    let found = match repair {
        true => admin.repair(options).await,
        false => admin.verify(&VerifyOptions::default().read_blobs(options.read_blobs)).await,
    };
    progress.finish();
    let mut found = found?;
    for problem in &mut found.problems {
        let open = problem.hint.take().filter(|_| !problem.repaired);
        problem.hint = open.map(|hint| in_flags(&hint, &Invocation::default()));
    }
    let clean = found.is_clean();
    output.emit(&found, || {
        let mut text = String::new();
        for problem in &found.problems {
            let (word, style) = match problem.severity {
                _ if problem.repaired => ("repaired", GOOD),
                Severity::Error => ("error", BAD),
                Severity::Warning => ("warning", ACCENT),
                _ => ("info", ACCENT),
            };
            text += &format!(
                "{style}{word:<8}{style:#} {:<16} {}: {}\n",
                problem.code,
                visible(&problem.path, false),
                visible(&explained(&problem.message, problem.hint.as_ref()), false)
            );
        }
        let is_open = |problem: &&Problem| !problem.repaired && problem.severity != Severity::Info;
        let verdict = match found.problems.iter().filter(is_open).count() as u64 {
            0 => format!("{GOOD}no problems{GOOD:#}"),
            open => format!("{BAD}{}{BAD:#}", plural(open, "problem", "problems")),
        };
        let skills = plural(found.skills, "skill", "skills");
        let files = plural(found.files, "file", "files");
        let read = plural(found.read, "digest", "digests");
        text + &format!("{library}: {verdict}; checked {skills}, {files} and {read}\n")
    })?;
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

pub(super) async fn prune(global: &Global, output: &Output) -> Result<()> {
    let library = library(global)?;
    let pruned = connect(global, false, output).await?.library(&library).prune().await?;
    let releases = plural(pruned.releases, "old release", "old releases");
    let blobs = plural(pruned.blobs, "blob", "blobs");
    output.done(&pruned, &format!("deleted {releases} and {blobs} ({})", size(pruned.bytes)))
}

pub(super) async fn list(global: &Global, output: &Output) -> Result<()> {
    let fs = connect(global, false, output).await?;
    if global.session.has_library() {
        let skills = fs.library(&library(global)?).list().await?;
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
    output.note(&format!("{users}, {shared}; add `--user ID` or `--library ID` to list the skills of one"));
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
        library: &'a Library,
        #[serde(flatten)]
        stats: LibraryStats,
    }
    let progress = output.progress("libraries");
    progress.set_length(libraries.len() as u64);
    let mut all = Vec::new();
    for library in &libraries {
        all.push(Line { library, stats: fs.library(library).stats().await? });
        progress.inc(1);
    }
    progress.finish_and_clear();
    let row = |[name, kind, skills, files, bytes, release, listed, stored]: [&str; 8]| {
        format!(
            "{name:<32} {kind:<9} {skills:>7} {files:>7} {bytes:>10} {release:>7} {listed:>8} {stored:>10}\n"
        )
    };
    let line = |Line { library, stats }: &Line<'_>| {
        let name = format!("{} {}", library.kind(), library.id());
        row([
            &visible(&name, false),
            stats.kind.as_str(),
            &stats.skills.to_string(),
            &stats.files.to_string(),
            &size(stats.bytes),
            &stats.release.to_string(),
            &stats.releases.to_string(),
            &size(stats.blob_bytes),
        ])
    };
    output.emit_all(&all, || {
        let head = row(["LIBRARY", "KIND", "SKILLS", "FILES", "SIZE", "CURRENT", "RELEASES", "STORED"]);
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
    let admin = connect(global, false, output).await?.library(&library(global)?);
    let options = pull_options(category, overwrite);
    let progress = output.transfer();
    let written = progress.watch(&admin).pull(&target, &options).await;
    progress.finish();
    let written = written?;
    let note = format!(
        "wrote {} to `{}`: {} written, {} unchanged",
        plural(written.skills, "skill", "skills"),
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
    let admin = connect(global, false, output).await?.library(&library(global)?);
    let options = pull_options(category, overwrite);
    let progress = output.transfer();
    let exported = progress.watch(&admin).export(&target, &options).await;
    progress.finish();
    let exported = exported?;
    let count = plural(exported.skills.len() as u64, "skill", "skills");
    output.done(&exported, &format!("exported {count} to `{}`", target.display()))
}

fn pull_options(category: Option<String>, overwrite: bool) -> PullOptions {
    let existing = if overwrite { Existing::Replace } else { Existing::Refuse };
    let mut options = PullOptions::default().existing(existing);
    options.category = category;
    options
}
