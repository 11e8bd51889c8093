//! What an engine is and what it can do here.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// Apple's `container`.
    Apple,
}

impl EngineKind {
    /// Its name for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
            Self::Apple => "Apple Container",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an engine says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineInfo {
    /// Its version, such as `20.10.24`.
    pub version: String,
    /// Architecture of its containers' kernel in Rust's words: `x86_64`, `aarch64`.
    pub arch: String,
    /// Kernel that containers run on, as `uname -r` says it; empty where the engine does not say.
    pub kernel: String,
    /// The engine's own host name; empty where the engine does not say.
    pub hostname: String,
    /// Where containers run, as far as it can be known without one.
    pub place: Place,
    /// Whether the engine runs without root, so that root inside is its user outside.
    pub rootless: bool,
    /// Whether ids inside are mapped to others for every container (Docker's `userns-remap`).
    pub userns_remap: bool,
    /// 1 or 2; 0 where the engine does not say.
    pub cgroup_version: u8,
    /// Whether a memory limit, swap counted, binds.
    pub memory: Support,
    /// Whether a processor limit binds.
    pub cpus: Support,
    /// Whether a limit of processes binds.
    pub pids: Support,
    /// Whether a container can be left without any network but its own loopback.
    pub network_none: Support,
    /// What confines containers beyond namespaces.
    pub confinement: Confinement,
    /// OCI runtimes that can be asked for by name; empty where the engine does not say.
    pub runtimes: Vec<String>,
    /// What the engine itself warns about.
    pub warnings: Vec<String>,
}

/// What bounds the processes of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessLimit {
    /// A control group, all together.
    Group,
    /// `RLIMIT_NPROC`, those of each user in the container's own user namespace. All that runs in a sandbox is one user's.
    Users,
    /// Nothing does, and why.
    No(String),
}

/// The first kernel that counts a user's processes in each user namespace by itself. Before it, those that the caller has
/// on the desktop would count too.
const COUNTS_IN_NAMESPACES: (u32, u32) = (5, 14);

impl EngineInfo {
    /// What bounds the processes of a container here.
    pub fn process_limit(&self, kind: EngineKind) -> ProcessLimit {
        match &self.pids {
            Support::Yes => ProcessLimit::Group,
            Support::No(_)
                if kind == EngineKind::Podman
                    && self.rootless
                    && self.place == Place::Here
                    && version(&self.kernel) >= Some(COUNTS_IN_NAMESPACES) =>
            {
                ProcessLimit::Users
            }
            Support::No(reason) => ProcessLimit::No(reason.clone()),
        }
    }

    /// Whether a container can be made to stand still, which takes a control group of its own.
    pub fn can_pause(&self) -> bool {
        let has_group = [&self.memory, &self.cpus, &self.pids].into_iter().any(Support::is_yes);
        !self.rootless || (self.cgroup_version != 1 && has_group)
    }
}

/// The first two numbers of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
impl EngineInfo {
    /// A rootful engine on this machine that keeps everything, for tests that change what they are about.
    pub fn whole() -> Self {
        Self {
            version: "1".into(),
            arch: "x86_64".into(),
            kernel: String::new(),
            hostname: String::new(),
            place: Place::Here,
            rootless: false,
            userns_remap: false,
            cgroup_version: 2,
            memory: Support::Yes,
            cpus: Support::Yes,
            pids: Support::Yes,
            network_none: Support::Yes,
            confinement: Confinement::default(),
            runtimes: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

/// Where an engine's containers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// On this kernel, with this machine's files: a bind mount shows what this process sees.
    Here,
    /// In a virtual machine that shares folders of this machine: bind mounts work, sockets and process ids do not.
    Vm,
    /// Somewhere else: nothing of this machine can be mounted.
    Remote,
}

/// Whether something works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Support {
    /// It does.
    Yes,
    /// It does not, for this reason.
    No(String),
}

impl Support {
    /// Whether it works.
    pub fn is_yes(&self) -> bool {
        *self == Self::Yes
    }
}

/// What confines containers beyond namespaces and cgroups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// Whether the engine applies a seccomp profile of its own.
    pub seccomp: bool,
    /// Whether SELinux is enforced.
    pub selinux: bool,
    /// Whether there is AppArmor.
    pub apparmor: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_control_group_nothing_stands_still() {
        let whole = EngineInfo { cgroup_version: 1, ..EngineInfo::whole() };
        let no = || Support::No("why".to_owned());
        let bare = EngineInfo { memory: no(), cpus: no(), pids: no(), ..whole.clone() };
        let found = [(&whole, 1), (&whole, 2), (&bare, 1), (&bare, 2)]
            .map(|(info, cgroup_version)| EngineInfo { cgroup_version, ..info.clone() })
            .map(|info| (info.can_pause(), EngineInfo { rootless: true, ..info }.can_pause()));
        assert_eq!(found, [(true, false), (true, true), (true, false), (true, false)]);
    }

    #[test]
    fn processes_are_bounded_by_what_binds() {
        let no = || Support::No("why".to_owned());
        let (docker, podman) = (EngineKind::Docker, EngineKind::Podman);
        let rootless = EngineInfo {
            rootless: true,
            pids: no(),
            kernel: "6.1.0-18-amd64".to_owned(),
            ..EngineInfo::whole()
        };
        assert_eq!(EngineInfo::whole().process_limit(docker), ProcessLimit::Group);
        assert_eq!(rootless.process_limit(podman), ProcessLimit::Users);
        let none = ProcessLimit::No("why".to_owned());
        assert_eq!(rootless.process_limit(docker), none);
        for other in [
            EngineInfo { kernel: "5.13.19".to_owned(), ..rootless.clone() },
            EngineInfo { kernel: "six".to_owned(), ..rootless.clone() },
            EngineInfo { place: Place::Vm, ..rootless.clone() },
            EngineInfo { rootless: false, ..rootless.clone() },
        ] {
            assert_eq!(other.process_limit(podman), none, "{other:?}");
        }
    }
}
