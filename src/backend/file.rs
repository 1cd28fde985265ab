//! One version of a file: where it is, what is known of it, and how its bytes are read.
//!
//! What a path means is a [`Node`]. A [`File`] says which [`Version`] of its object it is, and [`S3Backend::open`] is the
//! one place where a reader asks for bytes of it: it never takes another version for this one.

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

/// More bytes are hashed on a blocking thread.
const MANY_BYTES: usize = 256 * 1024;

/// What a path means, by the rules of `read` and `stat`.
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

    /// Whether it is this version of a file, with what a reader wants of its content.
    pub(super) fn tells_of(&self, file: &File, want: Want) -> bool {
        matches!(self, Self::File(known) if known.meta.same_version(&file.meta) && want.is_met_by(&known.content))
    }

    /// The file; what else it is, is an error.
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
    /// The real path: with `.md`, where that was added.
    pub(super) path: VirtualPath,
    pub(super) key: ObjectKey,
    pub(super) meta: Meta,
    pub(super) version: Version,
    pub(super) content: Content,
}

/// Which version of an object a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Version {
    /// Whichever is there.
    Latest,
    /// The one with the file's ETag, and no other.
    Exact,
    /// The only one that there ever is: the content of a published file.
    Blob(Blob),
}

/// Some bytes of a file.
pub(super) enum Opened {
    /// All of them are known.
    Known(File),
    /// They are on their way; or there is nothing to read, because the range starts at the end.
    Body { path: VirtualPath, meta: Meta, body: Option<Box<Body>> },
}

/// What is known of the content of one version.
#[derive(Debug, Clone)]
pub(super) enum Content {
    Unread,
    Text(Arc<KnownText>),
    Bytes(Bytes),
    /// The beginning of a text that is too long to keep.
    Head(Bytes),
    /// No text, but this type.
    Binary(&'static str),
}

#[derive(Debug)]
pub(super) struct KnownText {
    pub(super) text: text::Text,
    pub(super) lines: u64,
}

/// Lets a known text be bytes without a copy.
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

    /// All bytes, where they are known.
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

/// What a reader wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    Text,
    Bytes,
    /// Only what `stat` tells.
    Meta,
}

impl Want {
    /// How much is asked for at first: of a text no more than tells whether it is one.
    pub(super) fn range(self) -> ByteRange {
        let end = (self != Self::Bytes).then_some(HEAD_BYTES as u64);
        ByteRange { start: 0, end }
    }

    /// Callers with the same want share a fetch.
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
    /// Asks for some bytes of a file, which is not empty. `None` when its object is gone. Verified where it is all of
    /// a blob.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when it is another version now; [`ErrorKind::Corrupt`] for a blob that is not what was
    /// published.
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
            // A server that ignores `If-Match` must not have another version taken for this one.
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

    /// More bytes of a file some of which were read.
    pub(super) async fn open_part(&self, file: &File, range: ByteRange) -> Result<Box<Body>> {
        match self.open(file, range).await? {
            Some((_, body)) => Ok(body),
            None => Err(changed_while_read(&file.path)),
        }
    }

    /// Takes in what a reader wants of a body: the file is known from then on as this version of it.
    pub(super) async fn receive(&self, file: &mut File, want: Want, mut body: Box<Body>) -> Result<()> {
        let path = &file.path.clone();
        if want == Want::Bytes {
            self.check_size(path, body.remaining(), BYTES_ASKED, RANGES)?;
        }
        let size = file.meta.size;
        let mut bytes = Vec::new();
        if size <= self.cache().largest().min(self.shared.settings.max_read_bytes) {
            // Room for the rest as well, where that is going to be read.
            bytes.reserve_exact(usize::try_from(size).unwrap_or(0));
        }
        body.collect(self.store(), &mut bytes).await.map_err(|e| e.during("read", path))?;
        file.content = if want == Want::Bytes {
            Content::Bytes(bytes.into())
        } else if size <= bytes.len() as u64 {
            Content::of_text(text::decode(bytes))
        } else {
            // Refuse a large binary before the rest of it is asked for.
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

    pub(super) fn check_size(&self, path: &VirtualPath, bytes: u64, what: &str, way_out: Hint) -> Result<()> {
        let most = self.shared.settings.max_read_bytes;
        let too_large =
            || format!("`{path}` is too large to read at once: {bytes} {what}, the limit is {most}");
        match bytes <= most {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::TooLarge, too_large()).at(path).with_hint(way_out)),
        }
    }
}

/// Checks content that is held already.
async fn verified(bytes: Vec<u8>, sha256: Digest) -> Result<Vec<u8>> {
    let large = bytes.len() > MANY_BYTES;
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

/// One whose object was never read again while it kept changing.
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
