//! What is counted, in the text form that Prometheus reads. Nothing is ever labelled by session.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use moltis_sandbox::BackendName;

/// Upper bounds of the buckets of a request's duration, in seconds.
const BOUNDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0];

/// How a command that was asked for ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It ran to its end.
    Done,
    /// Its time was up.
    TimedOut,
    /// It did not start.
    Failed,
    /// How it ended is not known.
    Lost,
}

const ENDS: [&str; 4] = ["done", "timedOut", "failed", "lost"];

#[derive(Debug, Default)]
struct OfRoute {
    /// By the first digit of the status, from 1 on.
    statuses: [AtomicU64; 5],
    buckets: [AtomicU64; BOUNDS.len()],
    micros: AtomicU64,
}

/// What is counted.
#[derive(Debug)]
pub struct Metrics {
    started: Instant,
    names: Vec<&'static str>,
    routes: Vec<OfRoute>,
    running: AtomicI64,
    connections: AtomicI64,
    refused: AtomicU64,
    commands: Vec<[AtomicU64; 4]>,
}

/// What is gathered at the moment that somebody looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Stored sessions.
    pub sessions: u64,
    /// Sandboxes that are written down as running, by backend.
    pub sandboxes: Vec<(BackendName, u64)>,
    /// Sandboxes that wait in the pool.
    pub pool: u64,
    /// Backends that were given up.
    pub failed_over: u64,
}

/// One more of something, for as long as this lives.
pub struct Counted<'a>(&'a AtomicI64);

impl<'a> Counted<'a> {
    fn new(of: &'a AtomicI64) -> Self {
        of.fetch_add(1, Ordering::Relaxed);
        Self(of)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Metrics {
    /// Nothing was counted yet; routes are counted by their names.
    pub fn new(names: Vec<&'static str>) -> Self {
        let routes = names.iter().map(|_| OfRoute::default()).collect();
        Self {
            started: Instant::now(),
            names,
            routes,
            running: AtomicI64::new(0),
            connections: AtomicI64::new(0),
            refused: AtomicU64::new(0),
            commands: BackendName::ALL.iter().map(|_| Default::default()).collect(),
        }
    }

    /// Time since the gateway started.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// A request that is answered.
    pub fn request(&self) -> Counted<'_> {
        Counted::new(&self.running)
    }

    /// A connection that is open.
    pub fn connection(&self) -> Counted<'_> {
        Counted::new(&self.connections)
    }

    /// Requests that are answered now.
    pub fn running(&self) -> i64 {
        self.running.load(Ordering::Relaxed)
    }

    /// A request of a route was answered.
    pub fn answered(&self, route: usize, status: u16, took: Duration) {
        let Some(counted) = self.routes.get(route) else { return };
        let class = usize::from(status / 100).saturating_sub(1).min(4);
        counted.statuses[class].fetch_add(1, Ordering::Relaxed);
        let seconds = took.as_secs_f64();
        for (bound, bucket) in BOUNDS.iter().zip(&counted.buckets) {
            if seconds <= *bound {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
        }
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        counted.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// A credential was wrong, or missing.
    pub fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// A command came to its end, or did not start.
    pub fn command(&self, backend: BackendName, ended: Ended) {
        let place = BackendName::ALL.iter().position(|name| *name == backend);
        if let Some(counted) = place.and_then(|place| self.commands.get(place)) {
            counted[ended as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All of it.
    pub fn text(&self, gauges: &Gauges) -> String {
        let mut text = String::new();
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let head = |text: &mut String, name: &str, kind: &str, about: &str| {
            // Writing to a String cannot fail.
            let _ = write!(text, "# HELP {name} {about}\n# TYPE {name} {kind}\n");
        };
        head(&mut text, "moltis_build_info", "gauge", "The version that runs.");
        let _ = writeln!(text, "moltis_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
        head(&mut text, "moltis_uptime_seconds", "gauge", "Time since the gateway started.");
        let _ = writeln!(text, "moltis_uptime_seconds {:.3}", self.uptime().as_secs_f64());
        head(&mut text, "moltis_http_requests_total", "counter", "Requests that were answered.");
        for (name, counted) in self.names.iter().zip(&self.routes) {
            for (class, number) in counted.statuses.iter().enumerate().filter(|(_, number)| load(number) > 0)
            {
                let (class, number) = (class + 1, load(number));
                let _ = writeln!(
                    text,
                    "moltis_http_requests_total{{route=\"{name}\",status=\"{class}xx\"}} {number}"
                );
            }
        }
        let name = "moltis_http_request_seconds";
        head(&mut text, name, "histogram", "Time until a request's answer began.");
        for (route, counted) in self.names.iter().zip(&self.routes) {
            let all: u64 = counted.statuses.iter().map(load).sum();
            if all == 0 {
                continue;
            }
            for (bound, bucket) in BOUNDS.iter().zip(&counted.buckets) {
                let count = load(bucket);
                let _ = writeln!(text, "{name}_bucket{{route=\"{route}\",le=\"{bound}\"}} {count}");
            }
            let seconds = Duration::from_micros(load(&counted.micros)).as_secs_f64();
            let _ = writeln!(text, "{name}_bucket{{route=\"{route}\",le=\"+Inf\"}} {all}");
            let _ = writeln!(text, "{name}_sum{{route=\"{route}\"}} {seconds:.6}");
            let _ = writeln!(text, "{name}_count{{route=\"{route}\"}} {all}");
        }
        head(
            &mut text,
            "moltis_commands_total",
            "counter",
            "Commands that were asked for, by how they ended.",
        );
        for (backend, counted) in BackendName::ALL.iter().zip(&self.commands) {
            for (end, number) in ENDS.iter().zip(counted).filter(|(_, number)| load(number) > 0) {
                let number = load(number);
                let _ =
                    writeln!(text, "moltis_commands_total{{backend=\"{backend}\",end=\"{end}\"}} {number}");
            }
        }
        let singles: [(&str, &str, i64, &str); 6] = [
            ("moltis_requests_running", "gauge", self.running(), "Requests that are answered now."),
            (
                "moltis_connections",
                "gauge",
                self.connections.load(Ordering::Relaxed),
                "Connections that are open.",
            ),
            ("moltis_sessions", "gauge", signed(gauges.sessions), "Stored sessions."),
            ("moltis_pool_ready", "gauge", signed(gauges.pool), "Sandboxes that wait for a session."),
            (
                "moltis_backends_failed_over",
                "gauge",
                signed(gauges.failed_over),
                "Backends that failed and were given up.",
            ),
            (
                "moltis_credentials_refused_total",
                "counter",
                signed(load(&self.refused)),
                "Requests without a credential that holds.",
            ),
        ];
        for (name, kind, value, about) in singles {
            head(&mut text, name, kind, about);
            let _ = writeln!(text, "{name} {value}");
        }
        head(&mut text, "moltis_sandboxes", "gauge", "Sandboxes that are written down.");
        for (backend, number) in &gauges.sandboxes {
            let _ = writeln!(text, "moltis_sandboxes{{backend=\"{backend}\"}} {number}");
        }
        text
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_in_the_text() {
        let metrics = Metrics::new(vec!["a", "b"]);
        metrics.answered(0, 200, Duration::from_millis(2));
        metrics.answered(0, 503, Duration::from_secs(1000));
        metrics.command(BackendName::Wasm, Ended::Lost);
        let _one = metrics.request();
        let gauges =
            Gauges { sessions: 3, sandboxes: vec![(BackendName::Docker, 2)], pool: 1, failed_over: 0 };
        let text = metrics.text(&gauges);
        for line in [
            "moltis_http_requests_total{route=\"a\",status=\"2xx\"} 1",
            "moltis_http_requests_total{route=\"a\",status=\"5xx\"} 1",
            "moltis_http_request_seconds_bucket{route=\"a\",le=\"0.001\"} 0",
            "moltis_http_request_seconds_bucket{route=\"a\",le=\"0.0025\"} 1",
            "moltis_http_request_seconds_bucket{route=\"a\",le=\"300\"} 1",
            "moltis_http_request_seconds_bucket{route=\"a\",le=\"+Inf\"} 2",
            "moltis_commands_total{backend=\"wasm\",end=\"lost\"} 1",
            "moltis_requests_running 1",
            "moltis_sessions 3",
            "moltis_sandboxes{backend=\"docker\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        assert!(!text.contains("route=\"b\""));
    }
}
