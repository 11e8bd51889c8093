//! What a container is to be, and what an engine says that one is.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// A container to make. Paths inside are absolute.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerSpec {
    /// Its name.
    pub name: String,
    /// Id of the image, as the engine told it. It is here already.
    pub image: String,
    /// Host name inside.
    pub hostname: String,
    /// User and group of the first process.
    pub user: (u32, u32),
    /// Program and arguments of the first process; the image's own entrypoint and command are not used.
    pub argv: Vec<String>,
    /// Directory of the first process.
    pub directory: String,
    /// Variables of the first process. Those of the image that are not named here stay; an empty value overrides one.
    pub env: Vec<(String, String)>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Folders and files of the host's, in the order in which they are mounted.
    pub binds: Vec<Bind>,
    /// Paths inside that get a volume of their own, which goes with the container. The image's files there are copied in.
    pub volumes: Vec<String>,
    /// File systems in memory.
    pub tmpfs: Vec<Tmpfs>,
    /// Whether the image's files cannot be written to. Nothing is writable then but what is mounted.
    pub read_only_root: bool,
    /// Whether every capability is dropped, from the bounding set too.
    pub drop_capabilities: bool,
    /// Whether no program can gain privileges (`no-new-privileges`).
    pub no_new_privileges: bool,
    /// All the privileges that the engine can give; overrides the two above.
    pub privileged: bool,
    /// Whether SELinux does not confine it.
    pub disable_labels: bool,
    /// What it is connected to.
    pub network: NetworkMode,
    /// Settings of its own namespaces, by their names below `/proc/sys`, with dots.
    pub sysctls: BTreeMap<String, String>,
    /// Bytes of memory, swap counted: nothing can be swapped beyond it.
    pub memory: Option<u64>,
    /// Processor cores.
    pub cpus: Option<f64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Processes and threads of each user of the container's own, as `RLIMIT_NPROC` bounds them; nobody has more where
    /// they cannot be bounded together.
    pub nproc: Option<u64>,
    /// OCI runtime by the engine's name for it.
    pub runtime: Option<String>,
    /// Graphics processors.
    pub gpus: Option<Gpus>,
    /// The engine's word for how user ids are mapped, such as `keep-id:uid=1000,gid=1000`.
    pub userns: Option<String>,
    /// Devices of the host's that are shown under the same path.
    pub devices: Vec<String>,
    /// Whether the engine removes it, with its anonymous volumes, when it is over.
    pub auto_remove: bool,
    /// Whether the engine keeps what it prints, for [`logs`](super::Engine::logs).
    pub keep_logs: bool,
}

/// A folder or file of the host's that shows inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Absolute path, as the engine sees the host.
    pub source: PathBuf,
    /// Absolute path inside.
    pub target: String,
    /// Whether it can only be read.
    pub read_only: bool,
    /// Whether its SELinux label is changed so that the container may use it.
    pub relabel: Relabel,
}

/// What becomes of a mount's SELinux label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Relabel {
    /// It stays.
    #[default]
    Not,
    /// For any container (`z`).
    Shared,
    /// For this one alone (`Z`).
    Private,
}

/// A file system in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tmpfs {
    /// Where.
    pub target: String,
    /// Options as `mount` has them, comma-separated: `rw,nosuid,nodev,exec,size=256m`. No options are added by the driver.
    pub options: String,
}

/// What a container is connected to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkMode {
    /// Nothing but its own loopback.
    #[default]
    None,
    /// The engine's usual network for containers, never the host's own.
    Engine,
}

/// Which graphics processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gpus {
    /// All of them.
    All,
    /// These, by the engine's ids.
    Ids(Vec<String>),
}

/// A container as the engine describes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Container {
    /// Its full id.
    pub id: String,
    /// Its name, without a slash.
    pub name: String,
    /// What it does.
    pub state: ContainerState,
    /// Process id of its first process in the engine's PID namespace; 0 where it has none or the engine does not say.
    pub pid: u32,
    /// Exit code of its first process, once it is over and as far as the engine says.
    pub exit_code: Option<i32>,
    /// Whether the kernel ended it for want of memory, as far as the engine says.
    pub oom_killed: bool,
    /// What the engine says went wrong, usually empty.
    pub error: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Id of its image.
    pub image: String,
    /// When it was made, in seconds since 1970; 0 where the engine's time cannot be read.
    pub created_secs: u64,
    /// Its mounts: source on the host (empty for volumes) and target inside; only from [`inspect`](super::Engine::inspect).
    pub mounts: Vec<(PathBuf, String)>,
}

impl Container {
    /// Whether its first process lives.
    pub fn lives(&self) -> bool {
        matches!(self.state, ContainerState::Running | ContainerState::Paused)
    }
}

/// What a container does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContainerState {
    /// Made, and never started.
    Created,
    /// Its first process runs.
    Running,
    /// It is frozen.
    Paused,
    /// Its first process is over.
    #[default]
    Exited,
    /// It is being removed.
    Removing,
}
