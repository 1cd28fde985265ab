//! Sends requests: credentials, the tenant's queue, timeouts, and hedging.
//!
//! Reads are *hedged*: one that is much slower than usual is cancelled and reissued, within a budget (see
//! [`hedge`](super::hedge)). The SDK retries failed reads with exponential backoff and jitter;
//! [`write`](super::write) retries writes. This module sends a request again only if its credentials had expired.
//!
//! A request holds its permit of the limiter in a separate task until the response begins, so a caller that stops
//! polling blocks nobody else.

use std::pin::Pin;
use std::sync::Arc;

use tracing::Instrument;

use super::bucket::{Bucket, Store};
use super::clients::Clients;
use super::failure::Failure;
use super::hedge::{Hedge, Hedges};
use crate::ambient::Instant;
use crate::cache::Passed;
use crate::mount::Tenant;

/// The boxed future of an SDK request.
pub(super) type Sending<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// What a read is about, and what its success proves to the cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadTarget<'k> {
    pub(super) key: &'k str,
    pub(super) how: Passed,
    pub(super) hedge: fn(&Hedges) -> &Hedge,
}

/// A task that is aborted when its handle is dropped.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs a future in a separate task, which is aborted when the caller is dropped.
///
/// A caller may stop polling its future for a while, as a buffered stream does between two items. If that future held a
/// permit of the limiter, other requests would wait for it, and the caller itself could deadlock.
async fn spawned<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let mut task = AbortOnDrop(tokio::spawn(work.in_current_span()));
    match (&mut task.0).await {
        Ok(done) => done,
        // Propagate a panic to the caller, as if there were no task.
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down.
        Err(_) => std::future::pending().await,
    }
}

impl Store {
    /// Runs a request with a permit of this tenant.
    pub(super) async fn in_turn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let (limiter, tenant) = (self.limiter.clone(), self.tenant.clone());
        spawned(async move {
            let _turn = limiter.turn(&tenant).await;
            work.await
        })
        .await
    }

    /// Sends a read. If it is much slower than usual, it is cancelled and reissued.
    pub(super) async fn hedged<T, E>(
        &self,
        about: ReadTarget<'_>,
        send: impl Fn(&Clients) -> Sending<T, E> + Clone + Send + Sync + 'static,
    ) -> Result<T, Failure>
    where
        Failure: From<E>,
        T: Send + 'static,
        E: Send + 'static,
    {
        let ReadTarget { key, how, hedge } = about;
        let route = self.route(&[key]);
        // Reads of a shared library use the library's queue: sessions of several tenants may wait for the same
        // response, and must not depend on the queue of one of them.
        let tenant = self.tenant.owner_of(key);
        let mut renewed = false;
        loop {
            let (clients, granted) = route.clients().await?;
            let (send, sent) = (send.clone(), Instant::now());
            match spawned(hedge_in_turn(self.bucket.clone(), tenant.clone(), hedge, move || send(&clients)))
                .await
            {
                Err(failure) if !renewed && route.renews(&failure, sent) => renewed = true,
                result => {
                    if let Some(granted) = granted
                        && result.as_ref().err().is_none_or(Failure::proves_access)
                    {
                        granted.evidence.record(key, how, true);
                    }
                    return result;
                }
            }
        }
    }

    /// Sends a request without hedging.
    pub(super) async fn unhedged<T, E>(
        &self,
        keys: &[&str],
        send: impl Fn(&Clients) -> Sending<T, E> + Send + Sync,
    ) -> Result<T, Failure>
    where
        Failure: From<E>,
        T: Send + 'static,
        E: Send + 'static,
    {
        let route = self.route(keys);
        let mut renewed = false;
        loop {
            let ((clients, _), sent) = (route.clients().await?, Instant::now());
            match self.in_turn(send(&clients)).await.map_err(Failure::from) {
                Err(failure) if !renewed && route.renews(&failure, sent) => renewed = true,
                result => return result,
            }
        }
    }
}

/// Sends a request with a permit of the tenant, and reissues it if it is too slow.
async fn hedge_in_turn<T, E>(
    bucket: Arc<Bucket>,
    tenant: Tenant,
    hedge: fn(&Hedges) -> &Hedge,
    send: impl Fn() -> Sending<T, E> + Send + Sync,
) -> Result<T, Failure>
where
    Failure: From<E>,
{
    let _turn = bucket.limiter.turn(&tenant).await;
    let hedge = bucket.hedges.as_ref().map(hedge);
    let (began, timeout) = (Instant::now(), bucket.limits.operation);
    let limit = hedge.and_then(Hedge::limit).filter(|limit| *limit < timeout);
    let mut sent = send();
    let mut response = tokio::time::timeout(limit.unwrap_or(timeout), &mut sent).await;
    if let (Err(_), Some(limit), Some(hedge)) = (&response, limit, hedge) {
        if hedge.may_reissue() {
            bucket.counters.reissued();
            tracing::debug!(?limit, "no response in time; reissued");
            // Cancel the first request before the second one starts.
            drop(sent);
            sent = send();
        }
        response = tokio::time::timeout(timeout.saturating_sub(began.elapsed()), sent).await;
    }
    if let Some(hedge) = hedge {
        hedge.record(began.elapsed());
    }
    match response {
        Ok(response) => response.map_err(Failure::from),
        Err(_) => Err(Failure::timed_out()),
    }
}
