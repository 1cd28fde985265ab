//! `write`, from bytes or from a stream, and the batch operations.

use std::io;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use tracing::instrument;

use super::file::is_directory;
use super::pieces::Reader;
use super::{FileBytes, S3Backend};
use crate::ambient::Instant;
use crate::error::{Error, ErrorKind, Hint, Result, shorten};
use crate::mount::{Target, WritableKey};
use crate::path::{IntoPath, VirtualPath};
use crate::store::{Condition, History, ObjectProperties, PartSource, Payload, Put, Write, WriteId};

/// How many files of a batch are processed concurrently.
const BATCH: usize = 32;

/// The precondition of a write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WriteMode {
    /// No precondition: create the file, or overwrite it.
    #[default]
    Overwrite,
    /// The file must not exist; otherwise the write fails with [`ErrorKind::AlreadyExists`].
    CreateNew,
    /// The file must have this ETag; otherwise the write fails with [`ErrorKind::Conflict`].
    IfMatch(String),
}

/// The result of a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Written {
    /// The path of the file.
    pub path: VirtualPath,
    /// The size of the file, in bytes.
    pub size: u64,
    /// The ETag of the new version. `None` if the response was lost and another writer replaced the
    /// file before the ETag could be requested.
    pub etag: Option<String>,
}

/// What the server supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// Whether it honors `If-Match` and `If-None-Match` on writes. If not, edits and appends are
    /// refused, unless the session is one from [`S3Backend::accepting_lost_updates`].
    pub conditional_writes: bool,
}

impl S3Backend {
    /// Writes a file, creating it or overwriting the existing one.
    ///
    /// The content type is derived from the file name.
    ///
    /// Costs one request for up to twice [`Settings::part_bytes`](crate::Settings::part_bytes).
    /// Larger content is a multipart upload.
    ///
    /// # Errors
    /// - [`ErrorKind::ReadOnly`] if the session may not write there. Fails before sending anything.
    /// - [`ErrorKind::IsDirectory`] if the path is a mount.
    /// - [`ErrorKind::QuotaExceeded`] if the session's quota does not allow it.
    /// - [`ErrorKind::Conflict`] if the response was lost and it cannot be determined whether the
    ///   write took effect.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "embedded")]
    /// # async fn example() -> skillfs::Result<()> {
    /// # use skillfs::{Session, Settings, SkillFs, ThreadId, embedded::Embedded};
    /// # let store = Embedded::in_memory()?;
    /// # store.create_bucket("acme").await?;
    /// # let fs = SkillFs::embedded(&store, &Settings::new("acme")).await?;
    /// # let backend = fs.session(&Session::new().thread(ThreadId::parse("t-42")?));
    /// let written = backend.write("plan.md", "# Plan\n").await?;
    /// assert_eq!(written.path.as_str(), "/workspace/plan.md");
    /// assert_eq!(backend.read("plan.md").await?.content, "# Plan\n");
    /// # Ok(())
    /// # }
    /// # #[cfg(feature = "embedded")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub async fn write(&self, path: impl IntoPath, content: impl Into<Bytes>) -> Result<Written> {
        self.write_bytes(path.into_path()?, content.into(), &WriteMode::Overwrite).await
    }

    /// Writes a file under a precondition.
    ///
    /// Costs the same as [`S3Backend::write`]. On a server other than AWS, the first conditional
    /// write of the handle costs one more request, which probes for support.
    ///
    /// # Errors
    /// - Same as [`S3Backend::write`].
    /// - [`ErrorKind::AlreadyExists`] or [`ErrorKind::Conflict`] if the precondition fails.
    /// - [`ErrorKind::InvalidInput`] if [`WriteMode::IfMatch`] has a malformed ETag.
    /// - [`ErrorKind::Unavailable`] if the server does not support conditional writes.
    pub async fn write_with(
        &self,
        path: impl IntoPath,
        content: impl Into<Bytes>,
        mode: WriteMode,
    ) -> Result<Written> {
        self.write_bytes(path.into_path()?, content.into(), &mode).await
    }

    /// Writes a file from a stream of unknown length. Long content is a multipart upload.
    ///
    /// The file becomes visible only once it is complete. If the stream fails, or the future is
    /// dropped, nothing is left.
    ///
    /// Costs the same as [`S3Backend::write`]. Buffers up to seven parts in memory, about 60 MB by
    /// default.
    ///
    /// # Errors
    /// Same as [`S3Backend::write_with`], and [`ErrorKind::InvalidInput`] if the stream fails.
    pub async fn write_stream(
        &self,
        path: impl IntoPath,
        content: impl Stream<Item = io::Result<Bytes>> + Send,
        mode: WriteMode,
    ) -> Result<Written> {
        self.write_from(path.into_path()?, content, &mode).await
    }

    /// Writes many files, up to 32 concurrently. Returns the results in the order of the files.
    ///
    /// A file that fails does not affect the others. Each file costs the same as
    /// [`S3Backend::write`].
    pub async fn upload_files<P: IntoPath>(
        &self,
        files: impl IntoIterator<Item = (P, Bytes)>,
    ) -> Vec<Result<Written>> {
        let files: Vec<_> = files.into_iter().map(|(path, content)| (path.into_path(), content)).collect();
        let write = |(path, content): (Result<VirtualPath>, Bytes)| async move {
            self.write_bytes(path?, content, &WriteMode::Overwrite).await
        };
        stream::iter(files).map(write).buffered(BATCH).collect().await
    }

    /// Reads many files as bytes, up to 32 concurrently. Returns the results in the order of the
    /// paths.
    ///
    /// A file that fails does not affect the others. Each file costs the same as
    /// [`S3Backend::read_bytes`].
    pub async fn download_files<P: IntoPath>(
        &self,
        paths: impl IntoIterator<Item = P>,
    ) -> Vec<Result<FileBytes>> {
        let paths: Vec<_> = paths.into_iter().map(IntoPath::into_path).collect();
        let read = |path: Result<VirtualPath>| async move { self.read_bytes(path?, ..).await };
        stream::iter(paths).map(read).buffered(BATCH).collect().await
    }

    /// Returns a copy of this session that works without conditional writes.
    ///
    /// On a server that does not support them, an edit, an append or a conditional write of that
    /// session may overwrite a concurrent change of another writer.
    #[must_use]
    pub fn accepting_lost_updates(&self) -> Self {
        Self { accepts_lost_updates: true, ..self.clone() }
    }

    /// Returns what the server supports. At most one request per handle.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`] if the session has no mount in which to probe.
    pub async fn capabilities(&self) -> Result<Capabilities> {
        let targets = self.mounts().filter_map(|mount| self.mounts.target(mount.path()).ok());
        let target = targets.last().ok_or_else(|| {
            Error::new(ErrorKind::ReadOnly, "this session has no writable mount")
                .with_hint(Hint::OpenWith { mount: None, identities: vec!["thread"] })
        })?;
        Ok(Capabilities { conditional_writes: self.honors_conditions(&target).await? })
    }

    async fn honors_conditions(&self, target: &Target) -> Result<bool> {
        let probe = || Ok(target.probe(&format!(".skillfs-probe-{}", self.store().write_id()?.as_str())));
        let honors = self.store().conditional_writes(probe).await;
        honors.map_err(|e| e.during("write", &target.path))
    }

    /// Returns whether to use conditional writes. `false` only if they are unsupported and the
    /// caller accepts that.
    pub(super) async fn conditions(&self, target: &Target) -> Result<bool> {
        if self.honors_conditions(target).await? {
            return Ok(true);
        }
        if self.accepts_lost_updates {
            return Ok(false);
        }
        Err(Unwritten::NoConditions(&target.path).into())
    }

    #[instrument(name = "write", skip_all, fields(?path, ?mode, bytes = content.len()))]
    async fn write_bytes(&self, path: VirtualPath, content: Bytes, mode: &WriteMode) -> Result<Written> {
        let (target, key) = self.file_target(&path)?;
        self.check_file_size(&path, content.len() as u64)?;
        let condition = self.condition(&target, mode).await?;
        if content.len() as u64 > self.store().single_put_bytes() {
            let whole = stream::iter([Ok(content)]);
            return self.write_parts(&target, &key, whole, mode, condition).await;
        }
        self.write_once(&target, &key, content, mode, condition).await
    }

    #[instrument(name = "write", skip_all, fields(?path, ?mode))]
    async fn write_from(
        &self,
        path: VirtualPath,
        content: impl Stream<Item = io::Result<Bytes>> + Send,
        mode: &WriteMode,
    ) -> Result<Written> {
        let (target, key) = self.file_target(&path)?;
        let condition = self.condition(&target, mode).await?;
        self.write_parts(&target, &key, content, mode, condition).await
    }

    /// Returns the file to write. The path is taken literally: `.md` is never added.
    pub(super) fn file_target(&self, path: &VirtualPath) -> Result<(Target, WritableKey)> {
        let target = self.mounts.target(path)?;
        match target.key.clone() {
            Some(key) => Ok((target, key)),
            None => {
                Err(is_directory(path).with_hint(format!("name a file in it, such as `{path}/notes.md`")))
            }
        }
    }

    /// Translates a mode into a condition, before the content is read.
    async fn condition(&self, target: &Target, mode: &WriteMode) -> Result<Condition> {
        let condition = match mode {
            WriteMode::Overwrite => return Ok(Condition::Always),
            WriteMode::CreateNew => Condition::Absent,
            WriteMode::IfMatch(etag) => {
                check_etag(&target.path, etag)?;
                Condition::Version { etag: unquoted(etag).to_owned(), known: None }
            }
        };
        if self.conditions(target).await? {
            return Ok(condition);
        }
        // The caller accepts a check that is not atomic.
        self.check_precondition(target, mode).await?;
        Ok(Condition::Always)
    }

    /// Fails if the precondition of a mode does not hold now. One request.
    async fn check_precondition(&self, target: &Target, mode: &WriteMode) -> Result<()> {
        let Some(key) = &target.key else { return Ok(()) };
        let path = &target.path;
        let now = self.store().head(key.key()).await.map_err(|e| e.during("write", path))?;
        let etag = now.as_ref().and_then(|meta| meta.etag.as_deref());
        match mode {
            WriteMode::CreateNew if now.is_some() => Err(already_exists(path)),
            WriteMode::IfMatch(wanted) if etag != Some(unquoted(wanted)) => {
                Err(etag_mismatch(path, unquoted(wanted), etag))
            }
            _ => Ok(()),
        }
    }

    /// Returns the size of the file that a write replaces, if there is a quota.
    pub(super) async fn replaced(&self, path: &VirtualPath, key: &WritableKey) -> Result<Option<u64>> {
        if !self.has_mount_quota() {
            return Ok(None);
        }
        let old = self.store().head(key.key()).await.map_err(|e| e.during("inspect", path))?;
        Ok(old.map(|meta| meta.size))
    }

    async fn write_once(
        &self,
        target: &Target,
        key: &WritableKey,
        content: Bytes,
        mode: &WriteMode,
        condition: Condition,
    ) -> Result<Written> {
        let size = content.len() as u64;
        let _guard = self.quota_lock(key).await;
        let old = self.replaced(&target.path, key).await?;
        let reservation = self.reserve(target, &target.path, size, old).await?;
        let id = self.store().write_id()?;
        let properties = new_file(&target.path, &id);
        let payload = Payload::Whole(PartSource::Bytes(content));
        let write = Write { key, id: &id, payload, condition, properties: &properties };
        let etag = self.put_until_decided(target, mode, &write).await?;
        reservation.commit();
        Ok(Written { path: target.path.clone(), size, etag })
    }

    /// Sends a write until it succeeds or its precondition fails.
    async fn put_until_decided(
        &self,
        target: &Target,
        mode: &WriteMode,
        write: &Write<'_>,
    ) -> Result<Option<String>> {
        let path = &target.path;
        let deadline = Instant::now() + self.shared.settings.conflict_patience;
        let mut rounds = 0;
        loop {
            match self.store().put(write).await.map_err(|e| e.during("write", path))? {
                Put::Done { etag } => return Ok(etag),
                Put::Overtaken => {}
            }
            // Either the precondition fails, which this reports, or another conditional write was
            // in progress, or the file was created and deleted again: then retry.
            self.check_precondition(target, mode).await?;
            if Instant::now() >= deadline {
                return Err(busy(path));
            }
            rounds += 1;
            self.store().pause(rounds).await;
        }
    }

    /// Reads content and sends it: in one request if it is short, otherwise as a multipart upload.
    async fn write_parts(
        &self,
        target: &Target,
        key: &WritableKey,
        content: impl Stream<Item = io::Result<Bytes>> + Send,
        mode: &WriteMode,
        condition: Condition,
    ) -> Result<Written> {
        let mut content = Box::pin(content);
        let mut reader = Reader::default();
        reader.fill(self, &target.path, &mut content, self.store().single_put_bytes() + 1).await?;
        if reader.ended {
            return self.write_once(target, key, reader.buffer.freeze(), mode, condition).await;
        }
        let id = self.store().write_id()?;
        let properties = new_file(&target.path, &id);
        let _guard = self.quota_lock(key).await;
        let parts = self.store().start_parts(key, &properties).await;
        let mut parts = parts.map_err(|e| e.during("write", &target.path))?;
        let writing = async {
            let (size, reservation) = self.send_parts(target, &mut parts, reader, &mut content).await?;
            let write = Write { key, id: &id, payload: parts.payload(), condition, properties: &properties };
            let etag = self.put_until_decided(target, mode, &write).await?;
            reservation.commit();
            Ok(Written { path: target.path.clone(), size, etag })
        };
        let written = writing.await;
        match &written {
            Ok(_) => parts.completed(),
            Err(_) => parts.abort().await,
        }
        written
    }
}

/// The properties of a newly written file.
pub(super) fn new_file(path: &VirtualPath, id: &WriteId) -> ObjectProperties {
    new_properties(path.name().unwrap_or_default(), id)
}

pub(super) fn new_properties(name: &str, id: &WriteId) -> ObjectProperties {
    let mime = mime_guess::from_path(name).first_raw().unwrap_or("application/octet-stream");
    ObjectProperties {
        content_type: Some(mime.to_owned()),
        history: History::first(id),
        ..ObjectProperties::default()
    }
}

/// Strips the quotes that an ETag has on the wire.
fn unquoted(etag: &str) -> &str {
    etag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(etag)
}

fn check_etag(path: &VirtualPath, etag: &str) -> Result<()> {
    // Neither `*` nor a weak ETag: both could overwrite a version that the caller has not seen.
    let named = !unquoted(etag).is_empty() && unquoted(etag) != "*" && !unquoted(etag).contains('"');
    if named && etag.chars().all(|c| c.is_ascii_graphic()) && etag.len() <= 1024 {
        return Ok(());
    }
    Err(Unwritten::NotAnEtag { path, etag: shorten(etag) }.into())
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
enum Unwritten<'p> {
    #[error("cannot change `{0}` safely: the storage ignores conditional writes")]
    NoConditions(&'p VirtualPath),
    #[error("`{etag}` is not an ETag")]
    NotAnEtag { path: &'p VirtualPath, etag: String },
    #[error("`{0}` already exists")]
    Exists(&'p VirtualPath),
    #[error("`{path}` is not the version `{expected}`: its ETag is now `{etag}`")]
    OtherVersion { path: &'p VirtualPath, expected: &'p str, etag: &'p str },
    #[error("`{path}` is not the version `{expected}`: it does not exist")]
    NoVersion { path: &'p VirtualPath, expected: &'p str },
    #[error("`{0}` is being changed too often by other writers")]
    Busy(&'p VirtualPath),
    #[error("`{path}` was changed by another writer: its ETag is now `{etag}`")]
    Changed { path: &'p VirtualPath, etag: &'p str },
    #[error("`{0}` was changed by another writer: it no longer exists")]
    Deleted(&'p VirtualPath),
}

impl From<Unwritten<'_>> for Error {
    fn from(why: Unwritten<'_>) -> Self {
        const READ_AGAIN: &str = "nothing was written; read it again, then retry";
        use ErrorKind::{AlreadyExists, Conflict, InvalidInput, Unavailable};
        let (kind, path, hint) = match why {
            Unwritten::NoConditions(path) => (Unavailable, path, Hint::AcceptLostUpdates),
            Unwritten::NotAnEtag { path, .. } => (
                InvalidInput,
                path,
                "use the ETag of the entry, or the one that an earlier write returned".into(),
            ),
            Unwritten::Exists(path) => {
                (AlreadyExists, path, "choose another name, or overwrite it on purpose".into())
            }
            Unwritten::NoVersion { path, .. } => {
                (Conflict, path, "nothing was written; to create it, write it without a condition".into())
            }
            Unwritten::Busy(path) => (Conflict, path, "nothing was written; try again later".into()),
            Unwritten::OtherVersion { path, .. }
            | Unwritten::Changed { path, .. }
            | Unwritten::Deleted(path) => (Conflict, path, READ_AGAIN.into()),
        };
        let error = Self::new(kind, why.to_string()).at(path).with_hint(hint);
        // Only the writer who finds the file busy can succeed with the same call.
        if matches!(why, Unwritten::Busy(_)) { error } else { error.lasting() }
    }
}

pub(super) fn already_exists(path: &VirtualPath) -> Error {
    Unwritten::Exists(path).into()
}

/// The file does not have the expected ETag.
fn etag_mismatch(path: &VirtualPath, wanted: &str, etag: Option<&str>) -> Error {
    match etag {
        Some(etag) => Unwritten::OtherVersion { path, expected: wanted, etag }.into(),
        None => Unwritten::NoVersion { path, expected: wanted }.into(),
    }
}

/// Other writers kept changing the file until the time ran out.
pub(super) fn busy(path: &VirtualPath) -> Error {
    Unwritten::Busy(path).into()
}

/// Another writer was faster.
pub(super) fn changed(path: &VirtualPath, etag: Option<&str>) -> Error {
    match etag {
        Some(etag) => Unwritten::Changed { path, etag }.into(),
        None => Unwritten::Deleted(path).into(),
    }
}
