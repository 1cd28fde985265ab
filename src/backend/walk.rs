//! Directory walks, page by page. `ls`, `tree`, `glob`, `grep` and copies all use this one listing.

use std::collections::VecDeque;

use super::S3Backend;
use super::file::{Content, File, Version, not_a_directory};
use super::union::UnionFile;
use crate::entry::{Depth, Entry};
use crate::error::Result;
use crate::mount::{Directory, Layer, Location, ObjectKey};
use crate::path::VirtualPath;
use crate::store::{Body, ByteRange, Listed, Lister, Meta};

/// A directory to list.
#[derive(Debug, Clone)]
pub(super) enum WalkRoot {
    Directory(Directory),
    /// A path below `/skills`.
    Layered(VirtualPath),
}

/// An item of a listing.
#[derive(Debug, Clone)]
pub(super) enum Item {
    File(Candidate),
    Directory(VirtualPath),
    /// A folder marker: its key, and its path relative to the listed directory, with its trailing
    /// `/`.
    Marker(ObjectKey, String),
}

/// A listed file.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) path: VirtualPath,
    pub(super) at: At,
}

/// What exists at a path below which nothing was listed.
#[derive(Debug)]
pub(super) enum Unlisted {
    File(Candidate),
    Directory,
    Nothing,
}

/// The location of a listed file.
#[derive(Debug, Clone)]
pub(super) enum At {
    Key(ObjectKey, Meta),
    /// A file in the union.
    Union(UnionFile),
}

impl Candidate {
    pub(super) fn meta(&self) -> &Meta {
        match &self.at {
            At::Key(_, meta) => meta,
            At::Union(found) => &found.meta,
        }
    }

    pub(super) fn entry(&self) -> Entry {
        self.meta().entry(self.path.clone())
    }
}

/// A page of items in key order, and how many keys among them no path can name.
#[derive(Debug, Default)]
pub(super) struct WalkPage {
    pub(super) items: Vec<Item>,
    pub(super) hidden: u64,
}

/// A listing in progress.
#[derive(Debug)]
pub(super) struct Walk {
    backend: S3Backend,
    depth: Depth,
    /// The first page, which needs no request: the mounts, when `/` is listed.
    mounts: Option<WalkPage>,
    /// What is left to list. More than one root only when `/` is listed.
    left: VecDeque<WalkRoot>,
    lister: Option<Lister>,
    /// The directories of the last key of a recursive listing.
    open: Vec<String>,
    /// Whether anything was found in the current root.
    found: bool,
    /// Whether anything was found at all.
    pub(super) found_any: bool,
    /// The object with the same name as the listed directory. Checked if the directory is empty.
    own_key: Option<ObjectKey>,
}

impl S3Backend {
    /// Returns what to list for a path, or `None` for `/`.
    pub(super) fn place(&self, path: &VirtualPath) -> Result<Option<WalkRoot>> {
        Ok(match self.mounts.resolve(path)? {
            Location::Mount(directory) => Some(WalkRoot::Directory(directory)),
            Location::Inside { layer, .. } => Some(WalkRoot::Directory(layer.directory(path))),
            Location::Layered => Some(WalkRoot::Layered(path.clone())),
            Location::Root => None,
        })
    }

    /// Determines what exists at a path below which nothing was found. `listed` says whether the
    /// path itself was listed, and not only a part of it.
    pub(super) async fn unlisted(&self, path: &VirtualPath, listed: bool) -> Result<Unlisted> {
        let at = match self.mounts.resolve(path)? {
            Location::Root | Location::Mount(_) => return Ok(Unlisted::Directory),
            Location::Layered => {
                let union = self.union_around(path).await?;
                union.check_complete(path)?;
                match union.file(path.below_mount()) {
                    Some(found) => Some(At::Union(found.clone())),
                    None if union.is_directory(path.below_mount()) => return Ok(Unlisted::Directory),
                    None => None,
                }
            }
            Location::Inside { layer, .. }
                if !listed && self.is_directory(&layer.directory(path)).await? =>
            {
                return Ok(Unlisted::Directory);
            }
            Location::Inside { key, .. } => self.head(path, &key).await?.map(|meta| At::Key(key, meta)),
        };
        Ok(at.map_or(Unlisted::Nothing, |at| Unlisted::File(Candidate { path: path.clone(), at })))
    }

    /// Returns the roots of all mounts.
    pub(super) fn all_places(&self) -> Result<VecDeque<WalkRoot>> {
        self.mounts().filter_map(|mount| self.place(mount.path()).transpose()).collect()
    }

    /// Converts a listed file into one that can be opened: below `/skills` in the listed version,
    /// elsewhere in the latest.
    pub(super) fn candidate_file(&self, candidate: &Candidate) -> Result<File> {
        match &candidate.at {
            At::Union(found) => self.listed_file(&candidate.path, found),
            At::Key(key, meta) => Ok(File {
                path: candidate.path.clone(),
                key: key.clone(),
                meta: meta.clone(),
                version: Version::Latest,
                content: Content::Unread,
            }),
        }
    }

    /// Opens a listed file completely. Returns `None` if it has been deleted.
    pub(super) async fn open_candidate(
        &self,
        candidate: &Candidate,
        file: &File,
    ) -> Result<Option<(Meta, Box<Body>)>> {
        match &candidate.at {
            At::Key(..) => self.open(file, ByteRange::WHOLE).await,
            At::Union(found) => {
                let body = self.open_version(file, found, ByteRange::WHOLE).await?;
                Ok(Some((file.meta.clone(), body)))
            }
        }
    }
}

impl Walk {
    pub(super) fn new(backend: S3Backend, depth: Depth, left: VecDeque<WalkRoot>) -> Self {
        let (mounts, lister, open, own_key) = (None, None, Vec::new(), None);
        Self { backend, depth, mounts, left, lister, open, found: false, found_any: false, own_key }
    }

    /// Lists what is below a directory, which must exist. For `/`, lists the mounts and their
    /// contents.
    pub(super) fn of(backend: S3Backend, path: &VirtualPath, depth: Depth) -> Result<Self> {
        let own_key = match backend.mounts.resolve(path)? {
            Location::Inside { key, .. } => Some(key),
            _ => None,
        };
        if let Some(place) = backend.place(path)? {
            return Ok(Self { own_key, ..Self::new(backend, depth, [place].into()) });
        }
        let items = backend.mounts().map(|mount| Item::Directory(mount.path().clone())).collect();
        let left = if depth == Depth::All { backend.all_places()? } else { VecDeque::new() };
        Ok(Self { mounts: Some(WalkPage { items, hidden: 0 }), ..Self::new(backend, depth, left) })
    }

    /// Returns the next non-empty page.
    pub(super) async fn next(&mut self) -> Result<Option<WalkPage>> {
        if let Some(mounts) = self.mounts.take() {
            return Ok(Some(mounts));
        }
        while let Some(place) = self.left.front().cloned() {
            let page = match place {
                WalkRoot::Layered(path) => {
                    let page = self.union_page(&path).await?;
                    self.left.pop_front();
                    page
                }
                WalkRoot::Directory(directory) => {
                    let lister =
                        self.lister.get_or_insert_with(|| Lister::new(directory.prefix(), self.depth));
                    let listed = lister.next(self.backend.store()).await;
                    match listed.map_err(|e| e.during("list", directory.path()))? {
                        Some(listed) => self.page(&directory, listed),
                        None => {
                            self.finish_root(&directory).await?;
                            continue;
                        }
                    }
                }
            };
            if !page.items.is_empty() || page.hidden > 0 {
                self.found_any = true;
                return Ok(Some(page));
            }
        }
        Ok(None)
    }

    /// Finishes a root. An empty mount is fine; any other path without keys is a file or does not
    /// exist.
    async fn finish_root(&mut self, directory: &Directory) -> Result<()> {
        let path = directory.path();
        if let Some(key) = self.own_key.as_ref().filter(|_| !self.found) {
            let head = self.backend.store().head(key).await.map_err(|e| e.during("list", path))?;
            return Err(match head {
                Some(_) => not_a_directory(path),
                None => S3Backend::not_found(path),
            });
        }
        self.left.pop_front();
        self.lister = None;
        self.open.clear();
        self.found = false;
        Ok(())
    }

    fn page(&mut self, directory: &Directory, listed: Vec<Listed>) -> WalkPage {
        (self.found, self.found_any) = (true, true);
        let mut page = WalkPage::default();
        for listed in listed {
            match listed {
                Listed::Object { key, meta } => self.add_object(directory, &key, meta, &mut page),
                Listed::Prefix(prefix) => {
                    match prefix.strip_suffix('/').and_then(|key| directory.path_of(key)) {
                        Some(path) => page.items.push(Item::Directory(path)),
                        None => page.hidden += 1,
                    }
                }
            }
        }
        page
    }

    /// Adds an object, preceded by its directories that have not been emitted yet.
    fn add_object(&mut self, directory: &Directory, key: &str, meta: Meta, page: &mut WalkPage) {
        let Some(relative) = directory.relative(key) else {
            page.hidden += 1;
            return;
        };
        let mut parents: Vec<&str> = relative.split('/').collect();
        parents.pop();
        let same = self.open.iter().zip(&parents).take_while(|(open, parent)| open == *parent).count();
        self.open.truncate(same);
        for depth in same..parents.len() {
            let Some(path) = directory.path().join_exact(&parents[..=depth].join("/")) else {
                page.hidden += 1;
                return;
            };
            page.items.push(Item::Directory(path));
            self.open.push(parents[depth].to_owned());
        }
        match directory.file(key) {
            Some((path, key)) => page.items.push(Item::File(Candidate { path, at: At::Key(key, meta) })),
            None => match directory.marker(key).filter(|_| meta.size == 0) {
                Some(marker) => page.items.push(Item::Marker(marker, relative.to_owned())),
                None => page.hidden += 1,
            },
        }
    }

    /// Lists the union of all layers as one page.
    async fn union_page(&self, path: &VirtualPath) -> Result<WalkPage> {
        let relative = path.below_mount();
        let mut union = self.backend.union_of_first(path).await?;
        if !union.is_directory(relative) {
            // Not a directory. The union around the path shows whether it is a file.
            union = self.backend.union_around(path).await?;
            union.check_complete(path)?;
            return Err(match union.file(relative) {
                Some(_) => not_a_directory(path),
                None => S3Backend::not_found(path),
            });
        }
        union.check_complete(path)?;
        let (found, hidden) = union.items(path, self.depth == Depth::All);
        let item = |(path, found): (VirtualPath, Option<&UnionFile>)| match found {
            Some(found) => Item::File(Candidate { path, at: At::Union(found.clone()) }),
            None => Item::Directory(path),
        };
        let mut items: Vec<_> = found.into_iter().map(item).collect();
        if self.depth == Depth::All {
            let layers = self.backend.mounts.skill_layers();
            for (layer, marker) in union.markers_in(relative) {
                let below = marker.strip_prefix(relative).unwrap_or(marker).trim_start_matches('/');
                let key = |layer: &Layer| layer.top().marker(&format!("{}{marker}", layer.prefix()));
                items.extend(layers.get(layer).and_then(key).map(|key| Item::Marker(key, below.to_owned())));
            }
        }
        Ok(WalkPage { items, hidden })
    }
}
