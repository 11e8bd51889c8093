//! The keeper's loop: accepts from the host alone, carries each connection, wakes the machine, and ends with the agent.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use moltis_agent_protocol::machine::{HOST_CID, WAKE_BYTES};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::WaitOptions;

use super::carry::Carried;
use super::wake::Waker;
use crate::poll::{PollSet, READ, Slot};
use crate::startup;

/// Connections that are carried at a time. More wait in the kernel's queue.
const MAX_CARRIED: usize = 4096;

/// Connections that say what to wake, at a time, and how long each may take.
const MAX_WAKING: usize = 8;
const WAKES_WITHIN: Duration = Duration::from_secs(20);

/// Time for which nothing is accepted after descriptors ran out.
const PAUSE: Duration = Duration::from_millis(100);

/// Somebody who has not said all of a wake.
struct Waking {
    conn: OwnedFd,
    said: [u8; WAKE_BYTES],
    have: usize,
    until: Instant,
}

/// Carries on until the agent's process is over.
///
/// # Errors
/// When the kernel is out of something at the beginning.
pub fn until_over(
    [agents, wakes]: [OwnedFd; 2],
    address: SocketAddrUnix,
    agent: i32,
    waker: Waker,
) -> io::Result<()> {
    startup::reset_signals();
    let signals = startup::signals()?;
    let mut carried: Vec<Carried> = Vec::new();
    let mut waking: Vec<Waking> = Vec::new();
    let mut paused: Option<Instant> = None;
    let mut set = PollSet::default();
    loop {
        set.clear();
        let signal = set.add(signals.as_fd(), READ);
        let listening = paused.is_none();
        let accepts = (listening && carried.len() < MAX_CARRIED).then(|| set.add(agents.as_fd(), READ));
        let woken = (listening && waking.len() < MAX_WAKING).then(|| set.add(wakes.as_fd(), READ));
        let slots: Vec<[Option<Slot>; 2]> = carried.iter().map(|one| one.watch(&mut set)).collect();
        let wake_slots: Vec<Slot> = waking.iter().map(|one| set.add(one.conn.as_fd(), READ)).collect();
        let until = waking.iter().map(|one| one.until).chain(paused).min();
        set.wait(until)?;
        let now = Instant::now();
        if paused.is_some_and(|time| time <= now) {
            paused = None;
        }
        if set.any(Some(signal), READ) {
            startup::drain(&signals);
            if is_over(agent) {
                return Ok(());
            }
        }
        let mut at = 0;
        carried.retain_mut(|one| {
            at += 1;
            one.advance(&set, slots[at - 1])
        });
        at = 0;
        waking.retain_mut(|one| {
            at += 1;
            let happened = set.any(Some(wake_slots[at - 1]), READ);
            one.until > now && (!happened || one.goes_on(&waker))
        });
        if set.any(accepts, READ) {
            match accept(&agents) {
                Ok(Some(conn)) => carried.push(Carried::new(conn, connect(&address).ok())),
                Ok(None) => {}
                Err(_) => paused = Some(now + PAUSE),
            }
        }
        if set.any(woken, READ) {
            match accept(&wakes) {
                Ok(Some(conn)) => {
                    waking.push(Waking { conn, said: [0; WAKE_BYTES], have: 0, until: now + WAKES_WITHIN });
                }
                Ok(None) => {}
                Err(_) => paused = Some(now + PAUSE),
            }
        }
    }
}

/// Buries what has died; whether the agent has.
fn is_over(agent: i32) -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, _))) if pid.as_raw_pid() == agent => return true,
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => return true,
            Ok(None) | Err(_) => return false,
        }
    }
}

/// The next connection, if it is the host's.
fn accept(listener: &OwnedFd) -> rustix::io::Result<Option<OwnedFd>> {
    // SAFETY: all-zero is a valid value of this struct of integers.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the kernel writes at most `length` bytes into the address.
    let fd =
        unsafe { libc::accept4(listener.as_raw_fd(), (&raw mut address).cast(), &raw mut length, flags) };
    if fd < 0 {
        return match Errno::from_io_error(&io::Error::last_os_error()) {
            Some(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => Err(errno),
            _ => Ok(None),
        };
    }
    // SAFETY: it was just made, and nobody else has it.
    let conn = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok((address.svm_cid == HOST_CID).then_some(conn))
}

fn connect(address: &SocketAddrUnix) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let conn = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        match rustix::net::connect(&conn, address) {
            // Its queue is as long as ours is; it empties it without waiting for anybody.
            Err(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
            connected => return connected.map(|()| conn),
        }
    }
}

impl Waking {
    /// Reads on; whether there is more to come.
    fn goes_on(&mut self, waker: &Waker) -> bool {
        match rustix::io::read(&self.conn, &mut self.said[self.have..]) {
            Ok(0) => return false,
            Ok(count) => self.have += count,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return false,
        }
        if self.have < WAKE_BYTES {
            return true;
        }
        if let Some(answer) = waker.hear(&self.said) {
            let _ = rustix::net::send(&self.conn, &answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            // The host reads it and closes; closing first could take it back.
            let mut closed = [rustix::event::PollFd::new(&self.conn, PollFlags::IN)];
            let second = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
            let _ = rustix::event::poll(&mut closed, Some(&second));
        }
        false
    }
}
