//! Requests to an engine and its answers, over one connection each, with limits on what an answer may take.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes as Piece;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper::{Method, Response};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;

use super::wire::Connector;
use crate::engine::words::{is_full, message};
use crate::engine::{Bytes, EngineError, EngineKind, Result};

/// How long a question may take, in seconds.
pub(super) const QUESTION: u64 = 20;

/// How long a change may take, in seconds.
pub(super) const CHANGE: u64 = 60;

/// Largest answer that is kept in memory: lists of some thousand containers fit.
const ANSWER_LIMIT: usize = 16 << 20;

/// Largest message of an error that is read.
const ERROR_LIMIT: usize = 64 << 10;

/// Room for what was received and is not used yet, headers too.
const BUFFER: usize = 128 << 10;

/// The newest version of Docker's API that is spoken; an older engine is spoken to in its own.
const NEWEST: (u32, u32) = (1, 51);

/// What is sent with a request.
pub(super) enum Body {
    /// These bytes, which may be none.
    Whole(Piece),
    /// All that can be read here.
    Stream(Bytes),
}

impl Body {
    pub(super) fn none() -> Self {
        Self::Whole(Piece::new())
    }
}

/// A request to be made.
pub(super) struct Request {
    method: Method,
    path: String,
    body: Body,
    content: &'static str,
    headers: Vec<(&'static str, String)>,
    upgrade: bool,
}

impl Request {
    fn new(method: Method, path: String) -> Self {
        Self {
            method,
            path,
            body: Body::none(),
            content: "application/json",
            headers: Vec::new(),
            upgrade: false,
        }
    }

    pub(super) fn get(path: String) -> Self {
        Self::new(Method::GET, path)
    }

    pub(super) fn head(path: String) -> Self {
        Self::new(Method::HEAD, path)
    }

    pub(super) fn post(path: String) -> Self {
        Self::new(Method::POST, path)
    }

    pub(super) fn put(path: String) -> Self {
        Self::new(Method::PUT, path)
    }

    pub(super) fn delete(path: String) -> Self {
        Self::new(Method::DELETE, path)
    }

    /// With a JSON value.
    pub(super) fn json(mut self, value: &serde_json::Value) -> Self {
        self.body = Body::Whole(value.to_string().into());
        self
    }

    /// With a tar archive.
    pub(super) fn tar(mut self, body: Body) -> Self {
        self.body = body;
        self.content = "application/x-tar";
        self
    }

    pub(super) fn header(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Whose connection becomes a stream of bytes both ways.
    pub(super) fn upgrade(mut self) -> Self {
        self.upgrade = true;
        self
    }
}

/// How an engine is spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Docker's API in this version.
    Docker(u32, u32),
    /// Podman's own API in this version, beside which it has Docker's.
    Podman(String),
}

impl Dialect {
    pub(super) fn is_podman(&self) -> bool {
        matches!(self, Self::Podman(_))
    }

    /// What goes before the paths that Podman has of its own, or Docker's.
    pub(super) fn prefix(&self) -> String {
        match self {
            Self::Docker(major, minor) => format!("/v{major}.{minor}"),
            Self::Podman(version) => format!("/v{version}/libpod"),
        }
    }
}

/// An engine's refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub status: u16,
    /// Its words, cleaned.
    pub message: String,
    /// Podman's name for the reason, if it gives one.
    pub cause: String,
}

/// A call went wrong: an engine that refuses, or one that cannot be spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Refused(Refusal),
    Other(EngineError),
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self::Other(error)
    }
}

impl Failure {
    /// The error that this is where nothing more is known of the call.
    pub(super) fn plain(self, engine: EngineKind) -> EngineError {
        let Refusal { status, message, cause } = match self {
            Self::Other(error) => return error,
            Self::Refused(refusal) => refusal,
        };
        if is_full(&message) {
            return EngineError::Full { engine, message };
        }
        match status {
            // What a proxy before an engine says when that does not answer.
            502..=504 => {
                EngineError::Unreachable { engine, endpoint: "a proxy before it".to_owned(), cause: message }
            }
            409 => EngineError::Conflict { message },
            _ if TAKEN.contains(&cause.as_str()) => EngineError::Conflict { message },
            _ => EngineError::Refused { engine, message },
        }
    }

    /// Whether the thing that was named is not there. Podman tells that with status 500 of a container that it removes
    /// while it is asked about it.
    pub(super) fn is_missing(&self) -> bool {
        match self {
            Self::Refused(refusal) => {
                refusal.status == 404
                    || (refusal.status == 500 && refusal.message.ends_with("no such container"))
            }
            Self::Other(_) => false,
        }
    }

    /// Whether a container went away while the engine was looking at it, which Podman tells with status 500.
    pub(super) fn has_vanished(&self) -> bool {
        matches!(self, Self::Refused(refusal)
            if refusal.status == 500 && refusal.message.ends_with("no such container"))
    }
}

/// Podman's names for things that are in use or in the wrong state, which it tells with status 500.
const TAKEN: [&str; 6] = [
    "that name is already in use",
    "container already exists",
    "name already in use",
    "image is in use by a container",
    "container state improper",
    "image used by container",
];

/// An engine at the other end.
pub(super) struct Client {
    connector: Connector,
    dialect: OnceCell<Dialect>,
}

impl Client {
    pub(super) fn new(connector: Connector) -> Self {
        Self { connector, dialect: OnceCell::new() }
    }

    pub(super) fn engine(&self) -> EngineKind {
        self.connector.engine()
    }

    pub(super) fn connector(&self) -> &Connector {
        &self.connector
    }

    /// How the engine is spoken to; asked for once.
    pub(super) async fn dialect(&self) -> Result<&Dialect> {
        self.dialect.get_or_try_init(|| self.negotiate()).await
    }

    async fn negotiate(&self) -> Result<Dialect> {
        let ask = async {
            let answer = self.send(Request::get("/_ping".to_owned())).await?;
            let answer = answer.accept().await.map_err(|failure| failure.plain(self.engine()))?;
            let header = |name: &str| answer.response.headers().get(name)?.to_str().ok().map(str::to_owned);
            let podman = header("Libpod-API-Version").filter(|version| is_version(version));
            Ok((podman, header("Api-Version").as_deref().and_then(version)))
        };
        let (podman, docker) = within(self.engine(), QUESTION, "say which version it has", ask).await?;
        match (podman, docker) {
            (Some(version), _) => Ok(Dialect::Podman(version)),
            (None, _) if self.engine() == EngineKind::Podman => Err(EngineError::Answer {
                engine: self.engine(),
                message: format!("{} is not Podman's", self.connector.name()),
            }),
            (None, Some(version)) => {
                let (major, minor) = version.min(NEWEST);
                Ok(Dialect::Docker(major, minor))
            }
            (None, None) => Err(EngineError::Answer {
                engine: self.engine(),
                message: format!("{} does not name the version of its API", self.connector.name()),
            }),
        }
    }

    /// Makes a request. The connection lives as long as the answer. Has no time limit.
    pub(super) async fn send(&self, request: Request) -> Result<Answer<'_>> {
        let wire = self.connector.open().await?;
        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(BUFFER)
            .handshake(TokioIo::new(wire))
            .await
            .map_err(|error| self.broken(&error))?;
        let connection = Running(tokio::spawn(async move {
            // What goes wrong here is told to the request too.
            let _ = connection.with_upgrades().await;
        }));
        let mut head = hyper::Request::builder()
            .method(request.method)
            .uri(&request.path)
            .header(HOST, "moltis")
            .header(CONTENT_TYPE, request.content);
        for (name, value) in request.headers {
            head = head.header(name, value);
        }
        if request.upgrade {
            head = head.header(CONNECTION, HeaderValue::from_static("Upgrade"));
            head = head.header(UPGRADE, HeaderValue::from_static("tcp"));
        }
        let upgrade = request.upgrade;
        let request = head.body(request.body).map_err(|error| EngineError::Refused {
            engine: self.engine(),
            message: format!("no request can be made of this: {error}"),
        })?;
        let response = sender.send_request(request).await.map_err(|error| self.broken(&error))?;
        Ok(Answer { client: self, response, connection, upgrade })
    }

    /// Makes a request, and keeps its answer if the engine accepts it.
    pub(super) async fn accepted(&self, request: Request) -> Result<Answer<'_>, Failure> {
        self.send(request).await?.accept().await
    }

    /// Makes a request within a time limit, and reads what it is answered with.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        seconds: u64,
        what: &str,
        request: Request,
    ) -> Result<T, Failure> {
        let bytes = self.tell(seconds, what, request).await?;
        serde_json::from_slice(&bytes).map_err(|error| Failure::Other(self.nonsense(&error)))
    }

    /// Makes a request within a time limit, and keeps what it is answered with as it is.
    pub(super) async fn tell(&self, seconds: u64, what: &str, request: Request) -> Result<Piece, Failure> {
        within(self.engine(), seconds, what, async {
            let answer = self.accepted(request).await?;
            answer.read(ANSWER_LIMIT).await.map_err(Failure::Other)
        })
        .await
    }

    /// Something that was answered is not what it should be.
    pub(super) fn nonsense(&self, cause: &dyn std::fmt::Display) -> EngineError {
        EngineError::Answer { engine: self.engine(), message: message(&cause.to_string()) }
    }

    /// What it means that the connection failed.
    fn broken(&self, error: &hyper::Error) -> EngineError {
        if error.is_parse() || is_nonsense(error) {
            self.nonsense(&chain(error))
        } else {
            self.connector.unreachable(chain(error))
        }
    }
}

/// Whether what came was not HTTP, as the system's errors beneath say it.
fn is_nonsense(error: &hyper::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return matches!(
                error.kind(),
                std::io::ErrorKind::InvalidData | std::io::ErrorKind::InvalidInput
            );
        }
        cause = error.source();
    }
    false
}

/// An error and its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// `1.41` as numbers.
fn version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Whether a text is made of numbers and dots, as it goes into a path.
fn is_version(text: &str) -> bool {
    (1..=20).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

/// A future that may take so long.
pub(super) async fn within<T, E: From<EngineError>>(
    engine: EngineKind,
    seconds: u64,
    what: &str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    match tokio::time::timeout(Duration::from_secs(seconds), work).await {
        Ok(result) => result,
        Err(_) => Err(EngineError::TimedOut { engine, what: what.to_owned(), seconds }.into()),
    }
}

/// A task that ends with this value.
pub(super) struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An answer, and the connection that it comes over. Dropping it closes that.
pub(super) struct Answer<'a> {
    client: &'a Client,
    response: Response<Incoming>,
    connection: Running,
    /// Whether the connection was asked for.
    upgrade: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ErrorBody {
    message: String,
    cause: String,
}

impl Answer<'_> {
    /// The answer, if it is no refusal.
    pub(super) async fn accept(self) -> Result<Self, Failure> {
        let status = self.response.status();
        if status.is_success() || status.as_u16() == 304 || (self.upgrade && status.as_u16() == 101) {
            return Ok(self);
        }
        if status.is_informational() || status.is_redirection() {
            return Err(self.client.nonsense(&format!("status {}", status.as_u16())).into());
        }
        // What is too long is cut: its beginning is enough.
        let bytes =
            match tokio::time::timeout(Duration::from_secs(QUESTION), self.beginning(ERROR_LIMIT)).await {
                Ok(result) => result?,
                Err(_) => Piece::new(),
            };
        let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| ErrorBody {
            message: String::from_utf8_lossy(&bytes).into_owned(),
            cause: String::new(),
        });
        Err(Failure::Refused(Refusal {
            status: status.as_u16(),
            message: message(&body.message),
            cause: body.cause.chars().take(200).collect(),
        }))
    }

    /// All of it.
    async fn read(mut self, limit: usize) -> Result<Piece> {
        let mut whole = Vec::new();
        while let Some(piece) = self.next().await? {
            if whole.len() + piece.len() > limit {
                return Err(self.client.nonsense(&format!("an answer of more than {} MiB", limit >> 20)));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.into())
    }

    /// Its first bytes.
    async fn beginning(mut self, limit: usize) -> Result<Piece> {
        let mut bytes = Vec::new();
        while bytes.len() < limit {
            let Some(piece) = self.next().await? else { break };
            bytes.extend_from_slice(&piece[..piece.len().min(limit - bytes.len())]);
        }
        Ok(bytes.into())
    }

    /// The next bytes; none at its end.
    pub(super) async fn next(&mut self) -> Result<Option<Piece>> {
        loop {
            match self.response.body_mut().frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(piece) if piece.is_empty() => {}
                    Ok(piece) => return Ok(Some(piece)),
                    // Trailers say nothing.
                    Err(_) => {}
                },
                Some(Err(error)) => return Err(self.client.broken(&error)),
            }
        }
    }

    /// Its bytes, to be read.
    pub(super) fn into_reader(self) -> Bytes {
        let (connection, body) = (self.connection, self.response.into_body());
        Box::new(Reader { body, piece: Piece::new(), _connection: connection })
    }

    /// The connection as a stream of bytes both ways.
    pub(super) async fn into_stream(self) -> Result<(TokioIo<Upgraded>, Running)> {
        if self.response.status().as_u16() != 101 {
            return Err(self.client.nonsense(&"it does not hand over the connection"));
        }
        match hyper::upgrade::on(self.response).await {
            Ok(stream) => Ok((TokioIo::new(stream), self.connection)),
            Err(error) => Err(self.client.broken(&error)),
        }
    }
}

/// Reads the body of an answer.
struct Reader {
    body: Incoming,
    piece: Piece,
    _connection: Running,
}

impl AsyncRead for Reader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        while self.piece.is_empty() {
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => return Poll::Ready(Ok(())),
                Some(Ok(frame)) => self.piece = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Poll::Ready(Err(std::io::Error::other(chain(&error)))),
            }
        }
        let count = self.piece.len().min(buffer.remaining());
        buffer.put_slice(&self.piece.split_to(count));
        Poll::Ready(Ok(()))
    }
}

/// Largest piece of a stream that is sent at once.
const PIECE: usize = 64 << 10;

impl HttpBody for Body {
    type Data = Piece;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, std::io::Error>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Stream(reader) => {
                let mut piece = vec![0; PIECE];
                let mut buffer = ReadBuf::new(&mut piece);
                match std::task::ready!(Pin::new(reader).poll_read(cx, &mut buffer)) {
                    Ok(()) if buffer.filled().is_empty() => Poll::Ready(None),
                    Ok(()) => {
                        let count = buffer.filled().len();
                        piece.truncate(count);
                        Poll::Ready(Some(Ok(Frame::data(piece.into()))))
                    }
                    Err(error) => Poll::Ready(Some(Err(error))),
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Self::Whole(bytes) => hyper::body::SizeHint::with_exact(bytes.len() as u64),
            Self::Stream(_) => hyper::body::SizeHint::default(),
        }
    }
}

/// A word as a part of a path, or as a value of a query: all but letters, digits and `-._~` is written as numbers.
pub(super) fn encoded(word: &str) -> String {
    let mut out = String::with_capacity(word.len());
    for byte in word.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_cannot_leave_their_place_in_a_path() {
        assert_eq!(encoded("a-b_c.d~1"), "a-b_c.d~1");
        assert_eq!(encoded("../x?y=z&ü"), "..%2Fx%3Fy%3Dz%26%C3%BC");
    }

    #[test]
    fn versions_are_numbers() {
        assert_eq!(version("1.41"), Some((1, 41)));
        assert_eq!(version("v1"), None);
        assert!(is_version("4.3.1"));
        assert!(!is_version("4.3/../x"));
        assert_eq!((1, 53).min(NEWEST), NEWEST);
    }

    #[test]
    fn refusals_are_judged_by_status_then_by_cause() {
        let engine = EngineKind::Podman;
        let plain = |status, message: &str, cause: &str| {
            Failure::Refused(Refusal { status, message: message.to_owned(), cause: cause.to_owned() })
                .plain(engine)
        };
        let message = "m".to_owned();
        assert_eq!(plain(409, "m", ""), EngineError::Conflict { message: message.clone() });
        assert_eq!(
            plain(500, "m", "that name is already in use"),
            EngineError::Conflict { message: message.clone() }
        );
        assert_eq!(plain(500, "m", ""), EngineError::Refused { engine, message });
        assert!(matches!(plain(503, "m", ""), EngineError::Unreachable { .. }));
        assert!(matches!(plain(500, "x: no space left on device", ""), EngineError::Full { .. }));
    }
}
