//! Plain programs of the host: the baseline of an attack, where nothing defends.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::{Fail, fail};

/// How a plain program ended.
#[derive(Clone, Debug)]
pub struct Plain {
    /// Exit code; `None` when it was killed.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// The system's python3, which is also the one that a sandbox shows.
pub const PYTHON: &str = "/usr/bin/python3";

/// Runs a program of the host in a process group of its own, which is killed when the time is up.
pub async fn plain(program: &str, arguments: &[&str], stdin: &str, within: Duration) -> Result<Plain, Fail> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| Fail::new(format!("{program}: {e}")))?;
    let group = child.id().and_then(|id| rustix::process::Pid::from_raw(id.try_into().ok()?));
    if let Some(mut input) = child.stdin.take() {
        // A program that does not read its input has closed it by now.
        let _ = input.write_all(stdin.as_bytes()).await;
    }
    let over = tokio::time::timeout(within, child.wait_with_output()).await;
    if let Some(group) = group {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    match over {
        Ok(output) => {
            let output = output?;
            Ok(Plain {
                code: output.status.code(),
                stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
                stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            })
        }
        Err(_) => fail!("{program} {arguments:?} took longer than {within:?}"),
    }
}
