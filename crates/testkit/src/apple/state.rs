//! What the stand-in keeps on disk, one folder a container.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::Version;
use super::say::{Result, error, no_container};

/// The state's folder.
#[derive(Clone, Debug)]
pub struct State {
    folder: PathBuf,
}

/// A container.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Kept {
    /// Its id, which is its name.
    pub id: String,
    /// The image's reference and digest.
    pub image: (String, String),
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Variables.
    pub env: Vec<String>,
    /// Directory.
    pub directory: String,
    /// User and group.
    pub user: (u32, u32),
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Folders and files of the host's: source, target, whether read-only.
    pub binds: Vec<(PathBuf, String, bool)>,
    /// Targets of file systems in memory.
    pub tmpfs: Vec<String>,
    /// Names of networks.
    pub networks: Vec<String>,
    /// Processors.
    pub cpus: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Soft and hard limit of processes.
    pub processes: Option<(u64, u64)>,
    /// Whether its own files cannot be written to.
    pub read_only: bool,
    /// Capabilities that were dropped.
    pub cap_drop: Vec<String>,
    /// Whether it goes when it is over.
    pub remove: bool,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// When it was started.
    pub started: Option<u64>,
}

impl State {
    /// The state that the environment names.
    pub fn open() -> Result<Self> {
        let folder = std::env::var_os(super::STATE).map(PathBuf::from);
        let folder = folder.filter(|folder| folder.is_dir()).ok_or_else(|| error("there is no state"))?;
        Ok(Self { folder })
    }

    /// The state in a folder.
    pub fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// A file of it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The version that is modelled.
    pub fn version(&self) -> Version {
        let text = std::fs::read_to_string(self.path("version")).unwrap_or_default();
        let (major, minor) = text.trim().split_once('.').unwrap_or(("1", "1"));
        Version(major.parse().unwrap_or(1), minor.parse().unwrap_or(1))
    }

    /// Holds the state for itself until the file is dropped.
    pub fn lock(&self) -> Result<File> {
        let file = File::options().create(true).append(true).open(self.path("lock"))?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).map_err(std::io::Error::from)?;
        Ok(file)
    }

    /// A container's folder.
    pub fn folder(&self, id: &str) -> PathBuf {
        self.path("containers").join(id)
    }

    /// A container.
    pub fn container(&self, id: &str) -> Result<Kept> {
        let text = std::fs::read(self.folder(id).join("config.json")).map_err(|_| no_container(id))?;
        serde_json::from_slice(&text).map_err(error)
    }

    /// Writes a container.
    pub fn keep(&self, kept: &Kept) -> Result<()> {
        let folder = self.folder(&kept.id);
        std::fs::create_dir_all(&folder)?;
        let text = serde_json::to_vec(kept).map_err(error)?;
        std::fs::write(folder.join("config.new"), text)?;
        Ok(std::fs::rename(folder.join("config.new"), folder.join("config.json"))?)
    }

    /// Takes a container away: at once for whoever looks, then from the disk.
    pub fn discard(&self, id: &str) -> Result<()> {
        let aside = self.path(&format!("gone-{id}-{}", std::process::id()));
        match std::fs::rename(self.folder(id), &aside) {
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            moved => moved?,
        }
        Ok(std::fs::remove_dir_all(aside)?)
    }

    /// All containers.
    pub fn containers(&self) -> Vec<Kept> {
        let Ok(folders) = std::fs::read_dir(self.path("containers")) else { return Vec::new() };
        let names = folders.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|id| self.container(&id).ok()).collect()
    }

    /// The first process of a container by the host's number, if it runs.
    pub fn process(&self, id: &str) -> Option<u32> {
        let text = std::fs::read_to_string(self.folder(id).join("pid")).ok()?;
        text.trim().parse().ok()
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
