//! What a session may see of what the process remembers.
//!
//! A session with credentials of its own is answered from memory only about prefixes of its policy from which S3 has answered the
//! very credentials that it holds. So neither a defect above this room, nor a role that allows less than the policy, finds
//! here what S3 would refuse.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::scope::Scope;
use crate::cache::{Cache, Epoch, Kept, Lookup};
use crate::error::Result;
use crate::mount::Tenant;

/// The memory of the process, as one session sees it.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    cache: Arc<Cache>,
    scope: Option<Arc<Scope>>,
}

impl Memory {
    pub(super) fn new(cache: Arc<Cache>, scope: Option<Arc<Scope>>) -> Self {
        Self { cache, scope }
    }

    /// Whether S3 has let through all that a name is about: a key, a prefix, or several prefixes in a row.
    fn is_open(&self, name: &str) -> bool {
        let Some(scope) = &self.scope else { return true };
        match name.split_once("\u{3}\u{3}") {
            Some((prefixes, _)) => scope.is_proven(prefixes.split('\u{3}')),
            None => scope.is_proven(name.split(|c: char| c < ' ').take(1)),
        }
    }

    /// Nobody waits for a request that is sent with the credentials of another.
    fn flight<'n>(&self, name: &'n str) -> Cow<'n, str> {
        match &self.scope {
            Some(scope) => Cow::Owned(format!("{name}\u{7}{}", scope.name())),
            None => Cow::Borrowed(name),
        }
    }

    /// What is remembered, however old.
    pub(crate) fn recall<T: Send + Sync + 'static>(&self, name: &str) -> Option<Kept<T>> {
        if self.is_open(name) { self.cache.recall(name) } else { None }
    }

    /// What is remembered and no older than `bound`.
    pub(crate) fn look<T: Send + Sync + 'static>(&self, name: &str, bound: Duration) -> Lookup<T> {
        if self.is_open(name) { self.cache.look(name, bound) } else { Lookup::Miss(None) }
    }

    /// Remembers something that was asked for at `since`, when the name was in this epoch.
    pub(crate) fn keep<T: Send + Sync + 'static>(
        &self,
        name: &str,
        owner: &Tenant,
        asked: (Epoch, Instant),
        value: Arc<T>,
        bytes: u64,
    ) {
        if self.is_open(name) {
            self.cache.keep(name, owner, asked, value, bytes);
        }
    }

    /// Asks once for all who want the same and have the same credentials.
    pub(crate) async fn once<T, F>(
        &self,
        name: &str,
        bound: Duration,
        ask: impl FnOnce() -> F,
    ) -> Result<Arc<T>>
    where
        T: Send + Sync + 'static,
        F: Future<Output = Result<Arc<T>>> + Send + 'static,
    {
        self.cache.once(&self.flight(name), bound, ask).await
    }

    /// Whether somebody is asking for it.
    pub(crate) fn is_under_way(&self, name: &str) -> bool {
        self.cache.is_under_way(&self.flight(name))
    }

    pub(crate) fn judge<T>(&self, kept: Kept<T>, bound: Duration) -> Lookup<T> {
        self.cache.judge(kept, bound)
    }

    pub(crate) fn epoch(&self, name: &str) -> Epoch {
        self.cache.epoch(name)
    }

    pub(crate) fn changed(&self, name: &str) {
        self.cache.changed(name);
    }

    pub(crate) fn changed_object(&self, key: &str) {
        self.cache.changed_object(key);
    }

    pub(crate) fn hit(&self) {
        self.cache.hit();
    }

    pub(crate) fn refreshing(&self) {
        self.cache.refreshing();
    }

    pub(crate) fn largest(&self) -> u64 {
        self.cache.largest()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::*;
    use crate::config::{Role, Settings, StaticCredentials};
    use crate::id::{LibraryId, ThreadId, UserId};
    use crate::mount::{Mounts, Session};

    async fn store() -> Store {
        let settings = Settings {
            endpoint_url: Some("http://storage.invalid".into()),
            credentials: Some(StaticCredentials::new("A", "b")),
            role: Some(Role::new("arn:aws:iam::123456789012:role/agents")),
            ..Settings::new("bucket")
        };
        Store::connect(&settings).await.unwrap()
    }

    fn session(user: &str, thread: &str, libraries: &[&str]) -> Session {
        Session {
            user: Some(UserId::parse(user).unwrap()),
            thread: Some(ThreadId::parse(thread).unwrap()),
            libraries: libraries.iter().map(|id| LibraryId::parse(id).unwrap()).collect(),
            ..Session::default()
        }
    }

    /// The memory of a session whose credentials hold.
    fn memory(store: &Store, session: &Session) -> Memory {
        let store = store.confined_to(Tenant::of(session), &Mounts::of(session));
        store.scope.as_ref().unwrap().hold_some();
        store.memory().clone()
    }

    fn keep(memory: &Memory, name: &str) {
        let asked = (memory.epoch(name), Instant::now());
        memory.keep(name, &Tenant::named("x"), asked, Arc::new(name.to_owned()), 10);
    }

    fn knows(memory: &Memory, name: &str) -> bool {
        memory.recall::<String>(name).is_some()
    }

    #[tokio::test]
    async fn a_foreign_key_is_not_found_in_memory_however_it_was_made() {
        let store = store().await;
        let (t1, t10) = (session("u1", "t1", &["acme"]), session("u10", "t10", &["acme2"]));
        let (one, other) = (memory(&store, &t1), memory(&store, &t10));
        let names = [
            "threads/t10/secret.md",
            "threads/t10/",
            "threads/t10/\u{1}",
            "u10/skills/a/SKILL.md",
            "u10/.skillfs/index.json",
            "shared/acme2/skills/a/SKILL.md\u{6}",
            "shared/acme2/skills/\u{3}u10/skills/\u{3}\u{3}law",
            "shared/acme2/.skillfs/index.json",
            "u10/skills/",
            "u10/skills/../../u1/skills/a",
            "threads/t10/../t1/a",
            "threads/t10/\0threads/t1/a",
        ];
        for name in names {
            keep(&other, name);
            assert!(knows(&other, name), "{name:?}");
            assert!(!knows(&one, name), "{name:?}");
        }
        // What one of several prefixes covers is not covered.
        for name in [
            "u1/skills/\u{3}u10/skills/\u{3}\u{3}",
            "u10/skills/\u{3}u1/skills/\u{3}\u{3}",
            "threads/t1",
            "threads/",
            "",
            "threads/t1x/",
            "THREADS/t1/a",
            "u1/private",
            "Threads/t1/a",
            "/threads/t1/a",
            " threads/t1/a",
            "threads//t1/a",
            "threads/./t1/a",
            "threads/t1\0/a",
            "threads/t2/../t1/a",
            "tickets/t1/a",
            "u1",
            "u1/",
            "u1/skills",
            "u1/skills2/a",
            "u1x/skills/a",
            "shared/acme",
            "shared/acme/private",
            "shared/acme/skills",
            "shared/acmex/skills/a",
            "shared/",
        ] {
            keep(&one, name);
            assert!(!knows(&one, name), "{name:?}");
            // Nor is it kept for others.
            assert!(store.cache().recall::<String>(name).is_none(), "{name:?}");
        }
        for name in ["threads/t1/a", "u1/skills/\u{3}shared/acme/skills/\u{3}\u{3}law", "shared/acme/skills/"]
        {
            keep(&one, name);
            assert!(knows(&one, name), "{name:?}");
        }
    }

    #[tokio::test]
    async fn without_credentials_nothing_is_told() {
        let store = store().await;
        let known = memory(&store, &session("u1", "t1", &["acme"]));
        let name = "shared/acme/skills/a/SKILL.md";
        keep(&known, name);
        let asking = session("u2", "t2", &["acme"]);
        let waiting = store.confined_to(Tenant::of(&asking), &Mounts::of(&asking));
        assert!(!knows(waiting.memory(), name));
        assert!(matches!(waiting.memory().look::<String>(name, Duration::MAX), Lookup::Miss(None)));
        waiting.scope.as_ref().unwrap().hold_some();
        assert!(knows(waiting.memory(), name));
    }
}
