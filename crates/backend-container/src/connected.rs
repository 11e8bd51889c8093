//! An engine that answered, and where it is from here.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_sandbox::Result;

use crate::agentless::{Guests, Means, means};
use crate::dind::{HostPaths, host_paths};
use crate::engine::{Engine, EngineInfo, Place};
use crate::image::ImageStore;

/// How long an engine's word of itself is believed within one process.
const BELIEVED: Duration = Duration::from_secs(60);

/// An engine that answered a moment ago.
pub struct Connected {
    /// The engine.
    pub engine: Arc<dyn Engine>,
    /// What it said of itself.
    pub info: EngineInfo,
    /// What it calls our paths.
    pub paths: HostPaths,
    /// How its sandboxes are served.
    pub means: Means,
    /// Its images.
    pub images: ImageStore,
    since: Instant,
}

impl Connected {
    /// Looks where the engine is.
    ///
    /// # Errors
    /// Those of [`host_paths`].
    pub async fn new(
        engine: Arc<dyn Engine>,
        mut info: EngineInfo,
        data_dir: &Path,
        named: Option<&Path>,
        images: ImageStore,
        guests: &Guests,
    ) -> Result<Self> {
        let outside = is_outside(&engine.endpoint()).await;
        if info.place == Place::Vm && outside && is_our_kernel(&info.kernel) {
            // We are in a container, whose host name says nothing of the machine.
            info.place = Place::Here;
        }
        let paths = match info.place {
            Place::Here => host_paths(&*engine, outside, data_dir, named).await?,
            Place::Vm | Place::Remote => HostPaths::Same,
        };
        let (known, guests) = (info.clone(), guests.clone());
        let means = move || Ok::<_, moltis_sandbox::Error>(means(&known, outside, &guests));
        let means = moltis_host::blocking::short(means).await?;
        Ok(Self { engine, info, paths, means, images, since: Instant::now() })
    }

    /// Whether it is still to be believed.
    pub fn is_fresh(&self) -> bool {
        self.since.elapsed() < BELIEVED
    }
}

/// Whether an engine's kernel is the one of this process.
fn is_our_kernel(told: &str) -> bool {
    rustix::system::uname().release().to_bytes() == told.as_bytes()
}

/// Whether the process behind a Unix socket has no number in our PID namespace.
async fn is_outside(endpoint: &str) -> bool {
    let Some(path) = endpoint.strip_prefix("unix://") else { return false };
    let Ok(stream) = tokio::net::UnixStream::connect(path).await else { return false };
    stream.peer_cred().is_ok_and(|peer| peer.pid() == Some(0))
}
