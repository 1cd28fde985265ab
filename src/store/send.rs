//! Sending: when it is a tenant's turn, for so long, and again where that helps.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use tracing::Instrument;

use super::clients::Clients;
use super::failure::Failure;
use super::pace::Pace;
use super::{Bucket, Store};
use crate::mount::Tenant;

#[derive(Debug, Default)]
pub(super) struct Paces {
    pub(super) get: Pace,
    pub(super) head: Pace,
    pub(super) list: Pace,
}

/// A request that may be sent more than once.
pub(super) type Sending<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// A task that ends with whoever waits for it.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Store {
    /// Sends something when it is this tenant's turn.
    ///
    /// In a task of its own: a caller may leave its future alone for a while, as a stream of many does between
    /// two items. Were the turn in that future, others would wait for it, and the caller itself for ever.
    pub(super) async fn gated<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        self.gated_for(self.tenant.clone(), work).await
    }

    /// The same on behalf of another: what lies in a shared library is asked for on the library's behalf, because
    /// others wait for the same answer, and must not stand in one tenant's queue.
    async fn gated_for<T: Send + 'static>(
        &self,
        tenant: Tenant,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let gate = self.gate.clone();
        let work = async move {
            let _turn = gate.turn(&tenant).await;
            work.await
        };
        let mut task = AbortOnDrop(tokio::spawn(work.in_current_span()));
        match (&mut task.0).await {
            Ok(done) => done,
            // A defect stays where it belongs: with the caller, as if there were no task between.
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime is about to end.
            Err(_) => std::future::pending().await,
        }
    }

    /// Sends a request that only reads. One that is much slower than others is given up and sent again.
    pub(super) async fn prompt<T, E>(
        &self,
        key: &str,
        pace: fn(&Paces) -> &Pace,
        send: impl Fn(&Arc<Clients>) -> Sending<T, E> + Clone + Send + Sync + 'static,
    ) -> Result<T, Failure>
    where
        Failure: From<E>,
        T: Send + 'static,
        E: Send + 'static,
    {
        let tenant = self.tenant.owner_of(key);
        let mut renewed = false;
        loop {
            let (bucket, clients) = (self.bucket.clone(), self.clients().await?);
            let (tenant, send, sent) = (tenant.clone(), send.clone(), Instant::now());
            let answer =
                self.gated_for(tenant, async move { bucket.prompt(pace, || send(&clients)).await }).await;
            match answer {
                Err(failure) if !renewed && self.are_renewed(&failure, sent) => renewed = true,
                answer => return answer,
            }
        }
    }

    /// Sends a request that is not sent again, but for credentials that the storage takes no longer.
    pub(super) async fn plain<T, E>(
        &self,
        send: impl Fn(&Clients) -> Sending<T, E> + Send + Sync,
    ) -> Result<T, Failure>
    where
        Failure: From<E>,
        T: Send + 'static,
        E: Send + 'static,
    {
        let mut renewed = false;
        loop {
            let (clients, sent) = (self.clients().await?, Instant::now());
            match self.gated(send(&clients)).await.map_err(Failure::from) {
                Err(failure) if !renewed && self.are_renewed(&failure, sent) => renewed = true,
                answer => return answer,
            }
        }
    }

    /// Whether the storage refused the session's credentials, and others are there or can be had: then nothing was
    /// done, and the request may be sent again.
    pub(super) fn are_renewed(&self, failure: &Failure, sent: Instant) -> bool {
        match &self.scope {
            Some(scope) if failure.is_expired() => scope.forget_credentials(sent),
            _ => false,
        }
    }
}

impl Bucket {
    async fn prompt<T, E>(
        &self,
        pace: fn(&Paces) -> &Pace,
        send: impl Fn() -> Sending<T, E> + Send + Sync,
    ) -> Result<T, Failure>
    where
        Failure: From<E>,
    {
        let pace = self.paces.as_ref().map(pace);
        let (began, patience) = (Instant::now(), self.operation_patience);
        let limit = pace.and_then(Pace::limit).filter(|limit| *limit < patience);
        let mut sent = send();
        let mut answer = tokio::time::timeout(limit.unwrap_or(patience), &mut sent).await;
        if let (Err(_), Some(limit), Some(pace)) = (&answer, limit, pace) {
            if pace.may_send_again() {
                self.counters.reissued();
                tracing::debug!(?limit, "no answer in time; sent again");
                // The first one goes before the second begins.
                drop(sent);
                sent = send();
            }
            answer = tokio::time::timeout(patience.saturating_sub(began.elapsed()), sent).await;
        }
        if let Some(pace) = pace {
            pace.record(began.elapsed());
        }
        match answer {
            Ok(answer) => answer.map_err(Failure::from),
            Err(_) => Err(Failure::timed_out()),
        }
    }
}
