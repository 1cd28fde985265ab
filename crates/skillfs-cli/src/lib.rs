//! The `skillfs` command line: a thin layer over the public API of the library. Data goes to stdout, everything else to
//! stderr.

mod admin;
mod admin_args;
mod args;
mod connect;
mod demo;
mod doctor;
mod files;
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

use clap::{CommandFactory, Parser};
use skillfs::{Error, ErrorKind, Hint, Result, aborts_finished};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::prelude::*;

use self::args::{Args, Command};
use self::output::Output;

/// How long the last work may take behind the end of a command.
const LAST_WORK: Duration = Duration::from_millis(500);
/// How long an interrupted command may take to clean up.
const TAKING_BACK: Duration = Duration::from_secs(5);
/// What shells take for an interrupted program.
const INTERRUPTED: u8 = 130;

/// A hint of the library, in the words of the command line.
#[must_use]
pub fn hint(hint: &Hint) -> String {
    hints::render(hint, &hints::Here::default()).into_owned()
}

/// Runs the program with the arguments of the process.
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
        _ = tokio::time::timeout(TAKING_BACK, aborts_finished()) => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(ExitCode::from(INTERRUPTED))
}

/// Runs a command. `ExitCode` 1 is a plain no; failures come back as errors.
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
