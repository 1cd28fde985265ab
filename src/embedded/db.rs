//! Objects in a `redb` file. Writes are serialized, and each is acknowledged only after it is durable.
//!
//! All functions block; [`Db::run`] runs them off the async runtime.

mod listing;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use redb::backends::InMemoryBackend;
use redb::{
    Database, DatabaseError, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable, StorageError, Table,
    TableDefinition, WriteTransaction,
};
use s3s::crypto::{Checksum as _, Md5};

pub(super) use self::listing::{ListItem, ListQuery, successor_of_key};
use crate::ambient::{Ambient, unix_seconds};

/// Content is split into chunks of this size, so that no reader or writer has an entire object in memory.
pub(super) const CHUNK_BYTES: usize = 256 * 1024;
/// The owner of an empty object, which has no chunks.
pub(super) const NO_CHUNKS: u64 = 0;

/// Owner of the chunks, size, modification time in Unix seconds, ETag, and attributes as name and value.
type Row<'a> = (u64, u64, u64, &'a str, Vec<(&'a str, &'a str)>);

const BUCKETS: TableDefinition<'_, &str, u64> = TableDefinition::new("buckets");
/// The key is `bucket NUL key`; bucket names cannot contain a NUL.
const OBJECTS: TableDefinition<'_, &[u8], Row<'_>> = TableDefinition::new("objects");
const CHUNKS: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("chunks");
/// Owners of chunks whose object does not exist yet. Those that a killed process left are deleted at the next
/// start.
const PENDING: TableDefinition<'_, u64, ()> = TableDefinition::new("pending");
/// For an object that was uploaded in parts: the owner and size of each part's chunks, in order.
const SEGMENTS: TableDefinition<'_, u64, Vec<(u64, u64)>> = TableDefinition::new("segments");

/// Headers that are stored with an object, as name and value.
pub(super) type Attributes = Vec<(String, String)>;

/// Why a file could not be opened.
#[derive(Debug)]
pub(super) enum OpenError {
    InUse,
    Damaged,
    NoStore(redb::Error),
    Io(redb::Error),
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DbError {
    #[error("there is no bucket `{0}`")]
    NoSuchBucket(String),
    #[error("the condition does not hold")]
    Refused(Refusal),
    #[error(transparent)]
    Storage(#[from] redb::Error),
    #[error("the upload was abandoned")]
    Gone,
    /// `redb` panics on some kinds of damage.
    #[error("the file is damaged")]
    Damaged,
}

/// A failed precondition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// 412.
    Precondition,
    /// 404: `If-Match` on a key that does not exist.
    NoSuchKey,
}

macro_rules! storage_errors {
    ($($error:ty),+) => {
        $(impl From<$error> for DbError {
            fn from(error: $error) -> Self {
                Self::Storage(error.into())
            }
        })+
    };
}
storage_errors!(redb::TransactionError, redb::TableError, StorageError, redb::CommitError);

/// The metadata of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    owner: u64,
    pub(super) size: u64,
    pub(super) modified: u64,
    pub(super) etag: String,
    pub(super) attributes: Attributes,
}

impl Record {
    /// Creates a record. The ETag is the MD5 of the content, as on S3.
    pub(super) fn new(owner: u64, size: u64, md5: [u8; 16], attributes: Attributes, modified: u64) -> Self {
        Self { owner, size, modified, etag: hex::encode(md5), attributes }
    }

    /// Creates the record of a multipart object. The ETag is the MD5 of the parts' MD5s, followed by their
    /// number.
    fn of_parts(owner: u64, parts: &[StoredPart], attributes: Attributes, modified: u64) -> Self {
        let mut md5 = Md5::new();
        for part in parts {
            md5.update(&part.md5);
        }
        let etag = format!("{}-{}", hex::encode(md5.finalize()), parts.len());
        Self { owner, size: parts.iter().map(|part| part.size).sum(), modified, etag, attributes }
    }

    fn from_row((owner, size, modified, etag, attributes): Row<'_>) -> Self {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Self {
            owner,
            size,
            modified,
            etag: etag.to_owned(),
            attributes: attributes.into_iter().map(owned).collect(),
        }
    }

    fn row(&self) -> Row<'_> {
        let attributes =
            self.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        (self.owner, self.size, self.modified, &self.etag, attributes)
    }
}

/// A stored part of an object that does not exist yet.
#[derive(Debug, Clone)]
pub(super) struct StoredPart {
    pub(super) owner: u64,
    pub(super) size: u64,
    pub(super) md5: [u8; 16],
}

impl StoredPart {
    pub(super) fn etag(&self) -> String {
        hex::encode(self.md5)
    }
}

pub(super) struct Db {
    database: Database,
    next_owner: AtomicU64,
    /// How many seconds the store's clock is ahead of the system clock.
    ahead: AtomicU64,
}

impl Db {
    pub(super) fn in_memory() -> Result<Self, OpenError> {
        Self::from(Database::builder().create_with_backend(InMemoryBackend::new()))
    }

    pub(super) fn open(file: &Path) -> Result<Self, OpenError> {
        Self::from(Database::create(file))
    }

    fn from(opened: Result<Database, DatabaseError>) -> Result<Self, OpenError> {
        let database = match opened {
            Ok(database) => database,
            Err(DatabaseError::DatabaseAlreadyOpen) => return Err(OpenError::InUse),
            Err(DatabaseError::Storage(StorageError::Io(error)))
                if error.kind() != std::io::ErrorKind::InvalidData
                    && error.kind() != std::io::ErrorKind::UnexpectedEof =>
            {
                return Err(OpenError::Io(StorageError::Io(error).into()));
            }
            Err(error) => return Err(OpenError::NoStore(error.into())),
        };
        let mut db = Self { database, next_owner: AtomicU64::new(NO_CHUNKS + 1), ahead: AtomicU64::new(0) };
        match db.clean_up() {
            Ok(last) => {
                db.next_owner = AtomicU64::new(last + 1);
                Ok(db)
            }
            Err(DbError::Storage(error)) => Err(OpenError::Io(error)),
            Err(error) => Err(OpenError::Io(StorageError::Corrupted(error.to_string()).into())),
        }
    }

    /// Deletes what a killed process did not finish, and returns the highest owner in use.
    fn clean_up(&self) -> Result<u64, DbError> {
        self.write(|tables| {
            loop {
                let unfinished = tables.pending.pop_first()?.map(|(owner, _)| owner.value());
                let Some(owner) = unfinished else { break };
                tables.remove(owner)?;
            }
            let last_chunk = tables.chunks.last()?.map(|(at, _)| at.value().0);
            let last_segments = tables.segments.last()?.map(|(owner, _)| owner.value());
            Ok(last_chunk.max(last_segments).unwrap_or(NO_CHUNKS))
        })
    }

    /// Applies a change in one durable transaction. If the change fails, nothing is modified.
    fn write<T>(&self, change: impl FnOnce(&mut Tables<'_>) -> Result<T, DbError>) -> Result<T, DbError> {
        let write = self.database.begin_write()?;
        let done = change(&mut Tables::open(&write)?)?;
        write.commit()?;
        Ok(done)
    }

    /// The current time of the store's clock, in whole seconds, as on S3.
    pub(super) fn now(&self) -> u64 {
        let machine = unix_seconds(Ambient::default().now());
        machine + self.ahead.load(Ordering::Relaxed)
    }

    /// Advances the clock.
    pub(super) fn advance(&self, seconds: u64) {
        self.ahead.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Runs a blocking function off the async runtime.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, DbError> + Send + 'static,
    ) -> Result<T, DbError> {
        let db = self.clone();
        tokio::task::spawn_blocking(move || work(&db)).await.map_err(|_| DbError::Damaged)?
    }

    pub(super) fn create_bucket(&self, bucket: &str) -> Result<(), DbError> {
        match self.check_bucket(bucket) {
            Err(DbError::NoSuchBucket(_)) => {}
            known => return known,
        }
        self.write(|tables| {
            tables.buckets.insert(bucket, self.now())?;
            Ok(())
        })
    }

    pub(super) fn check_bucket(&self, bucket: &str) -> Result<(), DbError> {
        match self.database.begin_read()?.open_table(BUCKETS)?.get(bucket)? {
            Some(_) => Ok(()),
            None => Err(DbError::NoSuchBucket(bucket.to_owned())),
        }
    }

    /// Returns a consistent snapshot of an object: later writes do not affect it.
    pub(super) fn snapshot(
        &self,
        bucket: &str,
        key: &str,
    ) -> Result<Option<(Record, StoredContent)>, DbError> {
        let read = self.database.begin_read()?;
        let Some(row) = read.open_table(OBJECTS)?.get(object_key(bucket, key).as_slice())? else {
            return self.check_bucket(bucket).map(|()| None);
        };
        let record = Record::from_row(row.value());
        let segments = match read.open_table(SEGMENTS)?.get(record.owner)? {
            Some(segments) => segments.value(),
            None => vec![(record.owner, record.size)],
        };
        Ok(Some((record, StoredContent { segments, chunks: read.open_table(CHUNKS)? })))
    }

    /// Writes many small objects in one transaction.
    pub(super) fn put_all(
        &self,
        bucket: &str,
        objects: &[(String, Bytes)],
        overwrite: bool,
    ) -> Result<(), DbError> {
        self.check_bucket(bucket)?;
        self.write(|tables| {
            for (key, content) in objects {
                let full = object_key(bucket, key);
                if !overwrite && tables.objects.get(full.as_slice())?.is_some() {
                    continue;
                }
                let owner = if content.is_empty() { NO_CHUNKS } else { self.new_owner() };
                let (size, md5) = (content.len() as u64, Md5::checksum(content));
                let record = Record::new(owner, size, md5, Attributes::new(), self.now());
                tables.replace(&full, &record, |_| Ok(()))?;
                tables.insert(owner, 0, content)?;
            }
            Ok(())
        })
    }

    /// Deletes keys in one transaction, each if `condition` accepts the existing record.
    pub(super) fn delete(
        &self,
        bucket: &str,
        keys: &[String],
        mut condition: impl FnMut(usize, Option<&Record>) -> Result<(), Refusal>,
    ) -> Result<Vec<Result<(), Refusal>>, DbError> {
        self.check_bucket(bucket)?;
        self.write(|tables| {
            let mut results = Vec::with_capacity(keys.len());
            for (i, key) in keys.iter().enumerate() {
                let full = object_key(bucket, key);
                let old = tables.record(&full)?;
                let allowed = condition(i, old.as_ref());
                if let (Ok(()), Some(old)) = (allowed, old) {
                    tables.objects.remove(full.as_slice())?;
                    tables.remove(old.owner)?;
                }
                results.push(allowed);
            }
            Ok(results)
        })
    }

    /// Writes chunks of an object that does not exist yet; readers do not see them.
    pub(super) fn write_ahead(&self, owner: u64, first: u64, bytes: &[u8]) -> Result<(), DbError> {
        let mut write = self.database.begin_write()?;
        // Durability is not needed here: the transaction that creates the object makes the chunks durable
        // too.
        write.set_durability(Durability::None).map_err(redb::Error::from)?;
        write.open_table(PENDING)?.insert(owner, ())?;
        Tables::open(&write)?.insert(owner, first, bytes)?;
        write.commit()?;
        Ok(())
    }

    /// Deletes chunks that were written ahead.
    pub(super) fn abandon(&self, owner: u64) -> Result<(), DbError> {
        // An object may already own the chunks even though its caller was canceled. Check that first, to
        // avoid a durable transaction.
        if self.database.begin_read()?.open_table(PENDING)?.get(owner)?.is_none() {
            return Ok(());
        }
        self.write(|tables| {
            tables.pending.remove(owner)?;
            tables.remove(owner)
        })
    }

    /// Creates a multipart object, atomically and durably, if `condition` accepts the existing record.
    pub(super) fn put_parts(
        &self,
        (bucket, key): (&str, &str),
        parts: &[StoredPart],
        attributes: Attributes,
        condition: impl FnOnce(Option<&Record>) -> Result<(), Refusal>,
    ) -> Result<Record, DbError> {
        self.check_bucket(bucket)?;
        let record = Record::of_parts(self.new_owner(), parts, attributes, self.now());
        self.write(|tables| {
            tables.replace(&object_key(bucket, key), &record, condition)?;
            for part in parts {
                if tables.pending.remove(part.owner)?.is_none() {
                    return Err(DbError::Gone);
                }
            }
            let segments: Vec<_> = parts.iter().map(|part| (part.owner, part.size)).collect();
            tables.segments.insert(record.owner, segments)?;
            Ok(())
        })?;
        Ok(record)
    }

    /// Creates an object, atomically and durably, if `condition` accepts the existing record. `rest` has the
    /// chunks from number `first` on; earlier ones were written ahead.
    pub(super) fn put(
        &self,
        (bucket, key): (&str, &str),
        record: &Record,
        (first, rest): (u64, &[u8]),
        condition: impl FnOnce(Option<&Record>) -> Result<(), Refusal>,
    ) -> Result<(), DbError> {
        self.check_bucket(bucket)?;
        self.write(|tables| {
            tables.replace(&object_key(bucket, key), record, condition)?;
            tables.insert(record.owner, first, rest)?;
            let pending = tables.pending.remove(record.owner)?.is_some();
            // Without the chunks that were written ahead, the object would be incomplete.
            if first > 0 && !pending { Err(DbError::Gone) } else { Ok(()) }
        })
    }

    pub(super) fn new_owner(&self) -> u64 {
        self.next_owner.fetch_add(1, Ordering::Relaxed)
    }
}

/// A snapshot of an object's content.
pub(super) struct StoredContent {
    /// The owner and size of each segment, in order; a single one unless the object was uploaded in parts.
    segments: Vec<(u64, u64)>,
    chunks: ReadOnlyTable<(u64, u64), &'static [u8]>,
}

impl StoredContent {
    /// Reads from one chunk: the bytes from `range.start` to the end of the chunk or of the range.
    pub(super) fn piece(&self, range: &Range<u64>) -> Result<Bytes, DbError> {
        let size = CHUNK_BYTES as u64;
        let mut before = 0;
        let found = self.segments.iter().find_map(|(owner, length)| {
            before += length;
            (range.start < before).then_some((*owner, before - length))
        });
        let (owner, before) = found
            .ok_or_else(|| StorageError::Corrupted("the parts are shorter than the object".to_owned()))?;
        let range = range.start - before..range.end - before;
        let number = range.start / size;
        let chunk = self
            .chunks
            .get((owner, number))?
            .ok_or_else(|| StorageError::Corrupted(format!("chunk {number} of object {owner} is missing")))?;
        let start = (range.start % size) as usize;
        let end = (range.end - number * size).min(chunk.value().len() as u64) as usize;
        let piece = chunk.value().get(start..end).filter(|piece| !piece.is_empty());
        let piece = piece.ok_or_else(|| StorageError::Corrupted(format!("chunk {number} is too short")))?;
        Ok(Bytes::copy_from_slice(piece))
    }
}

/// All tables in one transaction.
struct Tables<'t> {
    buckets: Table<'t, &'static str, u64>,
    objects: Table<'t, &'static [u8], Row<'static>>,
    chunks: Table<'t, (u64, u64), &'static [u8]>,
    segments: Table<'t, u64, Vec<(u64, u64)>>,
    pending: Table<'t, u64, ()>,
}

impl<'t> Tables<'t> {
    /// Opens all tables and creates missing ones.
    fn open(write: &'t WriteTransaction) -> Result<Self, DbError> {
        Ok(Self {
            buckets: write.open_table(BUCKETS)?,
            objects: write.open_table(OBJECTS)?,
            chunks: write.open_table(CHUNKS)?,
            segments: write.open_table(SEGMENTS)?,
            pending: write.open_table(PENDING)?,
        })
    }

    fn record(&self, full: &[u8]) -> Result<Option<Record>, DbError> {
        Ok(self.objects.get(full)?.map(|row| Record::from_row(row.value())))
    }

    /// Replaces a record and deletes the old content, if `condition` accepts the old record.
    fn replace(
        &mut self,
        full: &[u8],
        record: &Record,
        condition: impl FnOnce(Option<&Record>) -> Result<(), Refusal>,
    ) -> Result<(), DbError> {
        let old = self.record(full)?;
        condition(old.as_ref()).map_err(DbError::Refused)?;
        self.objects.insert(full, record.row())?;
        self.remove(old.map_or(NO_CHUNKS, |old| old.owner))
    }

    /// Inserts chunks, starting with number `first`.
    fn insert(&mut self, owner: u64, first: u64, bytes: &[u8]) -> Result<(), DbError> {
        for (number, chunk) in (first..).zip(bytes.chunks(CHUNK_BYTES)) {
            self.chunks.insert((owner, number), chunk)?;
        }
        Ok(())
    }

    /// Deletes the content of an owner.
    fn remove(&mut self, owner: u64) -> Result<(), DbError> {
        if owner == NO_CHUNKS {
            return Ok(());
        }
        let segments = self.segments.remove(owner)?.map(|segments| segments.value());
        for owner in segments.into_iter().flatten().map(|(part, _)| part).chain([owner]) {
            self.chunks.retain_in((owner, 0)..=(owner, u64::MAX), |_, _| false)?;
        }
        Ok(())
    }
}

fn object_key(bucket: &str, key: impl AsRef<[u8]>) -> Vec<u8> {
    [bucket.as_bytes(), b"\0", key.as_ref()].concat()
}

#[cfg(test)]
mod tests {
    use redb::ReadableTableMetadata;

    use super::*;

    impl Db {
        pub(in crate::embedded) fn chunks(&self) -> u64 {
            self.database.begin_read().unwrap().open_table(CHUNKS).unwrap().len().unwrap()
        }

        pub(in crate::embedded) fn segments(&self) -> u64 {
            self.database.begin_read().unwrap().open_table(SEGMENTS).unwrap().len().unwrap()
        }
    }

    #[test]
    fn abandoned_chunks_are_deleted() {
        let db = Db::in_memory().unwrap();
        db.write_ahead(7, 0, &vec![7; 3 * CHUNK_BYTES]).unwrap();
        assert_eq!(db.chunks(), 3);
        db.abandon(7).unwrap();
        assert_eq!(db.chunks(), 0);
    }

    #[test]
    fn what_a_killed_process_did_not_finish_goes_at_the_next_start() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("db");
        let db = Db::open(&file).unwrap();
        db.write_ahead(7, 0, &vec![7; 3 * CHUNK_BYTES]).unwrap();
        // The commit of another writer makes the chunks durable.
        db.create_bucket("bucket").unwrap();
        assert_eq!(db.chunks(), 3);
        drop(db);
        let db = Db::open(&file).unwrap();
        assert_eq!(db.chunks(), 0);
        assert!(db.check_bucket("bucket").is_ok());
    }

    #[test]
    fn owners_are_never_reused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("db");
        for round in 0..3 {
            let db = Db::open(&file).unwrap();
            db.create_bucket("bucket").unwrap();
            db.put_all("bucket", &[(format!("k{round}"), Bytes::from(format!("v{round}")))], true).unwrap();
            db.put_all("bucket", &[("empty".into(), Bytes::new())], true).unwrap();
            for i in 0..=round {
                let (record, content) = db.snapshot("bucket", &format!("k{i}")).unwrap().unwrap();
                assert_eq!(content.piece(&(0..record.size)).unwrap(), format!("v{i}"));
            }
            db.delete("bucket", &["empty".into()], |_, _| Ok(())).unwrap();
            assert_eq!(db.chunks(), round + 1);
        }
    }
}
