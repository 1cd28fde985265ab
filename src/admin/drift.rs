//! Compares the mirror of a published library with its newest release: which keys are up to date, which still have to
//! be written, and which were changed by other tools (drift).

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::compare::FileAction;
use super::library::{LibraryAdmin, MAX_READS, run_concurrently};
use super::new::{NewContent, NewFile};
use super::protocol::{self, Act, MirrorKey};
use crate::error::{Error, ErrorKind, Hint, Result};
use crate::index::{Digest, Index, Mirror};
use crate::store::Meta;

/// A key of the mirror that another tool has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Drift {
    /// The path below `/skills`.
    pub path: String,
    /// How the key differs from the newest release.
    pub change: FileAction,
}

impl Drift {
    pub(super) fn of(index: &Index, path: &str, seen: Option<&SeenKey>) -> Self {
        let change = match (seen, index.files.contains_key(path)) {
            (None, _) => FileAction::Remove,
            (Some(_), true) => FileAction::Change,
            (Some(_), false) => FileAction::Add,
        };
        Self { path: path.to_owned(), change }
    }
}

/// The version of a key that was seen, and its content if that was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SeenKey {
    pub(super) etag: String,
    pub(super) size: u64,
    pub(super) sha256: Option<Digest>,
}

impl SeenKey {
    pub(super) fn of(meta: Meta, sha256: Option<Digest>) -> Self {
        Self { etag: meta.etag.unwrap_or_default(), size: meta.size, sha256 }
    }
}

/// The result of comparing one key.
#[derive(Debug, Clone)]
pub(super) struct ComparedKey {
    pub(super) act: Act,
    /// `None` if the key does not exist.
    pub(super) seen: Option<SeenKey>,
}

/// The record of the mirror, and what this process has written since.
#[derive(Debug, Clone, Default)]
pub(super) struct Recorded {
    /// The ETags of the keys that were written, by path.
    pub(super) etags: BTreeMap<String, String>,
    /// The content of the mirrored release by path, as far as known.
    pub(super) contents: BTreeMap<String, Digest>,
    /// Whether the record says that every key of the newest release was written, and that nobody else was writing.
    pub(super) complete: bool,
}

impl Recorded {
    /// Loads a record, with the contents of the release that was mirrored if that can be read.
    pub(super) async fn of(access: &LibraryAdmin, index: &Index, mirror: Option<&Mirror>) -> Self {
        let Some(mirror) = mirror else { return Self::default() };
        let record;
        let release = match index.releases.iter().find(|note| note.id == mirror.id) {
            _ if mirror.id == index.id => Some(index),
            Some(note) => {
                record = access.read_record(note).await.ok();
                record.as_ref()
            }
            None => None,
        };
        let files = release.iter().flat_map(|release| &release.files);
        Self {
            etags: mirror.etags.clone(),
            contents: files.map(|(path, file)| (path.clone(), file.sha256)).collect(),
            complete: mirror.id == index.id && mirror.settled,
        }
    }

    /// Decides what to do with a key. `named`: a listed release has this content at this path.
    pub(super) fn act(
        &self,
        index: &Index,
        path: &str,
        seen: Option<&SeenKey>,
        named: bool,
        overwrite: bool,
    ) -> Act {
        let key = MirrorKey {
            wanted: index.files.get(path).map(|file| &file.sha256),
            mirrored: self.contents.get(path),
            recorded: self.etags.get(path),
            present: seen.map(|seen| &seen.etag),
            content: seen.and_then(|seen| seen.sha256.as_ref()).map(|sha256| (sha256, named)),
        };
        protocol::act(&key, self.complete, overwrite)
    }
}

/// Compares every key of the mirror with the newest release. Keys whose ETag is not the recorded one are read.
pub(super) async fn compare(
    access: &LibraryAdmin,
    index: &Index,
    recorded: &Recorded,
    present: BTreeMap<String, Meta>,
    overwrite: bool,
) -> Result<BTreeMap<String, ComparedKey>> {
    let paths: BTreeSet<String> = present.keys().chain(index.files.keys()).cloned().collect();
    let seen = present.into_iter().map(|(path, meta)| (path, SeenKey::of(meta, None)));
    let mut seen: BTreeMap<String, SeenKey> = seen.collect();
    let decide =
        |path: &str, seen: Option<&SeenKey>, named| recorded.act(index, path, seen, named, overwrite);
    let looks = paths.iter().filter(|path| decide(path, seen.get(*path), false) == Act::Look);
    let reads = looks.map(|path| async move {
        let (_, key) = access.library.file(path)?;
        Ok((path, access.backend.digest_object(key.key()).await?))
    });
    let mut unclear = BTreeMap::new();
    for (path, found) in run_concurrently(MAX_READS, reads.collect()).await? {
        let Some((sha256, meta)) = found else {
            seen.remove(path);
            continue;
        };
        if index.files.get(path).map(|file| file.sha256) != Some(sha256) {
            unclear.insert(path.clone(), sha256);
        }
        seen.insert(path.clone(), SeenKey::of(meta, Some(sha256)));
    }
    let named = named(access, index, unclear).await;
    let compared = paths.into_iter().map(|path| {
        let seen = seen.remove(&path);
        let act = decide(&path, seen.as_ref(), named.contains(&path));
        (path, ComparedKey { act, seen })
    });
    Ok(compared.collect())
}

/// Returns the paths whose content is that of a listed release at the same path.
pub(super) async fn named(
    access: &LibraryAdmin,
    index: &Index,
    mut unclear: BTreeMap<String, Digest>,
) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    for note in index.earlier_releases().rev() {
        if unclear.is_empty() {
            break;
        }
        // Content that only an unreadable record names counts as drift, which is left unchanged.
        let Ok(record) = access.read_record(note).await else { continue };
        unclear.retain(|path, sha256| {
            let is_named = record.files.get(path).is_some_and(|file| file.sha256 == *sha256);
            if is_named {
                named.insert(path.clone());
            }
            !is_named
        });
    }
    named
}

/// The keys that other tools have changed.
pub(super) fn drifted(index: &Index, compared: &BTreeMap<String, ComparedKey>) -> Vec<Drift> {
    let drift = compared.iter().filter(|(_, key)| key.act == Act::Drift);
    drift.map(|(path, key)| Drift::of(index, path, key.seen.as_ref())).collect()
}

/// The drift of the mirror as files to publish; `None` for a file that was removed.
///
/// # Errors
/// [`ErrorKind::Conflict`] while the mirror is not at the newest release: keys that were not written yet would look
/// like changes.
pub(super) async fn to_publish(
    access: &LibraryAdmin,
    index: &Index,
) -> Result<BTreeMap<String, Option<NewFile>>> {
    let mirror = access.read_mirror().await?.and_then(|found| found.value);
    let Some(mirror) = mirror.filter(|mirror| mirror.id == index.id) else {
        let message = format!("the keys of {} are not at release {} yet", access.library, index.release);
        return Err(Error::new(ErrorKind::Conflict, message).with_hint(Hint::CompleteMirror).lasting());
    };
    // While another publisher may still be writing, a missing key does not count as removed.
    let compared = compare_recorded(access, index, Some(&mirror)).await?;
    let drift = compared.into_iter().filter(|(_, key)| key.act == Act::Drift);
    let new = |name: String, SeenKey { etag, size, sha256 }| {
        Some(NewFile { name, size, sha256: sha256?, content: NewContent::Key(etag) })
    };
    Ok(drift.map(|(path, key)| (path.clone(), key.seen.and_then(|seen| new(path, seen)))).collect())
}

impl LibraryAdmin {
    /// Lists the keys of a published library that other tools have changed. Empty for a plain library.
    ///
    /// Costs two requests, a listing, and one request for each key that differs.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the index is damaged; errors of the storage.
    pub async fn drift(&self) -> Result<Vec<Drift>> {
        let index = self.read_index().await?.filter(|found| found.value.is_published());
        let Some(index) = index else { return Ok(Vec::new()) };
        Ok(compare_mirror(self, &index.value).await?.drift)
    }
}

/// How the mirror differs from the newest release.
pub(crate) struct MirrorState {
    pub(crate) drift: Vec<Drift>,
    /// The number of keys that still have to be written or deleted.
    pub(crate) behind: u64,
}

pub(super) async fn compare_mirror(access: &LibraryAdmin, index: &Index) -> Result<MirrorState> {
    let mirror = access.read_mirror().await?.and_then(|found| found.value);
    let compared = compare_recorded(access, index, mirror.as_ref()).await?;
    let behind = compared.values().filter(|key| matches!(key.act, Act::Write | Act::Delete)).count() as u64;
    Ok(MirrorState { drift: drifted(index, &compared), behind })
}

/// Compares every current key with the record of the mirror.
async fn compare_recorded(
    access: &LibraryAdmin,
    index: &Index,
    mirror: Option<&Mirror>,
) -> Result<BTreeMap<String, ComparedKey>> {
    let recorded = Recorded::of(access, index, mirror).await;
    compare(access, index, &recorded, access.mirrored_keys().await?, false).await
}
