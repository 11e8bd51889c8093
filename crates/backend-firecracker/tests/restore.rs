//! A snapshot from which no machine ever serves: what begins from it is ended within its time, and one is booted.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use moltis_backend_firecracker::blueprint::Blueprint;
use moltis_backend_firecracker::detect;
use moltis_backend_firecracker::machine::{Program, Spawned};
use moltis_backend_firecracker::snapshot::Snapshot;
use moltis_backend_firecracker::{Config, FirecrackerBackend, Step};
use moltis_sandbox::Backend;

use crate::support::{Host, firecracker, lasting, names, said};

const KEY: &str = "restored";

/// Puts a snapshot of the payload, which never answers anybody, where the backend looks for one of this machine; its folder.
async fn snapshot(host: &Host, config: &Config) -> PathBuf {
    let found = detect::detect(config).await.unwrap();
    let (blueprint, store) = Blueprint::make(config, &lasting(KEY)).await.unwrap();
    let fingerprint = blueprint.fingerprint(&found.version, found.jailer.is_some()).unwrap();
    let work = host.work("written");
    blueprint.furnish(&work, None).unwrap();
    let program = Program { firecracker: host.firecracker.clone(), jail: None };
    let at = work.clone();
    let spawned = tokio::task::spawn_blocking(move || Spawned::start(&program, &at, "written"));
    let machine = spawned.await.unwrap().unwrap().listens().await.unwrap();
    blueprint.boot(&machine.api, None).await.unwrap();
    said(&machine, 2).await;
    Snapshot::take(&machine, &store, &fingerprint, &work).await.unwrap();
    machine.kill().await.unwrap();
    assert_eq!(Snapshot::find(&store, &fingerprint).map(|_| ()), Some(()));
    store.folder().join(format!("snapshot-{fingerprint}"))
}

/// The record of the machine that is being opened.
fn record(data: &Path) -> serde_json::Value {
    let path = data.join("run/firecracker").join(lasting(KEY).id().as_str()).join("sandbox.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Opens one; whether each machine that came so far was begun from a snapshot. `at` is called for each, with its step.
async fn opened(host: &Host, mut config: Config, until: Step, at: fn(&serde_json::Value)) -> Vec<bool> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (data, tell) = (config.data_dir.clone(), Arc::clone(&seen));
    config.watch = Some(Arc::new(move |step| {
        if step == until {
            let record = record(&data);
            tell.lock().unwrap().push(record["restored"].as_bool().unwrap());
            at(&record);
        }
    }));
    let Err(error) = FirecrackerBackend::new(config).open(&lasting(KEY)).await else {
        panic!("it was opened")
    };
    // The booted one is the payload, too.
    assert_eq!((error.kind(), error.code()), ("unavailable", "firecracker-guest-silent"), "{error:?}");
    assert_eq!(host.left_behind(), Vec::<String>::new());
    assert_eq!(host.processes(), Vec::<u32>::new());
    let seen = seen.lock().unwrap();
    seen.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_does_not_answer_after_a_restore_is_ended_and_another_is_booted() {
    let name = "restore::a_machine_that_does_not_answer_after_a_restore_is_ended_and_another_is_booted";
    let Some(program) = firecracker(name) else { return };
    let host = Host::new(program);
    let config = host.config();
    let kept = snapshot(&host, &config).await;
    assert_eq!(names(&kept), ["disk.ext4", "snapshot.memory", "snapshot.state"]);
    assert_eq!(opened(&host, config, Step::Started, |_| ()).await, [true, false]);
    assert!(!kept.exists(), "others would begin from it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_firecracker_that_hangs_over_a_snapshot_is_ended_and_another_is_booted() {
    let name = "restore::a_firecracker_that_hangs_over_a_snapshot_is_ended_and_another_is_booted";
    let Some(program) = firecracker(name) else { return };
    let host = Host::new(program);
    let mut config = host.config();
    config.serves_within = Duration::from_secs(3);
    let kept = snapshot(&host, &config).await;
    let halt = |record: &serde_json::Value| {
        if record["restored"] == true {
            let pid = record["pid"].as_u64().unwrap().to_string();
            assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
        }
    };
    assert_eq!(opened(&host, config, Step::Listening, halt).await, [true, false]);
    assert!(!kept.exists(), "others would begin from it");
}
