//! Standard streams: every byte, back-pressure both ways, bounded memory.

use std::time::{Duration, Instant};

use moltis_agent_protocol::message::*;

use crate::client::*;

/// A cheap checksum that notices order.
fn fold(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
}

#[test]
fn a_hundred_megabytes_go_in_and_come_out() {
    let agent = Agent::start();
    let mut start = command(&["cat"]);
    start.stdin = true;
    let mut conn = agent.open(&Request::Exec(start));
    conn.started();
    let mut writer = Conn::adopt(conn.stream.try_clone().unwrap());
    let feeder = std::thread::spawn(move || {
        let mut part = vec![0; 1_000_003];
        let mut sum = 0;
        let mut state = 1_u32;
        for _ in 0..100 {
            for byte in &mut part {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = (state >> 24) as u8;
            }
            sum = fold(sum, &part);
            writer.data(&part).unwrap();
        }
        writer.eof();
        sum
    });
    let (mut sum, mut count) = (0, 0);
    let end = loop {
        match conn.next() {
            Event::Stdout(bytes) => {
                sum = fold(sum, &bytes);
                count += bytes.len() as u64;
            }
            Event::Reply(Reply::Exited(end)) => break end,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(sum, feeder.join().unwrap());
    assert_eq!((count, end.stdout_bytes), (100_000_300, 100_000_300));
    assert_eq!(end.left, Left::Code(0));
}

#[test]
fn input_that_is_not_wanted_is_no_error() {
    let agent = Agent::start();
    let mut start = sh("exec <&-; sleep 0.2; echo done");
    start.stdin = true;
    let mut conn = agent.open(&Request::Exec(start));
    conn.started();
    conn.data(&vec![1; 4 << 20]).unwrap();
    conn.eof();
    assert_eq!(conn.rest().text(), "done\n");

    // Not asked for at all: the command reads an empty input.
    let mut conn = agent.open(&Request::Exec(sh("wc -c")));
    conn.data(b"nobody reads this").unwrap();
    assert_eq!(conn.finish().text(), "0\n");
}

#[test]
fn a_command_that_does_not_read_holds_the_host_back() {
    let agent = Agent::start();
    let mut start = sh("sleep 0.5; wc -c");
    start.stdin = true;
    let mut conn = agent.open(&Request::Exec(start));
    let (_, pid) = conn.started();
    conn.stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    let part = vec![7; 60_000];
    // What fits into a pipe and a socket, and not more.
    while conn.data(&part).is_ok() {
        sent += part.len();
        assert!(sent < 16 << 20, "nothing holds back");
    }
    assert!(resident(parent(pid)) < 16 * 1024);
    drop(conn);
}

#[test]
fn output_comes_while_the_command_runs() {
    let agent = Agent::start();
    let mut start = sh("echo first; read line; echo $line");
    start.stdin = true;
    let mut conn = agent.open(&Request::Exec(start));
    conn.started();
    assert_eq!(conn.until("first"), "first\n");
    conn.data(b"second\n").unwrap();
    assert_eq!(conn.rest().text(), "second\n");
}

#[test]
fn a_stalled_host_costs_no_memory_and_stops_no_clock() {
    let agent = Agent::start();
    let token = token();
    let mut start = sh(&format!("head -c 1073741824 /dev/zero; sleep {token}"));
    start.timeout_millis = 1500;
    let mut conn = agent.open(&Request::Exec(start));
    let (_, pid) = conn.started();
    let supervisor = parent(pid);
    let began = Instant::now();
    let mut most = 0;
    while began.elapsed() < Duration::from_millis(1200) {
        most = most.max(resident(supervisor) + resident(agent.pid()));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(most < 16 * 1024, "{most} KiB");
    assert_none_left(&token, Duration::from_secs(3));
    assert!(field(pid, 0).is_none_or(|state| state == "Z"), "the deadline did not fire");
    // Whoever stays away does not keep the sandbox in use.
    agent.assert_unused();
    let run = conn.rest();
    assert_eq!(run.end.ending, Ending::TimedOut);
    assert!(run.stdout.len() > 65_536 && run.stdout.len() < 8 << 20, "{}", run.stdout.len());
    assert_eq!(run.end.stdout_bytes, run.stdout.len() as u64);
}

#[test]
fn much_output_arrives_whole_and_both_streams_share() {
    let agent = Agent::start();
    let run = agent
        .sh("(head -c 30000000 /dev/zero | tr '\\0' e >&2) & head -c 30000000 /dev/zero | tr '\\0' o; wait");
    assert_eq!((run.stdout.len(), run.stderr.len()), (30_000_000, 30_000_000));
    assert!(run.stdout.iter().all(|byte| *byte == b'o'));
    assert!(run.stderr.iter().all(|byte| *byte == b'e'));
}
