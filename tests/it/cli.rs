//! Tests of the program: stdout, stderr and exit codes.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use skillfs::embedded::Embedded;
use tempfile::TempDir;

/// A store with the sample data of `skillfs demo --embedded`, created once.
static DATA: LazyLock<TempDir> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    let done = skillfs(&["demo", "--embedded", directory.path().to_str().unwrap()]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    directory
});

/// The program, isolated from the AWS and skillfs settings of the environment.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skillfs"));
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("AWS_") || name_text.starts_with("SKILLFS_") {
            command.env_remove(&name);
        }
    }
    command.env("AWS_EC2_METADATA_DISABLED", "true").env("AWS_CONFIG_FILE", "/dev/null");
    command.env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null").stdin(Stdio::null());
    command
}

fn skillfs(args: &[&str]) -> Output {
    program().args(args).output().unwrap()
}

/// A session of Ana on the sample data.
fn ana(args: &[&str]) -> Output {
    let data = DATA.path().to_str().unwrap();
    let session = ["--embedded", data, "--user", "ana", "--thread", "t-42", "--ticket", "k-7"];
    skillfs(&[&session, args].concat())
}

/// The exit code and the output, with varying paths replaced.
fn shown(output: &Output) -> String {
    let data = DATA.path().to_str().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).replace(data, "DATA");
    let stderr = String::from_utf8_lossy(&output.stderr).replace(data, "DATA");
    format!("exit: {}\n--- stdout\n{stdout}--- stderr\n{stderr}", output.status.code().unwrap())
}

macro_rules! snapshot {
    ($name:literal, $output:expr) => {
        insta::with_settings!({
            filters => vec![
                (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME"),
                (r"newest first: (\d+)-[A-Za-z0-9_-]+", "newest first: $1-ID"),
            ],
            omit_expression => true,
            prepend_module_to_snapshot => false,
        }, {
            insta::assert_snapshot!($name, shown(&$output));
        });
    };
}

#[test]
fn demo_fits_on_one_screen() {
    let output = skillfs(&["demo"]);
    let stdout = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(stdout.lines().count() <= 38, "{}", stdout.lines().count());
    assert_narrow(&stdout);
    snapshot!("demo", output);
}

#[test]
fn demo_all_shows_every_operation() {
    let output = skillfs(&["demo", "--all"]);
    assert_narrow(&String::from_utf8(output.stdout.clone()).unwrap());
    snapshot!("demo-all", output);
}

/// A terminal of 80 columns shows each line without breaking it. There are no colors, since this is not a terminal.
fn assert_narrow(stdout: &str) {
    for line in stdout.lines() {
        assert!(line.chars().count() <= 80 && !line.contains('\u{1b}'), "{line:?}");
    }
}

#[test]
fn demo_json_prints_one_call_per_line() {
    let calls = |args: &[&str]| -> Vec<serde_json::Value> {
        let output = skillfs(args);
        assert!(output.stderr.is_empty());
        let stdout = String::from_utf8(output.stdout).unwrap();
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (brief, all) = (calls(&["--json", "demo"]), calls(&["--json", "demo", "--all"]));
    assert!(brief.len() > 5 && all.len() > 15);
    for call in brief.iter().chain(&all) {
        assert!(call["result"].is_null() != call["error"].is_null(), "{call}");
    }
    let refused = |calls: &[serde_json::Value], kind| calls.iter().any(|call| call["error"]["kind"] == kind);
    assert!(refused(&brief, "invalid_path") && refused(&all, "binary_file"));
}

#[test]
fn demo_runs_again_on_its_own_data() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_str().unwrap();
    assert!(skillfs(&["demo", "--embedded", data]).status.success());
    let output = skillfs(&["--json", "demo", "--embedded", data]);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(stdout.lines().filter(|line| line.contains("\"error\":")).count(), 1, "{stdout}");
}

#[test]
fn demo_keeps_its_data_on_request() {
    let output = ana(&["ls", "/"]);
    snapshot!("ls-root", output);
}

#[test]
fn ls_prints_one_path_per_line() {
    snapshot!("ls", ana(&["ls", "/skills/contracts/sale"]));
}

#[test]
fn ls_long_aligns_columns() {
    snapshot!("ls-long", ana(&["ls", "-l", "-R", "/skills/contracts"]));
}

#[test]
fn ls_json_prints_one_entry_a_line() {
    snapshot!("ls-json", ana(&["--json", "ls", "/skills/contracts/sale"]));
}

#[test]
fn ls_of_a_missing_directory_is_not_found() {
    snapshot!("ls-missing", ana(&["ls", "/skills/none"]));
}

#[test]
fn ls_of_a_file_is_not_directory() {
    snapshot!("ls-file", ana(&["ls", "/ticket/requirements.md"]));
}

#[test]
fn ls_without_a_session_says_what_to_do() {
    let output = skillfs(&["--embedded", DATA.path().to_str().unwrap(), "ls"]);
    snapshot!("ls-no-session", output);
}

#[test]
fn tree_draws_branches() {
    snapshot!("tree", ana(&["tree", "/skills"]));
}

#[test]
fn tree_json_nests() {
    snapshot!("tree-json", ana(&["tree", "--json", "/ticket"]));
}

#[test]
fn read_prints_the_text_as_it_is() {
    let output = ana(&["read", "/skills/escrituras/compraventa/SKILL.md"]);
    let file = crate::support::root().join("examples/skills/escrituras/compraventa/SKILL.md");
    assert_eq!(output.stdout, std::fs::read(file).unwrap());
    assert!(output.stderr.is_empty());
}

#[test]
fn read_adds_md_and_numbers_lines() {
    snapshot!("read-window", ana(&["read", "-n", "/ticket/requirements", "--offset", "2", "--limit", "3"]));
}

#[test]
fn read_json_has_all_fields() {
    snapshot!("read-json", ana(&["--json", "read", "/ticket/requirements", "--limit", "2"]));
}

#[test]
fn read_beyond_the_end_is_empty_and_no_failure() {
    snapshot!("read-beyond", ana(&["read", "/ticket/requirements.md", "--offset", "100000"]));
}

#[test]
fn read_of_a_binary_is_refused() {
    snapshot!("read-binary", ana(&["read", "/skills/escrituras/compraventa/resources/plantilla.pdf"]));
}

#[test]
fn read_of_a_binary_is_refused_in_json() {
    snapshot!(
        "read-binary-json",
        ana(&["--json", "read", "/skills/escrituras/compraventa/resources/plantilla.pdf"])
    );
}

#[test]
fn read_outside_of_a_mount_is_refused() {
    snapshot!("read-escape", ana(&["read", "/skills/../../bruno/skills/private/SKILL.md"]));
}

#[test]
fn read_of_a_directory_is_refused() {
    snapshot!("read-directory", ana(&["read", "/skills/contracts"]));
}

#[test]
fn exists_prints_and_exits() {
    snapshot!("exists-yes", ana(&["exists", "/skills/escrituras/compraventa/resources/plantilla.pdf"]));
    snapshot!("exists-no", ana(&["exists", "/skills/contracts/will"]));
    snapshot!("exists-json", ana(&["exists", "--json", "/skills/escrituras"]));
}

#[test]
fn stat_shows_metadata() {
    snapshot!("stat", ana(&["stat", "/ticket/requirements"]));
    snapshot!("stat-directory", ana(&["stat", "/skills/contracts"]));
    snapshot!("stat-json", ana(&["--json", "stat", "/ticket/requirements"]));
}

#[test]
fn skills_are_listed_described_and_loaded() {
    snapshot!("skills-list", ana(&["skills", "list"]));
    snapshot!("skills-list-json", ana(&["skills", "list", "--category", "contracts", "--json"]));
    snapshot!("skills-frontmatter", ana(&["skills", "frontmatter", "--category", "engineering"]));
    snapshot!("skills-catalog", ana(&["skills", "catalog"]));
    snapshot!("skills-catalog-budget", ana(&["skills", "catalog", "--budget", "600"]));
    snapshot!(
        "skills-catalog-xml",
        ana(&["skills", "catalog", "--category", "contracts", "--format", "xml"])
    );
    snapshot!(
        "skills-catalog-xml-one-line",
        ana(&["skills", "catalog", "--category", "contracts", "--format", "xml-one-line"])
    );
    snapshot!("skills-catalog-json", ana(&["skills", "catalog", "--format", "json"]));
    snapshot!("skills-resources", ana(&["skills", "resources", "compraventa"]));
    snapshot!("skills-resources-json", ana(&["skills", "resources", "code-review", "--json"]));
    snapshot!("skills-load-missing", ana(&["skills", "load", "will"]));
    snapshot!("skills-category-missing", ana(&["skills", "list", "--category", "none"]));
    let whole = ana(&["skills", "load", "escrituras/compraventa"]);
    let file = crate::support::root().join("examples/skills/escrituras/compraventa/SKILL.md");
    assert_eq!(whole.stdout, std::fs::read(file).unwrap());
    let body = ana(&["skills", "load", "compraventa", "--body"]);
    assert!(String::from_utf8(body.stdout).unwrap().trim_start().starts_with("# Escritura de compraventa"));
}

#[test]
fn admin_index_does_not_change_the_catalog() {
    let data = tempfile::tempdir().unwrap();
    let store = data.path().to_str().unwrap();
    let run = |args: &[&str]| {
        // `admin` ignores variables that select a session.
        let args = [&["--embedded", store], args].concat();
        program().env("SKILLFS_USER", "bruno").args(args).output().unwrap()
    };
    assert!(run(&["demo", "-q"]).status.success());
    let before = run(&["skills", "catalog", "--user", "ana"]);
    let version = run(&["skills", "version", "--user", "ana"]);
    assert_eq!(version.stdout.len(), 65);
    snapshot!("admin-index", run(&["admin", "index", "--user", "ana"]));
    snapshot!("admin-index-json", run(&["admin", "index", "--library", "notaries", "--json"]));
    snapshot!("admin-index-nothing", run(&["admin", "index"]));
    snapshot!("admin-index-both", run(&["admin", "index", "--user", "ana", "--library", "notaries"]));
    snapshot!("admin-index-reserved", run(&["admin", "index", "--user", "shared"]));
    assert_eq!(run(&["skills", "catalog", "--user", "ana"]).stdout, before.stdout);
    let json = run(&["skills", "version", "--user", "ana", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["version"], String::from_utf8(version.stdout).unwrap().trim());
}

#[test]
fn admin_validate_checks_local_folders() {
    let root = crate::support::root();
    let run =
        |args: &[&str]| program().current_dir(root).args(["admin", "validate"]).args(args).output().unwrap();
    snapshot!("admin-validate", run(&["examples/skills"]));
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, content: &str| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    };
    write("good/SKILL.md", "---\nname: good\ndescription: Is good.\n---\n");
    write("Bad Name/SKILL.md", "---\nname: Bad Name\ndescription: Use when: asked\nversion: 1\n---\n");
    write("empty/SKILL.md", "");
    write("odd/Skill.md", "# Odd\n\nHas no frontmatter.\n");
    let here = |args: &[&str]| {
        let args = [&["admin", "validate"], args].concat();
        program().current_dir(folder.path()).args(args).output().unwrap()
    };
    snapshot!("admin-validate-problems", here(&["."]));
    snapshot!("admin-validate-lenient", here(&[".", "--lenient"]));
    snapshot!("admin-validate-json", here(&["good", "Bad Name", "none", "--json"]));
    snapshot!("admin-validate-lenient-json", here(&["odd", "--json", "--lenient"]));
}

#[test]
fn libraries_come_from_flags_or_the_environment() {
    let data = DATA.path().to_str().unwrap();
    let ls = |command: &mut Command| command.args(["ls", "/"]).output().unwrap();
    let flag = ls(program().args(["--embedded", data, "--library", "acme"]));
    assert_eq!(String::from_utf8(flag.stdout).unwrap(), "/skills\n");
    let variable = ls(program().env("SKILLFS_LIBRARIES", " acme, other,").args(["--embedded", data]));
    assert_eq!(String::from_utf8(variable.stdout).unwrap(), "/skills\n");
    let bad = ls(program().env("SKILLFS_LIBRARIES", "a/b").args(["--embedded", data]));
    assert_eq!(bad.status.code(), Some(2));
}

#[test]
fn wrong_usage_exits_with_2() {
    snapshot!("usage", skillfs(&["raed", "x"]));
    snapshot!("usage-admin", skillfs(&["push", "./skills"]));
    snapshot!("usage-admin-json", skillfs(&["--json", "releases"]));
    snapshot!("usage-json", skillfs(&["--json", "ls", "--lonk"]));
    snapshot!("usage-no-bucket", skillfs(&["--user", "ana", "ls", "/skills"]));
    snapshot!("usage-bad-id", skillfs(&["--embedded", "x", "--user", "threads", "ls", "/skills"]));
    snapshot!("usage-bad-endpoint", skillfs(&["--bucket", "b", "--endpoint-url", "localhost:1", "ls"]));
    snapshot!("usage-bad-number", ana(&["read", "/ticket/requirements", "--offset", "-1"]));
    snapshot!(
        "usage-no-thread",
        skillfs(&["--embedded", DATA.path().to_str().unwrap(), "--user", "ana", "read", "x"])
    );
}

#[test]
fn a_mistyped_directory_is_told_and_not_made() {
    let directory = tempfile::tempdir().unwrap();
    let typo = directory.path().join("typo");
    let output = skillfs(&["--embedded", typo.to_str().unwrap(), "--user", "ana", "ls", "/skills"]);
    assert_eq!(output.status.code(), Some(7));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("there is no store in") && stderr.contains("skillfs demo --embedded"),
        "{stderr}"
    );
    assert!(!typo.exists());
    // A missing bucket is not created either, and an embedded store ignores SKILLFS_BUCKET.
    let data = DATA.path().to_str().unwrap();
    let output = skillfs(&["--embedded", data, "--bucket", "other", "--user", "ana", "ls", "/skills"]);
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    let output = program()
        .env("SKILLFS_BUCKET", "other")
        .args(["--embedded", data, "--user", "ana", "ls", "/skills"])
        .output();
    assert_eq!(output.unwrap().status.code(), Some(0));
}

#[test]
fn what_would_break_a_header_is_wrong_usage() {
    let session =
        ["--bucket", "acme", "--endpoint-url", "http://127.0.0.1:1", "--thread", "t", "ls", "/workspace"];
    for (name, value) in [
        ("AWS_REGION", "us-east-1\r"),
        ("AWS_ACCESS_KEY_ID", "test\r"),
        ("AWS_SECRET_ACCESS_KEY", "te\u{1b}st"),
        ("AWS_SESSION_TOKEN", "t\nx"),
    ] {
        let output = program()
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .env(name, value)
            .args(session)
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}: {stderr}");
        assert!(stderr.contains("error: ") && stderr.contains("hint: "), "{name}: {stderr}");
        // A local store ignores credentials.
        let data = DATA.path().to_str().unwrap();
        let local =
            program().env(name, value).args(["--embedded", data, "--user", "ana", "ls", "/skills"]).output();
        assert_eq!(local.unwrap().status.code(), Some(0), "{name}");
    }
}

#[test]
fn help_has_examples() {
    snapshot!("help", program().env("COLUMNS", "100").arg("--help").output().unwrap());
    snapshot!("help-read", program().env("COLUMNS", "100").args(["read", "--help"]).output().unwrap());
    snapshot!("help-admin", program().env("COLUMNS", "100").args(["admin", "--help"]).output().unwrap());
    let releases = ["admin", "releases", "--help"];
    snapshot!("help-releases", program().env("COLUMNS", "100").args(releases).output().unwrap());
}

#[test]
fn a_store_that_cannot_be_reached_exits_with_7() {
    let output = program()
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test")
        // Nothing listens on port 1.
        .args([
            "--bucket",
            "acme",
            "--endpoint-url",
            "http://127.0.0.1:1",
            "--thread",
            "t",
            "ls",
            "/workspace",
        ])
        .output()
        .unwrap();
    snapshot!("unreachable", output);
}

#[test]
fn missing_credentials_are_denied() {
    let output = skillfs(&[
        "--bucket",
        "acme",
        "--endpoint-url",
        "http://127.0.0.1:1",
        "--thread",
        "t",
        "ls",
        "/workspace",
    ]);
    snapshot!("no-credentials", output);
}

#[test]
fn the_environment_names_what_flags_do_not() {
    let output = program()
        .env("SKILLFS_USER", "ana")
        .env("SKILLFS_THREAD", "t-42")
        .env("SKILLFS_TICKET", "")
        .args(["--embedded", DATA.path().to_str().unwrap(), "ls"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "/skills\n/workspace\n");
    let output = program()
        .env("SKILLFS_USER", "ana")
        .args(["--embedded", DATA.path().to_str().unwrap(), "--user", "bruno", "ls", "/skills"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "/skills/private\n");
}

#[test]
fn endpoints_come_from_the_environment_in_their_order() {
    for (name, other) in [
        ("SKILLFS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        ("AWS_ENDPOINT_URL", "NOTHING"),
    ] {
        let output = program()
            .env(name, "wrong:first")
            .env(other, "wrong:second")
            .args(["--bucket", "acme", "--thread", "t", "ls", "/workspace"])
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains("wrong:first"), "{name}: {stderr}");
    }
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let data = DATA.path().to_str().unwrap();
    let mut child = program()
        .args(["--embedded", data, "--user", "ana", "ls", "-R", "/skills"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty());
}

#[test]
fn verbose_talks_on_stderr_only() {
    let output = ana(&["-v", "ls", "/ticket"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "/ticket/history.md\n/ticket/requirements.md\n");
    assert!(String::from_utf8(output.stderr).unwrap().contains("list"));
}

#[test]
fn quiet_and_json_print_no_notes() {
    for flag in ["-q", "--json"] {
        let output = ana(&[flag, "read", "/ticket/requirements.md", "--limit", "1"]);
        assert!(output.stderr.is_empty());
        std::io::sink().write_all(&output.stdout).unwrap();
    }
}

/// A local store, and the transcript of the commands that ran on it.
struct Session {
    directory: TempDir,
    transcript: String,
}

impl Session {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), transcript: String::new() }
    }

    fn output(&self, args: &[&str], input: &[u8]) -> Output {
        let store = self.directory.path().join("store");
        let session =
            ["--embedded", store.to_str().unwrap(), "--thread", "t1", "--user", "u1", "--ticket", "k1"];
        let mut child = program()
            .args([&session, args].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The program may exit before it has read its input.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    /// Runs a command and adds it to the transcript.
    fn run(&mut self, args: &[&str], input: &str) {
        let output = self.output(args, input.as_bytes());
        let directory = self.directory.path().to_str().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(directory, "DIR");
        let words: Vec<_> = args.iter().map(|word| word.replace(directory, "DIR")).collect();
        self.transcript += &format!("$ skillfs {}\n", words.join(" "));
        self.transcript += &text(&output.stdout);
        self.transcript += &text(&output.stderr);
        match output.status.code() {
            Some(0) => {}
            code => self.transcript += &format!("exit: {}\n", code.unwrap()),
        }
    }
}

macro_rules! transcript {
    ($name:literal, $session:expr) => {
        insta::with_settings!({
            filters => vec![(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME")],
            omit_expression => true,
            prepend_module_to_snapshot => false,
        }, {
            insta::assert_snapshot!($name, $session.transcript);
        });
    };
}

#[test]
fn the_workspace_from_the_command_line() {
    let mut s = Session::new();
    s.run(&["write", "plan.md"], "# Plan\n\nPrice: TODO\n");
    s.run(&["edit", "plan.md", "--old", "TODO", "--new", "350,000"], "");
    s.run(&["append", "plan.md"], "- more -\n");
    s.run(&["read", "plan"], "");
    s.run(&["edit", "plan.md", "--old", "e", "--new", "-"], "");
    s.run(&["edit", "plan.md", "--old", "none", "--new", "-"], "");
    s.run(&["edit", "plan.md", "--old", "", "--new", "-"], "");
    s.run(&["edit", "plan.md", "--old", "-", "--new", "--", "--all"], "");
    s.run(&["edit", "plan", "--old", "x", "--new", "y"], "");
    s.run(&["write", "plan.md", "--create"], "again");
    s.run(&["write", "plan.md", "--if-match", "00000000000000000000000000000000"], "again");
    s.run(&["cp", "plan.md", "drafts/plan.md"], "");
    s.run(&["cp", "drafts", "old"], "");
    s.run(&["cp", "plan.md", "drafts"], "");
    s.run(&["cp", "-n", "plan.md", "drafts/plan.md"], "");
    s.run(&["mv", "drafts/plan.md", "final.md"], "");
    s.run(&["mv", "final.md", "/skills/plan.md"], "");
    s.run(&["rm", "old"], "");
    s.run(&["rm", "-r", "old"], "");
    s.run(&["rm", "none.md"], "");
    s.run(&["rm", "final.md"], "");
    s.run(&["ls", "/workspace"], "");
    s.run(&["write", "/skills/x"], "x");
    s.run(&["write", "/ticket/x"], "x");
    s.run(&["--grant", "ticket-write", "write", "/ticket/x"], "x");
    s.run(&["--read-only", "write", "x"], "x");
    s.run(&["write", "x", "--from", "DIR/none"], "");
    s.run(&["rm", "/workspace/../x"], "");
    transcript!("workspace", s);
}

#[test]
fn finding_from_the_command_line() {
    let mut s = Session::new();
    for (path, content) in [
        ("notes.md", "one\ntwo TODO\nthree\nfour\nfive todo\n"),
        ("src/main.rs", "fn main() {}\n// TODO: more\n"),
        ("src/.env", "KEY=TODO\n"),
        ("logo.png", "\u{0}TODO"),
    ] {
        assert!(s.output(&["write", path], content.as_bytes()).status.success());
    }
    s.run(&["glob", "*.md"], "");
    s.run(&["glob", "**/*.{md,rs}"], "");
    s.run(&["glob", "-l", "*", "src"], "");
    s.run(&["glob", ".*"], "");
    s.run(&["glob", "/workspace/src/*"], "");
    s.run(&["glob", "**", "--max", "1"], "");
    s.run(&["glob", "*.none"], "");
    s.run(&["glob", "../*"], "");
    s.run(&["glob", "[a"], "");
    s.run(&["glob", "*", "/workspace/none"], "");
    s.run(&["grep", "TODO"], "");
    s.run(&["grep", "-i", "todo", "notes.md", "-C", "1"], "");
    s.run(&["grep", "--regex", "^t\\w+", "--glob", "*.md"], "");
    s.run(&["grep", "TODO", "--max", "1"], "");
    s.run(&["grep", "absent"], "");
    s.run(&["grep", "--regex", "("], "");
    s.run(&["grep", "x", "/workspace/none"], "");
    s.run(&["--json", "grep", "five", "-C", "1"], "");
    s.run(&["--json", "grep", "TODO", "--max", "1", "-q"], "");
    transcript!("finding", s);
}

#[test]
fn machines_get_documents() {
    let mut s = Session::new();
    s.run(&["--json", "write", "a.md"], "one two");
    s.run(&["--json", "append", "a.md"], " three");
    s.run(&["--json", "edit", "a.md", "--old", "two", "--new", "2"], "");
    s.run(&["--json", "cp", "a.md", "b.md"], "");
    s.run(&["--json", "mv", "b.md", "c.md"], "");
    s.run(&["--json", "glob", "*.md"], "");
    s.run(&["--json", "rm", "c.md"], "");
    s.run(&["--json", "edit", "a.md", "--old", "none", "--new", ""], "");
    s.run(&["--json", "write", "/skills/a"], "");
    transcript!("documents", s);
}

#[test]
fn write_takes_a_file_or_standard_input() {
    let s = Session::new();
    let file = s.directory.path().join("content");
    let content: Vec<u8> = (0..20_000_000u32).map(|i| (i % 249) as u8).collect();
    std::fs::write(&file, &content).unwrap();
    let from = file.to_str().unwrap();
    for args in [
        vec!["write", "a.bin", "--from", from],
        vec!["write", "a.bin"],
        vec!["write", "a.bin", "--from", "-"],
    ] {
        let input = if args.contains(&from) { &[][..] } else { &content };
        let output = s.output(&args, input);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let stat = s.output(&["--json", "stat", "a.bin"], b"");
        let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).unwrap();
        assert_eq!(stat["size"], 20_000_000, "{args:?}");
        assert!(stat["etag"].as_str().unwrap().contains('-'), "it came in parts");
        s.output(&["rm", "a.bin"], b"");
    }
    assert_eq!(
        s.output(&["write", "a", "--from", s.directory.path().to_str().unwrap()], b"").status.code(),
        Some(2)
    );
}

#[test]
fn writing_makes_a_local_store() {
    let mut s = Session::new();
    s.run(&["rm", "x"], "");
    s.run(&["edit", "x", "--old", "a", "--new", "b"], "");
    s.run(&["write", "/skills/x"], "x");
    s.run(&["append", "x"], "x");
    s.run(&["read", "x"], "");
    transcript!("new-store", s);
}

/// A store to publish to, and a folder of sources next to it.
struct Desk {
    folder: TempDir,
}

impl Desk {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn write(&self, file: &str, content: &str) {
        let file = self.folder.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, content).unwrap();
    }

    fn skill(&self, path: &str, description: &str) {
        let name = path.rsplit('/').next().unwrap();
        let text = format!(
            "---\nname: {name}\ndescription: {description}\n---\n# {name}\n\nSee `references/more.md`.\n"
        );
        self.write(&format!("skills/{path}/SKILL.md"), &text);
        self.write(&format!("skills/{path}/references/more.md"), &format!("More on {description}.\n"));
    }

    fn run(&self, args: &[&str]) -> Output {
        program().current_dir(self.folder.path()).args(["--embedded", "store"]).args(args).output().unwrap()
    }

    fn admin(&self, args: &[&str]) -> Output {
        self.run(&[&["--library", "notaries", "admin"], args, &[][..]].concat())
    }

    /// Writes a key of the store, like a tool that does not know about releases.
    fn store(&self, key: &str, content: &'static str) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = Embedded::open(self.folder.path().join("store")).await.unwrap();
            store.put("skillfs", key, content).await.unwrap();
        });
    }

    fn push(&self, args: &[&str]) -> Output {
        self.admin(&[&["push", "skills", "--by", "ana"], args].concat())
    }
}

#[test]
fn a_library_is_pushed_compared_and_verified() {
    let desk = Desk::new();
    desk.skill("contracts/sale", "Deeds of sale");
    desk.skill("contracts/mortgage", "Mortgages");
    desk.write("skills/contracts/DESCRIPTION.md", "---\ndescription: Contracts and deeds\n---\n");
    desk.write("skills/broken/SKILL.md", "");
    // A push creates the store; a dry run does not.
    assert_eq!(desk.push(&["--dry-run"]).status.code(), Some(7));
    snapshot!("push-first", desk.push(&[]));
    std::fs::remove_dir_all(desk.folder.path().join("skills/broken")).unwrap();
    snapshot!("push-again", desk.push(&[]));
    desk.skill("contracts/sale", "Deeds of sale, revised");
    desk.skill("contracts/donation", "Donations");
    desk.write("skills/contracts/mortgage/references/more.md", "");
    std::fs::remove_file(desk.folder.path().join("skills/contracts/mortgage/references/more.md")).unwrap();
    snapshot!("push-dry-run", desk.push(&["--dry-run"]));
    snapshot!("diff", desk.admin(&["diff", "skills"]));
    snapshot!("push-changes", desk.push(&[]));
    std::fs::remove_dir_all(desk.folder.path().join("skills/contracts/donation")).unwrap();
    snapshot!("push-delete-asks", desk.push(&["--delete"]));
    snapshot!("push-delete", desk.push(&["--delete", "--yes"]));
    snapshot!(
        "push-json",
        desk.run(&["--json", "--library", "notaries", "admin", "push", "skills", "--dry-run"])
    );
    snapshot!("releases", desk.admin(&["releases"]));
    snapshot!("releases-json", desk.run(&["--json", "--library", "notaries", "admin", "releases"]));
    snapshot!("rollback", desk.admin(&["rollback", "1", "--by", "ana", "--yes"]));
    snapshot!("pin", desk.admin(&["pin", "contracts/mortgage@1", "--by", "ana"]));
    snapshot!("push-pinned", desk.push(&[]));
    snapshot!("admin-list", desk.admin(&["list"]));
    snapshot!("admin-stats", desk.run(&["admin", "stats"]));
    snapshot!("verify", desk.admin(&["verify"]));
    snapshot!("admin-rm", desk.admin(&["rm", "contracts/sale", "--yes", "--by", "ana"]));
    snapshot!("admin-rm-none", desk.admin(&["rm", "contracts/none", "--yes"]));
    snapshot!("rollback-none", desk.admin(&["rollback", "99"]));
    let listed = desk.run(&["--library", "notaries", "skills", "list"]);
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "contracts/mortgage\n");
}

#[cfg(unix)]
#[test]
fn a_skill_that_cannot_be_taken_is_not_deleted() {
    let desk = Desk::new();
    desk.skill("a", "The first");
    desk.skill("b", "The second");
    desk.push(&[]);
    let link = desk.folder.path().join("skills/a/passwd");
    std::os::unix::fs::symlink("/etc/passwd", link).unwrap();
    let done = desk.push(&["--delete", "--yes"]);
    snapshot!("push-refused", done);
    let listed = desk.run(&["--library", "notaries", "skills", "list"]);
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "a\nb\n");
    snapshot!(
        "push-read-only",
        desk.run(&["--library", "notaries", "--read-only", "admin", "rm", "b", "--yes"])
    );
}

#[test]
fn verify_reports_and_repairs() {
    let desk = Desk::new();
    desk.skill("a", "The first");
    desk.push(&[]);
    let index = desk.admin(&["index"]);
    assert!(index.status.success());
    snapshot!("verify-quick", desk.admin(&["verify", "--quick"]));
    snapshot!("verify-json", desk.run(&["--json", "--library", "notaries", "admin", "verify"]));
    snapshot!("verify-nothing", desk.run(&["--user", "nobody", "admin", "verify"]));
    desk.store("shared/notaries/.skillfs/index.json", "{");
    snapshot!("verify-damaged", desk.admin(&["verify"]));
    assert_eq!(desk.admin(&["verify", "--repair"]).status.code(), Some(1));
    snapshot!("verify-restored", desk.admin(&["verify", "--repair", "--release", "1"]));
    snapshot!("verify-not-damaged", desk.admin(&["verify", "--repair", "--release", "1"]));
    snapshot!("verify-quick", desk.admin(&["verify", "--quick"]));
}

#[test]
fn drift_is_reported_published_or_reverted() {
    let desk = Desk::new();
    desk.skill("a", "The first");
    desk.skill("b", "The second");
    desk.push(&[]);
    desk.store("shared/notaries/skills/a/SKILL.md", "---\nname: a\ndescription: Edited\n---\n");
    desk.store("shared/notaries/skills/c/SKILL.md", "---\nname: c\ndescription: New\n---\n");
    let served = |skill: &str| desk.run(&["--library", "notaries", "skills", "load", skill]).stdout;
    let before = served("a");
    snapshot!("verify-drift", desk.admin(&["verify"]));
    snapshot!("diff-drift", desk.admin(&["diff", "skills"]));
    snapshot!("push-drift", desk.push(&[]));
    snapshot!("verify-repair-drift", desk.admin(&["verify", "--repair"]));
    assert_eq!(served("a"), before);
    snapshot!("index-drift-dry-run", desk.admin(&["index", "--dry-run"]));
    snapshot!("index-drift", desk.admin(&["index", "--by", "ana"]));
    assert_eq!(served("a"), b"---\nname: a\ndescription: Edited\n---\n");
    desk.store("shared/notaries/skills/a/SKILL.md", "---\nname: a\ndescription: Wrong\n---\n");
    snapshot!("unpublish-drift", desk.admin(&["unpublish"]));
    snapshot!("verify-overwrite", desk.admin(&["verify", "--repair", "--overwrite"]));
    assert!(desk.admin(&["verify"]).status.success());
}

#[test]
fn flags_choose_a_plain_or_published_library() {
    let desk = Desk::new();
    desk.skill("a", "The first");
    snapshot!("push-plain", desk.push(&["--plain"]));
    snapshot!("push-plain-again", desk.push(&[]));
    snapshot!("releases-plain", desk.admin(&["releases"]));
    snapshot!("rollback-plain", desk.admin(&["rollback", "1"]));
    snapshot!("index-plain", desk.admin(&["index"]));
    desk.store("shared/notaries/skills/other/SKILL.md", "---\nname: other\ndescription: O\n---\n");
    desk.store("shared/notaries/skills/folder/", "");
    desk.skill("b", "The second");
    snapshot!("push-publish-dry-run", desk.push(&["--publish", "--dry-run"]));
    snapshot!("push-publish-asks", desk.push(&["--publish"]));
    snapshot!("push-publish", desk.push(&["--publish", "--yes"]));
    snapshot!("push-not-plain", desk.push(&["--plain"]));
    let listed = || desk.run(&["--library", "notaries", "skills", "list"]).stdout;
    assert_eq!(listed(), b"a\nb\nother\n");
    snapshot!("unpublish", desk.admin(&["unpublish"]));
    snapshot!("unpublish-again", desk.admin(&["unpublish"]));
    assert_eq!(listed(), b"a\nb\nother\n");
    snapshot!("index-publish", desk.admin(&["index", "--publish", "--yes", "--by", "ana"]));
    snapshot!("releases-again", desk.admin(&["releases"]));
}

#[test]
fn push_to_many_users_continues_after_a_failure() {
    let desk = Desk::new();
    desk.skill("a", "The first");
    desk.write("users.txt", "# the team\nana\nbo@example.com\n\nana\n");
    snapshot!("push-users", desk.run(&["admin", "push", "skills", "--users", "users.txt", "--by", "ana"]));
    snapshot!(
        "push-users-again",
        desk.run(&["admin", "push", "skills", "--users", "users.txt", "--by", "ana"])
    );
    desk.write("users.txt", "ana\n../bo\n");
    snapshot!("push-users-bad", desk.run(&["admin", "push", "skills", "--users", "users.txt"]));
    let listed = desk.run(&["--user", "bo@example.com", "skills", "list"]);
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "a\n");
    snapshot!("admin-list-all", desk.run(&["admin", "list"]));
}

#[test]
fn imported_skills_are_served() {
    let desk = Desk::new();
    let text = "---\nname: shell\ndescription: Runs things\nallowed-tools: Bash, Read\nrequired_capabilities: [shell:execute]\n---\nUse `Bash`.\n";
    desk.write("hermes/skills/devops/shell/SKILL.md", text);
    desk.write("hermes/skills/devops/shell/scripts/run.sh", "#!/bin/sh\n");
    desk.write(
        "hermes/skills/devops/logs/SKILL.md",
        "---\nname: logs\ndescription: Reads logs\nallowed-tools: Read\n---\nUse `Read`.\n",
    );
    desk.write("hermes/skills/devops/DESCRIPTION.md", "---\ndescription: Running things\n---\n");
    snapshot!("import-refused", desk.admin(&["import", "hermes", "--translate-tools", "--by", "ana"]));
    snapshot!(
        "import",
        desk.admin(&["import", "hermes", "--translate-tools", "--accept-dangerous", "--by", "ana"])
    );
    snapshot!(
        "import-again",
        desk.admin(&["import", "hermes", "--translate-tools", "--accept-dangerous", "--by", "ana"])
    );
    let loaded = desk.run(&["--library", "notaries", "skills", "load", "devops/shell"]);
    let loaded = String::from_utf8_lossy(&loaded.stdout).into_owned();
    assert!(loaded.contains("shell_exec") && !loaded.contains("Bash"), "{loaded}");
    let source = desk.run(&["--library", "notaries", "read", "/skills/devops/shell/.source"]);
    assert!(String::from_utf8_lossy(&source.stdout).contains("trust_tier = \"unreviewed\""));
    let scripts = desk.run(&["--library", "notaries", "exists", "/skills/devops/shell/scripts/run.sh"]);
    assert_eq!(scripts.status.code(), Some(1));
    // Skills in other layouts are served, too.
    desk.write(
        "claw/skills/ana/notes/SKILL.md",
        "---\nname: notes\ndescription: Keeps notes\n---\nKeep them.\n",
    );
    desk.write(
        "claw/skills/ana/notes/_meta.json",
        r#"{"owner":"ana","slug":"notes","latest":{"version":"1.2.0"}}"#,
    );
    desk.write("plain/tools/deep/lint/SKILL.md", "---\nname: lint\ndescription: Lints\n---\nLint.\n");
    desk.write("plain/README.md", "# A repository\n");
    for (source, layout, path) in [("claw", "openclaw", "ana/notes"), ("plain", "repository", "lint")] {
        let run = |args: &[&str]| desk.run(&[&["--library", source], args].concat());
        // The layout is detected if possible, and named otherwise.
        let named: &[&str] = if source == "plain" { &["--layout", layout] } else { &[] };
        let done = run(&[&["admin", "import", source, "--trust", "workspace"], named].concat());
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(String::from_utf8_lossy(&run(&["skills", "list"]).stdout).trim(), path);
        let provenance = run(&["read", &format!("/skills/{path}/.source")]);
        let provenance = String::from_utf8_lossy(&provenance.stdout).into_owned();
        assert!(provenance.contains("trust_tier = \"workspace\""), "{provenance}");
        assert!(String::from_utf8_lossy(&run(&["skills", "catalog"]).stdout).contains(path));
    }
    snapshot!(
        "import-into",
        desk.run(&["admin", "import", "hermes", "--into", "reviewed", "--accept-dangerous"])
    );
    snapshot!("pull", desk.admin(&["pull", "copy"]));
    snapshot!("export", desk.admin(&["export", "notaries.zip"]));
    snapshot!("export-nameless", desk.admin(&["export", "notaries"]));
    let back = desk.run(&[
        "--library",
        "copy",
        "admin",
        "import",
        "notaries.zip",
        "--accept-dangerous",
        "--with-scripts",
        "--by",
        "ana",
    ]);
    assert!(back.status.success(), "{}", String::from_utf8_lossy(&back.stderr));
}

#[test]
fn init_creates_a_valid_skill() {
    let desk = Desk::new();
    snapshot!("init", desk.run(&["admin", "init", "lease-agreement", "--into", "skills/contracts"]));
    snapshot!("init-again", desk.run(&["admin", "init", "lease-agreement", "--into", "skills/contracts"]));
    snapshot!("init-bad", desk.run(&["admin", "init", "Lease Agreement"]));
    assert!(desk.run(&["admin", "validate", "skills"]).status.success());
    let completions = skillfs(&["completions", "bash"]);
    assert!(String::from_utf8_lossy(&completions.stdout).contains("admin"));
}

/// Uses a cloud that enforces policies. The program's own credentials may only assume a role.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn role_options() {
    use crate::support::cloud::{Cloud, ROLE};
    let cloud = Cloud::start().await;
    cloud.bucket.put("threads/t1/notes.md", "# Notes\n").await;
    cloud.bucket.put("threads/t10/secret.md", "secret").await;
    let (endpoint, bucket) = (cloud.wire.endpoint.clone(), cloud.bucket.name.clone());
    let run = async |args: &[&str]| {
        let mut command = program();
        command.args(["--endpoint-url", &endpoint, "--bucket", &bucket]).args(args);
        command.env("AWS_ACCESS_KEY_ID", skillfs::embedded::ACCESS_KEY_ID);
        command.env("AWS_SECRET_ACCESS_KEY", skillfs::embedded::SECRET_ACCESS_KEY);
        let mut output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let masked = String::from_utf8_lossy(&output.stderr).replace(&endpoint, "ENDPOINT");
        output.stderr = masked.into_bytes();
        output
    };
    let session = ["--role-arn", ROLE, "--thread", "t1"];
    let confined = async |args: &[&str]| run(&[&session, args].concat()).await;
    let output = confined(&["read", "notes"]).await;
    snapshot!("role-read", output);
    let output = confined(&["credentials"]).await;
    snapshot!("role-credentials", output);
    assert_eq!(cloud.issued().len(), 2, "each process assumes the role itself");
    assert!(cloud.rules.own.lock().unwrap().is_empty());
    let output = run(&["--thread", "t1", "credentials"]).await;
    snapshot!("role-none", output);
    let output = run(&["--thread", "t1", "--role-with", "kms", "ls"]).await;
    snapshot!("role-options-without", output);
    let output = run(&["--thread", "t1", "--role-arn", "agents", "ls"]).await;
    snapshot!("role-malformed", output);
    let output = run(&["--role-arn", ROLE, "admin", "list"]).await;
    snapshot!("role-for-admin", output);
    *cloud.rules.refused.lock().unwrap() = Some("/t1/".to_owned());
    let output = confined(&["ls", "/workspace"]).await;
    snapshot!("role-refused", output);
    cloud.rules.sts_is_down.store(true, std::sync::atomic::Ordering::SeqCst);
    let output = confined(&["--json", "ls", "/workspace"]).await;
    snapshot!("role-sts-down", output);
    // The variable selects the role, too; `admin` commands and local stores ignore it.
    let with_variable = |args: &[&str]| program().env("SKILLFS_ROLE_ARN", ROLE).args(args).output().unwrap();
    let data = DATA.path().to_str().unwrap();
    assert!(with_variable(&["--embedded", data, "--thread", "t-42", "ls"]).status.success());
    assert!(with_variable(&["--embedded", data, "admin", "list"]).status.success());
}
