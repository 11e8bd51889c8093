//! A stand-in and the backend that speaks to it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use moltis_backend_namespaces::NamespacesBackend;
use moltis_backend_remote::{VercelConfig, vercel};
use moltis_config::value::secret::Secret;
use moltis_sandbox::Backend;
use moltis_testkit::remote::vercel::Vercel;

/// A stand-in whose machines are sandboxes of this machine's.
pub struct Rig {
    pub vercel: Vercel,
    pub data: tempfile::TempDir,
    _machines: tempfile::TempDir,
}

impl Rig {
    pub async fn new() -> Self {
        let machines = tempfile::tempdir().unwrap();
        let backend = NamespacesBackend::new(moltis_backend_namespaces::Config {
            data_dir: machines.path().to_owned(),
            config_dir: None,
        });
        let vercel = Vercel::start(Arc::new(backend)).await;
        Self { vercel, data: tempfile::tempdir().unwrap(), _machines: machines }
    }

    pub fn config(&self) -> VercelConfig {
        config(&self.vercel.url(), self.data.path())
    }

    /// As another process would make one.
    pub fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(vercel::backend(self.config()))
    }
}

pub fn config(url: &str, data: &Path) -> VercelConfig {
    VercelConfig {
        data_dir: data.to_owned(),
        config_dir: None,
        api_url: url.to_owned(),
        token: Some(Secret::new(Vercel::TOKEN)),
        project: Some(Vercel::PROJECT.to_owned()),
        team: Some(Vercel::TEAM.to_owned()),
        runtime: "node24".to_owned(),
        timeout: Duration::from_secs(300),
        vcpus: 2,
        snapshot: None,
    }
}
