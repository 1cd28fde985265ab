//! A complete program that opens an agent session.
//!
//! ```text
//! cargo run --example session
//! ```
//!
//! With a bucket on S3 or LocalStack:
//!
//! ```text
//! SKILLFS_BUCKET=acme SKILLFS_ENDPOINT_URL=http://127.0.0.1:4566 cargo run --example session
//! ```

#![allow(clippy::print_stdout, reason = "it is a command-line program")]

use futures_util::TryStreamExt;
use skillfs::embedded::Embedded;
use skillfs::{Depth, ErrorKind, Grep, Session, Settings, SkillFs, ThreadId, UserId, Window};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // One handle per process: client, connections, cache.
    let fs = match Settings::from_env() {
        Ok(settings) => SkillFs::connect(&settings).await?,
        Err(_) => sample().await?,
    };

    // One session per request that your product serves. Its ids decide what the agent sees.
    let session = Session::new().user(UserId::parse("demo-user")?).thread(ThreadId::parse("demo-thread")?);
    let backend = fs.session(&session);

    for mount in backend.mounts() {
        println!("{} ({:?})", mount.path(), mount.access());
    }

    // A stream yields entries as soon as the first page arrives.
    let mut entries = backend.ls_stream("/skills", Depth::All);
    while let Some(entry) = entries.try_next().await? {
        println!("  {} {}", entry.path, entry.size.map_or(String::new(), |size| format!("({size} bytes)")));
    }

    // How an agent tool handles results and errors.
    for path in ["notes", "/skills/contracts/sale/template.pdf", "/skills/../secrets"] {
        match backend.read_window(path, Window::default().limit(100)).await {
            Ok(file) => println!("{}: {} of {:?} lines", file.path, file.lines, file.total_lines),
            Err(error) if error.kind() == ErrorKind::NotFound => println!("{path}: does not exist"),
            Err(error) => println!("{path}: {error}"),
        }
    }

    // Two agents change the same file concurrently. No change is lost.
    backend.write("plan.md", "# Plan\n").await?;
    let (one, other) = (backend.clone(), backend.clone());
    let (one, other) = tokio::join!(
        one.append("plan.md", "- draft the agreement\n"),
        other.edit("plan.md", "# Plan\n", "# Plan\n- call the buyer\n")
    );
    match one.map(|_| ()).and(other.map(|_| ())) {
        Ok(()) => println!("{}", backend.read("plan.md").await?.content),
        // It is unknown whether the change took effect: check before you repeat it.
        Err(error) if error.may_have_taken_effect() => println!("check the file: {error}"),
        Err(error) => println!("not changed: {error}"),
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

/// An in-memory store with a few objects, used when no bucket is configured.
async fn sample() -> skillfs::Result<SkillFs> {
    let settings = Settings::new("sample");
    let store = Embedded::in_memory()?;
    store.create_bucket(&settings.bucket).await?;
    let fs = SkillFs::embedded(&store, &settings).await?;
    for (key, content) in [
        (
            "demo-user/skills/contracts/sale/SKILL.md",
            &b"---\nname: sale\ndescription: Drafts purchase agreements.\n---\n# Sale\n"[..],
        ),
        ("demo-user/skills/contracts/sale/template.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"),
        ("threads/demo-thread/notes.md", b"# Notes\n\n- call the buyer\n"),
    ] {
        store.put(&settings.bucket, key, content).await?;
    }
    Ok(fs)
}
