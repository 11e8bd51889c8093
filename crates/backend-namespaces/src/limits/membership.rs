//! Where this process stands in each cgroup hierarchy, as directories that can be opened.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Controller;

/// The caller's own group in each hierarchy that is mounted where it can be seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    v1: BTreeMap<String, PathBuf>,
    v2: Option<V2>,
}

/// The caller's group in the unified hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct V2 {
    /// Where the hierarchy is mounted.
    pub mount: PathBuf,
    /// Directory of the caller's own group, at or below `mount`.
    pub own: PathBuf,
}

impl Membership {
    /// Reads it from `/proc`. Nothing is found where `/proc` or the hierarchies are not mounted.
    pub fn of_self() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Self::parse(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
    }

    /// From the text of `/proc/self/cgroup` and `/proc/self/mountinfo` (formats: `cgroups(7)`, `proc(5)`).
    pub fn parse(cgroup: &str, mountinfo: &str) -> Self {
        let mut found = Self::default();
        let mounts: Vec<Mount> = mountinfo.lines().filter_map(Mount::parse).collect();
        for line in cgroup.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            if controllers.is_empty() {
                let mount = mounts.iter().filter(|m| m.fstype == "cgroup2");
                let at = |m: &Mount| Some(V2 { mount: m.point.clone(), own: m.directory(path)? });
                found.v2 = mount.filter_map(at).next_back();
                continue;
            }
            for controller in controllers.split(',') {
                let mount = mounts.iter().filter(|m| {
                    m.fstype == "cgroup" && m.options.split(',').any(|option| option == controller)
                });
                // The mount made last covers the others.
                if let Some(own) = mount.filter_map(|m| m.directory(path)).next_back() {
                    found.v1.insert(controller.to_owned(), own);
                }
            }
        }
        found
    }

    /// The caller's group in the version 1 hierarchy of a controller.
    pub fn v1(&self, controller: Controller) -> Option<&Path> {
        self.v1.get(controller.name()).map(PathBuf::as_path)
    }

    /// The caller's group in the unified hierarchy.
    pub fn v2(&self) -> Option<&V2> {
        self.v2.as_ref()
    }
}

/// A cgroup mount.
struct Mount {
    /// The group that shows at the mount point.
    root: String,
    point: PathBuf,
    fstype: String,
    options: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ').skip(3);
        let (root, point) = (front.next()?, front.next()?);
        let mut back = back.split(' ');
        let (fstype, _, options) = (back.next()?, back.next()?, back.next()?);
        fstype.starts_with("cgroup").then(|| Self {
            root: unescape(root),
            point: unescape(point).into(),
            fstype: fstype.to_owned(),
            options: options.to_owned(),
        })
    }

    /// Directory of the group `path`; `None` if this mount does not show it.
    fn directory(&self, path: &str) -> Option<PathBuf> {
        // A group outside the cgroup namespace reads `/../…`: there is no way to it through this mount.
        if path.split('/').any(|part| part == "..") {
            return None;
        }
        let below = Path::new(path).strip_prefix(&self.root).ok()?;
        // Joining an empty path would add a slash.
        Some(if below.as_os_str().is_empty() { self.point.clone() } else { self.point.join(below) })
    }
}

/// Undoes the octal escapes of mountinfo (space, tab, newline, backslash).
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v1(controller: &str, own: &str) -> (String, PathBuf) {
        (controller.to_owned(), own.into())
    }

    #[test]
    fn hybrid_host() {
        let cgroup = "4:memory:/a/b\n2:cpu,cpuacct:/\n1:name=systemd:/x\n0::/\n";
        let mounts = "33 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
             36 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
             23 1 0:5 / /proc rw - proc proc rw\n";
        let expected = Membership {
            v1: [
                v1("cpu", "/sys/fs/cgroup/cpu,cpuacct"),
                v1("cpuacct", "/sys/fs/cgroup/cpu,cpuacct"),
                v1("memory", "/sys/fs/cgroup/memory/a/b"),
            ]
            .into(),
            v2: Some(V2 { mount: "/sys/fs/cgroup/unified".into(), own: "/sys/fs/cgroup/unified".into() }),
        };
        assert_eq!(Membership::parse(cgroup, mounts), expected);
    }

    #[test]
    fn container_without_a_cgroup_namespace_shows_its_own_group_at_the_mount_point() {
        let mounts = "9 8 0:3 /docker/c1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let found = Membership::parse("4:memory:/docker/c1\n", mounts);
        assert_eq!(found.v1(Controller::Memory), Some(Path::new("/sys/fs/cgroup/memory")));
        let inner = Membership::parse("4:memory:/docker/c1/x\n", mounts);
        assert_eq!(inner.v1(Controller::Memory), Some(Path::new("/sys/fs/cgroup/memory/x")));
    }

    #[test]
    fn a_group_that_no_mount_shows_is_not_guessed() {
        let mounts = "9 8 0:3 /docker/c1 /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        for outside in ["/", "/docker/c10", "/docker/c1/../c2", "/../other"] {
            assert_eq!(
                Membership::parse(&format!("0::{outside}\n"), mounts),
                Membership::default(),
                "{outside}"
            );
        }
    }

    #[test]
    fn unified_host_and_odd_names() {
        let mounts = "9 8 0:3 / /sys/fs/my\\040cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = Membership::parse("0::/user.slice/a b:c\n", mounts);
        assert_eq!(found.v2().unwrap().own, Path::new("/sys/fs/my cgroup/user.slice/a b:c"));
    }
}
