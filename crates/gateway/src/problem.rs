//! What went wrong, as an answer: a problem document with a stable code, why, and what to do.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use moltis_runtime::store::StoreError;
use moltis_sandbox::{Diagnosis, Error};
use serde::Serialize;

use crate::error::GatewayError;

/// Media type of problem documents.
pub const KIND: &str = "application/problem+json";

/// A problem, and the status that it is answered with.
#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    kind: &'static str,
    diagnosis: Box<Diagnosis>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

#[derive(Serialize)]
struct Document<'a> {
    r#type: String,
    title: &'static str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<&'a str>,
}

/// Codes of what is not there.
const MISSING: &[&str] = &[
    "session-missing",
    "snapshot-missing",
    "approval-missing",
    "rule-missing",
    "process-missing",
    "image-missing",
    "sandbox-missing",
    "key-missing",
    "file-missing",
    "setting-missing",
];

/// Codes of what does not go together with what is there now.
const CONFLICT: &[&str] = &[
    "session-differs",
    "session-busy",
    "session-gone",
    "session-has-sandbox",
    "sandbox-busy",
    "session-changed",
    "session-exists",
    "fork-home-exists",
    "snapshot-name-taken",
    "snapshot-in-use",
    "snapshots-full",
    "snapshot-elsewhere",
    "sandbox-changed",
    "sandbox-not-running",
    "sandbox-ended",
    "max-sandboxes",
    "image-in-use",
    "network-rules-full",
    "keys-full",
    "key-exists",
    "file-exists",
    "process-ended",
    "approval-over",
    "approval-elsewhere",
    "domain-denied",
];

/// Codes of a lack of room.
const NO_ROOM: &[&str] = &["disk-low", "store-full", "disk-full", "no-space"];

impl Problem {
    /// A problem of the request.
    pub fn new(status: StatusCode, kind: &'static str, diagnosis: Diagnosis) -> Self {
        Self { status, kind, diagnosis: Box::new(diagnosis), headers: Vec::new() }
    }

    /// The request cannot be right.
    pub fn invalid(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", Diagnosis::new(code, message))
    }

    /// There is no such thing.
    pub fn missing(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid", Diagnosis::new(code, message))
    }

    /// The caller may not.
    pub fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "refused", Diagnosis::new(code, message))
    }

    /// It was asked for under a condition that does not hold.
    pub fn precondition(message: impl Into<String>) -> Self {
        let told = Diagnosis::new("precondition-failed", message);
        Self::new(StatusCode::PRECONDITION_FAILED, "refused", told.fix("look at it again, and decide anew"))
    }

    /// With what to do about it.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.diagnosis.fix = Some(fix.into());
        self
    }

    /// With why.
    #[must_use]
    pub fn cause(mut self, cause: impl std::fmt::Display) -> Self {
        self.diagnosis.cause = Some(cause.to_string());
        self
    }

    /// With a further header.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: &str) -> Self {
        self.headers.extend(HeaderValue::from_str(value).ok().map(|value| (name, value)));
        self
    }

    /// With another status.
    #[must_use]
    pub fn status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// Whether something may have run, and what came of it is not known.
    pub fn is_lost(&self) -> bool {
        self.kind == "lost"
    }

    /// Whether this is its status.
    pub fn is(&self, status: StatusCode) -> bool {
        self.status == status
    }

    /// The stable code.
    pub fn code(&self) -> &str {
        &self.diagnosis.code
    }

    /// The failure of which it is the answer.
    pub fn into_error(self) -> Error {
        match self.kind {
            "refused" => Error::Refused(*self.diagnosis),
            "unavailable" => Error::Unavailable(*self.diagnosis),
            "lost" => Error::Lost(*self.diagnosis),
            _ => Error::Invalid(*self.diagnosis),
        }
    }

    /// What to show a person.
    pub fn into_diagnosis(self) -> Diagnosis {
        *self.diagnosis
    }

    /// The document.
    pub fn document(&self) -> serde_json::Value {
        let Diagnosis { code, message, cause, fix } = &*self.diagnosis;
        let document = Document {
            r#type: format!("urn:moltis:problem:{code}"),
            title: title(self.status),
            status: self.status.as_u16(),
            detail: message,
            code,
            kind: self.kind,
            cause: cause.as_deref(),
            fix: fix.as_deref(),
        };
        serde_json::to_value(document).unwrap_or_default()
    }
}

fn title(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 => "The request is invalid",
        401 => "A credential is needed",
        403 => "This is not allowed",
        404 => "There is no such thing",
        405 => "There is no such method",
        406 => "There is no such form",
        409 => "This does not go together with what is there",
        412 => "The condition does not hold",
        413 => "The request is too large",
        415 => "The request has the wrong form",
        416 => "There is no such range",
        422 => "This is refused",
        429 => "There are too many requests",
        502 => "The outcome is not known",
        503 => "This cannot be done now",
        507 => "There is no room",
        _ => "The gateway failed",
    }
}

/// The status that an error is answered with.
fn status_of(error: &Error) -> StatusCode {
    let code = error.code();
    if MISSING.contains(&code) {
        return StatusCode::NOT_FOUND;
    }
    if CONFLICT.contains(&code) {
        return StatusCode::CONFLICT;
    }
    if NO_ROOM.contains(&code) {
        return StatusCode::INSUFFICIENT_STORAGE;
    }
    if code == "file-too-large" {
        return StatusCode::PAYLOAD_TOO_LARGE;
    }
    match error {
        Error::Invalid(_) => StatusCode::BAD_REQUEST,
        Error::Refused(_) => StatusCode::UNPROCESSABLE_ENTITY,
        Error::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        Error::Lost(_) => StatusCode::BAD_GATEWAY,
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::new(status_of(&error), error.kind(), error.diagnosis().clone())
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Error::from(error).into()
    }
}

impl From<GatewayError> for Problem {
    fn from(error: GatewayError) -> Self {
        Error::from(error).into()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.document().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(KIND));
        headers.extend(self.headers);
        response
    }
}
