//! Many processes at once.

use std::time::Instant;

use moltis_runtime::store::Store;

use super::child::{Job, key};

fn start(place: &std::path::Path, jobs: impl Iterator<Item = String>) -> Vec<Job> {
    let mut jobs: Vec<_> = jobs.map(|job| Job::start(&[], &job, place)).collect();
    for job in &mut jobs {
        assert_eq!(job.said().as_deref(), Some("ready"));
    }
    jobs.iter_mut().for_each(Job::go);
    jobs
}

#[test]
fn sixteen_processes_share_one_session_and_sixteen() {
    let folder = tempfile::tempdir().unwrap();
    for (what, name) in
        [("one session", |_| "hammer one".to_owned()), ("16 sessions", |i| format!("hammer s{i}"))]
            as [(&str, fn(usize) -> String); 2]
    {
        let mut jobs = start(folder.path(), (0..16).map(name));
        let since = Instant::now();
        for job in &mut jobs {
            assert_eq!(job.said().as_deref(), Some("done"));
        }
        println!("16 processes, 50 commands each, {what}: {:?}", since.elapsed());
    }
    let store = Store::new(folder.path());
    let count = |name: &str| {
        let session = store.run_blocking(|d| d.session(&key(name))).unwrap().unwrap();
        store.run_blocking(|d| d.history(session.number, None, 2000)).unwrap().entries.len()
    };
    assert_eq!(count("one"), 800);
    for i in 0..16 {
        assert_eq!(count(&format!("s{i}")), 50);
    }
    assert_eq!(store.run_blocking(|d| d.sweep_lost()).unwrap(), 0);
}

#[test]
fn sixteen_processes_that_open_one_session_agree() {
    let folder = tempfile::tempdir().unwrap();
    let mut jobs = start(&folder.path().join("data"), (0..16).map(|_| "open one".to_owned()));
    let mut said: Vec<_> = jobs.iter_mut().map(|job| job.said().unwrap()).collect();
    said.sort();
    let mut expected = vec!["found Running 1"; 15];
    expected.push("opened 1");
    assert_eq!(said, expected);
}

#[test]
fn a_session_whose_opener_was_killed_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = start(folder.path(), std::iter::once("open one".to_owned())).remove(0);
    let store = Store::new(folder.path());
    let found = loop {
        let session = store.run_blocking(|d| d.session(&key("one"))).unwrap();
        if let Some(sandbox) = session.and_then(|session| session.sandbox) {
            break sandbox;
        }
    };
    job.kill();
    if found.state == moltis_runtime::store::SandboxState::Opening {
        let mut next = start(folder.path(), std::iter::once("open one".to_owned())).remove(0);
        let said = next.said().unwrap();
        // The child was quick, or the lock was free at once.
        assert!(["found Opening 1", "found Running 1"].contains(&said.as_str()), "{said}");
    }
}

#[test]
fn a_store_that_many_make_at_once_is_one() {
    for _ in 0..60 {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("data");
        let barrier = std::sync::Barrier::new(8);
        let instances: std::collections::BTreeSet<String> = std::thread::scope(|scope| {
            let make = || {
                let store = Store::new(&place);
                barrier.wait();
                store.run_blocking(|d| d.instance()).unwrap()
            };
            let all: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(instances.len(), 1);
    }
}
