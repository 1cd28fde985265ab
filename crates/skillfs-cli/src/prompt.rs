//! Confirmation prompts.
//!
//! Without a terminal, or with `--json`, a prompt is an error that names the flag to use instead.

use skillfs::{Error, ErrorKind, Result};
use std::io::{IsTerminal, Write};

use super::blocking;
use super::output::Output;
use super::terminal::{ACCENT, visible};

/// Whether a user can answer a prompt.
pub(super) fn is_interactive(output: &Output) -> bool {
    !output.is_json() && std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks for confirmation.
///
/// # Errors
/// If the user declines, or cannot be asked.
pub(super) async fn confirm(question: &str, output: &Output) -> Result<()> {
    if !is_interactive(output) {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("{question} Cannot ask for confirmation without a terminal."),
        )
        .with_hint("add `--yes` to confirm, or `--dry-run` to see what would change"));
    }
    // On a separate thread, so that Ctrl-C is still handled.
    let asked = question.to_owned();
    if blocking(move || Ok(ask(&asked))).await? {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, "canceled: nothing was changed")
        .with_hint("`--dry-run` shows what would change"))
}

/// Asks a yes-or-no question on stderr. Anything but `y` and `yes` means no.
pub(super) fn ask(question: &str) -> bool {
    let mut stderr = anstream::stderr();
    let _ = write!(stderr, "{ACCENT}?{ACCENT:#} {} [y/N] ", visible(question, false));
    let _ = stderr.flush();
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).is_ok()
        && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}
