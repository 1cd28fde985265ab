//! Cache keys: what an entry is about, and what it contains.
//!
//! An entry is *about* places in the bucket ([`About`]); invalidation and access checks use nothing else. It *contains* a
//! value of one type. If there are several values of that type about the same place, a [`Detail`] distinguishes them.
//! Keys are compared, never parsed.

use std::any::{Any, TypeId};
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::access::Need;
use crate::ambient::Instant;
use crate::entry::Depth;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{Layer, ObjectKey};

/// The places in the bucket that an entry is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum About {
    /// One object, or a directory with the same name.
    Object(Arc<str>),
    /// Everything below a prefix, which ends with `/`.
    Prefix(Arc<str>),
    /// An ordered list of libraries.
    Libraries(Arc<LibraryPrefixes>),
}

/// An ordered list of library prefixes. Each ends with `/skills/`.
#[derive(Debug, PartialEq, Eq, Default)]
pub(crate) struct LibraryPrefixes(Box<[Arc<str>]>);

impl LibraryPrefixes {
    pub(crate) fn new<'l>(libraries: impl IntoIterator<Item = &'l Layer>) -> Arc<Self> {
        Arc::new(Self(libraries.into_iter().map(|layer| layer.prefix().clone()).collect()))
    }

    #[cfg(test)]
    pub(super) fn of_prefixes(prefixes: &[&str]) -> Self {
        Self(prefixes.iter().map(|prefix| (*prefix).into()).collect())
    }
}

impl Hash for LibraryPrefixes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The first library usually differs between sessions, and hashing all of them is slower. Equality compares all.
        (self.0.len(), self.0.first()).hash(state);
    }
}

impl About {
    pub(crate) fn object(key: &ObjectKey) -> Self {
        Self::Object(key.as_str().into())
    }

    /// The places whose epochs invalidate the entry.
    pub(super) fn places(&self) -> impl Iterator<Item = &str> {
        let (one, many) = match self {
            Self::Object(place) | Self::Prefix(place) => (Some(&**place), None),
            Self::Libraries(libraries) => (None, Some(libraries.0.iter().map(|prefix| &**prefix))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// What S3 must have allowed a session before it may see an entry about these places. `plain` says for each library
    /// whether the value was computed from a listing of it.
    pub(super) fn needs(&self, plain: &[bool]) -> Box<[Need]> {
        match self {
            Self::Object(key) => [Need::Read(key.clone())].into(),
            Self::Prefix(prefix) => [Need::List(prefix.clone())].into(),
            Self::Libraries(libraries) => {
                let need = |(number, library): (usize, &Arc<str>)| {
                    // If unspecified, require both the listing and the index.
                    match plain.get(number).copied().unwrap_or(true) {
                        true => Need::Plain(library.clone()),
                        false => Need::Published(library.clone()),
                    }
                };
                libraries.0.iter().enumerate().map(need).collect()
            }
        }
    }
}

/// Distinguishes several values of one type about the same place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Detail {
    /// There is only one such value.
    Only,
    Depth(Depth),
    /// A kind of fetch.
    Kind(&'static str),
    /// An arbitrary distinguishing name, such as a version or a path.
    Named(Box<str>),
}

impl Detail {
    pub(crate) fn named(name: impl Into<Box<str>>) -> Self {
        Self::Named(name.into())
    }
}

/// A value that can be cached.
pub(crate) trait Cached: Send + Sync + 'static {
    /// The size in memory in bytes; `None` if the value must not be cached.
    fn weight(&self) -> Option<u64>;

    /// Returns whether the value equals the cached one. Then the cached one is kept, together with everything computed
    /// from it.
    fn is_same(&self, _cached: &Self) -> bool
    where
        Self: Sized,
    {
        false
    }

    /// The time as of which the value is current, if that is earlier than the start of the fetch.
    fn as_of(&self) -> Option<Instant> {
        None
    }

    /// For each library that the value is about, whether it was computed from a listing.
    fn plain_layers(&self) -> Vec<bool> {
        Vec::new()
    }
}

/// The key of an entry that contains a `T`.
#[derive(Debug)]
pub(crate) struct Key<T> {
    pub(super) id: Id,
    holds: PhantomData<fn() -> T>,
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        Self { id: self.id.clone(), holds: PhantomData }
    }
}

/// A [`Key`] without its type parameter. Keys of values with different types are never equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Id {
    pub(super) about: About,
    detail: Detail,
    holds: TypeId,
}

impl<T: Cached> Key<T> {
    pub(crate) fn new(about: About, detail: Detail) -> Self {
        Self { id: Id { about, detail, holds: TypeId::of::<T>() }, holds: PhantomData }
    }
}

/// A cached value, and the time as of which it is current.
#[derive(Debug)]
pub(crate) struct Kept<T: ?Sized> {
    pub(crate) value: Arc<T>,
    pub(crate) since: Instant,
}

impl<T: ?Sized> Clone for Kept<T> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), since: self.since }
    }
}

impl<T: Cached> Kept<T> {
    /// Erases the type, because fetches of all types share one map.
    pub(super) fn erased(self) -> Kept<dyn Any + Send + Sync> {
        Kept { value: self.value, since: self.since }
    }
}

impl Kept<dyn Any + Send + Sync> {
    /// Restores the type, which is part of every key.
    pub(super) fn typed<T: Cached>(self) -> Result<Kept<T>> {
        let wrong = |_| Error::new(ErrorKind::Internal, "the type of a cache entry does not match its key");
        Ok(Kept { value: self.value.downcast().map_err(wrong)?, since: self.since })
    }
}

/// Which cached values a caller accepts.
#[derive(Debug)]
pub(crate) struct Accept<P> {
    /// The maximum age. With zero, no cached value is used and no fetch in flight is joined.
    pub(crate) bound: Duration,
    /// The kind of fetch on a miss. Callers with different kinds do not share a fetch.
    pub(crate) fetches: Detail,
    /// Whether a cached value has what the caller needs.
    pub(crate) usable: P,
    /// Whether a hit in the second half of its lifetime is refreshed in the background.
    pub(crate) refresh: bool,
}

impl<T> Accept<fn(&T) -> bool> {
    /// Accepts every value that is not older than this.
    pub(crate) fn newer_than(bound: Duration) -> Self {
        Self { bound, fetches: Detail::Only, usable: |_| true, refresh: true }
    }
}
