//! What every container of ours is confined by. The table of the documentation is made of this, and the tests look at
//! its rows from inside.

use std::collections::BTreeMap;
use std::path::Path;

use moltis_sandbox::Network;

use crate::engine::{
    Bind, ContainerSpec, EngineInfo, EngineKind, Gpus, NetworkMode, Place, ProcessLimit, Tmpfs,
};
use crate::identity::Identity;

/// Host name of every sandbox.
pub const HOSTNAME: &str = "sandbox";

/// Bytes of a home that ends with the sandbox, where no memory limit bounds it.
const HOME_SIZE: &str = "1g";

/// Where the kernel tells what the machine is made of: serial numbers, firmware, disks. Docker's own masks do not cover
/// all of it. Podman's runtime copies what it mounts a file system over, which fails there without capabilities; it
/// masks the first by itself, and the others stay readable.
const HARDWARE: [&str; 4] =
    ["/sys/firmware", "/sys/class/dmi", "/sys/devices/virtual/dmi", "/sys/class/block"];

/// Which way a sandbox has been opened wide by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hatch {
    /// It has not.
    #[default]
    Shut,
    /// The host's Podman is inside: the socket gives away its user's files.
    HostPodman,
    /// Podman may run inside: all the privileges that the engine can give.
    NestedPodman,
}

/// What is to be confined.
pub struct Wanted<'a> {
    /// Name of the container.
    pub name: String,
    /// Id of the image.
    pub image: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The agent and its arguments.
    pub argv: Vec<String>,
    /// The sandbox's user.
    pub identity: &'a Identity,
    /// Whether the packages are in the image, so that nothing has to be written to its files.
    pub prebuilt: bool,
    /// Host folders and files.
    pub binds: Vec<Bind>,
    /// Where the home is, if it ends with the sandbox.
    pub home_in_memory: Option<&'a str>,
    /// What it may reach.
    pub network: Network,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Processor cores.
    pub cpus: Option<f64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// OCI runtime.
    pub runtime: Option<String>,
    /// Graphics processors.
    pub gpus: Option<Gpus>,
    /// Which hatch is open.
    pub hatch: Hatch,
}

/// The container for it on this engine. Blocks on a few look-ups.
pub fn container(kind: EngineKind, info: &EngineInfo, wanted: Wanted<'_>) -> ContainerSpec {
    // Podman takes no owner for a file system in memory and none of its modes holds over a folder of the image, but it
    // has a word for the container's user.
    let (uid, gid) = wanted.identity.inside;
    let owner = match kind {
        EngineKind::Docker => format!("mode=755,uid={uid},gid={gid}"),
        EngineKind::Podman => "U".to_owned(),
        EngineKind::Apple => "mode=1777".to_owned(),
    };
    let nested = wanted.hatch == Hatch::NestedPodman;
    let by_user = info.process_limit(kind) == ProcessLimit::Users;
    let mut tmpfs = vec![
        memory("/tmp", "rw,nosuid,nodev,exec,size=256m,mode=1777".to_owned()),
        memory("/run", format!("rw,nosuid,nodev,noexec,size=64m,{owner}")),
    ];
    if let Some(home) = wanted.home_in_memory {
        // What is written there is memory, which the limit counts.
        let size = wanted.memory.map_or_else(|| HOME_SIZE.to_owned(), |bytes| bytes.to_string());
        let options = format!("rw,nosuid,nodev,exec,size={size},{owner}");
        tmpfs.push(memory(home, options));
    }
    if kind == EngineKind::Docker && !nested && info.place == Place::Here {
        let there = HARDWARE.iter().filter(|path| Path::new(path).exists());
        tmpfs.extend(there.map(|path| memory(path, "ro,nosuid,nodev,noexec,size=4k".to_owned())));
    }
    // Docker switches IPv6 off on a container's loopback too, and what listens on `localhost` may listen there.
    let loopback = kind == EngineKind::Docker
        && info.place == Place::Here
        && Path::new("/proc/sys/net/ipv6/conf/lo/disable_ipv6").exists();
    let sysctls = loopback.then(|| ("net.ipv6.conf.lo.disable_ipv6".to_owned(), "0".to_owned()));
    let sysctls = sysctls.into_iter().collect();
    ContainerSpec {
        name: wanted.name,
        image: wanted.image,
        hostname: HOSTNAME.to_owned(),
        user: wanted.identity.inside,
        argv: wanted.argv,
        directory: "/".to_owned(),
        env: Vec::new(),
        labels: wanted.labels,
        binds: wanted.binds,
        volumes: Vec::new(),
        tmpfs,
        read_only_root: wanted.prebuilt && !nested,
        drop_capabilities: !nested,
        no_new_privileges: !nested,
        privileged: nested,
        disable_labels: wanted.hatch == Hatch::HostPodman,
        network: match wanted.network {
            Network::Blocked | Network::Trusted => NetworkMode::None,
            Network::Open => NetworkMode::Engine,
        },
        sysctls,
        memory: wanted.memory,
        cpus: wanted.cpus,
        pids: wanted.pids.filter(|_| !by_user),
        // A nested Podman is one of many users, in a namespace that is not its own.
        nproc: wanted.pids.filter(|_| by_user && !nested),
        runtime: wanted.runtime,
        gpus: wanted.gpus,
        userns: wanted.identity.userns.clone(),
        devices: if nested { vec!["/dev/fuse".to_owned()] } else { Vec::new() },
        auto_remove: true,
        keep_logs: false,
    }
}

fn memory(target: &str, options: String) -> Tmpfs {
    Tmpfs { target: target.to_owned(), options }
}
