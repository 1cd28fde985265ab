//! The decisions of publishing, as pure functions: when a release is committed, what the mirror does with a
//! key, which releases stay listed, what prune may delete.
//!
//! The publisher calls these and does the I/O; `model` explores every interleaving of the same functions.
//! docs/design/publishing.md explains the protocol.

use std::time::Duration;

pub(super) use crate::config::Retention;

/// How a commit stands after a response that was lost or a condition that failed, by the index read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Commit {
    /// Our release is listed: it took effect.
    Done,
    /// The index is still the one the commit is conditional on: send the same bytes again.
    Resend,
    /// Another release was committed first: plan again on top of it.
    Lost,
    /// Too much time has passed: our release may have been committed and dropped from the list since, or the
    /// request may still be on its way. Report that the outcome is not known.
    Unknown,
}

/// Decides by the index as it is now: whether it lists our release, and whether it is still the one we saw.
/// `expired` is `push_expired`.
pub(super) fn commit(lists_ours: bool, is_base: bool, expired: bool) -> Commit {
    match (lists_ours, is_base) {
        (true, _) => Commit::Done,
        (false, _) if expired => Commit::Unknown,
        (false, true) => Commit::Resend,
        (false, false) => Commit::Lost,
    }
}

/// Which releases stay listed, oldest first: the newest, those superseded within the grace period, and the
/// pinned ones. `superseded` is when the next release was committed, in seconds; `None` for the newest.
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

/// Whether prune may delete an object: no listed release names it, and it was older than the grace period when
/// prune began to read the index (its age by the time of a later listing would not do: a push may have committed
/// it since). Blob keys are never reused, and a push gives up long before that age: so this stays true once it is.
pub(super) fn is_garbage(named: bool, age: Duration, retention: Retention) -> bool {
    !named && age > retention.grace
}

/// A push gives up so long after its first upload, of a blob or of its record: what it uploaded is far from being
/// pruned until then.
pub(super) fn push_expired(since_first_upload: Duration, retention: Retention) -> bool {
    since_first_upload > retention.grace / 7
}

/// What is known of one key of the mirror.
#[derive(Debug, Clone, Copy)]
pub(super) struct MirrorKey<'a, D, E> {
    /// The content that the newest release has at this path.
    pub(super) wanted: Option<&'a D>,
    /// The content that belongs to `recorded`: what the mirrored release has at this path, or what we wrote
    /// ourselves before starting again. `None` when there is none or it is not known.
    pub(super) mirrored: Option<&'a D>,
    /// The ETag that the mirror's record has for the key. A key that was found removed by someone else stays
    /// recorded with an ETag that no key has, so that the next run still knows.
    pub(super) recorded: Option<&'a E>,
    /// The ETag that the key has; `None` when it does not exist.
    pub(super) present: Option<&'a E>,
    /// What the key contains, where that was read, and whether a listed release has this content at this path.
    pub(super) content: Option<(&'a D, bool)>,
}

/// What the mirror does with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// It is as it should be.
    Keep,
    /// Write the wanted content, on the condition that the key is still as it was seen.
    Write,
    /// Delete it, on the same condition.
    Delete,
    /// Read it first: only its content tells whose it is.
    Look,
    /// Someone else changed it: report it and leave it alone.
    Drift,
}

/// Decides about one key. `complete`: the mirror was known to be complete, so that a key that is missing was
/// removed by someone else. `overwrite`: drift is replaced.
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

/// Whether the mirror can be brought up to date without listing it: it is settled at the release that the
/// new one was made on. Not when starting again: then someone else has been writing at the same time.
pub(super) fn needs_no_listing(is_at_base: bool, settled: bool) -> bool {
    is_at_base && settled
}

/// Whether the mirror is settled after it was listed and brought up to date: whoever wrote to it before has had
/// an hour, so none of their writes is still on its way. The time is that between the listing and the last
/// release by anyone else, or the last change of the mirror's record if that was later. However the mirror was
/// brought up to date, it is not settled while one of our own writes is without a response.
pub(super) fn is_settled(since_others_wrote: Duration) -> bool {
    since_others_wrote > Duration::from_secs(3600)
}

/// A mirror is written only so long after the commit that it follows (`repair`: after it marked the mirror as
/// not settled). The rest of the hour that `is_settled` waits is for requests that are still on their way.
pub(super) fn mirror_expired(since_start: Duration) -> bool {
    since_start > Duration::from_secs(1800)
}
