//! From what was let through to a stream to it.

use std::net::IpAddr;
use std::sync::PoisonError;

use moltis_sandbox::Duplex;
use tokio::net::TcpStream;

use crate::audit::Protocol;
use crate::connect::dial;
use crate::host::{Host, Target};
use crate::journal::Passage;
use crate::proxy::Shared;
use crate::refusal::Refusal;
use crate::session::{Admitted, Route, Session, Watch};
use crate::upstream::Upstream;

/// A stream to a host, and what goes along with it.
pub(crate) struct Reached {
    pub(crate) stream: Box<dyn Duplex>,
    pub(crate) watch: Watch,
    pub(crate) passage: Passage,
}

/// Connects a tunnel to its host. If the policy changes on the way, that is noticed when bytes are to go through.
pub(crate) async fn reach(
    session: &Session,
    mut admitted: Admitted,
    protocol: Protocol,
) -> Result<Reached, Refusal> {
    let stream: Box<dyn Duplex> = match admitted.route().await? {
        Route::Direct(addresses) => {
            let limit = session.shared.limits.connect_time;
            let (stream, address) = dial(&addresses, admitted.watch.target.port, limit).await?;
            admitted.watch.address = Some(address);
            Box::new(stream)
        }
        Route::Upstream => {
            let Some(upstream) = &session.shared.upstream else { return Err(Refusal::Unresolved) };
            let tunnel = async {
                let (stream, _) = session.shared.dial_upstream().await?;
                upstream.tunnel(stream, &admitted.watch.target).await
            };
            let limit = session.shared.limits.connect_time;
            tokio::time::timeout(limit, tunnel).await.map_err(|_| Refusal::Late)??
        }
    };
    let passage = admitted.passage(protocol);
    Ok(Reached { stream, watch: admitted.watch, passage })
}

impl Shared {
    /// Connects to the proxy in front of ours. It is the operator's word, so its address is not judged.
    pub(crate) async fn dial_upstream(&self) -> Result<(TcpStream, IpAddr), Refusal> {
        let Some(upstream) = &self.upstream else { return Err(Refusal::Unresolved) };
        let addresses = self.find_upstream(upstream).await?;
        dial(&addresses, upstream.target.port, self.limits.connect_time).await
    }

    async fn find_upstream(&self, upstream: &Upstream) -> Result<Vec<IpAddr>, Refusal> {
        let addresses = match &upstream.target.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self.resolve(name, None).await?,
        };
        let known = addresses.iter().map(IpAddr::to_canonical).collect();
        *self.upstream_addresses.lock().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(addresses)
    }

    /// Sees that no program reaches the proxy in front of ours as a host: it would take requests that nobody judges.
    pub(crate) async fn see_not_upstream(&self, target: &Target) -> Result<(), Refusal> {
        let Some(upstream) = &self.upstream else { return Ok(()) };
        if *target == upstream.target {
            return Err(Refusal::Own);
        }
        let is_known = !self.upstream_addresses.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        if !is_known {
            // What cannot be found now cannot be reached now.
            let _ = self.find_upstream(upstream).await;
        }
        Ok(())
    }

    /// Whether the proxy in front of ours is there.
    pub(crate) fn is_upstream(&self, address: IpAddr, port: u16) -> bool {
        self.upstream.as_ref().is_some_and(|upstream| upstream.target.port == port)
            && self.upstream_addresses.lock().unwrap_or_else(PoisonError::into_inner).contains(&address)
    }
}
