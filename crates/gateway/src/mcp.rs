//! The tools that a model sees, at `/mcp`: for the session that the path names, or the one that goes with the credential.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::IntoResponse;
use moltis_mcp::{Access, HttpService, http_service};
use moltis_runtime::{Runtime, SessionRequest};
use moltis_sandbox::SessionKey;
use tokio_util::sync::CancellationToken;

use crate::identity::Who;
use crate::mount::{Mount, Visitor};
use crate::problem::Problem;
use crate::route::{Bound, Rule};

/// Where they are.
pub const PATH: &str = "/mcp";

/// The mount. Once `stop` is cancelled, clients are let go of.
pub fn mount(runtime: Runtime, stop: CancellationToken) -> Mount {
    let service = http_service(runtime, stop);
    Mount {
        path: PATH,
        rule: Rule::write(Bound::Filtered),
        service: Arc::new(move |visitor, request| {
            let service = service.clone();
            Box::pin(async move { answer(service, visitor, request).await })
        }),
    }
}

async fn answer(service: HttpService, visitor: Visitor, mut request: Request) -> axum::response::Response {
    let key = match session(&visitor) {
        Ok(key) => key,
        Err(problem) => return problem.into_response(),
    };
    let who = visitor.who.name();
    let session = SessionRequest { caller: visitor.caller, ..SessionRequest::new(key) };
    request.extensions_mut().insert(Access { runtime: Some(visitor.runtime), session, who });
    service.handle(request).await.map(Body::new)
}

/// The session: the one that the path names; else the only one that the key is bound to; else one of the caller's own.
fn session(visitor: &Visitor) -> Result<SessionKey, Problem> {
    if let Some(key) = &visitor.session {
        return Ok(key.clone());
    }
    let own = match (visitor.who.sessions(), visitor.who.who()) {
        (Some([one]), _) if !one.contains('*') => one.clone(),
        (Some(_), _) => {
            return Err(Problem::invalid(
                "session-missing-in-path",
                "this key is bound to more than one session",
            )
            .fix("name one in the path: /mcp/SESSION"));
        }
        (None, Who::Key { name }) => format!("mcp:{name}"),
        (None, Who::Owner { .. }) => "mcp:owner".to_owned(),
        (None, Who::Admin | Who::Nobody) => "mcp:admin".to_owned(),
    };
    crate::call::session_key(&own)
}
