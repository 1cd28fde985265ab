//! A library of skills: where it lies in the bucket, and what lies beside it.
//!
//! ```text
//! {home}skills/{path}                          the skills: what a plain library is, and what the mirror of a
//!                                              published one writes
//! {home}.skillfs/index.json                    the published release
//! {home}.skillfs/mirror.json                   how far the mirror is
//! {home}.skillfs/releases/{number}-{id}.json   the record of every release
//! {home}.skillfs/blobs/{sha256}-{id}           the content of published files; never changed
//! ```
//!
//! Those who look after a library may change all of it, so the keys that are made here are writable. Sessions read it through
//! their mounts.

use std::fmt;

use super::keys::{Directory, KeyPrefix, ObjectKey, WritableKey, checked_key};
use super::session::{Owner, Session};
use super::table::SKILLS_FOLDER;
use crate::error::{Error, ErrorKind, Result, shorten};
use crate::id::{LibraryId, UserId};
use crate::index::{Digest, ReleaseId};
use crate::path::{SKILLS, VirtualPath};

/// What lies beside the skills of a published library.
pub(super) const RECORDS: &str = ".skillfs/";
/// What a published library contains, next to its skills.
const INDEX: &str = ".skillfs/index.json";
/// The state of a published library's mirror.
const MIRROR: &str = ".skillfs/mirror.json";
/// The content of published files, by SHA-256 and the release that uploaded it.
const BLOBS: &str = ".skillfs/blobs/";
/// The records of releases.
const RELEASES: &str = ".skillfs/releases/";

/// A library of skills, as those who look after it name it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub enum Library {
    /// A user's own.
    #[serde(rename = "user")]
    User(UserId),
    /// A shared one.
    #[serde(rename = "library")]
    Shared(LibraryId),
}

impl Library {
    /// `user` or `library`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::User(_) => "user",
            Self::Shared(_) => "library",
        }
    }

    /// The id of the user or of the shared library.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::User(user) => user.as_str(),
            Self::Shared(library) => library.as_str(),
        }
    }

    /// The session that sees this library and nothing else.
    pub(crate) fn session(&self) -> Session {
        match self {
            Self::User(user) => Session { user: Some(user.clone()), ..Session::default() },
            Self::Shared(library) => Session { libraries: vec![library.clone()], ..Session::default() },
        }
    }

    /// The prefix of all that belongs to it.
    fn home(&self) -> String {
        Owner::from(self).home()
    }

    /// All that lies in it and beside it.
    pub(crate) fn everything(&self) -> KeyPrefix {
        KeyPrefix(self.home())
    }

    fn beside(&self, name: &str) -> WritableKey {
        WritableKey(ObjectKey(format!("{}{name}", self.home())))
    }

    pub(crate) fn index(&self) -> WritableKey {
        WritableKey(index_in(&self.home()))
    }

    pub(crate) fn mirror(&self) -> WritableKey {
        self.beside(MIRROR)
    }

    /// A key that is ours to make and to take away again.
    pub(crate) fn probe(&self) -> WritableKey {
        self.beside(".skillfs/probe")
    }

    /// The same by a name that nobody else has.
    pub(crate) fn probe_named(&self, name: &str) -> WritableKey {
        self.beside(&format!(".skillfs/{name}"))
    }

    /// Where its index and its releases lie.
    pub(crate) fn records(&self) -> KeyPrefix {
        KeyPrefix(self.home() + RECORDS)
    }

    /// The content with this digest that a release uploaded. The key is never used for anything else.
    pub(crate) fn blob(&self, sha256: Digest, id: &ReleaseId) -> WritableKey {
        WritableKey(blob_in(&self.home(), sha256, id))
    }

    pub(crate) fn blobs(&self) -> KeyPrefix {
        KeyPrefix(format!("{}{BLOBS}", self.home()))
    }

    /// The record of a release. Its id keeps apart what two publishers write for the same number.
    pub(crate) fn release(&self, number: u64, id: &ReleaseId) -> WritableKey {
        self.beside(&format!("{RELEASES}{number:08}-{id}.json"))
    }

    pub(crate) fn releases(&self) -> KeyPrefix {
        KeyPrefix(format!("{}{RELEASES}", self.home()))
    }

    /// A key that a listing of [`Library::blobs`] or [`Library::releases`] found.
    pub(crate) fn listed_beside(&self, key: &str) -> Option<WritableKey> {
        let name = key.strip_prefix(&self.home())?;
        (name.starts_with(BLOBS) || name.starts_with(RELEASES))
            .then(|| WritableKey(ObjectKey(key.to_owned())))
    }

    /// The keys of the library itself.
    pub(crate) fn skills(&self) -> Directory {
        let prefix = KeyPrefix(self.home() + SKILLS_FOLDER);
        Directory::new(VirtualPath::top_level(SKILLS), prefix)
    }

    /// A file of the library, by its path below it: to be published.
    pub(crate) fn file(&self, relative: &str) -> Result<(VirtualPath, WritableKey)> {
        let skills = VirtualPath::top_level(SKILLS);
        let path = skills.join_exact(relative).ok_or_else(|| {
            Error::new(ErrorKind::InvalidPath, format!("no path can name `{}`", shorten(relative)))
                .with_hint("rename the file")
        })?;
        let key = checked_key(&path, [&self.home(), SKILLS_FOLDER, relative].concat())?;
        Ok((path, WritableKey(key)))
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "the library of user `{user}`"),
            Self::Shared(library) => write!(f, "the shared library `{library}`"),
        }
    }
}

impl From<&Library> for Owner {
    fn from(library: &Library) -> Self {
        match library {
            Library::User(id) => Self::User(id.clone()),
            Library::Shared(id) => Self::Library(id.clone()),
        }
    }
}

/// The index of the library with this home.
pub(super) fn index_in(home: &str) -> ObjectKey {
    ObjectKey([home, INDEX].concat())
}

/// The content with this digest that a release of the library uploaded.
pub(super) fn blob_in(home: &str, sha256: Digest, id: &ReleaseId) -> ObjectKey {
    ObjectKey(format!("{home}{BLOBS}{sha256}-{id}"))
}
