//! Publishing: blobs, the release record, then one compare-and-swap of the index, which is the moment for every
//! reader. The mirror follows. docs/design/publishing.md tells what is visible at each step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use tracing::instrument;

use super::compare::{Action, Change};
use super::drift::Drift;
use super::library::{
    LibraryKind, LibraryState, Versioned, fresh_id, nothing_there, read_index, write_document,
};
use super::mirror::{Mirrored, Mirroring};
use super::new::{IntoKind, PushOptions};
use super::new::{NewContent, NewFile};
use super::plan::{Plan, Task};
use super::protocol::{self, Commit};
use super::release::{AdoptedFile, PendingRelease, next_index};
use super::work::{AT_ONCE, PushWatch, Transfers};
use super::{plain, prune};
use crate::ambient::Instant;
use crate::backend::{S3Backend, SkillFs};
use crate::error::{Error, ErrorKind, Result};
use crate::index::{Digest, Index, IndexKind, MAX_BYTES, ReleaseId};
use crate::mount::Library;

/// Every so many releases, objects that nothing refers to are pruned.
const PRUNE_EVERY: u64 = 10;

/// What was published.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Published {
    /// The number of the release; `None` when nothing had changed, or for a plain library.
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
    /// Keys of the mirror that others have changed. They were left alone, and no reader sees them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drift: Vec<Drift>,
    /// Why the mirror could not be completed. Readers do not depend on it; the next push completes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror_error: Option<String>,
    /// A second release, of what was uploaded while a plain library was published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uploaded_meanwhile: Option<u64>,
    /// The id that its blobs have.
    #[serde(skip)]
    pub(crate) id: Option<ReleaseId>,
}

impl SkillFs {
    /// Does what a plan says: makes a release, or writes the keys of a plain library.
    ///
    /// A release becomes visible to every reader at once, whole. When another release is committed first, this one
    /// is planned again on top of it, and goes on if its changes are the same. Interrupted before the commit, nothing
    /// is visible; after it, only the mirror is incomplete, and the next push completes it.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when another release changed the same: nothing of this one is visible.
    /// [`ErrorKind::Unavailable`] where the server ignores conditional writes.
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
        let backend = self.own_session(&library.session()).fresh();
        if !plan.makes_release {
            if plan.changes() {
                backend.check_conditions(library).await?;
                (published.uploaded, published.uploaded_bytes) = plain::write(&backend, plan, watch).await?;
            }
            return Ok(published);
        }
        let mirroring = |own, contents| Mirroring {
            own,
            contents,
            adopting: plan.adopted.is_some(),
            // What was uploaded to a plain library meanwhile becomes a release, and is never replaced.
            overwrite: plan.options.overwrite && plan.adopted.is_none(),
            ..Mirroring::new(&backend, library, self.conflict_patience(), watch)
        };
        if !plan.changes() {
            // What a push that was killed has left behind is completed.
            if let Some(index) = plan.base.index.as_ref().filter(|_| plan.kind.is_published()) {
                let mirroring = mirroring(None, BTreeMap::new());
                let done = mirroring.complete((*index.value).clone(), None, BTreeMap::new()).await;
                note_mirror(&mut published, done);
            }
            return Ok(published);
        }
        backend.check_conditions(library).await?;
        let mut upload = PendingRelease {
            id: fresh_id(&backend)?,
            began: backend.server_time(),
            blobs: BTreeSet::new(),
            files: 0,
            bytes: 0,
        };
        let adopted = adopt(&backend, plan, &mut upload, watch).await?;
        let (index, base) = self.commit(&backend, plan, &adopted, &mut upload, watch).await?;
        (published.release, published.id) = (Some(index.release), Some(upload.id.clone()));
        (published.uploaded, published.uploaded_bytes) = (upload.files, upload.bytes);
        // What was in a plain library, and what the release replaces of it, is the mirror's to write.
        let adopted = adopted.into_iter().map(|file| (file.path, (file.etag, Some(file.sha256))));
        let replaced = plan.changes.iter().filter(|_| plan.adopted.is_some());
        let replaced =
            replaced.filter_map(|change| Some((change.path.clone(), (change.before.clone()?, None))));
        let keys = adopted.chain(replaced).collect();
        let contents = plan.changes.iter().filter_map(|change| change.after.as_ref());
        let contents = contents.map(|file| (file.sha256, file.content.clone())).collect();
        let number = index.release;
        let done = mirroring(Some(&upload.id), contents).complete(index, base.as_deref(), keys).await;
        note_mirror(&mut published, done);
        if plan.adopted.is_some() && !published.drift.is_empty() {
            match self.publish_uploaded_meanwhile(library, &plan.options, watch).await {
                Ok(second) => {
                    published.uploaded_meanwhile = second.release;
                    (published.drift, published.mirror_error) = (second.drift, second.mirror_error);
                }
                Err(error) => published.mirror_error = Some(error.message().to_owned()),
            }
        }
        if number.is_multiple_of(PRUNE_EVERY)
            && let Err(error) = prune::prune(&backend, library, self.retention()).await
        {
            tracing::warn!("{library} could not be pruned: {error}");
        }
        Ok(published)
    }

    /// What was uploaded to a plain library while it was published becomes a second release.
    async fn publish_uploaded_meanwhile(
        &self,
        library: &Library,
        options: &PushOptions,
        watch: PushWatch<'_>,
    ) -> Result<Published> {
        let source = "uploaded while the library was published".to_owned();
        let options = PushOptions { source, into: IntoKind::Same, ..options.clone() };
        let plan = self.plan_task(library, Task::Index, &options).await?;
        Box::pin(self.publish(&plan, watch)).await
    }

    /// Uploads, records and commits a release. The index that was committed, and the one it was made on.
    async fn commit(
        &self,
        backend: &S3Backend,
        plan: &Plan,
        adopted: &[AdoptedFile],
        upload: &mut PendingRelease,
        watch: PushWatch<'_>,
    ) -> Result<(Index, Option<Arc<Index>>)> {
        let library = &plan.library;
        let mut deadline = None;
        let mut replanned: Option<Plan> = None;
        let mut round = 0;
        loop {
            let plan = replanned.as_ref().unwrap_or(plan);
            let base = plan.base.index.as_ref();
            upload_changes(backend, plan, upload, watch).await?;
            if self.is_expired(backend, upload.began) {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    "the push took too long: what it uploaded may be pruned",
                )
                .with_hint("nothing of it is visible; push again"));
            }
            let index = next_index(backend, plan, adopted, upload, self.retention()).await?;
            let bytes = encode(&index, library)?;
            let record = library.release(index.release, &index.id);
            let written = write_document(backend, &record, bytes.clone(), None).await;
            written.map_err(|e| e.during("write a release of", library))?;
            if self.swap(backend, library, &index, bytes, base, upload.began).await? {
                return Ok((index, base.map(|base| base.value.clone())));
            }
            let overtaken = || {
                Error::new(ErrorKind::Conflict, format!("another release of {library} was committed first"))
                    .with_hint("nothing of this one is visible; run it again to see what would change now")
            };
            // What looked like drift may have been a key of that release.
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + self.conflict_patience());
            if matches!(plan.task, Task::Index) || Instant::now() >= deadline {
                return Err(overtaken());
            }
            round += 1;
            backend.store().pause(round).await;
            let again = self.plan_task(library, plan.task.clone(), &plan.options).await?;
            if !plan.is_same_change(&again) {
                return Err(overtaken());
            }
            replanned = Some(again);
        }
    }

    /// The compare-and-swap. `false` when another release was committed first.
    async fn swap(
        &self,
        backend: &S3Backend,
        library: &Library,
        index: &Index,
        bytes: Vec<u8>,
        base: Option<&Versioned<Arc<Index>>>,
        began: SystemTime,
    ) -> Result<bool> {
        let deadline = Instant::now() + self.conflict_patience();
        let seen = base.map(|base| base.etag.as_str());
        let mut round = 0;
        loop {
            let put = write_document(backend, &library.index(), bytes.clone(), seen).await;
            backend.library_changed();
            let failed = match put {
                Ok(Some(_)) => return Ok(true),
                Ok(None) => None,
                Err(error) if error.may_have_taken_effect() || error.kind() == ErrorKind::Conflict => {
                    Some(error)
                }
                Err(error) => return Err(error.during("write the index of", library)),
            };
            // It may have taken effect all the same: the index itself tells.
            let now = read_index(backend, library).await.map_err(Error::uncertain)?;
            let lists_ours =
                now.as_ref().is_some_and(|now| now.value.id == index.id || now.value.lists(&index.id));
            let is_base = now.as_ref().map(|now| now.etag.as_str()) == seen;
            match protocol::commit(lists_ours, is_base, self.is_expired(backend, began)) {
                Commit::Done => return Ok(true),
                Commit::Lost => return Ok(false),
                Commit::Resend if Instant::now() < deadline => {
                    round += 1;
                    backend.store().pause(round).await;
                }
                Commit::Resend | Commit::Unknown => {
                    let lost = || Error::new(ErrorKind::Conflict, "the index could not be replaced");
                    return Err(
                        Error::uncertain(failed.unwrap_or_else(lost)).during("write the index of", library)
                    );
                }
            }
        }
    }

    fn is_expired(&self, backend: &S3Backend, began: SystemTime) -> bool {
        let age = backend.server_time().duration_since(began).unwrap_or_default();
        protocol::push_expired(age, self.retention())
    }

    /// Makes a published library plain: its keys are completed, and from then on they are what readers see. Its
    /// releases stay.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when others have changed keys: publish or revert that first.
    #[instrument(name = "unpublish", skip_all, fields(%library))]
    pub async fn unpublish(&self, library: &Library, watch: PushWatch<'_>) -> Result<()> {
        let backend = self.own_session(&library.session()).fresh();
        backend.check_conditions(library).await?;
        loop {
            let found = match read_index(&backend, library).await? {
                Some(found) => found,
                None if LibraryState::load(&backend, library).await?.kind == LibraryKind::Empty => {
                    return Err(nothing_there(library));
                }
                None => return Err(plain_already(library)),
            };
            let Versioned { value: index, etag, modified } = found;
            if !index.is_published() {
                return Err(plain_already(library));
            }
            let mirroring = Mirroring {
                thorough: true,
                ..Mirroring::new(&backend, library, self.conflict_patience(), watch)
            };
            let mirrored = mirroring.complete(index.clone(), None, BTreeMap::new()).await?;
            let Mirrored { drift, settled } = mirrored;
            if let Some(first) = drift.first() {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    match drift.len() {
                        1 => format!("others have changed `{}` of {library}", first.path),
                        files => {
                            format!(
                                "others have changed {files} files of {library}, such as `{}`",
                                first.path
                            )
                        }
                    },
                )
                .with_hint(
                    "publish that with `admin index`, or revert it with `admin verify --repair --overwrite`",
                ));
            }
            if !settled {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!(
                        "several have published to {library} at once, and one may still be writing its keys"
                    ),
                )
                .with_hint("try again in an hour"));
            }
            let Index { release, releases, .. } = index.clone();
            let plain = Index { release, releases, ..Index::new(IndexKind::Plain, fresh_id(&backend)?) };
            let bytes = encode(&plain, library)?;
            let base = Versioned { value: Arc::new(index), etag, modified };
            if self.swap(&backend, library, &plain, bytes, Some(&base), backend.server_time()).await? {
                return Ok(());
            }
        }
    }
}

fn plain_already(library: &Library) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("{library} is plain already"))
        .with_hint("its keys are what sessions see; there is nothing to do")
}

/// A mirror that is incomplete is told, and is not a failure: the release is committed.
fn note_mirror(published: &mut Published, done: Result<Mirrored>) {
    match done {
        Ok(mirrored) => published.drift = mirrored.drift,
        Err(error) => published.mirror_error = Some(error.message().to_owned()),
    }
}

pub(super) fn encode(index: &Index, library: &Library) -> Result<Vec<u8>> {
    let internal = |e| Error::new(ErrorKind::Internal, "the index could not be written").with_source(e);
    let bytes = index.encode().map_err(internal)?;
    let size = bytes.len() as u64;
    if size <= MAX_BYTES {
        return Ok(bytes);
    }
    Err(Error::new(
        ErrorKind::TooLarge,
        format!("the index of {library} would have {size} bytes; the limit is {MAX_BYTES}"),
    )
    .with_hint("split the library"))
}

/// Reads what a plain library contains and uploads it, as far as the plan does not replace it.
async fn adopt(
    backend: &S3Backend,
    plan: &Plan,
    upload: &mut PendingRelease,
    watch: PushWatch<'_>,
) -> Result<Vec<AdoptedFile>> {
    let Some(adopted) = &plan.adopted else { return Ok(Vec::new()) };
    let work = Transfers::new(backend, &plan.library, "adopting", (adopted.files, adopted.bytes), watch);
    let changed: BTreeSet<&str> = plan.changes.iter().map(|change| change.path.as_str()).collect();
    let (work, id) = (&work, &upload.id);
    let reads: Vec<_> = plan
        .base
        .tree
        .files_in("")
        .filter(|(path, _)| !changed.contains(path))
        .map(|(path, found)| async move {
            let etag = found.meta.etag.clone().unwrap_or_default();
            let bytes = {
                let _room = work.room(found.meta.size).await?;
                work.key(path, &etag).await?
            };
            let file = NewFile::new(path, bytes);
            work.upload(path, &file, id, None).await?;
            let NewFile { size, sha256, .. } = file;
            Ok::<_, Error>(AdoptedFile { path: path.to_owned(), etag, size, sha256 })
        })
        .collect();
    let adopted: Vec<AdoptedFile> = stream::iter(reads).buffer_unordered(AT_ONCE / 2).try_collect().await?;
    upload.blobs.extend(adopted.iter().map(|file| file.sha256));
    upload.files += adopted.len() as u64;
    upload.bytes += adopted.iter().map(|file| file.size).sum::<u64>();
    Ok(adopted)
}

/// Uploads what the index that the commit is conditional on does not name.
async fn upload_changes(
    backend: &S3Backend,
    plan: &Plan,
    upload: &mut PendingRelease,
    watch: PushWatch<'_>,
) -> Result<()> {
    let named: BTreeSet<Digest> =
        plan.base.index.iter().flat_map(|base| base.value.blobs()).map(|(sha256, _)| sha256).collect();
    let mut wanted: BTreeMap<Digest, (&str, &NewFile)> = BTreeMap::new();
    for Change { path, after, .. } in &plan.changes {
        let Some(file) = after else { continue };
        // A blob of a release that the base lists is as good as one that the base names.
        let stored = matches!(file.content, NewContent::Blob(_));
        let named = named.contains(&file.sha256) && !plan.options.overwrite;
        if !stored && !named && !upload.blobs.contains(&file.sha256) {
            wanted.insert(file.sha256, (path, file));
        }
    }
    let total = (wanted.len() as u64, wanted.values().map(|(_, file)| file.size).sum());
    let work = Transfers::new(backend, &plan.library, "uploading", total, watch);
    let from = plan.options.copy_from.as_ref().map(|(library, id)| (library, id));
    let uploads: Vec<_> =
        wanted.values().map(|(path, file)| work.upload(path, file, &upload.id, from)).collect();
    let mut uploads = stream::iter(uploads).buffer_unordered(AT_ONCE);
    while let Some(done) = uploads.next().await {
        done?;
    }
    drop(uploads);
    upload.blobs.extend(wanted.keys().copied());
    upload.files += total.0;
    upload.bytes += total.1;
    Ok(())
}
