//! The process that pairs connections of programs with those of hosts and carries their bytes.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use moltis_agent_protocol::frame::{self, HEADER_BYTES};
use moltis_agent_protocol::hello;
use moltis_agent_protocol::message::{Failure, FailureCode, Reply, Request};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::doors::Doors;
use super::fresh::{Answer, Fresh, Inside};
use super::hosts::{Carrier, Hosts};
use super::refusal::{Refusal, Refusals, Why};
use crate::control::{self, Report};
use crate::failure::not_found;
use crate::forward::listener::raise_descriptor_limit;
use crate::forward::tunnel::{self, Tunnels};
use crate::stream::Outbox;

/// Connections that are open at once, at most. More wait in the kernel's queue.
const MAX_OPEN: usize = 4096;

/// Descriptors for all but the connections that are carried, which have two each.
const OTHER_DESCRIPTORS: usize = 1024;

/// Connections that are accepted in one turn.
const TURN: usize = 64;

/// Time for which nothing is accepted after descriptors or memory ran out.
const PAUSE: Duration = Duration::from_millis(100);

/// Time between two reports to PID 1 of how much goes on, unless something begins.
const REPORTS: Duration = Duration::from_millis(50);

/// What an event is about; the number comes above these bits.
const CONTROL: u64 = 0;
const SOCKET: u64 = 1;
const HOST: u64 = 2;
const PARKED: u64 = 3;
const FRESH: u64 = 4;
const REFUSAL: u64 = 5;
const KIND_BITS: u32 = 3;

/// The forwarder of a sandbox's proxy port.
pub struct Forwarder {
    doors: Doors,
    control: OwnedFd,
    tunnels: Tunnels,
    hosts: Hosts,
    fresh: BTreeMap<u64, Fresh>,
    /// Connections that a host let go, and that no other one can be offered now.
    waiting: VecDeque<Inside>,
    refusals: Refusals,
    /// What is open at once, at most.
    limit: usize,
    last: u64,
    last_host: u64,
    /// Until when nothing is accepted, since something ran out.
    exhausted: Option<Instant>,
    /// Whether the sockets are waited for now.
    accepting: bool,
    /// What PID 1 was told last.
    uses: u32,
    /// When it is told again, if there is something to be told.
    report: Option<Instant>,
    /// When it was told last.
    reported: Instant,
}

impl Forwarder {
    /// Everything that it needs: what listens on `port`, the way from PID 1, and a number that no other forwarder of
    /// this sandbox has had.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn new(sockets: Vec<OwnedFd>, port: u16, control: OwnedFd, number: u32) -> io::Result<Self> {
        raise_descriptor_limit();
        let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let allowed = allowed.map_or(usize::MAX, |allowed| usize::try_from(allowed).unwrap_or(usize::MAX));
        // Where there are few, half of them.
        let limit = (allowed.saturating_sub(OTHER_DESCRIPTORS) / 2).max(allowed / 4).clamp(1, MAX_OPEN);
        let tunnels = Tunnels::new()?;
        tunnels.watch(&control, CONTROL, EventFlags::IN)?;
        let mut forwarder = Self {
            doors: Doors::new(port, sockets),
            control,
            tunnels,
            hosts: Hosts::default(),
            fresh: BTreeMap::new(),
            waiting: VecDeque::new(),
            refusals: Refusals::default(),
            limit,
            last: 0,
            last_host: u64::from(number) << 24,
            exhausted: None,
            accepting: false,
            uses: 0,
            report: None,
            reported: Instant::now(),
        };
        forwarder.settle(Instant::now());
        Ok(forwarder)
    }

    /// Serves until PID 1 is gone.
    ///
    /// # Errors
    /// When waiting itself fails.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(256);
        loop {
            let now = Instant::now();
            let limit = self.next_time().map(|time| time.saturating_duration_since(now));
            self.tunnels.wait(&mut events, limit)?;
            let now = Instant::now();
            for event in &events {
                let Some(number) = self.tunnels.handle(event) else { continue };
                let (kind, token) = (number & ((1 << KIND_BITS) - 1), number >> KIND_BITS);
                match kind {
                    CONTROL if !self.hear(now) => return Ok(()),
                    CONTROL => {}
                    SOCKET => self.accept(token as usize, now),
                    HOST => self.feel_host(token, now),
                    // Whoever waits has nothing to say but that it goes.
                    PARKED => self.unpark(token),
                    FRESH => self.look(token, now),
                    _ => self.refuse_on(token, now),
                }
            }
            self.keep_time(now);
            self.settle(now);
        }
    }

    fn next_time(&self) -> Option<Instant> {
        // Offers are made in order, and each has as long as the others.
        let offer = self.fresh.first_key_value().map(|(_, fresh)| fresh.until);
        [offer, self.refusals.next(), self.exhausted, self.report].into_iter().flatten().min()
    }

    fn keep_time(&mut self, now: Instant) {
        while let Some((token, fresh)) = self.fresh.pop_first() {
            if fresh.until > now {
                self.fresh.insert(token, fresh);
                break;
            }
            self.tunnels.unwatch(&fresh.host);
            match fresh.give_up() {
                Some(Answer::Taken(host, inside)) => {
                    let _ = self.tunnels.add(host, inside);
                }
                Some(Answer::Left(inside)) => self.refuse(inside, Why::NoAnswer, now),
                Some(Answer::Waiting(_)) | None => {}
            }
        }
        for conn in self.refusals.overdue(now) {
            self.tunnels.unwatch(conn);
        }
        self.exhausted = self.exhausted.filter(|until| *until > now);
    }

    fn token(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn open(&self) -> usize {
        self.tunnels.len() + self.fresh.len() + self.waiting.len()
    }

    /// Whether a connection can be dealt with now.
    fn may_accept(&self) -> bool {
        let somewhere = match self.hosts.is_empty() {
            true => true,
            false => self.hosts.are_waiting() && self.open() < self.limit,
        };
        somewhere && self.exhausted.is_none()
    }

    fn accept(&mut self, socket: usize, now: Instant) {
        for _ in 0..TURN {
            if !self.may_accept() {
                return;
            }
            let Some(listening) = self.doors.socket(socket) else { return };
            match rustix::net::accept_with(listening, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(conn) => {
                    tunnel::prompt(&conn);
                    if let Some(inside) = Inside::new(conn, socket) {
                        self.offer(inside, now);
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.exhausted = Some(now + PAUSE);
                    return;
                }
            }
        }
    }

    /// Offers a connection to whoever waits for one.
    fn offer(&mut self, mut inside: Inside, now: Instant) {
        while inside.may_be_offered() {
            let Some(carrier) = self.hosts.take(self.doors.host(inside.socket)) else {
                return match self.hosts.is_empty() {
                    true => self.refuse(inside, Why::Nobody, now),
                    false => self.waiting.push_back(inside),
                };
            };
            let (host, watched) = match carrier {
                Carrier::Parked(host) => (host, true),
                Carrier::End(host) => (host, false),
            };
            match inside.offer(host, now) {
                Ok(fresh) => {
                    let token = self.token();
                    let number = token << KIND_BITS | FRESH;
                    let flags = EventFlags::IN | EventFlags::RDHUP;
                    let watched = match watched {
                        true => self.tunnels.rewatch(&fresh.host, number, flags),
                        false => self.tunnels.watch(&fresh.host, number, flags),
                    };
                    if watched.is_ok() {
                        self.fresh.insert(token, fresh);
                    }
                    return;
                }
                Err(back) => inside = back,
            }
        }
        self.refuse(inside, Why::NoAnswer, now);
    }

    /// A host may have taken what it was offered.
    fn look(&mut self, token: u64, now: Instant) {
        let Some(fresh) = self.fresh.remove(&token) else { return };
        match fresh.answer() {
            Answer::Waiting(fresh) => {
                self.fresh.insert(token, fresh);
            }
            Answer::Taken(host, inside) => {
                // Without memory for it the connection is closed, which both sides notice.
                let _ = self.tunnels.adopt(host, inside);
            }
            Answer::Left(inside) => self.offer(inside, now),
        }
    }

    fn refuse(&mut self, inside: Inside, why: Why, now: Instant) {
        if let Some(oldest) = self.refusals.surplus(now) {
            self.tunnels.unwatch(oldest);
        }
        let mut refusal = Refusal::new(inside.conn, inside.early, why, now);
        if !refusal.step(now) {
            return;
        }
        let token = self.token();
        if self.tunnels.watch(&refusal, token << KIND_BITS | REFUSAL, EventFlags::IN).is_ok() {
            self.refusals.insert(token, refusal);
        }
    }

    fn refuse_on(&mut self, token: u64, now: Instant) {
        if let Some(over) = self.refusals.step(token, now) {
            self.tunnels.unwatch(over);
        }
    }

    /// Takes the ends that a host passes. Whoever says anything else goes.
    fn feel_host(&mut self, host: u64, now: Instant) {
        for _ in 0..TURN {
            let Some(conn) = self.hosts.conn(host) else { return };
            match control::recv_ends(conn.as_fd()) {
                Ok(Some(ends)) => ends.into_iter().for_each(|end| self.hosts.add_end(host, end)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Ok(None) | Err(_) => {
                    for conn in self.hosts.remove(host) {
                        self.tunnels.unwatch(conn);
                    }
                    self.doors.leave(host);
                    break;
                }
            }
        }
        self.offer_waiting(now);
    }

    /// Offers what waits to whoever waits for it.
    fn offer_waiting(&mut self, now: Instant) {
        // Each once: whose own host has no way for it now waits on.
        for _ in 0..self.waiting.len() {
            if !self.hosts.are_waiting() {
                return;
            }
            let Some(inside) = self.waiting.pop_front() else { return };
            self.offer(inside, now);
        }
    }

    fn unpark(&mut self, token: u64) {
        if let Some(conn) = self.hosts.unpark(token) {
            self.tunnels.unwatch(conn);
        }
    }

    /// Takes requests from PID 1; whether it is still there.
    fn hear(&mut self, now: Instant) -> bool {
        let mut buffer = [0; 256];
        loop {
            match control::recv_with_fd(self.control.as_fd(), &mut buffer) {
                Ok(Some((length, Some(conn)))) => {
                    if let Ok(request) = frame::decode_control(&buffer[..length]) {
                        self.obey(conn, &request, now);
                    }
                }
                Ok(Some((_, None))) => {}
                Ok(None) => return false,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                // Too long a packet is not meant for a forwarder.
                Err(e) if e.kind() == io::ErrorKind::InvalidData => {}
                Err(_) => return false,
            }
        }
    }

    fn obey(&mut self, conn: OwnedFd, request: &Request, now: Instant) {
        let flags = EventFlags::IN | EventFlags::RDHUP;
        match *request {
            Request::Egress { .. } if !self.hosts.has_room() => refuse_host(&conn, too_many("hosts")),
            Request::Egress { port } => {
                self.last_host += 1;
                let host = self.last_host;
                let port = self.doors.take(host, port);
                if self.accepting {
                    self.watch_doors();
                }
                if say(&conn, Some(&Reply::Standing { host, port }))
                    && self.tunnels.watch(&conn, host << KIND_BITS | HOST, flags).is_ok()
                {
                    self.hosts.add(host, conn);
                } else {
                    self.doors.leave(host);
                }
            }
            Request::Carry { host } => match self.hosts.may_park(host) {
                None => refuse_host(&conn, not_found("no such host stands behind the proxy port")),
                Some(false) => refuse_host(&conn, too_many("connections of one host")),
                Some(true) => {
                    let token = self.token();
                    if say(&conn, None)
                        && self.tunnels.watch(&conn, token << KIND_BITS | PARKED, flags).is_ok()
                    {
                        self.hosts.park(token, host, conn);
                        self.offer_waiting(now);
                    }
                }
            },
            _ => refuse_host(&conn, not_found("there is none with this number")),
        }
    }

    /// Answers those for whom nobody is left, tells PID 1 how much goes on here, and decides what to wait for.
    fn settle(&mut self, now: Instant) {
        if self.hosts.is_empty() {
            while let Some(inside) = self.waiting.pop_front() {
                self.refuse(inside, Why::Nobody, now);
            }
        }
        let accepting = self.may_accept();
        if accepting != self.accepting {
            match accepting {
                true => self.watch_doors(),
                // Not waiting for them at all, lest their end be reported for ever.
                false => self.doors.sockets().for_each(|(_, socket)| self.tunnels.unwatch(socket)),
            }
            self.accepting = accepting;
        }
        self.tell(now);
    }

    /// Waits for connections at every door; one that is waited for already stays so.
    fn watch_doors(&self) {
        for (number, socket) in self.doors.sockets() {
            let _ = self.tunnels.watch(socket, (number as u64) << KIND_BITS | SOCKET, EventFlags::IN);
        }
    }

    /// Tells PID 1 how much goes on here: a beginning at once, for all that can follow upon it; the rest now and then.
    fn tell(&mut self, now: Instant) {
        let uses = u32::try_from(self.open()).unwrap_or(u32::MAX);
        self.report = (uses != self.uses).then_some(match self.uses {
            0 => now,
            _ => self.reported + REPORTS,
        });
        if self.report.is_none_or(|time| time > now) {
            return;
        }
        let told = frame::encode_control(&Report::Use(uses)).is_ok_and(|packet| {
            control::send_with_fd(self.control.as_fd(), &packet[HEADER_BYTES..], None).is_ok()
        });
        match told {
            true => (self.uses, self.report, self.reported) = (uses, None, now),
            false => self.report = Some(now + REPORTS),
        }
    }
}

/// Sends our hello and perhaps a reply to a fresh connection, which takes that much; whether it did.
fn say(conn: &OwnedFd, reply: Option<&Reply>) -> bool {
    let mut outbox = Outbox::default();
    outbox.push(&hello::hello());
    if let Some(reply) = reply {
        outbox.reply(reply);
    }
    matches!(outbox.flush(conn), Ok(true))
}

fn refuse_host(conn: &OwnedFd, failure: Failure) {
    say(conn, Some(&Reply::Failed(failure)));
}

fn too_many(what: &str) -> Failure {
    Failure { code: FailureCode::Exhausted, message: format!("too many {what}"), errno: None }
}
