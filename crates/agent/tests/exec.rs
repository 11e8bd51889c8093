//! Commands.

use std::time::{Duration, Instant};

use bytes::Bytes;
use moltis_agent::client::Patience;
use moltis_agent::sandbox::{configure, shutdown, status};
use moltis_sandbox::exec::{ProcessId, TerminalSize};
use moltis_sandbox::{Command, Ending, ExecEvent, ExecRequest, GuestPath, Sandbox, Status};

use crate::agent::{Agent, alone, collect, resident, sh, until};

#[tokio::test]
async fn output_streams_apart_and_the_end_tells_all() {
    let agent = Agent::start();
    let sandbox = agent.sandbox();
    let exec = sandbox.exec(sh("printf 'a\\0b'; echo err >&2; exit 3")).await.unwrap();
    let (stdout, stderr, outcome) = collect(exec).await.unwrap();
    assert_eq!((stdout.as_slice(), stderr.as_slice()), (&b"a\0b"[..], &b"err\n"[..]));
    assert_eq!((outcome.status, outcome.ending), (Status::Code(3), Ending::Exited));
    assert_eq!((outcome.stdout_bytes, outcome.stderr_bytes), (3, 4));
    assert_eq!(outcome.leftovers_total, 0);

    let argv = ExecRequest::new(Command::Argv(vec!["sh".into(), "-c".into(), "kill -9 $$".into()]));
    let (.., outcome) = collect(sandbox.exec(argv).await.unwrap()).await.unwrap();
    assert_eq!((outcome.status, outcome.exit_code()), (Status::Signal(9), 137));
    let (stdout, ..) = collect(sandbox.exec(sh("-n 2>/dev/null; echo dash")).await.unwrap()).await.unwrap();
    assert_eq!(stdout, b"dash\n", "a line that looks like an option is none");
}

#[tokio::test]
async fn the_first_bytes_arrive_while_it_runs() {
    let agent = Agent::start();
    let start = Instant::now();
    let mut exec = agent.sandbox().exec(sh("echo first; sleep 60")).await.unwrap();
    assert!(matches!(exec.events.next().await, Some(Ok(ExecEvent::Started(_)))));
    assert!(matches!(exec.events.next().await, Some(Ok(ExecEvent::Stdout(bytes))) if bytes == "first\n"));
    exec.control.cancel().await.unwrap();
    let (.., outcome) = collect(exec).await.unwrap();
    assert_eq!(outcome.ending, Ending::Cancelled);
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn environment_and_directory_are_those_asked_for() {
    let agent = Agent::start();
    let mut request = sh("pwd; env | sort");
    request.cwd = GuestPath::new("/usr");
    request.env = vec![("A".into(), "1".into()), ("A".into(), "2 3\n4".into())];
    let (stdout, ..) = collect(agent.sandbox().exec(request).await.unwrap()).await.unwrap();
    assert_eq!(String::from_utf8(stdout).unwrap(), "/usr\n4\nA=2 3\nHOME=/\nPATH=/usr/bin:/bin\nPWD=/usr\n");
}

#[tokio::test]
async fn what_cannot_run_is_said_before_it_does() {
    let agent = Agent::start();
    let sandbox = agent.sandbox();
    let argv = |program: &str| ExecRequest::new(Command::Argv(vec![program.into()]));
    let mut nowhere = sh("true");
    nowhere.cwd = GuestPath::new("/no/such/place");
    let mut file = sh("true");
    file.cwd = GuestPath::new("/etc/passwd");
    let cases = [
        (argv("no-such-program"), "program-missing"),
        (argv("/no/such/program"), "program-missing"),
        (argv("/etc/passwd"), "program-not-executable"),
        (argv("/etc"), "program-not-executable"),
        (nowhere, "cwd-missing"),
        (file, "cwd-missing"),
        (sh(""), "command-empty"),
        (sh(&"x".repeat(4 << 20)), "command-too-long"),
    ];
    for (request, code) in cases {
        let error = sandbox.exec(request).await.err().unwrap();
        assert_eq!((error.kind(), error.code()), ("invalid", code), "{error}");
    }
    let many: Vec<_> =
        std::iter::once("true".into()).chain((0..19).map(|_| "x".repeat(100_000).into())).collect();
    let (.., outcome) =
        collect(sandbox.exec(ExecRequest::new(Command::Argv(many))).await.unwrap()).await.unwrap();
    assert_eq!(outcome.status, Status::Code(0));
    let edge = format!("#{}\nexit 7", "x".repeat(131_071 - 8));
    let (.., outcome) = collect(sandbox.exec(sh(&edge)).await.unwrap()).await.unwrap();
    assert_eq!(outcome.status, Status::Code(7), "the longest line that the kernel takes");
}

#[tokio::test]
async fn input_goes_in_and_its_end_too() {
    let agent = Agent::start();
    let mut request = sh("cat; echo done");
    request.stdin = true;
    let exec = agent.sandbox().exec(request).await.unwrap();
    let mut control = exec.control;
    let sent: Vec<u8> = (0..3_000_000u32).map(|i| (i * 13) as u8).collect();
    let content = Bytes::from(sent.clone());
    let feeding = tokio::spawn(async move {
        control.stdin(content).await.unwrap();
        control.close_stdin().await.unwrap();
        control
    });
    let rest = moltis_sandbox::Exec { events: exec.events, control: Box::new(NoControl) };
    let (stdout, ..) = collect(rest).await.unwrap();
    assert_eq!(stdout.len(), sent.len() + 5);
    assert!(stdout.starts_with(&sent) && stdout.ends_with(b"done\n"));
    let mut control = feeding.await.unwrap();
    control.stdin("late".into()).await.unwrap();
    control.cancel().await.unwrap();
}

struct NoControl;

#[async_trait::async_trait]
impl moltis_sandbox::ExecControl for NoControl {
    async fn stdin(&mut self, _: Bytes) -> moltis_sandbox::Result<()> {
        Ok(())
    }
    async fn close_stdin(&mut self) -> moltis_sandbox::Result<()> {
        Ok(())
    }
    async fn resize(&mut self, _: TerminalSize) -> moltis_sandbox::Result<()> {
        Ok(())
    }
    async fn signal(&mut self, _: i32) -> moltis_sandbox::Result<()> {
        Ok(())
    }
    async fn cancel(&mut self) -> moltis_sandbox::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn input_that_is_not_read_holds_the_sender_and_nothing_else() {
    let agent = Agent::start();
    let mut request = sh("echo up; sleep 60");
    request.stdin = true;
    let mut exec = agent.sandbox().exec(request).await.unwrap();
    let much = Bytes::from(vec![0; 8 << 20]);
    let held = tokio::time::timeout(Duration::from_millis(500), exec.control.stdin(much)).await;
    assert!(held.is_err(), "the sender waits");
    // The future above was dropped in the middle of a frame.
    exec.control.cancel().await.unwrap();
    let (stdout, _, outcome) = collect(exec).await.unwrap();
    assert_eq!((stdout.as_slice(), outcome.ending), (&b"up\n"[..], Ending::Cancelled));
}

#[tokio::test]
async fn signals_and_sizes_overtake_input_that_is_not_read() {
    let agent = Agent::start();
    let mut request = sh("trap 'echo heard; exit 4' USR1; echo up; while :; do sleep 0.02; done");
    request.stdin = true;
    let mut exec = agent.sandbox().exec(request).await.unwrap();
    assert!(matches!(exec.events.next().await, Some(Ok(ExecEvent::Started(_)))));
    assert!(matches!(exec.events.next().await, Some(Ok(ExecEvent::Stdout(bytes))) if bytes == "up\n"));
    let held = exec.control.stdin(Bytes::from(vec![0; 8 << 20]));
    assert!(tokio::time::timeout(Duration::from_millis(300), held).await.is_err());
    exec.control.resize(TerminalSize { rows: 1, columns: 1 }).await.unwrap();
    exec.control.signal(10).await.unwrap();
    let mut control = std::mem::replace(&mut exec.control, Box::new(NoControl));
    let (stdout, _, outcome) = collect(exec).await.unwrap();
    assert_eq!((stdout.as_slice(), outcome.status), (&b"heard\n"[..], Status::Code(4)));
    control.signal(10).await.unwrap();

    let mut request =
        sh("stty -icanon -echo; trap 'stty size; exit' WINCH; echo up; while :; do sleep 0.02; done");
    request.stdin = true;
    request.terminal = Some(TerminalSize { rows: 24, columns: 80 });
    let mut exec = agent.sandbox().exec(request).await.unwrap();
    assert!(matches!(exec.events.next().await, Some(Ok(ExecEvent::Started(_)))));
    assert!(matches!(exec.events.next().await, Some(Ok(ExecEvent::Stdout(bytes))) if bytes == "up\r\n"));
    let held = exec.control.stdin(Bytes::from(vec![b'x'; 8 << 20]));
    assert!(tokio::time::timeout(Duration::from_millis(300), held).await.is_err());
    exec.control.resize(TerminalSize { rows: 33, columns: 44 }).await.unwrap();
    let (stdout, ..) = collect(exec).await.unwrap();
    assert_eq!(stdout, b"33 44\r\n");
}

#[tokio::test]
async fn a_dropped_frame_is_finished_by_the_next() {
    let agent = Agent::start();
    let mut request = sh("sleep 1; wc -c");
    request.stdin = true;
    let mut exec = agent.sandbox().exec(request).await.unwrap();
    let part = Bytes::from(vec![7; 200_000]);
    let mut whole = 0;
    for _ in 0..50 {
        // Each of these takes its bytes or, dropped, may have taken some.
        match tokio::time::timeout(Duration::from_millis(5), exec.control.stdin(part.clone())).await {
            Ok(sent) => sent.unwrap(),
            Err(_) => whole += 1,
        }
    }
    assert!(whole > 0, "some were dropped");
    exec.control.close_stdin().await.unwrap();
    let (stdout, _, outcome) = collect(exec).await.unwrap();
    assert_eq!(outcome.status, Status::Code(0));
    let count: usize = String::from_utf8(stdout).unwrap().trim().parse().unwrap();
    assert_eq!(count % 200_000, 0, "no frame was torn: {count}");
}

#[tokio::test]
async fn signals_and_terminals_work() {
    let agent = Agent::start();
    let mut exec = agent
        .sandbox()
        .exec(sh("trap 'echo got; exit 5' USR1; echo up; while :; do sleep 0.1; done"))
        .await
        .unwrap();
    loop {
        if matches!(exec.events.next().await.unwrap().unwrap(), ExecEvent::Stdout(_)) {
            break;
        }
    }
    exec.control.signal(10).await.unwrap();
    let (stdout, _, outcome) = collect(exec).await.unwrap();
    assert_eq!((stdout.as_slice(), outcome.status), (&b"got\n"[..], Status::Code(5)));

    let mut request = sh("stty size; read line; stty size; echo $TERM $line");
    request.terminal = Some(TerminalSize { rows: 11, columns: 22 });
    request.stdin = true;
    let mut exec = agent.sandbox().exec(request).await.unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"11 22\r\n") {
        if let ExecEvent::Stdout(bytes) = exec.events.next().await.unwrap().unwrap() {
            seen.extend_from_slice(&bytes);
        }
    }
    exec.control.resize(TerminalSize { rows: 33, columns: 44 }).await.unwrap();
    exec.control.stdin("typed\n".into()).await.unwrap();
    let (stdout, ..) = collect(exec).await.unwrap();
    assert_eq!(String::from_utf8(stdout).unwrap(), "typed\r\n33 44\r\nxterm-256color typed\r\n");
}

#[tokio::test]
async fn time_runs_out_for_all() {
    let agent = Agent::start();
    let mut request = sh("setsid sleep 1234.5 & echo some; sleep 60");
    request.timeout = Some(Duration::from_millis(300));
    let (stdout, _, outcome) = collect(agent.sandbox().exec(request).await.unwrap()).await.unwrap();
    assert_eq!(
        (stdout.as_slice(), outcome.ending, outcome.exit_code()),
        (&b"some\n"[..], Ending::TimedOut, 124)
    );
    until("nothing is left", || !is_running("1234.5")).await;
}

fn is_running(word: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().any(|entry| {
        let path = entry.unwrap().path().join("cmdline");
        std::fs::read(path).is_ok_and(|line| line.split(|b| *b == 0).any(|arg| arg == word.as_bytes()))
    })
}

#[tokio::test]
async fn losing_the_events_is_losing_the_caller() {
    let agent = Agent::start();
    let exec = agent.sandbox().exec(sh("setsid sleep 2345.5 & sleep 2345.6")).await.unwrap();
    until("it runs", || is_running("2345.5") && is_running("2345.6")).await;
    let mut control = exec.control;
    drop(exec.events);
    until("it is gone", || !is_running("2345.5") && !is_running("2345.6")).await;
    control.signal(1).await.unwrap();
    control.cancel().await.unwrap();

    let exec = agent.sandbox().exec(sh("sleep 3456.5; echo over")).await.unwrap();
    until("it runs", || is_running("3456.5")).await;
    drop(exec.control);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(is_running("3456.5"), "losing only the control is not");
    drop(exec.events);
    until("it is gone", || !is_running("3456.5")).await;
}

#[tokio::test]
async fn background_commands_are_watched_and_stopped() {
    let agent = Agent::start();
    let sandbox = agent.sandbox();
    let mut request = sh("echo one; echo two >&2; sleep 4567.5");
    request.background = true;
    let mut exec = sandbox.exec(request).await.unwrap();
    let Some(Ok(ExecEvent::Started(process))) = exec.events.next().await else { panic!("not started") };
    drop(exec);
    until("it runs", || is_running("4567.5")).await;
    let known = sandbox.processes().await.unwrap();
    assert_eq!((known.len(), known[0].id, known[0].background), (1, process, true));
    assert!(known[0].outcome.is_none() && known[0].command.contains("4567.5"));

    let mut watched = sandbox.attach(process, 1, 0, false).await.unwrap();
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(event) = watched.events.next().await {
        match event.unwrap() {
            ExecEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
            ExecEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
            _ => {}
        }
    }
    assert_eq!((stdout.as_slice(), stderr.as_slice()), (&b"ne\n"[..], &b"two\n"[..]));
    let following = sandbox.attach(process, 0, 0, true).await.unwrap();
    let stopped = sandbox.stop(process).await.unwrap();
    assert_eq!(stopped.ending, Ending::Cancelled);
    let (stdout, ..) = collect(following).await.unwrap();
    assert_eq!(stdout, b"one\n");
    assert!(sandbox.processes().await.unwrap()[0].outcome.is_some());
    for error in [
        sandbox.stop(ProcessId(999)).await.err().unwrap(),
        sandbox.attach(ProcessId(999), 0, 0, true).await.err().unwrap(),
    ] {
        assert_eq!((error.kind(), error.code()), ("invalid", "process-missing"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_run_at_once() {
    let agent = Agent::start();
    let sandbox = std::sync::Arc::new(agent.sandbox());
    let start = Instant::now();
    let all: Vec<_> = (0..64)
        .map(|number| {
            let sandbox = sandbox.clone();
            tokio::spawn(async move {
                let exec = sandbox.exec(sh(&format!("echo {number}; sleep 1; exit {number}"))).await.unwrap();
                collect(exec).await.unwrap()
            })
        })
        .collect();
    for (number, task) in all.into_iter().enumerate() {
        let (stdout, _, outcome) = task.await.unwrap();
        assert_eq!(stdout, format!("{number}\n").into_bytes());
        assert_eq!(outcome.status, Status::Code(number as i32));
    }
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_slow_reader_holds_the_command_and_nobody_holds_much() {
    alone("exec::slow_reader");
}

#[tokio::test]
#[ignore = "run by the test above in a process of its own, so that it measures itself alone"]
async fn slow_reader() {
    let agent = Agent::start();
    let size: u64 = 1 << 30;
    let mut exec = agent.sandbox().exec(sh(&format!("head -c {size} /dev/zero"))).await.unwrap();
    let before = resident(std::process::id());
    let (mut got, mut most, mut looked) = (0u64, 0, 0u64);
    let start = Instant::now();
    let outcome = loop {
        match exec.events.next().await.unwrap().unwrap() {
            ExecEvent::Stdout(bytes) => {
                got += bytes.len() as u64;
                if got >= looked {
                    looked += size / 16;
                    // The reader stalls: everything in between fills up as far as it goes.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    most = most.max(agent.resident() + resident(std::process::id()).saturating_sub(before));
                }
            }
            ExecEvent::Exit(outcome) => break outcome,
            _ => {}
        }
    };
    assert_eq!((got, outcome.stdout_bytes), (size, size));
    println!("1 GiB in {:?} with 16 stalls, {most} kB held at most", start.elapsed());
    assert!(most < 16 * 1024, "{most} kB");
}

#[tokio::test]
async fn the_agent_itself_answers() {
    let mut agent = Agent::start();
    let transport = agent.transport();
    let patience = Patience::default();
    let known = status(&*transport, patience).await.unwrap();
    assert_eq!((known.busy, known.commands), (0, 0));
    collect(agent.sandbox().exec(sh("true")).await.unwrap()).await.unwrap();
    assert_eq!(status(&*transport, patience).await.unwrap().commands, 1);
    configure(&*transport, 60_000, patience).await.unwrap();
    shutdown(&*transport, patience).await.unwrap();
    let sandbox = agent.sandbox();
    until("it is gone", || {
        std::fs::read_to_string(format!("/proc/{}/stat", agent.pid())).is_ok_and(|s| s.contains(") Z "))
    })
    .await;
    let error = sandbox.exec(sh("true")).await.err().unwrap();
    assert_eq!((error.kind(), error.code()), ("unavailable", "sandbox-gone"));
    agent.end();
}

#[tokio::test]
async fn a_sandbox_that_dies_under_a_command_is_lost() {
    let mut agent = Agent::start();
    let sandbox = agent.sandbox();
    let mut exec = sandbox.exec(sh("echo up; sleep 60")).await.unwrap();
    while !matches!(exec.events.next().await.unwrap().unwrap(), ExecEvent::Stdout(_)) {}
    agent.end();
    let error = exec.events.next().await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.code()), ("lost", "agent-lost"));
    assert!(exec.events.next().await.is_none());
}

#[tokio::test]
async fn a_command_that_kills_what_carries_it_is_lost_and_the_sandbox_is_not() {
    let agent = Agent::start();
    let sandbox = agent.sandbox();
    let exec = sandbox.exec(sh("echo told; sleep 0.3; kill -9 $PPID; sleep 1000")).await.unwrap();
    let error = collect(exec).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), ("lost", "command-lost"));
    let (stdout, ..) = collect(sandbox.exec(sh("echo there")).await.unwrap()).await.unwrap();
    assert_eq!(stdout, b"there\n");
}
