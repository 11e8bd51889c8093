//! Counting what the log says by time, in bounded memory.

use std::collections::BTreeMap;

use super::{Action, Entry, Event};

/// Most periods that are told apart.
pub const MAX_PERIODS: u64 = 96;

/// Lengths of a period in seconds, each a multiple of the one before, so that periods can be put together.
const LENGTHS: [u64; 12] = [1, 5, 15, 60, 300, 900, 3_600, 10_800, 43_200, 86_400, 604_800, 604_800 * 4];

/// What was counted in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Period {
    /// When it begins, in milliseconds since 1970: a multiple of the length of all.
    pub from: u64,
    /// Connections and requests that were let through.
    pub allowed: u64,
    /// Those that were not.
    pub denied: u64,
}

/// What the log says, counted by periods of one length, which grows with the time that is covered.
#[derive(Clone, Debug)]
pub struct Periods {
    length: u64,
    counted: BTreeMap<u64, (u64, u64)>,
}

impl Default for Periods {
    fn default() -> Self {
        Self { length: LENGTHS[0], counted: BTreeMap::new() }
    }
}

impl Periods {
    /// Counts an entry. Its close says nothing new.
    pub fn add(&mut self, entry: &Entry) {
        if entry.event != Event::Open {
            return;
        }
        let (allowed, denied) = self.counted.entry(entry.timestamp / 1000 / self.length).or_default();
        match entry.action {
            Action::Allowed => *allowed += 1,
            Action::Denied => *denied += 1,
        }
        while self.span() > MAX_PERIODS {
            self.widen();
        }
    }

    fn span(&self) -> u64 {
        match (self.counted.first_key_value(), self.counted.last_key_value()) {
            (Some((first, _)), Some((last, _))) => last - first + 1,
            _ => 0,
        }
    }

    fn widen(&mut self) {
        let longer = LENGTHS.into_iter().find(|length| *length > self.length).unwrap_or(self.length * 2);
        let times = longer / self.length;
        self.length = longer;
        let mut counted = BTreeMap::<u64, (u64, u64)>::new();
        for (number, (allowed, denied)) in std::mem::take(&mut self.counted) {
            let sum = counted.entry(number / times).or_default();
            *sum = (sum.0 + allowed, sum.1 + denied);
        }
        self.counted = counted;
    }

    /// Length of each period, in milliseconds.
    pub fn length_millis(&self) -> u64 {
        self.length * 1000
    }

    /// Those in which something was counted, the earliest first.
    pub fn all(&self) -> Vec<Period> {
        let period = |(number, (allowed, denied)): (&u64, &(u64, u64))| Period {
            from: number * self.length * 1000,
            allowed: *allowed,
            denied: *denied,
        };
        self.counted.iter().map(period).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Protocol, Source};
    use super::*;

    fn entry(timestamp: u64, event: Event, action: Action) -> Entry {
        Entry {
            timestamp,
            session: "s".into(),
            id: 1,
            event,
            domain: "a.example".into(),
            port: 443,
            protocol: Protocol::Https,
            action,
            source: Source::Config,
            reason: None,
            bytes_sent: 0,
            bytes_received: 0,
            duration_millis: 0,
        }
    }

    #[test]
    fn periods_grow_with_the_time_that_is_covered() {
        let mut periods = Periods::default();
        assert_eq!((periods.length_millis(), periods.all()), (1000, Vec::new()));
        for (timestamp, event, action) in [
            (2_500, Event::Open, Action::Allowed),
            (2_900, Event::Open, Action::Denied),
            (2_950, Event::Close, Action::Allowed),
            (1_000, Event::Open, Action::Denied),
        ] {
            periods.add(&entry(timestamp, event, action));
        }
        let seconds =
            [Period { from: 1_000, allowed: 0, denied: 1 }, Period { from: 2_000, allowed: 1, denied: 1 }];
        assert_eq!((periods.length_millis(), periods.all()), (1000, seconds.to_vec()));
        periods.add(&entry(1_000_000, Event::Open, Action::Allowed));
        let longer =
            [Period { from: 0, allowed: 1, denied: 2 }, Period { from: 990_000, allowed: 1, denied: 0 }];
        assert_eq!((periods.length_millis(), periods.all()), (15_000, longer.to_vec()));
    }

    #[test]
    fn nothing_is_lost_over_any_time() {
        let mut periods = Periods::default();
        for number in 0..20_000_u64 {
            periods.add(&entry(number * 7_919_000, Event::Open, Action::Allowed));
        }
        periods.add(&entry(u64::MAX, Event::Open, Action::Denied));
        let all = periods.all();
        assert!(all.len() as u64 <= MAX_PERIODS, "{}", all.len());
        let sum = |of: fn(&Period) -> u64| all.iter().map(of).sum::<u64>();
        assert_eq!((sum(|p| p.allowed), sum(|p| p.denied)), (20_000, 1));
    }
}
