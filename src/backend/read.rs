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

/// A range of lines to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Window {
    /// The first line, starting at 0.
    pub offset: u64,
    /// The maximum number of lines. `None` means all.
    pub limit: Option<u64>,
}

impl Window {
    setters! {
        offset: u64;
        limit: some u64;
    }
}

/// A text file, or a window of its lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TextFile {
    /// The actual path, including `.md` if it was added.
    pub path: VirtualPath,
    /// The decoded text, without a byte order mark. Line endings are preserved.
    pub content: String,
    /// The first line of the window, starting at 0.
    pub offset: u64,
    /// The number of lines in `content`.
    pub lines: u64,
    /// The number of lines in the file. `None` if its end was not reached.
    pub total_lines: Option<u64>,
    /// The offset of the next window. `None` at the end of the file.
    pub next_offset: Option<u64>,
    /// The encoding in which the file is stored.
    pub encoding: &'static str,
    /// The size of the complete file, in bytes.
    pub size: u64,
    /// When the file was last modified.
    #[serde(serialize_with = "crate::entry::rfc3339")]
    pub modified: Option<SystemTime>,
    /// An opaque token that changes when the content changes.
    pub etag: Option<String>,
}

/// The bytes of a file, or a range of them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileBytes {
    /// The actual path, including `.md` if it was added.
    pub path: VirtualPath,
    /// The bytes.
    pub bytes: Bytes,
    /// The size of the complete file, in bytes.
    pub size: u64,
    /// When the file was last modified.
    pub modified: Option<SystemTime>,
    /// An opaque token that changes when the content changes.
    pub etag: Option<String>,
}

impl S3Backend {
    /// Reads a complete text file.
    ///
    /// Text is detected by content, not by name: UTF-8, UTF-16 with a byte order mark, and legacy
    /// encodings. If the last segment of the path has no dot and there is no such file, `.md` is
    /// tried as well.
    ///
    /// Costs one request for a file of up to 64 KiB and two for a larger one; one more if `.md` was
    /// added; two or three if nothing is found. Below `/skills`, the libraries are fetched first,
    /// unless they are cached.
    ///
    /// # Errors
    /// - [`ErrorKind::NotFound`], [`ErrorKind::IsDirectory`].
    /// - [`ErrorKind::BinaryFile`], with type and size, if the file is not text. If its first 64
    ///   KiB show that, no more is read.
    /// - [`ErrorKind::TooLarge`] if the file exceeds
    ///   [`Settings::max_read_bytes`](crate::Settings::max_read_bytes). Use
    ///   [`S3Backend::read_window`] instead.
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
    /// backend.write("notes.md", "# Notes\n").await?;
    ///
    /// let file = backend.read("notes").await?; // a relative path starts at /workspace
    /// assert_eq!(file.path.as_str(), "/workspace/notes.md");
    /// assert_eq!(file.content, "# Notes\n");
    /// # Ok(())
    /// # }
    /// # #[cfg(feature = "embedded")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub async fn read(&self, path: impl IntoPath) -> Result<TextFile> {
        let path = path.into_path()?;
        let span = tracing::info_span!("read", ?path);
        self.read_text(path, None).instrument(span).await
    }

    /// Reads a window of lines of a text file. A window past the end is empty, not an error.
    ///
    /// A file within [`Settings::max_read_bytes`](crate::Settings::max_read_bytes) is read and
    /// checked completely, and its lines are counted. A larger file is read, and checked to be
    /// text, only up to the end of the window.
    ///
    /// # Errors
    /// Same as [`S3Backend::read`], except that [`ErrorKind::TooLarge`] refers to the window and
    /// not to the file.
    pub async fn read_window(&self, path: impl IntoPath, window: Window) -> Result<TextFile> {
        let path = path.into_path()?;
        let span = tracing::info_span!("read", ?path, ?window);
        self.read_text(path, Some(window)).instrument(span).await
    }

    /// Reads the bytes of a file, text or binary: all of them or a range. A range past the end is
    /// empty.
    ///
    /// Costs one request, or two if the range is empty.
    ///
    /// # Errors
    /// - [`ErrorKind::NotFound`], [`ErrorKind::IsDirectory`].
    /// - [`ErrorKind::TooLarge`] if more than
    ///   [`Settings::max_read_bytes`](crate::Settings::max_read_bytes) are requested.
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
        // No object is longer, and servers reject larger numbers.
        let most = i64::MAX.unsigned_abs() - 1;
        let range = ByteRange { start: start.min(most), end: end.map(|end| end.min(most)) };
        self.read_range(path.into_path()?, range).await
    }

    /// Returns the metadata of a file or directory. If both have the same name, returns the file.
    ///
    /// If the last segment of the path has no dot and there is no such file, `.md` is tried before
    /// a directory. The returned entry has the actual path.
    ///
    /// Costs one request for a file whose name has a dot, and two if it is not a file. A name
    /// without a dot costs three, sent concurrently. The root and the mounts cost nothing. Below
    /// `/skills`, costs the index of each library and a listing of each plain one, sent
    /// concurrently, unless they are cached.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if nothing exists at the path.
    #[instrument(name = "stat", skip_all)]
    pub async fn stat(&self, path: impl IntoPath) -> Result<Entry> {
        let path = path.into_path()?;
        match &*self.find(&path, Want::Meta).await? {
            Node::File(file) => Ok(file.meta.entry(file.path.clone())),
            Node::Directory => Ok(Entry::directory(path)),
            Node::Nothing => Err(Self::not_found(&path)),
        }
    }

    /// Returns whether a file or directory exists, by the rules and at the cost of
    /// [`S3Backend::stat`].
    ///
    /// # Errors
    /// If it cannot be determined, because the server is unreachable or denies access.
    pub async fn exists(&self, path: impl IntoPath) -> Result<bool> {
        let path = path.into_path()?;
        match self.find(&path, Want::Meta).await {
            Ok(node) => Ok(!matches!(*node, Node::Nothing)),
            // A mount that the session does not have.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads a complete text file of `/skills`, in the version that the union has.
    pub(crate) async fn read_version(&self, path: &VirtualPath, found: &UnionFile) -> Result<TextFile> {
        let file = self.version(path, found, Want::Text).await?;
        self.text_of(&file, None).await
    }

    async fn read_text(&self, path: VirtualPath, window: Option<Window>) -> Result<TextFile> {
        let mut retries = Retries::new(self);
        loop {
            let read = retries.session().read_text_once(&path, window).await;
            if !retries.should_retry(&read) {
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
            if !retries.should_retry(&read) {
                return read;
            }
        }
    }

    async fn read_range_once(&self, path: &VirtualPath, range: ByteRange) -> Result<FileBytes> {
        // HTTP has no empty range: request one byte and discard it.
        let empty = range.end.is_some_and(|end| end <= range.start);
        let requested =
            if empty { ByteRange { start: range.start, end: Some(range.start + 1) } } else { range };
        let opened = match range == ByteRange::WHOLE {
            true => Opened::Known(self.find(path, Want::Bytes).await?.file(path)?.clone()),
            false => self.open_path(path, requested).await?,
        };
        let (path, meta, body) = match opened {
            Opened::Known(file) => {
                let Some(sliced) = slice(&file, range) else { return Err(changed_while_read(path)) };
                self.check_size(&sliced.path, sliced.bytes.len() as u64, BYTES_ASKED, RANGES)?;
                return Ok(sliced);
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

/// Slices cached content.
fn slice(file: &File, range: ByteRange) -> Option<FileBytes> {
    let bytes = file.content.bytes()?;
    let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX).min(bytes.len());
    let start = at(range.start);
    let end = range.end.map_or(bytes.len(), at).max(start);
    let File { path, meta, .. } = file.clone();
    let bytes = bytes.slice(start..end);
    Some(FileBytes { path, bytes, size: meta.size, modified: meta.modified, etag: meta.etag })
}
