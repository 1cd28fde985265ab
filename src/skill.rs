//! The skill library: which skills a session has, their instructions, and their other files.
//!
//! Skills are disclosed in three tiers: the catalog (names and descriptions), the instructions
//! (`SKILL.md`), and the resources (all other files, listed without being read).

mod catalog;
mod discover;
mod heads;
mod library;
mod load;
mod local;

use serde::Serialize;

pub use self::catalog::{AvailableSkill, available_skills};
pub(crate) use self::heads::{FIRST_BYTES, MOST_BYTES, head_of};
pub use self::library::{Dependencies, SkillLibrary, Unknown};
pub use self::load::{LoadedSkill, PromptText, SkillPaths};
pub(crate) use self::local::judge;
pub use self::local::{LocalSkill, check_folder};
use crate::id::LibraryId;
use crate::manifest::{Diagnostic, Manifest};
use crate::path::{SkillPath, VirtualPath};

/// A skill of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Skill {
    /// Its path below `/skills`, such as `category/skill`. Categories may be nested, and a skill
    /// may have none.
    pub path: SkillPath,
    /// The path of its `SKILL.md`.
    pub location: VirtualPath,
    /// The shared library that it comes from. `None` for the user library.
    pub library: Option<LibraryId>,
    /// The manifest from its frontmatter.
    pub manifest: Manifest,
    /// The size of its `SKILL.md`, in bytes.
    pub size: u64,
    /// An opaque token that changes when its `SKILL.md` changes.
    pub etag: Option<String>,
    /// Its other files, sorted by path.
    pub resources: Vec<Resource>,
    /// Problems that were found while loading it.
    pub diagnostics: Vec<Diagnostic>,
}

impl Skill {
    /// Creates a skill from its manifest alone, without a listing.
    pub(crate) fn unlisted(path: SkillPath, manifest: Manifest) -> crate::Result<Self> {
        Ok(Self {
            location: path.join("SKILL.md")?,
            path,
            library: None,
            manifest,
            size: 0,
            etag: None,
            resources: Vec::new(),
            diagnostics: Vec::new(),
        })
    }

    /// Returns the path of its directory.
    #[must_use]
    pub fn directory(&self) -> VirtualPath {
        self.location.parent().unwrap_or_else(VirtualPath::root)
    }

    /// Returns the part of its path before the last name. Empty without a category.
    #[must_use]
    pub fn category(&self) -> &str {
        self.path.category()
    }

    /// Returns the last name of its path.
    #[must_use]
    pub fn leaf(&self) -> &str {
        self.path.name()
    }
}

/// A file of a skill other than its `SKILL.md`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Resource {
    /// Its path, relative to the skill's directory.
    pub path: String,
    /// Its purpose, derived from its path.
    pub kind: ResourceKind,
    /// Its size, in bytes.
    pub size: u64,
}

/// The purpose of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ResourceKind {
    /// Further text next to `SKILL.md`.
    Disclosure,
    /// A file in `references/` or `reference/`.
    Reference,
    /// A file in `scripts/`.
    Script,
    /// A file in `assets/`.
    Asset,
    /// A file in `resources/`.
    Resource,
    /// Any other file.
    Other,
}

impl ResourceKind {
    /// Classifies a resource by its path, relative to the skill's directory.
    #[must_use]
    pub fn of(path: &str) -> Self {
        match path.split_once('/') {
            Some(("references" | "reference", _)) => Self::Reference,
            Some(("scripts", _)) => Self::Script,
            Some(("assets", _)) => Self::Asset,
            Some(("resources", _)) => Self::Resource,
            None if path.rsplit_once('.').is_some_and(|(_, end)| matches!(end, "md" | "txt")) => {
                Self::Disclosure
            }
            _ => Self::Other,
        }
    }

    /// Returns the name of the kind, as in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disclosure => "disclosure",
            Self::Reference => "reference",
            Self::Script => "script",
            Self::Asset => "asset",
            Self::Resource => "resource",
            Self::Other => "other",
        }
    }
}

/// A directory that contains skills.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Category {
    /// Its path below `/skills`.
    pub path: String,
    /// The description from its `DESCRIPTION.md`.
    pub description: Option<String>,
}

/// The output format of a catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CatalogFormat {
    /// Markdown, grouped by category, with one line per skill.
    Markdown,
    /// XML as the reference library skills-ref writes it, with tags and content on separate lines.
    Xml,
    /// The same XML, with each element on one line.
    XmlOneLine,
    /// One JSON document.
    Json,
}

/// A catalog that fits into a budget, and what was omitted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Budgeted {
    /// The catalog. Never has more characters than the budget.
    pub text: String,
    /// Whether descriptions were shortened or omitted.
    pub shortened: bool,
    /// The number of skills that were omitted, from the end.
    pub left_out: usize,
}
