//! The layout of a skill library in the bucket: its skills, and the sidecar folder `.skillfs/` next to them.
//!
//! ```text
//! {home}skills/{path}                          the files of a plain library, or the mirror of a published one
//! {home}.skillfs/index.json                    the published release
//! {home}.skillfs/mirror.json                   the progress of the mirror
//! {home}.skillfs/releases/{number}-{id}.json   the record of each release
//! {home}.skillfs/blobs/{sha256}-{id}           the content of published files; immutable
//! ```
//!
//! Administrators may change all of it, so the keys built here are writable. Sessions read libraries through their
//! mounts.

use std::fmt;

use super::keys::{Directory, KeyPrefix, ObjectKey, WritableKey, checked_key};
use super::session::{Owner, Session};
use super::table::SKILLS_FOLDER;
use crate::error::{Error, ErrorKind, Result, shorten};
use crate::id::{LibraryId, UserId};
use crate::index::{Digest, ReleaseId};
use crate::path::{SKILLS, VirtualPath};

/// The sidecar folder of a published library.
pub(super) const RECORDS: &str = ".skillfs/";
/// The index: the content of the published release.
const INDEX: &str = ".skillfs/index.json";
/// The state of a published library's mirror.
const MIRROR: &str = ".skillfs/mirror.json";
/// The content of published files, by SHA-256 and the id of the release that uploaded it.
const BLOBS: &str = ".skillfs/blobs/";
/// The records of releases.
const RELEASES: &str = ".skillfs/releases/";

/// A skill library, as administrators name it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub enum Library {
    /// The library of a user.
    #[serde(rename = "user")]
    User(UserId),
    /// A shared library.
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

    /// A session that sees only this library.
    pub(crate) fn session(&self) -> Session {
        match self {
            Self::User(user) => Session { user: Some(user.clone()), ..Session::default() },
            Self::Shared(library) => Session { libraries: vec![library.clone()], ..Session::default() },
        }
    }

    /// The prefix of everything that belongs to the library.
    fn home(&self) -> String {
        Owner::from(self).home()
    }

    /// The prefix of the library and its sidecar folder.
    pub(crate) fn everything(&self) -> KeyPrefix {
        KeyPrefix(self.home())
    }

    /// A key below the library's home.
    fn in_home(&self, name: &str) -> WritableKey {
        WritableKey(ObjectKey(format!("{}{name}", self.home())))
    }

    pub(crate) fn index(&self) -> WritableKey {
        WritableKey(index_in(&self.home()))
    }

    pub(crate) fn mirror(&self) -> WritableKey {
        self.in_home(MIRROR)
    }

    /// A key for probing whether the server honors conditional writes.
    pub(crate) fn probe(&self) -> WritableKey {
        self.in_home(".skillfs/probe")
    }

    /// A key with a unique name, for probing what may be written.
    pub(crate) fn probe_named(&self, name: &str) -> WritableKey {
        self.in_home(&format!(".skillfs/{name}"))
    }

    /// The prefix of the sidecar folder: the index, the releases and the blobs.
    pub(crate) fn records(&self) -> KeyPrefix {
        KeyPrefix(self.home() + RECORDS)
    }

    /// The key of the content with this digest that a release uploaded. It is never reused for other content.
    pub(crate) fn blob(&self, sha256: Digest, id: &ReleaseId) -> WritableKey {
        WritableKey(blob_in(&self.home(), sha256, id))
    }

    pub(crate) fn blobs(&self) -> KeyPrefix {
        KeyPrefix(format!("{}{BLOBS}", self.home()))
    }

    /// The key of a release record. The id distinguishes the records of concurrent publishers with the same number.
    pub(crate) fn release(&self, number: u64, id: &ReleaseId) -> WritableKey {
        self.in_home(&format!("{RELEASES}{number:08}-{id}.json"))
    }

    pub(crate) fn releases(&self) -> KeyPrefix {
        KeyPrefix(format!("{}{RELEASES}", self.home()))
    }

    /// Accepts a key from a listing of [`Library::blobs`] or [`Library::releases`].
    pub(crate) fn listed_beside(&self, key: &str) -> Option<WritableKey> {
        let name = key.strip_prefix(&self.home())?;
        (name.starts_with(BLOBS) || name.starts_with(RELEASES))
            .then(|| WritableKey(ObjectKey(key.to_owned())))
    }

    /// The directory of the skills.
    pub(crate) fn skills(&self) -> Directory {
        let prefix = KeyPrefix(self.home() + SKILLS_FOLDER);
        Directory::new(VirtualPath::top_level(SKILLS), prefix)
    }

    /// The path and the key of a file to publish, by its relative path in the library.
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

/// The key of the index of the library with this home.
pub(super) fn index_in(home: &str) -> ObjectKey {
    ObjectKey([home, INDEX].concat())
}

/// The key of the content with this digest that a release of the library uploaded.
pub(super) fn blob_in(home: &str, sha256: Digest, id: &ReleaseId) -> ObjectKey {
    ObjectKey(format!("{home}{BLOBS}{sha256}-{id}"))
}
