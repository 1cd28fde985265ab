//! The skill library: which skills a session has, what they say, and what else is in them.
//!
//! Three tiers: the catalogue (names and descriptions), the instructions (`SKILL.md`), the resources
//! (everything else, listed without being read).

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
    /// Its path below `/skills`: `category/skill`; categories may nest, and there may be none.
    pub path: SkillPath,
    /// Its `SKILL.md`.
    pub location: VirtualPath,
    /// The shared library it comes from; `None` for the user's own.
    pub library: Option<LibraryId>,
    /// What it says of itself.
    pub manifest: Manifest,
    /// The size of its `SKILL.md`, in bytes.
    pub size: u64,
    /// Changes when its `SKILL.md` does.
    pub etag: Option<String>,
    /// Its other files, sorted by path.
    pub resources: Vec<Resource>,
    /// What was odd about it.
    pub diagnostics: Vec<Diagnostic>,
}

impl Skill {
    /// A skill of which no more is known than what it says of itself.
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

    /// The path of its directory.
    #[must_use]
    pub fn directory(&self) -> VirtualPath {
        self.location.parent().unwrap_or_else(VirtualPath::root)
    }

    /// What stands before its own name; empty without a category.
    #[must_use]
    pub fn category(&self) -> &str {
        self.path.category()
    }

    /// The last part of its path.
    #[must_use]
    pub fn leaf(&self) -> &str {
        self.path.name()
    }
}

/// A file of a skill that is not its `SKILL.md`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Resource {
    /// Its path below the skill's directory.
    pub path: String,
    /// What it is for, by where it lies.
    pub kind: ResourceKind,
    /// Bytes.
    pub size: u64,
}

/// What a resource is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ResourceKind {
    /// Text beside `SKILL.md`, to read on.
    Disclosure,
    /// In `references/` or `reference/`.
    Reference,
    /// In `scripts/`.
    Script,
    /// In `assets/`.
    Asset,
    /// In `resources/`.
    Resource,
    /// Anything else.
    Other,
}

impl ResourceKind {
    /// By the path below the skill's directory.
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

    /// As it is printed.
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

/// A directory that holds skills.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Category {
    /// Its path below `/skills`.
    pub path: String,
    /// From its `DESCRIPTION.md`.
    pub description: Option<String>,
}

/// How a catalogue is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CatalogFormat {
    /// By category, one line a skill.
    Markdown,
    /// As the reference library skills-ref writes it: every element on lines of its own.
    Xml,
    /// The same elements, each on one line.
    XmlOneLine,
    /// One JSON document.
    Json,
}

/// A catalogue that fits, and what that cost.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Budgeted {
    /// The catalogue. It never has more characters than the budget.
    pub text: String,
    /// Whether descriptions were shortened or dropped.
    pub shortened: bool,
    /// How many skills were left out, from the end.
    pub left_out: usize,
}
