//! Writing: each write takes effect once, or the caller knows that it cannot be told.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{
    CompletedMultipartUpload, CompletedPart, Delete, MetadataDirective, ObjectIdentifier,
};
use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tracing::instrument;

use super::clients::Clients;
use super::failure::{Failure, Outcome};
use super::history::{History, WriteId};
use super::{Meta, Passed, Sending, Store, etag_header, etag_token};
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

/// What is kept with an object besides its content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Properties {
    pub(crate) content_type: Option<String>,
    pub(crate) content_encoding: Option<String>,
    pub(crate) content_language: Option<String>,
    pub(crate) content_disposition: Option<String>,
    pub(crate) cache_control: Option<String>,
    /// Metadata that is not ours.
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) history: History,
}

/// An object as a HEAD shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) meta: Meta,
    pub(crate) properties: Properties,
}

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

/// How a write ended.
#[derive(Debug)]
pub(crate) enum Put {
    /// It took effect. The ETag is not known when another writer came by before it was asked for.
    Done { etag: Option<String> },
    /// Its condition does not hold, and it surely had no effect.
    Overtaken,
}

/// One attempt.
enum Attempt {
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
    /// What is there, with its properties. One HeadObject.
    #[instrument(level = "debug", skip_all, fields(key = key.as_str()))]
    pub(crate) async fn look(&self, key: &ObjectKey) -> Result<Option<Seen>> {
        let asked = key.clone();
        let send = move |clients: &Arc<Clients>| -> Sending<_, _> {
            Box::pin(clients.reader.head_object().bucket(&*clients.bucket).key(asked.as_str()).send())
        };
        let granted = self.granted().await?;
        let answer = Box::pin(self.prompt(key.as_str(), |paces| &paces.head, send)).await;
        self.passed(granted.as_ref(), key.as_str(), Passed::Read, &answer);
        match answer {
            Ok(head) => {
                let mut metadata: BTreeMap<_, _> = head.metadata.unwrap_or_default().into_iter().collect();
                let history = History::take_from(&mut metadata);
                Ok(Some(Seen {
                    meta: Meta {
                        size: super::length(head.content_length)?,
                        modified: head.last_modified.and_then(|t| t.try_into().ok()),
                        etag: head.e_tag.map(etag_token),
                    },
                    properties: Properties {
                        content_type: head.content_type,
                        content_encoding: head.content_encoding,
                        content_language: head.content_language,
                        content_disposition: head.content_disposition,
                        cache_control: head.cache_control,
                        metadata,
                        history,
                    },
                }))
            }
            Err(failure) if failure.is_missing_head() => Ok(None),
            Err(failure) if self.is_missing(granted.as_ref(), key, &failure).await? => Ok(None),
            Err(failure) => Err(self.fail_at(key.as_str(), Passed::Read, failure)),
        }
    }

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
            (&write.payload, &condition, self.known)
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
            if !renewed && self.are_renewed(&failure, sent) {
                renewed = true;
                continue;
            }
            failures += 1;
            let exhausted = failures >= self.max_attempts;
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
        if matches!(condition, Condition::Version { .. })
            && self.is_missing(None, write.key.key(), failure).await?
        {
            return Ok(true);
        }
        match &write.payload {
            Payload::CopyOf { source, .. } => self.is_missing(None, source, failure).await,
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
        let clients = match self.clients().await {
            Ok(clients) => clients,
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
                let patience = self.attempt_patience + PUTTING_TOGETHER;
                self.in_time(patience, Box::pin(request.send()), |done| done.e_tag).await
            }
        }
    }

    /// Sends a request once, when it is this tenant's turn, and waits for so long.
    async fn in_time<T, E>(
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
        match self.gated(async move { tokio::time::timeout(patience, request).await }).await {
            Ok(Ok(done)) => Attempt::Done(etag(done).map(etag_token)),
            Ok(Err(error)) => Attempt::Failed(error.into()),
            Err(_) => Attempt::Failed(Failure::timed_out()),
        }
    }

    /// How long one attempt to send so many bytes may take.
    pub(super) fn upload_patience(&self, bytes: u64) -> Duration {
        self.attempt_patience + Duration::from_secs(bytes / SLOWEST_UPLOAD)
    }

    pub(super) fn copy_patience(&self, bytes: u64) -> Duration {
        self.attempt_patience + Duration::from_secs(bytes / SLOWEST_COPY)
    }

    pub(super) fn copy_source(&self, key: &ObjectKey) -> String {
        format!("{}/{}", self.name, utf8_percent_encode(key.as_str(), COPY_SOURCE))
    }

    /// Deletes an object if it is this version; one that is gone already is deleted.
    ///
    /// `false`: it is another version, and stays.
    #[instrument(level = "debug", skip_all, fields(key = key.as_str()))]
    pub(crate) async fn delete_version(&self, key: &WritableKey, version: &Meta) -> Result<bool> {
        let _changing = self.changing([key]);
        let etag = version.etag.as_deref().unwrap_or_default();
        let mut lost = false;
        let mut renewed = false;
        let mut failures = 0;
        loop {
            // Where a server may ignore the condition, it is looked at first: what is left of the risk is
            // the time between two requests.
            let conditional = self.conditional_deletes();
            if !conditional.trusted || lost {
                match self.look(key.key()).await {
                    Ok(None) => return Ok(true),
                    // The same content is not the same file, when it was written later.
                    Ok(Some(seen))
                        if seen.meta.etag == version.etag
                            && (!lost || seen.meta.modified == version.modified) => {}
                    // Perhaps it was deleted, and another came in its place.
                    Ok(Some(_)) if lost => return Err(Error::uncertain(not_told())),
                    Ok(Some(_)) => return Ok(false),
                    Err(error) if lost => return Err(Error::uncertain(error)),
                    Err(error) => return Err(error),
                }
            }
            let began = Instant::now();
            let sent = match self.clients().await {
                Ok(clients) => {
                    let request = clients
                        .writer
                        .delete_object()
                        .bucket(&*self.name)
                        .key(key.as_str())
                        .set_if_match(conditional.supported.then(|| etag_header(etag)));
                    self.in_time(self.attempt_patience, Box::pin(request.send()), |_| None).await
                }
                Err(failure) => Attempt::Failed(failure),
            };
            let failure = match sent {
                Attempt::Done(_) => return Ok(true),
                Attempt::Failed(failure) => failure,
            };
            if !renewed && self.are_renewed(&failure, began) {
                renewed = true;
                continue;
            }
            if conditional.supported && failure.is_not_implemented() {
                self.forget_conditional_deletes();
                continue;
            }
            failures += 1;
            let exhausted = failures >= self.max_attempts;
            match failure.outcome() {
                // A 409 says that another request is under way, and nothing of the version.
                Outcome::Condition | Outcome::Gone
                    if !lost && (exhausted || failure.status() != Some(409)) =>
                {
                    // A 404 is as good as a deletion.
                    return Ok(failure.status() == Some(404));
                }
                Outcome::Refused if !lost && self.is_missing(None, key.key(), &failure).await? => {
                    return Ok(true);
                }
                Outcome::Refused if !lost => return Err(self.fail(failure)),
                Outcome::NotDone if exhausted && !lost => return Err(self.fail(failure)),
                Outcome::Refused => return Err(Error::uncertain(self.fail(failure))),
                _ if exhausted => return Err(Error::uncertain(self.fail(failure))),
                Outcome::Condition | Outcome::Gone | Outcome::NotDone => {}
                Outcome::Lost => {
                    self.unanswered_writes.fetch_add(1, Ordering::Relaxed);
                    lost = true;
                }
            }
            pause(failures).await;
        }
    }

    /// Deletes keys, whatever they hold: one request for up to 1,000. Tells how many could not be, and
    /// why.
    #[instrument(level = "debug", skip_all, fields(keys = keys.len()))]
    pub(crate) async fn delete_all(&self, keys: &[WritableKey]) -> Result<Option<(u64, Error)>> {
        let _changing = self.changing(keys);
        let object = |key: &WritableKey| ObjectIdentifier::builder().key(key.as_str()).build();
        let objects: Vec<_> = keys.iter().filter_map(|key| object(key).ok()).collect();
        let internal = |e| Error::new(ErrorKind::Internal, "the request could not be built").with_source(e);
        let delete = Delete::builder().set_objects(Some(objects)).quiet(true).build().map_err(internal)?;
        let send = |clients: &Clients| -> Sending<_, _> {
            Box::pin(clients.client.delete_objects().bucket(&*clients.bucket).delete(delete.clone()).send())
        };
        let done = self.plain(send).await.map_err(|error| self.fail(error))?;
        let errors = done.errors.unwrap_or_default();
        Ok(errors.first().map(|first| {
            let failure =
                Failure::inside(first.code().unwrap_or_default(), first.message().unwrap_or_default());
            (errors.len() as u64, self.fail(failure))
        }))
    }

    /// Deletes one key, whatever it holds, by its name in the URL.
    pub(crate) async fn delete(&self, key: &WritableKey) -> Result<()> {
        let _changing = self.changing([key]);
        let send = |clients: &Clients| -> Sending<_, _> {
            Box::pin(clients.client.delete_object().bucket(&*clients.bucket).key(key.as_str()).send())
        };
        self.plain(send).await.map_err(|error| self.fail(error))?;
        Ok(())
    }

    /// Asks the server whether it minds conditions: a write to a key that is not there, on a version that
    /// cannot be. A server that does not mind makes the object, which is taken away again.
    #[instrument(level = "debug", skip_all, fields(key = probe.as_str()))]
    pub(crate) async fn honours_conditions(&self, probe: &WritableKey) -> Result<bool> {
        let mut renewed = false;
        let mut failures = 0;
        loop {
            let began = Instant::now();
            let clients = self.clients().await.map_err(|error| self.fail(error))?;
            let request = clients
                .writer
                .put_object()
                .bucket(&*self.name)
                .key(probe.as_str())
                .if_match("\"00000000000000000000000000000000\"")
                .body(ByteStream::from_static(b""));
            let sent = self.in_time(self.attempt_patience, Box::pin(request.send()), |put| put.e_tag).await;
            let failure = match sent {
                Attempt::Done(_) => {
                    self.delete(probe).await?;
                    return Ok(false);
                }
                Attempt::Failed(failure) => failure,
            };
            if !renewed && self.are_renewed(&failure, began) {
                renewed = true;
                continue;
            }
            failures += 1;
            match failure.outcome() {
                // 404 and 412 both say that the condition was minded.
                Outcome::Condition => return Ok(true),
                _ if failure.is_not_implemented() => return Ok(false),
                Outcome::NotDone | Outcome::Lost if failures < self.max_attempts => pause(failures).await,
                _ => {
                    // It may be there all the same; what cannot be taken away now stays.
                    let _ = self.delete(probe).await;
                    return Err(self.fail(failure));
                }
            }
        }
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

fn not_told() -> Error {
    Error::new(ErrorKind::Conflict, "it was changed meanwhile")
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
