//! Formats plans and their results: tables and summaries as text, one document as JSON.
//!
//! The commands in `publish`, `import` and `push_users` do the publishing.

use serde::Serialize;
use skillfs::Library;
use skillfs::admin::{Action, Drift, FileAction, FileChange, Plan, PlannedSkill, Published};

use super::hints::{Invocation, render};
use super::output::Output;
use super::terminal::{ACCENT, BAD, GOOD, plural, size, visible};
use skillfs::Hint;

/// The maximum number of skills, and of other files, that a plan lists. The rest is counted.
const MAX_ROWS: usize = 200;
/// The maximum number of changed keys that are listed.
const MAX_DRIFT: usize = 20;

/// A plan as a table; with `files`, also every changed file.
pub(super) fn show(plan: &Plan, files: bool) -> String {
    let mut text = String::new();
    let listed: Vec<&PlannedSkill> =
        plan.skills.iter().filter(|skill| skill.action != Action::Unchanged).collect();
    let loose = &plan.files[..plan.files.len().min(MAX_ROWS)];
    let paths = listed.iter().take(MAX_ROWS).map(|skill| &skill.path);
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
    for skill in listed.iter().take(MAX_ROWS) {
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
    let more = listed.len().saturating_sub(MAX_ROWS) + (plan.files.len() - loose.len());
    if more > 0 {
        text += &format!("… and {more} more\n");
    }
    if let Some(adopted) = &plan.adopted {
        text += &format!(
            "{ACCENT}adopt{ACCENT:#}    {} and {} ({} to read)\n",
            plural(adopted.skills, "existing skill", "existing skills"),
            plural(adopted.files, "file", "files"),
            size(adopted.bytes)
        );
        if adopted.left_out > 0 {
            let keys = plural(adopted.left_out, "folder marker or key", "folder markers or keys");
            text += &format!("         not adopted: {keys} without a valid path\n");
        }
        text += "         later uploads by other tools are hidden until `admin index`\n";
    }
    text + &format!("{}: {}\n", plan.library, counts(plan))
}

/// A message with its hint.
pub(super) fn explained(what: &str, hint: Option<&Hint>) -> String {
    match hint {
        Some(hint) => format!("{what}; {}", render(hint, &Invocation::default())),
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

/// `+1 ~2 -1  4.1 KiB`: files added, changed and removed, and the size of the new ones.
fn changes(files: &[FileChange]) -> String {
    let count = |change: FileAction| files.iter().filter(|file| file.change == change).count();
    let all = [FileAction::Add, FileAction::Change, FileAction::Remove].into_iter();
    let nonzero = all.filter(|change| count(*change) > 0);
    let counts: Vec<_> = nonzero.map(|change| format!("{}{}", mark(change), count(change))).collect();
    let stored = files.iter().filter(|file| file.change != FileAction::Remove);
    match stored.map(|file| file.size).sum() {
        0 => counts.join(" "),
        bytes => format!("{}  {}", counts.join(" "), size(bytes)),
    }
}

/// What a plan would do, in one line.
pub(super) fn counts(plan: &Plan) -> String {
    let parts = parts(plan, ["to create", "to update", "to delete"]);
    match (parts.is_empty(), plan.adopted) {
        (false, _) => parts,
        (true, Some(_)) => "to be published unchanged".to_owned(),
        (true, None) => "nothing to publish".to_owned(),
    }
}

/// The nonzero counts of skills, then the other changes of the plan. The three labels are for created, updated and
/// deleted skills.
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

/// What was published, in one line.
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
        None => format!("wrote to {library} (plain, no release)"),
    };
    let what = if parts.is_empty() { parts } else { format!(": {parts}") };
    let uploaded = plural(published.uploaded, "file", "files");
    format!("{done}{what}; uploaded {uploaded} ({})", size(published.uploaded_bytes))
}

/// Notes what a release left to do in the mirror. Sessions are not affected.
pub(super) fn note_published(published: &Published, output: &Output, prefix: &str) {
    note_drift(&published.drift, output);
    if let Some(why) = &published.mirror_error {
        output.note(&format!(
            "{prefix}the release is published, but its mirror is incomplete until the next push or `admin verify --repair`: {why}"
        ));
    }
    if let Some(release) = published.uploaded_meanwhile {
        output.note(&format!("{prefix}files uploaded in the meantime were published as release {release}"));
    }
}

/// Notes keys of the mirror that other tools have changed.
pub(super) fn note_drift(drift: &[Drift], output: &Output) {
    for Drift { path, change, .. } in drift.iter().take(MAX_DRIFT) {
        let done = change.done();
        output.note(&format!("`{path}` was {done} by another tool; it was kept, but sessions do not see it"));
    }
    if drift.len() > MAX_DRIFT {
        output.note(&format!("… and {} more", drift.len() - MAX_DRIFT));
    }
    if !drift.is_empty() {
        output.note("publish these changes with `admin index`, or revert them with `admin verify --repair --overwrite`");
    }
}

/// The JSON document of a plan and its result.
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
