//! Publishing the same to many users.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{StreamExt, stream};

use super::new::{NewLibrary, PushOptions};
use super::plan::Plan;
use super::publish::Published;
use crate::backend::SkillFs;
use crate::error::Result;
use crate::id::UserId;
use crate::mount::Library;

/// Users that are published to at once.
const AT_ONCE: usize = 8;

/// What came of one user: the plan, and what was published; nothing in a dry run.
pub type PushedToUser = (UserId, Result<(Plan, Option<Published>)>);

impl SkillFs {
    /// Publishes the same to many users, eight at once, and tells of each what came of it, in their order. One that
    /// fails does not stop the others; run again, those that have it already cost two requests.
    ///
    /// The first user is published to alone: what is large is then copied from it on the server.
    pub async fn push_to_users(
        &self,
        users: &[UserId],
        new: &NewLibrary,
        options: &PushOptions,
        dry_run: bool,
        watch: &(dyn Fn(u64, u64) + Sync),
    ) -> Vec<PushedToUser> {
        let (done, total) = (AtomicU64::new(0), users.len() as u64);
        watch(0, total);
        let tell = || watch(done.fetch_add(1, Ordering::Relaxed) + 1, total);
        let mut results = Vec::new();
        let mut options = options.clone();
        let mut rest = users.iter();
        if let Some(first) = rest.next() {
            let library = Library::User(first.clone());
            let result = self.push_to(&library, new, &options, dry_run).await;
            if let Ok((_, Some(published))) = &result {
                options.copy_from = published.id.clone().map(|id| (library, id));
            }
            tell();
            results.push((first.clone(), result));
        }
        let (options, tell) = (&options, &tell);
        let pushes: Vec<_> = rest
            .map(|user| async move {
                let result = self.push_to(&Library::User(user.clone()), new, options, dry_run).await;
                tell();
                (user.clone(), result)
            })
            .collect();
        results.extend(stream::iter(pushes).buffered(AT_ONCE).collect::<Vec<_>>().await);
        results
    }

    async fn push_to(
        &self,
        library: &Library,
        new: &NewLibrary,
        options: &PushOptions,
        dry_run: bool,
    ) -> Result<(Plan, Option<Published>)> {
        let plan = self.plan(library, new, options).await?;
        if dry_run {
            return Ok((plan, None));
        }
        let published = self.publish(&plan, &|_| ()).await?;
        Ok((plan, Some(published)))
    }
}
