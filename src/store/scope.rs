//! Scopes: credentials that S3 itself confines to what one session reaches.
//!
//! A session that has a role asks STS for credentials with a policy of its own, once for all sessions that reach the
//! same. They are renewed behind the requests, before they end; whoever comes when there are none waits for one call.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use aws_sdk_s3::config::{Credentials, ProvideCredentials, SharedCredentialsProvider};
use aws_sdk_sts::operation::assume_role::AssumeRoleOutput;
use aws_sdk_sts::types::Tag;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use moka::policy::EvictionPolicy;
use sha2::{Digest, Sha256};

use super::clients::{Blueprint, Clients};
use super::failure::Failure;
use super::intercept::ServerClock;
use crate::config::Role;
use crate::error::{Error, ErrorKind, Result, shorten};
use crate::mount::Reach;
use crate::policy::{self, MOST_CHARACTERS, Place};

/// Credentials are renewed so long before they end, and earlier for some, so that not all are renewed at once.
const MARGIN: Duration = Duration::from_secs(5 * 60);
/// They are not used for this last part of their life: a request must arrive before they end.
const LAST: Duration = Duration::from_secs(10);
/// What STS refused is not asked for again so soon; longer after each failure, where there is time.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The most scopes that have clients at once.
const MOST_CLIENTS: u64 = 256;
/// The most tags that STS takes.
const MOST_TAGS: usize = 50;

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
struct ScopeId([u8; 16]);

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

impl fmt::Display for ScopeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Who gives credentials, and to whom it gave them.
pub(super) struct Scopes {
    sts: Arc<Sts>,
    blueprint: Arc<Blueprint>,
    keys: moka::sync::Cache<ScopeId, Arc<Keys>>,
    /// Clients take thirty times the room of credentials, and are made in a fraction of a millisecond: fewer are held.
    clients: moka::sync::Cache<ScopeId, Arc<Scoped>>,
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scopes").field("role", &self.sts.role).finish_non_exhaustive()
    }
}

/// STS, and what it is asked for.
#[derive(Debug)]
pub(super) struct Sts {
    pub(super) client: aws_sdk_sts::Client,
    pub(super) clock: ServerClock,
    pub(super) role: Role,
    pub(super) bucket: Arc<str>,
    pub(super) endpoint: Option<String>,
}

/// The clients of a scope, and the credentials that they use.
#[derive(Debug)]
struct Scoped {
    keys: Arc<Keys>,
    clients: Arc<Clients>,
}

impl Scopes {
    pub(super) fn new(sts: Sts, blueprint: Arc<Blueprint>) -> Arc<Self> {
        // What nobody uses any more need not lie about.
        let idle = sts.role.duration;
        let keys = moka::sync::Cache::builder()
            .max_capacity(sts.role.max_scopes.max(1))
            .eviction_policy(EvictionPolicy::lru())
            .time_to_idle(idle)
            .build();
        let clients = moka::sync::Cache::builder()
            .max_capacity(sts.role.max_scopes.clamp(1, MOST_CLIENTS))
            .eviction_policy(EvictionPolicy::lru())
            .time_to_idle(idle)
            .build();
        Arc::new(Self { sts: Arc::new(sts), blueprint, keys, clients })
    }

    /// For how many scopes credentials are held.
    pub(super) fn count(&self) -> u64 {
        self.keys.run_pending_tasks();
        self.keys.entry_count()
    }

    /// The scope of sessions that reach this much. Asks nobody.
    pub(super) fn scope(self: &Arc<Self>, reach: Vec<Reach>) -> Scope {
        let prefixes = reach.iter().flat_map(Reach::prefixes).collect();
        Scope { id: ScopeId::of(&reach), reach: reach.into(), prefixes, scopes: self.clone() }
    }
}

/// What a session reaches, and the way to credentials for it.
#[derive(Debug)]
pub(super) struct Scope {
    id: ScopeId,
    reach: Arc<[Reach]>,
    prefixes: Vec<String>,
    scopes: Arc<Scopes>,
}

impl fmt::Debug for ScopeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScopeId({self})")
    }
}

impl Scope {
    /// Whether the policy lets this key, or a listing of this prefix, through. As IAM reads it: by the plain text.
    pub(super) fn covers(&self, key: &str) -> bool {
        self.prefixes.iter().any(|prefix| key.starts_with(prefix))
    }

    /// A name for what only this scope may share.
    pub(super) fn name(&self) -> impl fmt::Display {
        self.id
    }

    fn keys(&self) -> Arc<Keys> {
        let keys = || {
            Arc::new(Keys {
                id: self.id,
                reach: self.reach.clone(),
                sts: self.scopes.sts.clone(),
                state: RwLock::default(),
                asking: Mutex::default(),
            })
        };
        self.scopes.keys.get_with(self.id, keys)
    }

    /// As if STS had answered.
    #[cfg(test)]
    pub(super) fn hold_some(&self) {
        let credentials = SessionCredentials {
            access_key_id: "A".to_owned(),
            secret_access_key: "b".to_owned(),
            session_token: "c".to_owned(),
            expires: SystemTime::now(),
            session_name: "d".to_owned(),
        };
        let (asked, later) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        let held = Held { credentials, asked, renew: later, until: later };
        *self.keys().state.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(held));
    }

    /// Whether there are credentials that hold.
    pub(super) fn has_credentials(&self) -> bool {
        self.scopes.keys.get(&self.id).is_some_and(|keys| keys.held().is_some())
    }

    /// Clients whose credentials hold.
    pub(super) async fn clients(&self) -> Result<Arc<Clients>> {
        let keys = self.keys();
        keys.present().await?;
        let Scopes { clients, blueprint, .. } = &*self.scopes;
        // Those on credentials that were let go of meanwhile would ask for some of their own.
        if let Some(scoped) = clients.get(&self.id).filter(|scoped| Arc::ptr_eq(&scoped.keys, &keys)) {
            return Ok(scoped.clients.clone());
        }
        let provider = SharedCredentialsProvider::new(Provider(keys.clone()));
        let made = Arc::new(blueprint.clients(Some(provider)));
        clients.insert(self.id, Arc::new(Scoped { keys, clients: made.clone() }));
        Ok(made)
    }

    pub(super) async fn credentials(&self) -> Result<SessionCredentials> {
        Ok(self.keys().present().await?.credentials.clone())
    }

    /// The storage says that they hold no longer. `false` when they are so new that others would fare no better.
    pub(super) fn forget_credentials(&self) -> bool {
        let forgotten = self.scopes.keys.get(&self.id).is_none_or(|keys| keys.forget());
        if let Some(scoped) = self.scopes.clients.get(&self.id).filter(|_| forgotten) {
            scoped.clients.lean.forget_credentials();
        }
        forgotten
    }
}

/// The credentials of a scope.
struct Keys {
    id: ScopeId,
    reach: Arc<[Reach]>,
    sts: Arc<Sts>,
    state: RwLock<Option<Arc<Held>>>,
    asking: Mutex<Asking>,
}

/// Keys and tokens are nobody's business.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("id", &self.id).finish_non_exhaustive()
    }
}

struct Held {
    credentials: SessionCredentials,
    asked: Instant,
    renew: Instant,
    until: Instant,
}

/// A call of STS that others may wait for, too.
type Call = Shared<BoxFuture<'static, Result<Arc<Held>, Arc<Error>>>>;

#[derive(Default)]
struct Asking {
    call: Option<Call>,
    /// When it failed the last time, how often in a row, and why.
    failed: Option<(Instant, u32, Arc<Error>)>,
}

impl Keys {
    /// What holds now.
    fn held(&self) -> Option<Arc<Held>> {
        let held = self.state.read().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().filter(|held| Instant::now() < held.until).cloned()
    }

    fn asking(&self) -> MutexGuard<'_, Asking> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Credentials that hold. Those that will end soon are renewed behind the answer.
    async fn present(self: &Arc<Self>) -> Result<Arc<Held>> {
        match self.held() {
            Some(held) => {
                if Instant::now() >= held.renew {
                    // Whether that goes well, the next one sees.
                    drop(self.ask(true));
                }
                Ok(held)
            }
            None => match self.ask(false) {
                Ok(call) => call.await.map_err(|error| Error::shared(&error)),
                Err(error) => Err(Error::shared(&error)),
            },
        }
    }

    /// The call that is under way, or a new one. In a task of its own: many may wait for it, and any of them may go away.
    fn ask(self: &Arc<Self>, there_is_time: bool) -> Result<Call, Arc<Error>> {
        let mut asking = self.asking();
        if let Some(call) = &asking.call {
            return Ok(call.clone());
        }
        if let Some((when, times, error)) = &asking.failed {
            let pause =
                if there_is_time { (PAUSE * 2u32.pow((*times).min(5))).min(LONGEST_PAUSE) } else { PAUSE };
            if when.elapsed() < pause {
                return Err(error.clone());
            }
        }
        // It may have come while the lock was waited for.
        if let Some(held) = self.held().filter(|held| Instant::now() < held.renew) {
            return Ok(futures_util::future::ready(Ok(held)).boxed().shared());
        }
        let keys = self.clone();
        let task = tokio::spawn(async move {
            let answer = keys.sts.assume(&keys).await.map(Arc::new).map_err(Arc::new);
            let mut asking = keys.asking();
            asking.call = None;
            match &answer {
                Ok(held) => {
                    asking.failed = None;
                    *keys.state.write().unwrap_or_else(PoisonError::into_inner) = Some(held.clone());
                }
                Err(error) => {
                    tracing::warn!(scope = %keys.id, "no credentials for a session: {}", error.message());
                    let times = asking.failed.as_ref().map_or(0, |(_, times, _)| times + 1);
                    asking.failed = Some((Instant::now(), times, error.clone()));
                }
            }
            answer
        });
        let call = async move {
            task.await.unwrap_or_else(|error| {
                Err(Arc::new(
                    Error::new(ErrorKind::Internal, "credentials could not be asked for").with_source(error),
                ))
            })
        };
        let call = call.boxed().shared();
        asking.call = Some(call.clone());
        Ok(call)
    }

    fn forget(&self) -> bool {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let old = state.as_ref().is_none_or(|held| held.asked.elapsed() > PAUSE);
        if old {
            *state = None;
        }
        old
    }
}

/// Gives a scope's credentials to its clients.
#[derive(Debug)]
struct Provider(Arc<Keys>);

impl ProvideCredentials for Provider {
    fn provide_credentials<'a>(&'a self) -> aws_credential_types::provider::future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        aws_credential_types::provider::future::ProvideCredentials::new(async {
            let held = self
                .0
                .present()
                .await
                .map_err(aws_credential_types::provider::error::CredentialsError::provider_error)?;
            let SessionCredentials { access_key_id, secret_access_key, session_token, .. } =
                &held.credentials;
            Ok(Credentials::new(
                access_key_id,
                secret_access_key,
                Some(session_token.clone()),
                None,
                "skillfs scope",
            ))
        })
    }
}

impl Sts {
    async fn assume(&self, keys: &Keys) -> Result<Held> {
        let role = &self.role;
        let policy = self.policy(&keys.reach)?;
        let tags = if role.session_tags { Some(tags(&keys.reach)?) } else { None };
        let session_name = format!("skillfs-{}", keys.id);
        let asked = Instant::now();
        let request = self
            .client
            .assume_role()
            .role_arn(&role.arn)
            .role_session_name(&session_name)
            .policy(policy)
            .set_tags(tags)
            .set_external_id(role.external_id.clone())
            .duration_seconds(i32::try_from(role.duration.as_secs()).unwrap_or(3600));
        // Boxed: the SDK's futures are large.
        let answer = Box::pin(request.send()).await.map_err(|error| self.refused(error.into()))?;
        self.held(answer, session_name, asked, keys.id)
    }

    /// The policy, as long as STS takes it.
    fn policy(&self, reach: &[Reach]) -> Result<String> {
        let Role { kms, compact_policy: compact, .. } = self.role;
        let place = Place { partition: self.role.partition(), bucket: &self.bucket, kms, compact };
        let policy = policy::of_session(place, reach).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                "the session has no mounts, so there is nothing to ask credentials for",
            )
            .with_hint("name a user, a thread, a ticket or a library")
        })?;
        if policy.len() <= MOST_CHARACTERS {
            return Ok(policy);
        }
        let libraries = reach.iter().filter(|reach| matches!(reach, Reach::Library { .. })).count();
        let shorter = policy::of_session(Place { compact: true, ..place }, reach)
            .filter(|text| text.len() <= MOST_CHARACTERS);
        let hint = match shorter {
            Some(_) if !compact => {
                "set `compact_policy` (`--role-with compact`), which fits: with the role of the Terraform module it allows the same; or name fewer libraries"
            }
            _ => "name fewer libraries in one session",
        };
        let message = format!(
            "the policy of a session with {libraries} libraries has {} characters, and STS takes {MOST_CHARACTERS}",
            policy.len()
        );
        Err(Error::new(ErrorKind::InvalidInput, message).with_hint(hint))
    }

    fn held(
        &self,
        answer: AssumeRoleOutput,
        session_name: String,
        asked: Instant,
        id: ScopeId,
    ) -> Result<Held> {
        let unusable = || {
            Error::new(ErrorKind::Corrupt, "STS answered without credentials")
                .with_hint("check the address of STS")
        };
        let given = answer.credentials.ok_or_else(unusable)?;
        let expires = SystemTime::try_from(given.expiration).map_err(|_| unusable())?;
        // By its own clock: ours may be off.
        let now = self.clock.now().unwrap_or_else(SystemTime::now);
        let life = expires.duration_since(now).unwrap_or_default();
        let margin = MARGIN.min(life / 4);
        // Up to twice as early.
        let early = margin + margin * u32::from(id.0[0]) / 255;
        tracing::debug!(scope = %id, ?life, "credentials of a session");
        Ok(Held {
            credentials: SessionCredentials {
                access_key_id: given.access_key_id,
                secret_access_key: given.secret_access_key,
                session_token: given.session_token,
                expires,
                session_name,
            },
            asked,
            renew: asked + life.saturating_sub(early),
            until: asked + life.saturating_sub(LAST.min(life / 10)),
        })
    }

    fn refused(&self, failure: Failure) -> Error {
        let arn = shorten(&self.role.arn);
        let (code, message) = failure.said();
        let said = if message.is_empty() { code.to_owned() } else { format!("{code}: {}", shorten(message)) };
        let told =
            |kind, what: &str, hint: &str| Error::new(kind, format!("{what} ({said})")).with_hint(hint);
        let error = match code {
            "AccessDenied" | "AccessDeniedException" => told(
                ErrorKind::Denied,
                &format!("STS refuses to let this process assume the role `{arn}` for the session"),
                "the role's trust policy must name the role or user that this process runs on (`agent_principal_arns` of the Terraform module), with `sts:TagSession` for tags; an external id must match",
            ),
            "MalformedPolicyDocument" | "MalformedPolicyDocumentException" => told(
                ErrorKind::Internal,
                "STS cannot read the session's policy",
                "this looks like a defect; please report it",
            ),
            "PackedPolicyTooLarge" | "PackedPolicyTooLargeException" => told(
                ErrorKind::InvalidInput,
                "the session's policy and tags are too large for STS",
                "name fewer libraries in one session, or set `compact_policy` (`--role-with compact`)",
            ),
            "ValidationError" => told(
                ErrorKind::InvalidInput,
                &format!("STS does not take the request for the role `{arn}`"),
                "see that the role's duration is no longer than the role allows (one hour, when this process runs on a role itself)",
            ),
            "RegionDisabledException" => told(
                ErrorKind::Denied,
                "STS is not activated in this region",
                "activate it in the account's settings of IAM, or set another region",
            ),
            _ => return failure.into_sts_error(self.endpoint.as_deref()),
        };
        error.with_source(failure.into_source())
    }
}

/// What the role's own policy reads: who the session is.
fn tags(reach: &[Reach]) -> Result<Vec<Tag>> {
    let mut tags: Vec<(String, &str)> = Vec::new();
    let mut libraries = 0;
    for reach in reach {
        let (name, id) = match reach {
            Reach::Below { prefix, .. } => match prefix.trim_end_matches('/').split_once('/') {
                Some(("threads", id)) => ("thread".to_owned(), id),
                Some(("tickets", id)) => ("ticket".to_owned(), id),
                _ => continue,
            },
            Reach::Library { home } => match home.trim_end_matches('/').split_once('/') {
                Some((_, library)) => {
                    libraries += 1;
                    (format!("library{libraries}"), library)
                }
                None => ("user".to_owned(), home.trim_end_matches('/')),
            },
        };
        tags.push((name, id));
    }
    if tags.len() > MOST_TAGS {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("the session needs {} tags, and STS takes {MOST_TAGS}", tags.len()),
        )
        .with_hint("name fewer libraries in one session"));
    }
    let internal = |error| Error::new(ErrorKind::Internal, "a tag could not be built").with_source(error);
    tags.into_iter()
        .map(|(name, id)| {
            if let Some(strange) =
                id.chars().find(|c| !(c.is_ascii_alphanumeric() || "_.:/=+-@".contains(*c)))
            {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!("AWS takes no `{strange}` in a session tag, and the {name} is `{}`", shorten(id)),
                )
                .with_hint("use the session policy alone, without `session_tags` (`--role-with tags`)"));
            }
            Tag::builder().key(name).value(id).build().map_err(internal)
        })
        .collect()
}
