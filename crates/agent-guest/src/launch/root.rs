//! The new root: a tmpfs that the plan's steps fill, which then takes the old one's place.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use moltis_agent_protocol::launch::{Fault, MountStep, Source, Stage, Step, TargetPolicy};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, mkdirat, mknodat, open, openat2, symlinkat};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{chdir, fchdir, pivot_root, umask};

use super::mount::{self, NODEV, NOSUID, READ_ONLY};
use super::target::{self, Shape, relative};
use super::{At, fault};
use crate::guarded::Guarded;

/// Builds it and moves into it; what is to be guarded from then on.
pub fn build(steps: &[Step], handed: Vec<OwnedFd>) -> Result<Vec<Guarded>, Fault> {
    umask(Mode::empty());
    mount::set_everywhere(NOSUID).at(Stage::Root, "private")?;
    let trees = detached_trees(steps, handed)?;
    // What is shown of the host from here on is shown with these.
    mount::set_everywhere(READ_ONLY | NODEV).at(Stage::Root, "read-only")?;
    // On top of the present root, which this process goes on to see until it pivots.
    mount::new(b"tmpfs", b"/", b"mode=0755,size=16m,nr_inodes=16k", NOSUID | NODEV)
        .at(Stage::Root, "tmpfs")?;
    let root = topmost().at(Stage::Root, "tmpfs")?;
    fchdir(&root).at(Stage::Root, "fchdir")?;
    let mut builder =
        Builder { root: root.as_fd(), trees: trees.into_iter(), nothing: None, guarded: Vec::new() };
    for step in steps {
        builder.carry_out(step)?;
    }
    mount::set_own_attributes(root.as_fd(), READ_ONLY).at(Stage::Root, "read-only")?;
    pivot_root(".", ".").at(Stage::Pivot, "pivot_root")?;
    // The old root now lies on top of the new one, at the same place.
    unmount(".", UnmountFlags::DETACH).at(Stage::Pivot, "umount")?;
    chdir("/").at(Stage::Pivot, "chdir")?;
    umask(Mode::from_raw_mode(0o022));
    Ok(builder.guarded)
}

/// The mount that lies on top of the root of this process. A path that goes up from there and comes back finds it.
fn topmost() -> rustix::io::Result<OwnedFd> {
    open("/..", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The detached mounts of devices and of what the user named, in the order of their steps.
fn detached_trees(steps: &[Step], handed: Vec<OwnedFd>) -> Result<Vec<OwnedFd>, Fault> {
    let mut handed: Vec<Option<OwnedFd>> = handed.into_iter().map(Some).collect();
    let mut trees = Vec::new();
    for step in steps {
        let Step::Mount(step) = step else { continue };
        match &step.source {
            Source::Judged { path, device, inode } => {
                let tree = judged(path, *device, *inode)?;
                mount::set_attributes(tree.as_fd(), step.attributes).at(Stage::Mount, &step.target)?;
                trees.push(tree);
            }
            Source::Device { path } => trees.push(mount::clone_path(path).at(Stage::Source, path)?),
            // Its attributes were set by the helper, which may set them where this process may not.
            Source::Handed { index } => {
                let tree = handed.get_mut(*index as usize).and_then(Option::take);
                trees.push(tree.ok_or_else(|| fault(Stage::Source, &step.target, Errno::BADF))?);
            }
            _ => {}
        }
    }
    Ok(trees)
}

/// Clones a judged path if it still is the object that was judged.
fn judged(path: &[u8], device: u64, inode: u64) -> Result<OwnedFd, Fault> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let handle =
        openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve).at(Stage::Source, path)?;
    let found = rustix::fs::fstat(&handle).at(Stage::Source, path)?;
    if (found.st_dev, found.st_ino) != (device, inode) {
        return Err(fault(Stage::Source, path, Errno::STALE));
    }
    mount::clone_handle(handle.as_fd()).at(Stage::Source, path)
}

/// Fills the new root, which is the current directory: its own paths are relative ones.
struct Builder<'s> {
    root: BorrowedFd<'s>,
    trees: std::vec::IntoIter<OwnedFd>,
    /// Where the one empty directory is mounted, once it is.
    nothing: Option<&'s [u8]>,
    guarded: Vec<Guarded>,
}

impl<'s> Builder<'s> {
    fn carry_out(&mut self, step: &'s Step) -> Result<(), Fault> {
        match step {
            Step::Directory { path, mode } => {
                mkdirat(CWD, relative(path), Mode::from_raw_mode(*mode)).at(Stage::Root, path)
            }
            Step::Symlink { path, target } => {
                symlinkat(target.as_slice(), CWD, relative(path)).at(Stage::Root, path)
            }
            Step::File { path, mode, content } => file(path, *mode, content).at(Stage::Root, path),
            Step::Mount(step) => self.mount(step),
        }
    }

    fn mount(&mut self, step: &'s MountStep) -> Result<(), Fault> {
        let target = relative(&step.target);
        match &step.source {
            Source::Host { path } => {
                own_target(target, step.target_policy).at(Stage::Root, &step.target)?;
                mount::bind(path, target).at(Stage::Source, path)
            }
            Source::New { kind, options } => {
                own_target(target, step.target_policy).at(Stage::Root, &step.target)?;
                let stage = if kind.as_slice() == b"proc" { Stage::Proc } else { Stage::Mount };
                mount::new(kind, target, options, step.attributes).at(stage, &step.target)
            }
            Source::Nothing => {
                let mounted = match self.nothing {
                    Some(first) => mount::bind(first, target),
                    None => {
                        let attributes = step.attributes | READ_ONLY;
                        mount::new(b"tmpfs", target, b"mode=0555,size=4k,nr_inodes=2", attributes)
                    }
                };
                match mounted {
                    Err(Errno::NOENT) if step.target_policy == TargetPolicy::Existing => return Ok(()),
                    mounted => mounted.at(Stage::Mount, &step.target)?,
                }
                self.nothing = self.nothing.or(Some(target));
                Ok(())
            }
            Source::Inside { path } if step.target_policy == TargetPolicy::Existing => {
                match mount::bind(relative(path), target) {
                    Err(Errno::NOENT) => Ok(()),
                    bound => {
                        bound.at(Stage::Mount, &step.target)?;
                        self.set_attributes(step)
                    }
                }
            }
            // Were one that has gone passed over, what the plan says of it would not hold.
            Source::Inside { path } => {
                let handle = target::open(self.root, path).at(Stage::Source, path)?;
                let tree = mount::clone_handle(handle.as_fd()).at(Stage::Source, path)?;
                mount::set_attributes(tree.as_fd(), step.attributes).at(Stage::Mount, &step.target)?;
                self.attach(tree.as_fd(), step)
            }
            Source::Device { .. } | Source::Judged { .. } | Source::Handed { .. } => {
                match self.trees.next() {
                    Some(tree) => {
                        self.attach(tree.as_fd(), step)?;
                        if step.guarded {
                            let guarded = Guarded::new(&step.target, tree).at(Stage::Mount, &step.target)?;
                            self.guarded.push(guarded);
                        }
                        Ok(())
                    }
                    None => Err(fault(Stage::Source, &step.target, Errno::BADF)),
                }
            }
        }
    }

    /// Sets attributes on what was just mounted by path.
    fn set_attributes(&self, step: &MountStep) -> Result<(), Fault> {
        if step.attributes == 0 {
            return Ok(());
        }
        target::open(self.root, &step.target)
            .and_then(|mounted| mount::set_attributes(mounted.as_fd(), step.attributes))
            .at(Stage::Mount, &step.target)
    }

    fn attach(&self, tree: BorrowedFd<'_>, step: &MountStep) -> Result<(), Fault> {
        match step.target_policy {
            policy @ (TargetPolicy::OwnDirectory | TargetPolicy::OwnFile | TargetPolicy::Existing) => {
                let target = relative(&step.target);
                own_target(target, policy).at(Stage::Root, &step.target)?;
                mount::attach_at(tree, target).at(Stage::Mount, &step.target)
            }
            policy => {
                let shape = Shape::of(mount::kind_of(tree).at(Stage::Mount, &step.target)?);
                let point = target::mount_point(self.root, &step.target, shape, policy)
                    .at(Stage::Target, &step.target)?;
                mount::attach(tree, point.as_fd()).at(Stage::Mount, &step.target)
            }
        }
    }
}

/// Makes a mount point on the tmpfs that only these steps have written to: its paths can be taken as they are.
fn own_target(path: &[u8], policy: TargetPolicy) -> rustix::io::Result<()> {
    let made = match policy {
        TargetPolicy::OwnDirectory => mkdirat(CWD, path, Mode::from_raw_mode(0o755)),
        TargetPolicy::OwnFile => mknodat(CWD, path, FileType::RegularFile, Mode::from_raw_mode(0o644), 0),
        _ => Ok(()),
    };
    match made {
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}

fn file(path: &[u8], mode: u32, content: &[u8]) -> rustix::io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, relative(path), flags, Mode::from_raw_mode(mode))?;
    let mut rest = content;
    while !rest.is_empty() {
        let count = rustix::io::write(&file, rest)?;
        rest = &rest[count..];
    }
    Ok(())
}
