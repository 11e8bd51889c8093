//! `cargo xtask engines up|down`: Docker, Podman and the images that tests use, on a Debian machine, as root.
//!
//! What runs already is used as it is and left running. What is started here is written down, so that it, and nothing
//! else, is stopped again.

pub mod images;
pub mod left;

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::command::{find, kept, root};
use crate::{Outcome, install};

/// What brings the engines and makes their images.
const PACKAGES: &[&str] = &[
    "docker.io",
    "podman",
    "runc",
    "iptables",
    "netavark",
    "aardvark-dns",
    "uidmap",
    "slirp4netns",
    "busybox-static",
    "mmdebstrap",
    "ca-certificates",
];

/// The engines, by the program that asks each of them.
const ENGINES: [&str; 2] = ["docker", "podman"];

/// Where Docker listens.
const DOCKER_SOCKET: &str = "/var/run/docker.sock";
/// Where root's Podman listens.
const PODMAN_SOCKET: &str = "/run/podman/podman.sock";
/// Podman's configuration of the system.
const CONTAINERS_CONF: &str = "/etc/containers/containers.conf";

/// How long a daemon may take to answer, and to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a question may take.
const QUESTION: Duration = Duration::from_secs(60);

/// What was started, stopped when this is dropped.
pub struct Started(());

impl Drop for Started {
    fn drop(&mut self) {
        if let Err(why) = down() {
            eprintln!("xtask: {why}");
        }
    }
}

/// `cargo xtask engines`.
pub fn run(arguments: &[&str]) -> Outcome {
    match arguments {
        ["up"] => up().map(std::mem::forget)?,
        ["down"] => down()?,
        _ => return Err("`cargo xtask engines up` or `cargo xtask engines down`".into()),
    }
    Ok(true)
}

/// Installs the engines, starts those that do not answer, and sees that they have the images.
pub fn up() -> Result<Started, String> {
    if !root() {
        return Err("container engines are set up as root".into());
    }
    install::packages(PACKAGES)?;
    configure()?;
    let started = Started(());
    if !docker_answers() {
        let stale = fs::read_to_string("/var/run/docker.pid").ok().and_then(|pid| pid.trim().parse().ok());
        if stale.is_some_and(|pid: u32| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_file("/var/run/docker.pid");
        }
        let socket = format!("unix://{DOCKER_SOCKET}");
        let mut arguments = vec!["-H", &socket, "--storage-driver", "overlay2"];
        // Without systemd as the first process there is nobody else to make groups.
        if !Path::new("/run/systemd/system").exists() {
            arguments.extend(["--exec-opt", "native.cgroupdriver=cgroupfs"]);
        }
        start("dockerd", &arguments, docker_answers)?;
    }
    if !podman_answers() {
        let socket = format!("unix://{PODMAN_SOCKET}");
        make(Path::new(PODMAN_SOCKET).parent())?;
        start("podman", &["system", "service", "--time=0", &socket], podman_answers)?;
    }
    images::make(&cache("images")?)?;
    Ok(started)
}

/// Stops what [`up`] started, now or in a run that did not come to its end.
pub fn down() -> Result<(), String> {
    let mut stuck = Vec::new();
    for name in ["podman", "dockerd"] {
        let file = written(name)?;
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let mut words = text.split_whitespace();
        if let (Some(pid), Some(born)) = (words.next(), words.next())
            && !ended(pid, born)
        {
            stuck.push(format!("{name} ({pid})"));
            continue;
        }
        let _ = fs::remove_file(file);
    }
    if stuck.is_empty() { Ok(()) } else { Err(format!("still running: {}", stuck.join(", "))) }
}

/// Asks a process that was started here to end, and ends it if it does not.
fn ended(pid: &str, born: &str) -> bool {
    for signal in ["-TERM", "-KILL"] {
        let end = Instant::now() + PATIENCE;
        // Another process may have the number by now.
        if birth(pid).as_deref() != Some(born) {
            return true;
        }
        let _ = Command::new("kill").args([signal, pid]).status();
        while Instant::now() < end {
            if birth(pid).as_deref() != Some(born) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    false
}

/// When a process began, in the kernel's ticks; none for one that is over.
fn birth(pid: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = &text[text.rfind(')')? + 1..];
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // One that nobody has waited for is over, too.
    if fields.first() == Some(&"Z") { None } else { fields.get(19).map(|&ticks| ticks.to_owned()) }
}

/// Starts a daemon that outlives this program, and waits until it answers.
fn start(program: &str, arguments: &[&str], answers: fn() -> bool) -> Result<(), String> {
    println!("starting {program} {}", arguments.join(" "));
    let say = |e: std::io::Error| format!("{program}: {e}");
    let log = cache("engines")?.join(format!("{program}.log"));
    let output = File::create(&log).map_err(say)?;
    let mut child = Command::new(find(program).ok_or(format!("no {program}"))?)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(output.try_clone().map_err(say)?)
        .stderr(output)
        .process_group(0)
        .spawn()
        .map_err(say)?;
    let pid = child.id().to_string();
    let born = birth(&pid).unwrap_or_default();
    fs::write(written(program)?, format!("{pid} {born}\n")).map_err(say)?;
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end && child.try_wait().map_err(say)?.is_none() {
        if answers() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let said = fs::read_to_string(&log).unwrap_or_default();
    let tail: Vec<&str> = said.lines().rev().take(20).collect();
    let tail: Vec<&str> = tail.into_iter().rev().collect();
    Err(format!("{program} does not answer; it said:\n{}", tail.join("\n")))
}

fn docker_answers() -> bool {
    let mut command = Command::new("docker");
    command.args(["-H", &format!("unix://{DOCKER_SOCKET}"), "version"]);
    kept(&mut command, None, QUESTION).is_ok_and(|ended| ended.good())
}

fn podman_answers() -> bool {
    let mut command = Command::new("podman");
    command.args(["--remote", "--url", &format!("unix://{PODMAN_SOCKET}"), "version"]);
    kept(&mut command, None, QUESTION).is_ok_and(|ended| ended.good())
}

/// Says to Podman what it cannot find out by itself on a machine without systemd, unless somebody has said it.
fn configure() -> Result<(), String> {
    let file = Path::new(CONTAINERS_CONF);
    if file.exists() || Path::new("/run/systemd/system").exists() {
        return Ok(());
    }
    make(file.parent())?;
    fs::write(file, containers_conf()).map_err(|e| format!("{}: {e}", file.display()))
}

/// What Podman is told where there is no systemd.
pub fn containers_conf() -> String {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    conf_within(hard_limit(&limits, "Max open files"), hard_limit(&limits, "Max processes"))
}

/// Limits of a container may not be above our own where nothing may raise those; the soft and the hard one are the same,
/// since some versions of Podman's API exchange them.
fn conf_within(files: u64, processes: u64) -> String {
    let (files, processes) = (files.min(65_536), processes.min(32_768));
    format!(
        "[containers]\ndefault_ulimits = [\"nofile={files}:{files}\", \"nproc={processes}:{processes}\"]\n\n\
         [engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nexit_command_delay = 1\n"
    )
}

/// A hard limit of this process as `/proc` tells it.
fn hard_limit(limits: &str, name: &str) -> u64 {
    let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(u64::MAX)
}

/// A folder of ours in the user's cache.
pub fn cache(name: &str) -> Result<PathBuf, String> {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let folder = base.or_else(home).ok_or("no HOME")?.join("moltis").join(name);
    make(Some(&folder))?;
    Ok(folder)
}

/// Where it is written down that a daemon was started here.
fn written(program: &str) -> Result<PathBuf, String> {
    Ok(cache("engines")?.join(format!("{program}.pid")))
}

fn make(folder: Option<&Path>) -> Result<(), String> {
    let folder = folder.unwrap_or(Path::new("/"));
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_stay_below_our_own() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max processes             100                  unlimited            processes \n\
                      Max open files            1024                 20000                files     \n";
        assert_eq!(hard_limit(limits, "Max open files"), 20_000);
        assert_eq!(hard_limit(limits, "Max processes"), u64::MAX);
        let text = conf_within(20_000, u64::MAX);
        assert!(text.contains("[\"nofile=20000:20000\", \"nproc=32768:32768\"]"), "{text}");
    }

    #[test]
    fn a_process_is_known_by_its_number_and_its_birth() {
        let own = std::process::id().to_string();
        let born = birth(&own).unwrap();
        assert!(born.parse::<u64>().is_ok(), "{born}");
        assert!(ended(&own, "1"), "another one's");
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let (pid, born) = (child.id().to_string(), birth(&child.id().to_string()).unwrap());
        assert!(ended(&pid, &born));
        child.wait().unwrap();
    }
}
