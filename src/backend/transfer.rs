//! `copy` and `move`, of files and of directories.
//!
//! The server does the copying; nothing is downloaded. A move copies everything before it deletes
//! anything, and deletes only the versions that it copied, so each file is complete at its source
//! or at its target at all times.

use std::collections::HashSet;

use serde::Serialize;
use tracing::instrument;

use super::S3Backend;
use super::file::{is_directory, no_etag, not_a_directory};
use super::pieces::for_each;
use super::walk::{Item, Walk};
use super::write::already_exists;
use crate::entry::Depth;
use crate::error::{Error, ErrorKind, Hint, Result};
use crate::mount::{ObjectKey, Target, WritableKey};
use crate::path::{IntoPath, VirtualPath};
use crate::store::{Condition, History, Listed, Lister, Meta, ObjectProperties, Put};

/// How many files are copied or deleted concurrently.
const AT_ONCE: usize = 32;

/// How many times a copy is attempted if its source changes concurrently.
const ATTEMPTS: u32 = 5;

/// The result of a copy or a move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Transferred {
    /// The source.
    pub from: VirtualPath,
    /// The target.
    pub to: VirtualPath,
    /// The number of files.
    pub files: u64,
    /// The total size, in bytes.
    pub bytes: u64,
    /// The number of keys in the source that no path can name. They are neither copied nor deleted.
    pub hidden: u64,
}

/// Whether a copy or a move replaces existing files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Overwrite {
    /// Replace existing files.
    #[default]
    Yes,
    /// Fail with [`ErrorKind::AlreadyExists`] before anything is copied.
    No,
}

/// A file to copy.
struct CopyItem {
    path: VirtualPath,
    key: ObjectKey,
    to: VirtualPath,
    target: WritableKey,
    /// Whether it is a folder marker: copied and deleted, but not counted as a file.
    marker: bool,
}

/// A copied file, with the version that was copied.
struct Copied {
    item: CopyItem,
    version: Meta,
}

/// The files to copy, with their targets.
struct CopySource {
    /// Whether the source is a single file and not a directory.
    is_file: bool,
    items: Vec<CopyItem>,
    hidden: u64,
}

impl S3Backend {
    /// Copies a file, or a directory recursively.
    ///
    /// Both paths are taken literally: if the target is a directory, a file is not copied into it.
    /// Existing files are replaced; other files in a target directory are kept. The source may be
    /// in any mount, including `/skills`.
    ///
    /// Costs two requests per file, three to check source and target, and a listing of a source
    /// directory.
    ///
    /// # Errors
    /// - [`ErrorKind::NotFound`] if the source does not exist.
    /// - [`ErrorKind::IsDirectory`] when copying a file onto a directory,
    ///   [`ErrorKind::NotDirectory`] when copying a directory onto a file.
    /// - [`ErrorKind::InvalidInput`] if one path is inside the other.
    /// - [`ErrorKind::ReadOnly`] if the session may not write to the target.
    /// - [`ErrorKind::QuotaExceeded`]; [`ErrorKind::Conflict`] if the source keeps changing.
    pub async fn copy(&self, from: impl IntoPath, to: impl IntoPath) -> Result<Transferred> {
        self.copy_path(from.into_path()?, to.into_path()?, Overwrite::Yes).await
    }

    /// Copies like [`S3Backend::copy`], with a choice of what happens to existing files.
    ///
    /// # Errors
    /// Same as [`S3Backend::copy`], and [`ErrorKind::AlreadyExists`].
    pub async fn copy_with(
        &self,
        from: impl IntoPath,
        to: impl IntoPath,
        overwrite: Overwrite,
    ) -> Result<Transferred> {
        self.copy_path(from.into_path()?, to.into_path()?, overwrite).await
    }

    /// Moves a file, or a directory recursively.
    ///
    /// Everything is copied before anything is deleted, and only what was copied is deleted, so
    /// nothing is lost if the move fails. An interrupted move leaves copies behind; calling it
    /// again completes it.
    ///
    /// Costs the same as [`S3Backend::copy`], and one request per file to delete it. On a server
    /// other than AWS, one more.
    ///
    /// # Errors
    /// - Same as [`S3Backend::copy`]; [`ErrorKind::ReadOnly`] applies to the source as well.
    /// - [`ErrorKind::Conflict`] if a file was changed while it was being moved. That file also
    ///   stays at its source.
    pub async fn move_to(&self, from: impl IntoPath, to: impl IntoPath) -> Result<Transferred> {
        self.move_path(from.into_path()?, to.into_path()?, Overwrite::Yes).await
    }

    /// Moves like [`S3Backend::move_to`], with a choice of what happens to existing files.
    ///
    /// # Errors
    /// Same as [`S3Backend::move_to`], and [`ErrorKind::AlreadyExists`].
    pub async fn move_with(
        &self,
        from: impl IntoPath,
        to: impl IntoPath,
        overwrite: Overwrite,
    ) -> Result<Transferred> {
        self.move_path(from.into_path()?, to.into_path()?, overwrite).await
    }

    #[instrument(name = "copy", skip_all, fields(?from, ?to))]
    async fn copy_path(
        &self,
        from: VirtualPath,
        to: VirtualPath,
        overwrite: Overwrite,
    ) -> Result<Transferred> {
        let target = self.mounts.target(&to)?;
        self.mounts.resolve(&from)?;
        check_disjoint(&from, &to)?;
        let (done, _) = self.copy_all(&from, &target, overwrite, true).await?;
        Ok(done)
    }

    #[instrument(name = "move", skip_all, fields(?from, ?to))]
    async fn move_path(
        &self,
        from: VirtualPath,
        to: VirtualPath,
        overwrite: Overwrite,
    ) -> Result<Transferred> {
        // Check both paths before sending anything.
        let source = self.mounts.target(&from)?;
        let target = self.mounts.target(&to)?;
        check_disjoint(&from, &to)?;
        // Renaming within a mount does not increase its usage.
        let grows = source.mount != target.mount;
        let (done, copied) = self.copy_all(&from, &target, overwrite, grows).await?;
        let total = copied.len();
        let delete = |copied| self.delete_source(&source, copied);
        let changed = for_each(copied, AT_ONCE, delete).await;
        self.invalidate_usage(&source.mount);
        let changed: Vec<VirtualPath> = changed?.into_iter().flatten().collect();
        match changed.iter().min() {
            None => Ok(done),
            Some(first) => Err(Untransferred::Changed { first, count: changed.len(), total, to: &to }.into()),
        }
    }

    /// Deletes a file that was moved. Returns its path if it has changed since and was kept.
    async fn delete_source(&self, source: &Target, copied: Copied) -> Result<Option<VirtualPath>> {
        let CopyItem { path, key, .. } = copied.item;
        // The same key, as one that may be written.
        let own = source.key.clone().filter(|own| own.as_str() == key.as_str());
        let key = own.or_else(|| source.listed(key.as_str())).ok_or_else(|| Self::not_found(&path))?;
        let gone = self.store().delete_version(&key, &copied.version).await;
        let gone = gone.map_err(|e| e.during("delete the source of the move", &path))?;
        Ok((!gone).then_some(path))
    }

    async fn copy_all(
        &self,
        from: &VirtualPath,
        target: &Target,
        overwrite: Overwrite,
        grows: bool,
    ) -> Result<(Transferred, Vec<Copied>)> {
        let (source, existing) = tokio::join!(self.source(from, target), self.inspect_target(target));
        let (CopySource { is_file, items, hidden }, existing) = (source?, existing?);
        let name = from.name().unwrap_or_default();
        if is_file && existing.directory && !existing.file {
            return Err(is_directory(&target.path)
                .with_hint(format!("name the file in it: `{}/{name}`", target.path)));
        }
        if !is_file && existing.file && !existing.directory {
            return Err(
                not_a_directory(&target.path).with_hint("choose another target, or delete the file first")
            );
        }
        // A file could be overwritten before it is copied.
        if !is_file && is_inside(from, &target.path) {
            return Err(Untransferred::InsideTarget { from, to: &target.path, name }.into());
        }
        if overwrite == Overwrite::No {
            self.check_no_overwrite(target, &items, existing).await?;
        }
        let copied = for_each(items, AT_ONCE, |item| self.copy_one(target, item, overwrite, grows)).await?;
        let files = copied.iter().filter(|copied| !copied.item.marker);
        let done = Transferred {
            from: from.clone(),
            to: target.path.clone(),
            files: files.clone().count() as u64,
            bytes: files.fold(0, |sum, copied| sum.saturating_add(copied.version.size)),
            hidden,
        };
        Ok((done, copied))
    }

    /// Copies the current version of one file.
    async fn copy_one(
        &self,
        target: &Target,
        item: CopyItem,
        overwrite: Overwrite,
        grows: bool,
    ) -> Result<Copied> {
        let id = self.store().write_id()?;
        let _guard = match grows {
            true => self.quota_lock(&item.target).await,
            false => None,
        };
        let condition = match overwrite {
            Overwrite::No if self.conditions(target).await? => Condition::Absent,
            Overwrite::Yes | Overwrite::No => Condition::Always,
        };
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                // The source changed between the request for its metadata and the copy.
                self.store().pause(attempt).await;
            }
            let during = |e: Error| e.during("copy", &item.path);
            let seen = self.store().look(&item.key).await.map_err(during)?;
            let Some(seen) = seen else { return Err(Self::not_found(&item.path)) };
            if seen.meta.etag.is_none() {
                return Err(no_etag(&item.path));
            }
            // An existing folder needs no marker, and an object with content must not be replaced
            // by one.
            if item.marker && self.store().head(item.target.key()).await.map_err(during)?.is_some() {
                return Ok(Copied { item, version: seen.meta });
            }
            let reservation = match grows {
                true => {
                    let old = self.replaced(&item.to, &item.target).await?;
                    Some(self.reserve(target, &item.to, seen.meta.size, old).await?)
                }
                false => None,
            };
            // Keep the metadata, but start a new write history.
            let properties = ObjectProperties { history: History::first(&id), ..seen.properties.clone() };
            let pieces = self.copy_parts(&item.key, &seen).map_err(during)?;
            let put = self.put_pieces(&item.target, &id, condition.clone(), &properties, pieces).await;
            if let Put::Done { .. } = put.map_err(during)? {
                if let Some(reservation) = reservation {
                    reservation.commit();
                }
                return Ok(Copied { item, version: seen.meta });
            }
            if condition == Condition::Absent
                && !item.marker
                && self.store().head(item.target.key()).await.map_err(during)?.is_some()
            {
                return Err(already_exists(&item.to));
            }
        }
        Err(Untransferred::KeepsChanging(&item.path).into())
    }

    /// Determines what the source is, and what to copy where.
    async fn source(&self, from: &VirtualPath, target: &Target) -> Result<CopySource> {
        let Some(place) = self.place(from)? else {
            return Err(Untransferred::Root(from).into());
        };
        // Copy the current state, not a cached one.
        let (file, now) = self.fresh().literal_file(from).await.map_err(|e| e.during("copy", from))?;
        if let Some(key) = file {
            // Without a key, the target is a mount. The caller rejects it as a directory.
            let (path, to) = (from.clone(), target.path.clone());
            let item = target.key.clone().map(|target| CopyItem { path, key, to, target, marker: false });
            return Ok(CopySource { is_file: true, items: item.into_iter().collect(), hidden: 0 });
        }
        let (mut items, mut hidden, mut marked) = (Vec::new(), 0, HashSet::new());
        let mut walk = Walk::new(now.clone(), Depth::All, [place].into());
        loop {
            let page = match walk.next().await {
                Ok(Some(page)) => page,
                Ok(None) => break,
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    return Err(now.missing_file_error(from).await);
                }
                Err(error) => return Err(error),
            };
            hidden += page.hidden;
            for item in page.items {
                match item {
                    Item::Directory(_) => {}
                    Item::File(file) => {
                        let relative = &file.path.as_str()[from.as_str().len()..].trim_start_matches('/');
                        let (to, target) = target.below(relative)?;
                        let key = now.candidate_file(&file)?.key;
                        items.push(CopyItem { path: file.path, key, to, target, marker: false });
                    }
                    Item::Marker(key, below) => match target.marker(&below) {
                        // Several libraries may have the same marker.
                        Some(_) if !marked.insert(below) => {}
                        Some(target_key) => {
                            let (path, to) = (from.clone(), target.path.clone());
                            items.push(CopyItem { path, key, to, target: target_key, marker: true });
                        }
                        None => hidden += 1,
                    },
                }
            }
        }
        if !walk.found_any && !self.mounts().any(|mount| mount.path() == from) {
            return Err(now.missing_file_error(from).await);
        }
        Ok(CopySource { is_file: false, items, hidden })
    }

    /// Checks what already exists at the target.
    async fn inspect_target(&self, target: &Target) -> Result<CopyTarget> {
        let file = async {
            let Some(key) = &target.key else { return Ok(false) };
            let seen = self.store().head(key.key()).await;
            Ok::<_, Error>(seen.map_err(|e| e.during("inspect", &target.path))?.is_some())
        };
        let (file, directory) = tokio::join!(file, self.is_directory(&target.directory));
        Ok(CopyTarget { file: file?, directory: directory? || target.key.is_none() })
    }

    async fn check_no_overwrite(
        &self,
        target: &Target,
        items: &[CopyItem],
        existing: CopyTarget,
    ) -> Result<()> {
        if let [item] = items
            && Some(&item.target) == target.key.as_ref()
        {
            return if existing.file { Err(already_exists(&item.to)) } else { Ok(()) };
        }
        if !existing.directory {
            return Ok(());
        }
        let listed = Lister::new(target.directory.prefix(), Depth::All).all(self.store()).await;
        let listed = listed.map_err(|e| e.during("list", &target.path))?;
        let taken: HashSet<_> = listed.iter().map(Listed::key).collect();
        match items.iter().find(|item| !item.marker && taken.contains(item.target.as_str())) {
            Some(item) => Err(already_exists(&item.to)),
            None => Ok(()),
        }
    }
}

/// What exists at the target.
#[derive(Debug, Clone, Copy)]
struct CopyTarget {
    file: bool,
    directory: bool,
}

/// Checks that the target is neither the source nor inside it.
fn check_disjoint(from: &VirtualPath, to: &VirtualPath) -> Result<()> {
    if from == to {
        return Err(Untransferred::Same(from).into());
    }
    match is_inside(to, from) {
        true => Err(Untransferred::TargetInside { from, to }.into()),
        false => Ok(()),
    }
}

/// Why something was not copied or moved.
#[derive(Debug, thiserror::Error)]
enum Untransferred<'p> {
    #[error("`{0}` and its target are the same")]
    Same(&'p VirtualPath),
    #[error("`{to}` is inside `{from}`")]
    TargetInside { from: &'p VirtualPath, to: &'p VirtualPath },
    #[error("`{from}` is inside its target `{to}`")]
    InsideTarget { from: &'p VirtualPath, to: &'p VirtualPath, name: &'p str },
    #[error("`/` cannot be copied")]
    Root(&'p VirtualPath),
    #[error("`{0}` keeps changing while it is copied")]
    KeepsChanging(&'p VirtualPath),
    #[error(
        "{count} of {total} files were changed during the move, including `{first}`: they were not deleted"
    )]
    Changed { first: &'p VirtualPath, count: usize, total: usize, to: &'p VirtualPath },
}

impl From<Untransferred<'_>> for Error {
    fn from(why: Untransferred<'_>) -> Self {
        use ErrorKind::{Conflict, InvalidInput};
        let (kind, path, hint) = match why {
            Untransferred::Same(from) | Untransferred::TargetInside { from, .. } => {
                (InvalidInput, from, Hint::plain("choose a target outside the source"))
            }
            Untransferred::InsideTarget { from, to, name } => {
                (InvalidInput, from, format!("name it in the target: `{to}/{name}`").into())
            }
            Untransferred::Root(from) => (InvalidInput, from, "copy a mount, or a path in it".into()),
            Untransferred::KeepsChanging(from) => {
                (Conflict, from, "try again when it no longer changes".into())
            }
            Untransferred::Changed { first, to, .. } => {
                (Conflict, first, format!("`{to}` contains their earlier versions; move them again").into())
            }
        };
        let error = Self::new(kind, why.to_string()).at(path).with_hint(hint);
        // A move that was done in part would find its target occupied.
        if matches!(why, Untransferred::Changed { .. }) { error.lasting() } else { error }
    }
}

fn is_inside(inner: &VirtualPath, outer: &VirtualPath) -> bool {
    outer.is_root() || inner.as_str().strip_prefix(outer.as_str()).is_some_and(|rest| rest.starts_with('/'))
}
