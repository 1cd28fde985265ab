//! The parts of the bucket that a session may access. Session policies, credentials and the cache's access checks are
//! derived from them.

use super::library::RECORDS;
use super::session::Owner;
use super::table::SKILLS_FOLDER;

/// A part of the bucket that a session may access, and its owner. Ordered by kind, then by prefix.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Reach {
    /// Everything below a prefix.
    Below { prefix: String, write: bool, of: Owner },
    /// A library and its sidecar folder, by their common prefix.
    Library { home: String, of: Owner },
}

impl Reach {
    pub(crate) fn library(of: Owner) -> Self {
        Self::Library { home: of.home(), of }
    }

    /// The key prefixes of this part. Each ends with `/`.
    pub(crate) fn prefixes(&self) -> Vec<String> {
        match self {
            Self::Below { prefix, .. } => vec![prefix.clone()],
            Self::Library { home, .. } => {
                [SKILLS_FOLDER, RECORDS].iter().map(|folder| format!("{home}{folder}")).collect()
            }
        }
    }

    pub(crate) fn owner(&self) -> &Owner {
        match self {
            Self::Below { of, .. } | Self::Library { of, .. } => of,
        }
    }
}
