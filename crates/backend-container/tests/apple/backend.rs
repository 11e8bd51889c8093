//! The whole backend on the tool, found on a search path: opened, used, found again, closed, and nothing left behind.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use moltis_backend_container::engine::{EngineKind, Environment};
use moltis_backend_container::{Config, ContainerBackend};
use moltis_sandbox::{
    Backend, Command, Detection, ExecEvent, ExecRequest, ImageChoice, Lifetime, Origin, Sandbox, SandboxSpec,
    SessionKey, Setting,
};
use moltis_testkit::apple::Version;

use super::{IMAGE, runs, tested};

async fn said(sandbox: &dyn Sandbox, line: &str) -> String {
    let mut request = ExecRequest::new(Command::Shell(OsString::from(line)));
    request.timeout = Some(Duration::from_secs(20));
    let mut exec = sandbox.exec(request).await.unwrap();
    let mut out = Vec::new();
    while let Some(event) = exec.events.next().await {
        if let ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes) = event.unwrap() {
            out.extend_from_slice(&bytes);
        }
    }
    String::from_utf8(out).unwrap()
}

#[tokio::test]
async fn a_session_is_opened_used_and_closed() {
    if !runs("apple::backend::a_session_is_opened_used_and_closed") {
        return;
    }
    for version in [Version::V0_8, Version::V0_9, Version::V1_1] {
        let tested = tested(version).await;
        let data = tempfile::tempdir().unwrap();
        let environment = Environment { vars: tested.standin.variables(), ..Environment::of_process() };
        let backend = ContainerBackend::new(Config {
            kind: EngineKind::Apple,
            data_dir: data.path().join("data"),
            config_dir: None,
            host_data_dir: None,
            prefix: "moltis".to_owned(),
            environment,
        });
        assert!(matches!(backend.detect().await, Detection::Usable(_)));
        let idle = Lifetime::Idle(Duration::from_secs(300));
        let mut spec = SandboxSpec::new(SessionKey::new("apple").unwrap(), idle);
        let reference = Setting::new(IMAGE.to_owned(), Origin::Session);
        spec.image = Some(ImageChoice::Finished { reference });
        let sandbox = backend.open(&spec).await.unwrap();
        assert_eq!(
            said(&*sandbox, "id -u; echo there > /home/sandbox/x; cat /home/sandbox/x").await,
            "1000\nthere\n"
        );
        let again = backend.adopt(&spec).await.unwrap().unwrap();
        assert_eq!(said(&*again, "cat /home/sandbox/x").await, "there\n");
        let listed = backend.list().await.unwrap();
        assert_eq!(listed.iter().map(|record| record.running).collect::<Vec<_>>(), [true]);
        sandbox.close().await.unwrap();
        drop((sandbox, again));
        assert!(backend.find(&spec.id()).await.unwrap().is_none());
        let begun = Instant::now();
        while !tested.standin.processes().is_empty() || !tested.standin.containers().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", tested.standin.containers());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
