//! Writing: each write takes effect once, or the caller knows that it cannot be told.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart, MetadataDirective};
use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::Instant;
use tracing::instrument;

use super::bucket::Store;
use super::failure::{Failure, Outcome};
use super::history::{Properties, Seen, WriteId};
use super::object::{etag_header, etag_token};
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
            return Err(Error::new(ErrorKind::Corrupt, "the storage gives no ETag for the object")
                .with_hint("without one a change could overwrite another's"));
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

/// Where the content of a write comes from.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    Bytes(Bytes),
    /// A version of another object.
    CopyOf {
        source: ObjectKey,
        etag: String,
        size: u64,
    },
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
    pub(crate) properties: &'a Properties,
}

impl Write<'_> {
    /// What its credentials must cover.
    fn keys(&self) -> Vec<&str> {
        match &self.payload {
            Payload::CopyOf { source, .. } => vec![self.key.as_str(), source.as_str()],
            Payload::Bytes(_) | Payload::Parts { .. } => vec![self.key.as_str()],
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

/// One attempt.
pub(super) enum Attempt {
    Done(Option<String>),
    Failed(Failure),
}

/// What a look at the object tells about a write whose answer was lost.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
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
        let mut renewed = false;
        let mut failures = 0;
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
            let sent = Instant::now();
            let failure = match Box::pin(self.attempt(write, &condition)).await {
                Attempt::Done(etag) => return Ok(Put::Done { etag }),
                Attempt::Failed(failure) => failure,
            };
            if !renewed && self.route(&write.keys()).renews(&failure, sent) {
                renewed = true;
                continue;
            }
            failures += 1;
            let exhausted = failures >= self.limits.max_attempts;
            under_way |= failure.may_be_under_way();
            if failure.may_be_under_way() {
                self.unanswered_writes.fetch_add(1, Ordering::Relaxed);
            }
            let outcome = match failure.outcome() {
                // Nothing was asked of the object, so this is the server being busy.
                Outcome::Condition
                    if matches!((&condition, &write.payload), (Condition::Always, Payload::Bytes(_))) =>
                {
                    Outcome::NotDone
                }
                outcome => outcome,
            };
            let reason = match (lost.take(), outcome) {
                (None, Outcome::Condition) => return Ok(Put::Overtaken),
                (None, Outcome::Refused) if self.has_gone(write, &condition, &failure).await? => {
                    return Ok(Put::Overtaken);
                }
                (None, Outcome::Gone | Outcome::Refused) => return Err(self.fail(failure)),
                (None, Outcome::NotDone) if exhausted => return Err(self.fail(failure)),
                (None, Outcome::NotDone) => {
                    pause(failures).await;
                    continue;
                }
                (None, Outcome::Lost) => self.fail(failure),
                (Some(reason), _) => reason,
            };
            tracing::debug!("looking whether a write took effect: {}", reason.message());
            let seen = match self.look(write.key.key()).await {
                Ok(seen) => seen,
                Err(error) => return Err(Error::uncertain(error)),
            };
            // As the server told the time with what was seen.
            let started = self.clock.now().and_then(|now| now.checked_sub(began.elapsed()));
            match verdict(seen.as_ref(), write, started) {
                Verdict::Done(etag) => return Ok(Put::Done { etag }),
                Verdict::Overtaken => return Ok(Put::Overtaken),
                Verdict::Unknowable => return Err(Error::uncertain(reason)),
                // The upload is gone, and the object is not there.
                Verdict::NotYet if outcome == Outcome::Gone => return Err(Error::uncertain(reason)),
                Verdict::NotYet if exhausted && under_way => return Err(Error::uncertain(reason)),
                Verdict::NotYet if exhausted => return Err(reason),
                Verdict::NotYet if write.condition == Condition::Always => {
                    // Sent again, it overwrites only what was seen.
                    condition = Condition::unchanged(seen.as_ref())?;
                }
                Verdict::NotYet => {}
            }
            lost = Some(reason);
            pause(failures).await;
        }
    }

    /// Whether S3 may have refused because the version that is to be overwritten, or the source of a copy, is not there.
    async fn has_gone(&self, write: &Write<'_>, condition: &Condition, failure: &Failure) -> Result<bool> {
        if matches!(condition, Condition::Version { .. }) && self.is_missing(write.key.key(), failure).await?
        {
            return Ok(true);
        }
        match &write.payload {
            Payload::CopyOf { source, .. } => self.is_missing(source, failure).await,
            _ => Ok(false),
        }
    }

    async fn attempt(&self, write: &Write<'_>, condition: &Condition) -> Attempt {
        let Properties {
            content_type,
            content_encoding,
            content_language,
            content_disposition,
            cache_control,
            ..
        } = write.properties.clone();
        let metadata = write.properties.history.put_into(&write.properties.metadata);
        let metadata = Some(metadata.into_iter().collect());
        let key = write.key.as_str();
        let clients = match self.route(&write.keys()).clients().await {
            Ok((clients, _)) => clients,
            Err(failure) => return Attempt::Failed(failure),
        };
        match &write.payload {
            Payload::Bytes(bytes) => {
                let request = clients
                    .writer
                    .put_object()
                    .bucket(&*self.name)
                    .key(key)
                    .set_if_match(condition.if_match())
                    .set_if_none_match(condition.if_none_match())
                    .set_content_type(content_type)
                    .set_content_encoding(content_encoding)
                    .set_content_language(content_language)
                    .set_content_disposition(content_disposition)
                    .set_cache_control(cache_control)
                    .set_metadata(metadata)
                    .body(ByteStream::from(bytes.clone()));
                let patience = self.upload_patience(bytes.len() as u64);
                self.in_time(patience, Box::pin(request.send()), |put| put.e_tag).await
            }
            Payload::CopyOf { source, etag, size } => {
                let request = clients
                    .writer
                    .copy_object()
                    .bucket(&*self.name)
                    .key(key)
                    .copy_source(self.copy_source(source))
                    .copy_source_if_match(etag_header(etag))
                    .set_if_match(condition.if_match())
                    .set_if_none_match(condition.if_none_match())
                    .metadata_directive(MetadataDirective::Replace)
                    .set_content_type(content_type)
                    .set_content_encoding(content_encoding)
                    .set_content_language(content_language)
                    .set_content_disposition(content_disposition)
                    .set_cache_control(cache_control)
                    .set_metadata(metadata);
                self.in_time(self.copy_patience(*size), Box::pin(request.send()), |copy| {
                    copy.copy_object_result?.e_tag
                })
                .await
            }
            Payload::Parts { upload, parts } => {
                let part = |(number, etag): &(i32, String)| {
                    CompletedPart::builder().part_number(*number).e_tag(etag).build()
                };
                let parts =
                    CompletedMultipartUpload::builder().set_parts(Some(parts.iter().map(part).collect()));
                let request = clients
                    .writer
                    .complete_multipart_upload()
                    .bucket(&*self.name)
                    .key(key)
                    .upload_id(upload)
                    .set_if_match(condition.if_match())
                    .set_if_none_match(condition.if_none_match())
                    .multipart_upload(parts.build());
                let patience = self.limits.attempt + PUTTING_TOGETHER;
                self.in_time(patience, Box::pin(request.send()), |done| done.e_tag).await
            }
        }
    }

    /// Sends a request once, when it is this tenant's turn, and waits for so long.
    pub(super) async fn in_time<T, E>(
        &self,
        patience: Duration,
        // Boxed: the SDK's futures take 16 KB, and every caller would carry them.
        request: Pin<Box<impl Future<Output = Result<T, E>> + Send + 'static>>,
        etag: impl FnOnce(T) -> Option<String>,
    ) -> Attempt
    where
        Failure: From<E>,
        T: Send + 'static,
        E: Send + 'static,
    {
        match self.in_turn(async move { tokio::time::timeout(patience, request).await }).await {
            Ok(Ok(done)) => Attempt::Done(etag(done).map(etag_token)),
            Ok(Err(error)) => Attempt::Failed(error.into()),
            Err(_) => Attempt::Failed(Failure::timed_out()),
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

/// How long to wait before the next attempt: longer each time, and never the same.
pub(crate) async fn pause(failures: u32) {
    const FIRST: Duration = Duration::from_millis(25);
    const LONGEST: Duration = Duration::from_secs(1);
    let most = FIRST.saturating_mul(1 << failures.min(8)).min(LONGEST);
    let mut random = [0; 4];
    // Without random numbers it is the longest pause.
    let part = getrandom::fill(&mut random)
        .map_or(1.0, |()| f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX));
    tokio::time::sleep(most.mul_f64(part)).await;
}

fn verdict(seen: Option<&Seen>, write: &Write<'_>, started: Option<SystemTime>) -> Verdict {
    if let Some(seen) = seen
        && seen.properties.history.contains(write.id.as_str())
    {
        let newest = seen.properties.history.ends_with(write.id);
        return Verdict::Done(seen.meta.etag.clone().filter(|_| newest));
    }
    // Of an object that came in parts S3 tells when its upload began.
    let in_parts = |seen: &Seen| seen.meta.etag.as_ref().is_none_or(|etag| etag.contains('-'));
    let older = |seen: &Seen| match (seen.meta.modified, started) {
        (Some(modified), Some(started)) => !in_parts(seen) && modified + CLOCK_MARGIN <= started,
        _ => false,
    };
    match (&write.condition, seen) {
        (Condition::Always | Condition::Absent, None) => Verdict::NotYet,
        (Condition::Always, Some(seen)) if older(seen) => Verdict::NotYet,
        (Condition::Absent, Some(seen)) if older(seen) => Verdict::Overtaken,
        (Condition::Version { etag, known }, Some(seen)) => {
            let same_etag = seen.meta.etag.as_ref() == Some(etag);
            let Some((token, modified)) = known else {
                return if same_etag { Verdict::NotYet } else { Verdict::Unknowable };
            };
            let now = seen.properties.token(&seen.meta);
            if same_etag && now.as_ref() == Some(token) && seen.meta.modified == *modified {
                Verdict::NotYet
            } else if (now.as_ref() != Some(token) && seen.properties.history.contains(token)) || older(seen)
            {
                // Every write since then left its id, and ours is not among them.
                Verdict::Overtaken
            } else {
                Verdict::Unknowable
            }
        }
        _ => Verdict::Unknowable,
    }
}
