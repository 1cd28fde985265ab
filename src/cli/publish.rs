//! `skillfs admin push`, and the other commands that make a release.

use std::process::ExitCode;

use serde::Serialize;

use super::admin_args::{How, KindFlags, Push, SourceFlags};
use super::args::Global;
use super::connect::{connect, library};
use super::output::Output;
use super::prompt::confirm;
use super::report::{Report, show, summary, tell_drift, tell_published};
use super::terminal::{plural, visible};
use super::{blocking, push_users};
use crate::admin::{Action, IntoKind, NewLibrary, Plan, PushOptions, PushProgress};
use crate::backend::SkillFs;
use crate::error::{Error, ErrorKind, Result};
use crate::source::{Layout, Source, SourceOptions};

pub(super) async fn push(global: &Global, args: Push, output: &Output) -> Result<ExitCode> {
    let (source, new) = read(&args, output).await?;
    let options = options(&args, &source);
    if let Some(file) = &args.users {
        if global.session.has_library() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "`--users` is in the place of `--user` and `--library`",
            )
            .with_hint("give one of them"));
        }
        return push_users::push_to_users(global, file, &new, &args, options, output).await;
    }
    let library = library(global)?;
    let fs = connect(global, !args.how.dry_run, output).await?;
    let plan = fs.plan(&library, &new, &options).await?;
    Publication { fs: &fs, how: &args.how, yes: global.yes, output }.publish(plan).await
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
    let kind = KindFlags { publish, plain: false };
    let options = PushOptions { into: into(kind), ..options_of(&how, "index".to_owned()) };
    let plan = fs.plan_index(&library, &options).await?;
    Publication { fs: &fs, how: &how, yes: global.yes, output }.publish(plan).await
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
    Publication { fs: &fs, how: &how, yes: global.yes, output }.publish(plan).await
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
    Publication { fs: &fs, how: &how, yes: global.yes, output }.publish(plan).await
}

pub(super) async fn unpin(global: &Global, skill: &str, output: &Output) -> Result<ExitCode> {
    let library = library(global)?;
    let fs = connect(global, false, output).await?;
    let path = skill.trim_matches('/');
    let how = How { dry_run: false, overwrite: false, by: None };
    let options = options_of(&how, format!("unpin {path}"));
    let plan = fs.plan_unpin(&library, path, &options).await?;
    Publication { fs: &fs, how: &how, yes: global.yes, output }.publish(plan).await
}

pub(super) async fn rm(global: &Global, skills: Vec<String>, how: How, output: &Output) -> Result<ExitCode> {
    let library = library(global)?;
    let fs = connect(global, false, output).await?;
    let skills: Vec<String> = skills.iter().map(|skill| skill.trim_matches('/').to_owned()).collect();
    let there = fs.library_skills(&library).await?;
    if let Some(missing) = skills.iter().find(|skill| there.iter().all(|there| there.path != skill.as_str()))
    {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("{library} has no skill `{}`", visible(missing, false)),
        )
        .with_hint("name it by its path, such as `category/skill`; `admin list` shows them"));
    }
    let options = PushOptions { delete: true, ..options_of(&how, "rm".to_owned()) };
    let new = NewLibrary::nothing_but(skills);
    let plan = fs.plan(&library, &new, &options).await?;
    Publication { fs: &fs, how: &how, yes: global.yes, output }.publish(plan).await
}

/// What all changes of a library share: show the plan, ask, publish, tell.
pub(super) struct Publication<'w> {
    pub(super) fs: &'w SkillFs,
    pub(super) how: &'w How,
    pub(super) yes: bool,
    pub(super) output: &'w Output,
}

impl Publication<'_> {
    pub(super) async fn publish(&self, plan: Plan) -> Result<ExitCode> {
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

pub(super) fn source_options(place: &SourceFlags, category: Option<String>) -> Result<SourceOptions> {
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

pub(super) fn into(kind: KindFlags) -> IntoKind {
    match kind {
        KindFlags { publish: true, .. } => IntoKind::Published,
        KindFlags { plain: true, .. } => IntoKind::Plain,
        KindFlags { .. } => IntoKind::Same,
    }
}

pub(super) fn options_of(how: &How, source: String) -> PushOptions {
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
