//! What the index says of releases: which skills are published, which are on their way, and who is at it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Sha256;

/// A skill that was published by a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Managed {
    /// The release that it is at.
    pub(crate) release: u64,
    /// When that was made, in seconds since 1970.
    pub(crate) at: u64,
    #[serde(flatten)]
    pub(crate) state: State,
}

impl Managed {
    pub(super) fn weight(&self) -> usize {
        match &self.state {
            State::Published => 0,
            State::Pending { was } | State::Removing { was } => {
                was.iter().map(|(name, etag)| name.len() + etag.len() + 80).sum()
            }
        }
    }
}

/// How far a skill's release is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(crate) enum State {
    /// Its files lie where people and other tools look for them.
    Published,
    /// They are being written there: until that is done, readers take them from the blobs.
    Pending {
        /// The files that lay there before, with their ETags: only these are overwritten or deleted.
        was: BTreeMap<String, String>,
    },
    /// It is being deleted: readers see it no longer.
    Removing {
        /// The same.
        was: BTreeMap<String, String>,
    },
}

impl State {
    /// What lay there before, while it is on its way.
    pub(crate) fn was(&self) -> Option<&BTreeMap<String, String>> {
        match self {
            Self::Published => None,
            Self::Pending { was } | Self::Removing { was } => Some(was),
        }
    }
}

/// Who is publishing, and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Publishing {
    /// Differs from one run to the next.
    pub(crate) owner: String,
    /// For people: who it is.
    pub(crate) by: String,
    /// By the server's clock, in seconds since 1970: the owner writes nothing into the library after it.
    pub(crate) expires: u64,
    /// How long a request of the owner may be on its way: nobody takes over before.
    pub(crate) margin: u64,
}

/// One release, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReleaseNote {
    pub(crate) number: u64,
    /// Part of the name of its record.
    pub(crate) id: String,
    /// In seconds since 1970, by the server's clock.
    pub(crate) at: u64,
    pub(crate) by: String,
    /// Where it came from.
    pub(crate) source: String,
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) created: u64,
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) updated: u64,
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) deleted: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks for a reference
fn is_none(number: &u64) -> bool {
    *number == 0
}

impl ReleaseNote {
    pub(super) fn weight(&self) -> usize {
        self.id.len() + self.by.len() + self.source.len() + 150
    }
}

/// All that a library held after a release: every skill that was published, with its digests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReleaseRecord {
    #[serde(flatten)]
    pub(crate) note: ReleaseNote,
    /// By the path of their directory, then by the path of the file below it.
    pub(crate) skills: BTreeMap<String, BTreeMap<String, RecordedFile>>,
    /// The `DESCRIPTION.md` of categories, by the path of their directory.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) categories: BTreeMap<String, RecordedFile>,
}

/// One file of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordedFile {
    pub(crate) size: u64,
    pub(crate) sha256: Sha256,
}
