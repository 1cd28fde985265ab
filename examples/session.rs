//! An agent's session in a program of one's own.
//!
//! ```text
//! cargo run --example session
//! ```
//!
//! With a bucket, on S3 or on LocalStack:
//!
//! ```text
//! SKILLFS_BUCKET=acme SKILLFS_ENDPOINT_URL=http://127.0.0.1:4566 cargo run --example session
//! ```

#![allow(clippy::print_stdout, reason = "it is a program")]

use futures_util::TryStreamExt;
use skillfs::embedded::Embedded;
use skillfs::{Depth, ErrorKind, Grep, Session, Settings, SkillFs, ThreadId, UserId, Window};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Once a process.
    let fs = match Settings::from_env() {
        Ok(settings) => SkillFs::connect(&settings).await?,
        Err(_) => sample().await?,
    };

    // Once a request that the product serves: who it is for decides what is seen.
    let backend = fs.session(
        &Session::default().user(UserId::parse("demo-user")?).thread(ThreadId::parse("demo-thread")?),
    );

    for mount in backend.mounts() {
        println!("{} ({:?})", mount.path(), mount.access());
    }

    // A stream starts with the first page, however many there are.
    let mut entries = backend.ls_stream("/skills", Depth::All);
    while let Some(entry) = entries.try_next().await? {
        println!("  {} {}", entry.path, entry.size.map_or(String::new(), |size| format!("({size} bytes)")));
    }

    // What an agent's tool would do with an answer, and with an error.
    for path in ["notes", "/skills/deeds/sale/template.pdf", "/skills/../secrets"] {
        match backend.read_window(path, Window::default().offset(0).limit(100)).await {
            Ok(file) => println!("{}: {} of {:?} lines", file.path, file.lines, file.total_lines),
            Err(error) if error.kind() == ErrorKind::NotFound => println!("{path}: nothing there"),
            Err(error) => println!("{path}: {error}"),
        }
    }

    // Two agents of one thread add to one file at once: none loses a line.
    backend.write("plan.md", "# Plan\n").await?;
    let (one, other) = (backend.clone(), backend.clone());
    let (one, other) = tokio::join!(
        one.append("plan.md", "- draft the deed\n"),
        other.edit("plan.md", "# Plan\n", "# Plan\n- call the buyer\n")
    );
    match one.map(|_| ()).and(other.map(|_| ())) {
        Ok(()) => println!("{}", backend.read("plan.md").await?.content),
        // Nothing tells whether the change took effect: look before repeating it.
        Err(error) if error.may_have_taken_effect() => println!("look again: {error}"),
        Err(error) => println!("not done: {error}"),
    }
    for line in backend.grep(&Grep::new("buyer")).await?.lines {
        println!("{}:{}:{}", line.path, line.line, line.text);
    }

    let requests = fs.requests();
    println!(
        "{} requests: {} LIST, {} GET, {} HEAD, {} PUT",
        requests.total(),
        requests.list,
        requests.get,
        requests.head,
        requests.put
    );
    Ok(())
}

/// No bucket at hand: a store in memory, with a few objects.
async fn sample() -> skillfs::Result<SkillFs> {
    let settings = Settings::new("sample");
    let store = Embedded::in_memory()?;
    store.create_bucket(&settings.bucket).await?;
    let fs = SkillFs::embedded(&store, &settings).await?;
    for (key, content) in [
        ("demo-user/skills/deeds/sale/SKILL.md", &b"---\nname: sale\n---\n# Sale\n"[..]),
        ("demo-user/skills/deeds/sale/template.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"),
        ("threads/demo-thread/notes.md", b"# Notes\n\n- call the buyer\n"),
    ] {
        store.put(&settings.bucket, key, content).await?;
    }
    Ok(fs)
}
