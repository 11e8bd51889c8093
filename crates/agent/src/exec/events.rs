//! The events of a command: decoded when they are asked for, so that not asking holds the command back.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use moltis_agent_protocol::Kind;
use moltis_agent_protocol::message::Reply;
use moltis_sandbox::ExecEvent;
use moltis_sandbox::exec::ProcessId;
use tokio::time::{Instant, Sleep};

use super::control::Shared;
use super::outcome;
use crate::client::{FrameReader, Part, reply_of};
use crate::error::{Error, Result, Subject};

/// The stream behind [`moltis_sandbox::exec::ExecEvents`].
pub(super) struct Events {
    reader: FrameReader,
    shared: Arc<Shared>,
    started: Option<ProcessId>,
    over: bool,
    backstop: Option<Backstop>,
}

/// Notices an agent that does not keep its own deadline.
struct Backstop {
    at: Instant,
    grace: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// Whether anything has come since the timer was set.
    progress: bool,
}

impl Events {
    pub(super) fn new(
        reader: FrameReader,
        shared: Arc<Shared>,
        process: ProcessId,
        deadline: Option<Duration>,
        grace: Duration,
    ) -> Self {
        let backstop = deadline
            .and_then(|deadline| Instant::now().checked_add(deadline)?.checked_add(grace))
            .map(|at| Backstop { at, grace, timer: None, progress: false });
        Self { reader, shared, started: Some(process), over: false, backstop }
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ExecEvent>>> {
        let part = match self.reader.poll_part(cx) {
            Poll::Ready(part) => part,
            Poll::Pending => return self.poll_backstop(cx),
        };
        Poll::Ready(match part {
            Err(error) => Some(Err(error)),
            Ok(None) => Some(Err(Error::Lost(io::ErrorKind::UnexpectedEof.into()))),
            Ok(Some(Part::Raw(Kind::Stdout, bytes))) => Some(Ok(ExecEvent::Stdout(bytes))),
            Ok(Some(Part::Raw(Kind::Stderr, bytes))) => Some(Ok(ExecEvent::Stderr(bytes))),
            Ok(Some(Part::Raw(..) | Part::Eof)) => Some(Err(Error::unexpected("data of a file"))),
            Ok(Some(Part::Control(payload))) => match reply_of(&payload, Subject::Command) {
                Err(error) => Some(Err(error)),
                Ok(Reply::Missed { stdout, stderr }) => Some(Ok(ExecEvent::Missed { stdout, stderr })),
                Ok(Reply::Exited(exited)) => {
                    self.over = true;
                    Some(outcome(exited).map(ExecEvent::Exit))
                }
                // A watcher who does not follow has all there is.
                Ok(Reply::Done) => None,
                Ok(_) => Some(Err(Error::unexpected("while a command runs"))),
            },
        })
    }

    fn poll_backstop(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ExecEvent>>> {
        let Some(backstop) = &mut self.backstop else { return Poll::Pending };
        let at = backstop.at;
        let timer = backstop.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        loop {
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            // Output that was held back, or a long descent, may keep coming for a while.
            if !std::mem::take(&mut backstop.progress) {
                return Poll::Ready(Some(Err(Error::Silent(backstop.grace))));
            }
            timer.as_mut().reset(Instant::now() + backstop.grace.min(Duration::from_secs(1)));
        }
    }
}

impl Stream for Events {
    type Item = moltis_sandbox::Result<ExecEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(process) = self.started.take() {
            return Poll::Ready(Some(Ok(ExecEvent::Started(process))));
        }
        if self.over {
            return Poll::Ready(None);
        }
        match self.poll_event(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(event) => {
                if let Some(backstop) = &mut self.backstop {
                    backstop.progress = true;
                }
                if matches!(event, None | Some(Err(_))) {
                    self.over = true;
                }
                if self.over {
                    self.shared.close();
                }
                Poll::Ready(event.map(|event| event.map_err(Into::into)))
            }
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // The agent sees the caller go when both halves of the connection are closed.
        self.shared.close();
    }
}
