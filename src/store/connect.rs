//! Builds a [`Store`] from the settings and the AWS configuration chain: connection pool, timeouts, retry budget.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aws_config::environment::region::EnvironmentVariableRegionProvider;
use aws_config::identity::IdentityCache;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_s3::config::endpoint::{DefaultResolver, Endpoint, EndpointFuture, Params, ResolveEndpoint};
use aws_sdk_s3::config::retry::{RetryPartition, TokenBucket};
use aws_sdk_s3::config::{
    Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation,
    StalledStreamProtectionConfig,
};
use aws_smithy_http_client::tls;
use tokio::sync::Semaphore;

use super::bucket::{Bucket, RequestLimits, Store};
use super::capabilities::KnownCapabilities;
use super::clients::Blueprint;
use super::components::Components;
use super::hedge::Hedges;
use super::intercept::{Counters, ResponseWatcher, ServerClock};
use super::limiter::Limiter;
use super::scope::Scopes;
use super::sts::{MAX_CONCURRENT_CALLS, Sts};
use crate::ambient::Ambient;
use crate::cache::Cache;
use crate::config::{
    Role, Settings, StaticCredentials, Timeouts, check_aws_variables, check_region, sts_endpoint,
};
use crate::error::Result;

/// S3 closes idle connections after about 20 s. Closing them earlier ourselves avoids requests that fail on a closed
/// connection.
const POOL_IDLE: Duration = Duration::from_secs(15);

const FALLBACK_REGION: &str = "us-east-1";

/// Short, because most S3 failures are a single bad connection.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LONGEST_BACKOFF: Duration = Duration::from_secs(2);

/// The retry budget of a handle: a token bucket. Retries cost tokens; successes and time refill it. A failing server is
/// not flooded with retries, and retries resume soon after an outage ends. The SDK's default is one bucket per process
/// that only successes refill.
fn retry_budget() -> TokenBucket {
    TokenBucket::builder()
        .capacity(500)
        .retry_cost(5)
        .throttling_retry_cost(5)
        // Failures that may last longer cost more: broken connections and server errors.
        .timeout_retry_cost(10)
        .success_reward(1.0)
        .refill_rate(5.0)
        .build()
}

impl Store {
    /// Loads the AWS configuration chain and builds the clients. Sends nothing to S3; the chain may query the instance
    /// metadata service for the region.
    pub(crate) async fn connect(settings: &Settings, components: Components) -> Result<Self> {
        settings.check()?;
        if settings.credentials.is_none() && components.credentials.is_none() {
            check_aws_variables()?;
        }
        let chain = Self::chain(settings, &components).await;
        Self::over(settings, &chain, components.ambient, false)
    }

    /// Merges the settings with the AWS configuration chain.
    async fn chain(settings: &Settings, components: &Components) -> SdkConfig {
        let http = components.http.clone().unwrap_or_else(|| {
            aws_smithy_http_client::Builder::new()
                .pool_idle_timeout(POOL_IDLE)
                .pool_max_idle_per_host(settings.max_idle_connections)
                .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring))
                .build_https()
        });
        let mut loader = aws_config::defaults(BehaviorVersion::latest()).http_client(http);
        loader = match (&settings.region, &settings.endpoint_url) {
            (Some(region), _) => loader.region(Region::new(region.clone())),
            // With a custom endpoint the instance metadata service is not queried.
            (None, Some(_)) => loader.region(
                RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new())
                    .or_else(ProfileFileRegionProvider::new())
                    .or_else(FALLBACK_REGION),
            ),
            // The default chain: environment, profiles, instance metadata.
            (None, None) => loader,
        };
        if let Some(url) = &settings.endpoint_url {
            loader = loader.endpoint_url(url);
        }
        if let Some(provider) = &components.credentials {
            loader = loader.credentials_provider(provider.clone());
        }
        if let Some(credentials) = &settings.credentials {
            loader = loader
                .credentials_provider(Credentials::from(credentials.clone()))
                // Static credentials need no identity cache.
                .identity_cache(IdentityCache::no_cache());
        }
        let chain = loader.load().await;
        // An empty variable counts as unset.
        match chain.region().filter(|region| !region.as_ref().is_empty()) {
            Some(_) => chain,
            None => chain.to_builder().region(Region::new(FALLBACK_REGION)).build(),
        }
    }

    fn over(settings: &Settings, chain: &SdkConfig, ambient: Ambient, embedded: bool) -> Result<Self> {
        if let Some(region) = chain.region() {
            check_region(region.as_ref())?;
        }
        let counters = Counters::default();
        let clock = ServerClock::new(ambient.clone(), embedded);
        let Timeouts { attempt, operation, .. } = settings.timeouts;
        let attempt = operation.checked_mul(5).map_or(operation, |five| five / 8).max(attempt);
        let watcher = ResponseWatcher { counters: counters.clone(), clock: clock.clone() };
        let retries = RetryConfig::standard()
            .with_max_attempts(settings.max_attempts.max(1))
            .with_initial_backoff(FIRST_BACKOFF)
            .with_max_backoff(LONGEST_BACKOFF);
        let endpoint = CachedEndpoint {
            bucket: settings.bucket.clone(),
            rules: DefaultResolver::new(),
            resolved: OnceLock::new(),
        };
        let config = aws_sdk_s3::config::Builder::from(chain)
            .force_path_style(chain.endpoint_url().is_some())
            .timeout_config(
                TimeoutConfig::builder()
                    .connect_timeout(settings.timeouts.connect)
                    .read_timeout(settings.timeouts.attempt)
                    // The first attempt includes resolving the credentials, which may be slow, and the attempt of
                    // a listing includes its body.
                    .operation_attempt_timeout(attempt)
                    .operation_timeout(settings.timeouts.operation)
                    .build(),
            )
            .retry_config(retries)
            .retry_partition(RetryPartition::custom("skillfs").token_bucket(retry_budget()).build())
            // Its grace period is longer than our attempts. `Body` has an idle timeout instead.
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .request_checksum_calculation(RequestChecksumCalculation::WhenSupported)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            .interceptor(watcher)
            .endpoint_resolver(endpoint)
            .build();
        // The body of an object is not part of the attempt, so only the time to the response headers needs a limit.
        // `Store::hedged` limits the total. Every SDK timeout costs a timer and some allocations.
        let reading = TimeoutConfig::builder()
            .connect_timeout(settings.timeouts.connect)
            .read_timeout(settings.timeouts.attempt)
            .disable_operation_attempt_timeout()
            .disable_operation_timeout()
            .build();
        let writing = TimeoutConfig::builder().connect_timeout(settings.timeouts.connect).build();
        let name: Arc<str> = settings.bucket.as_str().into();
        let blueprint = Blueprint { config, bucket: name.clone(), reading, writing };
        let process_clients = Arc::new(blueprint.clients(None));
        let scopes = settings.role.as_ref().map(|role| {
            let sts = sts(settings, role, chain, &counters, &ambient);
            Scopes::new(sts, Arc::new(blueprint))
        });
        // AWS and the embedded store honor every condition.
        let honors_all = embedded || chain.endpoint_url().is_none();
        Ok(Self::new(Bucket {
            process_clients,
            scopes,
            name,
            endpoint: chain.endpoint_url().map(str::to_owned),
            counters,
            limits: RequestLimits {
                body_idle_timeout: settings.timeouts.attempt,
                body_slow_timeout: operation,
                max_attempts: settings.max_attempts.max(1),
                attempt,
                operation,
                part_bytes: settings.part_bytes,
                single_copy_bytes: settings.single_copy_bytes,
            },
            ambient,
            clock,
            unanswered_writes: AtomicU64::new(0),
            capabilities: KnownCapabilities::new(settings.server, honors_all),
            limiter: Limiter::new(settings.max_requests, settings.max_requests_per_tenant),
            cache: Arc::new(Cache::new(settings.cache_bytes)),
            hedges: settings.reissue_slow.then(Hedges::default),
        }))
    }
}

/// Builds the STS client, with the same connection pool and the credentials of the process.
fn sts(settings: &Settings, role: &Role, chain: &SdkConfig, counters: &Counters, ambient: &Ambient) -> Sts {
    let endpoint = sts_endpoint(role, chain.endpoint_url());
    let clock = ServerClock::new(ambient.clone(), false);
    let watcher = ResponseWatcher { counters: counters.clone(), clock: clock.clone() };
    let mut config = aws_sdk_sts::config::Builder::from(chain);
    // Set after loading the environment, because settings take precedence over it.
    config.set_endpoint_url(endpoint.clone());
    let config = config
        .timeout_config(
            TimeoutConfig::builder()
                .connect_timeout(settings.timeouts.connect)
                .operation_attempt_timeout(settings.timeouts.attempt * 2)
                .operation_timeout(settings.timeouts.operation)
                .build(),
        )
        .retry_config(RetryConfig::standard().with_max_attempts(settings.max_attempts.max(1)))
        .interceptor(watcher)
        .build();
    let bucket = settings.bucket.as_str().into();
    let (client, role) = (aws_sdk_sts::Client::from_conf(config), role.clone());
    Sts { client, clock, role, bucket, endpoint, calls: Semaphore::new(MAX_CONCURRENT_CALLS) }
}

/// An endpoint resolver that runs the SDK's endpoint rules once and caches the result.
///
/// The SDK evaluates the rules for every request, although the endpoint of a plain bucket does not depend on the key.
/// That is an eighth of the CPU cost of a request.
#[derive(Debug)]
struct CachedEndpoint {
    bucket: String,
    rules: DefaultResolver,
    resolved: OnceLock<Endpoint>,
}

impl ResolveEndpoint for CachedEndpoint {
    fn resolve_endpoint<'a>(&'a self, params: &'a Params) -> EndpointFuture<'a> {
        // Access points and directory buckets always go through the rules.
        let bucket = self.bucket.as_str();
        if params.bucket() != Some(bucket) || bucket.contains(':') || bucket.ends_with("-s3") {
            return ResolveEndpoint::resolve_endpoint(&self.rules, params);
        }
        if let Some(endpoint) = self.resolved.get() {
            return EndpointFuture::ready(Ok(endpoint.clone()));
        }
        EndpointFuture::new(async move {
            let endpoint = ResolveEndpoint::resolve_endpoint(&self.rules, params).await?;
            Ok(self.resolved.get_or_init(|| endpoint).clone())
        })
    }
}

impl From<StaticCredentials> for Credentials {
    fn from(from: StaticCredentials) -> Self {
        Self::new(from.access_key_id, from.secret_access_key, from.session_token, None, "skillfs settings")
    }
}

/// The host name of the embedded store. It is never resolved: requests stay in the process.
pub(super) const EMBEDDED_HOST: &str = "embedded.invalid";

#[cfg(feature = "embedded")]
mod in_process {
    //! Connects the SDK client to the embedded store in process: the same client and protocol, without a socket.

    use aws_sdk_s3::config::http::{HttpRequest, HttpResponse};
    use aws_sdk_s3::error::ConnectorError;
    use aws_sdk_s3::primitives::SdkBody;
    use aws_smithy_runtime_api::client::http::{
        HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
    };

    use super::{Components, EMBEDDED_HOST as HOST, Result, Settings, StaticCredentials, Store};
    use crate::embedded::{ACCESS_KEY_ID, Embedded, SECRET_ACCESS_KEY};

    impl Store {
        pub(crate) async fn embedded(embedded: &Embedded, mut settings: Settings) -> Result<Self> {
            settings.endpoint_url = Some(format!("http://{HOST}"));
            settings.region = Some("us-east-1".to_owned());
            settings.credentials = Some(StaticCredentials::new(ACCESS_KEY_ID, SECRET_ACCESS_KEY));
            let connector = SharedHttpConnector::new(InProcess(embedded.clone()));
            let components = Components::default().http_client(http_client_fn(move |_, _| connector.clone()));
            let chain = Self::chain(&settings, &components).await;
            Self::over(&settings, &chain, components.ambient, true)
        }
    }

    #[derive(Debug)]
    struct InProcess(Embedded);

    impl HttpConnector for InProcess {
        fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
            let embedded = self.0.clone();
            HttpConnectorFuture::new(async move {
                let mut request = request
                    .try_into_http1x()
                    .map_err(|e| ConnectorError::user(e.into()))?
                    .map(s3s::Body::http_body_unsync);
                // `Host` is part of the signature. An HTTP client on a socket would add it.
                request.headers_mut().insert(http::header::HOST, http::HeaderValue::from_static(HOST));
                let response = embedded.call(request).await.map_err(|e| ConnectorError::other(e, None))?;
                HttpResponse::try_from(response.map(SdkBody::from_body_1_x))
                    .map_err(|e| ConnectorError::other(e.into(), None))
            })
        }
    }
}
