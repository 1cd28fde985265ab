//! `skillfs skills …` and `skillfs admin validate`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use super::args::{AdminCommand, Format, SkillsCommand};
use super::output::{BAD, DIM, GOOD, Output, plural, print, print_raw, to_json, visible};
use crate::backend::S3Backend;
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::{Diagnostic, Severity};
use crate::skill::{CatalogFormat, LocalSkill, SkillLibrary, check_folder};

/// How many diagnostics are shown one by one.
const MOST_SHOWN: usize = 10;

pub(super) async fn run(backend: &S3Backend, command: SkillsCommand, output: &Output) -> Result<()> {
    match command {
        SkillsCommand::List { category } => {
            let paths = backend.load_skills(category.as_deref()).await?;
            let mut text = String::new();
            for path in &paths {
                text += &if output.is_json() { to_json(&Listed { path })? } else { output.name(path) };
                text.push('\n');
            }
            print_raw(text.as_bytes())
        }
        SkillsCommand::Frontmatter { category } => {
            let text = backend.load_skills_frontmatter(category.as_deref()).await?;
            match output.is_json() {
                true => print_raw((to_json(&Text { text: &text })? + "\n").as_bytes()),
                false => output.content(&text),
            }
        }
        SkillsCommand::Catalog { category, format, budget } => {
            let library = backend.skills(category.as_deref()).await?;
            let format = match format {
                _ if output.is_json() => CatalogFormat::Json,
                Format::Markdown => CatalogFormat::Markdown,
                Format::Xml => CatalogFormat::Xml,
                Format::XmlOneLine => CatalogFormat::XmlOneLine,
                Format::Json => CatalogFormat::Json,
            };
            output.content(&library.catalog(format, budget).text)?;
            say(&library, output);
            Ok(())
        }
        SkillsCommand::Load { skill, body } => {
            let loaded = backend.load_skill(&skill).await?;
            if output.is_json() {
                return print_raw((to_json(&loaded)? + "\n").as_bytes());
            }
            output.content(if body { &loaded.body } else { &loaded.content })
        }
        SkillsCommand::Resources { skill } => {
            let resources = backend.skill_resources(&skill).await?;
            let width = resources.iter().map(|r| r.size.to_string().len()).max().unwrap_or(0);
            let mut text = String::new();
            for resource in &resources {
                text += &if output.is_json() {
                    to_json(resource)?
                } else {
                    let (kind, size) = (resource.kind.as_str(), resource.size);
                    format!("{DIM}{kind:<10}  {size:>width$}{DIM:#}  {}", output.name(&resource.path))
                };
                text.push('\n');
            }
            if output.is_json() { print_raw(text.as_bytes()) } else { print(&text) }
        }
    }
}

#[derive(Serialize)]
struct Listed<'a> {
    path: &'a str,
}

#[derive(Serialize)]
struct Text<'a> {
    text: &'a str,
}

/// What is odd about a library goes to stderr, as much of it as anyone reads.
fn say(library: &SkillLibrary, output: &Output) {
    let own = library.list().iter().flat_map(|skill| &skill.diagnostics);
    let all: Vec<&Diagnostic> =
        library.diagnostics().iter().chain(own).filter(|d| d.severity > Severity::Info).collect();
    for diagnostic in all.iter().take(MOST_SHOWN) {
        output.note(&diagnostic.to_string());
    }
    if all.len() > MOST_SHOWN {
        output.note(&format!("and {} more like these", all.len() - MOST_SHOWN));
    }
}

pub(super) async fn admin(command: AdminCommand, output: &Output) -> Result<ExitCode> {
    let AdminCommand::Validate { folders, lenient } = command;
    let checked = tokio::task::spawn_blocking(move || {
        folders.iter().flat_map(|folder: &PathBuf| check_folder(folder)).collect::<Vec<_>>()
    })
    .await
    .map_err(|e| Error::new(ErrorKind::Internal, "looking at the folders failed").with_source(e))?;
    let mut bad = 0;
    for skill in &checked {
        let wrong = if lenient { skill.loaded.is_err() } else { !skill.problems.is_empty() };
        bad += u64::from(wrong);
        if output.is_json() {
            print_raw((to_json(&Verdict::of(skill, lenient))? + "\n").as_bytes())?;
        } else {
            print(&verdict(skill, lenient))?;
        }
    }
    let good = checked.len() as u64 - bad;
    output.note(&format!(
        "{}, {}",
        plural(good, "skill is fine", "skills are fine"),
        plural(bad, "is not", "are not")
    ));
    Ok(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// One skill, for people.
fn verdict(skill: &LocalSkill, lenient: bool) -> String {
    let path = visible(&skill.path.display().to_string(), false);
    let mut text = String::new();
    let (fine, lines): (bool, Vec<String>) = if lenient {
        let said = match &skill.loaded {
            Ok(document) => &document.diagnostics,
            Err(diagnostics) => diagnostics,
        };
        (skill.loaded.is_ok(), said.iter().map(ToString::to_string).collect())
    } else {
        (skill.problems.is_empty(), skill.problems.clone())
    };
    let word = match (fine, lenient) {
        (true, true) => format!("{GOOD}loads{GOOD:#}"),
        (true, false) => format!("{GOOD}valid{GOOD:#}"),
        (false, true) => format!("{BAD}does not load{BAD:#}"),
        (false, false) => format!("{BAD}not valid{BAD:#}"),
    };
    text += &format!("{path}: {word}\n");
    if let (true, Ok(document)) = (lenient, &skill.loaded) {
        text += &format!("  name         {}\n", visible(&document.manifest.name, false));
        text += &format!("  description  {}\n", visible(&document.manifest.description, false));
    }
    for line in lines {
        text += &format!("  - {}\n", visible(&line, false));
    }
    text
}

/// One skill, for machines.
#[derive(Serialize)]
struct Verdict<'a> {
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

impl<'a> Verdict<'a> {
    fn of(skill: &'a LocalSkill, lenient: bool) -> Self {
        let document = skill.loaded.as_ref().ok().filter(|_| lenient);
        let diagnostics = match &skill.loaded {
            Ok(document) => &document.diagnostics,
            Err(diagnostics) => diagnostics,
        };
        Self {
            path: skill.path.display().to_string(),
            valid: skill.problems.is_empty(),
            problems: &skill.problems,
            loads: lenient.then_some(skill.loaded.is_ok()),
            name: document.map(|document| document.manifest.name.as_str()),
            description: document.map(|document| document.manifest.description.as_str()),
            diagnostics: lenient.then_some(diagnostics),
        }
    }
}
