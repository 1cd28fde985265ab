//! Verifying: the index, the blobs and the mirror of a library, compared with each other; and repairing what can be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use tracing::instrument;

use super::compare::FileAction;
use super::drift::{self, Drift, Recorded};
use super::library::{
    LibraryKind, State, Versioned, mirrored_keys, nothing_there, only_over, read_index, read_mirror,
    read_record,
};
use super::mirror::Mirroring;
use super::protocol::Act;
use super::work::{PushProgress, PushWatch};
use crate::backend::{S3Backend, SkillFs, Union};
use crate::error::{Error, ErrorKind, Result, shorten};
use crate::index::{Index, Sha256};
use crate::manifest::validate;
use crate::mount::Library;
use crate::path::VirtualPath;

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

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something is lost or wrong.
    Error,
    /// Something should be looked at.
    Warning,
    /// Good to know.
    Info,
}

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

/// How to repair a library.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RepairOptions {
    /// Reads every blob, to compare its digest.
    pub read: bool,
    /// Replaces what others have changed in the mirror.
    pub overwrite: bool,
    /// The release that a damaged or lost index is restored from: its number, or `NUMBER-ID`.
    pub release: Option<String>,
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

    fn has(&self, codes: &[&str]) -> bool {
        self.problems.iter().any(|problem| codes.contains(&problem.code))
    }

    fn sort(&mut self) {
        self.problems.sort_by(|one, other| (one.severity, &one.path).cmp(&(other.severity, &other.path)));
    }
}

/// A release whose record is intact.
struct Intact {
    name: String,
    record: Index,
    bytes: bytes::Bytes,
}

impl SkillFs {
    /// What others have changed in the keys of a published library; nothing for a plain one.
    ///
    /// Costs the index, the record of the mirror, a listing, and one request for each key that differs.
    ///
    /// # Errors
    /// Those of the storage; [`ErrorKind::Corrupt`] when the index is damaged.
    pub async fn drift(&self, library: &Library) -> Result<Vec<Drift>> {
        let backend = self.own_session(&library.session()).fresh();
        let Some(found) = read_index(&backend, library).await?.filter(|found| found.value.is_published())
        else {
            return Ok(Vec::new());
        };
        Ok(compare_mirror(&backend, library, &found.value).await?.drift)
    }

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
        match State::load(&backend, library).await {
            Ok(state) => self.verify_state(&backend, library, state, read, &mut found, watch).await?,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let intact = intact_releases(&backend, library).await?;
                let message = format!("{}; {}", error.message(), restorable(&intact));
                found.say(Severity::Error, "bad-index", INDEX, message);
            }
            Err(error) => return Err(error),
        }
        match backend.unfinished_uploads(library).await {
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
        state: State,
        read: bool,
        found: &mut Verified,
        watch: PushWatch<'_>,
    ) -> Result<()> {
        for key in state.tree.unnameable() {
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

    /// Verifies, and repairs what can be: restores a damaged index from the release that is named, blobs from other
    /// copies of their content, and completes the mirror. With [`RepairOptions::overwrite`], reverts what others have
    /// changed there; without, nothing of theirs is touched.
    ///
    /// # Errors
    /// As [`SkillFs::verify`]; [`ErrorKind::InvalidInput`] when the release that is named is not intact.
    pub async fn repair(
        &self,
        library: &Library,
        options: &RepairOptions,
        watch: PushWatch<'_>,
    ) -> Result<Verified> {
        let before = self.verify(library, options.read, watch).await?;
        let backend = self.own_session(&library.session()).fresh();
        backend.check_conditions(library).await?;
        if before.has(&["bad-index", "lost-index"]) {
            match &options.release {
                Some(release) => restore_index(&backend, library, release).await?,
                None => return Ok(before),
            }
        } else if options.release.is_some() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("the index of {library} is not damaged"),
            )
            .with_hint("to go back to a release: `admin rollback N`"));
        }
        if let Some(Versioned { value: index, .. }) = read_index(&backend, library).await? {
            restore_blobs(&backend, library, &index, &before).await?;
            if index.is_published() {
                let mirroring = Mirroring {
                    backend: &backend,
                    library,
                    own: None,
                    contents: BTreeMap::new(),
                    thorough: true,
                    adopting: false,
                    overwrite: options.overwrite,
                    patience: self.conflict_patience(),
                    watch,
                };
                mirroring.complete(index, None, BTreeMap::new()).await?;
            }
        }
        let mut after = self.verify(library, options.read, watch).await?;
        for problem in before.problems {
            let left =
                after.problems.iter().any(|left| left.code == problem.code && left.path == problem.path);
            if !left && problem.severity != Severity::Info {
                after.problems.push(Problem { repaired: true, ..problem });
            }
        }
        after.sort();
        Ok(after)
    }
}

/// The mirror, compared with the newest release.
pub(crate) struct MirrorState {
    pub(crate) drift: Vec<Drift>,
    /// Keys that are still to be written or deleted.
    pub(crate) behind: u64,
}

pub(crate) async fn compare_mirror(
    backend: &S3Backend,
    library: &Library,
    index: &Index,
) -> Result<MirrorState> {
    let mirror = read_mirror(backend, library).await?.and_then(|found| found.value);
    let recorded = Recorded::of(backend, library, index, mirror.as_ref()).await;
    let present = mirrored_keys(backend, library).await?;
    let compared = drift::compare(backend, library, index, &recorded, &present, false).await?;
    let behind = compared.values().filter(|key| matches!(key.act, Act::Write | Act::Delete)).count() as u64;
    Ok(MirrorState { drift: drift::drifted(index, &compared), behind })
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

async fn stored_blobs(backend: &S3Backend, library: &Library) -> Result<BTreeSet<String>> {
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
        |sha256: Sha256, id: &crate::index::ReleaseId| stored.contains(library.blob(sha256, id).as_str());
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
        for (name, file) in tree.files_in(path) {
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
            found.say(Severity::Info, "oversized", path, message);
        }
    }
}

/// Reads every file of the library, compares digests, and validates the skills.
async fn read_all(
    backend: &S3Backend,
    library: &Library,
    state: &State,
    stored: &BTreeSet<String>,
    found: &mut Verified,
    watch: PushWatch<'_>,
) -> Result<()> {
    let mut files = Vec::new();
    for (path, file) in state.tree.files_in("") {
        let skill = state.tree.skill_of(path);
        let judged = skill.filter(|skill| {
            state.tree.skill(skill).is_some_and(|place| path[skill.len() + 1..] == place.file)
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
            let location = VirtualPath::parse(&format!("/skills/{path}"))?;
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
                let leaf = skill.rsplit('/').next().unwrap_or_default();
                for problem in validate(&head, leaf) {
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

/// Writes blobs again from other copies of their content: the mirror's key, or a blob of another release.
async fn restore_blobs(
    backend: &S3Backend,
    library: &Library,
    index: &Index,
    found: &Verified,
) -> Result<()> {
    let broken: Vec<&Problem> = found
        .problems
        .iter()
        .filter(|problem| matches!(problem.code, "missing-blob" | "damaged-blob"))
        .collect();
    if broken.is_empty() {
        return Ok(());
    }
    let stored = stored_blobs(backend, library).await?;
    for Problem { path, .. } in broken {
        let Some(file) = index.files.get(path) else { continue };
        let key = library.blob(file.sha256, &file.blob.id);
        let (_, mirrored) = library.file(path)?;
        let digest = format!("/{}-", file.sha256);
        let copies = stored.iter().filter(|other| other.contains(&digest) && *other != key.as_str());
        let copies = copies.filter_map(|other| library.listed_beside(other));
        for copy in copies.chain([mirrored]) {
            let Some((_, bytes)) = backend.object(copy.key()).await? else { continue };
            if Sha256::of(&bytes) != file.sha256 {
                continue;
            }
            let seen = backend.object_meta(key.key()).await?.and_then(|meta| meta.etag);
            let name = path.rsplit('/').next().unwrap_or_default();
            // The same key has the same content again, so nobody can tell the difference.
            backend.put_object(&key, name, bytes, only_over(seen.as_deref())).await?;
            break;
        }
    }
    Ok(())
}

async fn intact_releases(backend: &S3Backend, library: &Library) -> Result<Vec<Intact>> {
    let mut intact = Vec::new();
    for (key, _) in backend.objects(&library.releases()).await? {
        let Some(name) = key.rsplit('/').next().and_then(|name| name.strip_suffix(".json")) else { continue };
        let Some(listed) = library.listed_beside(&key) else { continue };
        let Some((_, bytes)) = backend.object(listed.key()).await? else { continue };
        if let Ok(record) = Index::decode(&bytes) {
            let name = name.trim_start_matches('0').to_owned();
            intact.push(Intact { name, record, bytes });
        }
    }
    Ok(intact)
}

fn restorable(intact: &[Intact]) -> String {
    if intact.is_empty() {
        return "no release is intact: push the library again".to_owned();
    }
    let names: Vec<_> = intact.iter().rev().take(5).map(|intact| intact.name.as_str()).collect();
    format!(
        "restore one of its releases with `--repair --release N` (intact, the newest first: {})",
        names.join(", ")
    )
}

/// The index of a release becomes the index again. Nothing is guessed: the release is named.
async fn restore_index(backend: &S3Backend, library: &Library, release: &str) -> Result<()> {
    let intact = intact_releases(backend, library).await?;
    let wanted: Vec<&Intact> = intact
        .iter()
        .filter(|intact| intact.name == release || intact.record.release.to_string() == release)
        .collect();
    let [wanted] = wanted.as_slice() else {
        let names: Vec<_> = wanted.iter().map(|intact| intact.name.as_str()).collect();
        let (kind, message) = match names.is_empty() {
            true => (ErrorKind::NotFound, format!("{library} has no intact release `{}`", shorten(release))),
            false => {
                let names = names.join(", ");
                (
                    ErrorKind::Ambiguous,
                    format!("two publishers wrote release {release}: {names}; only one was committed"),
                )
            }
        };
        return Err(Error::new(kind, message).with_hint(restorable(&intact)));
    };
    let conflict = || {
        Error::new(ErrorKind::Conflict, format!("somebody else wrote the index of {library}"))
            .with_hint("verify it again")
    };
    // Only over what is still damaged, or not there.
    let seen = match backend.object(library.index().key()).await? {
        Some((_, bytes)) if Index::decode(&bytes).is_ok() => return Err(conflict()),
        Some((meta, _)) => meta.etag,
        None => None,
    };
    let put = backend.put_document(&library.index(), wanted.bytes.clone(), only_over(seen.as_deref())).await;
    backend.library_changed();
    match put.map_err(|e| e.during("restore the index of", library))? {
        Some(_) => Ok(()),
        None => Err(conflict()),
    }
}

/// What an administrator wants to know first: the kind of a library, and how its mirror is.
pub(crate) struct Overview {
    pub(crate) kind: LibraryKind,
    pub(crate) skills: u64,
    pub(crate) release: u64,
    pub(crate) mirror: Option<MirrorState>,
    pub(crate) lost_pins: Vec<(String, u64)>,
    /// Whether there are releases and no index.
    pub(crate) lost_index: bool,
}

impl Overview {
    pub(crate) async fn of(backend: &S3Backend, library: &Library) -> Result<Self> {
        let state = State::load(backend, library).await?;
        let index: Option<&Arc<Index>> = state.index.as_ref().map(|found| &found.value);
        let mirror = match index.filter(|index| index.is_published()) {
            Some(index) => Some(compare_mirror(backend, library, index).await?),
            None => None,
        };
        let listed = |index: &Index, release: u64| index.releases.iter().any(|note| note.number == release);
        let lost = index.iter().flat_map(|index| {
            index
                .pins
                .iter()
                .filter(|(_, release)| !listed(index, **release))
                .map(|(skill, at)| (skill.clone(), *at))
        });
        Ok(Self {
            kind: state.kind,
            skills: state.tree.skills().count() as u64,
            release: index.map_or(0, |index| index.release),
            lost_pins: lost.collect(),
            lost_index: index.is_none() && !backend.objects(&library.releases()).await?.is_empty(),
            mirror,
        })
    }
}
