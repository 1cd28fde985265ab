//! Verifying: the index, the blobs and the mirror of a library, compared with each other.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use tracing::instrument;

use super::compare::FileAction;
use super::drift::{Drift, MirrorState, compare_mirror};
use super::library::{LibraryKind, LibraryState, Versioned, nothing_there, read_record};
use super::work::{PushProgress, PushWatch};
use crate::backend::{S3Backend, SkillFs, Union};
use crate::error::{Error, ErrorKind, Result};
use crate::index::{Digest, Index};
use crate::manifest::{Severity, validate};
use crate::mount::Library;
use crate::path::{VirtualPath, leaf};

/// Objects that are read at once.
const AT_ONCE: usize = 32;
/// A longer `SKILL.md` is reported.
const LARGE_SKILL_FILE: u64 = 1024 * 1024;
/// So is a skill with more bytes or files: hosts may reject it.
const LARGE_SKILL: u64 = 16 * 1024 * 1024;
const MANY_FILES: usize = 512;
/// This much of a `SKILL.md` is validated.
const JUDGED_BYTES: u64 = 1024 * 1024;
/// The index, as a place of problems.
const INDEX: &str = "index.json";

/// Something that a verification found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// What it is, in one word that stays.
    pub code: &'static str,
    /// Where: a path below `/skills`, or the index.
    pub path: String,
    /// What it is, and what to do about it.
    pub message: String,
    /// Whether it was repaired.
    pub repaired: bool,
}

/// What a verification found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Verified {
    /// Skills that were looked at.
    pub skills: u64,
    /// Files that were looked at.
    pub files: u64,
    /// Objects that were read, to compare their digests.
    pub read: u64,
    /// What was found, the worst first.
    pub problems: Vec<Problem>,
}

impl Verified {
    /// Whether nothing is wrong that was not repaired.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems.iter().all(|problem| problem.repaired || problem.severity == Severity::Info)
    }

    fn say(
        &mut self,
        severity: Severity,
        code: &'static str,
        path: impl Into<String>,
        message: impl Into<String>,
    ) {
        let (path, message) = (path.into(), message.into());
        self.problems.push(Problem { severity, code, path, message, repaired: false });
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

impl SkillFs {
    /// Compares the index, the blobs and the mirror of a library.
    ///
    /// With `read`, every blob of the newest release is read. Costs the index, the record of the mirror, listings of
    /// keys and blobs, and one request for each listed release and for each key that differs; then one for each blob.
    ///
    /// # Errors
    /// Those of the storage; [`ErrorKind::NotFound`] when there is nothing at all.
    #[instrument(name = "verify", skip_all, fields(%library))]
    pub async fn verify(&self, library: &Library, read: bool, watch: PushWatch<'_>) -> Result<Verified> {
        let backend = self.own_session(&library.session()).fresh();
        let mut found = Verified::default();
        match LibraryState::load(&backend, library).await {
            Ok(state) => self.verify_state(&backend, library, state, read, &mut found, watch).await?,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let intact = intact_releases(&backend, library).await?;
                let message = format!("{}; {}", error.message(), restorable(&intact));
                found.say(Severity::Error, "bad-index", INDEX, message);
            }
            Err(error) => return Err(error),
        }
        match backend.store().unfinished_uploads(&library.everything()).await {
            Ok(keys) => {
                for key in keys {
                    found.say(
                        Severity::Warning,
                        "torn-upload",
                        key,
                        "a multipart upload was not completed: it is invisible, and is paid for; a lifecycle rule of the bucket removes it",
                    );
                }
            }
            // Not every server lists them, and not every administrator may.
            Err(error) => tracing::debug!("unfinished uploads cannot be listed: {error}"),
        }
        found.sort();
        Ok(found)
    }

    async fn verify_state(
        &self,
        backend: &S3Backend,
        library: &Library,
        state: LibraryState,
        read: bool,
        found: &mut Verified,
        watch: PushWatch<'_>,
    ) -> Result<()> {
        for key in &state.tree.unnameable {
            found.say(
                Severity::Warning,
                "unreachable-key",
                key,
                "no path can name this key, so no session sees it; rename it with an S3 tool",
            );
        }
        sizes(&state.tree, found);
        if state.index.is_none() {
            let intact = intact_releases(backend, library).await?;
            if !intact.is_empty() {
                let message = format!(
                    "the library has releases and no index, so it is read as plain; {}",
                    restorable(&intact)
                );
                found.say(Severity::Error, "lost-index", INDEX, message);
            } else if state.kind == LibraryKind::Empty {
                return Err(nothing_there(library));
            }
        }
        let mut blobs = BTreeSet::new();
        if let Some(Versioned { value: index, .. }) = &state.index {
            blobs = stored_blobs(backend, library).await?;
            check_releases(backend, library, index, &blobs, found).await;
            if index.is_published() {
                let mirror = compare_mirror(backend, library, index).await?;
                tell_mirror(&mirror, index, found);
            }
        }
        if read {
            read_all(backend, library, &state, &blobs, found, watch).await?;
        }
        Ok(())
    }
}

fn tell_mirror(mirror: &MirrorState, index: &Index, found: &mut Verified) {
    for Drift { path, change, .. } in &mirror.drift {
        let what = match change {
            FileAction::Add => "others have added this key",
            FileAction::Change => "others have changed this key",
            FileAction::Remove => "others have removed this key",
        };
        let message = format!(
            "{what}, and no session sees that; `admin index` publishes it, `--repair --overwrite` reverts it"
        );
        found.say(Severity::Warning, "drift", path, message);
    }
    if mirror.behind > 0 {
        let keys =
            if mirror.behind == 1 { "1 key is".to_owned() } else { format!("{} keys are", mirror.behind) };
        let message = format!(
            "{keys} not at release {} yet; `--repair` or the next push completes the mirror",
            index.release
        );
        found.say(Severity::Warning, "mirror-behind", "mirror.json", message);
    }
}

pub(super) async fn stored_blobs(backend: &S3Backend, library: &Library) -> Result<BTreeSet<String>> {
    Ok(backend.objects(&library.blobs()).await?.into_iter().map(|(key, _)| key).collect())
}

/// Whether everything that the listed releases name is there.
async fn check_releases(
    backend: &S3Backend,
    library: &Library,
    index: &Index,
    stored: &BTreeSet<String>,
    found: &mut Verified,
) {
    let is_stored =
        |sha256: Digest, id: &crate::index::ReleaseId| stored.contains(library.blob(sha256, id).as_str());
    for (path, file) in &index.files {
        if !is_stored(file.sha256, &file.blob.id) {
            found.say(
                Severity::Error,
                "missing-blob",
                path,
                "its blob is missing, so it cannot be read; `--repair` restores it from another copy; otherwise push the skill again with `--overwrite`",
            );
        }
    }
    for note in index.releases.iter().filter(|note| note.id != index.id) {
        let number = note.number;
        match read_record(backend, library, number, &note.id).await {
            Ok(record) => {
                let missing =
                    record.blobs().filter(|(sha256, origin)| !is_stored(*sha256, &origin.id)).count();
                if missing > 0 {
                    let message =
                        format!("{missing} of its blobs are missing, so it cannot be rolled back to");
                    found.say(Severity::Warning, "incomplete-release", format!("release {number}"), message);
                }
            }
            Err(error) => {
                found.say(Severity::Warning, "lost-release", format!("release {number}"), error.message());
            }
        }
    }
    for (skill, release) in &index.pins {
        if !index.releases.iter().any(|note| note.number == *release) {
            let message = format!("it is pinned to release {release}, which is not listed any more");
            found.say(Severity::Warning, "lost-pin", skill, message);
        }
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
                let message = format!(
                    "it has {} bytes; more than {LARGE_SKILL_FILE} do not fit any prompt",
                    file.meta.size
                );
                found.say(Severity::Warning, "oversized", format!("{path}/{name}"), message);
            }
        }
        if bytes > LARGE_SKILL || files > MANY_FILES {
            let message = format!(
                "it has {files} files and {bytes} bytes; hosts may reject more than {MANY_FILES} files or {LARGE_SKILL} bytes"
            );
            found.say(Severity::Info, "oversized", path.as_str(), message);
        }
    }
}

/// Reads every file of the library, compares digests, and validates the skills.
async fn read_all(
    backend: &S3Backend,
    library: &Library,
    state: &LibraryState,
    stored: &BTreeSet<String>,
    found: &mut Verified,
    watch: PushWatch<'_>,
) -> Result<()> {
    let mut files = Vec::new();
    for (path, file) in state.tree.files_in("") {
        let skill = state.tree.skill_of(path);
        let judged = skill.filter(|skill| {
            let (skill, name) = (skill.as_str(), &path[skill.as_str().len() + 1..]);
            state.tree.skill(skill).is_some_and(|place| name == place.file)
        });
        let missing = file
            .blob
            .as_ref()
            .is_some_and(|blob| !stored.contains(library.blob(blob.sha256, &blob.origin.id).as_str()));
        if !missing && (judged.is_some() || file.blob.is_some()) {
            files.push((path, file, judged));
        }
    }
    let (total, done) = (files.len() as u64, AtomicU64::new(0));
    let tell = |files: u64| {
        let files = done.fetch_add(files, Ordering::Relaxed) + files;
        watch(PushProgress { phase: "reading", files: (files, total), bytes: (0, 0) });
    };
    tell(0);
    let tell = &tell;
    let reads: Vec<_> = files
        .into_iter()
        .map(|(path, file, judged)| async move {
            let location = VirtualPath::in_skills(path)?;
            let most = if judged.is_some() { JUDGED_BYTES } else { 0 };
            let read = backend.digest_listed(&location, file, most).await;
            tell(1);
            Ok::<_, Error>((path, judged, read))
        })
        .collect();
    let reads: Vec<_> = stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
    for (path, judged, read) in reads {
        match read {
            Ok((_, head)) => {
                let Some(skill) = judged else { continue };
                for problem in validate(&head, skill.name()) {
                    found.say(Severity::Info, "nonconforming", path, problem);
                }
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => found.say(
                Severity::Error,
                "damaged-blob",
                path,
                "its blob is not what was published, so it cannot be read; `--repair` restores it from another copy; otherwise push the skill again with `--overwrite`",
            ),
            Err(error) if error.kind() == ErrorKind::Conflict => {
                found.say(Severity::Info, "changing", path, "it was changed while it was read; verify again");
            }
            Err(error) => return Err(error),
        }
    }
    found.read = total;
    Ok(())
}

pub(super) async fn intact_releases(backend: &S3Backend, library: &Library) -> Result<Vec<Intact>> {
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

pub(super) fn restorable(intact: &[Intact]) -> String {
    if intact.is_empty() {
        return "no release is intact: push the library again".to_owned();
    }
    let names: Vec<_> = intact.iter().rev().take(5).map(|intact| intact.name.as_str()).collect();
    format!(
        "restore one of its releases with `--repair --release N` (intact, the newest first: {})",
        names.join(", ")
    )
}
