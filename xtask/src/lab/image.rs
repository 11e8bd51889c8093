//! The lab's disk, kernel and keys: built from Debian's packages, kept below the cache folder by a hash of the recipe.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::command::{Scratch, find, kept, root};
use crate::engines::{cache, images};
use crate::real::Trouble;

/// Debian's release, for which programs that were built on it or on a later one of the lab's age are made.
const RELEASE: &str = "bookworm";

/// What is installed.
const PACKAGES: &[&str] = &[
    "busybox-static",
    "ca-certificates",
    "catatonit",
    "crun",
    "curl",
    "dbus",
    "dbus-user-session",
    "e2fsprogs",
    "git",
    "initramfs-tools",
    "iproute2",
    "iptables",
    "kmod",
    "libpam-systemd",
    "linux-image-cloud-amd64",
    "lz4",
    "nftables",
    "openssh-server",
    "passt",
    "podman",
    "procps",
    "python3",
    "slirp4netns",
    "strace",
    "sudo",
    "systemd",
    "systemd-sysv",
    "udev",
    "uidmap",
];

const SETUP: &str = include_str!("setup.sh");
const DISK: &str = include_str!("disk.sh");

/// Programs that build it, and their packages.
const NEEDS: [(&str, &str); 3] =
    [("mmdebstrap", "mmdebstrap"), ("mke2fs", "e2fsprogs"), ("ssh-keygen", "openssh-client")];

const LIMIT: Duration = Duration::from_secs(30 * 60);

/// After so long without use, what an older recipe made is removed.
const FORGOTTEN: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// A lab that can be started.
pub struct Image(PathBuf);

impl Image {
    /// The kept one, or a new one.
    pub fn new() -> Result<Self, Trouble> {
        let labs = cache("lab")?;
        let folder = labs.join(recipe());
        forget(&labs, &folder);
        if folder.join("disk").is_file() {
            // When it was last used is what is asked about old ones.
            let _ = fs::File::open(&folder).and_then(|file| file.set_modified(SystemTime::now()));
            return Ok(Self(folder));
        }
        for (program, package) in NEEDS {
            find(program)
                .ok_or_else(|| Trouble::Lacking(format!("there is no {program} (package {package})")))?;
        }
        println!("building the lab's machine into {}", folder.display());
        // Whole or not at all: a run may be broken off.
        let draft = labs.join(format!(".{}", std::process::id()));
        let built = build(&draft).and_then(|()| match fs::rename(&draft, &folder) {
            // Another run was quicker.
            Err(_) if folder.join("disk").is_file() => Ok(()),
            moved => Ok(moved?),
        });
        let _ = fs::remove_dir_all(&draft);
        built.map(|()| Self(folder))
    }

    /// One of its files: `disk`, `vmlinuz`, `initrd`, `key`, `known_hosts`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// What makes one image another than the next.
fn recipe() -> String {
    let mut hasher = DefaultHasher::new();
    (RELEASE, PACKAGES, SETUP, DISK).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Removes what no run has used for long, and what runs that were killed have left half done.
fn forget(labs: &Path, current: &Path) {
    for entry in fs::read_dir(labs).into_iter().flatten().flatten() {
        let path = entry.path();
        let age = entry.metadata().and_then(|m| m.modified()).ok().and_then(|at| at.elapsed().ok());
        if path != current && path.is_dir() && age.is_some_and(|age| age > FORGOTTEN) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

fn build(folder: &Path) -> Result<(), Trouble> {
    fs::create_dir(folder)?;
    let scratch = Scratch::new("lab-build")?;
    let key = folder.join("key");
    let mut keygen = Command::new("ssh-keygen");
    done(keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f"]).arg(&key))?;
    let public = fs::read_to_string(folder.join("key.pub"))?;

    // Entered by another id where this is not root.
    let (setup, archive) = (scratch.0.join("setup.sh"), scratch.0.join("tree.tar"));
    fs::write(&setup, SETUP)?;
    let mut make = Command::new("mmdebstrap");
    make.args(["--quiet", "--variant=minbase"]).arg(format!("--include={}", PACKAGES.join(",")));
    make.arg(format!("--customize-hook=sh {} \"$1\"", setup.display()));
    make.arg(RELEASE).arg(&archive).args(images::sources()?);
    done(make.env("LAB_KEY", public.trim()))?;

    let mut disk = if root() { Command::new("sh") } else { Command::new("unshare") };
    if !root() {
        disk.args(["--user", "--map-root-user", "--map-auto", "sh"]);
    }
    done(disk.args(["-euc", DISK, "sh"]).arg(&archive).arg(folder))
}

fn done(command: &mut Command) -> Result<(), Trouble> {
    let ended = kept(command, None, LIMIT)?;
    if ended.good() {
        return Ok(());
    }
    Err(Trouble::Failed(format!(
        "{:?} ended with {}: {}",
        command.get_program(),
        ended.code,
        ended.all().trim()
    )))
}
