//! Scopes: credentials that S3 itself confines to what one session reaches.
//!
//! A session that has a role asks STS for credentials with a policy of its own, once for all sessions that reach the
//! same. They are renewed behind the requests, before they end; whoever comes when there are none waits for one call.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant, SystemTime};

use aws_credential_types::provider;
use aws_sdk_s3::config::{Credentials, ProvideCredentials, SharedCredentialsProvider};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use moka::policy::EvictionPolicy;
use sha2::{Digest, Sha256};
use tokio::task::AbortHandle;

use super::clients::{Blueprint, Clients};
use super::sts::Sts;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::Reach;

/// What STS refused is not asked for again so soon; longer after each failure, where there is time.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The most scopes that have clients at once.
const MOST_CLIENTS: u64 = 256;

/// Credentials that S3 confines to what a session reaches. Its secrets print as `***`.
#[derive(Clone)]
#[non_exhaustive]
pub struct SessionCredentials {
    /// The public half.
    pub access_key_id: String,
    /// The secret half.
    pub secret_access_key: String,
    /// The token that goes with them.
    pub session_token: String,
    /// When they end, by the server's clock.
    pub expires: SystemTime,
    /// The name of the session in AWS's logs: a hash of what it reaches.
    pub session_name: String,
}

impl fmt::Debug for SessionCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionCredentials")
            .field("access_key_id", &self.access_key_id)
            .field("secret_access_key", &"***")
            .field("session_token", &"***")
            .field("expires", &self.expires)
            .field("session_name", &self.session_name)
            .finish()
    }
}

/// The same for all sessions that reach the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ScopeId([u8; 16]);

impl ScopeId {
    fn of(reach: &[Reach]) -> Self {
        let mut sum = Sha256::new();
        for reach in reach {
            let (kind, prefix) = match reach {
                Reach::Below { prefix, write: false } => ("r", prefix),
                Reach::Below { prefix, write: true } => ("w", prefix),
                Reach::Library { home } => ("l", home),
            };
            // No prefix has a line end in it.
            sum.update([kind, " ", prefix, "\n"].concat());
        }
        let mut id = [0; 16];
        id.copy_from_slice(&sum.finalize()[..16]);
        Self(id)
    }
}

impl ScopeId {
    /// Any number that differs from scope to scope.
    pub(super) fn first_byte(self) -> u8 {
        self.0[0]
    }
}

impl fmt::Display for ScopeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Who gives credentials, and to whom it gave them.
pub(super) struct Scopes {
    sts: Arc<Sts>,
    blueprint: Arc<Blueprint>,
    passes: moka::sync::Cache<ScopeId, Arc<Pass>>,
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
        let passes = moka::sync::Cache::builder()
            .max_capacity(most)
            .eviction_policy(EvictionPolicy::lru())
            .time_to_idle(idle)
            .build();
        let clients = moka::sync::Cache::builder()
            .max_capacity(most.min(MOST_CLIENTS))
            .eviction_policy(EvictionPolicy::lru())
            .time_to_idle(idle)
            .build();
        Arc::new(Self { sts: Arc::new(sts), blueprint, passes, clients })
    }

    /// For how many scopes credentials are held.
    pub(super) fn count(&self) -> u64 {
        self.passes.run_pending_tasks();
        self.passes.entry_count()
    }

    /// The scope of sessions that reach this much. Asks nobody.
    pub(super) fn scope(self: &Arc<Self>, reach: Vec<Reach>) -> Scope {
        let prefixes = |(at, reach): (usize, &Reach)| {
            let library = matches!(reach, Reach::Library { .. });
            reach.prefixes().into_iter().map(move |prefix| Covered { prefix, reach: at, library })
        };
        let covered = reach.iter().enumerate().flat_map(prefixes).collect();
        Scope { id: ScopeId::of(&reach), reach: reach.into(), covered, scopes: self.clone() }
    }
}

/// What a session reaches, and the way to credentials for it.
#[derive(Debug)]
pub(super) struct Scope {
    id: ScopeId,
    reach: Arc<[Reach]>,
    covered: Vec<Covered>,
    scopes: Arc<Scopes>,
}

/// A prefix that the policy names.
#[derive(Debug)]
struct Covered {
    prefix: String,
    /// Which part of the reach it belongs to.
    reach: usize,
    library: bool,
}

/// What S3 has let through with these credentials: they may be allowed less than their policy says, by the role, by tags,
/// by the bucket.
#[derive(Debug, Default)]
pub(super) struct Proof {
    listed: AtomicBool,
    /// Of a library: what lies in it.
    read: AtomicBool,
    /// Of a library: what lies beside it.
    beside: AtomicBool,
}

impl Proof {
    pub(super) fn of_none(reach: &[Reach]) -> Box<[Self]> {
        reach.iter().map(|_| Self::default()).collect()
    }
}

/// What was let through.
#[derive(Debug, Clone, Copy)]
pub(super) enum Passed {
    /// A listing of this prefix.
    List,
    /// A question for this object.
    Read,
    /// A listing of this object, which is not there.
    Missing,
}

impl fmt::Debug for ScopeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScopeId({self})")
    }
}

impl Scope {
    /// What the policy says of this key, or of a listing of this prefix. As IAM reads it: by the plain text.
    fn covered(&self, key: &str) -> Option<&Covered> {
        self.covered.iter().find(|covered| key.starts_with(&covered.prefix))
    }

    /// A name for what only this scope may share.
    pub(super) fn name(&self) -> impl fmt::Display {
        self.id
    }

    fn pass(&self) -> Arc<Pass> {
        let pass = || {
            Arc::new(Pass {
                id: self.id,
                reach: self.reach.clone(),
                sts: self.scopes.sts.clone(),
                granted: RwLock::default(),
                asking: Mutex::default(),
                clients: Mutex::default(),
            })
        };
        self.scopes.passes.get_with(self.id, pass)
    }

    /// Whether S3 has let this through, with the credentials that hold now: an object by its key, or what is known of all
    /// below a prefix, which ends with `/`.
    pub(super) fn is_proven<'k>(&self, mut keys: impl Iterator<Item = &'k str>) -> bool {
        let Some(granted) = self.scopes.passes.get(&self.id).and_then(|pass| pass.held()) else {
            return false;
        };
        keys.all(|key| {
            let Some(covered) = self.covered(key) else { return false };
            let Some(proof) = granted.proofs.get(covered.reach) else { return false };
            let read = if covered.is_beside() { &proof.beside } else { &proof.read };
            let is = |proof: &AtomicBool| proof.load(Ordering::Relaxed);
            match key.ends_with('/') {
                // What a library shows is what its index says of it, too.
                true if covered.library => is(&proof.listed) && is(&proof.beside),
                true => is(&proof.listed),
                false => is(read),
            }
        })
    }

    /// The credentials that the next request goes with, or older ones than those.
    pub(super) async fn granted(&self) -> Result<Arc<Granted>> {
        self.pass().present().await.map_err(|error| Error::shared(&error))
    }

    /// S3 has let something through, with these credentials.
    pub(super) fn passed(&self, granted: &Granted, key: &str, how: Passed) {
        self.prove(granted, key, how, true);
    }

    /// S3 has refused something: what is known of the like is not told either.
    pub(super) fn refused(&self, key: &str, how: Passed) {
        if let Some(granted) = self.scopes.passes.get(&self.id).and_then(|pass| pass.holding()) {
            self.prove(&granted, key, how, false);
        }
    }

    fn prove(&self, granted: &Granted, key: &str, how: Passed, is: bool) {
        let Some(covered) = self.covered(key) else { return };
        let Some(proof) = granted.proofs.get(covered.reach) else { return };
        let proof = match how {
            // What lies beside a library is not listed by sessions.
            Passed::List if covered.is_beside() => return,
            Passed::List => &proof.listed,
            Passed::Read if covered.is_beside() => &proof.beside,
            Passed::Read => &proof.read,
            // In a mount that is the session's own. Of a library it does not tell whether others may be read.
            Passed::Missing if !covered.library => &proof.read,
            Passed::Missing => return,
        };
        // Written only when it changes: all who read share it.
        if proof.load(Ordering::Relaxed) != is {
            proof.store(is, Ordering::Relaxed);
        }
    }

    /// Clients whose credentials hold.
    pub(super) async fn clients(&self) -> Result<Arc<Clients>> {
        let pass = self.pass();
        pass.present().await.map_err(|error| Error::shared(&error))?;
        let Scopes { clients, blueprint, .. } = &*self.scopes;
        let mut made = pass.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = made.upgrade() {
            // It was used.
            if clients.get(&self.id).is_none() {
                clients.insert(self.id, made.clone());
            }
            return Ok(made);
        }
        let provider = SharedCredentialsProvider::new(Provider(pass.clone()));
        let new = Arc::new(blueprint.clients(Some(provider)));
        *made = Arc::downgrade(&new);
        clients.insert(self.id, new.clone());
        Ok(new)
    }

    pub(super) async fn credentials(&self) -> Result<SessionCredentials> {
        Ok(self.granted().await?.credentials.clone())
    }

    /// The storage refused the credentials of a request that was sent then. `false` when those that there are now are
    /// so new that others would fare no better.
    pub(super) fn forget_credentials(&self, sent: Instant) -> bool {
        let Some(pass) = self.scopes.passes.get(&self.id) else { return true };
        let forgotten = pass.forget(sent);
        let clients = pass.clients.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        if let Some(clients) = clients.filter(|_| forgotten) {
            clients.lean.forget_credentials();
        }
        forgotten
    }
}

impl Covered {
    fn is_beside(&self) -> bool {
        self.library && self.prefix.ends_with(".skillfs/")
    }
}

/// The credentials of a scope, and how they are renewed.
struct Pass {
    id: ScopeId,
    reach: Arc<[Reach]>,
    sts: Arc<Sts>,
    granted: RwLock<Option<Arc<Granted>>>,
    asking: Mutex<Asking>,
    /// [`Scopes`] holds them, for as long as they are among those that were used last.
    clients: Mutex<Weak<Clients>>,
}

/// Secrets and tokens are nobody's business.
impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass").field("id", &self.id).finish_non_exhaustive()
    }
}

/// What STS gave.
pub(super) struct Granted {
    pub(super) credentials: SessionCredentials,
    pub(super) asked: Instant,
    pub(super) renew: Instant,
    pub(super) until: Instant,
    /// For each part of the reach.
    pub(super) proofs: Box<[Proof]>,
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

impl Pass {
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
        let pass = self.clone();
        let task = runtime.spawn(async move {
            let answer = pass.sts.assume(pass.id, &pass.reach).await.map(Arc::new).map_err(Arc::new);
            let mut asking = pass.asking();
            asking.call = None;
            match &answer {
                Ok(granted) => {
                    asking.failed = None;
                    let clients = pass.clients.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
                    let mut held = pass.granted.write().unwrap_or_else(PoisonError::into_inner);
                    *held = Some(granted.clone());
                    // While nobody can see them: what is sent from now on is signed with them.
                    if let Some(clients) = clients {
                        clients.lean.forget_credentials();
                    }
                }
                Err(error) => {
                    tracing::warn!(scope = %pass.id, "no credentials for a session: {}", error.message());
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
    Error::new(
        ErrorKind::Unavailable,
        "credentials for the session could not be asked for: the call was cut off",
    )
    .with_hint("try again")
}

/// Gives a scope's credentials to its clients.
#[derive(Debug)]
struct Provider(Arc<Pass>);

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
            Ok(Credentials::new(access_key_id, secret_access_key, token, None, "skillfs scope"))
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
impl Scope {
    /// As if STS had answered, and S3 let everything through.
    pub(super) fn hold_some(&self) {
        let credentials = SessionCredentials {
            access_key_id: "A".to_owned(),
            secret_access_key: "b".to_owned(),
            session_token: "c".to_owned(),
            expires: SystemTime::now(),
            session_name: "d".to_owned(),
        };
        let (asked, later) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        let proofs = Proof::of_none(&self.reach);
        let granted = Granted { credentials, asked, renew: later, until: later, proofs };
        *self.pass().granted.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(granted));
        let granted = self.pass().holding().unwrap();
        for covered in &self.covered {
            self.passed(&granted, &covered.prefix, Passed::List);
            self.passed(&granted, &covered.prefix, Passed::Read);
        }
    }
}
