//! `read`, windows of lines, and bytes.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use serde::Serialize;
use tracing::instrument;

use super::S3Backend;
use super::content::{BYTES_ASKED, Content, File, KnownText, RANGES, Want, changed_while_read};
use super::known::Fact;
use super::lines::{LineIndex, Watcher};
use super::union::{Found, UnionFile};
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{Location, ObjectKey};
use crate::path::{IntoPath, VirtualPath};
use crate::store::{Body, ByteRange, Expect, Fetched, Meta};
use crate::text::{self, Binary, LineWindow, StreamDecoder, StreamError};

/// How often a file is read again when it changes under the reader.
const ATTEMPTS: u32 = 3;

/// A long file is read in ranges that grow from the first to the last of these.
const FIRST_RANGE: u64 = 256 * 1024;
const LONGEST_RANGE: u64 = 16 * 1024 * 1024;

/// The ways out of `too_large`.
const WINDOW: &str = "read a window of its lines: `--offset N --limit N`";
const FEWER_LINES: &str = "ask for fewer lines: a smaller `--limit`";

/// Which lines to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    /// The first line, counted from 0.
    pub offset: u64,
    /// How many lines at most; `None` is all.
    pub limit: Option<u64>,
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

/// A file some of whose bytes are on their way.
struct Opened {
    path: VirtualPath,
    meta: Meta,
    /// `None` when there is nothing to read: the range starts at the end.
    body: Option<Box<Body>>,
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
        self.read_text(path.into_path()?, None).await
    }

    /// Reads a window of lines. A window behind the end is empty, not an error.
    ///
    /// A file up to the size limit is judged as a whole and its lines are counted. Of a larger one
    /// only what lies before and in the window is read and judged.
    ///
    /// # Errors
    /// As [`S3Backend::read`]; [`ErrorKind::TooLarge`] only when the window itself is.
    pub async fn read_window(&self, path: impl IntoPath, window: Window) -> Result<TextFile> {
        self.read_text(path.into_path()?, Some(window)).await
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

    #[instrument(name = "read_bytes", skip_all, fields(?path, ?range))]
    async fn read_range(&self, path: VirtualPath, range: ByteRange) -> Result<FileBytes> {
        let mut retries = Retries::new(self);
        loop {
            let read = retries.backend.read_range_once(&path, range).await;
            if !retries.again(&read) {
                return read;
            }
        }
    }

    async fn read_range_once(&self, path: &VirtualPath, range: ByteRange) -> Result<FileBytes> {
        if let Some(answer) = self.known_file(path, Want::Bytes).and_then(|file| slice(&file, range)) {
            return self.checked_bytes(answer);
        }
        if range.start == 0 && range.end.is_none() {
            let file = self.file(path, Want::Bytes).await?;
            return match slice(&file, range) {
                Some(answer) => self.checked_bytes(answer),
                None => Err(changed_while_read(path)),
            };
        }
        // HTTP has no empty range: ask for one byte, and use none of it.
        let empty = range.end.is_some_and(|end| end <= range.start);
        let asked = if empty { ByteRange { start: range.start, end: Some(range.start + 1) } } else { range };
        let Opened { path, meta, body } = self.open(path, asked).await?;
        let mut bytes = Vec::new();
        if let Some(mut body) = body.filter(|_| !empty) {
            self.check_size(&path, body.remaining(), BYTES_ASKED, RANGES)?;
            body.collect(self.store(), &mut bytes).await.map_err(|e| e.during("read", &path))?;
        }
        Ok(FileBytes { path, bytes: bytes.into(), size: meta.size, modified: meta.modified, etag: meta.etag })
    }

    fn checked_bytes(&self, answer: FileBytes) -> Result<FileBytes> {
        self.check_size(&answer.path, answer.bytes.len() as u64, BYTES_ASKED, RANGES)?;
        Ok(answer)
    }

    /// Reads a text file of `/skills` whole, in the version that the union has.
    pub(crate) async fn read_version(&self, path: &VirtualPath, found: &UnionFile) -> Result<TextFile> {
        let file = self.version(path, found, Want::Text).await?;
        self.text_of(&file, None).await
    }

    #[instrument(name = "read", skip_all, fields(?path, ?window))]
    async fn read_text(&self, path: VirtualPath, window: Option<Window>) -> Result<TextFile> {
        let mut retries = Retries::new(self);
        loop {
            let read = retries.backend.read_text_once(&path, window).await;
            if !retries.again(&read) {
                return read;
            }
        }
    }

    async fn read_text_once(&self, path: &VirtualPath, window: Option<Window>) -> Result<TextFile> {
        let file = match self.known_file(path, Want::Text) {
            Some(file) => file,
            None => self.file(path, Want::Text).await?,
        };
        self.text_of(&file, window).await
    }

    /// The file that a path means, where everything that is wanted of it is known.
    fn known_file(&self, path: &VirtualPath, want: Want) -> Option<File> {
        if let Some(union) = self.known_union_of(path) {
            return match union.find(path) {
                Ok(Found::File(real, found)) => self.known_version(&real, found, want),
                _ => None,
            };
        }
        match &*self.known_fact(path, want)? {
            Fact::File(file) => Some(file.clone()),
            Fact::Directory | Fact::Nothing => None,
        }
    }

    /// The file that a path means for reading, with what is wanted of its content.
    async fn file(&self, path: &VirtualPath, want: Want) -> Result<File> {
        let fact = match self.mounts.resolve(path)? {
            Location::Root | Location::Mount(_) => return Err(is_directory(path)),
            Location::Layered => {
                let union = self.union_around(path).await?;
                return match union.find(path)? {
                    Found::File(real, found) => self.version(&real, found, want).await,
                    Found::Directory => Err(is_directory(path)),
                    Found::Nothing => Err(Self::not_found(path)),
                };
            }
            Location::Inside { key, directory } => match self.known_fact(path, want) {
                Some(fact) => fact,
                None => self.ask_fact(path.clone(), key, directory, want, self.bound(path)).await?,
            },
        };
        match &*fact {
            Fact::File(file) => Ok(file.clone()),
            Fact::Directory => Err(is_directory(path)),
            Fact::Nothing => Err(Self::not_found(path)),
        }
    }

    /// The text of a file, or a window of it.
    async fn text_of(&self, file: &File, window: Option<Window>) -> Result<TextFile> {
        match &file.content {
            Content::Text(known) => self.known_text(file, known, window),
            Content::Binary(mime) => Err(binary_file(&file.path, mime, file.meta.size)),
            Content::Bytes(bytes) => match Content::of_text(text::decode(bytes.to_vec())) {
                Content::Text(known) => self.known_text(file, &known, window),
                Content::Binary(mime) => Err(binary_file(&file.path, mime, file.meta.size)),
                _ => Err(changed_while_read(&file.path)),
            },
            Content::Head(head) => {
                if window.is_none() {
                    self.check_size(&file.path, file.meta.size, "bytes of text", WINDOW)?;
                }
                self.read_long(file, head, window.unwrap_or_default()).await
            }
            Content::Unread => Err(changed_while_read(&file.path)),
        }
    }

    fn known_text(&self, file: &File, known: &KnownText, window: Option<Window>) -> Result<TextFile> {
        let way_out = if window.unwrap_or_default() == Window::default() { WINDOW } else { FEWER_LINES };
        let window = window.unwrap_or_default();
        let text = &known.text.content;
        if window == Window::default() {
            self.check_size(&file.path, text.len() as u64, "bytes of text", way_out)?;
            return Ok(TextFile {
                path: file.path.clone(),
                content: text.clone(),
                offset: 0,
                lines: known.lines,
                total_lines: Some(known.lines),
                next_offset: None,
                encoding: known.text.encoding,
                size: file.meta.size,
                modified: file.meta.modified,
                etag: file.meta.etag.clone(),
            });
        }
        let mut lines = LineWindow::new(window.offset, window.limit);
        lines.push(text);
        self.check_size(&file.path, lines.text_bytes() as u64, "bytes of text", way_out)?;
        let total = Some(known.lines);
        Ok(text_file(file, window, lines, total, known.text.encoding))
    }

    /// A window of a file that is too large to keep. It starts as near to the window as an earlier read
    /// has been, and ends behind it.
    async fn read_long(&self, file: &File, head: &[u8], window: Window) -> Result<TextFile> {
        let File { path, key, meta, .. } = file;
        let mut encoding = text::sniff(head).map_err(|Binary(mime)| binary_file(path, mime, meta.size))?;
        let name = LineIndex::name(key, meta);
        let mut index = name.as_ref().and_then(|name| self.cache().recall(name)).map(|kept| kept.value);
        loop {
            let known = index.take().unwrap_or_else(|| Arc::new(LineIndex::new(encoding)));
            let mut lines = LineWindow::new(window.offset, window.limit);
            let scanned = self.scan(file, head, &known, &mut lines).await;
            if let (Some(name), Ok(Scan::Done { .. })) = (&name, &scanned) {
                // Kept again, so that it is weighed as it is now.
                let (owner, asked) = (self.store.tenant().owner_of(name), self.cache().epoch(name));
                self.cache().keep(name, &owner, (asked, Instant::now()), known.clone(), known.weight());
            }
            match scanned? {
                Scan::Done { ended } => {
                    if ended {
                        known.set_lines(lines.lines_seen());
                    }
                    let total = known.lines();
                    return Ok(text_file(file, window, lines, total, known.encoding.name()));
                }
                Scan::Binary(Binary(mime)) => return Err(binary_file(path, mime, meta.size)),
                // Happens once: only UTF-8 can turn out to be something else.
                Scan::Legacy(legacy) => encoding = legacy,
            }
        }
    }

    /// Reads a file that is too large to keep, up to the end of the window.
    async fn scan(
        &self,
        file: &File,
        head: &[u8],
        index: &Arc<LineIndex>,
        lines: &mut LineWindow,
    ) -> Result<Scan> {
        let File { path, key, meta, .. } = file;
        let from = index.before(lines.offset()).unwrap_or_default();
        let mut watcher = Watcher::new(index, from);
        let (mut decoder, mut piece) = match from.offset {
            0 => (StreamDecoder::new(index.encoding), Bytes::copy_from_slice(head)),
            _ => {
                lines.skip_to(from.line);
                (StreamDecoder::resumed(index.encoding, from.ascii), Bytes::new())
            }
        };
        let mut at = from.offset;
        let mut range: Option<Box<Body>> = None;
        let mut range_bytes = FIRST_RANGE;
        loop {
            at += piece.len() as u64;
            match decoder.decode(&piece, at == meta.size) {
                Ok(text) => lines.push(&text),
                Err(StreamError::Binary(binary)) => return Ok(Scan::Binary(binary)),
                Err(StreamError::Legacy(encoding)) => return Ok(Scan::Legacy(encoding)),
            }
            if let Some(watcher) = &mut watcher {
                watcher.watch(&piece, decoder.is_ascii());
            }
            let held = lines.text_bytes() as u64;
            self.check_size(path, held, "bytes are in this window already", FEWER_LINES)?;
            if at == meta.size || lines.is_past_the_window() {
                return Ok(Scan::Done { ended: at == meta.size });
            }
            piece = loop {
                let body = match &mut range {
                    Some(body) => body,
                    None => {
                        // Short ranges first: most windows end soon. Longer ones when there is a long way to go.
                        let end = meta.size.min(at.saturating_add(range_bytes));
                        range_bytes = LONGEST_RANGE.min(range_bytes * 2);
                        range.insert(self.part(path, key, meta, at..end, file.immutable).await?)
                    }
                };
                match body.next(self.store()).await.map_err(|e| e.during("read", path))? {
                    Some(piece) => break piece,
                    None => range = None,
                }
            };
        }
    }

    /// Finds the file that a path means for reading, and asks for some of its bytes.
    async fn open(&self, path: &VirtualPath, range: ByteRange) -> Result<Opened> {
        let (key, directory) = match self.mounts.resolve(path)? {
            Location::Root | Location::Mount(_) => return Err(is_directory(path)),
            Location::Layered => return self.open_version(path, range).await,
            Location::Inside { key, directory } => (key, directory),
        };
        if let Some(opened) = self.try_open(path, &key, range).await? {
            return Ok(opened);
        }
        if let Some((path, key)) = self.md_fallback(path)
            && let Some(opened) = self.try_open(&path, &key, range).await?
        {
            return Ok(opened);
        }
        if self.is_directory(&directory).await? {
            Err(is_directory(path))
        } else {
            Err(Self::not_found(path))
        }
    }

    /// The same below `/skills`.
    async fn open_version(&self, path: &VirtualPath, range: ByteRange) -> Result<Opened> {
        let union = self.union_around(path).await?;
        let (path, found) = match union.find(path)? {
            Found::File(real, found) => (real, found),
            Found::Directory => return Err(is_directory(path)),
            Found::Nothing => return Err(Self::not_found(path)),
        };
        let (meta, body) = self.version_bytes(&path, found, range).await?;
        Ok(Opened { path, meta, body })
    }

    async fn try_open(
        &self,
        path: &VirtualPath,
        key: &ObjectKey,
        range: ByteRange,
    ) -> Result<Option<Opened>> {
        for _ in 0..ATTEMPTS {
            match self.store().get(key, range, Expect::Any).await.map_err(|e| e.during("read", path))? {
                Fetched::Found { meta, body, .. } => {
                    return Ok(Some(Opened { path: path.clone(), meta, body: Some(body) }));
                }
                Fetched::Missing | Fetched::Changed => return Ok(None),
                Fetched::BehindTheEnd | Fetched::Unchanged => {}
            }
            // The answer to an empty range says nothing about the object.
            match self.store().head(key).await.map_err(|e| e.during("read", path))? {
                Some(meta) if meta.size <= range.start => {
                    return Ok(Some(Opened { path: path.clone(), meta, body: None }));
                }
                // It grew, or went away, between the two requests: look again.
                Some(_) | None => {}
            }
        }
        Err(Error::new(ErrorKind::Conflict, format!("`{path}` keeps changing while it is being read"))
            .at(path)
            .with_hint("read it again"))
    }

    pub(super) fn check_size(&self, path: &VirtualPath, bytes: u64, what: &str, way_out: &str) -> Result<()> {
        let most = self.shared.max_read_bytes;
        if bytes <= most {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::TooLarge,
            format!("`{path}` is too large to read at once: {bytes} {what}, the limit is {most}"),
        )
        .at(path)
        .with_hint(way_out))
    }
}

/// A file that changes under its reader is read again, a few times, past what is remembered.
struct Retries {
    backend: S3Backend,
    left: u32,
}

impl Retries {
    fn new(backend: &S3Backend) -> Self {
        // A session that keeps to one release would only find the same again.
        let left = if backend.pinned.is_some() { 0 } else { ATTEMPTS - 1 };
        Self { backend: backend.clone(), left }
    }

    fn again<T>(&mut self, result: &Result<T>) -> bool {
        let changed = result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Conflict);
        if !changed || self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.backend.fresh = true;
        true
    }
}

/// How far a scan came.
enum Scan {
    Done { ended: bool },
    Binary(Binary),
    Legacy(&'static encoding_rs::Encoding),
}

fn text_file(
    file: &File,
    window: Window,
    lines: LineWindow,
    total_lines: Option<u64>,
    encoding: &'static str,
) -> TextFile {
    let count = lines.lines();
    let reached = window.offset.saturating_add(count);
    let more = total_lines.is_none_or(|total| reached < total);
    let File { path, meta, .. } = file;
    TextFile {
        path: path.clone(),
        content: lines.into_text(),
        offset: window.offset,
        lines: count,
        total_lines,
        next_offset: more.then_some(reached),
        encoding,
        size: meta.size,
        modified: meta.modified,
        etag: meta.etag.clone(),
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

pub(super) fn is_directory(path: &VirtualPath) -> Error {
    Error::new(ErrorKind::IsDirectory, format!("`{path}` is a directory"))
        .at(path)
        .with_hint(format!("see what is in it: `ls {path}`"))
}

pub(super) fn binary_file(path: &VirtualPath, mime: &str, size: u64) -> Error {
    Error::new(
        ErrorKind::BinaryFile,
        format!("File '{path}' is a binary file ({mime}, {size} bytes) and cannot be read as text"),
    )
    .at(path)
    .with_hint("refer to it by its path instead of reading it")
}
