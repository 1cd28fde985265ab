//! What the tests try that must be refused or lead nowhere, by name. `tests/attempts` counts it for SECURITY.md.
//!
//! Unit tests use it too. Where `SKILLFS_ATTEMPTS` names no directory, nothing is written.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;

/// The attempts of one test. They are written when the test is through with them, and not when it fails: what is
/// counted was refused.
#[derive(Debug)]
pub(crate) struct Attempts {
    area: &'static str,
    test: String,
    names: BTreeSet<String>,
}

impl Attempts {
    /// `place` is the path of an item in the test: `it::tenancy::the_test::{{closure}}::here`.
    pub(crate) fn new(area: &'static str, place: &str) -> Self {
        let parts: Vec<&str> = place.split("::").filter(|part| !part.starts_with('{')).collect();
        // Without the crate and the item. `tests` is no part of where it is, and two rooms may have tests of one name.
        let parts: Vec<&str> =
            parts[1..parts.len() - 1].iter().copied().filter(|part| *part != "tests").collect();
        Self { area, test: parts.join("."), names: BTreeSet::new() }
    }

    /// To be called behind the assertion. The same attempt twice is a mistake in the test.
    #[track_caller]
    pub(crate) fn refused(&mut self, name: impl Display) {
        let name = shown(&name.to_string());
        assert!(!self.names.contains(&name), "counted twice: {name}");
        self.names.insert(name);
    }
}

impl Drop for Attempts {
    fn drop(&mut self) {
        if std::thread::panicking() || self.names.is_empty() {
            return;
        }
        let Some(directory) = std::env::var_os("SKILLFS_ATTEMPTS") else { return };
        let lines: String = self.names.iter().map(|name| format!("{name}\n")).collect();
        // On another server it is the same test, and writes the same.
        let file = Path::new(&directory).join(format!("{}.{}", self.area, self.test));
        std::fs::write(&file, lines).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

/// One line; a long one keeps its ends and its length, which tell it from others.
fn shown(name: &str) -> String {
    let escaped = |c: char| match c {
        ' '..='~' => c.to_string(),
        // Also letters: some are there because they look like others.
        c => c.escape_unicode().to_string(),
    };
    let name: String = name.chars().map(escaped).collect();
    let chars: Vec<char> = name.chars().collect();
    if chars.len() <= 160 {
        return name;
    }
    let (head, tail): (String, String) =
        (chars[..80].iter().collect(), chars[chars.len() - 60..].iter().collect());
    format!("{head}[...]{tail} ({} characters)", chars.len())
}

/// The attempts of the test in which it stands.
macro_rules! attempts {
    ($area:literal) => {{
        fn here() {}
        $crate::attempts::Attempts::new($area, std::any::type_name_of_val(&here))
    }};
}
pub(crate) use attempts;
