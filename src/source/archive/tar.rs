//! Gzip-compressed tar archives. Extended headers are parsed here, with size limits, and not by the `tar`
//! crate, so that names from extended headers go through the same checks as all others.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use tar::{Archive, EntryType};

use super::{Checked, EntryRefusal, Unpacker};

/// The maximum size of an extended header.
const MAX_HEADER_BYTES: u64 = 64 * 1024;
/// The size of an empty entry in a tar archive: its header, and another one for a long name.
const ENTRY_BYTES: u64 = 2048;

/// Values from extended headers that apply to the next entry.
#[derive(Default)]
struct Extended {
    name: Option<Vec<u8>>,
    size: Option<u64>,
    sparse: bool,
}

pub(super) fn unpack(file: File, unpacker: &mut Unpacker) -> Checked<()> {
    let limits = unpacker.limits;
    let most = limits.max_unpacked_bytes.saturating_add(limits.max_entries as u64 * ENTRY_BYTES);
    // Bytes outside of file contents count as well: empty entries and padding compress best of all.
    let ratio = unpacker
        .packed
        .saturating_mul(limits.max_ratio)
        .max(super::UNMEASURED_BYTES)
        .saturating_add(1024 * ENTRY_BYTES);
    let (inner, stopped) = (MultiGzDecoder::new(BufReader::new(file)), Cell::new(false));
    let mut archive = Archive::new(Bounded { inner, left: most.min(ratio), stopped: &stopped });
    match entries(&mut archive, unpacker).and_then(|()| rest(archive.into_inner())) {
        // The limit was reached inside the `tar` crate. Report the limit rather than the crate's error.
        Err(EntryRefusal::Broken(_)) if stopped.get() => {
            Err(EntryRefusal::TooLarge("it unpacks to more than the limits allow".to_owned()))
        }
        result => result,
    }
}

fn entries<R: Read>(archive: &mut Archive<R>, unpacker: &mut Unpacker) -> Checked<()> {
    let mut next = Extended::default();
    for entry in archive.entries().map_err(EntryRefusal::broken)?.raw(true) {
        let mut entry = entry.map_err(EntryRefusal::broken)?;
        unpacker.count()?;
        let header = entry.header().clone();
        let size = header.entry_size().map_err(EntryRefusal::broken)?;
        match header.entry_type() {
            EntryType::XGlobalHeader => {
                for (key, value) in pax(&mut entry, size)? {
                    if key == "comment" {
                        let text = String::from_utf8_lossy(&value).into_owned();
                        unpacker.commit = super::is_commit(&text).then_some(text);
                    } else if matches!(key.as_str(), "path" | "linkpath" | "size")
                        || key.starts_with("GNU.sparse")
                    {
                        return Err(EntryRefusal::Odd(format!(
                            "it sets `{key}` for all its entries at once"
                        )));
                    }
                }
                continue;
            }
            EntryType::XHeader => {
                for (key, value) in pax(&mut entry, size)? {
                    match key.as_str() {
                        "path" => next.name = Some(value),
                        // A size that is not a number never equals the size in the header.
                        "size" => {
                            next.size = Some(String::from_utf8_lossy(&value).parse().unwrap_or(u64::MAX));
                        }
                        _ => next.sparse |= key.starts_with("GNU.sparse"),
                    }
                }
                continue;
            }
            EntryType::GNULongName => {
                let mut name = small(&mut entry, size)?;
                while name.last() == Some(&0) {
                    name.pop();
                }
                next.name = Some(name);
                continue;
            }
            EntryType::GNULongLink => {
                small(&mut entry, size)?;
                continue;
            }
            _ => {}
        }
        let said = std::mem::take(&mut next);
        let raw = said.name.unwrap_or_else(|| header.path_bytes().into_owned());
        let refused = |problem: &str| Err(EntryRefusal::entry(&String::from_utf8_lossy(&raw), problem));
        // Check the name first, because a bad name is a more helpful reason.
        super::parse(&raw)?;
        if said.sparse || header.entry_type() == EntryType::GNUSparse {
            return refused("is a sparse file, which is not supported");
        }
        if said.size.is_some_and(|said| said != size) {
            return refused("has two sizes");
        }
        match header.entry_type() {
            // In old archives, a folder is a file whose name ends in a slash.
            EntryType::Regular if raw.ends_with(b"/") && size == 0 => unpacker.folder(&raw)?,
            EntryType::Regular => unpacker.file(&raw, size, &mut entry)?,
            EntryType::Directory if size == 0 => unpacker.folder(&raw)?,
            EntryType::Directory => return refused("is a folder and has the content of a file"),
            EntryType::Symlink => return refused("is a link"),
            EntryType::Link => return refused("is a hard link"),
            _ => return refused("is neither a file nor a folder"),
        }
    }
    Ok(())
}

/// Checks that only padding follows the end of the archive. Reading to the end also verifies the gzip
/// checksum.
fn rest(mut reader: impl Read) -> Checked<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match reader.read(&mut buffer).map_err(EntryRefusal::broken)? {
            0 => return Ok(()),
            read if buffer[..read].iter().any(|byte| *byte != 0) => {
                return Err(EntryRefusal::Odd("there is data after its end".to_owned()));
            }
            _ => {}
        }
    }
}

/// Reads a complete extended header.
fn small(entry: &mut impl Read, size: u64) -> Checked<Vec<u8>> {
    if size > MAX_HEADER_BYTES {
        let message = format!("it has a header of {size} bytes; the limit is {MAX_HEADER_BYTES}");
        return Err(EntryRefusal::TooLarge(message));
    }
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes).map_err(EntryRefusal::broken)?;
    if bytes.len() as u64 != size {
        return Err(EntryRefusal::Broken("a header is truncated".to_owned()));
    }
    Ok(bytes)
}

/// Parses the `length key=value\n` records of an extended header. Records are split by length, because a
/// value may contain line breaks.
fn pax(entry: &mut impl Read, size: u64) -> Checked<Vec<(String, Vec<u8>)>> {
    let bytes = small(entry, size)?;
    records(&bytes).ok_or_else(|| EntryRefusal::Broken("an extended header cannot be read".to_owned()))
}

fn records(mut bytes: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let digits = bytes.iter().position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(&bytes[..digits]).ok()?.parse().ok()?;
        let record = bytes.get(digits + 1..length)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        let key = String::from_utf8(record[..equals].to_vec()).ok()?;
        records.push((key, record[equals + 1..].to_vec()));
        bytes = &bytes[length..];
    }
    Some(records)
}

/// A reader that fails once a limit is exceeded, and records that it did.
struct Bounded<'s, R> {
    inner: R,
    left: u64,
    stopped: &'s Cell<bool>,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 {
            // Reaching the limit is fine if there is no more data.
            if self.inner.read(&mut [0])? == 0 {
                return Ok(0);
            }
            self.stopped.set(true);
            return Err(std::io::Error::other("there is more than the limits allow"));
        }
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.inner.read(&mut buffer[..most]).inspect(|read| self.left -= *read as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_by_their_lengths() {
        let one = |key: &str, value: &str| (key.to_owned(), value.as_bytes().to_vec());
        assert_eq!(records(b"").unwrap(), []);
        assert_eq!(records(b"12 path=abc\n").unwrap(), [one("path", "abc")]);
        // A line break in a value does not start a new record.
        assert_eq!(records(b"20 comment=\n7 a=../\n").unwrap(), [one("comment", "\n7 a=../")]);
        for bad in [
            &b"x"[..],
            b"99 path=abc\n",
            b"12 path=abcd",
            b"5 ab\n",
            b"0 a=b\n",
            b"-1 a=b\n",
            b"1 \n",
            b" 6 a=b\n",
            b"6  a=b\n",
            b"99999999999999999999 a=b\n",
            b"18446744073709551615 a=b\n",
            b"6 a=b\n7",
            b"6 a=b\0",
            b"7 \xff=b\n",
            b"0x6 a=b\n",
        ] {
            assert!(records(bad).is_none(), "{bad:?}");
        }
    }
}
