//! The program is killed between any two steps of an opening, and the machine's process at any time: whoever looks next
//! finds all of it and removes it, and nothing else.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use moltis_backend_firecracker::{Config, FirecrackerBackend, Step};
use moltis_sandbox::{Backend, Network, Origin, Setting};

use crate::support::{Host, LONG, devices, eventually, firecracker, lasting};

const FOLDER: &str = "MOLTIS_FC_CRASH_FOLDER";
const PROGRAM: &str = "MOLTIS_FC_CRASH_PROGRAM";
const STEP: &str = "MOLTIS_FC_CRASH_STEP";

/// Not a test of its own: what the others start, to be killed. It stops at the step that it is told.
#[tokio::test(flavor = "multi_thread")]
async fn the_one_that_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let wanted: usize = std::env::var(STEP).unwrap().parse().unwrap();
    let mut config = Config::new(folder.join("data"));
    config.firecracker = std::env::var_os(PROGRAM).unwrap().into();
    config.kernel = folder.join("vmlinux");
    config.rootfs = folder.join("rootfs.ext4");
    config.vcpus = 1;
    config.memory_mb = 64;
    config.watch = Some(Arc::new(move |step| {
        if step == Step::ALL[wanted] {
            println!("\nat {step:?}");
            loop {
                std::thread::park();
            }
        }
    }));
    let mut spec = lasting("killed");
    if moltis_backend_firecracker::tap::possible().is_ok() {
        spec.network = Setting::new(Network::Open, Origin::Flag);
    }
    let _ = FirecrackerBackend::new(config).open(&spec).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_step_the_program_is_killed_at_the_next_one_removes_all_of_it() {
    let name = "crash::whatever_step_the_program_is_killed_at_the_next_one_removes_all_of_it";
    let Some(program) = firecracker(name) else { return };
    let before = devices();
    // At the last one the agent serves, which needs a guest.
    for (number, step) in Step::ALL[..9].iter().enumerate() {
        let host = Host::new(program.clone());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["crash::the_one_that_is_killed", "--exact", "--nocapture"])
            .env(FOLDER, host.path(""))
            .env(PROGRAM, &host.firecracker)
            .env(STEP, number.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let reached = stdout.lines().map_while(Result::ok).any(|line| line == format!("at {step:?}"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(reached, "{step:?}");
        let backend = host.backend();
        let start = std::time::Instant::now();
        let found = loop {
            backend.list().await.unwrap();
            let left: Vec<_> = devices().into_iter().filter(|name| !before.contains(name)).collect();
            let found = (host.left_behind(), host.processes(), left);
            // A process that was just started may hold its starter's lock a moment longer; then the next look removes it.
            if found == Default::default() || start.elapsed() > LONG {
                break found;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        };
        // Whatever came of it: nothing stays behind.
        backend.remove(&lasting("killed").id()).await.unwrap();
        assert_eq!(found, Default::default(), "{step:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_has_become_another_s_is_not_killed() {
    let name = "crash::a_number_that_has_become_another_s_is_not_killed";
    let Some(program) = firecracker(name) else { return };
    let host = Host::new(program);
    let id = lasting("reused").id();
    let folder = host.path("data/run/firecracker").join(id.as_str());
    std::fs::create_dir_all(&folder).unwrap();
    for path in ["data", "data/run", "data/run/firecracker"] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(host.path(path), std::fs::Permissions::from_mode(0o700)).unwrap();
    }
    let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
    let found = std::fs::metadata(&folder).unwrap();
    use std::os::unix::fs::MetadataExt;
    let record = serde_json::json!({
        "pid": other.id(), "started": 1, "realm": moltis_host::process::pid_realm(), "fingerprint": "f",
        "createdSecs": 1, "work": folder.join("vm"), "user": null, "tap": null, "restored": false, "served": true,
        "device": found.dev(), "inode": found.ino(),
    });
    std::fs::write(folder.join("sandbox.json"), record.to_string()).unwrap();
    assert_eq!(host.backend().list().await.unwrap(), []);
    assert_eq!(host.left_behind(), Vec::<String>::new());
    assert_eq!(other.try_wait().unwrap(), None, "it was killed");
    other.kill().unwrap();
    other.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_firecracker_itself_is_an_error_and_leaves_nothing() {
    let name = "crash::the_end_of_firecracker_itself_is_an_error_and_leaves_nothing";
    let Some(program) = firecracker(name) else { return };
    for step in [Step::Numbered, Step::Listening, Step::Started] {
        let host = Host::new(program.clone());
        let mut config = host.config();
        config.serves_within = LONG;
        let data = host.path("data/run/firecracker");
        config.watch = Some(Arc::new(move |now| {
            if now == step {
                let record = data.join(lasting("ended").id().as_str()).join("sandbox.json");
                let record: serde_json::Value =
                    serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
                let pid = record["pid"].as_u64().unwrap().to_string();
                assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
            }
        }));
        let Err(error) = FirecrackerBackend::new(config).open(&lasting("ended")).await else {
            panic!("it opened")
        };
        assert_eq!((error.kind(), error.code()), ("unavailable", "firecracker-died"), "{step:?} {error:?}");
        assert_eq!(host.left_behind(), Vec::<String>::new());
        assert!(eventually(|| host.processes().is_empty()).await);
    }
}
