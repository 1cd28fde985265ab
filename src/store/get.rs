//! Reading objects: HeadObject, GetObject, and the body of the answer: whole, or an error; never half of it taken for
//! the whole.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_s3::operation::get_object::GetObjectOutput;
use aws_sdk_s3::primitives::ByteStream;
use bytes::{Buf, Bytes};
use sha2::Digest as _;
use tracing::{Instrument, instrument};

use super::bucket::Store;
use super::clients::Clients;
use super::failure::{Failure, corrupt};
use super::history::{ObjectProperties, Seen};
use super::object::{ByteRange, Meta, etag_header, length, parse_content_range};
use super::send::{ReadTarget, Sending};
use crate::ambient::Instant;
use crate::cache::Passed;
use crate::error::{Error, ErrorKind, Hint, Result};
use crate::index::Digest;
use crate::mount::ObjectKey;

/// This much progress is no repeated failure: a long download may break now and then.
const PROGRESS: u64 = 1024 * 1024;

/// More room than this is made only when the bytes are there.
const MOST_RESERVED: u64 = 16 * 1024 * 1024;

/// So much must come within the time of an operation: a trickle is as good as silence.
const TRICKLE: u64 = 16 * 1024;

const PAUSE_BEFORE_RESUMING: Duration = Duration::from_millis(50);

/// An answer to a GetObject.
#[derive(Debug)]
pub(crate) enum Fetched {
    /// The object is there; its bytes follow.
    Found { meta: Meta, properties: Box<ObjectProperties>, body: Box<Body> },
    /// The object is there, and the range starts at or after its end.
    BehindTheEnd,
    /// It is still the version that is known.
    Unchanged,
    /// It is another version than the one that was asked for.
    Changed,
    /// No such key.
    Missing,
}

/// Which version is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Expect<'e> {
    /// Whichever is there.
    Any,
    /// This one, or [`Fetched::Changed`].
    Version(&'e str),
    /// Any but this one, which is known: else [`Fetched::Unchanged`].
    Not(&'e str),
}

/// The properties that the answer to a HEAD or a GET tells: two types with the same fields.
macro_rules! properties_of {
    ($answer:ident) => {
        ObjectProperties {
            content_type: $answer.content_type,
            content_encoding: $answer.content_encoding,
            content_language: $answer.content_language,
            content_disposition: $answer.content_disposition,
            cache_control: $answer.cache_control,
            ..ObjectProperties::of_metadata($answer.metadata)
        }
    };
}

impl Store {
    /// One HeadObject. A missing bucket looks like a missing key here: a HEAD has no body.
    pub(crate) async fn head(&self, key: &ObjectKey) -> Result<Option<Meta>> {
        Ok(self.look(key).await?.map(|seen| seen.meta))
    }

    /// What is there, with its properties. One HeadObject.
    #[instrument(level = "debug", skip_all, fields(key = key.as_str()))]
    pub(crate) async fn look(&self, key: &ObjectKey) -> Result<Option<Seen>> {
        let asked = key.clone();
        let send = move |clients: &Clients| -> Sending<_, _> {
            Box::pin(clients.reader.head_object().bucket(&*clients.bucket).key(asked.as_str()).send())
        };
        let about = ReadTarget { key: key.as_str(), how: Passed::Read, hedge: |hedges| &hedges.head };
        // Boxed: callers would carry it.
        match Box::pin(self.hedged(about, send)).await {
            Ok(head) => Ok(Some(Seen {
                meta: Meta::told(length(head.content_length)?, head.last_modified, head.e_tag),
                properties: properties_of!(head),
            })),
            // It has no body to tell by which of key and bucket is missing: a LIST must have the last word.
            Err(failure) if failure.status() == Some(404) => Ok(None),
            Err(failure) if self.is_missing(key, &failure).await? => Ok(None),
            Err(failure) => Err(self.fail_at(key.as_str(), Passed::Read, failure)),
        }
    }

    /// One GetObject; the body may send more, to go on where a connection broke.
    pub(crate) async fn get(&self, key: &ObjectKey, range: ByteRange, expect: Expect<'_>) -> Result<Fetched> {
        match self.send_get(key, range, expect).await {
            Ok(output) => received(key, range, output),
            Err(failure) => match (failure.status(), expect) {
                _ if failure.is_missing_key() => Ok(Fetched::Missing),
                (Some(304), Expect::Not(_)) => Ok(Fetched::Unchanged),
                (Some(412), Expect::Version(_)) => Ok(Fetched::Changed),
                (Some(416), _) => Ok(Fetched::BehindTheEnd),
                _ if self.is_missing(key, &failure).await? => Ok(Fetched::Missing),
                _ => Err(self.fail_at(key.as_str(), Passed::Read, failure)),
            },
        }
    }

    fn send_get(
        &self,
        key: &ObjectKey,
        range: ByteRange,
        expect: Expect<'_>,
    ) -> impl Future<Output = Result<GetObjectOutput, Failure>> + Send {
        let (if_match, if_none_match) = match expect {
            Expect::Any => (None, None),
            Expect::Version(etag) => (Some(etag_header(etag)), None),
            Expect::Not(etag) => (None, Some(etag_header(etag))),
        };
        let ask = Arc::new((key.clone(), range.header(), if_match, if_none_match));
        let send = move |clients: &Clients| -> Sending<_, _> {
            let (key, range, if_match, if_none_match) = &*ask;
            let request = clients
                .reader
                .get_object()
                .bucket(&*clients.bucket)
                .key(key.as_str())
                .set_range(range.clone())
                .set_if_match(if_match.clone())
                .set_if_none_match(if_none_match.clone());
            Box::pin(request.send())
        };
        let about = ReadTarget { key: key.as_str(), how: Passed::Read, hedge: |hedges| &hedges.get };
        let span = tracing::debug_span!("get", key = key.as_str(), ?range);
        // Boxed: callers would carry it.
        Box::pin(self.hedged(about, send)).instrument(span)
    }
}

fn received(key: &ObjectKey, range: ByteRange, output: GetObjectOutput) -> Result<Fetched> {
    let length = length(output.content_length)?;
    let (start, total) = match output.content_range.as_deref() {
        Some(header) => parse_content_range(header, length)
            .filter(|(start, _)| *start == range.start)
            .ok_or_else(|| corrupt(format!("the storage returned a wrong range, `{header}`")))?,
        // A server that ignores ranges sends everything from the front.
        None => (0, length),
    };
    let meta = Meta::told(total, output.last_modified, output.e_tag);
    let end = range.end.unwrap_or(total).min(total);
    let body = Body {
        key: key.clone(),
        wanted: range.start..end,
        at: start,
        etag: meta.etag.clone(),
        stream: output.body,
        resumed: 0,
        resumed_at: range.start,
        waited: Duration::ZERO,
        waited_at: range.start,
        verify: None,
    };
    let properties = properties_of!(output);
    Ok(Fetched::Found { meta, properties: Box::new(properties), body: Box::new(body) })
}

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
    verify: Option<(sha2::Sha256, Digest)>,
}

impl Body {
    /// All bytes together must have this digest; otherwise the last of them is an error. To be called before the
    /// first piece.
    pub(crate) fn verify(&mut self, sha256: Digest) {
        self.verify = Some((sha2::Sha256::default(), sha256));
    }

    /// Content that is not what its digest says.
    pub(crate) fn wrong_content(sha256: Digest) -> Error {
        Error::new(ErrorKind::Corrupt, format!("the stored content is not what was published ({sha256})"))
            .with_hint(Hint::RepairLibrary)
    }

    /// The same, told by its size.
    pub(crate) fn wrong_size() -> Error {
        Error::new(ErrorKind::Corrupt, "the stored content is not what was published: its size differs")
            .with_hint(Hint::RepairLibrary)
    }

    /// How many bytes are still to come.
    pub(crate) fn remaining(&self) -> u64 {
        self.wanted.end.saturating_sub(self.wanted.start)
    }

    /// The next piece; `None` when all that was wanted has come.
    pub(crate) async fn next(&mut self, store: &Store) -> Result<Option<Bytes>> {
        while self.remaining() > 0 {
            let asked = Instant::now();
            let next = tokio::time::timeout(store.limits.body_silence, self.stream.next()).await;
            self.waited += asked.elapsed();
            let broken = match next {
                Ok(Some(Ok(piece))) => {
                    let piece = self.take(piece)?;
                    if self.wanted.start - self.waited_at >= TRICKLE {
                        (self.waited, self.waited_at) = (Duration::ZERO, self.wanted.start);
                    }
                    if self.waited > store.limits.body_patience && self.remaining() > 0 {
                        return Err(self.broken(ErrorKind::Timeout, "the storage sends too slowly"));
                    }
                    match piece {
                        Some(piece) => return Ok(Some(piece)),
                        None => continue,
                    }
                }
                Ok(Some(Err(error))) => {
                    self.broken(ErrorKind::Unavailable, "the connection broke").with_source(error)
                }
                Ok(None) => self.broken(ErrorKind::Unavailable, "the response ended early"),
                Err(_) => self.broken(ErrorKind::Timeout, "the storage stopped sending"),
            };
            self.resume(store, broken).await?;
        }
        Ok(None)
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

    /// Cuts a piece of the stream down to what is wanted of it. The last one is an error if all of them together do
    /// not have the digest that they should.
    fn take(&mut self, mut piece: Bytes) -> Result<Option<Bytes>> {
        let starts = self.at;
        self.at += piece.len() as u64;
        let skip = self.wanted.start.saturating_sub(starts).min(piece.len() as u64);
        // Both fit: they are no longer than the piece.
        piece.advance(usize::try_from(skip).unwrap_or(usize::MAX));
        piece.truncate(usize::try_from(self.remaining()).unwrap_or(usize::MAX));
        self.wanted.start += piece.len() as u64;
        if let Some((hasher, _)) = &mut self.verify {
            hasher.update(&piece);
        }
        if self.remaining() == 0
            && let Some((hasher, sha256)) = self.verify.take()
            && Digest::finish(hasher) != sha256
        {
            return Err(Self::wrong_content(sha256));
        }
        Ok((!piece.is_empty()).then_some(piece))
    }

    fn broken(&self, kind: ErrorKind, what: &str) -> Error {
        Error::new(kind, format!("{what} with {} bytes missing", self.remaining()))
            .with_hint("the data was discarded; try again")
    }

    /// Asks for the rest; `broken` is the answer when that makes no sense any more.
    async fn resume(&mut self, store: &Store, broken: Error) -> Result<()> {
        if self.wanted.start - self.resumed_at >= PROGRESS {
            self.resumed = 0;
        }
        self.resumed_at = self.wanted.start;
        self.resumed += 1;
        // Without an ETag the rest could come from another version of the object.
        let Some(etag) = self.etag.clone().filter(|_| self.resumed < store.limits.max_attempts) else {
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
        let Fetched::Found { meta, body, .. } = received(&self.key, rest, response)? else {
            return Err(broken);
        };
        if meta.etag.as_ref() != Some(&etag) {
            return Err(corrupt("the storage ignored `If-Match` and sent another version"));
        }
        self.at = body.at;
        self.stream = body.stream;
        Ok(())
    }
}
