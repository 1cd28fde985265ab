//! From flags and environment to what they name: the store, the role, the session, and the library of an
//! administrator.

use super::args::{Global, RoleWith};
use super::output::Output;
use crate::backend::{S3Backend, SkillFs};
use crate::config::{self, Role, Settings, env};
use crate::embedded::Embedded;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{LibraryId, UserId};
use crate::mount::{Grants, Identity, IdentitySpec, Library, MOUNTS, MountSpec, Session};

/// The bucket of an embedded store that is given no other.
const EMBEDDED_BUCKET: &str = "skillfs";

/// The session that flags and environment name, on the store that they name.
pub(super) async fn open(global: &Global, writes: bool, output: &Output) -> Result<S3Backend> {
    let session = session(global)?;
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
            let settings = Settings {
                endpoint_url: global.endpoint_url.clone().or_else(config::endpoint_from_env),
                region: global.region.clone(),
                role,
                ..Settings::new(config::given(&global.bucket, env::BUCKET).ok_or_else(config::no_bucket)?)
            };
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
    let Some(arn) = config::given(&global.role_arn, env::ROLE_ARN) else {
        if global.role_external_id.is_some() || !global.role_with.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "options of a role are given, and no role")
                .with_hint(format!("name it with `--role-arn` or {}", env::ROLE_ARN)));
        }
        return Ok(None);
    };
    let with = |option| global.role_with.contains(&option);
    Ok(Some(Role {
        external_id: global.role_external_id.clone(),
        session_tags: with(RoleWith::Tags),
        compact_policy: with(RoleWith::Compact),
        kms: with(RoleWith::Kms),
        ..Role::new(arn)
    }))
}

pub(super) fn session(global: &Global) -> Result<Session> {
    let mut session = Session { grants: grants(global), ..Session::default() };
    for identity in Identity::ALL {
        for id in ids(global, identity) {
            session.identify(identity, &id)?;
        }
    }
    Ok(session)
}

fn grants(global: &Global) -> Grants {
    if global.read_only {
        return Grants::READ_ONLY;
    }
    let granted = MOUNTS.iter().filter(|spec| global.session.grants(spec)).filter_map(MountSpec::grant);
    granted.fold(Grants::default(), Grants::with)
}

/// Those of the flags, else those of the environment.
fn ids(global: &Global, identity: Identity) -> Vec<String> {
    let given: Vec<_> = global.session.ids(identity).map(str::to_owned).collect();
    if !given.is_empty() {
        return given;
    }
    let IdentitySpec { variable, several, .. } = identity.spec();
    let set = config::given(&None, variable);
    if !several {
        return set.into_iter().collect();
    }
    let listed = set.unwrap_or_default();
    listed.split(',').map(str::trim).filter(|id| !id.is_empty()).map(str::to_owned).collect()
}

/// The library that the flags name. Never the environment's: what was set for a session must not lead
/// an administrator to the wrong place.
pub(super) fn library(global: &Global) -> Result<Library> {
    let ids = |identity| global.session.ids(identity).collect::<Vec<_>>();
    match (ids(Identity::User).as_slice(), ids(Identity::Library).as_slice()) {
        ([user], []) => Ok(Library::User(UserId::parse(user)?)),
        ([], [library]) => Ok(Library::Shared(LibraryId::parse(library)?)),
        _ => Err(Error::new(ErrorKind::InvalidInput, "name the one library that is meant")
            .with_hint("give `--user ID` for a user's own, or `--library ID` for a shared one")),
    }
}
