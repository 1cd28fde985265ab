//! Decides which skills of a source are published, and records the decisions.

use std::collections::BTreeSet;
use std::time::SystemTime;

use serde::Serialize;

use super::provenance::{PROVENANCE_FILE, Provenance, TrustTier};
use super::tools;
use super::{Origin, OriginKind, SkillFiles, Source, SourceCategory, SourceFile, SourceSkill, TempGuard};
use crate::ambient::Ambient;
use crate::entry::format_time;
use crate::error::Result;
use crate::manifest::{Diagnostic, Document, Severity, Yaml, why_unusable};
use crate::options::setters;
use crate::path::is_within;
use crate::skill::{Dependencies, Skill, SkillLibrary};

/// What a skill may require only when somebody agrees.
pub const DANGEROUS_CAPABILITIES: &[&str] = &["shell:execute", "network:listen", "filesystem:write"];
/// The folder for executable files in a skill.
const SCRIPTS: &str = "scripts/";

/// Decides whether the skill at this path may have these capabilities.
pub type Confirm<'o> = dyn Fn(&str, &[String]) -> bool + 'o;

/// How a source is imported.
#[derive(Clone, Copy, Default)]
#[non_exhaustive]
pub struct ImportOptions<'o> {
    /// When it is imported, for `.source`. Default: now.
    pub installed_at: Option<SystemTime>,
    /// Whether tool names are translated to ours, using [`TOOL_NAMES`](super::TOOL_NAMES). Default false.
    pub translate_tools: bool,
    /// Whether files in `scripts/` are imported. Default false.
    pub with_scripts: bool,
    /// The trust tier of the skills. What the source claims is ignored. Default unreviewed.
    pub trust: TrustTier,
    /// Whether all [`DANGEROUS_CAPABILITIES`] are accepted. Default false.
    pub accept_dangerous: bool,
    /// Called for each skill that requires dangerous capabilities, with its path and those capabilities,
    /// unless all are accepted. Default: none, and the skill is refused.
    pub confirm: Option<&'o Confirm<'o>>,
}

impl<'o> ImportOptions<'o> {
    setters! {
        installed_at: some SystemTime;
        translate_tools: bool;
        with_scripts: bool;
        trust: TrustTier;
        accept_dangerous: bool;
        confirm: some &'o Confirm<'o>;
    }
}

impl std::fmt::Debug for ImportOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImportOptions")
            .field("installed_at", &self.installed_at)
            .field("translate_tools", &self.translate_tools)
            .field("with_scripts", &self.with_scripts)
            .field("trust", &self.trust)
            .field("accept_dangerous", &self.accept_dangerous)
            .field("confirm", &self.confirm.map(|_| "…"))
            .finish()
    }
}

/// The result of an import: skills to publish, and refused skills.
///
/// The files of archives and repositories are deleted when this is dropped. Read them before that.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Imported {
    /// The skills to publish, sorted by path.
    pub skills: Vec<ImportedSkill>,
    /// The refused skills, sorted by path.
    pub refused: Vec<RefusedSkill>,
    /// Descriptions of the categories of these skills.
    pub categories: Vec<SourceCategory>,
    /// Where the skills come from.
    pub origin: Origin,
    /// The dependencies between the skills: their order, and any problems.
    pub dependencies: Dependencies,
    /// Keeps the temporary files alive.
    #[expect(dead_code, reason = "it is held, not read")]
    kept: Option<TempGuard>,
}

/// A skill to publish.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ImportedSkill {
    /// The path and the files to publish, including `.source`.
    pub skill: SkillFiles,
    /// The content of `.source`.
    pub provenance: Provenance,
    /// Files that were left out.
    pub left_out: Vec<String>,
    /// Problems in the skill.
    pub diagnostics: Vec<Diagnostic>,
}

/// A skill that is not published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RefusedSkill {
    /// The skill's path.
    pub path: String,
    /// Why it is refused and what to do about it.
    pub reason: String,
    /// The dangerous capabilities that it requires, if they are the reason.
    pub dangerous_capabilities: Vec<String>,
}

/// Decides for each skill of a source whether it is published, and with which files.
///
/// Skills that the source refused are refused here as well. Files stay on disk; only changed files are kept
/// in memory.
///
/// # Errors
/// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if a file has changed since the source was read, and
/// the other errors of [`SourceFile::read`].
pub fn import(source: Source, options: &ImportOptions<'_>) -> Result<Imported> {
    let mut refused: Vec<RefusedSkill> = source
        .skipped
        .iter()
        .filter(|skipped| skipped.refused)
        .map(|skipped| RefusedSkill {
            path: skipped.path.clone(),
            reason: skipped.reason.clone(),
            dangerous_capabilities: Vec::new(),
        })
        .collect();
    let (mut skills, mut library) = (Vec::new(), SkillLibrary::default());
    for skill in &source.skills {
        match decide(skill, &source.origin, options)? {
            Ok((imported, document)) => {
                // Register the skill to resolve dependencies.
                if let Ok(skill) = Skill::unlisted(skill.path.clone(), document.manifest.clone()) {
                    library.register(skill);
                }
                skills.push(imported);
            }
            Err(refusal) => refused.push(refusal),
        }
    }
    refused.sort_by(|a, b| a.path.cmp(&b.path));
    let mut categories = source.categories;
    categories.retain(|category| {
        let within = |skill: &ImportedSkill| is_within(skill.skill.path.category(), &category.path);
        skills.iter().any(within)
    });
    let dependencies = library.dependencies();
    Ok(Imported { skills, refused, categories, origin: source.origin, dependencies, kept: source.kept })
}

fn decide<'s>(
    skill: &'s SourceSkill,
    origin: &Origin,
    options: &ImportOptions<'_>,
) -> Result<Result<(ImportedSkill, &'s Document), RefusedSkill>> {
    let refuse = |reason: String, dangerous_capabilities| {
        Ok(Err(RefusedSkill { path: skill.path.to_string(), reason, dangerous_capabilities }))
    };
    let document = match &skill.loaded {
        Ok(document) => document,
        Err(said) => {
            return refuse(format!("its SKILL.md cannot be used: {}", why_unusable(said)), Vec::new());
        }
    };
    let dangerous = dangerous(document);
    if !dangerous.is_empty() && !options.accept_dangerous {
        let agreed = options.confirm.is_some_and(|confirm| confirm(skill.path.as_str(), &dangerous));
        if !agreed {
            let what = dangerous.join(", ");
            let reason = format!("it requires {what}, which was not accepted");
            return refuse(reason, dangerous);
        }
    }
    let mut diagnostics = document.diagnostics.clone();
    let missing: Vec<String> = tools::missing(&document.manifest).into_iter().collect();
    if !missing.is_empty() {
        let file = format!("{}/SKILL.md", skill.path);
        let message = format!("it may use unknown tools: {}", missing.join(", "));
        diagnostics.push(Diagnostic::new(Severity::Warning, "missing-tool", file, message));
    }
    let (mut files, mut left_out) = (Vec::new(), Vec::new());
    let (mut translated, mut scripts) = (BTreeSet::new(), false);
    let main = super::skill_file(&skill.files).map(|file| file.name.as_str());
    for file in &skill.files {
        // An existing `.source` describes another library.
        if file.name == PROVENANCE_FILE {
            continue;
        }
        if is_script(&file.name) {
            if !options.with_scripts {
                left_out.push(file.name.clone());
                continue;
            }
            scripts = true;
        }
        if options.translate_tools && Some(file.name.as_str()) == main {
            let content = file.read()?;
            let text = std::str::from_utf8(&content).ok();
            let translate = |text| tools::translate(text, document, skill.path.name());
            if let Some(done) = text.and_then(translate) {
                translated = done.names;
                files.push(SourceFile::from_bytes(file.name.clone(), done.text));
                continue;
            }
        }
        files.push(file.clone());
    }
    // An earlier `.source` in a local folder is worth recording, although anyone could have written it.
    let is_earlier = |file: &&SourceFile| origin.kind == OriginKind::Folder && file.name == PROVENANCE_FILE;
    let earlier = skill.files.iter().find(is_earlier);
    let earlier = earlier.and_then(|file| Provenance::parse(&file.read().ok()?).ok());
    let claimed = |earlier: Provenance| match (earlier.claimed_source, earlier.commit) {
        (Some(claimed), _) => claimed,
        (None, Some(commit)) => format!("{} at {commit}", earlier.source),
        (None, None) => earlier.source,
    };
    let provenance = Provenance {
        source: source_name(origin),
        commit: origin.commit.clone(),
        claimed_source: earlier.map(claimed),
        category: Some(skill.path.category()).filter(|category| !category.is_empty()).map(str::to_owned),
        installed_at: format_time(options.installed_at.unwrap_or_else(|| Ambient::default().now())),
        translated_tools: translated.into_iter().collect(),
        missing_tools: missing,
        scripts_imported: scripts,
        trust_tier: options.trust,
        dangerous_capabilities: dangerous,
    };
    files.push(SourceFile::from_bytes(PROVENANCE_FILE, provenance.to_toml()?));
    let skill = SkillFiles::new(skill.path.clone(), files)?;
    Ok(Ok((ImportedSkill { skill, provenance, left_out, diagnostics }, document)))
}

/// Whether a file is in `scripts/`, in any letter case: case-insensitive filesystems and models do not
/// distinguish them.
fn is_script(name: &str) -> bool {
    name.get(..SCRIPTS.len()).is_some_and(|start| start.eq_ignore_ascii_case(SCRIPTS))
}

/// The source as it appears in `.source`, which is public: only the name of a local path.
fn source_name(origin: &Origin) -> String {
    match (origin.kind, &origin.reference) {
        (OriginKind::Git, Some(reference)) => format!("{}#{reference}", origin.location),
        (OriginKind::Git, None) => origin.location.clone(),
        (OriginKind::Folder | OriginKind::Archive, _) => {
            let path = std::path::Path::new(&origin.location);
            let full = path.canonicalize().unwrap_or_else(|_| path.to_owned());
            full.file_name().unwrap_or_default().to_string_lossy().into_owned()
        }
    }
}

/// Finds the dangerous capabilities that a skill requires, in any field and spelling. False positives are
/// better than false negatives here.
fn dangerous(document: &Document) -> Vec<String> {
    fn words(value: &Yaml, found: &mut BTreeSet<String>) {
        match value {
            Yaml::Text(text) => {
                let part = |c: char| c.is_whitespace() || ",;[]{}\"'".contains(c);
                found.extend(text.split(part).map(str::to_lowercase));
            }
            Yaml::List(items) => items.iter().for_each(|item| words(item, found)),
            Yaml::Map(entries) => entries.iter().for_each(|(key, value)| {
                found.insert(key.to_lowercase());
                words(value, found);
            }),
            Yaml::Null => {}
        }
    }
    let manifest = &document.manifest;
    let mut found: BTreeSet<String> =
        manifest.required_capabilities.iter().map(|capability| capability.to_lowercase()).collect();
    for fields in [&manifest.fields, &manifest.metadata] {
        for (key, value) in fields.entries() {
            if key.to_lowercase().replace('-', "_") == "required_capabilities" {
                words(value, &mut found);
            }
        }
    }
    DANGEROUS_CAPABILITIES.iter().filter(|name| found.contains(**name)).map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dangerous_capabilities_are_found_in_any_field() {
        let check = |fields: &str, expected: &[&str]| {
            let text = format!("---\nname: x\ndescription: d\n{fields}\n---\nb");
            let document = Document::load(text.as_bytes(), "x", "SKILL.md").unwrap();
            assert_eq!(dangerous(&document), expected, "{fields}");
        };
        check("", &[]);
        check("required_capabilities: [shell:execute, file:read]", &["shell:execute"]);
        check(
            "required-capabilities:\n  - network:listen\n  - Shell:Execute",
            &["shell:execute", "network:listen"],
        );
        check("required_capabilities: shell:execute network:listen", &["shell:execute", "network:listen"]);
        check("metadata:\n  required-capabilities: filesystem:write", &["filesystem:write"]);
        check(
            "required_capabilities: []\nmetadata:\n  required_capabilities: [shell:execute]",
            &["shell:execute"],
        );
        check("required_capabilities: {shell:execute: true}", &["shell:execute"]);
        check("description2: shell:execute", &[]);
    }

    #[test]
    fn scripts_are_recognized_by_their_folder() {
        assert!(is_script("scripts/a.py") && is_script("Scripts/x/y"));
        assert!(!is_script("scripts") && !is_script("references/scripts/a") && !is_script("run.sh"));
    }
}
