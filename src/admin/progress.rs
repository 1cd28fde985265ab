//! The progress of long operations, reported to a callback.

use std::fmt;
use std::sync::Arc;

/// How far a push is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PushProgress {
    /// What is being done.
    pub phase: &'static str,
    /// Files done, and files in all.
    pub files: (u64, u64),
    /// Bytes done, and bytes in all.
    pub bytes: (u64, u64),
}

/// Where progress is reported; nowhere by default.
#[derive(Clone, Default)]
pub(super) struct Progress(Option<Arc<dyn Fn(PushProgress) + Send + Sync>>);

impl Progress {
    pub(super) fn new(report: impl Fn(PushProgress) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(report)))
    }

    pub(super) fn report(&self, at: PushProgress) {
        if let Some(report) = &self.0 {
            report(at);
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Progress(..)" } else { "Progress(None)" })
    }
}
