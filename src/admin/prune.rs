//! Prune: deletes blobs and records that no listed release names and that are older than the grace period.
//!
//! This needs no lock. A push relies only on keys that the index it replaces names or lists, and on its own uploads of
//! the last day. Blob keys are never reused. So a key that is unreferenced and older than the grace period stays
//! unreferenced, no matter how late its deletion arrives.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use super::library::{LibraryAdmin, MAX_READS, run_concurrently};
use super::protocol::{self, Retention};
use crate::ambient::Instant;
use crate::error::Result;
use crate::index::Index;
use crate::store::Meta;

/// The result of a prune: what was deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Pruned {
    /// The number of records of releases that are no longer listed.
    pub releases: u64,
    /// The number of blobs that no listed release names.
    pub blobs: u64,
    /// The total size of these blobs in bytes.
    pub bytes: u64,
}

impl LibraryAdmin {
    /// Deletes stored content that no listed release names and that is older than the grace period in
    /// [`Settings::retention`](crate::Settings::retention).
    ///
    /// Publishing prunes automatically after every tenth release. Costs one request for the index, one for each listed
    /// release, a listing of blobs and records, and one request for each deleted object.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if the index or a listed release cannot be read. Nothing is
    /// deleted in that case.
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
    // Ages are relative to the time before the index was read: a push may have committed a blob since then.
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
    run_concurrently(MAX_READS, deletions).await?;
    Ok(pruned)
}
