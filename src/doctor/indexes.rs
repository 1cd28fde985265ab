//! Checks the kind of a library, whether its index is usable, and whether others have changed its mirror.

use super::{Check, CheckList, arn, plural};
use crate::admin::{LibraryKind, Overview};
use crate::backend::S3Backend;
use crate::error::{ErrorKind, Hint};
use crate::mount::Library;
use crate::store::{Reason, Trouble};

/// The maximum number of changed keys to list by name.
const NAMES: usize = 3;

/// Checks the index of a library, using a session that has only this library.
pub(super) async fn look(backend: &S3Backend, library: &Library, line: &mut CheckList) -> Check {
    const NAME: &str = "index";
    let backend = backend.fresh();
    let overview = match Overview::of(&backend, library).await {
        Ok(overview) => overview,
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            return Check::wrong(NAME, "damaged: sessions cannot read the library")
                .fix(Hint::RestoreRelease { intact: Vec::new() });
        }
        Err(error) if error.hint() == Some(&Hint::Upgrade) => {
            return Check::wrong(
                NAME,
                "a later version of skillfs wrote it: sessions cannot read the library",
            )
            .fix(Hint::Upgrade);
        }
        Err(error) if error.is_forbidden() => {
            let (store, key) = (backend.store(), library.index());
            let refused =
                matches!(store.try_read(key.key()).await, Err(Trouble { reason: Reason::Refused, .. }));
            if !refused {
                return line.failed(NAME, &error);
            }
            let allow = arn(store, library.records().as_str());
            return Check::wrong(NAME, format!("`{}` may not be read", key.as_str()))
                .fix(format!("allow s3:GetObject on {allow}"));
        }
        Err(error) => return line.failed(NAME, &error),
    };
    if overview.lost_index {
        return Check::wrong(NAME, "the library has releases and no index: it is read as plain")
            .fix(Hint::RestoreRelease { intact: Vec::new() });
    }
    let skills = plural(overview.skills, "skill", "skills");
    match overview.kind {
        LibraryKind::Empty => {
            return Check::note(NAME, "the library is empty").fix(Hint::PushSkills);
        }
        LibraryKind::Plain => {
            return Check::note(NAME, format!("plain, {skills}: a catalog costs a request for each skill"))
                .fix(Hint::PublishLibrary);
        }
        LibraryKind::Published => {}
    }
    if let Some(mirror) = &overview.mirror {
        if !mirror.drift.is_empty() {
            let names: Vec<_> =
                mirror.drift.iter().take(NAMES).map(|drift| format!("`{}`", drift.path)).collect();
            let more = match mirror.drift.len().saturating_sub(NAMES) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let keys = plural(mirror.drift.len() as u64, "key", "keys");
            let names = names.join(", ");
            let found = format!("others have changed {keys}; no session sees these changes: {names}{more}");
            return Check::warning(NAME, found).fix(Hint::PublishOrRevert);
        }
        if mirror.behind > 0 {
            let keys = plural(mirror.behind, "key of its mirror is", "keys of its mirror are");
            let found = format!("release {} is published, but {keys} not up to date", overview.release);
            return Check::warning(NAME, found).fix(Hint::CompleteMirror);
        }
    }
    if let Some((skill, release)) = overview.lost_pins.first() {
        return Check::warning(
            NAME,
            format!("`{skill}` is pinned to release {release}, which is no longer listed"),
        )
        .fix(Hint::Unpin(skill.clone()));
    }
    Check::good(NAME, format!("published: release {}, {skills}", overview.release))
}
