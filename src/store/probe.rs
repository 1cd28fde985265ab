//! Finding out whether the server honors conditional writes.

use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;
use tracing::instrument;

use super::bucket::Store;
use super::failure::Outcome;
use crate::error::Result;
use crate::mount::WritableKey;

impl Store {
    /// Whether the server honors conditions of writes. Asked once for each handle, with a key of the session's own.
    pub(crate) async fn conditional_writes(
        &self,
        probe: impl FnOnce() -> Result<WritableKey>,
    ) -> Result<bool> {
        if let Some(known) = self.capabilities.puts.get() {
            return Ok(*known);
        }
        let probe = probe()?;
        self.capabilities.puts.get_or_try_init(|| self.probe_conditions(&probe)).await.copied()
    }

    /// Asks the server whether it honors conditions: a write to a key that is not there, on a version that cannot be. A
    /// server that ignores the condition makes the object, which is taken away again.
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
        let mut may_be_there = false;
        loop {
            let Err(failure) = attempts.send(self.limits.attempt, impossible).await else {
                self.delete(probe).await?;
                return Ok(false);
            };
            let exhausted = attempts.count_failure();
            let outcome = failure.outcome();
            may_be_there |= outcome == Outcome::Lost;
            match outcome {
                // 404 and 412 both say that the condition was honored.
                Outcome::Condition => return Ok(true),
                _ if failure.is_not_implemented() => return Ok(false),
                Outcome::NotDone | Outcome::Lost if !exhausted => attempts.pause().await,
                _ => {
                    if may_be_there {
                        // What cannot be taken away now stays.
                        let _ = self.delete(probe).await;
                    }
                    return Err(self.fail(failure));
                }
            }
        }
    }
}
