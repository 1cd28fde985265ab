//! Questions about the bucket itself, and about what may be done in it: for a diagnosis.
//!
//! Each is one request, sent again only where the client does so by itself.

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

/// Whether older versions of objects are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Versioning {
    Enabled,
    Suspended,
    Off,
}

/// What a request and its answer said besides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// The end of the access key; the rest is nobody's business.
    pub(crate) key_end: Option<String>,
    /// Whether a session token went with it.
    pub(crate) temporary: bool,
    /// The region that was asked.
    pub(crate) region: Option<String>,
    /// The region that the bucket lies in, where the server says so.
    pub(crate) bucket_region: Option<String>,
    /// By how many seconds the server's clock is ahead of ours.
    pub(crate) ahead: Option<i64>,
}

/// Listens to one request and its answer.
#[derive(Debug, Clone)]
struct Listener {
    heard: Arc<Mutex<Heard>>,
    ambient: Ambient,
}

impl Listener {
    fn heard(&self) -> MutexGuard<'_, Heard> {
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
        let mut heard = self.heard();
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
        let mut heard = self.heard();
        heard.bucket_region = headers.get("x-amz-bucket-region").map(str::to_owned);
        heard.ahead =
            headers.get("date").and_then(|date| seconds_ahead(date, unix_seconds(self.ambient.now())));
        Ok(())
    }
}

/// The access key and the region of `AWS4-HMAC-SHA256 Credential=KEY/DATE/REGION/s3/aws4_request, …`.
fn scope(authorization: &str) -> Option<(&str, &str)> {
    let (scope, _) = authorization.split_once("Credential=")?.1.split_once(',')?;
    // A key may hold slashes; what stands behind it does not.
    let mut parts = scope.rsplitn(5, '/');
    let region = parts.nth(2)?;
    Some((parts.nth(1)?, region))
}

impl Bucket {
    /// Whether the server is in this process.
    pub(crate) fn is_embedded(&self) -> bool {
        self.endpoint().is_some_and(|url| url.ends_with(EMBEDDED_HOST))
    }
}

impl Store {
    /// Sends one request about these keys.
    async fn ask<T, E, R>(&self, keys: &[&str], request: impl FnOnce(&Client) -> R) -> Result<T, Trouble>
    where
        Failure: From<E>,
        T: Send + 'static,
        E: Send + 'static,
        R: Future<Output = Result<T, E>> + Send + 'static,
    {
        let answer = match self.route(keys).clients().await {
            Ok((clients, _)) => self.in_turn(Box::pin(request(&clients.client))).await.map_err(Failure::from),
            Err(failure) => Err(failure),
        };
        answer.map_err(|failure| Trouble { reason: failure.reason(), error: self.fail(failure) })
    }

    fn listener(&self) -> Listener {
        Listener { heard: Arc::default(), ambient: self.ambient.clone() }
    }

    /// One GetBucketVersioning. Its refusals say why, which those of a HeadBucket cannot.
    #[instrument(level = "debug", skip_all)]
    pub(crate) async fn versioning(&self) -> (Result<Versioning, Trouble>, Heard) {
        let listener = self.listener();
        let request = |client: &Client| {
            let request = client.get_bucket_versioning().bucket(&*self.name);
            request.customize().interceptor(listener.clone()).send()
        };
        let versioning = self.ask(&[], request).await.map(|told| match told.status() {
            Some(BucketVersioningStatus::Enabled) => Versioning::Enabled,
            Some(BucketVersioningStatus::Suspended) => Versioning::Suspended,
            _ => Versioning::Off,
        });
        let heard = listener.heard().clone();
        (versioning, heard)
    }

    /// One HeadBucket.
    #[instrument(level = "debug", skip_all)]
    pub(crate) async fn head_bucket(&self) -> (Result<(), Trouble>, Heard) {
        let listener = self.listener();
        let request = |client: &Client| {
            let request = client.head_bucket().bucket(&*self.name);
            request.customize().interceptor(listener.clone()).send()
        };
        let there = self.ask(&[], request).await.map(|_| ()).map_err(|trouble| match trouble.reason {
            // A HEAD has no body to say so in.
            Reason::NotS3 => Trouble { reason: Reason::NoBucket, ..trouble },
            _ => trouble,
        });
        let heard = listener.heard().clone();
        (there, heard)
    }

    /// Whether a prefix may be listed, and its first key. One ListObjectsV2, of one key.
    #[instrument(level = "debug", skip_all, fields(prefix = prefix.as_str()))]
    pub(crate) async fn try_list(&self, prefix: &KeyPrefix) -> Result<Option<String>, Trouble> {
        let request = |client: &Client| {
            let request = client.list_objects_v2().bucket(&*self.name).prefix(prefix.as_str());
            request.encoding_type(EncodingType::Url).max_keys(1).send()
        };
        let page = self.ask(&[prefix.as_str()], request).await?;
        let key = page.contents.unwrap_or_default().into_iter().next().and_then(|object| object.key);
        Ok(match page.encoding_type {
            Some(_) => key.and_then(|key| decode_listed(&key).ok()),
            None => key,
        })
    }

    /// Whether an object may be read; `false` when there is none. One GetObject, of one byte.
    #[instrument(level = "debug", skip_all, fields(key = key.as_str()))]
    pub(crate) async fn try_read(&self, key: &ObjectKey) -> Result<bool, Trouble> {
        let request = |client: &Client| {
            client.get_object().bucket(&*self.name).key(key.as_str()).range("bytes=0-0").send()
        };
        match self.ask(&[key.as_str()], request).await {
            // An object without bytes has no first one.
            Ok(_) | Err(Trouble { reason: Reason::BehindTheEnd, .. }) => Ok(true),
            Err(Trouble { reason: Reason::Missing, .. }) => Ok(false),
            Err(trouble) => Err(trouble),
        }
    }

    /// Whether an object may be made; with a condition only where none is there. The name must be nobody else's.
    /// One PutObject.
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
        match self.ask(&[key.as_str()], request).await {
            // Nobody else has the name: an attempt before this one made it, and its answer was lost.
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
    fn dates_are_compared_with_ours() {
        let now = unix_seconds(Ambient::default().now());
        assert!(seconds_ahead("Mon, 16 Nov 1970 15:20:00 GMT", now).unwrap() < -1_000_000_000);
        assert_eq!(seconds_ahead("yesterday", 0), None);
    }
}
