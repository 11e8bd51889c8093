//! HTTP/1.1 from inside: CONNECT, and plain requests, each judged.

mod answer;
mod exchange;
mod forward;
mod headers;
mod kept;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use moltis_sandbox::Duplex;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, sleep_until, timeout};

use crate::audit::Protocol;
use crate::client::{Client, Presence};
use crate::connect::AbortOnDrop;
use crate::dial::reach;
use crate::host::Target;
use crate::http::answer::answer;
use crate::http::exchange::{Answered, Going};
use crate::http::headers::same_host;
use crate::http::kept::Kept;
use crate::journal::{Passage, Wanted};
use crate::refusal::Refusal;
use crate::session::{Session, Watch, changed};
use crate::tunnel;

/// How many times within the idle time it is looked whether something moved.
const LOOKS: u32 = 4;
/// How long both ends may take to become a tunnel.
const BECOMES_TUNNEL: Duration = Duration::from_secs(10);
/// How many approved hosts are remembered for a connection.
const APPROVED: usize = 8;

/// What a program is answered: something of ours, or what a server said.
type Answer = Either<Full<Bytes>, Answered>;

/// One connection from inside.
struct Front {
    session: Arc<Session>,
    program: Presence,
    /// Whether there was a request.
    asked: AtomicBool,
    /// The request that is under way, as long as it or its answer is.
    going: Mutex<Option<Going>>,
    /// What becomes of the connection once it has been answered.
    next: Mutex<Option<Next>>,
    /// The connection to the server of the last request.
    kept: Mutex<Option<Kept>>,
    /// Hosts that a person let through for this connection.
    approved: Mutex<Vec<Target>>,
}

/// A tunnel to be.
struct Next {
    client: OnUpgrade,
    server: Far,
    watch: Watch,
    passage: Passage,
}

/// Its far end.
enum Far {
    Stream(Box<dyn Duplex>),
    Upgrade(OnUpgrade, AbortOnDrop),
}

/// Why there is an answer of ours, and about what.
struct Told {
    wanted: Wanted,
    protocol: Protocol,
    why: Refusal,
    /// Whether nothing that follows on this connection can be trusted to be a request.
    last: bool,
    /// Whether it is in the log already.
    written: bool,
}

/// Serves one connection.
pub(crate) async fn serve(session: Arc<Session>, client: Client) {
    let front = Arc::new(Front {
        session,
        program: client.presence(),
        asked: AtomicBool::new(false),
        going: Mutex::default(),
        next: Mutex::default(),
        kept: Mutex::default(),
        approved: Mutex::default(),
    });
    requests(&front, client).await;
    front.end();
    let next = front.next.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(next) = next {
        Box::pin(next.run(&front.session)).await;
    }
}

/// Says that there is no place for another connection.
pub(crate) async fn turn_away(client: &mut Client) {
    let said = answer::plain(&Refusal::TooManyConnections);
    if client.write_all(said.as_bytes()).await.is_ok() {
        // Whoever has gone needs no answer.
        let _ = client.shutdown().await;
    }
}

/// Serves requests until the connection ends, becomes a tunnel, or is cut.
async fn requests(front: &Arc<Front>, client: Client) {
    let limits = &front.session.shared.limits;
    let service = {
        let front = Arc::clone(front);
        service_fn(move |request| {
            let front = Arc::clone(&front);
            async move { Ok::<_, Infallible>(front.answer(request).await) }
        })
    };
    let connection = Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time)
        .max_buf_size(limits.header_bytes)
        .half_close(true)
        .auto_date_header(false)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(client), service)
        .with_upgrades();
    let mut connection: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(connection);
    let mut policy = front.session.policy();
    let look = limits.request_idle / LOOKS;
    let (mut before, mut still) = (None, 0);
    let timer = sleep_until(Instant::now() + look);
    tokio::pin!(timer);
    loop {
        tokio::select! {
            biased;
            ended = &mut connection => {
                if let Err(error) = ended {
                    front.broken(&error);
                }
                return;
            }
            () = changed(&mut policy) => {
                if front.revoked() {
                    return;
                }
            }
            () = &mut timer => {
                let counts = front.counts();
                let moved = counts.as_ref().map(|counts| counts.now());
                still = if moved.is_some() && moved == before { still + 1 } else { 0 };
                before = moved;
                if let Some(counts) = counts.filter(|_| still >= LOOKS) {
                    counts.idle.store(true, Ordering::Relaxed);
                    return;
                }
                timer.as_mut().reset(Instant::now() + look);
            }
        }
    }
}

impl Front {
    /// Writes down what made a connection unreadable.
    fn broken(&self, error: &hyper::Error) {
        let why = if error.is_parse_too_large() {
            Refusal::Malformed("its head is too long")
        } else if error.is_parse() {
            Refusal::Malformed("it is no HTTP request")
        } else if error.is_timeout() && !self.asked.load(Ordering::Relaxed) {
            Refusal::Slow
        } else {
            return;
        };
        self.session.journal.refused(&Wanted::nothing(), Protocol::Http, &why);
    }

    async fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Response<Answer> {
        self.asked.store(true, Ordering::Relaxed);
        let answered = match *request.method() {
            Method::CONNECT => self.connect(request).await,
            _ => self.forward(request).await,
        };
        answered.unwrap_or_else(|told| {
            let Told { wanted, protocol, why, last, written } = told;
            if !written {
                self.session.journal.refused(&wanted, protocol, &why);
            }
            answer(&why, &wanted.domain, last).map(Either::Left)
        })
    }

    async fn connect(self: &Arc<Self>, request: Request<Incoming>) -> Result<Response<Answer>, Told> {
        // Whatever was sent along was meant for the host: it is no request.
        let told =
            |wanted, why| Told { wanted, protocol: Protocol::Connect, why, last: true, written: false };
        let uri = request.uri();
        let authority = match (uri.scheme(), uri.path_and_query(), uri.authority()) {
            (None, None, Some(authority)) => authority.as_str(),
            _ => {
                let why = Refusal::Malformed("CONNECT needs a host and a port");
                return Err(told(Wanted::nothing(), why));
            }
        };
        let target: Target = authority
            .parse()
            .map_err(|why: crate::host::NoHost| told(Wanted::text(authority), Refusal::Host(why.0)))?;
        let refused = |why| told(Wanted::from(&target), why);
        if !request.body().is_end_stream() {
            return Err(refused(Refusal::Malformed("CONNECT has no body")));
        }
        same_host(request.headers(), &target, target.port).map_err(refused)?;
        let admitted =
            self.session.admit(&target, Protocol::Connect, false, &self.program).await.map_err(refused)?;
        let reached = reach(&self.session, admitted, Protocol::Connect).await.map_err(refused)?;
        self.become_tunnel(Next {
            client: hyper::upgrade::on(request),
            server: Far::Stream(reached.stream),
            watch: reached.watch,
            passage: reached.passage,
        });
        let mut response = Response::new(Either::Left(Full::default()));
        *response.status_mut() = StatusCode::OK;
        Ok(response)
    }

    fn become_tunnel(&self, next: Next) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
    }

    fn approves(&self, target: &Target) -> bool {
        self.approved.lock().unwrap_or_else(PoisonError::into_inner).contains(target)
    }

    fn approve(&self, target: &Target) {
        let mut approved = self.approved.lock().unwrap_or_else(PoisonError::into_inner);
        if !approved.contains(target) {
            approved.truncate(APPROVED - 1);
            approved.insert(0, target.clone());
        }
    }
}

impl Next {
    async fn run(mut self, session: &Session) {
        let limits = &session.shared.limits;
        let Ok(Ok(client)) = timeout(BECOMES_TUNNEL, self.client).await else { return };
        let Ok(parts) = client.downcast::<TokioIo<Client>>() else { return };
        let mut client = parts.io.into_inner();
        client.becomes_tunnel(&parts.read_buf);
        match self.server {
            Far::Stream(mut server) => {
                tunnel::run(&mut client, &mut server, self.watch, &mut self.passage, limits).await;
            }
            Far::Upgrade(server, _driver) => {
                let Ok(Ok(server)) = timeout(BECOMES_TUNNEL, server).await else { return };
                let mut server = TokioIo::new(server);
                tunnel::run(&mut client, &mut server, self.watch, &mut self.passage, limits).await;
            }
        }
    }
}
