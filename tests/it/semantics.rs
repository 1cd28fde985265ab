//! Checks that every promise of `SEMANTICS.md` is backed by tests.
//!
//! `promises.toml` maps the id of each promise to the names of its tests.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::rust_files;

fn read(file: &str) -> String {
    std::fs::read_to_string(crate::support::root().join(file)).unwrap()
}

/// The names of all functions in test code: files under a `tests` folder, and the test modules of other files.
fn test_names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for folder in ["src", "tests", "crates"] {
        if !crate::support::root().join(folder).is_dir() {
            continue;
        }
        for (file, text) in rust_files(folder) {
            let is_test_file = format!("{folder}/{file}").split('/').any(|part| part == "tests")
                || text.contains("#![cfg(test)]");
            let tests = match is_test_file {
                true => Some(text.as_str()),
                false => text.split_once("mod tests {").map(|(_, tests)| tests),
            };
            names.extend(tests.into_iter().flat_map(functions));
        }
    }
    names
}

fn functions(code: &str) -> impl Iterator<Item = String> {
    code.lines().filter_map(|line| {
        let line = line.trim_start();
        let rest = line.strip_prefix("fn ").or_else(|| line.strip_prefix("async fn "))?;
        Some(rest.split(['(', '<']).next()?.to_owned())
    })
}

/// A section name, a dot and a number, such as `read.4`.
fn is_id(text: &str) -> bool {
    text.split_once('.').is_some_and(|(section, number)| {
        !section.is_empty()
            && section.bytes().all(|b| b.is_ascii_lowercase())
            && !number.is_empty()
            && !number.starts_with('0')
            && number.bytes().all(|b| b.is_ascii_digit())
    })
}

/// The ids in `SEMANTICS.md`, in order. Every list item there is a promise and starts with its id in backticks.
fn promises(document: &str) -> Result<Vec<String>, String> {
    let mut ids = Vec::new();
    for item in document.lines().filter_map(|line| line.strip_prefix("- ")) {
        let id = item.strip_prefix('`').and_then(|rest| rest.split_once("` ")).map(|(id, _)| id);
        let id = id.filter(|id| is_id(id)).ok_or_else(|| format!("a promise has no id: {item}"))?;
        ids.push(id.to_owned());
    }
    Ok(ids)
}

/// Parses `promises.toml`: `id = [`, one quoted test name per line, `]`, with blank lines and comments in between.
fn parse_table(text: &str) -> Result<BTreeMap<String, Vec<String>>, String> {
    let mut table = BTreeMap::new();
    let mut open: Option<(String, Vec<String>)> = None;
    for (number, line) in text.lines().enumerate() {
        let error = |what: &str| Err(format!("promises.toml, line {}: {what}: {line}", number + 1));
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match &mut open {
            None => match line.strip_suffix(" = [").filter(|id| is_id(id)) {
                Some(id) => open = Some((id.to_owned(), Vec::new())),
                None => return error("expected `id = [`"),
            },
            Some(_) if line == "]" => {
                let (id, tests) = open.take().unwrap();
                if table.insert(id, tests).is_some() {
                    return error("the id of this entry occurs twice");
                }
            }
            Some((_, tests)) => match line.strip_prefix('"').and_then(|rest| rest.strip_suffix("\",")) {
                Some(test) => tests.push(test.to_owned()),
                None => return error("expected `\"test_name\",`"),
            },
        }
    }
    match open {
        Some((id, _)) => Err(format!("promises.toml: the list of {id} has no end")),
        None => Ok(table),
    }
}

/// Everything that is wrong with a document, its table and the tests that exist.
fn problems(document: &str, table: &str, known: &BTreeSet<String>) -> Vec<String> {
    let (ids, table) = match (promises(document), parse_table(table)) {
        (Ok(ids), Ok(table)) => (ids, table),
        (ids, table) => return ids.err().into_iter().chain(table.err()).collect(),
    };
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for id in &ids {
        if !seen.insert(id) {
            found.push(format!("SEMANTICS.md has the id {id} twice"));
        }
        if table.get(id).is_none_or(Vec::is_empty) {
            found.push(format!("promises.toml has no test for {id}"));
        }
    }
    for (id, tests) in &table {
        if !seen.contains(id) {
            found.push(format!("promises.toml has {id}, which is not in SEMANTICS.md"));
        }
        for test in tests.iter().filter(|test| !known.contains(*test)) {
            found.push(format!("{id} names the test `{test}`, which does not exist"));
        }
    }
    found
}

#[test]
fn every_promise_has_tests() {
    let (document, table) = (read("SEMANTICS.md"), read("tests/it/promises.toml"));
    assert_eq!(problems(&document, &table, &test_names()), Vec::<String>::new());
    assert!(promises(&document).unwrap().len() > 190);
}

#[test]
fn problems_are_found() {
    let known = BTreeSet::from(["one".to_owned(), "two".to_owned()]);
    let table = "# Comment\n\nread.1 = [\n    \"one\",\n    \"two\",\n]\n";
    let cases = [
        ("- `read.1` A.\n  More.\n\nText.\n", table, ""),
        ("- A.\n", table, "has no id"),
        ("- `Read.1` A.\n", table, "has no id"),
        ("- `read.01` A.\n", table, "has no id"),
        ("- `read.1` A.\n- `read.1` B.\n", table, "twice"),
        ("- `read.1` A.\n- `read.2` B.\n", table, "no test for read.2"),
        ("", table, "not in SEMANTICS.md"),
        ("- `read.1` A.\n", "read.1 = [\n]\n", "no test for read.1"),
        ("- `read.1` A.\n", "read.1 = [\n\"three\",\n]\n", "`three`, which does not exist"),
        ("- `read.1` A.\n", "read.1 = [\n\"one\",\n]\nread.1 = [\n\"two\",\n]\n", "twice"),
        ("- `read.1` A.\n", "read.1 = [\n\"one\",\n", "has no end"),
        ("- `read.1` A.\n", "read.1 = [\"one\"]\n", "expected `id = [`"),
        ("- `read.1` A.\n", "read.1 = [\none\n]\n", "expected `\"test_name\",`"),
    ];
    for (document, table, expected) in cases {
        let found = problems(document, table, &known);
        match expected {
            "" => assert_eq!(found, Vec::<String>::new()),
            _ => assert!(found.len() == 1 && found[0].contains(expected), "{document:?}: {found:?}"),
        }
    }
}

#[test]
fn test_names_are_those_of_test_code() {
    let names = test_names();
    assert!(names.contains("test_names_are_those_of_test_code"));
    assert!(!names.contains("no_such_test") && !names.contains("parse"));
}
