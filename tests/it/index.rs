//! The catalogue index: what it saves, and that it is never believed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use skillfs::embedded::Embedded;
use skillfs::{ErrorKind, Freshness, Library, LibraryId, S3Backend, Session, SkillFs, UserId};

use crate::attempts::attempts;
use crate::skills::skill;
use crate::support::wire::{Hook, Reply, Request, Wire};
use crate::support::{Bucket, Seeded, on_every_server, session};

on_every_server!(
    a_catalogue_with_an_index_is_the_one_without,
    an_index_is_made_anew_from_what_it_knows,
    of_two_administrators_one_is_told,
    what_is_wrong_with_an_index_costs_nothing_but_time,
    the_version_changes_with_what_it_is_of,
);

const INDEX: &str = "u1/.skillfs/index.json";

fn ana() -> Library {
    Library::User(UserId::parse("u1").unwrap())
}

fn open(fs: &SkillFs) -> S3Backend {
    fs.session(&session("u1", "1", "k1"))
}

/// A library with its index, behind a wire that counts.
async fn indexed(
    objects: impl IntoIterator<Item = (String, String)>,
    decide: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static,
) -> (Bucket, Wire) {
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    let objects = objects.into_iter().map(|(key, content)| (key, Bytes::from(content)));
    embedded.put_all(&bucket.name, objects).await.unwrap();
    bucket.fs.write_index(&ana()).await.unwrap();
    let wire = Wire::start(Some(&bucket.endpoint), decide).await;
    (bucket, wire)
}

fn two_hundred() -> Vec<(String, String)> {
    let mut objects: Vec<(String, String)> = (0..200)
        .map(|i| (format!("u1/skills/c{}/s{i:03}/SKILL.md", i % 4), skill(&format!("s{i:03}"))))
        .collect();
    objects.extend((0..200).map(|i| (format!("u1/skills/c{}/s{i:03}/references/r.md", i % 4), "r".into())));
    objects.extend((0..4).map(|i| (format!("u1/skills/c{i}/DESCRIPTION.md"), format!("Category {i}."))));
    objects
}

/// Requests by kind: listings, reads of the index, reads of skills.
fn kinds(wire: &Wire) -> (usize, usize, usize) {
    let (mut lists, mut looks, mut reads) = (0, 0, 0);
    for request in wire.take() {
        match request.operation() {
            "LIST" => lists += 1,
            "GET" if request.target.contains("index.json") => looks += 1,
            "GET" => reads += 1,
            other => panic!("{other}"),
        }
    }
    (lists, looks, reads)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_catalogue_with_an_index_is_two_requests_at_once() {
    let (bucket, wire) = indexed(two_hundred(), |_, _| Reply::ForwardAfter(Duration::from_millis(300))).await;
    let library = open(&bucket.through(&wire.endpoint).await).skills(None).await.unwrap();
    assert_eq!((library.list().len(), library.categories().len()), (200, 4));
    assert_eq!(library.categories()[3].description.as_deref(), Some("Category 3."));
    assert_eq!(library.list()[0].resources.len(), 1);
    assert_eq!(wire.longest_chain(), 1);
    assert_eq!(kinds(&wire), (1, 1, 0));
    // And it is the catalogue that it would be without.
    bucket.delete(INDEX).await;
    assert_eq!(open(&bucket.through(&wire.endpoint).await).skills(None).await.unwrap(), library);
    assert_eq!(kinds(&wire), (1, 1, 204));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checking_costs_a_listing_and_a_look_together() {
    let (bucket, wire) = indexed(two_hundred(), |_, _| Reply::ForwardAfter(Duration::from_millis(300))).await;
    let s = open(&bucket.through(&wire.endpoint).await);
    let known = s.skills(None).await.unwrap();
    wire.take();
    wire.longest_chain();
    assert_eq!(s.skills(None).await.unwrap(), known);
    assert_eq!(wire.longest_chain(), 1);
    let requests = wire.take();
    assert_eq!(requests.len(), 2);
    let look = requests.iter().find(|request| request.target.contains("index.json")).unwrap();
    assert!(look.header("if-none-match").is_some());

    // One skill is changed by hand: that one is read.
    bucket.put("u1/skills/c1/s001/SKILL.md", skill("s001").replace("Does", "Does not do")).await;
    let changed = s.skills(None).await.unwrap();
    assert_eq!(changed.get("c1/s001").unwrap().manifest.description, "Does not do s001.");
    let (lists, looks, reads) = kinds(&wire);
    assert!(lists <= 2 && looks <= 2 && reads == 1, "{lists} {looks} {reads}");
    // What was found out is not found out again.
    assert_eq!(s.skills(None).await.unwrap(), changed);
    assert_eq!(kinds(&wire), (1, 1, 0));

    // One is deleted: nothing is read.
    bucket.delete("u1/skills/c2/s002/SKILL.md").await;
    bucket.delete("u1/skills/c2/s002/references/r.md").await;
    let gone = s.skills(None).await.unwrap();
    assert_eq!(gone.list().len(), 199);
    assert!(gone.get("c2/s002").is_none());
    let (lists, looks, reads) = kinds(&wire);
    assert!(lists <= 2 && looks <= 2 && reads == 0, "{lists} {looks} {reads}");

    // From cold, a library that was changed by hand is listed again before that is believed.
    let cold = open(&bucket.through(&wire.endpoint).await).skills(None).await.unwrap();
    assert_eq!(cold, gone);
    assert_eq!(kinds(&wire), (2, 2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warm_costs_nothing_and_a_thousand_sessions_cost_what_one_does() {
    let (bucket, wire) = indexed(two_hundred(), |_, _| Reply::Forward).await;
    let hour = Freshness::all(Duration::from_secs(3600));
    let fs = bucket.with(&wire.endpoint, |settings| settings.freshness = hour).await;
    let sessions: Vec<_> = (0..1_000).map(|_| open(&fs)).collect();
    let all = sessions.iter().map(|s| async { s.load_all_skills_formatted(None).await.unwrap() });
    let all = futures_util::future::join_all(all).await;
    assert!(all.iter().all(|text| text.contains("s199") && *text == all[0]));
    assert_eq!(kinds(&wire), (1, 1, 0));
    for s in &sessions[..10] {
        s.load_all_skills_formatted(None).await.unwrap();
        s.load_skills_frontmatter(Some("c1")).await.unwrap();
        s.catalogue_version().await.unwrap();
    }
    assert_eq!(kinds(&wire), (0, 0, 0));
}

/// 5,000 skills with 15,000 files: the index tells where to cut the listing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_library_is_listed_at_once() {
    let objects = (0..5_000).flat_map(|i| {
        let directory = format!("u1/skills/c{:02}/s{i:04}", i % 50);
        [
            (format!("{directory}/SKILL.md"), skill(&format!("s{i:04}"))),
            (format!("{directory}/references/a.md"), "a".to_owned()),
            (format!("{directory}/scripts/b.sh"), "b".to_owned()),
        ]
    });
    let (bucket, wire) = indexed(objects, |_, _| Reply::ForwardAfter(Duration::from_secs(3))).await;
    let s = open(&bucket.through(&wire.endpoint).await);
    let library = s.skills(None).await.unwrap();
    assert_eq!(library.list().len(), 5_000);
    assert!(library.list().iter().all(|skill| skill.resources.len() == 2));
    let chain = wire.longest_chain();
    assert!(chain <= 3, "{chain} requests waited for one another");
    let (lists, looks, reads) = kinds(&wire);
    assert!((15..=18).contains(&lists) && looks == 1 && reads == 0, "{lists} {looks} {reads}");
    // With the index known, all pages are asked for at once.
    assert_eq!(s.load_skills(None).await.unwrap().len(), 5_000);
    assert_eq!(wire.longest_chain(), 1);
}

/// Whatever an old index says of where to cut, all that is there is listed, once.
#[tokio::test]
async fn an_old_index_cuts_a_listing_into_all_of_it() {
    let mut random = Seeded::new(7);
    let name = |i: usize| format!("u1/skills/c{}/s{:03}/f{i:05}.md", i % 3, i % 101);
    let mut objects: Vec<(String, String)> = (0..4_000).map(|i| (name(i), "x".to_owned())).collect();
    objects.extend((0..101).flat_map(|i| {
        (0..3).map(move |c| (format!("u1/skills/c{c}/s{i:03}/SKILL.md"), skill(&format!("s{i:03}"))))
    }));
    let (bucket, _) = indexed(objects, |_, _| Reply::Forward).await;
    // A thousand go, and two thousand come.
    for chunk in (0..1_000).map(|_| random.below(4_000)).collect::<Vec<_>>().chunks(50) {
        futures_util::future::join_all(chunk.iter().map(|i| {
            let key = name(*i);
            let bucket = &bucket;
            async move { bucket.delete(&key).await }
        }))
        .await;
    }
    for chunk in (4_000..6_000).collect::<Vec<_>>().chunks(50) {
        let put = chunk.iter().map(|i| {
            let key = name(*i);
            let bucket = &bucket;
            async move { bucket.put(&key, "x").await }
        });
        futures_util::future::join_all(put).await;
    }
    let plain: Vec<String> = bucket
        .session()
        .ls_recursive("/skills")
        .await
        .unwrap()
        .entries
        .into_iter()
        .filter(|entry| !entry.is_directory())
        .map(|entry| entry.path.to_string())
        .collect();
    let library = bucket.session().skills(None).await.unwrap();
    let cut: usize = library.list().iter().map(|skill| skill.resources.len() + 1).sum();
    assert_eq!(cut, plain.len());
}

async fn a_catalogue_with_an_index_is_the_one_without(b: Bucket) {
    let odd = [
        ("plain", skill("plain")),
        ("no-frontmatter", "# Title\n\nThe first paragraph.\n".to_owned()),
        ("no-description", "---\nname: no-description\n---\n# T\n\nTaken from the text.\n".to_owned()),
        (
            "windows",
            "---\r\nname: windows\r\ndescription: Lines end otherwise.\r\n---\r\nText\r\n".to_owned(),
        ),
        ("bom", format!("\u{feff}{}", skill("bom"))),
        ("other-name", "---\nname: another\ndescription: d\n---\n".to_owned()),
        ("unclosed", "---\nname: unclosed\ndescription: d\n".to_owned()),
        ("colons", "---\nname: colons\ndescription: Use when: always\n---\nx\n".to_owned()),
        ("dashes", "---\nname: dashes\ndescription: |\n  a\n  --- b\n  c\n---\nbody\n---\nmore\n".to_owned()),
        ("dots", "---\nname: dots\ndescription: d\n...\n".to_owned()),
        ("empty", String::new()),
        ("blank", "\n\n  \n".to_owned()),
        ("space", "\n---\nname: space\ndescription: d\n---\n".to_owned()),
        ("long", format!("---\nname: long\ndescription: d\nx: {}\n---\nbody", "y".repeat(6_000))),
        ("endless", format!("---\nname: endless\ndescription: d\nx: {}", "y".repeat(30_000))),
        ("body", format!("{}{}", skill("body"), "body ".repeat(3_000))),
        ("hidden-model", "---\nname: h\ndescription: d\ndisable-model-invocation: true\n---\n".to_owned()),
        ("bad-yaml", "---\nname: [x\ndescription: 'd\n---\nText.\n".to_owned()),
    ];
    for (name, text) in &odd {
        b.put(&format!("u1/skills/c/{name}/SKILL.md"), text).await;
    }
    b.put("u1/skills/c/binary/SKILL.md", b"\0\x01\x02").await;
    b.put(
        "u1/skills/c/latin/SKILL.md",
        crate::support::latin1("---\nname: latin\ndescription: Compraventa de garaje, año\n---\n"),
    )
    .await;
    b.put("u1/skills/c/DESCRIPTION.md", format!("---\ndescription: All sorts.\n---\n{}", "z".repeat(9_000)))
        .await;
    b.put("u1/skills/c/case/skill.md", skill("case")).await;
    b.put("u1/skills/.hidden/x/SKILL.md", skill("x")).await;
    b.put("u1/skills/loose.md", "loose").await;
    let without = b.session().skills(None).await.unwrap();
    let written = b.fs.write_index(&ana()).await.unwrap();
    assert_eq!(written.skills, odd.len() as u64 + 4);
    let fs = b.through(&b.endpoint).await;
    let with = open(&fs).skills(None).await.unwrap();
    assert_eq!(with.list().len(), without.list().len());
    for (with, without) in with.list().iter().zip(without.list()) {
        assert_eq!(with, without);
    }
    assert_eq!(with, without);
    // All but the one that is no UTF-8, and the empty one, are told by the index.
    assert!(fs.requests().get <= 1 + 2, "{:?}", fs.requests());
}

async fn an_index_is_made_anew_from_what_it_knows(b: Bucket) {
    for i in 0..10 {
        b.put(&format!("u1/skills/c/s{i}/SKILL.md"), skill(&format!("s{i}"))).await;
        b.put(&format!("u1/skills/c/s{i}/data.bin"), vec![7; 100_000]).await;
    }
    b.put("u1/skills/c/DESCRIPTION.md", "Things.").await;
    let made = b.fs.write_index(&ana()).await.unwrap();
    assert_eq!((made.skills, made.files, made.read), (10, 21, 21));
    let again = b.fs.write_index(&ana()).await.unwrap();
    assert_eq!((again.skills, again.files, again.read), (10, 21, 0));
    b.put("u1/skills/c/s3/data.bin", vec![8; 10]).await;
    b.put("u1/skills/c/new/SKILL.md", skill("new")).await;
    b.delete("u1/skills/c/s4/SKILL.md").await;
    b.delete("u1/skills/c/s4/data.bin").await;
    let made = b.through(&b.endpoint).await.write_index(&ana()).await.unwrap();
    assert_eq!((made.skills, made.files, made.read), (10, 20, 2));
    // It says what it should.
    let stored = b.raw.get_object().bucket(&b.name).key(INDEX).send().await.unwrap();
    assert_eq!(stored.content_type(), Some("application/json"));
    let stored = stored.body.collect().await.unwrap().into_bytes();
    let json: serde_json::Value = serde_json::from_slice(&stored).unwrap();
    assert_eq!(json["format"], 1);
    assert_eq!(json["categories"]["c"]["description"], "Things.");
    let s3 = &json["skills"]["c/s3"];
    assert_eq!(s3["frontmatter"], "name: s3\ndescription: Does s3.\n");
    assert_eq!(s3["files"]["data.bin"]["size"], 10);
    // printf '\010%.0s' {1..10} | sha256sum
    assert_eq!(
        s3["files"]["data.bin"]["sha256"],
        "3857ba410aea5b561d53b4e1bdb23dcbf34e7b9aa3340465147c22c8295d6a11"
    );
    // No session sees it.
    assert!(!b.session().exists("/skills/.skillfs").await.unwrap());
    assert!(
        b.session()
            .ls_recursive("/")
            .await
            .unwrap()
            .entries
            .iter()
            .all(|e| !e.path.as_str().contains("skillfs"))
    );
    // A shared library has its own; what is not there has none, and what is empty by now has one that says so.
    let acme = Library::Shared(LibraryId::parse("acme").unwrap());
    assert_eq!(b.fs.write_index(&acme).await.unwrap_err().kind(), ErrorKind::NotFound);
    b.put("shared/acme/skills/c/a/SKILL.md", skill("a")).await;
    assert_eq!(b.fs.write_index(&acme).await.unwrap().skills, 1);
    b.delete("shared/acme/skills/c/a/SKILL.md").await;
    assert_eq!(b.fs.write_index(&acme).await.unwrap().skills, 0);
    b.raw.head_object().bucket(&b.name).key("shared/acme/.skillfs/index.json").send().await.unwrap();
}

async fn of_two_administrators_one_is_told(b: Bucket) {
    for i in 0..20 {
        b.put(&format!("u1/skills/c/s{i}/SKILL.md"), skill(&format!("s{i}"))).await;
    }
    for _ in 0..5 {
        let (one, two) = (b.through(&b.endpoint).await, b.through(&b.endpoint).await);
        let (one, two) = (&one, &two);
        let ana = ana();
        let (one, two) = tokio::join!(one.write_index(&ana), two.write_index(&ana));
        let wins = [&one, &two].into_iter().filter(|made| made.is_ok()).count();
        assert!(wins >= 1);
        for lost in [one, two].into_iter().filter_map(Result::err) {
            assert_eq!(lost.kind(), ErrorKind::Conflict);
            assert!(lost.hint().is_some());
        }
    }
}

async fn what_is_wrong_with_an_index_costs_nothing_but_time(b: Bucket) {
    for i in 0..3 {
        b.put(&format!("u1/skills/c/s{i}/SKILL.md"), skill(&format!("s{i}"))).await;
    }
    b.put("u2/skills/c/secret/SKILL.md", skill("secret")).await;
    let expected = b.session().skills(None).await.unwrap();
    b.fs.write_index(&ana()).await.unwrap();
    let good = b.raw.get_object().bucket(&b.name).key(INDEX).send().await.unwrap();
    let good = good.body.collect().await.unwrap().into_bytes();
    let text = String::from_utf8(good.to_vec()).unwrap();
    let lying = |from: &str, to: &str| text.replace(from, to).into_bytes();
    let stolen = r#"{"format":1,"id":"x","categories":{"../../u2":{"size":1,"etag":"x","sha256":"","description":"d"}},"skills":{"../../u2/skills/c/secret":{"file":"SKILL.md","frontmatter":"name: secret\ndescription: d","files":{"SKILL.md":{"size":1,"etag":"x","sha256":""}}},"/u2/skills":{"file":"../x","files":{"../../x":{"size":0,"etag":"","sha256":""}}}}}"#;
    let bad: Vec<(&str, Vec<u8>)> = vec![
        ("empty", Vec::new()),
        ("torn", good[..good.len() / 2].to_vec()),
        ("binary", vec![0xff; 1_000]),
        ("a list", b"[1,2,3]".to_vec()),
        ("a newer format", lying("\"format\":1", "\"format\":2")),
        ("other files", lying("SKILL.md", "OTHER.md")),
        ("other versions", lying("\"etag\":\"", "\"etag\":\"0")),
        ("other sizes", lying("\"size\":", "\"size\":1")),
        ("another tenant's", stolen.as_bytes().to_vec()),
        (
            "a huge one",
            [b"{\"format\":1,\"id\":\"", "x".repeat(70 * 1024 * 1024).as_bytes(), b"\"}"].concat(),
        ),
    ];
    let mut tried = attempts!("keys");
    for (what, content) in bad {
        b.put(INDEX, content).await;
        let fs = b.through(&b.endpoint).await;
        let s = open(&fs);
        assert_eq!(s.skills(None).await.unwrap(), expected, "{what}");
        assert_eq!(s.skills(None).await.unwrap(), expected, "{what}");
        assert_eq!(s.load_skill("s1").await.unwrap().content, skill("s1"), "{what}");
        tried.refused(format!("an index that is wrong: {what}"));
        // And it is mended by writing it anew.
        if what == "a newer format" {
            // Unless it is somebody's who knows more than we do.
            assert_eq!(fs.write_index(&ana()).await.unwrap_err().kind(), ErrorKind::Corrupt);
            continue;
        }
        assert_eq!(fs.write_index(&ana()).await.unwrap().skills, 3, "{what}");
        assert_eq!(s.skills(None).await.unwrap(), expected, "{what}");
    }
}

#[tokio::test]
async fn an_index_that_may_not_be_read_is_none() {
    let (bucket, wire) = indexed(two_hundred(), |request, _| match request.target.contains("index.json") {
        true => Reply::error(403, "AccessDenied"),
        false => Reply::Forward,
    })
    .await;
    let library = open(&bucket.through(&wire.endpoint).await).skills(None).await.unwrap();
    assert_eq!(library.list().len(), 200);
    assert_eq!(kinds(&wire).2, 204);
}

/// The index is written while the library is listed: what differs is looked at again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_that_changes_around_a_listing_is_looked_at_again() {
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    for i in 0..5 {
        embedded
            .put(&bucket.name, &format!("u1/skills/c/s{i}/SKILL.md"), skill(&format!("s{i}")))
            .await
            .unwrap();
    }
    bucket.fs.write_index(&ana()).await.unwrap();
    let (raw, name, fs) = (bucket.raw.clone(), bucket.name.clone(), bucket.fs.clone());
    let armed = Arc::new(AtomicBool::new(false));
    let trap = armed.clone();
    // Between the answer to the listing and its arrival, a publisher changes a skill and the index.
    let publish = Hook(Arc::new(move || {
        let (raw, name, fs) = (raw.clone(), name.clone(), fs.clone());
        Box::pin(async move {
            let body = skill("s1").replace("Does", "Now does").into_bytes();
            raw.put_object()
                .bucket(&name)
                .key("u1/skills/c/s1/SKILL.md")
                .body(body.into())
                .send()
                .await
                .unwrap();
            fs.write_index(&ana()).await.unwrap();
        })
    }));
    let wire = Wire::start(Some(&bucket.endpoint), move |request, _| {
        if request.operation() == "LIST" && trap.swap(false, Ordering::SeqCst) {
            return Reply::ForwardHook(publish.clone());
        }
        // The index comes after the listing, and is the new one.
        if request.target.contains("index.json") {
            Reply::ForwardAfter(Duration::from_millis(700))
        } else {
            Reply::Forward
        }
    })
    .await;
    armed.store(true, Ordering::SeqCst);
    let library = open(&bucket.through(&wire.endpoint).await).skills(None).await.unwrap();
    assert_eq!(library.get("c/s1").unwrap().manifest.description, "Now does s1.");
    let (lists, _, reads) = kinds(&wire);
    assert_eq!((lists, reads), (2, 0), "the second listing agrees with the new index");
}

/// Files of two moments never mix: whatever a writer does meanwhile, a skill is what it was at one moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_catalogue_read_while_skills_change_is_never_mixed() {
    let bucket = Bucket::embedded().await;
    let version = |n: usize| format!("---\nname: s\ndescription: Version {n}.\n---\n{}\n", "x".repeat(n));
    for i in 0..20 {
        bucket.put(&format!("u1/skills/c/s{i:02}/SKILL.md"), version(1)).await;
    }
    bucket.fs.write_index(&ana()).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (raw, name, ended) = (bucket.raw.clone(), bucket.name.clone(), stop.clone());
    let writer = tokio::spawn(async move {
        let mut random = Seeded::new(3);
        let mut n = 1;
        while !ended.load(Ordering::SeqCst) {
            n += 1;
            let key = format!("u1/skills/c/s{:02}/SKILL.md", random.below(20));
            let body = version(n).into_bytes();
            raw.put_object().bucket(&name).key(key).body(body.into()).send().await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    for _ in 0..30 {
        let fs = bucket.through(&bucket.endpoint).await;
        let library = open(&fs).skills(None).await.unwrap();
        for skill in library.list() {
            let n: usize =
                skill.manifest.description.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap();
            assert_eq!(skill.size as usize, version(n).len(), "head and listing are of two versions");
        }
        let loaded = open(&fs).load_skill("c/s07").await;
        if let Ok(loaded) = loaded {
            assert_eq!(loaded.skill.size as usize, loaded.content.len());
        }
    }
    stop.store(true, Ordering::SeqCst);
    writer.await.unwrap();
}

async fn the_version_changes_with_what_it_is_of(b: Bucket) {
    let fs = b.through(&b.endpoint).await;
    b.put("u1/skills/c/a/SKILL.md", skill("a")).await;
    b.put("u1/skills/c/a/references/r.md", "1").await;
    b.put("u1/skills/c/DESCRIPTION.md", "One.").await;
    b.put("shared/x/skills/c/b/SKILL.md", skill("b")).await;
    b.put("shared/y/skills/c/d/SKILL.md", skill("d")).await;
    let of = |libraries: &[&str]| {
        let libraries = libraries.iter().map(|id| LibraryId::parse(id).unwrap()).collect();
        fs.session(&Session { libraries, ..session("u1", "1", "k1") })
    };
    let s = of(&["x", "y"]);
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    let mut new = async |what: &'static str| {
        let version = s.catalogue_version().await.unwrap();
        assert_eq!(s.catalogue_version().await.unwrap(), version, "{what}");
        if let Some(before) = seen.insert(version, what) {
            panic!("{what} has the version of {before}");
        }
    };
    new("the beginning").await;
    b.put("u1/skills/c/a/SKILL.md", skill("a").replace("Does", "Did")).await;
    new("a skill that says something else").await;
    b.put("u1/skills/c/a/references/r.md", "2").await;
    new("a file of a skill").await;
    b.put("u1/skills/c/a/references/new.md", "2").await;
    new("one file more").await;
    b.put("u1/skills/c/DESCRIPTION.md", "Two.").await;
    new("a category's description").await;
    b.put("shared/y/skills/c/e/SKILL.md", skill("e")).await;
    new("one skill more").await;
    b.delete("shared/x/skills/c/b/SKILL.md").await;
    new("one skill less").await;
    // What is no skill does not count.
    let version = s.catalogue_version().await.unwrap();
    b.put("u1/skills/loose.txt", "x").await;
    b.put("threads/1/x", "x").await;
    assert_eq!(s.catalogue_version().await.unwrap(), version);
    // The order of the libraries, and which they are.
    let versions = [of(&["x", "y"]), of(&["y", "x"]), of(&["y"]), of(&[])];
    let mut all = Vec::new();
    for s in &versions {
        all.push(s.catalogue_version().await.unwrap());
    }
    assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    // With an index it is by content: the same bytes again are the same version.
    fs.write_index(&ana()).await.unwrap();
    let indexed = of(&[]).catalogue_version().await.unwrap();
    b.put("u1/skills/c/a/references/new.md", "3").await;
    assert_ne!(of(&[]).catalogue_version().await.unwrap(), indexed);
    b.put("u1/skills/c/a/references/new.md", "2").await;
    assert_eq!(of(&[]).catalogue_version().await.unwrap(), indexed);
}

#[tokio::test]
async fn a_version_is_told_without_reading_a_skill() {
    let (bucket, wire) = indexed(two_hundred(), |_, _| Reply::Forward).await;
    bucket.delete(INDEX).await;
    let s = open(&bucket.through(&wire.endpoint).await);
    s.catalogue_version().await.unwrap();
    assert_eq!(kinds(&wire), (1, 1, 0));
}
