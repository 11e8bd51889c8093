//! What is true of this machine and this process and decides a diagnosis.

use std::path::Path;

/// The kind of container that this process runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// Docker, or something that looks like it.
    Docker,
    /// Podman.
    Podman,
    /// A Kubernetes pod.
    Kubernetes,
}

/// What decides a diagnosis. Absent means that the kernel has no such file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Whether this process has `CAP_SYS_ADMIN` in its own user namespace.
    pub privileged: bool,
    /// Whether the kernel has user namespaces at all.
    pub has_user_namespaces: bool,
    /// Names of the `/proc/sys/user/max_*_namespaces` that read 0, the user namespaces' first.
    pub zero_limits: Vec<String>,
    /// Debian's `kernel.unprivileged_userns_clone`.
    pub unprivileged_userns_clone: Option<u64>,
    /// Ubuntu's `kernel.apparmor_restrict_unprivileged_userns`.
    pub apparmor_restrict_userns: Option<u64>,
    /// The AppArmor profile that confines this process, if one does.
    pub apparmor_profile: Option<String>,
    /// Whether a seccomp filter is on this process.
    pub seccomp: bool,
    /// Whether the root directory is not the root of a mount.
    pub chrooted: bool,
    /// The container around this process.
    pub container: Option<Container>,
    /// Major and minor number of the kernel's release.
    pub kernel: (u32, u32),
    /// The whole release.
    pub kernel_release: String,
    /// Path of this program.
    pub program: String,
}

/// The namespaces of a sandbox, as their sysctls name them.
const LIMITS: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
/// Bit of `CAP_SYS_ADMIN`.
const CAP_SYS_ADMIN: u32 = 21;

impl Facts {
    /// Reads them: a handful of small files below `/proc`. Blocks for well under a millisecond.
    pub fn gather() -> Self {
        let status = read("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
        };
        let capabilities = field("CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
        let kernel_release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            privileged: capabilities >> CAP_SYS_ADMIN & 1 == 1,
            has_user_namespaces: Path::new("/proc/self/ns/user").exists(),
            zero_limits: LIMITS
                .iter()
                .map(|kind| format!("max_{kind}_namespaces"))
                .filter(|name| number(&format!("/proc/sys/user/{name}")) == Some(0))
                .collect(),
            unprivileged_userns_clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
            apparmor_restrict_userns: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
            apparmor_profile: profile(),
            seccomp: field("Seccomp") == Some("2"),
            chrooted: read("/proc/self/mountinfo").is_some_and(|text| chrooted(&text)),
            container: container(),
            kernel: version(&kernel_release),
            kernel_release,
            program: std::env::current_exe().map(|path| path.display().to_string()).unwrap_or_default(),
        }
    }
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number(path: &str) -> Option<u64> {
    read(path)?.parse().ok()
}

/// `docker-default (enforce)` names a profile in force; `unconfined`, and other security modules' labels, do not.
fn profile() -> Option<String> {
    let label = read("/proc/self/attr/apparmor/current").or_else(|| {
        Path::new("/sys/module/apparmor").exists().then(|| read("/proc/self/attr/current")).flatten()
    })?;
    Some(label.trim_end_matches('\0').strip_suffix(" (enforce)")?.to_owned())
}

/// In a chroot no mount shows at `/`.
fn chrooted(mountinfo: &str) -> bool {
    !mountinfo.is_empty() && !mountinfo.lines().any(|line| line.split(' ').nth(4) == Some("/"))
}

fn container() -> Option<Container> {
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Some(Container::Kubernetes);
    }
    if Path::new("/run/.containerenv").exists() {
        return Some(Container::Podman);
    }
    Path::new("/.dockerenv").exists().then_some(Container::Docker)
}

/// `6.18.44-rc1` is (6, 18); what cannot be read counts as recent, for old kernels are recognised by their answers.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (u32::MAX, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read() {
        let cases =
            [("6.18.44-fc", (6, 18)), ("5.10.0-30-amd64", (5, 10)), ("4.18", (4, 18)), ("?", (u32::MAX, 0))];
        for (release, expected) in cases {
            assert_eq!(version(release), expected, "{release}");
        }
    }

    #[test]
    fn a_chroot_shows_in_its_mounts() {
        assert!(!chrooted("22 1 8:1 / / rw - ext4 /dev/sda rw\n23 22 0:5 / /proc rw - proc proc rw\n"));
        assert!(chrooted("23 22 0:5 / /proc rw - proc proc rw\n"));
        assert!(!chrooted(""));
    }

    #[test]
    fn this_machine_has_facts() {
        let facts = Facts::gather();
        assert!(facts.has_user_namespaces);
        assert_ne!(facts.kernel, (u32::MAX, 0));
        assert!(facts.program.contains("moltis"));
    }
}
