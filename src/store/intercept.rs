//! SDK interceptors: they count requests, track the server's clock, and reject inconsistent responses.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use aws_sdk_s3::config::interceptors::{
    BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
};
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::BoxError;
use aws_sdk_s3::primitives::{DateTime, DateTimeFormat};
use aws_smithy_runtime_api::client::interceptors::dyn_dispatch_hint;
use aws_smithy_runtime_api::client::orchestrator::Metadata;
use serde::Serialize;

use crate::ambient::{Ambient, unix_seconds};

/// The number of requests sent, by operation. Every attempt counts, including retries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RequestCounts {
    /// ListObjectsV2.
    pub list: u64,
    /// GetObject.
    pub get: u64,
    /// HeadObject.
    pub head: u64,
    /// PutObject.
    pub put: u64,
    /// CopyObject.
    pub copy: u64,
    /// DeleteObject and DeleteObjects.
    pub delete: u64,
    /// AssumeRole (STS).
    pub assume_role: u64,
    /// All other operations, such as those of multipart uploads.
    pub other: u64,
    /// Hedged reads that were reissued because the first attempt was slow. They are included in the counts above.
    pub reissued: u64,
}

impl RequestCounts {
    /// The total number of requests.
    #[must_use]
    pub fn total(self) -> u64 {
        self.list + self.get + self.head + self.put + self.copy + self.delete + self.assume_role + self.other
    }
}

impl std::ops::Sub for RequestCounts {
    type Output = Self;

    /// The requests sent between two snapshots.
    fn sub(self, earlier: Self) -> Self {
        Self {
            list: self.list.saturating_sub(earlier.list),
            get: self.get.saturating_sub(earlier.get),
            head: self.head.saturating_sub(earlier.head),
            put: self.put.saturating_sub(earlier.put),
            copy: self.copy.saturating_sub(earlier.copy),
            delete: self.delete.saturating_sub(earlier.delete),
            assume_role: self.assume_role.saturating_sub(earlier.assume_role),
            other: self.other.saturating_sub(earlier.other),
            reissued: self.reissued.saturating_sub(earlier.reissued),
        }
    }
}

/// The shared counters from which [`RequestCounts`] are read.
#[derive(Debug, Clone, Default)]
pub(super) struct Counters(Arc<Mutex<RequestCounts>>);

impl Counters {
    fn lock(&self) -> MutexGuard<'_, RequestCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn snapshot(&self) -> RequestCounts {
        *self.lock()
    }

    pub(super) fn sent(&self, operation: Option<&str>) {
        let mut counts = self.lock();
        let count = match operation {
            Some("ListObjectsV2") => &mut counts.list,
            Some("GetObject") => &mut counts.get,
            Some("HeadObject") => &mut counts.head,
            Some("PutObject") => &mut counts.put,
            Some("CopyObject") => &mut counts.copy,
            Some("DeleteObject" | "DeleteObjects") => &mut counts.delete,
            Some("AssumeRole") => &mut counts.assume_role,
            _ => &mut counts.other,
        };
        *count += 1;
    }

    pub(super) fn reissued(&self) {
        self.lock().reissued += 1;
    }
}

/// An estimate of the server's clock, from the `Date` header of responses.
#[derive(Debug, Clone)]
pub(super) struct ServerClock {
    ambient: Ambient,
    /// The number of seconds by which the server's clock is ahead of the local one.
    ahead: Arc<AtomicI64>,
    /// The local second in which the offset was last observed.
    observed_in: Arc<AtomicU64>,
    /// An additional offset in seconds, set by [`ServerClock::advance`].
    advanced: Arc<AtomicU64>,
}

/// No response has reported the server's time yet.
const UNKNOWN: i64 = i64::MIN;

impl ServerClock {
    /// `is_ours`: the server runs in this process, so its clock is the local one.
    pub(super) fn new(ambient: Ambient, is_ours: bool) -> Self {
        let ahead = Arc::new(AtomicI64::new(if is_ours { 0 } else { UNKNOWN }));
        Self { ambient, ahead, observed_in: Arc::default(), advanced: Arc::default() }
    }

    /// Updates the estimate from the `Date` header of a response.
    fn observe_date(&self, date: Option<&str>) {
        // The header has a resolution of one second, so one update per second is enough.
        let here = unix_seconds(self.ambient.now());
        if self.observed_in.swap(here, Ordering::Relaxed) == here
            && self.ahead.load(Ordering::Relaxed) != UNKNOWN
        {
            return;
        }
        if let Some(ahead) = date.and_then(|date| seconds_ahead(date, here)) {
            self.ahead.store(ahead, Ordering::Relaxed);
        }
    }

    /// Advances the clock, for tests of time-dependent behavior.
    pub(super) fn advance(&self, by: Duration) {
        self.advanced.fetch_add(by.as_secs(), Ordering::Relaxed);
    }

    /// The server's time, or the local time if it is unknown.
    pub(super) fn now_or_ours(&self) -> SystemTime {
        self.now().unwrap_or_else(|| self.ambient.now())
    }

    /// The server's time; `None` if it is unknown.
    pub(super) fn now(&self) -> Option<SystemTime> {
        let ahead = Some(self.ahead.load(Ordering::Relaxed)).filter(|ahead| *ahead != UNKNOWN)?;
        let by = Duration::from_secs(ahead.unsigned_abs());
        let now = self.ambient.now() + Duration::from_secs(self.advanced.load(Ordering::Relaxed));
        if ahead < 0 { now.checked_sub(by) } else { now.checked_add(by) }
    }
}

/// The number of seconds by which a `Date` header is ahead of `here`, which is in seconds since 1970.
pub(super) fn seconds_ahead(date: &str, here: u64) -> Option<i64> {
    let server = DateTime::from_str(date, DateTimeFormat::HttpDate).ok()?;
    Some(server.secs().saturating_sub(i64::try_from(here).ok()?))
}

/// A response that contradicts itself.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Contradiction(&'static str);

/// The one interceptor of all clients. It is a single one because the SDK calls every interceptor a dozen times per
/// request.
#[derive(Debug, Clone)]
pub(super) struct ResponseWatcher {
    pub(super) counters: Counters,
    pub(super) clock: ServerClock,
}

#[dyn_dispatch_hint]
impl Intercept for ResponseWatcher {
    fn name(&self) -> &'static str {
        "skillfs"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.counters.sent(config.load::<Metadata>().map(Metadata::name));
        Ok(())
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let response = context.response();
        // The `Date` of an error response may be that of a proxy.
        if response.status().is_success() {
            self.clock.observe_date(response.headers().get("date"));
        }
        // Without `Content-Range`, a partial response could be mistaken for the entire object.
        if response.status().as_u16() == 206 && response.headers().get("content-range").is_none() {
            return Err(Contradiction("the response for a range has no Content-Range").into());
        }
        Ok(())
    }
}
