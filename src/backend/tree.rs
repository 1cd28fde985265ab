//! One view of a tree: every operation is written once, over what this file offers.
//!
//! A path is in a plain mount, where it is a key, or below `/skills`, where the union of the libraries tells what it is.
//! That difference is decided here, and is known to nobody else:
//!
//! - [`S3Backend::find`]: what a path means, with what is wanted of its content;
//! - [`S3Backend::open_path`]: some bytes of the file that a path means;
//! - [`Walk`](super::walk::Walk): what is below a directory;
//! - [`Retries`]: the conflict loop. What is read at a version that is gone meanwhile is found anew, past the cache;
//!   except in a pinned session, which would only find the same again.

use std::sync::Arc;
use std::time::Duration;

use super::S3Backend;
use super::file::{Node, Opened, Want, is_directory};
use super::union::Found;
use crate::error::{ErrorKind, Result};
use crate::mount::{Location, Mounts, ObjectKey};
use crate::path::{IntoPath, VirtualPath};
use crate::store::ByteRange;

/// How often something is read again when it changes meanwhile.
const ATTEMPTS: u32 = 3;

impl S3Backend {
    /// How old an answer about a path may be.
    pub(super) fn bound(&self, path: &VirtualPath) -> Duration {
        match path.segments().next() {
            Some(name) if Mounts::is_layered(name) => self.skills_bound(),
            _ if self.fresh => Duration::ZERO,
            _ => self.shared.settings.freshness.files,
        }
    }

    /// What a path means, with what is wanted of its content.
    pub(super) async fn find(&self, path: &VirtualPath, want: Want) -> Result<Arc<Node>> {
        match self.mounts.resolve(path)? {
            Location::Root | Location::Mount(_) => Ok(Arc::new(Node::Directory)),
            // The mount itself is always there.
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

    /// Some bytes of the file that a path means.
    pub(super) async fn open_path(&self, path: &VirtualPath, range: ByteRange) -> Result<Opened> {
        match self.mounts.resolve(path)? {
            Location::Root | Location::Mount(_) => Err(is_directory(path)),
            Location::Layered => self.open_skill_file(path, range).await,
            Location::Inside { key, layer } => self.open_plain(&key, &layer.directory(path), range).await,
        }
    }

    /// The object of the file that has this very name: nothing is added to it. And the session in which that was so.
    pub(super) async fn literal_file(&self, path: &VirtualPath) -> Result<(Option<ObjectKey>, Self)> {
        match self.mounts.resolve(path)? {
            Location::Root | Location::Mount(_) => Ok((None, self.clone())),
            Location::Layered => self.literal_skill_file(path).await,
            Location::Inside { key, .. } => Ok((self.head(path, &key).await?.map(|_| key), self.clone())),
        }
    }

    /// Whether a directory has this very name. One request at most.
    pub(super) async fn is_literal_directory(&self, path: &VirtualPath) -> Result<bool> {
        match self.mounts.resolve(path)? {
            Location::Root | Location::Mount(_) => Ok(true),
            Location::Layered => Ok(self.union_around(path).await?.is_directory(path.below_mount())),
            Location::Inside { layer, .. } => self.is_directory(&layer.directory(path)).await,
        }
    }
}

/// The conflict loop: an operation whose result was a conflict is tried again, past the cache.
pub(crate) struct Retries<'s> {
    session: &'s S3Backend,
    /// The same past the cache, after a conflict.
    fresh: Option<S3Backend>,
    left: u32,
}

impl<'s> Retries<'s> {
    pub(crate) fn new(session: &'s S3Backend) -> Self {
        let left = if session.pinned.is_some() { 0 } else { ATTEMPTS - 1 };
        Self { session, fresh: None, left }
    }

    /// What to try it with.
    pub(crate) fn session(&self) -> &S3Backend {
        self.fresh.as_ref().unwrap_or(self.session)
    }

    /// Whether a conflict would be final.
    pub(crate) fn is_last(&self) -> bool {
        self.left == 0
    }

    pub(crate) fn again<T>(&mut self, result: &Result<T>) -> bool {
        let conflict = result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Conflict);
        if !conflict || self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.fresh = Some(self.session.fresh());
        true
    }
}
