//! What a command shows: listings, files, matches, notes and failures, as text for people or as JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anstyle::Style;
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::json;
use skillfs::{
    Entry, Error, ErrorKind, GrepLine, GrepResult, NotSearched, Result, S3Backend, SessionCredentials,
    TextFile, Tree, VirtualPath, format_time,
};

use super::hints::{Here, render};
use super::progress::{self, Transfer};
use super::terminal::{
    ACCENT, BAD, DIM, DIRECTORY, FOUND_IN, GOOD, plural, print, print_json, print_json_lines, print_raw,
    to_json, visible,
};
use skillfs::Hint;

/// Where a command writes.
pub(super) struct Output {
    json: bool,
    quiet: bool,
    terminal: bool,
}

impl Output {
    pub(super) fn new(json: bool, quiet: bool) -> Self {
        Self { json, quiet, terminal: io::stdout().is_terminal() }
    }

    pub(super) fn is_json(&self) -> bool {
        self.json
    }

    /// What was done: a document for machines, a word for people.
    pub(super) fn done(&self, result: &impl Serialize, note: &str) -> Result<()> {
        match self.json {
            true => print_json(result).map_err(|error| {
                // Who takes this for a failure of the storage would do it again.
                let message = format!("the change was made, and {}", error.message());
                Error::new(ErrorKind::Conflict, message).with_hint("do not repeat it").with_source(error)
            }),
            false => {
                self.note(note);
                Ok(())
            }
        }
    }

    /// That there is more than was shown.
    pub(super) fn truncated(&self, note: &str) {
        match self.json {
            true => aside(&json!({ "truncated": true })),
            false => self.note(note),
        }
    }

    /// One document for machines, or a text for people.
    pub(super) fn emit(&self, document: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
        if self.json { print_json(document) } else { print(&text()) }
    }

    /// A list: one document a line for machines, or a text for people.
    pub(super) fn emit_all(&self, documents: &[impl Serialize], text: impl FnOnce() -> String) -> Result<()> {
        if self.json { print_json_lines(documents) } else { print(&text()) }
    }

    pub(super) fn grep(&self, found: &GrepResult, context: bool, max: u64) -> Result<()> {
        if self.json {
            print_json_lines(&found.lines)?;
        } else {
            let (path_style, line_style) =
                if self.terminal { (FOUND_IN, GOOD) } else { (Style::new(), Style::new()) };
            let mut text = String::new();
            let mut before: Option<&GrepLine> = None;
            for line in &found.lines {
                let next = |b: &GrepLine| b.path == line.path && b.line + 1 == line.line;
                if context && before.is_some_and(|before| !next(before)) {
                    text += "--\n";
                }
                let (path, mark) = (self.name(line.path.as_str()), if line.context { '-' } else { ':' });
                let (number, shown) = (line.line, self.shown(&line.text));
                text += &format!(
                    "{path_style}{path}{path_style:#}{mark}{line_style}{number}{line_style:#}{mark}{shown}\n"
                );
                before = Some(line);
            }
            self.print_content(text)?;
        }
        self.not_searched(found, max);
        Ok(())
    }

    /// What a search did not tell.
    fn not_searched(&self, found: &GrepResult, max: u64) {
        let GrepResult { truncated, binary, not_searched, .. } = found;
        if self.json {
            if *truncated || *binary > 0 || !not_searched.is_empty() {
                aside(&NotTold { truncated: *truncated, binary: *binary, not_searched });
            }
            return;
        }
        if *binary > 0 {
            let left = plural(*binary, "binary file was", "binary files were");
            self.note(&format!("{left} left out"));
        }
        for NotSearched { path, reason, .. } in not_searched {
            self.note(&format!("not searched: {path}: {reason}"));
        }
        if *truncated {
            self.note(match found.matches < max {
                true => "some files may have more matches; raise -m, or search for less",
                false => "there may be more matches; raise --max, or search for less",
            });
        }
        if found.lines.iter().any(|line| line.cut) {
            self.note("lines over 16 KiB were cut");
        }
    }

    pub(super) fn entries(&self, entries: &[Entry], long: bool) -> Result<()> {
        self.emit_all(entries, || self.table(entries, long))
    }

    fn table(&self, entries: &[Entry], long: bool) -> String {
        let mut text = String::new();
        let sizes: Vec<String> =
            entries.iter().map(|e| e.size.map_or("-".to_owned(), |s| s.to_string())).collect();
        let width = sizes.iter().map(String::len).max().unwrap_or(0);
        for (entry, size) in entries.iter().zip(&sizes) {
            if long {
                let kind = if entry.is_directory() { "directory" } else { "file" };
                let time = entry.modified.map_or("-".to_owned(), format_time);
                text += &format!("{kind:<9}  {size:>width$}  {time:<20}  ");
            }
            text += &self.path(entry);
            text.push('\n');
        }
        text
    }

    pub(super) fn entry(&self, entry: &Entry) -> Result<()> {
        let mut rows = vec![("path", self.name(entry.path.as_str()))];
        rows.push(("kind", if entry.is_directory() { "directory" } else { "file" }.to_owned()));
        rows.extend(entry.size.map(|size| ("size", format!("{size} bytes"))));
        rows.extend(entry.modified.map(|time| ("modified", format_time(time))));
        rows.extend(entry.etag.as_ref().map(|etag| ("etag", self.name(etag))));
        let row = |(name, value)| format!("{DIM}{name:<8}{DIM:#}  {value}\n");
        self.emit(entry, || rows.into_iter().map(row).collect())
    }

    pub(super) fn exists(&self, path: &VirtualPath, exists: bool) -> Result<()> {
        /// The keys of JSON are a promise, and so is their order.
        #[derive(Serialize)]
        struct Exists<'a> {
            path: &'a VirtualPath,
            exists: bool,
        }
        self.emit(&Exists { path, exists }, || format!("{exists}\n"))
    }

    pub(super) fn text(&self, file: &TextFile, number: bool) -> Result<()> {
        if self.json {
            return print_json(file);
        }
        let mut text = self.shown(&file.content);
        if number {
            let style = if self.terminal { DIM } else { Style::new() };
            let lines = text.split_inclusive('\n').zip(1u64..);
            text = lines
                .map(|(line, n)| format!("{style}{:>6}{style:#}  {line}", file.offset.saturating_add(n)))
                .collect();
        }
        self.print_content(text)?;
        self.where_it_is(file);
        Ok(())
    }

    pub(super) fn content(&self, text: &str) -> Result<()> {
        self.print_content(self.shown(text))
    }

    /// Content as it is in a pipe, and as it is safe on a terminal.
    fn shown(&self, content: &str) -> String {
        if self.terminal { visible(content, true) } else { content.to_owned() }
    }

    /// Prints what is `shown`. In a pipe content goes out as it is, whatever stands in it.
    fn print_content(&self, mut text: String) -> Result<()> {
        if !self.terminal {
            return print_raw(text.as_bytes());
        }
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        print(&text)
    }

    /// Which part of the file that was, unless it was all of it.
    fn where_it_is(&self, file: &TextFile) {
        let (first, last) = (file.offset.saturating_add(1), file.offset.saturating_add(file.lines));
        let of = file.total_lines.map_or(String::new(), |total| format!(" of {total}"));
        let lines = match file.lines {
            1 => format!("line {first}{of}"),
            _ => format!("lines {first} to {last}{of}"),
        };
        match (file.next_offset, file.total_lines) {
            (None, Some(total)) if file.lines == 0 && file.offset > 0 => {
                self.note(&format!("nothing there: the file has {}", plural(total, "line", "lines")));
            }
            (Some(next), total) if file.lines > 0 => {
                let more = if total.is_none() { ", and there are more" } else { "" };
                self.note(&format!("{lines}{more}; go on with --offset {next}"));
            }
            _ => {}
        }
    }

    pub(super) fn tree(&self, tree: &Tree) -> Result<()> {
        self.emit(tree, || {
            let mut text = self.path(&tree.entry) + "\n";
            self.branches(&tree.children, "", &mut text);
            let (directories, files) = tree.count();
            let directories = plural(directories, "directory", "directories");
            text + &format!("\n{directories}, {}\n", plural(files, "file", "files"))
        })
    }

    fn branches(&self, children: &[Tree], indent: &str, text: &mut String) {
        for (i, child) in children.iter().enumerate() {
            let (branch, below) =
                if i + 1 == children.len() { ("└── ", "    ") } else { ("├── ", "│   ") };
            let name = self.name(child.entry.name());
            let style = if child.entry.is_directory() { DIRECTORY } else { Style::new() };
            let slash = if child.entry.is_directory() { "/" } else { "" };
            *text += &format!("{DIM}{indent}{branch}{DIM:#}{style}{name}{style:#}{slash}\n");
            self.branches(&child.children, &format!("{indent}{below}"), text);
        }
    }

    /// That a session without mounts sees nothing.
    pub(super) fn mounts(&self, backend: &S3Backend) {
        if backend.mounts().next().is_none() {
            let hint = Hint::OpenWith { mount: None, identities: vec!["user", "thread", "ticket"] };
            self.note(&format!("this session has no mounts; {}", render(&hint, &Here::default())));
        }
    }

    /// A note about keys that exist and cannot be named.
    pub(super) fn hidden(&self, hidden: u64) {
        if hidden > 0 && self.json {
            aside(&json!({ "hidden": hidden }));
        } else if hidden > 0 {
            let keys = plural(
                hidden,
                "key is hidden: no path can name it",
                "keys are hidden: no path can name them",
            );
            self.note(&format!("{keys} (such as `a//b`)"));
        }
    }

    /// Talk: never data, never an error.
    pub(super) fn note(&self, text: &str) {
        if !self.quiet && !self.json {
            // Nothing is lost when nobody listens.
            let _ = writeln!(anstream::stderr(), "{ACCENT}note{ACCENT:#}: {}", visible(text, false));
        }
    }

    /// How far long work is; shown on a terminal only.
    pub(super) fn progress(&self, what: &str) -> ProgressBar {
        progress::counted(self.shows_progress(), what)
    }

    /// The same for files that are sent or read.
    pub(super) fn transfer(&self) -> Transfer {
        Transfer::new(self.shows_progress())
    }

    fn shows_progress(&self) -> bool {
        !self.quiet && !self.json && io::stderr().is_terminal()
    }

    /// Prints a failure, and tells the exit code that goes with it.
    pub(super) fn failure(&self, error: &Error) -> ExitCode {
        if let Some(broken) = std::error::Error::source(error).and_then(|e| e.downcast_ref::<io::Error>())
            && broken.kind() == io::ErrorKind::BrokenPipe
        {
            // Who reads has had enough: `skillfs ls | head`.
            return ExitCode::SUCCESS;
        }
        print_failure(self.json, &error.into());
        ExitCode::from(exit_code(error.kind()))
    }

    fn path(&self, entry: &Entry) -> String {
        let name = self.name(entry.path.as_str());
        if entry.is_directory() { format!("{DIRECTORY}{name}{DIRECTORY:#}") } else { name }
    }

    /// A tenant's name as it is safe to show.
    pub(super) fn name(&self, name: &str) -> String {
        if self.terminal { visible(name, false) } else { name.to_owned() }
    }
}

/// Credentials as the tools of AWS take them from a `credential_process`: secrets, on purpose.
pub(super) fn credentials(credentials: &SessionCredentials) -> Result<()> {
    #[derive(Serialize)]
    #[serde(rename_all = "PascalCase")]
    struct Process<'c> {
        version: u8,
        access_key_id: &'c str,
        secret_access_key: &'c str,
        session_token: &'c str,
        expiration: String,
    }
    let SessionCredentials { access_key_id, secret_access_key, session_token, expires, .. } = credentials;
    let expiration = format_time(*expires);
    print_json(&Process { version: 1, access_key_id, secret_access_key, session_token, expiration })
}

#[derive(Serialize)]
struct NotTold<'a> {
    truncated: bool,
    binary: u64,
    not_searched: &'a [NotSearched],
}

#[derive(Serialize)]
pub(super) struct Described<'a> {
    kind: ErrorKind,
    message: &'a str,
    path: Option<&'a str>,
    hint: Option<Cow<'a, str>>,
}

impl<'a> From<&'a Error> for Described<'a> {
    fn from(error: &'a Error) -> Self {
        let hint = error.hint().map(|hint| render(hint, &Here::default()));
        Self { kind: error.kind(), message: error.message(), path: error.path(), hint }
    }
}

/// What a document cannot say: on stderr, for machines. Nothing is lost when nobody listens.
fn aside(document: &impl Serialize) {
    let _ = writeln!(anstream::stderr(), "{}", to_json(document).unwrap_or_default());
}

fn print_failure(json: bool, error: &Described<'_>) {
    if json {
        return aside(&BTreeMap::from([("error", error)]));
    }
    let hint =
        error.hint.as_deref().map(|hint| format!("\n{ACCENT}hint{ACCENT:#}: {}", visible(hint, false)));
    let message = visible(error.message, false);
    // Nothing more can be done when nobody listens.
    let _ = writeln!(anstream::stderr(), "{BAD}error{BAD:#}: {message}{}", hint.unwrap_or_default());
}

/// Arguments that are wrong, or a call for help.
pub(super) fn usage(error: &clap::Error) -> ExitCode {
    let wants_json = std::env::args_os().any(|arg| arg == "--json");
    if !error.use_stderr() || !wants_json {
        let _ = error.print();
        return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
    }
    let text = error.render().to_string();
    // What is wrong, then perhaps tips, then the usage.
    let said = text.split("Usage:").next().unwrap_or_default();
    let (mut message, mut hint) = (Vec::new(), Vec::new());
    for line in said.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.strip_prefix("tip: ") {
            Some(tip) => hint.push(tip.to_owned()),
            None if line.starts_with("For more information") => {}
            None => message.push(line.strip_prefix("error: ").unwrap_or(line)),
        }
    }
    let usage = text.split("Usage: ").nth(1).and_then(|usage| usage.lines().next());
    hint.push(usage.map_or("see `skillfs --help`".to_owned(), |usage| format!("usage: {}", usage.trim())));
    let (message, hint) = (message.join(" "), hint.join("; "));
    let described =
        Described { kind: ErrorKind::InvalidInput, message: &message, path: None, hint: Some(hint.into()) };
    print_failure(true, &described);
    ExitCode::from(2)
}

fn exit_code(kind: ErrorKind) -> u8 {
    use ErrorKind::*;
    match kind {
        InvalidPath | InvalidId | InvalidInput | IsDirectory | NotDirectory | Ambiguous => 2,
        NotFound => 3,
        ReadOnly | Denied | QuotaExceeded => 4,
        Conflict | AlreadyExists => 5,
        BinaryFile | TooLarge | InvalidSkill | Corrupt => 6,
        Unavailable | Throttled | Timeout => 7,
        // A kind that this version of the command line does not know.
        _ => 70,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_the_contract() {
        let codes = [3, 5, 5, 4, 4, 2, 2, 2, 2, 2, 6, 6, 6, 2, 4, 7, 7, 7, 6, 70];
        for (kind, code) in ErrorKind::ALL.iter().copied().zip(codes) {
            assert_eq!(exit_code(kind), code);
        }
    }
}
