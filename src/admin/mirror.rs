//! The mirror: the plain keys of a published library, written after a release for people and other tools.
//!
//! Readers never depend on it. Every write and every deletion is conditional on what was seen, so what others put
//! there stays; [`protocol::act`](super::protocol::act) decides about each key. A publisher that is killed leaves it
//! behind; the next push or a repair completes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::compare::FileAction;
use super::drift::{self, ComparedKey, Drift, Recorded, SeenKey};
use super::library::{LibraryAdmin, Versioned, at_once, only_over};
use super::new::NewContent;
use super::protocol::{self, Act, Commit};
use super::work::{AT_ONCE, Transfers, WORTH_A_COPY};
use crate::ambient::{Instant, unix_seconds};
use crate::error::{Error, ErrorKind, Hint, Result};
use crate::index::{Digest, Index, Mirror, ReleaseId};
use crate::manifest::skill_file_rank;
use crate::path::leaf;
use crate::store::Meta;

/// How often a key is looked at again when its condition fails.
const ATTEMPTS: u32 = 5;
/// The ETag that the record has for a key that others have removed: no key has it.
const REMOVED: &str = "";

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Mirrored {
    /// What others have changed.
    pub(super) drift: Vec<Drift>,
    /// Whether nobody else can still be writing.
    pub(super) settled: bool,
}

/// Keys that are ours, by path: their ETag, and their content where that is known.
pub(super) type Keys = BTreeMap<String, (String, Option<Digest>)>;

/// How the mirror is brought up to date.
pub(super) struct Mirroring<'a> {
    pub(super) access: &'a LibraryAdmin,
    /// The release that this process has committed.
    pub(super) own: Option<&'a ReleaseId>,
    /// The release that ours was made on.
    pub(super) base: Option<&'a Index>,
    /// Keys that are known to be the library's own.
    pub(super) keys: Keys,
    /// Contents that are at hand.
    pub(super) contents: BTreeMap<Digest, NewContent>,
    /// Compares every key, also where the record says that nothing is to be done.
    pub(super) thorough: bool,
    /// The keys were there before the release: one that is missing now was removed by others.
    pub(super) adopting: bool,
    pub(super) overwrite: bool,
}

/// What came of a key.
enum Done {
    /// It is ours, with this ETag.
    Written(String, Digest),
    Removed,
    Drift(Drift),
    /// A newer release was committed, or another process completed the mirror.
    Overtaken,
}

impl<'a> Mirroring<'a> {
    /// The mirror of a release that somebody else has committed: others' changes stay, and the record is believed.
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

    /// Brings the mirror to the newest release. What others have changed is left alone, and returned.
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
                // It is plain now: its keys are nobody's mirror.
                _ => return Ok(Mirrored::default()),
            }
        }
    }

    /// `None` when a newer release was committed, or another process completed the mirror.
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
        // Another release may have been committed and mirrored meanwhile; or it is so old that it is not listed.
        if mirror.as_ref().is_some_and(|mirror| !index.lists(&mirror.id)) {
            let now = self.access.read_index().await?;
            if now.is_none_or(|now| now.value.id != index.id) {
                return Ok(None);
            }
        }
        // By the time at which the keys are listed, not by that at which they are written.
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
            // No release of ours tells others that somebody is writing: the record does.
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
        // Without a listing, the keys that the release does not change are as they are recorded.
        let mut etags = if short.is_some() { recorded.etags.clone() } else { BTreeMap::new() };
        let written = self.write(index, &recorded, compared, keys, &mut etags, started).await?;
        let Some(drift) = written else { return Ok(None) };
        let answered = self.access.backend.store().unanswered_writes() == unanswered;
        // A library that was plain had no mirror to write.
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

    /// Every key, compared with the newest release.
    async fn all_keys(
        &self,
        index: &Index,
        mirror: Option<&Mirror>,
        keys: &Keys,
    ) -> Result<(Recorded, BTreeMap<String, ComparedKey>)> {
        // What an earlier mirror has recorded of a library that was plain since says nothing.
        let mirror = mirror.filter(|_| !self.adopting);
        let mut recorded = Recorded::of(self.access, index, mirror).await;
        recorded.complete |= self.adopting;
        let present = self.access.mirrored_keys().await?;
        for (path, (etag, sha256)) in keys {
            // What the release replaces is not missed.
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

    /// Replaces the record of the mirror. `None` when somebody else did.
    async fn record(&self, mirror: &Mirror, seen: Option<&str>) -> Result<Option<String>> {
        let internal = |e| Error::new(ErrorKind::Internal, "the mirror could not be recorded").with_source(e);
        let bytes = Bytes::from(mirror.encode().map_err(internal)?);
        let key = self.access.library.mirror();
        for round in 1..=ATTEMPTS {
            match self.access.backend.put_document(&key, bytes.clone(), only_over(seen)).await {
                Ok(Some(Some(etag))) => return Ok(Some(etag)),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(error.during("record the mirror of", &self.access.library)),
            }
            // It may have taken effect all the same: the record itself tells.
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
        // It may still arrive: whoever comes next finds out.
        Err(Error::uncertain(Error::new(ErrorKind::Conflict, "the mirror could not be recorded")))
    }

    /// How long ago somebody else has published, or recorded the mirror.
    fn since_others_wrote(&self, index: &Index, recorded: Option<SystemTime>) -> Duration {
        let mut others = index.releases.iter().rev().filter(|note| Some(&note.id) != self.own);
        let last = others.next().map(|note| note.at).max(recorded.map(unix_seconds));
        let now = unix_seconds(self.access.backend.server_time());
        last.map_or(Duration::MAX, |at| Duration::from_secs(now.saturating_sub(at)))
    }

    /// Writes and deletes what was decided. Files come before their `SKILL.md` and go after it, so that programs
    /// that read the keys find no skill without its files. What others have changed; `None` when overtaken.
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
            let done = at_once(AT_ONCE, writes.collect()).await?;
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

    /// Writes or deletes one key. When its condition fails, the index is read again before anything is decided.
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
                    let _room = work.room(file.size).await?;
                    let seen = key.seen.as_ref().map(|seen| seen.etag.as_str());
                    match self.put(work, index, path, seen).await {
                        Ok(Some(Some(etag))) => {
                            work.tell(1, file.size);
                            return Ok(Done::Written(etag, file.sha256));
                        }
                        Ok(_) => None,
                        Err(error) => Some(error),
                    }
                }
                (Act::Delete, _) => {
                    let _room = work.room(0).await?;
                    let SeenKey { etag, size, .. } = key.seen.clone().unwrap_or_default();
                    let version = Meta { size, modified: None, etag: Some(etag) };
                    match self.access.backend.store().delete_version(&object, &version).await {
                        Ok(true) => {
                            work.tell(1, 0);
                            return Ok(Done::Removed);
                        }
                        Ok(false) => None,
                        Err(error) => Some(error),
                    }
                }
                _ => {
                    work.tell(1, 0);
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

    /// One file of the newest release, over the version that was seen.
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
        // Only what this process has uploaded is known to be what its digest says.
        let uploaded = Some(&file.blob.id) == self.own;
        if file.size >= WORTH_A_COPY && uploaded && self.access.backend.store().capabilities().copies() {
            let blob = self.access.library.blob(file.sha256, &file.blob.id);
            match self.access.backend.copy_object(blob.key(), &key, name, only_over(seen)).await {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                done => return done,
            }
        }
        let blob = NewContent::Blob(file.blob.clone());
        let content = self.contents.get(&file.sha256).unwrap_or(&blob);
        let bytes = work.content(path, file.sha256, content).await?;
        self.access.backend.put_object(&key, name, bytes, only_over(seen)).await
    }
}

/// The keys that a release changes, where the mirror is known to be as the release before it.
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
