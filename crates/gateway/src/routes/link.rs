//! Commands of the program on this machine, which come by the private socket: each link opens one place and runs at most
//! one command in it.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use moltis_agent_protocol::frame::Kind;
use moltis_runtime::Runtime;
use moltis_runtime::link::{self, Ask, AskedCommand, AskedPlace, Broken, PROTOCOL, Read, SAMENESS, Tell};
use moltis_runtime::store::{Approval, Caller};
use moltis_sandbox::exec::{ExecControl, ExecEvent, ProcessId, TerminalSize};
use moltis_sandbox::{BackendName, BuildSink, Diagnosis, Error, Exec, Outcome, Sandbox, SessionKey};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{broadcast, mpsc, oneshot};

use super::exec::Place;
use crate::call::Call;
use crate::metrics::Ended;
use crate::problem::Problem;
use crate::route::{Answered, Route, Rule, header as header_param};
use crate::schema::text;
use crate::server::Open;
use crate::state::State;

/// The route.
pub fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, link::PATH, "link", Rule::OWNER, open)
            .about("Commands", "What `moltis exec` and `moltis shell` speak to a gateway of the same user")
            .more("It is not for other programs: the protocol changes with the version.")
            .with([header_param(SAMENESS, "A digest of what both must agree on", text())])
            .fails(&[409, 426])
            .answers_nothing(101, "The link is open"),
    ]
}

async fn open(mut call: Call) -> Answered {
    let runtime = call.runtime();
    if call.header(SAMENESS) != Some(link::sameness(&runtime).as_str()) {
        return Err(Problem::new(
            StatusCode::CONFLICT,
            "refused",
            Diagnosis::new("link-differs", "whoever asks has another configuration, version or engine")
                .fix("run the command in a process of its own, as `moltis exec` does then"),
        ));
    }
    let asked = call.header("upgrade").map(str::to_owned);
    let upgrade = call.parts.extensions.remove::<OnUpgrade>();
    let (Some(PROTOCOL), Some(upgrade)) = (asked.as_deref(), upgrade) else {
        return Err(Problem::invalid("upgrade-needed", format!("this is for an upgrade to {PROTOCOL}"))
            .status(StatusCode::UPGRADE_REQUIRED)
            .header(header::UPGRADE, PROTOCOL));
    };
    let (state, caller) = (Arc::clone(&call.state), call.caller());
    let open = Open::new(&state.open);
    tokio::spawn(async move {
        let _open = open;
        match upgrade.await {
            Ok(stream) => Serving { state, runtime, caller }.all(TokioIo::new(stream)).await,
            Err(error) => tracing::debug!(%error, "a link did not come about"),
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(PROTOCOL));
    Ok(response)
}

struct Serving {
    state: Arc<State>,
    runtime: Runtime,
    caller: Caller,
}

type Theirs<S> = link::Reader<tokio::io::ReadHalf<S>>;
type Ours<S> = link::Writer<tokio::io::WriteHalf<S>>;

impl Serving {
    /// Serves a link to its end. Whoever goes away takes his command with him.
    async fn all<S: AsyncRead + AsyncWrite + Send + 'static>(self, stream: S) {
        let (mut reader, mut writer) = link::wire(stream);
        let mut questions = self.state.questions.subscribe();
        let opened = match self.opened(&mut reader, &mut writer).await {
            Ok(opened) => opened,
            Err(broken) => return tracing::debug!(%broken, "a link ended before its sandbox was open"),
        };
        let Some(mut place) = opened else { return };
        let broken = self.used(&mut reader, &mut writer, &mut place, &mut questions).await;
        let untold = place.end().await;
        match broken {
            Ok(()) => {
                // Whoever asked may be gone by now, which is his affair.
                let _ = writer.message(&Tell::Away(untold)).await;
            }
            Err(broken) => tracing::debug!(%broken, "whoever had a command run went away"),
        }
    }

    /// Opens what is asked for; nothing when it cannot be, which has been told then.
    async fn opened<S: AsyncRead + AsyncWrite>(
        &self,
        reader: &mut Theirs<S>,
        writer: &mut Ours<S>,
    ) -> Result<Option<Place>, Broken> {
        let Read::Message(Ask::Open(asked)) = reader.next().await? else { return Err(Broken::Nonsense) };
        let (sink, progress) = BuildSink::channel();
        let opening = self.opening(*asked, sink);
        let mut opening = std::pin::pin!(opening);
        let mut progress = Some(progress);
        let opened = loop {
            tokio::select! {
                biased;
                told = heard(&mut progress) => writer.message(&Tell::Progress(told.into())).await?,
                opened = &mut opening => break opened,
                // Nobody looks on: the work sees that the other end of its progress is gone.
                asked = reader.next::<Ask>() => match asked? {
                    Read::Message(Ask::GiveUp) => progress = None,
                    _ => return Err(Broken::Nonsense),
                },
            }
        };
        match opened {
            Err(error) => {
                writer.message(&Tell::Failed(error.into())).await?;
                Ok(None)
            }
            Ok(mut place) => match place.place() {
                // It would have something of this process's environment.
                Some(open) if !matches!(open.backend, BackendName::None | BackendName::RestrictedHost) => {
                    writer.message(&Tell::Opened(Box::new(open))).await?;
                    Ok(Some(place))
                }
                _ => {
                    place.end().await;
                    writer.message(&Tell::Yourself).await?;
                    Ok(None)
                }
            },
        }
    }

    async fn opening(&self, asked: AskedPlace, sink: BuildSink) -> Result<Place, Error> {
        let (settings, session) = asked.read(self.caller.clone())?;
        Place::open(self.runtime.clone(), settings, session, sink).await.map_err(Problem::into_error)
    }

    /// Runs what is asked for in it, until whoever asks has it put away.
    async fn used<S: AsyncRead + AsyncWrite>(
        &self,
        reader: &mut Theirs<S>,
        writer: &mut Ours<S>,
        place: &mut Place,
        questions: &mut broadcast::Receiver<Arc<Approval>>,
    ) -> Result<(), Broken> {
        let asked: AskedCommand = loop {
            match reader.next().await? {
                Read::Message(Ask::Exec(asked)) => break *asked,
                Read::Message(Ask::PutAway) => return Ok(()),
                // It was said as the opening came to its end.
                Read::Message(Ask::GiveUp | Ask::Cancel) => {}
                _ => return Err(Broken::Nonsense),
            }
        };
        let starting = async { place.exec(asked.read()?).await };
        let started = tokio::select! {
            started = starting => started,
            // Whoever goes away now takes the command with him, whether or not it has begun.
            gone = left(reader) => return gone,
        };
        let exec = match started {
            Ok(exec) => exec,
            Err(error) => {
                if let Some(open) = place.place() {
                    let lost = matches!(error, Error::Lost(_));
                    self.count(open.backend, if lost { Ended::Lost } else { Ended::Failed });
                }
                writer.message(&Tell::Failed(error.into())).await?;
                return wait_for_end(reader).await;
            }
        };
        let (Some(open), Some(sandbox), Some(key)) = (place.place(), place.sandbox(), place.key()) else {
            return Err(Broken::Gone);
        };
        let backend = open.backend;
        let mut running = Running::new(exec, sandbox, key, open);
        match running.all(reader, writer, questions).await {
            Ok(Over::Exit(outcome)) => {
                self.count(backend, super::exec::of(&outcome));
                writer.message(&Tell::Exit(outcome)).await?;
                wait_for_end(reader).await
            }
            Ok(Over::Failed(error)) => {
                self.count(backend, Ended::Lost);
                writer.message(&Tell::Failed(error.into())).await?;
                wait_for_end(reader).await
            }
            // A background command goes on; any other one has lost its caller.
            Ok(Over::PutAway) => Ok(()),
            Err(broken) => {
                self.count(backend, Ended::Lost);
                Err(broken)
            }
        }
    }

    fn count(&self, backend: BackendName, ended: Ended) {
        self.state.metrics.command(backend, ended);
    }
}

async fn heard<T>(progress: &mut Option<mpsc::Receiver<T>>) -> T {
    match progress {
        Some(receiver) => match receiver.recv().await {
            Some(told) => told,
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

/// Waits until whoever asks goes away, with a word or without.
async fn left<S: AsyncRead>(reader: &mut Theirs<S>) -> Result<(), Broken> {
    loop {
        match reader.next::<Ask>().await? {
            Read::Message(Ask::PutAway) => return Ok(()),
            Read::Message(Ask::GiveUp | Ask::Cancel) => {}
            // He cannot say it yet.
            _ => return Err(Broken::Nonsense),
        }
    }
}

/// Waits until what is there is to be put away. What was under way to the command comes too late.
async fn wait_for_end<S: AsyncRead>(reader: &mut Theirs<S>) -> Result<(), Broken> {
    loop {
        if let Read::Message(Ask::PutAway) = reader.next::<Ask>().await? {
            return Ok(());
        }
    }
}

/// How a command on a link came to its end.
enum Over {
    Exit(Box<Outcome>),
    Failed(Error),
    PutAway,
}

/// What goes to the command, in its order.
enum Order {
    Input(Bytes),
    NoMore,
    Resize(TerminalSize),
    Signal(i32),
}

/// What follows from what was asked.
enum Next {
    Order(Order),
    Done,
    PutAway,
}

/// A command that runs.
struct Running {
    exec: Option<Exec>,
    sandbox: Arc<dyn Sandbox>,
    key: SessionKey,
    open: link::Where,
    process: Option<ProcessId>,
    /// Bytes of input that the command has not taken yet.
    under_way: usize,
}

impl Running {
    fn new(exec: Exec, sandbox: Arc<dyn Sandbox>, key: SessionKey, open: link::Where) -> Self {
        Self { exec: Some(exec), sandbox, key, open, process: None, under_way: 0 }
    }

    /// Passes on what happens. Output that nobody takes holds the command back; input that it does not take holds back
    /// whoever sends it, and nobody else.
    async fn all<S: AsyncRead + AsyncWrite>(
        &mut self,
        reader: &mut Theirs<S>,
        writer: &mut Ours<S>,
        questions: &mut broadcast::Receiver<Arc<Approval>>,
    ) -> Result<Over, Broken> {
        let Some(Exec { mut events, control }) = self.exec.take() else { return Err(Broken::Gone) };
        // All the pieces of the window, and what else one side may order meanwhile.
        let (orders, ordered) = mpsc::channel(2 * link::WINDOW / link::LEAST);
        let (tell, mut taken) = mpsc::unbounded_channel();
        let (_here, gone) = oneshot::channel::<()>();
        let feeder = tokio::spawn(feed(control, ordered, tell, gone));
        let over = loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(ExecEvent::Started(process))) => {
                        self.process = Some(process);
                        writer.message(&Tell::Started(process.0, Box::new(self.open.clone()))).await?;
                    }
                    Some(Ok(ExecEvent::Stdout(bytes))) => writer.raw(Kind::Stdout, &bytes).await?,
                    Some(Ok(ExecEvent::Stderr(bytes))) => writer.raw(Kind::Stderr, &bytes).await?,
                    Some(Ok(ExecEvent::Missed { stdout, stderr })) => {
                        writer.message(&Tell::Missed(stdout, stderr)).await?;
                    }
                    Some(Ok(ExecEvent::Exit(outcome))) => break Over::Exit(Box::new(outcome)),
                    Some(Err(error)) => break Over::Failed(error),
                    None => break Over::Failed(moltis_runtime::error::ended_without_exit()),
                },
                Some(bytes) = taken.recv() => {
                    self.under_way -= bytes;
                    writer.message(&Tell::Taken(bytes)).await?;
                }
                asked = reader.next::<Ask>() => match self.order(asked?)? {
                    Next::Order(order) => orders.try_send(order).map_err(|_| Broken::Nonsense)?,
                    Next::Done => {}
                    Next::PutAway => break Over::PutAway,
                },
                Ok(question) = questions.recv() => if question.session == self.key {
                    writer.message(&Tell::Question((&*question).into())).await?;
                },
            }
        };
        feeder.abort();
        Ok(over)
    }

    /// What follows from what is asked.
    fn order(&mut self, asked: Read<Ask>) -> Result<Next, Broken> {
        Ok(Next::Order(match asked {
            Read::Raw(Kind::Data, bytes) => {
                self.under_way += link::cost(bytes.len());
                if self.under_way > link::WINDOW {
                    return Err(Broken::Nonsense);
                }
                Order::Input(bytes)
            }
            Read::Raw(Kind::Eof, _) => Order::NoMore,
            Read::Message(Ask::Resize(size)) if size.rows > 0 && size.columns > 0 => Order::Resize(size),
            Read::Message(Ask::Signal(signal)) if (1..=64).contains(&signal) => Order::Signal(signal),
            Read::Message(Ask::Cancel) => {
                self.stop();
                return Ok(Next::Done);
            }
            Read::Message(Ask::PutAway) => return Ok(Next::PutAway),
            _ => return Err(Broken::Nonsense),
        }))
    }

    /// Ends the command by a way of its own: the one of its input may be full.
    fn stop(&self) {
        let Some(process) = self.process else { return };
        let sandbox = Arc::clone(&self.sandbox);
        tokio::spawn(async move {
            // If it cannot be reached its events say so.
            let _ = sandbox.stop(process).await;
        });
    }
}

/// Passes orders on to the command, for as long as somebody is there. It holds the command's control for as long:
/// dropping that may be taken for the caller's going.
async fn feed(
    mut control: Box<dyn ExecControl>,
    mut orders: mpsc::Receiver<Order>,
    taken: mpsc::UnboundedSender<usize>,
    gone: oneshot::Receiver<()>,
) {
    while let Some(order) = orders.recv().await {
        let done = match order {
            Order::Input(bytes) => {
                let cost = link::cost(bytes.len());
                let done = control.stdin(bytes).await;
                let _ = taken.send(cost);
                done
            }
            Order::NoMore => control.close_stdin().await,
            Order::Resize(size) => control.resize(size).await,
            Order::Signal(signal) => control.signal(signal).await,
        };
        if done.is_err() {
            // The events tell why.
            break;
        }
    }
    let _ = gone.await;
}
