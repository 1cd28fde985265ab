//! `/skills` as one tree, whatever number of libraries lie behind it.
//!
//! Libraries are layers. A skill of an earlier layer hides every later skill at, above or below its
//! path, as a whole and never file by file; of loose files the earlier layer's wins.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use sha2::Digest as _;

use super::S3Backend;
use super::layers::Layer;
use super::list::file;
use super::released::Released;
use crate::entry::{Entry, Page};
use crate::error::Result;
use crate::id::LibraryId;
use crate::index::{Index, IndexedCategory, IndexedSkill, Sha256, State};
use crate::manifest::skill_file_rank;
use crate::mount::Directory;
use crate::path::VirtualPath;
use crate::store::{ByteRange, Listed, Meta};

/// What all layers together show below a directory of `/skills`. Paths are relative to `/skills`.
#[derive(Debug, Default)]
pub(crate) struct Union {
    files: BTreeMap<String, UnionFile>,
    directories: BTreeSet<String>,
    skills: BTreeMap<String, SkillPlace>,
    collisions: Vec<Collision>,
    /// Keys that no path can name.
    unnameable: Vec<String>,
    layers: Vec<Arc<Layer>>,
    version: OnceLock<String>,
}

/// A file that is seen, and the layer it comes from.
#[derive(Debug, Clone)]
pub(crate) struct UnionFile {
    pub(crate) layer: usize,
    pub(crate) meta: Meta,
    /// For a file of a release: it is to be had as a blob, too.
    pub(crate) release: Option<Released>,
}

impl UnionFile {
    /// Whether its own key held it when it was listed.
    pub(super) fn is_live(&self) -> bool {
        self.release.is_none_or(|release| release.live)
    }
}

/// The same of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LayerFile {
    pub(super) meta: Meta,
    pub(super) release: Option<Released>,
}

/// A skill that is seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SkillPlace {
    pub(crate) layer: usize,
    /// The name of its `SKILL.md`, in its own letter case.
    pub(crate) file: String,
}

/// Something of a later layer that is not seen, because an earlier one has a skill there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Collision {
    /// What is hidden.
    pub(crate) path: String,
    /// The skill that hides it.
    pub(crate) by: String,
    pub(crate) hidden_layer: usize,
    pub(crate) layer: usize,
}

/// One layer, as it was listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LayerListing {
    files: BTreeMap<String, LayerFile>,
    directories: BTreeSet<String>,
    /// With the name of their `SKILL.md`.
    pub(super) skills: BTreeMap<String, String>,
    /// Folder markers, with the `/` that they end with.
    markers: Vec<String>,
    unnameable: Vec<String>,
}

/// What a path means in a union, by the rules of `read` and `stat`.
pub(super) enum Found<'u> {
    File(VirtualPath, &'u UnionFile),
    Directory,
    Nothing,
}

impl S3Backend {
    /// All of `/skills`.
    pub(crate) async fn union_all(&self) -> Result<Arc<Union>> {
        self.union(&VirtualPath::top_level("skills")).await
    }

    /// The shared library behind a layer; `None` for the user's own.
    pub(crate) fn library_of(&self, layer: usize) -> Option<&LibraryId> {
        self.mounts.library_of(layer)
    }

    /// The first bytes of a file, in the version that a listing found. One request.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`](crate::error::ErrorKind::Conflict) when it is another version now, or gone.
    pub(crate) async fn read_listed(
        &self,
        path: &VirtualPath,
        found: &UnionFile,
        bytes: u64,
    ) -> Result<Bytes> {
        let range = ByteRange { start: 0, end: Some(bytes) };
        let mut content = Vec::new();
        if let (_, Some(mut body)) = self.listed_bytes(path, found, range).await? {
            body.collect(self.store(), &mut content).await.map_err(|e| e.during("read", path))?;
        }
        Ok(content.into())
    }

    /// All that lies below the first name of a path. Skills that hide each other share it, so this
    /// is enough to tell what is seen there.
    pub(crate) async fn union_of_first(&self, path: &VirtualPath) -> Result<Arc<Union>> {
        let first = below_mount(path).split('/').next().unwrap_or_default();
        let skills = VirtualPath::top_level("skills");
        self.union(&skills.join_exact(first).unwrap_or(skills)).await
    }

    /// The part of `/skills` that tells what a path is, be it a file or a directory.
    pub(super) async fn union_around(&self, path: &VirtualPath) -> Result<Arc<Union>> {
        // Whether the first name is a file itself, only the whole mount can tell.
        if below_mount(path).contains('/') { self.union_of_first(path).await } else { self.union_all().await }
    }
}

impl LayerListing {
    pub(super) fn of(top: &Directory, items: Vec<Listed>) -> Self {
        let mut listing = Self::default();
        for item in items {
            if let Listed::Object { key, meta } = item
                && let Some(relative) = top.relative(&key)
            {
                listing.add(top, relative, meta);
            }
        }
        listing.find_skills();
        listing
    }

    /// The files of a directory, with their path below it.
    pub(super) fn files_in<'l>(&'l self, directory: &str) -> impl Iterator<Item = (&'l str, &'l LayerFile)> {
        below(&self.files, directory)
    }

    /// What readers see of it: the files of a published skill are those of its release, all of them or none.
    ///
    /// Where live files differ from what was recorded, somebody changed them by hand, and the skill is shown as
    /// it lies there: but only when that is `proven`, by an index that did not change around the listing.
    pub(super) fn with_releases(mut self, index: &Index, below: &str, proven: bool) -> Self {
        let mut changed = false;
        for (path, skill) in &index.skills {
            let Some(managed) = skill.managed.as_ref() else { continue };
            if !(below.is_empty() || format!("{path}/").starts_with(below)) {
                continue;
            }
            let same = self.is_as_recorded(path, skill);
            let published = managed.state == State::Published;
            if published && same {
                for (name, file) in &skill.files {
                    if let Some(live) = self.files.get_mut(&format!("{path}/{name}")) {
                        live.release = Some(Released { sha256: file.sha256, live: true });
                    }
                }
                continue;
            }
            if published && proven {
                continue;
            }
            changed = true;
            let prefix = format!("{path}/");
            // `0` comes right after `/`.
            let behind = format!("{path}0");
            let mut rest = self.files.split_off(&prefix).split_off(&behind);
            self.files.append(&mut rest);
            self.directories.retain(|directory| directory != path && !directory.starts_with(&prefix));
            if matches!(managed.state, State::Removing { .. }) {
                // What held nothing else goes with it.
                let above: Vec<_> = parents(path).collect();
                for directory in above.into_iter().rev() {
                    if self.files_in(directory).next().is_some() {
                        break;
                    }
                    self.directories.remove(directory);
                }
                continue;
            }
            let modified = std::time::SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(managed.at));
            for (name, file) in &skill.files {
                let relative = format!("{path}/{name}");
                // An index may say anything; a file has a name.
                if VirtualPath::top_level("skills").join_exact(&relative).is_none() {
                    continue;
                }
                for parent in parents(&relative) {
                    self.directories.insert(parent.to_owned());
                }
                let etag = Some(format!("sha256-{}", file.sha256));
                let meta = Meta { size: file.size, modified, etag };
                let release = Some(Released { sha256: file.sha256, live: false });
                self.files.insert(relative, LayerFile { meta, release });
            }
        }
        if changed {
            self.skills.clear();
            self.find_skills();
        }
        self
    }

    /// Whether the files of a skill are those that the index has recorded, and no others.
    pub(super) fn is_as_recorded(&self, path: &str, skill: &IndexedSkill) -> bool {
        self.files_in(path).count() == skill.files.len()
            && self.files_in(path).all(|(name, live)| {
                let recorded = skill.files.get(name);
                recorded.is_some_and(|file| file.is(live.meta.size, live.meta.etag.as_deref()))
            })
    }

    /// The `DESCRIPTION.md` of each directory that holds skills.
    pub(super) fn descriptions(&self) -> impl Iterator<Item = (&str, &LayerFile)> {
        let mut categories: BTreeSet<&str> = BTreeSet::new();
        for skill in self.skills.keys() {
            categories.extend(parents(skill));
        }
        categories
            .into_iter()
            .filter_map(|path| Some((path, self.files.get(&format!("{path}/DESCRIPTION.md"))?)))
    }

    /// What it takes in memory, about.
    pub(super) fn weight(&self) -> u64 {
        let files: usize = self
            .files
            .iter()
            .map(|(path, file)| path.len() + file.meta.etag.as_ref().map_or(0, String::len) + 190)
            .sum();
        let others = self.markers.iter().chain(&self.unnameable);
        let names = self.directories.iter().chain(others).map(|path| path.len() + 60);
        let skills = self.skills.iter().map(|(path, file)| path.len() + file.len() + 100);
        (files + names.sum::<usize>() + skills.sum::<usize>()) as u64
    }

    fn add(&mut self, top: &Directory, relative: &str, meta: Meta) {
        let nameable = |relative: &str| top.path().join_exact(relative).is_some();
        // Every directory above it exists, as far as it can be named.
        let mut parents = relative.match_indices('/').map(|(at, _)| &relative[..at]);
        while let Some(parent) = parents.next().filter(|parent| nameable(parent)) {
            if !self.directories.contains(parent) {
                self.directories.insert(parent.to_owned());
            }
        }
        if nameable(relative) {
            self.files.insert(relative.to_owned(), LayerFile { meta, release: None });
        } else if meta.size == 0 && (relative.is_empty() || relative.strip_suffix('/').is_some_and(nameable))
        {
            self.markers.push(relative.to_owned());
        } else {
            self.unnameable.push(relative.to_owned());
        }
    }

    /// A skill is a directory that holds `SKILL.md`, in any letter case; the outermost one owns what
    /// lies below.
    fn find_skills(&mut self) {
        let mut found: BTreeMap<String, String> = BTreeMap::new();
        for path in self.files.keys() {
            let Some((directory, name)) = path.rsplit_once('/') else { continue };
            let Some(rank) = skill_file_rank(name) else { continue };
            match found.get(directory) {
                Some(known) if skill_file_rank(known) <= Some(rank) => {}
                _ => {
                    found.insert(directory.to_owned(), name.to_owned());
                }
            }
        }
        for (directory, name) in &found {
            if parents(directory).all(|parent| !found.contains_key(parent)) {
                self.skills.insert(directory.clone(), name.clone());
            }
        }
    }
}

/// What lies below a directory, with what follows the directory's own path.
fn below<'m, V>(files: &'m BTreeMap<String, V>, directory: &str) -> impl Iterator<Item = (&'m str, &'m V)> {
    let prefix = if directory.is_empty() { String::new() } else { format!("{directory}/") };
    let length = prefix.len();
    files
        .range(prefix.clone()..)
        .take_while(move |(path, _)| path.starts_with(&prefix))
        .map(move |(path, file)| (&path[length..], file))
}

/// The directories above a relative path, the nearest last.
fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

impl Union {
    /// What readers will see once an index is there.
    pub(crate) fn of_index(index: Index) -> Self {
        Self::of(&[Arc::new(Layer::of_index(index))])
    }

    pub(super) fn of(layers: &[Arc<Layer>]) -> Self {
        let mut union = Self { layers: layers.to_vec(), ..Self::default() };
        let listings = || layers.iter().map(|layer| &layer.listing).enumerate();
        for (layer, listing) in listings() {
            union.unnameable.extend(listing.unnameable.iter().cloned());
            let mut seen = Vec::new();
            for (path, file) in &listing.skills {
                match union.hides(path) {
                    Some((by, place)) => {
                        let (by, kept) = (by.to_owned(), place.layer);
                        let path = path.clone();
                        union.collisions.push(Collision { path, by, hidden_layer: layer, layer: kept });
                    }
                    None => seen.push((path.clone(), SkillPlace { layer, file: file.clone() })),
                }
            }
            union.skills.extend(seen);
        }
        for (layer, listing) in listings() {
            for (path, LayerFile { meta, release }) in &listing.files {
                match owner(path, &listing.skills) {
                    // A skill is seen whole or not at all.
                    Some(skill) if union.is_seen(skill, layer) => {}
                    Some(_) => continue,
                    None => {
                        // At a skill's own path, too: `read` would take the file for the skill's directory.
                        let at =
                            union.skills.get_key_value(path).map(|(skill, place)| (skill.as_str(), place));
                        let near = at.or_else(|| union.skill_above(path));
                        if let Some((by, place)) = near.filter(|(_, place)| place.layer != layer) {
                            let (path, by, kept) = (path.clone(), by.to_owned(), place.layer);
                            union.collisions.push(Collision { path, by, hidden_layer: layer, layer: kept });
                            continue;
                        }
                    }
                }
                for parent in parents(path) {
                    if !union.directories.contains(parent) {
                        union.directories.insert(parent.to_owned());
                    }
                }
                if !union.files.contains_key(path) {
                    let file = UnionFile { layer, meta: meta.clone(), release: *release };
                    union.files.insert(path.clone(), file);
                }
            }
            for directory in &listing.directories {
                let own = owner(directory, &listing.skills)
                    .or_else(|| listing.skills.get_key_value(directory).map(|(skill, _)| skill.as_str()));
                let elsewhere = |place: &SkillPlace| place.layer != layer;
                let above = union.skill_above(directory).is_some_and(|(_, place)| elsewhere(place))
                    || union.skills.get(directory).is_some_and(elsewhere);
                if own.is_none_or(|skill| union.is_seen(skill, layer))
                    && !above
                    && !union.directories.contains(directory)
                {
                    union.directories.insert(directory.clone());
                }
            }
        }
        union
    }

    /// What it takes in memory, about.
    pub(super) fn weight(&self) -> u64 {
        let files: usize = self
            .files
            .iter()
            .map(|(path, file)| path.len() + file.meta.etag.as_ref().map_or(0, String::len) + 200)
            .sum();
        let names = self.directories.iter().chain(&self.unnameable).map(|path| path.len() + 60);
        let skills = self.skills.iter().map(|(path, place)| path.len() + place.file.len() + 100);
        let hidden = self.collisions.iter().map(|collision| collision.path.len() + collision.by.len() + 80);
        (files + names.sum::<usize>() + skills.sum::<usize>() + hidden.sum::<usize>()) as u64
    }

    /// What the index of its library says of a skill, in the version that was listed: the name of its file
    /// and, in that order, its frontmatter or the beginning of its file.
    pub(crate) fn indexed_skill(&self, path: &str) -> Option<&IndexedSkill> {
        let place = self.skills.get(path)?;
        let listed = self.files.get(&format!("{path}/{}", place.file))?;
        self.layers.get(place.layer)?.indexed_skill(path, &place.file, listed)
    }

    /// The same of a category. `None` when it must be read.
    pub(crate) fn indexed_category(&self, path: &str) -> Option<&IndexedCategory> {
        let file = self.files.get(&format!("{path}/DESCRIPTION.md"))?;
        self.layers.get(file.layer)?.indexed_category(path, &file.meta)
    }

    /// The digest of a file of a skill, where the index knows this version.
    pub(crate) fn sha256(&self, skill: &str, name: &str, file: &UnionFile) -> Option<Sha256> {
        let known = file.release.map(|release| release.sha256);
        known.or_else(|| self.layers.get(file.layer)?.sha256(skill, name, &file.meta))
    }

    /// The index of a layer.
    pub(crate) fn index(&self, layer: usize) -> Option<&Index> {
        self.layers.get(layer)?.index()
    }

    /// The version of a layer's index that this was made with; `None` when there was none.
    pub(crate) fn index_etag(&self, layer: usize) -> Option<&str> {
        self.layers.get(layer)?.index_etag()
    }

    /// The `DESCRIPTION.md` of each category that has one.
    pub(crate) fn descriptions(&self) -> impl Iterator<Item = (&str, &UnionFile)> {
        let categories: BTreeSet<&str> = self.skills.keys().flat_map(|skill| parents(skill)).collect();
        let file = |path: &str| self.files.get(&format!("{path}/DESCRIPTION.md"));
        categories.into_iter().filter_map(move |path| Some((path, file(path)?)))
    }

    /// What a file of a skill holds: by its digest, where the index knows it, else by its ETag.
    fn digest(&self, skill: &str, name: &str, file: &UnionFile) -> String {
        match self.sha256(skill, name, file) {
            Some(sha256) => format!("sha256:{sha256}"),
            None => format!("etag:{}", file.meta.etag.as_deref().unwrap_or_default()),
        }
    }

    /// Changes whenever a skill, a description of a category or the order of the layers does.
    pub(super) fn version(&self, backend: &S3Backend) -> String {
        self.version.get_or_init(|| self.hash(backend)).clone()
    }

    fn hash(&self, backend: &S3Backend) -> String {
        let mut text = String::from("skillfs catalogue 1\n");
        for layer in 0..self.layers.len() {
            let library = backend.library_of(layer).map_or("", |library| library.as_str());
            text += &format!("layer {library}\n");
        }
        let mut digest = sha2::Sha256::new();
        for (path, place) in &self.skills {
            text += &format!("skill {} {path}\n", place.layer);
            for (name, file) in self.files_in(path) {
                text += &format!("{} {} {name}\n", file.meta.size, self.digest(path, name, file));
            }
            digest.update(&text);
            text.clear();
        }
        for (path, file) in self.descriptions() {
            let known = self.indexed_category(path).map(|category| category.file.sha256.to_string());
            let known = known.or_else(|| file.meta.etag.clone()).unwrap_or_default();
            text += &format!("category {} {known} {path}\n", file.layer);
        }
        digest.update(&text);
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn is_seen(&self, skill: &str, layer: usize) -> bool {
        self.skills.get(skill).is_some_and(|place| place.layer == layer)
    }

    /// A skill at, above or below a path.
    fn hides(&self, path: &str) -> Option<(&str, &SkillPlace)> {
        let at = self.skills.get_key_value(path).map(|(skill, place)| (skill.as_str(), place));
        let below = format!("{path}/");
        at.or_else(|| self.skill_above(path)).or_else(|| {
            let (skill, place) = self.skills.range(below.clone()..).next()?;
            skill.starts_with(&below).then_some((skill.as_str(), place))
        })
    }

    /// The skill that a path lies in.
    fn skill_above(&self, path: &str) -> Option<(&str, &SkillPlace)> {
        parents(path)
            .find_map(|parent| self.skills.get_key_value(parent))
            .map(|(skill, place)| (skill.as_str(), place))
    }

    /// Whether there is nothing at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.directories.is_empty() && self.unnameable.is_empty()
    }

    /// The skills that are seen, sorted by path.
    pub(crate) fn skills(&self) -> impl Iterator<Item = (&str, &SkillPlace)> {
        self.skills.iter().map(|(path, place)| (path.as_str(), place))
    }

    /// The skill at a path.
    pub(crate) fn skill(&self, path: &str) -> Option<&SkillPlace> {
        self.skills.get(path)
    }

    pub(crate) fn collisions(&self) -> &[Collision] {
        &self.collisions
    }

    pub(crate) fn file(&self, relative: &str) -> Option<&UnionFile> {
        self.files.get(relative)
    }

    pub(super) fn find(&self, path: &VirtualPath) -> Found<'_> {
        if let Some(found) = self.file(below_mount(path)) {
            return Found::File(path.clone(), found);
        }
        if let Some(md) = path.with_md()
            && let Some(found) = self.file(below_mount(&md))
        {
            return Found::File(md, found);
        }
        if self.is_directory(below_mount(path)) { Found::Directory } else { Found::Nothing }
    }

    pub(crate) fn is_directory(&self, relative: &str) -> bool {
        relative.is_empty() || self.directories.contains(relative)
    }

    /// The files below a directory, sorted by path, with what follows the directory's own path.
    pub(crate) fn files_in<'u>(&'u self, directory: &str) -> impl Iterator<Item = (&'u str, &'u UnionFile)> {
        below(&self.files, directory)
    }

    /// Folder markers at or below a directory that is seen: their layer, and their path with its `/`.
    pub(super) fn markers_in(&self, directory: &str) -> impl Iterator<Item = (usize, &str)> {
        let prefix = if directory.is_empty() { String::new() } else { format!("{directory}/") };
        let all = self.layers.iter().enumerate();
        all.flat_map(|(layer, at)| at.listing.markers.iter().map(move |marker| (layer, marker.as_str())))
            .filter(move |(_, marker)| marker.starts_with(&prefix))
            .filter(|(_, marker)| self.is_directory(marker.trim_end_matches('/')))
    }

    /// Keys that no path can name.
    pub(crate) fn unnameable(&self) -> &[String] {
        &self.unnameable
    }

    /// How many keys below a directory no path can name.
    pub(super) fn hidden_in(&self, directory: &str) -> u64 {
        let prefix = if directory.is_empty() { String::new() } else { format!("{directory}/") };
        self.unnameable.iter().filter(|path| path.starts_with(&prefix)).count() as u64
    }

    /// The entries below a directory: its own, or all of them.
    pub(super) fn entries(&self, mount: &VirtualPath, relative: &str, all: bool) -> Page {
        let prefix = if relative.is_empty() { String::new() } else { format!("{relative}/") };
        let wanted = |path: &str| {
            path.strip_prefix(prefix.as_str())
                .is_some_and(|rest| !rest.is_empty() && (all || !rest.contains('/')))
        };
        let below = self.unnameable.iter().filter_map(|path| path.strip_prefix(prefix.as_str()));
        let hidden = if all {
            below.count()
        } else {
            // One for each entry of this level that has no name.
            let first = below.map(|rest| rest.split_inclusive('/').next().unwrap_or_default());
            let nameless =
                |name: &&str| mount.join_exact(name.trim_end_matches('/')).is_none() || name.is_empty();
            first.filter(nameless).collect::<BTreeSet<_>>().len()
        };
        let mut page = Page { entries: Vec::new(), hidden: hidden as u64 };
        for path in self.directories.iter().filter(|path| wanted(path)) {
            page.entries.extend(mount.join_exact(path).map(Entry::directory));
        }
        for (path, found) in self.files.iter().filter(|(path, _)| wanted(path)) {
            page.entries.extend(mount.join_exact(path).map(|path| file(path, &found.meta)));
        }
        page.entries.sort_by(Entry::by_key);
        page
    }
}

/// The skill of a layer that a path lies in.
fn owner<'s>(path: &str, skills: &'s BTreeMap<String, String>) -> Option<&'s str> {
    parents(path).find_map(|parent| skills.get_key_value(parent)).map(|(skill, _)| skill.as_str())
}

/// What is behind `/skills/`; empty for the mount itself.
pub(crate) fn below_mount(path: &VirtualPath) -> &str {
    path.as_str()[1..].split_once('/').map_or("", |(_, relative)| relative)
}
