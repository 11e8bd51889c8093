//! What everything in the sandbox takes.

use std::time::Duration;

use moltis_agent_protocol::message::*;

use crate::client::*;

fn usage(agent: &Agent) -> Usage {
    match agent.ask(&Request::Usage) {
        Reply::Usage(usage) => usage,
        other => panic!("{other:?}"),
    }
}

const MIB: u64 = 1 << 20;

/// Memory and processor time of what runs, of what has left its session, and of what is over.
fn counts(agent: &Agent) {
    let before = usage(agent);
    assert!((MIB / 4..64 * MIB).contains(&before.memory_bytes), "{before:?}");
    let token = token();
    // A shell that holds a string of 32 MiB and has made it by computing, out of sight of whoever started it.
    let holds = format!("x=$(head -c 33554432 /dev/zero | tr '\\0' x); sleep {token}; echo $x");
    let line = format!("setsid sh -c \"{}\" </dev/null >/dev/null 2>&1 &", holds.replace('$', "\\$"));
    agent.sh(&line);
    let held = within(LONG, || {
        let now = usage(agent);
        (now.memory_bytes >= before.memory_bytes + 32 * MIB).then_some(now)
    });
    assert!(held.memory_bytes < before.memory_bytes + 512 * MIB, "{before:?} {held:?}");
    // Processor time of commands that are over stays in the sum.
    agent.sh("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done");
    let worked = within(LONG, || {
        let now = usage(agent);
        (now.cpu_micros >= before.cpu_micros + 50_000).then_some(now)
    });
    let rested = within(LONG, || {
        let now = usage(agent);
        (now.cpu_micros >= worked.cpu_micros).then_some(now)
    });
    assert!(rested.cpu_micros < worked.cpu_micros + 60_000_000, "{worked:?} {rested:?}");
}

#[test]
fn a_plain_agent_counts_what_it_has_started_and_nobody_else() {
    let agent = Agent::start();
    // Somebody else on this machine, who holds more than all of the agent's.
    let mut other = std::process::Command::new("sh")
        .args(["-c", "x=$(head -c 134217728 /dev/zero | tr '\\0' x); echo ready; read line"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut ready).unwrap();
    counts(&agent);
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn a_first_process_counts_everybody_inside() {
    if !can_unshare() {
        return;
    }
    counts(&Agent::with(Options { namespaces: true, ..Options::default() }));
}

#[test]
fn asking_is_no_use_and_leaves_nothing() {
    let agent = Agent::start();
    for _ in 0..20 {
        usage(&agent);
    }
    let status = agent.status();
    assert_eq!((status.busy, status.commands), (0, 0));
    assert_eq!(agent.processes(), []);
    // Those who answered have ended.
    within(LONG, || children(agent.pid()).is_empty().then_some(()));
    std::thread::sleep(Duration::from_millis(20));
    assert!(agent.status().idle_millis >= 20);
}

fn children(pid: u32) -> Vec<String> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    std::fs::read_to_string(path).unwrap().split_whitespace().map(str::to_owned).collect()
}
