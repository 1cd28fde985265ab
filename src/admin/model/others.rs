//! The other processes: `admin index`, prune, readers, a replica, and programs that do not know about releases.

#![cfg(test)]

use std::time::Duration;

use super::super::protocol;
use super::push::{KEEP, Push};
use super::world::{Contents, Entry, Index, Kind, MirrorRecord, PATHS, RETENTION, Tree, World, between};
use super::{Bug, Moves, Outcome, Proc, Violation};

/// `admin index`, up to the point where it commits what it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Scan {
    id: u8,
    step: ScanStep,
    index: Index,
    record: MirrorRecord,
    listed: Contents,
    want: Contents,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ScanStep {
    GetIndex,
    GetMirror,
    List,
    Look(usize),
}

impl Scan {
    pub(super) fn new(id: u8) -> Self {
        Self {
            id,
            step: ScanStep::GetIndex,
            index: Index::default(),
            record: MirrorRecord::default(),
            listed: Contents::default(),
            want: [KEEP; PATHS],
        }
    }

    pub(super) fn step(mut self, moves: &mut Moves<'_>) {
        match self.step {
            ScanStep::GetIndex => moves.to("index: read the index", |world| {
                self.index = world.index;
                if self.index.kind != Kind::Published {
                    return Proc::End(Outcome::Refused);
                }
                Proc::Scan(Self { step: ScanStep::GetMirror, ..self })
            }),
            ScanStep::GetMirror => moves.to("index: read the mirror's record", |world| {
                self.record = world.mirror;
                if world.bug == Bug::IndexOfStaleMirror {
                    self.record.etags = self.index.tree.map(|entry| entry.content);
                } else if self.record.release != self.index.newest().id {
                    return Proc::End(Outcome::Refused);
                }
                Proc::Scan(Self { step: ScanStep::List, ..self })
            }),
            ScanStep::List => moves.to("index: list", |world| {
                self.listed = world.plain;
                self.look_from(0, world)
            }),
            ScanStep::Look(path) => moves.to("index: look", |world| {
                let content = world.plain[path];
                let stale = world.listed(&self.index, path, content) && world.bug != Bug::IndexOfStaleMirror;
                if content == self.listed[path] && content != self.index.tree[path].content && !stale {
                    self.want[path] = content;
                }
                self.look_from(path + 1, world)
            }),
        }
    }

    /// Continues with the first key at or after `path` that has to be read.
    fn look_from(mut self, path: usize, world: &World) -> Proc {
        for path in path..PATHS {
            let (present, recorded) = (self.listed[path], self.record.etags[path]);
            // In a mirror that is not settled, a slow publisher may have removed the key.
            let certain = self.record.settled || world.bug == Bug::IndexOfUnsettledMirror;
            if present != 0 && present != recorded {
                return Proc::Scan(Self { step: ScanStep::Look(path), ..self });
            }
            if present == 0 && recorded != 0 && certain && self.index.tree[path].content != 0 {
                self.want[path] = 0;
            }
        }
        if self.want == [KEEP; PATHS] {
            return Proc::End(Outcome::NoDrift);
        }
        Proc::Push(Push::of_drift(self.id, self.want, self.index, world))
    }
}

/// Prune. What it deletes depends on what it read first, no matter how late the deletions are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Prune {
    Start,
    List { index: Index, named: u64, now: u8 },
    Delete { index: Index, garbage: u64, now: u8 },
}

impl Prune {
    pub(super) fn step(self, moves: &mut Moves<'_>) {
        match self {
            Self::Start => moves.to("prune: read the releases", |world| {
                let index = world.index;
                let trees = index.list().iter().map(|release| world.record(release.number, release.id));
                let trees = trees.chain([Some(index.tree)]).collect::<Option<Vec<Tree>>>();
                let Some(trees) = trees.filter(|_| index.kind != Kind::Missing) else {
                    return Proc::End(Outcome::Refused);
                };
                let named = trees.as_flattened().iter().fold(0, |named, entry| named | entry.bit());
                Proc::Prune(Self::List { index, named, now: world.clock })
            }),
            Self::List { index, named, now } => moves.to("prune: list", |world| {
                let now = if world.bug == Bug::PruneAgeWhenListed { world.clock } else { now };
                let old = |(entry, age): &(Entry, _)| {
                    let named = named & entry.bit() != 0;
                    if world.bug == Bug::PruneIgnoresAge {
                        return !named;
                    }
                    protocol::is_garbage(named, *age, RETENTION)
                };
                let garbage = world.blobs(now).filter(old).fold(0, |bits, (entry, _)| bits | entry.bit());
                Proc::Prune(Self::Delete { index, garbage, now })
            }),
            Self::Delete { garbage: 0, index, now } => moves.to("prune: delete records", |world| {
                world.prune_records(&index, now);
                Proc::End(Outcome::Pruned)
            }),
            Self::Delete { garbage, index, now } => {
                let lowest = garbage & garbage.wrapping_neg();
                let next = Proc::Prune(Self::Delete { garbage: garbage & !lowest, index, now });
                moves.to("prune: delete a blob", |world| {
                    world.delete_blobs(lowest);
                    next
                });
                moves.fault("prune: a delete is repeated", |world| {
                    world.delete_blobs(lowest);
                    world.late_deletes |= lowest;
                    next
                });
            }
        }
    }
}

/// One read operation on all paths, of the bucket or of the replica in process 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Reader {
    replica: bool,
    held: Option<Index>,
    next: usize,
    read: Contents,
    /// When a blob was found to be missing.
    missing: Option<u8>,
    retried: bool,
}

impl Reader {
    pub(super) fn new(replica: bool) -> Self {
        Self { replica, held: None, next: 0, read: Contents::default(), missing: None, retried: false }
    }

    pub(super) fn step(mut self, moves: &mut Moves<'_>) {
        let replica = moves.replica().filter(|_| self.replica);
        let now = replica.unwrap_or_else(|| Replica::of(moves.world()));
        let Some(held) = self.held else {
            self.held = Some(now.index);
            return moves.to("reader: read the index", |_| Proc::Reader(self));
        };
        if let Some(at) = self.missing {
            return moves.to("reader: a blob is missing", |world| self.missing(at, held, &now, world));
        }
        moves.to("reader: read a file", |world| {
            let published = held.kind == Kind::Published;
            if published && !now.has(held.tree[self.next]) {
                return Proc::Reader(Self { missing: Some(world.clock), ..self });
            }
            self.read[self.next] =
                if published { held.tree[self.next].content } else { world.plain[self.next] };
            self.next += 1;
            if self.next < PATHS {
                return Proc::Reader(self);
            }
            // Plain keys change one by one, so they need not be one release; but no file disappears.
            let fine = if published { world.is_release(self.read) } else { self.read[0] != 0 };
            if !fine {
                world.fail(Violation::WrongRead);
            }
            Proc::End(Outcome::Read)
        });
    }

    fn missing(mut self, at: u8, held: Index, now: &Replica, world: &mut World) -> Proc {
        if now.index != held && !self.retried {
            if world.bug != Bug::ReaderMixes {
                self.next = 0;
            }
            return Proc::Reader(Self { held: Some(now.index), missing: None, retried: true, ..self });
        }
        // A release that is listed must be readable; in a replica, only once it had time to arrive. Its age is
        // that of the index object: the time in the list is when the commit was prepared.
        let young = now.index != held || between(now.index_at, at) == Duration::ZERO;
        if world.index.lists(held.newest().id) && !(self.replica && young) {
            world.fail(Violation::Unreadable);
        }
        Proc::End(if young { Outcome::Unavailable } else { Outcome::Corrupt })
    }
}

/// A replica of the bucket, where objects arrive in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Replica {
    index: Index,
    index_at: u8,
    blobs: u64,
}

impl Replica {
    fn has(&self, entry: Entry) -> bool {
        entry.content == 0 || self.blobs & entry.bit() != 0
    }

    /// A replica that has everything.
    pub(super) fn of(world: &World) -> Self {
        let blobs = world.blobs(0).fold(0, |bits, (entry, _)| bits | entry.bit());
        Self { index: world.index, index_at: world.index_at, blobs }
    }

    /// Whether the newest release has arrived.
    pub(super) fn is_caught_up(&self, world: &World) -> bool {
        self.index == world.index && self.index.tree.iter().all(|entry| self.has(*entry))
    }

    pub(super) fn step(self, moves: &mut Moves<'_>) {
        let now = Self::of(moves.world());
        if self.index != now.index {
            moves.to("replica: the index arrives", |_| Proc::Replica(Self { blobs: self.blobs, ..now }));
        }
        let mut differing = now.blobs ^ self.blobs;
        while differing != 0 {
            let lowest = differing & differing.wrapping_neg();
            differing &= !lowest;
            moves.to("replica: a blob arrives or goes", |_| {
                Proc::Replica(Self { blobs: self.blobs ^ lowest, ..self })
            });
        }
    }
}

/// Another program: it puts contents, or deletes keys, in this order.
pub(super) fn step_drift(done: usize, puts: &[(usize, u8)], moves: &mut Moves<'_>) {
    let Some(&(path, content)) = puts.get(done) else { return };
    moves.to(if content == 0 { "drift: delete" } else { "drift: put" }, |world| {
        let existed = world.plain[path] != 0;
        world.plain[path] = content;
        world.removed &= !(1 << path);
        world.removed |= u8::from(content == 0 && existed) << path;
        Proc::Drift(done + 1)
    });
}
