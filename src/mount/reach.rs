//! What of the bucket a session reaches: for policies, credentials, and what may be told from memory.

use super::library::RECORDS;
use super::session::Owner;
use super::table::SKILLS_FOLDER;

/// A part of the bucket that a session reaches, and whose it is. Ordered by kind, then by prefix.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Reach {
    /// All that lies below a prefix.
    Below { prefix: String, write: bool, of: Owner },
    /// A library and what lies beside it, by the prefix of both.
    Library { home: String, of: Owner },
}

impl Reach {
    pub(crate) fn library(of: Owner) -> Self {
        Self::Library { home: of.home(), of }
    }

    /// The prefixes of all keys in it. Each ends with `/`.
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
