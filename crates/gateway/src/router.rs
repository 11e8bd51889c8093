//! The router, made from the table of routes: the way of every request from the door to its handler and back.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};

use crate::assets;
use crate::auth::{self, Peer, Standing};
use crate::call::{Call, failed, session_key};
use crate::identity::{Identity, Who};
use crate::live;
use crate::mount::{Mount, Visitor};
use crate::problem::Problem;
use crate::route::{Answered, Bound, Need, Route};
use crate::routes;
use crate::secrets;
use crate::state::State;

/// Header with the name of a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest name of a request that is taken over.
const MAX_ID: usize = 128;

/// Where the API stands.
pub const API: &str = "/api/v1";

/// The router of this gateway.
pub fn router(state: &Arc<State>) -> Router {
    let mut router = Router::new();
    for (number, route) in routes::table().iter().enumerate() {
        let Ok(filter) = MethodFilter::try_from(route.method.clone()) else { continue };
        let (state, route) = (Arc::clone(state), Arc::new(route.clone()));
        let path = route.path;
        let handler = move |request: Request| {
            let (state, route) = (Arc::clone(&state), Arc::clone(&route));
            async move { answer(state, number, &route, request).await }
        };
        router = router.route(path, on(filter, handler));
    }
    let mcp = crate::mcp::mount(state.runtime(), state.stop.clone());
    for mount in state.options.mounts.iter().cloned().chain([mcp]) {
        for path in [mount.path.to_owned(), format!("{}/{{session}}", mount.path)] {
            let (state, mount) = (Arc::clone(state), mount.clone());
            let handler = move |request: Request| {
                let (state, mount) = (Arc::clone(&state), mount.clone());
                async move { visit(state, mount, request).await }
            };
            router = router.route(&path, axum::routing::any(handler));
        }
    }
    let not_found = Arc::clone(state);
    router = router.fallback(move |request: Request| {
        let state = Arc::clone(&not_found);
        async move {
            if assets::is_place(request.method(), request.uri().path(), request.headers()) {
                return place(&state, request);
            }
            elsewhere(&state, request, |path| {
                Problem::missing("route-missing", format!("there is nothing at {path}"))
                    .fix("/api/v1/openapi.json names what there is")
            })
        }
    });
    let state = Arc::clone(state);
    router.method_not_allowed_fallback(move |request: Request| {
        let state = Arc::clone(&state);
        async move {
            let method = request.method().clone();
            elsewhere(&state, request, |path| {
                Problem::invalid("method-missing", format!("there is no {method} at {path}"))
                    .status(StatusCode::METHOD_NOT_ALLOWED)
            })
        }
    })
}

fn peer_of(request: &Request) -> Peer {
    // A connection says where it comes from; one that does not is nobody's.
    request.extensions().get::<Peer>().copied().unwrap_or(Peer::Network([0, 0, 0, 0].into()))
}

/// What is not in the table.
fn elsewhere(state: &State, request: Request, problem: impl FnOnce(&str) -> Problem) -> Response {
    let (peer, (parts, _)) = (peer_of(&request), request.into_parts());
    let id = request_id(&parts.headers);
    let path: String = parts.uri.path().chars().take(200).collect();
    let problem = auth::see_place(&state.hosts(), peer, &parts).err().unwrap_or_else(|| problem(&path));
    finished(problem.into_response(), &id)
}

/// A place of the page, which the page itself finds by the address. Anybody may have it, as he may have `/`.
fn place(state: &State, request: Request) -> Response {
    let (peer, (parts, _)) = (peer_of(&request), request.into_parts());
    let id = request_id(&parts.headers);
    let mut response = match auth::see_place(&state.hosts(), peer, &parts) {
        Ok(()) => assets::page(&parts.headers),
        Err(problem) => problem.into_response(),
    };
    if parts.method == Method::HEAD {
        *response.body_mut() = Body::empty();
    }
    finished(response, &id)
}

/// Answers a request of one route.
async fn answer(state: Arc<State>, number: usize, route: &Arc<Route>, request: Request) -> Response {
    let started = Instant::now();
    let counted = state.metrics.request();
    let peer = peer_of(&request);
    let (mut parts, body) = request.into_parts();
    let id = request_id(&parts.headers);
    let is_head = parts.method == Method::HEAD;
    let answered = handled(&state, route, peer, &mut parts, body).await;
    let response = answered.unwrap_or_else(|problem| {
        tracing::debug!(target: "moltis_gateway::request", route = route.id, code = problem.code(), request = id.to_str().unwrap_or_default(), "refused");
        problem.into_response()
    });
    let status = response.status().as_u16();
    state.metrics.answered(number, status, started.elapsed());
    if status >= 500 {
        tracing::warn!(target: "moltis_gateway::request", route = route.id, status, request = id.to_str().unwrap_or_default(), "failed");
    }
    drop(counted);
    let mut response = finished(response, &id);
    if is_head {
        *response.body_mut() = Body::empty();
    }
    response
}

async fn handled(
    state: &Arc<State>,
    route: &Arc<Route>,
    peer: Peer,
    parts: &mut axum::http::request::Parts,
    body: Body,
) -> Answered {
    auth::see_place(&state.hosts(), peer, parts)?;
    let path = path_of(parts).await?;
    let who = known(state, route, peer, parts).await?;
    if let Err(problem) = auth::see_rule(&who, route, &path) {
        if *who.who() == Who::Nobody {
            state.metrics.refused();
        }
        return Err(problem);
    }
    let standing = Standing::new(state.runtime(), peer, state.port, parts, route, &who);
    let parts = std::mem::replace(parts, Request::new(()).into_parts().0);
    let call = Call::new(Arc::clone(state), who, standing.clone(), route, parts, path, body)?;
    (route.handler)(call).await.map(|answer| live::ending(answer, standing.ends()))
}

/// Who it is, as often as he may ask.
async fn known(
    state: &State,
    route: &Route,
    peer: Peer,
    parts: &axum::http::request::Parts,
) -> Result<Identity, Problem> {
    let from = match peer {
        Peer::Network(address) => address.to_string(),
        Peer::Owner(_) => String::new(),
    };
    if route.rule.need != Need::Nothing && parts.headers.contains_key(header::AUTHORIZATION) {
        state.failures.see(&from)?;
    }
    let who = match auth::identify(&state.runtime(), peer, state.port, parts, route).await {
        Ok(who) => who,
        Err(problem) => {
            if problem.code() == "credential-invalid" {
                state.metrics.refused();
                // Only what is counted is over: a right credential of the same address is let through until then.
                let _ = state.failures.take(&from);
            }
            return Err(problem);
        }
    };
    if !who.is_owner() {
        let name = if *who.who() == Who::Nobody { from } else { who.name() };
        state.requests.take(&name)?;
    }
    Ok(who)
}

async fn path_of(parts: &mut axum::http::request::Parts) -> Result<Vec<(String, String)>, Problem> {
    let params = RawPathParams::from_request_parts(parts, &()).await.map_err(|_| {
        Problem::invalid("path-invalid", "a part of the path is not UTF-8 once its percent signs are undone")
    })?;
    let undone = |(name, value): (&str, &str)| {
        let value = if name == "session" { undotted(value) } else { value };
        (name.to_owned(), value.to_owned())
    };
    Ok(params.iter().map(undone).collect())
}

/// The session's key that a part of a path stands for. Browsers and libraries fold the parts `.` and `..` away, written
/// as `%2E` too, so those two keys are written with a `~` in front; and so that nothing has two meanings, whatever is
/// such a key already gets one more.
fn undotted(part: &str) -> &str {
    match part.strip_prefix('~') {
        Some(key) if matches!(key.trim_start_matches('~'), "." | "..") => key,
        _ => part,
    }
}

/// Leads a request to what is mounted.
async fn visit(state: Arc<State>, mount: Mount, request: Request) -> Response {
    let peer = peer_of(&request);
    let (mut parts, body) = request.into_parts();
    let id = request_id(&parts.headers);
    let door = async {
        auth::see_place(&state.hosts(), peer, &parts)?;
        let path = path_of(&mut parts).await?;
        // Judged as a route is; streams of a mount are long, and a cookie alone is not enough for any of its methods.
        let route = Route::new(parts.method.clone(), mount.path, "mounted", mount.rule, |_| async {
            Err(failed("not-a-route", "a mount has no handler"))
        })
        .streaming();
        let who = known(&state, &route, peer, &parts).await?;
        let session =
            path.iter().find(|(name, _)| name == "session").map(|(_, text)| session_key(text)).transpose()?;
        let rule = match &session {
            Some(_) if mount.rule.need != Need::Nothing => {
                Route { rule: crate::route::Rule { bound: Bound::Session, ..mount.rule }, ..route }
            }
            _ => route,
        };
        auth::see_rule(&who, &rule, &path)?;
        let standing = Standing::new(state.runtime(), peer, state.port, &parts, &Arc::new(rule), &who);
        Ok::<_, Problem>((who, standing, session))
    };
    let (who, standing, session) = match door.await {
        Ok(through) => through,
        Err(problem) => return finished(problem.into_response(), &id),
    };
    let caller = who.caller();
    let visitor = Visitor { runtime: state.runtime(), who, caller, session };
    let answer = (mount.service)(visitor, Request::from_parts(parts, body)).await;
    finished(live::ending(answer, standing.ends()), &id)
}

/// The name of a request: the caller's, if it is a plain one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let plain = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
        (1..=MAX_ID).contains(&bytes.len()) && bytes.iter().all(is_plain)
    };
    headers
        .get(REQUEST_ID)
        .filter(plain)
        .cloned()
        .unwrap_or_else(|| HeaderValue::from_str(&secrets::name()).unwrap_or(HeaderValue::from_static("-")))
}

/// What every answer says.
fn finished(mut response: Response, id: &HeaderValue) -> Response {
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id.clone());
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::undotted;

    #[test]
    fn keys_that_browsers_fold_have_a_way_of_being_written_and_no_other_key_changes() {
        let all = ["~.", "~..", "~~.", "~~~..", ".", "..", "~", "~~", "~...", "~.a", "a~.", "~ .", "", "~a"];
        let expected = [".", "..", "~.", "~~..", ".", "..", "~", "~~", "~...", "~.a", "a~.", "~ .", "", "~a"];
        assert_eq!(all.map(undotted), expected);
    }
}
