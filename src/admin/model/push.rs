//! A push, up to its commit. `admin index` and publishing a plain library commit in the same way.

#![cfg(test)]

use super::super::protocol::{self, Commit};
use super::mirror::{FirstMirror, Mirror};
use super::world::{
    Committed, Contents, Index, Kind, MirrorRecord, PATHS, RETENTION, Request, Tree, World, contents,
};
use super::{Bug, Moves, Outcome, Proc, Reply};

/// A path that a push does not change.
pub(super) const KEEP: u8 = u8::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Goal {
    Push,
    /// Publishes the drift that was found; what counts as drift depends on the base, so it never plans again.
    Index,
    /// Publishes a plain library.
    Publish,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Get,
    Upload,
    Record,
    Commit,
    Verify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Push {
    goal: Goal,
    id: u8,
    step: Step,
    /// Whether everything up to the commit is one step.
    quick: bool,
    base: Index,
    /// The new content of each path, 0 to remove it.
    want: Contents,
    before: Contents,
    tree: Tree,
    next: Index,
    /// Bit sets of the contents that this push must upload, and of those that it has uploaded.
    needed: u8,
    uploaded: u8,
    first_upload: Option<u8>,
    plans: u8,
    /// Whether a commit on this base was sent.
    sent: bool,
    /// For publishing: the mirror's record as it was before.
    mirror: MirrorRecord,
}

impl Push {
    pub(super) fn new(goal: Goal, id: u8, want: Contents) -> Self {
        Self {
            goal,
            id,
            step: Step::Get,
            quick: false,
            base: Index::default(),
            want,
            before: Contents::default(),
            tree: Tree::default(),
            next: Index::default(),
            needed: 0,
            uploaded: 0,
            first_upload: None,
            plans: 0,
            sent: false,
            mirror: MirrorRecord::default(),
        }
    }

    pub(super) fn quick(id: u8, want: Contents) -> Self {
        Self { quick: true, ..Self::new(Goal::Push, id, want) }
    }

    /// A push of the drift that was found in the mirror of `base`.
    pub(super) fn of_drift(id: u8, want: Contents, base: Index, world: &World) -> Self {
        let mut push = Self::new(Goal::Index, id, want);
        push.plan(base, world);
        push
    }

    /// Plans the changes on `base`; `false` when they are not those that were planned before.
    fn plan(&mut self, base: Index, world: &World) -> bool {
        let before = contents(base.tree);
        let same = (0..PATHS).all(|path| self.want[path] == KEEP || before[path] == self.before[path]);
        let same = same || self.plans == 0;
        let old = std::mem::replace(&mut self.base, base).tree;
        (self.tree, self.before, self.sent, self.needed) = (base.tree, before, false, 0);
        self.plans += 1;
        for (path, &content) in self.want.iter().enumerate().filter(|(_, content)| **content != KEEP) {
            let named = |tree: &Tree| tree.iter().copied().find(|entry| entry.content == content);
            let stale = named(&old).filter(|_| world.bug == Bug::KeyOfOldBase);
            self.tree[path] = named(&base.tree).or(stale).unwrap_or_else(|| {
                self.needed |= u8::from(content != 0) << content;
                world.entry(content, self.id)
            });
        }
        self.step = if self.missing() == 0 { Step::Record } else { Step::Upload };
        same
    }

    fn missing(&self) -> u8 {
        self.needed & !self.uploaded
    }

    fn expired(&self, world: &World) -> bool {
        self.first_upload.is_some_and(|at| protocol::push_expired(world.since(at), RETENTION))
    }

    pub(super) fn step(mut self, moves: &mut Moves<'_>) {
        match self.step {
            Step::Get => moves.to("push: read the index", |world| self.get(world)),
            Step::Upload => moves.to("push: upload a blob", |world| {
                self.upload(world);
                Proc::Push(self)
            }),
            Step::Record => moves.to("push: write the record", |world| {
                self.record(world);
                Proc::Push(self)
            }),
            Step::Commit => self.commit(moves),
            Step::Verify => moves.to("push: read the index back", |world| self.verify(world)),
        }
    }

    fn get(&mut self, world: &mut World) -> Proc {
        let base = world.index;
        if (base.kind == Kind::Published) == (self.goal == Goal::Publish) {
            return Proc::End(Outcome::Refused);
        }
        if self.goal == Goal::Publish {
            self.mirror = world.mirror;
            self.want = world.plain;
        }
        self.plan(base, world);
        if world.bug == Bug::CommitBeforeUpload {
            self.step = Step::Record;
        }
        while self.quick && self.step == Step::Upload {
            self.upload(world);
        }
        if self.quick {
            self.record(world);
        }
        Proc::Push(*self)
    }

    fn upload(&mut self, world: &mut World) {
        let mut content = self.missing().trailing_zeros().to_le_bytes()[0];
        if self.goal == Goal::Publish {
            // What counts is what the key contains when it is read, which may not be what was listed.
            let path = self.want.iter().position(|c| *c == content).unwrap_or(0);
            self.needed &= !(1 << content);
            content = world.plain[path];
            self.needed |= u8::from(content != 0) << content;
            self.want[path] = content;
            self.tree[path] = world.entry(content, self.id);
        }
        if content != 0 {
            world.put_blob(world.entry(content, self.id));
            self.uploaded |= 1 << content;
        }
        self.first_upload = self.first_upload.or(Some(world.clock));
        if self.missing() == 0 {
            self.step = if world.bug == Bug::CommitBeforeUpload { Step::Verify } else { Step::Record };
        }
    }

    fn record(&mut self, world: &mut World) {
        self.first_upload = self.first_upload.or(Some(world.clock));
        self.next = self.base.next(self.id, self.tree, world.clock);
        world.put_record(&self.next);
        self.step = Step::Commit;
    }

    fn commit(mut self, moves: &mut Moves<'_>) {
        if self.expired(moves.world()) {
            // A commit that was sent may have taken effect after the index was read back.
            let outcome = if self.sent { Outcome::Unknown } else { Outcome::Failed(self.id) };
            return moves.to("push: expired", |_| Proc::End(outcome));
        }
        self.sent = true;
        let commit = Committed {
            id: self.id,
            before: self.before,
            changed: self.want.map(|content| content != KEEP),
            drift: self.goal == Goal::Index,
        };
        let request = Request::Index { expect: self.base, new: self.next, commit: Some(commit) };
        moves.request("commit", request, |world, reply| match reply {
            Reply::Done => self.committed(world),
            Reply::Refused | Reply::Unknown => Proc::Push(Self { step: Step::Verify, ..self }),
        });
    }

    fn verify(&mut self, world: &World) -> Proc {
        let index = world.index;
        let lists_ours = index.lists(self.id) && world.bug != Bug::LostResponseIsConflict;
        let expired = self.expired(world) && world.bug != Bug::ConflictAfterExpiry;
        match protocol::commit(lists_ours, index == self.base, expired) {
            Commit::Done => self.committed(world),
            Commit::Resend => Proc::Push(Self { step: Step::Commit, ..*self }),
            Commit::Unknown => Proc::End(Outcome::Unknown),
            Commit::Lost => {
                let may_plan = self.goal == Goal::Push || world.bug == Bug::IndexPlansAgain;
                let same = may_plan && index.kind == Kind::Published && self.plan(index, world);
                match (same, self.plans) {
                    (true, ..3) => Proc::Push(*self),
                    _ => Proc::End(Outcome::Failed(self.id)),
                }
            }
        }
    }

    fn committed(&self, world: &World) -> Proc {
        match self.goal {
            _ if self.missing() != 0 => Proc::Push(Self { step: Step::Upload, ..*self }),
            _ if !world.mirrors => Proc::End(Outcome::Committed(self.id)),
            Goal::Publish => Proc::FirstMirror(FirstMirror::new(self.next, self.want, self.mirror)),
            Goal::Push | Goal::Index => Proc::Mirror(Mirror::of_push(self.next)),
        }
    }
}
