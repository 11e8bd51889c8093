//! The proxy through a sandbox's proxy port, beside the proxy alone: `through [--short]`. Prints a table.
//!
//! The same callers do the same, by turns inside and outside; sandbox, proxy and listener have one thread, as they have
//! in `moltis`.

#[path = "../../egress/examples/load/mod.rs"]
mod load;

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use async_trait::async_trait;
use load::{Origins, Outcome, connects, gets, origins, throughput};
use moltis_backend_namespaces::{Config, NamespacesBackend};
use moltis_egress::{
    Approvals, Asked, AuditLog, Policy, Proxy, ProxyLimits, ProxySettings, Rule, SystemResolver, Verdict,
};
use moltis_sandbox::{
    Backend, Command, ExecEvent, ExecRequest, Lifetime, Mount, MountMode, Origin, Sandbox, SandboxSpec,
    SessionKey, Setting,
};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// What is measured, and its unit.
const FIGURES: [(&str, &str, &str); 3] = [
    ("connects", "tunnel, 64 bytes there and back, end: rate", "/s"),
    ("gets", "GET of 1 KiB, kept connections: rate", "/s"),
    ("throughput", "one tunnel, much: throughput", " MiB/s"),
];

/// What must be left of the proxy's own.
const TARGET: f64 = 1.0 / 3.0;

struct Nobody;

#[async_trait]
impl Approvals for Nobody {
    async fn ask(&self, _: &Asked) -> Verdict {
        Verdict::Denied
    }
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, what, proxy, port, amount] = &arguments[..]
        && word == "load"
    {
        let rate = caller(what, proxy.parse()?, port.parse()?, amount.parse()?)?;
        writeln!(std::io::stdout(), "{rate}")?;
        return Ok(());
    }
    let short = arguments.iter().any(|argument| argument == "--short");
    let (rounds, slice, size) = if short { (2, 300, 64 << 20) } else { (9, 1500, 1 << 30) };
    // The servers' threads are others.
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || -> Outcome<()> {
        tokio::runtime::Runtime::new()?.block_on(async {
            sender.send(origins(size).await?)?;
            std::future::pending().await
        })
    });
    let origins = receiver.recv()?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let folder = tempfile::Builder::new().prefix("moltis-bench-").tempdir()?;
        let sandbox = sandbox(folder.path()).await?;
        let measured = measured(&sandbox, folder.path(), &origins, rounds, slice, size).await;
        sandbox.close().await?;
        measured
    })
}

/// What one does who calls: exchanges a second, or MiB.
fn caller(what: &str, proxy: u16, port: u16, amount: usize) -> Outcome<f64> {
    let time = Duration::from_millis(amount as u64);
    tokio::runtime::Runtime::new()?.block_on(async {
        Ok(match what {
            "connects" => connects(proxy, port, time).await?.rate(),
            "gets" => gets(proxy, port, time).await?.rate(),
            _ => throughput(proxy, port, amount).await?,
        })
    })
}

/// A sandbox with this program in it.
async fn sandbox(folder: &Path) -> Outcome<Arc<dyn Sandbox>> {
    let (data_dir, workspace) = (folder.join("data"), folder.join("workspace"));
    std::fs::create_dir(&data_dir)?;
    std::fs::create_dir(&workspace)?;
    std::fs::copy(std::env::current_exe()?, workspace.join("caller"))?;
    let backend = NamespacesBackend::new(Config { data_dir, config_dir: None });
    let mut spec = SandboxSpec::new(SessionKey::new("bench").ok_or("no key")?, Lifetime::Ephemeral);
    let mount = Mount { source: workspace, target: "/workspace".into(), mode: MountMode::Ro };
    spec.workspace = Some(Setting::new(mount, Origin::Flag));
    Ok(backend.open(&spec).await?)
}

async fn measured(
    sandbox: &Arc<dyn Sandbox>,
    folder: &Path,
    origins: &Origins,
    rounds: usize,
    slice: usize,
    size: usize,
) -> Outcome<()> {
    let limits = ProxyLimits { connections: 8192, session_connections: 4096, ..ProxyLimits::default() };
    let proxy = Proxy::new(ProxySettings {
        limits,
        upstream: None,
        resolver: Arc::new(SystemResolver),
        own: Arc::new(|_| false),
        audit: Arc::new(AuditLog::new(folder.join("log"))),
    });
    let rule = Rule { pattern: "127.0.0.0/8".parse()?, origin: moltis_egress::Origin::Config };
    let (_policy, follows) = watch::channel(Policy { trusted: vec![rule], ..Policy::default() });
    let session = Arc::new(proxy.session("bench", follows, Arc::new(Nobody)));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let alone = listener.local_addr()?.port();
    let mut forwarder = sandbox.egress().await?;
    let through = forwarder.port();
    let serving = Arc::clone(&session);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            tokio::spawn(serving.serve(Box::new(stream)));
        }
    });
    tokio::spawn(async move {
        while let Ok(stream) = forwarder.accept().await {
            tokio::spawn(session.serve(stream));
        }
    });
    println!(
        "| figure | through a sandbox | the proxy alone | ratio | target | |\n|---|---|---|---|---|---|"
    );
    let mut good = true;
    for (what, figure, unit) in FIGURES {
        let (port, amount) = match what {
            "connects" => (origins.echo, slice),
            "gets" => (origins.page, slice),
            _ => (origins.source, size),
        };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let words = |proxy: u16| {
                ["load", what].map(str::to_owned).into_iter().chain([
                    proxy.to_string(),
                    port.to_string(),
                    amount.to_string(),
                ])
            };
            ours.push(inside(sandbox, words(through)).await?);
            let output = tokio::process::Command::new(std::env::current_exe()?).args(words(alone)).output();
            theirs.push(number(&output.await?.stdout)?);
        }
        let (ours, theirs) = (median(ours), median(theirs));
        let ratio = ours / theirs;
        good &= ratio >= TARGET;
        let word = if ratio >= TARGET { "pass" } else { "miss" };
        println!("| {figure} | {ours:.0}{unit} | {theirs:.0}{unit} | {ratio:.2} | ≥ 0.33 | {word} |");
    }
    if good { Ok(()) } else { Err("too much is lost on the way".into()) }
}

async fn inside(sandbox: &Arc<dyn Sandbox>, words: impl Iterator<Item = String>) -> Outcome<f64> {
    let words = std::iter::once("/workspace/caller".to_owned()).chain(words).map(Into::into).collect();
    let mut exec = sandbox.exec(ExecRequest::new(Command::Argv(words))).await?;
    let (mut text, mut complaint) = (Vec::new(), Vec::new());
    while let Some(event) = exec.events.next().await {
        match event? {
            ExecEvent::Stdout(bytes) => text.extend_from_slice(&bytes),
            ExecEvent::Stderr(bytes) => complaint.extend_from_slice(&bytes),
            ExecEvent::Exit(outcome) if outcome.exit_code() != 0 => {
                return Err(String::from_utf8_lossy(&complaint).into());
            }
            _ => {}
        }
    }
    number(&text)
}

fn number(text: &[u8]) -> Outcome<f64> {
    Ok(String::from_utf8_lossy(text).trim().parse()?)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
