//! What the real `bash` of this machine makes of a script: in a folder of its own, with an environment of its own.

use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::world::Ran;

/// Runs it with these arguments. Everything that it started is ended with it.
pub fn bash(
    arguments: &[String],
    input: &[u8],
    env: &[(String, String)],
    cwd: &Path,
    limit: Duration,
) -> Option<Ran> {
    let mut child = Command::new("bash")
        .args(arguments)
        .env_clear()
        .envs(env.iter().map(|(name, value)| (name, value)))
        .current_dir(cwd)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .ok()?;
    let mut stdin = child.stdin.take()?;
    let input = input.to_vec();
    std::thread::spawn(move || drop(stdin.write_all(&input)));
    let (out, err) = (reading(child.stdout.take()?), reading(child.stderr.take()?));
    let end = Instant::now() + limit;
    let (status, late) = loop {
        match child.try_wait() {
            Ok(Some(status)) => break (Some(status), false),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            _ => break (None, true),
        }
    };
    if let Some(group) = rustix::process::Pid::from_raw(i32::try_from(child.id()).ok()?) {
        // The group is the child's own, and it lasts until the child has been waited for or its last member is gone.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    if late {
        let _ = child.wait();
    }
    let code = status.map_or(137, |s| s.code().or_else(|| s.signal().map(|s| 128 + s)).unwrap_or(-1));
    let (stdout, stderr) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
    Some(Ran { code, late, stdout, stderr, notes: Vec::new() })
}

fn reading(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}
