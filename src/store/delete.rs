//! DeleteObject and DeleteObjects: of one version of an object, or unconditionally.

use std::sync::atomic::Ordering;

use aws_sdk_s3::Client;
use aws_sdk_s3::types::{Delete, ObjectIdentifier};
use tracing::instrument;

use super::bucket::Store;
use super::clients::Clients;
use super::failure::{Failure, Outcome};
use super::object::{Meta, etag_header};
use super::send::Sending;
use super::write::Sent;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::WritableKey;

impl Store {
    /// Deletes an object if it still has this version. A missing object counts as deleted.
    ///
    /// Returns `false` if the object has another version; it is not deleted then.
    #[instrument(level = "debug", skip_all, fields(key = key.as_str()))]
    pub(crate) async fn delete_version(&self, key: &WritableKey, version: &Meta) -> Result<bool> {
        let _changing = self.changing([key]);
        let etag = version.etag.as_deref().unwrap_or_default();
        let mut attempts = self.attempts(&[key.as_str()]);
        let mut lost = false;
        loop {
            // Read once per attempt: another task may concurrently find out that the server does not support
            // conditional deletions.
            let (conditional, relied_upon) = self.capabilities.deletes();
            // If the server may ignore the condition, check the object first. A race remains only between the two
            // requests.
            if !relied_upon || lost {
                match self.look(key.key()).await {
                    Ok(None) => return Ok(true),
                    // The same ETag with a later modification time is a different write of the same content.
                    Ok(Some(seen))
                        if seen.meta.etag == version.etag
                            && (!lost || seen.meta.modified == version.modified) => {}
                    // The object may have been deleted by us and then created again by another writer.
                    Ok(Some(_)) if lost => {
                        let changed = Error::new(ErrorKind::Conflict, "it was changed in the meantime");
                        return Err(Error::uncertain(changed));
                    }
                    Ok(Some(_)) => return Ok(false),
                    Err(error) if lost => return Err(Error::uncertain(error)),
                    Err(error) => return Err(error),
                }
            }
            let delete = |writer: &Client| {
                writer
                    .delete_object()
                    .bucket(&*self.name)
                    .key(key.as_str())
                    .set_if_match(conditional.then(|| etag_header(etag)))
                    .send()
            };
            let failure = match attempts.send_once(self.limits.attempt, delete).await {
                Sent::Done(_) => return Ok(true),
                Sent::Renewed => continue,
                Sent::Failed(failure) => failure,
            };
            if conditional && failure.is_not_implemented() {
                self.capabilities.disable_conditional_deletes();
                continue;
            }
            let exhausted = attempts.count_failure();
            match failure.outcome() {
                // A 409 means that another request is in progress; it says nothing about the version.
                Outcome::Condition | Outcome::Gone
                    if !lost && (exhausted || failure.status() != Some(409)) =>
                {
                    // A missing object counts as deleted.
                    return Ok(failure.status() == Some(404));
                }
                Outcome::Refused if !lost && self.is_missing(key.key(), &failure).await? => {
                    return Ok(true);
                }
                Outcome::Refused if !lost => return Err(self.fail(failure)),
                Outcome::NotDone if exhausted && !lost => return Err(self.fail(failure)),
                Outcome::Refused => return Err(Error::uncertain(self.fail(failure))),
                _ if exhausted => return Err(Error::uncertain(self.fail(failure))),
                Outcome::Condition | Outcome::Gone | Outcome::NotDone => {}
                Outcome::Lost => {
                    self.unanswered_writes.fetch_add(1, Ordering::Relaxed);
                    lost = true;
                }
            }
            attempts.pause().await;
        }
    }

    /// Deletes up to 1,000 keys unconditionally, in one request. Returns the number of keys that could not be deleted
    /// and the first error.
    #[instrument(level = "debug", skip_all, fields(keys = keys.len()))]
    pub(crate) async fn delete_all(&self, keys: &[WritableKey]) -> Result<Option<(u64, Error)>> {
        let _changing = self.changing(keys);
        let object = |key: &WritableKey| ObjectIdentifier::builder().key(key.as_str()).build();
        let objects: Vec<_> = keys.iter().filter_map(|key| object(key).ok()).collect();
        let internal = |e| Error::new(ErrorKind::Internal, "the request could not be built").with_source(e);
        let delete = Delete::builder().set_objects(Some(objects)).quiet(true).build().map_err(internal)?;
        let send = |clients: &Clients| -> Sending<_, _> {
            Box::pin(clients.client.delete_objects().bucket(&*clients.bucket).delete(delete.clone()).send())
        };
        let all: Vec<&str> = keys.iter().map(WritableKey::as_str).collect();
        let done = self.unhedged(&all, send).await.map_err(|error| self.fail(error))?;
        let errors = done.errors.unwrap_or_default();
        Ok(errors.first().map(|first| {
            let failure =
                Failure::from_code(first.code().unwrap_or_default(), first.message().unwrap_or_default());
            (errors.len() as u64, self.fail(failure))
        }))
    }

    /// Deletes one key unconditionally, with a DeleteObject (the key is in the URL, not in an XML body).
    pub(crate) async fn delete(&self, key: &WritableKey) -> Result<()> {
        let _changing = self.changing([key]);
        let send = |clients: &Clients| -> Sending<_, _> {
            Box::pin(clients.client.delete_object().bucket(&*clients.bucket).key(key.as_str()).send())
        };
        self.unhedged(&[key.as_str()], send).await.map_err(|error| self.fail(error))?;
        Ok(())
    }
}
