//! Which conditional requests the server honors, tracked per operation.
//!
//! AWS and the embedded store are known to honor all of them. For other servers the answer is configured
//! ([`ServerCapabilities`]) or, for PutObject, probed once per handle. A server that ignores a condition executes the
//! request unconditionally, so a condition is trusted only if it is known to be honored. Otherwise the store sends a
//! HEAD before a deletion or before completing a multipart upload, and publishers upload content instead of copying it.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::OnceCell;

use crate::config::ServerCapabilities;

/// The conditional requests that a bucket's server honors.
#[derive(Debug)]
pub(crate) struct KnownCapabilities {
    /// `If-Match` and `If-None-Match` on PutObject. Probed if unset.
    pub(super) puts: OnceCell<bool>,
    /// `If-Match` and `If-None-Match` on CopyObject.
    copies: bool,
    /// `If-Match` and `If-None-Match` on CompleteMultipartUpload.
    uploads: bool,
    /// `If-Match` on DeleteObject.
    deletes: bool,
    /// Set when the server rejects a conditional deletion as not implemented.
    deletes_unsupported: AtomicBool,
}

impl KnownCapabilities {
    /// `all` says that the server is known to honor every condition; explicit configuration takes precedence.
    pub(super) fn new(configured: ServerCapabilities, all: bool) -> Self {
        Self {
            puts: OnceCell::new_with(configured.conditional_puts.or(all.then_some(true))),
            copies: configured.conditional_copies.unwrap_or(all),
            uploads: configured.conditional_uploads.unwrap_or(all),
            deletes: configured.conditional_deletes.unwrap_or(all),
            deletes_unsupported: AtomicBool::new(configured.conditional_deletes == Some(false)),
        }
    }

    /// Returns whether PutObject is already known to honor conditions. Sends no request.
    pub(crate) fn knows_puts(&self) -> bool {
        self.puts.get() == Some(&true)
    }

    pub(crate) fn copies(&self) -> bool {
        self.copies
    }

    pub(super) fn uploads(&self) -> bool {
        self.uploads
    }

    /// Returns whether deletions send their condition, and whether the server can be trusted to honor it.
    pub(super) fn deletes(&self) -> (bool, bool) {
        let sent = !self.deletes_unsupported.load(Ordering::Relaxed);
        (sent, sent && self.deletes)
    }

    /// Stops sending conditions with deletions: the server does not implement them.
    pub(super) fn disable_conditional_deletes(&self) {
        self.deletes_unsupported.store(true, Ordering::Relaxed);
    }
}
