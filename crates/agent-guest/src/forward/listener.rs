//! A listener on the sandbox's loopback whose connections are the host's to take over.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use moltis_agent_protocol::frame::{self, HEADER_BYTES};
use moltis_agent_protocol::hello;
use moltis_agent_protocol::message::{Failure, FailureCode, Reply, Request};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::tunnel::{self, Tunnels};
use crate::control::{self, Report};
use crate::stream::Outbox;

/// Connections that were made inside and not yet taken over, at most. More wait in the kernel's queue.
const MAX_PENDING: usize = 1024;

/// Length of that queue; the kernel may shorten it.
const BACKLOG: i32 = 1024;

/// Time for which nothing is accepted after descriptors or memory ran out.
const PAUSE: Duration = Duration::from_millis(100);

const HOST: u64 = 0;
const SOCKET: u64 = 1;
const CONTROL: u64 = 2;

/// Opens a listening socket on loopback, and says which port it has.
pub fn open(port: u16) -> Result<(OwnedFd, u16), Errno> {
    open_at(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port))
}

/// The same on this address, and on no other one.
pub fn open_at(address: SocketAddr) -> Result<(OwnedFd, u16), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // The port of a listener that was just closed can be taken again at once.
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        rustix::net::sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    let address = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
    Ok((socket, address.port()))
}

/// The listener and everything that came of it.
pub struct Listener {
    host: OwnedFd,
    outbox: Outbox,
    socket: OwnedFd,
    number: u32,
    control: OwnedFd,
    tunnels: Tunnels,
    pending: BTreeMap<u64, OwnedFd>,
    last: u64,
    /// Nothing is accepted for a moment, since something ran out.
    exhausted: bool,
    /// What the listening socket is waited for now.
    accepting: bool,
    /// What PID 1 was told last.
    uses: u32,
}

impl Listener {
    /// Everything that it needs: the host's connection, a listening socket, its number and the way from PID 1.
    pub fn new(host: OwnedFd, socket: OwnedFd, number: u32, control: OwnedFd) -> io::Result<Self> {
        raise_descriptor_limit();
        rustix::io::ioctl_fionbio(&host, true)?;
        let tunnels = Tunnels::new()?;
        tunnels.watch(&host, HOST, EventFlags::IN | EventFlags::RDHUP)?;
        tunnels.watch(&socket, SOCKET, EventFlags::IN)?;
        tunnels.watch(&control, CONTROL, EventFlags::IN)?;
        Ok(Self {
            host,
            outbox: Outbox::default(),
            socket,
            number,
            control,
            tunnels,
            pending: BTreeMap::new(),
            last: 0,
            exhausted: false,
            accepting: true,
            uses: 0,
        })
    }

    /// Serves until the host closes its connection. What was taken over ends then, too.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(256);
        loop {
            let pause = self.exhausted.then_some(PAUSE);
            self.tunnels.wait(&mut events, pause)?;
            self.exhausted = false;
            for event in &events {
                match self.tunnels.handle(event) {
                    // The host has nothing to say here but that it goes.
                    Some(HOST) if !only_writable(event.flags) => return Ok(()),
                    Some(CONTROL) if !self.hear() => return Ok(()),
                    Some(SOCKET) => self.accept(),
                    _ => {}
                }
            }
            self.settle()?;
        }
    }

    fn accept(&mut self) {
        while self.pending.len() < MAX_PENDING {
            match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(inside) => {
                    tunnel::prompt(&inside);
                    self.last += 1;
                    self.pending.insert(self.last, inside);
                    self.outbox.reply(&Reply::Incoming { token: self.last });
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.exhausted = true;
                    return;
                }
            }
        }
    }

    /// Takes requests from PID 1; whether it is still there.
    fn hear(&mut self) -> bool {
        let mut buffer = [0; 256];
        loop {
            match control::recv_with_fd(self.control.as_fd(), &mut buffer) {
                Ok(Some((length, Some(conn)))) => {
                    if let Ok(Request::Accept { listener, token }) = frame::decode_control(&buffer[..length])
                    {
                        self.hand_over(conn, listener, token);
                    }
                }
                Ok(Some((_, None))) => {}
                Ok(None) => return false,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                // Too long a packet is not meant for a listener.
                Err(e) if e.kind() == io::ErrorKind::InvalidData => {}
                Err(_) => return false,
            }
        }
    }

    fn hand_over(&mut self, conn: OwnedFd, listener: u32, token: u64) {
        let inside = (listener == self.number).then(|| self.pending.remove(&token)).flatten();
        let reply = match &inside {
            Some(_) => Reply::Connected,
            None => Reply::Failed(Failure {
                code: FailureCode::NotFound,
                message: format!("no connection {token} waits at listener {listener}"),
                errno: None,
            }),
        };
        let mut outbox = Outbox::default();
        outbox.push(&hello::hello());
        outbox.reply(&reply);
        // A fresh connection takes that much; one that does not is not the host's.
        if let (Ok(true), Some(inside)) = (outbox.flush(&conn), inside) {
            // Without memory for it the connection is closed, which both sides notice.
            let _ = self.tunnels.add(conn, inside);
        }
    }

    /// Sends what the host takes, tells PID 1 how much goes on here, and decides what to wait for.
    fn settle(&mut self) -> io::Result<()> {
        let was_empty = self.outbox.is_empty();
        let flushed = was_empty || self.outbox.flush(&self.host)?;
        if !was_empty {
            let out = if flushed { EventFlags::empty() } else { EventFlags::OUT };
            self.tunnels.rewatch(&self.host, HOST, EventFlags::IN | EventFlags::RDHUP | out)?;
        }
        let accepting = self.pending.len() < MAX_PENDING && !self.exhausted;
        if accepting != self.accepting {
            let flags = if accepting { EventFlags::IN } else { EventFlags::empty() };
            self.tunnels.rewatch(&self.socket, SOCKET, flags)?;
            self.accepting = accepting;
        }
        let uses = u32::try_from(self.tunnels.len() + self.pending.len()).unwrap_or(u32::MAX);
        if uses != self.uses
            && let Ok(packet) = frame::encode_control(&Report::Use(uses))
            && control::send_with_fd(self.control.as_fd(), &packet[HEADER_BYTES..], None).is_ok()
        {
            // Without room for it, it is told the next time.
            self.uses = uses;
        }
        Ok(())
    }
}

fn only_writable(flags: EventFlags) -> bool {
    flags == EventFlags::OUT
}

/// Two descriptors a connection: as many as are allowed at all.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
