//! What is remembered: one budget for the process, a share for each tenant, and one request for all who
//! ask for the same at once.
//!
//! It holds anything, by name, and knows nothing of what it holds. Whoever looks something up says how old
//! it may be.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use moka::notification::RemovalCause;
use moka::policy::EvictionPolicy;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::mount::Tenant;

/// What an entry takes besides its name and its value.
const ENTRY_BYTES: u64 = 500;
/// Nothing takes more than this part of the budget.
const LARGEST_PART: u64 = 2;
/// moka lets go of what is too much in batches; so much of the budget may wait for it.
const WAITING_PART: u64 = 64;
/// Names whose changes are told apart. Two that fall together forget more than they must.
const EPOCHS: usize = 16 * 1024;
/// Flights that nobody waits for may be so many.
const LEAST_SWEPT: usize = 1024;

/// The name of all that lies below a prefix; the prefix itself is the name of one level. No path has a
/// control character, so no name means two things.
pub(crate) fn all_below(prefix: &str) -> String {
    format!("{prefix}\u{1}")
}

/// How often something was known, and what is held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CacheCounts {
    /// Answers that needed no request.
    pub hits: u64,
    /// Answers that needed one.
    pub misses: u64,
    /// Questions that waited for the request of another.
    pub joined: u64,
    /// Times that something was asked for anew before it was too old, behind an answer that was given.
    pub refreshed: u64,
    /// What had to go to make room.
    pub evictions: u64,
    /// What is held.
    pub entries: u64,
    /// What it takes, in bytes.
    pub bytes: u64,
}

/// When a name was changed last, by this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch(u64);

/// Something that was remembered, and since when it is known to be so.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    pub(crate) value: Arc<T>,
    pub(crate) since: Instant,
}

/// What a question found.
#[derive(Debug)]
pub(crate) enum Lookup<T> {
    /// It is as new as it must be. When it is getting old, it is time to ask again.
    Hit { value: Arc<T>, aging: bool },
    /// It must be asked for. What was known may still save work.
    Miss(Option<Kept<T>>),
}

/// What moka holds. The value itself is held by [`Holdings`], which lets go of it at once: moka's own garbage
/// may wait for a while.
#[derive(Clone)]
struct Entry(Weak<Inner>);

struct Inner {
    value: Arc<dyn Any + Send + Sync>,
    since: Instant,
    epoch: Epoch,
    weight: u64,
    owner: Tenant,
    /// Its place among what its owner holds.
    number: AtomicU64,
    /// Whether it was used since it was last considered.
    used: AtomicBool,
}

/// The memory of a process.
pub(crate) struct Cache {
    kept: moka::sync::Cache<Arc<str>, Entry>,
    budget: u64,
    holdings: Arc<Holdings>,
    epochs: Box<[AtomicU64]>,
    hasher: RandomState,
    next: AtomicU64,
    /// Bytes that moka has not weighed yet.
    waiting: AtomicU64,
    counts: Counters,
    flights: Mutex<HashMap<Arc<str>, Flight>>,
    /// With so many flights, those that nobody waits for go.
    sweep: AtomicUsize,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (budget, counts) = (self.budget, self.counts());
        f.debug_struct("Cache").field("budget", &budget).field("counts", &counts).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    joined: AtomicU64,
    refreshed: AtomicU64,
}

/// Who holds what.
///
/// When all together hold too much, the tenant that holds most lets go of what it has had longest and did not use
/// since: so nobody can push out what others have, unless they have more.
#[derive(Default)]
struct Holdings {
    state: Mutex<Held>,
    evictions: AtomicU64,
}

#[derive(Default)]
struct Held {
    bytes: u64,
    entries: u64,
    next: u64,
    tenants: HashMap<Tenant, Holding>,
    /// By what they hold, the least first.
    ranking: BTreeSet<(u64, Tenant)>,
}

#[derive(Default)]
struct Holding {
    bytes: u64,
    /// The oldest first.
    entries: BTreeMap<u64, (Arc<str>, Arc<Inner>)>,
}

impl Held {
    /// Changes what a tenant holds.
    fn change(&mut self, owner: &Tenant, bytes: u64, more: bool, change: impl FnOnce(&mut Holding)) {
        let holding = self.tenants.entry(owner.clone()).or_default();
        self.ranking.remove(&(holding.bytes, owner.clone()));
        change(holding);
        if more {
            (holding.bytes, self.bytes, self.entries) =
                (holding.bytes + bytes, self.bytes + bytes, self.entries + 1);
        } else {
            (holding.bytes, self.bytes, self.entries) =
                (holding.bytes - bytes, self.bytes - bytes, self.entries - 1);
        }
        if holding.entries.is_empty() {
            self.tenants.remove(owner);
        } else {
            self.ranking.insert((holding.bytes, owner.clone()));
        }
    }

    fn add(&mut self, name: Arc<str>, entry: &Arc<Inner>) {
        let number = self.next;
        self.next += 1;
        entry.number.store(number, Ordering::Relaxed);
        let kept = entry.clone();
        self.change(&entry.owner, entry.weight, true, |holding| {
            holding.entries.insert(number, (name, kept));
        });
    }

    /// Takes an entry out, if it is in.
    fn remove(&mut self, entry: &Inner) -> bool {
        let number = entry.number.load(Ordering::Relaxed);
        let held = self.tenants.get(&entry.owner).and_then(|holding| holding.entries.get(&number));
        if held.is_none_or(|(_, held)| !std::ptr::eq(Arc::as_ptr(held), entry)) {
            return false;
        }
        self.change(&entry.owner, entry.weight, false, |holding| {
            holding.entries.remove(&number);
        });
        true
    }

    /// What has to go.
    fn excess(&mut self, budget: u64) -> Vec<(Arc<str>, Arc<Inner>)> {
        let mut gone = Vec::new();
        while self.bytes > budget {
            let Some((_, heaviest)) = self.ranking.last() else { break };
            let Some(holding) = self.tenants.get(heaviest) else { break };
            let Some((name, entry)) = holding.entries.values().next().cloned() else { break };
            self.remove(&entry);
            // What was used comes behind what was not, once.
            if entry.used.swap(false, Ordering::Relaxed) {
                self.add(name, &entry);
            } else {
                gone.push((name, entry));
            }
        }
        gone
    }
}

impl Holdings {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn let_go(&self, gone: &Entry, cause: RemovalCause) {
        if let Some(gone) = gone.0.upgrade() {
            self.lock().remove(&gone);
        }
        if cause == RemovalCause::Size {
            self.evictions.fetch_add(1, Ordering::Relaxed);
        }
    }
}

type Landing = Result<Arc<dyn Any + Send + Sync>, Arc<Error>>;

/// A request that others wait for, too.
struct Flight {
    landing: WeakShared<BoxFuture<'static, Landing>>,
    started: Instant,
    epoch: Epoch,
    number: u64,
}

impl Cache {
    /// Holds up to so many bytes; none with zero.
    pub(crate) fn new(budget: u64) -> Self {
        let holdings = Arc::new(Holdings::default());
        let listener = holdings.clone();
        let kept = moka::sync::Cache::builder()
            // What goes is chosen by whose it is; this is the last resort.
            .max_capacity(budget.saturating_mul(2))
            .weigher(|_: &Arc<str>, entry: &Entry| {
                entry.0.upgrade().map_or(1, |entry| u32::try_from(entry.weight).unwrap_or(u32::MAX))
            })
            .eviction_policy(EvictionPolicy::lru())
            .eviction_listener(move |_, entry: Entry, cause| listener.let_go(&entry, cause))
            .build();
        Self {
            kept,
            budget,
            holdings,
            epochs: (0..EPOCHS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
            next: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            counts: Counters::default(),
            flights: Mutex::default(),
            sweep: AtomicUsize::new(LEAST_SWEPT),
        }
    }

    /// The largest value that is kept, in bytes.
    pub(crate) fn largest(&self) -> u64 {
        // As weighed: see `keep`.
        (self.budget / LARGEST_PART).saturating_sub(ENTRY_BYTES) / 6 * 5
    }

    pub(crate) fn counts(&self) -> CacheCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let held = self.holdings.lock();
        CacheCounts {
            hits: read(&self.counts.hits),
            misses: read(&self.counts.misses),
            joined: read(&self.counts.joined),
            refreshed: read(&self.counts.refreshed),
            evictions: read(&self.holdings.evictions),
            entries: held.entries,
            bytes: held.bytes,
        }
    }

    /// Names with a control character in them are about the key or the prefix that stands before it, and
    /// change with it.
    fn slot(&self, name: &str) -> &AtomicU64 {
        let of = name.bytes().position(|byte| byte < b' ').map_or(name, |at| &name[..at]);
        let at = self.hasher.hash_one(of) as usize % EPOCHS;
        &self.epochs[at]
    }

    /// To be asked for before something is asked of the storage: it goes with what comes back.
    pub(crate) fn epoch(&self, name: &str) -> Epoch {
        Epoch(self.slot(name).load(Ordering::Acquire))
    }

    /// This process has changed what lies behind a name: all that was asked for before is forgotten, also
    /// what is still on its way.
    pub(crate) fn changed(&self, name: &str) {
        self.slot(name).fetch_add(1, Ordering::AcqRel);
    }

    /// This process has changed an object: what was known of it, of the directories above it and of all
    /// that is listed below them is forgotten.
    pub(crate) fn changed_object(&self, key: &str) {
        // The name without `.md` may have meant this file.
        if let Some(stem) = key.strip_suffix(".md") {
            self.changed(stem);
        }
        // A directory of its own name was not there, or is a file now.
        let own = format!("{key}/");
        for (at, _) in own.match_indices('/') {
            self.changed(&own[..at]);
            self.changed(&own[..=at]);
            self.changed(&all_below(&own[..=at]));
        }
    }

    /// What is remembered, however old.
    pub(crate) fn recall<T: Send + Sync + 'static>(&self, name: &str) -> Option<Kept<T>> {
        if self.budget == 0 {
            return None;
        }
        let entry = self.kept.get(name)?.0.upgrade()?;
        if entry.epoch != self.epoch(name) {
            return None;
        }
        let value = entry.value.clone().downcast::<T>().ok()?;
        // Written only when it changes: all who read share it.
        if !entry.used.load(Ordering::Relaxed) {
            entry.used.store(true, Ordering::Relaxed);
        }
        Some(Kept { value, since: entry.since })
    }

    /// What is remembered and no older than `bound`.
    pub(crate) fn look<T: Send + Sync + 'static>(&self, name: &str, bound: Duration) -> Lookup<T> {
        match self.recall(name) {
            Some(kept) => self.judge(kept, bound),
            None => Lookup::Miss(None),
        }
    }

    /// Whether something that was remembered is new enough.
    pub(crate) fn judge<T>(&self, kept: Kept<T>, bound: Duration) -> Lookup<T> {
        let age = kept.since.elapsed();
        if age < bound {
            self.counts.hits.fetch_add(1, Ordering::Relaxed);
            return Lookup::Hit { value: kept.value, aging: age > bound / 2 };
        }
        Lookup::Miss(Some(kept))
    }

    /// Remembers something that was asked for at `since`, when the name was in this epoch.
    pub(crate) fn keep<T: Send + Sync + 'static>(
        &self,
        name: &str,
        owner: &Tenant,
        (epoch, since): (Epoch, Instant),
        value: Arc<T>,
        bytes: u64,
    ) {
        // Allocators round up and leave gaps: what is held takes a quarter more, as measured.
        let weight = bytes + bytes / 4 + name.len() as u64 + ENTRY_BYTES;
        if self.budget == 0 || bytes > self.largest() || epoch != self.epoch(name) {
            return;
        }
        // What was asked for later is newer, whichever comes first.
        let newer = |kept: Arc<Inner>| kept.epoch == epoch && kept.since > since;
        if self.kept.get(name).and_then(|kept| kept.0.upgrade()).is_some_and(newer) {
            return;
        }
        let name: Arc<str> = name.into();
        let (number, used) = (AtomicU64::new(0), AtomicBool::new(false));
        let entry = Arc::new(Inner { value, since, epoch, weight, owner: owner.clone(), number, used });
        let gone = {
            let mut held = self.holdings.lock();
            held.add(name.clone(), &entry);
            held.excess(self.budget)
        };
        if !gone.iter().any(|(_, gone)| Arc::ptr_eq(gone, &entry)) {
            self.kept.insert(name, Entry(Arc::downgrade(&entry)));
        }
        for (name, gone) in gone {
            self.holdings.evictions.fetch_add(1, Ordering::Relaxed);
            if self.kept.get(&name).is_some_and(|kept| std::ptr::eq(kept.0.as_ptr(), Arc::as_ptr(&gone))) {
                self.kept.invalidate(&name);
            }
        }
        if self.waiting.fetch_add(weight, Ordering::Relaxed) + weight > self.budget / WAITING_PART {
            self.waiting.store(0, Ordering::Relaxed);
            self.kept.run_pending_tasks();
        }
    }

    /// An answer was known, by its version.
    pub(crate) fn hit(&self) {
        self.counts.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Something is about to be asked for in the background.
    pub(crate) fn refreshing(&self) {
        self.counts.refreshed.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether somebody is asking for it.
    pub(crate) fn is_under_way(&self, name: &str) -> bool {
        let flights = self.flights();
        flights.get(name).is_some_and(|flight| {
            flight.epoch == self.epoch(name) && flight.landing.upgrade().is_some_and(|f| f.peek().is_none())
        })
    }

    fn flights(&self) -> MutexGuard<'_, HashMap<Arc<str>, Flight>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks once for all who want the same. Whoever may not see what is older than `bound` joins only a
    /// question that is younger.
    pub(crate) async fn once<T, F>(
        &self,
        name: &str,
        bound: Duration,
        ask: impl FnOnce() -> F,
    ) -> Result<Arc<T>>
    where
        T: Send + Sync + 'static,
        F: Future<Output = Result<Arc<T>>> + Send + 'static,
    {
        if bound.is_zero() {
            self.counts.misses.fetch_add(1, Ordering::Relaxed);
            // Boxed: whoever finds an answer at once would carry the question's future all the same.
            return Box::pin(ask()).await;
        }
        let (landing, number) = self.board(name, bound, ask);
        let landed = landing.await;
        if let Some(number) = number {
            let mut flights = self.flights();
            if flights.get(name).is_some_and(|flight| flight.number == number) {
                flights.remove(name);
            }
        }
        let value = landed.map_err(|error| Error::shared(&error))?;
        value.downcast().map_err(|_| {
            Error::new(crate::error::ErrorKind::Internal, "two questions have the same name").at(name)
        })
    }

    /// The flight to wait for, and its number when it is this caller's own.
    fn board<T, F>(
        &self,
        name: &str,
        bound: Duration,
        ask: impl FnOnce() -> F,
    ) -> (Shared<BoxFuture<'static, Landing>>, Option<u64>)
    where
        T: Send + Sync + 'static,
        F: Future<Output = Result<Arc<T>>> + Send + 'static,
    {
        let epoch = self.epoch(name);
        let mut flights = self.flights();
        if let Some(flight) = flights.get(name)
            && flight.epoch == epoch
            && flight.started.elapsed() < bound
            && let Some(landing) = flight.landing.upgrade()
            // Its failure was told to those who waited; whoever comes now asks anew.
            && landing.peek().is_none_or(Result::is_ok)
        {
            self.counts.joined.fetch_add(1, Ordering::Relaxed);
            return (landing, None);
        }
        // Those that nobody waits for go when there are many.
        if flights.len() >= self.sweep.load(Ordering::Relaxed) {
            flights.retain(|_, flight| flight.landing.upgrade().is_some());
            // So that each is looked at once or twice, however many there are.
            self.sweep.store((2 * flights.len()).max(LEAST_SWEPT), Ordering::Relaxed);
        }
        self.counts.misses.fetch_add(1, Ordering::Relaxed);
        let asked = ask();
        let landing: BoxFuture<'static, Landing> = async move {
            let value: Arc<dyn Any + Send + Sync> = asked.await.map_err(Arc::new)?;
            Ok(value)
        }
        .boxed();
        let landing = landing.shared();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if let Some(weak) = landing.downgrade() {
            flights.insert(name.into(), Flight { landing: weak, started: Instant::now(), epoch, number });
        }
        (landing, Some(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const HOUR: Duration = Duration::from_secs(3600);

    fn put(cache: &Cache, owner: &str, name: &str, bytes: u64) {
        let now = (cache.epoch(name), Instant::now());
        cache.keep(name, &Tenant::named(owner), now, Arc::new(name.to_owned()), bytes);
    }

    fn has(cache: &Cache, name: &str) -> bool {
        cache.recall::<String>(name).is_some()
    }

    #[test]
    fn what_is_older_than_the_bound_is_asked_for_again() {
        let cache = Cache::new(1 << 20);
        put(&cache, "a", "x", 10);
        assert!(matches!(cache.look::<String>("x", HOUR), Lookup::Hit { aging: false, .. }));
        assert!(matches!(cache.look::<String>("x", Duration::ZERO), Lookup::Miss(Some(_))));
        assert!(matches!(cache.look::<String>("y", HOUR), Lookup::Miss(None)));
        // The name means something else.
        assert!(matches!(cache.look::<u32>("x", HOUR), Lookup::Miss(None)));
        let CacheCounts { hits, misses, entries, .. } = cache.counts();
        assert_eq!((hits, misses, entries), (1, 0, 1));
    }

    #[test]
    fn what_was_asked_before_a_change_is_forgotten_also_when_it_comes_later() {
        let cache = Cache::new(1 << 20);
        put(&cache, "a", "x", 10);
        let before = (cache.epoch("x"), Instant::now());
        cache.changed("x");
        assert!(!has(&cache, "x"));
        cache.keep("x", &Tenant::named("a"), before, Arc::new("old".to_owned()), 10);
        assert!(!has(&cache, "x"));
        put(&cache, "a", "x", 10);
        assert!(has(&cache, "x"));
    }

    #[test]
    fn the_budget_holds_and_what_is_held_is_known() {
        let cache = Cache::new(100_000);
        for i in 0..10_000 {
            put(&cache, "a", &format!("{i}"), 1_000);
            assert!(cache.counts().bytes <= 100_000, "{i}");
        }
        put(&cache, "a", "huge", 50_000);
        assert!(!has(&cache, "huge"));
        cache.kept.run_pending_tasks();
        assert_eq!(cache.kept.entry_count(), cache.counts().entries);
        let counts = cache.counts();
        assert!(counts.bytes <= 100_000 && counts.bytes > 90_000, "{counts:?}");
        assert_eq!(counts.entries + counts.evictions, 10_000);
    }

    #[test]
    fn one_tenant_cannot_evict_all_others() {
        let cache = Cache::new(1_000_000);
        for i in 0..20 {
            put(&cache, "small", &format!("small-{i}"), 1_000);
        }
        for i in 0..100_000 {
            put(&cache, "large", &format!("large-{i}"), 1_000);
        }
        assert_eq!((0..20).filter(|i| has(&cache, &format!("small-{i}"))).count(), 20);
        // What nobody else needs, it may have.
        let held = |name: &str| cache.holdings.lock().tenants[&Tenant::named(name)].bytes;
        assert!(held("large") > 900_000);
        // Until others do.
        for i in 0..2_000 {
            put(&cache, "other", &format!("other-{i}"), 1_000);
        }
        assert!(
            held("large") < 500_000 && held("other") < 500_000 && held("small") > 20_000,
            "{}",
            held("large")
        );
        assert!(cache.counts().bytes > 990_000);
        assert_eq!((0..20).filter(|i| has(&cache, &format!("small-{i}"))).count(), 20);
    }

    #[test]
    fn what_is_used_stays() {
        let cache = Cache::new(100_000);
        put(&cache, "a", "hot", 1_000);
        for i in 0..10_000 {
            put(&cache, "a", &format!("{i}"), 1_000);
            assert!(has(&cache, "hot"), "{i}");
        }
    }

    #[tokio::test]
    async fn a_thousand_questions_are_one_and_share_its_error() {
        let cache = Arc::new(Cache::new(1 << 20));
        let asked = Arc::new(AtomicU64::new(0));
        let ask = |fails: bool| {
            let (cache, asked) = (cache.clone(), asked.clone());
            async move {
                let question = move || async move {
                    asked.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    if fails { Err(Error::new(ErrorKind::Timeout, "no")) } else { Ok(Arc::new(7)) }
                };
                cache.once::<i32, _>("x", HOUR, question).await.map(|value| *value)
            }
        };
        let all = futures_util::future::join_all((0..1_000).map(|_| ask(false))).await;
        assert!(all.into_iter().all(|answer| answer.unwrap() == 7));
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        assert_eq!(cache.counts().joined, 999);
        let all = futures_util::future::join_all((0..10).map(|_| ask(true))).await;
        assert!(all.into_iter().all(|answer| answer.unwrap_err().kind() == ErrorKind::Timeout));
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        assert!(cache.flights().is_empty());
    }

    #[tokio::test]
    async fn a_question_from_before_a_change_is_not_joined() {
        let cache = Arc::new(Cache::new(1 << 20));
        let slow = {
            let cache = cache.clone();
            tokio::spawn(async move {
                let ask = || async {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    Ok(Arc::new("old"))
                };
                cache.once::<&str, _>("x", HOUR, ask).await.map(|value| *value)
            })
        };
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        cache.changed("x");
        let new = cache.once::<&str, _>("x", HOUR, || async { Ok(Arc::new("new")) }).await.unwrap();
        assert_eq!(*new, "new");
        assert_eq!(slow.await.unwrap().unwrap(), "old");
        assert!(cache.flights().is_empty());
    }

    #[tokio::test]
    async fn who_goes_away_does_not_take_the_answer_along() {
        let cache = Arc::new(Cache::new(1 << 20));
        let ask = |cache: Arc<Cache>| async move {
            let ask = || async {
                tokio::time::sleep(Duration::from_millis(30)).await;
                Ok(Arc::new(1))
            };
            cache.once::<i32, _>("x", HOUR, ask).await
        };
        let first = tokio::spawn(ask(cache.clone()));
        tokio::time::sleep(Duration::from_millis(5)).await;
        let second = tokio::spawn(ask(cache.clone()));
        tokio::time::sleep(Duration::from_millis(5)).await;
        first.abort();
        assert_eq!(*second.await.unwrap().unwrap(), 1);
    }
}
