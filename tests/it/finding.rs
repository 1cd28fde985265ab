//! `glob` and `grep`: results, omissions and their reasons, order, and costs.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt;
use skillfs::embedded::Embedded;
use skillfs::{Error, ErrorKind, Glob, GlobResult, Grep, GrepResult, LibraryId, S3Backend, Session};

use crate::support::wire::{Reply, Request, Wire};
use crate::support::{Bucket, Seeded, latin1, on_every_server, session, utf16};

on_every_server!(
    globs_find_what_the_table_says,
    a_root_must_be_there_and_may_be_a_file,
    a_directory_next_to_a_file_with_its_name_can_be_a_root,
    without_a_root_the_search_starts_in_the_workspace,
    a_search_from_the_root_covers_all_mounts,
    layers_are_searched_as_one_tree,
    a_limit_of_files_says_whether_there_are_more,
    files_of_others_are_never_found,
    an_invalid_pattern_is_an_error,
    lines_are_found_literally_or_by_expression,
    globs_and_roots_limit_the_search,
    lines_are_found_in_all_encodings_and_binaries_are_counted,
    grep_reads_as_read_reads,
    long_files_are_searched_while_streaming,
    an_endless_line_is_not_searched_and_said,
    context_stops_at_borders_and_is_never_repeated,
    limits_of_matches_are_exact_and_always_the_same,
    no_context_is_reported_for_a_match_past_the_limit,
    an_invalid_query_is_an_error,
);

/// Keys below `/workspace`. Folder markers end with `/`.
const TREE: [&str; 22] = [
    ".env",
    ".git/config",
    ".git/hooks/x.md",
    "A.md",
    "[x].md",
    "a+b (1)/100%.md",
    "año nuevo/señor.md",
    "docs/",
    "docs/.draft/e.md",
    "docs/.hidden.md",
    "docs/a.md",
    "docs/b.txt",
    "docs/deep/c.md",
    "docs/deep/er/d.md",
    "docs-old/a.md",
    "docs.md",
    "empty/",
    "notes",
    "notes.md",
    "src/lib.rs",
    "src/main.rs",
    "🦀/🦀.rs",
];

/// Keys in the same place that no path can name.
const UNNAMEABLE: [&str; 4] = ["docs//x.md", "docs/./y.md", "docs/z\u{1}.md", "docs/full/"];

async fn grow_tree(b: &Bucket) {
    for key in TREE {
        b.put(&format!("threads/1/{key}"), if key.ends_with('/') { "" } else { "x" }).await;
    }
    for key in UNNAMEABLE {
        b.put(&format!("threads/1/{key}"), "x").await;
    }
}

fn paths(found: &GlobResult) -> Vec<&str> {
    found.entries.iter().map(|entry| entry.path.as_str()).collect()
}

async fn glob(s: &S3Backend, pattern: &str, root: Option<&str>) -> Vec<String> {
    let found = s.glob(at_root(pattern, root)).await.unwrap_or_else(|error| panic!("{pattern}: {error}"));
    assert!(!found.truncated);
    paths(&found).into_iter().map(str::to_owned).collect()
}

/// Formats lines as `path:line:text`, with dashes for context lines.
fn lines(found: &GrepResult) -> Vec<String> {
    let line = |line: &skillfs::GrepLine| {
        let mark = if line.context { '-' } else { ':' };
        format!("{}{mark}{}{mark}{}", line.path, line.line, line.text)
    };
    found.lines.iter().map(line).collect()
}

fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind()
}

async fn globs_find_what_the_table_says(b: Bucket) {
    grow_tree(&b).await;
    let s = b.session();
    // The pattern, the root and the results; the latter two below `/workspace`.
    let table: &[(&str, &str, &[&str])] = &[
        // Names at any depth.
        (
            "*.md",
            "",
            &[
                "A.md",
                "[x].md",
                "a+b (1)/100%.md",
                "año nuevo/señor.md",
                "docs-old/a.md",
                "docs.md",
                "docs/a.md",
                "docs/deep/c.md",
                "docs/deep/er/d.md",
                "notes.md",
            ],
        ),
        ("a.md", "", &["docs-old/a.md", "docs/a.md"]),
        ("[A-Z].md", "", &["A.md"]),
        ("[ac].md", "docs", &["docs/a.md", "docs/deep/c.md"]),
        ("[!a].md", "docs", &["docs/deep/c.md", "docs/deep/er/d.md"]),
        ("?.rs", "", &["🦀/🦀.rs"]),
        ("se?or.md", "", &["año nuevo/señor.md"]),
        ("{lib,main}.rs", "", &["src/lib.rs", "src/main.rs"]),
        ("*.{rs,txt}", "", &["docs/b.txt", "src/lib.rs", "src/main.rs", "🦀/🦀.rs"]),
        ("100%.md", "", &["a+b (1)/100%.md"]),
        ("\\[x\\].md", "", &["[x].md"]),
        // Neither markers nor directories are files.
        ("empty", "", &[]),
        ("docs", "", &[]),
        ("full", "", &[]),
        ("notes", "", &["notes"]),
        // Paths relative to the root of the search.
        ("docs/*.md", "", &["docs/a.md"]),
        ("docs/**", "", &["docs/a.md", "docs/b.txt", "docs/deep/c.md", "docs/deep/er/d.md"]),
        ("docs/**/*.md", "", &["docs/a.md", "docs/deep/c.md", "docs/deep/er/d.md"]),
        ("**/deep/**", "", &["docs/deep/c.md", "docs/deep/er/d.md"]),
        ("docs/**/d.md", "", &["docs/deep/er/d.md"]),
        ("docs/*/*.md", "", &["docs/deep/c.md"]),
        ("docs*/a.md", "", &["docs-old/a.md", "docs/a.md"]),
        ("{docs,docs-old}/a.md", "", &["docs-old/a.md", "docs/a.md"]),
        ("docs/{a,deep/c}.md", "", &["docs/a.md", "docs/deep/c.md"]),
        ("./docs//a.md", "", &["docs/a.md"]),
        ("deep/*.md", "", &[]),
        ("deep/*.md", "docs", &["docs/deep/c.md"]),
        ("docs/a.md", "docs", &[]),
        ("*/*.md", "docs/deep", &["docs/deep/er/d.md"]),
        ("*.md", "docs/deep/er", &["docs/deep/er/d.md"]),
        // A leading slash anchors the pattern.
        ("/*.md", "", &["A.md", "[x].md", "docs.md", "notes.md"]),
        ("/a.md", "docs", &["docs/a.md"]),
        ("/c.md", "docs", &[]),
        // Names with a leading dot only match explicitly.
        (".*", "", &[".env", "docs/.hidden.md"]),
        (".env", "", &[".env"]),
        (".git/**", "", &[".git/config", ".git/hooks/x.md"]),
        ("*.md", ".git", &[".git/hooks/x.md"]),
        ("**/.draft/*", "", &["docs/.draft/e.md"]),
        ("docs/.*.md", "", &["docs/.hidden.md"]),
        ("{.env,notes}", "", &[".env", "notes"]),
        ("?env", "", &[]),
        // Keys that no path can name are not found, and cause no error.
        ("x.md", "", &[]),
        ("docs/**/y.md", "", &[]),
        ("z*", "", &[]),
        // Nothing matches.
        ("nothing/**", "", &[]),
        ("*.pdf", "", &[]),
        ("docs.md/*", "", &[]),
        ("*", "empty", &[]),
        (&format!("{}/x", "n".repeat(300)), "", &[]),
        (&format!("{}x", "long-name/".repeat(200)), "", &[]),
    ];
    for (pattern, root, expected) in table {
        let expected: Vec<String> = expected.iter().map(|path| format!("/workspace/{path}")).collect();
        let root = format!("/workspace/{root}");
        assert_eq!(glob(&s, pattern, Some(&root)).await, expected, "{pattern} in {root}");
        let mut streamed: Vec<_> = s
            .glob_stream(Glob::new(*pattern).root(&root))
            .map_ok(|e| e.path.to_string())
            .try_collect()
            .await
            .unwrap();
        streamed.sort();
        assert_eq!(streamed, expected, "{pattern} in {root}, as a stream");
    }
    let entry = &s.glob("A.md").await.unwrap().entries[0];
    assert_eq!(*entry, s.stat("/workspace/A.md").await.unwrap());
}

async fn a_root_must_be_there_and_may_be_a_file(b: Bucket) {
    grow_tree(&b).await;
    let s = b.session();
    for root in ["/workspace/none", "/workspace/none.md", "none", "/workspace/doc", "/elsewhere", "/ticket/x"]
    {
        for pattern in ["*", "docs/a.md", "/a/b/c"] {
            assert_eq!(
                kind(s.glob(Glob::new(pattern).root(root)).await),
                ErrorKind::NotFound,
                "{pattern} in {root}"
            );
        }
        let query = Grep::new("x").root(root);
        assert_eq!(kind(s.grep(&query).await), ErrorKind::NotFound, "{root}");
    }
    for root in ["/workspace/..", "/workspace/a\\b", "/workspace/%2e%2e/x"] {
        assert_eq!(kind(s.glob(Glob::new("*").root(root)).await), ErrorKind::InvalidPath, "{root}");
    }
    // `.md` is added for readers; where a search starts is named exactly.
    assert_eq!(kind(s.glob(Glob::new("*").root("/workspace/A")).await), ErrorKind::NotFound);
    // A mount is there, be it empty or not.
    assert!(glob(&s, "*", Some("/ticket")).await.is_empty());
    assert!(s.grep(&Grep::new("x").root("/ticket")).await.unwrap().lines.is_empty());
    // A file as the root is matched by its name.
    for (pattern, found) in [("*", true), ("*.md", true), ("a.md", true), ("/a.md", true), ("*.txt", false)] {
        let expected: &[&str] = if found { &["/workspace/docs/a.md"] } else { &[] };
        assert_eq!(glob(&s, pattern, Some("docs/a.md")).await, expected, "{pattern}");
    }
    let found = s.grep(&Grep::new("x").root("docs/a.md")).await.unwrap();
    assert_eq!((lines(&found), found.searched), (vec!["/workspace/docs/a.md:1:x".to_owned()], 1));
    // A file that is named may have a dot.
    let found = s.grep(&Grep::new("x").root(".env")).await.unwrap();
    assert_eq!(lines(&found), ["/workspace/.env:1:x"]);
}

async fn a_directory_next_to_a_file_with_its_name_can_be_a_root(b: Bucket) {
    grow_tree(&b).await;
    let s = b.session();
    // `docs.md` is next to it, and the pattern matches nothing.
    assert!(glob(&s, "nothing/*", Some("docs")).await.is_empty());
    b.put("threads/1/both", "x").await;
    b.put("threads/1/both/inner.md", "x").await;
    assert_eq!(glob(&s, "*", Some("both")).await, ["/workspace/both/inner.md"]);
    assert!(glob(&s, "nothing/*", Some("both")).await.is_empty());
}

async fn without_a_root_the_search_starts_in_the_workspace(b: Bucket) {
    b.put("threads/1/w.md", "x").await;
    b.put("tickets/k1/t.md", "x").await;
    b.put("u1/skills/s.md", "x").await;
    let s = b.session();
    assert_eq!(glob(&s, "*.md", None).await, ["/workspace/w.md"]);
    assert_eq!(glob(&s, "/ticket/*.md", None).await, ["/ticket/t.md"]);
    assert_eq!(glob(&s, "/**/*.md", None).await, ["/skills/s.md", "/ticket/t.md", "/workspace/w.md"]);
    assert_eq!(glob(&s, "/{ticket,workspace}/*", None).await, ["/ticket/t.md", "/workspace/w.md"]);
    assert!(glob(&s, "/*.md", None).await.is_empty());
    assert_eq!(kind(s.glob("/elsewhere/*").await), ErrorKind::NotFound);
    assert!(glob(&s, "workspace/*", None).await.is_empty());
    assert_eq!(lines(&s.grep(&Grep::new("x")).await.unwrap()), ["/workspace/w.md:1:x"]);
    let mut threadless = session("u1", "1", "k1");
    threadless.thread = None;
    let threadless = b.fs.session(&threadless);
    assert_eq!(glob(&threadless, "*.md", None).await, ["/skills/s.md", "/ticket/t.md"]);
    let found = threadless.grep(&Grep::new("x")).await.unwrap();
    assert_eq!(lines(&found), ["/skills/s.md:1:x", "/ticket/t.md:1:x"]);
    let nobody = b.fs.session(&Session::default());
    assert!(glob(&nobody, "*", None).await.is_empty());
    assert_eq!(nobody.grep(&Grep::new("x")).await.unwrap().searched, 0);
    assert_eq!(kind(nobody.glob(Glob::new("*").root("/workspace")).await), ErrorKind::NotFound);
}

async fn a_search_from_the_root_covers_all_mounts(b: Bucket) {
    for key in ["threads/1/a/x.md", "tickets/k1/a/x.md", "u1/skills/a/x.md", "u1/skills/b.md"] {
        b.put(key, "uno\ndos").await;
    }
    let s = b.session();
    assert_eq!(
        glob(&s, "*.md", Some("/")).await,
        ["/skills/a/x.md", "/skills/b.md", "/ticket/a/x.md", "/workspace/a/x.md"]
    );
    assert_eq!(glob(&s, "*/a/*", Some("/")).await, ["/skills/a/x.md", "/ticket/a/x.md", "/workspace/a/x.md"]);
    assert_eq!(glob(&s, "skills/*", Some("/")).await, ["/skills/b.md"]);
    assert_eq!(glob(&s, "workspace/**", Some("/")).await, ["/workspace/a/x.md"]);
    assert_eq!(kind(s.glob(Glob::new("elsewhere/**").root("/")).await), ErrorKind::NotFound);
    let query = Grep::new("dos").root("/");
    assert_eq!(
        lines(&s.grep(&query).await.unwrap()),
        ["/skills/a/x.md:2:dos", "/skills/b.md:2:dos", "/ticket/a/x.md:2:dos", "/workspace/a/x.md:2:dos"]
    );
}

async fn layers_are_searched_as_one_tree(b: Bucket) {
    for (key, content) in [
        ("u1/skills/a/SKILL.md", "mine x"),
        ("u1/skills/a/ref/y.md", "x"),
        ("u1/skills/plain.md", "x"),
        ("shared/acme/skills/a/SKILL.md", "hidden x"),
        ("shared/acme/skills/a/gone.md", "hidden x"),
        ("shared/acme/skills/b/SKILL.md", "theirs x"),
        ("shared/acme/skills/b/ref/", ""),
        ("shared/other/skills/c/SKILL.md", "never x"),
    ] {
        b.put(key, content).await;
    }
    let libraries = vec![LibraryId::parse("acme").unwrap()];
    let s = b.fs.session(&session("u1", "1", "k1").libraries(libraries));
    let all = ["/skills/a/SKILL.md", "/skills/a/ref/y.md", "/skills/b/SKILL.md", "/skills/plain.md"];
    assert_eq!(glob(&s, "**", Some("/skills")).await, all);
    assert_eq!(glob(&s, "/skills/**", None).await, all);
    assert_eq!(glob(&s, "*.md", Some("/")).await, all);
    assert_eq!(glob(&s, "SKILL.md", Some("/skills/b")).await, ["/skills/b/SKILL.md"]);
    assert_eq!(glob(&s, "b/*", Some("/skills")).await, ["/skills/b/SKILL.md"]);
    assert_eq!(glob(&s, "*", Some("/skills/b/SKILL.md")).await, ["/skills/b/SKILL.md"]);
    assert_eq!(glob(&s, "*", Some("/skills/plain.md")).await, ["/skills/plain.md"]);
    assert!(glob(&s, "*", Some("/skills/b/ref")).await.is_empty());
    assert!(glob(&s, "nothing/*", Some("/skills/a")).await.is_empty());
    for root in ["/skills/c", "/skills/a/gone.md", "/skills/b/none", "/skills/plain"] {
        assert_eq!(kind(s.glob(Glob::new("*").root(root)).await), ErrorKind::NotFound, "{root}");
    }
    let found = s.grep(&Grep::new("x").root("/skills")).await.unwrap();
    assert_eq!(
        lines(&found),
        [
            "/skills/a/SKILL.md:1:mine x",
            "/skills/a/ref/y.md:1:x",
            "/skills/b/SKILL.md:1:theirs x",
            "/skills/plain.md:1:x"
        ]
    );
    let query = Grep::new("x").root("/skills/b/SKILL.md");
    assert_eq!(lines(&s.grep(&query).await.unwrap()), ["/skills/b/SKILL.md:1:theirs x"]);
}

async fn a_limit_of_files_says_whether_there_are_more(b: Bucket) {
    for i in 0..12 {
        b.put(&format!("threads/1/d{}/{i:02}.md", i % 3), "x").await;
        b.put(&format!("threads/1/d{}/{i:02}.txt", i % 3), "x").await;
    }
    let s = b.session();
    let all = glob(&s, "*.md", None).await;
    assert_eq!(all.len(), 12);
    for limit in [0, 1, 5, 11, 12, 13, usize::MAX] {
        let found = s.glob(Glob::new("*.md").max_files(limit)).await.unwrap();
        assert_eq!(paths(&found), all[..limit.min(12)], "the first {limit}");
        assert_eq!(found.truncated, limit < 12, "{limit}");
    }
    let none = s.glob(Glob::new("*.pdf").max_files(0)).await.unwrap();
    assert!(!none.truncated);
}

async fn files_of_others_are_never_found(b: Bucket) {
    b.put("threads/1/mine.md", "secret").await;
    for key in [
        "threads/10/a.md",
        "threads/1.md",
        "threads/1x/a.md",
        "threads/2/a.md",
        "tickets/k10/a.md",
        "tickets/k2/a.md",
        "u2/skills/a.md",
        "u10/skills/a.md",
        "u1/a.md",
        "u1/skills2/a.md",
        "shared/acme/skills/a.md",
        "a.md",
    ] {
        b.put(key, "secret").await;
    }
    let s = b.session();
    for pattern in ["**", "*", "*.md", "**/*.md", "/**", "{workspace/mine,a}.md", "*/*", "u?/**", "[a-z]*/**"]
    {
        let found = glob(&s, pattern, Some("/")).await;
        assert!(found.iter().all(|path| path == "/workspace/mine.md"), "{pattern}: {found:?}");
    }
    for pattern in ["threads/**", "tickets/*/a.md", "u2/skills/*", "shared/**", "Workspace/*"] {
        assert_eq!(kind(s.glob(Glob::new(pattern).root("/")).await), ErrorKind::NotFound, "{pattern}");
    }
    let found = s.grep(&Grep::new("secret").root("/")).await.unwrap();
    assert_eq!((lines(&found), found.searched), (vec!["/workspace/mine.md:1:secret".to_owned()], 1));
    for pattern in ["../2/*", "/workspace/../../2/*", "{..,x}/*", "%2e%2e/*", "\\.\\./*"] {
        assert_eq!(kind(s.glob(pattern).await), ErrorKind::InvalidPath, "{pattern}");
        let query = Grep::new("secret").glob(pattern);
        assert_eq!(kind(s.grep(&query).await), ErrorKind::InvalidPath, "{pattern}");
    }
}

async fn an_invalid_pattern_is_an_error(b: Bucket) {
    let s = b.session();
    let before = b.fs.requests();
    for pattern in ["", "/", ".", "./.", "{a,b", "a}", "[a", "docs/", "{docs/,a}", "a[", "[z-a]"] {
        assert_eq!(kind(s.glob(pattern).await), ErrorKind::InvalidInput, "{pattern}");
        let query = Grep::new("x").glob(pattern);
        assert_eq!(kind(s.grep(&query).await), ErrorKind::InvalidInput, "{pattern}");
    }
    // Each of its 1,024 alternatives would have a thousand segments to compile.
    let vast = format!("{}{}x", "{a,b}".repeat(10), "/a*".repeat(1_300));
    let error = s.glob(&vast).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.message().chars().all(|c| !c.is_control()) && error.hint().is_some(), "{error}");
    assert_eq!(b.fs.requests(), before, "nothing was asked of the storage");
}

async fn lines_are_found_literally_or_by_expression(b: Bucket) {
    b.put("threads/1/a.txt", "uno a.c\nabc\r\n\nA.C fin\nun ñandú\nfin").await;
    b.put("threads/1/empty.txt", "").await;
    let s = b.session();
    let literal = |pattern: &str| Grep::new(pattern);
    let regex = |pattern: &str| Grep::new(pattern).regex(true);
    let any_case = |query: Grep| query.ignore_case(true);
    for (query, expected) in [
        (literal("a.c"), vec![1]),
        (regex("a.c"), vec![1, 2]),
        (any_case(literal("a.c")), vec![1, 4]),
        (any_case(regex("a.c")), vec![1, 2, 4]),
        (any_case(literal("ÑANDÚ")), vec![5]),
        (literal("fin"), vec![4, 6]),
        (literal(""), vec![1, 2, 3, 4, 5, 6]),
        (literal("nada"), vec![]),
        // `^` and `$` match at every line.
        (regex("^abc"), vec![2]),
        (regex("fin$"), vec![4, 6]),
        (regex("^fin$"), vec![6]),
        (regex("^$"), vec![3]),
        (regex("^un"), vec![1, 5]),
        (regex(r"^\w+$"), vec![6]),
        (regex(r"\bA\b"), vec![4]),
        (regex("ñ|x"), vec![5]),
    ] {
        let found = s.grep(&query).await.unwrap();
        let numbers: Vec<u64> = found.lines.iter().map(|line| line.line).collect();
        assert_eq!(numbers, expected, "{query:?}");
        assert_eq!((found.matches, found.searched, found.binary), (expected.len() as u64, 2, 0));
        assert!(!found.truncated && found.not_searched.is_empty());
    }
    assert_eq!(s.grep(&literal("fin")).await.unwrap().lines[0].text, "A.C fin");
}

async fn globs_and_roots_limit_the_search(b: Bucket) {
    grow_tree(&b).await;
    let s = b.session();
    let found = async |glob: Option<&str>, root: Option<&str>| -> Vec<String> {
        let query = {
            let mut made = Grep::new("x");
            made.glob = glob.map(str::to_owned);
            made.root = root.map(str::to_owned);
            made
        };
        s.grep(&query).await.unwrap().lines.iter().map(|line| line.path.to_string()).collect()
    };
    // Without a glob, all files are searched, including names with a leading dot, in byte order of their
    // paths.
    let mut all: Vec<String> =
        TREE.iter().filter(|key| !key.ends_with('/')).map(|key| format!("/workspace/{key}")).collect();
    all.sort();
    assert_eq!(found(None, None).await, all);
    assert_eq!(found(None, Some("/")).await, all);
    assert_eq!(found(Some("*.rs"), None).await, glob(&s, "*.rs", None).await);
    assert_eq!(found(Some("docs/**/*.md"), None).await, glob(&s, "docs/**/*.md", None).await);
    assert_eq!(found(Some("/a.md"), Some("docs")).await, ["/workspace/docs/a.md"]);
    assert_eq!(found(Some("/src/*"), Some("/workspace")).await, glob(&s, "src/*", None).await);
    assert_eq!(found(None, Some("src")).await, glob(&s, "src/*", None).await);
}

async fn lines_are_found_in_all_encodings_and_binaries_are_counted(b: Bucket) {
    let text = "el año\r\nla señora Muñoz pagará en Cádiz\r\n¿sí? — no\r\n".replace('—', "-");
    for (name, bytes) in [
        ("be.txt", utf16(&text, u16::to_be_bytes)),
        ("bom.txt", format!("\u{feff}{text}").into_bytes()),
        ("cp1252.txt", latin1(&text)),
        ("le.txt", utf16(&text, u16::to_le_bytes)),
        ("utf8.txt", text.clone().into_bytes()),
        ("nul.txt", format!("{text}\0").into_bytes()),
        ("paper.pdf", format!("%PDF-1.7\n{text}").into_bytes()),
        ("image.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR se\xf1ora".to_vec()),
    ] {
        b.put(&format!("threads/1/{name}"), bytes).await;
    }
    let s = b.session();
    for (query, number) in [
        (Grep::new("señora Muñoz"), 2),
        (Grep::new("CÁDIZ").ignore_case(true), 2),
        // No byte order mark stands before the first line.
        (Grep::new("^el año").regex(true), 1),
    ] {
        let found = s.grep(&query).await.unwrap();
        let names: Vec<_> = found.lines.iter().map(|line| (line.path.name().unwrap(), line.line)).collect();
        let expected = ["be.txt", "bom.txt", "cp1252.txt", "le.txt", "utf8.txt"].map(|name| (name, number));
        assert_eq!(names, expected, "{query:?}");
        assert_eq!((found.searched, found.binary, found.not_searched.len()), (5, 3, 0));
        assert!(found.lines.windows(2).all(|pair| pair[0].text == pair[1].text));
    }
}

/// Whatever the content, `grep` searches the text that `read` returns, and skips files that `read` refuses.
async fn grep_reads_as_read_reads(b: Bucket) {
    const HEAD: usize = 64 * 1024;
    let plain = |bytes: usize| {
        let mut text = "plain text\n".repeat(bytes / 11).into_bytes();
        text.resize(bytes, b'.');
        text
    };
    let with = |at: usize, bytes: &[u8], total: usize| {
        let mut all = plain(at);
        all.extend_from_slice(bytes);
        all.extend(plain(total - at));
        all
    };
    let legacy = latin1("ñandú en España y la señora Muñoz, año 1998\n");
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for total in [100_000, 400_000] {
        for at in [0, 1, 100, HEAD - 2, HEAD - 1, HEAD, HEAD + 1, 90_000] {
            files.push((format!("legacy-{total}-{at}"), with(at, &legacy, total)));
            let text = "ñandú 🦀 en España\n".as_bytes();
            files.push((format!("utf8-{total}-{at}"), with(at, text, total)));
            files.push((format!("nul-{total}-{at}"), with(at, b"\0", total)));
        }
        let long = "línea de ñandú 🦀\n".repeat(total / 20);
        files.push((format!("le-{total}"), utf16(&long, u16::to_le_bytes)));
        files.push((format!("be-{total}"), utf16(&long, u16::to_be_bytes)));
        files.push((format!("cp1252-{total}"), latin1(&"línea de ñandú\r\n".repeat(total / 16))));
        files.push((format!("lone-{total}"), vec![0xff; 50]));
    }
    files.push(("exactly".into(), with(256 * 1024 - legacy.len(), &legacy, 256 * 1024 - legacy.len())));
    for (name, bytes) in &files {
        b.put(&format!("threads/1/{name}"), bytes).await;
    }
    let s = b.session();
    let found = s.grep(&Grep::new("ñandú").max_matches(u64::MAX)).await.unwrap();
    assert!(!found.truncated && found.not_searched.is_empty());
    let (mut text, mut binary) = (0, 0);
    for (name, _) in &files {
        let got: Vec<_> =
            found.lines.iter().filter(|l| l.path.name() == Some(name)).map(|l| (l.line, &*l.text)).collect();
        match s.read(&**name).await {
            Ok(read) => {
                text += 1;
                let expected = (1..).zip(read.content.split('\n')).filter(|(_, line)| line.contains("ñandú"));
                assert!(got == expected.collect::<Vec<_>>(), "{name}: {} as {}", got.len(), read.encoding);
            }
            Err(error) => {
                binary += 1;
                assert_eq!(error.kind(), ErrorKind::BinaryFile, "{name}");
                assert!(got.is_empty(), "{name}");
            }
        }
    }
    assert_eq!((found.searched, found.binary), (text, binary));
    assert_eq!(binary, 16);
}

async fn long_files_are_searched_while_streaming(b: Bucket) {
    // A match crosses every boundary of 8 KiB, and therefore every possible read boundary.
    const NEEDLE: &str = "agüja de oro";
    let mut content = format!("{NEEDLE}, la primera\n");
    for border in 1..3 * 128 {
        let target = border * 8_192 - 6;
        while content.len() + 80 < target {
            content.push_str("relleno y más relleno\n");
        }
        content.extend(std::iter::repeat_n('.', target - content.len()));
        content.push_str(NEEDLE);
        content.push('\n');
    }
    content.push_str("fin sin salto, agüja de oro");
    b.put("threads/1/long.txt", &content).await;
    b.put("threads/1/short.txt", NEEDLE).await;
    // Text at first, and binary later.
    let mut late = content.clone().into_bytes();
    late.extend_from_slice(b"\n\0\n");
    b.put("threads/1/late.bin", late).await;
    let s = b.session();
    let found = s.grep(&Grep::new(NEEDLE)).await.unwrap();
    let long: Vec<(u64, &str)> = found
        .lines
        .iter()
        .filter(|line| line.path.name() == Some("long.txt"))
        .map(|line| (line.line, line.text.as_str()))
        .collect();
    let expected: Vec<(u64, &str)> =
        (1..).zip(content.lines()).filter(|(_, line)| line.contains(NEEDLE)).collect();
    assert_eq!(expected.len(), 385);
    assert!(long == expected);
    assert_eq!((found.matches, found.searched, found.binary), (386, 2, 1));
    // No lines of the binary file are reported, and context agrees too.
    assert!(found.lines.iter().all(|line| line.path.name() != Some("late.bin")));
    let around = s.grep(&Grep::new(NEEDLE).context(1).root("long.txt")).await.unwrap();
    let all: Vec<&str> = content.lines().collect();
    assert!(around.lines.iter().all(|line| line.text == all[line.line as usize - 1]));
    assert!(around.lines.windows(2).all(|pair| pair[0].line < pair[1].line));
    assert_eq!(around.lines.iter().filter(|line| !line.context).count(), 385);
    // Content after a match past the limit must not affect the result, however fast it arrives.
    for nul in [200_000, 300_000, 400_000, 600_000] {
        let mut near = content.clone().into_bytes();
        near[nul] = 0;
        b.put("threads/1/near.bin", near).await;
        let query = Grep::new(NEEDLE).max_per_file(2).root("near.bin");
        for _ in 0..5 {
            let found = s.grep(&query).await.unwrap();
            assert_eq!((found.matches, found.truncated, found.binary), (2, true, 0), "{nul}");
        }
    }
}

async fn an_endless_line_is_not_searched_and_said(b: Bucket) {
    b.put("threads/1/a.txt", "oro\n").await;
    b.put("threads/1/endless.txt", vec![b'x'; 20 << 20]).await;
    b.put("threads/1/long.txt", format!("{}oro\nfin oro\n", "é".repeat(2 << 20))).await;
    b.put("threads/1/z.txt", "oro\n").await;
    let found = b.session().grep(&Grep::new("oro")).await.unwrap();
    let seen: Vec<_> = found.lines.iter().map(|l| (l.path.name().unwrap(), l.line, l.cut)).collect();
    // A line of 4 MiB is searched and shown truncated.
    assert_eq!(
        seen,
        [("a.txt", 1, false), ("long.txt", 1, true), ("long.txt", 2, false), ("z.txt", 1, false)]
    );
    assert!(found.lines[1].text.len() <= 16 * 1024 && found.lines[1].text.chars().all(|c| c == 'é'));
    assert_eq!((found.searched, found.binary, found.not_searched.len()), (3, 0, 1));
    assert_eq!(found.not_searched[0].path.as_str(), "/workspace/endless.txt");
    assert!(found.not_searched[0].reason.contains("too long"), "{}", found.not_searched[0].reason);
    assert!(!found.truncated);
}

async fn context_stops_at_borders_and_is_never_repeated(b: Bucket) {
    b.put("threads/1/a.txt", "x\n2\n3\n4\n5\nx").await;
    b.put("threads/1/b.txt", "1\nx\n3\nx\n5\n6\n7\n8\nx\n10\n").await;
    b.put("threads/1/c.txt", "1\r\nx\r\n").await;
    let s = b.session();
    let around = |context| Grep::new("x").context(context);
    let numbers = |found: &GrepResult, name: &str| -> Vec<i64> {
        let of = found.lines.iter().filter(|line| line.path.name() == Some(name));
        // Context lines are negative here.
        of.map(|line| if line.context { -(line.line as i64) } else { line.line as i64 }).collect()
    };
    for (context, a, bs, c) in [
        (0, vec![1, 6], vec![2, 4, 9], vec![2]),
        (1, vec![1, -2, -5, 6], vec![-1, 2, -3, 4, -5, -8, 9, -10], vec![-1, 2]),
        (2, vec![1, -2, -3, -4, -5, 6], vec![-1, 2, -3, 4, -5, -6, -7, -8, 9, -10], vec![-1, 2]),
        (9, vec![1, -2, -3, -4, -5, 6], vec![-1, 2, -3, 4, -5, -6, -7, -8, 9, -10], vec![-1, 2]),
    ] {
        let found = s.grep(&around(context)).await.unwrap();
        assert_eq!(numbers(&found, "a.txt"), a, "{context}");
        assert_eq!(numbers(&found, "b.txt"), bs, "{context}");
        assert_eq!(numbers(&found, "c.txt"), c, "{context}");
        assert_eq!((found.matches, found.truncated), (6, false));
    }
    let found = s.grep(&around(2).max_per_file(1)).await.unwrap();
    assert_eq!(numbers(&found, "a.txt"), [1, -2, -3]);
    assert_eq!(numbers(&found, "b.txt"), [-1, 2, -3]);
    assert_eq!((found.matches, found.truncated), (3, true));
}

async fn limits_of_matches_are_exact_and_always_the_same(b: Bucket) {
    for i in 0..40 {
        b.put(&format!("threads/1/{i:02}.txt"), "x\ny\n".repeat(i % 4)).await;
    }
    // Files have 0, 1, 2, 3, 0, … matches, sixty in total. Responses arrive in any order.
    let wire = Wire::start(Some(&b.endpoint), |_, n| {
        Reply::ForwardAfter(Duration::from_millis(((n * 7919) % 30) as u64))
    })
    .await;
    let s = b.through(&wire.endpoint).await.session(&session("u1", "1", "k1"));
    let limited = |max_matches, max_per_file| {
        let mut made = Grep::new("x").max_matches(max_matches);
        made.max_per_file = max_per_file;
        made
    };
    let all = lines(&s.grep(&limited(1_000, None)).await.unwrap());
    assert_eq!(all.len(), 60);
    for _ in 0..20 {
        let found = s.grep(&limited(3, None)).await.unwrap();
        assert_eq!(
            lines(&found),
            ["/workspace/01.txt:1:x", "/workspace/02.txt:1:x", "/workspace/02.txt:3:x"]
        );
        assert_eq!((found.matches, found.truncated), (3, true));
    }
    for most in [0, 1, 2, 3, 6, 7, 30, 59, 60, 61, u64::MAX] {
        let found = s.grep(&limited(most, None)).await.unwrap();
        let count = most.min(60);
        assert_eq!(lines(&found), all[..count as usize], "{most}");
        assert_eq!((found.matches, found.truncated), (count, most < 60), "{most}");
    }
    for (per_file, matches) in [(0, 0), (1, 30), (2, 50), (3, 60), (4, 60)] {
        let found = s.grep(&limited(1_000, Some(per_file))).await.unwrap();
        assert_eq!((found.matches, found.truncated), (matches, per_file < 3), "{per_file}");
        assert_eq!(found.searched, 40);
    }
}

async fn no_context_is_reported_for_a_match_past_the_limit(b: Bucket) {
    b.put("threads/1/a.txt", "1\nx\n3\n4\n5\n6\nx\n").await;
    b.put("threads/1/b.txt", "1\nx\n3\n").await;
    let s = b.session();
    for (max_matches, expected) in [
        (0, vec![]),
        (
            1,
            vec![
                "/workspace/a.txt-1-1",
                "/workspace/a.txt:2:x",
                "/workspace/a.txt-3-3",
                "/workspace/a.txt-4-4",
            ],
        ),
        (
            2,
            vec![
                "/workspace/a.txt-1-1",
                "/workspace/a.txt:2:x",
                "/workspace/a.txt-3-3",
                "/workspace/a.txt-4-4",
                "/workspace/a.txt-5-5",
                "/workspace/a.txt-6-6",
                "/workspace/a.txt:7:x",
            ],
        ),
    ] {
        let query = Grep::new("x").context(2).max_matches(max_matches);
        let found = s.grep(&query).await.unwrap();
        assert_eq!(lines(&found), expected, "{max_matches}");
        assert_eq!((found.matches, found.truncated), (max_matches, true));
    }
}

async fn an_invalid_query_is_an_error(b: Bucket) {
    b.put("threads/1/a.txt", "x").await;
    let s = b.session();
    let before = b.fs.requests();
    for query in [
        Grep::new("(").regex(true),
        Grep::new("a\\nb").regex(true),
        Grep::new("(?<=a)b").regex(true),
        Grep::new("(a{1000}){1000}").regex(true),
        Grep::new("a\nb"),
        Grep::new("x".repeat(20_000)),
        Grep::new("x").context(usize::MAX),
        Grep::new("x").glob("["),
    ] {
        let error = s.grep(&query).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{query:?}");
        assert!(error.hint().is_some() && error.message().len() < 1_000, "{error}");
        let streamed: Result<Vec<_>, _> = s.grep_stream(&query).try_collect().await;
        assert_eq!(kind(streamed), ErrorKind::InvalidInput, "{query:?}");
    }
    assert_eq!(b.fs.requests(), before, "nothing was asked of the storage");
}

/// A workspace in an embedded store, behind a proxy.
async fn behind_a_wire(
    files: impl IntoIterator<Item = (String, Bytes)>,
    decide: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static,
) -> (Wire, S3Backend) {
    let (_, wire, backend) = bucket_behind_a_wire(files, decide).await;
    (wire, backend)
}

async fn bucket_behind_a_wire(
    files: impl IntoIterator<Item = (String, Bytes)>,
    decide: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static,
) -> (Bucket, Wire, S3Backend) {
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    let files = files.into_iter().map(|(name, content)| (format!("threads/1/{name}"), content));
    embedded.put_all(&bucket.name, files).await.unwrap();
    let wire = Wire::start(Some(&bucket.endpoint), decide).await;
    let backend = bucket.through(&wire.endpoint).await.session(&session("u1", "1", "k1"));
    (bucket, wire, backend)
}

fn count(wire: &Wire) -> (usize, usize, usize) {
    let operations = wire.operations();
    let of = |name: &str| operations.iter().filter(|operation| *operation == name).count();
    (of("LIST"), of("GET"), operations.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_pattern_writes_out_is_all_that_is_listed() {
    let elsewhere = (0..3_000).map(|i| (format!("other/{i}.md"), Bytes::from_static(b"x")));
    let docs = (0..20).map(|i| (format!("docs/{}/{i}.md", i % 3), Bytes::from_static(b"x")));
    let (wire, s) = behind_a_wire(elsewhere.chain(docs), |_, _| Reply::Forward).await;
    for (pattern, root, files, lists) in [
        ("docs/**/*.md", None, 20, 1),
        ("/workspace/docs/**/*.md", None, 20, 1),
        ("docs/1/*.md", None, 7, 1),
        ("docs/{1,2}/*.md", None, 13, 1),
        ("*.md", Some("/workspace/docs"), 20, 1),
        ("none/**", None, 0, 1),
        ("**/docs/**", None, 20, 4),
    ] {
        assert_eq!(s.glob(at_root(pattern, root)).await.unwrap().entries.len(), files, "{pattern}");
        assert_eq!(count(&wire), (lists, 0, lists), "{pattern}");
    }
    // A search ends with its limit; a stream that is dropped ends, too.
    assert_eq!(s.glob(Glob::new("other/*").max_files(10)).await.unwrap().entries.len(), 10);
    assert_eq!(count(&wire), (1, 0, 1));
    drop(s.glob_stream("*"));
    assert_eq!(count(&wire), (0, 0, 0));
    // A root that is a file, and one that is not there, cost one look more.
    s.glob(Glob::new("*").root("docs/0/0.md")).await.unwrap();
    assert_eq!(wire.operations(), ["HEAD", "LIST"]);
    s.glob(Glob::new("*").root("docs/none")).await.unwrap_err();
    assert_eq!(wire.operations(), ["HEAD", "LIST"]);
    s.glob(Glob::new("none/*").root("docs")).await.unwrap();
    assert_eq!(wire.operations(), ["LIST", "LIST"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grep_costs_one_request_a_page_and_one_a_file() {
    let content =
        Bytes::from("many bytes of text that are the same on every line here\n".repeat(80)).slice(..4_096);
    let files = (0..2_000).map(|i| (format!("d{}/{i:04}.txt", i % 7), content.clone()));
    let after = |_: &Request, _| Reply::ForwardAfter(Duration::from_millis(60));
    let (bucket, wire, s) = bucket_behind_a_wire(files, after).await;
    let found = s.grep(&Grep::new("no such text")).await.unwrap();
    assert_eq!((found.searched, found.matches, found.truncated), (2_000, 0, false));
    assert_eq!(count(&wire), (2, 2_000, 2_002));
    let most = wire.max_concurrent();
    assert!((32..=96).contains(&most), "{most} at once");
    // Unchanged files are not read again.
    s.grep(&Grep::new("no such text")).await.unwrap();
    assert_eq!(count(&wire), (2, 0, 2));
    // A glob saves the files that it excludes; a limit ends the search early.
    let s = bucket.through(&wire.endpoint).await.session(&session("u1", "1", "k1"));
    s.grep(&Grep::new("no such text").glob("d0/*")).await.unwrap();
    assert_eq!(count(&wire), (1, 286, 287));
    let s = bucket.through(&wire.endpoint).await.session(&session("u1", "1", "k1"));
    let found = s.grep(&Grep::new("the same").max_matches(5)).await.unwrap();
    assert_eq!((found.matches, found.truncated), (5, true));
    let (lists, gets, _) = count(&wire);
    assert!(lists == 1 && gets <= 70, "{gets} files were read for five matches");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_files_cost_nothing_and_a_single_file_little() {
    let files = (0..50).map(|i| (format!("empty/{i}.txt"), Bytes::new()));
    let one = [("one.txt".to_owned(), Bytes::from_static(b"x\n"))];
    let (wire, s) = behind_a_wire(files.chain(one), |_, _| Reply::Forward).await;
    assert_eq!(s.grep(&Grep::new("x")).await.unwrap().searched, 51);
    assert_eq!(wire.operations(), ["GET", "LIST"]);
    let query = Grep::new("x").root("one.txt");
    assert_eq!(s.grep(&query).await.unwrap().matches, 1);
    assert_eq!(wire.operations(), ["HEAD", "LIST"]);
    drop(s.grep_stream(&Grep::new("x")));
    assert_eq!(count(&wire), (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_file_that_cannot_be_read_does_not_spoil_the_search() {
    let files = ["a", "denied", "gone", "z"].map(|name| (name.to_owned(), Bytes::from_static(b"x\n")));
    let (_wire, s) = behind_a_wire(files, |request, _| match &request.target {
        target if target.contains("/denied") => Reply::error(403, "AccessDenied"),
        // As if it had been deleted after the listing.
        target if target.contains("/gone") => Reply::error(404, "NoSuchKey"),
        _ => Reply::Forward,
    })
    .await;
    let found = s.grep(&Grep::new("x")).await.unwrap();
    assert_eq!(lines(&found), ["/workspace/a:1:x", "/workspace/z:1:x"]);
    assert_eq!((found.searched, found.binary, found.truncated), (2, 0, false));
    let [denied] = &found.not_searched[..] else { panic!("{:?}", found.not_searched) };
    assert_eq!(denied.path.as_str(), "/workspace/denied");
    assert!(!denied.reason.is_empty());
    // Named itself, it is no different.
    let query = Grep::new("x").root("/workspace/a");
    assert_eq!(s.grep(&query).await.unwrap().matches, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storage_that_is_down_is_an_error_and_no_empty_answer() {
    let files = || ["a.md", "b.md"].map(|name| (name.to_owned(), Bytes::from_static(b"x\n")));
    let failing = |operation: &'static str, status, code| {
        behind_a_wire(files(), move |request, _| match request.operation() == operation {
            true => Reply::error(status, code),
            false => Reply::Forward,
        })
    };
    let (_wire, s) = failing("GET", 500, "InternalError").await;
    assert_eq!(kind(s.grep(&Grep::new("x")).await), ErrorKind::Unavailable);
    let (_wire, s) = failing("LIST", 403, "AccessDenied").await;
    assert_eq!(kind(s.grep(&Grep::new("x")).await), ErrorKind::Denied);
    assert_eq!(kind(s.glob("*").await), ErrorKind::Denied);
    // Unknown whether the root exists, which is not the same as missing.
    let (_wire, s) = failing("HEAD", 403, "AccessDenied").await;
    assert_eq!(kind(s.glob(Glob::new("*").root("a.md")).await), ErrorKind::Denied);
    let (_wire, s) = failing("HEAD", 503, "ServiceUnavailable").await;
    assert_ne!(kind(s.glob(Glob::new("*").root("none.md")).await), ErrorKind::NotFound);
}

/// Words that make searching difficult: accents, symbols, numbers, both cases.
const WORDS: [&str; 24] = [
    "casa",
    "Casa",
    "CASA",
    "año",
    "Año",
    "señor",
    "ñandú",
    "camión",
    "a.c",
    "abc",
    "fn",
    "main()",
    "TODO:",
    "# título",
    "x",
    "fin",
    "tab\there",
    "12-345",
    "2015-07-01",
    "🦀",
    "naïve",
    "[x]",
    "\\d+",
    "straße",
];

fn random_text(random: &mut Seeded) -> String {
    let mut text = String::new();
    let end = if random.below(4) == 0 { "\r\n" } else { "\n" };
    for _ in 0..random.below(30) {
        let words = match random.below(40) {
            0 => 1_500,
            1..=6 => 0,
            _ => 1 + random.below(8),
        };
        let line: Vec<&str> = (0..words).map(|_| WORDS[random.below(WORDS.len())]).collect();
        text.push_str(&line.join(" "));
        text.push_str(end);
    }
    if random.below(3) == 0 {
        text.push_str("fin");
    }
    text
}

/// Files by name, and the number of binary ones.
fn random_tree(random: &mut Seeded) -> (Vec<(String, Vec<u8>)>, u64) {
    const FOLDERS: [&str; 8] =
        ["", "docs/", "docs/deep/er/", ".git/", "a b/", "año/ñ/", "src/.cache/", "🦀/"];
    const NAMES: [&str; 6] = ["a", ".dot", "with space", "señal", "x.md", "(1)+100%"];
    let mut binary = 0;
    let files = (0..2_000).map(|i| {
        let name = format!("{}{}-{i}", FOLDERS[random.below(8)], NAMES[random.below(6)]);
        let text = random_text(random);
        let content = match random.below(20) {
            0 => Vec::new(),
            1 => utf16(&text, u16::to_le_bytes),
            2 => utf16(&text, u16::to_be_bytes),
            3 => format!("\u{feff}{text}").into_bytes(),
            4 => {
                binary += 1;
                format!("casa\0{text}").into_bytes()
            }
            _ => text.into_bytes(),
        };
        (name, content)
    });
    (files.collect(), binary)
}

/// The output of ripgrep, sorted: path, line number, whether it is context, text.
fn ripgrep(folder: &Path, query: &Grep) -> Vec<(String, u64, bool, String)> {
    let program = std::env::var("SKILLFS_TEST_RG")
        .unwrap_or_else(|_| panic!("SKILLFS_TEST_RG is not set; run `make test`, which finds ripgrep"));
    let mut command = Command::new(program);
    command.args([
        "--no-config",
        "--no-ignore",
        "--hidden",
        "--no-messages",
        "--no-heading",
        "--with-filename",
    ]);
    command.args(["-n", "--null", "--color", "never", "--no-context-separator", "--no-mmap"]);
    command.args([("-F", !query.regex), ("-i", query.ignore_case)].iter().filter(|a| a.1).map(|a| a.0));
    command.arg(format!("-C{}", query.context));
    if let Some(most) = query.max_per_file {
        command.arg(format!("-m{most}"));
    }
    let output = command.args(["-e", &query.pattern, "."]).current_dir(folder).stdin(Stdio::null()).output();
    let output = output.unwrap();
    assert!(output.status.code().unwrap() < 2, "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut found: Vec<_> = text
        .split_terminator('\n')
        .map(|line| {
            let (path, rest) = line.split_once('\0').unwrap_or_else(|| panic!("{line:?}"));
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap();
            let text = rest[digits + 1..].to_owned();
            let path = path.strip_prefix("./").unwrap().to_owned();
            (path, rest[..digits].parse().unwrap(), rest.as_bytes()[digits] == b'-', text)
        })
        .collect();
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs ripgrep: run `make test`"]
async fn grep_agrees_with_ripgrep() {
    let (files, binary) = random_tree(&mut Seeded::new(7));
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in &files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    let objects = files.iter().map(|(name, content)| (format!("threads/1/{name}"), content.clone().into()));
    embedded.put_all(&bucket.name, objects).await.unwrap();
    let s = bucket.session();
    let literal = |pattern: &str| Grep::new(pattern).max_matches(u64::MAX);
    let regex = |pattern: &str| literal(pattern).regex(true);
    let any_case = |query: Grep| query.ignore_case(true);
    let around = |query: Grep| query.context(2);
    let most = |max_per_file, query: Grep| query.max_per_file(max_per_file);
    let mut total = 0;
    for query in [
        literal("a.c \\d+"),
        literal("main() TODO:"),
        any_case(literal("STRAßE año")),
        around(literal("ñandú 🦀")),
        around(literal("")),
        most(3, any_case(literal("casa"))),
        regex("^$|^fin$|\r$"),
        regex(r"\bx\b.*\d{2,4}-\d+(-\d+)?$"),
        any_case(regex("^(tab\t|c[a-z]sa .*Ñ)")),
        around(regex(r"^\w+\s\w+$")),
        around(any_case(regex("^# TÍTULO( [^ ]+ casa)?"))),
        most(2, regex("^[a-z]+")),
    ] {
        let found = s.grep(&query).await.unwrap();
        let mut ours: Vec<_> = found
            .lines
            .iter()
            .map(|line| {
                let path = line.path.as_str().strip_prefix("/workspace/").unwrap().to_owned();
                assert!(!line.cut);
                (path, line.line, line.context, line.text.clone())
            })
            .collect();
        let in_order = ours.is_sorted_by(|a, b| (&a.0, a.1) < (&b.0, b.1));
        assert!(in_order, "{query:?}");
        ours.sort();
        let theirs = ripgrep(folder.path(), &query);
        if let Some(at) = (0..ours.len().max(theirs.len())).find(|i| ours.get(*i) != theirs.get(*i)) {
            panic!("{query:?}: here {:?}, in ripgrep {:?}", ours.get(at), theirs.get(at));
        }
        assert_eq!((found.binary, found.searched), (binary, 2_000 - binary), "{query:?}");
        assert!(found.not_searched.is_empty());
        assert_eq!(found.matches, theirs.iter().filter(|line| !line.2).count() as u64);
        total += theirs.len();
    }
    // Make sure that they agree on something.
    assert!(total > 50_000 && binary > 50, "only {total} lines");
}

/// Long files are searched on threads that wait for the storage. These must not be the threads that the
/// embedded store runs on.
#[test]
fn many_searches_of_long_files_do_not_wait_for_each_other() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let b = Bucket::embedded().await;
        let s = b.session();
        let files = (0..20).map(|i| (format!("f{i}.txt"), Bytes::from("a line of text\n".repeat(40_000))));
        assert!(s.upload_files(files).await.iter().all(Result::is_ok));
        let searches = (0..4).map(|_| {
            let s = s.clone();
            tokio::spawn(async move { s.grep(&Grep::new("nope")).await.unwrap().searched })
        });
        let searched = futures_util::future::join_all(searches).await;
        assert!(searched.into_iter().all(|searched| searched.unwrap() == 20));
    });
}

/// Empty lines use memory too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_empty_lines_are_bounded() {
    let b = Bucket::embedded().await;
    b.put("threads/1/empty.txt", "\n".repeat(1_000_000)).await;
    let query = Grep::new("").context(1000).max_matches(1_000_000);
    let found = b.session().grep(&query).await.unwrap();
    assert!(found.truncated && found.lines.len() < 40_000, "{}", found.lines.len());
}

fn at_root(pattern: impl Into<String>, root: Option<&str>) -> Glob {
    let mut query = Glob::new(pattern);
    query.root = root.map(str::to_owned);
    query
}
