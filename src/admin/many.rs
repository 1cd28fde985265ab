//! Publishing the same to many users.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{StreamExt, stream};

use super::plan::{NewLibrary, Plan, PushOptions};
use super::publish::Published;
use crate::backend::SkillFs;
use crate::error::Result;
use crate::id::UserId;
use crate::mount::Library;

/// Users that are published to at once.
const AT_ONCE: usize = 8;

/// What came of one user: the plan, and what was published; nothing in a dry run.
pub type PushedToUser = (UserId, Result<(Plan, Option<Published>)>);

/// How many users are to be published to, and how.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct ManyOptions {
    /// Only plans.
    pub dry_run: bool,
    /// Waits while somebody else publishes to a user.
    pub wait: bool,
}

impl SkillFs {
    /// Publishes the same to many users, eight at once, and tells of each what came of it, in their order. One that
    /// fails does not stop the others; run again, those that have it already cost a listing and a look.
    ///
    /// The first user is published to alone: what is large is then copied from it on the server.
    pub async fn push_to_users(
        &self,
        users: &[UserId],
        new: &NewLibrary,
        options: &PushOptions,
        many: ManyOptions,
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
            let result = self.push_to(&library, new, &options, many).await;
            if result.is_ok() && !many.dry_run {
                options.copies_from(library);
            }
            tell();
            results.push((first.clone(), result));
        }
        let (options, tell) = (&options, &tell);
        let pushes: Vec<_> = rest
            .map(|user| async move {
                let result = self.push_to(&Library::User(user.clone()), new, options, many).await;
                tell();
                (user.clone(), result)
            })
            .collect();
        let mut pushes = stream::iter(pushes).buffered(AT_ONCE);
        while let Some(result) = pushes.next().await {
            results.push(result);
        }
        results
    }

    async fn push_to(
        &self,
        library: &Library,
        new: &NewLibrary,
        options: &PushOptions,
        many: ManyOptions,
    ) -> Result<(Plan, Option<Published>)> {
        let mut plan = self.plan(library, new, options).await?;
        if many.dry_run {
            return Ok((plan, None));
        }
        if let Some(under_way) = &plan.under_way {
            let wait = many.wait || under_way.by == options.by;
            self.resume(library, &options.by, options.lease, wait, Some(new), &|_| ()).await?;
            plan = self.plan(library, new, options).await?;
        }
        let published = self.publish(&plan, &|_| ()).await?;
        Ok((plan, Some(published)))
    }
}
