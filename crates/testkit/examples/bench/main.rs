//! Figures of `exec`, each beside a baseline that takes turns with it; what `cargo xtask bench exec` calls.
//!
//! `bench --moltis PROGRAM [--short|--long]`. Times are reported with pass or miss; sizes and counts are asserted.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod memory;
mod plain;
mod table;
mod time;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use moltis_backend_namespaces::{Config, NamespacesBackend};
use moltis_sandbox::{
    Backend, Command, Detection, Exec, ExecEvent, ExecRequest, Lifetime, Sandbox, SandboxSpec, SessionKey,
};
use table::Table;

/// How much to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Enough to see that it works; what the tests run.
    Short,
    /// What the docs show.
    Usual,
    /// With the large figures of the long suites.
    Long,
}

/// The backend under measure and where it lives.
pub struct Place {
    backend: Arc<NamespacesBackend>,
    folder: tempfile::TempDir,
    next: std::sync::atomic::AtomicU32,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("moltis-bench-").tempdir().unwrap();
        let data_dir = folder.path().join("data");
        std::fs::create_dir(&data_dir).unwrap();
        let backend = Arc::new(NamespacesBackend::new(Config { data_dir, config_dir: None }));
        Self { backend, folder, next: std::sync::atomic::AtomicU32::new(0) }
    }

    /// A new sandbox without a home.
    pub async fn open(&self) -> Arc<dyn Sandbox> {
        let n = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let key = SessionKey::new(format!("bench {n}")).unwrap();
        self.backend.open(&SandboxSpec::new(key, Lifetime::Ephemeral)).await.unwrap()
    }
}

/// A request for a program.
pub fn argv(arguments: &[&str]) -> ExecRequest {
    ExecRequest::new(Command::Argv(arguments.iter().map(Into::into).collect()))
}

/// A request for a shell line.
pub fn shell(line: &str) -> ExecRequest {
    ExecRequest::new(Command::Shell(line.into()))
}

/// Runs a command to its end; bytes of standard output.
pub async fn run(sandbox: &Arc<dyn Sandbox>, request: ExecRequest) -> u64 {
    let Exec { mut events, control: _control } = sandbox.exec(request).await.unwrap();
    let mut bytes = 0;
    let mut over = false;
    while let Some(event) = events.next().await {
        match event.unwrap() {
            ExecEvent::Stdout(piece) => bytes += piece.len() as u64,
            ExecEvent::Exit(outcome) => {
                assert_eq!(outcome.exit_code(), 0, "{outcome:?}");
                over = true;
            }
            _ => {}
        }
    }
    assert!(over);
    bytes
}

fn main() -> ExitCode {
    let mut form = Form::Usual;
    let mut moltis: Option<PathBuf> = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--short" => form = Form::Short,
            "--long" => form = Form::Long,
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
        let place = Place::new();
        if let Detection::Unusable(d) | Detection::Failing(d) = place.backend.detect().await {
            eprintln!("namespaces is not usable here: {d}");
            return;
        }
        // Memory first, while this process is small and has seen nothing.
        memory::agent(&place, &mut table).await;
        memory::streaming(&place, &mut table, form).await;
        memory::stalled(&place, &mut table).await;
        time::held(&place, &mut table, form).await;
        time::rate(&place, &mut table, form).await;
        time::fresh(&place, &mut table, form, false).await;
        time::whole(&moltis, place.folder.path(), &mut table, form);
        time::session(&moltis, place.folder.path(), &mut table, form);
        memory::many(&place, &mut table, form).await;
        // Last, since it makes this process large.
        time::fresh(&place, &mut table, form, true).await;
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
