//! Brings the agent to a real SSH server and runs a command there: `ssh ADDRESS:PORT KEY COMMAND`. For trying by hand what
//! the tests do with a server of their own; the agent is left there, and ends a minute after.

// An example fails aloud.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use moltis_agent::client::Patience;
use moltis_agent::{AgentSandbox, Closer, Place, sandbox};
use moltis_backend_firecracker::ssh::{self, Settings, SshTransport};
use moltis_sandbox::{
    Command, Exec, ExecEvent, ExecRequest, GuestPath, Lifetime, Sandbox, SandboxSpec, SessionKey,
};

struct Nothing;

#[async_trait]
impl Closer for Nothing {
    async fn close(&self) -> moltis_sandbox::Result<()> {
        Ok(())
    }
}

#[tokio::main(flavor = "multi_thread")]
async fn main() {
    let mut args = std::env::args().skip(1);
    let address = args.next().expect("ADDRESS:PORT").parse().unwrap();
    let key = ssh::read_key(Path::new(&args.next().expect("KEY"))).unwrap();
    let line = args.next().expect("COMMAND");
    let settings = Settings { held: false, egress: false, pids: Some(500) };
    let began = Instant::now();
    let reach = ssh::move_in(address, &key, settings, Duration::from_secs(60)).await.unwrap();
    println!("{reach:?} after {:?}", began.elapsed());
    let transport = Arc::new(SshTransport::new(address, key, &reach));
    sandbox::configure(&*transport, 60_000, Patience::default()).await.unwrap();
    let id = SandboxSpec::new(SessionKey::new("s").unwrap(), Lifetime::Ephemeral).id();
    let env = vec![("HOME".into(), reach.home.clone().into()), ("PATH".into(), "/usr/bin:/bin".into())];
    let place = Place { env, cwd: GuestPath::new(reach.home.as_str()), shell: "/bin/sh".into() };
    let sandbox = AgentSandbox::new(id, true, place, transport, Box::new(Nothing));
    for _ in 0..3 {
        let began = Instant::now();
        let mut request = ExecRequest::new(Command::Shell(line.clone().into()));
        request.timeout = Some(Duration::from_secs(5));
        let Exec { mut events, control: _control } = sandbox.exec(request).await.unwrap();
        while let Some(event) = events.next().await {
            match event.unwrap() {
                ExecEvent::Stdout(bytes) => print!("{}", String::from_utf8_lossy(&bytes)),
                ExecEvent::Stderr(bytes) => eprint!("{}", String::from_utf8_lossy(&bytes)),
                ExecEvent::Exit(outcome) => {
                    println!("{:?} {:?} in {:?}", outcome.status, outcome.ending, began.elapsed())
                }
                _ => {}
            }
        }
    }
}
