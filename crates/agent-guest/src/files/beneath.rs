//! Making things beneath one directory, by names that somebody else chose. Every directory on the way is opened by
//! its name alone and without following a link, so that no name leads out.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use moltis_agent_protocol::message::{Failure, FailureCode};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::failure::{kernel, plain, shown};

/// Longest path that is made, in bytes. Longer than the kernel's own limit, since it is never given to it whole.
const MAX_PATH: usize = 1024 * 1024;

/// Directories on the way to the last place that stay open: archives mostly go on near where they are.
const OPEN: usize = 64;

/// A directory, and the way to the last place beneath it that was used.
pub struct Beneath {
    top: OwnedFd,
    /// Path of the last place.
    last: Vec<u8>,
    /// The lowest directories on the way there, each with the length of its path.
    way: VecDeque<(usize, OwnedFd)>,
}

/// A name from an archive, brought into plain form: names with single slashes between, none of them `.` or `..`.
/// Empty for the top itself.
pub fn cleaned(name: &[u8]) -> Result<Vec<u8>, Failure> {
    let escapes = || plain(FailureCode::Escapes, format!("`{}` in the archive leads outside", shown(name)));
    if name.starts_with(b"/") {
        return Err(escapes());
    }
    if name.contains(&0) || name.len() > MAX_PATH {
        return Err(plain(
            FailureCode::Invalid,
            format!("`{}` in the archive cannot be a name", shown(name)),
        ));
    }
    let mut clean = Vec::with_capacity(name.len());
    for part in name.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
        if part == b".." {
            return Err(escapes());
        }
        if !clean.is_empty() {
            clean.push(b'/');
        }
        clean.extend_from_slice(part);
    }
    Ok(clean)
}

/// The directory part and the last name of a cleaned path that is not empty.
pub fn parts(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

impl Beneath {
    /// Everything happens beneath this directory.
    pub fn new(top: OwnedFd) -> Self {
        Self { top, last: Vec::new(), way: VecDeque::new() }
    }

    /// A handle of the directory at a cleaned path; what is missing on the way is made.
    pub fn directory(&mut self, path: &[u8]) -> Result<BorrowedFd<'_>, Failure> {
        self.reach(path, true).map_err(|(name, e)| refused(path, &name, e))
    }

    /// A handle of the directory at a cleaned path, if it is there.
    pub fn existing(&mut self, path: &[u8]) -> Option<BorrowedFd<'_>> {
        self.reach(path, false).ok()
    }

    /// On an error also the name that was the obstacle.
    fn reach(&mut self, path: &[u8], make: bool) -> Result<BorrowedFd<'_>, (Vec<u8>, Errno)> {
        let is_on_the_way = |length: usize, last: &[u8]| {
            path.len() >= length
                && path[..length] == last[..length]
                && matches!(path.get(length), None | Some(b'/'))
        };
        while self.way.back().is_some_and(|(length, _)| !is_on_the_way(*length, &self.last)) {
            self.way.pop_back();
        }
        let mut at = self.way.back().map_or(0, |(length, _)| *length);
        self.last.clear();
        self.last.extend_from_slice(path);
        while at < path.len() {
            let start = if at == 0 { 0 } else { at + 1 };
            let end =
                path[start..].iter().position(|byte| *byte == b'/').map_or(path.len(), |slash| start + slash);
            let name = &path[start..end];
            let parent = self.way.back().map_or(self.top.as_fd(), |(_, directory)| directory.as_fd());
            let directory = step(parent, name, make).map_err(|e| (name.to_vec(), e))?;
            self.way.push_back((end, directory));
            if self.way.len() > OPEN {
                self.way.pop_front();
            }
            at = end;
        }
        Ok(self.way.back().map_or(self.top.as_fd(), |(_, directory)| directory.as_fd()))
    }

    /// Forgets the way, since a directory on it may not be there any more.
    pub fn forget(&mut self) {
        self.way.clear();
    }
}

fn step(parent: BorrowedFd<'_>, name: &[u8], make: bool) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Err(Errno::NOENT) if make => {
            match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(e),
            }
            rustix::fs::openat(parent, name, flags, Mode::empty())
        }
        other => other,
    }
}

fn refused(path: &[u8], name: &[u8], errno: Errno) -> Failure {
    match errno {
        Errno::LOOP | Errno::NOTDIR => plain(
            FailureCode::Escapes,
            format!(
                "`{}` in the archive leads through `{}`, which is no directory",
                shown(path),
                shown(name)
            ),
        ),
        e => kernel(e, format!("the directory `{}` of the archive cannot be made", shown(path))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_brought_into_plain_form_or_refused() {
        for (name, expected) in [
            (&b"a/b"[..], &b"a/b"[..]),
            (b"./a//b/./c/", b"a/b/c"),
            (b"./", b""),
            (b"", b""),
            (b"..a/b..", b"..a/b.."),
            (b"\xff", b"\xff"),
        ] {
            assert_eq!(cleaned(name).unwrap(), expected);
        }
        for name in [&b"/a"[..], b"..", b"a/../b", b"a/..", b"../../etc/passwd"] {
            assert_eq!(cleaned(name).unwrap_err().code, FailureCode::Escapes);
        }
        assert_eq!(cleaned(b"a\0").unwrap_err().code, FailureCode::Invalid);
        assert_eq!(parts(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(parts(b"a"), (&b""[..], &b"a"[..]));
    }
}
