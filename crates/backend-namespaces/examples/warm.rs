//! What a command costs in a sandbox that runs already, seen from a process that has never seen it: finding it, and
//! running `true` in it, beside a plain spawn of `sh -c true`.
//!
//! ```text
//! cargo run --release -p moltis-backend-namespaces --example warm
//! ```

// An example says what went wrong by breaking off.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};

use moltis_backend_namespaces::{Config, NamespacesBackend};
use moltis_sandbox::{
    Backend, Command, ExecEvent, ExecRequest, Lifetime, Mount, MountMode, Origin, SandboxSpec, SessionKey,
    Setting,
};

const ROUNDS: usize = 200;

fn main() {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match (arguments.next(), arguments.next()) {
        (Some(data), Some(place)) => runtime.block_on(child(&data, &place)),
        _ => runtime.block_on(parent()),
    }
}

fn backend(data: &Path) -> NamespacesBackend {
    NamespacesBackend::new(Config { data_dir: data.to_owned(), config_dir: None })
}

/// A sandbox with what is there of a workspace, a home and managed files beneath `place`.
fn spec(place: &Path) -> SandboxSpec {
    let key = SessionKey::new("warm").unwrap();
    let mut spec = SandboxSpec::new(key, Lifetime::Idle(Duration::from_secs(600)));
    spec.limits.memory = Some(Setting::built_in(1 << 30));
    spec.limits.pids = Some(Setting::built_in(1024));
    let there = |name: &str| Some(place.join(name)).filter(|path| path.is_dir());
    let mount = |source, target: &str| Mount { source, target: target.into(), mode: MountMode::Rw };
    spec.home = there("home");
    spec.managed_files = there("files").map(|source| mount(source, "/home/sandbox/files"));
    if let Some(source) = there("workspace") {
        spec.workspace = Some(Setting::new(mount(source, "/workspace"), Origin::Flag));
        spec.workspace_protect =
            [".git/hooks", ".git/config", ".envrc", ".vscode", ".idea", ".moltis*"].map(String::from).into();
    }
    spec
}

async fn child(data: &Path, place: &Path) {
    moltis_sandbox::blocking::allow_here();
    let spec = spec(place);
    let start = Instant::now();
    let sandbox = backend(data).adopt(&spec).await.unwrap().expect("it runs");
    let adopted = start.elapsed();
    let start = Instant::now();
    let mut exec = sandbox.exec(ExecRequest::new(Command::Argv(vec!["true".into()]))).await.unwrap();
    while let Some(event) = exec.events.next().await {
        if let ExecEvent::Exit(outcome) = event.unwrap() {
            assert_eq!(outcome.exit_code(), 0);
        }
    }
    println!("{} {}", adopted.as_micros(), start.elapsed().as_micros());
}

async fn parent() {
    let temp = tempfile::tempdir().unwrap();
    let data = temp.path().join("data");
    let place = |name: &str| data.join("places").join(name);
    std::fs::DirBuilder::new().mode(0o700).create(&data).unwrap();
    let elsewhere = temp.path().join("workspaces");
    for number in 0..300 {
        let folder = elsewhere.join(format!("workspace/{}/{number}", number % 20));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("file"), "").unwrap();
    }
    for folder in ["plain", "files/home", "files/files"] {
        std::fs::create_dir_all(place(folder)).unwrap();
    }
    // What changed right before the sandbox began is read again after each command.
    tokio::time::sleep(Duration::from_millis(200)).await;
    for (what, place) in [
        ("nothing mounted", place("plain")),
        ("home and managed files", place("files")),
        ("writable workspace of 321 folders", elsewhere),
    ] {
        let sandbox = backend(&data).open(&spec(&place)).await.unwrap();
        let (mut adopt, mut exec, mut both, mut plain) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let status = Process::new("sh").args(["-c", "true"]).stdin(Stdio::null()).status().unwrap();
            assert!(status.success());
            plain.push(start.elapsed().as_micros());
            let mut child = Process::new(std::env::current_exe().unwrap());
            let said = child.arg(&data).arg(&place).output().unwrap();
            let said = String::from_utf8(said.stdout).unwrap();
            let mut figures = said.split_whitespace().map(|figure| figure.parse::<u128>().unwrap());
            adopt.push(figures.next().unwrap());
            exec.push(figures.next().unwrap());
            both.push(adopt[adopt.len() - 1] + exec[exec.len() - 1]);
        }
        sandbox.close().await.unwrap();
        println!("{what}: µs at the median (and the best) of {ROUNDS}");
        for (what, figures) in
            [("sh -c true", &mut plain), ("adopt", &mut adopt), ("exec", &mut exec), ("both", &mut both)]
        {
            figures.sort_unstable();
            println!("  {what:12} {:6} ({})", figures[figures.len() / 2], figures[0]);
        }
    }
}
