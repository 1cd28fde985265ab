//! The input of a push: skills and files, the sources of their content, and options.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use crate::index::{BlobOrigin, Digest, ReleaseId};
use crate::manifest::{Severity, skill_file};
use crate::mount::Library;
use crate::options::setters;
use crate::path::SkillPath;
use crate::source::{FileContent, OriginKind, SkillFiles, Source, SourceFile};

/// A file to publish.
#[derive(Debug, Clone)]
pub struct NewFile {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) sha256: Digest,
    pub(crate) content: NewContent,
}

/// The source of a file's content.
#[derive(Debug, Clone)]
pub(crate) enum NewContent {
    Bytes(Bytes),
    /// A local file. It must still have the expected digest when it is read.
    Local(PathBuf),
    /// A blob of a release that the library lists.
    Blob(Arc<BlobOrigin>),
    /// The key of the library at the same path, with this ETag.
    Key(String),
}

impl NewFile {
    /// Creates a file from its path below the skill's directory, such as `references/clauses.md`, and its content.
    #[must_use]
    pub fn new(name: impl Into<String>, content: impl Into<Bytes>) -> Self {
        let content = content.into();
        let (size, sha256) = (content.len() as u64, Digest::of(&content));
        Self { name: name.into(), size, sha256, content: NewContent::Bytes(content) }
    }
}

/// A skill to publish.
#[derive(Debug, Clone)]
pub struct NewSkill {
    pub(crate) path: String,
    pub(crate) files: Vec<NewFile>,
    /// Why the skill is refused.
    pub(crate) refused: Option<String>,
}

impl NewSkill {
    /// Creates a skill from its path below `/skills`, such as `contracts/sale`, and all of its files, including
    /// `SKILL.md`.
    #[must_use]
    pub fn new(path: impl Into<String>, files: Vec<NewFile>) -> Self {
        Self { path: path.into(), files, refused: None }
    }

    /// Creates a skill that is not published. The plan lists it as [`Action::Refused`](super::Action::Refused), with
    /// this reason. An existing skill of the same path is kept.
    #[must_use]
    pub fn refused(path: impl Into<String>, why: impl Into<String>) -> Self {
        Self { path: path.into(), files: Vec::new(), refused: Some(why.into()) }
    }

    /// The path below `/skills`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The names and contents of the files that are in memory. Local files are not included.
    pub fn contents(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.files.iter().filter_map(|file| match &file.content {
            NewContent::Bytes(bytes) => Some((file.name.as_str(), bytes)),
            _ => None,
        })
    }

    /// The name of its `SKILL.md`, in the letter case that it has.
    pub(super) fn file(&self) -> Option<&str> {
        skill_file(self.files.iter().map(|file| file.name.as_str()))
    }
}

/// Skills to publish, and the descriptions of their categories.
///
/// Convert it from a [`Source`] or from imported skills with `NewLibrary::from`, or collect [`NewSkill`]s.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct NewLibrary {
    /// The skills to publish.
    pub skills: Vec<NewSkill>,
    /// Files outside of skills, by path below the library; `None` removes a file.
    pub(crate) files: BTreeMap<String, Option<NewFile>>,
    /// If set, `PushOptions::delete` deletes only these skills.
    pub(crate) only: Option<BTreeSet<String>>,
    /// Owns the local files, such as an unpacked archive.
    pub(crate) source: Option<KeptAlive>,
}

impl NewLibrary {
    /// Publishes nothing, and restricts deletion to these skills.
    pub(super) fn only_deleting(skills: impl IntoIterator<Item = String>) -> Self {
        Self { only: Some(skills.into_iter().collect()), ..Self::default() }
    }

    /// Keeps the owner of the local files alive: dropping it deletes an unpacked archive.
    pub(super) fn keep_files_of(mut self, source: impl Any + Send + Sync) -> Self {
        self.source = Some(KeptAlive(Arc::new(source)));
        self
    }

    /// Sets the `DESCRIPTION.md` of a category.
    pub fn describe(&mut self, category: &str, file: &SourceFile) {
        self.files.insert(format!("{category}/{DESCRIPTION}"), Some(NewFile::from(file)));
    }
}

impl FromIterator<NewSkill> for NewLibrary {
    fn from_iter<T: IntoIterator<Item = NewSkill>>(skills: T) -> Self {
        Self { skills: skills.into_iter().collect(), ..Self::default() }
    }
}

/// Publishes all skills of a source. A skill that cannot be loaded is refused. With
/// [`SourceOptions::strict`](crate::source::SourceOptions::strict), so is one that does not conform to the
/// specification.
impl From<Source> for NewLibrary {
    fn from(source: Source) -> Self {
        let skills = source.skills.iter().map(|skill| {
            let mut new = NewSkill::from(&skill.to_files());
            new.refused = match &skill.loaded {
                Err(said) => {
                    let worst = said.iter().find(|said| said.severity == Severity::Error).or(said.last());
                    Some(worst.map_or_else(|| "it cannot be loaded".to_owned(), ToString::to_string))
                }
                Ok(_) if source.strict && !skill.problems.is_empty() => Some(skill.problems.join("; ")),
                Ok(_) => None,
            };
            new
        });
        // Skills that cannot be published are refused rather than missing, so that `delete` keeps existing ones.
        let refused = source.skipped.iter().filter(|skipped| skipped.refused).map(|skipped| {
            let path = skipped.skill.as_ref().map_or(skipped.path.as_str(), SkillPath::as_str);
            NewSkill::refused(path, &skipped.reason)
        });
        let mut new = Self { skills: skills.chain(refused).collect(), ..Self::default() };
        // An archive's claim about its origin is not trusted.
        if source.origin.kind != OriginKind::Folder {
            for skill in &mut new.skills {
                skill.files.retain(|file| file.name != ".source");
            }
        }
        for category in &source.categories {
            new.describe(&category.path, &category.file);
        }
        new.keep_files_of(source)
    }
}

/// Keeps a value alive without using it.
#[derive(Clone)]
pub(crate) struct KeptAlive(
    #[expect(dead_code, reason = "held only for its destructor")] Arc<dyn Any + Send + Sync>,
);

impl fmt::Debug for KeptAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeptAlive")
    }
}

/// Options for planning and publishing a change.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PushOptions {
    /// Delete skills of the library that are not in the push. Default: false.
    pub delete: bool,
    /// Restrict `delete` to this category. Default: all categories.
    pub category: Option<String>,
    /// Replace keys that other tools have changed in the mirror, files that are in the way of a new skill, and damaged
    /// content. Default: false.
    pub overwrite: bool,
    /// The author to record in the release.
    pub by: String,
    /// The origin of the skills to record in the release, such as a folder or a URL.
    pub source: String,
    /// The kind of the library after the change. Default: unchanged, and published for an empty library.
    pub into: IntoKind,
    /// A library and a release with the same content. Large files are copied from its blobs on the server.
    pub(crate) copy_from: Option<(Library, ReleaseId)>,
}

impl PushOptions {
    setters! {
        delete: bool;
        category: some into String;
        overwrite: bool;
        by: into String;
        source: into String;
        into: IntoKind;
    }
}

/// The kind of a library after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum IntoKind {
    /// Keeps the kind. An empty library is published.
    #[default]
    Same,
    /// Publishes the library. The content of a plain library becomes part of the release.
    Published,
    /// Keeps the library plain. A published library is rejected: use
    /// [`unpublish`](super::LibraryAdmin::unpublish) first.
    Plain,
}

/// The name of the file that describes a category.
pub(super) const DESCRIPTION: &str = "DESCRIPTION.md";

impl From<&SourceFile> for NewFile {
    fn from(file: &SourceFile) -> Self {
        let content = match &file.content {
            FileContent::File(path) => NewContent::Local(path.clone()),
            FileContent::Bytes(bytes) => NewContent::Bytes(bytes.clone()),
        };
        Self { name: file.name.clone(), size: file.size, sha256: file.sha256, content }
    }
}

impl From<&SkillFiles> for NewSkill {
    fn from(skill: &SkillFiles) -> Self {
        Self::new(skill.path.as_str(), skill.files.iter().map(NewFile::from).collect())
    }
}
