//! Unpacking a tar stream beneath a directory.
//!
//! Links are made and never followed. Times and modes of directories are set when all is unpacked, since what is put
//! into a directory changes its time, and a read-only one takes nothing; how many are remembered is bounded.

use std::fs::File;
use std::io::Write;

use moltis_agent_protocol::message::{EntryKind, FailureCode, Reply};
use moltis_agent_protocol::tar::{BLOCK, Extended, Header, MAX_META, Time, padding, text};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use super::beneath::{Beneath, cleaned, parts};
use super::body::Body;
use super::failure::{kernel, plain, shown};
use super::{Result, change, object};
use crate::connection::Connection;

/// Bytes that may be spent on remembering directories.
const MAX_REMEMBERED: usize = 16 * 1024 * 1024;

/// Unpacks what the host sends beneath `path`, which is made if missing.
pub fn upload(conn: &mut Connection, path: &[u8]) -> Result<Reply> {
    let top = change::make_all(CWD, path)
        .map_err(|e| kernel(e, format!("the directory `{}` cannot be made", shown(path))))?;
    let mut unpacking = Unpacking {
        body: Body::new(conn),
        beneath: Beneath::new(top),
        directories: Vec::new(),
        remembered: 0,
        entries: 0,
        bytes: 0,
    };
    unpacking.run()?;
    unpacking.finish();
    Ok(Reply::Unpacked { entries: unpacking.entries, bytes: unpacking.bytes })
}

struct Unpacking<'a> {
    body: Body<'a>,
    beneath: Beneath,
    directories: Vec<Made>,
    remembered: usize,
    entries: u64,
    bytes: u64,
}

/// A directory whose time, and perhaps mode, is still to be set.
struct Made {
    path: Vec<u8>,
    mode: u32,
    mtime: Timespec,
}

/// One entry, with everything known of it.
struct Wanted {
    path: Vec<u8>,
    mode: u32,
    mtime: Timespec,
}

impl Unpacking<'_> {
    fn run(&mut self) -> Result<()> {
        let mut extended = Extended::default();
        let mut zeros = 0;
        loop {
            let mut block = [0; BLOCK];
            match self.body.fill(&mut block)? {
                0 => return Ok(()),
                BLOCK => {}
                _ => return Err(broken("half a header")),
            }
            let header = match Header::read(&block).map_err(broken)? {
                Some(header) => header,
                None => {
                    zeros += 1;
                    if zeros == 2 {
                        // What follows the end is filling.
                        while self.body.next(u64::MAX)?.is_some() {}
                        return Ok(());
                    }
                    continue;
                }
            };
            zeros = 0;
            match header.kind {
                b'L' => extended.name = Some(text(&self.meta(&header)?).to_vec()),
                b'K' => extended.target = Some(text(&self.meta(&header)?).to_vec()),
                b'x' => extended.read(&self.meta(&header)?).map_err(broken)?,
                b'g' => drop(self.meta(&header)?),
                _ => self.entry(header, std::mem::take(&mut extended))?,
            }
        }
    }

    /// Content that describes the next entry.
    fn meta(&mut self, header: &Header) -> Result<Vec<u8>> {
        if header.size > MAX_META {
            return Err(broken("a name or an extended header above 1 MiB"));
        }
        let mut content = Vec::new();
        let mut left = header.size;
        while left > 0 {
            let Some(bytes) = self.body.next(left)? else { return Err(broken("half a name")) };
            content.extend_from_slice(bytes);
            left -= bytes.len() as u64;
        }
        self.skip(padding(header.size) as u64)?;
        Ok(content)
    }

    fn skip(&mut self, mut count: u64) -> Result<()> {
        while count > 0 {
            let Some(bytes) = self.body.next(count)? else { return Err(broken("half a block")) };
            count -= bytes.len() as u64;
        }
        Ok(())
    }

    fn entry(&mut self, header: Header, extended: Extended) -> Result<()> {
        let name = extended.name.unwrap_or(header.name);
        let path = cleaned(&name)?;
        let size = extended.size.unwrap_or(header.size);
        let Time { seconds, nanos } = extended.mtime.unwrap_or(Time { seconds: header.mtime, nanos: 0 });
        let mtime = Timespec { tv_sec: seconds, tv_nsec: nanos.into() };
        let refuse = |what: &str| -> super::Trouble {
            plain(FailureCode::WrongKind, format!("`{}` in the archive is {what}", shown(&name))).into()
        };
        if extended.is_sparse {
            return Err(refuse("stored as a sparse file, which is not unpacked"));
        }
        let is_directory = header.kind == b'5' || (matches!(header.kind, 0 | b'0') && name.ends_with(b"/"));
        let wanted = Wanted { path, mode: header.mode & 0o777, mtime };
        match header.kind {
            _ if is_directory => {
                self.directory(wanted)?;
                // Some archives state a size for directories that is none of content.
                if header.kind != b'5' {
                    self.skip(size)?;
                    self.skip(padding(size) as u64)?;
                }
                Ok(())
            }
            0 | b'0' | b'7' => self.file(wanted, size),
            b'2' => {
                let target = extended.target.unwrap_or(header.target);
                self.link(wanted, &target)
            }
            b'1' => Err(refuse("a hard link, which is not unpacked")),
            b'3' | b'4' => Err(refuse("a device, which is not unpacked")),
            b'6' => Err(refuse("a FIFO, which is not unpacked")),
            b'S' => Err(refuse("stored as a sparse file, which is not unpacked")),
            _ => Err(refuse("of a kind that is not known")),
        }
    }

    fn directory(&mut self, wanted: Wanted) -> Result<()> {
        if wanted.path.is_empty() {
            return Ok(());
        }
        let failed = |e: Errno| failed(&wanted.path, e);
        let (above, name) = parts(&wanted.path);
        let parent = self.beneath.directory(above)?;
        let mut made = rustix::fs::mkdirat(parent, name, Mode::RWXU);
        if made == Err(Errno::EXIST) {
            let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
            if object::kind(&stat) != EntryKind::Directory {
                // Another thing of that name gives way, as to a file.
                rustix::fs::unlinkat(parent, name, AtFlags::empty()).map_err(failed)?;
                made = rustix::fs::mkdirat(parent, name, Mode::RWXU);
            }
        }
        let is_new = made.is_ok();
        if !matches!(made, Ok(()) | Err(Errno::EXIST)) {
            made.map_err(failed)?;
        }
        match object::directory(parent, name) {
            Ok(directory) => {
                // It stays passable for its owner until all is unpacked.
                let mode = Mode::from_raw_mode(wanted.mode | 0o700);
                match rustix::fs::fchmod(&directory, mode) {
                    Err(e) if is_new => return Err(failed(e).into()),
                    // A directory that was there and is somebody else's keeps its mode.
                    _ => {}
                }
            }
            // It was there, and may not be read; perhaps it can still be written to.
            Err(Errno::ACCESS) if !is_new => {}
            Err(e) => return Err(failed(e).into()),
        }
        self.entries += 1;
        self.remembered += wanted.path.len() + size_of::<Made>();
        if self.remembered <= MAX_REMEMBERED {
            let Wanted { path, mode, mtime } = wanted;
            self.directories.push(Made { path, mode, mtime });
        }
        Ok(())
    }

    fn file(&mut self, wanted: Wanted, size: u64) -> Result<()> {
        if wanted.path.is_empty() {
            return Err(broken("a file without a name"));
        }
        let (above, name) = parts(&wanted.path);
        let parent = self.beneath.directory(above)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let create = || rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR);
        let file = match create() {
            Err(Errno::EXIST) => rustix::fs::unlinkat(parent, name, AtFlags::empty())
                .and_then(|()| create())
                .map_err(|e| failed(&wanted.path, e))?,
            other => other.map_err(|e| failed(&wanted.path, e))?,
        };
        let mut file = File::from(file);
        match fill(&mut self.body, &mut file, &wanted, size) {
            Ok(()) => {
                self.entries += 1;
                self.bytes += size;
                Ok(())
            }
            Err(trouble) => {
                // Half a file is worse than none.
                let _ = rustix::fs::unlinkat(parent, name, AtFlags::empty());
                Err(trouble)
            }
        }
    }

    fn link(&mut self, wanted: Wanted, target: &[u8]) -> Result<()> {
        if wanted.path.is_empty() || target.is_empty() || target.contains(&0) {
            return Err(broken("a link without a name or a target"));
        }
        let failed = |e: Errno| failed(&wanted.path, e);
        let (above, name) = parts(&wanted.path);
        let parent = self.beneath.directory(above)?;
        match rustix::fs::symlinkat(target, parent, name) {
            Err(Errno::EXIST) => rustix::fs::unlinkat(parent, name, AtFlags::empty())
                .and_then(|()| rustix::fs::symlinkat(target, parent, name))
                .map_err(failed)?,
            other => other.map_err(failed)?,
        }
        // Not every file system keeps times of links.
        let _ = rustix::fs::utimensat(parent, name, &times(wanted.mtime), AtFlags::SYMLINK_NOFOLLOW);
        self.entries += 1;
        Ok(())
    }

    /// Gives the directories their times, then those modes that would have been in the way. What cannot be set any
    /// more, because a directory was moved or replaced meanwhile, is left.
    fn finish(&mut self) {
        let mut directories = std::mem::take(&mut self.directories);
        // In this order each is near the one before.
        directories.sort_by(|a, b| a.path.cmp(&b.path));
        for made in &directories {
            let (above, name) = parts(&made.path);
            if let Some(parent) = self.beneath.existing(above) {
                let _ = rustix::fs::utimensat(parent, name, &times(made.mtime), AtFlags::SYMLINK_NOFOLLOW);
            }
        }
        self.beneath.forget();
        // Deepest first: one that is closed cannot be passed any more.
        for made in directories.iter().rev().filter(|made| made.mode & 0o700 != 0o700) {
            let (above, name) = parts(&made.path);
            if let Some(parent) = self.beneath.existing(above)
                && let Ok(directory) = object::directory(parent, name)
            {
                let _ = rustix::fs::fchmod(directory, Mode::from_raw_mode(made.mode));
            }
        }
    }
}

/// Writes a file's content and sets its mode and time.
fn fill(body: &mut Body<'_>, file: &mut File, wanted: &Wanted, size: u64) -> Result<()> {
    let failed = |e: Errno| failed(&wanted.path, e);
    let mut left = size;
    while left > 0 {
        let Some(bytes) = body.next(left)? else {
            let what = format!("the archive ends in the middle of `{}`", shown(&wanted.path));
            return Err(plain(FailureCode::Invalid, what).into());
        };
        file.write_all(bytes).map_err(|e| failed(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        left -= bytes.len() as u64;
    }
    rustix::fs::fchmod(&*file, Mode::from_raw_mode(wanted.mode)).map_err(failed)?;
    rustix::fs::futimens(&*file, &times(wanted.mtime)).map_err(failed)?;
    let mut rest = padding(size) as u64;
    while rest > 0 {
        let Some(bytes) = body.next(rest)? else {
            let what = format!("the archive ends behind `{}`", shown(&wanted.path));
            return Err(plain(FailureCode::Invalid, what).into());
        };
        rest -= bytes.len() as u64;
    }
    Ok(())
}

fn times(mtime: Timespec) -> Timestamps {
    Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: mtime }
}

fn failed(path: &[u8], errno: Errno) -> moltis_agent_protocol::message::Failure {
    kernel(errno, format!("`{}` of the archive cannot be unpacked", shown(path)))
}

fn broken(what: &str) -> super::Trouble {
    plain(FailureCode::Invalid, format!("the archive holds {what}")).into()
}
