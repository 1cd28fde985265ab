//! Scopes: credentials that a session policy confines to a part of the bucket.
//!
//! With a role, a session has two sets of credentials, each with its own session policy: one for its libraries, which
//! all threads of a user share, and one for its other mounts. A request with keys in both parts, such as a copy from a
//! library, uses a third set that covers everything. A set is fetched on first use, once for all sessions with the same
//! reach (single flight), and renewed in the background before it expires (refresh-ahead).
//!
//! Each set records what S3 has allowed it to do. This evidence decides which cache entries the sessions with this set
//! may see: see [`access`](crate::cache). A new thread on a cached library therefore needs no request for the library,
//! and one STS call when it first uses its workspace.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use aws_credential_types::provider;
use aws_sdk_s3::config::{Credentials as AwsCredentials, ProvideCredentials, SharedCredentialsProvider};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use moka::policy::EvictionPolicy;
use tokio::task::AbortHandle;

use super::clients::{Blueprint, Clients};
use super::sts::{Granted, ScopeId, SessionCredentials, Sts};
use crate::ambient::Instant;
use crate::cache::{Credentials, Evidence, Passed};
use crate::error::{Error, ErrorKind, Result};
use crate::mount::Reach;

/// The minimum time between failed STS calls for a scope. Background renewals double it after each failure.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The maximum number of scopes with cached clients.
const MAX_CLIENTS: u64 = 256;

/// The credentials and clients of all scopes of a process.
pub(super) struct Scopes {
    sts: Arc<Sts>,
    blueprint: Arc<Blueprint>,
    credentials: moka::sync::Cache<ScopeId, Arc<ScopeCredentials>>,
    /// Clients take thirty times the memory of credentials and are built in a fraction of a millisecond, so only the
    /// most recently used ones are cached.
    clients: moka::sync::Cache<ScopeId, Arc<Clients>>,
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scopes").field("role", &self.sts.role).finish_non_exhaustive()
    }
}

impl Scopes {
    pub(super) fn new(sts: Sts, blueprint: Arc<Blueprint>) -> Arc<Self> {
        // Evict what was not used for the lifetime of the credentials.
        let idle = sts.role.duration;
        let max = sts.role.max_scopes.max(1);
        let (credentials, clients) = (lru_cache(max, idle), lru_cache(max.min(MAX_CLIENTS), idle));
        Arc::new(Self { sts: Arc::new(sts), blueprint, credentials, clients })
    }

    /// The number of scopes whose credentials are cached.
    pub(super) fn count(&self) -> u64 {
        self.credentials.run_pending_tasks();
        self.credentials.entry_count()
    }

    /// Returns the scopes of a session with this reach. Sends no request.
    pub(super) fn session(self: &Arc<Self>, reach: Vec<Reach>) -> SessionScopes {
        let (libraries, mounts) =
            reach.iter().cloned().partition(|reach| matches!(reach, Reach::Library { .. }));
        let scope = |reach: Vec<Reach>| Arc::new(Scope::new(reach, self.clone()));
        SessionScopes { libraries: scope(libraries), mounts: scope(mounts), reach, combined: OnceLock::new() }
    }
}

/// Builds an LRU cache that also evicts entries that were idle for too long.
fn lru_cache<V: Clone + Send + Sync + 'static>(max: u64, idle: Duration) -> moka::sync::Cache<ScopeId, V> {
    let builder = moka::sync::Cache::builder().max_capacity(max).time_to_idle(idle);
    builder.eviction_policy(EvictionPolicy::lru()).build()
}

/// The scopes from which a session's requests get their credentials.
#[derive(Debug)]
pub(super) struct SessionScopes {
    /// Shared by all threads of a user.
    libraries: Arc<Scope>,
    mounts: Arc<Scope>,
    reach: Vec<Reach>,
    combined: OnceLock<Arc<Scope>>,
}

impl SessionScopes {
    /// The scope that covers everything the session reaches.
    pub(super) fn combined(&self) -> &Arc<Scope> {
        let scopes = &self.libraries.scopes;
        self.combined.get_or_init(|| Arc::new(Scope::new(self.reach.clone(), scopes.clone())))
    }

    /// Returns the smallest scope that covers all these keys, or listings of these prefixes.
    pub(super) fn covering(&self, keys: &[&str]) -> &Arc<Scope> {
        let covering = |scope: &&Arc<Scope>| keys.iter().all(|key| scope.covers(key));
        [&self.libraries, &self.mounts].into_iter().find(covering).unwrap_or_else(|| self.combined())
    }
}

impl Credentials for SessionScopes {
    fn id(&self, place: &str) -> [u8; 16] {
        self.covering(&[place]).id.bytes()
    }

    fn evidence(&self, place: &str) -> Option<Arc<Evidence>> {
        let scope = self.covering(&[place]);
        Some(scope.scopes.credentials.get(&scope.id)?.current_or_renew()?.evidence.clone())
    }
}

/// A part of the bucket, with access to credentials for it.
#[derive(Debug)]
pub(super) struct Scope {
    id: ScopeId,
    reach: Arc<[Reach]>,
    /// The prefixes of all keys in `reach`.
    prefixes: Vec<String>,
    scopes: Arc<Scopes>,
}

impl Scope {
    fn new(reach: Vec<Reach>, scopes: Arc<Scopes>) -> Self {
        let prefixes = reach.iter().flat_map(Reach::prefixes).collect();
        Self { id: ScopeId::of(&reach), reach: reach.into(), prefixes, scopes }
    }

    /// Returns whether the session policy covers this key, or a listing of this prefix. Compares text, as IAM does.
    fn covers(&self, key: &str) -> bool {
        self.prefixes.iter().any(|prefix| key.starts_with(prefix))
    }

    fn shared_credentials(&self) -> Arc<ScopeCredentials> {
        let new = || {
            Arc::new(ScopeCredentials {
                id: self.id,
                reach: self.reach.clone(),
                sts: self.scopes.sts.clone(),
                granted: RwLock::default(),
                renewal: Mutex::default(),
                clients: Mutex::default(),
            })
        };
        self.scopes.credentials.get_with(self.id, new)
    }

    /// Returns clients with valid credentials, and the credentials. If these are renewed concurrently, the clients
    /// already use the newer ones.
    pub(super) async fn clients(&self) -> Result<(Arc<Clients>, Arc<Granted>)> {
        let credentials = self.shared_credentials();
        let granted = credentials.get().await.map_err(|error| Error::shared(&error))?;
        let Scopes { clients, blueprint, .. } = &*self.scopes;
        let mut existing = credentials.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(existing) = existing.upgrade() {
            // Count the use, and put clients back that were evicted while a request still held them.
            if clients.get(&self.id).is_none() {
                clients.insert(self.id, existing.clone());
            }
            return Ok((existing, granted));
        }
        let provider = SharedCredentialsProvider::new(Provider(credentials.clone()));
        let new = Arc::new(blueprint.clients(Some(provider)));
        *existing = Arc::downgrade(&new);
        clients.insert(self.id, new.clone());
        Ok((new, granted))
    }

    pub(super) async fn credentials(&self) -> Result<SessionCredentials> {
        let granted = self.shared_credentials().get().await.map_err(|error| Error::shared(&error))?;
        Ok(granted.credentials.clone())
    }

    /// Records that S3 denied access, so that the cache hides entries that need the same permission.
    pub(super) fn refused(&self, key: &str, how: Passed) {
        let cached = self.scopes.credentials.get(&self.id);
        if let Some(granted) = cached.and_then(|credentials| credentials.current()) {
            granted.evidence.record(key, how, false);
        }
    }

    /// Drops credentials that the server rejected in a request sent at this time. Returns `false` if the current ones
    /// are so new that fetching others would not help.
    pub(super) fn invalidate_credentials(&self, sent: Instant) -> bool {
        self.scopes.credentials.get(&self.id).is_none_or(|credentials| credentials.invalidate(sent))
    }
}

/// The credentials of a scope, and the state of their renewal.
struct ScopeCredentials {
    id: ScopeId,
    reach: Arc<[Reach]>,
    sts: Arc<Sts>,
    granted: RwLock<Option<Arc<Granted>>>,
    renewal: Mutex<Renewal>,
    /// Weak, because the LRU cache in [`Scopes`] owns the clients.
    clients: Mutex<Weak<Clients>>,
}

/// Manual, so that secrets and tokens are not printed.
impl fmt::Debug for ScopeCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopeCredentials").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A shared STS call (single flight).
type Call = Shared<BoxFuture<'static, Result<Arc<Granted>, Arc<Error>>>>;

#[derive(Default)]
struct Renewal {
    /// The call in flight, and its task.
    call: Option<(Call, AbortHandle)>,
    /// The time of the last failure, the number of consecutive failures before it, and the error.
    failed: Option<(Instant, u32, Arc<Error>)>,
}

impl ScopeCredentials {
    /// Returns the credentials if they are valid. If they expire soon, also renews them in the background.
    fn current_or_renew(self: &Arc<Self>) -> Option<Arc<Granted>> {
        let current = self.current()?;
        if Instant::now() >= current.renew_at {
            // A failure is recorded in `Renewal`.
            drop(self.fetch(true));
        }
        Some(current)
    }

    /// Returns the credentials if they are valid.
    fn current(&self) -> Option<Arc<Granted>> {
        let granted = self.granted.read().unwrap_or_else(PoisonError::into_inner);
        granted.as_ref().filter(|granted| Instant::now() < granted.usable_until).cloned()
    }

    fn renewal(&self) -> MutexGuard<'_, Renewal> {
        self.renewal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns valid credentials, and fetches them if necessary.
    async fn get(self: &Arc<Self>) -> Result<Arc<Granted>, Arc<Error>> {
        match self.current_or_renew() {
            Some(current) => Ok(current),
            None => self.fetch(false)?.await,
        }
    }

    /// Joins the STS call in flight, or starts one in a separate task, so that it survives the cancellation of any
    /// caller. With `ahead`, the current credentials are still valid, and failures are retried with a longer backoff.
    fn fetch(self: &Arc<Self>, ahead: bool) -> Result<Call, Arc<Error>> {
        let mut renewal = self.renewal();
        // A finished task that is still here was aborted with its runtime.
        if let Some((call, task)) = &renewal.call
            && !task.is_finished()
        {
            return Ok(call.clone());
        }
        if let Some((when, times, error)) = &renewal.failed {
            let longer = (PAUSE * 2u32.pow((*times).min(5))).min(LONGEST_PAUSE);
            if when.elapsed() < if ahead { longer } else { PAUSE } {
                return Err(error.clone());
            }
        }
        // Another caller may have finished while this one waited for the lock.
        if let Some(current) = self.current().filter(|current| Instant::now() < current.renew_at) {
            return Ok(futures_util::future::ready(Ok(current)).boxed().shared());
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return Err(Arc::new(interrupted())) };
        let scope = self.clone();
        let task = runtime.spawn(async move {
            let result = scope.sts.assume(scope.id, &scope.reach).await.map(Arc::new).map_err(Arc::new);
            let mut renewal = scope.renewal();
            renewal.call = None;
            match &result {
                Ok(granted) => {
                    renewal.failed = None;
                    *scope.granted.write().unwrap_or_else(PoisonError::into_inner) = Some(granted.clone());
                }
                Err(error) => {
                    tracing::warn!(scope = %scope.id, "no credentials for a session: {}", error.message());
                    let times = renewal.failed.as_ref().map_or(0, |(_, times, _)| times + 1);
                    renewal.failed = Some((Instant::now(), times, error.clone()));
                }
            }
            result
        });
        let handle = task.abort_handle();
        let call =
            async move { task.await.unwrap_or_else(|error| Err(Arc::new(interrupted().with_source(error)))) };
        let call = call.boxed().shared();
        renewal.call = Some((call.clone(), handle));
        Ok(call)
    }

    fn invalidate(&self, sent: Instant) -> bool {
        let mut granted = self.granted.write().unwrap_or_else(PoisonError::into_inner);
        match &*granted {
            // They were renewed after the request was sent.
            Some(now) if now.requested > sent => true,
            Some(now) if now.requested.elapsed() <= PAUSE => false,
            _ => {
                *granted = None;
                true
            }
        }
    }
}

fn interrupted() -> Error {
    Error::new(ErrorKind::Unavailable, "the request for the session's credentials was interrupted")
        .with_hint("try again")
}

/// Provides a scope's credentials to its SDK clients.
#[derive(Debug)]
struct Provider(Arc<ScopeCredentials>);

impl ProvideCredentials for Provider {
    fn provide_credentials<'a>(&'a self) -> provider::future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        provider::future::ProvideCredentials::new(async {
            // Passed on unchanged: `Failure::from` finds the `Arc<Error>` in the error chain.
            let granted = self.0.get().await.map_err(provider::error::CredentialsError::provider_error)?;
            let SessionCredentials { access_key_id, secret_access_key, session_token, .. } =
                &granted.credentials;
            let token = Some(session_token.clone());
            Ok(AwsCredentials::new(access_key_id, secret_access_key, token, None, "skillfs scope"))
        })
    }
}
