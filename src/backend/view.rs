//! The tree of one library, built from a listing of its keys or from its index.
//!
//! A view is pure data: files with size, version and where to fetch them, the skills, and, for a
//! published library, the index with the heads of the skills.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::SystemTime;

use crate::index::{BlobOrigin, Digest, Index};
use crate::manifest::skill_file_rank;
use crate::mount::Directory;
use crate::path::{SkillPath, is_exact, parents};
use crate::store::{Listed, Meta};

/// One layer of `/skills`. Paths are relative to the library.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(super) files: BTreeMap<Arc<str>, Arc<ViewFile>>,
    pub(super) directories: BTreeSet<Arc<str>>,
    /// Skills, with the name of their `SKILL.md`.
    pub(super) skills: BTreeMap<SkillPath, String>,
    /// Folder markers, with their trailing `/`.
    pub(super) markers: Vec<String>,
    /// Keys that no path can name.
    pub(super) unnameable: Vec<String>,
    /// `None` for a plain library.
    pub(super) index: Option<Arc<Index>>,
    /// When the index was written, by the clock of S3.
    pub(super) released: Option<SystemTime>,
    /// Why a newer index could not be used, while this one is served.
    pub(super) trouble: Option<String>,
}

/// A file of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ViewFile {
    pub(crate) meta: Meta,
    /// `None` for a file of a plain library, which is read from its key.
    pub(crate) blob: Option<Blob>,
}

/// The location of a published file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blob {
    pub(crate) sha256: Digest,
    pub(crate) origin: Arc<BlobOrigin>,
}

impl View {
    /// Creates the view of a plain library: whatever is stored under its prefix.
    pub(crate) fn plain(top: &Directory, items: Vec<Listed>) -> Self {
        let mut view = Self::default();
        for item in items {
            if let Listed::Object { key, meta } = item
                && let Some(relative) = top.relative(&key)
            {
                view.add_key(relative, meta);
            }
        }
        view.skills = find_skills(view.files.keys().map(|path| &**path));
        view
    }

    /// Creates the view of a published library: exactly what its index says.
    pub(crate) fn published(index: Arc<Index>) -> Self {
        let mut view = Self::default();
        for (path, file) in &index.files {
            let etag = Some(file.sha256.to_string());
            let meta = Meta { size: file.size, modified: file.since.time(), etag };
            view.add(path, meta, Some(Blob { sha256: file.sha256, origin: file.blob.clone() }));
        }
        view.skills = find_skills(view.files.keys().map(|path| &**path));
        view.index = Some(index);
        view
    }

    fn add(&mut self, path: &str, meta: Meta, blob: Option<Blob>) {
        self.add_directories(parents(path));
        self.files.insert(path.into(), Arc::new(ViewFile { meta, blob }));
    }

    fn add_directories<'p>(&mut self, paths: impl Iterator<Item = &'p str>) {
        for path in paths {
            if !self.directories.contains(path) {
                self.directories.insert(path.into());
            }
        }
    }

    fn add_key(&mut self, relative: &str, meta: Meta) {
        if is_exact(relative) {
            return self.add(relative, meta, None);
        }
        // The directories above it exist, as far as a path can name them.
        self.add_directories(parents(relative).take_while(|parent| is_exact(parent)));
        if meta.size == 0 && (relative.is_empty() || relative.strip_suffix('/').is_some_and(is_exact)) {
            self.markers.push(relative.to_owned());
        } else {
            self.unnameable.push(relative.to_owned());
        }
    }

    /// Approximate memory usage.
    pub(super) fn weight(&self) -> u64 {
        let files = self
            .files
            .iter()
            .map(|(path, file)| path.len() + file.meta.etag.as_ref().map_or(0, String::len) + 190);
        let directories = self.directories.iter().map(|path| path.len() + 60);
        let others = self.markers.iter().chain(&self.unnameable).map(|path| path.len() + 60);
        let skills = self.skills.iter().map(|(path, file)| path.as_str().len() + file.len() + 100);
        let index = self.index.as_ref().map_or(0, |index| index.weight());
        (files.chain(directories).chain(others).chain(skills).sum::<usize>() + 200) as u64 + index
    }
}

/// Finds the skills among some files, with the name of their `SKILL.md`.
///
/// A skill is a directory with such a file, in any letter case. The outermost skill owns everything
/// below it.
pub(crate) fn find_skills<'p>(paths: impl Iterator<Item = &'p str>) -> BTreeMap<SkillPath, String> {
    let mut found: BTreeMap<&str, &str> = BTreeMap::new();
    for path in paths {
        let Some((directory, name)) = path.rsplit_once('/') else { continue };
        let Some(rank) = skill_file_rank(name) else { continue };
        match found.get(directory) {
            Some(known) if skill_file_rank(known) <= Some(rank) => {}
            _ => {
                found.insert(directory, name);
            }
        }
    }
    let outermost = |directory: &str| parents(directory).all(|parent| !found.contains_key(parent));
    let owned = found.iter().filter(|(directory, _)| outermost(directory));
    owned.filter_map(|(path, name)| Some((SkillPath::exact(path)?, (*name).to_owned()))).collect()
}

/// Returns the entries below a directory, with paths relative to the directory.
pub(super) fn below<'m, V>(
    files: &'m BTreeMap<Arc<str>, V>,
    directory: &str,
) -> impl Iterator<Item = (&'m str, &'m V)> {
    let prefix = prefix_of(directory);
    let all = files.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
    all.map_while(move |(path, file)| Some((path.strip_prefix(prefix.as_str())?, file)))
}

/// The common prefix of all paths below a directory.
pub(super) fn prefix_of(directory: &str) -> String {
    if directory.is_empty() { String::new() } else { format!("{directory}/") }
}

/// Returns the skill that contains a path.
pub(super) fn skill_above<'s, V>(
    skills: &'s BTreeMap<SkillPath, V>,
    path: &str,
) -> Option<(&'s SkillPath, &'s V)> {
    parents(path).find_map(|parent| skills.get_key_value(parent))
}

/// Returns the skill at a path, or the one that contains it.
pub(super) fn skill_around<'s, V>(
    skills: &'s BTreeMap<SkillPath, V>,
    path: &str,
) -> Option<(&'s SkillPath, &'s V)> {
    skills.get_key_value(path).or_else(|| skill_above(skills, path))
}
