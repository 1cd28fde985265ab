//! The requests that each operation sends, counted by a proxy.

use skillfs::{Depth, S3Backend, SkillFs, Window, WriteMode};

use crate::support::wire::{Reply, Wire};
use crate::support::{Bucket, session};

struct Counted {
    wire: Wire,
    fs: SkillFs,
    backend: S3Backend,
}

impl Counted {
    async fn new() -> Self {
        let bucket = Bucket::embedded().await;
        for (key, content) in [
            ("threads/1/notes.md", "note".to_owned()),
            ("threads/1/dir/x.txt", "x".to_owned()),
            ("threads/1/dir/deep/y.txt", "y".to_owned()),
            ("threads/1/empty.txt", String::new()),
            ("threads/1/large.txt", "0123456789\n".repeat(20_000)),
            ("threads/1/pic.png", "\u{1}PNG".to_owned()),
        ] {
            bucket.put(key, content).await;
        }
        let wire = Wire::start(Some(&bucket.endpoint), |_, _| Reply::Forward).await;
        let fs = bucket.through(&wire.endpoint).await;
        let backend = fs.session(&session("u1", "1", "k1"));
        Self { wire, fs, backend }
    }

    /// Compares the requests since the last call with the expected ones.
    fn cost(&self, expected: &[&str]) {
        assert_eq!(self.wire.operations(), expected);
    }
}

#[tokio::test]
async fn listing_costs_one_request_a_page() {
    let c = Counted::new().await;
    c.backend.ls("/").await.unwrap();
    c.cost(&[]);
    c.backend.ls("/workspace").await.unwrap();
    c.cost(&["LIST"]);
    c.backend.ls("/ticket").await.unwrap();
    c.cost(&["LIST"]);
    c.backend.ls_recursive("/workspace").await.unwrap();
    c.cost(&["LIST"]);
    c.backend.tree("/workspace").await.unwrap();
    c.cost(&["LIST"]);
    c.backend.ls("/workspace/none").await.unwrap_err();
    c.cost(&["HEAD", "LIST"]);
    c.backend.ls("/workspace/notes.md").await.unwrap_err();
    c.cost(&["HEAD", "LIST"]);
    c.backend.ls("/nowhere").await.unwrap_err();
    c.backend.ls("/workspace/..").await.unwrap_err();
    drop(c.backend.ls_stream("/workspace", Depth::All));
    c.cost(&[]);
}

#[tokio::test]
async fn reading_costs_one_request_up_to_64_kib_and_two_beyond() {
    let c = Counted::new().await;
    c.backend.read("notes.md").await.unwrap();
    c.cost(&["GET"]);
    c.backend.read_window("notes.md", Window::default().offset(0).limit(1)).await.unwrap();
    c.cost(&["GET"]);
    c.backend.read("large.txt").await.unwrap();
    c.cost(&["GET", "GET"]);
    c.backend.read_bytes("large.txt", ..).await.unwrap();
    c.cost(&["GET"]);
    c.backend.read_bytes("large.txt", 5..10).await.unwrap();
    c.cost(&["GET"]);
    c.backend.read("notes").await.unwrap();
    c.cost(&["GET", "GET"]);
    c.backend.read("empty.txt").await.unwrap();
    c.cost(&["GET", "HEAD"]);
    c.backend.read("none.md").await.unwrap_err();
    c.cost(&["GET", "LIST"]);
    c.backend.read("none").await.unwrap_err();
    c.cost(&["GET", "GET", "LIST"]);
    c.backend.read("dir").await.unwrap_err();
    c.cost(&["GET", "GET", "LIST"]);
    c.backend.read("/workspace").await.unwrap_err();
    c.backend.read("/nowhere").await.unwrap_err();
    c.cost(&[]);
}

#[tokio::test]
async fn probing_costs_one_to_three_requests() {
    let c = Counted::new().await;
    c.backend.exists("notes.md").await.unwrap();
    c.cost(&["HEAD"]);
    c.backend.stat("notes.md").await.unwrap();
    c.cost(&["HEAD"]);
    c.backend.exists("none.md").await.unwrap();
    c.cost(&["HEAD", "LIST"]);
    for path in ["dir", "notes", "none"] {
        c.backend.exists(path).await.unwrap();
        c.cost(&["HEAD", "HEAD", "LIST"]);
    }
    for path in ["/", "/skills", "/workspace", "/ticket"] {
        c.backend.stat(path).await.unwrap();
    }
    c.cost(&[]);
}

#[tokio::test]
async fn the_counters_agree_with_the_wire() {
    let c = Counted::new().await;
    let before = c.fs.requests();
    c.backend.ls("/workspace").await.unwrap();
    c.backend.read("notes").await.unwrap();
    c.backend.stat("dir").await.unwrap();
    let sent = c.fs.requests() - before;
    assert_eq!((sent.list, sent.get, sent.head, sent.other), (2, 2, 2, 0));
    assert_eq!(sent.total() as usize, c.wire.take().len());
}

#[tokio::test]
async fn retries_are_counted_too() {
    let bucket = Bucket::embedded().await;
    let wire =
        Wire::start(Some(&bucket.endpoint), |_, n| if n < 2 { Reply::Reset } else { Reply::Forward }).await;
    let fs = bucket.through(&wire.endpoint).await;
    fs.session(&session("u1", "1", "k1")).ls("/workspace").await.unwrap();
    assert_eq!(fs.requests().list, 3);
}

#[tokio::test]
async fn opening_a_session_sends_nothing() {
    let c = Counted::new().await;
    for i in 0..1_000 {
        let backend = c.fs.session(&session(&format!("u{i}"), "1", "k1"));
        assert_eq!(backend.mounts().count(), 3);
    }
    c.cost(&[]);
}

#[tokio::test]
async fn writing_costs_one_request_and_changing_two() {
    let c = Counted::new().await;
    let b = &c.backend;
    b.write("/workspace/new.md", "x").await.unwrap();
    c.cost(&["PUT"]);
    // A server other than AWS is probed once for support of conditional writes.
    b.write_with("/workspace/newer.md", "x", WriteMode::CreateNew).await.unwrap();
    c.cost(&["PUT", "PUT"]);
    b.write_with("/workspace/newest.md", "x", WriteMode::CreateNew).await.unwrap();
    c.cost(&["PUT"]);
    b.edit("/workspace/new.md", "x", "y").await.unwrap();
    c.cost(&["GET", "PUT"]);
    b.append("/workspace/new.md", "z").await.unwrap();
    c.cost(&["GET", "PUT"]);
    b.append("/workspace/log.md", "z").await.unwrap();
    c.cost(&["GET", "PUT"]);
    b.edit("/workspace/new.md", "none", "y").await.unwrap_err();
    c.cost(&["GET"]);
    b.upload_files([("/workspace/1", "x".into()), ("/workspace/2", "y".into())]).await;
    c.cost(&["PUT", "PUT"]);
    b.download_files(["/workspace/1", "/workspace/2"]).await;
    c.cost(&["GET", "GET"]);
    let before = c.fs.requests();
    b.write("/workspace/new.md", "x").await.unwrap();
    b.copy("/workspace/new.md", "/workspace/copy.md").await.unwrap();
    let counted = c.fs.requests() - before;
    assert_eq!((counted.put, counted.copy, counted.head, counted.list), (1, 1, 3, 1));
}

#[tokio::test]
async fn deleting_copying_and_moving_cost_what_they_say() {
    let c = Counted::new().await;
    let b = &c.backend;
    // Checks source and target, then the source again with its properties.
    b.copy("/workspace/notes.md", "/workspace/copy.md").await.unwrap();
    c.cost(&["HEAD", "HEAD", "HEAD", "LIST", "PUT"]);
    b.move_to("/workspace/copy.md", "/workspace/moved.md").await.unwrap();
    c.cost(&["DELETE", "HEAD", "HEAD", "HEAD", "HEAD", "LIST", "PUT"]);
    b.delete("/workspace/moved.md").await.unwrap();
    c.cost(&["DELETE", "HEAD", "HEAD"]);
    b.copy("/workspace/dir", "/workspace/dir2").await.unwrap();
    c.cost(&["HEAD", "HEAD", "HEAD", "HEAD", "LIST", "LIST", "PUT", "PUT"]);
    b.delete_recursive("/workspace/dir2").await.unwrap();
    c.cost(&["HEAD", "LIST", "POST"]);
    b.delete("/workspace/none.md").await.unwrap_err();
    c.cost(&["HEAD", "HEAD", "LIST"]);
}
