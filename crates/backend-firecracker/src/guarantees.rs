//! What a machine of its own keeps, and why the rest is not.
//!
//! It is the same by SSH: `blocked` and `trusted` are then kept by rules for the machine's network device, since SSH needs
//! one.

use moltis_sandbox::{Guarantees, Promise};

/// What is kept; `open` is what detection found of the network `open`.
pub fn of(open: Promise) -> Guarantees {
    let not = Promise::not_enforced;
    let shown = || not("a machine shows nothing of the host's folders: use `moltis cp`");
    Guarantees {
        filesystem: Promise::Held,
        kernel: Promise::Held,
        environment: Promise::Held,
        network_blocked: Promise::Held,
        network_trusted: Promise::Held,
        network_open: open,
        memory: Promise::Held,
        cpus: not(
            "a machine has whole processors (`firecracker_vcpus`), and nothing bounds what they use of the host's",
        ),
        pids: Promise::Held,
        terminal: Promise::Held,
        background: Promise::Held,
        forward: Promise::Held,
        workspace: shown(),
        home: not("the home is on the machine's own disk, which ends with it"),
        managed_files: shown(),
        adopt: Promise::Held,
        images: not("it starts from the root file system that `firecracker_rootfs` names"),
        packages: not("it has what is in the root file system that `firecracker_rootfs` names"),
        rootfs: not("`rootfs` is a folder; a machine's root file system is named by `firecracker_rootfs`"),
        runtime: not("it has no OCI runtime: it is a virtual machine"),
        gpus: not("it has none of the host's devices"),
        host_podman: not("it is a hatch of podman"),
        nested_podman: not("it is a hatch of podman"),
    }
}
