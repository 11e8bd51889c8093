//! Managed files: the folder `files` of the data directory, which every sandbox can be shown.
//!
//! A sandbox may be able to write to it, so everything in it may be hostile. It holds regular files and directories;
//! what else somebody puts there shows in listings and is never opened, and links are never followed.

use std::io::Write;
use std::os::fd::OwnedFd;

use async_trait::async_trait;
use moltis_sandbox::files::{EntryStream, FileContent, TreeSummary, WriteOptions};
use moltis_sandbox::{ByteStream, Entry, EntryKind, Error, Files, GuestPath, Metadata, Result, blocking};
use rustix::fs::{Dir, Mode, OFlags, fstat, mkdirat, open};
use rustix::io::Errno;

use crate::bridge::{Out, PIECE, consume, produce};
use crate::error::RuntimeError;
use crate::homes;
use crate::runtime::{Runtime, off_thread};
use crate::tree::failure::{exists, kernel, shown, too_large, wrong_kind};
use crate::tree::left_out::LeftOut;
use crate::tree::object::{self, NotOpened};
use crate::tree::pack::{Pack, Source, pack};
use crate::tree::part::{Part, clean};
use crate::tree::place::{Place, Top};
use crate::tree::remove::remove;
use crate::tree::rename;
use crate::tree::unpack::{Rules, plain_mode, unpack};

/// What `stat` does.
const LOOKED: &str = "looked at";

/// Most bytes of a file.
pub const MAX_FILE: u64 = 1 << 30;

/// The managed files of a data directory. Paths are absolute, and `/` is the folder itself.
#[derive(Clone, Debug)]
pub struct ManagedFiles {
    top: Top,
    replacing: bool,
}

impl Runtime {
    /// The managed files.
    ///
    /// # Errors
    /// When their folder cannot be made or opened.
    pub async fn managed_files(&self) -> Result<ManagedFiles> {
        let config = self.config().clone();
        off_thread(move || {
            let folder = homes::managed_files(&config);
            homes::files_folder(&folder, &config.data_dir.value)
                .map_err(|e| RuntimeError::data_directory(&folder, e))?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let top = open(&folder, flags, Mode::empty())
                .map_err(|errno| RuntimeError::data_directory(&folder, errno.into()))?;
            Ok(ManagedFiles::new(top))
        })
        .await
    }
}

impl ManagedFiles {
    /// Managed files in this folder. Uploaded trees replace nothing.
    pub fn new(folder: OwnedFd) -> Self {
        Self { top: Top::new(folder), replacing: false }
    }

    /// Whether the files of uploaded trees may replace those that are there.
    #[must_use]
    pub fn replacing(self, replacing: bool) -> Self {
        Self { replacing, ..self }
    }

    /// Does work that blocks at the place that a path names; for the folder itself an error.
    async fn at<T: Send + 'static>(
        &self,
        path: &GuestPath,
        work: impl FnOnce(Place, &GuestPath) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (top, path) = (self.top.clone(), path.clone());
        off_thread(move || work(place(&top, &path)?, &path)).await
    }
}

fn place(top: &Top, path: &GuestPath) -> Result<Place> {
    top.place(path, false)?.ok_or_else(|| wrong_kind(path.as_bytes(), EntryKind::Directory))
}

fn not_opened(path: &GuestPath, what: &str, why: NotOpened) -> Error {
    match why {
        NotOpened::Kind(found) => wrong_kind(path.as_bytes(), found),
        NotOpened::Kernel(Errno::EXIST) => exists(path.as_bytes()),
        NotOpened::Kernel(errno) => failed(path, what, errno),
    }
}

/// `what` did not happen to it.
fn failed(path: &GuestPath, what: &str, errno: Errno) -> Error {
    kernel(errno, format!("`{}` of the managed files cannot be {what}", shown(path.as_bytes())))
}

#[async_trait]
impl Files for ManagedFiles {
    async fn stat(&self, path: &GuestPath, follow: bool) -> Result<Metadata> {
        let (top, path) = (self.top.clone(), path.clone());
        off_thread(move || {
            let Some(Place { directory, name }) = top.place(&path, false)? else {
                let top = top.directory(&path, false)?;
                return fstat(top).map(|stat| object::described(&stat)).map_err(|e| failed(&path, LOOKED, e));
            };
            match object::metadata(&directory, &*name).map_err(|e| failed(&path, LOOKED, e))? {
                found if follow && found.kind == EntryKind::Symlink => {
                    Err(wrong_kind(path.as_bytes(), found.kind))
                }
                found => Ok(found),
            }
        })
        .await
    }

    async fn list(&self, path: &GuestPath) -> Result<EntryStream> {
        let (top, path) = (self.top.clone(), path.clone());
        let directory = off_thread({
            let path = path.clone();
            move || top.directory(&path, false)
        });
        let directory = directory.await?;
        Ok(produce(move |out| list(&directory, &path, out)))
    }

    async fn read(&self, path: &GuestPath, offset: u64, length: Option<u64>) -> Result<FileContent> {
        let opened = self.at(path, |Place { directory, name }, path| {
            object::file(&directory, &*name).map_err(|why| not_opened(path, "read", why))
        });
        let (file, stat) = opened.await?;
        let path = path.clone();
        Ok(FileContent {
            metadata: object::described(&stat),
            content: produce(move |out| read(&file, offset, length.unwrap_or(u64::MAX), &path, out)),
        })
    }

    async fn write(&self, path: &GuestPath, options: WriteOptions, content: ByteStream) -> Result<Metadata> {
        let (top, path) = (self.top.clone(), path.clone());
        let WriteOptions { mode, overwrite, parents } = options;
        consume(content, move |inflow| {
            let place = top.place(&path, parents)?;
            let Place { directory, name } =
                place.ok_or_else(|| wrong_kind(path.as_bytes(), EntryKind::Directory))?;
            let old = match object::stat(&directory, &*name) {
                Ok(stat) if object::kind(&stat) != EntryKind::File => {
                    return Err(wrong_kind(path.as_bytes(), object::kind(&stat)));
                }
                Ok(_) if !overwrite => return Err(exists(path.as_bytes())),
                Ok(stat) => Some(object::described(&stat).mode),
                Err(Errno::NOENT) => None,
                Err(errno) => return Err(failed(&path, "written", errno)),
            };
            clean(&directory);
            let mut part =
                Part::new(std::os::fd::AsFd::as_fd(&directory)).map_err(|e| failed(&path, "written", e))?;
            let mut size = 0;
            while let Some(bytes) = inflow.next(u64::MAX)? {
                size += bytes.len() as u64;
                if size > MAX_FILE {
                    return Err(too_large(path.as_bytes(), MAX_FILE));
                }
                let written = part.file().write_all(&bytes);
                written
                    .map_err(|e| failed(&path, "written", Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
            }
            let mode = plain_mode(mode.or(old).unwrap_or(0));
            let file =
                part.take_name(&name, mode, overwrite).map_err(|why| not_opened(&path, "written", why))?;
            fstat(file).map(|stat| object::described(&stat)).map_err(|e| failed(&path, "written", e))
        })
        .await
    }

    async fn mkdir(&self, path: &GuestPath, parents: bool) -> Result<()> {
        if parents {
            let (top, path) = (self.top.clone(), path.clone());
            return off_thread(move || top.directory(&path, true).map(drop)).await;
        }
        self.at(path, |Place { directory, name }, path| {
            match mkdirat(&directory, &*name, Mode::from_raw_mode(0o755)) {
                Err(Errno::EXIST) => Err(exists(path.as_bytes())),
                other => other.map_err(|e| failed(path, "made", e)),
            }
        })
        .await
    }

    async fn remove(&self, path: &GuestPath, recursive: bool) -> Result<()> {
        let (top, path) = (self.top.clone(), path.clone());
        // A tree takes its time.
        let done = blocking::long(move || remove(&place(&top, &path)?, path.as_bytes(), recursive)).await;
        done.unwrap_or_else(|broke| Err(RuntimeError::Broke(broke.to_string()).into()))
    }

    async fn rename(&self, from: &GuestPath, to: &GuestPath, replace: bool) -> Result<()> {
        let (top, to) = (self.top.clone(), to.clone());
        self.at(from, move |source, from| {
            let target = place(&top, &to)?;
            let failed = |errno| rename::failed(from, &to, replace, errno);
            let stat = object::stat(&source.directory, &*source.name).map_err(failed)?;
            if !matches!(object::kind(&stat), EntryKind::File | EntryKind::Directory) {
                return Err(wrong_kind(from.as_bytes(), object::kind(&stat)));
            }
            let (old, new) = ((&source.directory, &*source.name), (&target.directory, &*target.name));
            rename::rename(old, new, replace).map_err(failed)
        })
        .await
    }

    async fn download(&self, path: &GuestPath) -> Result<ByteStream> {
        let (top, path) = (self.top.clone(), path.clone());
        let shown = path.as_bytes().to_vec();
        let source = off_thread(move || {
            if let Some(Place { directory, name }) = top.place(&path, false)?
                && object::stat(&directory, &*name).is_ok_and(|stat| object::kind(&stat) == EntryKind::File)
            {
                let (file, _) =
                    object::file(&directory, &*name).map_err(|why| not_opened(&path, "read", why))?;
                return Ok(Source::File { file, name: name.into_bytes() });
            }
            top.directory(&path, false).map(Source::Directory)
        });
        let tree = Pack {
            source: source.await?,
            shown,
            prefix: Vec::new(),
            links: false,
            left_out: LeftOut::default(),
        };
        Ok(produce(move |out| pack(tree, out)))
    }

    async fn upload(&self, path: &GuestPath, tar: ByteStream) -> Result<TreeSummary> {
        let (top, path) = (self.top.clone(), path.clone());
        let rules = Rules { replace: self.replacing, links: false, exact: false, max_file: MAX_FILE };
        consume(tar, move |inflow| {
            let directory = top.directory(&path, true)?;
            clean(&directory);
            unpack(directory, rules, inflow).map(|unpacked| unpacked.summary)
        })
        .await
    }
}

fn list(directory: &OwnedFd, path: &GuestPath, out: &Out<Entry>) -> Result<()> {
    use std::os::unix::ffi::OsStringExt;

    for entry in Dir::read_from(directory).map_err(|e| failed(path, "listed", e))? {
        let entry = entry.map_err(|e| failed(path, "listed", e))?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match object::metadata(directory, name) {
            Ok(metadata) => {
                let name = std::ffi::OsString::from_vec(name.to_bytes().to_vec());
                out.give(Entry { name, metadata })?;
            }
            // Gone since it was listed.
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed(path, "listed", errno)),
        }
    }
    Ok(())
}

fn read(file: &OwnedFd, offset: u64, length: u64, path: &GuestPath, out: &Out<bytes::Bytes>) -> Result<()> {
    let (mut at, mut left) = (offset, length);
    // The kernel counts offsets with a sign.
    while left > 0 && at <= i64::MAX as u64 {
        let want = usize::try_from(left).map_or(PIECE, |left| left.min(PIECE));
        let mut buffer = vec![0; want];
        match rustix::io::pread(file, &mut buffer[..], at) {
            Ok(0) => break,
            Ok(count) => {
                buffer.truncate(count);
                out.give(buffer.into())?;
                at += count as u64;
                left -= count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(path, "read", errno)),
        }
    }
    Ok(())
}
