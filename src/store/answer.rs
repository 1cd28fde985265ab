//! What a GetObject is answered with: the parts of it that we use, whoever sent the request.

use std::time::SystemTime;

use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ErrorMetadata, SdkError};
use aws_sdk_s3::operation::get_object::{GetObjectError, GetObjectOutput};
use aws_sdk_s3::primitives::{ByteStream, DateTime, DateTimeFormat, SdkBody};
use aws_smithy_xml::decode::{Document, XmlDecodeError, try_data};
use bytes::BytesMut;

use super::failure::Failure;
use super::history::History;
use super::write::Properties;

/// No error of S3 is longer; what is longer is the page of something else.
const LONGEST_ERROR: usize = 256 * 1024;

const METADATA: &str = "x-amz-meta-";

/// An object, or a part of it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) length: Option<i64>,
    pub(super) content_range: Option<String>,
    pub(super) modified: Option<SystemTime>,
    /// With its quotes.
    pub(super) etag: Option<String>,
    pub(super) properties: Properties,
    pub(super) body: ByteStream,
}

impl From<GetObjectOutput> for Answer {
    fn from(output: GetObjectOutput) -> Self {
        let mut properties = Properties {
            content_type: output.content_type,
            content_encoding: output.content_encoding,
            content_language: output.content_language,
            content_disposition: output.content_disposition,
            cache_control: output.cache_control,
            metadata: output.metadata.unwrap_or_default().into_iter().collect(),
            history: History::default(),
        };
        properties.history = History::take_from(&mut properties.metadata);
        Self {
            length: output.content_length,
            content_range: output.content_range,
            modified: output.last_modified.and_then(|time| time.try_into().ok()),
            etag: output.e_tag,
            properties,
            body: output.body,
        }
    }
}

impl Answer {
    /// Reads the head of a successful answer. What the SDK would not understand is not understood here either.
    pub(super) fn read(mut response: HttpResponse) -> Result<Self, Failure> {
        let body = std::mem::replace(response.body_mut(), SdkBody::taken());
        let mut answer = Self {
            length: None,
            content_range: None,
            modified: None,
            etag: None,
            properties: Properties::default(),
            body: ByteStream::new(body),
        };
        match answer.read_headers(response.headers().iter_bytes()) {
            Ok(()) => Ok(answer),
            Err(header) => {
                let error = GetObjectError::unhandled(complaint(header));
                Err(SdkError::service_error(error, response).into())
            }
        }
    }

    /// Fails with the name of a header that says nothing, or two things.
    fn read_headers<'h>(
        &mut self,
        headers: impl Iterator<Item = (&'h str, &'h [u8])>,
    ) -> Result<(), &'h str> {
        let mut modified = None;
        let properties = &mut self.properties;
        for (name, value) in headers {
            let slot = match name {
                "content-length" => {
                    let length = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
                    if self.length.replace(length.ok_or(name)?).is_some() {
                        return Err(name);
                    }
                    continue;
                }
                "content-range" => &mut self.content_range,
                "last-modified" => &mut modified,
                "etag" => &mut self.etag,
                "content-type" => &mut properties.content_type,
                "content-encoding" => &mut properties.content_encoding,
                "content-language" => &mut properties.content_language,
                "content-disposition" => &mut properties.content_disposition,
                "cache-control" => &mut properties.cache_control,
                _ => {
                    let Some(rest) = name.strip_prefix(METADATA) else { continue };
                    let text = std::str::from_utf8(value).map_err(|_| name)?.trim().to_owned();
                    if properties.metadata.insert(rest.to_owned(), text).is_some() {
                        return Err(name);
                    }
                    continue;
                }
            };
            let text = std::str::from_utf8(value).map_err(|_| name)?.trim().to_owned();
            if slot.replace(text).is_some() {
                return Err(name);
            }
        }
        if let Some(text) = modified {
            let time = DateTime::from_str(&text, DateTimeFormat::HttpDate).map_err(|_| "last-modified")?;
            self.modified = time.try_into().ok();
        }
        properties.history = History::take_from(&mut properties.metadata);
        Ok(())
    }
}

/// In the SDK's words.
fn complaint(header: &str) -> String {
    if header.starts_with(METADATA) {
        return format!("Failed to parse Metadata from prefix header `{METADATA}`");
    }
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    let words: Vec<_> = match header {
        "etag" => vec!["ETag".to_owned()],
        _ => header.split('-').map(capital).collect(),
    };
    format!("Failed to parse {} from header `{}`", words.concat(), words.join("-"))
}

/// Reads an answer that is no success.
pub(super) async fn refusal(mut response: HttpResponse) -> SdkError<GetObjectError, HttpResponse> {
    let mut stream = ByteStream::new(std::mem::replace(response.body_mut(), SdkBody::taken()));
    let mut body = BytesMut::new();
    loop {
        match stream.next().await {
            Some(Ok(piece)) if body.len() + piece.len() <= LONGEST_ERROR => body.extend_from_slice(&piece),
            Some(Ok(_)) => {
                return SdkError::service_error(GetObjectError::unhandled("it is too long"), response);
            }
            Some(Err(error)) => return SdkError::response_error(error, response),
            None => break,
        }
    }
    let body = body.freeze();
    let error = match said(&response, &body) {
        Ok(said) => GetObjectError::generic(said),
        Err(error) => GetObjectError::unhandled(error),
    };
    *response.body_mut() = SdkBody::from(body);
    SdkError::service_error(error, response)
}

/// Code and message of S3's XML; nothing of them where it is something else.
fn said(response: &HttpResponse, body: &[u8]) -> Result<ErrorMetadata, XmlDecodeError> {
    let mut said = ErrorMetadata::builder();
    // For those who ask Amazon.
    for (name, header) in [("aws_request_id", "x-amz-request-id"), ("s3_extended_request_id", "x-amz-id-2")] {
        if let Some(id) = response.headers().get(header) {
            said = said.custom(name, id);
        }
    }
    if body.is_empty() {
        if response.status().as_u16() == 404 {
            said = said.code("NotFound");
        }
        return Ok(said.build());
    }
    let mut document = Document::try_from(body)?;
    let mut root = document.root_element()?;
    while let Some(mut tag) = root.next_tag() {
        match tag.start_el().local() {
            "Code" => said = said.code(try_data(&mut tag)?),
            "Message" => said = said.message(try_data(&mut tag)?),
            _ => {}
        }
    }
    Ok(said.build())
}
