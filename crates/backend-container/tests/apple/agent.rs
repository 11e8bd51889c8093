//! A session through the agent and its relay, as the backend has it: the agent is the first process of a container that
//! the tool runs, and everything goes over the standard streams of a program beside it.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use moltis_agent::container::{ContainerArgs, relay_args};
use moltis_agent::sandbox::{AgentSandbox, Closer, Place};
use moltis_agent::{RelayTransport, transport::RelaySecret};
use moltis_backend_container::engine::{Bind, Engine, ExecSpec, NetworkMode, Relabel, Stream, Tmpfs};
use moltis_sandbox::{Command, ExecEvent, ExecRequest, GuestPath, Sandbox, SandboxId, SessionKey};
use moltis_testkit::apple::Version;
use tokio::io::AsyncWriteExt;

use super::{runs, tested};

const GUEST: &str = "/.moltis/guest";
const SOCKET: &str = "/.moltis/agent/agent.sock";

/// Removes the container.
struct Remover(Arc<dyn Engine>, String);

#[async_trait]
impl Closer for Remover {
    async fn close(&self) -> moltis_sandbox::Result<()> {
        Ok(self.0.remove(&self.1).await?)
    }
}

async fn relay(engine: &dyn Engine, id: &str, secret: &RelaySecret) -> RelayTransport {
    let mut argv = vec![GUEST.to_owned()];
    argv.extend(relay_args(SOCKET));
    let spec =
        ExecSpec { argv, user: None, directory: Some("/".to_owned()), env: Vec::new(), terminal: None };
    let running = engine.exec(id, &spec).await.unwrap();
    let (mut to, from) = tokio::io::duplex(1 << 16);
    let mut output = running.output;
    tokio::spawn(async move {
        while let Ok(Some((stream, piece))) = output.next().await {
            if stream == Stream::Stderr {
                eprintln!("relay: {}", String::from_utf8_lossy(&piece));
            } else if to.write_all(&piece).await.is_err() {
                return;
            }
        }
    });
    RelayTransport::new(from, running.stdin, secret)
}

async fn said(sandbox: &AgentSandbox, line: &str) -> String {
    let mut request = ExecRequest::new(Command::Shell(OsString::from(line)));
    request.timeout = Some(Duration::from_secs(20));
    let mut exec = sandbox.exec(request).await.unwrap();
    let mut out = Vec::new();
    while let Some(event) = exec.events.next().await {
        match event.unwrap() {
            ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes) => out.extend_from_slice(&bytes),
            _ => {}
        }
    }
    String::from_utf8(out).unwrap()
}

#[tokio::test]
async fn the_agent_serves_through_the_tool() {
    if !runs("apple::agent::the_agent_serves_through_the_tool") {
        return;
    }
    let cache = tempfile::tempdir().unwrap();
    let guest = moltis_agent::binary::extract(cache.path()).unwrap();
    for version in Version::ALL {
        let tested = tested(version).await;
        let arguments = ContainerArgs {
            socket: SOCKET.to_owned(),
            owner: 1000,
            cwd: "/tmp".to_owned(),
            idle: Some(Duration::from_secs(120)),
            held: false,
            guards: Vec::new(),
            mounted: Vec::new(),
            rlimits: Vec::new(),
            relay: true,
            privileged: false,
            egress: true,
        };
        let mut spec = tested.spec("session");
        spec.argv = vec![GUEST.to_owned()];
        spec.argv.extend(arguments.to_args());
        spec.binds = vec![Bind {
            source: guest.clone(),
            target: GUEST.to_owned(),
            read_only: true,
            relabel: Relabel::Not,
        }];
        let memory = |target: &str| Tmpfs { target: target.to_owned(), options: "rw,size=1m".to_owned() };
        spec.tmpfs = vec![memory("/tmp"), memory("/.moltis/agent")];
        (spec.read_only_root, spec.drop_capabilities, spec.auto_remove) = (true, true, true);
        if version >= Version::V0_8 {
            spec.network = NetworkMode::None;
        }
        let id = tested.engine.create(&spec).await.unwrap();
        tested.engine.start(&id).await.unwrap();
        let secret = RelaySecret::generate().unwrap();
        // It may not listen yet.
        let begun = Instant::now();
        let transport = loop {
            let transport = relay(&*tested.engine, &id, &secret).await;
            match transport.ready(Duration::from_secs(10)).await {
                Ok(()) => break transport,
                Err(error) => assert!(begun.elapsed() < Duration::from_secs(20), "{version:?}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let key = SessionKey::new("apple").unwrap();
        let place = Place {
            env: vec![("PATH".into(), "/bin".into())],
            cwd: GuestPath::new("/tmp"),
            shell: "/bin/sh".into(),
        };
        let closer = Box::new(Remover(Arc::clone(&tested.engine), id.clone()));
        let sandbox = AgentSandbox::new(SandboxId::of(&key), true, place, Arc::new(transport), closer);
        assert_eq!(
            said(&sandbox, "id -u; pwd; grep NoNewPrivs /proc/self/status").await,
            "1000\n/tmp\nNoNewPrivs:\t1\n"
        );
        assert_eq!(said(&sandbox, "grep CapEff /proc/self/status").await, "CapEff:\t0000000000000000\n");
        // Commands know nothing of the secret: another relay with another one is turned away.
        let stranger = relay(&*tested.engine, &id, &RelaySecret::generate().unwrap()).await;
        assert!(stranger.ready(Duration::from_secs(5)).await.is_err());
        let mut background =
            ExecRequest::new(Command::Shell(OsString::from("echo later > /tmp/made; sleep 1000")));
        background.background = true;
        drop(sandbox.exec(background).await.unwrap());
        let begun = Instant::now();
        while said(&sandbox, "cat /tmp/made 2>/dev/null").await != "later\n" {
            assert!(begun.elapsed() < Duration::from_secs(10));
        }
        assert_eq!(
            said(&sandbox, "echo 'Error: VM never booted' >&2; exit 1").await,
            "Error: VM never booted\n"
        );
        sandbox.close().await.unwrap();
        drop((sandbox, stranger));
        let begun = Instant::now();
        while !tested.standin.processes().is_empty() || !tested.standin.containers().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", tested.standin.processes());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
