//! Lists libraries and their skills, counts them, and reads skills with all their files.

use std::collections::BTreeMap;

use serde::Serialize;

use super::library::{LibraryAdmin, LibraryKind, LibraryState, MAX_READS, run_concurrently};
use super::progress::PushProgress;
use crate::backend::SkillFs;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{LibraryId, UserId};
use crate::mount::{Identity, Mounts, Session};
use crate::path::{SkillPath, VirtualPath, is_within};
use crate::source::{SkillFiles, SourceFile};

/// A skill of a library, as [`LibraryAdmin::list`] returns it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ListedSkill {
    /// The path below `/skills`.
    pub path: SkillPath,
    /// The number of files.
    pub files: u64,
    /// The total size of the files in bytes.
    pub bytes: u64,
    /// The release that last changed the skill; `None` in a plain library.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<u64>,
    /// The release that the skill is pinned to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned: Option<u64>,
}

/// Counts and sizes of a library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LibraryStats {
    /// Empty, plain or published.
    pub kind: LibraryKind,
    /// The number of skills.
    pub skills: u64,
    /// The number of files in skills.
    pub files: u64,
    /// The total size of these files in bytes.
    pub bytes: u64,
    /// The number of the newest release; 0 if there is none.
    pub release: u64,
    /// The number of listed releases, which can be rolled back to.
    pub releases: u64,
    /// The number of blobs that are stored for the releases.
    pub blobs: u64,
    /// The total size of the blobs in bytes.
    pub blob_bytes: u64,
}

/// The libraries of a bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Libraries {
    /// Users, sorted. A user may have no skills.
    pub users: Vec<UserId>,
    /// Shared libraries, sorted.
    pub shared: Vec<LibraryId>,
}

impl SkillFs {
    /// Lists the users and the shared libraries of the bucket, from its prefixes. Costs two listings.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn libraries(&self) -> Result<Libraries> {
        let backend = self.own_session(&Session::default());
        let users = backend.prefixes(&Mounts::of_all(Identity::User)).await?;
        let shared = backend.prefixes(&Mounts::of_all(Identity::Library)).await?;
        Ok(Libraries {
            users: users.into_iter().filter_map(|id| UserId::try_from(id).ok()).collect(),
            shared: shared.into_iter().filter_map(|id| LibraryId::try_from(id).ok()).collect(),
        })
    }
}

impl LibraryAdmin {
    /// Lists the skills of the library, sorted by path. Costs one request, plus a listing for a plain library.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn list(&self) -> Result<Vec<ListedSkill>> {
        Ok(skills(&self.load().await?))
    }

    /// Counts skills, files, releases and bytes. Costs the same as [`LibraryAdmin::list`], plus a listing of the blobs.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn stats(&self) -> Result<LibraryStats> {
        let state = self.load().await?;
        let skills = skills(&state);
        let index = state.index();
        let stored = match index {
            Some(_) => self.backend.objects(&self.library.blobs()).await?,
            None => Vec::new(),
        };
        Ok(LibraryStats {
            kind: state.kind,
            skills: skills.len() as u64,
            files: skills.iter().map(|skill| skill.files).sum(),
            bytes: skills.iter().map(|skill| skill.bytes).sum(),
            release: index.map_or(0, |index| index.release),
            releases: index.map_or(0, |index| index.releases.len() as u64),
            blobs: stored.len() as u64,
            blob_bytes: stored.iter().map(|(_, meta)| meta.size).sum(),
        })
    }

    /// Reads skills with all their files, from one release of a published library.
    ///
    /// `category` selects a part of the library; an empty string selects everything. Each category description is
    /// returned as an item with only that file.
    ///
    /// Costs one request for the index, or a listing, and one request for each file.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there are no skills; errors of the storage.
    pub async fn read(&self, category: &str) -> Result<Vec<SkillFiles>> {
        let backend = self.backend.pinned().await?;
        let union = backend.union_all().await?;
        let within = |path: &str| is_within(path, category);
        let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for path in union.skills().map(|(path, _)| path.as_str()).filter(|path| within(path)) {
            groups.insert(path, union.files_in(path).map(|(name, _)| name).collect());
        }
        if groups.is_empty() {
            let message = format!("there are no skills in {}", self.library);
            return Err(Error::new(ErrorKind::NotFound, message).with_hint("check the name and the category"));
        }
        for (path, _) in union.descriptions().filter(|(path, _)| within(path)) {
            groups.entry(path).or_default().push("DESCRIPTION.md");
        }
        let total: u64 = groups.values().map(|names| names.len() as u64).sum();
        let (mut done, mut all) = (0, Vec::new());
        let backend = &backend;
        for (path, names) in groups {
            let reads = names.iter().map(|name| async move {
                let location = VirtualPath::in_skills(&format!("{path}/{name}"))?;
                let bytes = backend.read_bytes(&location, ..).await?.bytes;
                Ok(SourceFile::from_bytes(*name, bytes))
            });
            let files = run_concurrently(MAX_READS, reads.collect()).await?;
            done += files.len() as u64;
            all.push(SkillFiles::new(path, files)?);
            self.progress.report(PushProgress { phase: "reading", files: (done, total), bytes: (0, 0) });
        }
        Ok(all)
    }
}

fn skills(state: &LibraryState) -> Vec<ListedSkill> {
    let index = state.index();
    let listed = |path: &SkillPath| {
        let files = || state.tree.files_in(path.as_str());
        let since = |name: &str| Some(index?.files.get(&format!("{path}/{name}"))?.since.release);
        ListedSkill {
            path: path.clone(),
            files: files().count() as u64,
            bytes: files().map(|(_, file)| file.meta.size).sum(),
            release: files().filter_map(|(name, _)| since(name)).max(),
            pinned: index.and_then(|index| index.pins.get(path.as_str()).copied()),
        }
    };
    state.tree.skills().map(|(path, _)| listed(path)).collect()
}
