//! Yes-or-no questions to the person at the terminal.
//!
//! Where nobody can answer (no terminal, `--json`), a question is an error that names the flag to give instead.

use skillfs::{Error, ErrorKind, Result};
use std::io::{IsTerminal, Write};

use super::blocking;
use super::output::Output;
use super::terminal::{ACCENT, visible};

/// Whether somebody is there to answer.
pub(super) fn is_interactive(output: &Output) -> bool {
    !output.is_json() && std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks, where somebody can answer.
pub(super) async fn confirm(question: &str, output: &Output) -> Result<()> {
    if !is_interactive(output) {
        return Err(Error::new(ErrorKind::InvalidInput, format!("{question} Nobody is there to ask."))
            .with_hint("say `--yes` to agree, or `--dry-run` to see what would happen"));
    }
    // On a thread that may wait, so that Ctrl-C is heard.
    let asked = question.to_owned();
    if blocking(move || Ok(ask(&asked))).await? {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, "not agreed to: nothing was changed")
        .with_hint("`--dry-run` shows what would change"))
}

pub(super) fn ask(question: &str) -> bool {
    let mut stderr = anstream::stderr();
    let _ = write!(stderr, "{ACCENT}?{ACCENT:#} {} [y/N] ", visible(question, false));
    let _ = stderr.flush();
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).is_ok()
        && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}
