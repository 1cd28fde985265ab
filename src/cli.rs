//! The command line: a thin layer over the library. Data goes to stdout, talk to stderr.

mod admin;
mod args;
mod demo;
mod doctor;
mod files;
mod libraries;
mod output;
mod publish;
mod skills;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::prelude::*;

use self::args::{Args, Command, Global, Grant, RoleWith};
use self::output::Output;
use crate::backend::{S3Backend, SkillFs, Window};
use crate::config::{self, Role, Settings, env};
use crate::embedded::Embedded;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{LibraryId, ThreadId, TicketId, UserId};
use crate::mount::{Access, Grants, Mounts, Session};
use crate::path::VirtualPath;
use crate::store::all_aborted;

/// The bucket of an embedded store that is given no other.
const EMBEDDED_BUCKET: &str = "skillfs";

/// How long the last work may take behind the end of a command.
const LAST_WORK: Duration = Duration::from_millis(500);
/// How long an interrupted command may take to clean up.
const TAKING_BACK: Duration = Duration::from_secs(5);
/// What shells take for an interrupted program.
const INTERRUPTED: u8 = 130;

/// The whole program: reads the arguments of the process, runs, and tells the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return output::usage(&error),
    };
    let output = Output::new(args.global.json, args.global.quiet);
    if args.global.verbose > 0 {
        trace(args.global.verbose);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return output.failure(
                &Error::new(ErrorKind::Internal, format!("cannot start the runtime: {error}"))
                    .with_source(error),
            );
        }
    };
    // A defect must not look like anything else: no trace of ours on the terminal, and its own code.
    if args.global.verbose == 0 {
        std::panic::set_hook(Box::new(|_| ()));
    }
    let done =
        std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(until_interrupted(args, &output))));
    // Not for ever: a read from a terminal that nobody types on any more would hold it up.
    runtime.shutdown_timeout(LAST_WORK);
    match done {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => output.failure(&error),
        Err(_) => output.failure(
            &Error::new(ErrorKind::Internal, "skillfs ran into a defect of its own")
                .with_hint("run it again with `-v` to see where, and please report that"),
        ),
    }
}

/// Runs a command until it ends or the user ends it; what it had half done is then taken back.
async fn until_interrupted(args: Args, output: &Output) -> Result<ExitCode> {
    tokio::select! {
        done = run(args, output) => return done,
        Ok(()) = tokio::signal::ctrl_c() => {}
    }
    output.note("interrupted: each file is as it was, or as it was to be");
    // Who asks twice does not want to wait.
    tokio::select! {
        _ = tokio::time::timeout(TAKING_BACK, all_aborted()) => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(ExitCode::from(INTERRUPTED))
}

/// Runs a command. `ExitCode` 1 is a plain no; failures come back as errors.
async fn run(args: Args, output: &Output) -> Result<ExitCode> {
    let Args { global, command } = args;
    if let Command::Demo = command {
        demo::run(&global, output).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Command::Completions { shell } = command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Args::command(), "skillfs", &mut script);
        output::print_raw(&script)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Command::Admin(command) = command {
        return admin::run(&global, command, output).await;
    }
    if let Command::Doctor = command {
        return doctor::run(&global, output).await;
    }
    let mut content = None;
    if let Command::Write { path, source, .. } | Command::Append { path, source, .. } = &command {
        // What is refused makes no store, and content is asked for only where it may go.
        Mounts::of(&session(&global)?).target(&VirtualPath::parse(path)?)?;
        content = Some(files::open(source, output).await?);
    }
    let backend = open(&global, content.is_some(), output).await?;
    match command {
        Command::Ls { path, long, recursive } => {
            let listing =
                if recursive { backend.ls_recursive(&path).await? } else { backend.ls(&path).await? };
            output.listing(&listing, long)?;
            output.hidden(listing.hidden);
            output.mounts(&backend);
        }
        Command::Read { path, offset, limit, number } => {
            let window = Window { offset: offset.unwrap_or(0), limit };
            let whole = offset.is_none() && limit.is_none();
            let file =
                if whole { backend.read(&path).await? } else { backend.read_window(&path, window).await? };
            output.text(&file, number)?;
        }
        Command::Exists { path } => {
            let path = VirtualPath::parse(&path)?;
            let exists = backend.exists(&path).await?;
            output.exists(&path, exists)?;
            return Ok(if exists { ExitCode::SUCCESS } else { ExitCode::from(1) });
        }
        Command::Stat { path } => output.entry(&backend.stat(&path).await?)?,
        Command::Tree { path } => {
            let tree = backend.tree(&path).await?;
            output.tree(&tree)?;
            output.hidden(tree.hidden);
        }
        Command::Skills(command) => skills::run(&backend, command, output).await?,
        Command::Credentials => output::credentials(&backend.credentials().await?)?,
        Command::Admin(_) | Command::Completions { .. } | Command::Demo | Command::Doctor => {}
        command => return files::run(&backend, command, content, output).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// The session that flags and environment name, on the store that they name.
async fn open(global: &Global, writes: bool, output: &Output) -> Result<S3Backend> {
    let session = session(global)?;
    Ok(connect_with(global, role(global)?, writes, output).await?.session(&session))
}

/// The store that flags and environment name, for those who look after libraries: without a role.
async fn connect(global: &Global, writes: bool, output: &Output) -> Result<SkillFs> {
    connect_with(global, None, writes, output).await
}

/// A local store is made by what `writes` new files.
async fn connect_with(global: &Global, role: Option<Role>, writes: bool, output: &Output) -> Result<SkillFs> {
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
fn embedded_settings(global: &Global) -> Settings {
    Settings::new(global.bucket.as_deref().unwrap_or(EMBEDDED_BUCKET))
}

/// The role that flags and environment name.
fn role(global: &Global) -> Result<Option<Role>> {
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

fn session(global: &Global) -> Result<Session> {
    Ok(Session {
        user: config::given(&global.user, env::USER).map(UserId::try_from).transpose()?,
        thread: config::given(&global.thread, env::THREAD).map(ThreadId::try_from).transpose()?,
        ticket: config::given(&global.ticket, env::TICKET).map(TicketId::try_from).transpose()?,
        libraries: libraries(global)?,
        grants: grants(global),
        ..Session::default()
    })
}

fn grants(global: &Global) -> Grants {
    if global.read_only {
        return Grants::READ_ONLY;
    }
    let ticket = match global.grant.contains(&Grant::TicketWrite) {
        true => Access::ReadWrite,
        false => Access::ReadOnly,
    };
    Grants { ticket, ..Grants::default() }
}

/// `--library` as often as wanted, else a list between commas in the environment.
fn libraries(global: &Global) -> Result<Vec<LibraryId>> {
    let listed =
        config::given(&None, env::LIBRARIES).filter(|_| global.library.is_empty()).unwrap_or_default();
    let listed = listed.split(',').map(str::trim).filter(|id| !id.is_empty()).map(str::to_owned);
    global.library.iter().cloned().chain(listed).map(LibraryId::try_from).collect()
}

/// `-v` shows operations and requests with their times, `-vv` all that the libraries say.
fn trace(verbose: u8) {
    let targets = match verbose {
        1 => Targets::new().with_target("skillfs", tracing::Level::DEBUG),
        _ => Targets::new().with_default(tracing::Level::TRACE),
    };
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never)
        .with_span_events(FmtSpan::CLOSE)
        .with_target(false);
    tracing_subscriber::registry().with(targets).with(layer).init();
}
