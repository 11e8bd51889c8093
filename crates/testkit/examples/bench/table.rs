//! Figures, their targets, and whether they were met.

use std::fmt::Write;

/// What a figure has to be.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// Ours at most so many times the baseline.
    AtMost(f64),
    /// Ours at least so many times the baseline.
    AtLeast(f64),
    /// No more than this, in the figure's own unit; asserted.
    Bound(f64),
}

/// One figure.
pub struct Row {
    /// What was measured.
    pub what: String,
    /// Ours, with its unit.
    pub ours: String,
    /// The baseline, with its unit.
    pub baseline: String,
    /// Ours over the baseline, or ours in its own unit for a bound.
    pub value: f64,
    /// What it has to be.
    pub target: Target,
}

/// All figures of a run.
#[derive(Default)]
pub struct Table(Vec<Row>);

impl Table {
    /// Adds a figure, and shows it at once.
    pub fn add(&mut self, row: Row) {
        eprintln!("{}", line(&row));
        self.0.push(row);
    }

    /// A figure beside its baseline.
    pub fn ratio(
        &mut self,
        what: impl Into<String>,
        ours: (f64, String),
        baseline: (f64, String),
        target: Target,
    ) {
        self.add(Row {
            what: what.into(),
            ours: ours.1,
            baseline: baseline.1,
            value: ours.0 / baseline.0,
            target,
        });
    }

    /// A figure with a bound.
    pub fn bound(&mut self, what: impl Into<String>, value: f64, unit: &str, bound: f64) {
        self.add(Row {
            what: what.into(),
            ours: format!("{value:.2} {unit}"),
            baseline: "–".into(),
            value,
            target: Target::Bound(bound),
        });
    }

    /// As Markdown.
    pub fn markdown(&self) -> String {
        let mut text =
            String::from("| figure | Moltis | baseline | ratio | target | |\n|---|---|---|---|---|---|\n");
        for row in &self.0 {
            let _ = writeln!(text, "{}", line(row));
        }
        text
    }

    /// The first asserted figure that does not hold. An empty table holds nothing.
    pub fn broken(&self) -> Option<String> {
        if self.0.is_empty() {
            return Some("nothing was measured".into());
        }
        let bad = |row: &&Row| matches!(row.target, Target::Bound(_)) && !met(row);
        self.0.iter().find(bad).map(line)
    }
}

fn met(row: &Row) -> bool {
    match row.target {
        Target::AtMost(most) | Target::Bound(most) => row.value <= most,
        Target::AtLeast(least) => row.value >= least,
    }
}

fn line(row: &Row) -> String {
    let (ratio, target) = match row.target {
        Target::AtMost(most) => (format!("{:.2}", row.value), format!("≤ {most}")),
        Target::AtLeast(least) => (format!("{:.2}", row.value), format!("≥ {least}")),
        Target::Bound(most) => ("–".to_owned(), format!("≤ {most}")),
    };
    let verdict = if met(row) { "pass" } else { "miss" };
    format!("| {} | {} | {} | {ratio} | {target} | {verdict} |", row.what, row.ours, row.baseline)
}
