//! What the host tells the launch helper: the plan of a `namespaces` sandbox, and what the helper reports back.
//! Policy is decided on the host; the helper carries the plan out step by step and knows none of its reasons.
//!
//! Both speak over one `SOCK_SEQPACKET` pair, [`CONTROL_FD`] in the helper:
//!
//! ```text
//! host → helper   Header + descriptors │ the plan's bytes, CHUNK_BYTES a packet
//! helper → host   Report::Born + a pidfd          (the child exists and builds its root)
//! helper → host   Report::Network + a namespace   (if the plan asks for it)
//! host → child    GO                              (it is in its cgroups, on record, and connected)
//! child → host    Report::Ready                   (it is confined and listens), or Report::Failed by either
//! ```
//!
//! A side that finds the socket closed before `Ready` ends itself: nothing outlives a launch that broke off.

use serde::{Deserialize, Serialize};

use crate::message::ByteString;

/// The helper's end of the socket pair; the only descriptor besides 0, 1 and 2 that it is started with.
pub const CONTROL_FD: i32 = 3;

/// Bytes of the plan in one packet, well below the smallest default of a socket's send buffer.
pub const CHUNK_BYTES: usize = 32 * 1024;

/// Largest plan in bytes.
pub const MAX_PLAN_BYTES: usize = 8 * 1024 * 1024;

/// Descriptors that may come with a header, bounded by the kernel (`SCM_MAX_FD`).
pub const MAX_DESCRIPTORS: usize = 253;

/// The packet that lets the child go on.
pub const GO: [u8; 1] = [1];

/// The first packet, [`Header::BYTES`] long. Its descriptors come with it in this order: the bound socket, the read
/// end of the lifeline if there is one, the cgroup directory if there is one, then the handed sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the plan in bytes.
    pub plan_bytes: u32,
    /// Whether a lifeline comes with it.
    pub lifeline: bool,
    /// Whether a cgroup (version 2) comes with it, to create the child in.
    pub cgroup: bool,
}

impl Header {
    /// Length on the wire.
    pub const BYTES: usize = 6;

    /// The bytes on the wire.
    pub fn encode(self) -> [u8; Self::BYTES] {
        let length = self.plan_bytes.to_le_bytes();
        [length[0], length[1], length[2], length[3], u8::from(self.lifeline), u8::from(self.cgroup)]
    }

    /// Reads a header; `None` for a plan above [`MAX_PLAN_BYTES`].
    pub fn decode(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let plan_bytes = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        (plan_bytes as usize <= MAX_PLAN_BYTES).then_some(Self {
            plan_bytes,
            lifeline: bytes[4] != 0,
            cgroup: bytes[5] != 0,
        })
    }
}

/// Everything that makes one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Who the sandbox's user is outside.
    pub identity: Identity,
    /// Sources that the helper, being privileged, clones before the child exists; in the order of their descriptors.
    /// Empty for an ordinary caller.
    pub handed: Vec<Handed>,
    /// Whether the host wants the child's network namespace.
    pub report_netns: bool,
    /// Host name inside.
    pub hostname: ByteString,
    /// How the root is built, in order. It is made read-only after the last step.
    pub root: Vec<Step>,
    /// Resource limits of the agent and all that it starts.
    pub rlimits: Vec<Rlimit>,
    /// `oom_score_adj` of the agent and all that it starts.
    pub oom_score_adj: i32,
    /// Landlock rules, where the kernel has it.
    pub landlock: Option<Landlock>,
    /// Seccomp programs (arrays of `struct sock_filter`), in the order in which they are installed.
    pub seccomp: Vec<ByteString>,
    /// What the agent does once it is confined.
    pub agent: Agent,
}

/// Who the sandbox's user is outside of its user namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// User id inside.
    pub inside_uid: u32,
    /// Group id inside.
    pub inside_gid: u32,
    /// Host user id behind it; never 0.
    pub outside_uid: u32,
    /// Host group id behind it; never 0.
    pub outside_gid: u32,
    /// Whether the caller is privileged: the child then drops all groups and changes to the inside ids. An ordinary
    /// caller is these ids already and denies `setgroups` instead.
    pub privileged: bool,
}

/// A source of the host that the helper clones from the handle it was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handed {
    /// Path, for messages only.
    pub path: ByteString,
    /// Owner on disk that is shown as the sandbox's user; absent when the file ids fit already.
    pub owner: Option<Owner>,
    /// What to do where the file system has no idmapped mounts.
    pub without_idmap: WithoutIdmap,
    /// Mount attributes (`MOUNT_ATTR_*`) to set, recursively.
    pub attributes: u64,
}

/// A pair of ids on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// What to do with a source whose file system cannot map ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WithoutIdmap {
    /// It is a folder of ours: give all in it to the sandbox's user.
    Chown,
    /// Report [`Stage::Idmap`].
    Refuse,
    /// Mount it with the ids that are on disk.
    Plain,
}

/// One step of building the root. Paths are absolute and mean the new root. Directories, files and links are made on
/// its own tmpfs only; on the way to other mount points no link is followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Makes a directory; the one above it exists.
    Directory {
        /// Where.
        path: ByteString,
        /// Permission bits.
        mode: u32,
    },
    /// Writes a small file.
    File {
        /// Where.
        path: ByteString,
        /// Permission bits.
        mode: u32,
        /// Content.
        content: ByteString,
    },
    /// Makes a symbolic link.
    Symlink {
        /// Where.
        path: ByteString,
        /// What it says.
        target: ByteString,
    },
    /// Mounts something.
    Mount(MountStep),
}

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountStep {
    /// What is mounted.
    pub source: Source,
    /// Where.
    pub target: ByteString,
    /// Mount attributes (`MOUNT_ATTR_*`) to set, recursively, on top of what the source has.
    pub attributes: u64,
    /// What is done about a target that does not fit.
    pub target_policy: TargetPolicy,
    /// Whether others can take the mount from its place, so that the agent has to find it there before each command.
    pub guarded: bool,
}

/// What is done about a mount point that is not there or does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetPolicy {
    /// A directory of the new root's own tmpfs, made if it is missing. Nothing that was mounted lies above it.
    OwnDirectory,
    /// A file of the new root's own tmpfs, made if it is missing. Nothing that was mounted lies above it.
    OwnFile,
    /// Something that the kernel's or the root's own file system has, or not: then the step is passed over.
    Existing,
    /// It is made when it is missing; another kind of object in its place is an error.
    Make,
    /// As `Make`, but another kind of object in its place is renamed to `<name>.displaced-<n>` first.
    Displace,
}

/// What a mount shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// A path of the host that the launching user may read anyway, links followed: shown read-only, without set-user-id
    /// programs and devices. Its target is one of the root's own.
    Host {
        /// The path.
        path: ByteString,
    },
    /// A device of the host. Its target is one of the root's own.
    Device {
        /// Its path.
        path: ByteString,
    },
    /// A path of the host that was opened and judged: it must still be that object.
    Judged {
        /// The real path.
        path: ByteString,
        /// Its device.
        device: u64,
        /// Its inode.
        inode: u64,
    },
    /// One of [`Plan::handed`].
    Handed {
        /// Which.
        index: u32,
    },
    /// A path of the new root.
    Inside {
        /// The path.
        path: ByteString,
    },
    /// An empty directory that can never be written to. Its target is one of the root's own.
    Nothing,
    /// A new file system. Its target is one of the root's own.
    New {
        /// Its type: `tmpfs`, `proc`, `devpts`.
        kind: ByteString,
        /// Its options, with commas between.
        options: ByteString,
    },
}

/// A resource limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    /// `RLIMIT_*`.
    pub resource: u32,
    /// Soft and hard limit. It is never raised: a lower hard limit stays.
    pub value: u64,
}

/// A Landlock ruleset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landlock {
    /// File system rights that are denied unless a rule grants them.
    pub handled: u64,
    /// Scopes (`LANDLOCK_SCOPE_*`).
    pub scoped: u64,
    /// Paths of the new root and the rights beneath them.
    pub rules: Vec<LandlockRule>,
}

/// A Landlock rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandlockRule {
    /// A path of the new root; passed over when it is not there.
    pub path: ByteString,
    /// Rights beneath it.
    pub rights: u64,
}

/// What the agent does once it is confined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    /// Directory that it runs commands in unless they say otherwise.
    pub directory: ByteString,
    /// Milliseconds without use after which it ends itself; 0 for never.
    pub idle_millis: u64,
    /// User id that the owner's connections show inside.
    pub owner_uid: u32,
    /// Whether it keeps a proxy port on the sandbox's loopback.
    pub egress: bool,
}

/// What the helper and its child tell the host. The host treats it as hostile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// The child exists. Its pidfd comes with this packet. It is the first report, unless there is no child.
    Born {
        /// Its process id as the helper sees it.
        pid: i32,
        /// Whether it was created in the cgroup that came with the header.
        placed: bool,
    },
    /// The sandbox has a network namespace, which comes with this packet. Sent only if the plan asks for it.
    Network,
    /// The child is confined and listens.
    Ready,
    /// It did not work.
    Failed(Fault),
}

/// Longest report in bytes.
pub const MAX_REPORT_BYTES: usize = 8 * 1024;

/// Where a launch failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// At which stage.
    pub stage: Stage,
    /// The thing it happened to, such as a path.
    pub what: ByteString,
    /// What the kernel answered; 0 when it was not the kernel.
    pub errno: i32,
}

/// Stages of a launch, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// Reading the plan.
    Plan,
    /// Cloning a handed source.
    Handed,
    /// Mapping the ids of a handed source.
    Idmap,
    /// Creating the namespaces (`clone`).
    Namespaces,
    /// Writing the uid and gid maps.
    IdMaps,
    /// Becoming the sandbox's user.
    Identity,
    /// Setting up the loopback interface or the host name.
    Network,
    /// Making the new root.
    Root,
    /// A source: it is gone, or another object stands in its place.
    Source,
    /// A mount point.
    Target,
    /// A mount.
    Mount,
    /// A new `/proc`.
    Proc,
    /// Leaving the host's tree.
    Pivot,
    /// Waiting for the host.
    Go,
    /// Leaving the host's cgroup namespace.
    CgroupNamespace,
    /// A resource limit.
    Rlimit,
    /// Dropping capabilities.
    Capabilities,
    /// Landlock.
    Landlock,
    /// A seccomp filter.
    Seccomp,
    /// Listening.
    Listen,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_wire_and_plans_are_bounded() {
        let header = Header { plan_bytes: 70_000, lifeline: true, cgroup: false };
        assert_eq!(Header::decode(header.encode()), Some(header));
        let long = Header { plan_bytes: MAX_PLAN_BYTES as u32 + 1, lifeline: false, cgroup: true };
        assert_eq!(Header::decode(long.encode()), None);
    }
}
