//! `skillfs doctor`: prints the checks of a diagnosis.

use std::process::ExitCode;

use anstyle::Style;
use skillfs::{Check, Diagnosis, Result, Verdict};

use super::args::Global;
use super::connect::{connect_with, role};
use super::hints::{Invocation, in_flags};
use super::output::Output;
use super::terminal::{ACCENT, BAD, DIM, GOOD, WARN, plural, visible};

pub(super) async fn run(global: &Global, output: &Output) -> Result<ExitCode> {
    let session = global.session.session(global.read_only)?;
    let mut found = connect_with(global, role(global)?, false, output).await?.diagnose(&session).await;
    let invocation = Invocation::of(global);
    for check in &mut found.checks {
        let invocation = invocation.with_library(check.library.as_ref());
        check.fix = check.fix.take().map(|fix| in_flags(&fix, &invocation));
    }
    output.emit(&found, || table(&found))?;
    Ok(if found.healthy { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn style(verdict: Verdict) -> Style {
    match verdict {
        Verdict::Good => GOOD,
        Verdict::Note => ACCENT,
        Verdict::Warning => WARN,
        Verdict::Wrong => BAD,
        _ => DIM,
    }
}

fn table(found: &Diagnosis) -> String {
    let name = |check: &Check| match &check.of {
        Some(of) => visible(&format!("{} {of}", check.name), false),
        None => check.name.to_owned(),
    };
    let width = found.checks.iter().map(|check| name(check).chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for check in &found.checks {
        let (verdict, style) = (check.verdict.as_str(), style(check.verdict));
        let dim = if check.verdict == Verdict::Skipped { DIM } else { Style::new() };
        text += &format!(
            "{style}{verdict:<7}{style:#}  {dim}{:<width$}  {}{dim:#}\n",
            name(check),
            visible(&check.found, false)
        );
        if let Some(fix) = &check.fix {
            let word = if check.verdict == Verdict::Skipped { "more" } else { "fix" };
            let fix = visible(&fix.to_string(), false);
            text += &format!("{:<7}  {:<width$}  {ACCENT}{word}:{ACCENT:#} {fix}\n", "", "");
        }
    }
    text + &summary(found)
}

/// The last line: counts by verdict.
fn summary(found: &Diagnosis) -> String {
    let count = |verdict| found.count(verdict);
    let wrong = count(Verdict::Wrong);
    let (style, head) = match wrong {
        0 => (GOOD, "nothing is wrong".to_owned()),
        wrong => (BAD, plural(wrong, "thing is wrong", "things are wrong")),
    };
    let mut rest = vec![format!("{} good", count(Verdict::Good))];
    for (number, one, many) in [
        (count(Verdict::Warning), "warning", "warnings"),
        (count(Verdict::Note), "note", "notes"),
        (count(Verdict::Skipped), "skipped", "skipped"),
    ] {
        if number > 0 {
            rest.push(plural(number, one, many));
        }
    }
    format!("\n{style}{head}{style:#}: {}\n", rest.join(", "))
}
