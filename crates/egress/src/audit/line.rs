//! One line of the log's file: JSON in printable ASCII, so that a terminal obeys nothing that stands in it.

use std::io;

use serde::{Deserialize, Serialize};
use serde_json::Serializer;
use serde_json::ser::Formatter;

use super::Entry;

/// Longest line that is written or read, in bytes, its end included. An entry of the longest texts, each byte of which
/// is escaped, is shorter.
pub(super) const MAX_LINE: usize = 8192;

/// Longest session key that is kept, in bytes: as long as a key can be.
const MAX_SESSION: usize = 512;

/// Longest host that is kept, in bytes.
const MAX_DOMAIN: usize = 253;

/// Longest reason that is kept, in bytes.
const MAX_REASON: usize = 320;

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A decision or an end.
    Entry(Entry),
    /// That entries are missing here.
    Dropped(Dropped),
}

/// Entries that could not be written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// When that was noted, in milliseconds since 1970.
    pub timestamp: u64,
    /// How many.
    pub dropped: u64,
}

impl Line {
    /// Reads a line without its end; `None` when it is none.
    pub(super) fn read(line: &[u8]) -> Option<Self> {
        if let Ok(entry) = serde_json::from_slice(line) {
            return Some(Self::Entry(bounded(entry)));
        }
        serde_json::from_slice(line).ok().map(Self::Dropped)
    }
}

/// The entry with every text within its bound.
pub(super) fn bounded(mut entry: Entry) -> Entry {
    cut(&mut entry.session, MAX_SESSION);
    cut(&mut entry.domain, MAX_DOMAIN);
    if let Some(reason) = &mut entry.reason {
        cut(reason, MAX_REASON);
    }
    entry
}

fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.shrink_to_fit();
    }
}

/// Appends a line with its end.
pub(super) fn write(buffer: &mut Vec<u8>, line: &impl Serialize) {
    let before = buffer.len();
    // Numbers and texts can always be written to memory; a half line would spoil the next one.
    match line.serialize(&mut Serializer::with_formatter(&mut *buffer, Ascii)) {
        Ok(()) => buffer.push(b'\n'),
        Err(_) => buffer.truncate(before),
    }
}

/// Compact JSON in which what is not printable ASCII is escaped.
struct Ascii;

impl Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.bytes().position(|byte| byte >= 0x7f) {
            let (plain, other) = rest.split_at(at);
            writer.write_all(plain.as_bytes())?;
            let mut others = other.chars();
            let mut units = [0; 2];
            for unit in others.next().map(|c| c.encode_utf16(&mut units)).into_iter().flatten() {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = others.as_str();
        }
        writer.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Action, Event, Protocol, Source};
    use super::*;

    fn entry() -> impl Strategy<Value = Entry> {
        let words = (0..Protocol::ALL.len(), 0..Action::ALL.len(), 0..Source::ALL.len(), 0..Event::ALL.len());
        let texts = (".{0,600}", "(?s).{0,300}", proptest::option::of("(?s).{0,400}"));
        (texts, words, any::<(u64, u64, u16)>(), any::<(u64, u64, u64)>()).prop_map(
            |(
                (session, domain, reason),
                (protocol, action, source, event),
                (timestamp, id, port),
                counts,
            )| {
                Entry {
                    timestamp,
                    session,
                    id,
                    event: Event::ALL[event],
                    domain,
                    port,
                    protocol: Protocol::ALL[protocol],
                    action: Action::ALL[action],
                    source: Source::ALL[source],
                    reason,
                    bytes_sent: counts.0,
                    bytes_received: counts.1,
                    duration_millis: counts.2,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn an_entry_is_one_bounded_line_and_comes_back_as_it_was(entry in entry()) {
            let entry = bounded(entry);
            let mut line = Vec::new();
            write(&mut line, &entry);
            prop_assert!(line.len() <= MAX_LINE, "{}", line.len());
            prop_assert_eq!(line.pop(), Some(b'\n'));
            prop_assert!(line.iter().all(|byte| (0x20..0x7f).contains(byte)));
            prop_assert_eq!(Line::read(&line), Some(Line::Entry(entry)));
        }

        #[test]
        fn what_is_no_line_is_none(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            // Whatever it is, it is read without harm; random bytes are none.
            prop_assert_eq!(Line::read(&line), None);
        }
    }

    #[test]
    fn the_longest_entry_fits() {
        let longest = |bytes: usize| "\u{1}".repeat(bytes * 2);
        let mut line = Vec::new();
        let entry = bounded(Entry {
            timestamp: u64::MAX,
            session: longest(MAX_SESSION),
            id: u64::MAX,
            event: Event::Close,
            domain: longest(MAX_DOMAIN),
            port: u16::MAX,
            protocol: Protocol::Connect,
            action: Action::Allowed,
            source: Source::Unreachable,
            reason: Some(longest(MAX_REASON)),
            bytes_sent: u64::MAX,
            bytes_received: u64::MAX,
            duration_millis: u64::MAX,
        });
        write(&mut line, &entry);
        assert!(line.len() <= MAX_LINE, "{}", line.len());
    }

    #[test]
    fn a_line_says_what_its_fields_are() {
        let line = br#"{"timestamp":1,"session":"s","id":2,"event":"open","domain":"a.example","port":443,"protocol":"https","action":"denied","source":"unknown"}"#;
        let entry = Entry {
            timestamp: 1,
            session: "s".into(),
            id: 2,
            event: Event::Open,
            domain: "a.example".into(),
            port: 443,
            protocol: Protocol::Https,
            action: Action::Denied,
            source: Source::Unknown,
            reason: None,
            bytes_sent: 0,
            bytes_received: 0,
            duration_millis: 0,
        };
        assert_eq!(Line::read(line), Some(Line::Entry(entry.clone())));
        let mut written = Vec::new();
        write(&mut written, &entry);
        assert_eq!(
            String::from_utf8(written).unwrap(),
            "{\"timestamp\":1,\"session\":\"s\",\"id\":2,\"event\":\"open\",\"domain\":\"a.example\",\"port\":443,\
             \"protocol\":\"https\",\"action\":\"denied\",\"source\":\"unknown\",\"sentBytes\":0,\
             \"receivedBytes\":0,\"durationMs\":0}\n"
        );
        let dropped = Dropped { timestamp: 1, dropped: 3 };
        assert_eq!(Line::read(br#"{"timestamp":1,"dropped":3}"#), Some(Line::Dropped(dropped)));
    }
}
