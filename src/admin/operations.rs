//! Whole operations on a library in one call: each plans, then publishes.

use serde::Serialize;

use super::drift::Drift;
use super::library::LibraryAdmin;
use super::new::{NewLibrary, PushOptions};
use super::plan::{LibraryChange, Plan};
use super::publish::Published;
use crate::error::Result;

/// How a library differs from what would be published to it.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct LibraryDiff {
    /// What a push would change.
    pub plan: Plan,
    /// What others have changed in the keys of a published library.
    pub drift: Vec<Drift>,
}

impl LibraryAdmin {
    /// Publishes skills.
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
    /// Those of [`plan`](Self::plan) and [`publish`](Self::publish).
    pub async fn push(&self, new: impl Into<NewLibrary>, options: &PushOptions) -> Result<Published> {
        self.change(new.into().into(), options).await
    }

    /// Compares the library with what would be published, and its keys with its newest release. Changes nothing.
    ///
    /// # Errors
    /// Those of [`plan`](Self::plan) and [`drift`](Self::drift).
    pub async fn diff(&self, new: impl Into<NewLibrary>, options: &PushOptions) -> Result<LibraryDiff> {
        let plan = self.plan(new.into(), options).await?;
        Ok(LibraryDiff { plan, drift: self.drift().await? })
    }

    /// Restores the library as it was at a release, as a new release. Uploads nothing.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) when the release is not listed; those of
    /// [`plan`](Self::plan) and [`publish`](Self::publish).
    pub async fn rollback(&self, release: u64, options: &PushOptions) -> Result<Published> {
        self.change(LibraryChange::Rollback { release }, options).await
    }

    /// Restores one skill, by its path below `/skills`, as it was at a release, and keeps it that way: pushes leave
    /// it alone.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) when the release is not listed or has no such skill;
    /// those of [`plan`](Self::plan) and [`publish`](Self::publish).
    pub async fn pin(
        &self,
        skill: impl Into<String>,
        release: u64,
        options: &PushOptions,
    ) -> Result<Published> {
        self.change(LibraryChange::Pin { skill: skill.into(), release }, options).await
    }

    /// Lets pushes change a pinned skill again.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) when it is not pinned; those of [`plan`](Self::plan) and
    /// [`publish`](Self::publish).
    pub async fn unpin(&self, skill: impl Into<String>, options: &PushOptions) -> Result<Published> {
        self.change(LibraryChange::Unpin { skill: skill.into() }, options).await
    }

    /// Deletes skills, by their paths below `/skills`. Earlier releases keep them.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) when the library has no such skill; those of
    /// [`plan`](Self::plan) and [`publish`](Self::publish).
    pub async fn remove(
        &self,
        skills: impl IntoIterator<Item = impl Into<String>>,
        options: &PushOptions,
    ) -> Result<Published> {
        let skills = skills.into_iter().map(Into::into).collect();
        self.change(LibraryChange::Remove { skills }, options).await
    }

    /// Publishes what others have changed in the keys of a published library; with
    /// [`IntoKind::Published`](super::IntoKind::Published), a plain library as it is.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a plain library that is to stay plain;
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) while its keys are not at the newest release.
    pub async fn index(&self, options: &PushOptions) -> Result<Published> {
        self.change(LibraryChange::Index, options).await
    }

    async fn change(&self, change: LibraryChange, options: &PushOptions) -> Result<Published> {
        let plan = self.plan_change(change, options).await?;
        self.publish(&plan).await
    }
}
