//! The components of a handle that a program can replace.

use std::sync::Arc;

use aws_sdk_s3::config::{HttpClient, ProvideCredentials, SharedCredentialsProvider, SharedHttpClient};

use crate::ambient::{Ambient, Clock, Randomness};

/// The components of a handle that a program can replace: the HTTP client, the credentials provider, the clock, and the
/// source of randomness.
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
    /// Sends requests with this HTTP client instead of the SDK's default client (hyper with rustls).
    #[must_use]
    pub fn http_client(self, client: impl HttpClient + 'static) -> Self {
        Self { http: Some(SharedHttpClient::new(client)), ..self }
    }

    /// Signs requests with credentials from this provider instead of the default AWS credential chain.
    /// [`Settings::credentials`](crate::Settings::credentials) takes precedence over it.
    #[must_use]
    pub fn credentials(self, provider: impl ProvideCredentials + 'static) -> Self {
        Self { credentials: Some(SharedCredentialsProvider::new(provider)), ..self }
    }

    /// Reads the wall-clock time from this clock whenever the server's time is unknown.
    #[must_use]
    pub fn clock(self, clock: impl Clock + 'static) -> Self {
        Self { ambient: Ambient { clock: Arc::new(clock), ..self.ambient }, ..self }
    }

    /// Takes random bytes from this source. They are used for write ids, release ids and retry jitter.
    #[must_use]
    pub fn randomness(self, randomness: impl Randomness + 'static) -> Self {
        Self { ambient: Ambient { randomness: Arc::new(randomness), ..self.ambient }, ..self }
    }
}
