//! Plain requests: judged, sent on, and their answers brought back.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use http_body_util::Either;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HOST, HeaderValue, PROXY_AUTHORIZATION, UPGRADE};
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use tokio::time::timeout;

use crate::audit::Protocol;
use crate::connect::dial;
use crate::host::{NoHost, Target};
use crate::http::exchange::{Answered, Exchange, Sent};
use crate::http::headers::{host_value, same_host, strip, wants_web_socket};
use crate::http::kept::Kept;
use crate::http::{Answer, Far, Front, Next, Told};
use crate::journal::{Passage, Wanted};
use crate::refusal::Refusal;
use crate::session::{Admitted, Route, Word};

/// How long a kept connection may take to be free again, before another one is made.
const FREE: Duration = Duration::from_secs(1);

/// What was asked for.
fn target<B>(request: &Request<B>) -> Result<Target, Told> {
    let told = |wanted, why| Told { wanted, protocol: Protocol::Http, why, last: true, written: false };
    let uri = request.uri();
    let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
        let why = Refusal::Malformed("this is a proxy: it wants CONNECT, or http:// and a host");
        return Err(told(Wanted::nothing(), why));
    };
    if *scheme != Scheme::HTTP {
        let why = Refusal::Malformed("only http:// is sent on; everything else goes by CONNECT");
        return Err(told(Wanted::text(authority.as_str()), why));
    }
    let target = Target::read(authority.as_str(), Some(80))
        .map_err(|why: NoHost| told(Wanted::text(authority.as_str()), Refusal::Host(why.0)))?;
    let refused = |why| told(Wanted::from(&target), why);
    if request.version() == Version::HTTP_11 && !request.headers().contains_key(HOST) {
        return Err(refused(Refusal::Malformed("it has no `Host`")));
    }
    same_host(request.headers(), &target, 80).map_err(refused)?;
    Ok(target)
}

/// The request as the next one is to see it.
fn outgoing(
    front: &Front,
    request: Request<Incoming>,
    target: &Target,
    upstream: bool,
    socket: bool,
    exchange: &Arc<Exchange>,
) -> Result<Request<Sent>, Refusal> {
    let (mut parts, body) = request.into_parts();
    parts.version = Version::HTTP_11;
    parts.extensions.clear();
    strip(&mut parts.headers);
    parts.headers.insert(HOST, host_value(target)?);
    if socket {
        parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
    let path = parts.uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
    let mut uri = hyper::http::uri::Parts::default();
    uri.path_and_query = Some(path);
    if upstream {
        let authority = Authority::try_from(target.to_string());
        uri.authority = Some(authority.map_err(|_| Refusal::Host("it cannot be asked for"))?);
        uri.scheme = Some(Scheme::HTTP);
        let value = front.session.shared.upstream.as_ref().and_then(|upstream| upstream.authorization());
        if let Some(value) = value {
            parts.headers.insert(PROXY_AUTHORIZATION, value);
        }
    }
    parts.uri = Uri::from_parts(uri).map_err(|_| Refusal::Malformed("its path is none"))?;
    Ok(Request::from_parts(parts, Sent::new(body, exchange)))
}

/// A second one of a request that may be sent twice: it has no body, and asking it again changes nothing.
fn spare(request: &Request<Sent>) -> Option<Request<Sent>> {
    let again = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if !again || !request.body().is_end_stream() {
        return None;
    }
    let mut copy = Request::new(Sent::nothing());
    copy.method_mut().clone_from(request.method());
    copy.uri_mut().clone_from(request.uri());
    copy.headers_mut().clone_from(request.headers());
    Some(copy)
}

impl Front {
    pub(super) async fn forward(
        self: &Arc<Self>,
        mut request: Request<Incoming>,
    ) -> Result<Response<Answer>, Told> {
        let target = target(&request)?;
        let told = |why, written| {
            let wanted = Wanted::from(&target);
            Told { wanted, protocol: Protocol::Http, why, last: false, written }
        };
        let refused = |why| told(why, false);
        let approved = self.approves(&target);
        let admitted =
            self.session.admit(&target, Protocol::Http, approved, &self.program).await.map_err(refused)?;
        // What a rule lets through is asked of the rule each time.
        if admitted.word() == Word::Once {
            self.approve(&target);
        }
        let upstream = self.session.shared.through_upstream(&target);
        // Another proxy that sends such an answer on and does not know it would take what follows for requests, which
        // nobody has judged. A web socket goes there by CONNECT.
        let socket = (!upstream && wants_web_socket(&request)).then(|| hyper::upgrade::on(&mut request));
        if upstream && *request.method() == Method::TRACE {
            // It may be that proxy which answers, with all that we told it.
            return Err(refused(Refusal::Malformed("TRACE is not sent to another proxy")));
        }
        let exchange = Exchange::new(self);
        let request =
            outgoing(self, request, &target, upstream, socket.is_some(), &exchange).map_err(refused)?;
        let spare = spare(&request);
        let (kept, spare) = match self.kept(&admitted).await {
            Some(kept) => (kept, spare),
            None => (self.dialled(&admitted).await.map_err(refused)?, None),
        };
        let mut passage = admitted.passage(Protocol::Http);
        passage.open();
        let exchanged = self.exchange(exchange, admitted, passage, kept, (request, spare), socket);
        exchanged.await.map_err(|why| told(why, true))
    }

    /// The kept connection, if it leads to the same host and may still be used.
    async fn kept(&self, admitted: &Admitted) -> Option<Kept> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let same = kept.target == admitted.watch.target
            && !kept.sender.is_closed()
            && kept.address.is_none_or(|address| admitted.may_go_on(address, &kept.judge));
        if !same {
            return None;
        }
        kept.judge = Arc::clone(admitted.judge());
        if !kept.sender.is_ready() {
            timeout(FREE, kept.sender.ready()).await.ok()?.ok()?;
        }
        Some(kept)
    }

    async fn dialled(&self, admitted: &Admitted) -> Result<Kept, Refusal> {
        let limits = &self.session.shared.limits;
        let target = admitted.watch.target.clone();
        let (stream, address) = match admitted.route().await? {
            Route::Direct(addresses) => {
                let (stream, address) = dial(&addresses, target.port, limits.connect_time).await?;
                (stream, Some(address))
            }
            Route::Upstream => (self.session.shared.dial_upstream().await?.0, None),
        };
        Kept::new(stream, target, address, admitted.judge(), limits).await
    }

    /// Sends a request, and again if that is safe and the kept connection was at its end.
    async fn exchange(
        self: &Arc<Self>,
        exchange: Arc<Exchange>,
        mut admitted: Admitted,
        mut passage: Passage,
        mut kept: Kept,
        (request, mut spare): (Request<Sent>, Option<Request<Sent>>),
        socket: Option<OnUpgrade>,
    ) -> Result<Response<Answer>, Refusal> {
        let mut request = Some(request);
        let mut first = true;
        while let Some(now) = request.take() {
            passage.count(&kept.counts);
            admitted.watch.address = kept.address;
            self.begin(&exchange, &kept.counts, &admitted.watch);
            // Whoever looks after the connection sees the changes from here on.
            if let Err(why) = admitted.watch.still() {
                passage.refuse(why.clone());
                return Err(why);
            }
            let error = match kept.sender.try_send_request(now).await {
                Ok(response) => return self.answered(response, kept, exchange, passage, admitted, socket),
                Err(mut error) => error.take_message(),
            };
            // The server may have ended a kept connection just before: it has not seen the request, or may see it twice.
            if std::mem::replace(&mut first, false) {
                request = error.or_else(|| spare.take());
            }
            if request.is_some() {
                kept = match self.dialled(&admitted).await {
                    Ok(kept) => kept,
                    Err(why) => {
                        passage.refuse(why.clone());
                        return Err(why);
                    }
                };
            }
        }
        passage.refuse(Refusal::Answer);
        Err(Refusal::Answer)
    }

    fn answered(
        &self,
        mut response: Response<Incoming>,
        kept: Kept,
        exchange: Arc<Exchange>,
        mut passage: Passage,
        admitted: Admitted,
        socket: Option<OnUpgrade>,
    ) -> Result<Response<Answer>, Refusal> {
        *response.version_mut() = Version::HTTP_11;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(client) = socket else {
                passage.refuse(Refusal::Answer);
                return Err(Refusal::Answer);
            };
            let server = Far::Upgrade(hyper::upgrade::on(&mut response), kept.driver);
            strip(response.headers_mut());
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
            response.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
            self.become_tunnel(Next { client, server, watch: admitted.watch, passage });
            return Ok(response.map(|_| Either::Left(http_body_util::Full::default())));
        }
        strip(response.headers_mut());
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
        self.passes(&exchange, passage);
        Ok(response.map(|body| Either::Right(Answered::new(body, exchange))))
    }
}
