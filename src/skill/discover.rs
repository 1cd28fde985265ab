//! Discovery: the union of the libraries, then the heads of the skill files: from the index of a published library,
//! or read, many at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use tracing::instrument;

use super::heads::{FIRST_BYTES, MOST_BYTES, as_read};
use super::{Category, Resource, ResourceKind, Skill, SkillLibrary};
use crate::backend::{Retries, S3Backend, SkillPlace, Union, UnionFile};
use crate::cache::{Accept, Cached, Detail, Kept, Key};
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::{Diagnostic, Head, Severity, Size, read_description, read_head};
use crate::path::{SkillPath, VirtualPath, is_within};
use crate::store::Meta;

/// How many heads are read at once: as many as a tenant may have under way.
const AT_ONCE: usize = 80;
/// Skills that lie deeper are reported and left out.
const MAX_DEPTH: usize = 8;
/// So are skills beyond this many.
const MAX_SKILLS: usize = 5_000;
/// A `SKILL.md` over this size is reported; its head is read all the same.
const LARGE_BYTES: u64 = 1024 * 1024;

/// So many skills are looked at on a thread that may take its time.
const MANY: usize = 64;

/// A skill, or what is to be said of what is none.
type Outcome = std::result::Result<Arc<Skill>, Vec<Diagnostic>>;

/// More of the file must be read.
struct More;

/// What one version of a skill's file says.
#[derive(Debug)]
struct KnownSkill {
    etag: Option<String>,
    outcome: Outcome,
}

impl Cached for KnownSkill {
    fn weight(&self) -> Option<u64> {
        let weight: usize = match &self.outcome {
            Ok(skill) => {
                let resources: usize = skill.resources.iter().map(|file| file.path.len() + 60).sum();
                3 * skill.manifest.frontmatter.len() + skill.path.as_str().len() * 2 + resources + 600
            }
            Err(said) => said.iter().map(|said| said.message.len() + said.file.len() + 80).sum(),
        };
        Some(weight as u64)
    }
}

/// What one version of a category's file says.
#[derive(Debug)]
struct KnownDescription {
    etag: Option<String>,
    description: Option<String>,
}

impl Cached for KnownDescription {
    fn weight(&self) -> Option<u64> {
        Some(self.description.as_ref().map_or(0, String::len) as u64)
    }
}

/// What was made of one union.
#[derive(Debug)]
struct Catalog {
    union: u64,
    library: SkillLibrary,
    /// Of each layer of the union, whether it was listed.
    plain: Vec<bool>,
    /// Whether something could not be read: then the next caller tries again.
    failed: bool,
}

impl Cached for Catalog {
    fn weight(&self) -> Option<u64> {
        (!self.failed).then(|| self.library.weight())
    }

    fn plain_layers(&self) -> Vec<bool> {
        self.plain.clone()
    }
}

/// A skill of the union.
struct Found<'u> {
    union: &'u Union,
    path: &'u SkillPath,
    place: &'u SkillPlace,
    file: &'u UnionFile,
    meta: &'u Meta,
    location: VirtualPath,
}

/// The skills of a listing that are taken, and what is said of the others.
pub(super) struct Selection<'u> {
    pub(super) skills: Vec<(&'u SkillPath, &'u SkillPlace)>,
    pub(super) diagnostics: Vec<Diagnostic>,
}

/// `None`, nothing and `all` mean every category.
pub(super) fn category_path(category: Option<&str>) -> Result<Option<VirtualPath>> {
    let category = category.map(|text| text.trim().trim_matches('/')).unwrap_or_default();
    if category.is_empty() || category == "all" {
        return Ok(None);
    }
    VirtualPath::in_skills(category).map(Some)
}

impl S3Backend {
    /// The skills of a category, with their frontmatter; `None` and `"all"` mean every category.
    ///
    /// Costs one request for a published library. For a plain one: a request for its index and a listing (one
    /// request for every 1,000 keys), then one ranged request for each skill and for each category's
    /// `DESCRIPTION.md`, 80 of them at once, and a second one for a skill whose frontmatter is longer than 4 KiB.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is no such category. A skill that cannot be read is no
    /// error: it is left out and stands in the library's diagnostics.
    #[instrument(name = "skills", skip_all, fields(?category))]
    pub async fn skills(&self, category: Option<&str>) -> Result<SkillLibrary> {
        let mut retries = Retries::new(self);
        loop {
            let read = retries.session().read_skills(category, retries.is_last()).await;
            if !retries.again(&read) {
                return read;
            }
        }
    }

    async fn read_skills(&self, category: Option<&str>, last: bool) -> Result<SkillLibrary> {
        let (union, category) = self.discover(category).await?;
        self.library(&union, category.as_deref(), last).await
    }

    /// The skills that a listing found: known ones, and the others read.
    pub(super) async fn library(
        &self,
        union: &Arc<Union>,
        category: Option<&str>,
        last: bool,
    ) -> Result<SkillLibrary> {
        let key = Key::new(self.about_libraries(), Detail::named(category.unwrap_or_default()));
        // It belongs to this union, however old that is; callers with the same one may wait for each other.
        let accept = Accept {
            bound: Duration::MAX,
            fetches: Detail::named(union.id().to_string()),
            usable: |known: &Catalog| known.union == union.id(),
            refresh: false,
        };
        let fetch = |_: Option<Kept<Catalog>>| {
            let (backend, union, category) = (self.clone(), union.clone(), category.map(str::to_owned));
            async move {
                let failed = AtomicBool::new(false);
                let library = backend.read_library(&union, category.as_deref(), last, &failed).await?;
                let (plain, failed) = (union.plain_layers(), failed.into_inner());
                Ok(Catalog { union: union.id(), library, plain, failed })
            }
        };
        Ok(self.cache().get(&key, accept, fetch).await?.value.library.clone())
    }

    async fn read_library(
        &self,
        union: &Arc<Union>,
        category: Option<&str>,
        last: bool,
        failed: &AtomicBool,
    ) -> Result<SkillLibrary> {
        let Selection { skills, mut diagnostics } = self.select(union, category);
        let known = self.known_skills(union, &skills).await?;
        let categories = self.categories(union, &skills, category, last, failed);
        // Made at once: a closure inside the stream would tie the future to this thread.
        let unknown = skills.iter().zip(&known).filter(|(_, known)| known.is_none());
        let heads: Vec<_> = unknown
            .enumerate()
            .map(|(number, ((path, place), _))| async move {
                Ok::<_, Error>((number, self.head_of(union, path, place, last, failed).await?))
            })
            .collect();
        // Whichever is first: one that is slow does not hold up the others.
        let heads = stream::iter(heads).buffer_unordered(AT_ONCE).try_collect::<BTreeMap<_, _>>();
        let (categories, read) = tokio::try_join!(categories, heads)?;
        let (mut found, mut read) = (Vec::new(), read.into_values());
        for skill in known {
            match skill.or_else(|| read.next()) {
                Some(Ok(skill)) => found.push(skill),
                Some(Err(said)) => diagnostics.extend(said),
                None => {}
            }
        }
        Ok(SkillLibrary::new(found, categories, diagnostics))
    }

    /// What is known of skills without reading them: from before, or from the index.
    async fn known_skills(
        &self,
        union: &Arc<Union>,
        skills: &[(&SkillPath, &SkillPlace)],
    ) -> Result<Vec<Option<Outcome>>> {
        if skills.len() < MANY {
            return Ok(skills.iter().map(|(path, place)| self.known_skill(union, path, place)).collect());
        }
        // Thousands of frontmatters take their time.
        let (backend, union) = (self.clone(), union.clone());
        let skills: Vec<_> = skills.iter().map(|(path, place)| ((*path).clone(), (*place).clone())).collect();
        let known =
            move || skills.iter().map(|(path, place)| backend.known_skill(&union, path, place)).collect();
        tokio::task::spawn_blocking(known).await.map_err(|error| {
            Error::new(ErrorKind::Internal, "the catalogue could not be put together").with_source(error)
        })
    }

    fn known_skill(&self, union: &Union, path: &SkillPath, place: &SkillPlace) -> Option<Outcome> {
        let found = Found::new(union, path, place)?;
        if let Some(kept) = self.cache().peek(&self.skill_key(&found)?)
            && kept.value.etag == found.meta.etag
            && found.meta.etag.is_some()
        {
            return Some(match &kept.value.outcome {
                Err(said) => Err(said.clone()),
                Ok(skill) => {
                    let resources = resources(union, path, &place.file);
                    match skill.resources == resources && skill.size == found.meta.size {
                        true => Ok(skill.clone()),
                        // Only its other files have changed.
                        false => {
                            let size = found.meta.size;
                            let skill = Arc::new(Skill { size, resources, ..(**skill).clone() });
                            self.keep_skill(&found, Ok(skill))
                        }
                    }
                }
            });
        }
        let (text, size) = as_read(union.head(path.as_str())?, found.meta.size);
        let outcome = self.judge(&found, &text, size).ok()?;
        Some(self.keep_skill(&found, outcome))
    }

    /// Of a skill, and not of its file alone: what the file says is judged by where it is.
    fn skill_key(&self, found: &Found<'_>) -> Option<Key<KnownSkill>> {
        let about = self.about_file(&found.location, found.file).ok()?;
        Some(Key::new(about, Detail::named(found.path.as_str())))
    }

    fn keep_skill(&self, found: &Found<'_>, outcome: Outcome) -> Outcome {
        if let Some(key) = self.skill_key(found) {
            let known = KnownSkill { etag: found.meta.etag.clone(), outcome: outcome.clone() };
            self.cache().put(&key, self.cache().moment(&key), known);
        }
        outcome
    }

    /// The listing that a category needs, and the category's path below `/skills`.
    pub(super) async fn discover(&self, category: Option<&str>) -> Result<(Arc<Union>, Option<String>)> {
        let path = category_path(category)?;
        let union = match &path {
            Some(path) => self.union_of_first(path).await?,
            None => self.union_all().await?,
        };
        let relative = path.as_ref().map(|path| path.below_mount().to_owned());
        if let (Some(path), Some(relative)) = (&path, &relative)
            && !union.is_directory(relative)
        {
            union.check_complete(path)?;
            let hint = "list the categories: `ls /skills`";
            return Err(Error::new(ErrorKind::NotFound, format!("there is no category `{relative}`"))
                .at(path)
                .with_hint(hint));
        }
        Ok((union, relative))
    }

    /// Which skills of a listing count, sorted by path.
    pub(super) fn select<'u>(&self, union: &'u Union, category: Option<&str>) -> Selection<'u> {
        let mut selection = Selection { skills: Vec::new(), diagnostics: Vec::new() };
        let inside = |path: &str| is_within(path, category.unwrap_or_default());
        let mut say = |path: &str, severity, code, message: String| {
            let file = format!("/skills/{path}").trim_end_matches('/').to_owned();
            selection.diagnostics.push(Diagnostic { file, line: None, severity, code, message });
        };
        if let Some(broken) = union.broken() {
            let (library, why) = (&broken.library, broken.error.message());
            let message = format!("{library}, and libraries after it, are left out: {why}");
            say("", Severity::Error, "library-unavailable", message);
        }
        for (layer, why) in union.troubles() {
            let message = format!("{} is served as it was before: {why}", self.layer_name(layer));
            say("", Severity::Warning, "stale-index", message);
        }
        for collision in union.collisions().iter().filter(|collision| inside(&collision.path)) {
            let (hidden, kept) = (self.layer_name(collision.hidden_layer), self.layer_name(collision.layer));
            let message =
                format!("hidden: {hidden} has it, and the skill `{}` of {kept} comes first", collision.by);
            say(&collision.path, Severity::Warning, "collision", message);
        }
        for (skill, place) in union.skills().filter(|(path, _)| inside(path.as_str())) {
            let path = skill.as_str();
            if path.split('/').any(|segment| segment.starts_with('.')) {
                say(
                    path,
                    Severity::Info,
                    "hidden",
                    "it lies in a directory whose name starts with a dot".to_owned(),
                );
            } else if path.split('/').count() > MAX_DEPTH {
                say(
                    path,
                    Severity::Warning,
                    "too-deep",
                    format!("skills are found up to {MAX_DEPTH} directories deep"),
                );
            } else if selection.skills.len() == MAX_SKILLS {
                say(
                    path,
                    Severity::Warning,
                    "too-many",
                    format!("of a library {MAX_SKILLS} skills are read"),
                );
            } else {
                selection.skills.push((skill, place));
            }
        }
        selection
    }

    fn layer_name(&self, layer: usize) -> String {
        match self.library_of(layer) {
            Some(library) => format!("the library `{library}`"),
            None => "the user's own library".to_owned(),
        }
    }

    /// Reads the head of one skill's file.
    async fn head_of(
        &self,
        union: &Union,
        path: &SkillPath,
        place: &SkillPlace,
        last: bool,
        failed: &AtomicBool,
    ) -> Result<Outcome> {
        let Some(found) = Found::new(union, path, place) else { return Ok(Err(Vec::new())) };
        let size = found.meta.size;
        let mut wanted = FIRST_BYTES;
        loop {
            // The listing knows the size: an empty file needs no request.
            let bytes = match size {
                0 => bytes::Bytes::new(),
                _ => {
                    let wanted = wanted.min(size);
                    match self.read_listed(&found.location, found.file, wanted).await {
                        Ok(bytes) => bytes,
                        Err(error) if error.kind() == ErrorKind::Conflict && !last => return Err(error),
                        Err(error) if is_about_one_file(&error) => {
                            failed.store(true, Ordering::Relaxed);
                            return Ok(Err(vec![found.unreadable(&error)]));
                        }
                        Err(error) => return Err(error),
                    }
                }
            };
            let whole = bytes.len() as u64 >= size;
            let part = Size { whole, last: whole || wanted >= MOST_BYTES };
            match self.judge(&found, &bytes, part) {
                Ok(outcome) => return Ok(self.keep_skill(&found, outcome)),
                Err(More) => wanted = MOST_BYTES,
            }
        }
    }

    /// What the head of a skill's file says.
    fn judge(&self, found: &Found<'_>, bytes: &[u8], part: Size) -> std::result::Result<Outcome, More> {
        let Found { union, path, place, meta, location, .. } = found;
        let (manifest, mut diagnostics) = match read_head(bytes, part, path.name(), location.as_str()) {
            Head::More => return Err(More),
            Head::Unusable(diagnostics) => return Ok(Err(diagnostics)),
            Head::Done(manifest, diagnostics) => (manifest, diagnostics),
        };
        if !manifest.described && !self.lists_undescribed_skills() {
            return Ok(Err(diagnostics));
        }
        if meta.size > LARGE_BYTES {
            let message = format!("it has {} bytes; only its head was read", meta.size);
            diagnostics.push(found.say(Severity::Warning, "large", message));
        }
        Ok(Ok(Arc::new(Skill {
            path: (*path).clone(),
            library: self.library_of(place.layer).cloned(),
            manifest: *manifest,
            size: meta.size,
            etag: meta.etag.clone(),
            resources: resources(union, path, &place.file),
            diagnostics,
            location: location.clone(),
        })))
    }

    /// The categories of the skills, with their descriptions.
    async fn categories(
        &self,
        union: &Union,
        skills: &[(&SkillPath, &SkillPlace)],
        within: Option<&str>,
        last: bool,
        failed: &AtomicBool,
    ) -> Result<Vec<Category>> {
        let mut paths: BTreeSet<&str> = BTreeSet::new();
        for (skill, _) in skills {
            paths.extend(skill.parents());
        }
        let inside = |path: &&str| is_within(path, within.unwrap_or_default());
        let described = paths.into_iter().filter(inside).map(|path| async move {
            let file = format!("{path}/DESCRIPTION.md");
            let description = match (union.description(path), union.file(&file)) {
                (Some(known), _) => known.map(str::to_owned),
                (None, Some(found)) if found.meta.size > 0 => {
                    self.description(&file, found, last, failed).await?
                }
                _ => None,
            };
            Ok(Category { path: path.to_owned(), description })
        });
        let described: Vec<_> = described.collect();
        stream::iter(described).buffered(AT_ONCE).try_collect().await
    }

    /// What a category's `DESCRIPTION.md` says.
    async fn description(
        &self,
        file: &str,
        found: &UnionFile,
        last: bool,
        failed: &AtomicBool,
    ) -> Result<Option<String>> {
        let meta = &found.meta;
        let location = VirtualPath::in_skills(file)?;
        let key = Key::<KnownDescription>::new(self.about_file(&location, found)?, Detail::Only);
        if let Some(kept) = self.cache().peek(&key)
            && kept.value.etag == meta.etag
            && meta.etag.is_some()
        {
            return Ok(kept.value.description.clone());
        }
        let bytes = match self.read_listed(&location, found, FIRST_BYTES.min(meta.size)).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::Conflict && !last => return Err(error),
            Err(error) if is_about_one_file(&error) => {
                failed.store(true, Ordering::Relaxed);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let description = read_description(&bytes, bytes.len() as u64 >= meta.size);
        let known = KnownDescription { etag: meta.etag.clone(), description: description.clone() };
        self.cache().put(&key, self.cache().moment(&key), known);
        Ok(description)
    }
}

impl<'u> Found<'u> {
    fn new(union: &'u Union, path: &'u SkillPath, place: &'u SkillPlace) -> Option<Self> {
        let location = path.join(&place.file).ok()?;
        let file = union.file(location.below_mount())?;
        Some(Self { union, path, place, file, meta: &file.meta, location })
    }

    fn say(&self, severity: Severity, code: &'static str, message: String) -> Diagnostic {
        Diagnostic { file: self.location.to_string(), line: None, severity, code, message }
    }

    fn unreadable(&self, error: &Error) -> Diagnostic {
        self.say(Severity::Error, "unreadable", format!("it cannot be read: {}", error.message()))
    }
}

/// Whether the other files may still be read: one bad skill never hides the others.
fn is_about_one_file(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Denied | ErrorKind::Corrupt | ErrorKind::Conflict | ErrorKind::TooLarge)
}

/// The other files of a skill.
pub(super) fn resources(union: &Union, skill: &SkillPath, file: &str) -> Vec<Resource> {
    let others = union.files_in(skill.as_str()).filter(|(path, _)| *path != file);
    others
        .map(|(path, found)| Resource {
            path: path.to_owned(),
            kind: ResourceKind::of(path),
            size: found.meta.size,
        })
        .collect()
}
