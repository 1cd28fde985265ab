//! The helpers under the names that agents expect, and tiers 2 and 3.

use std::sync::Arc;

use serde::Serialize;
use tracing::instrument;

use super::discover::{FoundSkill, resources};
use super::library::no_skill;
use super::{CatalogFormat, Resource, Skill};
use crate::backend::{Retries, S3Backend, TextFile, Union};
use crate::error::{Error, ErrorKind, Result, shorten};
use crate::manifest::{Diagnostic, Document, why_unusable};
use crate::path::{SkillPath, VirtualPath};

/// How many resources the prompt of a loaded skill names. The others are counted.
const MAX_RESOURCES_NAMED: usize = 50;

/// A skill with its instructions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LoadedSkill {
    /// The skill.
    pub skill: Skill,
    /// The complete `SKILL.md`.
    pub content: String,
    /// The text after the frontmatter.
    pub body: String,
}

/// How much of a `SKILL.md` goes into a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PromptText {
    /// Only the instructions after the frontmatter.
    #[default]
    Body,
    /// The complete file.
    Complete,
}

/// What [`S3Backend::skill_paths`] found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SkillPaths {
    /// The paths, sorted.
    pub paths: Vec<SkillPath>,
    /// What is odd about skills and libraries that are left out.
    pub diagnostics: Vec<Diagnostic>,
}

impl LoadedSkill {
    /// Renders the instructions for a prompt: the text, followed by the skill's directory and a
    /// list of its other files.
    #[must_use]
    pub fn to_prompt(&self, text: PromptText) -> String {
        let text = match text {
            PromptText::Body => &self.body,
            PromptText::Complete => &self.content,
        };
        let mut prompt = text.trim().to_owned();
        prompt += &format!("\n\nSkill directory: {}\n", self.skill.directory());
        if !self.skill.resources.is_empty() {
            prompt += "Files in it, to read when they are needed:\n";
        }
        for resource in self.skill.resources.iter().take(MAX_RESOURCES_NAMED) {
            prompt += &format!("- {} ({}, {} bytes)\n", resource.path, resource.kind.as_str(), resource.size);
        }
        let more = self.skill.resources.len().saturating_sub(MAX_RESOURCES_NAMED);
        if more > 0 {
            prompt += &format!("- and {more} more; list the directory to see them\n");
        }
        prompt
    }
}

impl S3Backend {
    /// Returns the paths of all skills of a category, such as `deeds/sale`, sorted. `None` and
    /// `"all"` mean every category.
    ///
    /// Costs one request for a published library, and two or more for a plain one (its index and a
    /// listing). No skill file is read.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the category does not exist.
    #[instrument(skip_all, fields(?category))]
    pub async fn load_skills(&self, category: Option<&str>) -> Result<Vec<String>> {
        let found = self.skill_paths(category).await?;
        Ok(found.paths.iter().map(ToString::to_string).collect())
    }

    /// The paths of all skills of a category, and diagnostics about skills and libraries that are left out. Costs
    /// what [`S3Backend::load_skills`] does.
    ///
    /// # Errors
    /// As [`S3Backend::load_skills`].
    pub async fn skill_paths(&self, category: Option<&str>) -> Result<SkillPaths> {
        let (union, category) = self.discover(category).await?;
        let (skills, diagnostics) = self.select(&union, category.as_deref());
        Ok(SkillPaths { paths: skills.into_iter().map(|(path, _)| path.clone()).collect(), diagnostics })
    }

    /// Returns the frontmatter of all skills of a category that the model may use, verbatim, as a
    /// YAML stream with one document per skill and its path in a comment.
    ///
    /// Costs the same as [`S3Backend::skills`].
    ///
    /// # Errors
    /// Same as [`S3Backend::skills`].
    pub async fn load_skills_frontmatter(&self, category: Option<&str>) -> Result<String> {
        let library = self.skills(category).await?;
        let mut text = String::new();
        for skill in library.list().iter().filter(|skill| !skill.manifest.disable_model_invocation) {
            text += &format!("---\n# {}\n", skill.path);
            let frontmatter = skill.manifest.frontmatter.replace("\r\n", "\n");
            if frontmatter.trim().is_empty() {
                text += &format!("name: {}\n", yaml_text(&skill.manifest.name));
                text += &format!("description: {}\n", yaml_text(&skill.manifest.description));
            } else {
                text += frontmatter.trim_matches('\n').trim_end();
                text.push('\n');
            }
        }
        Ok(text)
    }

    /// Returns the catalog of a category as Markdown: grouped by category, with one line per skill.
    ///
    /// Costs the same as [`S3Backend::skills`].
    ///
    /// # Errors
    /// Same as [`S3Backend::skills`].
    pub async fn load_all_skills_formatted(&self, category: Option<&str>) -> Result<String> {
        Ok(self.skills(category).await?.catalog(CatalogFormat::Markdown, None).text)
    }

    /// Returns the complete `SKILL.md` of a skill, by path or name, or `None` if there is no such
    /// skill.
    ///
    /// Costs the same as [`S3Backend::load_skill`].
    ///
    /// # Errors
    /// [`ErrorKind::Ambiguous`] if several skills have the name, and those of
    /// [`S3Backend::load_skill`] except [`ErrorKind::NotFound`].
    pub async fn load_skill_content(&self, skill: &str) -> Result<Option<String>> {
        match self.load_skill(skill).await {
            Ok(loaded) => Ok(Some(loaded.content)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Loads a skill, by path or name: its instructions and the list of its other files (tier 2).
    ///
    /// By path, costs the same as [`S3Backend::load_skills`], and one request for a `SKILL.md` of
    /// up to 64 KiB. A name that is not a path is looked up among all skills, which costs the same
    /// as [`S3Backend::skills`] in addition.
    ///
    /// # Errors
    /// - [`ErrorKind::NotFound`], or [`ErrorKind::Ambiguous`] with the candidates.
    /// - [`ErrorKind::InvalidSkill`] if the `SKILL.md` has no usable content.
    /// - Those of [`S3Backend::read`].
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "embedded")]
    /// # async fn example() -> skillfs::Result<()> {
    /// # use skillfs::{Session, Settings, SkillFs, UserId, embedded::Embedded};
    /// # let store = Embedded::in_memory()?;
    /// # store.create_bucket("acme").await?;
    /// # let text = "---\nname: sale\ndescription: Drafts purchase agreements.\n---\n# Steps\n";
    /// # store.put("acme", "ana/skills/contracts/sale/SKILL.md", text).await?;
    /// # let fs = SkillFs::embedded(&store, &Settings::new("acme")).await?;
    /// # let backend = fs.session(&Session::new().user(UserId::parse("ana")?));
    /// let loaded = backend.load_skill("contracts/sale").await?;
    /// assert_eq!(loaded.skill.path.as_str(), "contracts/sale");
    /// assert_eq!(loaded.body, "# Steps\n");
    /// # Ok(())
    /// # }
    /// # #[cfg(feature = "embedded")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    #[instrument(skip_all, fields(?skill))]
    pub async fn load_skill(&self, skill: &str) -> Result<LoadedSkill> {
        let mut retries = Retries::new(self);
        loop {
            let loaded = retries.session().load_once(skill, retries.is_last()).await;
            if !retries.should_retry(&loaded) {
                return loaded;
            }
        }
    }

    async fn load_once(&self, skill: &str, last: bool) -> Result<LoadedSkill> {
        let (union, path) = self.find_skill(skill, last).await?;
        let place = union.skill(path.as_str());
        let found =
            place.and_then(|place| FoundSkill::new(&union, &path, place)).ok_or_else(|| no_skill(skill))?;
        let location = &found.location;
        let file = self.read_version(location, found.file).await?;
        let document = Document::load(file.content.as_bytes(), path.name(), location.as_str());
        let document = document.map_err(|said| {
            Error::from(Unloaded::Unusable { location: location.as_str(), why: why_unusable(&said) })
        })?;
        let skill = self.skill_of(&found, document.manifest, document.diagnostics);
        let skill = Skill { size: file.size, etag: file.etag, ..skill };
        Ok(LoadedSkill { skill, content: file.content, body: document.body })
    }

    /// Lists the other files of a skill, sorted by path, without reading them (tier 3).
    ///
    /// By path, costs the same as [`S3Backend::load_skills`]. By name, costs more, as with
    /// [`S3Backend::load_skill`].
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Ambiguous`].
    pub async fn skill_resources(&self, skill: &str) -> Result<Vec<Resource>> {
        let mut retries = Retries::new(self);
        let (union, path) = loop {
            let found = retries.session().find_skill(skill, retries.is_last()).await;
            if !retries.should_retry(&found) {
                break found?;
            }
        };
        let place = union.skill(path.as_str()).ok_or_else(|| no_skill(skill))?;
        Ok(resources(&union, &path, &place.file))
    }

    /// Reads one file of a skill as text (tier 3). `resource` is relative to the skill's directory
    /// and cannot leave it.
    ///
    /// Costs the same as [`S3Backend::skill_resources`], and reading the file like
    /// [`S3Backend::read`].
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidPath`] if `resource` is absolute or contains `..`.
    /// - Those of [`S3Backend::skill_resources`] and [`S3Backend::read`].
    pub async fn read_skill_resource(&self, skill: &str, resource: &str) -> Result<TextFile> {
        if resource.starts_with('/') {
            return Err(Unloaded::NotRelative(resource).into());
        }
        let mut retries = Retries::new(self);
        loop {
            let read = retries.session().read_resource(skill, resource, retries.is_last()).await;
            if !retries.should_retry(&read) {
                return read;
            }
        }
    }

    async fn read_resource(&self, skill: &str, resource: &str, last: bool) -> Result<TextFile> {
        let (union, path) = self.find_skill(skill, last).await?;
        // Parsing the joined path rejects `..`.
        let location = path.join(resource)?;
        let found = union.file(location.below_mount()).ok_or_else(|| {
            Error::from(Unloaded::NoResource { skill: path.as_str(), resource, location: location.as_str() })
        })?;
        self.read_version(&location, found).await
    }

    /// Resolves a path or a name to a skill, with a union that contains all of it.
    async fn find_skill(&self, name: &str, last: bool) -> Result<(Arc<Union>, SkillPath)> {
        let wanted = skill_name(name);
        let path = match VirtualPath::in_skills(wanted) {
            Ok(path) => path,
            // Not a path, but perhaps a name from a frontmatter.
            Err(_) if !wanted.contains('/') => VirtualPath::in_skills("")?,
            Err(error) => return Err(error),
        };
        if let Some(skill) = SkillPath::at(&path) {
            let union = self.union_of_first(&path).await?;
            if union.skill(skill.as_str()).is_some() {
                return Ok((union, skill));
            }
        }
        let union = self.union_all().await?;
        let library = self.library(&union, None, last).await?;
        let found = library.find(wanted).map(|skill| skill.path.clone());
        if found.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            union.check_complete(&path)?;
        }
        Ok((union, found?))
    }
}

/// Normalizes how people and models refer to a skill: by path, as `/skills/…`, or by its
/// `SKILL.md`.
fn skill_name(name: &str) -> &str {
    let name = name.strip_prefix("/skills/").unwrap_or(name).trim_matches('/');
    match name.rsplit_once('/') {
        Some((skill, file)) if file.eq_ignore_ascii_case("SKILL.md") => skill,
        _ => name,
    }
}

/// Quotes text as a double-quoted YAML scalar.
fn yaml_text(text: &str) -> String {
    let mut out = "\"".to_owned();
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out + "\""
}

impl Skill {
    /// Creates a skill that is not stored in a bucket, for tests and for skills that a program
    /// bundles.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidPath`] if the path is not valid below `/skills`.
    /// - [`ErrorKind::InvalidSkill`] if the content is empty or unusable.
    pub fn in_memory(path: &str, content: &str) -> Result<Self> {
        let skill = SkillPath::at(&VirtualPath::in_skills(skill_name(path))?)
            .ok_or_else(|| Error::from(Unloaded::NoPath(path)))?;
        let location = skill.join("SKILL.md")?;
        let document = Document::load(content.as_bytes(), skill.name(), location.as_str());
        let document = document.map_err(|said| {
            Error::from(Unloaded::Unusable { location: location.as_str(), why: why_unusable(&said) })
        })?;
        let (size, diagnostics) = (content.len() as u64, document.diagnostics);
        Ok(Self { size, diagnostics, ..Self::unlisted(skill, document.manifest)? })
    }
}

/// Why a skill or one of its files was not loaded.
#[derive(Debug, thiserror::Error)]
enum Unloaded<'s> {
    #[error("`{location}` cannot be used: {why}")]
    Unusable { location: &'s str, why: &'s str },
    #[error("invalid resource `{}`: it must be relative to the skill", shorten(.0))]
    NotRelative(&'s str),
    #[error("the skill `{skill}` has no file `{}`", shorten(.resource))]
    NoResource { skill: &'s str, resource: &'s str, location: &'s str },
    #[error("a skill needs its own path below `/skills`")]
    NoPath(&'s str),
}

impl From<Unloaded<'_>> for Error {
    fn from(why: Unloaded<'_>) -> Self {
        let (kind, path, hint) = match why {
            Unloaded::Unusable { location, .. } => (
                ErrorKind::InvalidSkill,
                location,
                "give it a frontmatter with a name and a description, and instructions below",
            ),
            Unloaded::NotRelative(resource) => {
                (ErrorKind::InvalidPath, resource, "write it as `references/guide.md`")
            }
            Unloaded::NoResource { location, .. } => (ErrorKind::NotFound, location, "list its resources"),
            Unloaded::NoPath(path) => (ErrorKind::InvalidPath, path, "name it as `category/skill`"),
        };
        Self::new(kind, why.to_string()).at(path).with_hint(hint)
    }
}
