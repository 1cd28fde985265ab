//! Files of skills that were published: their content lies at their own keys, and in blobs beside the library.
//!
//! While a release is on its way, and for a session that keeps to an earlier one, the blobs are what is read.
//! They are named by the SHA-256 of their content, and are checked against it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sha2::Digest as _;

use super::S3Backend;
use super::known::{Content, Fact, File, Want};
use super::read::changed_while_read;
use super::union::UnionFile;
use crate::error::{Error, ErrorKind, Result};
use crate::index::Sha256;
use crate::mount::{Location, ObjectKey};
use crate::path::VirtualPath;
use crate::store::{Body, ByteRange, Expect, Fetched, Meta};
use crate::text;

/// A file of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) sha256: Sha256,
    /// Whether its own key held it when it was listed.
    pub(crate) live: bool,
}

/// A blob that was checked against its name.
#[derive(Debug)]
struct Blob {
    key: ObjectKey,
    meta: Meta,
    /// What it holds, where that is not too much to keep.
    bytes: Option<Bytes>,
}

impl S3Backend {
    /// A file that a listing found, with what is wanted of its content.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when that version is there no longer, and belongs to no release.
    pub(super) async fn listed_file(
        &self,
        path: &VirtualPath,
        found: &UnionFile,
        want: Want,
    ) -> Result<Arc<Fact>> {
        if found.is_live() {
            let Location::Inside { key, .. } = self.mounts.resolve_layer(path, found.layer)? else {
                return Err(Self::not_found(path));
            };
            match self.fact_of_version(path, &key, &found.meta, want).await {
                Err(error) if error.kind() == ErrorKind::Conflict && found.release.is_some() => {}
                done => return done,
            }
        }
        let blob = self.blob(path, found).await?;
        let Some(bytes) = &blob.bytes else {
            return self.fact_of_version(path, &blob.key, &blob.meta, want).await;
        };
        let content = match want {
            Want::Bytes => Content::Bytes(bytes.clone()),
            Want::Text | Want::Meta => Content::of_text(text::decode(bytes.to_vec())),
        };
        let (path, key, meta) = (path.clone(), blob.key.clone(), blob.meta.clone());
        Ok(Arc::new(Fact::File(File { path, key, meta, content })))
    }

    /// Some bytes of a file that a listing found; no body where the range lies behind the end.
    ///
    /// # Errors
    /// As [`S3Backend::listed_file`].
    pub(super) async fn listed_bytes(
        &self,
        path: &VirtualPath,
        found: &UnionFile,
        range: ByteRange,
    ) -> Result<(Meta, Option<Box<Body>>)> {
        let size = found.meta.size;
        let empty = range.start >= size;
        if found.is_live() {
            let Location::Inside { key, .. } = self.mounts.resolve_layer(path, found.layer)? else {
                return Err(Self::not_found(path));
            };
            let expect = found.meta.etag.as_deref().map_or(Expect::Any, Expect::Version);
            match self.store().get(&key, range, expect).await.map_err(|e| e.during("read", path))? {
                // Who ignores `If-Match` must not have another version taken for this one.
                Fetched::Found { meta, body, .. }
                    if found.meta.etag.is_none() || meta.etag == found.meta.etag =>
                {
                    return Ok((meta, Some(body)));
                }
                Fetched::BehindTheEnd if empty => return Ok((found.meta.clone(), None)),
                _ if found.release.is_none() => return Err(changed_while_read(path)),
                _ => {}
            }
        }
        let blob = self.blob(path, found).await?;
        if empty {
            return Ok((blob.meta.clone(), None));
        }
        let body = match &blob.bytes {
            Some(bytes) => {
                let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX).min(bytes.len());
                let end = range.end.map_or(bytes.len(), at);
                Box::new(Body::known(&blob.key, bytes.slice(at(range.start).min(end)..end)))
            }
            None => {
                let expect = blob.meta.etag.as_deref().map_or(Expect::Any, Expect::Version);
                match self.store().get(&blob.key, range, expect).await.map_err(|e| e.during("read", path))? {
                    Fetched::Found { body, .. } => body,
                    _ => return Err(changed_while_read(path)),
                }
            }
        };
        Ok((blob.meta.clone(), Some(body)))
    }

    /// The content of a file of a release. One request, and all of it: only so can it be checked.
    async fn blob(&self, path: &VirtualPath, found: &UnionFile) -> Result<Arc<Blob>> {
        let (layer, size) = (found.layer, found.meta.size);
        let Some(sha256) = found.release.map(|release| release.sha256) else {
            return Err(changed_while_read(path));
        };
        let Some(key) = self.mounts.blob_of(layer, sha256) else { return Err(Self::not_found(path)) };
        let name = format!("{}\u{7}", key.as_str());
        if let Some(kept) = self.cache().recall::<Blob>(&name) {
            self.cache().hit();
            return Ok(kept.value);
        }
        let (backend, path, kept) = (self.clone(), path.clone(), name.clone());
        let ask = move || async move {
            let asked = (backend.cache().epoch(&kept), Instant::now());
            let blob = Arc::new(backend.fetch_blob(&path, key, sha256, size).await?);
            let owner = backend.store().tenant().owner_of(&kept);
            let weight = blob.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64) + 200;
            backend.cache().keep(&kept, &owner, asked, blob.clone(), weight);
            Ok(blob)
        };
        // It does not grow old: its name says what it holds.
        self.cache().once(&name, Duration::MAX, ask).await
    }

    async fn fetch_blob(
        &self,
        path: &VirtualPath,
        key: ObjectKey,
        sha256: Sha256,
        size: u64,
    ) -> Result<Blob> {
        let whole = ByteRange { start: 0, end: None };
        let fetched = self.store().get(&key, whole, Expect::Any).await.map_err(|e| e.during("read", path))?;
        let Fetched::Found { meta, mut body, .. } = fetched else {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("the release that `{path}` belongs to is not there any more"),
            )
            .at(path)
            .with_hint(
                "open a new turn; if it stays, an administrator runs `skillfs admin verify --repair`",
            ));
        };
        let small = meta.size <= self.cache().largest().min(self.shared.max_read_bytes);
        let (mut hasher, mut bytes) = (sha2::Sha256::new(), Vec::new());
        while let Some(piece) = body.next(self.store()).await.map_err(|e| e.during("read", path))? {
            hasher.update(&piece);
            if small {
                bytes.extend_from_slice(&piece);
            }
        }
        if meta.size != size || Sha256::finish(hasher) != sha256 {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("the stored content of `{path}` is not what was published"),
            )
            .at(path)
            .with_hint("an administrator runs `skillfs admin verify`, and publishes the skill anew"));
        }
        Ok(Blob { key, meta, bytes: small.then(|| bytes.into()) })
    }
}
