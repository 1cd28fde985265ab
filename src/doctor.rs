//! Diagnosis of a bucket and a session, with a fix for every problem.
//!
//! A diagnosis never fails: every outcome becomes a check. Checks that depend on a failed one are skipped.

mod ground;
mod indexes;
mod rights;

use serde::Serialize;
use tracing::instrument;

use crate::backend::SkillFs;
use crate::error::{BucketAddress, Error, ErrorKind, Hint};
use crate::mount::{Directory, Identity, Library, Location, Mount, MountSpec, Mounts, Owner, Session};
use crate::store::{Reason, Store, Trouble};

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Verdict {
    /// Everything is as it should be.
    Good,
    /// It works, and there is something worth knowing.
    Note,
    /// It works, but will cause problems.
    Warning,
    /// It does not work, or is not safe.
    Wrong,
    /// It was not checked.
    Skipped,
}

impl Verdict {
    /// All of them, the best first; what was skipped is last.
    pub const ALL: &[Self] = &[Self::Good, Self::Note, Self::Warning, Self::Wrong, Self::Skipped];

    /// The stable name, as it appears in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Wrong => "wrong",
            Self::Skipped => "skipped",
        }
    }
}

/// The outcome of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// The stable name of the check: `bucket`, `list`, `index`, …
    pub name: &'static str,
    /// The mount or library that was checked, if there are several.
    pub of: Option<String>,
    /// The result.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// The library that it is about.
    #[serde(skip)]
    pub library: Option<Library>,
    /// What to do about it.
    pub fix: Option<Hint>,
}

impl Check {
    fn new(name: &'static str, verdict: Verdict, found: impl Into<String>) -> Self {
        Self { name, of: None, verdict, found: found.into(), library: None, fix: None }
    }

    fn good(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Verdict::Good, found)
    }

    fn note(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Verdict::Note, found)
    }

    fn warning(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Verdict::Warning, found)
    }

    fn wrong(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Verdict::Wrong, found)
    }

    fn skipped(name: &'static str, why: impl Into<String>) -> Self {
        Self::new(name, Verdict::Skipped, why)
    }

    /// A check that failed with an error; the error's hint is the fix.
    fn failed(name: &'static str, error: &Error) -> Self {
        let fix = error.hint().cloned();
        Self { fix, ..Self::wrong(name, error.message()) }
    }

    fn fix(self, fix: impl Into<Hint>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }

    fn of(self, of: impl Into<String>) -> Self {
        Self { of: Some(of.into()), ..self }
    }
}

/// The result of [`SkillFs::diagnose`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Diagnosis {
    /// Whether no check is wrong. Notes, warnings and skipped checks do not count.
    pub healthy: bool,
    /// The checks in order: first the bucket, then what the session may do in it.
    pub checks: Vec<Check>,
}

impl Diagnosis {
    /// The number of checks with this verdict.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> u64 {
        self.checks.iter().filter(|check| check.verdict == verdict).count() as u64
    }
}

/// A prefix that the session can see.
struct VisiblePrefix {
    mount: Mount,
    library: Option<Library>,
    directory: Directory,
}

impl VisiblePrefix {
    fn all(mounts: &Mounts) -> Vec<Self> {
        let mut places = Vec::new();
        for mount in mounts.iter() {
            let place = |library, directory| Self { mount: mount.clone(), library, directory };
            match mounts.resolve(mount.path()) {
                Ok(Location::Mount(directory)) => places.push(place(None, directory)),
                Ok(Location::Layered) => {
                    for layer in mounts.skill_layers() {
                        places.push(place(layer.library(), layer.top()));
                    }
                }
                _ => {}
            }
        }
        places
    }

    fn name(&self) -> String {
        match &self.library {
            Some(library) => format!("{} ({})", self.mount.path(), short(library)),
            None => self.mount.path().to_string(),
        }
    }
}

/// Tracks whether the server still responds, so that later checks do not wait for a timeout again.
#[derive(Default)]
struct CheckList {
    broken: bool,
}

impl CheckList {
    fn note(&mut self, reason: &Reason) {
        self.broken |= matches!(reason, Reason::Timeout | Reason::Unreachable);
    }

    /// A check that failed with this error.
    fn failed(&mut self, name: &'static str, error: &Error) -> Check {
        self.broken |= matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable);
        Check::failed(name, error)
    }

    /// A check that failed with an unexpected response.
    fn troubled(&mut self, name: &'static str, trouble: &Trouble) -> Check {
        self.note(&trouble.reason);
        Check::failed(name, &trouble.error)
    }
}

const SILENT: &str = "the storage has stopped responding";
const NO_SESSION: &str = "no session was given";

impl SkillFs {
    /// Checks the bucket and what a session may do in it: whether the bucket is reachable, its region, the
    /// credentials, the clock, permissions to list, read and write, whether S3 itself isolates tenants,
    /// versioning, conditional writes, and the indexes of the session's libraries.
    ///
    /// This never fails: every outcome is a [`Check`] that says what was found and how to fix it. The only
    /// content that is read is one byte of one file per mount, and keys of a published library that others
    /// may have changed. One object with a random name that begins with `.skillfs-doctor-` is written to each
    /// mount that the session may write to, and deleted again.
    ///
    /// Costs one request for the bucket (two if reading the versioning configuration is denied), two for each
    /// prefix that the session sees, two more for each mount that it may write to, and one for conditional
    /// writes if it is not yet known whether the server honors them. Checking the indexes costs two requests
    /// for each library, one for every 1,000 of its keys, and one for each key that others may have changed.
    /// If the session has a role, checking whether S3 confines it costs four more requests, two for each
    /// library and one for each mount that it must not change. S3 should refuse these; an object that S3
    /// accepts is deleted again.
    #[instrument(name = "diagnose", skip_all)]
    pub async fn diagnose(&self, session: &Session) -> Diagnosis {
        // Boxed to keep the caller's future small.
        let checks = Box::pin(self.checks(session)).await;
        Diagnosis { healthy: checks.iter().all(|check| check.verdict != Verdict::Wrong), checks }
    }

    async fn checks(&self, session: &Session) -> Vec<Check> {
        let ground::Ground { mut checks, versioning, stop } = ground::look(self.store()).await;
        let mounts = Mounts::of(session);
        let places = VisiblePrefix::all(&mounts);
        if let Some(why) = stop {
            checks.extend(skipped_from_here(why, versioning));
            return checks;
        }
        let backend = self.session(session);
        let store = backend.store();
        let mut line = CheckList::default();
        let mut rights = Vec::new();
        if backend.is_confined() && !places.is_empty() {
            let check = rights::role(&backend).await;
            let failed = check.verdict == Verdict::Wrong;
            checks.push(check);
            if failed {
                checks.extend(skipped_from_here("the session has no credentials", versioning));
                return checks;
            }
        }
        for place in &places {
            let looked = rights::look(store, &mounts, place, &mut line).await;
            checks.extend(looked.checks.iter().cloned());
            rights.push(looked);
        }
        if places.is_empty() {
            let all = MountSpec::of_files().chain(MountSpec::of_libraries());
            checks.push(Check::skipped("list", NO_SESSION).fix(open_with(all)));
            checks.extend(["read", "write"].map(|name| Check::skipped(name, NO_SESSION)));
        }
        // With a role, these requests use the session's own credentials.
        let confined = backend.is_confined();
        checks.push(match line.broken {
            true => Check::skipped("confinement", SILENT),
            false if confined && places.is_empty() => Check::skipped("confinement", NO_SESSION),
            false => rights::confinement(store, session, confined, &mut line).await,
        });
        checks.push(versioning);
        let written = rights.iter().filter_map(|rights| rights.written).reduce(|one, other| one || other);
        checks.push(match line.broken {
            true => Check::skipped("conditional writes", SILENT),
            false => rights::conditional_writes(&backend, written, &mut line).await,
        });
        let mut indexes = Vec::new();
        for (place, rights) in places.iter().zip(&rights) {
            let Some(library) = &place.library else { continue };
            let check = match (line.broken, rights.listed) {
                (true, _) => Check::skipped("index", SILENT),
                (false, false) => Check::skipped("index", "the library cannot be listed"),
                (false, true) => indexes::look(&backend.on_library(library), library, &mut line).await,
            };
            indexes.push(Check { library: Some(library.clone()), ..check.of(short(library)) });
        }
        if indexes.is_empty() {
            let fix = open_with(MountSpec::of_libraries());
            indexes.push(Check::skipped("index", "no library was given").fix(fix));
        }
        checks.extend(indexes);
        checks
    }
}

/// The checks that are skipped if a fundamental one failed, around the result for versioning.
fn skipped_from_here(why: &str, versioning: Check) -> impl Iterator<Item = Check> {
    let skipped = |name: &'static str| Check::skipped(name, why);
    let before = ["list", "read", "write", "confinement"].map(skipped);
    let behind = ["conditional writes", "index"].map(skipped);
    before.into_iter().chain([versioning]).chain(behind)
}

/// The kind and the ID of a library.
fn short(library: &Library) -> String {
    let owner = Owner::from(library);
    format!("{} {}", owner.identity().spec().name, owner.id())
}

/// What else a session could be opened with.
fn open_with(identities: impl IntoIterator<Item = Identity>) -> Hint {
    let identities = identities.into_iter().map(|identity| identity.spec().name).collect();
    Hint::OpenWith { mount: None, identities }
}

/// Formats a count: `1 key`, `2 keys`.
pub(crate) fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Where the bucket is. The region matters on AWS only.
fn address(store: &Store, region: Option<&str>) -> BucketAddress {
    let endpoint = store.endpoint().map(str::to_owned);
    let region = region.filter(|_| endpoint.is_none()).map(str::to_owned);
    BucketAddress { name: store.name().to_owned(), endpoint, region, embedded: store.is_embedded() }
}

/// The ARN of the bucket for use in a policy.
fn bucket_arn(store: &Store) -> String {
    let bucket = store.name();
    if bucket.starts_with("arn:") { bucket.to_owned() } else { format!("arn:aws:s3:::{bucket}") }
}

/// The ARN of all objects below a prefix for use in a policy.
fn arn(store: &Store, prefix: &str) -> String {
    let object = if store.name().starts_with("arn:") { "object/" } else { "" };
    format!("`{}/{object}{prefix}*`", bucket_arn(store))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_have_the_names_of_the_documents() {
        for verdict in Verdict::ALL {
            assert_eq!(serde_json::to_string(&verdict).unwrap(), format!("\"{}\"", verdict.as_str()));
        }
    }
}
