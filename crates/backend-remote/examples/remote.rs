//! What Moltis adds to a provider's own time: `remote [--short]`. Prints a table. The provider is the stand-in for Vercel,
//! in this process, and its machines are sandboxes of `namespaces`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_backend_namespaces::NamespacesBackend;
use moltis_backend_remote::{VercelConfig, vercel};
use moltis_config::value::secret::Secret;
use moltis_sandbox::{
    Backend, Command, ExecEvent, ExecRequest, Lifetime, Mount, MountMode, Origin, Sandbox, SandboxSpec,
    SessionKey, Setting,
};
use moltis_testkit::remote::vercel::Vercel;

/// What a warm command may cost beyond the provider's own time, in milliseconds.
const EXEC: f64 = 5.0;
/// What a workspace of that many files that nobody changed may cost, in milliseconds.
const WORKSPACE: f64 = 1000.0;

/// Runs `true`; how long it took, and how much of that the provider.
async fn run(sandbox: &Arc<dyn Sandbox>, vercel: &Vercel) -> (Duration, Duration) {
    // What the command before left to do is none of this one's time.
    while vercel.is_busy() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (began, spent) = (Instant::now(), vercel.spent());
    let mut request = ExecRequest::new(Command::Argv(vec!["true".into()]));
    request.timeout = Some(Duration::from_secs(60));
    let mut exec = sandbox.exec(request).await.expect("it starts");
    while let Some(event) = exec.events.next().await {
        if let ExecEvent::Exit(outcome) = event.expect("it ends") {
            assert_eq!((outcome.exit_code(), outcome.notes), (0, Vec::<String>::new()));
        }
    }
    let theirs = vercel.spent() - spent;
    (began.elapsed(), theirs)
}

fn middle(mut all: Vec<Duration>) -> f64 {
    all.sort();
    all[all.len() / 2].as_secs_f64() * 1000.0
}

fn main() {
    let short = std::env::args().any(|argument| argument == "--short");
    let (files, rounds) = if short { (2_000, 11) } else { (10_000, 41) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(measure(files, rounds));
}

async fn measure(files: usize, rounds: usize) {
    let [machines, data, folder] = [(); 3].map(|()| tempfile::tempdir().expect("a folder"));
    let namespaces = NamespacesBackend::new(moltis_backend_namespaces::Config {
        data_dir: machines.path().to_owned(),
        config_dir: None,
    });
    let provider = Vercel::start(Arc::new(namespaces)).await;
    let backend = vercel::backend(VercelConfig {
        data_dir: data.path().to_owned(),
        config_dir: None,
        api_url: provider.url(),
        token: Some(Secret::new(Vercel::TOKEN)),
        project: Some(Vercel::PROJECT.to_owned()),
        team: Some(Vercel::TEAM.to_owned()),
        runtime: "node24".to_owned(),
        timeout: Duration::from_secs(3600),
        vcpus: 2,
        snapshot: None,
    });
    let mut spec =
        SandboxSpec::new(SessionKey::new("bare").unwrap(), Lifetime::Idle(Duration::from_secs(3600)));
    let bare = backend.open(&spec).await.expect("a sandbox");
    for number in 0..files {
        let path = folder.path().join(format!("d{}/e{}", number % 50, number % 7));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join(format!("f{number}")), format!("file {number}\n").repeat(20)).unwrap();
    }
    spec.key = SessionKey::new("carried").unwrap();
    let source = folder.path().canonicalize().unwrap();
    let mount = Mount { source, target: "/workspace".into(), mode: MountMode::Rw };
    spec.workspace = Some(Setting::new(mount, Origin::Flag));
    let carried = backend.open(&spec).await.expect("a sandbox");
    let began = Instant::now();
    run(&carried, &provider).await;
    let first = began.elapsed().as_secs_f64() * 1000.0;
    // What was just written is looked at once more before it is taken for settled.
    tokio::time::sleep(Duration::from_secs(3)).await;
    run(&carried, &provider).await;
    run(&bare, &provider).await;
    let sent = |provider: &Vercel| provider.calls().iter().filter(|call| call.contains("/fs/write")).count();
    let before = sent(&provider);
    let (mut own, mut alone, mut with) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (whole, theirs) = run(&bare, &provider).await;
        alone.push(whole);
        own.push(whole.checked_sub(theirs).expect("the provider is no longer at it than we wait"));
        with.push(run(&carried, &provider).await.0);
    }
    assert_eq!(sent(&provider), before, "nothing that has not changed is sent");
    carried.close().await.expect("it ends");
    bare.close().await.expect("it ends");
    let (own, alone, with) = (middle(own), middle(alone), middle(with));
    let word = |good: bool| if good { "pass" } else { "miss" };
    let mut out = std::io::stdout();
    let line = |out: &mut std::io::Stdout, text: String| writeln!(out, "{text}").expect("output");
    line(&mut out, "| figure | Moltis | baseline | beyond it | target | |".into());
    line(&mut out, "|---|---|---|---|---|---|".into());
    line(
        &mut out,
        format!(
            "| warm `true`, p50, beside the provider's own time | {alone:.1} ms | {:.1} ms | {own:.1} ms | ≤ {EXEC} ms | {} |",
            alone - own,
            word(own <= EXEC)
        ),
    );
    line(
        &mut out,
        format!(
            "| warm `true` with {files} files that nobody changed, p50, beside one without | {with:.1} ms | {alone:.1} ms | {:.1} ms | ≤ {WORKSPACE} ms | {} |",
            with - alone,
            word(with - alone <= WORKSPACE)
        ),
    );
    line(&mut out, format!("| first `true`, which sends those files | {first:.0} ms | – | – | – | – |"));
}
