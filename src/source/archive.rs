//! Untrusted archives. Every name and every byte is checked while an archive is unpacked into a new folder.
//! An archive with any forbidden entry is refused entirely.

mod tar;
mod zip;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use unicode_normalization::UnicodeNormalization;

use super::{Limits, Origin, OriginKind, Source, SourceOptions, TempGuard, failed};
use crate::error::{Error, ErrorKind, Result, shorten};
use crate::path::{check_relative, parents};

/// The compression ratio is not checked below this size.
const UNMEASURED_BYTES: u64 = 1024 * 1024;

/// An archive format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// A `.zip`.
    Zip,
    /// A `.tar.gz`.
    TarGz,
}

impl Format {
    /// The file name extension, including the dot.
    #[must_use]
    pub fn extension(self) -> &'static str {
        match self {
            Self::Zip => ".zip",
            Self::TarGz => ".tar.gz",
        }
    }

    /// The format of an archive by its name: `.zip`, `.tar.gz` or `.tgz`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for any other name.
    pub fn of(file: &Path) -> Result<Self> {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match Self::of_name(&name) {
            Some((format, _)) if !name.to_ascii_lowercase().ends_with(".skill") => Ok(format),
            _ => {
                let message = format!("`{}` does not name an archive format", file.display());
                Err(Error::new(ErrorKind::InvalidInput, message)
                    .with_hint("use a name that ends with `.zip`, `.tar.gz` or `.tgz`"))
            }
        }
    }

    /// Detects the format from a file name, and returns it with the name without its extension.
    pub(super) fn of_name(name: &str) -> Option<(Self, &str)> {
        let lower = name.to_ascii_lowercase();
        let ends =
            [(".zip", Self::Zip), (".skill", Self::Zip), (".tar.gz", Self::TarGz), (".tgz", Self::TarGz)];
        let (end, format) = ends.into_iter().find(|(end, _)| lower.ends_with(end))?;
        Some((format, &name[..name.len() - end.len()]))
    }

    /// Detects the format from the first bytes of a file.
    fn of_content(file: &mut File) -> Option<Self> {
        let mut head = [0; 4];
        file.read_exact(&mut head).ok()?;
        match head {
            [b'P', b'K', 3 | 5, 4 | 6] => Some(Self::Zip),
            [0x1f, 0x8b, ..] => Some(Self::TarGz),
            _ => None,
        }
    }
}

/// Unpacks an archive and reads what is in it.
pub(super) fn open(file: &Path, options: &SourceOptions) -> Result<Source> {
    let mut handle = File::open(file).map_err(failed("open", file))?;
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let known = Format::of_name(&name).or_else(|| Some((Format::of_content(&mut handle)?, name.as_str())));
    let (format, stem) = known.ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidInput,
            format!("`{}` is not an archive that can be read", file.display()),
        )
        .with_hint("name a folder, a .zip, .skill, .tar.gz or .tgz, or the URL of a git repository")
    })?;
    let folder = temporary()?;
    // Use a subfolder, so that the rest of the temporary folder is free for other files.
    let target = folder.path().join("files");
    let mut origin = Origin::new(OriginKind::Archive, file.display().to_string());
    origin.commit = unpack(handle, format, &target, options.limits, &origin.location)?.commit;
    Source::read(&target, Some(stem), origin, Some(folder), options)
}

pub(super) fn temporary() -> Result<TempGuard> {
    let folder = tempfile::Builder::new().prefix("skillfs-").tempdir();
    folder.map(Arc::new).map_err(failed("create a temporary folder in", &std::env::temp_dir()))
}

/// Unpacks an archive into a folder that does not exist yet. If the archive is refused, the folder is
/// deleted.
pub(super) fn unpack(
    mut archive: File,
    format: Format,
    target: &Path,
    limits: Limits,
    shown: &str,
) -> Result<Unpacker> {
    let packed =
        archive.rewind().and_then(|()| archive.metadata()).map_err(failed("read", Path::new(shown)))?;
    std::fs::create_dir(target).map_err(failed("create", target))?;
    let mut unpacker = Unpacker {
        target: target.to_owned(),
        limits,
        packed: packed.len(),
        unpacked: 0,
        entries: 0,
        known: BTreeMap::new(),
        commit: None,
    };
    let result = match format {
        Format::Zip => zip::unpack(archive, &mut unpacker),
        Format::TarGz => tar::unpack(archive, &mut unpacker),
    };
    result.map_err(|refusal| {
        // Otherwise it is deleted with the temporary folder.
        let _ = std::fs::remove_dir_all(target);
        refusal.into_error(shown)
    })?;
    Ok(unpacker)
}

/// Why an archive is refused.
#[derive(Debug, thiserror::Error)]
enum EntryRefusal {
    #[error("{0}")]
    TooLarge(String),
    #[error("it is broken: {0}")]
    Broken(String),
    #[error("{0}")]
    Odd(String),
    #[error("cannot write what is in it: {0}")]
    Write(std::io::Error),
}

impl EntryRefusal {
    fn entry(name: &str, problem: impl Display) -> Self {
        Self::Odd(format!("the entry `{}` {problem}", shorten(name)))
    }

    fn broken(error: impl Display) -> Self {
        Self::Broken(error.to_string())
    }

    fn into_error(self, shown: &str) -> Error {
        let (kind, hint) = match &self {
            Self::Odd(_) => (
                ErrorKind::InvalidInput,
                "nothing was imported; repack it with ordinary files and folders, or do not trust its source",
            ),
            Self::TooLarge(_) => {
                (ErrorKind::TooLarge, "nothing was imported; raise the limit if you know what is in it")
            }
            Self::Broken(_) => (ErrorKind::Corrupt, "nothing was imported; fetch it again"),
            Self::Write(_) => (ErrorKind::Unavailable, "check the disk of the temporary folder"),
        };
        Error::new(kind, format!("the archive `{shown}` is refused: {self}")).with_hint(hint)
    }
}

type Checked<T> = Result<T, EntryRefusal>;

/// Writes the entries of an archive to disk, after checking them. Nothing else writes unpacked data.
#[derive(Debug)]
pub(super) struct Unpacker {
    target: PathBuf,
    limits: Limits,
    /// The size of the archive.
    packed: u64,
    /// The number of bytes written.
    pub(super) unpacked: u64,
    /// The number of files and folders.
    pub(super) entries: usize,
    /// The commit that `git archive` recorded in the archive.
    commit: Option<String>,
    /// All unpacked names, normalized and case-folded, because names that some filesystems consider equal
    /// must not collide. The value is the original spelling, and whether it is a folder.
    known: BTreeMap<String, (String, bool)>,
}

impl Unpacker {
    /// Counts an entry.
    fn count(&mut self) -> Checked<()> {
        self.entries += 1;
        let most = self.limits.max_entries;
        if self.entries > most {
            return Err(EntryRefusal::TooLarge(format!("it has more than {most} entries")));
        }
        Ok(())
    }

    fn folder(&mut self, name: &[u8]) -> Checked<()> {
        let (name, _) = parse(name)?;
        if name.is_empty() {
            return Ok(());
        }
        self.claim_folders(&name, true)
    }

    /// Writes one file. `size` is the declared size; the content must have exactly this size.
    fn file(&mut self, name: &[u8], size: u64, mut content: impl Read) -> Checked<()> {
        let (name, folder) = parse(name)?;
        if folder || name.is_empty() {
            return Err(EntryRefusal::entry(&name, "has the name of a folder and the content of a file"));
        }
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.claim_folders(parent, false)?;
        } else {
            self.check_depth(&name)?;
        }
        if let Some((spelled, is_folder)) = self.known.insert(folded(&name), (name.clone(), false)) {
            return Err(clash(&name, &spelled, is_folder));
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt;
            // Unpacked files are never executable, whatever mode the archive declares.
            options.mode(0o600);
        }
        let mut file = options.open(self.target.join(&name)).map_err(EntryRefusal::Write)?;
        let (mut buffer, mut written) = (vec![0; 64 * 1024], 0u64);
        loop {
            let read = match content.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(EntryRefusal::Broken(format!(
                        "`{}` cannot be unpacked: {error}",
                        shorten(&name)
                    )));
                }
            };
            written += read as u64;
            if written > self.limits.max_file_bytes {
                let most = self.limits.max_file_bytes;
                return Err(EntryRefusal::TooLarge(format!(
                    "`{}` has more than {most} bytes",
                    shorten(&name)
                )));
            }
            self.measure(read as u64)?;
            file.write_all(&buffer[..read]).map_err(EntryRefusal::Write)?;
        }
        if written != size {
            let name = shorten(&name);
            return Err(EntryRefusal::Broken(format!("`{name}` should have {size} bytes and has {written}")));
        }
        Ok(())
    }

    /// Counts bytes as they are unpacked, regardless of the declared sizes.
    fn measure(&mut self, bytes: u64) -> Checked<()> {
        self.unpacked += bytes;
        let Limits { max_unpacked_bytes, max_ratio, .. } = self.limits;
        if self.unpacked > max_unpacked_bytes {
            return Err(EntryRefusal::TooLarge(format!(
                "it unpacks to more than {max_unpacked_bytes} bytes"
            )));
        }
        if self.unpacked > UNMEASURED_BYTES && self.unpacked / max_ratio.max(1) > self.packed {
            let message =
                format!("it has {} bytes and unpacks to more than {max_ratio} times that", self.packed);
            return Err(EntryRefusal::TooLarge(message));
        }
        Ok(())
    }

    fn check_depth(&self, name: &str) -> Checked<()> {
        let most = self.limits.max_depth;
        if name.split('/').count() > most {
            return Err(EntryRefusal::entry(name, format!("is more than {most} folders deep")));
        }
        Ok(())
    }

    /// Creates a folder and its parents. `own` means that the archive has an entry for this folder, which may
    /// occur only once.
    fn claim_folders(&mut self, name: &str, own: bool) -> Checked<()> {
        self.check_depth(name)?;
        for part in parents(name).chain([name]) {
            match self.known.get(&folded(part)) {
                Some((spelled, true)) if spelled == part => {}
                Some((spelled, is_folder)) => return Err(clash(part, &spelled.clone(), *is_folder)),
                None => {
                    // Folders that exist only as part of a name count as entries too.
                    if !own || part != name {
                        self.count()?;
                    }
                    std::fs::create_dir(self.target.join(part)).map_err(EntryRefusal::Write)?;
                    self.known.insert(folded(part), (part.to_owned(), true));
                }
            }
        }
        Ok(())
    }
}

fn clash(name: &str, spelled: &str, is_folder: bool) -> EntryRefusal {
    let problem = match (name == spelled, is_folder) {
        (true, false) => "appears twice".to_owned(),
        (true, true) => "is a file and a folder".to_owned(),
        (false, _) => format!("has the same name as `{}` on some disks", shorten(spelled)),
    };
    EntryRefusal::entry(name, problem)
}

/// Whether the text is a commit: 40 hexadecimal digits, which `git archive` and git hosts record in archives.
fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Maps all spellings that a filesystem may consider equal to the same string.
fn folded(name: &str) -> String {
    // Convert to uppercase first: some letters have two lowercase forms, and some expand to two letters.
    name.nfc().collect::<String>().to_uppercase().to_lowercase().nfc().collect()
}

/// Parses the name of an entry. Strips a leading `./` and a trailing `/`, and returns whether there was a
/// trailing `/`. The name is empty for the root.
fn parse(raw: &[u8]) -> Checked<(String, bool)> {
    let Ok(text) = std::str::from_utf8(raw) else {
        return Err(EntryRefusal::entry(&String::from_utf8_lossy(raw), "has a name that is not UTF-8"));
    };
    let bad = |problem: &str| Err(EntryRefusal::entry(text, problem));
    if text.chars().any(char::is_control) {
        return bad("has a control character in its name");
    }
    let drive =
        text.as_bytes().first().is_some_and(u8::is_ascii_alphabetic) && text.as_bytes().get(1) == Some(&b':');
    if text.starts_with(['/', '\\']) || drive {
        return bad("has an absolute path");
    }
    if text.contains('\\') {
        return bad("has a backslash in its name");
    }
    if text.is_empty() {
        return bad("has no name");
    }
    let mut name = text;
    while let Some(rest) = name.strip_prefix("./") {
        name = rest;
    }
    let (name, folder) = name.strip_suffix('/').map_or((name, false), |name| (name, true));
    if name.is_empty() || name == "." {
        return Ok((String::new(), true));
    }
    if name.split('/').any(|part| part == "..") {
        return bad("climbs out of the archive with `..`");
    }
    match check_relative(name) {
        Ok(()) => Ok((name.to_owned(), folder)),
        Err(error) => bad(&format!("cannot be in a library: {}", error.message())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_kept_verbatim_or_refused() {
        let ok = |raw: &str, name: &str, folder: bool| {
            assert_eq!(parse(raw.as_bytes()).unwrap(), (name.to_owned(), folder), "{raw}");
        };
        ok("a/b.md", "a/b.md", false);
        ok("./a/b.md", "a/b.md", false);
        ok("a/", "a", true);
        ok("./", "", true);
        ok(".", "", true);
        ok("ab:c", "ab:c", false);
        ok("..a/b..", "..a/b..", false);
        for bad in [
            "",
            "/",
            "/a",
            "../a",
            "a/../b",
            "a/..",
            "..",
            "C:/a",
            "c:",
            "\\\\s\\x",
            "a\\b",
            "a//b",
            "a/./b",
            "a\0b",
            "a\u{85}b",
            "%2e%2e/a",
            "a//",
            ".//a",
            "././../a",
            "a/b/../../..",
            "..//a",
            "a/.",
            "C:",
            "z:a",
            "C:..",
            "%2e/a",
            "a/%252e%252e",
            ".%2e/a",
            "\\",
            "..\\a",
            "\0",
            "a\r",
            "~\u{1b}]0;x\u{7}",
            "//",
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
        for bad in [
            &b"a\xff"[..],
            b"\xc0\xae\xc0\xae/a",
            b"..\xc0\xafa",
            b"\xe0\x80\xae\xe0\x80\xae/a",
            b"\xf0\x80\x80\xae./a",
            b"\xed\xa0\x80",
            b"\xf4\x90\x80\x80",
            b"\xfe\xff\0a",
            b"caf\xe9",
            b"\x80",
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    fn unpacker(target: &Path) -> Unpacker {
        std::fs::create_dir(target).unwrap();
        Unpacker {
            target: target.to_owned(),
            limits: Limits::default(),
            packed: 100,
            unpacked: 0,
            entries: 0,
            known: BTreeMap::new(),
            commit: None,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn nothing_is_written_outside_the_target(
            names in proptest::collection::vec("(\\.\\./|/|\\./|a/|b|\\.\\.|\\\\|C:|%2e){1,5}", 1..6),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut unpacker = unpacker(&folder.path().join("target"));
            for name in names {
                let _ = unpacker.file(name.as_bytes(), 4, &b"evil"[..]);
                let _ = unpacker.folder(name.as_bytes());
            }
            let beside: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().map(|e| e.file_name()).collect();
            prop_assert_eq!(beside, ["target"]);
        }

        #[test]
        fn no_name_escapes_the_folder(raw in "[./\\\\a:%2eE~ -]{0,24}|\\PC{0,40}") {
            if let Ok((name, _)) = parse(raw.as_bytes()) {
                let inside = Path::new("/target").join(&name);
                prop_assert!(inside.starts_with("/target"));
                let plain = |part: std::path::Component<'_>| matches!(part, std::path::Component::Normal(_));
                prop_assert!(Path::new(&name).components().all(plain));
            }
        }
    }
}
