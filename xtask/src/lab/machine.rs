//! The lab's machine: QEMU with a throw-away copy of the disk, reached by ssh over a port on loopback, ended with the run.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::image::Image;
use crate::command::{Ended, Scratch, find, kept};
use crate::engines::cache;
use crate::real::Trouble;

/// How long it may take to start. Without hardware that helps, on a busy machine, it is slow.
const BOOT: Duration = Duration::from_secs(15 * 60);
/// With hardware that helps it is there in seconds. One that is not by then never comes: some machines offer a KVM that
/// cannot run a kernel as it is.
const HELPED: Duration = Duration::from_secs(60);
/// How long logging in may take.
const LOGIN: Duration = Duration::from_secs(5 * 60);

/// What the machine says on its serial port once people can log in.
const READY: &str = "lab-ready";

const HOLD: &str = include_str!("hold.sh");

/// Who logs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Login {
    /// The administrator.
    Root,
    /// An ordinary user, in a session of systemd's.
    Person,
}

impl Login {
    /// The name in the lab.
    pub fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Person => "person",
        }
    }
}

/// Puts what the lab is given into a folder.
pub type Bring = dyn Fn(&Path) -> Result<(), Trouble>;

/// One that runs. Dropping it ends it.
pub struct Machine {
    image: Image,
    scratch: Scratch,
    holder: Child,
    machine: u32,
    port: u16,
    masters: Vec<Child>,
}

impl Machine {
    /// Starts it, with what `bring` puts into a folder as its second disk, and waits until it can be logged in to.
    pub fn start(image: Image, bring: &Bring) -> Result<Self, Trouble> {
        for (program, package) in [("qemu-system-x86_64", "qemu-system-x86"), ("ssh", "openssh-client")] {
            find(program)
                .ok_or_else(|| Trouble::Lacking(format!("there is no {program} (package {package})")))?;
        }
        if helped()? {
            match Self::boot(&image, bring, true) {
                Ok(parts) => return Ok(parts.with(image)),
                Err(Trouble::Lacking(what)) => return Err(Trouble::Lacking(what)),
                Err(Trouble::Failed(why)) => {
                    println!("      KVM does not start it, the slow way follows: {why}");
                    fs::write(cache("lab")?.join(NO_KVM), boot_id())?;
                }
            }
        }
        Self::boot(&image, bring, false).map(|parts| parts.with(image))
    }

    fn boot(image: &Image, bring: &Bring, helped: bool) -> Result<Parts, Trouble> {
        // Another program may take the port first.
        for _ in 0..3 {
            match Parts::start(image, bring, helped) {
                Err(Trouble::Failed(why)) if why.contains("Could not set up host forwarding rule") => {}
                other => return other,
            }
        }
        Err(Trouble::Failed("no port on loopback stays free".to_owned()))
    }

    /// Logs in; commands of this user then go through that one connection.
    pub fn log_in(&mut self, login: Login) -> Result<(), Trouble> {
        let end = Instant::now() + LOGIN;
        loop {
            let mut master = Command::new("setpriv");
            master.args(["--pdeathsig", "KILL", "--"]);
            let words = self.words(login);
            master.args(&words).args(["-M", "-N"]).arg(self.address(login));
            master.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
            let mut child = master.spawn().map_err(|e| format!("setpriv: {e}"))?;
            let socket = self.scratch.0.join(login.name());
            while child.try_wait()?.is_none() && Instant::now() < end {
                if socket.exists() {
                    self.masters.push(child);
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            let _ = child.kill();
            let said = child.wait_with_output()?.stderr;
            if Instant::now() >= end {
                let said = String::from_utf8_lossy(&said).into_owned();
                return Err(Trouble::Failed(format!("nobody can log in: {said}\n{}", self.console())));
            }
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// What a person types to get in.
    pub fn words(&self, login: Login) -> Vec<String> {
        let option = |name: &str, value: &Path| ["-o".to_owned(), format!("{name}={}", value.display())];
        let mut words: Vec<String> =
            ["ssh", "-F", "none", "-p", &self.port.to_string()].map(str::to_owned).into();
        words.extend(option("IdentityFile", &self.image.file("key")));
        words.extend(option("UserKnownHostsFile", &self.image.file("known_hosts")));
        words.extend(option("ControlPath", &self.scratch.0.join(login.name())));
        for fixed in [
            "HostKeyAlias=lab",
            "IdentitiesOnly=yes",
            "BatchMode=yes",
            "LogLevel=ERROR",
            "ConnectTimeout=120",
        ] {
            words.extend(["-o".to_owned(), fixed.to_owned()]);
        }
        words
    }

    /// The user and host of an ssh command.
    pub fn address(&self, login: Login) -> String {
        format!("{}@127.0.0.1", login.name())
    }

    /// Runs a line of shell in the lab.
    pub fn run(&self, login: Login, line: &str, limit: Duration) -> Result<Ended, Trouble> {
        let words = self.words(login);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(self.address(login)).arg(line);
        let ended = kept(&mut command, None, limit)?;
        if ended.code == 255 && !self.lives() {
            return Err(Trouble::Failed(format!("the lab is gone\n{}\n{}", ended.all(), self.console())));
        }
        Ok(ended)
    }

    /// Whether QEMU runs.
    fn lives(&self) -> bool {
        running(self.machine)
    }

    /// The last that it said on its serial port.
    pub fn console(&self) -> String {
        tail(&self.scratch.0)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for master in &mut self.masters {
            let _ = master.kill();
            let _ = master.wait();
        }
        ended(&mut self.holder);
    }
}

/// A machine without its image.
struct Parts {
    scratch: Scratch,
    holder: Child,
    machine: u32,
    port: u16,
}

impl Parts {
    fn with(self, image: Image) -> Machine {
        let Self { scratch, holder, machine, port } = self;
        Machine { image, scratch, holder, machine, port, masters: Vec::new() }
    }

    fn start(image: &Image, bring: &Bring, helped: bool) -> Result<Self, Trouble> {
        let scratch = Scratch::new("lab")?;
        let folder = scratch.0.join("bring");
        fs::create_dir(&folder)?;
        bring(&folder)?;
        let mut tar = Command::new("tar");
        tar.args(["--dereference", "--sparse", "--owner=0", "--group=0", "-cf"])
            .arg(scratch.0.join("bring.tar"));
        let packed = kept(tar.arg("-C").arg(&folder).arg("."), None, LOGIN)?;
        if !packed.good() {
            return Err(Trouble::Failed(packed.all()));
        }
        fs::remove_dir_all(&folder)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut holder = Command::new("sh");
        holder.args(["-uc", HOLD, "sh"]).arg(&scratch.0).args(qemu(image, &scratch.0, port, helped));
        holder.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        // Its disk's changes are a file without a name in there.
        holder.env("TMPDIR", &scratch.0);
        let mut holder = holder.spawn().map_err(|e| format!("sh: {e}"))?;
        let mut said = String::new();
        if let Some(out) = holder.stdout.take() {
            BufReader::new(out).read_line(&mut said)?;
        }
        let Ok(machine) = said.trim().parse() else {
            ended(&mut holder);
            return Err(Trouble::Failed("the lab's machine cannot be held".to_owned()));
        };
        let mut parts = Self { scratch, holder, machine, port };
        match parts.wait(if helped { HELPED } else { BOOT }) {
            Ok(()) => Ok(parts),
            Err(why) => {
                ended(&mut parts.holder);
                Err(Trouble::Failed(why))
            }
        }
    }

    fn wait(&self, limit: Duration) -> Result<(), String> {
        let end = Instant::now() + limit;
        let serial = self.scratch.0.join("serial");
        loop {
            if fs::read(&serial).is_ok_and(|text| String::from_utf8_lossy(&text).contains(READY)) {
                return Ok(());
            }
            if !running(self.machine) {
                let said = fs::read_to_string(self.scratch.0.join("said")).unwrap_or_default();
                return Err(format!("QEMU ended: {said}\n{}", tail(&self.scratch.0)));
            }
            if Instant::now() >= end {
                return Err(format!("the lab did not start within {limit:?}\n{}", tail(&self.scratch.0)));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

fn qemu(image: &Image, scratch: &Path, port: u16, helped: bool) -> Vec<String> {
    let disk = |file: &Path, more: &str| format!("file={},format=raw,if=virtio,{more}", file.display());
    let mut words: Vec<String> =
        ["qemu-system-x86_64", "-M", "q35", "-smp", "2", "-m", "4096"].map(str::to_owned).into();
    // Nested virtualisation is what Firecracker needs in there.
    let how: &[&str] = if helped {
        &["-accel", "kvm", "-cpu", "host"]
    } else {
        &["-accel", "tcg,thread=multi", "-cpu", "EPYC,+svm"]
    };
    words.extend(how.iter().map(|word| (*word).to_owned()));
    words.extend(["-nodefaults", "-display", "none", "-device", "virtio-rng-pci"].map(str::to_owned));
    words.extend(["-kernel".into(), image.file("vmlinuz").display().to_string()]);
    words.extend(["-initrd".into(), image.file("initrd").display().to_string()]);
    words.extend([
        "-append".into(),
        "root=/dev/vda rw console=ttyS0 quiet no_timer_check panic=-1".into(),
        "-no-reboot".into(),
    ]);
    words.extend(["-drive".into(), disk(&image.file("disk"), "snapshot=on,cache=unsafe")]);
    words.extend(["-drive".into(), disk(Path::new("/dev/stdin"), "readonly=on")]);
    words.extend(["-netdev".into(), format!("user,id=net,hostfwd=tcp:127.0.0.1:{port}-:22")]);
    words.extend(["-device", "virtio-net-pci,netdev=net,romfile="].map(str::to_owned));
    words.extend(["-serial".into(), format!("file:{}", scratch.join("serial").display())]);
    words
}

/// Ends a machine and all that is its own.
fn ended(holder: &mut Child) {
    drop(holder.stdin.take());
    let _ = holder.wait();
}

/// Whether a process is there and not over.
fn running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn tail(scratch: &Path) -> String {
    let text = fs::read(scratch.join("serial")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// Where it is written down that KVM failed since this machine was started.
const NO_KVM: &str = "no-kvm";

/// Whether KVM may help: it is there and may be used, the processor has what it stands on, and it has not failed before.
/// That it does help is known only once the lab has started.
fn helped() -> Result<bool, Trouble> {
    let usable = fs::File::options().read(true).write(true).open("/dev/kvm").is_ok();
    let hardware = flags(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
    let failed = fs::read_to_string(cache("lab")?.join(NO_KVM)).is_ok_and(|text| text == boot_id());
    Ok(usable && hardware && !failed)
}

/// Whether a processor says that it can run other machines.
fn flags(cpuinfo: &str) -> bool {
    let line = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    line.split_whitespace().any(|flag| flag == "svm" || flag == "vmx")
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_says_what_it_can() {
        assert!(flags("model name\t: x\nflags\t\t: fpu svm sse\n"));
        assert!(flags("flags\t\t: vmx\n"));
        assert!(!flags("flags\t\t: fpu hypervisor svm_lock\n") && !flags(""));
    }

    #[test]
    fn what_is_over_does_not_run() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id();
        assert!(running(std::process::id()));
        while running(pid) {
            std::thread::sleep(Duration::from_millis(5));
        }
        child.wait().unwrap();
        assert!(!running(pid));
    }
}
