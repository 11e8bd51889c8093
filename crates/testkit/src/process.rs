//! Looking at processes of the host.

use std::fs::File;
use std::path::PathBuf;

/// Every process id in `/proc`.
pub fn pids() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

/// The namespaces that a process is in, as `pid:[4026531836]`; empty when it may not be looked at.
pub fn namespaces(pid: u32) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/ns")) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|e| Some(std::fs::read_link(e.path()).ok()?.to_string_lossy().into_owned()))
        .collect()
}

/// Open handles on the namespaces of a process that are not this process's own; empty when it may not be looked at.
pub fn hold_namespaces(pid: u32) -> Vec<File> {
    let own = namespaces(std::process::id());
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/ns")) else { return Vec::new() };
    entries
        .flatten()
        .filter(|e| {
            std::fs::read_link(e.path()).is_ok_and(|ns| !own.contains(&ns.to_string_lossy().into_owned()))
        })
        .filter_map(|e| File::open(e.path()).ok())
        .collect()
}

/// Command line of a process with spaces between the arguments.
pub fn command_line(pid: u32) -> String {
    std::fs::read(format!("/proc/{pid}/cmdline"))
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " ").trim_end().to_owned())
        .unwrap_or_default()
}

/// Cgroup folders of a process, as far as they can be found below `/sys/fs/cgroup`.
pub fn cgroups(pid: u32) -> Vec<PathBuf> {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/cgroup")) else { return Vec::new() };
    text.lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let path = path.trim_start_matches('/');
            // The root group is nobody's own; a process that is just ending shows it too.
            if path.is_empty() {
                return None;
            }
            let bases: &[String] = &if controllers.is_empty() {
                vec![String::new(), "unified".to_owned()]
            } else {
                let mut names = vec![controllers.trim_start_matches("name=").to_owned()];
                names.extend(controllers.split(',').map(str::to_owned));
                names
            };
            bases
                .iter()
                .map(|base| PathBuf::from("/sys/fs/cgroup").join(base).join(path))
                .find(|folder| folder.join("cgroup.procs").is_file())
        })
        .collect()
}

/// Proportional memory of a process in bytes (`Pss` of `smaps_rollup`, else resident pages).
pub fn memory(pid: u32) -> Option<u64> {
    let field = |file: &str, name: &str| -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
        let line = text.lines().find(|l| l.starts_with(name))?;
        Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
    };
    field("smaps_rollup", "Pss:").or_else(|| field("status", "VmRSS:"))
}

/// When a process began, in the kernel's ticks.
pub fn began(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// Parent of a process.
pub fn parent(pid: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|l| l.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Every process that a process descends from.
pub fn all_above(pid: u32) -> Vec<u32> {
    std::iter::successors(parent(pid), |pid| parent(*pid)).take_while(|pid| *pid > 0).collect()
}

/// The first process of the PID namespace that a process is in, if that is not this one's own: the nearest above it that
/// has the number 1 inside.
pub fn first_above(pid: u32) -> Option<u32> {
    let mut at = pid;
    loop {
        let text = std::fs::read_to_string(format!("/proc/{at}/status")).ok()?;
        let numbers = text.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        let numbers: Vec<&str> = numbers.split_whitespace().collect();
        if numbers.len() < 2 {
            return None;
        }
        if numbers.last() == Some(&"1") {
            return Some(at);
        }
        at = parent(at)?;
    }
}

/// Processes that have ended and were not waited for.
pub fn is_zombie(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status"))
        .is_ok_and(|text| text.lines().any(|line| line.starts_with("State:\tZ")))
}

/// The children of a process.
pub fn children(of: u32) -> Vec<u32> {
    pids().into_iter().filter(|pid| parent(*pid) == Some(of)).collect()
}

/// A process and everything that descends from it.
pub fn descent(root: u32) -> Vec<u32> {
    let all: Vec<(u32, u32)> = pids().into_iter().filter_map(|p| Some((p, parent(p)?))).collect();
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        next += 1;
        found.extend(all.iter().filter(|(_, p)| *p == parent).map(|(c, _)| *c));
    }
    found
}
