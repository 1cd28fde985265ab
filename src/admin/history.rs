//! The release history of a library.

use std::time::SystemTime;

use serde::Serialize;

use super::library::LibraryAdmin;
use crate::error::Result;
use crate::index::{Index, ReleaseNote, time_at};

/// A release of a library, as [`LibraryAdmin::releases`] returns it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Release {
    /// The number of the release, starting at 1.
    pub release: u64,
    /// When it was published.
    #[serde(serialize_with = "crate::entry::rfc3339")]
    pub at: Option<SystemTime>,
    /// Who published it.
    pub by: String,
    /// The origin of its skills.
    pub source: String,
    /// The number of skills that it created.
    pub created: u64,
    /// The number of skills that it updated.
    pub updated: u64,
    /// The number of skills that it deleted.
    pub deleted: u64,
    /// Whether it is the release that readers see.
    pub current: bool,
    /// Skills that are pinned to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pinned: Vec<String>,
}

impl Release {
    fn of(note: &ReleaseNote, index: &Index) -> Self {
        let pinned = index.pins.iter().filter(|(_, release)| **release == note.number);
        Self {
            release: note.number,
            at: time_at(note.at),
            by: note.by.clone(),
            source: note.source.clone(),
            created: note.created,
            updated: note.updated,
            deleted: note.deleted,
            current: index.is_published() && note.id == index.id,
            pinned: pinned.map(|(skill, _)| skill.clone()).collect(),
        }
    }
}

impl LibraryAdmin {
    /// Lists the releases that can be rolled back to, newest first. Costs one request.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn releases(&self) -> Result<Vec<Release>> {
        let Some(found) = self.read_index().await? else { return Ok(Vec::new()) };
        Ok(found.value.releases.iter().rev().map(|note| Release::of(note, &found.value)).collect())
    }
}
