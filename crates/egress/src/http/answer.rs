//! What a program inside is told when something did not go through.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Response;
use hyper::ext::ReasonPhrase;
use hyper::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue};

use crate::audit::Action;
use crate::refusal::Refusal;

/// Names what decided, for programs.
const EGRESS: HeaderName = HeaderName::from_static("x-moltis-egress");

fn text(why: &Refusal, host: &str) -> String {
    let what = if host.is_empty() { "this request" } else { host };
    let mut text = match why.action() {
        Action::Denied => format!("Moltis did not let {what} through: {}.\n", why.told()),
        Action::Allowed => format!("Moltis let {what} through, but {}.\n", why.told()),
    };
    if let Some(advice) = why.advice(host) {
        text.push_str(&advice);
        text.push('\n');
    }
    text
}

fn word(why: &Refusal) -> &'static str {
    match why.action() {
        Action::Denied => "denied",
        Action::Allowed => "failed",
    }
}

/// The answer. With `last` the connection ends after it.
pub(crate) fn answer(why: &Refusal, host: &str, last: bool) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text(why, host)));
    *response.status_mut() = why.status();
    // Programs that show nothing else of an answer to CONNECT show this.
    let phrase = match why.action() {
        Action::Denied => format!("Denied by Moltis ({})", why.code()),
        Action::Allowed => format!("Not reached by Moltis ({})", why.code()),
    };
    if let Ok(phrase) = ReasonPhrase::try_from(phrase) {
        response.extensions_mut().insert(phrase);
    }
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&format!("{}; code={}", word(why), why.code())) {
        headers.insert(EGRESS, value);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if last {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The same as bytes, for whom there is no place.
pub(crate) fn plain(why: &Refusal) -> String {
    let body = text(why, "");
    format!(
        "HTTP/1.1 {} Denied by Moltis ({code})\r\nX-Moltis-Egress: {}; code={code}\r\n\
         Content-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        why.status().as_u16(),
        word(why),
        body.len(),
        code = why.code(),
    )
}
