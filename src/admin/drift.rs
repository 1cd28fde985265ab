//! The mirror of a published library, compared with its newest release: what is up to date, what the mirror still
//! has to write, and what others have changed (drift).

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::compare::FileAction;
use super::library::{LibraryAdmin, READS_AT_ONCE, at_once};
use super::new::{NewContent, NewFile};
use super::protocol::{self, Act, MirrorKey};
use crate::error::{Error, ErrorKind, Hint, Result};
use crate::index::{Digest, Index, Mirror};
use crate::store::Meta;

/// A key of the mirror that others have changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Drift {
    /// Its path below `/skills`.
    pub path: String,
    /// How it differs from the newest release.
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

/// What a key contains.
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

/// One key, compared.
#[derive(Debug, Clone)]
pub(super) struct ComparedKey {
    pub(super) act: Act,
    /// What is there; `None` for nothing.
    pub(super) seen: Option<SeenKey>,
}

/// The mirror's record, and what this process has written since.
#[derive(Debug, Clone, Default)]
pub(super) struct Recorded {
    /// The ETags of the keys that were written, by path.
    pub(super) etags: BTreeMap<String, String>,
    /// What the mirrored release has at each path, where that is known.
    pub(super) contents: BTreeMap<String, Digest>,
    /// Whether the record says that every key of the newest release was written, and nobody else was writing.
    pub(super) complete: bool,
}

impl Recorded {
    /// What a record says. Contents are those of the release that was mirrored, where that can be read.
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

    /// Decides about a key, by what is there; `named`: a listed release has its content at this path.
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
    for (path, found) in at_once(READS_AT_ONCE, reads.collect()).await? {
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

/// Which of these contents a listed release has at their paths.
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
        // One that cannot be read names nothing: what it named is taken for drift, and left alone.
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

/// What others have changed.
pub(super) fn drifted(index: &Index, compared: &BTreeMap<String, ComparedKey>) -> Vec<Drift> {
    let drift = compared.iter().filter(|(_, key)| key.act == Act::Drift);
    drift.map(|(path, key)| Drift::of(index, path, key.seen.as_ref())).collect()
}

/// What others have changed in the mirror, to be published as it is; `None` for a file that was removed.
///
/// # Errors
/// [`ErrorKind::Conflict`] while the mirror is not at the newest release: what it has not written yet would be
/// taken for a change.
pub(super) async fn to_publish(
    access: &LibraryAdmin,
    index: &Index,
) -> Result<BTreeMap<String, Option<NewFile>>> {
    let mirror = access.read_mirror().await?.and_then(|found| found.value);
    let Some(mirror) = mirror.filter(|mirror| mirror.id == index.id) else {
        let message = format!("the keys of {} are not at release {} yet", access.library, index.release);
        return Err(Error::new(ErrorKind::Conflict, message).with_hint(Hint::CompleteMirror).lasting());
    };
    // While others may still be writing, a key that is missing is theirs to write, and nobody's removal.
    let compared = compare_recorded(access, index, Some(&mirror)).await?;
    let drift = compared.into_iter().filter(|(_, key)| key.act == Act::Drift);
    let new = |name: String, SeenKey { etag, size, sha256 }| {
        Some(NewFile { name, size, sha256: sha256?, content: NewContent::Key(etag) })
    };
    Ok(drift.map(|(path, key)| (path.clone(), key.seen.and_then(|seen| new(path, seen)))).collect())
}

impl LibraryAdmin {
    /// What others have changed in the keys of a published library; nothing for a plain one.
    ///
    /// Costs the index, the record of the mirror, a listing, and one request for each key that differs.
    ///
    /// # Errors
    /// Those of the storage; [`ErrorKind::Corrupt`] when the index is damaged.
    pub async fn drift(&self) -> Result<Vec<Drift>> {
        let index = self.read_index().await?.filter(|found| found.value.is_published());
        let Some(index) = index else { return Ok(Vec::new()) };
        Ok(compare_mirror(self, &index.value).await?.drift)
    }
}

/// The mirror, compared with the newest release.
pub(crate) struct MirrorState {
    pub(crate) drift: Vec<Drift>,
    /// Keys that are still to be written or deleted.
    pub(crate) behind: u64,
}

pub(super) async fn compare_mirror(access: &LibraryAdmin, index: &Index) -> Result<MirrorState> {
    let mirror = access.read_mirror().await?.and_then(|found| found.value);
    let compared = compare_recorded(access, index, mirror.as_ref()).await?;
    let behind = compared.values().filter(|key| matches!(key.act, Act::Write | Act::Delete)).count() as u64;
    Ok(MirrorState { drift: drifted(index, &compared), behind })
}

/// Every key as it is now, compared with what the mirror's record says.
async fn compare_recorded(
    access: &LibraryAdmin,
    index: &Index,
    mirror: Option<&Mirror>,
) -> Result<BTreeMap<String, ComparedKey>> {
    let recorded = Recorded::of(access, index, mirror).await;
    compare(access, index, &recorded, access.mirrored_keys().await?, false).await
}
