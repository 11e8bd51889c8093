//! Starting a command: its arguments, environment and directory made ready, then a child that shares this process's
//! memory until it executes the program (as `vfork` does: nothing is copied), and says what went wrong if it cannot.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use moltis_agent_protocol::message::{ByteString, ExecStart, Failure, FailureCode};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::failure::{invalid, kernel};
use crate::rlimits::{self, Rlimit};

/// Where programs are looked for when the environment has no `PATH`.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Stack of the child until it executes: it calls nothing deep.
const STACK_BYTES: usize = 32 * 1024;

/// A command made ready to start.
pub struct Command {
    argv: Vec<CString>,
    env: Vec<CString>,
    cwd: CString,
    /// Paths to try, in this order.
    programs: Vec<CString>,
    /// Whether they come from `PATH`.
    searched: bool,
}

/// What a command reads and writes.
pub struct Stdio<'fd> {
    /// Standard input; absent: what this process has, which is `/dev/null`.
    pub input: Option<BorrowedFd<'fd>>,
    /// Standard output.
    pub output: BorrowedFd<'fd>,
    /// Standard error.
    pub error: BorrowedFd<'fd>,
    /// Whether they are a terminal, to become the controlling one.
    pub terminal: bool,
}

impl Command {
    /// Judges a request and makes it ready. `default_cwd` is where it runs if it names no directory.
    ///
    /// # Errors
    /// `Invalid`, saying what is wrong with it.
    pub fn prepare(start: ExecStart, default_cwd: &[u8]) -> Result<Self, Failure> {
        let name = start.argv.first().ok_or_else(|| invalid("the command is empty"))?.clone().into_vec();
        if name.is_empty() {
            return Err(invalid("the program's name is empty"));
        }
        let cwd = start.cwd.map_or_else(|| default_cwd.to_vec(), ByteString::into_vec);
        if !cwd.starts_with(b"/") {
            return Err(invalid(format!("the working directory is not absolute: {}", shown(&cwd))));
        }
        let env = environment(start.env)?;
        let searched = !name.contains(&b'/');
        let programs =
            if searched { search(&name, &env) } else { vec![terminated(name, "the program's name")?] };
        let argv = start.argv.into_iter().map(|arg| terminated(arg.into_vec(), "an argument"));
        Ok(Self {
            argv: argv.collect::<Result<_, _>>()?,
            env,
            cwd: terminated(cwd, "the working directory")?,
            programs,
            searched,
        })
    }

    /// Starts it within `limits`. When this returns, the program runs.
    ///
    /// # Errors
    /// Nothing has run then.
    pub fn start(&self, stdio: &Stdio<'_>, limits: &[Rlimit]) -> Result<Pid, Failure> {
        let programs: Vec<&CStr> = self.programs.iter().map(CString::as_c_str).collect();
        let argv: Vec<&CStr> = self.argv.iter().map(CString::as_c_str).collect();
        let stopped = match self.attempt(&programs, &argv, stdio, limits)? {
            Ok(pid) => return Ok(pid),
            Err(stopped) => stopped,
        };
        if stopped.errno == libc::ENOEXEC
            && let Some(script) = self.programs.get(stopped.program)
        {
            // No format the kernel knows: a script without a first line that names its interpreter.
            let shell = [c"/bin/sh"];
            let argv: Vec<&CStr> =
                [c"/bin/sh", script.as_c_str()].into_iter().chain(argv.into_iter().skip(1)).collect();
            return self.attempt(&shell, &argv, stdio, limits)?.map_err(|stopped| self.explain(&stopped));
        }
        Err(self.explain(&stopped))
    }

    fn attempt(
        &self,
        programs: &[&CStr],
        argv: &[&CStr],
        stdio: &Stdio<'_>,
        limits: &[Rlimit],
    ) -> Result<Result<Pid, Stopped>, Failure> {
        let argv = pointers(argv.iter().copied());
        let env = pointers(self.env.iter().map(CString::as_c_str));
        let programs = pointers(programs.iter().copied());
        let mut plan = Plan {
            programs: programs.as_ptr(),
            argv: argv.as_ptr(),
            env: env.as_ptr(),
            cwd: self.cwd.as_ptr(),
            stdio: [
                stdio.input.map_or(-1, |fd| fd.as_raw_fd()),
                stdio.output.as_raw_fd(),
                stdio.error.as_raw_fd(),
            ],
            terminal: stdio.terminal,
            limits: limits.as_ptr(),
            limit_count: limits.len(),
            stopped: Stopped { stage: Stage::Ran, errno: 0, program: 0 },
        };
        let mut stack = Vec::<u128>::with_capacity(STACK_BYTES / size_of::<u128>());
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: the stack is aligned, grows downwards from its end and outlives the child's use of it, as does the
        // plan: this thread is suspended until the child has executed a program or ended. The child touches nothing
        // but its stack and the plan, and all that the plan points to lives until then.
        let pid = unsafe {
            let top = stack.as_mut_ptr().add(stack.capacity()).cast::<c_void>();
            libc::clone(child, top, flags, ptr::from_mut(&mut plan).cast())
        };
        if pid < 0 {
            return Err(kernel("no process could be made", last_errno()));
        }
        // The child wrote behind the compiler's back.
        // SAFETY: `plan` is alive and nobody else writes to it any more.
        let stopped = unsafe { ptr::read_volatile(&raw const plan.stopped) };
        let pid = Pid::from_raw(pid).ok_or_else(|| invalid("the kernel made no process"))?;
        if matches!(stopped.stage, Stage::Ran) {
            return Ok(Ok(pid));
        }
        let _ = rustix::io::retry_on_intr(|| {
            rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())
        });
        Ok(Err(stopped))
    }

    fn explain(&self, stopped: &Stopped) -> Failure {
        let errno = Errno::from_raw_os_error(stopped.errno);
        let failure = |code, message: String| Failure { code, message, errno: Some(errno.raw_os_error()) };
        if matches!(stopped.stage, Stage::Cwd) {
            let cwd = shown(self.cwd.as_bytes());
            return failure(
                FailureCode::Cwd,
                format!("the working directory {cwd} cannot be entered: {errno}"),
            );
        }
        if matches!(stopped.stage, Stage::Limits) {
            return kernel("the command's resource limits could not be set", errno);
        }
        if matches!(stopped.stage, Stage::Stdio) {
            return kernel("the command's standard streams could not be set up", errno);
        }
        let name = shown(self.argv.first().map_or(b"", |name| name.as_bytes()));
        let there = self.programs.iter().find(|program| {
            program.as_bytes().starts_with(b"/") && rustix::fs::stat(program.as_c_str()).is_ok()
        });
        match errno {
            Errno::TOOBIG => {
                failure(FailureCode::TooLong, "the command line and environment are too long".into())
            }
            Errno::NOENT | Errno::NOTDIR => match there {
                Some(program) => failure(
                    FailureCode::ProgramMissing,
                    format!("the interpreter of {} was not found", shown(program.as_bytes())),
                ),
                None => failure(FailureCode::ProgramMissing, format!("{name} was not found")),
            },
            // A directory on PATH that may not be searched says nothing of the program.
            Errno::ACCESS if self.searched && there.is_none() => {
                failure(FailureCode::ProgramMissing, format!("{name} was not found"))
            }
            Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE => {
                kernel(&format!("{name} could not be started"), errno)
            }
            _ => failure(FailureCode::ProgramNotExecutable, format!("{name} cannot be run: {errno}")),
        }
    }
}

/// How far a child came that could not execute its program.
#[derive(Clone, Copy)]
struct Stopped {
    stage: Stage,
    errno: c_int,
    /// Index of the program that the error is about.
    program: usize,
}

#[derive(Clone, Copy)]
enum Stage {
    Ran,
    Stdio,
    Cwd,
    Limits,
    Exec,
}

/// What the child needs, in memory that it shares with its parent.
struct Plan {
    programs: *const *const c_char,
    argv: *const *const c_char,
    env: *const *const c_char,
    cwd: *const c_char,
    stdio: [c_int; 3],
    terminal: bool,
    limits: *const Rlimit,
    limit_count: usize,
    stopped: Stopped,
}

/// The child. It must not allocate, panic or return to anything of its parent's.
extern "C" fn child(plan: *mut c_void) -> c_int {
    // SAFETY: the parent made the plan and is suspended; see `attempt`. Every pointer in it is valid, the arrays end
    // with null. The calls below are system calls that touch nothing of the parent's but `errno`.
    unsafe {
        let plan = &mut *plan.cast::<Plan>();
        plan.stopped = match become_command(plan) {
            Err(stopped) => stopped,
            Ok(never) => match never {},
        };
        libc::_exit(127)
    }
}

/// # Safety
/// Only for [`child`].
unsafe fn become_command(plan: &Plan) -> Result<std::convert::Infallible, Stopped> {
    let stopped = |stage| Stopped { stage, errno: last_errno().raw_os_error(), program: 0 };
    // SAFETY: see `child`.
    unsafe {
        libc::setsid();
        for (target, source) in (0..).zip(plan.stdio) {
            if source >= 0 && libc::dup2(source, target) < 0 {
                return Err(stopped(Stage::Stdio));
            }
        }
        if plan.terminal && libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
            return Err(stopped(Stage::Stdio));
        }
        if libc::chdir(plan.cwd) < 0 {
            return Err(stopped(Stage::Cwd));
        }
        for index in 0..plan.limit_count {
            if rlimits::set(&*plan.limits.add(index)) < 0 {
                return Err(stopped(Stage::Limits));
            }
        }
        let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());

        let mut result = Stopped { stage: Stage::Exec, errno: libc::ENOENT, program: 0 };
        let mut index = 0;
        while !(*plan.programs.add(index)).is_null() {
            libc::execve(*plan.programs.add(index), plan.argv, plan.env);
            match last_errno().raw_os_error() {
                libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
                libc::EACCES => result = Stopped { stage: Stage::Exec, errno: libc::EACCES, program: index },
                errno => return Err(Stopped { stage: Stage::Exec, errno, program: index }),
            }
            index += 1;
        }
        Err(result)
    }
}

/// The environment as the kernel takes it: the last of two equal names wins, in its place.
fn environment(pairs: Vec<(ByteString, ByteString)>) -> Result<Vec<CString>, Failure> {
    let mut seen = BTreeSet::new();
    let mut kept = vec![false; pairs.len()];
    for (keep, (name, _)) in kept.iter_mut().zip(&pairs).rev() {
        if name.is_empty() {
            return Err(invalid("a variable without a name"));
        }
        if name.contains(&b'=') {
            return Err(invalid(format!("the variable name {} holds an equals sign", shown(name))));
        }
        *keep = seen.insert(name.as_slice());
    }
    let mut environment = Vec::with_capacity(pairs.len());
    for ((name, value), _) in pairs.iter().zip(kept).filter(|(_, keep)| *keep) {
        let mut variable = Vec::with_capacity(name.len() + value.len() + 2);
        variable.extend_from_slice(name);
        variable.push(b'=');
        variable.extend_from_slice(value);
        environment.push(terminated(variable, "a variable")?);
    }
    Ok(environment)
}

fn search(name: &[u8], env: &[CString]) -> Vec<CString> {
    let path = env.iter().find_map(|variable| variable.as_bytes().strip_prefix(b"PATH="));
    let places = path.unwrap_or(DEFAULT_PATH).split(|byte| *byte == b':').map(|place| {
        // An empty place is the working directory.
        let mut program = Vec::with_capacity(place.len() + name.len() + 2);
        program.extend_from_slice(if place.is_empty() { b"." } else { place });
        program.push(b'/');
        program.extend_from_slice(name);
        program
    });
    // A name with a NUL is refused as an argument.
    places.filter_map(|program| CString::new(program).ok()).collect()
}

fn terminated(bytes: Vec<u8>, what: &str) -> Result<CString, Failure> {
    CString::new(bytes).map_err(|_| invalid(format!("{what} holds a NUL byte")))
}

fn pointers<'a>(strings: impl Iterator<Item = &'a CStr>) -> Vec<*const c_char> {
    strings.map(CStr::as_ptr).chain([ptr::null()]).collect()
}

fn last_errno() -> Errno {
    // SAFETY: reads this thread's error number.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// Bytes of the request for a sentence: shortened, and without what is not text.
fn shown(bytes: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(&bytes[..bytes.len().min(256)])
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    format!("`{text}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> ByteString {
        ByteString::from(text.as_bytes().to_vec())
    }

    #[test]
    fn the_last_of_two_equal_names_wins() {
        let pairs = [("A", "1"), ("PATH", "/x::/y"), ("A", "2")].map(|(n, v)| (bytes(n), bytes(v)));
        let env = environment(pairs.to_vec()).unwrap();
        assert_eq!(env, [c"PATH=/x::/y".to_owned(), c"A=2".to_owned()]);
        assert_eq!(search(b"p", &env), [c"/x/p".to_owned(), c"./p".to_owned(), c"/y/p".to_owned()]);
        assert_eq!(search(b"p", &[]).len(), 6);
    }

    #[test]
    fn names_and_values_that_cannot_be_are_refused() {
        for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "\0")] {
            let failure = environment(vec![(bytes(name), bytes(value))]).unwrap_err();
            assert_eq!(failure.code, FailureCode::Invalid, "{name:?}");
        }
    }
}
