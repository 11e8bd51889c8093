//! The two ways in which Podman can be had inside a sandbox, with all that stands between them and a mistake.

use std::path::PathBuf;

use moltis_backend_container::engine::EngineKind;
use moltis_sandbox::Backend;

use super::rig::{asked, rig, rigs, sh};
use super::support::{environment, with};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hatches_need_podman_and_are_one_at_a_time() {
    for rig in rigs("hatches_need_podman_and_are_one_at_a_time").await {
        for (host, nested) in [(true, false), (false, true), (true, true)] {
            let mut spec = rig.spec("hatch");
            (spec.host_podman, spec.nested_podman) = (asked(host), asked(nested));
            let code = match (rig.kind, host && nested) {
                (_, true) => "hatches-exclusive",
                (EngineKind::Docker, false) => "hatch-needs-podman",
                _ => continue,
            };
            let error = rig.refusal(&spec).await;
            assert_eq!((error.kind(), error.code()), ("refused", code), "{}", rig.name);
            let error = rig.backend.check(&spec).await.unwrap_err();
            assert_eq!(error.code(), code, "{}", rig.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hosts_podman_must_be_open_to_the_sandboxs_user() {
    let test = "the_hosts_podman_must_be_open_to_the_sandboxs_user";
    if !moltis_testkit::need::as_root(test, "it is about root's own socket") {
        return;
    }
    let Some(rig) = rig(test, EngineKind::Podman, environment()).await else { return };
    let socket = PathBuf::from("/run/podman/podman.sock");
    if !socket.exists() {
        return moltis_testkit::need::skip(test, "Podman has no socket");
    }
    let mut spec = rig.spec("closed");
    spec.host_podman = asked(true);
    // Root's own socket, and the sandbox's user is not root.
    let error = rig.refusal(&spec).await;
    assert_eq!((error.kind(), error.code()), ("refused", "host-podman-closed"));
    assert!(error.diagnosis().message.contains("1000:1000"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hosts_podman_answers_inside() {
    let test = "the_hosts_podman_answers_inside";
    if moltis_testkit::need::program("podman").is_none() {
        return moltis_testkit::need::skip(test, "there is no Podman");
    }
    // A socket of its own, which the sandbox's user may use.
    let folder = tempfile::tempdir().unwrap();
    super::rig::set_mode(folder.path(), 0o755);
    let socket = folder.path().join("p.sock");
    let mut service = std::process::Command::new("podman")
        .args(["system", "service", "--time", "0", &format!("unix://{}", socket.display())])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    super::rig::eventually("Podman's service does not come up", async || socket.exists()).await;
    if moltis_testkit::need::root() {
        std::os::unix::fs::chown(&socket, Some(1000), Some(1000)).unwrap();
    }
    let host = format!("unix://{}", socket.display());
    let environment = with(&[("CONTAINER_HOST", &host)]);
    if let Some(rig) = rig(test, EngineKind::Podman, environment).await {
        let mut spec = rig.spec("host");
        spec.host_podman = asked(true);
        let sandbox = rig.open(&spec).await;
        let said = sh(&sandbox, "echo $CONTAINER_HOST; test -S /run/podman/podman.sock && echo there").await;
        assert_eq!(said.ok(), "unix:///run/podman/podman.sock\nthere\n");
        // The engine lists this very container, and what else there is.
        let name = rig.container().await.name;
        let ask = "printf 'GET /v4.0.0/libpod/containers/json HTTP/1.0\\r\\nHost: d\\r\\n\\r\\n' | \
                   nc local:/run/podman/podman.sock 2>&1";
        let said = sh(&sandbox, ask).await;
        if said.outcome.exit_code() == 0 && said.stdout.starts_with("HTTP/1") {
            assert!(said.stdout.contains(&name), "{said:?}");
        } else {
            assert_client(&rig, &sandbox, &name).await;
        }
        sandbox.close().await.unwrap();
        rig.until_nothing_is_left().await;
        // With the service gone there is nothing to show.
        service.kill().unwrap();
        service.wait().unwrap();
        let error = rig.backend.open(&spec).await.map(|_| ()).unwrap_err();
        // Another one that answers is looked at next, and is root's alone.
        let codes = ["host-podman-missing", "host-podman-closed", "engine-unreachable"];
        assert!(codes.contains(&error.code()), "{error:?}");
    } else {
        let _ = service.kill();
        let _ = service.wait();
    }
}

/// Asks by this process what a client inside would: through the socket as it is seen in the sandbox's own mounts.
async fn assert_client(
    rig: &super::rig::Rig,
    sandbox: &std::sync::Arc<dyn moltis_sandbox::Sandbox>,
    name: &str,
) {
    use std::io::{Read, Write};

    drop(sh(sandbox, "true").await);
    let pid = rig.container().await.pid;
    let seen = format!("/proc/{pid}/root/run/podman/podman.sock");
    let name = name.to_owned();
    let asked = tokio::task::spawn_blocking(move || {
        let mut stream = std::os::unix::net::UnixStream::connect(seen).unwrap();
        stream.write_all(b"GET /v4.0.0/libpod/containers/json HTTP/1.0\r\nHost: d\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains(&name), "{answer}");
    });
    asked.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nested_podman_is_privileged_and_the_agent_still_serves() {
    let test = "a_nested_podman_is_privileged_and_the_agent_still_serves";
    let Some(rig) = rig(test, EngineKind::Podman, environment()).await else { return };
    if !std::path::Path::new("/dev/fuse").exists() {
        return moltis_testkit::need::skip(test, "there is no /dev/fuse");
    }
    let mut spec = rig.spec("nested");
    spec.nested_podman = asked(true);
    if !rig.engine.info().await.unwrap().pids.is_yes() {
        let mut bounded = spec.clone();
        bounded.limits.pids = Some(asked(64));
        let error = rig.refusal(&bounded).await;
        assert_eq!((error.kind(), error.code()), ("refused", "demand-not-kept"));
        assert!(error.diagnosis().message.contains("`pids_max`"), "{error:?}");
    }
    let sandbox = rig.open(&spec).await;
    let said =
        sh(&sandbox, "id -u; grep -E 'CapEff|NoNewPrivs' /proc/self/status; ls -d /dev/fuse").await.ok();
    assert!(said.starts_with("0\n"), "{said}");
    assert!(said.contains("NoNewPrivs:\t0") && said.ends_with("/dev/fuse\n"), "{said}");
    assert!(!said.contains("CapEff:\t0000000000000000"), "{said}");
    // Enough for what runs containers.
    let said =
        sh(&sandbox, "mkdir /tmp/m && mount -t tmpfs none /tmp/m && echo mounted; umount /tmp/m").await;
    assert!(said.stdout.contains("mounted"), "{said:?}");
    assert!(rig.again().adopt(&spec).await.unwrap().is_some());
    sandbox.close().await.unwrap();
    rig.until_nothing_is_left().await;
}
