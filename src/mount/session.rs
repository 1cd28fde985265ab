//! Who a session is, and what it may change: the identities that it is named by, its grants and its quota.
//!
//! Everything that a session may see follows from its [`Session`]. An [`Owner`] is one of its identities with its id;
//! all that belongs to it lies below one prefix, which no other owner has.

use std::sync::Arc;

use serde::Serialize;

use super::table::{Grant, Identity};
use crate::id::{LibraryId, ThreadId, TicketId, UserId};
use crate::options::setters;

/// Who a session is: everything it may see follows from this.
///
/// Without a thread there is no `/workspace`, without a ticket no `/ticket`, without a user
/// and without libraries no `/skills`.
///
/// ```
/// use skillfs::{Session, ThreadId, UserId};
///
/// let session = Session {
///     user: Some(UserId::parse("ana@example.com")?),
///     thread: Some(ThreadId::parse("t-42")?),
///     ..Session::default()
/// };
/// # Ok::<(), skillfs::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Session {
    /// Whose skills `/skills` shows.
    pub user: Option<UserId>,
    /// Which thread `/workspace` shows.
    pub thread: Option<ThreadId>,
    /// Which ticket `/ticket` shows.
    pub ticket: Option<TicketId>,
    /// Shared libraries that `/skills` shows behind the user's own, the first one first.
    pub libraries: Vec<LibraryId>,
    /// What the session may change.
    pub grants: Grants,
    /// How much it may keep.
    pub quota: Quota,
}

impl Session {
    setters! {
        user: some UserId;
        thread: some ThreadId;
        ticket: some TicketId;
        grants: Grants;
        quota: Quota;
    }

    /// A session without mounts: name a user, a thread, a ticket or libraries.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`libraries`](#structfield.libraries).
    #[must_use]
    pub fn libraries(mut self, libraries: impl IntoIterator<Item = LibraryId>) -> Self {
        self.libraries = libraries.into_iter().collect();
        self
    }
}

impl Session {
    /// What it is named by in one way, the first one first.
    pub(super) fn owners(&self, identity: Identity) -> Vec<Owner> {
        match identity {
            Identity::User => self.user.clone().map(Owner::User).into_iter().collect(),
            Identity::Thread => self.thread.clone().map(Owner::Thread).into_iter().collect(),
            Identity::Ticket => self.ticket.clone().map(Owner::Ticket).into_iter().collect(),
            Identity::Library => {
                // A library that is named twice is one.
                let is_new = |(at, id): &(usize, &LibraryId)| !self.libraries[..*at].contains(id);
                let new = self.libraries.iter().enumerate().filter(is_new);
                new.map(|(_, id)| Owner::Library(id.clone())).collect()
            }
        }
    }
}

/// Whom a part of the bucket belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Owner {
    User(UserId),
    Thread(ThreadId),
    Ticket(TicketId),
    Library(LibraryId),
}

impl Owner {
    pub(crate) fn identity(&self) -> Identity {
        match self {
            Self::User(_) => Identity::User,
            Self::Thread(_) => Identity::Thread,
            Self::Ticket(_) => Identity::Ticket,
            Self::Library(_) => Identity::Library,
        }
    }

    pub(crate) fn id(&self) -> &str {
        match self {
            Self::User(id) => id.as_str(),
            Self::Thread(id) => id.as_str(),
            Self::Ticket(id) => id.as_str(),
            Self::Library(id) => id.as_str(),
        }
    }

    /// The prefix of all that belongs to it, without the `/` at its end.
    fn name(&self) -> String {
        [self.identity().spec().root, self.id()].concat()
    }

    /// The prefix of all that belongs to it.
    pub(super) fn home(&self) -> String {
        [self.identity().spec().root, self.id(), "/"].concat()
    }
}

/// On whose behalf something is asked and remembered: requests and memory are shared out by it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Tenant(Arc<str>);

impl Tenant {
    /// The first thing that the session is named by: its user, else its thread, its ticket, its first library.
    pub(crate) fn of(session: &Session) -> Self {
        let first = Identity::ALL.iter().find_map(|identity| session.owners(*identity).into_iter().next());
        first.map_or_else(Self::nobody, |owner| Self(owner.name().into()))
    }

    /// Whose part of the memory something takes: what lies in a shared library is the library's.
    pub(crate) fn owner_of(&self, key: &str) -> Self {
        const ROOT: &str = Identity::Library.spec().root;
        match key.strip_prefix(ROOT).and_then(|rest| rest.split_once('/')) {
            Some((library, _)) => Self(key[..ROOT.len() + library.len()].into()),
            None => self.clone(),
        }
    }

    /// Nobody in particular: the handle itself.
    pub(crate) fn nobody() -> Self {
        Self("".into())
    }

    #[cfg(test)]
    pub(crate) fn named(name: &str) -> Self {
        Self(name.into())
    }
}

/// What a session may change. `/skills` is not in it: it takes no writes, whatever the grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grants {
    /// In `/workspace`. Writing is the default.
    pub workspace: Access,
    /// In `/ticket`. Reading is the default.
    pub ticket: Access,
}

impl Grants {
    setters! {
        workspace: Access;
        ticket: Access;
    }
}

impl Grants {
    /// A session that changes nothing.
    pub const READ_ONLY: Self = Self { workspace: Access::ReadOnly, ticket: Access::ReadOnly };

    /// Allows writing.
    #[must_use]
    pub(crate) fn with(mut self, grant: Grant) -> Self {
        *self.field(grant) = Access::ReadWrite;
        self
    }

    pub(super) fn access(mut self, grant: Grant) -> Access {
        *self.field(grant)
    }

    fn field(&mut self, grant: Grant) -> &mut Access {
        match grant {
            Grant::Workspace => &mut self.workspace,
            Grant::Ticket => &mut self.ticket,
        }
    }
}

impl Default for Grants {
    fn default() -> Self {
        Self { workspace: Access::ReadWrite, ticket: Access::ReadOnly }
    }
}

/// How much a session may keep; `None` is no limit. A change beyond it is
/// [`ErrorKind::QuotaExceeded`](crate::ErrorKind::QuotaExceeded).
///
/// With a limit on a mount, the first change lists it to see what is there, and each write asks first
/// how large the file was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Quota {
    /// The largest file that may be written, in bytes.
    pub file_bytes: Option<u64>,
    /// The most bytes that a mount may hold.
    pub mount_bytes: Option<u64>,
    /// The most objects that a mount may hold.
    pub mount_objects: Option<u64>,
}

impl Quota {
    setters! {
        file_bytes: some u64;
        mount_bytes: some u64;
        mount_objects: some u64;
    }
}

/// What a session may do in a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Access {
    /// Listing and reading.
    ReadOnly,
    /// Listing, reading and writing.
    ReadWrite,
}

impl std::fmt::Display for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::ReadOnly => "read-only",
            Self::ReadWrite => "read-write",
        })
    }
}
