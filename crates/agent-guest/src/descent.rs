//! The descent of a process: finding it and ending it.
//!
//! Whoever ends a descent is its subreaper, so nothing can leave it: not by `setsid`, not by a double fork. A process
//! that is stopped cannot fork, so stopping all until a look around finds nobody new freezes even a fork storm; then
//! all are killed. Only `waitpid` saying that no child is left proves the end, so all of this is repeated until then.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use moltis_agent_protocol::message::{ByteString, Leftover};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

/// Leftovers that an answer names.
const MAX_NAMED: usize = 64;

/// Bytes of a command line that are told.
pub const MAX_COMMAND: usize = 256;

/// Looks around for new processes at most this often before the killing begins, come what may: somebody outside the
/// descent may be waking its processes up, and the dead want to be buried.
const MAX_LOOKS: usize = 16;

/// A process, and who its parent was when it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its process id.
    pub pid: i32,
    /// Its parent's.
    pub parent: i32,
}

/// What one attempt to kill a descent found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Nobody.
    Nobody,
    /// Only the dead, not yet buried: children that wait for us, or that a tracer elsewhere keeps from us.
    OnlyDead,
    /// Living ones, which have been sent `SIGKILL`.
    Killed,
}

/// All that descend from this process by the children that `root` accepts, parents before their children.
pub fn members(root: impl Fn(i32) -> bool) -> Vec<Member> {
    look(root, |_| {})
}

/// As [`members`], telling of each at the moment it is found: some do not live long.
fn look(root: impl Fn(i32) -> bool, mut tell: impl FnMut(Member)) -> Vec<Member> {
    let own = std::process::id() as i32;
    let mut walk = Walk::default();
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    walk.children(own, &mut found);
    found.retain(|member| root(member.pid));
    let (mut next, mut known) = (0, 0);
    loop {
        while let Some(member) = found.get(known) {
            // A process that moves while we look may be met twice.
            if seen.insert(member.pid) {
                tell(*member);
                known += 1;
            } else {
                found.swap_remove(known);
            }
        }
        let Some(member) = found.get(next).copied() else { return found };
        next += 1;
        walk.children(member.pid, &mut found);
    }
}

/// Asks a descent to end: `SIGTERM`, and `SIGCONT` so that the stopped hear it.
pub fn terminate() {
    for member in members(|_| true) {
        signal(member, Signal::TERM);
        signal(member, Signal::CONT);
    }
}

/// Stops all of a descent, then kills all of it. The caller reaps, and repeats this until nothing is left.
pub fn kill(root: impl Fn(i32) -> bool) -> Attempt {
    let mut stopped = BTreeSet::new();
    let mut all = Vec::new();
    for _ in 0..MAX_LOOKS {
        let before = stopped.len();
        all = look(&root, |member| {
            if stopped.insert(member.pid) {
                signal(member, Signal::STOP);
            }
        });
        if stopped.len() == before {
            break;
        }
    }
    if all.is_empty() {
        return if stopped.is_empty() { Attempt::Nobody } else { Attempt::Killed };
    }
    if all.iter().all(|member| is_dead(member.pid)) {
        return Attempt::OnlyDead;
    }
    for member in &all {
        signal(*member, Signal::KILL);
    }
    Attempt::Killed
}

/// Those of a descent that live, for the answer: up to 64 of them with their command lines, and how many there are.
pub fn leftovers() -> (Vec<Leftover>, u32) {
    let living: Vec<Member> = members(|_| true).into_iter().filter(|member| !is_dead(member.pid)).collect();
    let named = living
        .iter()
        .take(MAX_NAMED)
        .map(|member| Leftover { pid: member.pid as u32, command: command_of(member.pid) });
    (named.collect(), living.len() as u32)
}

/// Sends a signal to a member, unless its number has gone to somebody else since it was found.
fn signal(member: Member, signal: Signal) {
    let Some(pid) = Pid::from_raw(member.pid) else { return };
    let own = std::process::id() as i32;
    if member.parent == own {
        // A child of ours keeps its number until we reap it.
        let _ = rustix::process::kill_process(pid, signal);
        return;
    }
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => {
            // It may have become an orphan, and then a child of ours; whatever else it is now, the next look tells.
            let parent = stat(member.pid).map(|stat| stat.parent);
            if parent.is_some_and(|parent| parent == member.parent || parent == own) {
                let _ = rustix::process::pidfd_send_signal(handle, signal);
            }
        }
        Err(Errno::SRCH) => {}
        // A kernel or a filter without pidfds.
        Err(_) => {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// Finds children, by the kernel's own lists where it keeps them.
#[derive(Default)]
struct Walk {
    text: String,
    path: String,
    /// Every process and its parent, where the kernel keeps no lists.
    parents: Option<Vec<Member>>,
}

impl Walk {
    fn children(&mut self, parent: i32, found: &mut Vec<Member>) {
        if self.parents.is_none() && !self.listed(parent, found) {
            self.parents = Some(everybody());
        }
        if let Some(parents) = &self.parents {
            found.extend(parents.iter().filter(|member| member.parent == parent));
        }
    }

    /// Whether the kernel keeps lists.
    fn listed(&mut self, parent: i32, found: &mut Vec<Member>) -> bool {
        self.path.clear();
        let _ = write!(self.path, "/proc/{parent}/task");
        // A process that is gone by now has left its children to us.
        let Ok(threads) = std::fs::read_dir(&self.path) else { return true };
        for thread in threads.flatten() {
            self.path.clear();
            let _ = write!(self.path, "/proc/{parent}/task/{}/children", thread.file_name().display());
            self.text.clear();
            match std::fs::File::open(&self.path).and_then(|mut file| file.read_to_string(&mut self.text)) {
                Ok(_) => {}
                // The thread has ended. (The kernel without lists has no such file for ourselves either.)
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if !std::path::Path::new("/proc/thread-self/children").exists() {
                        return false;
                    }
                }
                Err(_) => {}
            }
            let pids = self.text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
            found.extend(pids.map(|pid| Member { pid, parent }));
        }
        true
    }
}

fn everybody() -> Vec<Member> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| Some(Member { pid, parent: stat(pid)?.parent })).collect()
}

/// What one process has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its parent's process id.
    pub parent: i32,
    /// Pages of memory that it holds; those that it shares with others too.
    pub resident_pages: u64,
    /// Processor time of its own and of children that are dead and buried, in ticks of the kernel's clock.
    pub ticks: u64,
}

/// What a process has taken, if it is there.
pub fn account(pid: i32) -> Option<Account> {
    let mut bytes = [0; 1024];
    let mut fields = fields(pid, &mut bytes)?.skip(1);
    let mut number = |skipped: usize| std::str::from_utf8(fields.nth(skipped)?).ok()?.parse::<i64>().ok();
    // As proc(5) counts them: ppid is field 4, utime to cstime are 14 to 17, rss is 24.
    let parent = i32::try_from(number(0)?).ok()?;
    let times = [number(9)?, number(0)?, number(0)?, number(0)?];
    let resident_pages = u64::try_from(number(6)?).unwrap_or(0);
    let ticks = times.iter().fold(0u64, |sum, time| sum.saturating_add(u64::try_from(*time).unwrap_or(0)));
    Some(Account { parent, resident_pages, ticks })
}

struct Stat {
    state: u8,
    parent: i32,
}

fn stat(pid: i32) -> Option<Stat> {
    let mut bytes = [0; 512];
    let mut fields = fields(pid, &mut bytes)?;
    let state = *fields.next()?.first()?;
    let parent = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    Some(Stat { state, parent })
}

/// The fields of a process's `stat` after its name, the state first.
fn fields(pid: i32, bytes: &mut [u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let length = read_proc(pid, "stat", bytes)?;
    // The name in parentheses may hold anything, a parenthesis too.
    let line = &bytes[..length];
    let after = line.iter().rposition(|byte| *byte == b')')?;
    Some(line.get(after + 1..)?.split(|byte| *byte == b' ').filter(|field| !field.is_empty()))
}

fn is_dead(pid: i32) -> bool {
    stat(pid).is_none_or(|stat| matches!(stat.state, b'Z' | b'X'))
}

/// A process's command line as it states it itself, or its name; spaces between arguments.
fn command_of(pid: i32) -> ByteString {
    let mut bytes = [0; MAX_COMMAND];
    let mut length = read_proc(pid, "cmdline", &mut bytes).unwrap_or(0);
    while length > 0 && bytes[length - 1] == 0 {
        length -= 1;
    }
    if length == 0 {
        length = read_proc(pid, "comm", &mut bytes).unwrap_or(0);
        length -= usize::from(length > 0 && bytes[length - 1] == b'\n');
    }
    let text = bytes[..length].iter().map(|byte| if *byte == 0 { b' ' } else { *byte }).collect::<Vec<u8>>();
    ByteString::from(text)
}

fn read_proc(pid: i32, name: &str, buffer: &mut [u8]) -> Option<usize> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file: OwnedFd = rustix::fs::open(format!("/proc/{pid}/{name}"), flags, Mode::empty()).ok()?;
    rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut *buffer)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descent_is_found_told_and_killed() {
        use std::process::{Command, Stdio};
        let mut child = Command::new("sh")
            .args(["-c", "sleep 1000 & sh -c 'sleep 1001; true' & echo ready; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        let root = child.id() as i32;
        let mut names = Vec::new();
        for _ in 0..200 {
            let found = members(|pid| pid == root);
            names = found.iter().map(|member| command_of(member.pid).to_vec()).collect();
            if names.contains(&b"sleep 1001".to_vec()) && names.contains(&b"sleep 1000".to_vec()) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(names.len(), 4, "{names:?}");
        assert_eq!(kill(|pid| pid == root), Attempt::Killed);
        child.wait().unwrap();
        assert_eq!(kill(|pid| pid == root), Attempt::Nobody);
    }

    #[test]
    fn a_name_full_of_parentheses_is_read_past() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("x) Z 1 (y) Z");
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(&program).arg("1000").spawn().unwrap();
        let found = stat(child.id() as i32).map(|stat| (stat.state != b'Z', stat.parent));
        assert_eq!(found, Some((true, std::process::id() as i32)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_dead(child.id() as i32));
    }
}
