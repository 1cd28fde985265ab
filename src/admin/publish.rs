//! Publishing: uploads the blobs and the release record, then commits the release with one compare-and-swap of the
//! index. The mirror follows. docs/design/publishing.md describes what readers see at each step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use serde::Serialize;
use tracing::instrument;

use super::compare::{Action, Change};
use super::drift::Drift;
use super::library::{
    LibraryAdmin, LibraryKind, MAX_READS, Versioned, empty_library, if_unchanged, run_concurrently,
};
use super::mirror::{Mirrored, Mirroring};
use super::new::{IntoKind, NewContent, NewFile, PushOptions};
use super::plan::{LibraryChange, Plan};
use super::protocol::{self, Commit};
use super::release::{PendingRelease, next_index};
use super::work::{MAX_REQUESTS, Transfers};
use super::{plain, prune};
use crate::ambient::Instant;
use crate::error::{Error, ErrorKind, Hint, Result};
use crate::index::{Digest, Index, IndexKind, MAX_BYTES, ReleaseId};
use crate::mount::Library;
use crate::store::Condition;

/// Unreferenced objects are pruned after every tenth release.
const PRUNE_EVERY: u64 = 10;

/// The result of publishing a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Published {
    /// The number of the new release. `None` if nothing changed, or if the library is plain.
    pub release: Option<u64>,
    /// The number of skills that were created.
    pub created: u64,
    /// The number of skills that were updated.
    pub updated: u64,
    /// The number of skills that were deleted.
    pub deleted: u64,
    /// The number of skills that were already up to date.
    pub unchanged: u64,
    /// The number of skills that were refused.
    pub refused: u64,
    /// The number of skills that were left unchanged because they are pinned.
    pub pinned: u64,
    /// The number of files that were uploaded.
    pub uploaded: u64,
    /// The total size of the uploaded files, in bytes.
    pub uploaded_bytes: u64,
    /// Keys of the mirror that other tools have changed. They were left unchanged, and readers do not see them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drift: Vec<Drift>,
    /// Why the mirror could not be completed. Readers do not depend on the mirror, and the next push completes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror_error: Option<String>,
    /// The number of a second release, with files that other tools uploaded while a plain library was being published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uploaded_meanwhile: Option<u64>,
    /// The ID in the keys of its blobs.
    #[serde(skip)]
    pub(crate) id: Option<ReleaseId>,
}

impl LibraryAdmin {
    /// Applies a plan: creates a release, or writes the keys of a plain library.
    ///
    /// Readers see all of a release or nothing of it. If another release is committed first, this one is planned again
    /// on top of it, and published if its changes are still the same. If the process is interrupted before the commit,
    /// nothing is visible. If it is interrupted afterwards, only the mirror is incomplete, and the next push completes
    /// it.
    ///
    /// # Errors
    /// - [`ErrorKind::Conflict`] if another release changed the same files. Nothing of this release is visible, unless
    ///   [`Error::may_have_taken_effect`] says that this could not be determined.
    /// - [`ErrorKind::InvalidInput`] if the plan is for another library.
    /// - [`ErrorKind::TooLarge`] if the index would exceed its maximum size.
    /// - [`ErrorKind::Unavailable`] if the server ignores conditional writes.
    #[instrument(name = "publish", skip_all, fields(library = %plan.library))]
    pub async fn publish(&self, plan: &Plan) -> Result<Published> {
        let mut published = Published {
            created: plan.count(Action::Create),
            updated: plan.count(Action::Update),
            deleted: plan.count(Action::Delete),
            unchanged: plan.count(Action::Unchanged),
            refused: plan.count(Action::Refused),
            pinned: plan.count(Action::Pinned),
            ..Published::default()
        };
        let library = &self.library;
        if plan.library != *library {
            let message = format!("the plan is for {}, not for {library}", plan.library);
            return Err(Error::new(ErrorKind::InvalidInput, message).with_hint("plan it for this library"));
        }
        if plan.changes() {
            self.backend.check_conditions(library).await?;
        }
        if !plan.makes_release {
            if plan.changes() {
                (published.uploaded, published.uploaded_bytes) = plain::write(self, plan).await?;
            }
            return Ok(published);
        }
        let mirroring = Mirroring {
            adopting: plan.adopted.is_some(),
            // Files that other tools upload in the meantime become a second release; they must not be replaced.
            overwrite: plan.options.overwrite && plan.adopted.is_none(),
            ..Mirroring::new(self)
        };
        if !plan.changes() {
            // Completes the mirror of a push that was killed.
            if let Some(index) = plan.base.index.as_ref().filter(|index| index.value.is_published()) {
                note_mirror(&mut published, mirroring.complete(index.value.clone()).await);
            }
            return Ok(published);
        }
        let mut upload = PendingRelease {
            id: self.fresh_id()?,
            began: self.backend.server_time(),
            blobs: BTreeSet::new(),
            files: 0,
            bytes: 0,
        };
        let adopted = self.adopt(plan, &mut upload).await?;
        let (index, base) = self.commit(plan, &adopted, &mut upload).await?;
        (published.release, published.id) = (Some(index.release), Some(upload.id.clone()));
        (published.uploaded, published.uploaded_bytes) = (upload.files, upload.bytes);
        // The mirror may replace the keys of the plain library that were adopted or changed by the plan.
        let adopted = adopted.into_iter().filter_map(|file| match file.content {
            NewContent::Key(etag) => Some((file.name, (etag, Some(file.sha256)))),
            _ => None,
        });
        let replaced = plan.changes.iter().filter(|_| plan.adopted.is_some());
        let replaced =
            replaced.filter_map(|change| Some((change.path.clone(), (change.before.clone()?, None))));
        let new = plan.changes.iter().filter_map(|change| change.after.as_ref());
        let number = index.release;
        let mirroring = Mirroring {
            own: Some(&upload.id),
            base: base.as_deref(),
            keys: adopted.chain(replaced).collect(),
            contents: new.map(|file| (file.sha256, file.content.clone())).collect(),
            ..mirroring
        };
        let done = mirroring.complete(index).await;
        note_mirror(&mut published, done);
        if plan.adopted.is_some() && !published.drift.is_empty() {
            match self.publish_uploaded_meanwhile(&plan.options).await {
                Ok(second) => {
                    published.uploaded_meanwhile = second.release;
                    (published.drift, published.mirror_error) = (second.drift, second.mirror_error);
                }
                Err(error) => published.mirror_error = Some(error.message().to_owned()),
            }
        }
        if number.is_multiple_of(PRUNE_EVERY)
            && let Err(error) = prune::prune(self, self.retention()).await
        {
            tracing::warn!("{library} could not be pruned: {error}");
        }
        Ok(published)
    }

    /// Makes a published library plain: completes its mirror, which readers then read directly.
    ///
    /// The releases are kept, and the library can be published again.
    ///
    /// # Errors
    /// - [`ErrorKind::Conflict`] if there is drift, which must be published or reverted first, or if another publisher
    ///   may still be writing the mirror.
    /// - [`ErrorKind::InvalidInput`] if the library is already plain, [`ErrorKind::NotFound`] if it is empty.
    #[instrument(name = "unpublish", skip_all, fields(library = %self.library))]
    pub async fn unpublish(&self) -> Result<()> {
        let library = &self.library;
        self.backend.check_conditions(library).await?;
        loop {
            let base = match self.read_index().await? {
                Some(found) if found.value.is_published() => found,
                None if self.load().await?.kind == LibraryKind::Empty => {
                    return Err(empty_library(library));
                }
                _ => {
                    return Err(Unpublished::AlreadyPlain(library).into());
                }
            };
            let mirroring = Mirroring { thorough: true, ..Mirroring::new(self) };
            let Mirrored { drift, settled } = mirroring.complete(base.value.clone()).await?;
            if let Some(first) = drift.first() {
                let path = &first.path;
                return Err(match drift.len() {
                    1 => Unpublished::Drifted { path, library }.into(),
                    files => Unpublished::DriftedFiles { files, path, library }.into(),
                });
            }
            if !settled {
                return Err(Unpublished::Unsettled(library).into());
            }
            let (release, releases) = (base.value.release, base.value.releases.clone());
            let plain = Index { release, releases, ..Index::new(IndexKind::Plain, self.fresh_id()?) };
            let bytes = encode(&plain, library)?;
            if self.swap(&plain, bytes, Some(&base), self.backend.server_time()).await? {
                return Ok(());
            }
        }
    }
}

/// Records the result of mirroring. An incomplete mirror is not an error, since the release is committed.
fn note_mirror(published: &mut Published, done: Result<Mirrored>) {
    match done {
        Ok(mirrored) => published.drift = mirrored.drift,
        Err(error) => published.mirror_error = Some(error.message().to_owned()),
    }
}

fn encode(index: &Index, library: &Library) -> Result<Bytes> {
    let internal = |e| Error::new(ErrorKind::Internal, "the index could not be written").with_source(e);
    let bytes = Bytes::from(index.encode().map_err(internal)?);
    let size = bytes.len() as u64;
    if size <= MAX_BYTES {
        return Ok(bytes);
    }
    Err(Unpublished::TooLarge { library, size }.into())
}

/// Why nothing was published or unpublished.
#[derive(Debug, thiserror::Error)]
enum Unpublished<'l> {
    #[error("{0} is plain already")]
    AlreadyPlain(&'l Library),
    #[error("others have changed `{path}` of {library}")]
    Drifted { path: &'l str, library: &'l Library },
    #[error("others have changed {files} files of {library}, such as `{path}`")]
    DriftedFiles { files: usize, path: &'l str, library: &'l Library },
    #[error("several publishers wrote to {0} concurrently, and one may still be writing its mirror")]
    Unsettled(&'l Library),
    #[error("the index of {library} would have {size} bytes; the limit is {MAX_BYTES}")]
    TooLarge { library: &'l Library, size: u64 },
    #[error("the push took too long: what it uploaded may be pruned")]
    Expired,
    #[error("another release of {0} was committed first")]
    Overtaken(&'l Library),
}

impl From<Unpublished<'_>> for Error {
    fn from(why: Unpublished<'_>) -> Self {
        let (kind, hint) = match why {
            Unpublished::AlreadyPlain(_) => (ErrorKind::InvalidInput, "there is nothing to do".into()),
            Unpublished::Drifted { .. } | Unpublished::DriftedFiles { .. } => {
                (ErrorKind::Conflict, Hint::PublishOrRevert)
            }
            Unpublished::Unsettled(_) => (ErrorKind::Conflict, "try again in an hour".into()),
            Unpublished::TooLarge { .. } => (ErrorKind::TooLarge, "split the library".into()),
            Unpublished::Expired => (ErrorKind::Timeout, "none of it is visible; push again".into()),
            Unpublished::Overtaken(_) => (
                ErrorKind::Conflict,
                "this one is not visible; run it again to see what would change now".into(),
            ),
        };
        let error = Self::new(kind, why.to_string()).with_hint(hint);
        match why {
            Unpublished::Unsettled(_) | Unpublished::Expired => error,
            _ => error.lasting(),
        }
    }
}

impl LibraryAdmin {
    /// Uploads, records and commits a release. Returns the committed index and the one that it is based on.
    async fn commit(
        &self,
        plan: &Plan,
        adopted: &[NewFile],
        upload: &mut PendingRelease,
    ) -> Result<(Arc<Index>, Option<Arc<Index>>)> {
        let library = &self.library;
        let mut deadline = None;
        let mut replanned: Option<Plan> = None;
        let mut round = 0;
        loop {
            let plan = replanned.as_ref().unwrap_or(plan);
            let base = plan.base.index.as_ref();
            self.upload_changes(plan, upload).await?;
            if self.is_expired(upload.began) {
                return Err(Unpublished::Expired.into());
            }
            let index = next_index(self, plan, adopted, upload, self.retention()).await?;
            let bytes = encode(&index, library)?;
            let record = library.release(index.release, &index.id);
            let written = self.backend.put_document(&record, bytes.clone(), Condition::Absent).await;
            written.map_err(|e| e.during("write a release of", library))?;
            if self.swap(&index, bytes, base, upload.began).await? {
                return Ok((Arc::new(index), base.map(|base| base.value.clone())));
            }
            let overtaken = || Error::from(Unpublished::Overtaken(library));
            // For `Index`: what looked like drift may have been a key of that release.
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + self.conflict_patience());
            if matches!(plan.change, LibraryChange::Index) || Instant::now() >= deadline {
                return Err(overtaken());
            }
            round += 1;
            self.backend.store().pause(round).await;
            let again = self.plan_change(plan.change.clone(), &plan.options).await?;
            if !plan.is_same_change(&again) {
                return Err(overtaken());
            }
            replanned = Some(again);
        }
    }

    /// Replaces the index by compare-and-swap. Returns `false` if another release was committed first.
    async fn swap(
        &self,
        index: &Index,
        bytes: Bytes,
        base: Option<&Versioned<Arc<Index>>>,
        began: SystemTime,
    ) -> Result<bool> {
        let LibraryAdmin { backend, library, .. } = self;
        let deadline = Instant::now() + self.conflict_patience();
        let seen = base.map(|base| base.etag.as_str());
        let mut round = 0;
        loop {
            let put = backend.put_document(&library.index(), bytes.clone(), if_unchanged(seen)).await;
            backend.library_changed();
            let failed = match put {
                Ok(Some(_)) => return Ok(true),
                Ok(None) => None,
                Err(error) if error.may_have_taken_effect() || error.kind() == ErrorKind::Conflict => {
                    Some(error)
                }
                Err(error) => return Err(error.during("write the index of", library)),
            };
            // The write may have taken effect: read the index to find out.
            let now = self.read_index().await.map_err(Error::uncertain)?;
            let lists_ours =
                now.as_ref().is_some_and(|now| now.value.id == index.id || now.value.lists(&index.id));
            let is_base = now.as_ref().map(|now| now.etag.as_str()) == seen;
            match protocol::commit(lists_ours, is_base, self.is_expired(began)) {
                Commit::Done => return Ok(true),
                Commit::Lost => return Ok(false),
                Commit::Resend if Instant::now() < deadline => {
                    round += 1;
                    backend.store().pause(round).await;
                }
                Commit::Resend | Commit::Unknown => {
                    let lost = || Error::new(ErrorKind::Conflict, "the index could not be replaced");
                    let error = Error::uncertain(failed.unwrap_or_else(lost));
                    return Err(error.during("write the index of", library));
                }
            }
        }
    }

    fn is_expired(&self, began: SystemTime) -> bool {
        let age = self.backend.server_time().duration_since(began).unwrap_or_default();
        protocol::push_expired(age, self.retention())
    }

    /// Reads the files of a plain library that the plan does not replace, and uploads them as blobs.
    async fn adopt(&self, plan: &Plan, upload: &mut PendingRelease) -> Result<Vec<NewFile>> {
        let Some(adopted) = &plan.adopted else { return Ok(Vec::new()) };
        let work = Transfers::new(self, "adopting", (adopted.files, adopted.bytes));
        let changed: BTreeSet<&str> = plan.changes.iter().map(|change| change.path.as_str()).collect();
        let (work, id) = (&work, &upload.id);
        let kept = plan.base.tree.files_in("").filter(|(path, _)| !changed.contains(path));
        let reads = kept.map(|(path, found)| async move {
            let etag = found.meta.etag.clone().unwrap_or_default();
            let bytes = {
                let _permits = work.reserve(found.meta.size).await?;
                work.key(path, &etag).await?
            };
            let file = NewFile::new(path, bytes);
            work.upload(path, &file, id, None).await?;
            Ok(NewFile { content: NewContent::Key(etag), ..file })
        });
        let adopted = run_concurrently(MAX_READS, reads.collect()).await?;
        upload.add(adopted.iter());
        Ok(adopted)
    }

    /// Uploads new content, except blobs that the base index already names.
    async fn upload_changes(&self, plan: &Plan, upload: &mut PendingRelease) -> Result<()> {
        let named: BTreeSet<Digest> =
            plan.base.index().iter().flat_map(|base| base.blobs()).map(|(sha256, _)| sha256).collect();
        let mut wanted: BTreeMap<Digest, (&str, &NewFile)> = BTreeMap::new();
        for Change { path, after, .. } in &plan.changes {
            let Some(file) = after else { continue };
            // A blob of any release that the base lists cannot be pruned, so it needs no upload.
            let stored = matches!(file.content, NewContent::Blob(_));
            let named = named.contains(&file.sha256) && !plan.options.overwrite;
            if !stored && !named && !upload.blobs.contains(&file.sha256) {
                wanted.insert(file.sha256, (path, file));
            }
        }
        let total = (wanted.len() as u64, wanted.values().map(|(_, file)| file.size).sum());
        let work = Transfers::new(self, "uploading", total);
        let from = plan.options.copy_from.as_ref();
        let uploads = wanted.values().map(|(path, file)| work.upload(path, file, &upload.id, from));
        run_concurrently(MAX_REQUESTS, uploads.collect()).await?;
        upload.add(wanted.into_values().map(|(_, file)| file));
        Ok(())
    }

    /// Publishes files that were uploaded while a plain library was being published, as a second release.
    async fn publish_uploaded_meanwhile(&self, options: &PushOptions) -> Result<Published> {
        let source = "uploaded while the library was published".to_owned();
        let options = PushOptions { source, into: IntoKind::Same, ..options.clone() };
        let plan = self.plan_change(LibraryChange::Index, &options).await?;
        Box::pin(self.publish(&plan)).await
    }
}
