//! Moving content while signals are heard: the first one breaks it off in an orderly way, so that nothing is left half
//! done.

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::unfold;
use moltis_sandbox::{ByteStream, Diagnosis, Error};
use tokio::sync::watch;

use crate::failure::Failure;
use crate::output::{Closed, Stream, Writer};
use crate::signals::Signals;
use crate::{render, stdin};

/// Breaks streams off once a signal was heard.
#[derive(Clone)]
pub struct Breaker(watch::Receiver<bool>);

/// What came of work.
pub enum Done<T> {
    /// It is done.
    Done(T),
    /// A signal of this number ended it.
    Told(i32),
}

/// Does work until it is done or a signal has ended it.
///
/// # Errors
/// Those of the work.
pub async fn run<T>(
    signals: &mut Signals,
    work: impl AsyncFnOnce(Breaker) -> Result<T, Failure>,
) -> Result<Done<T>, Failure> {
    let (told, heard) = watch::channel(false);
    let done = signals.race(work(Breaker(heard)), || told.send(true).is_ok()).await;
    match (done, signals.ended_by) {
        (Ok(Ok(done)), _) => Ok(Done::Done(done)),
        (Ok(Err(_)), Some(number)) | (Err(number), _) => Ok(Done::Told(number)),
        (Ok(Err(failure)), None) => Err(failure),
    }
}

impl Breaker {
    /// Waits until a signal was heard.
    pub async fn heard(&self) {
        // A sender that is gone tells nothing any more.
        if self.0.clone().wait_for(|told| *told).await.is_err() {
            std::future::pending().await
        }
    }

    /// A stream that ends with an error once a signal was heard.
    pub fn guard(&self, content: ByteStream) -> ByteStream {
        let state = Some((content, self.0.clone()));
        Box::pin(unfold(state, async |state| {
            let (mut content, mut heard) = state?;
            let piece = tokio::select! {
                biased;
                Ok(_) = heard.wait_for(|told| *told) => None,
                piece = content.next() => Some(piece?),
            };
            Some(match piece {
                Some(piece) => (piece, Some((content, heard))),
                None => (Err(interrupted()), None),
            })
        }))
    }
}

fn interrupted() -> Error {
    Error::Unavailable(Diagnosis::new("interrupted", "a signal broke it off"))
}

/// Our standard input as a stream.
pub fn standard_input() -> ByteStream {
    Box::pin(unfold(stdin::pieces(), async |mut pieces| {
        let piece = pieces.recv().await?;
        Some((Ok(piece), pieces))
    }))
}

/// Writes a stream to our standard output, with control characters shown instead of obeyed if `escaped`; gives its
/// length, or `None` when nobody reads it.
///
/// # Errors
/// The stream's, and when it cannot be written.
pub async fn to_standard_output(mut content: ByteStream, escaped: bool) -> Result<Option<u64>, Failure> {
    let mut writer = Writer::default();
    let mut size = 0;
    let mut escaping = Escaping::default();
    while let Some(piece) = content.next().await {
        let piece = piece?;
        size += piece.len() as u64;
        let piece = if escaped { escaping.take(&piece) } else { piece };
        if let Err(Closed) = writer.write(Stream::Stdout, piece).await {
            break;
        }
    }
    if escaped {
        // A reader that is gone shows below.
        let _ = writer.write(Stream::Stdout, escaping.end()).await;
    }
    match writer.finish().await {
        Ok(()) => Ok(Some(size)),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(None),
        Err(error) => Err(Failure::output(error)),
    }
}

/// Text that comes in pieces which may end in the middle of a character.
#[derive(Default)]
struct Escaping {
    /// The start of a character.
    rest: Vec<u8>,
}

impl Escaping {
    fn take(&mut self, piece: &[u8]) -> Bytes {
        self.rest.extend_from_slice(piece);
        let whole = match std::str::from_utf8(&self.rest) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            // What is no text at all is shown as such further down.
            Err(_) => self.rest.len() - unfinished(&self.rest),
            Ok(_) => self.rest.len(),
        };
        let rest = self.rest.split_off(whole);
        let text = std::mem::replace(&mut self.rest, rest);
        shown(&text)
    }

    fn end(&mut self) -> Bytes {
        shown(&std::mem::take(&mut self.rest))
    }
}

/// Bytes at the end that may begin a character.
fn unfinished(bytes: &[u8]) -> usize {
    let last = &bytes[bytes.len().saturating_sub(3)..];
    let start = last.iter().rposition(|byte| *byte >= 0xc0);
    start.map_or(0, |start| {
        let tail = &last[start..];
        match std::str::from_utf8(tail) {
            Err(error) if error.error_len().is_none() => tail.len(),
            _ => 0,
        }
    })
}

fn shown(text: &[u8]) -> Bytes {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<_> = text.split('\t').map(render::printable).collect();
    Bytes::from(lines.join("\t"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_however_the_text_is_cut() {
        let text = "é\x1b[2J\t漢\u{202e}\n".as_bytes();
        let text = [text, b"\xff\xe6\xbc", text].concat();
        let whole = {
            let mut escaping = Escaping::default();
            [escaping.take(&text), escaping.end()].concat()
        };
        let shown = "é\\u{1b}[2J\t漢\\u{202e}\n";
        assert_eq!(String::from_utf8(whole.clone()).unwrap(), format!("{shown}\u{fffd}\u{fffd}{shown}"));
        let mut escaping = Escaping::default();
        let mut bytewise: Vec<u8> = Vec::new();
        for byte in &text {
            bytewise.extend_from_slice(&escaping.take(&[*byte]));
        }
        bytewise.extend_from_slice(&escaping.end());
        assert_eq!(String::from_utf8(bytewise).unwrap(), String::from_utf8(whole).unwrap());
    }
}
