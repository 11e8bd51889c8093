//! A backend on trial: how to make one over a data directory, as often as a case wants.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use moltis_sandbox::Backend;

/// Where a backend under trial keeps its things.
#[derive(Clone, Debug)]
pub struct Folders {
    /// The data directory.
    pub data: PathBuf,
    /// The configuration directory.
    pub config: PathBuf,
}

impl Folders {
    /// Where the homes of sandboxes lie.
    pub fn homes(&self) -> PathBuf {
        self.data.join("sandbox/home")
    }
}

/// Makes a backend over these folders. Two calls over the same ones stand for two processes.
pub type Make = Arc<dyn Fn(&Folders) -> Arc<dyn Backend> + Send + Sync>;

/// A backend on trial.
#[derive(Clone)]
pub struct Subject {
    /// Its column in the matrix.
    pub name: String,
    /// How to make one.
    pub make: Make,
    /// Other backends over the same folders, whose sandboxes it must leave alone.
    pub beside: Vec<Make>,
}

impl Subject {
    /// A subject of this name.
    pub fn new(
        name: impl Into<String>,
        make: impl Fn(&Folders) -> Arc<dyn Backend> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), make: Arc::new(make), beside: Vec::new() }
    }

    /// Names another backend that may work over the same folders.
    #[must_use]
    pub fn beside(mut self, other: &Self) -> Self {
        self.beside.push(other.make.clone());
        self
    }

    /// The same backend, wrapped.
    #[must_use]
    pub fn wrapped(
        &self,
        name: impl Into<String>,
        wrap: impl Fn(Arc<dyn Backend>) -> Arc<dyn Backend> + Send + Sync + 'static,
    ) -> Self {
        let make = self.make.clone();
        let make: Make = Arc::new(move |folders: &Folders| wrap(make(folders)));
        Self { name: name.into(), make, beside: self.beside.clone() }
    }
}

/// Makes a folder with this mode, and those above it.
pub(crate) fn folder(path: &Path, mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}
