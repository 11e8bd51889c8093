//! One request, and what handlers ask of it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use http_body_util::BodyExt;
use moltis_runtime::Runtime;
use moltis_runtime::store::Caller;
use moltis_sandbox::{ByteStream, Diagnosis, Error, GuestPath, SessionKey};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::auth::Standing;
use crate::identity::Identity;
use crate::openapi;
use crate::problem::Problem;
use crate::route::{Answered, Carries, Place, Route};
use crate::schema;
use crate::state::State;

/// Time that a caller has to send a body of JSON.
const BODY: Duration = Duration::from_secs(60);

/// Time that a caller has for the next piece of what it uploads.
const PIECE: Duration = Duration::from_secs(120);

/// Bytes of JSON where a route says nothing else.
const MOST: usize = 1 << 20;

/// One request.
pub struct Call {
    /// The gateway.
    pub state: Arc<State>,
    /// Who asks.
    pub who: Identity,
    /// What let it in, for what goes on.
    pub standing: Standing,
    /// Its head.
    pub parts: Parts,
    /// What it carries. It is taken once; the lock is there because a body cannot be shared.
    body: Mutex<Body>,
    /// Parts of the path by their names.
    path: Vec<(String, String)>,
    query: Query,
    carries: Carries,
    may_be_empty: bool,
}

/// The query, its names and values as bytes: a path of a file need not be UTF-8.
#[derive(Debug, Default)]
pub struct Query(Vec<(String, Vec<u8>)>);

impl Query {
    fn read(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (String::from_utf8_lossy(&decoded(name)).into_owned(), decoded(value))
                })
                .collect(),
        )
    }

    fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| &**value)
    }
}

/// Undoes percent-encoding; `+` is a space, as forms write it.
fn decoded(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let (mut decoded, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
                continue;
            }
            (b'+', ..) => decoded.push(b' '),
            _ => decoded.push(*byte),
        }
        at += 1;
    }
    decoded
}

impl Call {
    /// Takes a request in: parameters that the route does not have, or that cannot be right, are refused.
    ///
    /// # Errors
    /// `param-unknown`, `param-missing`, `param-invalid`.
    pub fn new(
        state: Arc<State>,
        who: Identity,
        standing: Standing,
        route: &Route,
        parts: Parts,
        path: Vec<(String, String)>,
        body: Body,
    ) -> Result<Self, Problem> {
        let query = Query::read(parts.uri.query().unwrap_or_default());
        let names = || route.params.iter().filter(|param| param.place == Place::Query).map(|p| p.name);
        for (nth, (name, _)) in query.0.iter().enumerate() {
            if !names().any(|known| known == name) {
                let near = moltis_config::suggest(name, names());
                let fix = match near {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "leave it out; /api/v1/openapi.json names those that there are".to_owned(),
                };
                return Err(
                    Problem::invalid("param-unknown", format!("there is no parameter {name:?}")).fix(fix)
                );
            }
            if query.0[..nth].iter().any(|(before, _)| before == name) {
                return Err(Problem::invalid("param-invalid", format!("`{name}` is there twice")));
            }
        }
        for param in &route.params {
            let value = match param.place {
                Place::Query => query.get(param.name).map(<[u8]>::to_vec),
                Place::Path => {
                    path.iter().find(|(name, _)| name == param.name).map(|(_, v)| v.clone().into_bytes())
                }
                Place::Header => parts.headers.get(param.name).map(|value| value.as_bytes().to_vec()),
            };
            let Some(value) = value else {
                if param.required {
                    let message = format!("`{}` is missing: {}", param.name, param.about);
                    return Err(Problem::invalid("param-missing", message));
                }
                continue;
            };
            // Of what need not be UTF-8 only the rest is judged by whoever reads it.
            if param.schema.get("format").and_then(|format| format.as_str()) == Some("path") {
                continue;
            }
            let read = match std::str::from_utf8(&value) {
                Ok(text) => schema::read_param(&param.schema, text).map(drop),
                Err(_) => Err("write it in UTF-8".to_owned()),
            };
            read.map_err(|fix| {
                Problem::invalid("param-invalid", format!("`{}` cannot be right", param.name)).fix(fix)
            })?;
        }
        let (carries, may_be_empty) = (route.carries.clone(), route.may_be_empty);
        Ok(Self { state, who, standing, parts, body: Mutex::new(body), path, query, carries, may_be_empty })
    }

    /// The runtime, under the configuration that holds now.
    pub fn runtime(&self) -> Runtime {
        self.state.runtime()
    }

    /// As whom what is done is written down.
    pub fn caller(&self) -> Caller {
        self.who.caller()
    }

    /// A part of the path.
    pub fn part(&self, name: &str) -> &str {
        self.path.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
    }

    /// The session that the path names.
    ///
    /// # Errors
    /// `session-key-invalid`.
    pub fn session(&self) -> Result<SessionKey, Problem> {
        session_key(self.part("session"))
    }

    /// A parameter of the query, where it is there.
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// A number in the query.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.query(name)?.parse().ok()
    }

    /// Whether the query says yes.
    pub fn says(&self, name: &str) -> bool {
        self.query(name) == Some("true")
    }

    /// The session that the query names, if it names one. One that the caller does not see is not there.
    ///
    /// # Errors
    /// `session-key-invalid`, `session-missing`.
    pub fn queried_session(&self) -> Result<Option<SessionKey>, Problem> {
        let Some(text) = self.query("session") else { return Ok(None) };
        let key = session_key(text)?;
        self.see(&key)?;
        Ok(Some(key))
    }

    /// Sees that the caller sees a session.
    ///
    /// # Errors
    /// `session-missing`, as for one that is not there.
    pub fn see(&self, key: &SessionKey) -> Result<(), Problem> {
        if self.who.sees(key) { Ok(()) } else { Err(no_session(key.as_str())) }
    }

    /// A path inside, in the query.
    ///
    /// # Errors
    /// `path-invalid`.
    pub fn path(&self, name: &str) -> Result<GuestPath, Problem> {
        guest_path(self.query.get(name).unwrap_or_default())
    }

    /// [`path`](Self::path), where it is there.
    ///
    /// # Errors
    /// `path-invalid`.
    pub fn path_if_any(&self, name: &str) -> Result<Option<GuestPath>, Problem> {
        self.query.get(name).map(guest_path).transpose()
    }

    /// A header, if it is there and is text.
    pub fn header(&self, name: impl header::AsHeaderName) -> Option<&str> {
        self.parts.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The JSON that the request carries, and the bytes of it.
    ///
    /// # Errors
    /// `body-not-json`, `body-too-large`, `body-invalid`, `body-late`.
    pub async fn json<T: DeserializeOwned>(&mut self) -> Result<T, Problem> {
        Ok(self.json_and_bytes().await?.0)
    }

    /// [`json`](Self::json), with the bytes that it was read from.
    ///
    /// # Errors
    /// As there.
    pub async fn json_and_bytes<T: DeserializeOwned>(&mut self) -> Result<(T, Bytes), Problem> {
        let most = match &self.carries {
            Carries::Json(_, most) => *most,
            _ => MOST,
        };
        let is_json = self.header(header::CONTENT_TYPE).is_some_and(|kind| {
            let kind = kind.split(';').next().unwrap_or_default().trim();
            kind.eq_ignore_ascii_case("application/json")
        });
        let body = self.take_body();
        let limited = http_body_util::Limited::new(body, most);
        let bytes = match tokio::time::timeout(BODY, limited.collect()).await {
            Ok(Ok(collected)) => collected.to_bytes(),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                let message = format!("the body is over the {most} bytes that it may have");
                return Err(Problem::invalid("body-too-large", message).status(StatusCode::PAYLOAD_TOO_LARGE));
            }
            Ok(Err(_)) => return Err(Problem::invalid("body-invalid", "the body broke off")),
            Err(_) => return Err(Problem::invalid("body-late", "the body did not come in time")),
        };
        if bytes.is_empty() && self.may_be_empty {
            let empty = Bytes::from_static(b"{}");
            return Ok((read_json(&empty, &Value::Null)?, empty));
        }
        if !is_json {
            return Err(Problem::invalid("body-not-json", "the body must be JSON")
                .fix("send it with `Content-Type: application/json`")
                .status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
        let schema = match &self.carries {
            Carries::Json(schema, _) => schema,
            _ => &Value::Null,
        };
        Ok((read_json(&bytes, schema)?, bytes))
    }

    fn take_body(&mut self) -> Body {
        std::mem::take(self.body.get_mut().unwrap_or_else(PoisonError::into_inner))
    }

    /// The bytes that the request carries, as they come.
    pub fn stream(&mut self) -> ByteStream {
        let stream = self.take_body().into_data_stream();
        Box::pin(futures_util::stream::unfold(Some(stream), |stream| async {
            let mut stream = stream?;
            let broken =
                |code, message: &str| Err(Error::Invalid(Diagnosis::new(code, message).fix("send it again")));
            match tokio::time::timeout(PIECE, stream.next()).await {
                Ok(Some(Ok(bytes))) => Some((Ok(bytes), Some(stream))),
                Ok(Some(Err(_))) => Some((broken("body-invalid", "the body broke off"), None)),
                Ok(None) => None,
                Err(_) => Some((broken("body-late", "the body did not go on in time"), None)),
            }
        }))
    }

    /// Which of these forms the caller wants; the first one is given to whoever says nothing of it.
    ///
    /// # Errors
    /// `form-unknown` when it wants none of them.
    pub fn wants(&self, forms: &[&'static str]) -> Result<&'static str, Problem> {
        let first = forms.first().copied().unwrap_or_default();
        let Some(accept) = self.header(header::ACCEPT) else { return Ok(first) };
        let mut best: Option<(f32, &'static str)> = None;
        for range in accept.split(',') {
            let mut pieces = range.split(';').map(str::trim);
            let kind = pieces.next().unwrap_or_default().to_ascii_lowercase();
            let weight = pieces
                .find_map(|piece| piece.strip_prefix("q="))
                .map_or(1.0, |weight| weight.parse().unwrap_or(0.0));
            let found = forms.iter().copied().find(|form| {
                kind == "*/*"
                    || kind == *form
                    || kind.strip_suffix("/*").is_some_and(|of| form.starts_with(of))
            });
            if let Some(form) = found
                && weight > 0.0
                && best.is_none_or(|(before, _)| weight > before)
            {
                best = Some((weight, form));
            }
        }
        best.map(|(_, form)| form).ok_or_else(|| {
            Problem::invalid("form-unknown", "there is no such form of this answer")
                .fix(format!("accept one of {}", forms.join(", ")))
                .status(StatusCode::NOT_ACCEPTABLE)
        })
    }
}

/// What the bytes hold, in the forms that the document promises.
fn read_json<T: DeserializeOwned>(bytes: &[u8], schema: &Value) -> Result<T, Problem> {
    let unreadable = |error: serde_json::Error| {
        // What it says may quote the body, which is the caller's own.
        let code = if error.is_data() { "body-invalid" } else { "body-not-json" };
        Problem::invalid(code, "the body cannot be read").cause(error)
    };
    let read = serde_json::from_slice(bytes).map_err(unreadable)?;
    let value: Value = serde_json::from_slice(bytes).map_err(unreadable)?;
    if let Some((place, form)) = schema::misshapen(schema, &value, &|name| openapi::named(name)) {
        let place = if place.is_empty() { "the body".to_owned() } else { format!("`{place}`") };
        return Err(Problem::invalid("body-invalid", "the body cannot be read")
            .cause(format!("{place} must be {form}")));
    }
    Ok(read)
}

/// A session's key.
///
/// # Errors
/// `session-key-invalid`.
pub fn session_key(text: &str) -> Result<SessionKey, Problem> {
    SessionKey::new(text).ok_or_else(|| {
        Problem::invalid("session-key-invalid", format!("{text:?} is no key of a session"))
            .fix(format!("use 1 to {} bytes of UTF-8 without NUL", SessionKey::MAX_BYTES))
    })
}

/// There is no such session, or none that the caller sees.
pub fn no_session(key: &str) -> Problem {
    Problem::missing("session-missing", format!("there is no session {key:?}"))
        .fix("GET /api/v1/sessions lists those that there are")
}

/// A path inside.
///
/// # Errors
/// `path-invalid`.
pub fn guest_path(bytes: &[u8]) -> Result<GuestPath, Problem> {
    GuestPath::new(bytes.to_vec()).ok_or_else(|| {
        let shown = String::from_utf8_lossy(bytes);
        Problem::invalid("path-invalid", format!("{shown:?} is no path inside"))
            .fix("write it from the root, without NUL, in at most 4095 bytes")
    })
}

/// JSON with a status.
pub fn json(status: u16, value: &impl Serialize) -> Answered {
    let text = serde_json::to_vec(value)
        .map_err(|error| failed("answer-failed", "the answer cannot be written").cause(error))?;
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// JSON, and all is well.
pub fn ok(value: &impl Serialize) -> Answered {
    json(200, value)
}

/// Nothing more to say.
pub fn nothing() -> Answered {
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The gateway itself failed.
pub fn failed(code: &'static str, message: &str) -> Problem {
    let told = Diagnosis::new(code, message).fix("try again; if it stays, look at the gateway's log");
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "unavailable", told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_as_bytes() {
        let query = Query::read("path=%2Ft%C3%BC%FF&a=b+c&flag&=x&broken=%2");
        assert_eq!(query.get("path"), Some(&b"/t\xc3\xbc\xff"[..]));
        assert_eq!(query.get("a"), Some(&b"b c"[..]));
        assert_eq!((query.get("flag"), query.get("")), (Some(&b""[..]), Some(&b"x"[..])));
        assert_eq!((query.get("broken"), query.get("none")), (Some(&b"%2"[..]), None));
    }
}
