//! One machine over the API: booted, paused, written down, begun again, many times.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use moltis_backend_firecracker::Error;
use moltis_backend_firecracker::api::body::{Drive, Entropy, SnapshotCreate, SnapshotLoad, State, Vsock};
use moltis_backend_firecracker::machine::Machine;
use moltis_backend_firecracker::vsock::VsockTransport;

use moltis_testkit::need;

use crate::payload::{self, GREETING};
use crate::support::{Host, LONG, configure, firecracker, said};

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_boots_and_is_what_it_was_told() {
    let Some(program) = firecracker("machine::a_machine_boots_and_is_what_it_was_told") else { return };
    let host = Host::new(program);
    let machine = host.listening("m").await;
    let instance = machine.api.instance().await.unwrap();
    assert_eq!((instance.id.as_str(), instance.state), ("m", State::NotStarted));
    configure(&machine, "count").await;
    std::fs::write(host.path("m/disk"), vec![0; 1 << 20]).unwrap();
    let drive = Drive {
        drive_id: "disk".to_owned(),
        path_on_host: "disk".to_owned(),
        is_root_device: false,
        is_read_only: true,
        cache_type: "Unsafe",
        rate_limiter: None,
    };
    machine.api.drive(&drive).await.unwrap();
    machine.api.entropy(&Entropy::default()).await.unwrap();
    machine.api.vsock(&Vsock { guest_cid: 3, uds_path: "v.sock".to_owned() }).await.unwrap();
    machine.api.start().await.unwrap();
    let numbers = said(&machine, 5).await;
    assert!(machine.console.text().contains(GREETING), "{}", machine.console.text());
    assert_eq!(numbers[..5], [1, 2, 3, 4, 5]);
    assert_eq!(machine.api.instance().await.unwrap().state, State::Running);
    let mode = std::fs::metadata(host.path("m")).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o700);
    machine.kill().await.unwrap();
    assert_eq!(host.processes(), Vec::<u32>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_call_is_an_error_in_firecracker_s_words() {
    let Some(program) = firecracker("machine::a_wrong_call_is_an_error_in_firecracker_s_words") else {
        return;
    };
    let host = Host::new(program);
    let machine = host.listening("m").await;
    let Err(Error::Fault { call, status, message }) = machine.api.start().await else { panic!("it started") };
    assert_eq!((call.as_str(), status), ("PUT /actions", 400));
    assert!(message.contains("kernel"), "{message}");
    let missing = SnapshotLoad::file("none", "none", true);
    assert!(matches!(machine.api.load_snapshot(&missing).await, Err(Error::Fault { .. })));
    machine.kill().await.unwrap();
    assert!(matches!(machine.api.start().await, Err(Error::Silent { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_machine_is_noticed_and_its_last_words_are_told() {
    let Some(program) = firecracker("machine::the_end_of_a_machine_is_noticed_and_its_last_words_are_told")
    else {
        return;
    };
    let host = Host::new(program);
    let machine = host.listening("m").await;
    configure(&machine, "end").await;
    machine.api.start().await.unwrap();
    assert!(machine.process.ends_within(LONG).await);
    let why = machine.why(Error::Exhausted("patience")).await;
    let Error::Died { said } = why else { panic!("{why:?}") };
    assert!(said.contains("moltis payload"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_without_a_guest_is_silent_and_waits_for_nobody() {
    let Some(program) = firecracker("machine::a_machine_without_a_guest_is_silent_and_waits_for_nobody")
    else {
        return;
    };
    let host = Host::new(program);
    let machine = host.listening("m").await;
    configure(&machine, "count").await;
    machine.api.vsock(&Vsock { guest_cid: 3, uds_path: "v.sock".to_owned() }).await.unwrap();
    machine.api.start().await.unwrap();
    said(&machine, 1).await;
    let transport = VsockTransport::open(&machine.directory, &machine.process).unwrap();
    let woken = tokio::time::timeout(LONG, transport.wake(Duration::from_millis(300))).await.unwrap();
    assert!(matches!(woken, Err(Error::GuestSilent { .. })), "{woken:?}");
    machine.kill().await.unwrap();
    let woken = tokio::time::timeout(LONG, transport.wake(LONG)).await.unwrap();
    assert!(matches!(woken, Err(Error::Died { .. })), "{woken:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_machine_stands_still_and_goes_on() {
    let Some(program) = firecracker("machine::a_paused_machine_stands_still_and_goes_on") else { return };
    let host = Host::new(program);
    let machine = host.counting("m").await;
    machine.api.pause().await.unwrap();
    assert_eq!(machine.api.instance().await.unwrap().state, State::Paused);
    // What was in the pipe comes; then nothing more.
    machine.console.says(|_| false, Duration::from_millis(300)).await;
    let before = machine.console.text();
    machine.console.says(|_| false, Duration::from_millis(300)).await;
    assert_eq!(machine.console.text(), before);
    machine.api.resume().await.unwrap();
    said(&machine, 3).await;
    machine.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_nobody_listens_to_goes_on_whatever_it_prints() {
    let name = "machine::a_machine_that_nobody_listens_to_goes_on_whatever_it_prints";
    let Some(program) = firecracker(name) else { return };
    let host = Host::new(program);
    let mut machine = host.counting("m").await;
    machine.console.close();
    // More than a pipe holds, and lines of Firecracker's own in between.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(matches!(machine.api.start().await, Err(Error::Fault { .. })));
    }
    assert_eq!(machine.api.instance().await.unwrap().state, State::Running);
    machine.kill().await.unwrap();
}

/// Writes a machine down into its working directory; the last number that it had said.
async fn written(host: &Host, name: &str) -> u64 {
    let machine = host.counting(name).await;
    machine.api.pause().await.unwrap();
    machine.api.create_snapshot(&SnapshotCreate::full("state", "memory")).await.unwrap();
    machine.console.says(|_| false, Duration::from_millis(100)).await;
    let last = payload::numbers(&machine.console.text()).last().copied().unwrap();
    machine.kill().await.unwrap();
    last
}

async fn restored(host: &Host, from: &str, name: &str) -> Machine {
    let machine = host.listening(name).await;
    for file in ["state", "memory"] {
        std::fs::hard_link(host.path(from).join(file), host.path(name).join(file)).unwrap();
    }
    machine.api.load_snapshot(&SnapshotLoad::file("state", "memory", true)).await.unwrap();
    machine
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_that_begin_from_a_snapshot_go_on_from_there_each_for_itself() {
    let name = "machine::machines_that_begin_from_a_snapshot_go_on_from_there_each_for_itself";
    let Some(program) = firecracker(name) else { return };
    let host = Host::new(program);
    let last = written(&host, "first").await;
    let mut machines = Vec::new();
    let count = if need::long() { 100 } else { 20 };
    for number in 0..count {
        let machine = restored(&host, "first", &format!("clone{number}")).await;
        let numbers = said(&machine, 1).await;
        assert!(!machine.console.text().contains(GREETING), "it was booted");
        // What stood in the port's queue may have been said by the one or by the other.
        assert!(numbers[0] > last.saturating_sub(2) && numbers[0] <= last + 3, "{last} {numbers:?}");
        // Standing still it leaves the processors to those that come after it.
        machine.api.pause().await.unwrap();
        machines.push(machine);
    }
    let processes = host.processes();
    assert_eq!(processes.len(), count);
    // Memory that none of them has changed is there once.
    let resident = |pid: u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("Private_Dirty:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let each = processes.iter().map(|pid| resident(*pid)).sum::<u64>() / count as u64;
    assert!(each < 8 * 1024, "{each} kB each");
    for machine in machines {
        machine.kill().await.unwrap();
    }
    assert_eq!(host.processes(), Vec::<u32>::new());
}
