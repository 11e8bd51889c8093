//! A sandbox that nobody uses wakes nobody up.

use std::time::Duration;

use moltis_sandbox::{Command, ExecEvent, ExecRequest};

use super::support::{Host, lasting, sh};

/// How often a process has gone to sleep by itself.
fn naps(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    text.split_whitespace().map(|child| child.parse().unwrap()).collect()
}

#[tokio::test]
async fn nobody_polls() {
    let host = Host::new();
    let with = lasting("s");
    let sandbox = host.open(&with).await;
    let mut request = ExecRequest::new(Command::Shell("sleep 1000".into()));
    request.background = true;
    let mut exec = sandbox.exec(request).await.unwrap();
    assert!(matches!(exec.events.next().await, Some(Ok(ExecEvent::Started(_)))));
    sh(&sandbox, "setsid sleep 1000 >/dev/null 2>&1 &").await.ok();
    let listener = sandbox.listen(0).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let agent = host.agent_pid(&with);
    let watched: Vec<u32> = children(agent).into_iter().chain([agent]).collect();
    assert_eq!(watched.len(), 4, "two supervisors, a listener and the agent");
    let before: Vec<u64> = watched.iter().map(|pid| naps(*pid)).collect();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let during: Vec<u64> = watched.iter().zip(before).map(|(pid, before)| naps(*pid) - before).collect();
    assert!(during.iter().all(|naps| *naps <= 1), "{during:?}");
    drop(listener);
    sandbox.close().await.unwrap();
}
