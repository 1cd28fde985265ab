//! The state of a library for `doctor`: its kind, its release, and problems of its mirror, pins and index.

use super::drift::{MirrorState, compare_mirror};
use super::library::{LibraryAdmin, LibraryKind};
use crate::backend::S3Backend;
use crate::error::Result;
use crate::mount::Library;

/// The state of a library.
pub(crate) struct Overview {
    pub(crate) kind: LibraryKind,
    pub(crate) skills: u64,
    pub(crate) release: u64,
    pub(crate) mirror: Option<MirrorState>,
    pub(crate) lost_pins: Vec<(String, u64)>,
    /// Whether the library has releases but no index.
    pub(crate) lost_index: bool,
}

impl Overview {
    pub(crate) async fn of(backend: &S3Backend, library: &Library) -> Result<Self> {
        let access = LibraryAdmin::new(backend.clone(), library);
        let state = access.load().await?;
        let index = state.index();
        let mirror = match index.filter(|index| index.is_published()) {
            Some(index) => Some(compare_mirror(&access, index).await?),
            None => None,
        };
        let lost = index.iter().flat_map(|index| index.lost_pins());
        Ok(Self {
            kind: state.kind,
            skills: state.tree.skills().count() as u64,
            release: index.map_or(0, |index| index.release),
            lost_pins: lost.map(|(skill, release)| (skill.clone(), release)).collect(),
            lost_index: index.is_none() && !backend.objects(&library.releases()).await?.is_empty(),
            mirror,
        })
    }
}
