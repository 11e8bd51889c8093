//! What a machine is made of, and what it is told over the API.

use std::ffi::OsString;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use moltis_agent_protocol::machine::{Boot, GUEST_CID};
use moltis_sandbox::{Diagnosis, Network, SandboxSpec};
use sha2::{Digest, Sha256};

use crate::api::Api;
use crate::api::body::{BootSource, Drive, Entropy, MachineConfig, NetworkInterface, Vsock};
use crate::disk::{self, Store};
use crate::error::{Error, Result};
use crate::tap::{self, Tap};
use crate::{Config, initrd, vsock};

// Names in the machine's working directory.
const KERNEL: &str = "kernel";
const INITRD: &str = "initrd";
const ROOTFS: &str = "rootfs.ext4";
/// The disk that the machine writes to.
pub const DISK: &str = "disk.ext4";

/// Least memory of a machine, in MiB.
const LEAST_MEMORY: u64 = 64;

/// Most memory of a machine, in MiB.
const MOST_MEMORY: u64 = 1 << 20;

/// Time without use after which a machine that nobody took ends, in milliseconds.
const UNTAKEN: u64 = 60_000;

/// What every kernel is told: its console for what goes wrong while it begins, and to end when it cannot go on.
const ALWAYS: &str = "console=ttyS0 quiet loglevel=3 reboot=k panic=-1 pci=off nomodule_sig_enforce i8042.noaux \
                      i8042.nomux i8042.dumbkbd random.trust_cpu=on rdinit=/init";

/// The same for a kernel and root file system of somebody's own. Firecracker adds which disk is the root.
const THEIRS: &str = "console=ttyS0 quiet loglevel=3 reboot=k panic=-1 pci=off i8042.noaux i8042.nomux i8042.dumbkbd \
                      random.trust_cpu=on";

/// What a machine has of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ours {
    initrd: PathBuf,
    blank: PathBuf,
}

/// What a machine is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blueprint {
    kernel: PathBuf,
    rootfs: PathBuf,
    /// What brings our agent; absent where SSH does.
    ours: Option<Ours>,
    config: MachineConfig,
    boot: Boot,
    open: bool,
}

impl Blueprint {
    /// Of this spec; what is not in the store yet is put there.
    ///
    /// # Errors
    /// [`Error::Refused`] for memory that no machine has, [`Error::Folder`], [`Error::Program`].
    pub async fn make(config: &Config, spec: &SandboxSpec) -> Result<(Self, Store)> {
        let memory = memory(config, spec)?;
        let owned = config.clone();
        let made = crate::error::long(move || {
            let store = Store::make(&owned.cache_dir)?;
            let kernel = store.import("kernel", &owned.kernel)?.path;
            let rootfs = store.import("rootfs", &owned.rootfs)?.path;
            let mut modules = OsString::from(&owned.kernel);
            modules.push(".modules");
            let initrd = match owned.ssh_key {
                Some(_) => None,
                None => Some(initrd::keep(&store, Path::new(&modules))?),
            };
            Ok((kernel, rootfs, initrd, store))
        });
        let (kernel, rootfs, initrd, store) = made.await?;
        let ours = match initrd {
            Some(initrd) => Some(Ours { initrd, blank: store.blank().await? }),
            None => None,
        };
        let open = spec.network.value == Network::Open;
        let boot = Boot {
            overlay: true,
            egress: !open,
            pids: spec.limits.pids.map(|pids| pids.value),
            idle_millis: UNTAKEN,
            address: None,
            servers: Vec::new(),
        };
        let config = MachineConfig {
            vcpu_count: config.vcpus,
            mem_size_mib: memory,
            smt: false,
            track_dirty_pages: false,
        };
        Ok((Self { kernel, rootfs, ours, config, boot, open }, store))
    }

    /// What tells its snapshots from those of others: kernel, what it starts, root file system, processors, memory, what
    /// it is told, and the version of Firecracker. Absent where each machine must be booted: one that is `open` has
    /// an address of its own, and so has one that SSH leads to.
    pub fn fingerprint(&self, version: &str, jailed: bool) -> Option<String> {
        let ours = self.ours.as_ref().filter(|_| !self.open)?;
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let files = [&self.kernel, &ours.initrd, &self.rootfs, &ours.blank].map(|path| name(path));
        let mut hash = Sha256::new();
        hash.update(format!(
            "{files:?} {:?} {} {ALWAYS} {version} {jailed}",
            self.config,
            self.boot.to_words()
        ));
        Some(hash.finalize()[..20].iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Memory in bytes.
    pub fn memory(&self) -> u64 {
        u64::from(self.config.mem_size_mib) << 20
    }

    /// Puts what it boots from into its working directory. Blocks.
    ///
    /// # Errors
    /// [`Error::Folder`].
    pub fn furnish(&self, work: &Path, user: Option<u32>) -> Result<()> {
        disk::link(&self.kernel, work, KERNEL)?;
        match &self.ours {
            Some(ours) => {
                disk::link(&ours.initrd, work, INITRD)?;
                self.furnish_disks(work, &ours.blank, user)
            }
            // A root file system of somebody's own is written to, each machine's copy by itself.
            None => {
                disk::own(&self.rootfs, work, ROOTFS)?;
                give(work, ROOTFS, user)
            }
        }
    }

    /// The same for a machine that is begun from a snapshot, whose disk is `from`. Blocks.
    ///
    /// # Errors
    /// [`Error::Folder`].
    pub fn furnish_disks(&self, work: &Path, from: &Path, user: Option<u32>) -> Result<()> {
        disk::link(&self.rootfs, work, ROOTFS)?;
        disk::own(from, work, DISK)?;
        give(work, DISK, user)
    }

    /// Tells a process what machine to be, and starts it.
    ///
    /// # Errors
    /// Those of the API.
    pub async fn boot(&self, api: &Api, tap: Option<&Tap>) -> Result<()> {
        let Some(_) = &self.ours else { return self.boot_as_it_is(api, tap).await };
        let mut boot = self.boot.clone();
        if let Some(tap) = tap {
            boot.address = Some((tap.guest(), tap.host(), tap::PREFIX));
            boot.servers = crate::error::long(|| Ok(tap::servers())).await?;
        }
        api.machine_config(&self.config).await?;
        api.boot_source(&BootSource {
            kernel_image_path: KERNEL.to_owned(),
            initrd_path: Some(INITRD.to_owned()),
            boot_args: format!("{ALWAYS} {}", boot.to_words()),
        })
        .await?;
        for (name, is_read_only) in [(ROOTFS, true), (DISK, false)] {
            api.drive(&Drive {
                drive_id: if is_read_only { "rootfs" } else { "disk" }.to_owned(),
                path_on_host: name.to_owned(),
                is_root_device: false,
                is_read_only,
                cache_type: "Unsafe",
                rate_limiter: None,
            })
            .await?;
        }
        if let Some(tap) = tap {
            api.network(&interface(tap)).await?;
        }
        api.vsock(&Vsock { guest_cid: GUEST_CID, uds_path: vsock::SOCKET.to_owned() }).await?;
        api.entropy(&Entropy::default()).await?;
        api.start().await
    }

    /// Boots a root file system and a kernel of somebody's own, which are told their address and nothing else of ours.
    async fn boot_as_it_is(&self, api: &Api, tap: Option<&Tap>) -> Result<()> {
        let Some(tap) = tap else { return Err(Error::Died { said: String::new() }) };
        let servers = match self.open {
            true => crate::error::long(|| Ok(tap::servers())).await?,
            false => Vec::new(),
        };
        api.machine_config(&self.config).await?;
        api.boot_source(&BootSource {
            kernel_image_path: KERNEL.to_owned(),
            initrd_path: None,
            boot_args: format!("{THEIRS} {}", address(tap, &servers)),
        })
        .await?;
        api.drive(&Drive {
            drive_id: "rootfs".to_owned(),
            path_on_host: ROOTFS.to_owned(),
            is_root_device: true,
            is_read_only: false,
            cache_type: "Unsafe",
            rate_limiter: None,
        })
        .await?;
        api.network(&interface(tap)).await?;
        api.entropy(&Entropy::default()).await?;
        api.start().await
    }
}

/// A machine's network device.
fn interface(tap: &Tap) -> NetworkInterface {
    NetworkInterface {
        iface_id: "eth0".to_owned(),
        guest_mac: Some(tap.mac()),
        host_dev_name: tap.name.clone(),
        rx_rate_limiter: None,
        tx_rate_limiter: None,
    }
}

/// An address as kernels with `CONFIG_IP_PNP` take it; the name servers come out in `/proc/net/pnp`.
fn address(tap: &Tap, servers: &[std::net::Ipv4Addr]) -> String {
    let mask = std::net::Ipv4Addr::from(u32::MAX << (32 - u32::from(tap::PREFIX)));
    let mut text = format!("ip={}::{}:{mask}:sandbox:eth0:off", tap.guest(), tap.host());
    for server in servers.iter().take(2) {
        text.push(':');
        text.push_str(&server.to_string());
    }
    text
}

/// Gives a file in a machine's working directory to its user. Blocks.
fn give(work: &Path, name: &str, user: Option<u32>) -> Result<()> {
    let Some(user) = user else { return Ok(()) };
    let path = work.join(name);
    chown(&path, Some(user), Some(user)).map_err(Error::folder(path))
}

/// Memory in MiB. What somebody asked for is what there is: the kernel's own counts.
fn memory(config: &Config, spec: &SandboxSpec) -> Result<u32> {
    let asked = spec.limits.memory.filter(|memory| memory.origin.is_demand());
    let Some(asked) = asked else { return Ok(config.memory_mb) };
    match asked.value >> 20 {
        memory @ LEAST_MEMORY..=MOST_MEMORY => Ok(u32::try_from(memory).unwrap_or(u32::MAX)),
        memory => Err(Error::Refused(
            Diagnosis::new("firecracker-memory", format!("no machine has {memory} MiB of memory"))
                .fix(format!("set `resource_limits.memory_limit` to {LEAST_MEMORY}M or more")),
        )),
    }
}

#[cfg(test)]
mod tests {
    use moltis_sandbox::{Lifetime, Origin, SessionKey, Setting};

    use super::*;

    fn spec() -> SandboxSpec {
        SandboxSpec::new(SessionKey::new("s").unwrap(), Lifetime::Ephemeral)
    }

    #[test]
    fn memory_is_what_was_asked_for_or_what_is_set() {
        let config = Config::new("/d".into());
        let mut spec = spec();
        assert_eq!(memory(&config, &spec).unwrap(), 512);
        spec.limits.memory = Some(Setting::built_in(2 << 30));
        assert_eq!(memory(&config, &spec).unwrap(), 512);
        spec.limits.memory = Some(Setting::new((256 << 20) + 5, Origin::Flag));
        assert_eq!(memory(&config, &spec).unwrap(), 256);
        spec.limits.memory = Some(Setting::new(1 << 20, Origin::Flag));
        let error = moltis_sandbox::Error::from(memory(&config, &spec).unwrap_err());
        assert_eq!((error.kind(), error.code()), ("refused", "firecracker-memory"));
    }

    #[tokio::test]
    async fn a_snapshot_is_of_one_machine_alone() {
        let temp = tempfile::tempdir().unwrap();
        let mut config = Config::new(temp.path().join("data"));
        config.kernel = temp.path().join("kernel");
        config.rootfs = temp.path().join("rootfs");
        for file in [&config.kernel, &config.rootfs] {
            std::fs::write(file, "x").unwrap();
        }
        let print = async |config: &Config, spec: &SandboxSpec, version: &str, jailed: bool| {
            Blueprint::make(config, spec).await.unwrap().0.fingerprint(version, jailed)
        };
        let base = print(&config, &spec(), "1", false).await.unwrap();
        assert_eq!(print(&config, &spec(), "1", false).await.unwrap(), base);
        let mut prints = vec![base.clone()];
        prints.push(print(&config, &spec(), "2", false).await.unwrap());
        prints.push(print(&config, &spec(), "1", true).await.unwrap());
        let mut pids = spec();
        pids.limits.pids = Some(Setting::built_in(7));
        prints.push(print(&config, &pids, "1", false).await.unwrap());
        let mut other = config.clone();
        other.vcpus = 1;
        prints.push(print(&other, &spec(), "1", false).await.unwrap());
        std::fs::write(&config.kernel, "another").unwrap();
        prints.push(print(&config, &spec(), "1", false).await.unwrap());
        std::fs::write(temp.path().join("kernel.modules"), "m").unwrap();
        prints.push(print(&config, &spec(), "1", false).await.unwrap());
        let count = prints.len();
        prints.sort();
        prints.dedup();
        assert_eq!(prints.len(), count);
        let mut open = spec();
        open.network = Setting::new(Network::Open, Origin::Flag);
        assert_eq!(print(&config, &open, "1", false).await, None);
    }
}
