//! The store: the one module that knows `aws-sdk-s3`.
//!
//! It takes keys that [`mount`](crate::mount) built, sends requests, counts them, and reports failures in our own kinds.
//! It knows nothing of paths. Everything goes through the SDK's client; around it are:
//!
//! - [`connect`]: settings and the AWS chain become a [`Bucket`], which all sessions share.
//! - [`bucket`]: a [`Store`] is the bucket on behalf of one session: its tenant, its credentials, its cache.
//! - [`scope`] and [`sts`]: with a role, credentials that S3 confines to a part of the bucket.
//! - [`send`]: the way of every request: credentials, the [`limiter`]'s turn, [`hedge`] for reads.
//! - [`get`], [`list`], [`write`], [`delete`], [`parts`], [`inspect`]: the operations.
//! - [`failure`]: what S3 and the way to it can answer with, in our kinds. [`intercept`]: counting and checking.
//!
//! Invariants: a write takes effect once, or the caller is told that it cannot be known; a body is whole, or an error;
//! every request waits for its tenant's turn; a request goes with credentials that cover its keys and no others.
//! Files of this module import each other in one direction; `tests/it/architecture.rs` checks that. Behavior is tested
//! over the wire: `faults`, `durability`, `roles`, `costs`.

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

/// The primitives that `limiter` is built on; the model has shuttle's.
mod sync {
    pub(super) use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
}
