//! The store: the one room that knows `aws-sdk-s3`.
//!
//! It takes keys that [`mount`](crate::mount) made, sends requests, counts them, and speaks of
//! failures in our own kinds. It knows nothing of paths.

mod answer;
mod body;
mod budget;
mod client;
mod clients;
mod failure;
mod gate;
mod history;
mod inspect;
mod intercept;
mod lean;
mod list;
mod memory;
mod pace;
mod parts;
mod scope;
mod send;
mod sign;
mod sts;
mod write;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::sync::OnceCell;
use tracing::instrument;

use self::answer::Answer;
pub(crate) use self::body::Body;
use self::clients::Clients;
use self::failure::Failure;
use self::gate::Gate;
pub(crate) use self::history::{History, WriteId};
pub(crate) use self::inspect::{Heard, Reason, Trouble, Versioning};
pub use self::intercept::RequestCounts;
use self::intercept::{Counters, ServerClock};
use self::lean::Ask;
pub(crate) use self::list::{Listed, Lister};
pub(crate) use self::memory::Memory;
#[cfg(feature = "cli")]
pub(crate) use self::parts::all_aborted;
pub(crate) use self::parts::{LastWork, PartSource, Parts};
pub use self::scope::SessionCredentials;
use self::scope::{Granted, Passed, Scope, Scopes};
use self::send::{Paces, Sending};
pub(crate) use self::write::{Condition, Payload, Properties, Put, Seen, Write, pause};
use crate::cache::Cache;
use crate::entry::{Entry, EntryKind};
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{Mounts, ObjectKey, Tenant, WritableKey};
use crate::path::VirtualPath;

/// One bucket, and the client that speaks to it, on behalf of one tenant.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    bucket: Arc<Bucket>,
    tenant: Tenant,
    /// What its credentials are confined to; `None` for those of this process.
    scope: Option<Arc<Scope>>,
    memory: Memory,
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
    /// Those on the credentials of this process.
    own: Arc<Clients>,
    /// Where sessions have credentials of their own.
    scopes: Option<Arc<Scopes>>,
    name: Arc<str>,
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
    /// Writes that were not answered, and may still arrive.
    unanswered_writes: AtomicU64,
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

impl Meta {
    /// The entry of a file.
    pub(crate) fn entry(&self, path: VirtualPath) -> Entry {
        let Self { size, modified, etag } = self.clone();
        Entry { path, kind: EntryKind::File, size: Some(size), modified, etag }
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

    /// What is remembered of this bucket, by all.
    pub(crate) fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// The same, as far as this tenant may see it.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// To be held while an object is changed: however that ends, what was known of it is forgotten.
    fn changing<'k>(&self, keys: impl IntoIterator<Item = &'k WritableKey>) -> Changing<'k> {
        Changing { cache: self.cache.clone(), keys: keys.into_iter().map(WritableKey::as_str).collect() }
    }

    /// The same bucket on behalf of a tenant, on the credentials of this process.
    pub(crate) fn on_behalf_of(&self, tenant: Tenant) -> Self {
        self.with_scope(tenant, None)
    }

    /// The same on credentials for these mounts, where there is a role to assume.
    pub(crate) fn confined_to(&self, tenant: Tenant, mounts: &Mounts) -> Self {
        let scope = self.scopes.as_ref().map(|scopes| Arc::new(scopes.scope(mounts.reach())));
        self.with_scope(tenant, scope)
    }

    fn with_scope(&self, tenant: Tenant, scope: Option<Arc<Scope>>) -> Self {
        let memory = Memory::new(self.bucket.cache.clone(), scope.clone());
        Self { bucket: self.bucket.clone(), tenant, scope, memory }
    }

    /// Whether S3 itself confines what is asked here.
    pub(crate) fn is_confined(&self) -> bool {
        self.scope.is_some()
    }

    /// The credentials of a session that has its own.
    pub(crate) async fn credentials(&self) -> Result<SessionCredentials> {
        match &self.scope {
            Some(scope) => scope.credentials().await,
            None => Err(Error::new(ErrorKind::InvalidInput, "the session has no credentials of its own")
                .with_hint("open it with a role (`--role-arn`); see terraform/README.md")),
        }
    }

    /// For how many scopes credentials are held.
    pub(crate) fn held_scopes(&self) -> u64 {
        self.scopes.as_ref().map_or(0, |scopes| scopes.count())
    }

    /// Whom to send requests with.
    async fn clients(&self) -> Result<Arc<Clients>, Failure> {
        match &self.scope {
            None => Ok(self.own.clone()),
            // Boxed: all others would carry it.
            Some(scope) => Box::pin(scope.clients()).await.map_err(Failure::told),
        }
    }

    /// S3 refused, and the key may just not be there: without the right to list the whole bucket that is what a
    /// missing key may look like. A listing tells; one request.
    async fn is_missing(
        &self,
        granted: Option<&Arc<Granted>>,
        key: &ObjectKey,
        failure: &Failure,
    ) -> Result<bool> {
        let Some(scope) = self.scope.as_ref().filter(|_| failure.may_mean_missing()) else {
            return Ok(false);
        };
        // Both are refused.
        let closed = |error: &Error| {
            if error.is_forbidden() {
                scope.refused(key.as_str(), Passed::Read);
            }
        };
        let missing = !self.lists(key).await.inspect_err(closed)?;
        if let Some(granted) = granted.filter(|_| missing) {
            scope.passed(granted, key.as_str(), Passed::Missing);
        }
        Ok(missing)
    }

    pub(crate) fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    fn fail(&self, failure: impl Into<Failure>) -> Error {
        let failure = failure.into();
        let of_session = self.scope.is_some() && failure.is_expired();
        let error = failure.into_error(&self.name, self.endpoint.as_deref());
        match of_session {
            true => error.with_hint("the session's own credentials were refused, and renewed ones, too: try again; if it stays, look at the clock of the server, and whether the role's sessions were revoked"),
            false => error,
        }
    }

    /// The same for one that is about a key: where S3 forbids it, memory does, too.
    fn fail_at(&self, key: &str, how: Passed, failure: Failure) -> Error {
        let error = self.fail(failure);
        if let Some(scope) = self.scope.as_ref().filter(|_| error.is_forbidden()) {
            scope.refused(key, how);
        }
        error
    }

    /// What a request is going to be sent with, where the session has credentials of its own.
    async fn granted(&self) -> Result<Option<Arc<Granted>>> {
        match &self.scope {
            None => Ok(None),
            // Boxed: all others would carry it.
            Some(scope) => Box::pin(scope.granted()).await.map(Some),
        }
    }

    /// S3 has answered about a key, and not refused: what is known of it may be told to whom these credentials
    /// were given.
    fn passed<T>(&self, granted: Option<&Arc<Granted>>, key: &str, how: Passed, answer: &Result<T, Failure>) {
        if let (Some(scope), Some(granted)) = (&self.scope, granted)
            && answer.as_ref().err().is_none_or(Failure::is_no_refusal)
        {
            scope.passed(granted, key, how);
        }
    }

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

    /// AWS and the embedded store: they mind the conditions of all requests.
    pub(crate) fn is_known(&self) -> bool {
        self.known
    }

    /// How many writes were not answered so far: one of them may still arrive.
    pub(crate) fn unanswered_writes(&self) -> u64 {
        self.unanswered_writes.load(Ordering::Relaxed)
    }

    /// Sets the server's clock ahead, as this process knows it.
    pub(crate) fn advance_clock(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// The time at the server; ours, before it has told.
    pub(crate) fn server_time(&self) -> SystemTime {
        self.clock.now().unwrap_or_else(SystemTime::now)
    }

    /// The largest content that is sent in one request.
    pub(crate) fn single_put_bytes(&self) -> u64 {
        self.part_bytes * 2
    }

    /// One GetObject; the body may send more, to go on where a connection broke.
    #[instrument(level = "debug", skip_all, fields(key = key.as_str(), ?range))]
    pub(crate) async fn get(&self, key: &ObjectKey, range: ByteRange, expect: Expect<'_>) -> Result<Fetched> {
        let granted = self.granted().await?;
        let answer = self.send_get(key, range, expect).await;
        self.passed(granted.as_ref(), key.as_str(), Passed::Read, &answer);
        match answer {
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
            Err(failure) if self.is_missing(granted.as_ref(), key, &failure).await? => Ok(Fetched::Missing),
            Err(failure) => Err(self.fail_at(key.as_str(), Passed::Read, failure)),
        }
    }

    async fn send_get(
        &self,
        key: &ObjectKey,
        range: ByteRange,
        expect: Expect<'_>,
    ) -> Result<Answer, Failure> {
        let (if_match, if_none_match) = match expect {
            Expect::Any => (None, None),
            Expect::Version(etag) => (Some(etag_header(etag)), None),
            Expect::Not(etag) => (None, Some(etag_header(etag))),
        };
        let ask = Arc::new(Ask { key: key.clone(), range: range.header(), if_match, if_none_match });
        let send = move |clients: &Arc<Clients>| -> Sending<_, _> {
            let (clients, ask) = (clients.clone(), ask.clone());
            Box::pin(async move { clients.get(&ask).await })
        };
        // Boxed: callers would carry it.
        Box::pin(self.prompt(key.as_str(), |paces| &paces.get, send)).await
    }

    fn received(key: &ObjectKey, range: ByteRange, answer: Answer) -> Result<(Meta, Properties, Body)> {
        let length = length(answer.length)?;
        let (start, total) = match answer.content_range.as_deref() {
            Some(header) => parse_content_range(header, length)
                .filter(|(start, _)| *start == range.start)
                .ok_or_else(|| corrupt(format!("the storage answered with a wrong range, `{header}`")))?,
            // A server that ignores ranges sends everything from the front.
            None => (0, length),
        };
        let meta = Meta { size: total, modified: answer.modified, etag: answer.etag.map(etag_token) };
        let end = range.end.unwrap_or(total).min(total);
        let body = Body::new(key.clone(), range.start..end, start, meta.etag.clone(), answer.body);
        Ok((meta, answer.properties, body))
    }
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
