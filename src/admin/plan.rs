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
use super::library::{LibraryAccess, LibraryKind, LibraryState, READS_AT_ONCE, at_once};
use super::new::{DESCRIPTION, IntoKind, NewContent, NewFile, NewLibrary, PushOptions};
use crate::backend::{S3Backend, SkillFs, Union, find_skills};
use crate::error::{Error, ErrorKind, Result, shorten};
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
    pub(super) task: Task,
    /// What it was made on.
    #[serde(skip)]
    pub(super) base: LibraryState,
    #[serde(skip)]
    pub(super) changes: Vec<Change>,
    #[serde(skip)]
    pub(super) options: PushOptions,
}

/// What was asked for. Planned again when another release came first.
#[derive(Debug, Clone)]
pub(super) enum Task {
    Push(Arc<NewLibrary>),
    /// The library as it was at a release.
    Rollback(u64),
    /// A skill as it was at a release, and pinned to it.
    Pin {
        skill: String,
        release: u64,
    },
    Unpin(String),
    /// What others have changed in the mirror; of a plain library, nothing.
    Index,
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

    /// Whether another plan for the same task changes the same.
    pub(super) fn is_same_change(&self, other: &Self) -> bool {
        self.changes.len() == other.changes.len()
            && self.changes.iter().zip(&other.changes).all(|(one, other)| one.is(other))
            && self.pins == other.pins
            && self.makes_release == other.makes_release
            && self.adopted.is_none()
            && other.adopted.is_none()
    }
}

impl SkillFs {
    /// Compares a library with what is to be published. Changes nothing.
    ///
    /// Costs one request for a published library. For a plain one: one request, a listing, and one request for each
    /// file of the same size.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a name that no path can have; [`ErrorKind::Corrupt`] when the index is
    /// damaged; [`ErrorKind::Conflict`] when a plain library keeps changing.
    #[instrument(name = "plan", skip_all, fields(%library))]
    pub async fn plan(&self, library: &Library, new: &NewLibrary, options: &PushOptions) -> Result<Plan> {
        self.plan_task(library, Task::Push(Arc::new(new.clone())), options).await
    }

    /// What it takes to have a published library as it was at a release: a plan, to be published as a new release.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when the release is not listed; those of [`SkillFs::plan`].
    pub async fn plan_rollback(
        &self,
        library: &Library,
        release: u64,
        options: &PushOptions,
    ) -> Result<Plan> {
        self.plan_task(library, Task::Rollback(release), options).await
    }

    /// What it takes to have one skill as it was at a release, and to keep it so: pushes leave it alone.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when the release is not listed, or has no such skill; those of [`SkillFs::plan`].
    pub async fn plan_pin(
        &self,
        library: &Library,
        skill: &str,
        release: u64,
        options: &PushOptions,
    ) -> Result<Plan> {
        self.plan_task(library, Task::Pin { skill: skill.to_owned(), release }, options).await
    }

    /// What it takes to let pushes change a pinned skill again.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when it is not pinned.
    pub async fn plan_unpin(&self, library: &Library, skill: &str, options: &PushOptions) -> Result<Plan> {
        self.plan_task(library, Task::Unpin(skill.to_owned()), options).await
    }

    /// What it takes to publish what others have changed in the mirror of a published library; with
    /// [`IntoKind::Published`], a plain library as it is.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a plain library that is not to be published; [`ErrorKind::Conflict`] while
    /// the mirror is not at the newest release.
    pub async fn plan_index(&self, library: &Library, options: &PushOptions) -> Result<Plan> {
        self.plan_task(library, Task::Index, options).await
    }

    pub(super) async fn plan_task(
        &self,
        library: &Library,
        task: Task,
        options: &PushOptions,
    ) -> Result<Plan> {
        const ROUNDS: u32 = 5;
        let access = self.access(library);
        let again = !matches!(task, Task::Index);
        let mut round = 1;
        loop {
            match plan_once(&access, &task, options).await {
                // A plain library changed while it was compared.
                Err(error) if error.kind() == ErrorKind::Conflict && again && round < ROUNDS => round += 1,
                done => return done,
            }
        }
    }
}

async fn plan_once(access: &LibraryAccess, task: &Task, options: &PushOptions) -> Result<Plan> {
    let LibraryAccess { backend, library } = access;
    let state = access.load().await?;
    if state.index.is_none() && backend.store().lists_any(&library.releases()).await? {
        let message = format!("{library} has releases, and its index is lost");
        return Err(Error::new(ErrorKind::Corrupt, message).with_hint(
            "`admin verify` lists the releases; `admin verify --repair --release N` restores one",
        ));
    }
    let release = match (state.kind, options.into) {
        (LibraryKind::Published, IntoKind::Plain) => {
            return Err(Error::new(ErrorKind::InvalidInput, format!("{library} is published"))
                .with_hint("push without `--plain`, or make it plain first: `admin unpublish`"));
        }
        (_, IntoKind::Plain) | (LibraryKind::Plain, IntoKind::Same) => false,
        (LibraryKind::Published | LibraryKind::Empty, _) | (_, IntoKind::Published) => true,
    };
    let pinned = state.index().map(|index| index.pins.clone()).unwrap_or_default();
    let mut before = LibraryBefore { tree: &state.tree, pins: pinned, digests: Digests::new() };
    let mut pins = BTreeMap::new();
    let found = match task {
        Task::Push(new) => {
            for (path, _) in paths(new) {
                library.file(&path)?;
            }
            // Where a published library is overwritten, damaged content is replaced too.
            if state.kind == LibraryKind::Plain || options.overwrite {
                before.digests = digests(backend, &state.tree, new).await?;
            }
            compare(&before, new, options)?
        }
        Task::Rollback(number) => {
            let index = state.published(library)?;
            let record = recorded(access, index, *number).await?;
            diff(&before, &stored(&record, ""))
        }
        Task::Pin { skill, release } => {
            let index = state.published(library)?;
            let record = recorded(access, index, *release).await?;
            if !find_skills(record.files.keys().map(String::as_str)).contains_key(skill.as_str()) {
                let message = format!("release {release} of {library} has no skill `{}`", shorten(skill));
                return Err(Error::new(ErrorKind::NotFound, message).with_hint(
                    "name it by its path, such as `category/skill`; `admin releases` lists the releases",
                ));
            }
            if index.pins.get(skill) != Some(release) {
                pins.insert(skill.clone(), Some(*release));
            }
            let within = format!("{skill}/");
            let mut after = stored(index, "");
            after.retain(|path, _| !path.starts_with(&within));
            after.extend(stored(&record, &within));
            before.pins.remove(skill);
            diff(&before, &after)
        }
        Task::Unpin(skill) => {
            if !state.published(library)?.pins.contains_key(skill) {
                let message = format!("{library} has no pinned skill `{}`", shorten(skill));
                return Err(Error::new(ErrorKind::NotFound, message)
                    .with_hint("name it by its path, such as `category/skill`; `admin list` shows them"));
            }
            pins.insert(skill.clone(), None);
            Compared::default()
        }
        // A plain library is published as it is.
        Task::Index if state.kind == LibraryKind::Plain && release => Compared::default(),
        Task::Index => {
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
        task: task.clone(),
        base: state,
        changes: found.changes,
        options: options.clone(),
    })
}

/// The record of a release that an index lists.
async fn recorded(access: &LibraryAccess, index: &Index, release: u64) -> Result<Index> {
    let library = &access.library;
    let note = index.listed(release).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, format!("{library} has no release {release}, or no longer lists it"))
            .with_hint("`admin releases` lists those that can be used")
    })?;
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
