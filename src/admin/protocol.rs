//! The decisions of publishing, as pure functions: whether a release is committed, what the mirror does with a key,
//! which releases stay listed, and what prune may delete.
//!
//! The publisher calls them and does the I/O. `model` explores every interleaving of the same functions.
//! docs/design/publishing.md explains the protocol.

use std::time::Duration;

pub(super) use crate::config::Retention;

/// The outcome of a commit whose response was lost or whose condition failed, determined by reading the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Commit {
    /// The index lists our release: the commit took effect.
    Done,
    /// The index is unchanged: send the same bytes again.
    Resend,
    /// Another release was committed first: plan again on top of it.
    Lost,
    /// Too much time has passed: our release may have been committed and then dropped from the list, or the request
    /// may still be in flight. Report that the outcome is unknown.
    Unknown,
}

/// Determines the outcome from the current index: whether it lists our release, and whether it is still the one that
/// the commit is conditional on. `expired` is the result of `push_expired`.
pub(super) fn commit(lists_ours: bool, is_base: bool, expired: bool) -> Commit {
    match (lists_ours, is_base) {
        (true, _) => Commit::Done,
        (false, _) if expired => Commit::Unknown,
        (false, true) => Commit::Resend,
        (false, false) => Commit::Lost,
    }
}

/// Whether a release stays listed: it is among the newest, was superseded within the grace period, or is pinned.
/// `superseded` is the time of the next release in seconds; `None` for the newest.
pub(super) fn stays_listed(
    from_newest: usize,
    superseded: Option<u64>,
    pinned: bool,
    now: u64,
    retention: Retention,
) -> bool {
    let recent = superseded.is_none_or(|at| now.saturating_sub(at) < retention.grace.as_secs());
    from_newest < retention.releases || recent || pinned
}

/// Whether prune may delete an object: no listed release names it, and it was older than the grace period when prune
/// started to read the index. (Its age at the later listing is not enough: a push may have committed it in between.)
/// Once true, this stays true: blob keys are never reused, and a push gives up long before an object reaches that age.
pub(super) fn is_garbage(named: bool, age: Duration, retention: Retention) -> bool {
    !named && age > retention.grace
}

/// Whether a push must give up, by the time since its first upload of a blob or record. Its uploads are then still far
/// from being pruned.
pub(super) fn push_expired(since_first_upload: Duration, retention: Retention) -> bool {
    since_first_upload > retention.grace / 7
}

/// The facts about one key of the mirror that a decision is based on.
#[derive(Debug, Clone, Copy)]
pub(super) struct MirrorKey<'a, D, E> {
    /// The content that the newest release has at this path.
    pub(super) wanted: Option<&'a D>,
    /// The content that belongs to `recorded`: that of the mirrored release at this path, or what this process wrote
    /// before it started over. `None` if there is none or it is unknown.
    pub(super) mirrored: Option<&'a D>,
    /// The recorded ETag of the key. A key that another tool removed stays recorded, with an ETag that no object has,
    /// so that the next run can tell.
    pub(super) recorded: Option<&'a E>,
    /// The current ETag of the key; `None` if it does not exist.
    pub(super) present: Option<&'a E>,
    /// The content of the key, if it was read, and whether a listed release has this content at this path.
    pub(super) content: Option<(&'a D, bool)>,
}

/// What the mirror does with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// The key is up to date.
    Keep,
    /// Write the wanted content, if the key still has the version that was seen.
    Write,
    /// Delete the key, on the same condition.
    Delete,
    /// Read the key first: only its content shows who wrote it.
    Look,
    /// Another tool changed the key: report it and leave it unchanged.
    Drift,
}

/// Decides about one key. `complete`: the mirror was complete, so another tool removed a key that is missing.
/// `overwrite`: replace drift.
pub(super) fn act<D: PartialEq, E: PartialEq>(
    key: &MirrorKey<'_, D, E>,
    complete: bool,
    overwrite: bool,
) -> Act {
    let replace = if key.wanted.is_some() { Act::Write } else { Act::Delete };
    match key.present {
        None if key.wanted.is_none() => Act::Keep,
        None if complete && key.recorded.is_some() && !overwrite => Act::Drift,
        None => Act::Write,
        Some(_) if key.present == key.recorded => {
            if key.wanted.is_some() && key.wanted == key.mirrored {
                Act::Keep
            } else {
                replace
            }
        }
        Some(_) => match key.content {
            None => Act::Look,
            Some((content, _)) if key.wanted == Some(content) => Act::Keep,
            Some((_, listed)) if listed || overwrite => replace,
            Some(_) => Act::Drift,
        },
    }
}

/// Whether the mirror can be brought up to date without a listing: it is settled at the release that the new one is
/// based on. Not after starting over, since another publisher was writing concurrently.
pub(super) fn needs_no_listing(is_at_base: bool, settled: bool) -> bool {
    is_at_base && settled
}

/// Whether the mirror is settled after it was listed and brought up to date: other publishers have been quiet for an
/// hour, so none of their writes is still in flight. The time is measured from the last release by another process, or
/// the last change of the mirror's record if that was later, to the listing. The mirror is never settled while one of
/// our own writes has no response.
pub(super) fn is_settled(since_others_wrote: Duration) -> bool {
    since_others_wrote > Duration::from_secs(3600)
}

/// Whether a publisher must stop writing the mirror, by the time since its commit (`repair`: since it marked the mirror
/// as not settled). The rest of the hour in `is_settled` is for requests that are still in flight.
pub(super) fn mirror_expired(since_start: Duration) -> bool {
    since_start > Duration::from_secs(1800)
}
