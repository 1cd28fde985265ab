//! Repairs frontmatter that is almost YAML.

use super::Log;
use super::yaml::{self, Yaml};

/// Parses frontmatter and repairs it if necessary. `first_line` is the line number of its first line in the
/// file.
pub(super) fn fields(text: &str, first_line: usize, log: &mut Log<'_>) -> Yaml {
    let error = match yaml::parse(text) {
        Ok(parsed) => return checked(parsed, first_line, log),
        Err(error) => error,
    };
    let (line, why) = (Some(first_line + error.line - 1), format!("invalid YAML ({})", error.message));
    if let Ok(parsed) = yaml::parse(&quote_values(text)) {
        log.warn("quoted", line, format!("{why}; values were read as if they were quoted"));
        return checked(parsed, first_line, log);
    }
    log.warn("line-wise", line, format!("{why}; its lines were read one by one"));
    by_lines(text)
}

fn checked((tree, duplicates): (Yaml, Vec<String>), first_line: usize, log: &mut Log<'_>) -> Yaml {
    if let Some(key) = duplicates.first() {
        let key = crate::error::shorten(key);
        let more = match duplicates.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more like it"),
        };
        let message = format!("the key `{key}` appears twice{more}; the first value is used");
        log.warn("duplicate-key", None, message);
    }
    match tree {
        Yaml::Map(_) => return tree,
        Yaml::Null => {}
        _ => log.warn("not-a-map", Some(first_line), "the frontmatter has no fields; it was ignored"),
    }
    Yaml::Map(Vec::new())
}

/// Splits a line of the form `key: value`.
fn key_line(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once(':')?;
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ');
    let starts = key.chars().next().is_some_and(char::is_alphanumeric);
    (starts && key.chars().all(plain) && (value.is_empty() || value.starts_with([' ', '\t'])))
        .then(|| (key.trim_end(), value.trim()))
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start_matches([' ', '\t']).len()
}

/// Whether a value is the header of a block scalar.
fn is_block_header(value: &str) -> bool {
    let rest = value.trim_start_matches(['|', '>']);
    rest.len() < value.len()
        && without_comment(rest).trim_matches(|c: char| c.is_ascii_digit() || "+-".contains(c)).is_empty()
}

/// Quotes values that are not valid plain scalars, and replaces tabs with spaces. Leaves block scalars,
/// quoted values, flow values and comments unchanged.
fn quote_values(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let indent = indent_of(line);
        let (margin, rest) = (line[..indent].replace('\t', "  "), &line[indent..]);
        let Some((key, value)) = key_line(rest) else {
            out += &format!("{margin}{}\n", rest.replace('\t', " "));
            continue;
        };
        out += &format!("{margin}{key}:");
        if is_block_header(value) {
            out += &format!(" {value}\n");
            let deeper = |next: &&str| next.trim().is_empty() || indent_of(next) > indent;
            while let Some(next) = lines.next_if(deeper) {
                out += &format!("{}\n", next.replace('\t', "  "));
            }
            continue;
        }
        if value.is_empty() {
            out.push('\n');
            continue;
        }
        let mut whole = value.to_owned();
        if is_plain(value) && without_comment(value) == value {
            // More deeply indented lines continue a plain value.
            while let Some(next) = lines.next_if(|next| !next.trim().is_empty() && indent_of(next) > indent) {
                whole.push(' ');
                whole.push_str(next.trim());
            }
        }
        let core = without_comment(&whole);
        let written = if needs_quotes(core) {
            quoted(core)
        } else if is_double_quoted(core) {
            join_surrogates(core)
        } else {
            whole.replace('\t', " ")
        };
        out += &format!(" {written}\n");
    }
    out
}

/// Strips a trailing comment from a value.
fn without_comment(value: &str) -> &str {
    let end = match value.chars().next() {
        Some(quote @ ('"' | '\'')) => match value[1..].find(quote) {
            Some(_) => value.rfind(quote).map_or(0, |at| at + 1),
            None => return value,
        },
        Some('[') => value.rfind(']').map_or(0, |at| at + 1),
        Some('{') => value.rfind('}').map_or(0, |at| at + 1),
        _ => 0,
    };
    match value[end..].find(" #") {
        Some(at) => value[..end + at].trim_end(),
        None => value,
    }
}

fn is_plain(value: &str) -> bool {
    !value.starts_with(['"', '\'', '[', '{', '|', '>'])
}

/// Whether a value is meant as plain text but YAML would parse it differently.
fn needs_quotes(value: &str) -> bool {
    let Some(first) = value.chars().next() else { return false };
    let quoted =
        |quote: char| value.len() > 1 && value.ends_with(quote) && !value[1..value.len() - 1].contains(quote);
    match first {
        // Leave escaped quotes to the YAML parser.
        '"' => !(quoted('"') || (is_double_quoted(value) && value.contains('\\'))),
        '\'' => !(quoted('\'') || (value.len() > 1 && value.ends_with('\'') && value.contains("''"))),
        // A closed flow value is YAML; an unclosed one is treated as text.
        '[' => !value.ends_with(']'),
        '{' => !value.ends_with('}'),
        '*' | '&' | '!' | '%' | '@' | '`' | ',' | ']' | '}' | '?' | '|' | '>' => true,
        '-' => value.starts_with("- "),
        _ => value.contains(": ") || value.ends_with(':') || value.contains('\t'),
    }
}

fn is_double_quoted(value: &str) -> bool {
    value.len() > 1 && value.starts_with('"') && value.ends_with('"')
}

fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"").replace('\t', "\\t"))
}

/// Decodes UTF-16 surrogate pairs. JSON escapes 🦀 as two `\u` escapes, which YAML does not support.
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

/// The last resort: parses each top-level key and the lines below it separately, as YAML if possible and
/// otherwise as text.
fn by_lines(text: &str) -> Yaml {
    let mut chunks: Vec<(&str, &str, String)> = Vec::new();
    for line in text.lines() {
        let indented = line.starts_with([' ', '\t']);
        if let Some((key, value)) = key_line(line).filter(|_| !indented) {
            chunks.push((key, value, format!("{line}\n")));
        } else if let Some((_, _, chunk)) = chunks.last_mut() {
            *chunk += &format!("{line}\n");
        }
    }
    let mut fields: Vec<(String, Yaml)> = Vec::new();
    for (at, (key, value, chunk)) in chunks.iter().enumerate() {
        if fields.iter().any(|(known, _)| known == key) {
            continue;
        }
        let parsed =
            yaml::parse(chunk).ok().filter(|_| at < MAX_CHUNKS).and_then(|(tree, _)| tree.get(key).cloned());
        fields.push(((*key).to_owned(), parsed.unwrap_or_else(|| Yaml::Text(plain_lines(value, chunk)))));
    }
    Yaml::Map(fields)
}

/// The maximum number of keys that are parsed as separate YAML documents.
const MAX_CHUNKS: usize = 200;

/// Joins the value of a key and the indented lines below it into one line.
fn plain_lines(value: &str, chunk: &str) -> String {
    let block = value.trim_start_matches(['|', '>', '+', '-']).is_empty();
    let first = if block { "" } else { unquoted(value) };
    let below = chunk.lines().skip(1).filter(|line| line.starts_with([' ', '\t'])).map(str::trim);
    let words: Vec<&str> = std::iter::once(first).chain(below).filter(|words| !words.is_empty()).collect();
    words.join(" ")
}

fn unquoted(value: &str) -> &str {
    ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote)).unwrap_or(value)
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
        // Only the broken values are changed.
        check(
            "s: Foo: bar\nd: |\n  Use when: the user: asks\n  Say: \"foo\" bar\nn: x # the name\nt: [a, b] # t\nq: \"q\" # c\n",
            r#"{"s":"Foo: bar","d":"Use when: the user: asks\nSay: \"foo\" bar\n","n":"x","t":["a","b"],"q":"q"}"#,
            Some("quoted"),
        );
        check(
            "d: Does X.\n  Use when: the user asks\nm:\n  v: \"1.0\"\n  t: [a, b]\nl:\n- a\n- b\n",
            r#"{"d":"Does X. Use when: the user asks","m":{"v":"1.0","t":["a","b"]},"l":["a","b"]}"#,
            Some("quoted"),
        );
        check("a: b\n- c\nm:\n  k: v\n", r#"{"a":"b","m":{"k":"v"}}"#, Some("line-wise"));
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
