//! What the client tells on the way: requests are counted, and answers that cannot be are stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_sdk_s3::config::interceptors::{
    BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
};
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::BoxError;
use aws_smithy_runtime_api::client::interceptors::dyn_dispatch_hint;
use aws_smithy_runtime_api::client::orchestrator::Metadata;
use serde::Serialize;

/// How many requests were sent, by operation. An attempt that was retried counts again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RequestCounts {
    /// ListObjectsV2.
    pub list: u64,
    /// GetObject.
    pub get: u64,
    /// HeadObject.
    pub head: u64,
    /// Everything else.
    pub other: u64,
}

impl RequestCounts {
    /// All of them.
    #[must_use]
    pub fn total(self) -> u64 {
        self.list + self.get + self.head + self.other
    }
}

impl std::ops::Sub for RequestCounts {
    type Output = Self;

    /// What was sent between two readings.
    fn sub(self, earlier: Self) -> Self {
        Self {
            list: self.list.saturating_sub(earlier.list),
            get: self.get.saturating_sub(earlier.get),
            head: self.head.saturating_sub(earlier.head),
            other: self.other.saturating_sub(earlier.other),
        }
    }
}

/// The counters behind [`RequestCounts`], shared with the client.
#[derive(Debug, Clone, Default)]
pub(super) struct Counters(Arc<[AtomicU64; 4]>);

impl Counters {
    pub(super) fn snapshot(&self) -> RequestCounts {
        let [list, get, head, other] = [0, 1, 2, 3].map(|i| self.0[i].load(Ordering::Relaxed));
        RequestCounts { list, get, head, other }
    }
}

#[dyn_dispatch_hint]
impl Intercept for Counters {
    fn name(&self) -> &'static str {
        "CountRequests"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let slot = match config.load::<Metadata>().map(Metadata::name) {
            Some("ListObjectsV2") => 0,
            Some("GetObject") => 1,
            Some("HeadObject") => 2,
            _ => 3,
        };
        self.0[slot].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// An answer that contradicts itself.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Contradiction(&'static str);

/// A part of an object that does not say which part it is could be taken for the whole.
#[derive(Debug)]
pub(super) struct CheckRange;

#[dyn_dispatch_hint]
impl Intercept for CheckRange {
    fn name(&self) -> &'static str {
        "CheckRange"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let response = context.response();
        if response.status().as_u16() == 206 && response.headers().get("content-range").is_none() {
            return Err(Contradiction("a part of an object came without its range").into());
        }
        Ok(())
    }
}
