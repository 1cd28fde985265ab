//! One version of a file: its location, its cached content, and how its bytes are read.
//!
//! A path resolves to a [`Node`]. A [`File`] records which [`Version`] of its object it is.
//! [`S3Backend::open`] is the only function that requests its bytes, and never returns bytes of
//! another version.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use super::S3Backend;
use super::view::Blob;
use crate::cache::{Cached, Detail};
use crate::error::{Error, ErrorKind, Hint, Result};
use crate::index::Digest;
use crate::mount::ObjectKey;
use crate::path::VirtualPath;
use crate::store::{Body, ByteRange, Expect, Fetched, Meta};
use crate::text::{self, Binary, HEAD_BYTES, LineWindow};

/// What is said of bytes that are too many.
pub(super) const BYTES_ASKED: &str = "bytes were requested";
pub(super) const RANGES: Hint = Hint::Plain(Cow::Borrowed("read it in byte ranges"));

/// Content larger than this is hashed on a blocking thread.
const LARGE_CONTENT: usize = 256 * 1024;

/// What a path resolves to, by the rules of `read` and `stat`.
#[derive(Debug, Clone)]
pub(super) enum Node {
    File(File),
    Directory,
    Nothing,
}

impl Node {
    pub(super) fn meets(&self, want: Want) -> bool {
        match self {
            Self::File(file) => want.is_met_by(&file.content),
            Self::Directory | Self::Nothing => true,
        }
    }

    /// Whether this is the same version of a file, with the content that the reader needs.
    pub(super) fn is_version_with(&self, file: &File, want: Want) -> bool {
        matches!(self, Self::File(known) if known.meta.same_version(&file.meta) && want.is_met_by(&known.content))
    }

    /// Returns the file, or an error if this is anything else.
    pub(super) fn file(&self, path: &VirtualPath) -> Result<&File> {
        match self {
            Self::File(file) => Ok(file),
            Self::Directory => Err(is_directory(path)),
            Self::Nothing => Err(S3Backend::not_found(path)),
        }
    }
}

impl Cached for Node {
    fn weight(&self) -> Option<u64> {
        Some(match self {
            Self::File(file) => {
                let etag = file.meta.etag.as_ref().map_or(0, String::len);
                (file.path.as_str().len() + etag) as u64 + file.content.weight() + 150
            }
            Self::Directory | Self::Nothing => 0,
        })
    }
}

/// A file.
#[derive(Debug, Clone)]
pub(super) struct File {
    /// The actual path, including `.md` if it was added.
    pub(super) path: VirtualPath,
    pub(super) key: ObjectKey,
    pub(super) meta: Meta,
    pub(super) version: Version,
    pub(super) content: Content,
}

/// Which version of an object a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Version {
    /// Whichever version is current.
    Latest,
    /// Exactly the version with the file's ETag.
    Exact,
    /// The immutable content of a published file.
    Blob(Blob),
}

/// An opened file.
pub(super) enum Opened {
    /// All bytes are cached.
    Known(File),
    /// A response body; `None` if the range starts at or past the end.
    Body { path: VirtualPath, meta: Meta, body: Option<Box<Body>> },
}

/// The content of one version, as far as it was read.
#[derive(Debug, Clone)]
pub(super) enum Content {
    Unread,
    Text(Arc<KnownText>),
    Bytes(Bytes),
    /// The beginning of a text that is too long to cache.
    Head(Bytes),
    /// Not text, with its MIME type.
    Binary(&'static str),
}

#[derive(Debug)]
pub(super) struct KnownText {
    pub(super) text: text::Text,
    pub(super) lines: u64,
}

/// Exposes cached text as bytes without a copy.
struct TextBytes(Arc<KnownText>);

impl AsRef<[u8]> for TextBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.text.content.as_bytes()
    }
}

impl Content {
    pub(super) fn of_text(decoded: Result<text::Text, Binary>) -> Self {
        match decoded {
            Ok(text) => {
                let lines = LineWindow::count(&text.content);
                Self::Text(Arc::new(KnownText { text, lines }))
            }
            Err(Binary(mime)) => Self::Binary(mime),
        }
    }

    /// Returns all bytes, if they are cached.
    pub(super) fn bytes(&self) -> Option<Bytes> {
        match self {
            Self::Bytes(bytes) => Some(bytes.clone()),
            Self::Text(text) if text.text.exact => Some(Bytes::from_owner(TextBytes(text.clone()))),
            _ => None,
        }
    }

    fn weight(&self) -> u64 {
        match self {
            Self::Unread | Self::Binary(_) => 0,
            Self::Text(text) => text.text.content.len() as u64 + 100,
            Self::Bytes(bytes) | Self::Head(bytes) => bytes.len() as u64,
        }
    }
}

/// What a reader needs of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    Text,
    Bytes,
    /// Only metadata, for `stat`.
    Meta,
}

impl Want {
    /// The range of the first request. For text, it covers only what is needed to tell text from
    /// binary.
    pub(super) fn range(self) -> ByteRange {
        let end = (self != Self::Bytes).then_some(HEAD_BYTES as u64);
        ByteRange { start: 0, end }
    }

    /// The single-flight key: callers with the same needs share a fetch.
    pub(super) fn detail(self) -> Detail {
        Detail::Kind(match self {
            Self::Text => "text",
            Self::Bytes => "bytes",
            Self::Meta => "meta",
        })
    }

    pub(super) fn is_met_by(self, content: &Content) -> bool {
        match self {
            Self::Text => !matches!(content, Content::Unread),
            Self::Bytes => content.bytes().is_some(),
            Self::Meta => true,
        }
    }
}

impl S3Backend {
    /// Requests some bytes of a file, which must not be empty. Returns `None` if its object is
    /// gone.
    ///
    /// A blob that is read completely is verified.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if the file has another version now; [`ErrorKind::Corrupt`] if a
    /// blob is not what was published.
    pub(super) async fn open(&self, file: &File, range: ByteRange) -> Result<Option<(Meta, Box<Body>)>> {
        let File { path, key, meta, version, .. } = file;
        let expect = match (version, meta.etag.as_deref()) {
            (Version::Exact, Some(etag)) => Expect::Version(etag),
            (Version::Exact, None) if range.start > 0 => {
                return Err(no_etag(path));
            }
            _ => Expect::Any,
        };
        let fetched = self.store().get(key, range, expect).await.map_err(|e| e.during("read", path))?;
        match (fetched, version) {
            (Fetched::Found { meta: now, mut body, .. }, Version::Blob(blob)) if now.size == meta.size => {
                if body.remaining() >= meta.size {
                    body.verify(blob.sha256);
                }
                Ok(Some((now, body)))
            }
            (Fetched::Found { .. } | Fetched::BehindTheEnd, Version::Blob(_)) => {
                Err(Body::wrong_size().during("read", path))
            }
            (Fetched::Found { meta, body, .. }, Version::Latest) => Ok(Some((meta, body))),
            // A server that ignores `If-Match` may return another version: never accept it for this
            // one.
            (Fetched::Found { meta: now, body, .. }, Version::Exact)
                if meta.etag.is_none() || meta.same_version(&now) =>
            {
                Ok(Some((now, body)))
            }
            (Fetched::Missing, Version::Latest | Version::Blob(_))
            | (Fetched::BehindTheEnd, Version::Latest) => Ok(None),
            _ => Err(changed_while_read(path)),
        }
    }

    /// Requests more bytes of a file of which some have been read.
    pub(super) async fn open_part(&self, file: &File, range: ByteRange) -> Result<Box<Body>> {
        match self.open(file, range).await? {
            Some((_, body)) => Ok(body),
            None => Err(changed_while_read(&file.path)),
        }
    }

    /// Reads what the reader needs from a body into `file.content`. Fetches the rest of a text that
    /// is small enough to cache.
    pub(super) async fn receive(&self, file: &mut File, want: Want, mut body: Box<Body>) -> Result<()> {
        let path = &file.path.clone();
        if want == Want::Bytes {
            self.check_size(path, body.remaining(), BYTES_ASKED, RANGES)?;
        }
        let size = file.meta.size;
        let mut bytes = Vec::new();
        if size <= self.cache().largest().min(self.shared.settings.max_read_bytes) {
            // Reserve space for the rest as well, if it is going to be read.
            bytes.reserve_exact(usize::try_from(size).unwrap_or(0));
        }
        body.collect(self.store(), &mut bytes).await.map_err(|e| e.during("read", path))?;
        file.content = if want == Want::Bytes {
            Content::Bytes(bytes.into())
        } else if size <= bytes.len() as u64 {
            Content::of_text(text::decode(bytes))
        } else {
            // Reject a large binary before requesting the rest of it.
            match text::sniff(&bytes) {
                Err(Binary(mime)) => Content::Binary(mime),
                Ok(_) if size <= self.shared.settings.max_read_bytes => {
                    let rest = ByteRange { start: bytes.len() as u64, end: Some(size) };
                    let mut rest = self.open_part(file, rest).await?;
                    rest.collect(self.store(), &mut bytes).await.map_err(|e| e.during("read", path))?;
                    if let Version::Blob(blob) = &file.version {
                        bytes = verified(bytes, blob.sha256).await.map_err(|e| e.during("read", path))?;
                    }
                    Content::of_text(text::decode(bytes))
                }
                Ok(_) => Content::Head(bytes.into()),
            }
        };
        Ok(())
    }

    pub(super) fn check_size(&self, path: &VirtualPath, bytes: u64, what: &str, hint: Hint) -> Result<()> {
        let most = self.shared.settings.max_read_bytes;
        let too_large =
            || format!("`{path}` is too large to read at once: {bytes} {what}, the limit is {most}");
        match bytes <= most {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::TooLarge, too_large()).at(path).with_hint(hint)),
        }
    }
}

/// Verifies the digest of content that is in memory.
async fn verified(bytes: Vec<u8>, sha256: Digest) -> Result<Vec<u8>> {
    let large = bytes.len() > LARGE_CONTENT;
    let check =
        move || (Digest::of(&bytes) == sha256).then_some(bytes).ok_or_else(|| Body::wrong_content(sha256));
    if !large {
        return check();
    }
    let failed = |e| Error::new(ErrorKind::Internal, "the content could not be verified").with_source(e);
    tokio::task::spawn_blocking(check).await.map_err(failed)?
}

/// Why the content of a path cannot be returned.
#[derive(Debug, thiserror::Error)]
enum Unreturned<'p> {
    #[error("`{0}` was changed while it was being read")]
    Changed(&'p VirtualPath),
    #[error("`{0}` keeps changing while it is being read")]
    KeepsChanging(&'p VirtualPath),
    #[error("the storage returned no ETag for `{0}`")]
    NoEtag(&'p VirtualPath),
    #[error("`{0}` is a directory")]
    Directory(&'p VirtualPath),
    #[error("`{0}` is a file, not a directory")]
    NotDirectory(&'p VirtualPath),
    #[error("File '{path}' is a binary file and cannot be read as text ({mime}, {size} bytes)")]
    Binary { path: &'p VirtualPath, mime: &'p str, size: u64 },
}

impl From<Unreturned<'_>> for Error {
    fn from(why: Unreturned<'_>) -> Self {
        let (kind, path, hint) = match why {
            Unreturned::Changed(path) | Unreturned::KeepsChanging(path) => {
                (ErrorKind::Conflict, path, "read it again".into())
            }
            Unreturned::NoEtag(path) => {
                (ErrorKind::Corrupt, path, "without one, parts of two versions could be mixed".into())
            }
            Unreturned::Directory(path) => {
                (ErrorKind::IsDirectory, path, Hint::ListDirectory(path.to_string()))
            }
            Unreturned::NotDirectory(path) => {
                (ErrorKind::NotDirectory, path, Hint::ReadFile(path.to_string()))
            }
            Unreturned::Binary { path, .. } => {
                (ErrorKind::BinaryFile, path, "refer to it by its path instead of reading it".into())
            }
        };
        Self::new(kind, why.to_string()).at(path).with_hint(hint)
    }
}

pub(super) fn changed_while_read(path: &VirtualPath) -> Error {
    Unreturned::Changed(path).into()
}

pub(super) fn no_etag(path: &VirtualPath) -> Error {
    Unreturned::NoEtag(path).into()
}

/// The file changed on every attempt to read it.
pub(super) fn keeps_changing(path: &VirtualPath) -> Error {
    Unreturned::KeepsChanging(path).into()
}

pub(super) fn is_directory(path: &VirtualPath) -> Error {
    Unreturned::Directory(path).into()
}

pub(super) fn not_a_directory(path: &VirtualPath) -> Error {
    Unreturned::NotDirectory(path).into()
}

pub(super) fn binary_file(path: &VirtualPath, mime: &str, size: u64) -> Error {
    Unreturned::Binary { path, mime, size }.into()
}
