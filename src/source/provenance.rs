//! Where a skill comes from and what was decided at import, stored in the file `.source`.

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result, shorten};

/// The name of the file in the skill's folder.
pub const PROVENANCE_FILE: &str = ".source";

/// How far a skill is trusted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TrustTier {
    /// Nobody has reviewed it.
    #[default]
    Unreviewed,
    /// A member of the workspace vouches for it.
    Workspace,
    /// A curated index lists it.
    Indexed,
    /// It ships with the product.
    Bundled,
}

impl TrustTier {
    /// All of them, from the least trusted.
    pub const ALL: &[Self] = &[Self::Unreviewed, Self::Workspace, Self::Indexed, Self::Bundled];

    /// The name of the tier, as stored in `.source`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreviewed => "unreviewed",
            Self::Workspace => "workspace",
            Self::Indexed => "indexed",
            Self::Bundled => "bundled",
        }
    }
}

impl std::fmt::Display for TrustTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for TrustTier {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.iter().copied().find(|tier| tier.as_str() == text).ok_or_else(|| {
            let names = Self::ALL.iter().map(|known| known.as_str()).collect::<Vec<_>>().join(", ");
            Error::new(ErrorKind::InvalidInput, format!("`{}` is not a trust tier", shorten(text)))
                .with_hint(format!("choose one of {names}"))
        })
    }
}

/// The content of `.source`, stored as TOML.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Provenance {
    /// The URL of the repository, or the name of the folder or archive.
    pub source: String,
    /// The commit, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The source that an earlier `.source` in a local folder named. Unverified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimed_source: Option<String>,
    /// The category that the skill was put into, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// When the skill was imported, as RFC 3339.
    pub installed_at: String,
    /// The original names of tools that were translated to ours.
    pub translated_tools: Vec<String>,
    /// Tools that the skill may use and that we do not know.
    pub missing_tools: Vec<String>,
    /// Whether the skill has scripts and they were imported.
    pub scripts_imported: bool,
    /// How far the skill is trusted.
    pub trust_tier: TrustTier,
    /// Dangerous capabilities that the skill requires and that were accepted.
    pub dangerous_capabilities: Vec<String>,
}

impl Provenance {
    /// Parses a `.source` file. Missing fields have defaults; unknown fields are ignored.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the content is not valid.
    pub fn parse(content: &[u8]) -> Result<Self> {
        let wrong = |why: String| {
            let message = format!("`{PROVENANCE_FILE}` cannot be read: {}", shorten(&why));
            Error::new(ErrorKind::InvalidInput, message).with_hint("import the skill again")
        };
        let text = std::str::from_utf8(content).map_err(|error| wrong(error.to_string()))?;
        toml::from_str(text).map_err(|error| wrong(error.message().to_owned()))
    }

    /// Formats the content of the file.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`]. This does not happen, because every value can be represented in TOML.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provenance_round_trips() {
        let said = Provenance {
            claimed_source: None,
            source: "https://h/o/r \"x\"\n".to_owned(),
            commit: Some("c0ffee".to_owned()),
            category: None,
            installed_at: "2026-11-16T12:00:00Z".to_owned(),
            translated_tools: vec!["Bash".to_owned()],
            missing_tools: vec!["mcp__x".to_owned()],
            scripts_imported: true,
            trust_tier: TrustTier::Indexed,
            dangerous_capabilities: vec!["shell:execute".to_owned()],
        };
        let text = said.to_toml().unwrap();
        assert!(text.contains("trust_tier = \"indexed\"\n"), "{text}");
        assert_eq!(Provenance::parse(text.as_bytes()).unwrap(), said);
        assert_eq!(Provenance::parse(b"").unwrap().trust_tier, TrustTier::Unreviewed);
        assert_eq!(Provenance::parse(b"later = 1").unwrap(), Provenance::default());
        for bad in [&b"source = "[..], b"trust_tier = \"root\"", b"\xff"] {
            assert_eq!(Provenance::parse(bad).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn tiers_have_names() {
        for &tier in TrustTier::ALL {
            assert_eq!(tier.as_str().parse::<TrustTier>().unwrap(), tier);
        }
        assert!(TrustTier::Unreviewed < TrustTier::Bundled);
        assert!("root".parse::<TrustTier>().is_err());
    }
}
