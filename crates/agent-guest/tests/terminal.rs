//! Commands on a terminal.

use std::time::Duration;

use moltis_agent_protocol::message::*;

use crate::client::*;

fn on_terminal(line: &str) -> ExecStart {
    ExecStart { terminal: Some((24, 80)), ..sh(line) }
}

#[test]
fn a_terminal_has_a_size_and_is_the_controlling_one() {
    let agent = Agent::start();
    let run = agent.run(on_terminal("stty size; tty; test -t 2 && echo all; echo x > /dev/tty; exit 5"));
    let lines: Vec<&str> = run.text().split("\r\n").collect();
    assert_eq!(lines[0], "24 80");
    assert!(lines[1].starts_with("/dev/pts/"), "{lines:?}");
    assert_eq!(lines[2..], ["all", "x", ""]);
    assert_eq!((run.end.left, run.stderr.len()), (Left::Code(5), 0));
    assert_eq!(run.end.stdout_bytes, run.stdout.len() as u64);
}

#[test]
fn resizing_is_heard() {
    let agent = Agent::start();
    let mut conn = agent.open(&Request::Exec(on_terminal(
        "trap 'stty size; exit 0' WINCH; echo up; while :; do sleep 0.05; done",
    )));
    conn.started();
    conn.until("up");
    conn.order(Order::Resize { rows: 40, columns: 132 });
    let run = conn.rest();
    assert!(run.text().contains("40 132"), "{:?}", run.text());
}

#[test]
fn typing_works_and_so_do_the_keys() {
    let agent = Agent::start();
    let mut conn = agent.open(&Request::Exec(on_terminal("stty -echo; echo up; cat; echo end")));
    conn.started();
    conn.until("up");
    conn.data(b"hello\n").unwrap();
    conn.until("hello");
    conn.eof();
    let run = conn.rest();
    assert_eq!((run.text(), run.end.left), ("end\r\n", Left::Code(0)));

    let mut conn = agent.open(&Request::Exec(on_terminal("echo up; exec sleep 1000")));
    conn.started();
    conn.until("up");
    conn.data(b"\x03").unwrap();
    assert_eq!(conn.rest().end.left, Left::Signal(libc::SIGINT));
}

#[test]
fn an_interactive_shell_has_job_control() {
    let agent = Agent::start();
    let token = token();
    let mut start = command(&["sh", "-i"]);
    start.terminal = Some((24, 80));
    start.env.push((bytes("PS1"), bytes("prompt> ")));
    let mut conn = agent.open(&Request::Exec(start));
    conn.started();
    conn.until("prompt> ");
    conn.data(format!("sleep {token}\n").as_bytes()).unwrap();
    within(LONG, || (!alive(&token).is_empty()).then_some(()));
    std::thread::sleep(Duration::from_millis(100));
    conn.data(b"\x1a").unwrap();
    conn.until("prompt> ");
    conn.data(b"jobs\n").unwrap();
    let seen = conn.until("topped");
    assert!(!seen.contains("can't access tty"), "{seen}");
    conn.order(Order::Cancel);
    assert_eq!(conn.rest().end.ending, Ending::Cancelled);
    assert_none_left(&token, Duration::ZERO);
}

#[test]
fn a_terminals_end_is_the_end_although_somebody_lives_on() {
    let agent = Agent::start();
    let token = token();
    let run =
        agent.run(on_terminal(&format!("nohup setsid sleep {token} >/dev/null 2>&1 & sleep 0.2; echo over")));
    assert!(run.text().ends_with("over\r\n"), "{:?}", run.text());
    assert_eq!(run.end.leftovers_total, 1);
    let number = agent.processes()[0].process;
    agent.ask(&Request::Stop { process: number });
    assert_none_left(&token, Duration::ZERO);
}
