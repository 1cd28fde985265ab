//! Write ids, which distinguish a lost response from a conflict.
//!
//! Every write stores a unique id in the object's metadata, in front of the ids of the versions it was derived from. A
//! writer that lost the response finds its id there if the write took effect, even if others have changed the object
//! since.

use std::collections::{BTreeMap, HashMap};

use super::object::Meta;
use crate::ambient::Ambient;
use crate::error::Result;

/// The metadata name; the header is `x-amz-meta-skillfs-writes`.
const NAME: &str = "skillfs-writes";

/// S3's limit for all names and values of an object's user metadata.
const MAX_METADATA_BYTES: usize = 2048;

/// Identifies one write across all its attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WriteId(String);

impl WriteId {
    pub(crate) fn new(ambient: &Ambient) -> Result<Self> {
        Ok(Self(ambient.id()?))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The ids of the writes that led to a version, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct History(Vec<String>);

impl History {
    /// Removes the ids from the metadata, and leaves other tools' metadata alone.
    fn take_from(metadata: &mut BTreeMap<String, String>) -> Self {
        let ids = metadata.remove(NAME).unwrap_or_default();
        Self(ids.split(',').filter(|id| !id.is_empty()).map(str::to_owned).collect())
    }

    /// Returns the metadata with as many of the newest ids as fit.
    fn put_into(&self, metadata: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut all = metadata.clone();
        let used: usize = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
        let available = MAX_METADATA_BYTES.saturating_sub(used + NAME.len());
        let mut ids = String::new();
        for id in &self.0 {
            let comma = usize::from(!ids.is_empty());
            if ids.len() + comma + id.len() > available {
                break;
            }
            ids.push_str(&","[..comma]);
            ids.push_str(id);
        }
        if !ids.is_empty() {
            all.insert(NAME.to_owned(), ids);
        }
        all
    }

    /// The history after a write that does not derive from an earlier version.
    pub(crate) fn first(id: &WriteId) -> Self {
        Self(vec![id.0.clone()])
    }

    /// The history after a write that derives from the version `base`.
    pub(crate) fn grown(&self, id: &WriteId, base: &Meta) -> Self {
        let mut ids = vec![id.0.clone()];
        match self.0.is_empty() {
            true => ids.extend(token(&self.0, base)),
            false => ids.extend(self.0.iter().cloned()),
        }
        Self(ids)
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.0.iter().any(|own| own == id)
    }

    /// Returns whether this is the id of the latest write.
    pub(super) fn is_latest(&self, id: &WriteId) -> bool {
        self.0.first() == Some(&id.0)
    }
}

/// The headers and metadata stored with an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ObjectProperties {
    pub(crate) content_type: Option<String>,
    pub(crate) content_encoding: Option<String>,
    pub(crate) content_language: Option<String>,
    pub(crate) content_disposition: Option<String>,
    pub(crate) cache_control: Option<String>,
    /// User metadata of other tools.
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) history: History,
}

/// An object as reported by a HEAD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) meta: Meta,
    pub(crate) properties: ObjectProperties,
}

/// Sets the object properties on a request that creates an object. A macro, because the SDK's builders share no trait.
macro_rules! with_properties {
    ($request:expr, $properties:expr) => {{
        let properties: &$crate::store::history::ObjectProperties = $properties;
        $request
            .set_content_type(properties.content_type.clone())
            .set_content_encoding(properties.content_encoding.clone())
            .set_content_language(properties.content_language.clone())
            .set_content_disposition(properties.content_disposition.clone())
            .set_cache_control(properties.cache_control.clone())
            .set_metadata(Some(properties.all_metadata()))
    }};
}
pub(super) use with_properties;

impl ObjectProperties {
    /// Splits user metadata from a response into write ids and other tools' metadata.
    pub(super) fn of_metadata(metadata: Option<HashMap<String, String>>) -> Self {
        let mut metadata = metadata.unwrap_or_default().into_iter().collect();
        let history = History::take_from(&mut metadata);
        Self { metadata, history, ..Self::default() }
    }

    /// The user metadata to send: other tools' metadata and the write ids.
    pub(super) fn all_metadata(&self) -> HashMap<String, String> {
        self.history.put_into(&self.metadata).into_iter().collect()
    }

    /// The token of this version in the history of versions derived from it: its latest write id, or its ETag if it has
    /// none.
    pub(crate) fn token(&self, meta: &Meta) -> Option<String> {
        token(&self.history.0, meta)
    }
}

fn token(ids: &[String], meta: &Meta) -> Option<String> {
    ids.first().cloned().or_else(|| meta.etag.as_ref().map(|etag| format!("@{etag}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(etag: &str) -> Meta {
        Meta { size: 0, modified: None, etag: Some(etag.to_owned()) }
    }

    #[test]
    fn ids_survive_the_writes_of_others() {
        let (mine, other) =
            (WriteId::new(&Ambient::default()).unwrap(), WriteId::new(&Ambient::default()).unwrap());
        let history = History::default().grown(&mine, &meta("e0")).grown(&other, &meta("e1"));
        assert!(history.contains(mine.as_str()) && history.contains("@e0"));
        assert!(history.is_latest(&other) && !history.is_latest(&mine));
        let mut metadata = history.put_into(&BTreeMap::from([("owner".to_owned(), "ana".to_owned())]));
        assert_eq!(History::take_from(&mut metadata), history);
        assert_eq!(metadata.len(), 1, "other tools' metadata was changed");
    }

    #[test]
    fn the_last_ids_stay_within_two_kilobytes() {
        for others in [0, 100, 1500, 2020, 2030, 2048, 3000] {
            let metadata = BTreeMap::from([("n".to_owned(), "x".repeat(others))]);
            let mut history = History::default();
            let mut ids = Vec::new();
            for _ in 0..300 {
                let id = WriteId::new(&Ambient::default()).unwrap();
                history = history.grown(&id, &meta("e"));
                ids.push(id);
                let mut all = history.put_into(&metadata);
                let bytes: usize = all.iter().map(|(name, value)| name.len() + value.len()).sum();
                assert!(bytes <= MAX_METADATA_BYTES.max(others + 1), "{bytes}");
                assert_eq!(all["n"].len(), others);
                history = History::take_from(&mut all);
            }
            let kept = history.0.len();
            assert_eq!(kept >= 150, others == 0, "{kept}");
            // The newest ids are kept, without a gap.
            assert!(ids.iter().rev().take(kept).all(|id| history.contains(id.as_str())));
        }
    }
}
