//! Identifiers of users, threads, tickets and libraries: what may be a segment of a key.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result, shorten};

/// The maximum length of an identifier, in characters.
pub(crate) const MAX_ID_CHARS: usize = 128;

/// Top-level prefixes that cannot be user ids: user `threads` with thread `skills` would share a
/// prefix with another tenant.
pub(crate) const RESERVED_USER_IDS: [&str; 3] = ["threads", "tickets", "shared"];

const NOTHING: [&str; 0] = [];

const ALLOWED: &str = "A-Z a-z 0-9 . _ - @ : + = | # ~";

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $noun:literal, reserved: $reserved:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Parses untrusted text.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidId`] if it violates one of the rules above.
            pub fn parse(text: &str) -> Result<Self> {
                check(text, &$reserved).map_err(|why| {
                    Error::new(
                        ErrorKind::InvalidId,
                        format!(concat!("invalid ", $noun, " `{}`: {}"), shorten(text), why),
                    )
                    .with_hint(if $reserved.contains(&text) { "choose another word".to_owned() } else { format!(
                        concat!("a ", $noun, " has 1 to {} characters of {} and does not start with a dot"),
                        MAX_ID_CHARS, ALLOWED,
                    ) })
                })?;
                Ok(Self(text.into()))
            }

            /// Returns the identifier as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = Error;
            fn from_str(text: &str) -> Result<Self> {
                Self::parse(text)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = Error;
            fn try_from(text: &str) -> Result<Self> {
                Self::parse(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;
            fn try_from(text: String) -> Result<Self> {
                Self::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0.as_ref().into()
            }
        }
    };
}

id! {
    /// A user id. The user's library is stored under `{user_id}/skills/`.
    ///
    /// 1 to 128 characters from `A-Z a-z 0-9 . _ - @ : + = | # ~`, not starting with a dot. The
    /// words `threads`, `tickets` and `shared` are reserved.
    ///
    /// ```
    /// use skillfs::UserId;
    /// assert!(UserId::parse("auth0|5f7c8ec7c33c6c004bbafe82").is_ok());
    /// assert!(UserId::parse("ana@example.com").is_ok());
    /// assert!(UserId::parse("threads").is_err());
    /// assert!(UserId::parse("a/b").is_err());
    /// ```
    UserId, "user_id", reserved: RESERVED_USER_IDS
}

id! {
    /// The id of a conversation. Its files are stored under `threads/{thread_id}/`.
    ///
    /// 1 to 128 characters from `A-Z a-z 0-9 . _ - @ : + = | # ~`, not starting with a dot.
    ThreadId, "thread_id", reserved: NOTHING
}

id! {
    /// The id of a shared library. Its skills are stored under `shared/{library_id}/skills/`.
    ///
    /// 1 to 128 characters from `A-Z a-z 0-9 . _ - @ : + = | # ~`, not starting with a dot.
    LibraryId, "library_id", reserved: NOTHING
}

id! {
    /// The id of a ticket. Its files are stored under `tickets/{ticket_id}/`.
    ///
    /// 1 to 128 characters from `A-Z a-z 0-9 . _ - @ : + = | # ~`, not starting with a dot.
    TicketId, "ticket_id", reserved: NOTHING
}

fn check(text: &str, reserved: &[&str]) -> Result<(), String> {
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    if let Some(bad) = text.chars().find(|c| !allowed(*c)) {
        return Err(format!("the character `{}` is not allowed", bad.escape_debug()));
    }
    if text.len() > MAX_ID_CHARS {
        return Err(format!("it has {} characters", text.len()));
    }
    if text.starts_with('.') {
        return Err("it starts with a dot".to_owned());
    }
    if reserved.contains(&text) {
        return Err("the word is reserved for a prefix of the bucket".to_owned());
    }
    Ok(())
}

fn allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-@:+=|#~".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bad(text: &str) {
        let error = UserId::parse(text).expect_err(text);
        assert_eq!(error.kind(), ErrorKind::InvalidId);
    }

    /// Invalid for all four types, and when deserialized.
    fn bad_for_all(text: &str) {
        bad(text);
        assert!(ThreadId::parse(text).is_err(), "{text:?}");
        assert!(TicketId::parse(text).is_err(), "{text:?}");
        assert!(LibraryId::parse(text).is_err(), "{text:?}");
        let json = serde_json::to_string(text).unwrap();
        assert!(serde_json::from_str::<ThreadId>(&json).is_err(), "{text:?}");
    }

    #[test]
    fn real_identifiers_pass() {
        for id in [
            "u1",
            "ana@example.com",
            "auth0|5f7c8ec7c33c6c004bbafe82",
            "2f6b0c1e-7a34-4c51-9f6e-1f1a0d3f9c55",
            "AAAAAAAAAAAAAAAAAAAAAIkzqFVrSaSaFHy782bbtaQ",
            "google-oauth2|103547991597142817347",
            "a+b=c~d#e:f_g",
            "a..b",
            "Threads",
            "threads2",
            "-",
            "~",
        ] {
            assert_eq!(UserId::parse(id).unwrap().as_str(), id);
        }
        assert!(UserId::parse(&"x".repeat(128)).is_ok());
    }

    #[test]
    fn hostile_identifiers_do_not() {
        let long = ["x".repeat(129), "x".repeat(1_000_000), "..".repeat(100)];
        for id in [
            "",
            ".",
            "..",
            ".a",
            "a/b",
            "../x",
            "a b",
            "a\0",
            "é",
            "a%2fb",
            "a\\b",
            "a\n",
            "*",
            "{x}",
            "a?",
            // Paths, and what becomes one when decoded.
            "/",
            "/a",
            "a/",
            "a//b",
            "t1/../t2",
            "..\\t2",
            "%2e%2e",
            "a%00",
            "a%252fb",
            "t1%2F",
            ".skillfs",
            "...",
            // Patterns of IAM and of shells.
            "t*",
            "t?",
            "**",
            "${aws:username}",
            "$",
            "a$b",
            "[a-z]",
            "{t1,t2}",
            "t1,t2",
            "!t1",
            "t1;t2",
            "'",
            "\"",
            "`id`",
            "$(id)",
            "a&b",
            "a<b",
            "a>b",
            "(a)",
            "a^b",
            // Look-alikes of dots, slashes and letters; invisible characters; bidirectional
            // overrides.
            "\u{ff0e}\u{ff0e}",
            "\u{2024}\u{2024}",
            "\u{2025}",
            "a\u{ff0f}b",
            "a\u{2215}b",
            "a\u{2044}b",
            "\u{ff0a}",
            "t\u{456}",
            "\u{ff55}1",
            "t\u{200b}1",
            "t1\u{200d}",
            "\u{202e}1t",
            "\u{feff}t1",
            "t1\u{e0041}",
            "e\u{301}",
            "t\u{660}",
            "\u{1d42d}1",
            // White space and control characters at the ends, which others trim.
            " ",
            " t1",
            "t1 ",
            "t1\t",
            "\rt1",
            "t1\r\n",
            "t1\u{a0}",
            "t1\u{3000}",
            "t1\u{85}",
            "t1\u{2028}",
            "\u{1b}[2J",
            "t1\u{7f}",
            "t1\u{9b}",
        ]
        .into_iter()
        .chain(long.iter().map(String::as_str))
        {
            bad_for_all(id);
        }
    }

    #[test]
    fn reserved_prefixes_are_no_users() {
        for id in RESERVED_USER_IDS {
            bad(id);
            assert!(ThreadId::parse(id).is_ok());
            assert!(TicketId::parse(id).is_ok());
        }
    }
}
