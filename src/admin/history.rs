//! Releases: what was published when and by whom, going back to one, and keeping a skill at one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::lease::{UnderWay, read_index, write_index};
use super::plan::{NewContent, NewFile, NewLibrary, NewSkill, Plan, PushOptions};
use super::prune::read_record;
use crate::backend::SkillFs;
use crate::error::{Error, ErrorKind, Result, shorten};
use crate::index::{Index, RecordedFile, ReleaseNote, ReleaseRecord};
use crate::mount::Library;
use crate::store::WriteId;

/// How often an index is read anew when others write it, too.
const ROUNDS: u32 = 5;

/// A release, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Release {
    /// Its number: the first one is 1.
    pub release: u64,
    /// When it was made.
    #[serde(serialize_with = "crate::entry::rfc3339")]
    pub at: Option<SystemTime>,
    /// Who made it.
    pub by: String,
    /// Where it came from.
    pub source: String,
    /// How many skills were new in it.
    pub created: u64,
    /// How many it changed.
    pub updated: u64,
    /// How many it deleted.
    pub deleted: u64,
    /// Skills that are pinned to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pinned: Vec<String>,
}

impl Release {
    fn of(note: &ReleaseNote, index: &Index) -> Self {
        let pinned = index.pins.iter().filter(|(_, release)| **release == note.number);
        Self {
            release: note.number,
            at: SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(note.at)),
            by: note.by.clone(),
            source: note.source.clone(),
            created: note.created,
            updated: note.updated,
            deleted: note.deleted,
            pinned: pinned.map(|(skill, _)| skill.clone()).collect(),
        }
    }
}

impl SkillFs {
    /// The releases of a library that are kept, the newest first. One request.
    ///
    /// # Errors
    /// Those of the storage.
    pub async fn releases(&self, library: &Library) -> Result<Vec<Release>> {
        let backend = self.own_session(&library.session()).fresh();
        let index = read_index(&backend, library).await?;
        Ok(index.map_or_else(Vec::new, |(index, _)| {
            index.releases.iter().rev().map(|note| Release::of(note, &index)).collect()
        }))
    }

    /// What it takes to have a library as it was at a release: a plan, to be published as a new release. Skills
    /// that were published since go; what was never published stays.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is no such release any more; those of [`SkillFs::plan`].
    pub async fn plan_rollback(
        &self,
        library: &Library,
        release: u64,
        options: &PushOptions,
    ) -> Result<Plan> {
        let (index, record) = self.recorded(library, release).await?;
        let managed = index.skills.iter().filter(|(_, skill)| skill.managed.is_some());
        let only: BTreeSet<String> = managed.map(|(path, _)| path.clone()).collect();
        let skills = record.skills.iter().map(|(path, files)| new_skill(path, files)).collect();
        let categories = record
            .categories
            .iter()
            .map(|(path, file)| (path.clone(), new_file("DESCRIPTION.md", file)))
            .collect();
        let new = NewLibrary { skills, categories, only: Some(only), source: None };
        let options = PushOptions { delete: true, category: None, ..options.clone() };
        self.plan(library, &new, &options).await
    }

    /// What it takes to have one skill as it was at a release.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is no such release any more, or no such skill in it; those of
    /// [`SkillFs::plan`].
    pub async fn plan_skill_at(
        &self,
        library: &Library,
        skill: &str,
        release: u64,
        options: &PushOptions,
    ) -> Result<Plan> {
        let (_, record) = self.recorded(library, release).await?;
        let Some(files) = record.skills.get(skill) else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("release {release} of {library} has no skill `{}`", shorten(skill)),
            )
            .with_hint("`admin releases` lists what there is"));
        };
        let new = NewLibrary { skills: vec![new_skill(skill, files)], ..NewLibrary::default() };
        let options = PushOptions { delete: false, ..options.clone() };
        self.plan(library, &new, &options).await
    }

    /// Pins a skill to the release that it is at: pushes leave it alone. `None` lets go of it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when the library has no such published skill, or it was not pinned;
    /// [`ErrorKind::Conflict`] while somebody is publishing.
    pub async fn pin(&self, library: &Library, skill: &str, release: Option<u64>) -> Result<()> {
        let backend = self.own_session(&library.session()).fresh();
        let missing = |what: &str| {
            Error::new(ErrorKind::NotFound, format!("{library} has no {what} `{}`", shorten(skill)))
                .with_hint("name it by its path, such as `category/skill`; `admin list` shows them")
        };
        for _ in 0..ROUNDS {
            let Some((mut index, etag)) = read_index(&backend, library).await? else {
                return Err(missing("published skill"));
            };
            if let Some(under_way) = UnderWay::of(&index, backend.server_time()) {
                return Err(under_way.refusal(library));
            }
            match release {
                Some(release) => {
                    if index.skills.get(skill).is_none_or(|skill| skill.managed.is_none()) {
                        return Err(missing("published skill"));
                    }
                    index.pins.insert(skill.to_owned(), release);
                }
                None => {
                    if index.pins.remove(skill).is_none() {
                        return Err(missing("pinned skill"));
                    }
                }
            }
            index.id = WriteId::fresh()?;
            if write_index(&backend, library, &index, Some(&etag)).await?.is_some() {
                return Ok(());
            }
        }
        Err(Error::new(ErrorKind::Conflict, format!("others keep writing the index of {library}"))
            .with_hint("try again in a moment"))
    }

    async fn recorded(&self, library: &Library, release: u64) -> Result<(Index, ReleaseRecord)> {
        let backend = self.own_session(&library.session()).fresh();
        let none = || {
            Error::new(ErrorKind::NotFound, format!("{library} has no release {release}, or none any more"))
                .with_hint("`admin releases` lists those that are kept")
        };
        let (index, _) = read_index(&backend, library).await?.ok_or_else(none)?;
        let note = index.releases.iter().find(|note| note.number == release).ok_or_else(none)?;
        let record = read_record(&backend, library, release, &note.id).await?.ok_or_else(none)?;
        Ok((index, record))
    }
}

fn new_file(name: &str, file: &RecordedFile) -> NewFile {
    NewFile { name: name.to_owned(), size: file.size, sha256: file.sha256, content: NewContent::Blob }
}

fn new_skill(path: &str, files: &BTreeMap<String, RecordedFile>) -> NewSkill {
    NewSkill::new(path, files.iter().map(|(name, file)| new_file(name, file)).collect())
}
