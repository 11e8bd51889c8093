//! Sizes, and rates that depend on them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use moltis_sandbox::{ExecEvent, Sandbox};
use moltis_testkit::process;

use crate::table::{Table, Target};
use crate::{Form, Place, plain, shell};

const MIB: f64 = 1024.0 * 1024.0;

/// Memory of this process and all that descends from it, but for the commands themselves.
fn together() -> u64 {
    let own = std::process::id();
    process::descent(own)
        .into_iter()
        .filter(|pid| *pid == own || process::command_line(*pid).contains("moltis-guest"))
        .filter_map(process::memory)
        .sum()
}

/// Resident memory of a process by its status, shared pages counted in full.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// The agents that this process started: its children.
fn agents() -> Vec<u32> {
    let own = std::process::id();
    process::pids().into_iter().filter(|pid| process::parent(*pid) == Some(own)).collect()
}

/// The agent's own size, on disk and idle.
pub async fn agent(place: &Place, table: &mut Table) {
    let size = moltis_agent::binary::guest_bytes().len() as f64 / MIB;
    table.bound("agent on disk", size, "MiB", 2.0);
    let sandbox = place.open().await;
    crate::run(&sandbox, shell("true")).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let agents = agents();
    assert_eq!(agents.len(), 1, "agents of one sandbox");
    let idle = resident(agents[0]) as f64 / MIB;
    assert!(idle > 0.0);
    table.bound("agent, idle, resident", idle, "MiB", 3.0);
    sandbox.close().await.unwrap();
}

/// Samples [`together`] until told to stop.
fn sampling() -> (Arc<AtomicBool>, std::thread::JoinHandle<u64>) {
    let over = Arc::new(AtomicBool::new(false));
    let stop = over.clone();
    let thread = std::thread::spawn(move || {
        let mut most = 0;
        while !stop.load(Ordering::Relaxed) {
            most = most.max(together());
            std::thread::sleep(Duration::from_millis(50));
        }
        most
    });
    (over, thread)
}

/// Much output, its rate beside a plain pipe's, and what it takes meanwhile.
pub async fn streaming(place: &Place, table: &mut Table, form: Form) {
    let bytes: u64 = match form {
        Form::Short => 256 << 20,
        Form::Usual => 2 << 30,
        Form::Long => 10 << 30,
    };
    let sandbox = place.open().await;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let (over, sampler) = sampling();
    for _ in 0..3 {
        let line = format!("head -c {bytes} /dev/zero");
        let started = Instant::now();
        let read = crate::run(&sandbox, shell(&line)).await;
        ours.push(read as f64 / started.elapsed().as_secs_f64());
        assert_eq!(read, bytes);
        let plain = tokio::task::spawn_blocking(move || plain::pipe(bytes)).await.unwrap();
        theirs.push(plain);
    }
    over.store(true, Ordering::Relaxed);
    let most = sampler.join().unwrap();
    sandbox.close().await.unwrap();
    let middle = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        (all[1], format!("{:.0} MiB/s", all[1] / MIB))
    };
    table.ratio(
        format!("standard output, {} MiB", bytes >> 20),
        middle(ours),
        middle(theirs),
        Target::AtLeast(0.5),
    );
    table.bound("client and agent while it streams", most as f64 / MIB, "MiB", 64.0);
}

/// What it takes while nobody reads.
pub async fn stalled(place: &Place, table: &mut Table) {
    let sandbox = place.open().await;
    let mut exec = sandbox.exec(shell("cat /dev/zero")).await.unwrap();
    assert!(matches!(exec.events.next().await, Some(Ok(ExecEvent::Started(_)))));
    let (over, sampler) = sampling();
    tokio::time::sleep(Duration::from_secs(3)).await;
    over.store(true, Ordering::Relaxed);
    let most = sampler.join().unwrap();
    drop(exec);
    sandbox.close().await.unwrap();
    table.bound("client and agent while nobody reads", most as f64 / MIB, "MiB", 64.0);
}

/// Many idle sandboxes at once.
pub async fn many(place: &Place, table: &mut Table, form: Form) {
    let count = if form == Form::Short { 50 } else { 500 };
    let before = process::memory(std::process::id()).unwrap_or(0);
    let started = Instant::now();
    let done = AtomicU64::new(0);
    let open: Vec<Arc<dyn Sandbox>> = futures_util::stream::iter(0..count)
        .map(|_| async {
            let sandbox = place.open().await;
            done.fetch_add(1, Ordering::Relaxed);
            sandbox
        })
        .buffer_unordered(8)
        .collect()
        .await;
    let took = started.elapsed();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let agents = agents();
    assert_eq!(agents.len(), count, "agents of {count} sandboxes");
    let sum: u64 = agents.iter().filter_map(|pid| process::memory(*pid)).sum();
    let grown = process::memory(std::process::id()).unwrap_or(0).saturating_sub(before);
    // Each still runs a command.
    for sandbox in open.iter().step_by(count / 10) {
        crate::run(sandbox, shell("true")).await;
    }
    let closing = open.iter().map(|sandbox| async move { sandbox.close().await.unwrap() });
    futures_util::stream::iter(closing).buffer_unordered(8).collect::<Vec<()>>().await;
    assert_eq!(self::agents().len(), 0, "agents after closing");
    table.bound(
        format!("{count} idle sandboxes (opened in {:.1} s), each", took.as_secs_f64()),
        (sum + grown) as f64 / MIB / count as f64,
        "MiB",
        1.0,
    );
}
