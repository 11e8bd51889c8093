//! File access from outside: the operations of `moltis_sandbox::Files`, beneath the tree's handles. Links on the way are
//! followed inside the sandbox. All of it blocks.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use bytes::Bytes;
use moltis_host::bridge::{Inflow, Out, PIECE};
use moltis_host::tree::failure::{exists, kernel, shown, wrong_kind};
use moltis_host::tree::left_out::LeftOut;
use moltis_host::tree::object::{self, NotOpened};
use moltis_host::tree::pack::{Pack, Source};
use moltis_host::tree::part::{Part, clean, is_part};
use moltis_host::tree::place::Place;
use moltis_host::tree::remove::remove;
use moltis_host::tree::rename;
use moltis_host::tree::unpack::{Rules, unpack};
use moltis_sandbox::files::{TreeSummary, WriteOptions};
use moltis_sandbox::{Diagnosis, Entry, EntryKind, Error, GuestPath, Metadata, Result};
use rustix::fs::{Dir, Mode, fstat, mkdirat, readlinkat};
use rustix::io::Errno;

use super::{Follow, Quota, Root, Spot, Tree};

/// Mode of files that are made.
const PLAIN: u32 = 0o644;

fn failed(path: &GuestPath, what: &str, errno: Errno) -> Error {
    kernel(errno, format!("`{}` cannot be {what}", shown(path.as_bytes())))
}

fn not_opened(path: &GuestPath, what: &str, why: NotOpened) -> Error {
    match why {
        NotOpened::Kind(found) => wrong_kind(path.as_bytes(), found),
        NotOpened::Kernel(Errno::EXIST) => exists(path.as_bytes()),
        NotOpened::Kernel(errno) => failed(path, what, errno),
    }
}

/// An opened file and what is known of it.
pub struct Opened {
    /// Its metadata.
    pub metadata: Metadata,
    file: OwnedFd,
}

impl Tree {
    fn at(&self, path: &GuestPath, follow: Follow, what: &str) -> Result<Spot> {
        self.walk(path.as_bytes(), follow).map_err(|errno| failed(path, what, errno))
    }

    fn change(&self, path: &GuestPath, follow: Follow, what: &str) -> Result<(usize, Place)> {
        let spot = self.at(path, follow, what)?;
        self.may_change(&spot).map_err(|errno| failed(path, what, errno))?;
        match spot {
            Spot::Entry { root, directory, name, .. } => {
                let directory = directory
                    .try_clone()
                    .map_err(|e| failed(path, what, Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
                Ok((root, Place { directory, name }))
            }
            Spot::Bare { .. } | Spot::Root { .. } => Err(failed(path, what, Errno::BUSY)),
        }
    }

    /// Metadata.
    ///
    /// # Errors
    /// Those of looking.
    pub fn stat(&self, path: &GuestPath, follow: bool) -> Result<Metadata> {
        let follow = if follow { Follow::All } else { Follow::Way };
        let found = match self.at(path, follow, "looked at")? {
            Spot::Bare { .. } => return Ok(bare()),
            Spot::Root { root } => fstat(self.roots()[root].handle()).map(|stat| object::described(&stat)),
            Spot::Entry { directory, name, .. } => object::metadata(&directory, &*name),
        };
        found.map(as_inside).map_err(|errno| failed(path, "looked at", errno))
    }

    /// What is in a directory. What it gives is read when it is asked for.
    ///
    /// # Errors
    /// When it is none.
    pub fn directory(&self, path: &GuestPath) -> Result<(Option<OwnedFd>, Vec<Entry>)> {
        let spot = self.at(path, Follow::All, "listed")?;
        let place = match &spot {
            Spot::Bare { place } | Spot::Entry { place, .. } => place.clone(),
            Spot::Root { root } => self.roots()[*root].at.clone(),
        };
        let mut over = Vec::new();
        for name in self.names_below(&place) {
            let whole = [&place[..], &[name.to_vec()]].concat();
            let metadata = match self.root_at(&whole) {
                Some(root) => fstat(self.roots()[root].handle())
                    .map_or_else(|_| bare(), |s| as_inside(object::described(&s))),
                None => bare(),
            };
            over.push(Entry { name: OsString::from_vec(name.to_vec()), metadata });
        }
        let opened = match spot {
            Spot::Bare { .. } => None,
            spot => Some(self.open_directory(&spot).map_err(|errno| failed(path, "listed", errno))?),
        };
        Ok((opened, over))
    }

    /// Opens a file to be read.
    ///
    /// # Errors
    /// When it is none, or cannot be.
    pub fn open(&self, path: &GuestPath) -> Result<Opened> {
        let opened = match self.at(path, Follow::All, "read")? {
            Spot::Bare { .. } => Err(NotOpened::Kind(EntryKind::Directory)),
            Spot::Root { root } if self.roots()[root].directory => Err(NotOpened::Kind(EntryKind::Directory)),
            Spot::Root { root } => super::lent::reopen(self.roots()[root].handle())
                .and_then(|file| fstat(&file).map(|stat| (file, stat)))
                .map_err(NotOpened::Kernel),
            Spot::Entry { directory, name, .. } => object::file(&directory, &*name),
        };
        let (file, stat) = opened.map_err(|why| not_opened(path, "read", why))?;
        Ok(Opened { metadata: as_inside(object::described(&stat)), file })
    }

    /// Replaces a file at once when all has arrived.
    ///
    /// # Errors
    /// As `Files::write`.
    pub fn write(&self, path: &GuestPath, options: &WriteOptions, inflow: &mut Inflow) -> Result<Metadata> {
        let WriteOptions { mode, overwrite, parents } = options;
        if *parents && let Some(above) = above(path) {
            self.make_all(&above)?;
        }
        let (root, place) = self.change(path, Follow::All, "written")?;
        let old = match object::stat(&place.directory, &*place.name) {
            Ok(stat) if object::kind(&stat) != EntryKind::File => {
                return Err(wrong_kind(path.as_bytes(), object::kind(&stat)));
            }
            Ok(_) if !overwrite => return Err(exists(path.as_bytes())),
            Ok(stat) => Some(object::described(&stat).mode),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(failed(path, "written", errno)),
        };
        let root = &self.roots()[root];
        // Files are made in a directory that can be read; the one of the walk need not be.
        let directory =
            object::directory(&place.directory, c".").map_err(|why| not_opened(path, "written", why))?;
        clean(&directory);
        let mut part = Part::new(directory.as_fd()).map_err(|e| failed(path, "written", e))?;
        while let Some(bytes) = inflow.next(u64::MAX)? {
            room(root, bytes.len() as u64).map_err(|errno| failed(path, "written", errno))?;
            part.file()
                .write_all(&bytes)
                .map_err(|e| failed(path, "written", Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        }
        let mode = mode.or(old).unwrap_or(PLAIN) & object::MODE;
        let file =
            part.take_name(&place.name, mode, *overwrite).map_err(|why| not_opened(path, "written", why))?;
        fstat(file).map(|stat| as_inside(object::described(&stat))).map_err(|e| failed(path, "written", e))
    }

    /// Makes a directory; with `parents` also those above.
    ///
    /// # Errors
    /// When it cannot be made, or something else is there.
    pub fn make_directory(&self, path: &GuestPath, parents: bool) -> Result<()> {
        if parents {
            return self.make_all(path);
        }
        match self.at(path, Follow::Way, "made")? {
            Spot::Bare { .. } | Spot::Root { .. } => return Err(exists(path.as_bytes())),
            Spot::Entry { .. } => {}
        }
        let (_, place) = self.change(path, Follow::Way, "made")?;
        match mkdirat(&place.directory, &*place.name, Mode::from_raw_mode(0o755)) {
            Err(Errno::EXIST) => Err(exists(path.as_bytes())),
            other => other.map_err(|errno| failed(path, "made", errno)),
        }
    }

    fn make_all(&self, path: &GuestPath) -> Result<()> {
        let whole = path.as_bytes();
        let ends = whole.iter().enumerate().skip(1).filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        for end in ends.chain([whole.len()]) {
            let Some(part) = GuestPath::new(&whole[..end]) else { continue };
            match self.stat(&part, true) {
                Ok(found) if found.kind == EntryKind::Directory => {}
                Ok(found) => return Err(wrong_kind(part.as_bytes(), found.kind)),
                Err(Error::Invalid(d)) if d.code == "file-missing" => {
                    let (_, place) = self.change(&part, Follow::All, "made")?;
                    match mkdirat(&place.directory, &*place.name, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(failed(&part, "made", errno)),
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Removes an entry; of a link, the link.
    ///
    /// # Errors
    /// As `Files::remove`.
    pub fn remove(&self, path: &GuestPath, recursive: bool) -> Result<()> {
        let (_, place) = self.change(path, Follow::Way, "removed")?;
        remove(&place, path.as_bytes(), recursive)
    }

    /// Moves an entry.
    ///
    /// # Errors
    /// As `Files::rename`.
    pub fn rename(&self, from: &GuestPath, to: &GuestPath, replace: bool) -> Result<()> {
        let ((_, source), (_, target)) =
            (self.change(from, Follow::Way, "moved")?, self.change(to, Follow::Way, "replaced")?);
        let failed = |errno| rename::failed(from, to, replace, errno);
        object::stat(&source.directory, &*source.name).map_err(failed)?;
        let (old, new) = ((&source.directory, &*source.name), (&target.directory, &*target.name));
        rename::rename(old, new, replace).map_err(failed)
    }

    /// What is to be packed.
    ///
    /// # Errors
    /// When it is not there.
    pub fn packed(&self, path: &GuestPath) -> Result<Pack> {
        let whole = |source| Pack {
            source,
            shown: path.as_bytes().to_vec(),
            prefix: Vec::new(),
            links: true,
            left_out: LeftOut::default(),
        };
        if let Spot::Entry { directory, name, .. } = self.at(path, Follow::Way, "read")? {
            let stat = object::stat(&directory, &*name).map_err(|errno| failed(path, "read", errno))?;
            match object::kind(&stat) {
                EntryKind::File => {
                    let (file, _) =
                        object::file(&directory, &*name).map_err(|why| not_opened(path, "read", why))?;
                    return Ok(whole(Source::File { file, name: name.into_bytes() }));
                }
                EntryKind::Symlink => {
                    let target =
                        readlinkat(&directory, &*name, Vec::new()).map_err(|e| failed(path, "read", e))?;
                    return Ok(whole(Source::Link {
                        target: target.into_bytes(),
                        stat,
                        name: name.into_bytes(),
                    }));
                }
                EntryKind::Directory => {}
                EntryKind::Other => return Err(wrong_kind(path.as_bytes(), EntryKind::Other)),
            }
        }
        let spot = self.at(path, Follow::All, "read")?;
        let top = self.open_directory(&spot).map_err(|errno| failed(path, "read", errno))?;
        Ok(whole(Source::Directory(top)))
    }

    /// Unpacks beneath a directory, which is made if it is missing.
    ///
    /// # Errors
    /// As `Files::upload`.
    pub fn unpack(&self, path: &GuestPath, inflow: &mut Inflow) -> Result<TreeSummary> {
        self.make_all(path)?;
        let spot = self.at(path, Follow::All, "written")?;
        self.may_change(&spot).map_err(|errno| failed(path, "written", errno))?;
        let (Spot::Root { root } | Spot::Entry { root, .. }) = &spot else {
            return Err(failed(path, "written", Errno::ROFS));
        };
        if !self.roots()[*root].protected.is_empty() {
            return Err(Error::Refused(
                Diagnosis::new(
                    "file-denied",
                    format!("no tree can be unpacked in `{}`", shown(path.as_bytes())),
                )
                .cause("something in the folder is protected (`workspace_protect`)")
                .fix("write the files one by one, or unpack elsewhere inside and move them"),
            ));
        }
        let directory = self.open_directory(&spot).map_err(|errno| failed(path, "written", errno))?;
        clean(&directory);
        let rules = Rules { replace: true, links: true, exact: true, max_file: u64::MAX };
        unpack(directory, rules, inflow).map(|unpacked| unpacked.summary)
    }
}

fn room(root: &Root, bytes: u64) -> Result<(), Errno> {
    match &root.quota {
        Some(quota) => Quota::add(quota, root.handle(), bytes),
        None => Ok(()),
    }
}

/// The path of the directory that something is in.
fn above(path: &GuestPath) -> Option<GuestPath> {
    let bytes = path.as_bytes();
    let trimmed = bytes.iter().rposition(|b| *b != b'/').map_or(&bytes[..0], |end| &bytes[..=end]);
    let end = trimmed.iter().rposition(|b| *b == b'/')?;
    if end == 0 { None } else { GuestPath::new(&trimmed[..end]) }
}

/// Gives out what a directory holds.
///
/// # Errors
/// When it cannot be read, or nobody takes the entries any more.
pub fn list(opened: Option<&OwnedFd>, over: Vec<Entry>, path: &GuestPath, out: &Out<Entry>) -> Result<()> {
    if let Some(directory) = opened {
        for entry in Dir::read_from(directory).map_err(|e| failed(path, "listed", e))? {
            let entry = entry.map_err(|e| failed(path, "listed", e))?;
            let name = entry.file_name();
            let bytes = name.to_bytes();
            let hidden = over.iter().any(|o| o.name.as_encoded_bytes() == bytes);
            if name == c"." || name == c".." || hidden || is_part(bytes) {
                continue;
            }
            match object::metadata(directory, name) {
                Ok(metadata) => {
                    out.give(Entry {
                        name: OsString::from_vec(bytes.to_vec()),
                        metadata: as_inside(metadata),
                    })?;
                }
                // Gone since it was listed.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed(path, "listed", errno)),
            }
        }
    }
    over.into_iter().try_for_each(|entry| out.give(entry))
}

/// Gives out a part of a file.
///
/// # Errors
/// When it cannot be read, or nobody takes it any more.
pub fn read(opened: &Opened, offset: u64, length: u64, path: &GuestPath, out: &Out<Bytes>) -> Result<()> {
    let (mut at, mut left) = (offset, length);
    // The kernel counts offsets with a sign.
    while left > 0 && at <= i64::MAX as u64 {
        let want = usize::try_from(left).map_or(PIECE, |left| left.min(PIECE));
        let mut buffer = vec![0; want];
        match rustix::io::pread(&opened.file, &mut buffer[..], at) {
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

/// Everything inside belongs to the sandbox's user.
fn as_inside(found: Metadata) -> Metadata {
    let id = moltis_host::caller::INSIDE_ID;
    Metadata { uid: id, gid: id, ..found }
}

/// A directory that is only there because something below it is.
fn bare() -> Metadata {
    Metadata {
        kind: EntryKind::Directory,
        size: 0,
        mode: 0o755,
        modified_nanos: 0,
        uid: 0,
        gid: 0,
        target: None,
    }
}
