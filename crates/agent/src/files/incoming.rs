//! Content and listings from the agent, as streams that read when they are asked.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use moltis_agent_protocol::Kind;
use moltis_agent_protocol::message::{Entry as WireEntry, Reply};
use moltis_sandbox::Entry;
use tokio::time::Sleep;

use crate::client::{Connection, Part, reply_of};
use crate::error::{Error, Result, Subject};

/// Most entries of one directory. No file system that we know holds more in one; an agent that goes on and on does.
const MAX_ENTRIES: u64 = 1 << 24;

/// The next part of a connection, with patience for work.
struct Parts {
    connection: Connection,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Parts {
    fn new(connection: Connection) -> Self {
        Self { connection, timer: None }
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<Part>> {
        match self.connection.reader.poll_part(cx) {
            Poll::Ready(part) => {
                self.timer = None;
                Poll::Ready(
                    part.and_then(|part| {
                        part.ok_or_else(|| Error::Lost(io::ErrorKind::UnexpectedEof.into()))
                    }),
                )
            }
            Poll::Pending => {
                let limit: Duration = self.connection.patience.work;
                let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
                timer.as_mut().poll(cx).map(|()| Err(Error::Silent(limit)))
            }
        }
    }
}

/// `Data` frames up to `Eof`.
pub(super) struct Content {
    parts: Option<Parts>,
}

impl Content {
    pub(super) fn new(connection: Connection) -> Self {
        Self { parts: Some(Parts::new(connection)) }
    }
}

impl Stream for Content {
    type Item = moltis_sandbox::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(parts) = &mut self.parts else { return Poll::Ready(None) };
        let item = match std::task::ready!(parts.poll_part(cx)) {
            Ok(Part::Raw(Kind::Data, bytes)) => return Poll::Ready(Some(Ok(bytes))),
            Ok(Part::Eof) => None,
            Ok(Part::Control(payload)) => Some(Err(match reply_of(&payload, Subject::File) {
                Err(error) => error,
                Ok(_) => Error::unexpected("in the middle of content"),
            })),
            Ok(Part::Raw(..)) => Some(Err(Error::unexpected("output of a command"))),
            Err(error) => Some(Err(error)),
        };
        self.parts = None;
        Poll::Ready(item.map(|item| item.map_err(Into::into)))
    }
}

/// `Entries` up to `Done`.
pub(super) struct Listing {
    parts: Option<Parts>,
    waiting: VecDeque<WireEntry>,
    seen: u64,
}

impl Listing {
    /// A listing whose first answer has arrived.
    pub(super) fn new(connection: Connection, first: Reply) -> Result<Self> {
        let mut listing = Self { parts: Some(Parts::new(connection)), waiting: VecDeque::new(), seen: 0 };
        listing.take(first)?;
        Ok(listing)
    }

    fn take(&mut self, reply: Reply) -> Result<()> {
        match reply {
            Reply::Done => self.parts = None,
            // A part without entries would keep the reader busy for ever.
            Reply::Entries(entries) if !entries.is_empty() => {
                self.seen += entries.len() as u64;
                if self.seen > MAX_ENTRIES {
                    return Err(Error::Protocol("a listing that does not end".to_owned()));
                }
                self.waiting = entries.into();
            }
            _ => return Err(Error::unexpected("in a listing")),
        }
        Ok(())
    }

    fn poll_entry(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Entry>>> {
        loop {
            if let Some(found) = self.waiting.pop_front() {
                return Poll::Ready(Some(super::entry(found)));
            }
            let Some(parts) = &mut self.parts else { return Poll::Ready(None) };
            let taken = match std::task::ready!(parts.poll_part(cx)) {
                Ok(Part::Control(payload)) => {
                    reply_of(&payload, Subject::File).and_then(|reply| self.take(reply))
                }
                Ok(_) => Err(Error::unexpected("raw bytes in a listing")),
                Err(error) => Err(error),
            };
            if let Err(error) = taken {
                return Poll::Ready(Some(Err(error)));
            }
        }
    }
}

impl Stream for Listing {
    type Item = moltis_sandbox::Result<Entry>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let item = std::task::ready!(self.poll_entry(cx));
        if matches!(item, Some(Err(_))) {
            self.parts = None;
            self.waiting.clear();
        }
        Poll::Ready(item.map(|item| item.map_err(Into::into)))
    }
}
