//! The folder of one sandbox, held by its lock.

use std::fs::{self, File};
use std::io::{self, Write};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, fchmod, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

use super::{LOCK, Layout, Record, Stored, WATCHED, Whereabouts, record_in, whereabouts};
use crate::error::{Error, Result};

/// A sandbox's folder, locked. Dropping it removes it and lets go, unless it is kept.
#[derive(Debug)]
pub struct Folder<R: Record> {
    pub(super) path: PathBuf,
    pub(super) layout: &'static Layout,
    pub(super) record: PhantomData<R>,
    pub(super) handle: File,
    pub(super) _lock: Option<File>,
    pub(super) kept: bool,
}

impl<R: Record> Folder<R> {
    /// A handle of the folder.
    pub fn handle(&self) -> &File {
        &self.handle
    }

    /// Says whether the folder stays when this is dropped: it does as long as there is a sandbox behind it.
    pub fn keep(&mut self, keep: bool) {
        self.kept = keep;
    }

    /// Removes what an earlier sandbox left in it, which is over: it is not kept any more.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn clear(&mut self) -> Result<()> {
        self.kept = false;
        self.remove_names()
    }

    /// The record in it, if there is one that can be read.
    pub fn record(&self) -> Option<R> {
        record_in(&self.path, self.layout)
    }

    /// The same, and what has become of the sandbox's first process.
    pub fn look(&self) -> Option<(R, Whereabouts)> {
        let record = self.record()?;
        let whereabouts = whereabouts(&record, &self.handle, self.layout);
        Some((record, whereabouts))
    }

    fn remove_names(&self) -> Result<()> {
        self.layout.files().try_for_each(|name| self.unlink(name))?;
        self.unlink(&self.layout.draft())?;
        for (name, remove) in self.layout.folders {
            remove(self.handle.as_fd(), name).map_err(|cause| self.failed(name, cause))?;
        }
        Ok(())
    }

    fn unlink(&self, name: &str) -> Result<()> {
        match unlinkat(&self.handle, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.failed(name, errno)),
        }
    }

    /// Removes it. The sandbox is over. What is not ours stays, and the folder with it.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn remove(mut self) -> Result<()> {
        self.kept = true;
        self.remove_all()
    }

    fn remove_all(&self) -> Result<()> {
        self.remove_names()?;
        self.unlink(LOCK)?;
        match fs::remove_dir(&self.path) {
            // Something of others', or the lock of whoever came right after us.
            Err(cause) if cause.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            removed => removed.map_err(|cause| Error::DataDir { path: self.path.clone(), cause }),
        }
    }

    fn failed(&self, name: &str, cause: impl Into<io::Error>) -> Error {
        Error::DataDir { path: self.path.join(name), cause: cause.into() }
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a socket of this name: bound, and not yet listening. The path's length does not matter.
    ///
    /// # Errors
    /// [`Error::NoSockets`], [`Error::DataDir`].
    pub fn bind_socket(&self, name: &str) -> Result<OwnedFd> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(Error::system("no socket can be made"))?;
        let through_handle = format!("/proc/self/fd/{}/{name}", self.handle.as_raw_fd());
        let address = SocketAddrUnix::new(through_handle).map_err(Error::system("no socket can be made"))?;
        match bind(&socket, &address) {
            Ok(()) => Ok(socket),
            // What vfat, some FUSE and network file systems say.
            Err(errno @ (Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::NODEV)) => {
                Err(Error::NoSockets { path: self.path.join(name), cause: errno.into() })
            }
            Err(errno) => Err(self.failed(name, errno)),
        }
    }

    /// Writes the record. Whoever reads it without the lock may see a part of it, which counts as none.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn write(&self, record: &R) -> Result<()> {
        self.create(self.layout.record, 0o600, &self.stored(record)?)
    }

    fn stored(&self, record: &R) -> Result<Vec<u8>> {
        let here =
            self.handle.metadata().map_err(|e| Error::DataDir { path: self.path.clone(), cause: e })?;
        serde_json::to_vec(&Stored { record, device: here.dev(), inode: here.ino() })
            .map_err(|e| Error::DataDir { path: self.path.join(self.layout.record), cause: e.into() })
    }

    /// Writes the record over the one that is there: whoever reads it sees one or the other.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn rewrite(&self, record: &R) -> Result<()> {
        let draft = self.layout.draft();
        self.unlink(&draft)?;
        self.create(&draft, 0o600, &self.stored(record)?)?;
        renameat(&self.handle, draft.as_str(), &self.handle, self.layout.record)
            .map_err(|errno| self.failed(self.layout.record, errno))
    }

    /// Writes down what the folders hold that the sandbox will be able to write to; before the record, which says that
    /// this is there.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn write_watched(&self, bytes: &[u8]) -> Result<()> {
        self.create(WATCHED, 0o600, bytes)
    }

    /// Makes one of the layout's files, which must not be there, with this content; the process's umask takes away from
    /// the mode.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn create(&self, name: &str, mode: u32, bytes: &[u8]) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&self.handle, name, flags, Mode::from_raw_mode(mode))
            .map_err(|errno| self.failed(name, errno))?;
        File::from(file).write_all(bytes).map_err(|cause| self.failed(name, cause))
    }

    /// Makes one of the layout's subfolders, which must not be there, with exactly this mode; a handle of it.
    ///
    /// # Errors
    /// [`Error::DataDir`].
    pub fn make_folder(&self, name: &str, mode: u32) -> Result<OwnedFd> {
        let made = || {
            mkdirat(&self.handle, name, Mode::RWXU)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let folder = openat(&self.handle, name, flags, Mode::empty())?;
            fchmod(&folder, Mode::from_raw_mode(mode))?;
            rustix::io::Result::Ok(folder)
        };
        made().map_err(|errno| self.failed(name, errno))
    }
}

impl<R: Record> Drop for Folder<R> {
    fn drop(&mut self) {
        if !self.kept {
            // What does not go now is swept later.
            let _ = self.remove_all();
        }
    }
}
