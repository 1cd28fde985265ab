//! skillfs
mod error;
mod path;
mod id;
mod mount;
mod text;
mod entry;
mod config;
#[cfg(feature = "embedded")]
pub mod embedded;
mod store;
mod backend;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
pub use backend::{Depth, FileBytes, S3Backend, SkillFs, TextFile, Window};
pub use config::{Settings, StaticCredentials, Timeouts, env};
pub use entry::{Entry, EntryKind, Listing, Page, Tree};
pub use error::{Error, ErrorKind, Result};
pub use id::{ThreadId, TicketId, UserId};
pub use mount::{Access, Mount, ObjectKey, Session};
pub use path::{IntoPath, VirtualPath};
pub use store::RequestCounts;
