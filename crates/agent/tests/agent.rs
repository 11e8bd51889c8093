//! Agents to talk to: the embedded guest in plain mode, on a socket in a temporary directory.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use moltis_agent::client::Patience;
use moltis_agent::{AgentSandbox, Closer, Place, Transport, UnixTransport, binary};
use moltis_sandbox::{
    Command as Line, Exec, ExecEvent, ExecRequest, GuestPath, Outcome, Result, SandboxId, SessionKey,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The guest, extracted once for all tests, into the build's own folder for such things.
pub fn guest() -> &'static Path {
    static GUEST: OnceLock<PathBuf> = OnceLock::new();
    GUEST.get_or_init(|| {
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache");
        binary::extract(&cache).unwrap()
    })
}

/// A running agent. Dropping it ends it and all that it started.
pub struct Agent {
    child: Child,
    lifeline: Option<OwnedFd>,
    pub dir: tempfile::TempDir,
}

pub struct Nothing;

#[async_trait]
impl Closer for Nothing {
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

impl Agent {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// The same with more arguments.
    pub fn with(arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let flags = SocketFlags::CLOEXEC;
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(dir.path().join("agent.sock")).unwrap()).unwrap();
        let (their_lifeline, lifeline) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let (ready, their_ready) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let mut command = Command::new(guest());
        command.arg("serve").args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut given = Vec::new();
        for (name, fd) in
            [("--listener", &listener), ("--lifeline", &their_lifeline), ("--ready", &their_ready)]
        {
            command.arg(name).arg(fd.as_raw_fd().to_string());
            given.push(fd.as_raw_fd());
        }
        // SAFETY: between fork and exec only flags of descriptors are cleared.
        unsafe {
            command.pre_exec(move || {
                for fd in &given {
                    let fd = std::os::fd::BorrowedFd::borrow_raw(*fd);
                    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        drop((listener, their_lifeline, their_ready));
        assert_eq!(rustix::io::read(&ready, &mut [0]), Ok(1), "the agent did not begin to listen");
        Self { child, lifeline: Some(lifeline), dir }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn transport(&self) -> Arc<dyn Transport> {
        let directory = File::open(self.dir.path()).unwrap();
        Arc::new(UnixTransport::open(&directory, "agent.sock", self.pid()).unwrap())
    }

    pub fn sandbox(&self) -> AgentSandbox {
        sandbox(self.transport(), Patience::default())
    }

    /// Kilobytes resident, of the agent and of what it started.
    pub fn resident(&self) -> u64 {
        let mut all = vec![self.pid()];
        let mut at = 0;
        while at < all.len() {
            let children = format!("/proc/{0}/task/{0}/children", all[at]);
            let children = std::fs::read_to_string(children).unwrap_or_default();
            all.extend(children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap()));
            at += 1;
        }
        all.into_iter().map(resident).sum()
    }

    /// Ends it and waits.
    pub fn end(&mut self) {
        self.lifeline = None;
        self.child.wait().unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
    }
}

/// Kilobytes resident that are a process's own.
pub fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.map_or(0, |line| line.trim().trim_end_matches(" kB").parse().unwrap())
}

pub fn sandbox(transport: Arc<dyn Transport>, patience: Patience) -> AgentSandbox {
    let id = SandboxId::of(&SessionKey::new("agent test").unwrap());
    let place = Place {
        env: vec![("PATH".into(), "/usr/bin:/bin".into()), ("HOME".into(), "/".into())],
        cwd: GuestPath::new("/"),
        shell: "/bin/sh".into(),
    };
    AgentSandbox::new(id, true, place, transport, Box::new(Nothing)).with_patience(patience)
}

pub fn sh(line: &str) -> ExecRequest {
    ExecRequest::new(Line::Shell(line.into()))
}

pub fn path(path: &Path) -> GuestPath {
    use std::os::unix::ffi::OsStrExt;
    GuestPath::new(path.as_os_str().as_bytes()).unwrap()
}

/// All that a command wrote, and its end.
pub async fn collect(mut exec: Exec) -> Result<(Vec<u8>, Vec<u8>, Outcome)> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(event) = exec.events.next().await {
        match event? {
            ExecEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
            ExecEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
            ExecEvent::Exit(outcome) => {
                assert!(exec.events.next().await.is_none(), "nothing comes after the end");
                return Ok((stdout, stderr, outcome));
            }
            ExecEvent::Started(_) | ExecEvent::Missed { .. } => {}
        }
    }
    panic!("no end");
}

/// Runs one test of this binary in a process of its own.
pub fn alone(test: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    print!("{said}");
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// Waits until something is so.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..600 {
        if is_so() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("it did not come to be that {what}");
}
