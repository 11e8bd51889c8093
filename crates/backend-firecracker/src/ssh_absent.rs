//! In the place of SSH where this program was built without it: a key is refused before anything begins, so that nothing of
//! the rest is ever reached.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use moltis_agent::{Channel, Transport};
use moltis_sandbox::Diagnosis;

use crate::error::{Error, Result};

pub use crate::reach::{PORT, Reach, Settings, USER};

/// A key that there never is.
pub type Key = Infallible;

/// Refuses the key.
///
/// # Errors
/// [`Error::Missing`], always.
pub fn read_key(path: &Path) -> Result<Arc<Key>> {
    Err(Error::Missing(
        Diagnosis::new("firecracker-ssh-not-built", "this program was built without SSH into Firecracker's machines")
            .cause(format!("`firecracker_ssh_key` is {}", path.display()))
            .fix("build it with the feature `ssh`, or remove `firecracker_ssh_key`: our agent then comes with an initrd"),
    ))
}

/// Brings the agent into a machine.
///
/// # Errors
/// Never: there is no key.
pub async fn move_in(_: SocketAddr, key: &Arc<Key>, _: Settings, _: Duration) -> Result<Reach> {
    match **key {}
}

/// The way to such an agent.
pub struct SshTransport(Arc<Key>);

impl SshTransport {
    /// Of nobody.
    pub fn new(_: SocketAddr, key: Arc<Key>, _: &Reach) -> Self {
        Self(key)
    }
}

#[async_trait]
impl Transport for SshTransport {
    async fn connect(&self) -> moltis_agent::error::Result<Channel> {
        match *self.0 {}
    }
}
