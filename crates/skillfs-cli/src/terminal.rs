//! Printing to stdout as text and as JSON, styles, and the formatting of numbers and names.
//!
//! Characters that could control a terminal (control characters, bidirectional overrides, invisible characters) are
//! escaped here, in text and in JSON.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use skillfs::{Error, ErrorKind, Result};

pub(super) const BOLD: Style = Style::new().bold();
pub(super) const DIM: Style = Style::new().dimmed();
pub(super) const DIRECTORY: Style = AnsiColor::Blue.on_default().bold();
pub(super) const GOOD: Style = AnsiColor::Green.on_default();
pub(super) const ACCENT: Style = AnsiColor::Cyan.on_default();
pub(super) const MATCH_PATH: Style = AnsiColor::Magenta.on_default();
pub(super) const WARN: Style = AnsiColor::Yellow.on_default();
pub(super) const BAD: Style = AnsiColor::Red.on_default().bold();

/// Prints styled text. The styles are dropped if stdout is not a terminal.
pub(super) fn print(text: &str) -> Result<()> {
    let choice = anstream::AutoStream::choice(&io::stdout());
    let mut stdout = anstream::AutoStream::new(io::stdout().lock(), choice);
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(not_printed)
}

/// Prints bytes verbatim, including escape sequences.
pub(super) fn print_raw(bytes: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(not_printed)
}

/// Prints one JSON document and a line break.
pub(super) fn print_json(value: &impl Serialize) -> Result<()> {
    print_raw((to_json(value)? + "\n").as_bytes())
}

/// Prints a list, one JSON document per line.
pub(super) fn print_json_lines(values: &[impl Serialize]) -> Result<()> {
    let lines: Result<String> = values.iter().map(|value| Ok(to_json(value)? + "\n")).collect();
    print_raw(lines?.as_bytes())
}

fn not_printed(error: io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("cannot write to standard output: {error}"))
        .with_hint("check where the output goes; the disk may be full")
        .with_source(error)
}

/// Encodes a document as JSON that is safe to print on a terminal.
pub(super) fn to_json(value: &impl Serialize) -> Result<String> {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, EscapeUnsafe);
    value.serialize(&mut serializer).map_err(|e| {
        Error::new(ErrorKind::Internal, "the result could not be encoded as JSON").with_source(e)
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Formats JSON with unsafe characters as `\uXXXX`, which decodes to the same text.
struct EscapeUnsafe;

impl serde_json::ser::Formatter for EscapeUnsafe {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(is_unsafe) {
            writer.write_all(&rest.as_bytes()[..at])?;
            let c = rest[at..].chars().next().unwrap_or_default();
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = &rest[at + c.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

/// `1 file`, `2 files`.
pub(super) fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Quotes a word for a POSIX shell if needed.
pub(super) fn shell(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._@:+=/%,".contains(c);
    match word.chars().all(plain) && !word.is_empty() {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// `158 B`, `4.1 KiB`, `20.0 MiB`.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // Tenths of the unit, rounded half up.
    let tenths = |unit: u128| (u128::from(bytes) * 10 + unit / 2) / unit;
    let (mut unit, mut name) = (1024, UNITS[0]);
    for next in &UNITS[1..] {
        if tenths(unit) < 10_240 {
            break;
        }
        (unit, name) = (unit * 1024, next);
    }
    format!("{}.{} {name}", tenths(unit) / 10, tenths(unit) % 10)
}

/// `158 B`, `4.1 KiB (4198 bytes)`.
pub(super) fn exact_size(bytes: u64) -> String {
    if bytes < 1024 { size(bytes) } else { format!("{} ({bytes} bytes)", size(bytes)) }
}

/// Whether a character could control a terminal, or reverse or hide text.
fn is_unsafe(c: char) -> bool {
    match c {
        '\u{ad}'
        | '\u{61c}'
        | '\u{200b}'..='\u{200c}'
        | '\u{200e}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}' => true,
        c => c.is_control(),
    }
}

/// Escapes characters that could control a terminal. Line breaks and tabs are kept in `content`.
pub(super) fn visible(text: &str, content: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\n' | '\t' if content => out.push(c),
            // CRLF becomes LF.
            '\r' if content && chars.peek() == Some(&'\n') => {}
            c if is_unsafe(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_one_decimal() {
        let sizes = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (4198, "4.1 KiB"),
            (1024 * 1024 - 1, "1.0 MiB"),
            (20_000_000, "19.1 MiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (bytes, shown) in sizes {
            assert_eq!(size(bytes), shown);
        }
        assert_eq!(exact_size(4198), "4.1 KiB (4198 bytes)");
    }

    #[test]
    fn names_cannot_control_a_terminal() {
        assert_eq!(visible("a\u{1b}[31mb", false), "a\\u{1b}[31mb");
        assert_eq!(visible("gpj\u{202e}.exe", false), "gpj\\u{202e}.exe");
        assert_eq!(visible("é 🦀 👩\u{200d}💻", false), "é 🦀 👩\u{200d}💻");
        assert_eq!(visible("a\tb\r\nc", true), "a\tb\nc");
        assert_eq!(visible("right\rwrong", true), "right\\u{d}wrong");
        for name in [
            "a\u{1b}[31mb",
            "gpj\u{202e}.exe",
            "\u{1b}]0;title\u{7}",
            "\u{1b}]52;c;ZXZpbA==\u{7}",
            "\u{1b}]8;;http://evil\u{1b}\\x",
            "\u{1b}P+q544e\u{1b}\\",
            "\u{1b}_x\u{1b}\\",
            "\u{1b}[2J\u{1b}[H",
            "\u{1b}[6n",
            "\u{1b}c",
            "\u{9b}31m",
            "\u{9d}0;x\u{9c}",
            "a\rb",
            "a\u{8}b",
            "a\nb",
            "a\tb",
            "a\0b",
            "\u{7}",
            "a\u{7f}",
            "a\u{85}b",
            "a\u{b}b",
            "a\u{c}b",
            "\u{e}x\u{f}",
            "\u{200b}a",
            "\u{200e}a",
            "\u{200f}a",
            "\u{202a}a",
            "\u{202b}a",
            "\u{202c}a",
            "\u{202d}a",
            "\u{2028}a",
            "\u{2029}a",
            "\u{2066}a",
            "\u{2067}a",
            "\u{2068}a",
            "\u{2069}a",
            "\u{feff}a",
            "\u{e0041}a",
            "\u{2060}a",
            "\u{61c}a",
            "\u{ad}a",
        ] {
            let shown = visible(name, false);
            assert!(!shown.chars().any(is_unsafe) && shown != name, "{name:?}: {shown:?}");
            let json = to_json(&name).unwrap();
            assert!(!json.chars().any(is_unsafe), "{name:?}: {json}");
            assert_eq!(serde_json::from_str::<String>(&json).unwrap(), name);
        }
    }

    #[test]
    fn json_cannot_control_a_terminal_and_decodes_to_the_same() {
        let text = "a\u{9b}31m\u{202e}\u{200b}\u{e0041}\n\"é🦀";
        let json = to_json(&text).unwrap();
        assert!(!json.chars().any(is_unsafe), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }
}
