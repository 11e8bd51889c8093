//! Entries of the log, written as things happen.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::audit::{Action, Audit, Entry, Event, Protocol, Source, now_millis};
use crate::host::Target;
use crate::refusal::Refusal;

/// Time in which only so many refusals of a session are written down one by one. What comes beyond that is counted, and
/// the next one says how many there were: a flood of them would wash out everything else, of other sessions too.
const WINDOW: Duration = Duration::from_secs(1);

/// Refusals within that time.
const REFUSALS: u32 = 100;

/// Connections too many within that time: they are all alike.
const LIMITS: u32 = 1;

/// What is written of one session.
pub(crate) struct Journal {
    audit: Arc<dyn Audit>,
    session: Arc<str>,
    ids: Arc<AtomicU64>,
    limits: Folded,
    refusals: Folded,
}

/// Counts what is not written down one by one.
#[derive(Default)]
struct Folded(Mutex<Fold>);

#[derive(Default)]
struct Fold {
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl Folded {
    /// Whether one more is written down now; if it is, how many were left out before it.
    fn pass(&self, now: Instant, most: u32) -> Option<u64> {
        let mut fold = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if fold.since.is_none_or(|since| now.saturating_duration_since(since) >= WINDOW) {
            (fold.since, fold.written) = (Some(now), 0);
        }
        if fold.written == most {
            fold.left_out += 1;
            return None;
        }
        fold.written += 1;
        Some(std::mem::take(&mut fold.left_out))
    }

    /// How many were left out and not told of yet.
    fn untold(&mut self) -> u64 {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).left_out
    }
}

impl Drop for Journal {
    /// What was left out last is told of at the end.
    fn drop(&mut self) {
        let untold = self.limits.untold() + self.refusals.untold();
        if untold > 0 {
            let mut entry = self.entry(&Wanted::nothing(), Protocol::Connect);
            (entry.action, entry.source) = (Action::Denied, Source::Limit);
            entry.reason = Some(format!("{untold} more were refused before and are not listed"));
            self.audit.record(entry);
        }
    }
}

/// What a program asked for, as far as it was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) domain: String,
    pub(crate) port: u16,
}

impl Wanted {
    /// Nothing that was understood.
    pub(crate) fn nothing() -> Self {
        Self { domain: String::new(), port: 0 }
    }

    /// Something that is no host. What stands before an `@` may be a password.
    pub(crate) fn text(text: &str) -> Self {
        let text = text.rsplit_once('@').map_or(text, |(_, host)| host);
        let mut domain = String::new();
        for part in text.chars().map(char::escape_default) {
            if domain.len() + part.len() > 253 {
                break;
            }
            domain.extend(part);
        }
        Self { domain, port: 0 }
    }
}

impl From<&Target> for Wanted {
    fn from(target: &Target) -> Self {
        Self { domain: target.host.to_string(), port: target.port }
    }
}

impl Journal {
    pub(crate) fn new(audit: Arc<dyn Audit>, session: Arc<str>, ids: Arc<AtomicU64>) -> Self {
        Self { audit, session, ids, limits: Folded::default(), refusals: Folded::default() }
    }

    fn entry(&self, wanted: &Wanted, protocol: Protocol) -> Entry {
        Entry {
            timestamp: now_millis(),
            session: (*self.session).to_owned(),
            id: self.ids.fetch_add(1, Ordering::Relaxed),
            event: Event::Open,
            domain: wanted.domain.clone(),
            port: wanted.port,
            protocol,
            action: Action::Allowed,
            source: Source::Unknown,
            reason: None,
            bytes_sent: 0,
            bytes_received: 0,
            duration_millis: 0,
        }
    }

    /// Writes down what did not go through.
    pub(crate) fn refused(&self, wanted: &Wanted, protocol: Protocol, why: &Refusal) {
        let Some(reason) = self.reason(why) else { return };
        let mut entry = self.entry(wanted, protocol);
        entry.action = why.action();
        entry.source = why.decided_by();
        entry.reason = Some(reason);
        self.audit.record(entry);
    }

    /// The reason of a refusal that is written down, with how many before it were not.
    fn reason(&self, why: &Refusal) -> Option<String> {
        let (fold, most) = match why {
            Refusal::TooManyConnections => (&self.limits, LIMITS),
            _ => (&self.refusals, REFUSALS),
        };
        let left_out = fold.pass(Instant::now(), most)?;
        Some(match left_out {
            0 => why.to_string(),
            more => format!("{why}; {more} more were refused before and are not listed"),
        })
    }

    /// Begins what goes through. Its open entry is written by [`Passage::open`], at the latest with its close.
    pub(crate) fn passage(
        self: &Arc<Self>,
        target: &Target,
        protocol: Protocol,
        source: Source,
        reason: Option<String>,
    ) -> Passage {
        let mut entry = self.entry(&Wanted::from(target), protocol);
        entry.source = source;
        entry.reason = reason;
        Passage {
            journal: Arc::clone(self),
            entry,
            opened: false,
            started: Instant::now(),
            counts: Arc::default(),
            is_counted: false,
            before: (0, 0),
            verdict: None,
        }
    }
}

/// Bytes that went through.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    /// Why it was ended from outside, once it was.
    pub(crate) ended: Mutex<Option<Refusal>>,
    /// Whether it stood still.
    pub(crate) idle: AtomicBool,
}

impl Counts {
    /// Bytes sent and received up to now.
    pub(crate) fn now(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.received.load(Ordering::Relaxed))
    }
}

/// Something that goes through. Its end is written down when it is dropped.
pub(crate) struct Passage {
    journal: Arc<Journal>,
    entry: Entry,
    opened: bool,
    started: Instant,
    counts: Arc<Counts>,
    /// Whether whoever has the connection counts.
    is_counted: bool,
    before: (u64, u64),
    verdict: Option<Refusal>,
}

impl Passage {
    /// Counts on what is counted elsewhere, from here on.
    pub(crate) fn count(&mut self, counts: &Arc<Counts>) {
        self.counts = Arc::clone(counts);
        self.is_counted = true;
        self.before = counts.now();
    }

    /// Counts bytes that a tunnel sent, and received.
    pub(crate) fn moved(&self, sent: usize, received: usize) {
        if !self.is_counted {
            self.counts.sent.fetch_add(sent as u64, Ordering::Relaxed);
            self.counts.received.fetch_add(received as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// What goes through began as TLS.
    pub(crate) fn is_tls(&mut self) {
        if self.entry.protocol == Protocol::Connect {
            self.entry.protocol = Protocol::Https;
        }
    }

    /// Writes the decision down, once.
    pub(crate) fn open(&mut self) {
        if !std::mem::replace(&mut self.opened, true) {
            self.journal.audit.record(self.entry.clone());
        }
    }

    /// It is not let through after all.
    pub(crate) fn refuse(&mut self, why: Refusal) {
        self.verdict = Some(why);
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        let ended = self.counts.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        let verdict = self.verdict.take().or(ended);
        let mut entry = self.entry.clone();
        if let Some(why) = &verdict {
            entry.action = why.action();
            entry.source = why.decided_by();
            entry.reason = Some(match self.opened {
                true => format!("cut: {why}"),
                false => why.to_string(),
            });
        } else if self.counts.idle.load(Ordering::Relaxed) {
            entry.reason = Some("ended: it stood still".into());
        }
        if !self.opened {
            if let Some(why) = &verdict {
                if let Some(reason) = self.journal.reason(why) {
                    entry.reason = Some(reason);
                    self.journal.audit.record(entry);
                }
                return;
            }
            self.open();
        }
        let (sent, received) = self.counts.now();
        entry.timestamp = now_millis();
        entry.event = Event::Close;
        entry.bytes_sent = sent - self.before.0;
        entry.bytes_received = received - self.before.1;
        entry.duration_millis = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.journal.audit.record(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_counted_and_not_listed() {
        let folded = Folded::default();
        let now = Instant::now();
        assert_eq!([0; 3].map(|_| folded.pass(now, 2)), [Some(0), Some(0), None]);
        assert_eq!([0; 2].map(|_| folded.pass(now + WINDOW / 2, 2)), [None, None]);
        assert_eq!([0; 3].map(|_| folded.pass(now + WINDOW, 2)), [Some(3), Some(0), None]);
        assert_eq!(folded.pass(now + 3 * WINDOW, 2), Some(1));
    }

    #[test]
    fn what_is_no_host_is_escaped_and_short() {
        assert_eq!(
            Wanted::text("a\r\n\u{1b}[2Jé"),
            Wanted { domain: r"a\r\n\u{1b}[2J\u{e9}".into(), port: 0 }
        );
        assert_eq!(Wanted::text("user:password@host").domain, "host");
        assert_eq!(Wanted::text(&"x".repeat(500)).domain.len(), 253);
        assert!(Wanted::text(&"\u{1b}".repeat(500)).domain.len() <= 253);
    }
}
