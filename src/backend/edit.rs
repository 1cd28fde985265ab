//! `edit` and `append`: read-modify-write operations that never overwrite a concurrent change.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use serde::Serialize;
use tracing::instrument;

use super::S3Backend;
use super::file::{binary_file, is_directory};
use super::write::{Written, changed, new_file};
use crate::ambient::Instant;
use crate::error::{Error, ErrorKind, Hint, Result, shorten};
use crate::mount::{Target, WritableKey};
use crate::path::{IntoPath, VirtualPath};
use crate::store::{ByteRange, Condition, Expect, Fetched, ObjectProperties, PartSource, Put, Seen, WriteId};
use crate::text::{self, Binary, ReplaceError};

/// The result of an edit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Edited {
    /// The path of the file.
    pub path: VirtualPath,
    /// The number of replacements.
    pub replacements: u64,
    /// The new size of the file, in bytes.
    pub size: u64,
    /// The ETag of the new version, or `None` as described in [`Written::etag`].
    pub etag: Option<String>,
}

/// One async mutex per file that is being changed.
///
/// Writers of the same process take turns on a file: racing each other would only cause conflicts.
#[derive(Debug, Default)]
pub(super) struct FileLocks(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl FileLocks {
    pub(super) fn get(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        // Drop mutexes that nobody holds or waits for, once there are many.
        if locks.len() >= 1024 {
            locks.retain(|_, lock| lock.strong_count() > 0);
        }
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        locks.insert(key.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

/// The version to change, with its content. The content is `None` if it is too long to be sent
/// again.
type EditBase = (Seen, Option<Vec<u8>>);

/// The change to apply.
enum Revision<'a> {
    Replace { old: &'a str, new: &'a str, all: bool },
    Append(&'a Bytes),
}

impl S3Backend {
    /// Replaces text in a file. `old` must occur exactly once.
    ///
    /// The file keeps its encoding, byte order mark and line endings. If another writer changes the
    /// file concurrently, the replacement is retried on the new content for up to
    /// [`Settings::conflict_patience`](crate::Settings::conflict_patience).
    ///
    /// Costs two requests, plus two for each time another writer was faster. On a server other than
    /// AWS, the first conditional write of the handle costs one more request, which probes for
    /// support.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidInput`] if `old` is empty, does not occur, or occurs more than once.
    /// - [`ErrorKind::Conflict`] if other writers were faster until the time ran out, or if the
    ///   response was lost and it cannot be determined whether the change took effect
    ///   ([`Error::may_have_taken_effect`]).
    /// - [`ErrorKind::BinaryFile`] if the file is not text, [`ErrorKind::TooLarge`] if it is too
    ///   large to edit.
    /// - [`ErrorKind::NotFound`], [`ErrorKind::IsDirectory`], [`ErrorKind::ReadOnly`],
    ///   [`ErrorKind::QuotaExceeded`].
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "embedded")]
    /// # async fn example() -> skillfs::Result<()> {
    /// # use skillfs::{Session, Settings, SkillFs, ThreadId, embedded::Embedded};
    /// # let store = Embedded::in_memory()?;
    /// # store.create_bucket("acme").await?;
    /// # let fs = SkillFs::embedded(&store, &Settings::new("acme")).await?;
    /// # let backend = fs.session(&Session::new().thread(ThreadId::parse("t-42")?));
    /// backend.write("plan.md", "# Plan\n").await?;
    ///
    /// let edited = backend.edit("plan.md", "# Plan", "# The plan").await?;
    /// assert_eq!(edited.replacements, 1);
    /// assert_eq!(backend.read("plan.md").await?.content, "# The plan\n");
    /// # Ok(())
    /// # }
    /// # #[cfg(feature = "embedded")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub async fn edit(&self, path: impl IntoPath, old: &str, new: &str) -> Result<Edited> {
        self.edit_path(path.into_path()?, old, new, false).await
    }

    /// Replaces all occurrences of a text in a file. `old` must occur at least once.
    ///
    /// Otherwise behaves and costs the same as [`S3Backend::edit`].
    ///
    /// # Errors
    /// Same as [`S3Backend::edit`], except that `old` need not be unique.
    pub async fn edit_all(&self, path: impl IntoPath, old: &str, new: &str) -> Result<Edited> {
        self.edit_path(path.into_path()?, old, new, true).await
    }

    /// Appends bytes to a file, creating it if it does not exist.
    ///
    /// The bytes are appended verbatim; no line ending is inserted. Concurrent changes are
    /// preserved, as with [`S3Backend::edit`]. A long file is assembled on the server and not
    /// downloaded.
    ///
    /// Costs two requests, like [`S3Backend::edit`], or five for a file larger than twice
    /// [`Settings::part_bytes`](crate::Settings::part_bytes).
    ///
    /// # Errors
    /// Same as [`S3Backend::edit`], except those about `old`.
    pub async fn append(&self, path: impl IntoPath, content: impl Into<Bytes>) -> Result<Written> {
        self.append_path(path.into_path()?, content.into()).await
    }

    #[instrument(name = "edit", skip_all, fields(?path, all))]
    async fn edit_path(&self, path: VirtualPath, old: &str, new: &str, all: bool) -> Result<Edited> {
        let (target, key) = self.file_target(&path)?;
        if old.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "the text to replace is empty")
                .at(&path)
                .with_hint("give the text to replace; to add text, append or write"));
        }
        let (written, replacements) = self.change(&target, &key, Revision::Replace { old, new, all }).await?;
        let Written { path, size, etag } = written;
        Ok(Edited { path, replacements, size, etag })
    }

    #[instrument(name = "append", skip_all, fields(?path, bytes = content.len()))]
    async fn append_path(&self, path: VirtualPath, content: Bytes) -> Result<Written> {
        let (target, key) = self.file_target(&path)?;
        self.check_file_size(&path, content.len() as u64)?;
        Ok(self.change(&target, &key, Revision::Append(&content)).await?.0)
    }

    async fn change(
        &self,
        target: &Target,
        key: &WritableKey,
        change: Revision<'_>,
    ) -> Result<(Written, u64)> {
        let path = &target.path;
        let deadline = Instant::now() + self.shared.settings.conflict_patience;
        let conditional = self.conditions(target).await?;
        let lock = self.shared.file_locks.get(key.as_str());
        // If the lock is not acquired in time, still make one attempt.
        let _guard = tokio::time::timeout_at(deadline, lock.lock()).await.ok();
        let id = self.store().write_id()?;
        let mut rounds = 0;
        loop {
            let attempt = self.change_once(target, key, &change, &id, conditional).await;
            let conflict = match attempt {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => None,
                // The file changed while it was being read.
                Err(error) if error.kind() == ErrorKind::Conflict && !error.may_have_taken_effect() => {
                    Some(error)
                }
                Err(error) => return Err(error),
            };
            if Instant::now() >= deadline {
                let now = self.store().head(key.key()).await.map_err(|e| e.during("inspect", path))?;
                let error = changed(path, now.and_then(|meta| meta.etag).as_deref());
                return Err(match conflict {
                    Some(source) => error.with_source(source),
                    None => error,
                });
            }
            rounds += 1;
            self.store().pause(rounds).await;
        }
    }

    /// Makes one attempt at the change. Returns `None` if another writer was faster.
    async fn change_once(
        &self,
        target: &Target,
        key: &WritableKey,
        change: &Revision<'_>,
        id: &WriteId,
        conditional: bool,
    ) -> Result<Option<(Written, u64)>> {
        let path = &target.path;
        let base = self.base(path, key, change).await?;
        let seen = base.as_ref().map(|(seen, _)| seen);
        let old_size = seen.map(|seen| seen.meta.size);
        let condition = match conditional {
            true => Condition::unchanged(seen).map_err(|e| e.during("change", path))?,
            false => Condition::Always,
        };
        let properties = match seen {
            Some(seen) => ObjectProperties {
                history: seen.properties.history.grown(id, &seen.meta),
                ..seen.properties.clone()
            },
            None => new_file(path, id),
        };
        let (pieces, replacements) = match (base, change) {
            (None, Revision::Append(more)) => (self.pieces((*more).clone()), 0),
            (None, Revision::Replace { .. }) => return Err(self.missing_file_error(path).await),
            (Some((_, Some(mut content))), Revision::Append(more)) => {
                content.extend_from_slice(more);
                (self.pieces(content.into()), 0)
            }
            // Let the server copy a long file, and upload only what is appended.
            (Some((seen, None)), Revision::Append(more)) => {
                let mut pieces = self.copy_parts(key.key(), &seen)?;
                pieces.extend(self.pieces((*more).clone()).into_iter().filter(|piece| piece.len() > 0));
                (pieces, 0)
            }
            (Some((seen, Some(content))), Revision::Replace { old, new, all }) => {
                // The result must stay readable, unless the file was larger than that before.
                let most = self.shared.settings.max_read_bytes.max(seen.meta.size);
                let (content, count) = text::replace(&content, old, new, *all, most)
                    .map_err(|error| replace_error(path, old, seen.meta.size, error))?;
                (self.pieces(content.into()), count)
            }
            (Some((seen, None)), Revision::Replace { .. }) => {
                let (size, most) = (seen.meta.size, self.shared.settings.max_read_bytes);
                return Err(Error::new(
                    ErrorKind::TooLarge,
                    format!("`{path}` is too large to edit: {size} bytes, the limit is {most}"),
                )
                .at(path)
                .with_hint("append to it, or split it into smaller files"));
            }
        };
        let size = pieces.iter().map(PartSource::len).sum();
        let reservation = self.reserve(target, path, size, old_size).await?;
        let put = self.put_pieces(key, id, condition, &properties, pieces).await;
        match put.map_err(|e| e.during("change", path))? {
            Put::Done { etag } => {
                reservation.commit();
                Ok(Some((Written { path: path.clone(), size, etag }, replacements)))
            }
            Put::Overtaken => Ok(None),
        }
    }

    /// Reads the current version, with its content if that is small enough to be sent again. One
    /// request.
    async fn base(
        &self,
        path: &VirtualPath,
        key: &WritableKey,
        change: &Revision<'_>,
    ) -> Result<Option<EditBase>> {
        let most = match change {
            Revision::Append(_) => self.store().single_put_bytes(),
            Revision::Replace { .. } => self.shared.settings.max_read_bytes,
        };
        let during = |error: Error| error.during("read", path);
        let fetched = self.store().get(key.key(), ByteRange::WHOLE, Expect::Any).await.map_err(during)?;
        let Fetched::Found { meta, properties, mut body } = fetched else { return Ok(None) };
        let mut content = None;
        if meta.size <= most {
            let bytes = content.insert(Vec::new());
            body.collect(self.store(), bytes).await.map_err(during)?;
        }
        self.observe_version(key, &meta);
        Ok(Some((Seen { meta, properties: *properties }, content)))
    }

    /// Explains why there is no file to change: the path is a directory, lacks its `.md`, or does
    /// not exist.
    pub(super) async fn missing_file_error(&self, path: &VirtualPath) -> Error {
        let why = async {
            let entry = self.fresh().stat(path).await?;
            // Write operations do not append `.md`, so a directory with this exact name takes
            // precedence over such a file.
            Ok(match entry.is_directory() || self.is_literal_directory(path).await? {
                true => is_directory(path),
                false => Self::not_found(path).with_hint(format!(
                    "did you mean `{}`? A change needs the full name of the file",
                    entry.path
                )),
            })
        };
        why.await.unwrap_or_else(|error| error)
    }
}

fn replace_error(path: &VirtualPath, old: &str, size: u64, error: ReplaceError) -> Error {
    let invalid =
        |message: String, hint: Hint| Error::new(ErrorKind::InvalidInput, message).at(path).with_hint(hint);
    let shown = shorten(old);
    match error {
        ReplaceError::Binary(Binary(mime)) => {
            binary_file(path, mime, size).with_hint("overwrite the entire file, or append bytes to it")
        }
        ReplaceError::Absent { line_ends } => invalid(
            format!("`{path}` does not contain the text to replace: `{shown}`"),
            Hint::plain(match line_ends {
                true => "the lines of the file end with \\r\\n: end yours the same way",
                false => "read the file again and copy the text exactly, including white space",
            }),
        ),
        ReplaceError::NotUnique(count) => invalid(
            format!("the text to replace occurs {count} times in `{path}`: `{shown}`"),
            Hint::ReplaceAll,
        ),
        ReplaceError::NotEncodable(encoding) => invalid(
            format!("the new text cannot be written in the encoding of `{path}`, {encoding}"),
            "use characters that the encoding has, or write the entire file again as UTF-8".into(),
        ),
        ReplaceError::TooLong(bytes) => {
            Error::new(ErrorKind::TooLarge, format!("`{path}` would have {bytes} bytes after the edit"))
                .at(path)
                .with_hint("use a shorter replacement, or split the file")
        }
        ReplaceError::Lossy(encoding) => invalid(
            format!("`{path}` cannot be edited without changing other parts of it: it is damaged {encoding}"),
            "write the entire file again as UTF-8".into(),
        ),
    }
}
