//! Reaching for the kernel: mounts, namespaces, privileges and system calls that are closed.

use super::{Probe, probes};
use crate::Case;

pub(super) fn cases() -> Vec<Case> {
    vec![
        probes!("attack.mounts", MOUNTS),
        probes!("attack.user-namespaces", USER_NAMESPACES),
        probes!("attack.namespaces", NAMESPACES),
        probes!("attack.privileges", PRIVILEGES),
        probes!("attack.keyrings", KEYRINGS),
        probes!("attack.io-uring", IO_URING),
        probes!("attack.kernel-interfaces", INTERFACES),
        probes!("attack.foreign-abi", ABI),
        probes!("attack.vsock", VSOCK),
        probes!("attack.socket-families", FAMILIES),
        probes!("attack.terminal-input", TERMINAL),
    ]
}

const MOUNTS: &[Probe] = &[
    Probe::weaker("mount-tmpfs", "mount-tmpfs=weaker"),
    Probe::weaker("bind-mount", "bind-mount=weaker"),
    Probe::weaker("remount-writable", "remount-writable=weaker"),
    Probe::weaker("unmount", "unmount=weaker"),
    Probe::weaker("open-tree", "open-tree=weaker"),
    Probe::weaker("fsopen", "fsopen=weaker"),
    Probe::weaker("chroot", "chroot=weaker"),
    Probe::weaker("pivot-root", "pivot-root=weaker"),
];

const USER_NAMESPACES: &[Probe] = &[
    Probe::same("user-namespace-by-unshare"),
    Probe::same("user-namespace-by-clone"),
    Probe::same("user-namespace-by-clone3"),
];

const NAMESPACES: &[Probe] = &[
    Probe::weaker("other-namespaces", "other-namespaces=weaker"),
    Probe::weaker("enter-namespaces-of-others", "enter-namespaces-of-others=weaker"),
];

const PRIVILEGES: &[Probe] = &[
    Probe::same("become-root"),
    Probe::same("no-privileges"),
    Probe::same("set-host-name"),
    Probe::same("set-clock"),
    Probe::same("kernel-log"),
    Probe::same("raise-limits"),
];

const KEYRINGS: &[Probe] =
    &[Probe::same("keyring-add"), Probe::same("keyring-read"), Probe::same("keyring-request")];

const IO_URING: &[Probe] = &[Probe::same("io-uring")];

const INTERFACES: &[Probe] = &[Probe::same("bpf"), Probe::same("perf"), Probe::same("userfaultfd")];

const ABI: &[Probe] = &[Probe::same("i386-calls"), Probe::optional("x32-calls")];

const VSOCK: &[Probe] = &[Probe::same("socket-family=40")];

const FAMILIES: &[Probe] =
    &[Probe::same("socket-family=17"), Probe::optional("socket-family=38"), Probe::same("raw-socket")];

const TERMINAL: &[Probe] = &[Probe::same("tiocsti=new"), Probe::same("tioclinux=new")];
