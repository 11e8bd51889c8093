//! The first process of a virtual machine, started by its kernel from what it unpacked: makes a root file system of the
//! machine's disks, becomes the keeper of the agent, and carries what arrives over vsock to it.
//!
//! ```text
//! keeper (root, process 1)            vsock ports, the machine's clock, its end
//!  └─ agent (the sandbox's user)      process 1 of a pid namespace of its own, confined: all that commands can see
//! ```
//!
//! The agent is the one that every other sandbox has, on a Unix socket; the keeper is to it what the host is elsewhere.

mod carry;
mod keep;
mod network;
mod root;
mod user;
mod wake;

use std::os::fd::{AsFd, OwnedFd};

use moltis_agent_protocol::machine::{AGENT_PORT, Boot, WAKE_PORT};
use rustix::io::Errno;

/// Where the kernel has this program.
const INIT: &[u8] = b"/init";

/// What could not be done, and what the kernel said.
#[derive(Debug)]
pub struct Problem {
    what: String,
    errno: Errno,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.what, self.errno)
    }
}

type Result<T> = std::result::Result<T, Problem>;

/// For `map_err`.
fn at<E: Into<std::io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Problem {
    move |error| {
        let errno = Errno::from_io_error(&error.into()).unwrap_or(Errno::INVAL);
        Problem { what: what.into(), errno }
    }
}

/// Whether a kernel has just started this program as its first process.
pub fn is_first(program: Option<&std::ffi::OsStr>) -> bool {
    std::process::id() == 1 && program.is_some_and(|program| program.as_encoded_bytes() == INIT)
}

/// Runs the machine until its end, which is the agent's.
pub fn run() -> ! {
    let problem = match begin() {
        Ok(never) => never,
        Err(problem) => problem,
    };
    // The console is what the host looks at while the machine begins.
    say(&format!("moltis-guest: {problem}\n"));
    restart()
}

fn say(text: &str) {
    let console = rustix::fs::open("/dev/console", rustix::fs::OFlags::WRONLY, rustix::fs::Mode::empty());
    match console {
        Ok(console) => drop(rustix::io::write(console, text.as_bytes())),
        Err(_) => drop(std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes())),
    }
}

/// Ends the machine. What it wrote goes with it.
fn restart() -> ! {
    // SAFETY: takes a plain number; only the kernel's first process may do it, and it ends there.
    unsafe { libc::reboot(libc::RB_AUTOBOOT) };
    // SAFETY: the end of the first process is the kernel's, whose command line says to restart then.
    unsafe { libc::_exit(1) }
}

fn begin() -> Result<Problem> {
    root::first_mounts()?;
    let line = std::fs::read_to_string("/proc/cmdline").map_err(at("/proc/cmdline"))?;
    let boot = Boot::from_command_line(&line).map_err(|what| Problem { what, errno: Errno::INVAL })?;
    root::load_modules()?;
    let random = rustix::fs::open("/dev/urandom", rustix::fs::OFlags::WRONLY, rustix::fs::Mode::empty());
    root::build(boot.overlay)?;
    let user = user::find();
    root::settle(&user, &boot)?;
    network::up(&boot)?;
    let listeners = [vsock(AGENT_PORT)?, vsock(WAKE_PORT)?];
    let (listener, address) = agent_socket().map_err(at("the agent's socket"))?;
    let agent = user::start(&user, &boot, listener)?;
    let waker = wake::Waker::new(random.ok());
    keep::until_over(listeners, address, agent, waker).map_err(at("the keeper"))?;
    restart()
}

/// A socket of this port on which the host is heard.
fn vsock(port: u32) -> Result<OwnedFd> {
    let what = || format!("vsock port {port}");
    // SAFETY: makes a descriptor that nobody else has.
    let fd = unsafe {
        libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
    };
    if fd < 0 {
        return Err(at(what())(std::io::Error::last_os_error()));
    }
    // SAFETY: it was just made.
    let socket = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) };
    // SAFETY: all-zero is a valid value of this struct of integers.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
    address.svm_port = port;
    address.svm_cid = libc::VMADDR_CID_ANY;
    let length = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
    // SAFETY: the address outlives the call and is as long as stated.
    if unsafe { libc::bind(fd, (&raw const address).cast(), length) } < 0 {
        return Err(at(what())(std::io::Error::last_os_error()));
    }
    rustix::net::listen(&socket, 4096).map_err(at(what()))?;
    Ok(socket)
}

/// A Unix socket for the agent, and how the keeper connects to it: a name that the kernel makes up. Who of the sandbox
/// connects is refused, as anywhere: it has a number in the agent's pid namespace.
fn agent_socket() -> rustix::io::Result<(OwnedFd, rustix::net::SocketAddrUnix)> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_unnamed())?;
    let address = SocketAddrUnix::try_from(rustix::net::getsockname(socket.as_fd())?)?;
    Ok((socket, address))
}
