//! The way into a machine by SSH, with a server on loopback that really runs what it is told.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use moltis_agent::{AgentSandbox, Closer, Place, Transport};
use moltis_backend_firecracker::ssh::{self, Reach, Settings, SshTransport};
use moltis_sandbox::{
    Command, Ending, Exec, ExecEvent, ExecRequest, GuestPath, Outcome, Sandbox, SandboxSpec, SessionKey,
    Status,
};

use crate::ssh_server::{Opens, Server, new_key};
use crate::support::LONG;

const SETTINGS: Settings = Settings { held: false, egress: false, pids: Some(500) };

/// The agent that was brought, which ends with this, and the folder that it lies in.
struct Moved(Reach);

impl Moved {
    async fn new(server: &Server) -> Self {
        Self(ssh::move_in(server.address, &server.key, SETTINGS, LONG).await.unwrap())
    }

    fn folder(&self) -> &Path {
        Path::new(&self.0.socket).parent().unwrap()
    }

    /// The processes that run what was brought.
    fn processes(&self) -> Vec<i32> {
        let program = self.folder().join("guest");
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let runs = |pid: &i32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program);
        pids.filter(runs).collect()
    }

    fn end(&self) {
        let until = Instant::now() + LONG;
        while Instant::now() < until {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            for pid in left {
                let pid = rustix::process::Pid::from_raw(pid).unwrap();
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Moved {
    fn drop(&mut self) {
        self.end();
        let _ = std::fs::remove_dir_all(self.folder());
    }
}

struct Nothing;

#[async_trait]
impl Closer for Nothing {
    async fn close(&self) -> moltis_sandbox::Result<()> {
        Ok(())
    }
}

fn sandbox(server: &Server, reach: &Reach) -> AgentSandbox {
    let transport = Arc::new(SshTransport::new(server.address, Arc::clone(&server.key), reach));
    let id = SandboxSpec::new(SessionKey::new("s").unwrap(), moltis_sandbox::Lifetime::Ephemeral).id();
    let env = vec![("HOME".into(), (&reach.home).into()), ("PATH".into(), "/usr/bin:/bin".into())];
    let place = Place { env, cwd: GuestPath::new(reach.home.as_str()), shell: "/bin/sh".into() };
    AgentSandbox::new(id, true, place, transport, Box::new(Nothing))
}

fn shell(line: &str) -> ExecRequest {
    ExecRequest::new(Command::Shell(line.into()))
}

async fn finish(exec: Exec) -> (Vec<u8>, Vec<u8>, moltis_sandbox::Result<Outcome>) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let Exec { mut events, control: _control } = exec;
    loop {
        match events.next().await.expect("it ends without an end") {
            Ok(ExecEvent::Stdout(bytes)) => out.extend_from_slice(&bytes),
            Ok(ExecEvent::Stderr(bytes)) => err.extend_from_slice(&bytes),
            Ok(ExecEvent::Exit(outcome)) => return (out, err, Ok(outcome)),
            Ok(_) => {}
            Err(error) => return (out, err, Err(error)),
        }
    }
}

async fn run(sandbox: &AgentSandbox, request: ExecRequest) -> (Vec<u8>, Vec<u8>, Outcome) {
    let (out, err, outcome) = finish(sandbox.exec(request).await.unwrap()).await;
    (out, err, outcome.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_keep_their_streams_and_ends_and_share_a_kept_connection() {
    let server = Server::new(true).await;
    let moved = Moved::new(&server).await;
    let sandbox = sandbox(&server, &moved.0);
    let (out, err, outcome) = run(&sandbox, shell("echo out; echo err >&2; pwd; exit 7")).await;
    let home = server.home.path().display();
    assert_eq!(String::from_utf8(out).unwrap(), format!("out\n{home}\n"));
    assert_eq!(err, b"err\n");
    assert_eq!((outcome.status, outcome.ending), (Status::Code(7), Ending::Exited));
    let (_, _, outcome) = run(&sandbox, shell("kill -9 $$")).await;
    assert_eq!(outcome.status, Status::Signal(9));
    let (out, _, _) = run(&sandbox, shell("grep NoNewPrivs /proc/self/status; id -u")).await;
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("NoNewPrivs:\t1\n") && !text.ends_with("\n0\n"), "{text}");
    let (out, _, _) = run(&sandbox, shell("head -c 5000000 /dev/zero | tr '\\000' x")).await;
    assert_eq!((out.len(), out.iter().all(|byte| *byte == b'x')), (5_000_000, true));
    // One for the agent's coming, and one for all that came after it.
    assert_eq!(server.logins.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_who_stalls_holds_up_nobody_else() {
    let server = Server::new(true).await;
    let moved = Moved::new(&server).await;
    let sandbox = sandbox(&server, &moved.0);
    let stalled = sandbox.exec(shell("yes")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (out, _, _) = tokio::time::timeout(LONG, run(&sandbox, shell("echo on"))).await.unwrap();
    assert_eq!(out, b"on\n");
    // Its caller is gone: so is it.
    drop(stalled);
    let until = Instant::now() + LONG;
    while sandbox.activity().await.unwrap().operations > 0 {
        assert!(Instant::now() < until, "it goes on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_out_ends_the_descent_and_keeps_what_was_said() {
    let server = Server::new(true).await;
    let moved = Moved::new(&server).await;
    let sandbox = sandbox(&server, &moved.0);
    let mut request =
        shell("echo before; setsid sleep 4321 & setsid sh -c 'trap \"\" TERM; sleep 4321' & wait");
    request.timeout = Some(Duration::from_secs(1));
    let (out, _, outcome) = run(&sandbox, request).await;
    assert_eq!((out, outcome.ending), (b"before\n".to_vec(), Ending::TimedOut));
    let (out, _, _) = run(&sandbox, shell("pgrep -u $(id -u) -f 'sleep 432[1]'; echo none")).await;
    assert_eq!(String::from_utf8(out).unwrap(), "none\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_in_the_background_outlives_the_connection() {
    let server = Server::new(true).await;
    let moved = Moved::new(&server).await;
    let first = sandbox(&server, &moved.0);
    let mut request = shell("echo begun; exec sleep 4322");
    request.background = true;
    drop(first.exec(request).await.unwrap());
    drop(first);
    server.cut();
    let second = sandbox(&server, &moved.0);
    let processes = second.processes().await.unwrap();
    assert_eq!(processes.len(), 1, "{processes:?}");
    let outcome = second.stop(processes[0].id).await.unwrap();
    assert_eq!(outcome.ending, Ending::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_is_made_anew_and_its_command_lost() {
    let server = Server::new(true).await;
    let moved = Moved::new(&server).await;
    let sandbox = sandbox(&server, &moved.0);
    assert_eq!(run(&sandbox, shell("echo 1")).await.0, b"1\n");
    let running = sandbox.exec(shell("sleep 4323")).await.unwrap();
    server.cut();
    let (_, _, end) = tokio::time::timeout(LONG, finish(running)).await.unwrap();
    assert_eq!(end.unwrap_err().kind(), "lost");
    assert_eq!(run(&sandbox, shell("echo 2")).await.0, b"2\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_server_key_is_an_impostor_and_a_dead_agent_is_gone() {
    let mut server = Server::new(true).await;
    let moved = Moved::new(&server).await;
    let transport = SshTransport::new(server.address, Arc::clone(&server.key), &moved.0);
    drop(transport.connect().await.unwrap());
    moved.end();
    let error = transport.connect().await.unwrap_err();
    assert!(matches!(error, moltis_agent::Error::Gone), "{error:?}");
    server.again().await;
    let transport = SshTransport::new(server.address, Arc::clone(&server.key), &moved.0);
    let error = transport.connect().await.unwrap_err();
    assert!(matches!(error, moltis_agent::Error::Impostor(_)), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_takes_no_connection_is_not_gone_while_it_runs() {
    let server = Server::new(true).await;
    let moved = Moved::new(&server).await;
    let transport = SshTransport::new(server.address, Arc::clone(&server.key), &moved.0);
    server.deaf.store(1, Ordering::SeqCst);
    drop(transport.connect().await.unwrap());
    server.deaf.store(2, Ordering::SeqCst);
    let error = transport.connect().await.unwrap_err();
    let moltis_agent::Error::Unreachable(why) = &error else { panic!("{error:?}") };
    assert!(why.to_string().contains("not certain that the agent is over"), "{why}");
    drop(transport.connect().await.unwrap());
    moved.end();
    let error = transport.connect().await.unwrap_err();
    assert!(matches!(error, moltis_agent::Error::Gone), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_opens_a_channel_at_us_loses_the_connection() {
    let server = Server::new(true).await;
    let moved = Moved::new(&server).await;
    for kind in Opens::ALL {
        let transport = SshTransport::new(server.address, Arc::clone(&server.key), &moved.0);
        *server.opens.lock().unwrap() = Some(kind);
        // Which of the two comes first is left to chance.
        let way = transport.connect().await;
        let until = Instant::now() + LONG;
        let came = loop {
            if let Some(came) = server.opened.lock().unwrap().take() {
                break came;
            }
            assert!(Instant::now() < until, "{kind:?}: nothing came of it");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert!(came.is_err(), "{kind:?}: it was opened");
        drop(way);
        drop(transport.connect().await.unwrap());
    }
    // One for the agent's coming, and for each kind the one that was lost and the one after it.
    assert_eq!(server.logins.load(Ordering::SeqCst), 1 + 2 * Opens::ALL.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_does_not_allow_is_named() {
    let server = Server::new(false).await;
    let moved = Moved::new(&server).await;
    let transport = SshTransport::new(server.address, Arc::clone(&server.key), &moved.0);
    let error = transport.connect().await.unwrap_err();
    let moltis_agent::Error::Unreachable(why) = &error else { panic!("{error:?}") };
    assert!(why.to_string().contains("AllowStreamLocalForwarding"), "{why}");
    let refused = ssh::move_in(server.address, &new_key(), SETTINGS, LONG).await.unwrap_err();
    let refused = moltis_sandbox::Error::from(refused);
    assert_eq!((refused.kind(), refused.code()), ("unavailable", "firecracker-ssh"));
    assert!(refused.diagnosis().message.contains("does not let `sandbox` in"), "{refused:?}");
}

#[test]
fn a_key_is_taken_only_if_it_is_ours_and_nobody_else_may_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("key");
    let code = |path: &Path| {
        let error = moltis_sandbox::Error::from(ssh::read_key(path).unwrap_err());
        assert!(error.diagnosis().fix.is_some());
        error.code().to_owned()
    };
    assert_eq!(code(&path), "firecracker-ssh-key-missing");
    assert_eq!(code(temp.path()), "firecracker-ssh-key-missing");
    let key = new_key();
    let text = key.to_openssh(russh::keys::ssh_key::LineEnding::LF).unwrap();
    std::fs::write(&path, text.as_bytes()).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(code(&path), "firecracker-ssh-key-open");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(ssh::read_key(&path).unwrap().public_key().key_data(), key.public_key().key_data());
    // Only root can give a file away; whose it may be for others is tried beside the function.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(64_322), None).unwrap();
        assert_eq!(code(&path), "firecracker-ssh-key-owner");
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
    }
    std::fs::write(&path, "no key").unwrap();
    assert_eq!(code(&path), "firecracker-ssh-key-format");
}
