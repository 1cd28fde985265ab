//! Files in a plain mount, where a path maps to one key.
//!
//! A path is resolved by requesting the key, the key with `.md`, and a listing below it. The result
//! is cached for as long as [`Freshness::files`](crate::Freshness) allows, or until this process
//! changes it.

use std::sync::Arc;

use super::S3Backend;
use super::file::{Content, File, Node, Opened, Version, Want, is_directory, keeps_changing};
use crate::cache::{About, Accept, Detail, Kept, Key};
use crate::error::Result;
use crate::mount::{Directory, Layer, Location, ObjectKey, WritableKey};
use crate::path::VirtualPath;
use crate::store::{Body, ByteRange, Expect, Fetched, Meta};
use crate::text;

/// How many times a file is requested if it changes in the meantime.
const ATTEMPTS: u32 = 3;

/// The response for an object, as far as a reader needs it.
enum PlainResponse {
    /// The object exists. There is no body if the range starts at or past its end.
    Found(Meta, Option<Box<Body>>),
    /// The object is still the cached version.
    Unchanged,
    Missing,
}

impl S3Backend {
    /// Resolves a path. At most two requests for a file, none while it is cached.
    pub(super) async fn find_plain(
        &self,
        path: &VirtualPath,
        own: ObjectKey,
        layer: &Layer,
        want: Want,
    ) -> Result<Arc<Node>> {
        let key = Key::new(About::object(&own), Detail::Only);
        let bound = self.bound(path);
        let usable = |node: &Node| node.meets(want);
        // Fetches are shared only among callers with the same needs: a complete read may fail as
        // too large where a window would not.
        let accept = Accept { bound, fetches: want.detail(), usable, refresh: true };
        let fetch = |prior| self.clone().fetch(own, layer.directory(path), want, prior);
        Ok(self.cache().get(&key, accept, fetch).await?.value)
    }

    /// Records that a write operation found this version of a file: a different cached version is
    /// invalidated.
    pub(super) fn observe_version(&self, key: &WritableKey, meta: &Meta) {
        let known = self.cache().peek::<Node>(&Key::new(About::object(key.key()), Detail::Only));
        let same = |node: &Node| matches!(node, Node::File(file) if file.key == *key.key() && file.meta.same_version(meta));
        if known.is_some_and(|kept| !same(&kept.value)) {
            self.cache().changed_object(key.as_str());
        }
    }

    async fn fetch(
        self,
        key: ObjectKey,
        at: Directory,
        want: Want,
        prior: Option<Kept<Node>>,
    ) -> Result<Node> {
        let prior = match prior.as_ref().map(|kept| &*kept.value) {
            Some(Node::File(known)) => Some(known),
            _ => None,
        };
        if want == Want::Meta {
            return self.look_up(key, &at, prior).await;
        }
        if let Some(file) = self.fetch_file(at.path().clone(), key, want, prior).await? {
            return Ok(Node::File(file));
        }
        if let Some((path, key)) = self.md_fallback(at.path())
            && let Some(file) = self.fetch_file(path, key, want, prior).await?
        {
            return Ok(Node::File(file));
        }
        self.directory_or_nothing(&at).await
    }

    async fn look_up(&self, key: ObjectKey, at: &Directory, prior: Option<&File>) -> Result<Node> {
        let path = at.path();
        let file = |path: VirtualPath, key: ObjectKey, meta: Meta| -> Result<Node> {
            let known = prior.filter(|known| known.path == path && known.meta.same_version(&meta));
            let content = known.map_or(Content::Unread, |known| known.content.clone());
            Ok(Node::File(File { path, key, meta, version: Version::Exact, content }))
        };
        let Some((md_path, md_key)) = self.md_fallback(path) else {
            // A name with a dot is almost always a file: check for a directory only if it is not.
            return match self.head(path, &key).await? {
                Some(meta) => file(path.clone(), key, meta),
                None => self.directory_or_nothing(at).await,
            };
        };
        let (exact, md, other) =
            tokio::join!(self.head(path, &key), self.head(path, &md_key), self.directory_or_nothing(at));
        if let Some(meta) = exact? {
            return file(path.clone(), key, meta);
        }
        match md? {
            Some(meta) => file(md_path, md_key, meta),
            None => other,
        }
    }

    /// Reads a file, unless the cached version is still current.
    async fn fetch_file(
        &self,
        path: VirtualPath,
        key: ObjectKey,
        want: Want,
        prior: Option<&File>,
    ) -> Result<Option<File>> {
        let prior = prior.filter(|known| known.path == path && want.is_met_by(&known.content));
        let expect = prior.and_then(|known| known.meta.etag.as_deref()).map_or(Expect::Any, Expect::Not);
        let (meta, body) = match self.request(&path, &key, want.range(), expect).await? {
            PlainResponse::Found(meta, body) => (meta, body),
            PlainResponse::Unchanged => return Ok(prior.cloned()),
            PlainResponse::Missing => return Ok(None),
        };
        let mut file = File { path, key, meta, version: Version::Exact, content: Content::Unread };
        match body {
            Some(body) => self.receive(&mut file, want, body).await?,
            None => file.content = Content::of_text(text::decode(Vec::new())),
        }
        Ok(Some(file))
    }

    /// Resolves a path and requests some bytes of the file. Requests the bytes first, which saves a
    /// request.
    pub(super) async fn open_plain(
        &self,
        key: &ObjectKey,
        at: &Directory,
        range: ByteRange,
    ) -> Result<Opened> {
        let path = at.path();
        let known = self.cache().peek(&Key::<Node>::new(About::object(key), Detail::Only));
        if let Some(known) = known.filter(|known| known.since.elapsed() < self.bound(path))
            && let Node::File(file) = &*known.value
            && Want::Bytes.is_met_by(&file.content)
        {
            return Ok(Opened::Known(file.clone()));
        }
        if let PlainResponse::Found(meta, body) = self.request(path, key, range, Expect::Any).await? {
            return Ok(Opened::Body { path: path.clone(), meta, body });
        }
        if let Some((path, key)) = self.md_fallback(path)
            && let PlainResponse::Found(meta, body) = self.request(&path, &key, range, Expect::Any).await?
        {
            return Ok(Opened::Body { path, meta, body });
        }
        Err(if self.is_directory(at).await? { is_directory(path) } else { Self::not_found(path) })
    }

    /// Requests some bytes of an object.
    async fn request(
        &self,
        path: &VirtualPath,
        key: &ObjectKey,
        range: ByteRange,
        expect: Expect<'_>,
    ) -> Result<PlainResponse> {
        for _ in 0..ATTEMPTS {
            match self.store().get(key, range, expect).await.map_err(|e| e.during("read", path))? {
                Fetched::Found { meta, body, .. } => return Ok(PlainResponse::Found(meta, Some(body))),
                Fetched::Unchanged => return Ok(PlainResponse::Unchanged),
                Fetched::Missing => return Ok(PlainResponse::Missing),
                Fetched::BehindTheEnd | Fetched::Changed => {}
            }
            // The response to an unsatisfiable range does not describe the object. If it grew or
            // was deleted between the two requests, try again.
            if let Some(meta) = self.head(path, key).await?.filter(|meta| meta.size <= range.start) {
                return Ok(PlainResponse::Found(meta, None));
            }
        }
        Err(keeps_changing(path))
    }

    pub(super) async fn head(&self, path: &VirtualPath, key: &ObjectKey) -> Result<Option<Meta>> {
        self.store().head(key).await.map_err(|e| e.during("inspect", path))
    }

    /// Returns whether any key is below a directory. One request, which also distinguishes a
    /// missing bucket from a missing key.
    pub(super) async fn is_directory(&self, directory: &Directory) -> Result<bool> {
        let any = self.store().lists_any(directory.prefix()).await;
        any.map_err(|e| e.during("inspect", directory.path()))
    }

    /// Resolves a path that is not a file.
    async fn directory_or_nothing(&self, at: &Directory) -> Result<Node> {
        Ok(if self.is_directory(at).await? { Node::Directory } else { Node::Nothing })
    }

    /// Returns the same path with `.md`, if the path is one for which `read` tries that.
    fn md_fallback(&self, path: &VirtualPath) -> Option<(VirtualPath, ObjectKey)> {
        let path = path.with_md()?;
        match self.mounts.resolve(&path) {
            Ok(Location::Inside { key, .. }) => Some((path, key)),
            _ => None,
        }
    }
}
