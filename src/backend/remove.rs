//! `delete`: a file, or a directory recursively.

use serde::Serialize;
use tracing::instrument;

use super::S3Backend;
use super::file::is_directory;
use super::pieces::for_each;
use super::write::busy;
use crate::ambient::Instant;
use crate::entry::Depth;
use crate::error::{Error, ErrorKind, Hint, Result};
use crate::mount::{Target, WritableKey};
use crate::path::{IntoPath, VirtualPath, reads_as_dots};
use crate::store::{Listed, Lister};

/// How many keys that cannot be part of a batch request are deleted concurrently.
const SINGLE_DELETES: usize = 16;

/// The result of a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Deleted {
    /// The path that was deleted.
    pub path: VirtualPath,
    /// The number of deleted objects, including folder markers and keys that no path can name.
    pub objects: u64,
    /// The number of keys that were kept because no request can name them safely.
    pub left: u64,
}

impl S3Backend {
    /// Deletes a file.
    ///
    /// If the file is changed concurrently, the new version is deleted.
    ///
    /// Costs two requests, and one more on a server other than AWS.
    ///
    /// # Errors
    /// - [`ErrorKind::NotFound`] if the file does not exist, [`ErrorKind::IsDirectory`] if it is a
    ///   directory.
    /// - [`ErrorKind::ReadOnly`] if the session may not write there.
    /// - [`ErrorKind::Conflict`] if the response was lost and another file is there now, or if the
    ///   file keeps changing for longer than
    ///   [`Settings::conflict_patience`](crate::Settings::conflict_patience).
    pub async fn delete(&self, path: impl IntoPath) -> Result<Deleted> {
        self.delete_file(path.into_path()?).await
    }

    /// Deletes a file or a directory recursively. If both have the same name, deletes both.
    ///
    /// Deleting a mount deletes its contents. If the operation fails, some files may already be
    /// deleted; calling it again continues.
    ///
    /// Costs two requests per 1,000 objects, and one to look for a file.
    ///
    /// # Errors
    /// Same as [`S3Backend::delete`], except [`ErrorKind::IsDirectory`].
    pub async fn delete_recursive(&self, path: impl IntoPath) -> Result<Deleted> {
        self.delete_tree(path.into_path()?).await
    }

    #[instrument(name = "delete", skip_all, fields(?path))]
    async fn delete_file(&self, path: VirtualPath) -> Result<Deleted> {
        let target = self.mounts.target(&path)?;
        let Some(key) = &target.key else { return Err(needs_recursion(&path)) };
        let deadline = Instant::now() + self.shared.settings.conflict_patience;
        let mut rounds = 0;
        loop {
            let seen = self.store().head(key.key()).await.map_err(|e| e.during("delete", &path))?;
            let Some(meta) = seen else {
                // Another writer deleted the version that replaced ours.
                if rounds > 0 {
                    break;
                }
                let error = self.missing_file_error(&path).await;
                let directory = error.kind() == ErrorKind::IsDirectory;
                return Err(if directory { needs_recursion(&path) } else { error });
            };
            let gone = match &meta.etag {
                Some(_) => self.store().delete_version(key, &meta).await,
                None => self.store().delete(key).await.map(|()| true),
            };
            if gone.map_err(|e| e.during("delete", &path))? {
                self.invalidate_usage(&target.mount);
                break;
            }
            if Instant::now() >= deadline {
                return Err(busy(&path));
            }
            rounds += 1;
            self.store().pause(rounds).await;
        }
        Ok(Deleted { path, objects: 1, left: 0 })
    }

    #[instrument(name = "delete_recursive", skip_all, fields(?path))]
    async fn delete_tree(&self, path: VirtualPath) -> Result<Deleted> {
        let target = self.mounts.target(&path)?;
        let mut deleted = Deleted { path, objects: 0, left: 0 };
        let during = |error: Error| error.during("delete", &target.path);
        let own = match &target.key {
            Some(key) => self.store().head(key.key()).await.map_err(during)?,
            None => None,
        };
        let mut lister = Lister::new(target.directory.prefix(), Depth::All);
        let mut found = own.is_some() || target.key.is_none();
        while let Some(items) = lister.next(self.store()).await.map_err(during)? {
            found = true;
            self.delete_page(&target, items, &mut deleted).await?;
        }
        if !found {
            return Err(self.missing_file_error(&target.path).await);
        }
        // The file is deleted last, so that an interrupted call can be repeated.
        if let (Some(key), Some(_)) = (&target.key, own) {
            self.delete_keys(&target, std::slice::from_ref(key), &mut deleted).await?;
        }
        Ok(deleted)
    }

    async fn delete_page(&self, target: &Target, items: Vec<Listed>, deleted: &mut Deleted) -> Result<()> {
        let (mut batch, mut alone) = (Vec::new(), Vec::new());
        for item in items {
            let Listed::Object { key, .. } = item else { continue };
            match target.listed(&key) {
                Some(key) if fits_xml(key.as_str()) => batch.push(key),
                Some(key) if fits_url(key.as_str()) => alone.push(key),
                _ => deleted.left += 1,
            }
        }
        if !batch.is_empty() {
            self.delete_keys(target, &batch, deleted).await?;
        }
        let one = |key: WritableKey| async move {
            self.store().delete(&key).await.map_err(|e| e.during("delete", &target.path))
        };
        let done = for_each(alone, SINGLE_DELETES, one).await?;
        deleted.objects += done.len() as u64;
        self.invalidate_usage(&target.mount);
        Ok(())
    }

    async fn delete_keys(&self, target: &Target, keys: &[WritableKey], deleted: &mut Deleted) -> Result<()> {
        let failed = self.store().delete_all(keys).await.map_err(|e| e.during("delete", &target.path))?;
        if let Some((count, error)) = failed {
            return Err(error.during(&format!("delete {count} of the files in"), &target.path));
        }
        deleted.objects += keys.len() as u64;
        self.invalidate_usage(&target.mount);
        Ok(())
    }
}

/// Whether a key can be part of a batch request: XML cannot represent control characters.
fn fits_xml(key: &str) -> bool {
    !key.chars().any(|c| c.is_control() || c == '\u{fffe}' || c == '\u{ffff}')
}

/// Whether a key is safe in a URL. A proxy that normalizes `a/../b` or `a//b` would delete another
/// file.
fn fits_url(key: &str) -> bool {
    let name = key.strip_suffix('/').unwrap_or(key);
    name.split('/').all(|segment| !segment.is_empty() && !reads_as_dots(segment))
}

fn needs_recursion(path: &VirtualPath) -> Error {
    is_directory(path).with_hint(Hint::DeleteRecursively)
}
