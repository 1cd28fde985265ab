//! The union of all libraries: `/skills` as one tree. Pure code over [`View`]s.
//!
//! Libraries are layers. A skill in an earlier layer shadows every later skill at, above or below
//! its path, always as a unit and never file by file. Among loose files, the one in the earlier
//! layer wins. If a layer is broken, the layers before it are still served; whatever could come
//! from it or from a later layer is unavailable.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Deref};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use sha2::Digest as _;

use super::view::{View, ViewFile, below, prefix_of, skill_above, skill_around};
use crate::error::{Error, ErrorKind, Result};
use crate::index::{Digest, SkillHead};
use crate::path::{SkillPath, VirtualPath, parents};

/// The merged tree of all layers, or of the part below one name. Paths are relative to `/skills`.
#[derive(Debug, Default)]
pub(crate) struct Union {
    /// Paths and files are shared with the layers: many users share a library, but each has a
    /// separate union.
    files: BTreeMap<Arc<str>, UnionFile>,
    directories: BTreeSet<Arc<str>>,
    skills: BTreeMap<SkillPath, SkillPlace>,
    pub(crate) collisions: Vec<Collision>,
    /// Keys that no path can name.
    pub(crate) unnameable: Vec<String>,
    layers: Vec<Arc<View>>,
    /// The first layer that cannot be read, if any.
    pub(crate) broken: Option<Broken>,
    version: OnceLock<String>,
    /// Unique within this process. Identifies the union that a cached value was derived from.
    pub(crate) id: u64,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A visible file, and the layer that it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnionFile {
    pub(crate) layer: usize,
    file: Arc<ViewFile>,
}

impl Deref for UnionFile {
    type Target = ViewFile;

    fn deref(&self) -> &ViewFile {
        &self.file
    }
}

/// A visible skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SkillPlace {
    pub(crate) layer: usize,
    /// The name of its `SKILL.md`, in its original letter case.
    pub(crate) file: String,
}

/// A path of a later layer that is shadowed by a skill of an earlier one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Collision {
    /// The shadowed path.
    pub(crate) path: String,
    /// The skill that shadows it.
    pub(crate) by: SkillPath,
    pub(crate) hidden_layer: usize,
    pub(crate) layer: usize,
}

impl Collision {
    fn of(path: &str, hidden_layer: usize, (by, place): (&SkillPath, &SkillPlace)) -> Self {
        Self { path: path.to_owned(), by: by.clone(), hidden_layer, layer: place.layer }
    }
}

/// A layer that cannot be read. Neither it nor any later layer is part of the union.
#[derive(Debug, Clone)]
pub(crate) struct Broken {
    pub(crate) layer: usize,
    /// The display name of the library.
    pub(crate) library: String,
    pub(crate) error: Arc<Error>,
}

/// What a path resolves to, by the rules of `read` and `stat`.
#[derive(Debug)]
pub(crate) enum Found<'u> {
    File(VirtualPath, &'u UnionFile),
    Directory,
    Nothing,
}

impl Union {
    pub(super) fn of(layers: Vec<Arc<View>>, broken: Option<Broken>) -> Self {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let mut union = Self { layers, broken, id, ..Self::default() };
        let layers = union.layers.clone();
        for (layer, view) in layers.iter().enumerate() {
            union.unnameable.extend(view.unnameable.iter().cloned());
            let mut seen = Vec::new();
            for (path, file) in &view.skills {
                match union.shadowing_skill(path.as_str()) {
                    Some(by) => union.collisions.push(Collision::of(path.as_str(), layer, by)),
                    None => seen.push((path.clone(), SkillPlace { layer, file: file.clone() })),
                }
            }
            union.skills.extend(seen);
        }
        for (layer, view) in layers.iter().enumerate() {
            union.add_files(layer, view);
            union.add_directories(layer, view);
        }
        union
    }

    /// Creates the union of a single library.
    pub(crate) fn single(view: View) -> Self {
        Self::of(vec![Arc::new(view)], None)
    }

    fn add_files(&mut self, layer: usize, view: &View) {
        for (path, file) in &view.files {
            if let Some((skill, _)) = skill_above(&view.skills, path) {
                // A skill is visible as a unit or not at all.
                if !self.is_visible(skill, layer) {
                    continue;
                }
            } else if let Some(by) = self.skill_of_other_layer(path, layer) {
                // Also at the path of the skill itself: `read` would confuse the file with the
                // skill's directory.
                self.collisions.push(Collision::of(path, layer, by));
                continue;
            }
            for parent in parents(path) {
                if !self.directories.contains(parent) {
                    self.directories.extend(view.directories.get(parent).cloned());
                }
            }
            if !self.files.contains_key(path) {
                let file = UnionFile { layer, file: file.clone() };
                self.files.insert(path.clone(), file);
            }
        }
    }

    /// Adds directories without files, which come from folder markers and keys that no path can
    /// name.
    fn add_directories(&mut self, layer: usize, view: &View) {
        for directory in &view.directories {
            let own = skill_around(&view.skills, directory);
            if own.is_none_or(|(skill, _)| self.is_visible(skill, layer))
                && self.skill_of_other_layer(directory, layer).is_none()
                && !self.directories.contains(directory)
            {
                self.directories.insert(directory.clone());
            }
        }
    }

    /// Whether this union was built from exactly these layers.
    pub(super) fn is_of(&self, layers: &[Arc<View>]) -> bool {
        self.broken.is_none()
            && self.layers.len() == layers.len()
            && self.layers.iter().zip(layers).all(|(own, layer)| Arc::ptr_eq(own, layer))
    }

    /// For each layer, whether it is plain, that is, was listed.
    pub(crate) fn plain_layers(&self) -> Vec<bool> {
        self.layers.iter().map(|layer| layer.index.is_none()).collect()
    }

    /// Layers whose latest index cannot be used while an older one is served, with the reason.
    pub(crate) fn troubles(&self) -> impl Iterator<Item = (usize, &str)> {
        let all = self.layers.iter().enumerate();
        all.filter_map(|(layer, view)| Some((layer, view.trouble.as_deref()?)))
    }

    /// Resolves a path. Fails if a broken layer could have something there.
    pub(crate) fn find(&self, path: &VirtualPath) -> Result<Found<'_>> {
        if let Some(found) = self.file(path.below_mount()) {
            return Ok(Found::File(path.clone(), found));
        }
        if let Some(md) = path.with_md()
            && let Some(found) = self.file(md.below_mount())
        {
            return Ok(Found::File(md, found));
        }
        if self.is_directory(path.below_mount()) {
            return Ok(Found::Directory);
        }
        self.check_complete(path)?;
        Ok(Found::Nothing)
    }

    /// Checks that the readable layers determine everything at and below a path.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if a broken layer could add to it.
    pub(crate) fn check_complete(&self, path: &VirtualPath) -> Result<()> {
        let Some(broken) = &self.broken else { return Ok(()) };
        let relative = path.below_mount();
        if skill_around(&self.skills, relative).is_some() {
            return Ok(());
        }
        let Broken { library, error, .. } = broken;
        let message =
            format!("`{path}` is unavailable, because {library} cannot be read: {}", error.message());
        let hint = "skills of earlier libraries can still be read";
        let unavailable = Error::new(ErrorKind::Unavailable, message).at(path).with_hint(hint);
        Err(if error.is_retryable() { unavailable } else { unavailable.lasting() })
    }

    /// Returns the head of a skill's `SKILL.md` from the index of a published library.
    pub(crate) fn head(&self, skill: &str) -> Option<&SkillHead> {
        let place = self.skills.get(skill)?;
        self.layers.get(place.layer)?.index.as_ref()?.heads.get(skill)
    }

    /// Returns the description of a category from the index of a published library. `None` if the
    /// file must be read.
    pub(crate) fn description(&self, category: &str) -> Option<Option<&str>> {
        let file = self.files.get(&*format!("{category}/DESCRIPTION.md"))?;
        let index = self.layers.get(file.layer)?.index.as_ref()?;
        Some(index.categories.get(category).map(String::as_str))
    }

    /// When the latest release of a layer became visible, by the clock of S3.
    pub(super) fn released(&self, layer: usize) -> Option<SystemTime> {
        self.layers.get(layer)?.released
    }

    /// Approximate memory usage.
    pub(super) fn weight(&self) -> u64 {
        // Names are shared with the layers, so a file counts only as a map entry.
        let shared = self.files.len() * 50 + self.directories.len() * 25;
        let own = self.skills.len() + self.collisions.len() + self.unnameable.len();
        // The union keeps its layers alive, as other unions do: count a share of each.
        let part = |layer: &Arc<View>| layer.weight() / Arc::strong_count(layer) as u64;
        (shared + own * 150) as u64 + self.layers.iter().map(part).sum::<u64>()
    }

    /// Returns the `DESCRIPTION.md` of each category that has one.
    pub(crate) fn descriptions(&self) -> impl Iterator<Item = (&str, &UnionFile)> {
        let categories: BTreeSet<&str> = self.skills.keys().flat_map(SkillPath::parents).collect();
        let file = |path: &str| self.files.get(&*format!("{path}/DESCRIPTION.md"));
        categories.into_iter().filter_map(move |path| Some((path, file(path)?)))
    }

    /// Returns a token that changes whenever a skill, the description of a category or the order of
    /// the layers changes. `names` are the names of the libraries.
    pub(super) fn version(&self, names: impl Iterator<Item = String>) -> String {
        self.version.get_or_init(|| self.hash(names)).clone()
    }

    fn hash(&self, names: impl Iterator<Item = String>) -> String {
        let mut text = String::from("skillfs catalog 2\n");
        for name in names {
            text += &format!("layer {name}\n");
        }
        if let Some(broken) = &self.broken {
            text += &format!("broken {}\n", broken.layer);
        }
        let version = |file: &UnionFile| file.meta.etag.clone().unwrap_or_default();
        let mut digest = sha2::Sha256::new();
        for (path, place) in &self.skills {
            text += &format!("skill {} {path}\n", place.layer);
            for (name, file) in self.files_in(path.as_str()) {
                text += &format!("{} {} {name}\n", file.meta.size, version(file));
            }
            digest.update(&text);
            text.clear();
        }
        for (path, file) in self.descriptions() {
            text += &format!("category {} {} {path}\n", file.layer, version(file));
        }
        digest.update(&text);
        Digest::finish(digest).to_string()
    }

    fn is_visible(&self, skill: &SkillPath, layer: usize) -> bool {
        self.skills.get(skill).is_some_and(|place| place.layer == layer)
    }

    /// Returns a skill at, above or below a path.
    fn shadowing_skill(&self, path: &str) -> Option<(&SkillPath, &SkillPlace)> {
        let below = format!("{path}/");
        skill_around(&self.skills, path).or_else(|| {
            let from = (Bound::Included(below.as_str()), Bound::Unbounded);
            let (skill, place) = self.skills.range::<str, _>(from).next()?;
            skill.as_str().starts_with(&below).then_some((skill, place))
        })
    }

    /// Returns the skill that contains a path.
    pub(crate) fn skill_of(&self, path: &str) -> Option<&SkillPath> {
        skill_above(&self.skills, path).map(|(skill, _)| skill)
    }

    /// Returns the skill of another layer at a path, or that contains it.
    fn skill_of_other_layer(&self, path: &str, layer: usize) -> Option<(&SkillPath, &SkillPlace)> {
        skill_around(&self.skills, path).filter(|(_, place)| place.layer != layer)
    }

    /// Whether the union has no keys at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.directories.is_empty() && self.unnameable.is_empty()
    }

    /// Returns the visible skills, sorted by path.
    pub(crate) fn skills(&self) -> impl Iterator<Item = (&SkillPath, &SkillPlace)> {
        self.skills.iter()
    }

    /// Returns the skill at a path.
    pub(crate) fn skill(&self, path: &str) -> Option<&SkillPlace> {
        self.skills.get(path)
    }

    pub(crate) fn file(&self, relative: &str) -> Option<&UnionFile> {
        self.files.get(relative)
    }

    pub(crate) fn is_directory(&self, relative: &str) -> bool {
        relative.is_empty() || self.directories.contains(relative)
    }

    /// Returns the files below a directory, sorted by path, with paths relative to the directory.
    pub(crate) fn files_in<'u>(&'u self, directory: &str) -> impl Iterator<Item = (&'u str, &'u UnionFile)> {
        below(&self.files, directory)
    }

    /// Returns folder markers at or below a visible directory: the layer, and the path with its
    /// trailing `/`.
    pub(super) fn markers_in(&self, directory: &str) -> impl Iterator<Item = (usize, &str)> {
        let prefix = prefix_of(directory);
        let all = self.layers.iter().enumerate();
        all.flat_map(|(layer, at)| at.markers.iter().map(move |marker| (layer, marker.as_str())))
            .filter(move |(_, marker)| marker.starts_with(&prefix))
            .filter(|(_, marker)| self.is_directory(marker.trim_end_matches('/')))
    }

    /// The number of keys that are not files: folder markers, and keys that no path can name.
    pub(crate) fn left_out(&self) -> u64 {
        let markers: usize = self.layers.iter().map(|layer| layer.markers.len()).sum();
        (markers + self.unnameable.len()) as u64
    }

    /// Returns the entries of a directory, or everything below it, in key order, and how many keys
    /// there no path can name. The file is `None` for a directory.
    pub(super) fn items(
        &self,
        directory: &VirtualPath,
        all: bool,
    ) -> (Vec<(VirtualPath, Option<&UnionFile>)>, u64) {
        let relative = directory.below_mount();
        let wanted = |rest: &str| all || !rest.contains('/');
        let mut items = Vec::new();
        for path in self.directories_in(relative).filter(|path| wanted(path)) {
            items.extend(directory.join_exact(path).map(|path| (path, None)));
        }
        for (path, found) in self.files_in(relative).filter(|(path, _)| wanted(path)) {
            items.extend(directory.join_exact(path).map(|path| (path, Some(found))));
        }
        // A directory sorts as its name with a trailing slash.
        fn key<'k>((path, found): &'k (VirtualPath, Option<&UnionFile>)) -> impl Iterator<Item = u8> + 'k {
            path.as_str().bytes().chain(found.is_none().then_some(b'/'))
        }
        items.sort_by(|a, b| key(a).cmp(key(b)));
        (items, self.hidden_below(directory, all))
    }

    fn directories_in<'u>(&'u self, directory: &str) -> impl Iterator<Item = &'u str> {
        let prefix = prefix_of(directory);
        let all = self.directories.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
        all.map_while(move |path| path.strip_prefix(prefix.as_str()))
    }

    /// Counts the keys below a directory that no path can name.
    fn hidden_below(&self, directory: &VirtualPath, all: bool) -> u64 {
        let prefix = prefix_of(directory.below_mount());
        let below = self.unnameable.iter().filter_map(|path| path.strip_prefix(prefix.as_str()));
        if all {
            return below.count() as u64;
        }
        // Count each entry at this level once.
        let first = below.map(|rest| rest.split_inclusive('/').next().unwrap_or_default());
        let nameless =
            |name: &&str| directory.join_exact(name.trim_end_matches('/')).is_none() || name.is_empty();
        first.filter(nameless).collect::<BTreeSet<_>>().len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{BlobOrigin, Index, IndexKind, IndexedFile, ReleaseId};
    use crate::store::Meta;

    /// A published library with these files.
    fn view(files: &[&str]) -> Arc<View> {
        let id = ReleaseId::parse("r1").unwrap();
        let origin = Arc::new(BlobOrigin { id: id.clone(), release: 1, at: 1 });
        let mut index = Index::new(IndexKind::Published, id);
        for path in files {
            let (blob, since) = (origin.clone(), origin.clone());
            let file = IndexedFile { size: 1, sha256: Digest::of(path.as_bytes()), blob, since };
            index.files.insert((*path).to_owned(), file);
        }
        Arc::new(View::published(Arc::new(index)))
    }

    /// The visible files as `path@layer`, with a `*` for the `SKILL.md` of a skill.
    fn visible(union: &Union) -> Vec<String> {
        let file = |(path, file): (&str, &UnionFile)| {
            let skill =
                union.skill_of(path).and_then(|skill| Some((skill.as_str(), union.skill(skill.as_str())?)));
            let is_skill = skill.is_some_and(|(skill, place)| path[skill.len() + 1..] == place.file);
            format!("{path}@{}{}", file.layer, if is_skill { "*" } else { "" })
        };
        union.files_in("").map(file).collect()
    }

    fn broken(layer: usize) -> Broken {
        let error = Arc::new(Error::new(ErrorKind::Corrupt, "it is damaged"));
        Broken { layer, library: "the shared library `acme`".to_owned(), error }
    }

    #[test]
    fn earlier_layers_win() {
        let check = |layers: &[&[&str]], expected: &[&str], hidden: &[&str]| {
            let union = Union::of(layers.iter().map(|files| view(files)).collect(), None);
            assert_eq!(visible(&union), expected, "{layers:?}");
            let collisions: Vec<_> = union.collisions.iter().map(|hidden| hidden.path.as_str()).collect();
            assert_eq!(collisions, hidden, "{layers:?}");
        };
        check(&[], &[], &[]);
        check(&[&["a/SKILL.md", "a/x"]], &["a/SKILL.md@0*", "a/x@0"], &[]);
        // Side by side.
        check(&[&["a/SKILL.md"], &["b/SKILL.md"]], &["a/SKILL.md@0*", "b/SKILL.md@1*"], &[]);
        // At the same path: shadowed as a unit, never file by file.
        check(&[&["a/SKILL.md"], &["a/SKILL.md", "a/y"]], &["a/SKILL.md@0*"], &["a"]);
        // Above and below.
        check(&[&["a/b/SKILL.md"], &["a/SKILL.md", "a/z"]], &["a/b/SKILL.md@0*"], &["a"]);
        check(&[&["a/SKILL.md"], &["a/b/SKILL.md"]], &["a/SKILL.md@0*"], &["a/b"]);
        // In any letter case, by precedence.
        check(&[&["a/skill.md", "a/Skill.MD"]], &["a/Skill.MD@0", "a/skill.md@0*"], &[]);
        // A skill inside a skill is a resource.
        check(&[&["a/SKILL.md", "a/b/SKILL.md"]], &["a/SKILL.md@0*", "a/b/SKILL.md@0"], &[]);
        // Among loose files the earlier layer wins; a skill shadows everything inside it.
        check(&[&["n.md"], &["n.md", "m.md"]], &["m.md@1", "n.md@0"], &[]);
        check(&[&["a/n.md"], &["a/SKILL.md"]], &["a/SKILL.md@1*"], &["a/n.md"]);
        // Three layers: the second shadows parts of the third.
        check(
            &[&["a/SKILL.md"], &["b/SKILL.md"], &["a/SKILL.md", "b/SKILL.md", "c/SKILL.md"]],
            &["a/SKILL.md@0*", "b/SKILL.md@1*", "c/SKILL.md@2*"],
            &["a", "b"],
        );
    }

    #[test]
    fn a_broken_layer_makes_uncovered_paths_unavailable() {
        let layers = || vec![view(&["c/a/SKILL.md", "c/a/x.md", "c/DESCRIPTION.md"])];
        let union = Union::of(layers(), Some(broken(1)));
        let find = |path: &str| {
            let path = VirtualPath::parse(&format!("/skills/{path}")).unwrap();
            union.find(&path).map(|found| matches!(found, Found::File(..))).map_err(|error| error.kind())
        };
        for (path, expected) in [
            ("c/a/SKILL.md", Ok(true)),
            ("c/a/x", Ok(true)),
            ("c/a", Ok(false)),
            ("c/a/none", Ok(false)),
            ("c/DESCRIPTION.md", Ok(true)),
            ("c/b/SKILL.md", Err(ErrorKind::Unavailable)),
            ("d", Err(ErrorKind::Unavailable)),
        ] {
            assert_eq!(find(path), expected, "{path}");
        }
        let complete = |path: &str| union.check_complete(&VirtualPath::parse(path).unwrap()).is_ok();
        assert!(complete("/skills/c/a") && complete("/skills/c/a/x.md"));
        assert!(!complete("/skills") && !complete("/skills/c") && !complete("/skills/c/b"));
        // Without a broken layer everything is complete, and the catalog version differs.
        let whole = Union::of(layers(), None);
        assert!(whole.check_complete(&VirtualPath::parse("/skills").unwrap()).is_ok());
        let names = || std::iter::once(String::new());
        assert_ne!(whole.version(names()), union.version(names()));
    }

    #[test]
    fn plain_and_published_views_agree() {
        let library = crate::mount::Library::User(crate::id::UserId::parse("u1").unwrap());
        let object = |key: &str, size| crate::store::Listed::Object {
            key: format!("u1/skills/{key}"),
            meta: Meta { size, modified: None, etag: Some("e".into()) },
        };
        let listed = ["a/SKILL.md", "a/b/x.md", "n.md"];
        let odd = [object("empty/", 0), object("a//x", 1), object("../y", 1)];
        let items = listed.iter().map(|key| object(key, 1)).chain(odd).collect();
        let plain = View::plain(&library.skills(), items);
        let published = view(&listed);
        let paths = |view: &View| view.files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(paths(&plain), paths(&published));
        assert_eq!(plain.skills, published.skills);
        assert_eq!((plain.markers.len(), plain.unnameable.len()), (1, 2));
        assert!(plain.directories.contains("empty") && !published.directories.contains("empty"));
    }
}
