//! Results: rows, figures and goals, as tables or JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::args::Args;
use crate::lab::Measured;

/// All results.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) settings: Args,
    pub(crate) cores: usize,
    pub(crate) sections: Vec<Section>,
    pub(crate) failed: Vec<String>,
}

impl Report {
    pub(crate) fn new(args: &Args) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { settings: args.clone(), cores, sections: Vec::new(), failed: Vec::new() }
    }

    /// Formats the goals of all sections, and the failed scenarios.
    pub(crate) fn goals(&self, markdown: bool) -> String {
        let goals = self.sections.iter().flat_map(|section| &section.goals);
        let rows: Vec<_> = goals
            .map(|goal| {
                let verdict = if goal.ok { "ok" } else { "MISSED" };
                [&goal.what, &goal.wanted, &goal.measured, verdict].map(str::to_owned).to_vec()
            })
            .collect();
        let mut text = String::new();
        if !rows.is_empty() {
            text += &heading("Goals", markdown);
            text += &table(&["what", "goal", "measured", ""], &rows, 3, markdown);
        }
        for failure in &self.failed {
            text += &format!("\nfailed: {failure}\n");
        }
        text
    }
}

/// The results of one scenario.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) rows: Vec<Row>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) goals: Vec<Goal>,
    pub(crate) notes: Vec<String>,
}

/// The result of one contestant in one piece of work.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) work: String,
    pub(crate) contestant: String,
    pub(crate) requests: u64,
    /// The requests by kind.
    pub(crate) kinds: String,
    pub(crate) seconds: f64,
    /// The time divided by the latency.
    pub(crate) round_trips: f64,
    /// The maximum number of concurrent requests.
    pub(crate) at_once: u64,
    /// Whether the result was extrapolated from a sample.
    pub(crate) estimated: bool,
}

/// A single number, without a comparison.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) what: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
}

#[derive(Debug, Serialize)]
pub(crate) struct Goal {
    pub(crate) what: String,
    pub(crate) wanted: String,
    pub(crate) measured: String,
    pub(crate) ok: bool,
}

/// The contestant that the others are compared with.
pub(crate) const OURS: &str = "skillfs";

impl Section {
    pub(crate) fn titled(mut self, name: &str, title: &str) -> Self {
        (self.name, self.title) = (name.to_owned(), title.to_owned());
        self
    }

    pub(crate) fn row(&mut self, args: &Args, work: &str, contestant: &str, measured: &Measured) {
        let seconds = measured.time.as_secs_f64();
        self.rows.push(Row {
            work: work.to_owned(),
            contestant: contestant.to_owned(),
            requests: measured.counts.total(),
            kinds: measured.counts.kinds(),
            seconds,
            round_trips: seconds / args.latency().as_secs_f64(),
            at_once: measured.counts.most,
            estimated: false,
        });
        eprintln!("  {work}: {contestant}: {} requests, {}", measured.counts.total(), time(seconds));
    }

    pub(crate) fn figure(&mut self, what: impl Into<String>, value: f64, unit: &'static str) {
        let what = what.into();
        eprintln!("  {what}: {}", number(value, unit));
        self.figures.push(Figure { what, value, unit });
    }

    /// Adds a goal: a number must not exceed a limit.
    pub(crate) fn at_most(&mut self, what: impl Into<String>, goal: f64, measured: f64, unit: &'static str) {
        self.goals.push(Goal {
            what: what.into(),
            wanted: format!("<= {}", number(goal, unit)),
            measured: number(measured, unit),
            ok: measured <= goal,
        });
    }

    /// Adds a goal that is met or missed.
    pub(crate) fn goal(
        &mut self,
        what: impl Into<String>,
        goal: impl Into<String>,
        measured: impl Into<String>,
        ok: bool,
    ) {
        self.goals.push(Goal { what: what.into(), wanted: goal.into(), measured: measured.into(), ok });
    }

    pub(crate) fn show(&self, markdown: bool) -> String {
        let mut text = heading(&format!("{}: {}", self.name, self.title), markdown);
        if !self.rows.is_empty() {
            let columns =
                ["work", "contestant", "requests", "of them", "time", "round trips", "at once", "to ours"];
            text += &table(&columns, &self.cells(), 2, markdown);
        }
        if !self.figures.is_empty() {
            let rows: Vec<_> =
                self.figures.iter().map(|f| vec![f.what.clone(), number(f.value, f.unit)]).collect();
            text += &table(&["figure", "measured"], &rows, 1, markdown);
        }
        for note in &self.notes {
            text += &format!("\n{note}\n");
        }
        text
    }

    /// Formats rows grouped by work, in order of first occurrence, with ours first.
    fn cells(&self) -> Vec<Vec<String>> {
        let mut order: Vec<&str> = Vec::new();
        let mut ours: BTreeMap<&str, f64> = BTreeMap::new();
        for row in &self.rows {
            if !order.contains(&row.work.as_str()) {
                order.push(&row.work);
            }
            if row.contestant == OURS {
                ours.insert(&row.work, row.seconds);
            }
        }
        let mut cells = Vec::new();
        for work in order {
            let mut rows: Vec<&Row> = self.rows.iter().filter(|row| row.work == work).collect();
            rows.sort_by_key(|row| row.contestant != OURS);
            for row in rows {
                let about = if row.estimated { "~" } else { "" };
                let ratio = match ours.get(work) {
                    Some(_) if row.contestant == OURS => "1".to_owned(),
                    Some(ours) if *ours > 0.0 => format!("{about}{}", times(row.seconds / ours)),
                    _ => String::new(),
                };
                cells.push(vec![
                    row.work.clone(),
                    row.contestant.clone(),
                    format!("{about}{}", grouped(row.requests)),
                    row.kinds.clone(),
                    format!("{about}{}", time(row.seconds)),
                    format!("{about}{:.1}", row.round_trips),
                    grouped(row.at_once),
                    ratio,
                ]);
            }
        }
        cells
    }
}

fn heading(text: &str, markdown: bool) -> String {
    if markdown { format!("\n## {text}\n\n") } else { format!("\n{text}\n\n") }
}

/// Formats a table. The first `left` columns are left-aligned, the others right-aligned.
fn table(columns: &[&str], rows: &[Vec<String>], left: usize, markdown: bool) -> String {
    let mut text = String::new();
    if markdown {
        text += &format!("| {} |\n|", columns.join(" | "));
        for at in 0..columns.len() {
            text += if at < left { "---|" } else { "---:|" };
        }
        text.push('\n');
        for row in rows {
            text += &format!("| {} |\n", row.join(" | "));
        }
        return text;
    }
    let width = |at: usize| {
        let cells = rows.iter().map(|row| row[at].chars().count());
        cells.chain([columns[at].chars().count()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let header: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
    for row in std::iter::once(&header).chain(rows) {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let width = widths[at];
            line += &if at < left { format!("{cell:<width$}  ") } else { format!("{cell:>width$}  ") };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Formats a time: `52.3 ms`.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s if s >= 1e-6 => format!("{:.1} µs", s * 1e6),
        s => format!("{:.0} ns", s * 1e9),
    }
}

/// Formats a ratio: `1.04×`, `61×`.
fn times(ratio: f64) -> String {
    match ratio {
        r if r < 10.0 => format!("{r:.2}×"),
        r => format!("{}×", grouped(r.round() as u64)),
    }
}

fn number(value: f64, unit: &str) -> String {
    match unit {
        "s" => time(value),
        "×" => times(value),
        "requests" => format!("{} requests", grouped(value as u64)),
        "" => grouped(value as u64),
        unit => format!("{value:.1} {unit}"),
    }
}

/// Formats a number with thousands separators: `10,000`.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([2.5, 0.0523, 42e-6, 1e-7].map(time), ["2.50 s", "52.3 ms", "42.0 µs", "100 ns"]);
        assert_eq!([1.044, 61.4, 5200.0].map(times), ["1.04×", "61×", "5,200×"]);
    }

    #[test]
    fn a_table_is_aligned() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["bcd".to_owned(), "10".to_owned()]];
        assert_eq!(table(&["x", "n"], &rows, 1, false), "x     n\na     1\nbcd  10\n");
        assert_eq!(table(&["x", "n"], &rows, 1, true), "| x | n |\n|---|---:|\n| a | 1 |\n| bcd | 10 |\n");
    }
}
