//! `skillfs doctor`: the findings and their fixes.

use std::process::Output;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use aws_sdk_s3::primitives::{DateTime, DateTimeFormat};
use skillfs::admin::{NewFile, NewLibrary, NewSkill, PushOptions};
use skillfs::embedded::Embedded;
use skillfs::{Check, Diagnosis, Library, LibraryId, Session, SkillFs, ThreadId, UserId, Verdict};
use tokio::sync::Notify;

use crate::cli::program;
use crate::support::cloud::{Cloud, ROLE};
use crate::support::wire::{Hook, Reply, Request, Wire, response};
use crate::support::{Bucket, publish, session};

const ENABLED: &str = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";

/// The date of a server whose clock is this many seconds ahead.
fn date(ahead: i64) -> String {
    let now = DateTime::from(SystemTime::now()).secs() + ahead;
    DateTime::from_secs(now).fmt(DateTimeFormat::HttpDate).unwrap()
}

/// A response with a date and additional headers.
fn dated_response(status: u16, body: &str, ahead: i64, headers: &str) -> Reply {
    let plain = String::from_utf8(response(status, "application/xml", body.as_bytes())).unwrap();
    let (first, rest) = plain.split_once("\r\n").unwrap();
    Reply::Raw(format!("{first}\r\ndate: {}\r\n{headers}{rest}", date(ahead)).into_bytes())
}

fn refused(status: u16, code: &str, message: &str, headers: &str) -> Reply {
    let body = format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>");
    dated_response(status, &body, 0, headers)
}

fn asks_for_versioning(request: &Request) -> bool {
    request.target.contains("?versioning")
}

/// The library of the user that is diagnosed.
fn own() -> Library {
    Library::User(UserId::parse("u1").unwrap())
}

/// A healthy bucket behind a proxy.
struct Patient {
    bucket: Bucket,
    wire: Wire,
}

impl Patient {
    /// The proxy responds with `decide`, and forwards other requests. Versioning is enabled unless `decide`
    /// says otherwise.
    async fn new(decide: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static) -> Self {
        let bucket = Bucket::embedded().await;
        for (key, content) in [
            ("threads/1/notes.md", "note"),
            ("u1/skills/deeds/sale/SKILL.md", "---\nname: sale\ndescription: Sales\n---\n"),
            ("u1/skills/deeds/lease/SKILL.md", "---\nname: lease\ndescription: Leases\n---\n"),
            ("shared/acme/skills/review/SKILL.md", "---\nname: review\ndescription: Reviews\n---\n"),
        ] {
            bucket.put(key, content).await;
        }
        publish(&bucket.fs, &own()).await;
        publish(&bucket.fs, &Library::Shared(LibraryId::parse("acme").unwrap())).await;
        let wire = Wire::start(Some(&bucket.endpoint), move |request, _| match decide(request) {
            Some(reply) => reply,
            None if asks_for_versioning(request) => dated_response(200, ENABLED, 0, ""),
            None => Reply::Forward,
        })
        .await;
        Self { bucket, wire }
    }

    async fn run(&self, variables: &[(&str, &str)], args: &[&str]) -> Output {
        let mut command = program();
        command
            .env("AWS_ACCESS_KEY_ID", &self.bucket.credentials.access_key_id)
            .env("AWS_SECRET_ACCESS_KEY", &self.bucket.credentials.secret_access_key)
            .envs(variables.iter().copied())
            .args(["--bucket", &self.bucket.name, "--endpoint-url", &self.wire.endpoint])
            .args(args);
        for (name, _) in variables.iter().filter(|(_, value)| value.is_empty()) {
            command.env_remove(name);
        }
        tokio::process::Command::from(command).output().await.unwrap()
    }

    /// Runs the doctor with a session that has everything.
    async fn doctor(&self) -> Output {
        self.run(&[], &["--user", "u1", "--thread", "1", "doctor"]).await
    }

    async fn diagnose(&self) -> Diagnosis {
        self.bucket.through(&self.wire.endpoint).await.diagnose(&session("u1", "1", "k1")).await
    }

    async fn keys(&self) -> Vec<String> {
        let all = self.bucket.raw.list_objects_v2().bucket(&self.bucket.name).send().await.unwrap();
        all.contents.unwrap_or_default().into_iter().filter_map(|object| object.key).collect()
    }
}

/// What to do about a check, on the command line.
fn fix(check: &Check) -> String {
    check.fix.as_ref().map(skillfs_cli::hint).unwrap_or_default()
}

/// The result of a check.
#[track_caller]
fn found<'d>(diagnosis: &'d Diagnosis, name: &str, of: &str) -> (Verdict, &'d str, String) {
    let check = diagnosis.checks.iter().find(|c| c.name == name && c.of.as_deref().unwrap_or("") == of);
    let check = check.unwrap_or_else(|| panic!("no check `{name}` of `{of}` in {diagnosis:#?}"));
    (check.verdict, &check.found, fix(check))
}

macro_rules! snapshot {
    ($name:literal, $output:expr) => {
        let output: Output = $output;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let shown = format!(
            "exit: {}\n--- stdout\n{}--- stderr\n{}",
            output.status.code().unwrap(),
            text(&output.stdout),
            text(&output.stderr)
        );
        insta::with_settings!({
            filters => vec![
                (r"127\.0\.0\.1:\d+", "HOST"),
                (r"skillfs-doctor-[A-Za-z0-9_-]{12}", "skillfs-doctor-RANDOM"),
            ],
            omit_expression => true,
            prepend_module_to_snapshot => false,
        }, {
            insta::assert_snapshot!($name, shown);
        });
    };
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_finds_nothing_wrong_and_sends_few_requests() {
    let patient = Patient::new(|_| None).await;
    let before = patient.keys().await;
    let args = [
        "--user",
        "u1",
        "--library",
        "acme",
        "--thread",
        "1",
        "--ticket",
        "k1",
        "--grant",
        "ticket-write",
        "doctor",
    ];
    snapshot!("doctor-good", patient.run(&[], &args).await);
    assert_eq!(patient.keys().await, before);
    // One for the bucket, two for each of four prefixes, two for each of two writable mounts, one for
    // conditional writes; for each of two libraries the index, the mirror record and a listing.
    let requests = patient.wire.take();
    assert_eq!(requests.len(), 1 + 2 * 4 + 2 * 2 + 1 + 3 * 2, "{requests:#?}");
    snapshot!("doctor-json", patient.run(&[], &["--json", "--user", "u1", "--thread", "1", "doctor"]).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_without_a_session_looks_at_the_bucket() {
    let patient = Patient::new(|_| None).await;
    snapshot!("doctor-no-session", patient.run(&[], &["doctor"]).await);
    assert_eq!(patient.wire.take().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_of_a_missing_bucket() {
    let missing = |r: &Request| asks_for_versioning(r).then(|| refused(404, "NoSuchBucket", "no", ""));
    let patient = Patient::new(missing).await;
    snapshot!("doctor-no-bucket", patient.doctor().await);
    // On a server without versioning, a HEAD finds out.
    let patient = Patient::new(|r| asks_for_versioning(r).then_some(Reply::Forward)).await;
    let fs = patient.bucket.with(&patient.wire.endpoint, |settings| settings.bucket = "none-such".into());
    let diagnosis = fs.await.diagnose(&session("u1", "1", "k1")).await;
    let (verdict, text, _) = found(&diagnosis, "bucket", "");
    assert!(verdict == Verdict::Wrong && text == "the bucket `none-such` does not exist", "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_of_a_wrong_region() {
    const SAID: &str =
        "The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-south-2'";
    for (status, code, message, header) in [
        (400, "AuthorizationHeaderMalformed", SAID, ""),
        (400, "AuthorizationHeaderMalformed", "", "x-amz-bucket-region: eu-south-2\r\n"),
        (301, "PermanentRedirect", "", "x-amz-bucket-region: eu-south-2\r\n"),
    ] {
        let patient = Patient::new(move |_| Some(refused(status, code, message, header))).await;
        snapshot!("doctor-wrong-region", patient.doctor().await);
    }
    let patient = Patient::new(|_| Some(refused(301, "PermanentRedirect", "", ""))).await;
    let (verdict, _, fix) = (patient.diagnose().await.checks.into_iter())
        .find(|check| check.name == "region")
        .map(|check| (check.verdict, check.found.clone(), fix(&check)))
        .unwrap();
    assert!(verdict == Verdict::Wrong && fix.contains("get-bucket-location"), "{fix}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_of_missing_permissions() {
    let patient = Patient::new(|_| Some(refused(403, "AccessDenied", "Access Denied", ""))).await;
    snapshot!("doctor-denied", patient.doctor().await);
    // The session may list, but not read an existing file.
    let patient = Patient::new(|r| {
        (r.operation() == "GET" && r.target.contains("notes.md"))
            .then(|| refused(403, "AccessDenied", "", ""))
    })
    .await;
    let diagnosis = patient.diagnose().await;
    let (verdict, text, fix) = found(&diagnosis, "read", "/workspace");
    assert_eq!(verdict, Verdict::Wrong, "{text}");
    assert!(fix.contains("s3:GetObject on `arn:aws:s3:::test-bucket/threads/1/*`"), "{fix}");
    // S3 may answer 403 for a missing file if listing is allowed only for prefixes.
    let patient = Patient::new(|r| {
        (r.operation() == "GET" && r.target.contains("doctor")).then(|| refused(403, "AccessDenied", "", ""))
    })
    .await;
    let diagnosis = patient.diagnose().await;
    assert_eq!(found(&diagnosis, "read", "/ticket").0, Verdict::Note);
    assert_eq!(found(&diagnosis, "read", "/workspace").0, Verdict::Good);
    assert!(diagnosis.healthy);
    // The session may read, but not write.
    let patient = Patient::new(|r| (r.method == "PUT").then(|| refused(403, "AccessDenied", "", ""))).await;
    let diagnosis = patient.diagnose().await;
    let (verdict, _, fix) = found(&diagnosis, "write", "/workspace");
    assert!(verdict == Verdict::Wrong && fix.contains("s3:PutObject and s3:DeleteObject"), "{fix}");
    assert_eq!(found(&diagnosis, "conditional writes", "").0, Verdict::Skipped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_of_a_clock_that_is_off() {
    let skewed = |r: &Request| {
        let body = "<Error><Code>RequestTimeTooSkewed</Code><Message>too large</Message></Error>";
        asks_for_versioning(r).then(|| dated_response(403, body, 20 * 60, ""))
    };
    let patient = Patient::new(skewed).await;
    snapshot!("doctor-clock", patient.doctor().await);
    for (ahead, verdict, text) in [
        (0, Verdict::Good, "within 5 seconds of the storage's"),
        (-30, Verdict::Good, "seconds ahead of the storage's"),
        (-150, Verdict::Warning, "minutes ahead of the storage's"),
        (240, Verdict::Warning, "about 4 minutes behind the storage's"),
        (7200, Verdict::Wrong, "about 2 hours behind the storage's"),
    ] {
        let late = move |r: &Request| asks_for_versioning(r).then(|| dated_response(200, ENABLED, ahead, ""));
        let diagnosis = Patient::new(late).await.diagnose().await;
        let (told, found, fix) = found(&diagnosis, "clock", "");
        assert!(told == verdict && found.contains(text), "{ahead}: {told:?} {found}");
        assert_eq!(fix.is_empty(), verdict == Verdict::Good);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_of_each_way_in_which_credentials_are_bad() {
    let patient = Patient::new(|r| asks_for_versioning(r).then_some(Reply::Forward)).await;
    let run = |variables: &'static [(&str, &str)]| patient.run(variables, &["--thread", "1", "doctor"]);
    snapshot!(
        "doctor-no-credentials",
        run(&[("AWS_ACCESS_KEY_ID", ""), ("AWS_SECRET_ACCESS_KEY", "")]).await
    );
    assert!(patient.wire.take().is_empty());
    snapshot!("doctor-bad-signature", run(&[("AWS_SECRET_ACCESS_KEY", "not-the-secret")]).await);
    let unknown = run(&[("AWS_ACCESS_KEY_ID", "AKIAUNKNOWN1234")]).await;
    let unknown = String::from_utf8(unknown.stdout).unwrap();
    assert!(unknown.contains("the storage does not know access key …1234"), "{unknown}");
    assert!(!unknown.contains("AKIAUNKNOWN"), "{unknown}");
    for (status, code, text) in [
        (400, "ExpiredToken", "have expired"),
        (400, "InvalidToken", "the session token does not belong to"),
        (403, "InvalidAccessKeyId", "does not know"),
    ] {
        let patient = Patient::new(move |_| Some(refused(status, code, "injected", ""))).await;
        let token = [("AWS_SESSION_TOKEN", "very-secret-token")];
        let output = patient.run(&token, &["--thread", "1", "doctor"]).await;
        let shown = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(shown.contains(text) && !shown.contains("very-secret"), "{shown}");
        if code == "ExpiredToken" {
            snapshot!("doctor-expired", output);
        }
    }
    let patient = Patient::new(|_| None).await;
    let args = ["doctor"];
    // The embedded store ignores session tokens.
    let temporary = patient.run(&[("AWS_SESSION_TOKEN", "very-secret-token")], &args).await;
    assert!(String::from_utf8(temporary.stdout).unwrap().contains("access key …dded, temporary"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_of_versioning() {
    let answers = |reply: fn() -> Reply| move |r: &Request| asks_for_versioning(r).then(reply);
    let suspended = || dated_response(200, &ENABLED.replace("Enabled", "Suspended"), 0, "");
    let patient = Patient::new(answers(suspended)).await;
    snapshot!("doctor-suspended", patient.run(&[], &["doctor"]).await);
    let off = || dated_response(200, "<VersioningConfiguration/>", 0, "");
    for (reply, text) in [
        (off as fn() -> Reply, "off: what is overwritten or deleted is lost"),
        (|| refused(403, "AccessDenied", "", ""), "these credentials may not read whether versioning is on"),
        (|| Reply::Forward, "this server does not report whether versioning is on"),
    ] {
        let diagnosis = Patient::new(answers(reply)).await.diagnose().await;
        let (verdict, found, _) = found(&diagnosis, "versioning", "");
        assert!(verdict == Verdict::Note && found.contains(text), "{found}");
        assert!(diagnosis.healthy);
    }
    // The session has no permissions for the bucket itself, but everything that it needs.
    let diagnosis = Patient::new(|r| {
        (asks_for_versioning(r) || r.method == "HEAD").then(|| refused(403, "AccessDenied", "", ""))
    })
    .await
    .diagnose()
    .await;
    assert_eq!(found(&diagnosis, "bucket", "").0, Verdict::Note);
    assert_eq!(found(&diagnosis, "write", "/workspace").0, Verdict::Good);
    assert!(diagnosis.healthy);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_what_is_lost_without_conditional_writes() {
    let ignores = |r: &Request| {
        let conditional = r.method == "PUT" && r.header("if-match").is_some();
        conditional.then(|| dated_response(200, "", 0, "etag: \"x\"\r\n"))
    };
    let patient = Patient::new(ignores).await;
    snapshot!("doctor-no-conditions", patient.doctor().await);
    assert!(!patient.keys().await.iter().any(|key| key.contains(".skillfs-doctor")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_of_indexes() {
    let patient = Patient::new(|_| None).await;
    let (bucket, library) = (&patient.bucket, own());
    let index = "u1/.skillfs/index.json";
    let intact = bucket.raw.get_object().bucket(&bucket.name).key(index).send().await.unwrap();
    let intact = intact.body.collect().await.unwrap().into_bytes();
    let look = async || {
        let diagnosis = patient.diagnose().await;
        let (verdict, found, fix) = found(&diagnosis, "index", "user u1");
        assert_eq!(diagnosis.healthy, verdict != Verdict::Wrong);
        (verdict, format!("{found} | {fix}"))
    };
    bucket.put(index, "{").await;
    snapshot!("doctor-damaged", patient.doctor().await);
    assert_eq!(look().await.0, Verdict::Wrong);
    bucket.put(index, r#"{"format":99}"#).await;
    snapshot!("doctor-newer", patient.doctor().await);
    assert_eq!(look().await.0, Verdict::Wrong);
    bucket.delete(index).await;
    snapshot!("doctor-lost-index", patient.doctor().await);
    assert_eq!(look().await.0, Verdict::Wrong);
    bucket.put(index, &intact).await;
    assert_eq!(look().await, (Verdict::Good, "published: release 1, 2 skills | ".to_owned()));
    bucket.fs.library(&library).unpublish().await.unwrap();
    patient.wire.take();
    snapshot!("doctor-plain", patient.doctor().await);
    // One for the bucket, four for two prefixes, two for the probe, one for conditions; the index and a
    // listing.
    assert_eq!(patient.wire.take().len(), 1 + 4 + 2 + 1 + 2);
    for key in patient.keys().await.iter().filter(|key| key.starts_with("u1/")) {
        bucket.delete(key).await;
    }
    let (verdict, words) = look().await;
    assert!(verdict == Verdict::Note && words.contains("the library is empty"), "{words}");
    assert!(words.contains("`skillfs admin push DIR`"), "{words}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_of_an_index_that_may_not_be_read() {
    let refuse =
        |r: &Request| r.target.contains("/u1/.skillfs/").then(|| refused(403, "AccessDenied", "", ""));
    let patient = Patient::new(refuse).await;
    snapshot!("doctor-index-denied", patient.doctor().await);
    let diagnosis = patient.diagnose().await;
    let (verdict, words, fix) = found(&diagnosis, "index", "user u1");
    assert!(verdict == Verdict::Wrong && words.contains("may not be read"), "{words}");
    assert!(fix.contains("s3:GetObject on `arn:aws:s3:::test-bucket/u1/.skillfs/*`"), "{fix}");
}

/// Sessions see the release; other programs do not see it in the mirror yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_of_a_mirror_that_is_behind() {
    let refuse = |r: &Request| {
        (r.method == "PUT" && r.target.contains("/u1/skills/")).then(|| refused(403, "AccessDenied", "", ""))
    };
    let patient = Patient::new(refuse).await;
    let fs = patient.bucket.through(&patient.wire.endpoint).await;
    let file =
        |text: &str| vec![NewFile::new("SKILL.md", format!("---\nname: {text}\ndescription: D\n---\n"))];
    let mut new = NewLibrary::default();
    new.skills = vec![NewSkill::new("will", file("will"))];
    let push = async |fs: &SkillFs, new: &NewLibrary| {
        let plan = fs.library(&own()).plan(new, &PushOptions::default()).await.unwrap();
        fs.library(&plan.library).publish(&plan).await.unwrap()
    };
    let published = push(&fs, &new).await;
    assert!(published.release == Some(2) && published.mirror_error.is_some(), "{published:?}");
    snapshot!("doctor-mirror-behind", patient.doctor().await);
    new.skills.push(NewSkill::new("trust", file("trust")));
    assert!(push(&fs, &new).await.mirror_error.is_some());
    let diagnosis = patient.diagnose().await;
    let (verdict, words, _) = found(&diagnosis, "index", "user u1");
    assert_eq!(words, "release 3 is published, but 2 keys of its mirror are not up to date");
    assert!(verdict == Verdict::Warning && diagnosis.healthy);
    // The next push that can write completes it.
    assert_eq!(push(&patient.bucket.fs, &new).await.mirror_error, None);
    assert_eq!(found(&patient.diagnose().await, "index", "user u1").0, Verdict::Good);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_of_keys_that_others_have_changed() {
    let patient = Patient::new(|_| None).await;
    let bucket = &patient.bucket;
    bucket.put("u1/skills/deeds/sale/SKILL.md", "---\nname: sale\ndescription: All sales\n---\n").await;
    bucket.put("u1/skills/new/SKILL.md", "---\nname: new\ndescription: New\n---\n").await;
    snapshot!("doctor-drift", patient.doctor().await);
    // One for the bucket, four for two prefixes, two for the probe, one for conditions; the index, the mirror
    // record, a listing, and the two keys that were changed.
    let requests = patient.wire.take();
    assert_eq!(requests.len(), 1 + 4 + 2 + 1 + 3 + 2, "{requests:#?}");
    bucket.delete("u1/skills/deeds/lease/SKILL.md").await;
    for more in ["a", "b", "c"] {
        bucket.put(&format!("u1/skills/{more}.md"), "x").await;
    }
    let diagnosis = patient.diagnose().await;
    let (verdict, words, _) = found(&diagnosis, "index", "user u1");
    assert!(verdict == Verdict::Warning && diagnosis.healthy);
    let told = "others have changed 6 keys; no session sees these changes: `a.md`, `b.md`, `c.md` and 3 more";
    assert_eq!(words, told);
    publish(&bucket.fs, &own()).await;
    let diagnosis = patient.diagnose().await;
    let (verdict, words, _) = found(&diagnosis, "index", "user u1");
    assert_eq!((verdict, words), (Verdict::Good, "published: release 2, 2 skills"));
}

/// The fix that the doctor suggests works.
#[tokio::test]
async fn doctor_tells_of_published_skills_that_were_changed_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let args = [&["--embedded", "store", "--library", "acme"], args].concat();
        program().current_dir(folder.path()).args(args).output().unwrap()
    };
    let skill = folder.path().join("skills/sale");
    std::fs::create_dir_all(&skill).unwrap();
    std::fs::write(skill.join("SKILL.md"), "---\nname: sale\ndescription: Sales\n---\n").unwrap();
    assert!(run(&["admin", "push", "skills", "--by", "ana"]).status.success());
    let shown = || String::from_utf8(run(&["doctor"]).stdout).unwrap();
    let edit = async |text: &'static str| {
        let store = Embedded::open(folder.path().join("store")).await.unwrap();
        store.put("skillfs", "shared/acme/skills/sale/SKILL.md", text).await.unwrap();
    };
    assert!(shown().contains("published: release 1, 1 skill"), "{}", shown());
    edit("---\nname: sale\n---\n").await;
    assert!(shown().contains("others have changed 1 key; no session sees these changes: `sale/SKILL.md`"));
    let revert =
        "or revert them with `skillfs --embedded store admin verify --library acme --repair --overwrite`";
    assert!(shown().contains(revert), "{}", shown());
    // Without `--overwrite`, the file is left unchanged.
    assert_eq!(run(&["admin", "verify", "--repair"]).status.code(), Some(1));
    assert!(run(&["admin", "verify", "--repair", "--overwrite"]).status.success());
    assert!(shown().contains("published: release 1, 1 skill"), "{}", shown());
    edit("---\nname: sale\ndescription: More\n---\n").await;
    assert!(shown().contains(
        "publish the changes of other tools with `skillfs --embedded store admin index --library acme`"
    ));
    assert!(run(&["admin", "index"]).status.success());
    assert!(shown().contains("published: release 2, 1 skill"), "{}", shown());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_says_what_it_could_not_take_away() {
    let patient =
        Patient::new(|r| (r.method == "DELETE").then(|| refused(403, "AccessDenied", "", ""))).await;
    let output = patient.doctor().await;
    let keys = patient.keys().await;
    let left: Vec<_> = keys.iter().filter(|key| key.contains("doctor")).collect();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(left.len(), 1);
    assert!(text.contains(&format!("s3 rm s3://test-bucket/{}`", left[0])), "{text}");
    snapshot!("doctor-left", output);
    // After a lost response, the probe may exist, so it is deleted.
    let patient = Patient::new(|r| {
        (r.method == "PUT" && r.header("if-match").is_none()).then_some(Reply::ForwardLost(None))
    })
    .await;
    let before = patient.keys().await;
    assert_eq!(found(&patient.diagnose().await, "write", "/workspace").0, Verdict::Wrong);
    assert_eq!(patient.keys().await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_who_goes_away_leaves_nothing_behind() {
    let made = Arc::new(Notify::new());
    let tell = made.clone();
    let patient = Patient::new(move |r| {
        let tell = tell.clone();
        let hook = Hook(Arc::new(move || {
            tell.notify_one();
            Box::pin(tokio::time::sleep(Duration::from_millis(50)))
        }));
        (r.method == "PUT" && r.target.contains("doctor")).then_some(Reply::ForwardHook(hook))
    })
    .await;
    let before = patient.keys().await;
    tokio::select! {
        _ = patient.diagnose() => panic!("it was to be interrupted"),
        () = made.notified() => {}
    }
    while patient.keys().await != before {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_does_not_wait_again_for_who_has_stopped_answering() {
    let patient = Patient::new(|r| (r.operation() == "LIST").then_some(Reply::Stall)).await;
    let short = Duration::from_millis(300);
    let fs = patient.bucket.with(&patient.wire.endpoint, |settings| {
        settings.timeouts = settings.timeouts.attempt(short).operation(short);
        settings.max_attempts = 1;
    });
    let diagnosis = fs.await.diagnose(&session("u1", "1", "k1")).await;
    assert_eq!(found(&diagnosis, "list", "/skills (user u1)").0, Verdict::Wrong);
    assert_eq!(found(&diagnosis, "write", "/workspace").0, Verdict::Skipped);
    assert_eq!(found(&diagnosis, "index", "user u1").0, Verdict::Skipped);
    assert_eq!(patient.wire.operations(), ["GET", "LIST"]);
}

#[tokio::test]
async fn doctor_looks_at_an_embedded_store() {
    let data = tempfile::tempdir().unwrap();
    let store = data.path().join("store");
    let store = store.to_str().unwrap();
    let run = |args: &[&str]| program().args(["--embedded", store]).args(args).output().unwrap();
    let none = run(&["doctor"]);
    assert_eq!(none.status.code(), Some(7));
    assert!(String::from_utf8(none.stderr).unwrap().contains("there is no store in"));
    assert!(run(&["demo", "-q"]).status.success());
    let args = ["--user", "ana", "--thread", "t-42", "--ticket", "k-7"];
    snapshot!("doctor-embedded", run(&[&args[..], &["doctor"]].concat()));
    let other = run(&["--bucket", "other", "--user", "ana", "doctor"]);
    assert_eq!(other.status.code(), Some(1));
    assert!(String::from_utf8(other.stdout).unwrap().contains("write a file to create it"));
    let read_only = run(&[&args[..], &["--read-only", "doctor"]].concat());
    assert!(String::from_utf8(read_only.stdout).unwrap().contains("read-only in this session"));
    snapshot!("help-doctor", program().env("COLUMNS", "100").args(["doctor", "--help"]).output().unwrap());
}

#[tokio::test]
async fn doctor_tells_of_a_storage_that_cannot_be_reached() {
    let output = program()
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test")
        // Nothing listens on port 1.
        .args(["--bucket", "acme", "--endpoint-url", "http://127.0.0.1:1", "doctor"])
        .output()
        .unwrap();
    snapshot!("doctor-unreachable", output);
    let wire = Wire::start(None, |_, _| Reply::Raw(response(200, "text/html", b"<html>Welcome"))).await;
    let bucket = Bucket::embedded().await;
    let diagnosis = bucket.through(&wire.endpoint).await.diagnose(&Session::default()).await;
    assert_eq!(found(&diagnosis, "endpoint", "").0, Verdict::Wrong);
    assert_eq!(found(&diagnosis, "clock", "").0, Verdict::Skipped);
    assert!(!diagnosis.healthy);
}

/// Runs skillfs as a service that may only assume a role, on a cloud that enforces policies.
async fn confined(cloud: &Cloud, args: &[&str]) -> Output {
    let mut command = program();
    command
        .env("AWS_ACCESS_KEY_ID", &cloud.bucket.credentials.access_key_id)
        .env("AWS_SECRET_ACCESS_KEY", &cloud.bucket.credentials.secret_access_key)
        .args(["--bucket", &cloud.bucket.name, "--endpoint-url", &cloud.wire.endpoint, "--role-arn", ROLE])
        .args(args)
        .arg("doctor");
    tokio::process::Command::from(command).output().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_whether_s3_confines_the_session() {
    let cloud = Cloud::start().await;
    cloud.bucket.put("threads/1/notes.md", "note").await;
    cloud.bucket.put("u1/skills/a/SKILL.md", "---\nname: a\ndescription: A\n---\n").await;
    cloud.rules.process_may_only_assume_role.store(true, std::sync::atomic::Ordering::SeqCst);
    let session = ["--user", "u1", "--thread", "1"];
    snapshot!("doctor-confined", confined(&cloud, &session).await);
    snapshot!("doctor-role-without-session", confined(&cloud, &[]).await);
    cloud.rules.ignores_policies.store(true, std::sync::atomic::Ordering::SeqCst);
    snapshot!("doctor-confinement-broken", confined(&cloud, &session).await);
    *cloud.rules.refused.lock().unwrap() = Some("/u1/".to_owned());
    snapshot!("doctor-role-refused", confined(&cloud, &session).await);
    let left = cloud.bucket.raw.list_objects_v2().bucket(&cloud.bucket.name).send().await.unwrap();
    assert_eq!(left.contents.unwrap().len(), 2, "what it made is gone");
}

/// S3 may answer 403 for a missing index if the caller may list only prefixes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_a_missing_index_from_a_forbidden_one_on_a_role() {
    let cloud = Cloud::start().await;
    cloud.bucket.put("u1/skills/a/SKILL.md", "---\nname: a\ndescription: A\n---\n").await;
    cloud.rules.forbidden.lock().unwrap().insert("u1/.skillfs/index.json".to_owned());
    let fs = cloud.fs(|_| ()).await;
    let found = fs.diagnose(&session("u1", "1", "k1")).await;
    let index = found.checks.iter().find(|check| check.name == "index").unwrap();
    assert_eq!(index.verdict, Verdict::Note, "{index:?}");
}

/// A session's own policy allows everything that the doctor checks in a published library.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_looks_at_a_published_library_on_a_role() {
    let cloud = Cloud::start().await;
    cloud.bucket.put("u1/skills/a/SKILL.md", "---\nname: a\ndescription: A\n---\n").await;
    publish(&cloud.bucket.fs, &own()).await;
    let fs = cloud.fs(|_| ()).await;
    let diagnosis = fs.diagnose(&session("u1", "1", "k1")).await;
    assert_eq!(
        found(&diagnosis, "index", "user u1"),
        (Verdict::Good, "published: release 1, 1 skill", String::new())
    );
    cloud.bucket.put("u1/skills/b.md", "x").await;
    let diagnosis = fs.diagnose(&session("u1", "1", "k1")).await;
    assert_eq!(found(&diagnosis, "index", "user u1").0, Verdict::Warning);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_who_goes_away_leaves_no_probe_of_conditions() {
    let bucket = Bucket::embedded().await;
    bucket.put("threads/1/a.md", "x").await;
    let seen = Arc::new(Notify::new());
    let tell = seen.clone();
    let wire = Wire::start(Some(&bucket.endpoint), move |r, _| {
        if r.method == "PUT" && r.header("if-match").is_some() {
            tell.notify_one();
            return Reply::RawAfter(Duration::from_millis(100), response(200, "application/xml", b""));
        }
        Reply::Forward
    })
    .await;
    let fs = bucket.through(&wire.endpoint).await;
    let session = session("u1", "1", "k1");
    tokio::select! {
        _ = fs.diagnose(&session) => panic!("it was to be interrupted"),
        () = seen.notified() => {}
    }
    let mut all = Vec::new();
    let probes = |all: &[Request], method: &str| {
        all.iter().filter(|r| r.method == method && r.target.contains("skillfs-probe-")).count()
    };
    for _ in 0..1_000 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        all.extend(wire.take());
        if probes(&all, "DELETE") > 0 {
            break;
        }
    }
    wire.quiet().await;
    all.extend(wire.take());
    assert_eq!((probes(&all, "PUT"), probes(&all, "DELETE")), (1, 1));
}

/// Diagnoses a session with a role, and answers requests that its policy does not allow with `decide`.
/// Returns the confinement check and these requests.
async fn confinement(
    decide: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static,
) -> (Check, Vec<String>) {
    let cloud = Cloud::start().await;
    let foreign = Arc::new(Mutex::new(Vec::new()));
    let log = foreign.clone();
    *cloud.rules.breach.lock().unwrap() = Some(Box::new(move |request| {
        log.lock().unwrap().push(request.clone());
        decide(request)
    }));
    let fs = cloud.fs(|settings| settings.max_attempts = 1).await;
    let session =
        Session::default().user(UserId::parse("ana").unwrap()).thread(ThreadId::parse("t1").unwrap());
    let diagnosis = fs.diagnose(&session).await;
    let check = diagnosis.checks.into_iter().find(|check| check.name == "confinement").unwrap();
    let without_role = cloud.bucket.through(&cloud.wire.endpoint).await.diagnose(&session).await;
    assert_eq!(found(&without_role, "confinement", "").0, Verdict::Note);
    let requests = foreign.lock().unwrap();
    assert!(
        requests.iter().filter(|r| r.method == "PUT").all(|r| r.header("if-none-match") == Some("*")),
        "{requests:?}"
    );
    (check, requests.iter().map(|r| format!("{} {}", r.operation(), r.target)).collect())
}

fn accepted() -> Reply {
    Reply::Raw(response(200, "application/xml", b"<ListBucketResult></ListBucketResult>"))
}

#[tokio::test]
async fn confinement_is_kept_where_everything_is_refused() {
    let (check, requests) = confinement(|_| None).await;
    assert_eq!((check.verdict, check.fix), (Verdict::Good, None));
    let operations: Vec<_> = requests.iter().map(|r| r.split(' ').next().unwrap()).collect();
    assert_eq!(operations, ["LIST", "LIST", "GET", "PUT", "PUT", "PUT"]);
    assert!(requests[0].contains("prefix=threads%2F") && !requests[2].contains("threads/t1/"));
    assert!(requests[4].contains("/test-bucket/ana/.skillfs/skillfs-doctor-"), "{requests:?}");
}

#[tokio::test]
async fn confinement_is_broken_by_anything_that_is_allowed() {
    type Decide = fn(&Request) -> Option<Reply>;
    let lists: Decide = |r| (r.operation() == "LIST" && r.target.contains("threads")).then(accepted);
    let all: Decide = |r| (r.operation() == "LIST" && !r.target.contains("threads")).then(accepted);
    let reads: Decide = |r| (r.operation() == "GET").then(|| Reply::error(404, "NoSuchKey"));
    let threads: Decide = |r| (r.target.contains("/threads/") && r.method != "GET").then(accepted);
    let beside: Decide = |r| r.target.contains("/ana/.skillfs/").then(accepted);
    let library: Decide = |r| r.target.contains("/ana/skills/").then(accepted);
    for (decide, what, deletes) in [
        (lists, "it may list `threads/`", 0),
        (all, "it may list the entire bucket", 0),
        (reads, "it may read in another thread", 0),
        (threads, "it may write to another thread", 1),
        (beside, "it may write below `ana/.skillfs/`", 1),
        (library, "it may write to the library of user `ana`", 1),
    ] {
        let (check, requests) = confinement(decide).await;
        assert_eq!((check.verdict, check.found), (Verdict::Wrong, format!("broken: {what}")));
        assert!(check.fix.unwrap().to_string().contains("terraform/README.md"));
        assert_eq!(requests.iter().filter(|r| r.starts_with("DELETE")).count(), deletes, "{what}");
    }
}

#[tokio::test]
async fn what_a_broken_confinement_left_behind_is_named() {
    let (check, _) = confinement(|r| (r.method == "PUT").then(accepted)).await;
    assert_eq!(check.verdict, Verdict::Wrong);
    assert_eq!(check.found.matches("is left in the bucket").count(), 3, "{}", check.found);
    let fix = fix(&check);
    assert_eq!(fix.matches(" s3 rm s3://test-bucket/").count(), 3, "{fix}");
}

#[tokio::test]
async fn a_confinement_that_cannot_be_asked_for_is_not_kept() {
    let (check, _) =
        confinement(|r| (r.operation() == "LIST").then(|| Reply::error(400, "ExpiredToken"))).await;
    assert_eq!(check.verdict, Verdict::Warning, "{}", check.found);
    let (check, requests) = confinement(|_| Some(Reply::Reset)).await;
    assert_eq!((check.verdict, requests.len()), (Verdict::Warning, 1), "{}", check.found);
}

#[tokio::test]
async fn what_may_be_left_behind_by_a_trespass_is_named() {
    // The response to the write is lost, and deleting is refused.
    let (check, requests) = confinement(|r| (r.method == "PUT").then_some(Reply::Reset)).await;
    let said = format!("{} {}", check.found, fix(&check));
    assert!(said.contains("skillfs-doctor-"), "{said:?} {requests:?}");
}

#[tokio::test]
async fn writing_to_the_skills_of_a_library_is_tried() {
    let (check, requests) =
        confinement(|r| (r.method != "GET" && r.target.contains("/ana/skills/")).then(accepted)).await;
    assert_eq!(check.verdict, Verdict::Wrong, "{} {requests:?}", check.found);
}
