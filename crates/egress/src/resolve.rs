//! Names to addresses.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};

use async_trait::async_trait;

/// Who resolves names. How many lookups go on at once, and how long each may take, is the proxy's affair.
#[async_trait]
pub trait Resolve: Send + Sync {
    /// The addresses of a name, the best first.
    ///
    /// # Errors
    /// The name has no address, or cannot be resolved now.
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The system's resolver: hosts file, name service, DNS, as configured on this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let name = name.to_owned();
        let found = tokio::task::spawn_blocking(move || (name.as_str(), 0).to_socket_addrs());
        let mut addresses = Vec::new();
        for address in found.await.map_err(io::Error::other)?? {
            if !addresses.contains(&address.ip()) {
                addresses.push(address.ip());
            }
        }
        Ok(addresses)
    }
}
