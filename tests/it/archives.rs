//! Hostile archives: each is refused with its reason, and nothing appears outside of the target.

use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder};
use proptest::prelude::*;
use skillfs::source::{Limits, Source, SourceOptions};
use skillfs::{Error, ErrorKind};
use tempfile::TempDir;

const SKILL: &[u8] = b"---\nname: sale\ndescription: Drafts deeds of sale.\n---\n# Steps\n";

/// A new folder with an archive in it. Nothing else may appear there.
struct Place {
    folder: TempDir,
    archive: PathBuf,
}

impl Place {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join(name);
        std::fs::write(&archive, bytes).unwrap();
        Self { folder, archive }
    }

    fn open(&self, options: &SourceOptions) -> Result<Source, Error> {
        let result = Source::open(self.archive.to_str().unwrap(), options);
        let names: Vec<_> =
            std::fs::read_dir(self.folder.path()).unwrap().flatten().map(|e| e.path()).collect();
        assert_eq!(names, std::slice::from_ref(&self.archive), "something was written beside the archive");
        for outside in ["/etc/evil", "/tmp/evil", "/tmp/evil.md"] {
            assert!(!Path::new(outside).exists(), "{outside}");
        }
        result
    }
}

fn opened(name: &str, bytes: &[u8]) -> Source {
    Place::new(name, bytes).open(&SourceOptions::default()).unwrap()
}

#[track_caller]
fn refused_with(name: &str, bytes: &[u8], options: &SourceOptions, kind: ErrorKind, words: &str) {
    let error = Place::new(name, bytes).open(options).expect_err(words);
    assert!(error.message().contains(words), "{error}");
    assert!(error.message().contains(" is refused: "), "{error}");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.report().contains("nothing was imported"), "{error}");
}

#[track_caller]
fn refused(name: &str, bytes: &[u8], words: &str) {
    refused_with(name, bytes, &SourceOptions::default(), ErrorKind::InvalidInput, words);
}

// ---- zip, byte by byte ----

/// A local entry; the central directory may say something else.
#[derive(Clone)]
struct Entry {
    name: Vec<u8>,
    central_name: Vec<u8>,
    content: Vec<u8>,
    /// The size in the headers.
    size: u32,
    mode: u32,
    flags: u16,
    method: u16,
    extra: Vec<u8>,
    /// Whether it points at another entry's data.
    shared: bool,
}

fn entry(name: impl AsRef<[u8]>, content: &[u8]) -> Entry {
    Entry {
        name: name.as_ref().to_vec(),
        central_name: name.as_ref().to_vec(),
        content: content.to_vec(),
        size: content.len() as u32,
        mode: 0o100_755,
        flags: 0x800,
        method: 0,
        extra: Vec::new(),
        shared: false,
    }
}

fn crc(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

fn zip(entries: &[Entry]) -> Vec<u8> {
    let (mut out, mut table) = (Vec::new(), Vec::new());
    let mut last = 0;
    for entry in entries {
        let data = match entry.method {
            8 => {
                let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
                encoder.write_all(&entry.content).unwrap();
                encoder.finish().unwrap()
            }
            _ => entry.content.clone(),
        };
        let fields = |out: &mut Vec<u8>, name: &[u8]| {
            out.extend(entry.flags.to_le_bytes());
            out.extend(entry.method.to_le_bytes());
            out.extend([0, 0, 0x21, 0]);
            out.extend(crc(&entry.content).to_le_bytes());
            out.extend((data.len() as u32).to_le_bytes());
            out.extend(entry.size.to_le_bytes());
            out.extend((name.len() as u16).to_le_bytes());
            out.extend((entry.extra.len() as u16).to_le_bytes());
        };
        let start = if entry.shared { last } else { out.len() as u32 };
        if !entry.shared {
            last = start;
            out.extend(b"PK\x03\x04\x14\0");
            fields(&mut out, &entry.name);
            out.extend(&entry.name);
            out.extend(&entry.extra);
            out.extend(&data);
        }
        table.extend(b"PK\x01\x02\x14\x03\x14\0");
        fields(&mut table, &entry.central_name);
        table.extend([0; 6]);
        table.extend((entry.mode << 16).to_le_bytes());
        table.extend(start.to_le_bytes());
        table.extend(&entry.central_name);
        table.extend(&entry.extra);
    }
    let start = out.len() as u32;
    let length = table.len() as u32;
    out.extend(table);
    out.extend(end(entries.len() as u16, length, start));
    out
}

fn end(entries: u16, length: u32, start: u32) -> Vec<u8> {
    let mut out = b"PK\x05\x06\0\0\0\0".to_vec();
    out.extend(entries.to_le_bytes());
    out.extend(entries.to_le_bytes());
    out.extend(length.to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0, 0]);
    out
}

/// A valid skill and one more entry.
fn zip_with(name: impl AsRef<[u8]>) -> Vec<u8> {
    zip(&[entry("SKILL.md", SKILL), entry(name, b"evil")])
}

// ---- tar, header by header ----

fn tar_header(name: &[u8], kind: u8, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name);
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_size(size);
    header.set_mode(0o4755);
    header.set_cksum();
    header
}

fn tar_entry(out: &mut Vec<u8>, name: &[u8], kind: u8, content: &[u8]) {
    out.extend(tar_header(name, kind, content.len() as u64).as_bytes());
    out.extend(content);
    out.resize(out.len().next_multiple_of(512), 0);
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn tar_of(entries: &[(&[u8], u8, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, kind, content) in entries {
        tar_entry(&mut out, name, *kind, content);
    }
    out.extend([0; 1024]);
    gz(&out)
}

fn tar_with(name: &[u8], kind: u8, content: &[u8]) -> Vec<u8> {
    tar_of(&[(b"SKILL.md", b'0', SKILL), (name, kind, content)])
}

fn pax(records: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (key, value) in records {
        let rest = format!(" {key}={value}\n");
        let mut length = rest.len() + 1;
        while length.to_string().len() + rest.len() != length {
            length += 1;
        }
        out.extend(format!("{length}{rest}").into_bytes());
    }
    out
}

// ---- valid archives ----

#[test]
fn plain_archives_are_read() {
    let files = [entry("sale/", b""), entry("sale/SKILL.md", SKILL), entry("sale/references/a.md", b"A")];
    for name in ["x.zip", "x.skill", "X.ZIP"] {
        let source = opened(name, &zip(&files));
        assert_eq!(source.skills[0].path, "sale");
        let names: Vec<_> = source.skills[0].files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["SKILL.md", "references/a.md"]);
    }
    let tar = tar_of(&[(b"./", b'5', b""), (b"./sale/", b'5', b""), (b"./sale/SKILL.md", b'0', SKILL)]);
    for name in ["x.tar.gz", "x.tgz", "unnamed"] {
        assert_eq!(opened(name, &tar).skills[0].path, "sale");
    }
    // A skill at the root is named after the archive.
    assert_eq!(opened("sale.skill", &zip(&[entry("SKILL.md", SKILL)])).skills[0].path, "sale");
}

#[test]
fn deflated_entries_and_data_descriptors_are_read() {
    let mut writer = zip::ZipWriter::new_stream(Vec::new());
    let options = zip::write::SimpleFileOptions::default();
    writer.start_file("sale/SKILL.md", options).unwrap();
    writer.write_all(SKILL).unwrap();
    let bytes = writer.finish().unwrap().into_inner();
    let source = opened("x.zip", &bytes);
    assert_eq!(source.skills[0].files[0].read().unwrap(), SKILL);
    let deflated = Entry { method: 8, ..entry("sale/SKILL.md", SKILL) };
    assert_eq!(opened("x.zip", &zip(&[deflated])).skills[0].files[0].read().unwrap(), SKILL);
}

#[test]
fn the_commit_of_git_archive_is_kept() {
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let header = pax(&[("comment", commit)]);
    let tar = tar_of(&[(b"pax_global_header", b'g', &header), (b"a/SKILL.md", b'0', SKILL)]);
    assert_eq!(opened("x.tar.gz", &tar).origin.commit.as_deref(), Some(commit));
}

#[test]
fn a_repository_in_one_folder_is_unwrapped() {
    let files = [entry("repo-main/README.md", b"R"), entry("repo-main/skills/deeds/sale/SKILL.md", SKILL)];
    assert_eq!(opened("x.zip", &zip(&files)).skills[0].path, "deeds/sale");
}

#[cfg(unix)]
#[test]
fn unpacked_files_are_not_executable() {
    use std::os::unix::fs::PermissionsExt;
    let archives = [
        ("x.zip", zip(&[Entry { mode: 0o106_777, ..entry("sale/SKILL.md", SKILL) }])),
        ("x.tgz", tar_of(&[(b"sale/SKILL.md", b'0', SKILL)])),
    ];
    for (name, bytes) in archives {
        let source = opened(name, &bytes);
        let skillfs::source::FileContent::File(path) = &source.skills[0].files[0].content else { panic!() };
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    }
}

#[test]
fn the_temporary_folder_is_deleted_with_the_last_clone() {
    let source = opened("x.zip", &zip(&[entry("sale/SKILL.md", SKILL)]));
    let folder = source.skills[0].folder.clone();
    let clone = source.clone();
    drop(source);
    assert!(folder.exists());
    drop(clone);
    assert!(!folder.exists());
}

// ---- names ----

#[test]
fn zip_traversal_is_refused() {
    for name in [
        "../evil.md",
        "a/../../evil.md",
        "a/..",
        "..",
        "./../evil.md",
        "a/../b",
        "../",
        "a/../",
        "././../evil.md",
        "a/b/../../../evil.md",
        ".../../evil.md",
    ] {
        refused("x.zip", &zip_with(name), "climbs out of the archive with `..`");
    }
}

#[test]
fn tar_traversal_is_refused() {
    for name in [
        &b"../evil.md"[..],
        b"a/../../evil.md",
        b"a/..",
        b"..",
        b"./../evil.md",
        b"a/../b",
        b"././../evil.md",
    ] {
        refused("x.tar.gz", &tar_with(name, b'0', b"evil"), "climbs out of the archive with `..`");
    }
    // As a folder, and as types that would be refused anyway.
    for kind in [b'5', b'1', b'2', b'7', b'S'] {
        let tar = tar_with(b"../evil", kind, b"");
        refused("x.tgz", &tar, "climbs out of the archive with `..`");
    }
    // In the field for the start of a long name.
    let mut header = tar::Header::new_ustar();
    header.as_mut_bytes()[..7].copy_from_slice(b"evil.md");
    header.as_mut_bytes()[345..350].copy_from_slice(b"a/../");
    header.set_size(0);
    header.set_cksum();
    let mut tar = header.as_bytes().to_vec();
    tar.extend([0; 1024]);
    refused("x.tgz", &gz(&tar), "climbs out of the archive with `..`");
}

#[test]
fn encoded_traversal_is_refused() {
    for name in ["a/%2e%2e/evil", "%2e%2e/evil", "%252e%252e/evil", ".%2E/evil", "%2e/evil", "a/%%32e."] {
        refused("x.zip", &zip_with(name), "cannot be in a library");
        refused("x.tgz", &tar_with(name.as_bytes(), b'0', b""), "cannot be in a library");
    }
}

#[test]
fn absolute_paths_are_refused() {
    for name in [
        "/etc/evil",
        "//server/evil",
        "C:\\evil",
        "c:/evil",
        "\\\\server\\evil",
        "\\evil",
        "/",
        "z:",
        "/../evil",
    ] {
        refused("x.zip", &zip_with(name), "has an absolute path");
        refused("x.tgz", &tar_with(name.as_bytes(), b'0', b"evil"), "has an absolute path");
    }
}

#[test]
fn backslashes_are_refused() {
    for name in ["a\\..\\..\\evil", "a\\b", "..\\evil", "a/b\\"] {
        refused("x.zip", &zip_with(name), "has a backslash in its name");
        refused("x.tgz", &tar_with(name.as_bytes(), b'0', b""), "has a backslash in its name");
    }
}

#[test]
fn control_characters_are_refused() {
    for name in ["a\nb", "a\u{7f}", "a\u{1b}[2J", "a\u{85}", "a\r", "\u{8}a", "a\u{9b}1m"] {
        refused("x.zip", &zip_with(name), "has a control character in its name");
        refused("x.tgz", &tar_with(name.as_bytes(), b'0', b""), "has a control character in its name");
    }
    refused("x.zip", &zip_with("a\0.md"), "has a control character in its name");
}

#[test]
fn names_that_are_no_utf8_are_refused() {
    // Includes overlong encodings of dots and slashes.
    for name in [
        &b"caf\xe9.md"[..],
        b"\xc0\xae\xc0\xae/evil",
        b"..\xc0\xafevil",
        b"\xe0\x80\xae\xe0\x80\xae/evil",
        b"\xf0\x80\x80\xaf",
        b"\xed\xa0\x80.md",
        b"\xfe\xff",
    ] {
        refused("x.zip", &zip_with(name), "has a name that is not UTF-8");
        refused("x.tgz", &tar_with(name, b'0', b""), "has a name that is not UTF-8");
        // Without the UTF-8 flag, the name would be decoded with a code page.
        let old = Entry { flags: 0, ..entry(name, b"evil") };
        refused("x.zip", &zip(&[entry("SKILL.md", SKILL), old]), "not UTF-8");
    }
}

#[test]
fn names_without_a_name_are_refused() {
    refused("x.zip", &zip_with("a//b"), "cannot be in a library");
    refused("x.tgz", &tar_with(b"a/./b", b'0', b""), "cannot be in a library");
    refused("x.zip", &zip_with("x".repeat(300)), "cannot be in a library");
}

#[test]
fn duplicate_names_are_refused() {
    refused("x.zip", &zip(&[entry("SKILL.md", SKILL), entry("SKILL.md", b"evil")]), "have the same name");
    refused("x.tgz", &tar_with(b"SKILL.md", b'0', b"evil"), "appears twice");
    refused("x.tgz", &tar_with(b"./SKILL.md", b'0', b"evil"), "appears twice");
    refused("x.zip", &zip_with("./SKILL.md"), "appears twice");
}

#[test]
fn names_that_differ_only_in_case_are_refused() {
    refused("x.zip", &zip_with("skill.MD"), "has the same name as `SKILL.md` on some disks");
    refused("x.tgz", &tar_with(b"skill.md", b'0', b""), "has the same name as `SKILL.md` on some disks");
    // Letters with unusual case mappings.
    for (one, two) in [
        ("stra\u{df}e", "STRASSE"),
        ("\u{212a}.md", "k.md"),
        ("\u{17f}.md", "s.md"),
        ("\u{3c3}.md", "\u{3c2}.md"),
        ("\u{fb00}.md", "ff.md"),
        ("\u{1c4}.md", "\u{1c5}.md"),
    ] {
        let files = [entry("SKILL.md", SKILL), entry(one, b""), entry(two, b"")];
        refused("x.zip", &zip(&files), "on some disks");
        let files =
            [(&b"SKILL.md"[..], b'0', SKILL), (one.as_bytes(), b'0', b""), (two.as_bytes(), b'0', b"")];
        refused("x.tgz", &tar_of(&files), "on some disks");
    }
    let folders = [entry("SKILL.md", SKILL), entry("Docs/a", b""), entry("docs/b", b"")];
    refused("x.zip", &zip(&folders), "has the same name as `Docs` on some disks");
}

#[test]
fn names_that_differ_only_in_normal_form_are_refused() {
    let files = [entry("SKILL.md", SKILL), entry("caf\u{e9}", b""), entry("cafe\u{301}", b"")];
    refused("x.zip", &zip(&files), "on some disks");
}

#[test]
fn a_file_that_is_a_folder_is_refused() {
    refused("x.zip", &zip(&[entry("a", b""), entry("a/SKILL.md", SKILL)]), "appears twice");
    refused("x.zip", &zip(&[entry("a/SKILL.md", SKILL), entry("a", b"")]), "is a file and a folder");
    refused("x.zip", &zip_with("folder/"), "has the name of a folder and the content of a file");
    refused(
        "x.tgz",
        &tar_with(b"folder/", b'0', b"evil"),
        "has the name of a folder and the content of a file",
    );
    refused("x.tgz", &tar_with(b"folder", b'5', b"evil"), "is a folder and has the content of a file");
}

// ---- kinds ----

#[test]
fn links_are_refused() {
    for to in ["/etc/passwd", "..", "SKILL.md", ""] {
        let link = Entry { mode: 0o120_777, ..entry("link", to.as_bytes()) };
        refused("x.zip", &zip(&[entry("SKILL.md", SKILL), link]), "the entry `link` is a link");
        for (kind, words) in [(b'2', "the entry `link` is a link"), (b'1', "the entry `link` is a hard link")]
        {
            let mut header = tar_header(b"link", kind, 0);
            header.as_mut_bytes()[157..157 + to.len()].copy_from_slice(to.as_bytes());
            header.set_cksum();
            let mut tar = Vec::new();
            tar_entry(&mut tar, b"SKILL.md", b'0', SKILL);
            tar.extend(header.as_bytes());
            tar.extend([0; 1024]);
            refused("x.tgz", &gz(&tar), words);
        }
    }
    // The target of a link in a separate header.
    let header = pax(&[("linkpath", "/etc/passwd")]);
    let tar = tar_of(&[(b"SKILL.md", b'0', SKILL), (b"x", b'x', &header), (b"pax", b'2', b"")]);
    refused("x.tgz", &tar, "the entry `pax` is a link");
    let tar = tar_of(&[(b"SKILL.md", b'0', SKILL), (b"K", b'K', b"/etc/passwd\0"), (b"gnu", b'1', b"")]);
    refused("x.tgz", &tar, "the entry `gnu` is a hard link");
}

#[test]
fn a_link_used_by_a_later_entry_is_refused() {
    let tar = tar_of(&[(b"SKILL.md", b'0', SKILL), (b"d", b'2', b""), (b"d/evil", b'0', b"x")]);
    refused("x.tgz", &tar, "the entry `d` is a link");
}

#[test]
fn devices_and_pipes_are_refused() {
    for kind in [b'3', b'4', b'6', b'7', b'V', b'?', b'M', b'D', b'N', b'8', b'A', b'X', 0xff] {
        refused("x.tgz", &tar_with(b"dev", kind, b""), "the entry `dev` is neither a file nor a folder");
    }
    for (name, mode) in [
        ("pipe", 0o010_644),
        ("characters", 0o020_644),
        ("blocks", 0o060_644),
        ("socket", 0o140_644),
        ("door", 0o150_644),
    ] {
        let odd = Entry { mode, ..entry(name, b"") };
        refused("x.zip", &zip(&[entry("SKILL.md", SKILL), odd]), "is neither a file nor a folder");
    }
    let folder = Entry { mode: 0o040_755, ..entry("folder", b"") };
    refused("x.zip", &zip(&[entry("SKILL.md", SKILL), folder]), "is a folder without the name of one");
}

#[test]
fn encrypted_entries_are_refused() {
    let secret = Entry { flags: 0x801, ..entry("secret", b"0123456789abcdef") };
    refused("x.zip", &zip(&[entry("SKILL.md", SKILL), secret]), "the entry `secret` is encrypted");
}

#[test]
fn other_compression_methods_are_refused() {
    for method in [1, 2, 6, 9, 12, 14, 93, 95, 97, 98, 99] {
        let odd = Entry { method, ..entry("odd", b"x") };
        refused("x.zip", &zip(&[entry("SKILL.md", SKILL), odd]), "is compressed with");
    }
}

// ---- sizes ----

fn limits(limits: Limits) -> SourceOptions {
    SourceOptions::default().limits(limits)
}

#[test]
fn too_many_entries_are_refused() {
    let options = limits(Limits::default().max_entries(3));
    let files: Vec<Entry> = (0..4).map(|n| entry(format!("f{n}"), b"")).collect();
    refused_with("x.zip", &zip(&files), &options, ErrorKind::TooLarge, "it has 4 entries; the limit is 3");
    let names: Vec<String> = (0..4).map(|n| format!("f{n}")).collect();
    let files: Vec<_> = names.iter().map(|name| (name.as_bytes(), b'0', &b""[..])).collect();
    refused_with("x.tgz", &tar_of(&files), &options, ErrorKind::TooLarge, "it has more than 3 entries");
    // Folders that exist only as part of a name count too.
    let deep = zip(&[entry("a/b/c/d", b"")]);
    refused_with("x.zip", &deep, &options, ErrorKind::TooLarge, "it has more than 3 entries");
}

#[test]
fn too_much_content_is_refused() {
    let options = limits(Limits::default().max_unpacked_bytes(1000));
    let big = vec![b'x'; 600];
    let files = zip(&[entry("a", &big), entry("b", &big)]);
    refused_with("x.zip", &files, &options, ErrorKind::TooLarge, "it unpacks to more than 1000 bytes");
    let files = tar_of(&[(b"a", b'0', &big), (b"b", b'0', &big)]);
    refused_with("x.tgz", &files, &options, ErrorKind::TooLarge, "it unpacks to more than 1000 bytes");
    let options = limits(Limits::default().max_file_bytes(500));
    refused_with(
        "x.zip",
        &zip(&[entry("a", &big)]),
        &options,
        ErrorKind::TooLarge,
        "`a` has more than 500 bytes",
    );
    // More is read when more is allowed.
    let options = limits(Limits::default().max_unpacked_bytes(10_000));
    let files = zip(&[entry("SKILL.md", SKILL), entry("a", &big), entry("b", &big)]);
    assert_eq!(Place::new("x.zip", &files).open(&options).unwrap().skills.len(), 1);
}

#[test]
fn bombs_are_refused_by_what_comes_out_of_them() {
    let zeros = vec![0; 8 * 1024 * 1024];
    let bomb = Entry { method: 8, ..entry("bomb", &zeros) };
    let words = "unpacks to more than 100 times that";
    let options = SourceOptions::default();
    refused_with(
        "x.zip",
        &zip(&[entry("SKILL.md", SKILL), bomb.clone()]),
        &options,
        ErrorKind::TooLarge,
        words,
    );
    refused_with("x.tgz", &tar_with(b"bomb", b'0', &zeros), &options, ErrorKind::TooLarge, words);
    // Small archives are accepted, and a higher ratio can be allowed.
    let small = Entry { method: 8, ..entry("small", &zeros[..1000 * 1000]) };
    assert_eq!(opened("x.zip", &zip(&[entry("SKILL.md", SKILL), small])).skills.len(), 1);
    let options = limits(Limits::default().max_ratio(5000));
    let place = Place::new("x.zip", &zip(&[entry("SKILL.md", SKILL), bomb]));
    assert_eq!(place.open(&options).unwrap().skills.len(), 1);
}

#[test]
fn a_wrong_size_is_refused() {
    let zeros = vec![0; 4 * 1024 * 1024];
    let liar = Entry { method: 8, size: 10, ..entry("bomb", &zeros) };
    let options = SourceOptions::default();
    let error = Place::new("x.zip", &zip(&[entry("SKILL.md", SKILL), liar])).open(&options).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooLarge | ErrorKind::Corrupt), "{error}");
    let liar = Entry { size: 100, ..entry("short", b"x") };
    let error = Place::new("x.zip", &zip(&[entry("SKILL.md", SKILL), liar])).open(&options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn overlapping_entries_are_refused() {
    let shared = Entry { shared: true, central_name: b"again".to_vec(), ..entry("SKILL.md", SKILL) };
    refused(
        "x.zip",
        &zip(&[entry("SKILL.md", SKILL), shared]),
        "its table of contents and its entries differ",
    );
}

#[test]
fn endless_padding_is_refused() {
    let mut tar = Vec::new();
    tar_entry(&mut tar, b"SKILL.md", b'0', SKILL);
    tar.resize(16 * 1024 * 1024, 0);
    let options = SourceOptions::default();
    refused_with("x.tgz", &gz(&tar), &options, ErrorKind::TooLarge, "more than the limits allow");
}

#[test]
fn deeply_nested_entries_are_refused() {
    let deep = format!("{}x", "a/".repeat(40));
    refused("x.zip", &zip_with(&deep), "is more than 32 folders deep");
    refused("x.tgz", &tar_with(deep.as_bytes(), b'0', b""), "is more than 32 folders deep");
}

// ---- structure ----

#[test]
fn truncated_and_garbled_archives_are_refused() {
    let good = zip(&[entry("sale/SKILL.md", SKILL)]);
    let options = SourceOptions::default();
    for bytes in [&good[..good.len() - 1], &good[..good.len() - 30], &good[..10], b"garbage", b""] {
        let error = Place::new("x.zip", bytes).open(&options).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::InvalidInput), "{error}");
    }
    let mut garbled = good.clone();
    garbled[50] ^= 0xff;
    let error = Place::new("x.zip", &garbled).open(&options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let good = tar_of(&[(b"sale/SKILL.md", b'0', SKILL)]);
    for bytes in [&good[..good.len() - 1], &good[..good.len() / 2], &good[..5], b"garbage", b""] {
        let error = Place::new("x.tgz", bytes).open(&options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    // The content is shorter than the header says.
    let mut tar = tar_header(b"SKILL.md", b'0', 5000).as_bytes().to_vec();
    tar.extend(SKILL);
    refused_with("x.tgz", &gz(&tar), &options, ErrorKind::Corrupt, "should have 5000 bytes");
    // A header with a wrong checksum.
    let mut tar = Vec::new();
    tar_entry(&mut tar, b"SKILL.md", b'0', SKILL);
    tar[0] = b'T';
    refused_with("x.tgz", &gz(&tar), &options, ErrorKind::Corrupt, "checksum");
}

#[test]
fn a_file_that_is_not_an_archive_is_refused() {
    for (name, bytes) in [
        ("notes.txt", &b"hello there"[..]),
        ("x.rar", b"Rar!\x1a\x07\x01\0"),
        ("x.7z", b"7z\xbc\xaf\x27\x1c"),
        ("x.tar.xz", b"\xfd7zXZ\0"),
        ("x.tar", &[0; 1024]),
        ("program", b"\x7fELF\x02\x01\x01"),
        ("empty", b""),
    ] {
        let error = Place::new(name, bytes).open(&SourceOptions::default()).unwrap_err();
        assert!(error.message().contains("is not an archive that can be read"), "{error}");
    }
}

#[test]
fn an_inconsistent_central_directory_is_refused() {
    let two = Entry { central_name: b"harmless".to_vec(), ..entry("SKILL.MD", b"evil") };
    refused("x.zip", &zip(&[entry("SKILL.md", SKILL), two]), "its table of contents and its entries differ");
    // An entry that the central directory does not list.
    let hidden = zip(&[entry("SKILL.md", SKILL), entry("hidden", b"evil")]);
    let mut table = hidden.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    let first = zip(&[entry("SKILL.md", SKILL)]);
    let one = first.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    let mut bytes = hidden[..table].to_vec();
    bytes.extend(&first[one..first.len() - 22]);
    let length = (bytes.len() - table) as u32;
    bytes.extend(end(1, length, table as u32));
    refused("x.zip", &bytes, "its table of contents and its entries differ");
    // Two central directories.
    table = bytes.len();
    bytes.extend(&first[one..first.len() - 22]);
    bytes.extend(end(1, 10, table as u32));
    refused("x.zip", &bytes, "its table of contents is not where its end says");
}

#[test]
fn an_end_record_before_the_end_is_refused() {
    let mut bytes = zip(&[entry("SKILL.md", SKILL)]);
    bytes.extend(b"more");
    refused("x.zip", &bytes, "it does not end where it says");
    // An end record in the comment of another.
    let mut bytes = zip(&[entry("SKILL.md", SKILL)]);
    let comment = end(0, 0, 0);
    let at = bytes.len() - 2;
    bytes[at..].copy_from_slice(&(comment.len() as u16).to_le_bytes());
    bytes.extend(&comment);
    refused("x.zip", &bytes, "its table of contents is not where its end says");
    // A program before the archive.
    let mut bytes = b"#!/bin/sh\n".to_vec();
    bytes.extend(zip(&[entry("SKILL.md", SKILL)]));
    refused("x.zip", &bytes, "its table of contents is not where its end says");
}

#[test]
fn zip64_is_refused() {
    let mut bytes = zip(&[entry("SKILL.md", SKILL)]);
    let at = bytes.len() - 14;
    bytes[at..at + 4].copy_from_slice(&[0xff; 4]);
    refused("x.zip", &bytes, "it is a zip64 archive");
    let mut bytes = zip(&[entry("SKILL.md", SKILL)]);
    let end = bytes.split_off(bytes.len() - 22);
    bytes.extend(b"PK\x06\x07");
    bytes.extend([0; 16]);
    bytes.extend(end);
    refused("x.zip", &bytes, "it is a zip64 archive");
    // Sizes in an extra field.
    let mut extra = vec![1, 0, 16, 0];
    extra.extend(4u64.to_le_bytes());
    extra.extend(4u64.to_le_bytes());
    let large = Entry { size: u32::MAX, extra, ..entry("large", b"evil") };
    refused("x.zip", &zip(&[entry("SKILL.md", SKILL), large]), "it is a zip64 archive");
}

#[test]
fn a_wrong_number_of_entries_is_refused() {
    for count in [1, 3] {
        let mut bytes = zip_with("other");
        let at = bytes.len() - 14;
        bytes[at..at + 4].copy_from_slice(&[count, 0, count, 0]);
        refused("x.zip", &bytes, &format!("has 2 entries, and its end says {count}"));
    }
}

#[test]
fn a_second_name_in_an_extra_field_is_refused() {
    let mut extra = b"\x75\x70".to_vec();
    let name = b"../evil.md";
    extra.extend((5 + name.len() as u16).to_le_bytes());
    extra.push(1);
    extra.extend(crc(b"plain").to_le_bytes());
    extra.extend(name);
    let two = Entry { extra, flags: 0, ..entry("plain", b"evil") };
    let place = Place::new("x.zip", &zip(&[entry("SKILL.md", SKILL), two]));
    let error = place.open(&SourceOptions::default()).unwrap_err();
    assert!(error.message().contains("..") || error.message().contains("two names"), "{error}");
}

#[test]
fn multi_part_archives_are_refused() {
    let mut bytes = zip(&[entry("SKILL.md", SKILL)]);
    let at = bytes.len() - 18;
    bytes[at] = 1;
    refused("x.zip", &bytes, "it is one of several parts");
}

// ---- extended headers of tar ----

#[test]
fn names_in_pax_headers_are_checked() {
    let check = |records: &[(&str, &str)], words: &str| {
        let header = pax(records);
        let tar = tar_of(&[(b"SKILL.md", b'0', SKILL), (b"x", b'x', &header), (b"harmless", b'0', b"evil")]);
        refused("x.tgz", &tar, words);
    };
    check(&[("path", "../evil.md")], "climbs out of the archive with `..`");
    check(&[("path", "/etc/evil")], "has an absolute path");
    check(&[("path", "a\nb")], "has a control character in its name");
    check(&[("path", "skill.md")], "on some disks");
    check(&[("path", "ok"), ("size", "4000")], "has two sizes");
    check(&[("path", "ok"), ("GNU.sparse.major", "1")], "is a sparse file");
    check(&[("GNU.sparse.name", "../evil"), ("GNU.sparse.realsize", "4")], "is a sparse file");
    check(&[("path", "C:/evil")], "has an absolute path");
    check(&[("path", "a\\b")], "has a backslash in its name");
    check(&[("path", "ok\0")], "has a control character in its name");
    check(&[("path", "")], "has no name");
    check(&[("path", "%2e%2e/evil")], "cannot be in a library");
    // The last of two values wins.
    check(&[("path", "ok"), ("path", "../evil")], "climbs out of the archive with `..`");
    // A size that is not a number differs from the size in the header.
    for size in ["", "-4", "0x4", "4 ", "99999999999999999999"] {
        check(&[("path", "ok"), ("size", size)], "has two sizes");
    }
}

#[test]
fn a_global_pax_header_with_a_name_is_refused() {
    for key in ["path", "linkpath", "size", "GNU.sparse.major", "GNU.sparse.name"] {
        let header = pax(&[(key, "4")]);
        let tar = tar_of(&[(b"g", b'g', &header), (b"SKILL.md", b'0', SKILL)]);
        refused("x.tgz", &tar, "for all its entries at once");
    }
}

#[test]
fn a_malformed_pax_header_is_refused() {
    let tar = tar_of(&[(b"x", b'x', b"999 path=short\n"), (b"SKILL.md", b'0', SKILL)]);
    let options = SourceOptions::default();
    refused_with("x.tgz", &tar, &options, ErrorKind::Corrupt, "an extended header cannot be read");
}

#[test]
fn gnu_long_names_are_checked() {
    let long = format!("sale/{}.md\0", "n".repeat(150));
    let tar = tar_of(&[(b"sale/SKILL.md", b'0', SKILL), (b"L", b'L', long.as_bytes()), (b"n", b'0', b"x")]);
    let source = opened("x.tgz", &tar);
    assert_eq!(source.skills[0].files[1].name, format!("{}.md", "n".repeat(150)));
    for (name, words) in [
        (&b"../evil.md\0"[..], "climbs out of the archive with `..`"),
        (b"/etc/evil\0", "has an absolute path"),
        (b"a\0b\0", "has a control character in its name"),
        (b"\0\0", "has no name"),
        (b"", "has no name"),
        (b"\xc0\xae\xc0\xae/evil\0", "has a name that is not UTF-8"),
        (b"skill.md\0", "on some disks"),
    ] {
        let tar = tar_of(&[(b"SKILL.md", b'0', SKILL), (b"L", b'L', name), (b"n", b'0', b"x")]);
        refused("x.tgz", &tar, words);
    }
}

#[test]
fn a_header_that_is_too_long_is_refused() {
    let long = vec![b'x'; 100 * 1024];
    let tar = tar_of(&[(b"L", b'L', &long), (b"SKILL.md", b'0', SKILL)]);
    refused_with("x.tgz", &tar, &SourceOptions::default(), ErrorKind::TooLarge, "it has a header of");
}

#[test]
fn sparse_files_are_refused() {
    refused("x.tgz", &tar_with(b"sparse", b'S', b""), "is a sparse file");
}

#[test]
fn data_after_the_end_is_refused() {
    let mut tar = Vec::new();
    tar_entry(&mut tar, b"SKILL.md", b'0', SKILL);
    tar.extend([0; 1024]);
    tar_entry(&mut tar, b"hidden", b'0', b"evil");
    refused("x.tgz", &gz(&tar), "there is data after its end");
    // Also as a second compressed stream.
    let mut bytes = tar_of(&[(b"SKILL.md", b'0', SKILL)]);
    bytes.extend(tar_of(&[(b"hidden", b'0', b"evil")]));
    refused("x.tgz", &bytes, "there is data after its end");
}

// ---- any name ----

fn name() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        Just("..".to_owned()),
        Just(".".to_owned()),
        Just(String::new()),
        Just("C:".to_owned()),
        Just("%2e%2e".to_owned()),
        Just("SKILL.md".to_owned()),
        "[a-zA-Z. \\\\:~%-]{1,6}",
        "\\PC{1,5}",
    ];
    let text = proptest::collection::vec(part, 1..5).prop_map(|parts| parts.join("/").into_bytes());
    prop_oneof![8 => text, 1 => proptest::collection::vec(any::<u8>(), 1..20)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever its name, an entry is refused or is inside of the skill.
    #[test]
    fn no_entry_leads_outside_the_target(name in name(), as_tar in any::<bool>(), kind in prop_oneof![Just(b'0'), Just(b'5'), any::<u8>()]) {
        let short: Vec<u8> = name.iter().copied().take(90).collect();
        let content: &[u8] = if kind == b'0' { b"evil" } else { b"" };
        let place = match as_tar {
            true => Place::new("sale.tgz", &tar_with(&short, kind, content)),
            false => Place::new("sale.zip", &zip_with(&name)),
        };
        if let Ok(source) = place.open(&SourceOptions::default()) {
            for skill in &source.skills {
                for file in &skill.files {
                    let skillfs::source::FileContent::File(path) = &file.content else { panic!() };
                    prop_assert!(path.starts_with(skill.folder.canonicalize().unwrap()));
                }
            }
        }
    }
}

#[test]
fn the_raw_builders_write_valid_archives() {
    // Other readers can read archives of the raw builders above.
    let bytes = zip(&[entry("a/SKILL.md", SKILL), Entry { method: 8, ..entry("b", &[7; 500]) }]);
    let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).unwrap();
    assert_eq!(archive.len(), 2);
    archive.validate_header_consistency().unwrap();
}
