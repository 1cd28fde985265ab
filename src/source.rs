//! Skills outside a bucket: read from folders, archives and git repositories; imported with their provenance;
//! exported for others. All of it is local and blocks: call it off the runtime.
//!
//! [`Source::open`] reads a place and says what is in it. [`import()`] decides what of that is published, and
//! writes down why. [`export()`] and [`write_folder`] go the other way; [`new_skill`] begins a skill.
//!
//! Nothing of a source is trusted: names, links, sizes and sums are checked before anything is made of them.
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

/// What is kept until nobody needs the files in it: the folder that an archive or a repository lies in.
#[cfg(feature = "import")]
type TempGuard = Arc<tempfile::TempDir>;
#[cfg(not(feature = "import"))]
type TempGuard = Arc<()>;

/// The category's description, beside its skills.
const DESCRIPTION_FILE: &str = "DESCRIPTION.md";
/// The index of the Agent Skills Discovery RFC, below the root of a site.
const DISCOVERY_INDEX: &str = ".well-known/agent-skills/index.json";

/// Skills that were found in one place.
///
/// The files of archives and repositories lie in a temporary folder, which goes when the last clone does.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Source {
    /// The skills, by path.
    pub skills: Vec<SourceSkill>,
    /// The categories that have a description, by path.
    pub categories: Vec<SourceCategory>,
    /// How the place is laid out.
    pub layout: Layout,
    /// Where it is.
    pub origin: Origin,
    /// What was left out, and why.
    pub skipped: Vec<Skipped>,
    pub(crate) strict: bool,
    #[cfg_attr(not(feature = "import"), expect(dead_code, reason = "only what is unpacked needs it"))]
    kept: Option<TempGuard>,
}

/// A skill of a source.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SourceSkill {
    /// Its path in a library: `category/skill` or `skill`. Every name in it is valid there.
    pub path: SkillPath,
    /// The folder it was found in.
    pub folder: PathBuf,
    /// All its files, by name, `SKILL.md` among them.
    pub files: Vec<SourceFile>,
    /// What loading it gives, or why that fails.
    pub loaded: Result<Document, Vec<Diagnostic>>,
    /// What the specification objects to, in the words of skills-ref; nothing when it is valid.
    pub problems: Vec<String>,
    /// What a registry says of it in `_meta.json`, where there is one.
    pub registry: Option<Registry>,
}

impl SourceSkill {
    /// Its path and its files, without the rest.
    #[must_use]
    pub fn to_files(&self) -> SkillFiles {
        SkillFiles { path: self.path.clone(), files: self.files.clone() }
    }
}

/// What ClawHub writes beside a skill.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Registry {
    /// Who published it.
    pub owner: Option<String>,
    /// What it is called there.
    pub slug: Option<String>,
    /// What it is called for people.
    pub display_name: Option<String>,
    /// Its latest version.
    pub version: Option<String>,
}

/// The files of one skill: what is published, exported and written.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SkillFiles {
    /// Its path in a library: `category/skill` or `skill`.
    pub path: SkillPath,
    /// Its files, by name.
    pub files: Vec<SourceFile>,
}

impl SkillFiles {
    /// A skill from files that come from elsewhere, a bucket for example.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidPath`] when the path or a file's name can never lie in a library;
    /// [`ErrorKind::InvalidInput`] when two files have one name, or one is a folder of another.
    pub fn new(path: impl Into<String>, mut files: Vec<SourceFile>) -> Result<Self> {
        let path = SkillPath::try_from(path.into())?;
        files.sort_by(|a, b| a.name.cmp(&b.name));
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidInput, message));
        let mut names = std::collections::BTreeSet::new();
        for file in &files {
            check_relative(&file.name).map_err(|error| error.during("take", &path))?;
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

    /// The last name of its path.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.name()
    }

    /// Its `SKILL.md`, however that is spelled.
    #[must_use]
    pub fn skill_file(&self) -> Option<&SourceFile> {
        skill_file(&self.files)
    }
}

/// A file of a skill, or of a category.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SourceFile {
    /// Its path below the skill, with `/` between names.
    pub name: String,
    /// Its size, in bytes.
    pub size: u64,
    /// The SHA-256 of its bytes.
    pub sha256: Digest,
    /// Where its bytes are.
    pub content: FileContent,
}

/// Where the bytes of a file are.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum FileContent {
    /// In a local file.
    File(PathBuf),
    /// In memory.
    Bytes(Bytes),
}

impl SourceFile {
    /// A file in memory.
    #[must_use]
    pub fn from_bytes(name: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        let sha256 = Digest::of(&bytes);
        Self { name: name.into(), size: bytes.len() as u64, sha256, content: FileContent::Bytes(bytes) }
    }

    /// All its bytes: the same that were there when the source was read.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when it has changed since; [`ErrorKind::NotFound`] or [`ErrorKind::Denied`]
    /// when it cannot be read.
    pub fn read(&self) -> Result<Bytes> {
        let path = match &self.content {
            FileContent::Bytes(bytes) => return Ok(bytes.clone()),
            FileContent::File(path) => path,
        };
        let mut bytes = Vec::new();
        // One byte more than there was tells that it has grown, without reading all of it.
        self.open()?.take(self.size + 1).read_to_end(&mut bytes).map_err(failed("read", path))?;
        if bytes.len() as u64 != self.size || Digest::of(&bytes) != self.sha256 {
            let message = format!("`{}` has changed since it was scanned", path.display());
            return Err(Error::new(ErrorKind::Conflict, message)
                .with_hint("open the source again")
                .lasting());
        }
        Ok(bytes.into())
    }

    /// Reads it from the start. What comes is not compared with the sum; [`SourceFile::read`] does that.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] or [`ErrorKind::Denied`] when it cannot be opened.
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
    /// Its path in a library.
    pub path: String,
    /// Its `DESCRIPTION.md`.
    pub file: SourceFile,
}

/// Where a source is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Origin {
    /// What kind of place it is.
    pub kind: OriginKind,
    /// The place as it was named, without passwords.
    pub location: String,
    /// The branch, tag or commit that was asked for.
    pub reference: Option<String>,
    /// The commit, where one is known.
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

/// What kind of place a source is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum OriginKind {
    /// A local folder.
    Folder,
    /// A `.zip`, `.skill`, `.tar.gz` or `.tgz`.
    Archive,
    /// A git repository.
    Git,
}

/// Something that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Skipped {
    /// What it is, below the source.
    pub path: String,
    /// Why it was left out.
    pub reason: String,
    /// Whether a whole skill was refused for it.
    pub refused: bool,
    /// The path that the skill would have in a library, where it could have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skill: Option<SkillPath>,
}

impl Skipped {
    fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { path: path.into(), reason: reason.into(), refused: false, skill: None }
    }
}

/// How a source is read.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct SourceOptions {
    /// How it is laid out. Default: told from what is in it.
    pub layout: Option<Layout>,
    /// A category that all paths start with. Default: none.
    pub category: Option<String>,
    /// How much is read.
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

/// How much of a source is read; more is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Files and folders. Default 50,000.
    pub max_entries: usize,
    /// Folders inside each other. Default 32.
    pub max_depth: usize,
    /// Bytes of one file. Default 512 MiB.
    pub max_file_bytes: u64,
    /// Bytes of all that is unpacked from an archive. Default 512 MiB.
    pub max_unpacked_bytes: u64,
    /// How many times the size of an archive may be unpacked from it. Default 100.
    /// What is smaller than 1 MiB in the end is not measured.
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
    /// Opens a place by what it is called: a folder, a `.zip`, `.skill`, `.tar.gz` or `.tgz`, or the URL of a
    /// git repository (`https://`, `ssh://`, `file://`, `git@host:path`, or a path that ends in `.git`), with
    /// `#` and a branch, tag or commit behind it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when nothing is there; [`ErrorKind::InvalidInput`] when it is nothing that can
    /// be read, or when an archive is hostile; [`ErrorKind::TooLarge`] when it is larger than the limits;
    /// [`ErrorKind::Corrupt`] when an archive is broken or a sum does not match;
    /// [`ErrorKind::Unavailable`] when a repository cannot be reached.
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

    /// Reads a local folder: a skill, or a tree of them.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub fn folder(folder: &Path, options: &SourceOptions) -> Result<Self> {
        let origin = Origin::new(OriginKind::Folder, folder.display().to_string());
        Self::read(folder, None, origin, None, options)
    }

    /// Reads an archive. It is unpacked into a temporary folder, or refused as a whole.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub fn archive(file: &Path, options: &SourceOptions) -> Result<Self> {
        #[cfg(feature = "import")]
        return archive::open(file, options);
        #[cfg(not(feature = "import"))]
        {
            let _ = options;
            Err(place::not_built(&file.display().to_string()))
        }
    }

    /// Reads what lies in a folder by now. `name` is what a skill at its root is called, when that is not the
    /// folder's own name.
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

    /// A skill is refused: what it is below the source, and the path that it would have in a library.
    fn refuse(&mut self, path: impl Into<String>, skill: &str, reason: impl Into<String>) {
        let skill = SkillPath::exact(skill);
        self.skipped.push(Skipped { refused: true, skill, ..Skipped::new(path, reason) });
    }
}

/// The file that makes it a skill.
fn skill_file(files: &[SourceFile]) -> Option<&SourceFile> {
    let rank = |file: &&SourceFile| skill_file_rank(&file.name).is_some();
    files.iter().filter(rank).min_by_key(|file| skill_file_rank(&file.name))
}

/// The one place where failures of local files become errors.
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
