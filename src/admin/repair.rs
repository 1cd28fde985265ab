//! Repairs a library: restores a damaged index from a release and blobs from other copies of their content, and
//! completes the mirror.
//!
//! The library is verified before and after.

use super::library::{LibraryAdmin, if_unchanged};
use super::mirror::Mirroring;
use super::verify::{Intact, Problem, Verified, VerifyOptions, intact_releases, restorable};
use crate::error::{Error, ErrorKind, Hint, Result, shorten};
use crate::index::{Digest, Index};
use crate::manifest::Severity;
use crate::options::setters;
use crate::path::leaf;

/// Options for [`LibraryAdmin::repair`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RepairOptions {
    /// Read every blob of the newest release and compare its digest. Default: false.
    pub read_blobs: bool,
    /// Revert keys of the mirror that other tools have changed. Default: false.
    pub overwrite: bool,
    /// The release to restore a damaged or missing index from: its number, or `NUMBER-ID` if two publishers wrote that
    /// number.
    pub release: Option<String>,
}

impl RepairOptions {
    setters! {
        read_blobs: bool;
        overwrite: bool;
        release: some into String;
    }
}

impl LibraryAdmin {
    /// Verifies the library and repairs what can be repaired.
    ///
    /// Restores a damaged index from [`RepairOptions::release`], restores blobs from other copies of their content, and
    /// completes the mirror. Changes by other tools are kept unless [`RepairOptions::overwrite`] is set. Repaired
    /// problems are included in the result, with [`Problem::repaired`] set.
    ///
    /// # Errors
    /// - Errors of [`LibraryAdmin::verify`].
    /// - [`ErrorKind::NotFound`] if the named release is not intact, [`ErrorKind::Ambiguous`] if its number is not
    ///   unique.
    /// - [`ErrorKind::InvalidInput`] if a release is named and the index is not damaged.
    /// - [`ErrorKind::Conflict`] if another process wrote the index.
    pub async fn repair(&self, options: &RepairOptions) -> Result<Verified> {
        let library = &self.library;
        let verify = VerifyOptions { read_blobs: options.read_blobs };
        let before = self.verify(&verify).await?;
        self.backend.check_conditions(library).await?;
        if before.has(&["bad-index", "lost-index"]) {
            match &options.release {
                Some(release) => restore_index(self, release).await?,
                None => return Ok(before),
            }
        } else if options.release.is_some() {
            let message = format!("the index of {library} is not damaged");
            return Err(Error::new(ErrorKind::InvalidInput, message).with_hint(Hint::RollBack));
        }
        if let Some(index) = self.read_index().await?.map(|found| found.value) {
            restore_blobs(self, &index, &before).await?;
            if index.is_published() {
                let mirroring =
                    Mirroring { thorough: true, overwrite: options.overwrite, ..Mirroring::new(self) };
                mirroring.complete(index).await?;
            }
        }
        let mut after = self.verify(&verify).await?;
        for problem in before.problems {
            let left =
                after.problems.iter().any(|left| left.code == problem.code && left.path == problem.path);
            if !left && problem.severity != Severity::Info {
                after.problems.push(Problem { repaired: true, ..problem });
            }
        }
        after.sort();
        Ok(after)
    }
}

/// Restores blobs from other copies of their content: a blob of another release, or the key of the mirror.
async fn restore_blobs(access: &LibraryAdmin, index: &Index, found: &Verified) -> Result<()> {
    const BROKEN: [&str; 2] = ["missing-blob", "damaged-blob"];
    if !found.has(&BROKEN) {
        return Ok(());
    }
    let LibraryAdmin { backend, library, .. } = access;
    let stored = access.stored_blobs().await?;
    for Problem { path, .. } in found.problems.iter().filter(|problem| BROKEN.contains(&problem.code)) {
        let Some(file) = index.files.get(path) else { continue };
        let key = library.blob(file.sha256, &file.blob.id);
        let (_, mirrored) = library.file(path)?;
        let digest = format!("/{}-", file.sha256);
        let copies = stored.iter().filter(|other| other.contains(&digest) && *other != key.as_str());
        let copies = copies.filter_map(|other| library.listed_beside(other));
        for copy in copies.chain([mirrored]) {
            let Some((_, bytes)) = backend.object(copy.key()).await? else { continue };
            if Digest::of(&bytes) != file.sha256 {
                continue;
            }
            let seen = backend.store().head(key.key()).await?.and_then(|meta| meta.etag);
            // The key names the digest, so restoring the content is invisible to readers.
            backend.put_object(&key, leaf(path), bytes, if_unchanged(seen.as_deref())).await?;
            break;
        }
    }
    Ok(())
}

/// Restores the index from the record of a release. The caller names the release; nothing is guessed.
async fn restore_index(access: &LibraryAdmin, release: &str) -> Result<()> {
    let LibraryAdmin { backend, library, .. } = access;
    let intact = intact_releases(access).await?;
    let wanted: Vec<&Intact> = intact
        .iter()
        .filter(|intact| intact.name == release || intact.record.release.to_string() == release)
        .collect();
    let [wanted] = wanted.as_slice() else {
        let names = wanted.iter().map(|intact| intact.name.as_str()).collect::<Vec<_>>().join(", ");
        let none = format!("{library} has no intact release `{}`", shorten(release));
        let several = format!("two publishers wrote release {release}: {names}; only one was committed");
        let error = match wanted.is_empty() {
            true => Error::new(ErrorKind::NotFound, none),
            false => Error::new(ErrorKind::Ambiguous, several),
        };
        return Err(error.with_hint(restorable(&intact)));
    };
    let conflict = || {
        let message = format!("somebody else wrote the index of {library}");
        Error::new(ErrorKind::Conflict, message).with_hint("verify it again")
    };
    // Replace the index only if it is still damaged or missing.
    let seen = match backend.object(library.index().key()).await? {
        Some((_, bytes)) if Index::decode(&bytes).is_ok() => return Err(conflict()),
        Some((meta, _)) => meta.etag,
        None => None,
    };
    let put =
        backend.put_document(&library.index(), wanted.bytes.clone(), if_unchanged(seen.as_deref())).await;
    backend.library_changed();
    match put.map_err(|e| e.during("restore the index of", library))? {
        Some(_) => Ok(()),
        None => Err(conflict()),
    }
}
