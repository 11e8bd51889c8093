//! The content that a host sends: `Data` frames up to `Eof`.

use std::io;

use moltis_agent_protocol::frame::{Kind, MAX_RAW};

use crate::connection::Connection;

/// Content on its way in. Holds one frame at most.
pub struct Body<'a> {
    conn: &'a mut Connection,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    over: bool,
}

impl<'a> Body<'a> {
    /// The content that comes next on a connection.
    pub fn new(conn: &'a mut Connection) -> Self {
        Self { conn, buffer: Vec::new(), start: 0, end: 0, over: false }
    }

    /// The next bytes, `limit` at most and at least one; `None` at the end.
    ///
    /// # Errors
    /// When the host is gone before the end, or sends something else.
    pub fn next(&mut self, limit: u64) -> io::Result<Option<&[u8]>> {
        while self.start == self.end {
            if self.over {
                return Ok(None);
            }
            self.receive()?;
        }
        let available = self.end - self.start;
        let count = usize::try_from(limit).map_or(available, |limit| available.min(limit));
        let from = self.start;
        self.start += count;
        Ok(Some(&self.buffer[from..from + count]))
    }

    /// Fills `target` as far as there is content, and says how far.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn fill(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let mut have = 0;
        while have < target.len() {
            let Some(bytes) = self.next((target.len() - have) as u64)? else { break };
            target[have..have + bytes.len()].copy_from_slice(bytes);
            have += bytes.len();
        }
        Ok(have)
    }

    fn receive(&mut self) -> io::Result<()> {
        // The host closing before its `Eof` is the host being gone: what it sent is not all.
        let header = self.conn.header()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        match header.kind {
            Kind::Data => {
                if self.buffer.len() < header.length {
                    self.buffer.resize(MAX_RAW.min(header.length.next_power_of_two()), 0);
                }
                self.conn.payload(header, &mut self.buffer)?;
                (self.start, self.end) = (0, header.length);
            }
            Kind::Eof => self.over = true,
            Kind::Control | Kind::Stdout | Kind::Stderr => return Err(io::ErrorKind::InvalidData.into()),
        }
        Ok(())
    }
}
