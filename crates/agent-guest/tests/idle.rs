//! Nobody wakes up while nothing happens.

use std::time::Duration;

use moltis_agent_protocol::message::*;

use crate::client::*;

/// How often a process has gone to sleep by itself.
fn naps(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn nobody_polls() {
    // With an idle time that counts, and one that does not since a command runs.
    for args in [&["--idle", "600000"][..], &[]] {
        let agent = Agent::with_args(args);
        let token = token();
        let background = ExecStart { background: true, ..sh(&format!("sleep {token}")) };
        let (_, in_background) = agent.open(&Request::Exec(background)).started();
        // One that has left a child, one that waits on a terminal, and one whose output nobody reads.
        let left = agent.sh(&format!("sleep {token} >/dev/null 2>&1 & echo $!"));
        let left: u32 = left.text().trim().parse().unwrap();
        let mut terminal = ExecStart { terminal: Some((24, 80)), stdin: true, ..sh("echo up; cat") };
        terminal.timeout_millis = 600_000;
        let mut on_terminal = agent.open(&Request::Exec(terminal));
        let (_, reader) = on_terminal.started();
        on_terminal.until("up");
        let mut full = agent.open(&Request::Exec(sh("yes")));
        let (_, writer) = full.started();
        // A watcher that follows, a listener and a client that never asks for anything.
        let number =
            agent.processes().into_iter().find(|process| process.pid == in_background).unwrap().process;
        let attach = Request::Attach { process: number, stdout: 0, stderr: 0, follow: true };
        let mut watcher = agent.open(&attach);
        watcher.started();
        let mut listener = agent.open(&Request::Listen { port: 0 });
        listener.reply();
        std::thread::sleep(Duration::from_secs(1));
        let supervisors = [in_background, left, reader, writer].map(parent);
        let watched: Vec<u32> = supervisors.into_iter().chain([agent.pid()]).collect();
        let before: Vec<u64> = watched.iter().map(|pid| naps(*pid)).collect();
        std::thread::sleep(Duration::from_secs(3));
        let during: Vec<u64> = watched.iter().zip(before).map(|(pid, before)| naps(*pid) - before).collect();
        assert!(during.iter().all(|naps| *naps <= 1), "{during:?}");
    }
}
