//! Whether the kernel killed something of a container for want of memory, by its memory group.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Longest file that is read, in bytes.
const MAX_BYTES: usize = 4096;

/// Counts the kernel's kills in a memory group.
pub struct OomKills(File);

impl OomKills {
    /// Of the first of these groups that counts them. Blocks on a look-up.
    pub fn open(groups: &[PathBuf]) -> Option<Self> {
        let file = |group: &PathBuf| {
            ["memory.events", "memory.oom_control"].iter().find_map(|name| File::open(group.join(name)).ok())
        };
        groups.iter().find_map(file).map(Self)
    }

    /// How many there have been; a read of a file of the kernel's.
    pub fn count(&self) -> u64 {
        let mut buffer = [0; MAX_BYTES];
        let length = self.0.read_at(&mut buffer, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&buffer[..length]);
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        count.unwrap_or(0)
    }
}

/// The memory group of a process, where it is mounted here. Blocks on small files.
pub fn groups_of(pid: u32) -> Vec<PathBuf> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    memory_group(&read(&format!("/proc/{pid}/cgroup")), &read("/proc/self/mountinfo")).into_iter().collect()
}

/// The directory of the memory group that `cgroup` names, by the mounts of `mountinfo`.
fn memory_group(cgroup: &str, mountinfo: &str) -> Option<PathBuf> {
    let path_in = |wanted: &dyn Fn(&str) -> bool| {
        cgroup.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            wanted(controllers).then(|| path.to_owned())
        })
    };
    let v1 = path_in(&|controllers| controllers.split(',').any(|name| name == "memory"));
    let (path, kind) = match v1 {
        Some(path) => (path, "cgroup"),
        None => (path_in(&str::is_empty)?, "cgroup2"),
    };
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut words = before.split(' ').skip(3);
        let (root, point) = (words.next()?, words.next()?);
        let mut words = after.split(' ');
        let (found, options) = (words.next()?, words.nth(1)?);
        if found != kind || (kind == "cgroup" && !options.split(',').any(|option| option == "memory")) {
            return None;
        }
        let below = Path::new(&path).strip_prefix(root).ok()?;
        Some(Path::new(point).join(below))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_group_is_found_in_both_versions() {
        let mounts = "25 2 0:1 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      26 2 0:2 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                      27 2 0:3 /ours /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let v1 = "7:pids:/docker/x\n5:memory:/docker/abc\n0::/ours/other\n";
        assert_eq!(memory_group(v1, mounts), Some("/sys/fs/cgroup/memory/docker/abc".into()));
        let v2 = "0::/ours/system.slice/docker-abc.scope\n";
        assert_eq!(
            memory_group(v2, mounts),
            Some("/sys/fs/cgroup/unified/system.slice/docker-abc.scope".into())
        );
        assert_eq!(memory_group("", mounts), None);
        assert_eq!(memory_group("0::/elsewhere\n", mounts), None);
    }

    #[test]
    fn kills_are_counted_in_both_versions() {
        let temp = tempfile::tempdir().unwrap();
        let group = temp.path().to_owned();
        assert!(OomKills::open(std::slice::from_ref(&group)).is_none());
        std::fs::write(group.join("memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
            .unwrap();
        assert_eq!(OomKills::open(std::slice::from_ref(&group)).unwrap().count(), 3);
        std::fs::write(group.join("memory.events"), "low 0\noom 2\noom_kill 2\n").unwrap();
        assert_eq!(OomKills::open(&[group]).unwrap().count(), 2);
    }
}
