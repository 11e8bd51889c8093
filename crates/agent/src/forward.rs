//! Ports on the sandbox's loopback, in both directions.

mod raw;

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use moltis_agent_protocol::message::{FailureCode, Reply, Request};
use moltis_sandbox::{Duplex, Forwarder};

use crate::client::{Connection, Part, Patience, reply_of};
use crate::error::{Error, Result, Subject};
use crate::transport::Transport;

pub use raw::RawStream;

/// Connects to a port inside.
///
/// # Errors
/// [`Error::Failed`] when nothing listens there; the errors of [`Connection::open`].
pub async fn connect(transport: &dyn Transport, port: u16, patience: Patience) -> Result<RawStream> {
    take_over(transport, &Request::Connect { port }, patience).await
}

/// Listens on a port inside, 0 for any.
///
/// # Errors
/// [`Error::Failed`] when the port is taken; the errors of [`Connection::open`].
pub async fn listen(transport: &Arc<dyn Transport>, port: u16, patience: Patience) -> Result<Listener> {
    let mut connection = Connection::open(&**transport, &Request::Listen { port }, patience).await?;
    match connection.answer(Subject::Port).await? {
        Reply::Listening { listener, port: given } if given != 0 && (port == 0 || given == port) => {
            Ok(Listener {
                transport: Arc::clone(transport),
                patience,
                connection,
                listener,
                port: given,
                waiting: None,
            })
        }
        _ => Err(Error::unexpected("instead of a listener")),
    }
}

async fn take_over(transport: &dyn Transport, request: &Request, patience: Patience) -> Result<RawStream> {
    let mut connection = Connection::open(transport, request, patience).await?;
    match connection.answer(Subject::Port).await? {
        Reply::Connected => Ok(RawStream::new(connection.reader, connection.writer)),
        _ => Err(Error::unexpected("instead of a connection")),
    }
}

/// A listener inside the sandbox. Dropping it closes it and its connections.
pub struct Listener {
    transport: Arc<dyn Transport>,
    patience: Patience,
    connection: Connection,
    listener: u32,
    port: u16,
    /// A connection that was announced and not yet taken over.
    waiting: Option<u64>,
}

impl Listener {
    async fn next(&mut self) -> Result<RawStream> {
        loop {
            let token = match self.waiting {
                Some(token) => token,
                None => {
                    let token = self.announced().await?;
                    *self.waiting.insert(token)
                }
            };
            let request = Request::Accept { listener: self.listener, token };
            let taken = take_over(&*self.transport, &request, self.patience).await;
            self.waiting = None;
            match taken {
                // Whoever connected has gone away again.
                Err(Error::Failed(_, failure)) if failure.code == FailureCode::NotFound => {}
                other => return other,
            }
        }
    }

    async fn announced(&mut self) -> Result<u64> {
        match self.connection.reader.part().await? {
            Some(Part::Control(payload)) => match reply_of(&payload, Subject::Port)? {
                Reply::Incoming { token } => Ok(token),
                _ => Err(Error::unexpected("from a listener")),
            },
            Some(_) => Err(Error::unexpected("raw bytes from a listener")),
            None => Err(Error::Lost(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

#[async_trait]
impl Forwarder for Listener {
    fn port(&self) -> u16 {
        self.port
    }

    async fn accept(&mut self) -> moltis_sandbox::Result<Box<dyn Duplex>> {
        Ok(Box::new(self.next().await?))
    }
}
