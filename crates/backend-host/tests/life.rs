//! Ends mean ends: time-outs, lost callers, hostile descents, and the sandbox's own end.

use std::time::{Duration, Instant};

use moltis_sandbox::{Backend, Ending, Lifetime};
use rustix::process::Signal;

use crate::common::*;
use crate::helper::Helper;

/// A descent that does not want to end.
fn stubborn(marker: &Marker) -> String {
    let sleep = marker.sleep();
    format!(
        "trap '' TERM HUP INT; setsid sh -c 'trap \"\" TERM; {sleep}; :' & \
         (setsid sh -c '({sleep} &) ; {sleep}' &) ; {sleep}; :"
    )
}

#[tokio::test]
async fn when_time_is_up_the_whole_descent_is_ended() {
    let here = Here::new();
    let sandbox = open(&here.restricted(), &ephemeral()).await;
    let marker = Marker::new();
    let mut request = shell(format!("echo first; {}", stubborn(&marker)));
    request.timeout = Some(Duration::from_millis(1500));
    let exec = sandbox.exec(request).await.unwrap();
    marker.becomes(4).await;
    let ran = finish(exec).await;
    assert_eq!((ran.outcome.ending, ran.outcome.exit_code(), ran.text()), (Ending::TimedOut, 124, "first\n"));
    assert_eq!(marker.pids(), [0; 0], "when the answer comes, nobody is left");
    close(&here, sandbox).await;
}

#[tokio::test]
async fn what_lives_on_is_listed_and_ends_with_the_sandbox() {
    let here = Here::new();
    let sandbox = open(&here.restricted(), &ephemeral()).await;
    let marker = Marker::new();
    let start = Instant::now();
    let ran = run(&*sandbox, shell(format!("{} & sleep 0.3; echo done", marker.sleep()))).await;
    assert!(start.elapsed() < Duration::from_secs(10), "the answer does not wait for it");
    assert_eq!((ran.text(), ran.outcome.leftovers_total), ("done\n", 1));
    assert_eq!(ran.outcome.leftovers[0].command, marker.sleep());
    assert_eq!(marker.pids(), [ran.outcome.leftovers[0].pid]);
    close(&here, sandbox).await;
    assert_eq!(marker.pids(), [0; 0]);
}

#[tokio::test]
async fn dropping_or_cancelling_a_command_ends_it() {
    let here = Here::new();
    let sandbox = open(&here.restricted(), &ephemeral()).await;
    let marker = Marker::new();
    let exec = sandbox.exec(shell(stubborn(&marker))).await.unwrap();
    marker.becomes(4).await;
    drop(exec);
    marker.becomes(0).await;
    let mut exec = sandbox.exec(shell(stubborn(&marker))).await.unwrap();
    marker.becomes(4).await;
    exec.control.cancel().await.unwrap();
    assert_eq!(finish(exec).await.outcome.ending, Ending::Cancelled);
    assert_eq!(marker.pids(), [0; 0]);
    close(&here, sandbox).await;
}

#[tokio::test]
async fn an_ephemeral_one_ends_with_its_handle() {
    let here = Here::new();
    let sandbox = open(&here.restricted(), &ephemeral()).await;
    let marker = Marker::new();
    run(&*sandbox, shell(format!("{} & :", marker.sleep()))).await;
    marker.becomes(1).await;
    drop(sandbox);
    marker.becomes(0).await;
    until("nothing is left", || here.run_folders().is_empty() && here.scratch_folders().is_empty()).await;
}

#[tokio::test]
async fn a_killed_caller_leaves_nothing_running() {
    for task in ["ephemeral", "lasting"] {
        let here = Here::new();
        let marker = Marker::new();
        let key = format!("killed caller {task} {}", std::process::id());
        let helper = Helper { task, base: &here.path(), key: &key, mark: marker.length(), user: None };
        let mut child = helper.spawn();
        marker.becomes(2).await;
        child.kill().unwrap();
        child.wait().unwrap();
        marker.becomes(0).await;
        let backend = here.restricted();
        let backend: &dyn moltis_sandbox::Backend = &backend;
        if task == "ephemeral" {
            let agent = agent_pid(&here);
            until("the agent is gone", || !std::path::Path::new(&format!("/proc/{agent}")).exists()).await;
            assert_eq!((here.run_folders().len(), here.scratch_folders().len()), (1, 1));
            open(backend, &ephemeral()).await.close().await.unwrap();
            assert!(here.run_folders().is_empty() && here.scratch_folders().is_empty());
        }
        // An ephemeral one is swept by the next opening; a session's is there, and is ended by its id.
        let list = backend.list().await.unwrap();
        assert_eq!(list.len(), usize::from(task == "lasting"));
        for record in list {
            assert!(record.running);
            backend.remove(&record.id).await.unwrap();
        }
        assert_eq!(backend.list().await.unwrap(), []);
        assert_eq!(here.run_folders(), Vec::<String>::new());
        assert_eq!(here.scratch_folders().len(), usize::from(task == "lasting"));
    }
}

#[tokio::test]
async fn an_opening_that_is_given_up_leaves_nothing() {
    let here = Here::new();
    let backend = here.restricted();
    let backend: &dyn moltis_sandbox::Backend = &backend;
    for millis in [0, 1, 2, 4, 8, 16, 32] {
        let _ = tokio::time::timeout(Duration::from_millis(millis), backend.open(&ephemeral())).await;
    }
    until("nothing is left", || here.run_folders().is_empty() && here.scratch_folders().is_empty()).await;
    assert_eq!(backend.list().await.unwrap(), []);
}

/// The agents that are children of this process and use this data directory.
fn agents(here: &Here) -> Vec<String> {
    let data = here.data().into_os_string().into_encoded_bytes();
    let lines = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let is_ours = line.windows(data.len()).any(|part| part == data);
        (is_ours && line.starts_with(b"moltis-guest\0")).then(|| String::from_utf8_lossy(&line).into_owned())
    });
    lines.collect()
}

#[test]
fn an_opening_that_is_dropped_at_any_moment_leaves_nothing() {
    // A place for each: a later opening would sweep what an earlier one left.
    let places: Vec<_> = (0..50).map(|_| Here::new()).collect();
    // A fixed sequence that looks random, of moments within the time that an opening takes.
    let mut number = 0x2545_f491_4f6c_dd1d_u64;
    let mut moment = || {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_micros((number >> 33) % 25_000)
    };
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let lasting_one = runtime();
    for (n, here) in places.iter().enumerate() {
        let (backend, moment, spec) = (here.restricted(), moment(), ephemeral());
        let opening = async move { moltis_sandbox::Backend::open(&backend, &spec).await.map(drop) };
        if n % 2 == 0 {
            let _ = lasting_one.block_on(async { tokio::time::timeout(moment, opening).await });
            continue;
        }
        let ending = runtime();
        ending.spawn(opening);
        std::thread::sleep(moment);
        if n % 4 == 1 { ending.shutdown_background() } else { drop(ending) }
    }
    let start = Instant::now();
    let left = || -> Vec<String> {
        places
            .iter()
            .flat_map(|here| [here.run_folders(), here.scratch_folders(), agents(here)].concat())
            .collect()
    };
    while !left().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "still there: {:?}", left());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[tokio::test]
async fn an_idle_one_ends_by_itself() {
    let here = Here::new();
    let mut spec = lasting();
    spec.lifetime = Lifetime::Idle(Duration::from_millis(400));
    let sandbox = open(&here.restricted(), &spec).await;
    let marker = Marker::new();
    run(&*sandbox, shell(format!("{} & :", marker.sleep()))).await;
    let start = Instant::now();
    run(&*sandbox, shell("sleep 1")).await;
    assert_eq!(marker.pids().len(), 1, "use keeps it");
    until("it is gone", || here.run_folders().is_empty()).await;
    assert!(start.elapsed() >= Duration::from_millis(1400));
    assert_eq!(marker.pids(), [0; 0], "a leftover is no use");
    assert_eq!(sandbox.exec(shell("true")).await.err().unwrap().kind(), "unavailable");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn a_killed_agent_takes_its_commands_along_and_a_new_one_comes() {
    let here = Here::new();
    let spec = lasting();
    let backend = here.restricted();
    let sandbox = open(&backend, &spec).await;
    let marker = Marker::new();
    let exec = sandbox.exec(shell(stubborn(&marker))).await.unwrap();
    marker.becomes(4).await;
    kill(agent_pid(&here), Signal::KILL);
    marker.becomes(0).await;
    drop(exec);
    let again = open(&backend, &spec).await;
    assert!(again.is_new());
    assert_eq!(said(&*again, "echo back").await, "back\n");
    close(&here, again).await;
}

#[tokio::test]
async fn a_stopped_agent_is_ended_and_replaced() {
    let here = Here::new();
    let spec = lasting();
    let backend = here.restricted();
    let sandbox = open(&backend, &spec).await;
    let marker = Marker::new();
    run(&*sandbox, shell(format!("{} & :", marker.sleep()))).await;
    kill(agent_pid(&here), Signal::STOP);
    // It may be in use: that it ends is for somebody to say.
    assert_eq!(backend.open(&spec).await.err().unwrap().code(), "sandbox-silent");
    assert_eq!(marker.pids().len(), 1);
    backend.remove(&spec.id()).await.unwrap();
    assert_eq!(marker.pids(), [0; 0]);
    let again = open(&backend, &spec).await;
    assert!(again.is_new());
    close(&here, again).await;
}
