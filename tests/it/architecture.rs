//! The modules of ARCHITECTURE.md, and who may know whom.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::support::rust_files;

/// From the ground up: a module may use those before it, and itself.
const LAYERS: &[&str] = &[
    "options", "error", "ambient", "path", "id", "index", "mount", "policy", "text", "pattern", "search",
    "entry", "manifest", "config", "cache", "embedded", "store", "backend", "skill", "source", "admin",
    "doctor",
];

/// What only one module may name.
const SECRETS: &[(&str, &[&str])] = &[
    ("aws_sdk_s3", &["store"]),
    ("aws_config", &["store"]),
    ("aws_sdk_sts", &["store"]),
    ("redb", &["embedded"]),
    ("s3s::", &["embedded", "store"]),
    ("serde_yaml", &["manifest"]),
    ("ObjectKey(", &["mount"]),
    ("WritableKey(", &["mount"]),
    ("globset", &["pattern"]),
    ("grep_searcher", &["search"]),
    ("grep_regex", &["search"]),
    ("flate2", &["index", "source"]),
    ("tar::", &["source"]),
    ("zip::", &["source"]),
];

/// The most lines of a file, without its tests. What is longer has more than one topic.
const MAX_LINES: usize = 600;

/// The code of all files. What tests do is their own affair.
fn sources() -> Vec<(String, String)> {
    let files: Vec<_> =
        rust_files("src").into_iter().map(|(name, text)| (name, without_tests(&text))).collect();
    assert!(files.len() > 15);
    files
}

/// A file without its modules that are `#[cfg(test)]`; nothing where all of it is.
fn without_tests(text: &str) -> String {
    if text.lines().any(|line| line == "#![cfg(test)]") {
        return String::new();
    }
    let mut code = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let module = |next: &&str| next.starts_with("mod ") && next.ends_with('{');
        if line == "#[cfg(test)]" && lines.next_if(module).is_some() {
            // It ends with the first brace at the margin: rustfmt indents what is inside.
            lines.by_ref().find(|line| *line == "}");
            continue;
        }
        code.push_str(line);
        code.push('\n');
    }
    code
}

/// `store/body.rs` is in `store`.
fn module(file: &str) -> &str {
    file.split('/').next().unwrap().trim_end_matches(".rs")
}

fn without_comments(code: &str) -> String {
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Modules that a file names: `crate::module`, `crate::{module, …}` and `super::module`, comments left out.
fn uses(code: &str) -> BTreeSet<String> {
    let code = without_comments(code);
    let mut names = BTreeSet::new();
    for start in ["crate::", "super::"] {
        for rest in code.split(start).skip(1) {
            // A group may hold groups: every name before the statement's end counts.
            let end = if rest.starts_with('{') { rest.find(';').unwrap_or(rest.len()) } else { 0 };
            let words: Vec<&str> = if end > 0 {
                rest[..end].split(|c: char| !(c.is_alphanumeric() || c == '_')).collect()
            } else {
                vec![rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap()]
            };
            names.extend(words.into_iter().filter(|name| LAYERS.contains(name)).map(str::to_owned));
        }
    }
    names
}

fn violations(files: &[(String, String)]) -> Vec<String> {
    let level = |module: &str| LAYERS.iter().position(|layer| *layer == module);
    let mut found = Vec::new();
    for (file, code) in files {
        if matches!(file.as_str(), "lib.rs" | "main.rs") {
            continue;
        }
        let Some(own) = level(module(file)) else {
            found.push(format!("{file}: no such module in LAYERS"));
            continue;
        };
        for other in uses(code) {
            if level(&other) > Some(own) {
                found.push(format!("{file}: uses `{other}`, which lies above `{}`", LAYERS[own]));
            }
        }
        for (secret, modules) in SECRETS {
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            if !modules.contains(&module(file)) && lines.into_iter().any(|line| line.contains(secret)) {
                found.push(format!("{file}: names `{secret}`, which belongs to {modules:?}"));
            }
        }
    }
    found
}

#[test]
fn modules_use_only_modules_below_them() {
    assert_eq!(violations(&sources()), Vec::<String>::new());
}

#[test]
fn a_use_of_a_higher_module_is_found() {
    let file = |name: &str, code: &str| vec![(name.to_owned(), code.to_owned())];
    assert_eq!(violations(&file("path.rs", "use crate::store::Store;")).len(), 1);
    assert_eq!(violations(&file("store/body.rs", "fn f() { crate::backend::x() }")).len(), 1);
    assert_eq!(violations(&file("backend/list.rs", "use aws_sdk_s3::Client;")).len(), 1);
    assert_eq!(violations(&file("backend.rs", "let key = ObjectKey(text);")).len(), 1);
    assert_eq!(violations(&file("novel.rs", "")).len(), 1);
    assert_eq!(violations(&file("path.rs", "use crate::{error::Error, store::Store};")).len(), 1);
    assert_eq!(violations(&file("path.rs", "use super::store::Store;")).len(), 1);
    assert_eq!(violations(&file("backend.rs", "use s3s::dto::ETag;")).len(), 1);
    assert!(violations(&file("backend.rs", "use crate::store::Store; // crate::doctor")).len() <= 1);
    assert!(violations(&file("doctor/rights.rs", "use crate::backend::SkillFs;")).is_empty());
}

#[test]
fn no_file_is_too_long() {
    for (file, code) in sources() {
        let lines = code.lines().count();
        assert!(lines <= MAX_LINES, "src/{file} has {lines} lines; split it by topic");
    }
}

#[test]
fn tests_are_no_part_of_a_file() {
    let file = "fn a() {}\n\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n\nfn c() {}\n";
    assert_eq!(without_tests(file), "fn a() {}\n\n\nfn c() {}\n");
    assert_eq!(without_tests("//! Tests.\n\n#![cfg(test)]\n\nfn a() {}\n"), "");
    let declared = "#[cfg(test)]\nmod model;\n#[cfg(test)]\nfn a() {}\n";
    assert_eq!(without_tests(declared), declared);
}

/// The names behind `super::` or `crate::module::`: one, or those of a group, as paths.
fn named(rest: &str) -> Vec<&str> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let Some(group) = rest.strip_prefix('{') else {
        return vec![rest.split(|c| !is_path(c)).next().unwrap()];
    };
    let (mut names, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.push(group[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
        if c == '}' && start == at + 1 {
            break;
        }
    }
    names
}

/// What a file imports of its module, by the first name of each path. `depth` is how many modules of the module it lies
/// in: 0 for the files of the module itself.
fn imports(module: &str, depth: usize, code: &str) -> BTreeSet<String> {
    let code = without_comments(code);
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("super::").filter(|(at, _)| !code[..*at].ends_with("super::")) {
        let (mut rest, mut up) = (&code[at..], 0);
        while let Some(above) = rest.strip_prefix("super::") {
            (rest, up) = (above, up + 1);
        }
        if up == depth + 1 {
            paths.extend(named(rest));
        }
    }
    let own = format!("crate::{}::", module.replace('/', "::"));
    paths.extend(code.split(&own).skip(1).flat_map(named));
    paths.into_iter().map(|path| path.split("::").next().unwrap().to_owned()).collect()
}

/// Names that a module re-exports, as in `pub use self::file::Name`, and the file that each comes from.
fn reexports(module: &str, sources: &[(String, String)]) -> BTreeMap<String, String> {
    let own = sources.iter().find(|(file, _)| *file == format!("{module}.rs"));
    let code = own.map(|(_, code)| without_comments(code)).unwrap_or_default();
    let mut found = BTreeMap::new();
    for rest in code.split("use self::").skip(1) {
        let (file, rest) = rest.split_once("::").unwrap();
        for path in named(rest) {
            let name = path.rsplit([':', ' ']).next().unwrap();
            found.insert(name.to_owned(), file.to_owned());
        }
    }
    found
}

/// Modules with several files: `source`, and `source/archive` in it.
fn modules(sources: &[(String, String)]) -> BTreeSet<String> {
    sources.iter().filter_map(|(file, _)| Some(file.rsplit_once('/')?.0.to_owned())).collect()
}

/// A circle of imports between the files of a module. What lies in a folder of a file is part of that file.
fn circle(module: &str, sources: &[(String, String)]) -> Option<Vec<String>> {
    let reexports = reexports(module, sources);
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, code) in sources {
        let Some(inside) = file.strip_prefix(module).and_then(|rest| rest.strip_prefix('/')) else {
            continue;
        };
        let name = inside.split('/').next().unwrap().trim_end_matches(".rs");
        let names = imports(module, inside.matches('/').count(), code);
        let names = names.into_iter().map(|name| reexports.get(&name).cloned().unwrap_or(name));
        all.entry(name.to_owned()).or_default().extend(names);
    }
    let files: BTreeSet<String> = all.keys().cloned().collect();
    let imports: BTreeMap<&String, BTreeSet<String>> =
        all.iter().map(|(name, names)| (name, names & &files)).collect();
    fn walk(
        at: &String,
        imports: &BTreeMap<&String, BTreeSet<String>>,
        path: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> bool {
        if path.contains(at) {
            path.push(at.clone());
            return true;
        }
        if !done.insert(at.clone()) {
            return false;
        }
        path.push(at.clone());
        for next in imports[at].iter().filter(|next| *next != at) {
            if walk(next, imports, path, done) {
                return true;
            }
        }
        path.pop();
        false
    }
    let mut done = BTreeSet::new();
    imports.keys().find_map(|name| {
        let mut path = Vec::new();
        walk(name, &imports, &mut path, &mut done).then_some(path)
    })
}

#[test]
fn files_of_a_module_do_not_import_each_other_in_a_cycle() {
    let sources = sources();
    let modules = modules(&sources);
    assert!(modules.len() > 8, "{modules:?}");
    for module in &modules {
        assert_eq!(circle(module, &sources), None, "in `{module}`");
    }
}

#[test]
fn a_circle_would_be_found() {
    let file = |name: &str, code: &str| (name.to_owned(), code.to_owned());
    let bad = [
        file("a/x.rs", "use super::y::Y;"),
        file("a/y.rs", "use super::{z, w};"),
        file("a/z.rs", "super::x::f()"),
    ];
    assert!(circle("a", &bad).is_some());
    assert_eq!(circle("a", &bad[..2]), None);
    let absolute = [file("a/x.rs", "use crate::a::y::Y;"), file("a/y.rs", "use crate::a::{x, Z};")];
    assert!(circle("a", &absolute).is_some());
    assert_eq!(circle("b", &absolute), None);
    let nested = [file("a/x/z.rs", "use super::super::y::Y;"), file("a/y.rs", "use super::x;")];
    assert!(circle("a", &nested).is_some());
    let below = [file("a/x/z.rs", "use super::y::Y;"), file("a/y.rs", "use super::x;")];
    assert_eq!(circle("a", &below), None, "that is `a/x/y.rs`");
    let hidden = [
        file("a.rs", "pub use self::x::{X, Other as Alias};\npub use self::y::Y;"),
        file("a/x.rs", "use super::{Y, b::{c, d}};"),
        file("a/y.rs", "fn f(x: super::Alias) {}"),
    ];
    assert!(circle("a", &hidden).is_some());
    assert_eq!(circle("a", &hidden[..2]), None);
}

/// Newcomers search for a type by its name: it is defined in one file.
#[test]
fn every_type_has_a_name_of_its_own() {
    let mut defined: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, code) in sources() {
        for line in code.lines().filter(|line| !line.starts_with(' ')) {
            let words: Vec<&str> = line.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
            let keyword = words.iter().position(|word| matches!(*word, "struct" | "enum" | "trait" | "type"));
            let Some(name) = keyword.and_then(|at| words.get(at + 1)) else { continue };
            // `Result` is an alias that modules shorten for themselves.
            if name.starts_with(char::is_uppercase) && *name != "Result" && !line.starts_with("//") {
                let files = defined.entry((*name).to_owned()).or_default();
                if !files.contains(&file) {
                    files.push(file.clone());
                }
            }
        }
    }
    assert!(defined.len() > 300);
    let several: Vec<_> = defined.iter().filter(|(_, files)| files.len() > 1).collect();
    assert!(several.is_empty(), "{several:#?}");
}

/// The guide says where changes are made: every "`Name` in `file.rs`" of it is true.
#[test]
fn what_the_guide_names_is_where_it_says() {
    let root = crate::support::root();
    let guide = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let mut checked = 0;
    for (at, _) in guide.match_indices("` in `") {
        let name = guide[..at].rsplit('`').next().unwrap();
        let file = guide[at + 6..].split('`').next().unwrap();
        if Path::new(file).extension().is_none_or(|extension| extension != "rs")
            || file.contains('{')
            || name.contains(['.', '/', ' '])
        {
            continue;
        }
        let text = ["src", ".", "crates/skillfs-cli/src"]
            .iter()
            .find_map(|folder| std::fs::read_to_string(root.join(folder).join(file)).ok());
        let text = text.unwrap_or_else(|| panic!("ARCHITECTURE.md names `{file}`, which does not exist"));
        let last = name.rsplit("::").next().unwrap();
        assert!(text.contains(last), "ARCHITECTURE.md says that `{name}` is in `{file}`");
        checked += 1;
    }
    assert!(checked > 30, "{checked}");
}

/// The library compiles and is tested without the files of the integration tests.
#[test]
fn no_source_file_includes_a_file_of_the_tests() {
    let from_tests = |text: &str| {
        let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.any(|line| (line.contains("#[path") || line.contains("include")) && line.contains("../tests/"))
    };
    for (file, text) in rust_files("src") {
        assert!(!from_tests(&text), "src/{file} includes a file of tests/");
    }
    assert!(from_tests("#[path = \"../tests/it/x.rs\"]"));
    assert!(from_tests("const X: &str = include_str!(\"../tests/it/x.json\");"));
}

#[test]
fn every_room_has_its_rule_in_the_book() {
    let book = std::fs::read_to_string(crate::support::root().join("ARCHITECTURE.md")).unwrap();
    for layer in LAYERS {
        assert!(book.contains(&format!("| `{layer}` |")), "ARCHITECTURE.md has no row for `{layer}`");
    }
    for manifest in ["Cargo.toml", "crates/skillfs-cli/Cargo.toml"] {
        let manifest = std::fs::read_to_string(crate::support::root().join(manifest)).unwrap();
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap().split("[lints").next().unwrap();
        for line in dependencies.lines() {
            if let Some((name, _)) = line.split_once(" = ") {
                assert!(book.contains(&format!("`{name}`")), "ARCHITECTURE.md does not mention `{name}`");
            }
        }
    }
}

/// The string literals of a file, without escapes resolved; comments and characters are left out.
fn literals(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find(['"', '/', '\'']) {
        let (before, here) = rest.split_at(at);
        let end = if here.starts_with("//") {
            here.find('\n').unwrap_or(here.len())
        } else if let Some(character) = here.strip_prefix('\'') {
            // A lifetime has no second quote where a character has it.
            let is_escape = character.starts_with('\\');
            let length = character.chars().next().map_or(0, char::len_utf8);
            match (is_escape, character[length..].starts_with('\'')) {
                (true, _) => 2 + character[1..].find('\'').map_or(0, |at| at.max(1) + 1),
                (false, true) => length + 2,
                (false, false) => 1,
            }
        } else if let Some(inside) = here.strip_prefix('"') {
            let hashes = before.len() - before.trim_end_matches('#').len();
            let raw = before[..before.len() - hashes].ends_with('r');
            let length = if raw {
                inside.find(&format!("\"{}", "#".repeat(hashes))).unwrap_or(0)
            } else {
                let mut escaped = false;
                let is_end = |(_, c): &(usize, char)| {
                    let ends = *c == '"' && !escaped;
                    escaped = *c == '\\' && !escaped;
                    ends
                };
                inside.char_indices().find(is_end).map_or(0, |(at, _)| at)
            };
            found.push(inside[..length].to_owned());
            length + 2
        } else {
            1
        };
        rest = &here[end..];
    }
    found
}

#[test]
fn literals_are_found() {
    let code = "fn f<'a>(c: char) { c == '\"'; c == '\\''; \"one \\\" two\"; r#\"a \"b\"\"#; } // \"no\"";
    assert_eq!(literals(code), ["one \\\" two", "a \"b\""]);
}

/// What belongs to the command line: its flags, its commands and its variables.
fn names_the_command_line(literal: &str) -> bool {
    let flag = literal.match_indices("--").any(|(at, _)| {
        let starts_word =
            literal[..at].chars().next_back().is_none_or(|c| c.is_whitespace() || "`(".contains(c));
        starts_word && literal[at + 2..].starts_with(|c: char| c.is_ascii_lowercase())
    });
    let command = ["`skillfs ", "skillfs admin", "`admin "].iter().any(|command| literal.contains(command));
    // A variable by itself is the name that the library reads.
    let variable = literal.contains("SKILLFS_") && literal.contains(' ');
    flag || command || variable
}

/// Programs and language models read what the library says. A hint is data; the command line adds its flags.
#[test]
fn the_library_names_no_flags_and_no_commands() {
    assert!(names_the_command_line("read less: `--limit N`"));
    assert!(names_the_command_line("an administrator runs `skillfs admin verify`"));
    assert!(names_the_command_line("set SKILLFS_BUCKET or a bucket"));
    assert!(
        !names_the_command_line("--")
            && !names_the_command_line("a -- b")
            && !names_the_command_line("---\n")
    );
    // Arguments of git, and how the names of directory buckets end.
    let is_other = |file: &str, literal: &str| file == "source/git.rs" || literal == "--x-s3";
    let mut found = Vec::new();
    for (file, code) in sources() {
        let literals = literals(&code).into_iter();
        let literals =
            literals.filter(|literal| names_the_command_line(literal) && !is_other(&file, literal));
        found.extend(literals.map(|literal| format!("src/{file}: {literal}")));
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// A new hint falls back to plain words on the command line; here it is noticed.
#[test]
fn the_command_line_has_words_for_every_hint() {
    let root = crate::support::root();
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let (hints, rendered) = (read("src/error/hint.rs"), read("crates/skillfs-cli/src/hints.rs"));
    let body = hints.split("pub enum Hint {").nth(1).unwrap().split("\n}").next().unwrap();
    let variants: Vec<&str> = body
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| line.starts_with(char::is_uppercase))
        .map(|line| line.split(|c: char| !c.is_alphanumeric()).next().unwrap())
        .collect();
    assert!(variants.len() > 30, "{variants:?}");
    for variant in variants {
        assert!(
            rendered.contains(&format!("Hint::{variant}")),
            "crates/skillfs-cli/src/hints.rs does not render `{variant}`"
        );
    }
}
