//! `skillfs admin push`, and the other commands that make a release.

use std::process::ExitCode;

use serde_json::json;
use skillfs::admin::{
    Action, IntoKind, LibraryAdmin, LibraryChange, LibraryDiff, NewLibrary, Plan, PushOptions,
};
use skillfs::source::{Layout, Source, SourceOptions};
use skillfs::{Error, ErrorKind, Result};

use super::admin_args::{How, KindFlags, Push, SourceFlags};
use super::args::Global;
use super::connect::{connect, library};
use super::output::Output;
use super::prompt::confirm;
use super::report::{Report, show, summary, tell_drift, tell_published};
use super::terminal::{plural, print, print_json, visible};
use super::{blocking, push_users};

pub(super) async fn push(global: &Global, args: Push, output: &Output) -> Result<ExitCode> {
    let (source, new) = read(&args, output).await?;
    let options = options(&args, &source);
    if let Some(file) = &args.users {
        if global.session.has_library() {
            let message = "`--users` is in the place of `--user` and `--library`";
            return Err(Error::new(ErrorKind::InvalidInput, message).with_hint("give one of them"));
        }
        return push_users::push_to_users(global, file.clone(), new, &args, options, output).await;
    }
    let to = Publication::open(global, &args.how, !args.how.dry_run, output).await?;
    to.publish(to.library.plan(new, &options).await?).await
}

pub(super) async fn diff(global: &Global, args: Push, output: &Output) -> Result<ExitCode> {
    if args.users.is_some() {
        return Err(Error::new(ErrorKind::InvalidInput, "`diff` compares with one library")
            .with_hint("for many users: `admin push --users FILE --dry-run`"));
    }
    let (source, new) = read(&args, output).await?;
    let options = options(&args, &source);
    let to = Publication::open(global, &args.how, false, output).await?;
    let LibraryDiff { plan, drift, .. } = to.library.diff(new, &options).await?;
    let report = Report { drift: &drift, ..Report::of(&plan, true) };
    output.emit(&report, || show(&plan, true))?;
    tell_drift(&drift, output);
    let differs = plan.changes() || plan.count(Action::Refused) > 0 || !drift.is_empty();
    Ok(if differs { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Publishes what other tools have changed.
pub(super) async fn index(global: &Global, how: How, publish: bool, output: &Output) -> Result<ExitCode> {
    let to = Publication::open(global, &how, false, output).await?;
    let options = options_of(&how, "index").into(into(KindFlags { publish, plain: false }));
    to.publish(to.library.plan(LibraryChange::Index, &options).await?).await
}

pub(super) async fn unpublish(global: &Global, output: &Output) -> Result<ExitCode> {
    let library = connect(global, false, output).await?.library(&library(global)?);
    let progress = output.transfer();
    let done = progress.of(&library).unpublish().await;
    progress.finish();
    done?;
    let note = format!("{} is plain now: its keys are what sessions see", library.id());
    output.done(&json!({ "kind": "plain" }), &note)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn rollback(global: &Global, release: u64, how: How, output: &Output) -> Result<ExitCode> {
    let to = Publication::open(global, &how, false, output).await?;
    let options = options_of(&how, format!("rollback to release {release}"));
    to.publish(to.library.plan(LibraryChange::Rollback { release }, &options).await?).await
}

pub(super) async fn pin(global: &Global, skill: &str, how: How, output: &Output) -> Result<ExitCode> {
    let wrong = || {
        let message = format!("`{}` does not say which release", visible(skill, false));
        Error::new(ErrorKind::InvalidInput, message).with_hint(
            "write it as SKILL@RELEASE, such as `escrituras/compraventa@41`; `admin releases` lists them",
        )
    };
    let (path, release) = skill.rsplit_once('@').ok_or_else(wrong)?;
    let release: u64 = release.parse().map_err(|_| wrong())?;
    let to = Publication::open(global, &how, false, output).await?;
    let options = options_of(&how, format!("pin {path} to release {release}"));
    let change = LibraryChange::Pin { skill: path.to_owned(), release };
    to.publish(to.library.plan(change, &options).await?).await
}

pub(super) async fn unpin(global: &Global, skill: &str, output: &Output) -> Result<ExitCode> {
    let how = How { dry_run: false, overwrite: false, by: None };
    let to = Publication::open(global, &how, false, output).await?;
    let options = options_of(&how, format!("unpin {skill}"));
    let change = LibraryChange::Unpin { skill: skill.to_owned() };
    to.publish(to.library.plan(change, &options).await?).await
}

pub(super) async fn rm(global: &Global, skills: Vec<String>, how: How, output: &Output) -> Result<ExitCode> {
    let to = Publication::open(global, &how, false, output).await?;
    let options = options_of(&how, "rm");
    to.publish(to.library.plan(LibraryChange::Remove { skills }, &options).await?).await
}

/// What all changes of a library share: connect, show the plan, ask, publish, tell.
pub(super) struct Publication<'w> {
    pub(super) library: LibraryAdmin,
    how: &'w How,
    yes: bool,
    output: &'w Output,
}

impl<'w> Publication<'w> {
    /// The library that the flags name. A local store is made by what `writes` new files.
    pub(super) async fn open(
        global: &Global,
        how: &'w How,
        writes: bool,
        output: &'w Output,
    ) -> Result<Self> {
        let library = library(global)?;
        let library = connect(global, writes, output).await?.library(&library);
        Ok(Self { library, how, yes: global.yes, output })
    }

    pub(super) async fn publish(&self, plan: Plan) -> Result<ExitCode> {
        let report = Report::of(&plan, self.how.dry_run);
        if !self.output.is_json() {
            print(&show(&plan, false))?;
        }
        if self.how.dry_run {
            return self.end(&report, "nothing was changed: this was a dry run");
        }
        let deleted = plan.count(Action::Delete);
        if deleted > 0 && !self.yes {
            let question = format!("Delete {} from {}?", plural(deleted, "skill", "skills"), plan.library);
            confirm(&question, self.output).await?;
        }
        if plan.adopted.is_some() && !self.yes {
            let library = &plan.library;
            let lost = format!("Uploads by other programs to {library} will no longer be visible.");
            confirm(&format!("{lost} Publish it?"), self.output).await?;
        }
        let progress = self.output.transfer();
        let published = progress.of(&self.library).publish(&plan).await;
        progress.finish();
        let published = published?;
        tell_published(&published, self.output, "");
        self.end(&Report { published: Some(&published), ..report }, &summary(&plan, &published))
    }

    /// A document for machines, a word for people. What was refused is no success.
    fn end(&self, report: &Report<'_>, note: &str) -> Result<ExitCode> {
        match self.output.is_json() {
            true => print_json(report)?,
            false => self.output.note(note),
        }
        Ok(if report.refused > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS })
    }
}

async fn read(args: &Push, output: &Output) -> Result<(String, NewLibrary)> {
    let options = source_options(&args.place, args.category.clone())?.strict(args.strict);
    let place = args.source.clone();
    let (source, skipped, new) = blocking(move || {
        let source = Source::open(&place, &options)?;
        Ok((source.origin.to_string(), source.skipped.clone(), NewLibrary::from(source)))
    })
    .await?;
    // What was refused stands in the plan.
    for skipped in skipped.iter().filter(|skipped| !skipped.refused) {
        output.note(&format!("{}: left out: {}", skipped.path, skipped.reason));
    }
    Ok((source, new))
}

pub(super) fn source_options(place: &SourceFlags, category: Option<String>) -> Result<SourceOptions> {
    let layout = place.layout.as_deref().map(str::parse::<Layout>).transpose()?;
    let mut options = SourceOptions::default();
    (options.layout, options.category) = (layout, category);
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
    let mut options = options_of(&args.how, source).delete(args.delete).into(into(args.kind));
    options.category.clone_from(&args.category);
    options
}

pub(super) fn into(kind: KindFlags) -> IntoKind {
    match kind {
        KindFlags { publish: true, .. } => IntoKind::Published,
        KindFlags { plain: true, .. } => IntoKind::Plain,
        KindFlags { .. } => IntoKind::Same,
    }
}

pub(super) fn options_of(how: &How, source: impl Into<String>) -> PushOptions {
    let by = how.by.clone().unwrap_or_else(whoami);
    PushOptions::default().overwrite(how.overwrite).by(by).source(source)
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
