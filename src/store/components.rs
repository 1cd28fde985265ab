//! The parts of a handle that a program may replace.

use std::sync::Arc;

use aws_sdk_s3::config::{HttpClient, ProvideCredentials, SharedCredentialsProvider, SharedHttpClient};

use crate::ambient::{Ambient, Clock, Randomness};

/// The parts of a handle that a program may replace: how requests travel, what they are signed with, what time it is,
/// and where random bytes come from.
///
/// ```
/// # use skillfs::{Clock, Components};
/// # use std::time::SystemTime;
/// #[derive(Debug)]
/// struct Frozen(SystemTime);
///
/// impl Clock for Frozen {
///     fn now(&self) -> SystemTime {
///         self.0
///     }
/// }
///
/// let components = Components::default().clock(Frozen(SystemTime::UNIX_EPOCH));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Components {
    pub(super) http: Option<SharedHttpClient>,
    pub(super) credentials: Option<SharedCredentialsProvider>,
    pub(super) ambient: Ambient,
}

impl Components {
    /// Sends requests with this HTTP client of the AWS SDK, instead of the SDK's own with rustls.
    #[must_use]
    pub fn http_client(self, client: impl HttpClient + 'static) -> Self {
        Self { http: Some(SharedHttpClient::new(client)), ..self }
    }

    /// Signs requests with what this provider of the AWS SDK gives, instead of the AWS chain.
    /// [`Settings::credentials`](crate::Settings::credentials) goes before it.
    #[must_use]
    pub fn credentials(self, provider: impl ProvideCredentials + 'static) -> Self {
        Self { credentials: Some(SharedCredentialsProvider::new(provider)), ..self }
    }

    /// Takes the time from here, wherever the server's own clock is not known.
    #[must_use]
    pub fn clock(self, clock: impl Clock + 'static) -> Self {
        Self { ambient: Ambient { clock: Arc::new(clock), ..self.ambient }, ..self }
    }

    /// Takes random bytes from here: ids of writes and releases, and the jitter of retries.
    #[must_use]
    pub fn randomness(self, randomness: impl Randomness + 'static) -> Self {
        Self { ambient: Ambient { randomness: Arc::new(randomness), ..self.ambient }, ..self }
    }
}
