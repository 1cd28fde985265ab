//! The catalogue index: one object beside a library that says what is in it.
//!
//! It saves reading the skills, and is never trusted blindly: what it says of a file counts only for the
//! version that it names, and only where a listing finds that version. It names files by their path below
//! the library, so it can name none outside.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
}

/// One version of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IndexedFile {
    pub(crate) size: u64,
    pub(crate) etag: String,
    pub(crate) sha256: String,
}

impl IndexedFile {
    /// Whether a listed file is this version.
    pub(crate) fn is(&self, size: u64, etag: Option<&str>) -> bool {
        self.size == size && etag == Some(self.etag.as_str())
    }
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
        Self { format: FORMAT, id, categories, skills, cuts: Vec::new() }
    }

    /// Reads an index. The reason, when it is none that we know: then it is as if there were none.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let Versioned { format } = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        if format != FORMAT {
            return Err(format!("it has format {format}, and this program reads format {FORMAT}"));
        }
        let mut index: Self = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        let of_skills = index.skills.values().flat_map(|skill| skill.files.values());
        let mut files = of_skills.chain(index.categories.values().map(|category| &category.file));
        let is_digest = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if files.any(|file| !is_digest(&file.sha256)) {
            return Err("it names a digest that is none".to_owned());
        }
        index.cuts = index.cut();
        Ok(index)
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
        let file = |path: &str, file: &IndexedFile| path.len() + file.etag.len() + file.sha256.len() + 180;
        let skills = self.skills.iter().map(|(path, skill)| {
            let text = skill.frontmatter.as_ref().or(skill.head.as_ref()).map_or(0, String::len);
            let files: usize = skill.files.iter().map(|(path, indexed)| file(path, indexed)).sum();
            path.len() + text + files + 200
        });
        let categories = self.categories.iter().map(|(path, category)| {
            file(path, &category.file) + category.description.as_ref().map_or(0, String::len)
        });
        (skills.sum::<usize>() + categories.sum::<usize>() + 200) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(etag: &str) -> IndexedFile {
        IndexedFile { size: 1, etag: etag.to_owned(), sha256: "00".repeat(32) }
    }

    fn skill(files: usize) -> IndexedSkill {
        let files = (0..files).map(|i| (format!("f{i:05}.md"), file(&i.to_string()))).collect();
        IndexedSkill { file: "SKILL.md".into(), frontmatter: Some("name: x".into()), head: None, files }
    }

    #[test]
    fn an_index_comes_back_as_it_was_written() {
        let category = IndexedCategory { file: file("d"), description: Some("Deeds.".into()) };
        let index = Index::new(
            "1".into(),
            BTreeMap::from([("a".into(), category)]),
            BTreeMap::from([("a/b".into(), skill(2))]),
        );
        assert_eq!(Index::parse(&index.to_json().unwrap()).unwrap(), index);
    }

    #[test]
    fn what_is_no_index_is_told() {
        for text in [
            "",
            "{",
            "[]",
            "null",
            r#"{"format":1}"#,
            r#"{"format":-1}"#,
            r#"{"format":1,"id":"x","categories":{},"skills":{"a":{"file":"S","files":{"x":{"size":-1}}}}}"#,
            r#"{"format":1,"id":"x","categories":{},"skills":{"a":7}}"#,
        ] {
            assert!(Index::parse(text.as_bytes()).is_err(), "{text}");
        }
        let newer = Index::parse(br#"{"format":2,"skills":"something new"}"#).unwrap_err();
        assert!(newer.contains("format 2"), "{newer}");
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(Index::parse(deep.as_bytes()).is_err());
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
