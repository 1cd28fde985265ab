//! The SDK clients for one set of credentials. All clients of a process share one connection pool.

use std::sync::Arc;

use aws_config::identity::IdentityCache;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_s3::config::SharedCredentialsProvider;
use aws_sdk_s3::{Client, Config};

/// SDK clients with the same credentials and different retry and timeout settings.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) client: Client,
    /// For GET and HEAD, with fewer SDK timeouts.
    pub(super) reader: Client,
    /// For writes, without SDK retries and timeouts: [`write`](super::write) decides what may be sent again and when.
    pub(super) writer: Client,
    pub(super) bucket: Arc<str>,
}

/// The configuration that all clients of a bucket share.
#[derive(Debug)]
pub(super) struct Blueprint {
    pub(super) config: Config,
    pub(super) bucket: Arc<str>,
    /// The timeouts of [`Clients::reader`].
    pub(super) reading: TimeoutConfig,
    /// The timeouts of [`Clients::writer`].
    pub(super) writing: TimeoutConfig,
}

impl Blueprint {
    /// Builds clients with the given credentials, or with those of the process.
    pub(super) fn clients(&self, credentials: Option<SharedCredentialsProvider>) -> Clients {
        let mut config = self.config.to_builder();
        if let Some(credentials) = credentials {
            // The provider caches them itself.
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
