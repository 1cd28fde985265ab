//! Sending: when it is a tenant's turn, for so long, and again where that helps.
//!
//! Reads are *hedged*: one that takes much longer than others is cancelled and reissued, within a budget (see
//! [`hedge`](super::hedge)). The SDK retries what fails, with exponential backoff and jitter; writes retry themselves
//! (see [`write`](super::write)). Here, a request is sent again only for credentials that ended on the way.

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

/// A request that may be sent more than once.
pub(super) type Sending<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// What a read is about, and what its answer proves.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadTarget<'k> {
    pub(super) key: &'k str,
    pub(super) how: Passed,
    pub(super) hedge: fn(&Hedges) -> &Hedge,
}

/// A task that ends with whoever waits for it.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Does work in a task of its own: a caller may leave its future alone for a while, as a stream of many does between
/// two items. Were a turn held in that future, others would wait for it, and the caller itself for ever.
async fn spawned<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let mut task = AbortOnDrop(tokio::spawn(work.in_current_span()));
    match (&mut task.0).await {
        Ok(done) => done,
        // A defect stays where it belongs: with the caller, as if there were no task between.
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is about to end.
        Err(_) => std::future::pending().await,
    }
}

impl Store {
    /// Sends something when it is this tenant's turn.
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

    /// Sends a request that only reads. One that is much slower than others is cancelled and reissued.
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
        // What is in a shared library is asked for on the library's behalf: others wait for the same answer, and must
        // not stand in one tenant's queue.
        let tenant = self.tenant.owner_of(key);
        let mut renewed = false;
        loop {
            let (clients, granted) = route.clients().await?;
            let (send, sent) = (send.clone(), Instant::now());
            match spawned(hedge_in_turn(self.bucket.clone(), tenant.clone(), hedge, move || send(&clients)))
                .await
            {
                Err(failure) if !renewed && route.renews(&failure, sent) => renewed = true,
                answer => {
                    if let Some(granted) = granted
                        && answer.as_ref().err().is_none_or(Failure::is_no_refusal)
                    {
                        granted.evidence.record(key, how, true);
                    }
                    return answer;
                }
            }
        }
    }

    /// Sends a request that is not hedged.
    pub(super) async fn plain<T, E>(
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
                answer => return answer,
            }
        }
    }
}

/// Sends a request when it is the tenant's turn; again when it takes too long.
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
    let (began, patience) = (Instant::now(), bucket.limits.operation);
    let limit = hedge.and_then(Hedge::limit).filter(|limit| *limit < patience);
    let mut sent = send();
    let mut answer = tokio::time::timeout(limit.unwrap_or(patience), &mut sent).await;
    if let (Err(_), Some(limit), Some(hedge)) = (&answer, limit, hedge) {
        if hedge.may_reissue() {
            bucket.counters.reissued();
            tracing::debug!(?limit, "no response in time; reissued");
            // The first one goes before the second begins.
            drop(sent);
            sent = send();
        }
        answer = tokio::time::timeout(patience.saturating_sub(began.elapsed()), sent).await;
    }
    if let Some(hedge) = hedge {
        hedge.record(began.elapsed());
    }
    match answer {
        Ok(answer) => answer.map_err(Failure::from),
        Err(_) => Err(Failure::timed_out()),
    }
}
