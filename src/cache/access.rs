//! Access control: which session may see which cache entry.
//!
//! Without a role, all sessions use the credentials of the process and differ only in the keys that their mounts build.
//! With a role, S3 confines each session, and the cache must not reveal to a session what S3 would deny it. The rule:
//! *an entry states which requests produced it ([`Need`]); a session sees the entry once S3 has allowed the session's
//! own credentials to send such requests in the same place ([`Evidence`]).* [`Evidence::shows`] implements it.
//!
//! Evidence belongs to one set of credentials and expires with it. A denied request revokes it. It is recorded where
//! requests are sent (`store::send`), never from input of a session.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::mount::Reach;

/// A permission that a session must have demonstrated before it sees an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Need {
    /// Reading this object, or another one in the same mount, which needs the same permission.
    Read(Arc<str>),
    /// Listing this prefix, or another one in the same mount.
    List(Arc<str>),
    /// Reading the index of this library, which gives access to everything published there.
    Published(Arc<str>),
    /// Listing this library, and finding out whether it has an index.
    Plain(Arc<str>),
}

/// What S3 has allowed one set of credentials to do, for each part of the bucket in their session policy.
#[derive(Debug)]
pub(crate) struct Evidence(Box<[Region]>);

/// One mount, or one library with its sidecar folder `.skillfs/`. Prefixes end with `/`.
#[derive(Debug)]
struct Region {
    prefix: String,
    /// For a library, the prefix of its index and blobs.
    beside: Option<String>,
    listed: AtomicBool,
    read: AtomicBool,
    /// The index of the library was read, or a read found that it does not exist.
    index: AtomicBool,
    /// A listing showed that the library has no index.
    no_index: AtomicBool,
}

/// The kind of a request that S3 has allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passed {
    /// A listing of this prefix.
    List,
    /// A GET or HEAD of this object.
    Read,
    /// A listing that showed that this object does not exist, after reading it was denied.
    Missing,
}

impl Evidence {
    /// Creates empty evidence for credentials with this reach.
    pub(crate) fn new(reach: &[Reach]) -> Self {
        Self(reach.iter().map(Region::new).collect())
    }

    /// Returns whether S3 has allowed these credentials everything that an entry needs.
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

    /// Records that S3 allowed a request or, if `passed` is `false`, denied it.
    pub(crate) fn record(&self, key: &str, how: Passed, passed: bool) {
        for region in &self.0 {
            let beside = region.is_beside(key);
            if !beside && !region.contains(key) {
                continue;
            }
            let proof = match how {
                // A listing in the sidecar folder looks for a single object and proves nothing about others.
                Passed::List if beside => return,
                Passed::List => &region.listed,
                Passed::Read if beside => &region.index,
                Passed::Read => &region.read,
                Passed::Missing if beside => &region.no_index,
                // Only in a mount that belongs to the session. In a library, it does not prove that other objects may
                // be read.
                Passed::Missing if region.beside.is_none() => &region.read,
                Passed::Missing => return,
            };
            // Written only on a change, to keep the cache line shared among readers.
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

    /// Compares text, as IAM does.
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

/// The credentials of a session, as seen by the cache.
pub(crate) trait Credentials: std::fmt::Debug + Send + Sync {
    /// Identifies the set of credentials used for requests about this place. Callers share a fetch only if it is equal.
    fn id(&self, place: &str) -> [u8; 16];

    /// What S3 has allowed that set to do; `None` if there are no valid credentials.
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
        Evidence::new(&[
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
        // The key and the kind of an allowed request, the entries that it shows, and entries that stay hidden.
        #[allow(clippy::type_complexity, reason = "a table that is used once")]
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
            // Reading the index gives access to everything that was published.
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
            // A listing alone does not show whether there is an index, which would take precedence.
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
            // That there is no index does not prove that anything may be read.
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
            // A denied request revokes the evidence.
            evidence.record(key, how, false);
            for (about, plain) in &shown {
                assert!(!shows(&evidence, about, plain), "{key} still shows {about:?} after it was denied");
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
            // There is no evidence about another library.
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
