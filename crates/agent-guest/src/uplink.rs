//! Mode `uplink`: connects a sandbox's network namespace to the outside by `pasta` or `slirp4netns` and ends that
//! program when the sandbox ends, whatever happens to the process that asked for it.
//!
//! ```text
//! moltis-guest uplink UID GID PROGRAM ARGUMENT…
//!   0  the network namespace      1  a pidfd of the sandbox's PID 1      2  the host's socket
//! uplink → host   `R` once the program says that it is ready, or `E` and why not
//! host → uplink   `S`: stop
//! ```
//!
//! The program runs in the sandbox's user namespace under the sandbox's uid and with no more than it takes to set up an
//! interface there, so that a flaw in it is worth no more than the sandbox itself: in particular it never is root. It
//! is outside of the sandbox's pid namespace, where commands can neither see nor end it. In its arguments `{netns}`
//! stands for the namespace and `{ready}` for the place to report readiness to, its descriptors 0 and 1: newer versions
//! close all others.

mod identity;
mod tun;

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::startup;

/// How long the program may take until it is ready.
const PATIENCE: Duration = Duration::from_secs(10);
/// How much of what the program says is kept for the report.
const WORDS: usize = 2048;

/// Runs it. The first process ends at once and leaves the work to a second one in a session of its own, which the
/// terminal's signals do not reach and which is nobody's child to wait for.
pub fn run(arguments: Vec<OsString>) -> i32 {
    let Ok(ends) = Ends::take() else { return 1 };
    // SAFETY: this program has no threads.
    match unsafe { libc::fork() } {
        0 => {}
        -1 => {
            ends.fail(&last_error("fork").to_string());
            return 1;
        }
        _ => return 0,
    }
    if let Err(error) = work(&ends, arguments) {
        ends.fail(&error.to_string());
        return 1;
    }
    0
}

fn work(ends: &Ends, arguments: Vec<OsString>) -> io::Result<()> {
    let mut arguments = arguments.into_iter();
    let mut id = || arguments.next().and_then(|text| text.to_str()?.parse::<u32>().ok());
    let (Some(uid), Some(gid)) = (id(), id()) else { return Err(io::ErrorKind::InvalidInput.into()) };
    let argv = argv(arguments)?;
    rustix::process::setsid().map_err(named("setsid"))?;
    startup::reset_signals();
    tun::provide()?;
    identity::become_user_of(ends.netns.as_fd(), uid, gid)?;
    let program = Program::start(&argv, ends.netns.as_fd())?;
    identity::drop_capabilities()?;
    program.tend(ends)
}

/// The program's name and arguments for `execv`, with descriptors in place of the words that stand for them.
fn argv(words: impl Iterator<Item = OsString>) -> io::Result<Vec<CString>> {
    let argv: Result<Vec<_>, _> = words
        .map(|word| {
            CString::new(match word.to_str() {
                Some("{netns}") => b"/proc/self/fd/0".to_vec(),
                Some("{ready}") => b"/proc/self/fd/1".to_vec(),
                _ => word.into_vec(),
            })
        })
        .collect();
    let argv = argv?;
    if argv.is_empty() { Err(io::ErrorKind::InvalidInput.into()) } else { Ok(argv) }
}

/// What the host handed over.
struct Ends {
    netns: OwnedFd,
    agent: OwnedFd,
    host: OwnedFd,
}

impl Ends {
    /// Moves the three away from the standard descriptors, which get `/dev/null`, and closes all else.
    fn take() -> io::Result<Self> {
        let away = |fd: RawFd| -> io::Result<OwnedFd> {
            // SAFETY: the three are open, or the copy fails; nothing owns them.
            Ok(fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(fd) }, 3)?)
        };
        let ends = Self { netns: away(0)?, agent: away(1)?, host: away(2)? };
        startup::null_stdio()?;
        let keep = [ends.netns.as_raw_fd(), ends.agent.as_raw_fd(), ends.host.as_raw_fd()];
        startup::close_all_but(&keep)?;
        Ok(ends)
    }

    fn ready(&self) {
        self.tell(b"R");
    }

    fn fail(&self, why: &str) {
        self.tell(format!("E{why}").as_bytes());
    }

    /// A host that is gone does not matter: the sandbox may outlive it.
    fn tell(&self, message: &[u8]) {
        let _ = rustix::net::send(&self.host, message, rustix::net::SendFlags::NOSIGNAL);
    }
}

/// The running program.
struct Program {
    pid: Pid,
    handle: OwnedFd,
    /// It writes here once the interface is up.
    ready: OwnedFd,
    /// What it says.
    words: OwnedFd,
}

impl Program {
    fn start(argv: &[CString], netns: BorrowedFd<'_>) -> io::Result<Self> {
        // Made under the uid that the program has: it opens the first one again by name.
        let (ready, ready_end) = pipe_with(PipeFlags::CLOEXEC).map_err(named("pipe"))?;
        let (words, words_end) = pipe_with(PipeFlags::CLOEXEC).map_err(named("pipe"))?;
        let mut pointers: Vec<_> = argv.iter().map(|word| word.as_ptr()).collect();
        pointers.push(std::ptr::null());
        let parent = rustix::process::getpid();
        // SAFETY: this program has no threads.
        let pid = match unsafe { libc::fork() } {
            -1 => return Err(last_error("fork")),
            0 => {
                let descriptors = [netns.as_raw_fd(), ready_end.as_raw_fd(), words_end.as_raw_fd()];
                become_program(&pointers, descriptors, parent)
            }
            pid => Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?,
        };
        // What is left of its words is read once it has ended; a child of its own may hold the other end open.
        rustix::io::ioctl_fionbio(&words, true).map_err(named("pipe"))?;
        let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(named("pidfd_open"))?;
        Ok(Self { pid, handle, ready, words })
    }

    /// Waits until the program is ready, then until it or the sandbox ends.
    fn tend(self, ends: &Ends) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut said = Vec::new();
        let (mut is_ready, mut may_be_ready, mut has_words, mut has_host) = (false, true, true, true);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if !is_ready && left.is_zero() {
                self.end();
                return Err(io::Error::other(format!("not ready within {PATIENCE:?}: {}", text(&said))));
            }
            let watch = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
            let mut polled = vec![watch(ends.agent.as_fd()), watch(self.handle.as_fd())];
            // Descriptors that have nothing more to say are not asked.
            let optional = [
                (self.ready.as_fd(), may_be_ready),
                (self.words.as_fd(), has_words),
                (ends.host.as_fd(), has_host),
            ];
            let mut places = [None; 3];
            for (place, (fd, wanted)) in places.iter_mut().zip(optional) {
                if wanted {
                    *place = Some(polled.len());
                    polled.push(watch(fd));
                }
            }
            let timeout = Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(0) + 1, tv_nsec: 0 };
            match poll(&mut polled, (!is_ready).then_some(&timeout)) {
                Err(Errno::INTR) => continue,
                answer => answer.map_err(named("poll"))?,
            };
            let came = |index: usize| polled.get(index).is_some_and(|polled| !polled.revents().is_empty());
            let [ready_came, words_came, host_came] = places.map(|place| place.is_some_and(came));
            let (agent_ended, program_ended) = (came(0), came(1));
            if words_came {
                has_words = keep(&self.words, &mut said);
            }
            if agent_ended {
                self.end();
                return Ok(());
            }
            if ready_came {
                is_ready = matches!(rustix::io::read(&self.ready, &mut [0; 16]), Ok(1..));
                may_be_ready = false;
                if is_ready {
                    ends.ready();
                }
            }
            if program_ended {
                while has_words && keep(&self.words, &mut said) {}
                self.end();
                return if is_ready { Ok(()) } else { Err(io::Error::other(text(&said))) };
            }
            if host_came {
                let mut byte = [0; 1];
                match rustix::io::read(&ends.host, &mut byte) {
                    Ok(1) if byte == *b"S" => {
                        self.end();
                        return Ok(());
                    }
                    Ok(1..) => {}
                    _ => has_host = false,
                }
            }
        }
    }

    /// Kills it, if it has not ended, and waits for it.
    fn end(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.handle, Signal::KILL);
        let _ = rustix::process::waitpid(Some(self.pid), rustix::process::WaitOptions::empty());
    }
}

/// In the new process: the program, with these as descriptors 0, 1 and 2 and an end of its own if `parent` ends.
fn become_program(argv: &[*const libc::c_char], descriptors: [RawFd; 3], parent: Pid) -> ! {
    const ENVIRONMENT: [*const libc::c_char; 2] =
        [c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".as_ptr(), std::ptr::null()];
    // SAFETY: plain calls on a process that is ours alone; all pointers are to strings and arrays that end in null and
    // outlive the call that replaces this process.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // The parent may have ended before that took hold.
        if libc::getppid() != parent.as_raw_nonzero().get() {
            libc::_exit(1);
        }
        for (target, fd) in (0..).zip(descriptors) {
            if libc::dup2(fd, target) < 0 {
                libc::_exit(1);
            }
        }
        let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
        libc::chdir(c"/".as_ptr());
        libc::execve(argv[0], argv.as_ptr(), ENVIRONMENT.as_ptr());
        let why = io::Error::last_os_error().to_string();
        libc::write(2, why.as_ptr().cast(), why.len());
        libc::_exit(127)
    }
}

/// Reads some of what the program says, keeping the last of it; false once there is no more to come.
fn keep(words: &OwnedFd, said: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 1024];
    match rustix::io::read(words, &mut buffer) {
        Ok(0) | Err(_) => false,
        Ok(count) => {
            said.extend_from_slice(&buffer[..count]);
            let excess = said.len().saturating_sub(WORDS);
            said.drain(..excess);
            true
        }
    }
}

fn text(said: &[u8]) -> String {
    String::from_utf8_lossy(said).trim().to_owned()
}

/// An error that says which call it is about.
fn named(call: &'static str) -> impl Fn(Errno) -> io::Error {
    move |errno| io::Error::other(format!("{call}: {}", io::Error::from(errno)))
}

fn last_error(call: &'static str) -> io::Error {
    io::Error::other(format!("{call}: {}", io::Error::last_os_error()))
}
