//! The `skillfs` command line: a thin layer over the public API of the library. Data goes to stdout; notes, progress
//! and errors go to stderr.

mod admin;
mod admin_args;
mod args;
mod connect;
mod demo;
mod doctor;
mod files;
mod help;
mod hints;
mod import;
mod libraries;
mod output;
mod progress;
mod prompt;
mod publish;
mod push_users;
mod report;
mod session_args;
mod skills;
mod terminal;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser};
use skillfs::{Error, ErrorKind, Hint, Result, aborts_finished};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::prelude::*;

use self::args::{Args, Command};
use self::output::Output;

/// How long background tasks may run after a command has finished.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);
/// How long an interrupted command may take to abort its uploads.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);
/// The exit code of an interrupted program: 128 + SIGINT.
const INTERRUPTED: u8 = 130;

/// Renders a hint of the library as the command line prints it, with flags and commands.
#[must_use]
pub fn hint(hint: &Hint) -> String {
    hints::render(hint, &hints::Invocation::default()).into_owned()
}

/// Runs the program with the arguments of the process.
#[must_use]
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return output::usage(&suggest_admin(error)),
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
    // A panic is reported below, as an error with its own exit code, instead of by the default hook.
    if args.global.verbose == 0 {
        std::panic::set_hook(Box::new(|_| ()));
    }
    let done =
        std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(until_interrupted(args, &output))));
    // Do not wait indefinitely: a blocked read from the terminal would never finish.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    match done {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => output.failure(&error),
        Err(_) => output.failure(&Error::new(ErrorKind::Internal, "skillfs panicked").with_hint(
            "this is a bug: run it again with `-v` to see where it happened, and please report it",
        )),
    }
}

/// Adds a tip to the error for an `admin` command without `admin`, such as `skillfs push`.
fn suggest_admin(mut error: clap::Error) -> clap::Error {
    let command = Args::command();
    let is_admin = |name: &str| {
        command.find_subcommand("admin").is_some_and(|admin| admin.find_subcommand(name).is_some())
    };
    if error.kind() == clap::error::ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand)
        && is_admin(name)
    {
        let tip = StyledStr::from(format!("use `skillfs admin {name}`"));
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

/// Runs a command until it finishes or is interrupted. After an interrupt, waits for unfinished uploads to be aborted.
async fn until_interrupted(args: Args, output: &Output) -> Result<ExitCode> {
    tokio::select! {
        done = run(args, output) => return done,
        Ok(()) = tokio::signal::ctrl_c() => {}
    }
    output.note("interrupted: every file is either unchanged or completely written");
    // A second Ctrl-C skips the cleanup.
    tokio::select! {
        _ = tokio::time::timeout(CLEANUP_TIMEOUT, aborts_finished()) => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(ExitCode::from(INTERRUPTED))
}

/// Runs a command. Exit code 1 is a negative answer; failures are errors.
async fn run(args: Args, output: &Output) -> Result<ExitCode> {
    let Args { global, command } = args;
    match command {
        Command::Session(command) => return files::run(&global, command, output).await,
        Command::Demo { all } => demo::run(&global, all, output).await?,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "skillfs", &mut script);
            terminal::print_raw(&script)?;
        }
        Command::Admin(command) => return admin::run(&global, command, output).await,
        Command::Doctor => return doctor::run(&global, output).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs blocking work on local files on a separate thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|e| {
        Error::new(ErrorKind::Internal, "a task on local files was interrupted").with_source(e)
    })?
}

/// Logs to stderr: `-v` shows operations and requests with their durations, `-vv` the traces of all crates.
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
