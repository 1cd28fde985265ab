//! `skillfs admin push`, and what else changes a library.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use serde::Serialize;

use super::admin::library;
use super::args::{Global, How, Import, Place, Push};
use super::connect;
use super::output::{ACCENT, BAD, GOOD, Output, plural, print, print_raw, size, to_json, visible};
use crate::admin::{
    Action, Change, ManyOptions, NewLibrary, NewSkill, Plan, PlannedSkill, Published, PushOptions,
    PushProgress,
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

pub(super) async fn push(global: &Global, args: Push, output: &Output) -> Result<ExitCode> {
    let (source, new) = read(&args, output).await?;
    let options = options(&args.how, &source, args.delete, args.category.clone());
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
    let work =
        Work { fs: &fs, source: Some(&new), library: &library, how: &args.how, yes: global.yes, output };
    work.publish(&options, |fs| Box::pin(fs.plan(&library, &new, &options))).await
}

pub(super) async fn diff(global: &Global, args: Push, output: &Output) -> Result<ExitCode> {
    if args.users.is_some() {
        return Err(Error::new(ErrorKind::InvalidInput, "`diff` compares with one library")
            .with_hint("for many users: `admin push --users FILE --dry-run`"));
    }
    let (source, new) = read(&args, output).await?;
    let options = options(&args.how, &source, args.delete, args.category.clone());
    let library = library(global)?;
    let fs = connect(global, false, output).await?;
    let plan = fs.plan(&library, &new, &options).await?;
    show(&plan, output, true)?;
    Ok(if plan.changes() || plan.count(Action::Refused) > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

pub(super) async fn rollback(global: &Global, release: u64, how: How, output: &Output) -> Result<ExitCode> {
    let library = library(global)?;
    let fs = connect(global, false, output).await?;
    let options = options_of(&how, format!("rollback to release {release}"));
    let work = Work { fs: &fs, source: None, library: &library, how: &how, yes: global.yes, output };
    work.publish(&options, |fs| Box::pin(fs.plan_rollback(&library, release, &options))).await
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
    let work = Work { fs: &fs, source: None, library: &library, how: &how, yes: global.yes, output };
    let plan = fs.plan_skill_at(&library, path, release, &options).await?;
    // Pinned already: then it is there.
    if plan.count(Action::Pinned) == 0 && (plan.changes() || plan.count(Action::Refused) > 0) {
        let code = work
            .publish(&options, |fs| Box::pin(fs.plan_skill_at(&library, path, release, &options)))
            .await?;
        if code != ExitCode::SUCCESS {
            return Ok(code);
        }
    }
    if how.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    fs.pin(&library, path, Some(release)).await?;
    #[derive(Serialize)]
    struct Pinned<'a> {
        skill: &'a str,
        release: u64,
    }
    output.done(&Pinned { skill: path, release }, &format!("pinned `{path}` to release {release}"))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn unpin(global: &Global, skill: &str, output: &Output) -> Result<ExitCode> {
    let library = library(global)?;
    let fs = connect(global, false, output).await?;
    let path = skill.trim_matches('/');
    fs.pin(&library, path, None).await?;
    #[derive(Serialize)]
    struct Unpinned<'a> {
        skill: &'a str,
        release: Option<u64>,
    }
    output.done(&Unpinned { skill: path, release: None }, &format!("`{path}` is no longer pinned"))?;
    Ok(ExitCode::SUCCESS)
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
    let work = Work { fs: &fs, source: None, library: &library, how: &how, yes: global.yes, output };
    work.publish(&options, |fs| Box::pin(fs.plan(&library, &new, &options))).await
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
    let options = options_of(&args.how, source);
    let work =
        Work { fs: &fs, source: Some(&new), library: &library, how: &args.how, yes: global.yes, output };
    work.publish(&options, |fs| Box::pin(fs.plan(&library, &new, &options))).await
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

/// What all changes of a library share: plan, ask, publish, tell.
struct Work<'w> {
    fs: &'w SkillFs,
    /// What is published, where that is at hand.
    source: Option<&'w NewLibrary>,
    library: &'w Library,
    how: &'w How,
    yes: bool,
    output: &'w Output,
}

type Planning<'f> = std::pin::Pin<Box<dyn Future<Output = Result<Plan>> + Send + 'f>>;

impl Work<'_> {
    async fn publish<'f>(
        &'f self,
        options: &PushOptions,
        plan: impl Fn(&'f SkillFs) -> Planning<'f>,
    ) -> Result<ExitCode> {
        let mut planned = plan(self.fs).await?;
        if planned.under_way.is_some() && !self.how.dry_run {
            self.resume(&planned, options).await?;
            planned = plan(self.fs).await?;
        }
        let mut report = Report::of(&planned, self.how.dry_run);
        if !self.output.is_json() {
            show(&planned, self.output, false)?;
        }
        let code = if planned.count(Action::Refused) > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS };
        if self.how.dry_run {
            if self.output.is_json() {
                report.print()?;
            } else {
                self.output.note("nothing was changed: this was a dry run");
            }
            return Ok(code);
        }
        let deleted = planned.count(Action::Delete);
        if deleted > 0 && !self.yes {
            confirm(
                &format!("Delete {} from {}?", plural(deleted, "skill", "skills"), self.library),
                self.output,
            )
            .await?;
        }
        let progress = self.output.transfer();
        let published = self.fs.publish(&planned, &|at: PushProgress| progress.tell(at)).await;
        progress.finish();
        let published = published?;
        for edit in &published.changed_by_hand {
            self.output.note(&format!(
                "`{}` was changed by hand meanwhile, and was left so: its skill is shown as it lies there",
                edit.path
            ));
        }
        report.published = Some(&published);
        if self.output.is_json() {
            report.print()?;
        } else {
            self.output.note(&summary(&published, self.library));
        }
        Ok(code)
    }

    /// Somebody is publishing, or has died while publishing: what they committed is finished first.
    async fn resume(&self, planned: &Plan, options: &PushOptions) -> Result<()> {
        let Some(under_way) = &planned.under_way else { return Ok(()) };
        let ours = under_way.by == options.by;
        if under_way.free_in > 0 && (ours || self.how.wait) {
            self.output.note(&format!(
                "{} is publishing, or was interrupted; waiting up to {} s to go on",
                if under_way.by.is_empty() { "somebody" } else { &under_way.by },
                under_way.free_in
            ));
        }
        let progress = self.output.transfer();
        let resumed = self
            .fs
            .resume(self.library, &options.by, options.lease, ours || self.how.wait, self.source, &|at| {
                progress.tell(at);
            })
            .await;
        progress.finish();
        if resumed?.is_some() {
            self.output.note("finished a push that was interrupted");
        }
        Ok(())
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
    let fs = connect(global, !args.how.dry_run, output).await?;
    let progress = output.progress("users");
    let many = ManyOptions { dry_run: args.how.dry_run, wait: args.how.wait };
    let results =
        fs.push_to_users(&users, new, &options, many, &|done, total| progress.set(done, total)).await;
    progress.finish();
    let mut failed = 0;
    let (mut changed, mut same, mut refused) = (0, 0, 0);
    for (user, result) in &results {
        match result {
            Ok((plan, published)) => {
                for edit in published.iter().flat_map(|published| &published.changed_by_hand) {
                    output.note(&format!(
                        "{user}: `{}` was changed by hand meanwhile, and was left so",
                        edit.path
                    ));
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

fn options(how: &How, source: &str, delete: bool, category: Option<String>) -> PushOptions {
    PushOptions { delete, category, ..options_of(how, source.to_owned()) }
}

fn options_of(how: &How, source: String) -> PushOptions {
    PushOptions {
        overwrite: how.overwrite,
        by: how.by.clone().unwrap_or_else(whoami),
        source,
        lease: how.lease.max(1),
        ..PushOptions::default()
    }
}

/// Who runs this, and where.
pub(super) fn whoami() -> String {
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
fn show(plan: &Plan, output: &Output, files: bool) -> Result<()> {
    if output.is_json() {
        return Report::of(plan, true).print();
    }
    let mut text = String::new();
    let listed: Vec<&PlannedSkill> = plan
        .skills
        .iter()
        .chain(&plan.categories)
        .filter(|skill| skill.action != Action::Unchanged)
        .collect();
    let width =
        listed.iter().take(MOST_LISTED).map(|skill| skill.path.chars().count()).max().unwrap_or(0).min(48);
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
            None => changes(skill),
        };
        text += &format!("{style}{word:<8}{style:#} {path:<width$}  {what}\n");
        if files && skill.why.is_none() {
            for file in &skill.files {
                let mark = match file.change {
                    Change::Add => "+",
                    Change::Change => "~",
                    Change::Remove => "-",
                };
                text += &format!("         {mark} {} ({})\n", visible(&file.name, false), size(file.size));
            }
        }
    }
    if listed.len() > MOST_LISTED {
        text += &format!("… and {} more\n", listed.len() - MOST_LISTED);
    }
    text += &format!("{}: {}\n", plan.library, counts(plan));
    print(&text)
}

/// `+1 ~2 -1, 4.1 KiB`.
fn changes(skill: &PlannedSkill) -> String {
    let count = |change: Change| skill.files.iter().filter(|file| file.change == change).count();
    let bytes: u64 =
        skill.files.iter().filter(|file| file.change != Change::Remove).map(|file| file.size).sum();
    let mut parts = Vec::new();
    for (mark, change) in [("+", Change::Add), ("~", Change::Change), ("-", Change::Remove)] {
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
    if !plan.categories.is_empty() {
        let described = plural(plan.categories.len() as u64, "description", "descriptions");
        parts.push(format!("{described} of categories"));
    }
    if parts.is_empty() { "nothing to publish".to_owned() } else { parts.join(", ") }
}

fn summary(published: &Published, library: &Library) -> String {
    let Some(release) = published.release else {
        return match (published.refused, published.pinned) {
            (0, 0) => format!("{library} is up to date"),
            (refused, pinned) => {
                format!("nothing was published to {library}: {refused} refused, {pinned} pinned")
            }
        };
    };
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
    format!(
        "published release {release} of {library}: {}; {} uploaded, {}",
        parts.join(", "),
        plural(published.uploaded, "file", "files"),
        size(published.uploaded_bytes)
    )
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
    skills: Vec<&'r PlannedSkill>,
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
            skills: plan.skills.iter().chain(&plan.categories).collect(),
            published: None,
        }
    }

    fn print(&self) -> Result<()> {
        print_raw((to_json(self)? + "\n").as_bytes())
    }
}
