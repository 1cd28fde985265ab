//! Publishing the same skills to many users.

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

/// Users that are published to concurrently.
const AT_ONCE: usize = 8;

/// The plan for one user's library, and what was published.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Pushed {
    /// The plan.
    pub plan: Plan,
    /// What was published.
    pub published: Published,
}

impl SkillFs {
    /// Plans a push to the library of each user; eight at a time, in the order of the users.
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
        stream::iter(users).map(plan).buffered(AT_ONCE).boxed()
    }

    /// Publishes the same skills to the library of each user; eight at a time, in the order of the users.
    ///
    /// One that fails does not stop the others. When it is repeated, users that have everything cost two requests
    /// each. The first user is published to alone; large files are then copied from that library on the server.
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
            stream::once(async move { (first, pushed) }).chain(rest.buffered(AT_ONCE))
        };
        stream::once(all).flatten().boxed()
    }
}
