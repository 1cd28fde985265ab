//! Fetches the libraries that make up `/skills`: which are published, which are plain, and what
//! each contains.
//!
//! A library whose index says `published` contains exactly what the index says, and is never
//! listed. Any other library is plain and contains whatever its keys are. What is requested depends
//! on what is cached:
//!
//! | cached | requests |
//! |---|---|
//! | a published library | its index, conditional on the cached version |
//! | a plain library, or nothing about a user library | its index and a listing, concurrently |
//! | nothing about a shared library | its index; a listing only if it turns out to be plain |
//!
//! An index that is damaged or too new is an error and never a reason to fall back to a listing. A
//! process that has a valid index cached keeps serving that one.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;

use super::S3Backend;
use super::union::{Broken, Union, UnionFile};
use super::view::View;
use crate::ambient::Instant;
use crate::cache::{About, Accept, Cached, Detail, Kept, Key, LibraryPrefixes};
use crate::entry::Depth;
use crate::error::{Error, ErrorKind, Hint, Result};
use crate::id::LibraryId;
use crate::index::{Index, MAX_BYTES, Unreadable};
use crate::mount::{Directory, Layer};
use crate::path::{SKILLS, VirtualPath};
use crate::store::{ByteRange, Expect, Fetched, Lister};

/// How many times an index is read if it is replaced during the read.
const ATTEMPTS: u32 = 3;

/// An index of at least this size is decoded on a blocking thread.
const LARGE_INDEX: usize = 16 * 1024;

/// The cached state of a library's index.
#[derive(Debug, Clone)]
struct KnownIndex {
    /// `None` if there is no index.
    etag: Option<String>,
    /// The contents according to the index. `None` for a plain library, or the reason why the index
    /// cannot be used.
    published: Result<Option<Arc<View>>, Unreadable>,
}

impl KnownIndex {
    fn view(&self) -> Option<&Arc<View>> {
        self.published.as_ref().ok()?.as_ref()
    }

    fn none() -> Self {
        Self { etag: None, published: Ok(None) }
    }
}

impl Cached for KnownIndex {
    fn weight(&self) -> Option<u64> {
        Some(self.view().map_or(100, |view| view.weight()))
    }

    /// Each user of a shared library reads its index once, and then shares a single view of it.
    fn is_same(&self, known: &Self) -> bool {
        match (self.view(), known.view()) {
            (Some(view), Some(known_view)) => self.etag == known.etag && view == known_view,
            _ => false,
        }
    }
}

/// A listing of a plain library, or of the part of it below one name.
#[derive(Debug)]
struct PlainListing(Arc<View>);

impl Cached for PlainListing {
    fn weight(&self) -> Option<u64> {
        Some(self.0.weight())
    }

    fn plain_layers(&self) -> Vec<bool> {
        vec![true]
    }
}

/// The merged view of all layers, and the age of its oldest layer.
#[derive(Debug)]
struct UnionAt {
    union: Arc<Union>,
    since: Instant,
}

impl Cached for UnionAt {
    /// A union with a broken layer is not cached, so the next caller tries again.
    fn weight(&self) -> Option<u64> {
        self.union.broken.is_none().then(|| self.union.weight())
    }

    fn as_of(&self) -> Option<Instant> {
        Some(self.since)
    }

    fn plain_layers(&self) -> Vec<bool> {
        self.union.plain_layers()
    }
}

impl S3Backend {
    /// Returns the union for all of `/skills`.
    pub(crate) async fn union_all(&self) -> Result<Arc<Union>> {
        self.union("").await
    }

    /// Returns the union for the first segment of a path. Skills that shadow each other share that
    /// segment, so this is enough to determine what is visible there.
    pub(crate) async fn union_of_first(&self, path: &VirtualPath) -> Result<Arc<Union>> {
        self.union(path.below_mount().split('/').next().unwrap_or_default()).await
    }

    /// Returns the part of the union that determines whether a path is a file or a directory.
    pub(super) fn union_around<'s>(
        &'s self,
        path: &'s VirtualPath,
    ) -> impl Future<Output = Result<Arc<Union>>> + Send + 's {
        // A single segment may be a file itself, which only the complete mount shows.
        self.union(path.below_mount().split_once('/').map_or("", |(first, _)| first))
    }

    /// Returns the union for one top-level name, or for all of `/skills` if `first` is empty.
    async fn union(&self, first: &str) -> Result<Arc<Union>> {
        // Without the mount, this error says what is missing.
        self.mounts.some_skill_layers()?;
        if let Some(pinned) = &self.pinned {
            return Ok(pinned.clone());
        }
        let (about, bound) = (self.about_libraries(), self.skills_bound());
        let mut key = Key::<UnionAt>::new(about.clone(), Detail::Only);
        // A cached union of everything also covers every part.
        let all_known = self.cache().peek(&key).is_some_and(|all| all.since.elapsed() < bound);
        let first = if all_known { "" } else { first };
        if !first.is_empty() {
            key = Key::new(about, Detail::named(first));
        }
        let fetch = |known| self.clone().fetch_union(first.to_owned(), known);
        Ok(self.cache().get(&key, Accept::newer_than(bound), fetch).await?.value.union.clone())
    }

    /// Returns the shared library of a layer, or `None` for the user library.
    pub(crate) fn library_of(&self, layer: usize) -> Option<&LibraryId> {
        self.mounts.skill_layers().get(layer)?.shared()
    }

    /// The cache subject of everything derived from all libraries of the session.
    pub(crate) fn about_libraries(&self) -> About {
        About::Libraries(self.libraries.clone())
    }

    /// The cache subject of everything derived from one file of one library.
    pub(crate) fn about_file(&self, path: &VirtualPath, found: &UnionFile) -> Result<About> {
        Ok(About::object(&self.key_of(path, found)?))
    }

    pub(super) fn skills_bound(&self) -> Duration {
        if self.fresh { Duration::ZERO } else { self.shared.settings.freshness.skills }
    }

    /// Returns a copy of this session with a fixed snapshot of `/skills`, regardless of what is
    /// published later.
    ///
    /// Use it for one turn of an agent, which reads a skill and its files one after the other. A
    /// published library is read at one release throughout. Reading a file of a plain library fails
    /// with [`ErrorKind::Conflict`] once the file has changed.
    ///
    /// Costs the same as [`S3Backend::catalog_version`].
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the session has no `/skills`.
    pub async fn pinned(&self) -> Result<Self> {
        let union = self.union_all().await?;
        Ok(Self { pinned: Some(union), ..self.clone() })
    }

    /// Returns an opaque token that changes whenever a skill, the description of a category or the
    /// order of the libraries changes.
    ///
    /// Equal tokens mean the same catalog. No skill file is read.
    ///
    /// Costs one request per published library, and one request plus a listing per plain library.
    /// Costs nothing while they are cached.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) when the session has no `/skills`.
    pub async fn catalog_version(&self) -> Result<String> {
        let layers = self.mounts.skill_layers().iter();
        let names = layers.map(|layer| layer.shared().map(ToString::to_string).unwrap_or_default());
        Ok(self.union_all().await?.version(names))
    }

    async fn fetch_union(self, first: String, known: Option<Kept<UnionAt>>) -> Result<UnionAt> {
        let libraries = self.mounts.skill_layers();
        let found = join_all(libraries.iter().map(|library| self.layer(library, &first))).await;
        let (mut layers, mut since, mut broken) = (Vec::new(), Instant::now(), None);
        for (layer, (library, found)) in libraries.iter().zip(found).enumerate() {
            // If a library is broken or forbidden, the libraries before it are still served. Any
            // other failure may be transient and fails the fetch.
            let error = match found {
                Ok(Ok(view)) => {
                    since = since.min(view.since);
                    layers.push(view.value);
                    continue;
                }
                Ok(Err(error)) => error,
                Err(error) if error.is_forbidden() => error,
                Err(error) => return Err(error),
            };
            if layer == 0 {
                return Err(error);
            }
            broken = Some(Broken { layer, library: library.name(), error: Arc::new(error) });
            break;
        }
        // Reuse the previous union if no layer has changed.
        let union = match known {
            Some(known) if broken.is_none() && known.value.union.is_of(&layers) => known.value.union.clone(),
            _ => Arc::new(Union::of(layers, broken)),
        };
        Ok(UnionAt { union, since })
    }

    /// Returns one layer, no older than the session's freshness bound. The inner error says why its
    /// index is unusable.
    async fn layer(&self, library: &Layer, first: &str) -> Result<Result<Kept<View>>> {
        let key = Key::new(About::object(&library.index()), Detail::Only);
        let likely_published = match self.cache().peek::<KnownIndex>(&key) {
            Some(known) => known.value.view().is_some() || known.value.published.is_err(),
            None => library.shared().is_some(),
        };
        let fetch = |known| self.clone().fetch_index(library.clone(), known);
        let index = self.cache().get(&key, self.accept_layer(), fetch);
        let (index, listing) = match likely_published {
            true => (index.await?, None),
            false => index_and_listing(index, self.listing(library, first)).await?,
        };
        match &index.value.published {
            Ok(Some(view)) => return Ok(Ok(Kept { value: view.clone(), since: index.since })),
            Err(why) => return Ok(Err(unusable(&library.name(), why).at(library.index().as_str()))),
            Ok(None) => {}
        }
        let listing = match listing {
            Some(listing) => listing,
            None => self.listing(library, first).await?,
        };
        Ok(Ok(Kept { value: listing.value.0.clone(), since: listing.since.min(index.since) }))
    }

    /// A union is refreshed ahead in the second half of its lifetime, so its layers must be younger
    /// than that.
    fn accept_layer<T>(&self) -> Accept<fn(&T) -> bool> {
        Accept { refresh: false, ..Accept::newer_than(self.skills_bound() / 2) }
    }

    async fn fetch_index(self, library: Layer, known: Option<Kept<KnownIndex>>) -> Result<KnownIndex> {
        let (key, library) = (&library.index(), &library);
        let known = known.as_ref().map(|known| &*known.value);
        let etag = known.and_then(|known| known.etag.as_deref());
        let during = |error: Error| error.during("read the index of", library.name());
        for _ in 0..ATTEMPTS {
            let expect = etag.map_or(Expect::Any, Expect::Not);
            let (meta, mut body) = match self.store().get(key, ByteRange::WHOLE, expect).await {
                Ok(Fetched::Found { meta, body, .. }) => (meta, body),
                Ok(Fetched::Unchanged) => match known {
                    Some(known) => return Ok(revalidated(known)),
                    None => continue,
                },
                Ok(Fetched::Changed) => continue,
                Ok(Fetched::Missing) => return Ok(KnownIndex::none()),
                // An empty object. A valid index is never empty.
                Ok(Fetched::BehindTheEnd) => {
                    let why = Unreadable::Damaged("it is empty".into());
                    return Ok(damaged(library, None, known, why));
                }
                // S3 also returns 403 for a missing key if the caller may not list it: check with a
                // listing.
                Err(error) if error.is_forbidden() => match self.store().lists(key).await {
                    Ok(false) => return Ok(KnownIndex::none()),
                    Err(other) if !other.is_forbidden() => {
                        return Err(other.during("list", VirtualPath::top_level(SKILLS)));
                    }
                    Ok(true) | Err(_) => return Err(during(error)),
                },
                Err(error) => return Err(during(error)),
            };
            if meta.size > MAX_BYTES {
                let why =
                    Unreadable::Damaged(format!("it has {} bytes; the limit is {MAX_BYTES}", meta.size));
                return Ok(damaged(library, meta.etag, known, why));
            }
            let mut bytes = Vec::new();
            match body.collect(self.store(), &mut bytes).await {
                Ok(()) => {}
                // The index was replaced while it was being read.
                Err(error) if error.kind() == ErrorKind::Conflict => continue,
                Err(error) => return Err(during(error)),
            }
            return Ok(match decode(bytes, meta.modified).await {
                Ok(published) => KnownIndex { etag: meta.etag, published: Ok(published) },
                Err(why) => damaged(library, meta.etag, known, why),
            });
        }
        Err(changing(library))
    }

    /// Returns a listing of a plain library, no older than the session's freshness bound.
    async fn listing(&self, library: &Layer, first: &str) -> Result<Kept<PlainListing>> {
        let detail = if first.is_empty() { Detail::Only } else { Detail::named(first) };
        let key = Key::new(About::Libraries(LibraryPrefixes::new([library])), detail);
        let skills = VirtualPath::top_level(SKILLS);
        let directory = library.directory(&skills.join_exact(first).unwrap_or(skills));
        let fetch = |known| self.clone().fetch_listing(library.top(), directory, known);
        self.cache().get(&key, self.accept_layer(), fetch).await
    }

    async fn fetch_listing(
        self,
        library: Directory,
        part: Directory,
        known: Option<Kept<PlainListing>>,
    ) -> Result<PlainListing> {
        let items = Lister::new(part.prefix(), Depth::All).all(self.store()).await;
        let view = View::plain(&library, items.map_err(|e| e.during("list", part.path()))?);
        // Nothing has changed: share the old view, so that everything derived from it stays valid.
        Ok(match known {
            Some(known) if *known.value.0 == view => PlainListing(known.value.0.clone()),
            _ => PlainListing(Arc::new(view)),
        })
    }
}

/// Fetches the index and a listing concurrently. Does not wait for a listing that turns out not to
/// be needed, because it may have many pages.
async fn index_and_listing(
    index: impl Future<Output = Result<Kept<KnownIndex>>>,
    listing: impl Future<Output = Result<Kept<PlainListing>>>,
) -> Result<(Kept<KnownIndex>, Option<Kept<PlainListing>>)> {
    tokio::pin!(index, listing);
    let mut listed = None;
    let index = tokio::select! {
        biased;
        index = &mut index => index?,
        done = &mut listing => {
            listed = Some(done);
            index.await?
        }
    };
    let listing = match (&index.value.published, listed) {
        (Ok(Some(_)) | Err(_), _) => None,
        (Ok(None), Some(listed)) => Some(listed?),
        (Ok(None), None) => Some(listing.await?),
    };
    Ok((index, listing))
}

/// Decodes an index into a view. Returns `None` if the index says that the library is plain.
async fn decode(bytes: Vec<u8>, released: Option<SystemTime>) -> Result<Option<Arc<View>>, Unreadable> {
    let view = move |bytes: &[u8]| {
        let index = Index::decode(bytes)?;
        if !index.is_published() {
            return Ok(None);
        }
        Ok(Some(Arc::new(View { released, ..View::published(Arc::new(index)) })))
    };
    if bytes.len() < LARGE_INDEX {
        return view(&bytes);
    }
    let decoded = tokio::task::spawn_blocking(move || view(&bytes)).await;
    decoded.unwrap_or_else(|e| Err(Unreadable::Damaged(e.to_string())))
}

/// Handles an unusable index: keeps serving the cached one, if any, and records the problem.
fn damaged(library: &Layer, etag: Option<String>, known: Option<&KnownIndex>, why: Unreadable) -> KnownIndex {
    tracing::warn!(key = library.index().as_str(), "the index cannot be used: {why}");
    match known.and_then(|known| Some((known.etag.clone(), known.view()?))) {
        // Keep the ETag of the index that is served, so that a replacement is noticed.
        Some((etag, view)) => {
            let trouble = Some(unusable(&library.name(), &why).message().to_owned());
            KnownIndex { etag, published: Ok(Some(Arc::new(View { trouble, ..(**view).clone() }))) }
        }
        None => KnownIndex { etag, published: Err(why) },
    }
}

/// The cached index is current again: clears a recorded problem.
fn revalidated(known: &KnownIndex) -> KnownIndex {
    match known.view() {
        Some(view) if view.trouble.is_some() => {
            let view = View { trouble: None, ..(**view).clone() };
            KnownIndex { etag: known.etag.clone(), published: Ok(Some(Arc::new(view))) }
        }
        _ => known.clone(),
    }
}

/// Describes what is wrong with an index and who can fix it.
pub(crate) fn unusable(library: &impl std::fmt::Display, why: &Unreadable) -> Error {
    match why {
        Unreadable::Damaged(what) => {
            Error::new(ErrorKind::Corrupt, format!("the index of {library} is damaged: {what}"))
                .with_hint(Hint::RestoreRelease { intact: Vec::new() })
        }
        Unreadable::Newer(..) => {
            Error::new(ErrorKind::Unavailable, format!("the index of {library} is too new: {why}"))
                .with_hint(Hint::Upgrade)
                .lasting()
        }
    }
}

fn changing(library: &Layer) -> Error {
    let message = format!("the index of {} keeps changing while it is read", library.name());
    Error::new(ErrorKind::Conflict, message)
        .at(VirtualPath::top_level(SKILLS))
        .with_hint("try again in a moment")
}
