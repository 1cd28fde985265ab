//! `read`, `stat` and `exists`.

use std::ops::{Bound, RangeBounds};
use std::time::SystemTime;

use bytes::Bytes;
use serde::Serialize;
use tracing::{Instrument, instrument};

use super::S3Backend;
use super::file::{BYTES_ASKED, File, Node, Opened, RANGES, Want, changed_while_read};
use super::tree::Retries;
use super::union::UnionFile;
use crate::entry::Entry;
use crate::error::{ErrorKind, Result};
use crate::options::setters;
use crate::path::{IntoPath, VirtualPath};
use crate::store::ByteRange;

/// Which lines to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Window {
    /// The first line, counted from 0.
    pub offset: u64,
    /// How many lines at most; `None` is all.
    pub limit: Option<u64>,
}

impl Window {
    setters! {
        offset: u64;
        limit: some u64;
    }
}

/// Text that was read: a whole file or a window of its lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TextFile {
    /// The real path: with `.md`, where that was added.
    pub path: VirtualPath,
    /// The text, as it is but for its byte order mark. Line ends are kept.
    pub content: String,
    /// The first line of the window, counted from 0.
    pub offset: u64,
    /// How many lines the content has.
    pub lines: u64,
    /// How many lines the file has; `None` when its end was not reached.
    pub total_lines: Option<u64>,
    /// Where to go on; `None` at the end of the file.
    pub next_offset: Option<u64>,
    /// The encoding it was stored in.
    pub encoding: &'static str,
    /// The size of the whole file, in bytes.
    pub size: u64,
    /// When it was written last.
    #[serde(serialize_with = "crate::entry::rfc3339")]
    pub modified: Option<SystemTime>,
    /// An opaque token that changes when the content does.
    pub etag: Option<String>,
}

/// Bytes that were read: a whole file or a range of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileBytes {
    /// The real path: with `.md`, where that was added.
    pub path: VirtualPath,
    /// The bytes.
    pub bytes: Bytes,
    /// The size of the whole file, in bytes.
    pub size: u64,
    /// When it was written last.
    pub modified: Option<SystemTime>,
    /// An opaque token that changes when the content does.
    pub etag: Option<String>,
}

impl S3Backend {
    /// Reads a text file whole.
    ///
    /// What is text is decided by content: UTF-8, UTF-16 with a byte order mark, and legacy
    /// single-byte encodings. A last segment without a dot that is no file is tried with `.md`.
    ///
    /// Costs one request up to 64 KiB, two beyond; one more where `.md` was added; two or three
    /// when nothing is there. Below `/skills`, what lies there is listed first, unless it is known.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::IsDirectory`]; [`ErrorKind::BinaryFile`] with type and
    /// size, after at most 64 KiB where the beginning tells; [`ErrorKind::TooLarge`] beyond
    /// [`Settings::max_read_bytes`](crate::Settings::max_read_bytes): read a window instead.
    pub async fn read(&self, path: impl IntoPath) -> Result<TextFile> {
        let path = path.into_path()?;
        let span = tracing::info_span!("read", ?path);
        self.read_text(path, None).instrument(span).await
    }

    /// Reads a window of lines. A window behind the end is empty, not an error.
    ///
    /// A file up to the size limit is judged as a whole and its lines are counted. Of a larger one
    /// only what lies before and in the window is read and judged.
    ///
    /// # Errors
    /// As [`S3Backend::read`]; [`ErrorKind::TooLarge`] only when the window itself is.
    pub async fn read_window(&self, path: impl IntoPath, window: Window) -> Result<TextFile> {
        let path = path.into_path()?;
        let span = tracing::info_span!("read", ?path, ?window);
        self.read_text(path, Some(window)).instrument(span).await
    }

    /// Reads bytes, text or not: all of them or a range. A range behind the end is empty.
    ///
    /// Costs one request; two when the range is empty.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::IsDirectory`]; [`ErrorKind::TooLarge`] when more than
    /// [`Settings::max_read_bytes`](crate::Settings::max_read_bytes) were asked for.
    pub async fn read_bytes(&self, path: impl IntoPath, range: impl RangeBounds<u64>) -> Result<FileBytes> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => Some(end.saturating_add(1)),
            Bound::Excluded(end) => Some(*end),
            Bound::Unbounded => None,
        };
        // No object is longer, and servers refuse numbers beyond.
        let most = i64::MAX.unsigned_abs() - 1;
        let range = ByteRange { start: start.min(most), end: end.map(|end| end.min(most)) };
        self.read_range(path.into_path()?, range).await
    }

    /// What is known of a file or directory. Where both have the name, the file answers.
    ///
    /// A last segment without a dot that is no file is tried with `.md` before it is called a
    /// directory; the entry names the real path.
    ///
    /// Costs, with a dot in the name: one request for a file, two for anything else. Without a
    /// dot: three, sent at once. The root and the mounts: none. Below `/skills`: the index of each library, and a
    /// listing of each plain one, sent at once; none while they are known.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when nothing is there.
    #[instrument(name = "stat", skip_all)]
    pub async fn stat(&self, path: impl IntoPath) -> Result<Entry> {
        let path = path.into_path()?;
        match &*self.find(&path, Want::Meta).await? {
            Node::File(file) => Ok(file.meta.entry(file.path.clone())),
            Node::Directory => Ok(Entry::directory(path)),
            Node::Nothing => Err(Self::not_found(&path)),
        }
    }

    /// Whether a file or directory is there, by the rules of [`S3Backend::stat`] and at its cost.
    ///
    /// # Errors
    /// When it cannot be told: the storage is out of reach or denies the answer.
    pub async fn exists(&self, path: impl IntoPath) -> Result<bool> {
        let path = path.into_path()?;
        match self.find(&path, Want::Meta).await {
            Ok(node) => Ok(!matches!(*node, Node::Nothing)),
            // A mount that the session does not have.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads a text file of `/skills` whole, in the version that the union has.
    pub(crate) async fn read_version(&self, path: &VirtualPath, found: &UnionFile) -> Result<TextFile> {
        let file = self.version(path, found, Want::Text).await?;
        self.text_of(&file, None).await
    }

    async fn read_text(&self, path: VirtualPath, window: Option<Window>) -> Result<TextFile> {
        let mut retries = Retries::new(self);
        loop {
            let read = retries.session().read_text_once(&path, window).await;
            if !retries.again(&read) {
                return read;
            }
        }
    }

    async fn read_text_once(&self, path: &VirtualPath, window: Option<Window>) -> Result<TextFile> {
        let node = self.find(path, Want::Text).await?;
        self.text_of(node.file(path)?, window).await
    }

    #[instrument(name = "read_bytes", skip_all, fields(?path, ?range))]
    async fn read_range(&self, path: VirtualPath, range: ByteRange) -> Result<FileBytes> {
        let mut retries = Retries::new(self);
        loop {
            let read = retries.session().read_range_once(&path, range).await;
            if !retries.again(&read) {
                return read;
            }
        }
    }

    async fn read_range_once(&self, path: &VirtualPath, range: ByteRange) -> Result<FileBytes> {
        // HTTP has no empty range: ask for one byte, and use none of it.
        let empty = range.end.is_some_and(|end| end <= range.start);
        let asked = if empty { ByteRange { start: range.start, end: Some(range.start + 1) } } else { range };
        let opened = match range == ByteRange::WHOLE {
            true => Opened::Known(self.find(path, Want::Bytes).await?.file(path)?.clone()),
            false => self.open_path(path, asked).await?,
        };
        let (path, meta, body) = match opened {
            Opened::Known(file) => {
                let Some(answer) = slice(&file, range) else { return Err(changed_while_read(path)) };
                self.check_size(&answer.path, answer.bytes.len() as u64, BYTES_ASKED, RANGES)?;
                return Ok(answer);
            }
            Opened::Body { path, meta, body } => (path, meta, body),
        };
        let mut bytes = Vec::new();
        if let Some(mut body) = body.filter(|_| !empty) {
            self.check_size(&path, body.remaining(), BYTES_ASKED, RANGES)?;
            body.collect(self.store(), &mut bytes).await.map_err(|e| e.during("read", &path))?;
        }
        Ok(FileBytes { path, bytes: bytes.into(), size: meta.size, modified: meta.modified, etag: meta.etag })
    }
}

/// A range of content that is known.
fn slice(file: &File, range: ByteRange) -> Option<FileBytes> {
    let bytes = file.content.bytes()?;
    let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX).min(bytes.len());
    let start = at(range.start);
    let end = range.end.map_or(bytes.len(), at).max(start);
    let File { path, meta, .. } = file.clone();
    let bytes = bytes.slice(start..end);
    Some(FileBytes { path, bytes, size: meta.size, modified: meta.modified, etag: meta.etag })
}
