//! Settings, which are plain data with defaults, and the names of all environment variables.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Hint, Result, shorten};
use crate::options::setters;

/// The environment variables that this crate and its program read, in addition to those of the AWS SDK.
pub mod env {
    /// The bucket, if none is given explicitly.
    pub const BUCKET: &str = "SKILLFS_BUCKET";
    /// The URL of an S3-compatible server. Takes precedence over the AWS variables.
    pub const ENDPOINT_URL: &str = "SKILLFS_ENDPOINT_URL";
    /// The user of the session (command line only).
    pub const USER: &str = "SKILLFS_USER";
    /// The thread of the session (command line only).
    pub const THREAD: &str = "SKILLFS_THREAD";
    /// The ticket of the session (command line only).
    pub const TICKET: &str = "SKILLFS_TICKET";
    /// The shared libraries of the session, between commas (command line only).
    pub const LIBRARIES: &str = "SKILLFS_LIBRARIES";
    /// The role that sessions assume.
    pub const ROLE_ARN: &str = "SKILLFS_ROLE_ARN";
    /// The standard AWS variable for the URL of STS.
    pub const AWS_ENDPOINT_URL_STS: &str = "AWS_ENDPOINT_URL_STS";
    /// The standard AWS variable for the URL of S3.
    pub const AWS_ENDPOINT_URL_S3: &str = "AWS_ENDPOINT_URL_S3";
    /// The standard AWS variable for the URL of all services.
    pub const AWS_ENDPOINT_URL: &str = "AWS_ENDPOINT_URL";

    /// The endpoint that the environment names: [`ENDPOINT_URL`], else one of the two of AWS.
    #[must_use]
    pub fn endpoint_url() -> Option<String> {
        [ENDPOINT_URL, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL].into_iter().find_map(super::var)
    }
}

/// The settings of a handle: the bucket, credentials, timeouts, limits and the cache.
///
/// ```
/// use skillfs::Settings;
///
/// let settings = Settings::new("my-bucket").endpoint_url("http://127.0.0.1:4566");
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settings {
    /// The bucket, which contains the data of all tenants.
    pub bucket: String,
    /// The URL of an S3-compatible server, which is addressed with path-style URLs. `None` means AWS.
    pub endpoint_url: Option<String>,
    /// The region. `None` uses the AWS configuration chain, and `us-east-1` if it has none.
    pub region: Option<String>,
    /// Static credentials. `None` uses the AWS credential chain.
    pub credentials: Option<StaticCredentials>,
    /// The timeouts of requests.
    pub timeouts: Timeouts,
    /// The maximum number of attempts per request, including the first. Default 3.
    pub max_attempts: u32,
    /// The maximum number of concurrent requests. A request counts until its response begins; reading the body does not
    /// count. Default 256.
    pub max_requests: usize,
    /// The maximum number of concurrent requests of one tenant. Waiting tenants are served round robin. Default 80: with
    /// a latency of 20 ms that is 4,000 requests per second, and S3 allows 5,500 per prefix.
    pub max_requests_per_tenant: usize,
    /// Whether to hedge reads: a read that is much slower than usual is cancelled and reissued, for at most one in
    /// twenty requests. Default true.
    pub reissue_slow: bool,
    /// How long cached data is used. Writes of this process are visible immediately.
    pub freshness: Freshness,
    /// The size of the cache in bytes, shared by all tenants. Zero disables caching. Default 64 MiB.
    pub cache_bytes: u64,
    /// The maximum number of idle connections in the pool. Default 128.
    pub max_idle_connections: usize,
    /// The largest text that can be read or edited as a whole, in bytes. Default 10 MiB.
    pub max_read_bytes: u64,
    /// How long an edit or an append is retried if others keep changing the same file. Default 10 s.
    pub conflict_patience: Duration,
    /// How long the releases of published libraries are kept.
    pub retention: Retention,
    /// The conditional requests that the server honors, to avoid probing.
    pub server: ServerCapabilities,
    /// The part size of multipart uploads, in bytes. Content of more than two parts is uploaded in this way. At least
    /// 5 MiB. Default 8 MiB.
    pub part_bytes: u64,
    /// The largest object that is copied in one request, in bytes; larger objects are copied in parts. At least 10 MiB.
    /// Default 5 GiB, which is S3's limit.
    pub single_copy_bytes: u64,
    /// Whether to list skills without a description. The beginning of their text is used instead. Default true.
    pub list_undescribed_skills: bool,
    /// The role that every session assumes, so that S3 itself confines it to its prefixes. Default `None`: sessions use
    /// the credentials of the process.
    pub role: Option<Role>,
}

impl Settings {
    setters! {
        endpoint_url: some into String;
        region: some into String;
        credentials: some StaticCredentials;
        timeouts: Timeouts;
        max_attempts: u32;
        max_requests: usize;
        max_requests_per_tenant: usize;
        reissue_slow: bool;
        freshness: Freshness;
        cache_bytes: u64;
        max_idle_connections: usize;
        max_read_bytes: u64;
        conflict_patience: Duration;
        retention: Retention;
        server: ServerCapabilities;
        part_bytes: u64;
        single_copy_bytes: u64;
        list_undescribed_skills: bool;
        role: some Role;
    }
}

/// The conditional requests that a server honors. `None` means unknown, the default. AWS and the embedded store honor all
/// of them. For other servers, the first write that needs `conditional_puts` probes it, and the others are not relied
/// upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ServerCapabilities {
    /// `If-Match` and `If-None-Match` on PutObject. Without them, files cannot be edited safely and libraries cannot be
    /// published.
    pub conditional_puts: Option<bool>,
    /// `If-Match` and `If-None-Match` on CopyObject. Without them, content is uploaded instead of copied.
    pub conditional_copies: Option<bool>,
    /// `If-Match` and `If-None-Match` on CompleteMultipartUpload. Without them, an upload sends a HEAD before it
    /// completes.
    pub conditional_uploads: Option<bool>,
    /// `If-Match` on DeleteObject. Without it, a deletion sends a HEAD first.
    pub conditional_deletes: Option<bool>,
}

impl ServerCapabilities {
    setters! {
        conditional_puts: some bool;
        conditional_copies: some bool;
        conditional_uploads: some bool;
        conditional_deletes: some bool;
    }
}

impl Settings {
    /// The defaults for a bucket.
    pub fn new(bucket: impl Into<String>) -> Self {
        Self {
            bucket: bucket.into(),
            endpoint_url: None,
            region: None,
            credentials: None,
            timeouts: Timeouts::default(),
            max_attempts: 3,
            max_requests: 256,
            max_requests_per_tenant: 80,
            reissue_slow: true,
            freshness: Freshness::default(),
            cache_bytes: 64 * 1024 * 1024,
            max_idle_connections: 128,
            max_read_bytes: 10 * 1024 * 1024,
            conflict_patience: Duration::from_secs(10),
            retention: Retention::default(),
            server: ServerCapabilities::default(),
            part_bytes: 8 * 1024 * 1024,
            single_copy_bytes: 5 * 1024 * 1024 * 1024,
            list_undescribed_skills: true,
            role: None,
        }
    }

    /// The defaults, with the bucket from [`env::BUCKET`], the endpoint from [`env::ENDPOINT_URL`] or else from the AWS
    /// variables, and the role from [`env::ROLE_ARN`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if [`env::BUCKET`] is not set.
    pub fn from_env() -> Result<Self> {
        let bucket = var(env::BUCKET).ok_or_else(no_bucket)?;
        let role = var(env::ROLE_ARN).map(Role::new);
        Ok(Self { endpoint_url: env::endpoint_url(), role, ..Self::new(bucket) })
    }

    /// Validates the settings before any request is sent.
    pub(crate) fn check(&self) -> Result<()> {
        if self.bucket.is_empty() {
            return Err(no_bucket());
        }
        // The characters that are safe in a URL; S3 itself allows fewer. An ARN names an access point.
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let arn = self.bucket.starts_with("arn:");
        if !self.bucket.chars().all(|c| plain(c) || (arn && ":/".contains(c))) || self.bucket.len() > 255 {
            let hint = "a bucket name has lowercase letters, digits, dots and hyphens";
            return Err(invalid("bucket name", &self.bucket, hint));
        }
        // Bounded, because deadlines are computed from them.
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        for (name, duration) in [
            ("conflict_patience", self.conflict_patience),
            ("freshness.skills", self.freshness.skills),
            ("freshness.files", self.freshness.files),
            ("timeouts.connect", self.timeouts.connect),
            ("timeouts.attempt", self.timeouts.attempt),
            ("timeouts.operation", self.timeouts.operation),
        ] {
            if duration > DAY {
                return Err(invalid(name, &format!("{duration:?}"), "use at most one day"));
            }
        }
        // A copy is split into equal parts, which must not be smaller than S3's minimum part size.
        const MIB: u64 = 1024 * 1024;
        for (name, bytes, least) in [
            ("part_bytes", self.part_bytes, 5 * MIB),
            ("single_copy_bytes", self.single_copy_bytes, 10 * MIB),
        ] {
            if !(least..=5 * 1024 * MIB).contains(&bytes) {
                let hint = format!("use {} MiB to 5 GiB, the limits of S3", least / MIB);
                return Err(invalid(name, &bytes.to_string(), hint));
            }
        }
        self.endpoint_url.as_deref().map_or(Ok(()), check_url)?;
        self.region.as_deref().map_or(Ok(()), check_region)?;
        self.role.as_ref().map_or(Ok(()), |role| role.check(&self.bucket))?;
        self.credentials.as_ref().map_or(Ok(()), StaticCredentials::check)
    }
}

/// A role that each session assumes, with a session policy for its prefixes.
///
/// S3 itself then denies access to everything else, so a bug in this crate cannot expose the files of another tenant. The
/// module in `terraform/` creates such a role. Administrative operations do not use it.
///
/// ```
/// use skillfs::{Role, Settings};
///
/// let role = Role::new("arn:aws:iam::123456789012:role/acme-skillfs-agents");
/// let settings = Settings::new("acme-skillfs").role(role);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Role {
    /// The ARN of the role.
    pub arn: String,
    /// The external id, if the trust policy of the role requires one.
    pub external_id: Option<String>,
    /// Whether to pass `user`, `thread`, `ticket` and `library1`… as session tags in addition to the policy, for roles
    /// whose own policy refers to them. Default false.
    pub session_tags: bool,
    /// Whether the session policy uses one pattern per library instead of two, so that two to three times as many
    /// libraries fit. It then covers everything below `{user}/` and `shared/{library}/`; the role of the Terraform module
    /// allows only `skills/` and `.skillfs/` there. Default false.
    pub compact_policy: bool,
    /// Whether the bucket is encrypted with a KMS key. Default false.
    pub kms: bool,
    /// The lifetime of credentials, which are renewed before they expire. From 15 minutes to 12 hours, and not longer
    /// than the role allows. Default one hour.
    pub duration: Duration,
    /// The URL of STS. The default is the endpoint of the storage if it is not AWS, and otherwise that of AWS.
    pub sts_endpoint_url: Option<String>,
    /// The maximum number of cached sets of credentials: one for each set of libraries, and one for each thread. Default
    /// 10,000, at about 3 KiB each.
    pub max_scopes: u64,
}

impl Role {
    setters! {
        external_id: some into String;
        session_tags: bool;
        compact_policy: bool;
        kms: bool;
        duration: Duration;
        sts_endpoint_url: some into String;
        max_scopes: u64;
    }

    /// The defaults for a role.
    pub fn new(arn: impl Into<String>) -> Self {
        Self {
            arn: arn.into(),
            external_id: None,
            session_tags: false,
            compact_policy: false,
            kms: false,
            duration: Duration::from_secs(60 * 60),
            sts_endpoint_url: None,
            max_scopes: 10_000,
        }
    }

    /// The partition of the ARN: `aws`, except in China and GovCloud.
    pub(crate) fn partition(&self) -> &str {
        self.arn.split(':').nth(1).unwrap_or("aws")
    }

    fn check(&self, bucket: &str) -> Result<()> {
        const HINT: &str = "write it as `arn:aws:iam::123456789012:role/acme-skillfs-agents`";
        let pieces: Vec<_> = self.arn.splitn(6, ':').collect();
        let is_role = match pieces[..] {
            ["arn", partition, "iam", "", account, name] => {
                partition.starts_with("aws")
                    && partition.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
                    && account.len() == 12
                    && account.bytes().all(|byte| byte.is_ascii_digit())
                    && name.len() > "role/".len()
                    && name.starts_with("role/")
                    && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\*?$".contains(&byte))
            }
            _ => false,
        };
        if !is_role || self.arn.len() > 2048 {
            return Err(invalid("role", &self.arn, HINT));
        }
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        if !(minutes(15)..=minutes(12 * 60)).contains(&self.duration) {
            let given = format!("{:?}", self.duration);
            return Err(invalid("role duration", &given, "use 15 minutes to 12 hours"));
        }
        if let Some(id) = &self.external_id {
            let plain = |c: char| c.is_ascii_alphanumeric() || "_+=,.@:/-".contains(c);
            if !(2..=1224).contains(&id.len()) || !id.chars().all(plain) {
                return Err(invalid("external id", id, "it has 2 to 1,224 letters, digits and `_+=,.@:/-`"));
            }
        }
        if bucket.starts_with("arn:") || bucket.ends_with("-s3alias") || bucket.ends_with("--x-s3") {
            let hint = "session policies need the name of a general purpose bucket, not an access point or a directory bucket";
            return Err(invalid("bucket for sessions with a role", bucket, hint));
        }
        self.sts_endpoint_url.as_deref().map_or(Ok(()), check_url)
    }
}

fn invalid(what: &str, value: &str, hint: impl Into<Hint>) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("invalid {what} `{}`", shorten(value))).with_hint(hint)
}

/// Checks a URL: a scheme, a host, and optionally a port and a path. Credentials are rejected, because URLs are printed.
fn check_url(url: &str) -> Result<()> {
    let invalid = |hint: &'static str| Err(invalid("endpoint URL", url, hint));
    let Some(rest) = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")) else {
        return invalid("write it with `http://` or `https://`, such as `http://127.0.0.1:4566`");
    };
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.contains('@') {
        return Err(Error::new(ErrorKind::InvalidInput, "the endpoint URL contains a user or a password")
            .with_hint("remove them, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead"));
    }
    let port = authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')).map(|(_, port)| port);
    let strange = |c: char| c.is_control() || c.is_whitespace() || "?#\\".contains(c) || !c.is_ascii();
    let no_port = port.is_some_and(|port| port.parse::<u16>().is_err());
    if authority.trim_end_matches(':').is_empty()
        || authority.starts_with(':')
        || no_port
        || rest.chars().any(strange)
    {
        return invalid("write scheme, host and port only, such as `http://127.0.0.1:4566`");
    }
    Ok(())
}

/// Checks a region. The SDK puts it into a header, and panics if it is not a valid header value.
pub(crate) fn check_region(region: &str) -> Result<()> {
    if region.is_empty() || !region.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        let hint = "write it as `eu-south-2`; look for a stray line end";
        return Err(invalid("region", region, hint));
    }
    Ok(())
}

/// Checks the credentials in the environment for characters that would make the SDK panic, such as the carriage return
/// from a `.env` file with Windows line endings.
pub(crate) fn check_aws_variables() -> Result<()> {
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"] {
        check_secret(name, &var(name).unwrap_or_default())?;
    }
    Ok(())
}

/// The hint for when the AWS credential chain found nothing.
pub(crate) fn credentials_hint() -> String {
    match (var("AWS_ACCESS_KEY_ID"), var("AWS_SECRET_ACCESS_KEY"), var("AWS_PROFILE")) {
        (Some(_), None, _) => {
            "AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not: set both".to_owned()
        }
        (None, Some(_), _) => {
            "AWS_SECRET_ACCESS_KEY is set, but AWS_ACCESS_KEY_ID is not: set both".to_owned()
        }
        (_, _, Some(profile)) => format!(
            "AWS_PROFILE is `{}`, which has no credentials: look for it in the AWS config and credentials files",
            shorten(&profile)
        ),
        _ => "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the machine a role"
            .to_owned(),
    }
}

fn check_secret(name: &str, value: &str) -> Result<()> {
    if value.chars().all(|c| c.is_ascii_graphic()) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!("{name} contains a character that is not allowed in credentials"),
    )
    .with_hint("look for a stray space or line end in it"))
}

/// The endpoint of STS for a storage with this endpoint: the same, unless it is AWS. `None` means the default of AWS.
pub(crate) fn sts_endpoint(role: &Role, storage: Option<&str>) -> Option<String> {
    let s3 = var(env::AWS_ENDPOINT_URL_S3);
    let storage = storage.or(s3.as_deref());
    let of_storage = || {
        let host = storage?.split("://").nth(1)?.split(['/', ':']).next()?;
        let is_aws = [".amazonaws.com", ".amazonaws.com.cn"].iter().any(|end| host.ends_with(end));
        (!is_aws).then(|| storage.unwrap_or_default().to_owned())
    };
    role.sts_endpoint_url.clone().or_else(|| var(env::AWS_ENDPOINT_URL_STS)).or_else(of_storage)
}

fn var(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

pub(crate) fn no_bucket() -> Error {
    Error::new(ErrorKind::InvalidInput, "no bucket is set").with_hint(Hint::SetBucket)
}

/// How long sessions may see stale data after a change by another process.
///
/// Responses are cached for this long, and refreshed in the background on use once half of the time has passed. With
/// zero, every read sends a request; it is conditional, so unchanged content is not transferred again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Freshness {
    /// The bound for `/skills`. Default 10 s.
    pub skills: Duration,
    /// The bound for `/workspace` and `/ticket`. Default 1 s.
    pub files: Duration,
}

impl Freshness {
    setters! {
        skills: Duration;
        files: Duration;
    }

    /// Uses the same bound for everything.
    #[must_use]
    pub fn all(bound: Duration) -> Self {
        Self { skills: bound, files: bound }
    }
}

impl Default for Freshness {
    fn default() -> Self {
        Self { skills: Duration::from_secs(10), files: Duration::from_secs(1) }
    }
}

/// How long the releases of published libraries are kept. All publishers of a bucket should use the same values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retention {
    /// The number of newest releases that stay listed and can be rolled back to. Default 20.
    pub releases: usize,
    /// A release that was superseded more recently than this stays listed, and an unreferenced object that is younger
    /// than this is not pruned. Default 7 days.
    pub grace: Duration,
}

impl Retention {
    setters! {
        releases: usize;
        grace: Duration;
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self { releases: 20, grace: Duration::from_secs(7 * 24 * 3600) }
    }
}

/// The timeouts of requests.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Timeouts {
    /// The time to open a connection. Default 1 s.
    pub connect: Duration,
    /// The time from sending a request to the response headers, for each attempt, and the longest time without any bytes
    /// while a body is read. Default 2 s.
    pub attempt: Duration,
    /// The total time of a request, including all attempts. Default 8 s.
    pub operation: Duration,
}

impl Timeouts {
    setters! {
        connect: Duration;
        attempt: Duration;
        operation: Duration;
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(1),
            attempt: Duration::from_secs(2),
            operation: Duration::from_secs(8),
        }
    }
}

/// Static credentials, which do not come from the AWS credential chain. The secrets print as `***`.
#[derive(Clone)]
#[non_exhaustive]
pub struct StaticCredentials {
    /// The access key id.
    pub access_key_id: String,
    /// The secret access key.
    pub secret_access_key: String,
    /// The session token of temporary credentials.
    pub session_token: Option<String>,
}

impl StaticCredentials {
    setters! {
        session_token: some into String;
    }

    /// Creates long-term credentials, without a session token.
    pub fn new(access_key_id: impl Into<String>, secret_access_key: impl Into<String>) -> Self {
        Self {
            access_key_id: access_key_id.into(),
            secret_access_key: secret_access_key.into(),
            session_token: None,
        }
    }

    fn check(&self) -> Result<()> {
        check_secret("the access key", &self.access_key_id)?;
        check_secret("the secret key", &self.secret_access_key)?;
        check_secret("the session token", self.session_token.as_deref().unwrap_or_default())
    }
}

impl fmt::Debug for StaticCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StaticCredentials")
            .field("access_key_id", &self.access_key_id)
            .field("secret_access_key", &"***")
            .field("session_token", &self.session_token.as_ref().map(|_| "***"))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_do_not_print() {
        let mut credentials = StaticCredentials::new("AKIA", "hunter2");
        credentials.session_token = Some("hunter3".into());
        let shown = format!("{:?}", Settings { credentials: Some(credentials), ..Settings::new("b") });
        assert!(shown.contains("AKIA") && !shown.contains("hunter"), "{shown}");
    }

    #[test]
    fn a_role_is_an_arn_of_one() {
        let check = |role: Role| {
            Settings { role: Some(role), ..Settings::new("b") }.check().map_err(|error| error.kind())
        };
        for arn in [
            "arn:aws:iam::123456789012:role/acme-agents",
            "arn:aws-cn:iam::123456789012:role/path/to/agents",
            "arn:aws-us-gov:iam::000000000000:role/a",
        ] {
            assert_eq!(check(Role::new(arn)), Ok(()), "{arn}");
        }
        for arn in [
            "",
            "acme-agents",
            "arn:aws:iam::123456789012:role/a b",
            "arn:aws:iam::123456789012:role/${aws:username}",
            "arn:aws:iam::123456789012:role/a?",
            "arn:aws:iam::123456789012:role/a\0",
            "arn:aws:iam::*:role/a",
            "arn:*:iam::123456789012:role/a",
            " arn:aws:iam::123456789012:role/a",
            "arn:aws:iam::1234567890123:role/a",
            "arn:aws:iam::12345678901x:role/a",
            "ARN:AWS:IAM::123456789012:ROLE/A",
            "arn:aws:iam::123456789012:rolex/a",
            "arn:aws:iam::123456789012:role/é",
            "arn:aws:iam::123456789012:user/ana",
            "arn:aws:iam::123456789012:role/",
            "arn:aws:iam::12345:role/a",
            "arn:aws:sts::123456789012:assumed-role/a/b",
            "arn:aws:iam:eu-south-2:123456789012:role/a",
            "arn:aws:iam::123456789012:role/a\n",
            "arn:aws\",\"x:iam::123456789012:role/a",
            "arn:aws:iam::123456789012:role/*",
        ] {
            assert_eq!(check(Role::new(arn)), Err(ErrorKind::InvalidInput), "{arn}");
        }
        let arn = "arn:aws:iam::123456789012:role/a";
        for duration in [Duration::ZERO, Duration::from_secs(899), Duration::from_secs(43_201)] {
            assert_eq!(check(Role { duration, ..Role::new(arn) }), Err(ErrorKind::InvalidInput));
        }
        for id in ["", "x", "a b", "é.é", "ab\n", "a\0b"] {
            let external_id = Some(id.to_owned());
            assert_eq!(check(Role { external_id, ..Role::new(arn) }), Err(ErrorKind::InvalidInput), "{id}");
        }
        for bucket in ["arn:aws:s3:x:1:accesspoint/y", "point-abc-s3alias", "dir--use1-az4--x-s3"] {
            let point = Settings { role: Some(Role::new(arn)), ..Settings::new(bucket) };
            assert_eq!(point.check().unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn sts_is_where_the_storage_is_unless_that_is_aws() {
        let role = Role::new("arn:aws:iam::123456789012:role/a");
        let at = |storage| sts_endpoint(&role, storage);
        assert_eq!(at(Some("http://127.0.0.1:4566")).as_deref(), Some("http://127.0.0.1:4566"));
        assert_eq!(at(Some("https://bucket.vpce-1.s3.eu-south-2.vpce.amazonaws.com")), None);
        assert_eq!(at(None), None);
        let role = Role { sts_endpoint_url: Some("http://127.0.0.1:1".into()), ..role };
        assert_eq!(sts_endpoint(&role, None).as_deref(), Some("http://127.0.0.1:1"));
    }

    #[test]
    fn a_password_in_a_url_is_refused_and_not_repeated() {
        for url in [
            "http://u:hunter2@127.0.0.1:1",
            "https://hunter2@s3.example.com",
            "https://:hunter2@s3.example.com/x",
            "http://u:hunter2@x@127.0.0.1",
        ] {
            let settings = Settings { endpoint_url: Some(url.into()), ..Settings::new("b") };
            let error = settings.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn what_would_break_a_header_is_told_before_any_request() {
        for region in [
            "us-east-1\r",
            "",
            "a b",
            "a\u{1b}[31m",
            "é",
            "us-east-1\n",
            "us-east-1\0",
            "us-east-1\r\nx-amz-acl: public-read",
            "evil.example.com/",
            "a@b",
            "a#b",
            "a?b",
            "a/b",
            " us-east-1",
        ] {
            assert_eq!(check_region(region).unwrap_err().kind(), ErrorKind::InvalidInput, "{region:?}");
        }
        assert!(check_region("eu-south-2").is_ok());
        for (key, secret) in [
            ("AKIA\r", "s"),
            ("AKIA", "s\n"),
            ("", "é"),
            ("AKIA\0", "s"),
            ("AKIA\r\nx: y", "s"),
            ("AKIA", "s\0"),
            ("AKIA é", "s"),
        ] {
            let credentials = Some(StaticCredentials::new(key, secret));
            let error = Settings { credentials, ..Settings::new("b") }.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn wrong_settings_are_told_before_any_request() {
        let check = |bucket: &str, url: Option<&str>| {
            Settings { endpoint_url: url.map(str::to_owned), ..Settings::new(bucket) }
                .check()
                .map_err(|e| e.kind())
        };
        assert_eq!(check("my-bucket", Some("http://127.0.0.1:4566")), Ok(()));
        for bucket in [
            "",
            "a b",
            "a/b",
            "/",
            "../b",
            "b/../other",
            "a?b",
            "a#b",
            "b\0",
            "b\n",
            "b\r\nx: y",
            "é",
            "a\\b",
            "*",
            "b%2fc",
            "${aws:username}",
        ] {
            assert_eq!(check(bucket, None), Err(ErrorKind::InvalidInput), "{bucket:?}");
        }
        assert_eq!(check("arn:aws:s3:eu-south-2:123456789012:accesspoint/x", None), Ok(()));
        for url in
            ["http://localhost", "https://s3.example.com/", "http://[::1]:4566", "http://127.0.0.1:9000/path"]
        {
            assert_eq!(check("b", Some(url)), Ok(()), "{url}");
        }
        for url in [
            "localhost:4566",
            "ftp://x",
            "http://",
            "http://:1",
            "http://h:99999",
            "http://h:x",
            "http://h/p?x=1",
            "http://a b",
            "http://h\r",
            "",
            "file:///etc/passwd",
            "gopher://h",
            "http:h",
            "//h",
            "http://h\r\nx: y",
            "http://h\0",
            "http://h/p#x",
            "http://h\\@evil",
            "http://h:0x50",
            "http://h:-1",
            "javascript:alert(1)",
        ] {
            assert_eq!(check("b", Some(url)), Err(ErrorKind::InvalidInput), "{url}");
        }
    }
}
