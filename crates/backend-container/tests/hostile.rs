//! An engine that lies: garbage, endless answers, streams that break. Nothing hangs, and memory stays bounded.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use moltis_backend_container::engine::{
    BuildSpec, ContainerSpec, Engine, EngineError, EngineKind, ExecSpec, connect,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use super::support::{exec, with};

/// What is answered to a request: bytes, then what becomes of the connection.
#[derive(Clone)]
enum Reply {
    /// These bytes, and then it is closed.
    Bytes(Vec<u8>),
    /// These bytes, and then these again and again.
    Endless(Vec<u8>, Vec<u8>),
    /// These bytes, and then nothing.
    Silent(Vec<u8>),
}

/// A server that answers every request but that for the version in one way.
struct Liar {
    _folder: tempfile::TempDir,
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Liar {
    fn new(version: &'static str, reply: Reply) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("liar.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, version, reply.clone()));
            }
        });
        Self { _folder: folder, path, task }
    }

    async fn engine(&self, kind: EngineKind) -> Arc<dyn Engine> {
        let host = format!("unix://{}", self.path.display());
        connect(kind, &with(&[("DOCKER_HOST", &host), ("CONTAINER_HOST", &host)])).await.unwrap()
    }
}

async fn serve(stream: UnixStream, version: &str, reply: Reply) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut first = String::new();
    stream.read_line(&mut first).await?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? <= 2 {
            break;
        }
        if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = text.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    if first.contains("/_ping") {
        let answer = format!("HTTP/1.1 200 OK\r\n{version}\r\nContent-Length: 2\r\n\r\nOK");
        return stream.write_all(answer.as_bytes()).await;
    }
    match reply {
        Reply::Bytes(bytes) => stream.write_all(&bytes).await,
        Reply::Silent(bytes) => {
            stream.write_all(&bytes).await?;
            std::future::pending().await
        }
        Reply::Endless(bytes, again) => {
            stream.write_all(&bytes).await?;
            loop {
                stream.write_all(&again).await?;
            }
        }
    }
}

fn head(text: &str) -> Vec<u8> {
    text.replace('\n', "\r\n").into_bytes()
}

/// Bytes of memory that this process has.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// What every call says to a liar; each within a time that is far below that of a human.
async fn everything(engine: &dyn Engine) -> Vec<(&'static str, Result<(), EngineError>)> {
    let spec = ContainerSpec { argv: vec!["/x".to_owned()], ..ContainerSpec::default() };
    let build = BuildSpec {
        dockerfile: "FROM x".to_owned(),
        tag: "localhost/x:1".to_owned(),
        labels: Default::default(),
    };
    let run: ExecSpec = exec(&["/x"]);
    let mut all = Vec::new();
    macro_rules! call {
        ($name:literal, $call:expr) => {
            let result = tokio::time::timeout(Duration::from_secs(30), $call).await;
            all.push(($name, result.unwrap_or_else(|_| panic!("{} hangs", $name)).map(drop)));
        };
    }
    call!("info", engine.info());
    call!("create", engine.create(&spec));
    call!("start", engine.start("x"));
    call!("inspect", engine.inspect("x"));
    call!("containers", engine.containers(&[("a", "b")]));
    call!("exec", async {
        let mut run = engine.exec("x", &run).await?;
        while run.output.next().await?.is_some() {}
        Ok::<(), EngineError>(())
    });
    call!("exec_result", engine.exec_result("x"));
    call!("logs", engine.logs("x", 1000));
    call!("wait", engine.wait("x"));
    call!("image", engine.image("x"));
    call!("images", engine.images(&[]));
    call!("build", engine.build(&build, &()));
    call!("pull", engine.pull("localhost/x", &()));
    call!("load", engine.load(Box::new(std::io::Cursor::new(vec![0; 100_000]))));
    all
}

const DOCKER: &str = "Api-Version: 1.41";
const PODMAN: &str = "Api-Version: 1.41\r\nLibpod-API-Version: 4.3.1";

fn both() -> [(EngineKind, &'static str); 2] {
    [(EngineKind::Docker, DOCKER), (EngineKind::Podman, PODMAN)]
}

#[tokio::test]
async fn garbage_is_no_answer() {
    let garbage: Vec<u8> =
        (0..50_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let json = "HTTP/1.1 200 OK\nContent-Type: application/json\nContent-Length: 5\n\n[{]}x";
    let chunks = "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\nzz\nnope\n";
    for (kind, version) in both() {
        for reply in [garbage.clone(), head(json), head(chunks), Vec::new(), b"\0".repeat(1_000_000)] {
            let liar = Liar::new(version, Reply::Bytes(reply));
            let engine = liar.engine(kind).await;
            for (name, result) in everything(&*engine).await {
                // That something was started is said by the status alone.
                if name == "start" && result.is_ok() {
                    continue;
                }
                let error = result.expect_err(name);
                assert!(
                    matches!(error, EngineError::Answer { .. } | EngineError::Unreachable { .. }),
                    "{name}: {error:?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn refusals_are_read_and_cut() {
    let answer = |status: u16, body: &str| {
        head(&format!("HTTP/1.1 {status} X\nContent-Length: {}\n\n{body}", body.len()))
    };
    for (kind, version) in both() {
        let long = format!("{{\"message\":\"\\u001b[31m{}\"}}", "x".repeat(60_000));
        for reply in
            [answer(500, ""), answer(500, "<html>"), answer(400, "{\"message\":5}"), answer(500, &long)]
        {
            let liar = Liar::new(version, Reply::Bytes(reply));
            let engine = liar.engine(kind).await;
            for (name, result) in everything(&*engine).await {
                let text = result.expect_err(name).to_string();
                assert!(text.len() < 3_000 && !text.contains('\u{1b}'), "{name}: {text}");
            }
        }
        let liar = Liar::new(
            version,
            Reply::Bytes(answer(500, "{\"message\":\"write x: no space left on device\"}")),
        );
        let full = liar.engine(kind).await.create(&ContainerSpec::default()).await;
        assert!(matches!(full, Err(EngineError::Full { .. })), "{full:?}");
        let liar = Liar::new(version, Reply::Bytes(answer(503, "{\"message\":\"shutting down\"}")));
        let gone = liar.engine(kind).await.start("x").await;
        assert!(matches!(gone, Err(EngineError::Unreachable { .. })), "{gone:?}");
    }
}

#[tokio::test]
async fn endless_answers_take_little_memory() {
    let start = "HTTP/1.1 200 OK\nContent-Type: application/json\n\n";
    let upgraded = "HTTP/1.1 101 UPGRADED\nUpgrade: tcp\nConnection: Upgrade\n\n";
    let error = "HTTP/1.1 500 X\n\n";
    let replies = [
        // One object without an end, a line without one, headers without one, an error without one.
        Reply::Endless([&head(start)[..], b"{\"Id\":\""].concat(), vec![b'x'; 65_536]),
        Reply::Endless([&head(start)[..], b"["].concat(), b"{\"Id\":\"x\"},".repeat(1_000)),
        Reply::Endless(head("HTTP/1.1 200 OK\n"), b"A: b\r\n".repeat(1_000)),
        Reply::Endless(head(error), vec![b'x'; 65_536]),
        Reply::Endless(head(upgraded), vec![b'x'; 65_536]),
    ];
    let before = resident();
    for (kind, version) in both() {
        for reply in &replies {
            let liar = Liar::new(version, reply.clone());
            let engine = liar.engine(kind).await;
            for (name, result) in everything(&*engine).await {
                assert!(result.is_err(), "{name}");
            }
        }
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 150 << 20, "{} MiB more", grown >> 20);
}

#[tokio::test]
async fn streams_that_break_are_no_ends() {
    let exec_then = |stream: &[u8]| {
        // The same bytes answer the making of a program and its start: an id in a body that is never read, and frames.
        [&head("HTTP/1.1 101 UPGRADED\nUpgrade: tcp\nConnection: Upgrade\n\n")[..], stream].concat()
    };
    // A frame of four gigabytes of which little comes, half a head, a stream that there is not.
    for stream in [&b"\x01\0\0\0\xff\xff\xff\xffabc"[..], b"\x01\0\0", b"\x09\0\0\0\0\0\0\x01x"] {
        let liar = Started::new(exec_then(stream));
        let mut run = liar.engine().await.exec("x", &exec(&["/x"])).await.unwrap();
        let mut last = Ok(None);
        for _ in 0..3 {
            last = tokio::time::timeout(Duration::from_secs(10), run.output.next()).await.unwrap();
            if last.is_err() {
                break;
            }
        }
        assert!(
            matches!(last, Err(EngineError::Unreachable { .. } | EngineError::Answer { .. })),
            "{stream:?}: {last:?}"
        );
    }
    // A build whose answer ends before it says what it built.
    let body = "{\"stream\":\"Successfully built 123456789012\\n\"}\n";
    let answer = format!("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n{:x}\n{body}\n0\n\n", body.len());
    let liar = Liar::new(
        DOCKER,
        Reply::Bytes(answer.replace('\n', "\r\n").replace("}\r\n\r\n0", "}\n\r\n0").into_bytes()),
    );
    let spec = BuildSpec {
        dockerfile: "FROM x".to_owned(),
        tag: "localhost/x:1".to_owned(),
        labels: Default::default(),
    };
    let built = liar.engine(EngineKind::Docker).await.build(&spec, &()).await;
    assert!(built.is_err(), "{built:?}");
}

/// A server that makes a program like an engine, and starts it like a liar.
struct Started(Liar);

impl Started {
    fn new(start: Vec<u8>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("liar.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let start = start.clone();
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    let mut first = String::new();
                    let _ = stream.read_line(&mut first).await;
                    let made = head("HTTP/1.1 201 OK\nContent-Length: 10\n\n{\"Id\":\"1\"}");
                    let ping = head("HTTP/1.1 200 OK\nApi-Version: 1.41\nContent-Length: 2\n\nOK");
                    let answer = if first.contains("/_ping") {
                        ping
                    } else if first.contains("/start") {
                        start
                    } else {
                        made
                    };
                    let _ = stream.write_all(&answer).await;
                    // What is left of the request is read, so that closing does not cut the answer off.
                    let mut rest = vec![0; 4096];
                    let _ = tokio::time::timeout(Duration::from_millis(300), stream.read(&mut rest)).await;
                });
            }
        });
        Self(Liar { _folder: folder, path, task })
    }

    async fn engine(&self) -> Arc<dyn Engine> {
        self.0.engine(EngineKind::Docker).await
    }
}

#[tokio::test]
async fn silence_has_a_limit() {
    let liar = Liar::new(DOCKER, Reply::Silent(head("HTTP/1.1 200 OK\nContent-Length: 100\n\n{")));
    let engine = liar.engine(EngineKind::Docker).await;
    let since = Instant::now();
    let error = engine.inspect("x").await;
    assert!(matches!(error, Err(EngineError::TimedOut { .. })), "{error:?}");
    assert!(since.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn an_engine_of_another_kind_is_not_taken() {
    let liar = Liar::new(DOCKER, Reply::Bytes(Vec::new()));
    let error = liar.engine(EngineKind::Podman).await.inspect("x").await;
    assert!(matches!(error, Err(EngineError::Answer { .. })), "{error:?}");
    for version in ["X: y", "Api-Version: one", "Api-Version: 1.41/../x"] {
        let liar = Liar::new(version, Reply::Bytes(Vec::new()));
        let error = liar.engine(EngineKind::Docker).await.inspect("x").await;
        assert!(matches!(error, Err(EngineError::Answer { .. })), "{error:?}");
    }
}
