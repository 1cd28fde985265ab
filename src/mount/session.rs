//! Sessions: their identities, grants and quota.
//!
//! Everything that a session may access follows from its [`Session`]. An [`Owner`] is one identity with its id.
//! Everything that belongs to an owner is below one prefix, which is unique to it.

use std::sync::Arc;

use serde::Serialize;

use super::table::{Grant, Identity};
use crate::id::{LibraryId, ThreadId, TicketId, UserId};
use crate::options::setters;

/// The identities, grants and quota of a session. They determine everything that it may access.
///
/// Without a thread there is no `/workspace`, without a ticket no `/ticket`, and without a user or libraries no
/// `/skills`.
///
/// ```
/// use skillfs::{Session, ThreadId, UserId};
///
/// let session = Session::new().user(UserId::parse("ana@example.com")?).thread(ThreadId::parse("t-42")?);
/// # Ok::<(), skillfs::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Session {
    /// The user whose library `/skills` shows.
    pub user: Option<UserId>,
    /// The thread whose files `/workspace` shows.
    pub thread: Option<ThreadId>,
    /// The ticket whose files `/ticket` shows.
    pub ticket: Option<TicketId>,
    /// The shared libraries in `/skills`, in order of precedence. The user's own library comes before them.
    pub libraries: Vec<LibraryId>,
    /// What the session may change.
    pub grants: Grants,
    /// How much the session may store.
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
    /// The session's owners of one kind, in order of precedence.
    pub(super) fn owners(&self, identity: Identity) -> Vec<Owner> {
        match identity {
            Identity::User => self.user.clone().map(Owner::User).into_iter().collect(),
            Identity::Thread => self.thread.clone().map(Owner::Thread).into_iter().collect(),
            Identity::Ticket => self.ticket.clone().map(Owner::Ticket).into_iter().collect(),
            Identity::Library => {
                // Drop duplicates.
                let is_new = |(at, id): &(usize, &LibraryId)| !self.libraries[..*at].contains(id);
                let new = self.libraries.iter().enumerate().filter(is_new);
                new.map(|(_, id)| Owner::Library(id.clone())).collect()
            }
        }
    }
}

/// The owner of a part of the bucket.
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

    /// The prefix of everything that belongs to this owner, without the trailing `/`.
    fn name(&self) -> String {
        [self.identity().spec().root, self.id()].concat()
    }

    /// The prefix of everything that belongs to this owner.
    pub(super) fn home(&self) -> String {
        [self.identity().spec().root, self.id(), "/"].concat()
    }
}

/// The unit of fairness: the limiter and the cache share their capacity among tenants.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Tenant(Arc<str>);

impl Tenant {
    /// The tenant of a session: its user, or else its thread, its ticket, or its first library.
    pub(crate) fn of(session: &Session) -> Self {
        let first = Identity::ALL.iter().find_map(|identity| session.owners(*identity).into_iter().next());
        first.map_or_else(Self::nobody, |owner| Self(owner.name().into()))
    }

    /// The tenant that a key is charged to: the library for keys of a shared library, and this tenant for all others.
    pub(crate) fn owner_of(&self, key: &str) -> Self {
        const ROOT: &str = Identity::Library.spec().root;
        match key.strip_prefix(ROOT).and_then(|rest| rest.split_once('/')) {
            Some((library, _)) => Self(key[..ROOT.len() + library.len()].into()),
            None => self.clone(),
        }
    }

    /// The tenant of requests that belong to no session.
    pub(crate) fn nobody() -> Self {
        Self("".into())
    }

    #[cfg(test)]
    pub(crate) fn named(name: &str) -> Self {
        Self(name.into())
    }
}

/// The write permissions of a session. There is none for `/skills`, which is always read-only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grants {
    /// The access to `/workspace`. Default [`Access::ReadWrite`].
    pub workspace: Access,
    /// The access to `/ticket`. Default [`Access::ReadOnly`].
    pub ticket: Access,
}

impl Grants {
    setters! {
        workspace: Access;
        ticket: Access;
    }

    /// Read-only access to everything.
    pub const READ_ONLY: Self = Self { workspace: Access::ReadOnly, ticket: Access::ReadOnly };

    /// Adds a write permission.
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

/// How much a session may store; `None` means no limit. A change that exceeds a limit fails with
/// [`ErrorKind::QuotaExceeded`](crate::ErrorKind::QuotaExceeded).
///
/// With a limit on a mount, the first change lists the mount to determine its usage, and each write first requests the
/// size of the existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Quota {
    /// The maximum size of a written file in bytes.
    pub file_bytes: Option<u64>,
    /// The maximum total size of a mount in bytes.
    pub mount_bytes: Option<u64>,
    /// The maximum number of objects in a mount.
    pub mount_objects: Option<u64>,
}

impl Quota {
    setters! {
        file_bytes: some u64;
        mount_bytes: some u64;
        mount_objects: some u64;
    }
}

/// The access that a session has to a mount.
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
