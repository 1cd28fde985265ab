//! Files of `/skills`, in the version that the union of its libraries has.
//!
//! A file of a plain library is read from its own key, on the condition that it still has the ETag that was
//! listed. A file of a published library is read from its blob, which never changes: whatever is read completely
//! is verified by its SHA-256, and ranges rely on the blob being immutable.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::S3Backend;
use super::content::{Content, File, Want, changed_while_read, same_version};
use super::known::Fact;
use super::union::{Found, UnionFile};
use super::view::Blob;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{Location, ObjectKey};
use crate::path::VirtualPath;
use crate::store::{Body, ByteRange, Expect, Fetched, Meta};
use crate::text;

/// Replication to another region may deliver an index before its blobs; by now it has delivered both.
const REPLICATION: Duration = Duration::from_secs(3600);

impl S3Backend {
    /// Where the content of a file is: its blob, or its own key.
    pub(super) fn key_of(&self, path: &VirtualPath, found: &UnionFile) -> Result<ObjectKey> {
        if let Some(Blob { sha256, origin }) = &found.blob {
            let key = self.mounts.blob_of(found.layer, *sha256, &origin.id);
            return key.ok_or_else(|| Self::not_found(path));
        }
        match self.mounts.resolve_layer(path, found.layer)? {
            Location::Inside { key, .. } => Ok(key),
            _ => Err(Self::not_found(path)),
        }
    }

    /// A file with what is known of its content, where that is what a reader wants. No request.
    pub(super) fn known_version(&self, path: &VirtualPath, found: &UnionFile, want: Want) -> Option<File> {
        let key = self.key_of(path, found).ok()?;
        let kept = self.cache().recall::<Fact>(key.as_str())?;
        match &*kept.value {
            Fact::File(file) if same_version(&file.meta, &found.meta) && want.is_met_by(&file.content) => {
                Some(file_of(path, key, found, file.content.clone()))
            }
            _ => None,
        }
    }

    /// A file with what a reader wants of its content. One request up to 64 KiB, two beyond; none while it is
    /// known.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when it is another version now. For a blob that is not what was published,
    /// [`ErrorKind::Corrupt`]; for one that is not there, see [`S3Backend::missing_blob`].
    pub(super) async fn version(&self, path: &VirtualPath, found: &UnionFile, want: Want) -> Result<File> {
        let key = self.key_of(path, found)?;
        if found.meta.size == 0 {
            let content = match want {
                Want::Bytes => Content::Bytes(Bytes::new()),
                Want::Text | Want::Meta => Content::of_text(text::decode(Vec::new())),
            };
            return Ok(file_of(path, key, found, content));
        }
        if let Some(file) = self.known_version(path, found, want) {
            self.cache().hit();
            return Ok(file);
        }
        let name = flight(&key, found, want);
        let ask = {
            let (backend, path, found, key) = (self.clone(), path.clone(), found.clone(), key.clone());
            move || async move { backend.fetch_version(&path, key, &found, want).await }
        };
        // A version does not age: whoever wants it may wait with others.
        match &*self.cache().once(&name, Duration::MAX, ask).await? {
            Fact::File(file) => Ok(file_of(path, key, found, file.content.clone())),
            Fact::Directory | Fact::Nothing => Err(changed_while_read(path)),
        }
    }

    async fn fetch_version(
        &self,
        path: &VirtualPath,
        key: ObjectKey,
        found: &UnionFile,
        want: Want,
    ) -> Result<Arc<Fact>> {
        let asked = (self.cache().epoch(key.as_str()), Instant::now());
        let (meta, body) = self.send(path, &key, found, want.range()).await?;
        let sha256 = found.blob.as_ref().map(|blob| blob.sha256);
        let content = self.receive(path, &key, want, &meta, *body, sha256).await?;
        let fact = Arc::new(Fact::File(file_of(path, key.clone(), found, content)));
        self.keep_fact(key.as_str(), asked, fact.clone());
        Ok(fact)
    }

    /// Some bytes of a file; no body where the range starts at the end. Verified where it is all of them.
    ///
    /// # Errors
    /// As [`S3Backend::version`].
    pub(super) async fn version_bytes(
        &self,
        path: &VirtualPath,
        found: &UnionFile,
        range: ByteRange,
    ) -> Result<(Meta, Option<Box<Body>>)> {
        if range.start >= found.meta.size {
            return Ok((found.meta.clone(), None));
        }
        let key = self.key_of(path, found)?;
        let (_, mut body) = self.send(path, &key, found, range).await?;
        if let Some(blob) = found.blob.as_ref().filter(|_| body.remaining() >= found.meta.size) {
            body.verify(blob.sha256);
        }
        Ok((found.meta.clone(), Some(body)))
    }

    /// The first bytes of a file. One request.
    ///
    /// # Errors
    /// As [`S3Backend::version`].
    pub(crate) async fn read_listed(
        &self,
        path: &VirtualPath,
        found: &UnionFile,
        bytes: u64,
    ) -> Result<Bytes> {
        let range = ByteRange { start: 0, end: Some(bytes) };
        let mut content = Vec::new();
        if let (_, Some(mut body)) = self.version_bytes(path, found, range).await? {
            body.collect(self.store(), &mut content).await.map_err(|e| e.during("read", path))?;
        }
        Ok(content.into())
    }

    async fn send(
        &self,
        path: &VirtualPath,
        key: &ObjectKey,
        found: &UnionFile,
        range: ByteRange,
    ) -> Result<(Meta, Box<Body>)> {
        let expect = match (&found.blob, &found.meta.etag) {
            (None, Some(etag)) => Expect::Version(etag),
            _ => Expect::Any,
        };
        match self.store().get(key, range, expect).await.map_err(|e| e.during("read", path))? {
            Fetched::Found { meta, body, .. } if found.blob.is_some() => match meta.size == found.meta.size {
                true => Ok((meta, body)),
                false => Err(wrong_size(path)),
            },
            // A server that ignores `If-Match` must not have another version taken for this one.
            Fetched::Found { meta, body, .. }
                if found.meta.etag.is_none() || meta.etag == found.meta.etag =>
            {
                Ok((meta, body))
            }
            Fetched::Missing if found.blob.is_some() => Err(self.missing_blob(path, found).await),
            Fetched::BehindTheEnd if found.blob.is_some() => Err(wrong_size(path)),
            _ => Err(changed_while_read(path)),
        }
    }

    /// What to say of a blob that is not there: the index is read again. Where a newer release does not refer to
    /// it any more, reading again helps.
    async fn missing_blob(&self, path: &VirtualPath, found: &UnionFile) -> Error {
        if self.pinned.is_some() {
            return Error::new(
                ErrorKind::Conflict,
                format!("`{path}` cannot be read: the release that this turn keeps to is gone"),
            )
            .at(path)
            .with_hint("start a new turn");
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
        let released = union.released(found.layer).unwrap_or(std::time::SystemTime::UNIX_EPOCH);
        let age = missed.duration_since(released).unwrap_or_default();
        let (kind, hint) = match age < REPLICATION {
            true => (ErrorKind::Unavailable, "try again: it may still be on its way to this region"),
            false => (
                ErrorKind::Corrupt,
                "an administrator runs `skillfs admin verify --repair`, or publishes the skill again",
            ),
        };
        Error::new(kind, format!("the content of `{path}` is not there")).at(path).with_hint(hint)
    }
}

fn file_of(path: &VirtualPath, key: ObjectKey, found: &UnionFile, content: Content) -> File {
    let (path, meta, immutable) = (path.clone(), found.meta.clone(), found.blob.is_some());
    File { path, key, meta, content, immutable }
}

/// Each wants something else, and may fail for another reason.
fn flight(key: &ObjectKey, found: &UnionFile, want: Want) -> String {
    let etag = found.meta.etag.as_deref().unwrap_or_default();
    format!("{}\u{4}{want:?}\u{2}{etag}", key.as_str())
}

fn wrong_size(path: &VirtualPath) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the content of `{path}` is not what was published"))
        .at(path)
        .with_hint("an administrator runs `skillfs admin verify --repair`, or publishes the skill again")
}
