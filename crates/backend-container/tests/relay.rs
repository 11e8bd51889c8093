//! An engine that counts as remote: nothing of this machine can be mounted, and all goes through a relay that the engine
//! runs beside the agent.

use std::path::PathBuf;
use std::time::Duration;

use moltis_backend_container::engine::{EngineKind, Environment, ExecSpec};
use moltis_sandbox::MountMode::Ro;
use moltis_sandbox::files::WriteOptions;
use moltis_sandbox::{Backend, Command, Ending, ExecEvent, ExecRequest, GuestPath, Lifetime, SandboxSpec};
use tokio::net::{TcpListener, UnixStream};

use super::rig::{Rig, asked, background, eventually, mount, rig, run, sh};
use super::support::{environment, with};

/// A way to the local Docker by TCP. It ends when this is dropped.
struct Proxy {
    task: tokio::task::JoinHandle<()>,
    environment: Environment,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn proxy() -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = format!("tcp://{}", listener.local_addr().unwrap());
    let socket = environment()
        .vars
        .get("DOCKER_HOST")
        .and_then(|host| host.strip_prefix("unix://"))
        .map_or_else(|| PathBuf::from("/var/run/docker.sock"), PathBuf::from);
    let task = tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let socket = socket.clone();
            tokio::spawn(async move {
                let Ok(mut engine) = UnixStream::connect(socket).await else { return };
                let _ = tokio::io::copy_bidirectional(&mut client, &mut engine).await;
            });
        }
    });
    Proxy { task, environment: with(&[("DOCKER_HOST", &host)]) }
}

async fn remote(test: &str) -> Option<(Proxy, Rig)> {
    let proxy = proxy().await;
    let rig = rig(test, EngineKind::Docker, proxy.environment.clone()).await?;
    let info = rig.engine.info().await.unwrap();
    assert_eq!(info.place, moltis_backend_container::engine::Place::Remote);
    Some((proxy, rig))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remote_session_does_what_a_local_one_does() {
    let Some((_proxy, rig)) = remote("a_remote_session_does_what_a_local_one_does").await else { return };
    let spec = rig.spec("remote");
    let sandbox = rig.open(&spec).await;
    assert!(sandbox.is_new());
    let said = sh(&sandbox, "id -u; echo err >&2; pwd; exit 7").await;
    assert_eq!((&*said.stdout, &*said.stderr), ("1000\n/home/sandbox\n", "err\n"));
    assert_eq!(said.outcome.exit_code(), 7);
    assert!(rig.container().await.mounts.iter().all(|(source, _)| !source.starts_with(rig.data())));

    let mut request = ExecRequest::new(Command::Shell("wc -c".into()));
    request.stdin = true;
    let mut exec = sandbox.exec(request).await.unwrap();
    for _ in 0..40 {
        exec.control.stdin(vec![7_u8; 50_000].into()).await.unwrap();
    }
    exec.control.close_stdin().await.unwrap();
    let mut out = Vec::new();
    while let Some(event) = exec.events.next().await {
        if let ExecEvent::Stdout(bytes) = event.unwrap() {
            out.extend_from_slice(&bytes);
        }
    }
    assert_eq!(String::from_utf8(out).unwrap().trim(), "2000000");

    let mut request = ExecRequest::new(Command::Shell("sleep 100".into()));
    request.timeout = Some(Duration::from_millis(300));
    let mut exec = sandbox.exec(request).await.unwrap();
    let mut ending = None;
    while let Some(event) = exec.events.next().await {
        if let ExecEvent::Exit(outcome) = event.unwrap() {
            ending = Some(outcome.ending);
        }
    }
    assert_eq!(ending, Some(Ending::TimedOut));

    let path = GuestPath::new("/home/sandbox/f").unwrap();
    let options = WriteOptions { mode: None, overwrite: false, parents: false };
    let content: moltis_sandbox::ByteStream =
        Box::pin(futures_lite_once(bytes::Bytes::from(vec![b'x'; 3_000_000])));
    sandbox.files().write(&path, options, content).await.unwrap();
    assert_eq!(sh(&sandbox, "wc -c < f").await.ok().trim(), "3000000");

    // Another process adopts what runs on.
    background(&sandbox, "echo on; sleep 1000").await;
    let again = rig.again();
    let found = again.adopt(&spec).await.unwrap().unwrap();
    assert_eq!(sh(&found, "cat f | wc -c").await.ok().trim(), "3000000");
    let background = found.processes().await.unwrap().into_iter().filter(|p| p.background).count();
    assert_eq!(background, 1);
    let listed = again.list().await.unwrap();
    assert!(listed.len() == 1 && listed[0].running, "{listed:?}");

    // Who stands behind the proxy port.
    let mut forwarder = sandbox.egress().await.unwrap();
    let port = forwarder.port();
    let (inside, outside) = tokio::join!(found.connect(port), forwarder.accept());
    drop((inside.unwrap(), outside.unwrap()));

    // A relay that ends is replaced by another.
    let root = ExecSpec {
        argv: [
            "/bin/sh",
            "-c",
            "for p in /proc/[0-9]*; do grep -q relay $p/cmdline && kill -9 ${p#/proc/}; done",
        ]
        .map(str::to_owned)
        .to_vec(),
        user: Some((65_533, 65_533)),
        directory: None,
        env: Vec::new(),
        terminal: None,
    };
    let killing = rig.engine.exec(&rig.container().await.id, &root).await.unwrap();
    drop(killing.stdin);
    let mut output = killing.output;
    while let Ok(Some(_)) = output.next().await {}
    let what = "no other relay takes its place";
    let works = async || {
        run(&sandbox, Command::Shell("echo on".into())).await.is_ok_and(|said| said.stdout == "on\n")
    };
    eventually(what, works).await;
    assert!(found.close_if_idle().await.is_ok_and(|closed| !closed));
    found.close().await.unwrap();
    rig.until_nothing_is_left().await;
    assert!(rig.again().adopt(&spec).await.unwrap().is_none());
}

fn futures_lite_once(
    bytes: bytes::Bytes,
) -> impl futures_core::Stream<Item = moltis_sandbox::Result<bytes::Bytes>> + Send {
    struct Once(Option<bytes::Bytes>);
    impl futures_core::Stream for Once {
        type Item = moltis_sandbox::Result<bytes::Bytes>;
        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Self::Item>> {
            std::task::Poll::Ready(self.0.take().map(Ok))
        }
    }
    Once(Some(bytes))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_can_do_nothing_to_a_relay() {
    let Some((_proxy, rig)) = remote("commands_can_do_nothing_to_a_relay").await else { return };
    let sandbox = rig.open(&rig.spec("guarded")).await;
    let script = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep -q '[g]uest relay' || continue; \
                  echo found; kill -9 ${p#/proc/} 2>/dev/null && echo killed; \
                  cat $p/environ $p/mem 2>/dev/null && echo read; ls $p/fd/ 2>/dev/null && echo listed; done; exit 0";
    let said = sh(&sandbox, script).await.ok();
    assert!(said.contains("found"), "{said}");
    for bad in ["killed", "read", "listed"] {
        assert!(!said.contains(bad), "{said}");
    }
    // Nobody inside can be the relay: the agent takes no other secret than the first.
    let said = sh(&sandbox, "echo nothing | /.moltis/guest relay --socket /.moltis/agent/agent.sock").await;
    assert_ne!(said.outcome.exit_code(), 0, "{said:?}");
    assert_eq!(sh(&sandbox, "echo on").await.ok(), "on\n");
    sandbox.close().await.unwrap();
    rig.until_nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demanded_folder_is_refused_and_an_ephemeral_one_ends() {
    let Some((_proxy, rig)) = remote("a_demanded_folder_is_refused_and_an_ephemeral_one_ends").await else {
        return;
    };
    let mut spec = rig.spec("shown");
    spec.workspace = Some(asked(mount(rig.folder("w", 1000), "/workspace", Ro)));
    let error = rig.refusal(&spec).await;
    assert_eq!((error.kind(), error.code()), ("refused", "demand-not-kept"));
    assert!(error.diagnosis().message.contains("workspace"), "{error:?}");

    let spec = SandboxSpec { lifetime: Lifetime::Ephemeral, ..rig.spec("brief") };
    let sandbox = rig.open(&spec).await;
    assert_eq!(sh(&sandbox, "echo on").await.ok(), "on\n");
    drop(sandbox);
    eventually("it lives on", async || rig.containers().await.is_empty()).await;
}
