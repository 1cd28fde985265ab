//! What a change would do to a library. A publisher that loses a race plans again on the newer release, and goes on
//! only if the changes are the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use tracing::instrument;

use super::compare::{
    Action, Adopted, Change, Compared, Digests, FileChange, PlannedSkill, adopted, compare, diff, paths,
};
use super::drift;
use super::library::{LibraryKind, LibraryState, Versioned, read_record};
use super::new::{DESCRIPTION, IntoKind, NewContent, NewFile, NewLibrary, PushOptions};
use crate::backend::{S3Backend, SkillFs, Union, find_skills};
use crate::error::{Error, ErrorKind, Result, shorten};
use crate::index::Index;
use crate::mount::Library;
use crate::path::VirtualPath;

/// Files that are read at once, to compare them.
const AT_ONCE: usize = 32;

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
    #[serde(skip)]
    pub(super) base: Base,
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

/// What a plan was made on.
#[derive(Debug, Clone)]
pub(super) struct Base {
    pub(super) index: Option<Versioned<Arc<Index>>>,
    pub(super) tree: Arc<Union>,
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
        let backend = self.own_session(&library.session()).fresh();
        let mut round = 1;
        loop {
            match plan_once(&backend, library, &task, options).await {
                // A plain library changed while it was compared.
                Err(error) if error.kind() == ErrorKind::Conflict && round < ROUNDS => match task {
                    Task::Index => return Err(error),
                    _ => round += 1,
                },
                done => return done,
            }
        }
    }
}

async fn plan_once(
    backend: &S3Backend,
    library: &Library,
    task: &Task,
    options: &PushOptions,
) -> Result<Plan> {
    let state = LibraryState::load(backend, library).await?;
    if state.index.is_none() && backend.store().lists_any(&library.releases()).await? {
        return Err(Error::new(ErrorKind::Corrupt, format!("{library} has releases, and its index is lost"))
            .with_hint(
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
    let pinned = state.index.as_ref().map(|index| index.value.pins.clone()).unwrap_or_default();
    let mut pins = BTreeMap::new();
    let found = match task {
        Task::Push(new) => {
            for (path, _) in paths(new) {
                library.file(&path)?;
            }
            let same = match state.kind {
                LibraryKind::Plain => digests(backend, &state.tree, new).await?,
                // Damaged content is replaced too.
                LibraryKind::Published if options.overwrite => digests(backend, &state.tree, new).await?,
                LibraryKind::Published | LibraryKind::Empty => BTreeMap::new(),
            };
            compare(&state.tree, &same, &pinned, new, options)?
        }
        Task::Rollback(number) => {
            let index = &state.published(library)?.value;
            let record = recorded(backend, library, index, *number).await?;
            diff(&state.tree, &stored(&record, ""), &pinned)
        }
        Task::Pin { skill, release } => {
            let index = &state.published(library)?.value;
            let record = recorded(backend, library, index, *release).await?;
            if !find_skills(record.files.keys().map(String::as_str)).contains_key(skill.as_str()) {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!("release {release} of {library} has no skill `{}`", shorten(skill)),
                )
                .with_hint(
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
            let others = pinned.into_iter().filter(|(pinned, _)| pinned != skill).collect();
            diff(&state.tree, &after, &others)
        }
        Task::Unpin(skill) => {
            if !state.published(library)?.value.pins.contains_key(skill) {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!("{library} has no pinned skill `{}`", shorten(skill)),
                )
                .with_hint("name it by its path, such as `category/skill`; `admin list` shows them"));
            }
            pins.insert(skill.clone(), None);
            Compared::default()
        }
        // A plain library is published as it is.
        Task::Index if state.kind == LibraryKind::Plain && release => Compared::default(),
        Task::Index => {
            let index = &state.published(library)?.value;
            let mut after = stored(index, "");
            for (path, file) in drift::to_publish(backend, library, index).await? {
                match file {
                    Some(file) => after.insert(path, file),
                    None => after.remove(&path),
                };
            }
            diff(&state.tree, &after, &pinned)
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
        base: Base { index: state.index, tree: Arc::new(state.tree) },
        changes: found.changes,
        options: options.clone(),
    })
}

/// The record of a release that an index lists.
async fn recorded(backend: &S3Backend, library: &Library, index: &Index, release: u64) -> Result<Index> {
    let note = index.releases.iter().find(|note| note.number == release).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, format!("{library} has no release {release}, or no longer lists it"))
            .with_hint("`admin releases` lists those that can be used")
    })?;
    if note.id == index.id {
        return Ok(index.clone());
    }
    read_record(backend, library, note.number, &note.id).await
}

/// The files of a release whose paths start so, from their blobs.
fn stored(index: &Index, start: &str) -> BTreeMap<String, NewFile> {
    let within = index.files.iter().filter(|(path, _)| path.starts_with(start));
    within
        .map(|(path, file)| {
            let (size, sha256, content) = (file.size, file.sha256, NewContent::Blob(file.blob.clone()));
            (path.clone(), NewFile { name: path.clone(), size, sha256, content })
        })
        .collect()
}

/// The digests of files as they are stored, where they could be the same as what is to be published; `None` for
/// content that is damaged or lost.
async fn digests(backend: &S3Backend, tree: &Union, new: &NewLibrary) -> Result<Digests> {
    let candidates = paths(new).filter_map(|(path, file)| {
        let found = tree.file(&path)?;
        (found.meta.size == file.size).then_some((path, found))
    });
    let reads: Vec<_> = candidates
        .map(|(path, found)| async move {
            let location = VirtualPath::in_skills(&path)?;
            let digest = match backend.digest_listed(&location, found, 0).await {
                Ok((sha256, _)) => Some(sha256),
                Err(error) if found.blob.is_some() && is_lost(&error) => None,
                Err(error) => return Err(error),
            };
            Ok::<_, Error>((path, digest))
        })
        .collect();
    stream::iter(reads).buffer_unordered(AT_ONCE).try_collect().await
}

/// A blob that is damaged, or not there.
fn is_lost(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unavailable)
}

/// Whether a path is the description of a category.
pub(super) fn described_category(path: &str) -> Option<&str> {
    path.strip_suffix(DESCRIPTION)?.strip_suffix('/')
}
