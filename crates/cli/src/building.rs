//! What happens while an image is built or fetched, on standard error.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use moltis_sandbox::{BuildProgress, BuildSink};
use serde_json::json;
use tokio::sync::mpsc;

use crate::{output, render};

/// How much is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// The steps; on a terminal also what goes on at the moment, in a line that goes again.
    Steps,
    /// Every line.
    All,
    /// Everything, as JSON lines.
    Json,
}

/// Time between two tellings of how much was fetched where each is a line of its own.
const PAUSE: Duration = Duration::from_secs(5);

/// Columns that a line that goes again may take where the terminal does not say how many it has.
const COLUMNS: usize = 80;

/// Waits for `work`, and shows what it tells. Dropping this, or `given_up` ending, tells the work that nobody looks on.
pub async fn watched<T>(
    show: Show,
    given_up: impl Future<Output = ()>,
    work: impl AsyncFnOnce(&BuildSink) -> T,
) -> T {
    let (sink, mut told) = BuildSink::channel();
    let mut shown = Shown::new(show);
    let looking = async {
        tokio::select! {
            () = given_up => {}
            () = shown.all(&mut told) => {}
        }
        // The work sees that the other end is gone.
        drop(told);
        std::future::pending::<()>().await;
    };
    let working = async {
        let done = work(&sink).await;
        drop(sink);
        done
    };
    let done = tokio::select! {
        done = working => done,
        () = looking => unreachable!("it waits for ever"),
    };
    shown.clear();
    done
}

struct Shown {
    show: Show,
    /// Whether a line that goes again may be drawn.
    on_terminal: bool,
    /// Whether one stands there.
    is_drawn: bool,
    fetched: Option<Instant>,
}

impl Shown {
    fn new(show: Show) -> Self {
        Self { show, on_terminal: std::io::stderr().is_terminal(), is_drawn: false, fetched: None }
    }

    async fn all(&mut self, told: &mut mpsc::Receiver<BuildProgress>) {
        while let Some(progress) = told.recv().await {
            self.one(progress);
        }
        std::future::pending().await
    }

    fn one(&mut self, progress: BuildProgress) {
        if self.show == Show::Json {
            let event = match progress {
                BuildProgress::Step(what) => json!({ "event": "step", "what": what }),
                BuildProgress::Log(line) => json!({ "event": "log", "line": line }),
                BuildProgress::Fetched { bytes, total } => {
                    json!(output::present(json!({ "event": "fetched", "bytes": bytes, "totalBytes": total })))
                }
            };
            if let Ok(line) = output::json_line(&event) {
                // A reader that is gone cannot be told.
                let _ = std::io::stderr().write_all(line.as_bytes());
            }
            return;
        }
        match progress {
            BuildProgress::Step(what) => {
                self.clear();
                crate::say!("moltis: {}", render::one_line(&what));
            }
            BuildProgress::Log(line) if self.show == Show::All => {
                self.clear();
                crate::say!("  {}", render::one_line(&line));
            }
            BuildProgress::Log(line) => self.draw(&line),
            BuildProgress::Fetched { bytes, total } => {
                let of = total.map(|total| format!(" of {}", render::size(total))).unwrap_or_default();
                let line = format!("{}{of} fetched", render::size(bytes));
                if self.on_terminal {
                    self.draw(&line);
                } else if self.fetched.is_none_or(|last| last.elapsed() >= PAUSE) {
                    self.fetched = Some(Instant::now());
                    crate::say!("moltis: {line}");
                }
            }
        }
    }

    fn draw(&mut self, line: &str) {
        if !self.on_terminal {
            return;
        }
        let columns = rustix::termios::tcgetwinsize(std::io::stderr())
            .map_or(COLUMNS, |size| usize::from(size.ws_col))
            .saturating_sub(3);
        let line: String = render::one_line(line).chars().take(columns).collect();
        let _ = write!(std::io::stderr(), "\r\x1b[K  {line}");
        self.is_drawn = true;
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
