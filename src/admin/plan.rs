//! Plans: what a change would do to a library. A publisher that loses a race plans again on the newer release, and
//! continues only if the changes are the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use tracing::instrument;

use super::compare::{
    Action, Adopted, Change, Compared, Digests, FileChange, LibraryBefore, PlannedSkill, adopted, compare,
    diff, paths,
};
use super::drift;
use super::library::{LibraryAdmin, LibraryKind, LibraryState, MAX_READS, run_concurrently};
use super::new::{DESCRIPTION, IntoKind, NewContent, NewFile, NewLibrary, PushOptions};
use crate::backend::{S3Backend, Union, find_skills};
use crate::error::{Error, ErrorKind, Hint, Result, shorten};
use crate::index::Index;
use crate::mount::Library;
use crate::path::VirtualPath;

/// What a change would do to a library.
///
/// [`LibraryAdmin::plan`] creates a plan, and [`LibraryAdmin::publish`] applies it.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// The library that the plan is for.
    #[serde(skip)]
    pub library: Library,
    /// The kind of the library before the change.
    pub kind: LibraryKind,
    /// Whether publishing creates a release. Otherwise it writes the keys of a plain library.
    pub makes_release: bool,
    /// What happens to each skill that the change concerns, sorted by path.
    pub skills: Vec<PlannedSkill>,
    /// Changes to files outside of skills, such as category descriptions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileChange>,
    /// What a plain library already contains, if the change publishes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adopted: Option<Adopted>,
    /// Skills whose pin changes: `Some(release)` pins a skill, `None` unpins it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pins: BTreeMap<String, Option<u64>>,
    #[serde(skip)]
    pub(super) change: LibraryChange,
    /// The state that the plan is based on.
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
    /// Creates a new release with the content of an earlier one.
    Rollback {
        /// The number of the release.
        release: u64,
    },
    /// Restores one skill from a release and pins it: pushes do not change it.
    Pin {
        /// The path of the skill below `/skills`.
        skill: String,
        /// The number of the release.
        release: u64,
    },
    /// Unpins a skill, so that pushes change it again.
    Unpin {
        /// The path of the skill below `/skills`.
        skill: String,
    },
    /// Deletes skills.
    Remove {
        /// The paths of the skills below `/skills`.
        skills: Vec<String>,
    },
    /// Publishes the drift of a published library. With [`IntoKind::Published`], publishes a plain library unchanged.
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
    /// The number of skills with this action.
    #[must_use]
    pub fn count(&self, action: Action) -> u64 {
        self.skills.iter().filter(|skill| skill.action == action).count() as u64
    }

    /// Whether publishing the plan would change anything.
    #[must_use]
    pub fn changes(&self) -> bool {
        !self.changes.is_empty() || !self.pins.is_empty() || self.adopted.is_some()
    }

    /// Whether another plan makes the same changes.
    pub(super) fn is_same_change(&self, other: &Self) -> bool {
        self.changes.len() == other.changes.len()
            && self.changes.iter().zip(&other.changes).all(|(one, other)| one.is_same(other))
            && self.pins == other.pins
            && self.makes_release == other.makes_release
            && self.adopted.is_none()
            && other.adopted.is_none()
    }
}

impl LibraryAdmin {
    /// Plans a change: compares it with the current state of the library. Changes nothing.
    ///
    /// Costs one request for a published library. For a plain one: one request, a listing, and one request for each
    /// file that exists with the same size. [`LibraryChange::Rollback`] and [`LibraryChange::Pin`] also read the record
    /// of the release. [`LibraryChange::Index`] costs the same as [`LibraryAdmin::drift`].
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidInput`] if a file name is not a valid path, or if the change requires a published library.
    /// - [`ErrorKind::NotFound`] if the release is not listed, or the skill does not exist.
    /// - [`ErrorKind::Corrupt`] if the index is damaged.
    /// - [`ErrorKind::Conflict`] if a plain library keeps changing during the comparison.
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
            // With `overwrite`, damaged content of a published library is replaced as well.
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
                return Err(Unplanned::MissingSkill { library, skill: shorten(missing) }.into());
            }
            let options = PushOptions { delete: true, ..options.clone() };
            compare(&before, &NewLibrary::only_deleting(skills), &options)?
        }
        // The entire plain library is adopted, so there is nothing to compare.
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

/// Why a change cannot be planned.
#[derive(Debug, thiserror::Error)]
enum Unplanned<'l> {
    #[error("{0} has releases, but its index is missing")]
    LostIndex(&'l Library),
    #[error("{0} is published")]
    Published(&'l Library),
    #[error("release {release} of {library} has no skill `{skill}`")]
    NoSkill { release: u64, library: &'l Library, skill: String },
    #[error("{library} has no skill `{skill}`")]
    MissingSkill { library: &'l Library, skill: String },
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
            Unplanned::NoSkill { .. } | Unplanned::MissingSkill { .. } | Unplanned::NotPinned { .. } => {
                (ErrorKind::NotFound, Hint::NameSkill)
            }
            Unplanned::NoRelease { .. } => (ErrorKind::NotFound, Hint::ListReleases),
        };
        Self::new(kind, why.to_string()).with_hint(hint)
    }
}

/// Reads the record of a release, which the index must list.
async fn recorded(access: &LibraryAdmin, index: &Index, release: u64) -> Result<Index> {
    let library = &access.library;
    let note = index.listed(release).ok_or(Unplanned::NoRelease { library, release })?;
    if note.id == index.id {
        return Ok(index.clone());
    }
    access.read_record(note).await
}

/// The files of a release whose paths have this prefix, with their blobs as content.
fn stored(index: &Index, prefix: &str) -> BTreeMap<String, NewFile> {
    let within = index.files.iter().filter(|(path, _)| path.starts_with(prefix));
    let new = within.map(|(path, file)| {
        let (size, sha256, content) = (file.size, file.sha256, NewContent::Blob(file.blob.clone()));
        (path.clone(), NewFile { name: path.clone(), size, sha256, content })
    });
    new.collect()
}

/// Reads the digests of stored files that have the same path and size as a new file.
async fn digests(backend: &S3Backend, tree: &Union, new: &NewLibrary) -> Result<Digests> {
    let candidates = paths(new).filter_map(|(path, file)| {
        let found = tree.file(&path)?;
        (found.meta.size == file.size).then_some((path, found))
    });
    // A blob that is damaged or missing.
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
    Ok(run_concurrently(MAX_READS, reads.collect()).await?.into_iter().collect())
}

/// The category that a file describes, if it is a category description.
pub(super) fn described_category(path: &str) -> Option<&str> {
    path.strip_suffix(DESCRIPTION)?.strip_suffix('/')
}
