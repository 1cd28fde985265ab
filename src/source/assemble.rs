//! From the files of a folder to a skill: what it says of itself, and whether its path is free.
//!
//! Every layout ends here, whether the skills were found by a scan or named by an index.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::path::Path;

use super::{Registry, SourceFile, SourceSkill, skill_file};
use crate::error::Result;
use crate::path::SkillPath;
use crate::skill::judge;

/// A longer `SKILL.md` is no text for a model, and a longer `_meta.json` says nothing more.
const MAX_TEXT_BYTES: u64 = 10 * 1024 * 1024;

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
        return Err(format!("its {} has {} bytes; {MAX_TEXT_BYTES} are the limit", main.name, main.size));
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
