//! What everything in the sandbox takes: memory and processor time.
//!
//! The kernel's account of the sandbox's own control group where it can be read in here, else the sum over the processes.
//! What is read may be written by nobody inside, and there is an end to how much of it is looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use moltis_agent_protocol::message::{Failure, FailureCode, Usage};
use rustix::fs::{Mode, OFlags};

use crate::descent::{Account, account};

/// Processes that are counted; with more there is no answer.
const MAX_PROCESSES: usize = 65_536;

/// Bytes of one of the kernel's files.
const MAX_FILE: u64 = 256 << 10;

/// Time for all of it. The process that counts is ended some time after.
pub const LIMIT: Duration = Duration::from_secs(2);

/// What is taken by all that descends from the process `agent`, itself included; of a PID 1 that is everybody.
///
/// # Errors
/// `Exhausted` when there are too many processes to count in time.
pub fn measure(agent: i32) -> Result<Usage, Failure> {
    // A plain process shares its group with others.
    let group = if agent == 1 { Group::own() } else { Group::default() };
    let (memory_bytes, cpu_micros) = (group.memory(), group.cpu());
    if let (Some(memory_bytes), Some(cpu_micros)) = (memory_bytes, cpu_micros) {
        return Ok(Usage { memory_bytes, cpu_micros });
    }
    let all = everybody().ok_or_else(|| Failure {
        code: FailureCode::Exhausted,
        message: "there are too many processes to count".to_owned(),
        errno: None,
    })?;
    let (page, tick) = (setting(libc::_SC_PAGESIZE, 4096), setting(libc::_SC_CLK_TCK, 100));
    let (mut pages, mut ticks) = (0u64, 0u64);
    let mut add = |found: &Account| {
        pages = pages.saturating_add(found.resident_pages);
        ticks = ticks.saturating_add(found.ticks);
    };
    if agent == 1 {
        all.values().for_each(add);
    } else {
        descent(agent, &all).for_each(&mut add);
    }
    Ok(Usage {
        memory_bytes: memory_bytes.unwrap_or(pages.saturating_mul(page)),
        cpu_micros: cpu_micros.unwrap_or(ticks.saturating_mul(1_000_000 / tick.max(1))),
    })
}

/// Those that descend from one process, and itself.
fn descent(root: i32, all: &BTreeMap<i32, Account>) -> impl Iterator<Item = &Account> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (pid, found) in all {
        children.entry(found.parent).or_default().push(*pid);
    }
    let (mut next, mut counted) = (vec![root], BTreeSet::new());
    std::iter::from_fn(move || {
        loop {
            let pid = next.pop()?;
            // What was read at different moments may seem to go in a circle: each is counted once.
            next.extend(children.remove(&pid).unwrap_or_default());
            if let Some(found) = all.get(&pid).filter(|_| counted.insert(pid)) {
                return Some(found);
            }
        }
    })
}

/// Every process that can be seen; nothing when there are too many, or it takes too long.
fn everybody() -> Option<BTreeMap<i32, Account>> {
    let until = Instant::now() + LIMIT;
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if all.len() >= MAX_PROCESSES || Instant::now() > until {
            return None;
        }
        // One that has ended since is counted by its parent.
        if let Some(found) = account(pid) {
            all.insert(pid, found);
        }
    }
    Some(all)
}

fn setting(name: i32, otherwise: u64) -> u64 {
    // SAFETY: only reads a constant of the system.
    let value = unsafe { libc::sysconf(name) };
    u64::try_from(value).ok().filter(|value| *value > 0).unwrap_or(otherwise)
}

/// Where the kernel keeps the account of a control group that holds this sandbox and nobody else.
#[derive(Debug, Default, PartialEq, Eq)]
struct Group {
    unified: Option<PathBuf>,
    memory: Option<PathBuf>,
    cpuacct: Option<PathBuf>,
}

impl Group {
    fn own() -> Self {
        match (read(Path::new("/proc/self/cgroup")), read(Path::new("/proc/self/mountinfo"))) {
            (Some(groups), Some(mounts)) => Self::find(&groups, &mounts),
            _ => Self::default(),
        }
    }

    /// By what the kernel says of this process's groups, and of what is mounted.
    fn find(groups: &str, mounts: &str) -> Self {
        let mut found = Self::default();
        for line in mounts.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let mut left = left.split(' ').skip(3);
            let (Some(root), Some(point)) = (left.next(), left.next()) else { continue };
            let mut right = right.split(' ');
            let (kind, options) = (right.next().unwrap_or_default(), right.nth(1).unwrap_or_default());
            // A group below what is mounted may be one that others are in too, as where a sandbox sees the machine's mounts.
            let of = |controller: &str| {
                let group = path_of(groups, controller)?;
                (group == root).then(|| (group, PathBuf::from(point)))
            };
            match kind {
                // The machine's own group has no such files, so that one is never taken for ours.
                "cgroup2" => found.unified = found.unified.or(of("").map(|(_, at)| at)),
                "cgroup" => {
                    let held = |controller: &str| {
                        let is_there = options.split(',').any(|option| option == controller);
                        // Here the machine's own group looks like any other but for its name.
                        of(controller).filter(|(group, _)| is_there && *group != "/").map(|(_, at)| at)
                    };
                    found.memory = found.memory.or_else(|| held("memory"));
                    found.cpuacct = found.cpuacct.or_else(|| held("cpuacct"));
                }
                _ => {}
            }
        }
        found
    }

    /// Bytes that cannot be given back at once: files that were read and are not in use do not count.
    fn memory(&self) -> Option<u64> {
        let of = |folder: &Path, total: &str, unused: &str| {
            let total = number(&read(&folder.join(total))?)?;
            let unused = read(&folder.join("memory.stat")).and_then(|stat| field(&stat, unused));
            Some(total.saturating_sub(unused.unwrap_or(0)))
        };
        let unified = self.unified.as_ref().and_then(|at| of(at, "memory.current", "inactive_file"));
        unified.or_else(|| of(self.memory.as_ref()?, "memory.usage_in_bytes", "total_inactive_file"))
    }

    /// Microseconds.
    fn cpu(&self) -> Option<u64> {
        // Every group has this file, the machine's own too; that of memory says which one it is.
        let unified = self.unified.as_ref().filter(|at| at.join("memory.current").exists());
        let unified = unified.and_then(|at| field(&read(&at.join("cpu.stat"))?, "usage_usec"));
        unified.or_else(|| Some(number(&read(&self.cpuacct.as_ref()?.join("cpuacct.usage"))?)? / 1000))
    }
}

/// The path of a process's group by controller, as `/proc/self/cgroup` has it; no controller is the unified one.
fn path_of<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let is_it = controllers.split(',').any(|one| one == controller);
        (is_it && !path.split('/').any(|name| name == "..")).then_some(path)
    })
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| number(line.strip_prefix(name)?.strip_prefix(' ')?))
}

fn read(path: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let mut text = String::new();
    std::fs::File::from(file).take(MAX_FILE).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_where_it_is_mounted() {
        let docker = "30 29 0:26 /docker/ab /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory\n\
                      31 29 0:27 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n";
        let groups = "5:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n0::/\n";
        let group = Group::find(groups, docker);
        let at = |path: &str| Some(PathBuf::from(path));
        let expected = Group {
            unified: None,
            memory: at("/sys/fs/cgroup/memory"),
            cpuacct: at("/sys/fs/cgroup/cpu,cpuacct"),
        };
        assert_eq!(group, expected);
        // Another group's mount, and the machine's own group.
        assert_eq!(Group::find("5:memory:/docker/abc\n4:cpuacct:/\n", docker), Group::default());
        let host = "30 29 0:26 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        assert_eq!(Group::find("5:memory:/\n", host), Group::default());
        assert_eq!(Group::find("5:memory:/a/../..\n", host), Group::default());
        // One that may hold others, since more than it can be seen.
        assert_eq!(Group::find("5:memory:/a/b\n", host), Group::default());
        let nested = "30 29 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(Group::find("0::/user.slice\n", nested), Group::default());
        let unified = "30 29 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw,nsdelegate\n";
        let found = Group { unified: at("/sys/fs/cgroup"), ..Group::default() };
        assert_eq!(Group::find("0::/\n", unified), found);
        assert_eq!(Group::find("", "x\n - \n1 2 3 - cgroup2\n"), Group::default());
    }

    #[test]
    fn a_group_s_files_are_read_and_what_is_no_group_of_ours_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        put("cpu.stat", "usage_usec 1500\nuser_usec 1\n");
        let group = Group { unified: Some(dir.path().to_owned()), ..Group::default() };
        assert_eq!((group.memory(), group.cpu()), (None, None));
        put("memory.current", "5000\n");
        put("memory.stat", "anon 1\ninactive_file 2000\n");
        assert_eq!((group.memory(), group.cpu()), (Some(3000), Some(1500)));
        put("memory.usage_in_bytes", "100\n");
        put("cpuacct.usage", "2000000\n");
        put("memory.stat", "total_inactive_file 500\n");
        let (memory, cpuacct) = (Some(dir.path().to_owned()), Some(dir.path().to_owned()));
        let group = Group { unified: None, memory, cpuacct };
        assert_eq!((group.memory(), group.cpu()), (Some(0), Some(2000)));
    }

    #[test]
    fn only_the_descent_counts_and_each_once() {
        let one = |parent| Account { parent, resident_pages: 1, ticks: 10 };
        let all = [(1, one(0)), (2, one(1)), (3, one(2)), (4, one(3)), (5, one(1)), (6, one(7)), (7, one(6))];
        let all: BTreeMap<_, _> = all.into();
        let sum = |root| descent(root, &all).map(|found| found.resident_pages).sum::<u64>();
        assert_eq!((sum(2), sum(5), sum(1), sum(6), sum(9)), (3, 1, 5, 2, 0));
    }
}
