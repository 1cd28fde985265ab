//! Virtual paths: what a session can name. No I/O, no keys.

mod skill;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::skill::SkillPath;
pub(crate) use self::skill::check_relative;
use crate::error::{Error, ErrorKind, Result, shorten};

/// The maximum length of a path segment, in bytes.
pub(crate) const MAX_SEGMENT_BYTES: usize = 255;

/// The mount that relative paths are relative to.
pub(crate) const WORKING_DIRECTORY: &str = "workspace";

/// The mount that shows skills.
pub(crate) const SKILLS: &str = "skills";

/// An absolute, normalized path inside a session.
///
/// - It starts with `/`, and only the root ends with one:
/// ```
/// # use skillfs::VirtualPath;
/// assert_eq!(VirtualPath::parse("/skills//a/./b/")?.as_str(), "/skills/a/b");
/// assert_eq!(VirtualPath::parse("/")?.as_str(), "/");
/// # Ok::<(), skillfs::Error>(())
/// ```
/// - A relative path is relative to `/workspace`:
/// ```
/// # use skillfs::VirtualPath;
/// assert_eq!(VirtualPath::parse("notes.md")?.as_str(), "/workspace/notes.md");
/// # Ok::<(), skillfs::Error>(())
/// ```
/// - No segment is `.` or `..`, nor becomes one when percent-decoded any number of times, as a
///   proxy might do:
/// ```
/// # use skillfs::VirtualPath;
/// for bad in ["/a/..", "/a/%2e%2E", "/a/%252e.", "/a/.%25252e/b"] {
///     assert!(VirtualPath::parse(bad).is_err());
/// }
/// assert!(VirtualPath::parse("/a/v1..v2.md").is_ok());
/// assert!(VirtualPath::parse("/a/100%.md").is_ok());
/// ```
/// - It has no control characters and no backslashes, and no segment is longer than 255 bytes:
/// ```
/// # use skillfs::VirtualPath;
/// assert!(VirtualPath::parse("/a\0b").is_err());
/// assert!(VirtualPath::parse("/a\\b").is_err());
/// assert!(VirtualPath::parse(&format!("/{}", "x".repeat(256))).is_err());
/// ```
///
/// Nothing is ever decoded: `%41` is a name of three characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VirtualPath(String);

impl VirtualPath {
    /// Returns the root, `/`, which contains the mounts.
    #[must_use]
    pub fn root() -> Self {
        Self("/".to_owned())
    }

    /// Creates `/name` from the name of a mount, without parsing it.
    pub(crate) fn top_level(name: &'static str) -> Self {
        Self(format!("/{name}"))
    }

    /// Parses a path relative to `/skills`.
    ///
    /// # Errors
    /// Same as [`VirtualPath::parse`].
    pub(crate) fn in_skills(relative: &str) -> Result<Self> {
        Self::parse(&format!("/{SKILLS}/{relative}"))
    }

    /// Returns the path relative to its mount. Empty for a mount itself and for the root.
    pub(crate) fn below_mount(&self) -> &str {
        self.0[1..].split_once('/').map_or("", |(_, relative)| relative)
    }

    /// Parses untrusted text from a user, a program or a language model.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidPath`] if it violates one of the rules above.
    pub fn parse(text: &str) -> Result<Self> {
        let mut path = String::with_capacity(text.len() + 1);
        if !text.starts_with('/') {
            path.push('/');
            path.push_str(WORKING_DIRECTORY);
        }
        for segment in text.split('/') {
            if segment.is_empty() || segment == "." {
                continue;
            }
            check_segment(segment).map_err(|problem| problem.in_path(text))?;
            path.push('/');
            path.push_str(segment);
        }
        if path.is_empty() {
            path.push('/');
        }
        Ok(Self(path))
    }

    /// Returns the path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the segments of the path. The root has none.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/').filter(|s| !s.is_empty())
    }

    /// Returns the last segment, or `None` for the root.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.segments().next_back()
    }

    /// Returns whether this is `/`.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0 == "/"
    }

    /// Returns the parent directory, or `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        match self.0.rfind('/') {
            Some(0) | None => Some(Self::root()),
            Some(at) => Some(Self(self.0[..at].to_owned())),
        }
    }

    /// Joins a relative path that comes from a bucket. Unlike [`VirtualPath::parse`], normalizes
    /// nothing: a path with an empty or `.` segment is rejected, so that two keys never map to the
    /// same path.
    pub(crate) fn join_exact(&self, relative: &str) -> Option<Self> {
        if !is_exact(relative) {
            return None;
        }
        let base = if self.is_root() { "" } else { &self.0 };
        Some(Self(format!("{base}/{relative}")))
    }

    /// Appends `.md`, if the last segment has no dot and the result is a valid name.
    pub(crate) fn with_md(&self) -> Option<Self> {
        let name = self.name()?;
        if name.contains('.') || name.len() + 3 > MAX_SEGMENT_BYTES {
            return None;
        }
        Some(Self(format!("{}.md", self.0)))
    }
}

/// Whether a relative path is already normalized: all segments are valid, and none is empty or `.`.
pub(crate) fn is_exact(relative: &str) -> bool {
    let valid = |name: &str| !name.is_empty() && name != "." && check_segment(name).is_ok();
    relative.split('/').all(valid)
}

/// Returns the directories above a relative path, the outermost first.
pub(crate) fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

/// Returns the last segment of a path.
pub(crate) fn leaf(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// Whether a relative path is a directory or is inside it. Compares complete segments: `ab` is not
/// in `a`. An empty directory contains everything.
pub(crate) fn is_within(path: &str, directory: &str) -> bool {
    let rest = path.strip_prefix(directory);
    directory.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Why a segment is not a valid name.
enum BadSegment {
    Dots,
    Control(char),
    Backslash,
    TooLong(usize),
}

impl BadSegment {
    fn in_path(self, text: &str) -> Error {
        let (why, hint) = match self {
            Self::Dots => (
                "a segment is `..`, or `.`/`..` in percent-encoding".to_owned(),
                "write the absolute path, such as `/workspace/notes.md`, without `..`",
            ),
            Self::Control(c) => (
                format!("it contains the control character U+{:04X}", u32::from(c)),
                "remove control characters, such as line breaks and NUL, from the path",
            ),
            Self::Backslash => ("it contains a backslash".to_owned(), "separate directories with `/`"),
            Self::TooLong(bytes) => (
                format!("a name has {bytes} bytes; at most {MAX_SEGMENT_BYTES} are allowed"),
                "use shorter names",
            ),
        };
        Error::new(ErrorKind::InvalidPath, format!("invalid path `{}`: {why}", shorten(text)))
            .at(text)
            .with_hint(hint)
    }
}

fn check_segment(segment: &str) -> Result<(), BadSegment> {
    if segment.len() > MAX_SEGMENT_BYTES {
        return Err(BadSegment::TooLong(segment.len()));
    }
    if reads_as_dots(segment) {
        return Err(BadSegment::Dots);
    }
    match segment.chars().find(|c| c.is_control() || *c == '\\') {
        Some('\\') => Err(BadSegment::Backslash),
        Some(c) => Err(BadSegment::Control(c)),
        None => Ok(()),
    }
}

/// Whether a segment is `.` or `..`, or becomes one when percent-decoded any number of times, as a
/// server or proxy might do.
pub(crate) fn reads_as_dots(segment: &str) -> bool {
    if !segment.contains('%') {
        return segment == "." || segment == "..";
    }
    let mut bytes = segment.as_bytes().to_vec();
    while bytes.contains(&b'%') {
        let decoded: Vec<u8> = percent_encoding::percent_decode(&bytes).collect();
        if decoded.len() == bytes.len() {
            break;
        }
        bytes = decoded;
    }
    bytes == b"." || bytes == b".."
}

impl fmt::Display for VirtualPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not `write_str`: tables format it with a width.
        f.pad(&self.0)
    }
}

impl std::str::FromStr for VirtualPath {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl TryFrom<&str> for VirtualPath {
    type Error = Error;
    fn try_from(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl TryFrom<&String> for VirtualPath {
    type Error = Error;
    fn try_from(text: &String) -> Result<Self> {
        Self::parse(text)
    }
}

impl TryFrom<String> for VirtualPath {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

impl From<&VirtualPath> for VirtualPath {
    fn from(path: &VirtualPath) -> Self {
        path.clone()
    }
}

impl From<VirtualPath> for String {
    fn from(path: VirtualPath) -> Self {
        path.0
    }
}

/// A path argument of an operation: text, which is parsed, or a [`VirtualPath`].
pub trait IntoPath {
    /// Converts into a path, parsing if necessary.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidPath`] if it is not a valid path.
    fn into_path(self) -> Result<VirtualPath>;
}

impl<P> IntoPath for P
where
    P: TryInto<VirtualPath>,
    Error: From<P::Error>,
{
    fn into_path(self) -> Result<VirtualPath> {
        self.try_into().map_err(Error::from)
    }
}

impl AsRef<str> for VirtualPath {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(text: &str, expected: &str) {
        assert_eq!(VirtualPath::parse(text).unwrap().as_str(), expected, "{text:?}");
    }

    fn bad(text: &str) {
        let error = VirtualPath::parse(text).expect_err(text);
        assert_eq!(error.kind(), ErrorKind::InvalidPath, "{text:?}");
        assert!(error.hint().is_some(), "{text:?}");
    }

    #[test]
    fn paths_are_normalised() {
        ok("/", "/");
        ok("//", "/");
        ok("/./", "/");
        ok("/workspace/", "/workspace");
        ok("//skills//a/./b//", "/skills/a/b");
        ok("notes.md", "/workspace/notes.md");
        ok("./a/b", "/workspace/a/b");
        ok(".", "/workspace");
        ok("", "/workspace");
        ok("workspace/x", "/workspace/workspace/x");
    }

    #[test]
    fn plain_names_stay_plain() {
        for name in [
            "v1..v2.md",
            "100%.md",
            "%41",
            "%2",
            "%",
            "...",
            "..a",
            ".hidden",
            "a b",
            "a+b",
            "é",
            "🦀",
            "%2e%2e%2e",
            "%2f",
            "~",
            "*",
            "a:b",
            "%25",
            "..%",
            "2e2e",
            "\u{2028}",
        ] {
            ok(&format!("/workspace/{name}"), &format!("/workspace/{name}"));
        }
    }

    #[test]
    fn dots_never_climb() {
        for segment in [
            "..",
            "%2e%2e",
            "%2E%2e",
            ".%2e",
            "%2e.",
            "%2e",
            "%252E.",
            "%252e%252E",
            "%25252e.",
            ".%25%32%65",
            "%%32e.",
            "%2e%2E",
            "%25%32%65%25%32%65",
            "%2525252525252e.",
            "%%32%65%%32%65",
        ] {
            // At the end, in the middle, and at the start of a path.
            for path in [
                format!("/workspace/{segment}"),
                format!("/workspace/{segment}/x"),
                format!("/{segment}/threads/t2"),
                format!("{segment}/x"),
                format!("/skills/a/.//{segment}//./b"),
            ] {
                bad(&path);
            }
        }
        for path in ["/skills/../workspace", "/workspace/../../u2/skills/x", "..", "./..", "/..", "//..//"] {
            bad(path);
        }
    }

    #[test]
    fn what_terminals_and_servers_disagree_on_is_refused() {
        let controls = ('\0'..='\u{1f}').chain('\u{7f}'..='\u{9f}');
        for odd in controls.chain(['\\']) {
            for path in [format!("/workspace/a{odd}b"), format!("{odd}"), format!("/skills/..{odd}")] {
                bad(&path);
            }
        }
        for path in ["..\\..\\u2", "\\\\server\\share", "C:\\x", "/workspace/..\\", "\\", "/a.md\0.png"] {
            bad(path);
        }
    }

    #[test]
    fn over_long_names_are_refused() {
        ok(&format!("/{}", "x".repeat(255)), &format!("/{}", "x".repeat(255)));
        for long in [
            "x".repeat(256),
            // 128 two-byte characters are 256 bytes.
            "é".repeat(128),
            "🦀".repeat(64),
            "x".repeat(1_000_000),
            "%2e".repeat(100),
            ".".repeat(256),
        ] {
            let path = format!("/{long}");
            bad(&path);
        }
    }

    #[test]
    fn parents_and_names() {
        let path = VirtualPath::parse("/skills/a/b").unwrap();
        assert_eq!(path.name(), Some("b"));
        assert_eq!(path.parent().unwrap().as_str(), "/skills/a");
        assert_eq!(VirtualPath::parse("/skills").unwrap().parent(), Some(VirtualPath::root()));
        assert_eq!(VirtualPath::root().parent(), None);
        assert_eq!(VirtualPath::root().name(), None);
    }

    #[test]
    fn deserialized_paths_are_validated() {
        let path: VirtualPath = serde_json::from_str("\"a/./b\"").unwrap();
        assert_eq!(serde_json::to_string(&path).unwrap(), "\"/workspace/a/b\"");
        for json in
            [r#""/a/..""#, r#""..""#, r#""/a/%2e%2e/b""#, r#""a\u0000b""#, r#""a\\b""#, r#""\u002e\u002e""#]
        {
            assert!(serde_json::from_str::<VirtualPath>(json).is_err(), "{json}");
        }
    }
}
