//! The body of an object: whole, or an error; never half of it taken for the whole.

use std::ops::Range;
use std::time::{Duration, Instant};

use aws_sdk_s3::primitives::ByteStream;
use bytes::{Buf, Bytes};
use sha2::Digest as _;

use super::{ByteRange, Expect, Store, corrupt};
use crate::error::{Error, ErrorKind, Result};
use crate::index::Sha256;
use crate::mount::ObjectKey;

/// This much progress is no repeated failure: a long download may break now and then.
const PROGRESS: u64 = 1024 * 1024;

/// More room than this is made only when the bytes are there.
const MOST_RESERVED: u64 = 16 * 1024 * 1024;

/// So much must come within the time of an operation: a trickle is as good as silence.
const TRICKLE: u64 = 16 * 1024;

const PAUSE_BEFORE_RESUMING: Duration = Duration::from_millis(50);

/// Bytes of an object as they arrive.
///
/// A connection that breaks or falls silent is taken up again where it stopped, under the same
/// ETag; only so many times, then the reader gets an error.
#[derive(Debug)]
pub(crate) struct Body {
    key: ObjectKey,
    /// What is still wanted, counted from the object's front.
    wanted: Range<u64>,
    /// Where the next byte of the stream lies.
    at: u64,
    etag: Option<String>,
    stream: ByteStream,
    /// How often it was taken up without much progress, and where it was the last time.
    resumed: u32,
    resumed_at: u64,
    /// How long was waited for the bytes since `waited_at`; the reader's own time does not count.
    waited: Duration,
    waited_at: u64,
    /// What all bytes together must be.
    verify: Option<(sha2::Sha256, Sha256)>,
}

impl Body {
    pub(super) fn new(
        key: ObjectKey,
        wanted: Range<u64>,
        at: u64,
        etag: Option<String>,
        stream: ByteStream,
    ) -> Self {
        let resumed_at = wanted.start;
        let waited_at = wanted.start;
        Self {
            key,
            wanted,
            at,
            etag,
            stream,
            resumed: 0,
            resumed_at,
            waited: Duration::ZERO,
            waited_at,
            verify: None,
        }
    }

    /// All bytes together must have this digest; otherwise the last of them is an error. To be called before the
    /// first piece.
    pub(crate) fn verify(&mut self, sha256: Sha256) {
        self.verify = Some((sha2::Sha256::default(), sha256));
    }

    /// Content that is not what its digest says.
    pub(crate) fn wrong_content(sha256: Sha256) -> Error {
        Error::new(ErrorKind::Corrupt, format!("the stored content is not what was published ({sha256})"))
            .with_hint("an administrator runs `skillfs admin verify --repair`, or publishes the skill again")
    }

    /// How many bytes are still to come.
    pub(crate) fn remaining(&self) -> u64 {
        self.wanted.end.saturating_sub(self.wanted.start)
    }

    /// The next piece; `None` when all that was wanted has come.
    pub(crate) async fn next(&mut self, store: &Store) -> Result<Option<Bytes>> {
        while self.remaining() > 0 {
            let asked = Instant::now();
            let next = tokio::time::timeout(store.body_silence, self.stream.next()).await;
            self.waited += asked.elapsed();
            let broken = match next {
                Ok(Some(Ok(piece))) => {
                    let piece = self.take(piece);
                    if self.wanted.start - self.waited_at >= TRICKLE {
                        (self.waited, self.waited_at) = (Duration::ZERO, self.wanted.start);
                    }
                    if self.waited > store.body_patience && self.remaining() > 0 {
                        return Err(self.broken(ErrorKind::Timeout, "the storage sends too slowly"));
                    }
                    match piece {
                        Some(piece) => return self.checked(piece).map(Some),
                        None => continue,
                    }
                }
                Ok(Some(Err(error))) => {
                    self.broken(ErrorKind::Unavailable, "the connection broke").with_source(error)
                }
                Ok(None) => self.broken(ErrorKind::Unavailable, "the answer ended early"),
                Err(_) => self.broken(ErrorKind::Timeout, "the storage fell silent"),
            };
            self.resume(store, broken).await?;
        }
        Ok(None)
    }

    fn checked(&mut self, piece: Bytes) -> Result<Bytes> {
        if let Some((hasher, _)) = &mut self.verify {
            hasher.update(&piece);
        }
        if self.remaining() == 0
            && let Some((hasher, sha256)) = self.verify.take()
            && Sha256::finish(hasher) != sha256
        {
            return Err(Self::wrong_content(sha256));
        }
        Ok(piece)
    }

    /// All that is still to come.
    pub(crate) async fn collect(&mut self, store: &Store, into: &mut Vec<u8>) -> Result<()> {
        // What a server claims is believed up to a point.
        let more = usize::try_from(self.remaining().min(MOST_RESERVED)).unwrap_or(0);
        if into.capacity() - into.len() < more {
            into.reserve_exact(more);
        }
        while let Some(piece) = self.next(store).await? {
            into.extend_from_slice(&piece);
        }
        Ok(())
    }

    /// Cuts a piece of the stream down to what is wanted of it.
    fn take(&mut self, mut piece: Bytes) -> Option<Bytes> {
        let starts = self.at;
        self.at += piece.len() as u64;
        let skip = self.wanted.start.saturating_sub(starts).min(piece.len() as u64);
        // Both fit: they are no longer than the piece.
        piece.advance(usize::try_from(skip).unwrap_or(usize::MAX));
        piece.truncate(usize::try_from(self.remaining()).unwrap_or(usize::MAX));
        self.wanted.start += piece.len() as u64;
        (!piece.is_empty()).then_some(piece)
    }

    fn broken(&self, kind: ErrorKind, what: &str) -> Error {
        Error::new(kind, format!("{what} with {} bytes missing", self.remaining()))
            .with_hint("nothing of it was used; try again")
    }

    /// Asks for the rest; `broken` is the answer when that makes no sense any more.
    async fn resume(&mut self, store: &Store, broken: Error) -> Result<()> {
        if self.wanted.start - self.resumed_at >= PROGRESS {
            self.resumed = 0;
        }
        self.resumed_at = self.wanted.start;
        self.resumed += 1;
        // Without an ETag the rest could come from another version of the object.
        let Some(etag) = self.etag.clone().filter(|_| self.resumed < store.max_attempts) else {
            return Err(broken);
        };
        tracing::debug!(
            key = self.key.as_str(),
            from = self.wanted.start,
            "resuming a broken body: {broken}"
        );
        tokio::time::sleep(PAUSE_BEFORE_RESUMING).await;
        let rest = ByteRange { start: self.wanted.start, end: Some(self.wanted.end) };
        let response = match store.send_get(&self.key, rest, Expect::Version(&etag)).await {
            Ok(response) => response,
            Err(failure) if matches!(failure.status(), Some(404 | 412 | 416)) => {
                return Err(Error::new(ErrorKind::Conflict, "it was changed while it was being read")
                    .with_hint("read it again"));
            }
            Err(failure) => return Err(store.fail(failure)),
        };
        let (meta, _, body) = Store::received(&self.key, rest, response)?;
        if meta.etag.as_ref() != Some(&etag) {
            return Err(corrupt("the storage ignored `If-Match` and sent another version"));
        }
        self.at = body.at;
        self.stream = body.stream;
        Ok(())
    }
}
