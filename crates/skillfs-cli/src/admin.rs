//! `skillfs admin`: dispatches its subcommands; `validate` is implemented here.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use skillfs::admin::RepairOptions;
use skillfs::{Diagnostic, Error, ErrorKind, LocalSkill, Result, check_folder};

use super::admin_args::AdminCommand;
use super::args::Global;
use super::blocking;
use super::output::Output;
use super::terminal::{BAD, GOOD, plural, visible};
use super::{import, libraries, publish};

pub(super) async fn run(global: &Global, command: AdminCommand, output: &Output) -> Result<ExitCode> {
    if global.read_only && writes(&command) {
        return Err(Error::new(ErrorKind::ReadOnly, "`--read-only` rejects all changes")
            .with_hint("run it without `--read-only`"));
    }
    if global.role_arn.is_some() {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "`--role-arn` applies to sessions, and `admin` commands run without one",
        )
        .with_hint("put the administrators' role into an AWS profile, and select it with AWS_PROFILE"));
    }
    match command {
        AdminCommand::Validate { folders, lenient } => return validate(folders, lenient, output).await,
        AdminCommand::Index { how, publish } => return publish::index(global, how, publish, output).await,
        AdminCommand::Unpublish => return publish::unpublish(global, output).await,
        AdminCommand::Push(args) => return publish::push(global, args, output).await,
        AdminCommand::Diff(args) => return publish::diff(global, args, output).await,
        AdminCommand::Import(args) => return import::run(global, args, output).await,
        AdminCommand::Rollback { release, how } => {
            return publish::rollback(global, release, how, output).await;
        }
        AdminCommand::Pin { skill, how } => return publish::pin(global, &skill, how, output).await,
        AdminCommand::Unpin { skill } => return publish::unpin(global, &skill, output).await,
        AdminCommand::Rm { skills, how } => return publish::rm(global, skills, how, output).await,
        AdminCommand::Verify { repair, quick, overwrite, release } => {
            let mut options = RepairOptions::default().read_blobs(!quick).overwrite(overwrite);
            options.release = release;
            return libraries::verify(global, repair, &options, output).await;
        }
        AdminCommand::Init { name, description, into } => {
            libraries::init(name, description, into, output).await?;
        }
        AdminCommand::Pull { target, category, overwrite } => {
            libraries::pull(global, target, category, overwrite, output).await?;
        }
        AdminCommand::Export { target, category, overwrite } => {
            libraries::export(global, target, category, overwrite, output).await?;
        }
        AdminCommand::Releases => libraries::releases(global, output).await?,
        AdminCommand::List => libraries::list(global, output).await?,
        AdminCommand::Stats => libraries::stats(global, output).await?,
        AdminCommand::Prune => libraries::prune(global, output).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a command may write to the bucket.
fn writes(command: &AdminCommand) -> bool {
    match command {
        AdminCommand::Push(args) => !args.how.dry_run,
        AdminCommand::Import(args) => args.into.is_none() && !args.how.dry_run,
        AdminCommand::Rollback { how, .. }
        | AdminCommand::Pin { how, .. }
        | AdminCommand::Rm { how, .. }
        | AdminCommand::Index { how, .. } => !how.dry_run,
        AdminCommand::Verify { repair, .. } => *repair,
        AdminCommand::Unpin { .. } | AdminCommand::Prune | AdminCommand::Unpublish => true,
        AdminCommand::Validate { .. }
        | AdminCommand::Init { .. }
        | AdminCommand::Diff(_)
        | AdminCommand::Pull { .. }
        | AdminCommand::Export { .. }
        | AdminCommand::Releases
        | AdminCommand::List
        | AdminCommand::Stats => false,
    }
}

async fn validate(folders: Vec<PathBuf>, lenient: bool, output: &Output) -> Result<ExitCode> {
    let checked: Vec<_> =
        blocking(move || Ok(folders.iter().flat_map(|folder: &PathBuf| check_folder(folder)).collect()))
            .await?;
    let mut bad = 0;
    for skill in &checked {
        let wrong = if lenient { skill.loaded.is_err() } else { !skill.problems.is_empty() };
        bad += u64::from(wrong);
        output.emit(&Validation::of(skill, lenient), || verdict(skill, lenient))?;
    }
    let (total, good) = (checked.len() as u64, checked.len() as u64 - bad);
    let skills = plural(total, "skill", "skills");
    output.note(&match lenient {
        true => format!("checked {skills}: {good} can be loaded, {bad} cannot"),
        false => format!("checked {skills}: {good} valid, {bad} invalid"),
    });
    Ok(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The human-readable result for one skill.
fn verdict(skill: &LocalSkill, lenient: bool) -> String {
    let path = visible(&skill.path.display().to_string(), false);
    let (is_good, lines): (bool, Vec<String>) = match lenient {
        true => (skill.loaded.is_ok(), diagnostics(skill).iter().map(ToString::to_string).collect()),
        false => (skill.problems.is_empty(), skill.problems.clone()),
    };
    let word = match (is_good, lenient) {
        (true, true) => format!("{GOOD}loads{GOOD:#}"),
        (true, false) => format!("{GOOD}valid{GOOD:#}"),
        (false, true) => format!("{BAD}does not load{BAD:#}"),
        (false, false) => format!("{BAD}invalid{BAD:#}"),
    };
    let mut text = format!("{path}: {word}\n");
    if let (true, Ok(document)) = (lenient, &skill.loaded) {
        text += &format!("  name         {}\n", visible(&document.manifest.name, false));
        text += &format!("  description  {}\n", visible(&document.manifest.description, false));
    }
    for line in lines {
        text += &format!("  - {}\n", visible(&line, false));
    }
    text
}

fn diagnostics(skill: &LocalSkill) -> &[Diagnostic] {
    match &skill.loaded {
        Ok(document) => &document.diagnostics,
        Err(diagnostics) => diagnostics,
    }
}

/// The JSON document for one skill.
#[derive(Serialize)]
struct Validation<'a> {
    path: String,
    valid: bool,
    problems: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    loads: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    diagnostics: Option<&'a [Diagnostic]>,
}

impl<'a> Validation<'a> {
    fn of(skill: &'a LocalSkill, lenient: bool) -> Self {
        let document = skill.loaded.as_ref().ok().filter(|_| lenient);
        Self {
            path: skill.path.display().to_string(),
            valid: skill.problems.is_empty(),
            problems: &skill.problems,
            loads: lenient.then_some(skill.loaded.is_ok()),
            name: document.map(|document| document.manifest.name.as_str()),
            description: document.map(|document| document.manifest.description.as_str()),
            diagnostics: lenient.then(|| diagnostics(skill)),
        }
    }
}
