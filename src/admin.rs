//! What administrators do with libraries: plan, publish, roll back, verify, prune.
//!
//! A library is plain or published. A published one changes by releases: blobs and a record are uploaded, then one
//! compare-and-swap of the index makes the release visible. See docs/design/publishing.md.

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
