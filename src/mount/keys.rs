//! Keys and prefixes of the bucket, and the way back from a listed key to a path.
//!
//! - Only `mount` makes them: their fields are private to it.
//! - Two keys never have the same path. A key from elsewhere, or one that no path names, has none.
//! - No key is longer than [`MAX_KEY_BYTES`].

use crate::error::{Error, ErrorKind, Result, shorten};
use crate::path::VirtualPath;

/// The longest key S3 takes, in bytes.
pub(super) const MAX_KEY_BYTES: usize = 1024;

/// The key of one object of one session.
///
/// There is no public constructor: a key is made from a session's mounts and a parsed path, or
/// not at all.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectKey(pub(super) String);

impl ObjectKey {
    /// The key as it stands in the bucket.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The key of an object that may be changed: by a session where its grants allow it ([`Mounts::target`](super::Mounts::target)),
/// or by those who look after a library ([`Library`](super::Library)).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct WritableKey(pub(super) ObjectKey);

impl WritableKey {
    pub(crate) fn key(&self) -> &ObjectKey {
        &self.0
    }

    pub(crate) fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

/// A key that is not longer than S3 takes.
pub(super) fn checked_key(path: &VirtualPath, key: String) -> Result<ObjectKey> {
    check_length(path, key.len())?;
    Ok(ObjectKey(key))
}

/// Whether the key of a path would fit.
pub(super) fn check_length(path: &VirtualPath, bytes: usize) -> Result<()> {
    if bytes <= MAX_KEY_BYTES { Ok(()) } else { Err(too_long(path, bytes)) }
}

fn too_long(path: &VirtualPath, bytes: usize) -> Error {
    let path_shown = shorten(path.as_str());
    let message =
        format!("invalid path `{path_shown}`: its key would have {bytes} bytes; S3 allows {MAX_KEY_BYTES}");
    Error::new(ErrorKind::InvalidPath, message).at(path).with_hint("use shorter or fewer directory names")
}

/// The prefix of all keys in one directory of one session; it ends with `/`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct KeyPrefix(pub(super) String);

impl KeyPrefix {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a key could begin with it at all.
    pub(crate) fn can_have_keys(&self) -> bool {
        self.0.len() <= MAX_KEY_BYTES
    }
}

/// A directory's path and the prefix behind it: turns listed keys back into paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Directory {
    path: VirtualPath,
    prefix: KeyPrefix,
}

impl Directory {
    pub(super) fn new(path: VirtualPath, prefix: KeyPrefix) -> Self {
        Self { path, prefix }
    }

    pub(crate) fn path(&self) -> &VirtualPath {
        &self.path
    }

    pub(crate) fn prefix(&self) -> &KeyPrefix {
        &self.prefix
    }

    /// What is behind this directory's prefix in a listed key; `None` for a key from elsewhere, and
    /// for one that is longer than any key.
    pub(crate) fn relative<'k>(&self, key: &'k str) -> Option<&'k str> {
        key.strip_prefix(self.prefix.as_str()).filter(|_| key.len() <= MAX_KEY_BYTES)
    }

    /// A file that is not there, by a name that nobody has: to see whether it may be asked for.
    pub(crate) fn absent(&self, name: &str) -> ObjectKey {
        ObjectKey(format!("{}{name}", self.prefix.as_str()))
    }

    /// A listed key that is a file: its path and its key.
    pub(crate) fn file(&self, key: &str) -> Option<(VirtualPath, ObjectKey)> {
        Some((self.path_of(key)?, ObjectKey(key.to_owned())))
    }

    /// A listed key that is the marker of a folder, of this one or one below.
    pub(crate) fn marker(&self, key: &str) -> Option<ObjectKey> {
        let relative = self.relative(key)?;
        if !relative.is_empty() {
            self.path.join_exact(relative.strip_suffix('/')?)?;
        }
        Some(ObjectKey(key.to_owned()))
    }

    /// The path of a listed key; `None` for a key from elsewhere and for one that no path names.
    pub(crate) fn path_of(&self, key: &str) -> Option<VirtualPath> {
        self.path.join_exact(self.relative(key)?)
    }
}
