//! Sources of skills, import decisions, and export to archives and folders.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use skillfs::ErrorKind;
use skillfs::source::{
    Existing, Format, ImportOptions, Imported, Layout, Limits, OriginKind, Provenance, SkillFiles, Source,
    SourceFile, SourceOptions, TrustTier, export, import, new_skill, write_folder,
};
use tempfile::TempDir;

fn skill(name: &str, more: &str, body: &str) -> String {
    format!("---\nname: {name}\ndescription: Does {name}.\n{more}---\n{body}")
}

/// Creates a tree of files.
fn tree(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        put(folder.path(), name, content);
    }
    folder
}

fn put(folder: &Path, name: &str, content: &str) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

fn open(folder: &Path) -> Source {
    Source::open(folder.to_str().unwrap(), &SourceOptions::default()).unwrap()
}

fn open_as(folder: &Path, layout: Layout) -> Source {
    let options = SourceOptions::default().layout(layout);
    Source::folder(folder, &options).unwrap()
}

fn paths(source: &Source) -> Vec<&str> {
    source.skills.iter().map(|skill| skill.path.as_str()).collect()
}

fn names(files: &[SourceFile]) -> Vec<&str> {
    files.iter().map(|file| file.name.as_str()).collect()
}

fn options() -> ImportOptions<'static> {
    ImportOptions::default().installed_at(SystemTime::UNIX_EPOCH + Duration::from_secs(1_794_830_400))
}

fn text(skill: &SkillFiles, name: &str) -> String {
    let file = skill.files.iter().find(|file| file.name == name).unwrap();
    String::from_utf8(file.read().unwrap().to_vec()).unwrap()
}

// ---- layouts ----

#[test]
fn a_skill_is_named_after_its_folder() {
    let a = skill("sale", "", "b");
    let folder =
        tree(&[("sale/SKILL.md", &a), ("sale/references/x.md", "x"), ("sale/.source", "source = 'y'")]);
    let source = open(&folder.path().join("sale"));
    assert_eq!((paths(&source), source.layout), (vec!["sale"], Layout::Folder));
    assert_eq!(names(&source.skills[0].files), [".source", "SKILL.md", "references/x.md"]);
    assert!(source.skills[0].problems.is_empty(), "{:?}", source.skills[0].problems);
    let options = SourceOptions::default().category("deeds/old");
    let source = Source::folder(&folder.path().join("sale"), &options).unwrap();
    assert_eq!(paths(&source), ["deeds/old/sale"]);
    assert!(source.skills[0].problems.is_empty(), "{:?}", source.skills[0].problems);
    let options = SourceOptions::default().category("../x");
    let error = Source::folder(&folder.path().join("sale"), &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidPath);
}

#[test]
fn files_have_sizes_and_sums() {
    let folder = tree(&[("sale/SKILL.md", &skill("sale", "", "b")), ("sale/abc", "abc")]);
    let source = open(folder.path());
    let file = &source.skills[0].files[1];
    assert_eq!((file.name.as_str(), file.size), ("abc", 3));
    assert_eq!(file.sha256.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!(file.read().unwrap(), "abc");
    let mut all = String::new();
    std::io::Read::read_to_string(&mut file.open().unwrap(), &mut all).unwrap();
    assert_eq!(all, "abc");
    assert_eq!(SourceFile::from_bytes("abc", "abc").sha256, file.sha256);
    // A file that has changed since is not accepted.
    for other in ["abd", "abcd", "ab"] {
        std::fs::write(folder.path().join("sale/abc"), other).unwrap();
        assert_eq!(file.read().unwrap_err().kind(), ErrorKind::Conflict, "{other}");
    }
}

#[test]
fn a_tree_keeps_its_paths_and_a_skill_hides_what_lies_in_it() {
    let a = skill("a", "", "b");
    let folder = tree(&[
        ("skills/deeds/a/SKILL.md", &a),
        ("skills/deeds/a/nested/SKILL.md", &a),
        ("skills/deeds/DESCRIPTION.md", "---\ndescription: Deeds.\n---\n"),
        ("skills/unused/DESCRIPTION.md", "x"),
        ("more/b/skill.md", &a),
        (".github/c/SKILL.md", &a),
        ("node_modules/d/SKILL.md", &a),
        ("more/b/__pycache__/x.pyc", "x"),
        ("more/b/.DS_Store", "x"),
        ("more/b/.hidden/x", "x"),
        ("more/b/.env.example", "x"),
    ]);
    let source = open_as(folder.path(), Layout::Folder);
    assert_eq!(paths(&source), ["deeds/a", "more/b"]);
    assert_eq!(names(&source.skills[0].files), ["SKILL.md", "nested/SKILL.md"]);
    assert_eq!(names(&source.skills[1].files), [".env.example", "skill.md"]);
    let categories: Vec<_> = source.categories.iter().map(|category| category.path.as_str()).collect();
    assert_eq!(categories, ["deeds"]);
    assert_eq!(source.skipped.len(), 1);
    assert_eq!(source.skipped[0].path, "more/b/.hidden");
}

#[test]
fn hermes_is_recognised_by_the_descriptions_of_its_categories() {
    let folder = tree(&[
        ("README.md", "r"),
        ("skills/research/DESCRIPTION.md", "---\ndescription: Finding out.\n---\n"),
        ("skills/research/arxiv/SKILL.md", &skill("arxiv", "metadata:\n  hermes: {tags: [a]}\n", "b")),
        ("skills/mlops/train/lora/SKILL.md", &skill("lora", "", "b")),
        ("optional-skills/x/SKILL.md", &skill("x", "", "b")),
    ]);
    let source = open(folder.path());
    assert_eq!((source.layout, paths(&source)), (Layout::Hermes, vec!["mlops/train/lora", "research/arxiv"]));
    assert_eq!(source.categories[0].path, "research");
    assert_eq!(source.categories[0].file.name, "DESCRIPTION.md");
}

#[test]
fn openclaw_is_recognised_by_its_sidecars() {
    let meta =
        r#"{"owner":"ana","slug":"pdf","displayName":"PDF","latest":{"version":"1.2.0","commit":"x"}}"#;
    let folder = tree(&[
        ("skills/ana/pdf/SKILL.md", &skill("pdf", "", "b")),
        ("skills/ana/pdf/_meta.json", meta),
        ("skills/bo/pdf/SKILL.md", &skill("pdf", "", "b")),
        ("skills/bo/pdf/_meta.json", "no json"),
    ]);
    let source = open(folder.path());
    assert_eq!((source.layout, paths(&source)), (Layout::OpenClaw, vec!["ana/pdf", "bo/pdf"]));
    let registry = source.skills[0].registry.as_ref().unwrap();
    assert_eq!((registry.owner.as_deref(), registry.version.as_deref()), (Some("ana"), Some("1.2.0")));
    assert_eq!(registry.display_name.as_deref(), Some("PDF"));
    assert!(source.skills[1].registry.is_none());
}

#[test]
fn in_a_repository_every_skill_is_found_by_its_folder() {
    let a = skill("a", "", "b");
    let files = [("plugins/x/skills/a/SKILL.md", a.as_str()), ("b/SKILL.md", &a), ("q/b/SKILL.md", &a)];
    let folder = tree(&files);
    assert_eq!(paths(&open_as(folder.path(), Layout::Repository)), ["a", "b", "q/b"]);
}

#[test]
fn a_source_without_skills_is_an_error() {
    let folder = tree(&[("README.md", "r")]);
    let place = folder.path().to_str().unwrap();
    let error = Source::open(place, &SourceOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("there is no SKILL.md in"), "{error}");
    let error = Source::open(&format!("{place}/none"), &SourceOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn the_same_tree_is_read_in_the_same_order() {
    let a = skill("a", "", "b");
    let files: Vec<(String, &str)> =
        (0..30).map(|n| (format!("c{}/s{n}/SKILL.md", n % 7), a.as_str())).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), *text)).collect();
    let folder = tree(&files);
    let (one, two) = (open(folder.path()), open(folder.path()));
    assert_eq!(paths(&one), paths(&two));
    assert!(paths(&one).is_sorted());
}

// ---- untrusted folders ----

#[cfg(unix)]
#[test]
fn links_outside_of_the_source_are_refused() {
    use std::os::unix::fs::symlink;
    let secret = tree(&[("secret", "s"), ("d/SKILL.md", &skill("d", "", "b"))]);
    let a = skill("a", "", "b");
    let folder = tree(&[
        ("bad/SKILL.md", &a),
        ("good/SKILL.md", &a),
        ("common/notes.md", "n"),
        (".git/config", "token"),
        ("sly/SKILL.md", &a),
        ("gone/SKILL.md", &a),
        ("linked/other.md", "x"),
    ]);
    let at = |name: &str| folder.path().join(name);
    symlink(secret.path().join("secret"), at("bad/notes.md")).unwrap();
    symlink("../common/notes.md", at("good/notes.md")).unwrap();
    symlink(secret.path().join("d"), at("good/folder")).unwrap();
    symlink("../.git/config", at("sly/notes.md")).unwrap();
    symlink("nowhere", at("gone/notes.md")).unwrap();
    symlink(secret.path().join("d/SKILL.md"), at("linked/SKILL.md")).unwrap();
    symlink(secret.path().join("d"), at("outside")).unwrap();
    symlink("..", at("good/loop")).unwrap();
    let source = open(folder.path());
    assert_eq!(paths(&source), ["good"]);
    assert_eq!(names(&source.skills[0].files), ["SKILL.md", "notes.md"]);
    let said: Vec<_> = source
        .skipped
        .iter()
        .map(|skipped| (skipped.path.as_str(), skipped.reason.as_str(), skipped.refused))
        .collect();
    let not_followed = "it is a link to a folder, which is not followed";
    assert_eq!(said[0], ("bad", "its file `notes.md` is a link that leads out of the source", true));
    assert!(said[1].1.starts_with("its file `notes.md` cannot be read"), "{said:?}");
    assert_eq!(said[2], ("good/folder", not_followed, false));
    assert_eq!(said[3], ("good/loop", not_followed, false));
    assert_eq!(said[4], ("linked", "its file `SKILL.md` is a link that leads out of the source", true));
    assert_eq!(said[5], ("outside", not_followed, false));
    assert_eq!(said[6], ("sly", "its file `notes.md` is a link into a folder that is left out", true));
}

#[cfg(unix)]
#[test]
fn skills_with_invalid_names_are_refused() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let a = skill("a", "", "b");
    let folder = tree(&[
        ("a/SKILL.md", &a),
        ("a/back\\slash", "x"),
        ("b/SKILL.md", &a),
        ("b/line\nbreak", "x"),
        ("c/SKILL.md", &a),
        ("d\\e/f/SKILL.md", &a),
        ("ok/SKILL.md", &a),
    ]);
    std::fs::write(folder.path().join("c").join(OsStr::from_bytes(b"caf\xe9")), "x").unwrap();
    let source = open(folder.path());
    assert_eq!(paths(&source), ["ok"]);
    let reasons: Vec<_> = source.skipped.iter().map(|skipped| skipped.reason.as_str()).collect();
    assert!(reasons[0].contains("`back\\slash`") && reasons[0].contains("backslash"), "{reasons:?}");
    assert!(reasons[1].contains("control character"), "{reasons:?}");
    assert!(reasons[2].contains("not UTF-8"), "{reasons:?}");
    assert!(reasons[3].contains("backslash"), "{reasons:?}");
    assert!(source.skipped.iter().all(|skipped| skipped.refused));
}

#[cfg(unix)]
#[test]
fn pipes_are_not_read() {
    let folder = tree(&[("a/SKILL.md", &skill("a", "", "b"))]);
    let made = Command::new("mkfifo").arg(folder.path().join("a/pipe")).status();
    if made.is_ok_and(|status| status.success()) {
        let source = open(folder.path());
        assert_eq!(source.skipped[0].reason, "its file `pipe` is not a regular file");
    }
}

#[test]
fn limits_apply_to_folders() {
    let a = skill("a", "", "b");
    let folder = tree(&[("a/SKILL.md", &a), ("a/x", "x"), ("a/y", "y"), ("b/c/d/SKILL.md", &a)]);
    let with = |limits: Limits| SourceOptions::default().limits(limits);
    let few = with(Limits::default().max_entries(4));
    assert_eq!(Source::folder(folder.path(), &few).unwrap_err().kind(), ErrorKind::TooLarge);
    let flat = with(Limits::default().max_depth(1));
    let source = Source::folder(folder.path(), &flat).unwrap();
    assert_eq!(paths(&source), ["a"]);
    assert_eq!(source.skipped[0].path, "b/c");
    let small = with(Limits::default().max_file_bytes(10));
    let source = Source::folder(folder.path(), &small).unwrap();
    assert!(source.skills.is_empty());
    assert!(source.skipped[0].reason.contains("the limit is 10"), "{:?}", source.skipped);
}

// ---- git ----

fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .current_dir(folder)
        .args(["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"])
        .args(["-c", "commit.gpgsign=false"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A repository with two commits and a tag on the first.
fn repository() -> (TempDir, PathBuf, String, String) {
    let folder = tree(&[("work/tools/pdf/SKILL.md", &skill("pdf", "", "old"))]);
    let work = folder.path().join("work");
    git(&work, &["init", "--quiet"]);
    git(&work, &["add", "."]);
    git(&work, &["commit", "--quiet", "-m", "one"]);
    git(&work, &["tag", "v1"]);
    let first = git(&work, &["rev-parse", "HEAD"]);
    put(&work, "tools/pdf/SKILL.md", &skill("pdf", "", "new"));
    put(&work, "tools/xls/SKILL.md", &skill("xls", "", "new"));
    git(&work, &["add", "."]);
    git(&work, &["commit", "--quiet", "-m", "two"]);
    let second = git(&work, &["rev-parse", "HEAD"]);
    (folder, work, first, second)
}

#[test]
fn a_git_repository_is_read_at_its_head_a_tag_and_a_commit() {
    let (_folder, work, first, second) = repository();
    let url = format!("file://{}", work.display());
    let read = |place: &str| Source::open(place, &SourceOptions::default()).unwrap();
    let source = read(&url);
    assert_eq!((source.layout, paths(&source)), (Layout::Repository, vec!["pdf", "xls"]));
    assert_eq!(
        (source.origin.kind, source.origin.commit.as_deref()),
        (OriginKind::Git, Some(second.as_str()))
    );
    assert_eq!(source.origin.location, url);
    for reference in ["v1", &first] {
        let source = read(&format!("{url}#{reference}"));
        assert_eq!(paths(&source), ["pdf"]);
        assert_eq!(source.origin.commit.as_deref(), Some(first.as_str()));
        assert_eq!(source.skills[0].loaded.as_ref().unwrap().body, "old");
    }
    // The provenance records what was fetched.
    let imported = import(read(&format!("{url}#v1")), &options()).unwrap();
    assert_eq!(imported.skills[0].provenance.source, format!("{url}#v1"));
    assert_eq!(imported.skills[0].provenance.commit.as_deref(), Some(first.as_str()));
}

#[test]
fn a_bare_repository_is_named_by_its_path() {
    let (folder, work, _, second) = repository();
    let bare = folder.path().join("skills.git");
    git(folder.path(), &["clone", "--quiet", "--bare", work.to_str().unwrap(), bare.to_str().unwrap()]);
    let source = open(&bare);
    assert_eq!(source.origin.commit.as_deref(), Some(second.as_str()));
}

#[test]
fn a_missing_repository_is_an_error() {
    let (_folder, work, ..) = repository();
    let url = format!("file://{}", work.display());
    let error = Source::open(&format!("{url}#none"), &SourceOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let error = Source::open(&format!("{url}-gone"), &SourceOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.report().contains("check the URL"));
}

#[cfg(unix)]
#[test]
fn a_repository_cannot_run_programs_or_reach_other_files() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let (folder, work, ..) = repository();
    let touched = folder.path().join("touched");
    // Hooks of the repository, a filter, a submodule, and a link to the outside.
    let hook = work.join(".git/hooks/post-checkout");
    put(&work, ".git/hooks/post-checkout", &format!("#!/bin/sh\ntouch {}\n", touched.display()));
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
    put(&work, ".gitattributes", "*.md filter=evil\n");
    put(&work, ".gitmodules", "[submodule \"s\"]\n\tpath = s\n\turl = ext::sh -c touch% x\n");
    put(&work, "sly/SKILL.md", &skill("sly", "", "b"));
    symlink("/etc/passwd", work.join("sly/passwd")).unwrap();
    symlink("../.git/config", work.join("tools/pdf/config")).unwrap();
    git(&work, &["add", "."]);
    git(&work, &["commit", "--quiet", "-m", "three"]);
    let source = Source::open(&format!("file://{}", work.display()), &SourceOptions::default()).unwrap();
    assert_eq!(paths(&source), ["xls"]);
    assert_eq!(source.skipped.iter().filter(|skipped| skipped.refused).count(), 2, "{:?}", source.skipped);
    assert!(!touched.exists());
}

// ---- import ----

fn imported(files: &[(&str, &str)], options: &ImportOptions<'_>) -> Imported {
    import(open(tree(files).path()), options).unwrap_or_else(|error| panic!("{error}"))
}

/// Imports a tree, and inspects the result while the files still exist.
fn with_tree<R>(files: &[(&str, &str)], options: &ImportOptions<'_>, look: impl FnOnce(Imported) -> R) -> R {
    let folder = tree(files);
    look(import(open(folder.path()), options).unwrap())
}

#[test]
fn every_skill_gets_its_provenance() {
    let text_of = skill("sale", "", "b");
    with_tree(&[("deeds/sale/SKILL.md", &text_of)], &options(), |imported| {
        let skill = &imported.skills[0];
        assert_eq!(names(&skill.skill.files), [".source", "SKILL.md"]);
        let source = text(&skill.skill, ".source");
        let said = Provenance::parse(source.as_bytes()).unwrap();
        assert_eq!(said, skill.provenance);
        assert_eq!((said.category.as_deref(), said.commit), (Some("deeds"), None));
        assert_eq!(said.installed_at, "2026-11-16T12:00:00Z");
        assert_eq!((said.trust_tier, said.scripts_imported), (TrustTier::Unreviewed, false));
        // Local paths must not become public.
        assert!(!said.source.contains('/'), "{source}");
    });
}

#[test]
fn a_source_cannot_raise_its_own_trust() {
    let forged = "source = \"https://trusted\"\ntrust_tier = \"bundled\"\n";
    let files = [("a/SKILL.md", skill("a", "", "b")), ("a/.source", forged.to_owned())];
    let files: Vec<_> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    with_tree(&files, &options(), |imported| {
        let source = text(&imported.skills[0].skill, ".source");
        assert!(source.contains("trust_tier = \"unreviewed\"") && !source.contains("bundled"), "{source}");
        assert!(source.contains("claimed_source = \"https://trusted\""), "{source}");
        assert!(
            !source.contains("\nsource = \"https") && !source.starts_with("source = \"https"),
            "{source}"
        );
    });
    let trusted = options().trust(TrustTier::Indexed);
    assert_eq!(imported(&files, &trusted).skills[0].provenance.trust_tier, TrustTier::Indexed);
}

#[test]
fn scripts_are_left_out_unless_asked_for() {
    let a = skill("a", "", "Run scripts/x.py");
    let files = [
        ("a/SKILL.md", a.as_str()),
        ("a/scripts/x.py", "x"),
        ("a/scripts/lib/y.sh", "y"),
        ("a/assets/z.sh", "z"),
        ("a/run.sh", "r"),
    ];
    with_tree(&files, &options(), |imported| {
        let skill = &imported.skills[0];
        assert_eq!(names(&skill.skill.files), [".source", "SKILL.md", "assets/z.sh", "run.sh"]);
        assert_eq!(skill.left_out, ["scripts/lib/y.sh", "scripts/x.py"]);
        assert!(!skill.provenance.scripts_imported);
    });
    with_tree(&files, &options().with_scripts(true), |imported| {
        let skill = &imported.skills[0];
        assert_eq!(skill.skill.files.len(), 6);
        assert!(skill.left_out.is_empty() && skill.provenance.scripts_imported);
    });
}

#[test]
fn tools_are_translated_only_when_asked_for() {
    let a = skill(
        "a",
        "allowed-tools: Bash(git:*), Read, mcp__x\n",
        "Read the `Read` manual, then use `Bash(ls)`.\n\n```\nTask\n```\n",
    );
    let files = [("a/SKILL.md", a.as_str()), ("a/references/b.md", "`Bash`")];
    with_tree(&files, &options(), |imported| {
        let skill = &imported.skills[0];
        assert_eq!(text(&skill.skill, "SKILL.md"), a);
        assert!(skill.provenance.translated_tools.is_empty());
        assert_eq!(skill.provenance.missing_tools, ["mcp__x"]);
        assert!(skill.diagnostics.iter().any(|said| said.code == "missing-tool"));
    });
    with_tree(&files, &options().translate_tools(true), |imported| {
        let skill = &imported.skills[0];
        let expected = self::skill(
            "a",
            "allowed-tools: shell_exec(git:*), file_read, mcp__x\n",
            "Read the `file_read` manual, then use `shell_exec(ls)`.\n\n```\ndelegate_agent\n```\n",
        );
        assert_eq!(text(&skill.skill, "SKILL.md"), expected);
        assert_eq!(text(&skill.skill, "references/b.md"), "`Bash`");
        assert_eq!(skill.provenance.translated_tools, ["Bash", "Read", "Task"]);
    });
}

#[test]
fn danger_needs_consent() {
    let a = skill("a", "required_capabilities: [shell:execute, file:read]\n", "b");
    let b = skill("b", "metadata:\n  required-capabilities: network:listen\n", "b");
    let c = skill("c", "", "b");
    let files = [("a/SKILL.md", a.as_str()), ("b/SKILL.md", &b), ("c/SKILL.md", &c)];
    let none = imported(&files, &options());
    assert_eq!(none.skills.len(), 1);
    assert_eq!(none.refused.len(), 2);
    assert_eq!(none.refused[0].reason, "it requires shell:execute, which was not accepted");
    assert_eq!(none.refused[1].dangerous_capabilities, ["network:listen"]);
    let all = imported(&files, &options().accept_dangerous(true));
    assert_eq!(all.skills.len(), 3);
    assert_eq!(all.skills[0].provenance.dangerous_capabilities, ["shell:execute"]);
    let asked = std::cell::RefCell::new(Vec::new());
    let confirm = |path: &str, capabilities: &[String]| {
        asked.borrow_mut().push(format!("{path}: {}", capabilities.join(" ")));
        path == "b"
    };
    let some = imported(&files, &options().confirm(&confirm));
    let paths: Vec<_> = some.skills.iter().map(|skill| skill.skill.path.as_str()).collect();
    assert_eq!(paths, ["b", "c"]);
    assert_eq!(*asked.borrow(), ["a: shell:execute", "b: network:listen"]);
}

#[test]
fn skills_that_cannot_be_loaded_are_refused() {
    let a = skill("a", "", "b");
    let files = [("a/SKILL.md", a.as_str()), ("empty/SKILL.md", ""), ("deep/a/DESCRIPTION.md", "x")];
    let result = imported(&files, &options());
    assert_eq!((result.skills.len(), result.refused.len()), (1, 1));
    assert!(result.refused[0].reason.starts_with("its SKILL.md cannot be used: "), "{:?}", result.refused);
    assert!(result.categories.is_empty());
}

#[test]
fn dependencies_are_ordered_and_checked() {
    let a = skill("a", "depends: [b, gone]\n", "b");
    let b = skill("b", "required_capabilities: [file:read]\n", "b");
    let c = skill("c", "depends: d\n", "b");
    let d = skill("d", "depends: c\n", "b");
    let mut files = vec![
        ("x/a/SKILL.md".to_owned(), a),
        ("x/b/SKILL.md".to_owned(), b),
        ("x/c/SKILL.md".to_owned(), c),
        ("x/d/SKILL.md".to_owned(), d),
    ];
    for n in 0..7 {
        files.push((
            format!("y/e{n}/SKILL.md"),
            skill(&format!("e{n}"), &format!("depends: e{}\n", n + 1), "b"),
        ));
    }
    files.push(("y/e7/SKILL.md".to_owned(), skill("e7", "", "b")));
    let files: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let result = imported(&files, &options());
    let dependencies = &result.dependencies;
    let place = |path: &str| dependencies.order.iter().position(|known| known == path);
    assert!(place("x/b") < place("x/a") && place("x/b").is_some());
    assert_eq!((place("x/c"), place("x/d")), (None, None));
    assert_eq!(dependencies.cycles, [["x/c", "x/d"]]);
    let mut codes: Vec<_> = dependencies.diagnostics.iter().map(|said| said.code).collect();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes, ["deep-dependency", "dependency-cycle", "missing-dependency", "undeclared-capability"]);
    // All of them are imported anyway.
    assert_eq!(result.skills.len(), files.len());
}

// ---- export ----

fn library() -> Vec<SkillFiles> {
    let files = |text: &str, more: &[(&str, &str)]| {
        let mut files = vec![SourceFile::from_bytes("SKILL.md", text.to_owned())];
        files.extend(more.iter().map(|(name, text)| SourceFile::from_bytes(*name, (*text).to_owned())));
        files
    };
    let long = format!("references/{}.md", "n".repeat(150));
    vec![
        SkillFiles::new(
            "deeds/sale",
            files(&skill("sale", "", "# S"), &[("references/a.md", "A"), (&long, "L")]),
        )
        .unwrap(),
        SkillFiles::new("notes", files(&skill("notes", "", "# N"), &[])).unwrap(),
        SkillFiles::new("wills/sale", files(&skill("sale", "", "# W"), &[])).unwrap(),
        SkillFiles::new("x/Big Name", files(&skill("Big Name", "", "# B"), &[("scripts/x.py", "x")]))
            .unwrap(),
    ]
}

fn exported(format: Format) -> (Vec<u8>, skillfs::source::Exported) {
    let mut bytes = Vec::new();
    let exported = export(&library(), format, &mut bytes).unwrap();
    (bytes, exported)
}

#[test]
fn an_export_is_a_site_of_the_discovery_rfc() {
    let (_, result) = exported(Format::TarGz);
    let urls: Vec<_> = result.skills.iter().map(|skill| (skill.name.as_str(), skill.url.as_str())).collect();
    assert_eq!(
        urls,
        [
            ("big-name", "big-name.tar.gz"),
            ("deeds-sale", "deeds-sale.tar.gz"),
            ("notes", "notes/SKILL.md"),
            ("wills-sale", "wills-sale/SKILL.md"),
        ]
    );
    let (bytes, result) = exported(Format::Zip);
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(bytes)).unwrap();
    let mut index = String::new();
    let file = &mut archive.by_name(".well-known/agent-skills/index.json").unwrap();
    std::io::Read::read_to_string(file, &mut index).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    assert_eq!(index["$schema"], "https://schemas.agentskills.io/discovery/0.2.0/schema.json");
    let first = &index["skills"][0];
    let mut keys: Vec<_> = first.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(keys, ["description", "digest", "name", "type", "url"]);
    assert_eq!(
        (&first["name"], &first["type"], &first["url"]),
        (&"big-name".into(), &"archive".into(), &"big-name.zip".into())
    );
    assert_eq!(index["skills"][2]["type"], "skill-md");
    assert_eq!(first["digest"], result.skills[0].digest);
    assert_eq!(first["description"], "Does Big Name.");
}

#[test]
fn exports_are_deterministic() {
    for format in [Format::Zip, Format::TarGz] {
        assert_eq!(exported(format).0, exported(format).0);
    }
}

#[test]
fn an_export_is_read_back_as_it_was() {
    for format in [Format::Zip, Format::TarGz] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(format!("library{}", format.extension()));
        std::fs::write(&file, exported(format).0).unwrap();
        let source = open(&file);
        assert_eq!(source.layout, Layout::Discovery);
        assert_eq!(source.skipped, []);
        let read: Vec<SkillFiles> =
            source.skills.iter().map(skillfs::source::SourceSkill::to_files).collect();
        let expected = library();
        assert_eq!(read.len(), expected.len());
        for (read, expected) in read.iter().zip(&expected) {
            assert_eq!(read.path, expected.path);
            assert_eq!(names(&read.files), names(&expected.files));
            for (read, expected) in read.files.iter().zip(&expected.files) {
                assert_eq!(read.sha256, expected.sha256, "{}", read.name);
            }
        }
        assert_eq!(source.skills[0].loaded.as_ref().unwrap().body, "# S");
    }
}

#[test]
fn a_checksum_mismatch_refuses_the_site() {
    let a = skill("a", "", "b");
    let digest = SourceFile::from_bytes("x", a.clone()).sha256.to_string();
    let site = |digest: &str, url: &str, name: &str, schema: &str| {
        let index = format!(
            r#"{{"$schema":"https://schemas.agentskills.io/discovery/{schema}/schema.json","later":1,"skills":[{{"name":"{name}",
            "type":"skill-md","description":"d","url":"{url}","digest":"sha256:{digest}"}}]}}"#
        );
        tree(&[
            (".well-known/agent-skills/index.json", &index),
            (".well-known/agent-skills/a/SKILL.md", &a),
            ("secret", "s"),
        ])
    };
    let read = |folder: &TempDir| Source::folder(folder.path(), &SourceOptions::default());
    assert_eq!(paths(&read(&site(&digest, "a/SKILL.md", "a", "0.2.0")).unwrap()), ["a"]);
    let absolute = "/.well-known/agent-skills/a/SKILL.md";
    assert_eq!(paths(&read(&site(&digest, absolute, "a", "0.2.0")).unwrap()), ["a"]);
    let error = read(&site(&"0".repeat(64), "a/SKILL.md", "a", "0.2.0")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("does not have the digest"), "{error}");
    let error = read(&site(&digest, "a/none.md", "a", "0.2.0")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let error = read(&site(&digest, "a/SKILL.md", "a", "9.0.0")).unwrap_err();
    assert!(error.message().contains("its schema is"), "{error}");
    // The URL is not decoded.
    let error = read(&site(&digest, "..%2f..%2fsecret", "a", "0.2.0")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    for (url, name) in [
        ("../../secret", "a"),
        ("https://h/a", "a"),
        ("/etc/passwd", "a"),
        ("a/SKILL.md", "../a"),
        ("a/SKILL.md", "A"),
        ("../index.json/../../../secret", "a"),
        ("/../secret", "a"),
        ("//h/secret", "a"),
        ("file:///etc/passwd", "a"),
        ("a/%2e%2e/%2e%2e/%2e%2e/secret", "a"),
        ("a/SKILL.md", ".."),
        ("a/SKILL.md", "a/b"),
        ("a/SKILL.md", ""),
        ("a/SKILL.md", ".skillfs"),
    ] {
        let source = read(&site(&digest, url, name, "0.2.0")).unwrap();
        assert!(source.skills.is_empty() && source.skipped[0].refused, "{url} {name}");
    }
}

#[test]
fn a_skill_without_its_file_is_not_exported() {
    let skill = SkillFiles::new("a", vec![SourceFile::from_bytes("x", "x")]).unwrap();
    let error = export(&[skill], Format::Zip, &mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSkill);
    for (path, names) in [
        ("/a", vec!["x"]),
        ("a/../b", vec!["x"]),
        ("a", vec!["/x"]),
        ("a", vec!["x//y"]),
        ("a", vec!["."]),
        ("a", vec!["x\\y"]),
        ("a", vec!["x\0"]),
        ("a", vec!["%2e%2e/x"]),
        ("../a", vec!["x"]),
        ("a", vec!["../x"]),
        ("a", vec!["x", "x"]),
        ("a", vec!["x", "x/y"]),
        ("", vec![]),
    ] {
        let files = names.iter().map(|name| SourceFile::from_bytes(*name, "")).collect();
        assert!(SkillFiles::new(path, files).is_err(), "{path} {names:?}");
    }
}

// ---- folders ----

#[test]
fn a_library_is_written_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("new/library");
    let result = write_folder(&library(), &target, Existing::Refuse).unwrap();
    assert_eq!((result.written, result.unchanged), (7, 0));
    assert_eq!(paths(&open(&target)), ["deeds/sale", "notes", "wills/sale", "x/Big Name"]);
    let again = write_folder(&library(), &target, Existing::Refuse).unwrap();
    assert_eq!((again.written, again.unchanged, again.bytes), (0, 7, 0));
    // No temporary files are left.
    let left: Vec<_> =
        std::fs::read_dir(target.join("notes")).unwrap().flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, ["SKILL.md"]);
}

#[test]
fn different_content_is_overwritten_only_on_request() {
    let target = tree(&[("wills/sale/SKILL.md", "mine"), ("mine.txt", "m")]);
    let error = write_folder(&library(), target.path(), Existing::Refuse).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(!target.path().join("deeds").exists(), "nothing is written before all is looked at");
    write_folder(&library(), target.path(), Existing::Replace).unwrap();
    let now = std::fs::read_to_string(target.path().join("wills/sale/SKILL.md")).unwrap();
    assert!(now.contains("# W") && target.path().join("mine.txt").exists());
    let blocked = tree(&[("deeds", "a file")]);
    let error = write_folder(&library(), blocked.path(), Existing::Replace).unwrap_err();
    assert!(error.message().contains("is not a folder"), "{error}");
    let blocked = tree(&[("notes/SKILL.md/x", "a folder")]);
    let error = write_folder(&library(), blocked.path(), Existing::Replace).unwrap_err();
    assert!(error.message().contains("is not a file"), "{error}");
}

#[cfg(unix)]
#[test]
fn links_are_not_written_through() {
    use std::os::unix::fs::symlink;
    let outside = tree(&[("file", "old")]);
    for (link, to) in [("deeds", ""), ("notes", ""), ("notes/SKILL.md", "file")] {
        let target = tempfile::tempdir().unwrap();
        let at = target.path().join(link);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        symlink(outside.path().join(to), &at).unwrap();
        let error = write_folder(&library(), target.path(), Existing::Replace).unwrap_err();
        assert!(error.message().contains("is a link, so nothing was written to it"), "{error}");
        assert_eq!(std::fs::read_to_string(outside.path().join("file")).unwrap(), "old");
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
    }
}

// ---- new skills ----

#[test]
fn a_new_skill_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    for (name, description) in [
        ("deed-of-sale", "Drafts deeds of sale. Use when a house is sold."),
        ("quotes", "Says: \"yes\", 'no' & #1 — and \\ more: always"),
        ("dash", "- not a list"),
        ("tilde", "~"),
        ("yes", "true"),
        ("été", "Für alle Fälle"),
        ("7", "1.10"),
    ] {
        let path = new_skill(name, description, folder.path()).unwrap();
        let source = open(&path);
        assert_eq!(source.skills[0].problems, Vec::<String>::new(), "{name}");
        let document = source.skills[0].loaded.as_ref().unwrap();
        assert_eq!(
            (document.manifest.name.as_str(), document.manifest.description.as_str()),
            (name, description)
        );
        assert!(document.diagnostics.is_empty(), "{:?}", document.diagnostics);
        assert!(document.body.contains("references/example.md"));
        assert_eq!(names(&source.skills[0].files), ["SKILL.md", "references/example.md"]);
    }
}

#[test]
fn an_invalid_name_is_refused_in_the_wording_of_the_validator() {
    let folder = tempfile::tempdir().unwrap();
    let long = "x".repeat(65);
    for (name, description, words) in [
        ("..", "d", "contains invalid characters"),
        ("/a", "d", "contains invalid characters"),
        ("a\\b", "d", "contains invalid characters"),
        ("a\0", "d", "contains invalid characters"),
        ("a\nb: c", "d", "contains invalid characters"),
        (".skillfs", "d", "contains invalid characters"),
        ("Deed", "d", "Skill name 'Deed' must be lowercase"),
        ("a--b", "d", "Skill name cannot contain consecutive hyphens"),
        ("-a", "d", "Skill name cannot start or end with a hyphen"),
        ("a/b", "d", "contains invalid characters"),
        ("../a", "d", "contains invalid characters"),
        ("a b", "d", "contains invalid characters"),
        ("", "d", "Field 'name' must be a non-empty string"),
        (long.as_str(), "d", "exceeds 64 character limit"),
        ("a", "", "Field 'description' must be a non-empty string"),
        ("a", &"d".repeat(1025), "Description exceeds 1024 character limit"),
    ] {
        let error = new_skill(name, description, folder.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSkill, "{error}");
        assert!(error.message().contains(words), "{error}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    new_skill("a", "d", folder.path()).unwrap();
    let error = new_skill("a", "d", folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
}
