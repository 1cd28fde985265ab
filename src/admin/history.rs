//! Releases: what was published when, and by whom.

use std::time::SystemTime;

use serde::Serialize;

use super::library::LibraryAdmin;
use crate::error::Result;
use crate::index::{Index, ReleaseNote, time_at};

/// A release, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Release {
    /// Its number: the first one is 1.
    pub release: u64,
    /// When it was made.
    #[serde(serialize_with = "crate::entry::rfc3339")]
    pub at: Option<SystemTime>,
    /// Who made it.
    pub by: String,
    /// Where it came from.
    pub source: String,
    /// How many skills were new in it.
    pub created: u64,
    /// How many it changed.
    pub updated: u64,
    /// How many it deleted.
    pub deleted: u64,
    /// Whether it is what readers see.
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
    /// The releases of a library that can be rolled back to, the newest first. One request.
    ///
    /// # Errors
    /// Those of the storage.
    pub async fn releases(&self) -> Result<Vec<Release>> {
        let Some(found) = self.read_index().await? else { return Ok(Vec::new()) };
        Ok(found.value.releases.iter().rev().map(|note| Release::of(note, &found.value)).collect())
    }
}
