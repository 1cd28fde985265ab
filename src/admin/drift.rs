//! The mirror of a published library, compared with its newest release: what is up to date, what the mirror still
//! has to write, and what others have changed (drift).

use std::collections::{BTreeMap, BTreeSet};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use super::compare::FileAction;
use super::library::{Versioned, mirrored_keys, read_index, read_mirror, read_record};
use super::new::{NewContent, NewFile};
use super::protocol::{self, Act, MirrorKey};
use crate::backend::{S3Backend, SkillFs};
use crate::error::{Error, ErrorKind, Result};
use crate::index::{Digest, Index, Mirror};
use crate::mount::Library;
use crate::store::Meta;

/// Keys that are read at once.
const AT_ONCE: usize = 32;

/// A key of the mirror that others have changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Drift {
    /// Its path below `/skills`.
    pub path: String,
    /// How it differs from the newest release.
    pub change: FileAction,
}

/// What a key contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeenKey {
    pub(super) etag: String,
    pub(super) size: u64,
    pub(super) sha256: Option<Digest>,
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
    pub(super) async fn of(
        backend: &S3Backend,
        library: &Library,
        index: &Index,
        mirror: Option<&Mirror>,
    ) -> Self {
        let Some(mirror) = mirror else { return Self::default() };
        let record;
        let release = match index.releases.iter().find(|note| note.id == mirror.id) {
            _ if mirror.id == index.id => Some(index),
            Some(note) => {
                record = read_record(backend, library, note.number, &note.id).await.ok();
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
    backend: &S3Backend,
    library: &Library,
    index: &Index,
    recorded: &Recorded,
    present: &BTreeMap<String, Meta>,
    overwrite: bool,
) -> Result<BTreeMap<String, ComparedKey>> {
    let paths: BTreeSet<&String> = present.keys().chain(index.files.keys()).collect();
    let mut seen: BTreeMap<String, SeenKey> = BTreeMap::new();
    for (path, meta) in present {
        let (etag, size) = (meta.etag.clone().unwrap_or_default(), meta.size);
        seen.insert(path.clone(), SeenKey { etag, size, sha256: None });
    }
    let decide =
        |path: &str, seen: Option<&SeenKey>, named| recorded.act(index, path, seen, named, overwrite);
    let look = |path: &&&String| decide(path, seen.get(**path), false) == Act::Look;
    let looks: Vec<String> = paths.iter().filter(look).map(|path| (**path).clone()).collect();
    let reads = looks.into_iter().map(|path| async move {
        let (_, key) = library.file(&path)?;
        Ok::<_, Error>((path, backend.digest_object(key.key()).await?))
    });
    let reads: Vec<_> =
        stream::iter(reads.collect::<Vec<_>>()).buffer_unordered(AT_ONCE).try_collect().await?;
    let mut unclear = BTreeMap::new();
    for (path, found) in reads {
        let Some((sha256, meta)) = found else {
            seen.remove(&path);
            continue;
        };
        if index.files.get(&path).map(|file| file.sha256) != Some(sha256) {
            unclear.insert(path.clone(), sha256);
        }
        let (etag, size) = (meta.etag.unwrap_or_default(), meta.size);
        seen.insert(path, SeenKey { etag, size, sha256: Some(sha256) });
    }
    let named = named(backend, library, index, unclear).await;
    let compared = |path: &String| {
        let seen = seen.get(path);
        (path.clone(), ComparedKey { act: decide(path, seen, named.contains(path)), seen: seen.cloned() })
    };
    Ok(paths.into_iter().map(compared).collect())
}

/// Which of these contents a listed release has at their paths.
pub(super) async fn named(
    backend: &S3Backend,
    library: &Library,
    index: &Index,
    mut unclear: BTreeMap<String, Digest>,
) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    for note in index.releases.iter().rev().filter(|note| note.id != index.id) {
        if unclear.is_empty() {
            break;
        }
        // One that cannot be read names nothing: what it named is taken for drift, and left alone.
        let Ok(record) = read_record(backend, library, note.number, &note.id).await else { continue };
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
    drift
        .map(|(path, key)| {
            let change = match (&key.seen, index.files.contains_key(path)) {
                (None, _) => FileAction::Remove,
                (Some(_), true) => FileAction::Change,
                (Some(_), false) => FileAction::Add,
            };
            Drift { path: path.clone(), change }
        })
        .collect()
}

/// What others have changed in the mirror, to be published as it is; `None` for a file that was removed.
///
/// # Errors
/// [`ErrorKind::Conflict`] while the mirror is not at the newest release: what it has not written yet would be
/// taken for a change.
pub(super) async fn to_publish(
    backend: &S3Backend,
    library: &Library,
    index: &Index,
) -> Result<BTreeMap<String, Option<NewFile>>> {
    let mirror = read_mirror(backend, library).await?;
    let mirror = mirror.and_then(|Versioned { value, .. }| value).filter(|mirror| mirror.id == index.id);
    let Some(mirror) = mirror else {
        return Err(Error::new(
            ErrorKind::Conflict,
            format!("the keys of {library} are not at release {} yet", index.release),
        )
        .with_hint("complete them first: `admin verify --repair`"));
    };
    // While others may still be writing, a key that is missing is theirs to write, and nobody's removal.
    let recorded = Recorded::of(backend, library, index, Some(&mirror)).await;
    let present = mirrored_keys(backend, library).await?;
    let compared = compare(backend, library, index, &recorded, &present, false).await?;
    let drift = compared.into_iter().filter(|(_, key)| key.act == Act::Drift);
    Ok(drift
        .map(|(path, key)| {
            let new = key.seen.and_then(|SeenKey { etag, size, sha256 }| {
                Some(NewFile {
                    name: path.clone(),
                    size,
                    sha256: sha256?,
                    content: NewContent::MirrorKey(etag),
                })
            });
            (path, new)
        })
        .collect())
}

impl SkillFs {
    /// What others have changed in the keys of a published library; nothing for a plain one.
    ///
    /// Costs the index, the record of the mirror, a listing, and one request for each key that differs.
    ///
    /// # Errors
    /// Those of the storage; [`ErrorKind::Corrupt`] when the index is damaged.
    pub async fn drift(&self, library: &Library) -> Result<Vec<Drift>> {
        let backend = self.own_session(&library.session()).fresh();
        let Some(found) = read_index(&backend, library).await?.filter(|found| found.value.is_published())
        else {
            return Ok(Vec::new());
        };
        Ok(compare_mirror(&backend, library, &found.value).await?.drift)
    }
}

/// The mirror, compared with the newest release.
pub(crate) struct MirrorState {
    pub(crate) drift: Vec<Drift>,
    /// Keys that are still to be written or deleted.
    pub(crate) behind: u64,
}

pub(super) async fn compare_mirror(
    backend: &S3Backend,
    library: &Library,
    index: &Index,
) -> Result<MirrorState> {
    let mirror = read_mirror(backend, library).await?.and_then(|found| found.value);
    let recorded = Recorded::of(backend, library, index, mirror.as_ref()).await;
    let present = mirrored_keys(backend, library).await?;
    let compared = compare(backend, library, index, &recorded, &present, false).await?;
    let behind = compared.values().filter(|key| matches!(key.act, Act::Write | Act::Delete)).count() as u64;
    Ok(MirrorState { drift: drifted(index, &compared), behind })
}
