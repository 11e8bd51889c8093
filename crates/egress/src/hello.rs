//! The name in a TLS greeting, found without taking part in TLS.

use crate::host::Host;

/// The most bytes of a greeting, with the heads of the records that carry it.
const MOST: usize = 64 * 1024;
/// The longest greeting.
const LONGEST: usize = 32 * 1024;
/// The most that one record may carry.
const RECORD: usize = 16 * 1024;

/// What is known of the first bytes of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// Not enough yet.
    Unfinished,
    /// It is not TLS.
    Other,
    /// It is TLS, for this name, or for none.
    Tls(Option<Host>),
    /// It begins as TLS and cannot be read.
    Broken(&'static str),
}

/// Takes the first bytes of a tunnel as they come.
#[derive(Debug, Default)]
pub struct Sniffer {
    bytes: Vec<u8>,
    /// Where the next record begins.
    next: usize,
    handshake: Vec<u8>,
}

impl Sniffer {
    /// Takes more bytes, and says what is known now. After an answer other than [`Greeting::Unfinished`] it is to be asked
    /// no more.
    pub fn take(&mut self, more: &[u8]) -> Greeting {
        self.bytes.extend_from_slice(more);
        match self.bytes.get(..2) {
            // A handshake record of version 3.x.
            Some([22, 3]) => self.records().unwrap_or_else(Greeting::Broken),
            // Some servers pass over an alert or a change of ciphers, and find the greeting behind it.
            Some([20 | 21, 3]) => Greeting::Broken("another record before the greeting"),
            Some(_) => Greeting::Other,
            None => match self.bytes.first() {
                Some(20..=22) | None => Greeting::Unfinished,
                Some(_) => Greeting::Other,
            },
        }
    }

    /// Whether nothing was taken yet.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Everything that was taken.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn records(&mut self) -> Result<Greeting, &'static str> {
        while let Some(&[kind, major, _, high, low]) = self.bytes.get(self.next..self.next + 5) {
            let length = usize::from(high) << 8 | usize::from(low);
            if kind != 22 || major != 3 {
                return Err("another record within the greeting");
            }
            if length == 0 || length > RECORD {
                return Err("a record of a wrong length");
            }
            let from = self.next + 5;
            let Some(body) = self.bytes.get(from..from + length) else { break };
            self.handshake.extend_from_slice(body);
            self.next = from + length;
            if let Some(&[kind, a, b, c]) = self.handshake.get(..4) {
                if kind != 1 {
                    return Err("it does not begin with a greeting");
                }
                let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                if length > LONGEST {
                    return Err("the greeting is too long");
                }
                if let Some(hello) = self.handshake.get(4..4 + length) {
                    return name(hello).ok_or("the greeting is not well formed")?.map(Greeting::Tls);
                }
            }
        }
        if self.bytes.len() > MOST {
            return Err("the greeting is too long");
        }
        Ok(Greeting::Unfinished)
    }
}

/// Reads fields one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, bytes: usize) -> Option<usize> {
        Some(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    fn vector(&mut self, bytes: usize) -> Option<Self> {
        let length = self.number(bytes)?;
        self.take(length).map(Self)
    }
}

/// The name in a greeting. Nothing if the greeting is not well formed.
fn name(hello: &[u8]) -> Option<Result<Option<Host>, &'static str>> {
    let mut hello = Fields(hello);
    // Version and random, session, ciphers, compression.
    hello.take(2 + 32)?;
    hello.vector(1)?;
    hello.vector(2)?;
    hello.vector(1)?;
    if hello.0.is_empty() {
        return Some(Ok(None));
    }
    let mut extensions = hello.vector(2)?;
    if !hello.0.is_empty() {
        return None;
    }
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number(2)?;
        let mut extension = extensions.vector(2)?;
        if kind != 0 {
            continue;
        }
        let mut list = extension.vector(2)?;
        let (kind, text) = (list.number(1)?, list.vector(2)?);
        if kind != 0 || !list.0.is_empty() || !extension.0.is_empty() || found.is_some() {
            return Some(Err("more than one name"));
        }
        let host = std::str::from_utf8(text.0).ok().and_then(|text| text.parse::<Host>().ok());
        let Some(host) = host else { return Some(Err("its name is none")) };
        found = Some(host);
    }
    Some(Ok(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vector(bytes: usize, content: &[u8]) -> Vec<u8> {
        let length = (content.len() as u32).to_be_bytes();
        [&length[4 - bytes..], content].concat()
    }

    fn sni(name: &str) -> Vec<u8> {
        let entry = [&[0][..], &vector(2, name.as_bytes())].concat();
        [&[0, 0][..], &vector(2, &vector(2, &entry))].concat()
    }

    fn hello(extensions: &[Vec<u8>]) -> Vec<u8> {
        let mut hello = vec![3, 3];
        hello.extend([7; 32]);
        hello.extend(vector(1, &[1; 32]));
        hello.extend(vector(2, &[0x13, 1]));
        hello.extend(vector(1, &[0]));
        hello.extend(vector(2, &extensions.concat()));
        [&[1][..], &vector(3, &hello)].concat()
    }

    fn records(handshake: &[u8], size: usize) -> Vec<u8> {
        handshake.chunks(size).flat_map(|part| [&[22, 3, 1][..], &vector(2, part)].concat()).collect()
    }

    fn said(bytes: &[u8], step: usize) -> Greeting {
        let mut sniffer = Sniffer::default();
        for part in bytes.chunks(step) {
            match sniffer.take(part) {
                Greeting::Unfinished => {}
                known => return known,
            }
        }
        Greeting::Unfinished
    }

    fn named(name: &str) -> Greeting {
        Greeting::Tls(Some(name.parse().unwrap()))
    }

    #[test]
    fn a_name_is_found_however_it_is_split() {
        let other = [&[0, 10][..], &vector(2, &[1, 2, 3])].concat();
        let hello = hello(&[other, sni("Example.COM")]);
        for size in [1, 2, 3, 5, 100, 16 * 1024] {
            for step in [1, 2, 7, 4096] {
                assert_eq!(said(&records(&hello, size), step), named("example.com"), "{size} {step}");
            }
        }
        let all = records(&hello, 1000);
        assert_eq!(said(&all[..all.len() - 1], 1), Greeting::Unfinished);
    }

    #[test]
    fn other_beginnings() {
        assert_eq!(said(b"SSH-2.0-x\r\n", 1), Greeting::Other);
        assert_eq!(said(&[22, 2, 0], 1), Greeting::Other);
        assert_eq!(said(&[21, 2, 0], 1), Greeting::Other);
        for first in [20, 21] {
            let late = [&[first, 3, 1, 0, 1, 1][..], &records(&hello(&[sni("a.example")]), 100)].concat();
            assert_eq!(said(&late, 1), Greeting::Broken("another record before the greeting"));
        }
        assert_eq!(said(&[], 1), Greeting::Unfinished);
        assert_eq!(said(&records(&hello(&[]), 100), 9), Greeting::Tls(None));
        assert_eq!(said(&[22, 3, 1, 0, 0], 1), Greeting::Broken("a record of a wrong length"));
        assert_eq!(said(&[22, 3, 1, 0xff, 0xff], 1), Greeting::Broken("a record of a wrong length"));
        assert_eq!(
            said(&[22, 3, 1, 0, 4, 2, 0, 0, 0], 9),
            Greeting::Broken("it does not begin with a greeting")
        );
        assert_eq!(
            said(&[22, 3, 1, 0, 4, 1, 0, 0, 0], 9),
            Greeting::Broken("the greeting is not well formed")
        );
        let two = records(&hello(&[sni("a.example"), sni("b.example")]), 999);
        assert_eq!(said(&two, 999), Greeting::Broken("more than one name"));
        let none = records(&hello(&[sni("a b")]), 999);
        assert_eq!(said(&none, 999), Greeting::Broken("its name is none"));
        let long = records(&[&[1, 1, 0, 0][..], &[0; 70_000]].concat(), 16_000);
        assert_eq!(said(&long, 1000), Greeting::Broken("the greeting is too long"));
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300), step in 1usize..50) {
            let tls = [&[22u8, 3, 1][..], &vector(2, &bytes)].concat();
            let whole = said(&tls, tls.len());
            prop_assert_eq!(said(&tls, step), whole);
        }
    }
}
