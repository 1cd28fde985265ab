//! `skillfs admin push --users FILE`: publishes the same skills to many users.
//!
//! Reads the user IDs from a file, asks for confirmation once, and prints one line per user.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use futures_util::StreamExt;
use serde::Serialize;
use skillfs::admin::{Action, NewLibrary, PushOptions, Pushed};
use skillfs::{Error, ErrorKind, Result, UserId};

use super::admin_args::Push;
use super::args::Global;
use super::blocking;
use super::connect::connect;
use super::output::Output;
use super::prompt::confirm;
use super::report::{Report, counts, note_published};
use super::terminal::{BAD, plural, visible};

pub(super) async fn push_to_users(
    global: &Global,
    file: PathBuf,
    new: NewLibrary,
    args: &Push,
    options: PushOptions,
    output: &Output,
) -> Result<ExitCode> {
    let users = blocking(move || read_users(&file)).await?;
    let dry_run = args.how.dry_run;
    let libraries = plural(users.len() as u64, "library", "libraries");
    if args.delete && !global.yes && !dry_run {
        confirm(&format!("Delete skills that are not in the source from {libraries}?"), output).await?;
    }
    if args.kind.publish && !global.yes && !dry_run {
        let hidden =
            format!("Later uploads by other tools to {libraries} will be hidden until `admin index`.");
        confirm(&format!("{hidden} Publish?"), output).await?;
    }
    let fs = connect(global, !dry_run, output).await?;
    let progress = output.progress("users");
    progress.set_length(users.len() as u64);
    let results: Vec<_> = match dry_run {
        true => {
            let plans = fs.plan_for_users(&users, &new, &options).inspect(|_| progress.inc(1));
            plans.map(|(user, plan)| (user, plan.map(|plan| (plan, None)))).collect().await
        }
        false => {
            let pushes = fs.push_to_users(&users, &new, &options).inspect(|_| progress.inc(1));
            let split = |Pushed { plan, published, .. }| (plan, Some(published));
            pushes.map(|(user, pushed)| (user, pushed.map(split))).collect().await
        }
    };
    progress.finish_and_clear();
    let (mut changed, mut unchanged, mut refused, mut failed) = (0, 0, 0, 0);
    for (user, result) in &results {
        let name = visible(user.as_str(), false);
        match result {
            Ok((plan, published)) => {
                if let Some(published) = published {
                    note_published(published, output, &format!("{user}: "));
                }
                refused += plan.count(Action::Refused);
                match plan.changes() {
                    true => changed += 1,
                    false => unchanged += 1,
                }
                let report = Report { published: published.as_ref(), ..Report::of(plan, dry_run) };
                output.emit(&report, || format!("{name:<32} {}\n", counts(plan)))?;
            }
            Err(error) => {
                failed += 1;
                #[derive(Serialize)]
                struct Failed<'a> {
                    user: &'a str,
                    error: &'a str,
                    kind: ErrorKind,
                }
                let (message, kind) = (error.message(), error.kind());
                output.emit(&Failed { user: user.as_str(), error: message, kind }, || {
                    format!("{name:<32} {BAD}failed{BAD:#}: {}\n", visible(message, false))
                })?;
            }
        }
    }
    output.note(&format!(
        "{} {}, {unchanged} unchanged, {failed} failed{}",
        if dry_run { "would publish to" } else { "published to" },
        plural(changed, "user", "users"),
        if failed > 0 { "; run it again to retry the failed ones" } else { "" }
    ));
    Ok(if failed == 0 && refused == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Reads user IDs, one per line. Blank lines and comments are skipped, and so are duplicates.
fn read_users(file: &Path) -> Result<Vec<UserId>> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|e| {
        Error::new(ErrorKind::InvalidInput, format!("cannot read `{shown}`: {e}"))
            .with_hint("use a text file with one user ID per line")
    })?;
    let mut users = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let id = line.trim();
        if id.is_empty() || id.starts_with('#') && UserId::parse(id).is_err() {
            continue;
        }
        let user = UserId::parse(id).map_err(|e| {
            Error::new(ErrorKind::InvalidId, format!("{shown}:{}: {}", at + 1, e.message()))
                .with_hint("nothing was published; correct the line")
        })?;
        if !users.contains(&user) {
            users.push(user);
        }
    }
    if users.is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, format!("`{shown}` has no user IDs"))
            .with_hint("use a text file with one user ID per line"));
    }
    Ok(users)
}
