//! The embedded store: an in-process S3 server that stores its data in one file or in memory.
//!
//! It speaks the S3 protocol to the real `aws-sdk-s3`, so that code that works here also works on S3. It is
//! meant for local development, demos and tests. It checks signatures against one fixed key and has no users
//! or permissions.

mod conditions;
mod db;
mod headers;
mod pages;
mod parts;
mod service;
mod upload;

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::TcpListener;

use self::db::{Db, OpenError};
use crate::ambient::Instant;
use crate::error::{Error, ErrorKind, Result, shorten};

/// The access key ID that an embedded store accepts.
pub const ACCESS_KEY_ID: &str = "embedded";
/// The matching secret key. It protects nothing: the store is only reachable from this process or over
/// loopback.
pub const SECRET_ACCESS_KEY: &str = "embedded-secret";

/// The database file in the directory that is passed to [`Embedded::open`].
const FILE_NAME: &str = "skillfs.redb";

/// How long a second process waits for the first one to close the store. Most commands finish sooner.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_INTERVAL: Duration = Duration::from_millis(25);

/// An S3 server without a socket. Clones are cheap and share the same store.
#[derive(Clone)]
pub struct Embedded {
    db: Arc<Db>,
    service: S3Service,
}

impl Embedded {
    /// Creates an empty store that is dropped with its last clone.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] if there is not enough memory.
    pub fn in_memory() -> Result<Self> {
        let db = Db::in_memory().map_err(|e| not_opened("memory", e))?;
        Ok(Self::over(db))
    }

    /// Whether a directory contains a store.
    #[must_use]
    pub fn is_in(directory: impl AsRef<Path>) -> bool {
        directory.as_ref().join(FILE_NAME).is_file()
    }

    /// Opens the store in a directory. Creates the directory and the store if they do not exist.
    ///
    /// Only one process can have a store open. A second one waits two seconds, then gives up.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if another process has it open or it cannot be created,
    /// [`ErrorKind::Corrupt`] if the file is not a store.
    pub async fn open(directory: impl AsRef<Path>) -> Result<Self> {
        let directory = directory.as_ref().to_owned();
        let name = directory.display().to_string();
        if directory.is_file() {
            return Err(Error::new(ErrorKind::InvalidInput, format!("`{name}` is a file, not a directory"))
                .with_hint("name the directory of the store; it is created if it does not exist"));
        }
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            let directory = directory.clone();
            let opened = tokio::task::spawn_blocking(move || {
                std::fs::create_dir_all(&directory).map_err(|e| OpenError::Io(e.into()))?;
                Db::open(&directory.join(FILE_NAME))
            })
            .await
            .unwrap_or(Err(OpenError::Damaged));
            match opened {
                Ok(db) => return Ok(Self::over(db)),
                Err(OpenError::InUse) if Instant::now() < deadline => {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                Err(error) => return Err(not_opened(&name, error)),
            }
        }
    }

    fn over(db: Db) -> Self {
        let db = Arc::new(db);
        let mut builder = S3ServiceBuilder::new(service::Service::new(db.clone()));
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY_ID, SECRET_ACCESS_KEY));
        Self { db, service: builder.build() }
    }

    /// Advances the clock that sets the modification times of later writes. For tests.
    #[doc(hidden)]
    pub fn advance_clock(&self, by: Duration) {
        self.db.advance(by.as_secs());
    }

    /// Creates a bucket. An existing bucket is left unchanged.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if S3 would reject the name, [`ErrorKind::Unavailable`] if the file cannot
    /// be written.
    pub async fn create_bucket(&self, bucket: &str) -> Result<()> {
        if !s3s::path::check_bucket_name(bucket) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("invalid bucket name `{}`", shorten(bucket)),
            )
            .with_hint("a bucket name has 3 to 63 lowercase letters, digits, dots and hyphens"));
        }
        let bucket = bucket.to_owned();
        self.db.run(move |db| db.create_bucket(&bucket)).await.map_err(not_written)
    }

    /// Puts an object directly into the store, bypassing all mounts. For sample data and tests.
    ///
    /// # Errors
    /// The same as [`Embedded::put_all`].
    pub async fn put(&self, bucket: &str, key: &str, content: impl Into<Bytes>) -> Result<()> {
        self.put_all(bucket, [(key.to_owned(), content.into())]).await
    }

    /// Puts objects directly into the store, bypassing all mounts: all of them atomically, or none.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if a key is empty or longer than 1,024 bytes, [`ErrorKind::Unavailable`]
    /// if the bucket does not exist or the file cannot be written.
    pub async fn put_all(
        &self,
        bucket: &str,
        objects: impl IntoIterator<Item = (String, Bytes)>,
    ) -> Result<()> {
        self.put_many(bucket, objects, true).await
    }

    /// The same for objects that do not exist; existing ones are left unchanged.
    ///
    /// # Errors
    /// As [`Embedded::put_all`].
    pub async fn put_missing(
        &self,
        bucket: &str,
        objects: impl IntoIterator<Item = (String, Bytes)>,
    ) -> Result<()> {
        self.put_many(bucket, objects, false).await
    }

    async fn put_many(
        &self,
        bucket: &str,
        objects: impl IntoIterator<Item = (String, Bytes)>,
        overwrite: bool,
    ) -> Result<()> {
        let objects: Vec<_> = objects.into_iter().collect();
        if let Some((key, _)) = objects.iter().find(|(key, _)| key.is_empty() || !s3s::path::check_key(key)) {
            return Err(Error::new(ErrorKind::InvalidInput, format!("invalid key of {} bytes", key.len()))
                .with_hint("a key has 1 to 1,024 bytes"));
        }
        let bucket = bucket.to_owned();
        self.db.run(move |db| db.put_all(&bucket, &objects, overwrite)).await.map_err(not_written)
    }

    /// Serves the store on a listener until `shutdown` resolves, for programs other than this process. Bind
    /// the listener to loopback.
    pub async fn serve(&self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        loop {
            let accepted = tokio::select! {
                () = &mut shutdown => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((socket, _)) = accepted else {
                // Most likely out of file descriptors: give other connections time to finish.
                tokio::time::sleep(RETRY_INTERVAL).await;
                continue;
            };
            // Otherwise, every small response waits 40 ms for the client's delayed acknowledgment.
            let _ = socket.set_nodelay(true);
            let service = self.service.clone();
            tokio::spawn(async move {
                let http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new()).http1_only();
                if let Err(error) = http.serve_connection(TokioIo::new(socket), service).await {
                    tracing::debug!("a connection to the embedded store ended: {error}");
                }
            });
        }
    }

    pub(crate) async fn call(
        &self,
        request: http::Request<s3s::Body>,
    ) -> Result<http::Response<s3s::Body>, Box<dyn std::error::Error + Send + Sync>> {
        self.service.call(request).await.map_err(Into::into)
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded").finish_non_exhaustive()
    }
}

fn not_opened(name: &str, error: OpenError) -> Error {
    match error {
        OpenError::InUse => Error::new(
            ErrorKind::Unavailable,
            format!("the embedded store in `{name}` is in use by another process"),
        )
        .with_hint("wait until the other process has exited, or use another directory"),
        OpenError::Damaged => Error::new(ErrorKind::Corrupt, format!("`{FILE_NAME}` in `{name}` is damaged"))
            .with_hint("restore the file from a backup, or use another directory"),
        OpenError::NoStore(source) => Error::new(
            ErrorKind::Corrupt,
            format!("`{FILE_NAME}` in `{name}` is not a store that can be opened: {source}"),
        )
        .with_hint("use another directory, or move the file")
        .with_source(source),
        OpenError::Io(source) => Error::new(
            ErrorKind::Unavailable,
            format!("cannot open the embedded store in `{name}`: {source}"),
        )
        .with_hint("use a writable directory")
        .with_source(source),
    }
}

fn not_written(error: db::DbError) -> Error {
    Error::new(ErrorKind::Unavailable, format!("cannot write to the embedded store: {error}"))
        .with_hint("check that the bucket exists, the file is writable and the disk is not full")
        .with_source(error)
}
