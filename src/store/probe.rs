//! Probes whether the server honors conditional PutObject requests.

use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;
use tracing::instrument;

use super::bucket::Store;
use super::failure::Outcome;
use crate::error::Result;
use crate::mount::WritableKey;

impl Store {
    /// Returns whether the server honors conditional writes. Probed once per handle, with a key that the session may
    /// write.
    pub(crate) async fn conditional_writes(
        &self,
        probe: impl FnOnce() -> Result<WritableKey>,
    ) -> Result<bool> {
        if let Some(honored) = self.capabilities.puts.get() {
            return Ok(*honored);
        }
        let probe = probe()?;
        self.capabilities.puts.get_or_try_init(|| self.probe_conditions(&probe)).await.copied()
    }

    /// Sends a PutObject for a missing key with an `If-Match` that cannot match. A server that ignores the condition
    /// creates the object, which is deleted again.
    #[instrument(level = "debug", skip_all, fields(key = probe.as_str()))]
    async fn probe_conditions(&self, probe: &WritableKey) -> Result<bool> {
        let impossible = |writer: &Client| {
            writer
                .put_object()
                .bucket(&*self.name)
                .key(probe.as_str())
                .if_match("\"00000000000000000000000000000000\"")
                .body(ByteStream::from_static(b""))
                .send()
        };
        let mut attempts = self.attempts(&[probe.as_str()]);
        let mut may_exist = false;
        loop {
            let Err(failure) = attempts.send(self.limits.attempt, impossible).await else {
                self.delete(probe).await?;
                return Ok(false);
            };
            let exhausted = attempts.count_failure();
            let outcome = failure.outcome();
            may_exist |= outcome == Outcome::Lost;
            match outcome {
                // Both 404 and 412 mean that the condition was honored.
                Outcome::Condition => return Ok(true),
                _ if failure.is_not_implemented() => return Ok(false),
                Outcome::NotDone | Outcome::Lost if !exhausted => attempts.pause().await,
                _ => {
                    if may_exist {
                        // Best effort: an empty object may remain.
                        let _ = self.delete(probe).await;
                    }
                    return Err(self.fail(failure));
                }
            }
        }
    }
}
