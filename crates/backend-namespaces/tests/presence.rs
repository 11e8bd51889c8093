//! Sandboxes that live and cannot be spoken to: they are never taken for dead, and can be ended.

use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use moltis_agent_protocol::hello;
use moltis_sandbox::{Backend, Command, ExecEvent, ExecRequest, SandboxSpec};
use rustix::process::{Pid, Signal, kill_process};

use super::support::{Host, eventually, lasting, lives, sh};

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

fn record(host: &Host, spec: &SandboxSpec) -> (std::path::PathBuf, serde_json::Value) {
    let path = host.path("data/run").join(spec.id().as_str()).join("sandbox.json");
    let record = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    (path, record)
}

async fn is_listed_running(host: &Host) -> bool {
    let listed = host.other().list().await.unwrap();
    assert_eq!(listed.len(), 1);
    listed[0].running
}

#[tokio::test]
async fn a_silent_one_is_not_dead_and_can_be_ended() {
    let host = Host::new();
    let with = lasting("s");
    let sandbox = host.open(&with).await;
    let pid = host.agent_pid(&with);
    signal(pid, Signal::STOP);
    let start = Instant::now();
    let other = host.other();
    for error in [
        other.find(&with.id()).await.err().unwrap(),
        other.adopt(&with).await.err().unwrap(),
        other.open(&with).await.err().unwrap(),
    ] {
        assert_eq!((error.kind(), error.code()), ("unavailable", "sandbox-silent"));
        let said = error.diagnosis();
        assert!(said.cause.as_ref().unwrap().contains(&pid.to_string()) && said.fix.is_some(), "{said:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
    assert!(is_listed_running(&host).await && lives(pid));
    // As soon as it answers again it is what it was.
    signal(pid, Signal::CONT);
    assert!(other.find(&with.id()).await.unwrap().is_some());
    assert_eq!(sh(&sandbox, "echo on").await.ok(), "on\n");
    signal(pid, Signal::STOP);
    other.remove(&with.id()).await.unwrap();
    assert!(!lives(pid));
    assert_eq!(host.left_behind(), Vec::<String>::new());
    assert!(other.find(&with.id()).await.unwrap().is_none());
}

#[tokio::test]
async fn one_whose_socket_is_gone_is_not_dead() {
    let host = Host::new();
    let with = lasting("s");
    drop(host.open(&with).await);
    let pid = host.agent_pid(&with);
    std::fs::remove_file(record(&host, &with).0.with_file_name("agent.sock")).unwrap();
    let error = host.other().adopt(&with).await.err().unwrap();
    assert_eq!(error.code(), "sandbox-silent");
    assert!(is_listed_running(&host).await && lives(pid));
    host.other().remove(&with.id()).await.unwrap();
    assert!(!lives(pid));
    assert_eq!(host.left_behind(), Vec::<String>::new());
}

#[tokio::test]
async fn one_of_another_version_is_no_sandbox_of_ours_and_can_be_ended() {
    let host = Host::new();
    let with = lasting("s");
    drop(host.open(&with).await);
    let pid = host.agent_pid(&with);
    // Our own process stands in for an agent of another version.
    let (path, real) = record(&host, &with);
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let started: u64 = stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap();
    let mut standing_in = real.clone();
    standing_in["pid"] = std::process::id().into();
    standing_in["started"] = started.into();
    std::fs::write(&path, standing_in.to_string()).unwrap();
    let socket = path.with_file_name("agent.sock");
    let aside = path.with_file_name("aside");
    std::fs::rename(&socket, &aside).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        let mut other = hello::hello();
        other[6..].copy_from_slice(&(hello::VERSION + 1).to_le_bytes());
        for _ in 0..2 {
            let (mut conn, _) = listener.accept().unwrap();
            conn.read_exact(&mut [0; 8]).unwrap();
            conn.write_all(&other).unwrap();
        }
    });
    assert!(host.other().adopt(&with).await.unwrap().is_none());
    let error = host.other().find(&with.id()).await.err().unwrap();
    assert_eq!((error.kind(), error.code()), ("unavailable", "sandbox-foreign"));
    assert!(is_listed_running(&host).await);
    std::fs::rename(&aside, &socket).unwrap();
    std::fs::write(&path, real.to_string()).unwrap();
    host.other().remove(&with.id()).await.unwrap();
    assert!(!lives(pid));
}

#[tokio::test]
async fn one_of_another_pid_namespace_is_neither_used_nor_ended() {
    let host = Host::new();
    let with = lasting("s");
    drop(host.open(&with).await);
    let pid = host.agent_pid(&with);
    let (path, real) = record(&host, &with);
    let boot = real["realm"].as_str().unwrap().split(' ').next().unwrap().to_owned();
    let mut elsewhere = real.clone();
    elsewhere["realm"] = format!("{boot} pid:[1]").into();
    std::fs::write(&path, elsewhere.to_string()).unwrap();
    let other = host.other();
    for error in [
        other.find(&with.id()).await.err().unwrap(),
        other.adopt(&with).await.err().unwrap(),
        other.open(&with).await.err().unwrap(),
        other.remove(&with.id()).await.err().unwrap(),
    ] {
        assert_eq!((error.kind(), error.code()), ("unavailable", "sandbox-elsewhere"));
        assert!(error.diagnosis().fix.is_some());
    }
    assert!(is_listed_running(&host).await && lives(pid));
    assert_eq!(record(&host, &with).1, elsewhere, "its folder is as it was");
    // Once nobody listens on its socket it is over, wherever it was.
    signal(pid, Signal::KILL);
    assert!(eventually(|| !lives(pid)).await);
    assert!(other.find(&with.id()).await.unwrap().is_none());
    let next = other.open(&with).await.unwrap();
    assert!(next.is_new());
    next.close().await.unwrap();
    assert_eq!(host.left_behind(), Vec::<String>::new());
}

#[tokio::test]
async fn it_is_closed_only_if_idle() {
    let host = Host::new();
    let with = lasting("s");
    let sandbox = host.open(&with).await;
    let pid = host.agent_pid(&with);
    let mut request = ExecRequest::new(Command::Shell("sleep 1000".into()));
    request.background = true;
    let mut exec = sandbox.exec(request).await.unwrap();
    assert!(matches!(exec.events.next().await, Some(Ok(ExecEvent::Started(_)))));
    drop(exec);
    let found = host.other().find(&with.id()).await.unwrap().unwrap();
    assert!(!found.close_if_idle().await.unwrap());
    assert!(lives(pid));
    let process = found.processes().await.unwrap()[0].id;
    found.stop(process).await.unwrap();
    assert!(found.close_if_idle().await.unwrap());
    assert!(!lives(pid));
    assert_eq!(host.left_behind(), Vec::<String>::new());
    // One that has ended is closed.
    assert!(sandbox.close_if_idle().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_or_the_sandbox_is_closed_and_never_both() {
    let host = Host::new();
    for number in 0..20 {
        let with = lasting(&format!("s{number}"));
        let sandbox = host.open(&with).await;
        let closer = host.other().find(&with.id()).await.unwrap().unwrap();
        let (ran, closed) =
            tokio::join!(super::support::try_sh(&sandbox, "echo ran"), closer.close_if_idle());
        match (ran, closed.unwrap()) {
            (Ok(said), _) => assert_eq!(said.ok(), "ran\n"),
            // It was not begun.
            (Err(error), true) => assert_eq!(error.kind(), "unavailable", "{error:?}"),
            (Err(error), false) => panic!("{error:?}"),
        }
        host.backend.remove(&with.id()).await.unwrap();
    }
}

/// The thread that hears signals goes on while something is waited for.
#[test]
fn waiting_keeps_no_signal_from_being_heard() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let host = Host::new();
        let with = lasting("s");
        drop(host.open(&with).await);
        // As the program does that does one thing at a time.
        moltis_sandbox::blocking::allow_here();
        let folder = std::fs::File::open(record(&host, &with).0.parent().unwrap()).unwrap();
        folder.lock().unwrap();
        let other = host.other();
        let id = with.id();
        let (opening, removing) = (other.open(&with), other.remove(&id));
        let heard = async {
            let start = Instant::now();
            tokio::time::sleep(Duration::from_millis(100)).await;
            let late = start.elapsed();
            folder.unlock().unwrap();
            late
        };
        let (opened, removed, late) = tokio::join!(opening, removing, heard);
        assert!(late < Duration::from_secs(5), "{late:?}");
        opened.unwrap();
        removed.unwrap();
        other.remove(&id).await.unwrap();
        assert_eq!(host.left_behind(), Vec::<String>::new());
    });
}
