//! Checks what the session may and may not do, using the session's own credentials.

use super::{Check, CheckList, NO_SESSION, SILENT, VisiblePrefix, address, arn, bucket_arn, open_with};
use crate::backend::S3Backend;
use crate::error::{Error, ErrorKind, Hint, Result};
use crate::id::ThreadId;
use crate::mount::{Access, Grants, Identity, Library, MOUNTS, MountSpec, Mounts, Session, WritableKey};
use crate::path::{VirtualPath, WORKING_DIRECTORY};
use crate::store::{LastWork, Reason, Store, Trouble};

/// The permissions found for one prefix.
pub(super) struct Rights {
    pub(super) checks: Vec<Check>,
    pub(super) listed: bool,
    /// Whether writing works; `None` if it was not tried.
    pub(super) written: Option<bool>,
}

/// The outcome of creating a probe object.
enum Probed {
    /// It was created and deleted again.
    Gone,
    /// It was created and could not be deleted.
    Left(Error),
    /// It was not created.
    Not(Trouble),
    /// It may have been created, and could not be deleted.
    Lost(Trouble),
}

/// Checks whether the session can assume its role.
pub(super) async fn role(backend: &S3Backend) -> Check {
    match backend.credentials().await {
        Ok(credentials) => Check::good("role", format!("assumed as `{}`", credentials.session_name)),
        Err(error) => Check::failed("role", &error),
    }
}

/// A random name that no other object has.
fn probe_name(store: &Store) -> Result<String> {
    Ok(format!(".skillfs-doctor-{}", store.fresh_id()?))
}

pub(super) async fn look(
    store: &Store,
    mounts: &Mounts,
    place: &VisiblePrefix,
    line: &mut CheckList,
) -> Rights {
    let of = place.name();
    let mut checks = Vec::new();
    let mut say = |check: Check| checks.push(check.of(of.clone()));
    let (mut listed, mut found) = (false, None);
    if line.broken {
        say(Check::skipped("list", SILENT));
    } else {
        let answer = store.try_list(place.directory.prefix()).await;
        say(list(store, place, &answer));
        match answer {
            Ok(key) => (listed, found) = (true, key),
            Err(trouble) => line.note(&trouble.reason),
        }
    }
    say(match line.broken {
        true => Check::skipped("read", SILENT),
        false => read(store, place, listed, found.as_deref(), line).await,
    });
    // `/skills` is read-only for every session.
    let mut written = None;
    if place.library.is_none() {
        say(if line.broken {
            Check::skipped("write", SILENT)
        } else if place.mount.access() == Access::ReadWrite {
            let check = write(store, mounts, place, line).await;
            written = Some(check.verdict == super::Verdict::Good);
            check
        } else {
            let check = Check::skipped("write", "read-only in this session");
            match place.mount.spec().grant() {
                Some(_) => check.fix(Hint::GrantWrite { mount: place.mount.path().to_string() }),
                None => check,
            }
        });
    }
    Rights { checks, listed, written }
}

fn list(store: &Store, place: &VisiblePrefix, answer: &Result<Option<String>, Trouble>) -> Check {
    let prefix = place.directory.prefix().as_str();
    match answer {
        Ok(Some(_)) => Check::good("list", format!("allowed: `{prefix}` has files")),
        Ok(None) => Check::good("list", format!("allowed: `{prefix}` has no files yet")),
        Err(Trouble { reason: Reason::Refused, .. }) => {
            Check::wrong("list", format!("refused: these credentials may not list `{prefix}`")).fix(format!(
                "allow s3:ListBucket on `{}` where s3:prefix begins with `{prefix}`",
                bucket_arn(store)
            ))
        }
        Err(trouble) => Check::failed("list", &trouble.error),
    }
}

/// Checks whether files can be read. If a file exists, reading it gives a definite result. Otherwise, S3
/// distinguishes a missing file from a forbidden one only for callers that may list the bucket.
async fn read(
    store: &Store,
    place: &VisiblePrefix,
    listed: bool,
    found: Option<&str>,
    line: &mut CheckList,
) -> Check {
    let prefix = place.directory.prefix().as_str();
    let there = found.and_then(|key| place.directory.file(key)).map(|(_, key)| key);
    let key = match (&there, probe_name(store)) {
        (Some(key), _) => key.clone(),
        (None, Ok(name)) => place.directory.absent(&name),
        (None, Err(error)) => return Check::failed("read", &error),
    };
    let allow = format!("allow s3:GetObject on {}", arn(store, prefix));
    match store.try_read(&key).await {
        Ok(true) => Check::good("read", "allowed"),
        Ok(false) => Check::good("read", "allowed: a file that does not exist is reported as missing"),
        Err(Trouble { reason: Reason::Refused, .. }) if there.is_some() => {
            Check::wrong("read", format!("refused: these credentials may not read below `{prefix}`"))
                .fix(format!("{allow}, and kms:Decrypt if a key encrypts it"))
        }
        Err(Trouble { reason: Reason::Refused, .. }) if !listed => {
            Check::skipped("read", "unknown while listing is refused")
        }
        Err(Trouble { reason: Reason::Refused, .. }) => Check::note(
            "read",
            format!("refused for a file that does not exist, and `{prefix}` has no file to test with"),
        )
        .fix(format!("{allow}; if it is allowed, write a file there and check again")),
        Err(trouble) => line.troubled("read", &trouble),
    }
}

async fn write(store: &Store, mounts: &Mounts, place: &VisiblePrefix, line: &mut CheckList) -> Check {
    let key = match (mounts.target(place.mount.path()), probe_name(store)) {
        (Ok(target), Ok(name)) => target.probe(&name),
        (Err(error), _) | (_, Err(error)) => return Check::failed("write", &error),
    };
    let prefix = place.directory.prefix().as_str();
    let allow = |actions: &str| format!("allow {actions} on {}", arn(store, prefix));
    match probe(store, &key, false).await {
        Probed::Gone => Check::good("write", "allowed: an object was written and deleted"),
        Probed::Left(error) => {
            let why = match error.kind() {
                ErrorKind::Denied => "deleting is refused",
                _ => error.message(),
            };
            Check::wrong("write", format!("`{}` was written and could not be deleted: {why}", key.as_str()))
                .fix(Hint::Steps(vec![allow("s3:DeleteObject").into(), remove(store, &key)]))
        }
        Probed::Not(Trouble { reason: Reason::Refused, .. }) => {
            Check::wrong("write", format!("refused: these credentials may not write below `{prefix}`"))
                .fix(allow("s3:PutObject and s3:DeleteObject"))
        }
        Probed::Not(trouble) => line.troubled("write", &trouble),
        Probed::Lost(trouble) => {
            line.note(&trouble.reason);
            let found = format!("`{}` may be left in the bucket: {}", key.as_str(), trouble.error.message());
            Check::wrong("write", found).fix(remove(store, &key))
        }
    }
}

fn remove(store: &Store, key: &WritableKey) -> Hint {
    Hint::DeleteObject { bucket: address(store, None), key: key.as_str().to_owned() }
}

/// Runs work in a separate task to completion, so that a canceled caller does not leave a probe object.
async fn to_the_end<T: Send + 'static>(
    what: &str,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T> {
    let last = LastWork::new();
    let task = tokio::spawn(async move {
        let done = work.await;
        drop(last);
        done
    });
    let failed = |error| Error::new(ErrorKind::Internal, format!("{what} failed")).with_source(error);
    task.await.map_err(failed)
}

/// Creates an object and deletes it again.
async fn probe(store: &Store, key: &WritableKey, only_new: bool) -> Probed {
    let (store, key) = (store.clone(), key.clone());
    let work = async move {
        match store.try_create(&key, only_new).await {
            Err(trouble) if surely_not(&trouble.reason) => Probed::Not(trouble),
            made => match (store.delete(&key).await, made) {
                (Ok(()), Ok(())) => Probed::Gone,
                (Err(error), Ok(())) => Probed::Left(error),
                (Ok(()), Err(trouble)) => Probed::Not(trouble),
                (Err(_), Err(trouble)) => Probed::Lost(trouble),
            },
        }
    };
    to_the_end("testing whether it may be written", work)
        .await
        .unwrap_or_else(|error| Probed::Not(Trouble { reason: Reason::Other, error }))
}

/// Whether a write that failed for this reason definitely had no effect.
fn surely_not(reason: &Reason) -> bool {
    !matches!(reason, Reason::Timeout | Reason::Unreachable | Reason::NotS3 | Reason::Other)
}

pub(super) async fn conditional_writes(
    backend: &S3Backend,
    written: Option<bool>,
    line: &mut CheckList,
) -> Check {
    const NAME: &str = "conditional writes";
    const HONORED: &str = "honored: no change is overwritten unseen";
    if backend.store().capabilities().knows_puts() {
        return Check::good(NAME, HONORED);
    }
    match written {
        None if backend.mounts().next().is_none() => return Check::skipped(NAME, NO_SESSION),
        None => {
            return Check::skipped(NAME, "there is no mount to test them in")
                .fix(open_with([Identity::Thread]));
        }
        Some(false) => return Check::skipped(NAME, "writing fails"),
        Some(true) => {}
    }
    let asking = backend.clone();
    let asked =
        to_the_end("testing whether conditions are honored", async move { asking.capabilities().await });
    match asked.await.flatten() {
        Ok(can) if can.conditional_writes => Check::good(NAME, HONORED),
        Ok(_) => Check::warning(
            NAME,
            "this server ignores them: edits, appends and publishing are refused, because concurrent changes could be lost",
        )
        .fix(Hint::AcceptLostUpdates),
        Err(error) => line.failed(NAME, &error),
    }
}

/// Checks whether S3 itself denies this session access to the data of others.
pub(super) async fn confinement(
    store: &Store,
    session: &Session,
    confined: bool,
    line: &mut CheckList,
) -> Check {
    const NAME: &str = "confinement";
    if store.is_embedded() {
        return Check::note(NAME, "the embedded store has no users; only skillfs keeps tenants apart");
    }
    if !confined {
        return Check::note(
            NAME,
            "all sessions run on this process's own credentials; only skillfs keeps tenants apart",
        )
        .fix(Hint::UseRole);
    }
    let Trespasses { mut allowed, unclear, left, perhaps_left } = match trespass(store, session, line).await {
        Ok(trespasses) => trespasses,
        Err(error) => return Check::failed(NAME, &error),
    };
    if !allowed.is_empty() {
        allowed.extend(left.iter().map(|key| format!("`{}` is left in the bucket", key.as_str())));
        allowed
            .extend(perhaps_left.iter().map(|key| format!("`{}` may be left in the bucket", key.as_str())));
        let narrow = Hint::plain("narrow the role and its session policy: see terraform/README.md");
        let remove = left.iter().chain(&perhaps_left).map(|key| remove(store, key));
        let fix = Hint::Steps([narrow].into_iter().chain(remove).collect());
        return Check::wrong(NAME, format!("broken: {}", allowed.join("; "))).fix(fix);
    }
    match unclear {
        Some(error) => {
            let mut found = format!("unknown: {}", error.message());
            let mut steps: Vec<Hint> = error.hint().cloned().into_iter().collect();
            for key in &perhaps_left {
                found += &format!("; `{}` may be left in the bucket", key.as_str());
                steps.push(remove(store, key));
            }
            Check { fix: Some(Hint::Steps(steps)), ..Check::warning(NAME, found) }
        }
        None => Check::good(
            NAME,
            "enforced: S3 refuses this session other threads, lists of other tenants, and writes to libraries",
        ),
    }
}

/// The results of requests that S3 must refuse to a confined session.
#[derive(Default)]
struct Trespasses {
    /// Requests that S3 allowed.
    allowed: Vec<String>,
    /// An error other than a refusal.
    unclear: Option<Error>,
    /// Objects that were created and could not be deleted.
    left: Vec<WritableKey>,
    /// Objects that may have been created.
    perhaps_left: Vec<WritableKey>,
}

impl Trespasses {
    fn note<T>(&mut self, what: &str, answer: Result<T, Trouble>, line: &mut CheckList) {
        match answer {
            Ok(_) => self.allowed.push(what.to_owned()),
            Err(Trouble { reason: Reason::Refused, .. }) => {}
            Err(trouble) => {
                line.note(&trouble.reason);
                self.unclear = Some(trouble.error);
            }
        }
    }

    async fn write(&mut self, store: &Store, what: &str, key: WritableKey, line: &mut CheckList) {
        if line.broken {
            return;
        }
        match probe(store, &key, true).await {
            Probed::Gone => self.allowed.push(what.to_owned()),
            Probed::Left(_) => {
                self.allowed.push(what.to_owned());
                self.left.push(key);
            }
            Probed::Not(trouble) => self.note::<()>(what, Err(trouble), line),
            Probed::Lost(trouble) => {
                self.perhaps_left.push(key);
                self.note::<()>(what, Err(trouble), line);
            }
        }
    }
}

async fn trespass(store: &Store, session: &Session, line: &mut CheckList) -> Result<Trespasses> {
    let mut found = Trespasses::default();
    for identity in [Identity::Thread, Identity::User] {
        let all = Mounts::of_all(identity);
        let what = match all.as_str() {
            "" => "it may list the entire bucket".to_owned(),
            prefix => format!("it may list `{prefix}`"),
        };
        if !line.broken {
            found.note(&what, store.try_list(&all).await, line);
        }
    }
    // A thread ID that nobody uses.
    let thread = ThreadId::parse(&format!("skillfs-doctor-{}", store.fresh_id()?))?;
    let mounts = Mounts::of(&Session { thread: Some(thread), ..Session::default() });
    let other = mounts.target(&VirtualPath::top_level(WORKING_DIRECTORY))?.probe(&probe_name(store)?);
    if !line.broken {
        found.note("it may read in another thread", store.try_read(other.key()).await, line);
    }
    // S3 may answer 403 for a missing file, so a refused read proves nothing. A refused write is unambiguous.
    found.write(store, "it may write to another thread", other, line).await;
    // Prefixes that the session can see but must not change.
    let libraries = session.user.clone().map(Library::User);
    let libraries = libraries.into_iter().chain(session.libraries.iter().cloned().map(Library::Shared));
    let mut closed = Vec::new();
    for library in libraries {
        let records = format!("it may write below `{}`", library.records().as_str());
        closed.push((records, library.probe_named(&probe_name(store)?[1..])));
        let (_, file) = library.file(&probe_name(store)?)?;
        closed.push((format!("it may write to {library}"), file));
    }
    let grants = MOUNTS.iter().filter_map(MountSpec::grant).fold(session.grants, Grants::with);
    let granted = Mounts::of(&Session { grants, ..session.clone() });
    for mount in Mounts::of(session).iter() {
        if mount.access() == Access::ReadOnly
            && let Ok(target) = granted.target(mount.path())
        {
            closed.push((format!("it may write to `{}`", mount.path()), target.probe(&probe_name(store)?)));
        }
    }
    for (what, key) in closed {
        found.write(store, &what, key, line).await;
    }
    Ok(found)
}
