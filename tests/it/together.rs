//! Regression tests for the cache with concurrent callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use skillfs::embedded::Embedded;
use skillfs::{ErrorKind, Freshness, Grep, LibraryId, S3Backend, Session, Settings, SkillFs, Window};
use tokio::sync::Notify;

use crate::skills::skill;
use crate::support::wire::{Hook, Reply, Wire};
use crate::support::{Bucket, session};

const HOUR: Duration = Duration::from_secs(3600);

fn caching(settings: &mut Settings) {
    settings.freshness = Freshness::all(HOUR);
}

fn open(fs: &SkillFs) -> S3Backend {
    fs.session(&session("u1", "1", "k1"))
}

/// A reply that is forwarded immediately and returned when `go` is notified; `forwarded` is notified in between.
fn held(forwarded: &Arc<Notify>, go: &Arc<Notify>) -> Reply {
    let (forwarded, go) = (forwarded.clone(), go.clone());
    Reply::ForwardHook(Hook(Arc::new(move || {
        let (forwarded, go) = (forwarded.clone(), go.clone());
        Box::pin(async move {
            forwarded.notify_one();
            go.notified().await;
        })
    })))
}

/// A reader of a window of a long text got the failure of a caller that requested all of its bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_does_not_fail_because_of_a_read_of_all_bytes() {
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    embedded.put(&bucket.name, "threads/1/long.txt", "line\n".repeat(100_000)).await.unwrap();
    let first = AtomicUsize::new(0);
    let (forwarded, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (t, g) = (forwarded.clone(), go.clone());
    let wire = Wire::start(Some(&bucket.endpoint), move |_, _| match first.fetch_add(1, Ordering::SeqCst) {
        0 => held(&t, &g),
        _ => Reply::Forward,
    })
    .await;
    let fs = bucket
        .with(&wire.endpoint, |settings| {
            caching(settings);
            settings.max_read_bytes = 100_000;
        })
        .await;
    let s = open(&fs);
    let bytes = tokio::spawn(async move { s.read_bytes("long.txt", ..).await.map(drop) });
    forwarded.notified().await;
    let s = open(&fs);
    let window =
        tokio::spawn(async move { s.read_window("long.txt", Window::default().offset(0).limit(2)).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    go.notify_one();
    assert_eq!(bytes.await.unwrap().unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(window.await.unwrap().unwrap().content, "line\nline\n");
}

/// With two libraries, a long file that another program changed could not be read until the freshness bound
/// was over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_file_of_a_changed_layer_is_read_again() {
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    let long = |text: &str| format!("{text}\n").repeat(100_000);
    embedded.put(&bucket.name, "shared/acme/skills/a/SKILL.md", skill("a")).await.unwrap();
    embedded.put(&bucket.name, "shared/acme/skills/a/long.txt", long("old")).await.unwrap();
    for layers in [1, 2] {
        embedded.put(&bucket.name, "shared/acme/skills/a/long.txt", long("old")).await.unwrap();
        let fs = bucket
            .with(&bucket.endpoint, |settings| {
                caching(settings);
                settings.max_read_bytes = 100_000;
            })
            .await;
        let libraries = vec![LibraryId::parse("acme").unwrap()];
        let who = if layers == 1 {
            Session::default().libraries(libraries)
        } else {
            session("u1", "1", "k1").libraries(libraries)
        };
        let s = fs.session(&who);
        s.load_skills(None).await.unwrap();
        let window = Window::default().offset(50_000).limit(1);
        assert_eq!(s.read_window("/skills/a/long.txt", window).await.unwrap().content, "old\n");
        bucket.put("shared/acme/skills/a/long.txt", long("new")).await;
        for _ in 0..3 {
            let window = Window::default().offset(90_000).limit(1);
            let read = s.read_window("/skills/a/long.txt", window).await.map(|text| text.content);
            assert_eq!(read.map_err(|e| e.to_string()), Ok("new\n".to_owned()), "{layers} layers");
        }
    }
}

/// Every entry that keeps an index alive must include its size. Otherwise, memory would be used without being
/// counted.
#[tokio::test]
async fn what_keeps_an_index_alive_counts_it() {
    let bucket = Bucket::embedded().await;
    let file = |name: &str, i: u64| format!(r#""a/{name}":{{"size":1,"sha256":"{i:064}","blob":0}}"#);
    let mut files: Vec<String> = (0..5_000).map(|i| file(&format!("references/file-{i:05}.md"), i)).collect();
    files.push(file("SKILL.md", 5_000));
    let release = r#""id":"x","at":1"#;
    let index = format!(
        r#"{{"format":1,"kind":"published","id":"x","release":1,"releases":[{{"number":1,{release},"by":"","source":""}}],"origins":[{{"release":1,{release}}}],"files":{{{}}},"heads":{{"a":{{"frontmatter":"name: a\ndescription: A\n"}}}}}}"#,
        files.join(",")
    );
    bucket.put("u1/.skillfs/index.json", &index).await;
    let fs = bucket.with(&bucket.endpoint, caching).await;
    assert_eq!(open(&fs).skills(None).await.unwrap().list()[0].resources.len(), 5_000);
    // The index, the library and the union of libraries.
    assert!(fs.cache().bytes > 3 * index.len() as u64, "{:?}, and the index has {}", fs.cache(), index.len());
    // If it does not fit into the cache, nothing keeps it alive.
    let small = |settings: &mut Settings| {
        caching(settings);
        settings.cache_bytes = index.len() as u64;
    };
    let fs = bucket.with(&bucket.endpoint, small).await;
    open(&fs).skills(None).await.unwrap();
    assert!(fs.cache().bytes < 100_000, "{:?}", fs.cache());
}

/// A caller that requested the same data as a busy tenant waited in the busy tenant's queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_library_does_not_wait_in_anothers_queue() {
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    let objects = (0..400).map(|i| (format!("threads/busy/{i}.md"), bytes::Bytes::from("text")));
    embedded.put_all(&bucket.name, objects).await.unwrap();
    embedded.put(&bucket.name, "shared/acme/skills/a/SKILL.md", skill("a")).await.unwrap();
    let wire =
        Wire::start(Some(&bucket.endpoint), |_, _| Reply::ForwardAfter(Duration::from_millis(20))).await;
    let fs = bucket
        .with(&wire.endpoint, |settings| {
            caching(settings);
            settings.max_requests = 64;
            settings.max_requests_per_tenant = 4;
        })
        .await;
    let libraries = vec![LibraryId::parse("acme").unwrap()];
    let of = |user: &str| fs.session(&session(user, user, "k1").libraries(libraries.clone()));
    let busy = of("busy");
    let tasks: Vec<_> = (0..400)
        .map(|i| {
            let busy = busy.clone();
            tokio::spawn(async move { busy.read(format!("{i}.md")).await.map(drop) })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let skills = busy.clone();
    let skills = tokio::spawn(async move { skills.load_skills(None).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    let began = Instant::now();
    of("calm").load_skills(None).await.unwrap();
    let took = began.elapsed();
    println!("took {took:?}");
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    skills.await.unwrap().unwrap();
    assert!(took < Duration::from_millis(500), "{took:?}");
}

/// An older response replaced a newer one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_response_does_not_replace_a_newer_one() {
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    embedded.put(&bucket.name, "threads/1/a.md", "old").await.unwrap();
    let first = AtomicUsize::new(0);
    let (forwarded, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (t, g) = (forwarded.clone(), go.clone());
    let wire = Wire::start(Some(&bucket.endpoint), move |_, _| match first.fetch_add(1, Ordering::SeqCst) {
        0 => held(&t, &g),
        _ => Reply::Forward,
    })
    .await;
    let fs = bucket.with(&wire.endpoint, caching).await;
    let slow = open(&fs);
    let slow = tokio::spawn(async move { slow.read("a.md").await.unwrap().content });
    forwarded.notified().await;
    bucket.put("threads/1/a.md", "new").await;
    let s = open(&fs);
    assert_eq!(s.fresh().read("a.md").await.unwrap().content, "new");
    assert_eq!(s.read("a.md").await.unwrap().content, "new");
    go.notify_one();
    assert_eq!(slow.await.unwrap(), "old");
    assert_eq!(s.read("a.md").await.unwrap().content, "new", "what was seen as new is old again");
}

/// A path that is too long for a key is `invalid_path`, regardless of the cache.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_too_long_are_refused_regardless_of_the_cache() {
    let bucket = Bucket::embedded().await;
    bucket.put("u1/skills/a/SKILL.md", skill("a")).await;
    let s = open(&bucket.with(&bucket.endpoint, caching).await);
    let long = format!(
        "/skills/{}",
        ["x".repeat(250), "y".repeat(250), "z".repeat(250), "w".repeat(250), "v".repeat(30)].join("/")
    );
    let kind = |r: Result<(), skillfs::Error>| r.err().map(|e| e.kind());
    let before = (kind(s.exists(&*long).await.map(drop)), kind(s.read(&*long).await.map(drop)));
    s.load_skills(None).await.unwrap();
    let after = (kind(s.exists(&*long).await.map(drop)), kind(s.read(&*long).await.map(drop)));
    assert_eq!(before, after);
}

/// Futures that are not polled held turns in the queue, so a caller that sent a request between two items of
/// a stream waited forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_reads_does_not_lock_its_reader_out() {
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    let objects = (0..300).map(|i| (format!("threads/1/{i}.md"), bytes::Bytes::from("text")));
    embedded.put_all(&bucket.name, objects).await.unwrap();
    let limit = std::env::var("R10_LIMIT").ok().and_then(|n| n.parse().ok());
    let fs = bucket
        .with(&bucket.endpoint, |settings| {
            settings.max_requests_per_tenant = limit.unwrap_or(settings.max_requests_per_tenant);
        })
        .await;
    let s = open(&fs);
    let work = async {
        let reader = s.clone();
        let mut reads = stream::iter(0..300)
            .map(move |i| {
                let s = reader.clone();
                async move { s.read(format!("{i}.md")).await.unwrap().content }
            })
            .buffered(100);
        while let Some(text) = reads.next().await {
            s.append("all.md", text).await.unwrap();
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), work).await.is_ok(), "it hangs");
}

/// The same with our own search, and a limit below its concurrency.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_does_not_block_its_consumer() {
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    let objects = (0..300).map(|i| (format!("threads/1/{i:03}.md"), bytes::Bytes::from("text")));
    embedded.put_all(&bucket.name, objects).await.unwrap();
    let fs = bucket.with(&bucket.endpoint, |settings| settings.max_requests_per_tenant = 16).await;
    let s = open(&fs);
    let other = fs.session(&session("u2", "2", "k2"));
    let work = async {
        let mut hits = s.grep_stream(&Grep::new("text"));
        while let Some(hit) = hits.next().await {
            s.stat(hit.unwrap().path).await.unwrap();
        }
    };
    let done = tokio::time::timeout(Duration::from_secs(20), work).await.is_ok();
    other.ls("/workspace").await.unwrap();
    assert!(done, "it hangs");
}

/// If an index cannot be read for another reason than 403, it is unknown what is published.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_index_is_an_error() {
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    embedded.put(&bucket.name, "u1/skills/a/SKILL.md", skill("a")).await.unwrap();
    for (status, code) in [
        (400, "KMS.DisabledException"),
        (400, "InvalidArgument"),
        (404, "NoSuchVersion"),
        (500, "InternalError"),
    ] {
        let wire = Wire::start(Some(&bucket.endpoint), move |request, _| {
            match request.target.contains("index.json") {
                true => Reply::error(status, code),
                false => Reply::Forward,
            }
        })
        .await;
        let fs = bucket.with(&wire.endpoint, |_| ()).await;
        let error = open(&fs).skills(None).await.unwrap_err();
        assert!(error.message().contains(code), "{status} {code}: {error:?}");
    }
}

/// An upload whose content stalls held turns in the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_upload_does_not_lock_others_out() {
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    embedded.put(&bucket.name, "threads/1/a.md", "text").await.unwrap();
    // Parts end one after another, so that those in flight have started.
    let wire = Wire::start(Some(&bucket.endpoint), |request, _| {
        let part = request.target.split("partNumber=").nth(1).and_then(|n| n[..1].parse::<u64>().ok());
        Reply::ForwardAfter(Duration::from_millis(part.map_or(0, |part| 40 * part)))
    })
    .await;
    // This corresponds to 22 such uploads of one tenant with the default limit of 64, or 86 of four tenants
    // with the limit of the process.
    let fs = bucket
        .with(&wire.endpoint, |settings| {
            settings.max_requests_per_tenant = 3;
            settings.part_bytes = 5 * 1024 * 1024;
        })
        .await;
    let s = open(&fs);
    let part = bytes::Bytes::from(vec![b'x'; 5 * 1024 * 1024]);
    let content = stream::iter((0..6).map(move |_| Ok(part.clone()))).chain(stream::pending());
    let upload = s.clone();
    let upload = tokio::spawn(async move {
        upload.write_stream("long.bin", content, skillfs::WriteMode::Overwrite).await.map(drop)
    });
    // All parts that the content fills.
    let mut parts = 0;
    for _ in 0..3_000 {
        if parts == 6 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        parts += wire.take().iter().filter(|request| request.target.contains("partNumber=")).count();
    }
    assert_eq!(parts, 6);
    let read = tokio::time::timeout(Duration::from_secs(30), s.read("a.md")).await;
    upload.abort();
    assert!(read.is_ok(), "a read hangs behind an upload that waits for its content");
}
