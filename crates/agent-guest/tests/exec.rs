//! Starting commands, and how they leave.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use moltis_agent_protocol::message::*;

use crate::client::*;

#[test]
fn a_command_runs_and_both_streams_come_apart() {
    let agent = Agent::start();
    let run = agent.sh("printf 'a\\0\\377b'; printf 'err' >&2; exit 7");
    assert_eq!(run.stdout, b"a\0\xffb");
    assert_eq!(run.stderr, b"err");
    assert_eq!(run.end.left, Left::Code(7));
    assert_eq!(run.end.ending, Ending::Exited);
    assert_eq!((run.end.stdout_bytes, run.end.stderr_bytes), (4, 3));
    assert_eq!((run.end.leftovers, run.end.leftovers_total), (vec![], 0));

    let run = agent.sh("kill -9 $$");
    assert_eq!(run.end.left, Left::Signal(9));
    assert_eq!(agent.status().commands, 2);
}

#[test]
fn numbers_rise_and_the_pid_is_the_commands() {
    let agent = Agent::start();
    let mut first = agent.open(&Request::Exec(sh("echo $$")));
    let (number, pid) = first.started();
    assert_eq!(first.rest().text(), format!("{pid}\n"));
    let (next, _) = agent.open(&Request::Exec(sh(":"))).started();
    assert_eq!((number, next), (1, 2));
}

#[test]
fn the_environment_is_the_requests_and_nothing_else() {
    let agent = Agent::start();
    let mut start = command(&["env"]);
    start.env.extend([(bytes("A"), bytes("1")), (bytes("B"), bytes("x=y\nz")), (bytes("A"), bytes("2"))]);
    assert_eq!(agent.run(start).text(), "PATH=/usr/local/bin:/usr/bin:/bin\nB=x=y\nz\nA=2\n");
    let mut start = command(&["/usr/bin/env"]);
    start.env.clear();
    assert_eq!(agent.run(start).text(), "");
}

#[test]
fn a_command_gets_a_clean_process() {
    let agent = Agent::with_args(&["--cwd", "/usr"]);
    let run = agent.sh("pwd; umask; ls /proc/self/fd | wc -l; cat /proc/self/oom_score_adj; \
                        grep -E '^(SigBlk|SigIgn)' /proc/self/status; readlink /proc/self/fd/0");
    // The fourth descriptor is the directory that `ls` reads.
    let quiet = "0000000000000000";
    assert_eq!(run.text(), format!("/usr\n0022\n4\n500\nSigBlk:\t{quiet}\nSigIgn:\t{quiet}\n/dev/null\n"));
    let run = agent.sh("exec cut -d' ' -f1,5,6 /proc/self/stat");
    let numbers: Vec<&str> = run.text().split_whitespace().collect();
    assert!(numbers.iter().all(|number| *number == numbers[0]), "own session and group: {numbers:?}");
}

#[test]
fn programs_are_found_as_a_shell_finds_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let script = |name: &str, mode: u32, text: &str| {
        std::fs::write(path(name), text).unwrap();
        std::fs::set_permissions(path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    script("plain", 0o755, "echo plain $0 $1\n");
    script("locked", 0o644, "#!/bin/sh\n");
    script("lost", 0o755, "#!/no/such/interpreter\n");
    script("garbage", 0o755, "#!/bin/true\n");
    std::fs::create_dir(path("directory")).unwrap();

    let agent = Agent::start();
    let with_path = |argv: &[&str]| {
        let mut start = command(argv);
        start.env = vec![(bytes("PATH"), bytes(format!("/no/such:{}:/usr/bin:/bin", dir.path().display())))];
        start
    };
    let run = agent.run(with_path(&["plain", "arg"]));
    assert_eq!(run.text(), format!("plain {} arg\n", path("plain")));

    let mut relative = command(&["./plain", "x"]);
    relative.cwd = Some(bytes(dir.path().to_str().unwrap()));
    assert_eq!(agent.run(relative).text(), "plain ./plain x\n");

    let code = |start| agent.open(&Request::Exec(start)).failed().code;
    assert_eq!(code(with_path(&["nonesuch"])), FailureCode::ProgramMissing);
    assert_eq!(code(command(&["/no/such/program"])), FailureCode::ProgramMissing);
    assert_eq!(code(command(&["/etc/passwd/x"])), FailureCode::ProgramMissing);
    assert_eq!(code(with_path(&["locked"])), FailureCode::ProgramNotExecutable);
    assert_eq!(code(with_path(&["directory"])), FailureCode::ProgramNotExecutable);
    let lost = agent.open(&Request::Exec(with_path(&["lost"]))).failed();
    assert_eq!(lost.code, FailureCode::ProgramMissing);
    assert!(lost.message.contains("interpreter"), "{}", lost.message);
    assert_eq!(agent.processes(), []);
}

#[test]
fn requests_that_cannot_be_are_refused_by_name() {
    let agent = Agent::start();
    let with = |change: fn(&mut ExecStart)| {
        let mut start = command(&["true"]);
        change(&mut start);
        start
    };
    let table = [
        (with(|start| start.argv.clear()), FailureCode::Invalid),
        (with(|start| start.argv[0] = bytes("")), FailureCode::Invalid),
        (with(|start| start.argv[0] = bytes("tr\0ue")), FailureCode::Invalid),
        (with(|start| start.argv.push(bytes("a\0b"))), FailureCode::Invalid),
        (with(|start| start.env.push((bytes(""), bytes("x")))), FailureCode::Invalid),
        (with(|start| start.env.push((bytes("A=B"), bytes("x")))), FailureCode::Invalid),
        (with(|start| start.env.push((bytes("A\0"), bytes("x")))), FailureCode::Invalid),
        (with(|start| start.env.push((bytes("A"), bytes("\0")))), FailureCode::Invalid),
        (with(|start| start.cwd = Some(bytes("relative"))), FailureCode::Invalid),
        (with(|start| start.cwd = Some(bytes(""))), FailureCode::Invalid),
        (with(|start| start.cwd = Some(bytes("/\0"))), FailureCode::Invalid),
        (with(|start| start.cwd = Some(bytes("/no/such"))), FailureCode::Cwd),
        (with(|start| start.cwd = Some(bytes("/etc/passwd"))), FailureCode::Cwd),
        (with(|start| start.argv.push(bytes("x".repeat(200_000)))), FailureCode::TooLong),
        (with(|start| start.argv.extend(vec![bytes("x".repeat(100_000)); 29])), FailureCode::TooLong),
    ];
    for (start, code) in table {
        for background in [false, true] {
            let start = ExecStart { background, ..start.clone() };
            let failure = agent.open(&Request::Exec(start)).failed();
            assert_eq!(failure.code, code, "{failure:?}");
        }
    }
    let failure = agent.open(&Request::Exec(with(|start| start.cwd = Some(bytes("/no/such"))))).failed();
    assert!(failure.message.contains("/no/such"), "{}", failure.message);
    assert_eq!(failure.errno, Some(libc::ENOENT));
    for request in [
        Request::Attach { process: 99, stdout: 0, stderr: 0, follow: true },
        Request::Stop { process: 99 },
        Request::Stop { process: 0 },
        Request::Accept { listener: 1, token: 1 },
    ] {
        assert_eq!(agent.open(&request).failed().code, FailureCode::NotFound);
    }
    assert_eq!(agent.processes(), []);
}

#[test]
fn many_commands_at_once() {
    let agent = Agent::start();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for index in 0..64 {
            let agent = &agent;
            scope.spawn(move || {
                let run = agent.sh(&format!("sleep 0.5; echo {index}; echo e{index} >&2; exit {index}"));
                assert_eq!(run.text(), format!("{index}\n"));
                assert_eq!(run.stderr, format!("e{index}\n").as_bytes());
                assert_eq!(run.end.left, Left::Code(index));
            });
        }
    });
    assert!(began.elapsed() < Duration::from_secs(15), "one after the other");
    agent.assert_unused();
    assert_eq!(agent.status().commands, 64);
}

#[test]
fn signals_reach_the_commands_group() {
    let agent = Agent::start();
    let mut conn =
        agent.open(&Request::Exec(sh("trap 'echo got; exit 3' USR1; echo up; while :; do sleep 0.05; done")));
    conn.started();
    conn.until("up");
    conn.order(Order::Signal(-5));
    conn.order(Order::Signal(1000));
    conn.order(Order::Signal(libc::SIGUSR1));
    // `sleep` is of the group and dies of it; what matters is the shell.
    let run = conn.rest();
    assert!(run.text().ends_with("got\n"), "{:?}", run.text());
    assert_eq!(run.end.left, Left::Code(3));
}
