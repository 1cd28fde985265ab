//! Text detection by content, decoding, replacing, and line windows. No I/O.
//!
//! The order of the checks matters: magic bytes alone would classify a note that starts with `BM`
//! as an image, and one that starts with `MZ` as a program.

use encoding_rs::{Decoder, DecoderResult, Encoding, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252};

/// How much of an object is inspected before the rest is requested.
pub(crate) const HEAD_BYTES: usize = 64 * 1024;

/// The MIME type of unrecognized binary content.
const UNKNOWN_BINARY: &str = "application/octet-stream";

/// The content is not text. Has its MIME type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Binary(pub(crate) &'static str);

/// Decoded content and its original encoding.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) content: String,
    pub(crate) encoding: &'static str,
    /// Whether the decoded bytes equal the original ones.
    pub(crate) exact: bool,
}

/// Classifies content by its first bytes.
pub(crate) fn sniff(head: &[u8]) -> Result<&'static Encoding, Binary> {
    classify(head, false)
}

/// Classifies complete content.
pub(crate) fn judge_whole(bytes: &[u8]) -> Result<&'static Encoding, Binary> {
    classify(bytes, true)
}

/// Classifies complete content and decodes it.
pub(crate) fn decode(bytes: Vec<u8>) -> Result<Text, Binary> {
    let encoding = classify(&bytes, true)?;
    let skip = Encoding::for_bom(&bytes).map_or(0, |(_, length)| length);
    let (content, exact) = if encoding == UTF_8 && skip == 0 {
        // Usually valid: takes over the buffer without a copy.
        match String::from_utf8(bytes) {
            Ok(text) => (text, true),
            Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), false),
        }
    } else {
        (encoding.decode_without_bom_handling(&bytes[skip..]).0.into_owned(), false)
    };
    if content.contains('\0') {
        return Err(Binary(UNKNOWN_BINARY));
    }
    Ok(Text { content, encoding: encoding.name(), exact })
}

fn classify(bytes: &[u8], whole: bool) -> Result<&'static Encoding, Binary> {
    if let Some((encoding, length)) = Encoding::for_bom(bytes) {
        let rest = &bytes[length..];
        let is_text = match encoding == UTF_8 {
            // Checked in place, because this may be all of a large file.
            true => !rest.contains(&0) && is_utf8(rest, whole),
            false => decoded(encoding, rest, whole).is_some_and(|text| !text.contains('\0')),
        };
        if is_text {
            return Ok(encoding);
        }
    }
    let binary = || Err(Binary(magic(bytes).unwrap_or(UNKNOWN_BINARY)));
    if bytes.contains(&0) || bytes.starts_with(PDF) {
        return binary();
    }
    if is_utf8(bytes, whole) {
        // Magic bytes that are text themselves, such as `BM`, prove nothing.
        let signed = bytes.iter().take(4).any(|b| is_binary_control(*b)) && magic(bytes).is_some();
        return if signed { binary() } else { Ok(UTF_8) };
    }
    // Legacy text has none of the control characters that compressed or encrypted bytes are full
    // of.
    if has_binary_control(bytes, whole) {
        return binary();
    }
    if is_damaged_utf8(bytes) { Ok(UTF_8) } else { Ok(legacy(bytes, whole)) }
}

/// What every PDF starts with, and no text does. `infer` searches for it in the first kilobyte.
const PDF: &[u8] = b"%PDF-";

/// Returns the MIME type by magic bytes. Types of text do not count.
fn magic(bytes: &[u8]) -> Option<&'static str> {
    if bytes.starts_with(PDF) {
        return Some("application/pdf");
    }
    let kind = infer::get(&bytes[..bytes.len().min(HEAD_BYTES)])?;
    let mime = kind.mime_type();
    (kind.matcher_type() != infer::MatcherType::Text && mime != "application/pdf").then_some(mime)
}

/// Decodes bytes strictly. Returns `None` if they are invalid in this encoding. A head may end in
/// the middle of a character.
fn decoded(encoding: &'static Encoding, bytes: &[u8], whole: bool) -> Option<String> {
    let mut decoder = encoding.new_decoder_without_bom_handling();
    let capacity = decoder.max_utf8_buffer_length_without_replacement(bytes.len()).unwrap_or(0);
    let mut text = String::with_capacity(capacity);
    let (result, _) = decoder.decode_to_string_without_replacement(bytes, &mut text, whole);
    (result == DecoderResult::InputEmpty).then_some(text)
}

/// Whether bytes are valid UTF-8. A head may end in the middle of a character.
fn is_utf8(bytes: &[u8], whole: bool) -> bool {
    match std::str::from_utf8(bytes) {
        Ok(_) => true,
        Err(error) => !whole && error.error_len().is_none(),
    }
}

/// Whether this is UTF-8 with a few invalid bytes: legacy text has valid sequences only by
/// accident.
fn is_damaged_utf8(bytes: &[u8]) -> bool {
    let (mut valid, mut invalid) = (0usize, 0usize);
    for chunk in bytes.utf8_chunks() {
        valid += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
        invalid += usize::from(!chunk.invalid().is_empty());
    }
    valid > 0 && valid >= invalid
}

/// Control characters that text does not have. A form feed or an escape sequence can be part of
/// text.
fn is_binary_control(byte: u8) -> bool {
    matches!(byte, 0x00..=0x07 | 0x0e..=0x1a | 0x1c..=0x1f)
}

/// Inspects only the head, so that a head and the complete content are classified alike.
fn has_binary_control(bytes: &[u8], whole: bool) -> bool {
    let bytes = match bytes {
        // DOS programs end text files with this byte.
        [text @ .., 0x1a] if whole => text,
        bytes => bytes,
    };
    bytes[..bytes.len().min(HEAD_BYTES)].iter().any(|b| is_binary_control(*b))
}

/// Detects the legacy encoding from the text around the first non-ASCII character: the detector is
/// slow, and more input does not improve the result.
fn legacy(bytes: &[u8], whole: bool) -> &'static Encoding {
    let start = bytes.iter().position(|b| !b.is_ascii()).unwrap_or(0).saturating_sub(HEAD_BYTES / 2);
    let sample = &bytes[start..bytes.len().min(start + HEAD_BYTES)];
    let last = whole && start + sample.len() == bytes.len();
    let mut detector = chardetng::EncodingDetector::new(chardetng::Iso2022JpDetection::Deny);
    detector.feed(sample, last);
    let guess = detector.guess(None, chardetng::Utf8Detection::Deny);
    if decoded(guess, sample, last).is_some() { guess } else { WINDOWS_1252 }
}

/// Why a text was not replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplaceError {
    Binary(Binary),
    /// The text does not occur. `line_ends`: it would with CRLF line endings.
    Absent {
        line_ends: bool,
    },
    /// The text occurs this many times instead of once.
    NotUnique(u64),
    /// The new text cannot be represented in the encoding of the file.
    NotEncodable(&'static str),
    /// Re-encoding would change other parts of the file.
    Lossy(&'static str),
    /// The result would have this many bytes.
    TooLong(u64),
}

/// Replaces text in content, in the encoding of the content. Returns the new content and the number
/// of replacements.
pub(crate) fn replace(
    bytes: &[u8],
    old: &str,
    new: &str,
    all: bool,
    most: u64,
) -> Result<(Vec<u8>, u64), ReplaceError> {
    let encoding = classify(bytes, true).map_err(ReplaceError::Binary)?;
    if encoding == UTF_8 {
        // Replaced as bytes, so that invalid UTF-8 and a byte order mark are preserved.
        return replace_bytes(bytes, old.as_bytes(), new.as_bytes(), all, most);
    }
    let skip = Encoding::for_bom(bytes).map_or(0, |(_, length)| length);
    let text = encoding.decode_without_bom_handling(&bytes[skip..]).0.into_owned();
    let encode = |text: &str| -> Option<Vec<u8>> {
        let mut out = bytes[..skip].to_vec();
        if encoding == UTF_16LE {
            out.extend(text.encode_utf16().flat_map(u16::to_le_bytes));
        } else if encoding == UTF_16BE {
            out.extend(text.encode_utf16().flat_map(u16::to_be_bytes));
        } else {
            let (encoded, _, unmappable) = encoding.encode(text);
            if unmappable {
                return None;
            }
            out.extend_from_slice(&encoded);
        }
        Some(out)
    };
    if encode(&text).as_deref() != Some(bytes) {
        return Err(ReplaceError::Lossy(encoding.name()));
    }
    let (changed, count) = replace_bytes(text.as_bytes(), old.as_bytes(), new.as_bytes(), all, most)?;
    let changed = String::from_utf8_lossy(&changed);
    encode(&changed).map(|changed| (changed, count)).ok_or(ReplaceError::NotEncodable(encoding.name()))
}

/// Fails before building a result of more than `most` bytes.
fn replace_bytes(
    bytes: &[u8],
    old: &[u8],
    new: &[u8],
    all: bool,
    most: u64,
) -> Result<(Vec<u8>, u64), ReplaceError> {
    let find = memchr::memmem::Finder::new(old);
    let count = find.find_iter(bytes).count();
    let Some(first) = find.find(bytes) else {
        let windows = String::from_utf8_lossy(old).replace("\r\n", "\n").replace('\n', "\r\n");
        let line_ends =
            windows.as_bytes() != old && memchr::memmem::find(bytes, windows.as_bytes()).is_some();
        return Err(ReplaceError::Absent { line_ends });
    };
    if !all && count > 1 {
        return Err(ReplaceError::NotUnique(count as u64));
    }
    // `aa` occurs twice in `aaa`, so it is ambiguous.
    if !all && find.find(&bytes[first + 1..]).is_some() {
        return Err(ReplaceError::NotUnique(2));
    }
    let kept = (bytes.len() - count * old.len()) as u64;
    let size = kept.saturating_add((new.len() as u64).saturating_mul(count as u64));
    if size > most {
        return Err(ReplaceError::TooLong(size));
    }
    let mut out = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    let mut rest = 0;
    for at in find.find_iter(bytes) {
        out.extend_from_slice(&bytes[rest..at]);
        out.extend_from_slice(new);
        rest = at + old.len();
    }
    out.extend_from_slice(&bytes[rest..]);
    Ok((out, count as u64))
}

/// Decodes content that arrives in pieces and is too large to keep in memory.
pub(crate) struct StreamDecoder {
    encoding: &'static Encoding,
    decoder: Decoder,
    /// Whether everything so far was ASCII, so that the encoding is still undecided.
    ascii: bool,
    /// Bytes after that ASCII which may be the start of a UTF-8 sequence, depending on the next
    /// piece.
    held: Vec<u8>,
}

/// Why a piece could not be decoded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StreamError {
    Binary(Binary),
    /// Everything before this piece was ASCII, and the piece is not UTF-8: start over with this
    /// encoding.
    Legacy(&'static Encoding),
}

impl StreamDecoder {
    /// Starts decoding with the encoding from [`sniff`]. Removes a byte order mark.
    pub(crate) fn new(encoding: &'static Encoding) -> Self {
        Self { encoding, decoder: encoding.new_decoder_with_bom_removal(), ascii: true, held: Vec::new() }
    }

    /// Resumes decoding in the middle of a file, with `ascii` as [`StreamDecoder::is_ascii`] was
    /// there.
    pub(crate) fn resumed(encoding: &'static Encoding, ascii: bool) -> Self {
        Self { encoding, decoder: encoding.new_decoder_without_bom_handling(), ascii, held: Vec::new() }
    }

    /// Whether everything so far was ASCII.
    pub(crate) fn is_ascii(&self) -> bool {
        self.ascii
    }

    pub(crate) fn decode(&mut self, piece: &[u8], last: bool) -> Result<String, StreamError> {
        let joined;
        let mut piece = piece;
        if !self.held.is_empty() {
            joined = [&std::mem::take(&mut self.held), piece].concat();
            piece = &joined;
        }
        if self.encoding == UTF_8 && self.ascii && !piece.is_ascii() {
            let first = piece.iter().position(|b| !b.is_ascii()).unwrap_or(0);
            let cut = |rest| {
                std::str::from_utf8(rest).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
            };
            if !last && cut(&piece[first..]) {
                // The first bytes of a UTF-8 sequence are valid characters in a legacy encoding:
                // wait for the rest.
                self.held = piece[first..].to_vec();
                piece = &piece[..first];
            } else if !is_utf8(piece, last) && !is_damaged_utf8(piece) && !has_binary_control(piece, last) {
                return Err(StreamError::Legacy(legacy(piece, last)));
            } else {
                self.ascii = false;
            }
        }
        let mut text = String::with_capacity(self.decoder.max_utf8_buffer_length(piece.len()).unwrap_or(0));
        let (_, _, replaced) = self.decoder.decode_to_string(piece, &mut text, last);
        let wide = self.encoding == UTF_16LE || self.encoding == UTF_16BE;
        if text.contains('\0') || (replaced && (wide || has_binary_control(piece, last))) {
            return Err(StreamError::Binary(Binary(UNKNOWN_BINARY)));
        }
        Ok(text)
    }
}

/// Extracts the lines `offset..offset + limit` from text that arrives in pieces.
///
/// A line includes its `\n`, so that adjacent windows concatenate to the original text. An empty
/// text has no lines.
#[derive(Debug)]
pub(crate) struct LineWindow {
    offset: u64,
    end: u64,
    /// The number of the line that the next character belongs to.
    line: u64,
    /// Whether that line has started.
    begun: bool,
    text: String,
}

impl LineWindow {
    pub(crate) fn new(offset: u64, limit: Option<u64>) -> Self {
        Self {
            offset,
            end: limit.map_or(u64::MAX, |limit| offset.saturating_add(limit)),
            line: 0,
            begun: false,
            text: String::new(),
        }
    }

    /// The first line of the window.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Declares that the next piece starts with this line.
    pub(crate) fn skip_to(&mut self, line: u64) {
        self.line = line;
    }

    /// Counts the lines of a text.
    pub(crate) fn count(text: &str) -> u64 {
        let ends = memchr::memchr_iter(b'\n', text.as_bytes()).count() as u64;
        ends + u64::from(!text.is_empty() && !text.ends_with('\n'))
    }

    pub(crate) fn push(&mut self, piece: &str) {
        for part in piece.split_inclusive('\n') {
            if (self.offset..self.end).contains(&self.line) {
                self.text.push_str(part);
            }
            self.begun = !part.ends_with('\n');
            if !self.begun {
                self.line += 1;
            }
        }
    }

    /// Whether the window is complete and more lines follow it.
    pub(crate) fn is_past_the_window(&self) -> bool {
        self.lines_seen() > self.end
    }

    pub(crate) fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// The number of lines so far, including an incomplete one.
    pub(crate) fn lines_seen(&self) -> u64 {
        self.line + u64::from(self.begun)
    }

    /// The number of lines in the window.
    pub(crate) fn lines(&self) -> u64 {
        self.lines_seen().min(self.end).saturating_sub(self.offset)
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8], expected: &str, encoding: &str) {
        let got = decode(bytes.to_vec()).unwrap_or_else(|b| panic!("{b:?} for {expected:?}"));
        assert_eq!((got.content.as_str(), got.encoding), (expected, encoding));
        assert!(sniff(bytes).is_ok(), "{expected:?}");
    }

    fn binary(bytes: &[u8], mime: &'static str) {
        assert_eq!(decode(bytes.to_vec()), Err(Binary(mime)));
    }

    fn latin1(text: &str) -> Vec<u8> {
        text.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect()
    }

    fn utf16(text: &str, to: fn(u16) -> [u8; 2]) -> Vec<u8> {
        std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(to).collect()
    }

    #[test]
    fn unicode_encodings_are_decoded() {
        text(b"", "", "UTF-8");
        text("ñandú 🦀\r\n".as_bytes(), "ñandú 🦀\r\n", "UTF-8");
        text("\u{feff}name: x".as_bytes(), "name: x", "UTF-8");
        text("\u{feff}".as_bytes(), "", "UTF-8");
        text(&utf16("línea\nñ🦀", u16::to_le_bytes), "línea\nñ🦀", "UTF-16LE");
        text(&utf16("línea\nñ🦀", u16::to_be_bytes), "línea\nñ🦀", "UTF-16BE");
    }

    #[test]
    fn magic_bytes_do_not_make_text_binary() {
        for start in [
            "BM",
            "MZ",
            "ID3",
            "GIF",
            "PK",
            "OggS",
            "RIFF",
            "%!PS",
            "{\\rtf1",
            "#!/bin/sh\n",
            "#!/usr/bin/env python\n",
            "<?xml version='1.0'?>",
            "<html>",
            "<!DOCTYPE html>",
            "<!-- ",
            "<svg>",
            "-----BEGIN CERTIFICATE-----",
            "A PDF begins with `%PDF-1.7`: ",
            "%PDF",
        ] {
            let note = format!("{start} es como empieza esta nota del año 2015 del señor Muñoz\n");
            text(note.as_bytes(), &note, "UTF-8");
            text(&latin1(&note), &note, "windows-1252");
        }
        text(b"PS1='\x01x\x02'\n#!/bin/sh", "PS1='\u{1}x\u{2}'\n#!/bin/sh", "UTF-8");
        // DOS programs end text files with this byte. In a head it would not be at the end.
        assert_eq!(decode(b"DOS, a\xf1o\r\n\x1a".to_vec()).unwrap().content, "DOS, año\r\n\u{1a}");
    }

    #[test]
    fn a_stray_byte_does_not_spoil_the_rest() {
        text(b"Mu\xc3\xb1oz compr\xc3\xb3 \xff aqu\xc3\xad", "Muñoz compró \u{fffd} aquí", "UTF-8");
        text(b"Mu\xc3\xb1oz, a\xc3", "Muñoz, a\u{fffd}", "UTF-8");
    }

    #[test]
    fn double_byte_text_is_sniffed_wherever_it_is_cut() {
        let japanese = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。";
        let (bytes, ..) = encoding_rs::SHIFT_JIS.encode(japanese);
        for cut in bytes.len() - 8..bytes.len() {
            assert_eq!(sniff(&bytes[..cut]), Ok(encoding_rs::SHIFT_JIS), "cut at {cut}");
        }
    }

    #[test]
    fn binaries_are_named() {
        binary(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj", "application/pdf");
        binary(b"%PDF-1.4\n1 0 obj <</Type /Catalog>>", "application/pdf");
        binary(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "image/png");
        binary(b"PK\x03\x04\x14\0\0\0\x08\0", "application/zip");
        binary(b"PK\x03\x04 without a NUL", "application/zip");
        binary(b"\x1f\x8b\x08\0\0\0\0\0\0\x03", "application/gzip");
        binary(b"\0\x01\x02", "application/octet-stream");
        binary(b"text, then \0", "application/octet-stream");
        binary(b"\x93\x01\xfe\x07\x99\x88", "application/octet-stream");
        binary(&utf16("a\0b", u16::to_le_bytes), "application/octet-stream");
        // UTF-16 without a byte order mark is not supported, and is full of NULs.
        binary(&utf16("hola", u16::to_le_bytes)[2..], "application/octet-stream");
    }

    #[test]
    fn nul_past_the_head_is_binary() {
        let mut bytes = vec![b'a'; 100_000];
        bytes[70_000] = 0;
        binary(&bytes, "application/octet-stream");
        assert!(sniff(&bytes[..HEAD_BYTES]).is_ok());
    }

    #[test]
    fn spanish_and_danish_of_the_last_century() {
        for sample in [
            "Año",
            "España",
            "niño",
            "José",
            "¿Qué?",
            "Cláusula 1ª: el comprador pagará 1.000 libras en Málaga.\n",
            "Escritura de compraventa otorgada ante mí, don Íñigo Núñez, notario de A Coruña.\r\n",
            "Rødgrød med fløde på Ærø",
            "Smørrebrød",
            "Ændring af købsaftalen: sælger overdrager ejendommen til køber.",
            "Café",
            "garçon, où êtes-vous ?",
            "Straße",
        ] {
            text(&latin1(sample), sample, "windows-1252");
        }
        // The euro sign and curly quotes exist in Windows-1252 but not in Latin-1.
        text(
            b"Precio: 350.000 \x80 \x93al contado\x94\n",
            "Precio: 350.000 € “al contado”\n",
            "windows-1252",
        );
    }

    #[test]
    fn head_may_end_inside_a_character() {
        let crab = "🦀".as_bytes();
        assert_eq!(sniff(&crab[..3]), Ok(UTF_8));
    }

    fn window(pieces: &[&str], offset: u64, limit: Option<u64>) -> (String, u64, u64) {
        let mut window = LineWindow::new(offset, limit);
        for piece in pieces {
            window.push(piece);
        }
        assert_eq!(LineWindow::count(&pieces.concat()), window.lines_seen());
        (window.text.clone(), window.lines(), window.lines_seen())
    }

    #[test]
    fn line_windows_are_extracted() {
        let check = |pieces: &[&str], offset, limit, expected: &str, lines, total| {
            assert_eq!(window(pieces, offset, limit), (expected.to_owned(), lines, total), "{pieces:?}");
        };
        check(&["a\nb\nc\n"], 0, None, "a\nb\nc\n", 3, 3);
        check(&["a\nb\nc"], 0, None, "a\nb\nc", 3, 3);
        check(&["a\nb\nc"], 1, Some(1), "b\n", 1, 3);
        check(&["a\r\nb\r\n"], 1, Some(1), "b\r\n", 1, 2);
        check(&["a\n", "b", "b\nc"], 1, Some(1), "bb\n", 1, 3);
        check(&["a\nb"], 2, Some(5), "", 0, 2);
        check(&["a\nb"], 9, None, "", 0, 2);
        check(&["a\nb"], 0, Some(0), "", 0, 2);
        check(&[""], 0, None, "", 0, 0);
        check(&["\n"], 0, None, "\n", 1, 1);
        check(&["a"], u64::MAX, Some(u64::MAX), "", 0, 1);
    }

    #[test]
    fn windows_side_by_side_are_the_whole() {
        let whole = "one\r\ntwo\n\nfour\nfive";
        for size in 1..7 {
            let mut joined = String::new();
            for offset in (0..7).step_by(size) {
                joined += &window(&[whole], offset, Some(size as u64)).0;
            }
            assert_eq!(joined, whole);
        }
    }

    #[test]
    fn text_is_replaced_in_its_own_encoding() {
        let check = |bytes: &[u8], old: &str, new: &str, all: bool, expected: &[u8], count: u64| {
            assert_eq!(replace(bytes, old, new, all, 1000), Ok((expected.to_vec(), count)), "{old}");
        };
        check(b"one two", "two", "2", false, b"one 2", 1);
        check(b"a b a b a", "a", "", true, b" b  b ", 3);
        check("ñ\u{feff}".as_bytes(), "ñ", "n", false, "n\u{feff}".as_bytes(), 1);
        check("\u{feff}uno".as_bytes(), "uno", "dos", false, "\u{feff}dos".as_bytes(), 1);
        check(b"Mu\xc3\xb1oz \xff x", "x", "y", false, b"Mu\xc3\xb1oz \xff y", 1);
        let old = latin1("El señor Muñoz pagará.\r\n");
        check(&old, "Muñoz", "Núñez", false, &latin1("El señor Núñez pagará.\r\n"), 1);
        for to in [u16::to_le_bytes, u16::to_be_bytes] {
            check(&utf16("uno 🦀", to), "🦀", "dos", false, &utf16("uno dos", to), 1);
        }
        check(b"aaaa", "aa", "b", true, b"bb", 2);
    }

    /// A mebibyte of matches, each replaced by a mebibyte: a tebibyte that must not be allocated.
    #[test]
    fn a_replacement_that_is_too_long_is_never_made() {
        let (content, new) = (vec![b'a'; 1 << 20], "b".repeat(1 << 20));
        assert_eq!(replace(&content, "a", &new, true, 1 << 21), Err(ReplaceError::TooLong(1 << 40)));
    }

    #[test]
    fn what_cannot_be_replaced_is_told() {
        let check = |bytes: &[u8], old: &str, new: &str, error: ReplaceError| {
            assert_eq!(replace(bytes, old, new, false, 1000), Err(error), "{old}");
        };
        check(b"a", "b", "", ReplaceError::Absent { line_ends: false });
        check(b"a\r\nb", "a\nb", "", ReplaceError::Absent { line_ends: true });
        check(b"aa", "a", "", ReplaceError::NotUnique(2));
        check(b"aaa", "aa", "b", ReplaceError::NotUnique(2));
        check(b"a", "a", &"b".repeat(1001), ReplaceError::TooLong(1001));
        check(b"a\0b", "a", "b", ReplaceError::Binary(Binary(UNKNOWN_BINARY)));
        check(&latin1("año señor"), "año", "年", ReplaceError::NotEncodable("windows-1252"));
    }

    #[test]
    fn stream_pieces_may_split_characters() {
        let utf16 = utf16("línea\nñ🦀", u16::to_be_bytes);
        for cut in 0..=utf16.len() {
            let mut decoder = StreamDecoder::new(UTF_16BE);
            let mut got = decoder.decode(&utf16[..cut], false).unwrap();
            got += &decoder.decode(&utf16[cut..], true).unwrap();
            assert_eq!(got, "línea\nñ🦀", "cut at {cut}");
        }
    }

    #[test]
    fn stream_reports_a_legacy_encoding() {
        let mut decoder = StreamDecoder::new(UTF_8);
        decoder.decode(b"plain\n", false).unwrap();
        let error = decoder.decode(&latin1("España\n"), true).unwrap_err();
        assert_eq!(error, StreamError::Legacy(WINDOWS_1252));
        // Wherever it is cut, including after what could be part of a UTF-8 sequence.
        let legacy = latin1("plain España\n");
        for cut in 0..legacy.len() {
            let mut decoder = StreamDecoder::new(UTF_8);
            let halves = [&legacy[..cut], b"", &legacy[cut..]];
            let mut decoded =
                halves.iter().zip([false, false, true]).map(|(half, last)| decoder.decode(half, last));
            assert_eq!(decoded.find_map(Result::err), Some(StreamError::Legacy(WINDOWS_1252)), "{cut}");
        }
        let text = "plain Espa\u{f1}a \u{1f980}".as_bytes();
        for cut in 0..text.len() {
            let mut decoder = StreamDecoder::new(UTF_8);
            let decoded =
                decoder.decode(&text[..cut], false).unwrap() + &decoder.decode(&text[cut..], true).unwrap();
            assert_eq!(decoded.as_bytes(), text, "{cut}");
        }
        // Once a non-ASCII character was valid UTF-8, it stays UTF-8.
        let mut decoder = StreamDecoder::new(UTF_8);
        decoder.decode("se\u{f1}or\n".as_bytes(), false).unwrap();
        assert_eq!(decoder.decode(b"a\xf1o\n", true).unwrap(), "a\u{fffd}o\n");
        let mut decoder = StreamDecoder::new(UTF_8);
        assert_eq!(decoder.decode(b"a\0b", true), Err(StreamError::Binary(Binary(UNKNOWN_BINARY))));
    }
}
