//! What is written down of a running agent, so that another process finds it again and takes no other for it.

use std::io;
use std::os::fd::AsFd;

use moltis_sandbox::BackendName;
use rustix::process::{Pid, PidfdFlags};
use serde::{Deserialize, Serialize};

use crate::error::blocks;
use crate::process::Agent;

/// Version of the form. A record of another version is treated as an agent that is not there.
const VERSION: u32 = 1;

/// A running agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub(crate) version: u32,
    /// Which of the two backends it belongs to.
    pub backend: BackendName,
    /// Fingerprint of the spec it was started for.
    pub fingerprint: String,
    /// What it was told beyond that: rlimits and the folders of file tools. One that was told otherwise is another one.
    pub told: String,
    /// Whether it ends with its opener.
    pub ephemeral: bool,
    /// Its idle time in milliseconds; 0 for never.
    pub idle_millis: u64,
    /// When it was started, in seconds since 1970.
    pub created_secs: u64,
    /// Its process.
    pub process: Identity,
}

/// A process that is not taken for a later one of the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Process id.
    pub pid: u32,
    /// When it started, in clock ticks since the machine did.
    started: u64,
    /// The machine's boot.
    boot: String,
    /// The PID namespace in which the number means something; empty in records of before it was written down.
    #[serde(default)]
    namespace: String,
}

/// What has become of an agent.
#[derive(Debug)]
pub enum Whereabouts {
    /// It lives.
    Here(Agent),
    /// It does not live any more.
    Over,
    /// It belongs to another PID namespace of this boot, and may live.
    Elsewhere,
}

impl Record {
    /// A record of the current version.
    pub fn new(backend: BackendName, process: Identity) -> Self {
        Self {
            version: VERSION,
            backend,
            fingerprint: String::new(),
            told: String::new(),
            ephemeral: false,
            idle_millis: 0,
            created_secs: 0,
            process,
        }
    }

    /// Reads one; `None` for anything else than a record of this version.
    pub fn parse(bytes: &[u8], folder: Place) -> Option<Self> {
        let stored = serde_json::from_slice::<Stored<Self>>(bytes).ok()?;
        let here = stored.folder == folder && stored.record.version == VERSION;
        here.then_some(stored.record)
    }

    /// The bytes on disk.
    pub fn encode(&self, folder: Place) -> Vec<u8> {
        serde_json::to_vec(&Stored { record: self, folder }).unwrap_or_default()
    }
}

/// A folder, wherever it is moved: its device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    device: u64,
    inode: u64,
}

impl Place {
    /// The folder behind a handle.
    ///
    /// # Errors
    /// The kernel's.
    pub fn of(folder: impl std::os::fd::AsFd) -> io::Result<Self> {
        let stat = rustix::fs::fstat(folder)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// A record with the folder that it was written into: in a copy of the data directory it means nothing, since its
/// process belongs to the original.
#[derive(Serialize, Deserialize)]
struct Stored<R> {
    #[serde(flatten)]
    record: R,
    folder: Place,
}

impl Identity {
    /// The identity of a process that runs now and cannot be reaped meanwhile.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn of(pid: u32) -> io::Result<Self> {
        Ok(Self { pid, started: started(pid)?, boot: boot()?, namespace: namespace() })
    }

    /// What has become of the process; its socket lies in `folder`.
    pub fn whereabouts(&self, folder: impl AsFd) -> Whereabouts {
        if !self.is_elsewhere() {
            return self.find().map_or(Whereabouts::Over, Whereabouts::Here);
        }
        // The agent alone holds the socket that it listens on, in whichever PID namespace it is.
        if crate::folder::is_deserted(folder) { Whereabouts::Over } else { Whereabouts::Elsewhere }
    }

    fn is_elsewhere(&self) -> bool {
        boot().is_ok_and(|boot| boot == self.boot)
            && !self.namespace.is_empty()
            && self.namespace != namespace()
    }

    /// The process, if it still runs in this PID namespace.
    pub fn find(&self) -> Option<Agent> {
        if boot().ok()? != self.boot || self.is_elsewhere() {
            return None;
        }
        let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
        let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // Asked with the handle held: the number cannot have gone to somebody else between the two.
        (started(self.pid).ok()? == self.started)
            .then(|| Agent::new(self.pid, handle))
            .filter(Agent::is_alive)
    }
}

fn boot() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The PID namespace of this process.
fn namespace() -> String {
    std::fs::read_link("/proc/self/ns/pid").map(|name| name.display().to_string()).unwrap_or_default()
}

/// Start time of a process: the 22nd field of its `stat`, the 20th after its name in parentheses.
fn started(pid: u32) -> io::Result<u64> {
    blocks();
    let stat = std::fs::read(format!("/proc/{pid}/stat"))?;
    let broken = || io::Error::from(io::ErrorKind::InvalidData);
    let name_end = stat.iter().rposition(|byte| *byte == b')').ok_or_else(broken)?;
    let fields = std::str::from_utf8(&stat[name_end + 1..]).map_err(|_| broken())?;
    fields.split_ascii_whitespace().nth(19).and_then(|field| field.parse().ok()).ok_or_else(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_again_and_a_later_one_is_not() {
        let mut own = Identity::of(std::process::id()).unwrap();
        assert!(own.find().is_some());
        own.started += 1;
        assert!(own.find().is_none());
        own.started -= 1;
        own.boot.push('x');
        assert!(own.find().is_none());
    }

    #[test]
    fn one_of_another_pid_namespace_is_not_taken_for_dead() {
        let temp = tempfile::tempdir().unwrap();
        let folder = std::fs::File::open(temp.path()).unwrap();
        let mut own = Identity::of(std::process::id()).unwrap();
        assert!(matches!(own.whereabouts(&folder), Whereabouts::Here(_)));
        own.namespace = "pid:[1]".into();
        assert!(own.find().is_none());
        assert!(matches!(own.whereabouts(&folder), Whereabouts::Elsewhere), "there is no socket to ask");
        let listener = std::os::unix::net::UnixListener::bind(temp.path().join("host.sock")).unwrap();
        assert!(matches!(own.whereabouts(&folder), Whereabouts::Elsewhere));
        drop(listener);
        assert!(matches!(own.whereabouts(&folder), Whereabouts::Over), "nobody listens any more");
        own.boot.push('x');
        assert!(matches!(own.whereabouts(&folder), Whereabouts::Over));
        // As it was written down before.
        own = Identity { namespace: String::new(), ..Identity::of(std::process::id()).unwrap() };
        assert!(matches!(own.whereabouts(&folder), Whereabouts::Here(_)));
    }

    #[test]
    fn the_dead_are_not_found() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let identity = Identity::of(child.id()).unwrap();
        child.wait().unwrap();
        assert!(identity.find().is_none());
    }

    #[test]
    fn only_whole_records_of_this_version_are_read() {
        let record = Record::new(BackendName::None, Identity::of(1).unwrap());
        let here = Place { device: 1, inode: 2 };
        assert_eq!(Record::parse(&record.encode(here), here), Some(record.clone()));
        assert_eq!(Record::parse(&record.encode(here), Place { device: 1, inode: 3 }), None);
        let later = Record { version: VERSION + 1, ..record };
        assert_eq!(Record::parse(&later.encode(here), here), None);
        assert_eq!(Record::parse(b"{\"version\":1", here), None);
    }
}
