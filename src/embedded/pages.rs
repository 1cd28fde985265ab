//! ListObjectsV2: one page of keys and common prefixes, and the continuation token for the next page.
//!
//! The keys come from `db`; this module handles the parameters, limits and encoding of the protocol.

use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use s3s::dto::{CommonPrefix, EncodingType, ListObjectsV2Input, ListObjectsV2Output, Object};
use s3s::{S3Result, s3_error};

use super::db::{Db, ListItem, ListQuery, successor_of_key};
use super::headers::{as_i64, etag, modified};

/// The default and maximum page size.
pub(super) const MAX_KEYS: i32 = 1000;

/// Characters that `encoding-type=url` does not escape.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'*');

/// Returns one page.
pub(super) async fn page(db: &Arc<Db>, input: ListObjectsV2Input) -> S3Result<ListObjectsV2Output> {
    let max = input.max_keys.unwrap_or(MAX_KEYS);
    if max < 0 {
        return Err(s3_error!(InvalidArgument, "max-keys is negative"));
    }
    let max = max.min(MAX_KEYS);
    let url = match input.encoding_type.as_ref().map(EncodingType::as_str) {
        None => false,
        Some(EncodingType::URL) => true,
        Some(_) => return Err(s3_error!(InvalidArgument, "the only encoding-type is `url`")),
    };
    let encode = |text: String| match url {
        true => percent_encode(text.as_bytes(), PLAIN).to_string(),
        false => text,
    };
    let from = match (&input.continuation_token, &input.start_after) {
        (Some(token), _) => {
            from_token(token).ok_or_else(|| s3_error!(InvalidArgument, "the continuation token is wrong"))?
        }
        (None, Some(key)) => successor_of_key(key),
        (None, None) => Vec::new(),
    };
    let query = ListQuery {
        bucket: input.bucket.clone(),
        prefix: input.prefix.clone().unwrap_or_default(),
        delimiter: input.delimiter.clone().filter(|delimiter| !delimiter.is_empty()),
        from,
        max: usize::try_from(max).unwrap_or(0),
    };
    let found = db.run(move |db| db.list(&query)).await?;
    // The start of the next page, base64-encoded because it need not be valid UTF-8.
    let next = found.next.map(|from| base64_simd::STANDARD.encode_to_string(from));
    let count = i32::try_from(found.items.len()).ok();
    let (mut contents, mut common_prefixes) = (Vec::new(), Vec::new());
    for item in found.items {
        match item {
            ListItem::Object(key, record) => contents.push(Object {
                e_tag: Some(etag(&record)),
                last_modified: Some(modified(&record)),
                size: Some(as_i64(record.size)),
                key: Some(encode(key)),
                ..Object::default()
            }),
            ListItem::Group(group) => common_prefixes.push(CommonPrefix { prefix: Some(encode(group)) }),
        }
    }
    Ok(ListObjectsV2Output {
        name: Some(input.bucket),
        prefix: Some(encode(input.prefix.unwrap_or_default())),
        delimiter: input.delimiter.map(encode),
        start_after: input.start_after.map(encode),
        continuation_token: input.continuation_token,
        encoding_type: input.encoding_type,
        max_keys: Some(max),
        key_count: count,
        is_truncated: Some(next.is_some()),
        next_continuation_token: next,
        contents: Some(contents),
        common_prefixes: Some(common_prefixes),
        ..ListObjectsV2Output::default()
    })
}

fn from_token(token: &str) -> Option<Vec<u8>> {
    base64_simd::STANDARD.decode_to_vec(token).ok().filter(|from| !from.is_empty())
}
