//! Calls to a provider: HTTP/1.1 over TLS, or plain to loopback, with limits on what an answer may take. The token goes
//! into one header and nowhere else.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use moltis_config::value::secret::Secret;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::retry::{self, Again};

/// Largest answer that is kept in memory.
const ANSWER_LIMIT: usize = 16 << 20;
/// Largest message of a WebSocket.
const MESSAGE_LIMIT: usize = 4 << 20;
/// How long a connection may take to be made.
const CONNECTS_WITHIN: Duration = Duration::from_secs(20);
/// Connections that are kept for the next calls.
const KEPT: usize = 8;
/// Longest message of a provider that is passed on, in characters.
const MESSAGE: usize = 300;

/// Why a call did not do what it was to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nothing of it has arrived there.
    Unreachable(String),
    /// It may have arrived and been done.
    Broken(String),
    /// The provider said no.
    Answer {
        /// HTTP status.
        status: u16,
        /// The provider's code, if it gave one.
        code: Option<String>,
        /// Its words, in one short line.
        message: String,
        /// How long it asks to be left alone for.
        retry_after: Option<Duration>,
    },
    /// The answer is not one that it should give.
    Unlike(String),
}

impl Failure {
    /// The status, if there was an answer.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Answer { status, .. } => Some(*status),
            _ => None,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable(why) | Self::Broken(why) | Self::Unlike(why) => f.write_str(why),
            Self::Answer { status, code, message, .. } => {
                write!(f, "HTTP {status}")?;
                if let Some(code) = code {
                    write!(f, " ({code})")?;
                }
                if !message.is_empty() {
                    write!(f, ": {message}")?;
                }
                Ok(())
            }
        }
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Call {
    /// HTTP method.
    pub method: Method,
    /// Path and query below the base.
    pub path: String,
    /// Body and its kind.
    pub body: Bytes,
    /// What the body is; empty: nothing is said of it.
    pub content: &'static str,
    /// Further headers.
    pub headers: Vec<(&'static str, String)>,
    /// Whether it may be made again once it may have been done.
    pub again: Again,
    /// How long the head of the answer may take.
    pub within: Duration,
}

type Connection = SendRequest<Full<Bytes>>;

/// Messages both ways.
pub type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

/// One provider.
pub struct Client {
    secure: bool,
    host: String,
    port: u16,
    authority: String,
    base: String,
    token: Secret,
    headers: Vec<(&'static str, String)>,
    kept: Mutex<Vec<Connection>>,
    tls: OnceCell<Arc<ClientConfig>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("authority", &self.authority).finish_non_exhaustive()
    }
}

impl Client {
    /// For the API below `url`, which the configuration has judged: `https`, or plain `http` to loopback.
    pub fn new(url: &str, token: Secret, headers: Vec<(&'static str, String)>) -> Self {
        let (secure, rest) = match url.strip_prefix("http://") {
            Some(rest) => (false, rest),
            None => (true, url.strip_prefix("https://").unwrap_or(url)),
        };
        let (authority, base) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let bare = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let (host, port) = match bare.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().ok()),
            _ => (bare, None),
        };
        Self {
            secure,
            host: host.trim_matches(['[', ']']).to_owned(),
            port: port.unwrap_or(if secure { 443 } else { 80 }),
            authority: bare.to_owned(),
            base: base.trim_end_matches('/').to_owned(),
            token,
            headers,
            kept: Mutex::default(),
            tls: OnceCell::new(),
        }
    }

    /// The provider's name, for people.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Makes a call, again where that is safe, and hands out a good answer.
    ///
    /// # Errors
    /// The failure of the last try.
    pub async fn send(&self, call: &Call) -> Result<Response<Incoming>, Failure> {
        let mut tries = 0;
        loop {
            tries += 1;
            let failure = match self.once(call).await {
                Ok(answer) if answer.status().is_success() => return Ok(answer),
                Ok(answer) => self.refusal(answer).await,
                Err(failure) => failure,
            };
            let jitter = moltis_agentless::random_bytes::<1>().map_or(0, |[byte]| byte);
            match retry::pause(&failure, call.again, tries, jitter) {
                Some(pause) => {
                    tracing::debug!(method = %call.method, %failure, tries, "a provider is asked again");
                    tokio::time::sleep(pause).await;
                }
                None => return Err(failure),
            }
        }
    }

    /// The same with an answer that is JSON.
    ///
    /// # Errors
    /// Those of [`send`](Self::send), and `Unlike` for one that is not.
    pub async fn json<T: serde::de::DeserializeOwned>(&self, call: &Call) -> Result<T, Failure> {
        let answer = self.send(call).await?;
        let body = tokio::time::timeout(call.within, whole(answer.into_body()))
            .await
            .map_err(|_| Failure::Broken("the answer did not arrive in time".to_owned()))??;
        serde_json::from_slice(&body).map_err(|error| {
            // Its own words could quote the answer.
            Failure::Unlike(format!(
                "the answer is not what it should be (line {}, column {})",
                error.line(),
                error.column()
            ))
        })
    }

    /// Turns a connection into one of messages. Made once.
    ///
    /// # Errors
    /// The failure; an answer that is none of a WebSocket as `Answer`, whatever its status.
    pub async fn socket(&self, call: &Call) -> Result<Socket, Failure> {
        let key = generate_key();
        let mut asked = call.clone();
        asked.headers.extend([
            ("connection", "Upgrade".to_owned()),
            ("upgrade", "websocket".to_owned()),
            ("sec-websocket-version", "13".to_owned()),
            ("sec-websocket-key", key.clone()),
        ]);
        let answer = self.once(&asked).await?;
        if answer.status().as_u16() != 101 {
            return Err(self.refusal(answer).await);
        }
        let accepted = answer.headers().get("sec-websocket-accept").map(HeaderValue::as_bytes);
        if accepted != Some(derive_accept_key(key.as_bytes()).as_bytes()) {
            return Err(Failure::Unlike("the answer to a WebSocket is not one".to_owned()));
        }
        let upgraded = hyper::upgrade::on(answer).await;
        let upgraded = upgraded.map_err(|error| Failure::Broken(error.to_string()))?;
        let limits = WebSocketConfig::default().max_message_size(Some(MESSAGE_LIMIT));
        Ok(WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, Some(limits)).await)
    }

    async fn once(&self, call: &Call) -> Result<Response<Incoming>, Failure> {
        let mut request = self.request(call)?;
        loop {
            let kept = self.idle();
            let is_kept = kept.is_some();
            let mut connection = match kept {
                Some(connection) => connection,
                None => tokio::time::timeout(CONNECTS_WITHIN, self.connect())
                    .await
                    .map_err(|_| Failure::Unreachable(format!("{} does not answer", self.authority)))??,
            };
            if connection.is_closed() || connection.ready().await.is_err() {
                if is_kept {
                    continue;
                }
                return Err(Failure::Unreachable(format!("{} closed the connection", self.authority)));
            }
            let sent = tokio::time::timeout(call.within, connection.try_send_request(request)).await;
            match sent {
                Err(_) => return Err(Failure::Broken(format!("{} did not answer in time", self.authority))),
                Ok(Ok(answer)) => {
                    let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
                    kept.retain(|connection| !connection.is_closed());
                    if kept.len() < KEPT {
                        kept.push(connection);
                    }
                    return Ok(answer);
                }
                Ok(Err(mut error)) => match error.take_message() {
                    // It was not sent: the kept connection had ended meanwhile.
                    Some(unsent) if is_kept => request = unsent,
                    Some(_) => return Err(Failure::Unreachable(error.error().to_string())),
                    None => return Err(Failure::Broken(error.error().to_string())),
                },
            }
        }
    }

    /// A kept connection on which nothing is under way: one whose answer still comes is left where it is.
    fn idle(&self) -> Option<Connection> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|connection| !connection.is_closed());
        let at = kept.iter().position(SendRequest::is_ready)?;
        Some(kept.swap_remove(at))
    }

    fn request(&self, call: &Call) -> Result<Request<Full<Bytes>>, Failure> {
        let unlike = |what: &str| Failure::Unlike(format!("{what} cannot be sent"));
        let mut secret = HeaderValue::from_str(&format!("Bearer {}", self.token.expose()))
            .map_err(|_| unlike("the token, which holds characters that no token has,"))?;
        secret.set_sensitive(true);
        let mut builder = Request::builder()
            .method(call.method.clone())
            .uri(format!("{}{}", self.base, call.path))
            .header(HOST, &self.authority)
            .header(AUTHORIZATION, secret)
            .header(USER_AGENT, concat!("moltis/", env!("CARGO_PKG_VERSION")))
            .header("accept", "*/*");
        if !call.content.is_empty() {
            builder = builder.header("content-type", call.content);
        }
        for (name, value) in self.headers.iter().chain(&call.headers) {
            builder = builder.header(*name, value);
        }
        builder.body(Full::new(call.body.clone())).map_err(|_| unlike("the request"))
    }

    async fn connect(&self) -> Result<Connection, Failure> {
        let unreachable = |why: String| Failure::Unreachable(format!("{}: {why}", self.authority));
        let stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(|error| unreachable(error.to_string()))?;
        let _ = stream.set_nodelay(true);
        if !self.secure {
            return self.shake(TokioIo::new(stream)).await;
        }
        let tls = self.tls.get_or_try_init(tls).await?;
        let name = ServerName::try_from(self.host.clone())
            .map_err(|_| unreachable("its name is no name of a server".to_owned()))?;
        let stream = TlsConnector::from(Arc::clone(tls))
            .connect(name, stream)
            .await
            .map_err(|error| unreachable(error.to_string()))?;
        self.shake(TokioIo::new(stream)).await
    }

    async fn shake<S>(&self, stream: S) -> Result<Connection, Failure>
    where
        S: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
    {
        let (sender, connection) = handshake(stream)
            .await
            .map_err(|error| Failure::Unreachable(format!("{}: {error}", self.authority)))?;
        tokio::spawn(async move {
            let _ = connection.with_upgrades().await;
        });
        Ok(sender)
    }

    /// What a bad answer says, whatever it is made of.
    async fn refusal(&self, answer: Response<Incoming>) -> Failure {
        let status = answer.status().as_u16();
        let retry_after = answer
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.trim().parse().ok())
            .map(Duration::from_secs);
        let body = tokio::time::timeout(Duration::from_secs(20), whole(answer.into_body())).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        let (code, message) = words(&body);
        Failure::Answer {
            status,
            code: code.map(|code| self.scrub(&code)),
            message: self.scrub(&message),
            retry_after,
        }
    }

    /// Words of a provider in one short line, without the token, whatever it says.
    pub fn scrub(&self, text: &str) -> String {
        let text = text.replace(self.token.expose(), "…");
        text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(MESSAGE).collect()
    }
}

/// Code and message of an error, in the shapes that providers use.
fn words(body: &[u8]) -> (Option<String>, String) {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(body) else {
        let text = String::from_utf8_lossy(body);
        return (None, if text.trim_start().starts_with('<') { String::new() } else { text.into_owned() });
    };
    let text = |value: &serde_json::Value, names: &[&str]| {
        names.iter().find_map(|name| value.get(name)?.as_str().map(str::to_owned))
    };
    let inner = value.get("error").filter(|inner| inner.is_object()).unwrap_or(&value);
    let code = text(inner, &["code", "error_code"]);
    (code, text(inner, &["message", "error"]).unwrap_or_default())
}

/// All of an answer.
async fn whole(mut body: Incoming) -> Result<Vec<u8>, Failure> {
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::Broken(error.to_string()))?;
        if let Some(data) = frame.data_ref() {
            if all.len() + data.len() > ANSWER_LIMIT {
                return Err(Failure::Unlike("the answer is longer than any should be".to_owned()));
            }
            all.extend_from_slice(data);
        }
    }
    Ok(all)
}

/// Those whom this machine trusts.
async fn tls() -> Result<Arc<ClientConfig>, Failure> {
    let unlike = |why: String| Failure::Unreachable(format!("TLS cannot be set up: {why}"));
    let loaded = moltis_sandbox::blocking::long(rustls_native_certs::load_native_certs)
        .await
        .map_err(|error| unlike(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(loaded.certs);
    if roots.is_empty() {
        return Err(unlike("this machine has no root certificates; install `ca-certificates`".to_owned()));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| unlike(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// A part of a path or query, with everything escaped that could mean something.
pub fn escaped(text: &str) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(url: &str) -> Client {
        Client::new(url, Secret::new("s3cret"), Vec::new())
    }

    #[test]
    fn an_address_is_taken_apart() {
        let parts = |url: &str| {
            let client = client(url);
            (client.secure, client.host, client.port, client.base)
        };
        assert_eq!(parts("https://vercel.com/api"), (true, "vercel.com".into(), 443, "/api".into()));
        assert_eq!(parts("http://127.0.0.1:9/api/"), (false, "127.0.0.1".into(), 9, "/api".into()));
        assert_eq!(parts("http://[::1]:80"), (false, "::1".into(), 80, String::new()));
    }

    #[test]
    fn a_message_never_holds_the_token() {
        assert_eq!(client("https://x").scrub("bad token s3cret\n"), "bad token …");
        assert!(!format!("{:?}", client("https://x")).contains("s3cret"));
    }

    #[test]
    fn errors_are_read_in_every_shape() {
        let read = |body: &str| words(body.as_bytes());
        assert_eq!(read(r#"{"error":{"code":"c","message":"m"}}"#), (Some("c".into()), "m".into()));
        assert_eq!(read(r#"{"error":"gone"}"#), (None, "gone".into()));
        assert_eq!(read(r#"{"statusCode":404,"message":"m","error":"Not Found"}"#), (None, "m".into()));
        assert_eq!(read("<html>"), (None, String::new()));
        assert_eq!(read(""), (None, String::new()));
    }
}
