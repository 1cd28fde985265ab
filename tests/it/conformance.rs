//! What we rely on in a server, asked of each: the embedded store must answer as LocalStack does.
//!
//! A difference between servers would stand here as a case that names it; there is none today.

use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{ChecksumAlgorithm, EncodingType};

use crate::support::{Bucket, on_every_server};

on_every_server!(
    an_object_comes_back_as_it_went_in,
    a_missing_key_is_404,
    a_missing_bucket_is_no_such_bucket,
    deleting_is_idempotent,
    listings_come_in_pages_in_key_order,
    a_delimiter_groups_and_pages_repeat_no_group,
    start_after_is_exclusive,
    start_after_inside_a_group_keeps_the_group,
    a_prefix_matches_bytes,
    any_key_survives_a_listing,
    any_key_survives_a_round_trip,
    ranges_are_cut_as_http_says,
    a_get_can_ask_whether_it_changed,
    a_get_can_insist_on_a_version,
    a_head_takes_conditions_too,
    a_put_can_insist_on_a_new_key,
    a_put_can_insist_on_a_version,
    of_many_creators_one_wins,
    a_wrong_checksum_is_refused_and_nothing_is_stored,
    a_streamed_body_with_a_trailing_checksum_is_stored,
    an_object_of_many_chunks_comes_back_whole_and_in_ranges,
    overwriting_replaces_all_of_it,
    folder_markers_are_plain_empty_objects,
);

fn status<T, E>(result: Result<T, SdkError<E>>) -> u16 {
    match result {
        Ok(_) => 200,
        Err(error) => error.raw_response().map_or(0, |r| r.status().as_u16()),
    }
}

async fn keys(bucket: &Bucket, prefix: &str) -> Vec<String> {
    let page = bucket
        .raw
        .list_objects_v2()
        .bucket(&bucket.name)
        .prefix(prefix)
        .encoding_type(EncodingType::Url)
        .send()
        .await
        .unwrap();
    let decode = |key: &str| {
        percent_encoding::percent_decode_str(&key.replace('+', " ")).decode_utf8().unwrap().into_owned()
    };
    page.contents().iter().map(|o| decode(o.key().unwrap())).collect()
}

async fn an_object_comes_back_as_it_went_in(b: Bucket) {
    let put =
        b.raw.put_object().bucket(&b.name).key("a/b.md").content_type("text/markdown").metadata("id", "42");
    let put = put.body(ByteStream::from_static(b"hola")).send().await.unwrap();
    let get = b.raw.get_object().bucket(&b.name).key("a/b.md").send().await.unwrap();
    assert_eq!(get.content_type(), Some("text/markdown"));
    assert_eq!(get.metadata().unwrap()["id"], "42");
    assert_eq!(get.e_tag(), put.e_tag());
    assert_eq!(get.e_tag(), Some("\"4d186321c1a7f0f354b297e8914ab240\""));
    assert_eq!(get.content_length(), Some(4));
    assert!(get.last_modified().is_some());
    let modified = *get.last_modified().unwrap();
    assert_eq!(get.body.collect().await.unwrap().to_vec(), b"hola");
    let head = b.raw.head_object().bucket(&b.name).key("a/b.md").send().await.unwrap();
    assert_eq!((head.content_length(), head.e_tag()), (Some(4), put.e_tag()));
    assert_eq!(head.last_modified().unwrap().secs(), modified.secs());
    let list = b.raw.list_objects_v2().bucket(&b.name).send().await.unwrap();
    assert_eq!((list.contents()[0].size(), list.contents()[0].e_tag()), (Some(4), put.e_tag()));
    assert_eq!(list.contents()[0].last_modified().unwrap().secs(), modified.secs());
}

async fn a_missing_key_is_404(b: Bucket) {
    let error = b.raw.get_object().bucket(&b.name).key("nope").send().await.unwrap_err();
    assert_eq!(error.code(), Some("NoSuchKey"));
    assert_eq!(status(Err::<(), _>(error)), 404);
    assert_eq!(status(b.raw.head_object().bucket(&b.name).key("nope").send().await), 404);
}

async fn a_missing_bucket_is_no_such_bucket(b: Bucket) {
    let list = b.raw.list_objects_v2().bucket("no-such-bucket-here").send().await.unwrap_err();
    assert_eq!(list.code(), Some("NoSuchBucket"));
    let get = b.raw.get_object().bucket("no-such-bucket-here").key("k").send().await.unwrap_err();
    assert_eq!(get.code(), Some("NoSuchBucket"));
    let put = b.raw.put_object().bucket("no-such-bucket-here").key("k").body(ByteStream::from_static(b"x"));
    assert_eq!(put.send().await.unwrap_err().code(), Some("NoSuchBucket"));
    assert_eq!(status(b.raw.head_bucket().bucket("no-such-bucket-here").send().await), 404);
    assert_eq!(status(b.raw.head_bucket().bucket(&b.name).send().await), 200);
}

async fn deleting_is_idempotent(b: Bucket) {
    b.put("x", "1").await;
    b.delete("x").await;
    b.delete("x").await;
    assert_eq!(status(b.raw.head_object().bucket(&b.name).key("x").send().await), 404);
}

async fn listings_come_in_pages_in_key_order(b: Bucket) {
    let mut expected: Vec<String> = (0..7).map(|i| format!("k/{i}")).collect();
    expected.extend(["k/é".into(), "k/z".into(), "k/🦀".into(), "k/Z".into()]);
    for key in &expected {
        b.put(key, "x").await;
    }
    b.put("other", "x").await;
    expected.sort();
    let (mut got, mut token, mut pages) = (Vec::new(), None, 0);
    loop {
        let page =
            b.raw.list_objects_v2().bucket(&b.name).prefix("k/").max_keys(4).set_continuation_token(token);
        let page = page.send().await.unwrap();
        pages += 1;
        assert!(page.contents().len() <= 4);
        got.extend(page.contents().iter().map(|o| o.key().unwrap().to_owned()));
        token = page.next_continuation_token().map(str::to_owned);
        assert_eq!(page.is_truncated(), Some(token.is_some()));
        if token.is_none() {
            break;
        }
    }
    assert_eq!((got, pages), (expected, 3));
}

async fn a_delimiter_groups_and_pages_repeat_no_group(b: Bucket) {
    for key in ["p/a/1", "p/a/2", "p/a/3", "p/a-b", "p/b", "p/c/1", "p/c/2", "p/d/", "p/e//x", "q"] {
        b.put(key, "x").await;
    }
    for size in [1, 2, 3, 1000] {
        let (mut got, mut token) = (Vec::new(), None);
        loop {
            let page = b.raw.list_objects_v2().bucket(&b.name).prefix("p/").delimiter("/").max_keys(size);
            let page = page.set_continuation_token(token).send().await.unwrap();
            let groups = page.common_prefixes().iter().map(|g| g.prefix().unwrap().to_owned());
            got.extend(page.contents().iter().map(|o| o.key().unwrap().to_owned()).chain(groups));
            token = page.next_continuation_token().map(str::to_owned);
            if token.is_none() {
                break;
            }
        }
        got.sort();
        assert_eq!(got, ["p/a-b", "p/a/", "p/b", "p/c/", "p/d/", "p/e/"], "pages of {size}");
    }
}

async fn start_after_is_exclusive(b: Bucket) {
    for key in ["a", "b", "c"] {
        b.put(key, "x").await;
    }
    let page = b.raw.list_objects_v2().bucket(&b.name).start_after("a").send().await.unwrap();
    let keys: Vec<_> = page.contents().iter().map(|o| o.key().unwrap()).collect();
    assert_eq!(keys, ["b", "c"]);
    let page = b.raw.list_objects_v2().bucket(&b.name).prefix("c").start_after("a").send().await.unwrap();
    assert_eq!(page.contents().len(), 1);
    let page = b.raw.list_objects_v2().bucket(&b.name).start_after("bb").send().await.unwrap();
    assert_eq!(page.contents().len(), 1);
}

async fn start_after_inside_a_group_keeps_the_group(b: Bucket) {
    for key in ["g/1", "g/2", "h"] {
        b.put(key, "x").await;
    }
    let page =
        b.raw.list_objects_v2().bucket(&b.name).delimiter("/").start_after("g/1").send().await.unwrap();
    assert_eq!(page.common_prefixes().len(), 1);
    assert_eq!(page.contents().len(), 1);
}

async fn a_prefix_matches_bytes(b: Bucket) {
    for key in ["threads/1/x", "threads/10/x", "threads/1", "Threads/1/x"] {
        b.put(key, "x").await;
    }
    assert_eq!(keys(&b, "threads/1/").await, ["threads/1/x"]);
    assert_eq!(keys(&b, "threads/1").await, ["threads/1", "threads/1/x", "threads/10/x"]);
    assert!(keys(&b, "nope/").await.is_empty());
}

const STRANGE: [&str; 20] = [
    "s/a b",
    "s/a+b",
    "s/100%.md",
    "s/%41",
    "s/%2e%2e/x",
    "s/é",
    "s/🦀",
    "s/a&b<c>\"'",
    "s/a\u{1}b",
    "s/a\nb",
    "s/a\\b",
    "s/a//b",
    "s/a/./b",
    "s/a/../b",
    "s/a?b#c",
    "s/~*|:;,=@$![]{}^`",
    "s/tab\tx",
    "s/\u{7f}",
    "s/a%2Fb",
    "s/trailing/",
];

async fn any_key_survives_a_listing(b: Bucket) {
    for key in STRANGE {
        b.put(key, key).await;
    }
    let mut expected = STRANGE.to_vec();
    expected.sort_unstable();
    assert_eq!(keys(&b, "s/").await, expected);
}

async fn any_key_survives_a_round_trip(b: Bucket) {
    for key in STRANGE {
        b.put(key, key).await;
        let got = b.raw.get_object().bucket(&b.name).key(key).send().await.unwrap();
        assert_eq!(got.body.collect().await.unwrap().to_vec(), key.as_bytes(), "{key:?}");
        b.delete(key).await;
        assert_eq!(status(b.raw.head_object().bucket(&b.name).key(key).send().await), 404, "{key:?}");
    }
}

async fn ranges_are_cut_as_http_says(b: Bucket) {
    b.put("r", "0123456789").await;
    b.put("empty", "").await;
    for (range, expected, header) in [
        ("bytes=0-3", "0123", "bytes 0-3/10"),
        ("bytes=5-5", "5", "bytes 5-5/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=8-99", "89", "bytes 8-9/10"),
        ("bytes=-4", "6789", "bytes 6-9/10"),
    ] {
        let got = b.raw.get_object().bucket(&b.name).key("r").range(range).send().await.unwrap();
        assert_eq!(got.content_range(), Some(header));
        assert_eq!(got.content_length(), Some(expected.len() as i64));
        assert_eq!(got.body.collect().await.unwrap().to_vec(), expected.as_bytes(), "{range}");
    }
    for (key, range) in [("r", "bytes=10-"), ("r", "bytes=99-100"), ("empty", "bytes=0-9")] {
        assert_eq!(
            status(b.raw.get_object().bucket(&b.name).key(key).range(range).send().await),
            416,
            "{key} {range}"
        );
    }
}

/// HTTP has no empty range. LocalStack answers a suffix of an empty object with the whole of it, and
/// we never ask for one; but whoever asks the embedded store must not break it.
#[tokio::test]
async fn a_suffix_of_nothing_is_no_range() {
    let b = Bucket::embedded().await;
    b.put("empty", "").await;
    assert_eq!(status(b.raw.get_object().bucket(&b.name).key("empty").range("bytes=-5").send().await), 416);
}

async fn a_get_can_ask_whether_it_changed(b: Bucket) {
    b.put("k", "one").await;
    let etag = b.raw.head_object().bucket(&b.name).key("k").send().await.unwrap().e_tag.unwrap();
    let get = |etag: &str| b.raw.get_object().bucket(&b.name).key("k").if_none_match(etag).send();
    assert_eq!(status(get(&etag).await), 304);
    assert_eq!(status(get("\"other\"").await), 200);
    b.put("k", "two").await;
    assert_eq!(status(get(&etag).await), 200);
}

async fn a_get_can_insist_on_a_version(b: Bucket) {
    b.put("k", "one").await;
    let etag = b.raw.head_object().bucket(&b.name).key("k").send().await.unwrap().e_tag.unwrap();
    let get = |etag: &str| b.raw.get_object().bucket(&b.name).key("k").if_match(etag).send();
    assert_eq!(status(get(&etag).await), 200);
    assert_eq!(status(get("\"other\"").await), 412);
    b.put("k", "two").await;
    assert_eq!(status(get(&etag).await), 412);
    b.delete("k").await;
    assert_eq!(status(get(&etag).await), 404);
}

async fn a_head_takes_conditions_too(b: Bucket) {
    b.put("k", "one").await;
    let etag = b.raw.head_object().bucket(&b.name).key("k").send().await.unwrap().e_tag.unwrap();
    assert_eq!(status(b.raw.head_object().bucket(&b.name).key("k").if_none_match(&etag).send().await), 304);
    assert_eq!(status(b.raw.head_object().bucket(&b.name).key("k").if_match("\"other\"").send().await), 412);
}

async fn a_put_can_insist_on_a_new_key(b: Bucket) {
    let put = |content: &'static str| {
        let body = ByteStream::from_static(content.as_bytes());
        b.raw.put_object().bucket(&b.name).key("k").if_none_match("*").body(body).send()
    };
    assert_eq!(status(put("one").await), 200);
    assert_eq!(status(put("two").await), 412);
    let got = b.raw.get_object().bucket(&b.name).key("k").send().await.unwrap();
    assert_eq!(got.body.collect().await.unwrap().to_vec(), b"one");
    b.delete("k").await;
    assert_eq!(status(put("three").await), 200);
}

async fn a_put_can_insist_on_a_version(b: Bucket) {
    let put = |etag: String| {
        let body = ByteStream::from_static(b"new");
        b.raw.put_object().bucket(&b.name).key("k").if_match(etag).body(body).send()
    };
    assert_eq!(status(put("\"any\"".into()).await), 404);
    b.put("k", "one").await;
    let etag = b.raw.head_object().bucket(&b.name).key("k").send().await.unwrap().e_tag.unwrap();
    assert_eq!(status(put("\"other\"".into()).await), 412);
    assert_eq!(status(put(etag.clone()).await), 200);
    assert_eq!(status(put(etag).await), 412);
}

async fn of_many_creators_one_wins(b: Bucket) {
    let creators: Vec<_> = (0..16)
        .map(|i| {
            let body = ByteStream::from(format!("creator {i}").into_bytes());
            let put = b.raw.put_object().bucket(&b.name).key("once").if_none_match("*").body(body).send();
            tokio::spawn(async move { status(put.await) })
        })
        .collect();
    let mut won = 0;
    for creator in creators {
        match creator.await.unwrap() {
            200 => won += 1,
            other => assert!(matches!(other, 409 | 412), "{other}"),
        }
    }
    assert_eq!(won, 1);
}

async fn a_wrong_checksum_is_refused_and_nothing_is_stored(b: Bucket) {
    let put = || b.raw.put_object().bucket(&b.name).key("sum").body(ByteStream::from_static(b"hola"));
    assert_eq!(status(put().checksum_crc32("AAAAAA==").send().await), 400);
    let wrong = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
    assert_eq!(status(put().checksum_sha256(wrong).send().await), 400);
    assert_eq!(status(put().content_md5("1B2M2Y8AsgTpgAmY7PhCfg==").send().await), 400);
    assert_eq!(status(b.raw.head_object().bucket(&b.name).key("sum").send().await), 404);
    assert_eq!(
        status(put().checksum_sha256("siHZ27CDp/M0KNfCo8MZiuklYU1wIQ4ocWzKp81N23k=").send().await),
        200
    );
    for algorithm in [
        ChecksumAlgorithm::Crc32,
        ChecksumAlgorithm::Crc32C,
        ChecksumAlgorithm::Sha1,
        ChecksumAlgorithm::Sha256,
    ] {
        assert_eq!(status(put().checksum_algorithm(algorithm.clone()).send().await), 200, "{algorithm}");
    }
}

async fn a_streamed_body_with_a_trailing_checksum_is_stored(b: Bucket) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let content = "línea\n".repeat(50_000);
    std::fs::write(file.path(), &content).unwrap();
    let body = ByteStream::from_path(file.path()).await.unwrap();
    b.raw.put_object().bucket(&b.name).key("streamed").body(body).send().await.unwrap();
    let got = b.raw.get_object().bucket(&b.name).key("streamed").send().await.unwrap();
    assert_eq!(got.body.collect().await.unwrap().to_vec(), content.as_bytes());
}

async fn an_object_of_many_chunks_comes_back_whole_and_in_ranges(b: Bucket) {
    let content: Vec<u8> =
        (0..9_000_001u32).flat_map(|i| (i % 251).to_le_bytes().into_iter().take(1)).collect();
    b.put("large", &content).await;
    let got = b.raw.get_object().bucket(&b.name).key("large").send().await.unwrap();
    assert_eq!(got.content_length(), Some(9_000_001));
    assert!(got.body.collect().await.unwrap().to_vec() == content);
    for (start, end) in [(262_140, 262_150), (0, 600_000), (8_999_990, 9_000_000), (4_194_300, 4_194_310)] {
        let range = format!("bytes={start}-{end}");
        let got = b.raw.get_object().bucket(&b.name).key("large").range(&range).send().await.unwrap();
        assert!(got.body.collect().await.unwrap().to_vec() == content[start..=end], "{range}");
    }
}

async fn overwriting_replaces_all_of_it(b: Bucket) {
    b.put("k", vec![b'x'; 1_000_000]).await;
    b.put("k", "short").await;
    let got = b.raw.get_object().bucket(&b.name).key("k").send().await.unwrap();
    assert_eq!(got.body.collect().await.unwrap().to_vec(), b"short");
    b.put("k", "").await;
    let got = b.raw.get_object().bucket(&b.name).key("k").send().await.unwrap();
    assert_eq!(got.content_length(), Some(0));
    assert!(got.body.collect().await.unwrap().to_vec().is_empty());
}

async fn folder_markers_are_plain_empty_objects(b: Bucket) {
    b.put("d/", "").await;
    b.put("d/x", "1").await;
    assert_eq!(keys(&b, "d/").await, ["d/", "d/x"]);
    b.delete("d/").await;
    assert_eq!(keys(&b, "d/").await, ["d/x"]);
}
