//! The command line: a thin layer over the library. Data goes to stdout, talk to stderr.

mod admin;
mod admin_args;
mod args;
mod connect;
mod demo;
mod doctor;
mod files;
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

use clap::{CommandFactory, Parser};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::prelude::*;

use self::args::{Args, Command};
use self::connect::{open, session};
use self::output::Output;
use crate::backend::Window;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::Mounts;
use crate::path::VirtualPath;
use crate::store::all_aborted;

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
        terminal::print_raw(&script)?;
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
            output.entries(&listing.entries, long)?;
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

/// Runs work on local files on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| Error::new(ErrorKind::Internal, "the work on local files broke off").with_source(e))?
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
