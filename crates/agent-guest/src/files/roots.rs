//! The folders that file operations may reach where the agent sees more than its sandbox: in mode `serve` it runs
//! among all of the host's files, and commands may plant links wherever they like.
//!
//! A path is not judged; what it led to is. Every operation opens an object or a directory, has the kernel say where
//! that really lies, and goes on by the same handle. Without roots everything may be reached: then the sandbox itself
//! is the bound.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

use moltis_agent_protocol::message::{Failure, FailureCode};
use rustix::io::Errno;

use super::failure::{plain, shown};

/// A folder that may be reached, with all in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Its real path.
    path: Vec<u8>,
    writable: bool,
}

/// Set once, before the agent serves, and inherited by every process that it forks.
static ROOTS: OnceLock<Vec<Root>> = OnceLock::new();

/// What is about to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Looking at it.
    Read,
    /// Changing what is in it.
    Write,
}

/// Why it is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It lies in none of the folders.
    Outside,
    /// It lies in one that is read-only.
    ReadOnly,
}

impl Root {
    /// Reads `ro:/path` or `rw:/path`.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (writable, path) = match text {
            [b'r', b'o', b':', path @ ..] => (false, path),
            [b'r', b'w', b':', path @ ..] => (true, path),
            _ => return None,
        };
        path.starts_with(b"/").then(|| Self { path: path.to_vec(), writable })
    }
}

/// Bounds all file operations of this process and those that it will fork to these folders; to none at all if there
/// are none.
pub fn confine(roots: Vec<Root>) {
    // Whoever comes second changes nothing.
    let _ = ROOTS.set(roots);
}

/// Judges where an opened object really lies.
///
/// # Errors
/// `Denied` or `ReadOnly`, naming `path`, which is what the caller called it.
pub fn judge(handle: impl AsFd, path: &[u8], access: Access) -> Result<(), Failure> {
    match verdict(handle, access) {
        Ok(()) => Ok(()),
        Err(Verdict::Outside) => Err(plain(
            FailureCode::Denied,
            format!("`{}` lies outside the folders that file tools may reach here", shown(path)),
        )),
        Err(Verdict::ReadOnly) => {
            Err(plain(FailureCode::ReadOnly, format!("`{}` lies in a folder that is read-only", shown(path))))
        }
    }
}

/// The same as an error number.
///
/// # Errors
/// `ACCESS` or `ROFS`.
pub fn judge_errno(handle: impl AsFd, access: Access) -> Result<(), Errno> {
    verdict(handle, access).map_err(|verdict| match verdict {
        Verdict::Outside => Errno::ACCESS,
        Verdict::ReadOnly => Errno::ROFS,
    })
}

fn verdict(handle: impl AsFd, access: Access) -> Result<(), Verdict> {
    let Some(roots) = ROOTS.get() else { return Ok(()) };
    let place = format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd());
    let real = rustix::fs::readlink(place, Vec::new()).map_err(|_| Verdict::Outside)?;
    among(roots, real.as_bytes(), access)
}

/// The innermost root decides.
fn among(roots: &[Root], real: &[u8], access: Access) -> Result<(), Verdict> {
    let holds = |root: &&Root| {
        real.strip_prefix(root.path.as_slice()).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    };
    let root = roots.iter().filter(holds).max_by_key(|root| root.path.len()).ok_or(Verdict::Outside)?;
    if access == Access::Write && !root.writable { Err(Verdict::ReadOnly) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_folder_decides() {
        let roots: Vec<Root> =
            [&b"rw:/a"[..], b"ro:/a/b", b"ro:/c"].map(|text| Root::parse(text).unwrap()).into();
        let cases = [
            ("/a", Ok(()), Ok(())),
            ("/a/x", Ok(()), Ok(())),
            ("/a/b", Ok(()), Err(Verdict::ReadOnly)),
            ("/a/b/x", Ok(()), Err(Verdict::ReadOnly)),
            ("/a/bx", Ok(()), Ok(())),
            ("/c/x", Ok(()), Err(Verdict::ReadOnly)),
            ("/ax", Err(Verdict::Outside), Err(Verdict::Outside)),
            ("/", Err(Verdict::Outside), Err(Verdict::Outside)),
            ("/a (deleted)", Err(Verdict::Outside), Err(Verdict::Outside)),
            ("socket:[1]", Err(Verdict::Outside), Err(Verdict::Outside)),
        ];
        for (real, read, write) in cases {
            assert_eq!(among(&roots, real.as_bytes(), Access::Read), read, "{real}");
            assert_eq!(among(&roots, real.as_bytes(), Access::Write), write, "{real}");
        }
        assert_eq!(among(&[], b"/a", Access::Read), Err(Verdict::Outside));
    }

    #[test]
    fn roots_are_absolute_and_say_how() {
        for wrong in [&b""[..], b"/a", b"ro:", b"rw:a", b"rx:/a"] {
            assert_eq!(Root::parse(wrong), None);
        }
    }
}
