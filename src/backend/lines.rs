//! A sparse line index of large files: a window far into a file is read from a nearby line, not
//! from the beginning.

use std::sync::{Arc, Mutex, PoisonError};

use encoding_rs::{Encoding, UTF_16BE, UTF_16LE};

use crate::cache::Cached;

/// The minimum distance between indexed line starts, in bytes.
const MIN_DISTANCE: u64 = 1024 * 1024;

/// The line index of one version of a file.
#[derive(Debug)]
pub(super) struct LineIndex {
    pub(super) encoding: &'static Encoding,
    known: Mutex<LineStarts>,
}

#[derive(Debug, Default)]
struct LineStarts {
    starts: Vec<LineStart>,
    /// The number of lines in the file, once its end has been read.
    lines: Option<u64>,
}

/// The start of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LineStart {
    pub(super) line: u64,
    pub(super) offset: u64,
    /// Whether everything before it is ASCII, so that the encoding is still undecided.
    pub(super) ascii: bool,
}

impl Cached for LineIndex {
    fn weight(&self) -> Option<u64> {
        Some((self.lock().starts.capacity() * size_of::<LineStart>() + size_of::<Self>()) as u64)
    }
}

impl LineIndex {
    pub(super) fn new(encoding: &'static Encoding) -> Self {
        Self { encoding, known: Mutex::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LineStarts> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last indexed line start at or before a line.
    pub(super) fn before(&self, line: u64) -> Option<LineStart> {
        let known = self.lock();
        let next = known.starts.partition_point(|start| start.line <= line);
        known.starts[..next].last().copied()
    }

    pub(super) fn lines(&self) -> Option<u64> {
        self.lock().lines
    }

    pub(super) fn set_lines(&self, lines: u64) {
        self.lock().lines = Some(lines);
    }

    fn add(&self, start: LineStart) {
        let mut known = self.lock();
        let last = known.starts.last().map_or(0, |last| last.offset);
        if start.offset >= last + MIN_DISTANCE {
            known.starts.push(start);
        }
    }
}

/// Scans bytes as they are read, and adds line starts to the index.
pub(super) struct LineWatcher {
    index: Arc<LineIndex>,
    at: u64,
    line: u64,
}

impl LineWatcher {
    /// Returns `None` for encodings in which a line ending is not a single byte.
    pub(super) fn new(index: &Arc<LineIndex>, from: LineStart) -> Option<Self> {
        let wide = index.encoding == UTF_16LE || index.encoding == UTF_16BE;
        (!wide).then(|| Self { index: index.clone(), at: from.offset, line: from.line })
    }

    pub(super) fn watch(&mut self, piece: &[u8], ascii: bool) {
        if let Some(last) = memchr::memrchr(b'\n', piece) {
            self.line += memchr::memchr_iter(b'\n', piece).count() as u64;
            self.index.add(LineStart { line: self.line, offset: self.at + last as u64 + 1, ascii });
        }
        self.at += piece.len() as u64;
    }
}
