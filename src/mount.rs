//! Mounts: the one place where a path becomes a key and a listed key becomes a path again.
//!
//! - `table`: which mounts there are, as data.
//! - `session`: who a session is, and what it may change.
//! - `keys`: keys and prefixes. Only the files of this module make them.
//! - `library`: where a library of skills lies.
//! - `reach`: what of the bucket a session reaches.
//! - `resolve`: the mounts of one session, and where a path leads in it.
//!
//! Each uses those before it.

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
