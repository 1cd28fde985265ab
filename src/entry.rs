//! The results of listings and `stat`.

use std::iter::Peekable;
use std::time::SystemTime;

use serde::{Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::path::VirtualPath;

/// How deep a listing goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Depth {
    /// Only the direct entries of a directory.
    One,
    /// Everything below a directory.
    All,
}

/// A file or a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum EntryKind {
    /// Has content. Sorts before a directory of the same name.
    File,
    /// Has entries. Exists as long as there is a key below it.
    Directory,
}

/// One file or directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Entry {
    /// The full virtual path.
    pub path: VirtualPath,
    /// Whether it is a file or a directory.
    pub kind: EntryKind,
    /// The size in bytes. `None` for a directory.
    pub size: Option<u64>,
    /// When it was last modified, with a precision of seconds. `None` for a directory.
    #[serde(serialize_with = "rfc3339")]
    pub modified: Option<SystemTime>,
    /// An opaque token that changes when the content changes. `None` for a directory.
    pub etag: Option<String>,
}

impl Entry {
    pub(crate) fn directory(path: VirtualPath) -> Self {
        Self { path, kind: EntryKind::Directory, size: None, modified: None, etag: None }
    }

    /// Returns whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.kind == EntryKind::Directory
    }

    /// Returns the last segment of its path. Empty for the root.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.name().unwrap_or_default()
    }
}

/// All entries of a directory, sorted by path bytes. A file sorts before a directory of the same
/// name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Listing {
    /// The entries.
    pub entries: Vec<Entry>,
    /// The number of keys, or directories of keys, that no path can name.
    pub hidden: u64,
}

impl Listing {
    pub(crate) fn push(&mut self, page: Page) {
        self.entries.extend(page.entries);
        self.hidden += page.hidden;
    }

    pub(crate) fn sort(&mut self) {
        self.entries.sort_by(|a, b| (&a.path, a.kind).cmp(&(&b.path, b.kind)));
    }
}

/// A page of entries, in key order: `a-b` comes before the contents of `a/`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Page {
    /// The entries.
    pub entries: Vec<Entry>,
    /// The number of keys, or directories of keys, that no path can name.
    pub hidden: u64,
}

/// A directory tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Tree {
    /// The file or directory itself.
    #[serde(flatten)]
    pub entry: Entry,
    /// Its entries, sorted by path bytes. Empty for a file.
    pub children: Vec<Tree>,
    /// The number of keys anywhere in the tree that no path can name. Only set at the top.
    #[serde(skip_serializing_if = "is_zero")]
    pub hidden: u64,
}

impl Tree {
    /// Builds the tree of `top` from a recursive listing, in any order.
    pub(crate) fn grow(top: VirtualPath, mut listing: Listing) -> Self {
        // Compared by segments, the contents of a directory come directly after it.
        listing.entries.sort_by(|a, b| a.path.segments().cmp(b.path.segments()).then(a.kind.cmp(&b.kind)));
        let mut rest = listing.entries.into_iter().peekable();
        let mut children = Vec::new();
        while let Some(entry) = rest.next() {
            children.push(Self::branch(entry, &mut rest));
        }
        Self { entry: Entry::directory(top), children, hidden: listing.hidden }
    }

    /// Builds a subtree from an entry and those of the following entries that are inside it.
    fn branch(entry: Entry, rest: &mut Peekable<std::vec::IntoIter<Entry>>) -> Self {
        let mut children = Vec::new();
        while let Some(child) =
            rest.next_if(|next| entry.is_directory() && next.path.parent().as_ref() == Some(&entry.path))
        {
            children.push(Self::branch(child, rest));
        }
        Self { entry, children, hidden: 0 }
    }

    /// Returns the number of directories and files in the tree, excluding itself.
    #[must_use]
    pub fn count(&self) -> (u64, u64) {
        let (mut directories, mut files) = (0, 0);
        let mut left: Vec<&Self> = self.children.iter().collect();
        while let Some(tree) = left.pop() {
            match tree.entry.kind {
                EntryKind::File => files += 1,
                EntryKind::Directory => directories += 1,
            }
            left.extend(&tree.children);
        }
        (directories, files)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Formats a time as in JSON: `2026-11-16T09:30:00Z`; `-` for a year that no calendar has.
#[must_use]
pub fn format_time(time: SystemTime) -> String {
    let seconds = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).ok(),
        Err(before) => i64::try_from(before.duration().as_secs()).ok().map(|seconds| -seconds),
    };
    // A server may send a year that cannot be represented.
    let time = seconds.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| "-".to_owned())
}

pub(crate) fn rfc3339<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(format_time).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn entry(path: &str, kind: EntryKind) -> Entry {
        Entry { kind, ..Entry::directory(VirtualPath::parse(path).unwrap()) }
    }

    #[test]
    fn the_keys_of_an_entry_are_stable() {
        let file = Entry {
            size: Some(7),
            modified: Some(UNIX_EPOCH + Duration::from_millis(1_700_000_000_123)),
            etag: Some("abc".into()),
            ..entry("/workspace/a.md", EntryKind::File)
        };
        assert_eq!(
            serde_json::to_string(&file).unwrap(),
            r#"{"path":"/workspace/a.md","kind":"file","size":7,"modified":"2023-11-14T22:13:20Z","etag":"abc"}"#
        );
        assert_eq!(
            serde_json::to_string(&entry("/skills", EntryKind::Directory)).unwrap(),
            r#"{"path":"/skills","kind":"directory","size":null,"modified":null,"etag":null}"#
        );
    }

    #[test]
    fn unrepresentable_times_do_not_panic() {
        assert_eq!(format_time(UNIX_EPOCH + Duration::from_secs(300_000_000_000)), "-");
        assert_eq!(format_time(UNIX_EPOCH - Duration::from_secs(1)), "1969-12-31T23:59:59Z");
    }

    #[test]
    fn tree_is_built_from_entries_in_any_order() {
        use EntryKind::{Directory, File};
        let mut entries = vec![
            entry("/w/a", File),
            entry("/w/a", Directory),
            entry("/w/a/x", File),
            entry("/w/a-b", File),
            entry("/w/b", Directory),
            entry("/w/b/c", Directory),
            entry("/w/b/c/d", File),
        ];
        let tree = |entries: &[Entry]| {
            Tree::grow(VirtualPath::parse("/w").unwrap(), Listing { entries: entries.to_vec(), hidden: 3 })
        };
        let expected = tree(&entries);
        let names: Vec<_> = expected.children.iter().map(|t| (t.entry.name(), t.entry.kind)).collect();
        assert_eq!(names, [("a", File), ("a", Directory), ("a-b", File), ("b", Directory)]);
        assert_eq!(expected.children[1].children[0].entry.path.as_str(), "/w/a/x");
        assert_eq!(expected.count(), (3, 4));
        assert_eq!(expected.hidden, 3);
        entries.reverse();
        assert_eq!(tree(&entries), expected);
    }
}
