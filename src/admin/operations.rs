//! Operations that plan and publish a change in one call.

use serde::Serialize;

use super::drift::Drift;
use super::library::LibraryAdmin;
use super::new::{NewLibrary, PushOptions};
use super::plan::{LibraryChange, Plan};
use super::publish::Published;
use crate::error::Result;

/// How a library differs from the skills of a push, and from its own newest release.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct LibraryDiff {
    /// What a push would change.
    pub plan: Plan,
    /// Keys of a published library that other tools have changed.
    pub drift: Vec<Drift>,
}

impl LibraryAdmin {
    /// Publishes skills.
    ///
    /// Creates a release, or writes the keys of a plain library; see [`IntoKind`](super::IntoKind).
    ///
    /// ```no_run
    /// # async fn example(fs: skillfs::SkillFs) -> skillfs::Result<()> {
    /// use skillfs::admin::PushOptions;
    /// use skillfs::source::{Source, SourceOptions};
    /// use skillfs::{Library, UserId};
    ///
    /// let source = Source::open("./skills", &SourceOptions::default())?;
    /// let library = fs.library(&Library::User(UserId::parse("ana")?));
    /// let published = library.push(source, &PushOptions::default()).await?;
    /// println!("release {:?}: {} created", published.release, published.created);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Errors of [`plan`](Self::plan) and [`publish`](Self::publish).
    pub async fn push(&self, new: impl Into<NewLibrary>, options: &PushOptions) -> Result<Published> {
        self.change(new.into().into(), options).await
    }

    /// Compares the library with the skills of a push, and its mirror with its newest release. Changes nothing.
    ///
    /// # Errors
    /// Errors of [`plan`](Self::plan) and [`drift`](Self::drift).
    pub async fn diff(&self, new: impl Into<NewLibrary>, options: &PushOptions) -> Result<LibraryDiff> {
        let plan = self.plan(new.into(), options).await?;
        Ok(LibraryDiff { plan, drift: self.drift().await? })
    }

    /// Rolls back to an earlier release, by creating a new release with its content. Uploads no content.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the release is not listed; errors of
    /// [`plan`](Self::plan) and [`publish`](Self::publish).
    pub async fn rollback(&self, release: u64, options: &PushOptions) -> Result<Published> {
        self.change(LibraryChange::Rollback { release }, options).await
    }

    /// Restores one skill, given its path below `/skills`, from a release and pins it: pushes do not change it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the release is not listed or does not have the skill;
    /// errors of [`plan`](Self::plan) and [`publish`](Self::publish).
    pub async fn pin(
        &self,
        skill: impl Into<String>,
        release: u64,
        options: &PushOptions,
    ) -> Result<Published> {
        self.change(LibraryChange::Pin { skill: skill.into(), release }, options).await
    }

    /// Unpins a skill, so that pushes change it again.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if it is not pinned; errors of [`plan`](Self::plan) and
    /// [`publish`](Self::publish).
    pub async fn unpin(&self, skill: impl Into<String>, options: &PushOptions) -> Result<Published> {
        self.change(LibraryChange::Unpin { skill: skill.into() }, options).await
    }

    /// Deletes skills, given their paths below `/skills`. Earlier releases keep them.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the library does not have a skill; errors of
    /// [`plan`](Self::plan) and [`publish`](Self::publish).
    pub async fn remove(
        &self,
        skills: impl IntoIterator<Item = impl Into<String>>,
        options: &PushOptions,
    ) -> Result<Published> {
        let skills = skills.into_iter().map(Into::into).collect();
        self.change(LibraryChange::Remove { skills }, options).await
    }

    /// Publishes the changes that other tools made to the keys of a published library.
    ///
    /// With [`IntoKind::Published`](super::IntoKind::Published), publishes a plain library unchanged.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if a plain library is to stay plain;
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) while the mirror is not at the newest release; errors of
    /// [`plan`](Self::plan) and [`publish`](Self::publish).
    pub async fn index(&self, options: &PushOptions) -> Result<Published> {
        self.change(LibraryChange::Index, options).await
    }

    async fn change(&self, change: LibraryChange, options: &PushOptions) -> Result<Published> {
        let plan = self.plan_change(change, options).await?;
        self.publish(&plan).await
    }
}
