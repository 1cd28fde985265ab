//! `skillfs admin push`, and what else changes a library.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use serde::Serialize;

use super::admin::library;
use super::args::{Global, How, Import, Kind, Place, Push};
use super::connect;
use super::output::{ACCENT, BAD, GOOD, Output, plural, print, print_raw, size, to_json, visible};
use crate::admin::{
    Action, Drift, FileAction, FileChange, IntoKind, NewLibrary, NewSkill, Plan, PlannedSkill, Published,
    PushOptions, PushProgress,
};
use crate::backend::SkillFs;
use crate::error::{Error, ErrorKind, Result};
use crate::id::UserId;
use crate::mount::Library;
use crate::source::{
    Existing, ImportOptions, Imported, Layout, PROVENANCE_FILE, Provenance, SkillFiles, Source, SourceFile,
    SourceOptions, TrustTier, import, write_folder,
};

/// Skills that a plan lists; the rest is counted.
const MOST_LISTED: usize = 200;
/// Keys that others have changed, listed one by one.
const MOST_DRIFT: usize = 20;

pub(super) async fn push(global: &Global, args: Push, output: &Output) -> Result<ExitCode> {
    let (source, new) = read(&args, output).await?;
    let options = options(&args, &source);
    if let Some(file) = &args.users {
        if global.user.is_some() || !global.library.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "`--users` is in the place of `--user` and `--library`",
            )
            .with_hint("give one of them"));
        }
        return push_to_users(global, file, &new, &args, options, output).await;
    }
    let library = library(global)?;
    let fs = connect(global, !args.how.dry_run, output).await?;
    let plan = fs.plan(&library, &new, &options).await?;
    Work { fs: &fs, how: &args.how, yes: global.yes, output }.publish(plan).await
}

pub(super) async fn diff(global: &Global, args: Push, output: &Output) -> Result<ExitCode> {
    if args.users.is_some() {
        return Err(Error::new(ErrorKind::InvalidInput, "`diff` compares with one library")
            .with_hint("for many users: `admin push --users FILE --dry-run`"));
    }
    let (source, new) = read(&args, output).await?;
    let options = options(&args, &source);
    let library = library(global)?;
    let fs = connect(global, false, output).await?;
    let plan = fs.plan(&library, &new, &options).await?;
    let drift = fs.drift(&library).await?;
    let mut report = Report::of(&plan, true);
    report.drift = &drift;
    match output.is_json() {
        true => report.print()?,
        false => show(&plan, true)?,
    }
    tell_drift(&drift, output);
    let differs = plan.changes() || plan.count(Action::Refused) > 0 || !drift.is_empty();
    Ok(if differs { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Publishes what other tools have changed.
pub(super) async fn index(global: &Global, how: How, publish: bool, output: &Output) -> Result<ExitCode> {
    let library = library(global)?;
    let fs = connect(global, false, output).await?;
    let kind = Kind { publish, plain: false };
    let options = PushOptions { into: into(kind), ..options_of(&how, "index".to_owned()) };
    let plan = fs.plan_index(&library, &options).await?;
    Work { fs: &fs, how: &how, yes: global.yes, output }.publish(plan).await
}

pub(super) async fn unpublish(global: &Global, output: &Output) -> Result<ExitCode> {
    let library = library(global)?;
    let fs = connect(global, false, output).await?;
    let progress = output.transfer();
    let done = fs.unpublish(&library, &|at: PushProgress| progress.tell(at)).await;
    progress.finish();
    done?;
    #[derive(Serialize)]
    struct Unpublished {
        kind: &'static str,
    }
    let note = format!("{library} is plain now: its keys are what sessions see");
    output.done(&Unpublished { kind: "plain" }, &note)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn rollback(global: &Global, release: u64, how: How, output: &Output) -> Result<ExitCode> {
    let library = library(global)?;
    let fs = connect(global, false, output).await?;
    let options = options_of(&how, format!("rollback to release {release}"));
    let plan = fs.plan_rollback(&library, release, &options).await?;
    Work { fs: &fs, how: &how, yes: global.yes, output }.publish(plan).await
}

pub(super) async fn pin(global: &Global, skill: &str, how: How, output: &Output) -> Result<ExitCode> {
    let library = library(global)?;
    let wrong = || {
        Error::new(ErrorKind::InvalidInput, format!("`{}` does not say which release", visible(skill, false)))
            .with_hint(
                "write it as SKILL@RELEASE, such as `escrituras/compraventa@41`; `admin releases` lists them",
            )
    };
    let (path, release) = skill.rsplit_once('@').ok_or_else(wrong)?;
    let release: u64 = release.parse().map_err(|_| wrong())?;
    let path = path.trim_matches('/');
    let fs = connect(global, false, output).await?;
    let options = options_of(&how, format!("pin {path} to release {release}"));
    let plan = fs.plan_pin(&library, path, release, &options).await?;
    Work { fs: &fs, how: &how, yes: global.yes, output }.publish(plan).await
}

pub(super) async fn unpin(global: &Global, skill: &str, output: &Output) -> Result<ExitCode> {
    let library = library(global)?;
    let fs = connect(global, false, output).await?;
    let path = skill.trim_matches('/');
    let how = How { dry_run: false, overwrite: false, by: None };
    let options = options_of(&how, format!("unpin {path}"));
    let plan = fs.plan_unpin(&library, path, &options).await?;
    Work { fs: &fs, how: &how, yes: global.yes, output }.publish(plan).await
}

pub(super) async fn rm(global: &Global, skills: Vec<String>, how: How, output: &Output) -> Result<ExitCode> {
    let library = library(global)?;
    let fs = connect(global, false, output).await?;
    let skills: Vec<String> = skills.iter().map(|skill| skill.trim_matches('/').to_owned()).collect();
    let there = fs.library_skills(&library).await?;
    if let Some(missing) = skills.iter().find(|skill| there.iter().all(|there| there.path != **skill)) {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("{library} has no skill `{}`", visible(missing, false)),
        )
        .with_hint("name it by its path, such as `category/skill`; `admin list` shows them"));
    }
    let options = PushOptions { delete: true, ..options_of(&how, "rm".to_owned()) };
    let new = NewLibrary::nothing_but(skills);
    let plan = fs.plan(&library, &new, &options).await?;
    Work { fs: &fs, how: &how, yes: global.yes, output }.publish(plan).await
}

pub(super) async fn take(global: &Global, args: Import, output: &Output) -> Result<ExitCode> {
    let trust: TrustTier = args.trust.parse()?;
    let interactive = !output.is_json() && std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    let library = match &args.into {
        Some(_) => None,
        None => Some(library(global)?),
    };
    let place = args.source.clone();
    let source_options = source_options(&args.place, args.category.clone())?;
    let (translate, scripts, dangerous) = (args.translate_tools, args.with_scripts, args.accept_dangerous);
    let mut imported = blocking(move || {
        let source = Source::open(&place, &source_options)?;
        let confirm = |skill: &str, capabilities: &[String]| {
            interactive && ask(&format!("`{skill}` asks for {}. Take it?", capabilities.join(", ")))
        };
        let mut options = ImportOptions::new(SystemTime::now());
        options.translate_tools = translate;
        options.with_scripts = scripts;
        options.trust = trust;
        options.accept_dangerous = dangerous;
        options.confirm = Some(&confirm);
        import(source, &options)
    })
    .await?;
    tell_imported(&imported, output);
    if let Some(folder) = &args.into {
        return write_imported(imported, folder, args.how.overwrite, output).await;
    }
    let Some(library) = library else { return Ok(ExitCode::from(2)) };
    let fs = connect(global, !args.how.dry_run, output).await?;
    keep_provenance(&fs, &library, &mut imported).await?;
    let taken = imported.skills.iter().map(|skill| NewSkill::from(&skill.skill));
    let refused = imported.refused.iter().map(|skill| NewSkill::refused(&skill.path, &skill.reason));
    let mut new = NewLibrary { skills: taken.chain(refused).collect(), ..NewLibrary::default() };
    for category in &imported.categories {
        new.describe(&category.path, &category.file);
    }
    let source = match &imported.origin.commit {
        Some(commit) => format!("import {} at {commit}", imported.origin.location),
        None => format!("import {}", imported.origin.location),
    };
    let options = PushOptions { into: into(args.kind), ..options_of(&args.how, source) };
    let plan = fs.plan(&library, &new, &options).await?;
    Work { fs: &fs, how: &args.how, yes: global.yes, output }.publish(plan).await
}

/// A skill that is the same but for the time of its import keeps its `.source`: so it is unchanged.
async fn keep_provenance(fs: &SkillFs, library: &Library, imported: &mut Imported) -> Result<()> {
    let backend = fs.own_session(&library.session()).fresh().pinned().await?;
    for skill in &mut imported.skills {
        let path = format!("/skills/{}/{PROVENANCE_FILE}", skill.skill.path);
        if !backend.exists(path.as_str()).await? {
            continue;
        }
        let there = backend.read_bytes(path.as_str(), ..).await?.bytes;
        let same = Provenance::parse(&there).is_ok_and(|known| {
            let installed_at = skill.provenance.installed_at.clone();
            Provenance { installed_at, ..known } == skill.provenance
        });
        if same && let Some(file) = skill.skill.files.iter_mut().find(|file| file.name == PROVENANCE_FILE) {
            *file = SourceFile::from_bytes(PROVENANCE_FILE, there);
        }
    }
    Ok(())
}

async fn write_imported(
    imported: Imported,
    folder: &Path,
    overwrite: bool,
    output: &Output,
) -> Result<ExitCode> {
    let target = folder.to_owned();
    let refused = imported.refused.len();
    let written = blocking(move || {
        let mut skills: Vec<_> = imported.skills.iter().map(|skill| skill.skill.clone()).collect();
        for category in &imported.categories {
            skills.push(SkillFiles::new(&category.path, vec![category.file.clone()])?);
        }
        let existing = if overwrite { Existing::Replace } else { Existing::Refuse };
        write_folder(&skills, &target, existing)
    })
    .await?;
    let note = format!(
        "wrote {} to `{}`, {} there already",
        plural(written.written, "file", "files"),
        folder.display(),
        written.unchanged
    );
    output.done(&written, &note)?;
    Ok(if refused == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn tell_imported(imported: &Imported, output: &Output) {
    for skill in &imported.skills {
        let path = &skill.skill.path;
        for diagnostic in &skill.diagnostics {
            output.note(&format!("{path}: {}", diagnostic.message));
        }
        if !skill.left_out.is_empty() {
            let scripts = plural(skill.left_out.len() as u64, "script", "scripts");
            output.note(&format!("{path}: {scripts} left out; `--with-scripts` takes them"));
        }
        if !skill.provenance.translated_tools.is_empty() {
            output.note(&format!("{path}: tools renamed: {}", skill.provenance.translated_tools.join(", ")));
        }
        if !skill.provenance.missing_tools.is_empty() {
            output.note(&format!(
                "{path}: tools we do not know: {}",
                skill.provenance.missing_tools.join(", ")
            ));
        }
    }
    for skill in &imported.refused {
        output.note(&format!("{}: refused: {}", skill.path, skill.reason));
    }
}

/// What all changes of a library share: show the plan, ask, publish, tell.
struct Work<'w> {
    fs: &'w SkillFs,
    how: &'w How,
    yes: bool,
    output: &'w Output,
}

impl Work<'_> {
    async fn publish(&self, plan: Plan) -> Result<ExitCode> {
        let mut report = Report::of(&plan, self.how.dry_run);
        if !self.output.is_json() {
            show(&plan, false)?;
        }
        let code = if plan.count(Action::Refused) > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS };
        if self.how.dry_run {
            match self.output.is_json() {
                true => report.print()?,
                false => self.output.note("nothing was changed: this was a dry run"),
            }
            return Ok(code);
        }
        let deleted = plan.count(Action::Delete);
        if deleted > 0 && !self.yes {
            let question = format!("Delete {} from {}?", plural(deleted, "skill", "skills"), plan.library);
            confirm(&question, self.output).await?;
        }
        if plan.adopted.is_some() && !self.yes {
            let question = format!(
                "Uploads by other programs to {} will no longer be visible. Publish it?",
                plan.library
            );
            confirm(&question, self.output).await?;
        }
        let progress = self.output.transfer();
        let published = self.fs.publish(&plan, &|at: PushProgress| progress.tell(at)).await;
        progress.finish();
        let published = published?;
        tell_published(&published, self.output, "");
        report.published = Some(&published);
        match self.output.is_json() {
            true => report.print()?,
            false => self.output.note(&summary(&plan, &published)),
        }
        Ok(code)
    }
}

/// What a release has left undone: none of it matters to sessions.
fn tell_published(published: &Published, output: &Output, whose: &str) {
    tell_drift(&published.drift, output);
    if let Some(why) = &published.mirror_error {
        output.note(&format!(
            "{whose}the release is published; its plain keys are incomplete until the next push or `admin verify --repair`: {why}"
        ));
    }
    if let Some(release) = published.uploaded_meanwhile {
        output.note(&format!("{whose}what was uploaded meanwhile is release {release}"));
    }
}

fn tell_drift(drift: &[Drift], output: &Output) {
    for Drift { path, change, .. } in drift.iter().take(MOST_DRIFT) {
        let what = match change {
            FileAction::Add => "added",
            FileAction::Change => "changed",
            FileAction::Remove => "removed",
        };
        output.note(&format!("`{path}`: {what} by others, and left alone; no session sees it"));
    }
    if drift.len() > MOST_DRIFT {
        output.note(&format!("and {} more like these", drift.len() - MOST_DRIFT));
    }
    if !drift.is_empty() {
        output.note("`admin index` publishes what others have changed; `admin verify --repair --overwrite` reverts it");
    }
}

async fn push_to_users(
    global: &Global,
    file: &Path,
    new: &NewLibrary,
    args: &Push,
    options: PushOptions,
    output: &Output,
) -> Result<ExitCode> {
    let listed = file.to_owned();
    let users = blocking(move || read_users(&listed)).await?;
    if args.delete && !global.yes && !args.how.dry_run {
        let question = format!(
            "Delete what is not in the source from {}?",
            plural(users.len() as u64, "library", "libraries")
        );
        confirm(&question, output).await?;
    }
    if args.kind.publish && !global.yes && !args.how.dry_run {
        let question = format!(
            "Uploads by other programs to {} will no longer be visible. Publish?",
            plural(users.len() as u64, "library", "libraries")
        );
        confirm(&question, output).await?;
    }
    let fs = connect(global, !args.how.dry_run, output).await?;
    let progress = output.progress("users");
    let dry_run = args.how.dry_run;
    let results =
        fs.push_to_users(&users, new, &options, dry_run, &|done, total| progress.set(done, total)).await;
    progress.finish();
    let mut failed = 0;
    let (mut changed, mut same, mut refused) = (0, 0, 0);
    for (user, result) in &results {
        match result {
            Ok((plan, published)) => {
                if let Some(published) = published {
                    tell_published(published, output, &format!("{user}: "));
                }
                refused += plan.count(Action::Refused);
                if plan.changes() {
                    changed += 1;
                } else {
                    same += 1;
                }
                if output.is_json() {
                    let mut report = Report::of(plan, args.how.dry_run);
                    report.published = published.as_ref();
                    report.print()?;
                } else {
                    print(&format!("{:<32} {}\n", visible(user.as_str(), false), counts(plan)))?;
                }
            }
            Err(error) => {
                failed += 1;
                if output.is_json() {
                    #[derive(Serialize)]
                    struct Failed<'a> {
                        user: &'a str,
                        error: String,
                        kind: ErrorKind,
                    }
                    let failed =
                        Failed { user: user.as_str(), error: error.message().to_owned(), kind: error.kind() };
                    print_raw((to_json(&failed)? + "\n").as_bytes())?;
                } else {
                    print(&format!(
                        "{:<32} {BAD}failed{BAD:#}: {}\n",
                        visible(user.as_str(), false),
                        visible(error.message(), false)
                    ))?;
                }
            }
        }
    }
    output.note(&format!(
        "{} {}, {same} the same already, {failed} failed{}",
        plural(changed, "user", "users"),
        if args.how.dry_run { "would change" } else { "published to" },
        if failed > 0 { "; run it again to try those once more" } else { "" }
    ));
    Ok(if failed == 0 && refused == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn read_users(file: &Path) -> Result<Vec<UserId>> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|e| {
        Error::new(ErrorKind::InvalidInput, format!("cannot read `{shown}`: {e}"))
            .with_hint("give a text file with one user id a line")
    })?;
    let mut users = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let id = line.trim();
        if id.is_empty() || id.starts_with('#') && UserId::parse(id).is_err() {
            continue;
        }
        let user = UserId::parse(id).map_err(|e| {
            Error::new(ErrorKind::InvalidId, format!("{shown}:{}: {}", at + 1, e.message()))
                .with_hint("nothing was published; correct the line")
        })?;
        if !users.contains(&user) {
            users.push(user);
        }
    }
    if users.is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, format!("`{shown}` names no user"))
            .with_hint("give a text file with one user id a line"));
    }
    Ok(users)
}

async fn read(args: &Push, output: &Output) -> Result<(String, NewLibrary)> {
    let options = source_options(&args.place, args.category.clone())?;
    let (place, strict) = (args.source.clone(), args.strict);
    let (source, skipped, new) = blocking(move || {
        let source = Source::open(&place, &options)?;
        let new = NewLibrary::of(&source, strict);
        let commit = source.origin.commit.as_ref().map(|commit| format!(" at {commit}"));
        let name = format!("{}{}", source.origin.location, commit.unwrap_or_default());
        Ok((name, source.skipped.clone(), new.keeping(source)))
    })
    .await?;
    // What was refused stands in the plan.
    for skipped in skipped.iter().filter(|skipped| !skipped.refused) {
        output.note(&format!("{}: left out: {}", skipped.path, skipped.reason));
    }
    Ok((source, new))
}

fn source_options(place: &Place, category: Option<String>) -> Result<SourceOptions> {
    let layout = place.layout.as_deref().map(str::parse::<Layout>).transpose()?;
    let mut options = SourceOptions { layout, category, ..SourceOptions::default() };
    if let Some(entries) = place.max_entries {
        options.limits.max_entries = entries;
    }
    if let Some(mib) = place.max_unpacked {
        let bytes = mib.saturating_mul(1024 * 1024);
        options.limits.max_unpacked_bytes = bytes;
        options.limits.max_file_bytes = options.limits.max_file_bytes.max(bytes);
    }
    if let Some(ratio) = place.max_ratio {
        options.limits.max_ratio = ratio;
    }
    Ok(options)
}

fn options(args: &Push, source: &str) -> PushOptions {
    let (delete, category, into) = (args.delete, args.category.clone(), into(args.kind));
    PushOptions { delete, category, into, ..options_of(&args.how, source.to_owned()) }
}

fn into(kind: Kind) -> IntoKind {
    match kind {
        Kind { publish: true, .. } => IntoKind::Published,
        Kind { plain: true, .. } => IntoKind::Plain,
        Kind { .. } => IntoKind::Same,
    }
}

fn options_of(how: &How, source: String) -> PushOptions {
    let by = how.by.clone().unwrap_or_else(whoami);
    PushOptions { overwrite: how.overwrite, by, source, ..PushOptions::default() }
}

/// Who runs this, and where.
fn whoami() -> String {
    let given = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let user = given("USER").or_else(|| given("LOGNAME")).or_else(|| given("USERNAME"));
    let named = || std::fs::read_to_string("/etc/hostname").ok().map(|name| name.trim().to_owned());
    let host = given("HOSTNAME").or_else(named).filter(|name| !name.is_empty());
    match (user, host) {
        (Some(user), Some(host)) => format!("{user}@{host}"),
        (Some(user), None) => user,
        (None, Some(host)) => format!("somebody@{host}"),
        (None, None) => "somebody".to_owned(),
    }
}

/// Asks, where somebody can answer.
async fn confirm(question: &str, output: &Output) -> Result<()> {
    if output.is_json() || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(Error::new(ErrorKind::InvalidInput, format!("{question} Nobody is there to ask."))
            .with_hint("say `--yes` to agree, or `--dry-run` to see what would happen"));
    }
    // On a thread that may wait, so that Ctrl-C is heard.
    let asked = question.to_owned();
    if blocking(move || Ok(ask(&asked))).await? {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, "not agreed to: nothing was changed")
        .with_hint("`--dry-run` shows what would change"))
}

fn ask(question: &str) -> bool {
    let mut stderr = anstream::stderr();
    let _ = write!(stderr, "{ACCENT}?{ACCENT:#} {} [y/N] ", visible(question, false));
    let _ = stderr.flush();
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).is_ok()
        && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| Error::new(ErrorKind::Internal, "the work on local files broke off").with_source(e))?
}

/// A plan, for people.
fn show(plan: &Plan, files: bool) -> Result<()> {
    let mut text = String::new();
    let listed: Vec<&PlannedSkill> =
        plan.skills.iter().filter(|skill| skill.action != Action::Unchanged).collect();
    let loose = &plan.files[..plan.files.len().min(MOST_LISTED)];
    let paths = listed.iter().take(MOST_LISTED).map(|skill| &skill.path);
    let paths = paths.chain(loose.iter().map(|file| &file.name));
    let width = paths.map(|path| path.chars().count()).max().unwrap_or(0).min(48);
    for skill in listed.iter().take(MOST_LISTED) {
        let (word, style) = match skill.action {
            Action::Create => ("create", GOOD),
            Action::Update => ("update", ACCENT),
            Action::Delete => ("delete", BAD),
            Action::Refused => ("refused", BAD),
            Action::Pinned => ("pinned", ACCENT),
            Action::Unchanged => ("unchanged", ACCENT),
        };
        let path = visible(&skill.path, false);
        let what = match &skill.why {
            Some(why) => visible(why, false),
            None => changes(&skill.files),
        };
        text += &format!("{style}{word:<8}{style:#} {path:<width$}  {what}\n");
        if files && skill.why.is_none() {
            text += &skill.files.iter().map(show_file).collect::<String>();
        }
    }
    for file in loose {
        let (word, style) = match file.change {
            FileAction::Add => ("create", GOOD),
            FileAction::Change => ("update", ACCENT),
            FileAction::Remove => ("delete", BAD),
        };
        let (path, what) = (visible(&file.name, false), changes(std::slice::from_ref(file)));
        text += &format!("{style}{word:<8}{style:#} {path:<width$}  {what}\n");
    }
    let more = listed.len().saturating_sub(MOST_LISTED) + (plan.files.len() - loose.len());
    if more > 0 {
        text += &format!("… and {more} more\n");
    }
    if let Some(adopted) = &plan.adopted {
        text += &format!(
            "{ACCENT}adopt{ACCENT:#}    {} and {} that are there already, {} to read\n",
            plural(adopted.skills, "skill", "skills"),
            plural(adopted.files, "file", "files"),
            size(adopted.bytes)
        );
        if adopted.left_out > 0 {
            let keys = plural(adopted.left_out, "folder marker or key", "folder markers or keys");
            text += &format!("         {keys} that no path can name: not adopted\n");
        }
        text += "         from then on, uploads by other programs are not visible until `admin index`\n";
    }
    text += &format!("{}: {}\n", plan.library, counts(plan));
    print(&text)
}

fn show_file(file: &FileChange) -> String {
    let mark = match file.change {
        FileAction::Add => "+",
        FileAction::Change => "~",
        FileAction::Remove => "-",
    };
    format!("         {mark} {} ({})\n", visible(&file.name, false), size(file.size))
}

/// `+1 ~2 -1, 4.1 KiB`.
fn changes(files: &[FileChange]) -> String {
    let count = |change: FileAction| files.iter().filter(|file| file.change == change).count();
    let bytes: u64 =
        files.iter().filter(|file| file.change != FileAction::Remove).map(|file| file.size).sum();
    let mut parts = Vec::new();
    for (mark, change) in [("+", FileAction::Add), ("~", FileAction::Change), ("-", FileAction::Remove)] {
        if count(change) > 0 {
            parts.push(format!("{mark}{}", count(change)));
        }
    }
    let files = parts.join(" ");
    if bytes > 0 { format!("{files}  {}", size(bytes)) } else { files }
}

fn counts(plan: &Plan) -> String {
    let mut parts = Vec::new();
    for (action, word) in [
        (Action::Create, "to create"),
        (Action::Update, "to update"),
        (Action::Delete, "to delete"),
        (Action::Unchanged, "unchanged"),
        (Action::Pinned, "pinned"),
        (Action::Refused, "refused"),
    ] {
        if plan.count(action) > 0 {
            parts.push(format!("{} {word}", plan.count(action)));
        }
    }
    if !plan.files.is_empty() {
        parts.push(plural(plan.files.len() as u64, "other file", "other files"));
    }
    parts.extend(pins(plan));
    match (parts.is_empty(), plan.adopted) {
        (false, _) => parts.join(", "),
        (true, Some(_)) => "to be published as it is".to_owned(),
        (true, None) => "nothing to publish".to_owned(),
    }
}

fn pins(plan: &Plan) -> impl Iterator<Item = String> {
    plan.pins.iter().map(|(skill, release)| match release {
        Some(release) => format!("`{}` pinned to release {release}", visible(skill, false)),
        None => format!("`{}` no longer pinned", visible(skill, false)),
    })
}

fn summary(plan: &Plan, published: &Published) -> String {
    let library = &plan.library;
    if published.release.is_none() && (plan.makes_release || !plan.changes()) {
        return match (published.refused, published.pinned) {
            (0, 0) => format!("{library} is up to date"),
            (refused, pinned) => {
                format!("nothing was published to {library}: {refused} refused, {pinned} pinned")
            }
        };
    }
    let mut parts = Vec::new();
    for (count, word) in [
        (published.created, "created"),
        (published.updated, "updated"),
        (published.deleted, "deleted"),
        (published.unchanged, "unchanged"),
        (published.pinned, "pinned"),
        (published.refused, "refused"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {word}"));
        }
    }
    if !plan.files.is_empty() {
        parts.push(plural(plan.files.len() as u64, "other file", "other files"));
    }
    parts.extend(pins(plan));
    let done = match published.release {
        Some(release) => format!("published release {release} of {library}"),
        None => format!("wrote to {library}, which is plain"),
    };
    let what = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
    let uploaded = plural(published.uploaded, "file", "files");
    format!("{done}{what}; {uploaded} uploaded, {}", size(published.uploaded_bytes))
}

/// A plan and what came of it, for machines.
#[derive(Serialize)]
struct Report<'r> {
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    library: Option<&'r str>,
    dry_run: bool,
    create: u64,
    update: u64,
    delete: u64,
    unchanged: u64,
    pinned: u64,
    refused: u64,
    #[serde(flatten)]
    plan: &'r Plan,
    #[serde(skip_serializing_if = "<[Drift]>::is_empty")]
    drift: &'r [Drift],
    #[serde(skip_serializing_if = "Option::is_none")]
    published: Option<&'r Published>,
}

impl<'r> Report<'r> {
    fn of(plan: &'r Plan, dry_run: bool) -> Self {
        let (user, library) = match &plan.library {
            Library::User(user) => (Some(user.as_str()), None),
            Library::Shared(library) => (None, Some(library.as_str())),
        };
        let count = |action| plan.count(action);
        Self {
            user,
            library,
            dry_run,
            create: count(Action::Create),
            update: count(Action::Update),
            delete: count(Action::Delete),
            unchanged: count(Action::Unchanged),
            pinned: count(Action::Pinned),
            refused: count(Action::Refused),
            plan,
            drift: &[],
            published: None,
        }
    }

    fn print(&self) -> Result<()> {
        print_raw((to_json(self)? + "\n").as_bytes())
    }
}
