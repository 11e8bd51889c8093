//! The tree as the shell's file system. The shell follows links itself; here none is followed, so that one which was
//! put there in between leads nowhere.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bashkit::time::SystemTime;
use bashkit::{DirEntry, FileSystem, FileSystemExt, FileType, FsLimits, FsUsage, Metadata, async_trait};
use moltis_host::remove::{self, NotRemoved};
use moltis_host::tree::object::{self, NotOpened};
use moltis_sandbox::EntryKind;
use rustix::fs::{
    AtFlags, Dir, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, fchmod, fstat, ftruncate, mkdirat,
    openat, readlinkat, renameat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::{Follow, Root, Spot, Tree};

/// Bytes that are read or written at a time.
const PIECE: usize = 256 * 1024;

/// Told of what the shell comes across.
pub trait Seen: Send + Sync {
    /// An entry of a directory.
    fn listed(&self, directory: &Path, name: &str);
    /// The content of a file, if it may be a script.
    fn read(&self, content: &[u8]);
}

/// A tree, lent to one shell.
pub struct Lent {
    tree: Arc<Tree>,
    /// Most bytes of a file that the shell takes in.
    most: u64,
    seen: Arc<dyn Seen>,
}

impl Lent {
    /// This tree. The shell holds files in memory: no more than `most` bytes of one.
    pub fn new(tree: Arc<Tree>, most: u64, seen: Arc<dyn Seen>) -> Self {
        Self { tree, most, seen }
    }

    fn spot(&self, path: &Path) -> Result<Spot, Errno> {
        self.tree.walk(path.as_os_str().as_bytes(), Follow::Never)
    }

    /// The spot of what is to be changed.
    fn change(&self, path: &Path) -> Result<Spot, Errno> {
        let spot = self.spot(path)?;
        self.tree.may_change(&spot)?;
        Ok(spot)
    }

    fn root(&self, spot: &Spot) -> Option<&Root> {
        match spot {
            Spot::Bare { .. } => None,
            Spot::Root { root } | Spot::Entry { root, .. } => self.tree.roots().get(*root),
        }
    }

    /// Asks whether a spot may take so many bytes more.
    fn room(&self, spot: &Spot, bytes: u64) -> Result<(), Errno> {
        match self.root(spot) {
            Some(root) => match &root.quota {
                Some(quota) => quota.add(root.handle(), bytes),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    fn stat_of(&self, spot: &Spot) -> Result<Option<Stat>, Errno> {
        match spot {
            Spot::Bare { .. } => Ok(None),
            Spot::Root { root } => fstat(self.tree.roots()[*root].handle()).map(Some),
            Spot::Entry { directory, name, .. } => object::stat(directory, &**name).map(Some),
        }
    }

    fn open(&self, spot: &Spot) -> Result<(OwnedFd, Stat), io::Error> {
        let opened = match spot {
            Spot::Bare { .. } => return Err(Errno::ISDIR.into()),
            Spot::Root { root } => {
                let root = &self.tree.roots()[*root];
                if root.directory {
                    return Err(Errno::ISDIR.into());
                }
                // A regular file, judged when it was opened.
                let file = reopen(root.handle())?;
                let stat = fstat(&file)?;
                return Ok((file, stat));
            }
            Spot::Entry { directory, name, .. } => object::file(directory, &**name),
        };
        opened.map_err(not_opened)
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, io::Error> {
        let (file, stat) = self.open(&self.spot(path)?)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if size > self.most {
            return Err(Errno::FBIG.into());
        }
        let mut content = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
        let mut piece = vec![0; PIECE.min(usize::try_from(size).unwrap_or(0) + 1)];
        loop {
            match rustix::io::read(&file, &mut piece) {
                Ok(0) => break,
                Ok(count) => content.extend_from_slice(&piece[..count]),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            // It may grow while it is read.
            if content.len() as u64 > self.most {
                return Err(Errno::FBIG.into());
            }
        }
        Ok(content)
    }

    fn write(&self, path: &Path, content: &[u8], append: bool) -> Result<(), io::Error> {
        let spot = self.change(path)?;
        let file = self.open_to_write(&spot, append)?;
        let old = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
        let more = if append { content.len() as u64 } else { (content.len() as u64).saturating_sub(old) };
        self.room(&spot, more)?;
        let mut at = if append {
            old
        } else {
            ftruncate(&file, 0)?;
            0
        };
        let mut rest = content;
        while !rest.is_empty() {
            let piece = &rest[..rest.len().min(PIECE)];
            let written =
                if append { rustix::io::write(&file, piece) } else { rustix::io::pwrite(&file, piece, at) };
            match written {
                Ok(count) => {
                    rest = &rest[count..];
                    at += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Opens a regular file to write to it, or at its end; one that is missing is made.
    fn open_to_write(&self, spot: &Spot, append: bool) -> Result<OwnedFd, io::Error> {
        let append = if append { OFlags::APPEND } else { OFlags::empty() };
        let file = match spot {
            Spot::Bare { .. } => return Err(Errno::ISDIR.into()),
            Spot::Root { root } => {
                let root = &self.tree.roots()[*root];
                if root.directory {
                    return Err(Errno::ISDIR.into());
                }
                let flags = OFlags::WRONLY | append | OFlags::CLOEXEC;
                rustix::fs::open(in_proc(root.handle()), flags, Mode::empty())?
            }
            Spot::Entry { directory, name, .. } => {
                let flags = OFlags::WRONLY
                    | append
                    | OFlags::CREATE
                    | OFlags::NOFOLLOW
                    | OFlags::NONBLOCK
                    | OFlags::NOCTTY
                    | OFlags::CLOEXEC;
                openat(directory, &**name, flags, Mode::from_raw_mode(0o644))?
            }
        };
        match object::kind(&fstat(&file)?) {
            EntryKind::File => Ok(file),
            _ => Err(Errno::ACCESS.into()),
        }
    }

    fn make(&self, path: &Path) -> Result<(), Errno> {
        let Spot::Entry { directory, name, .. } = self.change(path)? else { return Err(Errno::EXIST) };
        mkdirat(directory, &*name, Mode::from_raw_mode(0o755))
    }

    fn make_all(&self, path: &Path) -> Result<(), Errno> {
        let mut way = PathBuf::from("/");
        for name in path.components().skip(1) {
            way.push(name);
            match self.make(&way) {
                Ok(()) => {}
                Err(errno) => match self.stat_of(&self.spot(&way)?) {
                    Ok(None) => {}
                    Ok(Some(stat)) if object::kind(&stat) == EntryKind::Directory => {}
                    Ok(Some(_)) => return Err(Errno::EXIST),
                    Err(_) => return Err(errno),
                },
            }
        }
        Ok(())
    }

    fn take_away(&self, path: &Path, recursive: bool) -> Result<(), io::Error> {
        let Spot::Entry { directory, name, .. } = self.change(path)? else { return Err(Errno::BUSY.into()) };
        if object::kind(&object::stat(&directory, &*name)?) != EntryKind::Directory {
            return Ok(unlinkat(directory, &*name, AtFlags::empty())?);
        }
        if !recursive {
            return Ok(unlinkat(directory, &*name, AtFlags::REMOVEDIR)?);
        }
        let top = directory.as_fd().try_clone_to_owned()?;
        match remove::tree(top, &name, remove::PATIENCE) {
            Ok(_) => Ok(()),
            Err(NotRemoved::Kernel { errno, .. }) => Err(errno.into()),
            Err(why) => Err(io::Error::other(why.to_string())),
        }
    }

    fn names(&self, path: &Path) -> Result<Vec<DirEntry>, io::Error> {
        let spot = self.spot(path)?;
        let mut all = Vec::new();
        let place = match &spot {
            Spot::Bare { place } | Spot::Entry { place, .. } => place.clone(),
            Spot::Root { root } => self.tree.roots()[*root].at.clone(),
        };
        let shown = self.tree.names_below(&place);
        if !matches!(spot, Spot::Bare { .. }) {
            let directory = self.tree.open_directory(&spot)?;
            for entry in Dir::read_from(&directory)? {
                let entry = entry?;
                let name = entry.file_name();
                if name == c"." || name == c".." || shown.contains(name.to_bytes()) {
                    continue;
                }
                // Gone since it was listed.
                let Ok(stat) = object::stat(&directory, name) else { continue };
                let name = String::from_utf8_lossy(name.to_bytes()).into_owned();
                self.seen.listed(path, &name);
                all.push(DirEntry { name, metadata: described(&stat) });
            }
        }
        for name in shown {
            let below = path.join(OsStr::from_bytes(name));
            let metadata = match self.stat_of(&self.spot(&below)?)? {
                Some(stat) => described(&stat),
                None => bare(),
            };
            all.push(DirEntry { name: String::from_utf8_lossy(name).into_owned(), metadata });
        }
        Ok(all)
    }

    fn set_mode(&self, path: &Path, mode: u32) -> Result<(), Errno> {
        let Spot::Entry { directory, name, .. } = self.change(path)? else { return Err(Errno::PERM) };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = openat(directory, &*name, flags, Mode::empty())?;
        match object::kind(&fstat(&handle)?) {
            EntryKind::File | EntryKind::Directory => {}
            EntryKind::Symlink => return Err(Errno::LOOP),
            EntryKind::Other => return Err(Errno::ACCESS),
        }
        rustix::fs::chmod(in_proc(handle.as_fd()), Mode::from_raw_mode(mode & object::MODE))
    }

    fn copied(&self, from: &Path, to: &Path) -> Result<(), io::Error> {
        let (source, stat) = self.open(&self.spot(from)?)?;
        let target = self.change(to)?;
        let (there, size) = (self.stat_of(&target).ok().flatten(), u64::try_from(stat.st_size).unwrap_or(0));
        if let Some(there) = &there
            && (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino)
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "source and destination are the same file",
            ));
        }
        self.room(&target, size)?;
        let file = self.open_to_write(&target, false)?;
        ftruncate(&file, 0)?;
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        loop {
            let count = match rustix::io::read(&source, &mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let mut rest = &piece[..count];
            while !rest.is_empty() {
                let count = rustix::io::pwrite(&file, rest, at)?;
                rest = &rest[count..];
                at += count as u64;
            }
        }
        if there.is_none() {
            fchmod(&file, Mode::from_raw_mode(stat.st_mode & object::MODE))?;
        }
        Ok(())
    }

    fn moved(&self, from: &Path, to: &Path) -> Result<(), io::Error> {
        let (source, target) = (self.change(from)?, self.change(to)?);
        let (
            Spot::Entry { directory: out, name: old, root: first, .. },
            Spot::Entry { directory: into, name: new, root: second, .. },
        ) = (&source, &target)
        else {
            return Err(Errno::BUSY.into());
        };
        if first != second {
            let stat = object::stat(out, &**old)?;
            self.room(&target, u64::try_from(stat.st_size).unwrap_or(0))?;
        }
        match renameat(out, &**old, into, &**new) {
            // Between two file systems a file is copied, as `mv` does it.
            Err(Errno::XDEV) if object::kind(&object::stat(out, &**old)?) == EntryKind::File => {
                self.copied(from, to)?;
                Ok(unlinkat(out, &**old, AtFlags::empty())?)
            }
            other => Ok(other?),
        }
    }
}

/// The path by which the kernel reopens what a handle stands for.
fn in_proc(handle: impl AsFd) -> String {
    format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd())
}

/// Opens for reading what a handle stands for.
pub fn reopen(handle: impl AsFd) -> Result<OwnedFd, Errno> {
    rustix::fs::open(in_proc(handle), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
}

fn not_opened(why: NotOpened) -> io::Error {
    match why {
        NotOpened::Kernel(errno) => errno.into(),
        NotOpened::Kind(EntryKind::Directory) => Errno::ISDIR.into(),
        NotOpened::Kind(EntryKind::Symlink) => Errno::LOOP.into(),
        NotOpened::Kind(_) => io::Error::new(io::ErrorKind::PermissionDenied, "not a regular file"),
    }
}

fn described(stat: &Stat) -> Metadata {
    let known = object::described(stat);
    let nanos = Duration::from_nanos(u64::try_from(known.modified_nanos).unwrap_or(0));
    let modified: SystemTime = UNIX_EPOCH + nanos;
    Metadata {
        file_type: match known.kind {
            EntryKind::File => FileType::File,
            EntryKind::Directory => FileType::Directory,
            EntryKind::Symlink => FileType::Symlink,
            EntryKind::Other => FileType::Fifo,
        },
        size: known.size,
        mode: known.mode,
        modified,
        created: modified,
    }
}

/// A directory that is only there because something below it is.
fn bare() -> Metadata {
    Metadata {
        file_type: FileType::Directory,
        size: 0,
        mode: 0o755,
        modified: UNIX_EPOCH,
        created: UNIX_EPOCH,
    }
}

impl FileSystemExt for Lent {
    fn usage(&self) -> FsUsage {
        let held = |root: &Root| root.quota.as_ref().map(|quota| quota.used(root.handle()));
        FsUsage { total_bytes: self.tree.roots().iter().filter_map(held).sum(), ..FsUsage::default() }
    }

    fn limits(&self) -> FsLimits {
        FsLimits { max_file_size: self.most, ..FsLimits::unlimited() }
    }
}

#[async_trait]
impl FileSystem for Lent {
    async fn read_file(&self, path: &Path) -> bashkit::Result<Vec<u8>> {
        let content = self.read(path)?;
        self.seen.read(&content);
        Ok(content)
    }

    async fn write_file(&self, path: &Path, content: &[u8]) -> bashkit::Result<()> {
        Ok(self.write(path, content, false)?)
    }

    async fn append_file(&self, path: &Path, content: &[u8]) -> bashkit::Result<()> {
        Ok(self.write(path, content, true)?)
    }

    async fn mkdir(&self, path: &Path, recursive: bool) -> bashkit::Result<()> {
        let made = if recursive { self.make_all(path) } else { self.make(path) };
        Ok(made.map_err(io::Error::from)?)
    }

    async fn remove(&self, path: &Path, recursive: bool) -> bashkit::Result<()> {
        Ok(self.take_away(path, recursive)?)
    }

    async fn stat(&self, path: &Path) -> bashkit::Result<Metadata> {
        let found = self.spot(path).and_then(|spot| self.stat_of(&spot)).map_err(io::Error::from)?;
        Ok(found.as_ref().map_or_else(bare, described))
    }

    async fn read_dir(&self, path: &Path) -> bashkit::Result<Vec<DirEntry>> {
        Ok(self.names(path)?)
    }

    async fn exists(&self, path: &Path) -> bashkit::Result<bool> {
        match self.spot(path).and_then(|spot| self.stat_of(&spot)) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => Ok(false),
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }

    async fn rename(&self, from: &Path, to: &Path) -> bashkit::Result<()> {
        Ok(self.moved(from, to)?)
    }

    async fn copy(&self, from: &Path, to: &Path) -> bashkit::Result<()> {
        Ok(self.copied(from, to)?)
    }

    async fn symlink(&self, target: &Path, link: &Path) -> bashkit::Result<()> {
        let spot = self.change(link).map_err(io::Error::from)?;
        let Spot::Entry { directory, name, .. } = spot else {
            return Err(io::Error::from(Errno::EXIST).into());
        };
        Ok(symlinkat(target, directory, &*name).map_err(io::Error::from)?)
    }

    async fn read_link(&self, path: &Path) -> bashkit::Result<PathBuf> {
        let spot = self.spot(path).map_err(io::Error::from)?;
        let Spot::Entry { directory, name, .. } = spot else {
            return Err(io::Error::from(Errno::INVAL).into());
        };
        let target = readlinkat(directory, &*name, Vec::new()).map_err(io::Error::from)?;
        Ok(PathBuf::from(std::ffi::OsString::from_vec(target.into_bytes())))
    }

    async fn chmod(&self, path: &Path, mode: u32) -> bashkit::Result<()> {
        Ok(self.set_mode(path, mode).map_err(io::Error::from)?)
    }

    async fn set_modified_time(&self, path: &Path, time: SystemTime) -> bashkit::Result<()> {
        let spot = self.change(path).map_err(io::Error::from)?;
        let Spot::Entry { directory, name, .. } = spot else {
            return Err(io::Error::from(Errno::PERM).into());
        };
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec {
                tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: since.subsec_nanos().into(),
            },
        };
        Ok(utimensat(directory, &*name, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from)?)
    }
}
