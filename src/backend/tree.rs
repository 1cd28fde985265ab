//! Path resolution that is independent of the kind of mount. Every operation is written once, on
//! top of this module.
//!
//! A path is either in a plain mount, where it maps to a key, or below `/skills`, where the union
//! of the libraries determines what it is. Only this module and [`Walk`](super::walk::Walk)
//! distinguish the two:
//!
//! - [`S3Backend::find`] resolves a path, with as much of its content as the reader needs.
//! - [`S3Backend::open_path`] opens the file at a path.
//! - [`Walk`](super::walk::Walk) lists what is below a directory.
//! - [`Retries`] is the conflict retry loop. If a version is gone by the time it is read, the path
//!   is resolved again, bypassing the cache. A pinned session does not retry, because it would
//!   resolve to the same version.

use std::sync::Arc;
use std::time::Duration;

use super::S3Backend;
use super::file::{Node, Opened, Want, is_directory};
use super::union::Found;
use crate::error::{ErrorKind, Result};
use crate::mount::{Location, Mounts, ObjectKey};
use crate::path::{IntoPath, VirtualPath};
use crate::store::ByteRange;

/// How many times an operation is attempted if it conflicts with concurrent changes.
const ATTEMPTS: u32 = 3;

impl S3Backend {
    /// The freshness bound: how old a cached result for a path may be.
    pub(super) fn bound(&self, path: &VirtualPath) -> Duration {
        match path.segments().next() {
            Some(name) if Mounts::is_layered(name) => self.skills_bound(),
            _ if self.fresh => Duration::ZERO,
            _ => self.shared.settings.freshness.files,
        }
    }

    /// Resolves a path, with as much of its content as the reader needs.
    pub(super) async fn find(&self, path: &VirtualPath, want: Want) -> Result<Arc<Node>> {
        match self.mounts.resolve(path)? {
            Location::Root | Location::Mount(_) => Ok(Arc::new(Node::Directory)),
            // The mount itself always exists.
            Location::Layered if path.segments().count() == 1 => Ok(Arc::new(Node::Directory)),
            Location::Layered => {
                let union = self.union_around(path).await?;
                Ok(Arc::new(match union.find(path)? {
                    Found::File(real, found) => Node::File(self.version(&real, found, want).await?),
                    Found::Directory => Node::Directory,
                    Found::Nothing => Node::Nothing,
                }))
            }
            Location::Inside { key, layer } => self.find_plain(path, key, layer, want).await,
        }
    }

    /// The key of the object that holds, or would hold, the content of a file: for diagnosis, and for tools that
    /// work on the bucket itself.
    ///
    /// Costs nothing in `/workspace` and `/ticket`, where a key follows from the path alone. Below `/skills`, the
    /// libraries are looked up as in [`S3Backend::stat`]; the key of a published file is that of its blob.
    ///
    /// # Errors
    /// [`ErrorKind::IsDirectory`] for a mount, and [`ErrorKind::NotFound`] for a path below `/skills` that is not a
    /// file.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "embedded")]
    /// # async fn example() -> skillfs::Result<()> {
    /// # use skillfs::{Session, Settings, SkillFs, ThreadId, embedded::Embedded};
    /// # let store = Embedded::in_memory()?;
    /// # store.create_bucket("acme").await?;
    /// # let fs = SkillFs::embedded(&store, &Settings::new("acme")).await?;
    /// # let backend = fs.session(&Session::new().thread(ThreadId::parse("t-42")?));
    /// let key = backend.resolve("plan.md").await?;
    /// assert_eq!(key.as_str(), "threads/t-42/plan.md");
    /// # Ok(())
    /// # }
    /// # #[cfg(feature = "embedded")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub async fn resolve(&self, path: impl IntoPath) -> Result<ObjectKey> {
        let path = path.into_path()?;
        match self.mounts.resolve(&path)? {
            Location::Root | Location::Mount(_) => Err(is_directory(&path)),
            Location::Inside { key, .. } => Ok(key),
            Location::Layered => {
                let (key, _) = self.literal_skill_file(&path).await?;
                key.ok_or_else(|| Self::not_found(&path))
            }
        }
    }

    /// Opens the file at a path and requests some of its bytes.
    pub(super) async fn open_path(&self, path: &VirtualPath, range: ByteRange) -> Result<Opened> {
        match self.mounts.resolve(path)? {
            Location::Root | Location::Mount(_) => Err(is_directory(path)),
            Location::Layered => self.open_skill_file(path, range).await,
            Location::Inside { key, layer } => self.open_plain(&key, &layer.directory(path), range).await,
        }
    }

    /// Returns the object of the file with exactly this name, without trying `.md`, and the session
    /// to continue with.
    pub(super) async fn literal_file(&self, path: &VirtualPath) -> Result<(Option<ObjectKey>, Self)> {
        match self.mounts.resolve(path)? {
            Location::Root | Location::Mount(_) => Ok((None, self.clone())),
            Location::Layered => self.literal_skill_file(path).await,
            Location::Inside { key, .. } => Ok((self.head(path, &key).await?.map(|_| key), self.clone())),
        }
    }

    /// Returns whether a directory has exactly this name. At most one request.
    pub(super) async fn is_literal_directory(&self, path: &VirtualPath) -> Result<bool> {
        match self.mounts.resolve(path)? {
            Location::Root | Location::Mount(_) => Ok(true),
            Location::Layered => Ok(self.union_around(path).await?.is_directory(path.below_mount())),
            Location::Inside { layer, .. } => self.is_directory(&layer.directory(path)).await,
        }
    }
}

/// The conflict retry loop: repeats an operation that ended in a conflict, bypassing the cache.
pub(crate) struct Retries<'s> {
    session: &'s S3Backend,
    /// The session that bypasses the cache, after a conflict.
    fresh: Option<S3Backend>,
    left: u32,
}

impl<'s> Retries<'s> {
    pub(crate) fn new(session: &'s S3Backend) -> Self {
        let left = if session.pinned.is_some() { 0 } else { ATTEMPTS - 1 };
        Self { session, fresh: None, left }
    }

    /// The session to use for the next attempt.
    pub(crate) fn session(&self) -> &S3Backend {
        self.fresh.as_ref().unwrap_or(self.session)
    }

    /// Whether this is the last attempt, so that a conflict is final.
    pub(crate) fn is_last(&self) -> bool {
        self.left == 0
    }

    pub(crate) fn should_retry<T>(&mut self, result: &Result<T>) -> bool {
        let conflict = result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Conflict);
        if !conflict || self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.fresh = Some(self.session.fresh());
        true
    }
}
