//! The libraries behind `/skills`: which are published and which are plain, and what each contains.
//!
//! A library with an index that says `published` is exactly what the index says; it is never listed. Any other is
//! plain: whatever its keys are. What is fetched follows from what is known:
//!
//! | known as | requests |
//! |---|---|
//! | published | its index, conditional on the version that is known |
//! | plain, or a user's own that nothing is known of | its index and a listing, concurrently |
//! | a shared one that nothing is known of | its index; a listing only if it turns out to be plain |
//!
//! An index that is damaged or too new is an error, never a reason to list. A process that holds a good one keeps
//! serving that.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;

use super::S3Backend;
use super::union::{Broken, Union, below_mount};
use super::view::View;
use crate::cache::{Epoch, Kept, Lookup};
use crate::entry::Depth;
use crate::error::{Error, ErrorKind, Result};
use crate::id::LibraryId;
use crate::index::{Index, MAX_BYTES, Unreadable};
use crate::mount::{Directory, Location, MAX_KEY_BYTES, Mounts, ObjectKey, Tenant};
use crate::path::VirtualPath;
use crate::store::{ByteRange, Expect, Fetched, Lister};

/// How often an index is read again when it is written meanwhile.
const ATTEMPTS: u32 = 3;

/// An index of this size is decoded on a blocking thread.
const LARGE_INDEX: usize = 16 * 1024;

/// What is known of a library's index.
#[derive(Debug)]
struct KnownIndex {
    /// `None` when there is no index.
    etag: Option<String>,
    /// What the index says; `None` for a plain library, and why where it cannot be used.
    published: Result<Option<Arc<View>>, Unreadable>,
}

impl KnownIndex {
    fn view(&self) -> Option<&Arc<View>> {
        self.published.as_ref().ok()?.as_ref()
    }
}

/// A layer, and since when it is known to be so.
struct LayerAt {
    view: Arc<View>,
    since: Instant,
}

/// A listing of a plain library, or of the part of it below one name.
#[derive(Debug)]
struct ListedAt {
    view: Arc<View>,
    epoch: Epoch,
}

/// All layers together.
#[derive(Debug)]
struct UnionAt {
    union: Arc<Union>,
    layers: Vec<Arc<View>>,
    epochs: Vec<Epoch>,
}

/// One layer, and the part of it that is wanted.
#[derive(Clone)]
struct Scope {
    library: Option<LibraryId>,
    /// The library.
    top: Directory,
    /// What is listed of it, if it is plain.
    directory: Directory,
    index: ObjectKey,
}

impl Scope {
    fn name(&self) -> String {
        match &self.library {
            Some(library) => format!("the shared library `{library}`"),
            None => "the user's own library".to_owned(),
        }
    }

    fn listing_name(&self) -> String {
        format!("{}\u{2}", self.directory.prefix().as_str())
    }

    fn failed(&self, error: Error) -> Error {
        error.during("list", self.directory.path())
    }
}

/// The libraries of a session as one name. Sessions with the same libraries share what is known of them.
pub(super) fn name_of(mounts: &Mounts) -> Arc<str> {
    let layers = mounts.skill_layers();
    let prefixes: Vec<_> = layers.iter().map(|layer| layer.prefix().as_str()).collect();
    format!("{}\u{3}\u{3}", prefixes.join("\u{3}")).into()
}

impl S3Backend {
    /// All of `/skills`.
    pub(crate) async fn union_all(&self) -> Result<Arc<Union>> {
        self.union(&VirtualPath::top_level("skills")).await
    }

    /// The part of `/skills` below the first name of a path. Skills that hide each other share it, so this is
    /// enough to tell what is seen there.
    pub(crate) async fn union_of_first(&self, path: &VirtualPath) -> Result<Arc<Union>> {
        let first = below_mount(path).split('/').next().unwrap_or_default();
        let skills = VirtualPath::top_level("skills");
        self.union(&skills.join_exact(first).unwrap_or(skills)).await
    }

    /// The part of `/skills` that tells what a path is, be it a file or a directory.
    pub(super) async fn union_around(&self, path: &VirtualPath) -> Result<Arc<Union>> {
        // Whether the first name is a file itself, only the whole mount can tell.
        if below_mount(path).contains('/') { self.union_of_first(path).await } else { self.union_all().await }
    }

    async fn union(&self, under: &VirtualPath) -> Result<Arc<Union>> {
        // Without the mount this says what it needs.
        self.mounts.resolve(under)?;
        if let Some(pinned) = &self.pinned {
            return Ok(pinned.clone());
        }
        let first = below_mount(under).split('/').next().unwrap_or_default().to_owned();
        // All of it tells about every part.
        if let Some(union) = self.known_union("") {
            return Ok(union);
        }
        if !first.is_empty()
            && let Some(union) = self.known_union(&first)
        {
            return Ok(union);
        }
        self.ask_union(first).await
    }

    /// What is known of `/skills`, where that tells about a path.
    pub(super) fn known_union_of(&self, path: &VirtualPath) -> Option<Arc<Union>> {
        // A session without libraries has no such tree.
        if path.segments().next() != Some("skills") || self.layers.len() <= 2 {
            return None;
        }
        // What no key can be is rejected, not looked for. No prefix has half of the bytes of a key.
        if path.as_str().len() > MAX_KEY_BYTES / 2 && self.mounts.resolve(path).is_err() {
            return None;
        }
        // What is below the first name tells about everything but that name itself.
        self.known_union("").or_else(|| {
            let (first, _) = below_mount(path).split_once('/')?;
            self.known_union(first)
        })
    }

    /// The libraries of the session as one name: what is remembered of all of them together goes by it.
    pub(crate) fn libraries_name(&self) -> &str {
        &self.layers
    }

    /// The shared library behind a layer; `None` for the user's own.
    pub(crate) fn library_of(&self, layer: usize) -> Option<&LibraryId> {
        self.mounts.library_of(layer)
    }

    /// By what name something is remembered of a file of one layer.
    pub(crate) fn name_in_layer(&self, path: &VirtualPath, layer: usize) -> Option<String> {
        self.mounts.layer_key(path, layer)
    }

    pub(crate) fn tenant(&self) -> &Tenant {
        self.store.tenant()
    }

    pub(super) fn skills_bound(&self) -> Duration {
        if self.fresh { Duration::ZERO } else { self.shared.freshness.skills }
    }

    /// The same session, whose `/skills` stays as it is now, whatever is published meanwhile: for one turn of an
    /// agent, which reads a skill and its files one after the other.
    ///
    /// A published library is read at one release, to the end. A file of a plain library answers
    /// [`ErrorKind::Conflict`] once it has changed.
    ///
    /// Costs what [`S3Backend::catalogue_version`] does.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when the session has no `/skills`.
    pub async fn pinned(&self) -> Result<Self> {
        let union = self.union_all().await?;
        Ok(Self { pinned: Some(union), ..self.clone() })
    }

    /// Changes whenever a skill, a category's description or the order of the libraries does.
    ///
    /// It says nothing by itself; two that are equal mean the same catalog. No skill is read: costs one request
    /// for each published library, a listing and one request for each plain one, and none while they are known.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) when the session has no `/skills`.
    pub async fn catalogue_version(&self) -> Result<String> {
        let layers = self.mounts.skill_layers().len();
        let names =
            (0..layers).map(|layer| self.library_of(layer).map(ToString::to_string).unwrap_or_default());
        Ok(self.union_all().await?.version(names))
    }

    fn union_name(&self, first: &str) -> Cow<'_, str> {
        match first {
            "" => Cow::Borrowed(&*self.layers),
            first => Cow::Owned(format!("{}{first}", self.layers)),
        }
    }

    fn recall_union(&self, first: &str) -> Option<Kept<UnionAt>> {
        let kept = self.cache().recall::<UnionAt>(&self.union_name(first))?;
        self.layer_epochs().eq(kept.value.epochs.iter().copied()).then_some(kept)
    }

    fn layer_epochs(&self) -> impl Iterator<Item = Epoch> {
        let names = self.layers.split('\u{3}').filter(|name| !name.is_empty());
        names.map(|name| self.cache().epoch(name))
    }

    fn known_union(&self, first: &str) -> Option<Arc<Union>> {
        if let Some(pinned) = &self.pinned {
            return Some(pinned.clone());
        }
        let bound = self.skills_bound();
        if bound.is_zero() {
            return None;
        }
        let kept = self.recall_union(first)?;
        match self.cache().judge(kept, bound) {
            Lookup::Hit { value, aging } => {
                if aging && !self.cache().is_under_way(&self.union_name(first)) {
                    let (backend, first) = (self.clone(), first.to_owned());
                    self.in_background(async move { backend.ask_union(first).await.map(drop) });
                }
                Some(value.union.clone())
            }
            Lookup::Miss(_) => None,
        }
    }

    async fn ask_union(&self, first: String) -> Result<Arc<Union>> {
        let name = self.union_name(&first);
        let backend = self.clone();
        let ask = move || async move { backend.find_union(&first).await };
        let found: Arc<UnionAt> = self.cache().once(&name, self.skills_bound(), ask).await?;
        Ok(found.union.clone())
    }

    async fn find_union(&self, first: &str) -> Result<Arc<UnionAt>> {
        let epochs = self.layer_epochs().collect();
        let name = self.union_name(first);
        let epoch = self.cache().epoch(&name);
        let scopes = self.scopes(first)?;
        let found = join_all(scopes.iter().map(|scope| self.layer(scope))).await;
        let (mut layers, mut since, mut broken) = (Vec::new(), Instant::now(), None);
        for (layer, (scope, found)) in scopes.iter().zip(found).enumerate() {
            // Of a library that is broken, the others are told. Any other failure may pass, and is one.
            let error = match found {
                Ok(Ok(at)) => {
                    since = since.min(at.since);
                    layers.push(at.view);
                    continue;
                }
                Ok(Err(error)) => error,
                Err(error) if error.is_forbidden() => error,
                Err(error) => return Err(error),
            };
            if layer == 0 {
                return Err(error);
            }
            broken = Some(Broken { layer, library: scope.name(), error: Arc::new(error) });
            break;
        }
        let same = |known: &UnionAt| {
            known.layers.len() == layers.len()
                && known.layers.iter().zip(&layers).all(|(known, layer)| Arc::ptr_eq(known, layer))
        };
        if broken.is_some() {
            // Not remembered: whoever asks next tries again.
            let union = Arc::new(Union::of(layers.clone(), broken));
            return Ok(Arc::new(UnionAt { union, layers, epochs }));
        }
        // Only what has changed is put together again.
        let union = match self.recall_union(first).filter(|kept| same(&kept.value)) {
            Some(kept) => kept.value.union.clone(),
            None => Arc::new(Union::of(layers.clone(), None)),
        };
        // Its layers are kept, and weighed, for themselves.
        let weight = union.weight();
        let at = Arc::new(UnionAt { union, layers, epochs });
        self.cache().keep(&name, self.store.tenant(), (epoch, since), at.clone(), weight);
        Ok(at)
    }

    fn scopes(&self, first: &str) -> Result<Vec<Scope>> {
        let skills = VirtualPath::top_level("skills");
        let under = skills.join_exact(first).unwrap_or(skills);
        let mut scopes = Vec::new();
        for (layer, top) in self.mounts.skill_layers().into_iter().enumerate() {
            let directory = match self.mounts.resolve_layer(&under, layer)? {
                Location::Inside { directory, .. } | Location::Mount(directory) => directory,
                Location::Root | Location::Layered => continue,
            };
            let Some(index) = self.mounts.index_of(layer) else { continue };
            scopes.push(Scope { library: self.library_of(layer).cloned(), top, directory, index });
        }
        Ok(scopes)
    }

    /// One layer, no older than the session's bound; or what is wrong with its index.
    async fn layer(&self, scope: &Scope) -> Result<Result<LayerAt>> {
        let known = self.cache().recall::<KnownIndex>(scope.index.as_str());
        let likely_published = match &known {
            Some(kept) => kept.value.view().is_some() || kept.value.published.is_err(),
            None => scope.library.is_some(),
        };
        let index = self.index(scope, known);
        let (index, listing) = match likely_published {
            true => (index.await?, None),
            false => self.index_and_listing(scope, index).await?,
        };
        match &index.value.published {
            Ok(Some(view)) => return Ok(Ok(LayerAt { view: view.clone(), since: index.since })),
            Err(why) => return Ok(Err(unusable(&scope.name(), why).at(scope.index.as_str()))),
            Ok(None) => {}
        }
        let listing = match listing {
            Some(listing) => listing,
            None => self.listing(scope).await?,
        };
        Ok(Ok(LayerAt { view: listing.value.view.clone(), since: listing.since.min(index.since) }))
    }

    /// Both at once. A listing that is not needed is not waited for: it may have many pages.
    async fn index_and_listing(
        &self,
        scope: &Scope,
        index: impl Future<Output = Result<Kept<KnownIndex>>>,
    ) -> Result<(Kept<KnownIndex>, Option<Kept<ListedAt>>)> {
        let listing = self.listing(scope);
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

    /// The index of a library, no older than the session's bound. One request, unless it is known.
    async fn index(&self, scope: &Scope, known: Option<Kept<KnownIndex>>) -> Result<Kept<KnownIndex>> {
        let bound = self.skills_bound();
        let known = match known.map(|kept| (kept.since, self.cache().judge(kept, bound))) {
            Some((since, Lookup::Hit { value, aging: false })) => return Ok(Kept { value, since }),
            // Whoever asks is about to refresh it.
            Some((_, Lookup::Hit { value, .. })) => Some(value),
            Some((_, Lookup::Miss(kept))) => kept.map(|kept| kept.value),
            None => None,
        };
        let (backend, wanted) = (self.clone(), scope.clone());
        let since = Instant::now();
        let ask = move || async move {
            let asked = (backend.cache().epoch(wanted.index.as_str()), Instant::now());
            let found = backend.fetch_index(&wanted, known).await?;
            let weight = found.view().map_or(100, |view| view.weight());
            let owner = backend.store.tenant().owner_of(wanted.index.as_str());
            backend.cache().keep(wanted.index.as_str(), &owner, asked, found.clone(), weight);
            Ok(found)
        };
        let value = self.cache().once(scope.index.as_str(), bound, ask).await?;
        // Joined, it may be as old as the bound allows.
        let since = self.cache().recall::<KnownIndex>(scope.index.as_str()).map_or(since, |kept| kept.since);
        Ok(Kept { value, since })
    }

    async fn fetch_index(&self, scope: &Scope, known: Option<Arc<KnownIndex>>) -> Result<Arc<KnownIndex>> {
        let mut tries = 1;
        loop {
            match self.fetch_index_once(scope, known.clone()).await {
                // Written while it was being read.
                Err(error) if error.kind() == ErrorKind::Conflict && tries < ATTEMPTS => tries += 1,
                done => return done,
            }
        }
    }

    async fn fetch_index_once(
        &self,
        scope: &Scope,
        known: Option<Arc<KnownIndex>>,
    ) -> Result<Arc<KnownIndex>> {
        let key = &scope.index;
        let etag = known.as_ref().and_then(|known| known.etag.as_deref());
        let whole = ByteRange { start: 0, end: None };
        let (meta, mut body) = match self.store().get(key, whole, etag.map_or(Expect::Any, Expect::Not)).await
        {
            Ok(Fetched::Found { meta, body, .. }) => (meta, body),
            Ok(Fetched::Unchanged) => return known.map(confirmed).ok_or_else(|| changing(scope)),
            Ok(Fetched::Missing) => return Ok(Arc::new(KnownIndex { etag: None, published: Ok(None) })),
            // An empty object: no index has ever been empty.
            Ok(Fetched::BehindTheEnd) => {
                return Ok(damaged(scope, None, known.as_deref(), Unreadable::Damaged("it is empty".into())));
            }
            Ok(Fetched::Changed) => return Err(changing(scope)),
            // S3 answers so for a missing key, too, if the caller may not list it: then a listing tells.
            Err(error) if error.is_forbidden() => match self.store().lists(key).await {
                Ok(false) => return Ok(Arc::new(KnownIndex { etag: None, published: Ok(None) })),
                Err(other) if !other.is_forbidden() => return Err(scope.failed(other)),
                Ok(true) | Err(_) => return Err(error.during("read the index of", scope.name())),
            },
            Err(error) => return Err(error.during("read the index of", scope.name())),
        };
        if meta.size > MAX_BYTES {
            let why = Unreadable::Damaged(format!("it has {} bytes; the limit is {MAX_BYTES}", meta.size));
            return Ok(damaged(scope, meta.etag, known.as_deref(), why));
        }
        let mut bytes = Vec::new();
        body.collect(self.store(), &mut bytes)
            .await
            .map_err(|e| e.during("read the index of", scope.name()))?;
        match decode(bytes, meta.modified).await {
            Ok(published) => Ok(Arc::new(KnownIndex { etag: meta.etag, published: Ok(published) })),
            Err(why) => Ok(damaged(scope, meta.etag, known.as_deref(), why)),
        }
    }

    /// A listing of a plain library, no older than the session's bound.
    async fn listing(&self, scope: &Scope) -> Result<Kept<ListedAt>> {
        let name = scope.listing_name();
        let top = scope.top.prefix().as_str();
        let bound = self.skills_bound();
        let known = self.cache().recall::<ListedAt>(&name);
        let known = known.filter(|kept| kept.value.epoch == self.cache().epoch(top));
        let prior = match known.map(|kept| (kept.since, self.cache().judge(kept, bound))) {
            Some((since, Lookup::Hit { value, aging: false })) => return Ok(Kept { value, since }),
            Some((_, Lookup::Hit { value, .. })) => Some(value),
            Some((_, Lookup::Miss(kept))) => kept.map(|kept| kept.value),
            None => None,
        };
        let (backend, wanted, key) = (self.clone(), scope.clone(), name.clone());
        let since = Instant::now();
        let ask = move || async move {
            let since = Instant::now();
            let epoch = backend.cache().epoch(wanted.top.prefix().as_str());
            let kept = backend.cache().epoch(&key);
            let view = backend.list_plain(&wanted).await?;
            // The same as before: whatever was made of it still holds.
            let view = match prior {
                Some(prior) if *prior.view == view => prior.view.clone(),
                _ => Arc::new(view),
            };
            let weight = view.weight();
            let owner = backend.store.tenant().owner_of(wanted.top.prefix().as_str());
            let at = Arc::new(ListedAt { view, epoch });
            backend.cache().keep(&key, &owner, (kept, since), at.clone(), weight);
            Ok(at)
        };
        let value = self.cache().once(&name, bound, ask).await?;
        let since = self.cache().recall::<ListedAt>(&name).map_or(since, |kept| kept.since);
        Ok(Kept { value, since })
    }

    async fn list_plain(&self, scope: &Scope) -> Result<View> {
        let mut lister = Lister::new(scope.directory.prefix(), Depth::All);
        let mut items = Vec::new();
        while let Some(page) = lister.next(self.store()).await.map_err(|e| scope.failed(e))? {
            items.extend(page);
        }
        Ok(View::plain(&scope.top, items))
    }
}

/// What an index says; `None` when it says that the library is plain.
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

/// An index that cannot be used. What was known is served on, and says so.
fn damaged(
    scope: &Scope,
    etag: Option<String>,
    known: Option<&KnownIndex>,
    why: Unreadable,
) -> Arc<KnownIndex> {
    tracing::warn!(key = scope.index.as_str(), "the index cannot be used: {why}");
    Arc::new(match known.and_then(|known| Some((known.etag.clone(), known.view()?))) {
        // With the ETag of what is served, so that a later one is noticed.
        Some((etag, view)) => {
            let trouble = Some(unusable(&scope.name(), &why).message().to_owned());
            KnownIndex { etag, published: Ok(Some(Arc::new(View { trouble, ..(**view).clone() }))) }
        }
        None => KnownIndex { etag, published: Err(why) },
    })
}

/// The index is the one that is known: whatever came between has been put right.
fn confirmed(known: Arc<KnownIndex>) -> Arc<KnownIndex> {
    match known.view() {
        Some(view) if view.trouble.is_some() => {
            let view = View { trouble: None, ..(**view).clone() };
            Arc::new(KnownIndex { etag: known.etag.clone(), published: Ok(Some(Arc::new(view))) })
        }
        _ => known,
    }
}

/// What is wrong with an index, and who can fix it.
pub(crate) fn unusable(library: &impl std::fmt::Display, why: &Unreadable) -> Error {
    match why {
        Unreadable::Damaged(what) => {
            Error::new(ErrorKind::Corrupt, format!("the index of {library} is damaged: {what}"))
                .with_hint("an administrator restores it from one of its releases: `skillfs admin verify --repair --release N`")
        }
        Unreadable::Newer(_) => {
            Error::new(ErrorKind::Unavailable, format!("the index of {library} is too new: {why}"))
                .with_hint("upgrade skillfs here: readers are upgraded before publishers")
        }
    }
}

fn changing(scope: &Scope) -> Error {
    let path = scope.directory.path();
    Error::new(ErrorKind::Conflict, format!("the index of {} keeps changing while it is read", scope.name()))
        .at(path)
        .with_hint("try again in a moment")
}
