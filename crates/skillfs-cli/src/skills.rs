//! `skillfs skills`: lists, describes and loads skills.

use serde_json::json;
use skillfs::{CatalogFormat, Diagnostic, Resource, Result, S3Backend, Severity, SkillLibrary, SkillPath};

use super::args::{CatalogFlag, SkillsCommand};
use super::output::Output;
use super::terminal::{DIM, size};

/// The maximum number of diagnostics that are printed.
const MAX_DIAGNOSTICS: usize = 10;

pub(super) async fn run(backend: &S3Backend, command: SkillsCommand, output: &Output) -> Result<()> {
    match command {
        SkillsCommand::List { category } => {
            let found = backend.skill_paths(category.as_deref()).await?;
            let documents: Vec<_> = found.paths.iter().map(|path| json!({ "path": path })).collect();
            let line = |path: &SkillPath| output.name(path.as_str()) + "\n";
            output.emit_all(&documents, || found.paths.iter().map(line).collect())?;
            note_libraries(&found.diagnostics, output);
            Ok(())
        }
        SkillsCommand::Frontmatter { category } => {
            let text = backend.load_skills_frontmatter(category.as_deref()).await?;
            output.emit_content(&json!({ "text": text }), &text)?;
            let found = backend.skill_paths(category.as_deref()).await?;
            note_libraries(&found.diagnostics, output);
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
            note_diagnostics(&library, output);
            Ok(())
        }
        SkillsCommand::Version => {
            let version = backend.catalog_version().await?;
            output.emit(&json!({ "version": version }), || format!("{version}\n"))
        }
        SkillsCommand::Load { skill, body } => {
            let loaded = backend.load_skill(&skill).await?;
            output.emit_content(&loaded, if body { &loaded.body } else { &loaded.content })
        }
        SkillsCommand::Resources { skill } => {
            let resources = backend.skill_resources(&skill).await?;
            let width = resources.iter().map(|resource| size(resource.size).len()).max().unwrap_or(0);
            output.emit_all(&resources, || {
                let line = |resource: &Resource| {
                    let (kind, size) = (resource.kind.as_str(), size(resource.size));
                    let path = output.name(&resource.path);
                    format!("{DIM}{kind:<10}  {size:>width$}{DIM:#}  {path}\n")
                };
                resources.iter().map(line).collect()
            })
        }
    }
}

/// Notes libraries that are unavailable or out of date.
fn note_libraries(diagnostics: &[Diagnostic], output: &Output) {
    for diagnostic in diagnostics.iter().filter(|d| matches!(d.code, "library-unavailable" | "stale-index")) {
        output.note(&diagnostic.to_string());
    }
}

/// Notes the warnings and errors of a library and its skills.
fn note_diagnostics(library: &SkillLibrary, output: &Output) {
    let own = library.list().iter().flat_map(|skill| &skill.diagnostics);
    let all: Vec<&Diagnostic> =
        library.diagnostics().iter().chain(own).filter(|d| d.severity > Severity::Info).collect();
    for diagnostic in all.iter().take(MAX_DIAGNOSTICS) {
        output.note(&diagnostic.to_string());
    }
    if all.len() > MAX_DIAGNOSTICS {
        output.note(&format!("… and {} more", all.len() - MAX_DIAGNOSTICS));
    }
}
