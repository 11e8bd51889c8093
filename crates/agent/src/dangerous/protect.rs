//! Files of a writable folder that run code on the host later: found by globs. A link that a glob names cannot be
//! protected; at the top of the folder, where it matters most, it is an error.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, statat};
use rustix::io::Errno;

use super::{Found, Kind, Patterns, name_matches};
use crate::error::{Error, Result};

/// Parts of a glob, at most.
const MAX_DEPTH: usize = 64;

/// Matches at most; more would make a sandbox with so many mounts that it could hardly start.
const MAX_MATCHES: usize = 2_000;

/// What was found, as paths relative to the workspace.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Protected {
    /// Directories between the workspace and a match, outer ones first.
    pub above: Vec<Vec<u8>>,
    /// Files and directories that match.
    pub matches: Vec<Vec<u8>>,
}

/// What of a writable folder is to be protected: `found`, which a survey by the same globs came upon in all of it, and
/// what they name at its top. `folder` is a handle of it (`O_PATH` will do), `path` its name for messages. `*`, `?` and `[…]` match within a name, none of them through a link.
///
/// # Errors
/// [`Error::LinkNotProtectable`] when a link matches at the top, or leads to a match; when something there cannot be
/// looked at; when there are more matches than can be mounted.
pub fn matches(folder: BorrowedFd<'_>, path: &Path, globs: &[String], found: &[Found]) -> Result<Protected> {
    let workspace = Workspace { folder, path };
    let mut search = Search { workspace, path: Vec::new(), found: BTreeSet::new() };
    for glob in globs {
        let parts: Vec<&[u8]> = glob
            .as_bytes()
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty() && *part != b".")
            .skip_while(|part| *part == b"**")
            .collect();
        // Nothing above the workspace is shown; what may lie anywhere is left to the survey.
        if !parts.is_empty() && !parts.iter().any(|part| [b"..".as_slice(), b"**"].contains(part)) {
            search.walk(folder, &parts, MAX_DEPTH)?;
        }
    }
    let mut all = search.found;
    all.extend(found.iter().filter(|found| found.kind != Kind::Link).map(|found| found.path.to_vec()));
    // What lies in a match is protected with it.
    let matches: Vec<Vec<u8>> =
        all.iter().filter(|path| !ancestors(path).any(|above| all.contains(above))).cloned().collect();
    let patterns = Patterns::new(globs);
    // A folder that the globs do not name may be renamed with what is protected in it: what is then made in its old
    // place is news. Were it a mount, nothing could be moved out of it or linked into it.
    let is_named = |above: &&[u8]| patterns.is_within(above);
    let above: BTreeSet<Vec<u8>> =
        matches.iter().flat_map(|path| ancestors(path).filter(is_named).map(<[u8]>::to_vec)).collect();
    Ok(Protected { above: above.into_iter().collect(), matches })
}

#[derive(Clone, Copy)]
struct Workspace<'w> {
    folder: BorrowedFd<'w>,
    path: &'w Path,
}

struct Search<'w> {
    workspace: Workspace<'w>,
    /// Where it is, relative to the workspace.
    path: Vec<u8>,
    found: BTreeSet<Vec<u8>>,
}

impl Search<'_> {
    fn walk(&mut self, directory: BorrowedFd<'_>, parts: &[&[u8]], depth: usize) -> Result<()> {
        let [part, rest @ ..] = parts else { return Ok(()) };
        if depth == 0 {
            return Ok(());
        }
        let is_pattern = part.iter().any(|byte| b"*?[".contains(byte));
        let candidates = if is_pattern {
            names(directory)
                .map_err(unreadable)?
                .into_iter()
                .filter(|name| name_matches(part, name))
                .collect()
        } else {
            vec![part.to_vec()]
        };
        for name in candidates {
            if rest.is_empty() {
                self.take(directory, &name)?;
                continue;
            }
            match enter(directory, &name)? {
                Entered::Directory(below) => self.walk_below(below.as_fd(), &name, rest, depth)?,
                // It could be replaced by a directory that holds what the glob names.
                Entered::Link if !is_pattern => return Err(self.link(&name)),
                Entered::Link => self.refuse_if_it_leads_to_a_match(&name, rest, depth)?,
                Entered::Other => {}
            }
        }
        Ok(())
    }

    fn walk_below(
        &mut self,
        below: BorrowedFd<'_>,
        name: &[u8],
        parts: &[&[u8]],
        depth: usize,
    ) -> Result<()> {
        let length = self.path.len();
        push(&mut self.path, name);
        let walked = self.walk(below, parts, depth - 1);
        self.path.truncate(length);
        walked
    }

    /// A link that only happens to fit a pattern matters if commands could write to a match through it.
    fn refuse_if_it_leads_to_a_match(&self, name: &[u8], rest: &[&[u8]], depth: usize) -> Result<()> {
        let whole = self.whole(name);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let target = match openat2(self.workspace.folder, whole.as_slice(), flags, Mode::empty(), resolve) {
            Ok(target) => target,
            Err(errno) if is_nothing(errno) => return Ok(()),
            Err(errno) => return Err(unsearchable(errno)),
        };
        let mut through = Search { workspace: self.workspace, path: whole, found: BTreeSet::new() };
        through.walk(target.as_fd(), rest, depth - 1)?;
        if through.found.is_empty() { Ok(()) } else { Err(self.link(name)) }
    }

    fn take(&mut self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
        let kind = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => FileType::from_raw_mode(stat.st_mode),
            Err(errno) if is_nothing(errno) => return Ok(()),
            Err(errno) => return Err(unsearchable(errno)),
        };
        match kind {
            FileType::Symlink => return Err(self.link(name)),
            FileType::Directory | FileType::RegularFile => {
                self.found.insert(self.whole(name));
            }
            _ => {}
        }
        if self.found.len() > MAX_MATCHES {
            return Err(Error::System {
                what: "too many files of the workspace are to be protected",
                cause: Errno::NOSPC.into(),
            });
        }
        Ok(())
    }

    fn whole(&self, name: &[u8]) -> Vec<u8> {
        let mut whole = self.path.clone();
        push(&mut whole, name);
        whole
    }

    fn link(&self, name: &[u8]) -> Error {
        Error::LinkNotProtectable(self.workspace.path.join(OsStr::from_bytes(&self.whole(name))))
    }
}

/// What a name turned out to be.
enum Entered {
    Directory(OwnedFd),
    Link,
    /// Nothing, or something else.
    Other,
}

/// Opens a directory, if the name is one.
fn enter(directory: BorrowedFd<'_>, name: &[u8]) -> Result<Entered> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = match openat2(directory, name, flags, Mode::empty(), ResolveFlags::BENEATH) {
        Ok(handle) => handle,
        Err(errno) if is_nothing(errno) => return Ok(Entered::Other),
        Err(errno) => return Err(unsearchable(errno)),
    };
    let stat = fstat(&handle).map_err(unsearchable)?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Entered::Directory(handle),
        FileType::Symlink => Entered::Link,
        _ => Entered::Other,
    })
}

/// Whether the kernel says that there is nothing of this name. All else it may say leaves open what is there.
fn is_nothing(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP | Errno::XDEV)
}

/// Names in a directory that is open as a path only, sorted.
///
/// # Errors
/// The kernel's.
pub fn names(directory: impl AsFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let readable = openat(directory, ".", flags, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::new(readable)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn unreadable(errno: Errno) -> Error {
    Error::System { what: "a directory cannot be read", cause: errno.into() }
}

fn unsearchable(errno: Errno) -> Error {
    Error::System {
        what: "the workspace cannot be searched for what is to be protected",
        cause: errno.into(),
    }
}

fn push(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

/// The directories above a relative path, outermost first, without the workspace itself.
fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[..at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dangerous::Survey;
    use std::path::PathBuf;

    struct Opened {
        path: PathBuf,
        handle: OwnedFd,
    }

    fn workspace(path: &Path) -> Opened {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Opened { path: path.to_owned(), handle: rustix::fs::open(path, flags, Mode::empty()).unwrap() }
    }

    fn matches(workspace: &Opened, globs: &[String]) -> Result<Protected> {
        let folder = workspace.handle.as_fd();
        let survey = Survey::take(folder, &Patterns::new(globs)).unwrap();
        super::matches(folder, &workspace.path, globs, survey.found())
    }

    fn globs(globs: &[&str]) -> Vec<String> {
        globs.iter().map(|glob| (*glob).to_owned()).collect()
    }

    #[test]
    fn existing_matches_are_found() {
        let temp = tempfile::tempdir().unwrap();
        let at = |path: &str| temp.path().join(path);
        for directory in [".git/hooks", ".vscode", "sub/.git/hooks", "plain", "worktree"] {
            std::fs::create_dir_all(at(directory)).unwrap();
        }
        for file in [".git/config", ".moltis.toml", "plain/x", "sub/.git/config", "worktree/.git"] {
            std::fs::write(at(file), "").unwrap();
        }
        let workspace = workspace(temp.path());
        let wanted = [".git/hooks", ".git/config", ".vscode", ".moltis*", ".envrc", "plain/x/y", "../x"];
        let found = matches(&workspace, &globs(&wanted)).unwrap();
        let expected: Vec<&[u8]> = vec![
            b".git/config",
            b".git/hooks",
            b".moltis.toml",
            b".vscode",
            b"sub/.git/config",
            b"sub/.git/hooks",
            b"worktree/.git",
        ];
        assert_eq!(found.matches, expected);
        assert_eq!(found.above, [b".git".to_vec(), b"sub/.git".to_vec()]);
        let deep = matches(&workspace, &globs(&["**/.git/config"])).unwrap();
        let expected: Vec<&[u8]> = vec![b".git/config", b"sub/.git/config", b"worktree/.git"];
        assert_eq!(deep.matches, expected);
    }

    #[test]
    fn a_link_that_a_glob_names_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, temp.path().join(name)).unwrap();
        std::fs::create_dir_all(temp.path().join("real/.git/hooks")).unwrap();
        std::fs::create_dir(temp.path().join("other")).unwrap();
        for (to, name) in [
            ("real/.git", ".git"),
            ("/etc", ".idea"),
            ("nowhere", ".envrc"),
            ("real", "led"),
            ("other", "else"),
            ("..", "above"),
            ("loop", "loop"),
        ] {
            link(to, name);
        }
        let workspace = workspace(temp.path());
        for (glob, name) in [
            (".git", ".git"),
            (".git/hooks", ".git"),
            (".idea", ".idea"),
            (".idea/x", ".idea"),
            (".envrc", ".envrc"),
            (".env*", ".envrc"),
            ("**/.envrc", ".envrc"),
            ("l*/.git/hooks", "led"),
            ("loop/x", "loop"),
        ] {
            match matches(&workspace, &globs(&[glob])) {
                Err(Error::LinkNotProtectable(path)) => {
                    assert_eq!(path.file_name(), Some(OsStr::new(name)), "{glob}");
                }
                other => panic!("{glob}: {other:?}"),
            }
        }
        // Links that no glob names are the commands' own.
        let wanted = ["e*/x", "a*/x", "lo*/x", "**/.git/hooks", "real/.git/hooks"];
        let found = matches(&workspace, &globs(&wanted));
        // `**` meets the link `.git` by its name.
        assert!(matches!(found, Err(Error::LinkNotProtectable(_))));
        let found = matches(&workspace, &globs(&["e*/x", "a*/x", "lo*/x", "real/.git/hooks"])).unwrap();
        assert_eq!(found.matches, [b"real/.git/hooks".to_vec()]);
    }

    #[test]
    fn what_cannot_be_looked_at_is_an_error() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("a/b")).unwrap();
        let workspace = workspace(temp.path());
        assert!(matches!(enter(workspace.handle.as_fd(), b"a"), Ok(Entered::Directory(_))));
        assert!(matches!(enter(workspace.handle.as_fd(), b"c"), Ok(Entered::Other)));
        // Answers that leave the question open.
        assert!(enter(workspace.handle.as_fd(), b"a\0b").is_err());
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::ACCESS, Errno::IO, Errno::STALE] {
            assert!(!is_nothing(errno));
        }
    }
}
