//! What is known of a name: a file, a directory, nothing; and the content of files that are not too large.
//!
//! A fact holds for as long as the session's bound says, unless this process changes something about it.
//! Content holds for its version, however old it is.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::S3Backend;
use super::read::{ATTEMPTS, BYTES_ASKED, RANGES, changed_while_read};
use super::union::{Found, Union};
use crate::cache::{Epoch, Kept, Lookup};
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{Directory, Location, ObjectKey, WritableKey};
use crate::path::VirtualPath;
use crate::store::{Body, ByteRange, Expect, Fetched, Memory, Meta};
use crate::text::{self, Binary, HEAD_BYTES, LineWindow};

/// What a name means, by the rules of `read` and `stat`.
#[derive(Debug)]
pub(super) enum Fact {
    File(File),
    Directory,
    Nothing,
}

/// One version of a file.
#[derive(Debug, Clone)]
pub(super) struct File {
    /// The real path: with `.md`, where that was added.
    pub(super) path: VirtualPath,
    pub(super) key: ObjectKey,
    pub(super) meta: Meta,
    pub(super) content: Content,
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
    pub(super) fn tells_text(&self) -> bool {
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
    fn range(self) -> ByteRange {
        let end = (self != Self::Bytes).then_some(HEAD_BYTES as u64);
        ByteRange { start: 0, end }
    }

    fn is_met_by(self, fact: &Fact) -> bool {
        match (self, fact) {
            (Self::Text, Fact::File(file)) => file.content.tells_text(),
            (Self::Bytes, Fact::File(file)) => file.content.bytes().is_some(),
            _ => true,
        }
    }
}

impl Fact {
    fn weight(&self) -> u64 {
        match self {
            Self::File(file) => {
                let etag = file.meta.etag.as_ref().map_or(0, String::len);
                (file.path.as_str().len() + etag) as u64 + file.content.weight() + 150
            }
            Self::Directory | Self::Nothing => 0,
        }
    }
}

impl S3Backend {
    pub(crate) fn cache(&self) -> &Memory {
        self.store.memory()
    }

    /// How old an answer about a path may be.
    pub(super) fn bound(&self, path: &VirtualPath) -> Duration {
        match path.segments().next() {
            _ if self.fresh => Duration::ZERO,
            Some("skills") => self.skills_bound(),
            _ => self.shared.freshness.files,
        }
    }

    /// What is known of a path, and may be answered with. When it is getting old, it is asked for behind
    /// the answer.
    pub(super) fn known_fact(&self, path: &VirtualPath, want: Want) -> Option<Arc<Fact>> {
        let bound = self.bound(path);
        if bound.is_zero() {
            return None;
        }
        // A listing of `/skills` goes before: it tells of all files at one moment.
        if let Some(union) = self.known_union_of(path) {
            return self.listed_fact(&union, path, want);
        }
        let key = &self.mounts.plain_key(path)?;
        let kept: Kept<Fact> = self.cache().recall(key)?;
        if !want.is_met_by(&kept.value) {
            return None;
        }
        match self.cache().judge(kept, bound) {
            Lookup::Hit { value, aging } => {
                if aging {
                    self.refresh_fact(path, key, want, bound);
                }
                Some(value)
            }
            Lookup::Miss(_) => None,
        }
    }

    /// What is known of the version that a listing found.
    fn listed_fact(&self, union: &Union, path: &VirtualPath, want: Want) -> Option<Arc<Fact>> {
        let (real, found) = match union.find(path) {
            Found::File(real, found) => (real, found),
            Found::Directory => return Some(Arc::new(Fact::Directory)),
            Found::Nothing => return Some(Arc::new(Fact::Nothing)),
        };
        let key = self.mounts.layer_key(&real, found.layer)?;
        let kept: Kept<Fact> = self.cache().recall(&key)?;
        matches!(&*kept.value, Fact::File(file) if file.path == real && same_version(&file.meta, &found.meta))
            .then_some(kept.value)
            .filter(|fact| want.is_met_by(fact))
    }

    fn refresh_fact(&self, path: &VirtualPath, key: &str, want: Want, bound: Duration) {
        if self.cache().is_under_way(&flight(key, want)) {
            return;
        }
        let Ok(Location::Inside { key, directory }) = self.mounts.resolve(path) else { return };
        let (backend, path) = (self.clone(), path.clone());
        self.in_background(
            async move { backend.ask_fact(path, key, directory, want, bound).await.map(drop) },
        );
    }

    /// Does something that nobody waits for.
    pub(super) fn in_background(&self, work: impl Future<Output = Result<()>> + Send + 'static) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        self.cache().refreshing();
        runtime.spawn(async move {
            if let Err(error) = work.await {
                tracing::debug!("cannot refresh what is known: {error}");
            }
        });
    }

    /// Finds out what a path means, once for all who want to know.
    pub(super) async fn ask_fact(
        &self,
        path: VirtualPath,
        key: ObjectKey,
        directory: Directory,
        want: Want,
        bound: Duration,
    ) -> Result<Arc<Fact>> {
        let (backend, name) = (self.clone(), flight(key.as_str(), want));
        let ask = move || async move { backend.find_fact(path, key, directory, want).await };
        self.cache().once(&name, bound, ask).await
    }

    async fn find_fact(
        &self,
        path: VirtualPath,
        key: ObjectKey,
        directory: Directory,
        want: Want,
    ) -> Result<Arc<Fact>> {
        let cache = self.cache();
        let asked = (cache.epoch(key.as_str()), Instant::now());
        let prior = cache.recall::<Fact>(key.as_str()).map(|kept| kept.value);
        let fact = Arc::new(match want {
            Want::Meta => self.find_meta(&path, &key, &directory, prior.as_deref()).await?,
            Want::Text | Want::Bytes => {
                self.find_content(&path, &key, &directory, want, prior.as_deref()).await?
            }
        });
        self.keep_fact(key.as_str(), asked, fact.clone());
        Ok(fact)
    }

    /// A change found this version of a file: if another one was known, it is forgotten.
    pub(super) fn saw(&self, key: &WritableKey, meta: &Meta) {
        let known = self.cache().recall::<Fact>(key.as_str());
        let same = |fact: &Fact| matches!(fact, Fact::File(file) if file.key == *key.key() && same_version(&file.meta, meta));
        if known.is_some_and(|kept| !same(&kept.value)) {
            self.cache().changed_object(key.as_str());
        }
    }

    pub(super) fn keep_fact(&self, key: &str, asked: (Epoch, Instant), fact: Arc<Fact>) {
        let (owner, weight) = (self.store.tenant().owner_of(key), fact.weight());
        self.cache().keep(key, &owner, asked, fact, weight);
    }

    async fn find_content(
        &self,
        path: &VirtualPath,
        key: &ObjectKey,
        directory: &Directory,
        want: Want,
        prior: Option<&Fact>,
    ) -> Result<Fact> {
        if let Some(file) = self.fetch(path, key, want, prior).await? {
            return Ok(Fact::File(file));
        }
        if let Some((path, key)) = self.md_fallback(path)
            && let Some(file) = self.fetch(&path, &key, want, prior).await?
        {
            return Ok(Fact::File(file));
        }
        Ok(if self.is_directory(directory).await? { Fact::Directory } else { Fact::Nothing })
    }

    async fn find_meta(
        &self,
        path: &VirtualPath,
        key: &ObjectKey,
        directory: &Directory,
        prior: Option<&Fact>,
    ) -> Result<Fact> {
        let file = |path: VirtualPath, key: ObjectKey, meta: Meta| {
            let content = match prior {
                Some(Fact::File(known)) if known.path == path && same_version(&known.meta, &meta) => {
                    known.content.clone()
                }
                _ => Content::Unread,
            };
            Fact::File(File { path, key, meta, content })
        };
        let other = |is_directory: bool| if is_directory { Fact::Directory } else { Fact::Nothing };
        let Some((md_path, md_key)) = self.md_fallback(path) else {
            // A name with a dot is nearly always a file: ask for more only when it is none.
            return Ok(match self.head(path, key).await? {
                Some(meta) => file(path.clone(), key.clone(), meta),
                None => other(self.is_directory(directory).await?),
            });
        };
        let (exact, md, is_directory) =
            tokio::join!(self.head(path, key), self.head(path, &md_key), self.is_directory(directory));
        if let Some(meta) = exact? {
            return Ok(file(path.clone(), key.clone(), meta));
        }
        if let Some(meta) = md? {
            return Ok(file(md_path, md_key, meta));
        }
        Ok(other(is_directory?))
    }

    /// Reads a file, unless it is the version whose content is known.
    async fn fetch(
        &self,
        path: &VirtualPath,
        key: &ObjectKey,
        want: Want,
        prior: Option<&Fact>,
    ) -> Result<Option<File>> {
        let prior = match prior {
            Some(Fact::File(known)) if known.path == *path && want.is_met_by(&Fact::File(known.clone())) => {
                Some(known)
            }
            _ => None,
        };
        let range = want.range();
        for _ in 0..ATTEMPTS {
            let expect = prior.and_then(|known| known.meta.etag.as_deref()).map_or(Expect::Any, Expect::Not);
            match self.store().get(key, range, expect).await.map_err(|e| e.during("read", path))? {
                Fetched::Found { meta, body, .. } => {
                    return self.received(path, key, want, meta, *body).await.map(Some);
                }
                Fetched::Unchanged => return Ok(prior.cloned()),
                Fetched::Missing => return Ok(None),
                Fetched::BehindTheEnd | Fetched::Changed => {}
            }
            // The answer to an empty range says nothing about the object.
            match self.store().head(key).await.map_err(|e| e.during("read", path))? {
                Some(meta) if meta.size == 0 => {
                    let content = Content::of_text(text::decode(Vec::new()));
                    return Ok(Some(File { path: path.clone(), key: key.clone(), meta, content }));
                }
                // It grew, or went away, between the two requests: look again.
                Some(_) | None => {}
            }
        }
        Err(Error::new(ErrorKind::Conflict, format!("`{path}` keeps changing while it is being read"))
            .at(path)
            .with_hint("read it again"))
    }

    /// The version of a file that a listing found; [`ErrorKind::Conflict`] when it is there no longer.
    pub(super) async fn fact_of_version(
        &self,
        path: &VirtualPath,
        key: &ObjectKey,
        meta: &Meta,
        want: Want,
    ) -> Result<Arc<Fact>> {
        let Some(etag) = meta.etag.as_deref() else {
            let read = self.fetch(path, key, want, None).await?;
            return read.map(|file| Arc::new(Fact::File(file))).ok_or_else(|| changed_while_read(path));
        };
        if let Some(kept) = self.cache().recall::<Fact>(key.as_str())
            && let Fact::File(file) = &*kept.value
            && file.path == *path
            && same_version(&file.meta, meta)
            && want.is_met_by(&kept.value)
        {
            self.cache().hit();
            return Ok(kept.value);
        }
        let backend = self.clone();
        let (path, key, etag) = (path.clone(), key.clone(), etag.to_owned());
        let name = format!("{}\u{2}{etag}", flight(key.as_str(), want));
        // A version does not grow old: whoever wants it may wait with others.
        self.cache()
            .once(&name, Duration::MAX, move || async move {
                let asked = (backend.cache().epoch(key.as_str()), Instant::now());
                let range = want.range();
                let fetched = backend.store().get(&key, range, Expect::Version(&etag)).await;
                let file = match fetched.map_err(|e| e.during("read", &path))? {
                    Fetched::Found { meta, body, .. } if meta.etag.as_deref() == Some(&etag) => {
                        backend.received(&path, &key, want, meta, *body).await?
                    }
                    // It is empty, and a listing knows that, too: nothing of it can differ.
                    Fetched::BehindTheEnd => backend
                        .fetch(&path, &key, want, None)
                        .await?
                        .filter(|file| file.meta.etag.as_deref() == Some(&etag))
                        .ok_or_else(|| changed_while_read(&path))?,
                    _ => return Err(changed_while_read(&path)),
                };
                let fact = Arc::new(Fact::File(file));
                backend.keep_fact(key.as_str(), asked, fact.clone());
                Ok(fact)
            })
            .await
    }

    /// Takes in what a reader wants of a body.
    async fn received(
        &self,
        path: &VirtualPath,
        key: &ObjectKey,
        want: Want,
        meta: Meta,
        mut body: Body,
    ) -> Result<File> {
        if want == Want::Bytes {
            self.check_size(path, body.remaining(), BYTES_ASKED, RANGES)?;
        }
        let mut bytes = Vec::new();
        if meta.size <= self.cache().largest().min(self.shared.max_read_bytes) {
            // Room for the rest as well, where that is going to be read.
            bytes.reserve_exact(usize::try_from(meta.size).unwrap_or(0));
        }
        body.collect(self.store(), &mut bytes).await.map_err(|e| e.during("read", path))?;
        let content = if want == Want::Bytes {
            Content::Bytes(bytes.into())
        } else if meta.size <= bytes.len() as u64 {
            Content::of_text(text::decode(bytes))
        } else {
            // Refuse a large binary before the rest of it is asked for.
            match text::sniff(&bytes) {
                Err(Binary(mime)) => Content::Binary(mime),
                Ok(_) if meta.size <= self.shared.max_read_bytes => {
                    let mut rest = self.part(path, key, &meta, bytes.len() as u64..meta.size).await?;
                    rest.collect(self.store(), &mut bytes).await.map_err(|e| e.during("read", path))?;
                    Content::of_text(text::decode(bytes))
                }
                Ok(_) => Content::Head(bytes.into()),
            }
        };
        Ok(File { path: path.clone(), key: key.clone(), meta, content })
    }

    /// A part behind the head, of the same version of the object.
    pub(super) async fn part(
        &self,
        path: &VirtualPath,
        key: &ObjectKey,
        meta: &Meta,
        range: Range<u64>,
    ) -> Result<Box<Body>> {
        let Some(etag) = meta.etag.as_deref() else {
            return Err(Error::new(ErrorKind::Corrupt, format!("the storage gives no ETag for `{path}`"))
                .at(path)
                .with_hint("without one, parts of two versions could be taken for one file"));
        };
        let range = ByteRange { start: range.start, end: Some(range.end) };
        let fetched = self.store().get(key, range, Expect::Version(etag)).await;
        match fetched.map_err(|e| e.during("read", path))? {
            Fetched::Found { meta: now, body, .. } if now.etag == meta.etag && now.size == meta.size => {
                Ok(body)
            }
            _ => Err(changed_while_read(path)),
        }
    }
}

/// Each wants something else, and may fail for another reason: all bytes may be too many where a window is not.
fn flight(key: &str, want: Want) -> String {
    match want {
        Want::Text => key.to_owned(),
        Want::Bytes => format!("{key}\u{4}"),
        Want::Meta => format!("{key}\u{1}"),
    }
}

pub(super) fn same_version(one: &Meta, other: &Meta) -> bool {
    one.etag.is_some() && one.etag == other.etag && one.size == other.size
}
