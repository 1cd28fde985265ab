//! `skillfs admin push`, and the other commands that create a release.

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
use super::report::{Report, note_drift, note_published, show, summary};
use super::terminal::{plural, visible};
use super::{blocking, push_users};

pub(super) async fn push(global: &Global, args: Push, output: &Output) -> Result<ExitCode> {
    let (source, new) = read(&args, output).await?;
    let options = options(&args, &source);
    if let Some(file) = &args.users {
        if global.session.has_library() {
            let message = "`--users` cannot be combined with `--user` or `--library`";
            return Err(Error::new(ErrorKind::InvalidInput, message).with_hint("use one of them"));
        }
        return push_users::push_to_users(global, file.clone(), new, &args, options, output).await;
    }
    let to = Publication::open(global, &args.how, !args.how.dry_run, output).await?;
    to.publish(to.library.plan(new, &options).await?).await
}

pub(super) async fn diff(global: &Global, args: Push, output: &Output) -> Result<ExitCode> {
    if args.users.is_some() {
        return Err(Error::new(ErrorKind::InvalidInput, "`diff` works on one library")
            .with_hint("for many users, run `admin push --users FILE --dry-run`"));
    }
    let (source, new) = read(&args, output).await?;
    let options = options(&args, &source);
    let to = Publication::open(global, &args.how, false, output).await?;
    let LibraryDiff { plan, drift, .. } = to.library.diff(new, &options).await?;
    let report = Report { drift: &drift, ..Report::of(&plan, true) };
    output.emit(&report, || show(&plan, true))?;
    note_drift(&drift, output);
    let differs = plan.changes() || plan.count(Action::Refused) > 0 || !drift.is_empty();
    Ok(if differs { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Publishes changes that other tools made to the keys of a library.
pub(super) async fn index(global: &Global, how: How, publish: bool, output: &Output) -> Result<ExitCode> {
    let to = Publication::open(global, &how, false, output).await?;
    let options = options_of(&how, "index").into(into(KindFlags { publish, plain: false }));
    to.publish(to.library.plan(LibraryChange::Index, &options).await?).await
}

pub(super) async fn unpublish(global: &Global, output: &Output) -> Result<ExitCode> {
    let library = connect(global, false, output).await?.library(&library(global)?);
    let progress = output.transfer();
    let done = progress.watch(&library).unpublish().await;
    progress.finish();
    done?;
    let note = format!("{} is plain now: sessions read its keys directly", library.id());
    output.done(&json!({ "kind": "plain" }), &note)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn rollback(global: &Global, release: u64, how: How, output: &Output) -> Result<ExitCode> {
    let to = Publication::open(global, &how, false, output).await?;
    let options = options_of(&how, format!("rollback to release {release}"));
    to.publish(to.library.plan(LibraryChange::Rollback { release }, &options).await?).await
}

pub(super) async fn pin(global: &Global, skill: &str, how: How, output: &Output) -> Result<ExitCode> {
    let invalid = || {
        let message = format!("`{}` does not name a release", visible(skill, false));
        Error::new(ErrorKind::InvalidInput, message).with_hint(
            "write SKILL@RELEASE, such as `contracts/sale@41`; `admin releases` lists the releases",
        )
    };
    let (path, release) = skill.rsplit_once('@').ok_or_else(invalid)?;
    let release: u64 = release.parse().map_err(|_| invalid())?;
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

/// The steps that all changes to a library share: connect, show the plan, confirm, publish, report.
pub(super) struct Publication<'w> {
    pub(super) library: LibraryAdmin,
    how: &'w How,
    yes: bool,
    output: &'w Output,
}

impl<'w> Publication<'w> {
    /// Connects to the target library. `writes` is that of [`connect`].
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
        self.output.text_only(|| show(&plan, false))?;
        if self.how.dry_run {
            return self.finish(&report, "dry run: nothing was changed");
        }
        let deleted = plan.count(Action::Delete);
        if deleted > 0 && !self.yes {
            let question = format!("Delete {} from {}?", plural(deleted, "skill", "skills"), plan.library);
            confirm(&question, self.output).await?;
        }
        if plan.adopted.is_some() && !self.yes {
            let library = &plan.library;
            let hidden =
                format!("Later uploads by other tools to {library} will be hidden until `admin index`.");
            confirm(&format!("{hidden} Publish it?"), self.output).await?;
        }
        let progress = self.output.transfer();
        let published = progress.watch(&self.library).publish(&plan).await;
        progress.finish();
        let published = published?;
        note_published(&published, self.output, "");
        self.finish(&Report { published: Some(&published), ..report }, &summary(&plan, &published))
    }

    /// Prints the report. Exits with 1 if a skill was refused.
    fn finish(&self, report: &Report<'_>, note: &str) -> Result<ExitCode> {
        self.output.conclude(report, note)?;
        Ok(if report.refused > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS })
    }
}

/// Reads the source. Returns its description and its skills.
async fn read(args: &Push, output: &Output) -> Result<(String, NewLibrary)> {
    let options = source_options(&args.place, args.category.clone())?.strict(args.strict);
    let place = args.source.clone();
    let (source, skipped, new) = blocking(move || {
        let source = Source::open(&place, &options)?;
        Ok((source.origin.to_string(), source.skipped.clone(), NewLibrary::from(source)))
    })
    .await?;
    // The plan lists the refused ones.
    for skipped in skipped.iter().filter(|skipped| !skipped.refused) {
        output.note(&format!("skipped {}: {}", skipped.path, skipped.reason));
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

/// `user@host` of this process, as far as known.
fn whoami() -> String {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let user = variable("USER").or_else(|| variable("LOGNAME")).or_else(|| variable("USERNAME"));
    let etc_hostname = || std::fs::read_to_string("/etc/hostname").ok().map(|name| name.trim().to_owned());
    let host = variable("HOSTNAME").or_else(etc_hostname).filter(|name| !name.is_empty());
    match (user, host) {
        (Some(user), Some(host)) => format!("{user}@{host}"),
        (Some(user), None) => user,
        (None, Some(host)) => format!("unknown@{host}"),
        (None, None) => "unknown".to_owned(),
    }
}
