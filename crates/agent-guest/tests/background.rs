//! Background commands: they go on without a caller, and are listed, watched, fed and stopped.

use std::time::Duration;

use moltis_agent_protocol::message::*;

use crate::client::*;

fn start(agent: &Agent, start: ExecStart) -> (u32, u32) {
    let mut conn = agent.open(&Request::Exec(ExecStart { background: true, ..start }));
    let started = conn.started();
    assert_eq!(conn.next(), Event::Closed);
    started
}

fn attach(agent: &Agent, process: u32, stdout: u64, stderr: u64, follow: bool) -> Conn {
    let mut conn = agent.open(&Request::Attach { process, stdout, stderr, follow });
    assert_eq!(conn.started().0, process);
    conn
}

/// What a watcher that does not follow gets: output, and whether `Exited` or `Done` came at the end.
fn output(agent: &Agent, process: u32, stdout: u64, stderr: u64) -> (Vec<u8>, Vec<u8>, Reply) {
    let mut conn = attach(agent, process, stdout, stderr, false);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    loop {
        match conn.next() {
            Event::Stdout(bytes) => out.extend(bytes),
            Event::Stderr(bytes) => err.extend(bytes),
            Event::Reply(reply) => {
                assert_eq!(conn.next(), Event::Closed);
                return (out, err, reply);
            }
            Event::Closed => panic!("closed"),
        }
    }
}

fn exited(agent: &Agent, process: u32) -> Exited {
    within(LONG, || agent.processes().iter().find(|known| known.process == process)?.exited.clone())
}

#[test]
fn whoever_was_told_of_a_command_finds_it_listed() {
    let agent = Agent::start();
    // Several at once: connections are accepted in one go while commands begin.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let (process, pid) = start(&agent, sh("read line"));
                    let known = agent.processes();
                    assert!(
                        known.iter().any(|known| (known.process, known.pid) == (process, pid)),
                        "{process}"
                    );
                    agent.open(&Request::Stop { process }).next();
                    let over = agent.processes().into_iter().find(|known| known.process == process);
                    assert!(over.is_none_or(|over| over.exited.is_some()), "{process}");
                }
            });
        }
    });
}

#[test]
fn a_background_command_outlives_its_caller_and_its_output_stays() {
    let agent = Agent::start();
    let (process, pid) = start(&agent, sh("echo out; echo err >&2; sleep 0.4; echo more; exit 4"));
    let known = agent.processes();
    assert_eq!(known.len(), 1);
    assert_eq!((known[0].process, known[0].pid, known[0].background), (process, pid, true));
    assert_eq!(known[0].command, bytes("sh -c echo out; echo err >&2; sleep 0.4; echo more; exit 4"));
    assert_eq!((known[0].exited.as_ref(), agent.status().busy), (None, 1));
    within(LONG, || (output(&agent, process, 0, 0).0 == b"out\n").then_some(()));
    assert_eq!(output(&agent, process, 2, 99), (b"t\n".to_vec(), vec![], Reply::Done));

    let watched = attach(&agent, process, 0, 0, true).rest();
    assert_eq!((watched.text(), watched.stderr.as_slice()), ("out\nmore\n", &b"err\n"[..]));
    assert_eq!(watched.end.left, Left::Code(4));
    assert_eq!((watched.end.stdout_bytes, watched.end.stderr_bytes), (9, 4));

    assert_eq!(exited(&agent, process), watched.end);
    agent.assert_unused();
    assert_eq!(
        output(&agent, process, 4, 4),
        (b"more\n".to_vec(), vec![], Reply::Exited(watched.end.clone()))
    );
    assert_eq!(agent.ask(&Request::Stop { process }), Reply::Exited(watched.end));
}

#[test]
fn stop_ends_all_of_it() {
    let agent = Agent::start();
    let token = token();
    let line = format!("trap '' TERM; setsid sleep {token} & sleep {token}; sleep {token}");
    let (process, _) = start(&agent, sh(&line));
    within(LONG, || (alive(&token).len() == 3).then_some(()));
    let watcher = attach(&agent, process, 0, 0, true);
    let Reply::Exited(end) = agent.ask(&Request::Stop { process }) else { panic!() };
    assert_eq!((end.ending, end.leftovers_total), (Ending::Cancelled, 0));
    assert_none_left(&token, Duration::ZERO);
    assert_eq!(watcher.rest().end, end);
    assert_eq!(exited(&agent, process), end);
}

#[test]
fn its_own_deadline_holds_and_a_watcher_is_no_caller() {
    let agent = Agent::start();
    let token = token();
    let (process, _) = start(&agent, ExecStart { timeout_millis: 700, ..sh(&format!("exec sleep {token}")) });
    drop(attach(&agent, process, 0, 0, true));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(alive(&token).len(), 1);
    assert_eq!(attach(&agent, process, 0, 0, true).rest().end.ending, Ending::TimedOut);
    assert_none_left(&token, Duration::ZERO);
}

#[test]
fn watchers_feed_it_and_give_orders() {
    let agent = Agent::start();
    let (process, _) = start(&agent, ExecStart { stdin: true, ..command(&["cat"]) });
    let mut first = attach(&agent, process, 0, 0, true);
    first.data(b"one ").unwrap();
    first.until("one");
    let mut second = attach(&agent, process, 0, 0, true);
    second.data(b"two").unwrap();
    assert_eq!(first.until("two"), "two");
    assert_eq!(second.until("two"), "one two");
    second.eof();
    assert_eq!(first.rest().end.left, Left::Code(0));
    assert_eq!(second.rest().end.left, Left::Code(0));

    let (process, _) = start(&agent, sh("exec sleep 1000"));
    let mut conn = attach(&agent, process, 0, 0, true);
    conn.order(Order::Signal(libc::SIGINT));
    assert_eq!(conn.rest().end.left, Left::Signal(libc::SIGINT));
    let (process, _) = start(&agent, sh("exec sleep 1000"));
    let mut conn = attach(&agent, process, 0, 0, true);
    conn.order(Order::Cancel);
    assert_eq!(conn.rest().end.ending, Ending::Cancelled);
    // What no host may say ends the watching and nothing else.
    let (process, _) = start(&agent, sh("exec sleep 1000"));
    let mut conn = attach(&agent, process, 0, 0, true);
    std::io::Write::write_all(&mut conn.stream, &[77; 9]).unwrap();
    assert_eq!(conn.next(), Event::Closed);
    assert_eq!(agent.processes().last().unwrap().exited, None);
    agent.ask(&Request::Stop { process });
}

#[test]
fn whoever_sends_input_or_a_signal_need_not_stay() {
    let agent = Agent::start();
    let line = "while ! [ -e go ]; do sleep 0.05; done; wc -c";
    // The folder says that the signal is waited for.
    let trap = "trap 'echo got it' USR1";
    let mut start_it = sh(&format!("{trap}; cd /tmp && mkdir $$ && cd $$ && {line}; cd / && rm -r /tmp/$$"));
    start_it.stdin = true;
    let (process, pid) = start(&agent, start_it);
    let go = std::path::PathBuf::from(format!("/tmp/{pid}"));
    within(LONG, || go.is_dir().then_some(()));
    // Neither wants any output, so that nothing but its leaving is noticed.
    let mut signaller = attach(&agent, process, u64::MAX, u64::MAX, true);
    signaller.order(Order::Signal(libc::SIGUSR1));
    drop(signaller);
    within(LONG, || (output(&agent, process, 0, 0).0 == b"got it\n").then_some(()));
    // More than its pipe holds, and it does not read yet.
    let mut sender = attach(&agent, process, u64::MAX, u64::MAX, true);
    sender.stream.set_write_timeout(Some(LONG)).unwrap();
    let bytes = (1024 * 1024) + 150_000;
    sender.data(&vec![b'x'; bytes]).unwrap();
    sender.eof();
    drop(sender);
    std::fs::write(go.join("go"), "").unwrap();
    assert_eq!(exited(&agent, process).left, Left::Code(0));
    let text = String::from_utf8(output(&agent, process, 7, 0).0).unwrap();
    assert_eq!(text.trim(), bytes.to_string());
}

#[test]
fn it_can_have_a_terminal() {
    let agent = Agent::start();
    let line = "stty -echo; stty size; read line; stty size; echo got $line";
    let (process, _) = start(&agent, ExecStart { terminal: Some((10, 20)), ..sh(line) });
    let mut conn = attach(&agent, process, 0, 0, true);
    conn.until("10 20");
    conn.order(Order::Resize { rows: 11, columns: 21 });
    conn.data(b"it\n").unwrap();
    assert_eq!(conn.rest().text(), "\r\n11 21\r\ngot it\r\n".trim_start_matches("\r\n"));
}

#[test]
fn a_watcher_that_does_not_read_holds_nothing_back_and_is_told_what_it_missed() {
    let agent = Agent::start();
    let bytes = 50_000_000_u64;
    let (process, pid) = start(&agent, sh(&format!("echo begin; head -c {bytes} /dev/zero; echo end")));
    let stalled = attach(&agent, process, 0, 0, true);
    let end = exited(&agent, process);
    assert_eq!((end.left, end.stdout_bytes), (Left::Code(0), bytes + 10));
    let _ = pid;
    let (mut got, mut missed, mut last) = (0, 0, Vec::new());
    let mut conn = stalled;
    loop {
        match conn.next() {
            Event::Stdout(part) => {
                got += part.len() as u64;
                last = part;
            }
            Event::Reply(Reply::Missed { stdout, stderr: 0 }) => missed += stdout,
            Event::Reply(Reply::Exited(told)) => {
                assert_eq!(told, end);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(got + missed, bytes + 10);
    assert!(missed > 40_000_000, "{missed}");
    assert!(last.ends_with(b"end\n"));

    let mut late = attach(&agent, process, 0, 0, false);
    assert_eq!(late.reply(), Reply::Missed { stdout: bytes + 10 - 1024 * 1024, stderr: 0 });
}

#[test]
fn only_so_many_finished_ones_are_kept() {
    let agent = Agent::start();
    for _ in 0..70 {
        start(&agent, command(&["true"]));
    }
    within(LONG, || {
        let known = agent.processes();
        (known.len() == 64 && known.iter().all(|one| one.exited.is_some())).then_some(())
    });
    let known = agent.processes();
    let mut numbers: Vec<u32> = known.iter().map(|one| one.process).collect();
    numbers.dedup();
    assert_eq!((numbers.len(), numbers.last()), (64, Some(&70)));
    let gone = (1..=70).find(|number| !numbers.contains(number)).unwrap();
    assert!(matches!(agent.ask(&Request::Stop { process: gone }), Reply::Failed(_)));
    let children = || {
        std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", agent.pid()))
            .unwrap()
            .split(' ')
            .count()
            - 1
    };
    within(LONG, || (children() == 64).then_some(()));
}

#[test]
fn a_foreground_command_cannot_be_watched() {
    let agent = Agent::start();
    let mut conn = agent.open(&Request::Exec(sh("exec sleep 1000")));
    let (process, _) = conn.started();
    let watch = Request::Attach { process, stdout: 0, stderr: 0, follow: true };
    assert_eq!(agent.open(&watch).failed().code, FailureCode::NotFound);
    assert_eq!(agent.processes(), []);
}
