//! Sites that publish skills according to the Agent Skills Discovery RFC, and archives of such sites. The
//! index has a checksum for each skill, and skills that do not match it are refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::archive;
use super::scan::{Scan, SkillFolder, join, overlapping, skill_of};
use super::{DISCOVERY_INDEX, FileContent, Format, Source, SourceFile, SourceOptions, failed};
use crate::error::{Error, ErrorKind, Result, shorten};
use crate::path::{SkillPath, check_relative};

/// The schema version that is read and written.
pub(super) const SCHEMA: &str = "https://schemas.agentskills.io/discovery/0.2.0/schema.json";
/// The folder of the index, relative to the root of a site.
pub(super) const FOLDER: &str = ".well-known/agent-skills";
/// Our file next to the index. It maps a skill's name to its path in the library, if they differ.
pub(super) const PATHS: &str = "paths.json";
const MAX_INDEX_BYTES: u64 = 64 * 1024 * 1024;

/// The index.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct DiscoveryIndex {
    #[serde(rename = "$schema")]
    pub(super) schema: String,
    pub(super) skills: Vec<DiscoveryEntry>,
}

/// A skill in the index.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct DiscoveryEntry {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: DiscoveryKind,
    pub(super) description: String,
    pub(super) url: String,
    pub(super) digest: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum DiscoveryKind {
    /// A single `SKILL.md`.
    #[serde(rename = "skill-md")]
    SkillMd,
    /// An archive with `SKILL.md` at its root.
    #[serde(rename = "archive")]
    Archive,
}

/// Reads a site from a local folder.
pub(super) fn read(source: &mut Source, root: &Path, options: &SourceOptions) -> Result<()> {
    let place = source.origin.location.clone();
    let wrong = move |kind: ErrorKind, message: String| {
        Error::new(kind, format!("the index of `{place}` cannot be used: {message}"))
            .with_hint("nothing was imported; fetch or export it again")
    };
    let scan = Scan::new(root, options.limits);
    let index: DiscoveryIndex =
        parse(&scan, &root.join(DISCOVERY_INDEX)).map_err(|why| wrong(ErrorKind::InvalidInput, why))?;
    if index.schema != SCHEMA {
        let why = format!("its schema is `{}`, and only `{SCHEMA}` is supported", shorten(&index.schema));
        return Err(wrong(ErrorKind::InvalidInput, why));
    }
    if index.skills.len() > options.limits.max_entries {
        return Err(wrong(ErrorKind::TooLarge, format!("it has {} skills", index.skills.len())));
    }
    let paths = root.join(FOLDER).join(PATHS);
    let paths: BTreeMap<String, String> = match paths.is_file() {
        true => parse(&scan, &paths).map_err(|why| wrong(ErrorKind::InvalidInput, why))?,
        false => BTreeMap::new(),
    };
    let (mut left, mut taken) = (options.limits, BTreeSet::new());
    for entry in index.skills {
        let path = paths.get(&entry.name).unwrap_or(&entry.name);
        let path = join(options.category.as_deref().unwrap_or_default(), path);
        let Some(skill) = SkillPath::exact(&path).filter(|_| is_name(&entry.name)) else {
            source.refuse(shorten(&entry.name), &path, "the index gives it a name that no skill can have");
            continue;
        };
        if overlapping(&taken, &skill).is_some() {
            source.refuse(&entry.name, &path, format!("another skill has the path `{path}`"));
            continue;
        }
        let local = entry.url.strip_prefix(&format!("/{FOLDER}/")).unwrap_or(&entry.url);
        if local.contains(':') || local.starts_with('/') || check_relative(local).is_err() {
            source.refuse(&entry.name, &path, format!("it is elsewhere, at `{}`", shorten(&entry.url)));
            continue;
        }
        let file = scan
            .take(&root.join(FOLDER).join(local), "SKILL.md")
            .map_err(|why| wrong(ErrorKind::Corrupt, format!("`{}` {why}", shorten(local))))?;
        if entry.digest != format!("sha256:{}", file.sha256) {
            let why = format!("`{}` does not have the digest that the index gives for it", shorten(local));
            return Err(wrong(ErrorKind::Corrupt, why));
        }
        let files = match entry.kind {
            DiscoveryKind::SkillMd => Ok(vec![file]),
            DiscoveryKind::Archive => {
                let kept = match source.kept.take() {
                    Some(kept) => kept,
                    None => archive::temporary()?,
                };
                // The underscore avoids a collision with the archive of the site: skill names do not contain
                // one.
                let folder = source.kept.insert(kept).path().join(format!("_{}", entry.name));
                let packed = unpack(&file, local, &folder, left)?;
                left.max_unpacked_bytes -= packed.unpacked.min(left.max_unpacked_bytes);
                left.max_entries -= packed.entries.min(left.max_entries);
                let real = folder.canonicalize().map_err(failed("open", &folder))?;
                let mut unpacked = Scan::new(&real, options.limits);
                let found = SkillFolder { path: entry.name.clone(), folder: real, bad_name: None };
                let files = unpacked.collect(&found)?;
                source.skipped.append(&mut unpacked.skipped);
                files
            }
        };
        taken.insert(skill.clone());
        match files.and_then(|files| skill_of(skill, &root.join(FOLDER), files)) {
            Ok(skill) => source.skills.push(skill),
            Err(why) => source.refuse(&entry.name, &path, why),
        }
    }
    Ok(())
}

/// Whether a name is valid according to the RFC.
pub(super) fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}

fn parse<T: serde::de::DeserializeOwned>(scan: &Scan, path: &Path) -> Result<T, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let file = scan.take(path, &name).map_err(|why| format!("`{name}` {why}"))?;
    if file.size > MAX_INDEX_BYTES {
        return Err(format!("`{name}` has {} bytes; the limit is {MAX_INDEX_BYTES}", file.size));
    }
    let bytes = file.read().map_err(|error| error.message().to_owned())?;
    serde_json::from_slice(&bytes).map_err(|error| format!("`{name}` is invalid: {error}"))
}

fn unpack(file: &SourceFile, name: &str, folder: &Path, limits: super::Limits) -> Result<archive::Unpacker> {
    let FileContent::File(path) = &file.content else {
        return Err(Error::new(ErrorKind::Internal, format!("`{name}` is not a file on disk")));
    };
    let (format, _) = Format::of_name(name).ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, format!("`{}` is not an archive that can be read", shorten(name)))
            .with_hint("archives of skills end in .tar.gz, .tgz or .zip")
    })?;
    let handle = File::open(path).map_err(failed("open", path))?;
    archive::unpack(handle, format, folder, limits, name)
}
