//! The meaning of frontmatter fields, both those of the specification and those added by vendors.

use serde::Serialize;

use super::yaml::Yaml;

/// The frontmatter of a skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Manifest {
    /// The `name` field, or the name of the skill's directory if the field is missing.
    pub name: String,
    /// What the skill does and when to use it.
    pub description: String,
    /// Whether the description comes from the `description` field rather than from the body.
    pub described: bool,
    /// The license, or the name of a file that contains it.
    pub license: Option<String>,
    /// The environment that the skill requires.
    pub compatibility: Option<String>,
    /// Tools that the skill may use without asking.
    pub allowed_tools: Vec<String>,
    /// The skill's version.
    pub version: Option<String>,
    /// The skill's author.
    pub author: Option<String>,
    /// Search keywords.
    pub tags: Vec<String>,
    /// Skills that this one depends on.
    pub depends: Vec<String>,
    /// Capabilities that the agent running the skill must have.
    pub required_capabilities: Vec<String>,
    /// Whether users may invoke the skill by name. Default true.
    pub user_invocable: bool,
    /// Whether the skill is hidden from the model. Default false.
    pub disable_model_invocation: bool,
    /// The `metadata` field, verbatim, plus vendor fields from the top level that belong there.
    pub metadata: Yaml,
    /// Every field, verbatim, including unknown ones.
    pub fields: Yaml,
    /// The text between the fences, verbatim; empty without fences.
    #[serde(skip)]
    pub frontmatter: String,
}

impl Manifest {
    /// Reads the fields. The caller fills in a missing name or description.
    pub(super) fn from_fields(fields: Yaml, frontmatter: String) -> Self {
        let metadata = fields.get("metadata").unwrap_or(&Yaml::Null);
        let text = |key: &str| fields.get(key).and_then(plain_text);
        // Vendors put their fields at the top level or into `metadata`, and some have two spellings.
        let vendor = |keys: &[&str]| {
            let value = |key: &&str| fields.get(key).or_else(|| metadata.get(key));
            keys.iter().filter_map(value).find(|value| **value != Yaml::Null)
        };
        let vendor_words = |keys: &[&str]| vendor(keys).map(words).unwrap_or_default();
        Self {
            name: text("name").unwrap_or_default(),
            description: text("description").unwrap_or_default(),
            described: true,
            license: text("license"),
            compatibility: text("compatibility"),
            allowed_tools: fields.get("allowed-tools").map(tools).unwrap_or_default(),
            version: vendor(&["version"]).and_then(plain_text),
            author: vendor(&["author"]).and_then(plain_text),
            tags: vendor_words(&["tags"]),
            depends: vendor_words(&["depends"]),
            required_capabilities: vendor_words(&["required_capabilities", "required-capabilities"]),
            user_invocable: vendor(&["user_invocable", "user-invocable"]).and_then(truth).unwrap_or(true),
            disable_model_invocation: vendor(&["disable_model_invocation", "disable-model-invocation"])
                .and_then(truth)
                .unwrap_or(false),
            metadata: with_vendor_metadata(metadata, &fields),
            fields,
            frontmatter,
        }
    }
}

/// Returns the `metadata` field plus the top-level vendor fields that belong there.
fn with_vendor_metadata(metadata: &Yaml, fields: &Yaml) -> Yaml {
    let mut metadata = metadata.clone();
    for key in ["platforms", "prerequisites"] {
        let Some(value) = fields.get(key).filter(|value| **value != Yaml::Null) else { continue };
        if metadata == Yaml::Null {
            metadata = Yaml::Map(Vec::new());
        }
        if let Yaml::Map(entries) = &mut metadata
            && entries.iter().all(|(known, _)| known != key)
        {
            entries.push((key.to_owned(), value.clone()));
        }
    }
    metadata
}

/// Returns a scalar, or a list of scalars joined into one line. Blank text is `None`.
fn plain_text(value: &Yaml) -> Option<String> {
    let text = match value {
        Yaml::Text(text) => text.trim().to_owned(),
        Yaml::List(items) => {
            items.iter().filter_map(Yaml::as_text).map(str::trim).collect::<Vec<_>>().join(", ")
        }
        Yaml::Null | Yaml::Map(_) => return None,
    };
    (!text.is_empty()).then_some(text)
}

/// Reads a list or comma-separated text.
fn words(value: &Yaml) -> Vec<String> {
    match value {
        Yaml::List(items) => trimmed(items.iter().filter_map(Yaml::as_text)),
        Yaml::Text(text) => trimmed(text.trim().trim_start_matches('[').trim_end_matches(']').split(',')),
        Yaml::Null | Yaml::Map(_) => Vec::new(),
    }
}

fn trimmed<'t>(words: impl Iterator<Item = &'t str>) -> Vec<String> {
    words.map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Reads a list, or text separated by commas or spaces. A parenthesized argument stays part of its word:
/// `Bash(git add *) Read` has two words.
fn tools(value: &Yaml) -> Vec<String> {
    let Some(text) = value.as_text() else { return words(value) };
    let split = |separator: fn(char) -> bool| {
        let mut depth = 0usize;
        trimmed(text.split(|c| {
            match c {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && separator(c)
        }))
    };
    let by_comma = split(|c| c == ',');
    if by_comma.len() > 1 || text.trim_end().ends_with(',') { by_comma } else { split(char::is_whitespace) }
}

/// Parses a boolean in any of YAML's spellings.
fn truth(value: &Yaml) -> Option<bool> {
    match value.as_text()?.trim().to_lowercase().as_str() {
        "true" | "yes" | "on" | "y" | "1" => Some(true),
        "false" | "no" | "off" | "n" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(yaml: &str) -> Manifest {
        Manifest::from_fields(super::super::yaml::parse(yaml).unwrap().0, yaml.to_owned())
    }

    #[test]
    fn tools_are_lists_or_separated_by_spaces_or_commas() {
        let check = |yaml: &str, expected: &[&str]| {
            assert_eq!(manifest(yaml).allowed_tools, expected, "{yaml}");
        };
        check("allowed-tools: [Read, Write]", &["Read", "Write"]);
        check("allowed-tools:\n  - Read\n  - Bash(git:*)\n", &["Read", "Bash(git:*)"]);
        check("allowed-tools: Read Write", &["Read", "Write"]);
        check("allowed-tools: Read, Write,Edit", &["Read", "Write", "Edit"]);
        check("allowed-tools: Bash(git add *) Bash(jq:*)", &["Bash(git add *)", "Bash(jq:*)"]);
        check("allowed-tools: Bash(a, b), Read", &["Bash(a, b)", "Read"]);
        check("allowed-tools: Read", &["Read"]);
        check("allowed-tools:", &[]);
        check("allowed-tools: Bash(unclosed Read", &["Bash(unclosed Read"]);
    }

    #[test]
    fn vendor_fields_are_read_from_the_top_level_and_from_metadata() {
        let m = manifest(
            "version: 1.10\nauthor: Ana\ntags: [a, b]\ndepends: x, y\nuser-invocable: no\n\
             disable-model-invocation: true\nplatforms: [macos]\nrequired-capabilities: [shell:execute]\n",
        );
        assert_eq!((m.version.as_deref(), m.author.as_deref()), (Some("1.10"), Some("Ana")));
        assert_eq!((m.tags, m.depends), (vec!["a".into(), "b".into()], vec!["x".into(), "y".into()]));
        assert_eq!((m.user_invocable, m.disable_model_invocation), (false, true));
        assert_eq!(m.required_capabilities, ["shell:execute"]);
        assert!(m.metadata.get("platforms").is_some());
        let m = manifest("metadata:\n  version: \"2\"\n  author: Bo\n  tags: tender,danish\n");
        assert_eq!((m.version.as_deref(), m.author.as_deref()), (Some("2"), Some("Bo")));
        assert_eq!(m.tags, ["tender", "danish"]);
    }

    #[test]
    fn what_is_not_understood_is_kept() {
        let m = manifest("name: x\nhomepage: http://x\nmetadata:\n  openclaw: {emoji: x, os: [a]}\n");
        assert_eq!(
            serde_json::to_string(&m.fields).unwrap(),
            r#"{"name":"x","homepage":"http://x","metadata":{"openclaw":{"emoji":"x","os":["a"]}}}"#
        );
    }
}
