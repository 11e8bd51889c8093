//! The caller's side of a command that runs: its input, its signals, its end.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use moltis_sandbox::exec::{ExecEvents, ProcessId, TerminalSize};
use moltis_sandbox::{Diagnosis, Error, Exec, ExecControl, ExecEvent, Result};
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, mpsc, watch};

use crate::runs::Sink;

/// What a backend does to a command that runs.
#[async_trait]
pub trait Steers: Send + Sync {
    /// Sends a signal (1 to 64) to its group of processes.
    ///
    /// # Errors
    /// When the sandbox cannot be told.
    async fn signal(&self, signal: i32) -> Result<()>;

    /// Gives its terminal another size.
    ///
    /// # Errors
    /// When the sandbox cannot be told.
    async fn resize(&self, size: TerminalSize) -> Result<()>;
}

/// The caller's side.
pub struct Control {
    /// What is done to it.
    pub steers: Box<dyn Steers>,
    /// Its input, if the caller may write there.
    pub stdin: Option<Sink>,
    /// Told when it is to end.
    pub cancel: Arc<Notify>,
    /// Whether it is over.
    pub is_over: watch::Receiver<bool>,
}

#[async_trait]
impl ExecControl for Control {
    async fn stdin(&mut self, bytes: Bytes) -> Result<()> {
        let Some(stdin) = &mut self.stdin else { return Ok(()) };
        let mut is_over = self.is_over.clone();
        let written = tokio::select! {
            written = async { stdin.write_all(&bytes).await?; stdin.flush().await } => written.is_ok(),
            _ = is_over.wait_for(|over| *over) => false,
        };
        if !written {
            // Its events say what became of it.
            self.stdin = None;
        }
        Ok(())
    }

    async fn close_stdin(&mut self) -> Result<()> {
        if let Some(mut stdin) = self.stdin.take() {
            let mut is_over = self.is_over.clone();
            tokio::select! {
                _ = stdin.shutdown() => {}
                _ = is_over.wait_for(|over| *over) => {}
            }
        }
        Ok(())
    }

    async fn resize(&mut self, size: TerminalSize) -> Result<()> {
        match self.steers.resize(size).await {
            // It is over, or is about to be.
            Err(_) if *self.is_over.borrow() => Ok(()),
            done => done,
        }
    }

    async fn signal(&mut self, signal: i32) -> Result<()> {
        if !(1..=64).contains(&signal) {
            return Err(Error::Invalid(Diagnosis::new(
                "request-invalid",
                format!("there is no signal {signal}"),
            )));
        }
        if *self.is_over.borrow() {
            return Ok(());
        }
        self.steers.signal(signal).await
    }

    async fn cancel(&mut self) -> Result<()> {
        self.cancel.notify_one();
        Ok(())
    }
}

/// A command that runs, as it is handed out: that it started, and then what comes.
pub fn handed(process: ProcessId, mut events: mpsc::Receiver<Result<ExecEvent>>, control: Control) -> Exec {
    let mut first = Some(ExecEvent::Started(process));
    let stream = futures_util::stream::poll_fn(move |cx| match first.take() {
        Some(started) => std::task::Poll::Ready(Some(Ok(started))),
        None => events.poll_recv(cx),
    });
    Exec { events: ExecEvents::new(stream), control: Box::new(control) }
}
