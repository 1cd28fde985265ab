//! Text for terminals, pipes and machines: styles, printing to stdout, and JSON.
//!
//! What a terminal would act on (control characters, bidirectional overrides, invisible characters) is escaped here,
//! in plain text and in JSON.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use skillfs::{Error, ErrorKind, Result};

pub(super) const BOLD: Style = Style::new().bold();
pub(super) const DIM: Style = Style::new().dimmed();
pub(super) const DIRECTORY: Style = AnsiColor::Blue.on_default().bold();
pub(super) const GOOD: Style = AnsiColor::Green.on_default();
pub(super) const ACCENT: Style = AnsiColor::Cyan.on_default();
pub(super) const FOUND_IN: Style = AnsiColor::Magenta.on_default();
pub(super) const WARN: Style = AnsiColor::Yellow.on_default();
pub(super) const BAD: Style = AnsiColor::Red.on_default().bold();

/// Prints text with styles, which are dropped where there is no terminal.
pub(super) fn print(text: &str) -> Result<()> {
    let choice = anstream::AutoStream::choice(&io::stdout());
    let mut stdout = anstream::AutoStream::new(io::stdout().lock(), choice);
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(not_printed)
}

/// Prints content as it is, escape sequences in it included.
pub(super) fn print_raw(bytes: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(not_printed)
}

/// Prints one JSON document on a line of its own.
pub(super) fn print_json(value: &impl Serialize) -> Result<()> {
    print_raw((to_json(value)? + "\n").as_bytes())
}

/// Prints a list, one JSON document a line.
pub(super) fn print_json_lines(values: &[impl Serialize]) -> Result<()> {
    let lines: Result<String> = values.iter().map(|value| Ok(to_json(value)? + "\n")).collect();
    print_raw(lines?.as_bytes())
}

fn not_printed(error: io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("cannot write to standard output: {error}"))
        .with_hint("check where the output goes: the disk may be full")
        .with_source(error)
}

pub(super) fn to_json(value: &impl Serialize) -> Result<String> {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Harmless);
    value.serialize(&mut serializer).map_err(|e| {
        Error::new(ErrorKind::Internal, "the answer could not be written as JSON").with_source(e)
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// JSON that no terminal acts on: what could, is written as `\uXXXX`, which means the same.
struct Harmless;

impl serde_json::ser::Formatter for Harmless {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(acts) {
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

/// A word quoted for a shell, if it needs to be.
pub(super) fn shell(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._@:+=/%,".contains(c);
    match word.chars().all(plain) && !word.is_empty() {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// `4.1 KiB`.
pub(super) fn size(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

/// Whether a terminal would act on it: control characters, and those that turn or hide text.
fn acts(c: char) -> bool {
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

/// Makes visible what a terminal would act on; line ends and tabs of content stay.
pub(super) fn visible(text: &str, content: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\n' | '\t' if content => out.push(c),
            // The other half of a line end.
            '\r' if content && chars.peek() == Some(&'\n') => {}
            c if acts(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_drive_a_terminal() {
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
            assert!(!shown.chars().any(acts) && shown != name, "{name:?}: {shown:?}");
            let json = to_json(&name).unwrap();
            assert!(!json.chars().any(acts), "{name:?}: {json}");
            assert_eq!(serde_json::from_str::<String>(&json).unwrap(), name);
        }
    }

    #[test]
    fn json_cannot_drive_a_terminal_and_means_the_same() {
        let text = "a\u{9b}31m\u{202e}\u{200b}\u{e0041}\n\"é🦀";
        let json = to_json(&text).unwrap();
        assert!(!json.chars().any(acts), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }
}
