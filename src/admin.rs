//! What those do who look after libraries: index, compare, publish, go back, verify.

mod blobs;
mod collection;
mod history;
mod lease;
mod many;
mod mirror;
mod plan;
mod prune;
mod publish;
mod verify;

use serde::Serialize;
use tracing::instrument;

pub use self::collection::{Libraries, LibraryStats, ListedSkill};
pub use self::history::Release;
pub use self::lease::UnderWay;
pub(crate) use self::lease::check_replaceable;
pub use self::many::{ManyOptions, PushedToUser};
pub use self::plan::{
    Action, Change, FileChange, NewFile, NewLibrary, NewSkill, Plan, PlannedSkill, PushOptions,
};
pub use self::prune::Pruned;
pub use self::publish::{HandEdit, Published, PushProgress, PushWatch};
pub(crate) use self::verify::index_problems;
pub use self::verify::{Problem, Severity, Verified};

use crate::backend::SkillFs;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::Library;

/// How often an index is made anew when the library changes meanwhile.
const ROUNDS: u32 = 5;

/// An index that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Indexed {
    /// How many skills it tells of.
    pub skills: u64,
    /// How many files they and their categories have.
    pub files: u64,
    /// How many of them had to be read: what an older index knew is not read again.
    pub read: u64,
    /// The size of the index, in bytes.
    pub bytes: u64,
}

impl SkillFs {
    /// Writes the catalogue index of a library: what its skills say, and the size, ETag and SHA-256 of
    /// each of their files. It lies beside the library, in no session's mounts.
    ///
    /// With it, a catalogue costs two requests. Whoever changes the library writes it anew; what it says of
    /// files that have changed since is not used.
    ///
    /// Costs one listing, one request for each file that the old index does not know, and one to write it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is no such library; [`ErrorKind::Conflict`] when another wrote the index at the same time, or when the library keeps
    /// changing; [`ErrorKind::TooLarge`] when the index would be too long to be read.
    pub async fn write_index(&self, library: &Library) -> Result<Indexed> {
        self.write_index_watched(library, &|_, _| ()).await
    }

    /// The same, and what was changed by hand is accepted as it is.
    pub(crate) async fn accept_library(&self, library: &Library) -> Result<Indexed> {
        self.index_library(library, true, &|_, _| ()).await
    }

    /// The same, and tells how far it is: files done, and files in all.
    ///
    /// # Errors
    /// As [`SkillFs::write_index`].
    #[instrument(name = "write_index", skip_all, fields(%library))]
    pub async fn write_index_watched(
        &self,
        library: &Library,
        watch: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Indexed> {
        self.index_library(library, false, watch).await
    }

    async fn index_library(
        &self,
        library: &Library,
        accept: bool,
        watch: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Indexed> {
        let backend = self.own_session(&library.session()).fresh();
        let mut round = 1;
        let (union, index, made) = loop {
            let union = backend.union_all().await?;
            if union.is_empty() && union.index_etag(0).is_none() {
                return Err(Error::new(ErrorKind::NotFound, format!("there is nothing in {library}"))
                    .with_hint("look for a typing error, or put skills into it first"));
            }
            if union.index(0).is_none() && union.index_etag(0).is_some() {
                check_replaceable(&backend, library).await?;
            }
            match backend.make_index(&union, accept, watch).await {
                Ok((index, made)) => break (union, index, made),
                Err(error) if error.kind() == ErrorKind::Conflict && round < ROUNDS => round += 1,
                Err(error) => return Err(error),
            }
        };
        let size = index.to_json().map_or(0, |bytes| bytes.len() as u64);
        if lease::write_index(&backend, library, &index, union.index_etag(0)).await?.is_none() {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("another wrote the index of {library} at the same time"),
            )
            .with_hint("look whether theirs will do, or run it again"));
        }
        Ok(Indexed { skills: made.skills, files: made.files, read: made.read, bytes: size })
    }
}
