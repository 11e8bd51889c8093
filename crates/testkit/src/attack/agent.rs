//! Reaching for the agent: its memory, descriptors and socket, its life, and the deadlines that it keeps.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use moltis_sandbox::exec::TerminalSize;
use moltis_sandbox::{Ending, Error, Lifetime, Status};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::{all_reached, all_stopped, inside, outside};
use crate::case::Control;
use crate::program::{PYTHON, plain};
use crate::run::{argv, eventually, shell};
use crate::{Case, Ctx, Fail, Place, Verdict, case, ensure, ensure_eq, fail};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("attack.ptrace-agent", ptrace).control(|ctx| Box::pin(ptrace_control(ctx))),
        case!("attack.read-agent", read).control(|ctx| Box::pin(read_control(ctx))),
        case!("attack.agent-socket-inside", socket_inside)
            .control(|ctx| Box::pin(socket_inside_control(ctx))),
        case!("attack.agent-impersonated", impersonated).control(|ctx| Box::pin(impersonated_control(ctx))),
        case!("attack.kill-everything", kill_everything)
            .control(|ctx| Box::pin(kill_control(ctx)))
            .law(4)
            .limit(60),
        case!("attack.stop-everything", stop_everything)
            .control(|ctx| Box::pin(kill_control(ctx)))
            .law(4)
            .limit(60),
        case!("attack.daemon-after-time-out", daemon).control(|ctx| Box::pin(daemon_control(ctx))).law(4),
        case!("attack.terminal-of-the-caller", terminal_of_the_caller)
            .control(|ctx| Box::pin(terminal_control(ctx))),
    ]
}

const TRACE: [&str; 2] = ["ptrace-seize", "ptrace-attach"];

const READ: [&str; 7] = [
    "read-memory",
    "open-memory",
    "process-vm-read",
    "read-environment",
    "list-descriptors",
    "take-descriptor",
    "read-links",
];

/// Aims probes at a target.
fn aimed(names: &[&str], target: &str) -> Vec<String> {
    names.iter().map(|name| format!("{name}={target}")).collect()
}

async fn at_agent(ctx: &Ctx, names: &[&str]) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let calls = aimed(names, "agent");
    let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
    all_stopped(&inside(&place, &calls).await?)?;
    ensure_eq!(place.out("echo alive").await?, "alive\n", "afterwards");
    Ok(Verdict::Pass)
}

/// The same, aimed at a plain process of the host.
async fn at_plain_process(names: &[&str]) -> Result<Control, Fail> {
    let mut victim = tokio::process::Command::new("sleep").arg("60").kill_on_drop(true).spawn()?;
    let pid = victim.id().ok_or_else(|| Fail::new("no pid"))?.to_string();
    let calls = aimed(names, &pid);
    let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
    let found = outside(&calls).await?;
    victim.kill().await?;
    all_reached(&found, &[])
}

async fn ptrace(ctx: &Ctx) -> Result<Verdict, Fail> {
    at_agent(ctx, &TRACE).await
}

async fn ptrace_control(_ctx: &Ctx) -> Result<Control, Fail> {
    at_plain_process(&TRACE).await
}

async fn read(ctx: &Ctx) -> Result<Verdict, Fail> {
    at_agent(ctx, &READ).await
}

async fn read_control(_ctx: &Ctx) -> Result<Control, Fail> {
    at_plain_process(&READ).await
}

async fn socket_inside(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    // A container's agent can only be reached by a socket that lies inside. It takes connections from there, and must
    // end every one of them before a word is said.
    let probe = if ctx.has_image() { "talk-to-agent" } else { "find-agent-socket" };
    all_stopped(&inside(&place, &[probe]).await?)?;
    ensure_eq!(place.out("echo alive").await?, "alive\n", "afterwards");
    Ok(Verdict::Pass)
}

async fn socket_inside_control(ctx: &Ctx) -> Result<Control, Fail> {
    let path = ctx.scratch().join("socket");
    let listener = UnixListener::bind(&path)?;
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"host").await;
        }
    });
    let found = outside(&[&format!("connect-path={}", path.display())]).await?;
    task.abort();
    all_reached(&found, &[])
}

/// Sockets below a folder.
fn sockets(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_socket() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

/// A false agent: it takes connections, says a fair hello and a false end, and keeps what it was told.
fn false_agent(path: &Path) -> Result<Arc<Mutex<Vec<u8>>>, Fail> {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listener = UnixListener::bind(path)?;
    let ears = heard.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let ears = ears.clone();
            tokio::spawn(async move {
                // Hello of version 1, Started, a line of output.
                let _ =
                    stream.write_all(b"MOLTIS\x01\x00\x01\x03\0\0\0\x02\x01\x02\x03\x06\0\0\0faked\n").await;
                let mut piece = [0; 4096];
                while let Ok(n @ 1..) = stream.read(&mut piece).await {
                    ears.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&piece[..n]);
                }
            });
        }
    });
    Ok(heard)
}

async fn impersonated(ctx: &Ctx) -> Result<Verdict, Fail> {
    let mut spec = ctx.spec()?;
    if ctx.guarantees.adopt.is_held() {
        spec.lifetime = Lifetime::Idle(Duration::from_secs(60));
    }
    let place = ctx.open(&spec).await?;
    place.out(format!("echo mine >{}", place.path("mine"))).await?;
    let paths = sockets(&ctx.folders.data);
    if paths.is_empty() {
        return Ok(Verdict::Uncontrolled("no socket lies in the data directory".into()));
    }
    let mut ears = Vec::new();
    for path in &paths {
        std::fs::remove_file(path)?;
        ears.push(false_agent(path)?);
    }
    for backend in [ctx.backend.clone(), ctx.backend_again()] {
        let sandbox = match backend.open(&spec).await {
            Ok(sandbox) => sandbox,
            Err(Error::Lost(_) | Error::Unavailable(_) | Error::Refused(_)) => continue,
            Err(e) => fail!("{} {e}", e.kind()),
        };
        let mut request = shell("echo real");
        request.env.push(("TOKEN".into(), "told-to-the-agent".into()));
        let mut said = String::new();
        match sandbox.exec(request).await {
            Err(Error::Lost(_) | Error::Unavailable(_)) => {}
            Err(e) => fail!("{} {e}", e.kind()),
            Ok(mut exec) => {
                while let Ok(Some(event)) =
                    tokio::time::timeout(Duration::from_secs(5), exec.events.next()).await
                {
                    said.push_str(&format!("{event:?}\n"));
                }
            }
        }
        ensure!(!said.contains("faked"), "the false agent was believed: {said}");
        let _ = tokio::time::timeout(Duration::from_secs(5), sandbox.close()).await;
    }
    for heard in ears {
        let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(!crate::run::contains(&heard, b"told-to-the-agent"), "the false agent was told the secret");
    }
    for path in paths {
        let _ = std::fs::remove_file(path);
    }
    Ok(Verdict::Pass)
}

async fn impersonated_control(ctx: &Ctx) -> Result<Control, Fail> {
    let path = ctx.scratch().join("false");
    let heard = false_agent(&path)?;
    let mut stream = UnixStream::connect(&path).await?;
    stream.write_all(b"told").await?;
    let mut said = [0; 27];
    stream.read_exact(&mut said).await?;
    ensure!(crate::run::contains(&said, b"faked"), "the false agent says nothing");
    let told = eventually(Duration::from_secs(2), async || {
        Ok(*heard.lock().unwrap_or_else(PoisonError::into_inner) == b"told")
    })
    .await?;
    ensure!(told, "the false agent hears nothing");
    Ok(Control::Works)
}

async fn kill_control(_ctx: &Ctx) -> Result<Control, Fail> {
    all_reached(&outside(&["kill-everything=weaker"]).await?, &[])
}

/// After the attack the sandbox answers, by the same handle or, if it was broken, by a new one that says so.
async fn answers_again(ctx: &Ctx, place: &Place) -> Result<(), Fail> {
    match place.sandbox.exec(shell("echo alive")).await {
        Ok(exec) => {
            let ran = crate::Live::of(exec, Instant::now()).await?.finish(Duration::from_secs(10)).await?;
            ensure_eq!(ran.text(), "alive\n", "afterwards");
        }
        // Broken by its own command: that is allowed, as long as the next one opens.
        Err(Error::Unavailable(_) | Error::Lost(_)) => {
            let fresh = ctx.place().await?;
            ensure_eq!(fresh.out("echo alive").await?, "alive\n", "in a new one");
        }
        Err(e) => return Err(e.into()),
    }
    Ok(())
}

/// Runs a hostile line with a time-out of two seconds and returns how it ended and when.
async fn hostile(place: &Place, request: moltis_sandbox::ExecRequest) -> Result<Option<Ending>, Fail> {
    // The lines reach for every process there is: never where that would be the host's.
    let own = std::fs::read_link("/proc/self/ns/pid")?;
    let inside = place.out("readlink /proc/self/ns/pid").await?;
    ensure!(
        inside.starts_with("pid:[") && inside.trim() != own.to_string_lossy(),
        "no pid namespace: {inside:?}"
    );
    let started = Instant::now();
    let mut request = request;
    request.timeout = Some(Duration::from_secs(2));
    let ended = match place.start(request).await {
        Ok(live) => live.finish(Duration::from_secs(12)).await,
        Err(e) => Err(e),
    };
    ensure!(started.elapsed() < Duration::from_secs(11), "no answer for {:?}", started.elapsed());
    match ended {
        Ok(ran) => Ok(Some(ran.outcome.ending)),
        // Its own supervisor may be among the victims; then the outcome is honestly not known.
        Err(e) if e.0.contains("lost [") || e.0.contains("unavailable [") => Ok(None),
        Err(e) => Err(e),
    }
}

async fn kill_everything(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    for line in
        ["kill -9 -1; echo on", "kill -9 1; kill -TERM 1; kill -9 -1", "setsid sh -c 'kill -9 -1' & sleep 30"]
    {
        let marker = ctx.marker();
        let request = shell(format!("trap '' TERM; setsid {} & sleep 0.3; {line}", marker.sleep()));
        hostile(&place, request).await?;
        marker.wait_for(&place, 0, Duration::from_secs(5)).await?;
        answers_again(ctx, &place).await?;
    }
    // What another caller runs at the time ends too, and its caller is told within its time.
    let marker = ctx.marker();
    let other = place.start(shell(marker.sleep())).await?;
    marker.wait_for(&place, 1, Duration::from_secs(5)).await?;
    hostile(&place, shell("kill -9 -1")).await?;
    match other.finish(Duration::from_secs(10)).await {
        Ok(ran) => ensure_eq!(ran.outcome.status, Status::Signal(9), "the other command's status"),
        Err(e) => ensure!(e.0.contains("lost [") || e.0.contains("unavailable ["), "{e}"),
    }
    answers_again(ctx, &place).await?;
    Ok(Verdict::Pass)
}

async fn stop_everything(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    for line in [
        "kill -STOP -1; echo on; sleep 30",
        "kill -STOP 1; kill -STOP -1",
        "setsid sh -c 'while :; do kill -STOP -1; done' & sleep 30",
    ] {
        let marker = ctx.marker();
        let request = shell(format!("{} & sleep 0.3; {line}", marker.sleep()));
        hostile(&place, request).await?;
        marker.wait_for(&place, 0, Duration::from_secs(8)).await?;
        answers_again(ctx, &place).await?;
    }
    Ok(Verdict::Pass)
}

/// A daemon in the old style: its own session, its own group, no terminal, no parent, deaf to everything.
const DAEMON: &str = "import os,sys,signal\nfor s in (1,2,3,13,15): signal.signal(s, signal.SIG_IGN)\n\
                      if os.fork()==0:\n  os.setsid()\n  if os.fork(): os._exit(0)\n  \
                      for fd in range(3): os.close(fd)\n  os.execvp('sleep', ['sleep', sys.argv[1]])\n\
                      print('begun', flush=True)\nsignal.pause()";

async fn daemon(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let marker = ctx.marker();
    let length = marker.sleep().replace("sleep ", "");
    let mut request = argv(&["python3", "-c", DAEMON, &length]);
    request.timeout = Some(Duration::from_secs(2));
    let ran = place.run(request).await?;
    ensure_eq!((ran.text().as_str(), ran.outcome.ending), ("begun\n", Ending::TimedOut), "how it went");
    ensure_eq!(marker.count(&place).await?, 0, "processes left after the time-out");
    Ok(Verdict::Pass)
}

async fn daemon_control(ctx: &Ctx) -> Result<Control, Fail> {
    // The usual defence, killing the process group, leaves it running.
    let marker = ctx.marker();
    let length = marker.sleep().replace("sleep ", "");
    let killed = plain(PYTHON, &["-c", DAEMON, &length], "", Duration::from_secs(1)).await;
    ensure!(killed.is_err(), "it ended by itself");
    let alive = marker.on_host();
    for pid in &alive {
        if let Some(pid) = rustix::process::Pid::from_raw((*pid).try_into().unwrap_or(0)) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    ensure_eq!(alive.len(), 1, "daemons that survive the end of their group");
    let gone = eventually(Duration::from_secs(3), async || Ok(marker.on_host().is_empty())).await?;
    ensure!(gone, "the control's own daemon is still there");
    Ok(Control::Works)
}

/// Input pushed into the terminal that a command shares with whoever reads next from it.
const PUSH: &str = "import fcntl,termios,os\nfd=os.open('/dev/tty',os.O_RDWR)\n\
                    for c in b'pushed\\n': fcntl.ioctl(fd,termios.TIOCSTI,bytes([c]))\nprint('pushed it')";

async fn terminal_of_the_caller(ctx: &Ctx) -> Result<Verdict, Fail> {
    if let moltis_sandbox::Promise::NotEnforced(reason) = &ctx.guarantees.terminal {
        return Ok(Verdict::Declared(reason.clone()));
    }
    let place = ctx.place().await?;
    let mut request = argv(&["python3", "-c", PUSH]);
    request.terminal = Some(TerminalSize { rows: 24, columns: 80 });
    let ran = place.run(request).await?;
    ensure!(ran.outcome.exit_code() == 1 && ran.text().contains("Error"), "not stopped: {:?}", ran.text());
    ensure!(!ran.text().contains("pushed it"), "input was pushed");
    // Without a terminal of its own a command has none at all, not the caller's.
    let ran = place.sh("exec 3<>/dev/tty").await?;
    ensure!(ran.outcome.exit_code() != 0, "a terminal is there");
    Ok(Verdict::Pass)
}

async fn terminal_control(_ctx: &Ctx) -> Result<Control, Fail> {
    all_reached(&outside(&["tiocsti=new"]).await?, &[])
}
