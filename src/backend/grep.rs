//! `grep`: the lines that match, over many files at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tracing::instrument;

use super::S3Backend;
use super::file::{Content, Node, Version, Want};
use super::find::{Hidden, parsed};
use super::walk::Candidate;
use crate::cache::{About, Detail, Key};
use crate::error::{Error, ErrorKind, Result};
use crate::options::setters;
use crate::path::VirtualPath;
use crate::search::{Hits, Line, Meaning, Query};
use crate::store::Body;
use crate::text::{self, HEAD_BYTES, StreamDecoder, StreamError};

/// Files that are read at once.
const AT_ONCE: usize = 64;

/// Longer files are searched as they stream by, off the runtime.
const WHOLE_BYTES: u64 = 256 * 1024;

/// In such blocks, so that what is found does not depend on how the network cuts them.
const BLOCK_BYTES: usize = 64 * 1024;

/// So many of them at once.
const LONG_FILES_AT_ONCE: usize = 8;

/// So many matches are found unless told.
const MOST_MATCHES: u64 = 1_000;

/// What to search for, and where.
///
/// ```
/// use skillfs::Grep;
///
/// let todos = Grep::new("todo:").ignore_case(true).glob("*.md");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grep {
    /// The text to find, as it stands; an expression with [`Grep::regex`].
    pub pattern: String,
    /// Where to search: a directory, or a file. `None` is `/workspace`; it is `/` without one, or when the
    /// glob begins with `/`.
    pub root: Option<String>,
    /// Only in files that match this pattern, as in [`S3Backend::glob`].
    pub glob: Option<String>,
    /// Whether the pattern is a regular expression.
    pub regex: bool,
    /// Whether `a` is `A`.
    pub ignore_case: bool,
    /// How many lines before and behind each match come along; up to 1,000.
    pub context: usize,
    /// The most matches of one file; `None` is no limit of its own.
    pub max_per_file: Option<u64>,
    /// The most matches in all. Default 1,000.
    pub max_matches: u64,
}

impl Grep {
    setters! {
        root: some into String;
        glob: some into String;
        regex: bool;
        ignore_case: bool;
        context: usize;
        max_per_file: some u64;
        max_matches: u64;
    }
}

impl Grep {
    /// Everything as it is by default.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self {
            pattern: pattern.into(),
            root: None,
            glob: None,
            regex: false,
            ignore_case: false,
            context: 0,
            max_per_file: None,
            max_matches: MOST_MATCHES,
        }
    }
}

/// A line that matches, or one around it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GrepLine {
    /// The file.
    pub path: VirtualPath,
    /// The number of the line, from 1.
    pub line: u64,
    /// The line without its `\n`; of a very long one the first 16 KiB.
    pub text: String,
    /// Whether it only stands around a match.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub context: bool,
    /// Whether the line is longer than its text.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// A file that could not be searched.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct NotSearched {
    /// The file.
    pub path: VirtualPath,
    /// Why not.
    pub reason: String,
}

/// What was found in one file.
#[derive(Debug)]
#[non_exhaustive]
pub struct FileHits {
    /// The file.
    pub path: VirtualPath,
    /// Matches and the lines around them, in order.
    pub lines: Vec<GrepLine>,
    /// How many of the lines match.
    pub matches: u64,
    /// Whether the file has more matches than are told.
    pub truncated: bool,
    /// Whether it was left out because it is no text.
    pub binary: bool,
    /// Why it was not searched, if it was not.
    pub failed: Option<String>,
}

/// What [`S3Backend::grep`] found, and what it did not look at.
#[derive(Debug, Default, Serialize)]
#[non_exhaustive]
pub struct GrepResult {
    /// Matches and the lines around them, by path bytes and number.
    pub lines: Vec<GrepLine>,
    /// How many of the lines match.
    pub matches: u64,
    /// Whether there are, or may be, more matches than are told.
    pub truncated: bool,
    /// How many files were searched.
    pub searched: u64,
    /// How many files were left out because they are no text.
    pub binary: u64,
    /// Files that could not be searched, and why.
    pub not_searched: Vec<NotSearched>,
    /// Keys that no path can name, among those that were looked at.
    pub hidden: u64,
}

impl S3Backend {
    /// Finds lines in files: literally by default, with a regular expression on request.
    ///
    /// Text is what [`S3Backend::read`] takes for text, in all its encodings. Binary files are left out
    /// and counted. The order is always that of path bytes and line numbers, and with a limit the first
    /// matches in that order are told.
    ///
    /// Costs one request for every 1,000 keys and one for each file that is not empty; up to 64 files are
    /// read at once.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] when pattern or glob are none; [`ErrorKind::NotFound`] when the root is
    /// not there; what the storage says when it cannot be reached. A file that alone cannot be read is in
    /// [`GrepResult::not_searched`].
    #[instrument(name = "grep", skip_all, fields(pattern = query.pattern, root = query.root))]
    pub async fn grep(&self, query: &Grep) -> Result<GrepResult> {
        let mut result = GrepResult::default();
        let hidden = Hidden::default();
        let mut files = self.grep_counting(query, hidden.clone());
        while let Some(file) = files.try_next().await? {
            result.binary += u64::from(file.binary);
            if let Some(reason) = file.failed {
                result.not_searched.push(NotSearched { path: file.path, reason });
                continue;
            }
            result.searched += u64::from(!file.binary);
            result.truncated |= file.truncated;
            if !result.add(file.lines, query) {
                break;
            }
        }
        result.hidden = hidden.load(Ordering::Relaxed);
        Ok(result)
    }

    /// The files with what was found in them, as they are searched, by path bytes: also those without a
    /// match. Dropping the stream ends the search. Errors are those of [`S3Backend::grep`]; the stream
    /// ends behind one. [`Grep::max_matches`] holds for each file.
    pub fn grep_stream(&self, query: &Grep) -> BoxStream<'static, Result<FileHits>> {
        self.grep_counting(query, Hidden::default())
    }

    fn grep_counting(&self, query: &Grep, hidden: Hidden) -> BoxStream<'static, Result<FileHits>> {
        let (backend, query) = (self.clone(), query.clone());
        stream::once(async move {
            let pattern = match query.glob.clone() {
                Some(glob) => Some(parsed(glob).await?),
                None => None,
            };
            let root = backend.search_root(query.root.as_deref(), query.glob.as_deref())?;
            let most = query.max_per_file.unwrap_or(u64::MAX).min(query.max_matches);
            // A large expression takes its time.
            let compile = move || {
                let meaning = Meaning { regex: query.regex, ignore_case: query.ignore_case };
                Query::new(&query.pattern, meaning, query.context, most)
            };
            let compiled = tokio::task::spawn_blocking(compile).await.map_err(|error| {
                Error::new(ErrorKind::Internal, "the search could not begin").with_source(error)
            })?;
            let query = Arc::new(compiled?);
            let searched = backend.clone();
            let long_files = Arc::new(Semaphore::new(LONG_FILES_AT_ONCE));
            Ok::<_, Error>(
                backend
                    .candidates(root, pattern, hidden)
                    .map_ok(move |found| {
                        let (backend, query) = (searched.clone(), query.clone());
                        let long_files = long_files.clone();
                        async move {
                            // A thread each, and they are bounded.
                            let _turn = match found.meta().size > WHOLE_BYTES {
                                true => long_files.acquire().await.ok(),
                                false => None,
                            };
                            backend.search_file(found, query).await
                        }
                    })
                    .try_buffered(AT_ONCE)
                    .try_filter_map(|hits| async move { Ok(hits) }),
            )
        })
        .try_flatten()
        .boxed()
    }

    /// Searches one file; `None` when it is gone.
    async fn search_file(&self, file: Candidate, query: Arc<Query>) -> Result<Option<FileHits>> {
        let mut hits = FileHits {
            path: file.path.clone(),
            lines: Vec::new(),
            matches: 0,
            truncated: false,
            binary: false,
            failed: None,
        };
        match self.search_content(&file, &query).await {
            Ok(Searched::Hits(found)) => {
                (hits.matches, hits.truncated) = (found.matches, found.truncated);
                let line = |Line { number, text, matched, cut }| GrepLine {
                    path: file.path.clone(),
                    line: number,
                    text,
                    context: !matched,
                    cut,
                };
                hits.lines = found.lines.into_iter().map(line).collect();
            }
            Ok(Searched::Binary) => hits.binary = true,
            Ok(Searched::Gone) => return Ok(None),
            // The others may do better; when the storage is out of reach, none will.
            Err(error) => match error.kind() {
                ErrorKind::Denied | ErrorKind::Conflict | ErrorKind::Corrupt | ErrorKind::TooLarge => {
                    hits.failed = Some(error.message().to_owned());
                }
                _ => return Err(error),
            },
        }
        Ok(Some(hits))
    }

    async fn search_content(&self, found: &Candidate, query: &Arc<Query>) -> Result<Searched> {
        if found.meta().size == 0 {
            return Ok(Searched::Hits(Hits::default()));
        }
        let mut file = self.candidate_file(found)?;
        let path = &found.path;
        if let Some(content @ (Content::Text(_) | Content::Binary(_))) = self.known_content(&file, Want::Text)
        {
            return search_whole(path, query, move || content).await.map(|(found, _)| found);
        }
        let key = Key::new(About::object(&file.key), Detail::Only);
        let moment = self.cache().moment(&key);
        let Some((meta, mut body)) = self.open_candidate(found, &file).await? else {
            return Ok(Searched::Gone);
        };
        if meta.size <= WHOLE_BYTES {
            let mut bytes = Vec::new();
            body.collect(self.store(), &mut bytes).await.map_err(|e| e.during("search", path))?;
            let decode = move || Content::of_text(text::decode(bytes));
            let (hits, content) = search_whole(path, query, decode).await?;
            // As a reader would know it.
            if file.version == Version::Latest {
                (file.meta, file.version) = (meta, Version::Exact);
            }
            file.content = content;
            self.cache().put(&key, moment, Node::File(file));
            return Ok(hits);
        }
        // The head decides, before the rest is waited for.
        let mut head = BytesMut::new();
        while head.len() < HEAD_BYTES
            && let Some(piece) = body.next(self.store()).await.map_err(|e| e.during("search", path))?
        {
            head.extend_from_slice(&piece);
        }
        let Ok(mut encoding) = text::sniff(&head[..head.len().min(HEAD_BYTES)]) else {
            return Ok(Searched::Binary);
        };
        loop {
            let decoder = StreamDecoder::new(encoding);
            match self.search_stream(path, head, body, decoder, query).await? {
                Ok(hits) => return Ok(Searched::Hits(hits)),
                Err(StreamError::Binary(_)) => return Ok(Searched::Binary),
                // Happens once: only UTF-8 can turn out to be something else.
                Err(StreamError::Legacy(legacy)) => encoding = legacy,
            }
            match self.open_candidate(found, &file).await? {
                Some((now, again)) if now.etag == meta.etag => (body, head) = (again, BytesMut::new()),
                _ => return Ok(Searched::Gone),
            }
        }
    }

    /// Decodes a long file piece by piece, from those that wait already, and searches it on a thread that may block.
    async fn search_stream(
        &self,
        path: &VirtualPath,
        mut waiting: BytesMut,
        mut body: Box<Body>,
        mut decoder: StreamDecoder,
        query: &Arc<Query>,
    ) -> Result<Result<Hits, StreamError>> {
        let (text, pieces) = mpsc::channel::<Bytes>(4);
        let (found, search) = oneshot::channel();
        let query = query.clone();
        // A thread of its own: it waits for the storage, and the runtime's threads for such work are
        // what the embedded store itself needs.
        let searching = std::thread::Builder::new().name("skillfs-grep".to_owned()).spawn(move || {
            // Nobody listens any more when the search was given up.
            let _ = found.send(query.search_reader(PieceReader { pieces, piece: Bytes::new() }));
        });
        searching.map_err(|e| broke_off(path, e))?;
        let mut undecodable = None;
        loop {
            while waiting.len() < BLOCK_BYTES
                && let Some(piece) = body.next(self.store()).await.map_err(|e| e.during("search", path))?
            {
                waiting.extend_from_slice(&piece);
            }
            let block = waiting.split_to(waiting.len().min(BLOCK_BYTES));
            let last = waiting.is_empty() && body.remaining() == 0;
            let listens = match decoder.decode(&block, last) {
                Ok(decoded) => text.send(decoded.into()).await.is_ok(),
                Err(error) => {
                    undecodable = Some(error);
                    break;
                }
            };
            // Nobody listens any more when enough was found.
            if last || !listens {
                break;
            }
        }
        drop(text);
        let hits = search.await.map_err(|e| broke_off(path, e))?;
        match (hits, undecodable) {
            // A search that was over before does not mind how much of the rest has come meanwhile.
            (Ok(hits), Some(error)) if !hits.truncated => Ok(Err(error)),
            (hits, _) => hits.map(Ok).map_err(|e| not_searchable(path, &e)),
        }
    }
}

/// Searches a text that is not long, off the runtime: an expression may take its time with it, too.
async fn search_whole(
    path: &VirtualPath,
    query: &Arc<Query>,
    content: impl FnOnce() -> Content + Send + 'static,
) -> Result<(Searched, Content)> {
    let query = query.clone();
    let search = move || {
        let content = content();
        let found = match &content {
            Content::Text(known) => query.search(&known.text.content).map(Searched::Hits),
            _ => Ok(Searched::Binary),
        };
        found.map(|found| (found, content))
    };
    let searched = tokio::task::spawn_blocking(search).await.map_err(|e| broke_off(path, e))?;
    searched.map_err(|e| not_searchable(path, &e))
}

impl GrepResult {
    /// Adds the lines of a file as far as the limit allows; whether the search goes on.
    fn add(&mut self, lines: Vec<GrepLine>, query: &Grep) -> bool {
        let mut last = None;
        for line in lines {
            if !line.context {
                if self.matches == query.max_matches {
                    self.truncated = true;
                    // What was to stand before it has no reason to stand there.
                    let reach = last.map_or(0, |last| last + query.context as u64);
                    let behind =
                        |kept: &GrepLine| kept.context && kept.path == line.path && kept.line > reach;
                    while self.lines.last().is_some_and(&behind) {
                        self.lines.pop();
                    }
                    return false;
                }
                self.matches += 1;
                last = Some(line.line);
            }
            self.lines.push(line);
        }
        // Whether there is more need not be found out twice.
        !(self.truncated && self.matches >= query.max_matches)
    }
}

enum Searched {
    Hits(Hits),
    Binary,
    Gone,
}

fn not_searchable(path: &VirtualPath, error: &io::Error) -> Error {
    Error::new(ErrorKind::TooLarge, format!("`{path}` has a line that is too long to search: {error}"))
        .at(path)
}

fn broke_off(path: &VirtualPath, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Internal, format!("the search in `{path}` was interrupted"))
        .at(path)
        .with_source(error)
}

/// Pieces of text as something to read. Waits for them.
struct PieceReader {
    pieces: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl io::Read for PieceReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let bytes = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..bytes]);
        Ok(bytes)
    }
}
