//! The lenient parser, for the `SKILL.md` files that exist in practice.

use std::borrow::Cow;

use super::fields::Manifest;
use super::yaml::MAX_FRONTMATTER_BYTES;
use super::{Diagnostic, Log, Severity, repair, validate};
use crate::text;

/// The maximum length of a description that is derived from the body.
const MAX_DERIVED_CHARS: usize = 300;

/// A complete `SKILL.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Document {
    /// The frontmatter.
    pub manifest: Manifest,
    /// The instructions: everything after the frontmatter.
    pub body: String,
    /// What was wrong with the file and how it was repaired.
    pub diagnostics: Vec<Diagnostic>,
}

impl Document {
    /// Parses a complete file. `directory` is the name of the skill's directory; `file` is the name used in
    /// diagnostics.
    ///
    /// # Errors
    /// Returns the diagnostics if there is no usable text: the file is empty or binary.
    pub fn load(content: &[u8], directory: &str, file: &str) -> Result<Self, Vec<Diagnostic>> {
        // `None` means that more content is needed, which cannot happen with a complete file.
        read_head(content, Size { whole: true, last: true }, directory, file).unwrap_or(Err(Vec::new()))
    }
}

/// How much of a file the content covers.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    /// The content is the complete file.
    pub(crate) whole: bool,
    /// No more content will be read, even if the file is longer.
    pub(crate) last: bool,
}

/// Reads the description of a category from its `DESCRIPTION.md`: the `description` field, or the first
/// paragraph.
pub(crate) fn read_description(content: &[u8], whole: bool) -> Option<String> {
    let mut log = Log { file: "DESCRIPTION.md", found: Vec::new() };
    let text = decode(content, whole, &mut log).ok()?;
    let parts = split(&text, true, &mut log)?;
    let fields = repair::fields(parts.frontmatter, parts.first_line, &mut log);
    let field = Manifest::from_fields(fields, String::new()).description;
    let text = if field.is_empty() { Derived::from(parts.body).description() } else { field };
    (!text.is_empty()).then_some(text)
}

/// Parses the first bytes of a file in the same way as [`Document::load`]; the body is truncated with the
/// content. Returns `None` if the closing fence of the frontmatter is not in the content.
pub(crate) fn read_head(
    content: &[u8],
    size: Size,
    directory: &str,
    file: &str,
) -> Option<Result<Document, Vec<Diagnostic>>> {
    let mut log = Log { file, found: Vec::new() };
    let text = match decode(content, size.whole, &mut log) {
        Ok(text) => text,
        Err(mime) => {
            log.add(Severity::Error, "binary", None, format!("it is {mime}, not text"));
            return Some(Err(log.found));
        }
    };
    let parts = split(&text, size.last, &mut log)?;
    let frontmatter = bounded(parts.frontmatter, parts.first_line, &mut log);
    let fields = repair::fields(frontmatter, parts.first_line, &mut log);
    let mut manifest = Manifest::from_fields(fields, frontmatter.to_owned());
    let derived = Derived::from(parts.body);
    if manifest.name.is_empty() {
        let place = if directory.is_empty() { derived.heading } else { Some(directory) };
        let Some(place) = place else {
            log.add(Severity::Error, "empty", None, "there is neither a name nor any text");
            return Some(Err(log.found));
        };
        place.clone_into(&mut manifest.name);
        log.warn("no-name", None, format!("no name; it is named `{}` after its directory", manifest.name));
    }
    if manifest.description.is_empty() {
        manifest.described = false;
        manifest.description = derived.description();
        if manifest.description.is_empty() {
            let message = "there is neither a description nor a text to take one from";
            log.add(Severity::Error, "empty", None, message);
            return Some(Err(log.found));
        }
        log.warn("no-description", None, "no description; the beginning of the text is used");
    }
    advise(&manifest, directory, &mut log);
    Some(Ok(Document { manifest, body: parts.body.to_owned(), diagnostics: log.found }))
}

/// Truncates frontmatter that exceeds the limit.
fn bounded<'t>(frontmatter: &'t str, first_line: usize, log: &mut Log<'_>) -> &'t str {
    if frontmatter.len() <= MAX_FRONTMATTER_BYTES {
        return frontmatter;
    }
    let message =
        format!("the frontmatter has {} bytes; at most {MAX_FRONTMATTER_BYTES} are read", frontmatter.len());
    log.warn("long-frontmatter", Some(first_line), message);
    &frontmatter[..frontmatter.floor_char_boundary(MAX_FRONTMATTER_BYTES)]
}

/// Reports violations of the specification as warnings.
fn advise(manifest: &Manifest, directory: &str, log: &mut Log<'_>) {
    let mut problems = Vec::new();
    if manifest.fields.get("name").is_some() {
        validate::check_name(Some(&manifest.name), directory, &mut problems);
    }
    for problem in problems.drain(..) {
        let code = if problem.starts_with("Directory") { "name-directory" } else { "name-form" };
        log.warn(code, None, problem);
    }
    if manifest.described {
        validate::check_description(Some(&manifest.description), &mut problems);
    }
    for problem in problems {
        log.warn("description-length", None, problem);
    }
}

fn decode<'c>(content: &'c [u8], whole: bool, log: &mut Log<'_>) -> Result<Cow<'c, str>, &'static str> {
    let encoding = if whole { text::judge_whole(content) } else { text::sniff(content) };
    let encoding = encoding.map_err(|binary| binary.0)?;
    let (text, encoding, _) = encoding.decode(content);
    if content.starts_with(b"\xef\xbb\xbf") {
        log.add(Severity::Info, "bom", Some(1), "it starts with a byte order mark, which was removed");
    } else if encoding != encoding_rs::UTF_8 {
        log.warn("encoding", None, format!("it is not UTF-8; it was read as {}", encoding.name()));
    }
    // The last character of a head may be truncated.
    let text = match text {
        Cow::Owned(text) if !whole => Cow::Owned(text.trim_end_matches('\u{fffd}').to_owned()),
        text => text,
    };
    // Classic Mac OS line endings.
    if text.contains('\r') && !text.contains('\n') {
        return Ok(Cow::Owned(text.replace('\r', "\n")));
    }
    Ok(text)
}

struct FileParts<'t> {
    /// Empty without fences.
    frontmatter: &'t str,
    /// The line number in the file of the frontmatter's first line, counted from 1.
    first_line: usize,
    body: &'t str,
}

/// Whether a line opens the frontmatter: dashes, optionally followed by a comment or the word `yaml`.
fn opens(line: &str) -> bool {
    let rest = line.trim_start_matches('-');
    line.len() - rest.len() >= 3
        && (rest.is_empty() || rest.trim_start().starts_with('#') || rest.trim() == "yaml")
}

/// Splits a file at its fences. Tolerates blank lines before the frontmatter, trailing spaces, text directly
/// after the closing fence, `...` as the closing fence, and missing fences. Returns `None` if the closing
/// fence may come later in the file.
fn split<'t>(text: &'t str, whole: bool, log: &mut Log<'_>) -> Option<FileParts<'t>> {
    let blank: usize =
        text.split_inclusive('\n').take_while(|line| line.trim().is_empty()).map(str::len).sum();
    let start = &text[blank..];
    let skipped = text[..blank].matches('\n').count();
    let opening = start.split_inclusive('\n').next().unwrap_or_default();
    if !opens(opening.trim_end()) {
        log.warn("no-frontmatter", Some(skipped + 1), "it does not start with `---`; it has no fields");
        return Some(FileParts { frontmatter: "", first_line: 1, body: text });
    }
    if blank > 0 {
        log.warn("blank-start", Some(1), "there are blank lines before the frontmatter");
    }
    let first_line = skipped + 2;
    let inside = &start[opening.len()..];
    let mut at = 0;
    for (number, line) in inside.split_inclusive('\n').enumerate() {
        let content = line.trim_end();
        if content == "..." || content.starts_with("---") {
            let glued = content.trim_start_matches('-');
            let body = if glued.is_empty() || content == "..." {
                &inside[at + line.len()..]
            } else {
                log.warn("glued-fence", Some(first_line + number), "there is text after the closing `---`");
                &inside[at + (content.len() - glued.len())..]
            };
            return Some(FileParts { frontmatter: &inside[..at], first_line, body });
        }
        at += line.len();
    }
    if !whole && inside.len() < MAX_FRONTMATTER_BYTES {
        return None;
    }
    // Without a closing fence, the fields end at the first line that cannot be a field.
    let field = |line: &&str| {
        let line = line.trim_end();
        !line.is_empty() && (line.starts_with([' ', '\t', '-', '#']) || line.contains(':'))
    };
    let end: usize = inside.split_inclusive('\n').take_while(field).map(str::len).sum();
    let message = "the frontmatter is never closed; it was ended where its fields end";
    log.warn("unclosed", Some(first_line), message);
    let cut = inside.floor_char_boundary(end.min(MAX_FRONTMATTER_BYTES));
    Some(FileParts { frontmatter: &inside[..cut], first_line, body: &inside[end..] })
}

/// The first heading and the first paragraph of a body.
struct Derived<'t> {
    heading: Option<&'t str>,
    paragraph: String,
}

impl<'t> Derived<'t> {
    fn from(body: &'t str) -> Self {
        let (mut heading, mut paragraph) = (None, String::new());
        for line in body.lines().map(str::trim).take(200) {
            let title = line.trim_start_matches('#').trim();
            let is_heading = line.starts_with('#') && !title.is_empty();
            if line.is_empty() || is_heading {
                if !paragraph.is_empty() {
                    break;
                }
                heading = heading.or(is_heading.then_some(title));
            } else if !line.chars().all(|c| matches!(c, '-' | '=' | '*' | '_' | '#')) {
                if !paragraph.is_empty() {
                    paragraph.push(' ');
                }
                paragraph.push_str(line);
            }
        }
        Self { heading, paragraph }
    }

    fn description(&self) -> String {
        let text = if self.paragraph.is_empty() { self.heading.unwrap_or_default() } else { &self.paragraph };
        match text.char_indices().nth(MAX_DERIVED_CHARS) {
            Some((at, _)) => format!("{}…", text[..at].trim_end()),
            None => text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(content: &str) -> Document {
        Document::load(content.as_bytes(), "my-skill", "SKILL.md").unwrap()
    }

    fn codes(document: &Document) -> Vec<&'static str> {
        document.diagnostics.iter().map(|d| d.code).collect()
    }

    fn check(content: &str, name: &str, description: &str, body: &str, expected: &[&str]) {
        let document = load(content);
        assert_eq!(document.manifest.name, name, "{content:?}");
        assert_eq!(document.manifest.description, description, "{content:?}");
        assert_eq!(document.body, body, "{content:?}");
        assert_eq!(codes(&document), expected, "{content:?}");
    }

    #[test]
    fn a_valid_file_has_no_diagnostics() {
        check("---\nname: my-skill\ndescription: d\n---\n# T\n", "my-skill", "d", "# T\n", &[]);
        check("---\r\nname: my-skill\r\ndescription: d\r\n---\r\nB\r\n", "my-skill", "d", "B\r\n", &[]);
    }

    #[test]
    fn odd_beginnings_and_fences_are_taken() {
        check("\u{feff}---\nname: my-skill\ndescription: d\n---\nB", "my-skill", "d", "B", &["bom"]);
        check("\n\n---\nname: my-skill\ndescription: d\n---\nB", "my-skill", "d", "B", &["blank-start"]);
        check("--- \nname: my-skill\ndescription: d\n--- \nB", "my-skill", "d", "B", &[]);
        check("---\nname: my-skill\ndescription: d\n---text", "my-skill", "d", "text", &["glued-fence"]);
        check("---\nname: my-skill\ndescription: d\n...\nB", "my-skill", "d", "B", &[]);
        check("---\nname: my-skill\ndescription: d\n\n# T\nB", "my-skill", "d", "\n# T\nB", &["unclosed"]);
        check("---\nname: my-skill\ndescription: d", "my-skill", "d", "", &["unclosed"]);
        check("--- # c\nname: my-skill\ndescription: d\n---\nB", "my-skill", "d", "B", &[]);
        check("---yaml\nname: my-skill\ndescription: d\n---\nB", "my-skill", "d", "B", &[]);
        check("---\rname: my-skill\rdescription: d\r---\rB", "my-skill", "d", "B", &[]);
        check("-----\nname: my-skill\ndescription: a --- b\n---\nB", "my-skill", "a --- b", "B", &[]);
    }

    #[test]
    fn what_is_missing_is_taken_from_the_text() {
        check(
            "# Title\n\nFirst words.\n\nMore.\n",
            "my-skill",
            "First words.",
            "# Title\n\nFirst words.\n\nMore.\n",
            &["no-frontmatter", "no-name", "no-description"],
        );
        check("---\nname: my-skill\n---\n# Title\n", "my-skill", "Title", "# Title\n", &["no-description"]);
        check("---\ndescription: d\n---\n", "my-skill", "d", "", &["no-name"]);
        check("---\nname: Other\ndescription: d\n---\n", "Other", "d", "", &["name-form", "name-directory"]);
        let long = format!("# T\n\n{}", "word ".repeat(200));
        assert!(load(&long).manifest.description.chars().count() <= 301);
    }

    #[test]
    fn files_without_text_are_refused() {
        for content in
            [&b""[..], b"\n\n", b"---\n---\n", b"---\nname: x\n---\n", b"\x89PNG\r\n\x1a\n\0\0", b"a\0b"]
        {
            let diagnostics = Document::load(content, "my-skill", "SKILL.md").unwrap_err();
            assert_eq!(diagnostics.last().unwrap().severity, Severity::Error, "{content:?}");
        }
    }

    #[test]
    fn a_head_needs_more_only_if_the_closing_fence_is_missing() {
        let head = |content: &str, whole| {
            read_head(content.as_bytes(), Size { whole, last: whole }, "my-skill", "SKILL.md")
        };
        assert!(head("---\nname: my-skill\ndescription: lo", false).is_none());
        assert!(matches!(head("---\nname: my-skill\ndescription: lo", true), Some(Ok(_))));
        assert!(matches!(head("---\nname: my-skill\ndescription: d\n---\nHalf a bo", false), Some(Ok(_))));
        assert!(matches!(head("# No fence at all\nText", false), Some(Ok(_))));
        let endless =
            format!("---\nname: my-skill\ndescription: d\nx: {}", "y".repeat(MAX_FRONTMATTER_BYTES));
        assert!(matches!(head(&endless, false), Some(Ok(_))));
    }

    #[test]
    fn legacy_encodings_are_read_with_a_warning() {
        let bytes: Vec<u8> =
            "---\nname: my-skill\ndescription: Año\n---\n".chars().map(|c| c as u8).collect();
        let document = Document::load(&bytes, "my-skill", "SKILL.md").unwrap();
        assert_eq!(document.manifest.description, "Año");
        assert_eq!(codes(&document), ["encoding"]);
    }
}
