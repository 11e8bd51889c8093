//! One operation's connection: hello, request, and then frames in both directions.

mod reader;
mod writer;

use std::io;
use std::time::Duration;

use moltis_agent_protocol::frame;
use moltis_agent_protocol::hello::{self, HELLO_BYTES};
use moltis_agent_protocol::message::{Reply, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) use reader::{FrameReader, Part, decode as reply_of};
pub(crate) use writer::{FrameWriter, Outgoing};

use crate::error::{Error, Result, Subject};
use crate::transport::Transport;

/// How long the agent is waited for. These bound what a broken or hostile agent can hold up; none of them ends a
/// command, which is the agent's to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For the hello: PID 1 never does anything that takes long.
    pub hello: Duration,
    /// For the first answer of a command, a listing or a connection.
    pub answer: Duration,
    /// For a file operation to be done, or to go on.
    pub work: Duration,
    /// For the end of a command after its time was up.
    pub grace: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            hello: Duration::from_secs(10),
            answer: Duration::from_secs(60),
            work: Duration::from_secs(600),
            grace: Duration::from_secs(30),
        }
    }
}

/// A connection whose request has been sent and whose hello has been checked.
pub struct Connection {
    pub(crate) reader: FrameReader,
    pub(crate) writer: FrameWriter,
    pub(crate) patience: Patience,
}

impl Connection {
    /// Connects, sends the request and checks the agent's hello.
    ///
    /// # Errors
    /// Before the agent can have read the request: the errors of [`Transport::connect`], [`Error::Gone`] and
    /// [`Error::Version`]. After that: [`Error::Lost`], [`Error::Silent`] and [`Error::Protocol`].
    pub async fn open(transport: &dyn Transport, request: &Request, patience: Patience) -> Result<Self> {
        let message = frame::encode_control(request)?;
        let mut channel = transport.connect().await?;
        let first = [&hello::hello()[..], &message].concat();
        let greeting = async {
            // An agent that has not read the whole request cannot have begun with it.
            channel.writer.write_all(&first).await.map_err(before)?;
            channel.writer.flush().await.map_err(before)?;
            let mut theirs = [0; HELLO_BYTES];
            let mut have = 0;
            while have < HELLO_BYTES {
                match channel.reader.read(&mut theirs[have..]).await {
                    Ok(0) => return Err(Error::Lost(io::ErrorKind::UnexpectedEof.into())),
                    Ok(n) => have += n,
                    // The kernel resets a Unix connection that is closed with unread bytes in it, or that was never
                    // accepted; one whose request was read is closed without that.
                    Err(e) if have == 0 && e.kind() == io::ErrorKind::ConnectionReset => {
                        return Err(Error::Gone);
                    }
                    Err(e) => return Err(Error::Lost(e)),
                }
            }
            hello::check(theirs).map_err(|e| match e {
                hello::HelloError::Version { .. } => Error::Version(e),
                hello::HelloError::Magic => Error::Protocol(e.to_string()),
            })
        };
        match tokio::time::timeout(patience.hello, greeting).await {
            Ok(result) => result?,
            Err(_) => return Err(Error::Silent(patience.hello)),
        }
        Ok(Self {
            reader: FrameReader::new(channel.reader),
            writer: FrameWriter::new(channel.writer),
            patience,
        })
    }

    /// The next reply, within the patience for answers; a `Failed` becomes an error about `subject`.
    ///
    /// # Errors
    /// [`Error::Failed`], or that the connection is lost, silent or broken.
    pub async fn answer(&mut self, subject: Subject) -> Result<Reply> {
        let limit = self.patience.answer;
        self.answer_within(limit, subject).await
    }

    /// As [`answer`](Self::answer), with as much patience as work takes.
    ///
    /// # Errors
    /// As [`answer`](Self::answer).
    pub async fn worked(&mut self, subject: Subject) -> Result<Reply> {
        let limit = self.patience.work;
        self.answer_within(limit, subject).await
    }

    /// Waits for a plain `Done`.
    ///
    /// # Errors
    /// As [`answer`](Self::answer).
    pub async fn done(&mut self, subject: Subject) -> Result<()> {
        match self.worked(subject).await? {
            Reply::Done => Ok(()),
            _ => Err(Error::unexpected("instead of done")),
        }
    }

    async fn answer_within(&mut self, limit: Duration, subject: Subject) -> Result<Reply> {
        match tokio::time::timeout(limit, self.reader.reply(subject)).await {
            Ok(result) => result,
            Err(_) => Err(Error::Silent(limit)),
        }
    }
}

/// An error while the request was being sent.
fn before(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Error::Gone,
        _ => Error::Unreachable(error),
    }
}
