//! What a program inside may do to our terminal: its sequences for the clipboard, the title, links, notifications and
//! the terminal's own files are kept from it, and what it leaves switched on is switched off again at the end.
//!
//! Each stream has a screen of its own: nothing that one lets through can become a forbidden sequence by what the other
//! adds, since the begin of every sequence that might be one is held back until it is known not to be.

use std::collections::BTreeSet;

use bytes::Bytes;

/// Operating system commands that are kept from the terminal: titles and icons (0 to 3), links, notifications,
/// fonts, the clipboard, and those of other makers that do several of these.
const KEPT: [u32; 11] = [0, 1, 2, 3, 8, 9, 50, 52, 99, 777, 1337];

/// Private modes that are on from the start; all others are off.
const ON_AT_FIRST: [u32; 3] = [7, 25, 1007];

/// Longest parameters of a sequence that are looked at, in bytes.
const MAX_PARAMETERS: usize = 64;

const ESC: u8 = 0x1b;
const BEL: u8 = 0x07;

/// Where in a sequence the output is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum At {
    Text,
    /// After an escape character, which is held back.
    Escape,
    /// After the first byte of a two-byte control character, which is held back.
    Wide,
    /// After an escape character and a byte that asks for one more.
    Intermediate,
    /// In a control sequence, with its parameters.
    Control(Vec<u8>),
    /// In the number of an operating system command, all of which is held back.
    Number(Vec<u8>),
    /// In the first bytes of a device string, all of which are held back.
    Device(Vec<u8>),
    /// In a string that is passed on.
    Passed,
    /// In a string that is kept from the terminal.
    Kept,
}

/// The terminal as the program inside has set it.
pub struct Screen {
    at: At,
    modes: BTreeSet<u32>,
    other: Other,
}

/// What is not a private mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Other {
    styled: bool,
    keypad: bool,
    insert: bool,
    region: bool,
    charset: bool,
    cursor: bool,
    other_keys: bool,
    keyboard: u32,
}

impl Screen {
    /// A terminal that nothing has been set on.
    pub fn new() -> Self {
        Self { at: At::Text, modes: BTreeSet::new(), other: Other::default() }
    }

    /// What of the output may reach the terminal.
    pub fn pass(&mut self, bytes: Bytes) -> Bytes {
        let is_plain = |byte: &u8| !matches!(byte, &ESC | 0xc2 | 0x0e | 0x0f);
        if self.at == At::Text && bytes.iter().all(is_plain) {
            return bytes;
        }
        let mut out = Vec::with_capacity(bytes.len() + 8);
        for byte in bytes {
            self.byte(byte, &mut out);
        }
        out.into()
    }

    /// What puts the terminal back, as far as the output has set anything.
    pub fn restore(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut say = |sequence: &str| out.extend_from_slice(sequence.as_bytes());
        if self.at != At::Text {
            // Ends a sequence that was cut.
            say("\x1b\\");
        }
        let Other { styled, keypad, insert, region, charset, cursor, other_keys, keyboard } = self.other;
        for (is_set, sequence) in [
            (region, "\x1b7\x1b[r\x1b8"),
            (insert, "\x1b[4l"),
            (keypad, "\x1b>"),
            (charset, "\x0f\x1b(B"),
            (cursor, "\x1b[0 q"),
            (other_keys, "\x1b[>4m"),
        ] {
            if is_set {
                say(sequence);
            }
        }
        if keyboard > 0 {
            say(&format!("\x1b[<{keyboard}u"));
        }
        for mode in &self.modes {
            let end = if ON_AT_FIRST.contains(mode) { 'h' } else { 'l' };
            say(&format!("\x1b[?{mode}{end}"));
        }
        if styled {
            say("\x1b[0m");
        }
        out
    }

    fn byte(&mut self, byte: u8, out: &mut Vec<u8>) {
        match std::mem::replace(&mut self.at, At::Text) {
            At::Text => self.text(byte, out),
            At::Wide => match byte {
                0x9b => self.start(&[0xc2], byte, out, At::Control(Vec::new())),
                0x9d => self.at = At::Number(vec![0xc2, 0x9d]),
                0x90 => self.at = At::Device(vec![0xc2, 0x90]),
                0x98 | 0x9e | 0x9f => self.at = At::Kept,
                _ => {
                    out.push(0xc2);
                    self.text(byte, out);
                }
            },
            At::Escape => self.escape(byte, out),
            At::Intermediate => match byte {
                ESC => self.at = At::Escape,
                0x20..=0x2f => self.start(&[], byte, out, At::Intermediate),
                _ => out.push(byte),
            },
            At::Control(parameters) => self.control(parameters, byte, out),
            At::Number(held) => self.number(held, byte, out),
            At::Device(mut held) => match byte {
                ESC => self.at = At::Escape,
                0x18 | 0x1a => out.push(byte),
                _ => {
                    held.push(byte);
                    let said = &held[2..];
                    // What tmux hands to the terminal around it.
                    self.at = if said == b"tmux;" {
                        At::Kept
                    } else if b"tmux;".starts_with(said) {
                        At::Device(held)
                    } else {
                        out.extend_from_slice(&held);
                        At::Passed
                    };
                }
            },
            At::Passed => match byte {
                ESC => self.at = At::Escape,
                BEL | 0x18 | 0x1a => out.push(byte),
                _ => self.start(&[], byte, out, At::Passed),
            },
            At::Kept => match byte {
                ESC => self.at = At::Escape,
                BEL | 0x18 | 0x1a => {}
                _ => self.at = At::Kept,
            },
        }
    }

    fn start(&mut self, held: &[u8], byte: u8, out: &mut Vec<u8>, next: At) {
        out.extend_from_slice(held);
        out.push(byte);
        self.at = next;
    }

    fn text(&mut self, byte: u8, out: &mut Vec<u8>) {
        match byte {
            ESC => self.at = At::Escape,
            0xc2 => self.at = At::Wide,
            0x0e | 0x0f => {
                self.other.charset = byte == 0x0e;
                out.push(byte);
            }
            _ => out.push(byte),
        }
    }

    fn escape(&mut self, byte: u8, out: &mut Vec<u8>) {
        match byte {
            b'[' => self.start(&[ESC], byte, out, At::Control(Vec::new())),
            b']' => self.at = At::Number(vec![ESC, b']']),
            b'P' => self.at = At::Device(vec![ESC, b'P']),
            // Strings without a use that is harmless, and screen's title.
            b'X' | b'^' | b'_' | b'k' => self.at = At::Kept,
            // A new sequence begins.
            ESC => self.at = At::Escape,
            0x18 | 0x1a => out.push(byte),
            // Other control characters act at once, and the sequence goes on.
            0..0x20 | 0x7f => self.start(&[], byte, out, At::Escape),
            0x20..=0x2f => {
                self.other.charset |= byte == b'(';
                self.start(&[ESC], byte, out, At::Intermediate);
            }
            0x80.. => {
                out.push(ESC);
                self.text(byte, out);
            }
            _ => {
                match byte {
                    b'=' | b'>' => self.other.keypad = byte == b'=',
                    b'c' => self.reset(),
                    _ => {}
                }
                out.extend_from_slice(&[ESC, byte]);
            }
        }
    }

    fn control(&mut self, mut parameters: Vec<u8>, byte: u8, out: &mut Vec<u8>) {
        match byte {
            ESC => self.at = At::Escape,
            0x18 | 0x1a => out.push(byte),
            0x40..=0x7e => {
                out.push(byte);
                self.act(&parameters, byte);
            }
            _ => {
                if (0x20..0x40).contains(&byte) && parameters.len() < MAX_PARAMETERS {
                    parameters.push(byte);
                }
                self.start(&[], byte, out, At::Control(parameters));
            }
        }
    }

    fn number(&mut self, mut held: Vec<u8>, byte: u8, out: &mut Vec<u8>) {
        let is_kept = |held: &[u8]| {
            let digits = std::str::from_utf8(&held[2..]).unwrap_or_default();
            // None at all stands for 0.
            digits.is_empty() || digits.parse().map_or(true, |number| KEPT.contains(&number))
        };
        match byte {
            b'0'..=b'9' => {
                held.push(byte);
                self.at = At::Number(held);
                if matches!(&self.at, At::Number(held) if held.len() > 10) {
                    self.at = At::Kept;
                }
            }
            b';' if is_kept(&held) => self.at = At::Kept,
            b';' => self.start(&held, byte, out, At::Passed),
            ESC => {
                if !is_kept(&held) {
                    out.extend_from_slice(&held);
                }
                self.at = At::Escape;
            }
            BEL if is_kept(&held) => {}
            BEL => self.start(&held, byte, out, At::Text),
            0x18 | 0x1a => out.push(byte),
            // Titles in the manner of other makers.
            b'l' | b'L' | b'I' => self.at = At::Kept,
            _ => self.start(&held, byte, out, At::Passed),
        }
    }

    /// Keeps in mind what a control sequence switches.
    fn act(&mut self, parameters: &[u8], last: u8) {
        let other = &mut self.other;
        match (parameters, last) {
            ([b'?', modes @ ..], b'h' | b'l') => {
                for mode in numbers(modes) {
                    if (last == b'h') == ON_AT_FIRST.contains(&mode) {
                        self.modes.remove(&mode);
                    } else if self.modes.len() < MAX_PARAMETERS {
                        self.modes.insert(mode);
                    }
                }
            }
            ([b'>', keys @ ..], b'm') => {
                let mut keys = numbers(keys);
                if keys.next() == Some(4) {
                    other.other_keys = keys.next().is_some_and(|value| value > 0);
                }
            }
            ([b'>', ..], b'u') => other.keyboard = other.keyboard.saturating_add(1).min(99),
            ([b'<', count @ ..], b'u') => {
                let count = numbers(count).next().unwrap_or(1).max(1);
                other.keyboard = other.keyboard.saturating_sub(count);
            }
            ([.., b' '], b'q') => other.cursor = !matches!(parameters, b" " | b"0 "),
            (b"!", b'p') => self.reset(),
            ([b'<'..=b'?', ..], _) => {}
            (_, b'm') => other.styled = !(parameters.is_empty() || parameters == b"0"),
            (_, b'r') => other.region = !parameters.is_empty(),
            (b"4", b'h' | b'l') => other.insert = last == b'h',
            _ => {}
        }
    }

    fn reset(&mut self) {
        self.modes.clear();
        self.other = Other::default();
    }
}

fn numbers(parameters: &[u8]) -> impl Iterator<Item = u32> {
    let text = std::str::from_utf8(parameters).unwrap_or_default();
    text.split([';', ':']).filter_map(|number| number.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What gets through, however the output is cut.
    fn passed(output: &[u8]) -> Vec<u8> {
        let whole = Screen::new().pass(Bytes::copy_from_slice(output)).to_vec();
        let mut screen = Screen::new();
        let bytewise: Vec<u8> =
            output.iter().flat_map(|byte| screen.pass(Bytes::copy_from_slice(&[*byte]))).collect();
        assert_eq!(whole, bytewise);
        whole
    }

    fn left(output: &str) -> String {
        let mut screen = Screen::new();
        screen.pass(Bytes::copy_from_slice(output.as_bytes()));
        String::from_utf8(screen.restore()).unwrap()
    }

    #[test]
    fn ordinary_output_passes_untouched() {
        for output in [
            &b"text \xff\xc3\xa9 \xe2\x9d\x9d \xc2\xa0.\r\n\t"[..],
            b"\x1b[1;31mred\x1b[0m\x1b[?1049h\x1b[2J\x1b[10;20H\x1b(0x\x1b(B\x1b7\x1b8\x1b=",
            b"\x1b]11;?\x07\x1b]4;1;rgb:00/00/00\x1b\\\x1b]104\x07",
            b"\x1bPq#0;2;0;0;0#0~~\x1b\\after",
            b"\x1b[38;2;1;2;3m\x1b[>4;2m\x1b[6n",
        ] {
            assert_eq!(passed(output), output, "{}", output.escape_ascii());
        }
    }

    #[test]
    fn clipboard_titles_and_links_are_kept_back() {
        for (output, expected) in [
            (&b"a\x1b]52;c;ZXZpbA==\x07b"[..], &b"ab"[..]),
            (b"a\x1b]0;title\x07b\x1b]2;t\x07c\x1b];t\x07d", b"abcd"),
            (b"\x1b]8;;http://evil\x07text\x1b]8;;\x07", b"text"),
            (b"\x1b]0052;c;x\x07y", b"y"),
            (b"\x1b]99999999999;x\x07y", b"y"),
            (b"\xc2\x9d52;c;x\x07y", b"y"),
            (b"\x1b\x1b]52;c;x\x07y", b"y"),
            (b"\x1b\n]52;c;x\x07y", b"\ny"),
            (b"\x1bPtmux;\x1b\x1b]52;c;x\x07\x1b\\y", b"\x1b\\y"),
            (b"\x1bP\x1b]52;c;x\x07\x1b\\y", b"\x1b\\y"),
            (b"\x1b_Ga=T,t=f;L2V0Yy9wYXNzd2Q=\x1b\\y", b"\x1b\\y"),
            (b"\x1bktitle\x1b\\y", b"\x1b\\y"),
            (b"\x1b]lt\x07y", b"y"),
            (b"\x1b]11;?\x1b]52;c;x\x07y", b"\x1b]11;?y"),
            (b"\x1b[1\x1b]52;c;x\x07y", b"\x1b[1y"),
        ] {
            assert_eq!(passed(output).escape_ascii().to_string(), expected.escape_ascii().to_string());
        }
    }

    #[test]
    fn what_is_left_on_is_switched_off() {
        assert_eq!(left("\x1b[1mx\x1b[0m\x1b[?2004h\x1b[?2004l\x1b[?25l\x1b[?25h"), "");
        assert_eq!(left("\x1b[?1049h\x1b[?25l\x1b[1;31m"), "\x1b[?25h\x1b[?1049l\x1b[0m");
        assert_eq!(left("\x1b[?1000;1006h"), "\x1b[?1000l\x1b[?1006l");
        assert_eq!(left("\x1b=\x1b[4h\x1b[2;5r\x1b[>1u"), "\x1b7\x1b[r\x1b8\x1b[4l\x1b>\x1b[<1u");
        assert_eq!(left("\x1b[3 q\x1b[>4;1m"), "\x1b[0 q\x1b[>4m");
        assert_eq!(left("\x1b[?1049h\x1b[1m\x1bc"), "");
        assert_eq!(left("\x1b[1"), "\x1b\\");
    }
}
