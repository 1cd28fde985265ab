//! Pushes to a plain library: writes its keys, each conditional on the version that the plan saw.
//!
//! There is no release, and files do not change atomically. Files are written before their `SKILL.md` and deleted after
//! it.

use super::compare::Change;
use super::library::{LibraryAdmin, if_unchanged, run_concurrently};
use super::plan::Plan;
use super::work::{MAX_REQUESTS, Transfers};
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::skill_file_rank;
use crate::path::leaf;
use crate::store::Meta;

/// Writes and deletes keys. Returns the number of files that were written, and their size in bytes.
pub(super) async fn write(access: &LibraryAdmin, plan: &Plan) -> Result<(u64, u64)> {
    let new = || plan.changes.iter().filter_map(|change| change.after.as_ref());
    let bytes = new().map(|file| file.size).sum();
    let work = Transfers::new(access, "writing", (plan.changes.len() as u64, bytes));
    let is_skill_file = |path: &str| skill_file_rank(leaf(path)).is_some();
    for (writes, own_file) in [(false, true), (true, false), (true, true), (false, false)] {
        let phase = plan
            .changes
            .iter()
            .filter(|change| change.after.is_some() == writes && is_skill_file(&change.path) == own_file);
        run_concurrently(MAX_REQUESTS, phase.map(|change| write_one(&work, plan, change)).collect()).await?;
    }
    Ok((new().count() as u64, bytes))
}

async fn write_one(work: &Transfers<'_>, plan: &Plan, change: &Change) -> Result<()> {
    let Change { path, before, after } = change;
    let (location, key) = plan.library.file(path)?;
    let written = match after {
        Some(file) => {
            let _permits = work.reserve(file.size).await?;
            let bytes = work.content(path, file.sha256, &file.content).await?;
            let put = work
                .access
                .backend
                .put_object(&key, leaf(path), bytes, if_unchanged(before.as_deref()))
                .await;
            put.map_err(|e| e.during("write", &location))?.is_some()
        }
        None => {
            let _permits = work.reserve(0).await?;
            let seen = plan.base.tree.file(path).map(|file| file.meta.clone());
            let version = seen.unwrap_or(Meta { size: 0, modified: None, etag: before.clone() });
            let deleted = work.access.backend.store().delete_version(&key, &version).await;
            deleted.map_err(|e| e.during("delete", &location))?
        }
    };
    work.report(1, after.as_ref().map_or(0, |file| file.size));
    if written {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Conflict, format!("`{location}` was changed by somebody else"))
        .at(&location)
        .with_hint(
            "it was left unchanged; other files may have been written; run it again to see what remains",
        )
        .lasting())
}
