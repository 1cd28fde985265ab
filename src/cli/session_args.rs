//! The flags that name a session and allow it to write: one for each [`Identity`], and one value of `--grant` for each
//! mount that needs one.
//!
//! They are made from the table of mounts, so there is no field for each of them.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};

use crate::mount::{Identity, IdentitySpec, MOUNTS, MountSpec};

const HEADING: &str = "Session";
const GRANT: &str = "grant";

#[derive(Debug)]
pub(super) struct SessionArgs {
    /// In the order in which they were given, for each identity.
    ids: Vec<(Identity, String)>,
    grants: Vec<String>,
}

impl SessionArgs {
    /// The ids that were given for one identity.
    pub(super) fn ids(&self, identity: Identity) -> impl Iterator<Item = &str> {
        self.ids.iter().filter(move |(of, _)| *of == identity).map(|(_, id)| id.as_str())
    }

    /// Whether a library is named: a user's own, or a shared one.
    pub(super) fn has_library(&self) -> bool {
        MountSpec::of_libraries().any(|identity| self.ids(identity).next().is_some())
    }

    /// Whether more is allowed in a mount than by default.
    pub(super) fn grants(&self, mount: &MountSpec) -> bool {
        mount.grant_flag().is_some_and(|flag| self.grants.iter().any(|given| given == flag))
    }
}

impl FromArgMatches for SessionArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let all = |name: &str| matches.get_many::<String>(name).into_iter().flatten().cloned();
        let ids = |identity: Identity| all(identity.spec().name).map(move |id| (identity, id));
        Ok(Self { ids: Identity::ALL.into_iter().flat_map(ids).collect(), grants: all(GRANT).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for SessionArgs {
    fn augment_args(command: Command) -> Command {
        command.args(Identity::ALL.into_iter().map(id)).arg(grant())
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn id(identity: Identity) -> Arg {
    let IdentitySpec { name, variable, several, help, .. } = identity.spec();
    let (action, more) = match several {
        true => (ArgAction::Append, format!("; repeatable [env: {variable}, a comma list]")),
        false => (ArgAction::Set, format!(" [env: {variable}]")),
    };
    Arg::new(name)
        .long(name)
        .global(true)
        .value_name("ID")
        .help_heading(HEADING)
        .action(action)
        .help(format!("{help}{more}"))
}

fn grant() -> Arg {
    let mounts = || MOUNTS.iter().filter_map(|spec| Some((spec.grant_flag()?, spec.name)));
    let told: Vec<_> = mounts().map(|(flag, name)| format!("`{flag}` is to write to /{name}")).collect();
    Arg::new(GRANT)
        .long(GRANT)
        .global(true)
        .value_name("GRANT")
        .help_heading(HEADING)
        .action(ArgAction::Append)
        .value_parser(PossibleValuesParser::new(mounts().map(|(flag, _)| flag)))
        .hide_possible_values(true)
        .help(format!("Allow more than by default: {}; repeatable", told.join(", ")))
}
