//! Writing a command's output to our own streams, on a thread of its own: a reader that stalls holds the command
//! back, and signals are still heard.

use std::io::{self, Write};

use bytes::Bytes;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};

use crate::failure::Failure;

/// Exit status when the reader of our output is gone: what a shell shows for a program that SIGPIPE ended.
pub const BROKEN_PIPE: i32 = 128 + 13;

/// Chunks that may wait for a slow reader; a chunk has at most 256 KiB.
const WAITING: usize = 4;

/// Which of our streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// The writing thread, once there is something to write.
#[derive(Default)]
pub struct Writer(Option<Thread>);

struct Thread {
    chunks: mpsc::Sender<(Stream, Bytes)>,
    done: oneshot::Receiver<io::Result<()>>,
}

/// The reader of our output is gone.
#[derive(Debug)]
pub struct Closed;

impl Thread {
    fn start() -> Self {
        let (chunks, mut waiting) = mpsc::channel::<(Stream, Bytes)>(WAITING);
        let (tell, done) = oneshot::channel();
        std::thread::spawn(move || {
            let mut result = Ok(());
            while let Some((stream, bytes)) = waiting.blocking_recv() {
                result = match stream {
                    Stream::Stdout => write_raw(&io::stdout(), &bytes),
                    Stream::Stderr => write_raw(&io::stderr(), &bytes),
                };
                if result.is_err() {
                    break;
                }
            }
            // The program may be past caring.
            let _ = tell.send(result);
        });
        Self { chunks, done }
    }
}

impl Writer {
    /// Hands bytes over; waits while the reader is behind.
    pub async fn write(&mut self, stream: Stream, bytes: Bytes) -> Result<(), Closed> {
        let thread = self.0.get_or_insert_with(Thread::start);
        thread.chunks.send((stream, bytes)).await.map_err(|_| Closed)
    }

    /// Waits until everything is written.
    pub async fn finish(self) -> io::Result<()> {
        let Some(Thread { chunks, done }) = self.0 else { return Ok(()) };
        drop(chunks);
        done.await.unwrap_or(Ok(()))
    }
}

/// Writes to the descriptor itself: the standard library's line buffer would split large chunks.
fn write_raw(stream: &impl std::os::fd::AsFd, bytes: &[u8]) -> io::Result<()> {
    FdWriter(stream).write_all(bytes)
}

/// Standard output itself, for what is written in large pieces.
pub struct Raw;

impl Write for Raw {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        FdWriter(&io::stdout()).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct FdWriter<'a, F>(&'a F);

impl<F: std::os::fd::AsFd> Write for FdWriter<'_, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match rustix::io::write(self.0, bytes) {
                Ok(n) => return Ok(n),
                Err(rustix::io::Errno::INTR) => {}
                // Somebody made the stream non-blocking: wait until it takes more.
                Err(rustix::io::Errno::AGAIN) => {
                    let mut wait = [rustix::event::PollFd::new(self.0, rustix::event::PollFlags::OUT)];
                    rustix::event::poll(&mut wait, None)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Prints text to standard output; gives the exit status.
///
/// # Errors
/// When it cannot be written, for another reason than that nobody reads it.
pub fn print(text: &str) -> Result<i32, Failure> {
    match write_raw(&io::stdout(), text.as_bytes()) {
        Ok(()) => Ok(0),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(BROKEN_PIPE),
        Err(error) => Err(Failure::output(error)),
    }
}

/// The fields of a JSON object that have a value: what there is not is absent, never null.
pub fn present(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(fields) => fields.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        _ => Map::new(),
    }
}

/// Prints one JSON value and a line break to standard output; gives the exit status.
///
/// # Errors
/// As for [`print`].
pub fn print_json(value: &impl serde::Serialize) -> Result<i32, Failure> {
    print(&json_line(value)?)
}

/// One JSON value and a line break. Every control character in it is escaped, also those that JSON lets stand: none can
/// act on a terminal.
pub fn json_line(value: &impl serde::Serialize) -> Result<String, Failure> {
    let plain = serde_json::to_string(value).map_err(|e| Failure::output(e.into()))?;
    let mut text = String::with_capacity(plain.len() + 1);
    for piece in plain.split_inclusive(char::is_control) {
        match piece.chars().next_back().filter(|c| c.is_control()) {
            Some(c) => {
                text.push_str(&piece[..piece.len() - c.len_utf8()]);
                text.push_str(&format!("\\u{:04x}", c as u32));
            }
            None => text.push_str(piece),
        }
    }
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    #[test]
    fn json_holds_no_control_characters() {
        let line = super::json_line(&"a\u{9d}52;c;x\u{7}\n\u{7f}é").unwrap_or_default();
        assert_eq!(line, "\"a\\u009d52;c;x\\u0007\\n\\u007fé\"\n");
    }
}
