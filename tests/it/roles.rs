//! Sessions with their own credentials, which S3 itself confines.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use skillfs::{
    ErrorKind, Freshness, Glob, Grants, Grep, LibraryId, Role, S3Backend, Session, Settings, SkillFs,
    ThreadId, UserId, Window,
};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::support::cloud::{Cloud, ROLE, advance_tokio_clock};
use crate::support::{campaign, publish, session};

const SKILL: &str = "---\nname: deed\ndescription: Draft a deed\n---\nSteps.\n";

fn with_libraries(mut session: Session, libraries: &[&str]) -> Session {
    session.libraries = libraries.iter().map(|id| LibraryId::parse(id).unwrap()).collect();
    session
}

/// A session of a user who also has the library `acme`.
fn of_acme(user: &str) -> Session {
    let user = Some(UserId::parse(user).unwrap());
    with_libraries(
        {
            let mut made = Session::default();
            made.user = user;
            made
        },
        &["acme"],
    )
}

fn thread(id: &str) -> Session {
    Session::default().thread(ThreadId::parse(id).unwrap())
}

fn caching(settings: &mut Settings) {
    settings.freshness = Freshness::all(Duration::from_secs(3600));
}

/// A cloud with files of two tenants and a shared library.
async fn filled() -> Cloud {
    let cloud = Cloud::start().await;
    for key in [
        "threads/1/a.md",
        "threads/1/b.md",
        "threads/1/sub/b.md",
        "threads/10/secret.md",
        "tickets/k1/mail.txt",
    ] {
        cloud.bucket.put(key, "some text\n").await;
    }
    for key in ["u1/skills/notary/deed/SKILL.md", "u2/skills/notary/deed/SKILL.md"] {
        cloud.bucket.put(key, SKILL).await;
    }
    cloud.bucket.put("shared/acme/skills/law/deed/SKILL.md", SKILL).await;
    cloud
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_operations_go_with_the_sessions_own_credentials() {
    let cloud = filled().await;
    let fs = cloud.fs(|_| ()).await;
    let backend = fs.session(&with_libraries(session("u1", "1", "k1"), &["acme"]));
    assert!(backend.is_confined());
    assert!(cloud.wire.take().is_empty(), "opening a session sends nothing");
    assert_eq!(backend.ls_recursive("/").await.unwrap().entries.len(), 14);
    assert_eq!(backend.read("/workspace/a").await.unwrap().content, "some text\n");
    assert_eq!(backend.read("/ticket/mail.txt").await.unwrap().content, "some text\n");
    assert_eq!(backend.skills(None).await.unwrap().list().len(), 2);
    backend.load_skill("notary/deed").await.unwrap();
    backend.write("new.md", "one\n").await.unwrap();
    backend.append("new.md", "two\n").await.unwrap();
    backend.edit("new.md", "two", "three").await.unwrap();
    backend.copy("new.md", "dir/copy.md").await.unwrap();
    backend.move_to("dir/copy.md", "dir/moved.md").await.unwrap();
    assert_eq!(backend.glob("**/*.md").await.unwrap().entries.len(), 5);
    assert_eq!(backend.grep(&Grep::new("three")).await.unwrap().matches, 2);
    backend.read_window("new.md", Window::default().offset(1).limit(1)).await.unwrap();
    backend.delete_recursive("dir").await.unwrap();
    backend.delete("new.md").await.unwrap();
    assert!(!backend.exists("/workspace/gone").await.unwrap());
    // A multipart upload, and one that is aborted.
    let large = vec![b'x'; 20 << 20];
    backend.write("large.txt", large).await.unwrap();
    backend.delete("large.txt").await.unwrap();

    assert!(cloud.rules.own.lock().unwrap().is_empty(), "the process's own credentials were used");
    // One set for the libraries and one for the other mounts.
    assert_eq!(cloud.issued().len(), 2);
    assert_eq!(fs.requests().assume_role, 2);
    // A copy out of a library needs both in one request.
    backend.copy("/skills/notary/deed/SKILL.md", "skill.md").await.unwrap();
    assert_eq!(fs.requests().assume_role, 3);
    assert!(cloud.rules.own.lock().unwrap().is_empty(), "the process's own credentials were used");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sts_is_asked_with_the_sessions_policy() {
    let cloud = filled().await;
    let role = Role::new(ROLE).external_id("acme-7").session_tags(true);
    let fs = cloud.fs(|settings| settings.role = Some(role)).await;
    let backend = fs.session(&with_libraries(session("u1", "1", "k1"), &["acme", "base"]));
    let credentials = backend.credentials().await.unwrap();
    let issued = &cloud.issued()[0];
    assert_eq!(issued.value("RoleArn"), Some(ROLE));
    assert_eq!(issued.value("ExternalId"), Some("acme-7"));
    assert_eq!(issued.value("DurationSeconds"), Some("3600"));
    let name = issued.value("RoleSessionName").unwrap();
    assert_eq!(name, credentials.session_name);
    // A hash, which is valid for STS whatever the identifiers are.
    assert!(name.len() == 40 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'), "{name}");
    let tags: Vec<_> = (1..=5)
        .map(|at| {
            let value = |what| issued.value(&format!("Tags.member.{at}.{what}")).unwrap();
            (value("Key"), value("Value"))
        })
        .collect();
    assert_eq!(
        tags,
        [("thread", "1"), ("ticket", "k1"), ("library1", "acme"), ("library2", "base"), ("user", "u1")]
    );
    let listed = &issued.policy["Statement"][2]["Condition"]["StringLike"]["s3:prefix"];
    assert_eq!(listed.as_array().unwrap().len(), 8);
    assert!(!format!("{credentials:?}").contains("token-0"), "secrets do not print");
}

/// The requirement: a thousand sessions of two hundred tenants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_sessions_of_200_tenants_ask_sts_200_times() {
    let cloud = Cloud::start().await;
    for tenant in 0..200 {
        cloud.bucket.put(&format!("threads/t{tenant}/a.md"), "x").await;
    }
    let fs = cloud.fs(|_| ()).await;
    let read = |number: usize| {
        let session = session(&format!("u{}", number % 200), &format!("t{}", number % 200), "k1");
        let backend = fs.session(&session);
        async move { backend.read("/workspace/a.md").await.map(|file| file.content) }
    };
    for answer in join_all((0..1000).map(read)).await {
        assert_eq!(answer.unwrap(), "x");
    }
    assert_eq!(cloud.issued().len(), 200);
    assert_eq!((fs.requests().assume_role, fs.scopes()), (200, 200));
    // Again: all credentials are cached.
    for answer in join_all((0..1000).map(read)).await {
        assert_eq!(answer.unwrap(), "x");
    }
    assert_eq!(fs.requests().assume_role, 200);
    assert!(cloud.rules.own.lock().unwrap().is_empty());
}

/// With a role, a new thread costs one STS call for its workspace, and nothing for cached libraries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_thread_on_a_warm_library_costs_one_sts_call_and_no_library_request() {
    let users: usize = campaign(200, 50);
    let cloud = Cloud::start().await;
    for skill in 0..20 {
        cloud.bucket.put(&format!("shared/acme/skills/law/deed-{skill}/SKILL.md"), SKILL).await;
    }
    let library = skillfs::Library::Shared(LibraryId::parse("acme").unwrap());
    publish(&cloud.fs(|_| ()).await, &library).await;
    // Administrators publish with the credentials of the process.
    cloud.rules.own.lock().unwrap().clear();
    let fs = cloud.fs(caching).await;
    let of = |user: usize, thread: usize| {
        let mut session = of_acme(&format!("u{user}"));
        session.user = None;
        session.thread = Some(ThreadId::parse(&format!("t{user}-{thread}")).unwrap());
        session.libraries.push(LibraryId::parse(&format!("team-{user}")).unwrap());
        session
    };
    // Users with the same libraries would share everything, so each has a unique one.
    let turn = |user: usize, thread: usize| {
        let backend = fs.session(&of(user, thread));
        async move {
            assert_eq!(backend.skills(None).await.unwrap().list().len(), 20);
            backend.load_skill("law/deed-7").await.unwrap();
            assert!(backend.ls("/workspace").await.unwrap().entries.is_empty());
        }
    };
    cloud.wire.take();
    join_all((0..users).map(|user| turn(user, 0))).await;
    let first = cloud.wire.take();
    assert_eq!(fs.requests().assume_role, 2 * users as u64, "one for the libraries, one for the thread");
    let indexes = first.iter().filter(|sent| sent.target.contains("acme/.skillfs/index.json")).count();
    assert_eq!(indexes, users, "each set of credentials asks for the index once");
    let blobs = first.iter().filter(|sent| sent.target.contains("acme/.skillfs/blobs/")).count();
    assert!(blobs <= users, "what one was let through to is shown to the others: {blobs}");
    // Four more threads of each.
    for thread in 1..5 {
        join_all((0..users).map(|user| turn(user, thread))).await;
    }
    let sent = cloud.wire.take();
    let library: Vec<_> = sent.iter().filter(|sent| sent.target.contains("shared")).collect();
    assert!(library.is_empty(), "{} requests to libraries: {:?}", library.len(), library.first());
    assert_eq!(fs.requests().assume_role, (2 + 4) * users as u64, "one for each new thread");
    // A thread that only uses skills asks for no credentials at all.
    let before = fs.requests();
    for user in 0..users {
        let backend = fs.session(&of(user, 9));
        backend.load_skill("law/deed-7").await.unwrap();
    }
    assert_eq!((fs.requests() - before).total(), 0);
    assert!(cloud.rules.own.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_are_held_for_so_many_tenants_only() {
    let cloud = Cloud::start().await;
    let role = Role::new(ROLE).max_scopes(10);
    let fs = cloud.fs(|settings| settings.role = Some(role)).await;
    let sessions: Vec<_> = (0..100).map(|tenant| fs.session(&thread(&format!("t{tenant}")))).collect();
    for _ in 0..2 {
        for backend in &sessions {
            assert!(!backend.exists("/workspace/a.md").await.unwrap());
        }
    }
    // Evicted tenants wait for credentials again when they return, but nobody is refused.
    assert!(fs.scopes() <= 10, "{}", fs.scopes());
    assert_eq!(cloud.issued().len(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_who_come_at_once_wait_for_one_call_and_any_may_go_away() {
    let cloud = filled().await;
    *cloud.rules.sts_delay.lock().unwrap() = Duration::from_millis(300);
    let fs = cloud.fs(|_| ()).await;
    let (one, others) = (fs.session(&thread("1")), fs.session(&thread("1")));
    let first = tokio::spawn(async move { one.read("a.md").await });
    while cloud.wire.take().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let others: Vec<_> = (0..50)
        .map(|_| {
            let backend = others.clone();
            tokio::spawn(async move { backend.read("a.md").await })
        })
        .collect();
    first.abort();
    for other in others {
        assert_eq!(other.await.unwrap().unwrap().content, "some text\n");
    }
    assert_eq!(cloud.issued().len(), 1);
}

#[tokio::test]
async fn credentials_are_renewed_without_a_failed_read() {
    let cloud = filled().await;
    *cloud.rules.life.lock().unwrap() = Duration::from_secs(4);
    let fs = cloud.fs(|_| ()).await;
    let (done, began) = (Arc::new(AtomicBool::new(false)), Instant::now());
    let readers: Vec<_> = (0..8)
        .map(|reader| {
            let (backend, done) = (fs.session(&session("u1", "1", "k1")), done.clone());
            tokio::spawn(async move {
                let mut reads = 0;
                while !done.load(Ordering::SeqCst) {
                    assert_eq!(backend.read("a.md").await.unwrap().content, "some text\n");
                    if reader == 0 {
                        backend.write("own.md", "x").await.unwrap();
                        backend.ls("/workspace").await.unwrap();
                    }
                    reads += 1;
                }
                reads
            })
        })
        .collect();
    // Run until they have been renewed several times.
    while cloud.issued().len() < 4 {
        assert!(began.elapsed() < Duration::from_secs(120), "credentials are not renewed");
        tokio::time::sleep(Duration::from_millis(5)).await;
        advance_tokio_clock(Duration::from_millis(200)).await;
    }
    done.store(true, Ordering::SeqCst);
    for reader in readers {
        assert!(reader.await.unwrap() > 0);
    }
    // One call for each renewal, however many sessions need it.
    assert_eq!(cloud.issued().len() as u64, fs.requests().assume_role);
    assert!(cloud.issued().len() < 40, "{}", cloud.issued().len());
}

#[tokio::test]
async fn credentials_that_s3_takes_no_longer_are_replaced() {
    let cloud = filled().await;
    let fs = cloud.fs(|_| ()).await;
    let backend = fs.session(&session("u1", "1", "k1"));
    backend.read("a.md").await.unwrap();
    let mut calls = 1;
    // Credentials that were just issued are not replaced: S3 must have another reason to refuse.
    let old = || advance_tokio_clock(AGED);
    for operation in ["read", "stat", "ls", "write", "append", "rm"] {
        old().await;
        cloud.revoke();
        match operation {
            "read" => backend.read("a.md").await.map(drop),
            "stat" => backend.stat("a.md").await.map(drop),
            "ls" => backend.ls("/workspace").await.map(drop),
            "write" => backend.write("x.md", "1").await.map(drop),
            "append" => backend.append("x.md", "2").await.map(drop),
            _ => backend.delete("x.md").await.map(drop),
        }
        .unwrap_or_else(|error| panic!("{operation}: {error}"));
        calls += 1;
        assert_eq!(cloud.issued().len(), calls, "{operation}");
    }
    // If the storage rejects all credentials, requests for new ones must stop.
    old().await;
    cloud.rules.rejects_new_credentials.store(true, Ordering::SeqCst);
    cloud.revoke();
    let error = backend.read("a.md").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.report().contains("the session's credentials were refused"), "{error}");
    assert!(cloud.issued().len() <= calls + 4, "{}", cloud.issued().len());
}

#[tokio::test]
async fn when_sts_is_down_credentials_hold_until_they_end() {
    let cloud = filled().await;
    *cloud.rules.life.lock().unwrap() = Duration::from_secs(4);
    let fs = cloud.fs(|settings| settings.max_attempts = 1).await;
    let backend = fs.session(&session("u1", "1", "k1"));
    backend.read("a.md").await.unwrap();
    cloud.rules.sts_is_down.store(true, Ordering::SeqCst);
    // Requests for new ones fail in the meantime.
    let began = Instant::now();
    let failed = loop {
        match backend.read("a.md").await {
            Ok(_) => assert!(began.elapsed() < Duration::from_secs(60)),
            Err(error) => break error,
        }
        advance_tokio_clock(Duration::from_millis(100)).await;
    };
    assert!(began.elapsed() > Duration::from_secs(2), "they held for {:?}", began.elapsed());
    assert_eq!(failed.kind(), ErrorKind::Unavailable, "{failed}");
    assert!(failed.to_string().contains("STS"), "{failed}");
    // Many concurrent readers cause few calls.
    let before = fs.requests().assume_role;
    for answer in join_all((0..200).map(|_| backend.read("a.md"))).await {
        answer.unwrap_err();
    }
    assert!(fs.requests().assume_role - before <= 3);
    cloud.rules.sts_is_down.store(false, Ordering::SeqCst);
    advance_tokio_clock(AGED).await;
    assert_eq!(backend.read("a.md").await.unwrap().content, "some text\n");
}

#[tokio::test]
async fn the_clock_of_this_machine_does_not_end_credentials() {
    let cloud = filled().await;
    // According to our clock, they expire in a day and an hour.
    cloud.rules.ahead.store(24 * 3600, Ordering::SeqCst);
    *cloud.rules.life.lock().unwrap() = Duration::from_secs(3);
    let fs = cloud.fs(|_| ()).await;
    let backend = fs.session(&session("u1", "1", "k1"));
    backend.read("a.md").await.unwrap();
    advance_tokio_clock(Duration::from_secs(3)).await;
    backend.read("a.md").await.unwrap();
    assert!(cloud.issued().len() >= 2, "credentials that had ended were used");
    assert!(cloud.wire.take().len() <= 5);
}

/// Cached data of one session must not be served to another whose own credentials do not allow it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_not_served_to_whom_sts_refuses() {
    let cloud = filled().await;
    let fs = cloud.fs(caching).await;
    let library = |user: &str| fs.session(&of_acme(user));
    let file = "/skills/law/deed/SKILL.md";
    library("u1").read(file).await.unwrap();
    library("u1").skills(None).await.unwrap();
    *cloud.rules.refused.lock().unwrap() = Some("/u2/".to_owned());
    let refused = library("u2");
    for (operation, error) in [
        ("read", refused.read(file).await.unwrap_err()),
        ("bytes", refused.read_bytes(file, ..).await.unwrap_err()),
        ("window", refused.read_window(file, Window::default().offset(0).limit(1)).await.unwrap_err()),
        ("ls", refused.ls("/skills").await.unwrap_err()),
        ("ls -R", refused.ls_recursive("/skills").await.unwrap_err()),
        ("tree", refused.tree("/skills").await.unwrap_err()),
        ("skills", refused.skills(None).await.unwrap_err()),
        ("load", refused.load_skill("law/deed").await.unwrap_err()),
        ("stat", refused.stat(file).await.unwrap_err()),
        ("exists", refused.exists(file).await.unwrap_err()),
        ("glob", refused.glob(Glob::new("**").root("/skills")).await.unwrap_err()),
        ("credentials", refused.credentials().await.unwrap_err()),
    ] {
        assert_eq!(error.kind(), ErrorKind::Denied, "{operation}: {error}");
        assert!(error.to_string().contains(ROLE), "{operation}: {error}");
    }
    // A session that is not refused sends one request to S3, and then uses the cache.
    let other = library("u3");
    other.read(file).await.unwrap();
    cloud.wire.take();
    other.read(file).await.unwrap();
    assert!(cloud.wire.take().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_of_one_tenant_share_what_they_know() {
    let cloud = filled().await;
    let fs = cloud.fs(caching).await;
    let (one, two) = (session("u1", "1", "k1"), session("u1", "2", "k1"));
    fs.session(&one).skills(None).await.unwrap();
    cloud.wire.take();
    // Another thread with the same libraries has the same credentials and shares the cache.
    let second = fs.session(&two);
    assert_eq!(second.skills(None).await.unwrap().list().len(), 1);
    assert!(cloud.wire.take().is_empty());
    // Grants are part of a scope, the order of libraries is not.
    let read_only = one.clone().grants(Grants::READ_ONLY);
    fs.session(&one).ls("/workspace").await.unwrap();
    fs.session(&read_only).ls("/workspace").await.unwrap();
    assert_eq!(cloud.issued().len(), 3);
    for libraries in [["acme", "base"], ["base", "acme"]] {
        fs.session(&with_libraries(one.clone(), &libraries)).credentials().await.unwrap();
    }
    assert_eq!(cloud.issued().len(), 4);
}

/// S3 may answer 403 for a missing key if the caller may not list the entire bucket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_file_is_missing_also_where_s3_calls_it_forbidden() {
    let cloud = filled().await;
    for key in
        ["threads/1/gone.md", "threads/1/gone", "threads/1/sub", "threads/1/sub.md", "threads/1/new.md"]
    {
        cloud.rules.forbidden.lock().unwrap().insert(key.to_owned());
    }
    let fs = cloud.fs(|_| ()).await;
    let backend = fs.session(&session("u1", "1", "k1"));
    assert!(!backend.exists("gone").await.unwrap());
    assert_eq!(backend.read("gone.md").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(backend.stat("sub").await.unwrap().kind, skillfs::EntryKind::Directory);
    // An existing forbidden file is reported as denied.
    cloud.rules.forbidden.lock().unwrap().insert("threads/1/a.md".to_owned());
    for error in [backend.read("a.md").await.unwrap_err(), backend.stat("a.md").await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_is_too_long_is_told_before_sts_is_asked() {
    let cloud = filled().await;
    let libraries: Vec<_> = (0..14).map(|number| format!("library-{number}")).collect();
    let libraries: Vec<_> = libraries.iter().map(String::as_str).collect();
    let of = with_libraries(session("u1", "1", "k1"), &libraries);
    let backend = cloud.fs(|_| ()).await.session(&of);
    let error = backend.ls("/skills").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let text = error.report();
    assert!(text.contains("15 libraries") && text.contains("2048") && text.contains("compact"), "{text}");
    assert!(cloud.wire.take().is_empty());
    // The workspace has separate credentials and is not affected.
    backend.ls("/workspace").await.unwrap();
    let role = Role::new(ROLE).compact_policy(true);
    let compact = cloud.fs(|settings| settings.role = Some(role)).await.session(&of);
    compact.ls("/skills").await.unwrap();
    assert!(cloud.issued()[1].policy.to_string().contains("shared/library-3/*"));
    // Tags have rules of their own.
    let role = Role::new(ROLE).session_tags(true);
    let tagged = cloud.fs(|settings| settings.role = Some(role)).await;
    let error = tagged.session(&session("auth0|7", "1", "k1")).ls("/skills").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.report().contains("session tags"), "{error}");
    // Nothing to reach, nothing to ask for.
    let nobody = cloud.fs(|_| ()).await.session(&Session::default());
    assert!(nobody.ls("/").await.unwrap().entries.is_empty());
    assert_eq!(nobody.credentials().await.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(cloud.issued().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_role_sessions_run_on_the_process_and_say_so() {
    let cloud = filled().await;
    let fs: SkillFs = cloud.bucket.through(&cloud.wire.endpoint).await;
    let backend = fs.session(&session("u1", "1", "k1"));
    backend.read("a.md").await.unwrap();
    assert!(!backend.is_confined());
    assert_eq!(backend.credentials().await.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(cloud.issued().is_empty() && fs.scopes() == 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn administrators_use_the_credentials_of_the_process() {
    let cloud = filled().await;
    let fs = cloud.fs(|_| ()).await;
    let library = skillfs::Library::User(UserId::parse("u1").unwrap());
    publish(&fs, &library).await;
    assert!(cloud.issued().is_empty() && !cloud.rules.own.lock().unwrap().is_empty());
    // A session reads with its own credentials what they wrote.
    let backend = fs.session(&session("u1", "1", "k1"));
    assert_eq!(backend.skills(None).await.unwrap().list().len(), 1);
    assert_eq!(cloud.issued().len(), 1);
}

const AGED: Duration = Duration::from_millis(1200);

/// A request with the old credentials is refused after new ones have arrived.
#[tokio::test]
async fn two_reads_that_are_refused_one_after_the_other_both_succeed() {
    let cloud = filled().await;
    let fs = cloud.fs(|_| ()).await;
    let backend = fs.session(&session("u1", "1", "k1"));
    backend.read("a.md").await.unwrap();
    advance_tokio_clock(AGED).await;
    cloud.revoke();
    *cloud.rules.slow_refusal.lock().unwrap() = Some(("sub/b.md".to_owned(), Duration::from_millis(300)));
    let (fast, slow) = tokio::join!(backend.read("a.md"), backend.read("sub/b.md"));
    fast.unwrap();
    slow.unwrap();
}

/// The same race made a shared library lose its index silently, for all tenants.
#[tokio::test]
async fn a_refused_token_does_not_cost_a_library_its_index() {
    let cloud = filled().await;
    let fs = cloud.fs(caching).await;
    let library = skillfs::Library::Shared(LibraryId::parse("acme").unwrap());
    publish(&fs, &library).await;
    let fs = cloud.fs(caching).await;
    let of = |user: &str| fs.session(&with_libraries(thread(user), &["acme"]));
    of("1").read("a.md").await.unwrap();
    advance_tokio_clock(AGED).await;
    cloud.revoke();
    *cloud.rules.slow_refusal.lock().unwrap() = Some(("index.json".to_owned(), Duration::from_millis(300)));
    cloud.wire.take();
    let first = of("1").skills(None).await;
    assert!(first.is_ok(), "{first:?}");
    // Another tenant, whose requests all succeed.
    advance_tokio_clock(AGED).await;
    let other = of("10");
    other.credentials().await.unwrap();
    let told = other.catalog_version().await.unwrap();
    assert_eq!(told, other.fresh().catalog_version().await.unwrap());
}

/// Data that the role does not allow (by tags or a bucket policy) was served from the cache.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_not_served_to_whom_s3_refuses() {
    for published in [false, true] {
        check_that_memory_is_not_served(published).await;
    }
}

async fn check_that_memory_is_not_served(published: bool) {
    let cloud = filled().await;
    if published {
        publish(&cloud.bucket.fs, &skillfs::Library::Shared(LibraryId::parse("acme").unwrap())).await;
    }
    *cloud.rules.role_denies.lock().unwrap() = Some(("/u2/".to_owned(), "shared/acme/".to_owned()));
    let fs = cloud.fs(caching).await;
    let library = |user: &str| fs.session(&of_acme(user));
    let file = "/skills/law/deed/SKILL.md";
    // Everything after the user's own library is unavailable, because it is denied.
    let refused = |result: Result<skillfs::TextFile, skillfs::Error>| {
        let error = result.map(|file| file.content).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.message().contains("`acme`") && error.message().contains("AccessDenied"), "{error}");
    };
    // With only this library, it is refused.
    refused(library("u2").read(file).await);
    library("u1").read(file).await.unwrap();
    refused(library("u2").read(file).await);
    // The session's own library is not affected.
    library("u2").read("/skills/notary/deed/SKILL.md").await.unwrap();
    // Access that was allowed before and is now denied.
    *cloud.rules.role_denies.lock().unwrap() = Some(("/u1/".to_owned(), "shared/acme/".to_owned()));
    library("u1").read(file).await.unwrap();
    assert!(library("u1").fresh().read(file).await.is_err());
    refused(library("u1").read(file).await);
}

/// An index that one scope may not read was treated as missing by scopes that may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_that_one_may_not_read_is_not_missing_for_all() {
    let cloud = filled().await;
    let fs = cloud.fs(caching).await;
    let library = skillfs::Library::Shared(LibraryId::parse("acme").unwrap());
    publish(&fs, &library).await;
    let fs = cloud.fs(caching).await;
    *cloud.rules.role_denies.lock().unwrap() = Some(("/u2/".to_owned(), "shared/acme/.skillfs/".to_owned()));
    let of = |user: &str| fs.session(&of_acme(user));
    let denied = of("u2").skills(None).await.unwrap();
    assert!(
        denied.diagnostics().iter().any(|diagnostic| diagnostic.code == "library-unavailable"),
        "{denied:?}"
    );
    assert_eq!(denied.list().len(), 1);
    let other = of("u1");
    other.credentials().await.unwrap();
    assert_eq!(other.skills(None).await.unwrap().list().len(), 2);
    let told = other.catalog_version().await.unwrap();
    assert_eq!(told, other.fresh().catalog_version().await.unwrap());
}

/// A runtime that ends during an STS call.
#[tokio::test]
async fn a_runtime_that_ends_during_a_call_does_not_end_the_scope() {
    let cloud = filled().await;
    let fs = cloud.fs(|_| ()).await;
    *cloud.rules.sts_delay.lock().unwrap() = Duration::from_millis(700);
    let backend = fs.session(&session("u1", "1", "k1"));
    let theirs = backend.clone();
    std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::time::timeout(Duration::from_millis(200), theirs.read("a.md")).await.unwrap_err()
        });
        runtime.shutdown_background();
    })
    .join()
    .unwrap();
    *cloud.rules.sts_delay.lock().unwrap() = Duration::ZERO;
    advance_tokio_clock(Duration::from_secs(3)).await;
    assert_eq!(backend.read("a.md").await.unwrap().content, "some text\n");
}

#[tokio::test]
async fn large_writes_replace_refused_credentials_too() {
    let cloud = filled().await;
    let fs = cloud.fs(|_| ()).await;
    let backend = fs.session(&session("u1", "1", "k1"));
    backend.read("a.md").await.unwrap();
    advance_tokio_clock(AGED).await;
    cloud.revoke();
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(backend.write("large.txt", vec![b'x'; 20 << 20]).await.map(drop));
        advance_tokio_clock(AGED).await;
    }
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

/// Renewing credentials takes time, in which the file may have been replaced.
#[tokio::test]
async fn a_deletion_checks_again_after_its_credentials_were_renewed() {
    let cloud = filled().await;
    let fs = cloud.fs(|_| ()).await;
    let backend = fs.session(&session("u1", "1", "k1"));
    backend.read("a.md").await.unwrap();
    advance_tokio_clock(AGED).await;
    *cloud.rules.expires_on.lock().unwrap() = Some("DELETE");
    cloud.wire.take();
    backend.delete("a.md").await.unwrap();
    let sent: Vec<_> = cloud.wire.take().into_iter().map(|request| request.method).collect();
    // One to find the file. This server may ignore the condition, so each deletion follows a HEAD; the STS
    // call comes in between.
    assert_eq!(sent, ["HEAD", "HEAD", "DELETE", "POST", "HEAD", "DELETE"]);
}

/// Credentials that have already expired when they arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_that_come_too_late_are_no_storm() {
    let cloud = filled().await;
    *cloud.rules.life.lock().unwrap() = Duration::ZERO;
    let fs = cloud.fs(|_| ()).await;
    let backend = fs.session(&session("u1", "1", "k1"));
    let mut last = None;
    for _ in 0..20 {
        last = backend.read("a.md").await.err();
    }
    let calls = fs.requests().assume_role;
    assert!(calls < 10, "{calls} calls; {last:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warm_reads_renew_credentials_too() {
    let cloud = filled().await;
    *cloud.rules.life.lock().unwrap() = Duration::from_secs(12);
    let fs = cloud.fs(caching).await;
    let backend = fs.session(&session("u1", "1", "k1"));
    backend.read("a.md").await.unwrap();
    let go = Arc::new(Notify::new());
    *cloud.rules.sts_gate.lock().unwrap() = Some(go.clone());
    while fs.requests().assume_role < 2 {
        backend.read("a.md").await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // STS has not responded yet, and nobody waits for it.
    for _ in 0..10 {
        backend.read("a.md").await.unwrap();
    }
    go.notify_one();
}

/// A malformed response of STS is not printed with its secrets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_garbled_answer_of_sts_does_not_print_its_secrets() {
    let cloud = filled().await;
    cloud.rules.no_expiration.store(true, Ordering::SeqCst);
    let fs = cloud.fs(|_| ()).await;
    let error = fs.session(&session("u1", "1", "k1")).read("a.md").await.unwrap_err();
    let (shown, debugged) = (error.to_string(), format!("{error:?}"));
    assert!(!shown.contains("token-0"), "{shown}");
    assert!(!debugged.contains("token-0"), "{debugged}");
}

/// `max_requests` limits requests to S3, but not requests to STS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tenants_at_once_do_not_flood_sts() {
    let cloud = Cloud::start().await;
    *cloud.rules.sts_delay.lock().unwrap() = Duration::from_millis(2);
    let fs = cloud.fs(|settings| settings.max_requests = 8).await;
    let sessions: Vec<_> = (0..300).map(|tenant| fs.session(&thread(&format!("t{tenant}")))).collect();
    for answer in join_all(sessions.iter().map(|backend| backend.exists("a.md"))).await {
        answer.unwrap();
    }
    let most = cloud.wire.max_concurrent();
    assert!(most <= 64, "{most} at once");
}

/// The STS endpoint in the settings takes precedence over the environment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_address_of_sts_in_settings_goes_before_the_environment() {
    let cloud = filled().await;
    in_process(&cloud.wire.endpoint, "http://127.0.0.1:9", "us-east-1").await;
    assert_eq!(cloud.issued().len(), 1);
}

/// Not a separate test: the body of the tests around it, which run it in a process with a different
/// environment.
#[tokio::test]
async fn in_a_separate_process() {
    let Ok(task) = std::env::var("SKILLFS_TEST_TASK") else { return };
    let settings = Settings::new("bucket").credentials(skillfs::StaticCredentials::new("A", "b"));
    if task == "connect" {
        // Region and endpoint come from the AWS chain alone.
        SkillFs::connect(&settings).await.unwrap();
        return;
    }
    let role = Role::new(ROLE).sts_endpoint_url(task);
    let settings = settings.role(role).max_attempts(1);
    SkillFs::connect(&settings).await.unwrap().session(&thread("1")).credentials().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_region_may_come_from_the_aws_chain_alone() {
    for region in ["eu-south-2", ""] {
        in_process("connect", "http://127.0.0.1:9", region).await;
    }
}

/// Runs that test in a child process, with this task.
async fn in_process(task: &str, endpoint: &str, region: &str) {
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "roles::in_a_separate_process", "--nocapture"])
        .env("AWS_ENDPOINT_URL", endpoint)
        .env("AWS_REGION", region)
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("SKILLFS_TEST_TASK", task);
    let done = command.output().await.unwrap();
    let said = [done.stdout, done.stderr].concat();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&said));
}

/// If STS fails while a request waits in the queue, the error is about STS and not about AWS_ACCESS_KEY_ID.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_is_about_sts_whenever_sts_fails() {
    let cloud = filled().await;
    *cloud.rules.life.lock().unwrap() = Duration::from_secs(3);
    *cloud.rules.slow_response.lock().unwrap() = Some(("sub/b.md".to_owned(), Duration::from_millis(3500)));
    let fs = cloud
        .fs(|settings| {
            settings.max_attempts = 1;
            settings.max_requests = 1;
        })
        .await;
    let backend = fs.session(&session("u1", "1", "k1"));
    backend.credentials().await.unwrap();
    let first = backend.clone();
    let first = tokio::spawn(async move { first.read("sub/b.md").await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    cloud.rules.sts_is_down.store(true, Ordering::SeqCst);
    let error = backend.read("a.md").await.unwrap_err();
    first.await.unwrap().unwrap();
    assert!(error.to_string().contains("STS"), "{error}");
}

/// Everything below a prefix becomes forbidden, including listing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_of_everything_closes_memory() {
    let cloud = filled().await;
    let fs = cloud.fs(caching).await;
    let backend = fs.session(&session("u1", "1", "k1"));
    backend.read("a.md").await.unwrap();
    backend.read("b.md").await.unwrap();
    *cloud.rules.role_denies.lock().unwrap() = Some(("threads/1/".to_owned(), "threads/1/".to_owned()));
    assert_eq!(backend.fresh().read("a.md").await.unwrap_err().kind(), ErrorKind::Denied);
    let read = backend.read("b.md").await.map(|file| file.content);
    assert_eq!(read.as_ref().map_err(skillfs::Error::kind), Err(ErrorKind::Denied), "{read:?}");
}

/// S3 may answer 403 for missing files if the caller may list only prefixes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_files_are_remembered_where_s3_calls_them_forbidden() {
    let cloud = filled().await;
    for key in ["threads/1/gone.md", "threads/1/sub", "threads/1/sub.md", "threads/1/sub/.md"] {
        cloud.rules.forbidden.lock().unwrap().insert(key.to_owned());
    }
    let fs = cloud.fs(caching).await;
    let backend = fs.session(&session("u1", "1", "k1"));
    let mut bad = Vec::new();
    for round in 0..3 {
        assert!(!backend.exists("gone.md").await.unwrap());
        let one = cloud.wire.take().len();
        assert!(backend.stat("sub").await.is_ok());
        let two = cloud.wire.take().len();
        backend.ls("/workspace").await.unwrap();
        bad.push((round, one, two, cloud.wire.take().len()));
    }
    assert_eq!(&bad[1..], [(1, 0, 0, 0), (2, 0, 0, 0)], "{bad:?}");
}

#[tokio::test]
async fn an_answer_to_old_credentials_proves_nothing_of_new_ones() {
    let cloud = filled().await;
    let fs = cloud.fs(caching).await;
    let backend = fs.session(&session("u1", "1", "k1"));
    backend.read("a.md").await.unwrap();
    backend.read("b.md").await.unwrap();
    advance_tokio_clock(AGED).await;
    // A slow response to the first credentials.
    *cloud.rules.slow_response.lock().unwrap() =
        Some(("threads/1/a.md".to_owned(), Duration::from_millis(800)));
    let slow = {
        let b = backend.fresh();
        tokio::spawn(async move { b.read("a.md").await.map(|f| f.content) })
    };
    tokio::time::sleep(Duration::from_millis(200)).await;
    // In the meantime they are revoked and replaced with new ones, which have fewer permissions.
    cloud.revoke();
    backend.fresh().ls("/ticket").await.unwrap();
    assert_eq!(cloud.issued().len(), 2);
    *cloud.rules.role_denies.lock().unwrap() = Some(("threads/1/".to_owned(), "threads/1/".to_owned()));
    slow.await.unwrap().unwrap();
    let read = backend.read("b.md").await.map(|file| file.content);
    assert_eq!(read.as_ref().map_err(skillfs::Error::kind), Err(ErrorKind::Denied), "{read:?}");
}

/// A missing index does not grant access to the files next to a library if reading them is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_index_does_not_open_the_next_one() {
    let cloud = filled().await;
    *cloud.rules.role_denies.lock().unwrap() =
        Some(("/u2/".to_owned(), "get:shared/acme/.skillfs/".to_owned()));
    let fs = cloud.fs(caching).await;
    let of = |user: &str| {
        fs.session(&with_libraries(Session::default().user(UserId::parse(user).unwrap()), &["acme"]))
    };
    of("u2").skills(None).await.unwrap();
    let library = skillfs::Library::Shared(LibraryId::parse("acme").unwrap());
    publish(&fs, &library).await;
    of("u1").skills(None).await.unwrap();
    cloud.wire.take();
    of("u2").skills(None).await.unwrap();
    let asked = cloud.wire.take();
    assert!(
        asked.iter().any(|r| r.target.contains("acme/.skillfs/index.json")),
        "memory told u2 what S3 would refuse: {:?}",
        asked.iter().map(|r| format!("{} {}", r.method, r.target)).collect::<Vec<_>>()
    );
}

/// Credentials are renewed in the background. Requests with the old ones prove nothing about the new ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_proves_nothing() {
    let cloud = filled().await;
    *cloud.rules.life.lock().unwrap() = Duration::from_secs(4);
    let fs = cloud.fs(caching).await;
    let backend = fs.session(&session("u1", "1", "k1"));
    backend.read("b.md").await.unwrap();
    let mut misproven = 0;
    let mut used = std::collections::HashSet::new();
    for _ in 0..400 {
        cloud.wire.take();
        backend.fresh().read("a.md").await.unwrap();
        for request in cloud.wire.take() {
            used.extend(request.header("x-amz-security-token").map(str::to_owned));
        }
        let newest = format!("token-{}", cloud.issued().len() - 1);
        if !used.contains(&newest) {
            // Long after STS has responded; nothing was ever sent with the new credentials.
            tokio::time::sleep(Duration::from_millis(60)).await;
            backend.read("b.md").await.unwrap();
            if cloud.wire.take().iter().all(|r| r.method != "GET") {
                misproven += 1;
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(misproven, 0);
}

/// Cached data costs no requests, with a role as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_known_costs_nothing_with_a_role() {
    const OPERATIONS: [&str; 10] =
        ["version", "skills", "ls", "none", "read", "stat", "directory", "file", "listing", "ticket"];
    async fn run(backend: S3Backend, operation: &str) {
        let skill = "/skills/notary/deed/SKILL.md";
        match operation {
            "version" => drop(backend.catalog_version().await.unwrap()),
            "skills" => drop(backend.skills(None).await.unwrap()),
            "ls" => drop(backend.ls("/skills").await.unwrap()),
            "none" => assert!(!backend.exists("/skills/none").await.unwrap()),
            "read" => drop(backend.read(skill).await.unwrap()),
            "stat" => drop(backend.stat(skill).await.unwrap()),
            "directory" => drop(backend.stat("/skills/notary").await.unwrap()),
            "file" => drop(backend.read("a.md").await.unwrap()),
            "listing" => drop(backend.ls("/workspace").await.unwrap()),
            _ => drop(backend.read("/ticket/mail.txt").await.unwrap()),
        }
    }
    for (indexed, libraries) in
        [(false, &[][..]), (false, &["acme", "empty"]), (true, &[]), (true, &["acme"])]
    {
        let cloud = filled().await;
        let of = with_libraries(session("u1", "1", "k1"), libraries);
        if indexed {
            let fs = cloud.fs(|_| ()).await;
            publish(&fs, &skillfs::Library::User(UserId::parse("u1").unwrap())).await;
        }
        for operation in OPERATIONS {
            let fs = cloud.fs(caching).await;
            run(fs.session(&of), operation).await;
            cloud.wire.take();
            run(fs.session(&of), operation).await;
            let sent = cloud.wire.take();
            assert!(sent.is_empty(), "{operation}, indexed {indexed}, {libraries:?}: {sent:?}");
        }
    }
}
