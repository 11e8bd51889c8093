//! The end of a link that asks: a command of the program.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use moltis_agent_protocol::frame::Kind;
use moltis_sandbox::exec::{ExecControl, ExecEvent, ExecEvents, ExecRequest, ProcessId, TerminalSize};
use moltis_sandbox::{BuildSink, Diagnosis, Error, Exec, Result, blocking};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

use super::message::{Ask, AskedCommand, AskedPlace, Question, Tell, Where};
use super::wire::{Broken, Read, Reader, Writer, wire};
use super::{PATH, PIECE, PROTOCOL, SAMENESS, SOCKET, WINDOW, cost, sameness};
use crate::runtime::Runtime;

/// Time that a gateway has to answer the first request. One that takes longer is not waited for.
const FIRST: Duration = Duration::from_secs(5);

/// Time that a gateway has to put away what does not stay.
const AWAY: Duration = Duration::from_secs(30);

/// Bytes of the first answer.
const HEAD: usize = 8 << 10;

/// Who is told that a program waits for somebody to let a host through. He must not block.
pub type Listener = Arc<dyn Fn(&Question) + Send + Sync>;

type Ours = Reader<ReadHalf<UnixStream>>;
type Theirs = Arc<Mutex<Writer<WriteHalf<UnixStream>>>>;

/// A link to a gateway that would run a command as this process would.
pub struct Link {
    reader: Ours,
    writer: Theirs,
}

/// A sandbox that a gateway has opened for this process.
pub struct Linked {
    reader: Arc<Mutex<Ours>>,
    writer: Theirs,
    window: Arc<Semaphore>,
    listener: Listener,
    place: Where,
    is_used: bool,
}

impl Link {
    /// The gateway that holds the data directory, if there is one and it would do the same as this process: of the same
    /// version and user, in the same namespaces, under the same configuration, with the same engines.
    pub async fn connect(runtime: &Runtime) -> Option<Self> {
        match timeout(FIRST, connect(runtime)).await {
            Ok(link) => link,
            Err(_) => {
                tracing::debug!("the gateway does not answer in time");
                None
            }
        }
    }

    /// Has the sandbox opened. Once nobody looks at the progress any more, an image that is made ready is given up.
    /// Nothing when this process is to open it itself.
    ///
    /// # Errors
    /// Those of opening; `gateway-gone`.
    pub async fn open(
        mut self,
        asked: AskedPlace,
        progress: &BuildSink,
        listener: Listener,
    ) -> Result<Option<Linked>> {
        send(&self.writer, &Ask::Open(Box::new(asked))).await.map_err(|_| gone())?;
        let mut looks_on = true;
        loop {
            let read = tokio::select! {
                read = self.reader.next::<Tell>() => read.map_err(|_| gone())?,
                () = progress.closed(), if looks_on => {
                    looks_on = false;
                    send(&self.writer, &Ask::GiveUp).await.map_err(|_| gone())?;
                    continue;
                }
            };
            match read {
                Read::Message(Tell::Progress(told)) => progress.tell(told.into()).await,
                Read::Message(Tell::Opened(place)) => {
                    return Ok(Some(Linked {
                        reader: Arc::new(Mutex::new(self.reader)),
                        writer: self.writer,
                        window: Arc::new(Semaphore::new(WINDOW)),
                        listener,
                        place: *place,
                        is_used: false,
                    }));
                }
                Read::Message(Tell::Yourself) => return Ok(None),
                Read::Message(Tell::Failed(failed)) => return Err(failed.into()),
                Read::Message(Tell::Question(question)) => listener(&question),
                _ => return Err(gone()),
            }
        }
    }
}

impl Linked {
    /// Where it is, and what is to be known of it.
    pub fn place(&self) -> &Where {
        &self.place
    }

    /// Starts a command, the only one.
    ///
    /// # Errors
    /// Those of starting it; `exec-lost` when the gateway went away: it may have run.
    pub async fn exec(&mut self, request: ExecRequest) -> Result<Exec> {
        if std::mem::replace(&mut self.is_used, true) {
            return Err(Error::Invalid(Diagnosis::new(
                "link-used",
                "a link to the gateway runs one command",
            )));
        }
        let asked = AskedCommand::from(&request);
        match send(&self.writer, &Ask::Exec(Box::new(asked))).await {
            Ok(()) => {}
            Err(Broken::Io(error)) if error.kind() == std::io::ErrorKind::InvalidInput => {
                return Err(Error::Invalid(
                    Diagnosis::new("command-too-long", "the command and its variables are too long")
                        .fix("write them to a file in the workspace, and name that"),
                ));
            }
            Err(_) => return Err(lost()),
        }
        let process = loop {
            match self.reader.lock().await.next::<Tell>().await.map_err(|_| lost())? {
                Read::Message(Tell::Started(process, place)) => {
                    self.place = *place;
                    break process;
                }
                Read::Message(Tell::Failed(failed)) => return Err(failed.into()),
                Read::Message(Tell::Question(question)) => (self.listener)(&question),
                Read::Message(Tell::Taken(bytes)) => self.window.add_permits(bytes.min(WINDOW)),
                _ => return Err(lost()),
            }
        };
        let state = Events {
            reader: Arc::clone(&self.reader),
            window: Arc::clone(&self.window),
            listener: Arc::clone(&self.listener),
            first: Some(ProcessId(process)),
            is_over: false,
        };
        let events = futures_util::stream::unfold(state, |mut state| async move {
            let event = state.next().await?;
            Some((event, state))
        });
        let control = Control { writer: Arc::clone(&self.writer), window: Arc::clone(&self.window) };
        Ok(Exec { events: ExecEvents::new(events), control: Box::new(control) })
    }

    /// What ends the command that runs, by a way of its own.
    pub fn stopper(&self) -> Stopper {
        Stopper { writer: Arc::clone(&self.writer) }
    }

    /// Puts away what does not stay. What of it was not is told.
    pub async fn put_away(self) -> Option<Diagnosis> {
        let away = async {
            send(&self.writer, &Ask::PutAway).await?;
            let mut reader = self.reader.lock().await;
            loop {
                // What the command may still have to say nobody waits for.
                if let Read::Message(Tell::Away(untold)) = reader.next::<Tell>().await? {
                    return Ok::<_, Broken>(untold);
                }
            }
        };
        match timeout(AWAY, away).await {
            Ok(Ok(untold)) => untold,
            // The next gateway sweeps what this one has left.
            Ok(Err(_)) => Some(gone().diagnosis().clone()),
            Err(_) => {
                Some(Diagnosis::new("gateway-slow", "the gateway does not say that the sandbox has ended"))
            }
        }
    }
}

/// Ends the command of a link.
#[derive(Clone)]
pub struct Stopper {
    writer: Theirs,
}

impl Stopper {
    /// Ends it, and all that it started. Its events tell what came of it.
    pub async fn stop(&self) {
        // Whoever is gone has ended it.
        let _ = send(&self.writer, &Ask::Cancel).await;
    }
}

struct Events {
    reader: Arc<Mutex<Ours>>,
    window: Arc<Semaphore>,
    listener: Listener,
    first: Option<ProcessId>,
    is_over: bool,
}

impl Events {
    async fn next(&mut self) -> Option<Result<ExecEvent>> {
        if let Some(process) = self.first.take() {
            return Some(Ok(ExecEvent::Started(process)));
        }
        if self.is_over {
            return None;
        }
        let event = loop {
            match self.reader.lock().await.next::<Tell>().await {
                Ok(Read::Raw(Kind::Stdout, bytes)) => return Some(Ok(ExecEvent::Stdout(bytes))),
                Ok(Read::Raw(Kind::Stderr, bytes)) => return Some(Ok(ExecEvent::Stderr(bytes))),
                Ok(Read::Message(Tell::Missed(stdout, stderr))) => {
                    return Some(Ok(ExecEvent::Missed { stdout, stderr }));
                }
                Ok(Read::Message(Tell::Taken(bytes))) => self.window.add_permits(bytes.min(WINDOW)),
                Ok(Read::Message(Tell::Question(question))) => (self.listener)(&question),
                Ok(Read::Message(Tell::Exit(outcome))) => break Ok(ExecEvent::Exit(*outcome)),
                Ok(Read::Message(Tell::Failed(failed))) => break Err(failed.into()),
                Ok(_) | Err(_) => break Err(lost()),
            }
        };
        self.is_over = true;
        // Whoever waits to send more input need not any more.
        self.window.close();
        Some(event)
    }
}

struct Control {
    writer: Theirs,
    window: Arc<Semaphore>,
}

#[async_trait]
impl ExecControl for Control {
    async fn stdin(&mut self, bytes: Bytes) -> Result<()> {
        for piece in bytes.chunks(PIECE) {
            let count = u32::try_from(cost(piece.len())).unwrap_or(u32::MAX);
            // Closed: the command is over.
            let Ok(room) = self.window.acquire_many(count).await else { return Ok(()) };
            room.forget();
            self.writer.lock().await.raw(Kind::Data, piece).await.map_err(|_| lost())?;
        }
        Ok(())
    }

    async fn close_stdin(&mut self) -> Result<()> {
        self.writer.lock().await.raw(Kind::Eof, &[]).await.map_err(|_| lost())
    }

    async fn resize(&mut self, size: TerminalSize) -> Result<()> {
        send(&self.writer, &Ask::Resize(size)).await.map_err(|_| lost())
    }

    async fn signal(&mut self, signal: i32) -> Result<()> {
        send(&self.writer, &Ask::Signal(signal)).await.map_err(|_| lost())
    }

    async fn cancel(&mut self) -> Result<()> {
        send(&self.writer, &Ask::Cancel).await.map_err(|_| lost())
    }
}

async fn send(writer: &Theirs, ask: &Ask) -> Result<(), Broken> {
    writer.lock().await.message(ask).await
}

async fn connect(runtime: &Runtime) -> Option<Link> {
    // Where there is no gateway nothing more is done.
    let mut stream = socket(&runtime.config().data_dir.value).await?;
    let peer = stream.peer_cred().ok()?;
    let pid = peer.pid()?;
    let is_same = blocking::short(move || sees_the_same(pid)).await.unwrap_or(false);
    if peer.uid() != rustix::process::geteuid().as_raw() || !is_same {
        tracing::debug!("the gateway is another user's, or sees another machine");
        return None;
    }
    let same = sameness(runtime);
    let same = same.as_str();
    let request = format!(
        "GET {PATH} HTTP/1.1\r\nHost: moltis\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n{SAMENESS}: {same}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut head = BytesMut::with_capacity(HEAD);
    let end = loop {
        if let Some(at) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if head.len() >= HEAD || stream.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    };
    let first = head.split_to(end);
    if !first.starts_with(b"HTTP/1.1 101 ") {
        tracing::debug!("the gateway would run it otherwise than this process");
        return None;
    }
    let (reader, writer) = wire(stream);
    Some(Link { reader: reader.after(head), writer: Arc::new(Mutex::new(writer)) })
}

/// A connection to the private socket, by its folder's handle: the path may be longer than a socket's name can be.
async fn socket(data_dir: &Path) -> Option<UnixStream> {
    use std::os::fd::AsRawFd;

    let folder = data_dir.to_owned();
    let folder = blocking::short(move || std::fs::File::open(folder)).await.ok()?.ok()?;
    let place = format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd());
    UnixStream::connect(&place).await.ok()
}

/// Whether a process has the same files, users, processes and network before it as this one.
fn sees_the_same(pid: i32) -> bool {
    ["mnt", "user", "pid", "net"].into_iter().all(|kind| {
        let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/{kind}")).ok();
        let own = of("self");
        own.is_some() && own == of(&pid.to_string())
    })
}

fn gone() -> Error {
    Error::Unavailable(
        Diagnosis::new("gateway-gone", "the gateway went away before the command started")
            .fix("run it again; if no gateway comes back, it runs without one"),
    )
}

fn lost() -> Error {
    Error::Lost(
        Diagnosis::new("exec-lost", "the gateway went away while the command ran")
            .fix("look at what it did before running it again"),
    )
}
