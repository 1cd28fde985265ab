//! Single flight: callers that want the same at the same time share one fetch.
//!
//! A caller joins a flight only if it left in the current epoch, after the moment up to which the caller accepts
//! answers, and did not fail. A flight belongs to those who wait for it: it is held weakly, goes on when the caller
//! that started it goes away, and ends with the last one. `super::model` runs this file under shuttle.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use tokio::time::Instant;

use super::epochs::Epoch;
use super::sync::{Mutex, MutexGuard, PoisonError};

/// Flights that nobody waits for any more are swept when there are so many; then at twice what is left.
const FIRST_SWEEP: usize = 1024;

struct Flight<V> {
    landing: WeakShared<BoxFuture<'static, V>>,
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

/// A flight that a caller waits for.
pub(super) struct Boarding<V> {
    pub(super) landing: Shared<BoxFuture<'static, V>>,
    /// Whether this caller started it.
    pub(super) own: Option<u64>,
}

impl<K: Hash + Eq + Clone, V: Clone> SingleFlight<K, V> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Flights { by_key: HashMap::new(), next: 0, sweep_at: FIRST_SWEEP }))
    }

    fn lock(&self) -> MutexGuard<'_, Flights<K, V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the flight for a key, or starts one.
    pub(super) fn board(
        &self,
        key: &K,
        epoch: Epoch,
        bound: Duration,
        is_good: impl Fn(&V) -> bool,
        start: impl FnOnce() -> BoxFuture<'static, V>,
    ) -> Boarding<V> {
        let mut flights = self.lock();
        if let Some(flight) = flights.by_key.get(key)
            && flight.epoch == epoch
            && flight.started.elapsed() < bound
            && let Some(landing) = flight.landing.upgrade()
            // Its failure was told to those who waited; later callers try again.
            && landing.peek().is_none_or(is_good)
        {
            return Boarding { landing, own: None };
        }
        if flights.by_key.len() >= flights.sweep_at {
            flights.by_key.retain(|_, flight| flight.landing.upgrade().is_some());
            flights.sweep_at = (2 * flights.by_key.len()).max(FIRST_SWEEP);
        }
        let landing = start().shared();
        let number = flights.next;
        flights.next += 1;
        if let Some(weak) = landing.downgrade() {
            let flight = Flight { landing: weak, started: Instant::now(), epoch, number };
            flights.by_key.insert(key.clone(), flight);
        }
        Boarding { landing, own: Some(number) }
    }

    /// The flight has landed: its starter removes it, unless another one has taken its place.
    pub(super) fn landed(&self, key: &K, number: u64) {
        let mut flights = self.lock();
        if flights.by_key.get(key).is_some_and(|flight| flight.number == number) {
            flights.by_key.remove(key);
        }
    }

    /// Whether a flight of this epoch is in the air.
    pub(super) fn is_flying(&self, key: &K, epoch: Epoch) -> bool {
        self.lock().by_key.get(key).is_some_and(|flight| {
            flight.epoch == epoch && flight.landing.upgrade().is_some_and(|landing| landing.peek().is_none())
        })
    }
}
