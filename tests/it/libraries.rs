//! Plain and published libraries from a reader's perspective: requests, costs, and handling of bad indexes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use skillfs::admin::{IntoKind, LibraryChange, NewFile, NewLibrary, NewSkill, PushOptions};
use skillfs::embedded::Embedded;
use skillfs::{ErrorKind, Freshness, Library, LibraryId, S3Backend, Session, SkillFs, UserId};

use crate::skills::skill;
use crate::support::wire::{Reply, Request, Wire};
use crate::support::{Bucket, Seeded, campaign, on_every_server, session};

on_every_server!(
    published_and_plain_catalogs_are_equal,
    the_version_changes_with_what_it_is_of,
    a_damaged_index_is_an_error_and_never_a_listing,
);

const SHARED_INDEX: &str = "shared/acme/.skillfs/index.json";

fn acme() -> Library {
    Library::Shared(LibraryId::parse("acme").unwrap())
}

fn ana() -> Library {
    Library::User(UserId::parse("u1").unwrap())
}

/// A session with only the shared library.
fn shared(fs: &SkillFs) -> S3Backend {
    fs.session(&Session::default().libraries(vec![LibraryId::parse("acme").unwrap()]))
}

/// A session with a user's own library and the shared one after it.
fn both(fs: &SkillFs) -> S3Backend {
    let libraries = vec![LibraryId::parse("acme").unwrap()];
    fs.session(&session("u1", "1", "k1").libraries(libraries))
}

async fn publish(fs: &SkillFs, library: &Library) {
    let mut options = PushOptions::default();
    options.into = IntoKind::Published;
    let plan = fs.library(library).plan(LibraryChange::Index, &options).await.unwrap();
    fs.library(&plan.library).publish(&plan).await.unwrap();
}

async fn push_one(fs: &SkillFs, library: &Library, path: &str, text: &str) {
    let mut new = NewLibrary::default();
    new.skills = vec![NewSkill::new(path, vec![NewFile::new("SKILL.md", text.to_owned())])];
    let plan = fs.library(library).plan(&new, &PushOptions::default()).await.unwrap();
    fs.library(&plan.library).publish(&plan).await.unwrap();
}

/// Skills with three files each, and the descriptions of their categories.
fn objects(prefix: &str, count: usize) -> Vec<(String, Bytes)> {
    let mut objects = Vec::new();
    for i in 0..count {
        let directory = format!("{prefix}/skills/c{:02}/s{i:04}", i % 50);
        let text = format!(
            "---\nname: s{i:04}\ndescription: Drafts document number {i} from what the client says, asks for what is \
             missing, and checks the result. Use it when somebody asks for a draft or a review.\nlicense: MIT\n---\n\
             # Document {i}\n"
        );
        objects.push((format!("{directory}/SKILL.md"), text.into()));
        objects.push((format!("{directory}/references/guide.md"), format!("# Guide {i}\n").into()));
        objects.push((format!("{directory}/scripts/check.sh"), format!("#!/bin/sh\necho {i}\n").into()));
    }
    for category in 0..50.min(count) {
        let text = format!("Category {category}.");
        objects.push((format!("{prefix}/skills/c{category:02}/DESCRIPTION.md"), text.into()));
    }
    objects
}

/// A bucket with these objects, whose shared library is published.
async fn bucket(all: Vec<(String, Bytes)>) -> Bucket {
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    embedded.put_all(&bucket.name, all).await.unwrap();
    publish(&bucket.fs, &acme()).await;
    bucket
}

/// The requests so far: the operation, its target, and whether it is conditional.
fn requests(wire: &Wire) -> Vec<String> {
    let shown = |request: &Request| {
        let what = match &request.target {
            target if target.contains("index.json") => "index",
            target if target.contains("/blobs/") => "blob",
            target if request.operation() == "LIST" && target.contains("prefix=") => "keys",
            _ => "key",
        };
        let known = if request.header("if-none-match").is_some() { " if changed" } else { "" };
        format!("{} {what}{known}", request.operation())
    };
    let mut shown: Vec<_> = wire.take().iter().map(shown).collect();
    shown.sort();
    shown
}

async fn a_catalog_of(count: usize, most_bytes: usize) {
    let b = bucket(objects("shared/acme", count)).await;
    let index = b.raw.head_object().bucket(&b.name).key(SHARED_INDEX).send().await.unwrap();
    let bytes = usize::try_from(index.content_length().unwrap()).unwrap();
    assert!(bytes < most_bytes, "the index of {count} skills has {bytes} bytes");
    assert_eq!(index.content_encoding(), Some("gzip"));
    let wire = Wire::start(Some(&b.endpoint), |_, _| Reply::Forward).await;
    let hour = Freshness::all(Duration::from_secs(3600));
    let fs = b.with(&wire.endpoint, |settings| settings.freshness = hour).await;
    let s = shared(&fs);
    let catalog = s.skills(None).await.unwrap();
    assert_eq!((catalog.list().len(), catalog.categories().len()), (count, 50));
    assert_eq!(catalog.categories()[3].description.as_deref(), Some("Category 3."));
    assert!(catalog.list().iter().all(|skill| skill.resources.len() == 2));
    assert_eq!(requests(&wire), ["GET index"]);
    // Within the freshness bound, no session sends any request for it.
    s.load_all_skills_formatted(None).await.unwrap();
    shared(&fs).ls_recursive("/skills").await.unwrap();
    assert!(shared(&fs).exists("/skills/c01/s0001/scripts/check.sh").await.unwrap());
    shared(&fs).catalog_version().await.unwrap();
    assert!(requests(&wire).is_empty());
    // Past the bound: one conditional request.
    assert_eq!(s.fresh().skills(None).await.unwrap(), catalog);
    assert_eq!(requests(&wire), ["GET index if changed"]);
    // One skill, cold: the index and its file.
    let cold = shared(&b.through(&wire.endpoint).await);
    cold.load_skill("c01/s0001").await.unwrap();
    assert_eq!(requests(&wire), ["GET blob", "GET index"]);
    // A release that changes one skill costs a reader one request.
    push_one(&b.fs, &acme(), "c01/s0001", "---\nname: s0001\ndescription: Another.\n---\n").await;
    let changed = s.fresh().skills(None).await.unwrap();
    assert_eq!(changed.get("c01/s0001").unwrap().manifest.description, "Another.");
    assert_eq!(requests(&wire), ["GET index if changed"]);
    // Cached content needs no request, however old it is.
    cold.read("/skills/c02/s0002/SKILL.md").await.unwrap();
    requests(&wire);
    cold.fresh().read("/skills/c02/s0002/SKILL.md").await.unwrap();
    assert_eq!(requests(&wire), ["GET index if changed"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_published_catalog_costs_one_request() {
    a_catalog_of(200, 70_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_published_library_of_5000_skills_costs_one_request() {
    let (skills, bytes) = campaign((5_000, 1_600_000), (1_000, 330_000));
    a_catalog_of(skills, bytes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_library_alongside_makes_three_requests_at_once() {
    let b = bucket([objects("shared/acme", 50), objects("u1", 200)].concat()).await;
    let slow = |_: &Request, _| Reply::ForwardAfter(Duration::from_millis(300));
    let wire = Wire::start(Some(&b.endpoint), slow).await;
    let s = both(&b.through(&wire.endpoint).await);
    // Listing the skills takes one round trip.
    assert_eq!(s.load_skills(None).await.unwrap().len(), 200);
    assert_eq!(wire.longest_chain(), 1);
    assert_eq!(requests(&wire), ["GET index", "GET index", "LIST keys"]);
    // The heads of a plain library are read with the maximum concurrency of a tenant.
    let s = both(&b.through(&wire.endpoint).await);
    s.skills(None).await.unwrap();
    assert!(wire.max_concurrent() >= 64, "{} at once", wire.max_concurrent());
    let heads = wire.take().iter().filter(|request| request.target.contains("/u1/skills/")).count();
    assert_eq!(heads, 250);
    wire.longest_chain();
    // Cached: the shared library is revalidated, and the plain one is listed, concurrently.
    s.skills(None).await.unwrap();
    assert_eq!(wire.longest_chain(), 1);
    assert_eq!(requests(&wire), ["GET index", "GET index if changed", "LIST keys"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_library_that_is_plain_is_listed_after_its_index() {
    let embedded = Embedded::in_memory().unwrap();
    let b = Bucket::in_embedded(&embedded).await;
    embedded.put_all(&b.name, objects("shared/acme", 5)).await.unwrap();
    let wire = Wire::start(Some(&b.endpoint), |_, _| Reply::Forward).await;
    let s = shared(&b.through(&wire.endpoint).await);
    assert_eq!(s.load_skills(None).await.unwrap().len(), 5);
    assert_eq!(
        (requests(&wire).as_slice(), wire.longest_chain()),
        (&["GET index".to_owned(), "LIST keys".to_owned()][..], 2)
    );
    // Known to be plain: both requests are sent concurrently.
    s.load_skills(None).await.unwrap();
    assert_eq!(requests(&wire), ["GET index", "LIST keys"]);
    // An index that says plain makes no difference.
    publish(&b.fs, &acme()).await;
    b.fs.library(&acme()).unpublish().await.unwrap();
    b.put("shared/acme/skills/new/SKILL.md", skill("new")).await;
    assert_eq!(s.load_skills(None).await.unwrap().len(), 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_sessions_cost_as_much_as_one() {
    let b = bucket(objects("shared/acme", 200)).await;
    let wire = Wire::start(Some(&b.endpoint), |_, _| Reply::Forward).await;
    let hour = Freshness::all(Duration::from_secs(3600));
    let fs = b.with(&wire.endpoint, |settings| settings.freshness = hour).await;
    let sessions: Vec<_> = (0..1_000).map(|_| shared(&fs)).collect();
    let all = sessions.iter().map(|s| async { s.load_all_skills_formatted(None).await.unwrap() });
    let all = futures_util::future::join_all(all).await;
    assert!(all.iter().all(|text| text.contains("s0199") && *text == all[0]));
    assert_eq!(requests(&wire), ["GET index"]);
    for s in &sessions[..10] {
        s.load_skills_frontmatter(Some("c01")).await.unwrap();
        s.catalog_version().await.unwrap();
    }
    assert!(requests(&wire).is_empty());
}

async fn published_and_plain_catalogs_are_equal(b: Bucket) {
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
    b.put("u1/skills/c/DESCRIPTION.md", "---\ndescription: All sorts.\n---\nAnd more\n").await;
    b.put("u1/skills/c/case/skill.md", skill("case")).await;
    b.put("u1/skills/.hidden/x/SKILL.md", skill("x")).await;
    b.put("u1/skills/loose.md", "loose").await;
    let plain = b.session().skills(None).await.unwrap();
    let files = |listing: skillfs::Listing| -> BTreeMap<String, Option<u64>> {
        listing.entries.into_iter().map(|entry| (entry.path.to_string(), entry.size)).collect()
    };
    let tree = files(b.session().ls_recursive("/skills").await.unwrap());
    publish(&b.fs, &ana()).await;
    let fs = b.through(&b.endpoint).await;
    let s = fs.session(&session("u1", "1", "k1"));
    let published = s.skills(None).await.unwrap();
    assert_eq!(published.list().len(), plain.list().len());
    for (published, plain) in published.list().iter().zip(plain.list()) {
        let mut published = (**published).clone();
        published.etag.clone_from(&plain.etag);
        assert_eq!(published, **plain);
    }
    assert_eq!(published.categories(), plain.categories());
    assert_eq!(published.diagnostics(), plain.diagnostics());
    assert_eq!(files(s.ls_recursive("/skills").await.unwrap()), tree);
    // The index has everything except for the file that is not UTF-8.
    assert!(fs.requests().get <= 1 + 2, "{:?}", fs.requests());
    for name in ["plain", "windows", "latin", "body"] {
        let path = format!("c/{name}");
        assert_eq!(
            s.load_skill(&path).await.unwrap().content,
            b.session().load_skill(&path).await.unwrap().content
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_that_may_not_be_read_is_told_from_a_missing_one() {
    // S3 also answers 403 for a missing key if the caller may not list it.
    let forbid = |list: Reply| {
        move |request: &Request, _: usize| match request.operation() {
            "GET" if request.target.contains("index.json") => Reply::error(403, "AccessDenied"),
            "LIST" if request.target.contains("index.json") => list.clone(),
            _ => Reply::Forward,
        }
    };
    let embedded = Embedded::in_memory().unwrap();
    let b = Bucket::in_embedded(&embedded).await;
    embedded.put_all(&b.name, objects("shared/acme", 5)).await.unwrap();
    let wire = Wire::start(Some(&b.endpoint), forbid(Reply::Forward)).await;
    let s = shared(&b.through(&wire.endpoint).await);
    assert_eq!(s.load_skills(None).await.unwrap().len(), 5);
    assert_eq!(requests(&wire), ["GET index", "LIST index", "LIST keys"]);
    // It exists and may not be read.
    publish(&b.fs, &acme()).await;
    let s = shared(&b.through(&wire.endpoint).await);
    assert_eq!(s.load_skills(None).await.unwrap_err().kind(), ErrorKind::Denied);
    // It is unknown whether it exists.
    let wire = Wire::start(Some(&b.endpoint), forbid(Reply::error(403, "AccessDenied"))).await;
    let error = shared(&b.through(&wire.endpoint).await).load_skills(None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.message().contains("acme"), "{error:?}");
}

async fn a_damaged_index_is_an_error_and_never_a_listing(b: Bucket) {
    b.put("shared/acme/skills/c/a/SKILL.md", skill("a")).await;
    b.put("u2/skills/c/secret/SKILL.md", skill("secret")).await;
    publish(&b.fs, &acme()).await;
    let good = b.raw.get_object().bucket(&b.name).key(SHARED_INDEX).send().await.unwrap();
    let good = good.body.collect().await.unwrap().into_bytes();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&good[..]), &mut text).unwrap();
    let lying = |from: &str, to: &str| {
        let lie = text.replace(from, to);
        assert_ne!(lie, text, "{from}");
        lie.into_bytes()
    };
    let bad: Vec<(&str, Vec<u8>)> = vec![
        ("empty", Vec::new()),
        ("torn", good[..good.len() / 2].to_vec()),
        ("binary", vec![0xff; 1_000]),
        ("a list", b"[1,2,3]".to_vec()),
        ("an unknown kind", lying("\"kind\":\"published\"", "\"kind\":\"other\"")),
        ("another tenant's path", lying("c/a/SKILL.md", "../../../u2/skills/c/secret/SKILL.md")),
        ("an absolute path", lying("c/a/SKILL.md", "/u2/skills/c/secret/SKILL.md")),
        ("another blob key", lying("\"origins\":[{\"id\":\"", "\"origins\":[{\"id\":\"../../../u2/")),
        ("a release that is not there", lying("\"blob\":0", "\"blob\":9")),
        ("a digest that is none", lying("\"sha256\":\"", "\"sha256\":\"../")),
    ];
    for (what, content) in bad {
        b.put(SHARED_INDEX, content).await;
        let fs = b.through(&b.endpoint).await;
        let before = fs.requests();
        let error = shared(&fs).skills(None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error:?}");
        assert!(error.message().contains("acme") && error.hint().is_some(), "{what}: {error:?}");
        assert_eq!((fs.requests() - before).list, 0, "{what}");
        assert_eq!(shared(&fs).read("/skills/c/a/SKILL.md").await.unwrap_err().kind(), ErrorKind::Corrupt);
        let plan = fs.library(&acme()).plan(&NewLibrary::default(), &PushOptions::default()).await;
        assert_eq!(plan.unwrap_err().kind(), ErrorKind::Corrupt, "{what}");
    }
    // A proxy may have decompressed the index.
    b.put(SHARED_INDEX, &text).await;
    assert_eq!(shared(&b.through(&b.endpoint).await).skills(None).await.unwrap().list().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_index_is_unavailable() {
    let b = bucket(objects("shared/acme", 3)).await;
    b.put(SHARED_INDEX, br#"{"format":9,"something":"new"}"#).await;
    let error = shared(&b.fs).skills(None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("format 9"), "{error:?}");
    let plan = b.fs.library(&acme()).plan(&NewLibrary::default(), &PushOptions::default()).await;
    assert_eq!(plan.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_index_is_served_on() {
    let b = bucket(objects("shared/acme", 3)).await;
    let s = shared(&b.fs);
    let before = s.skills(None).await.unwrap();
    let good = b.raw.get_object().bucket(&b.name).key(SHARED_INDEX).send().await.unwrap();
    let good = good.body.collect().await.unwrap().into_bytes();
    for bad in [&b"{"[..], br#"{"format":9}"#, b""] {
        b.put(SHARED_INDEX, bad).await;
        let served = s.skills(None).await.unwrap();
        assert_eq!(served.list(), before.list());
        let said = &served.diagnostics()[0];
        assert_eq!(said.code, "stale-index");
        assert!(said.message.contains("acme"), "{said:?}");
        s.load_skill("c01/s0001").await.unwrap();
    }
    // After the repair, there are no diagnostics.
    b.put(SHARED_INDEX, &good).await;
    assert_eq!(s.skills(None).await.unwrap(), before);
    // A process without a cached index has nothing to serve.
    b.put(SHARED_INDEX, "{").await;
    assert!(shared(&b.through(&b.endpoint).await).skills(None).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_library_does_not_hide_earlier_ones() {
    let b = bucket(objects("shared/acme", 3)).await;
    b.put("u1/skills/c01/mine/SKILL.md", skill("mine")).await;
    b.put("u1/skills/c01/mine/references/r.md", "r").await;
    b.put("shared/later/skills/c01/later/SKILL.md", skill("later")).await;
    b.put(SHARED_INDEX, "{").await;
    let libraries = ["acme", "later"].map(|id| LibraryId::parse(id).unwrap()).to_vec();
    let s = b.fs.session(&session("u1", "1", "k1").libraries(libraries));
    // Skills of the earlier layer are complete.
    let catalog = s.skills(None).await.unwrap();
    assert_eq!(catalog.list().len(), 1);
    let said = catalog.diagnostics().iter().find(|said| said.code == "library-unavailable").unwrap();
    assert!(said.message.contains("acme"), "{said:?}");
    assert_eq!(s.load_skills(None).await.unwrap(), ["c01/mine"]);
    s.load_skill("c01/mine").await.unwrap();
    s.read("/skills/c01/mine/references/r.md").await.unwrap();
    assert_eq!(s.ls("/skills/c01/mine").await.unwrap().entries.len(), 2);
    assert!(!s.exists("/skills/c01/mine/none.md").await.unwrap());
    // Everything that could come from this library or a later one is unavailable.
    let unavailable = |result: skillfs::Result<()>, what: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error:?}");
        assert!(error.message().contains("acme"), "{what}: {error:?}");
    };
    unavailable(s.read("/skills/c01/s0001/SKILL.md").await.map(drop), "its own file");
    unavailable(s.read("/skills/c01/later/SKILL.md").await.map(drop), "a later one's");
    unavailable(s.load_skill("c01/s0001").await.map(drop), "its own skill");
    unavailable(s.ls("/skills").await.map(drop), "a listing");
    unavailable(s.ls("/skills/c01").await.map(drop), "a category");
    unavailable(s.exists("/skills/c01/s0001").await.map(drop), "exists");
    unavailable(s.glob("/skills/**/SKILL.md").await.map(drop), "glob");
    unavailable(s.skills(Some("c02")).await.map(drop), "another category");
    // Other mounts are not affected.
    s.ls("/workspace").await.unwrap();
    // Nothing of it is remembered once the library is fine again.
    b.fs.library(&acme())
        .repair(&{
            let mut options = skillfs::admin::RepairOptions::default();
            options.release = Some("1".into());
            options
        })
        .await
        .unwrap();
    assert_eq!(s.skills(None).await.unwrap().list().len(), 5);
    // If the first layer is broken, nothing can be answered.
    b.put("u1/.skillfs/index.json", "{").await;
    assert_eq!(s.skills(None).await.unwrap_err().kind(), ErrorKind::Corrupt);
}

/// Whatever another program does to a plain library, the files of a skill come from a single point in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_catalog_read_while_skills_change_is_never_mixed() {
    let bucket = Bucket::embedded().await;
    let version = |n: usize| format!("---\nname: s\ndescription: Version {n}.\n---\n{}\n", "x".repeat(n));
    for i in 0..20 {
        bucket.put(&format!("u1/skills/c/s{i:02}/SKILL.md"), version(1)).await;
    }
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
        let open = || fs.session(&session("u1", "1", "k1"));
        let library = open().skills(None).await.unwrap();
        for skill in library.list() {
            let n: usize =
                skill.manifest.description.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap();
            assert_eq!(skill.size as usize, version(n).len(), "head and listing are of two versions");
        }
        let loaded = open().load_skill("c/s07").await;
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
        let libraries = libraries.iter().map(|id| LibraryId::parse(id).unwrap());
        fs.session(&session("u1", "1", "k1").libraries(libraries))
    };
    let s = of(&["x", "y"]);
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    let mut new = async |what: &'static str| {
        let version = s.catalog_version().await.unwrap();
        assert_eq!(s.catalog_version().await.unwrap(), version, "{what}");
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
    publish(&fs, &ana()).await;
    new("published").await;
    push_one(&fs, &ana(), "c/a", &skill("a").replace("Does", "Will do")).await;
    new("a release").await;
    // What is not a skill does not count.
    let version = s.catalog_version().await.unwrap();
    b.put("shared/x/skills/loose.txt", "x").await;
    b.put("threads/1/x", "x").await;
    assert_eq!(s.catalog_version().await.unwrap(), version);
    // The order of the libraries and their identity count.
    let versions = [of(&["x", "y"]), of(&["y", "x"]), of(&["y"]), of(&[])];
    let mut all = Vec::new();
    for s in &versions {
        all.push(s.catalog_version().await.unwrap());
    }
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 4);
}

/// Without the index, it is unknown what is published, so a listing must not replace it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_index_is_an_error_and_not_a_listing() {
    let b = bucket([objects("shared/acme", 3), objects("u1", 3)].concat()).await;
    publish(&b.fs, &ana()).await;
    b.put("u1/skills/drift/SKILL.md", skill("drift")).await;
    for reply in [Reply::error(500, "InternalError"), Reply::Reset, Reply::error(503, "SlowDown")] {
        let wire = Wire::start(Some(&b.endpoint), move |request, _| {
            if request.target.contains("index.json") { reply.clone() } else { Reply::Forward }
        })
        .await;
        let fs = b.through(&wire.endpoint).await;
        for s in [both(&fs), shared(&fs)] {
            for error in [s.skills(None).await.unwrap_err(), s.ls("/skills").await.unwrap_err()] {
                let passes = [ErrorKind::Unavailable, ErrorKind::Throttled, ErrorKind::Timeout];
                assert!(passes.contains(&error.kind()), "{error:?}");
            }
        }
    }
}
