//! `ls` and `tree`: one level or all of them, whole, in pages or as a stream.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use tracing::instrument;

use super::S3Backend;
use super::union::below_mount;
use crate::cache::{Lookup, all_below};
use crate::entry::{Depth, Entry, Listing, Page, Tree};
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{Directory, Location, ObjectKey};
use crate::path::{IntoPath, VirtualPath};
use crate::store::{Listed, Lister};

impl S3Backend {
    /// The entries of a directory, sorted by path bytes.
    ///
    /// `/` lists the mounts. An empty mount lists as empty.
    ///
    /// Costs one request for every 1,000 entries; `/` costs none, a missing directory two.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when nothing is there, [`ErrorKind::NotDirectory`] when it is a file.
    pub async fn ls(&self, path: impl IntoPath) -> Result<Listing> {
        self.list_whole(path.into_path()?, Depth::One).await
    }

    /// Everything below a directory, files and directories, sorted by path bytes.
    ///
    /// Costs one request for every 1,000 keys, however deep they lie.
    ///
    /// # Errors
    /// As [`S3Backend::ls`].
    pub async fn ls_recursive(&self, path: impl IntoPath) -> Result<Listing> {
        self.list_whole(path.into_path()?, Depth::All).await
    }

    /// A directory as a tree, each level sorted by path bytes.
    ///
    /// Costs one request for every 1,000 keys.
    ///
    /// # Errors
    /// As [`S3Backend::ls`].
    pub async fn tree(&self, path: impl IntoPath) -> Result<Tree> {
        let path = path.into_path()?;
        let listing = self.list_whole(path.clone(), Depth::All).await?;
        Ok(Tree::grow(path, listing))
    }

    /// The entries of a directory page by page, as they arrive, in key order. A directory stands
    /// directly before the first entry in it.
    ///
    /// Costs one request a page, sent when the page is asked for. Dropping the stream ends the
    /// listing. Errors are those of [`S3Backend::ls`]; the stream ends behind one.
    pub fn ls_pages(&self, path: impl IntoPath, depth: Depth) -> BoxStream<'static, Result<Page>> {
        // The path is parsed now, so that the stream does not borrow it.
        let walk = path.into_path().and_then(|path| Walk::new(self.clone(), &path, depth));
        stream::once(async { walk }).map_ok(Walk::pages).try_flatten().boxed()
    }

    /// The entries of a directory one by one: [`S3Backend::ls_pages`], unpacked.
    pub fn ls_stream(&self, path: impl IntoPath, depth: Depth) -> BoxStream<'static, Result<Entry>> {
        self.ls_pages(path, depth).map_ok(|page| stream::iter(page.entries).map(Ok)).try_flatten().boxed()
    }

    #[instrument(name = "ls", skip_all, fields(?path, ?depth))]
    async fn list_whole(&self, path: VirtualPath, depth: Depth) -> Result<Listing> {
        let bound = self.bound(&path);
        let directory = match self.mounts.resolve(&path)? {
            Location::Mount(directory) | Location::Inside { directory, .. } if !bound.is_zero() => directory,
            _ => return self.list_now(&path, depth).await,
        };
        let name = match depth {
            Depth::One => directory.prefix().as_str().to_owned(),
            Depth::All => all_below(directory.prefix().as_str()),
        };
        match self.cache().look::<KnownListing>(&name, bound) {
            Lookup::Hit { value, aging } => {
                if aging && !self.cache().is_under_way(&name) {
                    let (backend, path) = (self.clone(), path.clone());
                    self.in_background(async move {
                        backend.ask_listing(&name, path, depth, bound).await.map(drop)
                    });
                }
                value.answer(&path)
            }
            Lookup::Miss(_) => self.ask_listing(&name, path.clone(), depth, bound).await?.answer(&path),
        }
    }

    /// Lists once for all who want to know.
    async fn ask_listing(
        &self,
        name: &str,
        path: VirtualPath,
        depth: Depth,
        bound: Duration,
    ) -> Result<Arc<KnownListing>> {
        let (backend, key) = (self.clone(), name.to_owned());
        let ask = move || async move {
            let asked = (backend.cache().epoch(&key), Instant::now());
            let known = Arc::new(match backend.list_now(&path, depth).await {
                Ok(listing) => KnownListing::Entries(listing),
                Err(error) if error.kind() == ErrorKind::NotFound => KnownListing::Nothing,
                Err(error) if error.kind() == ErrorKind::NotDirectory => KnownListing::File,
                Err(error) => return Err(error),
            });
            let owner = backend.store().tenant().owner_of(&key);
            backend.cache().keep(&key, &owner, asked, known.clone(), known.weight());
            Ok(known)
        };
        self.cache().once(name, bound, ask).await
    }

    async fn list_now(&self, path: &VirtualPath, depth: Depth) -> Result<Listing> {
        let mut listing = Listing::default();
        let mut walk = Walk::new(self.clone(), path, depth)?;
        while let Some(page) = walk.next().await? {
            listing.push(page);
        }
        listing.sort();
        Ok(listing)
    }
}

/// What a listing found.
#[derive(Debug)]
enum KnownListing {
    Entries(Listing),
    File,
    Nothing,
}

impl KnownListing {
    fn answer(&self, path: &VirtualPath) -> Result<Listing> {
        match self {
            Self::Entries(listing) => Ok(listing.clone()),
            Self::File => Err(not_a_directory(path)),
            Self::Nothing => Err(S3Backend::not_found(path)),
        }
    }

    fn weight(&self) -> u64 {
        let Self::Entries(listing) = self else { return 0 };
        let entry =
            |entry: &Entry| entry.path.as_str().len() + entry.etag.as_ref().map_or(0, String::len) + 120;
        listing.entries.iter().map(entry).sum::<usize>() as u64
    }
}

/// Something to list.
enum Target {
    Directory(Directory),
    /// Below `/skills`.
    Layered(VirtualPath),
}

/// A listing on its way.
struct Walk {
    backend: S3Backend,
    depth: Depth,
    /// Entries that are known without a request: the mounts, when `/` is listed.
    known: Option<Page>,
    /// What is still to list; more than one only for everything below `/`.
    left: VecDeque<Target>,
    /// The object of the listed directory's own name, asked about when the directory is empty.
    own_key: Option<ObjectKey>,
    /// The listing at hand.
    lister: Option<Lister>,
    /// Whether anything was found in the directory at hand.
    found: bool,
    /// The directories that the last key of a recursive listing lay in.
    open: Vec<String>,
}

impl Walk {
    fn new(backend: S3Backend, path: &VirtualPath, depth: Depth) -> Result<Self> {
        let location = backend.mounts.resolve(path)?;
        let mut walk = Self {
            backend,
            depth,
            known: None,
            left: VecDeque::new(),
            own_key: None,
            lister: None,
            found: false,
            open: Vec::new(),
        };
        match location {
            Location::Root => {
                let mounts = walk.backend.mounts.clone();
                walk.known = Some(Page {
                    entries: mounts.iter().map(|mount| Entry::directory(mount.path().clone())).collect(),
                    hidden: 0,
                });
                if depth == Depth::All {
                    for mount in mounts.iter() {
                        walk.left.push_back(match mounts.resolve(mount.path())? {
                            Location::Mount(directory) => Target::Directory(directory),
                            _ => Target::Layered(mount.path().clone()),
                        });
                    }
                }
            }
            Location::Mount(directory) => walk.left.push_back(Target::Directory(directory)),
            Location::Inside { key, directory } => {
                walk.own_key = Some(key);
                walk.left.push_back(Target::Directory(directory));
            }
            Location::Layered => walk.left.push_back(Target::Layered(path.clone())),
        }
        Ok(walk)
    }

    fn pages(self) -> impl Stream<Item = Result<Page>> + Send {
        stream::try_unfold(self, |mut walk| async move { Ok(walk.next().await?.map(|page| (page, walk))) })
    }

    /// The next page that holds anything.
    async fn next(&mut self) -> Result<Option<Page>> {
        if let Some(known) = self.known.take() {
            return Ok(Some(known));
        }
        while let Some(target) = self.left.front() {
            let directory = match target {
                Target::Directory(directory) => directory.clone(),
                Target::Layered(path) => {
                    let page = self.layered(&path.clone()).await?;
                    self.left.pop_front();
                    if page.entries.is_empty() && page.hidden == 0 {
                        continue;
                    }
                    return Ok(Some(page));
                }
            };
            let lister = self.lister.get_or_insert_with(|| Lister::new(directory.prefix(), self.depth));
            let items =
                lister.next(self.backend.store()).await.map_err(|e| e.during("list", directory.path()))?;
            let Some(items) = items else {
                if !self.found {
                    self.check_empty(&directory).await?;
                }
                self.left.pop_front();
                self.lister = None;
                self.open.clear();
                self.found = false;
                continue;
            };
            self.found = true;
            let mut page = Page::default();
            for item in items {
                match self.depth {
                    Depth::One => one_level(&directory, item, &mut page),
                    Depth::All => self.all_levels(&directory, &item, &mut page),
                }
            }
            if !page.entries.is_empty() || page.hidden > 0 {
                return Ok(Some(page));
            }
        }
        Ok(None)
    }

    /// All layers together, as one page.
    async fn layered(&self, path: &VirtualPath) -> Result<Page> {
        let relative = below_mount(path);
        let union = self.backend.union_of_first(path).await?;
        if union.is_directory(relative) {
            union.check_complete(path)?;
            return Ok(union.entries(&VirtualPath::top_level("skills"), relative, self.depth == Depth::All));
        }
        // Not a directory: what else it is, the part around it tells.
        let union = self.backend.union_around(path).await?;
        union.check_complete(path)?;
        Err(match union.file(relative) {
            Some(_) => not_a_directory(path),
            None => S3Backend::not_found(path),
        })
    }

    /// A mount may be empty. Anything else without a key is a file or nothing.
    async fn check_empty(&self, directory: &Directory) -> Result<()> {
        let path = directory.path();
        let Some(key) = &self.own_key else { return Ok(()) };
        match self.backend.store().head(key).await.map_err(|e| e.during("list", path))? {
            Some(_) => Err(not_a_directory(path)),
            None => Err(S3Backend::not_found(path)),
        }
    }

    /// Everything below: directories are made from the keys in them, each once, before its content.
    fn all_levels(&mut self, directory: &Directory, item: &Listed, page: &mut Page) {
        let Listed::Object { key, meta } = item else { return };
        let Some(relative) = directory.relative(key) else {
            page.hidden += 1;
            return;
        };
        let mut parents: Vec<&str> = relative.split('/').collect();
        let name = parents.pop().unwrap_or_default();
        let same = self.open.iter().zip(&parents).take_while(|(open, parent)| open == *parent).count();
        self.open.truncate(same);
        for depth in same..parents.len() {
            let Some(path) = directory.path().join_exact(&parents[..=depth].join("/")) else {
                page.hidden += 1;
                return;
            };
            page.entries.push(Entry::directory(path));
            self.open.push(parents[depth].to_owned());
        }
        if name.is_empty() && meta.size == 0 {
            // A folder marker: its directory exists, and that was said.
            return;
        }
        match directory.path_of(key) {
            Some(path) => page.entries.push(meta.entry(path)),
            None => page.hidden += 1,
        }
    }
}

pub(super) fn not_a_directory(path: &VirtualPath) -> Error {
    Error::new(ErrorKind::NotDirectory, format!("`{path}` is a file, not a directory"))
        .at(path)
        .with_hint(format!("see its content: `read {path}`"))
}

fn one_level(directory: &Directory, item: Listed, page: &mut Page) {
    match item {
        Listed::Object { key, meta } => match directory.path_of(&key) {
            Some(path) => page.entries.push(meta.entry(path)),
            // The marker of the listed directory itself.
            None if meta.size == 0 && directory.relative(&key) == Some("") => {}
            None => page.hidden += 1,
        },
        Listed::Prefix(prefix) => match prefix.strip_suffix('/').and_then(|key| directory.path_of(key)) {
            Some(path) => page.entries.push(Entry::directory(path)),
            None => page.hidden += 1,
        },
    }
}
