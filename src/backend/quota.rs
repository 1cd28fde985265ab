//! Quotas: how much a session's mounts may hold.
//!
//! What a mount holds is found by listing it, and then kept up to date with what this process changes.
//! A quota is a fence, not a lock: what other processes write within the same minute is not seen.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::S3Backend;
use crate::entry::Depth;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{Directory, Target};
use crate::path::VirtualPath;
use crate::store::{Listed, Lister};

/// How long a listing counts as what is there.
const FRESH_FOR: Duration = Duration::from_secs(60);
const MOST_MOUNTS: u64 = 10_000;

/// What each mount holds, as far as it was asked for.
pub(super) type Usages = moka::future::Cache<String, Arc<Mutex<Usage>>>;

pub(super) fn usages() -> Usages {
    moka::future::Cache::builder().max_capacity(MOST_MOUNTS).time_to_live(FRESH_FOR).build()
}

#[derive(Debug, Default)]
pub(super) struct Usage {
    bytes: u64,
    objects: u64,
}

impl Usage {
    fn change(&mut self, bytes: i64, objects: i64) {
        self.bytes = self.bytes.saturating_add_signed(bytes);
        self.objects = self.objects.saturating_add_signed(objects);
    }
}

/// Room that is taken for a write, and given back when the write does not happen.
#[derive(Debug)]
pub(super) struct Room {
    usage: Option<Arc<Mutex<Usage>>>,
    bytes: i64,
    objects: i64,
}

impl Room {
    /// The write took effect.
    pub(super) fn keep(mut self) {
        self.usage = None;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(usage) = &self.usage {
            usage.lock().unwrap_or_else(PoisonError::into_inner).change(-self.bytes, -self.objects);
        }
    }
}

impl S3Backend {
    /// Whether this session's mounts are limited, so that a write must know what it replaces.
    pub(super) fn counts_usage(&self) -> bool {
        self.quota.mount_bytes.is_some() || self.quota.mount_objects.is_some()
    }

    /// Refuses a file that is too large for this session.
    pub(super) fn check_file_size(&self, path: &VirtualPath, bytes: u64) -> Result<()> {
        match self.quota.file_bytes {
            Some(most) if bytes > most => Err(exceeded(
                path,
                format!("`{path}` would have {bytes} bytes, and a file of this session may have {most}"),
                "write a smaller file",
            )),
            _ => Ok(()),
        }
    }

    /// Takes room for a file of `bytes` that replaces one of `old` bytes, or none.
    pub(super) async fn room(
        &self,
        target: &Target,
        path: &VirtualPath,
        bytes: u64,
        old: Option<u64>,
    ) -> Result<Room> {
        self.check_file_size(path, bytes)?;
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let more = signed(bytes).saturating_sub(signed(old.unwrap_or(0)));
        let mut room = Room { usage: None, bytes: more, objects: i64::from(old.is_none()) };
        if !self.counts_usage() {
            return Ok(room);
        }
        let (usage, just_listed) = self.usage(&target.mount).await?;
        let taken = match self.take(&usage, &room, target, path) {
            // Others may have made room meanwhile.
            Err(_) if !just_listed => {
                self.forget_usage(&target.mount).await;
                let (usage, _) = self.usage(&target.mount).await?;
                self.take(&usage, &room, target, path).map(|()| usage)
            }
            taken => taken.map(|()| usage),
        };
        room.usage = Some(taken?);
        Ok(room)
    }

    /// Tells that files are gone.
    pub(super) async fn give_back(&self, mount: &Directory, bytes: u64, objects: u64) {
        if let Some(usage) = self.shared.usages.get(mount.prefix().as_str()).await {
            let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
            usage.lock().unwrap_or_else(PoisonError::into_inner).change(-signed(bytes), -signed(objects));
        }
    }

    /// What a mount holds is counted anew when it is asked for.
    pub(super) async fn forget_usage(&self, mount: &Directory) {
        self.shared.usages.invalidate(mount.prefix().as_str()).await;
    }

    fn take(&self, usage: &Mutex<Usage>, room: &Room, target: &Target, path: &VirtualPath) -> Result<()> {
        let mut usage = usage.lock().unwrap_or_else(PoisonError::into_inner);
        let mount = target.mount.path();
        let bytes = usage.bytes.saturating_add_signed(room.bytes);
        let objects = usage.objects.saturating_add_signed(room.objects);
        if let Some(most) = self.quota.mount_bytes.filter(|most| room.bytes > 0 && bytes > *most) {
            return Err(exceeded(
                path,
                format!(
                    "`{mount}` would hold {bytes} bytes, and may hold {most}; there are {} now",
                    usage.bytes
                ),
                "delete what is no longer needed, or write less",
            ));
        }
        if let Some(most) = self.quota.mount_objects.filter(|most| room.objects > 0 && objects > *most) {
            return Err(exceeded(
                path,
                format!("`{mount}` would hold {objects} objects, and may hold {most}"),
                "delete what is no longer needed",
            ));
        }
        usage.change(room.bytes, room.objects);
        Ok(())
    }

    /// What a mount holds, and whether it was listed just now. One request for every 1,000 keys then.
    async fn usage(&self, mount: &Directory) -> Result<(Arc<Mutex<Usage>>, bool)> {
        let key = mount.prefix().as_str().to_owned();
        let entry = self.shared.usages.entry(key).or_try_insert_with(self.count(mount)).await;
        // The error is shared by all who waited for it.
        let entry = entry.map_err(|error: Arc<Error>| error.again())?;
        let fresh = entry.is_fresh();
        Ok((entry.into_value(), fresh))
    }

    async fn count(&self, mount: &Directory) -> Result<Arc<Mutex<Usage>>> {
        let mut usage = Usage::default();
        let mut lister = Lister::new(mount.prefix(), Depth::All);
        while let Some(items) =
            lister.next(self.store()).await.map_err(|e| e.during("count what is in", mount.path()))?
        {
            for item in items {
                if let Listed::Object { meta, .. } = item {
                    usage.bytes = usage.bytes.saturating_add(meta.size);
                    usage.objects += 1;
                }
            }
        }
        Ok(Arc::new(Mutex::new(usage)))
    }
}

fn exceeded(path: &VirtualPath, message: String, hint: &str) -> Error {
    Error::new(ErrorKind::QuotaExceeded, message).at(path).with_hint(hint)
}
