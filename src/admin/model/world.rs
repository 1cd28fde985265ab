//! The bucket: its objects, its clock, the requests in flight, and the history that the checks need.

#![cfg(test)]

use std::hash::{Hash, Hasher};
use std::time::Duration;

use super::super::protocol::{self, Retention};
use super::{Bug, Violation};

pub(super) const PATHS: usize = 2;
/// Release ids are 1 to 5; 0 means none.
pub(super) const IDS: usize = 6;
/// The release of the push that follows when all others were killed.
pub(super) const NEXT_PUSH: u8 = 5;
/// Contents are 1 to 6 and stand for their own digest and ETag; 0 means absent.
const CONTENTS: usize = 7;
/// Contents from here on are uploaded by other programs only.
pub(super) const FOREIGN: u8 = 5;
/// The mirror's record of a key that someone else removed: unlike any ETag, but not the same as no record.
pub(super) const GONE: u8 = 9;

/// A clock tick is longer than a mirror may be written after its commit, and longer than a request can be in flight.
const TICK: u64 = 3601;
pub(super) const RETENTION: Retention = Retention { releases: 1, grace: Duration::from_secs(7 * TICK) };
/// Ticks that are longer than the grace period.
pub(super) const JUMP: u8 = 8;

pub(super) fn between(from: u8, to: u8) -> Duration {
    Duration::from_secs(u64::from(to.saturating_sub(from)) * TICK)
}

/// One content for each path. (With `PATHS` for the length, rustc 1.95 crashes on closures that capture it.)
pub(super) type Contents = [u8; 2];

/// A blob key: the content's digest and the release that uploaded it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Entry {
    pub(super) content: u8,
    pub(super) by: u8,
}

// The largest part of a state is hashed in one piece, because hashing takes most of the time.
impl Hash for Entry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u8(self.content << 4 | self.by);
    }
}

impl Entry {
    pub(super) fn bit(self) -> u64 {
        1 << (usize::from(self.content) * IDS + usize::from(self.by))
    }

    fn from_bit(bit: u32) -> Self {
        let by = bit % 6;
        Self { content: ((bit - by) / 6).to_le_bytes()[0], by: by.to_le_bytes()[0] }
    }
}

pub(super) type Tree = [Entry; 2];

pub(super) fn contents(tree: Tree) -> Contents {
    tree.map(|entry| entry.content)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Release {
    pub(super) number: u8,
    pub(super) id: u8,
    pub(super) at: u8,
}

impl Hash for Release {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&[self.number, self.id, self.at]);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) enum Kind {
    #[default]
    Missing,
    Plain,
    Published,
}

/// The index object. Equal content means an equal ETag, so it serves as its own ETag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Index {
    pub(super) kind: Kind,
    list: [Release; 5],
    len: u8,
    pub(super) tree: Tree,
}

impl Index {
    pub(super) fn list(&self) -> &[Release] {
        &self.list[..usize::from(self.len)]
    }

    pub(super) fn newest(&self) -> Release {
        self.list().last().copied().unwrap_or_default()
    }

    /// The release that the newest one is based on.
    pub(super) fn base(&self) -> Release {
        self.list().iter().rev().nth(1).copied().unwrap_or_default()
    }

    pub(super) fn lists(&self, id: u8) -> bool {
        self.list().iter().any(|release| release.id == id)
    }

    /// The index of the next release.
    pub(super) fn next(&self, id: u8, tree: Tree, now: u8) -> Self {
        let mut all = self.list().to_vec();
        all.push(Release { number: self.newest().number + 1, id, at: now });
        let mut next = Self { kind: Kind::Published, list: <_>::default(), len: 0, tree };
        for (i, release) in all.iter().enumerate() {
            let superseded = all.get(i + 1).map(|next| u64::from(next.at) * TICK);
            let from_newest = all.len() - 1 - i;
            if protocol::stays_listed(from_newest, superseded, false, u64::from(now) * TICK, RETENTION) {
                next.list[usize::from(next.len)] = *release;
                next.len += 1;
            }
        }
        next
    }

    pub(super) fn plain(&self) -> Self {
        Self { kind: Kind::Plain, tree: <_>::default(), ..*self }
    }
}

/// A release record; it is keyed by number and id, because a push that plans again writes another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Record {
    number: u8,
    tree: Tree,
    at: u8,
}

impl Hash for Record {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [a, b] = self.tree;
        state.write(&[self.number, a.content, a.by, b.content, b.by, self.at]);
    }
}

/// `mirror.json`; `release` is 0 while there is none. `by` and `attempt` make the
/// content, and so the ETag, unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct MirrorRecord {
    pub(super) release: u8,
    pub(super) number: u8,
    pub(super) etags: Contents,
    pub(super) settled: bool,
    pub(super) by: u8,
    pub(super) attempt: u8,
    /// When it was written, by the bucket's clock: not part of the content.
    pub(super) at: u8,
}

impl MirrorRecord {
    pub(super) fn same_content(self, other: Self) -> bool {
        Self { at: 0, ..self } == Self { at: 0, ..other }
    }
}

/// A conditional write. Uploads of blobs and records are not among these: repeating them, or a late duplicate,
/// changes nothing, because they are create-only under a key that only one push uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Request {
    Index { expect: Index, new: Index, commit: Option<Committed> },
    Plain { path: u8, expect: u8, new: u8, by: u8, overwrite: bool },
    Mirror { expect: MirrorRecord, new: MirrorRecord },
}

/// What a commit claims to do, for the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Committed {
    pub(super) id: u8,
    pub(super) before: Contents,
    pub(super) changed: [bool; PATHS],
    /// It publishes what other programs changed in the plain keys.
    pub(super) drift: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) clock: u8,
    pub(super) index: Index,
    pub(super) index_at: u8,
    records: [[Record; 2]; IDS],
    /// When each blob was uploaded, plus one; 0 means absent.
    blobs: [[u8; IDS]; CONTENTS],
    pub(super) plain: Contents,
    pub(super) mirror: MirrorRecord,
    /// A request that may still take effect after its sender gave up waiting.
    pub(super) late: Option<Request>,
    /// Deletions of blobs that may take effect again at any time.
    pub(super) late_deletes: u64,
    /// Which releases were ever committed, and what they contain.
    pub(super) committed: u8,
    history: [Contents; IDS],
    /// The plain keys at the moment when the library became a published one.
    published_from: Contents,
    /// Paths whose key another program removed.
    pub(super) removed: u8,
    /// Whether the mirror is settled, or was when the last one announced to write it.
    complete: bool,
    pub(super) violation: Option<Violation>,
    pub(super) bug: Bug,
    /// See `Scenario`.
    pub(super) mirrors: bool,
}

impl World {
    /// A library with one old release, number 1 and id 1, and a settled mirror.
    pub(super) fn published(files: Contents, bug: Bug) -> Self {
        let mut world = Self::plain(files, bug);
        let tree = files.map(|content| world.entry(content, 1));
        for entry in tree.into_iter().filter(|entry| entry.content != 0) {
            world.put_blob(entry);
        }
        world.index = Index::default().next(1, tree, 0);
        world.put_record(&world.index.clone());
        world.committed = 1 << 1;
        world.history[1] = files;
        world.mirror =
            MirrorRecord { release: 1, number: 1, etags: files, settled: true, by: 1, ..<_>::default() };
        world.complete = true;
        world.clock = 2;
        world
    }

    /// A library without an index.
    pub(super) fn plain(files: Contents, bug: Bug) -> Self {
        Self {
            clock: 0,
            index: Index::default(),
            index_at: 0,
            records: <_>::default(),
            blobs: <_>::default(),
            plain: files,
            mirror: MirrorRecord::default(),
            late: None,
            late_deletes: 0,
            committed: 0,
            history: <_>::default(),
            published_from: <_>::default(),
            removed: 0,
            complete: false,
            violation: None,
            bug,
            mirrors: false,
        }
    }

    pub(super) fn fail(&mut self, violation: Violation) {
        self.violation = self.violation.or(Some(violation));
    }

    pub(super) fn since(&self, at: u8) -> Duration {
        between(at, self.clock)
    }

    /// The key under which a release uploads a content.
    pub(super) fn entry(&self, content: u8, id: u8) -> Entry {
        match content {
            0 => Entry::default(),
            _ => Entry { content, by: if self.bug == Bug::BlobKeysWithoutRelease { 1 } else { id } },
        }
    }

    pub(super) fn put_blob(&mut self, entry: Entry) {
        let at = &mut self.blobs[usize::from(entry.content)][usize::from(entry.by)];
        if *at == 0 {
            *at = self.clock + 1;
        }
    }

    pub(super) fn has_blob(&self, entry: Entry) -> bool {
        entry.content == 0 || self.blobs[usize::from(entry.content)][usize::from(entry.by)] != 0
    }

    /// Every blob with its age at `now`.
    pub(super) fn blobs(&self, now: u8) -> impl Iterator<Item = (Entry, Duration)> {
        (0..)
            .zip(self.blobs.as_flattened())
            .filter(|(_, at)| **at != 0)
            .map(move |(bit, at)| (Entry::from_bit(bit), between(at - 1, now)))
    }

    pub(super) fn delete_blobs(&mut self, blobs: u64) {
        for (bit, at) in self.blobs.as_flattened_mut().iter_mut().enumerate() {
            if blobs & 1 << bit != 0 {
                *at = 0;
            }
        }
    }

    /// Writes the record of the newest release of `index`.
    pub(super) fn put_record(&mut self, index: &Index) {
        let Release { number, id, .. } = index.newest();
        let slots = &mut self.records[usize::from(id)];
        if let Some(slot) = slots.iter_mut().find(|slot| slot.number == 0 || slot.number == number) {
            *slot = Record { number, tree: index.tree, at: self.clock };
        }
    }

    pub(super) fn record(&self, number: u8, id: u8) -> Option<Tree> {
        let slots = &self.records[usize::from(id)];
        slots.iter().find(|slot| slot.number == number && number != 0).map(|slot| slot.tree)
    }

    /// Deletes the records that `index` does not list and that were old enough at `now`.
    pub(super) fn prune_records(&mut self, index: &Index, now: u8) {
        for (id, slot) in
            (0..).zip(&mut self.records).flat_map(|(id, slots)| slots.iter_mut().map(move |s| (id, s)))
        {
            let named = index.list().iter().any(|release| release.id == id && release.number == slot.number);
            let age = between(slot.at, now);
            if slot.number != 0 && protocol::is_garbage(named, age, RETENTION) {
                *slot = Record::default();
            }
        }
        for slots in &mut self.records {
            slots.sort_by_key(|slot| slot.number == 0);
        }
    }

    /// Whether a release that `index` lists has this content at this path.
    pub(super) fn listed(&self, index: &Index, path: usize, content: u8) -> bool {
        let trees = index.list().iter().filter_map(|release| self.record(release.number, release.id));
        trees.into_iter().any(|tree| tree[path].content == content)
    }

    /// Whether any release ever had this content at this path.
    fn ever(&self, path: usize, content: u8) -> bool {
        self.history.iter().any(|files| files[path] == content)
    }

    /// Whether these are the files of one release.
    pub(super) fn is_release(&self, files: Contents) -> bool {
        (1..IDS).any(|id| self.committed & 1 << id != 0 && self.history[id] == files)
    }

    /// Whether a key contains something that only another program can have put there.
    pub(super) fn is_drift(&self, path: usize, content: u8) -> bool {
        content >= FOREIGN && !self.ever(path, content)
    }

    /// Executes a conditional write; `false` if the condition fails.
    pub(super) fn apply(&mut self, request: &Request) -> bool {
        match *request {
            Request::Index { expect, new, commit } => {
                let ok = self.index == expect || self.bug == Bug::UnconditionalCommit;
                if ok {
                    self.committing(&new, commit);
                    (self.index, self.index_at) = (new, self.clock);
                }
                ok
            }
            Request::Plain { path, expect, new, by, overwrite } => {
                let path = usize::from(path);
                let now = self.plain[path];
                let ok = now == expect || self.bug == Bug::UnconditionalMirror;
                if ok {
                    let known = self.mirror.settled || self.mirror.by == by;
                    let complete = self.complete && known && self.mirror.release == self.index.newest().id;
                    let undone = now == 0 && self.removed & 1 << path != 0 && complete;
                    if (self.is_drift(path, now) && now != new || undone) && !overwrite {
                        self.fail(Violation::DriftOverwritten);
                    }
                    // The plain keys of a plain library are not a mirror any more.
                    if self.index.kind == Kind::Plain && now != new {
                        self.fail(Violation::Disappeared);
                    }
                    self.plain[path] = new;
                    self.removed &= !(1 << path);
                }
                ok
            }
            Request::Mirror { expect, new } => {
                let ok = self.mirror.same_content(expect);
                if ok {
                    // A process that announced to write a settled mirror treats a missing key as removed.
                    let announced = MirrorRecord {
                        settled: expect.settled,
                        by: expect.by,
                        attempt: expect.attempt,
                        ..new
                    };
                    self.complete = new.settled || expect.settled && announced.same_content(expect);
                    self.mirror = MirrorRecord { at: self.clock, ..new };
                }
                ok
            }
        }
    }

    fn committing(&mut self, new: &Index, commit: Option<Committed>) {
        let Some(Committed { id, before, changed, drift }) = commit else {
            // Unpublishing: from now on the plain keys are the library.
            let lost = (0..PATHS).any(|path| {
                let (now, is) = (self.plain[path], self.index.tree[path].content);
                now != is && !self.is_drift(path, now) && self.removed & 1 << path == 0
            });
            if lost {
                self.fail(Violation::Disappeared);
            }
            return;
        };
        if self.committed & 1 << id != 0 {
            self.fail(Violation::CommittedTwice);
        }
        let old = self.index;
        let kept = |release: &Release| {
            let superseded = old.list().iter().find(|next| next.number > release.number).map(|next| next.at);
            new.lists(release.id) || superseded.is_some_and(|at| self.since(at) >= RETENTION.grace)
        };
        if !old.list().iter().all(kept) {
            self.fail(Violation::LostRelease);
        }
        for path in 0..PATHS {
            let (was, is) = (old.tree[path].content, new.tree[path].content);
            if old.kind == Kind::Published && was != if changed[path] { before[path] } else { is } {
                self.fail(Violation::LostRelease);
            }
            let stale = if is == 0 { self.removed & 1 << path == 0 } else { !self.is_drift(path, is) };
            if drift && changed[path] && stale {
                self.fail(Violation::StaleMirrorPublished);
            }
        }
        if old.kind != Kind::Published {
            self.published_from = self.plain;
        }
        self.committed |= 1 << id;
        self.history[usize::from(id)] = contents(new.tree);
    }

    /// Checks the invariants of every state.
    pub(super) fn check(&self) -> Option<Violation> {
        let blobs = |tree: &Tree| tree.iter().all(|entry| self.has_blob(*entry));
        let records =
            self.index.list().iter().all(|r| self.record(r.number, r.id).is_some_and(|tree| blobs(&tree)));
        let complete = records && blobs(&self.index.tree);
        self.violation.or((!complete).then_some(Violation::MissingBlob))
    }

    /// Whether every file that was in a library when it was published, and still exists, has been in a release.
    pub(super) fn all_published(&self) -> bool {
        (0..PATHS).all(|path| match self.published_from[path] {
            0 => true,
            content => self.plain[path] != content || self.ever(path, content),
        })
    }

    /// Whether the mirror equals the newest release, except for keys that other programs changed.
    pub(super) fn is_mirrored(&self) -> bool {
        (0..PATHS).all(|path| {
            let now = self.plain[path];
            now == self.index.tree[path].content
                || self.is_drift(path, now)
                || now == 0 && self.removed & 1 << path != 0
        })
    }
}
