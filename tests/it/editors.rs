//! Concurrent writers and lost responses: every change is applied exactly once, or the caller gets an error.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use skillfs::{Error, ErrorKind, S3Backend, SkillFs, Timeouts, WriteMode};

use crate::support::wire::{Reply, Request, Wire, response};
use crate::support::{Bucket, campaign, on_every_server, session, settings};

on_every_server!(
    sixty_four_editors_lose_nothing,
    sixty_four_editors_of_one_process_lose_nothing,
    sixty_four_editors_on_a_bad_wire_lose_nothing,
);

/// A separate handle that shares nothing but the storage with others.
async fn editor(endpoint: &str, b: &Bucket, patience: Duration) -> S3Backend {
    let settings = settings(&b.name)
        .endpoint_url(endpoint.to_owned())
        .region("us-east-1")
        .credentials(b.credentials.clone())
        .conflict_patience(patience);
    SkillFs::connect(&settings).await.unwrap().session(&session("u1", "1", "k1"))
}

/// Adds a unique line: half of the editors use `append`, the other half `edit`.
async fn add_line(s: &S3Backend, number: usize, path: &str) -> Result<(), Error> {
    match number % 2 {
        0 => s.append(path, format!("line {number}\n")).await.map(|_| ()),
        _ => s.edit(path, "top\n", &format!("top\nline {number}\n")).await.map(|_| ()),
    }
}

/// The number of occurrences of each line.
fn lines(content: &str) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for line in content.lines() {
        *counts.entry(line).or_default() += 1;
    }
    counts
}

/// Checks the file: successful changes occur once, failed ones do not, and uncertain ones occur at most once.
fn check(content: &str, results: &[Result<(), Error>], seed: u64) {
    let counts = lines(content);
    for (number, result) in results.iter().enumerate() {
        let found = counts.get(format!("line {number}").as_str()).copied().unwrap_or(0);
        match result {
            Ok(()) => assert_eq!(found, 1, "seed {seed}, line {number} was written\n{content}"),
            Err(error) if error.may_have_taken_effect() => {
                assert!(found <= 1, "seed {seed}, line {number} is there {found} times\n{content}");
                assert_eq!(error.kind(), ErrorKind::Conflict);
                assert!(error.message().contains("may have taken effect"), "{error}");
            }
            Err(error) => assert_eq!(found, 0, "seed {seed}, line {number}: {error}\n{content}"),
        }
    }
    assert_eq!(counts.get("top"), Some(&1));
    assert_eq!(counts.values().sum::<usize>(), counts.len(), "no line appears twice\n{content}");
}

async fn sixty_four_editors_lose_nothing(b: Bucket) {
    b.put("threads/1/log.md", "top\n").await;
    let editors = join_all((0..64).map(|_| editor(&b.endpoint, &b, Duration::from_secs(300)))).await;
    let adding = editors.iter().enumerate().map(|(number, s)| add_line(s, number, "/workspace/log.md"));
    let results = join_all(adding).await;
    let content = b.session().read("/workspace/log.md").await.unwrap().content;
    check(&content, &results, 0);
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 64, "there was time for all");
}

/// Editors in one process wait for each other, so there are no conflicts and each costs two requests.
async fn sixty_four_editors_of_one_process_lose_nothing(b: Bucket) {
    b.put("threads/1/log.md", "top\n").await;
    let s = b.session();
    s.capabilities().await.unwrap();
    let before = b.fs.requests();
    let results = join_all((0..64).map(|number| add_line(&s, number, "/workspace/log.md"))).await;
    let cost = b.fs.requests() - before;
    check(&s.read("/workspace/log.md").await.unwrap().content, &results, 0);
    assert!(results.iter().all(Result::is_ok));
    assert_eq!((cost.get, cost.put, cost.total()), (64, 64, 128));
}

/// A deterministic pseudorandom number, independent of the order of requests.
fn dice(seed: u64, number: u64) -> u64 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 30;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Injects a fault into about one of three requests.
fn fault(request: &Request, dice: u64) -> Reply {
    let writes = request.method == "PUT";
    match dice % 18 {
        0 => Reply::error(503, "SlowDown"),
        1 => Reply::error(500, "InternalError"),
        2 => Reply::Reset,
        3 if writes => Reply::error(409, "ConditionalRequestConflict"),
        // The write takes effect, but the response is lost.
        4..=6 if writes => Reply::ForwardLost(None),
        4 => Reply::ForwardCut(0),
        _ => Reply::Forward,
    }
}

/// The same 64 editors, with eight handles and faults.
async fn sixty_four_editors_on_a_bad_wire_lose_nothing(b: Bucket) {
    b.put("threads/1/log.md", "top\n").await;
    let count = AtomicU64::new(0);
    let wire = Wire::start(Some(&b.endpoint), move |request, _| {
        fault(request, dice(64, count.fetch_add(1, Ordering::SeqCst)))
    })
    .await;
    let handles = join_all((0..8).map(|_| editor(&wire.endpoint, &b, Duration::from_secs(300)))).await;
    let adding = (0..64).map(|number| add_line(&handles[number % 8], number, "/workspace/log.md"));
    let results = join_all(adding).await;
    check(&b.session().read("/workspace/log.md").await.unwrap().content, &results, 64);
    assert!(results.iter().filter(|result| result.is_ok()).count() > 32);
}

/// One thousand runs, each with different faults: 503s, resets and lost responses. Most have five writers,
/// every fiftieth has 64.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_runs_with_faults_lose_nothing_and_repeat_nothing() {
    const AT_ONCE: u64 = 20;
    const HANDLES: usize = 5;
    let runs: u64 = campaign(1_000, 100);
    let b = Bucket::embedded().await;
    // Handles are expensive, so each lane creates its own only once.
    let lane = async |first: u64| {
        let seed = Arc::new(AtomicU64::new(0));
        let (now, count) = (seed.clone(), AtomicU64::new(0));
        let wire = Wire::start(Some(&b.endpoint), move |request, _| {
            fault(request, dice(now.load(Ordering::SeqCst), count.fetch_add(1, Ordering::SeqCst)))
        })
        .await;
        let patience = Duration::from_secs(120);
        let handles = join_all((0..HANDLES).map(|_| editor(&wire.endpoint, &b, patience))).await;
        let mut counts = [0; 3];
        for run in (first..runs).step_by(AT_ONCE as usize) {
            seed.store(run, Ordering::SeqCst);
            let path = format!("/workspace/{run}.md");
            b.put(&format!("threads/1/{run}.md"), "top\n").await;
            let editors = if run % 50 == 0 { 64 } else { HANDLES };
            let adding = (0..editors).map(|number| add_line(&handles[number % HANDLES], number, &path));
            let results = join_all(adding).await;
            let content = b.session().read(&path).await.unwrap().content;
            check(&content, &results, run);
            for result in &results {
                let slot = match result {
                    Ok(()) => 0,
                    Err(error) if error.may_have_taken_effect() => 1,
                    Err(_) => 2,
                };
                counts[slot] += 1;
            }
        }
        counts
    };
    let lanes = join_all((0..AT_ONCE).map(lane)).await;
    let [done, uncertain, failed] =
        [0, 1, 2].map(|slot| lanes.iter().map(|counts| counts[slot]).sum::<usize>());
    println!("{done} changes done, {uncertain} uncertain, {failed} failed");
    // Nearly all changes succeed in spite of the faults, and their callers know.
    let crowded = runs as usize / 50;
    let all = (runs as usize - crowded) * HANDLES + crowded * 64;
    assert_eq!(done + uncertain + failed, all);
    assert!(done * 10 >= all * 9, "only {done} changes went through");
}

/// A proxy that loses the response to the first write. The next request waits for `go`, so that a test can
/// change something in between.
async fn losing_the_first_answer(b: &Bucket) -> (Arc<AtomicBool>, Arc<tokio::sync::Notify>, S3Backend) {
    let (lost, go) = (Arc::new(AtomicBool::new(false)), Arc::new(tokio::sync::Notify::new()));
    let (flag, gate) = (lost.clone(), go.clone());
    let wire = Wire::start(Some(&b.endpoint), move |request, _| {
        let probe = request.target.contains(".skillfs-probe-");
        if request.method == "PUT" && !probe && !flag.swap(true, Ordering::SeqCst) {
            return Reply::ForwardLost(None);
        }
        if flag.load(Ordering::SeqCst) { Reply::ForwardWhen(gate.clone()) } else { Reply::Forward }
    })
    .await;
    let s = editor(&wire.endpoint, b, Duration::from_secs(20)).await;
    (lost, go, s)
}

/// Runs a write whose response is lost, and `meanwhile` before its caller can check the result.
async fn lost<T>(
    b: &Bucket,
    write: impl AsyncFnOnce(S3Backend) -> Result<T, Error>,
    meanwhile: impl AsyncFnOnce(),
) -> Result<T, Error> {
    let (lost, go, s) = losing_the_first_answer(b).await;
    let other = async {
        while !lost.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
        // The request is in flight; it has taken effect when the next one arrives at the proxy.
        tokio::time::sleep(Duration::from_millis(50)).await;
        meanwhile().await;
        for _ in 0..1000 {
            go.notify_waiters();
            go.notify_one();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        result = write(s) => result,
        () = other => panic!("the write did not end"),
    }
}

async fn content(b: &Bucket) -> String {
    b.session().read("/workspace/a.md").await.unwrap().content
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_recognised_by_its_id() {
    for base in [None, Some("top\n")] {
        let b = Bucket::embedded().await;
        if let Some(base) = base {
            b.put("threads/1/a.md", base).await;
        }
        let base = base.unwrap_or_default();
        let done = lost(&b, async |s| s.append("/workspace/a.md", "x").await, async || ()).await.unwrap();
        assert_eq!(content(&b).await, format!("{base}x"));
        assert_eq!(b.session().stat("/workspace/a.md").await.unwrap().etag, done.etag);
        let done = lost(&b, async |s| s.edit("/workspace/a.md", "x", "y").await, async || ()).await.unwrap();
        assert_eq!(content(&b).await, format!("{base}y"));
        assert_eq!(b.session().stat("/workspace/a.md").await.unwrap().etag, done.etag);
        let done = lost(&b, async |s| s.write("/workspace/a.md", "z").await, async || ()).await.unwrap();
        let mode = WriteMode::IfMatch(done.etag.clone().unwrap());
        lost(&b, async |s| s.write_with("/workspace/a.md", "w", mode).await, async || ()).await.unwrap();
        let mode = WriteMode::CreateNew;
        lost(&b, async |s| s.write_with("/workspace/new.md", "w", mode).await, async || ()).await.unwrap();
        lost(&b, async |s| s.copy("/workspace/a.md", "/workspace/c.md").await, async || ()).await.unwrap();
        lost(&b, async |s| s.move_to("/workspace/c.md", "/workspace/d.md").await, async || ()).await.unwrap();
        assert_eq!(content(&b).await, "w");
    }
}

/// The ID is still there after others have changed the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_recognised_behind_other_writers() {
    let b = Bucket::embedded().await;
    b.put("threads/1/a.md", "top\n").await;
    let other = b.session();
    let more = async || {
        for i in 0..100 {
            other.append("/workspace/a.md", format!("other {i}\n")).await.unwrap();
        }
    };
    let done = lost(&b, async |s| s.append("/workspace/a.md", "mine\n").await, more).await.unwrap();
    assert_eq!(done.etag, None, "what is there now is another's");
    assert_eq!(lines(&content(&b).await)["mine"], 1);
}

/// After an overwrite by a program that does not keep the ID, the outcome is unknown, and the change is not
/// applied again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_behind_a_foreign_overwrite_cannot_be_told() {
    let b = Bucket::embedded().await;
    type Writes = fn(S3Backend) -> futures_util::future::BoxFuture<'static, Result<(), Error>>;
    let writes: [(&str, Writes); 5] = [
        ("append", |s| Box::pin(async move { s.append("/workspace/a.md", "mine\n").await.map(|_| ()) })),
        ("edit", |s| Box::pin(async move { s.edit("/workspace/a.md", "top", "mine\n").await.map(|_| ()) })),
        ("write", |s| Box::pin(async move { s.write("/workspace/a.md", "mine\n").await.map(|_| ()) })),
        ("if-match", |s| {
            Box::pin(async move {
                let etag = s.stat("/workspace/a.md").await?.etag.unwrap();
                s.write_with("/workspace/a.md", "mine\n", WriteMode::IfMatch(etag)).await.map(|_| ())
            })
        }),
        ("copy", |s| Box::pin(async move { s.copy("/workspace/b.md", "/workspace/a.md").await.map(|_| ()) })),
    ];
    for (name, write) in writes {
        b.put("threads/1/a.md", "top\n").await;
        b.put("threads/1/b.md", "mine\n").await;
        let error = lost(&b, write, async || b.put("threads/1/a.md", "foreign\n").await).await.unwrap_err();
        assert!(error.may_have_taken_effect(), "{name}: {error}");
        assert_eq!(error.kind(), ErrorKind::Conflict, "{name}");
        assert!(error.message().contains("may have taken effect"), "{name}: {error}");
        assert_eq!(content(&b).await, "foreign\n", "{name} is not applied again");
    }
    let mode = WriteMode::CreateNew;
    let create = async |s: S3Backend| s.write_with("/workspace/new.md", "mine", mode).await;
    let error = lost(&b, create, async || b.put("threads/1/new.md", "foreign").await).await.unwrap_err();
    assert!(error.may_have_taken_effect(), "{error}");
    // The same content as before is not the same version.
    b.put("threads/1/a.md", "top\n").await;
    b.session().edit("/workspace/a.md", "top", "tip").await.unwrap();
    let restore = async || b.put("threads/1/a.md", "tip\n").await;
    let error = lost(&b, async |s| s.append("/workspace/a.md", "mine\n").await, restore).await.unwrap_err();
    assert!(error.may_have_taken_effect(), "{error}");
    assert_eq!(content(&b).await, "tip\n");
}

/// A deletion whose response is lost does not delete a file that another writer created in the meantime.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_deletion_does_not_take_another_file_with_it() {
    for (foreign, succeeds) in [(None, true), (Some("new"), false)] {
        let b = Bucket::embedded().await;
        b.put("threads/1/a.md", "old").await;
        let first = AtomicBool::new(true);
        let (raw, name) = (b.raw.clone(), b.name.clone());
        let wire = Wire::start(Some(&b.endpoint), move |request, _| {
            if request.method == "DELETE" && first.swap(false, Ordering::SeqCst) {
                return Reply::ForwardLost(None);
            }
            Reply::ForwardAfter(Duration::from_millis(300))
        })
        .await;
        let s = editor(&wire.endpoint, &b, Duration::from_secs(20)).await;
        let meanwhile = async {
            while b.raw.head_object().bucket(&b.name).key("threads/1/a.md").send().await.is_ok() {
                tokio::task::yield_now().await;
            }
            if let Some(content) = foreign {
                let body = content.as_bytes().to_vec().into();
                raw.put_object().bucket(&name).key("threads/1/a.md").body(body).send().await.unwrap();
            }
        };
        let (deleted, ()) = tokio::join!(s.delete("/workspace/a.md"), meanwhile);
        match succeeds {
            true => assert_eq!(deleted.unwrap().objects, 1),
            false => assert!(deleted.unwrap_err().may_have_taken_effect()),
        }
        assert_eq!(b.session().exists("/workspace/a.md").await.unwrap(), foreign.is_some());
    }
}

/// After a 412 or a 409, the change is applied to the current content, until the timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conflicts_end_with_the_current_etag() {
    let b = Bucket::embedded().await;
    b.put("threads/1/a.md", "top\n").await;
    for (status, code) in [(412, "PreconditionFailed"), (409, "ConditionalRequestConflict")] {
        let wire = Wire::start(Some(&b.endpoint), move |request, _| match request.method.as_str() {
            "PUT" => Reply::error(status, code),
            _ => Reply::Forward,
        })
        .await;
        let s = editor(&wire.endpoint, &b, Duration::from_millis(300)).await;
        for error in [
            s.append("/workspace/a.md", "x").await.unwrap_err(),
            s.edit("/workspace/a.md", "top", "x").await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Conflict);
            assert!(!error.may_have_taken_effect());
            let etag = b.session().stat("/workspace/a.md").await.unwrap().etag.unwrap();
            assert!(error.message().contains(&etag), "{error}");
        }
        let puts = wire.take().iter().filter(|request| request.method == "PUT").count();
        assert!(puts > 4, "it was tried again: {puts}");
    }
    // A conflict that ends in time is invisible to the caller.
    let count = AtomicU64::new(0);
    let wire = Wire::start(Some(&b.endpoint), move |request, _| {
        let n = if request.method == "PUT" { count.fetch_add(1, Ordering::SeqCst) } else { 9 };
        if n < 4 { Reply::error(409, "ConditionalRequestConflict") } else { Reply::Forward }
    })
    .await;
    let s = editor(&wire.endpoint, &b, Duration::from_secs(20)).await;
    s.append("/workspace/a.md", "x\n").await.unwrap();
    assert_eq!(content(&b).await, "top\nx\n");
}

/// One server that ignores conditions, and one that rejects them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_conditional_writes_edits_are_refused_unless_accepted() {
    let b = Bucket::embedded().await;
    b.put("threads/1/a.md", "top\n").await;
    for ignores in [true, false] {
        let wire = Wire::start(Some(&b.endpoint), move |request, _| {
            let conditional = request.header("if-match").or(request.header("if-none-match")).is_some();
            match (request.method.as_str(), conditional, ignores) {
                // Respond as if the object had been created.
                ("PUT", true, true) => Reply::Raw(response(200, "text/plain", b"")),
                ("PUT", true, false) => Reply::error(501, "NotImplemented"),
                _ => Reply::Forward,
            }
        })
        .await;
        let s = editor(&wire.endpoint, &b, Duration::from_secs(2)).await;
        assert!(!s.capabilities().await.unwrap().conditional_writes);
        // Objects that the probe may have created are deleted.
        let asked = wire.take();
        let deleted = asked.last().is_some_and(|request| request.method == "DELETE");
        assert_eq!(deleted, ignores);
        assert_eq!(asked[0].target, asked[asked.len() - 1].target.replace("DeleteObject", "PutObject"));
        for error in [
            s.append("/workspace/a.md", "x").await.unwrap_err(),
            s.edit("/workspace/a.md", "top", "x").await.unwrap_err(),
            s.write_with("/workspace/b.md", "x", WriteMode::CreateNew).await.unwrap_err(),
            s.write_with("/workspace/a.md", "x", WriteMode::IfMatch("e".into())).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.message().contains("ignores conditional writes"), "{error}");
        }
        // A plain write needs no conditions.
        s.write("/workspace/b.md", "b").await.unwrap();
        let accepted = s.accepting_lost_updates();
        accepted.append("/workspace/a.md", "x\n").await.unwrap();
        accepted.edit("/workspace/a.md", "top\nx\n", "top\n").await.unwrap();
        let create = accepted.write_with("/workspace/b.md", "x", WriteMode::CreateNew).await;
        assert_eq!(create.unwrap_err().kind(), ErrorKind::AlreadyExists);
        let stale = accepted.write_with("/workspace/b.md", "x", WriteMode::IfMatch("e".into())).await;
        assert_eq!(stale.unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(content(&b).await, "top\n");
        assert_eq!(b.session().ls("/workspace").await.unwrap().entries.len(), 2);
        b.delete("threads/1/b.md").await;
    }
    // The embedded store in this process is known to honor conditions; over a socket it is probed once.
    assert!(b.session().capabilities().await.unwrap().conditional_writes);
    let wire = Wire::start(Some(&b.endpoint), |_, _| Reply::Forward).await;
    let s = editor(&wire.endpoint, &b, Duration::from_secs(2)).await;
    assert!(s.capabilities().await.unwrap().conditional_writes);
    s.append("/workspace/a.md", "x\n").await.unwrap();
    assert_eq!(wire.operations(), ["GET", "PUT", "PUT"]);
    assert_eq!(b.session().ls("/workspace").await.unwrap().entries.len(), 1);
}

/// An HTTP date in the past.
fn http_date(ago: u64) -> String {
    let time = std::time::SystemTime::now() - Duration::from_secs(ago);
    let time = aws_sdk_s3::primitives::DateTime::from(time);
    time.fmt(aws_sdk_s3::primitives::DateTimeFormat::HttpDate).unwrap()
}

/// Regression test: with this machine's clock a minute ahead of the server's and the first response lost, a
/// concurrent write by another writer looked older than our write and was overwritten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_ahead_overwrites_nobody() {
    let b = Bucket::embedded().await;
    let answer = |date: String, more: &str| {
        let head = format!("HTTP/1.1 200 OK\r\ndate: {date}\r\n{more}connection: close\r\n\r\n");
        Reply::Raw(head.into_bytes())
    };
    let first = AtomicBool::new(true);
    let wire = Wire::start(Some(&b.endpoint), move |request, _| {
        let date = http_date(60);
        match request.method.as_str() {
            "PUT" if first.swap(false, Ordering::SeqCst) => Reply::Reset,
            "PUT" => answer(date, "etag: \"mine\"\r\ncontent-length: 0\r\n"),
            _ => {
                let more = format!("last-modified: {date}\r\netag: \"theirs\"\r\ncontent-length: 3\r\n");
                answer(date, &more)
            }
        }
    })
    .await;
    let s = editor(&wire.endpoint, &b, Duration::from_secs(2)).await;
    assert!(s.write("/workspace/a.md", "hello").await.unwrap_err().may_have_taken_effect());
    assert_eq!(wire.operations(), ["HEAD", "PUT"]);
}

/// The last attempt may still be in flight, whatever error the first one had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_on_its_way_is_uncertain() {
    let b = Bucket::embedded().await;
    let count = AtomicU64::new(0);
    let wire = Wire::start(Some(&b.endpoint), move |request, _| match request.method.as_str() {
        "PUT" if count.fetch_add(1, Ordering::SeqCst) < 2 => Reply::Reset,
        "PUT" => Reply::ForwardAfter(Duration::from_millis(1500)),
        _ => Reply::Forward,
    })
    .await;
    let timeouts = Timeouts::default()
        .connect(Duration::from_secs(5))
        .attempt(Duration::from_millis(300))
        .operation(Duration::from_millis(500));
    let settings = settings(&b.name)
        .endpoint_url(wire.endpoint.clone())
        .region("us-east-1")
        .credentials(b.credentials.clone())
        .timeouts(timeouts);
    let s = SkillFs::connect(&settings).await.unwrap().session(&session("u1", "1", "k1"));
    let error = s.write("/workspace/a.md", "hello").await.unwrap_err();
    assert!(error.may_have_taken_effect(), "{error}");
    wire.quiet().await;
    assert_eq!(content(&b).await, "hello");
}
