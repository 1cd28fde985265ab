//! How a plan and what came of it are shown: tables and summaries for people, one JSON document for machines.
//!
//! Nothing here decides or publishes; the commands in `publish`, `import` and `push_users` do.

use serde::Serialize;

use super::output::Output;
use super::terminal::{ACCENT, BAD, GOOD, plural, print, print_json, size, visible};
use crate::admin::{Action, Drift, FileAction, FileChange, Plan, PlannedSkill, Published};
use crate::error::Result;
use crate::mount::Library;

/// Skills that a plan lists; the rest is counted.
const MOST_LISTED: usize = 200;
/// Keys that others have changed, listed one by one.
const MOST_DRIFT: usize = 20;

/// A plan, for people.
pub(super) fn show(plan: &Plan, files: bool) -> Result<()> {
    let mut text = String::new();
    let listed: Vec<&PlannedSkill> =
        plan.skills.iter().filter(|skill| skill.action != Action::Unchanged).collect();
    let loose = &plan.files[..plan.files.len().min(MOST_LISTED)];
    let paths = listed.iter().take(MOST_LISTED).map(|skill| &skill.path);
    let paths = paths.chain(loose.iter().map(|file| &file.name));
    let width = paths.map(|path| path.chars().count()).max().unwrap_or(0).min(48);
    for skill in listed.iter().take(MOST_LISTED) {
        let (word, style) = match skill.action {
            Action::Create => ("create", GOOD),
            Action::Update => ("update", ACCENT),
            Action::Delete => ("delete", BAD),
            Action::Refused => ("refused", BAD),
            Action::Pinned => ("pinned", ACCENT),
            Action::Unchanged => ("unchanged", ACCENT),
        };
        let path = visible(&skill.path, false);
        let what = match &skill.why {
            Some(why) => visible(why, false),
            None => changes(&skill.files),
        };
        text += &format!("{style}{word:<8}{style:#} {path:<width$}  {what}\n");
        if files && skill.why.is_none() {
            text += &skill.files.iter().map(show_file).collect::<String>();
        }
    }
    for file in loose {
        let (word, style) = match file.change {
            FileAction::Add => ("create", GOOD),
            FileAction::Change => ("update", ACCENT),
            FileAction::Remove => ("delete", BAD),
        };
        let (path, what) = (visible(&file.name, false), changes(std::slice::from_ref(file)));
        text += &format!("{style}{word:<8}{style:#} {path:<width$}  {what}\n");
    }
    let more = listed.len().saturating_sub(MOST_LISTED) + (plan.files.len() - loose.len());
    if more > 0 {
        text += &format!("… and {more} more\n");
    }
    if let Some(adopted) = &plan.adopted {
        text += &format!(
            "{ACCENT}adopt{ACCENT:#}    {} and {} that are there already, {} to read\n",
            plural(adopted.skills, "skill", "skills"),
            plural(adopted.files, "file", "files"),
            size(adopted.bytes)
        );
        if adopted.left_out > 0 {
            let keys = plural(adopted.left_out, "folder marker or key", "folder markers or keys");
            text += &format!("         {keys} that no path can name: not adopted\n");
        }
        text += "         from then on, uploads by other programs are not visible until `admin index`\n";
    }
    text += &format!("{}: {}\n", plan.library, counts(plan));
    print(&text)
}

fn show_file(file: &FileChange) -> String {
    format!("         {} {} ({})\n", mark(file.change), visible(&file.name, false), size(file.size))
}

fn mark(change: FileAction) -> char {
    match change {
        FileAction::Add => '+',
        FileAction::Change => '~',
        FileAction::Remove => '-',
    }
}

/// `+1 ~2 -1, 4.1 KiB`.
fn changes(files: &[FileChange]) -> String {
    let count = |change: FileAction| files.iter().filter(|file| file.change == change).count();
    let all = [FileAction::Add, FileAction::Change, FileAction::Remove].into_iter();
    let there = all.filter(|change| count(*change) > 0);
    let counts: Vec<_> = there.map(|change| format!("{}{}", mark(change), count(change))).collect();
    let stored = files.iter().filter(|file| file.change != FileAction::Remove);
    match stored.map(|file| file.size).sum() {
        0 => counts.join(" "),
        bytes => format!("{}  {}", counts.join(" "), size(bytes)),
    }
}

pub(super) fn counts(plan: &Plan) -> String {
    let skills = [
        (plan.count(Action::Create), "to create"),
        (plan.count(Action::Update), "to update"),
        (plan.count(Action::Delete), "to delete"),
        (plan.count(Action::Unchanged), "unchanged"),
        (plan.count(Action::Pinned), "pinned"),
        (plan.count(Action::Refused), "refused"),
    ];
    let parts = parts(plan, skills);
    match (parts.is_empty(), plan.adopted) {
        (false, _) => parts,
        (true, Some(_)) => "to be published as it is".to_owned(),
        (true, None) => "nothing to publish".to_owned(),
    }
}

/// The counts of skills that are not 0, then what else the plan changes.
fn parts(plan: &Plan, skills: [(u64, &str); 6]) -> String {
    let skills = skills.into_iter().filter(|(count, _)| *count > 0);
    let mut parts: Vec<_> = skills.map(|(count, word)| format!("{count} {word}")).collect();
    if !plan.files.is_empty() {
        parts.push(plural(plan.files.len() as u64, "other file", "other files"));
    }
    parts.extend(plan.pins.iter().map(|(skill, release)| match release {
        Some(release) => format!("`{}` pinned to release {release}", visible(skill, false)),
        None => format!("`{}` no longer pinned", visible(skill, false)),
    }));
    parts.join(", ")
}

pub(super) fn summary(plan: &Plan, published: &Published) -> String {
    let library = &plan.library;
    if published.release.is_none() && (plan.makes_release || !plan.changes()) {
        return match (published.refused, published.pinned) {
            (0, 0) => format!("{library} is up to date"),
            (refused, pinned) => {
                format!("nothing was published to {library}: {refused} refused, {pinned} pinned")
            }
        };
    }
    let skills = [
        (published.created, "created"),
        (published.updated, "updated"),
        (published.deleted, "deleted"),
        (published.unchanged, "unchanged"),
        (published.pinned, "pinned"),
        (published.refused, "refused"),
    ];
    let parts = parts(plan, skills);
    let done = match published.release {
        Some(release) => format!("published release {release} of {library}"),
        None => format!("wrote to {library}, which is plain"),
    };
    let what = if parts.is_empty() { parts } else { format!(": {parts}") };
    let uploaded = plural(published.uploaded, "file", "files");
    format!("{done}{what}; {uploaded} uploaded, {}", size(published.uploaded_bytes))
}

/// What a release has left undone: none of it matters to sessions.
pub(super) fn tell_published(published: &Published, output: &Output, whose: &str) {
    tell_drift(&published.drift, output);
    if let Some(why) = &published.mirror_error {
        output.note(&format!(
            "{whose}the release is published; its plain keys are incomplete until the next push or `admin verify --repair`: {why}"
        ));
    }
    if let Some(release) = published.uploaded_meanwhile {
        output.note(&format!("{whose}what was uploaded meanwhile is release {release}"));
    }
}

pub(super) fn tell_drift(drift: &[Drift], output: &Output) {
    for Drift { path, change, .. } in drift.iter().take(MOST_DRIFT) {
        let what = match change {
            FileAction::Add => "added",
            FileAction::Change => "changed",
            FileAction::Remove => "removed",
        };
        output.note(&format!("`{path}`: {what} by others, and left alone; no session sees it"));
    }
    if drift.len() > MOST_DRIFT {
        output.note(&format!("and {} more like these", drift.len() - MOST_DRIFT));
    }
    if !drift.is_empty() {
        output.note("`admin index` publishes what others have changed; `admin verify --repair --overwrite` reverts it");
    }
}

/// Whose a library is: the first key of documents about it.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Whose<'a> {
    User(&'a str),
    Library(&'a str),
}

impl<'a> From<&'a Library> for Whose<'a> {
    fn from(library: &'a Library) -> Self {
        match library {
            Library::User(user) => Self::User(user.as_str()),
            Library::Shared(library) => Self::Library(library.as_str()),
        }
    }
}

/// A plan and what came of it, for machines.
#[derive(Serialize)]
pub(super) struct Report<'r> {
    #[serde(flatten)]
    whose: Whose<'r>,
    dry_run: bool,
    create: u64,
    update: u64,
    delete: u64,
    unchanged: u64,
    pinned: u64,
    refused: u64,
    #[serde(flatten)]
    plan: &'r Plan,
    #[serde(skip_serializing_if = "<[Drift]>::is_empty")]
    pub(super) drift: &'r [Drift],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) published: Option<&'r Published>,
}

impl<'r> Report<'r> {
    pub(super) fn of(plan: &'r Plan, dry_run: bool) -> Self {
        let count = |action| plan.count(action);
        Self {
            whose: (&plan.library).into(),
            dry_run,
            create: count(Action::Create),
            update: count(Action::Update),
            delete: count(Action::Delete),
            unchanged: count(Action::Unchanged),
            pinned: count(Action::Pinned),
            refused: count(Action::Refused),
            plan,
            drift: &[],
            published: None,
        }
    }

    pub(super) fn print(&self) -> Result<()> {
        print_json(self)
    }
}
