//! Skills outside of a bucket. Reads them from folders, archives and git repositories, imports them with
//! their provenance, and exports them. Everything here is local and blocking; do not call it on an async
//! runtime.
//!
//! [`Source::open`] reads a source and lists its skills. [`import()`] decides which of them are published and
//! records why. [`export()`] and [`write_folder`] go the other way. [`new_skill`] creates a skill from a
//! template.
//!
//! Sources are not trusted: names, links, sizes and checksums are checked before anything is done with them.
//!
//! ```
//! # fn main() -> skillfs::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! use skillfs::source::{Source, SourceOptions, new_skill};
//!
//! new_skill("deed-of-sale", "Drafts deeds of sale.", folder.path())?;
//! let source = Source::folder(folder.path(), &SourceOptions::default())?;
//! assert_eq!(source.skills[0].path, "deed-of-sale");
//! assert!(source.skills[0].problems.is_empty());
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "import")]
mod archive;
#[cfg(feature = "import")]
mod discovery;
#[cfg(feature = "import")]
mod export;
#[cfg(feature = "import")]
mod git;
#[cfg(feature = "import")]
mod import;
mod init;
mod layout;
mod place;
#[cfg(feature = "import")]
mod provenance;
mod scan;
#[cfg(feature = "import")]
mod tools;
mod write;

use std::fmt;
use std::fs::File;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

#[cfg(feature = "import")]
pub use self::archive::Format;
#[cfg(feature = "import")]
pub use self::export::{Exported, ExportedSkill, export, export_file};
#[cfg(feature = "import")]
pub use self::import::{
    Confirm, DANGEROUS_CAPABILITIES, ImportOptions, Imported, ImportedSkill, RefusedSkill, import,
};
pub use self::init::new_skill;
pub use self::layout::Layout;
#[cfg(feature = "import")]
pub use self::provenance::{PROVENANCE_FILE, Provenance, TrustTier};
#[cfg(feature = "import")]
pub use self::tools::TOOL_NAMES;
pub use self::write::{Existing, FolderWritten, write_folder};
use crate::error::{Error, ErrorKind, Result};
use crate::index::Digest;
use crate::manifest::{Diagnostic, Document, skill_file_rank};
use crate::options::setters;
use crate::path::{SkillPath, check_relative, parents};

/// Keeps the temporary folder of an unpacked archive or a cloned repository alive.
#[cfg(feature = "import")]
type TempGuard = Arc<tempfile::TempDir>;
#[cfg(not(feature = "import"))]
type TempGuard = Arc<()>;

/// The file next to a category's skills that describes the category.
const DESCRIPTION_FILE: &str = "DESCRIPTION.md";
/// The index of the Agent Skills Discovery RFC, relative to the root of a site.
const DISCOVERY_INDEX: &str = ".well-known/agent-skills/index.json";

/// The skills found in a folder, archive or repository.
///
/// Files of archives and repositories are in a temporary folder, which is deleted when the last clone is
/// dropped.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Source {
    /// The skills, sorted by path.
    pub skills: Vec<SourceSkill>,
    /// The categories that have a description, sorted by path.
    pub categories: Vec<SourceCategory>,
    /// The layout of the source.
    pub layout: Layout,
    /// The location of the source.
    pub origin: Origin,
    /// What was ignored or refused, and why.
    pub skipped: Vec<Skipped>,
    pub(crate) strict: bool,
    #[cfg_attr(not(feature = "import"), expect(dead_code, reason = "only what is unpacked needs it"))]
    kept: Option<TempGuard>,
}

/// A skill in a source.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SourceSkill {
    /// The skill's path in a library: `category/skill` or `skill`. Every name in it is valid in a library.
    pub path: SkillPath,
    /// The folder that contains the skill.
    pub folder: PathBuf,
    /// All files of the skill, including `SKILL.md`, sorted by name.
    pub files: Vec<SourceFile>,
    /// The parsed `SKILL.md`, or the reasons that it cannot be used.
    pub loaded: Result<Document, Vec<Diagnostic>>,
    /// Violations of the specification, in the wording of skills-ref; empty if the skill is valid.
    pub problems: Vec<String>,
    /// Metadata that a registry stored in `_meta.json`, if there is any.
    pub registry: Option<Registry>,
}

impl SourceSkill {
    /// Returns only the path and the files.
    #[must_use]
    pub fn to_files(&self) -> SkillFiles {
        SkillFiles { path: self.path.clone(), files: self.files.clone() }
    }
}

/// The metadata that ClawHub stores in `_meta.json` next to a skill.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Registry {
    /// The publisher.
    pub owner: Option<String>,
    /// The identifier in the registry.
    pub slug: Option<String>,
    /// The display name.
    pub display_name: Option<String>,
    /// The latest version.
    pub version: Option<String>,
}

/// A skill's path and files, as they are published, exported or written.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SkillFiles {
    /// The skill's path in a library: `category/skill` or `skill`.
    pub path: SkillPath,
    /// The skill's files, sorted by name.
    pub files: Vec<SourceFile>,
}

impl SkillFiles {
    /// Creates a skill from files that come from elsewhere, for example from a bucket.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidPath`] if the path or a file name is not valid in a library;
    /// [`ErrorKind::InvalidInput`] if two files have the same name, or a file has the name of another file's
    /// folder.
    pub fn new(path: impl Into<String>, mut files: Vec<SourceFile>) -> Result<Self> {
        let path = SkillPath::try_from(path.into())?;
        files.sort_by(|a, b| a.name.cmp(&b.name));
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidInput, message));
        let mut names = std::collections::BTreeSet::new();
        for file in &files {
            check_relative(&file.name).map_err(|error| error.during("add", &path))?;
            if !names.insert(file.name.as_str()) {
                return invalid(format!("the skill `{path}` has two files called `{}`", file.name));
            }
        }
        for name in &names {
            if let Some(parent) = parents(name).find(|parent| names.contains(parent)) {
                return invalid(format!(
                    "in the skill `{path}`, `{parent}` is a file and the folder of `{name}`"
                ));
            }
        }
        Ok(Self { path, files })
    }

    /// The last segment of the path.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.name()
    }

    /// The skill's `SKILL.md`, in any letter case.
    #[must_use]
    pub fn skill_file(&self) -> Option<&SourceFile> {
        skill_file(&self.files)
    }
}

/// A file of a skill or a category.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SourceFile {
    /// The path relative to the skill's folder, separated by `/`.
    pub name: String,
    /// The size in bytes.
    pub size: u64,
    /// The SHA-256 of the content.
    pub sha256: Digest,
    /// Where the content is.
    pub content: FileContent,
}

/// Where the content of a file is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum FileContent {
    /// In a local file.
    File(PathBuf),
    /// In memory.
    Bytes(Bytes),
}

impl SourceFile {
    /// Creates a file in memory.
    #[must_use]
    pub fn from_bytes(name: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        let sha256 = Digest::of(&bytes);
        Self { name: name.into(), size: bytes.len() as u64, sha256, content: FileContent::Bytes(bytes) }
    }

    /// Reads the complete file and checks that it has not changed since the source was read.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if the file has changed; [`ErrorKind::NotFound`] or [`ErrorKind::Denied`] if
    /// it cannot be read.
    pub fn read(&self) -> Result<Bytes> {
        let path = match &self.content {
            FileContent::Bytes(bytes) => return Ok(bytes.clone()),
            FileContent::File(path) => path,
        };
        let mut bytes = Vec::new();
        // One extra byte is enough to detect that the file has grown.
        self.open()?.take(self.size + 1).read_to_end(&mut bytes).map_err(failed("read", path))?;
        if bytes.len() as u64 != self.size || Digest::of(&bytes) != self.sha256 {
            let message = format!("`{}` has changed since it was scanned", path.display());
            return Err(Error::new(ErrorKind::Conflict, message)
                .with_hint("open the source again")
                .lasting());
        }
        Ok(bytes.into())
    }

    /// Opens the file for reading. Unlike [`SourceFile::read`], this does not verify the checksum.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] or [`ErrorKind::Denied`] if the file cannot be opened.
    pub fn open(&self) -> Result<Box<dyn Read + Send>> {
        match &self.content {
            FileContent::Bytes(bytes) => Ok(Box::new(Cursor::new(bytes.clone()))),
            FileContent::File(path) => {
                File::open(path).map(|file| Box::new(file) as _).map_err(failed("open", path))
            }
        }
    }
}

/// A category that has a description.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SourceCategory {
    /// The category's path in a library.
    pub path: String,
    /// The category's `DESCRIPTION.md`.
    pub file: SourceFile,
}

/// The location of a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Origin {
    /// The kind of source.
    pub kind: OriginKind,
    /// The location as the caller wrote it, without passwords.
    pub location: String,
    /// The requested branch, tag or commit.
    pub reference: Option<String>,
    /// The commit, if it is known.
    pub commit: Option<String>,
}

/// The location, and the commit where one is known.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.location)?;
        self.commit.iter().try_for_each(|commit| write!(f, " at {commit}"))
    }
}

impl Origin {
    fn new(kind: OriginKind, location: String) -> Self {
        Self { kind, location, reference: None, commit: None }
    }
}

/// The kind of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum OriginKind {
    /// A local folder.
    Folder,
    /// A `.zip`, `.skill`, `.tar.gz` or `.tgz` file.
    Archive,
    /// A git repository.
    Git,
}

/// A file, folder or skill that was not read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Skipped {
    /// The path relative to the source.
    pub path: String,
    /// Why it was not read.
    pub reason: String,
    /// Whether an entire skill was refused because of it.
    pub refused: bool,
    /// The path that the skill would have in a library, if that is a valid path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skill: Option<SkillPath>,
}

impl Skipped {
    fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { path: path.into(), reason: reason.into(), refused: false, skill: None }
    }
}

/// Options for reading a source.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct SourceOptions {
    /// The layout. Default: detected from the content.
    pub layout: Option<Layout>,
    /// A category to put all skills into. Default: none.
    pub category: Option<String>,
    /// Limits on the size of the source.
    pub limits: Limits,
    /// Whether publishing refuses skills that do not conform to the specification, and not only those that cannot be
    /// loaded. Default false.
    pub strict: bool,
}

impl SourceOptions {
    setters! {
        layout: some Layout;
        category: some into String;
        limits: Limits;
        strict: bool;
    }
}

/// Limits on the size of a source. A source that exceeds one is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The number of files and folders. Default 50,000.
    pub max_entries: usize,
    /// The nesting depth of folders. Default 32.
    pub max_depth: usize,
    /// The size of one file in bytes. Default 512 MiB.
    pub max_file_bytes: u64,
    /// The total size of the files in an archive, in bytes. Default 512 MiB.
    pub max_unpacked_bytes: u64,
    /// The maximum compression ratio of an archive. Default 100. Not enforced if the files have less than 1
    /// MiB in total.
    pub max_ratio: u64,
}

impl Limits {
    setters! {
        max_entries: usize;
        max_depth: usize;
        max_file_bytes: u64;
        max_unpacked_bytes: u64;
        max_ratio: u64;
    }
}

impl Default for Limits {
    fn default() -> Self {
        const BYTES: u64 = 512 * 1024 * 1024;
        Self {
            max_entries: 50_000,
            max_depth: 32,
            max_file_bytes: BYTES,
            max_unpacked_bytes: BYTES,
            max_ratio: 100,
        }
    }
}

impl Source {
    /// Opens a source by its name: a folder, a `.zip`, `.skill`, `.tar.gz` or `.tgz` file, or the URL of a
    /// git repository (`https://`, `ssh://`, `file://`, `git@host:path`, or a path that ends in `.git`),
    /// optionally followed by `#` and a branch, tag or commit.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it does not exist; [`ErrorKind::InvalidInput`] if it is not a readable
    /// source, or an archive contains forbidden entries; [`ErrorKind::TooLarge`] if it exceeds the limits;
    /// [`ErrorKind::Corrupt`] if an archive is damaged or a checksum does not match;
    /// [`ErrorKind::Unavailable`] if a repository is unreachable.
    pub fn open(place: &str, options: &SourceOptions) -> Result<Self> {
        match place::Place::parse(place)? {
            #[cfg(feature = "import")]
            place::Place::Git { url, reference } => git::open(&url, reference.as_deref(), options),
            #[cfg(not(feature = "import"))]
            place::Place::Git { url, .. } => Err(place::not_built(&url)),
            place::Place::Local(path) if path.is_file() => Self::archive(&path, options),
            place::Place::Local(path) => Self::folder(&path, options),
        }
    }

    /// Reads a local folder that is a skill or a tree of skills.
    ///
    /// # Errors
    /// The same as [`Source::open`].
    pub fn folder(folder: &Path, options: &SourceOptions) -> Result<Self> {
        let origin = Origin::new(OriginKind::Folder, folder.display().to_string());
        Self::read(folder, None, origin, None, options)
    }

    /// Reads an archive. It is unpacked into a temporary folder, or refused entirely.
    ///
    /// # Errors
    /// The same as [`Source::open`].
    pub fn archive(file: &Path, options: &SourceOptions) -> Result<Self> {
        #[cfg(feature = "import")]
        return archive::open(file, options);
        #[cfg(not(feature = "import"))]
        {
            let _ = options;
            Err(place::not_built(&file.display().to_string()))
        }
    }

    /// Reads a local folder. `name` is the name of a skill at the root of the source, if it differs from the
    /// folder name.
    fn read(
        folder: &Path,
        name: Option<&str>,
        origin: Origin,
        kept: Option<TempGuard>,
        options: &SourceOptions,
    ) -> Result<Self> {
        let mut source = Self {
            skills: Vec::new(),
            categories: Vec::new(),
            layout: Layout::Folder,
            origin,
            skipped: Vec::new(),
            strict: options.strict,
            kept,
        };
        layout::read(&mut source, folder, name, options)?;
        source.skills.sort_by(|a, b| a.path.cmp(&b.path));
        source.categories.sort_by(|a, b| a.path.cmp(&b.path));
        source.skipped.sort_by(|a, b| a.path.cmp(&b.path).then_with(|| a.reason.cmp(&b.reason)));
        Ok(source)
    }

    /// Records a refused skill: its path in the source, and the path that it would have in a library.
    fn refuse(&mut self, path: impl Into<String>, skill: &str, reason: impl Into<String>) {
        let skill = SkillPath::exact(skill);
        self.skipped.push(Skipped { refused: true, skill, ..Skipped::new(path, reason) });
    }
}

/// Returns the file that makes the folder a skill.
fn skill_file(files: &[SourceFile]) -> Option<&SourceFile> {
    let rank = |file: &&SourceFile| skill_file_rank(&file.name).is_some();
    files.iter().filter(rank).min_by_key(|file| skill_file_rank(&file.name))
}

/// Maps an I/O error on a local file to an [`Error`].
fn failed(verb: &str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |error| {
        let (kind, hint) = match error.kind() {
            std::io::ErrorKind::NotFound => (ErrorKind::NotFound, "check the path"),
            std::io::ErrorKind::PermissionDenied => (ErrorKind::Denied, "check its permissions"),
            std::io::ErrorKind::AlreadyExists => {
                (ErrorKind::AlreadyExists, "choose another name, or remove the existing file")
            }
            _ => (ErrorKind::Unavailable, "check the disk, then try again"),
        };
        Error::new(kind, format!("cannot {verb} `{}`: {error}", path.display()))
            .with_hint(hint)
            .with_source(error)
    }
}
