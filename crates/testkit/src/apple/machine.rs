//! What stands for a virtual machine: a process with namespaces of its own, whose first process is the container's. A
//! keeper outside waits for it, and ends it when the container's folder goes.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use rustix::thread::{Gid, Uid};

use super::say::{Result, error};
use super::state::{Kept, State, now};

/// What stands in a container's `status` once its program is about to begin.
const RUNNING: &str = "running";
/// What stands there before the reason, if it could not begin.
const FAILED: &str = "failed: ";

/// Between two looks at a machine.
const PAUSE: Duration = Duration::from_millis(20);

/// What is shown of the host: source, target, whether read-only.
type Shown = (PathBuf, String, bool);

/// Starts a container, and returns when its first process runs or has run.
pub fn start(state: &State, kept: &mut Kept, never_boots: bool) -> Result<()> {
    let folder = state.folder(&kept.id);
    for old in ["pid", "exit", "status", "boot.log"] {
        let _ = std::fs::remove_file(folder.join(old));
    }
    kept.started = Some(now());
    state.keep(kept)?;
    File::create(folder.join("boot.log"))?;
    if never_boots {
        return Ok(());
    }
    let me = std::env::current_exe()?;
    let mut keeper = Command::new("setsid");
    keeper.arg("--fork").arg(&me).args(["__keep", &kept.id]);
    keeper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    keeper.status()?;
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        let status = std::fs::read_to_string(folder.join("status")).unwrap_or_default();
        if let Some((_, words)) = status.split_once(FAILED) {
            return Err(error(format!(
                "internalError: \"failed to start container\" (cause: \"internalError: \"{}\"\")",
                words.trim()
            )));
        }
        // Until then the first process is this program, about to become the container's.
        let became = state.process(&kept.id).is_some_and(|pid| {
            std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| program != me)
        });
        if (status == RUNNING && became) || folder.join("exit").exists() || !folder.exists() {
            return Ok(());
        }
        std::thread::sleep(PAUSE / 4);
    }
    Err(error("timeout: \"the machine did not start\""))
}

/// The keeper: waits for the machine, and clears away what is to be cleared away.
pub fn keep(state: &State, id: &str) -> Result {
    let kept = state.container(id)?;
    let folder = state.folder(id);
    let me = std::env::current_exe()?;
    let log = File::create(folder.join("stdio.log"))?;
    let mut machine = Command::new("unshare")
        .args(["--mount", "--pid", "--uts", "--ipc", "--net", "--fork", "--kill-child=SIGKILL"])
        .arg(&me)
        .args(["__init", id])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    let mut first = None;
    let status = loop {
        if first.is_none() {
            first = child_of(machine.id());
            if let Some(pid) = first {
                let _ = std::fs::write(folder.join("pid"), pid.to_string());
            }
        }
        if let Some(status) = machine.try_wait()? {
            break status;
        }
        if !folder.exists() {
            if let Some(pid) = first.and_then(|pid| Pid::from_raw(pid.cast_signed())) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
            let _ = machine.kill();
        }
        std::thread::sleep(PAUSE);
    };
    let code = status.code().unwrap_or(137);
    let _held = state.lock();
    let _ = std::fs::remove_file(folder.join("pid"));
    if folder.exists() {
        std::fs::write(folder.join("exit"), code.to_string())?;
        // A start that failed tells of it first.
        let status = std::fs::read_to_string(folder.join("status")).unwrap_or_default();
        if kept.remove && !status.contains(FAILED) {
            state.discard(id)?;
        }
    }
    Ok(0)
}

fn child_of(pid: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// The first process of a machine, until the container's takes its place.
pub fn init(state: &State, id: &str) -> Result {
    let kept = state.container(id)?;
    let folder = state.folder(id);
    std::fs::write(
        folder.join("boot.log"),
        "[    0.000000] Booting Linux\n[    0.143628] Run /sbin/vminitd as init process\n",
    )?;
    // Opened while it can be: the user that this process becomes has no place there.
    let status = File::create(folder.join("status"))?;
    let note = |words: &str| {
        let _ = (&status).write_all(words.as_bytes());
    };
    if let Err(cause) = enter(state, &kept) {
        note(&format!("{FAILED}failed to bootstrap container {id} (cause: \"unknown: \"{cause}\"\")"));
        return Ok(125);
    }
    if let Err(cause) = become_user(&kept) {
        note(&format!("{FAILED}{cause}"));
        return Ok(125);
    }
    note(RUNNING);
    let (program, arguments) = kept.argv.split_first().ok_or_else(|| error("no program"))?;
    let pairs = kept.env.iter().filter_map(|pair| pair.split_once('='));
    let cause =
        Command::new(program).args(arguments).env_clear().envs(pairs).current_dir(&kept.directory).exec();
    note(&format!("{FAILED}failed to find target executable {program}: {cause}"));
    Ok(125)
}

fn enter(state: &State, kept: &Kept) -> std::io::Result<()> {
    use rustix::mount::{mount, mount_bind_recursive, mount_change, mount_remount, unmount};

    let folder = state.folder(&kept.id);
    let root = folder.join("rootfs");
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    mount_bind_recursive(&root, &root)?;
    let inside = |target: &str| root.join(target.trim_start_matches('/'));
    // Outer before inner.
    let mut order: Vec<(&str, Option<&Shown>)> =
        kept.binds.iter().map(|bind| (bind.1.as_str(), Some(bind))).collect();
    order.extend(kept.tmpfs.iter().map(|target| (target.as_str(), None)));
    order.extend([("/proc", None), ("/dev", None), ("/sys", None)]);
    order.sort_by_key(|(target, _)| Path::new(target).components().count());
    for (target, bind) in order {
        let place = inside(target);
        match bind {
            Some((source, _, read_only)) => {
                if source.is_dir() {
                    std::fs::create_dir_all(&place)?;
                } else {
                    std::fs::create_dir_all(place.parent().unwrap_or(&root))?;
                    File::options().create(true).append(true).open(&place)?;
                }
                mount_bind_recursive(source, &place)?;
                if *read_only {
                    mount_remount(&place, MountFlags::BIND | MountFlags::RDONLY, "")?;
                }
            }
            None => {
                std::fs::create_dir_all(&place)?;
                let kind = match target {
                    "/proc" => "proc",
                    "/sys" => "sysfs",
                    _ => "tmpfs",
                };
                mount(kind, &place, kind, MountFlags::NOSUID | MountFlags::NODEV, None)?;
                if target == "/dev" {
                    devices(&place)?;
                }
            }
        }
    }
    if kept.read_only {
        mount_remount(&root, MountFlags::BIND | MountFlags::RDONLY, "")?;
    }
    let _ = Command::new("ip").args(["link", "set", "lo", "up"]).stderr(Stdio::null()).status();
    rustix::system::sethostname(kept.id.as_bytes())?;
    std::env::set_current_dir(&root)?;
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    std::env::set_current_dir("/")
}

fn devices(place: &Path) -> std::io::Result<()> {
    for name in ["null", "zero", "full", "random", "urandom", "tty"] {
        let node = place.join(name);
        File::create(&node)?;
        rustix::mount::mount_bind(Path::new("/dev").join(name), &node)?;
    }
    for (name, target) in [("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")]
    {
        symlink(target, place.join(name))?;
    }
    for (name, mode) in [("shm", 0o1777), ("pts", 0o755)] {
        std::fs::DirBuilder::new().mode(0o755).create(place.join(name))?;
        std::fs::set_permissions(place.join(name), std::fs::Permissions::from_mode(mode))?;
    }
    rustix::mount::mount(
        "devpts",
        place.join("pts"),
        "devpts",
        MountFlags::NOSUID,
        Some(c"newinstance,ptmxmode=0666"),
    )?;
    symlink("pts/ptmx", place.join("ptmx"))
}

/// Gives up root, and sets the limits.
fn become_user(kept: &Kept) -> std::io::Result<()> {
    if let Some((soft, hard)) = kept.processes {
        rustix::process::setrlimit(Resource::Nproc, Rlimit { current: Some(soft), maximum: Some(hard) })?;
    }
    let (uid, gid) = kept.user;
    rustix::thread::set_thread_groups(&[])?;
    let gid = Gid::from_raw(gid);
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    let uid = Uid::from_raw(uid);
    Ok(rustix::thread::set_thread_res_uid(uid, uid, uid)?)
}

/// Runs a program beside the first process, and answers with its exit code.
pub fn exec(
    state: &State,
    kept: &Kept,
    argv: &[String],
    user: (u32, u32),
    directory: &str,
    env: &[String],
) -> Result {
    let pid = state
        .process(&kept.id)
        .ok_or_else(|| error(format!("invalidState: \"container {} is not running\"", kept.id)))?;
    let root = format!("/proc/{pid}/root");
    let (program, arguments) = argv.split_first().ok_or_else(|| error("no program"))?;
    let folders = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"];
    let candidates: Vec<String> = match program.contains('/') {
        true => vec![program.clone()],
        false => folders.iter().map(|folder| format!("{folder}/{program}")).collect(),
    };
    let there = |path: &&String| std::fs::symlink_metadata(format!("{root}{path}")).is_ok();
    let Some(program) = candidates.iter().find(there) else {
        return Err(error(format!(
            "internalError: \"failed to exec process\" (cause: \"notFound: \"failed to find target executable {program}\"\")"
        )));
    };
    // The first process's limits hold for it.
    if let Some((soft, hard)) = kept.processes {
        let limit = Rlimit { current: Some(soft), maximum: Some(hard) };
        rustix::process::setrlimit(Resource::Nproc, limit).map_err(std::io::Error::from)?;
    }
    let pairs = env.iter().filter_map(|pair| pair.split_once('='));
    let status = Command::new(super::say::program("nsenter")?)
        .args(["--mount", "--pid", "--uts", "--ipc", "--net", "--root", "--target", &pid.to_string()])
        .args(["--setuid", &user.0.to_string(), "--setgid", &user.1.to_string()])
        .arg(format!("--wdns={directory}"))
        .arg("--")
        .arg(program)
        .args(arguments)
        .env_clear()
        .envs(pairs)
        .status()?;
    use std::os::unix::process::ExitStatusExt;
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

/// Sends a signal to the first process of a container.
pub fn signal(state: &State, id: &str, signal: Signal) {
    if let Some(pid) = state.process(id).and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Waits until a container is over.
pub fn over(state: &State, id: &str, within: Duration) -> bool {
    let end = Instant::now() + within;
    while state.process(id).is_some() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(PAUSE / 4);
    }
    true
}
