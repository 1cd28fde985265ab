//! Listing: keys in order, from any starting point, grouped by a delimiter as on S3.
//!
//! A group is skipped with a single seek, no matter how many keys it has.

use redb::ReadableDatabase;

use super::{Db, DbError, OBJECTS, Record, object_key};

/// A listing request.
#[derive(Debug)]
pub(in crate::embedded) struct ListQuery {
    pub(in crate::embedded) bucket: String,
    pub(in crate::embedded) prefix: String,
    pub(in crate::embedded) delimiter: Option<String>,
    /// The first key to list, inclusive. It need not be a valid key, nor valid UTF-8.
    pub(in crate::embedded) from: Vec<u8>,
    pub(in crate::embedded) max: usize,
}

/// A page of results in key order.
#[derive(Debug, Default)]
pub(in crate::embedded) struct ListResult {
    pub(in crate::embedded) items: Vec<ListItem>,
    /// The start of the next page, if there is one.
    pub(in crate::embedded) next: Option<Vec<u8>>,
}

#[derive(Debug)]
pub(in crate::embedded) enum ListItem {
    Object(String, Record),
    Group(String),
}

impl ListItem {
    /// The smallest key after this item.
    fn successor(&self) -> Vec<u8> {
        match self {
            Self::Object(key, _) => successor_of_key(key),
            Self::Group(group) => {
                let mut next = group.clone().into_bytes();
                // The smallest key after all keys with this prefix. UTF-8 does not contain the byte 0xFF, so
                // the increment cannot overflow.
                if let Some(last) = next.last_mut() {
                    *last += 1;
                }
                next
            }
        }
    }
}

/// The smallest key after this one.
pub(in crate::embedded) fn successor_of_key(key: &str) -> Vec<u8> {
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
        // Each iteration seeks past a group of keys without reading them.
        'groups: loop {
            for row in objects.range::<&[u8]>(from.as_slice()..)? {
                let (full, row) = row?;
                let full = full.value();
                if !full.starts_with(&prefix) {
                    break 'groups;
                }
                if result.items.len() == query.max {
                    result.next = result.items.last().map(ListItem::successor);
                    break 'groups;
                }
                let key = String::from_utf8_lossy(&full[skip..]).into_owned();
                let rest = &key[query.prefix.len()..];
                match query.delimiter.as_deref().and_then(|d| Some(rest.find(d)? + d.len())) {
                    Some(end) => {
                        let group = ListItem::Group(key[..query.prefix.len() + end].to_owned());
                        from = object_key(&query.bucket, group.successor());
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
