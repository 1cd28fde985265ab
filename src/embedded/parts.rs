//! Multipart uploads in progress. They are kept in memory and end with the process; their chunks are deleted
//! at the next start.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use s3s::{S3Error, S3Result, s3_error};

use super::db::Attributes;
use super::upload::Part;
use crate::ambient::Ambient;

/// A multipart upload.
pub(super) struct MultipartUpload {
    pub(super) bucket: String,
    pub(super) key: String,
    pub(super) attributes: Attributes,
    pub(super) started: SystemTime,
    pub(super) parts: BTreeMap<i32, Part>,
}

pub(super) fn no_such_upload() -> S3Error {
    s3_error!(NoSuchUpload, "The upload does not exist; it may have been aborted or completed")
}

/// All multipart uploads, by ID.
#[derive(Default)]
pub(super) struct Uploads {
    uploads: Mutex<HashMap<String, MultipartUpload>>,
    last: std::sync::atomic::AtomicU64,
}

impl Uploads {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, MultipartUpload>> {
        // A panic cannot leave the map inconsistent, because every change is a single call.
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn start(&self, bucket: String, key: String, attributes: Attributes) -> String {
        let number = self.last.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let started = Ambient::default().now();
        let since = started.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        // The start time makes IDs unique across processes.
        let id = format!("{since:x}-{number:x}");
        let upload = MultipartUpload { bucket, key, attributes, started, parts: BTreeMap::new() };
        self.lock().insert(id.clone(), upload);
        id
    }

    /// Calls a function with an upload, if its key matches.
    pub(super) fn with<T>(
        &self,
        id: &str,
        (bucket, key): (&str, &str),
        look: impl FnOnce(&mut MultipartUpload) -> T,
    ) -> S3Result<T> {
        let mut uploads = self.lock();
        let upload = uploads.get_mut(id).filter(|upload| upload.bucket == bucket && upload.key == key);
        upload.map(look).ok_or_else(no_such_upload)
    }

    /// Removes an upload. Dropping the returned value may delete its parts.
    pub(super) fn end(&self, id: &str, place: (&str, &str)) -> S3Result<MultipartUpload> {
        self.with(id, place, |_| ())?;
        self.lock().remove(id).ok_or_else(no_such_upload)
    }

    /// The ID, key and start time of each upload in a bucket, sorted by key.
    pub(super) fn list(&self, bucket: &str, prefix: &str) -> Vec<(String, String, SystemTime)> {
        let uploads = self.lock();
        let mut found: Vec<_> = uploads
            .iter()
            .filter(|(_, upload)| upload.bucket == bucket && upload.key.starts_with(prefix))
            .map(|(id, upload)| (upload.key.clone(), id.clone(), upload.started))
            .collect();
        found.sort();
        found
    }
}
