//! `glob`, and the candidate files of `glob` and `grep`: one flat listing, streamed page by page.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use tracing::instrument;

use super::S3Backend;
use super::walk::{Candidate, Item, Unlisted, Walk, WalkRoot};
use crate::entry::{Depth, Entry};
use crate::error::{Error, ErrorKind, Result};
use crate::options::setters;
use crate::path::{VirtualPath, WORKING_DIRECTORY};
use crate::pattern::Pattern;

/// The default limit of [`S3Backend::glob`].
const DEFAULT_LIMIT: usize = 10_000;

/// Which files to find, and where.
///
/// ```
/// use skillfs::Glob;
///
/// let references = Glob::new("**/references/*.md").root("/skills").max_files(50);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Glob {
    /// The pattern.
    pub pattern: String,
    /// Where to search. Default: `/workspace`, or `/` when the session has none or the pattern begins with `/`.
    pub root: Option<String>,
    /// The maximum number of files. Default 10,000.
    pub max_files: usize,
}

impl Glob {
    /// The defaults for a pattern.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self { pattern: pattern.into(), root: None, max_files: DEFAULT_LIMIT }
    }

    setters! {
        root: some into String;
        max_files: usize;
    }
}

impl<P: Into<String>> From<P> for Glob {
    fn from(pattern: P) -> Self {
        Self::new(pattern)
    }
}

/// The result of [`S3Backend::glob`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GlobResult {
    /// The matching files, sorted by path bytes.
    pub entries: Vec<Entry>,
    /// Whether there are more matches than the limit.
    pub truncated: bool,
    /// The number of listed keys that no path can name.
    pub hidden: u64,
}

/// Counts the keys that no path can name.
pub(super) type Hidden = Arc<AtomicU64>;

/// Parses a pattern on a blocking thread, because compiling a large one takes a while.
pub(super) async fn parse_pattern(pattern: String) -> Result<Pattern> {
    tokio::task::spawn_blocking(move || Pattern::parse(&pattern)).await.map_err(|error| {
        Error::new(ErrorKind::Internal, "the pattern could not be read").with_source(error)
    })?
}

/// Where a search starts.
#[derive(Debug, Clone)]
pub(super) struct Root {
    pub(super) path: VirtualPath,
    /// Whether the caller named it explicitly: then it must exist.
    named: bool,
}

impl S3Backend {
    /// Returns the files that match a glob pattern, sorted by path bytes.
    ///
    /// `*` and `?` match within a name, `**` matches any number of directories, and `{a,b}` and
    /// `[a-z]` work as in a shell. A pattern without `/` matches names at any depth. A pattern with
    /// `/` matches the path below `root`, and a leading `/` anchors it there. Names that start with
    /// a dot match only if the pattern spells out the dot.
    ///
    /// Without a `root`, the search starts in `/workspace`, or at `/` if the pattern starts with
    /// `/`.
    ///
    /// Returns up to [`Glob::max_files`] files, and whether there are more.
    ///
    /// Costs one request per 1,000 keys below the directories that the pattern spells out.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if the pattern is malformed.
    /// - [`ErrorKind::InvalidPath`](crate::ErrorKind::InvalidPath) if it contains `..`.
    /// - [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if `root` does not exist.
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
    /// backend.write("plan.md", "# Plan\n").await?;
    /// backend.write("drafts/lease.md", "# Lease\n").await?;
    ///
    /// let found = backend.glob("drafts/*.md").await?;
    /// assert_eq!(found.entries[0].path.as_str(), "/workspace/drafts/lease.md");
    /// assert_eq!(backend.glob("*.md").await?.entries.len(), 2);
    /// # Ok(())
    /// # }
    /// # #[cfg(feature = "embedded")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    #[instrument(name = "glob", skip_all)]
    pub async fn glob(&self, query: impl Into<Glob>) -> Result<GlobResult> {
        let (query, hidden) = (query.into(), Hidden::default());
        let limit = query.max_files;
        let found = self.glob_counting(query, hidden.clone());
        let mut entries: Vec<Entry> = found.take(limit.saturating_add(1)).try_collect().await?;
        let truncated = entries.len() > limit;
        entries.truncate(limit);
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(GlobResult { entries, truncated, hidden: hidden.load(Ordering::Relaxed) })
    }

    /// The files that match a pattern as they are found, in key order and without a limit. Dropping the stream ends
    /// the search. Errors are those of [`S3Backend::glob`]; the stream ends after one.
    pub fn glob_stream(&self, query: impl Into<Glob>) -> BoxStream<'static, Result<Entry>> {
        self.glob_counting(query.into(), Hidden::default())
    }

    fn glob_counting(&self, query: Glob, hidden: Hidden) -> BoxStream<'static, Result<Entry>> {
        let Glob { pattern, root, .. } = query;
        let root = self.search_root(root.as_deref(), Some(&pattern));
        let backend = self.clone();
        stream::once(async move {
            let matcher = parse_pattern(pattern).await?;
            Ok::<_, Error>(backend.candidates(root?, Some(matcher), hidden).map_ok(|found| found.entry()))
        })
        .try_flatten()
        .boxed()
    }

    /// Determines where a search starts, with or without an explicit root.
    pub(super) fn search_root(&self, root: Option<&str>, pattern: Option<&str>) -> Result<Root> {
        if let Some(root) = root {
            return Ok(Root { path: VirtualPath::parse(root)?, named: true });
        }
        let workspace = VirtualPath::top_level(WORKING_DIRECTORY);
        let absolute = pattern.is_some_and(|pattern| pattern.starts_with('/'));
        let path = match !absolute && self.mounts().any(|mount| *mount.path() == workspace) {
            true => workspace,
            false => VirtualPath::root(),
        };
        Ok(Root { path, named: false })
    }

    /// Streams the matching files below a directory, in key order. If the root is a file, it is the
    /// only candidate.
    pub(super) fn candidates(
        &self,
        root: Root,
        pattern: Option<Pattern>,
        hidden: Hidden,
    ) -> BoxStream<'static, Result<Candidate>> {
        let search = Search { backend: self.clone(), root, pattern, hidden, walk: None };
        stream::try_unfold(search, |mut search| async move {
            Ok::<_, Error>(search.next().await?.map(|found| (stream::iter(found).map(Ok), search)))
        })
        .try_flatten()
        .boxed()
    }
}

/// A search in progress: the matching files of a walk.
struct Search {
    backend: S3Backend,
    root: Root,
    pattern: Option<Pattern>,
    hidden: Hidden,
    /// `None` before the search has started.
    walk: Option<Walk>,
}

impl Search {
    /// Returns the matches of the next page.
    async fn next(&mut self) -> Result<Option<Vec<Candidate>>> {
        let walk = match &mut self.walk {
            Some(walk) => walk,
            None => {
                let places = self.start()?;
                self.walk.insert(Walk::new(self.backend.clone(), Depth::All, places))
            }
        };
        let page = match walk.next().await {
            Ok(page) => page,
            // The directories of a pattern may not exist, or may be files: then nothing matches.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotDirectory) => None,
            Err(error) => return Err(error),
        };
        let Some(page) = page else {
            return match std::mem::replace(&mut walk.found_any, true) {
                true => Ok(None),
                false => Ok(self.nothing_listed().await?.map(|root| vec![root])),
            };
        };
        self.hidden.fetch_add(page.hidden, Ordering::Relaxed);
        let wanted = |item| match item {
            Item::File(file) if self.wants(&file.path) => Some(file),
            _ => None,
        };
        Ok(Some(page.items.into_iter().filter_map(wanted).collect()))
    }

    /// Determines what to list: everything below the root, or only what the pattern can match.
    fn start(&self) -> Result<VecDeque<WalkRoot>> {
        // Errors about the root itself take precedence.
        self.backend.place(&self.root.path)?;
        let mut top = self.root.path.clone();
        for name in self.pattern.iter().flat_map(Pattern::directories) {
            match top.join_exact(&name) {
                Some(below) => top = below,
                // No file can have such a path.
                None => return Ok(VecDeque::new()),
            }
        }
        if top.is_root() {
            return self.backend.all_places();
        }
        match self.backend.place(&top) {
            Ok(place) => Ok(place.into_iter().collect()),
            // A pattern may contain names that no file can have, but its mount must exist.
            Err(error) if self.root.path.is_root() && error.kind() == ErrorKind::NotFound => Err(error),
            Err(_) if top != self.root.path => Ok(VecDeque::new()),
            Err(error) => Err(error),
        }
    }

    fn wants(&self, path: &VirtualPath) -> bool {
        let Some(pattern) = &self.pattern else { return true };
        let relative = path.as_str().strip_prefix(self.root.path.as_str().trim_end_matches('/'));
        relative.is_some_and(|relative| pattern.matches(relative.trim_start_matches('/')))
    }

    /// Called when nothing was listed. A mount may be empty, and a pattern may match nothing, but
    /// an explicit root must exist, and may be a file.
    async fn nothing_listed(&self) -> Result<Option<Candidate>> {
        let root = &self.root.path;
        if !self.root.named || root.is_root() || self.backend.mounts().any(|mount| mount.path() == root) {
            return Ok(None);
        }
        // If the pattern narrowed the listing, the root itself was not listed.
        let narrowed = self.pattern.as_ref().is_some_and(|pattern| !pattern.directories().is_empty());
        let file = match self.backend.unlisted(root, !narrowed).await? {
            Unlisted::File(file) => file,
            Unlisted::Directory => return Ok(None),
            Unlisted::Nothing => return Err(S3Backend::not_found(root)),
        };
        // A file is matched by its name.
        let name = root.name().unwrap_or_default();
        let matches = self.pattern.as_ref().is_none_or(|pattern| pattern.matches(name));
        Ok(matches.then_some(file))
    }
}
