//! The clients that speak to the bucket with one set of credentials. All of them share one pool of connections.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use aws_config::identity::IdentityCache;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_s3::config::SharedCredentialsProvider;
use aws_sdk_s3::{Client, Config};

use super::answer::Answer;
use super::budget::Budget;
use super::failure::Failure;
use super::intercept::Watcher;
use super::lean::{Ask, Lean};

/// Clients with the same credentials.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) client: Client,
    /// The same for GET and HEAD, with fewer time limits of its own.
    pub(super) reader: Client,
    /// GET without it, as a rule.
    pub(super) lean: Lean,
    /// The same without retries and time limits: what may be sent again, and when, [`write`](super::write)
    /// decides.
    pub(super) writer: Client,
    pub(super) bucket: Arc<str>,
}

/// What all clients of a bucket have in common.
#[derive(Debug)]
pub(super) struct Blueprint {
    pub(super) config: Config,
    pub(super) bucket: Arc<str>,
    /// Limits of the reader.
    pub(super) reading: TimeoutConfig,
    /// Limits of the writer.
    pub(super) writing: TimeoutConfig,
    pub(super) retries: RetryConfig,
    pub(super) watcher: Watcher,
    pub(super) budget: Arc<Budget>,
    /// How many seconds the server's clock is ahead, when a signature was refused for that.
    pub(super) ahead: Arc<AtomicI64>,
}

impl Blueprint {
    /// Clients on the credentials of this process; or on others.
    pub(super) fn clients(&self, credentials: Option<SharedCredentialsProvider>) -> Clients {
        let mut config = self.config.to_builder();
        if let Some(credentials) = credentials {
            // Whoever provides them has them at hand.
            config = config.credentials_provider(credentials).identity_cache(IdentityCache::no_cache());
        }
        let config = config.build();
        let reader = Client::from_conf(config.to_builder().timeout_config(self.reading.clone()).build());
        let writer = config
            .to_builder()
            .retry_config(RetryConfig::disabled())
            .timeout_config(self.writing.clone())
            .build();
        let lean = Lean::new(
            reader.clone(),
            &self.bucket,
            self.watcher.clone(),
            (self.budget.clone(), self.ahead.clone()),
            (&self.retries, &self.reading),
        );
        Clients {
            client: Client::from_conf(config),
            reader,
            lean,
            writer: Client::from_conf(writer),
            bucket: self.bucket.clone(),
        }
    }
}

impl Clients {
    /// One GetObject.
    pub(super) async fn get(&self, ask: &Ask) -> Result<Answer, Failure> {
        match self.lean.get(ask).await {
            Some(answer) => answer,
            // Boxed: others would carry some kilobytes.
            None => Box::pin(self.get_by_sdk(ask)).await,
        }
    }

    pub(super) async fn get_by_sdk(&self, ask: &Ask) -> Result<Answer, Failure> {
        let request = self
            .reader
            .get_object()
            .bucket(&*self.bucket)
            .key(ask.key.as_str())
            .set_range(ask.range.clone())
            .set_if_match(ask.if_match.clone())
            .set_if_none_match(ask.if_none_match.clone());
        Ok(request.send().await?.into())
    }
}
