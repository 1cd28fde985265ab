//! What is known of a path outside `/skills`: a file, a directory, nothing; and the content of files that are not
//! too large.
//!
//! A fact holds for as long as the session's bound says, unless this process changes something about it.
//! Content holds for its version, however old it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::S3Backend;
use super::content::{Content, File, Want, same_version};
use crate::cache::{Epoch, Kept, Lookup};
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{Directory, Location, ObjectKey, WritableKey};
use crate::path::VirtualPath;
use crate::store::{Expect, Fetched, Memory, Meta};
use crate::text;

/// How often a file is read again when it changes under the reader.
const ATTEMPTS: u32 = 3;

/// What a name means, by the rules of `read` and `stat`.
#[derive(Debug)]
pub(super) enum Fact {
    File(File),
    Directory,
    Nothing,
}

impl Fact {
    fn meets(&self, want: Want) -> bool {
        match self {
            Self::File(file) => want.is_met_by(&file.content),
            Self::Directory | Self::Nothing => true,
        }
    }

    fn weight(&self) -> u64 {
        match self {
            Self::File(file) => file.weight(),
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
        let key = &self.mounts.plain_key(path)?;
        let kept: Kept<Fact> = self.cache().recall(key)?;
        if !kept.value.meets(want) {
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
            Fact::File(File { path, key, meta, content, immutable: false })
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
            Some(Fact::File(known)) if known.path == *path && want.is_met_by(&known.content) => Some(known),
            _ => None,
        };
        let range = want.range();
        for _ in 0..ATTEMPTS {
            let expect = prior.and_then(|known| known.meta.etag.as_deref()).map_or(Expect::Any, Expect::Not);
            match self.store().get(key, range, expect).await.map_err(|e| e.during("read", path))? {
                Fetched::Found { meta, body, .. } => {
                    let content = self.receive(path, key, want, &meta, *body, None).await?;
                    let (path, key) = (path.clone(), key.clone());
                    return Ok(Some(File { path, key, meta, content, immutable: false }));
                }
                Fetched::Unchanged => return Ok(prior.cloned()),
                Fetched::Missing => return Ok(None),
                Fetched::BehindTheEnd | Fetched::Changed => {}
            }
            // The answer to an empty range says nothing about the object.
            match self.store().head(key).await.map_err(|e| e.during("read", path))? {
                Some(meta) if meta.size == 0 => {
                    let content = Content::of_text(text::decode(Vec::new()));
                    let (path, key) = (path.clone(), key.clone());
                    return Ok(Some(File { path, key, meta, content, immutable: false }));
                }
                // It grew, or went away, between the two requests: look again.
                Some(_) | None => {}
            }
        }
        Err(Error::new(ErrorKind::Conflict, format!("`{path}` keeps changing while it is being read"))
            .at(path)
            .with_hint("read it again"))
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
