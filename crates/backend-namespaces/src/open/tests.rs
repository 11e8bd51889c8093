//! Real connectors in a world of their own: a network namespace stands for the host, a second one behind a veth for
//! the rest of the world. As root and as an ordinary user. Needs root, `ip`, and the connectors.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::process::Child;
use std::time::Instant;

use super::*;

const ROLE: &str = "MOLTIS_TEST_OPEN";
/// The world's address: the "host's" default gateway.
const WORLD: &str = "198.18.0.2";
const WORLD_PORT: u16 = 7777;
/// The "host's" servers: on its loopback, and on all its addresses.
const HOST_PORTS: [(&str, u16); 2] = [("127.0.0.1", 7778), ("0.0.0.0", 7779)];

#[test]
fn the_nameserver_is_of_a_version_that_the_host_resolves_by() {
    let cases = [
        ("", "169.254.1.1"),
        ("nameserver 127.0.0.53\n", "169.254.1.1"),
        ("nameserver fe80::1%eth0\nnameserver 10.0.0.1\n", "169.254.1.1"),
        ("# x\n nameserver fe80::1%eth0\n", "fd6d:6f6c:7469::53"),
    ];
    for (text, expected) in cases {
        assert_eq!(nameserver(Kind::Pasta, text).to_string(), expected, "{text}");
        assert_eq!(nameserver(Kind::Slirp4netns, text).to_string(), "10.0.2.3");
    }
}

#[test]
fn programs_are_found_in_absolute_directories_only() {
    let directory = tempfile::tempdir().unwrap();
    let found = |path: &Path| Connector::find(path.as_os_str()).map(|c| (c.kind, c.path));
    assert_eq!(found(directory.path()), None);
    for kind in [Kind::Slirp4netns, Kind::Pasta] {
        let program = directory.path().join(kind.program());
        std::fs::write(&program, "").unwrap();
        assert_ne!(found(directory.path()).map(|f| f.0), Some(kind), "it is not executable");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(found(directory.path()), Some((kind, program)));
    }
    assert_eq!(found(Path::new(".")), None);
}

#[test]
fn without_a_connector_it_is_refused_with_the_package_to_install() {
    let error = Connector::missing();
    assert!(matches!(error, Error::Refused(_)));
    assert_eq!(error.code(), "open-needs-pasta");
    let fix = error.diagnosis().fix.clone().unwrap();
    assert!(fix.contains("passt") && fix.contains("trusted_domains = [\"*\"]"), "{fix}");
    assert!(!Connector::promise(None).is_held());
}

#[test]
fn pasta_as_root() {
    stage(Kind::Pasta, false);
}

#[test]
fn pasta_as_an_ordinary_user() {
    stage(Kind::Pasta, true);
}

#[test]
fn slirp4netns_as_root() {
    stage(Kind::Slirp4netns, false);
}

#[test]
fn slirp4netns_as_an_ordinary_user() {
    stage(Kind::Slirp4netns, true);
}

/// Sets the scene and plays it: this test binary again, in namespaces that take everything with them when they end.
fn stage(kind: Kind, ordinary: bool) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).any(|d| d.join(kind.program()).exists());
    if !rustix::process::geteuid().is_root() || !installed {
        eprintln!("not tried: needs root and {}", kind.program());
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let binary = directory.path().join("moltis-test");
    std::fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    let drop = if ordinary {
        // As on most machines: everybody may open the device.
        "mount -t tmpfs none /dev/net; mknod /dev/net/tun c 10 200; chmod 666 /dev/net/tun; \
         exec setpriv --reuid 65534 --regid 65534 --clear-groups"
    } else {
        "exec"
    };
    let script = format!(
        "set -e; ip link set lo up
         mkfifo {dir}/ready
         {ROLE}=world unshare --net sh -c 'echo > {dir}/ready; read go < {dir}/ready; ip link set lo up; \
             ip addr add {WORLD}/24 dev veth1; ip link set veth1 up; exec \"$@\"' sh {test} &
         read up < {dir}/ready
         ip link add veth0 type veth peer name veth1 netns $!
         ip addr add 198.18.0.1/24 dev veth0; ip link set veth0 up
         echo > {dir}/ready
         ip route add default via {WORLD}
         {drop} {test}",
        dir = directory.path().display(),
        test = format_args!("{} --exact open::tests::play --nocapture", binary.display()),
    );
    let output = Command::new("unshare")
        .args(["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", &script])
        .env(ROLE, kind.program())
        .env("MOLTIS_TEST_DIRECTORY", directory.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    eprintln!("{}", text.lines().filter(|line| line.starts_with("measured")).collect::<Vec<_>>().join("\n"));
    assert!(
        text.contains("PLAYED") && output.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Not a test by itself: the roles that [`stage`] gives.
#[test]
fn play() {
    let Ok(role) = std::env::var(ROLE) else { return };
    if role == "world" {
        serve(&TcpListener::bind((WORLD, WORLD_PORT)).unwrap(), "world");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(play_host(&role));
    println!("PLAYED");
}

fn serve(listener: &TcpListener, word: &str) -> ! {
    loop {
        if let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(word.as_bytes());
        }
    }
}

async fn play_host(program: &str) {
    for at in HOST_PORTS {
        let listener = TcpListener::bind(at).unwrap();
        std::thread::spawn(move || serve(&listener, "host"));
    }
    let connector = ["/usr/bin", "/bin", "/usr/local/bin"]
        .iter()
        .find_map(|d| Connector::find(OsStr::new(d)).filter(|c| c.kind.program() == program))
        .or_else(|| {
            // `find` prefers the other one.
            let kind = Kind::ALL.into_iter().find(|kind| kind.program() == program)?;
            let path = Path::new("/usr/bin").join(program);
            Some(Connector { kind, path, nameserver: nameserver(kind, "nameserver 127.0.0.1") })
        })
        .unwrap();
    let before = processes();

    // Out, and not back.
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.reach(WORLD, WORLD_PORT), "", "the control: not connected yet");
    let start = Instant::now();
    let uplink = sandbox.connect(&connector).await.unwrap();
    println!(
        "measured: {program} as uid {} connects in {:?}",
        rustix::process::geteuid().as_raw(),
        start.elapsed()
    );
    assert_eq!(sandbox.reach(WORLD, WORLD_PORT), "world");
    for (_, port) in HOST_PORTS {
        for address in ["127.0.0.1", WORLD, "10.0.2.2", "10.0.2.3", "169.254.1.1"] {
            assert_eq!(sandbox.reach(address, port), "", "{address}:{port}");
        }
    }
    // Nothing of it is root.
    let ours: Vec<_> = processes().difference(&before).copied().filter(|&pid| pid != sandbox.pid()).collect();
    assert!(!ours.is_empty());
    for pid in ours {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let uid = status.lines().find(|line| line.starts_with("Uid:")).unwrap().to_owned();
        assert!(!uid.split_whitespace().any(|id| id == "0"), "{status}");
    }
    // It outlives the one who asked for it (whose end the guest sees as the socket's), not the sandbox.
    drop(uplink);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(sandbox.reach(WORLD, WORLD_PORT), "world");
    let start = Instant::now();
    drop(sandbox);
    wait_for(&before);
    println!("measured: gone {:?} after the sandbox", start.elapsed());

    // Stopped.
    let sandbox = Sandbox::new();
    let uplink = sandbox.connect(&connector).await.unwrap();
    uplink.stop().await;
    assert_eq!(sandbox.reach(WORLD, WORLD_PORT), "");
    drop(sandbox);
    wait_for(&before);

    // The guest's process is killed: the connector goes with it.
    let sandbox = Sandbox::new();
    let _uplink = sandbox.connect(&connector).await.unwrap();
    let guest = processes().into_iter().find(|&pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|&byte| byte == 0).nth(1) == Some(b"uplink")
    });
    let guest = rustix::process::Pid::from_raw(guest.unwrap()).unwrap();
    rustix::process::kill_process(guest, rustix::process::Signal::KILL).unwrap();
    wait_for(&before.iter().copied().chain([sandbox.pid()]).collect());
    drop(sandbox);

    // A connector that fails says why, and leaves nothing.
    let directory = std::env::var_os("MOLTIS_TEST_DIRECTORY").map(PathBuf::from).unwrap();
    if rustix::process::geteuid().is_root() {
        let broken = doctored(&connector, &directory, "echo no luck today >&2; exit 3");
        let sandbox = Sandbox::new();
        let error = sandbox.connect(&broken).await.unwrap_err();
        assert_eq!(
            (error.code(), error.diagnosis().cause.as_deref()),
            ("open-failed", Some("no luck today"))
        );
        drop(sandbox);
        wait_for(&before);

        // The control of the attack: without the option the gateway's address leads to the host's loopback.
        let option = if program == "pasta" { "--no-map-gw" } else { "--disable-host-loopback" };
        let rest = format!(
            "for a; do shift; [ \"$a\" = {option} ] || set -- \"$@\" \"$a\"; done; exec {program} \"$@\""
        );
        let open = doctored(&connector, &directory, &rest);
        let sandbox = Sandbox::new();
        let _uplink = sandbox.connect(&open).await.unwrap();
        let gateway = if program == "pasta" { WORLD } else { "10.0.2.2" };
        assert_eq!(sandbox.reach(gateway, HOST_PORTS[0].1), "host", "the control of the attack");
        drop(sandbox);
        wait_for(&before);
    }
}

/// A stand-in for the connector that runs a script.
fn doctored(connector: &Connector, directory: &Path, script: &str) -> Connector {
    let path = directory.join("doctored");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    Connector { path, ..connector.clone() }
}

/// Pids in this pid namespace, but for zombies: the test is its PID 1, which orphans fall to and nobody waits for.
fn processes() -> BTreeSet<i32> {
    let lives = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("State:") && !line.contains("zombie"))
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(lives).collect()
}

fn wait_for(expected: &BTreeSet<i32>) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !processes().is_subset(expected) {
        let left: Vec<_> = processes()
            .difference(expected)
            .map(|pid| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default())
            .collect();
        assert!(Instant::now() < deadline, "still there: {left:#?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A process in namespaces of its own, in place of a sandbox's PID 1. Dropping it kills it.
struct Sandbox {
    child: Child,
    pidfd: OwnedFd,
    netns: OwnedFd,
}

impl Sandbox {
    fn new() -> Self {
        let mut child = Command::new("unshare")
            .args(["--user", "--net", "sh", "-c", "echo; read go; exec sleep 1000"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let proc = PathBuf::from(format!("/proc/{}", child.id()));
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let outside = if uid.is_root() { (23456, 23456) } else { (uid.as_raw(), gid.as_raw()) };
        if !uid.is_root() {
            std::fs::write(proc.join("setgroups"), "deny").unwrap();
        }
        std::fs::write(proc.join("uid_map"), format!("1000 {} 1", outside.0)).unwrap();
        std::fs::write(proc.join("gid_map"), format!("1000 {} 1", outside.1)).unwrap();
        let netns = std::fs::File::open(proc.join("ns/net")).unwrap().into();
        drop(child.stdin.take());
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        Self { child, pidfd, netns }
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    async fn connect(&self, connector: &Connector) -> Result<Uplink> {
        let memfd = moltis_agent::binary::memfd().unwrap();
        let guest = format!("/proc/self/fd/{}", memfd.as_raw_fd());
        connector.connect(Path::new(&guest), self.netns.as_fd(), self.pidfd.as_fd(), 1000, 1000).await
    }

    /// What a server says to a connection from inside; nothing if there is none.
    fn reach(&self, address: &str, port: u16) -> String {
        // SAFETY: the call answers with a new descriptor.
        let userns = unsafe {
            let fd = libc::ioctl(self.netns.as_raw_fd(), 0xb701);
            assert!(fd >= 0);
            OwnedFd::from_raw_fd(fd)
        };
        let output = Command::new("nsenter")
            .args(["--preserve-credentials", "--user=/proc/self/fd/2", "--net=/proc/self/fd/0"])
            .args(["timeout", "1", "bash", "-c"])
            .arg(format!("exec 3<>/dev/tcp/{address}/{port} && cat <&3"))
            .stdin(self.netns.try_clone().unwrap())
            .stderr(userns)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
