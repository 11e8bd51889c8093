//! Agents that are the first process of a container: one of namespaces alone, or an engine's.

use std::fs::{self, File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use moltis_agent::container::{ContainerArgs, relay_args};
use moltis_agent::{RelaySecret, RelayTransport, Transport, UnixTransport};
use tokio::net::unix::pipe;

use crate::agent::guest;

const INSIDE: &str = "/.moltis/agent/agent.sock";

/// A running container. Dropping it ends it.
pub struct Container {
    /// The name of an engine's.
    name: Option<String>,
    child: Option<Child>,
    pub pid: u32,
    socket: String,
    dir: tempfile::TempDir,
    pub secret: RelaySecret,
}

pub fn arguments(socket: &str) -> ContainerArgs {
    ContainerArgs {
        socket: socket.to_owned(),
        owner: rustix::process::getuid().as_raw(),
        cwd: "/".to_owned(),
        idle: None,
        held: false,
        guards: Vec::new(),
        mounted: Vec::new(),
        rlimits: Vec::new(),
        relay: true,
        privileged: false,
        egress: true,
    }
}

impl Container {
    /// One of namespaces alone, whose user is root inside; `None` where there are none.
    pub fn of_namespaces() -> Option<Self> {
        let unshare =
            ["--user", "--map-root-user", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child"];
        let can = Command::new("unshare").args(unshare).arg("true").stderr(Stdio::null()).status();
        if !can.is_ok_and(|status| status.success()) {
            moltis_testkit::need::skip("relays in namespaces", "unshare makes none here");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock").to_str().unwrap().to_owned();
        let args = ContainerArgs { owner: 0, ..arguments(&socket) };
        let mut command = Command::new("unshare");
        command.args(unshare).arg(guest()).args(args.to_args()).stdin(Stdio::null());
        let child = command.spawn().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let pid = within(|| fs::read_to_string(&children).unwrap().trim().parse().ok());
        let secret = RelaySecret::generate().unwrap();
        let container = Self { name: None, child: Some(child), pid, socket, dir, secret };
        container.wait();
        Some(container)
    }

    /// One of Docker's, hardened as a backend would; `None` where there is no Docker.
    pub fn of_docker(image: &str, flags: &[&str], change: impl FnOnce(&mut ContainerArgs)) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let image = format!("localhost/sandbox-base:{image}");
        let known = docker(&["image", "inspect", "--format", "ok", &image]);
        if known.is_err() {
            // An ordinary user may be a stranger to Docker: it is root's, and the same containers are tried as root.
            if moltis_testkit::need::root() {
                moltis_testkit::need::skip(
                    "containers of Docker",
                    &format!("there is no Docker with {image}"),
                );
            }
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let agent = dir.path().join("agent");
        fs::create_dir(&agent).unwrap();
        fs::set_permissions(&agent, Permissions::from_mode(0o1777)).unwrap();
        let binary = dir.path().join("guest");
        fs::copy(guest(), &binary).unwrap();
        fs::set_permissions(&binary, Permissions::from_mode(0o555)).unwrap();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("moltis-agent-test-{}-{number}", std::process::id());
        let mut args = arguments(INSIDE);
        change(&mut args);
        let mut run: Vec<String> = [
            "run",
            "--detach",
            "--rm",
            "--name",
            &name,
            "--network",
            "none",
            "--read-only",
            "--user",
            "1000:1000",
            "--cap-drop",
            "ALL",
            "--security-opt",
            "no-new-privileges",
            "--tmpfs",
            "/tmp:mode=1777",
            "--entrypoint",
            "/.moltis/guest",
            "--volume",
        ]
        .map(str::to_owned)
        .to_vec();
        run.push(format!("{}:/.moltis/guest:ro", binary.display()));
        run.extend(["--volume".to_owned(), format!("{}:/.moltis/agent", agent.display())]);
        run.extend(flags.iter().map(|flag| (*flag).to_owned()));
        run.push(image);
        run.extend(args.to_args());
        docker(&run.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        let pid = docker(&["inspect", "--format", "{{.State.Pid}}", &name]).unwrap().parse().unwrap();
        let secret = RelaySecret::generate().unwrap();
        let container = Self { name: Some(name), child: None, pid, socket: INSIDE.to_owned(), dir, secret };
        container.wait();
        Some(container)
    }

    fn wait(&self) {
        within(|| self.socket_transport().ok());
    }

    fn socket_transport(&self) -> moltis_agent::error::Result<UnixTransport> {
        let directory =
            self.name.as_ref().map_or(self.dir.path().to_owned(), |_| self.dir.path().join("agent"));
        UnixTransport::open(File::open(directory).unwrap(), "agent.sock", self.pid)
    }

    pub fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.socket_transport().unwrap())
    }

    /// A relay that runs as this user where an engine runs it; the process that carries it here.
    pub fn relay_as(&self, user: &str, secret: &RelaySecret) -> (RelayTransport, Child) {
        let mut command = match &self.name {
            Some(name) => {
                let mut command = Command::new("docker");
                command.args(["exec", "--interactive", "--user", user, name, "/.moltis/guest"]);
                command
            }
            None => {
                let mut command = Command::new("nsenter");
                command.args(["--target", &self.pid.to_string(), "--user", "--pid", "--mount"]);
                command.arg("--preserve-credentials").arg(guest());
                command
            }
        };
        command
            .args(relay_args(&self.socket))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let writer = pipe::Sender::from_owned_fd(OwnedFd::from(child.stdin.take().unwrap())).unwrap();
        let reader = pipe::Receiver::from_owned_fd(OwnedFd::from(child.stdout.take().unwrap())).unwrap();
        (RelayTransport::new(reader, writer, secret), child)
    }

    /// A relay that works.
    pub async fn relay(&self) -> (Arc<RelayTransport>, Carrier) {
        let (relay, child) = self.relay_as("0:0", &self.secret);
        relay.ready(Duration::from_secs(20)).await.unwrap();
        (Arc::new(relay), Carrier(child))
    }

    /// Whether it has ended; an engine's is gone then.
    pub fn has_ended(&mut self) -> bool {
        match &mut self.child {
            Some(child) => child.try_wait().unwrap().is_some(),
            None => !std::path::Path::new(&format!("/proc/{}", self.pid)).exists(),
        }
    }

    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        match (&mut self.child, &self.name) {
            (Some(child), _) => {
                // It takes the agent along.
                let _ = child.kill();
                let _ = child.wait();
            }
            (None, Some(name)) => {
                let _ = docker(&["rm", "--force", name]);
            }
            (None, None) => {}
        }
    }
}

/// The process here that carries a relay.
pub struct Carrier(pub Child);

impl Drop for Carrier {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the command line tool.
pub fn docker(args: &[&str]) -> Result<String, String> {
    let output =
        Command::new("docker").args(args).stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

pub fn within<T>(mut check: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < until, "not within 30 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}
