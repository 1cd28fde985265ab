//! Who may see an entry.
//!
//! Without a role, sessions differ only in the keys that their mounts build, and all of them send requests with the
//! credentials of the process. With a role, S3 itself confines each session; then an entry must not tell a session
//! what S3 would refuse it. The rule: *an entry names what S3 was asked to make it; a session sees the entry once S3
//! has let the session's own credentials do as much in the same place.* [`Evidence::shows`] is that rule.
//!
//! Evidence belongs to one set of credentials and ends with it. A refusal takes it back. It is gathered where requests
//! are sent (`store::send`), and never from anything that a session says.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::mount::Reach;

/// What must have been let through before an entry is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Need {
    /// Reading this object, or its kind: everything in one mount is read by the same right.
    Read(Arc<str>),
    /// Listing this prefix, or its kind.
    List(Arc<str>),
    /// Reading the index of this library: it opens all that was published there.
    Published(Arc<str>),
    /// Listing this library, having been told whether there is an index.
    Plain(Arc<str>),
}

/// What S3 let one set of credentials do, for each part of the bucket that their policy names.
#[derive(Debug)]
pub(crate) struct Evidence(Box<[Region]>);

/// One mount, or one library with what is beside it. Prefixes end with `/`.
#[derive(Debug)]
struct Region {
    prefix: String,
    /// Of a library, where its index and its blobs are.
    beside: Option<String>,
    listed: AtomicBool,
    read: AtomicBool,
    /// The index of the library was read, or found missing by reading.
    index: AtomicBool,
    /// A listing told that the library has no index.
    no_index: AtomicBool,
}

/// What S3 answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passed {
    /// A listing of this prefix.
    List,
    /// A request for this object.
    Read,
    /// A listing that tells that this object is not there, where reading it was refused.
    Missing,
}

impl Evidence {
    /// For credentials that reach this much, and have done nothing yet.
    pub(crate) fn none(reach: &[Reach]) -> Self {
        Self(reach.iter().map(Region::new).collect())
    }

    /// Whether S3 has let these credentials do all that an entry needs.
    pub(crate) fn shows<'n>(&self, mut needs: impl Iterator<Item = &'n Need>) -> bool {
        let is = |proof: &AtomicBool| proof.load(Ordering::Relaxed);
        needs.all(|need| {
            self.0.iter().any(|region| match need {
                Need::Read(key) if region.is_beside(key) => is(&region.index),
                Need::Read(key) => region.contains(key) && is(&region.read),
                Need::List(prefix) => region.contains(prefix) && is(&region.listed),
                Need::Published(library) => region.is_library(library) && is(&region.index),
                Need::Plain(library) => {
                    region.is_library(library)
                        && is(&region.listed)
                        && (is(&region.index) || is(&region.no_index))
                }
            })
        })
    }

    /// S3 has let something through; or, with `false`, refused it.
    pub(crate) fn record(&self, key: &str, how: Passed, passed: bool) {
        for region in &self.0 {
            let beside = region.is_beside(key);
            if !beside && !region.contains(key) {
                continue;
            }
            let proof = match how {
                // A listing beside a library looks for one object, and shows no other.
                Passed::List if beside => return,
                Passed::List => &region.listed,
                Passed::Read if beside => &region.index,
                Passed::Read => &region.read,
                Passed::Missing if beside => &region.no_index,
                // In a mount that is the session's own. Of a library it does not tell whether others may be read.
                Passed::Missing if region.beside.is_none() => &region.read,
                Passed::Missing => return,
            };
            // Written only when it changes: all who read share it.
            if proof.load(Ordering::Relaxed) != passed {
                proof.store(passed, Ordering::Relaxed);
            }
            return;
        }
    }
}

impl Region {
    fn new(reach: &Reach) -> Self {
        let (prefix, beside) = match reach {
            Reach::Below { prefix, .. } => (prefix.clone(), None),
            Reach::Library { home, .. } => (format!("{home}skills/"), Some(format!("{home}.skillfs/"))),
        };
        let (listed, read, index, no_index) = Default::default();
        Self { prefix, beside, listed, read, index, no_index }
    }

    /// By the plain text, as IAM reads it.
    fn contains(&self, key: &str) -> bool {
        key.starts_with(&self.prefix)
    }

    fn is_beside(&self, key: &str) -> bool {
        self.beside.as_ref().is_some_and(|beside| key.starts_with(beside))
    }

    fn is_library(&self, prefix: &str) -> bool {
        self.beside.is_some() && self.prefix == prefix
    }
}

/// The credentials of a session, as far as the cache is concerned.
pub(crate) trait Credentials: std::fmt::Debug + Send + Sync {
    /// Which set of credentials requests about this place go with: callers share a flight only where it is the same.
    fn id(&self, place: &str) -> [u8; 16];

    /// What S3 has let that set do; `None` while there is none.
    fn evidence(&self, place: &str) -> Option<Arc<Evidence>>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{About, LibraryPrefixes};
    use crate::id::{LibraryId, ThreadId, UserId};
    use crate::mount::Owner;

    /// A session with a thread, its own library and the shared library `acme`.
    fn session() -> Evidence {
        Evidence::none(&[
            Reach::Below {
                prefix: "threads/t1/".into(),
                write: true,
                of: Owner::Thread(ThreadId::parse("t1").unwrap()),
            },
            Reach::library(Owner::User(UserId::parse("u1").unwrap())),
            Reach::library(Owner::Library(LibraryId::parse("acme").unwrap())),
        ])
    }

    fn everything() -> Evidence {
        let evidence = session();
        for place in ["threads/t1/", "u1/skills/", "shared/acme/skills/"] {
            evidence.record(place, Passed::List, true);
            evidence.record(place, Passed::Read, true);
        }
        for index in ["u1/.skillfs/index.json", "shared/acme/.skillfs/index.json"] {
            evidence.record(index, Passed::Read, true);
        }
        evidence
    }

    fn object(key: &str) -> About {
        About::Object(key.into())
    }

    fn prefix(prefix: &str) -> About {
        About::Prefix(prefix.into())
    }

    fn libraries(prefixes: &[&str]) -> About {
        About::Libraries(Arc::new(LibraryPrefixes::of_prefixes(prefixes)))
    }

    fn shows(evidence: &Evidence, about: &About, plain: &[bool]) -> bool {
        evidence.shows(about.needs(plain).iter())
    }

    #[test]
    fn nothing_outside_the_session_is_shown_whatever_was_let_through() {
        let all = everything();
        for about in [
            object("threads/t10/secret.md"),
            object("threads/t1"),
            object("threads/t1x/a"),
            object("threads/"),
            object(""),
            object("THREADS/t1/a"),
            object("/threads/t1/a"),
            object(" threads/t1/a"),
            object("threads//t1/a"),
            object("threads/t2/../t1/a"),
            object("threads/t1\0/a"),
            object("tickets/t1/a"),
            object("u10/skills/a/SKILL.md"),
            object("u10/.skillfs/index.json"),
            object("u1/private"),
            object("u1/skills"),
            object("u1/skills2/a"),
            object("u1x/skills/a"),
            object("shared/acme2/skills/a"),
            object("shared/acme2/.skillfs/blobs/x"),
            object("shared/acme/private"),
            object("shared/acme"),
            prefix("threads/t10/"),
            prefix("threads/"),
            prefix("threads/t1x/"),
            prefix(""),
            prefix("u1/"),
            prefix("u10/skills/"),
            prefix("shared/"),
            libraries(&["u10/skills/"]),
            libraries(&["u1/skills/", "shared/acme2/skills/"]),
            libraries(&["shared/acme2/skills/", "u1/skills/"]),
            libraries(&["u1/"]),
            libraries(&["u1/skills/a/"]),
            libraries(&["threads/t1/"]),
        ] {
            for plain in [&[][..], &[true, true], &[false, false]] {
                assert!(!shows(&all, &about, plain), "{about:?} {plain:?}");
            }
        }
    }

    #[test]
    fn each_entry_needs_what_made_it_and_no_more() {
        let library = || libraries(&["u1/skills/"]);
        // What S3 let through; what is shown then, and what is not.
        #[allow(clippy::type_complexity)]
        let table: Vec<(&str, Passed, Vec<(About, &[bool])>, Vec<(About, &[bool])>)> = vec![
            (
                "threads/t1/a.md",
                Passed::Read,
                vec![(object("threads/t1/b.md"), &[])],
                vec![(prefix("threads/t1/"), &[]), (object("u1/skills/a"), &[]), (library(), &[false])],
            ),
            (
                "threads/t1/",
                Passed::List,
                vec![(prefix("threads/t1/"), &[]), (prefix("threads/t1/a/"), &[])],
                vec![(object("threads/t1/b.md"), &[]), (library(), &[true])],
            ),
            (
                "threads/t1/a.md",
                Passed::Missing,
                vec![(object("threads/t1/a.md"), &[])],
                vec![(prefix("threads/t1/"), &[])],
            ),
            // One request for the index opens all that was published.
            (
                "u1/.skillfs/index.json",
                Passed::Read,
                vec![
                    (object("u1/.skillfs/index.json"), &[]),
                    (object("u1/.skillfs/blobs/x"), &[]),
                    (library(), &[false]),
                ],
                vec![
                    (library(), &[true]),
                    (library(), &[]),
                    (object("u1/skills/a/SKILL.md"), &[]),
                    (prefix("u1/skills/"), &[]),
                    (object("shared/acme/.skillfs/blobs/x"), &[]),
                    (libraries(&["u1/skills/", "shared/acme/skills/"]), &[false, false]),
                ],
            ),
            // A listing alone does not tell whether there is an index, which would go before it.
            (
                "u1/skills/",
                Passed::List,
                vec![(prefix("u1/skills/"), &[])],
                vec![(library(), &[true]), (library(), &[false]), (object("u1/skills/a/SKILL.md"), &[])],
            ),
            (
                "u1/skills/a/SKILL.md",
                Passed::Read,
                vec![(object("u1/skills/b/SKILL.md"), &[])],
                vec![(library(), &[true]), (library(), &[false]), (object("u1/.skillfs/blobs/x"), &[])],
            ),
            // That there is no index says nothing of what may be read.
            (
                "u1/.skillfs/index.json",
                Passed::Missing,
                vec![],
                vec![(library(), &[false]), (library(), &[true]), (object("u1/.skillfs/blobs/x"), &[])],
            ),
            ("u1/skills/a/SKILL.md", Passed::Missing, vec![], vec![(object("u1/skills/a/SKILL.md"), &[])]),
            (
                "u1/.skillfs/index.json",
                Passed::List,
                vec![],
                vec![(library(), &[false]), (prefix("u1/skills/"), &[])],
            ),
        ];
        for (key, how, shown, hidden) in table {
            let evidence = session();
            evidence.record(key, how, true);
            for (about, plain) in &shown {
                assert!(shows(&evidence, about, plain), "{how:?} of {key} does not show {about:?} {plain:?}");
            }
            for (about, plain) in &hidden {
                assert!(!shows(&evidence, about, plain), "{how:?} of {key} shows {about:?} {plain:?}");
            }
            // A refusal takes it back.
            evidence.record(key, how, false);
            for (about, plain) in &shown {
                assert!(!shows(&evidence, about, plain), "refused, {key} still shows {about:?}");
            }
        }
    }

    #[test]
    fn a_plain_library_needs_its_listing_and_word_of_its_index() {
        let plain = libraries(&["u1/skills/"]);
        for index in [Passed::Read, Passed::Missing] {
            let evidence = session();
            evidence.record("u1/skills/", Passed::List, true);
            evidence.record("u1/.skillfs/index.json", index, true);
            assert!(shows(&evidence, &plain, &[true]), "{index:?}");
            // Of another library, nothing is known.
            assert!(!shows(&evidence, &libraries(&["shared/acme/skills/"]), &[true]));
        }
    }

    #[test]
    fn of_several_libraries_each_needs_its_own() {
        let both = libraries(&["u1/skills/", "shared/acme/skills/"]);
        let evidence = session();
        evidence.record("u1/.skillfs/index.json", Passed::Read, true);
        assert!(!shows(&evidence, &both, &[false, false]));
        evidence.record("shared/acme/.skillfs/index.json", Passed::Read, true);
        assert!(shows(&evidence, &both, &[false, false]));
        assert!(!shows(&evidence, &both, &[false, true]), "the plain one was not listed");
        evidence.record("shared/acme/skills/", Passed::List, true);
        assert!(shows(&evidence, &both, &[false, true]));
    }
}
