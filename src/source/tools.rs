//! Tool names: the mapping from the names of other agents to ours, and finding tool names in a text.
//!
//! A name is replaced only if it cannot be anything else: in `allowed-tools`, and if it is the entire content
//! of a code span or code block. `Read the file` and `Write(s) code` stay unchanged.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;

use crate::manifest::{Document, Manifest};

/// What others call a tool, and what we call it.
pub const TOOL_NAMES: &[(&str, &str)] = &[
    ("Bash", "shell_exec"),
    ("Read", "file_read"),
    ("Write", "file_write"),
    ("Edit", "file_edit"),
    ("Glob", "file_glob"),
    ("Grep", "file_grep"),
    ("WebFetch", "web_search"),
    ("WebSearch", "web_search"),
    ("Task", "delegate_agent"),
    ("NotebookEdit", "notebook_edit"),
];

/// A `SKILL.md` with translated tool names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Translated {
    pub(super) text: String,
    /// The original names that were replaced.
    pub(super) names: BTreeSet<String>,
}

/// Returns our name for a tool.
fn ours(name: &str) -> Option<&'static str> {
    TOOL_NAMES.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| *ours)
}

/// Returns the tools of a manifest that we do not know, without their arguments in parentheses.
pub(super) fn missing(manifest: &Manifest) -> BTreeSet<String> {
    let name = |tool: &String| tool.split('(').next().unwrap_or_default().trim().to_owned();
    let known = |name: &String| TOOL_NAMES.iter().any(|(theirs, ours)| theirs == name || ours == name);
    manifest.allowed_tools.iter().map(name).filter(|name| !name.is_empty() && !known(name)).collect()
}

/// Replaces tool names in a `SKILL.md`. Returns `None` if there is nothing to replace, or if replacing would
/// change any other property of the skill.
pub(super) fn translate(text: &str, document: &Document, directory: &str) -> Option<Translated> {
    // Locate both parts by their parsed content, so that the parser's rules apply here too.
    let body = text
        .len()
        .checked_sub(document.body.len())
        .filter(|at| text.get(*at..) == Some(document.body.as_str()))?;
    let start = text[..body].find(document.manifest.frontmatter.as_str())?;
    let end = start + document.manifest.frontmatter.len();
    let mut found = Vec::new();
    in_fields(text, start..end, &mut found);
    let fields = found.len();
    in_markdown(text, body, &mut found);
    let translated = replace(text, &found)?;
    if fields == 0 || same_but_tools(&translated.text, document, directory) {
        return Some(translated);
    }
    // The fields use a syntax that we do not handle, so translate only the body.
    replace(text, &found[fields..])
}

/// Whether a translated text has the same properties, except for tool names.
fn same_but_tools(text: &str, before: &Document, directory: &str) -> bool {
    let Ok(after) = Document::load(text.as_bytes(), directory, "") else { return false };
    let (mut then, mut now) = (before.manifest.clone(), after.manifest);
    let expected: Vec<String> = then.allowed_tools.iter().map(|tool| renamed(tool)).collect();
    let tools_right = expected == now.allowed_tools;
    for manifest in [&mut then, &mut now] {
        manifest.frontmatter.clear();
        manifest.allowed_tools.clear();
        if let crate::manifest::Yaml::Map(entries) = &mut manifest.fields {
            entries.retain(|(key, _)| key != "allowed-tools");
        }
    }
    tools_right && then == now
}

/// `Bash(git:*)` becomes `shell_exec(git:*)`.
fn renamed(tool: &str) -> String {
    let end = tool.find('(').unwrap_or(tool.len());
    ours(&tool[..end]).map_or_else(|| tool.to_owned(), |ours| format!("{ours}{}", &tool[end..]))
}

/// Replaces the names in these ranges. Returns `None` if there is nothing to replace.
fn replace(text: &str, found: &[Range<usize>]) -> Option<Translated> {
    let (mut out, mut names, mut at) = (String::with_capacity(text.len()), BTreeSet::new(), 0);
    for range in found {
        let name = &text[range.clone()];
        let Some(ours) = ours(name) else { continue };
        out.push_str(&text[at..range.start]);
        out.push_str(ours);
        names.insert(name.to_owned());
        at = range.end;
    }
    out.push_str(&text[at..]);
    (!names.is_empty()).then_some(Translated { text: out, names })
}

/// Finds names in the value of `allowed-tools`: text separated by spaces or commas, or a list in block or
/// flow style.
fn in_fields(text: &str, frontmatter: Range<usize>, found: &mut Vec<Range<usize>>) {
    let mut at = frontmatter.start;
    let mut inside = false;
    for line in text[frontmatter].split_inclusive('\n') {
        let value = line.strip_prefix("allowed-tools").and_then(|rest| rest.trim_start().strip_prefix(':'));
        let goes_on = line.starts_with([' ', '\t', '-', ']', '#']) || line.trim().is_empty();
        inside = value.is_some() || (inside && goes_on);
        at += line.len();
        if inside {
            let value = value.unwrap_or(line);
            words(value, at - value.len(), found);
        }
    }
}

/// Finds words outside of parentheses and comments.
fn words(line: &str, offset: usize, found: &mut Vec<Range<usize>>) {
    let (mut depth, mut start) = (0usize, None);
    let mut before = ' ';
    for (at, c) in line.char_indices().chain([(line.len(), '\n')]) {
        let part = c.is_alphanumeric() || "_-.:/*".contains(c);
        match (start, part && depth == 0) {
            (None, true) => start = Some(at),
            (Some(from), false) => {
                found.push(offset + from..offset + at);
                start = None;
            }
            _ => {}
        }
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '#' if before.is_whitespace() => return,
            _ => {}
        }
        before = c;
    }
}

/// Finds names that are the entire content of a code span or a fenced block.
fn in_markdown(text: &str, body: usize, found: &mut Vec<Range<usize>>) {
    let (mut at, mut paragraph) = (body, body);
    // The open fence: its character, its length, and where its content starts.
    let mut fence: Option<(char, usize, usize)> = None;
    for line in text[body..].split_inclusive('\n') {
        let next = at + line.len();
        match (fence, fence_of(line)) {
            (Some((c, length, from)), Some((mark, count, rest)))
                if c == mark && count >= length && rest.is_empty() =>
            {
                found.extend(whole(text, from..at));
                fence = None;
                paragraph = next;
            }
            // The info string of a backtick fence cannot contain backticks.
            (None, Some((c, length, rest))) if c != '`' || !rest.contains('`') => {
                in_spans(text, paragraph..at, found);
                fence = Some((c, length, next));
            }
            (None, _) if line.trim().is_empty() => {
                in_spans(text, paragraph..at, found);
                paragraph = next;
            }
            _ => {}
        }
        at = next;
    }
    if fence.is_none() {
        in_spans(text, paragraph..at, found);
    }
}

/// Parses a line that opens or closes a fenced block: its character, its length, and the rest of the line.
fn fence_of(line: &str) -> Option<(char, usize, &str)> {
    let line = line.trim();
    let c = line.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let rest = line.trim_start_matches(c);
    let count = line.len() - rest.len();
    (count >= 3).then_some((c, count, rest.trim()))
}

/// Finds names in the code spans of a paragraph. The paragraph's end is a guess, because lists and block
/// quotes also end one. So a span counts only if it is also a span of its line alone.
fn in_spans(text: &str, paragraph: Range<usize>, found: &mut Vec<Range<usize>>) {
    let mut alone = HashSet::new();
    let mut at = paragraph.start;
    for line in text[paragraph.clone()].split_inclusive('\n') {
        alone.extend(spans(text, at..at + line.len()));
        at += line.len();
    }
    let both = spans(text, paragraph).into_iter().filter(|span| alone.contains(span));
    found.extend(both.filter_map(|span| whole(text, span)));
}

/// Finds the content between backtick runs of equal length.
fn spans(text: &str, part: Range<usize>) -> Vec<Range<usize>> {
    let offset = part.start;
    let bytes = &text.as_bytes()[part];
    let (mut runs, mut at) = (Vec::new(), 0);
    for run in bytes.chunk_by(|a, b| (*a == b'`') == (*b == b'`')) {
        if run[0] == b'`' {
            runs.push((at, run.len()));
        }
        at += run.len();
    }
    let escaped = |at: usize| bytes[..at].iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1;
    let mut by_length: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, (_, length)) in runs.iter().enumerate() {
        by_length.entry(*length).or_default().push(index);
    }
    let (mut spans, mut next) = (Vec::new(), 0);
    while next < runs.len() {
        let (start, length) = runs[next];
        let from = start + length;
        // An escaped backtick does not open a span, but the ones after it do.
        let length = length - usize::from(escaped(start));
        let same = by_length.get(&length).map_or(&[][..], Vec::as_slice);
        match same.get(same.partition_point(|index| *index <= next)) {
            Some(close) => {
                spans.push(offset + from..offset + runs[*close].0);
                next = close + 1;
            }
            None => next += 1,
        }
    }
    spans
}

/// Returns the range of the name if the span contains nothing else, except for optional parentheses.
fn whole(text: &str, span: Range<usize>) -> Option<Range<usize>> {
    let start = span.end - text[span.clone()].trim_start().len();
    let text = text[span].trim();
    let end = text.find('(').unwrap_or(text.len());
    ours(&text[..end])?;
    let arguments = &text[end..];
    let mut depth = 0;
    let close = arguments.find(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0
    });
    // A single pair of parentheses must enclose everything after the name.
    let balanced = close.map_or(0, |at| at + 1) == arguments.len();
    (balanced && !text.contains('\n')).then(|| start..start + end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(text: &str) -> Option<String> {
        let document = Document::load(text.as_bytes(), "x", "SKILL.md").unwrap();
        translate(text, &document, "x").map(|translated| translated.text)
    }

    fn fields(before: &str, after: &str) {
        let file = |tools: &str| {
            format!("---\nname: x\ndescription: Read and Write with Bash.\n{tools}---\nBash it.\n")
        };
        assert_eq!(translated(&file(before)).as_deref(), Some(file(after)).as_deref(), "{before}");
    }

    fn body(before: &str, after: &str) {
        let file = |body: &str| format!("---\nname: x\ndescription: d\n---\n{body}");
        let expected = (before != after).then(|| file(after));
        assert_eq!(translated(&file(before)), expected, "{before}");
    }

    #[test]
    fn names_in_allowed_tools_are_replaced_in_every_style() {
        fields("allowed-tools: Bash Read\n", "allowed-tools: shell_exec file_read\n");
        fields(
            "allowed-tools: Bash(git:*), Read,Write\n",
            "allowed-tools: shell_exec(git:*), file_read,file_write\n",
        );
        fields("allowed-tools: [Task, \"WebFetch\"]\n", "allowed-tools: [delegate_agent, \"web_search\"]\n");
        fields(
            "allowed-tools:\n  - Bash(Read *)\n  - MyRead\n",
            "allowed-tools:\n  - shell_exec(Read *)\n  - MyRead\n",
        );
        fields(
            "allowed-tools:\n- Grep # Bash\n- Glob\ntags: Bash\n",
            "allowed-tools:\n- file_grep # Bash\n- file_glob\ntags: Bash\n",
        );
        fields("allowed-tools: NotebookEdit Edit-x\n", "allowed-tools: notebook_edit Edit-x\n");
    }

    #[test]
    fn other_fields_and_prose_are_unchanged() {
        assert_eq!(
            translated(
                "---\nname: x\ndescription: Bash\ntools: Bash\nmetadata:\n  allowed-tools: Bash\n---\nUse Bash.\n"
            ),
            None
        );
        assert_eq!(translated("No frontmatter; Bash.\n"), None);
    }

    #[test]
    fn a_code_span_is_replaced_when_it_is_a_name() {
        body(
            "Use `Bash` and ``Read``, ` Write `.\n",
            "Use `shell_exec` and ``file_read``, ` file_write `.\n",
        );
        body("Run `Bash(git status)`.", "Run `shell_exec(git status)`.");
        body(
            "`Read the file` `Bash x` `MyBash` `bash` `Read(s) it` `Read)` `Read(`",
            "`Read the file` `Bash x` `MyBash` `bash` `Read(s) it` `Read)` `Read(`",
        );
        body(
            "| `Task` | Bash |\n- `Glob`\n> `Grep`\n",
            "| `delegate_agent` | Bash |\n- `file_glob`\n> `file_grep`\n",
        );
    }

    #[test]
    fn text_between_two_spans_is_prose() {
        body("`a` Bash `b`", "`a` Bash `b`");
        body("`a\nb` Bash `c`", "`a\nb` Bash `c`");
        body("- a`\n- b `c` Bash `d`", "- a`\n- b `c` Bash `d`");
        body("\\`Bash\\` `", "\\`Bash\\` `");
        body("``a ` b`` Bash", "``a ` b`` Bash");
    }

    #[test]
    fn a_block_is_replaced_when_it_is_a_name() {
        body("```\nBash\n```\n", "```\nshell_exec\n```\n");
        body("~~~ text\nTask(do: x)\n~~~\n", "~~~ text\ndelegate_agent(do: x)\n~~~\n");
        body("```sh\nBash\nRead\n```\n", "```sh\nBash\nRead\n```\n");
        body("```\n`Bash`\n```\n`Bash`", "```\n`Bash`\n```\n`shell_exec`");
        body("````\n```\nBash\n```\n````\n", "````\n```\nBash\n```\n````\n");
        body("```\nBash\n", "```\nBash\n");
    }

    #[test]
    fn unknown_tools_are_reported() {
        let text =
            "---\nname: x\ndescription: d\nallowed-tools: Bash(git:*) shell_exec mcp__a__b Foo(x)\n---\nb";
        let document = Document::load(text.as_bytes(), "x", "SKILL.md").unwrap();
        assert_eq!(missing(&document.manifest).into_iter().collect::<Vec<_>>(), ["Foo", "mcp__a__b"]);
    }
}
