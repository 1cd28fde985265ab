//! `glob`, and the files that `glob` and `grep` go through: one flat listing, as it arrives.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use tracing::instrument;

use super::S3Backend;
use super::union::{UnionFile, below_mount};
use crate::entry::{Depth, Entry};
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{Directory, Location, ObjectKey};
use crate::path::VirtualPath;
use crate::pattern::Pattern;
use crate::store::{Listed, Lister, Meta};

/// So many files are found unless told.
const MOST_FILES: usize = 10_000;

/// What [`S3Backend::glob`] found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GlobResult {
    /// The files, sorted by path bytes.
    pub entries: Vec<Entry>,
    /// Whether there are more than were asked for.
    pub truncated: bool,
    /// Keys that no path can name, among those that were looked at.
    pub hidden: u64,
}

/// Counts the keys that no path can name.
pub(super) type Hidden = Arc<AtomicU64>;

/// Parses a pattern. A large one takes its time, and the runtime has other things to do.
pub(super) async fn parsed(pattern: String) -> Result<Pattern> {
    tokio::task::spawn_blocking(move || Pattern::parse(&pattern)).await.map_err(|error| {
        Error::new(ErrorKind::Internal, "the pattern could not be read").with_source(error)
    })?
}

/// A file that is searched.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) path: VirtualPath,
    pub(super) key: ObjectKey,
    pub(super) meta: Meta,
    /// How `/skills` shows it.
    pub(super) listed: Option<UnionFile>,
}

/// Where a search starts.
#[derive(Debug, Clone)]
pub(super) struct Root {
    pub(super) path: VirtualPath,
    /// Whether the caller named it: then it must be there.
    named: bool,
}

impl S3Backend {
    /// The files that match a pattern, sorted by path bytes; up to 10,000, and whether there are more.
    ///
    /// `*` and `?` match within a name, `**` any number of directories, `{a,b}` and `[a-z]` as in a shell.
    /// A pattern without `/` matches names at any depth, one with `/` the path below `root`; a leading `/`
    /// anchors it there. Names that begin with a dot match only where the dot is written.
    ///
    /// Without a `root` the search starts in `/workspace`, or at `/` when the pattern begins with `/`.
    ///
    /// Costs one request for every 1,000 keys below the directories that the pattern writes out.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) when the pattern is none,
    /// [`ErrorKind::InvalidPath`](crate::ErrorKind::InvalidPath) when it climbs with `..`;
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) when `root` is not there.
    pub async fn glob(&self, pattern: &str, root: Option<&str>) -> Result<GlobResult> {
        self.glob_limited(pattern, root, MOST_FILES).await
    }

    /// As [`S3Backend::glob`], with another limit.
    ///
    /// # Errors
    /// As [`S3Backend::glob`].
    #[instrument(name = "glob", skip_all, fields(pattern, root))]
    pub async fn glob_limited(&self, pattern: &str, root: Option<&str>, limit: usize) -> Result<GlobResult> {
        let hidden = Hidden::default();
        let found = self.glob_counting(pattern, root, hidden.clone());
        let mut entries: Vec<Entry> = found.take(limit.saturating_add(1)).try_collect().await?;
        let truncated = entries.len() > limit;
        entries.truncate(limit);
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(GlobResult { entries, truncated, hidden: hidden.load(Ordering::Relaxed) })
    }

    /// The files that match a pattern as they are found, in key order. Dropping the stream ends the
    /// search. Errors are those of [`S3Backend::glob`]; the stream ends behind one.
    pub fn glob_stream(&self, pattern: &str, root: Option<&str>) -> BoxStream<'static, Result<Entry>> {
        self.glob_counting(pattern, root, Hidden::default())
    }

    fn glob_counting(
        &self,
        pattern: &str,
        root: Option<&str>,
        hidden: Hidden,
    ) -> BoxStream<'static, Result<Entry>> {
        let (root, pattern) = (self.search_root(root, Some(pattern)), pattern.to_owned());
        let backend = self.clone();
        stream::once(async move {
            let matcher = parsed(pattern).await?;
            Ok::<_, Error>((root?, matcher))
        })
        .map_ok(move |(root, matcher)| {
            backend
                .candidates(root, Some(matcher), hidden.clone())
                .map_ok(|found| found.meta.entry(found.path))
        })
        .try_flatten()
        .boxed()
    }

    /// Where a search starts when it is told, and when it is not.
    pub(super) fn search_root(&self, root: Option<&str>, pattern: Option<&str>) -> Result<Root> {
        if let Some(root) = root {
            return Ok(Root { path: VirtualPath::parse(root)?, named: true });
        }
        let workspace = VirtualPath::top_level("workspace");
        let absolute = pattern.is_some_and(|pattern| pattern.starts_with('/'));
        let path = match !absolute && self.mounts().any(|mount| *mount.path() == workspace) {
            true => workspace,
            false => VirtualPath::root(),
        };
        Ok(Root { path, named: false })
    }

    /// The files below a directory that match, in key order; a file that is named itself is one.
    pub(super) fn candidates(
        &self,
        root: Root,
        pattern: Option<Pattern>,
        hidden: Hidden,
    ) -> BoxStream<'static, Result<Candidate>> {
        let walk = FileWalk {
            backend: self.clone(),
            root,
            pattern,
            hidden,
            left: None,
            lister: None,
            ready: VecDeque::new(),
            found: false,
        };
        stream::try_unfold(walk, |mut walk| async move { Ok(walk.next().await?.map(|found| (found, walk))) })
            .boxed()
    }
}

/// A search on its way through its directories.
struct FileWalk {
    backend: S3Backend,
    root: Root,
    pattern: Option<Pattern>,
    hidden: Hidden,
    /// What is still to list; `None` before the start.
    left: Option<VecDeque<Listable>>,
    lister: Option<Lister>,
    ready: VecDeque<Candidate>,
    /// Whether anything at all lies below the root.
    found: bool,
}

enum Listable {
    Directory(Directory),
    /// Below `/skills`.
    Layered(VirtualPath),
}

impl FileWalk {
    async fn next(&mut self) -> Result<Option<Candidate>> {
        if self.left.is_none() {
            self.left = Some(self.start()?);
        }
        loop {
            if let Some(found) = self.ready.pop_front() {
                return Ok(Some(found));
            }
            let Some(left) = &mut self.left else { return Ok(None) };
            let directory = match left.front() {
                None => {
                    if !std::mem::replace(&mut self.found, true) {
                        self.nothing_found().await?;
                        continue;
                    }
                    return Ok(None);
                }
                Some(Listable::Directory(directory)) => directory.clone(),
                Some(Listable::Layered(path)) => {
                    let path = path.clone();
                    left.pop_front();
                    self.layered(&path).await?;
                    continue;
                }
            };
            let lister = self.lister.get_or_insert_with(|| Lister::new(directory.prefix(), Depth::All));
            let page = lister.next(self.backend.store()).await;
            let Some(page) = page.map_err(|e| e.during("list", directory.path()))? else {
                self.lister = None;
                left.pop_front();
                continue;
            };
            self.found = true;
            for item in page {
                let Listed::Object { key, meta } = item else { continue };
                match directory.file(&key) {
                    Some((path, key)) => self.offer(Candidate { path, key, meta, listed: None }),
                    // The marker of a folder is no file, and nothing is hidden with it.
                    None if meta.size == 0 && directory.marker(&key).is_some() => {}
                    None => {
                        self.hidden.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// What to list: all below the root, or no more than the pattern can match.
    fn start(&self) -> Result<VecDeque<Listable>> {
        let mounts = &self.backend.mounts;
        // An error of the root itself comes before all others.
        mounts.resolve(&self.root.path)?;
        let mut top = self.root.path.clone();
        for name in self.pattern.iter().flat_map(Pattern::directories) {
            match top.join_exact(&name) {
                Some(below) => top = below,
                // No file can lie there.
                None => return Ok(VecDeque::new()),
            }
        }
        let listable = |path: &VirtualPath| match mounts.resolve(path)? {
            Location::Mount(directory) | Location::Inside { directory, .. } => {
                Ok(Some(Listable::Directory(directory)))
            }
            Location::Layered => Ok(Some(Listable::Layered(path.clone()))),
            Location::Root => Ok(None),
        };
        if top.is_root() {
            return mounts.iter().filter_map(|mount| listable(mount.path()).transpose()).collect();
        }
        match listable(&top) {
            Ok(place) => Ok(place.into_iter().collect()),
            // A pattern may name what no file can be called; but its mount must be there.
            Err(error) if self.root.path.is_root() && error.kind() == ErrorKind::NotFound => Err(error),
            Err(_) if top != self.root.path => Ok(VecDeque::new()),
            Err(error) => Err(error),
        }
    }

    fn offer(&mut self, candidate: Candidate) {
        let root = self.root.path.as_str().trim_end_matches('/');
        let relative = candidate.path.as_str().strip_prefix(root).map(|rest| rest.trim_start_matches('/'));
        let wanted = match (&self.pattern, relative) {
            (Some(pattern), Some(relative)) => pattern.matches(relative),
            (None, _) => true,
            (Some(_), None) => false,
        };
        if wanted {
            self.ready.push_back(candidate);
        }
    }

    async fn layered(&mut self, path: &VirtualPath) -> Result<()> {
        let backend = self.backend.clone();
        let union = backend.union_of_first(path).await?;
        union.check_complete(path)?;
        self.hidden.fetch_add(union.hidden_in(below_mount(path)), Ordering::Relaxed);
        for (name, found) in union.files_in(below_mount(path)) {
            self.found = true;
            let Some(path) = path.join_exact(name) else { continue };
            let (key, meta) = (backend.key_of(&path, found)?, found.meta.clone());
            self.offer(Candidate { path, key, meta, listed: Some(found.clone()) });
        }
        Ok(())
    }

    /// Nothing was listed. A mount may be empty, and a pattern may match nothing; but a root that was
    /// named must be there, and may be a file.
    async fn nothing_found(&mut self) -> Result<()> {
        let root = &self.root.path;
        if !self.root.named || root.is_root() || self.backend.mounts().any(|mount| mount.path() == root) {
            return Ok(());
        }
        let mounts = &self.backend.mounts;
        let file = match mounts.resolve(root)? {
            Location::Inside { key, directory } => {
                // Where the pattern led further down, the root itself was not listed.
                let narrowed = self.pattern.as_ref().is_some_and(|pattern| !pattern.directories().is_empty());
                if narrowed && self.backend.is_directory(&directory).await? {
                    return Ok(());
                }
                let meta = self.backend.store().head(&key).await.map_err(|e| e.during("look at", root))?;
                meta.map(|meta| (key, meta, None))
            }
            Location::Layered => {
                let union = self.backend.union_around(root).await?;
                union.check_complete(root)?;
                match union.file(below_mount(root)) {
                    Some(found) => {
                        let key = self.backend.key_of(root, found)?;
                        Some((key, found.meta.clone(), Some(found.clone())))
                    }
                    None if union.is_directory(below_mount(root)) => return Ok(()),
                    None => None,
                }
            }
            Location::Root | Location::Mount(_) => return Ok(()),
        };
        let Some((key, meta, listed)) = file else { return Err(S3Backend::not_found(root)) };
        // A file is its own name below itself.
        let name = root.name().unwrap_or_default();
        if self.pattern.as_ref().is_none_or(|pattern| pattern.matches(name)) {
            self.ready.push_back(Candidate { path: root.clone(), key, meta, listed });
        }
        Ok(())
    }
}
