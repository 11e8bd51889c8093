//! Content to the agent, which may answer before it has all: a refusal ends the sending.

use std::future::poll_fn;
use std::task::Poll;

use moltis_agent_protocol::message::Reply;
use moltis_sandbox::ByteStream;

use crate::client::{Connection, FrameWriter, Outgoing};
use crate::error::{Error, Result, Subject};

/// Sends all of `content`, then waits for the agent's one answer. When `content` fails the connection is dropped
/// before its end, and the agent throws away what it has.
pub(super) async fn send(mut connection: Connection, content: ByteStream) -> Result<Reply> {
    let sent = {
        let mut reply = std::pin::pin!(connection.reader.reply(Subject::File));
        let mut sending = std::pin::pin!(send_all(&mut connection.writer, content));
        poll_fn(|cx| {
            if let Poll::Ready(reply) = reply.as_mut().poll(cx) {
                return Poll::Ready(Err(reply));
            }
            sending.as_mut().poll(cx).map(Ok)
        })
        .await
    };
    match sent {
        // The agent needs no more to say no. It cannot have said yes.
        Err(Ok(_)) => Err(Error::unexpected("before the content was sent")),
        Err(Err(error)) => Err(error),
        Ok(Err(Sending::Content(error))) => Err(Error::Judged(error)),
        // The agent hung up; what it said before that is still to be read.
        Ok(Err(Sending::Connection(error))) => match connection.worked(Subject::File).await {
            Ok(_) => Err(Error::Lost(error)),
            Err(answer) => Err(answer),
        },
        Ok(Ok(())) => connection.worked(Subject::File).await,
    }
}

enum Sending {
    Content(moltis_sandbox::Error),
    Connection(std::io::Error),
}

async fn send_all(writer: &mut FrameWriter, mut content: ByteStream) -> Result<(), Sending> {
    while let Some(bytes) = poll_fn(|cx| content.as_mut().poll_next(cx)).await {
        let bytes = bytes.map_err(Sending::Content)?;
        writer.send(Outgoing::Data(bytes)).await.map_err(Sending::Connection)?;
    }
    writer.send(Outgoing::eof()).await.map_err(Sending::Connection)
}
