//! The scenarios, and the violations that must and must not be found in them.

#![cfg(test)]

use super::*;

fn push(id: u8, want: Contents) -> Proc {
    Proc::Push(Push::new(Goal::Push, id, want))
}

fn quick(id: u8, want: Contents) -> Proc {
    Proc::Push(Push::quick(id, want))
}

fn index(id: u8) -> Proc {
    Proc::Scan(Scan::new(id))
}

fn repair() -> Proc {
    Proc::Mirror(Mirror::repair(20, false))
}

fn overwrite() -> Proc {
    Proc::Mirror(Mirror::repair(21, true))
}

fn publish() -> Proc {
    Proc::Push(Push::new(Goal::Publish, 2, [KEEP; PATHS]))
}

fn unpublish() -> Proc {
    Proc::Mirror(Mirror::unpublish(22))
}

fn reader(replica: bool) -> Proc {
    Proc::Reader(Reader::new(replica))
}

const PRUNE: Proc = Proc::Prune(Prune::Start);
const DRIFT: Proc = Proc::Drift(0);

impl Scenario {
    /// Starts with the files 1 and 2, without faults; pushes end when they have committed.
    fn new(name: &'static str, procs: impl Into<Vec<Proc>>) -> Self {
        Self {
            name,
            files: [1, 2],
            plain: false,
            procs: procs.into(),
            drift: &[],
            killed: None,
            mirrors: false,
            ticks: 0,
            jumps: 0,
            faults: 0,
        }
    }

    /// Pushes continue with the mirror, and time may pass.
    fn mirror(name: &'static str, procs: impl Into<Vec<Proc>>) -> Self {
        Self { mirrors: true, ticks: 1, ..Self::new(name, procs) }
    }

    fn time(self, ticks: u8, jumps: u8) -> Self {
        Self { ticks, jumps, ..self }
    }

    fn faults(self, faults: u8) -> Self {
        Self { faults, ..self }
    }

    fn drift(self, drift: &'static [(usize, u8)]) -> Self {
        Self { drift, ..self }
    }

    fn killed(self, id: u8, want: Contents) -> Self {
        Self { killed: Some((id, want)), ..self }
    }

    fn plain(self, files: Contents) -> Self {
        Self { plain: true, files, ..self }
    }
}

fn pushes() -> Vec<Scenario> {
    let three = [quick(2, [3, KEEP]), quick(3, [KEEP, 4]), quick(4, [KEEP, 0])];
    vec![
        Scenario::new("same path", [push(2, [3, KEEP]), push(3, [4, KEEP])]).faults(2),
        Scenario::new("different paths", [push(2, [3, KEEP]), quick(3, [KEEP, 4])]).faults(2).time(2, 0),
        Scenario::new("three pushes", three).faults(1).time(0, 1),
    ]
}

fn prunes() -> Vec<Scenario> {
    let back = [quick(2, [3, KEEP]), quick(3, [KEEP, 4]), push(4, [1, KEEP]), PRUNE];
    let reuse = [quick(2, [3, KEEP]), quick(3, [4, KEEP]), push(4, [KEEP, 1]), PRUNE];
    vec![
        Scenario::new("prune and pushes", [push(2, [3, 1]), quick(3, [4, KEEP]), PRUNE]).faults(1).time(0, 1),
        Scenario::new("away and back", back).time(0, 1),
        Scenario::new("old base", reuse).time(0, 1),
    ]
}

fn mirrors() -> Vec<Scenario> {
    let back = [quick(2, [3, KEEP]), quick(3, [1, 4])];
    let restore = [quick(2, [0, KEEP]), quick(3, [1, KEEP])];
    let after = [quick(3, [1, KEEP]), quick(4, [3, 4])];
    let repaired = [quick(3, [1, KEEP]), repair()];
    vec![
        Scenario::mirror("there and back", back).faults(1),
        Scenario::mirror("remove and restore", restore).faults(1),
        Scenario::mirror("after a killed push", after).killed(2, [3, KEEP]),
        Scenario::mirror("repair and push", repaired).killed(2, [3, KEEP]).faults(1),
    ]
}

fn drifts() -> Vec<Scenario> {
    const BOTH: &[(usize, u8)] = &[(0, 5), (1, 0)];
    let overwritten = [quick(2, [3, KEEP]), overwrite(), DRIFT];
    vec![
        Scenario::mirror("drift and push", [quick(2, [3, 4]), DRIFT]).drift(BOTH).faults(1),
        Scenario::mirror("drift and removal", [quick(2, [0, 0]), DRIFT]).drift(BOTH).faults(1),
        Scenario::mirror("drift and repairs", [repair(), Proc::Mirror(Mirror::repair(19, false)), DRIFT])
            .drift(BOTH),
        Scenario::mirror("drift and repair", [repair(), DRIFT]).drift(BOTH).killed(2, [3, KEEP]).faults(1),
        Scenario::mirror("overwrite and push", overwritten).drift(&[(0, 5)]),
    ]
}

fn indexes() -> Vec<Scenario> {
    let back = [quick(2, [3, KEEP]), quick(3, [1, KEEP]), index(4)];
    let restore = [quick(2, [0, KEEP]), quick(3, [1, KEEP]), index(4)];
    vec![
        Scenario::mirror("index", [index(2), DRIFT]).drift(&[(0, 0), (1, 5)]).faults(1),
        Scenario::mirror("index and push", [quick(2, [3, KEEP]), index(3), DRIFT]).drift(&[(0, 5)]),
        Scenario::mirror("index, there and back", back).time(0, 0),
        Scenario::mirror("index, remove and restore", restore).time(0, 0),
    ]
}

fn readers() -> Vec<Scenario> {
    let replica = Proc::Replica(Replica::default());
    let old = [quick(2, [3, 4]), quick(3, [KEEP, 1]), PRUNE, reader(false)];
    let remote = [replica, quick(2, [3, KEEP]), quick(3, [KEEP, 4]), reader(true)];
    vec![Scenario::new("reader", old).time(0, 1), Scenario::new("replica", remote).time(1, 0)]
}

fn plain() -> Vec<Scenario> {
    let again = [publish(), unpublish(), DRIFT];
    let pushed = [unpublish(), quick(3, [1, KEEP]), reader(false)];
    vec![
        Scenario::mirror("publish", [publish(), DRIFT, reader(false)]).plain([1, 0]).drift(&[(0, 5), (1, 6)]),
        Scenario::mirror("publish with faults", [publish(), DRIFT]).plain([1, 0]).drift(&[(1, 6)]).faults(1),
        Scenario::mirror("publish again", again).drift(&[(0, 5)]),
        Scenario::mirror("unpublish", [unpublish(), quick(2, [3, KEEP]), DRIFT]).drift(&[(0, 5)]),
        Scenario::mirror("unpublish and push", pushed).killed(2, [3, KEEP]),
    ]
}

/// Explores the scenarios without a bug, and asserts that enough happened in them.
fn hold(scenarios: &[Scenario], least: usize, events: &[&str], outcomes: &[Outcome]) {
    let mut all = Explored::default();
    for scenario in scenarios {
        let start = crate::ambient::Instant::now();
        let explored = explore(scenario, Bug::None);
        let explored = explored.unwrap_or_else(|(violation, trace)| {
            panic!("{}: {violation:?} after\n{trace}", scenario.name);
        });
        let (states, killed) = (explored.states, explored.killed);
        println!("{}: {states} states, {killed} killed in, {:?}", scenario.name, start.elapsed());
        all.states += states;
        all.events.extend(explored.events);
        all.outcomes.extend(explored.outcomes);
    }
    assert!(all.states >= least, "only {} states", all.states);
    for event in events {
        assert!(all.events.contains(event), "never: {event}");
    }
    for outcome in outcomes {
        assert!(all.outcomes.contains(outcome), "never: {outcome:?}");
    }
}

/// A scenario in which a bug is found quickly; exploring all of it takes minutes.
fn unpublished() -> Vec<Scenario> {
    let pushes = [unpublish(), quick(2, [3, KEEP]), quick(3, [1, KEEP])];
    vec![Scenario::mirror("unpublish, there and back", pushes)]
}

/// Asserts that a bug is found in the scenario of this name, and which invariant it violates.
fn breaks(bug: Bug, name: &str, violation: Violation) {
    let all = [pushes(), prunes(), mirrors(), drifts(), indexes(), readers(), plain(), unpublished()];
    let scenario = all.iter().flatten().find(|scenario| scenario.name == name).expect("a scenario");
    let (found, trace) = explore(scenario, bug).expect_err("the bug is found");
    assert_eq!(found, violation, "{trace}");
}

const FAULTS: [&str; 3] = ["a response is lost", "a request is late", "a late request takes effect"];

#[test]
fn pushes_hold() {
    let ends = [
        Outcome::Committed(2),
        Outcome::Committed(3),
        Outcome::Failed(2),
        Outcome::Failed(3),
        Outcome::Unknown,
    ];
    hold(&pushes(), 15_000, &[&FAULTS[..], &["push: expired", "push: read the index back"]].concat(), &ends);
}

#[test]
fn pushes_and_prune_hold() {
    let events =
        ["prune: delete a blob", "a late delete takes effect", "the grace period passes", "push: expired"];
    hold(&prunes(), 40_000, &events, &[Outcome::Pruned, Outcome::Committed(4), Outcome::Unknown]);
}

#[test]
fn mirrors_hold() {
    let events =
        ["announce", "mirror: list", "mirror: look", "mirror: expired", "mirror: read its record back"];
    hold(&mirrors(), 50_000, &[&FAULTS[..], &events].concat(), &[Outcome::Mirrored, Outcome::Incomplete]);
}

#[test]
fn drift_is_kept() {
    let events = ["drift: put", "drift: delete", "mirror: is there a newer release?", "announce"];
    hold(&drifts(), 10_000, &[&FAULTS[..], &events].concat(), &[Outcome::Mirrored, Outcome::Incomplete]);
}

#[test]
fn index_holds() {
    let events = ["drift: put", "drift: delete", "index: look", "push: read the index back"];
    let ends = [Outcome::NoDrift, Outcome::Refused, Outcome::Failed(4), Outcome::Mirrored];
    hold(&indexes(), 5_000, &[&FAULTS[..], &events].concat(), &ends);
}

#[test]
fn readers_hold() {
    let events =
        ["reader: a blob is missing", "replica: the index arrives", "replica: a blob arrives or goes"];
    hold(&readers(), 5_000, &events, &[Outcome::Read, Outcome::Unavailable, Outcome::Pruned]);
}

#[test]
fn plain_and_published_hold() {
    let events = ["first mirror", "commit plain", "index: look", "drift: put", "reader: read a file"];
    let ends = [Outcome::NoDrift, Outcome::Mirrored, Outcome::Unpublished, Outcome::Refused, Outcome::Read];
    hold(&plain(), 20_000, &[&FAULTS[..], &events].concat(), &ends);
}

#[test]
fn a_commit_before_the_uploads_is_found() {
    breaks(Bug::CommitBeforeUpload, "same path", Violation::MissingBlob);
}

#[test]
fn a_commit_without_condition_is_found() {
    breaks(Bug::UnconditionalCommit, "three pushes", Violation::LostRelease);
    breaks(Bug::UnconditionalCommit, "same path", Violation::CommittedTwice);
}

#[test]
fn a_lost_response_taken_for_a_conflict_is_found() {
    breaks(Bug::LostResponseIsConflict, "different paths", Violation::FailedButVisible);
}

#[test]
fn a_conflict_reported_too_late_to_know_is_found() {
    breaks(Bug::ConflictAfterExpiry, "three pushes", Violation::FailedButVisible);
}

#[test]
fn a_prune_of_young_blobs_is_found() {
    breaks(Bug::PruneIgnoresAge, "prune and pushes", Violation::MissingBlob);
}

#[test]
fn a_prune_that_takes_the_age_after_the_index_is_found() {
    breaks(Bug::PruneAgeWhenListed, "prune and pushes", Violation::MissingBlob);
}

#[test]
fn blob_keys_without_release_are_found() {
    breaks(Bug::BlobKeysWithoutRelease, "away and back", Violation::MissingBlob);
}

#[test]
fn a_blob_that_only_the_old_base_names_is_found() {
    breaks(Bug::KeyOfOldBase, "old base", Violation::MissingBlob);
}

#[test]
fn a_mirror_without_conditions_is_found() {
    breaks(Bug::UnconditionalMirror, "drift and push", Violation::DriftOverwritten);
}

#[test]
fn a_removal_that_is_forgotten_is_found() {
    breaks(Bug::RemovalForgotten, "drift and repairs", Violation::DriftOverwritten);
}

#[test]
fn a_mirror_that_is_wrongly_called_settled_is_found() {
    breaks(Bug::NeverListing, "there and back", Violation::NotMirrored);
    breaks(Bug::NoListingAgain, "after a killed push", Violation::NotMirrored);
    breaks(Bug::SettledAfterLostResponse, "there and back", Violation::NotMirrored);
    breaks(Bug::QuietAtTheEnd, "there and back", Violation::NotMirrored);
    breaks(Bug::FinishGivenUp, "remove and restore", Violation::NotMirrored);
}

#[test]
fn a_mirror_that_takes_its_own_writes_for_the_mirrored_release_is_found() {
    breaks(Bug::CarryOnlyEtags, "after a killed push", Violation::NotMirrored);
}

#[test]
fn a_mirror_that_is_written_for_too_long_is_found() {
    breaks(Bug::MirrorNeverExpires, "after a killed push", Violation::NotMirrored);
    breaks(Bug::MirrorNeverExpires, "remove and restore", Violation::NotRepaired);
}

#[test]
fn a_repair_that_nobody_knows_of_is_found() {
    breaks(Bug::RepairUnannounced, "overwrite and push", Violation::NotMirrored);
    breaks(Bug::AnnouncementsAlike, "repair and push", Violation::NotMirrored);
}

#[test]
fn an_index_of_a_stale_mirror_is_found() {
    breaks(Bug::IndexOfStaleMirror, "index and push", Violation::StaleMirrorPublished);
    breaks(Bug::IndexOfUnsettledMirror, "index, remove and restore", Violation::StaleMirrorPublished);
    breaks(Bug::IndexPlansAgain, "index, there and back", Violation::StaleMirrorPublished);
}

#[test]
fn a_reader_that_mixes_releases_is_found() {
    breaks(Bug::ReaderMixes, "reader", Violation::WrongRead);
}

#[test]
fn a_file_lost_by_publishing_is_found() {
    breaks(Bug::PublishListsOnce, "publish", Violation::Disappeared);
    breaks(Bug::UnpublishUnsettled, "unpublish, there and back", Violation::Disappeared);
}
