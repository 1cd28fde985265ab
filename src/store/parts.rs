//! Multipart uploads, for content that is too large for one request.
//!
//! An upload that is not completed is aborted, even if its caller is cancelled, so that no parts are left in the bucket.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;
use tracing::{Instrument, instrument};

use super::bucket::Store;
use super::clients::Clients;
use super::failure::{Failure, Outcome, corrupt};
use super::history::{ObjectProperties, with_properties};
use super::object::etag_header;
use super::send::Sending;
use super::write::{PartSource, Payload};
use crate::error::{Error, ErrorKind, Result};
use crate::mount::WritableKey;

/// S3's limit for the number of parts.
const MAX_PARTS: i32 = 10_000;

/// The part size doubles after this many parts, so that 10,000 parts can hold more than the 5 TB of S3's largest object.
const GROW_EVERY: i32 = 1_000;

/// A multipart upload in progress. It is aborted on drop.
#[derive(Debug)]
pub(crate) struct Parts {
    client: Client,
    bucket: Arc<str>,
    key: WritableKey,
    id: String,
    open: bool,
    next: i32,
    done: Vec<(i32, String)>,
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.start_abort();
    }
}

/// The number of [`LastWork`] guards.
static PENDING_CLEANUPS: AtomicUsize = AtomicUsize::new(0);

/// A guard for cleanup in the background. `all_aborted` waits until all guards are dropped.
pub(crate) struct LastWork;

impl LastWork {
    pub(crate) fn new() -> Self {
        PENDING_CLEANUPS.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for LastWork {
    fn drop(&mut self) {
        PENDING_CLEANUPS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until the multipart uploads of cancelled writes have been aborted.
///
/// Dropping the future of a write aborts its upload in the background. A program that is interrupted awaits this
/// before it exits, so that no incomplete upload stays in the bucket.
pub async fn aborts_finished() {
    while PENDING_CLEANUPS.load(Ordering::SeqCst) > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

impl Store {
    /// Starts a multipart upload with the properties of the final object. One request.
    #[instrument(level = "debug", skip_all, fields(key = key.as_str()))]
    pub(crate) async fn start_parts(
        &self,
        key: &WritableKey,
        properties: &ObjectProperties,
    ) -> Result<Parts> {
        let (store, key, properties) = (self.clone(), key.clone(), properties.clone());
        let begun = async move {
            let begin = |clients: &Clients| -> Sending<_, _> {
                let client = clients.client.clone();
                let request = client.create_multipart_upload().bucket(&*store.name).key(key.as_str());
                let request = with_properties!(request, &properties);
                let (bucket, key) = (store.name.clone(), key.clone());
                Box::pin(async move {
                    let id = Box::pin(request.send()).await.map_err(Failure::from)?.upload_id;
                    let new = |id| Parts { client, bucket, key, id, open: true, next: 1, done: Vec::new() };
                    Ok::<_, Failure>(id.map(new))
                })
            };
            store.unhedged(&[key.as_str()], begin).await.map_err(|failure: Failure| store.fail(failure))
        };
        // In a separate task: if this future were dropped between request and response, the upload id would be lost and
        // the upload could not be aborted.
        let begun = tokio::spawn(begun.in_current_span()).await;
        let broken =
            |error| Error::new(ErrorKind::Internal, "the upload could not be started").with_source(error);
        begun.map_err(broken)??.ok_or_else(|| corrupt("the storage started an upload without an id"))
    }

    /// Splits an object into the ranges in which it is copied.
    pub(crate) fn copy_pieces(&self, size: u64) -> Result<Vec<Range<u64>>> {
        let pieces = size.div_ceil(self.limits.single_copy_bytes).max(1);
        if pieces > u64::from(MAX_PARTS.unsigned_abs()) {
            return Err(corrupt(format!(
                "the storage reports an object of {size} bytes, which is impossible"
            )));
        }
        // Equal sizes, so that no part is below S3's minimum.
        let each = size.div_ceil(pieces).max(1);
        Ok((0..pieces).map(|i| i * each..((i + 1) * each).min(size)).collect())
    }

    async fn send_part(&self, key: &str, id: &str, number: i32, part: &PartSource) -> Result<String> {
        let mut attempts = self.attempts(&part.keys(key));
        loop {
            let sent = match part {
                PartSource::Bytes(bytes) => {
                    let upload = |writer: &Client| {
                        writer
                            .upload_part()
                            .bucket(&*self.name)
                            .key(key)
                            .upload_id(id)
                            .part_number(number)
                            .body(ByteStream::from(bytes.clone()))
                            .send()
                    };
                    let sent = attempts.send(self.upload_timeout(part.len()), upload).await;
                    sent.map(|part| part.e_tag)
                }
                PartSource::Copy { source, etag, range } => {
                    let copy = |writer: &Client| {
                        writer
                            .upload_part_copy()
                            .bucket(&*self.name)
                            .key(key)
                            .upload_id(id)
                            .part_number(number)
                            .copy_source(self.copy_source(source))
                            .copy_source_if_match(etag_header(etag))
                            .copy_source_range(format!("bytes={}-{}", range.start, range.end - 1))
                            .send()
                    };
                    let sent = attempts.send(self.copy_timeout(part.len()), copy).await;
                    sent.map(|part| part.copy_part_result.and_then(|result| result.e_tag))
                }
            };
            let failure = match sent {
                Ok(Some(etag)) => return Ok(etag),
                Ok(None) => return Err(corrupt("the storage accepted a part and returned no ETag")),
                Err(failure) => failure,
            };
            // Uploading a part is idempotent.
            let again = matches!(failure.outcome(), Outcome::NotDone | Outcome::Lost);
            if attempts.count_failure() || !again {
                return Err(self.fail(failure));
            }
            attempts.pause().await;
        }
    }
}

impl Parts {
    /// The size of the next part, if the first parts have `bytes` bytes.
    pub(crate) fn next_size(&self, bytes: u64) -> u64 {
        bytes << ((self.next - 1) / GROW_EVERY).min(9)
    }

    /// Returns a future that uploads the next part. Parts can be uploaded concurrently; pass each result to
    /// [`Parts::add`].
    pub(crate) fn send<'s>(
        &mut self,
        store: &'s Store,
        source: PartSource,
    ) -> Result<impl Future<Output = Result<(i32, String)>> + Send + use<'s>> {
        let number = self.next;
        if number > MAX_PARTS {
            return Err(Error::new(ErrorKind::TooLarge, "the content has more parts than S3 allows")
                .with_hint("set a larger `part_bytes`"));
        }
        self.next += 1;
        let (key, id) = (self.key.clone(), self.id.clone());
        Ok(async move { Ok((number, store.send_part(key.as_str(), &id, number, &source).await?)) })
    }

    pub(crate) fn add(&mut self, part: (i32, String)) {
        self.done.push(part);
    }

    /// The payload of the write that completes the upload.
    pub(crate) fn payload(&self) -> Payload {
        let mut parts = self.done.clone();
        parts.sort_unstable();
        Payload::Parts { upload: self.id.clone(), parts }
    }

    pub(crate) fn key(&self) -> &WritableKey {
        &self.key
    }

    /// Marks the upload as completed, so that it is not aborted on drop.
    pub(crate) fn completed(mut self) {
        self.open = false;
    }

    /// Aborts the upload in a background task.
    fn start_abort(&mut self) -> Option<tokio::task::JoinHandle<()>> {
        // Without a runtime the process is exiting. The bucket's lifecycle rule deletes such leftovers.
        let runtime = tokio::runtime::Handle::try_current().ok().filter(|_| self.open)?;
        self.open = false;
        let Self { client, bucket, key, id, .. } = &*self;
        let request = client.abort_multipart_upload().bucket(&**bucket).key(key.as_str()).upload_id(id);
        let (key, id, aborting) = (key.as_str().to_owned(), id.clone(), LastWork::new());
        Some(runtime.spawn(async move {
            if let Err(error) = Box::pin(request.send()).await {
                let failure = Failure::from(error);
                // The upload was already completed or aborted.
                if failure.outcome() != Outcome::Gone {
                    tracing::warn!(
                        key,
                        id,
                        "a multipart upload could not be aborted and uses storage: {failure:?}"
                    );
                }
            }
            drop(aborting);
        }))
    }

    /// Aborts the upload and waits for it.
    pub(crate) async fn abort(mut self) {
        if let Some(task) = self.start_abort() {
            let _ = task.await;
        }
    }
}
