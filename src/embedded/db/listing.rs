//! Listing: keys in order, grouped by a delimiter as S3 groups them, from any point on.
//!
//! A group is skipped with one seek, however many keys are in it.

use redb::ReadableDatabase;

use super::{Db, DbError, OBJECTS, Record, object_key};

/// What to list.
#[derive(Debug)]
pub(in crate::embedded) struct ListQuery {
    pub(in crate::embedded) bucket: String,
    pub(in crate::embedded) prefix: String,
    pub(in crate::embedded) delimiter: Option<String>,
    /// The least key to list. It need not be a key that could exist, nor be text.
    pub(in crate::embedded) from: Vec<u8>,
    pub(in crate::embedded) max: usize,
}

/// What was found, in key order.
#[derive(Debug, Default)]
pub(in crate::embedded) struct ListResult {
    pub(in crate::embedded) items: Vec<ListItem>,
    /// Where the listing goes on, if there is more.
    pub(in crate::embedded) next: Option<Vec<u8>>,
}

#[derive(Debug)]
pub(in crate::embedded) enum ListItem {
    Object(String, Record),
    Group(String),
}

impl ListItem {
    /// The least key behind it.
    fn behind(&self) -> Vec<u8> {
        match self {
            Self::Object(key, _) => behind_key(key),
            Self::Group(group) => {
                let mut next = group.clone().into_bytes();
                // Behind all keys that begin so. UTF-8 has no byte 0xFF: adding one is enough.
                if let Some(last) = next.last_mut() {
                    *last += 1;
                }
                next
            }
        }
    }
}

/// The least key behind this one.
pub(in crate::embedded) fn behind_key(key: &str) -> Vec<u8> {
    [key.as_bytes(), b"\0"].concat()
}

impl Db {
    pub(in crate::embedded) fn list(&self, query: &ListQuery) -> Result<ListResult, DbError> {
        self.check_bucket(&query.bucket)?;
        let objects = self.database.begin_read()?.open_table(OBJECTS)?;
        let mut result = ListResult::default();
        let skip = query.bucket.len() + 1;
        let prefix = object_key(&query.bucket, &query.prefix);
        let mut from = object_key(&query.bucket, &query.from).max(prefix.clone());
        // Each turn starts behind a group of keys that share a delimiter, without touching them.
        'groups: loop {
            for row in objects.range::<&[u8]>(from.as_slice()..)? {
                let (full, row) = row?;
                let full = full.value();
                if !full.starts_with(&prefix) {
                    break 'groups;
                }
                if result.items.len() == query.max {
                    result.next = result.items.last().map(ListItem::behind);
                    break 'groups;
                }
                let key = String::from_utf8_lossy(&full[skip..]).into_owned();
                let rest = &key[query.prefix.len()..];
                match query.delimiter.as_deref().and_then(|d| Some(rest.find(d)? + d.len())) {
                    Some(end) => {
                        let group = ListItem::Group(key[..query.prefix.len() + end].to_owned());
                        from = object_key(&query.bucket, group.behind());
                        result.items.push(group);
                        continue 'groups;
                    }
                    None => result.items.push(ListItem::Object(key, Record::from_row(row.value()))),
                }
            }
            break;
        }
        Ok(result)
    }
}
