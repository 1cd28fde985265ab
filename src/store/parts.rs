//! Uploads in parts: content that is too much for one request. Whatever happens, nothing is left behind:
//! an upload that is not completed is aborted, also when its caller goes away.

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

/// S3 takes so many parts.
const MAX_PARTS: i32 = 10_000;

/// Parts grow after so many, so that the last one is never out of reach: 10,000 of them hold more than
/// the 5 TB of the largest object.
const GROW_EVERY: i32 = 1_000;

/// An upload under way. Dropped, it is aborted.
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

/// What is being taken back in the background.
static LAST_WORK: AtomicUsize = AtomicUsize::new(0);

/// Something that is taken back in the background: a program that ends waits for it.
pub(crate) struct LastWork;

impl LastWork {
    pub(crate) fn new() -> Self {
        LAST_WORK.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for LastWork {
    fn drop(&mut self) {
        LAST_WORK.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until the multipart uploads of cancelled writes have been aborted.
///
/// Dropping the future of a write aborts its upload in the background. A program that is interrupted awaits this
/// before it exits, so that no incomplete upload stays in the bucket.
pub async fn aborts_finished() {
    while LAST_WORK.load(Ordering::SeqCst) > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

impl Store {
    /// Begins an upload; its properties are those of the object to be. One request.
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
            store.plain(&[key.as_str()], begin).await.map_err(|failure: Failure| store.fail(failure))
        };
        // A task of its own, which keeps its turn: were it dropped between request and answer, nobody would know the
        // id.
        let begun = tokio::spawn(begun.in_current_span()).await;
        let broken =
            |error| Error::new(ErrorKind::Internal, "the upload could not be started").with_source(error);
        begun.map_err(broken)??.ok_or_else(|| corrupt("the storage started an upload without an id"))
    }

    /// The pieces that an object is copied in.
    pub(crate) fn copy_pieces(&self, size: u64) -> Result<Vec<Range<u64>>> {
        let pieces = size.div_ceil(self.limits.single_copy_bytes).max(1);
        if pieces > u64::from(MAX_PARTS.unsigned_abs()) {
            return Err(corrupt(format!(
                "the storage reports an object of {size} bytes, which is impossible"
            )));
        }
        // All of one size, so that none is too small.
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
                    let sent = attempts.send(self.upload_patience(part.len()), upload).await;
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
                    let sent = attempts.send(self.copy_patience(part.len()), copy).await;
                    sent.map(|part| part.copy_part_result.and_then(|result| result.e_tag))
                }
            };
            let failure = match sent {
                Ok(Some(etag)) => return Ok(etag),
                Ok(None) => return Err(corrupt("the storage accepted a part and returned no ETag")),
                Err(failure) => failure,
            };
            // A part that is sent twice is the same part.
            let again = matches!(failure.outcome(), Outcome::NotDone | Outcome::Lost);
            if attempts.count_failure() || !again {
                return Err(self.fail(failure));
            }
            attempts.pause().await;
        }
    }
}

impl Parts {
    /// How large the next part shall be, when `bytes` is the size of the first ones.
    pub(crate) fn next_size(&self, bytes: u64) -> u64 {
        bytes << ((self.next - 1) / GROW_EVERY).min(9)
    }

    /// The next part, on its way. Parts may be on their way at once; each is told to [`Parts::add`].
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

    /// What puts the parts together.
    pub(crate) fn payload(&self) -> Payload {
        let mut parts = self.done.clone();
        parts.sort_unstable();
        Payload::Parts { upload: self.id.clone(), parts }
    }

    pub(crate) fn key(&self) -> &WritableKey {
        &self.key
    }

    /// The object is there: nothing is left to abort.
    pub(crate) fn completed(mut self) {
        self.open = false;
    }

    /// Aborts it, in a task that goes on when nobody waits for it any more.
    fn start_abort(&mut self) -> Option<tokio::task::JoinHandle<()>> {
        // Without a runtime the process is about to end. Buckets have a rule for such leftovers.
        let runtime = tokio::runtime::Handle::try_current().ok().filter(|_| self.open)?;
        self.open = false;
        let Self { client, bucket, key, id, .. } = &*self;
        let request = client.abort_multipart_upload().bucket(&**bucket).key(key.as_str()).upload_id(id);
        let (key, id, aborting) = (key.as_str().to_owned(), id.clone(), LastWork::new());
        Some(runtime.spawn(async move {
            if let Err(error) = Box::pin(request.send()).await {
                let failure = Failure::from(error);
                // Completed or aborted: nothing is left of it.
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

    /// Takes back what was uploaded.
    pub(crate) async fn abort(mut self) {
        if let Some(task) = self.start_abort() {
            let _ = task.await;
        }
    }
}
