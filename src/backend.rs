//! Sessions: what an agent sees. Every operation is a few requests of the store, and its cost is
//! stated.

mod beside;
mod edit;
mod file;
mod find;
mod grep;
mod libraries;
mod lines;
mod list;
mod pieces;
mod plain;
mod quota;
mod read;
mod remove;
mod skills;
mod transfer;
mod tree;
mod union;
mod view;
mod walk;
mod window;
mod write;

use std::sync::Arc;
use std::time::Duration;

pub use self::edit::Edited;
use self::edit::Queues;
pub use self::find::{Glob, GlobResult};
pub use self::grep::{FileHits, Grep, GrepLine, GrepResult, NotSearched};
pub(crate) use self::libraries::unusable;
use self::quota::Usages;
pub use self::read::{FileBytes, TextFile, Window};
pub use self::remove::Deleted;
pub use self::transfer::{Overwrite, Transferred};
pub(crate) use self::tree::Retries;
pub(crate) use self::union::{SkillPlace, Union, UnionFile};
pub(crate) use self::view::{View, find_skills};
pub use self::write::{Capabilities, WriteMode, Written};
use crate::cache::{CacheCounts, LibraryPrefixes, TenantCache};
use crate::config::Settings;
#[cfg(feature = "embedded")]
use crate::embedded::Embedded;
use crate::error::{Error, ErrorKind, Hint, Result};
use crate::mount::{Mount, Mounts, Quota, Session, Tenant};
use crate::path::VirtualPath;
use crate::store::{Components, RequestCounts, SessionCredentials, Store};

/// One bucket: the handle that a process shares.
///
/// It holds the client, its connections and the limits. Cloning it is cheap; a process needs one
/// for each bucket, and opens a session on it for each request it serves.
#[derive(Debug, Clone)]
pub struct SkillFs(Arc<HandleState>);

#[derive(Debug)]
struct HandleState {
    store: Store,
    settings: Settings,
    queues: Queues,
    usages: Usages,
}

impl SkillFs {
    /// Builds the client from settings and the AWS chain. Nothing is sent to the bucket: whether
    /// it is there, the first operation tells.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] when a setting is wrong.
    pub async fn connect(settings: &Settings) -> Result<Self> {
        Self::connect_with(settings, Components::default()).await
    }

    /// The same with parts of the program's own: HTTP client, credentials, clock, randomness.
    ///
    /// # Errors
    /// As [`SkillFs::connect`].
    pub async fn connect_with(settings: &Settings, components: Components) -> Result<Self> {
        let store = Store::connect(settings, components).await?;
        Ok(Self::over(store, settings))
    }

    /// A bucket in an embedded store; [`Embedded::create_bucket`] makes one. Of the settings,
    /// endpoint, region and credentials are not used.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] when a setting is wrong.
    #[cfg(feature = "embedded")]
    pub async fn embedded(embedded: &Embedded, settings: &Settings) -> Result<Self> {
        settings.check()?;
        if settings.role.is_some() {
            return Err(Error::new(ErrorKind::InvalidInput, "an embedded store has no roles")
                .with_hint("leave the role out, or use a bucket on S3"));
        }
        let store = Store::embedded(embedded, settings.clone()).await?;
        Ok(Self::over(store, settings))
    }

    fn over(store: Store, settings: &Settings) -> Self {
        let settings = settings.clone();
        Self(Arc::new(HandleState { store, settings, queues: Queues::default(), usages: quota::usages() }))
    }

    /// Opens a session. No I/O; it costs microseconds.
    ///
    /// Where [`Settings::role`](crate::Settings::role) is set, all that the session asks of the storage goes with
    /// credentials of its own; the first request waits for them.
    #[must_use]
    pub fn session(&self, session: &Session) -> S3Backend {
        let mounts = Mounts::of(session);
        let store = self.0.store.confined_to(Tenant::of(session), &mounts);
        self.opened(session, mounts, store)
    }

    /// A session for those who look after libraries: on the credentials of this process.
    pub(crate) fn own_session(&self, session: &Session) -> S3Backend {
        self.opened(session, Mounts::of(session), self.0.store.on_behalf_of(Tenant::of(session)))
    }

    fn opened(&self, session: &Session, mounts: Mounts, store: Store) -> S3Backend {
        S3Backend {
            shared: self.0.clone(),
            store,
            libraries: LibraryPrefixes::new(mounts.skill_layers()),
            mounts: Arc::new(mounts),
            quota: session.quota,
            accepts_lost_updates: false,
            fresh: false,
            pinned: None,
        }
    }

    /// How many sets of credentials this handle holds at the moment; at most
    /// [`Role::max_scopes`](crate::Role::max_scopes).
    #[must_use]
    pub fn scopes(&self) -> u64 {
        self.0.store.held_scopes()
    }

    /// Sets the server's clock ahead, as this handle knows it: for tests of what time does.
    #[doc(hidden)]
    pub fn advance_clock(&self, by: Duration) {
        self.0.store.advance_clock(by);
    }

    /// The storage on this handle's own behalf: for questions about the bucket.
    pub(crate) fn store(&self) -> &Store {
        &self.0.store
    }

    /// What is remembered by all sessions of this handle, and how often it helped.
    #[must_use]
    pub fn cache(&self) -> CacheCounts {
        self.0.store.shared_cache().counts()
    }

    /// Requests sent so far by all sessions of this handle, retries included.
    #[must_use]
    pub fn requests(&self) -> RequestCounts {
        self.0.store.requests()
    }
}

/// One session: the mounts of one user, thread and ticket, and nothing else.
///
/// Cloning it is cheap. Every method may be called from any task. Dropping the future of one that reads
/// has no effect; of one that writes, each file is as it was or as it was to be.
///
/// Paths are text or [`VirtualPath`]s. A relative one is relative to `/workspace`.
#[derive(Debug, Clone)]
pub struct S3Backend {
    shared: Arc<HandleState>,
    /// The storage, on behalf of this session's tenant.
    store: Store,
    mounts: Arc<Mounts>,
    /// The libraries behind `/skills`.
    libraries: Arc<LibraryPrefixes>,
    quota: Quota,
    accepts_lost_updates: bool,
    /// Whether every answer must be as new as the question.
    fresh: bool,
    /// What `/skills` shows, whatever becomes of the libraries.
    pinned: Option<Arc<Union>>,
}

impl S3Backend {
    /// The session's mounts, sorted by path.
    pub fn mounts(&self) -> impl Iterator<Item = &Mount> {
        self.mounts.iter()
    }

    /// The same session, whose answers are as new as its questions, whatever
    /// [`Settings::freshness`](crate::Settings::freshness) says. What is known and has not changed is not
    /// sent again.
    #[must_use]
    pub fn fresh(&self) -> Self {
        Self { fresh: true, ..self.clone() }
    }

    /// The session's own credentials, for other tools that shall reach what it reaches and nothing else. Only
    /// with a [`Role`](crate::Role).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] without a role, without mounts, and when the session's policy is too long for
    /// STS; [`ErrorKind::Denied`] when STS refuses.
    pub async fn credentials(&self) -> Result<SessionCredentials> {
        self.store.credentials().await
    }

    /// Whether S3 itself confines the session to its mounts.
    #[must_use]
    pub fn is_confined(&self) -> bool {
        self.store.is_confined()
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    pub(crate) fn lists_undescribed_skills(&self) -> bool {
        self.shared.settings.list_undescribed_skills
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// What is known, as far as this session may see it.
    pub(crate) fn cache(&self) -> &TenantCache {
        self.store.cache()
    }

    /// Alike for what is missing and for what belongs to somebody else.
    fn not_found(path: &VirtualPath) -> Error {
        let parent = path.parent().unwrap_or_else(VirtualPath::root);
        Error::new(ErrorKind::NotFound, format!("no such file or directory: `{path}`"))
            .at(path)
            .with_hint(Hint::ListDirectory(parent.to_string()))
    }
}
