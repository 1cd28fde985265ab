//! What is to be put into a library, and how: skills and files, where their content is, and options.

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

/// A file to be published.
#[derive(Debug, Clone)]
pub struct NewFile {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) sha256: Digest,
    pub(crate) content: NewContent,
}

/// Where its content is.
#[derive(Debug, Clone)]
pub(crate) enum NewContent {
    Bytes(Bytes),
    /// In a local file, which must still have the digest when it is read.
    Local(PathBuf),
    /// In a blob of a release that the library lists.
    Blob(Arc<BlobOrigin>),
    /// In the library's own key, in this version.
    Key(String),
}

impl NewFile {
    /// A file of a skill, by its path below the skill's directory, and its content.
    #[must_use]
    pub fn new(name: impl Into<String>, content: impl Into<Bytes>) -> Self {
        let content = content.into();
        let (size, sha256) = (content.len() as u64, Digest::of(&content));
        Self { name: name.into(), size, sha256, content: NewContent::Bytes(content) }
    }
}

/// A skill to be published.
#[derive(Debug, Clone)]
pub struct NewSkill {
    pub(crate) path: String,
    pub(crate) files: Vec<NewFile>,
    /// Why it must not be published.
    pub(crate) refused: Option<String>,
}

impl NewSkill {
    /// A skill by its path below `/skills`, such as `escrituras/compraventa`, with all its files.
    #[must_use]
    pub fn new(path: impl Into<String>, files: Vec<NewFile>) -> Self {
        Self { path: path.into(), files, refused: None }
    }

    /// A skill that is not published, and why: the plan says so.
    #[must_use]
    pub fn refused(path: impl Into<String>, why: impl Into<String>) -> Self {
        Self { path: path.into(), files: Vec::new(), refused: Some(why.into()) }
    }

    /// Its path below `/skills`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its files that are held in memory: their names and contents.
    pub fn contents(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.files.iter().filter_map(|file| match &file.content {
            NewContent::Bytes(bytes) => Some((file.name.as_str(), bytes)),
            _ => None,
        })
    }

    /// The name of its `SKILL.md`, in its own letter case.
    pub(super) fn file(&self) -> Option<&str> {
        skill_file(self.files.iter().map(|file| file.name.as_str()))
    }
}

/// Skills to be published, and the descriptions of their categories.
///
/// Made from a [`Source`] (`NewLibrary::from`), from imported skills, or from [`NewSkill`]s (`collect`).
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct NewLibrary {
    /// The skills.
    pub skills: Vec<NewSkill>,
    /// Other files, by their path below the library; `None` removes one.
    pub(crate) files: BTreeMap<String, Option<NewFile>>,
    /// Only these skills of the library may be deleted.
    pub(crate) only: Option<BTreeSet<String>>,
    /// Where local files are, for as long as they are needed.
    pub(crate) source: Option<KeptAlive>,
}

impl NewLibrary {
    /// Publishes nothing; of the existing skills, only these may be deleted.
    pub(super) fn only_deleting(skills: impl IntoIterator<Item = String>) -> Self {
        Self { only: Some(skills.into_iter().collect()), ..Self::default() }
    }

    /// Keeps alive what the local files belong to: an unpacked archive is deleted with it.
    pub(super) fn keep_files_of(mut self, source: impl Any + Send + Sync) -> Self {
        self.source = Some(KeptAlive(Arc::new(source)));
        self
    }

    /// Adds the `DESCRIPTION.md` of a category.
    pub fn describe(&mut self, category: &str, file: &SourceFile) {
        self.files.insert(format!("{category}/{DESCRIPTION}"), Some(NewFile::from(file)));
    }
}

impl FromIterator<NewSkill> for NewLibrary {
    fn from_iter<T: IntoIterator<Item = NewSkill>>(skills: T) -> Self {
        Self { skills: skills.into_iter().collect(), ..Self::default() }
    }
}

/// All skills of a source. A skill that cannot be loaded is refused; with
/// [`SourceOptions::strict`](crate::source::SourceOptions::strict), one that does not conform to the specification, too.
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
        // What the source has and cannot be published is refused, and not taken for missing.
        let refused = source.skipped.iter().filter(|skipped| skipped.refused).map(|skipped| {
            let path = skipped.skill.as_ref().map_or(skipped.path.as_str(), SkillPath::as_str);
            NewSkill::refused(path, &skipped.reason)
        });
        let mut new = Self { skills: skills.chain(refused).collect(), ..Self::default() };
        // What an archive says of its own origin proves nothing.
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

/// Something that is only held.
#[derive(Clone)]
pub(crate) struct KeptAlive(#[expect(dead_code, reason = "it is held, not read")] Arc<dyn Any + Send + Sync>);

impl fmt::Debug for KeptAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeptAlive")
    }
}

/// How to publish.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PushOptions {
    /// Deletes skills of the library that are not among those that are published.
    pub delete: bool,
    /// Only skills of this category are deleted.
    pub category: Option<String>,
    /// Replaces what others have changed in the mirror, and files that belong to no skill.
    pub overwrite: bool,
    /// Who publishes; the release says so.
    pub by: String,
    /// Where it comes from; the release says so.
    pub source: String,
    /// Whether the library is to be published or plain afterwards.
    pub into: IntoKind,
    /// A library that the same was just published to, and the release: large files are copied from there, on the
    /// server.
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

/// What kind of library a push leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum IntoKind {
    /// The kind that it has. An empty library is published.
    #[default]
    Same,
    /// A published one. What a plain library contains is part of its first release.
    Published,
    /// A plain one. Only a library that is not published can stay so.
    Plain,
}

/// The description of a category.
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
