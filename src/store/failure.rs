//! What S3 and the way to it can say no with, in our own kinds and with a way out.

use std::error::Error as StdError;
use std::sync::Arc;

use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{BoxError, ProvideErrorMetadata, SdkError};

use super::intercept::Contradiction;
use crate::config::credentials_hint;
use crate::error::{BucketAddress, CredentialsFault, Error, ErrorKind, Hint, shorten};

/// Why a request failed, as far as a diagnosis has something of its own to say about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reason {
    Unreachable,
    Timeout,
    /// Whatever answered, it is no S3.
    NotS3,
    NoCredentials,
    UnknownKey,
    BadSignature,
    Expired,
    BadToken,
    /// This machine's clock is too far off.
    Skewed,
    /// The bucket lies in this region, where that was told.
    OtherRegion(Option<String>),
    NoBucket,
    BadBucketName,
    /// No such key.
    Missing,
    /// The credentials are good, and this is not theirs to do.
    Refused,
    /// A condition does not hold.
    Condition,
    /// The range starts behind the end.
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

/// What a failed write may have done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing: its condition does not hold, or another conditional write is under way.
    Condition,
    /// Nothing: the upload that it belongs to is not there.
    Gone,
    /// Nothing, and it will not do any better.
    Refused,
    /// Nothing; it may be sent again.
    NotDone,
    /// The answer is lost: all or nothing.
    Lost,
}

#[derive(Debug)]
enum Cause {
    Answer {
        status: u16,
        code: String,
        message: String,
        bucket_region: Option<String>,
    },
    Timeout,
    Unreachable,
    NoCredentials,
    Garbled,
    Contradiction,
    Request,
    /// It was not sent, and why is said already.
    Told,
}

impl<E> From<SdkError<E, HttpResponse>> for Failure
where
    E: StdError + ProvideErrorMetadata + Send + Sync + 'static,
{
    fn from(error: SdkError<E, HttpResponse>) -> Self {
        // What a session's own credentials failed with says more than that there are none.
        if let Some(told) = causes(&error).find_map(|cause| cause.downcast_ref::<Arc<Error>>()) {
            return Self::told(Error::shared(told));
        }
        let cause = match &error {
            _ if causes(&error).any(<dyn StdError>::is::<Contradiction>) => Cause::Contradiction,
            // A success whose body is no S3 answer, such as the page of a proxy.
            SdkError::ServiceError(service)
                if service.raw().status().is_success() && service.err().code().is_none() =>
            {
                Cause::Garbled
            }
            SdkError::ServiceError(service) => Cause::Answer {
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
            // An answer that is no XML, or that ends in the middle of it.
            SdkError::ResponseError(_) => Cause::Garbled,
            _ if names_credentials(&error) => Cause::NoCredentials,
            SdkError::DispatchFailure(_) => Cause::Unreachable,
            _ => Cause::Request,
        };
        Self { cause, source: Box::new(error) }
    }
}

/// Not every answer has the header: `…; the region 'us-east-1' is wrong; expecting 'eu-south-2'`.
fn expected_region(message: &str) -> Option<&str> {
    let (region, _) = message.split_once("expecting '")?.1.split_once('\'')?;
    crate::config::check_region(region).is_ok().then_some(region)
}

/// The SDK has no kind for "no credentials"; its errors say so in words only.
fn names_credentials(error: &(dyn StdError + 'static)) -> bool {
    causes(error).any(|e| {
        let text = e.to_string();
        text.contains("credential") || text.contains("identity")
    })
}

impl Failure {
    /// No answer within our own patience.
    pub(super) fn timed_out() -> Self {
        Self { cause: Cause::Timeout, source: "no response in time".into() }
    }

    /// Nothing was sent, for this reason.
    pub(super) fn told(error: Error) -> Self {
        Self { cause: Cause::Told, source: Box::new(error) }
    }

    /// What a server said: its code, and its message.
    pub(super) fn said(&self) -> (&str, &str) {
        match &self.cause {
            Cause::Answer { code, message, .. } => (code, message),
            _ => ("", ""),
        }
    }

    /// Why, in words: an answer of STS may hold secrets, and an error's source is printed.
    pub(super) fn into_words(self) -> BoxError {
        let words: Vec<_> = causes(&*self.source).map(ToString::to_string).collect();
        words.join(": ").into()
    }

    /// Whether it says that the request was allowed, and something else was not as it was hoped for.
    pub(super) fn is_no_refusal(&self) -> bool {
        self.is_missing_key() || matches!(self.status(), Some(304 | 404 | 412 | 416))
    }

    /// The storage takes the credentials no longer. A HEAD has no body to say so in.
    pub(super) fn is_expired(&self) -> bool {
        match &self.cause {
            Cause::Answer { status: 400, code, .. } if code.is_empty() => true,
            Cause::Answer { code, .. } => code == "ExpiredToken",
            _ => false,
        }
    }

    /// Whether it may be how S3 says that a key is not there, to those who may not list the whole bucket.
    pub(super) fn may_mean_missing(&self) -> bool {
        matches!(&self.cause, Cause::Answer { status: 403, code, .. } if matches!(code.as_str(), "" | "AccessDenied"))
    }

    /// The failure of a request to STS.
    pub(super) fn into_sts_error(self, endpoint: Option<&str>) -> Error {
        let place = endpoint.map_or("STS".to_owned(), |url| format!("STS at `{}`", shorten(url)));
        let (kind, message, hint) = match &self.cause {
            Cause::Answer { status, code, message, .. } => {
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
            Cause::Garbled => (
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
        Error::new(kind, message).with_hint(hint).with_source(self.into_words())
    }

    /// A failure inside an answer that is none as a whole.
    pub(super) fn inside(code: &str, message: &str) -> Self {
        let status = if code == "AccessDenied" { 403 } else { 500 };
        let (code, message) = (code.to_owned(), message.to_owned());
        let source = format!("{code}: {message}").into();
        Self { cause: Cause::Answer { status, code, message, bucket_region: None }, source }
    }

    /// What it may have done, if it was a write.
    pub(super) fn outcome(&self) -> Outcome {
        match &self.cause {
            Cause::Answer { status, code, .. } => match (status, code.as_str()) {
                (409 | 412, _) | (404, "NoSuchKey") => Outcome::Condition,
                (404, "NoSuchUpload") => Outcome::Gone,
                // S3 says so before it begins.
                (408 | 429, _) | (400, "RequestTimeout") | (_, "ExpiredToken") | (503, "SlowDown") => {
                    Outcome::NotDone
                }
                (501 | 300..=499, _) => Outcome::Refused,
                // Also any other 503: a proxy may say so after the storage has done its work.
                _ => Outcome::Lost,
            },
            // Nothing was sent.
            Cause::Unreachable if refused_connection(&*self.source) => Outcome::NotDone,
            Cause::NoCredentials | Cause::Request | Cause::Told => Outcome::Refused,
            Cause::Timeout | Cause::Unreachable | Cause::Garbled | Cause::Contradiction => Outcome::Lost,
        }
    }

    /// Whether the request may still reach the storage, or be at work there: nobody there has answered it.
    pub(super) fn may_be_under_way(&self) -> bool {
        match &self.cause {
            Cause::Answer { status, code, .. } => code.is_empty() || matches!(status, 502 | 504),
            Cause::Unreachable => !refused_connection(&*self.source),
            Cause::Timeout | Cause::Garbled | Cause::Contradiction => true,
            Cause::NoCredentials | Cause::Request | Cause::Told => false,
        }
    }

    /// The server does not know what was asked of it.
    pub(super) fn is_not_implemented(&self) -> bool {
        self.status() == Some(501)
    }

    /// What a diagnosis tells apart.
    pub(super) fn reason(&self) -> Reason {
        let (status, code, bucket_region) = match &self.cause {
            Cause::Answer { status, code, bucket_region, .. } => (status, code, bucket_region),
            Cause::Timeout => return Reason::Timeout,
            Cause::Unreachable => return Reason::Unreachable,
            Cause::NoCredentials => return Reason::NoCredentials,
            Cause::Garbled | Cause::Contradiction => return Reason::NotS3,
            Cause::Request | Cause::Told => return Reason::Other,
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

    /// The status, where a server answered. Codes differ between servers, and a HEAD has none.
    pub(super) fn status(&self) -> Option<u16> {
        match &self.cause {
            Cause::Answer { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// 404 for the key: not for the bucket, and not from a server that is no S3.
    pub(super) fn is_missing_key(&self) -> bool {
        matches!(&self.cause, Cause::Answer { status: 404, code, .. } if code == "NoSuchKey")
    }

    pub(super) fn into_error(self, bucket: &str, endpoint: Option<&str>) -> Error {
        let place = endpoint.map_or("S3".to_owned(), |url| format!("the storage at `{}`", shorten(url)));
        if let Cause::Told = self.cause {
            return match self.source.downcast::<Error>() {
                Ok(error) => *error,
                Err(other) => Error::new(ErrorKind::Internal, other.to_string()),
            };
        }
        let mut error = match &self.cause {
            Cause::Answer { status, code, message, bucket_region } => {
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
            Cause::Garbled => Error::new(
                ErrorKind::Unavailable,
                format!("the storage's response is not valid: {}", innermost(&*self.source)),
            )
            .with_hint("the response was discarded; check that the endpoint is an S3 server, then try again"),
            Cause::Contradiction => corrupt(innermost(&*self.source)),
            Cause::Request | Cause::Told => Error::new(
                ErrorKind::Internal,
                format!("the request could not be built: {}", innermost(&*self.source)),
            )
            .with_hint("this looks like a bug; please report it"),
        };
        if self.said().0 == "NoSuchBucket" {
            let embedded = endpoint.is_some_and(|url| url.ends_with(".invalid"));
            let (name, endpoint) = (bucket.to_owned(), endpoint.map(str::to_owned));
            error =
                error.with_hint(Hint::CreateBucket(BucketAddress { name, endpoint, region: None, embedded }));
        }
        error.with_source(self.source)
    }
}

/// An answer that cannot be used.
pub(super) fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, message).with_hint(
        "the response was discarded; if it happens again, check the server or the proxy in front of it",
    )
}

/// One function maps a status, and where it says more the code, to a kind.
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
        // A HEAD has no body to say more in.
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

/// The last cause is the one that says something: `Connection refused`, not `dispatch failure`.
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
        let told =
            "The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-south-2'";
        assert_eq!(expected_region(told), Some("eu-south-2"));
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
            // A failure inside a 200.
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
