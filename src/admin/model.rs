//! A model checker: explores every interleaving of publishers, mirrors, prune, readers and other programs in small
//! scenarios.
//!
//! A process is a state machine whose steps are single requests, and its decisions are those of `protocol`. A
//! request can succeed, lose its response, fail, or take effect after its sender has given up. A killed process is one
//! that never takes its next step, so every state is also checked as if all processes had been killed in it. `Bug`
//! enables mistakes, each of which must be found.

#![cfg(test)]

mod mirror;
mod others;
mod push;
mod scenarios;
mod world;

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hash, Hasher};

use mirror::{FirstMirror, Mirror};
use others::{Prune, Reader, Replica, Scan};
use push::{Goal, KEEP, Push};
use world::{Contents, JUMP, NEXT_PUSH, PATHS, Request, World};

/// A deliberate mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Bug {
    None,
    CommitBeforeUpload,
    PruneIgnoresAge,
    /// Prune uses the age of a blob at the listing, although the index was read long before.
    PruneAgeWhenListed,
    BlobKeysWithoutRelease,
    /// A push that plans again keeps the key of a blob that only its old base names.
    KeyOfOldBase,
    UnconditionalCommit,
    LostResponseIsConflict,
    /// A push that slept until its release was dropped from the list reports a conflict.
    ConflictAfterExpiry,
    UnconditionalMirror,
    /// A mirror that starts over mistakes the ETags that it wrote for those of the mirrored release.
    CarryOnlyEtags,
    NeverListing,
    MirrorNeverExpires,
    RepairUnannounced,
    /// A repair that announces itself again writes the same bytes, which is indistinguishable from the first announcement.
    AnnouncementsAlike,
    /// The mirror is marked as settled although one of our own writes may still be in flight.
    SettledAfterLostResponse,
    /// A mirror starts over although its final record, which marks it as settled, may still be in flight.
    FinishGivenUp,
    /// A mirror that starts over trusts the record of its own writes.
    NoListingAgain,
    /// Checks at the end, instead of at the listing, whether others may still be writing.
    QuietAtTheEnd,
    /// A key that someone else removed is dropped from the mirror's record.
    RemovalForgotten,
    IndexOfStaleMirror,
    IndexOfUnsettledMirror,
    IndexPlansAgain,
    /// Publishing a plain library does not look for files that were uploaded in the meantime.
    PublishListsOnce,
    UnpublishUnsettled,
    ReaderMixes,
}

/// An invariant that is violated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Violation {
    /// A listed release names a blob, or has a record, that does not exist.
    MissingBlob,
    /// A commit dropped a release, or changed what it did not plan to change.
    LostRelease,
    CommittedTwice,
    /// A push reported that it failed, and its release is visible.
    FailedButVisible,
    DriftOverwritten,
    StaleMirrorPublished,
    /// A repair, with nothing else running, does not complete the mirror.
    NotRepaired,
    /// The next push, with nothing else running, does not complete the mirror.
    NotMirrored,
    /// A reader saw files that are not one release, or a file was missing.
    WrongRead,
    /// A reader could not read a release that is listed.
    Unreadable,
    /// Publishing or unpublishing lost a file.
    Disappeared,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Outcome {
    Committed(u8),
    /// Failed, and nothing is visible.
    Failed(u8),
    Unknown,
    Refused,
    Mirrored,
    Incomplete,
    Unpublished,
    NoDrift,
    Pruned,
    Read,
    Unavailable,
    Corrupt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Proc {
    Off,
    Push(Push),
    Mirror(Mirror),
    FirstMirror(FirstMirror),
    Scan(Scan),
    Prune(Prune),
    Reader(Reader),
    Replica(Replica),
    Drift(usize),
    End(Outcome),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    Done,
    Refused,
    Unknown,
}

const PROCS: usize = 4;

/// Which process took which step; `PROCS` for events without a process.
type Event = (usize, &'static str);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    world: World,
    procs: [Proc; PROCS],
    ticks: u8,
    jumps: u8,
    faults: u8,
}

/// The initial state, the processes, and how many faults may occur.
struct Scenario {
    name: &'static str,
    /// The initial files, of a published or a plain library.
    files: Contents,
    plain: bool,
    procs: Vec<Proc>,
    /// What another program does, if a `Proc::Drift` is among the processes.
    drift: &'static [(usize, u8)],
    /// A push that was killed right after its commit, before anything else started.
    killed: Option<(u8, Contents)>,
    /// Whether pushes continue with the mirror.
    mirrors: bool,
    ticks: u8,
    jumps: u8,
    faults: u8,
}

/// Collects the states that one step of a process leads to.
struct Moves<'a> {
    state: &'a State,
    proc: usize,
    next: &'a mut Vec<(State, Event)>,
}

impl Moves<'_> {
    fn world(&self) -> &World {
        &self.state.world
    }

    fn replica(&self) -> Option<Replica> {
        if let Proc::Replica(replica) = self.state.procs[0] { Some(replica) } else { None }
    }

    fn to(&mut self, label: &'static str, step: impl FnOnce(&mut World) -> Proc) {
        let mut state = *self.state;
        state.procs[self.proc] = step(&mut state.world);
        self.next.push((state, (self.proc, label)));
    }

    fn fault(&mut self, label: &'static str, step: impl FnOnce(&mut World) -> Proc) {
        if self.state.faults > 0 {
            self.to(label, step);
            if let Some((state, _)) = self.next.last_mut() {
                state.faults -= 1;
            }
        }
    }

    /// Sends a conditional write, with all of its possible outcomes.
    fn request(&mut self, label: &'static str, request: Request, then: impl Fn(&mut World, Reply) -> Proc) {
        let done = self.world().clone().apply(&request);
        self.to(label, |world| {
            let reply = if world.apply(&request) { Reply::Done } else { Reply::Refused };
            then(world, reply)
        });
        if !done {
            return;
        }
        self.fault("a response is lost", |world| {
            world.apply(&request);
            then(world, Reply::Unknown)
        });
        // A request that fails immediately is covered by one that is late and never arrives.
        self.fault("a request is late", |world| {
            world.late = world.late.or(Some(request));
            then(world, Reply::Unknown)
        });
    }
}

impl State {
    fn new(scenario: &Scenario, bug: Bug) -> Self {
        let mut procs = [Proc::Off; PROCS];
        procs[..scenario.procs.len()].copy_from_slice(&scenario.procs);
        let start = if scenario.plain { World::plain } else { World::published };
        let world = start(scenario.files, bug);
        let mut state =
            Self { world, procs, ticks: scenario.ticks, jumps: scenario.jumps, faults: scenario.faults };
        for proc in &mut state.procs {
            if let Proc::Replica(replica) = proc {
                *replica = Replica::of(&state.world);
            }
        }
        if let Some((id, want)) = scenario.killed {
            state.world = state.alone(Proc::Push(Push::new(Goal::Push, id, want)));
        }
        state.world.mirrors = scenario.mirrors;
        state
    }

    fn successors(&self, drift: &[(usize, u8)], next: &mut Vec<(Self, Event)>) {
        for (proc, process) in self.procs.into_iter().enumerate() {
            let mut moves = Moves { state: self, proc, next: &mut *next };
            match process {
                Proc::Off | Proc::End(_) => {}
                Proc::Push(push) => push.step(&mut moves),
                Proc::Mirror(mirror) => mirror.step(&mut moves),
                Proc::FirstMirror(mirror) => mirror.step(&mut moves),
                Proc::Scan(scan) => scan.step(&mut moves),
                Proc::Prune(prune) => prune.step(&mut moves),
                Proc::Reader(reader) => reader.step(&mut moves),
                Proc::Replica(replica) => replica.step(&mut moves),
                Proc::Drift(done) => others::step_drift(done, drift, &mut moves),
            }
        }
        if let Some(request) = self.world.late {
            let mut state = *self;
            state.world.late = None;
            state.world.apply(&request);
            next.push((state, (PROCS, "a late request takes effect")));
        }
        if self.world.late_deletes != 0 {
            let mut state = *self;
            state.world.delete_blobs(state.world.late_deletes);
            state.world.late_deletes = 0;
            next.push((state, (PROCS, "a late delete takes effect")));
        }
        // Objects reach a replica before a release is old.
        let lagging =
            |proc: &Proc| matches!(proc, Proc::Replica(replica) if !replica.is_caught_up(&self.world));
        if self.procs.iter().any(lagging) {
            return;
        }
        // No request is in flight for as long as a tick.
        let mut later = *self;
        later.world.late = None;
        if self.ticks > 0 {
            let mut state = later;
            (state.ticks, state.world.clock) = (self.ticks - 1, self.world.clock + 1);
            next.push((state, (PROCS, "the clock ticks")));
        }
        if self.jumps > 0 {
            let mut state = later;
            (state.jumps, state.world.clock) = (self.jumps - 1, self.world.clock + JUMP);
            next.push((state, (PROCS, "the grace period passes")));
        }
    }

    fn check(&self) -> Option<Violation> {
        let published =
            Proc::End(Outcome::NoDrift) == self.procs[0] || Proc::End(Outcome::Mirrored) == self.procs[0];
        if published && !self.world.all_published() {
            return Some(Violation::Disappeared);
        }
        let visible = |id: u8| self.world.committed & 1 << id != 0;
        for proc in &self.procs {
            match proc {
                Proc::End(Outcome::Failed(id)) if visible(*id) => return Some(Violation::FailedButVisible),
                Proc::End(Outcome::Committed(id)) if !visible(*id) => return Some(Violation::LostRelease),
                _ => {}
            }
        }
        self.world.check()
    }

    /// Runs one process alone, without faults.
    fn alone(&self, proc: Proc) -> World {
        let mut procs = [Proc::Off; PROCS];
        procs[0] = proc;
        let mut state = Self { procs, ticks: 0, jumps: 0, faults: 0, ..*self };
        (state.world.late, state.world.late_deletes) = (None, 0);
        let mut next = Vec::new();
        loop {
            state.successors(&[], &mut next);
            match next.pop() {
                Some((following, _)) => state = following,
                None => return state.world,
            }
            next.clear();
        }
    }

    /// Checks the state as if every process were killed now: the next repair and the next push complete the mirror.
    fn check_killed(&self) -> Option<Violation> {
        if self.world.index.kind != world::Kind::Published {
            return None;
        }
        let repaired = self.alone(Proc::Mirror(Mirror::repair(u8::MAX, false)));
        // A push that changes none of the paths, only another one.
        let pushed = self.alone(Proc::Push(Push::new(Goal::Push, NEXT_PUSH, [KEEP; PATHS])));
        let overwritten = self.alone(Proc::Mirror(Mirror::repair(u8::MAX, true)));
        let broken = repaired.check().or(pushed.check()).or(overwritten.check());
        let exact = overwritten.plain == world::contents(overwritten.index.tree);
        let not_repaired = (!repaired.is_mirrored() || !exact).then_some(Violation::NotRepaired);
        let not_mirrored = (!pushed.is_mirrored()).then_some(Violation::NotMirrored);
        broken.or(not_repaired).or(not_mirrored)
    }
}

/// Statistics of an exploration.
#[derive(Debug, Default)]
struct Explored {
    states: usize,
    killed: usize,
    events: BTreeSet<&'static str>,
    outcomes: HashSet<Outcome>,
}

/// A 64-bit hash that is fast without compiler optimization. Hash collisions between states are neglected.
#[derive(Default)]
struct Fast(u64);

impl Hasher for Fast {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(23) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_isize(&mut self, n: isize) {
        self.write_u64(n.cast_unsigned() as u64);
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

type Fingerprints = HashSet<u64, BuildHasherDefault<Fast>>;

fn fingerprint(value: &impl Hash) -> u64 {
    let mut hasher = Fast::default();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Explores all states breadth-first. The error has the shortest path to a violation.
fn explore(scenario: &Scenario, bug: Bug) -> Result<Explored, (Violation, String)> {
    let start = State::new(scenario, bug);
    let mut explored = Explored::default();
    let mut seen = Fingerprints::from_iter([fingerprint(&start)]);
    let mut killed = Fingerprints::default();
    let mut came_from = vec![(0, (0, ""))];
    let mut queue = VecDeque::from([(start, 0)]);
    let mut next = Vec::new();
    while let Some((state, at)) = queue.pop_front() {
        let mut violation = state.check();
        if scenario.mirrors && violation.is_none() && killed.insert(fingerprint(&state.world)) {
            violation = state.check_killed();
        }
        if let Some(violation) = violation {
            return Err((violation, trace(&came_from, at)));
        }
        explored.states += 1;
        explored.outcomes.extend(state.procs.iter().filter_map(|proc| match proc {
            Proc::End(outcome) => Some(*outcome),
            _ => None,
        }));
        state.successors(scenario.drift, &mut next);
        for (following, event) in next.drain(..) {
            explored.events.insert(event.1);
            if seen.insert(fingerprint(&following)) {
                came_from.push((at, event));
                queue.push_back((following, came_from.len() - 1));
            }
        }
    }
    explored.killed = killed.len();
    Ok(explored)
}

fn trace(came_from: &[(usize, Event)], mut at: usize) -> String {
    let mut events = Vec::new();
    while at != 0 {
        let (from, (proc, label)) = came_from[at];
        events.push(format!("{proc}: {label}"));
        at = from;
    }
    events.reverse();
    events.join("\n")
}
