//! Uploads in parts: content that is too much for one request. Whatever happens, nothing is left behind:
//! an upload that is not completed is aborted, also when its caller goes away.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;
use tracing::instrument;

use super::bucket::Store;
use super::failure::{Failure, Outcome, corrupt};
use super::history::Properties;
use super::object::etag_header;
use super::write::Payload;
use crate::ambient::Instant;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{ObjectKey, WritableKey};

/// S3 takes so many parts.
const MAX_PARTS: i32 = 10_000;

/// Parts grow after so many, so that the last one is never out of reach: 10,000 of them hold more than
/// the 5 TB of the largest object.
const GROW_EVERY: i32 = 1_000;

/// One part's content.
#[derive(Debug, Clone)]
pub(crate) enum PartSource {
    Bytes(Bytes),
    Copy { source: ObjectKey, etag: String, range: Range<u64> },
}

impl PartSource {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.is_empty(),
            Self::Copy { range, .. } => range.is_empty(),
        }
    }
}

/// An upload under way. Dropped, it is aborted.
#[derive(Debug)]
pub(crate) struct Parts {
    upload: Upload,
    key: WritableKey,
    next: i32,
    done: Vec<(i32, String)>,
}

#[derive(Debug)]
struct Upload {
    client: Client,
    bucket: String,
    key: String,
    id: String,
    open: bool,
}

impl Upload {
    async fn abort(mut self) {
        if let Some(task) = self.start_abort() {
            // The task goes on when nobody waits for it any more.
            let _ = task.await;
        }
    }

    fn start_abort(&mut self) -> Option<tokio::task::JoinHandle<()>> {
        // Without a runtime the process is about to end. Buckets have a rule for such leftovers.
        let runtime = tokio::runtime::Handle::try_current().ok().filter(|_| self.open)?;
        self.open = false;
        let take = std::mem::take::<String>;
        let (bucket, key, id) = (take(&mut self.bucket), take(&mut self.key), take(&mut self.id));
        let aborting = LastWork::new();
        let abort = abort(self.client.clone(), bucket, key, id);
        Some(runtime.spawn(async move {
            abort.await;
            drop(aborting);
        }))
    }
}

impl Drop for Upload {
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

/// Waits until all that was left half-done by this process is taken back. A program that is interrupted
/// does so before it ends.
#[cfg(feature = "cli")]
pub(crate) async fn all_aborted() {
    while LAST_WORK.load(Ordering::SeqCst) > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

async fn abort(client: Client, bucket: String, key: String, id: String) {
    let request = client.abort_multipart_upload().bucket(bucket).key(&key).upload_id(&id);
    if let Err(error) = Box::pin(request.send()).await {
        let failure = Failure::from(error);
        // Completed or aborted: nothing is left of it.
        if failure.outcome() != Outcome::Gone {
            tracing::warn!(key, id, "an upload in parts could not be aborted, and takes room: {failure:?}");
        }
    }
}

impl Store {
    /// Begins an upload; its properties are those of the object to be. One request.
    #[instrument(level = "debug", skip_all, fields(key = key.as_str()))]
    pub(crate) async fn start_parts(&self, key: &WritableKey, properties: &Properties) -> Result<Parts> {
        let kept = properties.clone();
        let metadata = kept.history.put_into(&kept.metadata);
        let route = self.route(&[key.as_str()]);
        let mut renewed = false;
        let upload = loop {
            let began = Instant::now();
            let client = route.clients().await.map_err(|error| self.fail(error))?.0.client.clone();
            let request = client
                .create_multipart_upload()
                .bucket(&*self.name)
                .key(key.as_str())
                .set_content_type(kept.content_type.clone())
                .set_content_encoding(kept.content_encoding.clone())
                .set_content_language(kept.content_language.clone())
                .set_content_disposition(kept.content_disposition.clone())
                .set_cache_control(kept.cache_control.clone())
                .set_metadata(Some(metadata.clone().into_iter().collect()));
            let (limiter, tenant) = (self.limiter.clone(), self.tenant.clone());
            let (bucket, name) = (self.name.to_string(), key.as_str().to_owned());
            // A task of its own: were it dropped between request and answer, nobody would know the id.
            let started = tokio::spawn(async move {
                let _turn = limiter.turn(&tenant).await;
                let id = Box::pin(request.send()).await.map_err(Failure::from)?.upload_id;
                Ok::<_, Failure>(id.map(|id| Upload { client, bucket, key: name, id, open: true }))
            });
            match started.await {
                Ok(Ok(Some(upload))) => break upload,
                Ok(Ok(None)) => return Err(corrupt("the storage began an upload without an id")),
                Ok(Err(failure)) if !renewed && route.renews(&failure, began) => renewed = true,
                Ok(Err(failure)) => return Err(self.fail(failure)),
                Err(error) => {
                    return Err(
                        Error::new(ErrorKind::Internal, "the upload could not begin").with_source(error)
                    );
                }
            }
        };
        Ok(Parts { upload, key: key.clone(), next: 1, done: Vec::new() })
    }

    /// The pieces that an object is copied in.
    pub(crate) fn copy_pieces(&self, size: u64) -> Result<Vec<Range<u64>>> {
        let pieces = size.div_ceil(self.limits.single_copy_bytes).max(1);
        if pieces > u64::from(MAX_PARTS.unsigned_abs()) {
            return Err(corrupt(format!("the storage tells of an object of {size} bytes, which cannot be")));
        }
        // All of one size, so that none is too small.
        let each = size.div_ceil(pieces).max(1);
        Ok((0..pieces).map(|i| i * each..((i + 1) * each).min(size)).collect())
    }

    async fn send_part(&self, key: &str, id: &str, number: i32, source: &PartSource) -> Result<String> {
        let keys = match source {
            PartSource::Bytes(_) => vec![key],
            PartSource::Copy { source, .. } => vec![key, source.as_str()],
        };
        let route = self.route(&keys);
        let mut renewed = false;
        let mut failures = 0;
        loop {
            let began = Instant::now();
            let (clients, _) = route.clients().await.map_err(|error| self.fail(error))?;
            let sent = match source {
                PartSource::Bytes(bytes) => {
                    let request = clients
                        .writer
                        .upload_part()
                        .bucket(&*self.name)
                        .key(key)
                        .upload_id(id)
                        .part_number(number)
                        .body(ByteStream::from(bytes.clone()));
                    let patience = self.upload_patience(bytes.len() as u64);
                    let send = Box::pin(request.send());
                    match self.in_turn(async move { tokio::time::timeout(patience, send).await }).await {
                        Ok(sent) => sent.map(|part| part.e_tag).map_err(Failure::from),
                        Err(_) => Err(Failure::timed_out()),
                    }
                }
                PartSource::Copy { source, etag, range } => {
                    let request = clients
                        .writer
                        .upload_part_copy()
                        .bucket(&*self.name)
                        .key(key)
                        .upload_id(id)
                        .part_number(number)
                        .copy_source(self.copy_source(source))
                        .copy_source_if_match(etag_header(etag))
                        .copy_source_range(format!("bytes={}-{}", range.start, range.end - 1));
                    let patience = self.copy_patience(range.end - range.start);
                    let send = Box::pin(request.send());
                    match self.in_turn(async move { tokio::time::timeout(patience, send).await }).await {
                        Ok(sent) => sent
                            .map(|part| part.copy_part_result.and_then(|result| result.e_tag))
                            .map_err(Failure::from),
                        Err(_) => Err(Failure::timed_out()),
                    }
                }
            };
            let failure = match sent {
                Ok(etag) => {
                    return etag.ok_or_else(|| corrupt("the storage took a part and gave no ETag for it"));
                }
                Err(failure) => failure,
            };
            if !renewed && route.renews(&failure, began) {
                renewed = true;
                continue;
            }
            failures += 1;
            // A part that is sent twice is the same part.
            let again = matches!(failure.outcome(), Outcome::NotDone | Outcome::Lost);
            if !again || failures >= self.limits.max_attempts {
                return Err(self.fail(failure));
            }
            self.pause(failures).await;
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
            return Err(Error::new(ErrorKind::TooLarge, "the content has more parts than S3 takes")
                .with_hint("set a larger `part_bytes`"));
        }
        self.next += 1;
        let (key, id) = (self.upload.key.clone(), self.upload.id.clone());
        Ok(async move { Ok((number, store.send_part(&key, &id, number, &source).await?)) })
    }

    pub(crate) fn add(&mut self, part: (i32, String)) {
        self.done.push(part);
    }

    /// What puts the parts together.
    pub(crate) fn payload(&self) -> Payload {
        let mut parts = self.done.clone();
        parts.sort_unstable();
        Payload::Parts { upload: self.upload.id.clone(), parts }
    }

    pub(crate) fn key(&self) -> &WritableKey {
        &self.key
    }

    /// The object is there: nothing is left to abort.
    pub(crate) fn completed(mut self) {
        self.upload.open = false;
    }

    /// Takes back what was uploaded.
    pub(crate) async fn abort(self) {
        self.upload.abort().await;
    }
}
