//! The clients that speak to the bucket with one set of credentials. All of them share one pool of connections.

use std::sync::Arc;

use aws_config::identity::IdentityCache;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_s3::config::SharedCredentialsProvider;
use aws_sdk_s3::{Client, Config};

/// Clients with the same credentials.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) client: Client,
    /// The same for GET and HEAD, with fewer time limits of its own.
    pub(super) reader: Client,
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
        Clients {
            client: Client::from_conf(config),
            reader,
            writer: Client::from_conf(writer),
            bucket: self.bucket.clone(),
        }
    }
}
