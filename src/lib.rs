//! An S3-backed virtual filesystem and skill library for AI agents.
//!
//! Each agent session of a multi-tenant product sees up to three directories in one bucket:
//!
//! | mount | objects | access | there when the session has |
//! |---|---|---|---|
//! | `/workspace` | `threads/{thread_id}/` | read and write | a thread |
//! | `/ticket` | `tickets/{ticket_id}/` | read; write when granted | a ticket |
//! | `/skills` | `{user_id}/skills/`, then `shared/{library_id}/skills/` | read | a user or libraries |
//!
//! It lists, reads, writes and searches them, and nothing else of the bucket. On top stands a skill library: it
//! discovers skills, puts the right few words of each into the prompt, and loads the rest on demand.
//!
//! # The smallest example
//!
//! On an embedded store, which speaks the real S3 protocol inside the process:
//!
//! ```
//! # #[cfg(feature = "embedded")]
//! # async fn example() -> skillfs::Result<()> {
//! use skillfs::embedded::Embedded;
//! use skillfs::{Session, Settings, SkillFs, ThreadId, UserId};
//!
//! // Once a process. On S3: `SkillFs::connect(&Settings::new("my-bucket")).await?`.
//! let store = Embedded::in_memory()?;
//! store.create_bucket("my-bucket").await?;
//! let fs = SkillFs::embedded(&store, &Settings::new("my-bucket")).await?;
//! let skill = "---\nname: sale\ndescription: Drafts deeds of sale.\n---\n# Steps\n";
//! store.put("my-bucket", "ana/skills/deeds/sale/SKILL.md", skill).await?;
//! store.put("my-bucket", "threads/t-42/notes.md", "# Notes\n").await?;
//!
//! // Once a request: no I/O, some microseconds.
//! let session = Session::new().user(UserId::parse("ana")?).thread(ThreadId::parse("t-42")?);
//! let backend = fs.session(&session);
//!
//! let skills = backend.ls("/skills/deeds").await?;
//! assert_eq!(skills.entries[0].path.as_str(), "/skills/deeds/sale");
//! assert!(backend.exists("/skills/deeds/sale/SKILL.md").await?);
//! // `.md` may be left out, and a relative path starts at `/workspace`.
//! assert_eq!(backend.read("notes").await?.content, "# Notes\n");
//!
//! // What the model is told, and what it gets when it chooses.
//! assert_eq!(backend.load_all_skills_formatted(None).await?, "## deeds\n\n- `deeds/sale`: Drafts deeds of sale.\n");
//! assert_eq!(backend.load_skill("sale").await?.body, "# Steps\n");
//!
//! // The workspace is as on a disk, for several agents at once.
//! backend.edit("notes.md", "# Notes", "# My notes").await?;
//! backend.append("notes.md", "- buy bread\n").await?;
//! let found = backend.grep(&skillfs::Grep::new("bread")).await?;
//! assert_eq!((found.lines[0].path.as_str(), found.lines[0].line), ("/workspace/notes.md", 2));
//! assert_eq!(backend.write("/skills/x", "").await.unwrap_err().kind(), skillfs::ErrorKind::ReadOnly);
//!
//! // What belongs to others cannot even be said.
//! let refused = backend.read("/skills/../../bruno/skills/x").await.unwrap_err();
//! assert_eq!(refused.kind(), skillfs::ErrorKind::InvalidPath);
//! # Ok(())
//! # }
//! # #[cfg(feature = "embedded")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
//! ```
//!
//! # Concepts
//!
//! - [`SkillFs`] is one bucket: the client, its connections, its limits. A process shares one.
//! - [`S3Backend`] is one session on it. It is made from a [`Session`]: a user, a thread, a ticket.
//! - [`VirtualPath`] is what a session can name. Operations take text and parse it, or take a path
//!   that is parsed already.
//! - [`ObjectKey`] is what S3 can name. Only a session's mounts make one, from a parsed path; a key
//!   that was listed comes back as a path or as nothing.
//! - [`SkillLibrary`] is what [`S3Backend::skills`] finds: a catalogue for the prompt, and names to load
//!   more by. [`S3Backend::load_skill`] gives one skill's instructions, [`S3Backend::skill_resources`]
//!   what else is in it.
//! - [`Error`] has a stable [`kind`](Error::kind) to branch on, a message that names the path, and a
//!   hint that says what to do next. Language models read them too.
//!
//! Every operation states its cost in requests, and [`SkillFs::requests`] counts what was sent.
//!
//! # Many writers
//!
//! [`S3Backend::edit`] and [`S3Backend::append`] never lose another writer's change: they are made again in
//! what others wrote. When the answer to a write is lost, its id in the object's metadata tells whether it took
//! effect; where nothing tells, the error is a conflict and [`Error::may_have_taken_effect`] is true. A change is
//! never applied twice.
//!
//! # Limits
//!
//! Text is read whole up to [`Settings::max_read_bytes`]; of larger files
//! [`S3Backend::read_window`] reads lines and [`S3Backend::read_bytes`] ranges. Names have up to 255
//! bytes, keys up to 1,024.
//!
//! # Features
//!
//! - `cli` (default): the `skillfs` program; includes `embedded` and `import`.
//! - `embedded`: the store in this process, in the module [`embedded`].
//! - `import`: archives and git repositories as sources of skills, imports and exports, in the module [`source`].
//!   Without it, [`source`] reads and writes folders.
//! - `sso`: credentials of `aws sso login`.
//!
//! A library user writes `default-features = false`, and compiles neither a command line nor a server.

#![cfg_attr(not(feature = "embedded"), allow(rustdoc::broken_intra_doc_links))]

mod options;

mod error;

mod id;
mod path;

mod mount;

mod policy;

mod entry;
mod pattern;
mod search;
mod text;

mod manifest;

mod index;

mod config;

mod ambient;
mod cache;

#[cfg(feature = "embedded")]
pub mod embedded;

mod store;

mod backend;

mod skill;

pub mod source;

pub mod admin;

mod doctor;

pub use crate::ambient::{Clock, Randomness};
pub use crate::backend::{
    Capabilities, Deleted, Edited, FileBytes, FileHits, Glob, GlobResult, Grep, GrepLine, GrepResult,
    NotSearched, Overwrite, S3Backend, SkillFs, TextFile, Transferred, Window, WriteMode, Written,
};
pub use crate::cache::CacheCounts;
pub use crate::config::{
    Freshness, Retention, Role, ServerCapabilities, Settings, StaticCredentials, Timeouts, env,
};
pub use crate::doctor::{Check, Diagnosis, Verdict};
pub use crate::entry::{Depth, Entry, EntryKind, Listing, Page, Tree, format_time};
pub use crate::error::{BucketAddress, CredentialsFault, Error, ErrorKind, Hint, Result};
pub use crate::id::{LibraryId, ThreadId, TicketId, UserId};
pub use crate::index::Digest;
pub use crate::manifest::{
    Diagnostic, Document, Manifest, Properties, Severity, Yaml, read_properties, validate,
};
pub use crate::mount::{Access, Grants, Library, Mount, ObjectKey, Quota, Session};
pub use crate::path::{IntoPath, SkillPath, VirtualPath};
pub use crate::skill::{
    AvailableSkill, Budgeted, CatalogFormat, Category, Dependencies, LoadedSkill, LocalSkill, PromptText,
    Resource, ResourceKind, Skill, SkillLibrary, SkillPaths, Unknown, available_skills, check_folder,
};
pub use crate::store::{Components, RequestCounts, SessionCredentials, aborts_finished};

/// Compiles the Rust code of the README and of the pages in `docs/` as documentation tests.
#[cfg(all(doctest, feature = "embedded"))]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;

    #[doc = include_str!("../docs/getting-started.md")]
    struct GettingStarted;

    #[doc = include_str!("../docs/roles.md")]
    struct Roles;

    #[doc = include_str!("../docs/speed.md")]
    struct Speed;
}
