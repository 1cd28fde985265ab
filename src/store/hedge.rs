//! Hedging: cancels and reissues a read that is much slower than usual.
//!
//! A latency histogram per kind of request yields a limit: 1.3 times the 95th percentile. A request that exceeds it is
//! cancelled and reissued, at most once. A token bucket allows one reissue per twenty requests, so that a server that is
//! slow overall does not get more load. Until there are enough samples, nothing is reissued.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The number of samples before the first limit is computed.
const MIN_SAMPLES: u32 = 128;
/// Beyond this many samples all counts are halved, so that old samples lose weight.
const MAX_SAMPLES: u32 = 4_096;
/// The limit is recomputed after this many samples.
const UPDATE_EVERY: u32 = 64;
/// The limit is `FACTOR` times this quantile of the latency.
const QUANTILE: f64 = 0.95;
const FACTOR: f64 = 1.3;
/// The smallest limit, so that a busy local machine does not look like a slow server.
const MIN_LIMIT: Duration = Duration::from_millis(200);
/// The tokens that one reissue costs. Every request adds one token.
const REISSUE_COST: i64 = 20;
/// The number of reissues that the token bucket can hold.
const MAX_BURST: i64 = 10;

const BUCKETS: usize = 64;

/// A [`Hedge`] for each kind of request.
#[derive(Debug, Default)]
pub(super) struct Hedges {
    pub(super) get: Hedge,
    pub(super) head: Hedge,
    pub(super) list: Hedge,
}

/// The latency histogram and the reissue budget of one kind of request.
#[derive(Debug)]
pub(super) struct Hedge {
    /// Logarithmic buckets from 1 ms, four per doubling.
    buckets: [AtomicU32; BUCKETS],
    samples: AtomicU32,
    /// In microseconds; zero until there are enough samples.
    limit: AtomicU64,
    tokens: AtomicI64,
}

impl Default for Hedge {
    fn default() -> Self {
        Self {
            buckets: [const { AtomicU32::new(0) }; BUCKETS],
            samples: AtomicU32::new(0),
            limit: AtomicU64::new(0),
            tokens: AtomicI64::new(0),
        }
    }
}

impl Hedge {
    /// Records the latency of a request, and adds a token.
    pub(super) fn record(&self, took: Duration) {
        let milliseconds = took.as_secs_f64() * 1e3;
        #[allow(clippy::cast_sign_loss, reason = "never negative, and bounded before it is used")]
        let bucket = ((milliseconds.max(1.0).log2() * 4.0) as usize).min(BUCKETS - 1);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let _ = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |tokens| {
            Some((tokens + 1).min(MAX_BURST * REISSUE_COST))
        });
        let samples = self.samples.fetch_add(1, Ordering::Relaxed) + 1;
        if samples >= MIN_SAMPLES && samples.is_multiple_of(UPDATE_EVERY) {
            self.update_limit();
        }
    }

    fn update_limit(&self) {
        let counts: Vec<u32> = self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let total: u32 = counts.iter().sum();
        let mut below = 0;
        let bucket = counts.iter().position(|count| {
            below += count;
            f64::from(below) >= f64::from(total) * QUANTILE
        });
        // The upper edge of the bucket, in seconds.
        let bucket = u32::try_from(bucket.unwrap_or(BUCKETS - 1)).unwrap_or(u32::MAX);
        let edge = 2f64.powf((f64::from(bucket) + 1.0) / 4.0) / 1e3;
        let limit = Duration::from_secs_f64(edge * FACTOR).max(MIN_LIMIT);
        self.limit.store(limit.as_micros() as u64, Ordering::Relaxed);
        if total > MAX_SAMPLES {
            for (bucket, count) in self.buckets.iter().zip(counts) {
                // Saturating, because two tasks may update the limit concurrently.
                let half = |now: u32| Some(now.saturating_sub(count / 2));
                let _ = bucket.fetch_update(Ordering::Relaxed, Ordering::Relaxed, half);
            }
        }
    }

    /// How long to wait before a request is reissued; `None` until there are enough samples.
    pub(super) fn limit(&self) -> Option<Duration> {
        match self.limit.load(Ordering::Relaxed) {
            0 => None,
            micros => Some(Duration::from_micros(micros)),
        }
    }

    /// Takes the tokens for one reissue; `false` if there are not enough.
    pub(super) fn may_reissue(&self) -> bool {
        let take = |tokens: i64| (tokens >= REISSUE_COST).then_some(tokens - REISSUE_COST);
        self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
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
        // The server became faster: old samples lose weight.
        for _ in 0..20_000 {
            hedge.record(Duration::from_millis(2));
        }
        assert_eq!(hedge.limit(), Some(MIN_LIMIT));
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
