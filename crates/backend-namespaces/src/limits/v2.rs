//! cgroup v2 by delegation: a group beneath the caller's own, where the caller may make one and the controllers can
//! be handed down without processes in an inner group.

use std::path::{Path, PathBuf};

use moltis_host::process::comes_of;
use moltis_sandbox::Result;

use super::group::{Group, write};
use super::membership::Membership;
use super::v1::{swap_is_on, writable};
use super::{Controller, PARENT, Values, failed};

/// Leaf into which this process steps aside where it is alone in a delegated group.
const ASIDE: &str = "moltis-host";

/// Where groups can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The group that hands its controllers down.
    base: PathBuf,
    /// Controllers that `base` can hand down.
    controllers: Vec<String>,
    /// Whether this process is in `base` itself and must leave it first.
    step_aside: bool,
}

impl Place {
    /// # Errors
    /// Why nothing can be limited by version 2, and what would change that.
    pub fn find(membership: &Membership) -> Result<Self, String> {
        let v2 = membership.v2().ok_or("no cgroup v2 hierarchy is mounted")?;
        Self::at(&v2.mount, &v2.own, std::process::id())
    }

    /// Judges the group `own` of process `pid`.
    fn at(mount: &Path, own: &Path, pid: u32) -> Result<Self, String> {
        let shown = Path::new("/").join(own.strip_prefix(mount).unwrap_or(own));
        let controllers = |base: &Path| -> Vec<String> {
            let text = std::fs::read_to_string(base.join("cgroup.controllers")).unwrap_or_default();
            text.split_whitespace().map(str::to_owned).collect()
        };
        let place = |base: &Path, step_aside| {
            let controllers = controllers(base);
            if !Controller::ALL.iter().any(|c| controllers.iter().any(|name| name == c.name())) {
                return Err("cgroup v2 has none of the controllers memory, cpu and pids here".to_owned());
            }
            Ok(Self { base: base.to_owned(), controllers, step_aside })
        };
        // Only the true root of the hierarchy has no events. It is the whole machine's, whoever may write to it: what is
        // handed down there changes how every service is accounted.
        if is_true_root(own) {
            return Err(
                "the caller is in the root control group, which is not delegated to anybody: log in through \
                        systemd, or run Moltis as a service with Delegate=yes"
                    .to_owned(),
            );
        }
        // A unit with DelegateSubgroup=, or ourselves after stepping aside: the delegated group is the one above.
        if let Some(above) = own.parent().filter(|above| above.starts_with(mount)) {
            let delegated = is_delegated(above) || own.file_name().is_some_and(|name| name == ASIDE);
            if delegated && !is_true_root(above) && may_manage(above) && processes(above).is_empty() {
                return place(above, false);
            }
        }
        if !may_manage(own) {
            return Err(format!(
                "the control group {} is not delegated to this user: log in through systemd so that a user manager \
                 runs (`loginctl enable-linger`), or run Moltis by `systemd-run --user --scope -p Delegate=yes`",
                shown.display()
            ));
        }
        // Controllers cannot be handed down from a group that holds processes. We may move ourselves and what we have
        // started, and in a service's own group what was left by those: an engine's program leaves a process that holds
        // its namespaces. Nobody else.
        let service = own.extension().is_some_and(|end| end == "service") && is_delegated(own);
        if !service && !is_alone(own, pid) {
            return Err(format!(
                "other processes share the control group {}: run Moltis as a service of its own with Delegate=yes",
                shown.display()
            ));
        }
        place(own, true)
    }

    /// # Errors
    /// Why this controller cannot be used.
    pub fn keeps(&self, controller: Controller) -> Result<(), String> {
        if !self.controllers.iter().any(|name| name == controller.name()) {
            return Err(format!(
                "the `{name}` controller is not delegated here: set `Delegate=cpu memory pids` for user@.service \
                 (systemctl edit user@.service), or for the service that runs Moltis",
                name = controller.name()
            ));
        }
        Ok(())
    }

    /// Where our groups are.
    pub fn parent(&self) -> PathBuf {
        self.base.join(PARENT)
    }

    /// # Errors
    /// `Unavailable`; nothing is left behind.
    pub fn create(&self, name: &str, values: &Values) -> Result<Group> {
        if self.step_aside {
            make(&self.base.join(ASIDE))?;
            step_aside(&self.base)?;
        }
        make(&self.parent())?;
        for group in [&self.base, &self.parent()] {
            hand_down(group, values)?;
        }
        let mut writes = Vec::new();
        if let Some(bytes) = values.memory {
            writes.push(("memory.max", bytes.to_string()));
            // No swap on top: version 2 counts it apart. The file is absent where the kernel does not count it.
            writes.push(("memory.swap.max", "0".to_owned()));
            // One victim, not the whole sandbox: the agent lives on and says what happened.
            writes.push(("memory.oom.group", "0".to_owned()));
        }
        if let Some(cpus) = values.cpus {
            let (quota, period) = Values::cpu_quota(cpus)?;
            writes.push(("cpu.max", format!("{quota} {period}")));
        }
        if let Some(pids) = values.pids {
            writes.push(("pids.max", pids.to_string()));
        }
        let group = Group::make(vec![self.parent().join(name)])?;
        for (file, value) in writes {
            let optional = file == "memory.oom.group" || (file == "memory.swap.max" && !swap_is_on());
            match group.set(0, file, &value) {
                Err(error) if !(optional && error.kind() == std::io::ErrorKind::NotFound) => {
                    let _ = group.remove();
                    return Err(failed(format_args!("{file} = {value}"), error));
                }
                _ => {}
            }
        }
        Ok(group)
    }
}

/// Moves this process, and what else is in its group, into the leaf beside the sandboxes' groups.
fn step_aside(base: &Path) -> Result<()> {
    let procs = base.join(ASIDE).join("cgroup.procs");
    write(&procs, "0").map_err(|error| failed(procs.display(), error))?;
    // What is being forked meanwhile comes to light in the next round.
    for _ in 0..100 {
        let left = processes(base);
        if left.is_empty() {
            break;
        }
        for pid in left {
            match write(&procs, &pid.to_string()) {
                // It may have ended.
                Err(error) if error.raw_os_error() != Some(rustix::io::Errno::SRCH.raw_os_error()) => {
                    return Err(failed(format_args!("process {pid} in {}", base.display()), error));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Lets the groups beneath use the controllers that `values` needs.
fn hand_down(group: &Path, values: &Values) -> Result<()> {
    let control = group.join("cgroup.subtree_control");
    let enabled = std::fs::read_to_string(&control).unwrap_or_default();
    for (needed, controller) in [
        (values.memory.is_some(), Controller::Memory),
        (values.cpus.is_some(), Controller::Cpu),
        (values.pids.is_some(), Controller::Pids),
    ] {
        let name = controller.name();
        if needed && !enabled.split_whitespace().any(|word| word == name) {
            write(&control, &format!("+{name}"))
                .map_err(|error| failed(format_args!("+{name} in {}", control.display()), error))?;
        }
    }
    Ok(())
}

fn make(directory: &Path) -> Result<()> {
    match std::fs::create_dir(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(failed(directory.display(), error))
        }
        _ => Ok(()),
    }
}

/// Whether a group is the root of the hierarchy itself, and not the root of a control group namespace.
fn is_true_root(group: &Path) -> bool {
    !group.join("cgroup.events").exists()
}

/// Delegation means the directory and these two files (`cgroups(7)`, "Cgroup delegation containment").
fn may_manage(group: &Path) -> bool {
    writable(group)
        && writable(&group.join("cgroup.procs"))
        && writable(&group.join("cgroup.subtree_control"))
}

/// systemd marks what it hands over (`trusted.` for root's eyes, `user.` since version 251).
fn is_delegated(group: &Path) -> bool {
    ["user.delegate", "trusted.delegate"].iter().any(|name| {
        let mut value = [0_u8; 8];
        rustix::fs::getxattr(group, *name, &mut value).is_ok_and(|length| value[..length] == *b"1")
    })
}

/// Whether nobody but a process and what it has started is in its group.
fn is_alone(group: &Path, pid: u32) -> bool {
    let strangers =
        || processes(group).into_iter().filter(|each| !comes_of(*each, pid)).collect::<Vec<u32>>();
    let first = strangers();
    // One that ended while it was looked at is none.
    let stay = !first.is_empty() && strangers().iter().any(|each| first.contains(each));
    !stay && processes(group).contains(&pid)
}

fn processes(group: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with the files of a control group.
    fn group(path: &Path, controllers: &str, pids: &str, root: bool) {
        std::fs::create_dir_all(path).unwrap();
        std::fs::write(path.join("cgroup.controllers"), controllers).unwrap();
        std::fs::write(path.join("cgroup.subtree_control"), "").unwrap();
        std::fs::write(path.join("cgroup.procs"), pids).unwrap();
        if !root {
            std::fs::write(path.join("cgroup.events"), "").unwrap();
        }
    }

    fn place(base: &Path, controllers: &[&str], step_aside: bool) -> Place {
        let controllers = controllers.iter().map(|&name| name.to_owned()).collect();
        Place { base: base.to_owned(), controllers, step_aside }
    }

    #[test]
    fn the_true_root_is_nobodys() {
        let mount = tempfile::tempdir().unwrap();
        group(mount.path(), "cpu memory pids", "", true);
        let reason = Place::at(mount.path(), mount.path(), 2).unwrap_err();
        assert!(reason.contains("root control group") && reason.contains("Delegate=yes"), "{reason}");
        // Nor is it when a group of our name is right beneath it.
        let aside = mount.path().join(ASIDE);
        group(&aside, "cpu memory pids", "2\n", false);
        let found = Place::at(mount.path(), &aside, 2);
        assert_eq!(found, Ok(place(&aside, &["cpu", "memory", "pids"], true)));
    }

    #[test]
    fn alone_in_a_delegated_group_we_step_aside() {
        let mount = tempfile::tempdir().unwrap();
        let own = mount.path().join("svc");
        group(mount.path(), "memory", "1\n", true);
        group(&own, "memory pids", "7\n", false);
        assert_eq!(Place::at(mount.path(), &own, 7), Ok(place(&own, &["memory", "pids"], true)));
        let aside = own.join(ASIDE);
        group(&aside, "", "7\n", false);
        std::fs::write(own.join("cgroup.procs"), "").unwrap();
        assert_eq!(Place::at(mount.path(), &aside, 7), Ok(place(&own, &["memory", "pids"], false)));
    }

    #[test]
    fn what_we_have_started_is_ours_to_move() {
        let mount = tempfile::tempdir().unwrap();
        let own = mount.path().join("svc");
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let us = std::process::id();
        group(&own, "memory pids", &format!("{us}\n{}\n", child.id()), false);
        let found = (Place::at(mount.path(), &own, us), Place::at(mount.path(), &own, child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.0, Ok(place(&own, &["memory", "pids"], true)));
        assert!(found.1.is_err(), "we did not come of our child");
    }

    #[test]
    fn nobody_else_is_moved() {
        let mount = tempfile::tempdir().unwrap();
        let own = mount.path().join("session-1.scope");
        group(&own, "memory pids", "6\n7\n", false);
        let reason = Place::at(mount.path(), &own, 7).unwrap_err();
        assert!(reason.contains("other processes share the control group /session-1.scope"), "{reason}");
    }

    #[test]
    fn a_hierarchy_without_the_controllers_is_of_no_use() {
        let mount = tempfile::tempdir().unwrap();
        group(mount.path(), "hugetlb", "1\n", false);
        let reason = Place::at(mount.path(), mount.path(), 1).unwrap_err();
        assert!(reason.contains("none of the controllers"), "{reason}");
    }

    #[test]
    fn what_is_missing_is_named() {
        let reason = place(Path::new("/x"), &["memory", "pids"], false).keeps(Controller::Cpu).unwrap_err();
        assert!(reason.contains("`cpu`") && reason.contains("Delegate=cpu memory pids"), "{reason}");
    }
}
