//! A size-bounded read-through cache with single flight, refresh-ahead, epoch invalidation and CLOCK eviction per
//! tenant. There is one per process, and all tenants share its budget.
//!
//! [`TenantCache::get`] is the entry point: it looks up a value and fetches it on a miss.
//!
//! - **Keys** ([`key`]): what an entry is about (an object, a prefix, libraries) and the type of its value. Keys are
//!   compared, never parsed.
//! - **Access** ([`access`]): with a role, a session sees an entry only if S3 has allowed the session's credentials to
//!   do what produced the entry.
//! - **Epochs** ([`epochs`]): a write by this process invalidates everything fetched before it, including fetches in
//!   flight.
//! - **Single flight** ([`single_flight`]): callers with the same key and the same credentials share one fetch.
//! - **Refresh-ahead**: a hit in the second half of its lifetime is refreshed in the background.
//! - **Eviction** ([`eviction`]): the tenant with the most bytes loses its least recently used entries.
//!
//! Invariants:
//!
//! - The budget is never exceeded.
//! - An entry from before a change by this process is never served after it.
//! - A caller never gets a value older than it accepts.
//! - No session sees what S3 would deny it.
//!
//! The parts have table tests, and `model` runs the concurrent ones under shuttle. `tests/mutants` checks that mistakes
//! in keys and access rules fail a test.

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
use self::single_flight::{Joined, SingleFlight};
use crate::ambient::Instant;
use crate::error::{Error, Result};
use crate::mount::Tenant;

/// The synchronization primitives of `epochs`, `eviction` and `single_flight`. `model` substitutes shuttle's.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub(super) use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
}

/// The overhead of an entry in bytes, in addition to its value.
const ENTRY_BYTES: u64 = 600;
/// No entry is larger than the budget divided by this.
const MAX_ENTRY_DIVISOR: u64 = 2;

/// Statistics of the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CacheCounts {
    /// Lookups that were served from the cache.
    pub hits: u64,
    /// Fetches that were started because there was no usable entry.
    pub misses: u64,
    /// Callers that joined a fetch already in flight.
    pub joined: u64,
    /// Entries that were refreshed in the background before they expired.
    pub refreshed: u64,
    /// Entries that were evicted to stay within the budget.
    pub evictions: u64,
    /// The current number of entries.
    pub entries: u64,
    /// The current size of all entries in bytes.
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

/// A type-erased entry.
struct CacheEntry {
    value: Arc<dyn Any + Send + Sync>,
    since: Instant,
    epoch: Epoch,
    needs: Box<[Need]>,
}

/// The result of a shared fetch.
type FlightResult = Result<Kept<dyn Any + Send + Sync>, Arc<Error>>;

/// Identifies a shared fetch: the entry, the kind of fetch, and the credentials.
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
    flights: SingleFlight<FlightId, FlightResult>,
    counts: CacheCounters,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Cache {
    /// Creates a cache with a budget in bytes. A budget of zero disables caching.
    pub(crate) fn new(budget: u64) -> Self {
        Self {
            entries: Entries::new(budget),
            epochs: Epochs::new(),
            flights: SingleFlight::new(),
            counts: CacheCounters::default(),
        }
    }

    /// The size of the largest value that is cached, in bytes.
    pub(crate) fn largest(&self) -> u64 {
        // The inverse of the weight in `TenantCache::keep`.
        (self.entries.budget() / MAX_ENTRY_DIVISOR).saturating_sub(ENTRY_BYTES) / 6 * 5
    }

    pub(crate) fn counts(&self) -> CacheCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (entries, bytes) = self.entries.usage();
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

    /// Invalidates what is cached about an object that this process has written or deleted.
    pub(crate) fn changed_object(&self, key: &str) {
        self.epochs.advance_object(key);
    }

    fn epoch(&self, about: &About) -> Epoch {
        self.epochs.of(about.places())
    }
}

/// The time and the epoch at which a fetch started.
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
    /// The session's credentials; `None` if requests use those of the process.
    credentials: Option<Arc<dyn Credentials>>,
}

impl TenantCache {
    pub(crate) fn new(cache: Arc<Cache>, tenant: Tenant, credentials: Option<Arc<dyn Credentials>>) -> Self {
        Self { cache, tenant, credentials }
    }

    /// Returns a cached value that is acceptable, or fetches one. Concurrent callers share the fetch.
    ///
    /// `fetch` gets the cached value even if it is too old, for example to send a conditional request.
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
        let cached = self.peek(key);
        if let Some(cached) = cached.as_ref().filter(|cached| usable(&cached.value)) {
            let age = cached.since.elapsed();
            if age < bound {
                count(&self.cache.counts.hits, 1);
                if refresh && age > bound / 2 {
                    self.refresh_ahead(key, bound, fetches, cached.clone(), fetch);
                }
                return Ok(cached.clone());
            }
        }
        self.join_or_fetch(key, bound, fetches, || fetch(cached)).await
    }

    /// Returns the cached value that this session may see, regardless of its age.
    pub(crate) fn peek<T: Cached>(&self, key: &Key<T>) -> Option<Kept<T>> {
        let slot = self.cache.entries.get(&key.id)?;
        let entry = &slot.value;
        if entry.epoch != self.cache.epoch(&key.id.about) || !self.may_see(&key.id.about, &entry.needs) {
            return None;
        }
        Some(Kept { value: entry.value.clone().downcast().ok()?, since: entry.since })
    }

    /// Returns the cached value if it belongs to a version that the caller knows to be current, regardless of its age.
    /// Counts as a hit.
    pub(crate) fn hit<T: Cached>(&self, key: &Key<T>, is_current: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let cached = self.peek(key)?.value;
        if !is_current(&cached) {
            return None;
        }
        count(&self.cache.counts.hits, 1);
        Some(cached)
    }

    /// Returns the current time and epoch. Call it before a fetch outside of [`TenantCache::get`].
    pub(crate) fn moment<T>(&self, key: &Key<T>) -> Moment {
        Moment { epoch: self.cache.epoch(&key.id.about), since: Instant::now() }
    }

    /// Caches a value whose fetch started at `moment`.
    pub(crate) fn put<T: Cached>(&self, key: &Key<T>, moment: Moment, value: impl Into<Arc<T>>) {
        self.keep(key, moment.epoch, &Kept { value: value.into(), since: moment.since });
    }

    /// Returns whether this session may see an entry with these needs.
    fn may_see(&self, about: &About, needs: &[Need]) -> bool {
        let Some(credentials) = &self.credentials else { return true };
        let Some(place) = about.places().next() else { return false };
        credentials.evidence(place).is_some_and(|evidence| evidence.shows(needs.iter()))
    }

    /// Refreshes an entry in the background, unless a fetch is already in flight.
    fn refresh_ahead<T, F>(
        &self,
        key: &Key<T>,
        bound: Duration,
        fetches: Detail,
        cached: Kept<T>,
        fetch: impl FnOnce(Option<Kept<T>>) -> F,
    ) where
        T: Cached,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self
            .cache
            .flights
            .is_in_flight(&self.flight(key, fetches.clone()), self.cache.epoch(&key.id.about))
        {
            return;
        }
        count(&self.cache.counts.refreshed, 1);
        let flight = self.join_or_fetch(key, bound, fetches, || fetch(Some(cached)));
        runtime.spawn(flight.map(|result| {
            if let Err(error) = result {
                tracing::debug!("cannot refresh an entry: {}", error.message());
            }
        }));
    }

    /// Joins the fetch in flight for this key, or starts one that caches its value.
    fn join_or_fetch<T, F>(
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
                let kept = Kept { value: cache.deduplicated(&key, value), since };
                cache.keep(&key, epoch, &kept);
                kept
            })
        };
        if bound.is_zero() {
            return start().boxed();
        }
        let start = || start().map_ok(Kept::erased).map_err(Arc::new).boxed();
        let flight = self.flight(key, fetches);
        let Joined { future, started } =
            self.cache.flights.join_or_start(&flight, epoch, bound, Result::is_ok, start);
        if started.is_none() {
            count(&self.cache.counts.joined, 1);
        }
        let cache = self.cache.clone();
        let future = future.map(move |result| {
            if let Some(number) = started {
                cache.flights.finish(&flight, number);
            }
            result.map_err(|error| Error::shared(&error)).and_then(Kept::typed)
        });
        future.boxed()
    }

    /// Returns the cached value if the fetched one is equal, and otherwise the fetched one. The session has just fetched
    /// the same content, so its access to the cached value need not be checked.
    fn deduplicated<T: Cached>(&self, key: &Key<T>, value: T) -> Arc<T> {
        let cached =
            self.cache.entries.get(&key.id).and_then(|slot| slot.value.value.clone().downcast::<T>().ok());
        cached.filter(|cached| value.is_same(cached)).unwrap_or_else(|| Arc::new(value))
    }

    fn flight<T>(&self, key: &Key<T>, fetches: Detail) -> FlightId {
        let place = key.id.about.places().next().unwrap_or_default();
        let credentials = self.credentials.as_ref().map(|credentials| credentials.id(place));
        FlightId { entry: key.id.clone(), fetches, credentials }
    }

    /// Caches a value whose fetch started in this epoch.
    fn keep<T: Cached>(&self, key: &Key<T>, epoch: Epoch, kept: &Kept<T>) {
        let Some(bytes) = kept.value.weight().filter(|bytes| *bytes <= self.cache.largest()) else { return };
        let needs = key.id.about.needs(&kept.value.plain_layers());
        if epoch != self.cache.epoch(&key.id.about) || !self.may_see(&key.id.about, &needs) {
            return;
        }
        // Measured: allocator rounding and fragmentation add a quarter.
        let weight = bytes + bytes / 4 + ENTRY_BYTES;
        let since = kept.since;
        let entry = CacheEntry { value: kept.value.clone(), since, epoch, needs };
        // Fetches may finish out of order: the one that started later is newer.
        let is_newer = |cached: &CacheEntry| cached.epoch == epoch && cached.since > since;
        let owner = self.owner(&key.id.about);
        let evicted = self.cache.entries.insert(key.id.clone(), owner, weight, entry, is_newer);
        count(&self.cache.counts.evictions, evicted);
    }

    /// The tenant whose share of the budget an entry counts against. An entry about a single shared library belongs to
    /// the library.
    fn owner(&self, about: &About) -> Tenant {
        let mut places = about.places();
        match (places.next(), places.next()) {
            (Some(place), None) => self.tenant.owner_of(place),
            _ => self.tenant.clone(),
        }
    }

    /// Invalidates what is cached about this place, for changes that are not writes of this session.
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
