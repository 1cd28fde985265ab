//! What the client tells on the way: requests are counted, and answers that cannot be are stopped.

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
    /// PutObject.
    pub put: u64,
    /// CopyObject.
    pub copy: u64,
    /// DeleteObject and DeleteObjects.
    pub delete: u64,
    /// AssumeRole, of STS.
    pub assume_role: u64,
    /// Everything else: uploads in parts, questions about the bucket.
    pub other: u64,
    /// How many of them were sent again because the first took too long. Those are counted above, too.
    pub reissued: u64,
}

impl RequestCounts {
    /// All of them.
    #[must_use]
    pub fn total(self) -> u64 {
        self.list + self.get + self.head + self.put + self.copy + self.delete + self.assume_role + self.other
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
            put: self.put.saturating_sub(earlier.put),
            copy: self.copy.saturating_sub(earlier.copy),
            delete: self.delete.saturating_sub(earlier.delete),
            assume_role: self.assume_role.saturating_sub(earlier.assume_role),
            other: self.other.saturating_sub(earlier.other),
            reissued: self.reissued.saturating_sub(earlier.reissued),
        }
    }
}

/// The counters behind [`RequestCounts`], shared with the client.
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

/// What time it is at the server: how far it is ahead, and in which of our seconds it was last heard.
#[derive(Debug, Clone)]
pub(super) struct ServerClock {
    ambient: Ambient,
    ahead: Arc<AtomicI64>,
    heard_in: Arc<AtomicU64>,
    /// How far a test has set it.
    set_ahead: Arc<AtomicU64>,
}

/// No answer has told yet.
const UNKNOWN: i64 = i64::MIN;

impl ServerClock {
    /// That of a server in this process is known: it is ours.
    pub(super) fn new(ambient: Ambient, is_ours: bool) -> Self {
        let ahead = Arc::new(AtomicI64::new(if is_ours { 0 } else { UNKNOWN }));
        Self { ambient, ahead, heard_in: Arc::default(), set_ahead: Arc::default() }
    }

    /// An answer told the time.
    fn heard(&self, date: Option<&str>) {
        // It is told in whole seconds: once in each is enough.
        let here = unix_seconds(self.ambient.now());
        if self.heard_in.swap(here, Ordering::Relaxed) == here
            && self.ahead.load(Ordering::Relaxed) != UNKNOWN
        {
            return;
        }
        if let Some(ahead) = date.and_then(|date| seconds_ahead(date, here)) {
            self.ahead.store(ahead, Ordering::Relaxed);
        }
    }

    /// Sets it ahead, for tests of what time does.
    pub(super) fn advance(&self, by: Duration) {
        self.set_ahead.fetch_add(by.as_secs(), Ordering::Relaxed);
    }

    /// Ours, where it is not known.
    pub(super) fn now_or_ours(&self) -> SystemTime {
        self.now().unwrap_or_else(|| self.ambient.now())
    }

    /// `None` when it is not known.
    pub(super) fn now(&self) -> Option<SystemTime> {
        let ahead = Some(self.ahead.load(Ordering::Relaxed)).filter(|ahead| *ahead != UNKNOWN)?;
        let by = Duration::from_secs(ahead.unsigned_abs());
        let now = self.ambient.now() + Duration::from_secs(self.set_ahead.load(Ordering::Relaxed));
        if ahead < 0 { now.checked_sub(by) } else { now.checked_add(by) }
    }
}

/// By how many seconds a `Date` header is ahead of `here`, in seconds since 1970.
pub(super) fn seconds_ahead(date: &str, here: u64) -> Option<i64> {
    let there = DateTime::from_str(date, DateTimeFormat::HttpDate).ok()?;
    Some(there.secs().saturating_sub(i64::try_from(here).ok()?))
}

/// An answer that contradicts itself.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Contradiction(&'static str);

/// One for all: the client goes through its interceptors a dozen times for each request.
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
        // The page of a proxy has the proxy's time.
        if response.status().is_success() {
            self.clock.heard(response.headers().get("date"));
        }
        // A part of an object that does not say which part it is could be taken for the whole.
        if response.status().as_u16() == 206 && response.headers().get("content-range").is_none() {
            return Err(Contradiction("the response for a range has no Content-Range").into());
        }
        Ok(())
    }
}
