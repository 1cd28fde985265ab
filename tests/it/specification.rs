//! Conformance with the Agent Skills specification: compares our validation with recorded results of its
//! reference library, skills-ref.

use proptest::prelude::*;
use serde::Deserialize;
use skillfs::{AvailableSkill, Document, available_skills, read_properties, validate};

#[derive(Deserialize)]
struct Case {
    id: String,
    dir: String,
    file: String,
    content: String,
    content_encoding: String,
    /// Missing or null if the reference library itself crashed.
    #[serde(default)]
    validate: Option<Vec<String>>,
    to_prompt: Option<String>,
}

const YAML: &str = "Invalid YAML in frontmatter: ";

fn check(fixture: &str, least: usize) {
    let cases: Vec<Case> = serde_json::from_str(fixture).unwrap();
    assert!(cases.len() >= least);
    let mut wrong = Vec::new();
    for case in cases {
        let content = match case.content_encoding.as_str() {
            "utf8" => case.content.clone().into_bytes(),
            "base64" => base64_simd::STANDARD.decode_to_vec(&case.content).unwrap(),
            _ => case.content.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect(),
        };
        let got = validate(&content, &case.dir);
        let agrees = match &case.validate {
            // Any error is accepted.
            None => !got.is_empty(),
            // The details of a YAML error depend on the YAML library.
            Some(said) if said.len() == 1 && said[0].starts_with(YAML) => {
                got.len() == 1 && got[0].starts_with(YAML)
            }
            Some(said) => *said == got,
        };
        if !agrees {
            wrong.push(format!("{}: {:?}, not {got:?}", case.id, case.validate));
        }
        let location = format!("<TMP>/{}/{}", case.dir, case.file);
        let prompt = read_properties(&content)
            .ok()
            .map(|p| available_skills(&[AvailableSkill::new(p.name, p.description, location)]));
        if prompt != case.to_prompt {
            wrong.push(format!("{}: {:?}, not {prompt:?}", case.id, case.to_prompt));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_recorded_vectors_agree() {
    check(include_str!("../fixtures/skills-ref-cases.json"), 50);
}

/// Our own inputs, mostly about YAML, with the results of skills-ref 0.1.1.
#[test]
fn more_recorded_vectors_agree() {
    check(include_str!("../fixtures/skills-ref-more.json"), 110);
}

/// Hostile inputs: loading each is bounded and reports diagnostics.
#[test]
fn hostile_frontmatter_is_bounded_and_told() {
    let mut bomb = "a0: &a0 [x, x]\n".to_owned();
    for i in 1..60 {
        bomb += &format!("a{i}: &a{i} [*a{0}, *a{0}, *a{0}, *a{0}, *a{0}]\n", i - 1);
    }
    let many: String = (0..50_000).map(|i| format!("k{i}: v\n")).collect();
    for (name, fields, code) in [
        ("alias bomb", bomb, "quoted"),
        ("64 KB of brackets", format!("x: {}\n", "[".repeat(64 * 1024)), "long-frontmatter"),
        ("15 KB of brackets", format!("x: {}\n", "[".repeat(15 * 1024)), "line-wise"),
        ("15 KB of braces", format!("x: {}\n", "{a: ".repeat(3 * 1024)), "line-wise"),
        ("a line of 1 MB", format!("x: {}\n", "y".repeat(1024 * 1024)), "long-frontmatter"),
        ("duplicate keys", "description: twice\n".to_owned(), "duplicate-key"),
        ("tabs", "m:\n\tk: v\n".to_owned(), "quoted"),
        ("many keys", many, "long-frontmatter"),
        (
            "one long text, many aliases",
            format!("x: &a \"{}\"\ny: [{}]\n", "x".repeat(7_000), "*a, ".repeat(1_500)),
            "line-wise",
        ),
        ("deep lists", format!("x:\n  {}y\n", "- ".repeat(5_000)), "line-wise"),
        ("an alias to itself", "x: &a [*a]\n".to_owned(), "quoted"),
        ("an alias to nothing", "x: *gone\n".to_owned(), "quoted"),
        ("a name twice", "name: ../../evil\n".to_owned(), "duplicate-key"),
    ] {
        let content = format!("---\nname: x\ndescription: d\n{fields}---\nBody\n");
        let document =
            Document::load(content.as_bytes(), "x", "SKILL.md").unwrap_or_else(|e| panic!("{name}: {e:?}"));
        assert_eq!(document.manifest.description, "d", "{name}");
        assert!(document.diagnostics.iter().any(|d| d.code == code), "{name}: {:?}", document.diagnostics);
        assert!(!validate(content.as_bytes(), "x").is_empty(), "{name}");
        // A small file produces a small skill.
        let size = serde_json::to_string(&document.manifest).unwrap().len();
        assert!(size < 100_000, "{name}: {size} bytes");
    }
    let tagged =
        Document::load(b"---\nname: !!str x\ndescription: !custom d\n---\n", "x", "SKILL.md").unwrap();
    assert_eq!((tagged.manifest.name.as_str(), tagged.manifest.description.as_str()), ("x", "d"));
    let invalid =
        Document::load(b"---\nname: x\ndescription: d \xff\xfe \xc3\xa9 \xc3\xa9\n---\n", "x", "SKILL.md")
            .unwrap();
    assert!(invalid.manifest.description.starts_with('d'));
    assert!(!validate(b"---\nname: x\ndescription: \xff\n---\n", "x").is_empty());
}

/// Fragments of frontmatter, in any order.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        6 => prop::sample::select(vec![
            "---", "---\n", "\n", "\n  ", "\n- ", ": ", ":", "- ", "? ", "\"", "'", "#", " #", "|", ">-", "|2", "[", "]", "{", "}",
            "&a", "*a", "!t", "%", "\t", "~", "\\", "\\ud83e", "name: x", "description: d", "metadata:\n  a: b", "...",
            "\r\n", "\u{feff}", "é", "🦀", "\u{2028}", "\0", "<<: ",
        ]).prop_map(|s| s.as_bytes().to_vec()),
        1 => any::<Vec<u8>>(),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_file_makes_a_parser_panic(mut content in pieces(), fenced in any::<bool>()) {
        if fenced {
            content.splice(0..0, *b"---\n");
            content.extend(b"\n---\nBody\n");
        }
        let _ = validate(&content, "x");
        let _ = read_properties(&content);
        if let Ok(document) = Document::load(&content, "x", "SKILL.md") {
            prop_assert!(!document.manifest.name.is_empty());
            prop_assert!(!document.manifest.description.is_empty());
            let _ = serde_json::to_string(&document.manifest).unwrap();
        }
    }
}
