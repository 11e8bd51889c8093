//! Figures of Docker and Podman, each beside the engine's own way of doing the same; what `cargo xtask bench engines`
//! calls.
//!
//! `engines --moltis PROGRAM [--short]`. Times are reported with pass or miss; sizes and counts are asserted.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod engine;
#[path = "../bench/table.rs"]
#[allow(dead_code, reason = "the other bench uses the rest")]
mod table;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_backend_container::engine::EngineKind;
use moltis_sandbox::{Backend, Detection, ExecEvent, ExecRequest, Sandbox, SandboxSpec};
use table::{Table, Target};

use engine::Place;

/// The image that everything runs on.
pub const IMAGE: &str = "localhost/sandbox-base:busybox";

fn main() -> ExitCode {
    let (mut short, mut moltis) = (false, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--short" => short = true,
            "--moltis" => moltis = arguments.next().map(PathBuf::from),
            other => {
                eprintln!("unknown argument {other:?}");
                return ExitCode::from(2);
            }
        }
    }
    let Some(moltis) = moltis else {
        eprintln!("--moltis PROGRAM is missing");
        return ExitCode::from(2);
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut table = Table::default();
    runtime.block_on(async {
        for kind in [EngineKind::Docker, EngineKind::Podman] {
            let place = Place::new(kind);
            match place.backend.detect().await {
                Detection::Usable(_) => measure(&place, &moltis, short, &mut table).await,
                Detection::Unusable(why) | Detection::Failing(why) => {
                    eprintln!("{kind} is not measured: {why}")
                }
            }
        }
    });
    print!("{}", table.markdown());
    match table.broken() {
        Some(broken) => {
            eprintln!("does not hold: {broken}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

async fn measure(place: &Place, moltis: &Path, short: bool, table: &mut Table) {
    let rounds = |few: usize, many: usize| if short { few } else { many };
    held(place, table, rounds(10, 100)).await;
    processes(place, moltis, table, rounds(3, 30));
    starts(place, moltis, table, rounds(2, 12)).await;
    at_once(place, table, rounds(4, 50)).await;
    flat(place, table, rounds(300, 10_000)).await;
}

/// Commands over held access, beside the engine's own exec over its socket.
async fn held(place: &Place, table: &mut Table, rounds: usize) {
    let name = place.kind;
    let sandbox = place.backend.open(&place.spec("held")).await.unwrap();
    let container = place.container();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..rounds + 3 {
        let first = timed(run(&sandbox)).await;
        let second = timed(place.engine_exec(&container)).await;
        if round >= 3 {
            ours.push(first);
            theirs.push(second);
        }
    }
    sandbox.close().await.unwrap();
    let what = format!("{name}: `true` over held access, p50, beside the engine's exec by its socket");
    table.ratio(what, median(ours), median(theirs), Target::AtMost(0.025));
}

/// Whole programs in a session whose sandbox runs.
fn processes(place: &Place, moltis: &Path, table: &mut Table, rounds: usize) {
    let (name, word) = (place.kind, place.word());
    let ours = || {
        let mut command = place.moltis(moltis);
        command.args(["exec", "--backend", word, "--image", IMAGE, "--session", "s", "--", "true"]);
        command
    };
    once(&mut ours());
    let container = place.named_by_program();
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for round in 0..rounds + 3 {
        let one = once(&mut ours());
        let other = once(Command::new(word).args(["exec", &container, "true"]));
        if round >= 3 {
            first.push(one);
            second.push(other);
        }
    }
    once(place.moltis(moltis).args(["session", "rm", "s", "--purge"]));
    let what = format!("{name}: `moltis exec --session s true`, p50, beside `{word} exec`");
    table.ratio(what, median(first), median(second), Target::AtMost(0.333));
}

/// New sandboxes, and one that was kept ready, beside the engine's own run with the same flags.
async fn starts(place: &Place, moltis: &Path, table: &mut Table, rounds: usize) {
    let (name, word) = (place.kind, place.word());
    let (mut whole, mut pooled, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds + 1 {
        let mut command = place.moltis(moltis);
        let one = once(command.args(["exec", "--backend", word, "--image", IMAGE, "--", "true"]));
        let other = once(&mut place.plain_run());
        let (ready, wanted) = (place.spec("pooled"), place.spec("session"));
        place.backend.open(&ready).await.unwrap();
        let started = Instant::now();
        let sandbox = place.backend.assign(&ready, &wanted).await.unwrap();
        run(&sandbox).await;
        let third = started.elapsed();
        sandbox.close().await.unwrap();
        if round >= 1 {
            whole.push(one);
            theirs.push(other);
            pooled.push(third);
        }
    }
    let theirs = median(theirs);
    let what = format!(
        "{name}: `moltis exec true` in a new sandbox, p50, beside `{word} run --rm` with the same flags"
    );
    table.ratio(what, median(whole), theirs.clone(), Target::AtMost(1.15));
    let what = format!("{name}: first `true` in a sandbox that was kept ready, p50, beside the same");
    table.ratio(what, median(pooled), theirs, Target::AtMost(0.1));
}

/// Many sessions at once.
async fn at_once(place: &Place, table: &mut Table, count: usize) {
    let name = place.kind;
    let started = Instant::now();
    let opening = (0..count).map(|number| {
        let (backend, spec) = (Arc::clone(&place.backend), place.spec(&format!("many {number}")));
        tokio::spawn(async move {
            let sandbox = backend.open(&spec).await.unwrap();
            run(&sandbox).await;
            sandbox
        })
    });
    let mut open = Vec::new();
    for opened in opening.collect::<Vec<_>>() {
        open.push(opened.await.unwrap());
    }
    let took = started.elapsed();
    let agents = place.agents();
    assert_eq!(agents.len(), count);
    let each = agents.iter().map(|pid| engine::resident(*pid)).sum::<u64>() as f64 / count as f64 / MIB;
    let what =
        format!("{name}: {count} sessions at once (all answered in {:.1} s), agent each", took.as_secs_f64());
    table.bound(what, each, "MiB", 3.0);
    for sandbox in open {
        sandbox.close().await.unwrap();
    }
}

/// What many commands leave behind in this process and in the agent.
async fn flat(place: &Place, table: &mut Table, commands: usize) {
    let name = place.kind;
    let sandbox = place.backend.open(&place.spec("flat")).await.unwrap();
    let agent = place.agents()[0];
    for _ in 0..100 {
        run(&sandbox).await;
    }
    let before = (
        engine::resident(std::process::id()),
        engine::resident(agent),
        engine::descriptors(std::process::id()),
    );
    for _ in 0..commands {
        run(&sandbox).await;
    }
    let grown = |now: u64, then: u64| now.saturating_sub(then) as f64 / MIB;
    let here = grown(engine::resident(std::process::id()), before.0);
    table.bound(format!("{name}: growth of the host side over {commands} commands"), here, "MiB", 4.0);
    let inside = grown(engine::resident(agent), before.1);
    table.bound(format!("{name}: growth of the agent over {commands} commands"), inside, "MiB", 1.0);
    let more = engine::descriptors(std::process::id()).saturating_sub(before.2);
    table.bound(format!("{name}: descriptors more after {commands} commands"), more as f64, "", 4.0);
    sandbox.close().await.unwrap();
}

const MIB: f64 = 1024.0 * 1024.0;

/// Runs `true` to its end.
async fn run(sandbox: &Arc<dyn Sandbox>) {
    let request = ExecRequest::new(moltis_sandbox::Command::Argv(vec!["true".into()]));
    let mut exec = sandbox.exec(request).await.unwrap();
    let mut over = false;
    while let Some(event) = exec.events.next().await {
        if let ExecEvent::Exit(outcome) = event.unwrap() {
            assert_eq!(outcome.exit_code(), 0);
            over = true;
        }
    }
    assert!(over);
}

async fn timed(work: impl Future<Output = ()>) -> Duration {
    let started = Instant::now();
    work.await;
    started.elapsed()
}

fn once(command: &mut Command) -> Duration {
    let started = Instant::now();
    let output = command.stdin(Stdio::null()).output().unwrap();
    let took = started.elapsed();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    took
}

fn median(mut all: Vec<Duration>) -> (f64, String) {
    all.sort_unstable();
    let middle = all[all.len() / 2].as_secs_f64() * 1000.0;
    (middle, format!("{middle:.2} ms"))
}

/// The spec of a session in this place.
pub fn spec(key: &str, idle: Duration) -> SandboxSpec {
    use moltis_sandbox::{ImageChoice, Lifetime, Origin, SessionKey, Setting};

    let mut spec = SandboxSpec::new(SessionKey::new(key).unwrap(), Lifetime::Idle(idle));
    spec.image = Some(ImageChoice::Finished { reference: Setting::new(IMAGE.to_owned(), Origin::Flag) });
    spec.limits.memory = Some(Setting::built_in(512 << 20));
    spec.limits.pids = Some(Setting::built_in(1024));
    spec
}
