//! What an engine tells of a build or a pull, on its way to those who look on.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use moltis_sandbox::BuildProgress;
use tokio::sync::broadcast;

use super::markers::Markers;
use crate::engine::{Progress, ProgressSink};

/// Time between two tellings of how much was fetched.
const PAUSE: Duration = Duration::from_millis(100);

/// Layers that are told apart.
const MAX_LAYERS: usize = 512;

/// Longest line that is passed on, in characters, and how many of the last ones are kept.
const MAX_LINE: usize = 500;
const LAST: usize = 8;

/// Where the steps of one run go. Whoever is too slow misses some.
#[derive(Clone, Debug)]
pub struct Teller(broadcast::Sender<BuildProgress>);

impl Teller {
    /// Tells those who listen on this.
    pub fn new(sender: broadcast::Sender<BuildProgress>) -> Self {
        Self(sender)
    }

    /// A part begins.
    pub fn step(&self, what: impl Into<String>) {
        self.tell(BuildProgress::Step(what.into()));
    }

    /// Passes on what another run told.
    pub fn pass(&self, progress: BuildProgress) {
        self.tell(progress);
    }

    fn tell(&self, progress: BuildProgress) {
        // Nobody may look on.
        let _ = self.0.send(progress);
    }
}

/// Takes what one call to an engine tells.
pub struct Listener {
    teller: Teller,
    /// What the step that installs is to be called.
    installing: String,
    packages: Vec<String>,
    heard: Mutex<Heard>,
}

#[derive(Default)]
struct Heard {
    markers: Markers,
    last: Vec<String>,
    layers: HashMap<String, (u64, u64)>,
    told: Option<Instant>,
}

impl Listener {
    /// For a pull.
    pub fn pull(teller: Teller) -> Self {
        Self { teller, installing: String::new(), packages: Vec::new(), heard: Mutex::default() }
    }

    /// For a build that installs these packages by this program.
    pub fn build(teller: Teller, packages: Vec<String>, program: &str) -> Self {
        let installing = match packages.len() {
            1 => format!("installing 1 package by {program}"),
            count => format!("installing {count} packages by {program}"),
        };
        Self { teller, installing, packages, heard: Mutex::default() }
    }

    /// What our recipe said of why it failed, and the last lines that were printed.
    pub fn heard(&self) -> (Markers, Vec<String>) {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        (heard.markers.clone(), heard.last.clone())
    }
}

impl ProgressSink for Listener {
    fn progress(&self, progress: Progress) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        match progress {
            // Our own instruction holds a script and every package.
            Progress::Step { what, .. }
                if what.trim_start().starts_with("RUN") && !self.installing.is_empty() =>
            {
                self.teller.step(self.installing.clone());
            }
            Progress::Step { what, .. } => self.teller.step(what.chars().take(200).collect::<String>()),
            Progress::Log(line) => {
                let line: String = line.chars().take(MAX_LINE).collect();
                let line = line.trim_end().to_owned();
                if line.is_empty() {
                    return;
                }
                heard.markers.read(&line, &self.packages);
                if !is_of_builder(&line) {
                    if heard.last.len() == LAST {
                        heard.last.remove(0);
                    }
                    heard.last.push(line.clone());
                }
                self.teller.tell(BuildProgress::Log(line));
            }
            Progress::Download { layer, bytes, total } => {
                if heard.layers.len() < MAX_LAYERS || heard.layers.contains_key(&layer) {
                    heard.layers.insert(layer, (bytes, total));
                }
                if heard.told.is_some_and(|told| told.elapsed() < PAUSE) {
                    return;
                }
                heard.told = Some(Instant::now());
                let sum =
                    |of: fn(&(u64, u64)) -> u64| heard.layers.values().map(of).fold(0, u64::saturating_add);
                let known = heard.layers.values().all(|(_, total)| *total > 0);
                let total = known.then(|| sum(|layer| layer.1));
                self.teller.tell(BuildProgress::Fetched { bytes: sum(|layer| layer.0), total });
            }
        }
    }
}

/// Whether a line is of Docker's builder itself, and says nothing of why something failed.
fn is_of_builder(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("---> ") || line.starts_with("Removing intermediate container ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_short_and_the_markers_are_read() {
        let (sender, mut told) = broadcast::channel(64);
        let listener = Listener::build(Teller::new(sender), vec!["tree".into()], "apk");
        let step = |what: &str| Progress::Step { number: 1, total: 3, what: what.into() };
        for progress in [
            step("FROM sha256:1"),
            step("RUN [\"/bin/sh\", …]"),
            Progress::Log("x".repeat(9999)),
            Progress::Log(String::new()),
            Progress::Log("moltis-build: package tree".into()),
            Progress::Download { layer: "a".into(), bytes: 5, total: 10 },
            Progress::Download { layer: "b".into(), bytes: 5, total: 0 },
        ] {
            listener.progress(progress);
        }
        let mut all = Vec::new();
        while let Ok(progress) = told.try_recv() {
            all.push(progress);
        }
        let expected = [
            BuildProgress::Step("FROM sha256:1".into()),
            BuildProgress::Step("installing 1 package by apk".into()),
            BuildProgress::Log("x".repeat(MAX_LINE)),
            BuildProgress::Log("moltis-build: package tree".into()),
            BuildProgress::Fetched { bytes: 5, total: Some(10) },
        ];
        assert_eq!(all, expected);
        let (markers, last) = listener.heard();
        assert_eq!((markers.packages, last.len()), (vec!["tree".to_owned()], 2));
    }
}
