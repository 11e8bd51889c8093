//! The caller's side of a command: its half of the connection may be used while the events are read elsewhere.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::task::AtomicWaker;
use moltis_agent_protocol::message::Order;
use moltis_sandbox::exec::{ExecControl, ProcessId, TerminalSize};

use crate::client::{FrameWriter, Outgoing, Patience};
use crate::error::{Error, Result};
use crate::transport::Transport;

/// The outgoing half of the connection, until the events are dropped or the command is over.
pub(super) struct Shared {
    writer: Mutex<Option<FrameWriter>>,
    waker: AtomicWaker,
}

impl Shared {
    pub(super) fn new(writer: FrameWriter) -> Self {
        Self { writer: Mutex::new(Some(writer)), waker: AtomicWaker::new() }
    }

    /// Drops the outgoing half and lets go whoever waits to send.
    pub(super) fn close(&self) {
        let writer = self.writer().take();
        drop(writer);
        self.waker.wake();
    }

    fn writer(&self) -> MutexGuard<'_, Option<FrameWriter>> {
        // Held for one system call at most, and never while anything can panic.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll_send(&self, cx: &mut Context<'_>, outgoing: &mut Outgoing) -> Poll<io::Result<()>> {
        self.waker.register(cx.waker());
        let mut writer = self.writer();
        match &mut *writer {
            None => Poll::Ready(Ok(())),
            Some(open) => {
                let result = ready!(open.poll_send(cx, outgoing));
                if result.is_err() {
                    *writer = None;
                }
                Poll::Ready(result)
            }
        }
    }
}

/// What the caller may do to a running command.
pub(super) struct Control {
    shared: Arc<Shared>,
    transport: Arc<dyn Transport>,
    process: ProcessId,
    patience: Patience,
    /// Whether standard input was sent that the command may not have read.
    fed: bool,
}

impl Control {
    pub(super) fn new(
        shared: Arc<Shared>,
        transport: Arc<dyn Transport>,
        process: ProcessId,
        patience: Patience,
    ) -> Self {
        Self { shared, transport, process, patience, fed: false }
    }

    /// Sends; a command that is over, or whose connection is lost, takes everything without effect, since its events
    /// say what became of it.
    async fn send(&mut self, mut outgoing: Outgoing) -> Result<()> {
        let shared = &self.shared;
        match poll_fn(|cx| shared.poll_send(cx, &mut outgoing)).await {
            Ok(()) => Ok(()),
            Err(e) if matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                Ok(())
            }
            Err(e) => Err(Error::Lost(e)),
        }
    }

    /// An order would wait behind input that the command does not read; on a connection of its own it does not.
    async fn order(&mut self, order: Order) -> Result<()> {
        if !self.fed {
            return self.send(Outgoing::order(order)?).await;
        }
        over_is_no_error(super::order(&*self.transport, self.process, order, self.patience).await)
    }
}

#[async_trait]
impl ExecControl for Control {
    async fn stdin(&mut self, bytes: Bytes) -> moltis_sandbox::Result<()> {
        self.fed |= !bytes.is_empty();
        Ok(self.send(Outgoing::Data(bytes)).await?)
    }

    async fn close_stdin(&mut self) -> moltis_sandbox::Result<()> {
        Ok(self.send(Outgoing::eof()).await?)
    }

    async fn resize(&mut self, size: TerminalSize) -> moltis_sandbox::Result<()> {
        Ok(self.order(Order::Resize { rows: size.rows, columns: size.columns }).await?)
    }

    async fn signal(&mut self, signal: i32) -> moltis_sandbox::Result<()> {
        Ok(self.order(Order::Signal(signal)).await?)
    }

    async fn cancel(&mut self) -> moltis_sandbox::Result<()> {
        Ok(self.order(Order::Cancel).await?)
    }
}

/// A command that is over, and perhaps forgotten, takes orders without effect: its events say what became of it.
fn over_is_no_error(answer: Result<()>) -> Result<()> {
    match answer {
        Err(Error::Failed(..) | Error::Gone) => Ok(()),
        Err(error) if super::ended_meanwhile(&error) => Ok(()),
        answer => answer,
    }
}
