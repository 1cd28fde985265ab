//! The cache of a process: one budget, shared by all tenants and fair to each.
//!
//! In standard terms: a size-bounded read-through cache with single flight, refresh-ahead, epoch invalidation and
//! CLOCK eviction per tenant. [`TenantCache::get`] is the one way in; it looks up, and fetches where it must:
//!
//! - **Key** ([`key`]): what an entry is about (an object, a prefix, libraries) and what it holds (a type). Never text
//!   that somebody takes apart.
//! - **Access** ([`access`]): with a role, a session sees an entry only when S3 has let its own credentials do what
//!   made the entry.
//! - **Epochs** ([`epochs`]): a write by this process invalidates what was fetched before it, also what is on its way.
//! - **Single flight** ([`single_flight`]): callers with the same key and the same credentials share one fetch.
//! - **Refresh-ahead**: a hit in the second half of its life is refreshed behind the answer.
//! - **Eviction** ([`eviction`]): the tenant that holds most gives up what it has not used for longest.
//!
//! Invariants: the budget is never exceeded; an entry from before a change is never served after it; a caller is
//! never given something older than it accepts; no session sees what S3 would refuse it. The parts are pure and have
//! table tests, and `model` runs them under shuttle.

mod access;
mod epochs;
mod eviction;
mod key;
#[cfg(test)]
mod model;
mod single_flight;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryFutureExt};
use serde::Serialize;

pub(crate) use self::access::{Credentials, Evidence, Need, Passed};
use self::epochs::{Epoch, Epochs};
use self::eviction::Entries;
use self::key::Id;
pub(crate) use self::key::{About, Accept, Cached, Detail, Kept, Key, LibraryPrefixes};
use self::single_flight::{Boarding, SingleFlight};
use crate::ambient::Instant;
use crate::error::{Error, Result};
use crate::mount::Tenant;

/// The primitives that `epochs`, `eviction` and `single_flight` are built on; `model` has shuttle's.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub(super) use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
}

/// What an entry takes besides its value.
const ENTRY_BYTES: u64 = 600;
/// No entry takes more than this part of the budget.
const LARGEST_PART: u64 = 2;

/// How often something was known, and what is held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CacheCounts {
    /// Answers that needed no request.
    pub hits: u64,
    /// Answers that needed one.
    pub misses: u64,
    /// Callers that waited for the request of another.
    pub joined: u64,
    /// Entries that were refreshed before they were too old, behind an answer that was given.
    pub refreshed: u64,
    /// Entries that had to go to make room.
    pub evictions: u64,
    /// Entries that are held.
    pub entries: u64,
    /// What they take, in bytes.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct CacheCounters {
    hits: AtomicU64,
    misses: AtomicU64,
    joined: AtomicU64,
    refreshed: AtomicU64,
    evictions: AtomicU64,
}

fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// What the map holds.
struct CacheEntry {
    value: Arc<dyn Any + Send + Sync>,
    since: Instant,
    epoch: Epoch,
    needs: Box<[Need]>,
}

/// What a flight brings.
type Landing = Result<Kept<dyn Any + Send + Sync>, Arc<Error>>;

/// Which flight: for an entry, a kind of fetch, and a set of credentials.
#[derive(Clone, PartialEq, Eq, Hash)]
struct FlightId {
    entry: Id,
    fetches: Detail,
    credentials: Option<[u8; 16]>,
}

/// The cache of a process.
pub(crate) struct Cache {
    entries: Entries<Id, Tenant, CacheEntry>,
    epochs: Epochs,
    flights: SingleFlight<FlightId, Landing>,
    counts: CacheCounters,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Cache {
    /// Holds up to so many bytes; none with zero.
    pub(crate) fn new(budget: u64) -> Self {
        Self {
            entries: Entries::new(budget),
            epochs: Epochs::new(),
            flights: SingleFlight::new(),
            counts: CacheCounters::default(),
        }
    }

    /// The largest value that is kept, in bytes.
    pub(crate) fn largest(&self) -> u64 {
        // As weighed: see `TenantCache::keep`.
        (self.entries.budget() / LARGEST_PART).saturating_sub(ENTRY_BYTES) / 6 * 5
    }

    pub(crate) fn counts(&self) -> CacheCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (entries, bytes) = self.entries.held();
        let CacheCounters { hits, misses, joined, refreshed, evictions } = &self.counts;
        CacheCounts {
            hits: read(hits),
            misses: read(misses),
            joined: read(joined),
            refreshed: read(refreshed),
            evictions: read(evictions),
            entries,
            bytes,
        }
    }

    /// This process has written or deleted an object.
    pub(crate) fn changed_object(&self, key: &str) {
        self.epochs.advance_object(key);
    }

    fn epoch(&self, about: &About) -> Epoch {
        self.epochs.of(about.places())
    }
}

/// When something was asked for, and what this process had changed by then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    epoch: Epoch,
    since: Instant,
}

/// The cache as one session sees it.
#[derive(Debug, Clone)]
pub(crate) struct TenantCache {
    cache: Arc<Cache>,
    tenant: Tenant,
    /// The session's own; `None` where requests go with those of the process.
    credentials: Option<Arc<dyn Credentials>>,
}

impl TenantCache {
    pub(crate) fn new(cache: Arc<Cache>, tenant: Tenant, credentials: Option<Arc<dyn Credentials>>) -> Self {
        Self { cache, tenant, credentials }
    }

    /// A value that is acceptable: one that is known, or one that `fetch` finds, once for all who want it now.
    ///
    /// `fetch` is given what is known, however old it is: it may still save work.
    pub(crate) async fn get<T, F>(
        &self,
        key: &Key<T>,
        accept: Accept<impl Fn(&T) -> bool>,
        fetch: impl FnOnce(Option<Kept<T>>) -> F,
    ) -> Result<Kept<T>>
    where
        T: Cached,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let Accept { bound, fetches, usable, refresh } = accept;
        let known = self.peek(key);
        if let Some(known) = known.as_ref().filter(|known| usable(&known.value)) {
            let age = known.since.elapsed();
            if age < bound {
                count(&self.cache.counts.hits, 1);
                if refresh && age > bound / 2 {
                    self.refresh_ahead(key, bound, fetches, known.clone(), fetch);
                }
                return Ok(known.clone());
            }
        }
        self.board(key, bound, fetches, || fetch(known)).await
    }

    /// What is known, however old it is.
    pub(crate) fn peek<T: Cached>(&self, key: &Key<T>) -> Option<Kept<T>> {
        let slot = self.cache.entries.get(&key.id)?;
        let entry = &slot.value;
        if entry.epoch != self.cache.epoch(&key.id.about) || !self.may_see(&key.id.about, &entry.needs) {
            return None;
        }
        Some(Kept { value: entry.value.clone().downcast().ok()?, since: entry.since })
    }

    /// What is known and belongs to a version that the caller knows to be current: a hit, whatever its age.
    pub(crate) fn hit<T: Cached>(&self, key: &Key<T>, is_current: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let known = self.peek(key)?.value;
        if !is_current(&known) {
            return None;
        }
        count(&self.cache.counts.hits, 1);
        Some(known)
    }

    /// To be taken before something is asked for outside of [`TenantCache::get`].
    pub(crate) fn moment<T>(&self, key: &Key<T>) -> Moment {
        Moment { epoch: self.cache.epoch(&key.id.about), since: Instant::now() }
    }

    /// Keeps something that was asked for then.
    pub(crate) fn put<T: Cached>(&self, key: &Key<T>, moment: Moment, value: impl Into<Arc<T>>) {
        self.keep(key, moment.epoch, &Kept { value: value.into(), since: moment.since });
    }

    /// Whether this session may see an entry that was made by such requests.
    fn may_see(&self, about: &About, needs: &[Need]) -> bool {
        let Some(credentials) = &self.credentials else { return true };
        let Some(place) = about.places().next() else { return false };
        credentials.evidence(place).is_some_and(|evidence| evidence.shows(needs.iter()))
    }

    /// Refreshes an entry behind an answer that was given, unless somebody does already.
    fn refresh_ahead<T, F>(
        &self,
        key: &Key<T>,
        bound: Duration,
        fetches: Detail,
        known: Kept<T>,
        fetch: impl FnOnce(Option<Kept<T>>) -> F,
    ) where
        T: Cached,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.cache.flights.is_flying(&self.flight(key, fetches.clone()), self.cache.epoch(&key.id.about)) {
            return;
        }
        count(&self.cache.counts.refreshed, 1);
        let flight = self.board(key, bound, fetches, || fetch(Some(known)));
        runtime.spawn(flight.map(|landed| {
            if let Err(error) = landed {
                tracing::debug!("cannot refresh an entry: {}", error.message());
            }
        }));
    }

    /// A flight that fetches a value and keeps it: a new one, or one that others wait for already.
    fn board<T, F>(
        &self,
        key: &Key<T>,
        bound: Duration,
        fetches: Detail,
        fetch: impl FnOnce() -> F,
    ) -> BoxFuture<'static, Result<Kept<T>>>
    where
        T: Cached,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let epoch = self.cache.epoch(&key.id.about);
        let start = || {
            count(&self.cache.counts.misses, 1);
            let (cache, key, since) = (self.clone(), key.clone(), Instant::now());
            fetch().map_ok(move |value| {
                let since = value.as_of().unwrap_or(since);
                let kept = Kept { value: cache.shared(&key, value), since };
                cache.keep(&key, epoch, &kept);
                kept
            })
        };
        if bound.is_zero() {
            return start().boxed();
        }
        let start = || start().map_ok(Kept::erased).map_err(Arc::new).boxed();
        let flight = self.flight(key, fetches);
        let Boarding { landing, own } = self.cache.flights.board(&flight, epoch, bound, Result::is_ok, start);
        if own.is_none() {
            count(&self.cache.counts.joined, 1);
        }
        let cache = self.cache.clone();
        let landed = landing.map(move |landed| {
            if let Some(number) = own {
                cache.flights.landed(&flight, number);
            }
            landed.map_err(|error| Error::shared(&error)).and_then(Kept::typed)
        });
        landed.boxed()
    }

    /// The value that is held, where a fetch brought the same: also one that this session could not see before.
    fn shared<T: Cached>(&self, key: &Key<T>, value: T) -> Arc<T> {
        let held =
            self.cache.entries.get(&key.id).and_then(|slot| slot.value.value.clone().downcast::<T>().ok());
        held.filter(|held| value.is_same(held)).unwrap_or_else(|| Arc::new(value))
    }

    fn flight<T>(&self, key: &Key<T>, fetches: Detail) -> FlightId {
        let place = key.id.about.places().next().unwrap_or_default();
        let credentials = self.credentials.as_ref().map(|credentials| credentials.id(place));
        FlightId { entry: key.id.clone(), fetches, credentials }
    }

    /// Keeps a value that was fetched when the places it is about were in this epoch.
    fn keep<T: Cached>(&self, key: &Key<T>, epoch: Epoch, kept: &Kept<T>) {
        let Some(bytes) = kept.value.weight().filter(|bytes| *bytes <= self.cache.largest()) else { return };
        let needs = key.id.about.needs(&kept.value.plain_layers());
        if epoch != self.cache.epoch(&key.id.about) || !self.may_see(&key.id.about, &needs) {
            return;
        }
        // Allocators round up and leave gaps: what is held takes a quarter more, as measured.
        let weight = bytes + bytes / 4 + ENTRY_BYTES;
        let since = kept.since;
        let entry = CacheEntry { value: kept.value.clone(), since, epoch, needs };
        // Whichever comes first, what was asked for later is newer.
        let is_newer = |known: &CacheEntry| known.epoch == epoch && known.since > since;
        let owner = self.owner(&key.id.about);
        let evicted = self.cache.entries.insert(key.id.clone(), owner, weight, entry, is_newer);
        count(&self.cache.counts.evictions, evicted);
    }

    /// Whose part of the budget an entry takes: what is known of a shared library alone is the library's.
    fn owner(&self, about: &About) -> Tenant {
        let mut places = about.places();
        match (places.next(), places.next()) {
            (Some(place), None) => self.tenant.owner_of(place),
            _ => self.tenant.clone(),
        }
    }

    /// Something has changed that is about this place, without a write by this session.
    pub(crate) fn changed(&self, place: &str) {
        self.cache.epochs.advance(place);
    }

    pub(crate) fn changed_object(&self, key: &str) {
        self.cache.changed_object(key);
    }

    pub(crate) fn largest(&self) -> u64 {
        self.cache.largest()
    }
}
