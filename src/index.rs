//! The catalogue index: one object beside a library that says what is in it.
//!
//! It saves reading the skills, and is never trusted blindly: what it says of a file counts only for the
//! version that it names, and only where a listing finds that version. It names files by their path below
//! the library, so it can name none outside.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

mod release;

pub(crate) use self::release::{Managed, Publishing, RecordedFile, ReleaseNote, ReleaseRecord, State};

/// What this version of the program writes, and all that it reads.
pub(crate) const FORMAT: u32 = 1;

/// A longer index is not read. One of 5,000 skills with 15,000 files has some 5 MiB.
pub(crate) const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// A listing is cut at every so-many-th key: somewhat below a page, so that files that were added since do
/// not make it two.
const KEYS_A_CUT: usize = 900;

/// A longer path is no place to cut at: with its prefix it could be longer than any key.
const MAX_CUT_BYTES: usize = 700;

/// What is in a library. Paths are relative to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Index {
    /// The version of this format.
    pub(crate) format: u32,
    /// Differs from one writing to the next, so that no two versions have the same ETag.
    pub(crate) id: String,
    /// By the path of their directory.
    pub(crate) categories: BTreeMap<String, IndexedCategory>,
    /// By the path of their directory.
    pub(crate) skills: BTreeMap<String, IndexedSkill>,
    /// The number of the last release; 0 before the first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) release: u64,
    /// The releases that are kept, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) releases: Vec<ReleaseNote>,
    /// Skills that a push leaves alone, with the release that they stay at.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) pins: BTreeMap<String, u64>,
    /// Who is publishing; only while somebody is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) publishing: Option<Publishing>,
    /// Keys at which a listing may be cut, sorted; made when it is read.
    #[serde(skip)]
    cuts: Vec<String>,
}

/// What a category says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IndexedCategory {
    /// Its `DESCRIPTION.md`.
    #[serde(flatten)]
    pub(crate) file: IndexedFile,
    /// What that says, where it says anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<String>,
    /// Whether a release wrote it: then it lies among the blobs, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) published: bool,
    /// What a release is about to write there. Readers do not mind it: one file is the old one or the new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pending: Option<PendingDescription>,
}

/// A description that is about to be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PendingDescription {
    pub(crate) size: u64,
    pub(crate) sha256: Sha256,
    /// The ETag of what lies there: only that is overwritten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) was: Option<String>,
}

/// What a skill says of itself, and its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IndexedSkill {
    /// The name of its `SKILL.md`, in its own letter case.
    pub(crate) file: String,
    /// What stands between its fences, verbatim; absent when that does not tell all that is to be known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) frontmatter: Option<String>,
    /// The beginning of its file, where the frontmatter alone does not tell all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) head: Option<String>,
    /// All its files, by their path below its directory.
    pub(crate) files: BTreeMap<String, IndexedFile>,
    /// For a skill that was published: its files lie in blobs, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) managed: Option<Managed>,
}

/// One version of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IndexedFile {
    pub(crate) size: u64,
    /// Absent while it is not known: the file is still to be written.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) etag: String,
    pub(crate) sha256: Sha256,
}

impl IndexedFile {
    /// Whether a listed file is this version.
    pub(crate) fn is(&self, size: u64, etag: Option<&str>) -> bool {
        self.size == size && !self.etag.is_empty() && etag == Some(self.etag.as_str())
    }
}

/// The SHA-256 of some bytes. Written as 64 lower-case hexadecimal digits, so it can be part of a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Sha256([u8; 32]);

impl Sha256 {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// What a hasher has taken in.
    pub(crate) fn finish(hasher: sha2::Sha256) -> Self {
        use sha2::Digest as _;
        Self(hasher.finalize().into())
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        let mut bytes = [0; 32];
        if text.len() != 64 {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for Sha256 {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sha256 {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("a SHA-256 has 64 hexadecimal digits"))
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks for a reference
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Only the version, whatever else stands there.
#[derive(Deserialize)]
struct Versioned {
    format: u32,
}

impl Index {
    pub(crate) fn new(
        id: String,
        categories: BTreeMap<String, IndexedCategory>,
        skills: BTreeMap<String, IndexedSkill>,
    ) -> Self {
        Self {
            format: FORMAT,
            id,
            categories,
            skills,
            release: 0,
            releases: Vec::new(),
            pins: BTreeMap::new(),
            publishing: None,
            cuts: Vec::new(),
        }
    }

    /// Reads an index. The reason, when it is none that we know: then it is as if there were none.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let Versioned { format } = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        if format != FORMAT {
            return Err(format!("it has format {format}, and this program reads format {FORMAT}"));
        }
        let mut index: Self = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        index.cuts = index.cut();
        Ok(index)
    }

    /// The format of what may be an index, where it says one.
    pub(crate) fn format_of(bytes: &[u8]) -> Option<u32> {
        serde_json::from_slice(bytes).ok().map(|Versioned { format }| format)
    }

    pub(crate) fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(self)
    }

    fn cut(&self) -> Vec<String> {
        let mut keys: Vec<String> = Vec::new();
        for (path, skill) in &self.skills {
            keys.extend(skill.files.keys().map(|file| format!("{path}/{file}")));
        }
        keys.extend(self.categories.keys().map(|path| format!("{path}/DESCRIPTION.md")));
        // What no key can be is no place to cut at.
        keys.retain(|key| key.len() <= MAX_CUT_BYTES && !key.chars().any(char::is_control));
        keys.sort_unstable();
        keys.into_iter().skip(KEYS_A_CUT - 1).step_by(KEYS_A_CUT).collect()
    }

    /// Where a listing of all below a prefix may be cut, behind one of its keys.
    pub(crate) fn cuts<'i>(&'i self, prefix: &'i str, behind: &'i str) -> impl Iterator<Item = &'i str> {
        let cuts = self.cuts.iter().map(String::as_str);
        cuts.filter(move |cut| cut.starts_with(prefix) && *cut > behind)
    }

    /// What it takes in memory, about.
    pub(crate) fn weight(&self) -> u64 {
        let file = |path: &str, file: &IndexedFile| path.len() + file.etag.len() + 180;
        let skills = self.skills.iter().map(|(path, skill)| {
            let text = skill.frontmatter.as_ref().or(skill.head.as_ref()).map_or(0, String::len);
            let files: usize = skill.files.iter().map(|(path, indexed)| file(path, indexed)).sum();
            let was = skill.managed.as_ref().map_or(0, Managed::weight);
            path.len() + text + files + was + 200
        });
        let categories = self.categories.iter().map(|(path, category)| {
            file(path, &category.file) + category.description.as_ref().map_or(0, String::len)
        });
        let releases = self.releases.iter().map(ReleaseNote::weight);
        (skills.sum::<usize>() + categories.sum::<usize>() + releases.sum::<usize>() + 200) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(etag: &str) -> IndexedFile {
        IndexedFile { size: 1, etag: etag.to_owned(), sha256: Sha256::of(b"") }
    }

    fn skill(files: usize) -> IndexedSkill {
        let files = (0..files).map(|i| (format!("f{i:05}.md"), file(&i.to_string()))).collect();
        IndexedSkill {
            file: "SKILL.md".into(),
            frontmatter: Some("name: x".into()),
            head: None,
            files,
            managed: None,
        }
    }

    #[test]
    fn an_index_comes_back_as_it_was_written() {
        let category = IndexedCategory {
            file: file("d"),
            description: Some("Deeds.".into()),
            published: false,
            pending: None,
        };
        let index = Index::new(
            "1".into(),
            BTreeMap::from([("a".into(), category)]),
            BTreeMap::from([("a/b".into(), skill(2))]),
        );
        assert_eq!(Index::parse(&index.to_json().unwrap()).unwrap(), index);
    }

    #[test]
    fn what_is_no_index_is_told() {
        let mut tried = crate::attempts::attempts!("keys");
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        for text in [
            "",
            "{",
            "[]",
            "null",
            r#"{"format":1}"#,
            r#"{"format":-1}"#,
            r#"{"format":1,"id":"x","categories":{},"skills":{"a":{"file":"S","files":{"x":{"size":-1}}}}}"#,
            r#"{"format":1,"id":"x","categories":{},"skills":{"a":7}}"#,
            &deep,
        ] {
            assert!(Index::parse(text.as_bytes()).is_err(), "{text}");
            tried.refused(format!("index `{text}`"));
        }
        let newer = Index::parse(br#"{"format":2,"skills":"something new"}"#).unwrap_err();
        assert!(newer.contains("format 2"), "{newer}");
    }

    #[test]
    fn what_a_later_program_adds_is_passed_over() {
        let text = r#"{"format":1,"id":"x","more":[1],"categories":{},"skills":{}}"#;
        assert!(Index::parse(text.as_bytes()).is_ok());
    }

    #[test]
    fn a_listing_is_cut_into_less_than_pages() {
        let index =
            Index::new(String::new(), BTreeMap::new(), BTreeMap::from([("a/b".into(), skill(2_000))]));
        let index = Index::parse(&index.to_json().unwrap()).unwrap();
        let cuts: Vec<_> = index.cuts("", "").collect();
        assert_eq!(cuts, ["a/b/f00899.md", "a/b/f01799.md"]);
        assert_eq!(index.cuts("a/", "a/b/f00999.md").collect::<Vec<_>>(), ["a/b/f01799.md"]);
        assert_eq!(index.cuts("b/", "").count(), 0);
    }
}
