//! The same as an ordinary user, whom limits bind that do not bind root.

use std::path::Path;
use std::time::Duration;

use moltis_sandbox::{Backend, Detection, Origin, Promise, Setting};

use crate::common::*;
use crate::helper::Helper;

/// A user that nothing else runs as.
const USER: u32 = 54_321;

#[tokio::test]
async fn as_another_user() {
    let here = Here::new();
    if !is_root() {
        as_ordinary(&here.path()).await;
        return;
    }
    let base = here.path();
    std::os::unix::fs::chown(&base, Some(USER), Some(USER)).unwrap();
    let marker = Marker::new();
    let helper =
        Helper { task: "ordinary", base: &base, key: "ordinary", mark: marker.length(), user: Some(USER) };
    let output = helper.command().stdin(std::process::Stdio::null()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains("1 passed"), "{out}");
}

pub async fn as_ordinary(base: &Path) {
    assert!(!is_root());
    let backend = moltis_backend_host::RestrictedHostBackend::new(config(base));
    let Detection::Usable(usable) = backend.detect().await else { panic!("not usable") };
    assert!(matches!(&usable.guarantees.pids, Promise::NotEnforced(why) if why.contains("pids_max")));
    assert_eq!(usable.notes.len(), 1);

    let mut spec = ephemeral();
    spec.limits.pids = Some(Setting::new(20, Origin::Flag));
    let sandbox = open(&backend, &spec).await;
    let (soft, hard) = crate::limits::limit(&*sandbox, "Max processes").await;
    assert_eq!(soft, hard);
    // This process with its threads, the agent, the supervisor, and 20 more.
    let allowed: u64 = soft.parse().unwrap();
    assert!((23..100).contains(&allowed), "{allowed}");
    let marker = Marker::new();
    let many = format!("for n in $(seq 100); do {} & done; wait", marker.sleep());
    let mut request = shell(many);
    request.timeout = Some(Duration::from_secs(2));
    let ran = run(&*sandbox, request).await;
    assert!(
        String::from_utf8_lossy(&ran.stderr).contains("fork"),
        "{:?}",
        String::from_utf8_lossy(&ran.stderr)
    );
    // The shell gave up; what it had started is left, and told.
    assert!((1..=20).contains(&ran.outcome.leftovers_total), "{}", ran.outcome.leftovers_total);
    sandbox.close().await.unwrap();
    assert_eq!(marker.pids(), [0; 0]);

    crate::files::only_three_folders(base).await;
}
