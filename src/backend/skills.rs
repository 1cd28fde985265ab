//! Files below `/skills`, in the version that the union of the libraries has.
//!
//! A file of a plain library is read from its key, under the ETag that was listed. A file of a
//! published library is read from its blob, which never changes: a complete read is verified
//! against its SHA-256, and a ranged read relies on the blob being immutable.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::S3Backend;
use super::file::{Content, File, Node, Opened, Version, Want, changed_while_read, is_directory};
use super::union::{Found, UnionFile};
use crate::cache::{About, Accept, Detail, Key};
use crate::error::{Error, ErrorKind, Hint, Result};
use crate::mount::ObjectKey;
use crate::path::VirtualPath;
use crate::store::{Body, ByteRange};
use crate::text;

/// Cross-region replication may deliver an index before its blobs. After this time, it must have
/// delivered both.
const REPLICATION: Duration = Duration::from_secs(3600);

impl S3Backend {
    /// Resolves a path to a file and requests some of its bytes.
    pub(super) async fn open_skill_file(&self, path: &VirtualPath, range: ByteRange) -> Result<Opened> {
        let union = self.union_around(path).await?;
        let (path, found) = match union.find(path)? {
            Found::File(real, found) => (real, found),
            Found::Directory => return Err(is_directory(path)),
            Found::Nothing => return Err(Self::not_found(path)),
        };
        let file = self.listed_file(&path, found)?;
        if let Some(content) = self.cached_content(&file, Want::Bytes) {
            return Ok(Opened::Known(File { content, ..file }));
        }
        let body = self.version_bytes(&path, found, range).await?;
        Ok(Opened::Body { path, meta: file.meta, body })
    }

    /// Returns the object of the file with exactly this name, and a session pinned to the union
    /// that was consulted.
    pub(super) async fn literal_skill_file(&self, path: &VirtualPath) -> Result<(Option<ObjectKey>, Self)> {
        let union = self.union_around(path).await?;
        let key = union.file(path.below_mount()).map(|found| self.key_of(path, found)).transpose()?;
        Ok((key, Self { pinned: Some(union), ..self.clone() }))
    }

    /// Returns the key of a file's content: its blob, or its plain key.
    pub(super) fn key_of(&self, path: &VirtualPath, found: &UnionFile) -> Result<ObjectKey> {
        let layer = self.mounts.skill_layers().get(found.layer).ok_or_else(|| Self::not_found(path))?;
        match &found.blob {
            Some(blob) => Ok(layer.blob(blob.sha256, &blob.origin.id)),
            None => layer.file(path),
        }
    }

    /// Converts a file of the union, with its content unread.
    pub(super) fn listed_file(&self, path: &VirtualPath, found: &UnionFile) -> Result<File> {
        let version = found.blob.clone().map_or(Version::Exact, Version::Blob);
        let (path, key, meta) = (path.clone(), self.key_of(path, found)?, found.meta.clone());
        Ok(File { path, key, meta, version, content: Content::Unread })
    }

    /// Returns the cached content of this version of a file, if it is enough for the reader.
    pub(super) fn cached_content(&self, file: &File, want: Want) -> Option<Content> {
        let key = Key::new(About::object(&file.key), Detail::Only);
        let node = self.cache().hit(&key, |node: &Node| node.is_version_with(file, want))?;
        match &*node {
            Node::File(known) => Some(known.content.clone()),
            Node::Directory | Node::Nothing => None,
        }
    }

    /// Returns a file with the content that a reader needs. One request for up to 64 KiB, two for
    /// more, none while it is cached.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if the file has another version now; [`ErrorKind::Corrupt`] if a
    /// blob is not what was published. For a missing blob, see [`S3Backend::missing_blob`].
    pub(super) async fn version(&self, path: &VirtualPath, found: &UnionFile, want: Want) -> Result<File> {
        let mut file = self.listed_file(path, found)?;
        if want == Want::Meta {
            return Ok(file);
        }
        if file.meta.size == 0 {
            file.content = Content::of_text(text::decode(Vec::new()));
            return Ok(file);
        }
        // A version never goes stale: cached content stays valid, and callers can always share a
        // fetch.
        let key = Key::new(About::object(&file.key), Detail::Only);
        let etag = found.meta.etag.as_deref().unwrap_or_default();
        let accept = Accept {
            bound: Duration::MAX,
            fetches: Detail::named(format!("{want:?} {etag}")),
            usable: |node: &Node| node.is_version_with(&file, want),
            refresh: false,
        };
        let fetch = |_| {
            let (session, mut file, found) = (self.clone(), file.clone(), found.clone());
            async move {
                let body = session.open_version(&file, &found, want.range()).await?;
                session.receive(&mut file, want, body).await?;
                Ok(Node::File(file))
            }
        };
        match &*self.cache().get(&key, accept, fetch).await?.value {
            Node::File(known) => Ok(File { content: known.content.clone(), ..file }),
            Node::Directory | Node::Nothing => Err(changed_while_read(path)),
        }
    }

    /// Requests some bytes of a file. There is no body if the range starts at or past the end. A
    /// complete read of a blob is verified.
    ///
    /// # Errors
    /// Same as [`S3Backend::version`].
    pub(super) async fn version_bytes(
        &self,
        path: &VirtualPath,
        found: &UnionFile,
        range: ByteRange,
    ) -> Result<Option<Box<Body>>> {
        if range.start >= found.meta.size {
            return Ok(None);
        }
        let file = self.listed_file(path, found)?;
        self.open_version(&file, found, range).await.map(Some)
    }

    /// Reads the first bytes of a file. One request.
    ///
    /// # Errors
    /// Same as [`S3Backend::version`].
    pub(crate) async fn read_listed(
        &self,
        path: &VirtualPath,
        found: &UnionFile,
        bytes: u64,
    ) -> Result<Bytes> {
        let range = ByteRange { start: 0, end: Some(bytes) };
        let mut content = Vec::new();
        if let Some(mut body) = self.version_bytes(path, found, range).await? {
            body.collect(self.store(), &mut content).await.map_err(|e| e.during("read", path))?;
        }
        Ok(content.into())
    }

    pub(super) async fn open_version(
        &self,
        file: &File,
        found: &UnionFile,
        range: ByteRange,
    ) -> Result<Box<Body>> {
        match self.open(file, range).await? {
            Some((_, body)) => Ok(body),
            None => Err(self.missing_blob(&file.path, found).await),
        }
    }

    /// Explains why a blob is missing, by reading the index again. If a newer release no longer
    /// refers to the blob, the error is a conflict, so that the caller retries.
    async fn missing_blob(&self, path: &VirtualPath, found: &UnionFile) -> Error {
        if self.pinned.is_some() {
            return Error::new(
                ErrorKind::Conflict,
                format!("`{path}` cannot be read: the release that this turn is pinned to was pruned"),
            )
            .at(path)
            .with_hint("start a new turn")
            .lasting();
        }
        let missed = self.store().server_time();
        let union = match Box::pin(self.fresh().union_around(path)).await {
            Ok(union) => union,
            Err(error) => return error,
        };
        match union.find(path) {
            Ok(Found::File(_, now)) if now.blob == found.blob => {}
            Ok(_) => return changed_while_read(path),
            Err(error) => return error,
        }
        let released = union.released(found.layer).unwrap_or(SystemTime::UNIX_EPOCH);
        let age = missed.duration_since(released).unwrap_or_default();
        let (kind, hint) = match age < REPLICATION {
            true => (ErrorKind::Unavailable, "try again: it may not have been replicated yet".into()),
            false => (ErrorKind::Corrupt, Hint::RepairLibrary),
        };
        Error::new(kind, format!("the content of `{path}` is missing")).at(path).with_hint(hint)
    }
}
