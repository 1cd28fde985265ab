//! Copies between a library and local files: pull to a folder, export to an archive, import from a source.

use std::path::Path;

use super::library::{LibraryAdmin, blocking};
#[cfg(feature = "import")]
use super::new::{NewLibrary, NewSkill, PushOptions};
#[cfg(feature = "import")]
use super::plan::Plan;
#[cfg(feature = "import")]
use super::publish::Published;
use crate::error::Result;
use crate::options::setters;
use crate::source::{Existing, FolderWritten, write_folder};
#[cfg(feature = "import")]
use crate::source::{Exported, Imported, PROVENANCE_FILE, Provenance, SourceFile, export_file};

/// Options for copying a library to local files.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PullOptions {
    /// Copy only the skills in this category. Default: all skills.
    pub category: Option<String>,
    /// What to do with local files that exist with other content. Default: refuse, without writing anything.
    pub existing: Existing,
}

impl PullOptions {
    setters! {
        category: some into String;
        existing: Existing;
    }
}

impl LibraryAdmin {
    /// Writes the skills of the library to a local folder. Costs the same as [`LibraryAdmin::read`].
    ///
    /// # Errors
    /// Errors of [`LibraryAdmin::read`] and [`write_folder`].
    pub async fn pull(&self, folder: impl AsRef<Path>, options: &PullOptions) -> Result<FolderWritten> {
        let skills = self.read(options.category.as_deref().unwrap_or_default()).await?;
        let (folder, existing) = (folder.as_ref().to_owned(), options.existing);
        blocking(move || write_folder(&skills, &folder, existing)).await?
    }

    /// Writes the skills of the library to an archive, whose extension is `.zip`, `.tar.gz` or `.tgz`. Costs the same as
    /// [`LibraryAdmin::read`].
    ///
    /// # Errors
    /// Errors of [`LibraryAdmin::read`] and [`export_file`].
    #[cfg(feature = "import")]
    pub async fn export(&self, file: impl AsRef<Path>, options: &PullOptions) -> Result<Exported> {
        let mut skills = self.read(options.category.as_deref().unwrap_or_default()).await?;
        skills.retain(|skill| skill.skill_file().is_some());
        let (file, existing) = (file.as_ref().to_owned(), options.existing);
        blocking(move || export_file(&skills, &file, existing)).await?
    }

    /// Plans a push of imported skills. A skill that differs only in its import time counts as unchanged.
    ///
    /// Costs the same as [`LibraryAdmin::plan`], plus up to two requests for each imported skill that exists.
    ///
    /// # Errors
    /// Errors of [`LibraryAdmin::plan`].
    #[cfg(feature = "import")]
    pub async fn plan_import(&self, mut imported: Imported, options: &PushOptions) -> Result<Plan> {
        self.keep_provenance(&mut imported).await?;
        let mut options = options.clone();
        if options.source.is_empty() {
            options.source = format!("import {}", imported.origin);
        }
        self.plan(NewLibrary::from(imported), &options).await
    }

    /// Publishes imported skills: [`LibraryAdmin::plan_import`] and [`LibraryAdmin::publish`] in one call.
    ///
    /// # Errors
    /// Errors of both.
    #[cfg(feature = "import")]
    pub async fn import(&self, imported: Imported, options: &PushOptions) -> Result<Published> {
        let plan = self.plan_import(imported, options).await?;
        self.publish(&plan).await
    }

    /// Keeps the stored `.source` of skills that differ only in their import time.
    #[cfg(feature = "import")]
    async fn keep_provenance(&self, imported: &mut Imported) -> Result<()> {
        let backend = self.backend.pinned().await?;
        for skill in &mut imported.skills {
            let path = skill.skill.path.join(PROVENANCE_FILE)?;
            if !backend.exists(&path).await? {
                continue;
            }
            let stored = backend.read_bytes(&path, ..).await?.bytes;
            let is_same = Provenance::parse(&stored).is_ok_and(|stored| {
                let installed_at = skill.provenance.installed_at.clone();
                Provenance { installed_at, ..stored } == skill.provenance
            });
            let file = skill.skill.files.iter_mut().find(|file| file.name == PROVENANCE_FILE);
            if let Some(file) = file.filter(|_| is_same) {
                *file = SourceFile::from_bytes(PROVENANCE_FILE, stored);
            }
        }
        Ok(())
    }
}

#[cfg(feature = "import")]
impl From<Imported> for NewLibrary {
    fn from(imported: Imported) -> Self {
        let taken = imported.skills.iter().map(|skill| NewSkill::from(&skill.skill));
        let refused = imported.refused.iter().map(|skill| NewSkill::refused(&skill.path, &skill.reason));
        let mut new: Self = taken.chain(refused).collect();
        for category in &imported.categories {
            new.describe(&category.path, &category.file);
        }
        new.keep_files_of(imported)
    }
}
