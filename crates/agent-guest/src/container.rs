//! Mode `container`: the agent as the first process of a container that an engine has made. It confines itself and
//! everything that it will start, and only then puts its socket where the host finds it.

mod mounted;
mod socket;

use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use crate::agent::Agent;
use crate::guarded::Guarded;
use crate::launch::errno_of;
use crate::peer::PeerRule;
use crate::rlimits::CommandLimits;
use crate::serve::{self, CANNOT_SERVE, OOM_SCORE_ADJ, ServeConfig};
use crate::{confine, filter, startup};
use mounted::Mounted;
use rustix::io::Errno;
pub use socket::Socket;

/// Time within which somebody must hold a sandbox whose lifetime is `held`.
const HELD_WITHIN: Duration = Duration::from_secs(60);

/// How to serve a container.
#[derive(Debug)]
pub struct ContainerConfig {
    socket: Vec<u8>,
    owner: u32,
    idle: Option<Duration>,
    cwd: Vec<u8>,
    held: bool,
    relay: bool,
    privileged: bool,
    egress: bool,
    guards: Vec<Vec<u8>>,
    mounted: Vec<Mounted>,
    limits: CommandLimits,
}

impl ContainerConfig {
    /// Reads the arguments:
    ///
    /// ```text
    /// --socket PATH           the socket to listen on; its directory is a mount that the host sees
    /// --owner UID             who may connect from outside, besides root
    /// --cwd DIR               where commands run that name no directory
    /// --idle MILLIS           time without use after which the sandbox ends; 0 for never
    /// --lifetime held         the sandbox ends with the connection that holds it
    /// --guard DIR             a mount that must be in its place whenever something is done
    /// --mounted DEV:INO:PATH  what must be found there
    /// --rlimit NAME=VALUE     a limit of every command
    /// --relay                 a relay inside may connect
    /// --privileged            keep capabilities and system calls, for nested containers
    /// --egress                keep a proxy port on the loopback, which is the container's own
    /// ```
    ///
    /// # Errors
    /// One sentence that names the argument.
    pub fn from_args(args: &[OsString]) -> Result<Self, String> {
        let (mut socket, mut owner) = (None, None);
        let mut config = Self {
            socket: Vec::new(),
            owner: 0,
            idle: None,
            cwd: b"/".to_vec(),
            held: false,
            relay: false,
            privileged: false,
            egress: false,
            guards: Vec::new(),
            mounted: Vec::new(),
            limits: CommandLimits::default(),
        };
        let absolute = |name: &OsString, value: &OsString| match value.as_bytes().starts_with(b"/") {
            true => Ok(value.clone().into_vec()),
            false => Err(format!("{} must be absolute: {}", name.display(), value.display())),
        };
        let mut args = args.iter();
        while let Some(name) = args.next() {
            match name.as_bytes() {
                b"--relay" => config.relay = true,
                b"--privileged" => config.privileged = true,
                b"--egress" => config.egress = true,
                _ => {
                    let value = args.next().ok_or_else(|| format!("{} needs a value", name.display()))?;
                    match name.as_bytes() {
                        b"--socket" => socket = Some(absolute(name, value)?),
                        b"--owner" => owner = Some(serve::number(name, value)?),
                        b"--cwd" => config.cwd = absolute(name, value)?,
                        b"--guard" => config.guards.push(absolute(name, value)?),
                        b"--mounted" => config
                            .mounted
                            .push(Mounted::parse(value.as_bytes()).ok_or_else(|| {
                                format!("--mounted has no such value: {}", value.display())
                            })?),
                        b"--idle" => {
                            let millis: u64 = serve::number(name, value)?;
                            config.idle =
                                Some(millis).filter(|millis| *millis > 0).map(Duration::from_millis);
                        }
                        b"--lifetime" if value.as_bytes() == b"held" => config.held = true,
                        b"--lifetime" => {
                            return Err(format!("--lifetime has no such value: {}", value.display()));
                        }
                        _ if config.limits.argument(name, value)? => {}
                        _ => return Err(format!("unknown argument {}", name.display())),
                    }
                }
            }
        }
        config.socket = socket.ok_or("--socket is needed")?;
        config.owner = owner.ok_or("--owner is needed")?;
        Ok(config)
    }
}

/// Serves until the sandbox ends; as the first process it takes the sandbox along. Returns only when serving could not
/// begin, after having said why.
pub fn run(config: ContainerConfig) -> i32 {
    match begin(config) {
        Ok(mut agent) => {
            let code = agent.serve();
            // SAFETY: ends the process without running anything of it.
            unsafe { libc::_exit(code) }
        }
        Err(problem) => {
            // Where nobody reads it, it is lost, and that is no reason to panic.
            let _ = io::Write::write_all(&mut io::stderr(), format!("moltis-guest: {problem}\n").as_bytes());
            CANNOT_SERVE
        }
    }
}

/// Everything before the first connection. What is said of a failure is read in the engine's log; so the standard
/// streams are let go last.
fn begin(config: ContainerConfig) -> Result<Agent, String> {
    if std::process::id() != 1 {
        return Err(format!(
            "this must be the first process of its container, and is process {}",
            std::process::id()
        ));
    }
    startup::close_all_but(&[]).map_err(|error| about("the inherited descriptors", error))?;
    serve::settle(OOM_SCORE_ADJ).map_err(|error| about("/proc/self/oom_score_adj", error))?;
    mounted::see(&config.mounted)?;
    let guarded = config.guards.iter().map(|path| guard(path)).collect::<Result<_, _>>()?;
    let shown = String::from_utf8_lossy(&config.socket).into_owned();
    let socket = |errno| about(&format!("the socket {shown}"), errno);
    let (socket_file, listener) = Socket::bind(&config.socket).map_err(socket)?;
    rustix::process::chdir("/").map_err(|errno| about("/", errno))?;
    if !config.privileged {
        confine().map_err(|fault| {
            about(&String::from_utf8_lossy(&fault.what), Errno::from_raw_os_error(fault.errno))
        })?;
    }
    let agent = Agent::new(ServeConfig {
        listener,
        lifeline: None,
        idle: config.idle,
        ready: None,
        cwd: config.cwd,
        peers: PeerRule { owner: config.owner, outside: true, relay: config.relay },
        oom_score_adj: OOM_SCORE_ADJ,
        limits: config.limits,
        roots: None,
        guarded,
        held_within: config.held.then_some(HELD_WITHIN),
        egress: config.egress,
    });
    let agent = agent.map_err(|error| socket(errno_of(&error)))?;
    // From here on the host finds it.
    socket_file.publish().map_err(socket)?;
    startup::quiet_stdio().map_err(|error| about("the standard streams", error))?;
    Ok(agent)
}

/// The seccomp filter comes last, since it forbids some of the rest.
pub fn confine() -> Result<(), moltis_agent_protocol::launch::Fault> {
    use moltis_agent_protocol::launch::Stage;

    use crate::launch::{At, fault};

    rustix::thread::set_no_new_privs(true).at(Stage::Capabilities, "no_new_privs")?;
    confine::require_no_capabilities()?;
    confine::scope()?;
    let program = filter::program()
        .ok_or_else(|| fault(Stage::Seccomp, "a system call filter for this architecture", Errno::NOSYS))?;
    confine::seccomp(&program)
}

fn guard(path: &[u8]) -> Result<Guarded, String> {
    let shown = String::from_utf8_lossy(path);
    Guarded::mounted(path).map_err(|errno| match errno {
        Errno::NXIO => format!("{shown} is guarded and no mount"),
        errno => about(&format!("{shown}, which is guarded"), errno),
    })
}

fn about(what: &str, problem: impl Display) -> String {
    format!("{what}: {problem}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<ContainerConfig, String> {
        ContainerConfig::from_args(&args.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_are_read_and_wrong_ones_refused_by_name() {
        let config = parse(&[
            "--socket",
            "/a/b",
            "--owner",
            "7",
            "--idle",
            "5",
            "--cwd",
            "/w",
            "--lifetime",
            "held",
            "--guard",
            "/g",
            "--guard",
            "/h",
            "--relay",
            "--egress",
            "--mounted",
            "3:4:/m:x",
            "--rlimit",
            "core=0",
        ])
        .unwrap();
        assert_eq!((&config.socket[..], config.owner, &config.cwd[..]), (&b"/a/b"[..], 7, &b"/w"[..]));
        assert_eq!(config.idle, Some(Duration::from_millis(5)));
        assert_eq!((config.held, config.relay, config.privileged, config.egress), (true, true, false, true));
        assert_eq!(config.guards, [b"/g", b"/h"]);
        assert_eq!(config.mounted, [Mounted::parse(b"3:4:/m:x").unwrap()]);
        assert_eq!(config.limits.of(0).len(), 1);
        for (args, names) in [
            (&[][..], "--socket"),
            (&["--socket", "/a"], "--owner"),
            (&["--socket", "a"], "--socket"),
            (&["--guard", "g"], "--guard"),
            (&["--mounted", "1:/m"], "--mounted"),
            (&["--mounted", "1:2:m"], "--mounted"),
            (&["--lifetime", "forever"], "--lifetime"),
            (&["--idle", "x"], "--idle"),
            (&["--idle"], "--idle"),
            (&["--rlimit", "x=1"], "--rlimit"),
            (&["--what", "1"], "--what"),
        ] {
            assert!(parse(args).unwrap_err().contains(names), "{args:?}");
        }
    }
}
