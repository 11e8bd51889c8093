//! What is written down of a running agent, so that another process finds it again and takes no other for it.

use std::io;
use std::os::fd::AsFd;

use moltis_host::process::{boot, pid_namespace, start_time};
use moltis_host::record::{ProcessId, Whereabouts};
use moltis_sandbox::BackendName;
use serde::{Deserialize, Serialize};

use crate::error::blocks;
use crate::folder::SOCKET;

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
        blocks();
        let started = start_time(pid).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { pid, started, boot: boot().to_owned(), namespace: pid_namespace().to_owned() })
    }

    /// What has become of the process; its socket lies in `folder`.
    pub fn whereabouts(&self, folder: impl AsFd) -> Whereabouts {
        blocks();
        let namespace = if self.namespace.is_empty() { pid_namespace() } else { &self.namespace };
        let realm = format!("{} {namespace}", self.boot).into();
        // The agent alone holds the socket that it listens on, in whichever PID namespace it is.
        ProcessId { pid: self.pid, started: self.started, realm }.whereabouts(folder, Some(SOCKET))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_found(identity: &Identity) -> bool {
        let folder = std::fs::File::open("/").unwrap();
        matches!(identity.whereabouts(folder), Whereabouts::Here(process) if process.pid() == identity.pid)
    }

    #[test]
    fn a_process_is_found_again_and_a_later_one_is_not() {
        let mut own = Identity::of(std::process::id()).unwrap();
        assert!(is_found(&own));
        own.started += 1;
        assert!(!is_found(&own));
        own.started -= 1;
        own.boot.push('x');
        assert!(!is_found(&own));
    }

    #[test]
    fn one_of_another_pid_namespace_is_not_taken_for_dead() {
        let temp = tempfile::tempdir().unwrap();
        let folder = std::fs::File::open(temp.path()).unwrap();
        let mut own = Identity::of(std::process::id()).unwrap();
        assert!(matches!(own.whereabouts(&folder), Whereabouts::Here(_)));
        own.namespace = "pid:[1]".into();
        assert!(!is_found(&own));
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
        assert!(!is_found(&identity));
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
