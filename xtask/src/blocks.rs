//! The shell blocks of README.md and docs, run as a reader would: what stands there has to be true.
//!
//! A block that begins with ```` ```sh ```` is run. One that cannot be, because it starts something that does not end or
//! needs another machine, begins with ```` ```sh no-run ```` and is counted nowhere.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::{Scratch, find, kept};
use crate::tally::Tally;
use crate::{Outcome, cargo, clients};

/// One block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// File and line, as `README.md:19`.
    pub place: String,
    /// The lines.
    pub script: String,
}

/// The blocks of a document.
pub fn extract(file: &str, document: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String, bool)> = None;
    for (number, line) in document.lines().enumerate() {
        match &mut open {
            Some((start, script, wanted)) => {
                if line.trim() == "```" {
                    if *wanted {
                        blocks
                            .push(Block { place: format!("{file}:{start}"), script: std::mem::take(script) });
                    }
                    open = None;
                } else {
                    script.push_str(line);
                    script.push('\n');
                }
            }
            None => {
                if let Some(word) = line.trim_start().strip_prefix("```") {
                    open = Some((number + 1, String::new(), word.trim() == "sh"));
                }
            }
        }
    }
    blocks
}

fn documents(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found =
        vec![folder.join("README.md"), folder.join("CONTRIBUTING.md"), folder.join("ARCHITECTURE.md")];
    let mut folders = vec![folder.join("docs")];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                found.push(path);
            }
        }
    }
    found.retain(|path| path.is_file());
    found.sort();
    Ok(found)
}

/// Runs the blocks and counts them.
pub fn tally(tally: &mut Tally, moltis: &Path) -> Result<(), String> {
    let root = cargo::root();
    let mut count = 0;
    for file in documents(&root)? {
        let name = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
        let document = std::fs::read_to_string(&file).map_err(|e| format!("{name}: {e}"))?;
        for block in extract(&name, &document) {
            count += 1;
            // This very run.
            if block.script.trim() == "cargo xtask test" {
                continue;
            }
            tally.check(&format!("block {}", block.place), run_block(&block, moltis));
        }
    }
    if count == 0 {
        tally.fail("README.md and docs hold no block to run");
    }
    clients::tally(tally, moltis)
}

/// A reader's own shell: a home with nothing in it, a project folder, `moltis` on the path.
fn run_block(block: &Block, moltis: &Path) -> Result<(), String> {
    let scratch = Scratch::new("block")?;
    let (home, project, bin) = (scratch.0.join("home"), scratch.0.join("project"), scratch.0.join("bin"));
    for folder in [&home, &project, &bin] {
        std::fs::create_dir(folder).map_err(|e| e.to_string())?;
    }
    std::fs::copy(cargo::root().join("README.md"), project.join("README.md")).map_err(|e| e.to_string())?;
    std::os::unix::fs::symlink(moltis, bin.join("moltis")).map_err(|e| e.to_string())?;
    let mut path = bin.into_os_string();
    if let Some(old) = std::env::var_os("PATH") {
        path.push(":");
        path.push(old);
    }
    let builds = block.script.contains("cargo ");
    let folder = if builds { cargo::root() } else { project };
    let ended = kept(&mut reader(&block.script, &folder, &home, &path)?, None, Duration::from_secs(20 * 60))?;
    // A reader's sessions stay; this one's are over.
    let tidied = kept(&mut reader(TIDY, &folder, &home, &path)?, None, Duration::from_secs(60))?;
    match [ended, tidied].into_iter().find(|ended| !ended.good()) {
        None => Ok(()),
        Some(bad) => Err(format!("{}ended with {}\n{}", block.script, bad.code, bad.all())),
    }
}

/// Ends every sandbox of a reader.
const TIDY: &str = r#"
for id in $(moltis sandbox ps --json | tr ',{' '\n\n' | sed -n 's/.*"id":"\([0-9a-f]\{40\}\)".*/\1/p'); do
    moltis sandbox rm "$id"
done
"#;

/// A shell with nothing of ours but what cargo needs.
fn reader(script: &str, folder: &Path, home: &Path, path: &std::ffi::OsStr) -> Result<Command, String> {
    let mut command = Command::new(find("sh").ok_or("no sh")?);
    command.args(["-euc", script]).current_dir(folder);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("MOLTIS_") || text.starts_with("XDG_") || text.starts_with("CARGO_PKG_") {
            command.env_remove(&name);
        }
    }
    // Cargo and rustup find their own folders by the caller's home.
    if let Some(own) = std::env::var_os("HOME").map(PathBuf::from) {
        for (name, folder) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
            if std::env::var_os(name).is_none() {
                command.env(name, own.join(folder));
            }
        }
    }
    command.env("HOME", home).env("PATH", path);
    // A reader without container engines: whatever runs on this machine, the blocks are about the built-in sandbox.
    command.env("DOCKER_HOST", "unix:///nonexistent/docker.sock");
    command.env("CONTAINER_HOST", "unix:///nonexistent/podman.sock");
    Ok(command)
}

/// `cargo xtask blocks`.
pub fn run(arguments: &[&str]) -> Outcome {
    if let Some(other) = arguments.first() {
        return Err(format!("unknown argument {other:?}"));
    }
    let mut counted = Tally::default();
    tally(&mut counted, &cargo::moltis(false)?)?;
    Ok(counted.close(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shell_blocks_that_may_run_are_taken() {
        let text =
            "a\n```sh\necho 1\n\n  echo 2\n```\n```text\nno\n```\n```sh no-run\nno\n```\n```sh\nx\n```\n";
        let block = |place: &str, script: &str| Block { place: place.into(), script: script.into() };
        assert_eq!(extract("f", text), [block("f:2", "echo 1\n\n  echo 2\n"), block("f:13", "x\n")]);
    }
}
