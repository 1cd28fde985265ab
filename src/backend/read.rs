//! `read`, windows of lines, and bytes.

use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use serde::Serialize;
use tracing::instrument;

use super::S3Backend;
use super::lines::{LineIndex, Watcher};
use super::union::Found;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{Location, ObjectKey};
use crate::path::{IntoPath, VirtualPath};
use crate::store::{Body, ByteRange, Fetched, Meta};
use crate::text::{self, Binary, HEAD_BYTES, LineWindow, StreamDecoder, StreamError};

/// How often a file is read anew when it changes under the reader.
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

/// A file whose first bytes are on their way.
struct Opened {
    path: VirtualPath,
    key: ObjectKey,
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
    /// when nothing is there.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::IsDirectory`]; [`ErrorKind::BinaryFile`] with type and
    /// size, after at most 64 KiB where the beginning tells; [`ErrorKind::TooLarge`] beyond
    /// [`Settings::max_read_bytes`](crate::Settings::max_read_bytes): read a window instead.
    pub async fn read(&self, path: impl IntoPath) -> Result<TextFile> {
        self.read_text(path.into_path()?, None, None).await
    }

    /// Reads a window of lines. A window behind the end is empty, not an error.
    ///
    /// A file up to the size limit is judged as a whole and its lines are counted. Of a larger one
    /// only what lies before and in the window is read and judged.
    ///
    /// # Errors
    /// As [`S3Backend::read`]; [`ErrorKind::TooLarge`] only when the window itself is.
    pub async fn read_window(&self, path: impl IntoPath, window: Window) -> Result<TextFile> {
        self.read_text(path.into_path()?, None, Some(window)).await
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
        let mut retries = Retries::default();
        loop {
            let read = self.read_range_once(&path, range).await;
            if !retries.again(&read) {
                return read;
            }
        }
    }

    async fn read_range_once(&self, path: &VirtualPath, range: ByteRange) -> Result<FileBytes> {
        // HTTP has no empty range: ask for one byte, and use none of it.
        let empty = range.end.is_some_and(|end| end <= range.start);
        let asked = if empty { ByteRange { start: range.start, end: Some(range.start + 1) } } else { range };
        let Opened { path, meta, body, .. } = self.open(path, asked).await?;
        let mut bytes = Vec::new();
        if let Some(mut body) = body.filter(|_| !empty) {
            self.check_size(&path, body.remaining(), "bytes were asked for", "read it in ranges of bytes")?;
            body.collect(self.store(), &mut bytes).await.map_err(|e| e.during("read", &path))?;
        }
        Ok(FileBytes { path, bytes: bytes.into(), size: meta.size, modified: meta.modified, etag: meta.etag })
    }

    /// Reads a text file whole, of the layer where a listing found it.
    pub(crate) async fn read_layer_text(&self, path: &VirtualPath, layer: usize) -> Result<TextFile> {
        self.read_text(path.clone(), Some(layer), None).await
    }

    #[instrument(name = "read", skip_all, fields(?path, ?window))]
    async fn read_text(
        &self,
        path: VirtualPath,
        layer: Option<usize>,
        window: Option<Window>,
    ) -> Result<TextFile> {
        let mut retries = Retries::default();
        loop {
            let read = self.read_text_once(&path, layer, window).await;
            if !retries.again(&read) {
                return read;
            }
        }
    }

    async fn read_text_once(
        &self,
        path: &VirtualPath,
        layer: Option<usize>,
        window: Option<Window>,
    ) -> Result<TextFile> {
        let head = ByteRange { start: 0, end: Some(HEAD_BYTES as u64) };
        let opened = match layer {
            Some(layer) => self.open_in(path, layer, head).await?,
            None => self.open(path, head).await?,
        };
        let Opened { path, key, meta, body } = opened;
        let mut bytes = Vec::new();
        if let Some(mut body) = body {
            body.collect(self.store(), &mut bytes).await.map_err(|e| e.during("read", &path))?;
        }
        let binary = |Binary(mime)| binary_file(&path, mime, meta.size);
        let all = window.is_none();
        let window = window.unwrap_or_default();
        if meta.size <= bytes.len() as u64 {
            let text = text::decode(bytes).map_err(binary)?;
            return self.whole(path, meta, window, text);
        }
        // Refuse a large binary before the rest of it is asked for.
        let encoding = text::sniff(&bytes).map_err(binary)?;
        if meta.size <= self.shared.max_read_bytes {
            let mut rest = self.part(&path, &key, &meta, bytes.len() as u64..meta.size).await?;
            rest.collect(self.store(), &mut bytes).await.map_err(|e| e.during("read", &path))?;
            let text = text::decode(bytes).map_err(binary)?;
            return self.whole(path, meta, window, text);
        }
        if all {
            self.check_size(&path, meta.size, "bytes of text", WINDOW)?;
        }
        self.read_long(path, key, meta, bytes, window, encoding).await
    }

    /// A window of a file that is too large to keep. It starts as near to the window as an earlier read
    /// has been, and ends behind it.
    async fn read_long(
        &self,
        path: VirtualPath,
        key: ObjectKey,
        meta: Meta,
        head: Vec<u8>,
        window: Window,
        mut encoding: &'static encoding_rs::Encoding,
    ) -> Result<TextFile> {
        let indexes = &self.shared.line_indexes;
        let name = LineIndex::key(&key, &meta);
        let mut index = match &name {
            Some(name) => indexes.get(name).await,
            None => None,
        };
        loop {
            let known = index.take().unwrap_or_else(|| Arc::new(LineIndex::new(encoding)));
            let mut lines = LineWindow::new(window.offset, window.limit);
            let scanned = self.scan(&path, &key, &meta, &head, &known, &mut lines).await;
            if let (Some(name), Ok(Scan::Done { .. })) = (&name, &scanned) {
                // Put in again, so that it is weighed as it is now.
                indexes.insert(name.clone(), known.clone()).await;
            }
            match scanned? {
                Scan::Done { ended } => {
                    if ended {
                        known.set_lines(lines.lines_seen());
                    }
                    let total = known.lines();
                    return Ok(text_file(path, meta, window, lines, total, known.encoding.name()));
                }
                Scan::Binary(Binary(mime)) => return Err(binary_file(&path, mime, meta.size)),
                // Happens once: only UTF-8 can turn out to be something else.
                Scan::Legacy(legacy) => encoding = legacy,
            }
        }
    }

    /// Reads a file that is too large to keep, up to the end of the window.
    async fn scan(
        &self,
        path: &VirtualPath,
        key: &ObjectKey,
        meta: &Meta,
        head: &[u8],
        index: &Arc<LineIndex>,
        lines: &mut LineWindow,
    ) -> Result<Scan> {
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
                        range.insert(self.part(path, key, meta, at..end).await?)
                    }
                };
                match body.next(self.store()).await.map_err(|e| e.during("read", path))? {
                    Some(piece) => break piece,
                    None => range = None,
                }
            };
        }
    }

    fn whole(&self, path: VirtualPath, meta: Meta, window: Window, text: text::Text) -> Result<TextFile> {
        let way_out = if window == Window::default() { WINDOW } else { FEWER_LINES };
        let lines = LineWindow::of(text.content, window.offset, window.limit);
        self.check_size(&path, lines.text_bytes() as u64, "bytes of text", way_out)?;
        let total = Some(lines.lines_seen());
        Ok(text_file(path, meta, window, lines, total, text.encoding))
    }

    /// A part behind the head, of the same version of the object.
    async fn part(
        &self,
        path: &VirtualPath,
        key: &ObjectKey,
        meta: &Meta,
        range: Range<u64>,
    ) -> Result<Box<Body>> {
        let changed = || {
            Error::new(ErrorKind::Conflict, format!("`{path}` was changed while it was being read"))
                .at(path)
                .with_hint("read it again")
        };
        if meta.etag.is_none() {
            return Err(Error::new(ErrorKind::Corrupt, format!("the storage gives no ETag for `{path}`"))
                .at(path)
                .with_hint("without one, parts of two versions could be taken for one file"));
        }
        let range = ByteRange { start: range.start, end: Some(range.end) };
        let fetched = self.store().get(key, range, meta.etag.as_deref()).await;
        match fetched.map_err(|e| e.during("read", path))? {
            Fetched::Found { meta: now, body, .. } if now.etag == meta.etag && now.size == meta.size => {
                Ok(body)
            }
            _ => Err(changed()),
        }
    }

    /// Finds the file that a path means for reading, and asks for its first bytes.
    async fn open(&self, path: &VirtualPath, range: ByteRange) -> Result<Opened> {
        let (key, directory) = match self.mounts.resolve(path)? {
            Location::Root | Location::Mount(_) => return Err(is_directory(path)),
            Location::Inside { key, directory } => (key, directory),
            Location::Layered => return self.open_layered(path, range).await,
        };
        if let Some(opened) = self.try_open(path, key, range).await? {
            return Ok(opened);
        }
        if let Some((path, key)) = self.md_fallback(path)
            && let Some(opened) = self.try_open(&path, key, range).await?
        {
            return Ok(opened);
        }
        if self.is_directory(&directory).await? {
            Err(is_directory(path))
        } else {
            Err(Self::not_found(path))
        }
    }

    /// A file of one layer, by its exact name.
    async fn open_in(&self, path: &VirtualPath, layer: usize, range: ByteRange) -> Result<Opened> {
        let opened = match self.mounts.resolve_layer(path, layer)? {
            Location::Inside { key, .. } => self.try_open(path, key, range).await?,
            _ => None,
        };
        opened.ok_or_else(|| Self::not_found(path))
    }

    /// The same where several libraries lie behind `/skills`.
    async fn open_layered(&self, path: &VirtualPath, range: ByteRange) -> Result<Opened> {
        let union = self.union_around(path).await?;
        match union.find(path) {
            Found::File(real, found) => self.open_in(&real, found.layer, range).await,
            Found::Directory => Err(is_directory(path)),
            Found::Nothing => Err(Self::not_found(path)),
        }
    }

    async fn try_open(&self, path: &VirtualPath, key: ObjectKey, range: ByteRange) -> Result<Option<Opened>> {
        for _ in 0..ATTEMPTS {
            match self.store().get(&key, range, None).await.map_err(|e| e.during("read", path))? {
                Fetched::Found { meta, body, .. } => {
                    return Ok(Some(Opened { path: path.clone(), key, meta, body: Some(body) }));
                }
                Fetched::Missing => return Ok(None),
                Fetched::BehindTheEnd => {}
            }
            // The answer to an empty range says nothing about the object.
            match self.store().head(&key).await.map_err(|e| e.during("read", path))? {
                Some(meta) if meta.size <= range.start => {
                    return Ok(Some(Opened { path: path.clone(), key, meta, body: None }));
                }
                // It grew, or went away, between the two requests: look again.
                Some(_) | None => {}
            }
        }
        Err(Error::new(ErrorKind::Conflict, format!("`{path}` keeps changing while it is being read"))
            .at(path)
            .with_hint("read it again"))
    }

    fn check_size(&self, path: &VirtualPath, bytes: u64, what: &str, way_out: &str) -> Result<()> {
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

/// A file that changes under its reader is read anew, a few times.
#[derive(Default)]
struct Retries(u32);

impl Retries {
    fn again<T>(&mut self, result: &Result<T>) -> bool {
        self.0 += 1;
        self.0 < ATTEMPTS && result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Conflict)
    }
}

/// How far a scan came.
enum Scan {
    Done { ended: bool },
    Binary(Binary),
    Legacy(&'static encoding_rs::Encoding),
}

fn text_file(
    path: VirtualPath,
    meta: Meta,
    window: Window,
    lines: LineWindow,
    total_lines: Option<u64>,
    encoding: &'static str,
) -> TextFile {
    let count = lines.lines();
    let reached = window.offset.saturating_add(count);
    let more = total_lines.is_none_or(|total| reached < total);
    TextFile {
        path,
        content: lines.into_text(),
        offset: window.offset,
        lines: count,
        total_lines,
        next_offset: more.then_some(reached),
        encoding,
        size: meta.size,
        modified: meta.modified,
        etag: meta.etag,
    }
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
