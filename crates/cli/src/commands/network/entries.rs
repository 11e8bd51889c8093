//! Entries of the log as people read them.

use std::time::Duration;

use moltis_egress::audit::Tally;
use moltis_egress::{Action, Entry, Event};
use moltis_runtime::time;
use moltis_sandbox::Diagnosis;

use crate::render;

/// An entry as a line.
pub fn line(entry: &Entry) -> String {
    let said = match (entry.event, entry.action) {
        (Event::Open, Action::Allowed) => "allowed",
        (Event::Open, Action::Denied) => "denied",
        (Event::Close, Action::Allowed) => "closed",
        (Event::Close, Action::Denied) => "cut",
    };
    let mut why = entry.source.as_str().to_owned();
    if let Some(reason) = &entry.reason {
        why = format!("{why}: {}", render::one_line(reason));
    }
    if entry.event == Event::Close {
        let (sent, received) = (render::size(entry.bytes_sent), render::size(entry.bytes_received));
        let took = render::took(Duration::from_millis(entry.duration_millis));
        why = format!("sent {sent}, received {received}, {took}");
        if let (Action::Denied, Some(reason)) = (entry.action, &entry.reason) {
            why = format!("{why}; {}", render::one_line(reason));
        }
    }
    let at = time::utc(i64::try_from(entry.timestamp / 1000).unwrap_or(i64::MAX));
    let protocol = entry.protocol.as_str();
    let session = render::name(&entry.session);
    format!("{at}  {said:7}  {protocol:7}  {}  {session}  {why}\n", target(&entry.domain, entry.port))
}

/// A host and its port. What a program asked for may have been neither.
pub fn target(domain: &str, port: u16) -> String {
    let host = if domain.is_empty() { "-".to_owned() } else { render::name(domain) };
    match (port, domain.contains(':') && !domain.starts_with('[')) {
        (0, _) => host,
        (_, true) => format!("[{host}]:{port}"),
        (_, false) => format!("{host}:{port}"),
    }
}

/// What is missing from the log, or cannot be read.
pub fn warnings(tally: Tally) -> Vec<Diagnosis> {
    let mut warnings = Vec::new();
    if tally.dropped > 0 {
        let dropped = tally.dropped;
        warnings.push(
            Diagnosis::new(
                "audit-dropped",
                format!("{dropped} entries are missing: they could not be written"),
            )
            .fix("see whether the disk of the data directory is full"),
        );
    }
    if tally.unreadable > 0 {
        let unreadable = tally.unreadable;
        warnings.push(Diagnosis::new(
            "audit-unreadable",
            format!(
                "{unreadable} lines of the log cannot be read, as when a process was killed while it wrote"
            ),
        ));
    }
    warnings
}
