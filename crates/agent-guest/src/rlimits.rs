//! Resource limits of commands in mode `serve`, where no sandbox limits them as a whole. They are set in each command
//! between its fork and its program, so that neither the agent nor a supervisor is bound by them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Seconds between the signal that a process may handle (`SIGXCPU`) and the one it may not.
const CPU_GRACE: u64 = 1;

/// A limit as the kernel takes it. It is never raised: a lower hard limit stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rlimit {
    /// `RLIMIT_*`.
    pub resource: u32,
    /// Soft limit.
    pub soft: u64,
    /// Hard limit.
    pub hard: u64,
}

/// What bounds every command.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommandLimits {
    fixed: Vec<Rlimit>,
    /// Tasks above those that the user has when a command starts.
    pids: Option<u64>,
    /// Cores; the processor seconds of a command are this times its time-out.
    cpu_quota: Option<f64>,
}

impl CommandLimits {
    /// Takes one argument of mode `serve`; `Ok(false)` when it is not about limits.
    ///
    /// # Errors
    /// One sentence that names the argument.
    pub fn argument(&mut self, name: &OsStr, value: &OsStr) -> Result<bool, String> {
        let wrong = || format!("{} has no such value: {}", name.display(), value.display());
        let text = value.to_str().ok_or_else(wrong)?;
        match name.as_bytes() {
            b"--rlimit" => {
                let (resource, number) = text.split_once('=').ok_or_else(wrong)?;
                let value = number.parse().map_err(|_| wrong())?;
                self.fixed.push(rlimit(resource, value).ok_or_else(wrong)?);
            }
            b"--pids" => self.pids = Some(text.parse().map_err(|_| wrong())?),
            b"--cpu-quota" => {
                let quota = text.parse().ok().filter(|quota: &f64| quota.is_finite() && *quota > 0.0);
                self.cpu_quota = Some(quota.ok_or_else(wrong)?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The limits of a command that starts now and may take this long (0: any time). Looks at all processes where
    /// their number is limited.
    pub fn of(&self, timeout_millis: u64) -> Vec<Rlimit> {
        let mut limits = self.fixed.clone();
        if let Some(quota) = self.cpu_quota.filter(|_| timeout_millis > 0) {
            let seconds = (quota * timeout_millis as f64 / 1000.0).ceil();
            limits.extend(rlimit("cpu", seconds as u64));
        }
        // The kernel does not bind root by it.
        let user = rustix::process::getuid();
        if let Some(pids) = self.pids.filter(|_| !user.is_root()) {
            limits.extend(rlimit("nproc", tasks_of(user.as_raw()).saturating_add(pids)));
        }
        limits
    }
}

fn rlimit(name: &str, value: u64) -> Option<Rlimit> {
    let (resource, hard) = match name {
        "as" => (libc::RLIMIT_AS, value),
        "core" => (libc::RLIMIT_CORE, value),
        "cpu" => (libc::RLIMIT_CPU, value.saturating_add(CPU_GRACE)),
        "data" => (libc::RLIMIT_DATA, value),
        "nofile" => (libc::RLIMIT_NOFILE, value),
        "nproc" => (libc::RLIMIT_NPROC, value),
        _ => return None,
    };
    #[allow(clippy::unnecessary_cast, reason = "the type differs between C libraries")]
    Some(Rlimit { resource: resource as u32, soft: value, hard })
}

/// Threads of all processes of this real user id, which is what the kernel counts.
fn tasks_of(user: u32) -> u64 {
    let Ok(entries) = std::fs::read_dir("/proc") else { return 0 };
    let pids = entries.flatten().filter(|entry| entry.file_name().as_bytes().iter().all(u8::is_ascii_digit));
    let tasks = pids.filter_map(|entry| {
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
        let owner: u32 = field("Uid:")?.parse().ok()?;
        if owner == user { field("Threads:")?.parse::<u64>().ok() } else { None }
    });
    tasks.sum()
}

/// Sets a limit in this process, no higher than the hard limit that it has.
///
/// # Safety
/// None beyond that of a system call: safe between `vfork` and `execve`, since it touches nothing but its own stack.
pub unsafe fn set(limit: &Rlimit) -> libc::c_int {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one `rlimit` and reads another; both live on this stack.
    unsafe {
        let resource = limit.resource as _;
        if libc::getrlimit(resource, &raw mut now) < 0 {
            return -1;
        }
        now.rlim_max = now.rlim_max.min(limit.hard);
        now.rlim_cur = now.rlim_max.min(limit.soft);
        libc::setrlimit(resource, &raw const now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(arguments: &[(&str, &str)]) -> Result<CommandLimits, String> {
        let mut limits = CommandLimits::default();
        for (name, value) in arguments {
            assert!(limits.argument(name.as_ref(), value.as_ref())?);
        }
        Ok(limits)
    }

    #[test]
    fn processor_seconds_follow_the_time_out() {
        let quota = limits(&[("--cpu-quota", "1.5")]).unwrap();
        let seconds = |millis| quota.of(millis).first().map(|limit| (limit.soft, limit.hard));
        assert_eq!(seconds(30_000), Some((45, 46)));
        assert_eq!(seconds(1), Some((1, 2)));
        assert_eq!(seconds(0), None, "a command without an end");
        let fixed = limits(&[("--rlimit", "cpu=300")]).unwrap();
        assert_eq!(fixed.of(0), fixed.of(1));
    }

    #[test]
    fn wrong_limits_are_refused_by_name() {
        for (name, value) in [
            ("--rlimit", "files=3"),
            ("--rlimit", "nofile"),
            ("--rlimit", "nofile=-1"),
            ("--pids", "x"),
            ("--cpu-quota", "0"),
            ("--cpu-quota", "nan"),
            ("--cpu-quota", "inf"),
        ] {
            assert!(limits(&[(name, value)]).unwrap_err().starts_with(name), "{name} {value}");
        }
        assert_eq!(CommandLimits::default().argument("--other".as_ref(), "1".as_ref()), Ok(false));
    }

    #[test]
    fn tasks_are_counted_by_thread() {
        let own = rustix::process::getuid().as_raw();
        let before = tasks_of(own);
        assert!(before >= 1);
        assert_eq!(tasks_of(u32::MAX - 7), 0);
    }
}
