//! `skillfs skills …`.

use serde_json::json;
use skillfs::{CatalogFormat, Diagnostic, Resource, Result, S3Backend, Severity, SkillLibrary, SkillPath};

use super::args::{CatalogFlag, SkillsCommand};
use super::output::Output;
use super::terminal::{DIM, print_json, print_raw};

/// How many diagnostics are shown one by one.
const MOST_SHOWN: usize = 10;

pub(super) async fn run(backend: &S3Backend, command: SkillsCommand, output: &Output) -> Result<()> {
    match command {
        SkillsCommand::List { category } => {
            let found = backend.skill_paths(category.as_deref()).await?;
            let documents: Vec<_> = found.paths.iter().map(|path| json!({ "path": path })).collect();
            let line = |path: &SkillPath| output.name(path.as_str()) + "\n";
            output.emit_all(&documents, || found.paths.iter().map(line).collect())?;
            tell_libraries(&found.diagnostics, output);
            Ok(())
        }
        SkillsCommand::Frontmatter { category } => {
            let text = backend.load_skills_frontmatter(category.as_deref()).await?;
            match output.is_json() {
                true => print_json(&json!({ "text": text }))?,
                false => output.content(&text)?,
            }
            let found = backend.skill_paths(category.as_deref()).await?;
            tell_libraries(&found.diagnostics, output);
            Ok(())
        }
        SkillsCommand::Catalog { category, format, budget } => {
            let library = backend.skills(category.as_deref()).await?;
            let format = match format {
                _ if output.is_json() => CatalogFormat::Json,
                CatalogFlag::Markdown => CatalogFormat::Markdown,
                CatalogFlag::Xml => CatalogFormat::Xml,
                CatalogFlag::XmlOneLine => CatalogFormat::XmlOneLine,
                CatalogFlag::Json => CatalogFormat::Json,
            };
            output.content(&library.catalog(format, budget).text)?;
            say(&library, output);
            Ok(())
        }
        SkillsCommand::Version => {
            let version = backend.catalog_version().await?;
            match output.is_json() {
                true => print_json(&json!({ "version": version })),
                false => print_raw((version + "\n").as_bytes()),
            }
        }
        SkillsCommand::Load { skill, body } => {
            let loaded = backend.load_skill(&skill).await?;
            if output.is_json() {
                return print_json(&loaded);
            }
            output.content(if body { &loaded.body } else { &loaded.content })
        }
        SkillsCommand::Resources { skill } => {
            let resources = backend.skill_resources(&skill).await?;
            let width = resources.iter().map(|r| r.size.to_string().len()).max().unwrap_or(0);
            output.emit_all(&resources, || {
                let line = |resource: &Resource| {
                    let (kind, size) = (resource.kind.as_str(), resource.size);
                    let path = output.name(&resource.path);
                    format!("{DIM}{kind:<10}  {size:>width$}{DIM:#}  {path}\n")
                };
                resources.iter().map(line).collect()
            })
        }
    }
}

/// Libraries that are left out or out of date are told with every list.
fn tell_libraries(diagnostics: &[Diagnostic], output: &Output) {
    for diagnostic in diagnostics.iter().filter(|d| matches!(d.code, "library-unavailable" | "stale-index")) {
        output.note(&diagnostic.to_string());
    }
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
