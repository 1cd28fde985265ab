//! `SKILL.md`: what it says of a skill. Pure text in, facts and diagnostics out; no I/O.
//!
//! Two modes over one tree. [`validate`] is strict and speaks the words of the reference library.
//! [`Document::load`] is lenient: it takes what real skills look like, keeps what it does not
//! understand, and says what it did.

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

/// Whether a name is that of a skill's own file, and which goes first where several lie side by side: `SKILL.md`, then
/// `skill.md`, then byte order.
pub(crate) fn skill_file_rank(name: &str) -> Option<(bool, bool, &str)> {
    name.eq_ignore_ascii_case("SKILL.md").then_some((name != "SKILL.md", name != "skill.md", name))
}

/// The file among these that makes a directory a skill.
pub(crate) fn skill_file<'n>(names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    names.filter_map(skill_file_rank).min().map(|(_, _, name)| name)
}

/// How much a finding matters, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Something was repaired, guessed or left out.
    Warning,
    /// It cannot be used.
    Error,
}

/// Something about a skill that its author should know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Diagnostic {
    /// The file it is about.
    pub file: String,
    /// The line in that file, counted from 1, where there is one.
    pub line: Option<usize>,
    /// How much it matters.
    pub severity: Severity,
    /// A stable name, to branch on and to count.
    pub code: &'static str,
    /// What is the matter, and what was done.
    pub message: String,
}

impl Diagnostic {
    /// One about a whole file.
    pub(crate) fn new(
        severity: Severity,
        code: &'static str,
        file: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self { file: file.into(), line: None, severity, code, message: message.into() }
    }
}

/// Why a file cannot be used: the last of what is said of it.
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

/// Diagnostics of one file, as they are found.
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
