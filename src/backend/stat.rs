//! `stat` and `exists`.

use tracing::instrument;

use super::S3Backend;
use super::content::Want;
use super::known::Fact;
use super::union::Found;
use crate::entry::{Depth, Entry};
use crate::error::{ErrorKind, Result};
use crate::mount::{Directory, Location, ObjectKey};
use crate::path::{IntoPath, VirtualPath};
use crate::store::{Lister, Meta};

impl S3Backend {
    /// What is known of a file or directory. Where both have the name, the file answers.
    ///
    /// A last segment without a dot that is no file is tried with `.md` before it is called a
    /// directory; the entry names the real path.
    ///
    /// Costs, with a dot in the name: one request for a file, two for anything else. Without a
    /// dot: three, sent at once. The root and the mounts: none. Below `/skills`: the index of each library, and a
    /// listing of each plain one, sent at once; none while they are known.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when nothing is there.
    pub async fn stat(&self, path: impl IntoPath) -> Result<Entry> {
        self.stat_path(path.into_path()?).await
    }

    /// Whether a file or directory is there, by the rules of [`S3Backend::stat`] and at its cost.
    ///
    /// # Errors
    /// When it cannot be told: the storage is out of reach or denies the answer.
    pub async fn exists(&self, path: impl IntoPath) -> Result<bool> {
        let path = path.into_path()?;
        if let Some(union) = self.known_union_of(&path) {
            return Ok(!matches!(union.find(&path)?, Found::Nothing));
        }
        if let Some(fact) = self.known_fact(&path, Want::Meta) {
            return Ok(!matches!(*fact, Fact::Nothing));
        }
        match self.stat_path(path).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    #[instrument(name = "stat", skip_all, fields(?path))]
    async fn stat_path(&self, path: VirtualPath) -> Result<Entry> {
        let (key, directory) = match self.mounts.resolve(&path)? {
            Location::Root | Location::Mount(_) => return Ok(Entry::directory(path)),
            // The mount itself is always there.
            Location::Layered if path.segments().count() == 1 => return Ok(Entry::directory(path)),
            Location::Layered => return self.stat_listed(path).await,
            Location::Inside { key, directory } => (key, directory),
        };
        let fact = match self.known_fact(&path, Want::Meta) {
            Some(fact) => fact,
            None => self.ask_fact(path.clone(), key, directory, Want::Meta, self.bound(&path)).await?,
        };
        match &*fact {
            Fact::File(known) => Ok(known.meta.entry(known.path.clone())),
            Fact::Directory => Ok(Entry::directory(path)),
            Fact::Nothing => Err(Self::not_found(&path)),
        }
    }

    /// Below `/skills`.
    async fn stat_listed(&self, path: VirtualPath) -> Result<Entry> {
        let union = self.union_around(&path).await?;
        match union.find(&path)? {
            Found::File(path, found) => Ok(found.meta.entry(path)),
            Found::Directory => Ok(Entry::directory(path)),
            Found::Nothing => Err(Self::not_found(&path)),
        }
    }

    pub(super) async fn head(&self, path: &VirtualPath, key: &ObjectKey) -> Result<Option<Meta>> {
        self.store().head(key).await.map_err(|e| e.during("look at", path))
    }

    /// Whether any key lies in it. One request; it also tells a missing bucket from a missing key.
    pub(super) async fn is_directory(&self, directory: &Directory) -> Result<bool> {
        let mut lister = Lister::new(directory.prefix(), Depth::All).page_size(1);
        let first = lister.next(self.store()).await.map_err(|e| e.during("look at", directory.path()))?;
        Ok(first.is_some())
    }

    /// The same name with `.md`, where the contract tries it.
    pub(super) fn md_fallback(&self, path: &VirtualPath) -> Option<(VirtualPath, ObjectKey)> {
        let path = path.with_md()?;
        match self.mounts.resolve(&path) {
            Ok(Location::Inside { key, .. }) => Some((path, key)),
            _ => None,
        }
    }
}
