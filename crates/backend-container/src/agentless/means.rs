//! How a sandbox is served: by an agent through its socket or a relay, or by the engine alone.

use std::io;
use std::path::{Path, PathBuf};

use crate::engine::{EngineInfo, Place};

/// Largest guest binary that is taken from beside the program.
const MAX_GUEST: u64 = 64 << 20;

/// Which agents there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guests {
    /// Architecture of the one in this program, in Rust's words; absent: it has none.
    pub built_in: Option<String>,
    /// Where others lie, as `moltis-guest-<architecture>-linux`.
    pub beside: Option<PathBuf>,
}

impl Guests {
    /// Those of this program.
    pub fn of_program() -> Self {
        let has = !moltis_agent::binary::guest_bytes().is_empty();
        Self {
            built_in: has.then(|| std::env::consts::ARCH.to_owned()),
            beside: std::env::current_exe()
                .ok()
                .and_then(|program| program.canonicalize().ok())
                .and_then(|program| program.parent().map(Path::to_owned)),
        }
    }

    /// One for this architecture. Blocks on a look-up.
    pub fn of(&self, arch: &str) -> Option<Guest> {
        // An engine that does not say runs what this machine runs.
        if self.built_in.as_deref().is_some_and(|own| own == arch || arch.is_empty()) {
            return Some(Guest::BuiltIn);
        }
        let is_name = !arch.is_empty() && arch.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let path = self.beside.as_ref().filter(|_| is_name)?.join(format!("moltis-guest-{arch}-linux"));
        path.is_file().then_some(Guest::File(path))
    }
}

/// An agent's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guest {
    /// It is in this one.
    BuiltIn,
    /// It is a file beside this one.
    File(PathBuf),
}

impl Guest {
    /// Its bytes. Blocks.
    ///
    /// # Errors
    /// When it cannot be read, or is no Linux program.
    pub fn bytes(&self) -> io::Result<std::borrow::Cow<'static, [u8]>> {
        use std::io::Read;

        let path = match self {
            Self::BuiltIn => return Ok(moltis_agent::binary::guest_bytes().into()),
            Self::File(path) => path,
        };
        let mut bytes = Vec::new();
        std::fs::File::open(path)?.take(MAX_GUEST).read_to_end(&mut bytes)?;
        if !bytes.starts_with(b"\x7fELF") || bytes.len() as u64 == MAX_GUEST {
            let wrong = format!("{} is no Linux program of a usual size", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, wrong));
        }
        Ok(bytes.into())
    }

    /// Puts it into a folder of ours, from which it can be mounted. Blocks.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn extract(&self, cache: &Path) -> io::Result<PathBuf> {
        match self {
            Self::BuiltIn => moltis_agent::binary::extract(cache),
            Self::File(_) => moltis_agent::binary::extract_bytes(cache, &self.bytes()?),
        }
    }
}

/// How a sandbox is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Means {
    /// By an agent, through its socket in a folder that both sides see.
    Socket(Guest),
    /// By an agent, through a relay that the engine runs beside it.
    Relay(Guest),
    /// By the engine alone, for this reason.
    Engine(String),
}

impl Means {
    /// Why there is no agent.
    pub fn without_agent(&self) -> Option<&str> {
        match self {
            Self::Engine(why) => Some(why),
            Self::Socket(_) | Self::Relay(_) => None,
        }
    }
}

/// Decides it, from what the engine says of itself, from whether its processes have numbers here, and from the agents
/// that there are. Blocks on a look-up.
pub fn means(info: &EngineInfo, outside: bool, guests: &Guests) -> Means {
    match guests.of(&info.arch) {
        Some(guest) if info.place == Place::Here && !outside => Means::Socket(guest),
        Some(guest) => Means::Relay(guest),
        None if info.arch.is_empty() => Means::Engine("this program has no agent built in".to_owned()),
        None => Means::Engine(format!(
            "the engine's containers run on {}, and there is no agent for that (moltis-guest-{0}-linux beside the \
             program would be one)",
            info.arch
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(arch: &str, place: Place) -> EngineInfo {
        EngineInfo { arch: arch.to_owned(), place, ..EngineInfo::whole() }
    }

    #[test]
    fn the_way_follows_from_where_the_engine_is_and_which_agents_there_are() {
        let folder = tempfile::tempdir().unwrap();
        let guests = Guests { built_in: Some("x86_64".to_owned()), beside: Some(folder.path().to_owned()) };
        let way = |arch, place, outside| means(&info(arch, place), outside, &guests);
        assert_eq!(way("x86_64", Place::Here, false), Means::Socket(Guest::BuiltIn));
        assert_eq!(way("", Place::Here, false), Means::Socket(Guest::BuiltIn));
        assert_eq!(way("x86_64", Place::Here, true), Means::Relay(Guest::BuiltIn));
        assert_eq!(way("x86_64", Place::Vm, false), Means::Relay(Guest::BuiltIn));
        assert_eq!(way("x86_64", Place::Remote, false), Means::Relay(Guest::BuiltIn));
        assert!(way("aarch64", Place::Here, false).without_agent().unwrap().contains("aarch64"));
        let other = folder.path().join("moltis-guest-aarch64-linux");
        std::fs::write(&other, "\x7fELF").unwrap();
        assert_eq!(way("aarch64", Place::Here, false), Means::Socket(Guest::File(other.clone())));
        assert_eq!(Guest::File(other.clone()).bytes().unwrap(), b"\x7fELF".as_slice());
        std::fs::write(&other, "#!/bin/sh").unwrap();
        assert!(Guest::File(other).bytes().is_err());
        // An engine's word is no path.
        assert!(way("../x", Place::Here, false).without_agent().is_some());
        let none = Guests { built_in: None, beside: None };
        assert!(means(&info("", Place::Here), false, &none).without_agent().is_some());
    }
}
