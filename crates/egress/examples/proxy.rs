//! The proxy behind a listener on loopback, for benches only: `proxy [LOG-DIRECTORY]`. It lets everything on loopback
//! through, and writes its log if it is told where. Prints its port. Moltis itself never listens.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use moltis_egress::{
    Approvals, Asked, Audit, AuditLog, Entry, Origin, Policy, Proxy, ProxyLimits, ProxySettings, Rule,
    SystemResolver, Verdict,
};
use tokio::net::TcpListener;
use tokio::sync::watch;

struct Nowhere;

impl Audit for Nowhere {
    fn record(&self, _: Entry) {}
}

struct Nobody;

#[async_trait]
impl Approvals for Nobody {
    async fn ask(&self, _: &Asked) -> Verdict {
        Verdict::Denied
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let audit: Arc<dyn Audit> = match std::env::args_os().nth(1) {
        Some(folder) => Arc::new(AuditLog::new(folder)),
        None => Arc::new(Nowhere),
    };
    let limits = ProxyLimits { connections: 8192, session_connections: 4096, ..ProxyLimits::default() };
    let proxy = Proxy::new(ProxySettings {
        limits,
        upstream: None,
        resolver: Arc::new(SystemResolver),
        own: Arc::new(|_| false),
        audit,
    });
    let rule = Rule { pattern: "127.0.0.0/8".parse()?, origin: Origin::Config };
    let (_policy, follows) = watch::channel(Policy { trusted: vec![rule], ..Policy::default() });
    let session = proxy.session("bench", follows, Arc::new(Nobody));
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        println!("{}", listener.local_addr()?.port());
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            stream.set_nodelay(true)?;
            tokio::spawn(session.serve(Box::new(stream)));
        }
    })
}
