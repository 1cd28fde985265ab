//! Compares a library with the files that a change would leave. No I/O: trees, pins and options in, rows and changes
//! out.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::new::{NewFile, NewLibrary, NewSkill, PushOptions};
use crate::backend::{Union, UnionFile, find_skills};
use crate::error::{Error, ErrorKind, Hint, Result, shorten};
use crate::index::Digest;
use crate::path::{is_within, parents};

/// What a change does to a skill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Action {
    /// It does not exist yet.
    Create,
    /// It exists and differs.
    Update,
    /// It is deleted.
    Delete,
    /// It is already up to date.
    Unchanged,
    /// It is pinned to a release and stays unchanged.
    Pinned,
    /// It is not published; [`PlannedSkill::why`] has the reason.
    Refused,
}

/// What a change does to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum FileAction {
    /// It does not exist yet.
    Add,
    /// It exists and differs.
    Change,
    /// It is removed.
    Remove,
}

impl FileAction {
    /// The past participle: `added`, `changed` or `removed`.
    #[must_use]
    pub fn done(self) -> &'static str {
        match self {
            Self::Add => "added",
            Self::Change => "changed",
            Self::Remove => "removed",
        }
    }
}

/// A planned change to a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FileChange {
    /// The path below the skill's directory, or below `/skills` for a file outside of skills.
    pub name: String,
    /// What the change does.
    pub change: FileAction,
    /// The new size in bytes, or the size of a removed file.
    pub size: u64,
}

/// A planned change to a skill.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct PlannedSkill {
    /// The path below `/skills`.
    pub path: String,
    /// What the change does.
    pub action: Action,
    /// The files that change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileChange>,
    /// The reason, for refused and pinned skills.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What to do about it, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<Hint>,
}

/// The content of a plain library that becomes part of a release unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Adopted {
    /// The number of skills.
    pub skills: u64,
    /// The number of files, in and outside of skills.
    pub files: u64,
    /// The total size of the files in bytes. They are read to publish them.
    pub bytes: u64,
    /// The number of folder markers and of keys without a valid path. They are not adopted.
    pub left_out: u64,
}

/// A file that changes.
#[derive(Debug, Clone)]
pub(super) struct Change {
    /// The path below the library.
    pub(super) path: String,
    /// The current version: a digest, or the ETag of a plain library's key.
    pub(super) before: Option<String>,
    pub(super) after: Option<NewFile>,
}

impl Change {
    /// Whether both change the same version of a file to the same content.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let after = |change: &Self| change.after.as_ref().map(|file| file.sha256);
        self.path == other.path && self.before == other.before && after(self) == after(other)
    }
}

/// The digests of stored files by path; `None` for content that is damaged or lost.
pub(super) type Digests = BTreeMap<String, Option<Digest>>;

/// The result of a comparison.
#[derive(Debug, Default)]
pub(super) struct Compared {
    pub(super) skills: Vec<PlannedSkill>,
    pub(super) files: Vec<FileChange>,
    pub(super) changes: Vec<Change>,
}

/// A library before a change.
pub(super) struct LibraryBefore<'a> {
    pub(super) tree: &'a Union,
    /// Pinned skills, with their release.
    pub(super) pins: BTreeMap<String, u64>,
    /// Digests that were read because the tree does not have them.
    pub(super) digests: Digests,
}

/// Compares a library with the skills of a push.
pub(super) fn compare(
    before: &LibraryBefore<'_>,
    new: &NewLibrary,
    options: &PushOptions,
) -> Result<Compared> {
    let tree = before.tree;
    let mut found = Compared::default();
    let mut seen = BTreeSet::new();
    for skill in &new.skills {
        if !seen.insert(skill.path.as_str()) {
            let message = format!("the skill `{}` appears twice", shorten(&skill.path));
            return Err(
                Error::new(ErrorKind::InvalidInput, message).with_hint("give each skill its own path")
            );
        }
        found.skills.push(before.compare_skill(skill, options));
    }
    if options.delete {
        let category = options.category.as_deref().unwrap_or_default();
        let gone = |path: &&str| is_within(path, category) && !seen.contains(path);
        for path in tree.skills().map(|(path, _)| path.as_str()).filter(gone) {
            if new.only.as_ref().is_none_or(|only| only.contains(path)) {
                found.skills.push(before.deletion(path));
            }
        }
    }
    refuse_nested(tree, &mut found.skills);
    found.skills.sort_by(|one, other| one.path.cmp(&other.path));
    for (path, file) in &new.files {
        found.files.extend(before.compare_file(path, path, file.as_ref()));
    }
    let new_files: BTreeMap<String, &NewFile> = paths(new).collect();
    let changing = |action| matches!(action, Action::Create | Action::Update | Action::Delete);
    let of_skills = found.skills.iter().filter(|skill| changing(skill.action)).flat_map(|skill| {
        skill.files.iter().map(move |file| (format!("{}/{}", skill.path, file.name), file.change))
    });
    let loose = found.files.iter().map(|file| (file.name.clone(), file.change));
    let changes = of_skills.chain(loose).map(|(path, action)| {
        let after = new_files.get(&path).filter(|_| action != FileAction::Remove);
        before.change(&path, after.copied())
    });
    found.changes = changes.collect();
    found.changes.sort_by(|one, other| one.path.cmp(&other.path));
    found.changes.dedup_by(|one, other| one.path == other.path);
    Ok(found)
}

/// Compares a library with a complete set of files. Pinned skills stay unchanged.
pub(super) fn diff(before: &LibraryBefore<'_>, after: &BTreeMap<String, NewFile>) -> Compared {
    let mut found = Compared::default();
    let skills = find_skills(after.keys().map(String::as_str));
    let old: BTreeSet<&str> = before.tree.skills().map(|(path, _)| path.as_str()).collect();
    let owner = |path: &str| {
        parents(path).find(|parent| skills.contains_key(*parent) || old.contains(parent)).map(str::to_owned)
    };
    let paths: BTreeSet<&str> =
        after.keys().map(String::as_str).chain(before.tree.files_in("").map(|(path, _)| path)).collect();
    let mut rows: BTreeMap<String, PlannedSkill> = BTreeMap::new();
    for path in paths {
        let owner = owner(path);
        let name = owner.as_ref().map_or(path, |skill| &path[skill.len() + 1..]);
        let changed = before.compare_file(path, name, after.get(path));
        let Some(skill) = owner else {
            found.changes.extend(changed.as_ref().map(|_| before.change(path, after.get(path))));
            found.files.extend(changed);
            continue;
        };
        let row = rows.entry(skill.clone()).or_insert_with(|| {
            let action = match (old.contains(skill.as_str()), skills.contains_key(skill.as_str())) {
                (false, _) => Action::Create,
                (true, false) => Action::Delete,
                (true, true) => Action::Unchanged,
            };
            PlannedSkill { path: skill.clone(), action, files: Vec::new(), why: None, hint: None }
        });
        let Some(changed) = changed else { continue };
        if let Some(release) = before.pins.get(&skill) {
            row.action = Action::Pinned;
            row.why = Some(format!("it is pinned to release {release}"));
            continue;
        }
        if row.action == Action::Unchanged {
            row.action = Action::Update;
        }
        found.changes.push(before.change(path, after.get(path)));
        row.files.push(changed);
    }
    found.skills = rows.into_values().collect();
    found
}

impl LibraryBefore<'_> {
    fn change(&self, path: &str, after: Option<&NewFile>) -> Change {
        let before = self.tree.file(path).map(|found| found.meta.etag.clone().unwrap_or_default());
        Change { path: path.to_owned(), before, after: after.cloned() }
    }

    fn compare_file(&self, path: &str, name: &str, new: Option<&NewFile>) -> Option<FileChange> {
        let (change, size) = match (self.tree.file(path), new) {
            (None, None) => return None,
            (None, Some(new)) => (FileAction::Add, new.size),
            (Some(there), None) => (FileAction::Remove, there.meta.size),
            (Some(there), Some(new)) => {
                let indexed = there.blob.as_ref().map(|blob| blob.sha256);
                let known = self.digests.get(path).copied().unwrap_or(indexed);
                if there.meta.size == new.size && known == Some(new.sha256) {
                    return None;
                }
                (FileAction::Change, new.size)
            }
        };
        Some(FileChange { name: name.to_owned(), change, size })
    }

    fn compare_skill(&self, new: &NewSkill, options: &PushOptions) -> PlannedSkill {
        let (tree, path) = (self.tree, &new.path);
        let planned =
            |action, files, why| PlannedSkill { path: path.clone(), action, files, why, hint: None };
        let refuse = |why: &str| planned(Action::Refused, Vec::new(), Some(why.to_owned()));
        if let Some(why) = &new.refused {
            return refuse(why);
        }
        if new.file().is_none() {
            return refuse("it has no SKILL.md");
        }
        if let Some(release) = self.pins.get(path) {
            let why = format!("it is pinned to release {release}");
            let hint = Some(Hint::Unpin(path.clone()));
            return PlannedSkill { hint, ..planned(Action::Pinned, Vec::new(), Some(why)) };
        }
        let there = tree.skill(path).is_some();
        // Files of a nested skill do not count: `refuse_nested` handles that skill.
        let loose =
            tree.files_in(path).filter(|(name, _)| tree.skill_of(&format!("{path}/{name}")).is_none());
        let loose: Vec<_> = loose.map(|(name, _)| format!("`{name}`")).take(3).collect();
        if !there && !loose.is_empty() && !options.overwrite {
            let names = loose.join(", ");
            let why = format!("there are files that belong to no skill ({names})");
            return PlannedSkill { hint: Some(Hint::Overwrite), ..refuse(&why) };
        }
        let names: BTreeMap<&str, &NewFile> =
            new.files.iter().map(|file| (file.name.as_str(), file)).collect();
        let all: BTreeSet<&str> =
            names.keys().copied().chain(tree.files_in(path).map(|(name, _)| name)).collect();
        let differing = all
            .into_iter()
            .filter_map(|name| self.compare_file(&format!("{path}/{name}"), name, names.get(name).copied()));
        let files: Vec<_> = differing.collect();
        let action = match (there, files.is_empty()) {
            (false, _) => Action::Create,
            (true, true) => Action::Unchanged,
            (true, false) => Action::Update,
        };
        planned(action, files, None)
    }

    fn deletion(&self, path: &str) -> PlannedSkill {
        let removed = |(name, file): (&str, &UnionFile)| FileChange {
            name: name.to_owned(),
            change: FileAction::Remove,
            size: file.meta.size,
        };
        let (action, why) = match self.pins.get(path) {
            Some(release) => (Action::Pinned, Some(format!("it is pinned to release {release}"))),
            None => (Action::Delete, None),
        };
        PlannedSkill {
            path: path.to_owned(),
            action,
            files: self.tree.files_in(path).map(removed).collect(),
            why,
            hint: None,
        }
    }
}

/// Refuses skills inside of other skills: they would be part of the outer skill.
fn refuse_nested(tree: &Union, skills: &mut [PlannedSkill]) {
    let coming: BTreeSet<String> = skills
        .iter()
        .filter(|skill| !matches!(skill.action, Action::Delete | Action::Refused))
        .map(|skill| skill.path.clone())
        .collect();
    let there: BTreeSet<&str> = tree.skills().map(|(path, _)| path.as_str()).collect();
    for skill in skills.iter_mut().filter(|skill| skill.action == Action::Create) {
        let above = parents(&skill.path).find(|parent| there.contains(parent) || coming.contains(*parent));
        let prefix = format!("{}/", skill.path);
        let mut all = there.iter().copied().chain(coming.iter().map(String::as_str));
        let nested = match (above, all.find(|path| path.starts_with(&prefix))) {
            (Some(other), _) => format!("it is inside the skill `{other}`"),
            (_, Some(other)) => format!("the skill `{other}` is inside it"),
            (None, None) => continue,
        };
        let why = format!("{nested}, and would be a part of it; delete that one first");
        (skill.action, skill.why) = (Action::Refused, Some(why));
    }
}

/// Counts the files of a plain library that the changes do not replace.
pub(super) fn adopted(tree: &Union, found: &Compared) -> Adopted {
    let changed: BTreeSet<&str> = found.changes.iter().map(|change| change.path.as_str()).collect();
    let kept = || tree.files_in("").filter(|(path, _)| !changed.contains(path));
    let untouched = |path: &str| {
        tree.files_in(path).all(|(name, _)| !changed.contains(format!("{path}/{name}").as_str()))
    };
    Adopted {
        skills: tree.skills().filter(|(path, _)| untouched(path.as_str())).count() as u64,
        files: kept().count() as u64,
        bytes: kept().map(|(_, file)| file.meta.size).sum(),
        left_out: tree.left_out(),
    }
}

/// Every new file, by path below the library.
pub(super) fn paths(new: &NewLibrary) -> impl Iterator<Item = (String, &NewFile)> {
    let of_skills = new.skills.iter().flat_map(|skill| {
        skill.files.iter().map(move |file| (format!("{}/{}", skill.path, file.name), file))
    });
    let loose = new.files.iter().filter_map(|(path, file)| Some((path.clone(), file.as_ref()?)));
    of_skills.chain(loose)
}
