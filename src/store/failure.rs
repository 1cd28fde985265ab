//! Classifies failed requests: error responses from S3 and STS, timeouts, and connection errors.
//!
//! A [`Failure`] answers three questions: which [`Error`] with which hint the caller gets ([`Failure::into_error`]),
//! whether a failed write may have taken effect ([`Failure::outcome`]), and what a diagnosis reports
//! ([`Failure::reason`]). S3 error codes are interpreted only here.

use std::error::Error as StdError;
use std::sync::Arc;

use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{BoxError, ProvideErrorMetadata, SdkError};

use super::intercept::Contradiction;
use crate::config::credentials_hint;
use crate::error::{BucketAddress, CredentialsFault, Error, ErrorKind, Hint, shorten};

/// Why a request failed, in the categories that a diagnosis distinguishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reason {
    Unreachable,
    Timeout,
    /// The response did not come from an S3 server.
    NotS3,
    NoCredentials,
    UnknownKey,
    BadSignature,
    Expired,
    BadToken,
    /// The local clock differs too much from the server's.
    Skewed,
    /// The bucket is in another region, which is named if the response said so.
    OtherRegion(Option<String>),
    NoBucket,
    BadBucketName,
    /// The key does not exist.
    Missing,
    /// The credentials are valid but lack the permission.
    Refused,
    /// A precondition failed.
    Condition,
    /// The range starts past the end of the object.
    BehindTheEnd,
    NotImplemented,
    Other,
}

/// A request that did not succeed.
#[derive(Debug)]
pub(super) struct Failure {
    cause: Cause,
    source: BoxError,
}

/// The effect that a failed write may have had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// None: its precondition failed, or another conditional write is in progress.
    Condition,
    /// None: its multipart upload does not exist.
    Gone,
    /// None, and a retry would fail in the same way.
    Refused,
    /// None; it can be retried.
    NotDone,
    /// Unknown: the response was lost, so it took effect completely or not at all.
    Lost,
}

#[derive(Debug)]
enum Cause {
    Response {
        status: u16,
        code: String,
        message: String,
        bucket_region: Option<String>,
    },
    Timeout,
    Unreachable,
    NoCredentials,
    Malformed,
    Contradiction,
    Request,
    /// The request was not sent. The source is the [`Error`] to return.
    NotSent,
}

impl<E> From<SdkError<E, HttpResponse>> for Failure
where
    E: StdError + ProvideErrorMetadata + Send + Sync + 'static,
{
    fn from(error: SdkError<E, HttpResponse>) -> Self {
        // An error from fetching a session's credentials says more than the SDK's "no credentials".
        if let Some(error) = causes(&error).find_map(|cause| cause.downcast_ref::<Arc<Error>>()) {
            return Self::from_error(Error::shared(error));
        }
        let cause = match &error {
            _ if causes(&error).any(<dyn StdError>::is::<Contradiction>) => Cause::Contradiction,
            // A success status whose body is not an S3 response, such as a proxy's HTML page.
            SdkError::ServiceError(service)
                if service.raw().status().is_success() && service.err().code().is_none() =>
            {
                Cause::Malformed
            }
            SdkError::ServiceError(service) => Cause::Response {
                status: service.raw().status().as_u16(),
                code: service.err().code().unwrap_or_default().to_owned(),
                message: service.err().message().unwrap_or_default().to_owned(),
                bucket_region: service
                    .raw()
                    .headers()
                    .get("x-amz-bucket-region")
                    .or_else(|| expected_region(service.err().message()?))
                    .map(str::to_owned),
            },
            SdkError::TimeoutError(_) => Cause::Timeout,
            SdkError::DispatchFailure(dispatch) if dispatch.is_timeout() => Cause::Timeout,
            SdkError::DispatchFailure(dispatch) if dispatch.is_io() => Cause::Unreachable,
            // A response that is not XML, or truncated XML.
            SdkError::ResponseError(_) => Cause::Malformed,
            _ if names_credentials(&error) => Cause::NoCredentials,
            SdkError::DispatchFailure(_) => Cause::Unreachable,
            _ => Cause::Request,
        };
        Self { cause, source: Box::new(error) }
    }
}

/// Extracts the bucket's region from an error message, because not every response has the header:
/// `…; the region 'us-east-1' is wrong; expecting 'eu-south-2'`.
fn expected_region(message: &str) -> Option<&str> {
    let (region, _) = message.split_once("expecting '")?.1.split_once('\'')?;
    crate::config::check_region(region).is_ok().then_some(region)
}

/// The SDK has no error kind for missing credentials, only messages.
fn names_credentials(error: &(dyn StdError + 'static)) -> bool {
    causes(error).any(|e| {
        let text = e.to_string();
        text.contains("credential") || text.contains("identity")
    })
}

impl Failure {
    /// No response within our own timeout.
    pub(super) fn timed_out() -> Self {
        Self { cause: Cause::Timeout, source: "no response in time".into() }
    }

    /// The request was not sent because of this error.
    pub(super) fn from_error(error: Error) -> Self {
        Self { cause: Cause::NotSent, source: Box::new(error) }
    }

    /// The error code and the message of the response; empty if there was none.
    pub(super) fn code_and_message(&self) -> (&str, &str) {
        match &self.cause {
            Cause::Response { code, message, .. } => (code, message),
            _ => ("", ""),
        }
    }

    /// Flattens the error chain to text. An STS response may contain secrets, and the source of an error is printed.
    pub(super) fn into_text(self) -> BoxError {
        let messages: Vec<_> = causes(&*self.source).map(ToString::to_string).collect();
        messages.join(": ").into()
    }

    /// Returns whether the failure proves that access was allowed: the key is missing, a condition failed, or the range
    /// is past the end.
    pub(super) fn proves_access(&self) -> bool {
        self.is_missing_key() || matches!(self.status(), Some(304 | 404 | 412 | 416))
    }

    /// Returns whether the credentials have expired. The response to a HEAD has no body, so a bare 400 counts.
    pub(super) fn is_expired(&self) -> bool {
        match &self.cause {
            Cause::Response { status: 400, code, .. } if code.is_empty() => true,
            Cause::Response { code, .. } => code == "ExpiredToken",
            _ => false,
        }
    }

    /// Returns whether this may be a missing key: without permission to list the bucket, S3 answers 403 instead of 404.
    pub(super) fn may_mean_missing(&self) -> bool {
        matches!(&self.cause, Cause::Response { status: 403, code, .. } if matches!(code.as_str(), "" | "AccessDenied"))
    }

    /// Converts the failure of an STS request to an error.
    pub(super) fn into_sts_error(self, endpoint: Option<&str>) -> Error {
        let place = endpoint.map_or("STS".to_owned(), |url| format!("STS at `{}`", shorten(url)));
        let (kind, message, hint) = match &self.cause {
            Cause::Response { status, code, message, .. } => {
                let said = [code.as_str(), message].join(": ");
                let (kind, hint) = match (status, code.as_str()) {
                    (429, _) | (_, "Throttling" | "ThrottlingException") => {
                        (ErrorKind::Throttled, "try again later; STS limits the calls of an account".into())
                    }
                    (404 | 405 | 501, _) => (ErrorKind::Unavailable, Hint::SetStsEndpoint),
                    (500.., _) => (ErrorKind::Unavailable, "try again".into()),
                    _ => (
                        ErrorKind::Denied,
                        "check the credentials of this process, its clock, and the role".into(),
                    ),
                };
                (
                    kind,
                    format!("{place} responded with {status} {}", shorten(said.trim_matches([':', ' ']))),
                    hint,
                )
            }
            Cause::Timeout => (
                ErrorKind::Timeout,
                format!("{place} did not respond in time"),
                "try again; if it persists, check the network and the address of STS".into(),
            ),
            Cause::Unreachable => (
                ErrorKind::Unavailable,
                format!("cannot reach {place}: {}", innermost(&*self.source)),
                Hint::SetStsEndpoint,
            ),
            Cause::Malformed => (
                ErrorKind::Unavailable,
                format!("the response of {place} is not valid"),
                Hint::SetStsEndpoint,
            ),
            _ => {
                let error = self.into_error("", endpoint);
                let said = error.message().to_owned();
                return error.with_source(said);
            }
        };
        Error::new(kind, message).with_hint(hint).with_source(self.into_text())
    }

    /// A failure reported inside a successful response, such as one key of a DeleteObjects.
    pub(super) fn from_code(code: &str, message: &str) -> Self {
        let status = if code == "AccessDenied" { 403 } else { 500 };
        let (code, message) = (code.to_owned(), message.to_owned());
        let source = format!("{code}: {message}").into();
        Self { cause: Cause::Response { status, code, message, bucket_region: None }, source }
    }

    /// The effect that the request may have had, if it was a write.
    pub(super) fn outcome(&self) -> Outcome {
        match &self.cause {
            Cause::Response { status, code, .. } => match (status, code.as_str()) {
                (409 | 412, _) | (404, "NoSuchKey") => Outcome::Condition,
                (404, "NoSuchUpload") => Outcome::Gone,
                // S3 sends these before it processes the request.
                (408 | 429, _) | (400, "RequestTimeout") | (_, "ExpiredToken") | (503, "SlowDown") => {
                    Outcome::NotDone
                }
                (501 | 300..=499, _) => Outcome::Refused,
                // Includes any other 503: a proxy may send it after the server has processed the request.
                _ => Outcome::Lost,
            },
            // The request was not sent.
            Cause::Unreachable if refused_connection(&*self.source) => Outcome::NotDone,
            Cause::NoCredentials | Cause::Request | Cause::NotSent => Outcome::Refused,
            Cause::Timeout | Cause::Unreachable | Cause::Malformed | Cause::Contradiction => Outcome::Lost,
        }
    }

    /// Returns whether the request may still reach the server or be processed there, because S3 itself has not
    /// responded to it.
    pub(super) fn may_be_in_flight(&self) -> bool {
        match &self.cause {
            Cause::Response { status, code, .. } => code.is_empty() || matches!(status, 502 | 504),
            Cause::Unreachable => !refused_connection(&*self.source),
            Cause::Timeout | Cause::Malformed | Cause::Contradiction => true,
            Cause::NoCredentials | Cause::Request | Cause::NotSent => false,
        }
    }

    /// Returns whether the server does not implement the request.
    pub(super) fn is_not_implemented(&self) -> bool {
        self.status() == Some(501)
    }

    /// The category of the failure for a diagnosis.
    pub(super) fn reason(&self) -> Reason {
        let (status, code, bucket_region) = match &self.cause {
            Cause::Response { status, code, bucket_region, .. } => (status, code, bucket_region),
            Cause::Timeout => return Reason::Timeout,
            Cause::Unreachable => return Reason::Unreachable,
            Cause::NoCredentials => return Reason::NoCredentials,
            Cause::Malformed | Cause::Contradiction => return Reason::NotS3,
            Cause::Request | Cause::NotSent => return Reason::Other,
        };
        match (*status, code.as_str()) {
            (404, "NoSuchBucket") => Reason::NoBucket,
            (404, "NoSuchKey") => Reason::Missing,
            (404, _) => Reason::NotS3,
            (400, "InvalidBucketName") => Reason::BadBucketName,
            (301 | 307, _) | (400, "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException") => {
                Reason::OtherRegion(bucket_region.clone())
            }
            (400, "") if bucket_region.is_some() => Reason::OtherRegion(bucket_region.clone()),
            (_, "RequestTimeTooSkewed") => Reason::Skewed,
            (_, "InvalidAccessKeyId" | "InvalidClientTokenId" | "NotSignedUp") => Reason::UnknownKey,
            (_, "SignatureDoesNotMatch") => Reason::BadSignature,
            (_, "ExpiredToken") => Reason::Expired,
            (_, "InvalidToken") => Reason::BadToken,
            (401 | 403, _) => Reason::Refused,
            (409 | 412, _) => Reason::Condition,
            (416, _) => Reason::BehindTheEnd,
            (405 | 501, _) => Reason::NotImplemented,
            _ => Reason::Other,
        }
    }

    /// The HTTP status, if there was a response. Prefer it to error codes, which differ between servers and are absent
    /// from responses to HEAD.
    pub(super) fn status(&self) -> Option<u16> {
        match &self.cause {
            Cause::Response { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Returns whether the key does not exist. A missing bucket, or a 404 from a server that is not S3, does not count.
    pub(super) fn is_missing_key(&self) -> bool {
        matches!(&self.cause, Cause::Response { status: 404, code, .. } if code == "NoSuchKey")
    }

    /// Converts the failure of an S3 request to an error with a hint.
    pub(super) fn into_error(self, bucket: &str, endpoint: Option<&str>) -> Error {
        let place = endpoint.map_or("S3".to_owned(), |url| format!("the storage at `{}`", shorten(url)));
        if let Cause::NotSent = self.cause {
            return match self.source.downcast::<Error>() {
                Ok(error) => *error,
                Err(other) => Error::new(ErrorKind::Internal, other.to_string()),
            };
        }
        let mut error = match &self.cause {
            Cause::Response { status, code, message, bucket_region } => {
                answer(*status, code, message, bucket_region.as_deref(), bucket)
            }
            Cause::Timeout => Error::new(ErrorKind::Timeout, format!("{place} did not respond in time"))
                .with_hint(
                    "try again; if it persists, check the network, the endpoint, and that credentials are set: \
                     looking for them may be what takes so long",
                ),
            Cause::Unreachable => {
                let why = innermost(&*self.source);
                let hint = match why.to_lowercase().contains("certificate") {
                    true => "install the authority of the server's certificate on this machine".into(),
                    false => Hint::CheckEndpoint,
                };
                Error::new(ErrorKind::Unavailable, format!("cannot reach {place}: {why}")).with_hint(hint)
            }
            Cause::NoCredentials => {
                Error::new(ErrorKind::Denied, "no AWS credentials were found").with_hint(credentials_hint())
            }
            Cause::Malformed => Error::new(
                ErrorKind::Unavailable,
                format!("the storage's response is not valid: {}", innermost(&*self.source)),
            )
            .with_hint("the response was discarded; check that the endpoint is an S3 server, then try again"),
            Cause::Contradiction => corrupt(innermost(&*self.source)),
            Cause::Request | Cause::NotSent => Error::new(
                ErrorKind::Internal,
                format!("the request could not be built: {}", innermost(&*self.source)),
            )
            .with_hint("this looks like a bug; please report it"),
        };
        if self.code_and_message().0 == "NoSuchBucket" {
            let embedded = endpoint.is_some_and(|url| url.ends_with(".invalid"));
            let (name, endpoint) = (bucket.to_owned(), endpoint.map(str::to_owned));
            error =
                error.with_hint(Hint::CreateBucket(BucketAddress { name, endpoint, region: None, embedded }));
        }
        error.with_source(self.source)
    }
}

/// An error for a response that cannot be used.
pub(super) fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, message).with_hint(
        "the response was discarded; if it happens again, check the server or the proxy in front of it",
    )
}

/// Maps the status and the error code of a response to an error with a hint.
fn answer(status: u16, code: &str, message: &str, region: Option<&str>, bucket: &str) -> Error {
    use ErrorKind::{
        Conflict, Corrupt, Denied, Internal, InvalidInput, Throttled, Timeout, TooLarge, Unavailable,
    };
    let said = match (code, message) {
        ("", _) => format!("{status}"),
        (code, "") => format!("{status} {code}"),
        (code, message) => format!("{status} {code}: {}", shorten(message)),
    };
    let bare = |kind, what: &str| Error::new(kind, format!("{what} ({said})"));
    let error = |kind, what: &str, hint: &'static str| bare(kind, what).with_hint(hint);
    match (status, code) {
        (404, "NoSuchBucket") => {
            error(Unavailable, &format!("the bucket `{bucket}` does not exist"), "create the bucket")
                .lasting()
        }
        (400, "InvalidBucketName") => error(
            InvalidInput,
            &format!("the storage does not accept `{bucket}` as a bucket name"),
            "a bucket name has 3 to 63 lowercase letters, digits, dots and hyphens",
        ),
        // A response to HEAD, which has no body and therefore no code.
        (400, "") if region.is_none() => error(
            Denied,
            "the storage refused the request",
            "check the credentials, which may have expired, and the region",
        ),
        (301 | 307, _)
        | (400, "" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException") => {
            let bucket = BucketAddress { name: bucket.to_owned(), ..BucketAddress::default() };
            bare(Unavailable, &format!("the bucket `{}` is in another region", bucket.name))
                .with_hint(Hint::SetRegion { region: region.map(str::to_owned), bucket })
                .lasting()
        }
        (_, "RequestTimeTooSkewed") => {
            bare(Denied, "the storage refused the request: this machine's clock is wrong")
                .with_hint(Hint::SetClock)
        }
        (
            _,
            "InvalidAccessKeyId"
            | "SignatureDoesNotMatch"
            | "ExpiredToken"
            | "InvalidToken"
            | "InvalidClientTokenId"
            | "NotSignedUp",
        ) => bare(Denied, "the storage does not accept these credentials")
            .with_hint(Hint::FixCredentials(CredentialsFault::Refused)),
        (401 | 403, _) => error(
            Denied,
            &format!("the storage denied access to the bucket `{bucket}`"),
            "the credentials need s3:GetObject and s3:ListBucket on this prefix, and s3:PutObject and \
             s3:DeleteObject to write",
        )
        .forbidden(),
        (404, "NoSuchUpload") => error(
            Conflict,
            "the upload no longer exists",
            "somebody or a lifecycle rule aborted it; write it again",
        ),
        // An object that is missing is no failure, and is asked for before.
        (404, _) => {
            bare(Unavailable, "the server does not respond like S3").with_hint(Hint::CheckEndpoint).lasting()
        }
        (409 | 412, _) => error(Conflict, "it was changed in the meantime", "read it again, then retry"),
        (501, _) => error(
            Unavailable,
            "the storage does not support this",
            "use a server that can, or an operation that needs less",
        )
        .lasting(),
        (400, "MetadataTooLarge") => error(
            TooLarge,
            "the file's metadata is larger than S3 allows",
            "write the file again, without the metadata that another tool added",
        ),
        (400, "EntityTooLarge") | (413, _) => error(
            TooLarge,
            "the storage does not accept this much in one request",
            "write it in smaller files",
        ),
        (429, _)
        | (
            _,
            "SlowDown" | "TooManyRequests" | "RequestLimitExceeded" | "Throttling" | "ThrottlingException",
        ) => error(Throttled, "the storage asks for fewer requests", "wait a few seconds, then retry"),
        (408, _) | (_, "RequestTimeout") => error(Timeout, "the storage timed out", "try again"),
        // Some servers throttle with a bare 503.
        (503, "") => error(Throttled, "the storage is overloaded", "wait a few seconds, then retry"),
        (_, "StoreDamaged") => error(
            Corrupt,
            "the embedded store is damaged",
            "restore its file from a backup, or use another directory",
        ),
        (500..=599, _) | (_, "InternalError") => {
            error(Unavailable, "the storage failed", "try again; if it persists, check the server")
        }
        _ => error(
            Internal,
            "the storage returned an unexpected response",
            "this looks like a bug in skillfs or in the server; please report it",
        ),
    }
}

fn refused_connection(error: &(dyn StdError + 'static)) -> bool {
    let refused = |e: &std::io::Error| e.kind() == std::io::ErrorKind::ConnectionRefused;
    causes(error).any(|e| e.downcast_ref().is_some_and(refused))
}

/// The message of the innermost cause, which is the informative one: `Connection refused`, not `dispatch failure`.
fn innermost(error: &(dyn StdError + 'static)) -> String {
    let last = causes(error).last().map(ToString::to_string);
    shorten(&last.unwrap_or_default())
}

fn causes<'e>(error: &'e (dyn StdError + 'static)) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error: &&'e (dyn StdError + 'static)| (*error).source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_region_that_is_expected_is_read_from_words() {
        let message =
            "The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-south-2'";
        assert_eq!(expected_region(message), Some("eu-south-2"));
        for other in ["", "expecting 'eu", "expecting ''", "expecting 'a b'", "a non-empty Access Key"] {
            assert_eq!(expected_region(other), None, "{other}");
        }
    }

    #[test]
    fn every_answer_has_a_kind_and_a_way_out() {
        use ErrorKind::{Conflict, Corrupt, Denied, Internal, InvalidInput, Throttled, Timeout, Unavailable};
        for (status, code, kind) in [
            (404, "NoSuchBucket", Unavailable),
            (404, "", Unavailable),
            (301, "PermanentRedirect", Unavailable),
            (307, "TemporaryRedirect", Unavailable),
            (400, "AuthorizationHeaderMalformed", Unavailable),
            (400, "ExpiredToken", Denied),
            (403, "InvalidAccessKeyId", Denied),
            (403, "SignatureDoesNotMatch", Denied),
            (403, "RequestTimeTooSkewed", Denied),
            (403, "AccessDenied", Denied),
            (403, "", Denied),
            (401, "", Denied),
            (400, "", Denied),
            (412, "PreconditionFailed", Conflict),
            (409, "ConditionalRequestConflict", Conflict),
            (429, "", Throttled),
            (503, "SlowDown", Throttled),
            (503, "", Throttled),
            (503, "ServiceUnavailable", Unavailable),
            // A failure reported inside a 200 response.
            (200, "SlowDown", Throttled),
            (200, "InternalError", Unavailable),
            (500, "InternalError", Unavailable),
            (502, "", Unavailable),
            (400, "RequestTimeout", Timeout),
            (400, "InvalidBucketName", InvalidInput),
            (500, "StoreDamaged", Corrupt),
            (400, "MadeUp", Internal),
        ] {
            let error = answer(status, code, "", None, "b");
            assert_eq!(error.kind(), kind, "{status} {code}");
            assert!(error.hint().is_some() && !error.message().is_empty());
        }
        assert_eq!(
            answer(301, "", "", Some("eu-south-2"), "b").hint().unwrap().to_string(),
            "set the region to `eu-south-2`"
        );
    }
}
