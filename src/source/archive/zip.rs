//! Zip archives. Entries are described both in the central directory and in local headers, and readers
//! disagree on which one to believe, so both must agree.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use zip::read::{ArchiveOffset, Config};
use zip::{CompressionMethod, ZipArchive};

use super::{Checked, EntryRefusal, Unpacker};

/// The size of the end-of-central-directory record, without its comment.
const END_BYTES: usize = 22;
const END: [u8; 4] = *b"PK\x05\x06";
const RECORD: [u8; 4] = *b"PK\x01\x02";
/// The maximum size of the central directory. 50,000 entries with long names need a tenth of this.
const MAX_TABLE_BYTES: u64 = 64 * 1024 * 1024;
/// The signature of the zip64 end-of-central-directory locator.
const END_64: [u8; 4] = *b"PK\x06\x07";
/// The file type bits of a Unix mode, and their values for the types that are recognized.
const KIND: u32 = 0o170_000;
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

pub(super) fn unpack(mut file: File, unpacker: &mut Unpacker) -> Checked<()> {
    let end = End::read(&mut file, unpacker.packed)?;
    let most = unpacker.limits.max_entries;
    if end.entries > most {
        return Err(EntryRefusal::TooLarge(format!("it has {} entries; the limit is {most}", end.entries)));
    }
    end.check_table(&mut file)?;
    let config = Config { archive_offset: ArchiveOffset::Known(0) };
    let mut archive = ZipArchive::with_config(config, file).map_err(EntryRefusal::broken)?;
    for raw in archive.file_names_raw() {
        // Check the names first: a bad name is a more helpful reason than a mismatch between headers.
        super::parse(raw)?;
    }
    if archive.has_duplicate_names() || archive.len() < end.entries {
        return Err(EntryRefusal::Odd("two of its entries have the same name".to_owned()));
    }
    if archive.len() != end.entries || archive.central_directory_start() != end.directory {
        return Err(EntryRefusal::Odd("its table of contents is not where its end says".to_owned()));
    }
    for index in 0..archive.len() {
        let entry = archive.by_index_data(index).map_err(EntryRefusal::broken)?;
        let refused =
            |problem: &str| Err(EntryRefusal::entry(&String::from_utf8_lossy(entry.name_raw()), problem));
        if entry.encrypted() {
            return refused("is encrypted");
        }
        match entry.unix_mode().map_or(0, |mode| mode & KIND) {
            0 | FOLDER | FILE => {}
            LINK => return refused("is a link"),
            _ => return refused("is neither a file nor a folder"),
        }
        if !matches!(entry.compression(), CompressionMethod::Stored | CompressionMethod::Deflated) {
            return refused(&format!("is compressed with {}, which is not supported", entry.compression()));
        }
    }
    archive.validate_header_consistency().map_err(|error| {
        EntryRefusal::Odd(format!("its table of contents and its entries differ: {error}"))
    })?;
    unpacker.commit =
        std::str::from_utf8(archive.comment()).ok().filter(|text| super::is_commit(text)).map(str::to_owned);
    for index in 0..archive.len() {
        unpacker.count()?;
        let entry = archive.by_index(index).map_err(EntryRefusal::broken)?;
        let raw = entry.name_raw().to_vec();
        // Only some readers honor a second name in an extra field.
        let refused = |problem: &str| Err(EntryRefusal::entry(&String::from_utf8_lossy(&raw), problem));
        if entry.name().map_err(EntryRefusal::broken)?.as_bytes() != raw {
            return refused("has two names, or a name that is not UTF-8");
        }
        let is_folder = entry.unix_mode().is_some_and(|mode| mode & KIND == FOLDER);
        match (raw.ends_with(b"/"), entry.size()) {
            (true, 0) => unpacker.folder(&raw)?,
            (true, _) => return refused("has the name of a folder and the content of a file"),
            (false, _) if is_folder => return refused("is a folder without the name of one"),
            (false, size) => unpacker.file(&raw, size, entry)?,
        }
    }
    Ok(())
}

/// The end-of-central-directory record.
struct End {
    entries: usize,
    directory: u64,
    length: u64,
}

/// Reads a little-endian number; zero past the end of the record.
fn number(record: &[u8], from: usize, length: usize) -> u64 {
    let bytes = record.get(from..from + length).unwrap_or_default();
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

impl End {
    /// Reads the end-of-central-directory record. There must be exactly one, at the end of the file and
    /// directly after the central directory.
    fn read(file: &mut File, size: u64) -> Checked<Self> {
        let tail = size.min((END_BYTES + usize::from(u16::MAX) + 20) as u64);
        file.seek(SeekFrom::Start(size - tail)).map_err(EntryRefusal::broken)?;
        let mut bytes = Vec::new();
        file.take(tail).read_to_end(&mut bytes).map_err(EntryRefusal::broken)?;
        let Some(at) = bytes.windows(4).rposition(|window| window == END) else {
            return Err(EntryRefusal::Broken("it is not a zip archive, or its end is missing".to_owned()));
        };
        let record = &bytes[at..];
        if record.len() < END_BYTES {
            return Err(EntryRefusal::Broken("its end is truncated".to_owned()));
        }
        if record.len() as u64 != END_BYTES as u64 + number(record, 20, 2) {
            return Err(EntryRefusal::Odd("it does not end where it says".to_owned()));
        }
        let (disk, first_disk, here, all) =
            (number(record, 4, 2), number(record, 6, 2), number(record, 8, 2), number(record, 10, 2));
        let (length, directory) = (number(record, 12, 4), number(record, 16, 4));
        let large =
            [here, all].contains(&u64::from(u16::MAX)) || [length, directory].contains(&u64::from(u32::MAX));
        if large || (at >= 20 && bytes[at - 20..at - 16] == END_64) {
            return Err(EntryRefusal::Odd("it is a zip64 archive, which is not supported".to_owned()));
        }
        if disk != 0 || first_disk != 0 || here != all {
            return Err(EntryRefusal::Odd("it is one of several parts".to_owned()));
        }
        if directory + length != size - record.len() as u64 {
            return Err(EntryRefusal::Odd("its table of contents is not where its end says".to_owned()));
        }
        Ok(Self { entries: all as usize, directory, length })
    }

    /// Checks that the central directory has exactly the declared number of contiguous records, and that no
    /// record uses zip64 fields.
    fn check_table(&self, file: &mut File) -> Checked<()> {
        if self.length > MAX_TABLE_BYTES {
            return Err(EntryRefusal::TooLarge(format!(
                "its table of contents has {} bytes; the limit is {MAX_TABLE_BYTES}",
                self.length
            )));
        }
        file.seek(SeekFrom::Start(self.directory)).map_err(EntryRefusal::broken)?;
        let mut table = Vec::new();
        file.take(self.length).read_to_end(&mut table).map_err(EntryRefusal::broken)?;
        let (mut rest, mut count) = (table.as_slice(), 0);
        while !rest.is_empty() {
            let size = 46 + number(rest, 28, 2) + number(rest, 30, 2) + number(rest, 32, 2);
            let Some(record) = rest.get(..size as usize).filter(|record| record.starts_with(&RECORD)) else {
                return Err(EntryRefusal::Broken("its table of contents cannot be read".to_owned()));
            };
            if [20, 24, 42].iter().any(|at| number(record, *at, 4) == u64::from(u32::MAX)) {
                return Err(EntryRefusal::Odd("it is a zip64 archive, which is not supported".to_owned()));
            }
            count += 1;
            rest = &rest[size as usize..];
        }
        if count != self.entries {
            let said = self.entries;
            let message = format!("its table of contents has {count} entries, and its end says {said}");
            return Err(EntryRefusal::Odd(message));
        }
        Ok(())
    }
}
