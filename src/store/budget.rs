//! How many requests may be sent again: so that a failing storage is not also flooded.
//!
//! Retries are bought with tokens. They come back with successes and with time, so that an outage ends for us
//! when it ends for the storage. The SDK keeps such a budget for what it sends, and lets nobody else take from it: the one
//! for requests that we send ourselves lies beside it, with the same numbers.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use aws_sdk_s3::config::retry::TokenBucket;

const CAPACITY: u32 = 500;
const COST: u32 = 5;
/// What may last longer costs more: a connection that breaks, a server that fails.
const TRANSIENT_COST: u32 = 10;
const REWARD: u32 = 1;
const EACH_SECOND: u32 = 5;

/// Why a request is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// The way there or the server failed.
    Transient,
    /// The server asked for fewer requests.
    Throttled,
    /// The signature's time was not the server's.
    Clock,
}

impl Again {
    fn cost(self) -> i64 {
        i64::from(match self {
            Self::Transient => TRANSIENT_COST,
            Self::Throttled | Self::Clock => COST,
        })
    }
}

/// The budget of the SDK's clients. It is this store's own: by default all clients of a process share one, and
/// after an outage it only comes back with successes.
pub(super) fn of_the_sdk() -> TokenBucket {
    // Small whole numbers.
    #[allow(clippy::cast_precision_loss)]
    let (reward, refill) = (REWARD as f32, EACH_SECOND as f32);
    TokenBucket::builder()
        .capacity(CAPACITY as usize)
        .retry_cost(COST)
        .throttling_retry_cost(COST)
        .timeout_retry_cost(TRANSIENT_COST)
        .success_reward(reward)
        .refill_rate(refill)
        .build()
}

/// The budget of requests that we send ourselves.
#[derive(Debug)]
pub(super) struct Budget {
    tokens: AtomicI64,
    began: Instant,
    /// In which second of its life it was last filled up.
    filled: AtomicU64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { tokens: AtomicI64::new(CAPACITY.into()), began: Instant::now(), filled: AtomicU64::new(0) }
    }
}

impl Budget {
    /// A request succeeded.
    pub(super) fn reward(&self) {
        self.add(REWARD.into());
    }

    /// Buys the right to send one request again.
    pub(super) fn take(&self, why: Again) -> bool {
        self.take_at(why, self.began.elapsed().as_secs())
    }

    fn take_at(&self, why: Again, second: u64) -> bool {
        // Whoever moves the second on brings what came in between.
        let seconds = second.saturating_sub(self.filled.fetch_max(second, Ordering::Relaxed));
        if seconds > 0 {
            self.add(i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(EACH_SECOND.into()));
        }
        let cost = why.cost();
        let buy = |tokens: i64| (tokens >= cost).then(|| tokens - cost);
        self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, buy).is_ok()
    }

    fn add(&self, more: i64) {
        let full = i64::from(CAPACITY);
        let grow = |tokens: i64| (tokens < full).then(|| tokens.saturating_add(more).min(full));
        // Full is what it is as a rule: then nothing is written.
        let _ = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_end_when_nothing_succeeds_and_come_back() {
        let budget = Budget::default();
        assert_eq!((0..1000).filter(|_| budget.take_at(Again::Transient, 0)).count(), 50);
        assert!(!budget.take_at(Again::Throttled, 0));
        // Successes bring them back, one by one.
        for _ in 0..5 {
            assert!(!budget.take_at(Again::Throttled, 0));
            budget.reward();
        }
        assert!(budget.take_at(Again::Throttled, 0));
        assert!(!budget.take_at(Again::Clock, 0));
        // So does time, and only once for each second.
        assert!(budget.take_at(Again::Clock, 1));
        assert!(!budget.take_at(Again::Clock, 1));
        assert_eq!((0..1000).filter(|_| budget.take_at(Again::Throttled, 11)).count(), 10);
    }

    #[test]
    fn it_is_never_more_than_full() {
        let budget = Budget::default();
        for _ in 0..1000 {
            budget.reward();
        }
        assert_eq!((0..1000).filter(|_| budget.take_at(Again::Throttled, u64::MAX)).count(), 100);
    }
}
