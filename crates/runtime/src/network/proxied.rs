//! A sandbox whose network is `trusted`: its commands are told of the proxy, and this process stands behind it.

use std::sync::Arc;

use async_trait::async_trait;
use moltis_sandbox::exec::ProcessId;
use moltis_sandbox::{
    Activity, Duplex, Exec, ExecRequest, Files, Forwarder, GuestPath, Outcome, ProcessInfo, Result, Sandbox,
    SandboxId, Usage,
};

use super::Stand;
use super::standing::{Behind, Standing};
use crate::proxy_env::proxy_variables;

/// The sandbox, and what stands behind its proxy port once a command has run.
pub struct Proxied {
    sandbox: Arc<dyn Sandbox>,
    behind: Behind,
    stand: Stand,
}

/// The proxy port, with this process behind it; none if the session's network is not `trusted` any more.
pub async fn port(behind: &Behind, stand: &Stand, sandbox: &dyn Sandbox) -> Result<Option<u16>> {
    let mut standing = stand.lock().await;
    if standing.as_ref().is_none_or(|standing| !standing.stands()) {
        *standing = behind.stand(sandbox).await?;
    }
    Ok(standing.as_ref().map(Standing::port))
}

impl Proxied {
    pub fn new(sandbox: Arc<dyn Sandbox>, behind: Behind, stand: Stand) -> Self {
        Self { sandbox, behind, stand }
    }
}

#[async_trait]
impl Sandbox for Proxied {
    fn id(&self) -> &SandboxId {
        self.sandbox.id()
    }

    fn is_new(&self) -> bool {
        self.sandbox.is_new()
    }

    fn directory(&self) -> Option<GuestPath> {
        self.sandbox.directory()
    }

    async fn activity(&self) -> Result<Activity> {
        self.sandbox.activity().await
    }

    async fn usage(&self) -> Result<Option<Usage>> {
        self.sandbox.usage().await
    }

    /// Without the proxy the command would find a closed door where an open one was promised: then it does not run.
    async fn exec(&self, mut request: ExecRequest) -> Result<Exec> {
        if let Some(port) = port(&self.behind, &self.stand, &*self.sandbox).await? {
            let proxy = proxy_variables(port).into_iter().map(|(name, value)| (name.into(), value.into()));
            // What the request itself sets comes later and wins.
            request.env = proxy.chain(request.env).collect();
        }
        self.sandbox.exec(request).await
    }

    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        self.sandbox.processes().await
    }

    async fn attach(&self, process: ProcessId, stdout: u64, stderr: u64, follow: bool) -> Result<Exec> {
        self.sandbox.attach(process, stdout, stderr, follow).await
    }

    async fn stop(&self, process: ProcessId) -> Result<Outcome> {
        self.sandbox.stop(process).await
    }

    fn files(&self) -> &dyn Files {
        self.sandbox.files()
    }

    async fn connect(&self, port: u16) -> Result<Box<dyn Duplex>> {
        self.sandbox.connect(port).await
    }

    async fn listen(&self, port: u16) -> Result<Box<dyn Forwarder>> {
        self.sandbox.listen(port).await
    }

    async fn egress(&self) -> Result<Box<dyn Forwarder>> {
        self.sandbox.egress().await
    }

    fn takes_list(&self) -> bool {
        self.sandbox.takes_list()
    }

    async fn allow(&self, hosts: &[String]) -> Result<()> {
        self.sandbox.allow(hosts).await
    }

    async fn close(&self) -> Result<()> {
        self.sandbox.close().await
    }

    async fn close_if_idle(&self) -> Result<bool> {
        self.sandbox.close_if_idle().await
    }
}
