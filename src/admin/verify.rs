//! Verifying: what is in the bucket, what the index says, and what the digests say, side by side.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use tracing::instrument;

use super::blobs::blobs;
use super::lease::UnderWay;
use super::publish::{PushProgress, PushWatch};
use crate::backend::{S3Backend, SkillFs, Union};
use crate::error::{Error, ErrorKind, Result};
use crate::index::{Index, Sha256, State};
use crate::manifest::validate;
use crate::mount::Library;
use crate::path::VirtualPath;
use crate::store::{Condition, Meta};

/// Files that are read at once.
const AT_ONCE: usize = 32;
/// A longer `SKILL.md` is reported.
const LARGE_SKILL_FILE: u64 = 1024 * 1024;
/// So is a skill of more bytes or files: hosts may refuse it.
const LARGE_SKILL: u64 = 16 * 1024 * 1024;
const MANY_FILES: usize = 512;
/// As much of a `SKILL.md` is judged.
const JUDGED_BYTES: u64 = 1024 * 1024;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something is lost or wrong.
    Error,
    /// Something wants to be looked at.
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
    /// Whether it was mended.
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
    /// Files and blobs that were read, to compare their digests.
    pub read: u64,
    /// What was found, the worst first.
    pub problems: Vec<Problem>,
}

impl Verified {
    /// Whether nothing is wrong that was not mended.
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
}

impl SkillFs {
    /// Compares what is in a library with its index and its digests.
    ///
    /// With `read`, every file and every blob is read. Costs one listing, one request for the index and sixteen
    /// listings of blobs, and then one request for each of them.
    ///
    /// # Errors
    /// Those of the storage.
    #[instrument(name = "verify", skip_all, fields(%library))]
    pub async fn verify(&self, library: &Library, read: bool, watch: PushWatch<'_>) -> Result<Verified> {
        let backend = self.own_session(&library.session()).fresh();
        let union = backend.union_all().await?;
        let mut found = Verified::default();
        let index = union.index(0);
        if index.is_none() && union.index_etag(0).is_none() && union.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, format!("there is nothing in {library}"))
                .with_hint("look for a typing error, or push skills to it first"));
        }
        look_at_index(&union, backend.server_time(), &mut found);
        for key in union.unnameable() {
            found.say(
                Severity::Warning,
                "unreachable-key",
                key,
                "no path can name this key, so no session sees it; rename it with an S3 tool",
            );
        }
        sizes(&union, &mut found);
        match backend.unfinished_uploads(library).await {
            Ok(keys) => {
                for key in keys {
                    found.say(
                        Severity::Warning,
                        "torn-upload",
                        key,
                        "an upload in parts was begun and not completed: it is invisible, and is paid for; a lifecycle rule of the bucket removes it",
                    );
                }
            }
            // Not every server lists them, and not every administrator may.
            Err(error) => tracing::debug!("unfinished uploads cannot be listed: {error}"),
        }
        let stored = blobs(&backend, library).await?.into_iter().collect();
        check_blobs(&union, index, &stored, &mut found);
        if read {
            self.digests(&backend, library, &union, &stored, &mut found, watch).await?;
        }
        found.problems.sort_by(|one, other| (one.severity, &one.path).cmp(&(other.severity, &other.path)));
        Ok(found)
    }

    /// Verifies, and mends what can be: finishes a push that was left behind, writes blobs that are missing anew
    /// where the library still has their content, and writes the index. Never deletes a file of the library.
    ///
    /// # Errors
    /// As [`SkillFs::verify`] and [`SkillFs::write_index`]; [`ErrorKind::Conflict`] while somebody is publishing.
    pub async fn repair(
        &self,
        library: &Library,
        by: &str,
        lease: u64,
        read: bool,
        watch: PushWatch<'_>,
    ) -> Result<Verified> {
        let before = self.verify(library, read, watch).await?;
        let needs = |codes: &[&str]| before.problems.iter().any(|problem| codes.contains(&problem.code));
        if needs(&["interrupted"]) {
            self.resume(library, by, lease, false, None, watch).await?;
        }
        if needs(&["missing-blob", "damaged-blob"]) {
            self.restore_blobs(library, &before).await?;
        }
        if needs(&["no-index", "bad-index", "not-indexed", "changed-by-hand", "not-there", "interrupted"]) {
            self.accept_library(library).await?;
        }
        let mut after = self.verify(library, read, watch).await?;
        for problem in before.problems {
            let left =
                after.problems.iter().any(|left| left.code == problem.code && left.path == problem.path);
            if !left && problem.severity != Severity::Info {
                after.problems.push(Problem { repaired: true, ..problem });
            }
        }
        after.problems.sort_by(|one, other| (one.severity, &one.path).cmp(&(other.severity, &other.path)));
        Ok(after)
    }

    /// Writes blobs anew from files that have their content.
    async fn restore_blobs(&self, library: &Library, found: &Verified) -> Result<()> {
        let backend = self.own_session(&library.session()).fresh();
        let union = backend.union_all().await?;
        for problem in &found.problems {
            if !matches!(problem.code, "missing-blob" | "damaged-blob") {
                continue;
            }
            let Some(file) = union.file(&problem.path) else { continue };
            let Some(release) = file.release.filter(|release| release.live) else { continue };
            let (_, key) = library.file(&problem.path)?;
            let Some((_, bytes)) = backend.object(key.key()).await? else { continue };
            if Sha256::of(&bytes) == release.sha256 {
                let name = problem.path.rsplit('/').next().unwrap_or_default();
                backend.put_object(&library.blob(release.sha256), name, bytes, Condition::Always).await?;
            }
        }
        Ok(())
    }

    /// Reads everything, and compares digests.
    async fn digests(
        &self,
        backend: &S3Backend,
        library: &Library,
        union: &Union,
        stored: &BTreeMap<Sha256, Meta>,
        found: &mut Verified,
        watch: PushWatch<'_>,
    ) -> Result<()> {
        let mut live = Vec::new();
        for (path, place) in union.skills() {
            for (name, file) in union.files_in(path) {
                let known = union.sha256(path, name, file);
                let judged = name == place.file;
                if file.release.is_some_and(|release| !release.live) || (known.is_none() && !judged) {
                    continue;
                }
                live.push((path, name, file, known, judged));
            }
        }
        let mut contents: BTreeMap<Sha256, &str> = BTreeMap::new();
        for (path, _) in union.skills() {
            for (name, file) in union.files_in(path) {
                if let Some(release) = file.release {
                    contents.entry(release.sha256).or_insert(name);
                }
            }
        }
        contents.retain(|sha256, _| stored.contains_key(sha256));
        let total = (live.len() + contents.len()) as u64;
        let done = AtomicU64::new(0);
        let tell = |files: u64| {
            let files = done.fetch_add(files, Ordering::Relaxed) + files;
            watch(PushProgress { phase: "reading", files: (files, total), bytes: (0, 0) });
        };
        tell(0);
        let tell = &tell;
        let reads: Vec<_> = live
            .into_iter()
            .map(|(path, name, file, known, judged)| async move {
                let location = VirtualPath::parse(&format!("/skills/{path}/{name}"))?;
                let most = if judged { JUDGED_BYTES } else { 0 };
                let read = backend.digest_listed(&location, file, most).await;
                tell(1);
                Ok::<_, Error>((path, name, known, judged, read))
            })
            .collect();
        let reads: Vec<_> = stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
        for (path, name, known, judged, read) in reads {
            let relative = format!("{path}/{name}");
            match read {
                Ok((sha256, head)) => {
                    if known.is_some_and(|known| known != sha256) {
                        found.say(
                            Severity::Error,
                            "damaged",
                            &relative,
                            "its content is not what the index has recorded for this version; push the skill anew",
                        );
                    }
                    if judged {
                        let leaf = path.rsplit('/').next().unwrap_or_default();
                        for problem in validate(&head, leaf) {
                            found.say(Severity::Info, "nonconforming", &relative, problem);
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::Conflict => found.say(
                    Severity::Info,
                    "changing",
                    &relative,
                    "it was changed while it was looked at; verify again",
                ),
                Err(error) => return Err(error),
            }
        }
        let reads: Vec<_> = contents
            .keys()
            .map(|sha256| async move {
                let read = backend.digest_object(library.blob(*sha256).key()).await?;
                tell(1);
                Ok::<_, Error>((*sha256, read))
            })
            .collect();
        let reads: Vec<_> = stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
        let damaged: Vec<Sha256> = reads
            .into_iter()
            .filter(|(sha256, read)| read.as_ref().is_some_and(|(found, _)| found != sha256))
            .map(|(sha256, _)| sha256)
            .collect();
        for (path, name, file) in released(union) {
            if damaged.contains(&file) {
                found.say(
                    Severity::Error,
                    "damaged-blob",
                    format!("{path}/{name}"),
                    "its blob is not what its name says; `--repair` writes it anew from the library",
                );
            }
        }
        found.read = total;
        Ok(())
    }
}

/// Files of releases, with their digests.
fn released(union: &Union) -> impl Iterator<Item = (&str, &str, Sha256)> {
    union.skills().flat_map(|(path, _)| {
        union.files_in(path).filter_map(move |(name, file)| Some((path, name, file.release?.sha256)))
    })
}

/// What is wrong with the index of the one library of a union, as far as listing it tells.
pub(crate) fn index_problems(union: &Union, now: std::time::SystemTime) -> Vec<Problem> {
    let mut found = Verified::default();
    look_at_index(union, now, &mut found);
    found.problems
}

fn look_at_index(union: &Union, now: std::time::SystemTime, found: &mut Verified) {
    match (union.index(0), union.index_etag(0)) {
        (None, None) => found.say(
            Severity::Warning,
            "no-index",
            "index.json",
            "there is no index: catalogues cost a request for each skill; `--repair` writes one",
        ),
        (None, Some(_)) => found.say(
            Severity::Error,
            "bad-index",
            "index.json",
            "the index cannot be read, and is not used; `--repair` writes a new one",
        ),
        (Some(index), _) => compare_index(union, index, now, found),
    }
}

fn compare_index(union: &Union, index: &Index, now: std::time::SystemTime, found: &mut Verified) {
    if let Some(under_way) = UnderWay::of(index, now) {
        let by = if under_way.by.is_empty() { "somebody" } else { &under_way.by };
        if under_way.free_in > 0 {
            found.say(
                Severity::Info,
                "under-way",
                "index.json",
                format!("{by} is publishing at this moment"),
            );
        } else {
            found.say(
                Severity::Warning,
                "interrupted",
                "index.json",
                format!("a push of {by} was interrupted: readers see all of it, and `--repair` or the next push writes the rest of its files"),
            );
        }
    }
    for (path, _) in union.skills() {
        let Some(skill) = index.skills.get(path) else {
            found.say(
                Severity::Warning,
                "not-indexed",
                path,
                "the index does not know it: it is read file by file; `--repair` indexes it",
            );
            continue;
        };
        let published = skill.managed.as_ref().is_some_and(|managed| managed.state == State::Published);
        let files = || union.files_in(path);
        let same = files().count() == skill.files.len()
            && files().all(|(name, file)| union.sha256(path, name, file).is_some());
        if published && files().any(|(_, file)| file.release.is_none()) {
            found.say(
                Severity::Warning,
                "changed-by-hand",
                path,
                "it was changed by hand since it was published, and is shown as it lies there; push it anew with `--overwrite`, or accept it with `--repair`",
            );
        } else if !published && skill.managed.is_none() && !same {
            found.say(
                Severity::Warning,
                "not-indexed",
                path,
                "it has changed since it was indexed; `--repair` indexes it",
            );
        }
    }
    for (path, skill) in &index.skills {
        let removing =
            matches!(skill.managed.as_ref().map(|managed| &managed.state), Some(State::Removing { .. }));
        if union.skill(path).is_none() && !removing {
            let (code, message) = match skill.managed {
                Some(_) => (
                    "not-there",
                    "it was published, and its files were deleted by hand; push it anew, or accept it with `--repair`",
                ),
                None => ("not-there", "the index names it, and it is not there; `--repair` takes it out"),
            };
            found.say(Severity::Warning, code, path, message);
        }
    }
    for (skill, release) in &index.pins {
        if !index.releases.iter().any(|note| note.number == *release) {
            found.say(
                Severity::Warning,
                "lost-pin",
                skill,
                format!("it is pinned to release {release}, which is not kept any more"),
            );
        }
    }
}

fn sizes(union: &Union, found: &mut Verified) {
    for (path, place) in union.skills() {
        found.skills += 1;
        let (mut bytes, mut files) = (0, 0);
        for (name, file) in union.files_in(path) {
            bytes += file.meta.size;
            files += 1;
            if name == place.file && file.meta.size > LARGE_SKILL_FILE {
                found.say(
                    Severity::Warning,
                    "oversized",
                    format!("{path}/{name}"),
                    format!(
                        "it has {} bytes; more than {LARGE_SKILL_FILE} are too much for any prompt",
                        file.meta.size
                    ),
                );
            }
        }
        found.files += files as u64;
        if bytes > LARGE_SKILL || files > MANY_FILES {
            found.say(
                Severity::Info,
                "oversized",
                path,
                format!("it has {files} files and {bytes} bytes; hosts may refuse more than {MANY_FILES} files or {LARGE_SKILL} bytes"),
            );
        }
    }
}

fn check_blobs(union: &Union, index: Option<&Index>, stored: &BTreeMap<Sha256, Meta>, found: &mut Verified) {
    if index.is_none() {
        return;
    }
    for (path, name, sha256) in released(union) {
        if !stored.contains_key(&sha256) {
            let live = union
                .file(&format!("{path}/{name}"))
                .is_some_and(|file| file.release.is_some_and(|release| release.live));
            let message = if live {
                "its blob is missing, so its release cannot be gone back to; `--repair` writes it anew from the library"
            } else {
                "its blob is missing, and it cannot be read; push the skill anew"
            };
            found.say(Severity::Error, "missing-blob", format!("{path}/{name}"), message);
        }
    }
}
