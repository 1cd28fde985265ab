//! Frontmatter that is almost YAML: how people write it, and what they meant.

use super::Log;
use super::yaml::{self, Yaml, YamlError};

/// Parses frontmatter, however it is written. `first_line` is the file's line of its first line.
pub(super) fn fields(text: &str, first_line: usize, log: &mut Log<'_>) -> Yaml {
    let line_of = |error: &YamlError| Some(first_line + error.line - 1);
    let error = match yaml::parse(text) {
        Ok(parsed) => return checked(parsed, first_line, log),
        Err(error) => error,
    };
    let repaired = quote_values(text);
    if let Ok(parsed) = yaml::parse(&repaired) {
        log.warn(
            "quoted",
            line_of(&error),
            format!("no valid YAML ({}); values were read as if they were quoted", error.message),
        );
        return checked(parsed, first_line, log);
    }
    log.warn(
        "line-wise",
        line_of(&error),
        format!("no valid YAML ({}); its lines were read one by one", error.message),
    );
    by_lines(text)
}

fn checked((tree, duplicates): (Yaml, Vec<String>), first_line: usize, log: &mut Log<'_>) -> Yaml {
    for key in duplicates {
        let key = crate::error::shorten(&key);
        log.warn("duplicate-key", None, format!("the key `{key}` stands twice; the first value counts"));
    }
    match tree {
        Yaml::Map(_) => tree,
        Yaml::Null => Yaml::Map(Vec::new()),
        _ => {
            log.warn("not-a-map", Some(first_line), "the frontmatter has no fields; it was ignored");
            Yaml::Map(Vec::new())
        }
    }
}

/// A line `key: value` at the left margin.
fn key_line(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once(':')?;
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ');
    let starts = key.chars().next().is_some_and(char::is_alphanumeric);
    (starts && key.chars().all(plain) && (value.is_empty() || value.starts_with([' ', '\t'])))
        .then(|| (key.trim_end(), value.trim()))
}

/// Quotes what a plain value may not be, and turns tabs into spaces. Everything else stays.
fn quote_values(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    for line in text.lines() {
        let indent = line.len() - line.trim_start_matches([' ', '\t']).len();
        let (margin, rest) = (line[..indent].replace('\t', "  "), &line[indent..]);
        out.push_str(&margin);
        match key_line(rest) {
            Some((key, value)) if wants_quotes(value) => {
                out.push_str(key);
                out.push_str(": ");
                push_quoted(&mut out, value);
            }
            Some((key, value)) if is_double_quoted(value) => {
                out.push_str(key);
                out.push_str(": ");
                out.push_str(&join_surrogates(value));
            }
            _ => out.push_str(&rest.replace('\t', " ")),
        }
        out.push('\n');
    }
    out
}

/// Whether YAML would not take it as plain text, though it is meant so.
fn wants_quotes(value: &str) -> bool {
    let Some(first) = value.chars().next() else { return false };
    let quoted = |quote: char| value.len() > 1 && value.starts_with(quote) && value.ends_with(quote);
    match first {
        '"' => !quoted('"'),
        '\'' => !quoted('\''),
        // A flow value is YAML when it is closed; a broken one is text.
        '[' => !value.ends_with(']'),
        '{' => !value.ends_with('}'),
        '|' | '>' => {
            value.trim_start_matches(['|', '>', '+', '-', '1', '2', '3', '4', '5', '6', '7', '8', '9']).trim()
                != ""
        }
        '*' | '&' | '!' | '%' | '@' | '`' | ',' | ']' | '}' | '?' => true,
        '-' => value.starts_with("- "),
        _ => value.contains(": ") || value.ends_with(':') || value.contains(" #") || value.contains('\t'),
    }
}

fn is_double_quoted(value: &str) -> bool {
    value.len() > 1 && value.starts_with('"') && value.ends_with('"')
}

fn push_quoted(out: &mut String, value: &str) {
    out.push('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            '\t' => out.push_str("\\t"),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// JSON writes 🦀 as two escapes, which YAML does not know.
fn join_surrogates(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut rest = value;
    while let Some(at) = rest.find("\\u") {
        let unit = |from: usize| rest.get(from..from + 4).and_then(|hex| u16::from_str_radix(hex, 16).ok());
        let low = rest.get(at + 6..at + 8).filter(|escape| *escape == "\\u").and_then(|_| unit(at + 8));
        out.push_str(&rest[..at]);
        match (unit(at + 2), low) {
            (Some(high @ 0xd800..=0xdbff), Some(low @ 0xdc00..=0xdfff)) => {
                out.extend(char::decode_utf16([high, low]).flatten());
                rest = &rest[at + 12..];
            }
            (Some(0xd800..=0xdfff), _) => {
                out.push('\u{fffd}');
                rest = &rest[at + 6..];
            }
            _ => {
                out.push_str("\\u");
                rest = &rest[at + 2..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// The last resort: each `key: value` line by itself, with the indented lines below it.
fn by_lines(text: &str) -> Yaml {
    let mut fields: Vec<(String, String)> = Vec::new();
    let mut open = false;
    for line in text.lines() {
        let indented = line.starts_with([' ', '\t']);
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        match key_line(line).filter(|_| !indented) {
            Some((key, value)) => {
                open = fields.iter().all(|(known, _)| known != key);
                if open {
                    let block = value.trim_start_matches(['|', '>', '+', '-']).is_empty();
                    let value = if block { String::new() } else { unquoted(value).to_owned() };
                    fields.push((key.to_owned(), value));
                }
            }
            None if indented && open => {
                if let Some((_, value)) = fields.last_mut() {
                    if !value.is_empty() {
                        value.push(' ');
                    }
                    value.push_str(trimmed);
                }
            }
            None => open = false,
        }
    }
    Yaml::Map(fields.into_iter().map(|(key, value)| (key, Yaml::Text(value))).collect())
}

fn unquoted(value: &str) -> &str {
    for quote in ['"', '\''] {
        if let Some(inner) = value.strip_prefix(quote).and_then(|v| v.strip_suffix(quote)) {
            return inner;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, json: &str, code: Option<&str>) {
        let mut log = Log { file: "SKILL.md", found: Vec::new() };
        let tree = fields(text, 2, &mut log);
        assert_eq!(serde_json::to_string(&tree).unwrap(), json, "{text}");
        assert_eq!(log.found.first().map(|d| d.code), code, "{text}");
    }

    #[test]
    fn what_people_write_is_understood() {
        check("a: b\n", r#"{"a":"b"}"#, None);
        check("a: Use when: asked\n", r#"{"a":"Use when: asked"}"#, Some("quoted"));
        check("a: **bold** text\n", r#"{"a":"**bold** text"}"#, Some("quoted"));
        check("a: `code` \"x\"\n", r#"{"a":"`code` \"x\""}"#, Some("quoted"));
        check("a: \"say\" hi\nb: 1.10\n", r#"{"a":"\"say\" hi","b":"1.10"}"#, Some("quoted"));
        check("a:\tb\n", r#"{"a":"b"}"#, None);
        check("m:\n\tk: v\n", r#"{"m":{"k":"v"}}"#, Some("quoted"));
        check("a: \"\\ud83e\\udd80\"\n", r#"{"a":"🦀"}"#, Some("quoted"));
        check("a: b\na: c\n", r#"{"a":"b"}"#, Some("duplicate-key"));
        check("", "{}", None);
        check("- a\n- b\n", "{}", Some("not-a-map"));
        check("a: b\n- c\nd: e\n", r#"{"a":"b","d":"e"}"#, Some("line-wise"));
        check("a: >\n  x\n y: z\n  [\nb: 'c'\n", r#"{"a":"x y: z [","b":"c"}"#, Some("line-wise"));
    }

    #[test]
    fn lines_are_counted_in_the_file() {
        let mut log = Log { file: "SKILL.md", found: Vec::new() };
        fields("name: x\ndescription: a: b\n", 2, &mut log);
        assert_eq!(log.found[0].line, Some(3));
    }
}
