//! Network faults: each results in the correct error kind within bounded time, and a partial read is never
//! treated as complete.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use skillfs::{Error, ErrorKind, Hint, Result, S3Backend, SkillFs, StaticCredentials, Timeouts};

use crate::support::wire::{Reply, Request, Wire, response};
use crate::support::{Bucket, session, settings};

/// Short enough to wait for, long enough for a busy machine.
const ATTEMPT: Duration = Duration::from_millis(1_500);

async fn connect(endpoint: &str, credentials: &StaticCredentials, bucket: &str) -> S3Backend {
    let settings = settings(bucket)
        .endpoint_url(endpoint.to_owned())
        .region("us-east-1")
        .credentials(credentials.clone())
        .timeouts(Timeouts::default().connect(ATTEMPT).attempt(ATTEMPT).operation(6 * ATTEMPT));
    SkillFs::connect(&settings).await.unwrap().session(&session("u1", "1", "k1"))
}

/// A store behind a proxy that injects faults.
struct Faulty {
    bucket: Bucket,
    wire: Wire,
    backend: S3Backend,
}

async fn faulty(decide: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Faulty {
    let bucket = Bucket::embedded().await;
    bucket.put("threads/1/notes.md", "línea uno\nlínea dos\n").await;
    bucket.put("threads/1/large.txt", "0123456789".repeat(30_000)).await;
    let wire = Wire::start(Some(&bucket.endpoint), decide).await;
    let backend = connect(&wire.endpoint, &bucket.credentials, &bucket.name).await;
    Faulty { bucket, wire, backend }
}

/// Fails if a fault hangs a caller.
async fn bounded<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("it took too long")
}

/// Checks that every operation fails under a permanent fault.
async fn all_fail_with(backend: &S3Backend, kind: ErrorKind) {
    let check = |error: Error| {
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.message().contains("/workspace"), "{error}");
        assert!(error.path().is_some() && error.hint().is_some(), "{error}");
    };
    check(bounded(backend.read("notes.md")).await.unwrap_err());
    check(bounded(backend.read_bytes("notes.md", ..)).await.unwrap_err());
    check(bounded(backend.ls("/workspace")).await.unwrap_err());
    check(bounded(backend.stat("notes.md")).await.unwrap_err());
    check(bounded(backend.exists("notes.md")).await.unwrap_err());
    check(bounded(backend.exists("notes")).await.unwrap_err());
}

async fn all_succeed(backend: &S3Backend) {
    assert_eq!(bounded(backend.read("notes.md")).await.unwrap().content, "línea uno\nlínea dos\n");
    assert_eq!(bounded(backend.ls("/workspace")).await.unwrap().entries.len(), 2);
    assert!(bounded(backend.exists("notes.md")).await.unwrap());
}

#[tokio::test]
async fn refused_connection_is_unavailable() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let backend =
        connect(&format!("http://127.0.0.1:{port}"), &StaticCredentials::new("a", "b"), "bucket").await;
    all_fail_with(&backend, ErrorKind::Unavailable).await;
    let error = backend.ls("/workspace").await.unwrap_err();
    assert!(error.message().contains("refused"), "{error}");
    assert!(error.hint() == Some(&Hint::CheckEndpoint), "{error}");
}

#[tokio::test]
async fn reset_connection_is_unavailable() {
    let faulty = faulty(|_, _| Reply::Reset).await;
    all_fail_with(&faulty.backend, ErrorKind::Unavailable).await;
}

#[tokio::test]
async fn reset_then_success_succeeds() {
    let faulty = faulty(|_, n| if n % 2 == 0 { Reply::Reset } else { Reply::Forward }).await;
    all_succeed(&faulty.backend).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_answer_is_timeout() {
    let faulty = faulty(|_, _| Reply::Stall).await;
    let kind = |result: Result<()>| result.unwrap_err().kind();
    let backend = &faulty.backend;
    let (read, ls, stat) = tokio::join!(
        bounded(backend.read("notes.md")),
        bounded(backend.ls("/workspace")),
        bounded(backend.stat("notes")),
    );
    assert_eq!(kind(read.map(drop)), ErrorKind::Timeout);
    assert_eq!(kind(ls.map(drop)), ErrorKind::Timeout);
    assert_eq!(kind(stat.map(drop)), ErrorKind::Timeout);
}

#[tokio::test]
async fn stalled_then_success_succeeds() {
    let faulty = faulty(|_, n| if n == 0 { Reply::Stall } else { Reply::Forward }).await;
    assert_eq!(bounded(faulty.backend.read("notes.md")).await.unwrap().lines, 2);
}

#[tokio::test]
async fn stalled_body_is_timeout() {
    let faulty = faulty(|_, _| Reply::ForwardStall(5)).await;
    assert_eq!(bounded(faulty.backend.read("notes.md")).await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(bounded(faulty.backend.ls("/workspace")).await.unwrap_err().kind(), ErrorKind::Timeout);
}

#[tokio::test]
async fn stalled_body_then_success_goes_on_where_it_stopped() {
    let faulty = faulty(|_, n| if n == 0 { Reply::ForwardStall(5) } else { Reply::Forward }).await;
    assert_eq!(bounded(faulty.backend.read("notes.md")).await.unwrap().content, "línea uno\nlínea dos\n");
    let ranges: Vec<_> = faulty.wire.take().iter().map(|r| r.header("range").unwrap().to_owned()).collect();
    assert_eq!(ranges, ["bytes=0-65535", "bytes=5-21"]);
}

#[tokio::test]
async fn body_cut_in_the_middle_goes_on_where_it_stopped() {
    for cut in [0, 1, 3, 21] {
        let faulty = faulty(move |_, n| if n == 0 { Reply::ForwardCut(cut) } else { Reply::Forward }).await;
        let read = bounded(faulty.backend.read("notes.md")).await.unwrap();
        assert_eq!(read.content, "línea uno\nlínea dos\n", "cut at {cut}");
    }
}

#[tokio::test]
async fn body_that_is_always_cut_is_unavailable() {
    let faulty = faulty(|_, _| Reply::ForwardCut(2)).await;
    for path in ["notes.md", "large.txt"] {
        let error = bounded(faulty.backend.read(path)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(error.message().contains("missing"), "{error}");
        let error = bounded(faulty.backend.read_bytes(path, ..)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    }
    let error = bounded(faulty.backend.ls("/workspace")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}

#[tokio::test]
async fn large_body_cut_many_times_is_never_half_read() {
    // The second request of each pair is truncated after 100,000 bytes: the rest needs two more.
    let faulty = faulty(|_, n| if n == 1 { Reply::ForwardCut(100_000) } else { Reply::Forward }).await;
    let read = bounded(faulty.backend.read("large.txt")).await.unwrap();
    assert!(read.content == "0123456789".repeat(30_000));
    let etags: Vec<_> = faulty.wire.take().iter().map(|r| r.header("if-match").is_some()).collect();
    assert_eq!(etags, [false, true, true]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_that_changes_under_the_reader_is_read_anew() {
    let bucket = Bucket::embedded().await;
    let (old, new) = ("old line\n".repeat(20_000), "new line!\n".repeat(20_000));
    bucket.put("threads/1/x.txt", &old).await;
    let raw = bucket.raw.clone();
    let name = bucket.name.clone();
    let seen = AtomicUsize::new(0);
    let content = new.clone();
    let wire = Wire::start(Some(&bucket.endpoint), move |_, _| {
        // Another program overwrites the object after the first kilobytes were sent.
        if seen.fetch_add(1, Ordering::SeqCst) == 1 {
            let put = raw
                .put_object()
                .bucket(&name)
                .key("threads/1/x.txt")
                .body(content.clone().into_bytes().into());
            tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(put.send()).unwrap();
            });
        }
        Reply::Forward
    })
    .await;
    let backend = connect(&wire.endpoint, &bucket.credentials, &bucket.name).await;
    let read = tokio::spawn(async move { backend.read("x.txt").await }).await.unwrap().unwrap();
    assert!(read.content == new, "a mixture of two versions");
}

#[tokio::test]
async fn status_500_is_unavailable() {
    let faulty = faulty(|_, _| Reply::error(500, "InternalError")).await;
    all_fail_with(&faulty.backend, ErrorKind::Unavailable).await;
}

#[tokio::test]
async fn status_500_then_success_succeeds() {
    let faulty =
        faulty(|_, n| if n % 3 < 2 { Reply::error(500, "InternalError") } else { Reply::Forward }).await;
    all_succeed(&faulty.backend).await;
}

#[tokio::test]
async fn status_503_slow_down_is_throttled() {
    let faulty = faulty(|_, _| Reply::error(503, "SlowDown")).await;
    all_fail_with(&faulty.backend, ErrorKind::Throttled).await;
    // Three attempts per operation, no more.
    faulty.wire.take();
    let _ = bounded(faulty.backend.ls("/workspace")).await;
    assert_eq!(faulty.wire.take().len(), 3);
}

#[tokio::test]
async fn status_503_slow_down_then_success_succeeds() {
    let faulty = faulty(|_, n| if n % 3 < 2 { Reply::error(503, "SlowDown") } else { Reply::Forward }).await;
    all_succeed(&faulty.backend).await;
}

#[tokio::test]
async fn status_403_is_denied() {
    let faulty = faulty(|_, _| Reply::error(403, "AccessDenied")).await;
    all_fail_with(&faulty.backend, ErrorKind::Denied).await;
    // A refused request is not retried.
    faulty.wire.take();
    let error = bounded(faulty.backend.ls("/workspace")).await.unwrap_err();
    assert_eq!(faulty.wire.take().len(), 1);
    assert!(error.report().contains("s3:ListBucket"), "{error}");
}

#[tokio::test]
async fn wrong_credentials_are_denied() {
    let bucket = Bucket::embedded().await;
    for (credentials, code) in [
        (StaticCredentials::new("nobody", "x"), "NotSignedUp"),
        (StaticCredentials::new(&bucket.credentials.access_key_id, "wrong"), "SignatureDoesNotMatch"),
    ] {
        let backend = connect(&bucket.endpoint, &credentials, &bucket.name).await;
        let error = bounded(backend.ls("/workspace")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.message().contains(code), "{error}");
        assert!(error.report().contains("check the credentials"), "{error}");
        assert_eq!(bounded(backend.exists("notes.md")).await.unwrap_err().kind(), ErrorKind::Denied);
    }
}

#[tokio::test]
async fn status_404_for_the_bucket_is_unavailable() {
    let faulty = faulty(|request, _| match request.method.as_str() {
        "HEAD" => Reply::Raw(response(404, "application/xml", b"")),
        _ => Reply::error(404, "NoSuchBucket"),
    })
    .await;
    all_fail_with(&faulty.backend, ErrorKind::Unavailable).await;
    assert!(faulty.backend.ls("/workspace").await.unwrap_err().message().contains(&faulty.bucket.name));
}

#[tokio::test]
async fn bucket_in_another_region_says_which() {
    let faulty = faulty(|_, _| {
        let body = "<Error><Code>PermanentRedirect</Code><Message>elsewhere</Message></Error>";
        let head = "HTTP/1.1 301 X\r\nx-amz-bucket-region: eu-south-2\r\ncontent-type: application/xml\r\nconnection: close";
        Reply::Raw(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes())
    })
    .await;
    let error = bounded(faulty.backend.ls("/workspace")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.report().contains("set the region to `eu-south-2`"), "{error}");
}

#[tokio::test]
async fn error_inside_a_200_is_an_error() {
    let faulty = faulty(|_, _| {
        let body = "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>injected</Message></Error>";
        Reply::Raw(response(200, "application/xml", body.as_bytes()))
    })
    .await;
    let error = bounded(faulty.backend.ls("/workspace")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Throttled, "{error:?}");
}

#[tokio::test]
async fn answer_that_is_no_s3_is_unavailable() {
    let faulty =
        faulty(|_, _| Reply::Raw(response(200, "text/html", b"<html><body>Welcome to the proxy"))).await;
    let error = bounded(faulty.backend.ls("/workspace")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    // A 404 of a web server that is not S3 does not mean that something is missing.
    let web = self::faulty(|_, _| Reply::Raw(response(404, "text/html", b"<h1>Not here</h1>"))).await;
    all_fail_with(&web.backend, ErrorKind::Unavailable).await;
    let not_http = self::faulty(|_, _| Reply::Raw(b"SSH-2.0-OpenSSH_9.6\r\n".to_vec())).await;
    let error = bounded(not_http.backend.ls("/workspace")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}

#[tokio::test]
async fn range_that_was_not_asked_for_is_corrupt() {
    let faulty = faulty(|_, _| {
        let head = "HTTP/1.1 206 X\r\ncontent-range: bytes 10-13/100\r\netag: \"x\"\r\nconnection: close";
        Reply::Raw(format!("{head}\r\ncontent-length: 4\r\n\r\nhola").into_bytes())
    })
    .await;
    let error = bounded(faulty.backend.read("notes.md")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trickle_is_timeout() {
    let faulty = faulty(|_, _| Reply::ForwardTrickle(Duration::from_millis(400))).await;
    let error = bounded(faulty.backend.read_bytes("large.txt", ..)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error:?}");
}

#[tokio::test]
async fn part_without_its_range_is_corrupt() {
    let faulty = faulty(|request, _| match request.method.as_str() {
        "GET" if request.operation() == "GET" => {
            let body = "x".repeat(65_536);
            let head = "HTTP/1.1 206 X\r\netag: \"x\"\r\nconnection: close";
            Reply::Raw(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes())
        }
        _ => Reply::Forward,
    })
    .await;
    let error = bounded(faulty.backend.read("notes.md")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
}

#[tokio::test]
async fn large_object_without_an_etag_is_corrupt() {
    let faulty = faulty(|request, n| {
        let range = request.header("range").unwrap().trim_start_matches("bytes=").to_owned();
        let (first, last) = range.split_once('-').unwrap();
        let (first, last): (usize, usize) =
            (first.parse().unwrap(), last.parse::<usize>().unwrap().min(99_999));
        let body = if n == 0 { "A" } else { "B" }.repeat(last - first + 1);
        let head =
            format!("HTTP/1.1 206 X\r\ncontent-range: bytes {first}-{last}/100000\r\nconnection: close");
        Reply::Raw(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes())
    })
    .await;
    let error = bounded(faulty.backend.read("notes.md")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
}

#[tokio::test]
async fn bare_400_is_credentials_or_region() {
    let plain = faulty(|_, _| Reply::Raw(response(400, "application/xml", b""))).await;
    let error = bounded(plain.backend.stat("notes.md")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    let region = faulty(|_, _| {
        Reply::Raw(b"HTTP/1.1 400 X\r\nx-amz-bucket-region: eu-south-2\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec())
    })
    .await;
    let error = bounded(region.backend.stat("notes.md")).await.unwrap_err();
    assert!(error.report().contains("eu-south-2"), "{error}");
}

#[tokio::test]
async fn object_without_a_length_is_corrupt() {
    let faulty = faulty(|request, _| match request.operation() {
        "LIST" => Reply::Forward,
        // The body ends with the connection, so a broken connection would look the same.
        _ => Reply::Raw(b"HTTP/1.0 200 OK\r\netag: \"x\"\r\nconnection: close\r\n\r\nhalf of it?".to_vec()),
    })
    .await;
    let error = bounded(faulty.backend.read("notes.md")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    let error = bounded(faulty.backend.read_bytes("notes.md", ..)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
}

#[tokio::test]
async fn listing_that_never_ends_is_corrupt() {
    let faulty = faulty(|_, _| {
        let body = "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>true</IsTruncated>\
                    <NextContinuationToken>again</NextContinuationToken><KeyCount>0</KeyCount></ListBucketResult>";
        Reply::Raw(response(200, "application/xml", body.as_bytes()))
    })
    .await;
    let error = bounded(faulty.backend.ls("/workspace")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    assert!(faulty.wire.take().len() <= 102);
    // The same keys again and again, with new tokens.
    let circle = self::faulty(|_, n| {
        let body = format!(
            "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>true</IsTruncated>\
             <NextContinuationToken>t{n}</NextContinuationToken><KeyCount>1</KeyCount>\
             <Contents><Key>threads/1/x</Key><Size>1</Size></Contents></ListBucketResult>"
        );
        Reply::Raw(response(200, "application/xml", body.as_bytes()))
    })
    .await;
    let error = bounded(circle.backend.ls("/workspace")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    assert_eq!(circle.wire.take().len(), 2);
}

/// S3 may return an empty page that is not the last.
#[tokio::test]
async fn empty_page_is_not_the_end() {
    let faulty = faulty(|request, _| {
        if request.target.contains("continuation-token") || request.operation() != "LIST" {
            return Reply::Raw(response(
                200,
                "application/xml",
                b"<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>false</IsTruncated><KeyCount>1</KeyCount>\
                  <Contents><Key>threads/1/dir.d/x</Key><Size>1</Size></Contents></ListBucketResult>",
            ));
        }
        let body = b"<?xml version=\"1.0\"?><ListBucketResult><KeyCount>0</KeyCount>\
                     <NextContinuationToken>more</NextContinuationToken></ListBucketResult>";
        Reply::Raw(response(200, "application/xml", body))
    })
    .await;
    let listing = bounded(faulty.backend.ls_recursive("/workspace")).await.unwrap();
    assert_eq!(listing.entries.len(), 2);
}

#[tokio::test]
async fn key_longer_than_any_key_is_hidden() {
    let faulty = faulty(|_, _| {
        let key = format!("threads/1{}", "/x".repeat(20_000));
        let body = format!(
            "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>false</IsTruncated><KeyCount>1</KeyCount>\
             <Contents><Key>{key}</Key><Size>1</Size><LastModified>9999-12-31T23:59:59-10:00</LastModified></Contents>\
             </ListBucketResult>"
        );
        Reply::Raw(response(200, "application/xml", body.as_bytes()))
    })
    .await;
    let tree = bounded(faulty.backend.tree("/workspace")).await.unwrap();
    assert_eq!((tree.count(), tree.hidden), ((0, 0), 1));
}

#[tokio::test]
async fn long_download_may_break_now_and_then() {
    // More failures than attempts, with more than a megabyte between them.
    let bucket = Bucket::embedded().await;
    let content = "0123456789".repeat(900_000);
    bucket.put("threads/1/long.txt", &content).await;
    let cut = |_: &Request, n| if n < 6 { Reply::ForwardCut(1_200_000) } else { Reply::Forward };
    let wire = Wire::start(Some(&bucket.endpoint), cut).await;
    let backend = connect(&wire.endpoint, &bucket.credentials, &bucket.name).await;
    let read = bounded(backend.read_bytes("long.txt", ..)).await.unwrap();
    assert!(read.bytes == content.as_bytes());
}

#[tokio::test]
async fn server_that_ignores_ranges_is_still_read_right() {
    let faulty = faulty(|request, _| match request.method.as_str() {
        "GET" => {
            let body = "0123456789".repeat(20_000);
            let head = "HTTP/1.1 200 OK\r\netag: \"x\"\r\nconnection: close";
            Reply::Raw(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes())
        }
        _ => Reply::Forward,
    })
    .await;
    let read = bounded(faulty.backend.read("x.txt")).await.unwrap();
    assert!(read.content == "0123456789".repeat(20_000));
    let bytes = bounded(faulty.backend.read_bytes("x.txt", 5..15)).await.unwrap();
    assert_eq!(bytes.bytes, "5678901234");
}

#[tokio::test]
async fn stream_that_fails_in_its_middle_says_so() {
    use futures_util::StreamExt;
    let embedded = skillfs::embedded::Embedded::in_memory().unwrap();
    let bucket = Bucket::in_embedded(&embedded).await;
    let objects = (0..1_500).map(|i| (format!("threads/1/f{i:04}"), "x".into()));
    embedded.put_all(&bucket.name, objects).await.unwrap();
    let wire = Wire::start(Some(&bucket.endpoint), |_, n| {
        if n == 0 { Reply::Forward } else { Reply::error(403, "AccessDenied") }
    })
    .await;
    let backend = connect(&wire.endpoint, &bucket.credentials, &bucket.name).await;
    let items: Vec<_> = backend.ls_stream("/workspace", skillfs::Depth::One).collect().await;
    assert_eq!(items.len(), 1_001);
    assert!(items[..1_000].iter().all(Result::is_ok));
    assert_eq!(items[1_000].as_ref().unwrap_err().kind(), ErrorKind::Denied);
    // A complete listing is either complete or an error.
    assert_eq!(backend.ls("/workspace").await.unwrap_err().kind(), ErrorKind::Denied);
}
