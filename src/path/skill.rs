//! The path of a skill below `/skills`.

use std::borrow::Borrow;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{SKILLS, VirtualPath, is_exact, leaf, parents};
use crate::error::{Error, ErrorKind, Result, shorten};

/// The path of a skill below `/skills`, such as `deeds/sale`.
///
/// The last segment is the name of the skill's directory. Any segments before it are categories.
/// Every segment is valid in a [`VirtualPath`]. Nothing is normalized, so two different texts never
/// mean the same skill.
///
/// ```
/// use skillfs::SkillPath;
///
/// let path = SkillPath::parse("deeds/sale")?;
/// assert_eq!((path.category(), path.name()), ("deeds", "sale"));
/// assert_eq!(path.location().as_str(), "/skills/deeds/sale");
/// assert_eq!(path.join("SKILL.md")?.as_str(), "/skills/deeds/sale/SKILL.md");
/// for bad in ["", "/deeds/sale", "deeds/", "deeds//sale", "deeds/../sale"] {
///     assert!(SkillPath::parse(bad).is_err());
/// }
/// # Ok::<(), skillfs::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct SkillPath(String);

impl SkillPath {
    /// Parses untrusted text.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidPath`] if it violates one of the rules above.
    pub fn parse(text: &str) -> Result<Self> {
        check_relative(text)?;
        Ok(Self(text.to_owned()))
    }

    /// Converts a path from a bucket or a program. Returns `None` if it is not valid.
    pub(crate) fn exact(text: &str) -> Option<Self> {
        is_exact(text).then(|| Self(text.to_owned()))
    }

    /// Returns the skill path of a location below `/skills`, or `None` for the mount itself.
    pub(crate) fn at(location: &VirtualPath) -> Option<Self> {
        let relative = location.below_mount();
        (!relative.is_empty()).then(|| Self(relative.to_owned()))
    }

    /// Returns the path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the last segment, the name of the skill's directory.
    #[must_use]
    pub fn name(&self) -> &str {
        leaf(&self.0)
    }

    /// Returns everything before the last segment. Empty without a category.
    #[must_use]
    pub fn category(&self) -> &str {
        self.parents().last().unwrap_or_default()
    }

    /// Returns the categories that contain it, the outermost first.
    pub fn parents(&self) -> impl Iterator<Item = &str> {
        parents(&self.0)
    }

    /// Returns the skill's directory.
    #[must_use]
    pub fn location(&self) -> VirtualPath {
        VirtualPath(format!("/{SKILLS}/{}", self.0))
    }

    /// Joins a path relative to the skill's directory. The result cannot leave the directory.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidPath`] if it is not a valid path.
    pub fn join(&self, file: &str) -> Result<VirtualPath> {
        VirtualPath::parse(&format!("/{SKILLS}/{}/{file}", self.0))
    }
}

/// Checks that a relative path is valid in a library.
pub(crate) fn check_relative(path: &str) -> Result<()> {
    if is_exact(path) {
        return Ok(());
    }
    // The parser explains what is wrong, except if it would normalize the path.
    VirtualPath::parse(&format!("/{path}"))?;
    Err(Error::new(
        ErrorKind::InvalidPath,
        format!("invalid path `{}`: a name is empty or `.`", shorten(path)),
    )
    .at(path)
    .with_hint("write names with one `/` between them"))
}

impl fmt::Display for SkillPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not `write_str`: tables format it with a width.
        f.pad(&self.0)
    }
}

/// Equality, order and hash are those of the text, so maps can be looked up by text.
impl Borrow<str> for SkillPath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for SkillPath {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for SkillPath {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for SkillPath {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl std::str::FromStr for SkillPath {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl TryFrom<String> for SkillPath {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        check_relative(&text)?;
        Ok(Self(text))
    }
}

impl From<SkillPath> for String {
    fn from(path: SkillPath) -> Self {
        path.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn skill_path_has_a_name_and_categories() {
        let path = SkillPath::parse("a/b/c").unwrap();
        assert_eq!((path.category(), path.name()), ("a/b", "c"));
        assert_eq!(path.parents().collect::<Vec<_>>(), ["a", "a/b"]);
        let alone = SkillPath::parse("c").unwrap();
        assert_eq!((alone.category(), alone.name(), alone.parents().count()), ("", "c", 0));
    }

    #[test]
    fn invalid_skill_paths_are_rejected() {
        for bad in
            ["", "/", "/a", "a/", "a//b", ".", "./a", "a/.", "..", "a/../b", "a/%2e%2e", "a\0b", "a\\b"]
        {
            assert_eq!(SkillPath::parse(bad).unwrap_err().kind(), ErrorKind::InvalidPath, "{bad:?}");
            assert_eq!(SkillPath::exact(bad), None, "{bad:?}");
            assert!(SkillPath::try_from(bad.to_owned()).is_err(), "{bad:?}");
            assert!(serde_json::from_value::<SkillPath>(bad.into()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn joined_paths_stay_inside_the_skill() {
        let path = SkillPath::parse("a/b").unwrap();
        assert_eq!(path.join("./x//y.md").unwrap().as_str(), "/skills/a/b/x/y.md");
        assert_eq!(path.join("../x").unwrap_err().kind(), ErrorKind::InvalidPath);
        assert_eq!(SkillPath::at(&path.location()), Some(path));
        assert_eq!(SkillPath::at(&VirtualPath::top_level(SKILLS)), None);
    }

    #[test]
    fn skill_path_serializes_as_text() {
        let path = SkillPath::parse("a/b").unwrap();
        assert_eq!(serde_json::to_string(&path).unwrap(), r#""a/b""#);
        assert_eq!(serde_json::from_str::<SkillPath>(r#""a/b""#).unwrap(), path);
        let map = BTreeMap::from([(path, 1)]);
        assert_eq!(map.get("a/b"), Some(&1));
        assert_eq!(serde_json::to_string(&map).unwrap(), r#"{"a/b":1}"#);
    }
}
