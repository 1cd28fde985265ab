//! What lies beside a library: read and written by those who look after it.

use sha2::{Digest, Sha256};

use super::S3Backend;
use super::read::changed_while_read;
use crate::error::Result;
use crate::mount::{Library, Location};
use crate::path::VirtualPath;
use crate::store::{
    ByteRange, Condition, Expect, Fetched, History, Meta, Payload, Properties, Put, Write, WriteId,
};

impl S3Backend {
    /// The SHA-256 of a file of one layer, in the version that a listing found there, and its first bytes.
    /// One request.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) when it is another version now, or gone.
    pub(crate) async fn digest_listed(
        &self,
        path: &VirtualPath,
        layer: usize,
        meta: &Meta,
        most: u64,
    ) -> Result<(String, Vec<u8>)> {
        let Location::Inside { key, .. } = self.mounts.resolve_layer(path, layer)? else {
            return Err(Self::not_found(path));
        };
        let (mut digest, mut head) = (Sha256::new(), Vec::new());
        if meta.size > 0 {
            let whole = ByteRange { start: 0, end: None };
            let expect = meta.etag.as_deref().map_or(Expect::Any, Expect::Version);
            let fetched = self.store().get(&key, whole, expect).await.map_err(|e| e.during("read", path))?;
            let Fetched::Found { mut body, meta: now, .. } = fetched else {
                return Err(changed_while_read(path));
            };
            if now.etag != meta.etag || now.size != meta.size {
                return Err(changed_while_read(path));
            }
            while let Some(piece) = body.next(self.store()).await.map_err(|e| e.during("read", path))? {
                let more = usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(head.len());
                head.extend_from_slice(&piece[..more.min(piece.len())]);
                digest.update(&piece);
            }
        }
        let sha256 = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((sha256, head))
    }

    /// Writes the index of a library over the version that was seen. `false` when another was first.
    pub(crate) async fn write_beside(
        &self,
        library: &Library,
        bytes: Vec<u8>,
        seen: Option<&str>,
    ) -> Result<bool> {
        let key = library.index();
        let id = WriteId::new()?;
        let properties = Properties {
            content_type: Some("application/json".to_owned()),
            history: History::first(&id),
            ..Properties::default()
        };
        let condition = match seen {
            Some(etag) => Condition::Version { etag: etag.to_owned(), known: None },
            None => Condition::Absent,
        };
        let payload = Payload::Bytes(bytes.into());
        let write = Write { key: &key, id: &id, payload, condition, properties: &properties };
        let put = self.store().put(&write).await.map_err(|e| e.during("write the index of", library));
        // Sessions of this process see it at once.
        for top in self.mounts.skill_layers() {
            self.cache().changed(top.prefix().as_str());
        }
        Ok(matches!(put?, Put::Done { .. }))
    }
}
