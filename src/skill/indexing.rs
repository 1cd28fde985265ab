//! Making a catalogue index: every file of every skill is read once, and what is known already is not.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::discover::{FIRST_BYTES, Found, MOST_BYTES, indexed_head};
use crate::backend::{S3Backend, SkillPlace, Union};
use crate::error::Result;
use crate::index::{Index, IndexedCategory, IndexedFile, IndexedSkill};
use crate::manifest::{Size, read_description};
use crate::path::VirtualPath;
use crate::store::{Meta, WriteId};

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
    layer: usize,
    meta: &'u Meta,
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
    /// Makes the index of the library that a listing found. The session has this one library.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) when a file was changed meanwhile.
    pub(crate) async fn make_index(
        &self,
        union: &Union,
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
                let whole = task.meta.size <= FIRST_BYTES;
                let description = match head {
                    Some(head) => read_description(&head, whole),
                    None => {
                        union.indexed_category(task.directory).and_then(|known| known.description.clone())
                    }
                };
                categories.insert(task.directory.to_owned(), IndexedCategory { file, description });
                continue;
            };
            let skill = skills.entry(path.to_owned()).or_insert_with(|| IndexedSkill {
                file: place.file.clone(),
                frontmatter: None,
                head: None,
                files: BTreeMap::new(),
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
        let made = Made { skills: skills.len() as u64, files: total, read: read.load(Ordering::Relaxed) };
        Ok((Index::new(WriteId::new()?.as_str().to_owned(), categories, skills), made))
    }

    async fn index_file<'u>(&self, union: &Union, task: Task<'u>, read: &AtomicU64) -> Result<Done<'u>> {
        let known = match task.skill {
            Some((path, _)) => union.sha256(path, task.name, task.layer, task.meta),
            None => union.indexed_category(task.directory).map(|known| known.file.sha256.as_str()),
        };
        let own = task.skill.is_none_or(|(_, place)| task.name == place.file);
        let (sha256, head) = match known {
            Some(sha256) => (sha256.to_owned(), None),
            None => {
                let location = VirtualPath::parse(&format!("/skills/{}/{}", task.directory, task.name))?;
                let most = match (own, task.skill.is_some()) {
                    (false, _) => 0,
                    (true, true) => MOST_BYTES,
                    (true, false) => FIRST_BYTES,
                };
                read.fetch_add(1, Ordering::Relaxed);
                let (sha256, head) = self.digest_listed(&location, task.layer, task.meta, most).await?;
                (sha256, own.then_some(head))
            }
        };
        let file = IndexedFile { size: task.meta.size, etag: task.etag.to_owned(), sha256 };
        Ok(Done { task, file, head })
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

/// Every file of every skill, and the descriptions of the categories. What has no ETag cannot be indexed.
fn tasks(union: &Union) -> Vec<Task<'_>> {
    let mut tasks = Vec::new();
    for (path, place) in union.skills() {
        let files: Vec<_> = union.files_in(path).collect();
        if files.iter().any(|(_, file)| file.meta.etag.is_none()) {
            continue;
        }
        tasks.extend(files.into_iter().filter_map(|(name, file)| {
            let etag = file.meta.etag.as_deref()?;
            let (layer, meta) = (file.layer, &file.meta);
            Some(Task { skill: Some((path, place)), directory: path, name, layer, meta, etag })
        }));
    }
    for (directory, file) in union.descriptions() {
        if let Some(etag) = file.meta.etag.as_deref() {
            let (layer, meta) = (file.layer, &file.meta);
            tasks.push(Task { skill: None, directory, name: "DESCRIPTION.md", layer, meta, etag });
        }
    }
    tasks
}
