//! Requests that run once, however often they are sent: those with an `Idempotency-Key`.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use moltis_runtime::Runtime;
use moltis_runtime::store::{Begun, Finished, Once, now_millis};
use moltis_sandbox::{Diagnosis, Error};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::call::{Call, failed, json};
use crate::identity::Identity;
use crate::problem::Problem;
use crate::route::{Answered, Param, Route, header as header_param};
use crate::schema::text_of;
use crate::secrets::hex;

/// The header that names a request.
pub const HEADER: &str = "idempotency-key";

/// The header of an answer that was given before.
pub const REPLAYED: &str = "idempotency-replayed";

/// The header, as a route takes it.
pub fn param() -> Param {
    header_param(
        HEADER,
        "A name for this request: sent again under it, it never runs again, and is answered as it was before",
        text_of(1, 255),
    )
}

/// Says of a route's last answer that it may be one that was given before.
pub fn told(route: Route) -> Route {
    route.telling(REPLAYED, "`true` when the request had run before, and this is its answer")
}

/// A request as its sender names it. `asked`: all that it asks for, each part of it apart from the next.
pub fn request(who: &Identity, key: String, asked: &[&[u8]]) -> Once {
    use sha2::{Digest, Sha256};

    let mut hash = Sha256::new();
    for (number, part) in asked.iter().enumerate() {
        if number > 0 {
            hash.update([0]);
        }
        hash.update(part);
    }
    Once { caller: who.name(), key, request: hex(&hash.finalize()) }
}

/// Writes down that a request is about to run; what it was answered, if it ran before.
///
/// # Errors
/// `idempotency-running`, `idempotency-reused`; a lost one with this code when the gateway died while it ran.
pub async fn begin(runtime: &Runtime, once: &Once, lost: &'static str) -> Result<Option<Finished>, Problem> {
    let asked = once.clone();
    match runtime.store().run(move |db| db.begin_once(&asked, now_millis())).await? {
        Begun::New => Ok(None),
        Begun::Done(finished) => Ok(Some(finished)),
        Begun::Running => Err(Problem::new(
            StatusCode::CONFLICT,
            "refused",
            Diagnosis::new("idempotency-running", "this request runs still, and is not run twice")
                .fix("ask again when it may have ended"),
        )
        .header(header::RETRY_AFTER, "1")),
        Begun::Differs => {
            Err(Problem::invalid("idempotency-reused", "another request had this Idempotency-Key")
                .fix("use a key of its own for each request")
                .status(StatusCode::UNPROCESSABLE_ENTITY))
        }
        Begun::Lost => Err(Error::Lost(
            Diagnosis::new(lost, "the request ran before, and what came of it is not known")
                .cause("the gateway ended while it ran")
                .fix("look at what it did before asking for it under another Idempotency-Key"),
        )
        .into()),
    }
}

/// Writes an answer of this status down. What did not run may be tried again.
///
/// # Errors
/// Those of the store.
pub async fn finish<T: Serialize>(
    runtime: &Runtime,
    once: Once,
    status: u16,
    answered: &Result<T, Problem>,
) -> Result<(), Problem> {
    let finished = match answered {
        Ok(answer) => Finished {
            status,
            kind: "application/json".to_owned(),
            answer: serde_json::to_vec(answer).unwrap_or_default(),
        },
        Err(problem) if problem.is_lost() => Finished {
            status: StatusCode::BAD_GATEWAY.as_u16(),
            kind: crate::problem::KIND.to_owned(),
            answer: problem.document().to_string().into_bytes(),
        },
        Err(_) => return Ok(runtime.store().run(move |db| db.forget_once(&once)).await?),
    };
    Ok(runtime.store().run(move |db| db.finish_once(&once, &finished)).await?)
}

/// An answer that was written down, as it was.
pub fn replayed(finished: Finished) -> Response {
    let mut response = Response::new(Body::from(finished.answer));
    *response.status_mut() = StatusCode::from_u16(finished.status).unwrap_or(StatusCode::OK);
    let kind = HeaderValue::from_str(&finished.kind);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, kind.unwrap_or(HeaderValue::from_static("application/json")));
    mark(response)
}

/// Says of an answer that it was given before.
pub fn mark(mut response: Response) -> Response {
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// Does the work of a request and answers with this status: once, if the caller names it. `asked`: all that it asks for,
/// its route first. The work goes on when its caller goes away: nothing is left half done, and the answer is written down.
///
/// # Errors
/// Those of the work; `idempotency-running`, `idempotency-reused`; `request-lost` when the gateway died while it ran.
pub async fn run<F>(call: &Call, asked: &[&[u8]], status: u16, work: F) -> Answered
where
    F: Future<Output = Result<Value, Problem>> + Send + 'static,
{
    let runtime = call.runtime();
    // Apart from those of commands, which are a session, if any, and a body, which is never empty.
    let all = || [&[&b""[..], b""][..], asked].concat();
    let named = call.header(HEADER).map(|key| request(&call.who, key.to_owned(), &all()));
    if let Some(once) = &named
        && let Some(finished) = begin(&runtime, once, "request-lost").await?
    {
        return Ok(replayed(finished));
    }
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let answered = work.await;
        let finished = match named {
            Some(once) => finish(&runtime, once, status, &answered).await,
            None => Ok(()),
        };
        // Nobody may be there to hear it.
        let _ = tell.send(answered.and_then(|answer| finished.map(|()| answer)));
    });
    let answered = told.await.map_err(|_| failed("request-broke", "what was asked for broke off"))?;
    json(status, &answered?)
}
