//! What the contract asks for and the in-process shell does not have.

/// What a script leaves running.
const LEFTOVERS: &str = "nothing inside is a process: a job is part of its shell and ends with it at once, which the answer notes";

/// What processes do to each other.
const PROCESSES: &str = "nothing inside is a process that others could see, share limits with, or end";

/// Signals.
const SIGNALS: &str = "a shell in this process gets no signals: one that would end a program ends it, and no trap is asked first";

/// Bytes.
const TEXT: &str = "names and arguments inside are UTF-8 text without control characters; file access from outside \
                    takes any bytes";

/// Input.
const INPUT: &str = "the shell inside waits for the end of its input before it can close it";

/// Processors.
const CPUS: &str = "kept by the deadline: a command computes on one thread until its time is up, at most";

/// Networks.
const NETWORK: &str = "nothing inside has a network, not even a loopback";

/// System calls.
const CALLS: &str = "nothing inside makes system calls: the shell is a part of this process, and programs are WASI \
                     modules, whose every call this process answers";

/// Agents.
const AGENT: &str = "there is no agent, and so no socket of one that another program could take";

/// Cases, and why.
pub const APART: &[(&str, &str)] = &[
    ("exec.argv", TEXT),
    ("exec.cwd", TEXT),
    ("stdin.closed-by-the-command", INPUT),
    ("exec.sessions-processes-apart", PROCESSES),
    ("ends.at-once", LEFTOVERS),
    ("ends.leftovers-hold-output", LEFTOVERS),
    ("ends.leftovers-counted", LEFTOVERS),
    ("ends.time-out-with-leftovers", LEFTOVERS),
    ("ends.fork-storm", PROCESSES),
    ("ends.beside-others", LEFTOVERS),
    ("ends.asked-to-stop-first", SIGNALS),
    ("ends.stopped-descent", SIGNALS),
    ("ends.signal", SIGNALS),
    ("background.input-and-signal", SIGNALS),
    ("files.odd-names", TEXT),
    ("network.own-loopback", NETWORK),
    ("limits.cpus", CPUS),
    ("limits.pids", PROCESSES),
    ("attack.host-by-handle", CALLS),
    ("attack.kernel-settings", CALLS),
    ("attack.kernel-memory", CALLS),
    ("attack.devices", CALLS),
    ("attack.leaked-descriptors", CALLS),
    ("attack.cgroups", CALLS),
    ("attack.abstract-sockets", NETWORK),
    ("attack.host-processes", PROCESSES),
    ("attack.host-ports", NETWORK),
    ("attack.mounts", CALLS),
    ("attack.privileges", CALLS),
    ("attack.keyrings", CALLS),
    ("attack.user-namespaces", CALLS),
    ("attack.io-uring", CALLS),
    ("attack.foreign-abi", CALLS),
    ("attack.kernel-interfaces", CALLS),
    ("attack.namespaces", CALLS),
    ("attack.terminal-input", CALLS),
    ("attack.vsock", NETWORK),
    ("attack.socket-families", NETWORK),
    ("attack.ptrace-agent", PROCESSES),
    ("attack.read-agent", PROCESSES),
    ("attack.agent-socket-inside", PROCESSES),
    ("attack.agent-impersonated", AGENT),
    ("attack.kill-everything", PROCESSES),
    ("attack.stop-everything", PROCESSES),
    ("attack.daemon-after-time-out", PROCESSES),
    ("egress.noproxy", NETWORK),
    ("egress.raw-ip", NETWORK),
    ("egress.dns", NETWORK),
    ("egress.no-route", NETWORK),
    ("egress.icmp", NETWORK),
    ("egress.udp", NETWORK),
    ("egress.socket-families", NETWORK),
    ("egress.unix-sockets", NETWORK),
    ("egress.interfaces", NETWORK),
];
