//! Parsing and validation of `SKILL.md`: text in, facts and diagnostics out. No I/O.
//!
//! There are two modes. [`validate`] is strict and reports problems in the exact wording of the reference
//! library. [`Document::load`] is lenient: it accepts the `SKILL.md` files that exist in practice, keeps
//! fields that it does not understand, and reports what it repaired.

mod fields;
mod load;
mod quoted;
mod repair;
mod strict;
mod validate;
mod yaml;

use serde::Serialize;

pub use self::fields::Manifest;
pub use self::load::Document;
pub(crate) use self::load::{Size, read_description, read_head};
pub use self::validate::{Properties, read_properties, validate};
pub(crate) use self::yaml::MAX_FRONTMATTER_BYTES;
pub use self::yaml::Yaml;

/// Ranks a file name as a skill's main file, or returns `None` if it is not one. The lowest rank wins if a
/// directory has several candidates: `SKILL.md`, then `skill.md`, then byte order.
pub(crate) fn skill_file_rank(name: &str) -> Option<(bool, bool, &str)> {
    name.eq_ignore_ascii_case("SKILL.md").then_some((name != "SKILL.md", name != "skill.md", name))
}

/// Returns the file that makes a directory a skill.
pub(crate) fn skill_file<'n>(names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    names.filter_map(skill_file_rank).min().map(|(_, _, name)| name)
}

/// The severity of a diagnostic, from least to most severe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Severity {
    /// Informational.
    Info,
    /// Something was repaired, guessed or ignored.
    Warning,
    /// The file cannot be used.
    Error,
}

/// A problem in a skill, reported to its author.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Diagnostic {
    /// The file that the diagnostic is about.
    pub file: String,
    /// The line in that file, counted from 1, if the diagnostic is about a line.
    pub line: Option<usize>,
    /// The severity.
    pub severity: Severity,
    /// A stable identifier, for matching and counting.
    pub code: &'static str,
    /// What is wrong and what was done about it.
    pub message: String,
}

impl Diagnostic {
    /// A diagnostic about an entire file.
    pub(crate) fn new(
        severity: Severity,
        code: &'static str,
        file: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self { file: file.into(), line: None, severity, code, message: message.into() }
    }
}

/// The reason that a file cannot be used: the message of its last diagnostic.
pub(crate) fn why_unusable(said: &[Diagnostic]) -> &str {
    said.last().map_or("there is nothing in it", |diagnostic| &diagnostic.message)
}

impl std::fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        let severity = match self.severity {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, ": {severity}: {} [{}]", self.message, self.code)
    }
}

/// Collects the diagnostics of one file.
#[derive(Debug)]
struct Log<'a> {
    file: &'a str,
    found: Vec<Diagnostic>,
}

impl Log<'_> {
    fn add(
        &mut self,
        severity: Severity,
        code: &'static str,
        line: Option<usize>,
        message: impl Into<String>,
    ) {
        self.found.push(Diagnostic { line, ..Diagnostic::new(severity, code, self.file, message) });
    }

    fn warn(&mut self, code: &'static str, line: Option<usize>, message: impl Into<String>) {
        self.add(Severity::Warning, code, line, message);
    }
}
