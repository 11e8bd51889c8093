//! The hosts that stand behind the port, and the connections with which each waits to carry one of a program.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

/// Hosts at once, at most.
pub const MAX_HOSTS: usize = 64;

/// Connections with which one host waits, at most.
pub const MAX_PARKED: usize = 256;

/// One host.
struct Host {
    /// The connection with whose end it goes.
    conn: OwnedFd,
    /// Ends that it passed, which are waited for only once they are used: they cannot outlive the host unnoticed.
    ends: VecDeque<OwnedFd>,
    parked: VecDeque<u64>,
}

/// What is to carry a connection.
pub enum Carrier {
    /// A connection that is waited for already.
    Parked(OwnedFd),
    /// An end that is not.
    End(OwnedFd),
}

/// A connection that waits to carry one.
struct Parked {
    host: u64,
    conn: OwnedFd,
}

/// All of them.
#[derive(Default)]
pub struct Hosts {
    hosts: BTreeMap<u64, Host>,
    parked: BTreeMap<u64, Parked>,
}

impl Hosts {
    /// Whether nobody stands there.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Whether somebody waits to carry a connection.
    pub fn are_waiting(&self) -> bool {
        !self.parked.is_empty() || self.hosts.values().any(|host| !host.ends.is_empty())
    }

    /// Whether there is room for one more.
    pub fn has_room(&self) -> bool {
        self.hosts.len() < MAX_HOSTS
    }

    /// Another one.
    pub fn add(&mut self, host: u64, conn: OwnedFd) {
        self.hosts.insert(host, Host { conn, ends: VecDeque::new(), parked: VecDeque::new() });
    }

    /// A host's connection.
    pub fn conn(&self, host: u64) -> Option<&OwnedFd> {
        self.hosts.get(&host).map(|host| &host.conn)
    }

    /// Whether this one may wait with one more connection; `None` if there is no such host.
    pub fn may_park(&self, host: u64) -> Option<bool> {
        self.hosts.get(&host).map(|host| host.ends.len() + host.parked.len() < MAX_PARKED)
    }

    /// A connection that waits from now on.
    pub fn park(&mut self, token: u64, host: u64, conn: OwnedFd) {
        if let Some(known) = self.hosts.get_mut(&host) {
            known.parked.push_back(token);
            self.parked.insert(token, Parked { host, conn });
        }
    }

    /// An end that a host has passed; closed if it has too many.
    pub fn add_end(&mut self, host: u64, end: OwnedFd) {
        if self.may_park(host) == Some(true)
            && let Some(host) = self.hosts.get_mut(&host)
        {
            host.ends.push_back(end);
        }
    }

    /// Takes the one that is to carry the next connection: the longest waiting one of the host whose it is, if that host
    /// still stands there; else of the one that has stood there longest. Whoever has stood there for long will most
    /// probably go on for long, and its end is the end of all that it carries.
    pub fn take(&mut self, whose: Option<u64>) -> Option<Carrier> {
        let has_any = |host: &&mut Host| !host.ends.is_empty() || !host.parked.is_empty();
        let host = match whose.filter(|host| self.hosts.contains_key(host)) {
            Some(host) => self.hosts.get_mut(&host).filter(has_any)?,
            None => self.hosts.values_mut().find(has_any)?,
        };
        if let Some(end) = host.ends.pop_front() {
            return Some(Carrier::End(end));
        }
        let token = host.parked.pop_front()?;
        self.parked.remove(&token).map(|parked| Carrier::Parked(parked.conn))
    }

    /// A connection that does not wait any more.
    pub fn unpark(&mut self, token: u64) -> Option<OwnedFd> {
        let parked = self.parked.remove(&token)?;
        if let Some(host) = self.hosts.get_mut(&parked.host) {
            host.parked.retain(|other| *other != token);
        }
        Some(parked.conn)
    }

    /// A host goes; its connections that were waited for, and its own.
    pub fn remove(&mut self, host: u64) -> Vec<OwnedFd> {
        let Some(Host { conn, parked, .. }) = self.hosts.remove(&host) else { return Vec::new() };
        let parked = parked.iter().filter_map(|token| self.parked.remove(token));
        parked.map(|parked| parked.conn).chain([conn]).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn conn() -> OwnedFd {
        UnixStream::pair().unwrap().0.into()
    }

    #[test]
    fn the_oldest_host_carries_what_it_can() {
        let mut hosts = Hosts::default();
        assert!(hosts.is_empty() && hosts.has_room() && hosts.take(None).is_none());
        hosts.add(1, conn());
        hosts.add(2, conn());
        assert_eq!((hosts.may_park(1), hosts.may_park(3)), (Some(true), None));
        let parked: Vec<i32> = [(10, 2), (11, 1), (12, 1), (13, 2)]
            .map(|(token, host)| {
                let conn = conn();
                let number = conn.as_raw_fd();
                hosts.park(token, host, conn);
                number
            })
            .to_vec();
        let mut take = || {
            hosts.take(None).map(|carrier| {
                let (Carrier::Parked(conn) | Carrier::End(conn)) = carrier;
                let number = conn.as_raw_fd();
                // Kept open, so that the number is not used again.
                std::mem::forget(conn);
                number
            })
        };
        assert_eq!([take(), take(), take()], [Some(parked[1]), Some(parked[2]), Some(parked[0])]);
        assert!(hosts.are_waiting());
        assert_eq!(hosts.unpark(13).map(|conn| conn.as_raw_fd()), Some(parked[3]));
        assert!(hosts.unpark(13).is_none() && !hosts.are_waiting());
        hosts.park(14, 1, conn());
        assert_eq!(hosts.remove(1).len(), 2);
        assert!(!hosts.are_waiting() && !hosts.is_empty());
        // One that comes after its host has gone is let go.
        hosts.park(15, 1, conn());
        assert!(!hosts.are_waiting());
        assert_eq!((hosts.remove(1).len(), hosts.remove(2).len()), (0, 1));
        assert!(hosts.is_empty());
    }

    #[test]
    fn what_is_a_host_s_own_goes_to_no_other_while_it_stands_there() {
        let mut hosts = Hosts::default();
        hosts.add(1, conn());
        hosts.add(2, conn());
        hosts.park(10, 1, conn());
        assert!(hosts.take(Some(2)).is_none(), "it waits for its own");
        hosts.park(11, 2, conn());
        assert!(hosts.take(Some(2)).is_some() && hosts.take(Some(2)).is_none());
        hosts.remove(2);
        assert!(hosts.take(Some(2)).is_some(), "there is nobody else any more");
    }

    #[test]
    fn ends_are_used_first_and_in_their_order_and_go_with_their_host() {
        let mut hosts = Hosts::default();
        hosts.add(1, conn());
        hosts.park(10, 1, conn());
        let (ends, mut far): (Vec<OwnedFd>, Vec<UnixStream>) =
            (0..3).map(|_| UnixStream::pair().unwrap()).map(|(near, far)| (near.into(), far)).unzip();
        let numbers: Vec<i32> = ends.iter().map(AsRawFd::as_raw_fd).collect();
        ends.into_iter().for_each(|end| hosts.add_end(1, end));
        assert!(hosts.are_waiting());
        let (first, second) = (hosts.take(None), hosts.take(None));
        let [Some(Carrier::End(first)), Some(Carrier::End(second))] = [first, second] else {
            panic!("no ends")
        };
        assert_eq!([first.as_raw_fd(), second.as_raw_fd()], numbers[..2]);
        assert_eq!(hosts.remove(1).len(), 2);
        far[2].set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        assert_eq!(std::io::Read::read(&mut far[2], &mut [0]).unwrap(), 0);
        hosts.add_end(1, conn());
        assert!(!hosts.are_waiting() && hosts.take(None).is_none());
    }

    #[test]
    fn what_one_host_may_hold_is_bounded() {
        let mut hosts = Hosts::default();
        hosts.add(1, conn());
        for token in 0..MAX_PARKED as u64 {
            assert_eq!(hosts.may_park(1), Some(true));
            hosts.park(token, 1, conn());
        }
        assert_eq!(hosts.may_park(1), Some(false));
        hosts.add_end(1, conn());
        assert!(matches!(hosts.take(None), Some(Carrier::Parked(_))), "an end too many is closed");
        hosts.add_end(1, conn());
        assert_eq!(hosts.may_park(1), Some(false));
        assert_eq!(hosts.remove(1).len(), MAX_PARKED);
    }
}
