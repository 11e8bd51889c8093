//! Counting what the log says, by host, in bounded memory.

use std::collections::HashMap;

use super::{Action, Entry, Event};

/// Hosts that are counted each by itself; those that come after are counted together. A program may ask for any number
/// of names.
pub const MAX_DOMAINS: usize = 10_000;

/// What was counted of a host, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Connections and requests that were let through.
    pub allowed: u64,
    /// Those that were not.
    pub denied: u64,
    /// Bytes from sandboxes to the host.
    pub sent: u64,
    /// Bytes from the host to sandboxes.
    pub received: u64,
    /// When the last entry was made, in milliseconds since 1970.
    pub last: u64,
}

impl Counted {
    /// Both together.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        Self {
            allowed: self.allowed + other.allowed,
            denied: self.denied + other.denied,
            sent: self.sent.saturating_add(other.sent),
            received: self.received.saturating_add(other.received),
            last: self.last.max(other.last),
        }
    }

    fn add(&mut self, entry: &Entry) {
        match (entry.event, entry.action) {
            (Event::Open, Action::Allowed) => self.allowed += 1,
            (Event::Open, Action::Denied) => self.denied += 1,
            (Event::Close, _) => {}
        }
        self.sent = self.sent.saturating_add(entry.bytes_sent);
        self.received = self.received.saturating_add(entry.bytes_received);
        self.last = self.last.max(entry.timestamp);
    }
}

/// What the log says, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    domains: HashMap<String, Counted>,
    others: Counted,
    total: Counted,
}

impl Stats {
    /// Counts an entry.
    pub fn add(&mut self, entry: &Entry) {
        self.total.add(entry);
        if let Some(counted) = self.domains.get_mut(&entry.domain) {
            counted.add(entry);
        } else if self.domains.len() < MAX_DOMAINS {
            self.domains.entry(entry.domain.clone()).or_default().add(entry);
        } else {
            self.others.add(entry);
        }
    }

    /// Each host with what was counted, the most used first.
    pub fn domains(&self) -> Vec<(&str, Counted)> {
        let mut all: Vec<_> = self.domains.iter().map(|(name, counted)| (name.as_str(), *counted)).collect();
        all.sort_by_key(|(name, counted)| (std::cmp::Reverse(counted.allowed + counted.denied), *name));
        all
    }

    /// What was counted of hosts beyond [`MAX_DOMAINS`].
    pub fn others(&self) -> Counted {
        self.others
    }

    /// All together.
    pub fn total(&self) -> Counted {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Protocol, Source};
    use super::*;

    fn entry(domain: String, event: Event, action: Action) -> Entry {
        Entry {
            timestamp: 7,
            session: "s".into(),
            id: 1,
            event,
            domain,
            port: 443,
            protocol: Protocol::Https,
            action,
            source: Source::Config,
            reason: None,
            bytes_sent: u64::from(event == Event::Close) * 3,
            bytes_received: u64::from(event == Event::Close) * 5,
            duration_millis: 0,
        }
    }

    #[test]
    fn hosts_are_counted_each_up_to_a_bound() {
        let mut stats = Stats::default();
        for number in 0..MAX_DOMAINS + 5 {
            stats.add(&entry(format!("{number}.example"), Event::Open, Action::Denied));
        }
        for (event, action) in [(Event::Open, Action::Allowed), (Event::Close, Action::Allowed)] {
            stats.add(&entry("7.example".into(), event, action));
        }
        assert_eq!(stats.domains().len(), MAX_DOMAINS);
        let seven = Counted { allowed: 1, denied: 1, sent: 3, received: 5, last: 7 };
        assert_eq!(stats.domains()[0], ("7.example", seven));
        assert_eq!(stats.others(), Counted { denied: 5, last: 7, ..Counted::default() });
        let total = Counted { denied: MAX_DOMAINS as u64 + 5, ..seven };
        assert_eq!(stats.total(), total);
    }
}
