//! Letting go of old releases, by a rule: the newest are kept, and those that something is pinned to. A blob goes
//! when no kept release and no skill names it, and it has not been written for a week.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use super::blobs::blobs;
use super::lease::{Lease, UnderWay, read_index, write_index};
use crate::backend::{S3Backend, SkillFs};
use crate::error::{Error, Result};
use crate::index::{Index, ReleaseRecord, Sha256};
use crate::mount::Library;
use crate::store::{Meta, WriteId};

/// So many releases are kept.
const KEPT: usize = 20;
/// Every so many releases, blobs that nothing names are looked for.
const SWEEP_EVERY: u64 = 10;
/// Nothing that is younger goes: a push or a session may rely on it.
pub(super) const GRACE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Requests at once.
const AT_ONCE: usize = 32;
/// How long the library is held at once, in seconds.
const LEASE: u64 = 30;

/// What was let go of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Pruned {
    /// Releases that can no longer be gone back to.
    pub releases: u64,
    /// Contents that nothing names any more.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl SkillFs {
    /// Lets go of old releases: all but the newest 20 and those that a skill is pinned to; and of content that
    /// nothing names any more, once it is a week old.
    ///
    /// # Errors
    /// Those of the storage.
    pub async fn prune(&self, library: &Library) -> Result<Pruned> {
        let backend = self.own_session(&library.session()).fresh();
        let releases = forget(&backend, library).await?;
        let mut pruned = sweep(&backend, library, GRACE).await?;
        pruned.releases = releases;
        Ok(pruned)
    }
}

/// After a push: the index is short at once, and what nothing names any more is looked for now and then.
pub(super) async fn prune_after(backend: &S3Backend, library: &Library, release: u64) -> Result<()> {
    if release > KEPT as u64 {
        forget(backend, library).await?;
        if release.is_multiple_of(SWEEP_EVERY) {
            sweep(backend, library, GRACE).await?;
        }
    }
    Ok(())
}

/// Takes releases that are too many out of the index.
async fn forget(backend: &S3Backend, library: &Library) -> Result<u64> {
    let Some((mut index, etag)) = read_index(backend, library).await? else { return Ok(0) };
    let before = index.releases.len();
    keep(&mut index, KEPT);
    let gone = (before - index.releases.len()) as u64;
    if gone == 0 || index.publishing.is_some() {
        return Ok(0);
    }
    index.id = WriteId::fresh()?;
    // Another wrote it meanwhile: the next push will do.
    Ok(write_index(backend, library, &index, Some(&etag)).await?.map_or(0, |_| gone))
}

fn keep(index: &mut Index, most: usize) {
    let newest = index.releases.len().saturating_sub(most);
    let pinned: BTreeSet<u64> = index.pins.values().copied().collect();
    let mut at = 0;
    index.releases.retain(|note| {
        at += 1;
        at > newest || pinned.contains(&note.number)
    });
}

/// Deletes records and blobs that nothing names any more, and that are older than the grace period.
///
/// The library is held meanwhile: whoever was about to publish, and may rely on a blob, has to look again.
pub(super) async fn sweep(backend: &S3Backend, library: &Library, grace: Duration) -> Result<Pruned> {
    let Some((index, etag)) = read_index(backend, library).await? else { return Ok(Pruned::default()) };
    if let Some(under_way) = UnderWay::of(&index, backend.server_time()) {
        return Err(under_way.refusal(library));
    }
    let publishing = Lease::claim(backend, "prune", LEASE, 0)?;
    let lease = Lease::take(backend, library, index.clone(), Some(&etag), publishing, LEASE).await?;
    let Some(lease) = lease else { return Ok(Pruned::default()) };
    let swept = sweep_held(backend, library, &index, &lease, grace).await;
    match swept {
        Ok(pruned) => lease.finish(|_| ()).await.map(|_| pruned),
        Err(error) => {
            lease.give_up().await;
            Err(error)
        }
    }
}

async fn sweep_held(
    backend: &S3Backend,
    library: &Library,
    index: &Index,
    lease: &Lease<'_>,
    grace: Duration,
) -> Result<Pruned> {
    let kept: BTreeSet<String> = index
        .releases
        .iter()
        .map(|note| library.release(note.number, &note.id).as_str().to_owned())
        .collect();
    let records: Vec<_> = index
        .releases
        .iter()
        .map(|note| async move { read_record(backend, library, note.number, &note.id).await })
        .collect();
    let records: Vec<Option<ReleaseRecord>> =
        stream::iter(records).buffer_unordered(AT_ONCE).try_collect().await?;
    let mut named: BTreeSet<Sha256> =
        index.skills.values().flat_map(|skill| skill.files.values()).map(|file| file.sha256).collect();
    named.extend(index.categories.values().map(|category| category.file.sha256));
    for record in records.iter().flatten() {
        named.extend(record.skills.values().flat_map(|files| files.values()).map(|file| file.sha256));
        named.extend(record.categories.values().map(|file| file.sha256));
    }
    // A record that cannot be read may name anything.
    let complete = records.iter().all(Option::is_some);
    let now = backend.server_time();
    let old =
        |meta: &Meta| meta.modified.and_then(|at| now.duration_since(at).ok()).is_some_and(|age| age > grace);
    let mut going = Vec::new();
    for (key, meta) in backend.objects(&library.releases()).await? {
        if !kept.contains(&key) && old(&meta) {
            going.extend(library.listed_beside(&key).map(|key| (key, meta)));
        }
    }
    let mut pruned = Pruned::default();
    if complete {
        for (sha256, meta) in blobs(backend, library).await? {
            if !named.contains(&sha256) && old(&meta) {
                pruned.blobs += 1;
                pruned.bytes += meta.size;
                going.push((library.blob(sha256), meta));
            }
        }
    }
    let deletions: Vec<_> = going
        .iter()
        .map(|(key, meta)| async move {
            lease.hold().await?;
            backend.delete_object(key, meta).await
        })
        .collect();
    let _: Vec<bool> = stream::iter(deletions).buffer_unordered(AT_ONCE).try_collect().await?;
    Ok(pruned)
}

/// The record of a release; `None` when it is not there.
pub(super) async fn read_record(
    backend: &S3Backend,
    library: &Library,
    number: u64,
    id: &str,
) -> Result<Option<ReleaseRecord>> {
    let key = library.release(number, id);
    let found = backend.object(key.key()).await.map_err(|e| e.during("read a release of", library))?;
    let Some((_, bytes)) = found else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|e| {
        Error::new(
            crate::ErrorKind::Corrupt,
            format!("the record of release {number} of {library} cannot be read"),
        )
        .with_hint("go back to another release; `admin releases` lists them")
        .with_source(e)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::index::ReleaseNote;

    #[cfg(feature = "embedded")]
    #[tokio::test]
    async fn old_content_goes_and_what_is_named_stays() {
        use crate::admin::{NewFile, NewLibrary, NewSkill, PushOptions};
        use crate::config::Settings;
        use crate::id::UserId;

        let embedded = crate::embedded::Embedded::in_memory().unwrap();
        embedded.create_bucket("test-bucket").await.unwrap();
        let fs = SkillFs::embedded(&embedded, &Settings::new("test-bucket")).await.unwrap();
        let library = Library::User(UserId::parse("u1").unwrap());
        for version in 0..25 {
            let text = format!("---\nname: a\ndescription: Version {version}\n---\n");
            let skill = NewSkill::new("a", vec![NewFile::new("SKILL.md", text)]);
            let new = NewLibrary { skills: vec![skill], ..NewLibrary::default() };
            let plan = fs.plan(&library, &new, &PushOptions::default()).await.unwrap();
            fs.publish(&plan, &|_| ()).await.unwrap();
        }
        let backend = fs.own_session(&library.session()).fresh();
        let count = async || blobs(&backend, &library).await.unwrap().len();
        // All of it is young.
        assert_eq!((count().await, fs.releases(&library).await.unwrap().len()), (25, KEPT));
        assert_eq!(fs.prune(&library).await.unwrap(), Pruned::default());
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        let pruned = sweep(&backend, &library, Duration::ZERO).await.unwrap();
        assert_eq!((pruned.blobs, count().await), (5, KEPT));
        // Whoever planned before it has to look again: a blob that it relies on may be gone.
        let text = "---\nname: b\ndescription: Another\n---\n";
        let skill = NewSkill::new("b", vec![NewFile::new("SKILL.md", text)]);
        let new = NewLibrary { skills: vec![skill], ..NewLibrary::default() };
        let plan = fs.plan(&library, &new, &PushOptions::default()).await.unwrap();
        sweep(&backend, &library, Duration::ZERO).await.unwrap();
        let error = fs.publish(&plan, &|_| ()).await.unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Conflict);
        // What is left can be gone back to.
        let plan = fs.plan_rollback(&library, 6, &PushOptions::default()).await.unwrap();
        fs.publish(&plan, &|_| ()).await.unwrap();
        assert!(fs.plan_rollback(&library, 5, &PushOptions::default()).await.is_err());
        assert!(fs.verify(&library, true, &|_| ()).await.unwrap().is_clean());
    }

    #[test]
    fn the_newest_and_the_pinned_releases_are_kept() {
        let mut index = Index::new(String::new(), BTreeMap::new(), BTreeMap::new());
        for number in 1..=9 {
            let (by, source) = (String::new(), String::new());
            let note = ReleaseNote {
                number,
                id: String::new(),
                at: 0,
                by,
                source,
                created: 0,
                updated: 0,
                deleted: 0,
            };
            index.releases.push(note);
        }
        index.pins.insert("a/b".into(), 2);
        keep(&mut index, 3);
        let numbers: Vec<_> = index.releases.iter().map(|note| note.number).collect();
        assert_eq!(numbers, [2, 7, 8, 9]);
    }
}
