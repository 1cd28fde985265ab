//! A library as a local folder.

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

/// What happens to files that are there and say something else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Existing {
    /// Nothing at all is written.
    #[default]
    Refuse,
    /// They are replaced.
    Replace,
}

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FolderWritten {
    /// Skills among what was to be written.
    pub skills: u64,
    /// Files that were written.
    pub written: u64,
    /// Files that were there already, with the same content.
    pub unchanged: u64,
    /// The bytes that were written.
    pub bytes: u64,
}

/// Writes skills into a folder, which is made when it is not there. Files that are in it besides stay.
///
/// Everything is looked at before anything is written. Each file appears as a whole or not at all. Links in the
/// folder are not written through, wherever they lead.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] when a file is there with other content, and [`Existing::Refuse`];
/// [`ErrorKind::InvalidInput`] when a link, a folder or a file is in the way; [`ErrorKind::InvalidPath`] for
/// names that no library has; what [`SourceFile::read`] may say.
pub fn write_folder(skills: &[SkillFiles], target: &Path, existing: Existing) -> Result<FolderWritten> {
    std::fs::create_dir_all(target).map_err(failed("make", target))?;
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

/// What is at the place of a file, and whether it may be written there.
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

/// Where a file belongs, when all folders above it are there and are folders; `None` when one is missing.
fn place(root: &Path, name: &str) -> Result<Option<PathBuf>> {
    for folder in parents(name) {
        if !is_there(&root.join(folder), Metadata::is_dir, "not a folder")? {
            return Ok(None);
        }
    }
    Ok(Some(root.join(name)))
}

/// Whether something is there; an error when that is in the way: a link, or not what is `wanted`.
fn is_there(path: &Path, wanted: fn(&Metadata) -> bool, otherwise: &str) -> Result<bool> {
    let what = match path.symlink_metadata() {
        Ok(meta) if wanted(&meta) => return Ok(true),
        Ok(meta) if meta.is_symlink() => "a link",
        Ok(_) => otherwise,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed("look at", path)(error)),
    };
    let message = format!("`{}` is {what}, so nothing was written to it", path.display());
    Err(Error::new(ErrorKind::InvalidInput, message).with_hint("remove it, or choose another folder"))
}

fn write(root: &Path, name: &str, file: &SourceFile, replace: bool) -> Result<()> {
    let (folders, _) = name.rsplit_once('/').unwrap_or_default();
    let folder = root.join(folders);
    // What is there and no folder is reported below.
    if let Err(error) = std::fs::create_dir_all(&folder)
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(failed("make", &folder)(error));
    }
    // Again: a link may have come since everything was looked at.
    let Some(path) = place(root, name)? else {
        return Err(Error::new(
            ErrorKind::Conflict,
            format!("the folder of `{name}` was removed in the meantime"),
        )
        .with_hint("write it again when nothing else writes there"));
    };
    let temporary = folder.join(format!(".skillfs-{}.tmp", Ambient::default().id()?));
    let result = put(&temporary, file).and_then(|()| {
        // On a disk that knows no case, a file that was not there may be by now.
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

/// Writes all bytes to a new file, and to the disk before it gets its name.
fn put(path: &Path, file: &SourceFile) -> Result<()> {
    let bytes = file.read()?;
    let mut out = File::create_new(path).map_err(failed("write", path))?;
    out.write_all(&bytes).and_then(|()| out.sync_data()).map_err(failed("write", path))
}
