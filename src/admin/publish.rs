//! Publishing: blobs first, then one conditional write that makes the release visible, then the files where
//! people and other tools look for them.
//!
//! Readers see all of the old release or all of the new one, wherever this stops. SEMANTICS.md has every point
//! at which it can.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use tracing::instrument;

use super::blobs::{AT_ONCE, Recorded, Work, adopt, contents, restore, stored};
use super::lease::{Lease, UnderWay, read_index, seconds, wait_for};
use super::mirror::{
    DESCRIPTION, Job, JobDone, Jobs, described, description_job, job_of, look, write_category,
};
use super::plan::{Action, NewContent, NewFile, NewLibrary, Plan};
use super::prune;
use crate::backend::{FIRST_INDEX, S3Backend, SkillFs, Union};
use crate::error::{Error, ErrorKind, Result};
use crate::index::{
    Index, IndexedCategory, IndexedFile, IndexedSkill, Managed, PendingDescription, RecordedFile,
    ReleaseNote, ReleaseRecord, Sha256, State,
};
use crate::manifest::skill_file;
use crate::mount::Library;
use crate::store::{Condition, WriteId};

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
        let backend = self.own_session(&library.session()).fresh();
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
        let backend = self.own_session(&library.session()).fresh();
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
                    file: skill_file(skill.live.keys().map(String::as_str)).unwrap_or("SKILL.md").to_owned(),
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
            let file = new.file().unwrap_or("SKILL.md").to_owned();
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
