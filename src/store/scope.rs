//! Scopes: credentials that S3 itself confines to a part of the bucket.
//!
//! With a role, a session has two sets of credentials, each with a session policy of its own: one for its libraries,
//! which all threads of a user share, and one for its other mounts. Each is fetched when the first request needs it,
//! once for all sessions of the same reach (single flight), and renewed behind requests before it ends. A request whose
//! keys lie in both parts, such as a copy out of a library, goes with a third set for all of it.
//!
//! What S3 lets a set of credentials do is recorded with it, and opens what the process knows to the sessions that hold
//! it: see [`access`](crate::cache). So a new thread on a library that is known costs no request for the library, and
//! one call of STS when it first touches its workspace.

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

/// What STS refused is not asked for again so soon; longer after each failure, where there is time.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The most scopes that have clients at once.
const MOST_CLIENTS: u64 = 256;

/// Who gives credentials, and to whom it gave them.
pub(super) struct Scopes {
    sts: Arc<Sts>,
    blueprint: Arc<Blueprint>,
    held: moka::sync::Cache<ScopeId, Arc<ScopeCredentials>>,
    /// Clients take thirty times the room of credentials, and are made in a fraction of a millisecond: those that were
    /// used last are held.
    clients: moka::sync::Cache<ScopeId, Arc<Clients>>,
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scopes").field("role", &self.sts.role).finish_non_exhaustive()
    }
}

impl Scopes {
    pub(super) fn new(sts: Sts, blueprint: Arc<Blueprint>) -> Arc<Self> {
        // What nobody uses any more need not lie about.
        let idle = sts.role.duration;
        let most = sts.role.max_scopes.max(1);
        let (held, clients) = (last_used(most, idle), last_used(most.min(MOST_CLIENTS), idle));
        Arc::new(Self { sts: Arc::new(sts), blueprint, held, clients })
    }

    /// For how many scopes credentials are held.
    pub(super) fn count(&self) -> u64 {
        self.held.run_pending_tasks();
        self.held.entry_count()
    }

    /// The scopes of a session that reaches this much. Asks nobody.
    pub(super) fn session(self: &Arc<Self>, reach: Vec<Reach>) -> SessionScopes {
        let (libraries, mounts) =
            reach.iter().cloned().partition(|reach| matches!(reach, Reach::Library { .. }));
        let scope = |reach: Vec<Reach>| Arc::new(Scope::new(reach, self.clone()));
        SessionScopes { libraries: scope(libraries), mounts: scope(mounts), reach, whole: OnceLock::new() }
    }
}

/// So many that were used last, unless that was too long ago.
fn last_used<V: Clone + Send + Sync + 'static>(most: u64, idle: Duration) -> moka::sync::Cache<ScopeId, V> {
    let builder = moka::sync::Cache::builder().max_capacity(most).time_to_idle(idle);
    builder.eviction_policy(EvictionPolicy::lru()).build()
}

/// What a session's requests go with.
#[derive(Debug)]
pub(super) struct SessionScopes {
    /// The same for all threads of a user.
    libraries: Arc<Scope>,
    mounts: Arc<Scope>,
    reach: Vec<Reach>,
    whole: OnceLock<Arc<Scope>>,
}

impl SessionScopes {
    /// All that the session reaches.
    pub(super) fn whole(&self) -> &Arc<Scope> {
        let scopes = &self.libraries.scopes;
        self.whole.get_or_init(|| Arc::new(Scope::new(self.reach.clone(), scopes.clone())))
    }

    /// The scope that covers all these keys, or listings of these prefixes.
    pub(super) fn covering(&self, keys: &[&str]) -> &Arc<Scope> {
        let covering = |scope: &&Arc<Scope>| keys.iter().all(|key| scope.covers(key));
        [&self.libraries, &self.mounts].into_iter().find(covering).unwrap_or_else(|| self.whole())
    }
}

impl Credentials for SessionScopes {
    fn id(&self, place: &str) -> [u8; 16] {
        self.covering(&[place]).id.bytes()
    }

    fn evidence(&self, place: &str) -> Option<Arc<Evidence>> {
        let scope = self.covering(&[place]);
        Some(scope.scopes.held.get(&scope.id)?.held()?.evidence.clone())
    }
}

/// A part of the bucket, and the way to credentials for it.
#[derive(Debug)]
pub(super) struct Scope {
    id: ScopeId,
    reach: Arc<[Reach]>,
    /// Of all keys in its reach.
    prefixes: Vec<String>,
    scopes: Arc<Scopes>,
}

impl Scope {
    fn new(reach: Vec<Reach>, scopes: Arc<Scopes>) -> Self {
        let prefixes = reach.iter().flat_map(Reach::prefixes).collect();
        Self { id: ScopeId::of(&reach), reach: reach.into(), prefixes, scopes }
    }

    /// Whether the policy covers this key, or a listing of this prefix. By the plain text, as IAM reads it.
    fn covers(&self, key: &str) -> bool {
        self.prefixes.iter().any(|prefix| key.starts_with(prefix))
    }

    fn held(&self) -> Arc<ScopeCredentials> {
        let new = || {
            Arc::new(ScopeCredentials {
                id: self.id,
                reach: self.reach.clone(),
                sts: self.scopes.sts.clone(),
                granted: RwLock::default(),
                asking: Mutex::default(),
                clients: Mutex::default(),
            })
        };
        self.scopes.held.get_with(self.id, new)
    }

    /// Clients whose credentials hold, and the credentials that the next request goes with, or older ones than those.
    pub(super) async fn clients(&self) -> Result<(Arc<Clients>, Arc<Granted>)> {
        let held = self.held();
        let granted = held.present().await.map_err(|error| Error::shared(&error))?;
        let Scopes { clients, blueprint, .. } = &*self.scopes;
        let mut made = held.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = made.upgrade() {
            // It was used.
            if clients.get(&self.id).is_none() {
                clients.insert(self.id, made.clone());
            }
            return Ok((made, granted));
        }
        let provider = SharedCredentialsProvider::new(Provider(held.clone()));
        let new = Arc::new(blueprint.clients(Some(provider)));
        *made = Arc::downgrade(&new);
        clients.insert(self.id, new.clone());
        Ok((new, granted))
    }

    pub(super) async fn credentials(&self) -> Result<SessionCredentials> {
        let granted = self.held().present().await.map_err(|error| Error::shared(&error))?;
        Ok(granted.credentials.clone())
    }

    /// S3 has refused something: what is known of the like is not shown either.
    pub(super) fn refused(&self, key: &str, how: Passed) {
        if let Some(granted) = self.scopes.held.get(&self.id).and_then(|held| held.holding()) {
            granted.evidence.record(key, how, false);
        }
    }

    /// The storage refused the credentials of a request that was sent then. `false` when those that there are now are
    /// so new that others would fare no better.
    pub(super) fn forget_credentials(&self, sent: Instant) -> bool {
        self.scopes.held.get(&self.id).is_none_or(|held| held.forget(sent))
    }
}

/// The credentials of a scope, and how they are renewed.
struct ScopeCredentials {
    id: ScopeId,
    reach: Arc<[Reach]>,
    sts: Arc<Sts>,
    granted: RwLock<Option<Arc<Granted>>>,
    asking: Mutex<Asking>,
    /// [`Scopes`] holds them, for as long as they are among those that were used last.
    clients: Mutex<Weak<Clients>>,
}

/// Secrets and tokens are nobody's business.
impl fmt::Debug for ScopeCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopeCredentials").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A call of STS that others may wait for, too.
type Call = Shared<BoxFuture<'static, Result<Arc<Granted>, Arc<Error>>>>;

#[derive(Default)]
struct Asking {
    /// The call that is under way, and its task.
    call: Option<(Call, AbortHandle)>,
    /// When it failed the last time, how often in a row, and why.
    failed: Option<(Instant, u32, Arc<Error>)>,
}

impl ScopeCredentials {
    /// What holds now. What will end soon is renewed behind the answer.
    fn held(self: &Arc<Self>) -> Option<Arc<Granted>> {
        let held = self.holding()?;
        if Instant::now() >= held.renew {
            // Whether that goes well, the next one sees.
            drop(self.ask(true));
        }
        Some(held)
    }

    fn holding(&self) -> Option<Arc<Granted>> {
        let granted = self.granted.read().unwrap_or_else(PoisonError::into_inner);
        granted.as_ref().filter(|granted| Instant::now() < granted.until).cloned()
    }

    fn asking(&self) -> MutexGuard<'_, Asking> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Credentials that hold.
    async fn present(self: &Arc<Self>) -> Result<Arc<Granted>, Arc<Error>> {
        match self.held() {
            Some(held) => Ok(held),
            None => self.ask(false)?.await,
        }
    }

    /// The call that is under way, or a new one. In a task of its own: many may wait for it, and any of them may go away.
    fn ask(self: &Arc<Self>, there_is_time: bool) -> Result<Call, Arc<Error>> {
        let mut asking = self.asking();
        // One that has ended, and is still here, ended with its runtime.
        if let Some((call, task)) = &asking.call
            && !task.is_finished()
        {
            return Ok(call.clone());
        }
        if let Some((when, times, error)) = &asking.failed {
            let longer = (PAUSE * 2u32.pow((*times).min(5))).min(LONGEST_PAUSE);
            if when.elapsed() < if there_is_time { longer } else { PAUSE } {
                return Err(error.clone());
            }
        }
        // It may have come while the lock was waited for.
        if let Some(held) = self.holding().filter(|held| Instant::now() < held.renew) {
            return Ok(futures_util::future::ready(Ok(held)).boxed().shared());
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return Err(Arc::new(not_asked())) };
        let scope = self.clone();
        let task = runtime.spawn(async move {
            let answer = scope.sts.assume(scope.id, &scope.reach).await.map(Arc::new).map_err(Arc::new);
            let mut asking = scope.asking();
            asking.call = None;
            match &answer {
                Ok(granted) => {
                    asking.failed = None;
                    *scope.granted.write().unwrap_or_else(PoisonError::into_inner) = Some(granted.clone());
                }
                Err(error) => {
                    tracing::warn!(scope = %scope.id, "no credentials for a session: {}", error.message());
                    let times = asking.failed.as_ref().map_or(0, |(_, times, _)| times + 1);
                    asking.failed = Some((Instant::now(), times, error.clone()));
                }
            }
            answer
        });
        let handle = task.abort_handle();
        let call =
            async move { task.await.unwrap_or_else(|error| Err(Arc::new(not_asked().with_source(error)))) };
        let call = call.boxed().shared();
        asking.call = Some((call.clone(), handle));
        Ok(call)
    }

    fn forget(&self, sent: Instant) -> bool {
        let mut granted = self.granted.write().unwrap_or_else(PoisonError::into_inner);
        match &*granted {
            // Others are there already.
            Some(now) if now.asked > sent => true,
            Some(now) if now.asked.elapsed() <= PAUSE => false,
            _ => {
                *granted = None;
                true
            }
        }
    }
}

fn not_asked() -> Error {
    Error::new(ErrorKind::Unavailable, "the request for the session's credentials was interrupted")
        .with_hint("try again")
}

/// Gives a scope's credentials to its clients.
#[derive(Debug)]
struct Provider(Arc<ScopeCredentials>);

impl ProvideCredentials for Provider {
    fn provide_credentials<'a>(&'a self) -> provider::future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        provider::future::ProvideCredentials::new(async {
            // As it is: `Failure` finds it again among the causes.
            let granted =
                self.0.present().await.map_err(provider::error::CredentialsError::provider_error)?;
            let SessionCredentials { access_key_id, secret_access_key, session_token, .. } =
                &granted.credentials;
            let token = Some(session_token.clone());
            Ok(AwsCredentials::new(access_key_id, secret_access_key, token, None, "skillfs scope"))
        })
    }
}
