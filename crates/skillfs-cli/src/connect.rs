//! Opens what flags and environment variables select: the store, the role, the session, and the target library of
//! `skillfs admin`.

use skillfs::embedded::Embedded;
use skillfs::{
    Error, ErrorKind, Library, LibraryId, Result, Role, S3Backend, Settings, SkillFs, UserId, env,
};

use super::args::{Global, RoleWith};
use super::output::Output;

/// The bucket of an embedded store, unless `--bucket` is given.
const EMBEDDED_BUCKET: &str = "skillfs";

/// Opens the session that flags and environment select. `writes` is that of [`connect_with`].
pub(super) async fn open(global: &Global, writes: bool, output: &Output) -> Result<S3Backend> {
    let session = global.session.session(global.read_only)?;
    Ok(connect_with(global, role(global)?, writes, output).await?.session(&session))
}

/// Connects to the store without a role, for administrators. `writes` is that of [`connect_with`].
pub(super) async fn connect(global: &Global, writes: bool, output: &Output) -> Result<SkillFs> {
    connect_with(global, None, writes, output).await
}

/// Connects to the store. A local store that does not exist is created only if the command `writes` new files.
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
            // A mistyped directory must not become a new store.
            if new && !writes {
                return Err(Error::new(ErrorKind::Unavailable, format!("there is no store in `{shown}`"))
                    .with_hint(format!(
                        "write a file to create one, or start with sample data: `skillfs demo --embedded {shown}`"
                    )));
            }
            let embedded = Embedded::open(directory).await?;
            let settings = embedded_settings(global);
            if writes {
                embedded.create_bucket(&settings.bucket).await?;
            }
            if new {
                output.note(&format!("created a local store in `{shown}`"));
            }
            SkillFs::embedded(&embedded, &settings).await
        }
        None => {
            let bucket = or_env(&global.bucket, env::BUCKET).ok_or_else(|| {
                Error::new(ErrorKind::InvalidInput, "no bucket specified").with_hint(format!(
                    "set `--bucket` or {}, or use a local store with `--embedded DIR`",
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

/// The settings of an embedded store. They ignore SKILLFS_BUCKET, which names a bucket on S3.
pub(super) fn embedded_settings(global: &Global) -> Settings {
    Settings::new(global.bucket.as_deref().unwrap_or(EMBEDDED_BUCKET))
}

/// The role that flags and environment select.
pub(super) fn role(global: &Global) -> Result<Option<Role>> {
    if global.embedded.is_some() {
        // clap does not check conflicts between arguments of different subcommand levels. SKILLFS_ROLE_ARN is
        // ignored, since it names a role on AWS.
        return match &global.role_arn {
            Some(_) => Err(Error::new(ErrorKind::InvalidInput, "an embedded store does not support roles")
                .with_hint("omit `--role-arn`, or use a bucket on S3")),
            None => Ok(None),
        };
    }
    let Some(arn) = or_env(&global.role_arn, env::ROLE_ARN) else {
        if global.role_external_id.is_some() || !global.role_with.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "options of a role are given without a role")
                .with_hint(format!("set `--role-arn` or {}", env::ROLE_ARN)));
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

/// The value of an option, with an environment variable as fallback. An empty variable counts as unset.
pub(super) fn or_env(option: &Option<String>, variable: &str) -> Option<String> {
    option.clone().or_else(|| std::env::var(variable).ok().filter(|value| !value.is_empty()))
}

/// The target library of an `admin` command. The environment is ignored: variables that are set for a session must not
/// redirect an administrator's change.
pub(super) fn library(global: &Global) -> Result<Library> {
    match (&global.session.user, global.session.library.as_slice()) {
        (Some(user), []) => Ok(Library::User(UserId::parse(user)?)),
        (None, [library]) => Ok(Library::Shared(LibraryId::parse(library)?)),
        (None, []) => Err(Error::new(ErrorKind::InvalidInput, "no library specified")
            .with_hint("add `--user ID` for a user's library, or `--library ID` for a shared one")),
        _ => Err(Error::new(ErrorKind::InvalidInput, "more than one library specified")
            .with_hint("use either one `--user ID` or one `--library ID`")),
    }
}
