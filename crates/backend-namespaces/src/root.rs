//! Which mounts, files and links make a sandbox's root.

mod etc;
mod system;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use moltis_agent::dangerous::{Watched, protect};
use moltis_agent_protocol::launch::{
    Handed, Identity, Landlock, MountStep, Owner, Source, Step, TargetPolicy, WithoutIdmap,
};
use moltis_agent_protocol::message::ByteString;
use moltis_host::requested::{Requested, Sources};
use moltis_host::sources::Judged;
use moltis_host::target::{FILES, HOME, WORKSPACE};
use moltis_sandbox::MountMode;

use crate::error::{Error, Result};
use crate::landlock::{Access, Rules};

// Mount attributes of `<linux/mount.h>`.
const READ_ONLY: u64 = 0x1;
const NOSUID: u64 = 0x2;
const NODEV: u64 = 0x4;
const NOEXEC: u64 = 0x8;

/// Bytes of a home that ends with the sandbox, where no memory limit bounds it.
const HOME_SIZE: &str = "1g";

/// The root of one sandbox, planned.
#[derive(Debug)]
pub struct Root {
    /// Steps in order.
    pub steps: Vec<Step>,
    /// Sources that the helper clones.
    pub handed: Vec<Handed>,
    /// Their handles, in the same order.
    pub handles: Vec<OwnedFd>,
    /// Landlock rules, where the kernel has it.
    pub landlock: Option<Landlock>,
    /// What may be written to, and what it holds.
    pub watched: Vec<Watched>,
}

/// What is needed besides the sources.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Who the sandbox's user is outside.
    pub identity: &'a Identity,
    /// Content of `/etc/resolv.conf`.
    pub resolv_conf: &'a str,
    /// Globs of what stays read-only in writable folders of the user's.
    pub workspace_protect: &'a [String],
    /// Memory limit of the sandbox, in bytes.
    pub memory: Option<u64>,
}

/// Plans the root. Blocks on the file system.
///
/// # Errors
/// When the workspace's protected files cannot be looked for, or a rootfs cannot be read.
pub fn plan(sources: Sources, facts: Facts<'_>) -> Result<Root> {
    let mut plan = Plan { identity: *facts.identity, root: Root::empty(), rules: Rules::new() };
    plan.allow(b"/", Access::List);
    plan.skeleton();
    match sources.rootfs {
        None => system::host(&mut plan),
        Some(rootfs) => system::rootfs(&mut plan, rootfs)?,
    }
    etc::generated(&mut plan, facts.resolv_conf);
    plan.devices();
    plan.processes();
    plan.scratch();
    // A home that stays may be another sandbox's too, which can move what is mounted in it.
    let shared = sources.home.is_some();
    plan.home(sources.home, facts.memory);
    if let Some((files, mode)) = sources.files {
        plan.bind(files, FILES.as_bytes(), mode, WithoutIdmap::Chown, TargetPolicy::Displace);
        plan.guard(shared);
    }
    if let Some((workspace, mode)) = sources.workspace {
        plan.folder(workspace, WORKSPACE.as_bytes(), mode, false, facts.workspace_protect)?;
    }
    for Requested { source, mode, target } in sources.mounts {
        let guarded = shared && target.starts_with(HOME.as_bytes());
        plan.folder(source, &target, mode, guarded, facts.workspace_protect)?;
    }
    let mut root = plan.root;
    root.landlock = plan.rules.map(Rules::finish);
    Ok(root)
}

/// A root being planned.
struct Plan {
    identity: Identity,
    root: Root,
    rules: Option<Rules>,
}

impl Root {
    fn empty() -> Self {
        Self {
            steps: Vec::with_capacity(96),
            handed: Vec::new(),
            handles: Vec::new(),
            landlock: None,
            watched: Vec::new(),
        }
    }
}

impl Plan {
    fn allow(&mut self, path: &[u8], access: Access) {
        if let Some(rules) = &mut self.rules {
            rules.allow(path, true, access);
        }
    }

    fn allow_kind(&mut self, path: &[u8], directory: bool, access: Access) {
        if let Some(rules) = &mut self.rules {
            rules.allow(path, directory, access);
        }
    }

    fn directory(&mut self, path: &str, mode: u32) {
        self.root.steps.push(Step::Directory { path: bytes(path), mode });
    }

    fn file(&mut self, path: &str, content: impl Into<Vec<u8>>) {
        let content = content.into().into();
        self.root.steps.push(Step::File { path: bytes(path), mode: 0o644, content });
    }

    fn symlink(&mut self, path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) {
        self.root.steps.push(Step::Symlink { path: bytes(path), target: bytes(target) });
    }

    fn mount(&mut self, source: Source, target: impl AsRef<[u8]>, attributes: u64, policy: TargetPolicy) {
        let target = bytes(target);
        self.root.steps.push(Step::Mount(MountStep {
            source,
            target,
            attributes,
            target_policy: policy,
            guarded: false,
        }));
    }

    /// Has the agent look for the last mount before each command.
    fn guard(&mut self, guarded: bool) {
        if let Some(Step::Mount(step)) = self.root.steps.last_mut() {
            step.guarded = guarded;
        }
    }

    fn new_fs(&mut self, kind: &str, options: &str, target: &str, attributes: u64) {
        let source = Source::New { kind: bytes(kind), options: bytes(options) };
        self.mount(source, target, attributes, TargetPolicy::OwnDirectory);
    }

    /// A path of the host that everybody may read, at the same place inside.
    fn host(&mut self, path: &Path, directory: bool) {
        let path = path.as_os_str().as_bytes();
        let policy = if directory { TargetPolicy::OwnDirectory } else { TargetPolicy::OwnFile };
        self.mount(Source::Host { path: bytes(path) }, path, 0, policy);
    }

    /// A judged source at a target of the user's, with rules to match.
    fn bind(
        &mut self,
        source: Judged,
        target: &[u8],
        mode: MountMode,
        without_idmap: WithoutIdmap,
        policy: TargetPolicy,
    ) {
        let (attributes, access, without_idmap) = match mode {
            MountMode::Rw => (NOSUID | NODEV, Access::Write, without_idmap),
            // What cannot be written to needs no owner.
            MountMode::Ro if without_idmap == WithoutIdmap::Refuse => {
                (READ_ONLY | NOSUID | NODEV, Access::Read, WithoutIdmap::Plain)
            }
            MountMode::Ro => (READ_ONLY | NOSUID | NODEV, Access::Read, without_idmap),
        };
        self.allow_kind(target, source.directory, access);
        let source = self.judged(source, attributes, Some(without_idmap));
        self.mount(source, target, attributes, policy);
    }

    /// A folder or file of the user's, with what in it runs code on the host later kept as it is.
    fn folder(
        &mut self,
        source: Judged,
        target: &[u8],
        mode: MountMode,
        guarded: bool,
        globs: &[String],
    ) -> Result<()> {
        let mut protected = protect::Protected::default();
        if mode == MountMode::Rw && source.directory && !globs.is_empty() {
            let watched = Watched::begin(&source.path, source.handle.as_fd(), target, globs)
                .map_err(Error::system("the folder cannot be searched for what is to be protected"))?;
            protected =
                protect::matches(source.handle.as_fd(), &source.path, globs, watched.survey().found())?;
            self.root.watched.push(watched);
        }
        self.bind(source, target, mode, WithoutIdmap::Refuse, TargetPolicy::Make);
        self.guard(guarded);
        self.protect(target, &protected);
        Ok(())
    }

    /// A judged source for a mount step: handed over by a privileged caller, found again by the child of an ordinary
    /// one. With `idmap` its owner shows as the sandbox's user.
    fn judged(&mut self, source: Judged, attributes: u64, idmap: Option<WithoutIdmap>) -> Source {
        let path = bytes(source.path.as_os_str().as_bytes());
        if !self.identity.privileged {
            return Source::Judged { path, device: source.device, inode: source.inode };
        }
        let outside = Owner { uid: self.identity.outside_uid, gid: self.identity.outside_gid };
        let owner = Owner { uid: source.uid, gid: source.gid };
        let index = self.root.handed.len() as u32;
        self.root.handed.push(Handed {
            path,
            owner: idmap.filter(|_| owner != outside).map(|_| owner),
            without_idmap: idmap.unwrap_or(WithoutIdmap::Plain),
            attributes,
        });
        self.root.handles.push(source.handle);
        Source::Handed { index }
    }

    /// Directories that everything else goes into.
    fn skeleton(&mut self) {
        for path in ["/etc", "/dev", "/dev/shm", "/dev/pts", "/proc", "/tmp", "/run", "/var", "/home"] {
            self.directory(path, 0o755);
        }
        self.symlink("/var/tmp", "../tmp");
        self.symlink("/var/run", "../run");
    }

    fn devices(&mut self) {
        for name in ["null", "zero", "full", "random", "urandom", "tty"] {
            let path = format!("/dev/{name}");
            let source = Source::Device { path: bytes(&path) };
            self.mount(source, &path, 0, TargetPolicy::OwnFile);
        }
        for (name, target) in [
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
            ("ptmx", "pts/ptmx"),
        ] {
            self.symlink(format!("/dev/{name}"), target);
        }
        self.new_fs("tmpfs", "mode=1777,size=64m", "/dev/shm", NOSUID | NODEV | NOEXEC);
        self.new_fs("devpts", "newinstance,ptmxmode=0666,mode=0620", "/dev/pts", NOSUID | NOEXEC);
        self.allow(b"/dev", Access::Devices);
        self.allow(b"/dev/shm", Access::Write);
    }

    /// A `/proc` of the sandbox's own, with the paths hidden and write-protected that container engines hide and
    /// protect.
    fn processes(&mut self) {
        self.new_fs("proc", "", "/proc", NOSUID | NODEV | NOEXEC);
        for name in ["bus", "fs", "irq", "sys", "sysrq-trigger"] {
            let path = format!("/proc/{name}");
            if Path::new(&path).exists() {
                self.mount(Source::Inside { path: bytes(&path) }, &path, READ_ONLY, TargetPolicy::Existing);
            }
        }
        for name in [
            "acpi",
            "asound",
            "interrupts",
            "kcore",
            "keys",
            "latency_stats",
            "sched_debug",
            "scsi",
            "timer_list",
            "timer_stats",
        ] {
            let path = format!("/proc/{name}");
            let Ok(found) = std::fs::symlink_metadata(&path) else { continue };
            if found.is_dir() {
                self.mount(Source::Nothing, &path, NOSUID | NODEV | NOEXEC, TargetPolicy::Existing);
            } else {
                let null = Source::Inside { path: bytes("/dev/null") };
                self.mount(null, &path, 0, TargetPolicy::Existing);
            }
        }
        self.allow(b"/proc", Access::Settings);
    }

    fn scratch(&mut self) {
        self.new_fs("tmpfs", "mode=1777,size=256m", "/tmp", NOSUID | NODEV);
        self.new_fs("tmpfs", "mode=0755,size=64m", "/run", NOSUID | NODEV | NOEXEC);
        self.directory("/run/lock", 0o755);
        self.allow(b"/tmp", Access::Write);
        self.allow(b"/run", Access::Write);
    }

    fn home(&mut self, home: Option<Judged>, memory: Option<u64>) {
        self.directory(HOME, 0o755);
        match home {
            Some(home) => {
                self.bind(
                    home,
                    HOME.as_bytes(),
                    MountMode::Rw,
                    WithoutIdmap::Chown,
                    TargetPolicy::OwnDirectory,
                );
            }
            None => {
                // What is written there is memory, which the limit counts.
                let size = memory.map_or_else(|| HOME_SIZE.to_owned(), |bytes| bytes.to_string());
                self.new_fs("tmpfs", &format!("mode=0755,size={size}"), HOME, NOSUID | NODEV);
                self.allow(HOME.as_bytes(), Access::Write);
            }
        }
    }

    /// Puts protected paths of a folder over themselves, read-only; and the directories that lead to them,
    /// writable, so that they cannot be renamed from under them.
    fn protect(&mut self, folder: &[u8], protected: &protect::Protected) {
        let inside = |relative: &Vec<u8>| {
            let mut path = folder.to_vec();
            path.push(b'/');
            path.extend_from_slice(relative);
            path
        };
        for (paths, attributes) in
            [(&protected.above, NOSUID | NODEV), (&protected.matches, READ_ONLY | NOSUID | NODEV)]
        {
            for path in paths.iter().map(inside) {
                let source = Source::Inside { path: bytes(&path) };
                // One that is gone by then fails the launch.
                self.mount(source, &path, attributes, TargetPolicy::Make);
            }
        }
    }
}

fn bytes(text: impl AsRef<[u8]>) -> ByteString {
    ByteString::from(text.as_ref().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_protected_is_never_passed_over() {
        let identity = Identity {
            inside_uid: 1000,
            inside_gid: 1000,
            outside_uid: 1000,
            outside_gid: 1000,
            privileged: false,
        };
        let mut plan = Plan { identity, root: Root::empty(), rules: None };
        plan.protect(
            b"/w",
            &protect::Protected { above: vec![b"a".to_vec()], matches: vec![b"a/b".to_vec()] },
        );
        assert_eq!(plan.root.steps.len(), 2);
        for step in &plan.root.steps {
            assert!(
                matches!(step, Step::Mount(MountStep { target_policy: TargetPolicy::Make, .. })),
                "{step:?}"
            );
        }
    }
}
