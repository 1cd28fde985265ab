//! Windows of lines, from cached text and from files that are too large to cache.

use std::sync::Arc;

use bytes::Bytes;

use super::S3Backend;
use super::file::{Content, File, binary_file, changed_while_read};
use super::lines::{LineIndex, LineWatcher};
use super::read::{TextFile, Window};
use crate::cache::{About, Detail, Key};
use crate::error::{Hint, Result};
use crate::store::{Body, ByteRange};
use crate::text::{self, Binary, LineWindow, StreamDecoder, StreamError};

/// The size of the ranges in which a large file is read: they grow from the first to the longest.
const FIRST_RANGE: u64 = 256 * 1024;
const LONGEST_RANGE: u64 = 16 * 1024 * 1024;

/// The ways out of `too_large`.
const WINDOW: Hint = Hint::ReadWindow;
const FEWER_LINES: Hint = Hint::FewerLines;

impl S3Backend {
    /// Returns the text of a file, or a window of its lines.
    pub(super) async fn text_of(&self, file: &File, window: Option<Window>) -> Result<TextFile> {
        let decoded = match &file.content {
            Content::Bytes(bytes) => &Content::of_text(text::decode(bytes.to_vec())),
            content => content,
        };
        match decoded {
            Content::Text(known) => {
                let (window, total) = (window.unwrap_or_default(), known.lines);
                let (text, lines, hint) = match window == Window::default() {
                    true => (known.text.content.clone(), total, WINDOW),
                    false => {
                        let mut lines = LineWindow::new(window.offset, window.limit);
                        lines.push(&known.text.content);
                        let count = lines.lines();
                        (lines.into_text(), count, FEWER_LINES)
                    }
                };
                self.check_size(&file.path, text.len() as u64, "bytes of text", hint)?;
                Ok(text_file(file, window, text, lines, Some(total), known.text.encoding))
            }
            Content::Binary(mime) => Err(binary_file(&file.path, mime, file.meta.size)),
            Content::Head(head) => {
                if window.is_none() {
                    self.check_size(&file.path, file.meta.size, "bytes of text", WINDOW)?;
                }
                self.read_long(file, head, window.unwrap_or_default()).await
            }
            Content::Unread | Content::Bytes(_) => Err(changed_while_read(&file.path)),
        }
    }

    /// Reads a window of a file that is too large to cache. Starts at the nearest indexed line, and
    /// stops after the window.
    async fn read_long(&self, file: &File, head: &[u8], window: Window) -> Result<TextFile> {
        let File { path, key, meta, .. } = file;
        let mut encoding = text::sniff(head).map_err(|Binary(mime)| binary_file(path, mime, meta.size))?;
        // Without an ETag, a line index cannot be matched to a version.
        let etag = meta.etag.as_deref();
        let index_key = etag.map(|etag| Key::<LineIndex>::new(About::object(key), Detail::named(etag)));
        let mut index = index_key.as_ref().and_then(|key| self.cache().peek(key)).map(|kept| kept.value);
        loop {
            let known = index.take().unwrap_or_else(|| Arc::new(LineIndex::new(encoding)));
            let mut lines = LineWindow::new(window.offset, window.limit);
            let scanned = self.scan(file, head, &known, &mut lines).await;
            if let (Some(key), Ok(Ok(_))) = (&index_key, &scanned) {
                // Put again, so that the cache accounts for its new size.
                self.cache().put(key, self.cache().moment(key), known.clone());
            }
            match scanned? {
                Ok(ended) => {
                    if ended {
                        known.set_lines(lines.lines_seen());
                    }
                    let (count, total) = (lines.lines(), known.lines());
                    let encoding = known.encoding.name();
                    return Ok(text_file(file, window, lines.into_text(), count, total, encoding));
                }
                Err(StreamError::Binary(Binary(mime))) => return Err(binary_file(path, mime, meta.size)),
                // Happens at most once: only presumed UTF-8 can turn out to be another encoding.
                Err(StreamError::Legacy(legacy)) => encoding = legacy,
            }
        }
    }

    /// Reads a large file up to the end of the window. Returns whether that was the end of the
    /// file.
    async fn scan(
        &self,
        file: &File,
        head: &[u8],
        index: &Arc<LineIndex>,
        lines: &mut LineWindow,
    ) -> Result<Result<bool, StreamError>> {
        let File { path, meta, .. } = file;
        let from = index.before(lines.offset()).unwrap_or_default();
        let mut watcher = LineWatcher::new(index, from);
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
                Err(error) => return Ok(Err(error)),
            }
            if let Some(watcher) = &mut watcher {
                watcher.watch(&piece, decoder.is_ascii());
            }
            let held = lines.text_bytes() as u64;
            self.check_size(path, held, "bytes in this window so far", FEWER_LINES)?;
            if at == meta.size || lines.is_past_the_window() {
                return Ok(Ok(at == meta.size));
            }
            piece = loop {
                let body = match &mut range {
                    Some(body) => body,
                    None => {
                        // Start with short ranges, because most windows end soon, and grow if there
                        // is a long way to go.
                        let end = meta.size.min(at.saturating_add(range_bytes));
                        range_bytes = LONGEST_RANGE.min(range_bytes * 2);
                        range.insert(self.open_part(file, ByteRange { start: at, end: Some(end) }).await?)
                    }
                };
                match body.next(self.store()).await.map_err(|e| e.during("read", path))? {
                    Some(piece) => break piece,
                    None => range = None,
                }
            };
        }
    }
}

fn text_file(
    file: &File,
    window: Window,
    content: String,
    lines: u64,
    total_lines: Option<u64>,
    encoding: &'static str,
) -> TextFile {
    let reached = window.offset.saturating_add(lines);
    let more = total_lines.is_none_or(|total| reached < total);
    let File { path, meta, .. } = file;
    TextFile {
        path: path.clone(),
        content,
        offset: window.offset,
        lines,
        total_lines,
        next_offset: more.then_some(reached),
        encoding,
        size: meta.size,
        modified: meta.modified,
        etag: meta.etag.clone(),
    }
}
