//! The entries, and which of them go when they take too much: a budget for the process, shared fairly.
//!
//! Every entry has an owner. When all entries together exceed the budget, the owner that holds most gives up what it
//! has not used for longest, by CLOCK (second chance): so nobody can push out what others have, unless they have more.
//!
//! Lookups take a read lock on one of the shards and set a flag. Inserts take the lock on the holdings, then the
//! lock of a shard, in that order only; so map and holdings never disagree. `super::model` runs this file under
//! shuttle.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, Hash, RandomState};

use hashbrown::HashTable;

use super::sync::{Arc, AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, PoisonError, RwLock};

const SHARDS: usize = 16;

/// One entry.
#[derive(Debug)]
pub(super) struct Slot<O, V> {
    pub(super) value: V,
    pub(super) weight: u64,
    owner: O,
    /// Its place in the order of its owner's entries.
    number: AtomicU64,
    /// Whether it was used since the clock's hand passed it.
    used: AtomicBool,
}

/// With the hash computed once, for the shard and for the table.
type Shard<K, O, V> = RwLock<HashTable<(K, Arc<Slot<O, V>>)>>;

/// Entries by key, each with an owner.
pub(super) struct Entries<K, O, V> {
    shards: Box<[Shard<K, O, V>]>,
    hasher: RandomState,
    holdings: Mutex<Holdings<K, O, V>>,
    budget: u64,
}

/// Who holds what.
struct Holdings<K, O, V> {
    bytes: u64,
    entries: u64,
    next: u64,
    owners: HashMap<O, Holding<K, O, V>>,
    /// By what they hold, the least first.
    ranking: BTreeSet<(u64, O)>,
}

struct Holding<K, O, V> {
    bytes: u64,
    /// The oldest first.
    entries: BTreeMap<u64, (K, Arc<Slot<O, V>>)>,
}

impl<K: Hash + Eq + Clone, O: Hash + Eq + Ord + Clone, V> Entries<K, O, V> {
    /// Holds entries up to so many bytes; none with zero.
    pub(super) fn new(budget: u64) -> Self {
        let holdings =
            Holdings { bytes: 0, entries: 0, next: 0, owners: HashMap::new(), ranking: BTreeSet::new() };
        Self {
            shards: (0..SHARDS).map(|_| RwLock::new(HashTable::new())).collect(),
            hasher: RandomState::new(),
            holdings: Mutex::new(holdings),
            budget,
        }
    }

    pub(super) fn budget(&self) -> u64 {
        self.budget
    }

    /// How many entries there are, and what they weigh.
    pub(super) fn held(&self) -> (u64, u64) {
        let holdings = self.holdings();
        (holdings.entries, holdings.bytes)
    }

    fn holdings(&self) -> MutexGuard<'_, Holdings<K, O, V>> {
        self.holdings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard(&self, hash: u64) -> &Shard<K, O, V> {
        // The table uses the other end of the hash.
        &self.shards[(hash >> 32) as usize % SHARDS]
    }

    pub(super) fn get(&self, key: &K) -> Option<Arc<Slot<O, V>>> {
        let hash = self.hasher.hash_one(key);
        let shard = self.shard(hash).read().unwrap_or_else(PoisonError::into_inner);
        let (_, found) = shard.find(hash, |(known, _)| known == key)?;
        let found = found.clone();
        drop(shard);
        // Written only when it changes: all readers share the cache line.
        if !found.used.load(Ordering::Relaxed) {
            found.used.store(true, Ordering::Relaxed);
        }
        Some(found)
    }

    /// Adds an entry, or replaces the one with this key unless that `is_newer`. Tells how many were evicted.
    pub(super) fn insert(
        &self,
        key: K,
        owner: O,
        weight: u64,
        value: V,
        is_newer: impl Fn(&V) -> bool,
    ) -> u64 {
        let (number, used) = (AtomicU64::new(0), AtomicBool::new(false));
        let slot = Arc::new(Slot { value, weight, owner, number, used });
        let mut holdings = self.holdings();
        {
            let hash = self.hasher.hash_one(&key);
            let mut shard = self.shard(hash).write().unwrap_or_else(PoisonError::into_inner);
            match shard.find_mut(hash, |(known, _)| *known == key) {
                Some((_, known)) if is_newer(&known.value) => return 0,
                Some((_, known)) => {
                    holdings.remove(known);
                    *known = slot.clone();
                }
                None => {
                    let entry = (key.clone(), slot.clone());
                    shard.insert_unique(hash, entry, |(key, _)| self.hasher.hash_one(key));
                }
            }
        }
        holdings.add(key, slot);
        let mut evicted = 0;
        while holdings.bytes > self.budget {
            let Some((key, gone)) = holdings.next_victim() else { break };
            let hash = self.hasher.hash_one(&key);
            let mut shard = self.shard(hash).write().unwrap_or_else(PoisonError::into_inner);
            if let Ok(known) =
                shard.find_entry(hash, |(known, slot)| *known == key && Arc::ptr_eq(slot, &gone))
            {
                known.remove();
            }
            evicted += 1;
        }
        evicted
    }
}

impl<K: Clone, O: Hash + Eq + Ord + Clone, V> Holdings<K, O, V> {
    fn add(&mut self, key: K, slot: Arc<Slot<O, V>>) {
        let (number, weight, owner) = (self.next, slot.weight, slot.owner.clone());
        self.next += 1;
        slot.number.store(number, Ordering::Relaxed);
        let empty = || Holding { bytes: 0, entries: BTreeMap::new() };
        let holding = self.owners.entry(owner.clone()).or_insert_with(empty);
        self.ranking.remove(&(holding.bytes, owner.clone()));
        holding.entries.insert(number, (key, slot));
        holding.bytes += weight;
        self.ranking.insert((holding.bytes, owner));
        self.bytes += weight;
        self.entries += 1;
    }

    fn remove(&mut self, slot: &Slot<O, V>) -> Option<K> {
        let holding = self.owners.get_mut(&slot.owner)?;
        let (key, _) = holding.entries.remove(&slot.number.load(Ordering::Relaxed))?;
        self.ranking.remove(&(holding.bytes, slot.owner.clone()));
        holding.bytes -= slot.weight;
        if holding.entries.is_empty() {
            self.owners.remove(&slot.owner);
        } else {
            self.ranking.insert((holding.bytes, slot.owner.clone()));
        }
        self.bytes -= slot.weight;
        self.entries -= 1;
        Some(key)
    }

    /// What the heaviest owner gives up, taken out of the holdings.
    fn next_victim(&mut self) -> Option<(K, Arc<Slot<O, V>>)> {
        loop {
            let (_, heaviest) = self.ranking.last()?;
            let (_, slot) = self.owners.get(heaviest)?.entries.values().next()?;
            let slot = slot.clone();
            let key = self.remove(&slot)?;
            if !slot.used.swap(false, Ordering::Relaxed) {
                return Some((key, slot));
            }
            // A second chance, after everything that was not used.
            self.add(key, slot);
        }
    }
}
