//! Object keys and prefixes, and the mapping from a listed key back to a path.
//!
//! - Only `mount` constructs them: their fields are private to it.
//! - Two keys never map to the same path. A key outside of the directory, or one that no path can name, maps to none.
//! - No key is longer than [`MAX_KEY_BYTES`].

use crate::error::{Error, ErrorKind, Result, shorten};
use crate::path::VirtualPath;

/// S3's limit for the length of a key, in bytes.
pub(super) const MAX_KEY_BYTES: usize = 1024;

/// The key of an object.
///
/// There is no public constructor: keys are only built from a session's mounts and a parsed path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectKey(pub(super) String);

impl ObjectKey {
    /// The key as it appears in the bucket.
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

/// The key of an object that may be changed: by a session whose grants allow it
/// ([`Mounts::target`](super::Mounts::target)), or by an administrator of a library ([`Library`](super::Library)).
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

/// Builds a key, and checks that it is within S3's length limit.
pub(super) fn checked_key(path: &VirtualPath, key: String) -> Result<ObjectKey> {
    check_length(path, key.len())?;
    Ok(ObjectKey(key))
}

/// Checks that the key of a path is within S3's length limit.
pub(super) fn check_length(path: &VirtualPath, bytes: usize) -> Result<()> {
    if bytes <= MAX_KEY_BYTES { Ok(()) } else { Err(too_long(path, bytes)) }
}

fn too_long(path: &VirtualPath, bytes: usize) -> Error {
    let path_shown = shorten(path.as_str());
    let message =
        format!("invalid path `{path_shown}`: its key would have {bytes} bytes; S3 allows {MAX_KEY_BYTES}");
    Error::new(ErrorKind::InvalidPath, message).at(path).with_hint("use shorter or fewer directory names")
}

/// The common prefix of all keys in a directory. It ends with `/`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct KeyPrefix(pub(super) String);

impl KeyPrefix {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether a key can start with this prefix, given the length limit.
    pub(crate) fn can_have_keys(&self) -> bool {
        self.0.len() <= MAX_KEY_BYTES
    }
}

/// A directory: its path and its key prefix. Maps listed keys back to paths.
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

    /// Returns the part of a listed key after this directory's prefix; `None` for a key outside of the directory or one
    /// that exceeds the length limit.
    pub(crate) fn relative<'k>(&self, key: &'k str) -> Option<&'k str> {
        key.strip_prefix(self.prefix.as_str()).filter(|_| key.len() <= MAX_KEY_BYTES)
    }

    /// The key of a file with a name that is not in use, to check the permission to read.
    pub(crate) fn absent(&self, name: &str) -> ObjectKey {
        ObjectKey(format!("{}{name}", self.prefix.as_str()))
    }

    /// Returns the path and the key of a listed file.
    pub(crate) fn file(&self, key: &str) -> Option<(VirtualPath, ObjectKey)> {
        Some((self.path_of(key)?, ObjectKey(key.to_owned())))
    }

    /// Returns a listed key that is the folder marker of this directory or of one below it.
    pub(crate) fn marker(&self, key: &str) -> Option<ObjectKey> {
        let relative = self.relative(key)?;
        if !relative.is_empty() {
            self.path.join_exact(relative.strip_suffix('/')?)?;
        }
        Some(ObjectKey(key.to_owned()))
    }

    /// Returns the path of a listed key; `None` for a key outside of the directory or one that no path can name.
    pub(crate) fn path_of(&self, key: &str) -> Option<VirtualPath> {
        self.path.join_exact(self.relative(key)?)
    }
}
