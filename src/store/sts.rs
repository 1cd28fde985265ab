//! AssumeRole: fetches credentials with a session policy for a part of the bucket from STS.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_sdk_sts::types::Tag;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::failure::Failure;
use super::intercept::ServerClock;
use crate::ambient::Instant;
use crate::cache::Evidence;
use crate::config::Role;
use crate::error::{Error, ErrorKind, Hint, Result, shorten};
use crate::mount::{Identity, IdentitySpec, Owner, Reach};
use crate::policy::{self, MOST_CHARACTERS, PolicyTarget};

/// How long before their expiration credentials are renewed. Some scopes renew earlier, to spread the calls.
const MARGIN: Duration = Duration::from_secs(5 * 60);
/// Credentials are not used in this last part of their lifetime, because a request must arrive before they expire.
const EXPIRY_MARGIN: Duration = Duration::from_secs(10);
/// Credentials with a shorter remaining lifetime are rejected.
const MIN_LIFETIME: Duration = Duration::from_secs(1);
/// STS's limit for the number of session tags.
const MOST_TAGS: usize = 50;
/// The maximum number of concurrent calls. STS allows an account a few hundred calls per second, and other programs
/// need some of them.
pub(super) const MAX_CONCURRENT_CALLS: usize = 32;

/// Credentials that S3 confines to what a session may access. The secrets print as `***`.
#[derive(Clone)]
#[non_exhaustive]
pub struct SessionCredentials {
    /// The access key id.
    pub access_key_id: String,
    /// The secret access key.
    pub secret_access_key: String,
    /// The session token.
    pub session_token: String,
    /// When the credentials expire, by the server's clock.
    pub expires: SystemTime,
    /// The role session name, as it appears in CloudTrail: a hash of the prefixes that the session may access.
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

/// Identifies a scope: a hash of its reach. Sessions with the same reach share it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ScopeId([u8; 16]);

impl ScopeId {
    pub(super) fn of(reach: &[Reach]) -> Self {
        let mut sum = Sha256::new();
        for reach in reach {
            let (kind, prefix) = match reach {
                Reach::Below { prefix, write: false, .. } => ("r", prefix),
                Reach::Below { prefix, write: true, .. } => ("w", prefix),
                Reach::Library { home, .. } => ("l", home),
            };
            // Prefixes contain no newline, so the separator is unambiguous.
            sum.update([kind, " ", prefix, "\n"].concat());
        }
        let mut id = [0; 16];
        id.copy_from_slice(&sum.finalize()[..16]);
        Self(id)
    }

    pub(super) fn bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Debug for ScopeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScopeId({self})")
    }
}

impl fmt::Display for ScopeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// Credentials from STS, with the times of their lifecycle.
pub(super) struct Granted {
    pub(super) credentials: SessionCredentials,
    pub(super) requested: Instant,
    pub(super) renew_at: Instant,
    pub(super) usable_until: Instant,
    /// What S3 has allowed these credentials to do.
    pub(super) evidence: Arc<Evidence>,
}

/// The STS client, and the configuration of the role.
#[derive(Debug)]
pub(super) struct Sts {
    pub(super) client: aws_sdk_sts::Client,
    pub(super) clock: ServerClock,
    pub(super) role: Role,
    pub(super) bucket: Arc<str>,
    pub(super) endpoint: Option<String>,
    pub(super) calls: Semaphore,
}

impl Sts {
    /// Fetches credentials for a scope. One AssumeRole.
    pub(super) async fn assume(&self, id: ScopeId, reach: &[Reach]) -> Result<Granted> {
        let role = &self.role;
        let policy = self.policy(reach)?;
        let tags = if role.session_tags { Some(tags(reach)?) } else { None };
        let session_name = format!("skillfs-{id}");
        // Every call has a timeout, so the wait is bounded.
        let _call = self.calls.acquire().await;
        let requested = Instant::now();
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
        let response = Box::pin(request.send()).await.map_err(|error| self.refused(error.into()))?;
        let unusable = || {
            Error::new(ErrorKind::Corrupt, "STS returned no credentials")
                .with_hint("check the address of STS")
        };
        let given = response.credentials.ok_or_else(unusable)?;
        let expires = SystemTime::try_from(given.expiration).map_err(|_| unusable())?;
        // By the server's clock, because the local one may be wrong.
        let life = expires.duration_since(self.clock.now_or_ours()).unwrap_or_default();
        if life < MIN_LIFETIME {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "STS returned credentials that have already expired",
            )
            .with_hint("check the clock of the STS server"));
        }
        let margin = MARGIN.min(life / 4);
        // Up to twice as early, depending on the scope.
        let early = margin + margin * u32::from(id.bytes()[0]) / 255;
        tracing::debug!(scope = %id, ?life, "credentials of a session");
        Ok(Granted {
            credentials: SessionCredentials {
                access_key_id: given.access_key_id,
                secret_access_key: given.secret_access_key,
                session_token: given.session_token,
                expires,
                session_name,
            },
            requested,
            renew_at: requested + life.saturating_sub(early),
            usable_until: requested + life.saturating_sub(EXPIRY_MARGIN.min(life / 10)),
            evidence: Arc::new(Evidence::new(reach)),
        })
    }

    /// Builds the session policy, and checks that it is within STS's size limit.
    fn policy(&self, reach: &[Reach]) -> Result<String> {
        let Role { kms, compact_policy: compact, .. } = self.role;
        let place = PolicyTarget { partition: self.role.partition(), bucket: &self.bucket, kms, compact };
        let policy = policy::session_policy(place, reach).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "the session has no mounts, so it needs no credentials")
                .with_hint(Hint::OpenWith {
                    mount: None,
                    identities: Identity::ALL.map(|identity| identity.spec().name).to_vec(),
                })
        })?;
        if policy.len() <= MOST_CHARACTERS {
            return Ok(policy);
        }
        let libraries = reach.iter().filter(|reach| matches!(reach, Reach::Library { .. })).count();
        let shorter = policy::session_policy(PolicyTarget { compact: true, ..place }, reach)
            .filter(|text| text.len() <= MOST_CHARACTERS);
        let hint = match shorter {
            Some(_) if !compact => Hint::CompactPolicy { fits: true },
            _ => "name fewer libraries in one session".into(),
        };
        let message = format!(
            "the policy of a session with {libraries} libraries has {} characters; STS accepts {MOST_CHARACTERS}",
            policy.len()
        );
        Err(Error::new(ErrorKind::InvalidInput, message).with_hint(hint))
    }

    /// Converts the failure of an AssumeRole to an error.
    fn refused(&self, failure: Failure) -> Error {
        let arn = shorten(&self.role.arn);
        let (code, message) = failure.code_and_message();
        let said = if message.is_empty() { code.to_owned() } else { format!("{code}: {}", shorten(message)) };
        let bare = |kind, what: &str| Error::new(kind, format!("{what} ({said})"));
        let told = |kind, what: &str, hint: &'static str| bare(kind, what).with_hint(hint);
        let error = match code {
            "AccessDenied" | "AccessDeniedException" => told(
                ErrorKind::Denied,
                &format!("STS refuses to let this process assume the role `{arn}` for the session"),
                "the role's trust policy must name the role or user that this process runs on (`agent_principal_arns` of the Terraform module), with `sts:TagSession` for tags; an external id must match",
            ),
            "MalformedPolicyDocument" | "MalformedPolicyDocumentException" => told(
                ErrorKind::Internal,
                "STS rejected the session's policy as malformed",
                "this looks like a bug; please report it",
            ),
            "PackedPolicyTooLarge" | "PackedPolicyTooLargeException" => {
                bare(ErrorKind::InvalidInput, "the session's policy and tags are too large for STS")
                    .with_hint(Hint::CompactPolicy { fits: false })
            }
            "ValidationError" => told(
                ErrorKind::InvalidInput,
                &format!("STS rejected the request for the role `{arn}`"),
                "check that the duration is not longer than the role allows (one hour if this process itself runs on a role)",
            ),
            "RegionDisabledException" => told(
                ErrorKind::Denied,
                "STS is not activated in this region",
                "activate it in the IAM account settings, or use another region",
            ),
            _ => return failure.into_sts_error(self.endpoint.as_deref()),
        };
        error.with_source(failure.into_text())
    }
}

/// The session tags: the identities of the session, for role policies that refer to them.
fn tags(reach: &[Reach]) -> Result<Vec<Tag>> {
    // Several mounts may have the same owner, and STS rejects duplicate tags.
    let mut owners: Vec<&Owner> = Vec::new();
    for owner in reach.iter().map(Reach::owner) {
        if !owners.contains(&owner) {
            owners.push(owner);
        }
    }
    if owners.len() > MOST_TAGS {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("the session needs {} tags; STS accepts {MOST_TAGS}", owners.len()),
        )
        .with_hint("name fewer libraries in one session"));
    }
    let tag = |(at, owner): (usize, &&Owner)| {
        let IdentitySpec { name, several, .. } = owner.identity().spec();
        let alike = owners[..=at].iter().filter(|other| other.identity() == owner.identity()).count();
        let name = if several { format!("{name}{alike}") } else { name.to_owned() };
        let id = owner.id();
        let strange = |c: &char| !(c.is_ascii_alphanumeric() || "_.:/=+-@".contains(*c));
        if let Some(strange) = id.chars().find(strange) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("AWS does not allow `{strange}` in a session tag; the {name} is `{}`", shorten(id)),
            )
            .with_hint(Hint::OmitSessionTags));
        }
        Tag::builder()
            .key(name)
            .value(id)
            .build()
            .map_err(|error| Error::new(ErrorKind::Internal, "a tag could not be built").with_source(error))
    };
    owners.iter().enumerate().map(tag).collect()
}
