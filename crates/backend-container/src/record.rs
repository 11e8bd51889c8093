//! What is written down of a sandbox, in `<data_dir>/run/<engine>/<id>/`: enough to find it again without asking the
//! engine anything.

use std::borrow::Cow;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use moltis_host::record::{Layout, ProcessId};
use serde::{Deserialize, Serialize};

use crate::engine::{Container, EngineKind};

/// Folder of the agent's socket, which is mounted into the container.
pub const AGENT: &str = "agent";
/// The agent's socket in it.
pub const SOCKET: &str = "agent.sock";
/// The sandbox's user database.
pub const PASSWD: &str = "passwd";
/// Its groups.
pub const GROUP: &str = "group";
/// What sends Node's requests through the proxy.
pub const NODE_PROXY: &str = "node-proxy.cjs";

/// How long the removal of what commands left beside the socket may take.
const PATIENCE: Duration = Duration::from_secs(20);

static DOCKER: Layout = layout("run/docker");
static PODMAN: Layout = layout("run/podman");
static APPLE: Layout = layout("run/apple");

const fn layout(run: &'static str) -> Layout {
    Layout {
        run,
        record: "sandbox.json",
        // It lies where commands can replace it.
        socket: None,
        files: &[PASSWD, GROUP, NODE_PROXY],
        folders: &[(AGENT, remove)],
    }
}

/// Where an engine's sandboxes are written down.
pub fn layout_of(kind: EngineKind) -> &'static Layout {
    match kind {
        EngineKind::Docker => &DOCKER,
        EngineKind::Podman => &PODMAN,
        EngineKind::Apple => &APPLE,
    }
}

/// Commands may have left anything there.
fn remove(parent: BorrowedFd<'_>, name: &str) -> std::io::Result<()> {
    let name = std::ffi::CString::new(name)?;
    let removed = moltis_host::remove::tree(parent.as_fd().try_clone_to_owned()?, &name, PATIENCE);
    removed.map(drop).map_err(|why| std::io::Error::other(why.to_string()))
}

/// A sandbox of ours in an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Name of its container. It is written down before there is one.
    pub name: String,
    /// The engine's id of it, once it is known.
    pub container: Option<String>,
    /// Where the engine is spoken to.
    pub endpoint: String,
    /// Fingerprint of the spec that it was made by.
    pub fingerprint: String,
    /// When it was made, in seconds since 1970.
    pub created_secs: u64,
    /// Variables of its image.
    pub image_env: Vec<String>,
    /// How its agent is reached, once that is known.
    pub way: Option<Way>,
    /// Whether managed files are shown in it.
    pub files: bool,
    /// Directories of its control groups.
    pub groups: Vec<PathBuf>,
    /// Whether there are folders that it may write to and that are watched.
    pub watched: bool,
}

/// How an agent is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Way {
    /// By its socket in the sandbox's folder. The process is the container's first, by the engine's word.
    #[serde(rename_all = "camelCase")]
    Socket {
        /// Its process id.
        pid: u32,
        /// When it started, in the kernel's ticks since the boot.
        started: u64,
        /// The boot and the PID namespace in which the number means something.
        realm: String,
    },
    /// By a program that the engine runs beside it, which gives it this secret (hexadecimal).
    Relay {
        /// Known to nobody but the agent and the owner of this folder.
        secret: String,
    },
    /// There is none: the engine does what there is to do.
    #[serde(rename_all = "camelCase")]
    Engine {
        /// How long it may be idle, in milliseconds; 0: it is held by its opener.
        idle_millis: u64,
    },
}

impl moltis_host::record::Record for Record {
    fn process(&self) -> Option<ProcessId<'_>> {
        match self.way.as_ref()? {
            Way::Socket { pid, started, realm } => {
                Some(ProcessId { pid: *pid, started: *started, realm: Cow::Borrowed(realm) })
            }
            Way::Relay { .. } | Way::Engine { .. } => None,
        }
    }
}

impl Record {
    /// What the engine finds the container by.
    pub fn handle(&self) -> &str {
        self.container.as_deref().unwrap_or(&self.name)
    }

    /// Whether no process known here stands for it, so that only the engine can tell what has become of it.
    pub fn process_unknown(&self) -> bool {
        !matches!(self.way, Some(Way::Socket { .. }))
    }

    /// Whether the engine means this one.
    pub fn is(&self, container: &Container) -> bool {
        self.container.as_deref() == Some(&container.id) || self.name == container.name
    }
}
