//! GetObject without the SDK's machinery, which takes most of the processor time of a small read.
//!
//! Before the first one the SDK makes a request that is stopped when it is signed, and looked at: where the bucket is, for
//! which region requests are signed, whom to ask for credentials, and which connections to use. Requests of the same form are
//! then built, signed and sent here, over the same connections and with the same credentials. Where the SDK's
//! request is none that we know, all of them stay with it: directory buckets, other signatures.
//!
//! What is sent again, how often and when is what the SDK's standard mode does.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::http::{HttpRequest, HttpResponse};
use aws_sdk_s3::config::interceptors::BeforeTransmitInterceptorContextRef;
use aws_sdk_s3::config::{
    ConfigBag, Credentials, HttpClient, Intercept, Layer, ResolveCachedIdentity, RuntimeComponents,
};
use aws_sdk_s3::error::{BoxError, ConnectorError, ProvideErrorMetadata, SdkError};
use aws_sdk_s3::operation::get_object::GetObjectError;
use aws_sdk_s3::primitives::{DateTime, DateTimeFormat, SdkBody};
use aws_smithy_runtime_api::client::auth::AuthSchemeId;
use aws_smithy_runtime_api::client::connection::CaptureSmithyConnection;
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorSettings, SharedHttpConnector};
use aws_smithy_runtime_api::client::identity::{
    IdentityCacheLocation, ResolveIdentity, SharedIdentityResolver,
};
use aws_smithy_runtime_api::client::interceptors::dyn_dispatch_hint;
use aws_smithy_runtime_api::client::runtime_components::GetIdentityResolver;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::OnceCell;

use super::answer::{self, Answer};
use super::budget::{Again, Budget};
use super::failure::Failure;
use super::intercept::Watcher;
use super::sign::{ALGORITHM, NO_BODY, SERVICE, Signed, Signer};
use crate::mount::ObjectKey;

/// The first retry comes soon: most failures of S3 are one bad connection.
pub(super) const FIRST_BACKOFF: Duration = Duration::from_millis(100);
pub(super) const LONGEST_BACKOFF: Duration = Duration::from_secs(2);

/// What the SDK encodes in keys.
const KEY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

const QUERY: &str = "x-id=GetObject";

/// The key of the request that is never sent.
const REHEARSED: &str = "skillfs-rehearsal";

/// Headers of the SDK's request that we know, and send alike where they matter.
const KNOWN_HEADERS: [&str; 11] = [
    "amz-sdk-invocation-id",
    "amz-sdk-request",
    "authorization",
    "if-match",
    "if-none-match",
    "range",
    "user-agent",
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-security-token",
    "x-amz-user-agent",
];

const SIGNATURE_4: AuthSchemeId = AuthSchemeId::new("sigv4");

/// A clock that differs by less is not why a signature was refused.
const CLOCK_OFF: i64 = 4 * 60;

/// What is asked for.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) key: ObjectKey,
    pub(super) range: Option<String>,
    pub(super) if_match: Option<String>,
    pub(super) if_none_match: Option<String>,
}

impl Ask {
    /// Whether a signature covers its headers as they are written.
    fn is_plain(&self) -> bool {
        let plain = |value: &Option<String>| {
            value.as_ref().is_none_or(|value| value.bytes().all(|byte| byte.is_ascii_graphic()))
        };
        plain(&self.if_match) && plain(&self.if_none_match)
    }
}

/// Sends GetObject requests.
#[derive(Debug)]
pub(super) struct Lean {
    /// `None` inside when requests are none that we know.
    learned: OnceCell<Option<Learned>>,
    sdk: Client,
    bucket: String,
    watcher: Watcher,
    budget: Arc<Budget>,
    max_attempts: u32,
    /// Those of the SDK's client: with the same ones it gives the same connections.
    limits: HttpConnectorSettings,
    /// What the credentials' cache wants to know.
    config: ConfigBag,
    /// How many seconds the server's clock is ahead, when a signature was refused for that. All clients share it.
    ahead: Arc<AtomicI64>,
    /// How often credentials were refused: what was signed with before is not kept.
    refusals: AtomicU64,
}

/// What the SDK's request told.
struct Learned {
    /// What stands before a key: `http://127.0.0.1:9000/bucket/`.
    base: String,
    /// Where the path begins in it.
    path: usize,
    host: String,
    region: String,
    user_agent: String,
    connector: SharedHttpConnector,
    identities: SharedIdentityResolver,
    components: RuntimeComponents,
    /// With the second that it is for.
    signer: RwLock<Option<(i64, Arc<Signer>)>>,
}

impl fmt::Debug for Learned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Learned").field("base", &self.base).finish_non_exhaustive()
    }
}

/// An attempt that did not succeed.
struct Refused {
    failure: Failure,
    again: Option<Again>,
    /// How long the server wants to be left alone.
    after: Option<Duration>,
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self { failure, again: None, after: None }
    }
}

impl Lean {
    pub(super) fn new(
        sdk: Client,
        bucket: &str,
        watcher: Watcher,
        (budget, ahead): (Arc<Budget>, Arc<AtomicI64>),
        (retries, timeouts): (&RetryConfig, &TimeoutConfig),
    ) -> Self {
        let mut limits = HttpConnectorSettings::builder();
        limits.set_connect_timeout(timeouts.connect_timeout()).set_read_timeout(timeouts.read_timeout());
        let mut layer = Layer::new("skillfs");
        layer.store_put(retries.clone());
        layer.store_put(timeouts.clone());
        Self {
            learned: OnceCell::new(),
            sdk,
            bucket: bucket.to_owned(),
            watcher,
            budget,
            max_attempts: retries.max_attempts(),
            limits: limits.build(),
            config: ConfigBag::of_layers(vec![layer]),
            ahead,
            refusals: AtomicU64::new(0),
        }
    }

    /// Has the SDK make a request, and looks at it.
    async fn learn(&self) -> Result<Option<Learned>, Failure> {
        let seen = Arc::new(Mutex::new(None));
        let rehearsal = Rehearsal { limits: self.limits.clone(), seen: seen.clone() };
        let request = self.sdk.get_object().bucket(&self.bucket).key(REHEARSED);
        let error = request.customize().interceptor(rehearsal).send().await.err();
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (seen, error) {
            (Some(learned), _) => {
                if learned.is_none() {
                    tracing::debug!("requests are of a form that only the SDK knows");
                }
                Ok(learned)
            }
            // It did not come so far: there are no credentials.
            (None, Some(error)) => Err(error.into()),
            (None, None) => Ok(None),
        }
    }

    /// Sends a request, again where that helps. `None` when the SDK must send it.
    pub(super) async fn get(&self, ask: &Ask) -> Option<Result<Answer, Failure>> {
        let learned = match self.learned.get() {
            Some(learned) => learned,
            // Boxed: it is once, and some kilobytes.
            None => match Box::pin(self.learned.get_or_try_init(|| self.learn())).await {
                Ok(learned) => learned,
                Err(failure) => return Some(Err(failure)),
            },
        };
        let learned = learned.as_ref().filter(|_| ask.is_plain())?;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let refused = match self.attempt(learned, ask).await {
                Ok(answer) => {
                    self.budget.reward();
                    return Some(Ok(answer));
                }
                Err(refused) => refused,
            };
            let again = refused.again.filter(|_| attempts < self.max_attempts);
            let Some(again) = again.filter(|again| self.budget.take(*again)) else {
                return Some(Err(refused.failure));
            };
            let pause = refused.after.map_or_else(|| backoff(attempts), |after| after.min(LONGEST_BACKOFF));
            tracing::debug!(attempts, ?again, ?pause, "no success; sent again");
            tokio::time::sleep(pause).await;
        }
    }

    async fn attempt(&self, learned: &Learned, ask: &Ask) -> Result<Answer, Refused> {
        let ahead = self.ahead.load(Ordering::Relaxed);
        let signer = self.signer(learned, ahead).await?;
        let mut request = learned.request(ask, &signer).map_err(Failure::request)?;
        let connection = CaptureSmithyConnection::new();
        request.add_extension(connection.clone());
        self.watcher.counters.sent(Some("GetObject"));
        let response = match learned.connector.call(request).await {
            Ok(response) => response,
            Err(error) => return Err(not_answered(error)),
        };
        self.watcher.heard(&response).map_err(Failure::from)?;
        if response.status().is_success() {
            return Ok(Answer::read(response)?);
        }
        let refused = self.refused(answer::refusal(response).await, ahead);
        if let (Some(Again::Transient), Some(connection)) = (refused.again, connection.get()) {
            // Behind another connection there may be another server.
            connection.poison();
        }
        Err(refused)
    }

    /// What was signed with is not to be used again.
    pub(super) fn forget_credentials(&self) {
        self.refusals.fetch_add(1, Ordering::AcqRel);
        if let Some(Some(learned)) = self.learned.get() {
            *learned.signer.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Makes signatures for the present second.
    ///
    /// Credentials are asked for once a second, of the SDK's cache: it has them renewed in time, once for all who ask.
    async fn signer(&self, learned: &Learned, ahead: i64) -> Result<Arc<Signer>, Failure> {
        let now = SystemTime::now();
        let second = i64::try_from(seconds(now)).unwrap_or(i64::MAX).saturating_add(ahead);
        if let Some((of, signer)) = &*learned.signer.read().unwrap_or_else(PoisonError::into_inner)
            && *of == second
        {
            return Ok(signer.clone());
        }
        let refusals = self.refusals.load(Ordering::Acquire);
        let cache = learned.components.identity_cache();
        let identity = cache
            .resolve_cached_identity(learned.identities.clone(), &learned.components, &self.config)
            .await
            .map_err(Failure::no_credentials)?;
        let credentials = identity
            .data::<Credentials>()
            .ok_or_else(|| Failure::no_credentials("these credentials are of another kind".into()))?;
        let since = Duration::from_secs(u64::try_from(second).unwrap_or_default());
        let there = SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(now);
        let signer = Arc::new(Signer::new(credentials, &learned.region, there).map_err(Failure::request)?);
        // The next look is a second away at most.
        let left = identity.expiration().map(|end| end.duration_since(now).unwrap_or_default());
        if left.is_none_or(|left| left > Duration::from_secs(1)) {
            let mut kept = learned.signer.write().unwrap_or_else(PoisonError::into_inner);
            if self.refusals.load(Ordering::Acquire) == refusals {
                *kept = Some((second, signer.clone()));
            }
        }
        Ok(signer)
    }

    /// What to do about an answer that is no success.
    fn refused(&self, error: SdkError<GetObjectError, HttpResponse>, ahead: i64) -> Refused {
        let mut after = None;
        let again = match &error {
            SdkError::ServiceError(service) => {
                let (status, headers) = (service.raw().status().as_u16(), service.raw().headers());
                let milliseconds = headers.get("x-amz-retry-after").and_then(|text| text.parse().ok());
                after = milliseconds.map(Duration::from_millis);
                let code = service.err().code().unwrap_or_default();
                retry(status, code).or_else(|| {
                    let clock = matches!(
                        code,
                        "RequestTimeTooSkewed"
                            | "SignatureDoesNotMatch"
                            | "InvalidSignatureException"
                            | "AuthFailure"
                            | "AccessDeniedException"
                    );
                    // What comes from a cache has an old date.
                    let date = headers.get("date").filter(|_| clock && headers.get("age").is_none());
                    self.clock_was_off(date?, ahead).then_some(Again::Clock)
                })
            }
            // It broke in the middle.
            _ => Some(Again::Transient),
        };
        Refused { failure: error.into(), again, after }
    }

    /// Whether the server's time is another than the one that was signed; then it is signed from now on.
    fn clock_was_off(&self, date: &str, ahead: i64) -> bool {
        let Ok(there) = DateTime::from_str(date, DateTimeFormat::HttpDate) else { return false };
        let here = i64::try_from(seconds(SystemTime::now())).unwrap_or(i64::MAX);
        let now_ahead = there.secs().saturating_sub(here);
        let off = now_ahead.abs_diff(ahead) > CLOCK_OFF.unsigned_abs();
        if off {
            self.ahead.store(now_ahead, Ordering::Relaxed);
        }
        off
    }
}

impl Learned {
    fn of(
        request: &HttpRequest,
        components: &RuntimeComponents,
        limits: &HttpConnectorSettings,
    ) -> Option<Self> {
        let before = request.uri().strip_suffix(QUERY)?.strip_suffix('?')?;
        let base = before.strip_suffix(REHEARSED)?.to_owned();
        let (scheme, rest) = base.split_once("://")?;
        let (authority, _) = rest.split_once('/')?;
        let path = scheme.len() + 3 + authority.len();
        // The port goes without saying.
        let port = match scheme {
            "http" => ":80",
            "https" => ":443",
            _ => return None,
        };
        let host = authority.strip_suffix(port).unwrap_or(authority).to_owned();
        let headers = request.headers();
        let strange = headers.iter_bytes().any(|(name, _)| !KNOWN_HEADERS.contains(&name));
        if strange || authority.contains('@') || headers.get("x-amz-content-sha256") != Some(NO_BODY) {
            return None;
        }
        let authorization = headers.get("authorization")?.strip_prefix(ALGORITHM)?;
        let (scope, _) = authorization.strip_prefix(" Credential=")?.split_once(',')?;
        let mut scope = scope.rsplit('/');
        let (_, service, region) = (scope.next()?, scope.next()?, scope.next()?);
        let identities = components.identity_resolver(SIGNATURE_4)?;
        if service != SERVICE || identities.cache_location() != IdentityCacheLocation::RuntimeComponents {
            return None;
        }
        Some(Self {
            path,
            host,
            region: region.to_owned(),
            user_agent: headers.get("user-agent")?.to_owned(),
            connector: components.http_client()?.http_connector(limits, components),
            identities,
            components: components.clone(),
            signer: RwLock::new(None),
            base,
        })
    }

    fn request(&self, ask: &Ask, signer: &Signer) -> Result<HttpRequest, BoxError> {
        let key = ask.key.as_str();
        let mut uri = String::with_capacity(self.base.len() + key.len() + 64);
        uri.push_str(&self.base);
        uri.extend(utf8_percent_encode(key, KEY));
        let authorization = signer.authorization(&Signed {
            path: &uri[self.path..],
            query: QUERY,
            host: &self.host,
            if_match: ask.if_match.as_deref(),
            if_none_match: ask.if_none_match.as_deref(),
            range: ask.range.as_deref(),
        });
        uri.push('?');
        uri.push_str(QUERY);
        let mut request = HttpRequest::new(SdkBody::empty());
        request.set_uri(uri)?;
        let headers = request.headers_mut();
        let sent = [
            ("authorization", Some(authorization)),
            ("x-amz-date", Some(signer.date().to_owned())),
            ("x-amz-security-token", signer.token().map(str::to_owned)),
            ("user-agent", Some(self.user_agent.clone())),
            ("range", ask.range.clone()),
            ("if-match", ask.if_match.clone()),
            ("if-none-match", ask.if_none_match.clone()),
        ];
        headers.try_insert("x-amz-content-sha256", NO_BODY)?;
        for (name, value) in sent {
            if let Some(value) = value {
                headers.try_insert(name, value)?;
            }
        }
        Ok(request)
    }
}

/// Looks at a request of the SDK, and stops it.
#[derive(Debug)]
struct Rehearsal {
    limits: HttpConnectorSettings,
    seen: Arc<Mutex<Option<Option<Learned>>>>,
}

#[dyn_dispatch_hint]
impl Intercept for Rehearsal {
    fn name(&self) -> &'static str {
        "skillfs rehearses"
    }

    fn read_after_signing(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        components: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let learned = Learned::of(context.request(), components, &self.limits);
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(learned);
        Err("it was a rehearsal".into())
    }
}

fn not_answered(error: ConnectorError) -> Refused {
    let again = error.is_timeout() || error.is_io() || error.as_other().is_some();
    Refused {
        failure: SdkError::<GetObjectError, _>::dispatch_failure(error).into(),
        again: again.then_some(Again::Transient),
        after: None,
    }
}

/// Which answers are worth another attempt.
fn retry(status: u16, code: &str) -> Option<Again> {
    match code {
        "Throttling"
        | "ThrottlingException"
        | "ThrottledException"
        | "RequestThrottledException"
        | "TooManyRequestsException"
        | "ProvisionedThroughputExceededException"
        | "TransactionInProgressException"
        | "RequestLimitExceeded"
        | "BandwidthLimitExceeded"
        | "LimitExceededException"
        | "RequestThrottled"
        | "SlowDown"
        | "PriorRequestNotComplete"
        | "EC2ThrottledException" => Some(Again::Throttled),
        "RequestTimeout" | "RequestTimeoutException" | "InternalError" => Some(Again::Transient),
        _ => matches!(status, 500 | 502 | 503 | 504).then_some(Again::Transient),
    }
}

/// How long to wait after so many attempts: longer each time, and never the same.
fn backoff(attempts: u32) -> Duration {
    let most = FIRST_BACKOFF.saturating_mul(1 << (attempts - 1).min(8)).min(LONGEST_BACKOFF);
    let mut random = [0; 4];
    // Without random numbers it is the longest pause.
    let part = getrandom::fill(&mut random)
        .map_or(1.0, |()| f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX));
    most.mul_f64(part)
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use aws_credential_types::provider::error::CredentialsError;
    use aws_credential_types::provider::future::ProvideCredentials as Provided;
    use aws_sdk_s3::config::{
        IdentityCache, ProvideCredentials, SharedCredentialsProvider, SharedHttpClient,
    };
    use aws_smithy_runtime_api::client::http::HttpConnectorFuture;
    use aws_smithy_runtime_api::http::StatusCode;

    use super::*;
    use crate::config::{Settings, StaticCredentials};
    use crate::error::Error;
    use crate::mount::{Location, Mounts, Session};
    use crate::path::VirtualPath;
    use crate::store::Store;

    type Answering = dyn Fn(&HttpRequest) -> Result<HttpResponse, ConnectorError> + Send + Sync;

    /// A server that answers as it is told, and keeps what it was asked.
    #[derive(Clone)]
    struct Server {
        seen: Arc<Mutex<Vec<HttpRequest>>>,
        answer: Arc<Answering>,
    }

    impl fmt::Debug for Server {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Server")
        }
    }

    impl Server {
        fn new(
            answer: impl Fn(&HttpRequest) -> Result<HttpResponse, ConnectorError> + Send + Sync + 'static,
        ) -> Self {
            Self { seen: Arc::default(), answer: Arc::new(answer) }
        }

        fn take(&self) -> Vec<HttpRequest> {
            std::mem::take(&mut *self.seen.lock().unwrap())
        }
    }

    impl HttpConnector for Server {
        fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
            let answer = (self.answer)(&request);
            self.seen.lock().unwrap().push(request);
            HttpConnectorFuture::ready(answer)
        }
    }

    impl HttpClient for Server {
        fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
            SharedHttpConnector::new(self.clone())
        }
    }

    fn response(status: u16, headers: &[(&'static str, &str)], body: &str) -> HttpResponse {
        let mut response =
            HttpResponse::new(StatusCode::try_from(status).unwrap(), SdkBody::from(body.to_owned()));
        for (name, value) in headers {
            response.headers_mut().append(*name, (*value).to_owned());
        }
        response
    }

    fn object() -> HttpResponse {
        response(200, &[("content-length", "2"), ("etag", "\"e\"")], "hi")
    }

    fn settings() -> Settings {
        Settings {
            endpoint_url: Some("http://storage.invalid:9000".into()),
            region: Some("us-east-1".into()),
            credentials: Some(StaticCredentials::new("AKID", "secret")),
            ..Settings::new("bucket")
        }
    }

    async fn store(settings: &Settings, server: &Server) -> Store {
        Store::with_http_client(settings, SharedHttpClient::new(server.clone()), false).await.unwrap()
    }

    fn ask(name: &str) -> Ask {
        let mounts = Mounts::of(&Session {
            thread: Some(crate::id::ThreadId::parse("t").unwrap()),
            ..Session::default()
        });
        let path = VirtualPath::parse(&format!("/workspace/{name}")).unwrap();
        let Location::Inside { key, .. } = mounts.resolve(&path).unwrap() else { panic!("{name}") };
        Ask { key, range: None, if_match: None, if_none_match: None }
    }

    #[tokio::test]
    async fn requests_are_those_of_the_sdk() {
        let keys = [
            "a.txt",
            "a b.md",
            "a+b",
            "100%",
            "%41%2f",
            "~._-",
            "ä/ñ/漢字/🦀",
            "e\u{301}",
            "!\"#$&'()*,:;<=>?@[]^`{|}",
            "v1..v2",
            "a?b=c&d#e",
            "\u{a0}\u{2028}",
        ];
        let aws = Settings { endpoint_url: None, ..settings() };
        let port = Settings { endpoint_url: Some("https://storage.invalid:443/".into()), ..settings() };
        let below = Settings { endpoint_url: Some("http://storage.invalid/s3/x".into()), ..settings() };
        let dots = Settings { bucket: "my.bucket".into(), endpoint_url: None, ..settings() };
        let session =
            StaticCredentials { session_token: Some("to+ken".into()), ..StaticCredentials::new("A", "b") };
        let session = Settings { credentials: Some(session), ..settings() };
        for settings in [settings(), aws, port, below, dots, session] {
            let server = Server::new(|_| Ok(object()));
            let store = store(&settings, &server).await;
            for (at, key) in keys.into_iter().enumerate() {
                let mut ask = ask(key);
                ask.range = (at % 2 == 0).then(|| "bytes=0-65535".to_owned());
                ask.if_match = (at % 3 == 0).then(|| "\"e-2\"".to_owned());
                ask.if_none_match = (at % 4 == 0).then(|| "W/\"e\"".to_owned());
                store.own.lean.get(&ask).await.expect("it goes the lean way").unwrap();
                store.own.get_by_sdk(&ask).await.unwrap();
                let [ours, theirs]: [_; 2] = server.take().try_into().unwrap();
                assert_eq!(ours.uri(), theirs.uri());
                assert_eq!(ours.method(), theirs.method());
                for name in [
                    "range",
                    "if-match",
                    "if-none-match",
                    "user-agent",
                    "x-amz-content-sha256",
                    "x-amz-security-token",
                ] {
                    assert_eq!(ours.headers().get(name), theirs.headers().get(name), "{name}");
                }
                let scope = |request: &HttpRequest| {
                    let text = request.headers().get("authorization").unwrap().to_owned();
                    text.split_once(',').unwrap().0.to_owned()
                };
                assert_eq!(scope(&ours), scope(&theirs));
            }
            assert_eq!(store.requests().get, 2 * keys.len() as u64);
        }
    }

    /// What both ways make of the same answers, and how often they ask.
    async fn compare(
        name: &str,
        answer: impl Fn() -> Result<HttpResponse, ConnectorError> + Send + Sync + 'static,
    ) {
        let server = Server::new(move |_| answer());
        let store = store(&settings(), &server).await;
        let told = |result: Result<Answer, Failure>| match result {
            Ok(answer) => {
                let Answer { length, content_range, modified, etag, properties, .. } = answer;
                Ok((length, content_range, modified, etag, properties))
            }
            Err(failure) => {
                let facts = (failure.status(), failure.is_missing_key(), failure.outcome());
                let error: Error = failure.into_error("bucket", Some("http://storage.invalid:9000"));
                Err((facts, error.kind(), error.message().to_owned(), error.hint().map(str::to_owned)))
            }
        };
        let ours = told(store.own.lean.get(&ask("a")).await.expect("it goes the lean way"));
        let our_requests = server.take().len();
        let theirs = told(store.own.get_by_sdk(&ask("a")).await);
        assert_eq!(ours, theirs, "{name}");
        assert_eq!(our_requests, server.take().len(), "requests for {name}");
    }

    #[tokio::test(start_paused = true)]
    async fn answers_mean_what_they_mean_to_the_sdk() {
        const XML: &str = "<?xml version=\"1.0\"?>";
        let error = |code: &str| {
            format!("{XML}<Error><Code>{code}</Code><Message>no &lt;way&gt;</Message><Key>k</Key></Error>")
        };
        for (status, body) in [
            (404, error("NoSuchKey")),
            (404, error("NoSuchBucket")),
            (404, String::new()),
            (404, "<html><body>nothing here".to_owned()),
            (304, String::new()),
            (412, error("PreconditionFailed")),
            (416, error("InvalidRange")),
            (403, error("AccessDenied")),
            (403, String::new()),
            (403, error("SignatureDoesNotMatch")),
            (403, error("RequestTimeTooSkewed")),
            (400, error("ExpiredToken")),
            (400, error("RequestTimeout")),
            (400, String::new()),
            (301, error("PermanentRedirect")),
            (307, error("TemporaryRedirect")),
            (408, String::new()),
            (429, String::new()),
            (429, error("TooManyRequestsException")),
            (500, error("InternalError")),
            (500, "no XML".to_owned()),
            (501, error("NotImplemented")),
            (502, "<html><h1>Bad Gateway</h1></html>".to_owned()),
            (503, error("SlowDown")),
            (503, String::new()),
            (504, String::new()),
            (505, String::new()),
            (400, error("InternalError")),
            (400, format!("{XML}<Error><Code>Cut")),
            (400, format!("{XML}<Error><Code><b>x</b></Code></Error>")),
            (400, format!("{XML}<Error><Message>without a code</Message></Error>")),
            (400, "\u{0}\u{1}".to_owned()),
        ] {
            compare(&format!("{status} {body}"), move || {
                let headers = [("x-amz-bucket-region", "eu-south-2"), ("x-amz-request-id", "R")];
                Ok(response(status, &headers, &body))
            })
            .await;
        }
        for headers in [
            &[("content-length", "2")][..],
            &[("content-length", "two")],
            &[("content-length", "-2")],
            &[],
            &[("content-length", "2"), ("etag", "\"a\""), ("etag", "\"b\"")],
            &[
                ("content-length", "2"),
                ("etag", " \"a\" "),
                ("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT"),
            ],
            &[("content-length", "2"), ("last-modified", "yesterday")],
            &[("content-length", "2"), ("x-amz-meta-Owner", "ana"), ("x-amz-meta-b", "1, 2")],
            &[("content-length", "2"), ("x-amz-meta-a", "1"), ("x-amz-meta-a", "2")],
            &[("content-length", "2"), ("content-type", "a"), ("content-type", "b")],
            &[
                ("content-length", "2"),
                ("content-range", "bytes 0-1/2"),
                ("content-type", "text/plain"),
                ("content-encoding", "gzip"),
                ("content-language", "es"),
                ("content-disposition", "inline"),
                ("cache-control", "no-cache"),
            ],
        ] {
            for status in [200, 206] {
                compare(&format!("{status} {headers:?}"), move || Ok(response(status, headers, "hi"))).await;
            }
        }
        // An error inside a success is the object's content, here and there.
        compare("200", move || Ok(response(200, &[("content-length", "9")], "<Error/>\n"))).await;
        compare("timeout", || Err(ConnectorError::timeout("slow".into()))).await;
        compare("io", || Err(ConnectorError::io("broken".into()))).await;
        compare("other", || Err(ConnectorError::other("odd".into(), None))).await;
        compare("user", || Err(ConnectorError::user("wrong".into()))).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_at_first_is_sent_again() {
        let times = AtomicUsize::new(0);
        let server = Server::new(move |_| match times.fetch_add(1, Ordering::SeqCst) % 3 {
            0 => Ok(response(503, &[], "")),
            1 => Err(ConnectorError::io("broken".into())),
            _ => Ok(object()),
        });
        let store = store(&settings(), &server).await;
        store.own.lean.get(&ask("a")).await.unwrap().unwrap();
        assert_eq!(server.take().len(), 3);
        assert_eq!(store.requests().get, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_storage_that_only_fails_is_soon_asked_once() {
        let server = Server::new(|_| Ok(response(503, &[], "")));
        let store = store(&settings(), &server).await;
        for _ in 0..100 {
            store.own.lean.get(&ask("a")).await.unwrap().unwrap_err();
        }
        // 500 tokens buy 50 retries; seconds of a machine that is slow bring some more.
        let sent = server.take().len();
        assert!((150..=170).contains(&sent), "{sent}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_servers_clock_is_signed_when_ours_is_off() {
        for ahead in [3600, -3600] {
            let server = Server::new(move |request| {
                let there = DateTime::from_secs(DateTime::from(SystemTime::now()).secs() + ahead);
                let text = request.headers().get("x-amz-date").unwrap();
                let stamp = format!(
                    "{}-{}-{}T{}:{}:{}Z",
                    &text[..4],
                    &text[4..6],
                    &text[6..8],
                    &text[9..11],
                    &text[11..13],
                    &text[13..15]
                );
                let signed = DateTime::from_str(&stamp, DateTimeFormat::DateTime).unwrap();
                if signed.secs().abs_diff(there.secs()) < 900 {
                    return Ok(object());
                }
                let date = there.fmt(DateTimeFormat::HttpDate).unwrap();
                let body = "<Error><Code>RequestTimeTooSkewed</Code></Error>";
                Ok(response(403, &[("date", &date)], body))
            });
            let store = store(&settings(), &server).await;
            store.own.lean.get(&ask("a")).await.unwrap().unwrap();
            assert_eq!(server.take().len(), 2);
            store.own.lean.get(&ask("a")).await.unwrap().unwrap();
            assert_eq!(server.take().len(), 1);
        }
    }

    /// Gives keys that end, slowly; or none.
    #[derive(Debug, Clone)]
    struct Keys {
        asked: Arc<AtomicUsize>,
        live: Option<Duration>,
    }

    impl ProvideCredentials for Keys {
        fn provide_credentials<'a>(&'a self) -> Provided<'a>
        where
            Self: 'a,
        {
            Provided::new(async move {
                let nth = self.asked.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(50)).await;
                let live = self.live.ok_or_else(|| CredentialsError::not_loaded("there are none"))?;
                let (token, end) = (format!("token-{nth}"), SystemTime::now() + live);
                Ok(Credentials::new("AKID", "secret", Some(token), Some(end), "test"))
            })
        }
    }

    async fn store_with(keys: &Keys, server: &Server) -> Store {
        let http = SharedHttpClient::new(server.clone());
        let chain = Store::chain(&settings(), http).await.into_builder();
        let cache = IdentityCache::lazy().buffer_time(Duration::from_millis(1)).build();
        let chain = chain
            .credentials_provider(SharedCredentialsProvider::new(keys.clone()))
            .identity_cache(cache)
            .build();
        Store::over(&settings(), &chain, false).unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn credentials_are_asked_for_once_and_again_when_they_end() {
        let server = Server::new(|_| Ok(object()));
        let keys = Keys { asked: Arc::default(), live: Some(Duration::from_millis(1_500)) };
        let store = store_with(&keys, &server).await;
        for round in 0..2 {
            let tasks: Vec<_> = (0..40)
                .map(|_| {
                    let store = store.clone();
                    tokio::spawn(async move { store.own.lean.get(&ask("a")).await.unwrap().map(drop) })
                })
                .collect();
            for task in tasks {
                task.await.unwrap().unwrap();
            }
            assert_eq!(keys.asked.load(Ordering::SeqCst), round + 1);
            let token = format!("token-{round}");
            let sent = server.take();
            assert_eq!(sent.len(), 40);
            assert!(sent.iter().all(|r| r.headers().get("x-amz-security-token") == Some(&token)));
            tokio::time::sleep(Duration::from_millis(1_600)).await;
        }
    }

    #[tokio::test]
    async fn without_credentials_nothing_is_sent_and_both_say_so() {
        let server = Server::new(|_| Ok(object()));
        let keys = Keys { asked: Arc::default(), live: None };
        let store = store_with(&keys, &server).await;
        let told = |failure: Failure| {
            let error = failure.into_error("bucket", None);
            (error.kind(), error.message().to_owned(), error.hint().map(str::to_owned))
        };
        let ours = told(store.own.lean.get(&ask("a")).await.unwrap().unwrap_err());
        assert_eq!(keys.asked.load(Ordering::SeqCst), 1);
        assert_eq!(ours, told(store.own.get_by_sdk(&ask("a")).await.unwrap_err()));
        assert_eq!(ours.0, crate::error::ErrorKind::Denied);
        assert!(server.take().is_empty());
        assert_eq!(store.requests().total(), 0);
        // Once there are some, they are used.
        let keys = Keys { asked: Arc::default(), live: Some(Duration::from_secs(60)) };
        let store = store_with(&keys, &server).await;
        store.own.lean.get(&ask("a")).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn what_we_do_not_know_stays_with_the_sdk() {
        let server = Server::new(|_| Ok(object()));
        let directory = Settings { bucket: "b--use1-az4--x-s3".into(), endpoint_url: None, ..settings() };
        let store_of_others = store(&directory, &server).await;
        assert!(!matches!(store_of_others.own.lean.get(&ask("a")).await, Some(Ok(_))));
        let store = store(&settings(), &server).await;
        let odd = Ask { if_match: Some("\"two  spaces\"".into()), ..ask("a") };
        assert!(store.own.lean.get(&odd).await.is_none());
    }
}
