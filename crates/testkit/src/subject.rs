//! A backend on trial: how to make one over a data directory, as often as a case wants.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use moltis_sandbox::{Backend, ImageChoice};

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
    /// What its sandboxes start from, where a backend has no root of its own.
    pub image: Option<ImageChoice>,
    /// Whether what runs inside are processes, which can be looked at, left behind and sent signals.
    pub processes: bool,
    /// Cases that ask for what it does not have and no promise speaks of, each with why.
    pub apart: &'static [(&'static str, &'static str)],
}

impl Subject {
    /// A subject of this name.
    pub fn new(
        name: impl Into<String>,
        make: impl Fn(&Folders) -> Arc<dyn Backend> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            make: Arc::new(make),
            beside: Vec::new(),
            image: None,
            processes: true,
            apart: &[],
        }
    }

    /// Names another backend that may work over the same folders.
    #[must_use]
    pub fn beside(mut self, other: &Self) -> Self {
        self.beside.push(other.make.clone());
        self
    }

    /// Names what its sandboxes start from.
    #[must_use]
    pub fn of_image(mut self, image: ImageChoice) -> Self {
        self.image = Some(image);
        self
    }

    /// Nothing inside is a process: what runs is told by the sandbox's own account. Names the cases that are about
    /// processes alone, or ask for what else it does not have, each with why; they are said to be declared.
    #[must_use]
    pub fn without_processes(mut self, apart: &'static [(&'static str, &'static str)]) -> Self {
        self.processes = false;
        self.apart = apart;
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
        Self {
            name: name.into(),
            make,
            beside: self.beside.clone(),
            image: self.image.clone(),
            processes: self.processes,
            apart: self.apart,
        }
    }
}

/// Makes a folder with this mode, and those above it.
pub(crate) fn folder(path: &Path, mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}
