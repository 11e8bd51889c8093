//! What is left in the engines, and of them, after tests: the difference between two looks at the whole machine. Only a
//! machine on which nobody else works can be looked at like this.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::ENGINES;
use crate::command::kept;

/// How long what ends by itself may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What each engine is asked.
const QUESTIONS: [(&str, &[&str]); 3] = [
    ("container", &["ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Names}}"]),
    ("image", &["images", "--all", "--quiet", "--no-trunc"]),
    ("volume", &["volume", "ls", "--quiet"]),
];

/// Everything of containers on this machine, each with a word for what it is.
pub struct Look(BTreeSet<String>);

impl Look {
    /// Looks now.
    pub fn take() -> Result<Self, String> {
        let mut all = BTreeSet::new();
        for engine in ENGINES {
            all.extend(inside(engine, &|| Command::new(engine))?);
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|e| e.to_string())?;
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        // Podman mounts its own store over itself and leaves it so.
        all.extend(
            points
                .filter(|at| at.ends_with("/merged") || at.contains("moltis"))
                .map(|at| format!("mount {at}")),
        );
        let mut groups = Vec::new();
        group(Path::new("/sys/fs/cgroup"), 0, &mut groups);
        all.extend(groups);
        for entry in fs::read_dir("/proc").map_err(|e| e.to_string())?.flatten() {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let program = line.split(' ').next().unwrap_or_default();
            if program == "/.moltis/guest"
                || ["conmon", "containerd-shim-runc-v2"].iter().any(|p| program.ends_with(p))
            {
                all.insert(format!("process {} {program}", entry.file_name().to_string_lossy()));
            }
        }
        Ok(Self(all))
    }

    /// Fails when there is more than before, and goes on to be once what ends by itself has had its time.
    pub fn same_again(&self) -> Result<(), String> {
        until_same(&self.0, || Ok(Self::take()?.0))
    }
}

/// Everything that one engine has; `name` is what it is called here.
pub fn inside(name: &str, engine: &dyn Fn() -> Command) -> Result<BTreeSet<String>, String> {
    let mut all = BTreeSet::new();
    for (what, question) in QUESTIONS {
        let ended = kept(engine().args(question), None, Duration::from_secs(60))?;
        if !ended.good() {
            return Err(format!("{name} {}: {}", question.join(" "), ended.all()));
        }
        all.extend(ended.text().lines().map(|line| format!("{name} {what} {line}")));
    }
    Ok(all)
}

/// Looks until there is no more than before, and fails when what ends by itself has had its time.
pub fn until_same(
    before: &BTreeSet<String>,
    look: impl Fn() -> Result<BTreeSet<String>, String>,
) -> Result<(), String> {
    let end = Instant::now() + PATIENCE;
    loop {
        let now = look()?;
        let more: Vec<&str> = now.difference(before).map(String::as_str).collect();
        if more.is_empty() {
            return Ok(());
        }
        if Instant::now() >= end {
            return Err(more.join("\n"));
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Groups of containers below one, by the names that engines give them. Whole hierarchies are some levels deep.
fn group(folder: &Path, depth: u32, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let of_docker = folder.ends_with("docker") && name.len() == 64;
        if of_docker
            || name.starts_with("libpod-")
            || name.starts_with("docker-")
            || name.starts_with("moltis-")
        {
            found.push(format!("cgroup {}", entry.path().display()));
        } else if depth < 5 {
            group(&entry.path(), depth + 1, found);
        }
    }
}
