//! How the guest binary is told to be the first process of a container, or a relay into one.

use std::time::Duration;

/// How the agent serves a container whose first process it is. Nothing here is secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerArgs {
    /// The socket that it makes, an absolute path inside. Its directory is a mount, or at least can be written to;
    /// whatever has the socket's name there is replaced. The socket appears once the agent listens and is confined.
    pub socket: String,
    /// User id of the host's processes that connect to the socket; root may, too.
    pub owner: u32,
    /// Where commands run that name no directory, an absolute path inside.
    pub cwd: String,
    /// Time without use after which it ends the sandbox; absent: never.
    pub idle: Option<Duration>,
    /// Whether it ends the sandbox with the connection that [holds](crate::sandbox::hold) it, and after a minute if
    /// nobody does.
    pub held: bool,
    /// Mounts, by absolute paths inside, without which it does not begin, and nothing is done once one is not in its
    /// place any more.
    pub guards: Vec<String>,
    /// What must be mounted at these paths, by device and inode, when it begins: an engine mounts by path, which may lead
    /// elsewhere by then.
    pub mounted: Vec<(String, u64, u64)>,
    /// Limits of every command.
    pub rlimits: Vec<(Resource, u64)>,
    /// Whether a relay may connect. The first relay must be there before the first command.
    pub relay: bool,
    /// Whether commands keep the capabilities that the engine gives and may gain others, without a filter of ours: what
    /// containers inside this one need.
    pub privileged: bool,
    /// Whether it keeps a proxy port on the loopback, which must be the container's own.
    pub egress: bool,
}

/// What an rlimit bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Address space in bytes.
    AddressSpace,
    /// A core file in bytes.
    Core,
    /// Processor time in seconds.
    Cpu,
    /// Data segments in bytes.
    Data,
    /// Open files.
    Files,
    /// Processes of the user.
    Processes,
}

impl ContainerArgs {
    /// Program arguments after the path of the guest binary.
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec!["container".to_owned()];
        let mut add = |name: &str, value: String| args.extend([name.to_owned(), value]);
        add("--socket", self.socket.clone());
        add("--owner", self.owner.to_string());
        add("--cwd", self.cwd.clone());
        if let Some(idle) = self.idle {
            // Less than a millisecond is not never.
            add("--idle", idle.as_millis().max(1).to_string());
        }
        if self.held {
            add("--lifetime", "held".to_owned());
        }
        for guard in &self.guards {
            add("--guard", guard.clone());
        }
        for (path, device, inode) in &self.mounted {
            add("--mounted", format!("{device}:{inode}:{path}"));
        }
        for (resource, limit) in &self.rlimits {
            add("--rlimit", format!("{}={limit}", resource.name()));
        }
        args.extend(self.relay.then(|| "--relay".to_owned()));
        args.extend(self.privileged.then(|| "--privileged".to_owned()));
        args.extend(self.egress.then(|| "--egress".to_owned()));
        args
    }
}

impl Resource {
    fn name(self) -> &'static str {
        match self {
            Self::AddressSpace => "as",
            Self::Core => "core",
            Self::Cpu => "cpu",
            Self::Data => "data",
            Self::Files => "nofile",
            Self::Processes => "nproc",
        }
    }
}

/// Program arguments, after the path of the guest binary, of a relay to the agent that listens on `socket`. Its standard
/// input and output are for a [`RelayTransport`](crate::RelayTransport); on standard error it says in one line
/// why it ends, if it does so by itself.
///
/// It is best run as a user that no command runs as (root without capabilities, say): commands can then neither trace it
/// in the moment before it forbids that, nor signal it.
pub fn relay_args(socket: &str) -> Vec<String> {
    ["relay", "--socket", socket].map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_asked_for_is_said() {
        let args = ContainerArgs {
            socket: "/.moltis/agent/agent.sock".to_owned(),
            owner: 1000,
            cwd: "/home/sandbox".to_owned(),
            idle: Some(Duration::from_nanos(1)),
            held: true,
            guards: vec!["/a b".to_owned(), "/c".to_owned()],
            mounted: vec![("/w:x".to_owned(), 7, 8)],
            rlimits: vec![(Resource::Core, 0), (Resource::Files, 1024)],
            relay: true,
            privileged: true,
            egress: true,
        };
        let expected = [
            "container",
            "--socket",
            "/.moltis/agent/agent.sock",
            "--owner",
            "1000",
            "--cwd",
            "/home/sandbox",
            "--idle",
            "1",
            "--lifetime",
            "held",
            "--guard",
            "/a b",
            "--guard",
            "/c",
            "--mounted",
            "7:8:/w:x",
            "--rlimit",
            "core=0",
            "--rlimit",
            "nofile=1024",
            "--relay",
            "--privileged",
            "--egress",
        ];
        assert_eq!(args.to_args(), expected);
        let plain = ContainerArgs {
            idle: None,
            held: false,
            guards: Vec::new(),
            mounted: Vec::new(),
            rlimits: Vec::new(),
            relay: false,
            privileged: false,
            egress: false,
            ..args
        };
        assert_eq!(plain.to_args(), expected[..7]);
    }
}
