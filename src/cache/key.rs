//! Cache keys: what an entry is about, and what it holds.
//!
//! What it is *about* are places in the bucket: invalidation and access checks look at nothing else. What it *holds*
//! is the type of the value and, where one type holds several things about one place, a [`Detail`]. Keys are compared,
//! never parsed.

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

/// The places of the bucket that an entry is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum About {
    /// One object, or whatever else has its name.
    Object(Arc<str>),
    /// What is below a prefix, which ends with `/`.
    Prefix(Arc<str>),
    /// Libraries, in their order.
    Libraries(Arc<LibraryPrefixes>),
}

/// The prefixes of libraries, in their order. Each ends with `/skills/`.
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
        // Sessions differ in their first library, as a rule; equality compares them all.
        (self.0.len(), self.0.first()).hash(state);
    }
}

impl About {
    pub(crate) fn object(key: &ObjectKey) -> Self {
        Self::Object(key.as_str().into())
    }

    /// What invalidation looks at.
    pub(super) fn places(&self) -> impl Iterator<Item = &str> {
        let (one, many) = match self {
            Self::Object(place) | Self::Prefix(place) => (Some(&**place), None),
            Self::Libraries(libraries) => (None, Some(libraries.0.iter().map(|prefix| &**prefix))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// What S3 must have let a session do before it may see an entry about this. `plain` tells of each library
    /// whether the value was made from a listing of it.
    pub(super) fn needs(&self, plain: &[bool]) -> Box<[Need]> {
        match self {
            Self::Object(key) => [Need::Read(key.clone())].into(),
            Self::Prefix(prefix) => [Need::List(prefix.clone())].into(),
            Self::Libraries(libraries) => {
                let need = |(number, library): (usize, &Arc<str>)| {
                    // Where it is not told, the entry needs everything.
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

/// What of several things that one type holds about a place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Detail {
    /// There is only one.
    Only,
    Depth(Depth),
    /// A kind of fetch.
    Kind(&'static str),
    /// The part below a name, a version, a path: whatever tells two of them apart.
    Named(Box<str>),
}

impl Detail {
    pub(crate) fn named(name: impl Into<Box<str>>) -> Self {
        Self::Named(name.into())
    }
}

/// A value that may be kept.
pub(crate) trait Cached: Send + Sync + 'static {
    /// What it takes in memory, in bytes; `None` for one that must not be kept.
    fn weight(&self) -> Option<u64>;

    /// Whether it says the same as a value that is known: then that one is kept on, with all that was made of it.
    fn is_same(&self, _known: &Self) -> bool
    where
        Self: Sized,
    {
        false
    }

    /// Since when it is known to be so, where that is earlier than the fetch that made it.
    fn as_of(&self) -> Option<Instant> {
        None
    }

    /// Of each library that it is about, whether it was made from a listing.
    fn plain_layers(&self) -> Vec<bool> {
        Vec::new()
    }
}

/// The key of an entry that holds a `T`.
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

/// The same without its type parameter. Two keys whose values have different types are different.
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

/// A value that is kept, and since when it is known to be so.
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
    /// Without its type: flights of all types are kept together.
    pub(super) fn erased(self) -> Kept<dyn Any + Send + Sync> {
        Kept { value: self.value, since: self.since }
    }
}

impl Kept<dyn Any + Send + Sync> {
    /// With its type, which is part of every key.
    pub(super) fn typed<T: Cached>(self) -> Result<Kept<T>> {
        let wrong = |_| Error::new(ErrorKind::Internal, "the type of a cache entry does not match its key");
        Ok(Kept { value: self.value.downcast().map_err(wrong)?, since: self.since })
    }
}

/// Which answers a caller accepts.
#[derive(Debug)]
pub(crate) struct Accept<P> {
    /// How old it may be. With zero, nothing that is known is used and no other caller's fetch is joined.
    pub(crate) bound: Duration,
    /// What exactly is fetched where it must be: callers that fetch different things do not share a flight.
    pub(crate) fetches: Detail,
    /// Whether a value that is known tells enough.
    pub(crate) usable: P,
    /// Whether a hit in the second half of its life is refreshed behind the answer.
    pub(crate) refresh: bool,
}

impl<T> Accept<fn(&T) -> bool> {
    /// Whatever is no older than this.
    pub(crate) fn newer_than(bound: Duration) -> Self {
        Self { bound, fetches: Detail::Only, usable: |_| true, refresh: true }
    }
}
