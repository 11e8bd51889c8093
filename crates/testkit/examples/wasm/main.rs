//! Figures of the in-process shell and of WASI modules, each beside a baseline that takes turns with it; what `cargo
//! xtask bench wasm` calls.
//!
//! `wasm --moltis PROGRAM [--short|--long] [--python=MODULE]`. Times are reported with pass or miss; sizes are asserted.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[allow(dead_code, reason = "shared with another bench, which uses more of it")]
#[path = "../bench/plain.rs"]
mod plain;
#[allow(dead_code, reason = "shared with another bench, which uses more of it")]
#[path = "../bench/table.rs"]
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_backend_wasm::{Config, WasmBackend};
use moltis_sandbox::{Backend, Exec, ExecEvent, ExecRequest, Lifetime, Sandbox, SandboxSpec, SessionKey};
use table::{Table, Target};
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::p2::pipe::MemoryOutputPipe;
use wasmtime_wasi::{I32Exit, WasiCtxBuilder};

/// What shells allocate is counted, as in the program.
#[global_allocator]
static ALLOCATOR: moltis_backend_wasm::Metering<std::alloc::System> =
    moltis_backend_wasm::Metering(std::alloc::System);

/// A module that prints a line.
const HELLO: &[u8] = include_bytes!("../../../backend-wasm/tests/wasm/hello.wasm");

struct Asked {
    rounds: usize,
    sessions: usize,
    python: Option<PathBuf>,
}

fn asked() -> Asked {
    let mut asked = Asked { rounds: 300, sessions: 10_000, python: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--short" => (asked.rounds, asked.sessions) = (30, 500),
            "--long" => asked.rounds = 2000,
            "--moltis" => drop(arguments.next()),
            other if other.starts_with("--python=") => {
                asked.python = other.split_once('=').map(|(_, path)| path.into())
            }
            other => panic!("unknown argument {other:?}"),
        }
    }
    asked
}

fn median(mut all: Vec<Duration>) -> (f64, String) {
    all.sort_unstable();
    let middle = all[all.len() / 2].as_secs_f64() * 1e3;
    (middle, format!("{middle:.3} ms"))
}

/// Runs a line to its end; what it printed.
async fn run(sandbox: &Arc<dyn Sandbox>, line: &str) -> Vec<u8> {
    let request = ExecRequest::new(moltis_sandbox::Command::Shell(line.into()));
    let Exec { mut events, control: _control } = sandbox.exec(request).await.unwrap();
    let mut printed = Vec::new();
    while let Some(event) = events.next().await {
        if let ExecEvent::Stdout(bytes) = event.unwrap() {
            printed.extend_from_slice(&bytes);
        }
    }
    printed
}

/// A line in a sandbox, and the host's shell with another.
async fn beside(sandbox: &Arc<dyn Sandbox>, line: &str, of_host: &str, rounds: usize) -> [(f64, String); 2] {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..rounds + 20 {
        let started = Instant::now();
        run(sandbox, line).await;
        let first = started.elapsed();
        let started = Instant::now();
        let host = Command::new("sh").args(["-c", of_host]).stdin(Stdio::null()).output().unwrap();
        let second = started.elapsed();
        assert!(host.status.success());
        if round >= 20 {
            ours.push(first);
            theirs.push(second);
        }
    }
    [median(ours), median(theirs)]
}

fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

/// A module run by Wasmtime as its own examples do: compiled and linked before, no fuel, no deadline, no limit.
struct Plain {
    program: wasmtime::InstancePre<WasiP1Ctx>,
}

impl Plain {
    fn new(module: &Path) -> Self {
        let engine = wasmtime::Engine::default();
        let mut linker = wasmtime::Linker::new(&engine);
        wasmtime_wasi::p1::add_to_linker_async(&mut linker, |state| state).unwrap();
        let module = wasmtime::Module::from_file(&engine, module).unwrap();
        Self { program: linker.instantiate_pre(&module).unwrap() }
    }

    /// What it printed.
    async fn run(&self, arguments: &[&str]) -> Vec<u8> {
        let printed = MemoryOutputPipe::new(1 << 20);
        let mut context = WasiCtxBuilder::new();
        context.args(arguments).stdout(printed.clone());
        let mut store = wasmtime::Store::new(self.program.module().engine(), context.build_p1());
        let instance = self.program.instantiate_async(&mut store).await.unwrap();
        let start = instance.get_typed_func::<(), ()>(&mut store, "_start").unwrap();
        match start.call_async(&mut store, ()).await {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.downcast_ref::<I32Exit>().map(|exit| exit.0), Some(0), "{error:?}")
            }
        }
        drop(store);
        printed.contents().to_vec()
    }
}

async fn measure(asked: &Asked, table: &mut Table) {
    let folder = tempfile::Builder::new().prefix("moltis-bench-").tempdir().unwrap();
    let hello = folder.path().join("hello.wasm");
    std::fs::write(&hello, HELLO).unwrap();
    // What changed in this moment is read anew each time, since it might change again unseen.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let mut commands = BTreeMap::from([("hello".to_owned(), hello)]);
    commands.extend(asked.python.clone().map(|python| ("python3".to_owned(), python)));
    let backend = WasmBackend::new(Config {
        data_dir: folder.path().join("data"),
        config_dir: None,
        commands,
        epoch_interval: Duration::from_millis(100),
        fuel: 100_000_000_000,
    });
    backend.prepare(&moltis_sandbox::BuildSink::ignore()).await.unwrap();
    let key = |n: usize| SessionKey::new(format!("bench {n}")).unwrap();
    let sandbox = backend.open(&SandboxSpec::new(key(0), Lifetime::Ephemeral)).await.unwrap();
    let [ours, host] = beside(&sandbox, "true", "true", asked.rounds).await;
    table.ratio("`true`, p50", ours, host, Target::AtMost(0.1));
    let line = "echo a | tr a-z A-Z | wc -c";
    let [ours, host] = beside(&sandbox, line, line, asked.rounds).await;
    table.ratio("`echo a \\| tr a-z A-Z \\| wc -c`, p50", ours, host, Target::AtMost(1.0));
    let mut times = Vec::new();
    for round in 0..asked.rounds + 20 {
        let started = Instant::now();
        assert_eq!(run(&sandbox, "hello").await, b"hello\n");
        if round >= 20 {
            times.push(started.elapsed());
        }
    }
    let (value, shown) = median(times);
    // The figure is time: reported, not asserted.
    table.ratio(
        "a module that prints a line, p50 (of 1 ms)",
        (value, shown),
        (1.0, "1 ms".to_owned()),
        Target::AtMost(1.0),
    );
    if let Some(python) = &asked.python {
        let plain = Plain::new(python);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let rounds = (asked.rounds / 20).max(3);
        for round in 0..rounds + 2 {
            let started = Instant::now();
            assert_eq!(run(&sandbox, "python3 -c 'print(6*7)'").await, b"42\n");
            let first = started.elapsed();
            let started = Instant::now();
            assert_eq!(plain.run(&["python3", "-c", "print(6*7)"]).await, b"42\n");
            let second = started.elapsed();
            if round >= 2 {
                ours.push(first);
                theirs.push(second);
            }
        }
        let ([ours, theirs], more) = {
            let both = [median(ours), median(theirs)];
            let more = both[0].0 - both[1].0;
            (both, more)
        };
        // So many times as much as the module alone and ten milliseconds.
        let target = (theirs.0 + 10.0) / theirs.0;
        let what = format!("`python3 -c 'print(6*7)'`, p50, beside plain Wasmtime ({more:+.1} ms, of 10 ms)");
        table.ratio(what, ours, theirs, Target::AtMost((target * 100.0).round() / 100.0));
    }
    sandbox.close().await.unwrap();
    let before = resident();
    let mut idle = Vec::with_capacity(asked.sessions);
    for n in 1..=asked.sessions {
        let spec = SandboxSpec::new(key(n), Lifetime::Idle(Duration::from_secs(3600)));
        let sandbox = backend.open(&spec).await.unwrap();
        run(&sandbox, "x=1; echo $x >/tmp/f").await;
        idle.push(sandbox);
    }
    let grown = resident() - before;
    table.bound(format!("{} idle sessions that have run a command", asked.sessions), grown, "MiB", 1024.0);
    for sandbox in idle {
        sandbox.close().await.unwrap();
    }
}

fn main() -> ExitCode {
    let asked = asked();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut table = Table::default();
    runtime.block_on(measure(&asked, &mut table));
    println!("{}", table.markdown());
    match table.broken() {
        Some(line) => {
            eprintln!("does not hold: {line}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}
