//! How the agent itself begins, serves and ends.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use moltis_agent_protocol::hello;
use moltis_agent_protocol::message::*;

use crate::client::*;

#[test]
fn it_cannot_be_inspected_and_holds_nothing_it_was_not_given() {
    let agent = Agent::start();
    let mut conn = agent.open(&Request::Exec(sh("echo up; sleep 1000")));
    let (_, pid) = conn.started();
    conn.until("up");
    for watched in [agent.pid(), parent(pid)] {
        let owner = std::fs::metadata(format!("/proc/{watched}/environ")).unwrap();
        // Root's files, whoever runs it: only a process that may inspect anything gets in.
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&owner), 0);
        if !rustix::process::getuid().is_root() {
            assert!(std::fs::read(format!("/proc/{watched}/environ")).is_err());
            continue;
        }
        let mut names = Vec::new();
        for entry in std::fs::read_dir(format!("/proc/{watched}/fd")).unwrap().flatten() {
            names.push(std::fs::read_link(entry.path()).unwrap().to_str().unwrap().to_owned());
        }
        for name in names {
            let kind = name.split(':').next().unwrap();
            assert!(["/dev/null", "socket", "pipe", "anon_inode"].contains(&kind), "{name}");
        }
    }
}

#[test]
fn it_ends_with_its_lifeline_and_takes_everything_along() {
    let mut agent = Agent::start();
    let token = token();
    let line = format!("trap '' TERM; setsid sleep {token} & sleep {token}; :");
    agent.open(&Request::Exec(ExecStart { background: true, ..sh(&line) })).started();
    let mut conn = agent.open(&Request::Exec(sh(&line)));
    conn.started();
    agent.sh(&format!("sleep {token} &"));
    within(LONG, || (alive(&token).len() == 7).then_some(()));
    agent.let_go();
    assert!(agent.wait().success());
    assert_none_left(&token, Duration::ZERO);
}

#[test]
fn it_ends_when_told_to() {
    let mut agent = Agent::start();
    let token = token();
    agent.open(&Request::Exec(ExecStart { background: true, ..sh(&format!("sleep {token}")) })).started();
    assert_eq!(agent.ask(&Request::Shutdown), Reply::Done);
    assert!(agent.wait().success());
    assert_none_left(&token, Duration::ZERO);

    let mut agent = Agent::start();
    agent.open(&Request::Exec(ExecStart { background: true, ..sh(&format!("sleep {token}")) })).started();
    // SAFETY: sends a signal.
    unsafe { libc::kill(agent.pid() as i32, libc::SIGTERM) };
    assert!(agent.wait().success());
    assert_none_left(&token, Duration::ZERO);
}

#[test]
fn it_ends_only_if_idle_when_told_so() {
    let mut agent = Agent::start();
    let busy = |agent: &Agent| match agent.ask(&Request::ShutdownIfIdle) {
        Reply::Failed(failure) => failure.code == FailureCode::Busy,
        Reply::Done => false,
        other => panic!("{other:?}"),
    };
    let token = token();
    let line = sh(&format!("sleep {token}"));
    let mut conn = agent.open(&Request::Exec(ExecStart { background: true, ..line.clone() }));
    let (process, _) = conn.started();
    assert!(busy(&agent));
    drop(conn);
    assert!(busy(&agent));
    agent.ask(&Request::Stop { process });
    // One that has said half of what it wants.
    let mut half = agent.connect();
    half.write_all(&hello::hello()).unwrap();
    assert!(within(LONG, || busy(&agent).then_some(true)));
    drop(half);
    within(LONG, || (!busy(&agent)).then_some(()));
    assert!(agent.wait().success());
    assert_none_left(&token, Duration::ZERO);
}

#[test]
fn nothing_begins_once_it_has_agreed_to_end() {
    for _ in 0..20 {
        let agent = Agent::start();
        let dir = tempfile::tempdir().unwrap();
        let mut asked = Vec::new();
        let mut message = hello::hello().to_vec();
        message.extend(moltis_agent_protocol::frame::encode_control(&Request::ShutdownIfIdle).unwrap());
        // All at once, in one round of its loop.
        // SAFETY: sends a signal.
        unsafe { libc::kill(agent.pid() as i32, libc::SIGSTOP) };
        let mut half = agent.connect();
        half.write_all(&message[..message.len() - 1]).unwrap();
        let mut end = agent.connect();
        end.write_all(&message).unwrap();
        for number in 0..8 {
            let line = sh(&format!("echo >{}/{number}", dir.path().display()));
            let mut conn = agent.connect();
            conn.write_all(&hello::hello()).unwrap();
            let request = Request::Exec(line);
            conn.write_all(&moltis_agent_protocol::frame::encode_control(&request).unwrap()).unwrap();
            asked.push(conn);
        }
        drop(half);
        // SAFETY: as above.
        unsafe { libc::kill(agent.pid() as i32, libc::SIGCONT) };
        let mut answer = Vec::new();
        let _ = end.read_to_end(&mut answer);
        let agreed = answer.ends_with(&moltis_agent_protocol::frame::encode_control(&Reply::Done).unwrap());
        let mut heard = 0;
        for mut conn in asked {
            let mut answer = Vec::new();
            // A reset: nothing of the request was read.
            match conn.read_to_end(&mut answer) {
                Ok(_) => heard += 1,
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
            }
        }
        assert!(agreed, "{answer:?}");
        assert_eq!((heard, std::fs::read_dir(dir.path()).unwrap().count()), (0, 0));
    }
}

#[test]
fn its_supervisors_end_their_commands_if_it_is_killed() {
    let mut agent = Agent::start();
    let token = token();
    let line = format!("trap '' TERM; setsid sleep {token} & sleep {token}; :");
    agent.open(&Request::Exec(ExecStart { background: true, ..sh(&line) })).started();
    let mut conn = agent.open(&Request::Exec(sh(&line)));
    conn.started();
    within(LONG, || (alive(&token).len() == 6).then_some(()));
    agent.kill();
    agent.wait();
    assert_none_left(&token, Duration::from_secs(2));
}

#[test]
fn it_ends_when_idle_and_not_before() {
    let mut agent = Agent::with_args(&["--idle", "400"]);
    assert_eq!(agent.sh("sleep 0.8; echo slept").text(), "slept\n");
    assert!(agent.is_running());
    let (process, _) =
        agent.open(&Request::Exec(ExecStart { background: true, ..sh("sleep 0.8") })).started();
    std::thread::sleep(Duration::from_millis(500));
    assert!(agent.is_running(), "a background command is use");
    let began = Instant::now();
    agent.open(&Request::Attach { process, stdout: 0, stderr: 0, follow: true }).finish();
    // Leftovers and mere questions are none.
    let token = token();
    agent.sh(&format!("sleep {token} &"));
    let asked = Instant::now();
    while agent.is_running() && asked.elapsed() < LONG {
        if let Ok(stream) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| agent.connect())) {
            drop(stream);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(agent.wait().success());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_none_left(&token, Duration::ZERO);
}

#[test]
fn the_idle_time_can_be_changed() {
    let mut agent = Agent::start();
    assert_eq!(agent.ask(&Request::Configure { idle_millis: 60_000 }), Reply::Done);
    let status = agent.status();
    assert_eq!((status.busy, status.commands), (0, 0));
    assert!(status.uptime_millis >= status.idle_millis);
    // Whoever sets it has come to use the sandbox: it begins anew.
    for _ in 0..8 {
        assert_eq!(agent.ask(&Request::Configure { idle_millis: 400 }), Reply::Done);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(agent.ask(&Request::Configure { idle_millis: 1 }), Reply::Done);
    assert!(agent.wait().success());
}

#[test]
fn strangers_and_nonsense_are_turned_away() {
    let agent = Agent::start();
    let talk = |bytes: &[u8]| {
        let mut stream = agent.connect();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    assert_eq!(talk(b"GET / HTTP/1.1\r\n\r\n"), b"");
    let mut other = hello::hello();
    other[6] ^= 0xff;
    assert_eq!(talk(&other), hello::hello(), "a host of another version hears ours");
    for request in [&[1, 1, 0, 0, 0, 250][..], &[1, 255, 255, 255, 255], &[2, 0, 0, 0, 0]] {
        let answer = talk(&[&hello::hello()[..], request].concat());
        assert!(answer.len() > 8, "{request:?}");
    }
    assert_eq!(agent.sh("echo alive").text(), "alive\n");
}

#[test]
fn silent_connections_keep_nobody_out_for_long() {
    let agent = Agent::start();
    let silent: Vec<UnixStream> = (0..80).map(|_| agent.connect()).collect();
    let began = Instant::now();
    assert_eq!(agent.sh("echo served").text(), "served\n");
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    for mut stream in silent {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn arguments_that_cannot_be_are_refused() {
    for args in [
        &[][..],
        &["nonsense"],
        &["serve"],
        &["serve", "--listener"],
        &["serve", "--listener", "x"],
        &["serve", "--listener", "77"],
        &["serve", "--what", "3"],
    ] {
        let run = std::process::Command::new(env!("CARGO_BIN_EXE_moltis-guest")).args(args).output().unwrap();
        assert_eq!(run.status.code(), Some(2), "{args:?}");
        assert!(run.stderr.starts_with(b"moltis-guest: "));
    }
}

#[test]
fn it_is_small_when_idle() {
    let agent = Agent::start();
    for _ in 0..20 {
        agent.sh("head -c 3000000 /dev/zero");
    }
    let mut start = command(&["true"]);
    start.argv.extend(vec![bytes("x".repeat(100_000)); 15]);
    agent.run(start);
    // A build without optimisation is larger than what is shipped.
    assert!(resident(agent.pid()) < 6 * 1024, "{} KiB", resident(agent.pid()));
}
