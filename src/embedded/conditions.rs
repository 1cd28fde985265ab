//! Conditional requests: `If-Match`, `If-None-Match`, and the conditions on modification times.
//!
//! Reads evaluate them in the order of RFC 9110. Writes support only `If-Match` and `If-None-Match: *`, as on
//! S3.

use http::{HeaderMap, HeaderName, HeaderValue};
use s3s::dto::{ETagCondition, Timestamp, TimestampFormat};
use s3s::{S3Result, s3_error};

use super::db::{Record, Refusal};
use super::headers::modified;

/// The conditions of a read, in the order of RFC 9110.
pub(super) struct Conditions {
    pub(super) if_match: Option<ETagCondition>,
    pub(super) if_none_match: Option<ETagCondition>,
    if_modified_since: Option<Timestamp>,
    if_unmodified_since: Option<Timestamp>,
}

impl Conditions {
    /// Parses the headers whose names begin with `prefix`. A copy also has conditions on its source.
    pub(super) fn of(headers: &HeaderMap, prefix: &str) -> S3Result<Self> {
        let header = |name: &str| headers.get(format!("{prefix}{name}")).map(HeaderValue::as_bytes);
        let wrong = || s3_error!(InvalidArgument, "the condition is malformed");
        let tag = |name| header(name).map(ETagCondition::parse_http_header).transpose().map_err(|_| wrong());
        let time = |name| {
            let text = header(name).map(std::str::from_utf8).transpose().map_err(|_| wrong())?;
            text.map(|text| Timestamp::parse(TimestampFormat::HttpDate, text))
                .transpose()
                .map_err(|_| wrong())
        };
        Ok(Self {
            if_match: tag("if-match")?,
            if_none_match: tag("if-none-match")?,
            if_modified_since: time("if-modified-since")?,
            if_unmodified_since: time("if-unmodified-since")?,
        })
    }

    pub(super) fn check(&self, record: &Record) -> S3Result<()> {
        match (&self.if_match, &self.if_unmodified_since) {
            (Some(condition), _) if !matches_strongly(condition, record) => {
                return Err(s3_error!(PreconditionFailed));
            }
            (None, Some(since)) if modified(record) > *since => return Err(s3_error!(PreconditionFailed)),
            _ => {}
        }
        let unchanged = match (&self.if_none_match, &self.if_modified_since) {
            (Some(condition), _) => condition.as_etag().is_none_or(|tag| tag.value() == record.etag),
            (None, Some(since)) => modified(record) <= *since,
            (None, None) => false,
        };
        if !unchanged {
            return Ok(());
        }
        let mut not_modified = s3_error!(NotModified);
        if let Ok(value) = HeaderValue::from_str(&format!("\"{}\"", record.etag)) {
            not_modified.set_headers(HeaderMap::from_iter([(HeaderName::from_static("etag"), value)]));
        }
        Err(not_modified)
    }
}

/// Returns a check that the existing object must pass for a write to take effect.
pub(super) fn write_condition(
    if_match: Option<ETagCondition>,
    if_none_match: Option<ETagCondition>,
) -> S3Result<impl FnOnce(Option<&Record>) -> Result<(), Refusal> + Send + 'static> {
    if if_none_match.as_ref().is_some_and(|condition| !condition.is_any()) {
        return Err(s3_error!(NotImplemented, "a write accepts only `If-None-Match: *`"));
    }
    Ok(move |old: Option<&Record>| match (old, if_match, if_none_match) {
        (Some(_), _, Some(_)) => Err(Refusal::Precondition),
        (None, Some(_), _) => Err(Refusal::NoSuchKey),
        (Some(old), Some(condition), _) if !matches_strongly(&condition, old) => Err(Refusal::Precondition),
        _ => Ok(()),
    })
}

pub(super) fn matches_strongly(condition: &ETagCondition, record: &Record) -> bool {
    condition.as_etag().is_none_or(|tag| tag.as_strong() == Some(record.etag.as_str()))
}
