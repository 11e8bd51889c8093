//! What is kept here, and why the rest is not.

use moltis_sandbox::{Guarantees, Promise};

/// Why there is no terminal.
pub const NO_TERMINAL: &str = "the shell inside reads streams, not a terminal";
/// Why no port is forwarded.
pub const NO_FORWARD: &str = "nothing inside has a network, not even a loopback";

/// What `wasm` keeps. `metered` is whether this program counts what the shell allocates.
pub fn guarantees(metered: bool) -> Guarantees {
    let not = Promise::not_enforced;
    Guarantees {
        filesystem: Promise::Held,
        kernel: Promise::Held,
        environment: Promise::Held,
        network_blocked: Promise::Held,
        network_trusted: not("nothing inside can open a connection, through a proxy or otherwise"),
        network_open: not("nothing inside can open a connection"),
        memory: if metered {
            Promise::Held
        } else {
            not("this program does not count what the shell inside allocates; only modules are bounded")
        },
        cpus: Promise::Held,
        pids: Promise::Held,
        terminal: not(NO_TERMINAL),
        background: Promise::Held,
        forward: not(NO_FORWARD),
        workspace: Promise::Held,
        home: Promise::Held,
        managed_files: Promise::Held,
        adopt: Promise::Held,
        images: not("there is no image: the shell's commands are built in, programs are WASI modules"),
        packages: not("there is no image: the shell's commands are built in, programs are WASI modules"),
        rootfs: not("there is no root directory but the one that is built in"),
        runtime: not("no OCI runtime is used"),
        gpus: not("nothing inside reaches a device"),
        host_podman: not("nothing inside reaches a socket of the host"),
        nested_podman: not("nothing inside is a process"),
    }
}
