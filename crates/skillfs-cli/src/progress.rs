//! Progress bars on stderr: of counted work, and of file transfers with their bytes and rate.
//!
//! A bar that is not shown (no terminal, `--quiet`, `--json`) takes the same calls and draws nothing.

use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use skillfs::admin::{LibraryAdmin, PushProgress};

use super::terminal::size;

/// Long work on its way.
pub(super) fn counted(shown: bool, what: &str) -> ProgressBar {
    bar(shown, &format!("{{bar:24}} {{pos}} of {{len}} {what}, {{per_sec}}, {{eta}} left"))
}

/// Progress of file transfers: files, bytes, rate, and time left.
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

    /// A library whose operations report here.
    pub(super) fn of(&self, library: &LibraryAdmin) -> LibraryAdmin {
        let transfer = self.clone();
        library.clone().on_progress(move |at| transfer.tell(at))
    }

    pub(super) fn tell(&self, at: PushProgress) {
        let PushProgress { phase, files, bytes, .. } = at;
        let mut known = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 != phase {
            *known = (phase, Instant::now());
            self.bar.reset();
        }
        let millis = u64::try_from(known.1.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = |count: u64| count.saturating_mul(1000) / millis;
        let told = match bytes.1 {
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
        self.bar.set_message(told);
        // Small files take as long as large ones.
        self.bar.set_length(files.1);
        self.bar.set_position(files.0);
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn bar(shown: bool, template: &str) -> ProgressBar {
    let bar = if shown { ProgressBar::new(0) } else { ProgressBar::hidden() };
    // A template that cannot be read is a plain bar.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
