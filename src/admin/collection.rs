//! What is there: libraries, their skills and sizes; and what comes from a source or goes to a folder.

use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use super::blobs::blobs;
use super::plan::{NewContent, NewFile, NewLibrary, NewSkill};
use crate::backend::SkillFs;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{LibraryId, UserId};
use crate::index::Sha256;
use crate::mount::{Library, Session};
use crate::path::VirtualPath;
use crate::source::{Content, OriginKind, SkillFiles, Source, SourceFile};

/// Files that are read at once.
const AT_ONCE: usize = 32;

/// A skill of a library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ListedSkill {
    /// Its path below `/skills`.
    pub path: String,
    /// How many files it has.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The release that published it; `None` when it was put there by hand, or changed since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<u64>,
    /// The release that it is pinned to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned: Option<u64>,
}

/// What a library holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LibraryStats {
    /// How many skills it has.
    pub skills: u64,
    /// How many of them were published, and are as they were.
    pub published: u64,
    /// How many files they have.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many releases are kept.
    pub releases: u64,
    /// Contents that are kept for them.
    pub blobs: u64,
    /// Their bytes.
    pub blob_bytes: u64,
    /// Whether it has an index.
    pub indexed: bool,
}

/// The libraries of a bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Libraries {
    /// Users, sorted. Whether they have skills, only a look at each tells.
    pub users: Vec<UserId>,
    /// Shared libraries, sorted.
    pub shared: Vec<LibraryId>,
}

impl From<&SourceFile> for NewFile {
    fn from(file: &SourceFile) -> Self {
        let content = match &file.content {
            Content::File(path) => NewContent::Local(path.clone()),
            Content::Bytes(bytes) => NewContent::Bytes(bytes.clone()),
        };
        // A source gives digests that are; were one none, the content would not fit it.
        let sha256 = Sha256::parse(&file.sha256).unwrap_or_else(|| Sha256::of(&[]));
        Self { name: file.name.clone(), size: file.size, sha256, content }
    }
}

impl From<&SkillFiles> for NewSkill {
    fn from(skill: &SkillFiles) -> Self {
        Self::new(&skill.path, skill.files.iter().map(NewFile::from).collect())
    }
}

impl NewLibrary {
    /// What a source holds. A skill that cannot be loaded is refused; with `strict`, one that the specification
    /// objects to as well.
    #[must_use]
    pub fn of(source: &Source, strict: bool) -> Self {
        let skills = source.skills.iter().map(|skill| {
            let mut new = NewSkill::from(&skill.to_files());
            new.refused = match &skill.loaded {
                Err(said) => {
                    let said = said
                        .iter()
                        .find(|said| said.severity == crate::manifest::Severity::Error)
                        .or(said.last());
                    Some(said.map_or_else(|| "it cannot be loaded".to_owned(), ToString::to_string))
                }
                Ok(_) if strict && !skill.problems.is_empty() => Some(skill.problems.join("; ")),
                Ok(_) => None,
            };
            new
        });
        // What the source holds and cannot be taken is refused, too, and not taken for missing.
        let refused = source.skipped.iter().filter(|skipped| skipped.refused).map(|skipped| {
            NewSkill::refused(skipped.skill.as_ref().unwrap_or(&skipped.path), &skipped.reason)
        });
        let mut new = Self { skills: skills.chain(refused).collect(), ..Self::default() };
        // What an archive says of its own origin is for nobody to believe.
        if source.origin.kind != OriginKind::Folder {
            for skill in &mut new.skills {
                skill.files.retain(|file| file.name != ".source");
            }
        }
        for category in &source.categories {
            new.describe(&category.path, &category.file);
        }
        new
    }

    /// Gives a category its `DESCRIPTION.md`.
    pub fn describe(&mut self, category: &str, file: &SourceFile) {
        self.categories.insert(category.to_owned(), NewFile::from(file));
    }
}

impl SkillFs {
    /// The users and the shared libraries of the bucket, by the prefixes that it has.
    ///
    /// # Errors
    /// Those of the storage.
    pub async fn libraries(&self) -> Result<Libraries> {
        let backend = self.own_session(&Session::default());
        let users = backend.prefixes(&Library::of_all_users()).await?;
        let shared = backend.prefixes(&Library::of_all_shared()).await?;
        Ok(Libraries {
            users: users.into_iter().filter_map(|id| UserId::try_from(id).ok()).collect(),
            shared: shared.into_iter().filter_map(|id| LibraryId::try_from(id).ok()).collect(),
        })
    }

    /// The skills of a library, sorted by path. Costs one listing and one request for the index.
    ///
    /// # Errors
    /// Those of the storage.
    pub async fn library_skills(&self, library: &Library) -> Result<Vec<ListedSkill>> {
        let backend = self.own_session(&library.session()).fresh();
        let union = backend.union_all().await?;
        let index = union.index(0);
        Ok(union
            .skills()
            .map(|(path, _)| {
                let files = || union.files_in(path);
                let as_published = files().all(|(_, file)| file.release.is_some());
                let managed = index.and_then(|index| index.skills.get(path)?.managed.as_ref());
                ListedSkill {
                    path: path.to_owned(),
                    files: files().count() as u64,
                    bytes: files().map(|(_, file)| file.meta.size).sum(),
                    release: managed.filter(|_| as_published).map(|managed| managed.release),
                    pinned: index.and_then(|index| index.pins.get(path).copied()),
                }
            })
            .collect())
    }

    /// What a library holds. Costs what [`SkillFs::library_skills`] does, and sixteen listings of what is kept for
    /// its releases.
    ///
    /// # Errors
    /// Those of the storage.
    pub async fn library_stats(&self, library: &Library) -> Result<LibraryStats> {
        let backend = self.own_session(&library.session()).fresh();
        let skills = self.library_skills(library).await?;
        let union = backend.union_all().await?;
        let index = union.index(0);
        let stored = match index {
            Some(index) if index.release > 0 => blobs(&backend, library).await?,
            _ => Vec::new(),
        };
        Ok(LibraryStats {
            skills: skills.len() as u64,
            published: skills.iter().filter(|skill| skill.release.is_some()).count() as u64,
            files: skills.iter().map(|skill| skill.files).sum(),
            bytes: skills.iter().map(|skill| skill.bytes).sum(),
            releases: index.map_or(0, |index| index.releases.len() as u64),
            blobs: stored.len() as u64,
            blob_bytes: stored.iter().map(|(_, meta)| meta.size).sum(),
            indexed: index.is_some(),
        })
    }

    /// Reads skills of a library as they are at one moment, with all their files, and hands each to `take`; also
    /// the descriptions of categories, as a skill of that one file. Tells how many there were.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is none; what `take` says; those of the storage.
    pub async fn pull(
        &self,
        library: &Library,
        category: Option<&str>,
        mut take: impl FnMut(SkillFiles) -> Result<()> + Send,
        watch: super::PushWatch<'_>,
    ) -> Result<u64> {
        let backend = self.own_session(&library.session()).fresh().pinned().await?;
        let union = backend.union_all().await?;
        let category = category.unwrap_or_default();
        let within =
            |path: &str| category.is_empty() || path == category || path.starts_with(&format!("{category}/"));
        let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (path, _) in union.skills().filter(|(path, _)| within(path)) {
            groups.insert(path, union.files_in(path).map(|(name, _)| name).collect());
        }
        if groups.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, format!("there are no skills in {library}"))
                .with_hint("look for a typing error in the name or the category"));
        }
        let skills = groups.len() as u64;
        for (path, _) in union.descriptions().filter(|(path, _)| within(path)) {
            groups.entry(path).or_default().push("DESCRIPTION.md");
        }
        let total: u64 = groups.values().map(|names| names.len() as u64).sum();
        let mut done = 0;
        let backend = &backend;
        for (path, names) in groups {
            let reads: Vec<_> = names
                .iter()
                .map(|name| async move {
                    let location = VirtualPath::parse(&format!("/skills/{path}/{name}"))?;
                    let bytes = backend.read_bytes(&location, ..).await?.bytes;
                    Ok::<_, Error>(SourceFile::from_bytes(*name, bytes))
                })
                .collect();
            let files: Vec<_> = stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
            done += files.len() as u64;
            take(SkillFiles::new(path, files)?)?;
            watch(super::PushProgress { phase: "reading", files: (done, total), bytes: (0, 0) });
        }
        Ok(skills)
    }
}
