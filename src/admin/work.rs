//! Transfers of a push: limits requests and memory, reports progress, and reads and uploads content.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::library::{LibraryAdmin, blocking};
use super::new::{NewContent, NewFile};
use super::progress::PushProgress;
use crate::error::{Error, ErrorKind, Result};
use crate::index::{Digest, ReleaseId};
use crate::mount::Library;
use crate::path::leaf;
use crate::store::{ByteRange, Condition, Expect, Fetched};

/// The maximum number of concurrent requests.
pub(super) const MAX_REQUESTS: usize = 64;
/// The maximum size of file contents in memory, in KiB.
const HELD_KIB: usize = 64 * 1024;
/// Existing content of at least this many bytes is copied on the server instead of uploaded.
pub(super) const MIN_COPY_BYTES: u64 = 256 * 1024;

pub(super) struct Transfers<'a> {
    pub(super) access: &'a LibraryAdmin,
    requests: Semaphore,
    held: Semaphore,
    files: AtomicU64,
    bytes: AtomicU64,
    total: (u64, u64),
    phase: &'static str,
}

impl<'a> Transfers<'a> {
    pub(super) fn new(access: &'a LibraryAdmin, phase: &'static str, total: (u64, u64)) -> Self {
        let work = Self {
            access,
            requests: Semaphore::new(MAX_REQUESTS),
            held: Semaphore::new(HELD_KIB),
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            total,
            phase,
        };
        work.report(0, 0);
        work
    }

    /// Adds files and bytes to the progress, and reports it.
    pub(super) fn report(&self, files: u64, bytes: u64) {
        let files = self.files.fetch_add(files, Ordering::Relaxed) + files;
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if self.total.0 > 0 {
            let (files, bytes) = ((files, self.total.0), (bytes, self.total.1));
            self.access.progress.report(PushProgress { phase: self.phase, files, bytes });
        }
    }

    /// Waits for permits for one request and for its content in memory.
    pub(super) async fn reserve(&self, size: u64) -> Result<(SemaphorePermit<'_>, SemaphorePermit<'_>)> {
        let closed = |e| Error::new(ErrorKind::Internal, "publishing has ended").with_source(e);
        let kib = u32::try_from(size.div_ceil(1024).min(HELD_KIB as u64)).unwrap_or(u32::MAX);
        let request = self.requests.acquire().await.map_err(closed)?;
        Ok((request, self.held.acquire_many(kib).await.map_err(closed)?))
    }

    /// Reads the content of a file and verifies its digest.
    pub(super) async fn content(&self, path: &str, sha256: Digest, content: &NewContent) -> Result<Bytes> {
        let bytes = match content {
            NewContent::Bytes(bytes) => return Ok(bytes.clone()),
            NewContent::Local(file) => {
                let (file, shown) = (file.clone(), file.display().to_string());
                let read = blocking(move || std::fs::read(file)).await?;
                Bytes::from(read.map_err(|e| {
                    Error::new(ErrorKind::Unavailable, format!("cannot read `{shown}`: {e}"))
                        .with_hint("push again when it can be read")
                })?)
            }
            NewContent::Blob(origin) => {
                let key = self.access.library.blob(sha256, &origin.id);
                let found =
                    self.access.backend.object(key.key()).await.map_err(|e| e.during("read", path))?;
                let lost = || damaged(path, "no longer exists");
                found.map(|(_, bytes)| bytes).ok_or_else(lost)?
            }
            NewContent::Key(etag) => self.key(path, etag).await?,
        };
        let actual = bytes.clone();
        if blocking(move || Digest::of(&actual)).await? == sha256 {
            return Ok(bytes);
        }
        Err(match content {
            NewContent::Blob(_) => damaged(path, "is damaged"),
            _ => changed(path),
        })
    }

    /// Reads this version of a key of the library.
    pub(super) async fn key(&self, path: &str, etag: &str) -> Result<Bytes> {
        let (location, key) = self.access.library.file(path)?;
        let entire = ByteRange { start: 0, end: None };
        let store = self.access.backend.store();
        let fails = |e: Error| e.during("read", &location);
        match store.get(key.key(), entire, Expect::Version(etag)).await.map_err(fails)? {
            Fetched::Found { meta, mut body, .. } if meta.etag.as_deref() == Some(etag) => {
                let mut bytes = Vec::new();
                body.collect(store, &mut bytes).await.map_err(fails)?;
                Ok(bytes.into())
            }
            Fetched::BehindTheEnd => Ok(Bytes::new()),
            _ => Err(changed(path)),
        }
    }

    /// Uploads content as a blob of a release. If the blob exists, this process uploaded it.
    pub(super) async fn upload(
        &self,
        path: &str,
        file: &NewFile,
        id: &ReleaseId,
        from: Option<&(Library, ReleaseId)>,
    ) -> Result<()> {
        let _permits = self.reserve(file.size).await?;
        let key = self.access.library.blob(file.sha256, id);
        let name = leaf(&file.name);
        let mut copied = false;
        if let Some((library, origin)) = from.filter(|_| file.size >= MIN_COPY_BYTES) {
            // If the copy fails, the content is uploaded instead.
            let source = library.blob(file.sha256, origin);
            let copy = self.access.backend.copy_object(source.key(), &key, name, Condition::Absent).await;
            copied = copy.is_ok();
        }
        if !copied {
            let bytes = self.content(path, file.sha256, &file.content).await?;
            let put = self.access.backend.put_object(&key, name, bytes, Condition::Absent).await;
            put.map_err(|e| e.during("upload", path))?;
        }
        self.report(1, file.size);
        Ok(())
    }
}

fn changed(path: &str) -> Error {
    Error::new(ErrorKind::Conflict, format!("`{path}` was changed while it was being published"))
        .with_hint("none of this is visible; run it again to see what would change now")
        .lasting()
}

fn damaged(path: &str, what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the stored content of `{path}` {what}"))
        .with_hint("push the skill again from its source")
}
