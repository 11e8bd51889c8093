//! How to serve one sandbox, and the beginning and the end of it. What happens in between is `agent`.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use crate::agent::Agent;
use crate::files::roots::{self, Root};
use crate::guarded::Guarded;
pub use crate::peer::PeerRule;
use crate::rlimits::CommandLimits;
use crate::startup;

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
    /// Limits of every command.
    pub limits: CommandLimits,
    /// The only folders that file operations may reach; absent: all that the agent may.
    pub roots: Option<Vec<Root>>,
    /// Mounts that must be in their places whenever something is done.
    pub guarded: Vec<Guarded>,
    /// Time within which somebody must hold the sandbox.
    pub held_within: Option<Duration>,
    /// Whether to keep a proxy port on the loopback, which must be the sandbox's own.
    pub egress: bool,
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
        let mut limits = CommandLimits::default();
        let mut roots = None;
        let mut egress = false;
        let mut args = args.iter();
        while let Some(name) = args.next() {
            if name == "--egress" {
                egress = true;
                continue;
            }
            let value = args.next().ok_or_else(|| format!("{} needs a value", name.display()))?;
            match name.as_bytes() {
                b"--listener" => listener = Some(number(name, value)?),
                b"--lifeline" => lifeline = Some(number(name, value)?),
                b"--ready" => ready = Some(number(name, value)?),
                b"--idle" => idle = Some(number::<u64>(name, value)?),
                b"--cwd" => cwd = value.clone().into_vec(),
                b"--owner" => owner = number(name, value)?,
                b"--root" => {
                    let root = Root::parse(value.as_bytes())
                        .ok_or_else(|| format!("--root has no such value: {}", value.display()))?;
                    roots.get_or_insert_with(Vec::new).push(root);
                }
                _ if limits.argument(name, value)? => {}
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
            peers: PeerRule { owner, outside: false, relay: false },
            oom_score_adj: OOM_SCORE_ADJ,
            limits,
            roots,
            guarded: Vec::new(),
            held_within: None,
            egress,
        })
    }
}

pub(crate) fn number<T: std::str::FromStr>(name: &OsString, value: &OsString) -> Result<T, String> {
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

/// Exit code when serving could not begin.
pub const CANNOT_SERVE: i32 = 70;

/// Serves until the sandbox ends. Never returns: the process ends with it, and as PID 1 it takes the sandbox along.
pub fn run(config: ServeConfig) -> ! {
    let code = match begin(config) {
        Ok(mut agent) => agent.serve(),
        // There is nobody to tell: the reader of `ready` sees its end instead of a byte.
        Err(_) => CANNOT_SERVE,
    };
    // SAFETY: ends the process without running anything of it.
    unsafe { libc::_exit(code) }
}

/// What every served sandbox's first process is like, and everything that it starts.
///
/// # Errors
/// When the OOM score adjustment cannot be set.
pub fn settle(oom_score_adj: i32) -> io::Result<()> {
    startup::reset_signals();
    startup::keep_memory_small();
    startup::raise_oom_score(oom_score_adj)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    Ok(())
}

fn begin(config: ServeConfig) -> io::Result<Agent> {
    startup::forbid_inspection()?;
    startup::null_stdio()?;
    let named = [Some(&config.listener), config.lifeline.as_ref(), config.ready.as_ref()];
    let guarded = config.guarded.iter().map(AsRawFd::as_raw_fd);
    let named: Vec<RawFd> = named.into_iter().flatten().map(AsRawFd::as_raw_fd).chain(guarded).collect();
    startup::close_all_but(&named)?;
    settle(config.oom_score_adj)?;
    if std::process::id() != 1 {
        rustix::process::set_child_subreaper(Some(rustix::process::Pid::INIT))?;
    }
    rustix::process::chdir("/")?;
    if let Some(folders) = &config.roots {
        roots::confine(folders.clone());
    }
    Agent::new(config)
}
