//! The machine's root: its disks, what kernels show, and folders that end with it.

use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use moltis_agent_protocol::machine::Boot;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_change, mount_move};

use super::user::User;
use super::{Result, at};

/// How long a disk is waited for.
const DISK_WITHIN: Duration = Duration::from_secs(10);

const PLAIN: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

fn new(kind: &str, source: &str, target: &str, flags: MountFlags, options: &str) -> Result<()> {
    let options = std::ffi::CString::new(options).map_err(at(target))?;
    mount(source, target, kind, flags, options.as_c_str()).map_err(at(format!("{kind} at {target}")))
}

/// What the keeper itself needs.
pub fn first_mounts() -> Result<()> {
    new("devtmpfs", "devtmpfs", "/dev", MountFlags::NOSUID, "mode=0755")?;
    new("proc", "proc", "/proc", PLAIN.union(MountFlags::NOEXEC), "")?;
    new("sysfs", "sysfs", "/sys", PLAIN.union(MountFlags::NOEXEC), "")
}

/// Loads what lies in `/modules`, in the order of names. One that is built in or loaded already is no error.
pub fn load_modules() -> Result<()> {
    let Ok(entries) = fs::read_dir("/modules") else { return Ok(()) };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort_unstable();
    for path in paths {
        let what = path.display().to_string();
        let file = fs::File::open(&path).map_err(at(what.as_str()))?;
        // SAFETY: the descriptor is open, and the parameters are an empty string that outlives the call.
        let loaded = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) };
        let error = std::io::Error::last_os_error();
        if loaded < 0 && error.raw_os_error() != Some(libc::EEXIST) {
            return Err(at(what)(error));
        }
        // What is loaded lies in the kernel by now.
        let _ = fs::remove_file(&path);
    }
    Ok(())
}

fn wait_for(disk: &str) -> Result<()> {
    let until = Instant::now() + DISK_WITHIN;
    while !Path::new(disk).exists() {
        if Instant::now() > until {
            return Err(at(disk)(std::io::Error::from(Errno::NODEV)));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Mounts the disks and makes them the root.
pub fn build(overlay: bool) -> Result<()> {
    wait_for("/dev/vda")?;
    if overlay {
        wait_for("/dev/vdb")?;
        let read = MountFlags::RDONLY.union(MountFlags::NODEV).union(MountFlags::NOATIME);
        new("ext4", "/dev/vda", "/lower", read, "")?;
        new("ext4", "/dev/vdb", "/upper", MountFlags::NODEV.union(MountFlags::NOATIME), "")?;
        for folder in ["/upper/data", "/upper/work"] {
            make(folder, 0o755)?;
        }
        new(
            "overlay",
            "overlay",
            "/root",
            MountFlags::NODEV,
            "lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work",
        )?;
    } else {
        new("ext4", "/dev/vda", "/root", MountFlags::NODEV.union(MountFlags::NOATIME), "")?;
    }
    for folder in
        ["/root/dev", "/root/proc", "/root/sys", "/root/tmp", "/root/run", "/root/home", "/root/etc"]
    {
        make(folder, 0o755)?;
    }
    devices()?;
    mount_move("/sys", "/root/sys").map_err(at("/sys"))?;
    mount_move("/proc", "/root/proc").map_err(at("/proc"))?;
    // The first root cannot be left by `pivot_root`; what remains of it is beneath the new one, out of reach.
    rustix::process::chdir("/root").map_err(at("/root"))?;
    mount_move(".", "/").map_err(at("the root"))?;
    rustix::process::chroot(".").map_err(at("the root"))?;
    rustix::process::chdir("/").map_err(at("the root"))?;
    mount_change(
        "/",
        rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC,
    )
    .map_err(at("the root"))?;
    new("tmpfs", "tmpfs", "/tmp", PLAIN, "mode=1777")?;
    new("tmpfs", "tmpfs", "/run", PLAIN.union(MountFlags::NOEXEC), "mode=0755")
}

/// Makes a folder unless something is there.
fn make(path: &str, mode: u32) -> Result<()> {
    match fs::DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(at(path)(error)),
        _ => Ok(()),
    }
}

/// A small `/dev`: nothing of the machine's disks.
fn devices() -> Result<()> {
    let dev = "/root/dev";
    new("tmpfs", "tmpfs", dev, MountFlags::NOSUID.union(MountFlags::NOEXEC), "mode=0755,size=64k")?;
    let mode = Mode::from_raw_mode(0o666);
    for (name, major, minor) in
        [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)]
    {
        let path = format!("{dev}/{name}");
        let number = rustix::fs::makedev(major, minor);
        rustix::fs::mknodat(CWD, &path, FileType::CharacterDevice, mode, number)
            .map_err(at(path.as_str()))?;
        rustix::fs::chmod(&path, mode).map_err(at(path.as_str()))?;
    }
    // The keeper's alone.
    let console = format!("{dev}/console");
    let number = rustix::fs::makedev(5, 1);
    rustix::fs::mknodat(CWD, &console, FileType::CharacterDevice, Mode::from_raw_mode(0o600), number)
        .map_err(at(console.as_str()))?;
    for (folder, kind, flags, options) in [
        (
            "pts",
            "devpts",
            MountFlags::NOSUID.union(MountFlags::NOEXEC),
            "newinstance,ptmxmode=0666,mode=0620,gid=5",
        ),
        ("shm", "tmpfs", PLAIN, "mode=1777"),
    ] {
        let path = format!("{dev}/{folder}");
        make(&path, 0o755)?;
        new(kind, kind, &path, flags, options)?;
    }
    for (name, target) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        std::os::unix::fs::symlink(target, format!("{dev}/{name}")).map_err(at(name))?;
    }
    Ok(())
}

/// Names, the user and its home: what images leave to whoever starts them.
pub fn settle(user: &User, boot: &Boot) -> Result<()> {
    rustix::system::sethostname(b"sandbox").map_err(at("the host's name"))?;
    write("/etc/hostname", "sandbox\n")?;
    write("/etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost\n127.0.1.1\tsandbox\n")?;
    if !boot.servers.is_empty() {
        let lines: String = boot.servers.iter().map(|server| format!("nameserver {server}\n")).collect();
        write("/etc/resolv.conf", &lines)?;
    }
    user.settle()?;
    make(super::user::HOME, 0o755)?;
    std::os::unix::fs::chown(super::user::HOME, Some(user.uid), Some(user.gid))
        .map_err(at(super::user::HOME))?;
    let etc = |number| format!("oom_score_adj of process {number}");
    // Commands go before the keeper.
    fs::write("/proc/self/oom_score_adj", "-900").map_err(at(etc(1)))
}

/// Replaces a file of `/etc`, which may be a link in the image.
pub fn write(path: &str, text: &str) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(at(path)(error)),
        _ => {}
    }
    let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC).bits() as i32;
    let mut options = fs::OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::custom_flags(options.write(true).create_new(true), flags);
    let mut file = options.open(path).map_err(at(path))?;
    file.set_permissions(fs::Permissions::from_mode(0o644)).map_err(at(path))?;
    file.write_all(text.as_bytes()).map_err(at(path))
}
