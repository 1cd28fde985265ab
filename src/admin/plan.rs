//! What a push would do: a library compared with what is to be published.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use tracing::instrument;

use super::lease::UnderWay;
use crate::backend::{S3Backend, SkillFs, Union};
use crate::error::{Error, ErrorKind, Result, shorten};
use crate::index::{Index, Sha256, State};
use crate::manifest::skill_file;
use crate::mount::Library;
use crate::path::VirtualPath;
use crate::source::Source;
use crate::store::Meta;

/// Files that are read at once, to compare them.
const AT_ONCE: usize = 32;
/// How often a library is looked at again when it changes meanwhile.
const ROUNDS: u32 = 5;

/// A file that is to be published.
#[derive(Debug, Clone)]
pub struct NewFile {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) sha256: Sha256,
    pub(crate) content: NewContent,
}

/// Where its content is.
#[derive(Debug, Clone)]
pub(crate) enum NewContent {
    Bytes(Bytes),
    /// In a local file, which must still have the digest when it is read.
    Local(PathBuf),
    /// Among the blobs of the library.
    Blob,
}

impl NewFile {
    /// A file of a skill, by its path below the skill's directory, and what it holds.
    #[must_use]
    pub fn new(name: impl Into<String>, content: impl Into<Bytes>) -> Self {
        let content = content.into();
        let (size, sha256) = (content.len() as u64, Sha256::of(&content));
        Self { name: name.into(), size, sha256, content: NewContent::Bytes(content) }
    }
}

/// A skill that is to be published.
#[derive(Debug, Clone)]
pub struct NewSkill {
    pub(crate) path: String,
    pub(crate) files: Vec<NewFile>,
    /// Why it is not to be.
    pub(crate) refused: Option<String>,
}

impl NewSkill {
    /// A skill by its path below `/skills`, such as `escrituras/compraventa`, with all its files.
    #[must_use]
    pub fn new(path: impl Into<String>, files: Vec<NewFile>) -> Self {
        Self { path: path.into(), files, refused: None }
    }

    /// Its path below `/skills`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its files that are held in memory: their names and what they hold.
    pub fn contents(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.files.iter().filter_map(|file| match &file.content {
            NewContent::Bytes(bytes) => Some((file.name.as_str(), bytes)),
            NewContent::Local(_) | NewContent::Blob => None,
        })
    }

    /// A skill that is not to be published, and why: it stands in the plan.
    #[must_use]
    pub fn refused(path: impl Into<String>, why: impl Into<String>) -> Self {
        Self { path: path.into(), files: Vec::new(), refused: Some(why.into()) }
    }

    /// The name of its `SKILL.md`, in its own letter case.
    pub(super) fn file(&self) -> Option<&str> {
        skill_file(self.files.iter().map(|file| file.name.as_str()))
    }
}

/// Skills that are to be published, and the descriptions of their categories.
#[derive(Debug, Clone, Default)]
pub struct NewLibrary {
    /// The skills.
    pub skills: Vec<NewSkill>,
    pub(crate) categories: BTreeMap<String, NewFile>,
    /// Only these skills of the library may be deleted.
    pub(crate) only: Option<BTreeSet<String>>,
    /// Where local files lie, for as long as they are needed.
    pub(crate) source: Option<std::sync::Arc<Source>>,
}

impl NewLibrary {
    /// Publishes nothing; of what is there, these skills may be deleted.
    #[must_use]
    pub fn nothing_but(skills: impl IntoIterator<Item = String>) -> Self {
        Self { only: Some(skills.into_iter().collect()), ..Self::default() }
    }

    /// Keeps the source that the files come from: an unpacked archive goes with it.
    #[must_use]
    pub fn keeping(mut self, source: Source) -> Self {
        self.source = Some(std::sync::Arc::new(source));
        self
    }
}

/// How to publish.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PushOptions {
    /// Deletes skills of the library that are not among those that are published.
    pub delete: bool,
    /// Only skills of this category are deleted.
    pub category: Option<String>,
    /// Publishes over skills that were changed by hand, and over files that belong to none.
    pub overwrite: bool,
    /// Who publishes; it stands in the release.
    pub by: String,
    /// Where it comes from; it stands in the release.
    pub source: String,
    /// How long the library is held at once, in seconds. Whoever dies while publishing holds it for so long.
    pub lease: u64,
    /// A library that has the same content already: what is large is copied from there, on the server.
    pub(crate) copy_from: Option<Library>,
}

impl PushOptions {
    /// What is large is copied from a library that it was published to before, on the server.
    pub fn copies_from(&mut self, library: Library) {
        self.copy_from = Some(library);
    }
}

impl Default for PushOptions {
    fn default() -> Self {
        Self {
            delete: false,
            category: None,
            overwrite: false,
            by: String::new(),
            source: String::new(),
            lease: 30,
            copy_from: None,
        }
    }
}

/// What happens to a skill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It is new.
    Create,
    /// It differs.
    Update,
    /// It goes.
    Delete,
    /// It is the same already.
    Unchanged,
    /// It is pinned to a release, and stays as it is.
    Pinned,
    /// It is not published, for a reason.
    Refused,
}

/// What happens to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// It is new.
    Add,
    /// It differs.
    Change,
    /// It goes.
    Remove,
}

/// What happens to one file of a skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FileChange {
    /// Its path below the skill's directory.
    pub name: String,
    /// What happens to it.
    pub change: Change,
    /// Its size: the new one, or that of what goes.
    pub size: u64,
}

/// What happens to one skill.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct PlannedSkill {
    /// Its path below `/skills`; of a category's description, that file's path.
    pub path: String,
    /// What happens to it.
    pub action: Action,
    /// The files that change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileChange>,
    /// Why, where that is not plain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What is to be published.
    #[serde(skip)]
    pub(super) new: Option<NewSkill>,
    /// What lies there now.
    #[serde(skip)]
    pub(super) live: BTreeMap<String, Meta>,
    /// Its files that stay as they are, with their ETags.
    #[serde(skip)]
    pub(super) same: BTreeMap<String, String>,
    /// Whether a release has what lies there now.
    #[serde(skip)]
    pub(super) kept: bool,
}

/// What a push would do.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// The library.
    #[serde(skip)]
    pub library: Library,
    /// Its skills, sorted by path.
    pub skills: Vec<PlannedSkill>,
    /// Descriptions of categories that change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<PlannedSkill>,
    /// Who is publishing to this library at the moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub under_way: Option<UnderWay>,
    #[serde(skip)]
    pub(super) base: Base,
    #[serde(skip)]
    pub(super) options: PushOptions,
}

/// The index that a plan was made on.
#[derive(Debug, Clone, Default)]
pub(super) struct Base {
    pub(super) index: Option<Index>,
    pub(super) etag: Option<String>,
    /// Whether skills lie in the library that the index does not know.
    pub(super) unindexed: bool,
}

impl Plan {
    /// How many skills have this in store.
    #[must_use]
    pub fn count(&self, action: Action) -> u64 {
        let refused = self.categories.iter().filter(|_| action == Action::Refused);
        self.skills.iter().chain(refused).filter(|skill| skill.action == action).count() as u64
    }

    /// Whether anything would change.
    #[must_use]
    pub fn changes(&self) -> bool {
        self.changing().next().is_some() || self.describing().next().is_some()
    }

    /// The descriptions of categories that change.
    pub(super) fn describing(&self) -> impl Iterator<Item = &PlannedSkill> {
        self.categories.iter().filter(|category| category.action != Action::Refused)
    }

    pub(super) fn changing(&self) -> impl Iterator<Item = &PlannedSkill> {
        self.skills
            .iter()
            .filter(|skill| matches!(skill.action, Action::Create | Action::Update | Action::Delete))
    }
}

impl SkillFs {
    /// Compares a library with what is to be published. Changes nothing.
    ///
    /// Costs one listing and one request for the index, and one for each file of the same size whose digest
    /// the index does not know.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a skill that has no `SKILL.md`, or a name that no path can have;
    /// [`ErrorKind::Conflict`] when the library keeps changing.
    #[instrument(name = "plan", skip_all, fields(%library))]
    pub async fn plan(&self, library: &Library, new: &NewLibrary, options: &PushOptions) -> Result<Plan> {
        let backend = self.own_session(&library.session()).fresh();
        let mut round = 1;
        loop {
            match plan_once(&backend, library, new, options).await {
                Err(error) if error.kind() == ErrorKind::Conflict && round < ROUNDS => round += 1,
                done => return done,
            }
        }
    }
}

async fn plan_once(
    backend: &S3Backend,
    library: &Library,
    new: &NewLibrary,
    options: &PushOptions,
) -> Result<Plan> {
    let union = backend.union_all().await?;
    let index = union.index(0);
    if index.is_none() && union.index_etag(0).is_some() {
        return Err(Error::new(ErrorKind::Corrupt, format!("the index of {library} cannot be read"))
            .with_hint(
                "look with `skillfs admin verify`; its `--repair` writes a new one, and forgets the releases",
            ));
    }
    let mut skills = Vec::new();
    let mut seen = BTreeSet::new();
    let compared: Vec<_> =
        new.skills.iter().map(|skill| compare(backend, library, &union, index, skill, options)).collect();
    let compared: Vec<PlannedSkill> = stream::iter(compared).buffered(AT_ONCE).try_collect().await?;
    for planned in compared {
        if !seen.insert(planned.path.clone()) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("the skill `{}` is to be published twice", shorten(&planned.path)),
            )
            .with_hint("give each skill a path of its own"));
        }
        skills.push(planned);
    }
    if options.delete {
        let category = options.category.as_deref().unwrap_or_default();
        let within =
            |path: &str| category.is_empty() || path == category || path.starts_with(&format!("{category}/"));
        for (path, _) in union.skills().filter(|(path, _)| within(path) && !seen.contains(*path)) {
            if new.only.as_ref().is_none_or(|only| only.contains(path)) {
                skills.push(deletion(&union, index, path, options));
            }
        }
    }
    refuse_nested(&union, &mut skills);
    skills.sort_by(|one, other| one.path.cmp(&other.path));
    let mut categories = Vec::new();
    for (path, file) in &new.categories {
        categories.extend(category(backend, library, &union, path, file, options).await?);
    }
    let known = |path: &str| index.is_some_and(|index| index.skills.contains_key(path));
    let base = Base {
        index: index.cloned(),
        etag: union.index_etag(0).map(str::to_owned),
        unindexed: union.skills().any(|(path, _)| !known(path)),
    };
    let under_way = index.and_then(|index| UnderWay::of(index, backend.server_time()));
    Ok(Plan { library: library.clone(), skills, categories, under_way, base, options: options.clone() })
}

/// What lies below a skill's path now.
fn live_files(union: &Union, path: &str) -> BTreeMap<String, Meta> {
    union.files_in(path).map(|(name, file)| (name.to_owned(), file.meta.clone())).collect()
}

/// Whether a published skill was changed by hand since.
fn changed_by_hand(union: &Union, index: Option<&Index>, path: &str) -> bool {
    let managed = index.and_then(|index| index.skills.get(path)?.managed.as_ref());
    managed.is_some_and(|managed| managed.state == State::Published)
        && union.files_in(path).any(|(_, file)| file.release.is_none())
}

const BY_HAND: &str = "it was changed by hand since it was published; look at it with `admin diff`, and push with `--overwrite` to replace it";

async fn compare(
    backend: &S3Backend,
    library: &Library,
    union: &Union,
    index: Option<&Index>,
    new: &NewSkill,
    options: &PushOptions,
) -> Result<PlannedSkill> {
    let path = &new.path;
    for file in &new.files {
        library.file(&format!("{path}/{}", file.name))?;
    }
    let mut planned = PlannedSkill {
        path: path.clone(),
        action: Action::Unchanged,
        files: Vec::new(),
        why: None,
        new: Some(new.clone()),
        live: live_files(union, path),
        same: BTreeMap::new(),
        kept: is_kept(union, path),
    };
    let refuse = |mut planned: PlannedSkill, why: &str| {
        planned.action = Action::Refused;
        planned.why = Some(why.to_owned());
        Ok(planned)
    };
    if let Some(why) = &new.refused {
        return refuse(planned, why);
    }
    if new.file().is_none() {
        return refuse(planned, "it has no SKILL.md");
    }
    if let Some(release) = index.and_then(|index| index.pins.get(path)) {
        planned.action = Action::Pinned;
        planned.why = Some(format!("it is pinned to release {release}; `admin unpin {path}` lets go of it"));
        return Ok(planned);
    }
    let there = union.skill(path).is_some();
    if there && !options.overwrite && changed_by_hand(union, index, path) {
        return refuse(planned, BY_HAND);
    }
    if !there && !planned.live.is_empty() && !options.overwrite {
        let names: Vec<_> = planned.live.keys().take(3).map(|name| format!("`{name}`")).collect();
        let why = format!(
            "files lie there that belong to no skill ({}); `--overwrite` deletes them",
            names.join(", ")
        );
        return refuse(planned, &why);
    }
    let mut names = BTreeSet::new();
    for file in &new.files {
        names.insert(file.name.as_str());
        let found = union.file(&format!("{path}/{}", file.name));
        let change = match found {
            None => Some(Change::Add),
            Some(found) => {
                // A release that is on its way, or a listing of two moments: the plan would be wrong.
                if found.release.is_some_and(|release| !release.live)
                    && index.is_none_or(|index| index.publishing.is_none())
                {
                    return Err(Error::new(ErrorKind::Conflict, format!("{library} keeps changing"))
                        .with_hint("try again in a moment"));
                }
                let same = found.meta.size == file.size && {
                    match union.sha256(path, &file.name, found) {
                        Some(sha256) => sha256 == file.sha256,
                        None => {
                            let location = VirtualPath::parse(&format!("/skills/{path}/{}", file.name))?;
                            backend.digest_listed(&location, found, 0).await?.0 == file.sha256
                        }
                    }
                };
                match (same, &found.meta.etag) {
                    (true, Some(etag)) => {
                        planned.same.insert(file.name.clone(), etag.clone());
                        None
                    }
                    (true, None) => None,
                    (false, _) => Some(Change::Change),
                }
            }
        };
        if let Some(change) = change {
            planned.files.push(FileChange { name: file.name.clone(), change, size: file.size });
        }
    }
    for (name, meta) in &planned.live {
        if !names.contains(name.as_str()) {
            planned.files.push(FileChange { name: name.clone(), change: Change::Remove, size: meta.size });
        }
    }
    planned.files.sort_by(|one, other| one.name.cmp(&other.name));
    if planned.live.values().any(|meta| meta.etag.is_none()) {
        return refuse(planned, "the storage gives no ETag for a file of it");
    }
    planned.action = match (there, planned.files.is_empty()) {
        (false, _) => Action::Create,
        (true, true) => Action::Unchanged,
        (true, false) => Action::Update,
    };
    Ok(planned)
}

fn deletion(union: &Union, index: Option<&Index>, path: &str, options: &PushOptions) -> PlannedSkill {
    let live = live_files(union, path);
    let files = live
        .iter()
        .map(|(name, meta)| FileChange { name: name.clone(), change: Change::Remove, size: meta.size })
        .collect();
    let (action, why) = if let Some(release) = index.and_then(|index| index.pins.get(path)) {
        (Action::Pinned, Some(format!("it is pinned to release {release}")))
    } else if !options.overwrite && changed_by_hand(union, index, path) {
        (Action::Refused, Some(BY_HAND.to_owned()))
    } else if live.values().any(|meta| meta.etag.is_none()) {
        (Action::Refused, Some("the storage gives no ETag for a file of it".to_owned()))
    } else {
        (Action::Delete, None)
    };
    let (path, kept, same) = (path.to_owned(), is_kept(union, path), BTreeMap::new());
    PlannedSkill { path, action, files, why, new: None, live, same, kept }
}

/// Whether a release has what lies below a path.
fn is_kept(union: &Union, path: &str) -> bool {
    union.files_in(path).all(|(_, file)| file.release.is_some())
}

/// A skill inside another would be a part of it.
fn refuse_nested(union: &Union, skills: &mut [PlannedSkill]) {
    let coming: BTreeSet<String> =
        skills.iter().filter(|skill| skill.new.is_some()).map(|skill| skill.path.clone()).collect();
    let there: BTreeSet<&str> = union.skills().map(|(path, _)| path).collect();
    for skill in skills.iter_mut().filter(|skill| skill.action == Action::Create) {
        let parents = skill.path.match_indices('/').map(|(at, _)| &skill.path[..at]);
        let above = parents.into_iter().find(|parent| there.contains(parent) || coming.contains(*parent));
        let prefix = format!("{}/", skill.path);
        let below = there
            .iter()
            .copied()
            .chain(coming.iter().map(String::as_str))
            .find(|path| path.starts_with(&prefix));
        let why = match (above, below) {
            (Some(other), _) => {
                format!(
                    "it lies inside the skill `{other}`, and would be a part of it; delete that one first"
                )
            }
            (_, Some(other)) => {
                format!(
                    "the skill `{other}` lies inside it, and would be a part of it; delete that one first"
                )
            }
            (None, None) => continue,
        };
        skill.action = Action::Refused;
        skill.why = Some(why);
    }
}

/// The description of a category, where it differs.
async fn category(
    backend: &S3Backend,
    library: &Library,
    union: &Union,
    path: &str,
    file: &NewFile,
    options: &PushOptions,
) -> Result<Option<PlannedSkill>> {
    let relative = format!("{path}/DESCRIPTION.md");
    let (location, _) = library.file(&relative)?;
    let found = union.file(&relative);
    let mut live = BTreeMap::new();
    if let Some(found) = found {
        live.insert("DESCRIPTION.md".to_owned(), found.meta.clone());
        let known = union.indexed_category(path).map(|category| category.file.sha256);
        let same = found.meta.size == file.size
            && match known {
                Some(sha256) => sha256 == file.sha256,
                None => backend.digest_listed(&location, found, 0).await?.0 == file.sha256,
            };
        if same {
            return Ok(None);
        }
    }
    let recorded = union.index(0).and_then(|index| index.categories.get(path));
    let by_hand = !options.overwrite
        && found.is_some_and(|found| {
            recorded.is_some_and(|recorded| {
                recorded.published && found.meta.etag.as_deref() != Some(recorded.file.etag.as_str())
            })
        });
    let action = match found {
        Some(_) if by_hand => Action::Refused,
        Some(_) => Action::Update,
        None => Action::Create,
    };
    let change = if found.is_some() { Change::Change } else { Change::Add };
    Ok(Some(PlannedSkill {
        path: relative,
        action,
        files: vec![FileChange { name: "DESCRIPTION.md".to_owned(), change, size: file.size }],
        why: by_hand.then(|| BY_HAND.to_owned()),
        new: Some(NewSkill::new(path, vec![file.clone()])),
        live,
        same: BTreeMap::new(),
        kept: true,
    }))
}
