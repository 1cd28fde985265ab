//! Hedging: when a read has taken so long that asking again is faster than waiting.
//!
//! For each kind of request a histogram of latencies gives a limit, 1.3 times the 95th percentile. A request beyond it
//! is cancelled and reissued, at most once, and only while a budget lasts: one reissue for every twenty requests, so
//! that a storage that is slow as a whole is not asked for more. Until enough is known, nothing is reissued.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// So many answers must have come before one is called slow.
const LEAST_SAMPLES: u32 = 128;
/// The past fades: beyond this many answers all counts are halved.
const MOST_SAMPLES: u32 = 4_096;
/// How often the limit is reckoned anew.
const EVERY: u32 = 64;
/// A request is slow beyond 1.3 times what 95 of 100 take.
const QUANTILE: f64 = 0.95;
const FACTOR: f64 = 1.3;
/// And never before this: a busy machine is no slow storage.
const LEAST: Duration = Duration::from_millis(200);
/// One request of twenty may be sent again.
const ONE_OF: i64 = 20;
/// So many at once.
const MOST_SAVED: i64 = 10;

const BUCKETS: usize = 64;

/// One for each kind of request.
#[derive(Debug, Default)]
pub(super) struct Hedges {
    pub(super) get: Hedge,
    pub(super) head: Hedge,
    pub(super) list: Hedge,
}

/// What was measured of one kind of request.
#[derive(Debug)]
pub(super) struct Hedge {
    /// By the logarithm of the time, four to each doubling, from 1 ms.
    buckets: [AtomicU32; BUCKETS],
    samples: AtomicU32,
    /// In microseconds; zero when it is not known.
    limit: AtomicU64,
    /// Requests that may be sent again, times `ONE_OF`.
    saved: AtomicI64,
}

impl Default for Hedge {
    fn default() -> Self {
        Self {
            buckets: [const { AtomicU32::new(0) }; BUCKETS],
            samples: AtomicU32::new(0),
            limit: AtomicU64::new(0),
            saved: AtomicI64::new(0),
        }
    }
}

impl Hedge {
    /// An answer came after this time.
    pub(super) fn record(&self, took: Duration) {
        let milliseconds = took.as_secs_f64() * 1e3;
        // Never negative, and bounded before it is used.
        #[allow(clippy::cast_sign_loss)]
        let bucket = ((milliseconds.max(1.0).log2() * 4.0) as usize).min(BUCKETS - 1);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let _ = self.saved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |saved| {
            Some((saved + 1).min(MOST_SAVED * ONE_OF))
        });
        let samples = self.samples.fetch_add(1, Ordering::Relaxed) + 1;
        if samples >= LEAST_SAMPLES && samples.is_multiple_of(EVERY) {
            self.reckon();
        }
    }

    fn reckon(&self) {
        let counts: Vec<u32> = self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let total: u32 = counts.iter().sum();
        let mut below = 0;
        let bucket = counts.iter().position(|count| {
            below += count;
            f64::from(below) >= f64::from(total) * QUANTILE
        });
        // The upper edge of the bucket.
        let bucket = u32::try_from(bucket.unwrap_or(BUCKETS - 1)).unwrap_or(u32::MAX);
        let edge = 2f64.powf((f64::from(bucket) + 1.0) / 4.0) / 1e3;
        let limit = Duration::from_secs_f64(edge * FACTOR).max(LEAST);
        self.limit.store(limit.as_micros() as u64, Ordering::Relaxed);
        if total > MOST_SAMPLES {
            for (bucket, count) in self.buckets.iter().zip(counts) {
                // Two may reckon at once.
                let half = |now: u32| Some(now.saturating_sub(count / 2));
                let _ = bucket.fetch_update(Ordering::Relaxed, Ordering::Relaxed, half);
            }
        }
    }

    /// How long to wait for an answer; `None` when too little is known.
    pub(super) fn limit(&self) -> Option<Duration> {
        match self.limit.load(Ordering::Relaxed) {
            0 => None,
            micros => Some(Duration::from_micros(micros)),
        }
    }

    /// Takes the right to send one request again: when the storage is slow as a whole, more requests would
    /// only add to it.
    pub(super) fn may_reissue(&self) -> bool {
        let take = |saved: i64| (saved >= ONE_OF).then_some(saved - ONE_OF);
        self.saved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_what_was_measured() {
        let hedge = Hedge::default();
        for _ in 0..127 {
            hedge.record(Duration::from_millis(400));
        }
        assert_eq!(hedge.limit(), None);
        hedge.record(Duration::from_millis(400));
        let limit = hedge.limit().unwrap();
        assert!((520..=660).contains(&limit.as_millis()), "{limit:?}");
        // The storage became faster: the past fades.
        for _ in 0..20_000 {
            hedge.record(Duration::from_millis(2));
        }
        assert_eq!(hedge.limit(), Some(LEAST));
    }

    #[test]
    fn one_of_twenty_may_be_sent_again() {
        let hedge = Hedge::default();
        assert!(!hedge.may_reissue());
        for _ in 0..20 {
            hedge.record(Duration::from_millis(1));
        }
        assert!(hedge.may_reissue());
        assert!(!hedge.may_reissue());
        for _ in 0..10_000 {
            hedge.record(Duration::from_millis(1));
        }
        assert_eq!((0..100).filter(|_| hedge.may_reissue()).count(), 10);
    }
}
