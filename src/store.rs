//! The S3 client layer, and the only module that uses `aws-sdk-s3`.
//!
//! The store accepts keys built by [`mount`](crate::mount), sends requests, counts them, and maps failures to
//! [`ErrorKind`](crate::ErrorKind). It does not know about paths. Every request goes through the SDK's client; the
//! submodules add what the SDK lacks:
//!
//! - [`connect`]: builds the [`Bucket`], which all sessions share, from the settings and the AWS configuration chain.
//! - [`bucket`]: a [`Store`] is the bucket as seen by one session: its tenant, its credentials, its cache.
//! - [`scope`] and [`sts`]: with a role, credentials that a session policy confines to a part of the bucket.
//! - [`send`]: the common path of every request: choosing credentials, queueing in the [`limiter`], and hedging reads
//!   ([`hedge`]).
//! - [`get`], [`list`], [`write`], [`delete`], [`parts`], [`inspect`]: the S3 operations.
//! - [`failure`]: classifies error responses and connection errors. [`intercept`]: SDK interceptors that count requests
//!   and check responses.
//!
//! Invariants:
//!
//! - A write takes effect once, or the error says that its outcome is uncertain.
//! - A body is complete, or the reader gets an error.
//! - Every request waits in its tenant's queue.
//! - A request is signed with credentials that cover its keys, and with no others.
//!
//! The files of this module import each other without cycles (`tests/it/architecture.rs`). Behavior is tested over HTTP
//! by the integration tests `faults`, `durability`, `roles` and `costs`.

mod bucket;
mod capabilities;
mod clients;
mod components;
mod connect;
mod delete;
mod failure;
mod get;
mod hedge;
mod history;
mod inspect;
mod intercept;
mod limiter;
#[cfg(test)]
mod limiter_tests;
mod list;
mod object;
mod parts;
mod probe;
mod scope;
mod send;
mod sts;
mod write;

pub(crate) use self::bucket::Store;
pub use self::components::Components;
pub(crate) use self::failure::Reason;
pub(crate) use self::get::{Body, Expect, Fetched};
pub(crate) use self::history::{History, ObjectProperties, Seen, WriteId};
pub(crate) use self::inspect::{Heard, Trouble, Versioning};
pub use self::intercept::RequestCounts;
pub(crate) use self::list::{Listed, Lister};
pub(crate) use self::object::{ByteRange, Meta};
pub use self::parts::aborts_finished;
pub(crate) use self::parts::{LastWork, Parts};
pub use self::sts::SessionCredentials;
pub(crate) use self::write::{Condition, PartSource, Payload, Put, Write};

/// The synchronization primitives used by `limiter`. `cache::model` compiles it with shuttle's instead.
mod sync {
    pub(super) use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
}
