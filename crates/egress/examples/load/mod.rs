//! What callers ask of a proxy, and the servers that they ask for.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What may go wrong in a bench.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Callers at the same time.
const CALLERS: usize = 16;

/// Durations of exchanges, and how long all of them took.
#[derive(Clone, Default)]
pub struct Sample {
    pub micros: Vec<u32>,
    pub time: Duration,
}

impl Sample {
    pub fn rate(&self) -> f64 {
        self.micros.len() as f64 / self.time.as_secs_f64()
    }
}

/// Servers to reach.
pub struct Origins {
    pub echo: u16,
    pub page: u16,
    pub source: u16,
}

/// Takes connections and serves each.
async fn origin<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Outcome<u16>
where
    F: Future<Output = Outcome<()>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            tokio::spawn(serve(stream));
        }
    });
    Ok(port)
}

pub async fn origins(size: usize) -> Outcome<Origins> {
    let echo = origin(|mut stream| async move {
        let mut buffer = [0; 4096];
        loop {
            let length = stream.read(&mut buffer).await?;
            if length == 0 {
                return Ok(());
            }
            stream.write_all(&buffer[..length]).await?;
        }
    })
    .await?;
    let page = origin(|mut stream| async move {
        let mut answer =
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1024\r\n\r\n".to_vec();
        answer.extend([b'x'; 1024]);
        let (mut buffer, mut have) = ([0; 4096], 0);
        loop {
            let length = stream.read(&mut buffer[have..]).await?;
            if length == 0 {
                return Ok(());
            }
            have += length;
            if buffer[..have].ends_with(b"\r\n\r\n") {
                have = 0;
                stream.write_all(&answer).await?;
            }
        }
    })
    .await?;
    let source = origin(move |mut stream| async move {
        let piece = vec![7; 256 * 1024];
        stream.read_u8().await?;
        let mut left = size;
        while left > 0 {
            let length = left.min(piece.len());
            stream.write_all(&piece[..length]).await?;
            left -= length;
        }
        Ok(())
    })
    .await?;
    Ok(Origins { echo, page, source })
}

pub async fn tunnel(proxy: u16, port: u16) -> Outcome<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", proxy)).await?;
    stream.set_nodelay(true)?;
    let request = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    head(&mut stream).await?;
    Ok(stream)
}

/// Reads a head that nothing follows yet; says whether the connection is kept.
async fn head(stream: &mut TcpStream) -> Outcome<()> {
    let (mut buffer, mut have) = ([0; 2048], 0);
    while !buffer[..have].ends_with(b"\r\n\r\n") {
        let length = stream.read(&mut buffer[have..]).await?;
        if length == 0 || have + length == buffer.len() {
            return Err("no answer".into());
        }
        have += length;
    }
    if buffer[..have].starts_with(b"HTTP/1.1 200") || buffer[..have].starts_with(b"HTTP/1.0 200") {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&buffer[..have]).into_owned().into())
}

/// Callers that each do the same over and over.
async fn callers<F>(time: Duration, work: impl Fn() -> F) -> Outcome<Sample>
where
    F: Future<Output = Outcome<Vec<u32>>> + Send + 'static,
{
    let started = Instant::now();
    let tasks: Vec<_> = (0..CALLERS).map(|_| tokio::spawn(work())).collect();
    let mut micros = Vec::new();
    for task in tasks {
        micros.extend(tokio::time::timeout(time * 10, task).await???);
    }
    Ok(Sample { micros, time: started.elapsed() })
}

pub async fn connects(proxy: u16, port: u16, time: Duration) -> Outcome<Sample> {
    callers(time, || async move {
        let (end, mut micros) = (Instant::now() + time, Vec::new());
        while Instant::now() < end {
            let started = Instant::now();
            let mut stream = tunnel(proxy, port).await?;
            let mut buffer = [1; 64];
            stream.write_all(&buffer).await?;
            stream.read_exact(&mut buffer).await?;
            micros.push(started.elapsed().as_micros() as u32);
        }
        Ok(micros)
    })
    .await
}

pub async fn gets(proxy: u16, port: u16, time: Duration) -> Outcome<Sample> {
    callers(time, || async move {
        let (end, mut micros) = (Instant::now() + time, Vec::new());
        let request = format!("GET http://127.0.0.1:{port}/page HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
        let mut kept: Option<TcpStream> = None;
        let mut answer = Vec::new();
        let mut started = Instant::now();
        while Instant::now() < end {
            let again = kept.is_some();
            let mut stream = match kept.take() {
                Some(stream) => stream,
                None => {
                    let stream = TcpStream::connect(("127.0.0.1", proxy)).await?;
                    stream.set_nodelay(true)?;
                    stream
                }
            };
            answer.clear();
            let sent = stream.write_all(request.as_bytes()).await;
            let body = loop {
                if let Some(at) = answer.windows(4).position(|w| w == b"\r\n\r\n") {
                    break Some(at + 4);
                }
                match stream.read_buf(&mut answer).await {
                    Ok(length) if length > 0 && sent.is_ok() => {}
                    // It ended what it seemed to keep.
                    _ if again => break None,
                    _ => return Err("no answer".into()),
                }
            };
            let Some(body) = body else { continue };
            while answer.len() < body + 1024 {
                if stream.read_buf(&mut answer).await? == 0 {
                    return Err("half an answer".into());
                }
            }
            micros.push(started.elapsed().as_micros() as u32);
            let head = String::from_utf8_lossy(&answer[..body]).to_ascii_lowercase();
            if !head.starts_with("http/1.1 200") && !head.starts_with("http/1.0 200") {
                return Err(head.into());
            }
            if head.starts_with("http/1.1") && !head.contains("connection: close") {
                kept = Some(stream);
            }
            started = Instant::now();
        }
        Ok(micros)
    })
    .await
}

pub async fn throughput(proxy: u16, port: u16, size: usize) -> Outcome<f64> {
    let mut stream = tunnel(proxy, port).await?;
    let started = Instant::now();
    stream.write_all(&[1]).await?;
    let (mut buffer, mut have) = (vec![0; 256 * 1024], 0);
    while have < size {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return Err("it ended early".into());
        }
        have += length;
    }
    Ok(size as f64 / f64::from(1 << 20) / started.elapsed().as_secs_f64())
}
