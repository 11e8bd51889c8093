//! Running programs: with a limit, in a group of their own, output kept.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How a program ended.
pub struct Ended {
    /// Exit code as a shell shows it.
    pub code: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// How long it took.
    pub took: Duration,
    /// Whether it was killed because its time was up.
    pub late: bool,
}

impl Ended {
    /// Whether it left with 0 in time.
    pub fn good(&self) -> bool {
        self.code == 0 && !self.late
    }

    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Both outputs as text, for a person.
    pub fn all(&self) -> String {
        let mut text = self.text();
        text.push_str(&String::from_utf8_lossy(&self.stderr));
        if self.late {
            text.push_str(&format!("\nkilled after {:?}\n", self.took));
        }
        text
    }
}

fn reading(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is still worth showing.
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}

/// Runs a program to its end, or kills its group when the time is up. Output is kept, not shown.
pub fn kept(command: &mut Command, input: Option<Stdio>, limit: Duration) -> Result<Ended, String> {
    let started = Instant::now();
    let mut child = command
        .stdin(input.unwrap_or_else(Stdio::null))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|e| format!("{:?}: {e}", command.get_program()))?;
    let out = child.stdout.take().map(reading);
    let err = child.stderr.take().map(reading);
    let (code, late) = wait(&mut child, limit)?;
    let took = started.elapsed();
    // Something may have outlived the program and hold its output open; that must not hang the run.
    let settle = Instant::now() + Duration::from_secs(10);
    let join = |thread: Option<JoinHandle<Vec<u8>>>| -> Vec<u8> {
        let Some(thread) = thread else { return Vec::new() };
        while !thread.is_finished() && Instant::now() < settle {
            std::thread::sleep(Duration::from_millis(2));
        }
        if thread.is_finished() { thread.join().unwrap_or_default() } else { Vec::new() }
    };
    Ok(Ended { code, stdout: join(out), stderr: join(err), took, late })
}

/// Runs a program with our own output, to its end or its limit.
pub fn shown(command: &mut Command, limit: Duration) -> Result<i32, String> {
    let mut child = command
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|e| format!("{:?}: {e}", command.get_program()))?;
    let (code, late) = wait(&mut child, limit)?;
    if late {
        eprintln!("xtask: {:?} was killed after {limit:?}", command.get_program());
    }
    Ok(if late { 124 } else { code })
}

fn wait(child: &mut Child, limit: Duration) -> Result<(i32, bool), String> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_micros(500);
    loop {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            let code = status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(-1);
            return Ok((code, false));
        }
        if Instant::now() >= end {
            // The group is the child's own; `kill` takes a negative number for it.
            let group = format!("-{}", child.id());
            let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
            let _ = child.wait();
            return Ok((137, true));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Where a program lies on `PATH`.
pub fn find(name: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| {
        std::fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    })
}

/// Whether this process is root.
pub fn root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|text| {
        text.lines().any(|l| l.starts_with("Uid:") && l.split_whitespace().nth(2) == Some("0"))
    })
}

/// A folder below the system's temporary one, removed with the value.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// A new one that others may enter.
    pub fn new(name: &str) -> Result<Self, String> {
        use std::os::unix::fs::PermissionsExt;
        let stamp = std::time::SystemTime::UNIX_EPOCH.elapsed().map(|d| d.as_micros()).unwrap_or(0);
        // Short: the path of a socket has to be, and Podman's folder below it too.
        let stamp = stamp & 0xffff_ffff;
        let path = std::env::temp_dir().join(format!("moltis-xtask-{name}-{}-{stamp:x}", std::process::id()));
        std::fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
