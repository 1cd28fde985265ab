//! What a change would do to a library. A publisher that loses a race plans again on the newer release, and goes on
//! only if the changes are the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use tracing::instrument;

use super::compare::{
    Action, Adopted, Change, Compared, Digests, FileChange, LibraryBefore, PlannedSkill, adopted, compare,
    diff, paths,
};
use super::drift;
use super::library::{LibraryAdmin, LibraryKind, LibraryState, READS_AT_ONCE, at_once};
use super::new::{DESCRIPTION, IntoKind, NewContent, NewFile, NewLibrary, PushOptions};
use crate::backend::{S3Backend, Union, find_skills};
use crate::error::{Error, ErrorKind, Hint, Result, shorten};
use crate::index::Index;
use crate::mount::Library;
use crate::path::VirtualPath;

/// What a change would do.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// The library.
    #[serde(skip)]
    pub library: Library,
    /// What it is now.
    pub kind: LibraryKind,
    /// Whether this makes a release; otherwise the keys of a plain library are written.
    pub makes_release: bool,
    /// Its skills, sorted by path.
    pub skills: Vec<PlannedSkill>,
    /// Changes of files outside skills, such as descriptions of categories.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileChange>,
    /// For a plain library that is published: what it contains already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adopted: Option<Adopted>,
    /// Skills that are pinned, with their release, or unpinned.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pins: BTreeMap<String, Option<u64>>,
    #[serde(skip)]
    pub(super) change: LibraryChange,
    /// What it was made on.
    #[serde(skip)]
    pub(super) base: LibraryState,
    #[serde(skip)]
    pub(super) changes: Vec<Change>,
    #[serde(skip)]
    pub(super) options: PushOptions,
}

/// A change to a library.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum LibraryChange {
    /// Publishes skills.
    Push(Arc<NewLibrary>),
    /// Restores the library as it was at a release, as a new release.
    Rollback {
        /// The number of the release.
        release: u64,
    },
    /// Restores one skill as it was at a release, and keeps it that way: pushes leave it alone.
    Pin {
        /// Its path below `/skills`.
        skill: String,
        /// The number of the release.
        release: u64,
    },
    /// Lets pushes change a pinned skill again.
    Unpin {
        /// Its path below `/skills`.
        skill: String,
    },
    /// Deletes skills.
    Remove {
        /// Their paths below `/skills`.
        skills: Vec<String>,
    },
    /// Publishes what others have changed in the keys of a published library; with [`IntoKind::Published`], a plain
    /// library as it is.
    Index,
}

impl From<NewLibrary> for LibraryChange {
    fn from(new: NewLibrary) -> Self {
        Self::Push(Arc::new(new))
    }
}

impl From<&NewLibrary> for LibraryChange {
    fn from(new: &NewLibrary) -> Self {
        Self::Push(Arc::new(new.clone()))
    }
}

impl From<Arc<NewLibrary>> for LibraryChange {
    fn from(new: Arc<NewLibrary>) -> Self {
        Self::Push(new)
    }
}

impl Plan {
    /// How many skills this happens to.
    #[must_use]
    pub fn count(&self, action: Action) -> u64 {
        self.skills.iter().filter(|skill| skill.action == action).count() as u64
    }

    /// Whether anything would change.
    #[must_use]
    pub fn changes(&self) -> bool {
        !self.changes.is_empty() || !self.pins.is_empty() || self.adopted.is_some()
    }

    /// Whether another plan for the same change changes the same.
    pub(super) fn is_same_change(&self, other: &Self) -> bool {
        self.changes.len() == other.changes.len()
            && self.changes.iter().zip(&other.changes).all(|(one, other)| one.is(other))
            && self.pins == other.pins
            && self.makes_release == other.makes_release
            && self.adopted.is_none()
            && other.adopted.is_none()
    }
}

impl LibraryAdmin {
    /// Compares the library with a change to it. Changes nothing.
    ///
    /// Costs one request for a published library. For a plain one: one request, a listing, and one request for each
    /// file of the same size. [`LibraryChange::Rollback`] and [`LibraryChange::Pin`] read the record of the release,
    /// too; [`LibraryChange::Index`] costs what [`LibraryAdmin::drift`] does.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a name that no path can have, and for a change that needs a published library;
    /// [`ErrorKind::NotFound`] when a release is not listed, or has no such skill; [`ErrorKind::Corrupt`] when the
    /// index is damaged; [`ErrorKind::Conflict`] when a plain library keeps changing.
    #[instrument(name = "plan", skip_all, fields(library = %self.library))]
    pub async fn plan(&self, change: impl Into<LibraryChange>, options: &PushOptions) -> Result<Plan> {
        self.plan_change(change.into(), options).await
    }

    pub(super) async fn plan_change(&self, change: LibraryChange, options: &PushOptions) -> Result<Plan> {
        const ROUNDS: u32 = 5;
        let again = !matches!(change, LibraryChange::Index);
        let mut round = 1;
        loop {
            match plan_once(self, &change, options).await {
                // A plain library changed while it was compared.
                Err(error) if error.kind() == ErrorKind::Conflict && again && round < ROUNDS => round += 1,
                done => return done,
            }
        }
    }
}

async fn plan_once(access: &LibraryAdmin, change: &LibraryChange, options: &PushOptions) -> Result<Plan> {
    let LibraryAdmin { backend, library, .. } = access;
    let state = access.load().await?;
    if state.index.is_none() && backend.store().lists_any(&library.releases()).await? {
        return Err(Unplanned::LostIndex(library).into());
    }
    let release = match (state.kind, options.into) {
        (LibraryKind::Published, IntoKind::Plain) => {
            return Err(Unplanned::Published(library).into());
        }
        (_, IntoKind::Plain) | (LibraryKind::Plain, IntoKind::Same) => false,
        (LibraryKind::Published | LibraryKind::Empty, _) | (_, IntoKind::Published) => true,
    };
    let pinned = state.index().map(|index| index.pins.clone()).unwrap_or_default();
    let mut before = LibraryBefore { tree: &state.tree, pins: pinned, digests: Digests::new() };
    let mut pins = BTreeMap::new();
    let found = match change {
        LibraryChange::Push(new) => {
            for (path, _) in paths(new) {
                library.file(&path)?;
            }
            // Where a published library is overwritten, damaged content is replaced too.
            if state.kind == LibraryKind::Plain || options.overwrite {
                before.digests = digests(backend, &state.tree, new).await?;
            }
            compare(&before, new, options)?
        }
        LibraryChange::Rollback { release: number } => {
            let index = state.published(library)?;
            let record = recorded(access, index, *number).await?;
            diff(&before, &stored(&record, ""))
        }
        LibraryChange::Pin { skill, release } => {
            let skill = skill.trim_matches('/');
            let index = state.published(library)?;
            let record = recorded(access, index, *release).await?;
            if !find_skills(record.files.keys().map(String::as_str)).contains_key(skill) {
                return Err(Unplanned::NoSkill { release: *release, library, skill: shorten(skill) }.into());
            }
            if index.pins.get(skill) != Some(release) {
                pins.insert(skill.to_owned(), Some(*release));
            }
            let within = format!("{skill}/");
            let mut after = stored(index, "");
            after.retain(|path, _| !path.starts_with(&within));
            after.extend(stored(&record, &within));
            before.pins.remove(skill);
            diff(&before, &after)
        }
        LibraryChange::Unpin { skill } => {
            let skill = skill.trim_matches('/');
            if !state.published(library)?.pins.contains_key(skill) {
                return Err(Unplanned::NotPinned { library, skill: shorten(skill) }.into());
            }
            pins.insert(skill.to_owned(), None);
            Compared::default()
        }
        LibraryChange::Remove { skills } => {
            let skills: Vec<_> = skills.iter().map(|skill| skill.trim_matches('/').to_owned()).collect();
            if let Some(missing) = skills.iter().find(|skill| state.tree.skill(skill).is_none()) {
                return Err(Unplanned::NotThere { library, skill: shorten(missing) }.into());
            }
            let options = PushOptions { delete: true, ..options.clone() };
            compare(&before, &NewLibrary::only_deleting(skills), &options)?
        }
        // A plain library is published as it is.
        LibraryChange::Index if state.kind == LibraryKind::Plain && release => Compared::default(),
        LibraryChange::Index => {
            let index = state.published(library)?;
            let mut after = stored(index, "");
            for (path, file) in drift::to_publish(access, index).await? {
                match file {
                    Some(file) => after.insert(path, file),
                    None => after.remove(&path),
                };
            }
            diff(&before, &after)
        }
    };
    let adopted = (release && state.kind == LibraryKind::Plain).then(|| adopted(&state.tree, &found));
    Ok(Plan {
        library: library.clone(),
        kind: state.kind,
        makes_release: release,
        skills: found.skills,
        files: found.files,
        adopted,
        pins,
        change: change.clone(),
        base: state,
        changes: found.changes,
        options: options.clone(),
    })
}

/// Why there is nothing to plan.
#[derive(Debug, thiserror::Error)]
enum Unplanned<'l> {
    #[error("{0} has releases, but its index is missing")]
    LostIndex(&'l Library),
    #[error("{0} is published")]
    Published(&'l Library),
    #[error("release {release} of {library} has no skill `{skill}`")]
    NoSkill { release: u64, library: &'l Library, skill: String },
    #[error("{library} has no skill `{skill}`")]
    NotThere { library: &'l Library, skill: String },
    #[error("{library} has no pinned skill `{skill}`")]
    NotPinned { library: &'l Library, skill: String },
    #[error("{library} has no release {release}, or no longer lists it")]
    NoRelease { library: &'l Library, release: u64 },
}

impl From<Unplanned<'_>> for Error {
    fn from(why: Unplanned<'_>) -> Self {
        let (kind, hint) = match why {
            Unplanned::LostIndex(_) => (ErrorKind::Corrupt, Hint::RestoreRelease { intact: Vec::new() }),
            Unplanned::Published(_) => (ErrorKind::InvalidInput, Hint::UnpublishLibrary),
            Unplanned::NoSkill { .. } | Unplanned::NotThere { .. } | Unplanned::NotPinned { .. } => {
                (ErrorKind::NotFound, Hint::NameSkill)
            }
            Unplanned::NoRelease { .. } => (ErrorKind::NotFound, Hint::ListReleases),
        };
        Self::new(kind, why.to_string()).with_hint(hint)
    }
}

/// The record of a release that an index lists.
async fn recorded(access: &LibraryAdmin, index: &Index, release: u64) -> Result<Index> {
    let library = &access.library;
    let note = index.listed(release).ok_or(Unplanned::NoRelease { library, release })?;
    if note.id == index.id {
        return Ok(index.clone());
    }
    access.read_record(note).await
}

/// The files of a release whose paths start so, from their blobs.
fn stored(index: &Index, start: &str) -> BTreeMap<String, NewFile> {
    let within = index.files.iter().filter(|(path, _)| path.starts_with(start));
    let new = within.map(|(path, file)| {
        let (size, sha256, content) = (file.size, file.sha256, NewContent::Blob(file.blob.clone()));
        (path.clone(), NewFile { name: path.clone(), size, sha256, content })
    });
    new.collect()
}

/// The digests of files as they are stored, where they could be the same as what is to be published.
async fn digests(backend: &S3Backend, tree: &Union, new: &NewLibrary) -> Result<Digests> {
    let candidates = paths(new).filter_map(|(path, file)| {
        let found = tree.file(&path)?;
        (found.meta.size == file.size).then_some((path, found))
    });
    // A blob that is damaged, or not there.
    let is_lost = |error: &Error| matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unavailable);
    let reads = candidates.map(|(path, found)| async move {
        let location = VirtualPath::in_skills(&path)?;
        let digest = match backend.digest_listed(&location, found, 0).await {
            Ok((sha256, _)) => Some(sha256),
            Err(error) if found.blob.is_some() && is_lost(&error) => None,
            Err(error) => return Err(error),
        };
        Ok((path, digest))
    });
    Ok(at_once(READS_AT_ONCE, reads.collect()).await?.into_iter().collect())
}

/// Whether a path is the description of a category.
pub(super) fn described_category(path: &str) -> Option<&str> {
    path.strip_suffix(DESCRIPTION)?.strip_suffix('/')
}
