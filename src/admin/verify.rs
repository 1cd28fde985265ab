//! Verifies a library: compares its index, its blobs and its mirror with each other.

use std::collections::BTreeSet;

use serde::Serialize;
use tracing::instrument;

use super::drift::{Drift, MirrorState, compare_mirror};
use super::library::{LibraryAdmin, LibraryKind, LibraryState, MAX_READS, empty_library, run_concurrently};
use super::work::Transfers;
use crate::backend::Union;
use crate::error::{ErrorKind, Hint, Result};
use crate::index::{Digest, Index, ReleaseId};
use crate::manifest::{Severity, validate};
use crate::options::setters;
use crate::path::{VirtualPath, leaf};

/// The size in bytes above which a `SKILL.md` is reported.
const LARGE_SKILL_FILE: u64 = 1024 * 1024;
/// The total size in bytes above which a skill is reported, since hosts may reject it.
const LARGE_SKILL: u64 = 16 * 1024 * 1024;
/// The number of files above which a skill is reported.
const MANY_FILES: usize = 512;
/// How many bytes of a `SKILL.md` are validated.
const VALIDATED_BYTES: u64 = 1024 * 1024;
/// The path of problems of the index.
const INDEX: &str = "index.json";
/// The consequence of a missing or damaged blob.
const NOT_READABLE: &str = "so it cannot be read";
/// The message for an upload that was not completed.
const TORN_UPLOAD: &str = "a multipart upload was not completed: it is invisible but billed; a lifecycle rule of the bucket can remove it";

/// Options for [`LibraryAdmin::verify`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct VerifyOptions {
    /// Read every blob of the newest release and compare its digest. Default: false.
    pub read_blobs: bool,
}

impl VerifyOptions {
    setters! {
        read_blobs: bool;
    }
}

/// A problem that a verification found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Problem {
    /// The severity. [`Severity::Info`] is not counted as a problem by [`Verified::is_clean`].
    pub severity: Severity,
    /// A stable code, such as `missing-blob`.
    pub code: &'static str,
    /// What is affected: a path below `/skills`, a release, a key, `index.json` or `mirror.json`.
    pub path: String,
    /// A description.
    pub message: String,
    /// What to do about it, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<Hint>,
    /// Whether [`LibraryAdmin::repair`] repaired it.
    pub repaired: bool,
}

/// The result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Verified {
    /// The number of skills that were checked.
    pub skills: u64,
    /// The number of files that were checked.
    pub files: u64,
    /// The number of objects that were read to compare their digests.
    pub read: u64,
    /// The problems, most severe first.
    pub problems: Vec<Problem>,
}

impl Verified {
    /// Whether there are no problems, except repaired and informational ones.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems.iter().all(|problem| problem.repaired || problem.severity == Severity::Info)
    }

    fn add(&mut self, severity: Severity, code: &'static str, path: &str, message: &str) {
        let (path, message) = (path.to_owned(), message.to_owned());
        self.problems.push(Problem { severity, code, path, message, hint: None, repaired: false });
    }

    fn hint(&mut self, hint: Hint) {
        if let Some(last) = self.problems.last_mut() {
            last.hint = Some(hint);
        }
    }

    pub(super) fn has(&self, codes: &[&str]) -> bool {
        self.problems.iter().any(|problem| codes.contains(&problem.code))
    }

    pub(super) fn sort(&mut self) {
        self.problems.sort_by(|one, other| (other.severity, &one.path).cmp(&(one.severity, &other.path)));
    }
}

/// A release whose record is intact.
pub(super) struct Intact {
    pub(super) name: String,
    pub(super) record: Index,
    pub(super) bytes: bytes::Bytes,
}

impl LibraryAdmin {
    /// Compares the index, the blobs and the mirror of the library with each other. Changes nothing.
    ///
    /// Costs two requests, listings of keys and blobs, and one request for each listed release and for each key that
    /// differs. [`VerifyOptions::read_blobs`] adds one request for each blob.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the library is empty; errors of the storage. A damaged index is a [`Problem`], not an
    /// error.
    #[instrument(name = "verify", skip_all, fields(library = %self.library))]
    pub async fn verify(&self, options: &VerifyOptions) -> Result<Verified> {
        let mut found = Verified::default();
        match self.load().await {
            Ok(state) => verify_state(self, &state, options, &mut found).await?,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let intact = intact_releases(self).await?;
                found.add(Severity::Error, "bad-index", INDEX, error.message());
                found.hint(restorable(&intact));
            }
            Err(error) => return Err(error),
        }
        match self.backend.store().unfinished_uploads(&self.library.everything()).await {
            Ok(keys) => {
                for key in keys {
                    found.add(Severity::Warning, "torn-upload", &key, TORN_UPLOAD);
                }
            }
            // Some servers do not support listing uploads, and some administrators are not permitted to.
            Err(error) => tracing::debug!("unfinished uploads cannot be listed: {error}"),
        }
        found.sort();
        Ok(found)
    }
}

async fn verify_state(
    access: &LibraryAdmin,
    state: &LibraryState,
    options: &VerifyOptions,
    found: &mut Verified,
) -> Result<()> {
    for key in &state.tree.unnameable {
        let message = "no path can name this key, so no session sees it; rename it with an S3 tool";
        found.add(Severity::Warning, "unreachable-key", key, message);
    }
    sizes(&state.tree, found);
    let mut blobs = BTreeSet::new();
    if let Some(index) = state.index() {
        blobs = access.stored_blobs().await?;
        check_releases(access, index, &blobs, found).await;
        if index.is_published() {
            report_mirror(&compare_mirror(access, index).await?, index, found);
        }
    } else {
        let intact = intact_releases(access).await?;
        if !intact.is_empty() {
            let message = "the library has releases and no index, so it is read as plain";
            found.add(Severity::Error, "lost-index", INDEX, message);
            found.hint(restorable(&intact));
        } else if state.kind == LibraryKind::Empty {
            return Err(empty_library(&access.library));
        }
    }
    if options.read_blobs {
        read_all(access, state, &blobs, found).await?;
    }
    Ok(())
}

fn report_mirror(mirror: &MirrorState, index: &Index, found: &mut Verified) {
    for Drift { path, change, .. } in &mirror.drift {
        let message = format!("others have {} this key, and no session sees that", change.done());
        found.add(Severity::Warning, "drift", path, &message);
        found.hint(Hint::PublishOrRevert);
    }
    if mirror.behind > 0 {
        let (behind, release) = (mirror.behind, index.release);
        let keys = if behind == 1 { "key is" } else { "keys are" };
        let message = format!("{behind} {keys} not at release {release} yet");
        found.add(Severity::Warning, "mirror-behind", "mirror.json", &message);
        found.hint(Hint::CompleteMirror);
    }
}

/// Checks that the records and blobs of all listed releases exist.
async fn check_releases(
    access: &LibraryAdmin,
    index: &Index,
    stored: &BTreeSet<String>,
    found: &mut Verified,
) {
    let is_stored =
        |sha256: Digest, id: &ReleaseId| stored.contains(access.library.blob(sha256, id).as_str());
    for (path, file) in &index.files {
        if !is_stored(file.sha256, &file.blob.id) {
            let message = format!("its blob is missing, {NOT_READABLE}");
            found.add(Severity::Error, "missing-blob", path, &message);
            found.hint(Hint::RepairLibrary);
        }
    }
    for note in index.earlier_releases() {
        let release = format!("release {}", note.number);
        match access.read_record(note).await {
            Ok(record) => {
                let missing =
                    record.blobs().filter(|(sha256, origin)| !is_stored(*sha256, &origin.id)).count();
                if missing > 0 {
                    let message =
                        format!("{missing} of its blobs are missing, so it cannot be rolled back to");
                    found.add(Severity::Warning, "incomplete-release", &release, &message);
                }
            }
            Err(error) => found.add(Severity::Warning, "lost-release", &release, error.message()),
        }
    }
    for (skill, release) in index.lost_pins() {
        let message = format!("it is pinned to release {release}, which is no longer listed");
        found.add(Severity::Warning, "lost-pin", skill, &message);
        found.hint(Hint::Unpin(skill.clone()));
    }
}

fn sizes(tree: &Union, found: &mut Verified) {
    found.files = tree.files_in("").count() as u64;
    for (path, place) in tree.skills() {
        found.skills += 1;
        let (mut bytes, mut files) = (0, 0);
        for (name, file) in tree.files_in(path.as_str()) {
            bytes += file.meta.size;
            files += 1;
            if name == place.file && file.meta.size > LARGE_SKILL_FILE {
                let size = file.meta.size;
                let message =
                    format!("it has {size} bytes; more than {LARGE_SKILL_FILE} do not fit any prompt");
                found.add(Severity::Warning, "oversized", &format!("{path}/{name}"), &message);
            }
        }
        if bytes > LARGE_SKILL || files > MANY_FILES {
            let message = format!(
                "it has {files} files and {bytes} bytes; hosts may reject more than {MANY_FILES} files or {LARGE_SKILL} bytes"
            );
            found.add(Severity::Info, "oversized", path.as_str(), &message);
        }
    }
}

/// Reads every file of the library, compares digests, and validates the skills.
async fn read_all(
    access: &LibraryAdmin,
    state: &LibraryState,
    stored: &BTreeSet<String>,
    found: &mut Verified,
) -> Result<()> {
    let mut files = Vec::new();
    for (path, file) in state.tree.files_in("") {
        let skill = state.tree.skill_of(path);
        let manifest = skill.filter(|skill| {
            let (skill, name) = (skill.as_str(), &path[skill.as_str().len() + 1..]);
            state.tree.skill(skill).is_some_and(|place| name == place.file)
        });
        let key = file.blob.as_ref().map(|blob| access.library.blob(blob.sha256, &blob.origin.id));
        let missing = key.is_some_and(|key| !stored.contains(key.as_str()));
        if !missing && (manifest.is_some() || file.blob.is_some()) {
            files.push((path, file, manifest));
        }
    }
    let total = files.len() as u64;
    let work = Transfers::new(access, "reading", (total, 0));
    let work = &work;
    let reads = files.into_iter().map(|(path, file, manifest)| async move {
        let location = VirtualPath::in_skills(path)?;
        let most = if manifest.is_some() { VALIDATED_BYTES } else { 0 };
        let read = access.backend.digest_listed(&location, file, most).await;
        work.report(1, 0);
        Ok((path, manifest, read))
    });
    let reads = run_concurrently(MAX_READS, reads.collect()).await?;
    for (path, manifest, read) in reads {
        match read {
            Ok((_, head)) => {
                let Some(skill) = manifest else { continue };
                for problem in validate(&head, skill.name()) {
                    found.add(Severity::Info, "nonconforming", path, &problem);
                }
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let message = format!("its blob is not what was published, {NOT_READABLE}");
                found.add(Severity::Error, "damaged-blob", path, &message);
                found.hint(Hint::RepairLibrary);
            }
            Err(error) if error.kind() == ErrorKind::Conflict => {
                found.add(Severity::Info, "changing", path, "it was changed while it was read; verify again");
            }
            Err(error) => return Err(error),
        }
    }
    found.read = total;
    Ok(())
}

pub(super) async fn intact_releases(access: &LibraryAdmin) -> Result<Vec<Intact>> {
    let LibraryAdmin { backend, library, .. } = access;
    let mut intact = Vec::new();
    for (key, _) in backend.objects(&library.releases()).await? {
        let Some(name) = leaf(&key).strip_suffix(".json") else { continue };
        let Some(listed) = library.listed_beside(&key) else { continue };
        let Some((_, bytes)) = backend.object(listed.key()).await? else { continue };
        if let Ok(record) = Index::decode(&bytes) {
            let name = name.trim_start_matches('0').to_owned();
            intact.push(Intact { name, record, bytes });
        }
    }
    Ok(intact)
}

pub(super) fn restorable(intact: &[Intact]) -> Hint {
    if intact.is_empty() {
        return "no release is intact; push the library again".into();
    }
    Hint::RestoreRelease { intact: intact.iter().rev().take(5).map(|intact| intact.name.clone()).collect() }
}
