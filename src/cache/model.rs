//! The concurrent parts of the cache and the limiter under [shuttle], which runs them in many interleavings.
//!
//! The same files as in production are compiled once more, over shuttle's primitives instead of the standard
//! library's. Each check states an invariant, and each has a twin with a deliberate mistake that must be found, so
//! that a check that cannot fail is noticed.

#![cfg(test)]
#![allow(dead_code, unreachable_pub)]
#![allow(clippy::duplicate_mod, reason = "compiled once more over other primitives, which is the point")]

use std::sync::Arc as StdArc;
use std::sync::atomic::AtomicUsize as AtomicStd;
use std::time::Duration;

use futures_util::FutureExt;
use shuttle::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::{future, thread};

#[path = "epochs.rs"]
mod epochs;
#[path = "eviction.rs"]
mod eviction;
#[path = "../store/limiter.rs"]
mod limiter;
#[path = "single_flight.rs"]
mod single_flight;

mod sync {
    pub(super) use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub(super) use shuttle::sync::{Arc, Mutex, MutexGuard, RwLock};
    pub(super) use std::sync::PoisonError;
}

use self::epochs::Epochs;
use self::eviction::Entries;
use self::limiter::Limiter;
use self::single_flight::SingleFlight;
use crate::mount::Tenant;

const SCHEDULES: usize = 400;

fn check(model: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(model, SCHEDULES);
}

/// Whether some schedule breaks an invariant. On a thread of its own, which is where the panic ends.
fn is_broken(model: impl Fn() + Send + Sync + 'static) -> bool {
    let search = std::thread::spawn(move || shuttle::check_random(model, 20 * SCHEDULES));
    match search.join() {
        Ok(()) => false,
        Err(panic) => {
            // What it holds belongs to an execution that is over: dropping it would panic again.
            std::mem::forget(panic);
            true
        }
    }
}

/// The budget holds and the books are right, whatever inserts and lookups run at once.
fn inserts(budget: u64) {
    let all: Arc<Entries<u64, &'static str, u64>> = Arc::new(Entries::new(budget));
    let threads: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .enumerate()
        .map(|(number, owner)| {
            let all = all.clone();
            thread::spawn(move || {
                for i in 0..4 {
                    // The same keys from several owners: one replaces the other.
                    all.insert(i, owner, 10, number as u64, |_| false);
                    all.get(&((i + 1) % 4));
                    assert!(all.held().1 <= 30);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let found = (0..4).filter(|key| all.get(key).is_some()).count() as u64;
    assert_eq!(all.held(), (found, found * 10), "the map and the holdings disagree");
}

#[test]
fn eviction_keeps_the_budget_and_its_books() {
    check(|| inserts(30));
    assert!(is_broken(|| inserts(40)), "a budget that is too large is not found");
}

/// A value that was fetched before a change is not kept after it.
fn fetch_and_change(check_epoch: bool) {
    let epochs = Arc::new(Epochs::with_slots(8));
    let storage = Arc::new(AtomicU64::new(1));
    let kept = Arc::new(Mutex::new(None));
    let fetcher = {
        let (epochs, storage, kept) = (epochs.clone(), storage.clone(), kept.clone());
        thread::spawn(move || {
            let epoch = epochs.of(["a/b"].into_iter());
            let value = storage.load(Ordering::SeqCst);
            // As `TenantCache::keep` does, and as `peek` checks again.
            if !check_epoch || epoch == epochs.of(["a/b"].into_iter()) {
                *kept.lock().unwrap() = Some((epoch, value));
            }
        })
    };
    storage.store(2, Ordering::SeqCst);
    epochs.advance_object("a/b");
    fetcher.join().unwrap();
    let now = epochs.of(["a/b"].into_iter());
    if let Some((epoch, value)) = *kept.lock().unwrap()
        && (!check_epoch || epoch == now)
    {
        assert_eq!(value, 2, "a value from before the change is served after it");
    }
}

#[test]
fn epochs_never_serve_what_was_fetched_before_a_change() {
    check(|| fetch_and_change(true));
    assert!(is_broken(|| fetch_and_change(false)), "a missing epoch check is not found");
}

/// Callers at the same time share a fetch; each gets a value that is no older than it accepts.
fn callers(bound: Duration, change: bool, check_epoch: bool) -> usize {
    let flights: Arc<SingleFlight<&'static str, Result<u64, ()>>> = Arc::new(SingleFlight::new());
    let epochs = Arc::new(Epochs::with_slots(8));
    let (storage, fetches) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicUsize::new(0)));
    let tasks: Vec<_> = (0..3)
        .map(|number| {
            let (flights, epochs) = (flights.clone(), epochs.clone());
            let (storage, fetches) = (storage.clone(), fetches.clone());
            future::spawn(async move {
                if number == 2 && change {
                    storage.store(2, Ordering::SeqCst);
                    if check_epoch {
                        epochs.advance("k");
                    }
                    // A caller after the change must not be given a value from before it.
                }
                let least = if number == 2 && change { 2 } else { 1 };
                let start = || {
                    fetches.fetch_add(1, Ordering::SeqCst);
                    let storage = storage.clone();
                    async move {
                        future::yield_now().await;
                        Ok(storage.load(Ordering::SeqCst))
                    }
                    .boxed()
                };
                let epoch = epochs.of(["k"].into_iter());
                let boarding = flights.board(&"k", epoch, bound, Result::is_ok, start);
                let value = boarding.landing.await.unwrap();
                if let Some(number) = boarding.own {
                    flights.landed(&"k", number);
                }
                assert!(value >= least, "joined a flight from before the change");
            })
        })
        .collect();
    future::block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert!(!flights.is_flying(&"k", epochs.of(["k"].into_iter())));
    fetches.load(Ordering::SeqCst)
}

#[test]
fn single_flight_shares_fetches_and_never_crosses_a_change() {
    let (few, most) = (StdArc::new(AtomicStd::new(usize::MAX)), StdArc::new(AtomicStd::new(0)));
    let (least, largest) = (few.clone(), most.clone());
    check(move || {
        let fetches = callers(Duration::MAX, false, true);
        least.fetch_min(fetches, Ordering::SeqCst);
        largest.fetch_max(fetches, Ordering::SeqCst);
    });
    assert_eq!(few.load(Ordering::SeqCst), 1, "no schedule shares a fetch");
    assert!(most.load(Ordering::SeqCst) <= 3);
    check(|| {
        callers(Duration::MAX, true, true);
    });
    let crossed = || {
        callers(Duration::MAX, true, false);
    };
    assert!(is_broken(crossed), "a flight that crosses a change is not found");
    // With a bound of zero nobody joins.
    check(|| assert_eq!(callers(Duration::ZERO, false, true), 3));
}

/// A caller that goes away neither stops the others nor leaves a flight that never lands.
#[test]
fn single_flight_survives_callers_that_go_away() {
    check(|| {
        let flights: Arc<SingleFlight<&'static str, Result<u64, ()>>> = Arc::new(SingleFlight::new());
        let epoch = Epochs::with_slots(8).of(["k"].into_iter());
        let board = move |flights: &SingleFlight<&'static str, Result<u64, ()>>| {
            flights.board(&"k", epoch, Duration::MAX, Result::is_ok, || {
                async {
                    future::yield_now().await;
                    Ok(7)
                }
                .boxed()
            })
        };
        let gone = {
            let flights = flights.clone();
            future::spawn(async move {
                let boarding = board(&flights);
                future::yield_now().await;
                drop(boarding);
            })
        };
        let stays = {
            let flights = flights.clone();
            future::spawn(async move { assert_eq!(board(&flights).landing.await, Ok(7)) })
        };
        future::block_on(async {
            gone.await.unwrap();
            stays.await.unwrap();
        });
    });
}

/// Never more in flight than allowed, in all and for each tenant; everyone gets a turn; nothing is leaked.
fn turns(most: usize, most_each: usize, abandon: bool) {
    let limiter = Limiter::new(most, most_each);
    let running = Arc::new(AtomicUsize::new(0));
    let each = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0)]);
    let tasks: Vec<_> = (0..6)
        .map(|number| {
            let (limiter, running, each) = (limiter.clone(), running.clone(), each.clone());
            future::spawn(async move {
                let of = number % 3;
                let tenant = Tenant::named(["a", "b", "c"][of]);
                if abandon && number == 4 {
                    // Asks for a turn, and goes away before it comes.
                    let _ = limiter.turn(&tenant).now_or_never();
                    return;
                }
                let turn = limiter.turn(&tenant).await;
                assert!(running.fetch_add(1, Ordering::SeqCst) < 2, "too many in all");
                assert!(each[of].fetch_add(1, Ordering::SeqCst) < 1, "too many of one tenant");
                future::yield_now().await;
                each[of].fetch_sub(1, Ordering::SeqCst);
                running.fetch_sub(1, Ordering::SeqCst);
                drop(turn);
            })
        })
        .collect();
    future::block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
        // All turns are back: as many as allowed can be had at once.
        let _one = limiter.turn(&Tenant::named("x")).await;
        let _two = limiter.turn(&Tenant::named("y")).await;
    });
}

#[test]
fn the_limiter_keeps_its_limits_and_loses_no_turn() {
    check(|| turns(2, 1, false));
    check(|| turns(2, 1, true));
    assert!(is_broken(|| turns(3, 1, false)), "too many in all is not found");
    assert!(is_broken(|| turns(2, 2, false)), "too many of one tenant is not found");
}
