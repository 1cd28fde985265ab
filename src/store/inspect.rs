//! Requests for diagnosis: the state of the bucket, and what the credentials may do in it.
//!
//! Each function sends one request; only the SDK retries it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_sdk_s3::Client;
use aws_sdk_s3::config::interceptors::{
    BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
};
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::BoxError;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{BucketVersioningStatus, EncodingType};
use tracing::instrument;

use super::bucket::{Bucket, Store};
use super::connect::EMBEDDED_HOST;
use super::failure::{Failure, Reason};
use super::intercept::seconds_ahead;
use super::list::decode_listed;
use crate::ambient::{Ambient, unix_seconds};
use crate::error::Error;
use crate::mount::{KeyPrefix, ObjectKey, WritableKey};

/// A request that failed.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) reason: Reason,
    pub(crate) error: Error,
}

/// The versioning state of the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Versioning {
    Enabled,
    Suspended,
    Off,
}

/// Facts taken from the headers of a request and its response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// The last characters of the access key id. The rest is not recorded.
    pub(crate) key_end: Option<String>,
    /// Whether the request carried a session token.
    pub(crate) temporary: bool,
    /// The region that the request was signed for.
    pub(crate) region: Option<String>,
    /// The bucket's region, if the server reported it.
    pub(crate) bucket_region: Option<String>,
    /// The number of seconds by which the server's clock is ahead of the local one.
    pub(crate) ahead: Option<i64>,
}

/// An interceptor that records facts about one request and its response.
#[derive(Debug, Clone)]
struct Listener {
    heard: Arc<Mutex<Heard>>,
    ambient: Ambient,
}

impl Listener {
    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Intercept for Listener {
    fn name(&self) -> &'static str {
        "skillfs diagnosis"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let headers = context.request().headers();
        let mut heard = self.lock();
        if let Some((key, region)) = headers.get("authorization").and_then(scope) {
            let end = key.char_indices().rev().nth(3).map_or(0, |(at, _)| at);
            heard.key_end = Some(key[end..].to_owned());
            heard.region = Some(region.to_owned());
        }
        heard.temporary = headers.get("x-amz-security-token").is_some();
        Ok(())
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let headers = context.response().headers();
        let mut heard = self.lock();
        heard.bucket_region = headers.get("x-amz-bucket-region").map(str::to_owned);
        heard.ahead =
            headers.get("date").and_then(|date| seconds_ahead(date, unix_seconds(self.ambient.now())));
        Ok(())
    }
}

/// Extracts the access key id and the region from an `Authorization` header:
/// `AWS4-HMAC-SHA256 Credential=KEY/DATE/REGION/s3/aws4_request, …`.
fn scope(authorization: &str) -> Option<(&str, &str)> {
    let (scope, _) = authorization.split_once("Credential=")?.1.split_once(',')?;
    // The access key id may contain slashes; the parts after it do not.
    let mut parts = scope.rsplitn(5, '/');
    let region = parts.nth(2)?;
    Some((parts.nth(1)?, region))
}

impl Bucket {
    /// Returns whether the server is the embedded store.
    pub(crate) fn is_embedded(&self) -> bool {
        self.endpoint().is_some_and(|url| url.ends_with(EMBEDDED_HOST))
    }
}

impl Store {
    /// Sends one request about these keys.
    async fn send_request<T, E, R>(
        &self,
        keys: &[&str],
        request: impl FnOnce(&Client) -> R,
    ) -> Result<T, Trouble>
    where
        Failure: From<E>,
        T: Send + 'static,
        E: Send + 'static,
        R: Future<Output = Result<T, E>> + Send + 'static,
    {
        let result = match self.route(keys).clients().await {
            Ok((clients, _)) => self.in_turn(Box::pin(request(&clients.client))).await.map_err(Failure::from),
            Err(failure) => Err(failure),
        };
        result.map_err(|failure| Trouble { reason: failure.reason(), error: self.fail(failure) })
    }

    fn listener(&self) -> Listener {
        Listener { heard: Arc::default(), ambient: self.ambient.clone() }
    }

    /// Queries the versioning state. One GetBucketVersioning. Unlike a HeadBucket, a denied one has a body with the
    /// reason.
    #[instrument(level = "debug", skip_all)]
    pub(crate) async fn versioning(&self) -> (Result<Versioning, Trouble>, Heard) {
        let listener = self.listener();
        let request = |client: &Client| {
            let request = client.get_bucket_versioning().bucket(&*self.name);
            request.customize().interceptor(listener.clone()).send()
        };
        let versioning = self.send_request(&[], request).await.map(|output| match output.status() {
            Some(BucketVersioningStatus::Enabled) => Versioning::Enabled,
            Some(BucketVersioningStatus::Suspended) => Versioning::Suspended,
            _ => Versioning::Off,
        });
        let heard = listener.lock().clone();
        (versioning, heard)
    }

    /// Checks that the bucket exists and is accessible. One HeadBucket.
    #[instrument(level = "debug", skip_all)]
    pub(crate) async fn head_bucket(&self) -> (Result<(), Trouble>, Heard) {
        let listener = self.listener();
        let request = |client: &Client| {
            let request = client.head_bucket().bucket(&*self.name);
            request.customize().interceptor(listener.clone()).send()
        };
        let result =
            self.send_request(&[], request).await.map(|_| ()).map_err(|trouble| match trouble.reason {
                // A 404 to a HEAD has no body, and therefore no code.
                Reason::NotS3 => Trouble { reason: Reason::NoBucket, ..trouble },
                _ => trouble,
            });
        let heard = listener.lock().clone();
        (result, heard)
    }

    /// Checks whether a prefix may be listed, and returns its first key. One ListObjectsV2 for one key.
    #[instrument(level = "debug", skip_all, fields(prefix = prefix.as_str()))]
    pub(crate) async fn try_list(&self, prefix: &KeyPrefix) -> Result<Option<String>, Trouble> {
        let request = |client: &Client| {
            let request = client.list_objects_v2().bucket(&*self.name).prefix(prefix.as_str());
            request.encoding_type(EncodingType::Url).max_keys(1).send()
        };
        let page = self.send_request(&[prefix.as_str()], request).await?;
        let key = page.contents.unwrap_or_default().into_iter().next().and_then(|object| object.key);
        Ok(match page.encoding_type {
            Some(_) => key.and_then(|key| decode_listed(&key).ok()),
            None => key,
        })
    }

    /// Checks whether an object may be read; `false` if it does not exist. One GetObject for one byte.
    #[instrument(level = "debug", skip_all, fields(key = key.as_str()))]
    pub(crate) async fn try_read(&self, key: &ObjectKey) -> Result<bool, Trouble> {
        let request = |client: &Client| {
            client.get_object().bucket(&*self.name).key(key.as_str()).range("bytes=0-0").send()
        };
        match self.send_request(&[key.as_str()], request).await {
            // An empty object has no first byte.
            Ok(_) | Err(Trouble { reason: Reason::BehindTheEnd, .. }) => Ok(true),
            Err(Trouble { reason: Reason::Missing, .. }) => Ok(false),
            Err(trouble) => Err(trouble),
        }
    }

    /// Checks whether an object may be created, with `only_new` under the condition that it does not exist. The key must
    /// be unique to this call. One PutObject.
    #[instrument(level = "debug", skip_all, fields(key = key.as_str()))]
    pub(crate) async fn try_create(&self, key: &WritableKey, only_new: bool) -> Result<(), Trouble> {
        let _changing = self.changing([key]);
        let request = |client: &Client| {
            client
                .put_object()
                .bucket(&*self.name)
                .key(key.as_str())
                .set_if_none_match(only_new.then(|| "*".to_owned()))
                .content_type("text/plain")
                .body(ByteStream::from_static(b"skillfs tested whether it may write here.\n"))
                .send()
        };
        match self.send_request(&[key.as_str()], request).await {
            // The key is unique, so an earlier attempt created it and its response was lost.
            Ok(_) | Err(Trouble { reason: Reason::Condition, .. }) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_credentials_only_the_key_and_the_region_are_read() {
        let header = "AWS4-HMAC-SHA256 Credential=AKIA1234/20261116/eu-south-2/s3/aws4_request, SignedHeaders=host, Signature=00";
        assert_eq!(scope(header), Some(("AKIA1234", "eu-south-2")));
        let slashes = header.replace("AKIA1234", "a/b/c");
        assert_eq!(scope(&slashes), Some(("a/b/c", "eu-south-2")));
        for header in ["", "Basic x", "Credential=a,", "Credential=a/b/c,"] {
            assert_eq!(scope(header), None, "{header}");
        }
    }

    #[test]
    fn date_headers_are_compared_with_the_local_clock() {
        let now = unix_seconds(Ambient::default().now());
        assert!(seconds_ahead("Mon, 16 Nov 1970 15:20:00 GMT", now).unwrap() < -1_000_000_000);
        assert_eq!(seconds_ahead("yesterday", 0), None);
    }
}
