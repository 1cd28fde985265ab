//! All code of the benchmark that uses skillfs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use skillfs::admin::{IntoKind, LibraryChange, NewFile, NewLibrary, NewSkill, PushOptions};
use skillfs::{
    Freshness, Library, LibraryId, Role, S3Backend, Session, Settings, SkillFs, StaticCredentials, ThreadId,
    UserId,
};

use crate::place::{Place, REGION};

/// The default freshness bound: longer than the warm phase of any scenario.
pub(crate) const BOUND: Duration = Duration::from_mins(10);

/// Creates a handle with an empty cache.
pub(crate) async fn connect(place: &Place) -> Result<SkillFs> {
    Ok(SkillFs::connect(&settings(place)).await?)
}

/// Like [`connect`], with another freshness bound.
pub(crate) async fn connect_with_bound(place: &Place, bound: Duration) -> Result<SkillFs> {
    let settings = settings(place).freshness(Freshness::all(bound));
    Ok(SkillFs::connect(&settings).await?)
}

/// Like [`connect`], with a cache of this size.
pub(crate) async fn connect_with_cache(place: &Place, cache_bytes: u64) -> Result<SkillFs> {
    let settings = settings(place).cache_bytes(cache_bytes);
    Ok(SkillFs::connect(&settings).await?)
}

/// Like [`connect`], without a cache.
pub(crate) async fn connect_uncached(place: &Place) -> Result<SkillFs> {
    let freshness = Freshness::all(Duration::ZERO);
    Ok(SkillFs::connect(&settings(place).freshness(freshness).cache_bytes(0)).await?)
}

/// Like [`connect`], with sessions that assume a role.
pub(crate) async fn connect_with_role(place: &Place, sts: &str) -> Result<SkillFs> {
    let role = Role::new("arn:aws:iam::123456789012:role/bench").sts_endpoint_url(sts.to_owned());
    Ok(SkillFs::connect(&settings(place).role(role)).await?)
}

fn settings(place: &Place) -> Settings {
    let mut credentials = StaticCredentials::new(&place.access_key, &place.secret_key);
    credentials.session_token.clone_from(&place.token);
    Settings::new(&place.bucket)
        .endpoint_url(place.endpoint.clone())
        .region(REGION.to_owned())
        .credentials(credentials)
        .freshness(Freshness::all(BOUND))
}

/// A session with the skills of a user and the workspace of a thread. The user is the tenant.
pub(crate) fn session(fs: &SkillFs, user: &str, thread: &str) -> Result<S3Backend> {
    let (user, thread) = (Some(UserId::parse(user)?), Some(ThreadId::parse(thread)?));
    Ok(fs.session(&{
        let mut made = Session::default();
        made.user = user;
        made.thread = thread;
        made
    }))
}

/// A session with the skills of a shared library and the workspace of a user's thread.
pub(crate) fn session_with_thread(fs: &SkillFs, user: &str, thread: &str, shared: &str) -> Result<S3Backend> {
    // Each user gets an additional library of their own. Otherwise, all users would share the same
    // credentials.
    let libraries = vec![LibraryId::parse(shared)?, LibraryId::parse(&format!("of-{user}"))?];
    let thread = Some(ThreadId::parse(thread)?);
    Ok(fs.session(&{
        let mut made = Session::default().libraries(libraries);
        made.thread = thread;
        made
    }))
}

/// The same session, but every read is revalidated.
pub(crate) fn checking(session: &S3Backend) -> S3Backend {
    session.fresh()
}

/// A session with the skills of one library and nothing else.
pub(crate) fn session_with_library(fs: &SkillFs, library: &Library) -> S3Backend {
    let mut session = Session::new();
    match library {
        Library::User(user) => session.user = Some(user.clone()),
        Library::Shared(library) => session.libraries.push(library.clone()),
        // The benchmark has no others.
        _ => {}
    }
    fs.session(&session)
}

/// A session with a user's own skills and those of a shared library.
pub(crate) fn session_with_shared(fs: &SkillFs, user: &str, shared: &str) -> Result<S3Backend> {
    let (user, libraries) = (Some(UserId::parse(user)?), vec![LibraryId::parse(shared)?]);
    Ok(fs.session(&{
        let mut made = Session::default().libraries(libraries);
        made.user = user;
        made
    }))
}

pub(crate) fn user_library(user: &str) -> Result<Library> {
    Ok(Library::User(UserId::parse(user)?))
}

pub(crate) fn shared_library(id: &str) -> Result<Library> {
    Ok(Library::Shared(LibraryId::parse(id)?))
}

/// The key prefix of a library.
pub(crate) fn root(library: &Library) -> String {
    match library {
        Library::Shared(library) => format!("shared/{library}"),
        library => library.id().to_owned(),
    }
}

/// The key of a library's index.
pub(crate) fn index_key(library: &Library) -> String {
    format!("{}/.skillfs/index.json", root(library))
}

/// Publishes a plain library with its current content.
pub(crate) async fn publish(fs: &SkillFs, library: &Library) -> Result<()> {
    let done = fs.library(library).index(&PushOptions::default().into(IntoKind::Published)).await?;
    ensure!(done.release.is_some() && done.mirror_error.is_none(), "not published: {done:?}");
    Ok(())
}

/// A skill's path in its library, and its files.
pub(crate) type NewFiles = (String, Vec<(&'static str, Bytes)>);

/// Publishes a release that adds or changes skills.
pub(crate) async fn push(fs: &SkillFs, library: &Library, skills: Vec<NewFiles>) -> Result<()> {
    let mut new = NewLibrary::default();
    for (path, files) in skills {
        let files = files.into_iter().map(|(name, content)| NewFile::new(name, content)).collect();
        new.skills.push(NewSkill::new(path, files));
    }
    release(fs, library, new.into()).await
}

/// Publishes a release without a skill.
pub(crate) async fn remove(fs: &SkillFs, library: &Library, skill: String) -> Result<()> {
    let change = LibraryChange::Remove { skills: vec![skill] };
    release(fs, library, change).await
}

async fn release(fs: &SkillFs, library: &Library, change: LibraryChange) -> Result<()> {
    let library = fs.library(library);
    let plan = library.plan(change, &PushOptions::default()).await?;
    let done = library.publish(&plan).await?;
    ensure!(done.release.is_some(), "nothing was released");
    ensure!(done.drift.is_empty() && done.mirror_error.is_none(), "the mirror is not complete: {done:?}");
    Ok(())
}

/// Loads a complete `SKILL.md` by the path of the skill.
pub(crate) async fn load(session: &S3Backend, skill: &str) -> Result<String> {
    session.load_skill_content(skill).await?.with_context(|| format!("there is no skill `{skill}`"))
}

/// Returns the catalog as it appears in a prompt.
pub(crate) async fn catalogue(session: &S3Backend) -> Result<String> {
    Ok(session.load_all_skills_formatted(None).await?)
}

/// Counts the skills in a catalog.
pub(crate) fn skills_in(catalogue: &str) -> usize {
    catalogue.lines().filter(|line| line.starts_with("- `")).count()
}

/// Describes the state of the cache in readable form.
pub(crate) fn cache(fs: &SkillFs) -> String {
    format!("{:?}", fs.cache())
}
