//! A request and its answer, either of which may outlast the other. Till both are over they are watched, and counted.

use std::pin::Pin;
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{Either, Empty};
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::http::Front;
use crate::journal::{Counts, Passage};
use crate::session::Watch;

/// Held by a request's body and by its answer's. Dropped by the last of them, it ends what is under way.
pub(crate) struct Exchange(Weak<Front>);

/// What is under way.
pub(super) struct Going {
    exchange: Weak<Exchange>,
    counts: Arc<Counts>,
    watch: Watch,
    /// Once the answer has begun. Its end is written down when it is dropped.
    passage: Option<Passage>,
}

impl Going {
    fn is_of(&self, exchange: *const Exchange) -> bool {
        std::ptr::eq(self.exchange.as_ptr(), exchange)
    }
}

impl Exchange {
    pub(super) fn new(front: &Arc<Front>) -> Arc<Self> {
        Arc::new(Self(Arc::downgrade(front)))
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let Some(front) = self.0.upgrade() else { return };
        let own: *const Self = self;
        let over = {
            let mut going = front.going.lock().unwrap_or_else(PoisonError::into_inner);
            // Another one may have begun on this connection.
            if going.as_ref().is_some_and(|going| going.is_of(own)) { going.take() } else { None }
        };
        drop(over);
    }
}

impl Front {
    /// Makes a request the one that is under way.
    pub(super) fn begin(&self, exchange: &Arc<Exchange>, counts: &Arc<Counts>, watch: &Watch) {
        let now = Going {
            exchange: Arc::downgrade(exchange),
            counts: Arc::clone(counts),
            watch: watch.clone(),
            passage: None,
        };
        let before = self.going.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        drop(before);
    }

    /// Keeps what is to be written down of it until it is over.
    pub(super) fn passes(&self, exchange: &Arc<Exchange>, passage: Passage) {
        let mut going = self.going.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(going) = going.as_mut().filter(|going| going.is_of(Arc::as_ptr(exchange))) {
            going.passage = Some(passage);
        }
    }

    /// What counts its bytes.
    pub(super) fn counts(&self) -> Option<Arc<Counts>> {
        let going = self.going.lock().unwrap_or_else(PoisonError::into_inner);
        going.as_ref().map(|going| Arc::clone(&going.counts))
    }

    /// Judges it again; whether it is to be cut.
    pub(super) fn revoked(&self) -> bool {
        let mut going = self.going.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Going { counts, watch, .. }) = &mut *going else { return false };
        let Err(why) = watch.still() else { return false };
        *counts.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        true
    }

    /// Ends it with the connection from inside, and what leads to its server.
    pub(super) fn end(&self) {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        let going = self.going.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop((kept, going));
    }
}

/// What is sent along with a request: the body from inside, or none.
pub(crate) struct Sent {
    body: Either<Incoming, Empty<Bytes>>,
    _exchange: Option<Arc<Exchange>>,
}

impl Sent {
    pub(super) fn new(body: Incoming, exchange: &Arc<Exchange>) -> Self {
        Self { body: Either::Left(body), _exchange: Some(Arc::clone(exchange)) }
    }

    pub(super) fn nothing() -> Self {
        Self { body: Either::Right(Empty::new()), _exchange: None }
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A server's answer on its way in.
pub(super) struct Answered {
    body: Incoming,
    _exchange: Arc<Exchange>,
}

impl Answered {
    pub(super) fn new(body: Incoming, exchange: Arc<Exchange>) -> Self {
        Self { body, _exchange: exchange }
    }
}

impl Body for Answered {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
