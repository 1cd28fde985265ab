//! Publishing: blobs first, then one conditional write that makes the release visible, then the files where
//! people and other tools look for them.
//!
//! Readers see all of the old release or all of the new one, wherever this stops. SEMANTICS.md has every point
//! at which it can.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use tokio::sync::Semaphore;
use tracing::instrument;

use super::lease::{Lease, UnderWay, read_index, seconds, wait_for};
use super::plan::{Action, NewContent, NewFile, Plan, PlannedSkill};
use super::prune;
use crate::backend::{FIRST_INDEX, S3Backend, SkillFs, Union};
use crate::error::{Error, ErrorKind, Result};
use crate::index::{
    Index, IndexedCategory, IndexedFile, IndexedSkill, Managed, RecordedFile, ReleaseNote, ReleaseRecord,
    Sha256, State,
};
use crate::manifest::read_description;
use crate::mount::Library;
use crate::store::{Condition, Meta, WriteId};

/// Requests that are under way at once.
const AT_ONCE: usize = 64;
/// Bytes of files that are held at once, in KiB.
const HELD_KIB: usize = 64 * 1024;
/// How often a deletion is tried when it cannot be told whether it took effect.
const ATTEMPTS: u32 = 5;
/// Up to so many blobs are asked for one by one; more are listed.
const FEW: usize = 16;
/// A blob that is needed and older than this is written again: it may be about to go.
const NEAR_ITS_END: Duration = Duration::from_secs(6 * 24 * 3600);
/// A content of so many bytes is copied on the server rather than sent, where another library has it.
const WORTH_A_COPY: u64 = 256 * 1024;
/// A long category's description is not read.
const MAX_DESCRIPTION: u64 = 4 * 1024;

/// How far a push is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PushProgress {
    /// What is being done.
    pub phase: &'static str,
    /// Files done, and files in all.
    pub files: (u64, u64),
    /// Bytes done, and bytes in all.
    pub bytes: (u64, u64),
}

/// Who wants to know how far a push is.
pub type PushWatch<'w> = &'w (dyn Fn(PushProgress) + Sync);

/// A file that somebody changed while it was published: it was not overwritten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HandEdit {
    /// The file's path below `/skills`.
    pub path: String,
}

/// What was published.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Published {
    /// The number of the release; `None` when nothing had changed.
    pub release: Option<u64>,
    /// Skills that are new.
    pub created: u64,
    /// Skills that changed.
    pub updated: u64,
    /// Skills that are gone.
    pub deleted: u64,
    /// Skills that were the same already.
    pub unchanged: u64,
    /// Skills that were not published.
    pub refused: u64,
    /// Skills that are pinned.
    pub pinned: u64,
    /// Files that were uploaded.
    pub uploaded: u64,
    /// Their bytes.
    pub uploaded_bytes: u64,
    /// Files that somebody changed meanwhile, and that were left as they are: their skills are shown as they lie
    /// there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed_by_hand: Vec<HandEdit>,
}

/// What to write into the library for one skill.
struct Job {
    path: String,
    file: String,
    /// What is to lie there; nothing for a skill that goes.
    files: BTreeMap<String, IndexedFile>,
    /// What may be overwritten or deleted, with its ETag.
    was: BTreeMap<String, String>,
    /// What lies there.
    live: BTreeMap<String, Meta>,
    content: BTreeMap<String, NewContent>,
}

/// What came of it.
struct JobDone {
    path: String,
    /// The ETags of what lies there now.
    etags: BTreeMap<String, String>,
    by_hand: Vec<HandEdit>,
}

/// What all requests of a push share.
struct Work<'a> {
    backend: &'a S3Backend,
    library: &'a Library,
    requests: Semaphore,
    held: Semaphore,
    files: AtomicU64,
    bytes: AtomicU64,
    total: (u64, u64),
    phase: &'static str,
    watch: PushWatch<'a>,
}

impl<'a> Work<'a> {
    fn new(
        backend: &'a S3Backend,
        library: &'a Library,
        phase: &'static str,
        total: (u64, u64),
        watch: PushWatch<'a>,
    ) -> Self {
        let work = Self {
            backend,
            library,
            requests: Semaphore::new(AT_ONCE),
            held: Semaphore::new(HELD_KIB),
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            total,
            phase,
            watch,
        };
        work.tell(0, 0);
        work
    }

    fn tell(&self, files: u64, bytes: u64) {
        let files = self.files.fetch_add(files, Ordering::Relaxed) + files;
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (self.watch)(PushProgress {
            phase: self.phase,
            files: (files, self.total.0),
            bytes: (bytes, self.total.1),
        });
    }

    /// Room for a request, and for what it sends.
    async fn room(
        &self,
        size: u64,
    ) -> Result<(tokio::sync::SemaphorePermit<'_>, tokio::sync::SemaphorePermit<'_>)> {
        let closed = |e| Error::new(ErrorKind::Internal, "publishing has ended").with_source(e);
        let kib = u32::try_from(size.div_ceil(1024).min(HELD_KIB as u64)).unwrap_or(u32::MAX);
        let request = self.requests.acquire().await.map_err(closed)?;
        Ok((request, self.held.acquire_many(kib).await.map_err(closed)?))
    }

    async fn content(&self, path: &str, sha256: Sha256, content: &NewContent) -> Result<Bytes> {
        let bytes = match content {
            NewContent::Bytes(bytes) => return Ok(bytes.clone()),
            NewContent::Local(file) => {
                let file = file.clone();
                let shown = file.display().to_string();
                let read = tokio::task::spawn_blocking(move || std::fs::read(file)).await;
                let read = read.map_err(std::io::Error::other).and_then(|read| read);
                Bytes::from(read.map_err(|e| {
                    Error::new(ErrorKind::Unavailable, format!("cannot read `{shown}`: {e}"))
                        .with_hint("nothing of this release is visible yet, or all of it; push again")
                })?)
            }
            NewContent::Blob => {
                let key = self.library.blob(sha256);
                match self.backend.object(key.key()).await? {
                    Some((_, bytes)) => bytes,
                    None => {
                        return Err(Error::new(
                            ErrorKind::Corrupt,
                            format!("the content of `{path}` is not there any more"),
                        )
                        .with_hint("push the skill anew from its source, with `--overwrite`"));
                    }
                }
            }
        };
        if Sha256::of(&bytes) == sha256 {
            return Ok(bytes);
        }
        Err(match content {
            NewContent::Blob => {
                Error::new(ErrorKind::Corrupt, format!("the stored content of `{path}` is damaged"))
                    .with_hint("push the skill anew from its source, with `--overwrite`")
            }
            _ => {
                Error::new(ErrorKind::Conflict, format!("`{path}` was changed while it was being published"))
                    .with_hint("push again")
            }
        })
    }

    /// Makes sure that a content lies among the blobs.
    async fn blob(&self, path: &str, file: &NewFile, from: Option<&Library>) -> Result<()> {
        let _room = self.room(file.size).await?;
        let key = self.library.blob(file.sha256);
        if let Some(from) = from.filter(|_| file.size >= WORTH_A_COPY) {
            // Whatever is wrong with that, there is another way.
            let source = from.blob(file.sha256);
            let copy = self.backend.copy_object(source.key(), &key, &file.name, Condition::Always).await;
            if copy.is_ok_and(|copied| copied.is_some()) {
                self.tell(1, file.size);
                return Ok(());
            }
        }
        let bytes = self.content(path, file.sha256, &file.content).await?;
        self.backend
            .put_object(&key, &file.name, bytes, Condition::Always)
            .await
            .map_err(|e| e.during("upload", path))?;
        self.tell(1, file.size);
        Ok(())
    }

    /// Writes what one skill is into the library. Its `SKILL.md` is the last to come and the first to go, so that
    /// also those who know nothing of releases find no skill without its files.
    async fn mirror(&self, lease: &Lease<'_>, job: Job) -> Result<JobDone> {
        let mut done = JobDone { path: job.path.clone(), etags: BTreeMap::new(), by_hand: Vec::new() };
        let (own, others): (Vec<_>, Vec<_>) = job.files.iter().partition(|(name, _)| **name == job.file);
        let goes = |name: &&String| !job.files.contains_key(*name);
        if job.files.is_empty() {
            // The skill goes: first what makes it one.
            let own = job.was.keys().find(|name| **name == job.file);
            if let Some(name) = own {
                self.remove(lease, &job, name, &mut done).await?;
            }
        }
        for files in [others, own] {
            let writes: Vec<_> =
                files.into_iter().map(|(name, file)| self.mirror_file(lease, &job, name, file)).collect();
            let written: Vec<_> = stream::iter(writes).buffered(AT_ONCE).try_collect().await?;
            for (name, etag) in written {
                match etag {
                    Some(etag) => {
                        done.etags.insert(name, etag);
                    }
                    None => done.by_hand.push(HandEdit { path: format!("{}/{name}", job.path) }),
                }
            }
        }
        for name in job.was.keys().filter(goes) {
            self.remove(lease, &job, name, &mut done).await?;
        }
        let known = |name: &&String| !job.files.contains_key(*name) && !job.was.contains_key(*name);
        for name in job.live.keys().filter(known) {
            done.by_hand.push(HandEdit { path: format!("{}/{name}", job.path) });
        }
        Ok(done)
    }

    /// One file; its ETag, or nothing when somebody else wrote it meanwhile.
    async fn mirror_file(
        &self,
        lease: &Lease<'_>,
        job: &Job,
        name: &str,
        file: &IndexedFile,
    ) -> Result<(String, Option<String>)> {
        let path = format!("{}/{name}", job.path);
        let live = job.live.get(name).and_then(|meta| meta.etag.as_deref());
        if live.is_some_and(|etag| etag == file.etag) {
            return Ok((name.to_owned(), Some(file.etag.clone())));
        }
        let (location, key) = self.library.file(&path)?;
        let was = job.was.get(name).map(String::as_str);
        let _room = self.room(file.size).await?;
        let fails = |e: Error| e.during("publish", &location);
        let mut failed = None;
        if live == was {
            let condition = match was {
                Some(etag) => Condition::Version { etag: etag.to_owned(), known: None },
                None => Condition::Absent,
            };
            // What is large lies on the server already.
            let written = if file.size >= WORTH_A_COPY && self.backend.copies_conditionally() {
                let blob = self.library.blob(file.sha256);
                lease.hold().await?;
                self.backend.copy_object(blob.key(), &key, name, condition).await
            } else {
                let content = job.content.get(name).unwrap_or(&NewContent::Blob);
                let bytes = self.content(&path, file.sha256, content).await?;
                lease.hold().await?;
                self.backend.put_object(&key, name, bytes, condition).await
            };
            match written {
                Ok(Some(Some(etag))) => {
                    self.tell(1, file.size);
                    return Ok((name.to_owned(), Some(etag)));
                }
                Ok(_) => {}
                Err(error) => {
                    lease.failed(&error);
                    if error.kind() != ErrorKind::Conflict {
                        return Err(fails(error));
                    }
                    failed = Some(error);
                }
            }
        }
        // Another version lies there: perhaps it is ours, from before an interruption.
        let there = self.backend.digest_object(key.key()).await.map_err(fails)?;
        if let Some((sha256, meta)) = &there
            && *sha256 == file.sha256
        {
            self.tell(1, file.size);
            return Ok((name.to_owned(), meta.etag.clone()));
        }
        // What was there before is no edit: our own write did not get through.
        let unchanged = there.as_ref().and_then(|(_, meta)| meta.etag.as_deref()) == was;
        if let (Some(error), true) = (failed, unchanged) {
            return Err(fails(error));
        }
        self.tell(1, file.size);
        Ok((name.to_owned(), None))
    }

    async fn remove(&self, lease: &Lease<'_>, job: &Job, name: &str, done: &mut JobDone) -> Result<()> {
        let path = format!("{}/{name}", job.path);
        let Some(live) = job.live.get(name) else { return Ok(()) };
        let (location, key) = self.library.file(&path)?;
        let _room = self.room(0).await?;
        let fails = |e: Error| e.during("delete", &location);
        let mut there = live.clone();
        for attempt in 1..=ATTEMPTS {
            if there.etag.as_ref() != job.was.get(name) {
                done.by_hand.push(HandEdit { path });
                return Ok(());
            }
            lease.hold().await?;
            match self.backend.delete_object(&key, &there).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    lease.failed(&error);
                    if error.kind() != ErrorKind::Conflict || attempt == ATTEMPTS {
                        return Err(fails(error));
                    }
                }
            }
            match self.backend.object_meta(key.key()).await.map_err(fails)? {
                Some(meta) => there = meta,
                None => return Ok(()),
            }
        }
        Err(fails(Error::new(ErrorKind::Conflict, "it cannot be deleted, though it is what it was")))
    }
}

impl SkillFs {
    /// Publishes what a plan says.
    ///
    /// Readers see each skill as it was or as it is to be, and never a mixture. Interrupted, it is finished by the
    /// next push, or by [`SkillFs::verify`] with repair; readers are right meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when another published meanwhile: nothing of this is visible, and the plan is to be
    /// made anew. [`ErrorKind::Unavailable`] where the server does not mind conditional writes.
    #[instrument(name = "publish", skip_all, fields(library = %plan.library))]
    pub async fn publish(&self, plan: &Plan, watch: PushWatch<'_>) -> Result<Published> {
        let mut published = Published {
            created: plan.count(Action::Create),
            updated: plan.count(Action::Update),
            deleted: plan.count(Action::Delete),
            unchanged: plan.count(Action::Unchanged),
            refused: plan.count(Action::Refused),
            pinned: plan.count(Action::Pinned),
            ..Published::default()
        };
        let library = &plan.library;
        if let Some(under_way) = &plan.under_way {
            return Err(under_way.refusal(library));
        }
        if !plan.changes() {
            return Ok(published);
        }
        let backend = self.session(&library.session()).fresh();
        backend.check_conditions(library).await?;
        self.upload(&backend, plan, &mut published, watch).await?;

        let (index, record) = self.release(&backend, plan).await?;
        let number = record.note.number;
        let record_key = library.release(number, &record.note.id);
        let internal =
            |e| Error::new(ErrorKind::Internal, "the release could not be written down").with_source(e);
        let json = serde_json::to_vec(&record).map_err(internal)?;
        backend
            .put_object(&record_key, "release.json", json.into(), Condition::Absent)
            .await
            .map_err(|e| e.during("write a release of", library))?;
        let sizes = plan.changing().flat_map(|skill| skill.files.iter().map(|file| file.size));
        let publishing =
            Lease::claim(&backend, &plan.options.by, plan.options.lease, sizes.max().unwrap_or(0))?;
        let seen = plan.base.etag.as_deref();
        let lease =
            Lease::take(&backend, library, index.clone(), seen, publishing, plan.options.lease).await?;
        let Some(lease) = lease else {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("another published to {library}, or wrote its index, at the same time"),
            )
            .with_hint("nothing of this push is visible; run it again to see what would change now"));
        };
        let committed = Instant::now();
        let jobs = plan.changing().map(|skill| job_of(skill, &index)).collect();
        let first = plan.base.index.is_none() && plan.skills.iter().any(|skill| !skill.live.is_empty());
        if first {
            // A reader that found no index yet may still be listing.
            let rest = (FIRST_INDEX + Duration::from_secs(1)).saturating_sub(committed.elapsed());
            tokio::time::sleep(rest).await;
        }
        published.changed_by_hand = self.finish(&backend, &lease, jobs, Some(plan), watch).await?;
        published.release = Some(number);
        if plan.base.unindexed {
            // What nobody published is indexed, too: catalogues are quick then.
            if let Err(error) = self.write_index(library).await {
                tracing::warn!("the index of {library} does not know all skills: {error}");
            }
        }
        if let Err(error) = prune::prune_after(&backend, library, number).await {
            tracing::warn!("old releases of {library} could not be pruned: {error}");
        }
        Ok(published)
    }

    /// Finishes what somebody began to publish and left behind. `None` when there is nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] while somebody is at it; with `wait` it is waited for.
    #[instrument(name = "resume", skip_all, fields(%library))]
    pub async fn resume(
        &self,
        library: &Library,
        by: &str,
        lease: u64,
        wait: bool,
        watch: PushWatch<'_>,
    ) -> Result<Option<Vec<HandEdit>>> {
        let backend = self.session(&library.session()).fresh();
        loop {
            let Some((index, etag)) = read_index(&backend, library).await? else { return Ok(None) };
            let Some(under_way) = UnderWay::of(&index, backend.server_time()) else { return Ok(None) };
            if under_way.free_in > 0 {
                if wait {
                    wait_for(&index, &backend).await;
                    continue;
                }
                return Err(under_way.refusal(library));
            }
            let unfinished = index
                .skills
                .iter()
                .filter_map(|(path, skill)| Some((path, skill, skill.managed.as_ref()?.state.was()?)));
            let largest = unfinished
                .clone()
                .flat_map(|(_, skill, _)| skill.files.values().map(|file| file.size))
                .max()
                .unwrap_or(0);
            let publishing = Lease::claim(&backend, by, lease, largest)?;
            let mut jobs = Vec::new();
            for (path, skill, was) in unfinished {
                let removing = matches!(
                    skill.managed.as_ref().map(|managed| &managed.state),
                    Some(State::Removing { .. })
                );
                jobs.push(Job {
                    path: path.clone(),
                    file: skill.file.clone(),
                    files: if removing { BTreeMap::new() } else { skill.files.clone() },
                    was: was.clone(),
                    live: BTreeMap::new(),
                    content: BTreeMap::new(),
                });
            }
            let Some(lease) = Lease::take(&backend, library, index, Some(&etag), publishing, lease).await?
            else {
                continue;
            };
            // Only now nobody else writes there.
            let looks: Vec<_> = jobs.iter().map(|job| live_objects(&backend, library, &job.path)).collect();
            let looks: Vec<_> = match stream::iter(looks).buffered(AT_ONCE).try_collect().await {
                Ok(looks) => looks,
                Err(error) => {
                    lease.give_up().await;
                    return Err(error);
                }
            };
            for (job, live) in jobs.iter_mut().zip(looks) {
                job.live = live;
            }
            return self.finish(&backend, &lease, jobs, None, watch).await.map(Some);
        }
    }

    /// Uploads what is not there yet.
    async fn upload(
        &self,
        backend: &S3Backend,
        plan: &Plan,
        published: &mut Published,
        watch: PushWatch<'_>,
    ) -> Result<()> {
        let library = &plan.library;
        let mut wanted: BTreeMap<Sha256, (String, &NewFile)> = BTreeMap::new();
        for skill in plan.changing().chain(&plan.categories) {
            for file in skill.new.iter().flat_map(|new| &new.files) {
                wanted.entry(file.sha256).or_insert_with(|| (format!("{}/{}", skill.path, file.name), file));
            }
        }
        let there = stored(backend, library, wanted.keys().copied().collect()).await?;
        wanted.retain(|sha256, (_, file)| there.get(sha256) != Some(&file.size));
        let total = (wanted.len() as u64, wanted.values().map(|(_, file)| file.size).sum());
        let work = Work::new(backend, library, "uploading", total, watch);
        let uploads: Vec<_> = wanted
            .values()
            .map(|(path, file)| work.blob(path, file, plan.options.copy_from.as_ref()))
            .collect();
        let mut uploads = stream::iter(uploads).buffer_unordered(AT_ONCE);
        while let Some(done) = uploads.next().await {
            done?;
        }
        (published.uploaded, published.uploaded_bytes) = total;
        Ok(())
    }

    /// The index and the record of the release that a plan makes.
    async fn release(&self, backend: &S3Backend, plan: &Plan) -> Result<(Index, ReleaseRecord)> {
        let at = seconds(backend.server_time());
        let mut index = plan
            .base
            .index
            .clone()
            .unwrap_or_else(|| Index::new(String::new(), BTreeMap::new(), BTreeMap::new()));
        index.id = WriteId::fresh()?;
        index.release += 1;
        let number = index.release;
        for skill in plan.changing() {
            let was: BTreeMap<String, String> = skill
                .live
                .iter()
                .filter_map(|(name, meta)| Some((name.clone(), meta.etag.clone()?)))
                .collect();
            let state = match skill.action {
                Action::Delete => State::Removing { was },
                _ => State::Pending { was },
            };
            let managed = Some(Managed { release: number, at, state });
            let Some(new) = &skill.new else {
                let known = index.skills.entry(skill.path.clone()).or_insert_with(|| IndexedSkill {
                    file: file_of(skill.live.keys()).unwrap_or("SKILL.md").to_owned(),
                    frontmatter: None,
                    head: None,
                    files: BTreeMap::new(),
                    managed: None,
                });
                known.managed = managed;
                continue;
            };
            let indexed = |file: &NewFile| {
                let etag = skill.same.get(&file.name).cloned().unwrap_or_default();
                (file.name.clone(), IndexedFile { size: file.size, etag, sha256: file.sha256 })
            };
            let file = file_of(new.files.iter().map(|file| &file.name)).unwrap_or("SKILL.md").to_owned();
            let files = new.files.iter().map(indexed).collect();
            let skill = IndexedSkill { file, frontmatter: None, head: None, files, managed };
            index.skills.insert(new.path.clone(), skill);
        }
        self.tell_heads(backend, plan, &mut index).await?;
        let count = |action| plan.count(action);
        let note = ReleaseNote {
            number,
            id: index.id.clone(),
            at,
            by: plan.options.by.clone(),
            source: plan.options.source.clone(),
            created: count(Action::Create),
            updated: count(Action::Update),
            deleted: count(Action::Delete),
        };
        index.releases.push(note.clone());
        let recorded = |file: &IndexedFile| RecordedFile { size: file.size, sha256: file.sha256 };
        let managed = index.skills.iter().filter(|(_, skill)| {
            let state = skill.managed.as_ref().map(|managed| &managed.state);
            matches!(state, Some(State::Published | State::Pending { .. }))
        });
        let skills = managed
            .map(|(path, skill)| {
                let files = skill.files.iter().map(|(name, file)| (name.clone(), recorded(file)));
                (path.clone(), files.collect())
            })
            .collect();
        let mut categories: BTreeMap<_, _> = index
            .categories
            .iter()
            .map(|(path, category)| (path.clone(), recorded(&category.file)))
            .collect();
        for planned in &plan.categories {
            if let Some((path, file)) = described(planned) {
                categories.insert(path.to_owned(), RecordedFile { size: file.size, sha256: file.sha256 });
            }
        }
        Ok((index, ReleaseRecord { note, skills, categories }))
    }

    /// What the heads of new skill files say: readers of the index see what readers of the files do.
    async fn tell_heads(&self, backend: &S3Backend, plan: &Plan, index: &mut Index) -> Result<()> {
        let silent = |_: PushProgress| ();
        let work = Work::new(backend, &plan.library, "", (0, 0), &silent);
        let union = Union::of_index(index.clone());
        let mut heads = Vec::new();
        for skill in plan.changing() {
            let Some(new) = &skill.new else { continue };
            let file = index.skills.get(&new.path).map(|known| known.file.clone()).unwrap_or_default();
            let Some(own) = new.files.iter().find(|own| own.name == file) else { continue };
            heads.push(async {
                let _room = work.room(own.size).await?;
                let bytes = work.content(&new.path, own.sha256, &own.content).await?;
                Ok::<_, Error>((new.path.clone(), bytes))
            });
        }
        let heads: Vec<_> = stream::iter(heads).buffer_unordered(AT_ONCE).try_collect().await?;
        for (path, bytes) in heads {
            if let Some(skill) = index.skills.get_mut(&path) {
                backend.tell_new_head(&union, skill, &path, &bytes);
            }
        }
        Ok(())
    }

    /// Writes the files of a release into the library, and then that they lie there.
    async fn finish(
        &self,
        backend: &S3Backend,
        lease: &Lease<'_>,
        jobs: Vec<Job>,
        plan: Option<&Plan>,
        watch: PushWatch<'_>,
    ) -> Result<Vec<HandEdit>> {
        let done = match self.mirror(backend, lease, jobs, plan, watch).await {
            Ok(done) => done,
            Err(error) => {
                lease.give_up().await;
                return Err(error.with_hint(
                    "the release is committed, and readers see it; run the push again to write the rest of its files",
                ));
            }
        };
        let (jobs, categories) = done;
        let by_hand = jobs.iter().flat_map(|job| job.by_hand.iter().cloned()).collect();
        lease
            .finish(|index| {
                for job in &jobs {
                    settle(index, job);
                }
                for (path, category) in &categories {
                    index.categories.insert(path.clone(), category.clone());
                }
            })
            .await?;
        Ok(by_hand)
    }

    async fn mirror(
        &self,
        backend: &S3Backend,
        lease: &Lease<'_>,
        jobs: Vec<Job>,
        plan: Option<&Plan>,
        watch: PushWatch<'_>,
    ) -> Result<(Vec<JobDone>, Vec<(String, IndexedCategory)>)> {
        let open = |job: &Job| {
            let differs = |(name, file): &(&String, &IndexedFile)| {
                job.live.get(*name).and_then(|meta| meta.etag.as_deref()) != Some(file.etag.as_str())
            };
            let (mut files, mut bytes) = (0, 0);
            for (_, file) in job.files.iter().filter(differs) {
                (files, bytes) = (files + 1, bytes + file.size);
            }
            (files, bytes)
        };
        let total = jobs.iter().map(open).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let work = Work::new(backend, lease.library(), "publishing", total, watch);
        let mut categories = Vec::new();
        for planned in plan.iter().flat_map(|plan| &plan.categories) {
            categories.extend(write_category(&work, lease, planned).await?);
        }
        let writes: Vec<_> = jobs.into_iter().map(|job| work.mirror(lease, job)).collect();
        let mut writes = stream::iter(writes).buffer_unordered(AT_ONCE);
        let (mut done, mut failed) = (Vec::new(), None);
        // One that fails does not stop the others: they may as well be done.
        while let Some(job) = writes.next().await {
            match job {
                Ok(job) => done.push(job),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok((done, categories)),
        }
    }
}

/// What a skill is to be, from a plan.
fn job_of(skill: &PlannedSkill, index: &Index) -> Job {
    let known = index.skills.get(&skill.path);
    let (files, content) = match &skill.new {
        Some(new) => (
            known.map(|known| known.files.clone()).unwrap_or_default(),
            new.files.iter().map(|file| (file.name.clone(), file.content.clone())).collect(),
        ),
        None => (BTreeMap::new(), BTreeMap::new()),
    };
    let was = skill.live.iter().filter_map(|(name, meta)| Some((name.clone(), meta.etag.clone()?))).collect();
    Job {
        path: skill.path.clone(),
        file: known.map(|known| known.file.clone()).unwrap_or_default(),
        files,
        was,
        live: skill.live.clone(),
        content,
    }
}

/// Writes into an index that a skill's files lie where they belong.
fn settle(index: &mut Index, job: &JobDone) {
    let Some(skill) = index.skills.get_mut(&job.path) else { return };
    let Some(managed) = &mut skill.managed else { return };
    if matches!(managed.state, State::Removing { .. }) {
        index.skills.remove(&job.path);
        return;
    }
    managed.state = State::Published;
    for (name, file) in &mut skill.files {
        file.etag = job.etags.get(name).cloned().unwrap_or_default();
    }
}

fn described(planned: &PlannedSkill) -> Option<(&str, &NewFile)> {
    let new = planned.new.as_ref()?;
    Some((&new.path, new.files.first()?))
}

/// One object: it is the old one or the new one, and needs no release.
async fn write_category(
    work: &Work<'_>,
    lease: &Lease<'_>,
    planned: &PlannedSkill,
) -> Result<Option<(String, IndexedCategory)>> {
    let Some((path, file)) = described(planned) else { return Ok(None) };
    let relative = format!("{path}/DESCRIPTION.md");
    let (location, key) = work.library.file(&relative)?;
    let bytes = work.content(&relative, file.sha256, &file.content).await?;
    let live = planned.live.get("DESCRIPTION.md").and_then(|meta| meta.etag.clone());
    let condition = live.map_or(Condition::Absent, |etag| Condition::Version { etag, known: None });
    lease.hold().await?;
    let put = work.backend.put_object(&key, "DESCRIPTION.md", bytes.clone(), condition).await;
    let Some(Some(etag)) = put.map_err(|e| e.during("publish", &location))? else { return Ok(None) };
    let description = (file.size <= MAX_DESCRIPTION).then(|| read_description(&bytes, true)).flatten();
    let file = IndexedFile { size: file.size, etag, sha256: file.sha256 };
    Ok(Some((path.to_owned(), IndexedCategory { file, description })))
}

/// The file among these that makes a directory a skill.
pub(super) fn file_of<'n>(names: impl Iterator<Item = &'n String>) -> Option<&'n str> {
    names
        .map(String::as_str)
        .filter(|name| name.eq_ignore_ascii_case("SKILL.md"))
        .min_by_key(|name| (*name != "SKILL.md", *name != "skill.md", (*name).to_owned()))
}

/// Which contents lie among the blobs already, with their sizes. Those that may be about to go do not count.
async fn stored(
    backend: &S3Backend,
    library: &Library,
    wanted: BTreeSet<Sha256>,
) -> Result<BTreeMap<Sha256, u64>> {
    let young = |meta: &Meta| {
        let age = meta.modified.and_then(|at| backend.server_time().duration_since(at).ok());
        age.unwrap_or_default() < NEAR_ITS_END
    };
    let mut found = BTreeMap::new();
    if wanted.len() <= FEW {
        let looks: Vec<_> = wanted
            .into_iter()
            .map(|sha256| async move {
                Ok::<_, Error>((sha256, backend.object_meta(library.blob(sha256).key()).await?))
            })
            .collect();
        let looks: Vec<_> = stream::iter(looks).buffer_unordered(FEW).try_collect().await?;
        for (sha256, meta) in looks {
            if let Some(meta) = meta.filter(young) {
                found.insert(sha256, meta.size);
            }
        }
        return Ok(found);
    }
    for (sha256, meta) in blobs(backend, library).await? {
        if young(&meta) {
            found.insert(sha256, meta.size);
        }
    }
    Ok(found)
}

/// All blobs of a library: sixteen listings at once.
pub(super) async fn blobs(backend: &S3Backend, library: &Library) -> Result<Vec<(Sha256, Meta)>> {
    let listings: Vec<_> = "0123456789abcdef"
        .chars()
        .map(|digit| async move { backend.objects(&library.blobs(&digit.to_string())).await })
        .collect();
    let listed: Vec<_> = stream::iter(listings).buffer_unordered(16).try_collect().await?;
    let named = |(key, meta): (String, Meta)| Some((library.digest_of(&key)?, meta));
    Ok(listed.into_iter().flatten().filter_map(named).collect())
}

/// What lies below a skill's path, whatever releases say.
pub(super) async fn live_objects(
    backend: &S3Backend,
    library: &Library,
    path: &str,
) -> Result<BTreeMap<String, Meta>> {
    let prefix = library.directory(path);
    let top = prefix.as_str().len();
    let objects = backend.objects(&prefix).await?;
    Ok(objects
        .into_iter()
        .filter(|(key, _)| key.len() > top && !key.ends_with('/'))
        .map(|(key, meta)| (key[top..].to_owned(), meta))
        .collect())
}
