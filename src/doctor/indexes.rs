//! Whether a library's index is there, can be read, and says what is in the library.

use super::{Check, Line, arn, flag, shell};
use crate::admin::{Problem, check_replaceable, index_problems};
use crate::backend::{S3Backend, Union};
use crate::error::ErrorKind;
use crate::mount::Library;
use crate::store::{Reason, Trouble};

/// So many names are told of what differs.
const NAMES: usize = 3;

/// The session has this one library.
pub(super) async fn look(backend: &S3Backend, library: &Library, line: &mut Line) -> Check {
    const NAME: &str = "index";
    let backend = backend.fresh();
    let union = match backend.union_all().await {
        Ok(union) => union,
        Err(error) => {
            line.note_error(&error);
            return Check::failed(NAME, &error);
        }
    };
    let flag = flag(library);
    let write = format!("`skillfs admin index {flag}`");
    let repair = format!("`skillfs admin verify {flag} --repair`");
    if union.is_empty() && union.index_etag(0).is_none() {
        return Check::note(NAME, "the library is empty").fix(format!("`skillfs admin push DIR {flag}`"));
    }
    let problems = index_problems(&union, backend.server_time());
    let told = |code: &str| problems.iter().find(|problem| problem.code == code);
    if told("bad-index").is_some() {
        return match check_replaceable(&backend, library).await {
            Ok(()) => Check::wrong(NAME, "damaged: it cannot be read, and is not used")
                .fix(format!("{repair}; releases that only it knew are lost")),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                Check::wrong(NAME, "a later version of skillfs wrote it; this one does not use it")
                    .fix("use that version of skillfs")
            }
            Err(error) => Check::failed(NAME, &error),
        };
    }
    if told("no-index").is_some() {
        // Readers take one that is refused for none.
        let (store, key) = (backend.store(), library.index());
        // One that is not there may look refused to those who may list prefixes only; a listing tells.
        let refused = matches!(store.try_read(key.key()).await, Err(Trouble { reason: Reason::Refused, .. }));
        if refused && !(store.is_confined() && matches!(store.lists(key.key()).await, Ok(false))) {
            let allow = arn(store, library.records().as_str());
            return Check::warning(NAME, format!("`{}` may not be read, or is not there", key.as_str()))
                .fix(format!("allow s3:GetObject on {allow}; if it is, {write}"));
        }
        return Check::note(NAME, "there is none: a catalogue costs a request for each skill").fix(write);
    }
    let stale = stale(&union, &problems);
    if let Some(interrupted) = told("interrupted") {
        // The message names a flag of another command; the line below says it all.
        let found = interrupted.message.split(": ").next().unwrap_or(&interrupted.message);
        return Check::warning(
            NAME,
            format!("{found}; readers see all of it, and some files are still to be written"),
        )
        .fix(format!("{repair}, or push again"));
    }
    if let Some(under_way) = told("under-way") {
        return Check::note(NAME, under_way.message.clone());
    }
    if !stale.is_empty() {
        let names: Vec<_> = stale.iter().take(NAMES).map(|name| format!("`{name}`")).collect();
        let more = match stale.len().saturating_sub(NAMES) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let count = match stale.len() {
            1 => "1 skill differs".to_owned(),
            many => format!("{many} skills differ"),
        };
        let found = format!("stale: {count} from what it says: {}{more}", names.join(", "));
        // What was published and changed by hand is not accepted by indexing it.
        let published = |name: &str| {
            union
                .index(0)
                .and_then(|index| index.skills.get(name))
                .is_some_and(|skill| skill.managed.is_some())
        };
        let fix = match stale.iter().any(|name| published(name)) {
            true => format!("{repair} accepts what was changed by hand; or push it again with `--overwrite`"),
            false => write,
        };
        return Check::warning(NAME, found).fix(fix);
    }
    if let Some(pin) = told("lost-pin") {
        return Check::warning(NAME, format!("`{}`: {}", pin.path, pin.message))
            .fix(format!("`skillfs admin unpin {} {flag}`", shell(&pin.path)));
    }
    Check::good(
        NAME,
        match union.skills().count() {
            1 => "fresh: it knows the 1 skill".to_owned(),
            skills => format!("fresh: it knows all {skills} skills"),
        },
    )
}

/// Skills that are not as the index says, each once; and categories whose description is not.
fn stale<'p>(union: &'p Union, problems: &'p [Problem]) -> Vec<&'p str> {
    let differs =
        |problem: &&Problem| matches!(problem.code, "not-indexed" | "changed-by-hand" | "not-there");
    let mut names: Vec<_> = problems.iter().filter(differs).map(|problem| problem.path.as_str()).collect();
    let described = union.descriptions().filter(|(path, _)| union.indexed_category(path).is_none());
    names.extend(described.map(|(path, _)| path));
    names.sort_unstable();
    names.dedup();
    names
}
