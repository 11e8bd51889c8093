//! The baselines: plain processes, bubblewrap, a pipe.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A spawn of `sh -c true`, waited for.
pub fn spawn() -> Duration {
    let started = Instant::now();
    let status = Command::new("sh").args(["-c", "true"]).stdin(Stdio::null()).status().unwrap();
    assert!(status.success());
    started.elapsed()
}

/// Whether bubblewrap is there.
pub fn has_bwrap() -> bool {
    Command::new("bwrap").arg("--version").stdout(Stdio::null()).status().is_ok_and(|s| s.success())
}

/// A bubblewrap sandbox that runs `sh -c true`, waited for.
pub fn bwrap() -> Duration {
    let started = Instant::now();
    let status = Command::new("bwrap")
        .args(["--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"])
        .args(["--die-with-parent", "sh", "-c", "true"])
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    started.elapsed()
}

/// Bytes a second through a plain pipe.
pub fn pipe(bytes: u64) -> f64 {
    let mut child = Command::new("head")
        .args(["-c", &bytes.to_string(), "/dev/zero"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let started = Instant::now();
    let mut buffer = vec![0; 65_536];
    let mut read = 0;
    loop {
        match out.read(&mut buffer).unwrap() {
            0 => break,
            n => read += n as u64,
        }
    }
    assert_eq!(read, bytes);
    assert!(child.wait().unwrap().success());
    read as f64 / started.elapsed().as_secs_f64()
}
