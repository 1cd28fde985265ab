//! Errors as their readers see them: a program, a language model, and somebody at a shell.

use std::collections::BTreeSet;
use std::time::Duration;

use skillfs::admin::{LibraryChange, PushOptions};
use skillfs::{
    Error, ErrorKind, Library, LibraryId, Quota, Session, Settings, SkillFs, StaticCredentials, ThreadId,
    Timeouts, WriteMode,
};

use crate::support::wire::{Reply, Request, Wire};
use crate::support::{Bucket, publish, session};

/// What provoked an error, and the error.
#[derive(Default)]
struct Table(Vec<(&'static str, Error)>);

impl Table {
    fn add<T: std::fmt::Debug>(&mut self, what: &'static str, result: skillfs::Result<T>) {
        self.0.push((what, result.unwrap_err()));
    }
}

/// A bucket behind a server that replies to every request in the same way.
async fn behind(
    bucket: &Bucket,
    reply: impl Fn(&Request) -> Reply + Send + Sync + 'static,
) -> (Wire, SkillFs) {
    let wire = Wire::start(Some(&bucket.endpoint), move |request, _| reply(request)).await;
    let second = Duration::from_secs(1);
    let timeouts = Timeouts::default().connect(second).attempt(second).operation(second);
    let fs = bucket.with(&wire.endpoint, |settings| settings.timeouts = timeouts).await;
    (wire, fs)
}

/// Errors of reading and writing.
async fn of_files(table: &mut Table) {
    let bucket = Bucket::embedded().await;
    for (key, content) in [
        ("threads/1/notes.md", "one\ntwo\none\n"),
        ("threads/1/docs/a.md", "a\n"),
        ("u1/skills/deeds/sale/plantilla.pdf", "%PDF-1.7\n\u{0}\u{1}"),
        ("u1/skills/deeds/sale/SKILL.md", "---\nname: sale\ndescription: Deeds of sale.\n---\n# Sale\n"),
        ("u1/skills/gifts/sale/SKILL.md", "---\nname: sale\ndescription: Sales as gifts.\n---\n# Sale\n"),
        ("u1/skills/broken/SKILL.md", ""),
    ] {
        bucket.put(key, content).await;
    }
    let fs = bucket.session();
    table.add("read a file that does not exist", fs.read("/workspace/nothing.md").await);
    let thread = Session::default().thread(ThreadId::parse("1").unwrap());
    table.add(
        "read a mount that the session does not have",
        bucket.fs.session(&thread).read("/ticket/a").await,
    );
    table.add("list in a session without mounts", bucket.fs.session(&Session::default()).ls("/x").await);
    table.add("load a skill that does not exist", fs.load_skill("nothing").await);
    table.add("list a category that does not exist", fs.skills(Some("nothing")).await);
    table.add("create a file that exists", fs.write_with("notes.md", "x", WriteMode::CreateNew).await);
    let other = WriteMode::IfMatch("0123456789abcdef0123456789abcdef".to_owned());
    table.add("overwrite another version", fs.write_with("docs/new.md", "x", other).await);
    table.add("write to /skills", fs.write("/skills/x.md", "x").await);
    table.add("write to a mount without a grant", fs.write("/ticket/x.md", "x").await);
    table.add("read a path that climbs", fs.read("/workspace/../x").await);
    table.add("parse an id with a slash", ThreadId::parse("a/b"));
    table.add("edit text that occurs twice", fs.edit("notes.md", "one", "1").await);
    table.add("open a handle without a bucket", SkillFs::connect(&Settings::new("")).await.map(drop));
    table.add("read a directory", fs.read("docs").await);
    table.add("delete a directory", fs.delete("docs").await);
    table.add("list a file", fs.ls("notes.md").await);
    table.add("read a binary file", fs.read("/skills/deeds/sale/plantilla.pdf").await);
    table.add("load a skill that cannot be used", fs.load_skill("broken").await);
    table.add("load a skill whose name two skills have", fs.load_skill("sale").await);
    let quota = Quota::default().file_bytes(2);
    let small = bucket.fs.session(&session("u1", "1", "k1").quota(quota));
    table.add("write more than the quota", small.write("big.md", "12345").await);
    let limited = bucket.with(&bucket.endpoint, |settings| settings.max_read_bytes = 4).await;
    let limited = limited.session(&session("u1", "1", "k1"));
    table.add("read a file that is too large", limited.read("notes.md").await);
    let window = skillfs::Window::default().offset(1);
    table.add("read a window that is too large", limited.read_window("notes.md", window).await);
}

/// Errors of the storage.
async fn of_storage(table: &mut Table) {
    let bucket = Bucket::embedded().await;
    bucket.put("threads/1/notes.md", "one\n").await;
    let asked = session("u1", "1", "k1");
    for (what, status, code) in [
        ("access denied", 403, "AccessDenied"),
        ("no such bucket", 404, "NoSuchBucket"),
        ("not an S3 server", 404, "Strange"),
        ("the clock is wrong", 403, "RequestTimeTooSkewed"),
        ("another region", 301, "PermanentRedirect"),
        ("slow down", 503, "SlowDown"),
        ("a server error", 500, "InternalError"),
        ("an unexpected response", 418, "Teapot"),
    ] {
        let (_wire, fs) = behind(&bucket, move |_| Reply::error(status, code)).await;
        table.add(what, fs.session(&asked).read("notes.md").await);
    }
    let (_wire, fs) = behind(&bucket, |_| Reply::Stall).await;
    table.add("no response", fs.session(&asked).read("notes.md").await);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let fs = bucket.through(&format!("http://127.0.0.1:{port}")).await;
    table.add("nothing listens", fs.session(&asked).read("notes.md").await);
    let nobody = StaticCredentials::new(&bucket.credentials.access_key_id, "wrong");
    let fs = crate::support::connect(&bucket.endpoint, &nobody, &bucket.name).await;
    table.add("wrong credentials", fs.session(&asked).read("notes.md").await);
    // A write whose response is lost, and after which the object cannot be read.
    let (_wire, fs) = behind(&bucket, |request| match request.method.as_str() {
        "PUT" => Reply::ForwardLost(None),
        _ => Reply::Reset,
    })
    .await;
    table.add("a write whose response was lost", fs.session(&asked).write("lost.md", "x").await);
}

/// Errors of libraries.
async fn of_libraries(table: &mut Table) {
    let bucket = Bucket::embedded().await;
    let skill = "---\nname: sale\ndescription: Deeds of sale.\n---\n# Sale\n";
    bucket.put("shared/acme/skills/sale/SKILL.md", skill).await;
    let library = Library::Shared(LibraryId::parse("acme").unwrap());
    let (fs, options) = (&bucket.fs, PushOptions::default());
    table.add(
        "roll back a plain library",
        fs.library(&library).plan(LibraryChange::Rollback { release: 1 }, &options).await.map(drop),
    );
    publish(fs, &library).await;
    table.add(
        "roll back to a release that does not exist",
        fs.library(&library).plan(LibraryChange::Rollback { release: 9 }, &options).await.map(drop),
    );
    table.add(
        "unpin a skill that is not pinned",
        fs.library(&library).plan(LibraryChange::Unpin { skill: "sale".into() }, &options).await.map(drop),
    );
    bucket.put("shared/acme/.skillfs/index.json", "{").await;
    let reader = Session::default().libraries([LibraryId::parse("acme").unwrap()]);
    table.add("read a library with a damaged index", fs.session(&reader).read("/skills/sale/SKILL.md").await);
    table.add(
        "plan a push to it",
        fs.library(&library).plan(LibraryChange::Rollback { release: 1 }, &options).await.map(drop),
    );
}

/// Flags, commands of the program and its variables have no place in what the library says.
fn check_plain(text: &str) {
    for word in ["--", "`skillfs", "skillfs admin", "SKILLFS_", "`aws ", "`git ", "`rm", "`ls ", "`read "] {
        assert!(!text.contains(word), "`{word}` is in: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_error_is_written_for_its_reader() {
    let mut table = Table::default();
    of_files(&mut table).await;
    of_storage(&mut table).await;
    of_libraries(&mut table).await;
    let mut text = String::new();
    for &kind in ErrorKind::ALL {
        for (what, error) in table.0.iter().filter(|(_, error)| error.kind() == kind) {
            let program = error.to_string();
            assert!(!program.contains('\n'), "{program}");
            let retry = if error.is_retryable() { ", retryable" } else { "" };
            let report = error.report();
            check_plain(&program);
            check_plain(&report);
            let mut shell = format!("error: {program}");
            if let Some(hint) = error.hint() {
                shell += &format!("\nhint: {}", skillfs_cli::hint(hint));
            }
            let indent = |text: &str| text.replace('\n', "\n              ");
            text += &format!("{kind}: {what}\n    program   {program} [{kind}{retry}]\n");
            text += &format!("    model     {}\n    shell     {}\n\n", indent(&report), indent(&shell));
        }
    }
    let seen: BTreeSet<&str> = table.0.iter().map(|(_, error)| error.kind().as_str()).collect();
    let missing: Vec<_> = ErrorKind::ALL.iter().filter(|kind| !seen.contains(kind.as_str())).collect();
    assert!(missing.is_empty(), "no error of these kinds: {missing:?}");
    insta::with_settings!({
        filters => vec![
            (r"127\.0\.0\.1:\d+", "ADDRESS"),
            (r"os error \d+", "os error N"),
            (r"newest first: (\d+)-[A-Za-z0-9_-]+", "newest first: $1-ID"),
        ],
        omit_expression => true,
        prepend_module_to_snapshot => false,
    }, {
        insta::assert_snapshot!("errors", text);
    });
}
