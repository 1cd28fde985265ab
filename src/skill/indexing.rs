//! Making a catalogue index: every file of every skill is read once, and what is known already is not.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::discover::{FIRST_BYTES, Found, MOST_BYTES, indexed_head};
use crate::backend::{S3Backend, SkillPlace, Union, UnionFile};
use crate::error::Result;
use crate::index::{Index, IndexedCategory, IndexedFile, IndexedSkill, State};
use crate::manifest::{Size, read_description};
use crate::path::VirtualPath;
use crate::store::WriteId;

/// Files that are read at once.
const AT_ONCE: usize = 32;

/// What an index was made of.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Made {
    pub(crate) skills: u64,
    pub(crate) files: u64,
    /// How many of the files had to be read.
    pub(crate) read: u64,
}

/// A file that is to be indexed.
struct Task<'u> {
    /// The skill that it belongs to; `None` for a category's description.
    skill: Option<(&'u str, &'u SkillPlace)>,
    /// The directory of the skill or of the category.
    directory: &'u str,
    name: &'u str,
    file: &'u UnionFile,
    etag: &'u str,
}

/// What came of it.
struct Done<'u> {
    task: Task<'u>,
    file: IndexedFile,
    /// The beginning of a skill's or a category's own file, where it was read.
    head: Option<Vec<u8>>,
}

impl S3Backend {
    /// Makes the index of the library that a listing found. The session has this one library. What was changed by
    /// hand since it was published becomes an ordinary skill when that is accepted.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) when a file was changed meanwhile.
    pub(crate) async fn make_index(
        &self,
        union: &Union,
        accept: bool,
        watch: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<(Index, Made)> {
        let tasks = tasks(union);
        let (total, done) = (tasks.len() as u64, AtomicU64::new(0));
        let (read, progress) = (AtomicU64::new(0), &done);
        watch(0, total);
        let work: Vec<_> = tasks
            .into_iter()
            .map(|task| {
                let read = &read;
                async move {
                    let indexed = self.index_file(union, task, read).await?;
                    watch(progress.fetch_add(1, Ordering::Relaxed) + 1, total);
                    Ok::<_, crate::error::Error>(indexed)
                }
            })
            .collect();
        let indexed: Vec<Done<'_>> = stream::iter(work).buffered(AT_ONCE).try_collect().await?;
        let mut skills: BTreeMap<String, IndexedSkill> = BTreeMap::new();
        let mut categories = BTreeMap::new();
        for Done { task, file, head } in indexed {
            let Some((path, place)) = task.skill else {
                let whole = task.file.meta.size <= FIRST_BYTES;
                let description = match head {
                    Some(head) => read_description(&head, whole),
                    None => {
                        union.indexed_category(task.directory).and_then(|known| known.description.clone())
                    }
                };
                let category = IndexedCategory { file, description, published: false, pending: None };
                categories.insert(task.directory.to_owned(), category);
                continue;
            };
            let skill = skills.entry(path.to_owned()).or_insert_with(|| IndexedSkill {
                file: place.file.clone(),
                frontmatter: None,
                head: None,
                files: BTreeMap::new(),
                managed: None,
            });
            if task.name == place.file {
                match head {
                    Some(head) => self.tell_head(union, skill, path, place, &head),
                    None => {
                        let known = union.indexed_skill(path);
                        skill.frontmatter = known.and_then(|known| known.frontmatter.clone());
                        skill.head = known.and_then(|known| known.head.clone());
                    }
                }
            }
            skill.files.insert(task.name.to_owned(), file);
        }
        let mut index = Index::new(WriteId::new()?.as_str().to_owned(), categories, skills);
        if let Some(known) = union.index(0) {
            carry_over(union, known, accept, &mut index);
        }
        let skills = &index.skills;
        let made = Made { skills: skills.len() as u64, files: total, read: read.load(Ordering::Relaxed) };
        Ok((index, made))
    }

    async fn index_file<'u>(&self, union: &Union, task: Task<'u>, read: &AtomicU64) -> Result<Done<'u>> {
        let known = match task.skill {
            Some((path, _)) => union.sha256(path, task.name, task.file),
            None => union.indexed_category(task.directory).map(|known| known.file.sha256),
        };
        let own = task.skill.is_none_or(|(_, place)| task.name == place.file);
        let (sha256, head) = match known {
            Some(sha256) => (sha256, None),
            None => {
                let location = VirtualPath::parse(&format!("/skills/{}/{}", task.directory, task.name))?;
                let most = match (own, task.skill.is_some()) {
                    (false, _) => 0,
                    (true, true) => MOST_BYTES,
                    (true, false) => FIRST_BYTES,
                };
                read.fetch_add(1, Ordering::Relaxed);
                let (sha256, head) = self.digest_listed(&location, task.file, most).await?;
                (sha256, own.then_some(head))
            }
        };
        let file = IndexedFile { size: task.file.meta.size, etag: task.etag.to_owned(), sha256 };
        Ok(Done { task, file, head })
    }

    /// The same for a skill that is to be published, from what its file holds.
    pub(crate) fn tell_new_head(&self, union: &Union, skill: &mut IndexedSkill, path: &str, bytes: &[u8]) {
        let Some(place) = union.skill(path) else { return };
        let most = bytes.len().min(usize::try_from(MOST_BYTES).unwrap_or(usize::MAX));
        self.tell_head(union, skill, path, place, &bytes[..most]);
    }

    /// Puts into the index what makes a reader of the index see what a reader of the file sees: the
    /// frontmatter, or as much of the file as it takes.
    fn tell_head(
        &self,
        union: &Union,
        skill: &mut IndexedSkill,
        path: &str,
        place: &SkillPlace,
        bytes: &[u8],
    ) {
        let Some(found) = Found::new(union, path, place) else { return };
        let size = found.meta.size;
        // As much as discovery reads.
        let first = bytes.len().min(FIRST_BYTES as usize);
        for most in [first, bytes.len()] {
            let bytes = &bytes[..most];
            let whole = most as u64 >= size;
            let part = Size { whole, last: whole || most as u64 >= MOST_BYTES };
            let Ok(outcome) = self.judge(&found, bytes, part) else { continue };
            let frontmatter = outcome.as_ref().ok().map(|skill| skill.manifest.frontmatter.clone());
            let head = String::from_utf8(bytes.to_vec()).ok();
            for (frontmatter, head) in [(frontmatter, None), (None, head)] {
                (skill.frontmatter, skill.head) = (frontmatter, head);
                let told = indexed_head(skill, size);
                let told = told.and_then(|(text, part)| self.judge(&found, &text, part).ok());
                if told.as_ref() == Some(&outcome) {
                    return;
                }
            }
            break;
        }
        // It is read where it lies.
        (skill.frontmatter, skill.head) = (None, None);
    }
}

/// Releases and all that belongs to them stay as they are. A published skill that was changed by hand stays known
/// as published, so that no push overwrites it unasked; unless that is accepted: then it is an ordinary one.
fn carry_over(union: &Union, known: &Index, accept: bool, index: &mut Index) {
    index.release = known.release;
    index.releases.clone_from(&known.releases);
    index.pins.clone_from(&known.pins);
    index.publishing.clone_from(&known.publishing);
    for (path, category) in &known.categories {
        // What is about to be written there is not ours to forget; nor is it ours to accept what was changed.
        let made = index.categories.get_mut(path);
        match made {
            Some(made) if made.file == category.file => {
                (made.published, made.pending) = (category.published, category.pending.clone());
            }
            Some(made) if category.pending.is_some() || (category.published && !accept) => {
                *made = category.clone();
            }
            None if category.pending.is_some() => {
                index.categories.insert(path.clone(), category.clone());
            }
            _ => {}
        }
    }
    for (path, skill) in &known.skills {
        let Some(managed) = &skill.managed else { continue };
        let unchanged =
            union.skill(path).is_some() && union.files_in(path).all(|(_, file)| file.release.is_some());
        match index.skills.get_mut(path) {
            Some(made) if managed.state == State::Published && unchanged => {
                made.managed = Some(managed.clone());
            }
            _ if managed.state == State::Published && accept => {}
            _ => {
                index.skills.insert(path.clone(), skill.clone());
            }
        }
    }
}

/// Every file of every skill, and the descriptions of the categories. What has no ETag cannot be indexed.
fn tasks(union: &Union) -> Vec<Task<'_>> {
    let mut tasks = Vec::new();
    for (path, place) in union.skills() {
        let files: Vec<_> = union.files_in(path).collect();
        // What a release is still writing is not ours to touch.
        if files.iter().any(|(_, file)| file.release.is_some_and(|release| !release.live)) {
            continue;
        }
        if files.iter().any(|(_, file)| file.meta.etag.is_none()) {
            continue;
        }
        tasks.extend(files.into_iter().filter_map(|(name, file)| {
            let etag = file.meta.etag.as_deref()?;
            Some(Task { skill: Some((path, place)), directory: path, name, file, etag })
        }));
    }
    for (directory, file) in union.descriptions() {
        if let Some(etag) = file.meta.etag.as_deref() {
            tasks.push(Task { skill: None, directory, name: "DESCRIPTION.md", file, etag });
        }
    }
    tasks
}
