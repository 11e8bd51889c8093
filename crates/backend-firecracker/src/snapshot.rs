//! A machine that was booted once and had not been used: its memory, devices and disk, from which others begin. Kept in the
//! store under a name that says what it was made of, and never changed.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use crate::api::body::{SnapshotCreate, SnapshotLoad};
use crate::blueprint::{Blueprint, DISK};
use crate::disk::{self, Store};
use crate::error::{Error, Result, long};
use crate::machine::Machine;

/// Names of its files, in the store and in working directories.
const STATE: &str = "snapshot.state";
const MEMORY: &str = "snapshot.memory";

/// Bytes that stay free when one is taken.
const KEPT_FREE: u64 = 2 << 30;

/// One in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    folder: PathBuf,
}

impl Snapshot {
    fn of(store: &Store, fingerprint: &str) -> Self {
        Self { folder: store.folder().join(format!("snapshot-{fingerprint}")) }
    }

    /// The one of this fingerprint, if there is one. Blocks.
    pub fn find(store: &Store, fingerprint: &str) -> Option<Self> {
        let this = Self::of(store, fingerprint);
        // It appears whole or not at all.
        this.folder.is_dir().then_some(this)
    }

    /// Puts into a working directory what a process needs to begin from it. Blocks.
    ///
    /// # Errors
    /// [`Error::Folder`].
    pub fn furnish(&self, blueprint: &Blueprint, work: &Path, user: Option<u32>) -> Result<()> {
        for name in [STATE, MEMORY] {
            disk::link(&self.folder.join(name), work, name)?;
        }
        blueprint.furnish_disks(work, &self.folder.join(DISK), user)
    }

    /// Lets a process become it, and go on at once.
    ///
    /// # Errors
    /// Those of the API.
    pub async fn load(machine: &Machine) -> Result<()> {
        machine.api.load_snapshot(&SnapshotLoad::file(STATE, MEMORY, true)).await
    }

    /// Removes it. Machines that began from it go on. Blocks.
    pub fn discard(&self) {
        let _ = fs::remove_dir_all(&self.folder);
    }

    /// Whether there is room for one of this machine. Blocks.
    ///
    /// # Errors
    /// [`Error::Folder`].
    pub fn has_room(store: &Store, blueprint: &Blueprint) -> Result<bool> {
        let found = rustix::fs::statvfs(store.folder()).map_err(Error::folder(store.folder()))?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize) > blueprint.memory() + KEPT_FREE)
    }

    /// Takes one of a machine that serves and has not been used, and stands still from then on.
    ///
    /// # Errors
    /// Those of the API, [`Error::Folder`].
    pub async fn take(machine: &Machine, store: &Store, fingerprint: &str, work: &Path) -> Result<()> {
        let this = Self::of(store, fingerprint);
        machine.api.pause().await?;
        machine.api.create_snapshot(&SnapshotCreate::full(STATE, MEMORY)).await?;
        let (store, work) = (store.clone(), work.to_owned());
        long(move || this.keep(&store, &work)).await
    }

    fn keep(&self, store: &Store, work: &Path) -> Result<()> {
        let draft = store.draft_folder("snapshot")?;
        let ours = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        for name in [STATE, MEMORY] {
            let to = draft.0.join(name);
            fs::rename(work.join(name), &to).map_err(Error::folder(&to))?;
            chown(&to, Some(ours.0), Some(ours.1)).map_err(Error::folder(&to))?;
            fs::set_permissions(&to, Permissions::from_mode(0o444)).map_err(Error::folder(&to))?;
        }
        disk::own(&work.join(DISK), &draft.0, DISK)?;
        match fs::rename(&draft.0, &self.folder) {
            // Another process was faster with the same one.
            Err(_) if self.folder.is_dir() => Ok(()),
            renamed => renamed.map_err(Error::folder(&self.folder)),
        }
    }
}
