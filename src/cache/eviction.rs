//! A sharded map with one budget for all owners, and CLOCK (second-chance) eviction per owner.
//!
//! Every entry has an owner. When the entries exceed the budget, the owner with the most bytes loses its entries in
//! CLOCK order. An owner therefore cannot evict the entries of owners that hold less.
//!
//! A lookup takes the read lock of one shard and sets a flag. An insert takes the lock of the holdings (the accounting
//! per owner) and then the lock of a shard, always in this order, so the map and the holdings stay consistent.
//! `super::model` runs this file under shuttle.

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
    /// The position in the owner's CLOCK order.
    number: AtomicU64,
    /// The reference bit of CLOCK: whether the entry was used since the hand last passed it.
    used: AtomicBool,
}

/// A `HashTable` instead of a `HashMap`, so that the hash is computed once, for the shard and for the table.
type Shard<K, O, V> = RwLock<HashTable<(K, Arc<Slot<O, V>>)>>;

/// Entries by key, each with an owner.
pub(super) struct Entries<K, O, V> {
    shards: Box<[Shard<K, O, V>]>,
    hasher: RandomState,
    holdings: Mutex<Holdings<K, O, V>>,
    budget: u64,
}

/// The accounting of all entries by owner.
struct Holdings<K, O, V> {
    bytes: u64,
    entries: u64,
    next: u64,
    owners: HashMap<O, Holding<K, O, V>>,
    /// The owners by bytes, smallest first.
    ranking: BTreeSet<(u64, O)>,
}

struct Holding<K, O, V> {
    bytes: u64,
    /// In CLOCK order, oldest first.
    entries: BTreeMap<u64, (K, Arc<Slot<O, V>>)>,
}

impl<K: Hash + Eq + Clone, O: Hash + Eq + Ord + Clone, V> Entries<K, O, V> {
    /// Creates an empty map with a budget in bytes. A budget of zero stores nothing.
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

    /// The number of entries and their total weight.
    pub(super) fn usage(&self) -> (u64, u64) {
        let holdings = self.holdings();
        (holdings.entries, holdings.bytes)
    }

    fn holdings(&self) -> MutexGuard<'_, Holdings<K, O, V>> {
        self.holdings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard(&self, hash: u64) -> &Shard<K, O, V> {
        // The high half of the hash; the table uses other bits.
        &self.shards[(hash >> 32) as usize % SHARDS]
    }

    pub(super) fn get(&self, key: &K) -> Option<Arc<Slot<O, V>>> {
        let hash = self.hasher.hash_one(key);
        let shard = self.shard(hash).read().unwrap_or_else(PoisonError::into_inner);
        let (_, found) = shard.find(hash, |(other, _)| other == key)?;
        let found = found.clone();
        drop(shard);
        // Written only on a change, to keep the cache line shared among readers.
        if !found.used.load(Ordering::Relaxed) {
            found.used.store(true, Ordering::Relaxed);
        }
        Some(found)
    }

    /// Adds an entry, or replaces the existing one unless it `is_newer`. Returns the number of evicted entries.
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
            match shard.find_mut(hash, |(other, _)| *other == key) {
                Some((_, existing)) if is_newer(&existing.value) => return 0,
                Some((_, existing)) => {
                    holdings.remove(existing);
                    *existing = slot.clone();
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
            let Some((key, victim)) = holdings.next_victim() else { break };
            let hash = self.hasher.hash_one(&key);
            let mut shard = self.shard(hash).write().unwrap_or_else(PoisonError::into_inner);
            if let Ok(entry) =
                shard.find_entry(hash, |(other, slot)| *other == key && Arc::ptr_eq(slot, &victim))
            {
                entry.remove();
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

    /// Removes the next entry to evict from the holdings: the CLOCK victim of the owner with the most bytes.
    fn next_victim(&mut self) -> Option<(K, Arc<Slot<O, V>>)> {
        loop {
            let (_, heaviest) = self.ranking.last()?;
            let (_, slot) = self.owners.get(heaviest)?.entries.values().next()?;
            let slot = slot.clone();
            let key = self.remove(&slot)?;
            if !slot.used.swap(false, Ordering::Relaxed) {
                return Some((key, slot));
            }
            // It was used: give it a second chance at the end of the order.
            self.add(key, slot);
        }
    }
}
