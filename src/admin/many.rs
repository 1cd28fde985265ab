//! Publishes the same skills to many users.

use std::sync::Arc;

use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};

use super::new::{NewLibrary, PushOptions};
use super::plan::Plan;
use super::publish::Published;
use crate::backend::SkillFs;
use crate::error::Result;
use crate::id::UserId;
use crate::mount::Library;

/// The maximum number of users that are published to concurrently.
const MAX_USERS: usize = 8;

/// The plan for one user's library, and its result.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Pushed {
    /// The plan.
    pub plan: Plan,
    /// The result of publishing it.
    pub published: Published,
}

impl SkillFs {
    /// Plans a push of the same skills to each user's library.
    ///
    /// Up to eight plans run concurrently. The results are in the order of `users`.
    pub fn plan_for_users<'a>(
        &'a self,
        users: &'a [UserId],
        new: &NewLibrary,
        options: &PushOptions,
    ) -> BoxStream<'a, (&'a UserId, Result<Plan>)> {
        let (new, options) = (Arc::new(new.clone()), options.clone());
        let plan = move |user: &'a UserId| {
            let library = self.library(&Library::User(user.clone()));
            let (new, options) = (new.clone(), options.clone());
            async move { (user, library.plan(new, &options).await) }
        };
        stream::iter(users).map(plan).buffered(MAX_USERS).boxed()
    }

    /// Publishes the same skills to each user's library.
    ///
    /// Up to eight pushes run concurrently, after the first one: large files are copied from the first user's library
    /// on the server. The results are in the order of `users`. A push that fails does not stop the others. Repeating
    /// the call costs two requests for each user that is up to date.
    pub fn push_to_users<'a>(
        &'a self,
        users: &'a [UserId],
        new: &NewLibrary,
        options: &PushOptions,
    ) -> BoxStream<'a, (&'a UserId, Result<Pushed>)> {
        let (new, mut options) = (Arc::new(new.clone()), options.clone());
        let Some((first, rest)) = users.split_first() else { return stream::empty().boxed() };
        let push = move |user: &'a UserId, options: Arc<PushOptions>| {
            let (library, new) = (self.library(&Library::User(user.clone())), new.clone());
            async move {
                let plan = library.plan(new, &options).await?;
                let published = library.publish(&plan).await?;
                Ok(Pushed { plan, published })
            }
        };
        let all = async move {
            let pushed = push(first, Arc::new(options.clone())).await;
            if let Ok(Pushed { published, .. }) = &pushed {
                options.copy_from = published.id.clone().map(|id| (Library::User(first.clone()), id));
            }
            let options = Arc::new(options);
            let rest = stream::iter(rest).map(move |user| {
                let push = push(user, options.clone());
                async move { (user, push.await) }
            });
            stream::once(async move { (first, pushed) }).chain(rest.buffered(MAX_USERS))
        };
        stream::once(all).flatten().boxed()
    }
}
