//! `mirror.json`: the release that the plain keys of a published library mirror, and their ETags as
//! written.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ReleaseId, Unreadable, check_path};

/// Versioned separately: a newer index format does not require a newer mirror format.
const FORMAT: u32 = 1;

/// The state of a library's mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mirror {
    /// The release that was mirrored.
    pub(crate) id: ReleaseId,
    /// Unique for every write, so that no two have the same ETag.
    pub(crate) nonce: ReleaseId,
    /// Whether no other publisher can still be writing to the mirror.
    pub(crate) settled: bool,
    /// The ETags of the keys that the mirror wrote, by path relative to the library. Empty for a
    /// key that somebody else has deleted.
    pub(crate) etags: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct WireMirror {
    #[serde(deserialize_with = "super::known_format::<FORMAT, _>")]
    format: u32,
    id: ReleaseId,
    nonce: ReleaseId,
    settled: bool,
    etags: BTreeMap<String, String>,
}

impl Mirror {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let WireMirror { id, nonce, settled, etags, .. } = super::decode::<WireMirror, FORMAT>(bytes)?;
        etags.keys().try_for_each(|path| check_path(path))?;
        Ok(Self { id, nonce, settled, etags })
    }

    pub(crate) fn encode(&self) -> std::io::Result<Vec<u8>> {
        let Self { id, nonce, settled, etags } = self.clone();
        super::encode(&WireMirror { format: FORMAT, id, nonce, settled, etags })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_golden_mirror_is_read_and_written() {
        let golden = include_str!("golden/mirror-1.json");
        let etags = [("deeds/DESCRIPTION.md", "e1"), ("deeds/sale/SKILL.md", "e2-3")];
        let mirror = Mirror {
            id: ReleaseId::parse("two").unwrap(),
            nonce: ReleaseId::parse("n1").unwrap(),
            settled: true,
            etags: etags.map(|(path, etag)| (path.to_owned(), etag.to_owned())).into(),
        };
        assert_eq!(Mirror::decode(golden.as_bytes()).unwrap(), mirror);
        assert_eq!(Mirror::decode(&mirror.encode().unwrap()).unwrap(), mirror);
        // The mirror is versioned independently of the index.
        let newer = format!("\"format\": {}", FORMAT + 1);
        let newer = golden.replacen(&format!("\"format\": {FORMAT}"), &newer, 1);
        assert_eq!(Mirror::decode(newer.as_bytes()), Err(Unreadable::Newer(FORMAT + 1, FORMAT)));
        let outside = golden.replace("deeds/sale", "../sale");
        assert!(matches!(Mirror::decode(outside.as_bytes()), Err(Unreadable::Damaged(_))));
    }
}
