//! Who publishes: a library is held for a while, by the server's clock, and nobody else writes into it meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use tokio::sync::Mutex;

use crate::backend::S3Backend;
use crate::error::{Error, ErrorKind, Result};
use crate::index::{Index, MAX_BYTES, Publishing};
use crate::mount::Library;
use crate::store::{Condition, LastWork, WriteId};

/// S3 tells times in whole seconds, and its machines' clocks differ a little.
const CLOCK_MARGIN: u64 = 2;
/// How often an index is read anew when others write it, too.
const ROUNDS: u32 = 8;

/// Somebody who is publishing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UnderWay {
    /// Who it is.
    pub by: String,
    /// In how many seconds another may go on with it; 0 when it is left behind.
    pub free_in: u64,
}

impl UnderWay {
    pub(super) fn of(index: &Index, now: SystemTime) -> Option<Self> {
        let publishing = index.publishing.as_ref()?;
        let free = publishing.expires.saturating_add(publishing.margin);
        Some(Self { by: publishing.by.clone(), free_in: free.saturating_sub(seconds(now)) })
    }

    /// What is said to somebody else who wants to publish.
    pub(super) fn refusal(&self, library: &Library) -> Error {
        Error::new(
            ErrorKind::Conflict,
            format!("{} is publishing to {library} at this moment", shown(&self.by)),
        )
        .with_hint(format!(
            "run it again when that is done; should it have been interrupted, its work can be finished in {} s (`--wait` waits for it)",
            self.free_in
        ))
    }
}

fn shown(by: &str) -> &str {
    if by.is_empty() { "somebody" } else { by }
}

pub(super) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The library is ours for a while.
#[derive(Debug)]
pub(super) struct Lease<'a> {
    backend: &'a S3Backend,
    library: &'a Library,
    publishing: Publishing,
    length: u64,
    expires: AtomicU64,
    /// The same by a clock that nobody sets: in seconds since this began.
    began: Instant,
    ends: AtomicU64,
    /// Whether a request of ours may still be on its way, though nobody waits for it any more.
    astray: AtomicBool,
    /// Whether the library is ours no longer.
    over: AtomicBool,
    /// The index as it was last written, and its version.
    index: Mutex<(Index, String)>,
}

impl<'a> Lease<'a> {
    /// Who we are, from now on.
    pub(super) fn claim(backend: &'a S3Backend, by: &str, length: u64, largest: u64) -> Result<Publishing> {
        Ok(Publishing {
            owner: WriteId::new()?.as_str().to_owned(),
            by: by.to_owned(),
            expires: seconds(backend.server_time()).saturating_add(length),
            margin: backend.longest_write(largest).as_secs() + CLOCK_MARGIN,
        })
    }

    /// Writes an index in which the library is ours. `None` when another was first.
    pub(super) async fn take(
        backend: &'a S3Backend,
        library: &'a Library,
        mut index: Index,
        seen: Option<&str>,
        publishing: Publishing,
        length: u64,
    ) -> Result<Option<Self>> {
        index.publishing = Some(publishing.clone());
        let began = Instant::now();
        let at = match write_index(backend, library, &index, seen).await {
            Ok(Some(etag)) => (index, etag),
            // It may have taken effect all the same: then the library is ours.
            lost => match read_index(backend, library).await {
                Ok(Some((now, etag)))
                    if now.publishing.as_ref().is_some_and(|now| now.owner == publishing.owner) =>
                {
                    (now, etag)
                }
                _ => return lost.map(|_| None),
            },
        };
        let expires = AtomicU64::new(publishing.expires);
        let (astray, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let (ends, index) = (AtomicU64::new(length), Mutex::new(at));
        Ok(Some(Self { backend, library, publishing, length, expires, began, ends, astray, over, index }))
    }

    pub(super) fn library(&self) -> &'a Library {
        self.library
    }

    /// To be called before anything is written into the library: makes sure that it is still ours, and for a
    /// while yet.
    pub(super) async fn hold(&self) -> Result<()> {
        if self.left() > self.length / 2 {
            return Ok(());
        }
        let mut index = self.index.lock().await;
        // Another did it meanwhile.
        if self.left() > self.length / 2 {
            return Ok(());
        }
        let until = seconds(self.backend.server_time()).saturating_add(self.length);
        let ends = self.began.elapsed().as_secs().saturating_add(self.length);
        self.update(&mut index, |index| {
            if let Some(publishing) = &mut index.publishing {
                publishing.expires = until;
            }
        })
        .await?;
        self.expires.store(until, Ordering::Relaxed);
        self.ends.store(ends, Ordering::Relaxed);
        if self.left() == 0 { Err(self.lost()) } else { Ok(()) }
    }

    /// Seconds for which it is still ours.
    fn left(&self) -> u64 {
        let by_server =
            self.expires.load(Ordering::Relaxed).saturating_sub(seconds(self.backend.server_time()));
        by_server.min(self.ends.load(Ordering::Relaxed).saturating_sub(self.began.elapsed().as_secs()))
    }

    /// Changes the index for the last time, and lets go of the library.
    pub(super) async fn finish(&self, change: impl Fn(&mut Index)) -> Result<Index> {
        let mut index = self.index.lock().await;
        self.update(&mut index, |index| {
            change(index);
            index.publishing = None;
        })
        .await?;
        self.over.store(true, Ordering::Relaxed);
        Ok(index.0.clone())
    }

    /// A write into the library failed: it may still arrive there.
    pub(super) fn failed(&self, error: &Error) {
        let surely_not =
            matches!(error.kind(), ErrorKind::Denied | ErrorKind::Throttled | ErrorKind::Corrupt);
        if error.may_have_taken_effect() || !surely_not {
            self.astray.store(true, Ordering::Relaxed);
        }
    }

    /// Something went wrong: whoever goes on with it need not wait. Only what may still be on its way is waited
    /// for.
    pub(super) async fn give_up(&self) {
        self.over.store(true, Ordering::Relaxed);
        let mut index = self.index.lock().await;
        let now = seconds(self.backend.server_time());
        let astray = self.astray.load(Ordering::Relaxed);
        let done = self.update(&mut index, |index| {
            if let Some(publishing) = &mut index.publishing {
                publishing.expires = now;
                publishing.margin = if astray { publishing.margin } else { 0 };
            }
        });
        if let Err(error) = done.await {
            tracing::debug!("cannot let go of the library: {error}");
        }
    }

    async fn update(&self, at: &mut (Index, String), change: impl Fn(&mut Index)) -> Result<()> {
        for _ in 0..ROUNDS {
            let mut index = at.0.clone();
            change(&mut index);
            index.id = WriteId::fresh()?;
            if let Some(etag) = write_index(self.backend, self.library, &index, Some(&at.1)).await? {
                *at = (index, etag);
                return Ok(());
            }
            // Somebody else may write an index, as long as the library stays ours.
            let Some((now, etag)) = read_index(self.backend, self.library).await? else {
                return Err(self.lost());
            };
            if now.publishing.as_ref().is_none_or(|publishing| publishing.owner != self.publishing.owner) {
                return Err(self.lost());
            }
            *at = (now, etag);
        }
        Err(self.lost())
    }

    fn lost(&self) -> Error {
        Error::new(
            ErrorKind::Conflict,
            format!("{} was taken over by another while it was being published to", self.library),
        )
        .with_hint("it took too long; what was committed is finished by the other, so look with `admin verify`, then push again")
    }
}

/// Whoever goes away in the middle lets go of the library, so that nobody waits for longer than a request may take.
impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.over.load(Ordering::Relaxed) {
            return;
        }
        let (backend, library) = (self.backend.clone(), self.library.clone());
        let owner = self.publishing.owner.clone();
        let last = LastWork::new();
        runtime.spawn(async move {
            let done = async {
                let Some((mut index, etag)) = read_index(&backend, &library).await? else { return Ok(()) };
                let now = seconds(backend.server_time());
                match &mut index.publishing {
                    Some(publishing) if publishing.owner == owner => {
                        publishing.expires = publishing.expires.min(now);
                        write_index(&backend, &library, &index, Some(&etag)).await.map(drop)
                    }
                    _ => Ok::<_, Error>(()),
                }
            };
            if let Err(error) = done.await {
                tracing::debug!("cannot let go of the library: {error}");
            }
            drop(last);
        });
    }
}

/// The index as it is now, and its version.
pub(super) async fn read_index(backend: &S3Backend, library: &Library) -> Result<Option<(Index, String)>> {
    let key = library.index();
    let Some((meta, bytes)) =
        backend.object(key.key()).await.map_err(|e| e.during("read the index of", library))?
    else {
        return Ok(None);
    };
    let index = Index::parse(&bytes).map_err(|why| {
        Error::new(ErrorKind::Corrupt, format!("the index of {library} cannot be read: {why}"))
            .with_hint("`skillfs admin index` writes a new one; releases that it knew are then forgotten")
    })?;
    let Some(etag) = meta.etag else {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("the storage gives no ETag for the index of {library}"),
        )
        .with_hint("publishing needs one"));
    };
    Ok(Some((index, etag)))
}

/// An index that cannot be read may be replaced, unless a later program wrote it.
pub(crate) async fn check_replaceable(backend: &S3Backend, library: &Library) -> Result<()> {
    let found =
        backend.object(library.index().key()).await.map_err(|e| e.during("read the index of", library))?;
    let format = found.and_then(|(_, bytes)| Index::format_of(&bytes));
    if format.is_none_or(|format| format <= crate::index::FORMAT) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Corrupt,
        format!("the index of {library} was written by a later version of skillfs"),
    )
    .with_hint("use that version: this one would lose releases and pins that it does not know"))
}

/// Writes an index over the version that was seen. `None` when another was first.
pub(super) async fn write_index(
    backend: &S3Backend,
    library: &Library,
    index: &Index,
    seen: Option<&str>,
) -> Result<Option<String>> {
    let internal = |e| Error::new(ErrorKind::Internal, "the index could not be written down").with_source(e);
    let bytes = index.to_json().map_err(internal)?;
    let size = bytes.len() as u64;
    if size > MAX_BYTES {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!("the index of {library} would have {size} bytes, and {MAX_BYTES} are read"),
        )
        .with_hint("split the library; without an index it works, but is slower"));
    }
    let condition = match seen {
        Some(etag) => Condition::Version { etag: etag.to_owned(), known: None },
        None => Condition::Absent,
    };
    let key = library.index();
    let put = backend.put_object(&key, "index.json", bytes.into(), condition).await;
    backend.library_changed();
    match put.map_err(|e| e.during("write the index of", library))? {
        None => Ok(None),
        Some(Some(etag)) => Ok(Some(etag)),
        // It took effect, and another came right behind: theirs was made on ours.
        Some(None) => Ok(read_index(backend, library)
            .await?
            .filter(|(now, _)| now.id == index.id)
            .map(|(_, etag)| etag)),
    }
}

/// How long to wait until what is left behind can be taken over.
pub(super) async fn wait_for(index: &Index, backend: &S3Backend) {
    if let Some(under_way) = UnderWay::of(index, backend.server_time()) {
        tokio::time::sleep(Duration::from_secs(under_way.free_in.min(60))).await;
    }
}
