//! Searches decoded text for matching lines, with ripgrep's engines. No I/O.

use std::io;

use grep_matcher::LineTerminator;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch};

use crate::error::{Error, ErrorKind, Result, shorten};

const MOST_PATTERN_BYTES: usize = 16 * 1024;

const MOST_COMPILED_BYTES: usize = 10 * 1024 * 1024;

/// Longer lines are cut in the result.
pub(crate) const MOST_LINE_BYTES: usize = 16 * 1024;

/// The maximum number of context lines. For more, read the file.
const MOST_CONTEXT: usize = 1_000;

/// The overhead of a line besides its text.
const LINE_BYTES: usize = 128;

/// The maximum size of the result for one file. The rest is cut, and the result marked as
/// truncated.
const MOST_BYTES_A_FILE: usize = 4 * 1024 * 1024;

/// The maximum length of a line in a streamed file.
const MOST_BUFFER: usize = 16 * 1024 * 1024;

/// A compiled query.
#[derive(Debug, Clone)]
pub(crate) struct Query {
    matcher: RegexMatcher,
    context: usize,
    most: u64,
}

/// How to interpret a pattern.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PatternOptions {
    pub(crate) regex: bool,
    pub(crate) ignore_case: bool,
}

/// A matching line, or a context line around a match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// Starts at 1.
    pub(crate) number: u64,
    pub(crate) text: String,
    pub(crate) matched: bool,
    /// Whether the line is longer than `text`.
    pub(crate) cut: bool,
}

/// The matches in one file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Hits {
    pub(crate) lines: Vec<Line>,
    pub(crate) matches: u64,
    /// Whether there are more matches.
    pub(crate) truncated: bool,
}

impl Query {
    /// Compiles a query that stops after `most` matches per file.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the pattern is invalid.
    pub(crate) fn new(pattern: &str, options: PatternOptions, context: usize, most: u64) -> Result<Self> {
        let invalid = |why: &str, hint: &'static str| {
            Error::new(ErrorKind::InvalidInput, format!("cannot search for `{}`: {why}", shorten(pattern)))
                .with_hint(hint)
        };
        if pattern.len() > MOST_PATTERN_BYTES {
            return Err(invalid("the pattern is too long", "search for a part of it"));
        }
        if !options.regex && pattern.contains('\n') {
            return Err(invalid(
                "it has more than one line, and lines are searched one by one",
                "search for one of its lines",
            ));
        }
        if context > MOST_CONTEXT {
            return Err(invalid(
                &format!("{context} lines around each match are too many; {MOST_CONTEXT} are allowed"),
                "request fewer, or read the file",
            ));
        }
        let matcher = RegexMatcherBuilder::new()
            .fixed_strings(!options.regex)
            // `^` and `$` match at line boundaries. Without this, each line is searched separately.
            .multi_line(true)
            .case_insensitive(options.ignore_case)
            .line_terminator(Some(b'\n'))
            // Bounds what the expression of a tenant may cost.
            .size_limit(MOST_COMPILED_BYTES)
            .dfa_size_limit(MOST_COMPILED_BYTES)
            .build(pattern)
            .map_err(|error| {
                let why = error.to_string();
                // The engine prints the expression over several lines; the last one says what is
                // wrong.
                let last = why.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
                let last = last.strip_prefix("error: ").unwrap_or(last);
                invalid(&shorten(last), "correct the expression, or search for it literally")
            })?;
        Ok(Self { matcher, context, most })
    }

    /// Searches text in memory.
    pub(crate) fn search(&self, text: &str) -> io::Result<Hits> {
        self.collect(|searcher, sink| searcher.search_slice(&self.matcher, text.as_bytes(), sink))
    }

    /// Searches text from a reader. Blocks while the reader does.
    pub(crate) fn search_reader(&self, text: impl io::Read) -> io::Result<Hits> {
        self.collect(|searcher, sink| searcher.search_reader(&self.matcher, text, sink))
    }

    fn collect(
        &self,
        search: impl FnOnce(&mut Searcher, &mut Collector<'_>) -> io::Result<()>,
    ) -> io::Result<Hits> {
        let mut searcher = SearcherBuilder::new()
            .line_number(true)
            .line_terminator(LineTerminator::byte(b'\n'))
            .before_context(self.context)
            .after_context(self.context)
            .binary_detection(BinaryDetection::none())
            // The text is already decoded.
            .bom_sniffing(false)
            .heap_limit(Some(MOST_BUFFER))
            .build();
        let mut sink = Collector { query: self, hits: Hits::default(), bytes: 0 };
        search(&mut searcher, &mut sink)?;
        Ok(sink.hits)
    }
}

struct Collector<'q> {
    query: &'q Query,
    hits: Hits,
    bytes: usize,
}

impl Collector<'_> {
    /// Adds a line. Returns whether the search continues.
    fn add(&mut self, number: Option<u64>, bytes: &[u8], matched: bool) -> bool {
        if self.bytes > MOST_BYTES_A_FILE || (matched && self.hits.matches == self.query.most) {
            self.stop();
            return false;
        }
        self.hits.matches += u64::from(matched);
        let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let cut = line.len() > MOST_LINE_BYTES;
        let shown = &line[..line.len().min(MOST_LINE_BYTES)];
        let mut text = String::from_utf8_lossy(shown).into_owned();
        // The cut may split a character.
        while cut && text.ends_with('\u{fffd}') {
            text.pop();
        }
        self.bytes += text.len() + LINE_BYTES;
        self.hits.lines.push(Line { number: number.unwrap_or(0), text, matched, cut });
        true
    }

    /// Ends the search. Removes the leading context of a match that is not shown.
    fn stop(&mut self) {
        self.hits.truncated = true;
        let last = self.hits.lines.iter().rev().find(|line| line.matched);
        let shown = last.map_or(0, |line| line.number + self.query.context as u64);
        self.hits.lines.retain(|line| line.number <= shown);
    }
}

impl Sink for Collector<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        Ok(self.add(found.line_number(), found.bytes(), true))
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> io::Result<bool> {
        Ok(self.add(context.line_number(), context.bytes(), false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(pattern: &str, regex: bool, ignore_case: bool, context: usize, most: u64) -> Query {
        Query::new(pattern, PatternOptions { regex, ignore_case }, context, most).unwrap()
    }

    fn numbers(hits: &Hits) -> Vec<u64> {
        hits.lines.iter().map(|line| line.number).collect()
    }

    #[test]
    fn patterns_are_literal_unless_regex_is_set() {
        let text = "a.c\nabc\nA.C\n";
        assert_eq!(numbers(&query("a.c", false, false, 0, 9).search(text).unwrap()), [1]);
        assert_eq!(numbers(&query("a.c", true, false, 0, 9).search(text).unwrap()), [1, 2]);
        assert_eq!(numbers(&query("a.c", false, true, 0, 9).search(text).unwrap()), [1, 3]);
        assert_eq!(numbers(&query("", false, false, 0, 9).search(text).unwrap()), [1, 2, 3]);
        assert_eq!(numbers(&query("ÑANDÚ", false, true, 0, 9).search("un ñandú\n").unwrap()), [1]);
    }

    #[test]
    fn limits_are_told() {
        let text = "x\n".repeat(10);
        let hits = query("x", false, false, 0, 3).search(&text).unwrap();
        assert_eq!((hits.matches, hits.truncated), (3, true));
        let hits = query("x", false, false, 0, 10).search(&text).unwrap();
        assert_eq!((hits.matches, hits.truncated), (10, false));
        let long = "é".repeat(MOST_LINE_BYTES);
        let hits = query("é", false, false, 0, 10).search(&long).unwrap();
        assert!(hits.lines[0].cut && hits.lines[0].text.len() <= MOST_LINE_BYTES);
        assert!(hits.lines[0].text.chars().all(|c| c == 'é'));
        let many = format!("{}\n", "y".repeat(10_000)).repeat(1_000);
        let hits = query("y", false, false, 0, 10_000).search(&many).unwrap();
        assert!(hits.truncated && hits.matches < 500);
        // Context lines count as well.
        let hits = query("y", false, false, 1_000, 10).search(&many.replacen('y', "x", 5_000_000)).unwrap();
        assert!(hits.truncated && hits.lines.iter().map(|line| line.text.len()).sum::<usize>() < 2 << 20);
        // No context of matches that are not shown.
        let hits = query("x", false, false, 2, 0).search("a\nx\nb\n").unwrap();
        assert_eq!((hits.lines.len(), hits.matches, hits.truncated), (0, 0, true));
    }

    #[test]
    fn context_lines_are_marked_and_never_repeated() {
        let hits = query("x", false, false, 1, 9).search("a\nx\nb\nx\nc\nd\n").unwrap();
        assert_eq!(numbers(&hits), [1, 2, 3, 4, 5]);
        let matched: Vec<_> = hits.lines.iter().map(|line| line.matched).collect();
        assert_eq!(matched, [false, true, false, true, false]);
    }

    #[test]
    fn invalid_queries_are_rejected() {
        let options = PatternOptions { regex: false, ignore_case: false };
        assert!(Query::new("a", options, MOST_CONTEXT, 1).is_ok());
        assert!(Query::new("a", options, MOST_CONTEXT + 1, 1).is_err());
        for (pattern, regex) in
            [("(", true), ("a\nb", false), ("a\\nb", true), ("(a{1000}){1000}", true), ("\\p{Nope}", true)]
        {
            let error = Query::new(pattern, PatternOptions { regex, ignore_case: false }, 0, 1).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{pattern}");
            assert!(!error.message().contains('\n'), "{}", error.message());
        }
    }

    #[test]
    fn overlong_line_in_a_stream_is_an_error() {
        struct Endless(usize);
        impl io::Read for Endless {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let bytes = buffer.len().min(self.0);
                buffer[..bytes].fill(b'x');
                self.0 -= bytes;
                Ok(bytes)
            }
        }
        assert!(query("y", false, false, 0, 9).search_reader(Endless(2 * MOST_BUFFER)).is_err());
        assert!(query("y", false, false, 0, 9).search_reader(Endless(MOST_BUFFER / 4)).is_ok());
    }
}
