//! A systemd scope of the caller's own manager, made over D-Bus by `busctl`: for a logged-in user whose own group is
//! not delegated (the usual desktop and server), and for root under systemd. Written from the manager's D-Bus
//! interface, `org.freedesktop.systemd1(5)`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use moltis_sandbox::Result;

use super::group::Group;
use super::membership::Membership;
use super::{Controller, Values, failed};

const SERVICE: &str = "org.freedesktop.systemd1";
const OBJECT: &str = "/org/freedesktop/systemd1";
const INTERFACE: &str = "org.freedesktop.systemd1.Manager";
/// How long the manager may take to move a process into its new scope.
const PATIENCE: Duration = Duration::from_secs(10);

/// A systemd manager that answers.
#[derive(Clone, Debug)]
pub struct Manager {
    bus: Bus,
    /// Where the unified hierarchy is mounted.
    mount: PathBuf,
    /// Controllers that its units can use.
    controllers: Vec<String>,
    /// Major version of systemd.
    version: u32,
}

impl Manager {
    /// Asks the user's manager, or for root the system's. Costs nothing where neither runs, else one D-Bus call.
    pub fn find(membership: &Membership) -> Option<Self> {
        let mount = membership.v2()?.mount.clone();
        if membership.v1(Controller::Memory).is_some() {
            return None;
        }
        let bus = Bus::find()?;
        let output =
            bus.call("get-property", &[SERVICE, OBJECT, INTERFACE, "ControlGroup", "Version"]).ok()?;
        // One property a line.
        let mut answers = output.lines();
        let group = json_string(answers.next()?)?;
        let version = major(&json_string(answers.next()?)?);
        let own = mount.join(group.trim_start_matches('/'));
        let text = std::fs::read_to_string(own.join("cgroup.controllers")).ok()?;
        let controllers = text.split_whitespace().map(str::to_owned).collect();
        Some(Self { bus, mount, controllers, version })
    }

    /// # Errors
    /// Why this controller cannot be used.
    pub fn keeps(&self, controller: Controller) -> Result<(), String> {
        if self.controllers.iter().any(|name| name == controller.name()) {
            return Ok(());
        }
        Err(format!(
            "the `{}` controller is not delegated to the user manager: set `Delegate=cpu memory pids` for \
             user@.service (systemctl edit user@.service) and log in again",
            controller.name()
        ))
    }

    /// Nothing is made yet: a scope needs its first process.
    pub fn create(&self, name: &str, values: &Values) -> Result<Group> {
        let unit = unit(name);
        Ok(Group::of_scope(Scope {
            arguments: start_arguments(&unit, values, self.knows_oom_policy())?,
            abandon: !self.knows_oom_policy(),
            unit,
            bus: self.bus.clone(),
            mount: self.mount.clone(),
            directory: std::sync::OnceLock::new(),
        }))
    }

    /// Whether scopes can be told to live on when the kernel kills one process of theirs for memory (version 253).
    fn knows_oom_policy(&self) -> bool {
        self.version >= 253
    }

    /// A scope that exists.
    pub fn reopen(&self, name: &str) -> Option<Group> {
        let unit = unit(name);
        let arguments = [SERVICE, OBJECT, INTERFACE, "GetUnit", "s", &unit];
        let object = json_first(&self.bus.call("call", &arguments).ok()?)?;
        let arguments = [SERVICE, &object, "org.freedesktop.systemd1.Scope", "ControlGroup"];
        let group = json_string(&self.bus.call("get-property", &arguments).ok()?)?;
        Group::reopen(vec![self.mount.join(group.trim_start_matches('/'))])
    }

    /// Names (without the unit's prefix and suffix) of the scopes of one data directory.
    pub fn list(&self, tag: &str) -> Vec<String> {
        let pattern = format!("moltis-{tag}-*.scope");
        let arguments =
            [SERVICE, OBJECT, INTERFACE, "ListUnitsByPatterns", "asas", "0", "1", pattern.as_str()];
        let Ok(output) = self.bus.call("call", &arguments) else { return Vec::new() };
        let Ok(answer) = serde_json::from_str::<serde_json::Value>(&output) else { return Vec::new() };
        let units = answer["data"][0].as_array().cloned().unwrap_or_default();
        let name = |unit: &serde_json::Value| {
            Some(unit[0].as_str()?.strip_prefix("moltis-")?.strip_suffix(".scope")?.to_owned())
        };
        units.iter().filter_map(name).collect()
    }
}

fn unit(name: &str) -> String {
    format!("moltis-{name}.scope")
}

/// One sandbox's scope: described, and started by its first process.
#[derive(Debug)]
pub struct Scope {
    unit: String,
    arguments: Vec<String>,
    /// Whether the manager is to leave the scope alone once it runs.
    abandon: bool,
    bus: Bus,
    mount: PathBuf,
    directory: std::sync::OnceLock<PathBuf>,
}

impl Scope {
    /// Its control group, once it runs.
    pub fn directory(&self) -> Option<PathBuf> {
        self.directory.get().cloned()
    }

    /// Starts it around a process and waits until the process is inside.
    ///
    /// # Errors
    /// `Unavailable` with code `cgroup-failed`.
    pub fn start(&self, pid: u32) -> Result<()> {
        let mut arguments = vec![SERVICE, OBJECT, INTERFACE, "StartTransientUnit", "ssa(sv)a(sa(sv))"];
        let pid_text = pid.to_string();
        arguments
            .extend(self.arguments.iter().map(|word| if word == PID { &pid_text } else { word.as_str() }));
        self.bus.call("call", &arguments).map_err(|cause| failed(&self.unit, cause))?;
        // The call only queues a job; what counts is where the process is.
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(group) = group_of(pid, &self.unit) {
                let _ = self.directory.set(self.mount.join(group.trim_start_matches('/')));
                if !self.abandon || self.let_go() {
                    return Ok(());
                }
            }
            if Instant::now() >= deadline {
                return Err(failed(&self.unit, "systemd did not move the process into it in time"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Scope {
    /// Has an older systemd watch the scope no longer: it would end all of it when the kernel kills one process for
    /// memory. The limits stay. Refused until the scope's start is complete.
    fn let_go(&self) -> bool {
        let arguments = [SERVICE, OBJECT, INTERFACE, "GetUnit", "s", &self.unit];
        let object = self.bus.call("call", &arguments).ok().and_then(|answer| json_first(&answer));
        object.is_some_and(|object| {
            let arguments = [SERVICE, &object, "org.freedesktop.systemd1.Scope", "Abandon"];
            self.bus.call("call", &arguments).is_ok()
        })
    }
}

/// Stands for the process in the arguments.
const PID: &str = "{pid}";

/// What `StartTransientUnit` takes: name, mode, properties, no auxiliary units.
fn start_arguments(unit: &str, values: &Values, oom_policy: bool) -> Result<Vec<String>> {
    let mut properties: Vec<[String; 3]> = Vec::new();
    let mut add = |name: &str, signature: &str, value: String| {
        properties.push([name.to_owned(), signature.to_owned(), value]);
    };
    add("Description", "s", "Moltis sandbox".to_owned());
    // A scope whose last process was killed for memory would stay listed as failed.
    add("CollectMode", "s", "inactive-or-failed".to_owned());
    if oom_policy {
        add("OOMPolicy", "s", "continue".to_owned());
    }
    if let Some(bytes) = values.memory {
        add("MemoryMax", "t", bytes.to_string());
        add("MemorySwapMax", "t", "0".to_owned());
    }
    if let Some(cpus) = values.cpus {
        // Microseconds a second.
        let (quota, period) = Values::cpu_quota(cpus)?;
        add("CPUQuotaPerSecUSec", "t", (quota * (1_000_000 / period)).to_string());
    }
    if let Some(pids) = values.pids {
        add("TasksMax", "t", pids.to_string());
    }
    let mut words = vec![unit.to_owned(), "fail".to_owned(), (properties.len() + 1).to_string()];
    words.extend(["PIDs", "au", "1", PID].map(str::to_owned));
    words.extend(properties.into_iter().flatten());
    words.push("0".to_owned());
    Ok(words)
}

/// The path of a process's group in the unified hierarchy, if that group is the unit's.
fn group_of(pid: u32, unit: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let group = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    (group.rsplit('/').next() == Some(unit)).then(|| group.to_owned())
}

/// A bus that a manager listens on.
#[derive(Clone, Debug)]
struct Bus {
    busctl: PathBuf,
    /// `--user` or `--system`.
    which: &'static str,
    environment: Vec<(OsString, OsString)>,
}

impl Bus {
    fn find() -> Option<Self> {
        let busctl =
            ["/usr/bin/busctl", "/bin/busctl"].iter().map(PathBuf::from).find(|path| path.exists())?;
        let uid = rustix::process::geteuid();
        if uid.is_root() {
            // The manager's own mark that it is PID 1, see sd_booted(3).
            let booted = Path::new("/run/systemd/system").is_dir();
            return booted.then(|| Self { busctl, which: "--system", environment: Vec::new() });
        }
        let usual: OsString = format!("/run/user/{}", uid.as_raw()).into();
        let (runtime, named) = runtime_dir(std::env::var_os("XDG_RUNTIME_DIR"), usual)?;
        let mut environment = vec![("XDG_RUNTIME_DIR".into(), runtime)];
        if let Some(address) = std::env::var_os("DBUS_SESSION_BUS_ADDRESS").filter(|_| named) {
            environment.push(("DBUS_SESSION_BUS_ADDRESS".into(), address));
        }
        Some(Self { busctl, which: "--user", environment })
    }

    /// Runs one `busctl` command and returns its answer as JSON text.
    fn call(&self, command: &str, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new(&self.busctl)
            .args([self.which, "--json=short", "--timeout=5", command])
            .args(arguments)
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    }
}

/// The folder in which the user's manager is, and whether it is the one that the environment names: a service may have
/// been given another one, for an engine say.
fn runtime_dir(named: Option<OsString>, usual: OsString) -> Option<(OsString, bool)> {
    let manager = |folder: &OsString| Path::new(folder).join("systemd").is_dir();
    let here = named.as_ref().is_none_or(|named| *named == usual);
    match named.filter(manager) {
        Some(named) => Some((named, true)),
        None => Some((usual, here)).filter(|(usual, _)| manager(usual)),
    }
}

/// `252.38-1~deb12u1` is 252.
fn major(version: &str) -> u32 {
    let digits = version.split(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// `data` of a property that is a string.
fn json_string(answer: &str) -> Option<String> {
    let answer: serde_json::Value = serde_json::from_str(answer).ok()?;
    Some(answer["data"].as_str()?.to_owned())
}

/// The first value of a method's answer.
fn json_first(answer: &str) -> Option<String> {
    let answer: serde_json::Value = serde_json::from_str(answer).ok()?;
    Some(answer["data"][0].as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_is_what_the_interface_says() {
        let values = Values { memory: Some(1 << 20), cpus: Some(1.5), pids: Some(64) };
        let words = start_arguments("moltis-a-b.scope", &values, true).unwrap().join(" ");
        assert_eq!(
            words,
            "moltis-a-b.scope fail 8 PIDs au 1 {pid} Description s Moltis sandbox CollectMode s inactive-or-failed \
             OOMPolicy s continue MemoryMax t 1048576 MemorySwapMax t 0 CPUQuotaPerSecUSec t 1500000 TasksMax t 64 0"
        );
        let small = Values { cpus: Some(0.005), ..Values::default() };
        assert!(
            start_arguments("u", &small, false).unwrap().join(" ").contains("CPUQuotaPerSecUSec t 5000 ")
        );
    }

    #[test]
    fn the_manager_is_found_beside_another_runtime_folder() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = |name: &str| scratch.path().join(name).into_os_string();
        let (usual, other) = (folder("usual"), folder("other"));
        let found = |named: Option<&OsString>| runtime_dir(named.cloned(), usual.clone());
        assert_eq!(found(Some(&other)), None);
        std::fs::create_dir_all(scratch.path().join("usual/systemd")).unwrap();
        assert_eq!(
            [found(None), found(Some(&usual))],
            [Some((usual.clone(), true)), Some((usual.clone(), true))]
        );
        assert_eq!(found(Some(&other)), Some((usual.clone(), false)));
        std::fs::create_dir_all(scratch.path().join("other/systemd")).unwrap();
        assert_eq!(found(Some(&other)), Some((other.clone(), true)));
    }

    #[test]
    fn answers_are_read() {
        assert_eq!(json_string(r#"{"type":"s","data":"/user.slice"}"#).as_deref(), Some("/user.slice"));
        assert_eq!(json_first(r#"{"type":"o","data":["/org/x"]}"#).as_deref(), Some("/org/x"));
        assert_eq!(json_first("rubbish"), None);
        assert_eq!([major("252.38-1~deb12u1"), major("257"), major("")], [252, 257, 0]);
    }
}
