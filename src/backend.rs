//! The process-wide handle ([`SkillFs`]) and the sessions opened on it ([`S3Backend`]).
//!
//! Every public operation documents its cost in S3 requests.

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
use self::edit::FileLocks;
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

/// A handle to one bucket, shared by the entire process.
///
/// It owns the S3 client, the connection pool, the cache and the limits. Cloning is cheap. A
/// process needs one handle per bucket, and opens a session on it for each request that it serves.
#[derive(Debug, Clone)]
pub struct SkillFs(Arc<HandleState>);

#[derive(Debug)]
struct HandleState {
    store: Store,
    settings: Settings,
    file_locks: FileLocks,
    usages: Usages,
}

impl SkillFs {
    /// Connects to a bucket, using the settings and the default AWS provider chain.
    ///
    /// Sends nothing to the bucket. The first operation reports whether the bucket exists and is
    /// accessible.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if a setting is invalid.
    pub async fn connect(settings: &Settings) -> Result<Self> {
        Self::connect_with(settings, Components::default()).await
    }

    /// Connects like [`SkillFs::connect`], with custom components: HTTP client, credentials, clock,
    /// randomness.
    ///
    /// # Errors
    /// Same as [`SkillFs::connect`].
    pub async fn connect_with(settings: &Settings, components: Components) -> Result<Self> {
        let store = Store::connect(settings, components).await?;
        Ok(Self::with_store(store, settings))
    }

    /// Opens a bucket in an embedded store.
    ///
    /// Create the bucket with [`Embedded::create_bucket`] first. The endpoint, region and
    /// credentials in the settings are ignored.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if a setting is invalid, or if a role is set: an embedded store
    /// has no roles.
    #[cfg(feature = "embedded")]
    pub async fn embedded(embedded: &Embedded, settings: &Settings) -> Result<Self> {
        settings.check()?;
        if settings.role.is_some() {
            return Err(Error::new(ErrorKind::InvalidInput, "an embedded store has no roles")
                .with_hint("leave the role out, or use a bucket on S3"));
        }
        let store = Store::embedded(embedded, settings.clone()).await?;
        Ok(Self::with_store(store, settings))
    }

    fn with_store(store: Store, settings: &Settings) -> Self {
        let settings = settings.clone();
        Self(Arc::new(HandleState {
            store,
            settings,
            file_locks: FileLocks::default(),
            usages: quota::usages(),
        }))
    }

    /// Opens a session. Performs no I/O and takes microseconds.
    ///
    /// If [`Settings::role`](crate::Settings::role) is set, all requests of the session are signed
    /// with credentials that are restricted to its mounts. The first request waits until they are
    /// available.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "embedded")]
    /// # async fn example() -> skillfs::Result<()> {
    /// # use skillfs::{Session, Settings, SkillFs, ThreadId, UserId, embedded::Embedded};
    /// # let store = Embedded::in_memory()?;
    /// # store.create_bucket("acme").await?;
    /// # let fs = SkillFs::embedded(&store, &Settings::new("acme")).await?;
    /// let session = Session::new().user(UserId::parse("ana")?).thread(ThreadId::parse("t-42")?);
    /// let backend = fs.session(&session);
    /// let mounts: Vec<_> = backend.mounts().map(|mount| mount.path().as_str()).collect();
    /// assert_eq!(mounts, ["/skills", "/workspace"]);
    /// # Ok(())
    /// # }
    /// # #[cfg(feature = "embedded")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    #[must_use]
    pub fn session(&self, session: &Session) -> S3Backend {
        let mounts = Mounts::of(session);
        let store = self.0.store.confined_to(Tenant::of(session), &mounts);
        self.open_session(session, mounts, store)
    }

    /// Opens a session that uses the credentials of the process, for administrative operations.
    pub(crate) fn own_session(&self, session: &Session) -> S3Backend {
        self.open_session(session, Mounts::of(session), self.0.store.on_behalf_of(Tenant::of(session)))
    }

    fn open_session(&self, session: &Session, mounts: Mounts, store: Store) -> S3Backend {
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

    /// Returns the number of sets of session credentials that this handle currently holds.
    ///
    /// Never exceeds [`Role::max_scopes`](crate::Role::max_scopes).
    #[must_use]
    pub fn scopes(&self) -> u64 {
        self.0.store.held_scopes()
    }

    /// Advances this handle's estimate of the server clock. For tests of time-dependent behavior.
    #[doc(hidden)]
    pub fn advance_clock(&self, by: Duration) {
        self.0.store.advance_clock(by);
    }

    /// The store with the credentials of the process, for requests about the bucket itself.
    pub(crate) fn store(&self) -> &Store {
        &self.0.store
    }

    /// Returns size and hit statistics of the cache that all sessions of this handle share.
    #[must_use]
    pub fn cache(&self) -> CacheCounts {
        self.0.store.shared_cache().counts()
    }

    /// Returns the number of requests that all sessions of this handle have sent so far, including
    /// retries.
    #[must_use]
    pub fn requests(&self) -> RequestCounts {
        self.0.store.requests()
    }
}

/// One agent session: the mounts of one user, thread and ticket, and nothing else.
///
/// Open one with [`SkillFs::session`]. Cloning is cheap, and every method may be called from any
/// task.
///
/// Dropping the future of a read operation has no effect. Dropping the future of a write operation
/// leaves each file either unchanged or completely written.
///
/// Paths are strings or [`VirtualPath`]s. A relative path is relative to `/workspace`.
///
/// # Skills for a prompt
///
/// - [`skills`](Self::skills) returns the skills as data, with catalogs in several formats and within a budget: use it
///   unless one of the following is all you need. [`load_skill`](Self::load_skill) then loads the skill that the model
///   chooses.
/// - [`load_skills`](Self::load_skills): only the paths, to offer a choice.
/// - [`load_skills_frontmatter`](Self::load_skills_frontmatter): the frontmatter of a category, verbatim, for a model that
///   reads YAML.
/// - [`load_all_skills_formatted`](Self::load_all_skills_formatted): a Markdown list of names and descriptions, for a
///   system prompt.
/// - [`load_skill_content`](Self::load_skill_content): one `SKILL.md` as text, or `None`, for a tool that only reads.
///
/// # Costs and errors
///
/// Each method documents its cost when nothing is cached, and the errors that are specific to it. In
/// addition, every method that takes a path can fail with [`ErrorKind::InvalidPath`], and every
/// method that sends a request with the errors of the storage, such as [`ErrorKind::Denied`],
/// [`ErrorKind::Timeout`] and [`ErrorKind::Unavailable`].
#[derive(Debug, Clone)]
pub struct S3Backend {
    shared: Arc<HandleState>,
    /// The store, with the credentials and the fair-queue share of this session's tenant.
    store: Store,
    mounts: Arc<Mounts>,
    /// The prefixes of the libraries that are merged into `/skills`.
    libraries: Arc<LibraryPrefixes>,
    quota: Quota,
    accepts_lost_updates: bool,
    /// Whether every result must be revalidated with the server.
    fresh: bool,
    /// The snapshot of `/skills` that a pinned session uses, even if the libraries change.
    pinned: Option<Arc<Union>>,
}

impl S3Backend {
    /// Returns the session's mounts, sorted by path.
    pub fn mounts(&self) -> impl Iterator<Item = &Mount> {
        self.mounts.iter()
    }

    /// Returns a copy of this session that revalidates everything it reads, regardless of
    /// [`Settings::freshness`](crate::Settings::freshness).
    ///
    /// Cached content that has not changed is not transferred again.
    #[must_use]
    pub fn fresh(&self) -> Self {
        Self { fresh: true, ..self.clone() }
    }

    /// Returns temporary credentials with the permissions of this session.
    ///
    /// Pass them to other tools that must reach what the session reaches and nothing else. Requires
    /// a [`Role`](crate::Role).
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidInput`] if no role is configured, if the session has no mounts, or if
    ///   its policy exceeds the STS size limit.
    /// - [`ErrorKind::Denied`] if STS refuses to issue them.
    pub async fn credentials(&self) -> Result<SessionCredentials> {
        self.store.credentials().await
    }

    /// Returns whether S3 itself restricts the session to its mounts, through a role.
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

    /// The cache, as far as this session may see it.
    pub(crate) fn cache(&self) -> &TenantCache {
        self.store.cache()
    }

    /// The same error for a missing path and for a path that belongs to another tenant.
    fn not_found(path: &VirtualPath) -> Error {
        let parent = path.parent().unwrap_or_else(VirtualPath::root);
        Error::new(ErrorKind::NotFound, format!("no such file or directory: `{path}`"))
            .at(path)
            .with_hint(Hint::ListDirectory(parent.to_string()))
    }
}
