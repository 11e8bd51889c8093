//! The relay: one byte stream in each direction that carries many connections to an agent, where nothing but the
//! standard input and output of a process inside reaches it.
//!
//! ```text
//! host  → relay   hello │ secret │ frames
//! relay → host    hello          │ frames
//! ```
//!
//! A frame is nine bytes, stream, kind and length (little endian), and the payload of [`Kind::Data`]. The host opens
//! streams, each with a number above all before it. Each side may have sent [`WINDOW`] bytes of a stream that the other
//! has not given credit for; so a stream that nobody reads holds up no other. A stream is over when both sides have sent
//! [`Kind::Eof`], or one of them [`Kind::Reset`]; what is still on its way to it then is dropped.
//!
//! To the agent each stream is a connection of its own, which the relay begins with a [`preface`]: by it the agent knows
//! the relay among the processes inside.

/// Length of a frame's header in bytes.
pub const HEADER_BYTES: usize = 9;

/// Largest payload of a frame in bytes.
pub const MAX_DATA: usize = 64 * 1024;

/// Bytes of one direction of a stream that may be on their way.
pub const WINDOW: u32 = 256 * 1024;

/// Streams that may be open at once.
pub const MAX_STREAMS: usize = 1024;

/// Length of the secret in bytes.
pub const SECRET_BYTES: usize = 32;

/// What the first relay of a sandbox shows to the agent, and every later one must show again.
pub type Secret = [u8; SECRET_BYTES];

const PREFACE_MAGIC: &[u8; 8] = b"MOLTISRL";

/// Length of a preface in bytes.
pub const PREFACE_BYTES: usize = PREFACE_MAGIC.len() + SECRET_BYTES;

/// What a process inside says before its hello.
pub fn preface(secret: &Secret) -> [u8; PREFACE_BYTES] {
    let mut bytes = [0; PREFACE_BYTES];
    let (magic, rest) = bytes.split_at_mut(PREFACE_MAGIC.len());
    magic.copy_from_slice(PREFACE_MAGIC);
    rest.copy_from_slice(secret);
    bytes
}

/// The secret in a preface; `None` if it is none.
pub fn secret_of(preface: &[u8; PREFACE_BYTES]) -> Option<&Secret> {
    preface.strip_prefix(PREFACE_MAGIC)?.try_into().ok()
}

/// What a frame says of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// It begins. Sent by the host only.
    Open = 1,
    /// Bytes.
    Data = 2,
    /// No more bytes from this side.
    Eof = 3,
    /// It is over in both directions.
    Reset = 4,
    /// The receiver has taken so many bytes more; there is no payload.
    Credit = 5,
}

/// Why bytes are no frame, or a frame breaks the rules. The relay is not to be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    /// A kind that there is not.
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    /// A length that this kind cannot have.
    #[error("a {0:?} frame of length {1}")]
    Length(Kind, u32),
    /// A stream that cannot be meant.
    #[error("a {0:?} frame for stream {1}")]
    Stream(Kind, u32),
    /// More bytes than there is credit for, or more credit than there were bytes.
    #[error("stream {0} overruns its window")]
    Window(u32),
}

/// A header that has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which stream; never 0.
    pub stream: u32,
    /// What it says.
    pub kind: Kind,
    /// Bytes of payload, or the credit.
    pub length: u32,
}

impl Header {
    /// The bytes on the wire.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.stream.to_le_bytes());
        bytes[4] = self.kind as u8;
        bytes[5..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Reads and checks a header.
    ///
    /// # Errors
    /// On an unknown kind, stream 0, or a length that the kind cannot have.
    pub fn decode(bytes: [u8; HEADER_BYTES]) -> Result<Self, RelayError> {
        let [a, b, c, d, kind, e, f, g, h] = bytes;
        let (stream, length) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let (kind, lengths) = match kind {
            1 => (Kind::Open, 0..=0),
            2 => (Kind::Data, 1..=MAX_DATA as u32),
            3 => (Kind::Eof, 0..=0),
            4 => (Kind::Reset, 0..=0),
            5 => (Kind::Credit, 1..=WINDOW),
            unknown => return Err(RelayError::Kind(unknown)),
        };
        if stream == 0 {
            return Err(RelayError::Stream(kind, stream));
        }
        if !lengths.contains(&length) {
            return Err(RelayError::Length(kind, length));
        }
        Ok(Self { stream, kind, length })
    }

    /// Bytes that follow the header.
    pub fn payload(self) -> usize {
        if self.kind == Kind::Data { self.length as usize } else { 0 }
    }
}

/// What may still be sent on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit(u32);

impl Default for Credit {
    fn default() -> Self {
        Self(WINDOW)
    }
}

impl Credit {
    /// Bytes that may be sent now.
    pub fn left(self) -> usize {
        self.0 as usize
    }

    /// So many are being sent; `count` is not above [`left`](Self::left).
    pub fn spend(&mut self, count: usize) {
        self.0 = self.0.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// The other side has taken some.
    ///
    /// # Errors
    /// When it claims to have taken more than was sent.
    pub fn grant(&mut self, stream: u32, count: u32) -> Result<(), RelayError> {
        let granted = self.0.checked_add(count).filter(|granted| *granted <= WINDOW);
        self.0 = granted.ok_or(RelayError::Window(stream))?;
        Ok(())
    }
}

/// What the other side may still send on a stream, and what it is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    open: u32,
    owed: u32,
}

impl Default for Window {
    fn default() -> Self {
        Self { open: WINDOW, owed: 0 }
    }
}

impl Window {
    /// Credit is given in portions of at least this.
    const PORTION: u32 = WINDOW / 4;

    /// So many bytes have come.
    ///
    /// # Errors
    /// When they were too many.
    pub fn received(&mut self, stream: u32, count: u32) -> Result<(), RelayError> {
        self.open = self.open.checked_sub(count).ok_or(RelayError::Window(stream))?;
        Ok(())
    }

    /// So many have been passed on; the credit to give now, if it is worth a frame.
    pub fn passed_on(&mut self, count: usize) -> Option<u32> {
        self.owed = self.owed.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        if self.owed < Self::PORTION {
            return None;
        }
        let given = std::mem::take(&mut self.owed);
        self.open = self.open.saturating_add(given).min(WINDOW);
        Some(given)
    }
}

/// Cuts a byte stream into headers and payloads, whatever pieces it comes in.
#[derive(Debug, Default)]
pub struct Decoder {
    header: [u8; HEADER_BYTES],
    have: usize,
    /// Stream and bytes left of the payload that is coming.
    payload: Option<(u32, usize)>,
}

/// What came next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// A header. A [`Kind::Data`] one is followed by its bytes.
    Header(Header),
    /// Bytes of a stream; those of one frame may come in several parts.
    Data(u32, &'a [u8]),
}

impl Decoder {
    /// Takes the next part off the front of `bytes`; `None` when they are used up.
    ///
    /// # Errors
    /// When the bytes are no frame.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Part<'a>>, RelayError> {
        if let Some((stream, left)) = self.payload {
            if bytes.is_empty() {
                return Ok(None);
            }
            let (data, rest) = bytes.split_at(left.min(bytes.len()));
            *bytes = rest;
            self.payload = Some((stream, left - data.len())).filter(|(_, left)| *left > 0);
            return Ok(Some(Part::Data(stream, data)));
        }
        let (part, rest) = bytes.split_at((HEADER_BYTES - self.have).min(bytes.len()));
        *bytes = rest;
        self.header[self.have..self.have + part.len()].copy_from_slice(part);
        self.have += part.len();
        if self.have < HEADER_BYTES {
            return Ok(None);
        }
        self.have = 0;
        let header = Header::decode(self.header)?;
        self.payload = Some((header.stream, header.payload())).filter(|(_, left)| *left > 0);
        Ok(Some(Part::Header(header)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_wire_and_limits_hold() {
        let header = Header { stream: 7, kind: Kind::Data, length: MAX_DATA as u32 };
        assert_eq!(Header::decode(header.encode()), Ok(header));
        let refused = |stream, kind, length| Header::decode(Header { stream, kind, length }.encode());
        assert_eq!(refused(0, Kind::Open, 0), Err(RelayError::Stream(Kind::Open, 0)));
        for (kind, length) in [
            (Kind::Open, 1),
            (Kind::Data, 0),
            (Kind::Data, MAX_DATA as u32 + 1),
            (Kind::Eof, 1),
            (Kind::Reset, 9),
            (Kind::Credit, 0),
            (Kind::Credit, WINDOW + 1),
        ] {
            assert_eq!(refused(1, kind, length), Err(RelayError::Length(kind, length)));
        }
        assert_eq!(Header::decode([1, 0, 0, 0, 9, 0, 0, 0, 0]), Err(RelayError::Kind(9)));
    }

    #[test]
    fn a_preface_carries_its_secret_and_nothing_else_does() {
        let secret = std::array::from_fn(|at| at as u8);
        let mut bytes = preface(&secret);
        assert_eq!(secret_of(&bytes), Some(&secret));
        bytes[7] ^= 1;
        assert_eq!(secret_of(&bytes), None);
    }

    #[test]
    fn windows_and_credit_agree_about_each_byte() {
        let (mut credit, mut window) = (Credit::default(), Window::default());
        assert_eq!(credit.left(), WINDOW as usize);
        credit.spend(WINDOW as usize);
        window.received(1, WINDOW).unwrap();
        assert_eq!(window.received(1, 1), Err(RelayError::Window(1)));
        assert_eq!(window.passed_on(10), None);
        let given = window.passed_on(WINDOW as usize - 10).unwrap();
        assert_eq!(given, WINDOW);
        credit.grant(1, given).unwrap();
        assert_eq!(credit, Credit::default());
        assert_eq!(credit.grant(1, 1), Err(RelayError::Window(1)));
        assert_eq!(window, Window::default());
    }

    #[test]
    fn frames_are_found_in_any_cuts() {
        let mut bytes = Vec::new();
        bytes.extend(Header { stream: 1, kind: Kind::Open, length: 0 }.encode());
        bytes.extend(Header { stream: 1, kind: Kind::Data, length: 3 }.encode());
        bytes.extend(b"abc");
        bytes.extend(Header { stream: 1, kind: Kind::Eof, length: 0 }.encode());
        for size in 1..bytes.len() {
            let (mut decoder, mut kinds, mut data) = (Decoder::default(), Vec::new(), Vec::new());
            for mut piece in bytes.chunks(size) {
                while let Some(part) = decoder.next(&mut piece).unwrap() {
                    match part {
                        Part::Header(header) => kinds.push(header.kind),
                        Part::Data(stream, part) => {
                            assert_eq!(stream, 1);
                            data.extend_from_slice(part);
                        }
                    }
                }
            }
            assert_eq!((&kinds[..], &data[..]), (&[Kind::Open, Kind::Data, Kind::Eof][..], &b"abc"[..]));
        }
    }
}
