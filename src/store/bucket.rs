//! The bucket that all sessions of a process share, and the per-session [`Store`] on top of it.

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

/// One bucket as seen by one session.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    pub(super) bucket: Arc<Bucket>,
    pub(super) tenant: Tenant,
    /// The session's credentials; `None` if it uses those of the process.
    scopes: Option<Arc<SessionScopes>>,
    cache: TenantCache,
}

impl Deref for Store {
    type Target = Bucket;

    fn deref(&self) -> &Bucket {
        &self.bucket
    }
}

/// The state that all sessions share.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// Clients with the credentials of the process.
    pub(super) process_clients: Arc<Clients>,
    /// Set if sessions assume a role.
    pub(super) scopes: Option<Arc<Scopes>>,
    pub(super) name: Arc<str>,
    /// The URL of the server, for messages; `None` for AWS.
    pub(super) endpoint: Option<String>,
    pub(super) counters: Counters,
    pub(super) limits: RequestLimits,
    pub(super) ambient: Ambient,
    pub(super) clock: ServerClock,
    /// The number of writes without a response, which may still take effect.
    pub(super) unanswered_writes: AtomicU64,
    pub(super) capabilities: KnownCapabilities,
    pub(super) limiter: Limiter,
    pub(super) cache: Arc<Cache>,
    /// `None` if hedging is disabled.
    pub(super) hedges: Option<Hedges>,
}

/// Timeouts, retry limits and size limits of requests.
#[derive(Debug)]
pub(super) struct RequestLimits {
    /// The longest time without any bytes while a body is read.
    pub(super) body_idle_timeout: Duration,
    /// The longest time in which a body may deliver fewer than a few kilobytes.
    pub(super) body_slow_timeout: Duration,
    pub(super) max_attempts: u32,
    /// The timeout of one attempt of a small write.
    pub(super) attempt: Duration,
    /// The timeout of a request, including all attempts.
    pub(super) operation: Duration,
    pub(super) part_bytes: u64,
    pub(super) single_copy_bytes: u64,
}

/// A guard held while objects are changed. Dropping it invalidates their cache entries, even if the change failed.
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

/// The credentials that a request is signed with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route<'s> {
    process_clients: &'s Arc<Clients>,
    scope: Option<&'s Arc<Scope>>,
}

impl Route<'_> {
    /// Returns clients with valid credentials, and the credentials themselves if they belong to a session.
    pub(super) async fn clients(&self) -> Result<(Arc<Clients>, Option<Arc<Granted>>), Failure> {
        let Some(scope) = self.scope else { return Ok((self.process_clients.clone(), None)) };
        // Boxed to keep the futures of requests without a role small.
        let (clients, granted) = Box::pin(scope.clients()).await.map_err(Failure::from_error)?;
        Ok((clients, Some(granted)))
    }

    /// Returns whether the server rejected the session's credentials as expired and newer ones are available or can be
    /// requested. In that case the request had no effect and can be sent again.
    pub(super) fn renews(&self, failure: &Failure, sent: Instant) -> bool {
        failure.is_expired() && self.scope.is_some_and(|scope| scope.invalidate_credentials(sent))
    }

    /// Records that S3 denied access, so that the cache hides entries that need the same permission.
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

    /// The URL of the server; `None` for AWS.
    pub(crate) fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }

    pub(crate) fn capabilities(&self) -> &KnownCapabilities {
        &self.capabilities
    }

    /// The cache shared by all tenants.
    pub(crate) fn shared_cache(&self) -> &Cache {
        &self.cache
    }

    /// The number of requests sent so far, including retries.
    pub(crate) fn requests(&self) -> RequestCounts {
        self.counters.snapshot()
    }

    /// The number of writes so far that got no response. Each of them may still take effect.
    pub(crate) fn unanswered_writes(&self) -> u64 {
        self.unanswered_writes.load(Ordering::Relaxed)
    }

    /// Advances this process's view of the server's clock.
    pub(crate) fn advance_clock(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// The server's time, or the local time if no response has reported it yet.
    pub(crate) fn server_time(&self) -> SystemTime {
        self.clock.now_or_ours()
    }

    /// The largest content that is sent in one request.
    pub(crate) fn single_put_bytes(&self) -> u64 {
        self.limits.part_bytes * 2
    }

    /// Generates a unique write id.
    pub(crate) fn write_id(&self) -> Result<WriteId> {
        WriteId::new(&self.ambient)
    }

    /// Generates a unique random name.
    pub(crate) fn fresh_id(&self) -> Result<String> {
        self.ambient.id()
    }

    /// Sleeps before the next attempt: exponential backoff with jitter.
    pub(crate) async fn pause(&self, failures: u32) {
        tokio::time::sleep(self.ambient.backoff(failures)).await;
    }

    /// The number of scopes whose credentials are cached.
    pub(crate) fn held_scopes(&self) -> u64 {
        self.scopes.as_ref().map_or(0, |scopes| scopes.count())
    }
}

impl Store {
    /// Creates a store that uses the credentials of the process and belongs to no tenant.
    pub(super) fn new(bucket: Bucket) -> Self {
        Self::with_scopes(Arc::new(bucket), Tenant::nobody(), None)
    }

    /// Returns the same bucket for a tenant, with the credentials of the process.
    pub(crate) fn on_behalf_of(&self, tenant: Tenant) -> Self {
        Self::with_scopes(self.bucket.clone(), tenant, None)
    }

    /// Returns the same bucket for a tenant, with credentials confined to these mounts if a role is configured.
    pub(crate) fn confined_to(&self, tenant: Tenant, mounts: &Mounts) -> Self {
        let scopes = self.bucket.scopes.as_ref().map(|scopes| Arc::new(scopes.session(mounts.reach())));
        Self::with_scopes(self.bucket.clone(), tenant, scopes)
    }

    fn with_scopes(bucket: Arc<Bucket>, tenant: Tenant, scopes: Option<Arc<SessionScopes>>) -> Self {
        let credentials = scopes.clone().map(|scopes| scopes as _);
        let cache = TenantCache::new(bucket.cache.clone(), tenant.clone(), credentials);
        Self { bucket, tenant, scopes, cache }
    }

    /// The cache, limited to the entries that this session may see.
    pub(crate) fn cache(&self) -> &TenantCache {
        &self.cache
    }

    /// Returns a guard to hold while these objects are changed.
    pub(super) fn changing<'k>(&self, keys: impl IntoIterator<Item = &'k WritableKey>) -> Changing<'k> {
        Changing {
            cache: self.bucket.cache.clone(),
            keys: keys.into_iter().map(WritableKey::as_str).collect(),
        }
    }

    /// Returns whether S3 itself enforces the limits of this session, by a session policy.
    pub(crate) fn is_confined(&self) -> bool {
        self.scopes.is_some()
    }

    /// Returns the credentials of a session that assumes a role.
    pub(crate) async fn credentials(&self) -> Result<SessionCredentials> {
        match &self.scopes {
            Some(scopes) => scopes.combined().credentials().await,
            None => Err(Error::new(ErrorKind::InvalidInput, "the session has no credentials of its own")
                .with_hint(Hint::UseRole)),
        }
    }

    /// Chooses the credentials for a request about these keys.
    pub(super) fn route(&self, keys: &[&str]) -> Route<'_> {
        let scope = self.scopes.as_ref().map(|scopes| scopes.covering(keys));
        Route { process_clients: &self.bucket.process_clients, scope }
    }

    /// Converts a failure to an error.
    pub(super) fn fail(&self, failure: impl Into<Failure>) -> Error {
        let failure = failure.into();
        let of_session = self.scopes.is_some() && failure.is_expired();
        let error = failure.into_error(&self.name, self.endpoint.as_deref());
        match of_session {
            true => error.with_hint("the session's credentials were refused, and so were renewed ones: try again; if it persists, check the clock of the server, and whether the role's sessions were revoked"),
            false => error,
        }
    }

    /// Converts the failure of a request about a key. If S3 denied access, the cache hides the matching entries as well.
    pub(super) fn fail_at(&self, key: &str, how: Passed, failure: Failure) -> Error {
        let error = self.fail(failure);
        if error.is_forbidden() {
            self.route(&[key]).refused(key, how);
        }
        error
    }
}
