//! Streamable HTTP: a tower service for a router, which has checked each request before.

use std::sync::Arc;
use std::time::Duration;

use moltis_runtime::Runtime;
use rmcp::RoleServer;
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, SessionConfig};
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use tokio_util::sync::CancellationToken;

use crate::place::Access;
use crate::server::Server;

/// Time without a message after which a client's connection is forgotten: longer than any command may take.
const FORGET: Duration = Duration::from_secs(35 * 60);

/// Bytes of a request at most.
const MAX_REQUEST: usize = 16 * 1024 * 1024;

/// What a router mounts, as by axum's `nest_service` or `route_service`.
pub type HttpService = StreamableHttpService<Server, LocalSessionManager>;

/// The service for streamable HTTP. Once `stop` is cancelled, clients are let go of and their commands end.
///
/// It trusts what comes before it: whoever mounts it has checked credentials, `Host` and `Origin`, and has put an
/// [`Access`] into each request's extensions. The session of a call is that of its own request, so a client that learns
/// another one's `Mcp-Session-Id` reaches nothing but its own session.
pub fn http_service(runtime: Runtime, stop: CancellationToken) -> HttpService {
    let server = Server::of_requests(runtime);
    let closing = server.clone();
    let stopped = stop.clone();
    if let Ok(handle) = tokio::runtime::Handle::try_current() {
        handle.spawn(async move {
            stopped.cancelled().await;
            closing.end_calls();
        });
    }
    let mut sessions = SessionConfig::default();
    sessions.keep_alive = Some(FORGET);
    let mut manager = LocalSessionManager::default();
    manager.session_config = sessions;
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_max_request_body_bytes(MAX_REQUEST)
        .with_cancellation_token(stop);
    StreamableHttpService::new(move || Ok(server.clone()), Arc::new(manager), config)
}

/// What the router wrote into the request.
pub(crate) fn access(context: &RequestContext<RoleServer>) -> Option<Access> {
    context.extensions.get::<::http::request::Parts>()?.extensions.get::<Access>().cloned()
}
