//! What others serve here: a service at a path of its own, behind the same door.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use futures_util::future::BoxFuture;
use moltis_runtime::Runtime;
use moltis_runtime::store::Caller;
use moltis_sandbox::SessionKey;

use crate::identity::Identity;
use crate::route::Rule;

/// Who asks, and for which session, when a request reaches what was mounted. The host, the origin, the credential, the
/// rule and the rate have been seen to.
#[derive(Clone)]
pub struct Visitor {
    /// The runtime, under the configuration that holds now.
    pub runtime: Runtime,
    /// Who asks.
    pub who: Identity,
    /// As whom what is done is written down.
    pub caller: Caller,
    /// The session that the path names after the mount's own, which the visitor sees. Absent: it names none.
    pub session: Option<SessionKey>,
}

/// What answers requests that reach a mount.
pub type Service = Arc<dyn Fn(Visitor, Request) -> BoxFuture<'static, Response> + Send + Sync>;

/// Something that is served at a path, such as `/mcp`, and for one session at `/mcp/{session}`. Every method reaches it.
#[derive(Clone)]
pub struct Mount {
    /// Where, without a slash at the end.
    pub path: &'static str,
    /// Who may use it. For a key that is bound, `Bound::Filtered` lets the service judge; a session in the path is always
    /// one that the caller sees.
    pub rule: Rule,
    /// What answers.
    pub service: Service,
}
