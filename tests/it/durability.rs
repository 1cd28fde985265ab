//! The embedded store on disk: acknowledged writes survive, whatever happens to the process.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use skillfs::embedded::Embedded;
use skillfs::{ErrorKind, SkillFs};

use crate::support::{Bucket, session, settings};

/// Passes the directory to the child process. Without it, the child's tests do nothing.
const CHILD_DIR: &str = "SKILLFS_TEST_CHILD_DIR";

fn content(i: usize) -> Vec<u8> {
    // Every tenth object has several chunks and is written ahead.
    let size = if i % 10 == 9 { 5_000_000 + i } else { 100 + i };
    (0..size).map(|at| ((at * 31 + i) % 251) as u8).collect()
}

/// Runs this test binary again with one test that waits to be killed.
fn child(test: &str, directory: &Path) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--include-ignored"])
        .env(CHILD_DIR, directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Not a separate test: the process that [`what_was_acknowledged_survives_a_kill`] kills.
#[tokio::test]
#[ignore = "runs as a child of another test"]
async fn child_that_writes_until_it_is_killed() {
    let Ok(directory) = std::env::var(CHILD_DIR) else { return };
    let embedded = Embedded::open(&directory).await.unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    for i in 0..100_000 {
        bucket.put(&format!("threads/1/f{i}"), content(i)).await;
        println!("acknowledged {i}");
    }
}

/// Not a separate test: holds the store open until it is killed.
#[tokio::test]
#[ignore = "runs as a child of another test"]
async fn child_that_holds_the_store() {
    let Ok(directory) = std::env::var(CHILD_DIR) else { return };
    let _embedded = Embedded::open(&directory).await.unwrap();
    println!("acknowledged");
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let mut written = 0;
    for round in 1..=3 {
        let mut child = child("durability::child_that_writes_until_it_is_killed", directory.path());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Kill it while a large object is in flight: every tenth one is large.
        let stop = round * 10 - 2;
        let last = lines
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("acknowledged ")?.parse::<usize>().ok())
            .find(|i| *i >= stop);
        child.kill().unwrap();
        child.wait().unwrap();
        written = written.max(last.expect("the child ended early") + 1);

        let embedded = Embedded::open(directory.path()).await.unwrap();
        embedded.create_bucket("test-bucket").await.unwrap();
        let fs = SkillFs::embedded(&embedded, &settings("test-bucket")).await.unwrap();
        let backend = fs.session(&session("u1", "1", "k1"));
        for i in 0..written {
            let read = backend.read_bytes(&format!("f{i}"), ..).await.unwrap();
            assert!(read.bytes == content(i), "object {i} after {round} kills");
        }
        // Unacknowledged objects exist completely or not at all.
        for entry in backend.ls("/workspace").await.unwrap().entries {
            let i: usize = entry.name()[1..].parse().unwrap();
            let read = backend.read_bytes(&entry.path, ..).await.unwrap();
            assert!(read.bytes == content(i), "object {i}, which was not acknowledged");
        }
    }
}

#[tokio::test]
async fn a_second_process_gets_unavailable_with_a_hint() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = child("durability::child_that_holds_the_store", directory.path());
    let ready = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(ready.into_iter().any(|line| line.contains("acknowledged")));
    let error = Embedded::open(directory.path()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("in use by another process"), "{error}");
    assert!(error.report().contains("wait"), "{error}");

    // A process that waits while the first one exits gets the store.
    let path = directory.path().to_owned();
    let second = tokio::spawn(async move { Embedded::open(path).await });
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    child.kill().unwrap();
    child.wait().unwrap();
    second.await.unwrap().unwrap();
}

#[tokio::test]
async fn writes_survive_reopening() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let embedded = Embedded::open(directory.path().join("made/on/the/way")).await.unwrap();
        embedded.create_bucket("test-bucket").await.unwrap();
        let fs = SkillFs::embedded(&embedded, &settings("test-bucket")).await.unwrap();
        let backend = fs.session(&session("u1", "1", "k1"));
        assert_eq!(backend.ls("/workspace").await.unwrap().entries.len(), round);
        embedded.put("test-bucket", &format!("threads/1/f{round}"), "x").await.unwrap();
        embedded.put("test-bucket", "threads/1/f0", content(9 + round)).await.unwrap();
        assert!(backend.read_bytes("f0", ..).await.unwrap().bytes == content(9 + round));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_and_readers_never_mix_versions() {
    let bucket = Bucket::embedded().await;
    bucket.put("threads/1/x", vec![0; 600_000]).await;
    let writers = (1..=4u8).map(|writer| {
        let (raw, name) = (bucket.raw.clone(), bucket.name.clone());
        tokio::spawn(async move {
            for _ in 0..10 {
                let body = vec![writer; 600_000 + usize::from(writer)];
                raw.put_object().bucket(&name).key("threads/1/x").body(body.into()).send().await.unwrap();
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let backend = bucket.session();
    for _ in 0..40 {
        let bytes = backend.read_bytes("x", ..).await.unwrap().bytes;
        assert!(bytes.iter().all(|b| *b == bytes[0]), "two versions in one read");
        assert_eq!(bytes.len(), 600_000 + usize::from(bytes[0]));
    }
    for writer in writers {
        writer.await.unwrap();
    }
}

#[tokio::test]
async fn a_file_that_is_no_store_is_corrupt_and_stays_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("skillfs.redb");
    std::fs::write(&file, "this is somebody's poem\n".repeat(1_000)).unwrap();
    let error = Embedded::open(directory.path()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.hint().is_some());
    assert!(std::fs::read_to_string(&file).unwrap().starts_with("this is somebody's poem"));
    // A file instead of a directory.
    let error = Embedded::open(&file).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[tokio::test]
async fn a_damaged_store_is_corrupt() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("skillfs.redb");
    let embedded = Embedded::open(directory.path()).await.unwrap();
    embedded.create_bucket("test-bucket").await.unwrap();
    let objects = (0..200).map(|i| (format!("threads/1/f{i}"), vec![b'x'; 5_000].into()));
    embedded.put_all("test-bucket", objects).await.unwrap();
    drop(embedded);
    let whole = std::fs::read(&file).unwrap();
    let mut found = 0;
    for at in (8_192..whole.len() - 65_536).step_by(whole.len() / 16) {
        let mut damaged = whole.clone();
        damaged[at..at + 40_960].fill(0x5a);
        std::fs::write(&file, damaged).unwrap();
        let outcome = async {
            let embedded = Embedded::open(directory.path()).await?;
            let fs = SkillFs::embedded(&embedded, &settings("test-bucket")).await?;
            let backend = fs.session(&session("u1", "1", "k1"));
            for entry in backend.ls("/workspace").await?.entries {
                backend.read(&entry.path).await?;
            }
            Ok::<_, skillfs::Error>(())
        };
        match outcome.await.map_err(|e| e.kind()) {
            // Free space, or content without a checksum.
            Ok(()) | Err(ErrorKind::NotFound | ErrorKind::BinaryFile) => {}
            // The list of buckets may be damaged.
            Err(ErrorKind::Corrupt | ErrorKind::Unavailable) => found += 1,
            Err(other) => panic!("damage at {at} is {other}"),
        }
    }
    assert!(found > 0, "no damage was noticed");
}
