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
use super::plan::{Action, NewContent, NewFile, NewLibrary, Plan, PlannedSkill};
use super::prune;
use crate::backend::{FIRST_INDEX, S3Backend, SkillFs, Union};
use crate::error::{Error, ErrorKind, Result};
use crate::index::{
    Index, IndexedCategory, IndexedFile, IndexedSkill, Managed, PendingDescription, RecordedFile,
    ReleaseNote, ReleaseRecord, Sha256, State,
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
/// The description of a category.
const DESCRIPTION: &str = "DESCRIPTION.md";
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

/// All that a release writes into the library.
#[derive(Default)]
struct Jobs {
    skills: Vec<Job>,
    categories: Vec<Job>,
}

/// Skills and their files, as a release records them.
type Recorded = BTreeMap<String, BTreeMap<String, RecordedFile>>;

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
            let mut written = Err(Error::new(ErrorKind::NotFound, "it was not copied"));
            if file.size >= WORTH_A_COPY && self.backend.copies_conditionally() {
                let blob = self.library.blob(file.sha256);
                lease.hold().await?;
                written = self.backend.copy_object(blob.key(), &key, name, condition.clone()).await;
            }
            if written.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
                let content = job.content.get(name).unwrap_or(&NewContent::Blob);
                let bytes = self.content(&path, file.sha256, content).await?;
                lease.hold().await?;
                written = self.backend.put_object(&key, name, bytes, condition).await;
            }
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
        let adopted = adopt(&backend, plan, watch).await?;
        self.upload(&backend, plan, &mut published, watch).await?;
        let (index, records) = self.release(&backend, plan, adopted).await?;
        let number = index.release;
        for record in &records {
            let internal =
                |e| Error::new(ErrorKind::Internal, "the release could not be written down").with_source(e);
            let key = library.release(record.note.number, &record.note.id);
            let json = serde_json::to_vec(record).map_err(internal)?;
            backend
                .put_object(&key, "release.json", json.into(), Condition::Absent)
                .await
                .map_err(|e| e.during("write a release of", library))?;
        }
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
        let jobs = Jobs {
            skills: plan.changing().map(|skill| job_of(skill, &index)).collect(),
            categories: plan.describing().filter_map(|planned| description_job(planned, &index)).collect(),
        };
        // An index without a release may be just as new.
        let first = plan.base.index.as_ref().is_none_or(|index| index.release == 0)
            && plan.skills.iter().any(|skill| !skill.live.is_empty());
        if first {
            // A reader that found no index yet may still be listing.
            let rest = (FIRST_INDEX + Duration::from_secs(1)).saturating_sub(committed.elapsed());
            tokio::time::sleep(rest).await;
        }
        published.changed_by_hand = self.finish(&backend, &lease, jobs, watch).await?;
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

    /// Finishes what somebody began to publish and left behind. `None` when there is nothing. What was lost of it
    /// is taken from a source that has it, where one is given.
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
        source: Option<&NewLibrary>,
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
            let at_hand = contents(source);
            let mut jobs = Jobs::default();
            for (path, skill, was) in unfinished {
                let removing = matches!(
                    skill.managed.as_ref().map(|managed| &managed.state),
                    Some(State::Removing { .. })
                );
                let files = if removing { BTreeMap::new() } else { skill.files.clone() };
                let content = files
                    .iter()
                    .filter_map(|(name, file)| Some((name.clone(), at_hand.get(&file.sha256)?.clone())))
                    .collect();
                jobs.skills.push(Job {
                    path: path.clone(),
                    file: skill.file.clone(),
                    files,
                    was: was.clone(),
                    live: BTreeMap::new(),
                    content,
                });
            }
            for (path, category) in &index.categories {
                let Some(pending) = &category.pending else { continue };
                let file = IndexedFile { size: pending.size, etag: String::new(), sha256: pending.sha256 };
                let content =
                    at_hand.get(&pending.sha256).map(|content| (DESCRIPTION.to_owned(), content.clone()));
                jobs.categories.push(Job {
                    path: path.clone(),
                    file: DESCRIPTION.to_owned(),
                    files: BTreeMap::from([(DESCRIPTION.to_owned(), file)]),
                    was: pending.was.iter().map(|etag| (DESCRIPTION.to_owned(), etag.clone())).collect(),
                    live: BTreeMap::new(),
                    content: content.into_iter().collect(),
                });
            }
            restore(&backend, library, &jobs).await?;
            let taken = Lease::take(&backend, library, index, Some(&etag), publishing, lease).await?;
            let Some(lease) = taken else { continue };
            // Only now nobody else writes there.
            if let Err(error) = look(&backend, library, &mut jobs).await {
                lease.give_up().await;
                return Err(error);
            }
            return self.finish(&backend, &lease, jobs, watch).await.map(Some);
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
        for skill in plan.changing().chain(plan.describing()) {
            for file in skill.new.iter().flat_map(|new| &new.files) {
                wanted.entry(file.sha256).or_insert_with(|| (format!("{}/{}", skill.path, file.name), file));
            }
        }
        let there = stored(backend, library, wanted.keys().copied().collect()).await?;
        // Who overwrites does not trust what is there; but what is nowhere else stays.
        let trusted = |file: &NewFile| !plan.options.overwrite || matches!(file.content, NewContent::Blob);
        wanted.retain(|sha256, (_, file)| there.get(sha256) != Some(&file.size) || !trusted(file));
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
    async fn release(
        &self,
        backend: &S3Backend,
        plan: &Plan,
        adopted: Recorded,
    ) -> Result<(Index, Vec<ReleaseRecord>)> {
        let at = seconds(backend.server_time());
        let mut index = plan
            .base
            .index
            .clone()
            .unwrap_or_else(|| Index::new(String::new(), BTreeMap::new(), BTreeMap::new()));
        index.id = WriteId::fresh()?;
        let mut records = Vec::new();
        if !adopted.is_empty() {
            // What nobody published is about to be changed: it can be gone back to.
            index.release += 1;
            let mut record = record_of(&index, plan, at, index.release)?;
            record.note.source = format!("as it lay there before release {}", index.release + 1);
            record.skills.extend(adopted);
            index.releases.push(record.note.clone());
            records.push(record);
        }
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
        for planned in plan.describing() {
            let Some((path, file)) = described(planned) else { continue };
            let was = planned.live.get(DESCRIPTION).and_then(|meta| meta.etag.clone());
            let pending = PendingDescription { size: file.size, sha256: file.sha256, was };
            let category = index.categories.entry(path.to_owned()).or_insert_with(|| IndexedCategory {
                file: IndexedFile { size: file.size, etag: String::new(), sha256: file.sha256 },
                description: None,
                published: false,
                pending: None,
            });
            category.pending = Some(pending);
        }
        let mut record = record_of(&index, plan, at, number)?;
        record.note.id.clone_from(&index.id);
        record.note.created = plan.count(Action::Create);
        record.note.updated = plan.count(Action::Update);
        record.note.deleted = plan.count(Action::Delete);
        index.releases.push(record.note.clone());
        records.push(record);
        Ok((index, records))
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
        jobs: Jobs,
        watch: PushWatch<'_>,
    ) -> Result<Vec<HandEdit>> {
        let done = async {
            let (jobs, categories) = self.mirror(backend, lease, jobs, watch).await?;
            let mut by_hand: Vec<_> = jobs.iter().flat_map(|job| job.by_hand.iter().cloned()).collect();
            for (path, category) in &categories {
                if category.is_none() {
                    by_hand.push(HandEdit { path: format!("{path}/{DESCRIPTION}") });
                }
            }
            lease
                .finish(|index| {
                    for job in &jobs {
                        settle(index, job);
                    }
                    for (path, category) in &categories {
                        settle_description(index, path, category.as_ref());
                    }
                })
                .await?;
            Ok(by_hand)
        };
        match done.await {
            Ok(by_hand) => Ok(by_hand),
            Err(error) => {
                lease.give_up().await;
                let error: Error = error;
                let hint = "the release is committed, and readers see it; run the push again to write the rest of its files";
                Err(match error.hint() {
                    Some(said) => {
                        let both = format!("{said}; {hint}");
                        error.with_hint(both)
                    }
                    None => error.with_hint(hint),
                })
            }
        }
    }

    async fn mirror(
        &self,
        backend: &S3Backend,
        lease: &Lease<'_>,
        jobs: Jobs,
        watch: PushWatch<'_>,
    ) -> Result<(Vec<JobDone>, Vec<(String, Option<IndexedCategory>)>)> {
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
        let total = jobs.skills.iter().map(open).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let work = Work::new(backend, lease.library(), "publishing", total, watch);
        let mut categories = Vec::new();
        for job in &jobs.categories {
            categories.push((job.path.clone(), write_category(&work, lease, job).await?));
        }
        let writes: Vec<_> = jobs.skills.into_iter().map(|job| work.mirror(lease, job)).collect();
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

/// The description of a category, from a plan.
fn description_job(planned: &PlannedSkill, index: &Index) -> Option<Job> {
    let (path, file) = described(planned)?;
    let pending = index.categories.get(path)?.pending.as_ref()?;
    let indexed = IndexedFile { size: file.size, etag: String::new(), sha256: file.sha256 };
    Some(Job {
        path: path.to_owned(),
        file: DESCRIPTION.to_owned(),
        files: BTreeMap::from([(DESCRIPTION.to_owned(), indexed)]),
        was: pending.was.iter().map(|etag| (DESCRIPTION.to_owned(), etag.clone())).collect(),
        live: planned.live.clone(),
        content: BTreeMap::from([(DESCRIPTION.to_owned(), file.content.clone())]),
    })
}

/// One object: it is the old one or the new one. `None` when somebody changed it meanwhile.
async fn write_category(work: &Work<'_>, lease: &Lease<'_>, job: &Job) -> Result<Option<IndexedCategory>> {
    let Some(file) = job.files.get(DESCRIPTION) else { return Ok(None) };
    let (_, etag) = work.mirror_file(lease, job, DESCRIPTION, file).await?;
    let Some(etag) = etag else { return Ok(None) };
    let content = job.content.get(DESCRIPTION).unwrap_or(&NewContent::Blob);
    let description = match file.size <= MAX_DESCRIPTION {
        true => read_description(&work.content(&job.path, file.sha256, content).await?, true),
        false => None,
    };
    let file = IndexedFile { size: file.size, etag, sha256: file.sha256 };
    Ok(Some(IndexedCategory { file, description, published: true, pending: None }))
}

/// Writes into an index what became of the description of a category.
fn settle_description(index: &mut Index, path: &str, category: Option<&IndexedCategory>) {
    match category {
        Some(category) => {
            index.categories.insert(path.to_owned(), category.clone());
        }
        None => {
            if let Some(known) = index.categories.get_mut(path) {
                known.pending = None;
            }
            // Nothing is known of what lies there.
            index.categories.retain(|_, known| !(known.file.etag.is_empty() && known.pending.is_none()));
        }
    }
}

/// What is published as an index has it, as a release.
fn record_of(index: &Index, plan: &Plan, at: u64, number: u64) -> Result<ReleaseRecord> {
    let note = ReleaseNote {
        number,
        id: WriteId::fresh()?,
        at,
        by: plan.options.by.clone(),
        source: plan.options.source.clone(),
        created: 0,
        updated: 0,
        deleted: 0,
    };
    let recorded = |file: &IndexedFile| RecordedFile { size: file.size, sha256: file.sha256 };
    let managed = index.skills.iter().filter(|(_, skill)| {
        let state = skill.managed.as_ref().map(|managed| &managed.state);
        matches!(state, Some(State::Published | State::Pending { .. }))
    });
    let files = |skill: &IndexedSkill| {
        skill.files.iter().map(|(name, file)| (name.clone(), recorded(file))).collect()
    };
    let skills = managed.map(|(path, skill)| (path.clone(), files(skill))).collect();
    let described = |category: &IndexedCategory| match &category.pending {
        Some(pending) => RecordedFile { size: pending.size, sha256: pending.sha256 },
        None => recorded(&category.file),
    };
    // Of what was only indexed there is no blob.
    let published = index.categories.iter().filter(|(_, known)| known.published || known.pending.is_some());
    let categories = published.map(|(path, category)| (path.clone(), described(category))).collect();
    Ok(ReleaseRecord { note, skills, categories })
}

/// Contents of a source, by their digests.
fn contents(source: Option<&NewLibrary>) -> BTreeMap<Sha256, NewContent> {
    let Some(source) = source else { return BTreeMap::new() };
    let files = source.skills.iter().flat_map(|skill| &skill.files).chain(source.categories.values());
    files.map(|file| (file.sha256, file.content.clone())).collect()
}

/// Blobs that were lost are written anew, from what is at hand.
async fn restore(backend: &S3Backend, library: &Library, jobs: &Jobs) -> Result<()> {
    let mut wanted = BTreeMap::new();
    for job in jobs.skills.iter().chain(&jobs.categories) {
        for (name, file) in &job.files {
            if let Some(content) = job.content.get(name) {
                let (size, sha256) = (file.size, file.sha256);
                wanted.insert(sha256, NewFile { name: name.clone(), size, sha256, content: content.clone() });
            }
        }
    }
    if wanted.is_empty() {
        return Ok(());
    }
    let there = stored(backend, library, wanted.keys().copied().collect()).await?;
    let silent = |_: PushProgress| ();
    let work = Work::new(backend, library, "", (0, 0), &silent);
    for (sha256, file) in &wanted {
        if !there.contains_key(sha256) {
            work.blob(&file.name, file, None).await?;
        }
    }
    Ok(())
}

/// What lies where the jobs are to write.
async fn look(backend: &S3Backend, library: &Library, jobs: &mut Jobs) -> Result<()> {
    let looks: Vec<_> = jobs.skills.iter().map(|job| live_objects(backend, library, &job.path)).collect();
    let looks: Vec<_> = stream::iter(looks).buffered(AT_ONCE).try_collect().await?;
    for (job, live) in jobs.skills.iter_mut().zip(looks) {
        job.live = live;
    }
    for job in &mut jobs.categories {
        let (_, key) = library.file(&format!("{}/{DESCRIPTION}", job.path))?;
        let there = backend.object_meta(key.key()).await?;
        job.live = there.map(|meta| (DESCRIPTION.to_owned(), meta)).into_iter().collect();
    }
    Ok(())
}

/// Keeps what nobody published and is about to be changed or deleted, as blobs.
async fn adopt(backend: &S3Backend, plan: &Plan, watch: PushWatch<'_>) -> Result<Recorded> {
    let library = &plan.library;
    let found = plan.changing().filter(|skill| !skill.kept && file_of(skill.live.keys()).is_some());
    let files: Vec<_> = found
        .flat_map(|skill| skill.live.iter().map(|(name, meta)| (skill.path.as_str(), name.as_str(), meta)))
        .collect();
    let total = (files.len() as u64, files.iter().map(|(_, _, meta)| meta.size).sum());
    if files.is_empty() {
        return Ok(Recorded::new());
    }
    let work = Work::new(backend, library, "keeping", total, watch);
    let work = &work;
    let reads: Vec<_> = files
        .into_iter()
        .map(|(path, name, meta)| async move {
            let _room = work.room(meta.size).await?;
            let (location, key) = library.file(&format!("{path}/{name}"))?;
            let found = backend.object(key.key()).await.map_err(|e| e.during("read", &location))?;
            let Some((_, bytes)) = found.filter(|(now, _)| now.etag == meta.etag) else {
                return Err(Error::new(ErrorKind::Conflict, format!("`{location}` was changed meanwhile"))
                    .at(&location)
                    .with_hint("nothing was published; run it again to see what would change now"));
            };
            let sha256 = Sha256::of(&bytes);
            let put = backend.put_object(&library.blob(sha256), name, bytes, Condition::Always).await;
            put.map_err(|e| e.during("keep", &location))?;
            work.tell(1, meta.size);
            Ok((path.to_owned(), name.to_owned(), RecordedFile { size: meta.size, sha256 }))
        })
        .collect();
    let kept: Vec<_> = stream::iter(reads).buffer_unordered(AT_ONCE).try_collect().await?;
    let mut recorded = Recorded::new();
    for (path, name, file) in kept {
        recorded.entry(path).or_default().insert(name, file);
    }
    Ok(recorded)
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
