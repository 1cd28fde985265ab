//! Prints the results of commands, as human-readable text or as JSON: listings, files, matches, notes and errors.

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

use super::hints::{Invocation, render};
use super::progress::{self, Transfer};
use super::terminal::{
    ACCENT, BAD, DIM, DIRECTORY, GOOD, MATCH_PATH, exact_size, plural, print, print_json, print_json_lines,
    print_raw, size, to_json, visible,
};
use skillfs::Hint;

/// The output of a command: its format, and what it leaves out.
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

    /// Reports the result of a change: a JSON document, or a note.
    pub(super) fn done(&self, result: &impl Serialize, note: &str) -> Result<()> {
        self.conclude(result, note).map_err(|error| {
            // A caller that mistook this for a failure of the change would repeat it.
            let message = format!("the change was made, but {}", error.message());
            Error::new(ErrorKind::Conflict, message).with_hint("do not repeat it").with_source(error)
        })
    }

    /// Prints the result of a command: a JSON document, or a note.
    pub(super) fn conclude(&self, result: &impl Serialize, note: &str) -> Result<()> {
        self.note(note);
        if self.json { print_json(result) } else { Ok(()) }
    }

    /// Reports that the output is not complete.
    pub(super) fn truncated(&self, note: &str) {
        match self.json {
            true => print_json_note(&json!({ "truncated": true })),
            false => self.note(note),
        }
    }

    /// Prints one JSON document, or text.
    pub(super) fn emit(&self, document: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
        if self.json { print_json(document) } else { print(&text()) }
    }

    /// Prints a list: one JSON document per line, or text.
    pub(super) fn emit_all(&self, documents: &[impl Serialize], text: impl FnOnce() -> String) -> Result<()> {
        if self.json { print_json_lines(documents) } else { print(&text()) }
    }

    /// Prints one JSON document, or the content of a file.
    pub(super) fn emit_content(&self, document: &impl Serialize, content: &str) -> Result<()> {
        if self.json { print_json(document) } else { self.content(content) }
    }

    /// Prints text that JSON output does not have.
    pub(super) fn text_only(&self, text: impl FnOnce() -> String) -> Result<()> {
        if self.json { Ok(()) } else { print(&text()) }
    }

    pub(super) fn grep(&self, found: &GrepResult, context: bool, max: u64) -> Result<()> {
        if self.json {
            print_json_lines(&found.lines)?;
        } else {
            let (path_style, line_style) =
                if self.terminal { (MATCH_PATH, GOOD) } else { (Style::new(), Style::new()) };
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
        self.note_omitted(found, max);
        Ok(())
    }

    /// Reports what a search left out.
    fn note_omitted(&self, found: &GrepResult, max: u64) {
        let GrepResult { truncated, binary, not_searched, .. } = found;
        if self.json {
            if *truncated || *binary > 0 || !not_searched.is_empty() {
                print_json_note(&Omitted { truncated: *truncated, binary: *binary, not_searched });
            }
            return;
        }
        if *binary > 0 {
            self.note(&format!("skipped {}", plural(*binary, "binary file", "binary files")));
        }
        for NotSearched { path, reason, .. } in not_searched {
            self.note(&format!("not searched: {path}: {reason}"));
        }
        if *truncated {
            self.note(match found.matches < max {
                true => "some files may have more matches; raise -m, or narrow the search",
                false => "there may be more matches; raise --max, or narrow the search",
            });
        }
        if found.lines.iter().any(|line| line.cut) {
            self.note("lines over 16 KiB were truncated");
        }
    }

    pub(super) fn entries(&self, entries: &[Entry], long: bool) -> Result<()> {
        self.emit_all(entries, || self.table(entries, long))
    }

    fn table(&self, entries: &[Entry], long: bool) -> String {
        let mut text = String::new();
        let sizes: Vec<String> =
            entries.iter().map(|entry| entry.size.map_or("-".to_owned(), size)).collect();
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
        rows.extend(entry.size.map(|bytes| ("size", exact_size(bytes))));
        rows.extend(entry.modified.map(|time| ("modified", format_time(time))));
        rows.extend(entry.etag.as_ref().map(|etag| ("etag", self.name(etag))));
        let row = |(name, value)| format!("{DIM}{name:<8}{DIM:#}  {value}\n");
        self.emit(entry, || rows.into_iter().map(row).collect())
    }

    pub(super) fn exists(&self, path: &VirtualPath, exists: bool) -> Result<()> {
        /// The keys and their order are part of the contract.
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
        self.note_window(file);
        Ok(())
    }

    pub(super) fn content(&self, text: &str) -> Result<()> {
        self.print_content(self.shown(text))
    }

    /// Content verbatim for a pipe, and escaped for a terminal.
    fn shown(&self, content: &str) -> String {
        if self.terminal { visible(content, true) } else { content.to_owned() }
    }

    /// Prints the result of `shown`. On a terminal, adds a missing final line break.
    fn print_content(&self, mut text: String) -> Result<()> {
        if !self.terminal {
            return print_raw(text.as_bytes());
        }
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        print(&text)
    }

    /// Reports which lines were printed, unless it was the entire file.
    fn note_window(&self, file: &TextFile) {
        let (first, last) = (file.offset.saturating_add(1), file.offset.saturating_add(file.lines));
        let of = file.total_lines.map_or(String::new(), |total| format!(" of {total}"));
        let lines = match file.lines {
            1 => format!("line {first}{of}"),
            _ => format!("lines {first} to {last}{of}"),
        };
        match (file.next_offset, file.total_lines) {
            (None, Some(total)) if file.lines == 0 && file.offset > 0 => {
                self.note(&format!("past the end: the file has {}", plural(total, "line", "lines")));
            }
            (Some(next), total) if file.lines > 0 => {
                let more = if total.is_none() { ", more follow" } else { "" };
                self.note(&format!("{lines}{more}; continue with --offset {next}"));
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

    /// Notes that the session has no mounts.
    pub(super) fn note_without_mounts(&self, backend: &S3Backend) {
        if backend.mounts().next().is_none() {
            let hint = Hint::OpenWith { mount: None, identities: vec!["user", "thread", "ticket"] };
            self.note(&format!("this session has no mounts; {}", render(&hint, &Invocation::default())));
        }
    }

    /// Reports keys that exist but have no path.
    pub(super) fn hidden(&self, hidden: u64) {
        if hidden > 0 && self.json {
            print_json_note(&json!({ "hidden": hidden }));
        }
        self.note_hidden(hidden);
    }

    /// Notes keys that exist but have no path. Silent with `--json`.
    pub(super) fn note_hidden(&self, hidden: u64) {
        if hidden > 0 {
            let keys = plural(
                hidden,
                "key is hidden: no path can name it",
                "keys are hidden: no path can name them",
            );
            self.note(&format!("{keys} (such as `a//b`)"));
        }
    }

    /// Prints a note to stderr. Silent with `--quiet` and `--json`.
    pub(super) fn note(&self, text: &str) {
        if !self.quiet && !self.json {
            // A note that cannot be printed is dropped.
            let _ = writeln!(anstream::stderr(), "{ACCENT}note{ACCENT:#}: {}", visible(text, false));
        }
    }

    /// A progress bar for counted work; shown on a terminal only.
    pub(super) fn progress(&self, what: &str) -> ProgressBar {
        progress::counted(self.shows_progress(), what)
    }

    /// A progress bar for file transfers; shown on a terminal only.
    pub(super) fn transfer(&self) -> Transfer {
        Transfer::new(self.shows_progress())
    }

    fn shows_progress(&self) -> bool {
        !self.quiet && !self.json && io::stderr().is_terminal()
    }

    /// Prints an error and returns its exit code.
    pub(super) fn failure(&self, error: &Error) -> ExitCode {
        if let Some(broken) = std::error::Error::source(error).and_then(|e| e.downcast_ref::<io::Error>())
            && broken.kind() == io::ErrorKind::BrokenPipe
        {
            // The reader closed the pipe, as in `skillfs ls | head`.
            return ExitCode::SUCCESS;
        }
        print_failure(self.json, &error.into());
        ExitCode::from(exit_code(error.kind()))
    }

    fn path(&self, entry: &Entry) -> String {
        let name = self.name(entry.path.as_str());
        if entry.is_directory() { format!("{DIRECTORY}{name}{DIRECTORY:#}") } else { name }
    }

    /// A name that a tenant chose, escaped for a terminal.
    pub(super) fn name(&self, name: &str) -> String {
        if self.terminal { visible(name, false) } else { name.to_owned() }
    }
}

/// Prints credentials, including the secrets, in the format of `credential_process`.
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

/// What a search left out.
#[derive(Serialize)]
struct Omitted<'a> {
    truncated: bool,
    binary: u64,
    not_searched: &'a [NotSearched],
}

/// The JSON document of an error.
#[derive(Serialize)]
pub(super) struct ErrorDocument<'a> {
    kind: ErrorKind,
    message: &'a str,
    path: Option<&'a str>,
    hint: Option<Cow<'a, str>>,
}

impl<'a> From<&'a Error> for ErrorDocument<'a> {
    fn from(error: &'a Error) -> Self {
        let hint = error.hint().map(|hint| render(hint, &Invocation::default()));
        Self { kind: error.kind(), message: error.message(), path: error.path(), hint }
    }
}

/// Prints a JSON document to stderr, for what the document on stdout does not have. Dropped if it cannot be printed.
fn print_json_note(document: &impl Serialize) {
    let _ = writeln!(anstream::stderr(), "{}", to_json(document).unwrap_or_default());
}

fn print_failure(json: bool, error: &ErrorDocument<'_>) {
    if json {
        return print_json_note(&BTreeMap::from([("error", error)]));
    }
    let hint =
        error.hint.as_deref().map(|hint| format!("\n{ACCENT}hint{ACCENT:#}: {}", visible(hint, false)));
    let message = visible(error.message, false);
    // There is no other place to report to.
    let _ = writeln!(anstream::stderr(), "{BAD}error{BAD:#}: {message}{}", hint.unwrap_or_default());
}

/// Prints a usage error, the help or the version, and returns the exit code.
pub(super) fn usage(error: &clap::Error) -> ExitCode {
    let wants_json = std::env::args_os().any(|arg| arg == "--json");
    if !error.use_stderr() || !wants_json {
        let _ = error.print();
        return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
    }
    let text = error.render().to_string();
    // clap prints the error, then tips, then the usage.
    let head = text.split("Usage:").next().unwrap_or_default();
    let (mut message, mut hint) = (Vec::new(), Vec::new());
    for line in head.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.strip_prefix("tip: ") {
            Some(tip) => hint.push(tip.to_owned()),
            None if line.starts_with("For more information") => {}
            None => message.push(line.strip_prefix("error: ").unwrap_or(line)),
        }
    }
    let usage = text.split("Usage: ").nth(1).and_then(|usage| usage.lines().next());
    hint.push(usage.map_or("see `skillfs --help`".to_owned(), |usage| format!("usage: {}", usage.trim())));
    let (message, hint) = (message.join(" "), hint.join("; "));
    let described = ErrorDocument {
        kind: ErrorKind::InvalidInput,
        message: &message,
        path: None,
        hint: Some(hint.into()),
    };
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
        // `Internal`, and kinds that a newer library adds.
        _ => 70,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_stable() {
        let codes = [3, 5, 5, 4, 4, 2, 2, 2, 2, 2, 6, 6, 6, 2, 4, 7, 7, 7, 6, 70];
        for (kind, code) in ErrorKind::ALL.iter().copied().zip(codes) {
            assert_eq!(exit_code(kind), code);
        }
    }
}
