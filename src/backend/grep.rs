//! `grep`: searches many files concurrently for matching lines.

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
use super::find::{Hidden, parse_pattern};
use super::walk::Candidate;
use crate::cache::{About, Detail, Key};
use crate::error::{Error, ErrorKind, Result};
use crate::options::setters;
use crate::path::VirtualPath;
use crate::search::{Hits, Line, PatternOptions, Query};
use crate::store::Body;
use crate::text::{self, HEAD_BYTES, StreamDecoder, StreamError};

/// How many files are read concurrently.
const AT_ONCE: usize = 64;

/// Larger files are searched while they stream, on a dedicated thread.
const IN_MEMORY_BYTES: u64 = 256 * 1024;

/// Streamed files are decoded in blocks of this size, so that the result does not depend on how the
/// network splits them.
const BLOCK_BYTES: usize = 64 * 1024;

/// How many large files are searched concurrently.
const LONG_FILES_AT_ONCE: usize = 8;

/// The default of [`Grep::max_matches`].
const DEFAULT_MAX_MATCHES: u64 = 1_000;

/// A search query for [`S3Backend::grep`].
///
/// ```
/// use skillfs::Grep;
///
/// let todos = Grep::new("todo:").ignore_case(true).glob("*.md");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grep {
    /// The text to find. Taken literally unless [`Grep::regex`] is set.
    pub pattern: String,
    /// The directory or file to search. Defaults to `/workspace`, or to `/` if the session has no
    /// workspace or the glob starts with `/`.
    pub root: Option<String>,
    /// Search only files that match this pattern, as in [`S3Backend::glob`].
    pub glob: Option<String>,
    /// Whether the pattern is a regular expression.
    pub regex: bool,
    /// Whether to ignore case.
    pub ignore_case: bool,
    /// How many lines to include before and after each match, up to 1,000.
    pub context: usize,
    /// The maximum number of matches per file. `None` means no limit per file.
    pub max_per_file: Option<u64>,
    /// The maximum number of matches in total. Defaults to 1,000.
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

    /// Creates a query for a literal text, with all options at their defaults.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self {
            pattern: pattern.into(),
            root: None,
            glob: None,
            regex: false,
            ignore_case: false,
            context: 0,
            max_per_file: None,
            max_matches: DEFAULT_MAX_MATCHES,
        }
    }
}

/// A matching line, or a context line around a match.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GrepLine {
    /// The file.
    pub path: VirtualPath,
    /// The line number, starting at 1.
    pub line: u64,
    /// The line without its `\n`. A very long line is cut after 16 KiB.
    pub text: String,
    /// Whether this is a context line and not a match.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub context: bool,
    /// Whether the line is longer than `text`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// A file that could not be searched.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct NotSearched {
    /// The file.
    pub path: VirtualPath,
    /// The reason.
    pub reason: String,
}

/// The matches in one file.
#[derive(Debug)]
#[non_exhaustive]
pub struct FileHits {
    /// The file.
    pub path: VirtualPath,
    /// Matching lines and their context, in order.
    pub lines: Vec<GrepLine>,
    /// The number of matching lines.
    pub matches: u64,
    /// Whether the file has more matches than are returned.
    pub truncated: bool,
    /// Whether the file was skipped because it is not text.
    pub binary: bool,
    /// Why the file could not be searched, if it could not.
    pub failed: Option<String>,
}

/// The result of [`S3Backend::grep`].
#[derive(Debug, Default, Serialize)]
#[non_exhaustive]
pub struct GrepResult {
    /// Matching lines and their context, sorted by path bytes and line number.
    pub lines: Vec<GrepLine>,
    /// The number of matching lines.
    pub matches: u64,
    /// Whether there are, or may be, more matches than are returned.
    pub truncated: bool,
    /// The number of files that were searched.
    pub searched: u64,
    /// The number of files that were skipped because they are not text.
    pub binary: u64,
    /// Files that could not be searched, with the reason.
    pub not_searched: Vec<NotSearched>,
    /// The number of listed keys that no path can name.
    pub hidden: u64,
}

impl S3Backend {
    /// Searches files for lines that match a literal text or a regular expression.
    ///
    /// Files are decoded as by [`S3Backend::read`], in all supported encodings. Binary files are
    /// skipped and counted. Results are always sorted by path bytes and line number; if there are
    /// more than [`Grep::max_matches`], the first ones in that order are returned.
    ///
    /// Costs one request per 1,000 keys, and one per file that is not empty and not cached. Reads
    /// up to 64 files concurrently.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidInput`] if the pattern or the glob is malformed.
    /// - [`ErrorKind::NotFound`] if the root does not exist.
    /// - Errors that affect all files, such as an unreachable server.
    ///
    /// A single file that cannot be read is not an error. It is listed in
    /// [`GrepResult::not_searched`].
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
    /// use skillfs::Grep;
    ///
    /// backend.write("plan.md", "# Plan\n- call the buyer\n").await?;
    ///
    /// let found = backend.grep(&Grep::new("buyer").glob("*.md")).await?;
    /// let line = &found.lines[0];
    /// assert_eq!((line.path.as_str(), line.line), ("/workspace/plan.md", 2));
    /// assert_eq!(line.text, "- call the buyer");
    /// # Ok(())
    /// # }
    /// # #[cfg(feature = "embedded")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
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

    /// Streams the result of each file as it is searched, by path bytes, including files without a
    /// match.
    ///
    /// Dropping the stream ends the search. Yields the same errors as [`S3Backend::grep`], and ends
    /// after the first one. [`Grep::max_matches`] applies to each file.
    pub fn grep_stream(&self, query: &Grep) -> BoxStream<'static, Result<FileHits>> {
        self.grep_counting(query, Hidden::default())
    }

    fn grep_counting(&self, query: &Grep, hidden: Hidden) -> BoxStream<'static, Result<FileHits>> {
        let (backend, query) = (self.clone(), query.clone());
        stream::once(async move {
            let pattern = match query.glob.clone() {
                Some(glob) => Some(parse_pattern(glob).await?),
                None => None,
            };
            let root = backend.search_root(query.root.as_deref(), query.glob.as_deref())?;
            let most = query.max_per_file.unwrap_or(u64::MAX).min(query.max_matches);
            // Compiling a large expression takes a while.
            let compile = move || {
                let options = PatternOptions { regex: query.regex, ignore_case: query.ignore_case };
                Query::new(&query.pattern, options, query.context, most)
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
                            // Each large file needs a thread, so their number is limited.
                            let _guard = match found.meta().size > IN_MEMORY_BYTES {
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

    /// Searches one file. Returns `None` if it has been deleted.
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
            // Errors about this file alone do not end the search. An unreachable server does.
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
        if let Some(content @ (Content::Text(_) | Content::Binary(_))) =
            self.cached_content(&file, Want::Text)
        {
            return search_in_memory(path, query, move || content).await.map(|(found, _)| found);
        }
        let key = Key::new(About::object(&file.key), Detail::Only);
        let moment = self.cache().moment(&key);
        let Some((meta, mut body)) = self.open_candidate(found, &file).await? else {
            return Ok(Searched::Gone);
        };
        if meta.size <= IN_MEMORY_BYTES {
            let mut bytes = Vec::new();
            body.collect(self.store(), &mut bytes).await.map_err(|e| e.during("search", path))?;
            let decode = move || Content::of_text(text::decode(bytes));
            let (hits, content) = search_in_memory(path, query, decode).await?;
            // Cache it as a reader would.
            if file.version == Version::Latest {
                (file.meta, file.version) = (meta, Version::Exact);
            }
            file.content = content;
            self.cache().put(&key, moment, Node::File(file));
            return Ok(hits);
        }
        // Classify the head as text or binary before waiting for the rest.
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
                // Happens at most once: only presumed UTF-8 can turn out to be another encoding.
                Err(StreamError::Legacy(legacy)) => encoding = legacy,
            }
            match self.open_candidate(found, &file).await? {
                Some((now, again)) if now.etag == meta.etag => (body, head) = (again, BytesMut::new()),
                _ => return Ok(Searched::Gone),
            }
        }
    }

    /// Decodes a large file block by block, starting with the bytes in `waiting`, and searches it
    /// on a dedicated thread that may block.
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
        // Not `spawn_blocking`: this thread waits for the storage, and the embedded store needs the
        // threads of the blocking pool itself.
        let searching = std::thread::Builder::new().name("skillfs-grep".to_owned()).spawn(move || {
            // The receiver is gone if the search was canceled.
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
            let is_receiving = match decoder.decode(&block, last) {
                Ok(decoded) => text.send(decoded.into()).await.is_ok(),
                Err(error) => {
                    undecodable = Some(error);
                    break;
                }
            };
            // The search hangs up once it has enough matches.
            if last || !is_receiving {
                break;
            }
        }
        drop(text);
        let hits = search.await.map_err(|e| broke_off(path, e))?;
        match (hits, undecodable) {
            // If the search ended early, an undecodable block after that point does not matter.
            (Ok(hits), Some(error)) if !hits.truncated => Ok(Err(error)),
            (hits, _) => hits.map(Ok).map_err(|e| not_searchable(path, &e)),
        }
    }
}

/// Searches a short text on a blocking thread, because even that can take a while with a complex
/// expression.
async fn search_in_memory(
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
    /// Adds the lines of a file, up to the limit. Returns whether the search continues.
    fn add(&mut self, lines: Vec<GrepLine>, query: &Grep) -> bool {
        let mut last = None;
        for line in lines {
            if !line.context {
                if self.matches == query.max_matches {
                    self.truncated = true;
                    // Remove the leading context of a match that is not returned.
                    let reach = last.map_or(0, |last| last + query.context as u64);
                    let is_leading_context =
                        |kept: &GrepLine| kept.context && kept.path == line.path && kept.line > reach;
                    while self.lines.last().is_some_and(&is_leading_context) {
                        self.lines.pop();
                    }
                    return false;
                }
                self.matches += 1;
                last = Some(line.line);
            }
            self.lines.push(line);
        }
        // The limit is reached, and we already know that there is more.
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

/// Presents the blocks from a channel as a blocking reader.
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
