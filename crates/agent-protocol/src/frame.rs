//! Frames: one byte of kind, four bytes of length (little endian), then the payload.
//!
//! `Data`, `Stdout` and `Stderr` carry raw bytes; `Control` carries one postcard message; `Eof` carries nothing and
//! ends the sender's raw bytes.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Length of a frame header in bytes.
pub const HEADER_BYTES: usize = 5;

/// Largest payload of a raw frame in bytes.
pub const MAX_RAW: usize = 256 * 1024;

/// Largest payload of a control frame in bytes. A request carries a command line and an environment, which the kernel
/// bounds to 2 MiB together.
pub const MAX_CONTROL: usize = 3 * 1024 * 1024;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A message: [`Request`](crate::Request), [`Order`](crate::Order) or [`Reply`](crate::Reply).
    Control = 1,
    /// Bytes of standard input, a file or an archive.
    Data = 2,
    /// Bytes of standard output, or of a terminal.
    Stdout = 3,
    /// Bytes of standard error.
    Stderr = 4,
    /// No more raw bytes from this side.
    Eof = 5,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Control,
            2 => Self::Data,
            3 => Self::Stdout,
            4 => Self::Stderr,
            5 => Self::Eof,
            _ => return None,
        })
    }

    fn limit(self) -> usize {
        match self {
            Self::Control => MAX_CONTROL,
            Self::Data | Self::Stdout | Self::Stderr => MAX_RAW,
            Self::Eof => 0,
        }
    }
}

/// Why bytes are no frame, or a frame no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A kind that this version does not know.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// A payload above the kind's limit.
    #[error("a {kind:?} frame of {length} bytes, above the limit of {limit}")]
    TooLong {
        /// The frame's kind.
        kind: Kind,
        /// What the header says.
        length: usize,
        /// What is allowed.
        limit: usize,
    },
    /// A control frame that does not decode to the message expected there.
    #[error("a control frame that does not decode")]
    Message,
}

/// A header that has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame carries.
    pub kind: Kind,
    /// Bytes of payload, within the kind's limit.
    pub length: usize,
}

impl Header {
    /// The bytes on the wire.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let length = (self.length as u32).to_le_bytes();
        [self.kind as u8, length[0], length[1], length[2], length[3]]
    }

    /// Reads and checks a header.
    ///
    /// # Errors
    /// On an unknown kind or a length above the kind's limit; the connection must end then.
    pub fn decode(bytes: [u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let kind = Kind::from_byte(bytes[0]).ok_or(FrameError::Kind(bytes[0]))?;
        let length = u32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]) as usize;
        let limit = kind.limit();
        if length > limit {
            return Err(FrameError::TooLong { kind, length, limit });
        }
        Ok(Self { kind, length })
    }
}

/// A whole frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it carries.
    pub kind: Kind,
    /// The payload.
    pub payload: Vec<u8>,
}

/// Encodes a message as a whole control frame, header included.
///
/// # Errors
/// When the message is above [`MAX_CONTROL`].
pub fn encode_control<M: Serialize>(message: &M) -> Result<Vec<u8>, FrameError> {
    let frame = postcard::to_extend(message, vec![0; HEADER_BYTES]).map_err(|_| FrameError::Message)?;
    seal(frame)
}

fn seal(mut frame: Vec<u8>) -> Result<Vec<u8>, FrameError> {
    let length = frame.len() - HEADER_BYTES;
    if length > MAX_CONTROL {
        return Err(FrameError::TooLong { kind: Kind::Control, length, limit: MAX_CONTROL });
    }
    frame[..HEADER_BYTES].copy_from_slice(&Header { kind: Kind::Control, length }.encode());
    Ok(frame)
}

/// Decodes the payload of a control frame. Bytes left over are an error.
///
/// # Errors
/// [`FrameError::Message`] when the payload is not exactly one such message.
pub fn decode_control<M: DeserializeOwned>(payload: &[u8]) -> Result<M, FrameError> {
    match postcard::take_from_bytes(payload) {
        Ok((message, [])) => Ok(message),
        _ => Err(FrameError::Message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Order, Request};

    #[test]
    fn headers_survive_the_wire_and_limits_hold() {
        let header = Header { kind: Kind::Stdout, length: MAX_RAW };
        assert_eq!(Header::decode(header.encode()), Ok(header));
        let long = Header { kind: Kind::Stdout, length: MAX_RAW + 1 };
        assert!(matches!(Header::decode(long.encode()), Err(FrameError::TooLong { .. })));
        assert_eq!(Header::decode([9, 0, 0, 0, 0]), Err(FrameError::Kind(9)));
        assert!(Header::decode([5, 1, 0, 0, 0]).is_err(), "an Eof carries nothing");
    }

    #[test]
    fn messages_decode_only_whole() {
        let frame = encode_control(&Request::Processes).unwrap();
        assert_eq!(decode_control::<Request>(&frame[HEADER_BYTES..]), Ok(Request::Processes));
        let mut longer = frame.clone();
        longer.push(0);
        assert_eq!(decode_control::<Request>(&longer[HEADER_BYTES..]), Err(FrameError::Message));
        assert_eq!(decode_control::<Order>(&[]), Err(FrameError::Message));
    }
}
