//! `ls` and `tree`: one level or recursive, as a complete listing, in pages or as a stream.

use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use tracing::instrument;

use super::S3Backend;
use super::file::not_a_directory;
use super::walk::{Item, Walk, WalkPage, WalkRoot};
use crate::cache::{About, Accept, Cached, Detail, Kept, Key};
use crate::entry::{Depth, Entry, Listing, Page, Tree};
use crate::error::{ErrorKind, Result};
use crate::path::{IntoPath, VirtualPath};

impl S3Backend {
    /// Lists the entries of a directory, sorted by path bytes.
    ///
    /// `/` lists the mounts. An empty mount lists as empty.
    ///
    /// Costs one request per 1,000 entries. Listing `/` costs nothing, and a missing directory
    /// costs two.
    ///
    /// # Errors
    /// - [`ErrorKind::NotFound`] if the directory does not exist.
    /// - [`ErrorKind::NotDirectory`] if the path is a file.
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
    /// backend.write("drafts/lease.md", "# Lease\n").await?;
    ///
    /// let listing = backend.ls("/workspace").await?;
    /// let paths: Vec<_> = listing.entries.iter().map(|entry| entry.path.as_str()).collect();
    /// assert_eq!(paths, ["/workspace/drafts", "/workspace/notes.md"]);
    /// # Ok(())
    /// # }
    /// # #[cfg(feature = "embedded")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub async fn ls(&self, path: impl IntoPath) -> Result<Listing> {
        self.list_all(path.into_path()?, Depth::One).await
    }

    /// Lists all files and directories below a directory, sorted by path bytes.
    ///
    /// Costs one request per 1,000 keys, regardless of depth.
    ///
    /// # Errors
    /// Same as [`S3Backend::ls`].
    pub async fn ls_recursive(&self, path: impl IntoPath) -> Result<Listing> {
        self.list_all(path.into_path()?, Depth::All).await
    }

    /// Returns a directory as a tree, with each level sorted by path bytes.
    ///
    /// Costs one request per 1,000 keys.
    ///
    /// # Errors
    /// Same as [`S3Backend::ls`].
    pub async fn tree(&self, path: impl IntoPath) -> Result<Tree> {
        let path = path.into_path()?;
        let listing = self.list_all(path.clone(), Depth::All).await?;
        Ok(Tree::grow(path, listing))
    }

    /// Streams the entries of a directory page by page, in key order.
    ///
    /// A directory comes directly before its first entry. Dropping the stream ends the listing.
    /// Yields the same errors as [`S3Backend::ls`], and ends after the first one.
    ///
    /// Costs one request per page, sent when the page is polled for.
    pub fn ls_pages(&self, path: impl IntoPath, depth: Depth) -> BoxStream<'static, Result<Page>> {
        // Parsed here, so that the stream does not borrow the path.
        let walk = path.into_path().and_then(|path| Walk::of(self.clone(), &path, depth));
        let next = |mut walk: Walk| async move { Ok(walk.next_page().await?.map(|page| (page, walk))) };
        stream::once(async { walk }).map_ok(move |walk| stream::try_unfold(walk, next)).try_flatten().boxed()
    }

    /// Streams the entries of a directory one by one. See [`S3Backend::ls_pages`].
    pub fn ls_stream(&self, path: impl IntoPath, depth: Depth) -> BoxStream<'static, Result<Entry>> {
        self.ls_pages(path, depth).map_ok(|page| stream::iter(page.entries).map(Ok)).try_flatten().boxed()
    }

    #[instrument(name = "ls", skip_all, fields(?path, ?depth))]
    async fn list_all(&self, path: VirtualPath, depth: Depth) -> Result<Listing> {
        // `/skills` is cached as a union and needs no cached listing.
        let Some(WalkRoot::Directory(directory)) = self.place(&path)? else {
            return Walk::of(self.clone(), &path, depth)?.collect().await;
        };
        let about = About::Prefix(directory.prefix().as_str().into());
        let key = Key::<KnownListing>::new(about, Detail::Depth(depth));
        let fetch = |_: Option<Kept<KnownListing>>| {
            let (backend, path) = (self.clone(), path.clone());
            async move {
                match Walk::of(backend, &path, depth)?.collect().await {
                    Ok(listing) => Ok(KnownListing::Entries(listing)),
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(KnownListing::Nothing),
                    Err(error) if error.kind() == ErrorKind::NotDirectory => Ok(KnownListing::File),
                    Err(error) => Err(error),
                }
            }
        };
        let known = self.cache().get(&key, Accept::newer_than(self.bound(&path)), fetch).await?;
        match &*known.value {
            KnownListing::Entries(listing) => Ok(listing.clone()),
            KnownListing::File => Err(not_a_directory(&path)),
            KnownListing::Nothing => Err(Self::not_found(&path)),
        }
    }
}

/// The cached outcome of a listing.
#[derive(Debug)]
enum KnownListing {
    Entries(Listing),
    File,
    Nothing,
}

impl Cached for KnownListing {
    fn weight(&self) -> Option<u64> {
        let Self::Entries(listing) = self else { return Some(0) };
        let entry =
            |entry: &Entry| entry.path.as_str().len() + entry.etag.as_ref().map_or(0, String::len) + 120;
        Some(listing.entries.iter().map(entry).sum::<usize>() as u64)
    }
}

impl Walk {
    async fn next_page(&mut self) -> Result<Option<Page>> {
        while let Some(WalkPage { items, hidden }) = self.next().await? {
            let entry = |item| match item {
                Item::File(file) => Some(file.entry()),
                Item::Directory(path) => Some(Entry::directory(path)),
                // Its directory has already been emitted.
                Item::Marker(..) => None,
            };
            let page = Page { entries: items.into_iter().filter_map(entry).collect(), hidden };
            if !page.entries.is_empty() || hidden > 0 {
                return Ok(Some(page));
            }
        }
        Ok(None)
    }

    async fn collect(mut self) -> Result<Listing> {
        let mut listing = Listing::default();
        while let Some(page) = self.next_page().await? {
            listing.push(page);
        }
        listing.sort();
        Ok(listing)
    }
}
