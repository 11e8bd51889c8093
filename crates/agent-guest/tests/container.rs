//! Mode `container`: what the agent demands before it serves, what it and its commands may not do, who is heard, and
//! when it ends.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::{Duration, Instant};

use moltis_agent_protocol::message::*;

use crate::client::*;

fn start(args: &[&str]) -> Option<Agent> {
    can_unshare().then(|| Agent::contained(args, ":"))
}

/// What it says instead of serving.
fn refusal(args: &[&str], before: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let output = contained(dir.path(), args, before).output().unwrap();
    assert_eq!(output.status.code(), Some(70), "{output:?}");
    assert!(!dir.path().join("agent.sock").is_socket(), "it can be found");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

trait IsSocket {
    fn is_socket(&self) -> bool;
}

impl IsSocket for std::path::PathBuf {
    fn is_socket(&self) -> bool {
        fs::symlink_metadata(self).is_ok_and(|found| found.file_type().is_socket())
    }
}

#[test]
fn commands_have_no_capabilities_no_new_privileges_and_a_filter() {
    let Some(agent) = start(&[]) else { return };
    let status = agent.sh("cat /proc/self/status /proc/self/oom_score_adj").text().to_owned();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("{name}")).trim().to_owned()
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!((&field("NoNewPrivs")[..], &field("Seccomp")[..]), ("1", "2"));
    assert!(status.lines().last().unwrap().parse::<i32>().unwrap() >= 500);
    // Nor does the first process show what it is, or hold what it was started with.
    let run = agent.sh("ls -l /proc/1/fd 2>&1; cat /proc/1/environ 2>&1; wc -c </proc/1/maps 2>&1; true");
    assert!(!run.text().contains("->"), "{}", run.text());
    let own = fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap();
    let held: Vec<_> = own
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter(|to| to.is_absolute())
        .collect();
    assert_eq!(held.iter().filter(|to| **to != *"/dev/null").count(), 0, "{held:?}");
    assert_eq!(held.len(), 3);
}

#[test]
fn its_socket_is_open_to_all_and_replaces_whatever_stood_there() {
    if !can_unshare() {
        return;
    }
    for before in [
        ":",
        "ln -s /etc/passwd agent.sock; ln -s /etc/passwd .agent.sock.new",
        "echo >agent.sock; mkfifo .agent.sock.new",
        "head -c 100000 /dev/zero >agent.sock",
    ] {
        let agent = Agent::contained(&[], before);
        within(LONG, || agent.directory().join("agent.sock").is_socket().then_some(()));
        let names: Vec<_> =
            fs::read_dir(agent.directory()).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(names, ["agent.sock"], "{before}");
        assert_eq!(fs::metadata(agent.directory().join("agent.sock")).unwrap().mode() & 0o7777, 0o666);
        assert_eq!(agent.sh("echo alive").text(), "alive\n");
    }
}

#[test]
fn it_says_why_it_cannot_serve() {
    if !can_unshare() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let guarded = dir.path().to_str().unwrap();
    assert!(refusal(&["--guard", guarded], ":").contains("is guarded and no mount"));
    assert!(refusal(&["--guard", "/not/there"], ":").contains("/not/there"));
    assert!(refusal(&[], "mkdir agent.sock").contains("agent.sock: Is a directory"));
    assert!(refusal(&[], "mkdir .agent.sock.new").contains("agent.sock"));
    let through_link = dir.path().join("link");
    std::os::unix::fs::symlink(dir.path(), &through_link).unwrap();
    let through_link = through_link.join("agent.sock");
    assert!(refusal(&["--socket", through_link.to_str().unwrap()], ":").contains("Not a directory"));
    // It is not the first process.
    let guest = env!("CARGO_BIN_EXE_moltis-guest");
    let output = std::process::Command::new(guest)
        .args(["container", "--socket", "/nowhere/agent.sock", "--owner", "0"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(70));
    assert!(output.stderr.starts_with(b"moltis-guest: this must be the first process"));
}

#[test]
fn a_guarded_mount_is_looked_for_before_each_operation() {
    if !can_unshare() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("files");
    fs::create_dir(&place).unwrap();
    let place = place.to_str().unwrap();
    let agent = Agent::contained(&["--guard", place], &format!("mount -t tmpfs none {place}"));
    assert_eq!(agent.sh("echo alive").text(), "alive\n");
    // Another sandbox that shares the folder above.
    fs::rename(place, dir.path().join("aside")).unwrap();
    fs::create_dir(place).unwrap();
    let stat = FileRequest::Stat { path: bytes("/"), follow: false };
    for request in [Request::Exec(sh("true")), Request::File(stat)] {
        assert_eq!(agent.open(&request).failed().code, FailureCode::MountLost);
    }
    fs::remove_dir(place).unwrap();
    fs::rename(dir.path().join("aside"), place).unwrap();
    assert_eq!(agent.sh("echo alive").text(), "alive\n");
}

#[test]
fn it_ends_at_once_by_a_signal_from_outside_and_by_none_from_inside() {
    let Some(mut agent) = start(&[]) else { return };
    let token = token();
    agent.sh(&format!("for s in TERM INT KILL STOP HUP; do kill -$s 1; done; setsid sleep {token} &"));
    std::thread::sleep(Duration::from_millis(100));
    assert!(agent.is_running());
    let began = Instant::now();
    agent.signal(libc::SIGTERM);
    assert!(agent.wait().success());
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_none_left(&token, Duration::from_secs(1));
}

#[test]
fn it_ends_with_the_connection_that_holds_it() {
    let Some(mut agent) = start(&["--lifetime", "held"]) else { return };
    let mut held = agent.open(&Request::Hold);
    assert_eq!(held.reply(), Reply::Done);
    assert_eq!(agent.open(&Request::Hold).failed().code, FailureCode::Busy, "another holds it");
    held.stream.write_all(b"whatever").unwrap();
    assert_eq!(agent.sh("echo alive").text(), "alive\n");
    let token = token();
    agent.open(&Request::Exec(ExecStart { background: true, ..sh(&format!("sleep {token}")) })).started();
    assert!(agent.is_running());
    drop(held);
    assert!(agent.wait().success());
    assert_none_left(&token, Duration::from_secs(1));
}

#[test]
fn holding_is_no_use() {
    let Some(mut agent) = start(&["--lifetime", "held", "--idle", "500"]) else { return };
    let mut held = agent.open(&Request::Hold);
    assert_eq!(held.reply(), Reply::Done);
    assert!(agent.wait().success());
    assert_eq!(held.next(), Event::Closed);
}

#[test]
fn it_ends_when_nobody_holds_it() {
    // It takes a minute.
    if std::env::var_os("MOLTIS_TEST_LONG").is_none() {
        return;
    }
    let Some(mut agent) = start(&["--lifetime", "held"]) else { return };
    let mut busy = agent.open(&Request::Exec(sh("sleep 1000")));
    busy.started();
    let began = Instant::now();
    while agent.is_running() && began.elapsed() < Duration::from_secs(70) {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(agent.wait().success());
    assert!(began.elapsed() > Duration::from_secs(55), "{:?}", began.elapsed());
}

#[test]
fn nobody_inside_is_heard_or_keeps_it_alive() {
    for args in [&["--idle", "1500"][..], &["--idle", "1500", "--relay"]] {
        let Some(mut agent) = start(args) else { return };
        let socket = agent.directory().join("agent.sock");
        let python = format!(
            "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('{}')\ns.sendall(b'MOLTIS\\4\\0' + \
             b'\\1\\1\\0\\0\\0\\x0b' + bytes(64))\nprint(s.recv(100))",
            socket.display()
        );
        let run = agent.run(command(&["python3", "-c", &python]));
        let said = [run.stdout, run.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(
            said == "b''\n" || said.contains("ConnectionResetError") || said.contains("BrokenPipe"),
            "{said}"
        );
        // One that connects without end, and holds what it can.
        let python = format!(
            "import os, socket\nif os.fork(): os._exit(0)\nall = []\nwhile True:\n  s = socket.socket(socket.AF_UNIX)\n  \
             s.settimeout(1)\n  try: s.connect('{}')\n  except OSError: pass\n  all = all[-100:] + [s]",
            socket.display()
        );
        let mut start = command(&["python3", "-c", &python]);
        start.timeout_millis = 60_000;
        agent.run(start);
        let began = Instant::now();
        assert_eq!(agent.sh("echo alive").text(), "alive\n");
        assert!(agent.wait().success());
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
}

#[test]
fn a_relay_is_known_by_the_first_secret_that_was_shown_before_any_command() {
    use moltis_agent_protocol::{hello, relay};

    let ask = |agent: &Agent, secret: u8| {
        // Inside, by a shell's means there is no Unix socket: a program of ours that is there anyway.
        let python = format!(
            "import socket,sys\ns = socket.socket(socket.AF_UNIX)\ns.connect('{}')\nd = b''\n\
             try:\n  s.sendall(bytes.fromhex('{}'))\n  while True:\n    p = s.recv(100)\n    if not p: break\n    d += p\nexcept OSError: \
             pass\nprint(len(d))",
            agent.directory().join("agent.sock").display(),
            [
                &relay::preface(&[secret; 32])[..],
                &hello::hello(),
                &moltis_agent_protocol::frame::encode_control(&Request::Status).unwrap()
            ]
            .concat()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>(),
        );
        python
    };
    let inside = |agent: &Agent, secret: u8| {
        let output = std::process::Command::new("nsenter")
            .args([
                "--target",
                &agent.pid().to_string(),
                "--user",
                "--pid",
                "--mount",
                "--preserve-credentials",
            ])
            .args(["python3", "-c", &ask(agent, secret)])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        said.parse::<usize>().unwrap_or_else(|_| panic!("{output:?}")) > 8
    };
    let Some(agent) = start(&["--relay"]) else { return };
    if !rustix::process::getuid().is_root() {
        return;
    }
    assert!(inside(&agent, 1), "the first is believed");
    assert!(!inside(&agent, 2), "another is not");
    assert_eq!(agent.sh("echo alive").text(), "alive\n");
    assert!(inside(&agent, 1));
    assert!(!inside(&agent, 2));
    drop(agent);
    let Some(agent) = start(&["--relay"]) else { return };
    agent.sh("true");
    assert!(!inside(&agent, 1), "code has run that may have shown one");
    drop(agent);
    let Some(agent) = start(&[]) else { return };
    assert!(!inside(&agent, 1), "there is no relay");
    let _ = agent.connect().read(&mut []);
}
