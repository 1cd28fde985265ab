//! HeadObject and GetObject, and the response body. A body is delivered completely, or the reader gets an error.
//!
//! A body that breaks or stalls is resumed with a ranged GET under the same ETag (`If-Match`), so the bytes always
//! belong to one version. The number of resumptions without progress is limited.

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

/// After this much progress the count of resumptions starts again: a long download may break several times.
const RESUME_PROGRESS: u64 = 1024 * 1024;

/// The most memory reserved up front. The reported length is not trusted beyond it.
const MAX_RESERVED: u64 = 16 * 1024 * 1024;

/// A body must deliver at least this many bytes within the operation timeout; slower ones are treated as stalled.
const MIN_PROGRESS: u64 = 16 * 1024;

const PAUSE_BEFORE_RESUMING: Duration = Duration::from_millis(50);

/// The result of a GetObject.
#[derive(Debug)]
pub(crate) enum Fetched {
    /// The object exists; the body follows.
    Found { meta: Meta, properties: Box<ObjectProperties>, body: Box<Body> },
    /// The object exists, and the range starts at or past its end.
    BehindTheEnd,
    /// The object still has the version that the caller has.
    Unchanged,
    /// The object has another version than the requested one.
    Changed,
    /// The key does not exist.
    Missing,
}

/// Which version of an object to fetch.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Expect<'e> {
    /// The current one, whatever it is.
    Any,
    /// The version with this ETag; otherwise [`Fetched::Changed`].
    Version(&'e str),
    /// Any version but the one with this ETag, which the caller has; otherwise [`Fetched::Unchanged`].
    Not(&'e str),
}

/// Extracts the object properties from a HEAD or GET response. A macro, because the two output types share no trait.
macro_rules! properties_of {
    ($output:ident) => {
        ObjectProperties {
            content_type: $output.content_type,
            content_encoding: $output.content_encoding,
            content_language: $output.content_language,
            content_disposition: $output.content_disposition,
            cache_control: $output.cache_control,
            ..ObjectProperties::of_metadata($output.metadata)
        }
    };
}

impl Store {
    /// Returns the metadata of an object. One HeadObject. A missing bucket is indistinguishable from a missing key,
    /// because the response to HEAD has no body.
    pub(crate) async fn head(&self, key: &ObjectKey) -> Result<Option<Meta>> {
        Ok(self.look(key).await?.map(|seen| seen.meta))
    }

    /// Returns the metadata and the properties of an object. One HeadObject.
    #[instrument(level = "debug", skip_all, fields(key = key.as_str()))]
    pub(crate) async fn look(&self, key: &ObjectKey) -> Result<Option<Seen>> {
        let requested = key.clone();
        let send = move |clients: &Clients| -> Sending<_, _> {
            Box::pin(clients.reader.head_object().bucket(&*clients.bucket).key(requested.as_str()).send())
        };
        let about = ReadTarget { key: key.as_str(), how: Passed::Read, hedge: |hedges| &hedges.head };
        // Boxed to keep the futures of callers small.
        match Box::pin(self.hedged(about, send)).await {
            Ok(head) => Ok(Some(Seen {
                meta: Meta::from_headers(length(head.content_length)?, head.last_modified, head.e_tag),
                properties: properties_of!(head),
            })),
            // Without a body it is unknown whether the key or the bucket is missing. A LIST tells them apart.
            Err(failure) if failure.status() == Some(404) => Ok(None),
            Err(failure) if self.is_missing(key, &failure).await? => Ok(None),
            Err(failure) => Err(self.fail_at(key.as_str(), Passed::Read, failure)),
        }
    }

    /// Fetches a range of an object. One GetObject; reading the body may send more to resume a broken connection.
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
        let parameters = Arc::new((key.clone(), range.header(), if_match, if_none_match));
        let send = move |clients: &Clients| -> Sending<_, _> {
            let (key, range, if_match, if_none_match) = &*parameters;
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
        // Boxed to keep the futures of callers small.
        Box::pin(self.hedged(about, send)).instrument(span)
    }
}

fn received(key: &ObjectKey, range: ByteRange, output: GetObjectOutput) -> Result<Fetched> {
    let length = length(output.content_length)?;
    let (start, total) = match output.content_range.as_deref() {
        Some(header) => parse_content_range(header, length)
            .filter(|(start, _)| *start == range.start)
            .ok_or_else(|| corrupt(format!("the storage returned a wrong range, `{header}`")))?,
        // A server that ignores ranges sends the entire object.
        None => (0, length),
    };
    let meta = Meta::from_headers(total, output.last_modified, output.e_tag);
    let end = range.end.unwrap_or(total).min(total);
    let body = Body {
        key: key.clone(),
        pending: range.start..end,
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

/// The body of a GetObject response, as a stream of byte chunks.
///
/// A connection that breaks or stalls is resumed where it stopped, under the same ETag. After too many resumptions
/// without progress the reader gets an error.
#[derive(Debug)]
pub(crate) struct Body {
    key: ObjectKey,
    /// The range of the object that is still to be returned.
    pending: Range<u64>,
    /// The offset in the object of the next byte of `stream`.
    at: u64,
    etag: Option<String>,
    stream: ByteStream,
    /// The number of resumptions without much progress, and the offset of the last one.
    resumed: u32,
    resumed_at: u64,
    /// The time spent waiting for bytes since offset `waited_at`, excluding the time that the reader takes.
    waited: Duration,
    waited_at: u64,
    /// The running hash of all bytes, and the expected digest.
    verify: Option<(sha2::Sha256, Digest)>,
}

impl Body {
    /// Verifies the digest of all bytes: if it differs, the last chunk is an error. Call it before the first
    /// [`Body::next`].
    pub(crate) fn verify(&mut self, sha256: Digest) {
        self.verify = Some((sha2::Sha256::default(), sha256));
    }

    /// The error for content that does not match its digest.
    pub(crate) fn wrong_content(sha256: Digest) -> Error {
        Error::new(ErrorKind::Corrupt, format!("the stored content is not what was published ({sha256})"))
            .with_hint(Hint::RepairLibrary)
    }

    /// The error for content that does not have the published size.
    pub(crate) fn wrong_size() -> Error {
        Error::new(ErrorKind::Corrupt, "the stored content is not what was published: its size differs")
            .with_hint(Hint::RepairLibrary)
    }

    /// The number of bytes still to be returned.
    pub(crate) fn remaining(&self) -> u64 {
        self.pending.end.saturating_sub(self.pending.start)
    }

    /// Returns the next chunk; `None` after the last one.
    pub(crate) async fn next(&mut self, store: &Store) -> Result<Option<Bytes>> {
        while self.remaining() > 0 {
            let polled = Instant::now();
            let next = tokio::time::timeout(store.limits.body_idle_timeout, self.stream.next()).await;
            self.waited += polled.elapsed();
            let broken = match next {
                Ok(Some(Ok(piece))) => {
                    let piece = self.take(piece)?;
                    if self.pending.start - self.waited_at >= MIN_PROGRESS {
                        (self.waited, self.waited_at) = (Duration::ZERO, self.pending.start);
                    }
                    if self.waited > store.limits.body_slow_timeout && self.remaining() > 0 {
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

    /// Appends all remaining bytes to `into`.
    pub(crate) async fn collect(&mut self, store: &Store, into: &mut Vec<u8>) -> Result<()> {
        let more = usize::try_from(self.remaining().min(MAX_RESERVED)).unwrap_or(0);
        if into.capacity() - into.len() < more {
            into.reserve_exact(more);
        }
        while let Some(piece) = self.next(store).await? {
            into.extend_from_slice(&piece);
        }
        Ok(())
    }

    /// Trims a chunk of the stream to the pending range. The last chunk is an error if the digest of all bytes does not
    /// match.
    fn take(&mut self, mut piece: Bytes) -> Result<Option<Bytes>> {
        let starts = self.at;
        self.at += piece.len() as u64;
        let skip = self.pending.start.saturating_sub(starts).min(piece.len() as u64);
        // Neither conversion fails: both are at most the length of the chunk.
        piece.advance(usize::try_from(skip).unwrap_or(usize::MAX));
        piece.truncate(usize::try_from(self.remaining()).unwrap_or(usize::MAX));
        self.pending.start += piece.len() as u64;
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

    /// Requests the rest of the range. Returns `broken` if the body cannot be resumed.
    async fn resume(&mut self, store: &Store, broken: Error) -> Result<()> {
        if self.pending.start - self.resumed_at >= RESUME_PROGRESS {
            self.resumed = 0;
        }
        self.resumed_at = self.pending.start;
        self.resumed += 1;
        // Without an ETag the rest could come from another version of the object.
        let Some(etag) = self.etag.clone().filter(|_| self.resumed < store.limits.max_attempts) else {
            return Err(broken);
        };
        tracing::debug!(
            key = self.key.as_str(),
            from = self.pending.start,
            "resuming a broken body: {broken}"
        );
        tokio::time::sleep(PAUSE_BEFORE_RESUMING).await;
        let rest = ByteRange { start: self.pending.start, end: Some(self.pending.end) };
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
