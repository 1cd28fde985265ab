//! Writing skills to a local folder.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::scan::sum;
use super::{SkillFiles, SourceFile, failed};
use crate::ambient::Ambient;
use crate::error::{Error, ErrorKind, Result};
use crate::path::{check_relative, parents};

/// What to do with existing files that have different content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Existing {
    /// Fail and write nothing.
    #[default]
    Refuse,
    /// Replace them.
    Replace,
}

/// The result of [`write_folder`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FolderWritten {
    /// Skills among what was to be written.
    pub skills: u64,
    /// The number of files written.
    pub written: u64,
    /// The number of files that already existed with the same content.
    pub unchanged: u64,
    /// The number of bytes written.
    pub bytes: u64,
}

/// Writes skills to a folder and creates it if it does not exist. Other files in the folder are kept.
///
/// All paths are checked before anything is written. Each file appears completely or not at all. Symbolic
/// links in the folder are never followed.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] if a file exists with different content and `existing` is
/// [`Existing::Refuse`]; [`ErrorKind::InvalidInput`] if a link, a folder or a file is in the way;
/// [`ErrorKind::InvalidPath`] for names that are not valid in a library; the errors of [`SourceFile::read`].
pub fn write_folder(skills: &[SkillFiles], target: &Path, existing: Existing) -> Result<FolderWritten> {
    std::fs::create_dir_all(target).map_err(failed("create", target))?;
    let root = target.canonicalize().map_err(failed("open", target))?;
    let mut result = FolderWritten::default();
    let mut planned: BTreeMap<String, (&SourceFile, bool)> = BTreeMap::new();
    for skill in skills {
        result.skills += u64::from(skill.skill_file().is_some());
        for file in &skill.files {
            let name = format!("{}/{}", skill.path, file.name);
            check_relative(&name)?;
            let there = look(&root, &name, file, existing)?;
            if there == AtPath::Same {
                result.unchanged += 1;
            } else if planned.insert(name.clone(), (file, there == AtPath::Other)).is_some() {
                return Err(Error::new(ErrorKind::InvalidInput, format!("`{name}` would be written twice")));
            }
        }
    }
    for (name, (file, replace)) in planned {
        write(&root, &name, file, replace)?;
        result.written += 1;
        result.bytes += file.size;
    }
    Ok(result)
}

#[derive(PartialEq, Eq)]
enum AtPath {
    Nothing,
    Same,
    Other,
}

/// Checks what exists at the path of a file, and whether it may be written there.
fn look(root: &Path, name: &str, file: &SourceFile, existing: Existing) -> Result<AtPath> {
    let Some(path) = place(root, name)? else { return Ok(AtPath::Nothing) };
    if !is_there(&path, Metadata::is_file, "not a file")? {
        return Ok(AtPath::Nothing);
    }
    let content = File::open(&path).and_then(sum).map_err(failed("read", &path))?;
    if content == (file.size, file.sha256) {
        return Ok(AtPath::Same);
    }
    if existing == Existing::Replace {
        return Ok(AtPath::Other);
    }
    let message = format!("`{}` exists and has other content; nothing was written", path.display());
    Err(Error::new(ErrorKind::AlreadyExists, message)
        .with_hint("choose another folder, or allow replacing its files"))
}

/// Returns the path of a file, or `None` if a parent folder does not exist.
fn place(root: &Path, name: &str) -> Result<Option<PathBuf>> {
    for folder in parents(name) {
        if !is_there(&root.join(folder), Metadata::is_dir, "not a folder")? {
            return Ok(None);
        }
    }
    Ok(Some(root.join(name)))
}

/// Whether the path exists. Returns an error if it is a link or does not satisfy `wanted`.
fn is_there(path: &Path, wanted: fn(&Metadata) -> bool, otherwise: &str) -> Result<bool> {
    let what = match path.symlink_metadata() {
        Ok(meta) if wanted(&meta) => return Ok(true),
        Ok(meta) if meta.is_symlink() => "a link",
        Ok(_) => otherwise,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed("inspect", path)(error)),
    };
    let message = format!("`{}` is {what}, so nothing was written to it", path.display());
    Err(Error::new(ErrorKind::InvalidInput, message).with_hint("remove it, or choose another folder"))
}

fn write(root: &Path, name: &str, file: &SourceFile, replace: bool) -> Result<()> {
    let (folders, _) = name.rsplit_once('/').unwrap_or_default();
    let folder = root.join(folders);
    // An existing path that is not a folder is reported below.
    if let Err(error) = std::fs::create_dir_all(&folder)
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(failed("create", &folder)(error));
    }
    // Check again: a link may have appeared since the first check.
    let Some(path) = place(root, name)? else {
        return Err(Error::new(
            ErrorKind::Conflict,
            format!("the folder of `{name}` was removed in the meantime"),
        )
        .with_hint("write it again when nothing else writes there"));
    };
    let temporary = folder.join(format!(".skillfs-{}.tmp", Ambient::default().id()?));
    let result = put(&temporary, file).and_then(|()| {
        // On a case-insensitive filesystem, the file may exist by now.
        if !replace && path.symlink_metadata().is_ok() {
            let path = path.display();
            let message =
                format!("`{path}` was created in the meantime, or differs from another only in case");
            return Err(Error::new(ErrorKind::AlreadyExists, message).with_hint("write to an empty folder"));
        }
        std::fs::rename(&temporary, &path).map_err(failed("write", &path))
    });
    if result.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    result
}

/// Writes a new file and syncs it to disk before it is renamed into place.
fn put(path: &Path, file: &SourceFile) -> Result<()> {
    let bytes = file.read()?;
    let mut out = File::create_new(path).map_err(failed("write", path))?;
    out.write_all(&bytes).and_then(|()| out.sync_data()).map_err(failed("write", path))
}
