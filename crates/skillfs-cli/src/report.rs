//! How a plan and what came of it are shown: tables and summaries for people, one JSON document for machines.
//!
//! Nothing here decides or publishes; the commands in `publish`, `import` and `push_users` do.

use serde::Serialize;
use skillfs::Library;
use skillfs::admin::{Action, Drift, FileAction, FileChange, Plan, PlannedSkill, Published};

use super::hints::{Here, render};
use super::output::Output;
use super::terminal::{ACCENT, BAD, GOOD, plural, size, visible};
use skillfs::Hint;

/// Skills that a plan lists; the rest is counted.
const MOST_LISTED: usize = 200;
/// Keys that others have changed, listed one by one.
const MOST_DRIFT: usize = 20;

/// A plan, for people.
pub(super) fn show(plan: &Plan, files: bool) -> String {
    let mut text = String::new();
    let listed: Vec<&PlannedSkill> =
        plan.skills.iter().filter(|skill| skill.action != Action::Unchanged).collect();
    let loose = &plan.files[..plan.files.len().min(MOST_LISTED)];
    let paths = listed.iter().take(MOST_LISTED).map(|skill| &skill.path);
    let paths = paths.chain(loose.iter().map(|file| &file.name));
    let width = paths.map(|path| path.chars().count()).max().unwrap_or(0).min(48);
    let row = |action, path: &str, what: &str| {
        let (word, style) = match action {
            Action::Create => ("create", GOOD),
            Action::Update => ("update", ACCENT),
            Action::Delete => ("delete", BAD),
            Action::Refused => ("refused", BAD),
            Action::Pinned => ("pinned", ACCENT),
            _ => ("unchanged", ACCENT),
        };
        format!("{style}{word:<8}{style:#} {:<width$}  {what}\n", visible(path, false))
    };
    for skill in listed.iter().take(MOST_LISTED) {
        let what = match &skill.why {
            Some(why) => visible(&explained(why, skill.hint.as_ref()), false),
            None => changes(&skill.files),
        };
        text += &row(skill.action, &skill.path, &what);
        for file in skill.files.iter().filter(|_| files && skill.why.is_none()) {
            let name = visible(&file.name, false);
            text += &format!("         {} {name} ({})\n", mark(file.change), size(file.size));
        }
    }
    for file in loose {
        let action = match file.change {
            FileAction::Add => Action::Create,
            FileAction::Remove => Action::Delete,
            _ => Action::Update,
        };
        text += &row(action, &file.name, &changes(std::slice::from_ref(file)));
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
    text + &format!("{}: {}\n", plan.library, counts(plan))
}

/// What was found, and what to do about it.
pub(super) fn explained(what: &str, hint: Option<&Hint>) -> String {
    match hint {
        Some(hint) => format!("{what}; {}", render(hint, &Here::default())),
        None => what.to_owned(),
    }
}

fn mark(change: FileAction) -> char {
    match change {
        FileAction::Add => '+',
        FileAction::Remove => '-',
        _ => '~',
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
    let parts = parts(plan, ["to create", "to update", "to delete"]);
    match (parts.is_empty(), plan.adopted) {
        (false, _) => parts,
        (true, Some(_)) => "to be published as it is".to_owned(),
        (true, None) => "nothing to publish".to_owned(),
    }
}

/// The counts of skills that are not 0, then what else the plan changes. The words are for what is created, updated
/// and deleted.
fn parts(plan: &Plan, [create, update, delete]: [&str; 3]) -> String {
    let skills = [
        (Action::Create, create),
        (Action::Update, update),
        (Action::Delete, delete),
        (Action::Unchanged, "unchanged"),
        (Action::Pinned, "pinned"),
        (Action::Refused, "refused"),
    ];
    let skills = skills.into_iter().map(|(action, word)| (plan.count(action), word));
    let skills = skills.filter(|(count, _)| *count > 0);
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
    let parts = parts(plan, ["created", "updated", "deleted"]);
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
        let done = change.done();
        output.note(&format!("`{path}`: {done} by others, and left alone; no session sees it"));
    }
    if drift.len() > MOST_DRIFT {
        output.note(&format!("and {} more like these", drift.len() - MOST_DRIFT));
    }
    if !drift.is_empty() {
        output.note("`admin index` publishes what others have changed; `admin verify --repair --overwrite` reverts it");
    }
}

/// A plan and what came of it, for machines.
#[derive(Serialize)]
pub(super) struct Report<'r> {
    #[serde(flatten)]
    pub(super) library: &'r Library,
    pub(super) dry_run: bool,
    pub(super) create: u64,
    pub(super) update: u64,
    pub(super) delete: u64,
    pub(super) unchanged: u64,
    pub(super) pinned: u64,
    pub(super) refused: u64,
    #[serde(flatten)]
    pub(super) plan: &'r Plan,
    #[serde(skip_serializing_if = "<[Drift]>::is_empty")]
    pub(super) drift: &'r [Drift],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) published: Option<&'r Published>,
}

impl<'r> Report<'r> {
    pub(super) fn of(plan: &'r Plan, dry_run: bool) -> Self {
        let count = |action| plan.count(action);
        Self {
            library: &plan.library,
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
}
