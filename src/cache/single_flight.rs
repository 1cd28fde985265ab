//! Single flight: concurrent callers with the same key share one fetch.
//!
//! A caller joins a flight only if it started in the current epoch, is not older than the caller accepts, and has not
//! failed. The map holds flights weakly, and the callers own them: a flight continues if the caller that started it is
//! cancelled, and is dropped with its last caller. `super::model` runs this file under shuttle.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use tokio::time::Instant;

use super::epochs::Epoch;
use super::sync::{Mutex, MutexGuard, PoisonError};

/// Abandoned flights are removed when the map reaches this size, and again whenever it has doubled since.
const FIRST_SWEEP: usize = 1024;

struct Flight<V> {
    future: WeakShared<BoxFuture<'static, V>>,
    started: Instant,
    epoch: Epoch,
    number: u64,
}

pub(super) struct SingleFlight<K, V>(Mutex<Flights<K, V>>);

struct Flights<K, V> {
    by_key: HashMap<K, Flight<V>>,
    next: u64,
    sweep_at: usize,
}

/// A flight that a caller has joined or started.
pub(super) struct Joined<V> {
    pub(super) future: Shared<BoxFuture<'static, V>>,
    /// The number of the flight if this caller started it. It must then call [`SingleFlight::finish`].
    pub(super) started: Option<u64>,
}

impl<K: Hash + Eq + Clone, V: Clone> SingleFlight<K, V> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Flights { by_key: HashMap::new(), next: 0, sweep_at: FIRST_SWEEP }))
    }

    fn lock(&self) -> MutexGuard<'_, Flights<K, V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the flight for a key, or starts one.
    pub(super) fn join_or_start(
        &self,
        key: &K,
        epoch: Epoch,
        bound: Duration,
        is_good: impl Fn(&V) -> bool,
        start: impl FnOnce() -> BoxFuture<'static, V>,
    ) -> Joined<V> {
        let mut flights = self.lock();
        if let Some(flight) = flights.by_key.get(key)
            && flight.epoch == epoch
            && flight.started.elapsed() < bound
            && let Some(future) = flight.future.upgrade()
            // An error goes only to the callers that waited for it; later callers retry.
            && future.peek().is_none_or(is_good)
        {
            return Joined { future, started: None };
        }
        if flights.by_key.len() >= flights.sweep_at {
            flights.by_key.retain(|_, flight| flight.future.upgrade().is_some());
            flights.sweep_at = (2 * flights.by_key.len()).max(FIRST_SWEEP);
        }
        let future = start().shared();
        let number = flights.next;
        flights.next += 1;
        if let Some(weak) = future.downgrade() {
            let flight = Flight { future: weak, started: Instant::now(), epoch, number };
            flights.by_key.insert(key.clone(), flight);
        }
        Joined { future, started: Some(number) }
    }

    /// Removes a finished flight, unless a newer one has replaced it.
    pub(super) fn finish(&self, key: &K, number: u64) {
        let mut flights = self.lock();
        if flights.by_key.get(key).is_some_and(|flight| flight.number == number) {
            flights.by_key.remove(key);
        }
    }

    /// Returns whether an unfinished flight of this epoch exists.
    pub(super) fn is_in_flight(&self, key: &K, epoch: Epoch) -> bool {
        self.lock().by_key.get(key).is_some_and(|flight| {
            flight.epoch == epoch && flight.future.upgrade().is_some_and(|future| future.peek().is_none())
        })
    }
}
