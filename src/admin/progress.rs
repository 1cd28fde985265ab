//! The progress of long operations, reported to a callback.

use std::fmt;
use std::sync::Arc;

/// The progress of a long operation, as reported to [`LibraryAdmin::on_progress`](super::LibraryAdmin::on_progress).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PushProgress {
    /// The current phase, such as `uploading`.
    pub phase: &'static str,
    /// The number of files done, and the total.
    pub files: (u64, u64),
    /// The number of bytes done, and the total; both are 0 where bytes are not counted.
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
