//! The files of a release, where people and other tools look for them.
//!
//! Everything is conditional on what was planned: what somebody else wrote meanwhile stays.

use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::blobs::{AT_ONCE, WORTH_A_COPY, Work};
use super::lease::Lease;
use super::plan::{NewContent, NewFile, PlannedSkill};
use super::publish::HandEdit;
use crate::backend::S3Backend;
use crate::error::{Error, ErrorKind, Result};
use crate::index::{Index, IndexedCategory, IndexedFile};
use crate::manifest::read_description;
use crate::mount::Library;
use crate::store::{Condition, Meta};

/// How often a deletion is tried when it cannot be told whether it took effect.
const ATTEMPTS: u32 = 5;
/// The description of a category.
pub(super) const DESCRIPTION: &str = "DESCRIPTION.md";
/// A long category's description is not read.
const MAX_DESCRIPTION: u64 = 4 * 1024;

/// What to write into the library for one skill.
pub(super) struct Job {
    pub(super) path: String,
    pub(super) file: String,
    /// What is to lie there; nothing for a skill that goes.
    pub(super) files: BTreeMap<String, IndexedFile>,
    /// What may be overwritten or deleted, with its ETag.
    pub(super) was: BTreeMap<String, String>,
    /// What lies there.
    pub(super) live: BTreeMap<String, Meta>,
    pub(super) content: BTreeMap<String, NewContent>,
}

/// All that a release writes into the library.
#[derive(Default)]
pub(super) struct Jobs {
    pub(super) skills: Vec<Job>,
    pub(super) categories: Vec<Job>,
}

/// What came of it.
pub(super) struct JobDone {
    pub(super) path: String,
    /// The ETags of what lies there now.
    pub(super) etags: BTreeMap<String, String>,
    pub(super) by_hand: Vec<HandEdit>,
}

impl Work<'_> {
    /// Writes what one skill is into the library. Its `SKILL.md` is the last to come and the first to go, so that
    /// also those who know nothing of releases find no skill without its files.
    pub(super) async fn mirror(&self, lease: &Lease<'_>, job: Job) -> Result<JobDone> {
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

/// What a skill is to be, from a plan.
pub(super) fn job_of(skill: &PlannedSkill, index: &Index) -> Job {
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

/// The description of a category, from a plan.
pub(super) fn description_job(planned: &PlannedSkill, index: &Index) -> Option<Job> {
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
pub(super) async fn write_category(
    work: &Work<'_>,
    lease: &Lease<'_>,
    job: &Job,
) -> Result<Option<IndexedCategory>> {
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

pub(super) fn described(planned: &PlannedSkill) -> Option<(&str, &NewFile)> {
    let new = planned.new.as_ref()?;
    Some((&new.path, new.files.first()?))
}

/// What lies where the jobs are to write.
pub(super) async fn look(backend: &S3Backend, library: &Library, jobs: &mut Jobs) -> Result<()> {
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
