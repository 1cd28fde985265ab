//! Administration of skill libraries: plan, publish, roll back, verify, repair and prune.
//!
//! [`LibraryAdmin`] is the entry point; [`SkillFs::library`](crate::SkillFs::library) creates one.
//!
//! A library is either *plain* or *published*. Readers of a plain library see the objects under its prefix. Readers of
//! a published library see exactly the files that its index lists. It changes by releases: a push uploads the content
//! (blobs) and a record of the release, and then replaces the index with one conditional write. That write is the
//! commit: readers see all of a release or nothing of it. Afterwards the files are copied to the prefix of the library
//! (the *mirror*), for other tools. A change that another tool makes to the mirror is *drift*: readers do not see it
//! until it is published.
//!
//! `docs/design/publishing.md` explains the protocol.

mod collection;
mod compare;
mod drift;
mod files;
mod history;
mod library;
mod many;
mod mirror;
#[cfg(test)]
mod model;
mod new;
mod operations;
mod overview;
mod plain;
mod plan;
mod progress;
mod protocol;
mod prune;
mod publish;
mod release;
mod repair;
mod verify;
mod work;

pub use self::collection::{Libraries, LibraryStats, ListedSkill};
pub use self::compare::{Action, Adopted, FileAction, FileChange, PlannedSkill};
pub use self::drift::Drift;
pub use self::files::PullOptions;
pub use self::history::Release;
pub use self::library::{LibraryAdmin, LibraryKind};
pub use self::many::Pushed;
pub use self::new::{IntoKind, NewFile, NewLibrary, NewSkill, PushOptions};
pub use self::operations::LibraryDiff;
pub(crate) use self::overview::Overview;
pub use self::plan::{LibraryChange, Plan};
pub use self::progress::PushProgress;
pub use self::prune::Pruned;
pub use self::publish::Published;
pub use self::repair::RepairOptions;
pub use self::verify::{Problem, Verified, VerifyOptions};
