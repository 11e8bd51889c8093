//! Times and rates.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use moltis_sandbox::{ExecEvent, Sandbox};

use crate::table::{Table, Target};
use crate::{Form, Place, argv, plain, run, shell};

fn median(mut all: Vec<Duration>) -> (f64, String) {
    all.sort_unstable();
    let middle = all[all.len() / 2].as_secs_f64() * 1e3;
    (middle, format!("{middle:.2} ms"))
}

fn rounds(form: Form, short: usize, usual: usize) -> usize {
    if form == Form::Short { short } else { usual }
}

/// One command in an open sandbox.
pub async fn held(place: &Place, table: &mut Table, form: Form) {
    let sandbox = place.open().await;
    let (mut by_argv, mut by_shell, mut spawned) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds(form, 60, 600) + 20 {
        let started = Instant::now();
        run(&sandbox, argv(&["true"])).await;
        let first = started.elapsed();
        let started = Instant::now();
        run(&sandbox, shell("true")).await;
        let second = started.elapsed();
        let third = plain::spawn();
        // The first ones warm caches.
        if round >= 20 {
            by_argv.push(first);
            by_shell.push(second);
            spawned.push(third);
        }
    }
    sandbox.close().await.unwrap();
    let baseline = median(spawned);
    table.ratio("`exec` of `true`, held access, p50", median(by_argv), baseline.clone(), Target::AtMost(1.4));
    table.ratio("`exec` of `sh -c true`, held access, p50", median(by_shell), baseline, Target::AtMost(1.4));
}

/// Sixteen callers at once.
pub async fn rate(place: &Place, table: &mut Table, form: Form) {
    let sandbox = place.open().await;
    let span = Duration::from_millis(if form == Form::Short { 700 } else { 2000 });
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        ours.push(callers(&sandbox, span).await);
        theirs.push(spawners(span).await);
    }
    sandbox.close().await.unwrap();
    let middle = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        (all[all.len() / 2], format!("{:.0}/s", all[all.len() / 2]))
    };
    table.ratio("16 callers of `true`, rate", middle(ours), middle(theirs), Target::AtLeast(0.75));
}

async fn callers(sandbox: &Arc<dyn Sandbox>, span: Duration) -> f64 {
    let count = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let mut all = Vec::new();
    for _ in 0..16 {
        let (sandbox, count) = (sandbox.clone(), count.clone());
        all.push(tokio::spawn(async move {
            while started.elapsed() < span {
                run(&sandbox, argv(&["true"])).await;
                count.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    for one in all {
        one.await.unwrap();
    }
    count.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64()
}

async fn spawners(span: Duration) -> f64 {
    tokio::task::spawn_blocking(move || {
        let (count, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let started = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        plain::spawn();
                        count.fetch_add(1, Ordering::Relaxed);
                        if started.elapsed() >= span {
                            over.store(true, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        count.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64()
    })
    .await
    .unwrap()
}

/// A new sandbox to its first output, from a process that is small or holds 300 MB.
pub async fn fresh(place: &Place, table: &mut Table, form: Form, large: bool) {
    if !plain::has_bwrap() {
        eprintln!("bwrap is not installed: no baseline for a new sandbox");
        return;
    }
    let mut ballast = vec![0_u8; if large { 300 << 20 } else { 0 }];
    for at in (0..ballast.len()).step_by(4096) {
        ballast[at] = 1;
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..rounds(form, 10, 80) + 3 {
        let started = Instant::now();
        let sandbox = place.open().await;
        let mut exec = sandbox.exec(shell("echo")).await.unwrap();
        while let Some(event) = exec.events.next().await {
            if matches!(event.unwrap(), ExecEvent::Stdout(_)) {
                break;
            }
        }
        let took = started.elapsed();
        while exec.events.next().await.is_some() {}
        sandbox.close().await.unwrap();
        let other = plain::bwrap();
        if round >= 3 {
            ours.push(took);
            theirs.push(other);
        }
    }
    std::hint::black_box(&ballast);
    let from = if large { ", from a process of 300 MB" } else { "" };
    table.ratio(
        format!("new sandbox to first output{from}, p50"),
        median(ours),
        median(theirs),
        Target::AtMost(0.8),
    );
}

/// The whole program.
pub fn whole(moltis: &Path, folder: &Path, table: &mut Table, form: Form) {
    if !plain::has_bwrap() {
        return;
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..rounds(form, 8, 60) + 3 {
        let started = Instant::now();
        let output = Command::new(moltis)
            .args(["exec", "--backend", "namespaces", "--data-dir"])
            .arg(folder.join("whole"))
            .args(["--", "true"])
            .env("MOLTIS_CONFIG_DIR", folder.join("none"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let took = started.elapsed();
        assert!(output.status.success(), "moltis exec: {}", String::from_utf8_lossy(&output.stderr));
        let other = plain::bwrap();
        if round >= 3 {
            ours.push(took);
            theirs.push(other);
        }
    }
    table.ratio(
        "`moltis exec --backend namespaces true`, p50",
        median(ours),
        median(theirs),
        Target::AtMost(1.5),
    );
}

/// The whole program in a session whose sandbox runs, with few sessions stored and with a thousand.
pub fn session(moltis: &Path, folder: &Path, table: &mut Table, form: Form) {
    let program = |data: &str, session: &str| {
        let mut command = Command::new(moltis);
        command
            .args(["exec", "--backend", "namespaces", "--data-dir"])
            .arg(folder.join(data))
            .args(["--session", session, "true"])
            .env("MOLTIS_CONFIG_DIR", folder.join("none"))
            .stdin(Stdio::null());
        command
    };
    let timed = |command: &mut Command| {
        let started = Instant::now();
        let output = command.output().unwrap();
        let took = started.elapsed();
        assert!(output.status.success(), "moltis exec: {}", String::from_utf8_lossy(&output.stderr));
        took
    };
    let stored = rounds(form, 20, 1000);
    for number in 0..stored {
        let mut command = Command::new(moltis);
        command.args(["session", "set", "--network", "blocked", "--data-dir"]).arg(folder.join("many"));
        timed(command.arg(format!("session {number}")).env("MOLTIS_CONFIG_DIR", folder.join("none")));
    }
    timed(&mut program("few", "s"));
    timed(&mut program("many", "s"));
    let (mut few, mut many, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds(form, 10, 300) + 10 {
        let first = timed(&mut program("few", "s"));
        let second = timed(&mut program("many", "s"));
        let mut baseline = Command::new("sh");
        let third = timed(baseline.args(["-c", "true"]).stdin(Stdio::null()));
        if round >= 10 {
            few.push(first);
            many.push(second);
            plain.push(third);
        }
    }
    for data in ["few", "many"] {
        let mut command = Command::new(moltis);
        command.args(["sandbox", "stop", "s", "--data-dir"]).arg(folder.join(data));
        timed(command.env("MOLTIS_CONFIG_DIR", folder.join("none")));
    }
    let few = median(few);
    table.ratio("`moltis exec --session s true`, warm, p50", few.clone(), median(plain), Target::AtMost(3.0));
    table.ratio(format!("the same with {stored} sessions stored"), median(many), few, Target::AtMost(1.1));
}
