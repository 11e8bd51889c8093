//! Limits on a whole sandbox: what goes over them dies, the sandbox lives on.

use std::time::{Duration, Instant};

use moltis_sandbox::{Backend, Command, Detection, ExecRequest, Guarantees, Limits, Promise, Status};

use super::support::{Host, Said, asked, cgroups, is_root, lasting, outcome, sh, spec, try_sh};

async fn guarantees(host: &Host) -> Guarantees {
    match host.backend.detect().await {
        Detection::Usable(usable) => usable.guarantees,
        Detection::Unusable(why) | Detection::Failing(why) => panic!("{why:?}"),
    }
}

/// Whether something keeps the limit here; otherwise the runtime refuses it.
fn kept(promise: &Promise) -> bool {
    if let Promise::NotEnforced(reason) = promise {
        eprintln!("not tried: {reason}");
    }
    promise.is_held()
}

fn with(memory: Option<u64>, cpus: Option<f64>, pids: Option<u64>) -> Limits {
    Limits { memory: memory.map(asked), cpus: cpus.map(asked), pids: pids.map(asked) }
}

fn python(program: &str) -> String {
    format!("python3 -c '{program}'")
}

#[tokio::test]
async fn a_memory_bomb_and_a_full_tmp_do_not_end_the_sandbox() {
    let host = Host::new();
    if !kept(&guarantees(&host).await.memory) {
        return;
    }
    let mut limited = spec(&format!("memory {}", std::process::id()));
    limited.limits = with(Some(640 << 20), None, None);
    let sandbox = host.open(&limited).await;
    assert_eq!(
        sh(&sandbox, &python("x = bytearray(16 << 20); print(1)")).await.ok(),
        "1\n",
        "the control fits"
    );
    for _ in 0..3 {
        let bomb = sh(&sandbox, &python("x = bytearray(900 << 20); print(1)")).await;
        assert!(matches!(bomb.status, Status::Code(137) | Status::Signal(9)), "{bomb:?}");
        let full = sh(&sandbox, "head -c 600M /dev/zero > /tmp/full").await;
        assert!(full.failed(), "{full:?}");
        assert_eq!(sh(&sandbox, "rm /tmp/full; echo alive").await.ok(), "alive\n");
    }
    let big = python("x = bytearray(200 << 20); import time; time.sleep(1); print(1)");
    let many = (0..8).map(|_| sh(&sandbox, &big));
    let ended: Vec<Said> = futures_util::future::join_all(many).await;
    assert!(ended.iter().any(Said::failed), "eight at once are over the limit together");
    assert_eq!(sh(&sandbox, "echo alive").await.ok(), "alive\n");
    sandbox.close().await.unwrap();
    assert_eq!(cgroups(limited.id().as_str()), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn a_fork_bomb_stops_at_the_limit_and_is_taken_away() {
    let host = Host::new();
    assert!(guarantees(&host).await.pids.is_held(), "an rlimit keeps it everywhere");
    let mut limited = spec("pids");
    limited.limits = with(None, None, Some(40));
    let sandbox = host.open(&limited).await;
    let bomb = python(
        "import os,time\nn=0\ntry:\n  while n<500:\n    if os.fork()==0: time.sleep(60)\n    n+=1\nexcept OSError as e:\n  print(n<40, e.errno, flush=True)\nos.kill(0, 9)",
    );
    assert_eq!(sh(&sandbox, &bomb).await.stdout, format!("True {}\n", libc::EAGAIN));
    // The dead count until they are reaped.
    let deadline = Instant::now() + Duration::from_secs(10);
    while try_sh(&sandbox, "true").await.is_err() {
        assert!(Instant::now() < deadline, "the bomb is still there");
    }
    assert_eq!(sh(&sandbox, "echo alive").await.ok(), "alive\n");
    // A second sandbox of the same host user has a count of its own.
    let mut other = spec("pids, too");
    other.limits = with(None, None, Some(40));
    let second = host.open(&other).await;
    let thirty = "for i in $(seq 30); do sleep 1 & done; wait; echo done";
    let (a, b) = tokio::join!(sh(&sandbox, thirty), sh(&second, thirty));
    assert_eq!((a.ok(), b.ok()), ("done\n".to_owned(), "done\n".to_owned()));
    sandbox.close().await.unwrap();
    second.close().await.unwrap();
}

#[tokio::test]
async fn a_raised_process_limit_stays_refused() {
    let host = Host::new();
    let mut limited = spec("raise");
    limited.limits = with(None, None, Some(40));
    let sandbox = host.open(&limited).await;
    assert_eq!(sh(&sandbox, "bash -c 'ulimit -u'").await.ok(), "40\n");
    assert!(sh(&sandbox, "bash -c 'ulimit -u 41'").await.failed());
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn commands_share_the_cpu_quota() {
    let host = Host::new();
    if !kept(&guarantees(&host).await.cpus) {
        return;
    }
    let mut limited = spec("cpu");
    limited.limits = with(None, Some(0.25), None);
    let sandbox = host.open(&limited).await;
    let busy =
        python("import time\nend=time.time()+1\nwhile time.time()<end: pass\nprint(time.process_time())");
    let (a, b) = tokio::join!(sh(&sandbox, &busy), sh(&sandbox, &busy));
    let used: f64 = [a, b].map(|said| said.ok().trim().parse::<f64>().unwrap()).iter().sum();
    assert!(used < 0.5, "{used} CPU seconds in one");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn many_that_share_little_of_a_core_die_at_once_all_the_same() {
    let host = Host::new();
    if !kept(&guarantees(&host).await.cpus) {
        return;
    }
    let mut limited = spec("many, slow");
    limited.limits = with(None, Some(0.02), Some(700));
    let sandbox = host.open(&limited).await;
    let line = "i=0; while [ $i -lt 400 ]; do (while :; do :; done) & i=$((i+1)); done; wait";
    let mut many = ExecRequest::new(Command::Shell(line.into()));
    many.background = true;
    let mut events = sandbox.exec(many).await.unwrap().events;
    events.next().await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    let began = Instant::now();
    sandbox.close().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(cgroups(limited.id().as_str()), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn commands_go_before_the_host_and_not_after_the_agent() {
    let host = Host::new();
    let sandbox = host.open(&spec("score")).await;
    let agent = host.agent_pid(&spec("score"));
    let command: i32 = sh(&sandbox, "cat /proc/self/oom_score_adj").await.ok().trim().parse().unwrap();
    assert!(command >= 500);
    if is_root() {
        let agent = std::fs::read_to_string(format!("/proc/{agent}/oom_score_adj")).unwrap();
        assert!(agent.trim().parse::<i32>().unwrap() <= command, "{agent} against {command}");
    }
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn a_command_that_the_memory_limit_ended_says_so() {
    let host = Host::new();
    if !kept(&guarantees(&host).await.memory) {
        return;
    }
    let mut limited = lasting(&format!("out of memory {}", std::process::id()));
    limited.limits = with(Some(96 << 20), None, None);
    let sandbox = host.open(&limited).await;
    let bomb = "python3 -c 'x = bytearray(300 << 20)'";
    let killed = outcome(&sandbox, bomb).await;
    assert_eq!((killed.status.shell_code(), killed.out_of_memory), (137, true));
    assert!(!outcome(&sandbox, "kill -9 $$").await.out_of_memory, "a kill is no lack of memory");
    let adopted = host.other().adopt(&limited).await.unwrap().unwrap();
    let survived = outcome(&adopted, &format!("{bomb}; true")).await;
    assert_eq!((survived.status, survived.out_of_memory), (Status::Code(0), true));
    assert!(!outcome(&adopted, "true").await.out_of_memory);
    adopted.close().await.unwrap();
}
