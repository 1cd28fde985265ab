//! Content that is being uploaded.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use s3s::crypto::{Checksum as _, Md5};

use super::db::{Attributes, CHUNK_BYTES, Db, DbError, NO_CHUNKS, Record, Refusal, StoredPart};

/// Content up to this size is buffered in memory until its single transaction.
const SPOOL_BYTES: usize = 16 * CHUNK_BYTES;

/// Content that is still being received. Dropping it deletes everything that was written.
pub(super) struct IncomingContent {
    db: Arc<Db>,
    md5: Md5,
    size: u64,
    buffer: BytesMut,
    /// Set once chunks have been written ahead of the object.
    ahead: Option<Arc<Ahead>>,
    chunks_ahead: u64,
}

/// Chunks that were written ahead. Every transaction that touches them holds a clone, so that they are
/// deleted only after the last transaction, even if a caller is canceled.
struct Ahead {
    db: Arc<Db>,
    owner: u64,
}

impl Drop for Ahead {
    /// Deletes the chunks, unless an object owns them by now.
    fn drop(&mut self) {
        let (db, owner) = (self.db.clone(), self.owner);
        let abandon = move || {
            if let Err(error) = db.abandon(owner) {
                tracing::warn!("an abandoned upload is left for the next start: {error}");
            }
        };
        // Without a runtime, the process is about to exit; the next start cleans up.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(abandon);
        }
    }
}

impl IncomingContent {
    pub(super) fn new(db: Arc<Db>) -> Self {
        Self { db, md5: Md5::new(), size: 0, buffer: BytesMut::new(), ahead: None, chunks_ahead: 0 }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Adds the next bytes. Writes chunks to the file if the buffer is full.
    pub(super) async fn push(&mut self, piece: Bytes) -> Result<(), DbError> {
        self.md5.update(&piece);
        self.size += piece.len() as u64;
        self.buffer.extend_from_slice(&piece);
        while self.buffer.len() >= SPOOL_BYTES {
            let bytes = self.buffer.split_to(SPOOL_BYTES).freeze();
            let db = self.db.clone();
            let new = || Arc::new(Ahead { owner: db.new_owner(), db });
            let ahead = self.ahead.get_or_insert_with(new).clone();
            let first = self.chunks_ahead;
            self.chunks_ahead += (SPOOL_BYTES / CHUNK_BYTES) as u64;
            self.db.run(move |db| db.write_ahead(ahead.owner, first, &bytes)).await?;
        }
        Ok(())
    }

    /// Ends the content.
    pub(super) fn seal(mut self) -> Sealed {
        let md5 = std::mem::replace(&mut self.md5, Md5::new()).finalize();
        Sealed { upload: self, md5 }
    }
}

/// A stored part of an object that does not exist yet. Its chunks are deleted with its last clone, unless an
/// object has taken them over.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) stored: StoredPart,
    _ahead: Arc<Ahead>,
}

/// Completely received content that is not an object yet.
pub(super) struct Sealed {
    upload: IncomingContent,
    pub(super) md5: [u8; 16],
}

impl Sealed {
    /// Writes all remaining chunks ahead. They stay for as long as the returned part is alive.
    pub(super) async fn into_part(self) -> Result<Part, DbError> {
        let Self { mut upload, md5 } = self;
        let db = upload.db.clone();
        let ahead = upload.ahead.take().unwrap_or_else(|| Arc::new(Ahead { owner: db.new_owner(), db }));
        let (rest, first, held) = (upload.buffer.split().freeze(), upload.chunks_ahead, ahead.clone());
        upload.db.run(move |db| db.write_ahead(held.owner, first, &rest)).await?;
        Ok(Part { stored: StoredPart { owner: ahead.owner, size: upload.size, md5 }, _ahead: ahead })
    }

    /// Creates the object, atomically and durably, if `condition` accepts the existing record.
    ///
    /// If the caller is canceled, the object is still created completely or not at all.
    pub(super) async fn commit(
        self,
        bucket: &str,
        key: &str,
        attributes: Attributes,
        condition: impl FnOnce(Option<&Record>) -> Result<(), Refusal> + Send + 'static,
    ) -> Result<Record, DbError> {
        let Self { mut upload, md5 } = self;
        let rest = upload.buffer.split().freeze();
        let owner = match &upload.ahead {
            Some(ahead) => ahead.owner,
            None if rest.is_empty() => NO_CHUNKS,
            None => upload.db.new_owner(),
        };
        let record = Record::new(owner, upload.size, md5, attributes, upload.db.now());
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let db = upload.db.clone();
        db.run(move |db| {
            // The closure owns the upload, so that its chunks are not deleted before the transaction is done.
            db.put((&bucket, &key), &record, (upload.chunks_ahead, &rest), condition)?;
            drop(upload);
            Ok(record)
        })
        .await
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
        let mut upload = IncomingContent::new(db.clone());
        upload.push(vec![7; SPOOL_BYTES + 1].into()).await.unwrap();
        assert_eq!(db.chunks(), 16);
        drop(upload);
        settled(&db).await;
        assert_eq!(db.chunks(), 0);
    }

    #[test]
    fn open_parts_are_deleted_at_the_next_start() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("db");
        let db = Arc::new(Db::open(&file).unwrap());
        db.create_bucket("bucket").unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let part = runtime.block_on(async {
            let mut upload = IncomingContent::new(db.clone());
            upload.push(vec![7; SPOOL_BYTES + 1].into()).await.unwrap();
            upload.seal().into_part().await.unwrap()
        });
        drop(runtime);
        // A later write makes the chunks durable. Without a runtime, nothing is deleted.
        db.put_all("bucket", &[("key".into(), Bytes::from_static(b"x"))], true).unwrap();
        drop(part);
        assert_eq!(db.chunks(), 18);
        drop(db);
        let db = Db::open(&file).unwrap();
        assert_eq!(db.chunks(), 1);
        assert_eq!(db.snapshot("bucket", "key").unwrap().unwrap().0.size, 1);
    }

    /// Regression test: a canceled commit could leave a record without its chunks.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_cancelled_commit_leaves_the_object_whole_or_as_it_was() {
        let db = Arc::new(Db::in_memory().unwrap());
        db.create_bucket("bucket").unwrap();
        db.put_all("bucket", &[("key".into(), Bytes::from_static(b"old"))], true).unwrap();
        for round in 0..60u64 {
            let mut upload = IncomingContent::new(db.clone());
            upload.push(vec![7; SPOOL_BYTES + 1].into()).await.unwrap();
            let commit = tokio::spawn(async move {
                upload.seal().commit("bucket", "key", Attributes::new(), |_| Ok(())).await
            });
            tokio::time::sleep(std::time::Duration::from_micros(round * 20)).await;
            commit.abort();
            let _ = commit.await;
            settled(&db).await;
            let (record, content) = db.snapshot("bucket", "key").unwrap().unwrap();
            let mut left = 0..record.size;
            while !left.is_empty() {
                left.start += content.piece(&left).expect("a chunk is missing").len() as u64;
            }
            assert!(record.size == 3 || record.size == SPOOL_BYTES as u64 + 1);
            assert_eq!(db.chunks(), record.size.div_ceil(CHUNK_BYTES as u64));
        }
    }

    #[tokio::test]
    async fn a_refused_upload_leaves_nothing_behind_and_a_finished_one_stays() {
        let db = Arc::new(Db::in_memory().unwrap());
        db.create_bucket("bucket").unwrap();
        for (refuse, chunks) in [(true, 0), (false, 17)] {
            let mut upload = IncomingContent::new(db.clone());
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
