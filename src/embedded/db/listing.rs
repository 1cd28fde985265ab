//! Listing: keys in order, grouped by a delimiter as S3 groups them, from any point on.
//!
//! A group is skipped with one seek, however many keys are in it.

use std::ops::Bound;

use redb::ReadableDatabase;

use super::{Db, DbError, OBJECTS, Record, object_key};

/// What to list.
#[derive(Debug)]
pub(in crate::embedded) struct ListQuery {
    pub(in crate::embedded) bucket: String,
    pub(in crate::embedded) prefix: String,
    pub(in crate::embedded) delimiter: Option<String>,
    pub(in crate::embedded) after: Option<After>,
    pub(in crate::embedded) max: usize,
}

/// Where a listing goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::embedded) enum After {
    /// Behind this key.
    Key(String),
    /// Behind every key that begins so.
    Group(String),
}

/// What was found, in key order.
#[derive(Debug, Default)]
pub(in crate::embedded) struct ListResult {
    pub(in crate::embedded) items: Vec<ListItem>,
    pub(in crate::embedded) truncated: bool,
}

#[derive(Debug)]
pub(in crate::embedded) enum ListItem {
    Object(String, Record),
    Group(String),
}

impl ListItem {
    pub(in crate::embedded) fn after(&self) -> After {
        match self {
            Self::Object(key, _) => After::Key(key.clone()),
            Self::Group(group) => After::Group(group.clone()),
        }
    }
}

impl Db {
    pub(in crate::embedded) fn list(&self, query: &ListQuery) -> Result<ListResult, DbError> {
        self.check_bucket(&query.bucket)?;
        let objects = self.database.begin_read()?.open_table(OBJECTS)?;
        let mut result = ListResult::default();
        let skip = query.bucket.len() + 1;
        let prefix = object_key(&query.bucket, &query.prefix);
        let mut from = match &query.after {
            Some(After::Key(key)) => Bound::Excluded(object_key(&query.bucket, key)),
            Some(After::Group(group)) => Bound::Included(successor(object_key(&query.bucket, group))),
            None => Bound::Unbounded,
        };
        let first = match &from {
            Bound::Included(at) | Bound::Excluded(at) => prefix > *at,
            Bound::Unbounded => true,
        };
        if first {
            from = Bound::Included(prefix.clone());
        }
        // Each turn starts behind a group of keys that share a delimiter, without touching them.
        'groups: loop {
            let lower = match &from {
                Bound::Included(at) => Bound::Included(at.as_slice()),
                Bound::Excluded(at) => Bound::Excluded(at.as_slice()),
                Bound::Unbounded => Bound::Unbounded,
            };
            for row in objects.range::<&[u8]>((lower, Bound::Unbounded))? {
                let (full, row) = row?;
                let full = full.value();
                if !full.starts_with(&prefix) {
                    break 'groups;
                }
                if result.items.len() == query.max {
                    result.truncated = query.max > 0;
                    break 'groups;
                }
                let key = String::from_utf8_lossy(&full[skip..]).into_owned();
                let rest = &key[query.prefix.len()..];
                match query.delimiter.as_deref().and_then(|d| Some(rest.find(d)? + d.len())) {
                    Some(end) => {
                        let group = key[..query.prefix.len() + end].to_owned();
                        from = Bound::Included(successor(object_key(&query.bucket, &group)));
                        result.items.push(ListItem::Group(group));
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

/// The least key behind all keys with this prefix. UTF-8 has no byte 0xFF: adding one is enough.
fn successor(mut prefix: Vec<u8>) -> Vec<u8> {
    if let Some(last) = prefix.last_mut() {
        *last += 1;
    }
    prefix
}
