//! The heads of skill files in an index, chosen such that parsing the head gives the same result as
//! parsing the file.

use crate::index::SkillHead;
use crate::manifest::{MAX_FRONTMATTER_BYTES, Size, read_head};
use crate::path::SkillPath;

/// The size of the first ranged read. It is enough for all but one of 1,500 real frontmatters.
pub(crate) const FIRST_BYTES: u64 = 4 * 1024;
/// The size of the second ranged read. It is enough for every frontmatter that is accepted.
pub(crate) const MOST_BYTES: u64 = MAX_FRONTMATTER_BYTES as u64 + 1024;

/// Returns the head to store in an index: the frontmatter, if parsing it alone gives the same
/// result, otherwise as much of the file as a reader would read.
///
/// `bytes` are the first [`MOST_BYTES`] of a file of `size` bytes. Returns `None` if the file is
/// not text.
pub(crate) fn head_of(skill: &SkillPath, bytes: &[u8], size: u64) -> Option<SkillHead> {
    let read = |bytes: &[u8], part: Size| {
        let read = read_head(bytes, part, skill.name(), skill.as_str())?;
        Some(read.map(|document| (document.manifest, document.diagnostics)))
    };
    // The same amounts as discovery reads: a little first, then the rest.
    for most in [bytes.len().min(FIRST_BYTES as usize), bytes.len()] {
        let bytes = &bytes[..most];
        let Some(told) = read(bytes, part_of(most as u64, size)) else { continue };
        let frontmatter =
            told.as_ref().ok().map(|(manifest, _)| SkillHead::Frontmatter(manifest.frontmatter.clone()));
        let start = String::from_utf8(bytes.to_vec()).ok().map(SkillHead::Start);
        return frontmatter.into_iter().chain(start).find(|head| {
            let (text, part) = as_read(head, size);
            read(&text, part).as_ref() == Some(&told)
        });
    }
    None
}

/// Describes the first `length` bytes of a file of `size` bytes.
pub(super) fn part_of(length: u64, size: u64) -> Size {
    let whole = length >= size;
    Size { whole, last: whole || length >= MOST_BYTES }
}

/// Presents a head from an index as if it had been read from the file.
pub(super) fn as_read(head: &SkillHead, size: u64) -> (Vec<u8>, Size) {
    match head {
        SkillHead::Frontmatter(text) => {
            (format!("---\n{text}---\n").into_bytes(), Size { whole: true, last: true })
        }
        SkillHead::Start(text) => (text.clone().into_bytes(), part_of(text.len() as u64, size)),
    }
}
