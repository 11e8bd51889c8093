//! A process, held by a pidfd: the number may be used again, the handle never means another process.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read, retry_on_intr};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A process that is known by more than its number.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    pidfd: OwnedFd,
    is_child: bool,
}

impl Process {
    /// A child of this process.
    pub fn child(pid: i32, pidfd: OwnedFd) -> Self {
        Self { pid: pid.unsigned_abs(), pidfd, is_child: true }
    }

    /// The process that has this number now, if there is one. Who got the number from somebody else has no certainty that
    /// it is still the one that was meant. It is not reaped, even if it is a child.
    ///
    /// # Errors
    /// The kernel's: there is no such process, or no descriptor is left.
    pub fn open(pid: u32) -> rustix::io::Result<Self> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        let pidfd = pidfd_open(number, PidfdFlags::empty())?;
        Ok(Self { pid, pidfd, is_child: false })
    }

    /// The process of a record, if it still is that one.
    pub fn find(pid: u32, started: u64) -> Option<Self> {
        let process = Self::open(pid).ok()?;
        // Read after the handle exists: were it another process by now, its start would tell.
        if start_time(pid)? != started {
            return None;
        }
        (!process.is_over(Duration::ZERO)).then_some(process)
    }

    /// Process id as this process sees it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Kills it, and with it everything in its pid namespace. One that is gone already is no error.
    pub fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Waits until it and everything in its pid namespace is gone; `false` if that takes longer. Blocks.
    pub fn is_over(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return false,
                Ok(_) => {
                    self.reap();
                    return true;
                }
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// As [`is_over`](Self::is_over), without blocking.
    pub async fn ends_within(&self, patience: Duration) -> bool {
        if self.is_over(Duration::ZERO) || patience.is_zero() {
            return self.is_over(Duration::ZERO);
        }
        let ended = async {
            if let Ok(process) = self.try_clone() {
                // SAFETY: the process owns its descriptor, which stays open and the same until this is dropped.
                let watched = unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) };
                if let Ok(watched) = watched
                    && watched.readable().await.is_ok()
                {
                    return;
                }
            }
            // Out of descriptors.
            while !self.is_over(Duration::ZERO) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = tokio::time::timeout(patience, ended).await;
        self.is_over(Duration::ZERO)
    }

    /// As [`is_over`](Self::is_over) for a process that was just killed. Blocks for ten seconds at most.
    pub fn wait_briefly(&self) -> bool {
        self.is_over(Duration::from_secs(10))
    }

    fn reap(&self) {
        if self.is_child {
            // Somebody else in this process may have reaped it, or signals may be set to do so.
            let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }

    /// Another handle of the same process.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self { pid: self.pid, pidfd: self.pidfd.try_clone()?, is_child: self.is_child })
    }

    /// When it started, in the kernel's ticks since the boot.
    pub fn started(&self) -> Option<u64> {
        start_time(self.pid)
    }
}

impl AsRawFd for Process {
    fn as_raw_fd(&self) -> RawFd {
        self.pidfd.as_raw_fd()
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// When a process started, in the kernel's ticks since the boot: field 22 of `/proc/<pid>/stat`. The second field is the
/// program's own name for itself, in parentheses.
pub fn start_time(pid: u32) -> Option<u64> {
    stat_field(pid, 22)
}

/// Whether a process has come of another, which is taken to live, or is that itself. One that ended a moment ago has no
/// origin any more and says no; so does one that was left by its parents.
pub fn comes_of(pid: u32, origin: u32) -> bool {
    let mut at = pid;
    // Deeper than this nobody nests; numbers that are used again meanwhile could lead round in a circle.
    for _ in 0..256 {
        if at == origin {
            return true;
        }
        match stat_field(at, 4) {
            Some(parent) if parent > 0 => at = parent,
            _ => return false,
        }
    }
    false
}

/// A number of `/proc/<pid>/stat`, counted from 1 and beyond 2.
fn stat_field<T: std::str::FromStr>(pid: u32, field: usize) -> Option<T> {
    let stat = read_whole(&format!("/proc/{pid}/stat"))?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    std::str::from_utf8(&stat[end + 1..]).ok()?.split_whitespace().nth(field - 3)?.parse().ok()
}

/// A file of the kernel's that is made at the moment of reading, and is short.
fn read_whole(path: &str) -> Option<Vec<u8>> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = vec![0; 2048];
    let length = retry_on_intr(|| read(&file, &mut bytes[..])).ok()?;
    bytes.truncate(length);
    Some(bytes)
}

/// What tells this boot from others.
pub fn boot() -> &'static str {
    static BOOT: OnceLock<String> = OnceLock::new();
    BOOT.get_or_init(|| {
        let id = read_whole("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        String::from_utf8_lossy(&id).trim().to_owned()
    })
}

/// What tells this boot, and this process's pid namespace, from others: a process id means nothing elsewhere.
pub fn pid_realm() -> &'static str {
    static REALM: OnceLock<String> = OnceLock::new();
    REALM.get_or_init(|| format!("{} {}", boot(), pid_namespace()))
}

/// The PID namespace of this process.
pub fn pid_namespace() -> &'static str {
    static NAMESPACE: OnceLock<String> = OnceLock::new();
    NAMESPACE.get_or_init(|| fs::read_link("/proc/self/ns/pid").unwrap_or_default().display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_come_of_us_and_we_do_not_come_of_them() {
        let own = std::process::id();
        let line = "sleep 600 & echo $!; wait";
        let mut shell = std::process::Command::new("sh")
            .args(["-c", line])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let out = shell.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut said).unwrap();
        let (child, grandchild): (u32, u32) = (shell.id(), said.trim().parse().unwrap());
        let found =
            [own, child, grandchild].map(|pid| [own, child, grandchild].map(|origin| comes_of(pid, origin)));
        let gone = comes_of(u32::MAX, own);
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(i32::try_from(grandchild).unwrap()).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
        shell.wait().unwrap();
        assert_eq!(found, [[true, false, false], [true, true, false], [true, true, true]]);
        assert!(!gone);
    }
}
