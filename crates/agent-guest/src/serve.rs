//! PID 1: accepts connections, judges peers, starts one process for each operation, reaps, and keeps the idle clock.

use std::ffi::OsString;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

/// How to serve one sandbox.
#[derive(Debug)]
pub struct ServeConfig {
    /// A bound Unix stream socket; the agent calls `listen`, so that the host sees the agent as its peer.
    pub listener: OwnedFd,
    /// A pipe whose end of file ends the sandbox.
    pub lifeline: Option<OwnedFd>,
    /// Time without use after which the agent ends the sandbox.
    pub idle: Option<Duration>,
    /// A pipe that gets one byte once the agent listens.
    pub ready: Option<OwnedFd>,
    /// Directory of commands that name none. Absolute.
    pub cwd: Vec<u8>,
    /// Who may connect.
    pub peers: PeerRule,
    /// OOM score adjustment of the agent and of everything it starts; a higher one that it has already is kept.
    pub oom_score_adj: i32,
}

/// Who may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRule {
    /// The owner's user id as the agent sees it; root may connect too.
    pub owner: u32,
    /// Whether the peer must be outside the agent's own pid namespace. An owner whose id has no mapping inside then
    /// reads as the overflow uid, which is accepted.
    pub outside: bool,
}

/// OOM score adjustment where nothing else is asked: commands go before anything of the host.
pub const OOM_SCORE_ADJ: i32 = 500;

impl ServeConfig {
    /// Reads the arguments of mode `serve`, in which the agent is a plain process without namespaces.
    ///
    /// # Errors
    /// One sentence that names the argument.
    pub fn from_args(args: &[OsString]) -> Result<Self, String> {
        let mut listener = None;
        let mut lifeline = None;
        let mut idle = None;
        let mut ready = None;
        let mut cwd = b"/".to_vec();
        let mut owner = rustix::process::getuid().as_raw();
        let mut args = args.iter();
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{} needs a value", name.display()))?;
            match name.as_bytes() {
                b"--listener" => listener = Some(number(name, value)?),
                b"--lifeline" => lifeline = Some(number(name, value)?),
                b"--ready" => ready = Some(number(name, value)?),
                b"--idle" => idle = Some(number::<u64>(name, value)?),
                b"--cwd" => cwd = value.clone().into_vec(),
                b"--owner" => owner = number(name, value)?,
                _ => return Err(format!("unknown argument {}", name.display())),
            }
        }
        if !cwd.starts_with(b"/") {
            return Err("--cwd must be absolute".into());
        }
        Ok(Self {
            listener: inherited(listener.ok_or("--listener is needed")?)?,
            lifeline: lifeline.map(inherited).transpose()?,
            idle: idle.filter(|millis| *millis > 0).map(Duration::from_millis),
            ready: ready.map(inherited).transpose()?,
            cwd,
            peers: PeerRule { owner, outside: false },
            oom_score_adj: OOM_SCORE_ADJ,
        })
    }
}

fn number<T: std::str::FromStr>(name: &OsString, value: &OsString) -> Result<T, String> {
    let text = value.to_str().and_then(|text| text.parse().ok());
    text.ok_or_else(|| format!("{} is not a number: {}", name.display(), value.display()))
}

fn inherited(fd: RawFd) -> Result<OwnedFd, String> {
    // SAFETY: reads a flag only; a number that is not open is an error.
    if fd < 3 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(format!("descriptor {fd} is not open"));
    }
    // SAFETY: the descriptor is open, was handed to this program by name, and is taken here once.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Serves until the sandbox ends. Never returns: the process ends with it.
pub fn run(_config: ServeConfig) -> ! {
    std::process::exit(70)
}
