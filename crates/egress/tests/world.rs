//! A proxy, a resolver that says what a test wants, servers, and a program inside.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use moltis_egress::{
    Approvals, Asked, Audit, Entry, OnUnknown, Origin, Policy, Proxy, ProxyLimits, ProxySettings, Resolve,
    Rule, SessionProxy, Upstream, Verdict,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub const SOON: Duration = Duration::from_secs(20);

pub async fn soon<T>(work: impl Future<Output = T>) -> T {
    timeout(SOON, work).await.expect("in time")
}

#[derive(Default)]
pub struct Log(Mutex<Vec<Entry>>);

impl Log {
    /// The reasons of all entries.
    pub fn reasons(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|entry| entry.reason.clone().unwrap_or_default()).collect()
    }
}

impl Audit for Log {
    fn record(&self, entry: Entry) {
        self.0.lock().unwrap().push(entry);
    }
}

/// Names, and what they resolve to at each lookup; the last stays.
#[derive(Default)]
pub struct Names {
    known: Mutex<HashMap<String, VecDeque<Vec<IpAddr>>>>,
    pub asked: Mutex<Vec<String>>,
}

impl Names {
    pub fn put(&self, name: &str, lookups: &[&[&str]]) {
        let parsed = lookups.iter().map(|l| l.iter().map(|a| a.parse().unwrap()).collect()).collect();
        self.known.lock().unwrap().insert(name.into(), parsed);
    }
}

#[async_trait]
impl Resolve for Names {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.asked.lock().unwrap().push(name.into());
        let mut known = self.known.lock().unwrap();
        let lookups = known.get_mut(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(if lookups.len() > 1 { lookups.pop_front().unwrap() } else { lookups[0].clone() })
    }
}

/// Hands every question to the test.
pub struct Person(pub mpsc::UnboundedSender<(Asked, oneshot::Sender<Verdict>)>);

#[async_trait]
impl Approvals for Person {
    async fn ask(&self, asked: &Asked) -> Verdict {
        let (answer, said) = oneshot::channel();
        self.0.send((asked.clone(), answer)).unwrap();
        said.await.unwrap_or(Verdict::TimedOut)
    }
}

pub struct World {
    pub proxy: Proxy,
    pub session: SessionProxy,
    pub policy: watch::Sender<Policy>,
    pub log: Arc<Log>,
    pub names: Arc<Names>,
    pub questions: mpsc::UnboundedReceiver<(Asked, oneshot::Sender<Verdict>)>,
}

pub fn policy(trusted: &[&str], denied: &[&str]) -> Policy {
    let rules = |patterns: &[&str]| {
        patterns.iter().map(|p| Rule { pattern: p.parse().unwrap(), origin: Origin::Config }).collect()
    };
    Policy { trusted: rules(trusted), denied: rules(denied), on_unknown: OnUnknown::Deny }
}

pub fn asking(trusted: &[&str], denied: &[&str]) -> Policy {
    Policy { on_unknown: OnUnknown::Ask(Duration::from_secs(10)), ..policy(trusted, denied) }
}

impl World {
    pub fn new(policy: Policy) -> Self {
        Self::with(policy, ProxyLimits::default(), None)
    }

    pub fn with(policy: Policy, limits: ProxyLimits, upstream: Option<Upstream>) -> Self {
        let (log, names) = (Arc::<Log>::default(), Arc::<Names>::default());
        names.put("site.test", &[&["127.0.0.1"]]);
        names.put("other.test", &[&["127.0.0.1"]]);
        let proxy = Proxy::new(ProxySettings {
            limits,
            upstream,
            resolver: names.clone(),
            own: Arc::new(|address| address.port() == 9),
            audit: log.clone(),
        });
        let (sender, receiver) = watch::channel(policy);
        let (person, questions) = mpsc::unbounded_channel();
        let session = proxy.session("s", receiver, Arc::new(Person(person)));
        Self { proxy, session, policy: sender, log, names, questions }
    }

    /// A program's connection to the proxy.
    pub fn program(&self) -> UnixStream {
        let (program, proxy) = UnixStream::pair().unwrap();
        tokio::spawn(self.session.serve(Box::new(proxy)));
        program
    }

    /// Sends, ends sending, reads all.
    pub async fn said(&self, request: &str) -> String {
        let mut program = self.program();
        program.write_all(request.as_bytes()).await.unwrap();
        program.shutdown().await.unwrap();
        rest(&mut program).await
    }

    /// The log, once nothing is open; times left out.
    pub async fn entries(&self) -> Vec<String> {
        soon(async {
            while self.session.connections() > 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
        self.so_far()
    }

    /// The log as it is.
    pub fn so_far(&self) -> Vec<String> {
        let word = |value: &dyn erased::Word| value.word();
        self.log
            .0
            .lock()
            .unwrap()
            .iter()
            .map(|e| {
                format!(
                    "{} {} {} {}:{} {}{} {}/{}",
                    word(&e.event),
                    word(&e.action),
                    word(&e.protocol),
                    e.domain,
                    e.port,
                    word(&e.source),
                    e.reason.as_ref().map(|r| format!(" ({r})")).unwrap_or_default(),
                    e.bytes_sent,
                    e.bytes_received
                )
            })
            .collect()
    }
}

mod erased {
    pub trait Word {
        fn word(&self) -> String;
    }
    impl<T: std::fmt::Debug> Word for T {
        fn word(&self) -> String {
            format!("{self:?}").to_lowercase()
        }
    }
}

pub async fn rest(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut bytes = Vec::new();
    // A cut connection may end with an error; what came before counts.
    let _ = soon(stream.read_to_end(&mut bytes)).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads exactly as much as this text is long, and compares.
pub async fn expect(stream: &mut (impl AsyncReadExt + Unpin), text: &str) {
    let mut bytes = vec![0; text.len()];
    let read = soon(stream.read_exact(&mut bytes)).await;
    assert!(read.is_ok(), "{read:?} instead of {text:?}: {:?}", String::from_utf8_lossy(&bytes));
    assert_eq!(String::from_utf8_lossy(&bytes), text);
}

/// A server: what it does with each connection.
pub struct Server {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub async fn new<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        });
        Self { address, task }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Sends back what comes.
    pub async fn echo() -> Self {
        Self::new(|mut stream| async move {
            let (mut read, mut write) = stream.split();
            let _ = tokio::io::copy(&mut read, &mut write).await;
        })
        .await
    }

    /// Keeps what comes, answers with this once it has come to an empty line, and hands all over when it ends.
    pub async fn recorder(answer: &'static str) -> (Self, mpsc::UnboundedReceiver<String>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let server = Self::new(move |mut stream| {
            let sender = sender.clone();
            async move {
                let (mut all, mut buffer, mut answered) = (Vec::new(), [0; 4096], false);
                loop {
                    let length = stream.read(&mut buffer).await.unwrap_or(0);
                    all.extend_from_slice(&buffer[..length]);
                    if !answered && all.windows(4).any(|w| w == b"\r\n\r\n") {
                        answered = true;
                        let _ = stream.write_all(answer.as_bytes()).await;
                    }
                    if length == 0 {
                        break;
                    }
                }
                let _ = sender.send(String::from_utf8_lossy(&all).into_owned());
            }
        })
        .await;
        (server, receiver)
    }
}
