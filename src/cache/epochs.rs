//! Epochs: how a change made by this process invalidates what was fetched before it, without finding the entries.
//!
//! Every path hashes to a counter. A write increments the counters of the object and of every directory above it. A
//! fetch reads the counters of what it is about before the request is sent; an entry is served only while they still
//! add up to the same. Because counters only grow, the sum over several of them changes whenever one does.
//!
//! Two paths may share a counter: then a write invalidates more than it must, and never less.

use std::hash::{BuildHasher, RandomState};

use super::sync::{AtomicU64, Ordering};

/// How many paths are told apart.
const SLOTS: usize = 16 * 1024;

/// The state of some paths at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch(u64);

pub(super) struct Epochs {
    slots: Box<[AtomicU64]>,
    hasher: RandomState,
}

impl Epochs {
    pub(super) fn new() -> Self {
        Self::with_slots(SLOTS)
    }

    pub(super) fn with_slots(slots: usize) -> Self {
        Self { slots: (0..slots).map(|_| AtomicU64::new(0)).collect(), hasher: RandomState::new() }
    }

    pub(super) fn slot(&self, path: &str) -> &AtomicU64 {
        // A file and a directory of one name change together.
        let path = path.strip_suffix('/').unwrap_or(path);
        &self.slots[self.hasher.hash_one(path) as usize % self.slots.len()]
    }

    /// To be read before a request is sent: it goes with what comes back.
    pub(super) fn of<'p>(&self, paths: impl Iterator<Item = &'p str>) -> Epoch {
        Epoch(paths.fold(0, |sum, path| sum.wrapping_add(self.slot(path).load(Ordering::SeqCst))))
    }

    /// Everything fetched about this path before now is out of date, also what is still on its way.
    pub(super) fn advance(&self, path: &str) {
        self.slot(path).fetch_add(1, Ordering::SeqCst);
    }

    /// The same for an object that was written or deleted, and for every directory above it.
    pub(super) fn advance_object(&self, key: &str) {
        // `read` may have taken the name without `.md` for this file.
        if let Some(stem) = key.strip_suffix(".md") {
            self.advance(stem);
        }
        for (at, _) in key.match_indices('/') {
            self.advance(&key[..at]);
        }
        self.advance(key);
    }
}
