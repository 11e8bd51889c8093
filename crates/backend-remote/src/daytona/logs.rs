//! The output of a command: followed over a WebSocket, taken up again where it broke off, and read by asking where no
//! WebSocket can be had.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use tokio_tungstenite::tungstenite::Message;

use super::toolbox::Toolbox;
use crate::http::{Failure, Socket};
use crate::machine::{Output, Piece};

/// How often output is taken up again without a byte in between.
const TAKEN_UP: u32 = 8;
/// Between two questions where output is asked for.
const PAUSE: (Duration, Duration) = (Duration::from_millis(150), Duration::from_secs(1));

/// Output of one command in a session of its own, which ends with this.
pub struct Logs {
    toolbox: Arc<Toolbox>,
    session: String,
    command: String,
    way: Way,
    marked: Marked,
    ready: VecDeque<Piece>,
    /// Bytes that came of each stream.
    seen: [usize; 2],
    /// Bytes of each stream that have come before.
    skip: [usize; 2],
    again: u32,
}

/// How output comes.
enum Way {
    /// It is to be begun, or begun again.
    None,
    Socket(Box<Socket>),
    /// All of it, each time: after this long.
    Asking(Duration),
    Over,
}

impl Drop for Logs {
    fn drop(&mut self) {
        let (toolbox, session) = (Arc::clone(&self.toolbox), std::mem::take(&mut self.session));
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                // What is left is ended with the sandbox.
                let _ = toolbox.end(&session).await;
            });
        }
    }
}

impl Logs {
    /// Of this command.
    pub fn new(toolbox: Arc<Toolbox>, session: String, command: String) -> Self {
        Self {
            toolbox,
            session,
            command,
            way: Way::None,
            marked: Marked::default(),
            ready: VecDeque::new(),
            seen: [0; 2],
            skip: [0; 2],
            again: 0,
        }
    }

    /// What has come is split, and what came before is left out.
    fn take(&mut self, bytes: &[u8]) {
        for (which, mut text) in self.marked.take(bytes) {
            let skipped = self.skip[which].min(text.len());
            self.skip[which] -= skipped;
            text.drain(..skipped);
            if text.is_empty() {
                continue;
            }
            self.seen[which] += text.len();
            self.again = 0;
            // Output of ours is ASCII; anything else is not looked at closely.
            let text = String::from_utf8_lossy(&text).into_owned();
            self.ready.push_back(if which == 0 { Piece::Stdout(text) } else { Piece::Stderr(text) });
        }
    }

    /// From the start of the output, without what has come.
    fn anew(&mut self) {
        self.skip = self.seen;
        self.marked = Marked::default();
    }

    async fn begin(&mut self) -> Result<(), Failure> {
        self.anew();
        self.way = match self.toolbox.follow(&self.session, &self.command).await {
            Ok(socket) => Way::Socket(Box::new(socket)),
            // What stands in between knows no WebSocket.
            Err(Failure::Answer { status: 200 | 400 | 404 | 405 | 426 | 501, .. }) => Way::Asking(PAUSE.0),
            Err(failure) => return Err(failure),
        };
        Ok(())
    }

    /// The connection is over: so is the command, or the output is taken up again.
    async fn broke(&mut self, why: Failure) -> Result<(), Failure> {
        self.way = Way::None;
        self.again += 1;
        if self.again > TAKEN_UP {
            return Err(why);
        }
        if self.again > 1 {
            tokio::time::sleep(PAUSE.0 * self.again).await;
        }
        Ok(())
    }

    /// All that it printed so far; whether it is over.
    async fn ask(&mut self) -> Result<bool, Failure> {
        // First whether it is over: what is printed later belongs to the next question.
        let is_over = self.toolbox.is_over(&self.session, &self.command).await?;
        let all = self.toolbox.printed(&self.session, &self.command).await?;
        self.anew();
        self.take(all.as_bytes());
        Ok(is_over)
    }
}

#[async_trait]
impl Output for Logs {
    async fn next(&mut self) -> Result<Option<Piece>, Failure> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Some(piece));
            }
            match &mut self.way {
                Way::Over => return Ok(None),
                Way::None => match self.begin().await {
                    // A question may be asked again.
                    Err(
                        failure @ (Failure::Broken(_)
                        | Failure::Unreachable(_)
                        | Failure::Answer { status: 429 | 500..=599, .. }),
                    ) => self.broke(failure).await?,
                    begun => begun?,
                },
                Way::Asking(pause) => {
                    tokio::time::sleep(*pause).await;
                    *pause = (*pause * 2).min(PAUSE.1);
                    let had = self.seen;
                    if self.ask().await? {
                        self.way = Way::Over;
                    } else if self.seen != had {
                        self.way = Way::Asking(PAUSE.0);
                    }
                }
                Way::Socket(socket) => match socket.next().await {
                    Some(Ok(Message::Binary(bytes))) => self.take(&bytes),
                    Some(Ok(Message::Text(text))) => self.take(text.as_str().as_bytes()),
                    Some(Ok(Message::Close(Some(frame)))) if u16::from(frame.code) == 1000 => {
                        self.way = Way::Over;
                    }
                    Some(Ok(Message::Close(_))) | None => {
                        let why = Failure::Broken("the stream ended early".to_owned());
                        self.broke(why).await?;
                    }
                    Some(Err(error)) => {
                        let why = Failure::Broken(self.toolbox.scrub(&error.to_string()));
                        self.broke(why).await?;
                    }
                    Some(Ok(_)) => {}
                },
            }
        }
    }
}

/// Splits marked output: three bytes of 1 begin standard output, three of 2 standard error.
#[derive(Debug, Default)]
pub struct Marked {
    current: Option<usize>,
    /// A mark that may go on in the next piece.
    held: Vec<u8>,
}

impl Marked {
    fn take(&mut self, bytes: &[u8]) -> Vec<(usize, Vec<u8>)> {
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        let mut pieces: Vec<(usize, Vec<u8>)> = Vec::new();
        let (mut at, mut from) = (0, 0);
        let mut say = |current: Option<usize>, text: &[u8]| {
            // What comes before the first mark is no output.
            let Some(which) = current.filter(|_| !text.is_empty()) else { return };
            match pieces.last_mut() {
                Some((last, piece)) if *last == which => piece.extend_from_slice(text),
                _ => pieces.push((which, text.to_vec())),
            }
        };
        while let Some(found) = memchr::memchr2(1, 2, &all[at..]) {
            at += found;
            let byte = all[at];
            let run = all[at..].iter().take(3).take_while(|other| **other == byte).count();
            if run == 3 {
                say(self.current, &all[from..at]);
                self.current = Some(usize::from(byte == 2));
                at += 3;
                from = at;
            } else if at + run == all.len() {
                // It may go on in the next piece.
                say(self.current, &all[from..at]);
                self.held = all.split_off(at);
                return pieces;
            } else {
                at += run;
            }
        }
        say(self.current, &all[from..]);
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_wherever_pieces_are_cut() {
        let told = b"lost\x01\x01\x01out\n\x02\x02\x02err\x01\x02\n\x01\x01\x01\x01more\n";
        for cut in 0..=told.len() {
            let mut marked = Marked::default();
            let mut streams = [Vec::new(), Vec::new()];
            for part in [&told[..cut], &told[cut..]] {
                for (which, text) in marked.take(part) {
                    streams[which].extend(text);
                }
            }
            assert_eq!(streams, [b"out\n\x01more\n".to_vec(), b"err\x01\x02\n".to_vec()], "{cut}");
        }
    }
}
