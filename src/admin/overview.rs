//! A library at a glance, for `doctor`: its kind, its release, and how far its mirror and pins are from what they
//! should be.

use std::sync::Arc;

use super::drift::{MirrorState, compare_mirror};
use super::library::{LibraryKind, LibraryState};
use crate::backend::S3Backend;
use crate::error::Result;
use crate::index::Index;
use crate::mount::Library;

/// What an administrator wants to know first: the kind of a library, and how its mirror is.
pub(crate) struct Overview {
    pub(crate) kind: LibraryKind,
    pub(crate) skills: u64,
    pub(crate) release: u64,
    pub(crate) mirror: Option<MirrorState>,
    pub(crate) lost_pins: Vec<(String, u64)>,
    /// Whether there are releases and no index.
    pub(crate) lost_index: bool,
}

impl Overview {
    pub(crate) async fn of(backend: &S3Backend, library: &Library) -> Result<Self> {
        let state = LibraryState::load(backend, library).await?;
        let index: Option<&Arc<Index>> = state.index.as_ref().map(|found| &found.value);
        let mirror = match index.filter(|index| index.is_published()) {
            Some(index) => Some(compare_mirror(backend, library, index).await?),
            None => None,
        };
        let listed = |index: &Index, release: u64| index.releases.iter().any(|note| note.number == release);
        let lost = index.iter().flat_map(|index| {
            index
                .pins
                .iter()
                .filter(|(_, release)| !listed(index, **release))
                .map(|(skill, at)| (skill.clone(), *at))
        });
        Ok(Self {
            kind: state.kind,
            skills: state.tree.skills().count() as u64,
            release: index.map_or(0, |index| index.release),
            lost_pins: lost.collect(),
            lost_index: index.is_none() && !backend.objects(&library.releases()).await?.is_empty(),
            mirror,
        })
    }
}
