//! A `/dev/net/tun` that the sandbox's user can open, where the host's is for root alone.

use std::io;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat, stat};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::UnshareFlags;

use super::named;

/// Read and write for everybody.
const EVERYBODY: u32 = 0o666;
/// Major and minor number of the device, `Documentation/admin-guide/devices.txt`.
const DEVICE: (u32, u32) = (10, 200);

/// As root, unless everybody may open the device anyway (most machines), gives this process and what it starts a
/// mount namespace with a device of their own. The host's is left as it is. For an ordinary user nothing can be done.
pub fn provide() -> io::Result<()> {
    let open_to_all = stat("/dev/net/tun").is_ok_and(|found| found.st_mode & EVERYBODY == EVERYBODY);
    if open_to_all || !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // SAFETY: no threads, so nothing shares what is unshared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.map_err(named("unshare"))?;
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    mount_change("/", private).map_err(named("mount"))?;
    mount("tmpfs", "/dev/net", "tmpfs", MountFlags::NOEXEC | MountFlags::NOSUID, Some(c"mode=755,size=64k"))
        .map_err(named("mount /dev/net"))?;
    let (major, minor) = DEVICE;
    mknodat(
        CWD,
        "/dev/net/tun",
        FileType::CharacterDevice,
        Mode::from_raw_mode(EVERYBODY),
        makedev(major, minor),
    )
    .map_err(named("mknod"))?;
    // The file creation mask does not count.
    rustix::fs::chmod("/dev/net/tun", Mode::from_raw_mode(EVERYBODY)).map_err(named("chmod"))
}
