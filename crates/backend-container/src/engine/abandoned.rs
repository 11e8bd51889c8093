//! Ending a build of Podman's that nobody waits for any more.
//!
//! Podman goes on with the step that it is at, whether its caller hangs up (over a socket) or is killed (its program,
//! which then leaves its working container behind too). So a build gets a name of its own in the `/etc/hosts` that its
//! steps see; those of its processes that are the first of a container are ended by that mark, upon which Podman takes
//! the step for failed and cleans up itself. Where Podman runs on another machine the step is not ended.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long it is looked for steps that begin after the end.
const LOOK_FOR: Duration = Duration::from_secs(5);

/// How often.
const LOOK: Duration = Duration::from_millis(50);

/// Largest `/etc/hosts` that is read.
const HOSTS_LIMIT: u64 = 64 << 10;

static COUNT: AtomicU64 = AtomicU64::new(0);

/// The mark of one build. Dropping it before [`Mark::finish`] ends the build.
pub(super) struct Mark {
    name: String,
    finished: bool,
}

impl Mark {
    pub(super) fn new() -> Self {
        let nanos = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |time| time.subsec_nanos());
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self { name: format!("moltis-build-{}-{count}-{nanos}", std::process::id()), finished: false }
    }

    /// The name as an entry for `/etc/hosts`, in the engine's form. It leads nowhere.
    pub(super) fn host(&self) -> String {
        format!("{}:127.0.0.1", self.name)
    }

    /// The build is over.
    pub(super) fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let name = self.name.clone();
        // A thread, because this may be dropped where no runtime is any more. If there can be none, the step ends
        // by itself, later.
        let _ = std::thread::Builder::new().name("abandoned-build".to_owned()).spawn(move || {
            let since = Instant::now();
            while since.elapsed() < LOOK_FOR {
                end_steps(&name);
                std::thread::sleep(LOOK);
            }
        });
    }
}

/// Ends the first process of each container whose `/etc/hosts` has the mark.
fn end_steps(mark: &str) {
    let Ok(entries) = std::fs::read_dir("/proc") else { return };
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw)
        else {
            continue;
        };
        let path = entry.path();
        if !is_first(&path) {
            continue;
        }
        // The handle is taken first, so that the process that is looked at is the one that is ended.
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        if has_mark(&path, mark) {
            let _ = pidfd_send_signal(&handle, Signal::KILL);
        }
    }
}

/// Whether a process is the first of a PID namespace beneath ours.
fn is_first(process: &Path) -> bool {
    let Ok(status) = std::fs::read_to_string(process.join("status")) else { return false };
    status.lines().find_map(|line| line.strip_prefix("NSpid:")).is_some_and(|ids| {
        let mut ids = ids.split_whitespace();
        ids.next();
        ids.next_back() == Some("1")
    })
}

fn has_mark(process: &Path, mark: &str) -> bool {
    use std::io::Read;

    use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
    // A step may have put anything there. Links lead nowhere but within its own root, and nothing is opened for reading
    // before it is known to be a file.
    let look = || {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, process.join("root"), flags, Mode::empty())?;
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let found = openat2(&root, "etc/hosts", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), within)?;
        if FileType::from_raw_mode(fstat(&found)?.st_mode) != FileType::RegularFile {
            return Err(rustix::io::Errno::INVAL);
        }
        let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&found));
        openat(CWD, own, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
    };
    let Ok(file) = look().map(std::fs::File::from) else { return false };
    let mut text = Vec::new();
    let _ = file.take(HOSTS_LIMIT).read_to_end(&mut text);
    text.split(|byte| byte.is_ascii_whitespace()).any(|word| word == mark.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_words_of_their_own() {
        let (one, two) = (Mark::new(), Mark::new());
        assert_ne!(one.name, two.name);
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("root/etc");
        std::fs::create_dir_all(&etc).unwrap();
        std::fs::write(etc.join("hosts"), format!("127.0.0.1\t{}x\n::1 {}\n", one.name, two.name)).unwrap();
        assert!(!has_mark(root.path(), &one.name));
        assert!(has_mark(root.path(), &two.name));
        // A link leads nowhere but within the root.
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("hosts"), &two.name).unwrap();
        std::fs::remove_dir_all(&etc).unwrap();
        std::os::unix::fs::symlink(outside.path(), &etc).unwrap();
        assert!(!has_mark(root.path(), &two.name));
        assert!(!is_first(Path::new("/proc/self")));
        one.finish();
        two.finish();
    }
}
