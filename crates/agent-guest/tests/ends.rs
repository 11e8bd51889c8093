//! Ends mean ends: time-outs, orders and lost callers leave nothing, whatever a command does.

use std::time::{Duration, Instant};

use moltis_agent_protocol::message::*;

use crate::client::*;

fn timed(line: &str, millis: u64) -> ExecStart {
    ExecStart { timeout_millis: millis, ..sh(line) }
}

/// Nothing with the token is left, and its end was told in time.
fn assert_timed_out(agent: &Agent, start: ExecStart, token: &str) -> Run {
    let began = Instant::now();
    let time = Duration::from_millis(start.timeout_millis);
    let run = agent.run(start);
    assert_eq!(run.end.ending, Ending::TimedOut, "{run:?}");
    assert!(
        began.elapsed() >= time && began.elapsed() < time + Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    assert_eq!((run.end.leftovers.len(), run.end.leftovers_total), (0, 0));
    assert_none_left(token, Duration::ZERO);
    run
}

#[test]
fn a_time_out_ends_the_command_and_keeps_its_output() {
    let agent = Agent::start();
    let token = token();
    let run = assert_timed_out(&agent, timed(&format!("echo before; sleep {token}"), 300), &token);
    assert_eq!(run.text(), "before\n");
    assert_eq!(run.end.left, Left::Signal(libc::SIGTERM));
    assert!(run.end.micros >= 300_000);
    agent.assert_unused();
}

#[test]
fn a_command_that_says_good_bye_still_timed_out() {
    let agent = Agent::start();
    let token = token();
    let line = format!("trap 'echo bye; exit 0' TERM; sleep {token} & wait");
    let run = assert_timed_out(&agent, timed(&line, 300), &token);
    assert_eq!((run.text(), run.end.left), ("bye\n", Left::Code(0)));
}

#[test]
fn nothing_escapes_a_time_out() {
    let agent = Agent::start();
    let cases = [
        "trap '' TERM HUP INT; while :; do sleep TOKEN; done",
        "setsid sleep TOKEN & sleep TOKEN",
        "(setsid sh -c '(sleep TOKEN &) ; sleep TOKEN' &) ; sleep TOKEN",
        "setsid sh -c 'trap \"\" TERM; (trap \"\" TERM; sleep TOKEN; sleep TOKEN) & wait; sleep TOKEN' & sleep TOKEN",
        "sleep TOKEN & kill -STOP $!; sleep TOKEN",
        "(trap '' TERM; exec sleep TOKEN) & kill -STOP $$",
        "nohup sleep TOKEN >/dev/null 2>&1 & exec sleep TOKEN",
    ];
    std::thread::scope(|scope| {
        for case in cases {
            let agent = &agent;
            scope.spawn(move || {
                let token = token();
                assert_timed_out(agent, timed(&case.replace("TOKEN", &token), 400), &token);
            });
        }
    });
}

#[test]
fn processes_that_run_away_by_forking_are_caught() {
    let agent = Agent::start();
    let token = token();
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join(format!("chain{token}"));
    let stop = dir.path().join("stop");
    // Each generation leaves its session, forks twice and goes; none hears SIGTERM.
    let text = format!("trap '' TERM HUP INT\n[ -e {} ] && exit\n( setsid sh $0 & )\n", stop.display());
    std::fs::write(&script, text).unwrap();
    let chains = (0..16).map(|_| format!("sh {} & ", script.display())).collect::<String>();
    let mut conn = agent.open(&Request::Exec(timed(&format!("{chains} sleep {token}"), 1500)));
    conn.started();
    within(LONG, || (alive(&token).len() > 3).then_some(()));
    let run = conn.rest();
    let left = alive(&token);
    std::fs::write(&stop, "").unwrap();
    assert_eq!(run.end.ending, Ending::TimedOut);
    assert_eq!(left, []);
    assert_none_left(&token, Duration::ZERO);
}

#[test]
fn a_fork_bomb_at_the_limit_of_processes_ends() {
    // Limits bind no process of root's.
    let uid = rustix::process::getuid().is_root().then_some(54_321);
    let limit = 150 + count_processes(uid.unwrap_or(rustix::process::getuid().as_raw()));
    let agent = Agent::with(Options { uid, processes: Some(limit as u64), ..Options::default() });
    let token = token();
    let line = format!(
        "grep -q 'Max processes  *{limit}  *{limit} ' /proc/self/limits || exit 9; \
         f() {{ trap '' TERM; : {token}; f | f & }}; f; sleep {token}"
    );
    let mut conn = agent.open(&Request::Exec(timed(&line, 700)));
    conn.started();
    let run = conn.rest();
    assert_eq!(run.end.ending, Ending::TimedOut);
    assert_none_left(&token, Duration::ZERO);
    assert_eq!(agent.sh("echo still here").text(), "still here\n");
}

fn count_processes(uid: u32) -> usize {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter(|entry| entry.metadata().is_ok_and(|data| data.uid() == uid)).count()
}

#[test]
fn a_lost_caller_takes_the_command_along() {
    let agent = Agent::start();
    let token = token();
    let mut conn = agent.open(&Request::Exec(sh(&format!("setsid sleep {token} & echo up; sleep {token}"))));
    conn.started();
    conn.until("up");
    within(LONG, || (alive(&token).len() == 3).then_some(()));
    drop(conn);
    assert_none_left(&token, Duration::from_secs(2));
    agent.assert_unused();

    // Also one whose input is not being read.
    let mut start = sh(&format!("echo up; sleep {token}"));
    start.stdin = true;
    let mut conn = agent.open(&Request::Exec(start));
    conn.started();
    conn.until("up");
    conn.stream.set_nonblocking(true).unwrap();
    while conn.data(&[0; 10_000]).is_ok() {}
    drop(conn);
    assert_none_left(&token, Duration::from_secs(2));

    // And one that says what no host may say.
    let mut conn = agent.open(&Request::Exec(sh(&format!("echo up; sleep {token}"))));
    conn.started();
    conn.until("up");
    std::io::Write::write_all(&mut conn.stream, &[99; 5]).unwrap();
    assert_none_left(&token, Duration::from_secs(2));
}

#[test]
fn cancel_and_stop_end_the_descent_and_tell() {
    let agent = Agent::start();
    let token = token();
    let line = format!("trap '' TERM; echo before; setsid sleep {token} & sleep {token}; sleep {token}");
    let mut conn = agent.open(&Request::Exec(sh(&line)));
    conn.started();
    conn.until("before");
    conn.order(Order::Cancel);
    let run = conn.rest();
    assert_eq!((run.end.ending, run.end.left), (Ending::Cancelled, Left::Signal(9)));
    assert_none_left(&token, Duration::ZERO);

    let mut conn = agent.open(&Request::Exec(sh(&format!("echo before; sleep {token}"))));
    let (process, _) = conn.started();
    conn.until("before");
    let Reply::Exited(end) = agent.ask(&Request::Stop { process }) else { panic!() };
    assert_eq!((end.ending, end.left), (Ending::Cancelled, Left::Signal(libc::SIGTERM)));
    assert_eq!(conn.rest().end, end);
    assert_none_left(&token, Duration::ZERO);
}

#[test]
fn children_that_live_on_are_told_at_once_and_stay() {
    let agent = Agent::start();
    let token = token();
    let began = Instant::now();
    let mut conn =
        agent.open(&Request::Exec(timed(&format!("sleep {token} & sleep 0.1; echo started"), 600)));
    let (process, pid) = conn.started();
    let run = conn.rest();
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    assert_eq!((run.text(), run.end.left, run.end.ending), ("started\n", Left::Code(0), Ending::Exited));
    assert_eq!(run.end.leftovers_total, 1);
    assert_eq!(run.end.leftovers[0].command, bytes(format!("sleep {token}")));
    assert_eq!(alive(&token), [run.end.leftovers[0].pid]);

    // They count as no use, outlive the command's time, and can be found and ended.
    agent.assert_unused();
    std::thread::sleep(Duration::from_millis(800));
    assert_eq!(alive(&token).len(), 1);
    let known = agent.processes();
    assert_eq!(known.len(), 1);
    assert_eq!((known[0].process, known[0].pid, known[0].background), (process, pid, false));
    assert_eq!(known[0].exited.as_ref(), Some(&run.end));
    assert_eq!(agent.ask(&Request::Stop { process }), Reply::Exited(run.end));
    assert_none_left(&token, Duration::ZERO);
    within(LONG, || agent.processes().is_empty().then_some(()));
}

#[test]
fn leftovers_may_go_on_writing() {
    let agent = Agent::start();
    let token = token();
    let began = Instant::now();
    let run = agent.sh(&format!("(yes {token} & ) ; sleep 0.2; echo over >&2"));
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!((run.end.left, run.stderr.as_slice()), (Left::Code(0), &b"over\n"[..]));
    assert_eq!(run.end.leftovers_total, 1);
    std::thread::sleep(Duration::from_millis(200));
    let [writer] = alive(&token)[..] else { panic!() };
    assert!(resident(parent(writer)) < 16 * 1024);
    let number = agent.processes()[0].process;
    agent.ask(&Request::Stop { process: number });
    assert_none_left(&token, Duration::ZERO);
}

#[test]
fn killing_or_stopping_the_supervisor_beats_no_deadline() {
    let agent = Agent::start();
    for signal in ["KILL", "STOP"] {
        let token = token();
        let line = format!(
            "setsid sleep {token} & (trap '' TERM; sleep {token}; :) & sleep 0.1; kill -{signal} $PPID; sleep {token}"
        );
        let began = Instant::now();
        let mut conn = agent.open(&Request::Exec(timed(&line, 500)));
        conn.started();
        assert_eq!(conn.next(), Event::Closed, "nobody can say how it ended");
        assert_none_left(&token, Duration::from_millis(1500).saturating_sub(began.elapsed()));
        agent.assert_unused();
    }
}

#[test]
fn a_supervisor_that_cannot_act_meets_the_backstop() {
    let agent = Agent::start();
    let token = token();
    let mut conn = agent.open(&Request::Exec(timed(&format!("exec sleep {token}"), 300)));
    let (_, pid) = conn.started();
    // Frozen in a way that is not a stop: traced by somebody who never lets it go on.
    let supervisor = parent(pid) as i32;
    // SAFETY: traces a process of ours; it is let go by its death.
    let traced = unsafe {
        libc::ptrace(libc::PTRACE_SEIZE, supervisor, 0, 0) == 0
            && libc::ptrace(libc::PTRACE_INTERRUPT, supervisor, 0, 0) == 0
    };
    if !traced {
        // Only root may look into a process that forbids it.
        assert!(!rustix::process::getuid().is_root());
        return;
    }
    let wait = || {
        let mut status = 0;
        // SAFETY: waits for a process that is traced from here; only `status` is written.
        unsafe { libc::waitpid(supervisor, &raw mut status, libc::__WALL) }
    };
    assert_eq!(wait(), supervisor, "it has stopped");
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(alive(&token).len(), 1, "it was frozen indeed");
    // The dead one stays with its tracer until that has heard of it.
    assert_eq!(wait(), supervisor, "it has been killed");
    assert_none_left(&token, Duration::from_secs(2));
    drop(conn);
}
