//! The store: the one room that knows `aws-sdk-s3`.
//!
//! It takes keys that [`mount`](crate::mount) made, sends requests, counts them, and speaks of
//! failures in our own kinds. It knows nothing of paths.

mod body;
mod client;
mod failure;
mod gate;
mod history;
mod intercept;
mod pace;
mod parts;
mod write;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use aws_sdk_s3::Client;
use aws_sdk_s3::operation::get_object::GetObjectOutput;
use aws_sdk_s3::types::{EncodingType, Object as S3Object};
use percent_encoding::percent_decode_str;
use tokio::sync::OnceCell;
use tracing::{Instrument, instrument};

pub(crate) use self::body::Body;
use self::failure::Failure;
use self::gate::Gate;
pub(crate) use self::history::{History, WriteId};
pub use self::intercept::RequestCounts;
use self::intercept::{Counters, ServerClock};
use self::pace::Pace;
#[cfg(feature = "cli")]
pub(crate) use self::parts::all_aborted;
pub(crate) use self::parts::{PartSource, Parts};
pub(crate) use self::write::{Condition, Payload, Properties, Put, Seen, Write, pause};
use crate::cache::Cache;
use crate::entry::Depth;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{KeyPrefix, ObjectKey, Tenant, WritableKey};

/// One bucket, and the client that speaks to it, on behalf of one tenant.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    bucket: Arc<Bucket>,
    tenant: Tenant,
}

impl Deref for Store {
    type Target = Bucket;

    fn deref(&self) -> &Bucket {
        &self.bucket
    }
}

/// What all tenants share.
#[derive(Debug)]
pub(crate) struct Bucket {
    client: Client,
    /// The same for GET and HEAD, with fewer time limits of its own.
    reader: Client,
    /// The same without retries and time limits: what may be sent again, and when, [`write`] decides.
    writer: Client,
    name: String,
    /// Where the server is, for messages; `None` is AWS.
    endpoint: Option<String>,
    counters: Counters,
    /// The longest silence inside a body.
    body_silence: Duration,
    /// How long a body may take for its next few kilobytes.
    body_patience: Duration,
    max_attempts: u32,
    /// How long one attempt of a small write may take.
    attempt_patience: Duration,
    /// How long a request may take, with all its attempts.
    operation_patience: Duration,
    clock: ServerClock,
    /// AWS and the embedded store: they are known to mind conditions.
    known: bool,
    /// Set once a server said that it has no conditional deletions.
    no_conditional_deletes: AtomicBool,
    conditional_writes: OnceCell<bool>,
    part_bytes: u64,
    single_copy_bytes: u64,
    gate: Gate,
    cache: Arc<Cache>,
    /// How fast reads and listings are answered; `None` when slow ones shall be waited for.
    paces: Option<Paces>,
}

#[derive(Debug, Default)]
struct Paces {
    get: Pace,
    head: Pace,
    list: Pace,
}

/// A request that may be sent more than once.
type Sending<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// A task that ends with whoever waits for it.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Objects that are being changed.
struct Changing<'k> {
    cache: Arc<Cache>,
    keys: Vec<&'k str>,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        for key in &self.keys {
            self.cache.changed_object(key);
        }
    }
}

/// What may be expected of a deletion with a condition.
#[derive(Debug, Clone, Copy)]
struct ConditionalDeletes {
    supported: bool,
    trusted: bool,
}

/// What a server says about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) size: u64,
    pub(crate) modified: Option<SystemTime>,
    pub(crate) etag: Option<String>,
}

/// One page of a listing, in key order.
#[derive(Debug)]
struct ListPage {
    items: Vec<Listed>,
    next: Option<String>,
}

/// A listing, page by page. It ends: every page goes on behind the one before.
#[derive(Debug)]
pub(crate) struct Lister {
    prefix: KeyPrefix,
    depth: Depth,
    max_keys: Option<i32>,
    start_after: Option<String>,
    /// Keys behind this one are not wanted.
    until: Option<String>,
    token: Option<String>,
    done: bool,
    last_key: Option<String>,
    empty_pages: u32,
}

/// S3 may send an empty page and go on; so many are no listing any more.
const MAX_EMPTY_PAGES: u32 = 100;

impl Lister {
    pub(crate) fn new(prefix: &KeyPrefix, depth: Depth) -> Self {
        Self {
            depth,
            max_keys: None,
            start_after: None,
            until: None,
            token: None,
            // Nothing can lie below a prefix that is longer than any key.
            done: !prefix.can_have_keys(),
            last_key: None,
            empty_pages: 0,
            prefix: prefix.clone(),
        }
    }

    /// Pages of this many items.
    pub(crate) fn page_size(mut self, keys: i32) -> Self {
        self.max_keys = Some(keys);
        self
    }

    /// Only what lies behind one key, up to and with another. Both begin with the prefix, or nothing is
    /// found.
    pub(crate) fn between(mut self, after: Option<String>, until: Option<String>) -> Self {
        self.start_after = after;
        self.until = until;
        self
    }

    /// Whether all has been listed.
    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    /// The next items, in key order; `None` behind the last ones. One request, as a rule.
    pub(crate) async fn next(&mut self, store: &Store) -> Result<Option<Vec<Listed>>> {
        while !self.done {
            let after = self.start_after.clone().filter(|_| self.token.is_none());
            let token = self.token.take();
            let mut page = store.list(&self.prefix, self.depth, self.max_keys, after, token).await?;
            self.done = page.next.is_none();
            self.token = page.next;
            if let Some(until) = &self.until
                && page.items.last().is_some_and(|last| last.key() >= until.as_str())
            {
                self.done = true;
                page.items.retain(|item| item.key() <= until.as_str());
            }
            match (page.items.first(), page.items.last()) {
                (Some(first), Some(last)) => {
                    if self.last_key.as_deref().is_some_and(|known| first.key() <= known) {
                        return Err(corrupt("the storage lists the same keys again"));
                    }
                    self.last_key = Some(last.key().to_owned());
                    self.empty_pages = 0;
                    return Ok(Some(page.items));
                }
                _ => self.empty_pages += 1,
            }
            if self.empty_pages > MAX_EMPTY_PAGES {
                return Err(corrupt("the storage sends empty pages without an end"));
            }
        }
        Ok(None)
    }
}

/// What a listing found.
#[derive(Debug)]
pub(crate) enum Listed {
    Object { key: String, meta: Meta },
    Prefix(String),
}

impl Listed {
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Object { key, .. } | Self::Prefix(key) => key,
        }
    }
}

/// An answer to a ranged request.
#[derive(Debug)]
pub(crate) enum Fetched {
    /// The object is there; its bytes follow.
    Found { meta: Meta, properties: Box<Properties>, body: Box<Body> },
    /// The object is there, and the range starts at or behind its end.
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

/// A range of bytes; without an end it goes to the end of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteRange {
    pub(crate) start: u64,
    pub(crate) end: Option<u64>,
}

impl ByteRange {
    fn header(self) -> Option<String> {
        match self.end {
            Some(end) => Some(format!("bytes={}-{}", self.start, end.saturating_sub(1))),
            None if self.start == 0 => None,
            None => Some(format!("bytes={}-", self.start)),
        }
    }
}

impl Store {
    /// Requests sent so far, retries included.
    pub(crate) fn requests(&self) -> RequestCounts {
        self.counters.snapshot()
    }

    /// What is remembered of this bucket.
    pub(crate) fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// To be held while an object is changed: however that ends, what was known of it is forgotten.
    fn changing<'k>(&self, keys: impl IntoIterator<Item = &'k WritableKey>) -> Changing<'k> {
        Changing { cache: self.cache.clone(), keys: keys.into_iter().map(WritableKey::as_str).collect() }
    }

    /// The same bucket on behalf of a tenant.
    pub(crate) fn on_behalf_of(&self, tenant: Tenant) -> Self {
        Self { bucket: self.bucket.clone(), tenant }
    }

    pub(crate) fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    fn fail(&self, failure: impl Into<Failure>) -> Error {
        failure.into().into_error(&self.name, self.endpoint.as_deref())
    }

    /// Sends something when it is this tenant's turn.
    ///
    /// In a task of its own: a caller may leave its future alone for a while, as a stream of many does between
    /// two items. Were the turn in that future, others would wait for it, and the caller itself for ever.
    async fn gated<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        self.gated_for(self.tenant.clone(), work).await
    }

    /// The same on behalf of another: what lies in a shared library is asked for on the library's behalf, because
    /// others wait for the same answer, and must not stand in one tenant's queue.
    async fn gated_for<T: Send + 'static>(
        &self,
        tenant: Tenant,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let gate = self.gate.clone();
        let work = async move {
            let _turn = gate.turn(&tenant).await;
            work.await
        };
        let mut task = AbortOnDrop(tokio::spawn(work.in_current_span()));
        match (&mut task.0).await {
            Ok(done) => done,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime is about to end.
            Err(_) => std::future::pending().await,
        }
    }

    /// Sends a request that only reads. One that is much slower than others is given up and sent again.
    async fn prompt<T, E>(
        &self,
        key: &str,
        pace: fn(&Paces) -> &Pace,
        send: impl Fn(&Bucket) -> Sending<T, E> + Send + Sync + 'static,
    ) -> Result<T, Failure>
    where
        Failure: From<E>,
        T: Send + 'static,
        E: Send + 'static,
    {
        let bucket = self.bucket.clone();
        let tenant = self.tenant.owner_of(key);
        self.gated_for(tenant, async move { bucket.prompt(pace, || send(&bucket)).await }).await
    }
}

impl Bucket {
    async fn prompt<T, E>(
        &self,
        pace: fn(&Paces) -> &Pace,
        send: impl Fn() -> Sending<T, E> + Send + Sync,
    ) -> Result<T, Failure>
    where
        Failure: From<E>,
    {
        let pace = self.paces.as_ref().map(pace);
        let (began, patience) = (Instant::now(), self.operation_patience);
        let limit = pace.and_then(Pace::limit).filter(|limit| *limit < patience);
        let mut sent = send();
        let mut answer = tokio::time::timeout(limit.unwrap_or(patience), &mut sent).await;
        if let (Err(_), Some(limit), Some(pace)) = (&answer, limit, pace) {
            if pace.may_send_again() {
                self.counters.reissued();
                tracing::debug!(?limit, "no answer in time; sent again");
                // The first one goes before the second begins.
                drop(sent);
                sent = send();
            }
            answer = tokio::time::timeout(patience.saturating_sub(began.elapsed()), sent).await;
        }
        if let Some(pace) = pace {
            pace.record(began.elapsed());
        }
        match answer {
            Ok(answer) => answer.map_err(Failure::from),
            Err(_) => Err(Failure::timed_out()),
        }
    }
}

impl Store {
    /// One HeadObject. A missing bucket looks like a missing key here: a HEAD has no body.
    pub(crate) async fn head(&self, key: &ObjectKey) -> Result<Option<Meta>> {
        Ok(self.look(key).await?.map(|seen| seen.meta))
    }

    /// Whether the server minds conditions of writes. Asked once, with a key of the session's own.
    pub(crate) async fn conditional_writes(&self, probe: &WritableKey) -> Result<bool> {
        self.conditional_writes.get_or_try_init(|| self.honours_conditions(probe)).await.copied()
    }

    fn conditional_deletes(&self) -> ConditionalDeletes {
        let supported = !self.no_conditional_deletes.load(Ordering::Relaxed);
        ConditionalDeletes { supported, trusted: self.known && supported }
    }

    fn forget_conditional_deletes(&self) {
        self.no_conditional_deletes.store(true, Ordering::Relaxed);
    }

    /// The largest content that is sent in one request.
    pub(crate) fn single_put_bytes(&self) -> u64 {
        self.part_bytes * 2
    }

    /// One ListObjectsV2.
    #[instrument(level = "debug", skip_all, fields(prefix = prefix.as_str(), ?depth))]
    async fn list(
        &self,
        prefix: &KeyPrefix,
        depth: Depth,
        max_keys: Option<i32>,
        start_after: Option<String>,
        token: Option<String>,
    ) -> Result<ListPage> {
        let prefix = prefix.as_str().to_owned();
        let listed = prefix.clone();
        let send = move |bucket: &Bucket| -> Sending<_, _> {
            let request = bucket
                .client
                .list_objects_v2()
                .bucket(&bucket.name)
                .prefix(&prefix)
                .set_delimiter((depth == Depth::One).then(|| "/".to_owned()))
                // One control character in one key would break the XML of the whole page.
                .encoding_type(EncodingType::Url)
                .set_max_keys(max_keys)
                .set_start_after(start_after.clone())
                .set_continuation_token(token.clone());
            Box::pin(request.send())
        };
        let page = Box::pin(self.prompt(&listed, |paces| &paces.list, send))
            .await
            .map_err(|error| self.fail(error))?;
        let encoded = page.encoding_type.is_some();
        let decode = |key: String| if encoded { decode_listed(&key) } else { Ok(key) };
        let mut items = Vec::new();
        for object in page.contents.unwrap_or_default() {
            let S3Object { key: Some(key), size: bytes, last_modified, e_tag, .. } = object else { continue };
            items.push(Listed::Object {
                key: decode(key)?,
                meta: Meta {
                    size: length(bytes)?,
                    modified: last_modified.and_then(|t| t.try_into().ok()),
                    etag: e_tag.map(etag_token),
                },
            });
        }
        for prefix in page.common_prefixes.unwrap_or_default() {
            if let Some(prefix) = prefix.prefix {
                items.push(Listed::Prefix(decode(prefix)?));
            }
        }
        items.sort_by(|a, b| a.key().cmp(b.key()));
        let next = match (page.is_truncated, page.next_continuation_token) {
            (Some(true), None) => {
                return Err(corrupt("the storage cut a listing and gave no way to go on"));
            }
            // A token alone says that there is more, too.
            (Some(true) | None, next) => next,
            _ => None,
        };
        Ok(ListPage { items, next })
    }

    /// One GetObject; the body may send more, to go on where a connection broke.
    #[instrument(level = "debug", skip_all, fields(key = key.as_str(), ?range))]
    pub(crate) async fn get(&self, key: &ObjectKey, range: ByteRange, expect: Expect<'_>) -> Result<Fetched> {
        match self.send_get(key, range, expect).await {
            Ok(response) => {
                let (meta, properties, body) = Self::received(key, range, response)?;
                Ok(Fetched::Found { meta, properties: Box::new(properties), body: Box::new(body) })
            }
            Err(failure) if failure.is_missing_key() => Ok(Fetched::Missing),
            Err(failure) if failure.status() == Some(304) && matches!(expect, Expect::Not(_)) => {
                Ok(Fetched::Unchanged)
            }
            Err(failure) if failure.status() == Some(412) && matches!(expect, Expect::Version(_)) => {
                Ok(Fetched::Changed)
            }
            Err(failure) if failure.status() == Some(416) => Ok(Fetched::BehindTheEnd),
            Err(failure) => Err(self.fail(failure)),
        }
    }

    async fn send_get(
        &self,
        key: &ObjectKey,
        range: ByteRange,
        expect: Expect<'_>,
    ) -> Result<GetObjectOutput, Failure> {
        let (if_match, if_none_match) = match expect {
            Expect::Any => (None, None),
            Expect::Version(etag) => (Some(etag_header(etag)), None),
            Expect::Not(etag) => (None, Some(etag_header(etag))),
        };
        // Boxed: callers would carry some kilobytes.
        let (name, key) = (key.as_str().to_owned(), key.clone());
        let send = move |bucket: &Bucket| -> Sending<_, _> {
            let request = bucket
                .reader
                .get_object()
                .bucket(&bucket.name)
                .key(key.as_str())
                .set_range(range.header())
                .set_if_match(if_match.clone())
                .set_if_none_match(if_none_match.clone());
            Box::pin(request.send())
        };
        Box::pin(self.prompt(&name, |paces| &paces.get, send)).await
    }

    fn received(
        key: &ObjectKey,
        range: ByteRange,
        response: GetObjectOutput,
    ) -> Result<(Meta, Properties, Body)> {
        let length = length(response.content_length)?;
        let (start, total) = match response.content_range.as_deref() {
            Some(header) => parse_content_range(header, length)
                .filter(|(start, _)| *start == range.start)
                .ok_or_else(|| corrupt(format!("the storage answered with a wrong range, `{header}`")))?,
            // A server that ignores ranges sends everything from the front.
            None => (0, length),
        };
        let meta = Meta {
            size: total,
            modified: response.last_modified.and_then(|t| t.try_into().ok()),
            etag: response.e_tag.map(etag_token),
        };
        let end = range.end.unwrap_or(total).min(total);
        let mut metadata: BTreeMap<_, _> = response.metadata.unwrap_or_default().into_iter().collect();
        let history = History::take_from(&mut metadata);
        let properties = Properties {
            content_type: response.content_type,
            content_encoding: response.content_encoding,
            content_language: response.content_language,
            content_disposition: response.content_disposition,
            cache_control: response.cache_control,
            metadata,
            history,
        };
        let body = Body::new(key.clone(), range.start..end, start, meta.etag.clone(), response.body);
        Ok((meta, properties, body))
    }
}

/// S3 encodes a space as `+` and a plus as `%2B`; others encode both as `%xx`. Both read alike.
fn decode_listed(key: &str) -> Result<String> {
    percent_decode_str(&key.replace('+', " "))
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| corrupt("the storage listed a key that is not valid UTF-8"))
}

/// `bytes 0-99/1234` with the length of the body: where it starts, and the size of the object.
fn parse_content_range(header: &str, length: u64) -> Option<(u64, u64)> {
    let (range, total) = header.strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, last, total): (u64, u64, u64) =
        (start.parse().ok()?, last.parse().ok()?, total.parse().ok()?);
    (last.checked_sub(start)?.checked_add(1)? == length && last < total).then_some((start, total))
}

/// Without its quotes an ETag survives a shell and a prompt.
fn etag_token(header: String) -> String {
    match header.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(token) => token.to_owned(),
        None => header,
    }
}

fn etag_header(token: &str) -> String {
    if token.contains('"') { token.to_owned() } else { format!("\"{token}\"") }
}

/// Without a length the end of a body could not be told from a broken connection.
fn length(header: Option<i64>) -> Result<u64> {
    header
        .and_then(|length| u64::try_from(length).ok())
        .ok_or_else(|| corrupt("the storage did not say how long the object is"))
}

fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, message)
        .with_hint("nothing of it was used; if it happens again, look at the server or the proxy before it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_keys_are_decoded() {
        let check = |encoded: &str, key: &str| assert_eq!(decode_listed(encoded).unwrap(), key);
        check("a+b", "a b");
        check("a%20b", "a b");
        check("a%2Bb", "a+b");
        check("100%25.md", "100%.md");
        check("%C3%A9/%F0%9F%A6%80", "é/🦀");
        check("a%01b", "a\u{1}b");
        assert_eq!(decode_listed("%ff").unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn etags_lose_their_quotes_and_get_them_back() {
        for header in ["\"abc-2\"", "W/\"abc\""] {
            assert_eq!(etag_header(&etag_token(header.to_owned())), header);
        }
        assert_eq!(etag_token("\"abc\"".to_owned()), "abc");
    }

    #[test]
    fn content_ranges_must_add_up() {
        assert_eq!(parse_content_range("bytes 0-99/1234", 100), Some((0, 1234)));
        assert_eq!(parse_content_range("bytes 5-5/6", 1), Some((5, 6)));
        for (header, length) in [
            ("bytes 0-99/1234", 99),
            ("bytes 0-99/50", 100),
            ("bytes */10", 0),
            ("bytes 9-3/10", 0),
            ("bytes 0-99", 100),
            ("bytes 0-18446744073709551615/1", 0),
            ("", 0),
        ] {
            assert_eq!(parse_content_range(header, length), None, "{header}");
        }
    }

    #[test]
    fn ranges_are_written_as_http_wants_them() {
        let check = |start, end, header: Option<&str>| {
            assert_eq!(ByteRange { start, end }.header().as_deref(), header);
        };
        check(0, None, None);
        check(7, None, Some("bytes=7-"));
        check(0, Some(10), Some("bytes=0-9"));
        check(5, Some(6), Some("bytes=5-5"));
    }
}
