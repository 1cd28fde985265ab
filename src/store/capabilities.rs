//! What the server honors, one capability at a time: known of AWS and of the embedded store, configured, or probed.
//!
//! A server that ignores a condition does as it was told without one, so whatever is not known to be honored is not
//! relied upon: writes are probed once for each handle, and before a deletion, a copy or an upload in parts the object
//! is looked at.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::OnceCell;

use crate::config::ServerCapabilities;

/// What the server of a bucket honors.
#[derive(Debug)]
pub(crate) struct KnownCapabilities {
    /// `If-Match` and `If-None-Match` of a PutObject; probed where it is not known.
    pub(super) puts: OnceCell<bool>,
    /// The same of a CopyObject.
    copies: bool,
    /// The same of a CompleteMultipartUpload.
    uploads: bool,
    /// `If-Match` of a DeleteObject.
    deletes: bool,
    /// Set once the server said that it has no conditional deletions.
    no_deletes: AtomicBool,
}

impl KnownCapabilities {
    /// `all`: a server that is known to honor everything.
    pub(super) fn new(configured: ServerCapabilities, all: bool) -> Self {
        Self {
            puts: OnceCell::new_with(configured.conditional_puts.or(all.then_some(true))),
            copies: configured.conditional_copies.unwrap_or(all),
            uploads: configured.conditional_uploads.unwrap_or(all),
            deletes: configured.conditional_deletes.unwrap_or(all),
            no_deletes: AtomicBool::new(configured.conditional_deletes == Some(false)),
        }
    }

    /// Whether conditions of writes are known to be honored, without asking.
    pub(crate) fn knows_puts(&self) -> bool {
        self.puts.get() == Some(&true)
    }

    pub(crate) fn copies(&self) -> bool {
        self.copies
    }

    pub(super) fn uploads(&self) -> bool {
        self.uploads
    }

    /// Whether the condition of a deletion is sent, and whether it is relied upon.
    pub(super) fn deletes(&self) -> (bool, bool) {
        let sent = !self.no_deletes.load(Ordering::Relaxed);
        (sent, sent && self.deletes)
    }

    /// The server said that it has none.
    pub(super) fn forget_deletes(&self) {
        self.no_deletes.store(true, Ordering::Relaxed);
    }
}
