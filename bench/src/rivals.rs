//! The same work with other libraries.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Credentials, Region, ResponseChecksumValidation, StalledStreamProtectionConfig,
};
use aws_smithy_http_client::tls;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::{ObjectStore, ObjectStoreExt};
use opendal::{HttpTransporter, OperationContext, Operator};
use opendal_http_transport_reqwest::ReqwestTransport;

use crate::place::{Place, REGION};

/// The number of concurrent requests of the clients that send several.
pub(crate) const AT_ONCE: usize = 64;

/// The size of the range that is read from a `SKILL.md`. All frontmatter here is shorter.
const HEAD_BYTES: u64 = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Tuned,
    ObjectStore,
    OpenDal,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Plain, Self::Tuned, Self::ObjectStore, Self::OpenDal];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "aws-sdk-s3 plain loop",
            Self::Tuned => "aws-sdk-s3 tuned, 64 at once",
            Self::ObjectStore => "object_store, 64 at once",
            Self::OpenDal => "opendal, 64 at once",
        }
    }
}

/// A client of another library.
pub(crate) enum Rival {
    Plain(Client, String),
    Tuned(Client, String),
    ObjectStore(Arc<AmazonS3>),
    OpenDal(Operator),
}

/// A skill in the catalog of another client.
#[derive(Debug, Clone)]
pub(crate) struct Described {
    pub(crate) key: String,
    pub(crate) description: String,
}

/// A catalog, or a sample of one.
pub(crate) struct Found {
    pub(crate) skills: Vec<Described>,
    /// The total number of skills.
    pub(crate) of: usize,
    /// The time of the listing alone.
    pub(crate) listing: Duration,
}

impl Rival {
    pub(crate) fn new(kind: Kind, place: &Place) -> Result<Self> {
        Ok(match kind {
            Kind::Plain => Self::Plain(defaults(place), place.bucket.clone()),
            Kind::Tuned => Self::Tuned(tuned(place), place.bucket.clone()),
            Kind::ObjectStore => Self::ObjectStore(Arc::new(object_store(place)?)),
            Kind::OpenDal => Self::OpenDal(opendal(place)?),
        })
    }

    fn at_once(&self) -> usize {
        if matches!(self, Self::Plain(..)) { 1 } else { AT_ONCE }
    }

    /// Reads the names and descriptions of at most `most` skills below a prefix.
    pub(crate) async fn catalogue(&self, prefix: &str, most: usize) -> Result<Found> {
        let start = Instant::now();
        let mut keys = self.list(prefix).await?;
        let listing = start.elapsed();
        keys.retain(|(key, _)| key.ends_with("/SKILL.md"));
        let of = keys.len();
        keys.truncate(most);
        let skills = stream::iter(keys)
            .map(async |(key, size)| {
                let content = self.beginning(&key, size).await?;
                let description =
                    description(&content).with_context(|| format!("no description in `{key}`"))?;
                anyhow::Ok(Described { key, description })
            })
            .buffer_unordered(self.at_once())
            .try_collect()
            .await?;
        Ok(Found { skills, of, listing })
    }

    /// Lists all keys below a prefix, with their sizes.
    async fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>> {
        match self {
            Self::Plain(client, bucket) | Self::Tuned(client, bucket) => {
                let mut pages =
                    client.list_objects_v2().bucket(bucket).prefix(prefix).into_paginator().send();
                let mut keys = Vec::new();
                while let Some(page) = pages.next().await {
                    for object in page?.contents.unwrap_or_default() {
                        let size = object.size.unwrap_or_default().unsigned_abs();
                        keys.extend(object.key.map(|key| (key, size)));
                    }
                }
                Ok(keys)
            }
            Self::ObjectStore(store) => {
                let prefix = object_store::path::Path::from(prefix);
                let found = store.list(Some(&prefix)).map_ok(|meta| (meta.location.to_string(), meta.size));
                Ok(found.try_collect().await?)
            }
            Self::OpenDal(operator) => {
                let found = operator.lister_with(prefix).recursive(true).await?;
                let found =
                    found.map_ok(|entry| (entry.path().to_owned(), entry.metadata().content_length()));
                Ok(found.try_collect().await?)
            }
        }
    }

    /// Reads the frontmatter: the plain loop reads the entire file, the others only its beginning.
    async fn beginning(&self, key: &str, size: u64) -> Result<Bytes> {
        let end = size.min(HEAD_BYTES);
        Ok(match self {
            Self::Plain(..) => self.read(key).await?,
            Self::Tuned(client, bucket) => {
                let range = format!("bytes=0-{}", HEAD_BYTES - 1);
                let answer = client.get_object().bucket(bucket).key(key).range(range).send().await?;
                answer.body.collect().await?.into_bytes()
            }
            Self::ObjectStore(store) => store.get_range(&object_store::path::Path::from(key), 0..end).await?,
            Self::OpenDal(operator) => operator.read_with(key).range(0..end).await?.to_bytes(),
        })
    }

    /// Reads a complete object.
    pub(crate) async fn read(&self, key: &str) -> Result<Bytes> {
        Ok(match self {
            Self::Plain(client, bucket) | Self::Tuned(client, bucket) => get(client, bucket, key).await?,
            Self::ObjectStore(store) => {
                store.get(&object_store::path::Path::from(key)).await?.bytes().await?
            }
            Self::OpenDal(operator) => operator.read(key).await?.to_bytes(),
        })
    }

    /// Reads many objects, with this client's concurrency. Returns the total size.
    pub(crate) async fn read_all(&self, keys: &[String]) -> Result<usize> {
        let sizes = stream::iter(keys)
            .map(async |key| anyhow::Ok(self.read(key).await?.len()))
            .buffer_unordered(self.at_once());
        sizes.try_fold(0, async |sum, size| Ok(sum + size)).await
    }

    /// Counts the entries directly below a prefix.
    pub(crate) async fn ls(&self, prefix: &str) -> Result<usize> {
        match self {
            Self::Plain(client, bucket) | Self::Tuned(client, bucket) => {
                let request = client.list_objects_v2().bucket(bucket).prefix(prefix).delimiter("/");
                let mut pages = request.into_paginator().send();
                let mut count = 0;
                while let Some(page) = pages.next().await {
                    let page = page?;
                    count += page.contents().len() + page.common_prefixes().len();
                }
                Ok(count)
            }
            Self::ObjectStore(store) => {
                let prefix = object_store::path::Path::from(prefix);
                let listed = store.list_with_delimiter(Some(&prefix)).await?;
                Ok(listed.objects.len() + listed.common_prefixes.len())
            }
            Self::OpenDal(operator) => {
                let entries: Vec<_> = operator.lister(prefix).await?.try_collect().await?;
                Ok(entries.iter().filter(|entry| entry.path() != prefix).count())
            }
        }
    }
}

/// Reads a complete object with a single GET of the SDK.
pub(crate) async fn get(client: &Client, bucket: &str, key: &str) -> Result<Bytes> {
    let answer = client.get_object().bucket(bucket).key(key).send().await?;
    Ok(answer.body.collect().await?.into_bytes())
}

/// Extracts the description from the frontmatter, in the simple way that most programs do.
fn description(content: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(content).ok()?;
    let frontmatter = text.split("---\n").nth(1)?;
    let line = frontmatter.lines().find_map(|line| line.strip_prefix("description:"))?;
    Some(line.trim().to_owned())
}

/// The SDK with its default settings. The SDK's default HTTP client would add a second TLS library, so this
/// uses the same client with ring. There is no TLS on loopback.
pub(crate) fn defaults(place: &Place) -> Client {
    let http = aws_smithy_http_client::Builder::new()
        .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring))
        .build_https();
    Client::from_conf(base(place).http_client(http).build())
}

/// The SDK with the same settings that skillfs uses.
pub(crate) fn tuned(place: &Place) -> Client {
    let http = aws_smithy_http_client::Builder::new()
        .pool_idle_timeout(Duration::from_secs(15))
        .pool_max_idle_per_host(AT_ONCE)
        .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring))
        .build_https();
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(1))
        .read_timeout(Duration::from_secs(2))
        .operation_timeout(Duration::from_secs(8))
        .build();
    let config = base(place)
        .http_client(http)
        .timeout_config(timeouts)
        .retry_config(RetryConfig::standard().with_max_attempts(3))
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
    Client::from_conf(config.build())
}

fn base(place: &Place) -> aws_sdk_s3::config::Builder {
    let Place { endpoint, access_key, secret_key, token, .. } = place;
    aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .endpoint_url(endpoint)
        .credentials_provider(Credentials::new(access_key, secret_key, token.clone(), None, "bench"))
        .force_path_style(true)
}

fn object_store(place: &Place) -> Result<AmazonS3> {
    let mut builder = AmazonS3Builder::new()
        .with_endpoint(&place.endpoint)
        .with_region(REGION)
        .with_bucket_name(&place.bucket)
        .with_access_key_id(&place.access_key)
        .with_secret_access_key(&place.secret_key)
        .with_virtual_hosted_style_request(false)
        .with_allow_http(true);
    if let Some(token) = &place.token {
        builder = builder.with_token(token);
    }
    Ok(builder.build()?)
}

fn opendal(place: &Place) -> Result<Operator> {
    let mut builder = opendal::services::S3::default()
        .endpoint(&place.endpoint)
        .region(REGION)
        .bucket(&place.bucket)
        .access_key_id(&place.access_key)
        .secret_access_key(&place.secret_key)
        .disable_config_load()
        .disable_ec2_metadata();
    if let Some(token) = &place.token {
        builder = builder.session_token(token);
    }
    let transport = HttpTransporter::new(ReqwestTransport::new(reqwest::Client::new()));
    let context = OperationContext::new().with_http_transport(transport);
    Ok(Operator::new(builder)?.with_context(context))
}
