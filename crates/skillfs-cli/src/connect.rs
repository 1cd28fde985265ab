//! From flags and environment to what they name: the store, the role, the session, and the library of an
//! administrator.
use skillfs::embedded::Embedded;
use skillfs::{
    Error, ErrorKind, Library, LibraryId, Result, Role, S3Backend, Settings, SkillFs, UserId, env,
};

use super::args::{Global, RoleWith};
use super::output::Output;

/// The bucket of an embedded store that is given no other.
const EMBEDDED_BUCKET: &str = "skillfs";

/// The session that flags and environment name, on the store that they name.
pub(super) async fn open(global: &Global, writes: bool, output: &Output) -> Result<S3Backend> {
    let session = global.session.session(global.read_only)?;
    Ok(connect_with(global, role(global)?, writes, output).await?.session(&session))
}

/// The store that flags and environment name, for those who look after libraries: without a role.
pub(super) async fn connect(global: &Global, writes: bool, output: &Output) -> Result<SkillFs> {
    connect_with(global, None, writes, output).await
}

/// A local store is made by what `writes` new files.
pub(super) async fn connect_with(
    global: &Global,
    role: Option<Role>,
    writes: bool,
    output: &Output,
) -> Result<SkillFs> {
    match &global.embedded {
        Some(directory) => {
            let new = !directory.is_file() && !Embedded::is_in(directory);
            let shown = directory.display();
            // Who mistypes a directory wants to know, and not a new store in it.
            if new && !writes {
                return Err(Error::new(ErrorKind::Unavailable, format!("there is no store in `{shown}`"))
                    .with_hint(format!(
                        "write a file to make one, or fill it with sample data: `skillfs demo --embedded {shown}`"
                    )));
            }
            let embedded = Embedded::open(directory).await?;
            let settings = embedded_settings(global);
            if writes {
                embedded.create_bucket(&settings.bucket).await?;
            }
            if new {
                output.note(&format!("made a new store in `{shown}`"));
            }
            SkillFs::embedded(&embedded, &settings).await
        }
        None => {
            let bucket = or_env(&global.bucket, env::BUCKET).ok_or_else(|| {
                Error::new(ErrorKind::InvalidInput, "no bucket is given").with_hint(format!(
                    "name one with `--bucket` or {}, or use a local store with `--embedded DIR`",
                    env::BUCKET
                ))
            })?;
            let mut settings = Settings::new(bucket);
            settings.endpoint_url = global.endpoint_url.clone().or_else(env::endpoint_url);
            settings.region.clone_from(&global.region);
            settings.role = role;
            SkillFs::connect(&settings).await
        }
    }
}

/// An embedded store is a directory of one's own. The environment's bucket is one on S3.
pub(super) fn embedded_settings(global: &Global) -> Settings {
    Settings::new(global.bucket.as_deref().unwrap_or(EMBEDDED_BUCKET))
}

/// The role that flags and environment name.
pub(super) fn role(global: &Global) -> Result<Option<Role>> {
    if global.embedded.is_some() {
        // clap does not see that across levels. The environment's role is one on AWS, as its bucket is.
        return match &global.role_arn {
            Some(_) => Err(Error::new(ErrorKind::InvalidInput, "an embedded store has no roles")
                .with_hint("leave `--role-arn` out, or use a bucket on S3")),
            None => Ok(None),
        };
    }
    let Some(arn) = or_env(&global.role_arn, env::ROLE_ARN) else {
        if global.role_external_id.is_some() || !global.role_with.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "options of a role are given, and no role")
                .with_hint(format!("name it with `--role-arn` or {}", env::ROLE_ARN)));
        }
        return Ok(None);
    };
    let with = |option| global.role_with.contains(&option);
    let mut role = Role::new(arn);
    role.external_id.clone_from(&global.role_external_id);
    role.session_tags = with(RoleWith::Tags);
    role.compact_policy = with(RoleWith::Compact);
    role.kms = with(RoleWith::Kms);
    Ok(Some(role))
}

/// An option, or else an environment variable that is not empty.
pub(super) fn or_env(option: &Option<String>, variable: &str) -> Option<String> {
    option.clone().or_else(|| std::env::var(variable).ok().filter(|value| !value.is_empty()))
}

/// The library that the flags name. Never the environment's: what was set for a session must not lead
/// an administrator to the wrong place.
pub(super) fn library(global: &Global) -> Result<Library> {
    match (&global.session.user, global.session.library.as_slice()) {
        (Some(user), []) => Ok(Library::User(UserId::parse(user)?)),
        (None, [library]) => Ok(Library::Shared(LibraryId::parse(library)?)),
        (None, []) => Err(Error::new(ErrorKind::InvalidInput, "no library is named")
            .with_hint("give `--user ID` for a user's own, or `--library ID` for a shared one")),
        _ => Err(Error::new(ErrorKind::InvalidInput, "more than one library is named")
            .with_hint("give either one `--user ID` or one `--library ID`")),
    }
}
