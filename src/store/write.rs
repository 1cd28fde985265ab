//! Writing: each write takes effect once, or the caller knows that it cannot be told.

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

/// Uploads slower than this are taken for dead.
const SLOWEST_UPLOAD: u64 = 128 * 1024;
/// The same for copies, which the server makes.
const SLOWEST_COPY: u64 = 8 * 1024 * 1024;
/// Putting parts together may take the server a while.
const PUTTING_TOGETHER: Duration = Duration::from_secs(60);

/// S3 tells times in whole seconds; and the clocks of its machines differ a little.
const CLOCK_MARGIN: Duration = Duration::from_secs(2);

/// A copy source stands in a header, which the SDK sends as it is.
const COPY_SOURCE: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// What must hold of the object that is there when a write takes effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Nothing: whatever is there is overwritten.
    Always,
    /// There is none.
    Absent,
    /// It is this version.
    Version {
        etag: String,
        /// What is known of it besides, where it was seen: content may come back, a version does not.
        known: Option<(String, Option<SystemTime>)>,
    },
}

impl Condition {
    /// That it is what was seen.
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

/// Where content comes from: all of it, or that of one part.
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

    /// What the credentials of a request that writes it to `key` must cover.
    pub(super) fn keys<'k>(&'k self, key: &'k str) -> Vec<&'k str> {
        match self {
            Self::Bytes(_) => vec![key],
            Self::Copy { source, .. } => vec![key, source.as_str()],
        }
    }
}

/// What a write sends.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    Whole(PartSource),
    /// Parts that were uploaded; the properties went with the upload.
    Parts {
        upload: String,
        parts: Vec<(i32, String)>,
    },
}

/// A write that shall take effect once.
#[derive(Debug)]
pub(crate) struct Write<'a> {
    pub(crate) key: &'a WritableKey,
    pub(crate) id: &'a WriteId,
    pub(crate) payload: Payload,
    pub(crate) condition: Condition,
    pub(crate) properties: &'a ObjectProperties,
}

impl Write<'_> {
    /// What its credentials must cover.
    fn keys(&self) -> Vec<&str> {
        match &self.payload {
            Payload::Whole(content) => content.keys(self.key.as_str()),
            Payload::Parts { .. } => vec![self.key.as_str()],
        }
    }
}

/// How a write ended.
#[derive(Debug)]
pub(crate) enum Put {
    /// It took effect. The ETag is not known when another writer came by before it was asked for.
    Done { etag: Option<String> },
    /// Its condition does not hold, and it surely had no effect.
    Overtaken,
}

/// The attempts at one write. The SDK does not retry writes: whoever sends one knows what a failure of it means.
pub(super) struct Attempts<'s> {
    store: &'s Store,
    route: Route<'s>,
    /// Credentials that ended on the way are renewed once, which does not count as a failure.
    renewed: bool,
    failures: u32,
}

/// What came of sending a write.
pub(super) enum Sent<T> {
    Done(T),
    Failed(Failure),
    /// Its credentials had ended, and nothing was done. They are renewed; it may be sent again.
    Renewed,
}

impl Attempts<'_> {
    /// Sends a request when it is this tenant's turn, and waits for so long.
    pub(super) async fn send<T, E, R>(
        &mut self,
        patience: Duration,
        request: impl Fn(&Client) -> R + Send + Sync,
    ) -> Result<T, Failure>
    where
        Failure: From<E>,
        T: Send + 'static,
        E: Send + 'static,
        R: Future<Output = Result<T, E>> + Send + 'static,
    {
        loop {
            match self.send_once(patience, &request).await {
                Sent::Done(done) => return Ok(done),
                Sent::Failed(failure) => return Err(failure),
                Sent::Renewed => {}
            }
        }
    }

    /// The same for a request that is preceded by a look at the object: renewing credentials takes time, so the look
    /// must be repeated.
    pub(super) async fn send_once<T, E, R>(
        &mut self,
        patience: Duration,
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
        // Boxed: the SDK's futures take 16 KB, and every caller would carry them.
        let request = Box::pin(request(&clients.writer));
        let in_time = async move { tokio::time::timeout(patience, request).await };
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

    /// Counts a failure. Tells whether attempts are exhausted.
    pub(super) fn count_failure(&mut self) -> bool {
        self.failures += 1;
        self.failures >= self.store.limits.max_attempts
    }

    /// Waits before the next attempt.
    pub(super) async fn pause(&self) {
        self.store.pause(self.failures).await;
    }
}

/// What a look at the object tells about a write whose answer was lost.
#[derive(Debug, PartialEq, Eq)]
enum WriteVerdict {
    Done(Option<String>),
    /// Nothing has changed: it had no effect, and may be sent again.
    NotYet,
    /// Others changed it, and this write is surely not among them.
    Overtaken,
    Unknowable,
}

impl Store {
    /// Writes an object: one request as a rule, sent again where that cannot apply it twice.
    #[instrument(level = "debug", skip_all, fields(key = write.key.as_str(), id = write.id.as_str()))]
    pub(crate) async fn put(&self, write: &Write<'_>) -> Result<Put> {
        let _changing = self.changing([write.key]);
        let began = Instant::now();
        let mut condition = write.condition.clone();
        // The first answer that was lost: from then on only a look at the object tells.
        let mut lost: Option<Error> = None;
        // Whether a request may still be on its way: then a look tells what is, and not what will be.
        let mut under_way = false;
        let mut attempts = self.attempts(&write.keys());
        // Such a server was only asked about plain writes. What is left of the risk is the time between
        // two requests.
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
            under_way |= failure.may_be_under_way();
            if failure.may_be_under_way() {
                self.unanswered_writes.fetch_add(1, Ordering::Relaxed);
            }
            let outcome = match failure.outcome() {
                // Nothing was asked of the object, so this is the server being busy.
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
                    return match self.has_gone(write, &condition, &failure).await? {
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
            // As the server told the time with what was seen.
            let started = self.clock.now().and_then(|now| now.checked_sub(began.elapsed()));
            let verdict = verdict(seen.as_ref(), write.id, &write.condition, started);
            match after_look(verdict, outcome, exhausted, under_way) {
                AfterLook::Done(etag) => return Ok(Put::Done { etag }),
                AfterLook::Overtaken => return Ok(Put::Overtaken),
                AfterLook::Uncertain => return Err(Error::uncertain(reason)),
                AfterLook::Fail => return Err(reason),
                AfterLook::Resend if write.condition == Condition::Always => {
                    // Sent again, it overwrites only what was seen.
                    condition = Condition::unchanged(seen.as_ref())?;
                }
                AfterLook::Resend => {}
            }
            lost = Some(reason);
            attempts.pause().await;
        }
    }

    /// Whether S3 may have refused because the version that is to be overwritten, or the source of a copy, is not there.
    async fn has_gone(&self, write: &Write<'_>, condition: &Condition, failure: &Failure) -> Result<bool> {
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
                Ok(attempts.send(self.upload_patience(bytes.len() as u64), put).await?.e_tag)
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
                let copied = attempts.send(self.copy_patience(range.end), copy).await?;
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
                Ok(attempts.send(self.limits.attempt + PUTTING_TOGETHER, complete).await?.e_tag)
            }
        }
    }

    /// How long one attempt to send so many bytes may take.
    pub(super) fn upload_patience(&self, bytes: u64) -> Duration {
        self.limits.attempt + Duration::from_secs(bytes / SLOWEST_UPLOAD)
    }

    pub(super) fn copy_patience(&self, bytes: u64) -> Duration {
        self.limits.attempt + Duration::from_secs(bytes / SLOWEST_COPY)
    }

    pub(super) fn copy_source(&self, key: &ObjectKey) -> String {
        format!("{}/{}", self.name, utf8_percent_encode(key.as_str(), COPY_SOURCE))
    }
}

/// What to do about an attempt that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterFailure {
    /// Its condition does not hold.
    Overtaken,
    Fail,
    Resend,
    /// An answer was lost, now or before: only the object tells.
    Look,
}

fn after_failure(answer_was_lost: bool, outcome: Outcome, exhausted: bool) -> AfterFailure {
    match outcome {
        _ if answer_was_lost => AfterFailure::Look,
        Outcome::Lost => AfterFailure::Look,
        Outcome::Condition => AfterFailure::Overtaken,
        Outcome::Gone | Outcome::Refused => AfterFailure::Fail,
        Outcome::NotDone if exhausted => AfterFailure::Fail,
        Outcome::NotDone => AfterFailure::Resend,
    }
}

/// What to do after a look at the object.
#[derive(Debug, PartialEq, Eq)]
enum AfterLook {
    Done(Option<String>),
    Overtaken,
    /// It surely had no effect.
    Fail,
    /// It may have had one, or still have it.
    Uncertain,
    Resend,
}

fn after_look(verdict: WriteVerdict, outcome: Outcome, exhausted: bool, under_way: bool) -> AfterLook {
    match verdict {
        WriteVerdict::Done(etag) => AfterLook::Done(etag),
        WriteVerdict::Overtaken => AfterLook::Overtaken,
        WriteVerdict::Unknowable => AfterLook::Uncertain,
        // The upload is gone, and the object is not there.
        WriteVerdict::NotYet if outcome == Outcome::Gone => AfterLook::Uncertain,
        WriteVerdict::NotYet if exhausted && under_way => AfterLook::Uncertain,
        WriteVerdict::NotYet if exhausted => AfterLook::Fail,
        WriteVerdict::NotYet => AfterLook::Resend,
    }
}

/// What an object tells about a write whose answer was lost. `started` is when the write began, by the server's clock.
fn verdict(
    seen: Option<&Seen>,
    id: &WriteId,
    condition: &Condition,
    started: Option<SystemTime>,
) -> WriteVerdict {
    if let Some(seen) = seen
        && seen.properties.history.contains(id.as_str())
    {
        let newest = seen.properties.history.ends_with(id);
        return WriteVerdict::Done(seen.meta.etag.clone().filter(|_| newest));
    }
    // Of an object that came in parts S3 tells when its upload began.
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
                return if same_etag { WriteVerdict::NotYet } else { WriteVerdict::Unknowable };
            };
            let now = seen.properties.token(&seen.meta);
            if same_etag && now.as_ref() == Some(token) && seen.meta.modified == *modified {
                WriteVerdict::NotYet
            } else if (now.as_ref() != Some(token) && seen.properties.history.contains(token)) || older(seen)
            {
                // Every write since then left its id, and ours is not among them.
                WriteVerdict::Overtaken
            } else {
                WriteVerdict::Unknowable
            }
        }
        _ => WriteVerdict::Unknowable,
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

    /// An object with this ETag, written then, whose history is these ids, the newest first.
    fn seen(etag: &str, modified: u64, history: &[&WriteId]) -> Seen {
        let meta = Meta { size: 1, modified: Some(at(modified)), etag: Some(etag.to_owned()) };
        let mut ids = history.iter().rev();
        let first = ids.next().map(|id| History::first(id)).unwrap_or_default();
        let history = ids.fold(first, |history, id| history.grown(id, &meta));
        Seen { meta, properties: ObjectProperties { history, ..ObjectProperties::default() } }
    }

    #[test]
    fn what_an_object_tells_about_a_write_whose_answer_was_lost() {
        use WriteVerdict::{Done, NotYet, Overtaken, Unknowable};
        let (own, other, base) = (id(), id(), id());
        let started = Some(at(1_000));
        let before = seen("e0", 100, &[&base]);
        let on_base = Condition::unchanged(Some(&before)).unwrap();
        let on_etag = Condition::Version { etag: "e0".to_owned(), known: None };
        let foreign = |etag: &str, modified: u64| seen(etag, modified, &[]);
        let cases: Vec<(&str, Option<Seen>, &Condition, WriteVerdict)> = vec![
            (
                "its id is the newest",
                Some(seen("e1", 1_001, &[&own, &base])),
                &on_base,
                Done(Some("e1".into())),
            ),
            ("another wrote on top of it", Some(seen("e2", 1_002, &[&other, &own])), &on_base, Done(None)),
            ("nothing there, nothing asked", None, &Condition::Always, NotYet),
            ("nothing there, and none wanted", None, &Condition::Absent, NotYet),
            ("nothing there, where a version was", None, &on_base, Unknowable),
            ("an older object, whatever was asked", Some(foreign("e9", 100)), &Condition::Always, NotYet),
            ("an older object, and none wanted", Some(foreign("e9", 100)), &Condition::Absent, Overtaken),
            ("a younger one from elsewhere", Some(foreign("e9", 1_000)), &Condition::Always, Unknowable),
            ("a younger one, and none wanted", Some(foreign("e9", 1_000)), &Condition::Absent, Unknowable),
            // S3 tells of an upload in parts when it began.
            ("one in parts that seems older", Some(foreign("e9-3", 100)), &Condition::Absent, Unknowable),
            ("the base is still there", Some(before.clone()), &on_base, NotYet),
            ("the same content, written again", Some(seen("e0", 1_001, &[&other])), &on_base, Unknowable),
            ("another grew from the base", Some(seen("e3", 1_001, &[&other, &base])), &on_base, Overtaken),
            ("a foreign tool replaced the base", Some(foreign("e3", 1_001)), &on_base, Unknowable),
            ("a foreign tool did, before we began", Some(foreign("e3", 500)), &on_base, Overtaken),
            ("an ETag that was only given, still there", Some(foreign("e0", 100)), &on_etag, NotYet),
            ("an ETag that was only given, gone", Some(foreign("e1", 100)), &on_etag, Unknowable),
        ];
        for (what, seen, condition, expected) in cases {
            assert_eq!(verdict(seen.as_ref(), &own, condition, started), expected, "{what}");
        }
        // Without the server's clock, age tells nothing.
        let old = foreign("e9", 100);
        assert_eq!(verdict(Some(&old), &own, &Condition::Absent, None), Unknowable);
    }

    #[test]
    fn what_is_done_after_a_failure() {
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
            // Once an answer was lost, every later answer may be about the lost write's effect.
            (true, Outcome::Condition, false, Look),
            (true, Outcome::Refused, false, Look),
            (true, Outcome::NotDone, true, Look),
            (true, Outcome::Gone, false, Look),
        ] {
            assert_eq!(after_failure(lost, outcome, exhausted), expected, "{lost} {outcome:?} {exhausted}");
        }
    }

    #[test]
    fn what_is_done_after_a_look() {
        use AfterLook::{Fail, Resend, Uncertain};
        for (verdict, outcome, exhausted, under_way, expected) in [
            (WriteVerdict::Done(None), Outcome::Lost, true, true, AfterLook::Done(None)),
            (WriteVerdict::Overtaken, Outcome::Lost, false, true, AfterLook::Overtaken),
            (WriteVerdict::Unknowable, Outcome::Lost, false, false, Uncertain),
            (WriteVerdict::NotYet, Outcome::Lost, false, true, Resend),
            (WriteVerdict::NotYet, Outcome::Lost, true, true, Uncertain),
            (WriteVerdict::NotYet, Outcome::NotDone, true, false, Fail),
            // An upload that is gone was completed or aborted, and the object may be gone again.
            (WriteVerdict::NotYet, Outcome::Gone, false, false, Uncertain),
        ] {
            let shown = format!("{verdict:?} {outcome:?} {exhausted} {under_way}");
            assert_eq!(after_look(verdict, outcome, exhausted, under_way), expected, "{shown}");
        }
    }
}
