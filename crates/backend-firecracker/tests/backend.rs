//! The backend itself, with a guest that never serves: what is refused, and that nothing is left.

use std::sync::{Arc, Mutex};

use moltis_backend_firecracker::{FirecrackerBackend, Step};
use moltis_sandbox::{Backend, Detection, Network, Origin, Promise, Setting};
use moltis_testkit::need;

use crate::support::{Host, devices, firecracker, lasting};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_here_is_usable_and_says_what_it_keeps() {
    let Some(program) = firecracker("backend::what_is_here_is_usable_and_says_what_it_keeps") else { return };
    let host = Host::new(program);
    let Detection::Usable(usable) = host.backend().detect().await else { panic!("it is not usable") };
    assert_eq!(usable.version, "Firecracker 1.12.1");
    assert_eq!(usable.guarantees.kernel, Promise::Held);
    assert_eq!(usable.guarantees.network_trusted, Promise::Held);
    assert!(!usable.guarantees.workspace.is_held());
    let mut config = host.config();
    config.kernel = host.path("none");
    let Detection::Unusable(why) = FirecrackerBackend::new(config).detect().await else { panic!("usable") };
    assert_eq!(why.code, "firecracker-kernel-missing");
    assert!(why.fix.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_does_not_serve_is_told_and_leaves_nothing() {
    let name = "backend::a_guest_that_does_not_serve_is_told_and_leaves_nothing";
    let Some(program) = firecracker(name) else { return };
    let host = Host::new(program);
    let steps = Arc::new(Mutex::new(Vec::new()));
    let mut config = host.config();
    let seen = Arc::clone(&steps);
    config.watch = Some(Arc::new(move |step| seen.lock().unwrap().push(step)));
    let backend = FirecrackerBackend::new(config);
    let Err(error) = backend.open(&lasting("silent")).await else { panic!("it was opened") };
    assert_eq!((error.kind(), error.code()), ("unavailable", "firecracker-guest-silent"));
    assert!(error.diagnosis().cause.as_ref().is_some_and(|said| said.chars().any(|c| c.is_ascii_hexdigit())));
    assert_eq!(host.left_behind(), Vec::<String>::new());
    assert_eq!(host.processes(), Vec::<u32>::new());
    let steps = steps.lock().unwrap().clone();
    assert_eq!(steps, Step::ALL[..9]);
    assert_eq!(backend.list().await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn network_open_makes_a_device_that_goes_with_the_machine() {
    let name = "backend::network_open_makes_a_device_that_goes_with_the_machine";
    let Some(program) = firecracker(name) else { return };
    if let Err(why) = moltis_backend_firecracker::tap::possible() {
        return need::skip(name, &why);
    }
    let host = Host::new(program);
    let before = devices();
    let during = Arc::new(Mutex::new(Vec::new()));
    let mut config = host.config();
    let seen = Arc::clone(&during);
    config.watch = Some(Arc::new(move |step| {
        if step == Step::Started {
            *seen.lock().unwrap() = devices();
        }
    }));
    let mut spec = lasting("open");
    spec.network = Setting::new(Network::Open, Origin::Flag);
    let Err(error) = FirecrackerBackend::new(config).open(&spec).await else { panic!("it was opened") };
    assert_eq!(error.code(), "firecracker-guest-silent", "{error:?}");
    let made: Vec<_> = during.lock().unwrap().iter().filter(|name| !before.contains(name)).cloned().collect();
    assert!(!made.is_empty());
    assert!(devices().iter().all(|name| !made.contains(name)));
    assert_eq!(host.left_behind(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_have_numbers_of_their_own_and_leave_nothing() {
    let name = "backend::many_at_once_have_numbers_of_their_own_and_leave_nothing";
    let Some(program) = firecracker(name) else { return };
    let host = Host::new(program);
    let backend = Arc::new(host.backend());
    let tasks: Vec<_> = (0..4)
        .map(|number| {
            let backend = Arc::clone(&backend);
            tokio::spawn(async move { backend.open(&lasting(&format!("many {number}"))).await.map(drop) })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap_err().code(), "firecracker-guest-silent");
    }
    assert_eq!(host.left_behind(), Vec::<String>::new());
    assert_eq!(host.processes(), Vec::<u32>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_opening_that_nobody_waits_for_any_more_leaves_nothing() {
    let name = "backend::an_opening_that_nobody_waits_for_any_more_leaves_nothing";
    let Some(program) = firecracker(name) else { return };
    let host = Host::new(program);
    let backend = host.backend();
    let spec = lasting("given up");
    let given_up = tokio::time::timeout(std::time::Duration::from_millis(700), backend.open(&spec)).await;
    assert!(given_up.is_err());
    let gone = crate::support::eventually(|| host.left_behind().is_empty() && host.processes().is_empty());
    assert!(gone.await, "{:?} {:?}", host.left_behind(), host.processes());
}
