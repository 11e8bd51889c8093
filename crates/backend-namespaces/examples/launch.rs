//! Measures a new sandbox up to the first output of a command in it, beside `bwrap` doing the same.
//!
//! `launch [rounds] [megabytes of ballast in this process]`, or `launch run <command line>`.

use std::path::PathBuf;
use std::process::{Command as Host, Stdio};
use std::time::{Duration, Instant};

use moltis_backend_namespaces::{Config, NamespacesBackend};
use moltis_sandbox::{
    Backend, Command, ExecEvent, ExecRequest, Lifetime, Sandbox, SandboxSpec, SessionKey, Status,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build()?;
    let data = std::env::var_os("DATA").map_or_else(std::env::temp_dir, PathBuf::from);
    let data = data.join(format!("moltis-launch-example-{}", std::process::id()));
    let backend = NamespacesBackend::new(Config { data_dir: data.clone(), config_dir: None });
    let done = match args.first().map(String::as_str) {
        Some("run") => runtime.block_on(run(&backend, args[1..].join(" "))),
        _ => {
            let number = |at: usize, default| args.get(at).and_then(|n| n.parse().ok()).unwrap_or(default);
            runtime.block_on(measure(&backend, number(0, 50), number(1, 0)))
        }
    };
    let _ = std::fs::remove_dir_all(data);
    done
}

fn spec(number: usize) -> SandboxSpec {
    let key = SessionKey::new(format!("example {} {number}", std::process::id()));
    let mut spec = SandboxSpec::new(key.unwrap_or_else(|| unreachable!()), Lifetime::Ephemeral);
    if std::env::var_os("LIMITS").is_some() {
        spec.limits.memory = Some(moltis_sandbox::Setting::built_in(2 << 30));
        spec.limits.pids = Some(moltis_sandbox::Setting::built_in(1024));
    }
    spec
}

async fn run(backend: &NamespacesBackend, line: String) -> Result<(), Box<dyn std::error::Error>> {
    let sandbox = backend.open(&spec(0)).await.map_err(|e| format!("{e:?}"))?;
    let mut exec =
        sandbox.exec(ExecRequest::new(Command::Shell(line.into()))).await.map_err(|e| format!("{e:?}"))?;
    while let Some(event) = exec.events.next().await {
        match event.map_err(|e| format!("{e:?}"))? {
            ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes) => {
                print!("{}", String::from_utf8_lossy(&bytes))
            }
            ExecEvent::Exit(outcome) => println!("{outcome:?}"),
            _ => {}
        }
    }
    sandbox.close().await?;
    Ok(())
}

async fn first_output(sandbox: &dyn Sandbox) -> Result<(), Box<dyn std::error::Error>> {
    let mut exec = sandbox.exec(ExecRequest::new(Command::Shell("true".into()))).await?;
    while let Some(event) = exec.events.next().await {
        if let ExecEvent::Exit(outcome) = event? {
            assert_eq!(outcome.status, Status::Code(0));
            return Ok(());
        }
    }
    Err("no exit".into())
}

async fn measure(
    backend: &NamespacesBackend,
    rounds: usize,
    ballast: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let ballast = vec![1u8; ballast << 20];
    let mut opens = Vec::new();
    let mut ours = Vec::new();
    let mut closes = Vec::new();
    let mut theirs = Vec::new();
    for round in 0..rounds {
        let start = Instant::now();
        let sandbox = backend.open(&spec(round)).await?;
        opens.push(start.elapsed());
        first_output(&*sandbox).await?;
        ours.push(start.elapsed());
        let start = Instant::now();
        sandbox.close().await?;
        closes.push(start.elapsed());
        let start = Instant::now();
        let status = Host::new("bwrap")
            .args("--unshare-all --ro-bind / / --proc /proc --dev /dev --tmpfs /tmp sh -c true".split(' '))
            .stdin(Stdio::null())
            .status()?;
        assert!(status.success());
        theirs.push(start.elapsed());
    }
    drop(ballast);
    let [open, ours, close, theirs] = [opens, ours, closes, theirs].map(median);
    println!(
        "open {open:.2?}, to first exit {ours:.2?}, close {close:.2?}; bwrap {theirs:.2?}; ratio {:.2}",
        ours.as_secs_f64() / theirs.as_secs_f64()
    );
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
