//! The mirror writer, which runs after a commit and as `repair`, and which completes the mirror to unpublish.

#![cfg(test)]

use super::super::protocol::{self, Act, Commit, MirrorKey};
use super::others::Scan;
use super::world::{Contents, GONE, Index, Kind, MirrorRecord, PATHS, Request, World, contents};
use super::{Bug, Moves, Outcome, Proc, Reply};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    GetIndex,
    GetMirror,
    List,
    Keys,
    /// The condition of a write to this path failed, or its outcome is unknown.
    Recheck(usize),
    Look(usize),
    /// It is unknown whether this final record was written.
    Confirm(MirrorRecord),
    /// The mirror is complete: commit an index that says plain.
    Unpublish,
}

/// A key that we wrote ourselves, which the mirror's record does not have yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Own {
    Wrote(u8),
    Deleted,
}

#[allow(clippy::struct_excessive_bools, reason = "they are independent facts")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Mirror {
    step: Step,
    /// Makes our record unique: the release, or a number that no release has.
    who: u8,
    /// `repair`: any release may be its target, so it lists, and it announces itself before it writes.
    repair: bool,
    overwrite: bool,
    unpublish: bool,
    target: Index,
    record: MirrorRecord,
    no_listing: bool,
    complete: bool,
    quiet: bool,
    /// Whether all our writes got a response, so none of them is still in flight.
    clean: bool,
    mirrored: Contents,
    recorded: Contents,
    present: Contents,
    /// Paths whose content was read, and those whose content a listed release has.
    looked: u8,
    listed: u8,
    todo: u8,
    etags: Contents,
    own: [Option<Own>; 2],
    start: Option<u8>,
    drift: bool,
    restarts: u8,
}

fn some(content: &u8) -> Option<&u8> {
    Some(content).filter(|content| **content != 0)
}

impl Mirror {
    pub(super) fn of_push(target: Index) -> Self {
        Self {
            step: Step::GetMirror,
            who: target.newest().id,
            repair: false,
            overwrite: false,
            unpublish: false,
            target,
            record: MirrorRecord::default(),
            no_listing: false,
            complete: false,
            quiet: false,
            clean: true,
            mirrored: <_>::default(),
            recorded: <_>::default(),
            present: <_>::default(),
            looked: 0,
            listed: 0,
            todo: 0,
            etags: <_>::default(),
            own: [None; PATHS],
            start: Some(target.newest().at),
            drift: false,
            restarts: 0,
        }
    }

    pub(super) fn repair(who: u8, overwrite: bool) -> Self {
        let push = Self::of_push(Index::default());
        Self { step: Step::GetIndex, who, repair: true, overwrite, start: None, ..push }
    }

    pub(super) fn unpublish(who: u8) -> Self {
        Self { unpublish: true, ..Self::repair(who, false) }
    }

    pub(super) fn step(mut self, moves: &mut Moves<'_>) {
        match self.step {
            Step::GetIndex => moves.to("mirror: read the index", |world| self.restart(world.index)),
            Step::GetMirror => moves.to("mirror: read its record", |world| self.get_mirror(world)),
            Step::List => moves.to("mirror: list", |world| self.list(world)),
            Step::Keys => self.keys(moves),
            Step::Recheck(path) => moves.to("mirror: is there a newer release?", |world| {
                if world.index != self.target {
                    return self.restart(world.index);
                }
                Proc::Mirror(Self { step: Step::Look(path), ..self })
            }),
            Step::Look(path) => moves.to("mirror: look", |world| {
                self.present[path] = world.plain[path];
                self.looked |= 1 << path;
                self.listed &= !(1 << path);
                self.listed |= u8::from(world.listed(&self.target, path, world.plain[path])) << path;
                Proc::Mirror(Self { step: Step::Keys, ..self })
            }),
            Step::Confirm(record) => moves.to("mirror: read its record back", |world| {
                // As for a release: a second write while this one may still take effect would falsify the record.
                let (ours, unchanged) =
                    (world.mirror.same_content(record), world.mirror.same_content(self.record));
                self.step = match protocol::commit(ours, unchanged, false) {
                    Commit::Done => return self.finished(record, world.bug),
                    Commit::Resend if world.bug != Bug::FinishGivenUp => Step::Keys,
                    Commit::Resend | Commit::Lost | Commit::Unknown => Step::GetIndex,
                };
                Proc::Mirror(self)
            }),
            Step::Unpublish => self.commit_plain(moves),
        }
    }

    fn restart(&mut self, index: Index) -> Proc {
        self.restarts += 1;
        if index.kind != Kind::Published || self.restarts > 2 {
            return Proc::End(Outcome::Incomplete);
        }
        (self.step, self.target, self.drift) = (Step::GetMirror, index, false);
        Proc::Mirror(*self)
    }

    fn get_mirror(&mut self, world: &World) -> Proc {
        let (record, newest, base) = (world.mirror, self.target.newest(), self.target.base());
        self.record = record;
        if record.number > newest.number {
            return Proc::Mirror(Self { step: Step::GetIndex, ..*self });
        }
        let at_newest = record.release == newest.id;
        if !self.repair && at_newest && record.settled {
            return Proc::End(Outcome::Mirrored);
        }
        let tree = world.record(record.number, record.release);
        let at_base = record.release == base.id;
        let settled = record.settled || world.bug == Bug::NeverListing;
        // After the first attempt, another process wrote concurrently, so a listing is required.
        let first = self.restarts == 0 || world.bug == Bug::NoListingAgain;
        self.no_listing =
            !self.repair && first && tree.is_some() && protocol::needs_no_listing(at_base, settled);
        self.complete = self.no_listing || at_newest && record.settled;
        self.mirrored = tree.map(contents).unwrap_or_default();
        self.recorded = record.etags;
        let mirrored = self.mirrored;
        for (path, own) in self.own.iter().enumerate() {
            let Some(own) = own else { continue };
            let content = if let Own::Wrote(content) = own { *content } else { 0 };
            self.recorded[path] = content;
            // What we wrote may not be what the mirrored release has.
            if world.bug != Bug::CarryOnlyEtags {
                self.mirrored[path] = content;
            }
        }
        (self.looked, self.listed, self.quiet) = (0, 0, false);
        if !self.no_listing {
            return Proc::Mirror(Self { step: Step::List, ..*self });
        }
        self.etags = self.recorded;
        self.present = self.recorded.map(|etag| if etag == GONE { 0 } else { etag });
        self.todo = 0;
        for (path, content) in mirrored.into_iter().enumerate() {
            let touched = content != self.target.tree[path].content || self.own[path].is_some();
            self.todo |= u8::from(touched) << path;
        }
        Proc::Mirror(Self { step: Step::Keys, ..*self })
    }

    fn list(&mut self, world: &World) -> Proc {
        self.present = world.plain;
        self.todo = (1 << PATHS) - 1;
        self.quiet = self.is_quiet(world);
        Proc::Mirror(Self { step: Step::Keys, ..*self })
    }

    /// Whether no other process can still be writing. Determined when the keys are listed, because a write that
    /// arrives after that is not seen.
    fn is_quiet(&self, world: &World) -> bool {
        let others = self.target.list().iter().filter(|release| self.repair || release.id != self.who);
        let last = others.map(|release| release.at).max().unwrap_or(0);
        let announced = if world.bug == Bug::RepairUnannounced { 0 } else { self.record.at };
        protocol::is_settled(world.since(last.max(announced)))
    }

    fn decide(&self, path: usize) -> Act {
        let wanted = self.target.tree[path].content;
        let looked = self.looked & 1 << path != 0;
        let listed = self.listed & 1 << path != 0;
        let key = MirrorKey {
            wanted: some(&wanted),
            mirrored: some(&self.mirrored[path]),
            recorded: some(&self.recorded[path]),
            present: some(&self.present[path]),
            content: some(&self.present[path]).filter(|_| looked).map(|content| (content, listed)),
        };
        protocol::act(&key, self.complete, self.overwrite)
    }

    fn keys(mut self, moves: &mut Moves<'_>) {
        while self.todo != 0 {
            let path = self.todo.trailing_zeros() as usize;
            let wanted = self.target.tree[path].content;
            let new = match self.decide(path) {
                Act::Look => {
                    self.step = Step::Look(path);
                    return self.step(moves);
                }
                Act::Write => wanted,
                Act::Delete => 0,
                Act::Keep => {
                    self.done(path, wanted);
                    continue;
                }
                Act::Drift => {
                    // A removed key stays recorded, so that the next run knows that it was removed.
                    let forget = moves.world().bug == Bug::RemovalForgotten;
                    self.done(path, if self.present[path] == 0 && !forget { GONE } else { 0 });
                    self.drift = true;
                    continue;
                }
            };
            return self.write(path, new, moves);
        }
        self.finish(moves);
    }

    fn done(&mut self, path: usize, etag: u8) {
        self.etags[path] = etag;
        self.todo &= !(1 << path);
    }

    fn write(mut self, path: usize, new: u8, moves: &mut Moves<'_>) {
        let bug = moves.world().bug;
        let Some(start) = self.start else {
            if bug == Bug::RepairUnannounced {
                self.start = Some(moves.world().clock);
                return self.write(path, new, moves);
            }
            let attempt = if bug == Bug::AnnouncementsAlike { 0 } else { self.restarts };
            let new = MirrorRecord { settled: false, by: self.who, attempt, ..self.record };
            let request = Request::Mirror { expect: self.record, new };
            return moves.request("announce", request, |world, reply| {
                Proc::Mirror(match reply {
                    Reply::Done => Self { record: new, start: Some(world.clock), ..self },
                    Reply::Refused | Reply::Unknown => Self { step: Step::GetIndex, ..self },
                })
            });
        };
        if protocol::mirror_expired(moves.world().since(start)) && bug != Bug::MirrorNeverExpires {
            return moves.to("mirror: expired", |_| Proc::End(Outcome::Incomplete));
        }
        let expect = self.present[path];
        let path_number = path.to_le_bytes()[0];
        let request =
            Request::Plain { path: path_number, expect, new, by: self.who, overwrite: self.overwrite };
        moves.request("mirror a key", request, |_, reply| {
            let mut next = self;
            if reply == Reply::Done {
                next.own[path] = Some(if new == 0 { Own::Deleted } else { Own::Wrote(new) });
                next.done(path, new);
            } else {
                next.clean &= reply == Reply::Refused;
                next.step = Step::Recheck(path);
            }
            Proc::Mirror(next)
        });
    }

    fn finish(self, moves: &mut Moves<'_>) {
        let newest = self.target.newest();
        let bug = moves.world().bug;
        let clean = self.clean || bug == Bug::SettledAfterLostResponse;
        let quiet = if bug == Bug::QuietAtTheEnd && !self.no_listing {
            self.is_quiet(moves.world())
        } else {
            self.quiet
        };
        let new = MirrorRecord {
            release: newest.id,
            number: newest.number,
            etags: self.etags,
            settled: clean && (self.complete || quiet),
            by: self.who,
            attempt: self.restarts,
            at: 0,
        };
        let request = Request::Mirror { expect: self.record, new };
        moves.request("finish the mirror", request, |_, reply| match reply {
            Reply::Done => self.finished(new, bug),
            Reply::Refused | Reply::Unknown => Proc::Mirror(Self { step: Step::Confirm(new), ..self }),
        });
    }

    fn finished(self, record: MirrorRecord, bug: Bug) -> Proc {
        match self.unpublish {
            true if (record.settled || bug == Bug::UnpublishUnsettled) && !self.drift => {
                Proc::Mirror(Self { step: Step::Unpublish, ..self })
            }
            true => Proc::End(Outcome::Refused),
            false => Proc::End(Outcome::Mirrored),
        }
    }

    fn commit_plain(self, moves: &mut Moves<'_>) {
        let request = Request::Index { expect: self.target, new: self.target.plain(), commit: None };
        moves.request("commit plain", request, |world, reply| match world.index {
            _ if reply == Reply::Done => Proc::End(Outcome::Unpublished),
            index if index == self.target => Proc::Mirror(self),
            index if index.kind == Kind::Plain => Proc::End(Outcome::Unpublished),
            _ => Proc::End(Outcome::Refused),
        });
    }
}

/// The last step of publishing a plain library, whose keys already are the mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FirstMirror {
    of: Index,
    etags: Contents,
    old: MirrorRecord,
}

impl FirstMirror {
    pub(super) fn new(of: Index, etags: Contents, old: MirrorRecord) -> Self {
        Self { of, etags, old }
    }

    pub(super) fn step(self, moves: &mut Moves<'_>) {
        let release = self.of.newest();
        let new = MirrorRecord {
            release: release.id,
            number: release.number,
            etags: self.etags,
            settled: true,
            by: release.id,
            attempt: 0,
            at: 0,
        };
        let request = Request::Mirror { expect: self.old, new };
        moves.request("first mirror", request, |world, reply| match reply {
            Reply::Unknown => Proc::FirstMirror(self),
            // Refused: a push has mirrored a newer release already, or this was written after all.
            Reply::Done | Reply::Refused if world.bug == Bug::PublishListsOnce => Proc::End(Outcome::NoDrift),
            Reply::Done | Reply::Refused => Proc::Scan(Scan::new(release.id + 1)),
        });
    }
}
