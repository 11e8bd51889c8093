//! The agent as a process of the host: starting it, waiting for its end, ending it.

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use moltis_host::process::Process;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::error::blocks;

/// A running agent, held by a handle of the process itself.
#[derive(Clone, Debug)]
pub struct Agent(Arc<Process>);

impl From<Process> for Agent {
    fn from(process: Process) -> Self {
        Self(Arc::new(process))
    }
}

impl Agent {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Whether it still runs.
    pub fn is_alive(&self) -> bool {
        !self.wait(Duration::ZERO)
    }

    /// Waits for its end, this long at most; whether it has ended. Blocks.
    pub fn wait(&self, patience: Duration) -> bool {
        self.0.is_over(patience)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When the handle cannot be waited for.
    pub async fn ended(&self) -> io::Result<()> {
        // SAFETY: the process owns its descriptor, which stays open and the same until the registration is dropped.
        let process = unsafe { AsyncFd::register_with_interest(self.0.try_clone()?, Interest::READABLE)? };
        process.readable().await.map(|_| ())
    }

    /// Waits for its end, this long at most; whether it has ended.
    pub async fn ends_within(&self, patience: Duration) -> bool {
        self.0.ends_within(patience).await
    }

    /// Kills it. Its supervisors notice, and end what they watch over.
    pub fn kill(&self) {
        self.0.kill();
    }

    /// Lets it go on if something stopped it.
    pub fn wake(&self) {
        let _ = rustix::process::pidfd_send_signal(&*self.0, Signal::CONT);
    }

    /// Its children, which are the supervisors of its commands. Blocks on a file of the kernel's.
    pub fn supervisors(&self) -> Vec<Agent> {
        let list =
            std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid())).unwrap_or_default();
        let pids = list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
        pids.filter_map(|pid| Process::open(pid).ok().map(Agent::from)).collect()
    }

    /// Takes its exit status if it is a child of this process and over.
    pub fn reap(&self) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let _ = rustix::process::waitid(WaitId::PidFd(self.0.as_fd()), options);
    }
}

/// Starts `program` in a session of its own, with an empty environment, `/` as its directory, `/dev/null` as its
/// standard streams, and those `descriptors` (all above 2) under the same numbers. Nothing of this process is copied. Blocks until it executes.
///
/// # Errors
/// What the kernel says. Nothing runs then.
pub fn spawn(program: &CStr, arguments: &[CString], descriptors: &[BorrowedFd<'_>]) -> io::Result<Agent> {
    blocks();
    let mut actions = Actions::new()?;
    for (number, access) in [(0, libc::O_RDONLY), (1, libc::O_WRONLY), (2, libc::O_WRONLY)] {
        actions.open(number, c"/dev/null", access)?;
    }
    for descriptor in descriptors {
        actions.pass(*descriptor)?;
    }
    actions.enter(c"/")?;
    let mut attributes = Attributes::new()?;
    attributes.own_session()?;

    let pointers = |strings: &[&CStr]| -> Vec<*mut c_char> {
        strings.iter().map(|string| string.as_ptr().cast_mut()).chain([std::ptr::null_mut()]).collect()
    };
    let argv: Vec<&CStr> =
        [c"moltis-guest"].into_iter().chain(arguments.iter().map(CString::as_c_str)).collect();
    let (argv, env) = (pointers(&argv), pointers(&[]));
    let mut pid = 0;
    // SAFETY: actions and attributes are initialised, the arrays end with null and point to strings that live until
    // the call returns; posix_spawn writes to none of them but `pid`.
    let result = unsafe {
        libc::posix_spawn(
            &raw mut pid,
            program.as_ptr(),
            &raw const actions.0,
            &raw const attributes.0,
            argv.as_ptr(),
            env.as_ptr(),
        )
    };
    check(result)?;
    let child = Pid::from_raw(pid).ok_or(io::ErrorKind::Other)?;
    // It is our child and has not been waited for, so the number is still its own.
    match Process::open(pid.unsigned_abs()) {
        Ok(process) => Ok(process.into()),
        Err(errno) => {
            let _ = rustix::process::kill_process(child, Signal::KILL);
            let _ = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
            Err(errno.into())
        }
    }
}

/// Where a spawned process begins.
struct Actions(libc::posix_spawn_file_actions_t);

impl Actions {
    fn new() -> io::Result<Self> {
        let mut actions = MaybeUninit::uninit();
        // SAFETY: initialises what it is given.
        check(unsafe { libc::posix_spawn_file_actions_init(actions.as_mut_ptr()) })?;
        // SAFETY: initialised just now.
        Ok(Self(unsafe { actions.assume_init() }))
    }

    fn open(&mut self, number: i32, path: &CStr, access: i32) -> io::Result<()> {
        // SAFETY: initialised; the path is copied.
        check(unsafe {
            libc::posix_spawn_file_actions_addopen(&raw mut self.0, number, path.as_ptr(), access, 0)
        })
    }

    fn pass(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let number = descriptor.as_raw_fd();
        // SAFETY: initialised. Onto itself: that takes close-on-exec away, in the new process alone.
        check(unsafe { libc::posix_spawn_file_actions_adddup2(&raw mut self.0, number, number) })
    }

    fn enter(&mut self, directory: &CStr) -> io::Result<()> {
        // SAFETY: initialised; the path is copied.
        check(unsafe { libc::posix_spawn_file_actions_addchdir_np(&raw mut self.0, directory.as_ptr()) })
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        // SAFETY: initialised, and not used after this.
        unsafe { libc::posix_spawn_file_actions_destroy(&raw mut self.0) };
    }
}

/// How a process is spawned.
struct Attributes(libc::posix_spawnattr_t);

impl Attributes {
    fn new() -> io::Result<Self> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: initialises what it is given.
        check(unsafe { libc::posix_spawnattr_init(attributes.as_mut_ptr()) })?;
        // SAFETY: initialised just now.
        Ok(Self(unsafe { attributes.assume_init() }))
    }

    /// Away from our terminal: its signals are for us to pass on.
    fn own_session(&mut self) -> io::Result<()> {
        // SAFETY: initialised.
        check(unsafe { libc::posix_spawnattr_setflags(&raw mut self.0, libc::POSIX_SPAWN_SETSID) })
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: initialised, and not used after this.
        unsafe { libc::posix_spawnattr_destroy(&raw mut self.0) };
    }
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[tokio::test]
    async fn a_process_begins_with_what_it_is_given_and_nothing_else() {
        let (reader, end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let writer = rustix::io::fcntl_dupfd_cloexec(&end, 60).unwrap();
        drop(end);
        let line = "exec 1>/dev/fd/60; pwd; env | grep -v -e ^PWD= -e ^_= -e ^SHLVL=; \
                    set -- $(cat /proc/$$/stat); test $6 = $$ && echo session; exit 3";
        let arguments = ["-c", line].map(|word| CString::new(word).unwrap());
        let agent = spawn(c"/bin/sh", &arguments, &[writer.as_fd()]).unwrap();
        drop(writer);
        let mut said = String::new();
        std::fs::File::from(reader).read_to_string(&mut said).unwrap();
        assert_eq!(said, "/\nsession\n");
        assert!(agent.ends_within(Duration::from_secs(5)).await);
        agent.reap();
        assert!(agent.ends_within(Duration::ZERO).await);
    }

    #[tokio::test]
    async fn a_process_is_killed_and_waited_for() {
        let agent = spawn(c"/bin/sleep", &[c"1000".to_owned()], &[]).unwrap();
        assert!(agent.is_alive());
        assert!(!agent.ends_within(Duration::from_millis(20)).await);
        agent.kill();
        assert!(agent.ends_within(Duration::from_secs(5)).await);
        agent.reap();
        assert!(!std::path::Path::new(&format!("/proc/{}", agent.pid())).exists());
    }

    #[test]
    fn a_program_that_is_not_there_is_said() {
        let error = spawn(c"/nonexistent", &[], &[]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
