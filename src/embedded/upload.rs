//! Content on its way into the store.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use s3s::crypto::{Checksum as _, Md5};

use super::db::{Attributes, CHUNK_BYTES, Db, DbError, NO_CHUNKS, Record, Refusal};

/// Content up to this size is kept in memory until its one transaction.
const SPOOL_BYTES: usize = 16 * CHUNK_BYTES;

/// Content that is still coming in. Dropped before its end, it leaves nothing behind.
pub(super) struct Upload {
    db: Arc<Db>,
    md5: Md5,
    size: u64,
    buffer: BytesMut,
    /// Set once chunks were written ahead of the object.
    owner: Option<u64>,
    chunks_ahead: u64,
}

impl Upload {
    pub(super) fn new(db: Arc<Db>) -> Self {
        Self { db, md5: Md5::new(), size: 0, buffer: BytesMut::new(), owner: None, chunks_ahead: 0 }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Takes the next bytes; what is too much for memory goes to the file.
    pub(super) async fn push(&mut self, piece: Bytes) -> Result<(), DbError> {
        self.md5.update(&piece);
        self.size += piece.len() as u64;
        self.buffer.extend_from_slice(&piece);
        while self.buffer.len() >= SPOOL_BYTES {
            let ahead = self.buffer.split_to(SPOOL_BYTES).freeze();
            let owner = *self.owner.get_or_insert_with(|| self.db.new_owner());
            let first = self.chunks_ahead;
            self.chunks_ahead += (SPOOL_BYTES / CHUNK_BYTES) as u64;
            self.db.run(move |db| db.write_ahead(owner, first, &ahead)).await?;
        }
        Ok(())
    }

    /// The end of the content.
    pub(super) fn seal(mut self) -> Sealed {
        let md5 = std::mem::replace(&mut self.md5, Md5::new()).finalize();
        Sealed { upload: self, md5 }
    }
}

/// Content that has come in whole, and waits to be an object.
pub(super) struct Sealed {
    upload: Upload,
    pub(super) md5: [u8; 16],
}

impl Sealed {
    /// Makes the object appear, whole and durable, if `condition` holds for what is there now.
    pub(super) async fn commit(
        self,
        bucket: &str,
        key: &str,
        attributes: Attributes,
        condition: impl FnOnce(Option<&Record>) -> Result<(), Refusal> + Send + 'static,
    ) -> Result<Record, DbError> {
        let Self { mut upload, md5 } = self;
        let rest = upload.buffer.split().freeze();
        let owner = match upload.owner {
            Some(owner) => owner,
            None if rest.is_empty() => NO_CHUNKS,
            None => upload.db.new_owner(),
        };
        let record = Record::new(owner, upload.size, md5, attributes);
        let (bucket, key, first) = (bucket.to_owned(), key.to_owned(), upload.chunks_ahead);
        // Should the caller go away now, the transaction still comes to its end, and what was
        // written ahead is then the object's or is abandoned: never both.
        upload
            .db
            .run(move |db| {
                db.put((&bucket, &key), &record, (first, &rest), condition)?;
                Ok(record)
            })
            .await
    }
}

impl Drop for Upload {
    /// Takes back what was written ahead. Once the object is there, nothing is.
    fn drop(&mut self) {
        let Some(owner) = self.owner else { return };
        let db = self.db.clone();
        let abandon = move || {
            if let Err(error) = db.abandon(owner) {
                tracing::warn!("an abandoned upload is left to the next start: {error}");
            }
        };
        // Without a runtime the process is about to end; the next start cleans up.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(abandon);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn settled(db: &Arc<Db>) {
        while Arc::strong_count(db) > 1 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn an_abandoned_upload_leaves_nothing_behind() {
        let db = Arc::new(Db::in_memory().unwrap());
        db.create_bucket("bucket").unwrap();
        let mut upload = Upload::new(db.clone());
        upload.push(vec![7; SPOOL_BYTES + 1].into()).await.unwrap();
        assert_eq!(db.chunks(), 16);
        drop(upload);
        settled(&db).await;
        assert_eq!(db.chunks(), 0);
    }

    #[tokio::test]
    async fn a_refused_upload_leaves_nothing_behind_and_a_finished_one_stays() {
        let db = Arc::new(Db::in_memory().unwrap());
        db.create_bucket("bucket").unwrap();
        for (refuse, chunks) in [(true, 0), (false, 17)] {
            let mut upload = Upload::new(db.clone());
            upload.push(vec![7; SPOOL_BYTES + 1].into()).await.unwrap();
            let condition =
                move |_: Option<&Record>| if refuse { Err(Refusal::Precondition) } else { Ok(()) };
            let done = upload.seal().commit("bucket", "key", Attributes::new(), condition).await;
            assert_eq!(done.is_err(), refuse);
            settled(&db).await;
            assert_eq!(db.chunks(), chunks);
        }
    }
}
