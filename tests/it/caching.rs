//! The cache: which requests it saves, when changes become visible, and how much memory it uses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use skillfs::embedded::Embedded;
use skillfs::{ErrorKind, Freshness, Glob, Grep, LibraryId, S3Backend, Settings, SkillFs};

use crate::skills::skill;
use crate::support::wire::{Reply, Wire};
use crate::support::{Bucket, names, on_every_server, session};

on_every_server!(
    own_writes_are_seen_at_once_by_every_session,
    foreign_changes_are_seen_when_asked_for,
    a_name_that_was_nothing_becomes_something,
    deleted_skills_are_gone_when_asked_for,
);

const HOUR: Duration = Duration::from_secs(3600);

fn caching(settings: &mut Settings) {
    settings.freshness = Freshness::all(HOUR);
}

/// A bucket with a freshness bound of one hour, behind a proxy that counts requests.
async fn counted(objects: &[(&str, &str)]) -> (Bucket, Wire, SkillFs) {
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    let objects = objects.iter().map(|(key, content)| ((*key).to_owned(), (*content).to_owned().into()));
    embedded.put_all(&bucket.name, objects).await.unwrap();
    let wire = Wire::start(Some(&bucket.endpoint), |_, _| Reply::Forward).await;
    let fs = bucket.with(&wire.endpoint, caching).await;
    (bucket, wire, fs)
}

fn open(fs: &SkillFs) -> S3Backend {
    fs.session(&session("u1", "1", "k1"))
}

async fn text(s: &S3Backend, path: &str) -> Result<String, ErrorKind> {
    s.read(path).await.map(|file| file.content).map_err(|error| error.kind())
}

#[tokio::test]
async fn what_is_known_costs_no_request() {
    let deed = skill("deed");
    let (_, wire, fs) = counted(&[
        ("threads/1/a.md", "text\n"),
        ("threads/1/dir/b.bin", "\0\0"),
        ("threads/1/latin.txt", "x"),
        ("u1/skills/c/deed/SKILL.md", &deed),
        ("u1/skills/c/DESCRIPTION.md", "Deeds."),
    ])
    .await;
    let all = async |s: &S3Backend| {
        assert_eq!(text(s, "a").await.unwrap(), "text\n");
        assert_eq!(text(s, "a.md").await.unwrap(), "text\n");
        assert_eq!(s.read_bytes("a.md", ..).await.unwrap().bytes, "text\n");
        assert_eq!(s.read_bytes("a.md", 1..3).await.unwrap().bytes, "ex");
        assert_eq!(text(s, "dir/b.bin").await, Err(ErrorKind::BinaryFile));
        assert_eq!(text(s, "dir").await, Err(ErrorKind::IsDirectory));
        assert_eq!(text(s, "none").await, Err(ErrorKind::NotFound));
        assert!(s.exists("a").await.unwrap() && s.exists("dir").await.unwrap());
        assert!(!s.exists("none.md").await.unwrap());
        assert_eq!(s.stat("a").await.unwrap().path.as_str(), "/workspace/a.md");
        assert_eq!(s.ls("/workspace").await.unwrap().entries.len(), 3);
        assert_eq!(s.ls_recursive("/workspace").await.unwrap().entries.len(), 4);
        assert_eq!(s.tree("/workspace").await.unwrap().children.len(), 3);
        assert_eq!(s.ls("/workspace/none").await.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(s.ls("/workspace/a.md").await.unwrap_err().kind(), ErrorKind::NotDirectory);
        assert_eq!(s.skills(None).await.unwrap().list().len(), 1);
        assert_eq!(s.skills(Some("c")).await.unwrap().categories()[0].description.as_deref(), Some("Deeds."));
        assert_eq!(s.load_skills(None).await.unwrap(), ["c/deed"]);
        assert!(s.load_skill("deed").await.unwrap().content.contains("Steps."));
        assert_eq!(text(s, "/skills/c/deed/SKILL.md").await.unwrap(), deed);
        assert!(s.exists("/skills/c/deed").await.unwrap() && !s.exists("/skills/c/none").await.unwrap());
        assert_eq!(s.ls("/skills/c").await.unwrap().entries.len(), 2);
        assert_eq!(s.glob(Glob::new("**/*.md").root("/skills")).await.unwrap().entries.len(), 2);
        assert_eq!(s.catalog_version().await.unwrap().len(), 64);
    };
    all(&open(&fs)).await;
    assert!(!wire.take().is_empty());
    // The same operations again, also in another session of the same user.
    let before = fs.cache();
    all(&open(&fs)).await;
    assert_eq!(wire.take().len(), 0);
    let after = fs.cache();
    assert_eq!(after.misses, before.misses);
    assert!(after.hits > before.hits + 20 && after.bytes > 0 && after.entries > 5, "{after:?}");
    // A search lists again, but does not read cached files.
    open(&fs).grep(&Grep::new("text")).await.unwrap();
    wire.take();
    open(&fs).grep(&Grep::new("text")).await.unwrap();
    assert_eq!(wire.operations(), ["LIST"]);
}

#[tokio::test]
async fn without_a_bound_everything_is_asked_and_nothing_unchanged_is_sent() {
    let (bucket, wire, _) = counted(&[("threads/1/a.md", "text\n")]).await;
    let s = open(&bucket.through(&wire.endpoint).await);
    for expected in [None, Some("if-none-match")] {
        assert_eq!(text(&s, "a.md").await.unwrap(), "text\n");
        let [request] = &wire.take()[..] else { panic!() };
        assert_eq!(request.header("if-none-match").is_some(), expected.is_some());
    }
    bucket.put("threads/1/a.md", "new").await;
    assert_eq!(text(&s, "a.md").await.unwrap(), "new");
    bucket.delete("threads/1/a.md").await;
    assert_eq!(text(&s, "a.md").await, Err(ErrorKind::NotFound));
}

#[tokio::test]
async fn without_memory_everything_is_sent() {
    let (bucket, wire, _) = counted(&[("threads/1/a.md", "text\n")]).await;
    let fs = bucket
        .with(&wire.endpoint, |settings| {
            caching(settings);
            settings.cache_bytes = 0;
        })
        .await;
    for _ in 0..2 {
        text(&open(&fs), "a.md").await.unwrap();
        let [request] = &wire.take()[..] else { panic!() };
        assert!(request.header("if-none-match").is_none());
    }
    assert_eq!((fs.cache().bytes, fs.cache().hits), (0, 0));
}

async fn own_writes_are_seen_at_once_by_every_session(b: Bucket) {
    let fs = b.with(&b.endpoint, caching).await;
    let (one, two) = (open(&fs), open(&fs));
    let listed = async |s: &S3Backend| names(&s.ls_recursive("/workspace").await.unwrap().entries);
    // Cached as missing, then written by the other session.
    assert!(!two.exists("d/x").await.unwrap() && listed(&two).await.is_empty());
    assert_eq!(text(&two, "d/x.md").await, Err(ErrorKind::NotFound));
    assert!(!two.exists("d").await.unwrap());
    one.write("d/x.md", "1").await.unwrap();
    assert!(two.exists("d/x").await.unwrap() && two.exists("d").await.unwrap());
    assert_eq!(text(&two, "d/x").await.unwrap(), "1");
    assert_eq!(listed(&two).await, ["/workspace/d/", "/workspace/d/x.md"]);
    one.append("d/x.md", "2").await.unwrap();
    assert_eq!(text(&two, "d/x").await.unwrap(), "12");
    one.edit("d/x.md", "12", "three").await.unwrap();
    assert_eq!(
        (text(&two, "d/x").await.unwrap(), two.stat("d/x").await.unwrap().size),
        ("three".into(), Some(5))
    );
    one.copy("d", "e").await.unwrap();
    assert_eq!(text(&two, "e/x").await.unwrap(), "three");
    assert_eq!(two.ls("/workspace").await.unwrap().entries.len(), 2);
    one.move_to("e/x.md", "f.md").await.unwrap();
    assert_eq!(text(&two, "e/x").await, Err(ErrorKind::NotFound));
    assert_eq!(listed(&two).await, ["/workspace/d/", "/workspace/d/x.md", "/workspace/f.md"]);
    // `f` means the file `f.md` until a file `f` exists.
    assert_eq!(text(&two, "f").await.unwrap(), "three");
    one.write("f", "plain").await.unwrap();
    assert_eq!(text(&two, "f").await.unwrap(), "plain");
    one.delete("f").await.unwrap();
    assert_eq!(text(&two, "f").await.unwrap(), "three");
    one.delete_recursive("d").await.unwrap();
    assert!(!two.exists("d/x").await.unwrap() && !two.exists("d").await.unwrap());
    assert_eq!(listed(&two).await, ["/workspace/f.md"]);
    let long = vec![b'x'; 17 * 1024 * 1024];
    one.write("long.txt", long).await.unwrap();
    assert_eq!(two.stat("long.txt").await.unwrap().size, Some(17 * 1024 * 1024));
}

async fn foreign_changes_are_seen_when_asked_for(b: Bucket) {
    b.put("threads/1/a.md", "old").await;
    b.put("threads/1/gone.md", "old").await;
    let s = open(&b.with(&b.endpoint, caching).await);
    assert_eq!(text(&s, "a.md").await.unwrap(), "old");
    assert_eq!(text(&s, "gone.md").await.unwrap(), "old");
    s.ls("/workspace").await.unwrap();
    b.put("threads/1/a.md", "new!").await;
    b.put("threads/1/b.md", "more").await;
    b.delete("threads/1/gone.md").await;
    // Cached for an hour, as configured.
    assert_eq!(text(&s, "a.md").await.unwrap(), "old");
    assert_eq!(s.ls("/workspace").await.unwrap().entries.len(), 2);
    // A fresh read sees the current state, which is then cached.
    assert_eq!(text(&s.fresh(), "a.md").await.unwrap(), "new!");
    assert_eq!(text(&s, "a.md").await.unwrap(), "new!");
    assert_eq!(text(&s.fresh(), "gone.md").await, Err(ErrorKind::NotFound));
    assert!(!s.exists("gone.md").await.unwrap());
    assert_eq!(
        names(&s.fresh().ls("/workspace").await.unwrap().entries),
        ["/workspace/a.md", "/workspace/b.md"]
    );
    assert_eq!(s.fresh().stat("a.md").await.unwrap().size, Some(4));
}

async fn a_name_that_was_nothing_becomes_something(b: Bucket) {
    let s = open(&b.with(&b.endpoint, caching).await);
    for path in ["x", "x.md", "x/y"] {
        assert!(!s.exists(path).await.unwrap());
    }
    b.put("threads/1/x/y.md", "1").await;
    assert!(s.fresh().exists("x/y").await.unwrap() && s.fresh().exists("x").await.unwrap());
    assert_eq!(text(&s.fresh(), "x").await, Err(ErrorKind::IsDirectory));
    b.put("threads/1/x.md", "2").await;
    assert_eq!(text(&s.fresh(), "x").await.unwrap(), "2");
    b.put("threads/1/x", "3").await;
    assert_eq!(text(&s.fresh(), "x").await.unwrap(), "3");
}

async fn deleted_skills_are_gone_when_asked_for(b: Bucket) {
    b.put("u1/skills/c/one/SKILL.md", skill("one")).await;
    b.put("u1/skills/c/two/SKILL.md", skill("two")).await;
    let s = open(&b.with(&b.endpoint, caching).await);
    assert_eq!(s.load_skills(None).await.unwrap(), ["c/one", "c/two"]);
    b.delete("u1/skills/c/one/SKILL.md").await;
    assert_eq!(s.load_skills(None).await.unwrap(), ["c/one", "c/two"]);
    assert_eq!(s.fresh().skills(None).await.unwrap().list().len(), 1);
    // The result of the fresh read is cached for all.
    assert_eq!(s.load_skills(None).await.unwrap(), ["c/two"]);
    assert_eq!(s.load_skill("c/one").await.unwrap_err().kind(), ErrorKind::NotFound);
}

/// If a skill in a cached listing was deleted or changed since, it is looked up again.
#[tokio::test]
async fn a_skill_that_changes_behind_its_listing_is_listed_again() {
    let (bucket, wire, fs) = counted(&[("u1/skills/c/a/SKILL.md", &skill("a"))]).await;
    let s = open(&fs);
    s.load_skills(None).await.unwrap();
    bucket.put("u1/skills/c/a/SKILL.md", skill("a").replace("Does a.", "Does more.")).await;
    wire.take();
    // A skill found in a listing is read only in that version.
    let loaded = s.load_skill("c/a").await.unwrap();
    assert!(loaded.content.contains("Does more."));
    assert_eq!(Some(loaded.skill.size), Some(loaded.content.len() as u64));
    let requests = wire.take();
    assert!(requests.iter().any(|r| r.header("if-match").is_some()));
    assert_eq!(requests.iter().filter(|r| r.operation() == "LIST").count(), 1);
    bucket.delete("u1/skills/c/a/SKILL.md").await;
    let mut threadless = session("u1", "1", "k1");
    threadless.thread = None;
    let other = fs.session(&threadless);
    other.load_skills(None).await.unwrap();
    let gone = open(&bucket.with(&wire.endpoint, caching).await);
    assert_eq!(gone.load_skill("c/a").await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_readers_of_one_object_are_one_request() {
    let (_, wire, fs) =
        counted(&[("threads/1/a.md", "text\n"), ("u1/skills/c/a/SKILL.md", &skill("a"))]).await;
    let sessions: Vec<_> = (0..1_000).map(|_| open(&fs)).collect();
    let read = join_all(sessions.iter().map(|s| async { text(s, "a.md").await.unwrap() })).await;
    assert!(read.iter().all(|text| text == "text\n"));
    assert_eq!(wire.operations(), ["GET"]);
    join_all(sessions.iter().map(|s| async { assert!(s.exists("b.md").await.is_ok_and(|there| !there)) }))
        .await;
    assert_eq!(wire.operations(), ["HEAD", "LIST"]);
    join_all(sessions.iter().map(|s| async { assert_eq!(s.ls("/ticket").await.unwrap().entries.len(), 0) }))
        .await;
    assert_eq!(wire.operations(), ["LIST"]);
    let skills = join_all(sessions.iter().map(|s| async { s.skills(None).await.unwrap() })).await;
    assert!(skills.iter().all(|library| library.list().len() == 1));
    // The listing, the request for an index, and one skill.
    assert_eq!(wire.operations(), ["GET", "GET", "LIST"]);
    assert_eq!(fs.requests().total(), 1 + 2 + 1 + 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_is_shared_and_not_remembered() {
    let broken = Arc::new(AtomicBool::new(true));
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    embedded.put(&bucket.name, "threads/1/a.md", "text").await.unwrap();
    let down = broken.clone();
    let wire = Wire::start(Some(&bucket.endpoint), move |_, _| match down.load(Ordering::SeqCst) {
        true => {
            // Wait until all readers have sent their request before the first response.
            std::thread::sleep(Duration::from_millis(300));
            Reply::error(403, "AccessDenied")
        }
        false => Reply::Forward,
    })
    .await;
    let s = open(&bucket.with(&wire.endpoint, caching).await);
    let failed = join_all((0..100).map(|_| text(&s, "a.md"))).await;
    assert!(failed.iter().all(|read| *read == Err(ErrorKind::Denied)));
    assert_eq!(wire.operations(), ["GET"]);
    broken.store(false, Ordering::SeqCst);
    assert_eq!(text(&s, "a.md").await.unwrap(), "text");
}

/// A read that is in flight during a write is not cached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_read_does_not_bring_back_what_was_overwritten() {
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    embedded.put(&bucket.name, "threads/1/a.md", "old").await.unwrap();
    let first = AtomicUsize::new(0);
    let (answered, go) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (notify, wait) = (answered.clone(), go.clone());
    let wire = Wire::start(Some(&bucket.endpoint), move |request, _| {
        if request.operation() == "GET" && first.fetch_add(1, Ordering::SeqCst) == 0 {
            let (notify, wait) = (notify.clone(), wait.clone());
            return Reply::ForwardHook(crate::support::wire::Hook(Arc::new(move || {
                let (notify, wait) = (notify.clone(), wait.clone());
                Box::pin(async move {
                    notify.notify_one();
                    wait.notified().await;
                })
            })));
        }
        Reply::Forward
    })
    .await;
    let fs = bucket.with(&wire.endpoint, caching).await;
    let reader = open(&fs);
    let reading = tokio::spawn(async move { text(&reader, "a.md").await });
    answered.notified().await;
    open(&fs).write("a.md", "new").await.unwrap();
    // A new read does not wait for the old response.
    assert_eq!(text(&open(&fs), "a.md").await.unwrap(), "new");
    go.notify_one();
    assert_eq!(reading.await.unwrap().unwrap(), "old");
    assert_eq!(text(&open(&fs), "a.md").await.unwrap(), "new");
}

/// After half of the freshness bound, the cached response is returned and refreshed in the background.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_grows_old_is_asked_for_behind_the_answer() {
    let (bucket, wire, _) =
        counted(&[("threads/1/a.md", "old"), ("u1/skills/c/a/SKILL.md", &skill("a"))]).await;
    let bound = Duration::from_secs(3);
    let fs = bucket.with(&wire.endpoint, |settings| settings.freshness = Freshness::all(bound)).await;
    let s = open(&fs);
    assert_eq!(text(&s, "a.md").await.unwrap(), "old");
    assert_eq!(s.ls("/workspace").await.unwrap().entries.len(), 1);
    assert_eq!(s.load_skills(None).await.unwrap().len(), 1);
    bucket.put("threads/1/a.md", "new").await;
    bucket.put("threads/1/b.md", "new").await;
    bucket.put("u1/skills/c/b/SKILL.md", skill("b")).await;
    // Everything is refreshed within the bound, although nobody waits for it.
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let seen = text(&s, "a.md").await.unwrap() == "new"
            && s.ls("/workspace").await.unwrap().entries.len() == 2
            && s.load_skills(None).await.unwrap().len() == 2;
        if seen {
            assert!(fs.cache().refreshed > 0);
            return;
        }
    }
    panic!("not seen in ten seconds");
}

#[tokio::test]
async fn memory_is_bounded_and_shared_out() {
    let objects: Vec<(String, String)> =
        (0..200).map(|i| (format!("threads/big/{i}.txt"), "x".repeat(10_000))).collect();
    let objects: Vec<(&str, &str)> = objects.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let (bucket, wire, _) = counted(&objects).await;
    bucket.put("threads/1/small.md", "small").await;
    let fs = bucket
        .with(&wire.endpoint, |settings| {
            caching(settings);
            settings.cache_bytes = 500_000;
        })
        .await;
    let small = fs.session(&session("u1", "1", "k1"));
    let big = fs.session(&session("u2", "big", "k1"));
    small.read("small.md").await.unwrap();
    for i in 0..200 {
        big.read(format!("{i}.txt")).await.unwrap();
        assert!(fs.cache().bytes <= 520_000, "{:?}", fs.cache());
    }
    assert!(fs.cache().evictions > 100, "{:?}", fs.cache());
    wire.take();
    // The other tenant's entry is still cached, and so is the most recent one.
    small.read("small.md").await.unwrap();
    big.read("199.txt").await.unwrap();
    assert_eq!(wire.take().len(), 0);
    big.read("0.txt").await.unwrap();
    assert_eq!(wire.operations(), ["GET"]);
}

#[tokio::test]
async fn libraries_are_shared_and_users_are_not() {
    let (_, wire, fs) = counted(&[
        ("shared/acme/skills/c/a/SKILL.md", &skill("a")),
        ("u1/skills/own/SKILL.md", &skill("own")),
        ("u2/skills/other/SKILL.md", &skill("other")),
    ])
    .await;
    let of = |user: &str| {
        let libraries = vec![LibraryId::parse("acme").unwrap()];
        fs.session(&session(user, "1", "k1").libraries(libraries))
    };
    assert_eq!(of("u1").load_skills(None).await.unwrap(), ["c/a", "own"]);
    of("u1").skills(None).await.unwrap();
    wire.take();
    // The library is cached; the other user's own skills are not.
    let skills = of("u2").skills(None).await.unwrap();
    assert_eq!(skills.list().iter().map(|s| s.path.as_str()).collect::<Vec<_>>(), ["c/a", "other"]);
    let asked: Vec<_> = wire.take().into_iter().map(|request| request.target).collect();
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|target| target.contains("u2")), "{asked:?}");
    assert_eq!(of("u3").load_skills(None).await.unwrap(), ["c/a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_answer_is_cut_and_asked_for_again() {
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    let objects = (0..300).map(|i| (format!("threads/1/{i}.md"), "text".into()));
    embedded.put_all(&bucket.name, objects).await.unwrap();
    let stalled = AtomicUsize::new(0);
    let wire = Wire::start(Some(&bucket.endpoint), move |request, _| {
        let slow = request.target.contains("/299.md") && stalled.fetch_add(1, Ordering::SeqCst) == 0;
        if slow { Reply::Stall } else { Reply::Forward }
    })
    .await;
    let fs = bucket.with(&wire.endpoint, |settings| settings.reissue_slow = true).await;
    let s = open(&fs);
    for i in 0..299 {
        text(&s, &format!("{i}.md")).await.unwrap();
    }
    let before = fs.requests();
    assert_eq!(text(&s, "299.md").await.unwrap(), "text");
    let sent = fs.requests() - before;
    assert_eq!((sent.get, sent.reissued), (2, 1));
}

/// A tenant with a long queue does not delay another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_take_turns_on_the_wire() {
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    let objects = (0..400).map(|i| (format!("threads/busy/{i}.md"), "text".into()));
    embedded.put_all(&bucket.name, objects).await.unwrap();
    embedded.put(&bucket.name, "threads/calm/a.md", "text").await.unwrap();
    let wire =
        Wire::start(Some(&bucket.endpoint), |_, _| Reply::ForwardAfter(Duration::from_millis(20))).await;
    let fs = bucket
        .with(&wire.endpoint, |settings| {
            settings.max_requests = 8;
            settings.max_requests_per_tenant = 8;
        })
        .await;
    let busy = fs.session(&session("busy", "busy", "k1"));
    let done = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..400)
        .map(|i| {
            let (busy, done) = (busy.clone(), done.clone());
            tokio::spawn(async move {
                busy.read(format!("{i}.md")).await.unwrap();
                done.fetch_add(1, Ordering::SeqCst);
            })
        })
        .collect();
    while done.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let before = done.load(Ordering::SeqCst);
    fs.session(&session("calm", "calm", "k1")).read("a.md").await.unwrap();
    let between = done.load(Ordering::SeqCst) - before;
    assert!(between < 100, "{between} of the other's 400 reads came first");
    for task in tasks {
        task.await.unwrap();
    }
    assert!(wire.max_concurrent() <= 9, "{} at once", wire.max_concurrent());
}

/// A search whose consumer is busy between two files holds nothing that others wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_that_is_left_alone_holds_up_nobody() {
    use futures_util::TryStreamExt;
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    let objects = (0..60).map(|i| (format!("threads/1/{i:02}.md"), "text".into()));
    embedded.put_all(&bucket.name, objects).await.unwrap();
    let wire =
        Wire::start(Some(&bucket.endpoint), |_, _| Reply::ForwardAfter(Duration::from_millis(20))).await;
    let fs = bucket.with(&wire.endpoint, |settings| settings.max_requests_per_tenant = 4).await;
    let s = open(&fs);
    let mut found = s.grep_stream(&Grep::new("text"));
    let mut files = 0;
    while let Some(file) = found.try_next().await.unwrap() {
        files += 1;
        let read = tokio::time::timeout(Duration::from_secs(60), s.read_bytes(&file.path, ..2)).await;
        assert_eq!(read.expect("it waits for its own search").unwrap().bytes, "te");
    }
    assert_eq!(files, 60);
    // The same for writes that were started and are not polled.
    let writes: Vec<_> = (0..20).map(|i| Box::pin(s.write(format!("new-{i}.md"), "x"))).collect();
    let mut writes = join_all(writes);
    tokio::select! {
        biased;
        _ = &mut writes => panic!("20 writes in no time"),
        () = std::future::ready(()) => {}
    }
    let read = tokio::time::timeout(Duration::from_secs(60), s.read("00.md")).await;
    assert!(read.is_ok());
    assert!(writes.await.iter().all(Result::is_ok));
}

/// A stat that was in flight during a write is neither cached nor shared with later callers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_stat_does_not_hide_what_was_written() {
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    let first = AtomicUsize::new(0);
    let (answered, go) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (notify, wait) = (answered.clone(), go.clone());
    let wire = Wire::start(Some(&bucket.endpoint), move |request, _| {
        if request.operation() == "HEAD" && first.fetch_add(1, Ordering::SeqCst) == 0 {
            let (notify, wait) = (notify.clone(), wait.clone());
            return Reply::ForwardHook(crate::support::wire::Hook(Arc::new(move || {
                let (notify, wait) = (notify.clone(), wait.clone());
                Box::pin(async move {
                    notify.notify_one();
                    wait.notified().await;
                })
            })));
        }
        Reply::Forward
    })
    .await;
    let fs = bucket.with(&wire.endpoint, caching).await;
    let asker = open(&fs);
    let asking = tokio::spawn(async move { asker.exists("a.md").await });
    answered.notified().await;
    open(&fs).write("a.md", "new").await.unwrap();
    let seen = tokio::time::timeout(Duration::from_secs(60), open(&fs).exists("a.md")).await;
    assert!(seen.expect("it waits for the old answer").unwrap());
    go.notify_one();
    assert!(!asking.await.unwrap().unwrap());
    assert!(open(&fs).exists("a.md").await.unwrap());
}

/// A failure to read is not cached.
#[tokio::test]
async fn a_skill_that_could_not_be_read_is_tried_again() {
    let (bucket, _, _) = counted(&[("u1/skills/c/a/SKILL.md", &skill("a"))]).await;
    let broken = Arc::new(AtomicBool::new(true));
    let down = broken.clone();
    let wire = Wire::start(Some(&bucket.endpoint), move |request, _| {
        match request.target.contains("SKILL.md") && down.load(Ordering::SeqCst) {
            true => Reply::error(403, "AccessDenied"),
            false => Reply::Forward,
        }
    })
    .await;
    let s = open(&bucket.with(&wire.endpoint, caching).await);
    assert_eq!(s.skills(None).await.unwrap().diagnostics()[0].code, "unreadable");
    broken.store(false, Ordering::SeqCst);
    assert_eq!(s.skills(None).await.unwrap().list().len(), 1);
}

/// An edit that finds another version than the cached one invalidates the cached one.
#[tokio::test]
async fn what_an_edit_meets_is_what_is_read_next() {
    let (bucket, _, fs) = counted(&[("threads/1/a.md", "old text")]).await;
    let s = open(&fs);
    assert_eq!(text(&s, "a.md").await.unwrap(), "old text");
    bucket.put("threads/1/a.md", "new text").await;
    assert_eq!(s.edit("a.md", "old", "x").await.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(text(&s, "a.md").await.unwrap(), "new text");
}
