//! Conversion between stored records and S3 headers.
//!
//! Content headers and user metadata are stored with an object and returned by every read. Checksums are
//! computed and verified. ETags and modification times come from the record.

use std::time::{Duration, UNIX_EPOCH};

use http::HeaderMap;
use s3s::checksum::ChecksumHasher;
use s3s::dto::{ETag, Metadata, Timestamp};

use super::db::{Attributes, Record};

pub(super) const CHECKSUMS: [&str; 5] = [
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
];
pub(super) const CONTENT_TYPE: &str = "content-type";
/// The content type that S3 reports for an object that was written without one.
const DEFAULT_CONTENT_TYPE: &str = "binary/octet-stream";
pub(super) const CONTENT_ENCODING: &str = "content-encoding";
pub(super) const CONTENT_LANGUAGE: &str = "content-language";
pub(super) const CONTENT_DISPOSITION: &str = "content-disposition";
pub(super) const CACHE_CONTROL: &str = "cache-control";
/// Headers of a write that every read returns.
const KEPT: [&str; 5] =
    [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_DISPOSITION, CACHE_CONTROL];
const USER_METADATA: &str = "x-amz-meta-";

/// Collects the headers and the user metadata that are stored with an object.
pub(super) fn attributes(headers: &HeaderMap, metadata: Option<Metadata>) -> Attributes {
    let value = |name: &str| {
        let value = headers.get(name)?.to_str().ok()?;
        // `aws-chunked` is a transfer encoding and not a property of the content.
        let parts = value.split(',').map(str::trim).filter(|part| *part != "aws-chunked" && !part.is_empty());
        let value =
            if name == CONTENT_ENCODING { parts.collect::<Vec<_>>().join(",") } else { value.to_owned() };
        (!value.is_empty()).then_some(((*name).to_owned(), value))
    };
    let metadata = metadata.unwrap_or_default().into_iter();
    let metadata = metadata.map(|(name, value)| (format!("{USER_METADATA}{name}"), value));
    let mut attributes: Attributes = KEPT.iter().filter_map(|name| value(name)).chain(metadata).collect();
    if !attributes.iter().any(|(name, _)| name == CONTENT_TYPE) {
        attributes.push((CONTENT_TYPE.to_owned(), DEFAULT_CONTENT_TYPE.to_owned()));
    }
    attributes
}

pub(super) fn attribute(record: &Record, name: &str) -> Option<String> {
    record.attributes.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone())
}

pub(super) fn metadata(record: &Record) -> Option<Metadata> {
    let own = |(name, value): &(String, String)| {
        Some((name.strip_prefix(USER_METADATA)?.to_owned(), value.clone()))
    };
    let metadata: Metadata = record.attributes.iter().filter_map(own).collect();
    (!metadata.is_empty()).then_some(metadata)
}

/// The checksums that a request declares for its body.
pub(super) fn promised_checksums(headers: &HeaderMap) -> Attributes {
    let value = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
    CHECKSUMS.iter().filter_map(|name| Some(((*name).to_owned(), value(name)?))).collect()
}

/// Creates a hasher for the named checksums.
pub(super) fn hasher<'a>(names: impl Iterator<Item = &'a str>) -> ChecksumHasher {
    let mut hasher = ChecksumHasher::default();
    for name in names {
        match name {
            "x-amz-checksum-crc32" => hasher.crc32 = Some(Default::default()),
            "x-amz-checksum-crc32c" => hasher.crc32c = Some(Default::default()),
            "x-amz-checksum-crc64nvme" => hasher.crc64nvme = Some(Default::default()),
            "x-amz-checksum-sha1" => hasher.sha1 = Some(Default::default()),
            "x-amz-checksum-sha256" => hasher.sha256 = Some(Default::default()),
            _ => {}
        }
    }
    hasher
}

/// Returns the computed checksums by header name.
pub(super) fn computed(hasher: ChecksumHasher) -> Attributes {
    let sums = hasher.finalize();
    let values = [
        sums.checksum_crc32,
        sums.checksum_crc32c,
        sums.checksum_crc64nvme,
        sums.checksum_sha1,
        sums.checksum_sha256,
    ];
    CHECKSUMS.iter().zip(values).filter_map(|(name, value)| Some(((*name).to_owned(), value?))).collect()
}

pub(super) fn etag(record: &Record) -> ETag {
    ETag::Strong(record.etag.clone())
}

pub(super) fn modified(record: &Record) -> Timestamp {
    // A damaged file may contain any number; times that cannot be represented become 1970.
    const LAST_SECOND_OF_9999: u64 = 253_402_300_799;
    let seconds = if record.modified > LAST_SECOND_OF_9999 { 0 } else { record.modified };
    Timestamp::from(UNIX_EPOCH + Duration::from_secs(seconds))
}

pub(super) fn as_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
