//! The libraries behind `/skills`: each is listed, and its index is read, at the same time.
//!
//! The listing tells what is there. The index saves reading it. Where they differ, either somebody changed
//! the library by hand, or the two were seen at different moments; to tell, the index must have been the
//! same from before the listing began until after it ended.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;

use super::S3Backend;
use super::union::{LayerFile, LayerListing, Union, UnionFile};
use crate::cache::{Epoch, Kept, Lookup};
use crate::entry::Depth;
use crate::error::{Error, ErrorKind, Result};
use crate::index::{Index, IndexedCategory, IndexedFile, IndexedSkill, MAX_BYTES, Sha256, State};
use crate::mount::{Directory, Location, MAX_KEY_BYTES, Mounts, ObjectKey, Tenant};
use crate::path::VirtualPath;
use crate::store::{ByteRange, Expect, Fetched, Listed, Lister, Meta};

/// How often a library is listed again when its index changes meanwhile.
const ROUNDS: u32 = 6;

/// How often an index is read anew when it is written meanwhile.
const ATTEMPTS: u32 = 3;

/// A library that had no index when this began, and was listed within this time, was not yet being published
/// to while it was listed.
pub(crate) const FIRST_INDEX: Duration = Duration::from_secs(3);

/// An index of this size is read on a thread that may take its time.
const LARGE_INDEX: usize = 64 * 1024;

/// One library, or the part of it below one name, as it was at one moment.
#[derive(Debug)]
pub(crate) struct Layer {
    /// What readers see: published skills as their releases are.
    pub(super) listing: LayerListing,
    index: Option<Arc<KnownIndex>>,
    /// Whether the index was the same around the listing: then what differs was changed by hand.
    proven: bool,
}

/// One version of an index.
#[derive(Debug)]
struct KnownIndex {
    etag: String,
    /// `None` when it could not be read: then it is as if there were none.
    index: Option<Index>,
}

/// A layer, and since when it is known to be so.
#[derive(Debug)]
struct LayerAt {
    layer: Arc<Layer>,
    since: Instant,
    epoch: Epoch,
}

/// All layers together.
#[derive(Debug)]
struct UnionAt {
    union: Arc<Union>,
    layers: Vec<Arc<Layer>>,
    epochs: Vec<Epoch>,
}

/// What is listed: a library, or what lies below one name in it.
#[derive(Clone)]
struct Scope {
    /// The library.
    top: Directory,
    /// What is listed of it.
    directory: Directory,
    index: ObjectKey,
}

/// The libraries of a session as one name. Sessions of the same libraries share what is known of them.
pub(super) fn name_of(mounts: &Mounts) -> Arc<str> {
    let layers = mounts.skill_layers();
    let prefixes: Vec<_> = layers.iter().map(|layer| layer.prefix().as_str()).collect();
    format!("{}\u{3}\u{3}", prefixes.join("\u{3}")).into()
}

impl Layer {
    fn of(listing: LayerListing, index: &Option<Arc<KnownIndex>>, below: &str, proven: bool) -> Self {
        let listing = match index_of(index) {
            Some(index) => listing.with_releases(index, below, proven),
            None => listing,
        };
        Self { listing, index: index.clone(), proven }
    }

    /// A library of which nothing but the index is there.
    pub(super) fn of_index(index: Index) -> Self {
        let index = Some(Arc::new(KnownIndex { etag: String::new(), index: Some(index) }));
        Self::of(LayerListing::default(), &index, "", false)
    }

    pub(super) fn index(&self) -> Option<&Index> {
        index_of(&self.index)
    }

    /// What the index says of a skill whose file is this version.
    pub(super) fn indexed_skill(&self, path: &str, file: &str, found: &UnionFile) -> Option<&IndexedSkill> {
        let skill = self.index()?.skills.get(path).filter(|skill| skill.file == file)?;
        let is_version = |file: &IndexedFile| match found.release {
            Some(release) => release.sha256 == file.sha256,
            None => is_version(file, &found.meta),
        };
        skill.files.get(file).is_some_and(is_version).then_some(skill)
    }

    /// What the index says of a category whose description is this version.
    pub(super) fn indexed_category(&self, path: &str, meta: &Meta) -> Option<&IndexedCategory> {
        self.index()?.categories.get(path).filter(|category| is_version(&category.file, meta))
    }

    pub(super) fn index_etag(&self) -> Option<&str> {
        etag_of(&self.index)
    }

    /// The digest of this version of a file of a skill.
    pub(super) fn sha256(&self, skill: &str, name: &str, meta: &Meta) -> Option<Sha256> {
        let file = self.index()?.skills.get(skill)?.files.get(name)?;
        is_version(file, meta).then_some(file.sha256)
    }

    fn weight(&self) -> u64 {
        // The index is kept for itself, too; but what holds it keeps it alive.
        self.listing.weight() + self.index().map_or(0, Index::weight) + 200
    }
}

/// Whether a listing and an index tell the same, below a prefix of the library. What a release is still
/// writing is left out: there the index alone counts.
fn agree(listing: &LayerListing, index: &Option<Arc<KnownIndex>>, prefix: &str) -> bool {
    let Some(index) = index_of(index) else { return true };
    let below = |path: &str| prefix.is_empty() || format!("{path}/").starts_with(prefix);
    let settled =
        |skill: &IndexedSkill| skill.managed.as_ref().is_none_or(|managed| managed.state == State::Published);
    let recorded = |(path, skill): (&String, &IndexedSkill)| {
        listing.skills.get(path) == Some(&skill.file) && listing.is_as_recorded(path, skill)
    };
    let indexed = index.skills.iter().filter(|(path, skill)| below(path) && settled(skill));
    let mut listed = listing.skills.keys();
    let described = |(path, file): (&str, &LayerFile)| {
        index.categories.get(path).is_some_and(|category| is_version(&category.file, &file.meta))
    };
    indexed.into_iter().all(recorded)
        && listed.all(|path| index.skills.contains_key(path))
        && listing.descriptions().all(described)
}

/// Whether they differ in a skill that no release tells of.
fn unpublished_differs(listing: &LayerListing, index: &Option<Arc<KnownIndex>>, prefix: &str) -> bool {
    let Some(index) = index_of(index) else { return false };
    let below = |path: &str| prefix.is_empty() || format!("{path}/").starts_with(prefix);
    let plain = |skill: &IndexedSkill| skill.managed.is_none();
    listing.skills.keys().any(|path| !index.skills.contains_key(path))
        || index
            .skills
            .iter()
            .any(|(path, skill)| below(path) && plain(skill) && !listing.is_as_recorded(path, skill))
}

fn is_version(file: &IndexedFile, meta: &Meta) -> bool {
    file.is(meta.size, meta.etag.as_deref())
}

impl S3Backend {
    /// All layers as one, below one directory of `/skills` or all of it. When it is not known: one request
    /// for every 1,000 keys of each layer, and one for its index.
    pub(crate) async fn union(&self, under: &VirtualPath) -> Result<Arc<Union>> {
        // Without the mount this says what it needs.
        self.mounts.resolve(under)?;
        if let Some(pinned) = &self.pinned {
            return Ok(pinned.clone());
        }
        let first = super::union::below_mount(under).split('/').next().unwrap_or_default().to_owned();
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

    /// The libraries of the session as one name: what is remembered of all of them together goes by it.
    pub(crate) fn libraries_name(&self) -> &str {
        &self.layers
    }

    /// By what name something is remembered of a file of one layer.
    pub(crate) fn name_in_layer(&self, path: &VirtualPath, layer: usize) -> Option<String> {
        self.mounts.layer_key(path, layer)
    }

    pub(crate) fn tenant(&self) -> &Tenant {
        self.store.tenant()
    }

    pub(super) fn known_union_of(&self, path: &VirtualPath) -> Option<Arc<Union>> {
        // A session without libraries has no such listing.
        if path.segments().next() != Some("skills") || self.layers.len() <= 2 {
            return None;
        }
        // What no key can be is refused, not looked for. No prefix has half of the bytes of a key.
        if path.as_str().len() > MAX_KEY_BYTES / 2 && self.mounts.resolve(path).is_err() {
            return None;
        }
        // What lies below the first name tells about all but that name itself.
        self.known_union("").or_else(|| {
            let (first, _) = super::union::below_mount(path).split_once('/')?;
            self.known_union(first)
        })
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

    pub(super) fn skills_bound(&self) -> Duration {
        if self.fresh { Duration::ZERO } else { self.shared.freshness.skills }
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
        let found = try_join_all(scopes.iter().map(|scope| self.layer(scope))).await?;
        let since = found.iter().map(|at| at.since).min().unwrap_or_else(Instant::now);
        let layers: Vec<_> = found.iter().map(|at| at.layer.clone()).collect();
        let same = |known: &UnionAt| {
            known.layers.len() == layers.len()
                && known.layers.iter().zip(&layers).all(|(known, layer)| Arc::ptr_eq(known, layer))
        };
        // Only what has changed is put together anew.
        let union = match self.recall_union(first).filter(|kept| same(&kept.value)) {
            Some(kept) => kept.value.union.clone(),
            None => Arc::new(Union::of(&layers)),
        };
        // It keeps its layers alive, whoever else lets go of them.
        let weight = union.weight() + layers.iter().map(|layer| layer.weight()).sum::<u64>();
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
            scopes.push(Scope { top, directory, index });
        }
        Ok(scopes)
    }

    /// One layer, no older than the session's bound.
    async fn layer(&self, scope: &Scope) -> Result<Arc<LayerAt>> {
        let name = format!("{}\u{2}", scope.directory.prefix().as_str());
        let top = scope.top.prefix().as_str();
        let bound = self.skills_bound();
        let known = self.cache().recall::<LayerAt>(&name);
        let known = known.filter(|kept| kept.value.epoch == self.cache().epoch(top));
        let prior = match known.map(|kept| self.cache().judge(kept, bound)) {
            Some(Lookup::Hit { value, aging: false }) => return Ok(value),
            // Whoever asks is about to refresh it.
            Some(Lookup::Hit { value, .. }) => Some(value),
            Some(Lookup::Miss(kept)) => kept.map(|kept| kept.value),
            None => None,
        };
        let backend = self.clone();
        let (scope, key) = (scope.clone(), name.clone());
        let ask = move || async move {
            let since = Instant::now();
            let epoch = backend.cache().epoch(scope.top.prefix().as_str());
            let kept = backend.cache().epoch(&key);
            let layer = backend.find_layer(&scope, prior.as_deref()).await?;
            let weight = layer.weight();
            let owner = backend.store.tenant().owner_of(scope.top.prefix().as_str());
            let at = Arc::new(LayerAt { layer, since, epoch });
            backend.cache().keep(&key, &owner, (kept, since), at.clone(), weight);
            Ok(at)
        };
        self.cache().once(&name, bound, ask).await
    }

    async fn find_layer(&self, scope: &Scope, prior: Option<&LayerAt>) -> Result<Arc<Layer>> {
        let top = scope.top.prefix().as_str();
        let below = scope.directory.prefix().as_str().strip_prefix(top).unwrap_or_default().to_owned();
        let began = Instant::now();
        // Known from before the listing begins.
        let known = self.recall_index(scope).or_else(|| prior.and_then(|prior| prior.layer.index.clone()));
        let listed = async {
            match &known {
                // Its keys tell where to cut: all pages at once.
                Some(known) => {
                    let items = self.list_library(scope, known.index.as_ref(), None).await?;
                    Ok::<_, Error>((items, None))
                }
                None => {
                    let mut lister = Lister::new(scope.directory.prefix(), Depth::All);
                    let first = lister.next(self.store()).await.map_err(|e| during(e, scope))?;
                    Ok((Vec::new(), Some((lister, first.unwrap_or_default()))))
                }
            }
        };
        let (index, listed) = tokio::join!(self.ask_index(scope, known.clone()), listed);
        let mut index = index?;
        let listed = match listed? {
            (items, None) => items,
            (_, Some(first)) => self.list_library(scope, index_of(&index), Some(first)).await?,
        };
        // Whoever writes the first index of a library waits so long before it changes anything in it.
        if index_of(&index).is_none() && began.elapsed() > FIRST_INDEX {
            index = self.ask_index(scope, index).await?;
        }
        let mut listing = LayerListing::of(&scope.top, listed);
        let mut proven = false;
        // The very same as before was looked at before.
        let prior = prior.filter(|prior| etag_of(&prior.layer.index) == etag_of(&index));
        if let Some(prior) = prior.filter(|prior| prior.layer.proven) {
            let shown = Layer::of(listing.clone(), &index, &below, true);
            if shown.listing == prior.layer.listing {
                return Ok(prior.layer.clone());
            }
        }
        let mut known_before = known.is_some() && etag_of(&known) == etag_of(&index);
        for round in 0.. {
            if agree(&listing, &index, &below) {
                break;
            }
            if round == ROUNDS {
                // Of what was published, the blobs tell. Of the rest nobody could say what moment it is of.
                if unpublished_differs(&listing, &index, &below) {
                    return Err(keeps_changing(scope));
                }
                break;
            }
            if known_before {
                let now = self.ask_index(scope, index.clone()).await?;
                if etag_of(&now) == etag_of(&index) {
                    // It was the same all the time: somebody changed the library by hand.
                    proven = true;
                    break;
                }
                index = now;
            }
            known_before = true;
            let items = self.list_library(scope, index_of(&index), None).await?;
            listing = LayerListing::of(&scope.top, items);
        }
        let layer = Layer::of(listing, &index, &below, proven);
        Ok(match prior.filter(|prior| prior.layer.listing == layer.listing && !prior.layer.proven) {
            Some(prior) if etag_of(&prior.layer.index) == etag_of(&layer.index) => prior.layer.clone(),
            _ => Arc::new(layer),
        })
    }

    /// All that lies in a scope. Where an index tells its keys, the pages are asked for at once.
    async fn list_library(
        &self,
        scope: &Scope,
        index: Option<&Index>,
        first: Option<(Lister, Vec<Listed>)>,
    ) -> Result<Vec<Listed>> {
        let prefix = scope.directory.prefix();
        let top = scope.top.prefix().as_str();
        let below = prefix.as_str().strip_prefix(top).unwrap_or_default();
        let (mut items, lister, behind) = match first {
            Some((lister, items)) if lister.is_done() => return Ok(items),
            Some((lister, items)) => {
                let behind = items.last().and_then(|item| item.key().strip_prefix(top)).map(str::to_owned);
                (items, Some(lister), behind)
            }
            None => (Vec::new(), None, None),
        };
        let behind = behind.unwrap_or_default();
        let cuts: Vec<&str> = index.into_iter().flat_map(|index| index.cuts(below, &behind)).collect();
        if let Some(lister) = lister.filter(|_| cuts.is_empty()) {
            items.extend(self.drain(scope, lister).await?);
            return Ok(items);
        }
        let mut after = (!behind.is_empty()).then(|| format!("{top}{behind}"));
        let mut parts = Vec::new();
        for until in cuts.into_iter().map(|cut| Some(format!("{top}{cut}"))).chain([None]) {
            let lister = Lister::new(prefix, Depth::All).between(after, until.clone());
            parts.push(self.drain(scope, lister));
            after = until;
        }
        items.extend(try_join_all(parts).await?.into_iter().flatten());
        Ok(items)
    }

    async fn drain(&self, scope: &Scope, mut lister: Lister) -> Result<Vec<Listed>> {
        let mut all = Vec::new();
        while let Some(items) = lister.next(self.store()).await.map_err(|e| during(e, scope))? {
            all.extend(items);
        }
        Ok(all)
    }

    fn recall_index(&self, scope: &Scope) -> Option<Arc<KnownIndex>> {
        self.cache().recall::<KnownIndex>(scope.index.as_str()).map(|kept| kept.value)
    }

    /// The index of a library, unless it is the one that is known. One request.
    async fn ask_index(
        &self,
        scope: &Scope,
        known: Option<Arc<KnownIndex>>,
    ) -> Result<Option<Arc<KnownIndex>>> {
        let mut tries = 1;
        loop {
            match self.ask_index_once(scope, known.clone()).await {
                // Written while it was being read.
                Err(error) if error.kind() == ErrorKind::Conflict && tries < ATTEMPTS => tries += 1,
                done => return done,
            }
        }
    }

    async fn ask_index_once(
        &self,
        scope: &Scope,
        known: Option<Arc<KnownIndex>>,
    ) -> Result<Option<Arc<KnownIndex>>> {
        let key = &scope.index;
        let asked = (self.cache().epoch(key.as_str()), Instant::now());
        let expect = known.as_ref().map_or(Expect::Any, |known| Expect::Not(&known.etag));
        let whole = ByteRange { start: 0, end: None };
        let (meta, mut body) = match self.store().get(key, whole, expect).await {
            Ok(Fetched::Found { meta, body, .. }) => (meta, body),
            Ok(Fetched::Unchanged) => return Ok(known),
            Ok(Fetched::Missing | Fetched::BehindTheEnd | Fetched::Changed) => return Ok(None),
            // A session may be allowed to see its skills and not what lies beside them. Any other failure is one:
            // without the index nobody could tell what is being published.
            Err(error) if error.is_forbidden() => {
                tracing::warn!(key = key.as_str(), "the catalogue index cannot be read: {error}");
                return Ok(None);
            }
            Err(error) => return Err(during(error, scope)),
        };
        let Some(etag) = meta.etag else { return Ok(None) };
        let index = if meta.size > MAX_BYTES {
            Err(format!("it has {} bytes, and {MAX_BYTES} are read", meta.size))
        } else {
            let mut bytes = Vec::new();
            match body.collect(self.store(), &mut bytes).await {
                Ok(()) => parse(bytes).await,
                Err(error) => return Err(during(error, scope)),
            }
        };
        let index = index
            .inspect_err(|why| tracing::warn!(key = key.as_str(), "the catalogue index is of no use: {why}"))
            .ok();
        let weight = index.as_ref().map_or(100, Index::weight);
        let known = Arc::new(KnownIndex { etag, index });
        let owner = self.store.tenant().owner_of(key.as_str());
        self.cache().keep(key.as_str(), &owner, asked, known.clone(), weight);
        Ok(Some(known))
    }

    /// The same session, whose `/skills` stays as it is now, whatever is published meanwhile: for one turn of an
    /// agent, which reads a skill and its files one after the other.
    ///
    /// The files of a published skill are read from its release, to the end. A skill that was put there by
    /// hand answers [`ErrorKind::Conflict`] once the file that was seen is gone.
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
    /// It says nothing by itself; two that are equal mean the same catalogue. No skill is read: costs one
    /// listing and one request for the index of each library, and none while they are known.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) when the session has no `/skills`.
    pub async fn catalogue_version(&self) -> Result<String> {
        Ok(self.union(&VirtualPath::top_level("skills")).await?.version(self))
    }
}

async fn parse(bytes: Vec<u8>) -> Result<Index, String> {
    if bytes.len() < LARGE_INDEX {
        return Index::parse(&bytes);
    }
    tokio::task::spawn_blocking(move || Index::parse(&bytes)).await.unwrap_or_else(|e| Err(e.to_string()))
}

fn index_of(known: &Option<Arc<KnownIndex>>) -> Option<&Index> {
    known.as_ref()?.index.as_ref()
}

fn etag_of(known: &Option<Arc<KnownIndex>>) -> Option<&str> {
    known.as_ref().map(|known| known.etag.as_str())
}

fn keeps_changing(scope: &Scope) -> Error {
    let path = scope.directory.path();
    Error::new(ErrorKind::Conflict, format!("`{path}` keeps changing while it is being listed"))
        .at(path)
        .with_hint("try again in a moment")
}

fn during(error: Error, scope: &Scope) -> Error {
    error.during("list", scope.directory.path())
}
