//! Loads a collection of real `SKILL.md` files and reports how many are usable and valid.
//!
//! ```text
//! cargo run --release --example corpus -- skills.jsonl.gz
//! ```
//!
//! Each line of the file is a JSON object with `path` and `text`, or `base64` if the content is not
//! UTF-8.

#![allow(clippy::disallowed_methods, reason = "it measures wall-clock time")]
#![allow(clippy::print_stdout, reason = "it is a command-line program")]

use std::collections::BTreeMap;
use std::io::Read;
use std::time::{Duration, Instant};

use serde::Deserialize;
use skillfs::{Document, validate};

#[derive(Deserialize)]
struct Row {
    path: String,
    text: Option<String>,
    base64: Option<String>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file =
        std::env::args().nth(1).ok_or("missing file name: cargo run --example corpus -- skills.jsonl.gz")?;
    let bytes = std::fs::read(&file)?;
    let mut lines = String::new();
    if bytes.starts_with(&[0x1f, 0x8b]) {
        flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut lines)?;
    } else {
        lines = String::from_utf8(bytes)?;
    }

    let (mut files, mut usable, mut loaded, mut valid, mut survived) = (0u32, 0u32, 0u32, 0u32, 0u32);
    let mut codes: BTreeMap<&'static str, u32> = BTreeMap::new();
    let mut failures = Vec::new();
    let mut times: Vec<Duration> = Vec::new();
    for line in lines.lines() {
        let row: Row = serde_json::from_str(line)?;
        let content = match (row.text, row.base64) {
            (Some(text), _) => text.into_bytes(),
            (None, Some(base64)) => base64_simd::STANDARD.decode_to_vec(base64)?,
            (None, None) => return Err(format!("{}: neither text nor base64", row.path).into()),
        };
        files += 1;
        usable += u32::from(String::from_utf8_lossy(&content).chars().any(char::is_alphanumeric));
        let directory = row.path.rsplit('/').nth(1).unwrap_or_default();
        valid += u32::from(validate(&content, directory).is_empty());
        let start = Instant::now();
        let document = Document::load(&content, directory, &row.path);
        times.push(start.elapsed());
        match document {
            Ok(document) => {
                loaded += 1;
                survived += u32::from(round_trip(&document));
                for diagnostic in document.diagnostics {
                    *codes.entry(diagnostic.code).or_default() += 1;
                }
            }
            Err(diagnostics) => failures.extend(diagnostics.into_iter().next_back()),
        }
    }

    times.sort();
    let percent = |count: u32, of: u32| 100.0 * f64::from(count) / f64::from(of.max(1));
    println!("{files:>6} files, {usable} with text");
    println!("{loaded:>6} load: {:.2}% of the files with text", percent(loaded, usable));
    println!("{valid:>6} conform to the specification: {:.1}%", percent(valid, files));
    println!("{survived:>6} keep every field in a JSON round trip");
    if let (Some(median), Some(longest)) = (times.get(times.len() / 2), times.last()) {
        println!("       {median:.0?} median, {longest:.0?} longest");
    }
    println!("\nwarnings");
    for (code, count) in codes {
        println!("{count:>6} {code}");
    }
    println!("\nfailures");
    for failure in &failures {
        println!("       {failure}");
    }
    println!("{:>6} in total", failures.len());
    Ok(())
}

/// Whether every top-level key of the frontmatter is a field, and all fields survive a round trip
/// through JSON unchanged, including unknown fields and nested metadata.
fn round_trip(document: &Document) -> bool {
    let fields = &document.manifest.fields;
    let keys = document.manifest.frontmatter.lines().filter_map(|line| {
        let (key, rest) = line.split_once(':')?;
        let plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        (plain && (rest.is_empty() || rest.starts_with(' '))).then_some(key)
    });
    let json = serde_json::to_string(fields).unwrap_or_default();
    let back: Result<serde_json::Value, _> = serde_json::from_str(&json);
    keys.into_iter().all(|key| fields.get(key).is_some()) && back.is_ok_and(|back| same(fields, &back))
}

fn same(yaml: &skillfs::Yaml, json: &serde_json::Value) -> bool {
    use serde_json::Value;
    use skillfs::Yaml;
    match (yaml, json) {
        (Yaml::Null, Value::Null) => true,
        (Yaml::Text(text), Value::String(string)) => text == string,
        (Yaml::List(items), Value::Array(array)) => {
            items.len() == array.len() && items.iter().zip(array).all(|(yaml, json)| same(yaml, json))
        }
        (Yaml::Map(entries), Value::Object(object)) => {
            entries.len() == object.len()
                && entries.iter().all(|(key, yaml)| object.get(key).is_some_and(|json| same(yaml, json)))
        }
        _ => false,
    }
}
