//! Figures of the gateway, each beside a baseline that takes turns with it; what `cargo xtask bench http` calls.
//!
//! `http --moltis PROGRAM [--short|--long]`. Times are reported with pass or miss; sizes are asserted.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench")]

mod client;
#[allow(dead_code, reason = "shared with another bench, which uses more of it")]
#[path = "../../../testkit/examples/bench/table.rs"]
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use client::Gateway;
use moltis_runtime::config::{BackendChoice, Config};
use moltis_runtime::sandbox::{BackendName, Command, ExecEvent, ExecRequest, SessionKey};
use moltis_runtime::{OpenSession, Runtime, SessionRequest};
use table::{Table, Target};

/// What HTTP may add to a command, in µs.
const ADDED: f64 = 300.0;

/// Commands of the in-process shell a second.
const RATE: f64 = 2000.0;

/// Memory of a gateway that does nothing, in MiB.
const IDLE: f64 = 40.0;

/// Time to ready with many sessions in the store, in ms.
const READY: f64 = 150.0;

/// Sessions in the store then.
const SESSIONS: usize = 1000;

/// Callers at the same time where a rate is measured.
const CALLERS: usize = 8;

const TRUE: &str = r#"{"command":"true"}"#;

struct Asked {
    rounds: usize,
    seconds: u64,
    moltis: PathBuf,
}

fn asked() -> Asked {
    let mut asked = Asked { rounds: 1000, seconds: 5, moltis: PathBuf::new() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--short" => (asked.rounds, asked.seconds) = (50, 1),
            "--long" => (asked.rounds, asked.seconds) = (5000, 30),
            "--moltis" => asked.moltis = arguments.next().expect("--moltis takes a program").into(),
            other => panic!("unknown argument {other:?}"),
        }
    }
    assert!(asked.moltis.is_file(), "--moltis PROGRAM is needed");
    asked
}

fn median(all: &mut [Duration]) -> f64 {
    all.sort_unstable();
    all[all.len() / 2].as_secs_f64() * 1e6
}

/// `true` in a session, to its end.
async fn run_true(session: &mut OpenSession) {
    let mut exec = session.exec(ExecRequest::new(Command::Shell("true".into()))).await.unwrap();
    let mut code = None;
    while let Some(event) = exec.events.next().await {
        if let ExecEvent::Exit(outcome) = event.unwrap() {
            code = Some(outcome.exit_code());
        }
    }
    assert_eq!(code, Some(0));
}

/// What HTTP adds to `true` in a session whose sandbox runs: by turns with the same in this process.
async fn added(asked: &Asked, gateway: &Gateway, table: &mut Table) {
    let folder = tempfile::Builder::new().prefix("moltis-bench-").tempdir().unwrap();
    let mut config = Config::default();
    config.data_dir.value = folder.path().join("data");
    config.tools.exec.sandbox.backend.value = BackendChoice::Named(BackendName::Namespaces);
    let runtime = Runtime::long_lived(config, None, Vec::new()).await.unwrap();
    let key = SessionKey::new("bench").unwrap();
    let request = SessionRequest::new(key.clone());
    let mut client = gateway.client();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..asked.rounds + 20 {
        let started = Instant::now();
        let (status, answer) = client.ask("POST", "/api/v1/sessions/bench/exec", TRUE);
        let first = started.elapsed();
        assert!(status == 200 && answer.contains(r#""exitCode":0"#), "{status} {answer}");
        // A session is opened for each request, as the gateway does.
        let started = Instant::now();
        let mut session = runtime.open_session(&request).await.unwrap();
        run_true(&mut session).await;
        let second = started.elapsed();
        if round >= 20 {
            ours.push(first);
            theirs.push(second);
        }
    }
    runtime.remove_session(&key, true).await.unwrap();
    assert!(matches!(client.ask("DELETE", "/api/v1/sessions/bench?purge=true", "").0, 200 | 204));
    let (http, inside) = (median(&mut ours), median(&mut theirs));
    let more = http - inside;
    table.ratio(
        format!("`true` in a held session over HTTP, p50, beside in-process ({more:+.0} µs, of {ADDED} µs)"),
        (http, format!("{http:.0} µs")),
        (inside, format!("{inside:.0} µs")),
        Target::AtMost(((inside + ADDED) / inside * 100.0).round() / 100.0),
    );
}

/// How often a second the in-process shell runs `true` for several callers, where the program has it.
fn rate(asked: &Asked, table: &mut Table) {
    let Some(gateway) = Gateway::start(&asked.moltis, None, "wasm") else {
        eprintln!("the program has no backend `wasm`: no rate of it");
        return;
    };
    let until = Instant::now() + Duration::from_secs(asked.seconds);
    let started = Instant::now();
    let done: usize = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                // A key of its own: one caller's requests are limited.
                let mut client = gateway.client_of_its_own(&format!("caller-{caller}"));
                scope.spawn(move || {
                    let path = format!("/api/v1/sessions/bench-{caller}/exec");
                    let mut done = 0;
                    while Instant::now() < until {
                        let (status, answer) = client.ask("POST", &path, TRUE);
                        assert_eq!(status, 200, "{answer}");
                        done += 1;
                    }
                    done
                })
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    let rate = done as f64 / started.elapsed().as_secs_f64();
    table.ratio(
        format!("`true` of the in-process shell over HTTP, {CALLERS} callers: rate (of {RATE}/s)"),
        (rate, format!("{rate:.0}/s")),
        (RATE, format!("{RATE:.0}/s")),
        Target::AtLeast(1.0),
    );
}

/// How long a gateway takes until it is ready, with many sessions in its store.
fn ready(asked: &Asked, table: &mut Table) {
    let gateway = Gateway::start(&asked.moltis, None, "namespaces").unwrap();
    let mut client = gateway.client();
    for n in 0..SESSIONS {
        let (status, answer) = client.ask("PATCH", &format!("/api/v1/sessions/s{n}"), r#"{"env":{"A":"b"}}"#);
        assert_eq!(status, 201, "{answer}");
    }
    drop(client);
    let mut folder = gateway.end();
    let mut times = Vec::new();
    for _ in 0..(asked.rounds / 50).clamp(3, 20) {
        let started = Instant::now();
        let gateway = Gateway::start(&asked.moltis, Some(folder), "namespaces").unwrap();
        times.push(started.elapsed());
        folder = gateway.end();
    }
    let time = median(&mut times) / 1e3;
    table.ratio(
        format!("start to ready with {SESSIONS} sessions in the store, p50 (of {READY} ms)"),
        (time, format!("{time:.0} ms")),
        (READY, format!("{READY} ms")),
        Target::AtMost(1.0),
    );
}

fn main() -> ExitCode {
    let asked = asked();
    let mut table = Table::default();
    let gateway = Gateway::start(&asked.moltis, None, "namespaces").expect("namespaces are usable here");
    // What a start leaves to be done soon after it is done by then.
    std::thread::sleep(Duration::from_secs(2));
    table.bound("a gateway that does nothing: resident", gateway.resident(), "MiB", IDLE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(added(&asked, &gateway, &mut table));
    drop(gateway.end());
    rate(&asked, &mut table);
    ready(&asked, &mut table);
    println!("{}", table.markdown());
    match table.broken() {
        Some(line) => {
            eprintln!("does not hold: {line}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}
