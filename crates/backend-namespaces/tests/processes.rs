//! What happens when the owner of a sandbox is killed. The owner is this test binary, run again.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use moltis_backend_namespaces::{Config, NamespacesBackend};
use moltis_sandbox::{Backend, Setting};

use super::support::{Host, cgroups, eventually, lives, names, sh, spec};

const DATA: &str = "MOLTIS_TEST_OWNED_DATA";

/// Not a test: the owner, when it is run again.
#[tokio::test]
async fn the_owner() {
    let Some(data_dir) = std::env::var_os(DATA).map(PathBuf::from) else { return };
    let backend = NamespacesBackend::new(Config { data_dir, config_dir: None });
    let mut with = spec("owned");
    with.limits.pids = Some(Setting::built_in(100));
    with.limits.memory = Some(Setting::built_in(1 << 30));
    let sandbox = backend.open(&with).await.unwrap();
    sh(&sandbox, "setsid sleep 1000 > /dev/null 2>&1 & true").await.ok();
    println!("\nopened");
    std::thread::sleep(std::time::Duration::from_secs(60));
}

#[tokio::test]
async fn nothing_outlives_an_owner_that_is_killed() {
    let host = Host::new();
    // By the link, because an ordinary user may not be allowed to the folder that the binary lies in.
    let mut owner = Command::new("/proc/self/exe")
        .args(["--exact", "processes::the_owner", "--nocapture"])
        .env(DATA, host.path("data"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "opened"));
    let id = spec("owned").id();
    let pid = host.agent_pid(&spec("owned"));
    assert!(lives(pid));
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert!(eventually(|| !lives(pid)).await);
    assert!(eventually(|| sleeping(&id.to_string()).is_empty()).await);
    // What cannot go by itself goes with the next use of the data directory.
    let sandbox = host.open(&spec("other")).await;
    assert_eq!(names(&host.path("data/run")), [spec("other").id().to_string()]);
    assert!(eventually(|| cgroups(id.as_str()).is_empty()).await);
    sandbox.close().await.unwrap();
    assert_eq!(host.left_behind(), Vec::<String>::new());
}

/// Processes in control groups of a sandbox.
fn sleeping(id: &str) -> Vec<String> {
    let groups = cgroups(id);
    let lists = groups.iter().filter_map(|group| std::fs::read_to_string(group.join("cgroup.procs")).ok());
    lists.flat_map(|list| list.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}
