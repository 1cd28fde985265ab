//! The bucket that a process shares, and the store that a session has of it.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use super::capabilities::KnownCapabilities;
use super::clients::Clients;
use super::failure::Failure;
use super::hedge::Hedges;
use super::history::WriteId;
use super::intercept::{Counters, RequestCounts, ServerClock};
use super::limiter::Limiter;
use super::scope::{Scope, Scopes, SessionScopes};
use super::sts::{Granted, SessionCredentials};
use crate::ambient::{Ambient, Instant};
use crate::cache::{Cache, Passed, TenantCache};
use crate::error::{Error, ErrorKind, Hint, Result};
use crate::mount::{Mounts, Tenant, WritableKey};

/// One bucket on behalf of one session.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    pub(super) bucket: Arc<Bucket>,
    pub(super) tenant: Tenant,
    /// The session's own credentials; `None` for those of this process.
    scopes: Option<Arc<SessionScopes>>,
    cache: TenantCache,
}

impl Deref for Store {
    type Target = Bucket;

    fn deref(&self) -> &Bucket {
        &self.bucket
    }
}

/// What all sessions share.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// On the credentials of this process.
    pub(super) own: Arc<Clients>,
    /// Where sessions have credentials of their own.
    pub(super) scopes: Option<Arc<Scopes>>,
    pub(super) name: Arc<str>,
    /// Where the server is, for messages; `None` is AWS.
    pub(super) endpoint: Option<String>,
    pub(super) counters: Counters,
    pub(super) limits: RequestLimits,
    pub(super) ambient: Ambient,
    pub(super) clock: ServerClock,
    /// Writes that were not answered, and may still arrive.
    pub(super) unanswered_writes: AtomicU64,
    pub(super) capabilities: KnownCapabilities,
    pub(super) limiter: Limiter,
    pub(super) cache: Arc<Cache>,
    /// `None` when slow requests shall be waited for.
    pub(super) hedges: Option<Hedges>,
}

/// How long, how often and how much.
#[derive(Debug)]
pub(super) struct RequestLimits {
    /// The longest silence inside a body.
    pub(super) body_silence: Duration,
    /// How long a body may take for its next few kilobytes.
    pub(super) body_patience: Duration,
    pub(super) max_attempts: u32,
    /// How long one attempt of a small write may take.
    pub(super) attempt: Duration,
    /// How long a request may take, with all its attempts.
    pub(super) operation: Duration,
    pub(super) part_bytes: u64,
    pub(super) single_copy_bytes: u64,
}

/// Held while objects are changed: however that ends, what was known of them is forgotten.
pub(super) struct Changing<'k> {
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

/// The credentials that a request goes with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route<'s> {
    own: &'s Arc<Clients>,
    scope: Option<&'s Arc<Scope>>,
}

impl Route<'_> {
    /// Clients whose credentials hold, and what those are where they are a session's own.
    pub(super) async fn clients(&self) -> Result<(Arc<Clients>, Option<Arc<Granted>>), Failure> {
        let Some(scope) = self.scope else { return Ok((self.own.clone(), None)) };
        // Boxed: requests without a role would carry it.
        let (clients, granted) = Box::pin(scope.clients()).await.map_err(Failure::told)?;
        Ok((clients, Some(granted)))
    }

    /// Whether the storage refused the session's credentials, and others are there or can be had: then nothing was
    /// done, and the request may be sent again.
    pub(super) fn renews(&self, failure: &Failure, sent: Instant) -> bool {
        failure.is_expired() && self.scope.is_some_and(|scope| scope.forget_credentials(sent))
    }

    /// The storage refused something: what is known of the like is not shown either.
    pub(super) fn refused(&self, key: &str, how: Passed) {
        if let Some(scope) = self.scope {
            scope.refused(key, how);
        }
    }

    pub(super) fn is_scoped(&self) -> bool {
        self.scope.is_some()
    }
}

impl Bucket {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where the server is; `None` is AWS.
    pub(crate) fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }

    pub(crate) fn capabilities(&self) -> &KnownCapabilities {
        &self.capabilities
    }

    /// The cache of all tenants.
    pub(crate) fn shared_cache(&self) -> &Cache {
        &self.cache
    }

    /// Requests sent so far, retries included.
    pub(crate) fn requests(&self) -> RequestCounts {
        self.counters.snapshot()
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
        self.clock.now_or_ours()
    }

    /// The largest content that is sent in one request.
    pub(crate) fn single_put_bytes(&self) -> u64 {
        self.limits.part_bytes * 2
    }

    /// An id that no other write has.
    pub(crate) fn write_id(&self) -> Result<WriteId> {
        WriteId::new(&self.ambient)
    }

    /// A name that nobody else has.
    pub(crate) fn fresh_id(&self) -> Result<String> {
        self.ambient.id()
    }

    /// Waits before the next attempt: longer each time, and never the same.
    pub(crate) async fn pause(&self, failures: u32) {
        tokio::time::sleep(self.ambient.backoff(failures)).await;
    }

    /// For how many scopes credentials are held.
    pub(crate) fn held_scopes(&self) -> u64 {
        self.scopes.as_ref().map_or(0, |scopes| scopes.count())
    }
}

impl Store {
    /// On the credentials of this process, on behalf of nobody in particular.
    pub(super) fn new(bucket: Bucket) -> Self {
        Self::with_scopes(Arc::new(bucket), Tenant::nobody(), None)
    }

    /// The same bucket on behalf of a tenant, on the credentials of this process.
    pub(crate) fn on_behalf_of(&self, tenant: Tenant) -> Self {
        Self::with_scopes(self.bucket.clone(), tenant, None)
    }

    /// The same on credentials for these mounts, where there is a role to assume.
    pub(crate) fn confined_to(&self, tenant: Tenant, mounts: &Mounts) -> Self {
        let scopes = self.bucket.scopes.as_ref().map(|scopes| Arc::new(scopes.session(mounts.reach())));
        Self::with_scopes(self.bucket.clone(), tenant, scopes)
    }

    fn with_scopes(bucket: Arc<Bucket>, tenant: Tenant, scopes: Option<Arc<SessionScopes>>) -> Self {
        let credentials = scopes.clone().map(|scopes| scopes as _);
        let cache = TenantCache::new(bucket.cache.clone(), tenant.clone(), credentials);
        Self { bucket, tenant, scopes, cache }
    }

    /// What is known of this bucket, as far as this session may see it.
    pub(crate) fn cache(&self) -> &TenantCache {
        &self.cache
    }

    /// To be held while objects are changed.
    pub(super) fn changing<'k>(&self, keys: impl IntoIterator<Item = &'k WritableKey>) -> Changing<'k> {
        Changing {
            cache: self.bucket.cache.clone(),
            keys: keys.into_iter().map(WritableKey::as_str).collect(),
        }
    }

    /// Whether S3 itself confines what is asked here.
    pub(crate) fn is_confined(&self) -> bool {
        self.scopes.is_some()
    }

    /// The credentials of a session that has its own.
    pub(crate) async fn credentials(&self) -> Result<SessionCredentials> {
        match &self.scopes {
            Some(scopes) => scopes.whole().credentials().await,
            None => Err(Error::new(ErrorKind::InvalidInput, "the session has no credentials of its own")
                .with_hint(Hint::UseRole)),
        }
    }

    /// What a request about these keys goes with.
    pub(super) fn route(&self, keys: &[&str]) -> Route<'_> {
        Route { own: &self.bucket.own, scope: self.scopes.as_ref().map(|scopes| scopes.covering(keys)) }
    }

    pub(super) fn fail(&self, failure: impl Into<Failure>) -> Error {
        let failure = failure.into();
        let of_session = self.scopes.is_some() && failure.is_expired();
        let error = failure.into_error(&self.name, self.endpoint.as_deref());
        match of_session {
            true => error.with_hint("the session's credentials were refused, and so were renewed ones: try again; if it persists, check the clock of the server, and whether the role's sessions were revoked"),
            false => error,
        }
    }

    /// The same for one that is about a key: where S3 forbids it, the cache does, too.
    pub(super) fn fail_at(&self, key: &str, how: Passed, failure: Failure) -> Error {
        let error = self.fail(failure);
        if error.is_forbidden() {
            self.route(&[key]).refused(key, how);
        }
        error
    }
}
