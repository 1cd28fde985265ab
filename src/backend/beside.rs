//! Access to a library's objects and sidecar documents by key, for administrative operations.
//!
//! All keys come from [`Library`], which creates no keys outside of the library.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use sha2::Digest as _;

use super::S3Backend;
use super::file::changed_while_read;
use super::union::UnionFile;
use super::write::new_properties;
use crate::cache::LibraryPrefixes;
use crate::entry::Depth;
use crate::error::{Error, ErrorKind, Result};
use crate::index::Digest;
use crate::mount::{KeyPrefix, Library, Mounts, ObjectKey, WritableKey};
use crate::path::VirtualPath;
use crate::store::{
    ByteRange, Condition, Expect, Fetched, Listed, Lister, Meta, ObjectProperties, PartSource, Put,
};

impl S3Backend {
    /// Returns a session on one of this session's libraries, with the same credentials and tenant.
    pub(crate) fn on_library(&self, library: &Library) -> Self {
        let mounts = Mounts::of(&library.session());
        let libraries = LibraryPrefixes::new(mounts.skill_layers());
        Self { libraries, mounts: Arc::new(mounts), pinned: None, ..self.clone() }
    }

    /// Returns the SHA-256 of a file, in the version that a listing found, and up to `most` of its
    /// first bytes. One request.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if the file has been changed or deleted
    /// since.
    pub(crate) async fn digest_listed(
        &self,
        path: &VirtualPath,
        found: &UnionFile,
        most: u64,
    ) -> Result<(Digest, Vec<u8>)> {
        let (mut digest, mut head) = (sha2::Sha256::new(), Vec::new());
        if found.meta.size > 0 {
            let Some(mut body) = self.version_bytes(path, found, ByteRange::WHOLE).await? else {
                return Err(changed_while_read(path));
            };
            if body.remaining() != found.meta.size {
                return Err(changed_while_read(path));
            }
            while let Some(piece) = body.next(self.store()).await.map_err(|e| e.during("read", path))? {
                let more = usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(head.len());
                head.extend_from_slice(&piece[..more.min(piece.len())]);
                digest.update(&piece);
            }
        }
        Ok((Digest::finish(digest), head))
    }

    /// Returns the SHA-256 and the metadata of the current version of an object, or `None` if it
    /// does not exist.
    pub(crate) async fn digest_object(&self, key: &ObjectKey) -> Result<Option<(Digest, Meta)>> {
        let fetched = self.store().get(key, ByteRange::WHOLE, Expect::Any).await?;
        let Fetched::Found { meta, mut body, .. } = fetched else { return Ok(None) };
        let mut digest = sha2::Sha256::new();
        while let Some(piece) = body.next(self.store()).await? {
            digest.update(&piece);
        }
        Ok(Some((Digest::finish(digest), meta)))
    }

    /// Returns the metadata and the complete content of an object, or `None` if it does not exist.
    pub(crate) async fn object(&self, key: &ObjectKey) -> Result<Option<(Meta, Bytes)>> {
        let fetched = self.store().get(key, ByteRange::WHOLE, Expect::Any).await?;
        let Fetched::Found { meta, mut body, .. } = fetched else { return Ok(None) };
        let mut bytes = Vec::new();
        body.collect(self.store(), &mut bytes).await?;
        Ok(Some((meta, bytes.into())))
    }

    /// Lists all objects below a prefix.
    pub(crate) async fn objects(&self, prefix: &KeyPrefix) -> Result<Vec<(String, Meta)>> {
        let object = |item| match item {
            Listed::Object { key, meta } => Some((key, meta)),
            Listed::Prefix(_) => None,
        };
        Ok(Lister::new(prefix, Depth::All).all(self.store()).await?.into_iter().filter_map(object).collect())
    }

    /// Lists the common prefixes one level below a prefix, by name.
    pub(crate) async fn prefixes(&self, prefix: &KeyPrefix) -> Result<Vec<String>> {
        let name = |item: &Listed| match item {
            Listed::Prefix(key) => Some(key.strip_prefix(prefix.as_str())?.strip_suffix('/')?.to_owned()),
            Listed::Object { .. } => None,
        };
        Ok(Lister::new(prefix, Depth::One).all(self.store()).await?.iter().filter_map(name).collect())
    }

    /// Writes an object, with a content type derived from `name`.
    ///
    /// Returns `None` if the condition fails. The inner ETag is `None` if the response was lost and
    /// another writer has replaced the object since.
    pub(crate) async fn put_object(
        &self,
        key: &WritableKey,
        name: &str,
        content: Bytes,
        condition: Condition,
    ) -> Result<Option<Option<String>>> {
        self.put_new(key, name, None, self.pieces(content), condition).await
    }

    /// Writes a document of a library: gzip-compressed JSON. Returns the same as
    /// [`S3Backend::put_object`].
    pub(crate) async fn put_document(
        &self,
        key: &WritableKey,
        content: Bytes,
        condition: Condition,
    ) -> Result<Option<Option<String>>> {
        self.put_new(key, "document.json", Some("gzip"), self.pieces(content), condition).await
    }

    async fn put_new(
        &self,
        key: &WritableKey,
        name: &str,
        encoding: Option<&str>,
        pieces: Vec<PartSource>,
        condition: Condition,
    ) -> Result<Option<Option<String>>> {
        let id = self.store().write_id()?;
        let content_encoding = encoding.map(str::to_owned);
        let properties = ObjectProperties { content_encoding, ..new_properties(name, &id) };
        Ok(match self.put_pieces(key, &id, condition, &properties, pieces).await? {
            Put::Done { etag } => Some(etag),
            Put::Overtaken => None,
        })
    }

    /// Copies an object on the server. Returns the same as [`S3Backend::put_object`].
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the source does not exist.
    pub(crate) async fn copy_object(
        &self,
        source: &ObjectKey,
        key: &WritableKey,
        name: &str,
        condition: Condition,
    ) -> Result<Option<Option<String>>> {
        let Some(seen) = self.store().look(source).await? else {
            return Err(Error::new(ErrorKind::NotFound, "the object to copy does not exist"));
        };
        self.put_new(key, name, None, self.copy_parts(source, &seen)?, condition).await
    }

    /// Checks that the server honors conditional writes, without which nothing can be published
    /// safely.
    pub(crate) async fn check_conditions(&self, library: &Library) -> Result<()> {
        if self.store().conditional_writes(|| Ok(library.probe())).await? {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, "this server ignores conditional writes")
            .with_hint("publishing needs `If-Match` and `If-None-Match`, so that no release is overwritten; use a server that honors them"))
    }

    /// The server's current time, estimated from its responses.
    pub(crate) fn server_time(&self) -> SystemTime {
        self.store().server_time()
    }

    /// Invalidates the cache entries of the session's libraries, so that all sessions of this
    /// process see a change immediately.
    pub(crate) fn library_changed(&self) {
        for layer in self.mounts.skill_layers() {
            self.cache().changed(layer.prefix());
        }
    }
}
