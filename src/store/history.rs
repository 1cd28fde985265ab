//! Write ids: how a lost answer is told from a conflict.
//!
//! Every write puts an id of its own into the object's metadata, before the ids of the versions that it
//! was made from. Whoever lost the answer to a write finds its id there, also when others have changed
//! the object since.

use std::collections::{BTreeMap, HashMap};

use super::object::Meta;
use crate::ambient::Ambient;
use crate::error::Result;

/// The name in the metadata: `x-amz-meta-skillfs-writes`.
const NAME: &str = "skillfs-writes";

/// What S3 allows for the names and values of an object's metadata.
const MAX_METADATA_BYTES: usize = 2048;

/// Names one write, in all its attempts.
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

/// The ids of the writes that led to a version, the newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct History(Vec<String>);

impl History {
    /// Takes the ids out of metadata, and leaves what belongs to others.
    fn take_from(metadata: &mut BTreeMap<String, String>) -> Self {
        let ids = metadata.remove(NAME).unwrap_or_default();
        Self(ids.split(',').filter(|id| !id.is_empty()).map(str::to_owned).collect())
    }

    /// The metadata with as many ids as fit.
    fn put_into(&self, metadata: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut all = metadata.clone();
        let used: usize = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
        let room = MAX_METADATA_BYTES.saturating_sub(used + NAME.len());
        let mut ids = String::new();
        for id in &self.0 {
            let comma = usize::from(!ids.is_empty());
            if ids.len() + comma + id.len() > room {
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

    /// What a write that starts from nothing leaves behind.
    pub(crate) fn first(id: &WriteId) -> Self {
        Self(vec![id.0.clone()])
    }

    /// What a write that was made from a version leaves behind.
    pub(crate) fn grown(&self, id: &WriteId, base: &Meta) -> Self {
        let mut ids = vec![id.0.clone()];
        match self.0.is_empty() {
            true => ids.extend(token(&self.0, base)),
            false => ids.extend(self.0.iter().cloned()),
        }
        Self(ids)
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.0.iter().any(|known| known == id)
    }

    /// Whether the id is that of the last write.
    pub(super) fn ends_with(&self, id: &WriteId) -> bool {
        self.0.first() == Some(&id.0)
    }
}

/// What is kept with an object besides its content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ObjectProperties {
    pub(crate) content_type: Option<String>,
    pub(crate) content_encoding: Option<String>,
    pub(crate) content_language: Option<String>,
    pub(crate) content_disposition: Option<String>,
    pub(crate) cache_control: Option<String>,
    /// Metadata that is not ours.
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) history: History,
}

/// An object as a HEAD shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) meta: Meta,
    pub(crate) properties: ObjectProperties,
}

/// Sets the properties of an object on a request that makes one. A macro, because the SDK's builders share no trait.
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
    /// Metadata as S3 sends it: write ids, and what belongs to others.
    pub(super) fn of_metadata(metadata: Option<HashMap<String, String>>) -> Self {
        let mut metadata = metadata.unwrap_or_default().into_iter().collect();
        let history = History::take_from(&mut metadata);
        Self { metadata, history, ..Self::default() }
    }

    /// Metadata as S3 is sent it.
    pub(super) fn all_metadata(&self) -> HashMap<String, String> {
        self.history.put_into(&self.metadata).into_iter().collect()
    }

    /// What stands for this version in the history of those that are made from it: its last write, or its
    /// ETag when nobody left an id.
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
        assert!(history.ends_with(&other) && !history.ends_with(&mine));
        let mut metadata = history.put_into(&BTreeMap::from([("owner".to_owned(), "ana".to_owned())]));
        assert_eq!(History::take_from(&mut metadata), history);
        assert_eq!(metadata.len(), 1, "what belongs to others stays");
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
            // The newest ones, without a gap.
            assert!(ids.iter().rev().take(kept).all(|id| history.contains(id.as_str())));
        }
    }
}
