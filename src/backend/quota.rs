//! Quotas: how much a session's mounts may hold.
//!
//! The usage of a mount is counted by listing it, and then updated with the changes that this
//! process makes. Quotas are best effort: writes of other processes within the last minute are not
//! counted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::S3Backend;
use crate::ambient::Instant;
use crate::entry::Depth;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{Directory, Target, WritableKey};
use crate::path::VirtualPath;
use crate::store::{Listed, Lister};

/// How long a count stays valid.
const FRESH_FOR: Duration = Duration::from_secs(60);
const MAX_MOUNTS: u64 = 10_000;
/// How long the usage of an idle mount is kept.
const IDLE_FOR: Duration = Duration::from_secs(10 * 60);

/// The usage of each mount that has been counted.
pub(super) type Usages = moka::sync::Cache<String, Arc<Usage>>;

pub(super) fn usages() -> Usages {
    moka::sync::Cache::builder().max_capacity(MAX_MOUNTS).time_to_idle(IDLE_FOR).build()
}

/// The usage of one mount.
#[derive(Debug, Default)]
pub(super) struct Usage {
    state: Mutex<UsageState>,
    /// Held while counting, so that concurrent callers share one count.
    counting: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct UsageState {
    /// When the mount was counted, and its usage including later writes. `None` if it must be
    /// counted again.
    counted: Option<(Instant, Amount)>,
    /// Reservations of writes in flight. A new count does not include them, so they are kept.
    reserved: Amount,
}

/// Bytes and objects. A reservation may be negative.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Amount {
    bytes: i64,
    objects: i64,
}

impl Amount {
    fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.objects = self.objects.saturating_add(other.objects);
    }

    fn negative(self) -> Self {
        Self { bytes: self.bytes.saturating_neg(), objects: self.objects.saturating_neg() }
    }
}

impl Usage {
    fn lock(&self) -> MutexGuard<'_, UsageState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reservation for a write. It is released if the write does not happen.
#[derive(Debug)]
pub(super) struct Reservation {
    usage: Option<Arc<Usage>>,
    amount: Amount,
    committed: bool,
}

impl Reservation {
    /// Commits the reservation: the write took effect.
    pub(super) fn commit(mut self) {
        self.committed = true;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let Some(usage) = &self.usage else { return };
        let mut state = usage.lock();
        state.reserved.add(self.amount.negative());
        if let Some((_, counted)) = state.counted.as_mut().filter(|_| self.committed) {
            counted.add(self.amount);
        }
    }
}

impl S3Backend {
    /// Whether this session's mounts are limited, so that a write must know what it replaces.
    pub(super) fn has_mount_quota(&self) -> bool {
        self.quota.mount_bytes.is_some() || self.quota.mount_objects.is_some()
    }

    /// Rejects a file that is too large for this session.
    pub(super) fn check_file_size(&self, path: &VirtualPath, bytes: u64) -> Result<()> {
        match self.quota.file_bytes {
            Some(most) if bytes > most => Err(exceeded(
                path,
                format!("`{path}` would have {bytes} bytes; the limit for a file of this session is {most}"),
                "write a smaller file",
            )),
            _ => Ok(()),
        }
    }

    /// Reserves space for a file of `bytes` bytes that replaces one of `old` bytes, if any.
    pub(super) async fn reserve(
        &self,
        target: &Target,
        path: &VirtualPath,
        bytes: u64,
        old: Option<u64>,
    ) -> Result<Reservation> {
        self.check_file_size(path, bytes)?;
        let more = signed(bytes).saturating_sub(signed(old.unwrap_or(0)));
        let amount = Amount { bytes: more, objects: i64::from(old.is_none()) };
        let mut reservation = Reservation { usage: None, amount, committed: false };
        if !self.has_mount_quota() {
            return Ok(reservation);
        }
        let key = target.mount.prefix().as_str().to_owned();
        let usage = self.shared.usages.get_with(key, Arc::default);
        let known = self.count(&target.mount, &usage, None).await?;
        if let Err(refused) = self.try_reserve(&usage, amount, target, path) {
            // Space may have been freed since the last count: count again, unless we just did.
            let Some(at) = known else { return Err(refused) };
            self.count(&target.mount, &usage, Some(at)).await?;
            self.try_reserve(&usage, amount, target, path)?;
        }
        reservation.usage = Some(usage);
        Ok(reservation)
    }

    /// With a quota, serializes the writes to a file: each must know what the previous one left.
    pub(super) async fn quota_lock(&self, key: &WritableKey) -> Option<tokio::sync::OwnedMutexGuard<()>> {
        if !self.has_mount_quota() {
            return None;
        }
        let lock = self.shared.file_locks.get(key.as_str());
        tokio::time::timeout(self.shared.settings.conflict_patience, lock.lock_owned()).await.ok()
    }

    /// Invalidates the count of a mount.
    pub(super) fn invalidate_usage(&self, mount: &Directory) {
        if let Some(usage) = self.shared.usages.get(mount.prefix().as_str()) {
            usage.lock().counted = None;
        }
    }

    fn try_reserve(&self, usage: &Usage, amount: Amount, target: &Target, path: &VirtualPath) -> Result<()> {
        let mut state = usage.lock();
        let mount = target.mount.path();
        let mut now = state.counted.map_or(Amount::default(), |(_, amount)| amount);
        now.add(state.reserved);
        let mut then = now;
        then.add(amount);
        let over =
            |most: Option<u64>, more: i64, then: i64| most.filter(|most| more > 0 && then > signed(*most));
        if let Some(most) = over(self.quota.mount_bytes, amount.bytes, then.bytes) {
            return Err(exceeded(
                path,
                format!(
                    "`{mount}` would contain {} bytes; the limit is {most}, and it contains {} now",
                    then.bytes, now.bytes
                ),
                "delete what is no longer needed, or write less",
            ));
        }
        if let Some(most) = over(self.quota.mount_objects, amount.objects, then.objects) {
            return Err(exceeded(
                path,
                format!("`{mount}` would contain {} objects; the limit is {most}", then.objects),
                "delete what is no longer needed",
            ));
        }
        state.reserved.add(amount);
        Ok(())
    }

    /// Counts the usage of a mount, unless a valid count is cached. One request per 1,000 keys.
    ///
    /// With `after`, only a later count is valid. Returns when the cached count was taken, or
    /// `None` if it was counted now.
    async fn count(
        &self,
        mount: &Directory,
        usage: &Usage,
        after: Option<Instant>,
    ) -> Result<Option<Instant>> {
        let known = || {
            let (at, _) = usage.lock().counted?;
            let newer = after.is_none_or(|after| at > after);
            (newer && at.elapsed() < FRESH_FOR).then_some(at)
        };
        if let Some(at) = known() {
            return Ok(Some(at));
        }
        let _counting = usage.counting.lock().await;
        if let Some(at) = known() {
            return Ok(Some(at));
        }
        let mut amount = Amount::default();
        let mut lister = Lister::new(mount.prefix(), Depth::All);
        while let Some(items) =
            lister.next(self.store()).await.map_err(|e| e.during("count the contents of", mount.path()))?
        {
            for item in items {
                if let Listed::Object { meta, .. } = item {
                    amount.add(Amount { bytes: signed(meta.size), objects: 1 });
                }
            }
        }
        usage.lock().counted = Some((Instant::now(), amount));
        Ok(None)
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn exceeded(path: &VirtualPath, message: String, hint: &'static str) -> Error {
    Error::new(ErrorKind::QuotaExceeded, message).at(path).with_hint(hint)
}
