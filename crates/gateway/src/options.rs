//! How a gateway is started.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use moltis_config::Loaded;

use crate::mount::Mount;

/// How a gateway is started, besides the configuration.
#[derive(Clone, Default)]
pub struct Options {
    /// What the configuration is read from, at the start and when it has changed.
    pub load: moltis_config::Options,
    /// Address that it listens on instead of the configuration's.
    pub bind: Option<IpAddr>,
    /// Port that it listens on instead of the configuration's.
    pub port: Option<u16>,
    /// Listen where other machines reach it, though nothing is encrypted.
    pub allow_unencrypted: bool,
    /// Time that requests have to end once it is told to end; absent: [`DEADLINE`].
    pub deadline: Option<Duration>,
    /// What else is served.
    pub mounts: Vec<Mount>,
}

/// Time that requests have to end once it is told to end.
pub const DEADLINE: Duration = Duration::from_secs(10);

impl Options {
    /// Reads the configuration, with what the flags say of it.
    ///
    /// # Errors
    /// Every problem of every source.
    pub fn read(&self) -> Result<Loaded, moltis_config::Error> {
        use moltis_sandbox::{Origin, Setting};

        let mut loaded = moltis_config::load(&self.load)?;
        let gateway = &mut loaded.config.gateway;
        if let Some(bind) = self.bind {
            gateway.bind = Setting::new(bind, Origin::Flag);
        }
        if let Some(port) = self.port {
            gateway.port = Setting::new(port, Origin::Flag);
        }
        Ok(loaded)
    }

    /// The folder of the user's configuration, which no sandbox may see.
    pub fn config_dir(&self) -> Option<PathBuf> {
        moltis_config::paths::config_dir(&self.load.env)
    }
}
