//! The rules of the Agent Skills specification, as implemented by its reference library, skills-ref.
//!
//! The messages use the exact wording of skills-ref, because tools compare them.

use unicode_normalization::UnicodeNormalization;
use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

use super::strict;
use super::yaml::Yaml;

const MAX_NAME_CHARS: usize = 64;
const MAX_DESCRIPTION_CHARS: usize = 1024;
const MAX_COMPATIBILITY_CHARS: usize = 500;

/// The fields of the specification, sorted.
pub(super) const FIELDS: [&str; 6] =
    ["allowed-tools", "compatibility", "description", "license", "metadata", "name"];

/// Validates a `SKILL.md` and returns its problems in the order and wording of skills-ref. The list is empty
/// if the file is valid.
///
/// `directory` is the name of the skill's directory.
#[must_use]
pub fn validate(content: &[u8], directory: &str) -> Vec<String> {
    let fields = match frontmatter(content) {
        Ok(fields) => fields,
        Err(problem) => return vec![problem],
    };
    let mut problems = Vec::new();
    let mut unknown: Vec<&str> =
        fields.entries().iter().map(|(key, _)| key.as_str()).filter(|key| !FIELDS.contains(key)).collect();
    if !unknown.is_empty() {
        unknown.sort_unstable();
        let allowed = FIELDS.map(|field| format!("'{field}'")).join(", ");
        let unknown = unknown.join(", ");
        problems.push(format!("Unexpected fields in frontmatter: {unknown}. Only [{allowed}] are allowed."));
    }
    match fields.get("name") {
        Some(name) => check_name(name.as_text(), directory, &mut problems),
        None => problems.push("Missing required field in frontmatter: name".to_owned()),
    }
    match fields.get("description") {
        Some(description) => check_description(description.as_text(), &mut problems),
        None => problems.push("Missing required field in frontmatter: description".to_owned()),
    }
    match fields.get("compatibility") {
        Some(Yaml::Text(text)) => {
            check_length("Compatibility", text, MAX_COMPATIBILITY_CHARS, &mut problems);
        }
        Some(_) => problems.push("Field 'compatibility' must be a string".to_owned()),
        None => {}
    }
    problems
}

/// The properties that skills-ref reads from a `SKILL.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Properties {
    /// The name, trimmed.
    pub name: String,
    /// The description, trimmed.
    pub description: String,
    /// Every field, verbatim.
    pub fields: Yaml,
}

/// Parses a `SKILL.md` as strictly as skills-ref does.
///
/// # Errors
/// Returns the problem in the wording of skills-ref.
pub fn read_properties(content: &[u8]) -> Result<Properties, String> {
    let fields = frontmatter(content)?;
    let text = |field: &str| match fields.get(field) {
        None => Err(format!("Missing required field in frontmatter: {field}")),
        Some(value) => Ok(value.as_text().map(python_strip).unwrap_or_default().to_owned()),
    };
    let (name, description) = (text("name")?, text("description")?);
    for (field, value) in [("name", &name), ("description", &description)] {
        if value.is_empty() {
            return Err(format!("Field '{field}' must be a non-empty string"));
        }
    }
    Ok(Properties { name, description, fields })
}

/// Extracts the frontmatter as skills-ref does: everything between the first two `---`, even inside a line.
pub(super) fn frontmatter(content: &[u8]) -> Result<Yaml, String> {
    let text = std::str::from_utf8(content)
        .map_err(|error| format!("SKILL.md is not valid UTF-8 (at byte {})", error.valid_up_to()))?;
    // Python normalizes line endings to `\n`.
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let rest = text.strip_prefix("---").ok_or("SKILL.md must start with YAML frontmatter (---)")?;
    let (yaml, _) = rest.split_once("---").ok_or("SKILL.md frontmatter not properly closed with ---")?;
    let tree = strict::parse(yaml)
        .map_err(|error| format!("Invalid YAML in frontmatter: line {}: {}", error.line, error.message))?;
    match tree {
        Yaml::Map(_) => Ok(tree),
        _ => Err("SKILL.md frontmatter must be a YAML mapping".to_owned()),
    }
}

/// Trims whitespace as Python's `str.strip` does, which includes four more characters than Rust.
fn python_strip(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c))
}

pub(super) fn check_name(name: Option<&str>, directory: &str, problems: &mut Vec<String>) {
    let Some(name) = name.map(python_strip).filter(|name| !name.is_empty()) else {
        problems.push("Field 'name' must be a non-empty string".to_owned());
        return;
    };
    let name: String = name.nfkc().collect();
    check_length(&format!("Skill name '{name}'"), &name, MAX_NAME_CHARS, problems);
    if name != name.to_lowercase() {
        problems.push(format!("Skill name '{name}' must be lowercase"));
    }
    if name.starts_with('-') || name.ends_with('-') {
        problems.push("Skill name cannot start or end with a hyphen".to_owned());
    }
    if name.contains("--") {
        problems.push("Skill name cannot contain consecutive hyphens".to_owned());
    }
    if !name.chars().all(|c| c == '-' || is_alphanumeric(c)) {
        problems.push(format!(
            "Skill name '{name}' contains invalid characters. Only letters, digits, and hyphens are allowed."
        ));
    }
    if directory.nfkc().collect::<String>() != name {
        problems.push(format!("Directory name '{directory}' must match skill name '{name}'"));
    }
}

/// Checks for letters and numbers by general category. Rust's `char::is_alphanumeric` also accepts combining
/// marks.
fn is_alphanumeric(c: char) -> bool {
    matches!(c.general_category_group(), GeneralCategoryGroup::Letter | GeneralCategoryGroup::Number)
}

pub(super) fn check_description(description: Option<&str>, problems: &mut Vec<String>) {
    match description {
        Some(text) if !python_strip(text).is_empty() => {
            check_length("Description", text, MAX_DESCRIPTION_CHARS, problems);
        }
        _ => problems.push("Field 'description' must be a non-empty string".to_owned()),
    }
}

fn check_length(what: &str, text: &str, most: usize, problems: &mut Vec<String>) {
    let count = text.chars().count();
    if count > most {
        problems.push(format!("{what} exceeds {most} character limit ({count} chars)"));
    }
}
