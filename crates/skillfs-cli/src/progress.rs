//! Progress bars on stderr: for counted work, and for file transfers with bytes and rate.
//!
//! A hidden bar (no terminal, `--quiet`, `--json`) accepts the same calls and draws nothing.

use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use skillfs::admin::{LibraryAdmin, PushProgress};

use super::terminal::size;

/// A progress bar for counted work.
pub(super) fn counted(shown: bool, what: &str) -> ProgressBar {
    bar(shown, &format!("{{bar:24}} {{pos}} of {{len}} {what}, {{per_sec}}, {{eta}} left"))
}

/// A progress bar for file transfers: files, bytes, rate and remaining time.
#[derive(Clone)]
pub(super) struct Transfer {
    bar: ProgressBar,
    /// The current phase, and when it started.
    phase: Arc<Mutex<(&'static str, Instant)>>,
}

impl Transfer {
    pub(super) fn new(shown: bool) -> Self {
        let bar = bar(shown, "{bar:24} {msg}, {eta} left");
        Self { bar, phase: Arc::new(Mutex::new(("", Instant::now()))) }
    }

    /// Returns the library with its progress reported to this bar.
    pub(super) fn watch(&self, library: &LibraryAdmin) -> LibraryAdmin {
        let transfer = self.clone();
        library.clone().on_progress(move |at| transfer.update(at))
    }

    fn update(&self, at: PushProgress) {
        let PushProgress { phase, files, bytes, .. } = at;
        let mut current = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        if current.0 != phase {
            *current = (phase, Instant::now());
            self.bar.reset();
        }
        let millis = u64::try_from(current.1.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = |count: u64| count.saturating_mul(1000) / millis;
        let message = match bytes.1 {
            0 => format!("{phase} {} of {} files, {} files/s", files.0, files.1, rate(files.0)),
            total => format!(
                "{phase} {} of {} files, {} of {}, {}/s",
                files.0,
                files.1,
                size(bytes.0),
                size(total),
                size(rate(bytes.0))
            ),
        };
        self.bar.set_message(message);
        // The bar counts files, not bytes: the time of a small file is mostly the request.
        self.bar.set_length(files.1);
        self.bar.set_position(files.0);
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn bar(shown: bool, template: &str) -> ProgressBar {
    let bar = if shown { ProgressBar::new(0) } else { ProgressBar::hidden() };
    // An invalid template leaves the default style.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
