//! What of the host a sandbox shows: judged once, when it is opened, and from then on known by its identity. Each
//! command opens it anew and has nothing else in its place.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use moltis_agent::dangerous::{Patterns, Survey, protect};
use moltis_host::requested::Sources;
use moltis_host::sources::{Judge, Judged};
use moltis_host::target;
use moltis_sandbox::{MountMode, SandboxSpec};
use rustix::fs::{Mode, OFlags, fstat, open};

use crate::error::{Error, Result};
use crate::place::{self, Record, Shown};
use crate::tree::{Quota, Root, Tree};

/// Bytes that `/tmp` may hold, as on the other backends.
pub const TMP_ROOM: u64 = 256 << 20;

/// Where temporary files show.
pub const TMP: &str = "/tmp";

/// Judges all that a spec names of the host. `place` is the sandbox's folder, whose own folders are not judged. Blocks.
///
/// # Errors
/// Those of judging; [`Error::Changed`] for a home that is a link.
pub fn judge(spec: &SandboxSpec, judge: &Judge, place: &Path) -> Result<Vec<Shown>> {
    // A home in the sandbox's own folder is made when it is opened.
    let own_home = spec.home.as_deref() == Some(&*place.join(place::HOME));
    let mut named = spec.clone();
    if own_home {
        named.home = None;
    }
    let sources = Sources::judge(&named, judge)?;
    let mut all = Vec::new();
    if let Some(home) = sources.home {
        let named = spec.home.clone().unwrap_or_default();
        // What else shares the folder that it is in may have put a link in its place.
        if !std::fs::symlink_metadata(&named).is_ok_and(|found| found.is_dir()) {
            return Err(Error::Changed(named));
        }
        all.push(shown(home, target::HOME, MountMode::Rw, &[])?);
    }
    if let Some((files, mode)) = sources.files {
        all.push(shown(files, target::FILES, mode, &[])?);
    }
    if let Some((workspace, mode)) = sources.workspace {
        all.push(shown(workspace, target::WORKSPACE, mode, &spec.workspace_protect)?);
    }
    for mount in sources.mounts {
        let target = String::from_utf8(mount.target).map_err(|_| Error::NotUtf8("a mount target"))?;
        all.push(shown(mount.source, &target, mount.mode, &spec.workspace_protect)?);
    }
    Ok(all)
}

fn shown(source: Judged, target: &str, mode: MountMode, globs: &[String]) -> Result<Shown> {
    let writable = mode == MountMode::Rw;
    let protected = if writable && source.directory && !globs.is_empty() {
        protected(&source.handle, &source.path, globs)?
    } else {
        Vec::new()
    };
    Ok(Shown {
        path: source.path,
        device: source.device,
        inode: source.inode,
        target: target.to_owned(),
        writable,
        directory: source.directory,
        protected,
    })
}

fn protected(handle: &OwnedFd, path: &Path, globs: &[String]) -> Result<Vec<Vec<u8>>> {
    let patterns = Patterns::new(globs);
    let survey = Survey::take(handle.as_fd(), &patterns).map_err(|e| Error::Folder(path.to_owned(), e))?;
    let found =
        protect::matches(handle.as_fd(), path, globs, survey.found()).map_err(|e| Error::Agent(e.into()))?;
    Ok(found.matches)
}

/// Opens all that a sandbox shows. Blocks for a moment.
///
/// # Errors
/// [`Error::Changed`].
pub fn open_tree(place: &Path, record: &Record) -> Result<Tree> {
    let mut roots = Vec::with_capacity(record.shown.len() + record.own.len());
    let folders = || record.own.iter().filter(|own| own.name == place::HOME || own.name == place::TMP);
    for own in folders() {
        let path = place.join(&own.name);
        let handle = open_path(&path).map_err(|_| Error::Gone)?;
        let same = |stat: rustix::fs::Stat| {
            is_directory(&stat) && (stat.st_dev, stat.st_ino) == (own.device, own.inode)
        };
        if !fstat(&handle).is_ok_and(same) {
            return Err(Error::Changed(path));
        }
        let is_home = own.name == place::HOME;
        let mut root = Root::new(if is_home { target::HOME } else { TMP }, handle, true, true);
        root.quota = (!is_home).then(|| Quota::new(TMP_ROOM));
        roots.push(root);
    }
    if folders().next().is_none() {
        return Err(Error::Gone);
    }
    let all = &record.shown;
    for shown in all {
        let changed = || Error::Changed(shown.path.clone());
        let handle = open_path(&shown.path).map_err(|_| changed())?;
        let stat = fstat(&handle).map_err(|_| changed())?;
        let same = (stat.st_dev, stat.st_ino) == (shown.device, shown.inode);
        if !same || is_directory(&stat) != shown.directory {
            return Err(changed());
        }
        let mut root = Root::new(&shown.target, handle, shown.directory, shown.writable);
        root.protected = shown.protected.iter().cloned().collect();
        roots.push(root);
    }
    Ok(Tree::new(roots))
}

fn open_path(path: &Path) -> rustix::io::Result<OwnedFd> {
    open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn is_directory(stat: &rustix::fs::Stat) -> bool {
    moltis_host::tree::object::kind(stat) == moltis_sandbox::EntryKind::Directory
}
