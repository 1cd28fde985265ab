//! Mounts: the mapping between the virtual paths of a session and the keys of the bucket. No I/O.
//!
//! - `table`: the mounts and the identities they belong to, as data.
//! - `session`: the identities, grants and quota of a session.
//! - `keys`: object keys and prefixes. Only this module constructs them.
//! - `library`: the layout of a skill library in the bucket.
//! - `reach`: the parts of the bucket that a session may access.
//! - `resolve`: the mounts of one session, and the resolution of paths.
//!
//! Each file uses only earlier ones.
//!
//! Invariants: every key comes from the mounts of one session and a parsed path, so a path cannot escape its mount; a
//! [`WritableKey`] exists only if the session may write there; a listed key maps back to the one path that resolves to
//! it, or to none. Property tests in `resolve` check these with hostile paths and ids.

mod keys;
mod library;
mod reach;
mod resolve;
mod session;
mod table;

pub use self::keys::ObjectKey;
pub(crate) use self::keys::{Directory, KeyPrefix, WritableKey};
pub use self::library::Library;
pub(crate) use self::reach::Reach;
pub use self::resolve::Mount;
pub(crate) use self::resolve::{Layer, Location, Mounts, Target};
pub use self::session::{Access, Grants, Quota, Session};
pub(crate) use self::session::{Owner, Tenant};
pub(crate) use self::table::{Identity, IdentitySpec, MOUNTS, MountSpec};
