//! SHA-256 digests, which identify content.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result, shorten};

/// A SHA-256 digest.
///
/// Written as 64 lowercase hexadecimal digits, so it can be part of a key.
///
/// ```
/// use skillfs::Digest;
///
/// let digest = Digest::of(b"abc");
/// assert_eq!(digest.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
/// assert_eq!(digest.to_string().parse::<Digest>()?, digest);
/// assert!(Digest::parse("ba7816bf").is_err());
/// # Ok::<(), skillfs::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Computes the digest of some bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// Finishes a hasher.
    pub(crate) fn finish(hasher: sha2::Sha256) -> Self {
        use sha2::Digest as _;
        Self(hasher.finalize().into())
    }

    /// Parses hexadecimal digits, in upper or lower case.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if it is not exactly 64 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self> {
        let mut bytes = [0; 32];
        match hex::decode_to_slice(text, &mut bytes) {
            Ok(()) => Ok(Self(bytes)),
            Err(_) => {
                let message = format!("`{}` is not a SHA-256", shorten(text));
                Err(Error::new(ErrorKind::InvalidInput, message).with_hint(WANTED))
            }
        }
    }
}

const WANTED: &str = "a SHA-256 has 64 hexadecimal digits";

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Digest {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(|_| serde::de::Error::custom(WANTED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_64_hexadecimal_digits() {
        let digest = Digest::of(b"abc");
        let text = digest.to_string();
        assert_eq!(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        for same in [text.clone(), text.to_uppercase()] {
            assert_eq!(Digest::parse(&same).unwrap(), digest);
        }
        let json = format!("\"{text}\"");
        assert_eq!(serde_json::to_string(&digest).unwrap(), json);
        assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest);
        for wrong in ["", "ba78", &text[1..], &format!("{text}00"), &text.replace('b', "g"), &"é".repeat(32)]
        {
            assert_eq!(Digest::parse(wrong).unwrap_err().kind(), ErrorKind::InvalidInput, "{wrong}");
            assert!(serde_json::from_value::<Digest>(wrong.into()).is_err(), "{wrong}");
        }
    }
}
