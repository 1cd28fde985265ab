//! Validation of skills in local folders, before they are uploaded.

use std::path::{Path, PathBuf};

use crate::manifest::{Diagnostic, Document, Severity, skill_file, skill_file_rank, validate};

/// Deeper folders are not searched.
const MAX_DEPTH: usize = 16;
/// A larger `SKILL.md` is not read.
const MAX_FILE_BYTES: u64 = 10 * 1024 * 1024;

/// The result of checking one skill folder.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalSkill {
    /// The folder.
    pub path: PathBuf,
    /// Violations of the specification, in the words of skills-ref. Empty if the skill is valid.
    pub problems: Vec<String>,
    /// The loaded document, or why loading fails.
    pub loaded: Result<Document, Vec<Diagnostic>>,
}

/// Checks the skill in a folder, or else all skills below it.
///
/// Blocks on file I/O: call it from a blocking thread.
#[must_use]
pub fn check_folder(folder: &Path) -> Vec<LocalSkill> {
    let failed = |problem: String| {
        let file = folder.display().to_string();
        let said = Diagnostic::new(Severity::Error, "no-skill", file, problem.as_str());
        vec![LocalSkill { path: folder.to_owned(), problems: vec![problem], loaded: Err(vec![said]) }]
    };
    if !folder.exists() {
        return failed(format!("Path does not exist: {}", folder.display()));
    }
    if !folder.is_dir() {
        return failed(format!("Not a directory: {}", folder.display()));
    }
    let mut found = Vec::new();
    find(folder, 0, &mut found);
    found.sort();
    if found.is_empty() {
        return failed("Missing required file: SKILL.md".to_owned());
    }
    found.into_iter().map(|(folder, file)| check(folder, &file)).collect()
}

/// Collects folders with a `SKILL.md`. Folders inside a skill belong to it.
fn find(folder: &Path, depth: usize, found: &mut Vec<(PathBuf, PathBuf)>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let (mut skill_files, mut folders) = (Vec::new(), Vec::new());
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        match entry.file_type() {
            // Symbolic links to folders are not followed: they may lead anywhere, including in
            // circles.
            Ok(kind) if kind.is_dir() && !name.starts_with('.') => folders.push(entry.path()),
            Ok(_) if skill_file_rank(&name).is_some() && entry.path().is_file() => {
                skill_files.push(name);
            }
            _ => {}
        }
    }
    match skill_file(skill_files.iter().map(String::as_str)) {
        Some(name) => found.push((folder.to_owned(), folder.join(name))),
        None if depth < MAX_DEPTH => folders.iter().for_each(|folder| find(folder, depth + 1, found)),
        None => {}
    }
}

fn check(folder: PathBuf, file: &Path) -> LocalSkill {
    let name = file.display().to_string();
    let unreadable = |message: String| {
        let problem = format!("SKILL.md cannot be read: {message}");
        (vec![problem], Err(vec![Diagnostic::new(Severity::Error, "unreadable", name.as_str(), message)]))
    };
    let content = match file.metadata() {
        Ok(meta) if meta.len() > MAX_FILE_BYTES => {
            Err(format!("it has {} bytes; at most {MAX_FILE_BYTES} are read", meta.len()))
        }
        _ => std::fs::read(file).map_err(|error| error.to_string()),
    };
    let (problems, loaded) = content.map_or_else(unreadable, |content| {
        // `.` has no file name.
        let full = match folder.file_name() {
            Some(_) => folder.clone(),
            None => folder.canonicalize().unwrap_or_else(|_| folder.clone()),
        };
        let last = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        judge(&content, &last(file), &last(&full), &name)
    });
    LocalSkill { path: folder, problems, loaded }
}

/// Checks a `SKILL.md` against the specification and loads it. `name` is its file name, `shown` the
/// name for diagnostics.
pub(crate) fn judge(
    content: &[u8],
    name: &str,
    directory: &str,
    shown: &str,
) -> (Vec<String>, Result<Document, Vec<Diagnostic>>) {
    let problems = match name {
        "SKILL.md" | "skill.md" => validate(content, directory),
        _ => vec!["Missing required file: SKILL.md".to_owned()],
    };
    (problems, Document::load(content, directory, shown))
}
