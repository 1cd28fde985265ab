//! [`LibraryAdmin`], and how it loads the state of a library: its index, its keys, and its other documents.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::progress::{Progress, PushProgress};
use crate::backend::{S3Backend, SkillFs, Union, View, unusable};
use crate::config::Retention;
use crate::error::{Error, ErrorKind, Hint, Result};
use crate::index::{Index, Mirror, ReleaseId, ReleaseNote, Unreadable};
use crate::mount::{Library, WritableKey};
use crate::store::{Condition, Listed, Meta};

/// The maximum number of objects that are read or deleted concurrently.
pub(super) const MAX_READS: usize = 32;

/// A decoded object with the version that was read.
#[derive(Debug, Clone)]
pub(super) struct Versioned<T> {
    pub(super) value: T,
    pub(super) etag: String,
    /// When it was written, according to S3.
    pub(super) modified: Option<SystemTime>,
}

/// How a library is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LibraryKind {
    /// It has no index and no objects.
    Empty,
    /// Readers see the objects under its prefix.
    Plain,
    /// Readers see exactly the files that its index lists.
    Published,
}

impl LibraryKind {
    /// `empty`, `plain` or `published`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Plain => "plain",
            Self::Published => "published",
        }
    }
}

/// The state of a library.
#[derive(Debug, Clone)]
pub(super) struct LibraryState {
    pub(super) kind: LibraryKind,
    pub(super) index: Option<Versioned<Arc<Index>>>,
    /// Its files. They have digests in a published library, and ETags in a plain one.
    pub(super) tree: Arc<Union>,
}

impl LibraryState {
    /// The index, if there is one. A plain library has one if it was published before.
    pub(super) fn index(&self) -> Option<&Index> {
        self.index.as_ref().map(|found| &*found.value)
    }

    /// The index of a published library.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the library is plain, [`ErrorKind::NotFound`] if it is empty.
    pub(super) fn published(&self, library: &Library) -> Result<&Index> {
        match (self.kind, self.index()) {
            (LibraryKind::Published, Some(index)) => Ok(index),
            (LibraryKind::Empty, _) => Err(empty_library(library)),
            _ => Err(Error::new(ErrorKind::InvalidInput, format!("{library} is plain and has no releases"))
                .with_hint(Hint::PublishLibrary)),
        }
    }
}

pub(super) fn empty_library(library: &Library) -> Error {
    Error::new(ErrorKind::NotFound, format!("{library} is empty"))
        .with_hint("check the name, or push skills to it first")
}

/// A handle for administering one library: publish, compare, verify, repair and read it.
///
/// [`SkillFs::library`] creates one. It uses the credentials of the process, never a session role, and bypasses the
/// cache. Cloning is cheap.
///
/// A change has two steps: [`plan`](Self::plan) compares and changes nothing, and [`publish`](Self::publish) applies
/// the plan. [`push`](Self::push), [`rollback`](Self::rollback), [`pin`](Self::pin), [`unpin`](Self::unpin),
/// [`remove`](Self::remove) and [`index`](Self::index) do both in one call.
///
/// Every write is conditional on the version that was planned on, so concurrent administrators do not overwrite each
/// other's changes. The server must support conditional writes.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "embedded")]
/// # async fn example() -> skillfs::Result<()> {
/// use skillfs::admin::{NewFile, NewLibrary, NewSkill, PushOptions};
/// use skillfs::embedded::Embedded;
/// use skillfs::{Library, LibraryId, Settings, SkillFs};
///
/// let store = Embedded::in_memory()?;
/// store.create_bucket("my-bucket").await?;
/// let fs = SkillFs::embedded(&store, &Settings::new("my-bucket")).await?;
///
/// let contracts = fs.library(&Library::Shared(LibraryId::parse("contracts")?));
/// let text = "---\nname: sale\ndescription: Drafts sale contracts.\n---\n# Steps\n";
/// let sale = NewSkill::new("contracts/sale", vec![NewFile::new("SKILL.md", text)]);
/// let published = contracts.push(NewLibrary::from_iter([sale]), &PushOptions::default()).await?;
/// assert_eq!((published.release, published.created), (Some(1), 1));
/// assert_eq!(contracts.list().await?[0].path.as_str(), "contracts/sale");
/// # Ok(())
/// # }
/// # #[cfg(feature = "embedded")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct LibraryAdmin {
    pub(super) backend: S3Backend,
    pub(super) library: Library,
    pub(super) progress: Progress,
}

impl SkillFs {
    /// Returns a handle for administering a library. No I/O.
    #[must_use]
    pub fn library(&self, library: &Library) -> LibraryAdmin {
        LibraryAdmin::new(self.own_session(&library.session()).fresh(), library)
    }
}

impl LibraryAdmin {
    pub(super) fn new(backend: S3Backend, library: &Library) -> Self {
        Self { backend, library: library.clone(), progress: Progress::default() }
    }

    /// Calls `report` with the progress of long operations.
    #[must_use]
    pub fn on_progress(self, report: impl Fn(PushProgress) + Send + Sync + 'static) -> Self {
        Self { progress: Progress::new(report), ..self }
    }

    /// The library that this handle administers.
    #[must_use]
    pub fn id(&self) -> &Library {
        &self.library
    }

    pub(super) fn conflict_patience(&self) -> Duration {
        self.backend.settings().conflict_patience
    }

    pub(super) fn retention(&self) -> Retention {
        self.backend.settings().retention
    }
}

impl LibraryAdmin {
    /// Loads the state of the library. Costs one request for a published library, plus a listing for any other.
    pub(super) async fn load(&self) -> Result<LibraryState> {
        let index = self.read_index().await?;
        if let Some(found) = index.as_ref().filter(|found| found.value.is_published()) {
            let tree = Arc::new(Union::single(View::published(found.value.clone())));
            return Ok(LibraryState { kind: LibraryKind::Published, tree, index });
        }
        let tree = Arc::new(self.plain_tree().await?);
        let is_empty = index.is_none() && tree.is_empty();
        let kind = if is_empty { LibraryKind::Empty } else { LibraryKind::Plain };
        Ok(LibraryState { kind, index, tree })
    }

    /// Reads the current index; `None` if it does not exist.
    pub(super) async fn read_index(&self) -> Result<Option<Versioned<Arc<Index>>>> {
        let (key, library) = (self.library.index(), &self.library);
        let read = self.read_document(&key, "read the index of", Index::decode).await?;
        let Some((meta, decoded)) = read else { return Ok(None) };
        let value = decoded.map_err(|why| unusable(library, &why).at(key.as_str()))?;
        self.versioned(Arc::new(value), meta).map(Some)
    }

    /// Reads the record of the mirror. The inner value is `None` if the record is damaged: it is then rebuilt from the
    /// content of the keys.
    pub(super) async fn read_mirror(&self) -> Result<Option<Versioned<Option<Mirror>>>> {
        let (key, library) = (self.library.mirror(), &self.library);
        let read = self.read_document(&key, "read the mirror of", Mirror::decode).await?;
        let Some((meta, decoded)) = read else { return Ok(None) };
        let value = match decoded {
            Ok(mirror) => Some(mirror),
            Err(Unreadable::Damaged(why)) => {
                tracing::warn!("the record of the mirror of {library} is damaged: {why}");
                None
            }
            Err(why @ Unreadable::Newer(..)) => return Err(unusable(library, &why)),
        };
        self.versioned(value, meta).map(Some)
    }

    /// Reads the record of a release: the index that it committed.
    pub(super) async fn read_record(&self, note: &ReleaseNote) -> Result<Index> {
        let lost = |what: &dyn std::fmt::Display| {
            let message = format!("the record of release {} of {} {what}", note.number, self.library);
            Error::new(ErrorKind::Corrupt, message).with_hint(Hint::ListReleases)
        };
        let key = self.library.release(note.number, &note.id);
        let read = self.read_document(&key, "read a release of", Index::decode).await?;
        let (_, decoded) = read.ok_or_else(|| lost(&"is missing"))?;
        decoded.map_err(|why| lost(&format!("cannot be read: {why}")))
    }

    async fn read_document<T: Send + 'static>(
        &self,
        key: &WritableKey,
        doing: &'static str,
        decode: fn(&[u8]) -> Result<T, Unreadable>,
    ) -> Result<Option<(Meta, Result<T, Unreadable>)>> {
        let found = self.backend.object(key.key()).await.map_err(|e| e.during(doing, &self.library))?;
        let Some((meta, bytes)) = found else { return Ok(None) };
        Ok(Some((meta, blocking(move || decode(&bytes)).await?)))
    }

    fn versioned<T>(&self, value: T, meta: Meta) -> Result<Versioned<T>> {
        let etag = meta.etag.ok_or_else(|| {
            let message = format!("the storage returned no ETag for the index of {}", self.library);
            Error::new(ErrorKind::Corrupt, message).with_hint("publishing requires it")
        })?;
        Ok(Versioned { value, etag, modified: meta.modified })
    }

    /// The tree of the keys under the library's prefix, regardless of its index.
    async fn plain_tree(&self) -> Result<Union> {
        let skills = self.library.skills();
        let objects = self.backend.objects(skills.prefix()).await;
        let objects = objects.map_err(|e| e.during("list", &self.library))?;
        let listed = objects.into_iter().map(|(key, meta)| Listed::Object { key, meta }).collect();
        Ok(Union::single(View::plain(&skills, listed)))
    }

    /// The keys under the library's prefix that have a valid path, without folder markers.
    pub(super) async fn mirrored_keys(&self) -> Result<BTreeMap<String, Meta>> {
        let tree = self.plain_tree().await?;
        Ok(tree.files_in("").map(|(path, file)| (path.to_owned(), file.meta.clone())).collect())
    }

    /// The keys of all blobs.
    pub(super) async fn stored_blobs(&self) -> Result<BTreeSet<String>> {
        Ok(self.backend.objects(&self.library.blobs()).await?.into_iter().map(|(key, _)| key).collect())
    }

    /// A new unique ID.
    pub(super) fn fresh_id(&self) -> Result<ReleaseId> {
        let internal = |e: String| Error::new(ErrorKind::Internal, e);
        ReleaseId::parse(self.backend.store().fresh_id()?).map_err(internal)
    }
}

/// The condition that an object is unchanged: it still has this ETag, or still does not exist.
pub(super) fn if_unchanged(seen: Option<&str>) -> Condition {
    match seen {
        Some(etag) => Condition::Version { etag: etag.to_owned(), known: None },
        None => Condition::Absent,
    }
}

/// Runs CPU-bound or blocking work on a separate thread.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let failed = |e| Error::new(ErrorKind::Internal, "a background task was interrupted").with_source(e);
    tokio::task::spawn_blocking(work).await.map_err(failed)
}

/// Runs futures concurrently, at most `limit` of them. Returns the results in order, or the first error.
pub(super) async fn run_concurrently<T>(
    limit: usize,
    work: Vec<impl Future<Output = Result<T>>>,
) -> Result<Vec<T>> {
    let numbered = work.into_iter().enumerate();
    let numbered: Vec<_> =
        numbered.map(|(at, work)| async move { Ok::<_, Error>((at, work.await?)) }).collect();
    let mut done: Vec<_> = stream::iter(numbered).buffer_unordered(limit).try_collect().await?;
    done.sort_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, done)| done).collect())
}
