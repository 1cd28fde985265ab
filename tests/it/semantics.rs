//! SEMANTICS.md is a list of promises, and each names the tests that hold it to them.

use std::collections::BTreeSet;

use crate::support::rust_files;

fn test_names() -> BTreeSet<String> {
    let own = |text: String| match text.contains("#![cfg(test)]") {
        true => text,
        false => text.split_once("mod tests {").map(|(_, tests)| tests.to_owned()).unwrap_or_default(),
    };
    let unit = rust_files("src").into_iter().map(|(_, text)| own(text));
    let mut names = BTreeSet::new();
    for text in unit.chain(rust_files("tests").into_iter().map(|(_, text)| text)) {
        names.extend(text.lines().filter_map(|line| {
            let line = line.trim_start();
            let rest = line.strip_prefix("fn ").or_else(|| line.strip_prefix("async fn "))?;
            Some(rest.split('(').next()?.to_owned())
        }));
    }
    names
}

/// Promises are list items; each ends with its tests in brackets: `[test_one, test_two]`.
fn promises(book: &str) -> Vec<String> {
    let mut promises: Vec<String> = Vec::new();
    let mut inside = false;
    for line in book.lines() {
        if let Some(text) = line.strip_prefix("- ") {
            promises.push(text.to_owned());
            inside = true;
        } else if inside && line.starts_with("  ") {
            let last = promises.last_mut().unwrap();
            last.push(' ');
            last.push_str(line.trim());
        } else {
            inside = false;
        }
    }
    promises
}

fn tests_of(promise: &str) -> Vec<String> {
    let Some(inner) = promise.strip_suffix(']').and_then(|p| p.rsplit_once('[')) else { return Vec::new() };
    inner.1.split(',').map(|name| name.trim().trim_matches('`').to_owned()).collect()
}

#[test]
fn every_promise_has_its_tests() {
    let book = std::fs::read_to_string(crate::support::root().join("SEMANTICS.md")).unwrap();
    let known = test_names();
    let promises = promises(&book);
    assert!(promises.len() > 40, "only {} promises were found", promises.len());
    for promise in &promises {
        let tests = tests_of(promise);
        assert!(!tests.is_empty(), "no test is named for: {promise}");
        for test in tests {
            assert!(known.contains(&test), "there is no test `{test}`, named for: {promise}");
        }
    }
}

#[test]
fn a_promise_without_a_test_would_be_found() {
    assert!(tests_of("A promise.").is_empty());
    assert_eq!(tests_of("A promise [`one`, `two`]"), ["one", "two"]);
    assert_eq!(promises("- a\n  b [`c`]\n\ntext\n- d").len(), 2);
    assert!(!test_names().contains("no_such_test"));
}
