//! What the host and the first process of a virtual machine say to each other: how it is to begin, on the kernel's command
//! line; that it has been begun anew from a snapshot; and streams with half-close over vsock, which some hypervisors end in
//! both directions at once.

use std::net::Ipv4Addr;

/// Port on which connections to the agent arrive.
pub const AGENT_PORT: u32 = 1024;

/// Port on which the first process is [woken](Wake).
pub const WAKE_PORT: u32 = 1025;

/// The host's number; nobody else is listened to.
pub const HOST_CID: u32 = 2;

/// The machine's number. Each hypervisor process has a space of its own.
pub const GUEST_CID: u32 = 3;

/// How a machine is to begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Boot {
    /// Whether the first disk is only read and the second one takes what is written; otherwise there is one that takes
    /// both.
    pub overlay: bool,
    /// Whether the agent keeps a proxy port.
    pub egress: bool,
    /// Tasks that the sandbox's user may have.
    pub pids: Option<u64>,
    /// Milliseconds without use after which the machine ends, until somebody says otherwise.
    pub idle_millis: u64,
    /// Its own address, the way out, and how many bits both have in common; absent: it has loopback alone.
    pub address: Option<(Ipv4Addr, Ipv4Addr, u8)>,
    /// Name servers.
    pub servers: Vec<Ipv4Addr>,
}

/// What the words of ours on a kernel's command line begin with. Kernels pass over those with a dot in them.
const PREFIX: &str = "moltis.";

impl Boot {
    /// As words of a kernel's command line.
    pub fn to_words(&self) -> String {
        let mut words = vec![format!("{PREFIX}idle={}", self.idle_millis)];
        let mut add = |name: &str, value: String| words.push(format!("{PREFIX}{name}={value}"));
        if self.overlay {
            add("overlay", "1".to_owned());
        }
        if self.egress {
            add("egress", "1".to_owned());
        }
        if let Some(pids) = self.pids {
            add("pids", pids.to_string());
        }
        if let Some((own, way, bits)) = self.address {
            add("address", format!("{own}/{bits},{way}"));
        }
        for server in &self.servers {
            add("server", server.to_string());
        }
        words.join(" ")
    }

    /// What the words of ours on a kernel's command line say.
    ///
    /// # Errors
    /// One sentence that names the word.
    pub fn from_command_line(line: &str) -> Result<Self, String> {
        let mut boot = Self::default();
        for word in line.split_whitespace().filter_map(|word| word.strip_prefix(PREFIX)) {
            let wrong = || format!("the kernel's command line says {PREFIX}{word}");
            let (name, value) = word.split_once('=').ok_or_else(wrong)?;
            match name {
                "idle" => boot.idle_millis = value.parse().map_err(|_| wrong())?,
                "overlay" => boot.overlay = value == "1",
                "egress" => boot.egress = value == "1",
                "pids" => boot.pids = Some(value.parse().map_err(|_| wrong())?),
                "address" => boot.address = Some(address(value).ok_or_else(wrong)?),
                "server" => boot.servers.push(value.parse().map_err(|_| wrong())?),
                _ => return Err(wrong()),
            }
        }
        Ok(boot)
    }
}

fn address(value: &str) -> Option<(Ipv4Addr, Ipv4Addr, u8)> {
    let (own, way) = value.split_once(',')?;
    let (own, bits) = own.split_once('/')?;
    let bits = bits.parse().ok().filter(|bits| (1..=32).contains(bits))?;
    Some((own.parse().ok()?, way.parse().ok()?, bits))
}

/// Bytes of a [`Wake`].
pub const WAKE_BYTES: usize = 64;

/// What the first process answers when it has done what it was told.
pub const AWAKE: [u8; 8] = *b"MOLTISUP";

const MAGIC: [u8; 8] = *b"MOLTISWK";

/// What makes a machine one of its own, told before anything is done in it: it may have been begun from a snapshot that
/// others were begun from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// Nanoseconds since 1970.
    pub nanos: u64,
    /// The machine's number in `/etc/machine-id`.
    pub machine: [u8; 16],
    /// What its random numbers are stirred with.
    pub seed: [u8; 32],
}

impl Wake {
    /// As bytes.
    pub fn encode(&self) -> [u8; WAKE_BYTES] {
        let mut bytes = [0; WAKE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.nanos.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.machine);
        bytes[32..].copy_from_slice(&self.seed);
        bytes
    }

    /// From bytes; `None` if they are none of ours.
    pub fn decode(bytes: &[u8; WAKE_BYTES]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (nanos, rest) = rest.split_first_chunk::<8>()?;
        let (machine, seed) = rest.split_first_chunk::<16>()?;
        let seed = *seed.first_chunk::<32>()?;
        (*magic == MAGIC).then_some(Self { nanos: u64::from_le_bytes(*nanos), machine: *machine, seed })
    }
}

/// Bytes in front of each piece of a stream.
pub const PIECE_HEADER: usize = 2;

/// Bytes of a piece, at most.
pub const MAX_PIECE: usize = 32 * 1024;

/// What stands in front of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// So many bytes follow, at least one.
    Data(usize),
    /// This direction ends here. An end of the stream without it is a loss.
    End,
    /// The agent is gone and has read nothing of this stream, which ends here.
    Unread,
}

impl Piece {
    /// As bytes.
    pub fn encode(self) -> [u8; PIECE_HEADER] {
        match self {
            Self::Data(length) => (length as u16).to_le_bytes(),
            Self::End => [0, 0],
            Self::Unread => [0xff, 0xff],
        }
    }

    /// From bytes; `None` if nothing begins so.
    pub fn decode(bytes: [u8; PIECE_HEADER]) -> Option<Self> {
        match usize::from(u16::from_le_bytes(bytes)) {
            0 => Some(Self::End),
            0xffff => Some(Self::Unread),
            length if length <= MAX_PIECE => Some(Self::Data(length)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_on_the_command_line_is_read_from_it() {
        let way = Ipv4Addr::new(10, 0, 0, 1);
        let boot = Boot {
            overlay: true,
            egress: true,
            pids: Some(7),
            idle_millis: 60_000,
            address: Some((Ipv4Addr::new(10, 0, 0, 2), way, 30)),
            servers: vec![Ipv4Addr::new(9, 9, 9, 9), way],
        };
        let line = format!("console=ttyS0 {} root=/dev/vda rw", boot.to_words());
        assert_eq!(Boot::from_command_line(&line), Ok(boot));
        assert_eq!(Boot::from_command_line(&Boot::default().to_words()), Ok(Boot::default()));
        for wrong in
            ["moltis.what=1", "moltis.pids=x", "moltis.idle", "moltis.address=1.2.3.4", "moltis.server=a"]
        {
            assert!(Boot::from_command_line(wrong).unwrap_err().ends_with(wrong), "{wrong}");
        }
    }

    #[test]
    fn a_wake_is_known_by_its_beginning() {
        let wake = Wake { nanos: 1 << 60, machine: [7; 16], seed: [9; 32] };
        let mut bytes = wake.encode();
        assert_eq!(Wake::decode(&bytes), Some(wake));
        bytes[0] = 0;
        assert_eq!(Wake::decode(&bytes), None);
    }

    #[test]
    fn pieces_are_bounded() {
        for piece in [Piece::Data(1), Piece::Data(MAX_PIECE), Piece::End, Piece::Unread] {
            assert_eq!(Piece::decode(piece.encode()), Some(piece));
        }
        assert_eq!(Piece::decode(((MAX_PIECE + 1) as u16).to_le_bytes()), None);
    }
}
