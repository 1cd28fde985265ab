//! Glob patterns: compiles text into a matcher for relative paths. No I/O.
//!
//! `globset` matches single names. This module decides the rest: `**` matches directories, a
//! pattern without `/` matches names at any depth, and names that start with a dot match only if
//! the pattern spells out the dot.

use globset::{GlobBuilder, GlobMatcher};

use crate::error::{Error, ErrorKind, Result, shorten};
use crate::path::reads_as_dots;

/// The maximum number of brace alternatives. `{a,b}{c,d}` has four.
const MOST_ALTERNATIVES: usize = 1024;
const MOST_BYTES: usize = 4096;

/// The maximum total length of all alternatives, because every name in them is compiled.
const MOST_SPELLED_BYTES: usize = 16 * 1024;

/// A compiled pattern.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    /// One of these must match: braces are expanded.
    alternatives: Vec<Vec<Segment>>,
}

#[derive(Debug, Clone)]
enum Segment {
    /// `**`: any number of directories.
    Directories,
    Name(Box<NameMatcher>),
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if it is malformed, [`ErrorKind::InvalidPath`] if it contains
    /// `..`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let invalid = |why: &str, hint: &'static str| {
            Error::new(ErrorKind::InvalidInput, format!("invalid pattern `{}`: {why}", shorten(text)))
                .with_hint(hint)
        };
        const EXAMPLES: &str = "write it as `*.md`, `docs/**/*.md`, `{a,b}.txt` or `[0-9]*`";
        if text.trim_matches('/').is_empty() {
            return Err(invalid("it is empty", EXAMPLES));
        }
        if text.len() > MOST_BYTES {
            return Err(invalid("it is too long", EXAMPLES));
        }
        let named = |name: &str| match NameMatcher::new(name) {
            Ok(matcher) => Ok(Segment::Name(Box::new(matcher))),
            Err(why) => Err(invalid(&why, EXAMPLES)),
        };
        let expanded = expand(text).map_err(|why| invalid(why, EXAMPLES))?;
        if expanded.iter().map(String::len).sum::<usize>() > MOST_SPELLED_BYTES {
            return Err(invalid(TOO_MANY, EXAMPLES));
        }
        let any_depth = !text.contains('/');
        let mut alternatives = Vec::with_capacity(expanded.len());
        for pattern in expanded {
            // A match is a file, so it needs a name.
            if matches!(pattern.rsplit('/').next(), None | Some("" | ".")) {
                return Err(invalid(
                    "only files are found",
                    "match what is in the directory: end it with `/**`",
                ));
            }
            let mut segments = Vec::new();
            if any_depth {
                segments.push(Segment::Directories);
            }
            for name in pattern.split('/').filter(|name| !name.is_empty() && *name != ".") {
                if name == "**" {
                    if !matches!(segments.last(), Some(Segment::Directories)) {
                        segments.push(Segment::Directories);
                    }
                    continue;
                }
                if reads_as_dots(&name.replace('\\', "")) {
                    return Err(Error::new(
                        ErrorKind::InvalidPath,
                        format!("invalid pattern `{}`: a segment is `..`", shorten(text)),
                    )
                    .with_hint("patterns only descend; name the directory to start in instead"));
                }
                segments.push(named(name)?);
            }
            // `docs/**` matches what is inside, not a file of that name.
            if matches!(segments.last(), Some(Segment::Directories)) {
                segments.push(named("*")?);
            }
            alternatives.push(segments);
        }
        Ok(Self { alternatives })
    }

    /// Whether a path, relative to the search root, matches.
    pub(crate) fn matches(&self, relative: &str) -> bool {
        self.alternatives.iter().any(|segments| matches(segments, relative))
    }

    /// The directories that contain all matches, as far as the pattern spells them out.
    pub(crate) fn directories(&self) -> Vec<String> {
        let literal_prefix = |segments: &[Segment]| -> Vec<String> {
            let names = segments.iter().map_while(|segment| match segment {
                Segment::Name(name) => name.literal.clone(),
                Segment::Directories => None,
            });
            names.take(segments.len().saturating_sub(1)).collect()
        };
        let mut all = self.alternatives.iter().map(|segments| literal_prefix(segments));
        let first = all.next().unwrap_or_default();
        all.fold(first, |common, other| {
            common.into_iter().zip(other).take_while(|(a, b)| a == b).map(|(a, _)| a).collect()
        })
    }
}

/// Matches one name.
///
/// `globset` matches bytes, so its `?` would match half an `ñ`. For a pattern with a `?` or a
/// class, non-ASCII characters in pattern and name are remapped to control characters, which no
/// name contains: each non-ASCII character of the pattern gets one, in order, and all other
/// characters get those of the gaps in between.
#[derive(Debug, Clone)]
struct NameMatcher {
    matcher: GlobMatcher,
    /// The non-ASCII characters of the pattern, sorted. `None` if matching bytes is correct.
    wide: Option<Vec<char>>,
    /// Whether the pattern starts with a dot, and so matches names that do.
    dot: bool,
    /// The name itself, if it has no special characters.
    literal: Option<String>,
}

/// The control characters up to 0x1f have to suffice for the characters of a pattern and the gaps
/// in between.
const MOST_WIDE: usize = 15;

impl NameMatcher {
    fn new(name: &str) -> Result<Self, String> {
        let mut wide: Vec<char> = name.chars().filter(|c| !c.is_ascii()).collect();
        wide.sort_unstable();
        wide.dedup();
        let wide = name.contains(['?', '[']).then_some(wide);
        if wide.as_ref().is_some_and(|wide| wide.len() > MOST_WIDE) {
            return Err(format!(
                "next to `?` or `[…]` it has more than {MOST_WIDE} different non-ASCII letters"
            ));
        }
        let remapped = remap(name, wide.as_deref());
        let glob = GlobBuilder::new(&remapped).literal_separator(true).backslash_escape(true).build();
        let matcher = glob
            .map_err(|error| match error.kind() {
                // The error would show the remapped characters.
                globset::ErrorKind::InvalidRange(..) if !name.is_ascii() => {
                    "a range goes backwards, or from ASCII to non-ASCII letters".to_owned()
                }
                kind => kind.to_string(),
            })?
            .compile_matcher();
        let special = name.contains(['*', '?', '[', ']', '{', '}', '\\', '!']);
        let dot = name.starts_with('.') || name.starts_with("\\.");
        Ok(Self { matcher, wide, dot, literal: (!special).then(|| name.to_owned()) })
    }

    fn is_match(&self, name: &str) -> bool {
        match self.wide.as_deref() {
            _ if name.starts_with('.') && !self.dot => false,
            Some(wide) if !name.is_ascii() => self.matcher.is_match(remap(name, Some(wide))),
            _ => self.matcher.is_match(name),
        }
    }
}

fn remap(name: &str, wide: Option<&[char]>) -> String {
    let Some(wide) = wide else { return name.to_owned() };
    let remapped = |c: char| match wide.binary_search(&c) {
        _ if c.is_ascii() => c,
        Ok(at) => char::from(2 * at as u8 + 2),
        Err(before) => char::from(2 * before as u8 + 1),
    };
    name.chars().map(remapped).collect()
}

/// Matches the segments of a path against the pattern by tracking all possible positions (an NFA
/// simulation).
fn matches(segments: &[Segment], path: &str) -> bool {
    let mut at = vec![false; segments.len() + 1];
    at[0] = true;
    skip_directories(segments, &mut at);
    for name in path.split('/') {
        let mut next = vec![false; segments.len() + 1];
        for (i, segment) in segments.iter().enumerate().filter(|(i, _)| at[*i]) {
            match segment {
                Segment::Directories => next[i] |= !name.starts_with('.'),
                Segment::Name(matcher) => next[i + 1] |= matcher.is_match(name),
            }
        }
        skip_directories(segments, &mut next);
        at = next;
    }
    at[segments.len()]
}

/// `**` may match zero directories.
fn skip_directories(segments: &[Segment], at: &mut [bool]) {
    for (i, segment) in segments.iter().enumerate() {
        if at[i] && matches!(segment, Segment::Directories) {
            at[i + 1] = true;
        }
    }
}

const TOO_MANY: &str = "its braces expand to too many patterns";

/// Expands braces. Leaves `[…]` and escaped characters unchanged.
fn expand(pattern: &str) -> Result<Vec<String>, &'static str> {
    let Some((open, close, commas)) = outermost(pattern)? else { return Ok(vec![pattern.to_owned()]) };
    let tails = expand(&pattern[close + 1..])?;
    let mut all = Vec::new();
    let mut start = open + 1;
    for end in commas.into_iter().chain([close]) {
        for choice in expand(&pattern[start..end])? {
            for tail in &tails {
                all.push(format!("{}{choice}{tail}", &pattern[..open]));
                if all.len() > MOST_ALTERNATIVES {
                    return Err(TOO_MANY);
                }
            }
        }
        start = end + 1;
    }
    Ok(all)
}

/// The positions of a pair of braces and of the commas between its alternatives.
type Braces = (usize, usize, Vec<usize>);

/// Finds the first pair of braces.
fn outermost(pattern: &str) -> Result<Option<Braces>, &'static str> {
    let (mut depth, mut open, mut commas) = (0u32, 0, Vec::new());
    let mut class = false;
    let mut chars = pattern.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            '[' if !class => {
                class = pattern[at..].contains(']');
                // A `]` directly after the opening bracket belongs to the class.
                if class {
                    chars.next_if(|(_, c)| *c == '!' || *c == '^');
                    chars.next_if(|(_, c)| *c == ']');
                }
            }
            ']' => class = false,
            _ if class => {}
            '{' => {
                if depth == 0 {
                    open = at;
                }
                depth += 1;
                if depth > 16 {
                    return Err("its braces are nested too deep");
                }
            }
            ',' if depth == 1 => commas.push(at),
            '}' if depth == 1 => return Ok(Some((open, at, commas))),
            '}' if depth == 0 => return Err("a `}` has no `{`"),
            '}' => depth -= 1,
            _ => {}
        }
    }
    if depth > 0 { Err("a `{` has no `}`") } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The semantics that agents expect: pattern, matching paths, other paths.
    #[test]
    fn the_table_of_globs_holds() {
        let table: &[(&str, &[&str], &[&str])] = &[
            // Without `/`: names at any depth.
            (
                "*.md",
                &["a.md", "docs/a.md", "a/b/c/d.md"],
                &["a.txt", "md", "docs/.a.md", ".git/a.md", ".md"],
            ),
            ("README", &["README", "x/y/README"], &["README.md", "readme"]),
            ("?.md", &["a.md", "x/ñ.md"], &["ab.md", ".md"]),
            ("*", &["a", "x/y/z"], &[".a", "x/.y", ".x/y"]),
            ("**", &["a", "x/y/z"], &[".a", "x/.y", ".x/y"]),
            // With `/`: paths from the search root.
            ("docs/*.md", &["docs/a.md"], &["a.md", "docs/x/a.md", "x/docs/a.md"]),
            ("docs/**", &["docs/a", "docs/x/y.md"], &["docs", "xdocs/a", "docs/.a", "docs/.x/a"]),
            ("**/*.md", &["a.md", "x/a.md", "x/y/a.md"], &["a.txt", ".x/a.md"]),
            ("docs/**/*.md", &["docs/a.md", "docs/x/y/a.md"], &["a.md", "x/docs/a.md"]),
            ("**/docs/**", &["docs/a", "x/docs/y/z"], &["docs", "x/docs"]),
            ("a/**/b", &["a/b", "a/x/b", "a/x/y/b"], &["ab", "a/xb", "b"]),
            ("*/b", &["a/b"], &["b", "x/a/b", ".a/b"]),
            ("./a/b", &["a/b"], &["x/a/b"]),
            ("a//b", &["a/b"], &["a/x/b"]),
            ("a**b", &["ab", "axb", "x/axyb"], &["a/b"]),
            // A leading `/` anchors.
            ("/*.md", &["a.md"], &["docs/a.md"]),
            ("/docs/*.md", &["docs/a.md"], &["x/docs/a.md"]),
            // Names with a leading dot only if spelled out.
            (".*", &[".env", "x/.env"], &["env", ".x/.y/z"]),
            (".env", &[".env", "x/.env"], &["env", ".git/.env"]),
            (".github/**", &[".github/a", ".github/x/a.yml"], &[".github/.a", "x/.github/a"]),
            ("**/.github/*.yml", &[".github/a.yml", "x/.github/a.yml"], &[".github/x/a.yml"]),
            ("[.]env", &[], &[".env"]),
            ("?env", &["xenv"], &[".env"]),
            // Braces and classes.
            ("*.{md,txt}", &["a.md", "x/a.txt"], &["a.rs", "a.{md,txt}"]),
            ("{a,b}/*.md", &["a/x.md", "b/x.md"], &["c/x.md", "x/a/x.md"]),
            ("{a/b,c}.md", &["a/b.md", "c.md"], &["x/c.md", "a/c.md"]),
            ("{a,{b,c}}.md", &["a.md", "b.md", "c.md"], &["d.md"]),
            ("{.env,x}", &[".env", "x"], &["env"]),
            ("a{,b}", &["a", "ab"], &["abb"]),
            ("[a-c].md", &["a.md", "x/c.md"], &["d.md", "-.md"]),
            ("[!a].md", &["b.md"], &["a.md", "..md"]),
            ("[]a].md", &["].md", "a.md"], &["b.md"]),
            ("[{,}].md", &["{.md", ",.md", "}.md"], &["a.md"]),
            // Plain names that are special elsewhere.
            ("a+b (1).md", &["a+b (1).md"], &["ab (1).md"]),
            ("100%.md", &["100%.md"], &["100.md"]),
            ("\\*.md", &["*.md"], &["a.md"]),
            ("\\{a\\}", &["{a}"], &["a"]),
            ("MD", &["MD"], &["md"]),
            // Non-ASCII characters are single characters.
            ("se?or", &["señor", "senor"], &["seor", "señoor"]),
            ("[ñn]andú", &["ñandú", "nandú"], &["andú", "uñandú"]),
            ("[á-ú]", &["é", "ó"], &["a", "ü", "🦀"]),
            ("[!ñ]", &["n", "é", "🦀"], &["ñ"]),
            ("*ñ*", &["ñ", "año", "x/niño.md"], &["ano"]),
            ("??", &["ñ🦀", "ab"], &["ñ", "🦀", "abc"]),
        ];
        for (pattern, yes, no) in table {
            let parsed = Pattern::parse(pattern).unwrap_or_else(|e| panic!("{pattern}: {e}"));
            for path in *yes {
                assert!(parsed.matches(path), "{pattern} should match {path}");
            }
            for path in *no {
                assert!(!parsed.matches(path), "{pattern} should not match {path}");
            }
        }
    }

    #[test]
    fn what_is_no_pattern_is_told() {
        for bad in [
            "",
            "/",
            "//",
            "[a",
            "{a,b",
            "a}",
            "docs/",
            "a[",
            "{{a}",
            ".",
            "docs/.",
            "{,a}",
            "{a/,b}",
            "[a-ñ]",
            &"{a,b}".repeat(11),
            &"a".repeat(5000),
        ] {
            assert_eq!(Pattern::parse(bad).unwrap_err().kind(), ErrorKind::InvalidInput, "{bad}");
        }
        for bad in ["..", "../a", "a/../b", "/..", "{..,a}/b", "a/%2e%2e/b", "\\.\\./a"] {
            assert_eq!(Pattern::parse(bad).unwrap_err().kind(), ErrorKind::InvalidPath, "{bad}");
        }
    }

    #[test]
    fn literal_directories_are_extracted() {
        for (pattern, directories) in [
            ("docs/a/*.md", "docs/a"),
            ("docs/**/a.md", "docs"),
            ("/docs/a.md", "docs"),
            ("*.md", ""),
            ("**/a", ""),
            ("d*/a", ""),
            ("{docs/a,docs/b}/x", "docs"),
            ("{a,b}/x", ""),
        ] {
            assert_eq!(Pattern::parse(pattern).unwrap().directories().join("/"), directories, "{pattern}");
        }
    }

    #[test]
    fn many_stars_match_in_polynomial_time() {
        let pattern = Pattern::parse(&format!("{}x", "**/*a*/".repeat(60))).unwrap();
        let path = vec!["aaaaaaaa"; 500].join("/");
        assert!(!pattern.matches(&path));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 5_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn patterns_never_panic(pattern in "[a-c.*?/{},\\[\\]!^\\\\%2e-]{0,24}", path in "[a-c./]{0,16}") {
            if let Ok(pattern) = Pattern::parse(&pattern) {
                pattern.matches(&path);
                pattern.directories();
            }
        }

        /// Paths outside the spelled-out directories never match.
        #[test]
        fn directories_are_never_wrong(pattern in "[ab*/{},]{1,12}", path in "[ab]/[ab]/[ab]") {
            if let Ok(pattern) = Pattern::parse(&pattern) {
                let directories = pattern.directories();
                let inside = directories.is_empty() || path.starts_with(&format!("{}/", directories.join("/")));
                prop_assert!(inside || !pattern.matches(&path));
            }
        }
    }
}
