//! Mode `login`: the agent as a plain process of the user that somebody logged in as, in a machine whose first process is
//! not ours. It confines itself as the first process of a container does, and lives on when the login ends.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use rustix::io::Errno;

use crate::agent::Agent;
use crate::container::{Socket, confine};
use crate::launch::errno_of;
use crate::peer::PeerRule;
use crate::rlimits::CommandLimits;
use crate::serve::{self, CANNOT_SERVE, OOM_SCORE_ADJ, ServeConfig};
use crate::startup;

/// Time within which somebody must hold a sandbox whose lifetime is `held`.
const HELD_WITHIN: Duration = Duration::from_secs(60);

/// What the process that serves says once it does.
const SERVES: &[u8] = b"\x01";

/// How to serve.
#[derive(Debug, Default)]
pub struct LoginConfig {
    socket: Vec<u8>,
    cwd: Vec<u8>,
    held: bool,
    egress: bool,
    limits: CommandLimits,
}

impl LoginConfig {
    /// Reads the arguments:
    ///
    /// ```text
    /// --socket PATH           the socket to listen on, in a directory of this user's alone
    /// --cwd DIR               where commands run that name no directory
    /// --lifetime held         the sandbox ends with the connection that holds it
    /// --rlimit NAME=VALUE     a limit of every command; --pids and others as `serve` has them
    /// --egress                keep a proxy port on the loopback, which is the machine's own
    /// ```
    ///
    /// # Errors
    /// One sentence that names the argument.
    pub fn from_args(args: &[OsString]) -> Result<Self, String> {
        let mut config = Self { cwd: b"/".to_vec(), ..Self::default() };
        let absolute = |name: &OsString, value: &OsString| match value.as_bytes().starts_with(b"/") {
            true => Ok(value.clone().into_vec()),
            false => Err(format!("{} must be absolute: {}", name.display(), value.display())),
        };
        let mut args = args.iter();
        while let Some(name) = args.next() {
            if name == "--egress" {
                config.egress = true;
                continue;
            }
            let value = args.next().ok_or_else(|| format!("{} needs a value", name.display()))?;
            match name.as_bytes() {
                b"--socket" => config.socket = absolute(name, value)?,
                b"--cwd" => config.cwd = absolute(name, value)?,
                b"--lifetime" if value.as_bytes() == b"held" => config.held = true,
                _ if config.limits.argument(name, value)? => {}
                _ => return Err(format!("unknown argument {} {}", name.display(), value.display())),
            }
        }
        if config.socket.is_empty() {
            return Err("--socket is needed".into());
        }
        Ok(config)
    }
}

/// Starts the process that serves, and returns once it does, or after having said why it does not.
pub fn run(config: LoginConfig) -> i32 {
    match start(config) {
        Ok(()) => 0,
        Err(problem) => {
            let _ = io::stderr().write_all(format!("moltis-guest: {problem}\n").as_bytes());
            CANNOT_SERVE
        }
    }
}

fn start(config: LoginConfig) -> Result<(), String> {
    if rustix::process::geteuid().is_root() {
        return Err("it serves an ordinary user, and this is root".into());
    }
    let (mut told, tell) = io::pipe().map_err(|error| about("a pipe", error))?;
    // SAFETY: this program has one thread, so that the child is as whole as its parent.
    match unsafe { libc::fork() } {
        -1 => Err(about("a process", io::Error::last_os_error())),
        0 => {
            drop(told);
            let code = match begin(config, &tell) {
                Ok(mut agent) => {
                    drop(tell);
                    agent.serve()
                }
                Err(problem) => {
                    let _ = (&tell).write_all(problem.as_bytes());
                    CANNOT_SERVE
                }
            };
            // SAFETY: ends the process without running anything of it.
            unsafe { libc::_exit(code) }
        }
        _ => {
            drop(tell);
            let mut said = Vec::new();
            told.read_to_end(&mut said).map_err(|error| about("the agent", error))?;
            match said == SERVES {
                true => Ok(()),
                false if said.is_empty() => Err("the agent ended at once".into()),
                false => Err(String::from_utf8_lossy(&said).into_owned()),
            }
        }
    }
}

/// Everything before the first connection, in the process that stays.
fn begin(config: LoginConfig, tell: &io::PipeWriter) -> Result<Agent, String> {
    rustix::process::setsid().map_err(|errno| about("a session of its own", errno))?;
    startup::forbid_inspection().map_err(|error| about("this process", error))?;
    startup::quiet_stdio().map_err(|error| about("the standard streams", error))?;
    startup::close_all_but(&[tell.as_raw_fd()]).map_err(|error| about("the inherited descriptors", error))?;
    serve::settle(OOM_SCORE_ADJ).map_err(|error| about("/proc/self/oom_score_adj", error))?;
    rustix::process::set_child_subreaper(Some(rustix::process::Pid::INIT))
        .map_err(|errno| about("what is left of commands", errno))?;
    let shown = String::from_utf8_lossy(&config.socket).into_owned();
    let socket = |errno| about(&format!("the socket {shown}"), errno);
    let (socket_file, listener) = Socket::bind(&config.socket).map_err(socket)?;
    rustix::process::chdir("/").map_err(|errno| about("/", errno))?;
    confine().map_err(|fault| {
        about(&String::from_utf8_lossy(&fault.what), Errno::from_raw_os_error(fault.errno))
    })?;
    let agent = Agent::new(ServeConfig {
        listener,
        lifeline: None,
        idle: None,
        ready: None,
        cwd: config.cwd,
        peers: PeerRule { owner: rustix::process::getuid().as_raw(), outside: false, relay: false },
        oom_score_adj: OOM_SCORE_ADJ,
        limits: config.limits,
        roots: None,
        guarded: Vec::new(),
        held_within: config.held.then_some(HELD_WITHIN),
        egress: config.egress,
    });
    let agent = agent.map_err(|error| socket(errno_of(&error)))?;
    socket_file.publish().map_err(socket)?;
    let mut tell = tell;
    tell.write_all(SERVES).map_err(|error| about("whoever started it", error))?;
    Ok(agent)
}

fn about(what: &str, problem: impl Display) -> String {
    format!("{what}: {problem}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_and_wrong_ones_refused_by_name() {
        let parse =
            |args: &[&str]| LoginConfig::from_args(&args.iter().map(OsString::from).collect::<Vec<_>>());
        let config = parse(&["--socket", "/a/s", "--cwd", "/h", "--lifetime", "held", "--egress"]).unwrap();
        assert_eq!((&config.socket[..], &config.cwd[..]), (&b"/a/s"[..], &b"/h"[..]));
        assert_eq!((config.held, config.egress), (true, true));
        for (args, names) in [
            (&[][..], "--socket"),
            (&["--socket", "a"], "--socket"),
            (&["--lifetime", "long"], "--lifetime"),
            (&["--what", "1"], "--what"),
        ] {
            assert!(parse(args).unwrap_err().contains(names), "{args:?}");
        }
    }
}
