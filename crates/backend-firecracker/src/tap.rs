//! A machine's network device, for the network `open` and for SSH alone: a TAP device with a piece of network of its own, and one
//! table of rules, which go when the machine does.
//!
//! The host's own rules and `ip_forward` are never changed. What the machine sends to the host itself, to other machines
//! of ours and to link-local addresses, where clouds keep the host's credentials, is dropped.

mod device;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use moltis_sandbox::SandboxId;
use rustix::thread::CapabilitySet;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::{detect, program};
pub use device::{exists, in_use};

/// Pieces of network: four addresses each in 10.213.0.0/16.
pub const PIECES: u32 = 16_384;

const NETWORK: u32 = u32::from_be_bytes([10, 213, 0, 0]);

/// Bits of the network that a machine's two addresses share.
pub const PREFIX: u8 = 30;

/// How long `nft` may take.
const RULES_WITHIN: Duration = Duration::from_secs(20);

/// Name servers that a machine is told, at most.
const MAX_SERVERS: usize = 3;

/// A piece of network and the device that leads to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tap {
    /// Name of the device, and of the table of rules; at most 15 bytes.
    pub name: String,
    /// Number of the piece.
    pub piece: u32,
}

impl Tap {
    /// Of this sandbox of this data directory.
    pub fn new(data_dir: &Path, id: &SandboxId, piece: u32) -> Self {
        let mut hash = Sha256::new();
        hash.update(data_dir.as_os_str().as_encoded_bytes());
        hash.update([0]);
        hash.update(id.as_str());
        let digest: String = hash.finalize()[..6].iter().map(|byte| format!("{byte:02x}")).collect();
        Self { name: format!("mt{digest}"), piece }
    }

    /// The host's end.
    pub fn host(&self) -> Ipv4Addr {
        Ipv4Addr::from(NETWORK + self.piece * 4 + 1)
    }

    /// The machine's.
    pub fn guest(&self) -> Ipv4Addr {
        Ipv4Addr::from(NETWORK + self.piece * 4 + 2)
    }

    /// The machine's hardware address: locally administered, and made of its other one.
    pub fn mac(&self) -> String {
        let [a, b, c, d] = self.guest().octets();
        format!("06:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
    }

    /// Makes the device, which `user` may use, and its rules.
    ///
    /// # Errors
    /// [`Error::Tap`], [`Error::Program`]; nothing is left then.
    pub async fn make(&self, user: u32, passes: Passes) -> Result<()> {
        let made = {
            let this = self.clone();
            crate::error::long(move || device::make(&this.name, user, this.host())).await
        };
        let made = match made {
            Ok(()) => self.rules(passes).await,
            Err(error) => Err(error),
        };
        if made.is_err() {
            let _ = self.remove().await;
        }
        made
    }

    async fn rules(&self, passes: Passes) -> Result<()> {
        let nft = find_nft().await?.ok_or_else(|| failed("it is not installed".to_owned()))?;
        load(&nft, &self.text(passes)).await
    }

    fn text(&self, passes: Passes) -> String {
        let (name, guest) = (&self.name, self.guest());
        let ssh = match passes.ssh {
            // Answers to the host's own logins, and nothing that the machine begins.
            true => format!(
                "chain answers {{ type filter hook input priority -10; policy accept;\n\
                 iifname \"{name}\" ip saddr {guest} tcp sport 22 ct direction reply ct state established accept\n\
                 iifname \"{name}\" drop; }}\n\
                 chain output {{ type filter hook output priority 0; policy accept;\n\
                 oifname \"{name}\" ip daddr {guest} tcp dport 22 accept\n\
                 oifname \"{name}\" ip daddr {guest} icmp type destination-unreachable accept\n\
                 oifname \"{name}\" drop; }}\n"
            ),
            false => format!(
                "chain input {{ type filter hook input priority 0; policy accept; iifname \"{name}\" drop; }}\n"
            ),
        };
        if !passes.open {
            return format!(
                "table inet {name} {{\n{ssh}\
                 chain forward {{ type filter hook forward priority 0; policy accept;\n\
                 iifname \"{name}\" drop\noifname \"{name}\" drop\n}}\n}}\n"
            );
        }
        format!(
            "table inet {name} {{\n\
             {ssh}\
             chain forward {{ type filter hook forward priority 0; policy accept;\n\
             iifname \"{name}\" meta nfproto ipv6 drop\n\
             iifname \"{name}\" ip saddr != {guest} drop\n\
             iifname \"{name}\" ip daddr {{ 10.213.0.0/16, 127.0.0.0/8, 169.254.0.0/16 }} drop\n\
             oifname \"{name}\" ct state != {{ established, related }} drop\n\
             }}\n\
             chain postrouting {{ type nat hook postrouting priority 100; ip saddr {guest} masquerade; }}\n\
             }}\n"
        )
    }

    /// Removes both. What is not there is no error.
    ///
    /// # Errors
    /// [`Error::Tap`], [`Error::Program`].
    pub async fn remove(&self) -> Result<()> {
        let name = self.name.clone();
        let removed = crate::error::long(move || device::remove(&name)).await;
        let rules = match find_nft().await? {
            // `add` makes sure that there is something to delete.
            Some(nft) => load(&nft, &format!("add table inet {0}\ndelete table inet {0}\n", self.name)).await,
            None => Ok(()),
        };
        removed.and(rules)
    }
}

async fn find_nft() -> Result<Option<PathBuf>> {
    crate::error::long(|| Ok(program::find("nft"))).await
}

fn failed(said: String) -> Error {
    Error::Program { program: "nft", said }
}

/// Does what these rules say.
async fn load(nft: &Path, text: &str) -> Result<()> {
    let said = program::run(nft, ["-f", "-"], text.as_bytes(), RULES_WITHIN).await;
    let said = said.map_err(|cause| failed(cause.to_string()))?;
    if said.good { Ok(()) } else { Err(failed(said.words())) }
}

/// What may pass through a machine's device, besides what is always dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passes {
    /// Whatever the machine begins, with the host's address.
    pub open: bool,
    /// The host's logins by SSH.
    pub ssh: bool,
}

/// Whether machines can be let out here; if not, why. Blocks.
///
/// # Errors
/// The reason, for a person.
pub fn possible() -> std::result::Result<(), String> {
    devices()?;
    let forwards = std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward");
    if !forwards.is_ok_and(|text| text.trim() == "1") {
        return Err("this machine forwards no packets, which Moltis does not change: `sudo sysctl \
                    net.ipv4.ip_forward=1`"
            .to_owned());
    }
    if servers().is_empty() {
        return Err(
            "/etc/resolv.conf names no server that a machine could reach: name one that is not on loopback"
                .to_owned(),
        );
    }
    Ok(())
}

/// Whether devices and rules can be made here; if not, why. Blocks.
///
/// # Errors
/// The reason, for a person.
pub fn devices() -> std::result::Result<(), String> {
    let admin = rustix::thread::capabilities(None)
        .is_ok_and(|have| have.effective.contains(CapabilitySet::NET_ADMIN));
    if !admin {
        return Err(
            "making a network device takes CAP_NET_ADMIN: run Moltis as root, or use network `trusted` with \
                    `trusted_domains = [\"*\"]`"
                .to_owned(),
        );
    }
    device::possible().map_err(|errno| {
        format!("/dev/net/tun cannot be used ({}): `sudo modprobe tun`", detect::reason(errno))
    })?;
    if program::find("nft").is_none() {
        return Err("there is no `nft`: `sudo apt-get install nftables`".to_owned());
    }
    Ok(())
}

/// The host's name servers that are not on its own loopback. Blocks.
pub fn servers() -> Vec<Ipv4Addr> {
    let files = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"].map(PathBuf::from);
    for file in files {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let found = servers_in(&text);
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

fn servers_in(text: &str) -> Vec<Ipv4Addr> {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let addresses = lines.filter_map(|rest| rest.split_whitespace().next()?.parse::<Ipv4Addr>().ok());
    addresses
        .filter(|address| !address.is_loopback() && !address.is_unspecified())
        .take(MAX_SERVERS)
        .collect()
}

/// The first and the last address of a piece.
pub fn piece(number: u32) -> (Ipv4Addr, Ipv4Addr) {
    let first = NETWORK + number * 4;
    (Ipv4Addr::from(first), Ipv4Addr::from(first + 3))
}

#[cfg(test)]
mod tests {
    use moltis_sandbox::SessionKey;

    use super::*;

    fn tap(key: &str, piece: u32) -> Tap {
        let id = SandboxId::of(&SessionKey::new(key).unwrap());
        Tap::new(&std::env::temp_dir().join(std::process::id().to_string()), &id, piece)
    }

    #[test]
    fn names_fit_and_addresses_do_not_touch() {
        let (one, other) = (tap("a", 0), tap("b", PIECES - 1));
        assert_ne!(one.name, other.name);
        assert!(one.name.len() <= 15, "{}", one.name);
        assert_eq!(
            (one.host().to_string(), one.guest().to_string()),
            ("10.213.0.1".into(), "10.213.0.2".into())
        );
        assert_eq!(other.guest().to_string(), "10.213.255.254");
        assert_eq!(other.mac(), "06:00:0a:d5:ff:fe");
        let id = SandboxId::of(&SessionKey::new("a").unwrap());
        assert_ne!(Tap::new(Path::new("/other"), &id, 0).name, one.name);
    }

    #[test]
    fn servers_on_loopback_are_none() {
        let text = "# c\nnameserver 127.0.0.53\nnameserver ::1\n nameserver 10.0.0.1 \nnameserver 8.8.8.8\noptions x\n";
        assert_eq!(servers_in(text), [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(8, 8, 8, 8)]);
        assert_eq!(servers_in("nameserver 0.0.0.0\nnameserver"), Vec::<Ipv4Addr>::new());
    }

    #[tokio::test]
    async fn a_device_is_made_with_its_rules_and_both_go() {
        if let Err(why) = possible() {
            return moltis_testkit::need::skip("a_device_is_made_with_its_rules_and_both_go", &why);
        }
        let tap = tap("made", 16_000);
        tap.make(12_345, Passes { open: true, ssh: false }).await.unwrap();
        assert!(exists(&tap.name));
        assert!(in_use(piece(tap.piece)));
        let owner = std::fs::read_to_string(format!("/sys/class/net/{}/owner", tap.name)).unwrap();
        assert_eq!(owner.trim(), "12345");
        let listed = listed(&tap).await;
        assert!(listed.contains("masquerade") && listed.contains("10.213.250.2"), "{listed}");
        let again = tap.make(12_345, Passes { open: true, ssh: false }).await;
        assert!(matches!(again, Err(Error::Tap { .. })), "{again:?}");
        tap.remove().await.unwrap();
        assert!(!exists(&tap.name));
        assert!(!in_use(piece(tap.piece)));
        assert_eq!(self::listed(&tap).await, "");
        tap.remove().await.unwrap();
    }

    async fn listed(tap: &Tap) -> String {
        let nft = program::find("nft").unwrap();
        let said = program::run(&nft, ["list", "table", "inet", &tap.name], b"", RULES_WITHIN).await.unwrap();
        said.out
    }
}
