//! Contents of a library: on their way there, and what is there already.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::Semaphore;

use super::mirror::Jobs;
use super::plan::{NewContent, NewFile, NewLibrary, Plan};
use super::publish::{PushProgress, PushWatch};
use crate::backend::S3Backend;
use crate::error::{Error, ErrorKind, Result};
use crate::index::{RecordedFile, Sha256};
use crate::manifest::skill_file;
use crate::mount::Library;
use crate::store::{Condition, Meta};

/// Requests that are under way at once.
pub(super) const AT_ONCE: usize = 64;
/// Bytes of files that are held at once, in KiB.
const HELD_KIB: usize = 64 * 1024;
/// Up to so many blobs are asked for one by one; more are listed.
const FEW: usize = 16;
/// A blob that is needed and older than this is written again: it may be about to go.
const NEAR_ITS_END: Duration = Duration::from_secs(6 * 24 * 3600);
/// A content of so many bytes is copied on the server rather than sent, where it lies there already.
pub(super) const WORTH_A_COPY: u64 = 256 * 1024;

/// Skills and their files, as a release records them.
pub(super) type Recorded = BTreeMap<String, BTreeMap<String, RecordedFile>>;

/// What all requests of a push share.
pub(super) struct Work<'a> {
    pub(super) backend: &'a S3Backend,
    pub(super) library: &'a Library,
    requests: Semaphore,
    held: Semaphore,
    files: AtomicU64,
    bytes: AtomicU64,
    total: (u64, u64),
    phase: &'static str,
    watch: PushWatch<'a>,
}

impl<'a> Work<'a> {
    pub(super) fn new(
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

    pub(super) fn tell(&self, files: u64, bytes: u64) {
        let files = self.files.fetch_add(files, Ordering::Relaxed) + files;
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (self.watch)(PushProgress {
            phase: self.phase,
            files: (files, self.total.0),
            bytes: (bytes, self.total.1),
        });
    }

    /// Room for a request, and for what it sends.
    pub(super) async fn room(
        &self,
        size: u64,
    ) -> Result<(tokio::sync::SemaphorePermit<'_>, tokio::sync::SemaphorePermit<'_>)> {
        let closed = |e| Error::new(ErrorKind::Internal, "publishing has ended").with_source(e);
        let kib = u32::try_from(size.div_ceil(1024).min(HELD_KIB as u64)).unwrap_or(u32::MAX);
        let request = self.requests.acquire().await.map_err(closed)?;
        Ok((request, self.held.acquire_many(kib).await.map_err(closed)?))
    }

    pub(super) async fn content(&self, path: &str, sha256: Sha256, content: &NewContent) -> Result<Bytes> {
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
    pub(super) async fn blob(&self, path: &str, file: &NewFile, from: Option<&Library>) -> Result<()> {
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
}

/// Which contents lie among the blobs already, with their sizes. Those that may be about to go do not count.
pub(super) async fn stored(
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

/// Contents of a source, by their digests.
pub(super) fn contents(source: Option<&NewLibrary>) -> BTreeMap<Sha256, NewContent> {
    let Some(source) = source else { return BTreeMap::new() };
    let files = source.skills.iter().flat_map(|skill| &skill.files).chain(source.categories.values());
    files.map(|file| (file.sha256, file.content.clone())).collect()
}

/// Blobs that were lost are written anew, from what is at hand.
pub(super) async fn restore(backend: &S3Backend, library: &Library, jobs: &Jobs) -> Result<()> {
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

/// Keeps what nobody published and is about to be changed or deleted, as blobs.
pub(super) async fn adopt(backend: &S3Backend, plan: &Plan, watch: PushWatch<'_>) -> Result<Recorded> {
    let library = &plan.library;
    let found = plan
        .changing()
        .filter(|skill| !skill.kept && skill_file(skill.live.keys().map(String::as_str)).is_some());
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
