//! The wall clock and the source of randomness of a handle.
//!
//! Monotonic time is tokio's, so that tests can pause it. Wall-clock time and random bytes come from an [`Ambient`],
//! which a program can replace (see [`Components`](crate::Components)). `clippy.toml` disallows the standard library's
//! clocks and other sources of randomness everywhere else, so that tests control both.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub(crate) use tokio::time::Instant;

use crate::error::{Error, ErrorKind, Result};

/// A wall clock.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Returns the current time.
    fn now(&self) -> SystemTime;
}

/// A source of random bytes.
pub trait Randomness: fmt::Debug + Send + Sync {
    /// Fills the buffer with random bytes.
    ///
    /// # Errors
    /// If no random bytes are available.
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()>;
}

/// The clock and the randomness of the operating system.
#[derive(Debug)]
struct OperatingSystem;

impl Clock for OperatingSystem {
    #[expect(clippy::disallowed_methods, reason = "the only use in the crate")]
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

impl Randomness for OperatingSystem {
    #[expect(clippy::disallowed_methods, reason = "the only use in the crate")]
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        getrandom::fill(bytes).map_err(|error| io::Error::other(error.to_string()))
    }
}

/// The clock and the randomness of a handle. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Ambient {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) randomness: Arc<dyn Randomness>,
}

impl Default for Ambient {
    fn default() -> Self {
        Self { clock: Arc::new(OperatingSystem), randomness: Arc::new(OperatingSystem) }
    }
}

impl Ambient {
    pub(crate) fn now(&self) -> SystemTime {
        self.clock.now()
    }

    /// Generates a unique id: 72 random bits as twelve letters, digits, `-` and `_`.
    pub(crate) fn id(&self) -> Result<String> {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut random = [0; 12];
        self.randomness.fill(&mut random).map_err(|e| {
            Error::new(ErrorKind::Internal, "this machine provides no random numbers").with_source(e)
        })?;
        Ok(random.iter().map(|byte| char::from(LETTERS[usize::from(byte % 64)])).collect())
    }

    /// The delay before the next attempt: exponential backoff with full jitter.
    pub(crate) fn backoff(&self, failures: u32) -> Duration {
        const FIRST: Duration = Duration::from_millis(25);
        const LONGEST: Duration = Duration::from_secs(1);
        let longest = FIRST.saturating_mul(1 << failures.min(8)).min(LONGEST);
        let mut random = [0; 4];
        // Without random numbers, use the longest delay.
        let filled = self.randomness.fill(&mut random);
        let part = filled.map_or(1.0, |()| f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX));
        longest.mul_f64(part)
    }
}

/// Seconds since 1970.
pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Always returns the same bytes.
    #[derive(Debug)]
    struct Fixed(u8);

    impl Randomness for Fixed {
        fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
            bytes.fill(self.0);
            Ok(())
        }
    }

    #[derive(Debug)]
    struct Failing;

    impl Randomness for Failing {
        fn fill(&self, _: &mut [u8]) -> io::Result<()> {
            Err(io::Error::other("none"))
        }
    }

    fn with(randomness: impl Randomness + 'static) -> Ambient {
        Ambient { randomness: Arc::new(randomness), ..Ambient::default() }
    }

    #[test]
    fn backoff_grows_with_full_jitter_and_is_bounded() {
        let milliseconds = |ambient: &Ambient, failures| ambient.backoff(failures).as_millis();
        let (longest, zero) = (with(Fixed(255)), with(Fixed(0)));
        assert_eq!(
            [1, 2, 3, 4, 5, 6, 60].map(|n| milliseconds(&longest, n)),
            [50, 100, 200, 400, 800, 1000, 1000]
        );
        assert_eq!([1, 2, 60].map(|n| milliseconds(&zero, n)), [0, 0, 0]);
        assert_eq!(milliseconds(&with(Failing), 1), 50, "without random numbers the delay is the longest");
    }

    #[test]
    fn ids_are_random_and_plain_text() {
        let ids: std::collections::BTreeSet<_> =
            (0..1_000).map(|_| Ambient::default().id().unwrap()).collect();
        assert_eq!(ids.len(), 1_000);
        assert!(
            ids.iter()
                .all(|id| id.len() == 12
                    && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)))
        );
        assert_eq!(with(Fixed(0)).id().unwrap(), "AAAAAAAAAAAA");
        assert_eq!(with(Failing).id().unwrap_err().kind(), ErrorKind::Internal);
    }
}
