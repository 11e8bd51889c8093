//! A server of HTTP/1.1 on loopback that takes nothing it does not know well.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};

/// Largest body that is taken.
const MAX_BODY: usize = 64 << 20;

/// A request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Its method.
    pub method: String,
    /// Its path, as it was sent.
    pub path: String,
    /// Its query, in order, without escapes.
    pub query: Vec<(String, String)>,
    /// Its headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Its body.
    pub body: Vec<u8>,
}

/// What comes of it.
pub enum Reply {
    /// An answer.
    Whole {
        /// Status.
        status: u16,
        /// Kind of the body.
        kind: &'static str,
        /// Further headers.
        headers: Vec<(&'static str, String)>,
        /// The body.
        body: Vec<u8>,
    },
    /// Lines that come over time; the connection is cut if an error comes.
    Stream(mpsc::Receiver<Result<Bytes, ()>>),
    /// A WebSocket whose messages come over time; the connection is cut if an error comes.
    Socket {
        /// The caller's key.
        key: String,
        /// Messages.
        messages: mpsc::Receiver<Result<Bytes, ()>>,
    },
    /// No answer: the connection is closed.
    Cut,
}

type Answering = Pin<Box<dyn Future<Output = Reply> + Send>>;
/// What answers.
pub type Handler = Arc<dyn Fn(Asked) -> Answering + Send + Sync>;

/// A server. It ends when this is dropped.
pub struct Server {
    /// Where it is.
    pub url: String,
    task: AbortHandle,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Starts one.
    ///
    /// # Panics
    /// When there is no port for it.
    pub async fn start(handler: Handler) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port on loopback");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                connections.spawn(serve(stream, Arc::clone(&handler)));
            }
        });
        Self { url, task: task.abort_handle() }
    }
}

async fn serve(stream: TcpStream, handler: Handler) {
    let _ = stream.set_nodelay(true);
    let mut stream = BufStream::new(stream);
    while let Some(asked) = read(&mut stream).await {
        let done = match handler(asked).await {
            Reply::Cut => return,
            Reply::Socket { key, messages } => return socket(stream, &key, messages).await,
            Reply::Whole { status, kind, headers, body } => {
                let mut head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n",
                    body.len()
                );
                for (name, value) in headers {
                    head.push_str(&format!("{name}: {value}\r\n"));
                }
                head.push_str("\r\n");
                write(&mut stream, &[head.as_bytes(), &body]).await
            }
            Reply::Stream(mut lines) => {
                let head = "HTTP/1.1 200 X\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
                let mut done = write(&mut stream, &[head.as_bytes()]).await;
                while done.is_ok() {
                    match lines.recv().await {
                        Some(Ok(line)) => {
                            let size = format!("{:x}\r\n", line.len());
                            done = write(&mut stream, &[size.as_bytes(), &line, b"\r\n"]).await;
                        }
                        Some(Err(())) => return,
                        None => break,
                    }
                }
                done.and(write(&mut stream, &[b"0\r\n\r\n"]).await)
            }
        };
        if done.is_err() {
            return;
        }
    }
}

/// Sends messages until there are no more, and then says so.
async fn socket(
    mut stream: BufStream<TcpStream>,
    key: &str,
    mut messages: mpsc::Receiver<Result<Bytes, ()>>,
) {
    let accept = derive_accept_key(key.as_bytes());
    let head = format!(
        "HTTP/1.1 101 X\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: {accept}\r\n\r\n"
    );
    if write(&mut stream, &[head.as_bytes()]).await.is_err() {
        return;
    }
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
    loop {
        tokio::select! {
            message = messages.recv() => match message {
                Some(Ok(bytes)) => if socket.send(Message::Binary(bytes)).await.is_err() {
                    return;
                },
                Some(Err(())) => return,
                None => break,
            },
            // Nothing is said to it; it is over when the caller goes.
            said = socket.next() => match said {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => {}
            },
        }
    }
    let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
    let _ = socket.close(Some(frame)).await;
    while let Some(Ok(_)) = socket.next().await {}
}

async fn write(stream: &mut BufStream<TcpStream>, parts: &[&[u8]]) -> std::io::Result<()> {
    for part in parts {
        stream.write_all(part).await?;
    }
    stream.flush().await
}

async fn read(stream: &mut BufStream<TcpStream>) -> Option<Asked> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
        if head.len() > 64 << 10 {
            return None;
        }
    }
    let head = String::from_utf8(head).ok()?;
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, target, version) = (first.next()?, first.next()?, first.next()?);
    if version != "HTTP/1.1" {
        return None;
    }
    let mut headers = BTreeMap::new();
    for line in lines.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':')?;
        // One of a kind.
        if headers.insert(name.to_ascii_lowercase(), value.trim().to_owned()).is_some() {
            return None;
        }
    }
    if let Some(coding) = headers.get("transfer-encoding") {
        if coding != "chunked" || headers.contains_key("content-length") {
            return None;
        }
        let body = chunks(stream).await?;
        return asked(method, target, headers, body);
    }
    let length: usize = headers.get("content-length").map_or(Some(0), |length| length.parse().ok())?;
    if length > MAX_BODY {
        return None;
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    asked(method, target, headers, body)
}

/// A body of which nobody knew how long it would be.
async fn chunks(stream: &mut BufStream<TcpStream>) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        while !line.ends_with("\r\n") {
            line.push(char::from(stream.read_u8().await.ok()?));
            if line.len() > 16 {
                return None;
            }
        }
        let size = usize::from_str_radix(line.trim_end(), 16).ok()?;
        if body.len() + size > MAX_BODY {
            return None;
        }
        let from = body.len();
        body.resize(from + size, 0);
        stream.read_exact(&mut body[from..]).await.ok()?;
        let mut end = [0; 2];
        stream.read_exact(&mut end).await.ok()?;
        if &end != b"\r\n" {
            return None;
        }
        if size == 0 {
            return Some(body);
        }
    }
}

fn asked(method: &str, target: &str, headers: BTreeMap<String, String>, body: Vec<u8>) -> Option<Asked> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let query = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').map(|(name, value)| (plain(name), plain(value))))
        .collect::<Option<Vec<_>>>()?;
    Some(Asked { method: method.to_owned(), path: path.to_owned(), query, headers, body })
}

/// Text without escapes.
fn plain(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = (*first == b'%').then(|| after.get(..2)).flatten();
        let code = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
