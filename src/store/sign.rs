//! Signatures of GET requests: AWS Signature Version 4, as S3 wants it.
//!
//! The SDK's own signer makes all of it anew for each request. What depends on the time and the credentials only is made
//! once a second here; the tests compare the two.

use std::fmt;
use std::time::{Duration, SystemTime};

use aws_sdk_s3::config::Credentials;
use aws_sdk_s3::error::BoxError;
use aws_sigv4::sign::v4::{calculate_signature, generate_signing_key};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

/// The sum of no bytes: a GET has no body.
pub(super) const NO_BODY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

pub(super) const SERVICE: &str = "s3";
pub(super) const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// What signatures of one second have in common.
pub(super) struct Signer {
    /// `20260131T235959Z`
    date: String,
    /// `20260131/us-east-1/s3/aws4_request`
    scope: String,
    access_key_id: String,
    token: Option<String>,
    key: Vec<u8>,
}

/// Keys and tokens are nobody's business.
impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("scope", &self.scope).finish_non_exhaustive()
    }
}

/// What is signed of a GET.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signed<'r> {
    /// As it is sent: encoded once.
    pub(super) path: &'r str,
    /// As it is sent, and sorted.
    pub(super) query: &'r str,
    pub(super) host: &'r str,
    pub(super) if_match: Option<&'r str>,
    pub(super) if_none_match: Option<&'r str>,
    pub(super) range: Option<&'r str>,
}

impl Signer {
    pub(super) fn new(credentials: &Credentials, region: &str, now: SystemTime) -> Result<Self, BoxError> {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let now = OffsetDateTime::from_unix_timestamp(i64::try_from(since.as_secs())?)?;
        let (year, month, day) = now.to_calendar_date();
        let (hour, minute, second) = now.to_hms();
        let day = format!("{year:04}{:02}{day:02}", u8::from(month));
        let key =
            generate_signing_key(credentials.secret_access_key(), SystemTime::from(now), region, SERVICE);
        Ok(Self {
            date: format!("{day}T{hour:02}{minute:02}{second:02}Z"),
            scope: format!("{day}/{region}/{SERVICE}/aws4_request"),
            access_key_id: credentials.access_key_id().to_owned(),
            token: credentials.session_token().map(str::to_owned),
            key: key.as_ref().to_vec(),
        })
    }

    /// For the header `x-amz-date`.
    pub(super) fn date(&self) -> &str {
        &self.date
    }

    /// For the header `x-amz-security-token`.
    pub(super) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// For the header `authorization`.
    pub(super) fn authorization(&self, request: &Signed<'_>) -> String {
        // By name, as they are signed.
        let headers = [
            ("host", Some(request.host)),
            ("if-match", request.if_match),
            ("if-none-match", request.if_none_match),
            ("range", request.range),
            ("x-amz-content-sha256", Some(NO_BODY)),
            ("x-amz-date", Some(self.date.as_str())),
            ("x-amz-security-token", self.token.as_deref()),
        ];
        let sent = || headers.iter().filter_map(|(name, value)| value.map(|value| (*name, value)));
        let mut names = String::with_capacity(96);
        let mut text = String::with_capacity(512 + self.token.as_ref().map_or(0, String::len));
        push(&mut text, &["GET\n", request.path, "\n", request.query, "\n"]);
        for (name, value) in sent() {
            push(&mut text, &[name, ":", value, "\n"]);
            let between = if names.is_empty() { "" } else { ";" };
            push(&mut names, &[between, name]);
        }
        push(&mut text, &["\n", &names, "\n", NO_BODY]);
        let sum = Sha256::digest(text.as_bytes());
        text.clear();
        push(&mut text, &[ALGORITHM, "\n", &self.date, "\n", &self.scope, "\n"]);
        for byte in sum {
            const DIGITS: &[u8; 16] = b"0123456789abcdef";
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        let signature = calculate_signature(&self.key, text.as_bytes());
        text.clear();
        push(
            &mut text,
            &[
                ALGORITHM,
                " Credential=",
                &self.access_key_id,
                "/",
                &self.scope,
                ", SignedHeaders=",
                &names,
                ", Signature=",
                &signature,
            ],
        );
        text
    }
}

fn push(text: &mut String, pieces: &[&str]) {
    for piece in pieces {
        text.push_str(piece);
    }
}

#[cfg(test)]
mod tests {
    use aws_sigv4::http_request::{
        PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings,
        UriPathNormalizationMode, sign,
    };
    use aws_sigv4::sign::v4::SigningParams;

    use super::*;

    /// What the SDK's signer says.
    fn theirs(credentials: &Credentials, region: &str, now: SystemTime, request: &Signed<'_>) -> String {
        let mut settings = SigningSettings::default();
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        let identity = credentials.clone().into();
        let params = SigningParams::builder()
            .identity(&identity)
            .region(region)
            .name(SERVICE)
            .time(now)
            .settings(settings)
            .build()
            .unwrap()
            .into();
        let headers = [
            ("if-match", request.if_match),
            ("if-none-match", request.if_none_match),
            ("range", request.range),
        ];
        let headers = headers.iter().filter_map(|(name, value)| value.map(|value| (*name, value)));
        let uri = format!("https://{}{}?{}", request.host, request.path, request.query);
        let signable = SignableRequest::new("GET", uri, headers, SignableBody::Bytes(b"")).unwrap();
        let (instructions, _) = sign(signable, &params).unwrap().into_parts();
        let found = instructions.headers().find(|(name, _)| *name == "authorization").unwrap();
        found.1.to_owned()
    }

    #[test]
    fn signatures_are_those_of_the_sdk() {
        let plain = Credentials::new("AKIDEXAMPLE", "secret/+key", None, None, "test");
        let session =
            Credentials::new("ASIAEXAMPLE", "another", Some("token/with+odd=chars".to_owned()), None, "test");
        for (seconds, path, if_match, if_none_match, range) in [
            (0, "/b/a.txt", None, None, None),
            (1_700_000_000, "/b/a.txt", None, None, Some("bytes=0-65535")),
            (1_709_164_799, "/b/a%20b/%C3%A4%2B~.md", Some("\"abc-2\""), None, Some("bytes=7-")),
            (1_709_164_800, "/%25%25/..//x", None, Some("W/\"abc\""), None),
            (4_102_444_800, "/threads/t/", Some("\"1\""), Some("\"2\""), Some("bytes=5-5")),
        ] {
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            for credentials in [&plain, &session] {
                for (region, host) in [("us-east-1", "127.0.0.1:9000"), ("eu-south-2", "b.s3.amazonaws.com")]
                {
                    let request =
                        Signed { path, query: "x-id=GetObject", host, if_match, if_none_match, range };
                    let signer = Signer::new(credentials, region, now).unwrap();
                    assert_eq!(
                        signer.authorization(&request),
                        theirs(credentials, region, now, &request),
                        "{request:?}"
                    );
                }
            }
        }
    }
}
