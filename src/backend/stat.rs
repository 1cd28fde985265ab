//! `stat` and `exists`.

use tracing::instrument;

use super::S3Backend;
use super::list::file;
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
    /// dot: three, sent at once. The root and the mounts: none.
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
        match self.stat(path).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    #[instrument(name = "stat", skip_all, fields(?path))]
    async fn stat_path(&self, path: VirtualPath) -> Result<Entry> {
        let (key, directory) = match self.mounts.resolve(&path)? {
            Location::Root | Location::Mount(_) => return Ok(Entry::directory(path)),
            Location::Inside { key, directory } => (key, directory),
            Location::Layered => return self.stat_layered(path).await,
        };
        let as_directory = |is_directory| match is_directory {
            true => Ok(Entry::directory(path.clone())),
            false => Err(Self::not_found(&path)),
        };
        let Some((md_path, md_key)) = self.md_fallback(&path) else {
            // A name with a dot is nearly always a file: ask for more only when it is none.
            return match self.head(&path, &key).await? {
                Some(meta) => Ok(file(path, &meta)),
                None => as_directory(self.is_directory(&directory).await?),
            };
        };
        let (exact, md, is_directory) =
            tokio::join!(self.head(&path, &key), self.head(&path, &md_key), self.is_directory(&directory));
        if let Some(meta) = exact? {
            return Ok(file(path, &meta));
        }
        if let Some(meta) = md? {
            return Ok(file(md_path, &meta));
        }
        as_directory(is_directory?)
    }

    async fn stat_layered(&self, path: VirtualPath) -> Result<Entry> {
        let union = self.union_around(&path).await?;
        match union.find(&path) {
            Found::File(path, found) => Ok(file(path, &found.meta)),
            Found::Directory => Ok(Entry::directory(path)),
            Found::Nothing => Err(Self::not_found(&path)),
        }
    }

    async fn head(&self, path: &VirtualPath, key: &ObjectKey) -> Result<Option<Meta>> {
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
