//! Epochs: invalidate everything fetched before a change by this process, without searching for the entries.
//!
//! Every path hashes to a counter. A write increments the counters of the object and of all its parent directories. A
//! fetch reads the counters of the paths it is about before the request is sent, and an entry is served only as long as
//! their sum is unchanged. Counters only grow, so the sum changes whenever one of them does.
//!
//! Paths that share a counter are only invalidated more often than necessary, never less.

use std::hash::{BuildHasher, RandomState};

use super::sync::{AtomicU64, Ordering};

/// The number of counters. Collisions only over-invalidate.
const SLOTS: usize = 16 * 1024;

/// The epoch of one or several paths: the sum of their counters.
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
        // A file and a directory with the same name share a counter.
        let path = path.strip_suffix('/').unwrap_or(path);
        &self.slots[self.hasher.hash_one(path) as usize % self.slots.len()]
    }

    /// Returns the current epoch of these paths. Read it before sending a request, and store it with the response.
    pub(super) fn of<'p>(&self, paths: impl Iterator<Item = &'p str>) -> Epoch {
        Epoch(paths.fold(0, |sum, path| sum.wrapping_add(self.slot(path).load(Ordering::SeqCst))))
    }

    /// Invalidates everything fetched about this path so far, including fetches in flight.
    pub(super) fn advance(&self, path: &str) {
        self.slot(path).fetch_add(1, Ordering::SeqCst);
    }

    /// Invalidates an object that was written or deleted, and all its parent directories.
    pub(super) fn advance_object(&self, key: &str) {
        // `read` accepts the name without `.md` for this file.
        if let Some(stem) = key.strip_suffix(".md") {
            self.advance(stem);
        }
        for (at, _) in key.match_indices('/') {
            self.advance(&key[..at]);
        }
        self.advance(key);
    }
}
