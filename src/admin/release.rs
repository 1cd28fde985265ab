//! Builds the index of the next release from the previous index and a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use super::compare::{Action, Change};
use super::library::{LibraryAdmin, run_concurrently};
use super::new::{NewContent, NewFile};
use super::plan::{Plan, described_category};
use super::protocol::{self, Retention};
use super::work::{MAX_REQUESTS, Transfers};
use crate::ambient::unix_seconds;
use crate::backend::find_skills;
use crate::error::Result;
use crate::index::{BlobOrigin, Digest, Index, IndexKind, IndexedFile, ReleaseId, ReleaseNote};
use crate::manifest::read_description;
use crate::skill::{FIRST_BYTES, MOST_BYTES, head_of};

/// A release that is not committed yet: its ID, and its uploads.
pub(super) struct PendingRelease {
    pub(super) id: ReleaseId,
    pub(super) began: SystemTime,
    pub(super) blobs: BTreeSet<Digest>,
    pub(super) files: u64,
    pub(super) bytes: u64,
}

impl PendingRelease {
    /// Counts files whose content was uploaded.
    pub(super) fn add<'a>(&mut self, uploaded: impl Iterator<Item = &'a NewFile>) {
        for file in uploaded {
            self.blobs.insert(file.sha256);
            self.files += 1;
            self.bytes += file.size;
        }
    }
}

/// Builds the index of the release that a plan creates. `adopted` has the files of a plain library, with their paths as
/// names.
pub(super) async fn next_index(
    access: &LibraryAdmin,
    plan: &Plan,
    adopted: &[NewFile],
    upload: &PendingRelease,
    retention: Retention,
) -> Result<Index> {
    let at = unix_seconds(access.backend.server_time());
    let base = plan.base.index();
    let number = base.map_or(0, |base| base.release).saturating_add(1);
    let origin = Arc::new(BlobOrigin { id: upload.id.clone(), release: number, at });
    let mut index = Index::new(IndexKind::Published, upload.id.clone());
    index.release = number;
    if let Some(base) = base {
        (index.releases, index.pins) = (base.releases.clone(), base.pins.clone());
        if base.is_published() {
            (index.files, index.heads) = (base.files.clone(), base.heads.clone());
            index.categories = base.categories.clone();
        }
    }
    let named: BTreeMap<Digest, &Arc<BlobOrigin>> = base.iter().flat_map(|base| base.blobs()).collect();
    let changed = plan.changes.iter().map(|Change { path, after, .. }| (path, after.as_ref()));
    for (path, file) in adopted.iter().map(|file| (&file.name, Some(file))).chain(changed) {
        let Some(file) = file else {
            index.files.remove(path);
            continue;
        };
        let blob = match (&file.content, named.get(&file.sha256)) {
            (NewContent::Blob(stored), _) => stored.clone(),
            (_, Some(named)) if !upload.blobs.contains(&file.sha256) => (*named).clone(),
            _ => origin.clone(),
        };
        let (size, sha256, since) = (file.size, file.sha256, origin.clone());
        index.files.insert(path.clone(), IndexedFile { size, sha256, blob, since });
    }
    // The content was uploaded again because its old blob may be damaged: use the new blob everywhere.
    for file in index.files.values_mut().filter(|file| upload.blobs.contains(&file.sha256)) {
        file.blob = origin.clone();
    }
    for (skill, release) in &plan.pins {
        match release {
            Some(release) => index.pins.insert(skill.clone(), *release),
            None => index.pins.remove(skill),
        };
    }
    update_heads(access, plan, adopted, &origin, &mut index).await?;
    index.releases.push(ReleaseNote {
        number,
        id: upload.id.clone(),
        at,
        by: plan.options.by.clone(),
        source: plan.options.source.clone(),
        created: plan.count(Action::Create) + plan.adopted.map_or(0, |adopted| adopted.skills),
        updated: plan.count(Action::Update),
        deleted: plan.count(Action::Delete),
    });
    trim(&mut index, at, retention);
    Ok(index)
}

/// Drops releases from the list that the retention does not keep.
fn trim(index: &mut Index, now: u64, retention: Retention) {
    let pinned: BTreeSet<u64> = index.pins.values().copied().collect();
    let superseded: Vec<Option<u64>> =
        index.releases.iter().skip(1).map(|next| Some(next.at)).chain([None]).collect();
    let (total, mut at) = (index.releases.len(), 0);
    index.releases.retain(|note| {
        let (from_newest, superseded) = (total - at - 1, superseded.get(at).copied().flatten());
        at += 1;
        protocol::stays_listed(from_newest, superseded, pinned.contains(&note.number), now, retention)
    });
}

/// Updates the heads of skills and the category descriptions in the index. Only files that changed are read.
async fn update_heads(
    access: &LibraryAdmin,
    plan: &Plan,
    adopted: &[NewFile],
    origin: &Arc<BlobOrigin>,
    index: &mut Index,
) -> Result<()> {
    let contents: BTreeMap<Digest, &NewContent> = plan
        .changes
        .iter()
        .filter_map(|change| change.after.as_ref())
        .map(|file| (file.sha256, &file.content))
        .collect();
    let adopted: BTreeMap<&str, &NewContent> =
        adopted.iter().map(|file| (file.name.as_str(), &file.content)).collect();
    let skills = find_skills(index.files.keys().map(String::as_str));
    let before: BTreeMap<&str, &str> =
        plan.base.tree.skills().map(|(path, place)| (path.as_str(), place.file.as_str())).collect();
    let is_new = |file: &IndexedFile| file.since == *origin;
    let mut reads = Vec::new();
    for (skill, name) in &skills {
        let path = format!("{skill}/{name}");
        let renamed = before.get(skill.as_str()).is_some_and(|before| before != name);
        if let Some(file) = index.files.get(&path).filter(|file| renamed || is_new(file)) {
            reads.push((path, file.clone(), Some(skill.clone())));
        }
    }
    for (path, file) in &index.files {
        if described_category(path).is_some() && is_new(file) {
            reads.push((path.clone(), file.clone(), None));
        }
    }
    let work = Transfers::new(access, "", (0, 0));
    let (work, contents, adopted) = (&work, &contents, &adopted);
    let reads = reads.into_iter().map(|(path, file, skill)| async move {
        let blob = NewContent::Blob(file.blob.clone());
        let content = contents.get(&file.sha256).or_else(|| adopted.get(path.as_str()));
        let _permits = work.reserve(file.size).await?;
        let bytes = work.content(&path, file.sha256, content.copied().unwrap_or(&blob)).await?;
        Ok((path, skill, file.size, bytes))
    });
    let read = run_concurrently(MAX_REQUESTS, reads.collect()).await?;
    index.heads.retain(|skill, _| skills.contains_key(skill.as_str()));
    let described: BTreeSet<String> =
        index.files.keys().filter_map(|path| described_category(path)).map(str::to_owned).collect();
    index.categories.retain(|category, _| described.contains(category));
    for (path, skill, size, bytes) in read {
        if let Some(skill) = skill {
            let limit = bytes.len().min(usize::try_from(MOST_BYTES).unwrap_or(usize::MAX));
            match head_of(&skill, &bytes[..limit], size) {
                Some(head) => index.heads.insert(skill.into(), head),
                None => index.heads.remove(skill.as_str()),
            };
        } else if let Some(category) = described_category(&path) {
            let limit = bytes.len().min(usize::try_from(FIRST_BYTES).unwrap_or(usize::MAX));
            match read_description(&bytes[..limit], limit as u64 >= size) {
                Some(text) => index.categories.insert(category.to_owned(), text),
                None => index.categories.remove(category),
            };
        }
    }
    Ok(())
}
