//! Figures, each beside its baseline of the same run.

use std::time::Duration;

use serde_json::{Value, json};

/// What was measured, by turns with its baseline.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    ours: Vec<Duration>,
    baseline: Vec<Duration>,
}

impl Rounds {
    /// One turn of each.
    pub fn push(&mut self, ours: Duration, baseline: Duration) {
        self.ours.push(ours);
        self.baseline.push(baseline);
    }

    /// How many there were.
    pub fn count(&self) -> usize {
        self.ours.len()
    }

    /// Both medians; nothing while there was no turn.
    fn medians(&self) -> Option<(Duration, Duration)> {
        Some((median(&self.ours)?, median(&self.baseline)?))
    }
}

fn median(all: &[Duration]) -> Option<Duration> {
    let mut all = all.to_vec();
    all.sort_unstable();
    all.get(all.len() / 2).copied()
}

/// A figure as it is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Figure {
    /// Time that something takes.
    Time { ours: Duration, baseline: Duration, rounds: usize },
    /// Bytes a second.
    Rate { ours: f64, baseline: f64, rounds: usize },
}

impl Figure {
    /// A time; nothing while there was no turn.
    pub fn time(measured: &Rounds) -> Option<Self> {
        let (ours, baseline) = measured.medians()?;
        Some(Self::Time { ours, baseline, rounds: measured.count() })
    }

    /// A rate, from the times for so many bytes; nothing while there was no turn.
    pub fn rate(measured: &Rounds, bytes: u64) -> Option<Self> {
        let (ours, baseline) = measured.medians()?;
        let rate = |time: Duration| bytes as f64 / time.as_secs_f64().max(1e-9);
        Some(Self::Rate { ours: rate(ours), baseline: rate(baseline), rounds: measured.count() })
    }

    /// Ours to the baseline's.
    pub fn ratio(&self) -> f64 {
        match self {
            Self::Time { ours, baseline, .. } => ours.as_secs_f64() / baseline.as_secs_f64().max(1e-9),
            Self::Rate { ours, baseline, .. } => ours / baseline.max(1e-9),
        }
    }

    /// Ours and the baseline's, with units.
    pub fn shown(&self) -> [String; 2] {
        match self {
            Self::Time { ours, baseline, .. } => [ours, baseline].map(|time| milliseconds(*time)),
            Self::Rate { ours, baseline, .. } => {
                [ours, baseline].map(|rate| format!("{:.0} MiB/s", rate / f64::from(1 << 20)))
            }
        }
    }

    /// As JSON tells it.
    pub fn json(&self, against: &str) -> Value {
        let ratio = rounded(self.ratio());
        match self {
            Self::Time { ours, baseline, rounds } => {
                let [ours, baseline] = [ours, baseline].map(|time| rounded(time.as_secs_f64() * 1e3));
                json!({ "medianMs": ours, "baseline": against, "baselineMs": baseline, "ratio": ratio,
                        "rounds": rounds })
            }
            Self::Rate { ours, baseline, rounds } => {
                // Whole bytes: no rate is as large as to lose any.
                let [ours, baseline] = [ours, baseline].map(|rate| *rate as u64);
                json!({ "bytesPerSecond": ours, "baseline": against, "baselineBytesPerSecond": baseline,
                        "ratio": ratio, "rounds": rounds })
            }
        }
    }
}

/// To a thousandth: what is beyond is chance.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn milliseconds(time: Duration) -> String {
    let value = time.as_secs_f64() * 1e3;
    if value < 100.0 { format!("{value:.2} ms") } else { format!("{value:.0} ms") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios_are_of_the_middle() {
        let mut rounds = Rounds::default();
        assert_eq!(Figure::time(&rounds), None);
        for (ours, baseline) in [(900, 4), (20, 2), (10, 400), (30, 6), (1, 1)] {
            rounds.push(Duration::from_millis(ours), Duration::from_millis(baseline));
        }
        let time = Figure::time(&rounds).unwrap();
        assert_eq!(time.shown(), ["20.00 ms", "4.00 ms"].map(str::to_owned));
        assert_eq!(
            time.json("sh -c true"),
            json!({ "medianMs": 20.0, "baseline": "sh -c true", "baselineMs": 4.0, "ratio": 5.0, "rounds": 5 })
        );
        let rate = Figure::rate(&rounds, 1 << 20).unwrap();
        assert_eq!(rate.shown(), ["50 MiB/s", "250 MiB/s"].map(str::to_owned));
        assert_eq!(rate.json("pipe")["ratio"], json!(0.2));
    }
}
