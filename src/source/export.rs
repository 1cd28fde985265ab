//! Exports skills as an archive of a site as defined by the Agent Skills Discovery RFC. Unpack it on a web
//! server, and agents can discover the skills. The output is deterministic.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use bytes::Bytes;
use flate2::{Compression, GzBuilder, write::GzEncoder};
use serde::Serialize;
use unicode_normalization::UnicodeNormalization;
use zip::write::{SimpleFileOptions, StreamWriter};
use zip::{CompressionMethod, ZipWriter};

use super::discovery::{DiscoveryEntry, DiscoveryIndex, DiscoveryKind, FOLDER, PATHS, SCHEMA, is_name};
use super::{Existing, Format, SkillFiles};
use crate::error::{Error, ErrorKind, Result};
use crate::index::Digest;
use crate::manifest::{Document, why_unusable};
use crate::path::SkillPath;

const MAX_NAME_BYTES: usize = 64;
const MAX_DESCRIPTION_CHARS: usize = 1024;

/// The result of an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Exported {
    /// The skills in the index, sorted by name.
    pub skills: Vec<ExportedSkill>,
}

/// A skill in the index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExportedSkill {
    /// The skill's path in the library.
    pub path: SkillPath,
    /// The skill's name in the index.
    pub name: String,
    /// The URL, relative to the index.
    pub url: String,
    /// `sha256:` and the checksum of the file at the URL.
    pub digest: String,
}

/// Writes skills to an archive, as [`export`] does; `.zip`, `.tar.gz` or `.tgz` by its name. The file appears complete or
/// not at all.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for any other name; [`ErrorKind::AlreadyExists`] when the file exists, and
/// [`Existing::Refuse`]; those of [`export`].
pub fn export_file(skills: &[SkillFiles], file: &Path, existing: Existing) -> Result<Exported> {
    let shown = file.display();
    let failed = |e: std::io::Error| {
        Error::new(ErrorKind::Unavailable, format!("cannot write `{shown}`: {e}"))
            .with_hint("choose another location")
            .with_source(e)
    };
    let format = Format::of(file)?;
    let folder = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut temporary = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    let exported = export(skills, format, &mut temporary)?;
    let kept = match existing {
        Existing::Replace => temporary.persist(file),
        Existing::Refuse => temporary.persist_noclobber(file),
    };
    match kept {
        Ok(_) => Ok(exported),
        Err(e) if e.error.kind() == std::io::ErrorKind::AlreadyExists => {
            Err(Error::new(ErrorKind::AlreadyExists, format!("`{shown}` already exists"))
                .with_hint("choose another name, or replace it"))
        }
        Err(e) => Err(failed(e.error)),
    }
}

/// Exports skills as one archive. A skill that consists only of a `SKILL.md` is stored as that file; other
/// skills are nested archives. [`Source::open`](super::Source::open) reads the result.
///
/// A skill is named by its frontmatter if the RFC allows the name, and otherwise by its folder. If two skills
/// would have the same name, they are prefixed with their categories.
///
/// # Errors
/// [`ErrorKind::InvalidSkill`] if a skill has no usable `SKILL.md`; the errors of
/// [`SourceFile::read`](super::SourceFile::read); [`ErrorKind::Unavailable`] if the archive cannot be
/// written.
pub fn export(skills: &[SkillFiles], format: Format, out: &mut impl Write) -> Result<Exported> {
    let documents: Vec<Document> = skills.iter().map(document).collect::<Result<_>>()?;
    let mut named: Vec<_> =
        names(skills, &documents).into_iter().zip(skills.iter().zip(&documents)).collect();
    named.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut archive = Packer::new(format, out);
    let mut index = DiscoveryIndex { schema: SCHEMA.to_owned(), skills: Vec::new() };
    let mut exported = Vec::new();
    for (name, (skill, document)) in named {
        let (kind, url, bytes) = match skill.files.as_slice() {
            [only] => (DiscoveryKind::SkillMd, format!("{name}/SKILL.md"), only.read()?),
            _ => (DiscoveryKind::Archive, format!("{name}{}", format.extension()), pack(skill, format)?),
        };
        let digest = format!("sha256:{}", Digest::of(&bytes));
        archive.add(&format!("{FOLDER}/{url}"), &bytes)?;
        let description = document.manifest.description.chars().take(MAX_DESCRIPTION_CHARS).collect();
        let (path, entry_name, entry_url) = (skill.path.clone(), name.clone(), url.clone());
        index.skills.push(DiscoveryEntry {
            name: entry_name,
            kind,
            description,
            url: entry_url,
            digest: digest.clone(),
        });
        exported.push(ExportedSkill { path, name, url, digest });
    }
    let paths: BTreeMap<&str, &str> = exported
        .iter()
        .filter(|skill| skill.path != skill.name.as_str())
        .map(|skill| (skill.name.as_str(), skill.path.as_str()))
        .collect();
    archive.add(&format!("{FOLDER}/index.json"), &json(&index)?)?;
    if !paths.is_empty() {
        archive.add(&format!("{FOLDER}/{PATHS}"), &json(&paths)?)?;
    }
    archive.finish()?;
    Ok(Exported { skills: exported })
}

fn document(skill: &SkillFiles) -> Result<Document> {
    let unusable = |why: &str| {
        Error::new(ErrorKind::InvalidSkill, format!("the skill `{}` cannot be exported: {why}", skill.path))
            .with_hint("repair it, or leave it out")
    };
    let file = skill.skill_file().ok_or_else(|| unusable("it has no SKILL.md"))?;
    Document::load(&file.read()?, skill.name(), &format!("{}/{}", skill.path, file.name))
        .map_err(|said| unusable(why_unusable(&said)))
}

fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(value)
        .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Packs the files of a skill into an archive with `SKILL.md` at its root, in this letter case.
fn pack(skill: &SkillFiles, format: Format) -> Result<Bytes> {
    let main = skill.skill_file().map(|file| file.name.as_str());
    let mut bytes = Vec::new();
    let mut archive = Packer::new(format, &mut bytes);
    for file in &skill.files {
        let name = match file.name.as_str() {
            name if main == Some(name) => "SKILL.md",
            // A second spelling would collide with the first on case-insensitive filesystems.
            name if name.eq_ignore_ascii_case("SKILL.md") => continue,
            name => name,
        };
        archive.add(name, &file.read()?)?;
    }
    archive.finish()?;
    Ok(bytes.into())
}

/// Chooses a unique name for each skill.
fn names(skills: &[SkillFiles], documents: &[Document]) -> Vec<String> {
    let mut names: Vec<String> = skills
        .iter()
        .zip(documents)
        .map(|(skill, document)| match &document.manifest.name {
            name if is_name(name) => name.clone(),
            _ => kebab(skill.name()),
        })
        .collect();
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    for name in &names {
        *count.entry(name.clone()).or_default() += 1;
    }
    for (name, skill) in names.iter_mut().zip(skills) {
        let category = skill.path.category();
        if count[name.as_str()] > 1 && !category.is_empty() {
            *name = kebab(&format!("{category}-{name}"));
        }
    }
    // Names may still collide if they were truncated or have no category. Number those in the order of their
    // paths.
    let mut order: Vec<usize> = (0..skills.len()).collect();
    order.sort_by_key(|index| &skills[*index].path);
    let mut taken = std::collections::BTreeSet::new();
    for index in order {
        let base = names[index].clone();
        let mut number = 1;
        while !taken.insert(names[index].clone()) {
            number += 1;
            let end = format!("-{number}");
            let cut = base.len().min(MAX_NAME_BYTES - end.len());
            names[index] = format!("{}{end}", base[..cut].trim_end_matches('-'));
        }
    }
    names
}

/// Converts text to kebab case: lowercase ASCII letters and digits, separated by single hyphens.
fn kebab(text: &str) -> String {
    let mut name = String::new();
    for c in text.nfkd().flat_map(char::to_lowercase) {
        match c {
            'a'..='z' | '0'..='9' => name.push(c),
            // An accent that NFKD separated from its letter.
            c if unicode_normalization::char::is_combining_mark(c) => {}
            _ if name.is_empty() || name.ends_with('-') => {}
            _ => name.push('-'),
        }
    }
    name.truncate(MAX_NAME_BYTES);
    let name = name.trim_end_matches('-');
    if name.is_empty() { "skill".to_owned() } else { name.to_owned() }
}

/// Writes an archive entry by entry, without timestamps or anything else that varies between runs.
enum Packer<W: Write> {
    Zip(Box<ZipWriter<StreamWriter<W>>>),
    TarGz(tar::Builder<GzEncoder<W>>),
}

impl<W: Write> Packer<W> {
    fn new(format: Format, out: W) -> Self {
        match format {
            Format::Zip => Self::Zip(Box::new(ZipWriter::new_stream(out))),
            Format::TarGz => {
                let encoder =
                    GzBuilder::new().mtime(0).operating_system(255).write(out, Compression::default());
                Self::TarGz(tar::Builder::new(encoder))
            }
        }
    }

    fn add(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Zip(archive) => {
                let packed = name.ends_with(Format::Zip.extension());
                let method = if packed { CompressionMethod::Stored } else { CompressionMethod::Deflated };
                let options = SimpleFileOptions::default()
                    .compression_method(method)
                    .last_modified_time(zip::DateTime::default())
                    .unix_permissions(0o644);
                archive.start_file(name, options).map_err(unwritten)?;
                archive.write_all(bytes).map_err(unwritten)
            }
            Self::TarGz(archive) => {
                let mut header = tar::Header::new_gnu();
                header.set_mode(0o644);
                header.set_size(bytes.len() as u64);
                header.set_entry_type(tar::EntryType::Regular);
                archive.append_data(&mut header, name, bytes).map_err(unwritten)
            }
        }
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::Zip(archive) => {
                archive.finish().map_err(unwritten)?.into_inner().flush().map_err(unwritten)
            }
            Self::TarGz(archive) => {
                let encoder = archive.into_inner().map_err(unwritten)?;
                encoder.finish().and_then(|mut out| out.flush()).map_err(unwritten)
            }
        }
    }
}

fn unwritten(error: impl Into<std::io::Error>) -> Error {
    let error = error.into();
    Error::new(ErrorKind::Unavailable, format!("cannot write the archive: {error}"))
        .with_hint("check the disk, then export again")
        .with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::SourceFile;

    #[test]
    fn names_are_converted_to_valid_rfc_names() {
        for (text, expected) in [
            ("Deed of Sale", "deed-of-sale"),
            ("Résumé_v2", "resume-v2"),
            ("--a--b--", "a-b"),
            ("書類", "skill"),
            ("A.B/C", "a-b-c"),
        ] {
            assert_eq!(kebab(text), expected, "{text}");
            assert!(is_name(&kebab(text)), "{text}");
        }
        assert!(is_name(&kebab(&"x-".repeat(80))));
    }

    #[test]
    fn skill_names_are_unique() {
        let skill = |path: &str, name: &str| {
            let text = format!("---\nname: {name}\ndescription: d\n---\nb");
            SkillFiles::new(path, vec![SourceFile::from_bytes("SKILL.md", text)]).unwrap()
        };
        let skills = [
            skill("a/x", "x"),
            skill("b/x", "x"),
            skill("y", "Y y"),
            skill("c/y", "y"),
            skill("d/z", "other"),
            skill("d.y/q", "y"),
        ];
        let documents: Vec<_> = skills.iter().map(|skill| document(skill).unwrap()).collect();
        assert_eq!(names(&skills, &documents), ["a-x", "b-x", "y", "c-y", "other", "d-y-y"]);
        let twice = [skill("p", "n"), skill("q", "n")];
        let documents: Vec<_> = twice.iter().map(|skill| document(skill).unwrap()).collect();
        assert_eq!(names(&twice, &documents), ["n", "n-2"]);
    }
}
