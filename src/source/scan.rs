//! Walks local folders: where skills are, which files they have, and what these say of them.

use std::collections::BTreeSet;
use std::fs::{File, FileType};
use std::io::Read;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use sha2::Digest as _;

use super::{
    DESCRIPTION_FILE, FileContent, Limits, Registry, Skipped, SourceFile, SourceSkill, failed, skill_file,
};
use crate::error::{Error, ErrorKind, Result, shorten};
use crate::index::Digest;
use crate::manifest::skill_file_rank;
use crate::path::{SkillPath, check_relative};
use crate::skill::judge;

/// What belongs to tools, not to skills.
pub(super) const NEVER: [&str; 4] = ["node_modules", "__pycache__", "__MACOSX", ".DS_Store"];

/// A longer `SKILL.md` is no text for a model, and a longer `_meta.json` says nothing more.
const MAX_TEXT_BYTES: u64 = 10 * 1024 * 1024;

/// A folder with a `SKILL.md`.
#[derive(Debug)]
pub(super) struct SkillFolder {
    /// Its path below where the walk began; empty there.
    pub(super) path: String,
    pub(super) folder: PathBuf,
    /// A name on the way that no library can hold.
    pub(super) bad_name: Option<String>,
}

/// One walk through a source.
#[derive(Debug)]
pub(super) struct Scan {
    /// What no link may lead out of; without links itself.
    root: PathBuf,
    limits: Limits,
    entries: usize,
    pub(super) found: Vec<SkillFolder>,
    /// Folders with a description, as they were found: path and file.
    pub(super) descriptions: Vec<(String, PathBuf)>,
    pub(super) skipped: Vec<Skipped>,
}

/// An entry of a folder.
struct FolderItem {
    name: String,
    /// Why a library cannot hold this name.
    bad_name: Option<String>,
    path: PathBuf,
    /// What it is itself: of a link, that it is one.
    kind: FileType,
}

impl Scan {
    pub(super) fn new(root: &Path, limits: Limits) -> Self {
        Self {
            root: root.to_owned(),
            limits,
            entries: 0,
            found: Vec::new(),
            descriptions: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// Finds the skills below a folder. What lies in a skill belongs to it.
    pub(super) fn find(&mut self, folder: &Path) -> Result<()> {
        self.descend(folder, "", 0, None)
    }

    fn descend(&mut self, folder: &Path, path: &str, depth: usize, bad_name: Option<String>) -> Result<()> {
        let items = match self.list(folder) {
            Ok(items) => items,
            // The start must be readable; of the rest it is said.
            Err(error) if depth == 0 || error.kind() == ErrorKind::TooLarge => return Err(error),
            Err(error) => {
                self.skip(path, error.message());
                return Ok(());
            }
        };
        let is_skill = |item: &FolderItem| {
            skill_file_rank(&item.name).is_some() && !item.kind.is_dir() && item.path.is_file()
        };
        if items.iter().any(is_skill) {
            self.found.push(SkillFolder { path: path.to_owned(), folder: folder.to_owned(), bad_name });
            return Ok(());
        }
        for item in items {
            let below = join(path, &item.name);
            if item.kind.is_file() && item.name == DESCRIPTION_FILE {
                self.descriptions.push((path.to_owned(), item.path));
            } else if item.kind.is_symlink() && item.path.is_dir() {
                self.skip(&below, "it is a link to a folder, which is not followed");
            } else if item.kind.is_dir() && !is_skipped_folder(&item.name) {
                if depth >= self.limits.max_depth {
                    self.skip(&below, format!("folders are read at most {} deep", self.limits.max_depth));
                    continue;
                }
                let bad_name = bad_name.clone().or(item.bad_name);
                self.descend(&item.path, &below, depth + 1, bad_name)?;
            }
        }
        Ok(())
    }

    /// All files of a skill, by name; or why the skill is refused.
    ///
    /// # Errors
    /// When the source as a whole has too many entries.
    pub(super) fn collect(&mut self, skill: &SkillFolder) -> Result<Result<Vec<SourceFile>, String>> {
        let mut files = Vec::new();
        let refused = self.collect_below(&skill.folder, &skill.path, "", 0, &mut files)?;
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(refused.map_or(Ok(files), Err))
    }

    /// Gives back why the skill is refused.
    fn collect_below(
        &mut self,
        folder: &Path,
        skill: &str,
        below: &str,
        depth: usize,
        files: &mut Vec<SourceFile>,
    ) -> Result<Option<String>> {
        let items = match self.list(folder) {
            Ok(items) => items,
            Err(error) if error.kind() == ErrorKind::TooLarge => return Err(error),
            Err(error) => return Ok(Some(error.message().to_owned())),
        };
        for item in items {
            let name = join(below, &item.name);
            if NEVER.contains(&item.name.as_str()) {
                continue;
            }
            if item.kind.is_dir() && is_skipped_folder(&item.name) {
                self.skip(&join(skill, &name), "hidden folders are left out");
                continue;
            }
            if item.kind.is_symlink() && item.path.is_dir() {
                self.skip(&join(skill, &name), "it is a link to a folder, which is not followed");
                continue;
            }
            if let Some(reason) = item.bad_name {
                return Ok(Some(format!("its file `{}` cannot be in a library: {reason}", shorten(&name))));
            }
            if !item.kind.is_dir() {
                match self.take(&item.path, &name) {
                    Ok(file) => files.push(file),
                    Err(reason) => return Ok(Some(format!("its file `{}` {reason}", shorten(&name)))),
                }
                continue;
            }
            let most = self.limits.max_depth;
            if depth >= most {
                return Ok(Some(format!("its folder `{}` is deeper than {most}", shorten(&name))));
            }
            if let Some(why) = self.collect_below(&item.path, skill, &name, depth + 1, files)? {
                return Ok(Some(why));
            }
        }
        Ok(None)
    }

    /// One file with its sum; or what is wrong with it.
    pub(super) fn take(&self, path: &Path, name: &str) -> Result<SourceFile, String> {
        let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
        let real = path.canonicalize().map_err(unreadable)?;
        let Ok(inside) = real.strip_prefix(&self.root) else {
            return Err("is a link that leads out of the source".to_owned());
        };
        let mut folders = inside.parent().into_iter().flatten().map(|folder| folder.to_string_lossy());
        // The skill's own folder may lie anywhere; only a link can lead where the walk did not go.
        let linked = path.symlink_metadata().map_err(unreadable)?.is_symlink();
        if linked && folders.any(|folder| is_skipped_folder(&folder)) {
            return Err("is a link into a folder that is left out".to_owned());
        }
        let meta = real.metadata().map_err(unreadable)?;
        // Reading a pipe, a socket or a device may never end.
        if !meta.is_file() {
            return Err("is not a regular file".to_owned());
        }
        let most = self.limits.max_file_bytes;
        let too_large = |size: u64| format!("has {size} bytes or more; the limit is {most}");
        if meta.len() > most {
            return Err(too_large(meta.len()));
        }
        let (size, sha256) =
            sum(File::open(&real).map_err(unreadable)?.take(most + 1)).map_err(unreadable)?;
        if size > most {
            return Err(too_large(size));
        }
        Ok(SourceFile { name: name.to_owned(), size, sha256, content: FileContent::File(real) })
    }

    /// The entries of a folder, by name.
    fn list(&mut self, folder: &Path) -> Result<Vec<FolderItem>> {
        let mut items = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(failed("list", folder))? {
            let entry = entry.map_err(failed("list", folder))?;
            self.entries += 1;
            let most = self.limits.max_entries;
            if self.entries > most {
                let message = format!("the source has more than {most} files and folders");
                return Err(Error::new(ErrorKind::TooLarge, message)
                    .with_hint("name a smaller folder, or raise the limit"));
            }
            let kind = entry.file_type().map_err(failed("list", folder))?;
            let raw = entry.file_name();
            let name = raw.to_string_lossy().into_owned();
            let bad_name = match raw.to_str() {
                None => Some("its name is not UTF-8".to_owned()),
                Some(name) => check_relative(name).err().map(|error| error.message().to_owned()),
            };
            items.push(FolderItem { name, bad_name, path: entry.path(), kind });
        }
        items.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(items)
    }

    fn skip(&mut self, path: &str, reason: impl Into<String>) {
        self.skipped.push(Skipped::new(path, reason));
    }
}

/// `.git`, `.github`, caches.
fn is_skipped_folder(name: &str) -> bool {
    name.starts_with('.') || NEVER.contains(&name)
}

pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

/// How much there is to read, and its SHA-256.
pub(super) fn sum(mut reader: impl Read) -> std::io::Result<(u64, Digest)> {
    let (mut buffer, mut size, mut sum) = (vec![0; 64 * 1024], 0, sha2::Sha256::new());
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok((size, Digest::finish(sum))),
            Ok(read) => {
                sum.update(&buffer[..read]);
                size += read as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A skill that has this path, lies in it, or has it inside.
pub(super) fn overlapping<'t>(taken: &'t BTreeSet<SkillPath>, path: &SkillPath) -> Option<&'t SkillPath> {
    let above = path.parents().chain([path.as_str()]).find_map(|above| taken.get(above));
    let inside = format!("{path}/");
    let from = (Bound::Included(inside.as_str()), Bound::Unbounded);
    let next = || taken.range::<str, _>(from).next();
    above.or_else(|| next().filter(|other| other.as_str().starts_with(&inside)))
}

/// A skill from its files, and what it says of itself; or why it cannot be one.
pub(super) fn skill_of(
    path: SkillPath,
    folder: &Path,
    files: Vec<SourceFile>,
) -> Result<SourceSkill, String> {
    let Some(main) = skill_file(&files) else { return Err("it has no SKILL.md".to_owned()) };
    if main.size > MAX_TEXT_BYTES {
        return Err(format!("its {} has {} bytes; the limit is {MAX_TEXT_BYTES}", main.name, main.size));
    }
    let content = main.read().map_err(|error| error.message().to_owned())?;
    let (problems, loaded) = judge(&content, &main.name, path.name(), &format!("{path}/{}", main.name));
    let registry = files.iter().find(|file| file.name == "_meta.json").and_then(registry);
    Ok(SourceSkill { path, folder: folder.to_owned(), files, loaded, problems, registry })
}

/// What of a `_meta.json` can be understood.
fn registry(file: &SourceFile) -> Option<Registry> {
    if file.size > MAX_TEXT_BYTES {
        return None;
    }
    let value: serde_json::Value = serde_json::from_slice(&file.read().ok()?).ok()?;
    let text = |pointer: &str| value.pointer(pointer)?.as_str().map(str::to_owned);
    Some(Registry {
        owner: text("/owner"),
        slug: text("/slug"),
        display_name: text("/displayName"),
        version: text("/latest/version"),
    })
}
