//! Object metadata (size, modification time, ETag), and the HTTP syntax of ranges and ETags.

use std::time::SystemTime;

use aws_sdk_s3::primitives::DateTime;

use super::failure::corrupt;
use crate::entry::{Entry, EntryKind};
use crate::error::Result;
use crate::path::VirtualPath;

/// The metadata of an object as reported by the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) size: u64,
    pub(crate) modified: Option<SystemTime>,
    pub(crate) etag: Option<String>,
}

impl Meta {
    /// Builds the metadata from response headers or from an item of a listing.
    pub(super) fn from_headers(size: u64, modified: Option<DateTime>, etag: Option<String>) -> Self {
        Self { size, modified: modified.and_then(|time| time.try_into().ok()), etag: etag.map(etag_token) }
    }

    /// Returns the directory entry of the file at this path.
    pub(crate) fn entry(&self, path: VirtualPath) -> Entry {
        let Self { size, modified, etag } = self.clone();
        Entry { path, kind: EntryKind::File, size: Some(size), modified, etag }
    }

    /// Returns whether both certainly describe the same content.
    pub(crate) fn same_version(&self, other: &Self) -> bool {
        self.etag.is_some() && self.etag == other.etag && self.size == other.size
    }
}

/// A byte range. Without `end` it extends to the end of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteRange {
    pub(crate) start: u64,
    pub(crate) end: Option<u64>,
}

impl ByteRange {
    pub(crate) const WHOLE: Self = Self { start: 0, end: None };

    pub(super) fn header(self) -> Option<String> {
        match self.end {
            Some(end) => Some(format!("bytes={}-{}", self.start, end.saturating_sub(1))),
            None if self.start == 0 => None,
            None => Some(format!("bytes={}-", self.start)),
        }
    }
}

/// Parses `bytes 0-99/1234` and checks it against the length of the body. Returns the start of the range and the size
/// of the object.
pub(super) fn parse_content_range(header: &str, length: u64) -> Option<(u64, u64)> {
    let (range, total) = header.strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, last, total): (u64, u64, u64) =
        (start.parse().ok()?, last.parse().ok()?, total.parse().ok()?);
    (last.checked_sub(start)?.checked_add(1)? == length && last < total).then_some((start, total))
}

/// Strips the quotes from an ETag, so that it needs no escaping in a shell or a prompt.
pub(super) fn etag_token(header: String) -> String {
    match header.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(token) => token.to_owned(),
        None => header,
    }
}

pub(super) fn etag_header(token: &str) -> String {
    if token.contains('"') { token.to_owned() } else { format!("\"{token}\"") }
}

/// Requires a content length. Without one, the end of a body is indistinguishable from a broken connection.
pub(super) fn length(header: Option<i64>) -> Result<u64> {
    header
        .and_then(|length| u64::try_from(length).ok())
        .ok_or_else(|| corrupt("the storage did not return the length of the object"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etag_quotes_round_trip() {
        for header in ["\"abc-2\"", "W/\"abc\""] {
            assert_eq!(etag_header(&etag_token(header.to_owned())), header);
        }
        assert_eq!(etag_token("\"abc\"".to_owned()), "abc");
    }

    #[test]
    fn inconsistent_content_ranges_are_rejected() {
        assert_eq!(parse_content_range("bytes 0-99/1234", 100), Some((0, 1234)));
        assert_eq!(parse_content_range("bytes 5-5/6", 1), Some((5, 6)));
        for (header, length) in [
            ("bytes 0-99/1234", 99),
            ("bytes 0-99/50", 100),
            ("bytes */10", 0),
            ("bytes 9-3/10", 0),
            ("bytes 0-99", 100),
            ("bytes 0-18446744073709551615/1", 0),
            ("", 0),
        ] {
            assert_eq!(parse_content_range(header, length), None, "{header}");
        }
    }

    #[test]
    fn ranges_use_http_syntax() {
        let check = |start, end, header: Option<&str>| {
            assert_eq!(ByteRange { start, end }.header().as_deref(), header);
        };
        check(0, None, None);
        check(7, None, Some("bytes=7-"));
        check(0, Some(10), Some("bytes=0-9"));
        check(5, Some(6), Some("bytes=5-5"));
    }
}
