//! `none`: the caller's environment without what is Moltis's own, and no limits.

use std::path::Path;
use std::process::Stdio;

use moltis_sandbox::{Backend, Detection};

use crate::common::*;
use crate::helper::Helper;

#[tokio::test]
async fn the_callers_environment_without_our_secrets() {
    let here = Here::new();
    let base = here.path();
    let helper = Helper { task: "none", base: &base, key: "none", mark: "1", user: None };
    let mut command = helper.command();
    command.env("OWN_VARIABLE", "own").env("VERCEL_TOKEN", "secret").env("DAYTONA_API_KEY", "secret");
    command.env("MOLTIS_TOOLS__EXEC__SANDBOX__VERCEL_TOKEN", "secret");
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(here.run_folders(), Vec::<String>::new());
}

/// In another process, whose environment is made for it.
pub async fn with_secrets(base: &Path) {
    let backend = moltis_backend_host::NoneBackend::new(config(base));
    let sandbox = open(&backend, &ephemeral()).await;
    let text = said(&*sandbox, "env").await;
    assert!(text.contains("OWN_VARIABLE=own\n"));
    assert!(!text.contains("secret") && !text.contains("MOLTIS_"), "{text}");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn nothing_is_limited_or_promised() {
    let here = Here::new();
    let backend = here.none();
    let sandbox = open(&backend, &ephemeral()).await;
    let limits = said(&*sandbox, "cat /proc/self/limits").await;
    assert_eq!(limits, std::fs::read_to_string("/proc/self/limits").unwrap());
    close(&here, sandbox).await;
    let Detection::Usable(usable) = backend.detect().await else { panic!("not usable") };
    assert!(!usable.guarantees.environment.is_held());
    assert!(usable.notes[0].contains("no sandbox"));
}

#[tokio::test]
async fn the_restricted_one_holds_the_environment_and_little_else() {
    let here = Here::new();
    let Detection::Usable(usable) = here.restricted().detect().await else { panic!("not usable") };
    let held = |promise: &moltis_sandbox::Promise| promise.is_held();
    let kept = &usable.guarantees;
    assert!(
        [&kept.environment, &kept.terminal, &kept.background, &kept.forward, &kept.adopt]
            .into_iter()
            .all(held)
    );
    let not = [
        &kept.filesystem,
        &kept.kernel,
        &kept.network_blocked,
        &kept.network_trusted,
        &kept.network_open,
        &kept.memory,
        &kept.cpus,
        &kept.pids,
        &kept.workspace,
        &kept.home,
        &kept.managed_files,
        &kept.images,
        &kept.packages,
        &kept.rootfs,
        &kept.runtime,
        &kept.gpus,
        &kept.host_podman,
        &kept.nested_podman,
    ];
    assert!(!not.into_iter().any(held));
    assert_eq!(usable.notes.len(), 1 + usize::from(is_root()));
}
