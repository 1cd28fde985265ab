//! Pruning: deletes blobs and records that no listed release names, once they are old enough.
//!
//! No lock is needed. A push relies only on keys that the index it replaces names or lists, and on what it has
//! uploaded itself within a day; blob keys are never used twice. So a key that is unreferenced and older than the
//! grace period stays unreferenced, however late its deletion arrives.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use super::library::{LibraryAdmin, READS_AT_ONCE, at_once};
use super::protocol::{self, Retention};
use crate::ambient::Instant;
use crate::error::Result;
use crate::index::Index;
use crate::store::Meta;

/// What was deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Pruned {
    /// Records of releases that are not listed any more.
    pub releases: u64,
    /// Contents that no release names any more.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl LibraryAdmin {
    /// Deletes content that no listed release names, once it is older than the grace period of
    /// [`Settings::retention`](crate::Settings::retention).
    ///
    /// Costs one request for the index, one for each listed release, a listing of what is stored, and one for each
    /// object that is deleted.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) when the index or a listed release cannot be read: nothing
    /// is deleted then.
    pub async fn prune(&self) -> Result<Pruned> {
        prune(self, self.retention()).await
    }
}

pub(super) async fn prune(access: &LibraryAdmin, retention: Retention) -> Result<Pruned> {
    let LibraryAdmin { backend, library, .. } = access;
    let began = Instant::now();
    let Some(index) = access.read_index().await?.map(|found| found.value) else {
        return Ok(Pruned::default());
    };
    // By the time before the index was read: a push may since have committed what is young by now.
    let now = backend.server_time() - began.elapsed();
    let mut named: BTreeSet<String> = BTreeSet::new();
    let mut name = |index: &Index| {
        named.extend(
            index.blobs().map(|(sha256, origin)| library.blob(sha256, &origin.id).as_str().to_owned()),
        );
    };
    name(&index);
    for note in index.earlier_releases() {
        name(&access.read_record(note).await?);
    }
    named
        .extend(index.releases.iter().map(|note| library.release(note.number, &note.id).as_str().to_owned()));
    let age =
        |meta: &Meta| meta.modified.and_then(|at| now.duration_since(at).ok()).unwrap_or(Duration::ZERO);
    let mut pruned = Pruned::default();
    let mut garbage = Vec::new();
    for (prefix, is_blob) in [(library.blobs(), true), (library.releases(), false)] {
        for (key, meta) in backend.objects(&prefix).await? {
            if !protocol::is_garbage(named.contains(&key), age(&meta), retention) {
                continue;
            }
            if is_blob {
                (pruned.blobs, pruned.bytes) = (pruned.blobs + 1, pruned.bytes + meta.size);
            } else {
                pruned.releases += 1;
            }
            garbage.extend(library.listed_beside(&key).map(|key| (key, meta)));
        }
    }
    let deletions = garbage.iter().map(|(key, meta)| backend.store().delete_version(key, meta)).collect();
    at_once(READS_AT_ONCE, deletions).await?;
    Ok(pruned)
}
