//! An S3-backed virtual filesystem and skill library for AI agents.
//!
//! skillfs serves many tenants from one bucket. Each agent session sees up to three directories, and nothing else of
//! the bucket:
//!
//! | mount | objects | access | requires |
//! |---|---|---|---|
//! | `/workspace` | `threads/{thread_id}/` | read and write | a thread |
//! | `/ticket` | `tickets/{ticket_id}/` | read; write if granted | a ticket |
//! | `/skills` | `{user_id}/skills/`, then `shared/{library_id}/skills/` | read | a user or libraries |
//!
//! A session lists, reads, writes and searches files. Below `/skills` it also discovers skills, renders a catalog of
//! them for the system prompt, and loads a skill on demand. Administrators publish skills with the [`admin`] module.
//!
//! # Example
//!
//! This uses an embedded store, which implements the S3 protocol in process:
//!
//! ```
//! # #[cfg(feature = "embedded")]
//! # async fn example() -> skillfs::Result<()> {
//! use skillfs::embedded::Embedded;
//! use skillfs::{Session, Settings, SkillFs, ThreadId, UserId};
//!
//! // Once per process. On S3: `SkillFs::connect(&Settings::new("my-bucket")).await?`.
//! let store = Embedded::in_memory()?;
//! store.create_bucket("my-bucket").await?;
//! let fs = SkillFs::embedded(&store, &Settings::new("my-bucket")).await?;
//! let skill = "---\nname: sale\ndescription: Drafts sale contracts.\n---\n# Steps\n";
//! store.put("my-bucket", "ana/skills/contracts/sale/SKILL.md", skill).await?;
//! store.put("my-bucket", "threads/t-42/notes.md", "# Notes\n").await?;
//!
//! // Once per agent session. No I/O.
//! let session = Session::new().user(UserId::parse("ana")?).thread(ThreadId::parse("t-42")?);
//! let backend = fs.session(&session);
//!
//! let skills = backend.ls("/skills/contracts").await?;
//! assert_eq!(skills.entries[0].path.as_str(), "/skills/contracts/sale");
//! assert!(backend.exists("/skills/contracts/sale/SKILL.md").await?);
//! // A relative path starts at `/workspace`, and `.md` may be omitted.
//! assert_eq!(backend.read("notes").await?.content, "# Notes\n");
//!
//! // The catalog for the system prompt, and the instructions of the skill that the model chooses.
//! assert_eq!(backend.load_all_skills_formatted(None).await?, "## contracts\n\n- `contracts/sale`: Drafts sale contracts.\n");
//! assert_eq!(backend.load_skill("sale").await?.body, "# Steps\n");
//!
//! // The workspace is writable, also for several agents concurrently.
//! backend.edit("notes.md", "# Notes", "# My notes").await?;
//! backend.append("notes.md", "- buy bread\n").await?;
//! let found = backend.grep(&skillfs::Grep::new("bread")).await?;
//! assert_eq!((found.lines[0].path.as_str(), found.lines[0].line), ("/workspace/notes.md", 2));
//! assert_eq!(backend.write("/skills/x", "").await.unwrap_err().kind(), skillfs::ErrorKind::ReadOnly);
//!
//! // No path leads to another tenant.
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
//! - [`SkillFs`] is the handle for one bucket: client, connections, limits and cache. Create one per process.
//! - [`S3Backend`] is one session. [`SkillFs::session`] creates it from a [`Session`]: a user, a thread, a ticket, shared
//!   libraries and grants.
//! - [`VirtualPath`] is a parsed path of a session. Operations accept text, which they parse, or a parsed path.
//! - [`ObjectKey`] is the key of an S3 object. Only the mounts of a session create keys, from parsed paths, so a path
//!   cannot escape its mount.
//! - [`SkillLibrary`] is the result of [`S3Backend::skills`]: the skills of a session, with a catalog for the prompt.
//!   [`S3Backend::load_skill`] returns the instructions of one skill, and [`S3Backend::skill_resources`] lists its other
//!   files.
//! - [`admin::LibraryAdmin`] publishes, compares, verifies and repairs one skill library.
//! - [`Error`] has a stable [`kind`](Error::kind) to match on, a message that names the path, and a hint that says what
//!   to do next. Messages and hints are also written for language models.
//!
//! The documentation of every operation states its cost in requests. [`SkillFs::requests`] counts the requests that were
//! sent.
//!
//! # Concurrent writers
//!
//! [`S3Backend::edit`] and [`S3Backend::append`] keep the changes of other writers: they are applied to the newest
//! version of the file. If the response to a write is lost, the write ID in the object's metadata shows whether it took
//! effect. If this cannot be determined, the error is a conflict and [`Error::may_have_taken_effect`] returns true. A
//! change is never applied twice.
//!
//! # Limits
//!
//! [`S3Backend::read`] returns text files of up to [`Settings::max_read_bytes`]. For larger files,
//! [`S3Backend::read_window`] reads lines and [`S3Backend::read_bytes`] reads byte ranges. File names have up to 255
//! bytes, and keys up to 1,024.
//!
//! # Features
//!
//! All features are off by default. The `skillfs` program is a separate package, `skillfs-cli`.
//!
//! - `embedded`: an S3 server in process, in memory or in one local file; see the [`embedded`] module.
//! - `import`: archives and git repositories as sources of skills, imports and exports; see the [`source`] module.
//!   Without it, [`source`] reads and writes folders.
//! - `sso`: credentials from `aws sso login`.

#![cfg_attr(
    not(feature = "embedded"),
    allow(rustdoc::broken_intra_doc_links, reason = "the docs link to the module `embedded`")
)]

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
