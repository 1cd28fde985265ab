//! CPU time and memory of this process.

use std::time::Duration;

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};

/// The CPU time of all threads so far, user and system.
pub(crate) fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// The current resident set size, in KiB.
pub(crate) fn resident() -> Result<u64> {
    status("VmRSS:")
}

/// The peak resident set size, in KiB.
pub(crate) fn peak_resident() -> Result<u64> {
    status("VmHWM:")
}

fn status(name: &str) -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status").context("memory is read from /proc, on Linux")?;
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
        .with_context(|| format!("/proc/self/status has no {name}"))
}

/// The median, or zero if there are no values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 0 => f64::midpoint(values[n / 2 - 1], values[n / 2]),
        n => values[n / 2],
    }
}
