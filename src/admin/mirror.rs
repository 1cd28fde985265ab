//! Writes the mirror: a copy of the newest release under the plain keys of the library, for people and other tools.
//!
//! Readers never depend on it. Every write and deletion is conditional on the version that was seen, so changes by
//! other tools are kept; [`protocol::act`](super::protocol::act) decides about each key. A publisher that is killed
//! leaves the mirror incomplete, and the next push or a repair completes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::compare::FileAction;
use super::drift::{self, ComparedKey, Drift, Recorded, SeenKey};
use super::library::{LibraryAdmin, Versioned, if_unchanged, run_concurrently};
use super::new::NewContent;
use super::protocol::{self, Act, Commit};
use super::work::{MAX_REQUESTS, MIN_COPY_BYTES, Transfers};
use crate::ambient::{Instant, unix_seconds};
use crate::error::{Error, ErrorKind, Hint, Result};
use crate::index::{Digest, Index, Mirror, ReleaseId};
use crate::manifest::skill_file_rank;
use crate::path::leaf;
use crate::store::Meta;

/// How often a write is attempted when its condition fails.
const ATTEMPTS: u32 = 5;
/// The recorded ETag of a key that another tool removed. No object has this ETag.
const REMOVED: &str = "";

/// The result of mirroring.
#[derive(Debug, Default)]
pub(super) struct Mirrored {
    /// Keys that other tools have changed.
    pub(super) drift: Vec<Drift>,
    /// Whether no other publisher can still be writing.
    pub(super) settled: bool,
}

/// Keys that the library wrote, by path: the ETag, and the digest if known.
pub(super) type Keys = BTreeMap<String, (String, Option<Digest>)>;

/// Options and context for bringing the mirror up to date.
pub(super) struct Mirroring<'a> {
    pub(super) access: &'a LibraryAdmin,
    /// The release that this process committed.
    pub(super) own: Option<&'a ReleaseId>,
    /// The release that it is based on.
    pub(super) base: Option<&'a Index>,
    /// Keys that the library is known to have written.
    pub(super) keys: Keys,
    /// Contents that do not have to be read from blobs.
    pub(super) contents: BTreeMap<Digest, NewContent>,
    /// Compares every key, even if the record says that the mirror is complete.
    pub(super) thorough: bool,
    /// The keys existed before the release, so another tool removed those that are missing now.
    pub(super) adopting: bool,
    pub(super) overwrite: bool,
}

/// The result of mirroring one key.
enum Done {
    /// The key has the content of the release, with this ETag.
    Written(String, Digest),
    Removed,
    Drift(Drift),
    /// A newer release was committed, or another process completed the mirror.
    Overtaken,
}

impl<'a> Mirroring<'a> {
    /// Completes a mirror without a release of this process: keeps drift, and trusts the record.
    pub(super) fn new(access: &'a LibraryAdmin) -> Self {
        Self {
            access,
            own: None,
            base: None,
            keys: Keys::new(),
            contents: BTreeMap::new(),
            thorough: false,
            adopting: false,
            overwrite: false,
        }
    }

    /// Brings the mirror to the newest release. Keys that other tools changed are kept and returned.
    pub(super) async fn complete(&self, newest: Arc<Index>) -> Result<Mirrored> {
        let unanswered = self.access.backend.store().unanswered_writes();
        let deadline = Instant::now() + self.access.conflict_patience();
        let (mut index, mut base, mut keys, mut round) = (newest, self.base, self.keys.clone(), 0);
        loop {
            match self.complete_once(&index, base, &mut keys, unanswered).await? {
                Some(done) => return Ok(done),
                None if Instant::now() >= deadline => {
                    let library = &self.access.library;
                    let message = format!("others keep publishing to {library} and write its mirror");
                    return Err(Error::new(ErrorKind::Conflict, message).with_hint(Hint::CompleteMirror));
                }
                None => {}
            }
            round += 1;
            self.access.backend.store().pause(round).await;
            base = None;
            match self.access.read_index().await? {
                Some(Versioned { value, .. }) if value.is_published() => index = value,
                // The library is plain now and has no mirror.
                _ => return Ok(Mirrored::default()),
            }
        }
    }

    /// Returns `None` if a newer release was committed, or another process completed the mirror.
    async fn complete_once(
        &self,
        index: &Index,
        base: Option<&Index>,
        keys: &mut Keys,
        unanswered: u64,
    ) -> Result<Option<Mirrored>> {
        let found = self.access.read_mirror().await?;
        let modified = found.as_ref().and_then(|found| found.modified);
        let mut seen = found.as_ref().map(|found| found.etag.clone());
        let mirror = found.and_then(|found| found.value);
        let is_at = |id: &ReleaseId| mirror.as_ref().is_some_and(|mirror| mirror.id == *id);
        let was_settled = mirror.as_ref().is_some_and(|mirror| mirror.settled);
        if is_at(&index.id) && was_settled && !self.thorough && keys.is_empty() {
            return Ok(Some(Mirrored { drift: Vec::new(), settled: true }));
        }
        // The mirrored release is not listed: it is newer than `index`, or too old to be listed.
        if mirror.as_ref().is_some_and(|mirror| !index.lists(&mirror.id)) {
            let now = self.access.read_index().await?;
            if now.is_none_or(|now| now.value.id != index.id) {
                return Ok(None);
            }
        }
        // Determined when the keys are listed: a write that arrives after the listing is not seen.
        let quiet = protocol::is_settled(self.since_others_wrote(index, modified));
        let short = base.filter(|base| {
            !self.thorough && keys.is_empty() && protocol::needs_no_listing(is_at(&base.id), was_settled)
        });
        let (recorded, compared) = match (short, &mirror) {
            (Some(base), Some(mirror)) => changed_keys(index, base, mirror, self.overwrite),
            _ => self.all_keys(index, mirror.as_ref(), keys).await?,
        };
        let idle = compared.values().all(|key| !matches!(key.act, Act::Write | Act::Delete));
        let mut started = index.releases.last().filter(|note| Some(&note.id) == self.own).map(|note| note.at);
        if started.is_none() && !idle {
            // Without a release of this process, the record announces to others that the mirror is being written.
            let (id, etags) = match &mirror {
                Some(mirror) => (mirror.id.clone(), mirror.etags.clone()),
                None => (self.access.fresh_id()?, BTreeMap::new()),
            };
            let announced = Mirror { id, nonce: self.access.fresh_id()?, settled: false, etags };
            match self.record(&announced, seen.as_deref()).await? {
                Some(etag) => seen = Some(etag),
                None => return Ok(None),
            }
            started = Some(unix_seconds(self.access.backend.server_time()));
        }
        // Without a listing, unchanged keys keep their recorded ETags.
        let mut etags = if short.is_some() { recorded.etags.clone() } else { BTreeMap::new() };
        let written = self.write(index, &recorded, compared, keys, &mut etags, started).await?;
        let Some(drift) = written else { return Ok(None) };
        let answered = self.access.backend.store().unanswered_writes() == unanswered;
        // A library that was plain had no mirror that anyone could be writing.
        let undisturbed = was_settled && (is_at(&index.id) || self.adopting);
        let settled = answered && (short.is_some() || quiet || undisturbed);
        if is_at(&index.id)
            && idle
            && mirror.is_some_and(|mirror| mirror.settled == settled && mirror.etags == etags)
        {
            return Ok(Some(Mirrored { drift, settled }));
        }
        let mirror = Mirror { id: index.id.clone(), nonce: self.access.fresh_id()?, settled, etags };
        Ok(self.record(&mirror, seen.as_deref()).await?.map(|_| Mirrored { drift, settled }))
    }

    /// Lists the keys and compares each with the newest release.
    async fn all_keys(
        &self,
        index: &Index,
        mirror: Option<&Mirror>,
        keys: &Keys,
    ) -> Result<(Recorded, BTreeMap<String, ComparedKey>)> {
        // The record of an earlier mirror is meaningless if the library was plain since then.
        let mirror = mirror.filter(|_| !self.adopting);
        let mut recorded = Recorded::of(self.access, index, mirror).await;
        recorded.complete |= self.adopting;
        let present = self.access.mirrored_keys().await?;
        for (path, (etag, sha256)) in keys {
            // A key that the release replaces anyway does not count as removed.
            if sha256.is_some() || present.contains_key(path) {
                recorded.etags.insert(path.clone(), etag.clone());
            }
            match sha256 {
                Some(sha256) => recorded.contents.insert(path.clone(), *sha256),
                None => recorded.contents.remove(path),
            };
        }
        let compared = drift::compare(self.access, index, &recorded, present, self.overwrite).await?;
        Ok((recorded, compared))
    }

    /// Replaces the record of the mirror and returns its ETag; `None` if another process replaced it first.
    async fn record(&self, mirror: &Mirror, seen: Option<&str>) -> Result<Option<String>> {
        let internal = |e| Error::new(ErrorKind::Internal, "the mirror could not be recorded").with_source(e);
        let bytes = Bytes::from(mirror.encode().map_err(internal)?);
        let key = self.access.library.mirror();
        for round in 1..=ATTEMPTS {
            match self.access.backend.put_document(&key, bytes.clone(), if_unchanged(seen)).await {
                Ok(Some(Some(etag))) => return Ok(Some(etag)),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(error.during("record the mirror of", &self.access.library)),
            }
            // The write may have taken effect: read the record to find out.
            let now = self.access.read_mirror().await?;
            let recorded = now.as_ref().and_then(|now| now.value.as_ref());
            let is_ours = recorded.is_some_and(|recorded| recorded.nonce == mirror.nonce);
            let is_base = now.as_ref().map(|now| now.etag.as_str()) == seen;
            match protocol::commit(is_ours, is_base, false) {
                Commit::Done => return Ok(now.map(|now| now.etag)),
                Commit::Resend => self.access.backend.store().pause(round).await,
                Commit::Lost | Commit::Unknown => return Ok(None),
            }
        }
        // The write may still arrive; the next publisher reads the record.
        Err(Error::uncertain(Error::new(ErrorKind::Conflict, "the mirror could not be recorded")))
    }

    /// The time since another process last published, or recorded the mirror.
    fn since_others_wrote(&self, index: &Index, recorded: Option<SystemTime>) -> Duration {
        let mut others = index.releases.iter().rev().filter(|note| Some(&note.id) != self.own);
        let last = others.next().map(|note| note.at).max(recorded.map(unix_seconds));
        let now = unix_seconds(self.access.backend.server_time());
        last.map_or(Duration::MAX, |at| Duration::from_secs(now.saturating_sub(at)))
    }

    /// Writes and deletes keys as decided. Returns the drift, or `None` if another process was faster.
    ///
    /// Files are written before their `SKILL.md` and deleted after it, so that tools that read the keys never find a
    /// skill without its files.
    async fn write(
        &self,
        index: &Index,
        recorded: &Recorded,
        compared: BTreeMap<String, ComparedKey>,
        keys: &mut Keys,
        etags: &mut BTreeMap<String, String>,
        started: Option<u64>,
    ) -> Result<Option<Vec<Drift>>> {
        let mut drift = drift::drifted(index, &compared);
        for (path, key) in &compared {
            match (key.act, &key.seen) {
                (Act::Keep, Some(seen)) => etags.insert(path.clone(), seen.etag.clone()),
                (Act::Drift, None) => etags.insert(path.clone(), REMOVED.to_owned()),
                _ => etags.remove(path),
            };
        }
        let size = |path: &str| index.files.get(path).map_or(0, |file| file.size);
        let todo: Vec<(String, ComparedKey)> =
            compared.into_iter().filter(|(_, key)| matches!(key.act, Act::Write | Act::Delete)).collect();
        let total = (todo.len() as u64, todo.iter().map(|(path, _)| size(path)).sum());
        let work = Transfers::new(self.access, "mirroring", total);
        let is_skill_file = |path: &str| skill_file_rank(leaf(path)).is_some();
        let phases = [(Act::Delete, true), (Act::Write, false), (Act::Write, true), (Act::Delete, false)];
        for (act, own_file) in phases {
            let phase = todo.iter().filter(|(path, key)| key.act == act && is_skill_file(path) == own_file);
            let writes = phase
                .clone()
                .map(|(path, key)| self.write_key(&work, index, recorded, path, key.clone(), started));
            let done = run_concurrently(MAX_REQUESTS, writes.collect()).await?;
            let mut overtaken = false;
            for ((path, _), done) in phase.zip(done) {
                match done {
                    Done::Written(etag, sha256) => {
                        etags.insert(path.clone(), etag.clone());
                        keys.insert(path.clone(), (etag, Some(sha256)));
                    }
                    Done::Removed => {
                        keys.remove(path);
                    }
                    Done::Drift(found) => {
                        if found.change == FileAction::Remove {
                            etags.insert(path.clone(), REMOVED.to_owned());
                        }
                        drift.push(found);
                    }
                    Done::Overtaken => overtaken = true,
                }
            }
            if overtaken {
                return Ok(None);
            }
        }
        drift.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(Some(drift))
    }

    /// Writes or deletes one key. If its condition fails, the index is read again before the next decision.
    async fn write_key(
        &self,
        work: &Transfers<'_>,
        index: &Index,
        recorded: &Recorded,
        path: &str,
        mut key: ComparedKey,
        started: Option<u64>,
    ) -> Result<Done> {
        let (location, object) = self.access.library.file(path)?;
        let now = || unix_seconds(self.access.backend.server_time());
        let age = || started.map_or(0, |started| now().saturating_sub(started));
        let wanted = index.files.get(path);
        for attempt in 1.. {
            if protocol::mirror_expired(Duration::from_secs(age())) {
                return Err(Error::new(ErrorKind::Timeout, "writing the keys took too long")
                    .with_hint(Hint::CompleteMirror));
            }
            let failed = match (key.act, wanted) {
                (Act::Keep, Some(file)) => {
                    let etag = key.seen.map(|seen| seen.etag).unwrap_or_default();
                    return Ok(Done::Written(etag, file.sha256));
                }
                (Act::Keep, None) => return Ok(Done::Removed),
                (Act::Write, Some(file)) => {
                    let _permits = work.reserve(file.size).await?;
                    let seen = key.seen.as_ref().map(|seen| seen.etag.as_str());
                    match self.put(work, index, path, seen).await {
                        Ok(Some(Some(etag))) => {
                            work.report(1, file.size);
                            return Ok(Done::Written(etag, file.sha256));
                        }
                        Ok(_) => None,
                        Err(error) => Some(error),
                    }
                }
                (Act::Delete, _) => {
                    let _permits = work.reserve(0).await?;
                    let SeenKey { etag, size, .. } = key.seen.clone().unwrap_or_default();
                    let version = Meta { size, modified: None, etag: Some(etag) };
                    match self.access.backend.store().delete_version(&object, &version).await {
                        Ok(true) => {
                            work.report(1, 0);
                            return Ok(Done::Removed);
                        }
                        Ok(false) => None,
                        Err(error) => Some(error),
                    }
                }
                _ => {
                    work.report(1, 0);
                    return Ok(match key.act {
                        Act::Drift => Done::Drift(Drift::of(index, path, key.seen.as_ref())),
                        _ => Done::Removed,
                    });
                }
            };
            if let Some(error) = failed
                && (error.kind() != ErrorKind::Conflict || attempt == ATTEMPTS)
            {
                return Err(error.during("write", &location));
            }
            let now = self.access.read_index().await?;
            if now.is_none_or(|now| now.value.id != index.id) || attempt == ATTEMPTS {
                return Ok(Done::Overtaken);
            }
            let found = self
                .access
                .backend
                .digest_object(object.key())
                .await
                .map_err(|e| e.during("read", &location))?;
            let seen = found.map(|(sha256, meta)| SeenKey::of(meta, Some(sha256)));
            let unclear = seen.as_ref().and_then(|seen| Some((path.to_owned(), seen.sha256?)));
            let unclear = unclear.filter(|(_, sha256)| wanted.map(|file| file.sha256) != Some(*sha256));
            let named = drift::named(self.access, index, unclear.into_iter().collect()).await;
            let act = recorded.act(index, path, seen.as_ref(), named.contains(path), self.overwrite);
            key = ComparedKey { act, seen };
        }
        Ok(Done::Overtaken)
    }

    /// Writes one file of the newest release, if the key still has the version that was seen.
    async fn put(
        &self,
        work: &Transfers<'_>,
        index: &Index,
        path: &str,
        seen: Option<&str>,
    ) -> Result<Option<Option<String>>> {
        let (_, key) = self.access.library.file(path)?;
        let Some(file) = index.files.get(path) else { return Ok(None) };
        let name = leaf(path);
        // Other blobs may be damaged, so their digest is verified before they are copied.
        let uploaded = Some(&file.blob.id) == self.own;
        if file.size >= MIN_COPY_BYTES && uploaded && self.access.backend.store().capabilities().copies() {
            let blob = self.access.library.blob(file.sha256, &file.blob.id);
            match self.access.backend.copy_object(blob.key(), &key, name, if_unchanged(seen)).await {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                done => return done,
            }
        }
        let blob = NewContent::Blob(file.blob.clone());
        let content = self.contents.get(&file.sha256).unwrap_or(&blob);
        let bytes = work.content(path, file.sha256, content).await?;
        self.access.backend.put_object(&key, name, bytes, if_unchanged(seen)).await
    }
}

/// The keys that a release changes, without a listing. The mirror must be complete at the base release.
fn changed_keys(
    index: &Index,
    base: &Index,
    mirror: &Mirror,
    overwrite: bool,
) -> (Recorded, BTreeMap<String, ComparedKey>) {
    let contents = base.files.iter().map(|(path, file)| (path.clone(), file.sha256)).collect();
    let recorded = Recorded { etags: mirror.etags.clone(), contents, complete: true };
    let paths: BTreeSet<&String> = base.files.keys().chain(index.files.keys()).collect();
    let digest = |index: &Index, path: &str| index.files.get(path).map(|file| file.sha256);
    let changed = paths.into_iter().filter(|path| digest(base, path) != digest(index, path));
    let compared = changed.map(|path| {
        let etag = recorded.etags.get(path).filter(|etag| *etag != REMOVED).cloned();
        let seen = etag.map(|etag| SeenKey { etag, size: 0, sha256: None });
        let act = recorded.act(index, path, seen.as_ref(), false, overwrite);
        (path.clone(), ComparedKey { act, seen })
    });
    let compared = compared.collect();
    (recorded, compared)
}
