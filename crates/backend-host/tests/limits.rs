//! Rlimits as commands see them.

use std::time::Duration;

use moltis_sandbox::{Backend, BackendName, Detection, Origin, Sandbox, SandboxSpec, Setting, Status};

use crate::common::*;

/// Soft and hard limit by the words of `/proc/self/limits`.
pub async fn limit(sandbox: &dyn Sandbox, name: &str) -> (String, String) {
    let text = said(sandbox, "cat /proc/self/limits").await;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let mut words = line.split_whitespace().map(str::to_owned);
    (words.next().unwrap(), words.next().unwrap())
}

fn both(value: u64) -> (String, String) {
    (value.to_string(), value.to_string())
}

#[tokio::test]
async fn built_in_limits_hold_for_commands_and_not_for_the_agent() {
    let here = Here::new();
    let sandbox = open(&here.restricted(), &ephemeral()).await;
    assert_eq!(limit(&*sandbox, "Max open files").await, both(1024));
    assert_eq!(limit(&*sandbox, "Max core file size").await, both(0));
    assert_eq!(limit(&*sandbox, "Max data size").await, both(512 << 20));
    assert_eq!(limit(&*sandbox, "Max cpu time").await, ("300".into(), "301".into()));
    let own = std::fs::read_to_string("/proc/self/limits").unwrap();
    let agents = std::fs::read_to_string(format!("/proc/{}/limits", agent_pid(&here))).unwrap();
    assert_eq!(agents, own);
    assert_eq!(said(&*sandbox, "ulimit -n; ulimit -c; ulimit -t; ulimit -d").await, "1024\n0\n300\n524288\n");
    close(&here, sandbox).await;
}

#[tokio::test]
async fn demanded_limits_are_applied() {
    let here = Here::new();
    let mut spec = ephemeral();
    spec.limits.memory = Some(Setting::new(200 << 20, Origin::Flag));
    spec.limits.cpus = Some(Setting::new(0.05, Origin::Flag));
    let sandbox = open(&here.restricted(), &spec).await;
    assert_eq!(limit(&*sandbox, "Max address space").await, both(200 << 20));
    // 30 s × 0.05, rounded up.
    assert_eq!(limit(&*sandbox, "Max cpu time").await, ("2".into(), "3".into()));
    let ran = run(&*sandbox, shell("dd if=/dev/zero of=/dev/null bs=300M count=1")).await;
    assert_ne!(ran.outcome.exit_code(), 0, "more memory than was allowed");
    let mut busy = shell("while :; do :; done");
    busy.timeout = Some(Duration::from_secs(19));
    assert_eq!(run(&*sandbox, busy).await.outcome.status, Status::Signal(24), "SIGXCPU after a second");
    close(&here, sandbox).await;
}

#[tokio::test]
async fn what_is_listed_is_what_the_spec_limits_and_the_page_says_the_rest() {
    let Detection::Usable(usable) = Here::new().restricted().detect().await else { panic!("not usable") };
    let listed = |spec: &SandboxSpec| -> Vec<String> {
        let left = moltis_sandbox::judge(spec, BackendName::RestrictedHost, &usable.guarantees, &[]).unwrap();
        left.into_iter()
            .filter_map(|left| Some(left.key.strip_prefix("resource_limits.")?.to_owned()))
            .collect()
    };
    let mut spec = ephemeral();
    assert_eq!(listed(&spec), [""; 0], "rlimits that nobody asked for are not listed");
    spec.limits.pids = Some(Setting::built_in(256));
    assert_eq!(listed(&spec), ["pids_max"]);
    spec.limits.memory = Some(Setting::new(1 << 30, Origin::Flag));
    spec.limits.cpus = Some(Setting::new(1.0, Origin::File));
    assert_eq!(listed(&spec), ["memory_limit", "cpu_quota", "pids_max"]);

    let page = include_str!("../../../docs/backends/restricted-host.md");
    let page = page.split("## Limits of `restricted-host`").nth(1).unwrap();
    let says = ["`memory_limit` and `cpu_quota` where you set them, `pids_max` always"];
    let defaults = ["512 MiB of private writable memory", "300 seconds", "| 256 |", "1024 open files"];
    for words in says.into_iter().chain(defaults) {
        assert!(page.contains(words), "the page does not say: {words}");
    }
}
