//! The agent as PID 1 of its own namespaces.

use std::time::Duration;

use moltis_agent_protocol::message::*;

use crate::client::*;

fn start() -> Option<Agent> {
    can_unshare().then(|| Agent::with(Options { namespaces: true, ..Options::default() }))
}

#[test]
fn it_is_pid_1_and_cannot_be_signalled_from_inside() {
    let Some(mut agent) = start() else { return };
    let run = agent.sh("kill -TERM 1; kill -KILL 1; kill -STOP 1; kill -INT 1; sleep 0.2; cat /proc/1/comm");
    assert_eq!(run.text(), "moltis-guest\n");
    assert!(agent.is_running());
    assert_eq!(agent.sh("echo alive").text(), "alive\n");
}

#[test]
fn killing_everybody_inside_beats_no_deadline() {
    let Some(agent) = start() else { return };
    for signal in ["KILL", "STOP"] {
        let token = token();
        let line = format!(
            "setsid sleep {token} & sleep 0.1; kill -{signal} -1; setsid sleep {token} & sleep {token}"
        );
        let mut conn = agent.open(&Request::Exec(ExecStart { timeout_millis: 1000, ..sh(&line) }));
        let _ = conn.started();
        assert_eq!(conn.next(), Event::Closed);
        assert_none_left(&token, Duration::from_secs(2));
        assert_eq!(agent.sh("echo alive").text(), "alive\n");
        agent.assert_unused();
    }
}

#[test]
fn an_escapee_of_a_killed_supervisor_is_hunted_down() {
    let Some(agent) = start() else { return };
    let token = token();
    let line = format!(
        "for i in 1 2 3 4 5; do (trap '' TERM; while :; do setsid sleep {token}; done) & done; \
         sleep 0.1; kill -KILL $PPID; sleep {token}"
    );
    let mut conn = agent.open(&Request::Exec(sh(&line)));
    conn.started();
    assert_eq!(conn.next(), Event::Closed);
    assert_none_left(&token, Duration::from_secs(2));
}

#[test]
fn its_end_is_everybodys_end() {
    let Some(mut agent) = start() else { return };
    let token = token();
    agent.sh(&format!("setsid sleep {token} & sleep {token} &"));
    assert_eq!(alive(&token).len(), 2);
    agent.let_go();
    agent.wait();
    assert_none_left(&token, Duration::from_secs(1));
}
