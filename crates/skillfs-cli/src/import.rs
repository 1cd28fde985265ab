//! `skillfs admin import`: publishes skills from archives, repositories and other agents' libraries, or writes them to
//! a local folder.

use skillfs::Result;
use skillfs::source::{
    Existing, ImportOptions, Imported, RefusedSkill, SkillFiles, Source, TrustTier, import, write_folder,
};
use std::path::Path;
use std::process::ExitCode;

use super::admin_args::Import;
use super::args::Global;
use super::blocking;
use super::connect::library;
use super::output::Output;
use super::prompt::{ask, is_interactive};
use super::publish::{Publication, into, options_of, source_options};
use super::terminal::plural;

pub(super) async fn run(global: &Global, args: Import, output: &Output) -> Result<ExitCode> {
    let trust: TrustTier = args.trust.parse()?;
    let interactive = is_interactive(output);
    if args.into.is_none() {
        // Fail before the source is read.
        library(global)?;
    }
    let place = args.source.clone();
    let source_options = source_options(&args.place, args.category.clone())?;
    let (translate, scripts, dangerous) = (args.translate_tools, args.with_scripts, args.accept_dangerous);
    let imported = blocking(move || {
        let source = Source::open(&place, &source_options)?;
        let confirm = |skill: &str, capabilities: &[String]| {
            interactive && ask(&format!("`{skill}` requests {}. Import it?", capabilities.join(", ")))
        };
        let options = ImportOptions::default()
            .translate_tools(translate)
            .with_scripts(scripts)
            .trust(trust)
            .accept_dangerous(dangerous)
            .confirm(&confirm);
        import(source, &options)
    })
    .await?;
    note_imported(&imported, output);
    if let Some(folder) = &args.into {
        return write_imported(imported, folder, args.how.overwrite, output).await;
    }
    let to = Publication::open(global, &args.how, !args.how.dry_run, output).await?;
    let options = options_of(&args.how, String::new()).into(into(args.kind));
    to.publish(to.library.plan_import(imported, &options).await?).await
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
        "wrote {} to `{}` ({} unchanged)",
        plural(written.written, "file", "files"),
        folder.display(),
        written.unchanged
    );
    output.done(&written, &note)?;
    Ok(if refused == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Prints a note for everything about the imported skills that the user should know.
fn note_imported(imported: &Imported, output: &Output) {
    for skill in &imported.skills {
        let path = &skill.skill.path;
        for diagnostic in &skill.diagnostics {
            output.note(&format!("{path}: {}", diagnostic.message));
        }
        if !skill.left_out.is_empty() {
            let scripts = plural(skill.left_out.len() as u64, "script", "scripts");
            output.note(&format!("{path}: left out {scripts}; add `--with-scripts` to include scripts"));
        }
        if !skill.provenance.translated_tools.is_empty() {
            output.note(&format!("{path}: renamed tools: {}", skill.provenance.translated_tools.join(", ")));
        }
        if !skill.provenance.missing_tools.is_empty() {
            output.note(&format!("{path}: unknown tools: {}", skill.provenance.missing_tools.join(", ")));
        }
    }
    for skill in &imported.refused {
        output.note(&format!("{}: refused: {}", skill.path, reason(skill)));
    }
}

/// Why a skill was refused, and the flag that accepts it anyway.
fn reason(skill: &RefusedSkill) -> String {
    match skill.dangerous_capabilities.is_empty() {
        true => skill.reason.clone(),
        false => format!("{}; accept it with `--accept-dangerous`", skill.reason),
    }
}
