//! What those need who look after libraries: objects of a library and beside it, read and written by key.
//!
//! The keys come from [`Library`], which makes none outside itself.

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
    ByteRange, Condition, Expect, Fetched, Listed, Lister, Meta, ObjectProperties, PartSource, Put, WriteId,
};

impl S3Backend {
    /// The same session on one of its libraries: with the same credentials, on behalf of the same tenant.
    pub(crate) fn on_library(&self, library: &Library) -> Self {
        let mounts = Mounts::of(&library.session());
        let libraries = LibraryPrefixes::new(mounts.skill_layers());
        Self { libraries, mounts: Arc::new(mounts), pinned: None, ..self.clone() }
    }

    /// The SHA-256 of a file, in the version that a listing found, and its first bytes. One request.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) when it is another version now, or gone.
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

    /// The SHA-256 of an object as it is now, and what the server says of it; `None` when there is none.
    pub(crate) async fn digest_object(&self, key: &ObjectKey) -> Result<Option<(Digest, Meta)>> {
        let mut digest = sha2::Sha256::new();
        let meta = match self.store().get(key, ByteRange::WHOLE, Expect::Any).await? {
            Fetched::Found { meta, mut body, .. } => {
                while let Some(piece) = body.next(self.store()).await? {
                    digest.update(&piece);
                }
                meta
            }
            _ => return Ok(None),
        };
        Ok(Some((Digest::finish(digest), meta)))
    }

    /// An object as it is now, whole; `None` when there is none.
    pub(crate) async fn object(&self, key: &ObjectKey) -> Result<Option<(Meta, Bytes)>> {
        match self.store().get(key, ByteRange::WHOLE, Expect::Any).await? {
            Fetched::Found { meta, mut body, .. } => {
                let mut bytes = Vec::new();
                body.collect(self.store(), &mut bytes).await?;
                Ok(Some((meta, bytes.into())))
            }
            _ => Ok(None),
        }
    }

    /// What the server says of an object; `None` when there is none.
    pub(crate) async fn object_meta(&self, key: &ObjectKey) -> Result<Option<Meta>> {
        self.store().head(key).await
    }

    /// Whether there is any object below a prefix. One request.
    pub(crate) async fn has_objects(&self, prefix: &KeyPrefix) -> Result<bool> {
        Ok(Lister::new(prefix, Depth::All).page_size(1).next(self.store()).await?.is_some())
    }

    /// All objects below a prefix.
    pub(crate) async fn objects(&self, prefix: &KeyPrefix) -> Result<Vec<(String, Meta)>> {
        let mut found = Vec::new();
        let mut lister = Lister::new(prefix, Depth::All);
        while let Some(page) = lister.next(self.store()).await? {
            for item in page {
                if let Listed::Object { key, meta } = item {
                    found.push((key, meta));
                }
            }
        }
        Ok(found)
    }

    /// The names right below a prefix that have something below them.
    pub(crate) async fn prefixes(&self, prefix: &KeyPrefix) -> Result<Vec<String>> {
        let mut found = Vec::new();
        let mut lister = Lister::new(prefix, Depth::One);
        while let Some(page) = lister.next(self.store()).await? {
            for item in page {
                if let Listed::Prefix(key) = item {
                    let name = key.strip_prefix(prefix.as_str()).and_then(|name| name.strip_suffix('/'));
                    found.extend(name.map(str::to_owned));
                }
            }
        }
        Ok(found)
    }

    /// Writes an object, as a type of content that its name tells. `None` when the condition does not hold;
    /// the ETag is not known when another writer came by.
    pub(crate) async fn put_object(
        &self,
        key: &WritableKey,
        name: &str,
        content: Bytes,
        condition: Condition,
    ) -> Result<Option<Option<String>>> {
        let id = self.store().write_id()?;
        let properties = new_properties(name, &id);
        self.put_with(key, &id, &properties, content, condition).await
    }

    /// Writes a document of a library: JSON, compressed. As [`S3Backend::put_object`].
    pub(crate) async fn put_document(
        &self,
        key: &WritableKey,
        content: Bytes,
        condition: Condition,
    ) -> Result<Option<Option<String>>> {
        let id = self.store().write_id()?;
        let properties = ObjectProperties {
            content_encoding: Some("gzip".to_owned()),
            ..new_properties("document.json", &id)
        };
        self.put_with(key, &id, &properties, content, condition).await
    }

    async fn put_with(
        &self,
        key: &WritableKey,
        id: &WriteId,
        properties: &ObjectProperties,
        content: Bytes,
        condition: Condition,
    ) -> Result<Option<Option<String>>> {
        let pieces = self.pieces(content);
        Ok(match self.put_pieces(key, id, condition, properties, pieces).await? {
            Put::Done { etag } => Some(etag),
            Put::Overtaken => None,
        })
    }

    /// Whether conditions of copies are known to be honored.
    pub(crate) fn copies_conditionally(&self) -> bool {
        self.store().capabilities().copies()
    }

    /// Copies an object, on the server. As [`S3Backend::put_object`].
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is nothing to copy.
    pub(crate) async fn copy_object(
        &self,
        source: &ObjectKey,
        key: &WritableKey,
        name: &str,
        condition: Condition,
    ) -> Result<Option<Option<String>>> {
        let Some(seen) = self.store().look(source).await? else {
            return Err(Error::new(ErrorKind::NotFound, "what was to be copied is not there"));
        };
        let id = self.store().write_id()?;
        let properties = new_properties(name, &id);
        let pieces: Vec<PartSource> = self.copied(source, &seen)?;
        Ok(match self.put_pieces(key, &id, condition, &properties, pieces).await? {
            Put::Done { etag } => Some(etag),
            Put::Overtaken => None,
        })
    }

    /// Deletes an object if it is this version. `false` when it is another one.
    pub(crate) async fn delete_object(&self, key: &WritableKey, version: &Meta) -> Result<bool> {
        self.store().delete_version(key, version).await
    }

    /// Whether the server honors conditions: without that, nothing can be published safely.
    pub(crate) async fn check_conditions(&self, library: &Library) -> Result<()> {
        if self.store().conditional_writes(|| Ok(library.probe())).await? {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, "this server ignores conditional writes")
            .with_hint("publishing needs `If-Match` and `If-None-Match`, so that no release is overwritten; use a server that honors them"))
    }

    /// Uploads that were begun in a library or beside it, and not completed.
    pub(crate) async fn unfinished_uploads(&self, library: &Library) -> Result<Vec<String>> {
        self.store().unfinished_uploads(&library.everything()).await
    }

    /// The time at the server, as far as it is known.
    pub(crate) fn server_time(&self) -> SystemTime {
        self.store().server_time()
    }

    /// Sessions of this process see at once what has changed in the session's libraries.
    pub(crate) fn library_changed(&self) {
        for layer in self.mounts.skill_layers() {
            self.cache().changed(layer.prefix().as_str());
        }
    }
}
