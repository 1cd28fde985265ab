//! A library as local files: pulled into a folder, exported as an archive, imported from a source.

use std::path::Path;

use super::library::{LibraryAdmin, blocking};
#[cfg(feature = "import")]
use super::new::{NewLibrary, NewSkill, PushOptions};
#[cfg(feature = "import")]
use super::plan::Plan;
#[cfg(feature = "import")]
use super::publish::Published;
use crate::error::Result;
#[cfg(feature = "import")]
use crate::options::setters;
use crate::source::{Existing, FolderWritten, write_folder};
use crate::source::{Exported, Imported, PROVENANCE_FILE, Provenance, SourceFile, export_file};

/// What of a library is copied to local files, and how.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PullOptions {
    /// Only the skills of this category. Default: all.
    pub category: Option<String>,
    /// What happens to local files that exist with other content. Default: nothing is written.
    pub existing: Existing,
}

impl PullOptions {
    setters! {
        category: some into String;
        existing: Existing;
    }
}

impl LibraryAdmin {
    /// Writes the skills of the library into a local folder. Costs what [`LibraryAdmin::read`] does.
    ///
    /// # Errors
    /// Those of [`LibraryAdmin::read`] and of [`write_folder`].
    pub async fn pull(&self, folder: impl AsRef<Path>, options: &PullOptions) -> Result<FolderWritten> {
        let skills = self.read(options.category.as_deref().unwrap_or_default()).await?;
        let (folder, existing) = (folder.as_ref().to_owned(), options.existing);
        blocking(move || write_folder(&skills, &folder, existing)).await?
    }

    /// Writes the skills of the library into one archive, `.zip`, `.tar.gz` or `.tgz` by its name. Costs what
    /// [`LibraryAdmin::read`] does.
    ///
    /// # Errors
    /// Those of [`LibraryAdmin::read`] and of [`export_file`].
    #[cfg(feature = "import")]
    pub async fn export(&self, file: impl AsRef<Path>, options: &PullOptions) -> Result<Exported> {
        let mut skills = self.read(options.category.as_deref().unwrap_or_default()).await?;
        skills.retain(|skill| skill.skill_file().is_some());
        let (file, existing) = (file.as_ref().to_owned(), options.existing);
        blocking(move || export_file(&skills, &file, existing)).await?
    }

    /// Plans the publication of imported skills. A skill that differs only in the time of its import is unchanged.
    ///
    /// Costs what [`LibraryAdmin::plan`] does, and up to two requests for each imported skill that exists.
    ///
    /// # Errors
    /// Those of [`LibraryAdmin::plan`].
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
    /// Those of both.
    #[cfg(feature = "import")]
    pub async fn import(&self, imported: Imported, options: &PushOptions) -> Result<Published> {
        let plan = self.plan_import(imported, options).await?;
        self.publish(&plan).await
    }

    /// Keeps the `.source` of skills that are the same except for the time of their import.
    #[cfg(feature = "import")]
    async fn keep_provenance(&self, imported: &mut Imported) -> Result<()> {
        let backend = self.backend.pinned().await?;
        for skill in &mut imported.skills {
            let path = skill.skill.path.join(PROVENANCE_FILE)?;
            if !backend.exists(&path).await? {
                continue;
            }
            let stored = backend.read_bytes(&path, ..).await?.bytes;
            let is_same = Provenance::parse(&stored).is_ok_and(|known| {
                let installed_at = skill.provenance.installed_at.clone();
                Provenance { installed_at, ..known } == skill.provenance
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
