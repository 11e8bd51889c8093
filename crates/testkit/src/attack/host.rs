//! Reaching for the host: its files, devices, sockets, settings, and what a former command planted.

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use moltis_sandbox::files::WriteOptions;
use moltis_sandbox::{MountMode, Network, Origin, Setting};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;

use super::{Probe, all_reached, all_stopped, inside, outside, probes, reached, stopped};
use crate::case::Control;
use crate::contract::network::{host_addresses, host_listener};
use crate::program::plain;
use crate::{Case, Ctx, Fail, Place, Verdict, case, ensure, ensure_eq, fail, tree};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("attack.host-home", host_home).control(|ctx| Box::pin(host_home_control(ctx))).limit(60),
        probes!("attack.host-by-handle", HANDLES),
        probes!("attack.kernel-settings", SETTINGS),
        probes!("attack.kernel-memory", KERNEL_FILES),
        probes!("attack.devices", DEVICES),
        probes!("attack.cgroups", CGROUPS),
        case!("attack.leaked-descriptors", leaked_descriptors)
            .control(|ctx| Box::pin(leaked_descriptors_control(ctx)))
            .limit(40),
        case!("attack.abstract-sockets", abstract_sockets)
            .control(|ctx| Box::pin(abstract_sockets_control(ctx))),
        case!("attack.abstract-sockets-open-network", abstract_sockets_open)
            .control(|ctx| Box::pin(abstract_sockets_control(ctx)))
            .law(1),
        case!("attack.host-ports", host_ports).control(|ctx| Box::pin(host_ports_control(ctx))).law(1),
        case!("attack.host-processes", host_processes).control(|ctx| Box::pin(host_processes_control(ctx))),
        case!("attack.planted-links", planted_links)
            .control(|ctx| Box::pin(planted_links_control(ctx)))
            .law(3),
        case!("attack.planted-home", planted_home).control(|ctx| Box::pin(planted_links_control(ctx))).law(3),
    ]
}

const HANDLES: &[Probe] = &[Probe::same("read-by-handle=/etc/hostname")];

const SETTINGS: &[Probe] = &[
    Probe::same("write-sysctl=/proc/sys/kernel/core_pattern"),
    Probe::optional("write-sysctl=/proc/sys/kernel/modprobe"),
    Probe::same("write-sysctl=/proc/sys/vm/panic_on_oom"),
    Probe::optional("write-sysctl=/proc/sysrq-trigger"),
    Probe::same("write-any-sysctl"),
    Probe::same("write-any-sys"),
];

const KERNEL_FILES: &[Probe] = &[
    Probe::optional("read-kernel=/proc/kcore"),
    Probe::same("read-kernel=/proc/timer_list"),
    Probe::optional("read-kernel=/proc/sched_debug"),
    Probe::same("read-kernel=/proc/keys"),
];

const DEVICES: &[Probe] = &[
    Probe::same("open-devices"),
    Probe::same("make-device=/tmp"),
    Probe::weaker("make-device=/home/sandbox", "make-device=/var/tmp"),
    Probe::weaker("make-device=/dev", "make-device=/dev"),
];

const CGROUPS: &[Probe] =
    &[Probe::same("write-cgroups"), Probe::weaker("mount-cgroups", "mount-cgroups=weaker")];

const LEAKED: &[Probe] = &[Probe::same("leaked-descriptors")];

/// A descriptor that children inherit unless somebody sees to it. A case has a process of its own, so that no other
/// case gets it.
fn inheritable() -> Result<std::fs::File, Fail> {
    let file = std::fs::File::open("/etc/hostname")?;
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).map_err(std::io::Error::from)?;
    Ok(file)
}

async fn leaked_descriptors(ctx: &Ctx) -> Result<Verdict, Fail> {
    let _open = inheritable()?;
    stopped(ctx, LEAKED).await
}

async fn leaked_descriptors_control(ctx: &Ctx) -> Result<Control, Fail> {
    let _open = inheritable()?;
    reached(ctx, LEAKED).await
}

/// Files of the host with a secret in them, removed with the value.
struct Secrets(Vec<PathBuf>);

impl Secrets {
    fn plant(ctx: &Ctx) -> Result<Self, Fail> {
        let mut all = Self(Vec::new());
        let mut folders = vec![ctx.scratch().to_owned(), ctx.folders.data.clone()];
        folders.extend(std::env::var_os("HOME").map(PathBuf::from));
        for folder in folders {
            let path = folder.join(format!(".moltis-testkit-secret-{}", crate::context::unique()));
            // A home that cannot be written to is one file less; the scratch folder always can.
            if std::fs::write(&path, "secret of the host").is_ok() {
                all.0.push(path);
            }
        }
        ensure!(!all.0.is_empty(), "nowhere to plant a secret");
        Ok(all)
    }

    fn calls(&self, find_in: &str) -> Vec<String> {
        let mut calls = Vec::new();
        for path in &self.0 {
            let text = path.display();
            calls.push(format!("read-file={text}"));
            calls.push(format!("read-file=/proc/1/root{text}"));
            calls.push(format!("read-file=/proc/self/root/../..{text}"));
            calls.push(format!("read-through-proc-roots={text}"));
        }
        let name = self.0[0].file_name().unwrap_or_default().to_string_lossy().into_owned();
        calls.push(format!("find-file={name}{find_in}"));
        calls
    }
}

impl Drop for Secrets {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn refs(calls: &[String]) -> Vec<&str> {
    calls.iter().map(String::as_str).collect()
}

async fn host_home(ctx: &Ctx) -> Result<Verdict, Fail> {
    let secrets = Secrets::plant(ctx)?;
    let place = ctx.place().await?;
    if !place.processes {
        return host_home_by_shell(&place, &secrets).await;
    }
    all_stopped(&inside(&place, &refs(&secrets.calls(""))).await?)?;
    let mut fixed =
        vec!["read-file=/etc/shadow", "read-file=/root/.bashrc", "read-file=/proc/1/root/etc/shadow"];
    let system = ["/boot/System.map", "/var/log/dpkg.log", "/var/lib/dpkg/status"];
    let calls = system.map(|path| format!("read-file={path}"));
    if ctx.has_image() {
        // An image has a system of its own, which may be read. What must not be read is the host's.
        for path in system {
            let Ok(own) = std::fs::metadata(path) else { continue };
            let own = format!("{} {} {}", own.ino(), own.size(), own.mtime());
            let shown = place.out(format!("stat -Lc '%i %s %Y' {path} 2>/dev/null; :")).await?;
            ensure!(shown.trim() != own, "{path} is the host's");
        }
    } else {
        fixed.extend(calls.iter().map(String::as_str));
    }
    all_stopped(&inside(&place, &fixed).await?)?;
    Ok(Verdict::Pass)
}

/// The same where no program of the machine's can run.
async fn host_home_by_shell(place: &Place, secrets: &Secrets) -> Result<Verdict, Fail> {
    for path in &secrets.0 {
        let (path, name) = (path.display(), path.file_name().unwrap_or_default().to_string_lossy());
        let ups = "../".repeat(12);
        let line = format!(
            "for at in {path} /proc/1/root{path} /proc/self/root{path} {ups}{path} /proc/self/cwd/{ups}{path}; do \
             cat $at; ln -s $at l; cat l; rm l; cp $at c; cat c; . $at; read x <$at; echo $x; done 2>&1; \
             find / -name {name} 2>/dev/null; ls -d /proc/[0-9]*/root 2>/dev/null; echo over"
        );
        let text = place.out(line).await?;
        ensure!(!text.contains("secret of the host"), "{path} was read: {text}");
        let found = text.lines().any(|line| line.ends_with(&*name) && line.starts_with('/'));
        ensure!(!found, "{path} shows: {text}");
    }
    for path in ["/etc/shadow", "/root/.bashrc", "/var/lib/dpkg/status"] {
        ensure!(place.sh(format!("cat {path}")).await?.outcome.exit_code() != 0, "{path} was read");
    }
    Ok(Verdict::Pass)
}

async fn host_home_control(ctx: &Ctx) -> Result<Control, Fail> {
    let secrets = Secrets::plant(ctx)?;
    let calls = secrets.calls(&format!(":{}", ctx.scratch().display()));
    // Process 1 of the host is somebody else's, also for root of a container.
    let calls: Vec<String> = calls.into_iter().filter(|c| !c.contains("/proc/1/")).collect();
    all_reached(&outside(&refs(&calls)).await?, &[])
}

/// A listener on an abstract socket of the host that greets everybody.
fn abstract_listener() -> Result<(String, tokio::task::JoinHandle<()>), Fail> {
    use std::os::linux::net::SocketAddrExt;
    let name = format!("moltis-testkit-{}", crate::context::unique());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name)?;
    let listener = std::os::unix::net::UnixListener::bind_addr(&address)?;
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"host").await;
        }
    });
    Ok((name, task))
}

async fn abstract_sockets_control(_ctx: &Ctx) -> Result<Control, Fail> {
    let (name, task) = abstract_listener()?;
    let found = outside(&[&format!("connect-abstract={name}")]).await?;
    task.abort();
    all_reached(&found, &[])
}

async fn abstract_sockets_from(place: &Place) -> Result<(), Fail> {
    let (name, task) = abstract_listener()?;
    let found = inside(place, &[&format!("connect-abstract={name}")]).await?;
    task.abort();
    all_stopped(&found)
}

async fn abstract_sockets(ctx: &Ctx) -> Result<Verdict, Fail> {
    abstract_sockets_from(&ctx.place().await?).await?;
    Ok(Verdict::Pass)
}

async fn abstract_sockets_open(ctx: &Ctx) -> Result<Verdict, Fail> {
    let mut spec = ctx.spec()?;
    spec.network = Setting::new(Network::Open, Origin::Flag);
    if let Some(reason) = ctx.refused(&ctx.guarantees.network_open, &spec, "network")? {
        return Ok(Verdict::Declared(reason));
    }
    abstract_sockets_from(&ctx.open(&spec).await?).await?;
    Ok(Verdict::Pass)
}

async fn port_calls() -> Result<(Vec<String>, tokio::task::JoinHandle<()>), Fail> {
    let (port, task) = host_listener().await?;
    Ok((host_addresses().iter().map(|a| format!("connect-tcp={a}:{port}")).collect(), task))
}

async fn host_ports_control(_ctx: &Ctx) -> Result<Control, Fail> {
    let (calls, task) = port_calls().await?;
    let found = outside(&refs(&calls)).await?;
    task.abort();
    all_reached(&found, &[])
}

async fn host_ports(ctx: &Ctx) -> Result<Verdict, Fail> {
    if let moltis_sandbox::Promise::NotEnforced(reason) = &ctx.guarantees.network_blocked {
        return Ok(Verdict::Declared(reason.clone()));
    }
    let (calls, task) = port_calls().await?;
    let found = inside(&ctx.place().await?, &refs(&calls)).await?;
    task.abort();
    all_stopped(&found)?;
    Ok(Verdict::Pass)
}

/// A plain process of the host that a sandbox must neither see nor reach.
fn victim() -> Result<(tokio::process::Child, Vec<String>), Fail> {
    let word = format!("7777.{}", std::process::id());
    let child = tokio::process::Command::new("sleep").arg(&word).kill_on_drop(true).spawn()?;
    let pid = child.id().ok_or_else(|| Fail::new("no pid"))?;
    let calls = vec![format!("sees-process=sleep:{word}"), format!("signal-outside={pid}")];
    Ok((child, calls))
}

async fn host_processes_control(_ctx: &Ctx) -> Result<Control, Fail> {
    let (mut child, calls) = victim()?;
    let found = outside(&refs(&calls)).await?;
    child.kill().await?;
    all_reached(&found, &[])
}

async fn host_processes(ctx: &Ctx) -> Result<Verdict, Fail> {
    let (mut child, calls) = victim()?;
    let place = ctx.place().await?;
    // The number may be taken inside by another process; then nothing can be told from it.
    let pid = child.id().unwrap_or(0);
    let taken = place.out(format!("test -e /proc/{pid} && echo taken; :")).await?;
    all_stopped(&inside(&place, &[&calls[0]]).await?)?;
    if taken.is_empty() {
        all_stopped(&inside(&place, &[&calls[1]]).await?)?;
    }
    ensure!(child.try_wait()?.is_none(), "the host's process is gone");
    child.kill().await?;
    Ok(Verdict::Pass)
}

/// A folder with links to a secret beside it, the secret, and a folder beside it.
fn plant(ctx: &Ctx, folder: &Path) -> Result<(PathBuf, PathBuf), Fail> {
    let secret = ctx.folder("beside")?.join("secret");
    std::fs::write(&secret, "secret of the host")?;
    let beside = ctx.folder("beside")?;
    symlink(&secret, folder.join("to-secret"))?;
    symlink(&beside, folder.join("to-beside"))?;
    symlink("/", folder.join("to-root"))?;
    symlink("../../../../../../../../..", folder.join("up"))?;
    Ok((secret, beside))
}

async fn planted_links_control(ctx: &Ctx) -> Result<Control, Fail> {
    let folder = ctx.folder("plain")?;
    let (secret, beside) = plant(ctx, &folder)?;
    let at = folder.display();
    let line = format!(
        "cat {at}/to-secret && cat {at}/up{secret} && echo x >{at}/to-beside/x && cat {at}/to-root{secret}",
        secret = secret.display()
    );
    let ran = plain("/bin/sh", &["-c", &line], "", Duration::from_secs(10)).await?;
    ensure_eq!(ran.stdout, "secret of the host".repeat(3), "what the links show on the host");
    ensure!(beside.join("x").exists(), "the link does not lead there on the host");
    Ok(Control::Works)
}

/// Links in this guest folder must lead nowhere on the host: neither for commands nor for file access.
async fn lead_nowhere(place: &Place, at: &str, secret: &Path, beside: &Path) -> Result<(), Fail> {
    let path = secret.display();
    let line = format!(
        "cat {at}/to-secret {at}/up{path} {at}/to-root{path} /proc/self/cwd/to-secret; \
         echo changed >{at}/to-secret; echo x >{at}/to-beside/x; ln {at}/to-secret {at}/hard; cat {at}/hard"
    );
    let ran = place.sh(format!("{{ {line}; }} 2>/dev/null")).await?;
    ensure_eq!(ran.text(), "", "what the links show inside");
    let files = place.files();
    for name in [format!("{at}/to-secret"), format!("{at}/up{path}"), format!("{at}/to-root{path}")] {
        let guest = crate::contract::files::at(&name)?;
        if let Ok(found) = files.read(&guest, 0, None).await {
            let content = tree::collect(found.content).await?;
            fail!("file access reads {name}: {:?}", String::from_utf8_lossy(&content));
        }
        let options = WriteOptions { mode: None, overwrite: true, parents: false };
        let _ = files.write(&guest, options, tree::stream("changed")).await;
    }
    let guest = crate::contract::files::at(format!("{at}/to-beside/y"))?;
    let options = WriteOptions { mode: None, overwrite: true, parents: false };
    let _ = files.write(&guest, options, tree::stream("y")).await;
    let _ = files.remove(&crate::contract::files::at(format!("{at}/to-beside"))?, true).await;
    ensure_eq!(std::fs::read_to_string(secret)?, "secret of the host", "the secret");
    ensure_eq!(std::fs::read_dir(beside)?.count(), 0, "entries of the folder beside");
    // A whole tree goes out with its links as links.
    let archive = tree::collect(files.download(&crate::contract::files::at(at)?).await?).await?;
    ensure!(!crate::run::contains(&archive, b"secret of the host"), "the archive holds the secret");
    Ok(())
}

async fn planted_links(ctx: &Ctx) -> Result<Verdict, Fail> {
    let source = ctx.folder("work")?;
    let (secret, beside) = plant(ctx, &source)?;
    let spec = ctx.spec_with_workspace(&source, MountMode::Rw)?;
    if let Some(reason) = ctx.refused(&ctx.guarantees.workspace, &spec, "workspace")? {
        return Ok(Verdict::Declared(reason));
    }
    let place = ctx.open(&spec).await?;
    lead_nowhere(&place, "/workspace", &secret, &beside).await?;
    Ok(Verdict::Pass)
}

async fn planted_home(ctx: &Ctx) -> Result<Verdict, Fail> {
    if let moltis_sandbox::Promise::NotEnforced(reason) = &ctx.guarantees.home {
        return Ok(Verdict::Declared(reason.clone()));
    }
    let spec = ctx.spec()?;
    let (secret, beside) = plant(ctx, &spec.home.clone().unwrap_or_default())?;
    let place = ctx.open(&spec).await?;
    lead_nowhere(&place, "/home/sandbox", &secret, &beside).await?;
    Ok(Verdict::Pass)
}
