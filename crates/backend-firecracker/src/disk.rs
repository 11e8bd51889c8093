//! What machines read and write: a store of files that all of them share and none of them can change, and a disk for each
//! machine that holds nothing but what it has written.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, OFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result, long};
use crate::program;

/// Size of the disk that a machine writes to: what is not written takes no room.
pub const DISK_BYTES: u64 = 8 << 30;

/// How long `mke2fs` may take.
const MAKES_WITHIN: Duration = Duration::from_secs(120);

/// Files that machines share, in [the folder for them](crate::Config::cache_dir). Each is written once, under a name that says what it was made of, and never changed. Machines have them by hard links.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// In this folder, which is made, 0700, if it is missing. Blocks.
    ///
    /// # Errors
    /// [`Error::Folder`].
    pub fn make(folder: &Path) -> Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(Error::folder(folder))?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// Where it lies.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where a file of this name lies, if it is there.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        let path = self.folder.join(name);
        path.is_file().then_some(path)
    }

    /// A file of this name; what is not there is written by `fill` into an empty file, and appears whole or not at all.
    /// Blocks.
    ///
    /// # Errors
    /// [`Error::Folder`], and those of `fill`.
    pub fn keep(&self, name: &str, fill: impl FnOnce(&mut File) -> io::Result<()>) -> Result<PathBuf> {
        let path = self.folder.join(name);
        if path.is_file() {
            return Ok(path);
        }
        let (draft, mut file) = self.draft(name)?;
        let filled = fill(&mut file).and_then(|()| file.set_permissions(Permissions::from_mode(0o444)));
        match filled.and_then(|()| fs::rename(&draft.0, &path)) {
            Ok(()) => Ok(path),
            Err(cause) => Err(Error::Folder(path, cause)),
        }
    }

    /// An empty file beside the others, removed when the first of the two is dropped, unless it has moved on.
    pub(crate) fn draft(&self, name: &str) -> Result<(Draft, File)> {
        let path = self.draft_path(name)?;
        let made = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = made.map_err(Error::folder(&path))?;
        Ok((Draft(path), file))
    }

    /// The same with a folder, 0700.
    pub(crate) fn draft_folder(&self, name: &str) -> Result<Draft> {
        let path = self.draft_path(name)?;
        DirBuilder::new().mode(0o700).create(&path).map_err(Error::folder(&path))?;
        Ok(Draft(path))
    }

    fn draft_path(&self, name: &str) -> Result<PathBuf> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(Error::folder(&self.folder))?;
        Ok(self.folder.join(format!(".{name}-{:016x}", u64::from_ne_bytes(random))))
    }

    /// A copy of somebody's file, made once for as long as that one stays as it is; machines never see the original, which
    /// may be changed while they run. Without another copy where the file system can. Blocks for as long as the disk takes.
    ///
    /// # Errors
    /// [`Error::Folder`].
    pub fn import(&self, kind: &str, original: &Path) -> Result<Imported> {
        let flags = (OFlags::NONBLOCK | OFlags::CLOEXEC).bits() as i32;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(original);
        let mut file = opened.map_err(Error::folder(original))?;
        let found = file.metadata().map_err(Error::folder(original))?;
        let identity = Identity {
            device: found.dev(),
            inode: found.ino(),
            size: found.len(),
            changed: (found.ctime(), found.ctime_nsec()),
            modified: (found.mtime(), found.mtime_nsec()),
        };
        let name = format!("{kind}-{}", identity.hash());
        let path = self.keep(&name, |copy| copy_of(&mut file, copy))?;
        Ok(Imported { path, name })
    }

    /// An empty file system of [`DISK_BYTES`], made once by `mke2fs`.
    ///
    /// # Errors
    /// [`Error::Missing`] without `mke2fs`, [`Error::Program`], [`Error::Folder`].
    pub async fn blank(&self) -> Result<PathBuf> {
        let name = format!("blank-{DISK_BYTES}");
        let (this, wanted) = (self.clone(), name.clone());
        // What is there already, or what it is made with.
        let begun = long(move || {
            if let Some(there) = this.find(&wanted) {
                return Ok(Err(there));
            }
            let mke2fs = program::find("mke2fs").ok_or_else(crate::detect::no_mke2fs)?;
            let (draft, file) = this.draft(&wanted)?;
            file.set_len(DISK_BYTES).map_err(Error::folder(&draft.0))?;
            Ok(Ok((mke2fs, draft, file)))
        });
        let (mke2fs, draft, file) = match begun.await? {
            Ok(begun) => begun,
            Err(there) => return Ok(there),
        };
        // Whatever befalls the machine, its disk goes with it: no journal, and nothing to be filled in later.
        let arguments = [
            "-q",
            "-F",
            "-t",
            "ext4",
            "-m",
            "0",
            "-O",
            "^has_journal,^resize_inode",
            "-E",
            "lazy_itable_init=1,nodiscard,root_owner=0:0",
            "-L",
            "moltis-disk",
        ];
        let arguments = arguments.iter().map(OsStr::new).chain([draft.0.as_os_str()]);
        let said = program::run(&mke2fs, arguments, b"", MAKES_WITHIN).await;
        let said = said.map_err(|cause| Error::Program { program: "mke2fs", said: cause.to_string() })?;
        if !said.good {
            return Err(Error::Program { program: "mke2fs", said: said.words() });
        }
        let path = self.folder.join(&name);
        long(move || {
            file.set_permissions(Permissions::from_mode(0o444)).map_err(Error::folder(&path))?;
            fs::rename(&draft.0, &path).map_err(Error::folder(&path))?;
            Ok(path)
        })
        .await
    }
}

/// A file or a folder that is removed with this, unless it has moved on.
#[derive(Debug)]
pub(crate) struct Draft(pub PathBuf);

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0).or_else(|_| fs::remove_dir_all(&self.0));
    }
}

/// A file of the store that is somebody's as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Where it lies.
    pub path: PathBuf,
    /// Its name, which changes whenever the original does.
    pub name: String,
}

/// What tells a file from what it was before.
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
    modified: (i64, i64),
}

impl Identity {
    fn hash(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(format!(
            "{} {} {} {:?} {:?}",
            self.device, self.inode, self.size, self.changed, self.modified
        ));
        hash.finalize()[..12].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Gives a machine's working directory a file of the store under another name. Blocks.
///
/// # Errors
/// [`Error::Folder`].
pub fn link(from: &Path, directory: &Path, name: &str) -> Result<()> {
    let to = directory.join(name);
    rustix::fs::linkat(CWD, from, CWD, &to, AtFlags::empty()).map_err(Error::folder(to))
}

/// A new file in a machine's working directory with the content of another one, 0600: by reference where the file system
/// can, else without its holes. Blocks.
///
/// # Errors
/// [`Error::Folder`].
pub fn own(from: &Path, directory: &Path, name: &str) -> Result<File> {
    let mut from_file = File::open(from).map_err(Error::folder(from))?;
    let to = directory.join(name);
    let made = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&to);
    let mut file = made.map_err(Error::folder(&to))?;
    copy_of(&mut from_file, &mut file).map_err(Error::folder(&to))?;
    Ok(file)
}

/// Copies all of a file into an empty one: by reference where the file system can, else without its holes. Blocks.
pub(crate) fn copy_of(from: &mut File, to: &mut File) -> io::Result<()> {
    if rustix::fs::ioctl_ficlone(&*to, &*from).is_ok() {
        return Ok(());
    }
    sparse(from, to)
}

/// Copies what is there and leaves out the holes.
fn sparse(from: &mut File, to: &mut File) -> io::Result<()> {
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let mut at = 0;
    while at < length {
        let data = match rustix::fs::seek(&*from, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => data,
            // Nothing but a hole to the end.
            Err(Errno::NXIO) => break,
            // A file system without holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(errno) => return Err(errno.into()),
        };
        let hole = rustix::fs::seek(&*from, rustix::fs::SeekFrom::Hole(data)).unwrap_or(length);
        from.seek(SeekFrom::Start(data))?;
        to.seek(SeekFrom::Start(data))?;
        let copied = io::copy(&mut Read::by_ref(from).take(hole - data), to)?;
        if copied == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        at = data + copied;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn blocks(path: &Path) -> u64 {
        fs::metadata(path).unwrap().blocks() * 512
    }

    #[test]
    fn holes_stay_holes_and_all_else_is_the_same() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("from");
        let mut from = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        from.set_len(1 << 30).unwrap();
        for (at, text) in [(0, "begin"), (700 << 20, "middle")] {
            from.seek(SeekFrom::Start(at)).unwrap();
            from.write_all(text.as_bytes()).unwrap();
        }
        let copy = own(&path, temp.path(), "to").unwrap();
        drop(copy);
        let to = temp.path().join("to");
        let found = fs::metadata(&to).unwrap();
        assert_eq!((found.len(), found.mode() & 0o777), (1 << 30, 0o600));
        assert!(blocks(&to) < 1 << 20, "{}", blocks(&to));
        let mut copy = File::open(&to).unwrap();
        copy.seek(SeekFrom::Start(700 << 20)).unwrap();
        let mut text = [0; 7];
        copy.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"middle\0");
        assert!(own(&path, temp.path(), "to").is_err(), "it is there already");
    }

    #[test]
    fn an_original_that_changes_is_another_one() {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::make(&temp.path().join("data")).unwrap();
        let original = temp.path().join("rootfs");
        fs::write(&original, "one").unwrap();
        let first = store.import("rootfs", &original).unwrap();
        assert_eq!(store.import("rootfs", &original).unwrap(), first);
        fs::write(&original, "three").unwrap();
        let second = store.import("rootfs", &original).unwrap();
        assert_ne!(first.name, second.name);
        let text = |imported: &Imported| fs::read_to_string(&imported.path).unwrap();
        assert_eq!((text(&first), text(&second)), ("one".to_owned(), "three".to_owned()));
        link(&first.path, temp.path(), "linked").unwrap();
        assert_eq!(
            fs::metadata(temp.path().join("linked")).unwrap().ino(),
            fs::metadata(&first.path).unwrap().ino()
        );
        assert_eq!(fs::read_dir(store.folder()).unwrap().count(), 2, "no draft is left");
    }

    #[test]
    fn a_file_that_could_not_be_filled_is_not_there() {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::make(temp.path()).unwrap();
        let failed = store.keep("a", |file| {
            file.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(failed.is_err());
        assert_eq!(store.find("a"), None);
        assert_eq!(fs::read_dir(store.folder()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_blank_disk_takes_next_to_no_room() {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::make(temp.path()).unwrap();
        let blank = store.blank().await.unwrap();
        assert_eq!(fs::metadata(&blank).unwrap().len(), DISK_BYTES);
        assert!(blocks(&blank) < 8 << 20, "{}", blocks(&blank));
        assert!(crate::detect::is_ext4(&File::open(&blank).unwrap()).unwrap());
        assert_eq!(store.blank().await.unwrap(), blank);
        assert_eq!(fs::read_dir(store.folder()).unwrap().count(), 1, "no draft is left");
    }
}
