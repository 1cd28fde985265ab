//! Walks local folders: finds skills, and reads their files and metadata.

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

/// Files and folders of tools that are never part of a skill.
pub(super) const NEVER: [&str; 4] = ["node_modules", "__pycache__", "__MACOSX", ".DS_Store"];

/// The maximum size of a `SKILL.md` or a `_meta.json`.
const MAX_TEXT_BYTES: u64 = 10 * 1024 * 1024;

/// A folder with a `SKILL.md`.
#[derive(Debug)]
pub(super) struct SkillFolder {
    /// The path relative to the start of the walk; empty for the start itself.
    pub(super) path: String,
    pub(super) folder: PathBuf,
    /// Why the path is not valid in a library, if it is not.
    pub(super) bad_name: Option<String>,
}

/// A walk through a source.
#[derive(Debug)]
pub(super) struct Scan {
    /// The canonical root of the source. Links must not lead outside of it.
    root: PathBuf,
    limits: Limits,
    entries: usize,
    pub(super) found: Vec<SkillFolder>,
    /// Folders with a description: the path of the folder, and the file.
    pub(super) descriptions: Vec<(String, PathBuf)>,
    pub(super) skipped: Vec<Skipped>,
}

/// An entry of a folder.
struct FolderItem {
    name: String,
    /// Why the name is not valid in a library, if it is not.
    bad_name: Option<String>,
    path: PathBuf,
    /// The type of the entry itself; links are not followed.
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

    /// Finds the skills below a folder. Does not descend into skills.
    pub(super) fn find(&mut self, folder: &Path) -> Result<()> {
        self.descend(folder, "", 0, None)
    }

    fn descend(&mut self, folder: &Path, path: &str, depth: usize, bad_name: Option<String>) -> Result<()> {
        let items = match self.list(folder) {
            Ok(items) => items,
            // The start must be readable; other unreadable folders are only reported.
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

    /// Reads all files of a skill, sorted by name, or returns why the skill is refused.
    ///
    /// # Errors
    /// If the source has too many entries in total.
    pub(super) fn collect(&mut self, skill: &SkillFolder) -> Result<Result<Vec<SourceFile>, String>> {
        let mut files = Vec::new();
        let refused = self.collect_below(&skill.folder, &skill.path, "", 0, &mut files)?;
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(refused.map_or(Ok(files), Err))
    }

    /// Returns the reason if the skill is refused.
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

    /// Reads and hashes one file, or returns what is wrong with it.
    pub(super) fn take(&self, path: &Path, name: &str) -> Result<SourceFile, String> {
        let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
        let real = path.canonicalize().map_err(unreadable)?;
        let Ok(inside) = real.strip_prefix(&self.root) else {
            return Err("is a link that leads out of the source".to_owned());
        };
        let mut folders = inside.parent().into_iter().flatten().map(|folder| folder.to_string_lossy());
        // The skill's own folder may be anywhere. Only a link can lead to a folder that the walk skipped.
        let linked = path.symlink_metadata().map_err(unreadable)?.is_symlink();
        if linked && folders.any(|folder| is_skipped_folder(&folder)) {
            return Err("is a link into a folder that is left out".to_owned());
        }
        let meta = real.metadata().map_err(unreadable)?;
        // Reading from a pipe, a socket or a device may block forever.
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

    /// Lists the entries of a folder, sorted by name.
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

/// Whether a folder is skipped: `.git`, `.github`, caches.
fn is_skipped_folder(name: &str) -> bool {
    name.starts_with('.') || NEVER.contains(&name)
}

pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

/// Reads to the end and returns the size and the SHA-256.
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

/// Returns a skill whose path equals, contains or is inside of this path.
pub(super) fn overlapping<'t>(taken: &'t BTreeSet<SkillPath>, path: &SkillPath) -> Option<&'t SkillPath> {
    let above = path.parents().chain([path.as_str()]).find_map(|above| taken.get(above));
    let inside = format!("{path}/");
    let from = (Bound::Included(inside.as_str()), Bound::Unbounded);
    let next = || taken.range::<str, _>(from).next();
    above.or_else(|| next().filter(|other| other.as_str().starts_with(&inside)))
}

/// Creates a skill from its files, or returns why they are not a skill.
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

/// Parses a `_meta.json` leniently.
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
