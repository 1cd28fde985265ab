//! Callers that are canceled and processes that are killed at every point of an operation with several
//! requests: nothing is lost, and no partially written data is visible.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use skillfs::{S3Backend, ServerCapabilities, SkillFs, WriteMode};
use tokio::sync::Notify;

use crate::support::wire::{Reply, Wire};
use crate::support::{Bucket, session, settings};

const MIB: usize = 1024 * 1024;

/// A proxy that forwards all requests except for one: that request, or the response to it, never arrives.
struct Broken {
    wire: Wire,
    reached: Arc<Notify>,
    seen: Arc<AtomicUsize>,
}

impl Broken {
    async fn at(b: &Bucket, stop: usize, takes_effect: bool) -> Self {
        let (reached, seen) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (notify, count) = (reached.clone(), seen.clone());
        let wire = Wire::start(Some(&b.endpoint), move |_, _| {
            if count.fetch_add(1, Ordering::SeqCst) != stop {
                return Reply::Forward;
            }
            match takes_effect {
                true => Reply::ForwardThenStall(notify.clone()),
                false => {
                    notify.notify_one();
                    Reply::Stall
                }
            }
        })
        .await;
        Self { wire, reached, seen }
    }

    async fn session(&self, b: &Bucket) -> S3Backend {
        let settings = settings(&b.name)
            .endpoint_url(self.wire.endpoint.clone())
            .region("us-east-1")
            .credentials(b.credentials.clone())
            .part_bytes(5 * MIB as u64)
            .single_copy_bytes(10 * MIB as u64)
            .server(ServerCapabilities::default().conditional_puts(true));
        SkillFs::connect(&settings).await.unwrap().session(&session("u1", "1", "k1"))
    }
}

/// All objects of the bucket with their content.
async fn objects(b: &Bucket) -> BTreeMap<String, Bytes> {
    let mut all = BTreeMap::new();
    let page = b.raw.list_objects_v2().bucket(&b.name).send().await.unwrap();
    for object in page.contents() {
        let key = object.key().unwrap();
        // Requests that were sent before may still take effect, even after the listing.
        let Ok(get) = b.raw.get_object().bucket(&b.name).key(key).send().await else { continue };
        all.insert(key.to_owned(), get.body.collect().await.unwrap().into_bytes());
    }
    all
}

async fn abort_all(b: &Bucket) {
    let open = b.raw.list_multipart_uploads().bucket(&b.name).send().await.unwrap();
    for upload in open.uploads() {
        let (key, id) = (upload.key().unwrap(), upload.upload_id().unwrap());
        let abort = b.raw.abort_multipart_upload().bucket(&b.name).key(key).upload_id(id);
        abort.send().await.unwrap();
    }
}

async fn no_uploads(b: &Bucket) {
    for _ in 0..400 {
        let open = b.raw.list_multipart_uploads().bucket(&b.name).send().await.unwrap();
        if open.uploads().is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("an upload was left behind");
}

const FILES: [&str; 5] = ["a.md", "b.md", "deep/c.md", "deep/d.md", "deep/er/e.md"];

async fn fill(b: &Bucket) {
    for name in FILES {
        b.put(&format!("threads/1/from/{name}"), format!("content of {name}")).await;
    }
    b.put("threads/1/to/a.md", "an older a.md").await;
    b.put("threads/1/to/kept.md", "kept").await;
}

/// Checks that every file is complete at its source or at its target, and that nothing else was modified.
async fn check_tree(b: &Bucket, copy: bool, at: usize) {
    let objects = objects(b).await;
    for name in FILES {
        let content = format!("content of {name}");
        let source = objects.get(&format!("threads/1/from/{name}"));
        let target = objects.get(&format!("threads/1/to/{name}"));
        if copy {
            assert_eq!(source.map(|bytes| &bytes[..]), Some(content.as_bytes()), "{name} at {at}");
        }
        assert!(source.or(target).is_some_and(|bytes| bytes == &content), "{name} at {at}: {objects:?}");
        let old = if name == "a.md" { Some(&b"an older a.md"[..]) } else { None };
        let target = target.map(|bytes| &bytes[..]);
        assert!(target == Some(content.as_bytes()) || target == old, "{name} at {at}");
        if target == old {
            assert!(source.is_some());
        }
    }
    assert_eq!(objects["threads/1/to/kept.md"], "kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_move_or_copy_of_a_tree_loses_nothing() {
    for copy in [true, false] {
        for takes_effect in [true, false] {
            let mut stop = 0;
            loop {
                let b = Bucket::embedded().await;
                fill(&b).await;
                let broken = Broken::at(&b, stop, takes_effect).await;
                let s = broken.session(&b).await;
                let work = async {
                    match copy {
                        true => s.copy("/workspace/from", "/workspace/to").await,
                        false => s.move_to("/workspace/from", "/workspace/to").await,
                    }
                };
                let finished = tokio::select! {
                    done = work => { done.unwrap(); true }
                    () = broken.reached.notified() => false,
                };
                // Requests that were sent before still take effect.
                broken.wire.settled(1).await;
                check_tree(&b, copy, stop).await;
                if finished {
                    break;
                }
                // A second call completes the operation.
                let again = b.session();
                let done = match copy {
                    true => again.copy("/workspace/from", "/workspace/to").await,
                    false => again.move_to("/workspace/from", "/workspace/to").await,
                };
                // Unless everything was done and only the response was missing.
                if let Err(error) = done {
                    assert_eq!(error.kind(), skillfs::ErrorKind::NotFound, "{error}");
                }
                let objects = objects(&b).await;
                for name in FILES {
                    assert_eq!(objects[&format!("threads/1/to/{name}")], format!("content of {name}"));
                    assert_eq!(objects.contains_key(&format!("threads/1/from/{name}")), copy);
                }
                stop += 1;
            }
            // Source and target are checked. Each file is checked and copied, and for a move also checked
            // again and deleted.
            assert!(stop >= if copy { 12 } else { 20 }, "{stop} requests");
            assert!(stop < 40);
        }
    }
}

/// Multipart operations: a long write, a long copy and a long append.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_upload_in_parts_leaves_all_as_it_was() {
    let long: Bytes = (0..11 * MIB).map(|at| (at % 251) as u8).collect::<Vec<u8>>().into();
    let b = Bucket::embedded().await;
    b.put("threads/1/long", &long).await;
    for operation in ["write", "copy", "append", "move"] {
        for takes_effect in [true, false] {
            let mut stop = 0;
            loop {
                b.put("threads/1/long", &long).await;
                b.delete("threads/1/target").await;
                let broken = Broken::at(&b, stop, takes_effect).await;
                let s = broken.session(&b).await;
                let pieces = stream::iter(vec![Ok(long.slice(..6 * MIB)), Ok(long.slice(6 * MIB..))]);
                let work = async {
                    match operation {
                        "write" => s
                            .write_stream("/workspace/target", pieces, WriteMode::CreateNew)
                            .await
                            .map(|_| ()),
                        "copy" => s.copy("/workspace/long", "/workspace/target").await.map(|_| ()),
                        "move" => s.move_to("/workspace/long", "/workspace/target").await.map(|_| ()),
                        _ => s.append("/workspace/long", "more").await.map(|_| ()),
                    }
                };
                let finished = tokio::select! {
                    done = work => { done.unwrap(); true }
                    () = broken.reached.notified() => false,
                };
                broken.wire.settled(2).await;
                // An upload whose ID was never received is left to the bucket's lifecycle rule.
                let log = broken.wire.take();
                if takes_effect && log.get(stop).is_some_and(|request| request.target.contains("?uploads")) {
                    abort_all(&b).await;
                }
                no_uploads(&b).await;
                let objects = objects(&b).await;
                let (source, target) = (objects.get("threads/1/long"), objects.get("threads/1/target"));
                let at = format!("{operation} at {stop}");
                assert!(target.is_none_or(|bytes| *bytes == long), "{at}: half a target");
                match operation {
                    "append" => {
                        let grown = source.unwrap().len() == long.len() + 4;
                        assert!(source.unwrap().starts_with(&long) && (grown || *source.unwrap() == long));
                        assert!(grown || !finished, "{at}");
                    }
                    "move" => assert!(source.or(target).is_some_and(|bytes| *bytes == long), "{at}"),
                    _ => assert_eq!(source, Some(&long), "{at}"),
                }
                if finished {
                    break;
                }
                assert!(broken.seen.load(Ordering::SeqCst) > stop);
                stop += 1;
            }
            assert!((5..25).contains(&stop), "{operation}: {stop} requests");
        }
    }
}

/// The same for a process that is killed, where no destructor runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_move_loses_nothing() {
    let mut stop = 0;
    loop {
        let b = Bucket::embedded().await;
        fill(&b).await;
        let broken = Broken::at(&b, stop, stop % 2 == 0).await;
        let mut child = Command::new(env!("CARGO_BIN_EXE_skillfs"))
            .args(["--bucket", &b.name, "--endpoint-url", &broken.wire.endpoint, "--region", "us-east-1"])
            .args(["--thread", "1", "mv", "/workspace/from", "/workspace/to"])
            .env("AWS_ACCESS_KEY_ID", &b.credentials.access_key_id)
            .env("AWS_SECRET_ACCESS_KEY", &b.credentials.secret_access_key)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let finished = loop {
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success());
                break true;
            }
            let wait = Duration::from_millis(20);
            if tokio::time::timeout(wait, broken.reached.notified()).await.is_ok() {
                child.kill().unwrap();
                child.wait().unwrap();
                break false;
            }
        };
        broken.wire.settled(1).await;
        check_tree(&b, false, stop).await;
        if finished {
            break;
        }
        stop += 1;
    }
    assert!(stop >= 20, "{stop} requests");
}

/// Ctrl-C during a long write aborts the upload and does not wait for more input.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_program_leaves_no_upload_behind() {
    use std::io::Write;
    let b = Bucket::embedded().await;
    let mut child = Command::new(env!("CARGO_BIN_EXE_skillfs"))
        .args(["--bucket", &b.name, "--endpoint-url", &b.endpoint, "--region", "us-east-1"])
        .args(["--thread", "1", "write", "long.bin"])
        .env("AWS_ACCESS_KEY_ID", &b.credentials.access_key_id)
        .env("AWS_SECRET_ACCESS_KEY", &b.credentials.secret_access_key)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Keep standard input open, because more could follow.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&vec![7; 20 * MIB]).unwrap();
    let open = || b.raw.list_multipart_uploads().bucket(&b.name).send();
    while open().await.unwrap().uploads().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"));
    assert!(open().await.unwrap().uploads().is_empty());
    assert!(!b.session().exists("/workspace/long.bin").await.unwrap());
    drop(stdin);
}

/// A caller that is canceled while its failed upload is being aborted does not stop the abort.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_goes_on_when_its_caller_goes_away() {
    let b = Bucket::embedded().await;
    let gate = Arc::new(Notify::new());
    let (go, reached) = (gate.clone(), Arc::new(Notify::new()));
    let aborting = reached.clone();
    let wire = Wire::start(Some(&b.endpoint), move |request, _| match request.method.as_str() {
        "DELETE" => {
            aborting.notify_one();
            Reply::ForwardWhen(go.clone())
        }
        _ => Reply::Forward,
    })
    .await;
    let broken = Broken { wire, reached: reached.clone(), seen: Arc::default() };
    let s = broken.session(&b).await;
    let pieces = (0..12).map(|_| Ok(Bytes::from(vec![7; MIB])));
    let content = stream::iter(pieces.chain([Err(std::io::Error::other("broke"))]));
    tokio::select! {
        _ = s.write_stream("/workspace/x", content, WriteMode::Overwrite) => panic!("it ended early"),
        () = reached.notified() => {}
    }
    gate.notify_one();
    no_uploads(&b).await;
}
