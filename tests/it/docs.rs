//! The commands of the README and of the pages in `docs/`.
//!
//! - ` ```console ` blocks are run. The blocks of a page run in order, in one new directory per page. A line that starts
//!   with `$ ` is a command; the lines after it are what it prints.
//! - ` ```console,aws ` blocks start with a comment `# needs …`. Their `skillfs` commands are parsed, not run.
//! - ` ```sh ` blocks may only contain the commands in [`CHECKED_OTHERWISE`].
//!
//! `src/lib.rs` compiles the Rust code of these pages as documentation tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// The commands in `sh` blocks. Each has a test here, for the reason given.
const CHECKED_OTHERWISE: &[(&str, &str)] = &[
    ("cargo run -- demo", "compiles the program; `the_demo_runs` runs the compiled one"),
    ("make test", "runs this test; `make_knows_the_targets_in_the_docs` checks that the target exists"),
    (
        "cargo install --path crates/skillfs-cli",
        "installs the program; `the_paths_in_commands_exist` checks the path",
    ),
    ("skillfs --version", "belongs to the installation; `the_demo_runs` runs it"),
];

/// The programs in `console,aws` blocks that are not checked.
const NEEDS_AWS: &[(&str, &str)] = &[
    ("aws", "the AWS CLI sends requests to AWS"),
    ("eval", "evaluates output of the AWS CLI"),
    ("terraform", "creates resources in an AWS account; `terraform/tests` covers the module"),
    ("cd", "`the_paths_in_commands_exist` checks the directory"),
    ("export", "sets a variable for the commands that follow"),
];

/// The kinds of fenced blocks. A block of commands of any other kind would escape these tests.
const KINDS: &[&str] = &["console", "console,aws", "sh", "text", "toml", "ini", "rust", "rust,no_run"];

#[test]
fn the_commands_in_the_docs_run() {
    let failures: Vec<String> = std::thread::scope(|scope| {
        let pages: Vec<_> = pages().into_iter().map(|page| scope.spawn(move || run_page(&page))).collect();
        pages.into_iter().flat_map(|page| page.join().unwrap()).collect()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn the_commands_that_need_aws_parse() {
    for page in pages() {
        for block in page.blocks.iter().filter(|block| block.kind == "console,aws") {
            let place = block.place(&page);
            let first = block.lines.first().map_or("", String::as_str);
            assert!(first.starts_with("# needs "), "{place}: does not say what it needs");
            for step in block.steps() {
                for command in simple_commands(&step.command) {
                    let program = command.split_whitespace().next().unwrap();
                    if program == "skillfs" {
                        assert_parses(&command, &place);
                    } else {
                        let known =
                            is_assignment(program) || NEEDS_AWS.iter().any(|(name, _)| *name == program);
                        assert!(known, "{place}: `{command}` is not checked");
                    }
                }
            }
        }
    }
}

#[test]
fn the_commands_in_the_text_parse() {
    for page in pages() {
        // Left out: a placeholder for any command, and a choice of several words.
        let spans = page.inline.iter().filter(|span| !span.contains("COMMAND") && !span.contains('|'));
        for span in spans {
            assert_parses(&span.replace('…', "skills"), &page.name);
        }
    }
}

#[test]
fn every_other_command_is_listed_with_a_reason() {
    for page in pages() {
        for block in &page.blocks {
            assert!(KINDS.contains(&block.kind.as_str()), "{}: unknown `{}`", block.place(&page), block.kind);
            for line in block.lines.iter().filter(|_| block.kind == "sh") {
                let command = without_comment(line);
                let known = CHECKED_OTHERWISE.iter().any(|(known, _)| *known == command);
                assert!(known, "{}: `{command}` is run by no test", block.place(&page));
            }
        }
    }
}

#[test]
fn the_demo_runs() {
    let desk = Desk::new();
    for command in ["skillfs demo", "skillfs --version"] {
        let output = desk.run(command);
        assert!(output.status.success() && !output.stdout.is_empty(), "{command}: {}", printed(&output));
    }
}

#[test]
fn make_knows_the_targets_in_the_docs() {
    let output = Command::new("make").args(["-n", "test"]).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", printed(&output));
}

#[test]
fn the_paths_in_commands_exist() {
    assert!(root().join("crates/skillfs-cli/Cargo.toml").is_file());
    for page in pages() {
        for block in page.blocks.iter().filter(|block| block.kind == "console,aws") {
            for step in block.steps() {
                if let Some(directory) = step.command.strip_prefix("cd ") {
                    assert!(root().join(directory).is_dir(), "{}: {directory}", block.place(&page));
                }
            }
        }
    }
}

#[test]
fn the_rust_code_of_every_page_is_compiled() {
    let library = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    for page in pages() {
        let has_code = page.blocks.iter().any(|block| block.kind.starts_with("rust"));
        let included = library.contains(&format!("include_str!(\"../{}\")", page.name));
        assert_eq!(has_code, included, "{}: Rust code, included in src/lib.rs", page.name);
    }
}

/// The samples of `doctor` are from S3. Their messages are those of the snapshots in `tests/it/doctor.rs`, with other
/// names and numbers.
#[test]
fn the_samples_of_doctor_are_what_it_prints() {
    // These lines are different on S3 and on the server of the tests.
    let only_on_s3 = ["AWS S3 responds", ", temporary"];
    let snapshots = root().join("tests/it/snapshots");
    let files = fs::read_dir(snapshots).unwrap().map(|entry| entry.unwrap().path());
    let files = files
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("doctor-")));
    let texts: Vec<_> = files.map(|path| fs::read_to_string(path).unwrap()).collect();
    let known: Vec<_> = texts.iter().flat_map(|text| text.lines()).map(shape).collect();
    let page = Page::read("docs/cli.md".to_owned());
    let samples = page.blocks.iter().filter(|block| block.kind == "text").flat_map(|block| &block.lines);
    let mut checked = 0;
    for line in samples.filter(|line| !line.is_empty() && !line.contains("thing is wrong")) {
        let is_known =
            only_on_s3.iter().any(|message| line.ends_with(message)) || known.contains(&shape(line));
        assert!(is_known, "doctor does not print `{line}`");
        checked += 1;
    }
    assert!(checked > 15, "the samples were not found");
}

/// A line of `doctor` without names, lists of names, commands and numbers.
fn shape(line: &str) -> String {
    let outside = line.split('`').step_by(2).filter(|text| *text != ", ");
    let text = outside.collect::<Vec<_>>().join("`").replace("keys", "key");
    let mut shape: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let is_name =
            word.starts_with(|c: char| c.is_ascii_digit()) || shape.last().is_some_and(|last| last == "user");
        shape.push(if is_name { "NAME".to_owned() } else { word.replace("(user", "user") });
    }
    shape.join(" ")
}

#[test]
fn a_wrong_sample_is_noticed() {
    let desk = Desk::new();
    for (wrong, sample) in [
        ("other output", "$ echo one\ntwo"),
        ("missing output", "$ printf 'one\\ntwo\\n'\none"),
        ("a failure that is not shown", "$ skillfs admin validate missing"),
        ("an error that does not happen", "$ echo fine\nerror: not fine"),
        ("another error", "$ echo 'error: one' >&2; false\nerror: two"),
    ] {
        assert!(run_sample(&desk, sample).is_err(), "{wrong} was not noticed");
    }
    run_sample(&desk, "$ echo one \\\n    two   three\none two three").unwrap();
    run_sample(&desk, "$ echo 'error: one' >&2; false\nerror: one").unwrap();
    run_sample(&desk, "$ echo 2026-11-18T09:00:00Z me@host\n2025-01-01T00:00:00Z ana@laptop").unwrap();
    run_sample(&desk, "$ printf 'one\\ntwo\\nthree\\n'\none\n…").unwrap();
}

fn run_sample(desk: &Desk, sample: &str) -> Result<(), String> {
    let lines = sample.lines().map(str::to_owned).collect();
    let block = Block { kind: "console".to_owned(), line: 1, lines };
    block.steps().iter().try_for_each(|step| desk.check(step))
}

/// Runs the `console` blocks of a page, and returns what was different from what it shows.
fn run_page(page: &Page) -> Vec<String> {
    let desk = Desk::new();
    let mut failures = Vec::new();
    for block in page.blocks.iter().filter(|block| block.kind == "console") {
        for step in block.steps() {
            if let Err(difference) = desk.check(&step) {
                failures.push(format!("{}: $ {}\n{difference}", block.place(page), step.command));
            }
        }
    }
    failures
}

/// A new directory in which the commands of one page run.
struct Desk(TempDir);

impl Desk {
    fn new() -> Self {
        let desk = Self(tempfile::tempdir().unwrap());
        fs::create_dir(desk.0.path().join("home")).unwrap();
        fs::create_dir(desk.0.path().join("work")).unwrap();
        desk
    }

    /// Runs a command in bash, with the compiled program in its `PATH`. It has no terminal, no input, and nothing of
    /// the caller's environment.
    fn run(&self, command: &str) -> Output {
        let programs = Path::new(env!("CARGO_BIN_EXE_skillfs")).parent().unwrap().to_owned();
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let path =
            std::env::join_paths([programs].into_iter().chain(std::env::split_paths(&inherited))).unwrap();
        Command::new("bash")
            .args(["-o", "pipefail", "-c", command])
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.0.path().join("home"))
            .env("USER", "ana")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .current_dir(self.0.path().join("work"))
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Runs a command, and compares its exit code and its output with what the page shows.
    fn check(&self, step: &Step) -> Result<(), String> {
        let output = self.run(&step.command);
        let fails = step.shown.iter().any(|line| line.starts_with("error:"));
        if output.status.success() == fails {
            let expected = if fails { "fail" } else { "succeed" };
            return Err(format!("should {expected}: {}", printed(&output)));
        }
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        // An error is shown without its hints. Notes on stderr may be left out.
        let same = match step.shown.as_slice() {
            [] => true,
            shown if fails => matches(shown, &stderr.lines().take(shown.len()).collect::<Vec<_>>()),
            shown => {
                matches(shown, &stdout.lines().collect::<Vec<_>>())
                    || matches(shown, &stdout.lines().chain(stderr.lines()).collect::<Vec<_>>())
            }
        };
        if same { Ok(()) } else { Err(format!("shows\n{}\nbut {}", step.shown.join("\n"), printed(&output))) }
    }
}

/// Compares lines, word by word. A line `…` stands for any number of lines.
fn matches(shown: &[String], actual: &[&str]) -> bool {
    match (shown, actual) {
        ([], []) => true,
        ([more, rest @ ..], _) if more == "…" => (0..=actual.len()).any(|at| matches(rest, &actual[at..])),
        ([one, shown @ ..], [other, actual @ ..]) => words(one) == words(other) && matches(shown, actual),
        _ => false,
    }
}

/// The words of a line, with placeholders for what differs from run to run: times, and who published.
fn words(line: &str) -> Vec<&str> {
    let word = |word| {
        if is_time(word) {
            "TIME"
        } else if is_publisher(word) {
            "PUBLISHER"
        } else {
            word
        }
    };
    line.split_whitespace().map(word).collect()
}

fn is_time(word: &str) -> bool {
    let shape: String = word.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000-00-00T00:00:00Z"
}

/// Whether a word has the form `user@host`.
fn is_publisher(word: &str) -> bool {
    word.split_once('@').is_some_and(|(user, host)| {
        let is_name =
            |name: &str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
        is_name(user) && is_name(host) && host.parse::<u64>().is_err()
    })
}

/// Checks that a command has only subcommands, flags and values that exist. With `--help`, the program parses
/// everything before it and then runs nothing.
fn assert_parses(command: &str, place: &str) {
    let variables = "ROLE=arn:aws:iam::123456789012:role/agents BUCKET=acme";
    let output = Desk::new().run(&format!("{variables}; {} --help", without_comment(command)));
    assert!(output.status.success(), "{place}: `{command}`: {}", printed(&output));
}

fn printed(output: &Output) -> String {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n--- stdout\n{stdout}--- stderr\n{stderr}", output.status)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A Markdown file.
struct Page {
    name: String,
    blocks: Vec<Block>,
    /// Code spans outside of blocks that start with `skillfs `.
    inline: Vec<String>,
}

/// A fenced block.
struct Block {
    kind: String,
    /// The line of the page on which it starts.
    line: usize,
    lines: Vec<String>,
}

/// A command, and the output that the page shows for it.
struct Step {
    command: String,
    shown: Vec<String>,
}

fn pages() -> Vec<Page> {
    let docs =
        fs::read_dir(root().join("docs")).unwrap().map(|entry| PathBuf::from(entry.unwrap().file_name()));
    let docs = docs.filter(|name| name.extension().is_some_and(|extension| extension == "md"));
    let docs = docs.map(|name| format!("docs/{}", name.display()));
    let mut names: Vec<_> = docs.chain(["README.md".to_owned()]).collect();
    names.sort();
    let pages: Vec<_> = names.into_iter().map(Page::read).collect();
    let blocks = |kind| pages.iter().flat_map(|page| &page.blocks).filter(|block| block.kind == kind).count();
    assert!(blocks("console") > 10 && blocks("console,aws") > 5, "the blocks were not found");
    pages
}

impl Page {
    fn read(name: String) -> Self {
        let text = fs::read_to_string(root().join(&name)).unwrap();
        let (mut blocks, mut inline, mut open) = (Vec::new(), Vec::new(), None::<Block>);
        for (number, line) in text.lines().enumerate() {
            match (line.strip_prefix("```"), open.take()) {
                (Some(kind), None) => {
                    open = Some(Block { kind: kind.to_owned(), line: number + 1, lines: Vec::new() });
                }
                (Some(_), Some(block)) => blocks.push(block),
                (None, Some(mut block)) => {
                    block.lines.push(line.to_owned());
                    open = Some(block);
                }
                (None, None) => {
                    let spans = line.split('`').skip(1).step_by(2);
                    inline.extend(spans.filter(|span| span.starts_with("skillfs ")).map(str::to_owned));
                }
            }
        }
        assert!(open.is_none(), "{name}: a block does not end");
        Self { name, blocks, inline }
    }
}

impl Block {
    fn place(&self, page: &Page) -> String {
        format!("{}:{}", page.name, self.line)
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        let mut continues = false;
        for line in &self.lines {
            if let Some(command) = line.strip_prefix("$ ") {
                steps.push(Step { command: command.to_owned(), shown: Vec::new() });
                continues = true;
            } else if let Some(step) = steps.last_mut() {
                if continues {
                    step.command.push('\n');
                    step.command.push_str(line);
                } else {
                    step.shown.push(line.clone());
                }
            }
            continues &= line.ends_with('\\') || line.ends_with("&&") || line.ends_with('|');
        }
        steps
    }
}

/// The commands of a list or pipeline.
fn simple_commands(list: &str) -> Vec<String> {
    let joined = without_comment(list).replace("\\\n", " ");
    let commands = joined.split("&&").flat_map(|part| part.split("||")).flat_map(|part| part.split(" | "));
    commands.map(|command| command.trim().to_owned()).collect()
}

fn without_comment(command: &str) -> &str {
    command.split("  # ").next().unwrap_or_default().trim()
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
}
