//! What is kept on the host, which is little, and why the rest is not.

use moltis_sandbox::{Guarantees, Promise};

/// What `restricted-host` keeps. `root` is whether commands run as uid 0.
pub fn restricted(root: bool) -> Guarantees {
    let mut guarantees = bare();
    guarantees.environment = Promise::Held;
    guarantees.memory = Promise::not_enforced(
        "an rlimit bounds each process by itself (address space if demanded, else private writable memory), not all \
         of them together",
    );
    guarantees.cpus = Promise::not_enforced(
        "an rlimit bounds the processor seconds of each process by itself, not how many cores all of them use",
    );
    guarantees.pids = Promise::not_enforced(if root {
        "RLIMIT_NPROC does not bind root, as whom commands run here"
    } else {
        "RLIMIT_NPROC bounds all processes of this user together: each command may bring them to what they were when \
         it started and `pids_max` more"
    });
    guarantees
}

/// What `none` keeps.
pub fn none() -> Guarantees {
    bare()
}

fn bare() -> Guarantees {
    let not = Promise::not_enforced;
    let network = || not("commands use the host's own network");
    let unlimited = || not("nothing limits commands that run straight on the host");
    Guarantees {
        filesystem: not("commands see and change all of the host's files that this user may"),
        kernel: not("commands run on the host's kernel, beside its other processes"),
        environment: not("commands get the caller's environment, but for what is Moltis's own"),
        network_blocked: network(),
        network_trusted: network(),
        network_open: not("commands use the host's own network, its loopback and private addresses included"),
        memory: unlimited(),
        cpus: unlimited(),
        pids: unlimited(),
        terminal: Promise::Held,
        background: Promise::Held,
        forward: Promise::Held,
        workspace: not("it is the working directory, at its own path; there is no /workspace"),
        home: not("nothing is mounted: there is no home of the sandbox's own"),
        managed_files: not(
            "they are at the path in MOLTIS_FILES_DIR, and commands may change whatever this user may; file tools obey \
             the mode",
        ),
        adopt: Promise::Held,
        images: not("commands run on the host's own system"),
        packages: not("commands run on the host's own system"),
        rootfs: not("commands run on the host's own files"),
        runtime: not("commands run straight on the host, without an OCI runtime"),
        gpus: not("commands reach the devices that this user may"),
        host_podman: not("commands reach the sockets that this user may"),
        nested_podman: not("commands run what this user may"),
    }
}
