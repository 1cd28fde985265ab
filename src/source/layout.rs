//! The layouts of sources, and how each maps folders to the paths of skills.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::scan::{NEVER, Scan, SkillFolder, join, overlapping, skill_of};
use super::{
    DESCRIPTION_FILE, DISCOVERY_INDEX, OriginKind, Skipped, Source, SourceCategory, SourceOptions,
    SourceSkill, failed,
};
use crate::error::{Error, ErrorKind, Result, shorten};
use crate::path::{SkillPath, check_relative, is_within, leaf};

/// The layout of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Layout {
    /// One skill or a tree of skills. A skill's path is its path in the tree, without a leading `skills/`.
    Folder,
    /// Hermes: `skills/<category>/<skill>/`, with a `DESCRIPTION.md` in each category.
    Hermes,
    /// OpenClaw: `skills/<owner>/<skill>/`, with a `_meta.json` in each skill.
    OpenClaw,
    /// Any repository: every `SKILL.md` in it. A skill is named after its folder, and also after the folders
    /// above it if two folders have the same name.
    Repository,
    /// Agent Skills Discovery: `.well-known/agent-skills/index.json` and the files that it lists. Checksums
    /// are verified.
    Discovery,
}

impl Layout {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Folder, Self::Hermes, Self::OpenClaw, Self::Repository, Self::Discovery];

    /// The name of the layout, as used on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Folder => "folder",
            Self::Hermes => "hermes",
            Self::OpenClaw => "openclaw",
            Self::Repository => "repository",
            Self::Discovery => "discovery",
        }
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for Layout {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.iter().copied().find(|layout| layout.as_str() == text).ok_or_else(|| {
            let names = Self::ALL.iter().map(|known| known.as_str()).collect::<Vec<_>>().join(", ");
            Error::new(ErrorKind::InvalidInput, format!("`{}` is not a layout", shorten(text)))
                .with_hint(format!("choose one of {names}"))
        })
    }
}

/// Reads the skills of a folder into a source.
pub(super) fn read(
    source: &mut Source,
    folder: &Path,
    name: Option<&str>,
    options: &SourceOptions,
) -> Result<()> {
    let mut root = folder.canonicalize().map_err(failed("open", folder))?;
    if !root.is_dir() {
        return Err(Error::new(ErrorKind::NotDirectory, format!("`{}` is not a folder", folder.display()))
            .with_hint("name a folder, a .zip, .skill, .tar.gz or .tgz, or the URL of a git repository"));
    }
    if let Some(category) = &options.category {
        check_relative(category)?;
    }
    let own_name = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = name.unwrap_or(&own_name);
    if source.origin.kind == OriginKind::Archive
        && let Some(inner) = wrapped(&root)
    {
        root = inner;
    }
    source.layout = options.layout.unwrap_or_else(|| detect(&root, source.origin.kind));
    if source.layout == Layout::Discovery {
        #[cfg(feature = "import")]
        return super::discovery::read(source, &root, options);
        #[cfg(not(feature = "import"))]
        return Err(super::place::not_built(&folder.display().to_string()));
    }
    let start = match source.layout {
        Layout::Hermes | Layout::OpenClaw if root.join("skills").is_dir() => root.join("skills"),
        _ => root.clone(),
    };
    let mut scan = Scan::new(&root, options.limits);
    scan.find(&start)?;
    let found = std::mem::take(&mut scan.found);
    let paths = paths(source.layout, &found, name);
    let (category, mut taken) = (options.category.as_deref().unwrap_or_default(), BTreeSet::new());
    for (found, path) in found.iter().zip(paths) {
        let path = join(category, path);
        match take_skill(&mut scan, &mut taken, found, &path)? {
            Ok(skill) => source.skills.push(skill),
            Err(reason) if found.path.is_empty() => source.refuse(&path, &path, reason),
            Err(reason) => source.refuse(&found.path, &path, reason),
        }
    }
    if source.layout != Layout::Repository {
        take_categories(source, &scan, category);
    }
    source.skipped.append(&mut scan.skipped);
    if source.skills.is_empty() && !source.skipped.iter().any(|skipped| skipped.refused) {
        let message = format!("there is no SKILL.md in `{}`", source.origin.location);
        return Err(Error::new(ErrorKind::NotFound, message)
            .with_hint("name a folder that is a skill, or one with skills in it"));
    }
    Ok(())
}

/// Returns the single top-level folder of an archive, if it contains a repository or a site.
fn wrapped(root: &Path) -> Option<PathBuf> {
    let mut entries = std::fs::read_dir(root)
        .ok()?
        .flatten()
        .filter(|entry| !NEVER.contains(&&*entry.file_name().to_string_lossy()));
    let only = entries.next()?.path();
    let alone = entries.next().is_none();
    (alone && (only.join("skills").is_dir() || only.join(DISCOVERY_INDEX).is_file())).then_some(only)
}

/// Detects the layout from the content.
fn detect(root: &Path, kind: OriginKind) -> Layout {
    let folders = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
    };
    if root.join(DISCOVERY_INDEX).is_file() {
        return Layout::Discovery;
    }
    if root.join("SKILL.md").is_file() {
        return Layout::Folder;
    }
    let mut hermes = false;
    for group in folders(&root.join("skills")) {
        if folders(&group).any(|skill| skill.join("_meta.json").is_file() && skill.join("SKILL.md").is_file())
        {
            return Layout::OpenClaw;
        }
        hermes |= !group.join("SKILL.md").exists() && group.join(DESCRIPTION_FILE).is_file();
    }
    match kind {
        _ if hermes => Layout::Hermes,
        OriginKind::Git => Layout::Repository,
        OriginKind::Folder | OriginKind::Archive => Layout::Folder,
    }
}

/// Returns the path of each skill in the library.
fn paths<'f>(layout: Layout, found: &'f [SkillFolder], root_name: &'f str) -> Vec<&'f str> {
    let path = |found: &'f SkillFolder| if found.path.is_empty() { root_name } else { found.path.as_str() };
    let paths = found.iter().map(path);
    if layout != Layout::Repository {
        return paths.map(|path| path.strip_prefix("skills/").unwrap_or(path)).collect();
    }
    // The shortest suffix of each path that is unique: its folder, the folder and its parent, or the full
    // path.
    let ends = |path: &'f str| {
        let above = path.rmatch_indices('/').nth(1).map_or(path, |(at, _)| &path[at + 1..]);
        [leaf(path), above, path]
    };
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for end in paths.clone().flat_map(|path| BTreeSet::from(ends(path))) {
        *count.entry(end).or_default() += 1;
    }
    paths.map(|path| ends(path).into_iter().find(|end| count[end] == 1).unwrap_or(path)).collect()
}

/// Reads the skill in a folder, or returns why it is refused.
fn take_skill(
    scan: &mut Scan,
    taken: &mut BTreeSet<SkillPath>,
    found: &SkillFolder,
    path: &str,
) -> Result<Result<SourceSkill, String>> {
    if let Some(reason) = &found.bad_name {
        return Ok(Err(format!("it cannot be in a library: {reason}")));
    }
    let skill = match SkillPath::parse(path) {
        Ok(skill) => skill,
        Err(error) => return Ok(Err(error.message().to_owned())),
    };
    if let Some(other) = overlapping(taken, &skill) {
        return Ok(Err(format!("it would be `{path}`, and `{other}` is already a skill")));
    }
    taken.insert(skill.clone());
    Ok(scan.collect(found)?.and_then(|files| skill_of(skill, &found.folder, files)))
}

/// Reads the descriptions of folders that became categories.
fn take_categories(source: &mut Source, scan: &Scan, category: &str) {
    for (path, file) in &scan.descriptions {
        let path = path.strip_prefix("skills/").unwrap_or(path);
        if path.is_empty() || path == "skills" {
            continue;
        }
        let path = join(category, path);
        let used = source.skills.iter().any(|skill| is_within(skill.path.category(), &path));
        let known = source.categories.iter().any(|known| known.path == path);
        if !used || known {
            continue;
        }
        match scan.take(file, DESCRIPTION_FILE) {
            Ok(file) => source.categories.push(SourceCategory { path, file }),
            Err(reason) => {
                source
                    .skipped
                    .push(Skipped::new(format!("{path}/{DESCRIPTION_FILE}"), format!("it {reason}")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skills_of_a_repository_have_the_shortest_unique_names() {
        let check = |found: &[&str], expected: &[&str]| {
            let found: Vec<SkillFolder> = found
                .iter()
                .map(|path| SkillFolder { path: (*path).to_owned(), folder: PathBuf::new(), bad_name: None })
                .collect();
            assert_eq!(paths(Layout::Repository, &found, "repo"), expected);
        };
        check(&[""], &["repo"]);
        check(&["skills/a", "x/y/b"], &["a", "b"]);
        check(&["skills/a", "other/a", "b"], &["skills/a", "other/a", "b"]);
        check(&["p/g/a", "q/g/a"], &["p/g/a", "q/g/a"]);
        check(&["a", "x/a"], &["a", "x/a"]);
    }

    #[test]
    fn layouts_have_names() {
        for &layout in Layout::ALL {
            assert_eq!(layout.as_str().parse::<Layout>().unwrap(), layout);
            assert_eq!(serde_json::to_string(&layout).unwrap(), format!("\"{layout}\""));
        }
        assert!("zip".parse::<Layout>().unwrap_err().report().contains("hermes"));
    }
}
