//! The subset of YAML that `validate` accepts: block maps, block lists, and scalars that stay text.
//!
//! The reference library parses frontmatter with strictyaml, which rejects most of YAML: flow style, anchors,
//! tags and duplicate keys. The remaining subset is small enough to parse directly, in one pass and with a
//! line number for every error. A general YAML library would accept too much and would not report which
//! features the input uses.

use std::collections::HashSet;

use super::quoted::{Quoted, fold};
use super::yaml::{Yaml, YamlError};

/// The maximum nesting depth. The reference library overflows its stack somewhat deeper than this.
const MAX_DEPTH: usize = 64;
/// The maximum length of a key, which must also be on the same line as its colon.
const MAX_KEY_CHARS: usize = 1024;

type Result<T> = std::result::Result<T, YamlError>;

/// Parses a document. An empty document is an empty text.
pub(super) fn parse(text: &str) -> Result<Yaml> {
    let lines: Vec<String> = split_lines(text);
    for (row, line) in lines.iter().enumerate() {
        if let Some(bad) = line.chars().find(|c| !printable(*c)) {
            return Err(YamlError::at(row, format!("the character U+{:04X} is not allowed", u32::from(bad))));
        }
    }
    let mut parser = Parser { lines, row: 0, depth: 0 };
    if parser.skip_to_content()?.is_none() {
        return Ok(Yaml::Text(String::new()));
    }
    let node = parser.block(None)?;
    if let Some(_indent) = parser.skip_to_content()? {
        return Err(parser.error("the indentation fits nothing before it, or a second document begins"));
    }
    Ok(node)
}

/// Splits text at the line breaks that the reference library recognizes: NEL is one, U+2028 is not.
fn split_lines(text: &str) -> Vec<String> {
    text.replace("\r\n", "\n").split(['\n', '\r', '\u{85}']).map(str::to_owned).collect()
}

fn printable(c: char) -> bool {
    matches!(c, '\t' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

struct Parser {
    lines: Vec<String>,
    row: usize,
    depth: usize,
}

impl Parser {
    fn error(&self, message: impl Into<String>) -> YamlError {
        YamlError::at(self.row, message)
    }

    fn line(&self) -> &str {
        self.lines.get(self.row).map_or("", String::as_str)
    }

    /// Advances to the next line with content and returns its indentation, or `None` at the end.
    fn skip_to_content(&mut self) -> Result<Option<usize>> {
        while self.row < self.lines.len() {
            let line = self.line();
            if ends_document(line) {
                return self.end_of_document();
            }
            let indent = indent_of(line);
            if line[indent..].starts_with('\t') {
                return Err(self.error("a tab is not allowed here; indent with spaces"));
            }
            if !is_blank(line) {
                return Ok(Some(indent));
            }
            self.row += 1;
        }
        Ok(None)
    }

    /// Only comments may follow `...`.
    fn end_of_document(&mut self) -> Result<Option<usize>> {
        for row in self.row + 1..self.lines.len() {
            let line = &self.lines[row];
            if !is_blank(line) && line.trim_start_matches(' ') != "..." {
                self.row = row;
                return Err(self.error("there is more after the end of the document"));
            }
        }
        self.row = self.lines.len();
        Ok(None)
    }

    /// Parses a node that starts on a new line and is indented deeper than `parent`.
    fn block(&mut self, parent: Option<usize>) -> Result<Yaml> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("it is nested too deeply"));
        }
        let line = self.line();
        let indent = indent_of(line);
        let node = if is_item(&line[indent..]) {
            self.sequence(indent)?
        } else if is_long_key(&line[indent..]) || self.find_key(indent)?.is_some() {
            self.mapping(indent)?
        } else {
            self.scalar(indent, parent)?
        };
        self.depth -= 1;
        Ok(node)
    }

    fn sequence(&mut self, indent: usize) -> Result<Yaml> {
        let mut items = Vec::new();
        while self.skip_to_content()? == Some(indent) && is_item(&self.line()[indent..]) {
            items.push(self.after_indicator(indent)?);
        }
        self.check_dedent(indent)?;
        Ok(Yaml::List(items))
    }

    /// Parses the node after a dash or a question mark. Its indentation is the column where it starts.
    fn after_indicator(&mut self, indent: usize) -> Result<Yaml> {
        let rest = &self.line()[indent + 1..];
        if is_blank(rest) {
            self.row += 1;
            return self.nested(indent, false);
        }
        let column = indent + 1 + indent_of(rest);
        self.lines[self.row].replace_range(..column, &" ".repeat(column));
        if is_item(&self.line()[column..]) || self.find_key(column)?.is_some() {
            return self.block(Some(indent));
        }
        self.scalar(column, Some(indent))
    }

    fn mapping(&mut self, indent: usize) -> Result<Yaml> {
        let mut entries: Vec<(String, Yaml)> = Vec::new();
        let mut known = HashSet::new();
        let mut child_indent = None;
        while self.skip_to_content()? == Some(indent) && !is_item(&self.line()[indent..]) {
            let (key, after) = if is_long_key(&self.line()[indent..]) {
                self.long_key(indent)?
            } else {
                let found = self.find_key(indent)?;
                let (key, after) = found.ok_or_else(|| self.error("a key and its colon are missing"))?;
                (key, Some(after))
            };
            if !known.insert(key.clone()) {
                return Err(self.error(format!("duplicate key `{}`", crate::error::shorten(&key))));
            }
            let first_row = self.row;
            let value = match after {
                Some(after) => self.value(indent, after)?,
                None => Yaml::Text(String::new()),
            };
            if matches!(value, Yaml::Map(_)) {
                let column = self.column_below(first_row);
                if *child_indent.get_or_insert(column) != column {
                    return Err(YamlError::at(first_row, "maps side by side are indented differently"));
                }
            }
            // A merge key requires a map.
            if key == "<<" && !matches!(value, Yaml::Map(_)) {
                return Err(YamlError::at(first_row, "`<<` needs a map"));
            }
            entries.push((key, value));
        }
        self.check_dedent(indent)?;
        Ok(Yaml::Map(entries))
    }

    /// Parses `? key` and an optional `: value` on the next line. Returns the key and the offset of its
    /// value.
    fn long_key(&mut self, indent: usize) -> Result<(String, Option<usize>)> {
        let Yaml::Text(key) = self.after_indicator(indent)? else {
            return Err(self.error("a key is text, not a list or a map"));
        };
        let next = self.skip_to_content()?;
        let has_value = next == Some(indent) && ends_key(&self.line()[indent..]);
        Ok((key, has_value.then_some(indent + 1)))
    }

    /// The indentation of the block below a row.
    fn column_below(&self, row: usize) -> usize {
        self.lines[row + 1..].iter().find(|line| !is_blank(line)).map_or(0, |line| indent_of(line))
    }

    /// Checks that the line after a collection is not indented deeper than the collection.
    fn check_dedent(&mut self, indent: usize) -> Result<()> {
        match self.skip_to_content()? {
            Some(next) if next > indent => Err(self.error("this line is indented too far")),
            _ => Ok(()),
        }
    }

    /// Parses the value of a key, starting `after` bytes into the line.
    fn value(&mut self, indent: usize, after: usize) -> Result<Yaml> {
        let rest = &self.line()[after..];
        if nothing_follows(rest) {
            self.row += 1;
            return self.nested(indent, true);
        }
        let column = after + indent_of(rest);
        if is_item(&self.line()[column..]) {
            return Err(self.error("a list cannot begin on the line of its key"));
        }
        self.scalar(column, Some(indent))
    }

    /// Parses the block below a key or a dash. An empty block is an empty text.
    fn nested(&mut self, indent: usize, list_may_align: bool) -> Result<Yaml> {
        match self.skip_to_content()? {
            Some(next) if next > indent => self.block(Some(indent)),
            Some(next) if next == indent && list_may_align && is_item(&self.line()[next..]) => {
                self.block(None)
            }
            _ => Ok(Yaml::Text(String::new())),
        }
    }

    /// Finds a key at this column. Returns the key and the offset of its value.
    fn find_key(&self, column: usize) -> Result<Option<(String, usize)>> {
        let rest = &self.line()[column..];
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''));
        let Some(quote) = quote else { return self.find_plain_key(column) };
        let mut quoted = Quoted::new(quote);
        let Some(end) = quoted.feed(&rest[1..]).map_err(|m| self.error(m))? else { return Ok(None) };
        let colon = 1 + end + indent_of(&rest[1 + end..]);
        Ok(ends_key(&rest[colon..]).then_some((quoted.text, column + colon + 1)))
    }

    fn find_plain_key(&self, column: usize) -> Result<Option<(String, usize)>> {
        let rest = &self.line()[column..];
        let mut before = ' ';
        for (at, c) in rest.char_indices() {
            if c == '#' && before == ' ' && at > 0 {
                return Ok(None);
            }
            if c == ':' && ends_key(&rest[at..]) {
                let key = &rest[..at];
                if key.chars().nth(MAX_KEY_CHARS).is_some() {
                    return Err(self.error("a key is too long"));
                }
                if key.contains('\t') {
                    return Err(self.error("a tab is not allowed here"));
                }
                if !key.is_empty() {
                    self.check_start(key)?;
                }
                return Ok(Some((key.trim_end_matches(' ').to_owned(), column + at + 1)));
            }
            before = c;
        }
        Ok(None)
    }

    /// Parses a scalar that starts at this column and continues on lines indented deeper than `parent`.
    fn scalar(&mut self, column: usize, parent: Option<usize>) -> Result<Yaml> {
        let rest = self.line()[column..].to_owned();
        match rest.chars().next() {
            Some(quote @ ('"' | '\'')) => self.quoted(quote, &rest[1..]),
            Some('|' | '>') => self.block_scalar(&rest, parent),
            _ => self.plain(&rest, parent),
        }
        .map(Yaml::Text)
    }

    /// Rejects indicator characters at the start of a plain scalar.
    fn check_start(&self, text: &str) -> Result<()> {
        let mut chars = text.chars();
        let (first, second) = (chars.next().unwrap_or(' '), chars.next());
        let why = match first {
            '[' | '{' => "flow style (`[a]`, `{a: b}`) is not allowed; write a block, or quote the text",
            '&' => "anchors are not allowed; quote the text",
            '*' => "aliases are not allowed; quote the text",
            '!' => "tags are not allowed; quote the text",
            ']' | '}' | ',' | '%' | '@' | '`' | '|' | '>' => {
                "a plain value cannot start with this character; quote it"
            }
            '\t' => "a tab is not allowed here; use a space",
            '?' if second.is_none_or(|c| c == ' ') => "a long key cannot begin here",
            _ => return Ok(()),
        };
        Err(self.error(format!("{why}: `{}`", crate::error::shorten(text.get(..40).unwrap_or(text)))))
    }

    fn plain(&mut self, first: &str, parent: Option<usize>) -> Result<String> {
        self.check_start(first)?;
        let mut text = String::new();
        let mut blank = 0;
        let mut line = first.to_owned();
        loop {
            let (content, comment) = self.plain_line(&line)?;
            if !text.is_empty() {
                fold(&mut text, blank);
            }
            text.push_str(content);
            self.row += 1;
            blank = 0;
            while self.row < self.lines.len() && self.line().trim_matches(' ').is_empty() {
                blank += 1;
                self.row += 1;
            }
            let next = self.line();
            let (indent, rest) = (indent_of(next), next.trim_start_matches(' '));
            let deeper = parent.is_none_or(|parent| indent > parent);
            if self.row >= self.lines.len() || !deeper || ends_document(next) || rest.starts_with('#') {
                return Ok(text);
            }
            if comment {
                return Err(self.error("a text cannot continue after a comment"));
            }
            rest.clone_into(&mut line);
        }
    }

    /// Returns the part of a line that belongs to a plain scalar, and whether a comment follows it.
    fn plain_line<'l>(&self, line: &'l str) -> Result<(&'l str, bool)> {
        let (content, comment) = match line.find(" #") {
            Some(at) => (&line[..at], true),
            None => (line, false),
        };
        if content.contains('\t') {
            return Err(self.error("a tab is not allowed in plain text; quote it"));
        }
        if content.contains(": ") || content.trim_end_matches(' ').ends_with(':') {
            return Err(self.error("a second colon in one line; quote the text"));
        }
        Ok((content.trim_end_matches(' '), comment))
    }

    fn quoted(&mut self, quote: char, first: &str) -> Result<String> {
        let start = self.row;
        let mut quoted = Quoted::new(quote);
        let mut line = first.to_owned();
        loop {
            if let Some(end) = quoted.feed(&line).map_err(|m| self.error(m))? {
                if !nothing_follows(&line[end..]) {
                    return Err(self.error("there is text after the closing quote"));
                }
                self.row += 1;
                return Ok(quoted.text);
            }
            self.row += 1;
            if self.row >= self.lines.len() {
                self.row = start;
                return Err(self.error("the quote is never closed"));
            }
            self.line().clone_into(&mut line);
            if ends_document(&line) {
                return Err(self.error("the document ends inside a quote"));
            }
        }
    }

    fn block_scalar(&mut self, header: &str, parent: Option<usize>) -> Result<String> {
        let literal = header.starts_with('|');
        let (flags, rest) = header[1..].split_at(header[1..].find([' ', '\t']).unwrap_or(header.len() - 1));
        let (mut chomp, mut explicit) = (' ', None);
        for c in flags.chars() {
            match c {
                '+' | '-' if chomp == ' ' => chomp = c,
                '1'..='9' if explicit.is_none() => explicit = c.to_digit(10),
                _ => return Err(self.error("a block text begins on the next line")),
            }
        }
        if !nothing_follows(rest) {
            return Err(self.error("a block text begins on the next line"));
        }
        self.row += 1;
        let least = parent.map_or(0, |parent| parent + 1);
        let indent = match explicit {
            Some(more) => parent.unwrap_or(0) + more as usize,
            None => self.lines[self.row.min(self.lines.len())..]
                .iter()
                .find(|line| !line.trim_matches(' ').is_empty())
                .map_or(least, |line| indent_of(line).max(least)),
        };
        let mut lines: Vec<String> = Vec::new();
        while self.row < self.lines.len() {
            let line = self.line();
            if line.trim_matches(' ').is_empty() {
                lines.push(line.get(indent..).unwrap_or_default().to_owned());
            } else if indent_of(line) >= indent && !(indent == 0 && line == "...") {
                lines.push(line[indent..].to_owned());
            } else {
                break;
            }
            self.row += 1;
        }
        let at_end = self.row >= self.lines.len();
        Ok(join_block(&lines, literal, chomp, at_end))
    }
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// Whether a line is empty or only a comment.
fn is_blank(line: &str) -> bool {
    let rest = line.trim_start_matches(' ');
    rest.is_empty() || rest.starts_with('#')
}

/// Whether the rest of a line is empty or a comment. A comment requires a space before it.
fn nothing_follows(rest: &str) -> bool {
    is_blank(rest) && !rest.starts_with('#')
}

/// Whether a line is the end-of-document marker.
fn ends_document(line: &str) -> bool {
    line == "..." || line.starts_with("... ")
}

/// Whether a line, starting at its first non-space character, is a list item.
fn is_item(rest: &str) -> bool {
    rest == "-" || rest.starts_with("- ")
}

/// Whether a line starts an explicit key, `? key`.
fn is_long_key(rest: &str) -> bool {
    rest == "?" || rest.starts_with("? ")
}

/// Whether this colon ends a key.
fn ends_key(rest: &str) -> bool {
    rest == ":" || rest.starts_with(": ") || rest.starts_with(":\t")
}

fn join_block(lines: &[String], literal: bool, chomp: char, at_end: bool) -> String {
    let content =
        lines.iter().rposition(|line| !line.trim_matches(' ').is_empty()).map_or(0, |last| last + 1);
    let mut text = String::new();
    if literal {
        text = lines[..content].join("\n");
    } else {
        let mut blank = 0;
        for (i, line) in lines[..content].iter().enumerate() {
            if line.is_empty() {
                blank += 1;
                continue;
            }
            let spaced = |line: &str| line.starts_with([' ', '\t']);
            let before = lines[..i].iter().rev().find(|line| !line.is_empty());
            match before {
                None => text.extend(std::iter::repeat_n('\n', blank)),
                // Line breaks around more deeply indented lines are kept.
                Some(before) if spaced(before) || spaced(line) => {
                    text.extend(std::iter::repeat_n('\n', blank + 1));
                }
                Some(_) => fold(&mut text, blank),
            }
            blank = 0;
            text.push_str(line);
        }
    }
    // The last line of the input has no line break.
    let breaks = if at_end { lines.len().saturating_sub(1) } else { lines.len() };
    let trailing = breaks.saturating_sub(content.saturating_sub(1));
    match chomp {
        '-' => {}
        '+' => text.extend(std::iter::repeat_n('\n', trailing)),
        _ if content > 0 && trailing > 0 => text.push('\n'),
        _ => {}
    }
    text
}
