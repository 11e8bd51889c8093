//! Network `open`: user-mode networking by `pasta` or `slirp4netns`, never the host's network namespace.
//!
//! The host's loopback is out of reach: nothing is mapped to it, neither by the gateway's address nor by forwarded
//! ports. The host's other addresses are reached as those of any machine are. IP forwarding and the host's firewall stay
//! as they are.

#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use moltis_sandbox::{Diagnosis, Error, Promise, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Where `pasta` is told to answer name requests: link-local addresses that no network uses, one for each version.
const PASTA_DNS: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(169, 254, 1, 1), Ipv6Addr::new(0xfd6d, 0x6f6c, 0x7469, 0, 0, 0, 0, 0x53));
/// Where `slirp4netns` answers them.
const SLIRP_DNS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);
/// How long a connector may take; the guest's own patience is shorter and says more.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest message from the guest.
const MAX_MESSAGE: usize = 4096;

/// Which program connects the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `pasta`, of the package `passt`.
    Pasta,
    /// `slirp4netns`.
    Slirp4netns,
}

impl Kind {
    /// Both, the better one first: `pasta` shows the host's own addresses and speaks IPv6.
    const ALL: [Self; 2] = [Self::Pasta, Self::Slirp4netns];

    /// The program's name.
    pub fn program(self) -> &'static str {
        match self {
            Self::Pasta => "pasta",
            Self::Slirp4netns => "slirp4netns",
        }
    }
}

/// The program that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connector {
    /// Which one.
    pub kind: Kind,
    /// Where.
    pub path: PathBuf,
    /// Where the sandbox sends its name requests; the connector passes them to the host's resolver.
    nameserver: IpAddr,
}

impl Connector {
    /// Looks for `pasta`, then `slirp4netns` in the absolute directories of `path` (the value of `PATH`). Blocks on a
    /// few look-ups.
    pub fn find(path: &OsStr) -> Option<Self> {
        let resolvers = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        Kind::ALL.into_iter().find_map(|kind| {
            let mut places = std::env::split_paths(path).filter(|directory| directory.is_absolute());
            let path = places.find_map(|directory| {
                let candidate = directory.join(kind.program());
                is_program(&candidate).then_some(candidate)
            })?;
            Some(Self { kind, path, nameserver: nameserver(kind, &resolvers) })
        })
    }

    /// What `network = "open"` is worth here. Blocks on a look-up.
    pub fn promise(found: Option<&Self>) -> Promise {
        if found.is_none() {
            return Promise::not_enforced(format!("neither pasta nor slirp4netns is installed: {}", INSTALL));
        }
        match tun_is_usable() {
            true => Promise::Held,
            false => Promise::not_enforced(format!("/dev/net/tun cannot be opened: {OPEN_TUN}")),
        }
    }

    /// What the sandbox's `/etc/resolv.conf` must say with this connector. Known before the launch.
    pub fn resolv_conf(&self) -> String {
        format!("nameserver {}\n", self.nameserver)
    }

    /// Connects a launched sandbox and waits until its interface is up (some 10 to 60 ms).
    ///
    /// `guest` is a path that executes the guest binary, such as `/proc/self/fd/N` of its memfd: a small process of it
    /// (`moltis-guest uplink`) enters the sandbox's user namespace, runs the connector there under the sandbox's uid,
    /// and ends it when the sandbox ends, whatever happens to this process. `netns` is the sandbox's network namespace
    /// (opened before its PID 1 became non-dumpable, and owned by a user namespace whose ids are mapped), `agent` a
    /// pidfd of its PID 1. `uid` and `gid` are those of the sandbox's user *inside*.
    ///
    /// # Errors
    /// `Unavailable` with code `open-failed`, with what the connector said. Nothing is left running.
    pub async fn connect(
        &self,
        guest: &Path,
        netns: BorrowedFd<'_>,
        agent: BorrowedFd<'_>,
        uid: u32,
        gid: u32,
    ) -> Result<Uplink> {
        let own = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(|error| self.failed(error));
        let (netns, agent) = (own(netns)?, own(agent)?);
        let mut arguments: Vec<OsString> =
            vec!["uplink".into(), uid.to_string().into(), gid.to_string().into()];
        arguments.push(self.path.clone().into());
        arguments.extend(self.arguments().into_iter().map(OsString::from));
        let guest = guest.to_owned();
        let spawned = tokio::task::spawn_blocking(move || spawn(&guest, &arguments, netns, agent)).await;
        let host = match spawned {
            Ok(host) => host.map_err(|error| self.failed(error))?,
            Err(_) => return Err(self.failed("the process ends")),
        };
        let mut uplink =
            Uplink { host: tokio::net::UnixStream::from_std(host).map_err(|error| self.failed(error))? };
        match tokio::time::timeout(PATIENCE, uplink.answer()).await {
            Ok(Ok(())) => Ok(uplink),
            Ok(Err(why)) => Err(self.failed(why)),
            Err(_) => {
                uplink.stop().await;
                Err(self.failed("it does not answer"))
            }
        }
    }

    /// The connector's arguments; `{netns}` and `{ready}` are filled in by the guest.
    fn arguments(&self) -> Vec<String> {
        let words: &[&str] = match self.kind {
            // In the foreground, so that the guest has it for a child. No port is forwarded in either direction, and
            // the gateway's address is not the host's loopback. The namespace has no name that could go away.
            Kind::Pasta => &[
                "--foreground",
                "--quiet",
                "--config-net",
                "--no-map-gw",
                "-t",
                "none",
                "-u",
                "none",
                "-T",
                "none",
                "-U",
                "none",
                "--dns-forward",
                "{dns}",
                "--no-netns-quit",
                "--netns-only",
                "--pid",
                "{ready}",
                "--netns",
                "{netns}",
            ],
            Kind::Slirp4netns => &[
                "--configure",
                "--disable-host-loopback",
                "--mtu=65520",
                "--ready-fd=1",
                "--netns-type=path",
                "{netns}",
                "tap0",
            ],
        };
        let dns = self.nameserver.to_string();
        words.iter().map(|&word| if word == "{dns}" { dns.clone() } else { word.to_owned() }).collect()
    }

    fn failed(&self, why: impl std::fmt::Display) -> Error {
        let program = self.kind.program();
        let mut diagnosis =
            Diagnosis::new("open-failed", format!("{program} cannot connect the sandbox to the network"))
                .cause(why);
        if !tun_is_usable() {
            diagnosis = diagnosis.fix(OPEN_TUN);
        }
        Error::Unavailable(diagnosis)
    }

    /// The refusal when there is no connector: code `open-needs-pasta`.
    pub fn missing() -> Error {
        Error::Refused(
            Diagnosis::new("open-needs-pasta", "network `open` needs pasta or slirp4netns, and neither is installed")
                .fix(format!(
                    "{INSTALL}; or reach every domain through the proxy: --network trusted with trusted_domains = [\"*\"]"
                )),
        )
    }
}

const INSTALL: &str = "install the package `passt` (apt install passt, dnf install passt) or `slirp4netns`";
const OPEN_TUN: &str =
    "sudo modprobe tun && sudo chmod 666 /dev/net/tun (in a container: --device /dev/net/tun)";

/// A sandbox's connection to the network. It ends with the sandbox, not with this value: dropping it leaves it running.
#[derive(Debug)]
pub struct Uplink {
    host: tokio::net::UnixStream,
}

impl Uplink {
    /// Waits for the guest's word.
    async fn answer(&mut self) -> std::result::Result<(), String> {
        let mut message = Vec::new();
        let mut buffer = [0; 512];
        loop {
            match self.host.read(&mut buffer).await {
                Ok(0) => break,
                Ok(count) => message.extend_from_slice(&buffer[..count]),
                Err(error) => return Err(error.to_string()),
            }
            if message == b"R" {
                return Ok(());
            }
            if message.len() >= MAX_MESSAGE {
                break;
            }
        }
        let text = String::from_utf8_lossy(message.strip_prefix(b"E").unwrap_or(&message));
        // pasta says so of each of its lines where no system log listens.
        let own =
            text.lines().filter(|line| !(line.starts_with("Failed to send") && line.ends_with("syslog")));
        let text = own.collect::<Vec<_>>().join("\n").trim().to_owned();
        Err(if text.is_empty() { "it ended without a word".to_owned() } else { text })
    }

    /// Ends the connection and waits for that. Not needed when the sandbox is ending anyway.
    pub async fn stop(mut self) {
        // The guest closes its end once the connector is gone; it may be gone already.
        if self.host.write_all(b"S").await.is_ok() {
            let mut rest = [0; 64];
            let ended = async { while let Ok(1..) = self.host.read(&mut rest).await {} };
            let _ = tokio::time::timeout(PATIENCE, ended).await;
        }
    }
}

/// Starts the guest's uplink, which leaves its first process behind at once, and returns the socket to it.
fn spawn(guest: &Path, arguments: &[OsString], netns: OwnedFd, agent: OwnedFd) -> io::Result<UnixStream> {
    let (host, theirs) = UnixStream::pair()?;
    let status = Command::new(guest)
        .args(arguments)
        .env_clear()
        .stdin(Stdio::from(netns))
        .stdout(Stdio::from(agent))
        .stderr(Stdio::from(OwnedFd::from(theirs)))
        .status()?;
    // What went wrong is in the socket.
    let _ = status;
    host.set_nonblocking(true)?;
    Ok(host)
}

/// The nameserver of the sandbox, given the text of the host's `resolv.conf`.
fn nameserver(kind: Kind, resolvers: &str) -> IpAddr {
    let mut addresses = resolvers.lines().filter_map(|line| {
        let address = line.trim().strip_prefix("nameserver")?.trim();
        // A scope (`fe80::1%eth0`) does not change the version.
        address.split('%').next()?.parse::<IpAddr>().ok()
    });
    match kind {
        Kind::Slirp4netns => SLIRP_DNS.into(),
        // It forwards within one version only, to the first resolver of that version.
        Kind::Pasta => match (addresses.clone().any(|a| a.is_ipv4()), addresses.any(|a| a.is_ipv6())) {
            (false, true) => PASTA_DNS.1.into(),
            _ => PASTA_DNS.0.into(),
        },
    }
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Whether the sandbox's user will be able to open a TUN device: everybody may, or we are root and give it one.
fn tun_is_usable() -> bool {
    if rustix::process::geteuid().is_root() {
        return Path::new("/dev/net").is_dir();
    }
    let access = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
    rustix::fs::access("/dev/net/tun", access).is_ok()
}
