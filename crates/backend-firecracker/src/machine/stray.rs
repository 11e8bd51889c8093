//! Processes that nothing is written down of: whoever started one died before it could write its number.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use moltis_host::process::Process;

/// The processes whose working directory this is, held by handles. Nothing but a machine's process is ever started there.
/// Blocks on `/proc`.
pub fn strays(directory: &Path) -> Vec<Process> {
    let Ok(ours) = fs::symlink_metadata(directory) else { return Vec::new() };
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let works_there = |pid: u32| {
        let there = fs::metadata(format!("/proc/{pid}/cwd"));
        there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()))
    };
    let found = numbers.filter(|pid| *pid != std::process::id() && works_there(*pid)).filter_map(|pid| {
        let process = Process::open(pid).ok()?;
        // Looked at again: the number may have become another's before there was a handle.
        works_there(pid).then_some(process)
    });
    found.collect()
}

/// The same for every root that the jailer makes below this folder. Blocks on `/proc`.
pub fn strays_below(jail: &Path) -> Vec<Process> {
    let inside = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    // `<jail>/<program>/<name>/root`
    let machines = inside(jail).into_iter().flat_map(|program| inside(&program));
    machines.flat_map(|machine| strays(&machine.join("root"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_by_where_it_works() {
        let temp = tempfile::tempdir().unwrap();
        assert!(strays(temp.path()).is_empty());
        let mut child =
            std::process::Command::new("sleep").arg("1000").current_dir(temp.path()).spawn().unwrap();
        let found = strays(temp.path());
        assert_eq!(found.iter().map(Process::pid).collect::<Vec<_>>(), [child.id()]);
        found[0].kill();
        assert!(!child.wait().unwrap().success());
        assert!(strays(temp.path()).is_empty());
        assert!(strays(&temp.path().join("none")).is_empty());
    }
}
