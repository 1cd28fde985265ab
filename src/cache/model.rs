//! Tests of the concurrent parts of the cache and of the limiter under [shuttle], which explores thread interleavings.
//!
//! The production files are compiled a second time, with shuttle's synchronization primitives instead of the standard
//! library's. Each check asserts an invariant. Most have a counterpart with a deliberate mistake that must be detected,
//! so that a check that cannot fail is noticed.

#![cfg(test)]
#![allow(dead_code, unreachable_pub, reason = "the models use only parts of the included files")]
#![allow(clippy::duplicate_mod, reason = "compiled a second time with other primitives on purpose")]

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

/// Returns whether some schedule breaks an invariant. Runs in a separate thread, which catches the panic.
fn is_broken(model: impl Fn() + Send + Sync + 'static) -> bool {
    let search = std::thread::spawn(move || shuttle::check_random(model, 20 * SCHEDULES));
    match search.join() {
        Ok(()) => false,
        Err(panic) => {
            // The payload refers to a finished shuttle execution: dropping it would panic again.
            std::mem::forget(panic);
            true
        }
    }
}

/// The budget is kept and the accounting is consistent under concurrent inserts and lookups.
fn inserts(budget: u64) {
    let all: Arc<Entries<u64, &'static str, u64>> = Arc::new(Entries::new(budget));
    let threads: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .enumerate()
        .map(|(number, owner)| {
            let all = all.clone();
            thread::spawn(move || {
                for i in 0..4 {
                    // Several owners insert the same keys and replace each other's entries.
                    all.insert(i, owner, 10, number as u64, |_| false);
                    all.get(&((i + 1) % 4));
                    assert!(all.usage().1 <= 30);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let found = (0..4).filter(|key| all.get(key).is_some()).count() as u64;
    assert_eq!(all.usage(), (found, found * 10), "the map and the holdings disagree");
}

#[test]
fn eviction_keeps_the_budget_and_its_books() {
    check(|| inserts(30));
    assert!(is_broken(|| inserts(40)), "a budget that is too large goes undetected");
}

/// A value fetched before a change is not cached after it.
fn fetch_and_change(check_epoch: bool) {
    let epochs = Arc::new(Epochs::with_slots(8));
    let storage = Arc::new(AtomicU64::new(1));
    let kept = Arc::new(Mutex::new(None));
    let fetcher = {
        let (epochs, storage, kept) = (epochs.clone(), storage.clone(), kept.clone());
        thread::spawn(move || {
            let epoch = epochs.of(["a/b"].into_iter());
            let value = storage.load(Ordering::SeqCst);
            // `TenantCache::keep` does the same, and `peek` checks again.
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
    assert!(is_broken(|| fetch_and_change(false)), "a missing epoch check goes undetected");
}

/// Concurrent callers share a fetch, and each gets a value that is not older than it accepts.
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
                    // After the change, this caller must not get a value from before it.
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
                let joined = flights.join_or_start(&"k", epoch, bound, Result::is_ok, start);
                let value = joined.future.await.unwrap();
                if let Some(number) = joined.started {
                    flights.finish(&"k", number);
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
    assert!(!flights.is_in_flight(&"k", epochs.of(["k"].into_iter())));
    fetches.load(Ordering::SeqCst)
}

#[test]
fn single_flight_shares_fetches_and_never_crosses_a_change() {
    let (fewest, most) = (StdArc::new(AtomicStd::new(usize::MAX)), StdArc::new(AtomicStd::new(0)));
    let (least, largest) = (fewest.clone(), most.clone());
    check(move || {
        let fetches = callers(Duration::MAX, false, true);
        least.fetch_min(fetches, Ordering::SeqCst);
        largest.fetch_max(fetches, Ordering::SeqCst);
    });
    assert_eq!(fewest.load(Ordering::SeqCst), 1, "no schedule shares a fetch");
    assert!(most.load(Ordering::SeqCst) <= 3);
    check(|| {
        callers(Duration::MAX, true, true);
    });
    let crossed = || {
        callers(Duration::MAX, true, false);
    };
    assert!(is_broken(crossed), "a flight that crosses a change goes undetected");
    // With a bound of zero nobody joins.
    check(|| assert_eq!(callers(Duration::ZERO, false, true), 3));
}

/// A cancelled caller neither stops the others nor leaves a flight that never finishes.
#[test]
fn single_flight_survives_callers_that_go_away() {
    check(|| {
        let flights: Arc<SingleFlight<&'static str, Result<u64, ()>>> = Arc::new(SingleFlight::new());
        let epoch = Epochs::with_slots(8).of(["k"].into_iter());
        let join = move |flights: &SingleFlight<&'static str, Result<u64, ()>>| {
            flights.join_or_start(&"k", epoch, Duration::MAX, Result::is_ok, || {
                async {
                    future::yield_now().await;
                    Ok(7)
                }
                .boxed()
            })
        };
        let cancelled = {
            let flights = flights.clone();
            future::spawn(async move {
                let joined = join(&flights);
                future::yield_now().await;
                drop(joined);
            })
        };
        let waiting = {
            let flights = flights.clone();
            future::spawn(async move { assert_eq!(join(&flights).future.await, Ok(7)) })
        };
        future::block_on(async {
            cancelled.await.unwrap();
            waiting.await.unwrap();
        });
    });
}

/// The limits in total and per tenant are kept, everyone gets a permit, and no permit is leaked.
fn turns(max: usize, max_per_tenant: usize, abandon: bool) {
    let limiter = Limiter::new(max, max_per_tenant);
    let running = Arc::new(AtomicUsize::new(0));
    let each = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0)]);
    let tasks: Vec<_> = (0..6)
        .map(|number| {
            let (limiter, running, each) = (limiter.clone(), running.clone(), each.clone());
            future::spawn(async move {
                let of = number % 3;
                let tenant = Tenant::named(["a", "b", "c"][of]);
                if abandon && number == 4 {
                    // Requests a permit and is cancelled before it is granted.
                    let _ = limiter.turn(&tenant).now_or_never();
                    return;
                }
                let turn = limiter.turn(&tenant).await;
                assert!(running.fetch_add(1, Ordering::SeqCst) < 2, "too many in total");
                assert!(each[of].fetch_add(1, Ordering::SeqCst) < 1, "too many for one tenant");
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
        // All permits were released: the maximum number can be acquired again.
        let _one = limiter.turn(&Tenant::named("x")).await;
        let _two = limiter.turn(&Tenant::named("y")).await;
    });
}

#[test]
fn the_limiter_keeps_its_limits_and_loses_no_turn() {
    check(|| turns(2, 1, false));
    check(|| turns(2, 1, true));
    assert!(is_broken(|| turns(3, 1, false)), "exceeding the total limit goes undetected");
    assert!(is_broken(|| turns(2, 2, false)), "exceeding the limit of a tenant goes undetected");
}
