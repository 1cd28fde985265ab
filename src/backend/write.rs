//! `write`, whole or as a stream, and the batches.

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

/// Items of a batch that are under way at once.
const BATCH: usize = 32;

/// What a write may replace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WriteMode {
    /// Whatever is there.
    #[default]
    Overwrite,
    /// Nothing: a file that is there is [`ErrorKind::AlreadyExists`].
    CreateNew,
    /// The version with this ETag: any other is [`ErrorKind::Conflict`].
    IfMatch(String),
}

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Written {
    /// Its path.
    pub path: VirtualPath,
    /// Its size, in bytes.
    pub size: u64,
    /// The ETag of what was written; `None` when the answer was lost and another writer had come by
    /// before it could be asked for.
    pub etag: Option<String>,
}

/// What the server behind a handle can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// Whether it minds `If-Match` and `If-None-Match` on writes. Without, edits and appends are refused
    /// unless [`S3Backend::accepting_lost_updates`] says otherwise.
    pub conditional_writes: bool,
}

impl S3Backend {
    /// Writes a file: creates it, or overwrites what is there.
    ///
    /// The content type follows from the name. Costs one request up to twice
    /// [`Settings::part_bytes`](crate::Settings::part_bytes), more in parts beyond.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`] where the session may not write, before any request;
    /// [`ErrorKind::QuotaExceeded`]; [`ErrorKind::Conflict`] when the answer was lost and nothing tells
    /// whether the write took effect.
    pub async fn write(&self, path: impl IntoPath, content: impl Into<Bytes>) -> Result<Written> {
        self.write_bytes(path.into_path()?, content.into(), &WriteMode::Overwrite).await
    }

    /// Writes a file under a condition.
    ///
    /// Costs as [`S3Backend::write`]; on a server that is not AWS one request more, once a handle, to ask
    /// whether it minds conditions.
    ///
    /// # Errors
    /// As [`S3Backend::write`], and [`ErrorKind::AlreadyExists`] or [`ErrorKind::Conflict`] when the
    /// condition does not hold.
    pub async fn write_with(
        &self,
        path: impl IntoPath,
        content: impl Into<Bytes>,
        mode: WriteMode,
    ) -> Result<Written> {
        self.write_bytes(path.into_path()?, content.into(), &mode).await
    }

    /// Writes a file from a stream of unknown length, in parts when it is long. Nothing is seen of it
    /// before it is complete; when the stream fails, or this future is dropped, nothing is left.
    ///
    /// Holds up to seven parts in memory, some 60 MB by default.
    ///
    /// # Errors
    /// As [`S3Backend::write_with`]; [`ErrorKind::InvalidInput`] when the stream fails.
    pub async fn write_stream(
        &self,
        path: impl IntoPath,
        content: impl Stream<Item = io::Result<Bytes>> + Send,
        mode: WriteMode,
    ) -> Result<Written> {
        self.write_from(path.into_path()?, content, &mode).await
    }

    /// Writes many files; the results are in the order of the files.
    ///
    /// Up to 32 are under way at once. One that fails does not stop the others.
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

    /// Reads many files as bytes; the results are in the order of the paths.
    ///
    /// Up to 32 are under way at once. One that fails does not stop the others.
    pub async fn download_files<P: IntoPath>(
        &self,
        paths: impl IntoIterator<Item = P>,
    ) -> Vec<Result<FileBytes>> {
        let paths: Vec<_> = paths.into_iter().map(IntoPath::into_path).collect();
        let read = |path: Result<VirtualPath>| async move { self.read_bytes(path?, ..).await };
        stream::iter(paths).map(read).buffered(BATCH).collect().await
    }

    /// The same session, for a caller who accepts that on a server without conditional writes an edit, an
    /// append or a conditional write may overwrite what another wrote at the same time.
    #[must_use]
    pub fn accepting_lost_updates(&self) -> Self {
        Self { accepts_lost_updates: true, ..self.clone() }
    }

    /// What the server can do. At most one request, once a handle.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`] when the session has no mount to try it in.
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

    /// Whether conditions can be used: `false` only when the caller accepts to go without.
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

    /// The file that a path means for writing: by its literal name.
    pub(super) fn file_target(&self, path: &VirtualPath) -> Result<(Target, WritableKey)> {
        let target = self.mounts.target(path)?;
        match target.key.clone() {
            Some(key) => Ok((target, key)),
            None => {
                Err(is_directory(path).with_hint(format!("name a file in it, such as `{path}/notes.md`")))
            }
        }
    }

    /// What a mode asks of the storage, found before the content is taken in.
    async fn condition(&self, target: &Target, mode: &WriteMode) -> Result<Condition> {
        let condition = match mode {
            WriteMode::Overwrite => return Ok(Condition::Always),
            WriteMode::CreateNew => Condition::Absent,
            WriteMode::IfMatch(etag) => {
                check_etag(&target.path, etag)?;
                Condition::Version { etag: bare(etag).to_owned(), known: None }
            }
        };
        if self.conditions(target).await? {
            return Ok(condition);
        }
        // The caller accepts that this is a look, and no promise.
        self.not_as_wanted(target, mode).await?;
        Ok(Condition::Always)
    }

    /// Tells what stands against a mode; nothing when it could go through now. One request.
    async fn not_as_wanted(&self, target: &Target, mode: &WriteMode) -> Result<()> {
        let Some(key) = &target.key else { return Ok(()) };
        let path = &target.path;
        let now = self.store().head(key.key()).await.map_err(|e| e.during("write", path))?;
        let etag = now.as_ref().and_then(|meta| meta.etag.as_deref());
        match mode {
            WriteMode::CreateNew if now.is_some() => Err(already_exists(path)),
            WriteMode::IfMatch(wanted) if etag != Some(bare(wanted)) => {
                Err(another_version(path, bare(wanted), etag))
            }
            _ => Ok(()),
        }
    }

    /// The size of what a write replaces, where a quota counts.
    pub(super) async fn replaced(&self, path: &VirtualPath, key: &WritableKey) -> Result<Option<u64>> {
        if !self.counts_usage() {
            return Ok(None);
        }
        let old = self.store().head(key.key()).await.map_err(|e| e.during("look at", path))?;
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
        let _turn = self.quota_turn(key).await;
        let old = self.replaced(&target.path, key).await?;
        let room = self.room(target, &target.path, size, old).await?;
        let id = self.store().write_id()?;
        let properties = new_file(&target.path, &id);
        let payload = Payload::Whole(PartSource::Bytes(content));
        let write = Write { key, id: &id, payload, condition, properties: &properties };
        let etag = self.put_as(target, mode, &write).await?;
        room.keep();
        Ok(Written { path: target.path.clone(), size, etag })
    }

    /// Sends a write until its condition is decided.
    async fn put_as(&self, target: &Target, mode: &WriteMode, write: &Write<'_>) -> Result<Option<String>> {
        let path = &target.path;
        let deadline = Instant::now() + self.shared.settings.conflict_patience;
        let mut rounds = 0;
        loop {
            match self.store().put(write).await.map_err(|e| e.during("write", path))? {
                Put::Done { etag } => return Ok(etag),
                Put::Overtaken => {}
            }
            // Another conditional write was under way, or the file came and went: else this says no.
            self.not_as_wanted(target, mode).await?;
            if Instant::now() >= deadline {
                return Err(busy(path));
            }
            rounds += 1;
            self.store().pause(rounds).await;
        }
    }

    /// Takes content in and sends it: in one request when it is short, in parts when it is not.
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
        let _turn = self.quota_turn(key).await;
        let parts = self.store().start_parts(key, &properties).await;
        let mut parts = parts.map_err(|e| e.during("write", &target.path))?;
        let writing = async {
            let (size, room) = self.send_parts(target, &mut parts, reader, &mut content).await?;
            let write = Write { key, id: &id, payload: parts.payload(), condition, properties: &properties };
            let etag = self.put_as(target, mode, &write).await?;
            room.keep();
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

/// The properties of a file that is written anew.
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

/// An ETag without the quotes that it has on the wire.
fn bare(etag: &str) -> &str {
    etag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(etag)
}

fn check_etag(path: &VirtualPath, etag: &str) -> Result<()> {
    // Neither any version nor nearly this one: both would overwrite what was not seen.
    let named = !bare(etag).is_empty() && bare(etag) != "*" && !bare(etag).contains('"');
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

/// The file is not the version that was named.
fn another_version(path: &VirtualPath, wanted: &str, etag: Option<&str>) -> Error {
    match etag {
        Some(etag) => Unwritten::OtherVersion { path, expected: wanted, etag }.into(),
        None => Unwritten::NoVersion { path, expected: wanted }.into(),
    }
}

/// Others were at it all the time.
pub(super) fn busy(path: &VirtualPath) -> Error {
    Unwritten::Busy(path).into()
}

/// Another writer was there first.
pub(super) fn changed(path: &VirtualPath, etag: Option<&str>) -> Error {
    match etag {
        Some(etag) => Unwritten::Changed { path, etag }.into(),
        None => Unwritten::Deleted(path).into(),
    }
}
