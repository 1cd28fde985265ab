//! One version of a file, and what is known of its content.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::S3Backend;
use crate::error::{Error, ErrorKind, Result};
use crate::index::Sha256;
use crate::mount::ObjectKey;
use crate::path::VirtualPath;
use crate::store::{Body, ByteRange, Expect, Fetched, Meta};
use crate::text::{self, Binary, HEAD_BYTES, LineWindow};

/// What is said of bytes that are too many.
pub(super) const BYTES_ASKED: &str = "bytes were asked for";
pub(super) const RANGES: &str = "read it in ranges of bytes";

/// More bytes are hashed on a blocking thread.
const MANY_BYTES: usize = 256 * 1024;

/// One version of a file.
#[derive(Debug, Clone)]
pub(super) struct File {
    /// The real path: with `.md`, where that was added.
    pub(super) path: VirtualPath,
    pub(super) key: ObjectKey,
    pub(super) meta: Meta,
    pub(super) content: Content,
    /// Whether the key never contains anything else: then its parts need no condition.
    pub(super) immutable: bool,
}

impl File {
    pub(super) fn weight(&self) -> u64 {
        let etag = self.meta.etag.as_ref().map_or(0, String::len);
        (self.path.as_str().len() + etag) as u64 + self.content.weight() + 150
    }
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

impl AsRef<[u8]> for KnownText {
    fn as_ref(&self) -> &[u8] {
        self.text.content.as_bytes()
    }
}

/// Lets a known text be bytes without a copy.
struct TextBytes(Arc<KnownText>);

impl AsRef<[u8]> for TextBytes {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
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

    /// Whether it tells what a reader of text wants to know.
    fn tells_text(&self) -> bool {
        !matches!(self, Self::Unread)
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

    pub(super) fn is_met_by(self, content: &Content) -> bool {
        match self {
            Self::Text => content.tells_text(),
            Self::Bytes => content.bytes().is_some(),
            Self::Meta => true,
        }
    }
}

impl S3Backend {
    /// Takes in what a reader wants of a body. `sha256` is what the content must be where all of it is read.
    pub(super) async fn receive(
        &self,
        path: &VirtualPath,
        key: &ObjectKey,
        want: Want,
        meta: &Meta,
        mut body: Body,
        sha256: Option<Sha256>,
    ) -> Result<Content> {
        if want == Want::Bytes {
            self.check_size(path, body.remaining(), BYTES_ASKED, RANGES)?;
        }
        if let Some(sha256) = sha256.filter(|_| body.remaining() >= meta.size) {
            body.verify(sha256);
        }
        let mut bytes = Vec::new();
        if meta.size <= self.cache().largest().min(self.shared.max_read_bytes) {
            // Room for the rest as well, where that is going to be read.
            bytes.reserve_exact(usize::try_from(meta.size).unwrap_or(0));
        }
        body.collect(self.store(), &mut bytes).await.map_err(|e| e.during("read", path))?;
        Ok(if want == Want::Bytes {
            Content::Bytes(bytes.into())
        } else if meta.size <= bytes.len() as u64 {
            Content::of_text(text::decode(bytes))
        } else {
            // Refuse a large binary before the rest of it is asked for.
            match text::sniff(&bytes) {
                Err(Binary(mime)) => Content::Binary(mime),
                Ok(_) if meta.size <= self.shared.max_read_bytes => {
                    let rest = bytes.len() as u64..meta.size;
                    let mut rest = self.part(path, key, meta, rest, sha256.is_some()).await?;
                    rest.collect(self.store(), &mut bytes).await.map_err(|e| e.during("read", path))?;
                    if let Some(sha256) = sha256 {
                        bytes = verified(bytes, sha256).await.map_err(|e| e.during("read", path))?;
                    }
                    Content::of_text(text::decode(bytes))
                }
                Ok(_) => Content::Head(bytes.into()),
            }
        })
    }

    /// A part after the head, of the same version of the object.
    pub(super) async fn part(
        &self,
        path: &VirtualPath,
        key: &ObjectKey,
        meta: &Meta,
        range: Range<u64>,
        immutable: bool,
    ) -> Result<Box<Body>> {
        let expect = match meta.etag.as_deref() {
            _ if immutable => Expect::Any,
            Some(etag) => Expect::Version(etag),
            None => {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!("the storage gives no ETag for `{path}`"),
                )
                .at(path)
                .with_hint("without one, parts of two versions could be taken for one file"));
            }
        };
        let range = ByteRange { start: range.start, end: Some(range.end) };
        match self.store().get(key, range, expect).await.map_err(|e| e.during("read", path))? {
            Fetched::Found { meta: now, body, .. }
                if now.size == meta.size && (immutable || now.etag == meta.etag) =>
            {
                Ok(body)
            }
            _ => Err(changed_while_read(path)),
        }
    }
}

/// Checks content that is held already.
async fn verified(bytes: Vec<u8>, sha256: Sha256) -> Result<Vec<u8>> {
    let large = bytes.len() > MANY_BYTES;
    let check =
        move || (Sha256::of(&bytes) == sha256).then_some(bytes).ok_or_else(|| Body::wrong_content(sha256));
    if !large {
        return check();
    }
    let failed = |e| Error::new(ErrorKind::Internal, "the content could not be checked").with_source(e);
    tokio::task::spawn_blocking(check).await.map_err(failed)?
}

pub(super) fn same_version(one: &Meta, other: &Meta) -> bool {
    one.etag.is_some() && one.etag == other.etag && one.size == other.size
}

pub(super) fn changed_while_read(path: &VirtualPath) -> Error {
    Error::new(ErrorKind::Conflict, format!("`{path}` was changed while it was being read"))
        .at(path)
        .with_hint("read it again")
}
