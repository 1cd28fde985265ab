//! A library as an administrator sees it: its index, its keys, and the documents next to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use crate::backend::{S3Backend, Union, View, unusable};
use crate::error::{Error, ErrorKind, Result};
use crate::index::{Index, Mirror, ReleaseId, Unreadable};
use crate::mount::Library;
use crate::store::{Condition, Listed, Meta};

/// An object that was read, and the version that it had.
#[derive(Debug, Clone)]
pub(super) struct Versioned<T> {
    pub(super) value: T,
    pub(super) etag: String,
    /// When it was written, by S3's clock.
    pub(super) modified: Option<SystemTime>,
}

impl<T> Versioned<T> {
    fn map<U>(self, to: impl FnOnce(T) -> U) -> Versioned<U> {
        Versioned { value: to(self.value), etag: self.etag, modified: self.modified }
    }
}

/// How a library is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LibraryKind {
    /// Nothing is there.
    Empty,
    /// It is whatever is stored under its prefix.
    Plain,
    /// It is what its index says.
    Published,
}

impl LibraryKind {
    pub(super) fn is_published(self) -> bool {
        self == Self::Published
    }
}

/// What a library contains, and how.
pub(super) struct LibraryState {
    pub(super) kind: LibraryKind,
    pub(super) index: Option<Versioned<Arc<Index>>>,
    /// Its tree. That of a published library has digests, that of a plain one ETags.
    pub(super) tree: Union,
}

impl LibraryState {
    /// One request for a published library; a listing, too, for any other.
    pub(super) async fn load(backend: &S3Backend, library: &Library) -> Result<Self> {
        let index = read_index(backend, library).await?;
        let index = index.map(|found| found.map(Arc::new));
        if let Some(found) = index.as_ref().filter(|found| found.value.is_published()) {
            let view = View::published(found.value.clone());
            return Ok(Self { kind: LibraryKind::Published, tree: Union::single(view), index });
        }
        let view = View::plain(&library.skills(), keys(backend, library).await?);
        let tree = Union::single(view);
        let kind = match index.is_none() && tree.is_empty() {
            true => LibraryKind::Empty,
            false => LibraryKind::Plain,
        };
        Ok(Self { kind, index, tree })
    }

    /// The index of a published library.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a plain one, [`ErrorKind::NotFound`] for one that is empty.
    pub(super) fn published(&self, library: &Library) -> Result<&Versioned<Arc<Index>>> {
        match (self.kind, &self.index) {
            (LibraryKind::Published, Some(index)) => Ok(index),
            (LibraryKind::Empty, _) => Err(nothing_there(library)),
            _ => Err(Error::new(
                ErrorKind::InvalidInput,
                format!("{library} is plain, and this needs releases"),
            )
            .with_hint("publish it first: `admin index --publish`")),
        }
    }
}

pub(super) fn nothing_there(library: &Library) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is nothing in {library}"))
        .with_hint("check the name, or push skills to it first")
}

/// The index as it is now; `None` when there is none.
pub(super) async fn read_index(backend: &S3Backend, library: &Library) -> Result<Option<Versioned<Index>>> {
    let key = library.index();
    let found = backend.object(key.key()).await.map_err(|e| e.during("read the index of", library))?;
    let Some((meta, bytes)) = found else { return Ok(None) };
    let decoded = blocking(move || Index::decode(&bytes)).await?;
    let value = decoded.map_err(|why| unusable(library, &why).at(key.as_str()))?;
    Ok(Some(Versioned { value, modified: meta.modified, etag: etag(meta, library)? }))
}

/// What the mirror was when it was last completed. One that cannot be read is as good as none: it is made again
/// from what the keys contain.
pub(super) async fn read_mirror(
    backend: &S3Backend,
    library: &Library,
) -> Result<Option<Versioned<Option<Mirror>>>> {
    let found = backend.object(library.mirror().key()).await;
    let Some((meta, bytes)) = found.map_err(|e| e.during("read the mirror of", library))? else {
        return Ok(None);
    };
    let value = match blocking(move || Mirror::decode(&bytes)).await? {
        Ok(mirror) => Some(mirror),
        Err(Unreadable::Damaged(why)) => {
            tracing::warn!("the record of the mirror of {library} is damaged: {why}");
            None
        }
        Err(why @ Unreadable::Newer(_)) => return Err(unusable(library, &why)),
    };
    Ok(Some(Versioned { value, modified: meta.modified, etag: etag(meta, library)? }))
}

/// The record of a release: the index that it committed.
pub(super) async fn read_record(
    backend: &S3Backend,
    library: &Library,
    number: u64,
    id: &ReleaseId,
) -> Result<Index> {
    let key = library.release(number, id);
    let found = backend.object(key.key()).await.map_err(|e| e.during("read a release of", library))?;
    let lost = |what: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Corrupt, format!("the record of release {number} of {library} {what}"))
            .with_hint("use another release; `admin releases` lists them")
    };
    let Some((_, bytes)) = found else { return Err(lost(&"is missing")) };
    let decoded = blocking(move || Index::decode(&bytes)).await?;
    decoded.map_err(|why| lost(&format!("cannot be read: {why}")))
}

fn etag(meta: Meta, library: &Library) -> Result<String> {
    meta.etag.ok_or_else(|| {
        Error::new(ErrorKind::Corrupt, format!("the storage gives no ETag for the index of {library}"))
            .with_hint("publishing needs one")
    })
}

/// Writes a document next to a library, if it is still the version that was seen. Its new ETag; `None` when it is
/// not.
pub(super) async fn write_document(
    backend: &S3Backend,
    key: &crate::mount::WritableKey,
    bytes: Vec<u8>,
    seen: Option<&str>,
) -> Result<Option<Option<String>>> {
    backend.put_document(key, bytes.into(), only_over(seen)).await
}

pub(super) fn only_over(seen: Option<&str>) -> Condition {
    match seen {
        Some(etag) => Condition::Version { etag: etag.to_owned(), known: None },
        None => Condition::Absent,
    }
}

/// All keys of the library itself.
pub(super) async fn keys(backend: &S3Backend, library: &Library) -> Result<Vec<Listed>> {
    let objects = backend.objects(library.skills().prefix()).await.map_err(|e| e.during("list", library))?;
    Ok(objects.into_iter().map(|(key, meta)| Listed::Object { key, meta }).collect())
}

/// The keys of the library that a path can name, without folder markers.
pub(super) async fn mirrored_keys(backend: &S3Backend, library: &Library) -> Result<BTreeMap<String, Meta>> {
    let view = View::plain(&library.skills(), keys(backend, library).await?);
    let tree = Union::single(view);
    Ok(tree.files_in("").map(|(path, file)| (path.to_owned(), file.meta.clone())).collect())
}

/// An id that nobody else has.
pub(super) fn fresh_id(backend: &S3Backend) -> Result<ReleaseId> {
    let internal = |e: String| Error::new(ErrorKind::Internal, e);
    ReleaseId::parse(backend.store().fresh_id()?).map_err(internal)
}

/// Runs what takes a while on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let failed = |e| Error::new(ErrorKind::Internal, "a background task broke off").with_source(e);
    tokio::task::spawn_blocking(work).await.map_err(failed)
}
