//! Discovery: resolves the union of the libraries, then obtains the head of each skill file, from
//! the index of a published library or by reading many files concurrently.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use tracing::instrument;

use super::heads::{FIRST_BYTES, MOST_BYTES, as_read};
use super::{Category, Resource, ResourceKind, Skill, SkillLibrary};
use crate::backend::{Retries, S3Backend, SkillPlace, Union, UnionFile};
use crate::cache::{Accept, Cached, Detail, Kept, Key};
use crate::error::{Error, ErrorKind, Hint, Result};
use crate::manifest::{Diagnostic, Manifest, Severity, Size, read_description, read_head};
use crate::path::{SkillPath, VirtualPath, is_within};
use crate::store::Meta;

/// How many heads are read concurrently: the concurrency limit of a tenant.
const AT_ONCE: usize = 80;
/// Skills in deeper directories are reported and skipped.
const MAX_DEPTH: usize = 8;
/// Skills beyond this number are reported and skipped.
const MAX_SKILLS: usize = 5_000;
/// A larger `SKILL.md` is reported. Its head is still read.
const LARGE_BYTES: u64 = 1024 * 1024;

/// At least this many skills are processed on a blocking thread.
const MANY_SKILLS: usize = 64;

/// A skill, or diagnostics that say why it cannot be used.
type ReadSkill = std::result::Result<Arc<Skill>, Vec<Diagnostic>>;

/// A value parsed from one version of a file.
#[derive(Debug)]
struct KnownFile<T> {
    etag: Option<String>,
    says: T,
}

/// Parsed from a `SKILL.md`.
impl Cached for KnownFile<ReadSkill> {
    fn weight(&self) -> Option<u64> {
        let weight: usize = match &self.says {
            Ok(skill) => {
                let resources: usize = skill.resources.iter().map(|file| file.path.len() + 60).sum();
                3 * skill.manifest.frontmatter.len() + skill.path.as_str().len() * 2 + resources + 600
            }
            Err(said) => said.iter().map(|said| said.message.len() + said.file.len() + 80).sum(),
        };
        Some(weight as u64)
    }
}

/// Parsed from a `DESCRIPTION.md`.
impl Cached for KnownFile<Option<String>> {
    fn weight(&self) -> Option<u64> {
        Some(self.says.as_ref().map_or(0, String::len) as u64)
    }
}

/// The skill library built from one union.
#[derive(Debug)]
struct Catalog {
    union: u64,
    library: SkillLibrary,
    /// For each layer of the union, whether it is plain, that is, was listed.
    plain: Vec<bool>,
    /// Whether something could not be read. Then it is not cached, so the next caller tries again.
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

/// The skills of a union.
type ListedSkills<'u> = Vec<(&'u SkillPath, &'u SkillPlace)>;

/// A skill of the union, with its file.
pub(super) struct FoundSkill<'u> {
    union: &'u Union,
    path: &'u SkillPath,
    place: &'u SkillPlace,
    pub(super) file: &'u UnionFile,
    pub(super) location: VirtualPath,
}

/// One attempt at reading the skills of a union.
struct Attempt {
    /// Whether this is the last attempt, so that a conflict is final.
    last: bool,
    /// Whether something could not be read.
    failed: AtomicBool,
}

impl S3Backend {
    /// Returns the skills of a category, with their frontmatter. `None` and `"all"` mean every
    /// category.
    ///
    /// A published library costs one request. A plain library costs one request for its index, a
    /// listing (one request per 1,000 keys), and one ranged request for each skill and each
    /// category's `DESCRIPTION.md`, up to 80 concurrently. A skill whose frontmatter is longer than
    /// 4 KiB costs a second one. Costs nothing while everything is cached.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the category does not exist, or if the session has no `/skills`.
    ///
    /// A skill that cannot be read is not an error. It is omitted and reported in
    /// [`SkillLibrary::diagnostics`].
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "embedded")]
    /// # async fn example() -> skillfs::Result<()> {
    /// # use skillfs::{Session, Settings, SkillFs, UserId, embedded::Embedded};
    /// # let store = Embedded::in_memory()?;
    /// # store.create_bucket("acme").await?;
    /// # let text = "---\nname: sale\ndescription: Drafts purchase agreements.\n---\n# Steps\n";
    /// # store.put("acme", "ana/skills/contracts/sale/SKILL.md", text).await?;
    /// # let fs = SkillFs::embedded(&store, &Settings::new("acme")).await?;
    /// # let backend = fs.session(&Session::new().user(UserId::parse("ana")?));
    /// use skillfs::CatalogFormat;
    ///
    /// let skills = backend.skills(Some("contracts")).await?;
    /// let catalog = skills.catalog(CatalogFormat::Markdown, Some(8_000));
    /// assert!(catalog.text.contains("`contracts/sale`: Drafts purchase agreements."));
    /// # Ok(())
    /// # }
    /// # #[cfg(feature = "embedded")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    #[instrument(name = "skills", skip_all, fields(?category))]
    pub async fn skills(&self, category: Option<&str>) -> Result<SkillLibrary> {
        let mut retries = Retries::new(self);
        loop {
            let read = retries.session().read_skills(category, retries.is_last()).await;
            if !retries.should_retry(&read) {
                return read;
            }
        }
    }

    async fn read_skills(&self, category: Option<&str>, last: bool) -> Result<SkillLibrary> {
        let (union, category) = self.discover(category).await?;
        self.library(&union, category.as_deref(), last).await
    }

    /// Returns the skills of a union, from the cache or by reading them.
    pub(super) async fn library(
        &self,
        union: &Arc<Union>,
        category: Option<&str>,
        last: bool,
    ) -> Result<SkillLibrary> {
        let key = Key::new(self.about_libraries(), Detail::named(category.unwrap_or_default()));
        // A catalog belongs to one union, regardless of its age. Callers with the same union share
        // a fetch.
        let accept = Accept {
            bound: Duration::MAX,
            fetches: Detail::named(union.id.to_string()),
            usable: |known: &Catalog| known.union == union.id,
            refresh: false,
        };
        let fetch = |_: Option<Kept<Catalog>>| {
            let (backend, union, category) = (self.clone(), union.clone(), category.map(str::to_owned));
            async move {
                let attempt = Attempt { last, failed: AtomicBool::new(false) };
                let library = backend.read_library(&union, category.as_deref(), &attempt).await?;
                let (plain, failed) = (union.plain_layers(), attempt.failed.into_inner());
                Ok(Catalog { union: union.id, library, plain, failed })
            }
        };
        Ok(self.cache().get(&key, accept, fetch).await?.value.library.clone())
    }

    async fn read_library(
        &self,
        union: &Arc<Union>,
        category: Option<&str>,
        attempt: &Attempt,
    ) -> Result<SkillLibrary> {
        let (skills, mut diagnostics) = self.select(union, category);
        let known = self.known_skills(union, &skills).await?;
        let categories = self.categories(union, &skills, category, attempt);
        // Collected up front: with a closure inside the stream, callers could not spawn this
        // future.
        let unknown = skills.iter().zip(&known).filter(|(_, known)| known.is_none());
        let heads: Vec<_> = unknown
            .enumerate()
            .map(|(number, ((path, place), _))| async move {
                Ok::<_, Error>((number, self.head_of(union, path, place, attempt).await?))
            })
            .collect();
        // Unordered: a slow request does not hold up the others.
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

    /// Returns the skills that need no request: from the cache, or from the index.
    async fn known_skills(
        &self,
        union: &Arc<Union>,
        skills: &[(&SkillPath, &SkillPlace)],
    ) -> Result<Vec<Option<ReadSkill>>> {
        if skills.len() < MANY_SKILLS {
            return Ok(skills.iter().map(|(path, place)| self.known_skill(union, path, place)).collect());
        }
        // Parsing thousands of frontmatters takes a while.
        let (backend, union) = (self.clone(), union.clone());
        let skills: Vec<_> = skills.iter().map(|(path, place)| ((*path).clone(), (*place).clone())).collect();
        let known =
            move || skills.iter().map(|(path, place)| backend.known_skill(&union, path, place)).collect();
        tokio::task::spawn_blocking(known).await.map_err(|error| {
            Error::new(ErrorKind::Internal, "the catalog could not be built").with_source(error)
        })
    }

    fn known_skill(&self, union: &Union, path: &SkillPath, place: &SkillPlace) -> Option<ReadSkill> {
        let found = FoundSkill::new(union, path, place)?;
        let meta = &found.file.meta;
        let outcome = match self.cached(&self.skill_key(&found)?, meta) {
            Some(Ok(skill)) => {
                let resources = resources(union, path, &place.file);
                if skill.resources == resources && skill.size == meta.size {
                    return Some(Ok(skill));
                }
                // Only its other files have changed.
                Ok(Arc::new(Skill { size: meta.size, resources, ..Arc::unwrap_or_clone(skill) }))
            }
            Some(unusable) => return Some(unusable),
            None => {
                let (text, part) = as_read(union.head(path.as_str())?, meta.size);
                self.judge(&found, &text, part)?
            }
        };
        Some(self.keep_skill(&found, outcome))
    }

    /// The cache key includes the path of the skill, because the same file is interpreted by its
    /// location.
    fn skill_key(&self, found: &FoundSkill<'_>) -> Option<Key<KnownFile<ReadSkill>>> {
        let about = self.about_file(&found.location, found.file).ok()?;
        Some(Key::new(about, Detail::named(found.path.as_str())))
    }

    fn keep_skill(&self, found: &FoundSkill<'_>, outcome: ReadSkill) -> ReadSkill {
        if let Some(key) = self.skill_key(found) {
            self.keep(&key, &found.file.meta, outcome.clone());
        }
        outcome
    }

    /// Returns the cached value for this version of a file.
    fn cached<T: Clone>(&self, key: &Key<KnownFile<T>>, meta: &Meta) -> Option<T>
    where
        KnownFile<T>: Cached,
    {
        let kept = self.cache().peek(key)?;
        (meta.etag.is_some() && kept.value.etag == meta.etag).then(|| kept.value.says.clone())
    }

    fn keep<T>(&self, key: &Key<KnownFile<T>>, meta: &Meta, says: T)
    where
        KnownFile<T>: Cached,
    {
        self.cache().put(key, self.cache().moment(key), KnownFile { etag: meta.etag.clone(), says });
    }

    /// Returns the union that a category needs, and the path of the category below `/skills`.
    /// `None`, an empty string and `all` mean every category.
    pub(super) async fn discover(&self, category: Option<&str>) -> Result<(Arc<Union>, Option<String>)> {
        let category = category.map(|text| text.trim().trim_matches('/')).unwrap_or_default();
        if category.is_empty() || category == "all" {
            return Ok((self.union_all().await?, None));
        }
        let path = VirtualPath::in_skills(category)?;
        let union = self.union_of_first(&path).await?;
        let relative = path.below_mount();
        if !union.is_directory(relative) {
            union.check_complete(&path)?;
            return Err(Error::new(ErrorKind::NotFound, format!("there is no category `{relative}`"))
                .at(&path)
                .with_hint(Hint::ListDirectory("/skills".to_owned())));
        }
        let relative = relative.to_owned();
        Ok((union, Some(relative)))
    }

    /// Selects the skills of a union that count, sorted by path, with diagnostics about all others.
    pub(super) fn select<'u>(
        &self,
        union: &'u Union,
        category: Option<&str>,
    ) -> (ListedSkills<'u>, Vec<Diagnostic>) {
        let (mut skills, mut diagnostics) = (Vec::new(), Vec::new());
        let inside = |path: &str| is_within(path, category.unwrap_or_default());
        let mut say = |path: &str, severity, code, message: String| {
            let file = format!("/skills/{path}");
            diagnostics.push(Diagnostic::new(severity, code, file.trim_end_matches('/'), message));
        };
        if let Some(broken) = &union.broken {
            let (library, why) = (&broken.library, broken.error.message());
            let message = format!("{library}, and libraries after it, are left out: {why}");
            say("", Severity::Error, "library-unavailable", message);
        }
        for (layer, why) in union.troubles() {
            let message = format!("{} is served as it was before: {why}", self.layer_name(layer));
            say("", Severity::Warning, "stale-index", message);
        }
        for collision in union.collisions.iter().filter(|collision| inside(&collision.path)) {
            let (hidden, kept) = (self.layer_name(collision.hidden_layer), self.layer_name(collision.layer));
            let message =
                format!("hidden: {hidden} has it, and the skill `{}` of {kept} comes first", collision.by);
            say(&collision.path, Severity::Warning, "collision", message);
        }
        for (skill, place) in union.skills().filter(|(path, _)| inside(path.as_str())) {
            let path = skill.as_str();
            if path.split('/').any(|segment| segment.starts_with('.')) {
                let message = "it is in a directory whose name starts with a dot".to_owned();
                say(path, Severity::Info, "hidden", message);
            } else if path.split('/').count() > MAX_DEPTH {
                let message = format!("skills are found up to {MAX_DEPTH} directories deep");
                say(path, Severity::Warning, "too-deep", message);
            } else if skills.len() == MAX_SKILLS {
                let message = format!("at most {MAX_SKILLS} skills of a library are read");
                say(path, Severity::Warning, "too-many", message);
            } else {
                skills.push((skill, place));
            }
        }
        (skills, diagnostics)
    }

    fn layer_name(&self, layer: usize) -> String {
        match self.library_of(layer) {
            Some(library) => format!("the library `{library}`"),
            None => "the user's own library".to_owned(),
        }
    }

    /// Reads the head of a `SKILL.md`.
    async fn head_of(
        &self,
        union: &Union,
        path: &SkillPath,
        place: &SkillPlace,
        attempt: &Attempt,
    ) -> Result<ReadSkill> {
        let Some(found) = FoundSkill::new(union, path, place) else { return Ok(Err(Vec::new())) };
        let mut wanted = FIRST_BYTES;
        loop {
            let bytes = match self.start_of(&found.location, found.file, wanted, attempt).await? {
                Ok(bytes) => bytes,
                Err(error) => {
                    let message = format!("it cannot be read: {}", error.message());
                    return Ok(Err(vec![found.say(Severity::Error, "unreadable", message)]));
                }
            };
            let whole = bytes.len() as u64 >= found.file.meta.size;
            let part = Size { whole, last: whole || wanted >= MOST_BYTES };
            match self.judge(&found, &bytes, part) {
                Some(outcome) => return Ok(self.keep_skill(&found, outcome)),
                None => wanted = MOST_BYTES,
            }
        }
    }

    /// Reads the start of a file. The inner error is about this file alone: one bad skill never
    /// hides the others.
    async fn start_of(
        &self,
        location: &VirtualPath,
        file: &UnionFile,
        most: u64,
        attempt: &Attempt,
    ) -> Result<Result<Bytes>> {
        // The size is listed: an empty file needs no request.
        if file.meta.size == 0 {
            return Ok(Ok(Bytes::new()));
        }
        let read = self.read_listed(location, file, most.min(file.meta.size)).await;
        match read.as_ref().err().map(Error::kind) {
            Some(ErrorKind::Conflict) if !attempt.last => read.map(Ok),
            Some(ErrorKind::Denied | ErrorKind::Corrupt | ErrorKind::Conflict | ErrorKind::TooLarge) => {
                attempt.failed.store(true, Ordering::Relaxed);
                Ok(read)
            }
            _ => read.map(Ok),
        }
    }

    /// Parses the head of a `SKILL.md`. Returns `None` if more of the file must be read.
    fn judge(&self, found: &FoundSkill<'_>, bytes: &[u8], part: Size) -> Option<ReadSkill> {
        let mut document = match read_head(bytes, part, found.path.name(), found.location.as_str())? {
            Ok(document) => document,
            Err(said) => return Some(Err(said)),
        };
        if !document.manifest.described && !self.lists_undescribed_skills() {
            return Some(Err(document.diagnostics));
        }
        let size = found.file.meta.size;
        if size > LARGE_BYTES {
            let message = format!("it has {size} bytes; only its head was read");
            document.diagnostics.push(found.say(Severity::Warning, "large", message));
        }
        Some(Ok(Arc::new(self.skill_of(found, document.manifest, document.diagnostics))))
    }

    /// Assembles a skill from the union and its manifest.
    pub(super) fn skill_of(
        &self,
        found: &FoundSkill<'_>,
        manifest: Manifest,
        diagnostics: Vec<Diagnostic>,
    ) -> Skill {
        let FoundSkill { union, path, place, file, location } = found;
        Skill {
            path: (*path).clone(),
            library: self.library_of(place.layer).cloned(),
            manifest,
            size: file.meta.size,
            etag: file.meta.etag.clone(),
            resources: resources(union, path, &place.file),
            diagnostics,
            location: location.clone(),
        }
    }

    /// Returns the categories of the skills, with their descriptions.
    async fn categories(
        &self,
        union: &Union,
        skills: &[(&SkillPath, &SkillPlace)],
        within: Option<&str>,
        attempt: &Attempt,
    ) -> Result<Vec<Category>> {
        let paths: BTreeSet<&str> = skills.iter().flat_map(|(skill, _)| skill.parents()).collect();
        let inside = |path: &&str| is_within(path, within.unwrap_or_default());
        let described = paths.into_iter().filter(inside).map(|path| async move {
            let file = format!("{path}/DESCRIPTION.md");
            let description = match (union.description(path), union.file(&file)) {
                (Some(known), _) => known.map(str::to_owned),
                (None, Some(found)) if found.meta.size > 0 => self.description(&file, found, attempt).await?,
                _ => None,
            };
            Ok(Category { path: path.to_owned(), description })
        });
        let described: Vec<_> = described.collect();
        stream::iter(described).buffered(AT_ONCE).try_collect().await
    }

    /// Reads the description from a category's `DESCRIPTION.md`.
    async fn description(&self, file: &str, found: &UnionFile, attempt: &Attempt) -> Result<Option<String>> {
        let location = VirtualPath::in_skills(file)?;
        let key = Key::new(self.about_file(&location, found)?, Detail::Only);
        if let Some(description) = self.cached(&key, &found.meta) {
            return Ok(description);
        }
        let Ok(bytes) = self.start_of(&location, found, FIRST_BYTES, attempt).await? else { return Ok(None) };
        let description = read_description(&bytes, bytes.len() as u64 >= found.meta.size);
        self.keep(&key, &found.meta, description.clone());
        Ok(description)
    }
}

impl<'u> FoundSkill<'u> {
    pub(super) fn new(union: &'u Union, path: &'u SkillPath, place: &'u SkillPlace) -> Option<Self> {
        let location = path.join(&place.file).ok()?;
        let file = union.file(location.below_mount())?;
        Some(Self { union, path, place, file, location })
    }

    fn say(&self, severity: Severity, code: &'static str, message: String) -> Diagnostic {
        Diagnostic::new(severity, code, self.location.as_str(), message)
    }
}

/// Returns all files of a skill except its `SKILL.md`.
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
