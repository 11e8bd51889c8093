//! What containers keep on the engine that was found.

use moltis_sandbox::{Guarantees, NotEnforced, Promise, Usable};

use crate::agentless::{NO_BACKGROUND, NO_FORWARD, cost};
use crate::connected::Connected;
use crate::engine::{EngineInfo, EngineKind, Place, ProcessLimit, Support};

const UNCARRIED: &str = "without an agent nobody inside carries connections to the proxy";
const KERNEL: &str = "containers share the kernel of their host";
const UNGUARDED: &str =
    "without an agent nobody sees whether another sandbox has taken away what is mounted in a home";
const REMAPPED: &str =
    "the engine maps all user ids, so that nobody inside could write to a folder of this machine";
const REMOTE: &str = "the engine is on another machine, of which nothing of this one can be seen";

/// What an engine is worth, for people and for judging.
pub fn usable(kind: EngineKind, connected: &Connected) -> Usable {
    let info = &connected.info;
    let mut notes = vec![format!("at {}", connected.engine.endpoint())];
    notes.push(if info.rootless { "rootless".to_owned() } else { "rootful".to_owned() });
    match info.place {
        Place::Here => {}
        Place::Vm => notes.push("in a virtual machine of this one's".to_owned()),
        Place::Remote => notes.push("on another machine: agent and files travel by archive".to_owned()),
    }
    if info.userns_remap {
        notes.push("with user ids remapped: no folder of this machine can be writable".to_owned());
    }
    let without = connected.means.without_agent();
    notes.extend(without.map(cost));
    if kind != EngineKind::Apple {
        notes.extend(info.warnings.iter().take(8).cloned());
    }
    let guarantees = guarantees(kind, info, without.is_some());
    Usable { version: info.version.clone(), guarantees, left_off: left_off(kind, info), notes }
}

/// What is built in and cannot be had of this engine. Apple's tool says itself what it lacks, by version.
fn left_off(kind: EngineKind, info: &EngineInfo) -> Vec<NotEnforced> {
    let mut rows = Vec::new();
    let mut row = |key: &str, reason: &str| {
        rows.push(NotEnforced { key: key.to_owned(), reason: reason.to_owned() });
    };
    if kind == EngineKind::Apple {
        info.warnings.iter().for_each(|lacking| row("hardening", lacking));
    }
    if kind != EngineKind::Apple && !info.confinement.seccomp {
        row("seccomp profile", "the engine applies none of its own; the agent's filter is applied");
    }
    if kind == EngineKind::Docker && info.place != Place::Here {
        row("hardware masks", "which of them exist where its containers run cannot be seen from here");
    }
    if info.place == Place::Remote {
        row(
            "generated passwd and group",
            "nothing of this machine can be shown there: the image's own are used",
        );
    }
    rows
}

fn promise(support: &Support) -> Promise {
    match support {
        Support::Yes => Promise::Held,
        Support::No(reason) => Promise::not_enforced(reason.clone()),
    }
}

fn podman(kind: EngineKind, possible: bool) -> Promise {
    match kind {
        EngineKind::Podman if possible => Promise::Held,
        EngineKind::Podman => {
            Promise::not_enforced("the host's Podman is in a virtual machine, or elsewhere")
        }
        EngineKind::Docker | EngineKind::Apple => Promise::not_enforced("it is for Podman"),
    }
}

fn guarantees(kind: EngineKind, info: &EngineInfo, agentless: bool) -> Guarantees {
    let agent = |why: &str| {
        if agentless { Promise::not_enforced(why.to_owned()) } else { Promise::Held }
    };
    let here = || if info.place == Place::Remote { Promise::not_enforced(REMOTE) } else { Promise::Held };
    let kernel = match kind {
        EngineKind::Apple => Promise::Held,
        EngineKind::Docker | EngineKind::Podman => Promise::not_enforced(KERNEL),
    };
    Guarantees {
        filesystem: Promise::Held,
        kernel,
        environment: Promise::Held,
        network_blocked: promise(&info.network_none),
        // What leaves nothing but loopback; the one road out of there is the agent's.
        network_trusted: if agentless { agent(UNCARRIED) } else { promise(&info.network_none) },
        network_open: Promise::Held,
        memory: promise(&info.memory),
        cpus: promise(&info.cpus),
        pids: match info.process_limit(kind) {
            ProcessLimit::Group | ProcessLimit::Users => Promise::Held,
            ProcessLimit::No(reason) => Promise::not_enforced(reason),
        },
        terminal: Promise::Held,
        background: agent(NO_BACKGROUND),
        forward: agent(NO_FORWARD),
        workspace: here(),
        home: if info.userns_remap { Promise::not_enforced(REMAPPED) } else { here() },
        managed_files: if agentless { agent(UNGUARDED) } else { here() },
        adopt: Promise::Held,
        images: Promise::Held,
        packages: Promise::Held,
        rootfs: Promise::not_enforced("a container's root is its image"),
        runtime: match kind {
            EngineKind::Apple => Promise::not_enforced("it has one runtime, its own"),
            EngineKind::Docker | EngineKind::Podman => Promise::Held,
        },
        gpus: match kind {
            EngineKind::Apple => Promise::not_enforced("it passes no graphics processors on"),
            EngineKind::Docker | EngineKind::Podman => Promise::Held,
        },
        host_podman: podman(kind, info.place == Place::Here),
        nested_podman: podman(kind, true),
    }
}
