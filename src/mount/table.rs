//! The mounts of this program, and the identities that they belong to, as data.
//!
//! Whoever needs to know which mounts there are reads it here: paths and keys, the flags and variables of the command
//! line, session tags, checks and messages.
//!
//! - A mount's prefix is `{root}{id}/{folder}`. No two layers of two mounts have prefixes of which one begins with
//!   the other; tests hold the table to it.
//! - The root of an identity is a word that no user may be called ([`RESERVED_USER_IDS`](crate::id::RESERVED_USER_IDS)).
//! - [`MOUNTS`] is in the order of its names.

use crate::error::Hint;
use crate::path::SKILLS;

/// One directory below `/`, in every session that has an identity it needs.
///
/// Another mount, say `/shared-notes`, is a row of [`MOUNTS`] here, and in `mount/session.rs` the field of
/// [`Grants`](super::Grants) that allows writing. If it belongs to something that no session is named by yet, say a
/// team, that is a variant of [`Identity`] here, the field of [`Session`](super::Session) in `mount/session.rs`, and
/// the type of the id in `id.rs`, re-exported by `lib.rs`. The compiler finds the rest: matches on the owner of a
/// prefix, as in `mount/resolve.rs`. `config::env` names the variables for callers of the library, and the documentation
/// has tables of its own. On AWS, the role and the bucket policy must allow the prefix: see `terraform/`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MountSpec {
    /// Its name below `/`.
    pub(crate) name: &'static str,
    /// What lies behind it, the first one first.
    pub(crate) layers: &'static [LayerSpec],
    pub(crate) contents: Contents,
}

/// Which keys a mount shows: those in one folder of all that belongs to an identity.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LayerSpec {
    pub(crate) identity: Identity,
    /// Behind the id: empty, or it ends with `/`.
    pub(crate) folder: &'static str,
}

/// What a mount holds, and with that, who may change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Libraries of skills, seen as one tree. No session may change them.
    Libraries,
    /// Files, in one layer: what is written must have one place.
    Files {
        /// What a session needs to write to them.
        grant: Grant,
    },
}

/// A field of [`Grants`](super::Grants).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grant {
    Workspace,
    Ticket,
}

/// A kind of id that a session may be named by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Identity {
    User,
    Thread,
    Ticket,
    Library,
}

/// How an identity is said: in keys, to a program, to AWS and to people.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IdentitySpec {
    /// What stands before the id in a key: empty, or it ends with `/`.
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

/// Where the skills of a library lie; its records are beside it.
pub(crate) const SKILLS_FOLDER: &str = "skills/";

impl Identity {
    /// All of them, in the order in which people are told of them.
    pub(crate) const ALL: [Self; 4] = [Self::User, Self::Thread, Self::Ticket, Self::Library];

    pub(crate) const fn spec(self) -> IdentitySpec {
        match self {
            Self::User => IdentitySpec { root: "", name: "user", several: false },
            Self::Thread => IdentitySpec { root: "threads/", name: "thread", several: false },
            Self::Ticket => IdentitySpec { root: "tickets/", name: "ticket", several: false },
            Self::Library => IdentitySpec { root: "shared/", name: "library", several: true },
        }
    }

    /// Those of which a session has at most one.
    pub(crate) fn single() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|identity| !identity.spec().several)
    }
}

impl MountSpec {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        MOUNTS.iter().find(|spec| spec.name == name)
    }

    /// Those of libraries: the identities that have skills.
    pub(crate) fn of_libraries() -> impl Iterator<Item = Identity> {
        MOUNTS.iter().filter(|spec| spec.has_libraries()).flat_map(Self::identities)
    }

    /// Those of files, in the order of [`Identity::ALL`].
    pub(crate) fn of_files() -> impl Iterator<Item = Identity> {
        let is_of_files = |identity: &Identity| {
            MOUNTS.iter().any(|spec| !spec.has_libraries() && spec.identities().any(|of| of == *identity))
        };
        Identity::ALL.into_iter().filter(is_of_files)
    }

    /// Any of them makes a session have the mount.
    pub(crate) fn identities(&self) -> impl Iterator<Item = Identity> {
        self.layers.iter().map(|layer| layer.identity)
    }

    pub(crate) fn has_libraries(&self) -> bool {
        self.contents == Contents::Libraries
    }

    /// What a session needs to write to it; `None` where none may.
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
    fn mounts_are_in_the_order_of_their_names() {
        assert!(MOUNTS.is_sorted_by(|one, other| one.name < other.name));
        for name in [SKILLS, WORKING_DIRECTORY] {
            assert_eq!(MountSpec::named(name).unwrap().name, name);
        }
        assert_eq!(MountSpec::named("Skills"), None);
    }

    #[test]
    fn every_root_is_a_word_that_no_user_is_called() {
        for spec in Identity::ALL.map(Identity::spec) {
            match spec.root.strip_suffix('/') {
                Some(word) => assert!(RESERVED_USER_IDS.contains(&word), "{word}"),
                None => assert_eq!((spec.root, spec.name), ("", "user")),
            }
        }
    }

    /// Whatever the ids are: they hold no `/`.
    #[test]
    fn no_prefix_of_a_mount_begins_with_that_of_another() {
        let layers: Vec<_> = MOUNTS.iter().flat_map(|spec| spec.layers).collect();
        for (at, one) in layers.iter().enumerate() {
            assert!(one.folder.is_empty() || one.folder.ends_with('/'));
            for other in &layers[at + 1..] {
                let apart = one.identity != other.identity
                    || !one.folder.starts_with(other.folder) && !other.folder.starts_with(one.folder);
                assert!(apart, "{one:?} and {other:?}");
            }
        }
    }

    #[test]
    fn files_have_one_place() {
        for spec in MOUNTS.iter().filter(|spec| !spec.has_libraries()) {
            assert!(spec.layers.len() == 1 && !spec.layers[0].identity.spec().several, "{}", spec.name);
        }
    }

    #[test]
    fn nothing_is_said_the_same_way_twice() {
        for (at, one) in Identity::ALL.into_iter().enumerate() {
            for other in &Identity::ALL[at + 1..] {
                let (one, other) = (one.spec(), other.spec());
                assert!(one.root != other.root && one.name != other.name && one.variable != other.variable);
            }
        }
    }
}
