//! The new root: a tmpfs that the plan's steps fill, which then takes the old one's place.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use moltis_agent_protocol::launch::{Fault, MountStep, Source, Stage, Step, TargetPolicy};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, mkdirat, mknodat, openat2, symlinkat};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, MoveMountFlags, UnmountFlags, mount_change, move_mount, unmount};
use rustix::process::{chdir, fchdir, pivot_root, umask};

use super::mount::{self, NODEV, NOSUID, READ_ONLY};
use super::target::{self, Shape, relative};
use super::{At, fault};

/// Builds it and moves into it.
pub fn build(steps: &[Step], handed: Vec<OwnedFd>) -> Result<(), Fault> {
    umask(Mode::empty());
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .at(Stage::Root, "private")?;
    let options = [("mode", "0755"), ("size", "16m"), ("nr_inodes", "16k")];
    let root = mount::new(b"tmpfs", &options, NOSUID | NODEV).at(Stage::Root, "tmpfs")?;
    // On top of the present root, which this process goes on to see until it pivots.
    move_mount(&root, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).at(Stage::Root, "attach")?;
    let mut builder = Builder { root: root.as_fd(), handed: handed.into_iter().map(Some).collect(), nothing: None };
    for step in steps {
        builder.carry_out(step)?;
    }
    drop(builder);
    mount::set_own_attributes(root.as_fd(), READ_ONLY).at(Stage::Root, "read-only")?;
    fchdir(&root).at(Stage::Pivot, "fchdir")?;
    pivot_root(".", ".").at(Stage::Pivot, "pivot_root")?;
    // The old root now lies on top of the new one, at the same place.
    unmount(".", UnmountFlags::DETACH).at(Stage::Pivot, "umount")?;
    chdir("/").at(Stage::Pivot, "chdir")?;
    umask(Mode::from_raw_mode(0o022));
    Ok(())
}

struct Builder<'r> {
    root: BorrowedFd<'r>,
    handed: Vec<Option<OwnedFd>>,
    /// The one empty directory, once it is mounted somewhere.
    nothing: Option<OwnedFd>,
}

impl Builder<'_> {
    fn carry_out(&mut self, step: &Step) -> Result<(), Fault> {
        match step {
            Step::Directory { path, mode } => {
                mkdirat(self.root, relative(path), Mode::from_raw_mode(*mode)).at(Stage::Root, path)
            }
            Step::Symlink { path, target } => {
                symlinkat(target.as_slice(), self.root, relative(path)).at(Stage::Root, path)
            }
            Step::File { path, mode, content } => self.file(path, *mode, content).at(Stage::Root, path),
            Step::Mount(step) => self.mount(step),
        }
    }

    fn file(&self, path: &[u8], mode: u32, content: &[u8]) -> rustix::io::Result<()> {
        let file = openat2(
            self.root,
            relative(path),
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC,
            Mode::from_raw_mode(mode),
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        )?;
        let mut rest = content;
        while !rest.is_empty() {
            let count = rustix::io::write(&file, rest)?;
            rest = &rest[count..];
        }
        Ok(())
    }

    fn mount(&mut self, step: &MountStep) -> Result<(), Fault> {
        let Some(tree) = self.tree(step)? else { return Ok(()) };
        match step.target_policy {
            TargetPolicy::OwnDirectory | TargetPolicy::OwnFile => {
                self.attach_to_own(tree.as_fd(), step).at(Stage::Mount, &step.target)?;
            }
            policy => {
                let shape = Shape::of(mount::kind_of(&tree).at(Stage::Mount, &step.target)?);
                let point = target::mount_point(self.root, &step.target, shape, policy)
                    .at(Stage::Target, &step.target)?;
                let Some(point) = point else { return Ok(()) };
                mount::attach(tree.as_fd(), point.as_fd()).at(Stage::Mount, &step.target)?;
            }
        }
        if matches!(step.source, Source::Nothing) && self.nothing.is_none() {
            self.nothing = Some(tree);
        }
        Ok(())
    }

    /// Mounts on the tmpfs that only these steps have written to: its paths can be taken as they are.
    fn attach_to_own(&self, tree: BorrowedFd<'_>, step: &MountStep) -> rustix::io::Result<()> {
        let path = relative(&step.target);
        let made = match step.target_policy {
            TargetPolicy::OwnDirectory => mkdirat(self.root, path, Mode::from_raw_mode(0o755)),
            _ => mknodat(self.root, path, FileType::RegularFile, Mode::from_raw_mode(0o644), 0),
        };
        match made {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        move_mount(tree, "", self.root, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
    }

    /// The detached mount of a step with its attributes set; `None` when the step is to be passed over.
    fn tree(&mut self, step: &MountStep) -> Result<Option<OwnedFd>, Fault> {
        let tree = match &step.source {
            Source::Host { path } => mount::clone_path(path).at(Stage::Source, path)?,
            Source::Judged { path, device, inode } => judged(path, *device, *inode)?,
            Source::Handed { index } => {
                // Its attributes were set by the helper, which may set them where this process may not.
                let tree = self.handed.get_mut(*index as usize).and_then(Option::take);
                return tree.map(Some).ok_or_else(|| fault(Stage::Source, &step.target, Errno::BADF));
            }
            Source::Inside { path } => match target::open(self.root, path) {
                Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR)
                    if step.target_policy == TargetPolicy::Skip =>
                {
                    return Ok(None);
                }
                handle => {
                    let handle = handle.at(Stage::Source, path)?;
                    mount::clone_handle(handle.as_fd()).at(Stage::Source, path)?
                }
            },
            Source::Nothing => match &self.nothing {
                Some(first) => mount::clone_handle(first.as_fd()).at(Stage::Mount, &step.target)?,
                None => {
                    let options = [("mode", "0555"), ("size", "4k"), ("nr_inodes", "2")];
                    let attributes = step.attributes | READ_ONLY;
                    return mount::new(b"tmpfs", &options, attributes).at(Stage::Mount, &step.target).map(Some);
                }
            },
            Source::New { kind, options } => {
                let stage = if kind.as_slice() == b"proc" { Stage::Proc } else { Stage::Mount };
                return mount::new(kind, options, step.attributes).at(stage, &step.target).map(Some);
            }
        };
        mount::set_attributes(tree.as_fd(), step.attributes).at(Stage::Mount, &step.target)?;
        Ok(Some(tree))
    }
}

/// Clones a judged path if it still is the object that was judged.
fn judged(path: &[u8], device: u64, inode: u64) -> Result<OwnedFd, Fault> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let handle = openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
        .at(Stage::Source, path)?;
    let found = rustix::fs::fstat(&handle).at(Stage::Source, path)?;
    if (found.st_dev, found.st_ino) != (device, inode) {
        return Err(fault(Stage::Source, path, Errno::STALE));
    }
    mount::clone_handle(handle.as_fd()).at(Stage::Source, path)
}
