//! What of Firecracker's needs is here: each thing that is missing has a code of its own and says how to get it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use moltis_sandbox::{Diagnosis, Promise};
use rustix::io::Errno;

use crate::error::{Error, Result, long};
use crate::{Config, program, ssh, tap};

/// How long `firecracker --version` may take.
const SAYS_WITHIN: Duration = Duration::from_secs(20);

/// The oldest version whose snapshots give every machine random numbers of its own.
const OLDEST: (u32, u32) = (1, 8);

/// The page that says what is needed, and how it is made.
const PAGE: &str = "docs/backends/firecracker.md says how";

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Firecracker's version, such as `1.12.1`.
    pub version: String,
    /// The jailer beside it, used where Moltis runs as root.
    pub jailer: Option<PathBuf>,
    /// Whether the network `open` can be had, and if not, why.
    pub open: Promise,
}

/// Looks at everything that a machine needs.
///
/// # Errors
/// [`Error::Missing`] for the first thing that is.
pub async fn detect(config: &Config) -> Result<Found> {
    let version = version(&config.firecracker).await?;
    let (kernel, rootfs) = (config.kernel.clone(), config.rootfs.clone());
    let (firecracker, ssh_key) = (config.firecracker.clone(), config.ssh_key.clone());
    let jailer = long(move || {
        kvm()?;
        check_kernel(&kernel)?;
        check_rootfs(&rootfs)?;
        match ssh_key {
            Some(key) => {
                ssh::read_key(&key)?;
                tap::devices().map_err(no_device)?;
            }
            None if program::find("mke2fs").is_none() => return Err(no_mke2fs()),
            None => {}
        }
        jailer(&firecracker, rustix::process::geteuid().is_root())
    });
    let jailer = jailer.await?;
    let open = match long(|| Ok(tap::possible())).await? {
        Ok(()) => Promise::Held,
        Err(why) => Promise::not_enforced(why),
    };
    Ok(Found { version, jailer, open })
}

fn missing(diagnosis: Diagnosis) -> Error {
    Error::Missing(diagnosis)
}

/// What is said where SSH is to lead into machines and no network device can.
fn no_device(why: String) -> Error {
    missing(
        Diagnosis::new("firecracker-ssh-device", "a machine cannot be reached by SSH here").cause(why).fix(
            "see to that, or remove `firecracker_ssh_key`: our agent then comes with an initrd and needs no network",
        ),
    )
}

/// What is said without `mke2fs`.
pub(crate) fn no_mke2fs() -> Error {
    missing(
        Diagnosis::new("firecracker-mke2fs-missing", "there is no `mke2fs`, which makes a machine's disk")
            .fix("install it: `sudo apt-get install e2fsprogs`"),
    )
}

/// Asks the program for its version.
async fn version(firecracker: &Path) -> Result<String> {
    let shown = firecracker.display();
    let bad = |code, message: String| Diagnosis::new(code, message);
    let said = match program::run(firecracker, ["--version"], b"", SAYS_WITHIN).await {
        Ok(said) => said,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            let what = bad("firecracker-missing", format!("there is no Firecracker at {shown}"));
            let fix = "put a release of https://github.com/firecracker-microvm/firecracker there, or set \
                       `firecracker_bin`";
            return Err(missing(what.fix(fix)));
        }
        Err(cause) => {
            let what = bad("firecracker-not-runnable", format!("{shown} cannot be run")).cause(cause);
            return Err(missing(
                what.fix("see its rights (`chmod 755`), or set `firecracker_bin` to the program"),
            ));
        }
    };
    let found = parse(&said.out).filter(|_| said.good);
    let Some((version, number)) = found else {
        let what = bad("firecracker-not-runnable", format!("{shown} is no Firecracker")).cause(said.words());
        return Err(missing(what.fix("set `firecracker_bin` to the program `firecracker`")));
    };
    if number < OLDEST {
        let what = bad("firecracker-too-old", format!("Firecracker {version} at {shown} is too old"));
        return Err(missing(what.fix(format!("install {}.{} or later", OLDEST.0, OLDEST.1))));
    }
    Ok(version)
}

/// `Firecracker v1.12.1` in the first line.
fn parse(said: &str) -> Option<(String, (u32, u32))> {
    let version = said.lines().next()?.trim().strip_prefix("Firecracker v")?;
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+');
    if version.len() > 40 || !version.chars().all(safe) {
        return None;
    }
    let mut parts = version.split(['.', '-', '+']);
    let number = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((version.to_owned(), number))
}

/// `KVM_GET_API_VERSION` and `KVM_CREATE_VM` of `<linux/kvm.h>`.
const KVM_GET_API_VERSION: libc::Ioctl = 0xae00;
const KVM_CREATE_VM: libc::Ioctl = 0xae01;

/// Makes a machine without anything in it, and lets it go. Blocks.
fn kvm() -> Result<()> {
    let path = "/dev/kvm";
    let opened = std::fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path);
    let device = match opened {
        Ok(device) => device,
        Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied => {
            let what = Diagnosis::new("kvm-forbidden", "this user may not use /dev/kvm").cause(cause);
            return Err(missing(what.fix("`sudo usermod -aG kvm $USER`, and log in again")));
        }
        Err(cause) => {
            let what = Diagnosis::new("kvm-missing", "there is no /dev/kvm").cause(cause);
            let fix = "switch virtualization on in the firmware (in a virtual machine: nested virtualization), and \
                       `sudo modprobe kvm_intel` or `kvm_amd`";
            return Err(missing(what.fix(fix)));
        }
    };
    // SAFETY: both calls take a plain number and return one; a descriptor that comes back is closed at once.
    let works = unsafe {
        libc::ioctl(device.as_raw_fd(), KVM_GET_API_VERSION, 0) == 12 && {
            let machine = libc::ioctl(device.as_raw_fd(), KVM_CREATE_VM, 0);
            machine >= 0 && libc::close(machine) == 0
        }
    };
    if works {
        return Ok(());
    }
    let what = Diagnosis::new("kvm-broken", "/dev/kvm makes no machine").cause(io::Error::last_os_error());
    Err(missing(
        what.fix("see the kernel's log (`dmesg`), and whether another hypervisor holds the processor"),
    ))
}

fn open_plain(path: &Path) -> io::Result<File> {
    let file =
        std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}

/// What Firecracker can boot. Blocks.
fn check_kernel(path: &Path) -> Result<()> {
    let shown = path.display();
    let file = open_plain(path).map_err(|cause| {
        let what = Diagnosis::new("firecracker-kernel-missing", format!("there is no kernel at {shown}"));
        missing(
            what.cause(cause)
                .fix(format!("put an uncompressed Linux kernel there, or set `firecracker_kernel`; {PAGE}")),
        )
    })?;
    let mut head = vec![0; 1024];
    let read = file.read_at(&mut head, 0).unwrap_or(0);
    let good = match std::env::consts::ARCH {
        // ELF, 64 bits.
        "x86_64" => read > 64 && head.starts_with(b"\x7fELF\x02\x01"),
        // The magic of an arm64 `Image`.
        "aarch64" => read > 64 && &head[56..60] == b"ARM\x64",
        _ => false,
    };
    if good {
        return Ok(());
    }
    let what =
        Diagnosis::new("firecracker-kernel-format", format!("{shown} is no kernel that Firecracker boots"));
    let what = match &head[514..518] == b"HdrS" {
        true => what.cause("it is compressed (bzImage)"),
        false => what,
    };
    Err(missing(what.fix(format!("use the uncompressed `vmlinux` (arm64: `Image`); {PAGE}"))))
}

/// Whether a file is an ext2, ext3 or ext4 file system. Blocks.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn is_ext4(file: &File) -> io::Result<bool> {
    let mut magic = [0; 2];
    match file.read_exact_at(&mut magic, 1024 + 0x38) {
        Ok(()) => Ok(u16::from_le_bytes(magic) == 0xef53),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn check_rootfs(path: &Path) -> Result<()> {
    let shown = path.display();
    let build = "`moltis sandbox build --backend firecracker` makes one, or set `firecracker_rootfs`";
    let absent = |cause: io::Error| {
        let what =
            Diagnosis::new("firecracker-rootfs-missing", format!("there is no root file system at {shown}"));
        missing(what.cause(cause).fix(build))
    };
    let file = open_plain(path).map_err(absent)?;
    if is_ext4(&file).map_err(absent)? {
        return Ok(());
    }
    let what = Diagnosis::new("firecracker-rootfs-format", format!("{shown} is no ext4 file system"));
    Err(missing(what.fix(build)))
}

/// The jailer beside Firecracker, which root must have.
fn jailer(firecracker: &Path, root: bool) -> Result<Option<PathBuf>> {
    if !root {
        return Ok(None);
    }
    let jailer = firecracker.with_file_name("jailer");
    match rustix::fs::access(&jailer, rustix::fs::Access::EXEC_OK) {
        Ok(()) => Ok(Some(jailer)),
        Err(errno) => {
            let what = Diagnosis::new(
                "firecracker-jailer-missing",
                format!("there is no jailer at {}, and Firecracker is never run as root", jailer.display()),
            );
            let fix =
                "put the jailer of the same release beside Firecracker, or run Moltis as an ordinary user";
            Err(missing(what.cause(io::Error::from(errno)).fix(fix)))
        }
    }
}

/// Why a device could not be opened for network `open`, in a few words.
pub(crate) fn reason(errno: Errno) -> String {
    io::Error::from(errno).to_string()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn code(error: Error) -> String {
        let error = moltis_sandbox::Error::from(error);
        assert_eq!(error.kind(), "unavailable");
        assert!(error.diagnosis().fix.is_some(), "{error:?}");
        error.code().to_owned()
    }

    #[test]
    fn versions_are_read_and_nothing_else_is() {
        assert_eq!(parse("Firecracker v1.12.1\n\n2026…"), Some(("1.12.1".to_owned(), (1, 12))));
        assert_eq!(parse("Firecracker v1.14.0-dev+abc\n"), Some(("1.14.0-dev+abc".to_owned(), (1, 14))));
        for other in
            ["", "Firecracker", "Firecracker v1", "Firecracker v1.x", "Firecracker v1.2;rm", "QEMU 7"]
        {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[tokio::test]
    async fn each_thing_that_is_missing_has_a_code_of_its_own() {
        let temp = tempfile::tempdir().unwrap();
        let script = |name: &str, text: &str| {
            let path = temp.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let none = temp.path().join("none");
        assert_eq!(code(version(&none).await.unwrap_err()), "firecracker-missing");
        let other = script("other", "echo other 1.0");
        assert_eq!(code(version(&other).await.unwrap_err()), "firecracker-not-runnable");
        let old = script("old", "echo Firecracker v1.7.0");
        assert_eq!(code(version(&old).await.unwrap_err()), "firecracker-too-old");
        let good = script("good", "echo Firecracker v1.8.0");
        assert_eq!(version(&good).await.unwrap(), "1.8.0");
        fs::set_permissions(&good, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(code(version(&good).await.unwrap_err()), "firecracker-not-runnable");

        assert_eq!(code(check_kernel(&none).unwrap_err()), "firecracker-kernel-missing");
        assert_eq!(code(check_kernel(temp.path()).unwrap_err()), "firecracker-kernel-missing");
        let mut image = vec![0; 2048];
        image[514..518].copy_from_slice(b"HdrS");
        let kernel = temp.path().join("kernel");
        fs::write(&kernel, &image).unwrap();
        assert_eq!(code(check_kernel(&kernel).unwrap_err()), "firecracker-kernel-format");
        fs::write(&kernel, "short").unwrap();
        assert_eq!(code(check_kernel(&kernel).unwrap_err()), "firecracker-kernel-format");

        assert_eq!(code(check_rootfs(&none).unwrap_err()), "firecracker-rootfs-missing");
        assert_eq!(code(check_rootfs(&kernel).unwrap_err()), "firecracker-rootfs-format");
        let mut ext4 = vec![0; 4096];
        ext4[1080..1082].copy_from_slice(&[0x53, 0xef]);
        fs::write(&kernel, ext4).unwrap();
        check_rootfs(&kernel).unwrap();

        assert_eq!(jailer(&none, false).unwrap(), None);
        assert_eq!(code(jailer(&none, true).unwrap_err()), "firecracker-jailer-missing");
    }
}
