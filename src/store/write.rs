//! Writes that take effect exactly once, or fail with an error that says that the outcome is uncertain.
//!
//! PutObject, CopyObject and CompleteMultipartUpload are not retried by the SDK, because a blind retry could overwrite a
//! change of another writer. [`Store::put`] retries them itself: after a lost response it sends a HEAD and looks for its
//! write id in the object's metadata (see [`history`](super::history)). The decisions are pure functions with table
//! tests: [`after_failure`] (what to do after a failed attempt), [`verdict`] (what the object says about the write) and
//! [`after_look`] (what to do with that verdict).

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart, MetadataDirective};
use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tracing::instrument;

use super::bucket::{Route, Store};
use super::failure::{Failure, Outcome};
use super::history::{ObjectProperties, Seen, WriteId, with_properties};
use super::object::{etag_header, etag_token};
use crate::ambient::Instant;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{ObjectKey, WritableKey};

/// The lowest upload rate in bytes per second; slower uploads time out.
const MIN_UPLOAD_RATE: u64 = 128 * 1024;
/// The lowest rate of server-side copies in bytes per second.
const MIN_COPY_RATE: u64 = 8 * 1024 * 1024;
/// Additional time for the server to complete a multipart upload.
const COMPLETION_TIME: Duration = Duration::from_secs(60);

/// S3 reports times in seconds, and the clocks of its machines differ slightly.
const CLOCK_MARGIN: Duration = Duration::from_secs(2);

/// The encoding of a copy source, which the SDK sends verbatim in a header.
const COPY_SOURCE: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The precondition of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    /// None: any existing object is overwritten.
    Always,
    /// The object must not exist (`If-None-Match: *`).
    Absent,
    /// The object must have this version (`If-Match`).
    Version {
        etag: String,
        /// The history token and the modification time of the version, if the caller has seen it. An ETag alone may
        /// recur when the same content is written again.
        known: Option<(String, Option<SystemTime>)>,
    },
}

impl Condition {
    /// The condition that the object is unchanged since it was seen; `None` means that it did not exist.
    pub(crate) fn unchanged(seen: Option<&Seen>) -> Result<Self> {
        let Some(seen) = seen else { return Ok(Self::Absent) };
        let Some(etag) = seen.meta.etag.clone() else {
            return Err(Error::new(ErrorKind::Corrupt, "the storage returned no ETag for the object")
                .with_hint("without one, a change could overwrite that of another writer"));
        };
        let known = seen.properties.token(&seen.meta).map(|token| (token, seen.meta.modified));
        Ok(Self::Version { etag, known })
    }

    fn if_match(&self) -> Option<String> {
        match self {
            Self::Version { etag, .. } => Some(etag_header(etag)),
            Self::Always | Self::Absent => None,
        }
    }

    fn if_none_match(&self) -> Option<String> {
        matches!(self, Self::Absent).then(|| "*".to_owned())
    }
}

/// The source of the content of an object or of one part.
#[derive(Debug, Clone)]
pub(crate) enum PartSource {
    Bytes(Bytes),
    /// A range of a version of another object.
    Copy {
        source: ObjectKey,
        etag: String,
        range: Range<u64>,
    },
}

impl PartSource {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Copy { range, .. } => range.end - range.start,
        }
    }

    /// The keys that the credentials must cover to write this content to `key`.
    pub(super) fn keys<'k>(&'k self, key: &'k str) -> Vec<&'k str> {
        match self {
            Self::Bytes(_) => vec![key],
            Self::Copy { source, .. } => vec![key, source.as_str()],
        }
    }
}

/// The payload of a write.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    Whole(PartSource),
    /// Parts that were already uploaded. The properties were set when the upload started.
    Parts {
        upload: String,
        parts: Vec<(i32, String)>,
    },
}

/// A write that must take effect exactly once.
#[derive(Debug)]
pub(crate) struct Write<'a> {
    pub(crate) key: &'a WritableKey,
    pub(crate) id: &'a WriteId,
    pub(crate) payload: Payload,
    pub(crate) condition: Condition,
    pub(crate) properties: &'a ObjectProperties,
}

impl Write<'_> {
    /// The keys that the credentials must cover.
    fn keys(&self) -> Vec<&str> {
        match &self.payload {
            Payload::Whole(content) => content.keys(self.key.as_str()),
            Payload::Parts { .. } => vec![self.key.as_str()],
        }
    }
}

/// The outcome of a write.
#[derive(Debug)]
pub(crate) enum Put {
    /// It took effect. The ETag is `None` if another writer replaced the object before it could be read.
    Done { etag: Option<String> },
    /// Its precondition failed, and it certainly had no effect.
    Overtaken,
}

/// The attempts at one write. The SDK does not retry writes, because only the caller knows what a failure means.
pub(super) struct Attempts<'s> {
    store: &'s Store,
    route: Route<'s>,
    /// Expired credentials are renewed once, which does not count as a failure.
    renewed: bool,
    failures: u32,
}

/// The result of one attempt.
pub(super) enum Sent<T> {
    Done(T),
    Failed(Failure),
    /// The credentials had expired, so the request had no effect. They are renewed, and it can be sent again.
    Renewed,
}

impl Attempts<'_> {
    /// Sends a request with a permit of this tenant and a timeout.
    pub(super) async fn send<T, E, R>(
        &mut self,
        timeout: Duration,
        request: impl Fn(&Client) -> R + Send + Sync,
    ) -> Result<T, Failure>
    where
        Failure: From<E>,
        T: Send + 'static,
        E: Send + 'static,
        R: Future<Output = Result<T, E>> + Send + 'static,
    {
        loop {
            match self.send_once(timeout, &request).await {
                Sent::Done(done) => return Ok(done),
                Sent::Failed(failure) => return Err(failure),
                Sent::Renewed => {}
            }
        }
    }

    /// Like [`Attempts::send`], but returns [`Sent::Renewed`] instead of sending again. For requests that follow a HEAD
    /// of the object: renewing the credentials takes time, so the HEAD must be repeated.
    pub(super) async fn send_once<T, E, R>(
        &mut self,
        timeout: Duration,
        request: impl Fn(&Client) -> R + Send + Sync,
    ) -> Sent<T>
    where
        Failure: From<E>,
        T: Send + 'static,
        E: Send + 'static,
        R: Future<Output = Result<T, E>> + Send + 'static,
    {
        let sent = Instant::now();
        let clients = match self.route.clients().await {
            Ok((clients, _)) => clients,
            Err(failure) => return Sent::Failed(failure),
        };
        // Boxed, because the SDK's futures take 16 KB and would be part of every caller's future.
        let request = Box::pin(request(&clients.writer));
        let in_time = async move { tokio::time::timeout(timeout, request).await };
        let failure = match self.store.in_turn(in_time).await {
            Ok(Ok(done)) => return Sent::Done(done),
            Ok(Err(error)) => error.into(),
            Err(_) => Failure::timed_out(),
        };
        if self.renewed || !self.route.renews(&failure, sent) {
            return Sent::Failed(failure);
        }
        self.renewed = true;
        Sent::Renewed
    }

    /// Counts a failure. Returns whether all attempts are exhausted.
    pub(super) fn count_failure(&mut self) -> bool {
        self.failures += 1;
        self.failures >= self.store.limits.max_attempts
    }

    /// Sleeps before the next attempt, with backoff.
    pub(super) async fn pause(&self) {
        self.store.pause(self.failures).await;
    }
}

/// What the current state of an object says about a write whose response was lost.
#[derive(Debug, PartialEq, Eq)]
enum WriteVerdict {
    Done(Option<String>),
    /// The object is unchanged: the write has had no effect and can be sent again.
    NotYet,
    /// Other writers changed the object, and this write certainly did not take effect.
    Overtaken,
    /// The write may or may not have taken effect.
    Undetermined,
}

impl Store {
    /// Writes an object. Usually one request; it is retried only if it cannot be applied twice.
    #[instrument(level = "debug", skip_all, fields(key = write.key.as_str(), id = write.id.as_str()))]
    pub(crate) async fn put(&self, write: &Write<'_>) -> Result<Put> {
        let _changing = self.changing([write.key]);
        let began = Instant::now();
        let mut condition = write.condition.clone();
        // The first lost response. From then on, only the object itself shows whether the write took effect.
        let mut lost: Option<Error> = None;
        // Whether an earlier request may still take effect after a HEAD.
        let mut in_flight = false;
        let mut attempts = self.attempts(&write.keys());
        // The server may ignore the condition of a CompleteMultipartUpload, so check the version first. A race remains
        // only between the two requests.
        if let (Payload::Parts { .. }, Condition::Version { etag, .. }, false) =
            (&write.payload, &condition, self.capabilities.uploads())
        {
            let now = self.look(write.key.key()).await?;
            if now.and_then(|seen| seen.meta.etag).as_ref() != Some(etag) {
                return Ok(Put::Overtaken);
            }
        }
        loop {
            let failure = match Box::pin(self.attempt(&mut attempts, write, &condition)).await {
                Ok(etag) => return Ok(Put::Done { etag: etag.map(etag_token) }),
                Err(failure) => failure,
            };
            let exhausted = attempts.count_failure();
            in_flight |= failure.may_be_in_flight();
            if failure.may_be_in_flight() {
                self.unanswered_writes.fetch_add(1, Ordering::Relaxed);
            }
            let outcome = match failure.outcome() {
                // The request had no condition, so a 409 means that the server is busy.
                Outcome::Condition
                    if condition == Condition::Always
                        && matches!(write.payload, Payload::Whole(PartSource::Bytes(_))) =>
                {
                    Outcome::NotDone
                }
                outcome => outcome,
            };
            let reason = match after_failure(lost.is_some(), outcome, exhausted) {
                AfterFailure::Overtaken => return Ok(Put::Overtaken),
                AfterFailure::Fail if outcome == Outcome::Refused => {
                    return match self.object_is_missing(write, &condition, &failure).await? {
                        true => Ok(Put::Overtaken),
                        false => Err(self.fail(failure)),
                    };
                }
                AfterFailure::Fail => return Err(self.fail(failure)),
                AfterFailure::Resend => {
                    attempts.pause().await;
                    continue;
                }
                AfterFailure::Look => lost.take().unwrap_or_else(|| self.fail(failure)),
            };
            tracing::debug!("checking whether a write took effect: {}", reason.message());
            let seen = match self.look(write.key.key()).await {
                Ok(seen) => seen,
                Err(error) => return Err(Error::uncertain(error)),
            };
            // By the server's clock, which the HEAD has just updated.
            let started = self.clock.now().and_then(|now| now.checked_sub(began.elapsed()));
            let verdict = verdict(seen.as_ref(), write.id, &write.condition, started);
            match after_look(verdict, outcome, exhausted, in_flight) {
                AfterLook::Done(etag) => return Ok(Put::Done { etag }),
                AfterLook::Overtaken => return Ok(Put::Overtaken),
                AfterLook::Uncertain => return Err(Error::uncertain(reason)),
                AfterLook::Fail => return Err(reason),
                AfterLook::Resend if write.condition == Condition::Always => {
                    // The retry may only overwrite the version that the HEAD returned.
                    condition = Condition::unchanged(seen.as_ref())?;
                }
                AfterLook::Resend => {}
            }
            lost = Some(reason);
            attempts.pause().await;
        }
    }

    /// Returns whether S3 denied the write because the version to be overwritten, or the source of a copy, does not
    /// exist.
    async fn object_is_missing(
        &self,
        write: &Write<'_>,
        condition: &Condition,
        failure: &Failure,
    ) -> Result<bool> {
        if matches!(condition, Condition::Version { .. }) && self.is_missing(write.key.key(), failure).await?
        {
            return Ok(true);
        }
        match &write.payload {
            Payload::Whole(PartSource::Copy { source, .. }) => self.is_missing(source, failure).await,
            _ => Ok(false),
        }
    }

    pub(super) fn attempts(&self, keys: &[&str]) -> Attempts<'_> {
        Attempts { store: self, route: self.route(keys), renewed: false, failures: 0 }
    }

    async fn attempt(
        &self,
        attempts: &mut Attempts<'_>,
        write: &Write<'_>,
        condition: &Condition,
    ) -> Result<Option<String>, Failure> {
        let key = write.key.as_str();
        match &write.payload {
            Payload::Whole(PartSource::Bytes(bytes)) => {
                let put = |writer: &Client| {
                    let request = writer
                        .put_object()
                        .bucket(&*self.name)
                        .key(key)
                        .set_if_match(condition.if_match())
                        .set_if_none_match(condition.if_none_match())
                        .body(ByteStream::from(bytes.clone()));
                    with_properties!(request, write.properties).send()
                };
                Ok(attempts.send(self.upload_timeout(bytes.len() as u64), put).await?.e_tag)
            }
            Payload::Whole(PartSource::Copy { source, etag, range }) => {
                let copy = |writer: &Client| {
                    let request = writer
                        .copy_object()
                        .bucket(&*self.name)
                        .key(key)
                        .copy_source(self.copy_source(source))
                        .copy_source_if_match(etag_header(etag))
                        .set_if_match(condition.if_match())
                        .set_if_none_match(condition.if_none_match())
                        .metadata_directive(MetadataDirective::Replace);
                    with_properties!(request, write.properties).send()
                };
                let copied = attempts.send(self.copy_timeout(range.end), copy).await?;
                Ok(copied.copy_object_result.and_then(|result| result.e_tag))
            }
            Payload::Parts { upload, parts } => {
                let part = |(number, etag): &(i32, String)| {
                    CompletedPart::builder().part_number(*number).e_tag(etag).build()
                };
                let parts: Vec<_> = parts.iter().map(part).collect();
                let parts = CompletedMultipartUpload::builder().set_parts(Some(parts)).build();
                let complete = |writer: &Client| {
                    writer
                        .complete_multipart_upload()
                        .bucket(&*self.name)
                        .key(key)
                        .upload_id(upload)
                        .set_if_match(condition.if_match())
                        .set_if_none_match(condition.if_none_match())
                        .multipart_upload(parts.clone())
                        .send()
                };
                Ok(attempts.send(self.limits.attempt + COMPLETION_TIME, complete).await?.e_tag)
            }
        }
    }

    /// The timeout of one attempt to upload this many bytes.
    pub(super) fn upload_timeout(&self, bytes: u64) -> Duration {
        self.limits.attempt + Duration::from_secs(bytes / MIN_UPLOAD_RATE)
    }

    /// The timeout of one attempt to copy this many bytes.
    pub(super) fn copy_timeout(&self, bytes: u64) -> Duration {
        self.limits.attempt + Duration::from_secs(bytes / MIN_COPY_RATE)
    }

    pub(super) fn copy_source(&self, key: &ObjectKey) -> String {
        format!("{}/{}", self.name, utf8_percent_encode(key.as_str(), COPY_SOURCE))
    }
}

/// What to do after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterFailure {
    /// Report that the precondition failed.
    Overtaken,
    Fail,
    Resend,
    /// A response was lost, now or earlier: check the object.
    Look,
}

fn after_failure(response_was_lost: bool, outcome: Outcome, exhausted: bool) -> AfterFailure {
    match outcome {
        _ if response_was_lost => AfterFailure::Look,
        Outcome::Lost => AfterFailure::Look,
        Outcome::Condition => AfterFailure::Overtaken,
        Outcome::Gone | Outcome::Refused => AfterFailure::Fail,
        Outcome::NotDone if exhausted => AfterFailure::Fail,
        Outcome::NotDone => AfterFailure::Resend,
    }
}

/// What to do after checking the object.
#[derive(Debug, PartialEq, Eq)]
enum AfterLook {
    Done(Option<String>),
    Overtaken,
    /// The write certainly had no effect.
    Fail,
    /// The write may have taken effect, or may still do so.
    Uncertain,
    Resend,
}

fn after_look(verdict: WriteVerdict, outcome: Outcome, exhausted: bool, in_flight: bool) -> AfterLook {
    match verdict {
        WriteVerdict::Done(etag) => AfterLook::Done(etag),
        WriteVerdict::Overtaken => AfterLook::Overtaken,
        WriteVerdict::Undetermined => AfterLook::Uncertain,
        // The upload was completed or aborted, and the object does not show which.
        WriteVerdict::NotYet if outcome == Outcome::Gone => AfterLook::Uncertain,
        WriteVerdict::NotYet if exhausted && in_flight => AfterLook::Uncertain,
        WriteVerdict::NotYet if exhausted => AfterLook::Fail,
        WriteVerdict::NotYet => AfterLook::Resend,
    }
}

/// Decides from the current state of the object whether a write with a lost response took effect. `started` is when the
/// write began, by the server's clock.
fn verdict(
    seen: Option<&Seen>,
    id: &WriteId,
    condition: &Condition,
    started: Option<SystemTime>,
) -> WriteVerdict {
    if let Some(seen) = seen
        && seen.properties.history.contains(id.as_str())
    {
        let newest = seen.properties.history.is_latest(id);
        return WriteVerdict::Done(seen.meta.etag.clone().filter(|_| newest));
    }
    // For a multipart upload, S3 reports the time when the upload started, which says nothing about its completion.
    let in_parts = |seen: &Seen| seen.meta.etag.as_ref().is_none_or(|etag| etag.contains('-'));
    let older = |seen: &Seen| match (seen.meta.modified, started) {
        (Some(modified), Some(started)) => !in_parts(seen) && modified + CLOCK_MARGIN <= started,
        _ => false,
    };
    match (condition, seen) {
        (Condition::Always | Condition::Absent, None) => WriteVerdict::NotYet,
        (Condition::Always, Some(seen)) if older(seen) => WriteVerdict::NotYet,
        (Condition::Absent, Some(seen)) if older(seen) => WriteVerdict::Overtaken,
        (Condition::Version { etag, known }, Some(seen)) => {
            let same_etag = seen.meta.etag.as_ref() == Some(etag);
            let Some((token, modified)) = known else {
                return if same_etag { WriteVerdict::NotYet } else { WriteVerdict::Undetermined };
            };
            let now = seen.properties.token(&seen.meta);
            if same_etag && now.as_ref() == Some(token) && seen.meta.modified == *modified {
                WriteVerdict::NotYet
            } else if (now.as_ref() != Some(token) && seen.properties.history.contains(token)) || older(seen)
            {
                // Every write since then left its id, and ours is not among them.
                WriteVerdict::Overtaken
            } else {
                WriteVerdict::Undetermined
            }
        }
        _ => WriteVerdict::Undetermined,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ambient::Ambient;
    use crate::store::{History, Meta};

    fn id() -> WriteId {
        WriteId::new(&Ambient::default()).unwrap()
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// An object with this ETag, modification time and history of write ids (newest first).
    fn seen(etag: &str, modified: u64, history: &[&WriteId]) -> Seen {
        let meta = Meta { size: 1, modified: Some(at(modified)), etag: Some(etag.to_owned()) };
        let mut ids = history.iter().rev();
        let first = ids.next().map(|id| History::first(id)).unwrap_or_default();
        let history = ids.fold(first, |history, id| history.grown(id, &meta));
        Seen { meta, properties: ObjectProperties { history, ..ObjectProperties::default() } }
    }

    #[test]
    fn verdict_on_a_write_with_a_lost_response() {
        use WriteVerdict::{Done, NotYet, Overtaken, Undetermined};
        let (own, other, base) = (id(), id(), id());
        let started = Some(at(1_000));
        let before = seen("e0", 100, &[&base]);
        let on_base = Condition::unchanged(Some(&before)).unwrap();
        let on_etag = Condition::Version { etag: "e0".to_owned(), known: None };
        let foreign = |etag: &str, modified: u64| seen(etag, modified, &[]);
        let cases: Vec<(&str, Option<Seen>, &Condition, WriteVerdict)> = vec![
            (
                "our id is the latest",
                Some(seen("e1", 1_001, &[&own, &base])),
                &on_base,
                Done(Some("e1".into())),
            ),
            ("another writer overwrote ours", Some(seen("e2", 1_002, &[&other, &own])), &on_base, Done(None)),
            ("missing, unconditional", None, &Condition::Always, NotYet),
            ("missing, create only", None, &Condition::Absent, NotYet),
            ("missing, If-Match", None, &on_base, Undetermined),
            ("older object, unconditional", Some(foreign("e9", 100)), &Condition::Always, NotYet),
            ("older object, create only", Some(foreign("e9", 100)), &Condition::Absent, Overtaken),
            ("newer object, unconditional", Some(foreign("e9", 1_000)), &Condition::Always, Undetermined),
            ("newer object, create only", Some(foreign("e9", 1_000)), &Condition::Absent, Undetermined),
            // S3 reports when a multipart upload started, not when it was completed.
            ("multipart, seems older", Some(foreign("e9-3", 100)), &Condition::Absent, Undetermined),
            ("base unchanged", Some(before.clone()), &on_base, NotYet),
            ("same content written again", Some(seen("e0", 1_001, &[&other])), &on_base, Undetermined),
            ("another write on the base", Some(seen("e3", 1_001, &[&other, &base])), &on_base, Overtaken),
            ("another tool replaced the base", Some(foreign("e3", 1_001)), &on_base, Undetermined),
            ("another tool did so before we began", Some(foreign("e3", 500)), &on_base, Overtaken),
            ("bare ETag, unchanged", Some(foreign("e0", 100)), &on_etag, NotYet),
            ("bare ETag, changed", Some(foreign("e1", 100)), &on_etag, Undetermined),
        ];
        for (what, seen, condition, expected) in cases {
            assert_eq!(verdict(seen.as_ref(), &own, condition, started), expected, "{what}");
        }
        // Without the server's clock, the age of the object proves nothing.
        let old = foreign("e9", 100);
        assert_eq!(verdict(Some(&old), &own, &Condition::Absent, None), Undetermined);
    }

    #[test]
    fn next_step_after_a_failure() {
        use AfterFailure::{Fail, Look, Resend};
        for (lost, outcome, exhausted, expected) in [
            (false, Outcome::Condition, false, AfterFailure::Overtaken),
            (false, Outcome::Condition, true, AfterFailure::Overtaken),
            (false, Outcome::Refused, false, Fail),
            (false, Outcome::Gone, false, Fail),
            (false, Outcome::NotDone, false, Resend),
            (false, Outcome::NotDone, true, Fail),
            (false, Outcome::Lost, false, Look),
            (false, Outcome::Lost, true, Look),
            // Once a response was lost, every later response may reflect the effect of the lost write.
            (true, Outcome::Condition, false, Look),
            (true, Outcome::Refused, false, Look),
            (true, Outcome::NotDone, true, Look),
            (true, Outcome::Gone, false, Look),
        ] {
            assert_eq!(after_failure(lost, outcome, exhausted), expected, "{lost} {outcome:?} {exhausted}");
        }
    }

    #[test]
    fn next_step_after_checking_the_object() {
        use AfterLook::{Fail, Resend, Uncertain};
        for (verdict, outcome, exhausted, in_flight, expected) in [
            (WriteVerdict::Done(None), Outcome::Lost, true, true, AfterLook::Done(None)),
            (WriteVerdict::Overtaken, Outcome::Lost, false, true, AfterLook::Overtaken),
            (WriteVerdict::Undetermined, Outcome::Lost, false, false, Uncertain),
            (WriteVerdict::NotYet, Outcome::Lost, false, true, Resend),
            (WriteVerdict::NotYet, Outcome::Lost, true, true, Uncertain),
            (WriteVerdict::NotYet, Outcome::NotDone, true, false, Fail),
            // A missing upload was completed or aborted, and the object may have been deleted since.
            (WriteVerdict::NotYet, Outcome::Gone, false, false, Uncertain),
        ] {
            let shown = format!("{verdict:?} {outcome:?} {exhausted} {in_flight}");
            assert_eq!(after_look(verdict, outcome, exhausted, in_flight), expected, "{shown}");
        }
    }
}
