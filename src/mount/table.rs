//! The table of mounts, and of the identities that they belong to.
//!
//! This is the only list of mounts. Paths and keys, the flags and environment variables of the command line, session
//! tags, checks and messages are derived from it.
//!
//! - The key prefix of a mount is `{root}{id}/{folder}`. No prefix of a mount starts with that of another one.
//! - The root of an identity is reserved: it is not a valid user id
//!   ([`RESERVED_USER_IDS`](crate::id::RESERVED_USER_IDS)).
//! - [`MOUNTS`] is sorted by name.
//!
//! The tests in this file check these rules.

use crate::error::Hint;
use crate::path::SKILLS;

/// A directory below `/`. Every session with one of its identities has the mount.
///
/// To add a mount, say `/shared-notes`, add a row to [`MOUNTS`] and, in `mount/session.rs`, a field to
/// [`Grants`](super::Grants) that allows writing. If the mount belongs to a new kind of identity, say a team, also add a
/// variant to [`Identity`], a field to [`Session`](super::Session) in `mount/session.rs`, and an id type in `id.rs`,
/// re-exported by `lib.rs`. The compiler reports the remaining places, such as matches on the owner of a prefix in
/// `mount/resolve.rs`. `config::env` lists the environment variables for library users, and the documentation has its own
/// tables. On AWS, the role and the bucket policy must allow the prefix: see `terraform/`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MountSpec {
    /// The name of the directory below `/`.
    pub(crate) name: &'static str,
    /// The layers of the mount, in order of precedence.
    pub(crate) layers: &'static [LayerSpec],
    pub(crate) contents: Contents,
}

/// A layer of a mount: the keys in one folder of an identity.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LayerSpec {
    pub(crate) identity: Identity,
    /// The folder after the id: empty, or ends with `/`.
    pub(crate) folder: &'static str,
}

/// The kind of content of a mount, which also decides who may change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Skill libraries, merged into one tree. Sessions cannot change them.
    Libraries,
    /// Files in a single layer, so that every write has exactly one place.
    Files {
        /// The grant that a session needs to write.
        grant: Grant,
    },
}

/// A field of [`Grants`](super::Grants).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grant {
    Workspace,
    Ticket,
}

/// A kind of identity that a session may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Identity {
    User,
    Thread,
    Ticket,
    Library,
}

/// How an identity appears in keys, flags, environment variables, session tags and messages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IdentitySpec {
    /// The part of a key before the id: empty, or ends with `/`.
    pub(crate) root: &'static str,
    /// In messages, a `thread`; and the session tag of STS, with a number after it where there are several.
    pub(crate) name: &'static str,
    /// Whether a session may have several.
    pub(crate) several: bool,
}

pub(crate) static MOUNTS: [MountSpec; 3] = [
    MountSpec {
        name: SKILLS,
        layers: &[
            LayerSpec { identity: Identity::User, folder: SKILLS_FOLDER },
            LayerSpec { identity: Identity::Library, folder: SKILLS_FOLDER },
        ],
        contents: Contents::Libraries,
    },
    MountSpec {
        name: "ticket",
        layers: &[LayerSpec { identity: Identity::Ticket, folder: "" }],
        contents: Contents::Files { grant: Grant::Ticket },
    },
    MountSpec {
        name: "workspace",
        layers: &[LayerSpec { identity: Identity::Thread, folder: "" }],
        contents: Contents::Files { grant: Grant::Workspace },
    },
];

/// The folder of a library's skills. The sidecar folder `.skillfs/` is next to it.
pub(crate) const SKILLS_FOLDER: &str = "skills/";

impl Identity {
    /// All identities, in the order of messages and help texts.
    pub(crate) const ALL: [Self; 4] = [Self::User, Self::Thread, Self::Ticket, Self::Library];

    pub(crate) const fn spec(self) -> IdentitySpec {
        match self {
            Self::User => IdentitySpec { root: "", name: "user", several: false },
            Self::Thread => IdentitySpec { root: "threads/", name: "thread", several: false },
            Self::Ticket => IdentitySpec { root: "tickets/", name: "ticket", several: false },
            Self::Library => IdentitySpec { root: "shared/", name: "library", several: true },
        }
    }

    /// The identities of which a session has at most one.
    pub(crate) fn single() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|identity| !identity.spec().several)
    }
}

impl MountSpec {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        MOUNTS.iter().find(|spec| spec.name == name)
    }

    /// The identities of mounts with libraries.
    pub(crate) fn of_libraries() -> impl Iterator<Item = Identity> {
        MOUNTS.iter().filter(|spec| spec.has_libraries()).flat_map(Self::identities)
    }

    /// The identities of mounts with files, in the order of [`Identity::ALL`].
    pub(crate) fn of_files() -> impl Iterator<Item = Identity> {
        let is_of_files = |identity: &Identity| {
            MOUNTS.iter().any(|spec| !spec.has_libraries() && spec.identities().any(|of| of == *identity))
        };
        Identity::ALL.into_iter().filter(is_of_files)
    }

    /// The identities of the mount. A session with any of them has the mount.
    pub(crate) fn identities(&self) -> impl Iterator<Item = Identity> {
        self.layers.iter().map(|layer| layer.identity)
    }

    pub(crate) fn has_libraries(&self) -> bool {
        self.contents == Contents::Libraries
    }

    /// The grant that a session needs to write; `None` if the mount is read-only for all sessions.
    pub(crate) fn grant(&self) -> Option<Grant> {
        match self.contents {
            Contents::Libraries => None,
            Contents::Files { grant } => Some(grant),
        }
    }

    /// What a session lacks that does not have it.
    pub(crate) fn needs(&self) -> Hint {
        let identities = self.identities().map(|identity| identity.spec().name).collect();
        Hint::OpenWith { mount: Some(format!("/{}", self.name)), identities }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::RESERVED_USER_IDS;
    use crate::path::WORKING_DIRECTORY;

    #[test]
    fn mounts_are_sorted_by_name() {
        assert!(MOUNTS.is_sorted_by(|one, other| one.name < other.name));
        for name in [SKILLS, WORKING_DIRECTORY] {
            assert_eq!(MountSpec::named(name).unwrap().name, name);
        }
        assert_eq!(MountSpec::named("Skills"), None);
    }

    #[test]
    fn every_root_is_a_reserved_user_id() {
        for spec in Identity::ALL.map(Identity::spec) {
            match spec.root.strip_suffix('/') {
                Some(word) => assert!(RESERVED_USER_IDS.contains(&word), "{word}"),
                None => assert_eq!((spec.root, spec.name), ("", "user")),
            }
        }
    }

    /// This is true for all ids, because they contain no `/`.
    #[test]
    fn mount_prefixes_do_not_overlap() {
        let layers: Vec<_> = MOUNTS.iter().flat_map(|spec| spec.layers).collect();
        for (at, one) in layers.iter().enumerate() {
            assert!(one.folder.is_empty() || one.folder.ends_with('/'));
            for other in &layers[at + 1..] {
                let disjoint = one.identity != other.identity
                    || !one.folder.starts_with(other.folder) && !other.folder.starts_with(one.folder);
                assert!(disjoint, "{one:?} and {other:?}");
            }
        }
    }

    #[test]
    fn mounts_with_files_have_a_single_layer() {
        for spec in MOUNTS.iter().filter(|spec| !spec.has_libraries()) {
            assert!(spec.layers.len() == 1 && !spec.layers[0].identity.spec().several, "{}", spec.name);
        }
    }

    #[test]
    fn roots_names_and_variables_are_unique() {
        for (at, one) in Identity::ALL.into_iter().enumerate() {
            for other in &Identity::ALL[at + 1..] {
                let (one, other) = (one.spec(), other.spec());
                assert!(one.root != other.root && one.name != other.name);
            }
        }
    }
}
