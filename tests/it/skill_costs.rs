//! The requests that skill operations send.

use std::time::Duration;

use skillfs::embedded::Embedded;
use skillfs::{ErrorKind, LibraryId, S3Backend};

use crate::skills::{paths, skill};
use crate::support::wire::{Reply, Wire};
use crate::support::{Bucket, session};

/// A library in an embedded store, behind a proxy that counts requests.
async fn counted(
    objects: Vec<(String, String)>,
    reply: impl Fn() -> Reply + Send + Sync + 'static,
) -> (Bucket, Wire, S3Backend) {
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    let objects = objects.into_iter().map(|(key, content)| (key, content.into()));
    embedded.put_all(&bucket.name, objects).await.unwrap();
    let wire = Wire::start(Some(&bucket.endpoint), move |_, _| reply()).await;
    let backend = bucket.through(&wire.endpoint).await.session(&session("u1", "1", "k1"));
    (bucket, wire, backend)
}

/// The targets of the requests for listing a category in several libraries.
async fn wire_targets(backend: &S3Backend, wire: &Wire) -> Vec<String> {
    backend.ls_recursive("/skills/a").await.unwrap();
    wire.take().into_iter().map(|request| request.target).collect()
}

fn counts(wire: &Wire) -> (usize, usize, usize) {
    let operations = wire.operations();
    let of = |name: &str| operations.iter().filter(|operation| *operation == name).count();
    (of("LIST"), of("GET"), operations.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_catalogue_of_200_skills_costs_one_listing_and_200_ranged_requests() {
    let mut objects: Vec<(String, String)> = (0..200)
        .map(|i| (format!("u1/skills/c{}/s{i:03}/SKILL.md", i % 4), skill(&format!("s{i:03}"))))
        .collect();
    objects.push(("u1/skills/c0/s000/references/guide.md".into(), "x".into()));
    let (bucket, wire, backend) = counted(objects, || Reply::ForwardAfter(Duration::from_millis(800))).await;
    let library = backend.skills(None).await.unwrap();
    assert_eq!(library.list().len(), 200);
    let requests = wire.take();
    let (index, heads): (Vec<_>, Vec<_>) = requests
        .iter()
        .filter(|r| r.operation() == "GET")
        .partition(|r| r.target.contains(".skillfs/index.json"));
    assert!(heads.iter().all(|r| r.header("range").is_some() && r.header("if-match").is_some()));
    assert_eq!((index.len(), heads.len(), requests.len()), (1, 200, 202));
    assert!(wire.max_concurrent() >= 64, "only {} at once", wire.max_concurrent());

    // Unchanged skills are not read again, and a list of paths reads no skill. The index is requested.
    assert_eq!(backend.skills(Some("c1")).await.unwrap().list().len(), 50);
    assert_eq!(counts(&wire), (1, 1, 2));
    assert_eq!(backend.load_skills(None).await.unwrap().len(), 200);
    assert_eq!(counts(&wire), (1, 1, 2));
    backend.load_skill("c1/s001").await.unwrap();
    assert_eq!(counts(&wire), (1, 2, 3));
    backend.skill_resources("c0/s000").await.unwrap();
    assert_eq!(counts(&wire), (1, 1, 2));
    // A category costs only its own skills.
    let cold = bucket.through(&wire.endpoint).await.session(&session("u1", "1", "k1"));
    assert_eq!(cold.skills(Some("c1")).await.unwrap().list().len(), 50);
    assert_eq!(counts(&wire), (1, 51, 52));
}

#[tokio::test]
async fn layers_cost_one_listing_each() {
    let embedded = Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    for (key, content) in [
        ("u1/skills/a/one/SKILL.md", skill("one")),
        ("shared/acme/skills/a/two/SKILL.md", skill("two")),
        ("shared/acme/skills/b/three/SKILL.md", skill("three")),
    ] {
        embedded.put(&bucket.name, key, content).await.unwrap();
    }
    let wire = Wire::start(Some(&bucket.endpoint), |_, _| Reply::Forward).await;
    let libraries = vec![LibraryId::parse("acme").unwrap()];
    let backend =
        bucket.through(&wire.endpoint).await.session(&session("u1", "1", "k1").libraries(libraries));
    backend.ls("/skills/a").await.unwrap();
    assert_eq!(counts(&wire), (2, 2, 4));
    let listed: Vec<_> = wire_targets(&backend, &wire).await;
    let of_a = |target: &String| target.contains("skills%2Fa%2F") || target.contains(".skillfs/index.json");
    assert!(listed.iter().all(of_a), "{listed:?}");
    backend.exists("/skills/a/two").await.unwrap();
    assert_eq!(counts(&wire), (2, 2, 4));
    backend.ls("/skills/none").await.unwrap_err();
    assert_eq!(counts(&wire), (4, 4, 8));
    backend.read("/skills/a/two/SKILL.md").await.unwrap();
    assert_eq!(counts(&wire), (2, 3, 5));
    backend.load_skills(None).await.unwrap();
    assert_eq!(counts(&wire), (2, 2, 4));
    // This version was just read.
    backend.load_skill("a/two").await.unwrap();
    assert_eq!(counts(&wire), (2, 2, 4));
    backend.skills(Some("a")).await.unwrap();
    assert_eq!(counts(&wire), (2, 4, 6));
    // The other mounts have a single layer, and their costs do not change.
    backend.exists("/workspace/x.md").await.unwrap();
    assert_eq!(wire.operations(), ["HEAD", "LIST"]);
}

#[tokio::test]
async fn a_skill_of_1_104_files_does_not_cost_a_request_a_file() {
    let mut objects: Vec<(String, String)> =
        (0..1_103).map(|i| (format!("u1/skills/c/big/references/f{i:04}.md"), "x".to_owned())).collect();
    objects.push(("u1/skills/c/big/SKILL.md".into(), skill("big")));
    let (_, wire, backend) = counted(objects, || Reply::Forward).await;
    let library = backend.skills(None).await.unwrap();
    assert_eq!(library.list()[0].resources.len(), 1_103);
    assert_eq!(counts(&wire), (2, 2, 4));
}

#[tokio::test]
async fn a_long_frontmatter_costs_a_second_request() {
    let long = format!("---\nname: long\ndescription: d\nx: {}\n---\n", "y".repeat(6_000));
    let endless = format!("---\nname: endless\ndescription: d\nx: {}", "y".repeat(300_000));
    let objects = vec![
        ("u1/skills/c/long/SKILL.md".to_owned(), long),
        ("u1/skills/c/short/SKILL.md".to_owned(), skill("short") + &"body ".repeat(10_000)),
        ("u1/skills/c/endless/SKILL.md".to_owned(), endless),
    ];
    let (_, wire, backend) = counted(objects, || Reply::Forward).await;
    let library = backend.skills(None).await.unwrap();
    assert_eq!(paths(&library), ["c/endless", "c/long", "c/short"]);
    let mut ranges: Vec<_> =
        wire.take().iter().filter_map(|r| r.header("range").map(str::to_owned)).collect();
    ranges.sort();
    assert_eq!(ranges, ["bytes=0-17407", "bytes=0-4095", "bytes=0-4095", "bytes=0-4095", "bytes=0-6037"]);
}

/// A server that claims to have a `SKILL.md` of 200 MB.
#[tokio::test]
async fn a_skill_file_of_200_mb_costs_a_few_kilobytes() {
    const SIZE: u64 = 200 * 1024 * 1024;
    let wire = Wire::start(None, |request, _| {
        if request.operation() == "LIST" {
            let body = format!(
                "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>false</IsTruncated><KeyCount>1</KeyCount>\
                 <Contents><Key>u1/skills/c/huge/SKILL.md</Key><Size>{SIZE}</Size></Contents></ListBucketResult>"
            );
            return Reply::Raw(crate::support::wire::response(200, "application/xml", body.as_bytes()));
        }
        if request.target.contains("index.json") {
            return Reply::error(404, "NoSuchKey");
        }
        let range = request.header("range").unwrap().trim_start_matches("bytes=").to_owned();
        let (first, last) = range.split_once('-').unwrap();
        let (first, last): (u64, u64) = (first.parse().unwrap(), last.parse().unwrap());
        assert!(last - first < 100_000, "{range}");
        let mut body = "---\nname: huge\ndescription: d\n---\n".to_owned();
        body.extend(std::iter::repeat_n('x', (last - first + 1) as usize - body.len()));
        let head = format!("HTTP/1.1 206 X\r\ncontent-range: bytes {first}-{last}/{SIZE}\r\netag: \"e\"\r\nconnection: close");
        Reply::Raw(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes())
    })
    .await;
    let credentials = skillfs::StaticCredentials::new("a", "b");
    let fs = crate::support::connect(&wire.endpoint, &credentials, "bucket").await;
    let backend = fs.session(&session("u1", "1", "k1"));
    let library = backend.skills(None).await.unwrap();
    assert_eq!(library.list()[0].manifest.description, "d");
    assert_eq!(library.list()[0].diagnostics.last().unwrap().code, "large");
    assert_eq!(wire.operations(), ["GET", "GET", "LIST"]);
    assert_eq!(backend.load_skill("c/huge").await.unwrap_err().kind(), ErrorKind::TooLarge);
}

/// A name that is not a path is resolved with one listing, which is also used to load the skill.
#[tokio::test]
async fn a_name_costs_two_listings_and_the_heads() {
    let objects = (0..5).map(|i| (format!("u1/skills/c/s{i}/SKILL.md"), skill(&format!("s{i}")))).collect();
    let (_, wire, backend) = counted(objects, || Reply::Forward).await;
    assert_eq!(backend.load_skill("s3").await.unwrap().skill.path, "c/s3");
    // The path `s3`, then everything, each with a request for the index; five heads, and the file itself.
    assert_eq!(counts(&wire), (2, 8, 10));
}
