//! Pairs of sockets whose bytes are carried from one to the other, any number of them, without blocking.
//!
//! Bytes are held only while the side that should get them does not take them; reading waits meanwhile. The end of
//! one direction is passed on as the end of that direction alone.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

/// Bytes that are read at once, and that a direction holds at most.
const READ: usize = 64 * 1024;

/// Readings of one direction before others have their turn.
const TURN: usize = 8;

/// Numbers from here on stand for what is no tunnel; see [`Tunnels::watch`].
pub const OTHERS: u64 = 1 << 62;

/// One direction.
#[derive(Default)]
struct Flow {
    held: Vec<u8>,
    sent: usize,
    /// The source has ended and the target has been told so, or takes nothing any more.
    closed: bool,
}

impl Flow {
    fn is_holding(&self) -> bool {
        self.sent < self.held.len()
    }

    /// Carries what can be carried now.
    fn carry(&mut self, from: &OwnedFd, to: &OwnedFd, scratch: &mut [u8]) {
        for _ in 0..TURN {
            if self.closed {
                return;
            }
            if self.is_holding() {
                match send(to, &self.held[self.sent..]) {
                    Ok(count) => self.sent += count,
                    Err(Errno::AGAIN) => return,
                    Err(_) => return self.close(),
                }
                if self.is_holding() {
                    continue;
                }
                self.held = Vec::new();
                self.sent = 0;
            }
            let count = match rustix::net::recv(from, &mut *scratch, RecvFlags::DONTWAIT) {
                Ok((count, _)) => count,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return,
                // Broken is over; what was read before has been carried.
                Err(_) => 0,
            };
            if count == 0 {
                // At once, though its turn may be over: nothing will be heard of this source again.
                let _ = rustix::net::shutdown(to, Shutdown::Write);
                return self.close();
            }
            let bytes = &scratch[..count];
            let sent = match send(to, bytes) {
                Ok(sent) => sent,
                Err(Errno::AGAIN) => 0,
                Err(_) => return self.close(),
            };
            if sent < count {
                self.held = bytes[sent..].to_vec();
            } else if count < scratch.len() {
                // That was all; what comes from now on, and be it the end, is an event of its own.
                return;
            }
        }
    }

    fn close(&mut self) {
        self.held = Vec::new();
        self.sent = 0;
        self.closed = true;
    }
}

fn send(to: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::io::retry_on_intr(|| rustix::net::send(to, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))
}

/// Two sockets, and the direction from each to the other.
struct Tunnel {
    sockets: [OwnedFd; 2],
    flows: [Flow; 2],
    /// What each socket is waited for; absent while it is not.
    waiting: [Option<EventFlags>; 2],
    /// Both directions of a socket are gone: it is not to be waited for, but what it sent can be read.
    gone: [bool; 2],
}

impl Tunnel {
    fn is_over(&self) -> bool {
        self.flows.iter().all(|flow| flow.closed)
    }

    /// What a socket should be waited for now.
    fn wanted(&self, side: usize) -> Option<EventFlags> {
        let (from, to) = (&self.flows[side], &self.flows[1 - side]);
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, !from.closed && !from.is_holding());
        flags.set(EventFlags::OUT, !to.closed && to.is_holding());
        // Without either its end is still noticed, once.
        (!flags.is_empty() || !self.gone[side]).then_some(flags)
    }
}

/// Tunnels, and other descriptors that are waited for together with them.
pub struct Tunnels {
    epoll: OwnedFd,
    tunnels: Vec<Option<Box<Tunnel>>>,
    free: Vec<usize>,
    scratch: Box<[u8]>,
}

impl Tunnels {
    /// None yet.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, tunnels: Vec::new(), free: Vec::new(), scratch: vec![0; READ].into_boxed_slice() })
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.tunnels.len() - self.free.len()
    }

    /// Begins to carry bytes between two connected sockets.
    ///
    /// # Errors
    /// When the kernel is out of memory.
    pub fn add(&mut self, one: OwnedFd, other: OwnedFd) -> io::Result<()> {
        self.begin(one, other, None)
    }

    /// The same for one that is watched already, which it is no more.
    ///
    /// # Errors
    /// When the kernel is out of memory.
    pub fn adopt(&mut self, watched: OwnedFd, other: OwnedFd) -> io::Result<()> {
        // Nothing that a tunnel ever waits for, so that it is brought up to date.
        self.begin(watched, other, Some(EventFlags::RDHUP))
    }

    fn begin(&mut self, one: OwnedFd, other: OwnedFd, waiting: Option<EventFlags>) -> io::Result<()> {
        let tunnel = Box::new(Tunnel {
            sockets: [one, other],
            flows: Default::default(),
            waiting: [waiting, None],
            gone: [false, false],
        });
        let at = self.free.pop().unwrap_or_else(|| {
            self.tunnels.push(None);
            self.tunnels.len() - 1
        });
        self.tunnels[at] = Some(tunnel);
        self.update(at)
    }

    /// Waits for `fd`, too; its events come with [`OTHERS`] + `number`.
    ///
    /// # Errors
    /// When the kernel is out of memory.
    pub fn watch(&self, fd: impl AsFd, number: u64, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(OTHERS + number), flags)?)
    }

    /// Waits for something else on a watched `fd`.
    ///
    /// # Errors
    /// When it is not watched.
    pub fn rewatch(&self, fd: impl AsFd, number: u64, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, EventData::new_u64(OTHERS + number), flags)?)
    }

    /// Waits no more for a watched `fd`. Closing it is not enough: a process that was just forked may hold it, too.
    pub fn unwatch(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits until something happens, or for so long.
    ///
    /// # Errors
    /// When waiting itself fails.
    pub fn wait(&self, events: &mut Vec<epoll::Event>, limit: Option<Duration>) -> io::Result<()> {
        let limit = limit.map(|limit| rustix::event::Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        events.clear();
        match epoll::wait(&self.epoll, spare_capacity(events), limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Does what an event asks for; `Some` for an event of a watched descriptor: its number.
    pub fn handle(&mut self, event: &epoll::Event) -> Option<u64> {
        let number = { event.data }.u64();
        if number >= OTHERS {
            return Some(number - OTHERS);
        }
        let (at, side) = ((number >> 1) as usize, (number & 1) as usize);
        // An event that was on its way when its tunnel ended may meet another one by now, which it does not harm.
        let tunnel = self.tunnels.get_mut(at)?.as_mut()?;
        let flags = { event.flags };
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            tunnel.gone[side] = true;
            tunnel.flows[1 - side].close();
        }
        let Tunnel { sockets: [one, other], flows: [to_other, to_one], .. } = &mut **tunnel;
        if side == 0 || flags.contains(EventFlags::OUT) {
            to_other.carry(one, other, &mut self.scratch);
        }
        if side == 1 || flags.contains(EventFlags::OUT) {
            to_one.carry(other, one, &mut self.scratch);
        }
        if tunnel.is_over() || self.update(at).is_err() {
            self.tunnels[at] = None;
            self.free.push(at);
        }
        None
    }

    /// Brings what the sockets are waited for up to date.
    fn update(&mut self, at: usize) -> io::Result<()> {
        let Some(Some(tunnel)) = self.tunnels.get_mut(at) else { return Ok(()) };
        for side in 0..2 {
            let wanted = tunnel.wanted(side);
            let data = EventData::new_u64((at as u64) << 1 | side as u64);
            let socket = &tunnel.sockets[side];
            match (tunnel.waiting[side], wanted) {
                (None, Some(flags)) => epoll::add(&self.epoll, socket, data, flags)?,
                (Some(_), None) => epoll::delete(&self.epoll, socket)?,
                (Some(old), Some(flags)) if old != flags => epoll::modify(&self.epoll, socket, data, flags)?,
                _ => {}
            }
            tunnel.waiting[side] = wanted;
        }
        Ok(())
    }
}

/// Sends small pieces at once. That it cannot be had is no reason to refuse a connection.
pub fn prompt(socket: &OwnedFd) {
    let _ = rustix::net::sockopt::set_tcp_nodelay(socket, true);
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn an_end_is_passed_on_in_whichever_reading_it_comes() {
        for count in 0..=2 * TURN {
            let ((mut source, from), (to, mut target)) =
                (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
            source.write_all(&vec![7; count]).unwrap();
            drop(source);
            let (from, to) = (OwnedFd::from(from), OwnedFd::from(to));
            let mut flow = Flow::default();
            // One byte a reading; each time something is there to be read, there is another turn.
            for _ in 0..=count / TURN {
                flow.carry(&from, &to, &mut [0]);
            }
            assert!(flow.closed, "{count}");
            let mut got = Vec::new();
            target.read_to_end(&mut got).unwrap();
            assert_eq!(got.len(), count);
        }
    }
}
