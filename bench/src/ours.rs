//! All that is known here of skillfs.

use std::time::Duration;

use anyhow::Result;
use skillfs::{
    Freshness, Library, S3Backend, Session, Settings, SkillFs, StaticCredentials, ThreadId, UserId,
};

use crate::place::{Place, REGION};

/// How long answers count as fresh where nothing else is said: longer than any scenario's warm part.
pub(crate) const BOUND: Duration = Duration::from_mins(10);

/// A process's handle, with nothing in its cache.
pub(crate) async fn connect(place: &Place) -> Result<SkillFs> {
    Ok(SkillFs::connect(&settings(place)).await?)
}

/// The same whose answers are fresh for another while.
pub(crate) async fn connect_bound(place: &Place, bound: Duration) -> Result<SkillFs> {
    let settings = Settings { freshness: Freshness::all(bound), ..settings(place) };
    Ok(SkillFs::connect(&settings).await?)
}

/// The same with a cache of so many bytes.
pub(crate) async fn connect_cache(place: &Place, cache_bytes: u64) -> Result<SkillFs> {
    let settings = Settings { cache_bytes, ..settings(place) };
    Ok(SkillFs::connect(&settings).await?)
}

/// The same that asks the storage each time.
pub(crate) async fn connect_uncached(place: &Place) -> Result<SkillFs> {
    let freshness = Freshness::all(Duration::ZERO);
    Ok(SkillFs::connect(&Settings { freshness, cache_bytes: 0, ..settings(place) }).await?)
}

fn settings(place: &Place) -> Settings {
    let mut credentials = StaticCredentials::new(&place.access_key, &place.secret_key);
    credentials.session_token.clone_from(&place.token);
    Settings {
        endpoint_url: Some(place.endpoint.clone()),
        region: Some(REGION.to_owned()),
        credentials: Some(credentials),
        freshness: Freshness::all(BOUND),
        ..Settings::new(&place.bucket)
    }
}

/// A session with the skills of a user and the workspace of a thread. The user is the tenant.
pub(crate) fn session(fs: &SkillFs, user: &str, thread: &str) -> Result<S3Backend> {
    let (user, thread) = (Some(UserId::parse(user)?), Some(ThreadId::parse(thread)?));
    Ok(fs.session(&Session { user, thread, ..Session::default() }))
}

/// The same session; what it reads is checked with the storage.
pub(crate) fn checking(session: &S3Backend) -> S3Backend {
    session.fresh()
}

/// Writes the index of a user's catalogue.
pub(crate) async fn write_index(fs: &SkillFs, user: &str) -> Result<()> {
    fs.write_index(&Library::User(UserId::parse(user)?)).await?;
    Ok(())
}

/// The catalogue as a prompt has it.
pub(crate) async fn catalogue(session: &S3Backend) -> Result<String> {
    Ok(session.load_all_skills_formatted(None).await?)
}

/// How many skills such a catalogue has.
pub(crate) fn skills_in(catalogue: &str) -> usize {
    catalogue.lines().filter(|line| line.starts_with("- `")).count()
}

/// What is left in the cache, for people to read.
pub(crate) fn cache(fs: &SkillFs) -> String {
    format!("{:?}", fs.cache())
}
