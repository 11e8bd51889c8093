//! The way to the agent in a machine: Firecracker's Unix socket for its vsock device, on which a connection says which port
//! of the guest it wants. Streams go in pieces, since Firecracker ends both directions of a connection at once.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use moltis_agent::{Channel, Error as AgentError, Transport};
use moltis_agent_protocol::machine::{AGENT_PORT, AWAKE, MAX_PIECE, PIECE_HEADER, Piece, WAKE_PORT, Wake};
use moltis_host::process::Process;
use rustix::fs::{Mode, OFlags, openat};
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::UnixStream;

use crate::api::connect_to;
use crate::error::{Error, Result};

/// Name of the socket in the machine's working directory.
pub const SOCKET: &str = "v.sock";

/// How long a connection to the guest may take before it is tried again, and in all.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
const CONNECTS_WITHIN: Duration = Duration::from_secs(10);

/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(2);

/// Bytes of Firecracker's answer to `CONNECT`, at most.
const MAX_LINE: usize = 32;

/// Reaches the agent of one machine.
#[derive(Debug)]
pub struct VsockTransport {
    socket: OwnedFd,
    process: Process,
}

/// Why there is no connection.
enum Refused {
    /// Nobody serves the port, or Firecracker has just begun anew and answers nothing yet.
    Empty,
    /// Something that will not change.
    For(Error),
}

impl VsockTransport {
    /// Takes the socket in the working directory of this process.
    ///
    /// # Errors
    /// [`Error::Folder`] when it is not there.
    pub fn open(directory: impl AsFd, process: &Process) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = openat(directory, SOCKET, flags, Mode::empty()).map_err(Error::folder(SOCKET))?;
        Ok(Self { socket, process: process.try_clone().map_err(Error::folder(SOCKET))? })
    }

    /// One attempt at a port.
    async fn attempt(&self, port: u32) -> std::result::Result<UnixStream, Refused> {
        let call = "CONNECT";
        let mut stream = connect_to(&self.socket, self.process.pid(), call).map_err(|error| match error {
            // Its queue is full, or it is ending.
            Error::Silent { .. } => Refused::Empty,
            error => Refused::For(error),
        })?;
        let asked = async {
            stream.write_all(format!("CONNECT {port}\n").as_bytes()).await?;
            let mut line = Vec::with_capacity(MAX_LINE);
            // One byte at a time: what follows the line is the guest's.
            while line.len() < MAX_LINE {
                let byte = stream.read_u8().await?;
                if byte == b'\n' {
                    return Ok(line);
                }
                line.push(byte);
            }
            Err(io::Error::other("its answer does not end"))
        };
        let line = match tokio::time::timeout(ANSWERS_WITHIN, asked).await {
            Ok(Ok(line)) => line,
            Ok(Err(error)) if error.kind() == io::ErrorKind::Other => {
                let why = error.to_string();
                return Err(Refused::For(Error::Silent { call: call.to_owned(), why }));
            }
            // It closed without a word, or says nothing.
            Ok(Err(_)) | Err(_) => return Err(Refused::Empty),
        };
        let number = line.strip_prefix(b"OK ").and_then(|rest| std::str::from_utf8(rest).ok());
        match number.and_then(|text| text.trim().parse::<u32>().ok()) {
            Some(_) => Ok(stream),
            None => Err(Refused::For(Error::Silent {
                call: call.to_owned(),
                why: "its answer is not as documented".to_owned(),
            })),
        }
    }

    /// A connection to a port, tried until the time is over. Nothing has been said on it.
    async fn reach(&self, port: u32, within: Duration) -> Result<UnixStream> {
        let until = Instant::now() + within;
        let mut pause = PAUSE;
        loop {
            match self.attempt(port).await {
                Ok(stream) => return Ok(stream),
                Err(Refused::For(error)) => return Err(error),
                Err(Refused::Empty) => {}
            }
            if self.process.ends_within(Duration::ZERO).await {
                return Err(Error::Agent(AgentError::Gone));
            }
            if Instant::now() > until {
                let why = format!("the guest does not serve within {} s", within.as_secs());
                return Err(Error::Silent { call: format!("CONNECT {port}"), why });
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Makes the machine one of its own and waits until it is, for as long as it may take to begin. Asked again until it
    /// answers: telling it twice is as good as once.
    ///
    /// # Errors
    /// [`Error::GuestSilent`], [`Error::Died`] without words, [`Error::Impostor`].
    pub async fn wake(&self, within: Duration) -> Result<()> {
        let until = Instant::now() + within;
        let silent = || Error::GuestSilent { within, said: String::new() };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(silent());
            }
            match self.reach(WAKE_PORT, left).await {
                Ok(stream) => {
                    let told = tell(stream);
                    if let Ok(Ok(())) = tokio::time::timeout(left.min(ANSWERS_WITHIN), told).await {
                        return Ok(());
                    }
                }
                Err(Error::Silent { .. }) => return Err(silent()),
                Err(Error::Agent(AgentError::Gone)) => return Err(Error::Died { said: String::new() }),
                Err(error) => return Err(error),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn tell(mut stream: UnixStream) -> io::Result<()> {
    let mut random = [0; 48];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let (mut machine, mut seed) = ([0; 16], [0; 32]);
    machine.copy_from_slice(&random[..16]);
    seed.copy_from_slice(&random[16..]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    stream.write_all(&Wake { nanos, machine, seed }.encode()).await?;
    let mut answer = [0; AWAKE.len()];
    stream.read_exact(&mut answer).await?;
    if answer == AWAKE { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

#[async_trait]
impl Transport for VsockTransport {
    async fn connect(&self) -> moltis_agent::error::Result<Channel> {
        match self.reach(AGENT_PORT, CONNECTS_WITHIN).await {
            Ok(stream) => Ok(Channel::new(Pieces::new(stream))),
            Err(Error::Agent(error)) => Err(error),
            Err(Error::Impostor(pid)) => Err(AgentError::Impostor(format!(
                "process {pid} listens on it, and Firecracker is process {}",
                self.process.pid()
            ))),
            Err(error) => Err(AgentError::Unreachable(io::Error::other(error.to_string()))),
        }
    }

    /// Firecracker keeps a thousand connections of a machine.
    fn room(&self) -> usize {
        700
    }
}

/// A stream with half-close over one without.
#[derive(Debug)]
struct Pieces<S> {
    stream: S,
    /// What has been taken from the writer and not been sent.
    out: Vec<u8>,
    sent: usize,
    closed: bool,
    header: [u8; PIECE_HEADER],
    have: usize,
    due: usize,
    ended: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Pieces<S> {
    fn new(stream: S) -> Self {
        let header = [0; PIECE_HEADER];
        Self { stream, out: Vec::new(), sent: 0, closed: false, header, have: 0, due: 0, ended: false }
    }

    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.out.len() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.out[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sent += count,
            }
        }
        self.out.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    /// Reads a header; `false` at the end.
    fn poll_header(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while self.have < PIECE_HEADER {
            let mut buffer = ReadBuf::new(&mut self.header[self.have..]);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
            match buffer.filled().len() {
                // An end without a word may be that of a command which has run.
                0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                count => self.have += count,
            }
        }
        self.have = 0;
        match Piece::decode(self.header) {
            Some(Piece::Data(length)) => self.due = length,
            Some(Piece::End) => self.ended = true,
            // What a Unix socket would say.
            Some(Piece::Unread) => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            None => return Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
        }
        Poll::Ready(Ok(!self.ended))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Pieces<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.ended || into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if this.due == 0 && !ready!(this.poll_header(cx))? {
            return Poll::Ready(Ok(()));
        }
        let mut part = into.take(this.due);
        ready!(Pin::new(&mut this.stream).poll_read(cx, &mut part))?;
        let count = part.filled().len();
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        this.due -= count;
        // SAFETY: the part is the unfilled beginning of `into`, and was filled so far.
        unsafe { into.assume_init(count) };
        into.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Pieces<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(self.poll_out(cx))?;
        let count = bytes.len().min(MAX_PIECE);
        if count == 0 {
            return Poll::Ready(Ok(0));
        }
        self.out.extend_from_slice(&Piece::Data(count).encode());
        self.out.extend_from_slice(&bytes[..count]);
        // What does not go now goes with the next call: every writer flushes.
        if let Poll::Ready(Err(error)) = self.poll_out(cx) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_out(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closed {
            ready!(self.poll_out(cx))?;
            self.out.extend_from_slice(&Piece::End.encode());
            self.closed = true;
        }
        self.poll_out(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use tokio::io::duplex;
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn directions_end_by_themselves_and_a_bare_end_is_a_loss() {
        let (near, far) = duplex(1000);
        let (mut near, mut far) = (Pieces::new(near), Pieces::new(far));
        let sent: Vec<u8> = (0..200_000_u32).map(|n| n as u8).collect();
        let expected = sent.clone();
        let writer = tokio::spawn(async move {
            near.write_all(&sent).await.unwrap();
            near.shutdown().await.unwrap();
            assert_eq!(near.write(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
            let mut answer = Vec::new();
            near.read_to_end(&mut answer).await.unwrap();
            answer
        });
        let mut read = Vec::new();
        far.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, expected);
        far.write_all(b"answer").await.unwrap();
        far.shutdown().await.unwrap();
        assert_eq!(writer.await.unwrap(), b"answer");
        for (said, kind) in [
            (&b""[..], io::ErrorKind::UnexpectedEof),
            (&[5], io::ErrorKind::UnexpectedEof),
            (&[5, 0, 1], io::ErrorKind::UnexpectedEof),
            (&[0xff, 0xff], io::ErrorKind::ConnectionReset),
            (&[0xfe, 0xff], io::ErrorKind::InvalidData),
        ] {
            let (near, mut far) = duplex(1000);
            far.write_all(said).await.unwrap();
            drop(far);
            let mut all = Vec::new();
            assert_eq!(Pieces::new(near).read_to_end(&mut all).await.unwrap_err().kind(), kind, "{said:?}");
        }
    }

    /// Something in Firecracker's place that answers each connection with the next of these, and then serves.
    fn engine(temp: &tempfile::TempDir, answers: Vec<&'static [u8]>) -> VsockTransport {
        let listener = UnixListener::bind(temp.path().join(SOCKET)).unwrap();
        tokio::spawn(async move {
            let mut answers = answers.into_iter();
            while let Ok((mut stream, _)) = listener.accept().await {
                let answer = answers.next();
                tokio::spawn(async move {
                    let mut asked = Vec::new();
                    while !asked.ends_with(b"\n") {
                        let Ok(byte) = stream.read_u8().await else { return };
                        asked.push(byte);
                    }
                    if let Some(answer) = answer {
                        let _ = stream.write_all(answer).await;
                        return;
                    }
                    let wake = asked == format!("CONNECT {WAKE_PORT}\n").as_bytes();
                    stream.write_all(b"OK 1073741824\n").await.unwrap();
                    let mut said = vec![0; if wake { 64 } else { 5 }];
                    stream.read_exact(&mut said).await.unwrap();
                    if wake {
                        assert!(Wake::decode(&said.try_into().unwrap()).is_some());
                        stream.write_all(&AWAKE).await.unwrap();
                    } else {
                        stream.write_all(&said).await.unwrap();
                    }
                });
            }
        });
        let directory = File::open(temp.path()).unwrap();
        let ours = Process::open(std::process::id()).unwrap();
        VsockTransport::open(&directory, &ours).unwrap()
    }

    #[tokio::test]
    async fn an_empty_answer_is_asked_again_before_anything_is_said() {
        let temp = tempfile::tempdir().unwrap();
        let transport = engine(&temp, vec![b"", b"OK", b"OK 12\n", b""]);
        transport.wake(Duration::from_secs(30)).await.unwrap();
        let mut stream = transport.reach(AGENT_PORT, Duration::from_secs(30)).await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"hello");
    }

    #[tokio::test]
    async fn nonsense_and_silence_are_told_apart() {
        let temp = tempfile::tempdir().unwrap();
        let transport = engine(&temp, vec![b"what?\n"]);
        assert!(matches!(transport.reach(1, Duration::from_secs(30)).await, Err(Error::Silent { .. })));
        let temp = tempfile::tempdir().unwrap();
        let transport = engine(&temp, vec![b""; 1000]);
        let silent = transport.wake(Duration::from_millis(50)).await;
        assert!(matches!(silent, Err(Error::GuestSilent { .. })), "{silent:?}");
        let temp = tempfile::tempdir().unwrap();
        let transport = engine(&temp, vec![b"OK 12345678901234567890123456789012345678901234567890"]);
        assert!(matches!(transport.reach(1, Duration::from_secs(30)).await, Err(Error::Silent { .. })));
    }

    #[tokio::test]
    async fn a_machine_that_is_over_is_gone() {
        let temp = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(temp.path().join(SOCKET)).unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        let transport = VsockTransport::open(File::open(temp.path()).unwrap(), &process).unwrap();
        assert!(matches!(transport.connect().await, Err(AgentError::Impostor(_))));
        drop(listener);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(transport.connect().await, Err(AgentError::Gone)));
    }
}
