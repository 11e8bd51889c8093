//! What is said to whoever holds a background command, over the socket in its folder: a word, a length, as many bytes;
//! each is answered by one byte once it is done. The folder is ours alone, and so is whoever comes by.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream as BlockingStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use moltis_sandbox::Result as SandboxResult;
use moltis_sandbox::exec::{ExecControl, TerminalSize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use super::kept::Kept;
use crate::commands::{Fate, declared};
use crate::error::Error;
use crate::guarantees::NO_TERMINAL;

const INPUT: u8 = b'i';
const CLOSE: u8 = b'c';
const SIGNAL: u8 = b's';
const END: u8 = b'e';

const DONE: u8 = b'+';
const NOT_DONE: u8 = b'-';

/// Most bytes of one message.
const MAX: usize = 64 * 1024;

/// What a holder does as it is told.
#[derive(Clone)]
pub struct Ear {
    /// Its command's input, until somebody closes it.
    pub feed: Arc<Mutex<Option<mpsc::Sender<Bytes>>>>,
    /// By which it is ended.
    pub fate: Arc<Fate>,
}

/// Hears whoever comes by, until it is dropped.
pub async fn serve(listener: UnixListener, ear: Ear) {
    let mut talks = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = talks.join_next() => {}
            came = listener.accept() => match came {
                Ok((stream, _)) => {
                    let ear = ear.clone();
                    talks.spawn(async move {
                        // Whoever breaks off has said all that he wanted to.
                        let _ = ear.listen(stream).await;
                    });
                }
                // Too much is open at the moment.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }
}

impl Ear {
    async fn listen(&self, mut stream: UnixStream) -> io::Result<()> {
        loop {
            let word = stream.read_u8().await?;
            let length = usize::try_from(stream.read_u32_le().await?).unwrap_or(usize::MAX);
            if length > MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let mut bytes = vec![0; length];
            stream.read_exact(&mut bytes).await?;
            let done = self.obey(word, bytes).await;
            stream.write_u8(if done { DONE } else { NOT_DONE }).await?;
        }
    }

    async fn obey(&self, word: u8, bytes: Vec<u8>) -> bool {
        let feed = || self.feed.lock().unwrap_or_else(PoisonError::into_inner);
        match word {
            INPUT => {
                let sender = feed().clone();
                if let Some(sender) = sender {
                    // One that reads no more takes what comes without effect.
                    let _ = sender.send(bytes.into()).await;
                }
                true
            }
            CLOSE => {
                *feed() = None;
                true
            }
            SIGNAL => {
                let Ok(signal) = <[u8; 4]>::try_from(bytes.as_slice()) else { return false };
                self.fate.signal(i32::from_le_bytes(signal)).is_ok()
            }
            END => {
                self.fate.close();
                true
            }
            _ => false,
        }
    }
}

fn message(word: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&[word][..], &length.to_le_bytes(), bytes].concat()
}

/// Tells whoever holds it to end it. Blocks for a moment.
pub fn end(kept: &Kept) {
    let tell = || -> io::Result<()> {
        let (_folder, path) = kept.socket()?;
        let mut stream = BlockingStream::connect(path)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(&message(END, &[]))?;
        stream.read_exact(&mut [0])
    };
    // One that is over hears nothing any more.
    let _ = tell();
}

/// The control of a watcher.
pub struct Remote {
    kept: Kept,
    stream: Option<UnixStream>,
}

impl Remote {
    /// Of this command.
    pub fn new(kept: Kept) -> Self {
        Self { kept, stream: None }
    }

    /// Whether it was done; `None` when nobody hears any more.
    async fn say(&mut self, word: u8, bytes: &[u8]) -> Option<bool> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                let (_folder, path) = self.kept.socket().ok()?;
                UnixStream::connect(path).await.ok()?
            }
        };
        stream.write_all(&message(word, bytes)).await.ok()?;
        let answer = stream.read_u8().await.ok()?;
        // Only a connection on which nothing is under way is used again.
        self.stream = Some(stream);
        Some(answer == DONE)
    }
}

#[async_trait]
impl ExecControl for Remote {
    async fn stdin(&mut self, mut bytes: Bytes) -> SandboxResult<()> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(MAX));
            if self.say(INPUT, &piece).await.is_none() {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn close_stdin(&mut self) -> SandboxResult<()> {
        self.say(CLOSE, &[]).await;
        Ok(())
    }

    async fn resize(&mut self, _: TerminalSize) -> SandboxResult<()> {
        Err(declared("there is no terminal", NO_TERMINAL, "terminal-unsupported").into())
    }

    async fn signal(&mut self, signal: i32) -> SandboxResult<()> {
        if self.say(SIGNAL, &signal.to_le_bytes()).await == Some(false) {
            let what = format!("signal {signal} means nothing to a shell without processes");
            return Err(Error::Request(what).into());
        }
        Ok(())
    }

    async fn cancel(&mut self) -> SandboxResult<()> {
        self.say(END, &[]).await;
        Ok(())
    }
}
