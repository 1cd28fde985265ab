//! The formats of `index.json`, of release records and of `mirror.json`.
//!
//! A published library contains exactly what its index says, so the index has everything inline:
//! the file tree with the size, digest and blob of each file, the heads of the skills, the
//! descriptions of the categories, and the list of releases. A release record is byte for byte the
//! index that committed the release. This module does no I/O and knows no keys: paths are relative
//! to the library, and a blob is identified by a digest and a release id.
//!
//! All formats are gzip-compressed JSON with a version number. Fields that older readers may ignore
//! are added without a new version; any other change requires one. Readers are upgraded first.
//! Publishers write the oldest version that can express what they publish. A reader that encounters
//! a newer version reports it and changes nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::path::is_exact;

mod digest;
mod mirror;

pub use self::digest::Digest;
pub(crate) use self::mirror::Mirror;

/// The version that this program writes, and the newest that it reads.
pub(crate) const FORMAT: u32 = 1;

/// The maximum size of a document, compressed and uncompressed. 5,000 skills with 15,000 files take
/// about 4 MiB uncompressed.
pub(crate) const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// The maximum size of an S3 object.
const MAX_FILE_BYTES: u64 = 5 * 1024 * 1024 * 1024 * 1024;

/// Whether the index describes the library, or declares that it is plain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum IndexKind {
    Published,
    Plain,
}

/// The contents of a library. Paths are relative to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Index {
    pub(crate) kind: IndexKind,
    /// Unique for every index that is written. For a release, the id of the release.
    pub(crate) id: ReleaseId,
    /// The number of the latest release.
    pub(crate) release: u64,
    /// The releases that can be rolled back to, oldest first.
    pub(crate) releases: Vec<ReleaseNote>,
    /// Skills that a push leaves alone, with the release that they are pinned to.
    pub(crate) pins: BTreeMap<String, u64>,
    pub(crate) files: BTreeMap<String, IndexedFile>,
    /// The heads of the skills, by the path of their directory. A skill whose head does not fit has
    /// none.
    pub(crate) heads: BTreeMap<String, SkillHead>,
    /// The descriptions from `DESCRIPTION.md`, by the path of the category.
    pub(crate) categories: BTreeMap<String, String>,
}

/// One file: its content, the blob that stores it, and the release that published it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexedFile {
    pub(crate) size: u64,
    pub(crate) sha256: Digest,
    /// The release that uploaded the blob.
    pub(crate) blob: Arc<BlobOrigin>,
    /// The release that published this content at this path.
    pub(crate) since: Arc<BlobOrigin>,
}

/// A release that a file refers to, even after the release is no longer listed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct BlobOrigin {
    pub(crate) id: ReleaseId,
    pub(crate) release: u64,
    /// When it was committed, in seconds since the Unix epoch, by the clock of S3.
    pub(crate) at: u64,
}

impl BlobOrigin {
    pub(crate) fn time(&self) -> Option<SystemTime> {
        time_at(self.at)
    }
}

/// Converts seconds since the Unix epoch. Returns `None` if the time cannot be represented.
pub(crate) fn time_at(seconds: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// The head of a skill's `SKILL.md`: its frontmatter, or as much of the file as is needed to parse
/// it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SkillHead {
    /// The text between the fences, verbatim, if that is enough.
    Frontmatter(String),
    /// The beginning of the file.
    Start(String),
}

impl SkillHead {
    fn len(&self) -> usize {
        match self {
            Self::Frontmatter(text) | Self::Start(text) => text.len(),
        }
    }
}

/// A summary of one release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReleaseNote {
    pub(crate) number: u64,
    pub(crate) id: ReleaseId,
    /// In seconds since the Unix epoch, by the clock of S3.
    pub(crate) at: u64,
    pub(crate) by: String,
    /// The source that was pushed.
    pub(crate) source: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) created: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) updated: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) deleted: u64,
}

/// Identifies a release. Part of the keys of its blobs and its record, so only letters, digits, `-`
/// and `_` are allowed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ReleaseId(String);

impl ReleaseId {
    const MAX_BYTES: usize = 64;

    pub(crate) fn parse(text: impl Into<String>) -> Result<Self, String> {
        let text = text.into();
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if text.is_empty() || text.len() > Self::MAX_BYTES || !text.chars().all(allowed) {
            return Err("a release id has up to 64 letters, digits, `-` and `_`".to_owned());
        }
        Ok(Self(text))
    }
}

impl TryFrom<String> for ReleaseId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(text)
    }
}

impl fmt::Display for ReleaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ReleaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why an index cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("{0}")]
    Damaged(String),
    #[error("it has format {0}; this version of skillfs reads up to format {1}")]
    Newer(u32, u32),
}

/// The serialized index. Files refer to releases by their position in `origins`.
#[derive(Serialize, Deserialize)]
struct WireIndex {
    #[serde(deserialize_with = "known_format::<FORMAT, _>")]
    format: u32,
    kind: IndexKind,
    id: ReleaseId,
    release: u64,
    releases: Vec<ReleaseNote>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pins: BTreeMap<String, u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    origins: Vec<BlobOrigin>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    files: BTreeMap<String, WireFile>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    heads: BTreeMap<String, SkillHead>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    categories: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct WireFile {
    size: u64,
    sha256: Digest,
    /// The release that uploaded its blob, as a position in `origins`.
    blob: usize,
    /// The release that published it at this path, if it is a different one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<usize>,
}

impl Index {
    pub(crate) fn new(kind: IndexKind, id: ReleaseId) -> Self {
        Self {
            kind,
            id,
            release: 0,
            releases: Vec::new(),
            pins: BTreeMap::new(),
            files: BTreeMap::new(),
            heads: BTreeMap::new(),
            categories: BTreeMap::new(),
        }
    }

    pub(crate) fn is_published(&self) -> bool {
        self.kind == IndexKind::Published
    }

    pub(crate) fn lists(&self, id: &ReleaseId) -> bool {
        self.releases.iter().any(|note| note.id == *id)
    }

    /// Returns the releases before the one that this index committed, oldest first.
    pub(crate) fn earlier_releases(&self) -> impl DoubleEndedIterator<Item = &ReleaseNote> {
        self.releases.iter().filter(|note| note.id != self.id)
    }

    /// Returns the listed release with this number.
    pub(crate) fn listed(&self, number: u64) -> Option<&ReleaseNote> {
        self.releases.iter().find(|note| note.number == number)
    }

    /// Returns skills that are pinned to a release that is no longer listed.
    pub(crate) fn lost_pins(&self) -> impl Iterator<Item = (&String, u64)> {
        let pins = self.pins.iter().map(|(skill, release)| (skill, *release));
        pins.filter(|(_, release)| self.listed(*release).is_none())
    }

    /// Returns every blob that the index refers to, with the release that uploaded it.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = (Digest, &Arc<BlobOrigin>)> {
        self.files.values().map(|file| (file.sha256, &file.blob))
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let wire = decode::<WireIndex, FORMAT>(bytes)?;
        let origins: Vec<Arc<BlobOrigin>> = wire.origins.into_iter().map(Arc::new).collect();
        let origin = |at: usize| {
            let missing = || Unreadable::Damaged("a file refers to a release that does not exist".to_owned());
            origins.get(at).cloned().ok_or_else(missing)
        };
        let mut files = BTreeMap::new();
        for (path, file) in wire.files {
            check_path(&path)?;
            if file.size > MAX_FILE_BYTES {
                return Err(Unreadable::Damaged(
                    "it has a file that is too large for any storage".to_owned(),
                ));
            }
            let blob = origin(file.blob)?;
            let since = file.since.map_or_else(|| Ok(blob.clone()), origin)?;
            files.insert(path, IndexedFile { size: file.size, sha256: file.sha256, blob, since });
        }
        let WireIndex { kind, id, release, releases, pins, heads, categories, .. } = wire;
        Ok(Self { kind, id, release, releases, pins, files, heads, categories })
    }

    pub(crate) fn encode(&self) -> std::io::Result<Vec<u8>> {
        let mut places: BTreeMap<&BlobOrigin, usize> = BTreeMap::new();
        for file in self.files.values() {
            for origin in [&file.blob, &file.since] {
                let next = places.len();
                places.entry(origin).or_insert(next);
            }
        }
        let place = |origin: &BlobOrigin| places.get(origin).copied().unwrap_or_default();
        let wire = |file: &IndexedFile| WireFile {
            size: file.size,
            sha256: file.sha256,
            blob: place(&file.blob),
            since: (file.since != file.blob).then(|| place(&file.since)),
        };
        let mut origins: Vec<_> = places.iter().collect();
        origins.sort_by_key(|(_, place)| **place);
        encode(&WireIndex {
            format: FORMAT,
            kind: self.kind,
            id: self.id.clone(),
            release: self.release,
            releases: self.releases.clone(),
            pins: self.pins.clone(),
            origins: origins.into_iter().map(|(origin, _)| (*origin).clone()).collect(),
            files: self.files.iter().map(|(path, file)| (path.clone(), wire(file))).collect(),
            heads: self.heads.clone(),
            categories: self.categories.clone(),
        })
    }

    /// Approximate memory usage.
    pub(crate) fn weight(&self) -> u64 {
        let files = self.files.keys().map(|path| path.len() + 120);
        let heads = self.heads.iter().map(|(path, head)| path.len() + head.len() + 100);
        let categories = self.categories.iter().map(|(path, text)| path.len() + text.len() + 80);
        let releases = self.releases.iter().map(|note| note.by.len() + note.source.len() + 150);
        (files.chain(heads).chain(categories).chain(releases).sum::<usize>() + 300) as u64
    }
}

/// Rejects a format version that this program does not know.
fn known_format<'de, const MAX: u32, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let format = u32::deserialize(deserializer)?;
    match format <= MAX {
        true => Ok(format),
        false => Err(serde::de::Error::custom("a newer format")),
    }
}

/// Only the version; ignores everything else.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

fn decode<T: DeserializeOwned, const MAX: u32>(bytes: &[u8]) -> Result<T, Unreadable> {
    let damaged = |e: &dyn fmt::Display| Unreadable::Damaged(e.to_string());
    let json = decompress(bytes).map_err(|e| damaged(&e))?;
    match serde_json::from_slice(&json) {
        Ok(value) => Ok(value),
        // Do not try to interpret the fields of a newer version.
        Err(error) => Err(match serde_json::from_slice(&json) {
            Ok(FormatOnly { format }) if format > MAX => Unreadable::Newer(format, MAX),
            _ => damaged(&error),
        }),
    }
}

fn encode(value: &impl Serialize) -> std::io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&serde_json::to_vec(value)?)?;
    encoder.finish()
}

/// Decompresses gzip. Accepts plain JSON too, because a proxy that honors `Content-Encoding` may
/// have decompressed it already.
fn decompress(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes.to_vec());
    }
    let mut json = Vec::new();
    flate2::read::GzDecoder::new(bytes).take(MAX_BYTES + 1).read_to_end(&mut json)?;
    if json.len() as u64 > MAX_BYTES {
        return Err(std::io::Error::other(format!("it decompresses to more than {MAX_BYTES} bytes")));
    }
    Ok(json)
}

/// The paths in an index are untrusted: one that no `VirtualPath` can name means that the index is
/// damaged.
fn check_path(path: &str) -> Result<(), Unreadable> {
    match is_exact(path) {
        true => Ok(()),
        false => Err(Unreadable::Damaged("it has a file that no path can name".to_owned())),
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> ReleaseId {
        ReleaseId::parse(text).unwrap()
    }

    fn origin(text: &str, release: u64) -> Arc<BlobOrigin> {
        Arc::new(BlobOrigin { id: id(text), release, at: 1_700_000_000 + release })
    }

    fn sample() -> Index {
        let (one, two) = (origin("one", 1), origin("two", 2));
        let file = |text: &[u8], blob: &Arc<BlobOrigin>, since: &Arc<BlobOrigin>| IndexedFile {
            size: text.len() as u64,
            sha256: Digest::of(text),
            blob: blob.clone(),
            since: since.clone(),
        };
        let note = |number, text: &str| ReleaseNote {
            number,
            id: id(text),
            at: 1_700_000_000 + number,
            by: "ana@laptop".into(),
            source: "skills".into(),
            created: 2 - number,
            updated: number - 1,
            deleted: 0,
        };
        let mut index = Index::new(IndexKind::Published, id("two"));
        index.release = 2;
        index.releases = vec![note(1, "one"), note(2, "two")];
        index.pins.insert("deeds/sale".into(), 2);
        index.files.insert("deeds/DESCRIPTION.md".into(), file(b"Deeds.", &one, &one));
        index.files.insert("deeds/sale/SKILL.md".into(), file(b"sale", &two, &two));
        index.files.insert("deeds/sale/references/law.md".into(), file(b"law", &one, &two));
        index
            .heads
            .insert("deeds/sale".into(), SkillHead::Frontmatter("name: sale\ndescription: Sales.\n".into()));
        index.categories.insert("deeds".into(), "Deeds.".into());
        index
    }

    #[test]
    fn an_index_survives_a_round_trip() {
        assert_eq!(Index::decode(&sample().encode().unwrap()).unwrap(), sample());
        let plain = Index { releases: sample().releases, ..Index::new(IndexKind::Plain, id("three")) };
        assert_eq!(Index::decode(&plain.encode().unwrap()).unwrap(), plain);
    }

    /// The bytes that earlier versions wrote: a change here requires a new format.
    #[test]
    fn the_golden_index_is_read_and_written() {
        let golden = include_str!("index/golden/index-1.json");
        assert_eq!(Index::decode(golden.as_bytes()).unwrap(), sample());
        let written = decompress(&sample().encode().unwrap()).unwrap();
        let pretty: serde_json::Value = serde_json::from_slice(&written).unwrap();
        assert_eq!(pretty, serde_json::from_str::<serde_json::Value>(golden).unwrap());
    }

    #[test]
    fn a_damaged_index_is_reported() {
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        let valid = String::from_utf8(decompress(&sample().encode().unwrap()).unwrap()).unwrap();
        let cut = &sample().encode().unwrap()[..100];
        let cases: Vec<Vec<u8>> = [
            "",
            "{",
            "[]",
            "null",
            r#"{"format":1}"#,
            r#"{"format":-1}"#,
            r#"{"format":1,"kind":"other","id":"x","release":1,"releases":[]}"#,
            &deep,
            &valid.replace("\"id\":\"two\"", "\"id\":\"../two\""),
            &valid.replace("\"id\":\"two\"", "\"id\":\"\""),
            &valid.replace("deeds/sale/SKILL.md", "../../u2/skills/SKILL.md"),
            &valid.replace("deeds/sale/SKILL.md", "deeds//SKILL.md"),
            &valid.replace("deeds/sale/SKILL.md", "deeds/\\u0001/SKILL.md"),
            &valid.replace("\"blob\":1", "\"blob\":7"),
        ]
        .iter()
        .map(|text| text.as_bytes().to_vec())
        .chain([cut.to_vec()])
        .collect();
        for bytes in cases {
            let shown = String::from_utf8_lossy(&bytes).chars().take(80).collect::<String>();
            assert!(matches!(Index::decode(&bytes), Err(Unreadable::Damaged(_))), "{shown}");
        }
    }

    #[test]
    fn a_newer_format_is_told_from_damage() {
        let newer = br#"{"format":2,"skills":"something new"}"#;
        assert_eq!(Index::decode(newer), Err(Unreadable::Newer(2, FORMAT)));
    }

    #[test]
    fn fields_that_are_not_known_are_ignored() {
        let text = r#"{"format":1,"kind":"published","id":"x","release":0,"releases":[],"more":[1]}"#;
        assert!(Index::decode(text.as_bytes()).is_ok());
    }

    #[test]
    fn a_bomb_is_not_unpacked() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        let zeros = vec![b' '; 1024 * 1024];
        for _ in 0..=MAX_BYTES / zeros.len() as u64 {
            encoder.write_all(&zeros).unwrap();
        }
        let bomb = encoder.finish().unwrap();
        let error = Index::decode(&bomb).unwrap_err();
        assert!(error.to_string().contains("decompresses to more"), "{error}");
    }
}
