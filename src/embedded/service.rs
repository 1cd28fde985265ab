//! The S3 operations, implemented on [`Db`].

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use http::HeaderMap;
use s3s::dto::*;
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use super::conditions::{Conditions, matches_strongly, write_condition};
use super::db::{Attributes, Db, DbError, Record, Refusal, StoredContent};
use super::headers::{
    CACHE_CONTROL, CHECKSUMS, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE, as_i64,
    attribute, attributes, computed, etag, hasher, metadata, modified, promised_checksums,
};
use super::pages::{self, MAX_KEYS};
use super::parts::{Uploads, no_such_upload};
use super::upload::{IncomingContent, Sealed};
use crate::ambient::Ambient;

/// The maximum size of an object in a single PUT, as on S3.
const MAX_PUT_BYTES: u64 = 5 * 1024 * 1024 * 1024;

/// The minimum size of every part except the last, as on S3.
const MIN_PART_BYTES: u64 = 5 * 1024 * 1024;

pub(super) struct Service {
    db: Arc<Db>,
    uploads: Arc<Uploads>,
}

impl Service {
    pub(super) fn new(db: Arc<Db>) -> Self {
        Self { db, uploads: Arc::default() }
    }

    /// Receives a body and verifies all declared checksums.
    async fn receive(
        &self,
        headers: &HeaderMap,
        trailers: Option<s3s::TrailingHeaders>,
        length: Option<i64>,
        content_md5: Option<String>,
        body: Option<StreamingBlob>,
    ) -> S3Result<(Sealed, Attributes)> {
        if length.is_some_and(|length| u64::try_from(length).is_ok_and(|l| l > MAX_PUT_BYTES)) {
            return Err(s3_error!(EntityTooLarge));
        }
        let mut sums = promised_checksums(headers);
        let trailer = headers.get("x-amz-trailer").and_then(|v| v.to_str().ok()).unwrap_or_default();
        let mut hasher =
            hasher(sums.iter().map(|(name, _)| name.as_str()).chain(trailer.split(',').map(str::trim)));
        let mut upload = IncomingContent::new(self.db.clone());
        if let Some(mut body) = body {
            while let Some(piece) = body.next().await {
                let piece = piece.map_err(|e| S3Error::with_source(S3ErrorCode::IncompleteBody, e))?;
                hasher.update(&piece);
                upload.push(piece).await?;
                if upload.size() > MAX_PUT_BYTES {
                    return Err(s3_error!(EntityTooLarge));
                }
            }
        }
        if let Some(trailers) = trailers.as_ref().and_then(s3s::TrailingHeaders::take) {
            sums.extend(promised_checksums(&trailers));
        }
        let sealed = upload.seal();
        let computed = computed(hasher);
        if sums.iter().any(|sum| !computed.contains(sum)) {
            return Err(s3_error!(BadDigest, "the checksum does not match the content"));
        }
        if let Some(md5) = content_md5
            && base64_simd::STANDARD.encode_to_string(sealed.md5) != md5
        {
            return Err(s3_error!(BadDigest, "the Content-MD5 does not match the content"));
        }
        Ok((sealed, sums))
    }

    /// Finds an object and checks the conditions of a read.
    async fn find(
        &self,
        bucket: String,
        key: String,
        conditions: &Conditions,
    ) -> S3Result<(Record, StoredContent)> {
        let found = self.db.run(move |db| db.snapshot(&bucket, &key)).await?;
        let (record, content) = found.ok_or_else(|| s3_error!(NoSuchKey))?;
        conditions.check(&record)?;
        Ok((record, content))
    }

    /// Finds the source of a copy.
    async fn source(&self, source: &CopySource, headers: &HeaderMap) -> S3Result<(Record, StoredContent)> {
        let CopySource::Bucket { bucket, key, version_id: None } = source else {
            return Err(s3_error!(NotImplemented, "a source is a bucket and a key"));
        };
        let conditions = Conditions::of(headers, "x-amz-copy-source-")?;
        let found = self.find(bucket.to_string(), key.to_string(), &conditions).await;
        // S3 answers 412 rather than 304 here, because a copy returns no content that could be unmodified.
        found.map_err(|error| match error.code() {
            S3ErrorCode::NotModified => s3_error!(PreconditionFailed),
            _ => error,
        })
    }

    async fn copied(&self, content: StoredContent, range: std::ops::Range<u64>) -> S3Result<Sealed> {
        let mut pieces = body(self.db.clone(), content, range);
        let mut upload = IncomingContent::new(self.db.clone());
        while let Some(piece) = pieces.next().await {
            upload.push(piece.map_err(|e| S3Error::with_source(S3ErrorCode::InternalError, e))?).await?;
        }
        Ok(upload.seal())
    }

    async fn add_part(&self, id: &str, place: (&str, &str), number: i32, content: Sealed) -> S3Result<ETag> {
        if !(1..=10_000).contains(&number) {
            return Err(s3_error!(InvalidArgument, "parts are numbered from 1 to 10,000"));
        }
        let part = content.into_part().await?;
        let e_tag = ETag::Strong(part.stored.etag());
        self.uploads.with(id, place, |upload| upload.parts.insert(number, part))?;
        Ok(e_tag)
    }
}

type OpResult<T> = S3Result<S3Response<T>>;

/// Parses `bytes=0-99`, which must be within the source.
fn copy_range(range: &str, size: u64) -> Option<std::ops::Range<u64>> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < size).then(|| first..last + 1)
}

/// The common fields of GET and HEAD responses, which have two different types.
macro_rules! described {
    ($output:ident, $record:ident) => {
        $output {
            accept_ranges: Some("bytes".to_owned()),
            content_length: Some(as_i64($record.size)),
            content_type: attribute(&$record, CONTENT_TYPE),
            content_encoding: attribute(&$record, CONTENT_ENCODING),
            content_language: attribute(&$record, CONTENT_LANGUAGE),
            content_disposition: attribute(&$record, CONTENT_DISPOSITION),
            cache_control: attribute(&$record, CACHE_CONTROL),
            e_tag: Some(etag(&$record)),
            last_modified: Some(modified(&$record)),
            metadata: metadata(&$record),
            ..$output::default()
        }
    };
}

#[async_trait::async_trait]
impl S3 for Service {
    async fn create_bucket(&self, req: S3Request<CreateBucketInput>) -> OpResult<CreateBucketOutput> {
        let bucket = req.input.bucket;
        self.db.run(move |db| db.create_bucket(&bucket)).await?;
        Ok(S3Response::new(CreateBucketOutput::default()))
    }

    async fn head_bucket(&self, req: S3Request<HeadBucketInput>) -> OpResult<HeadBucketOutput> {
        let bucket = req.input.bucket;
        self.db.run(move |db| db.check_bucket(&bucket)).await?;
        Ok(S3Response::new(HeadBucketOutput::default()))
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> OpResult<GetObjectOutput> {
        let input = req.input;
        let conditions = Conditions::of(&req.headers, "")?;
        let (record, content) = self.find(input.bucket, input.key, &conditions).await?;
        let range = match &input.range {
            // No range of an empty object can be satisfied.
            Some(_) if record.size == 0 => return Err(s3_error!(InvalidRange)),
            Some(range) => range.check(record.size)?,
            None => 0..record.size,
        };
        let mut output = described!(GetObjectOutput, record);
        output.content_length = Some(as_i64(range.end - range.start));
        let mut partial = None;
        if input.range.is_some() {
            output.content_range = Some(format!("bytes {}-{}/{}", range.start, range.end - 1, record.size));
            partial = Some(http::StatusCode::PARTIAL_CONTENT);
        } else if input.checksum_mode.is_some() {
            [
                output.checksum_crc32,
                output.checksum_crc32c,
                output.checksum_crc64nvme,
                output.checksum_sha1,
                output.checksum_sha256,
            ] = CHECKSUMS.map(|name| attribute(&record, name));
        }
        output.body = Some(body(self.db.clone(), content, range));
        let mut response = S3Response::new(output);
        response.status = partial;
        Ok(response)
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> OpResult<HeadObjectOutput> {
        let conditions = Conditions::of(&req.headers, "")?;
        let (record, _) = self.find(req.input.bucket, req.input.key, &conditions).await?;
        Ok(S3Response::new(described!(HeadObjectOutput, record)))
    }

    async fn put_object(&self, req: S3Request<PutObjectInput>) -> OpResult<PutObjectOutput> {
        let input = req.input;
        let condition = write_condition(input.if_match, input.if_none_match)?;
        let (length, md5) = (input.content_length, input.content_md5);
        let (upload, sums) =
            self.receive(&req.headers, req.trailing_headers, length, md5, input.body).await?;
        let mut attributes = attributes(&req.headers, input.metadata);
        attributes.extend(sums);
        let record = upload.commit(&input.bucket, &input.key, attributes, condition).await?;
        Ok(S3Response::new(PutObjectOutput { e_tag: Some(etag(&record)), ..PutObjectOutput::default() }))
    }

    async fn copy_object(&self, req: S3Request<CopyObjectInput>) -> OpResult<CopyObjectOutput> {
        let input = req.input;
        // The input type has no fields for these conditions.
        let Conditions { if_match, if_none_match, .. } = Conditions::of(&req.headers, "")?;
        let condition = write_condition(if_match, if_none_match)?;
        let replace =
            input.metadata_directive.as_ref().is_some_and(|d| d.as_str() == MetadataDirective::REPLACE);
        let (record, content) = self.source(&input.copy_source, &req.headers).await?;
        if record.size > MAX_PUT_BYTES {
            return Err(s3_error!(InvalidRequest, "the source is too large to be copied in one request"));
        }
        let onto_itself = matches!(&input.copy_source, CopySource::Bucket { bucket, key, .. }
            if **bucket == input.bucket && **key == input.key);
        if onto_itself && !replace {
            return Err(s3_error!(InvalidRequest, "a copy onto itself must replace the metadata"));
        }
        let kept = |(name, _): &(String, String)| !CHECKSUMS.contains(&name.as_str());
        let attributes = match replace {
            true => attributes(&req.headers, input.metadata),
            false => record.attributes.iter().filter(|attribute| kept(attribute)).cloned().collect(),
        };
        let upload = self.copied(content, 0..record.size).await?;
        let record = upload.commit(&input.bucket, &input.key, attributes, condition).await?;
        let result = CopyObjectResult {
            e_tag: Some(etag(&record)),
            last_modified: Some(modified(&record)),
            ..CopyObjectResult::default()
        };
        Ok(S3Response::new(CopyObjectOutput {
            copy_object_result: Some(result),
            ..CopyObjectOutput::default()
        }))
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> OpResult<CreateMultipartUploadOutput> {
        let input = req.input;
        let bucket = input.bucket.clone();
        self.db.run(move |db| db.check_bucket(&bucket)).await?;
        let attributes = attributes(&req.headers, input.metadata);
        let id = self.uploads.start(input.bucket.clone(), input.key.clone(), attributes);
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(id),
            ..CreateMultipartUploadOutput::default()
        }))
    }

    async fn upload_part(&self, req: S3Request<UploadPartInput>) -> OpResult<UploadPartOutput> {
        let input = req.input;
        let place = (input.bucket.as_str(), input.key.as_str());
        self.uploads.with(&input.upload_id, place, |_| ())?;
        let (length, md5) = (input.content_length, input.content_md5);
        let (upload, _) = self.receive(&req.headers, req.trailing_headers, length, md5, input.body).await?;
        let e_tag = self.add_part(&input.upload_id, place, input.part_number, upload).await?;
        Ok(S3Response::new(UploadPartOutput { e_tag: Some(e_tag), ..UploadPartOutput::default() }))
    }

    async fn upload_part_copy(&self, req: S3Request<UploadPartCopyInput>) -> OpResult<UploadPartCopyOutput> {
        let input = req.input;
        let place = (input.bucket.as_str(), input.key.as_str());
        let (record, content) = self.source(&input.copy_source, &req.headers).await?;
        self.uploads.with(&input.upload_id, place, |_| ())?;
        let range = match input.copy_source_range.as_deref() {
            Some(range) => copy_range(range, record.size)
                .ok_or_else(|| s3_error!(InvalidArgument, "the range is not one of the source"))?,
            None => 0..record.size,
        };
        let upload = self.copied(content, range).await?;
        let e_tag = self.add_part(&input.upload_id, place, input.part_number, upload).await?;
        let result = CopyPartResult {
            e_tag: Some(e_tag),
            last_modified: Some(Timestamp::from(Ambient::default().now())),
            ..CopyPartResult::default()
        };
        Ok(S3Response::new(UploadPartCopyOutput {
            copy_part_result: Some(result),
            ..UploadPartCopyOutput::default()
        }))
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> OpResult<CompleteMultipartUploadOutput> {
        let input = req.input;
        let place = (input.bucket.as_str(), input.key.as_str());
        let condition = write_condition(input.if_match, input.if_none_match)?;
        let wanted = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        let found = self.uploads.with(&input.upload_id, place, |upload| {
            let mut parts = Vec::with_capacity(wanted.len());
            let mut last = 0;
            for part in &wanted {
                let number = part.part_number.unwrap_or_default();
                if number <= last {
                    return Err(s3_error!(InvalidPartOrder));
                }
                last = number;
                let stored = upload.parts.get(&number).ok_or_else(|| s3_error!(InvalidPart))?;
                if part.e_tag.as_ref().is_none_or(|tag| tag.value() != stored.stored.etag()) {
                    return Err(s3_error!(InvalidPart));
                }
                parts.push(stored.clone());
            }
            Ok((parts, upload.attributes.clone()))
        });
        let (parts, attributes) = found??;
        let Some((_, all_but_the_last)) = parts.split_last() else {
            return Err(s3_error!(InvalidRequest, "You must specify at least one part"));
        };
        if all_but_the_last.iter().any(|part| part.stored.size < MIN_PART_BYTES) {
            return Err(s3_error!(EntityTooSmall));
        }
        let (uploads, id) = (self.uploads.clone(), input.upload_id);
        let (bucket, key) = (input.bucket.clone(), input.key.clone());
        let completed = self.db.run(move |db| {
            let stored: Vec<_> = parts.iter().map(|part| part.stored.clone()).collect();
            let done = db.put_parts((&bucket, &key), &stored, attributes, condition)?;
            // Remove the upload inside this closure, so that a canceled caller does not leave an upload whose
            // parts are gone.
            drop(uploads.end(&id, (&bucket, &key)));
            // Hold the parts until here, so that their chunks are not deleted concurrently.
            drop(parts);
            Ok(done)
        });
        let record = completed.await.map_err(|error| match error {
            // A concurrent completion took the parts first.
            DbError::Gone => no_such_upload(),
            error => error.into(),
        })?;
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            e_tag: Some(etag(&record)),
            bucket: Some(input.bucket),
            key: Some(input.key),
            ..CompleteMultipartUploadOutput::default()
        }))
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> OpResult<AbortMultipartUploadOutput> {
        let input = req.input;
        self.uploads.end(&input.upload_id, (&input.bucket, &input.key))?;
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }

    async fn list_multipart_uploads(
        &self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> OpResult<ListMultipartUploadsOutput> {
        let input = req.input;
        let bucket = input.bucket.clone();
        self.db.run(move |db| db.check_bucket(&bucket)).await?;
        let found = self.uploads.list(&input.bucket, input.prefix.as_deref().unwrap_or_default());
        let uploads = found.into_iter().map(|(key, id, started)| MultipartUpload {
            key: Some(key),
            upload_id: Some(id),
            initiated: Some(Timestamp::from(started)),
            ..MultipartUpload::default()
        });
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            uploads: Some(uploads.collect()),
            is_truncated: Some(false),
            ..ListMultipartUploadsOutput::default()
        }))
    }

    async fn delete_object(&self, req: S3Request<DeleteObjectInput>) -> OpResult<DeleteObjectOutput> {
        let (bucket, key, condition) = (req.input.bucket, req.input.key, req.input.if_match);
        let deleted = self
            .db
            .run(move |db| {
                db.delete(&bucket, &[key], |_, old| match (old, &condition) {
                    (Some(old), Some(condition)) if !matches_strongly(condition, old) => {
                        Err(Refusal::Precondition)
                    }
                    (None, Some(_)) => Err(Refusal::NoSuchKey),
                    _ => Ok(()),
                })
            })
            .await?;
        deleted.into_iter().collect::<Result<(), _>>().map_err(DbError::Refused)?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn delete_objects(&self, req: S3Request<DeleteObjectsInput>) -> OpResult<DeleteObjectsOutput> {
        let Delete { objects, quiet } = req.input.delete;
        if objects.len() > MAX_KEYS as usize {
            return Err(s3_error!(MalformedXML, "at most 1,000 keys can be deleted at once"));
        }
        let keys: Vec<String> = objects.iter().map(|object| object.key.clone()).collect();
        let (bucket, named) = (req.input.bucket, keys.clone());
        let results = self
            .db
            .run(move |db| {
                db.delete(&bucket, &named, |i, old| match (old, &objects[i].e_tag) {
                    // `*` matches any ETag.
                    (Some(old), Some(tag)) if tag.value() != "*" && tag.as_strong() != Some(&old.etag) => {
                        Err(Refusal::Precondition)
                    }
                    _ => Ok(()),
                })
            })
            .await?;
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for (key, result) in keys.into_iter().zip(results) {
            match result {
                Ok(()) => deleted.push(DeletedObject { key: Some(key), ..DeletedObject::default() }),
                Err(_) => errors.push(Error {
                    key: Some(key),
                    code: Some("PreconditionFailed".to_owned()),
                    ..Error::default()
                }),
            }
        }
        Ok(S3Response::new(DeleteObjectsOutput {
            deleted: (quiet != Some(true)).then_some(deleted),
            errors: Some(errors),
            ..DeleteObjectsOutput::default()
        }))
    }

    async fn list_objects_v2(&self, req: S3Request<ListObjectsV2Input>) -> OpResult<ListObjectsV2Output> {
        Ok(S3Response::new(pages::page(&self.db, req.input).await?))
    }
}

impl From<DbError> for S3Error {
    fn from(error: DbError) -> Self {
        match error {
            DbError::NoSuchBucket(_) => s3_error!(NoSuchBucket, "The specified bucket does not exist"),
            DbError::Refused(Refusal::Precondition) => s3_error!(PreconditionFailed),
            DbError::Refused(Refusal::NoSuchKey) => s3_error!(NoSuchKey),
            DbError::Damaged | DbError::Storage(redb::Error::Corrupted(_)) => {
                let mut damaged = S3Error::new(S3ErrorCode::Custom("StoreDamaged".into()));
                damaged.set_status_code(http::StatusCode::INTERNAL_SERVER_ERROR);
                damaged
            }
            error => {
                tracing::error!("the embedded store failed: {error}");
                S3Error::with_source(S3ErrorCode::InternalError, Box::new(error))
            }
        }
    }
}

/// Streams the content chunk by chunk, reading each off the async runtime.
fn body(db: Arc<Db>, content: StoredContent, range: std::ops::Range<u64>) -> StreamingBlob {
    let content = Arc::new(content);
    let pieces = stream::try_unfold(range, move |mut left| {
        let (db, content) = (db.clone(), content.clone());
        async move {
            if left.is_empty() {
                return Ok(None);
            }
            let wanted = left.clone();
            let piece = db.run(move |_| content.piece(&wanted)).await?;
            left.start += piece.len() as u64;
            Ok::<_, DbError>(Some((piece, left)))
        }
    });
    StreamingBlob::wrap(pieces)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::super::db::CHUNK_BYTES;
    use super::*;

    const BUCKET: &str = "bucket";
    const KEY: &str = "key";

    fn request<T>(input: T) -> S3Request<T> {
        S3Request {
            input,
            method: http::Method::POST,
            uri: http::Uri::default(),
            headers: HeaderMap::new(),
            extensions: http::Extensions::new(),
            credentials: None,
            region: None,
            service: None,
            trailing_headers: None,
        }
    }

    fn store() -> (Arc<Db>, Arc<Service>) {
        let db = Arc::new(Db::in_memory().unwrap());
        db.create_bucket(BUCKET).unwrap();
        (db.clone(), Arc::new(Service::new(db)))
    }

    /// Waits until only the test, the service and this many parts hold the store.
    async fn settled(db: &Arc<Db>, parts: usize) {
        while Arc::strong_count(db) > 2 + parts {
            tokio::task::yield_now().await;
        }
    }

    async fn start(service: &Service) -> String {
        let input = CreateMultipartUploadInput::builder().bucket(BUCKET.into()).key(KEY.into());
        let started = service.create_multipart_upload(request(input.build().unwrap())).await.unwrap();
        started.output.upload_id.unwrap()
    }

    /// Uploads a part and returns its entry for the completion.
    async fn upload(service: &Service, id: &str, number: i32, size: usize) -> CompletedPart {
        let body = StreamingBlob::from(s3s::Body::from(Bytes::from(vec![7; size])));
        let input = UploadPartInput::builder().bucket(BUCKET.into()).key(KEY.into()).upload_id(id.into());
        let input = input.part_number(number).body(Some(body)).build().unwrap();
        let e_tag = service.upload_part(request(input)).await.unwrap().output.e_tag;
        CompletedPart { part_number: Some(number), e_tag, ..CompletedPart::default() }
    }

    async fn complete(
        service: &Service,
        id: &str,
        parts: &[CompletedPart],
        if_none_match: Option<ETagCondition>,
    ) -> S3Result<()> {
        let input = CompleteMultipartUploadInput::builder().bucket(BUCKET.into()).key(KEY.into());
        let parts = CompletedMultipartUpload { parts: Some(parts.to_vec()) };
        let input = input.upload_id(id.into()).multipart_upload(Some(parts)).if_none_match(if_none_match);
        service.complete_multipart_upload(request(input.build().unwrap())).await.map(|_| ())
    }

    async fn abort(service: &Service, id: &str) -> S3Result<()> {
        let input = AbortMultipartUploadInput::builder().bucket(BUCKET.into()).key(KEY.into());
        let input = input.upload_id(id.into()).build().unwrap();
        service.abort_multipart_upload(request(input)).await.map(|_| ())
    }

    fn code(result: S3Result<()>) -> S3ErrorCode {
        result.unwrap_err().code().clone()
    }

    #[tokio::test]
    async fn an_aborted_upload_leaves_no_chunks() {
        let (db, service) = store();
        let id = start(&service).await;
        upload(&service, &id, 1, 17 * CHUNK_BYTES).await;
        upload(&service, &id, 2, 1).await;
        assert_eq!(db.chunks(), 18);
        abort(&service, &id).await.unwrap();
        settled(&db, 0).await;
        assert_eq!(db.chunks(), 0);
    }

    #[tokio::test]
    async fn a_replaced_or_unused_part_leaves_no_chunks() {
        let (db, service) = store();
        let id = start(&service).await;
        upload(&service, &id, 1, 3 * CHUNK_BYTES).await;
        let part = upload(&service, &id, 1, 2 * CHUNK_BYTES).await;
        settled(&db, 1).await;
        assert_eq!(db.chunks(), 2);
        upload(&service, &id, 2, 1).await;
        complete(&service, &id, &[part], None).await.unwrap();
        settled(&db, 0).await;
        assert_eq!(db.chunks(), 2);
    }

    #[tokio::test]
    async fn a_part_after_the_completion_leaves_no_chunks() {
        let (db, service) = store();
        let id = start(&service).await;
        let mut late = IncomingContent::new(db.clone());
        late.push(vec![7; CHUNK_BYTES].into()).await.unwrap();
        abort(&service, &id).await.unwrap();
        let added = service.add_part(&id, (BUCKET, KEY), 1, late.seal()).await;
        assert_eq!(code(added.map(|_| ())), S3ErrorCode::NoSuchUpload);
        settled(&db, 0).await;
        assert_eq!(db.chunks(), 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_upload_can_be_completed_only_once() {
        let (db, service) = store();
        for _ in 0..20 {
            let id = start(&service).await;
            let parts = [upload(&service, &id, 1, 1).await];
            let completions = [0; 4].map(|_| {
                let (service, id, parts) = (service.clone(), id.clone(), parts.clone());
                tokio::spawn(async move { complete(&service, &id, &parts, None).await })
            });
            let mut done = 0;
            for completion in completions {
                match completion.await.unwrap() {
                    Ok(()) => done += 1,
                    Err(error) => assert_eq!(*error.code(), S3ErrorCode::NoSuchUpload),
                }
            }
            assert_eq!(done, 1);
            assert_eq!(code(complete(&service, &id, &parts, None).await), S3ErrorCode::NoSuchUpload);
        }
        settled(&db, 0).await;
        assert_eq!(db.chunks(), 1);
    }

    #[tokio::test]
    async fn a_deleted_multipart_object_leaves_no_chunks() {
        let (db, service) = store();
        for overwrite in [true, false] {
            for last in [1, CHUNK_BYTES + 1] {
                let id = start(&service).await;
                let first = upload(&service, &id, 1, 20 * CHUNK_BYTES).await;
                let last = upload(&service, &id, 2, last).await;
                complete(&service, &id, &[first, last], None).await.unwrap();
            }
            settled(&db, 0).await;
            assert_eq!((db.chunks(), db.segments()), (22, 1));
            if overwrite {
                db.put_all(BUCKET, &[(KEY.into(), Bytes::from_static(b"small"))], true).unwrap();
                assert_eq!((db.chunks(), db.segments()), (1, 0));
            } else {
                db.delete(BUCKET, &[KEY.into()], |_, _| Ok(())).unwrap();
                assert_eq!((db.chunks(), db.segments()), (0, 0));
            }
        }
    }

    #[tokio::test]
    async fn a_refused_completion_leaves_the_upload_open() {
        let (db, service) = store();
        db.put_all(BUCKET, &[(KEY.into(), Bytes::from_static(b"old"))], true).unwrap();
        for aborted in [true, false] {
            let id = start(&service).await;
            let parts = [upload(&service, &id, 1, CHUNK_BYTES + 1).await];
            let refused = complete(&service, &id, &parts, Some(ETagCondition::Any)).await;
            assert_eq!(code(refused), S3ErrorCode::PreconditionFailed);
            settled(&db, 1).await;
            assert_eq!(db.chunks(), 3);
            assert_eq!(db.snapshot(BUCKET, KEY).unwrap().unwrap().0.size, 3);
            match aborted {
                true => abort(&service, &id).await.unwrap(),
                false => complete(&service, &id, &parts, None).await.unwrap(),
            }
            settled(&db, 0).await;
            assert_eq!(db.chunks(), if aborted { 1 } else { 2 });
        }
    }

    /// Regression test: a canceled completion could leave an upload that could never be completed.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_canceled_completion_is_atomic() {
        let (db, service) = store();
        let mut went_through = 0;
        for round in 0..100u64 {
            db.put_all(BUCKET, &[(KEY.into(), Bytes::from_static(b"old"))], true).unwrap();
            let id = start(&service).await;
            let parts = [upload(&service, &id, 1, CHUNK_BYTES + 1).await];
            let completion = {
                let (service, id, parts) = (service.clone(), id.clone(), parts.clone());
                tokio::spawn(async move { complete(&service, &id, &parts, None).await })
            };
            tokio::time::sleep(Duration::from_micros(round % 50 * 10)).await;
            completion.abort();
            let _ = completion.await;
            // The transaction finishes on its own; it holds one more clone than the open part.
            settled(&db, 1).await;
            let (record, content) = db.snapshot(BUCKET, KEY).unwrap().unwrap();
            let mut left = 0..record.size;
            while !left.is_empty() {
                left.start += content.piece(&left).expect("a chunk is missing").len() as u64;
            }
            drop(content);
            let whole = record.size == CHUNK_BYTES as u64 + 1;
            assert!(whole || record.size == 3);
            let open = service.uploads.with(&id, (BUCKET, KEY), |_| ()).is_ok();
            assert_ne!(whole, open, "an upload is open or an object, and never both");
            if open {
                complete(&service, &id, &parts, None).await.unwrap();
            }
            settled(&db, 0).await;
            assert_eq!(db.chunks(), 2);
            went_through += u32::from(whole);
        }
        assert!(went_through > 0);
    }
}
