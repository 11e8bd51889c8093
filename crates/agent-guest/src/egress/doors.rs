//! The ports that programs connect to: the usual one, and one more for each further host that stands there at the same
//! time. What comes by a host's own port is that host's, so that the end of a host is the end of no connection but those
//! of its own commands.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::hosts::MAX_HOSTS;
use crate::forward::listener;

/// Sockets of one door, at most: one for each address family.
const FAMILIES: usize = 2;

/// One port, for both address families where there are both.
pub struct Door {
    port: u16,
    sockets: Vec<OwnedFd>,
    /// Whose it is.
    host: Option<u64>,
}

impl Door {
    /// Opens it; 0 for any port. It does not listen yet.
    ///
    /// # Errors
    /// The port is taken, or there is no loopback.
    pub fn open(port: u16) -> Result<Self, Errno> {
        let (first, port) = listener::open_at(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port))?;
        // For programs that look no further than the first address of `localhost`.
        let second = listener::open_at(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port));
        let sockets: Vec<OwnedFd> =
            [Some(first), second.ok().map(|(socket, _)| socket)].into_iter().flatten().collect();
        for socket in &sockets {
            rustix::net::listen(socket, super::BACKLOG)?;
        }
        Ok(Self { port, sockets, host: None })
    }

    /// Its port, and what listens there.
    pub fn into_parts(self) -> (u16, Vec<OwnedFd>) {
        (self.port, self.sockets)
    }
}

/// All of them. None is ever closed: a command may have its port for as long as it runs.
pub struct Doors(Vec<Door>);

impl Doors {
    /// The usual one alone.
    pub fn new(port: u16, sockets: Vec<OwnedFd>) -> Self {
        Self(vec![Door { port, sockets, host: None }])
    }

    /// The door of a new host: the one on the port that it had before, if it is nobody's; else the first that is
    /// nobody's, else a new one. Where none can be opened it has a share of the first. Gives the port.
    pub fn take(&mut self, host: u64, wanted: u16) -> u16 {
        let known = |door: &Door| wanted != 0 && door.port == wanted;
        if wanted != 0 && !self.0.iter().any(known) {
            self.open(wanted);
        }
        let free = |door: &Door| door.host.is_none();
        let found = self.0.iter().position(|door| known(door) && free(door));
        let found = found.or_else(|| self.0.iter().position(free)).or_else(|| self.open(0));
        match found.and_then(|at| self.0.get_mut(at)) {
            Some(door) => {
                door.host = Some(host);
                door.port
            }
            None => self.0.first().map_or(0, |door| door.port),
        }
    }

    fn open(&mut self, port: u16) -> Option<usize> {
        if self.0.len() >= MAX_HOSTS {
            return None;
        }
        self.0.push(Door::open(port).ok()?);
        Some(self.0.len() - 1)
    }

    /// A host goes; its door is the next one's.
    pub fn leave(&mut self, host: u64) {
        self.0.iter_mut().filter(|door| door.host == Some(host)).for_each(|door| door.host = None);
    }

    /// Whose the door of a socket is.
    pub fn host(&self, socket: usize) -> Option<u64> {
        self.0.get(socket / FAMILIES)?.host
    }

    /// A socket by its number.
    pub fn socket(&self, number: usize) -> Option<&OwnedFd> {
        self.0.get(number / FAMILIES)?.sockets.get(number % FAMILIES)
    }

    /// Every socket and its number.
    pub fn sockets(&self) -> impl Iterator<Item = (usize, &OwnedFd)> {
        let of = |(at, door): (usize, &'_ Door)| -> Vec<usize> {
            (0..door.sockets.len()).map(|which| at * FAMILIES + which).collect()
        };
        let numbers: Vec<usize> = self.0.iter().enumerate().flat_map(of).collect();
        numbers.into_iter().filter_map(|number| Some((number, self.socket(number)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doors() -> (u16, Doors) {
        let (port, sockets) = Door::open(0).unwrap().into_parts();
        (port, Doors::new(port, sockets))
    }

    #[test]
    fn each_host_has_a_door_and_the_next_one_those_that_are_left() {
        let (port, mut doors) = doors();
        assert_eq!((doors.take(1, 0), doors.host(0)), (port, Some(1)));
        let second = doors.take(2, 0);
        assert_ne!(second, port);
        assert_eq!((doors.host(2), doors.host(3)), (Some(2), Some(2)));
        doors.leave(1);
        assert_eq!((doors.host(0), doors.host(2)), (None, Some(2)));
        assert_eq!((doors.take(3, 0), doors.host(1)), (port, Some(3)));
        // Who comes back has what it had, unless somebody has it by now.
        doors.leave(2);
        doors.leave(3);
        assert_eq!(doors.take(4, second), second);
        assert_eq!(doors.take(5, second), port);
        assert!(doors.socket(0).is_some() && doors.socket(9).is_none());
        let fresh = Door::open(0).unwrap().into_parts().0;
        assert_eq!(doors.take(6, fresh), fresh, "after a forwarder's end the ports are opened again");
    }

    #[test]
    fn there_are_no_more_doors_than_hosts() {
        let (port, mut doors) = doors();
        for host in 0..MAX_HOSTS as u64 {
            doors.take(host, 0);
        }
        assert_eq!(doors.take(1000, 0), port);
        assert!(doors.sockets().count() <= MAX_HOSTS * FAMILIES);
    }
}
