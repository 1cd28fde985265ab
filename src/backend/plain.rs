//! Files of a plain mount: a path is a key.
//!
//! What a path means is found by asking for the key, for the key with `.md`, and for anything below it; what is found
//! is kept for as long as [`Freshness::files`](crate::Freshness) says, unless this process changes it.

use std::sync::Arc;

use super::S3Backend;
use super::file::{Content, File, Node, Opened, Version, Want, keeps_changing};
use crate::cache::{About, Accept, Detail, Kept, Key};
use crate::entry::Depth;
use crate::error::Result;
use crate::mount::{Directory, Location, ObjectKey, WritableKey};
use crate::path::VirtualPath;
use crate::store::{ByteRange, Expect, Fetched, Lister, Meta};
use crate::text;

/// How often a file is read again when it changes under the reader.
const ATTEMPTS: u32 = 3;

/// A path inside a plain mount.
#[derive(Debug, Clone)]
pub(super) struct PlainPath {
    pub(super) path: VirtualPath,
    pub(super) key: ObjectKey,
    pub(super) directory: Directory,
}

impl S3Backend {
    /// What a path means. Two requests at most for a file, none while it is known.
    pub(super) async fn find_plain(&self, at: PlainPath, want: Want) -> Result<Arc<Node>> {
        let key = Key::new(About::object(&at.key), Detail::Only);
        let bound = self.bound(&at.path);
        let usable = |node: &Node| node.meets(want);
        // Each wants something else, and may fail for another reason: all bytes may be too many where a window is not.
        let accept = Accept { bound, fetches: want.detail(), usable, refresh: true };
        let fetch = |prior| self.clone().fetch(at, want, prior);
        Ok(self.cache().get(&key, accept, fetch).await?.value)
    }

    /// A change found this version of a file: if another one was known, it is forgotten.
    pub(super) fn saw(&self, key: &WritableKey, meta: &Meta) {
        let known = self.cache().peek::<Node>(&Key::new(About::object(key.key()), Detail::Only));
        let same = |node: &Node| matches!(node, Node::File(file) if file.key == *key.key() && file.meta.same_version(meta));
        if known.is_some_and(|kept| !same(&kept.value)) {
            self.cache().changed_object(key.as_str());
        }
    }

    async fn fetch(self, at: PlainPath, want: Want, prior: Option<Kept<Node>>) -> Result<Node> {
        let prior = prior.as_ref().map(|kept| &*kept.value);
        if want == Want::Meta {
            return self.look_up(&at, prior).await;
        }
        let PlainPath { path, key, directory } = &at;
        if let Some(file) = self.fetch_file(path, key, want, prior).await? {
            return Ok(Node::File(file));
        }
        if let Some((path, key)) = self.md_fallback(path)
            && let Some(file) = self.fetch_file(&path, &key, want, prior).await?
        {
            return Ok(Node::File(file));
        }
        Ok(if self.is_directory(directory).await? { Node::Directory } else { Node::Nothing })
    }

    async fn look_up(&self, at: &PlainPath, prior: Option<&Node>) -> Result<Node> {
        let PlainPath { path, key, directory } = at;
        let file = |path: VirtualPath, key: ObjectKey, meta: Meta| {
            let content = match prior {
                Some(Node::File(known)) if known.path == path && known.meta.same_version(&meta) => {
                    known.content.clone()
                }
                _ => Content::Unread,
            };
            Node::File(File { path, key, meta, version: Version::Exact, content })
        };
        let other = |is_directory: bool| if is_directory { Node::Directory } else { Node::Nothing };
        let Some((md_path, md_key)) = self.md_fallback(path) else {
            // A name with a dot is nearly always a file: ask for more only when it is none.
            return Ok(match self.head(path, key).await? {
                Some(meta) => file(path.clone(), key.clone(), meta),
                None => other(self.is_directory(directory).await?),
            });
        };
        let (exact, md, is_directory) =
            tokio::join!(self.head(path, key), self.head(path, &md_key), self.is_directory(directory));
        if let Some(meta) = exact? {
            return Ok(file(path.clone(), key.clone(), meta));
        }
        if let Some(meta) = md? {
            return Ok(file(md_path, md_key, meta));
        }
        Ok(other(is_directory?))
    }

    /// Reads a file, unless it is the version whose content is known.
    async fn fetch_file(
        &self,
        path: &VirtualPath,
        key: &ObjectKey,
        want: Want,
        prior: Option<&Node>,
    ) -> Result<Option<File>> {
        let prior = match prior {
            Some(Node::File(known)) if known.path == *path && want.is_met_by(&known.content) => Some(known),
            _ => None,
        };
        let expect = prior.and_then(|known| known.meta.etag.as_deref()).map_or(Expect::Any, Expect::Not);
        let new = |meta, content| {
            let (path, key) = (path.clone(), key.clone());
            File { path, key, meta, version: Version::Exact, content }
        };
        for _ in 0..ATTEMPTS {
            match self.store().get(key, want.range(), expect).await.map_err(|e| e.during("read", path))? {
                Fetched::Found { meta, body, .. } => {
                    let mut file = new(meta, Content::Unread);
                    self.receive(&mut file, want, body).await?;
                    return Ok(Some(file));
                }
                Fetched::Unchanged => return Ok(prior.cloned()),
                Fetched::Missing => return Ok(None),
                Fetched::BehindTheEnd | Fetched::Changed => {}
            }
            // The answer to an empty range says nothing about the object.
            match self.head(path, key).await? {
                Some(meta) if meta.size == 0 => {
                    return Ok(Some(new(meta, Content::of_text(text::decode(Vec::new())))));
                }
                // It grew, or went away, between the two requests: look again.
                Some(_) | None => {}
            }
        }
        Err(keeps_changing(path))
    }

    /// Finds the file that a path means, and asks for some of its bytes; the other way round, to save a request.
    pub(super) async fn open_plain(&self, at: &PlainPath, range: ByteRange) -> Result<Opened> {
        let PlainPath { path, key, directory } = at;
        let known = self.cache().peek(&Key::<Node>::new(About::object(key), Detail::Only));
        if let Some(known) = known.filter(|known| known.since.elapsed() < self.bound(path))
            && let Node::File(file) = &*known.value
            && Want::Bytes.is_met_by(&file.content)
        {
            return Ok(Opened::Known(file.clone()));
        }
        if let Some(opened) = self.try_open(path, key, range).await? {
            return Ok(opened);
        }
        if let Some((path, key)) = self.md_fallback(path)
            && let Some(opened) = self.try_open(&path, &key, range).await?
        {
            return Ok(opened);
        }
        let other = if self.is_directory(directory).await? { Node::Directory } else { Node::Nothing };
        Err(other.file(path).err().unwrap_or_else(|| Self::not_found(path)))
    }

    async fn try_open(
        &self,
        path: &VirtualPath,
        key: &ObjectKey,
        range: ByteRange,
    ) -> Result<Option<Opened>> {
        for _ in 0..ATTEMPTS {
            match self.store().get(key, range, Expect::Any).await.map_err(|e| e.during("read", path))? {
                Fetched::Found { meta, body, .. } => {
                    return Ok(Some(Opened::Body { path: path.clone(), meta, body: Some(body) }));
                }
                Fetched::Missing | Fetched::Changed => return Ok(None),
                Fetched::BehindTheEnd | Fetched::Unchanged => {}
            }
            // The answer to an empty range says nothing about the object.
            match self.head(path, key).await? {
                Some(meta) if meta.size <= range.start => {
                    return Ok(Some(Opened::Body { path: path.clone(), meta, body: None }));
                }
                // It grew, or went away, between the two requests: look again.
                Some(_) | None => {}
            }
        }
        Err(keeps_changing(path))
    }

    pub(super) async fn head(&self, path: &VirtualPath, key: &ObjectKey) -> Result<Option<Meta>> {
        self.store().head(key).await.map_err(|e| e.during("look at", path))
    }

    /// Whether any key lies in it. One request; it also tells a missing bucket from a missing key.
    pub(super) async fn is_directory(&self, directory: &Directory) -> Result<bool> {
        let mut lister = Lister::new(directory.prefix(), Depth::All).page_size(1);
        let first = lister.next(self.store()).await.map_err(|e| e.during("look at", directory.path()))?;
        Ok(first.is_some())
    }

    /// The same name with `.md`, where the contract tries it.
    fn md_fallback(&self, path: &VirtualPath) -> Option<(VirtualPath, ObjectKey)> {
        let path = path.with_md()?;
        match self.mounts.resolve(&path) {
            Ok(Location::Inside { key, .. }) => Some((path, key)),
            _ => None,
        }
    }
}
